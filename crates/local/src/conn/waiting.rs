//! What a wait looks at: whether there is something to read, or room to write.

use super::{Conn, Half, Loc, Ordering, World, flag, kernel, ring};

/// Bytes of a message that is written at once.
const SHORT: usize = 256;

impl Conn {
    /// A wait for somebody who does something with this connection has not ended: says what there is to be seen, and ends
    /// the program.
    #[cfg(feature = "watchdog")]
    #[cold]
    pub(crate) fn turns_for_ever(&self, why: &str) -> ! {
        crate::log::line(format_args!(
            "watchdog: endless wait for who {why}: conn fd {}, phase {:?} from {}, half {}, counting {}, {:?}",
            self.fd.load(Ordering::Relaxed),
            self.phase(),
            self.busy_from.load(Ordering::Relaxed),
            self.half.load(Ordering::Relaxed),
            self.counting.load(Ordering::Relaxed),
            self.tx,
        ));
        std::process::abort()
    }

    /// Whether a receive would not wait, as far as memory tells.
    #[inline]
    #[must_use]
    pub fn may_read(&self, mine: &Half, peer: &Half) -> bool {
        self.may_read_at(mine, peer, ring::tail(&peer.tail))
    }

    /// [`Self::may_read`], where the peer's `tail` is known.
    #[inline]
    #[must_use]
    pub fn may_read_at(&self, mine: &Half, peer: &Half, tail: u64) -> bool {
        let flags = peer.flags.load(Ordering::Acquire);
        if flags & flag::UP == 0
            || mine.tcp_rx.load(Ordering::Relaxed) < peer.up_at.load(Ordering::Relaxed)
        {
            return self.kernel.load(Ordering::Relaxed) & kernel::IN != 0;
        }
        let head = mine.head.load(Ordering::Relaxed);
        if flags & flag::DOWN != 0 && head == peer.down_at.load(Ordering::Relaxed) {
            return self.kernel.load(Ordering::Relaxed) & kernel::IN != 0;
        }
        if mine.flags.load(Ordering::Relaxed) & flag::WANT_DOWN != 0 {
            return self.kernel.load(Ordering::Relaxed) & kernel::IN != 0;
        }
        tail != head
            || self.at_eof(mine, flags)
            || self.kernel.load(Ordering::Relaxed) & kernel::STRAY != 0
    }

    #[inline]
    pub(super) fn at_eof(&self, mine: &Half, peer_flags: u32) -> bool {
        let hints = kernel::RDHUP | kernel::HUP | kernel::ERR;
        peer_flags & (flag::SHUT | flag::CLOSED) != 0
            || mine.flags.load(Ordering::Relaxed) & flag::SHUT_RD != 0
            || self.kernel.load(Ordering::Relaxed) & hints != 0
    }

    /// Whether the state of a direction is the kernel's to tell.
    #[must_use]
    pub fn is_mixed(&self, mine: &Half, peer: &Half) -> bool {
        Self::mixed(mine, peer)
    }

    /// [`Self::is_mixed`], for who has no more than the halves.
    #[must_use]
    pub fn mixed(mine: &Half, peer: &Half) -> bool {
        let flags = peer.flags.load(Ordering::Acquire);
        flags & (flag::DOWN | flag::WANT_DOWN) != 0
            || mine.flags.load(Ordering::Relaxed) & (flag::DOWN | flag::WANT_DOWN) != 0
            || flags & flag::UP == 0
            || mine.tcp_rx.load(Ordering::Relaxed) < peer.up_at.load(Ordering::Relaxed)
    }

    /// Whether the kernel says that the peer's socket is closed. After our own shutdown of receiving
    /// it says half of that by itself; and a peer that sends by TCP ends that direction in the kernel,
    /// and is still there.
    #[inline]
    pub(super) fn seems_gone(&self, mine: &Half, peer: &Half) -> bool {
        let hints = self.kernel.load(Ordering::Relaxed);
        hints & (kernel::HUP | kernel::ERR) != 0
            || hints & kernel::RDHUP != 0
                && mine.flags.load(Ordering::Relaxed) & flag::SHUT_RD == 0
                && !Self::shut_in_kernel(peer)
    }

    /// Whether the peer has shut down sending, and its bytes go by TCP.
    fn shut_in_kernel(peer: &Half) -> bool {
        let flags = peer.flags.load(Ordering::Acquire);
        flags & flag::SHUT != 0 && flags & (flag::UP | flag::DOWN) != flag::UP
    }

    /// Calls that have moved bytes since this was asked last.
    #[must_use]
    pub fn calls_since(&self, mine: &Half) -> u32 {
        let sent = mine.n_tx.load(Ordering::Relaxed);
        let calls = sent.wrapping_add(mine.n_rx.load(Ordering::Relaxed));
        calls.wrapping_sub(self.calls_seen.swap(calls, Ordering::Relaxed))
    }

    /// Bytes that the peer has written and read, as it says.
    #[inline]
    #[must_use]
    pub fn peer_moved(peer: &Half) -> u64 {
        let read = peer.head.load(Ordering::Relaxed);
        peer.tail.load(Ordering::Relaxed).wrapping_add(read)
    }

    /// Where the next message of the peer's will lie if it is short as the last one was, and goes on in the ring that was
    /// read last: who waits for it may fetch the lines together with the word that tells of it, not one after the other.
    /// Not for longer ones: their first lines would be taken from a peer that still writes the others.
    #[inline]
    #[must_use]
    pub fn next_short(&self, w: &World, mine: &Half, peer: &Half) -> Option<(*const u8, usize)> {
        let n = self.took.load(Ordering::Relaxed) as usize;
        if n == 0 || n > SHORT {
            return None;
        }
        let word = peer.loc.load(Ordering::Relaxed);
        let known = word == self.loc_checked.load(Ordering::Relaxed);
        let only = peer.next_loc.load(Ordering::Relaxed) == 0;
        let loc = Loc::parse(word).filter(|_| known && only)?;
        Some((w.board.map.ring(loc).place(mine.head.load(Ordering::Relaxed)), n))
    }

    /// Whether a wait for the end of what the peer sends can end now, whatever there is to be read before it.
    #[must_use]
    pub fn nears_its_end(&self, mine: &Half, peer: &Half) -> bool {
        let flags = peer.flags.load(Ordering::Acquire);
        flags & (flag::CLOSED | flag::WANT_DOWN) != 0 || self.at_eof(mine, flags)
    }

    /// Whether a wait for bytes (`room`: or for room) can end now.
    #[inline]
    #[must_use]
    pub fn moved(&self, mine: &Half, peer: &Half, room: bool) -> bool {
        let flags = peer.flags.load(Ordering::Acquire);
        if flags & (flag::CLOSED | flag::WANT_DOWN) != 0 {
            return true;
        }
        if room {
            // Another thread may have ended sending: a send that waits ends by that.
            mine.flags.load(Ordering::Relaxed) & flag::SHUT != 0
                || self.seems_gone(mine, peer)
                || Self::has_some_room(mine, peer)
        } else {
            self.may_read(mine, peer)
        }
    }
}

#[cfg(test)]
mod tests;
