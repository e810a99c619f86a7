//! What a call that was left by `siglongjmp` out of a signal handler has not put right.
//!
//! A signal that comes during a system call is delivered at its end, so what the call has moved is then counted by
//! the kernel only. That is asked; doorbells that nobody has counted would be taken for bytes of the program.

use sys::call;
use sys::sync::{AtomicU32, full_fence};

use super::attach::counts;
use super::{Conn, Half, Ordering, Phase, World, flag, kernel, lock, switch};

/// How often to let others run while one of them attaches the connection: for ever, if it was this thread that was
/// attaching it when it left.
const YIELDS: u32 = 10_000;

impl Conn {
    /// Frees the locks of the connection that this thread holds because it has left a call by a jump, once what
    /// they guard is right. To be called where none can be held otherwise: before a wait.
    pub fn free_left_locks(&self, w: &World) {
        lock::free_if_left(&self.counting);
        lock::free_if_left(&self.ending);
        lock::free_if_left(&self.numbered);
        let Some((_, mine)) = self.my_half(w) else { return };
        if let Some(_held) = lock::take_if_left(&mine.rx_lock)
            // Who is in the kernel still counts by itself what it has got there, once it has the lock. The last to
            // leave by a jump recounts then: `receive_left`.
            && self.in_kernel.load(Ordering::SeqCst) == 0
        {
            self.recount_received(w);
        }
        if let Some(_held) = lock::take_if_left(&mine.bell_lock) {
            Self::recount_bells(mine);
        }
        for word in [&mine.tx_lock, &mine.wait_lock] {
            lock::free_if_left(word);
        }
    }

    /// A lock that is not to be had because this thread holds it: perhaps since a call that it has left.
    #[cold]
    pub(super) fn lock_if_left<'a>(
        &self,
        w: &World,
        word: &'a AtomicU32,
        lent: &AtomicU32,
    ) -> Option<lock::Held<'a>> {
        self.free_left_locks(w);
        lock::lock_of(word, lent)
    }

    /// A receive that [`Self::receiving`] has begun was left by a jump, and will not end by itself.
    pub fn receive_left(&self, w: &World) {
        // Before the phase is looked at: who attaches after that does not go by our count. Pairs with the swap to
        // `Busy`.
        self.uncount(w);
        full_fence();
        let others = self.in_kernel.fetch_sub(1, Ordering::SeqCst) > 1;
        for _ in 0..YIELDS {
            if self.phase() != Phase::Busy {
                break;
            }
            call::sched_yield();
        }
        if self.phase() != Phase::Attached {
            return;
        }
        if let Some((_, mine)) = self.my_half(w)
            && !others
            && let Some(_held) = lock::lock_of(&mine.rx_lock, &mine.lent)
        {
            self.recount_received(w);
        }
    }

    /// A send that [`Self::tcp_send_begins`] has begun was left, and will not end by itself.
    pub fn send_left(&self, w: &World) {
        self.uncount(w);
        self.tx.left();
    }

    /// What we have counted so far is not to be relied on when the connection is attached.
    fn uncount(&self, w: &World) {
        self.forks.store(w.forks.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    }

    /// Bytes of TCP that were taken and not counted: those of the stream, and doorbells. The receive lock is held.
    fn recount_received(&self, w: &World) {
        let Some((mine, peer)) = self.halves(w) else { return };
        let ends = flag::DOWN | flag::WANT_DOWN;
        if self.phase() != Phase::Attached
            || peer.flags.load(Ordering::Acquire) & ends != 0
            || self.kernel.load(Ordering::Relaxed) & kernel::STRAYED != 0
        {
            // From there on not all is counted.
            return;
        }
        // An end counts for a byte, so it is too late then.
        let Some(counts) = counts(socket(mine), None).filter(|c| c.established) else { return };
        let taken = mine.tcp_rx.load(Ordering::Relaxed);
        let drained = mine.drained.load(Ordering::Relaxed);
        #[expect(clippy::cast_possible_truncation, reason = "doorbells are counted so")]
        let lost = (counts.taken.wrapping_sub(taken) as u32).wrapping_sub(drained);
        if lost == 0 || lost.cast_signed() < 0 {
            return;
        }
        let before = switch::risen(&peer.flags, &peer.up_at)
            .map_or(u64::MAX, |up_at| up_at.saturating_sub(taken));
        let bytes = u32::try_from(before).map_or(lost, |before| before.min(lost));
        // More than the peer has announced are no doorbells of its.
        // Acquire: before the doorbell was sent.
        let owed = peer.bells.load(Ordering::Acquire).wrapping_sub(drained);
        let bells = (lost - bytes).min(u32::try_from(owed.cast_signed()).unwrap_or(0));
        mine.tcp_rx.store(taken + u64::from(bytes), Ordering::Relaxed);
        mine.drained.store(drained.wrapping_add(bells), Ordering::Relaxed);
    }

    /// Whether the doorbell that is owed has gone out. The bell lock is held.
    fn recount_bells(mine: &Half) {
        let flags = mine.flags.load(Ordering::Relaxed);
        if mine.bell_owed.load(Ordering::Relaxed) == 0
            || flags & (flag::UP | flag::DOWN | flag::SHUT) != flag::UP
        {
            return;
        }
        let Some(counts) = counts(socket(mine), None).filter(|c| c.established) else { return };
        #[expect(clippy::cast_possible_truncation, reason = "doorbells are counted so")]
        let rung = counts.sent.wrapping_sub(mine.up_at.load(Ordering::Relaxed)) as u32;
        if rung == mine.bells.load(Ordering::Relaxed) {
            mine.bell_owed.store(0, Ordering::Relaxed);
        }
    }
}

fn socket(mine: &Half) -> i32 {
    mine.fd.load(Ordering::Relaxed).cast_signed()
}
