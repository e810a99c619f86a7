//! What goes out: bytes out of the send ring, and the messages that tell of them.

use super::{Conn, Remote, State};
use crate::cdc::{CDC_LEN, Cdc, CdcReserved, ProducerFlags, StateFlags};
use crate::cursor::{Cursor, Position};
use crate::name::RKey;

/// A range of the send ring that does not wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins in the ring, bytes.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// One RDMA write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Write {
    /// Key to the peer's RMB.
    pub rkey: RKey,
    /// Where the first byte goes.
    pub vaddr: u64,
    pieces: [Piece; 2],
}

impl Write {
    /// Where the bytes are in the send ring: one range, or two if it wraps.
    #[must_use]
    pub const fn pieces(&self) -> &[Piece] {
        let [first, second] = &self.pieces;
        if second.len == 0 { std::slice::from_ref(first) } else { &self.pieces }
    }

    /// Bytes.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.pieces[0].len + self.pieces[1].len
    }

    /// Never: what there is to write is not empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What to post, in this order: the writes, then the message, as a SEND with the solicited event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmission {
    writes: [Write; 2],
    /// The message.
    pub cdc: [u8; CDC_LEN],
    /// For [`Conn::completed`], when the SEND has been acknowledged.
    pub ticket: Ticket,
}

impl Transmission {
    /// None, one, or two if the peer's RMB wraps.
    #[must_use]
    pub fn writes(&self) -> &[Write] {
        let n = self.writes.iter().take_while(|write| !write.is_empty()).count();
        &self.writes[..n]
    }
}

/// Names a message that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    sent: Position,
    sequence: u16,
    moves: u32,
}

/// How urgently bytes should go out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Push {
    /// At once.
    Now,
    /// When nothing is under way or enough has gathered (autocork), as Linux does by default.
    #[default]
    Auto,
    /// When the send ring is full (`MSG_MORE`, `TCP_CORK`).
    Corked,
}

/// Why a program may not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    /// It has shut its side, or the link group is gone: `EPIPE`.
    #[error("the connection was shut down on this side")]
    Shut,
    /// The peer has closed: `ECONNRESET`.
    #[error("the peer has closed the connection")]
    Reset,
}

impl Conn {
    /// Bytes that may be put into the send ring now. None while an urgent byte is under way (RFC 7609
    /// 4.7.6): the peer must have read everything before there may be more.
    ///
    /// # Errors
    ///
    /// Nothing can be written any more.
    pub const fn room(&self) -> Result<u32, Unwritable> {
        if self.shut || self.killed {
            return Err(Unwritable::Shut);
        }
        if self.peer_state.has_any(CLOSED_OR_ABORTED) {
            return Err(Unwritable::Reset);
        }
        Ok(if self.urgent_end.is_some() { 0 } else { self.ring_free() })
    }

    const fn ring_free(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "at most the ring's size")]
        let used = (self.prepared - self.finished) as u32;
        self.ring - used
    }

    /// Where the next byte goes in the send ring.
    #[must_use]
    pub fn write_offset(&self) -> u32 {
        Cursor::at(self.prepared, self.ring).count
    }

    /// So many bytes have been put into the send ring; not more than [`Conn::room`]. What is more is
    /// ignored.
    pub fn wrote(&mut self, bytes: u32) {
        let bytes = bytes.min(self.room().unwrap_or(0));
        self.prepared += u64::from(bytes);
    }

    /// As [`Conn::wrote`], and the last of these bytes is urgent (`MSG_OOB`).
    pub fn wrote_urgent(&mut self, bytes: u32) {
        if bytes == 0 || self.room().unwrap_or(0) == 0 {
            return;
        }
        self.wrote(bytes);
        self.announce_urgent();
        self.urgent_end = Some(self.prepared);
    }

    /// An urgent byte is to be written for which there is no room yet: the peer is told at once (RFC 7609
    /// 4.7.1).
    pub const fn announce_urgent(&mut self) {
        if !self.producer_flags.has(ProducerFlags::URGENT_PENDING) {
            self.producer_flags.set(ProducerFlags::URGENT_PENDING, true);
            self.owed = true;
        }
    }

    /// Bytes in the send ring that have not been written to the peer.
    #[must_use]
    pub const fn unsent(&self) -> u64 {
        self.prepared - self.sent
    }

    /// Bytes in the send ring that are not acknowledged, what `SIOCOUTQ` tells.
    #[must_use]
    pub const fn unfinished(&self) -> u64 {
        self.prepared - self.finished
    }

    /// Whether messages are under way, so that the send ring may not be given away.
    #[must_use]
    pub const fn is_sending(&self) -> bool {
        self.uncompleted > 0
    }

    const fn peer_room(&self) -> u64 {
        (self.peer_rmb as u64).saturating_sub(self.sent.saturating_sub(self.peer_consumed))
    }

    /// Whether bytes should wait for company.
    const fn holds_back(&self, push: Push) -> bool {
        let half = self.ring / 2;
        let enough = if self.autocork < half { self.autocork } else { half };
        let auto = self.uncompleted > 0 && self.unsent() <= enough as u64;
        match push {
            // No company will come any more.
            _ if self.shut => false,
            // What goes again after a move goes with the first message, or the producer cursor would be behind what it was.
            _ if self.sent < self.sent_max => false,
            Push::Now => false,
            Push::Auto => auto,
            Push::Corked => auto || self.ring_free() > 0,
        }
    }

    /// The next thing to post, if there is any. Nothing is owed any more when this has been called until
    /// it returned `None`, unless it is held ([`Conn::hold`]); whoever has no room in the send queue just calls later.
    #[must_use]
    pub fn plan(&mut self, push: Push) -> Option<Transmission> {
        if self.killed {
            return None;
        }
        if self.validate {
            self.validate = false;
            return Some(self.validation());
        }
        if self.held {
            return None;
        }
        let bytes = if self.holds_back(push) { 0 } else { self.sendable() };
        // While it waits for room in vain the peer need not be told again.
        if bytes == 0 && !self.owed {
            return None;
        }
        let mut writes = [Write::default(); 2];
        if bytes > 0 {
            let blocked = self.unsent() >= self.peer_room();
            self.producer_flags.set(ProducerFlags::WRITE_BLOCKED, blocked);
            writes = self.writes(bytes);
            self.sent += u64::from(bytes);
            self.sent_max = self.sent_max.max(self.sent);
        }
        let present = self.urgent_end == Some(self.sent)
            && self.producer_flags.has(ProducerFlags::URGENT_PENDING);
        self.producer_flags.set(ProducerFlags::URGENT_PRESENT, present);
        self.finish_writing();
        let transmission = self.transmission(writes);
        if present {
            self.producer_flags.set(ProducerFlags::URGENT_PENDING, false);
            self.producer_flags.set(ProducerFlags::URGENT_PRESENT, false);
        }
        Some(transmission)
    }

    /// Bytes that can be written now.
    fn sendable(&self) -> u32 {
        if self.peer_state.has_any(CLOSED_OR_ABORTED) || self.state == State::Closed {
            return 0;
        }
        // Who has said CLOSED writes nothing new behind it: the peer may have given its RMB to another connection by then.
        // What it has had already may have to go again, over another link.
        let end = if self.gave_up && self.sent_close() { self.sent_max } else { self.prepared };
        u32::try_from(end.saturating_sub(self.sent).min(self.peer_room())).unwrap_or(0)
    }

    /// Writes for the next `bytes`: two if the peer's RMB wraps, each out of two places if our ring does.
    fn writes(&self, bytes: u32) -> [Write; 2] {
        let to_offset = Cursor::at(self.sent, self.peer_rmb).count;
        let first = bytes.min(self.peer_rmb - to_offset);
        let write = |vaddr_offset: u32, from: Position, len: u32| {
            let offset = Cursor::at(from, self.ring).count;
            let head = len.min(self.ring - offset);
            Write {
                rkey: self.remote.rkey,
                vaddr: self.remote.vaddr.wrapping_add(vaddr_offset.into()),
                pieces: [Piece { offset, len: head }, Piece { offset: 0, len: len - head }],
            }
        };
        let second = write(0, self.sent + u64::from(first), bytes - first);
        [write(to_offset, self.sent, first), second]
    }

    /// The message about everything that is so now.
    fn transmission(&mut self, writes: [Write; 2]) -> Transmission {
        self.sequence = self.sequence.wrapping_add(1);
        self.confirmed = self.consumed;
        self.owed = false;
        let cdc = Cdc {
            sequence: self.sequence,
            token: self.peer_token,
            producer: Cursor::at(self.sent, self.peer_rmb),
            consumer: Cursor::at(self.consumed, self.rmb),
            producer_flags: self.producer_flags,
            state_flags: self.state_flags,
            reserved: CdcReserved::default(),
        };
        self.posted(writes, &cdc, self.sequence)
    }

    /// The first message on another link: the last sequence number that was acknowledged, and no cursors.
    fn validation(&mut self) -> Transmission {
        let cdc = Cdc {
            sequence: self.sequence_finished,
            token: self.peer_token,
            producer_flags: ProducerFlags::FAILOVER_VALIDATION,
            ..Cdc::default()
        };
        self.posted([Write::default(); 2], &cdc, self.sequence_finished)
    }

    fn posted(&mut self, writes: [Write; 2], cdc: &Cdc, sequence: u16) -> Transmission {
        self.uncompleted += 1;
        // What a validation says is nothing new, and so is its completion.
        let sent = if cdc.producer_flags.has(ProducerFlags::FAILOVER_VALIDATION) {
            self.finished
        } else {
            self.sent
        };
        let ticket = Ticket { sent, sequence, moves: self.moves };
        Transmission { writes, cdc: cdc.emit(), ticket }
    }

    /// A message was acknowledged: its bytes are out of the send ring. Messages are acknowledged in order.
    pub fn completed(&mut self, ticket: Ticket) {
        // What was under way on a link that is lost counts no more.
        if ticket.moves != self.moves || self.uncompleted == 0 {
            return;
        }
        self.uncompleted -= 1;
        self.finished = self.finished.max(ticket.sent);
        self.sequence_finished = ticket.sequence;
    }

    /// The link is lost and the connection goes on over another, where the peer's RMB is at `remote`: what
    /// was not acknowledged is sent again (RFC 7609 4.6). The next message tells the peer what was.
    pub fn moved(&mut self, remote: Remote) {
        self.remote = remote;
        self.moves = self.moves.wrapping_add(1);
        self.uncompleted = 0;
        // What the peer's program has read need not be sent again, acknowledged or not.
        self.finished = self.finished.max(self.peer_consumed);
        self.sent = self.finished;
        let urgent_again = self.urgent_end.is_some_and(|end| end > self.sent);
        self.producer_flags.set(ProducerFlags::URGENT_PENDING, urgent_again);
        self.validate = self.state != State::Closed || self.state_flags.0 != 0;
        self.owed = self.validate;
    }

    /// The peer may not have left a lost link yet ([`crate::group::Group::holds`]): nothing goes but the message that
    /// validates a move, until [`Conn::release`].
    pub const fn hold(&mut self) {
        self.held = true;
    }

    /// What was held may go.
    pub const fn release(&mut self) {
        self.held = false;
    }
}

pub(super) const CLOSED_OR_ABORTED: StateFlags = StateFlags::CLOSED.with(StateFlags::ABORTED);
