//! Work requests and completions: what a queue pair is asked to do, and how it went.

use crate::memory::Key;
use crate::number::Qpn;

/// The most pieces of memory in a request. A ring that wraps has two.
pub const PIECES_MAX: usize = 2;
/// The most bytes of a message (IBTA vol. 1, 9.4.3 allows 2^31).
pub const MESSAGE_MAX: u32 = 1 << 30;

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The region's key.
    pub key: Key,
    /// Address, as the region counts.
    pub address: u64,
    /// Bytes.
    pub len: u32,
}

/// Where the bytes of a message are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// Here: copied at once, at most
    /// [`inline_max`](crate::QpConfig::inline_max) bytes.
    Inline(&'a [u8]),
    /// In registered memory, at most [`PIECES_MAX`] pieces, read when packets are sent. They must stay
    /// what they are until the request is complete: a packet that is sent again is read again.
    Pieces(&'a [Piece]),
}

/// What is to be done with the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Put it into the peer's next receive request.
    Send,
    /// Put it into the peer's memory.
    Write {
        /// Address, as the peer's region counts.
        address: u64,
        /// The key of the peer's region.
        rkey: u32,
    },
}

/// A request to send.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub operation: Operation,
    /// With what.
    pub source: Source<'a>,
    /// A word for the peer's completion; a WRITE that has one takes a receive request of the peer.
    pub immediate: Option<u32>,
    /// Whether success makes a completion. Failure always does.
    pub signaled: bool,
    /// Whether the peer's completion is worth waking it up for.
    pub solicited: bool,
}

/// A request to receive the next SEND.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// Where to put it: at most [`PIECES_MAX`] pieces, filled in order.
    pub pieces: &'a [Piece],
}

/// Why a request was not taken. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// There is no such queue pair.
    #[error("there is no such queue pair")]
    Unknown,
    /// The queue is full.
    #[error("the queue is full")]
    Full,
    /// Not in this state.
    #[error("the queue pair is not in a state that takes requests")]
    State,
    /// More pieces than a request has.
    #[error("a request has at most 2 pieces")]
    Pieces,
    /// Longer than a message may be, or than may be copied.
    #[error("the message is too long")]
    Length,
}

/// What a completion is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A SEND of ours.
    Send,
    /// A RDMA WRITE of ours.
    Write,
    /// A SEND of the peer's.
    Receive,
    /// A RDMA WRITE with immediate of the peer's.
    ReceiveWrite,
}

/// How a request ended (IBTA vol. 1, 10.10.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// As asked.
    Success,
    /// What came is longer than the receive request.
    LocalLength,
    /// A piece is not in a region that may be used so.
    LocalProtection,
    /// The queue pair failed before, or was taken down.
    Flushed,
    /// The peer says that the request makes no sense.
    RemoteInvalidRequest,
    /// The peer does not let us write there.
    RemoteAccess,
    /// The peer could not carry it out.
    RemoteOperational,
    /// The peer does not answer.
    RetryExceeded,
    /// The peer never had a receive request.
    RnrRetryExceeded,
}

/// A request is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Of the request.
    pub id: u64,
    /// Of which queue pair.
    pub qpn: Qpn,
    /// Of what.
    pub kind: Kind,
    /// How it went. If not [`Status::Success`], only `id`, `qpn` and `kind` say something.
    pub status: Status,
    /// Bytes of the message.
    pub bytes: u32,
    /// The peer's word.
    pub immediate: Option<u32>,
    /// The peer wants somebody woken up.
    pub solicited: bool,
}
