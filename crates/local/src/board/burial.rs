//! What is done for processes that have ended without giving back what they had of the board.

use sys::abi::{
    DATA_AT, EXTENT_BYTES, EXTENTS, OWNER_HALVES, PORT_OFFERED, half_state, slot_state,
};
use sys::call;
use sys::sync::Ordering;

use super::{Board, EXTENT_LOCKS_AT, lock_of, number, taken_halves};
use crate::offer;

impl Board {
    /// Frees the slots of processes that are dead and that nobody alive leads to.
    pub(super) fn reclaim(&self, fd: i32) {
        let used = self.map.header().slots_used.load(Ordering::Relaxed).min(1024);
        let dead = |i: &u32| {
            let state = self.map.slot(*i).state.load(Ordering::Acquire);
            state == slot_state::LIVE && call::byte_locked(fd, lock_of(*i)) == Ok(false)
        };
        let dead: Vec<u32> = (0..used).filter(dead).collect();
        for &index in &dead {
            let linked = (0..used).filter(|i| !dead.contains(i)).any(|i| {
                let slot = self.map.slot(i);
                slot.state.load(Ordering::Acquire) == slot_state::LIVE
                    && slot
                        .links
                        .get(index as usize)
                        .is_some_and(|n| n.load(Ordering::Acquire) != 0)
            });
            let slot = self.map.slot(index);
            if linked
                || slot
                    .state
                    .compare_exchange(
                        slot_state::LIVE,
                        slot_state::BUSY,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    )
                    .is_err()
            {
                continue;
            }
            // Another reclaimer may have been quicker, and a new owner be here already.
            if call::lock_byte(fd, lock_of(index)).is_err() {
                slot.state.store(slot_state::LIVE, Ordering::Release);
                continue;
            }
            self.bury(fd, index);
            slot.state.store(slot_state::FREE, Ordering::Release);
            call::unlock_byte(fd, lock_of(index));
        }
        self.finish_burials(fd, used);
    }

    /// Does what somebody was at who was killed meanwhile: a slot that is taken or given back has its lock but for moments,
    /// in which whoever finds that another has it lets it be.
    fn finish_burials(&self, fd: i32, used: u32) {
        for index in 0..used {
            let slot = self.map.slot(index);
            let is_busy = || slot.state.load(Ordering::Acquire) == slot_state::BUSY;
            if !is_busy() || call::lock_byte(fd, lock_of(index)).is_err() {
                continue;
            }
            if is_busy() {
                self.bury(fd, index);
                slot.state.store(slot_state::FREE, Ordering::Release);
            }
            call::unlock_byte(fd, lock_of(index));
        }
    }

    /// Takes the memory, the ports and the offers of a dead process off the board.
    fn bury(&self, fd: i32, slot: u32) {
        for port in 0..=u16::MAX {
            let word = self.map.port(port);
            let seen = word.load(Ordering::Relaxed);
            if seen & !PORT_OFFERED == slot + 1 {
                let _ = word.compare_exchange(seen, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
        let extents =
            (self.map.header().extents_used.load(Ordering::Relaxed) as usize).min(EXTENTS);
        for extent in DATA_AT / EXTENT_BYTES..extents {
            let word = self.map.owner(extent);
            // The word may have been overwritten; the lock tells whether somebody lives there.
            let lock = EXTENT_LOCKS_AT + i64::try_from(extent).unwrap_or(0);
            if word.load(Ordering::Acquire) & !OWNER_HALVES == slot + 1
                && call::byte_locked(fd, lock) == Ok(false)
            {
                if word.load(Ordering::Relaxed) & OWNER_HALVES == 0 {
                    self.map.release(fd, extent * EXTENT_BYTES, EXTENT_BYTES);
                    word.store(0, Ordering::Release);
                } else if self.free_halves(fd, extent) {
                    word.store(OWNER_HALVES, Ordering::Release);
                }
            }
        }
    }

    /// Frees the halves of a dead process. They keep their pages, and whoever takes the extent next has halves there again:
    /// a word of an offer, or what waits for its peer to close, may lead here still, and a look at memory that is not there
    /// would take some, or, on a file system that is full, end the process (SIGBUS). They keep their generations as well,
    /// so that none is taken for one that was there before.
    fn free_halves(&self, fd: i32, extent: usize) -> bool {
        if !self.map.open_extent(extent, true) {
            // Its owner word says whose it was: another time.
            return false;
        }
        for at in taken_halves(fd, extent) {
            let Some(index) = number(at) else { continue };
            let half = self.map.half_known(index);
            let offered = half.offer_word.load(Ordering::Relaxed);
            offer::clear(self.map.offer_word(u64::from(offered)), index);
            half.peer.store(0, Ordering::Relaxed);
            half.state.store(half_state::FREE, Ordering::Release);
        }
        self.map.open_extent(extent, false);
        true
    }
}
