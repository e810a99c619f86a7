//! Naps: who waits for one connection alone sleeps by a futex first, for as long as answers usually take, and only then
//! by the socket.
//!
//! A doorbell is a byte of TCP: its sender goes through the whole stack, and its reader asks the kernel once more and takes
//! it out again. A futex costs both of them a third of that; but it says nothing of a peer that was killed, and of nothing
//! else that only the kernel knows. So it is not slept by for long: longer than a server with a thread for each of a hundred
//! connections takes to come round, and short enough for nobody to miss that its peer has died.

use sys::abi::{SLOTS, slot_state};

use super::{
    AtomicU32, Conn, Half, Ordering, Phase, WaitWord, World, add32, call, flag, full_fence, kernel,
    wait,
};

/// What naps have taught: where answers come later than they last, a nap is one more call in vain.
#[derive(Debug, Default)]
pub struct Naps {
    /// Naps too many that nobody has ended, at most [`LATE_MAX`].
    late: AtomicU32,
    /// Waits without a nap since.
    without: AtomicU32,
}

const LATE_MAX: u32 = 4;
/// A nap that is in vain counts as so many that are not.
const LATE: u32 = 2;
/// Waits without one, before it is tried again.
const WITHOUT: u32 = 16;

impl Naps {
    pub(super) fn reset(&self) {
        self.late.store(0, Ordering::Relaxed);
        self.without.store(0, Ordering::Relaxed);
    }

    /// Whether the next wait is to begin with one.
    #[must_use]
    pub fn pay(&self) -> bool {
        if self.late.load(Ordering::Relaxed) < LATE_MAX {
            return true;
        }
        let without = self.without.load(Ordering::Relaxed) + 1;
        let again = without >= WITHOUT;
        self.without.store(if again { 0 } else { without }, Ordering::Relaxed);
        again
    }

    /// One was taken. `late`: nobody has ended it.
    pub fn ended(&self, late: bool) {
        let now = self.late.load(Ordering::Relaxed);
        let next = if late { (now + LATE).min(LATE_MAX) } else { now.saturating_sub(1) };
        if next != now {
            self.late.store(next, Ordering::Relaxed);
        }
    }
}

impl Conn {
    /// Whether who waits for this connection may nap: all that it waits for is told by its peer, in memory, and it has
    /// been worth while. That no event set and no other process has it is for the caller to know.
    #[must_use]
    pub fn may_nap(&self, mine: &Half, peer: &Half) -> bool {
        self.is_told_by_memory(mine, peer) && self.naps.pay()
    }

    /// The first half of that: for who waits for others as well.
    #[must_use]
    pub fn is_told_by_memory(&self, mine: &Half, peer: &Half) -> bool {
        let strays = kernel::STRAY | kernel::STRAYED;
        let told = kernel::RDHUP | kernel::HUP | kernel::ERR | kernel::PRI | strays;
        self.phase() == Phase::Attached
            && self.kernel.load(Ordering::Relaxed) & told == 0
            && !self.is_mixed(mine, peer)
            && mine.flags.load(Ordering::Relaxed) & flag::SHUT_RD == 0
            && mine.users.load(Ordering::Relaxed) == 1
            && Self::ends_naps(peer)
    }

    /// Whether the peer would end a nap. To be asked once more after [`Self::arm_nap`]: it says so and looks for naps.
    #[must_use]
    pub fn ends_naps(peer: &Half) -> bool {
        peer.flags.load(Ordering::Acquire) & (flag::BELLS | flag::CLOSED) == 0
    }

    /// How it is to be woken now.
    #[must_use]
    pub fn wait_word(mine: &Half) -> WaitWord {
        WaitWord::parse(mine.wait.load(Ordering::Relaxed))
    }

    /// Whether another process of ours may have made it one whose calls do not wait, since that was asked last.
    #[must_use]
    pub fn may_be_nonblocking(&self, w: &World, mine: &Half) -> bool {
        w.forks.load(Ordering::Relaxed) != 0 || self.is_inherited(w, mine)
    }

    /// Arms for a nap, perhaps beside other threads that nap already; answers what [`Self::nap`] wants to know. `None`:
    /// another thread sleeps otherwise. The caller holds the lock of the wait word, and looks once more after this.
    #[must_use]
    pub fn arm_nap(&self, mine: &Half, peer: &Half) -> Option<u32> {
        let napping = || matches!(Self::wait_word(mine), WaitWord::Nap(_));
        let in_kernel = self.in_kernel.load(Ordering::SeqCst) + self.in_poll.load(Ordering::SeqCst);
        if in_kernel > 0 || mine.sleepers.load(Ordering::Relaxed) > 0 && !napping() {
            return None;
        }
        let seq = mine.arm_seq.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        Some(wait::arm_nap(&mine.wait, seq, &peer.rung))
    }

    /// Sleeps until the peer does something, or for so many nanoseconds. `goes_on`: behind a signal handler, if that says so.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: nobody has ended it. `EINTR`. `ENOSYS` and others: it cannot be done.
    pub fn nap(&self, peer: &Half, seen: u32, ns: u64, goes_on: bool) -> Result<(), i32> {
        let ended = if goes_on {
            call::futex_nap_on(&peer.rung, seen, call::now_ns() + ns)
        } else {
            call::futex_nap(&peer.rung, seen, ns)
        };
        let late = ended == Err(ETIMEDOUT);
        if late || ended.is_ok() {
            self.naps.ended(late);
        }
        if ended == Err(EAGAIN) { Ok(()) } else { ended }
    }

    /// Another thread or process of ours has armed for doorbells, or has done what ends a wait: those that nap look again.
    /// `was`: how it was to be woken before.
    pub fn end_own_naps(&self, w: &World, was: WaitWord, peer: &Half) {
        // Who has restricted its calls does not nap.
        if rings_bells_only() {
            return;
        }
        match was {
            WaitWord::Nap(_) => call::futex_wake_all(&peer.rung),
            // Either we see that it naps, or it sees what we have done. Pairs with `wait::nap`.
            WaitWord::Warm(waiter) => {
                full_fence();
                let _ = w.rouse(waiter);
            }
            WaitWord::Off | WaitWord::Cold(_) => {}
        }
    }

    /// Has who naps at the other end look: something has become of this end that the kernel tells who sleeps by the socket.
    pub fn rouse(w: &World, mine: &Half, peer: &Half) {
        match wait::look(&peer.wait) {
            WaitWord::Nap(seq) => Self::end_naps_of_peer(mine, seq),
            WaitWord::Warm(waiter) => Self::end_nap_of_loop(w, mine, waiter),
            WaitWord::Off | WaitWord::Cold(_) => {}
        }
    }

    /// [`Self::rouse`], and nobody is to nap for us from now on. `ends`: our process ends, and may not close it; where
    /// another one goes on with it nothing changes. Otherwise it may still make any call, if only now.
    pub fn wakes_by_bells(&self, w: &World, ends: bool) {
        if let Some((mine, peer)) = self.halves(w).filter(|_| self.phase() == Phase::Attached)
            && !(ends && self.outlives_us(w, mine))
        {
            mine.flags.fetch_or(flag::BELLS, Ordering::Release);
            if ends {
                return Self::rouse(w, mine, peer);
            }
            match wait::look(&peer.wait) {
                WaitWord::Nap(seq) if wait::end_naps(&mine.rung, seq) => {
                    call::futex_wake_all(&mine.rung);
                }
                WaitWord::Warm(waiter) => {
                    let _ = w.rouse(waiter);
                }
                _ => {}
            }
        }
    }

    /// The end of [`Self::wakes_by_bells`], for a process that has not ended after all.
    pub fn wakes_again(&self, w: &World) {
        if let Some((_, mine)) = self.my_half(w)
            && first_flags() == 0
        {
            mine.flags.fetch_and(!flag::BELLS, Ordering::Relaxed);
        }
    }

    fn outlives_us(&self, w: &World, mine: &Half) -> bool {
        let maker = mine.slot.load(Ordering::Relaxed);
        // Who has made it counts for ever.
        let gone = self.is_inherited(w, mine)
            && (maker as usize) < SLOTS
            && w.board.map.slot(maker).state.load(Ordering::Relaxed) != slot_state::LIVE;
        mine.users.load(Ordering::Relaxed) > 1 + u32::from(gone)
    }

    /// Ends the nap that an event loop is in, if it is in one.
    pub(super) fn end_nap_of_loop(w: &World, mine: &Half, waiter: u32) {
        if !rings_bells_only() && w.rouse(waiter) {
            add32(&mine.n_bells, 1);
        }
    }

    #[cold]
    pub(super) fn end_naps_of_peer(mine: &Half, seq: u32) {
        if wait::end_naps(&mine.rung, seq) && !rings_bells_only() {
            add32(&mine.n_bells, 1);
            call::futex_wake_all(&mine.rung);
        }
    }
}

/// Not 0: the program has restricted its system calls, and may be killed for one that its code does not make.
static BELLS_ONLY: AtomicU32 = AtomicU32::new(0);

/// From now on this process wakes nobody but by doorbells. [`Conn::wakes_by_bells`] must follow for each connection.
pub fn ring_bells_only() {
    BELLS_ONLY.store(1, Ordering::SeqCst);
}

/// Whether that has been said.
pub(super) fn rings_bells_only() -> bool {
    BELLS_ONLY.load(Ordering::Relaxed) != 0
}

/// [`half_flags`](sys::abi::half_flags) of a half that is new.
pub(super) fn first_flags() -> u32 {
    if BELLS_ONLY.load(Ordering::Relaxed) == 0 { 0 } else { flag::BELLS }
}

const EAGAIN: i32 = 11;
const ETIMEDOUT: i32 = 110;

#[cfg(test)]
mod tests {
    use super::{LATE, LATE_MAX, Naps, WITHOUT};

    #[test]
    fn naps_in_vain_are_given_up_and_tried_again() {
        let naps = Naps::default();
        for _ in 0..LATE_MAX / LATE {
            assert!(naps.pay());
            naps.ended(true);
        }
        for _ in 1..WITHOUT {
            assert!(!naps.pay());
        }
        assert!(naps.pay());
        naps.ended(true);
        assert!(!naps.pay());
    }

    #[test]
    fn one_that_pays_brings_them_back() {
        let naps = Naps::default();
        (0..9).for_each(|_| naps.ended(true));
        naps.ended(false);
        assert!(naps.pay());
        naps.ended(true);
        assert!(!naps.pay());
    }
}
