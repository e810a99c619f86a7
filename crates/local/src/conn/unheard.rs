//! Who waits for room in its ring while bytes of TCP from before the switch lie unread in its socket, and may lie there until
//! there is room. They close the window of TCP: what the peer rings with waits behind them in the peer's own socket, and so
//! does the end of a peer that was killed. So who waits looks by itself, every millisecond, and does not leave it to the kernel
//! to tell whether there is anybody at the other end.

use super::{Conn, Half, Ordering, World, flag, kernel};

impl Conn {
    /// Whether who waits for room will be rung for when there is some. If not, it comes here every millisecond; so this looks,
    /// too, whether the process at the other end has ended, by its lock. Then it is as if the kernel had said so: what came
    /// before can be read, and what was not read over there makes a reset of the end.
    pub fn is_heard(&self, w: &World, mine: &Half, peer: &Half) -> bool {
        // Nor does one ring who sends by TCP, still or again. Of room where our own direction is back there the kernel tells.
        let heard =
            !self.is_mixed(mine, peer) || mine.flags.load(Ordering::Relaxed) & flag::DOWN != 0;
        if !heard
            && self.kernel.load(Ordering::Relaxed) & kernel::DIED == 0
            && Self::has_died(w, mine, peer)
        {
            self.kernel.fetch_or(kernel::DIED | kernel::RDHUP | kernel::HUP, Ordering::Relaxed);
        }
        heard
    }

    /// Whether the process at the other end has ended, and has said nothing of that, nor of going back to TCP.
    fn has_died(w: &World, mine: &Half, peer: &Half) -> bool {
        let down = flag::DOWN | flag::WANT_DOWN;
        mine.flags.load(Ordering::Relaxed) & down == 0
            // With the first of several processes that hold it nothing is over.
            && peer.users.load(Ordering::Acquire) == 1
            && w.board.has_ended(peer.slot.load(Ordering::Relaxed))
            // After that: it writes no more.
            && peer.flags.load(Ordering::Acquire) & (down | flag::CLOSED) == 0
    }
}

#[cfg(test)]
mod tests;
