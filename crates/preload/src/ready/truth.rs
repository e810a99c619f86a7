//! What is true of a connection, as an event mask: by the halves, and by what the kernel has said.

use super::*;

/// All that is true of a connection now, as an event mask.
pub(crate) fn mask(conn: &Conn, mine: &Half, peer: &Half) -> u32 {
    mask_at(conn, mine, peer, ring::tail(&peer.tail))
}

/// [`mask`], where the peer's `tail` is known.
pub(super) fn mask_at(conn: &Conn, mine: &Half, peer: &Half, tail: u64) -> u32 {
    let peer_flags = peer.flags.load(Ordering::Acquire);
    let flags = mine.flags.load(Ordering::Relaxed);
    let hints = conn.kernel.load(Ordering::Relaxed);
    if hints & (kernel::RDHUP | kernel::HUP | kernel::ERR) != 0 {
        conn.judge_end(mine, peer);
    }
    let hints = conn.kernel.load(Ordering::Relaxed) | hints;
    let state = State {
        flags,
        peer_flags,
        hints,
        after: conn.sent_after(mine),
        readable: conn.may_read_at(mine, peer, tail),
        waits: conn.error.load(Ordering::Relaxed) != 0,
        told: conn.is_told(mine),
    };
    let mut mask = state.mask();
    if flags & (flag::SHUT | flag::DOWN) != 0
        || peer_flags & flag::CLOSED != 0
        || fds::world().is_some_and(|w| conn.writable(w, mine, peer))
    {
        mask |= OUT | WRNORM;
    }
    mask
}

/// What is known of a connection.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct State {
    pub(super) flags: u32,
    pub(super) peer_flags: u32,
    /// What the kernel has said: [`kernel`].
    pub(super) hints: u32,
    /// Bytes were sent after the peer had closed.
    pub(super) after: bool,
    pub(super) readable: bool,
    /// An error waits.
    pub(super) waits: bool,
    /// The error of a reset was told.
    pub(super) told: bool,
}

impl State {
    /// As an event mask, but for room.
    pub(super) fn mask(&self) -> u32 {
        let Self { flags, peer_flags, hints, after, .. } = *self;
        let deaf = flag::SHUT | flag::SHUT_RD;
        let clean = Conn::closed_cleanly(peer_flags) || hints & kernel::CLEAN != 0;
        let clean = clean && !after && flags & deaf != deaf;
        let reset = (peer_flags & flag::RESET != 0 || hints & kernel::RESET != 0) && !after;
        let mut mask = 0;
        if self.readable {
            mask |= IN | RDNORM;
        }
        let ended = peer_flags & (flag::SHUT | flag::CLOSED) != 0
            || hints & kernel::RDHUP != 0
            || flags & flag::SHUT_RD != 0;
        if ended {
            mask |= IN | RDNORM | RDHUP;
        }
        if flags & flag::SHUT != 0 && ended || hints & kernel::HUP != 0 && !clean || reset {
            mask |= HUP | IN | RDNORM | RDHUP | OUT | WRNORM;
        }
        let waits = hints & kernel::ERR != 0 || self.waits;
        if !clean && (waits && !reset || reset && !self.told) {
            mask |= ERR;
        }
        if hints & kernel::PRI != 0 {
            mask |= PRI;
        }
        mask
    }
}

/// What the kernel says of a socket, as [`kernel`] has it.
pub(super) fn hints_of(mask: u32) -> u32 {
    [(RDHUP, kernel::RDHUP), (HUP, kernel::HUP), (ERR, kernel::ERR), (PRI, kernel::PRI)]
        .into_iter()
        .filter(|(event, _)| mask & event != 0)
        .fold(0, |bits, (_, bit)| bits | bit)
}

/// Keeps what the kernel says of the socket.
pub(super) fn note(conn: &Conn, mask: u32) {
    let bits = hints_of(mask);
    if bits != 0 {
        conn.kernel.fetch_or(bits, Ordering::Relaxed);
    }
    if mask & PRI == 0 {
        conn.kernel.fetch_and(!kernel::PRI, Ordering::Relaxed);
    }
}

/// The end of the peer's stream, and a reset, as far as the peer has said so: that either comes is an event. A close behind
/// a shutdown is none.
pub(super) fn end_flags(peer: &Half) -> u32 {
    let flags = peer.flags.load(Ordering::Acquire);
    let end = if flags & (flag::SHUT | flag::CLOSED) == 0 { 0 } else { ENDED };
    let reset = flags & (flag::CLOSED | flag::RESET) == flag::CLOSED | flag::RESET;
    end | if reset { WAS_RESET } else { 0 }
}

/// Bits of [`end_flags`].
pub(super) const ENDED: u32 = 1;
pub(super) const WAS_RESET: u32 = 2;
