//! A client whose offer has been taken, as the offer's word says, or, where somebody has overwritten that, as the halves
//! of servers do.

use sys::call;
use sys::handler::Blocked;

use super::attach::{Counts, counts};
use super::{Conn, Half, Ordering, Phase, Reason, World, flag, half_state, lock};
use crate::board;
use crate::offer::{self, Status};

/// How long a server waits for a client that is in doubt, nanoseconds: it looks at each half once meanwhile.
const DOUBT_NS: u64 = 200_000_000;

impl Conn {
    /// Whether [`Self::settle`] would change anything: our offer has been taken, or its word overwritten.
    #[inline]
    #[must_use]
    pub fn is_taken(&self, w: &World) -> bool {
        self.my_half(w).is_some_and(|(index, _)| {
            let word = w.board.map.offer_word(self.offer.load(Ordering::Relaxed));
            offer::status(word, index) != Status::Open
        })
    }

    /// [`Self::settle`] for who has just looked at bytes of TCP of which this is the last: one like a doorbell is
    /// reason enough not to believe that the offer is open, which anybody can write. `true`: attached now.
    pub fn settle_at_bell(&'static self, w: &World, fd: i32, last: Option<u8>) -> bool {
        self.phase() == Phase::Offered && self.settle_client(w, fd, last == Some(super::BELL), 0)
    }

    /// Attaches if the offer has been taken. With its word overwritten the connection stays on TCP if it has not.
    /// `doubt`: not to believe the word if it says that the offer is open. `held`: bytes that the caller has taken from
    /// the socket, and will count itself.
    pub(super) fn settle_client(&'static self, w: &World, fd: i32, doubt: bool, held: u64) -> bool {
        let Some((index, half)) = self.my_half(w) else { return false };
        let word = w.board.map.offer_word(self.offer.load(Ordering::Relaxed));
        if offer::status(word, index) == Status::Open && !doubt {
            return false;
        }
        // Others wait for us until it is attached, and so would a handler that uses the connection.
        let quiet = Blocked::if_alone();
        let _counting = lock::lock(&self.counting);
        // Senders that are in the middle of a call finish it on TCP: see `go_up`.
        if !self.swap_phase(Phase::Offered, Phase::Busy) {
            return false;
        }
        // While we waited for the lock the record may have come to serve another connection.
        if self.my_half(w).map(|(now, _)| now) != Some(index) {
            self.set_phase(Phase::Offered);
            return false;
        }
        let word = w.board.map.offer_word(self.offer.load(Ordering::Relaxed));
        // What we counted ourselves is right unless we forked in between, or a call was left by a jump.
        // (First whether somebody sends: who says that our count is wrong does so before he ends.)
        if !self.tx.is_idle() && !self.counted(w) {
            // Another thread is sending: of what the kernel has by now, it will count some once more.
            self.tx.doubt();
        }
        let counted = self.counted(w).then(|| Counts {
            established: true,
            sent: self.tx.sent(),
            taken: self.tcp_rx.load(Ordering::Relaxed),
            queued: 0,
        });
        let asked = || {
            let counts = counts(fd, None)?;
            Some(Counts { taken: counts.taken.saturating_sub(held), ..counts })
        };
        let Some(counts) = counted.or_else(asked) else {
            self.set_phase(Phase::Offered);
            let lost = match offer::status(word, index) {
                Status::Open => false,
                Status::Lost => super::attach::is_gone(fd),
                // By the number that leads here now: another one may have been closed meanwhile.
                Status::Taken(_) => {
                    half.peer.load(Ordering::Relaxed) == 0
                        && super::attach::is_gone(self.own_fd(half))
                }
            };
            if lost {
                // The socket is not there any more, and the word will never say that the offer is open: whoever waits
                // for that, or for the attachment, would look for ever.
                offer::clear(word, index);
                self.stay_tcp(w, fd, Reason::PeerBroken);
            }
            return false;
        };
        let said = match offer::status(word, index) {
            Status::Taken(server) => Some(server).filter(|s| self.is_taker(w, *s)),
            Status::Open | Status::Lost => None,
        };
        let open = said.is_none() && offer::status(word, index) == Status::Open;
        let server = said.or_else(|| {
            if !open {
                offer::begin_doubt(&half.state);
            }
            // Halves of connections that have ended are among them, and those of ended processes begin anew to count
            // their generations: the two ends tell which is meant.
            let theirs = self.ends.lock().and_then(|ends| *ends)?.mirrored();
            let told = |(number, s): &(u32, &Half)| {
                s.flags.load(Ordering::Acquire) & flag::TAKEN != 0
                    && theirs.are_of(s)
                    && self.is_taker(w, *number)
            };
            board::halves(&w.board.map, w.board.fd()).find(told).map(|(number, _)| number)
        });
        let Some((server, peer)) = server.and_then(|s| Some((s, w.board.map.half(s)?))) else {
            self.set_phase(Phase::Offered);
            if !open {
                offer::clear(word, index);
                self.stay_tcp(w, fd, Reason::PeerBroken);
            }
            return false;
        };
        {
            // Another process that holds this end may be at it too, or have been, and have read since: what it has
            // counted in the half is right then.
            let _reading = lock::lock_of(&half.rx_lock, &half.lent);
            if half.peer.load(Ordering::Acquire) == server + 1 {
                self.peer.store(server + 1, Ordering::Relaxed);
            } else {
                let generation = peer.generation.load(Ordering::Relaxed);
                half.peer_generation.store(generation, Ordering::Relaxed);
                self.join(w, half, server, counts.taken, counts.sent);
            }
        }
        self.attached(w, half);
        w.offers_moved();
        let _ = self.rises(w, half, quiet.as_ref());
        true
    }

    /// Whether a half says that it is the other end of our connection.
    fn is_taker(&self, w: &World, server: u32) -> bool {
        let Some((index, half)) = self.my_half(w) else { return false };
        let generation = half.generation.load(Ordering::Relaxed);
        w.board.map.half(server).is_some_and(|s| {
            s.peer.load(Ordering::Relaxed) == index + 1
                && s.peer_generation.load(Ordering::Relaxed) == generation
                // It may have ended, or gone back to TCP, before we look: there may be doorbells then, and its last bytes.
                && matches!(
                    s.state.load(Ordering::Acquire),
                    half_state::ATTACHED | half_state::CLOSED | half_state::TCP
                )
        })
    }
}

/// A client that does not say what it believes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Undecided;

/// Server: whether the client, whose half had this generation when we took its offer, can know that we have. `half`:
/// ours.
pub(super) fn is_believed(half: &Half, peer: &Half, generation: u32) -> Result<bool, Undecided> {
    offer::tell_taken(&half.flags);
    let mut deadline = 0;
    loop {
        let state = peer.state.load(Ordering::Acquire);
        if peer.generation.load(Ordering::Relaxed) != generation {
            // It has closed, and knew.
            return Ok(true);
        }
        match state {
            half_state::DOUBT => {}
            half_state::TCP => return Ok(false),
            _ => return Ok(true),
        }
        let now = call::now_ns();
        if deadline == 0 {
            deadline = now + DOUBT_NS;
        }
        if now > deadline {
            return Err(Undecided);
        }
        call::sched_yield();
    }
}

#[cfg(test)]
pub(super) mod tests;
