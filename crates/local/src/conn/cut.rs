//! Where TCP ends before the switch, or before it is known where that is.

use super::{Conn, ECONNRESET, Got, Half, Ordering, flag, kernel};

impl Conn {
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
