//! One connection: how far each side has written and read, and how it ends (RFC 7609 4.5 to 4.8, as Linux
//! 6.12 does it).
//!
//! Each side has a **send ring**, which is its own business, and an **RMB**, into which the peer writes by
//! RDMA. A [`Conn`] holds no byte of either: it says which bytes go where, and the caller moves them.
//!
//! After anything that has happened call [`Conn::plan`] until it returns `None`, and post what it returns
//! in order: up to two RDMA writes, then the CDC message that tells of them.

mod close;
mod receive;
mod send;

pub use close::State;
pub use receive::{Heard, Violation};
pub use send::{Piece, Push, Ticket, Transmission, Unwritable, Write};

use crate::cdc::{ProducerFlags, StateFlags};
use crate::cursor::Position;
use crate::name::{RKey, SizeClass, Token};

/// Where the peer's RMB is, on the link that the connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remote {
    /// Key.
    pub rkey: RKey,
    /// Virtual address of the first byte.
    pub vaddr: u64,
}

/// What a connection begins with, as agreed on by Accept and Confirm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    /// Bytes of our RMB.
    pub rmb: SizeClass,
    /// Bytes of our send ring.
    pub send_ring: SizeClass,
    /// What our messages must carry: the peer's token.
    pub peer_token: Token,
    /// Bytes of the peer's RMB.
    pub peer_rmb: SizeClass,
    /// Where it is.
    pub remote: Remote,
    /// Hold small sends back while a message is under way until so many bytes wait; 0: never.
    /// Linux: 65,536 (`net.smc.autocorking_size`).
    pub autocork: u32,
    /// The urgent byte stays among the others (`SO_OOBINLINE`).
    pub urgent_inline: bool,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct Conn {
    // What both sides agreed on.
    rmb: u32,
    ring: u32,
    peer_token: Token,
    peer_rmb: u32,
    remote: Remote,
    autocork: u32,

    // What we write. All are positions in our stream, in this order but for `urgent_end`.
    /// The peer's program has read so far.
    peer_consumed: Position,
    /// Acknowledged by the peer's RNIC, and so out of our ring.
    finished: Position,
    /// Written into the peer's RMB, if nothing is lost with a link.
    sent: Position,
    /// In our ring.
    prepared: Position,
    /// Ever sent; `sent` goes back when a link is lost.
    sent_max: Position,
    /// Behind the urgent byte, from when it is prepared until the peer has read everything.
    urgent_end: Option<Position>,
    /// What the next message says of our writing.
    producer_flags: ProducerFlags,
    /// What all further messages say of the connection's end.
    state_flags: StateFlags,
    /// Of the last message.
    sequence: u16,
    /// Of the last message that was acknowledged.
    sequence_finished: u16,
    /// Messages under way.
    uncompleted: u32,
    /// Times that the connection has moved to another link, modulo 2^32.
    moves: u32,
    /// The next message must be the one that validates a move.
    validate: bool,
    /// Nothing but that goes until the peer has moved, too.
    held: bool,
    /// A message must go, whether there are bytes or not.
    owed: bool,

    // What the peer writes: positions in its stream, in this order.
    /// What we told the peer that our program has read.
    confirmed: Position,
    /// What our program has read.
    consumed: Position,
    /// In our RMB.
    arrived: Position,
    /// Of the last message.
    peer_sequence: u16,
    /// The peer waits for room.
    peer_blocked: bool,
    /// The peer wants a message for each byte that is read.
    peer_wants_updates: bool,
    /// The peer has moved to another link, and may repeat itself.
    peer_moved: bool,
    peer_state: StateFlags,
    urgent_inline: bool,
    /// Behind the peer's urgent byte.
    peer_urgent_end: Option<Position>,
    /// The peer has announced an urgent byte that is not here.
    peer_urgent_pending: bool,

    // How it ends.
    state: State,
    /// Our program will not write any more.
    shut: bool,
    /// Our program has closed.
    closed: bool,
    /// What has not been sent is given up.
    gave_up: bool,
    /// The link group died.
    killed: bool,
}

impl Conn {
    /// A connection on which nothing has been sent.
    #[must_use]
    pub const fn new(setup: &Setup) -> Self {
        Self {
            rmb: setup.rmb.bytes(),
            ring: setup.send_ring.bytes(),
            peer_token: setup.peer_token,
            peer_rmb: setup.peer_rmb.bytes(),
            remote: setup.remote,
            autocork: setup.autocork,
            peer_consumed: 0,
            finished: 0,
            sent: 0,
            prepared: 0,
            sent_max: 0,
            urgent_end: None,
            producer_flags: ProducerFlags(0),
            state_flags: StateFlags(0),
            sequence: 0,
            sequence_finished: 0,
            uncompleted: 0,
            moves: 0,
            validate: false,
            held: false,
            owed: false,
            confirmed: 0,
            consumed: 0,
            arrived: 0,
            peer_sequence: 0,
            peer_blocked: false,
            peer_wants_updates: false,
            peer_moved: false,
            peer_state: StateFlags(0),
            urgent_inline: setup.urgent_inline,
            peer_urgent_end: None,
            peer_urgent_pending: false,
            state: State::Active,
            shut: false,
            closed: false,
            gave_up: false,
            killed: false,
        }
    }

    /// Where the connection is on its way to its end.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }
}

#[cfg(test)]
mod tests;
