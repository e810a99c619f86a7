//! Who waits for room in its ring while bytes of TCP from before the switch lie unread in its socket, and may lie there until
//! there is room. They close the window of TCP: what the peer rings with waits behind them in the peer's own socket. So who
//! waits looks by itself, every millisecond.

use super::{Conn, Half, Ordering, flag};

impl Conn {
    /// Whether who waits for room will be rung for when there is some. If not, it looks every millisecond.
    #[must_use]
    pub fn is_heard(&self, mine: &Half, peer: &Half) -> bool {
        // Nor does one ring who sends by TCP, still or again. Of room where our own direction is back there the kernel tells.
        !self.is_mixed(mine, peer) || mine.flags.load(Ordering::Relaxed) & flag::DOWN != 0
    }
}
