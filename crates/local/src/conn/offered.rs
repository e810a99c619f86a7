//! Which offer on the board is of the peer of a connection that we have accepted.

use crate::board::{Found, netns_of};

use super::*;

/// What the board has for an accepted connection.
pub(super) enum Offered<'w> {
    /// The offer of its peer, and the half that is offered.
    Here(Found<'w>, &'w Half),
    /// One that is, or may be, of its peer, which has made no call yet that we see.
    NotYet,
    /// None.
    Nowhere,
}

impl Conn {
    /// Looks for the offer of our peer. `data`: bytes of the peer are here, so that its offer is there if it makes one.
    ///
    /// # Errors
    ///
    /// Why it stays on TCP, whatever comes.
    pub(super) fn offer_of_peer<'w>(
        &self,
        w: &'w World,
        fd: i32,
        ends: Ends,
        data: bool,
    ) -> Result<Offered<'w>, Reason> {
        // Bytes of a client that has made no call that we see came by ways that we do not see.
        let seen = if data { flag::IO_SEEN } else { flag::IO_SEEN | flag::WATCHED };
        let (mut fitting, mut is_late, mut refusal) = (None, false, None);
        for found in w.board.offers_to(ends, fd) {
            let peer = w.board.map.half(found.half).ok_or(Reason::PeerBroken)?;
            let has_called = peer.flags.load(Ordering::Relaxed) & seen != 0;
            if self.is_listed(w, fd, ends, peer) {
                // The kernel names one socket, so no other offer can be of it.
                match (found.taker, has_called) {
                    // Another process attached what we both hold.
                    (Some(_), _) => return Err(Reason::Shared),
                    (None, false) => is_late = true,
                    (None, true) if self.is_by_kernel(w, ends, peer)? => {
                        return Ok(Offered::Here(found, peer));
                    }
                    (None, true) => refusal = Some(Reason::ForgedOffer),
                }
                continue;
            }
            // One that sees us elsewhere may be anybody's.
            let says_so = ends.mirrored().begin_at(peer);
            match self.begun(fd, ends) {
                None if says_so && found.taker.is_some() => return Err(Reason::Shared),
                None if says_so => return Err(Reason::NoSyn),
                Some(begun) if begun.is_of(peer) => {
                    if found.taker.is_some() {
                        return Err(Reason::Shared);
                    }
                    // Of two that it may be, it is none.
                    if fitting.replace((found, peer, has_called)).is_some() {
                        return Err(Reason::NoSyn);
                    }
                }
                // Ours may yet come.
                _ if says_so && data => refusal = Some(Reason::NoSyn),
                _ => {}
            }
        }
        match (fitting, refusal) {
            (Some((found, peer, true)), _) => Ok(Offered::Here(found, peer)),
            (Some(_), _) => Ok(Offered::NotYet),
            (None, _) if is_late => Ok(Offered::NotYet),
            (None, Some(reason)) => Err(reason),
            (None, None) => Ok(Offered::Nowhere),
        }
    }

    /// Whether the kernel lists the peer's socket to us, if it is this one: it lists those of our namespace only, and by the
    /// addresses that they have.
    fn is_listed(&self, w: &World, fd: i32, ends: Ends, peer: &Half) -> bool {
        if !w.board.is_across() {
            return true;
        }
        let is_here = || netns_of(fd).is_some_and(|at| at == peer.netns.load(Ordering::Relaxed));
        let is_routed = peer.flags.load(Ordering::Relaxed) & flag::ROUTED != 0;
        (!is_routed || ends.mirrored().are_of(peer)) && is_here()
    }

    /// The kernel's word that an offer is from the very socket at the other end.
    fn is_by_kernel(&self, w: &World, ends: Ends, peer: &Half) -> Result<bool, Reason> {
        let found = w.board.who_is(ends.remote, ends.local)?;
        let is_it = |found: diag::Peer| found.cookie == peer.cookie.load(Ordering::Relaxed);
        Ok(found.is_some_and(is_it))
    }
}
