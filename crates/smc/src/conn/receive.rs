//! What comes in: the peer's messages, and how far our program has read.

use super::send::CLOSED_OR_ABORTED;
use super::{Conn, Piece};
use crate::cdc::{Cdc, ProducerFlags, StateFlags};
use crate::cursor::{BadCursor, Cursor};

/// A small buffer need not be confirmed byte by byte: half of `SOCK_MIN_SNDBUF` of Linux on 64 bits.
const UPDATE_MIN: u32 = 2304;

/// What a message brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Bytes that were written into our RMB.
    pub arrived: u32,
    /// Bytes of our stream that the peer's program has read.
    pub read_by_peer: u32,
    /// Offset in our RMB of an urgent byte, which has to be kept before the program reads on.
    pub urgent: Option<u32>,
    /// The peer announced an urgent byte that is not here yet.
    pub urgent_pending: bool,
    /// The peer said for the first time that it has written all, or closed, or aborted.
    pub ending: bool,
}

/// A message that no honest peer sends. Nothing of it was believed; the connection has to be aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// The producer cursor cannot be.
    #[error("producer cursor: {0}")]
    Producer(BadCursor),
    /// The consumer cursor cannot be.
    #[error("consumer cursor: {0}")]
    Consumer(BadCursor),
    /// The producer cursor went back, though no link was lost.
    #[error("the producer cursor went back")]
    ProducerBack,
    /// The consumer cursor went back.
    #[error("the consumer cursor went back")]
    ConsumerBack,
    /// More was written than there was room for.
    #[error("the peer wrote over what was not read")]
    Overrun,
    /// More was read than was written.
    #[error("the peer read what was not written")]
    ReadUnwritten,
    /// After a link was lost: the peer believes acknowledged what never came.
    #[error("messages were lost with a link")]
    LostWithLink,
}

impl Conn {
    /// A CDC message for this connection came.
    ///
    /// # Errors
    ///
    /// It is a violation, and the connection is as before: call [`Conn::abort`].
    pub fn on_cdc(&mut self, cdc: &Cdc) -> Result<Heard, Violation> {
        #[expect(clippy::cast_possible_wrap, reason = "distance on a circle")]
        let ahead = cdc.sequence.wrapping_sub(self.peer_sequence) as i16;
        if cdc.producer_flags.has(ProducerFlags::FAILOVER_VALIDATION) {
            if ahead > 0 {
                return Err(Violation::LostWithLink);
            }
            self.peer_moved = true;
            return Ok(Heard::default());
        }
        if ahead < 0 {
            return Ok(Heard::default());
        }
        let arrived = cdc.producer.near(self.arrived, self.rmb).map_err(Violation::Producer)?;
        if arrived > self.confirmed + u64::from(self.rmb) {
            return Err(Violation::Overrun);
        }
        if arrived < self.arrived && !self.peer_moved {
            return Err(Violation::ProducerBack);
        }
        let read = cdc.consumer.near(self.peer_consumed, self.peer_rmb);
        let read = read.map_err(Violation::Consumer)?;
        if read < self.peer_consumed {
            return Err(Violation::ConsumerBack);
        }
        if read > self.sent_max {
            return Err(Violation::ReadUnwritten);
        }
        self.peer_sequence = cdc.sequence;
        let mut heard = Heard { ending: self.note_state(cdc.state_flags), ..Heard::default() };
        heard.read_by_peer = self.note_read(read);
        self.note_arrived(arrived, cdc.producer_flags, &mut heard);
        if heard.ending {
            self.on_peer_ending();
        }
        self.step_close();
        Ok(heard)
    }

    fn note_state(&mut self, flags: StateFlags) -> bool {
        let before = self.peer_state;
        self.peer_state = before.with(flags);
        let ends = CLOSED_OR_ABORTED.with(StateFlags::SENDING_DONE);
        (self.peer_state.0 & !before.0) & ends.0 != 0
    }

    fn note_read(&mut self, read: u64) -> u32 {
        let bytes = u32::try_from(read - self.peer_consumed).unwrap_or(0);
        self.peer_consumed = read;
        // After a move the peer may turn out to have read what we thought had to be sent again.
        self.sent = self.sent.max(read);
        if bytes > 0 && self.peer_consumed == self.prepared {
            self.urgent_end = None;
        }
        bytes
    }

    fn note_arrived(&mut self, arrived: u64, flags: ProducerFlags, heard: &mut Heard) {
        let bytes = arrived.saturating_sub(self.arrived);
        self.arrived = self.arrived.max(arrived);
        self.peer_blocked = flags.has(ProducerFlags::WRITE_BLOCKED);
        self.peer_wants_updates = flags.has(ProducerFlags::CURSOR_UPDATE_REQUESTED);
        heard.arrived = u32::try_from(bytes).unwrap_or(0);
        if bytes > 0 && flags.has(ProducerFlags::URGENT_PRESENT) {
            self.peer_urgent_end = Some(self.arrived);
            self.peer_urgent_pending = false;
            heard.urgent = Some(Cursor::at(self.arrived - 1, self.rmb).count);
            self.skip_urgent();
        } else if flags.has(ProducerFlags::URGENT_PENDING) {
            heard.urgent_pending = !self.peer_urgent_pending;
            self.peer_urgent_pending = true;
        }
        // Whoever has urgent business has to know how far we are. If that has been said already it is not said
        // again, or two ends with urgent business would never stop answering each other.
        let urgent = flags.has(ProducerFlags::URGENT_PENDING) && self.consumed > self.confirmed;
        self.update_if_due(urgent);
    }

    /// Bytes that the program may read now: up to an urgent byte, if there is one. What is there never
    /// wraps more than once.
    #[must_use]
    pub fn readable(&self) -> u32 {
        let end = self.peer_urgent_end.map_or(self.arrived, |end| {
            if self.consumed < end - 1 { end - 1 } else { self.arrived }
        });
        u32::try_from(end - self.consumed).unwrap_or(0)
    }

    /// Where they are in our RMB; the second piece is empty unless they wrap.
    #[must_use]
    pub fn readable_pieces(&self) -> [Piece; 2] {
        let (offset, len) = (Cursor::at(self.consumed, self.rmb).count, self.readable());
        let head = len.min(self.rmb - offset);
        [Piece { offset, len: head }, Piece { offset: 0, len: len - head }]
    }

    /// Nothing more will come, and all that came was read. Whether that is an end or a reset says
    /// [`Conn::was_reset`].
    #[must_use]
    pub const fn at_end(&self) -> bool {
        let ends = CLOSED_OR_ABORTED.with(StateFlags::SENDING_DONE);
        self.killed || self.arrived == self.consumed && self.peer_state.has_any(ends)
    }

    /// The peer aborted: `ECONNRESET`.
    #[must_use]
    pub const fn was_reset(&self) -> bool {
        self.peer_state.has(StateFlags::ABORTED)
    }

    /// The program stands before the urgent byte, or, if that was taken out of the stream, where it was
    /// (`SIOCATMARK`).
    #[must_use]
    pub fn at_mark(&self) -> bool {
        let before = u64::from(self.urgent_inline);
        self.peer_urgent_end.is_some_and(|end| self.consumed == end - before)
    }

    /// The program has read so many bytes; not more than [`Conn::readable`]. What is more is ignored.
    pub fn consumed(&mut self, bytes: u32) {
        let bytes = bytes.min(self.readable());
        if bytes == 0 {
            return;
        }
        self.consumed += u64::from(bytes);
        let past = self.peer_urgent_end.is_some_and(|end| self.consumed >= end);
        if past {
            self.peer_urgent_end = None;
        }
        self.skip_urgent();
        self.update_if_due(past);
    }

    /// An urgent byte that is not to be read with the others is passed over as soon as it is next.
    fn skip_urgent(&mut self) {
        if !self.urgent_inline && self.peer_urgent_end == Some(self.consumed + 1) {
            self.consumed += 1;
            self.update_if_due(true);
        }
    }

    /// Tells the peer how far the program has read, if that is of use (RFC 7609 4.5.1, with the limits of
    /// Linux): a tenth of the RMB at least, and only if the peer is blocked or sees less than half of it
    /// free.
    fn update_if_due(&mut self, force: bool) {
        let rmb = u64::from(self.rmb);
        let unconfirmed = self.consumed - self.confirmed;
        let limit = u64::from((self.rmb / 10).max(UPDATE_MIN));
        let seen_free = rmb - (self.arrived - self.confirmed);
        let of_use = self.peer_blocked || seen_free <= rmb / 2;
        let asked = self.peer_wants_updates && unconfirmed > 0;
        if force || asked || unconfirmed > limit && of_use {
            self.owed = true;
        }
        if self.arrived == self.consumed && !self.owed {
            self.peer_blocked = false;
        }
    }
}
