//! Where TCP ends before the switch, or before it is known where that is.

use super::{Conn, ECONNRESET, EPIPE, Got, Half, Ordering, Put, call, flag, kernel};

impl Conn {
    /// What becomes of a message to a peer that was killed when it had read all, but for a doorbell: of its end the kernel has
    /// made a reset then, and refuses what TCP would take once more. That is lost there as well, and answered with a reset, of
    /// which who sends next is told.
    pub(super) fn takes_a_last_one(&self, fd: i32, mine: &Half, len: usize) -> Put {
        // Asked once more: what was taken for the end may have been a call that something refused, and no byte is to vanish.
        if self.kernel.load(Ordering::Relaxed) & kernel::CLEAN == 0 || !call::hung_up(fd) {
            return Put::Kernel;
        }
        if len > 0 {
            // The kernel's own is of a connection that had not ended.
            let _ = call::getsockopt::<i32>(fd, 1, 4);
            self.error.store(EPIPE.cast_unsigned(), Ordering::Relaxed);
            self.kernel
                .fetch_or(kernel::ERR | kernel::HUP | kernel::AFTER_CLOSE, Ordering::Relaxed);
            mine.flags.fetch_or(flag::AFTER, Ordering::Relaxed);
        }
        Put::Lost
    }

    /// TCP has nothing more to read, which may be before the switch, or before it is known where that is. How the stream ends.
    pub(super) fn ends_before_up(&self, fd: i32, mine: &Half, peer: &Half) -> Got {
        self.kernel.fetch_or(kernel::RDHUP, Ordering::Relaxed);
        self.judge_end(mine, peer);
        let flags = peer.flags.load(Ordering::Acquire);
        // What is missing has been lost with the socket of the peer.
        let is_cut = Self::before(mine, peer) > 0;
        // A call of ours may have taken the kernel's word for it, which is said once: a doorbell's, for one.
        let errno = self.error.load(Ordering::Relaxed).cast_signed();
        let is_clean = Self::closed_cleanly(flags) && !self.sent_after(mine);
        let was_reset = is_cut
            || errno != 0 && !is_clean
            // Behind its end a stream gives no error.
            || flags & flag::SHUT == 0
                && (flags & flag::RESET != 0
                    || self.kernel.load(Ordering::Relaxed) & kernel::RESET != 0);
        if !was_reset
            || self.is_told(mine)
            || mine.flags.load(Ordering::Relaxed) & flag::SHUT_RD != 0
        {
            return Got::End;
        }
        self.tell_reset(fd, mine, if errno == 0 { ECONNRESET } else { errno })
    }
}

#[cfg(test)]
pub(super) mod tests;
