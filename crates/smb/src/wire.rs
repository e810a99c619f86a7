//! The bytes of SMB2 messages, read and written, for both ends (MS-SMB2 2.2).
//!
//! A message is a [`header::Header`] of 64 bytes and a body; bodies of the two directions are `Request` and
//! `Response` of the module that is named as the command. Several messages may follow each other in one frame
//! ([`compound`]), and a frame may be encrypted ([`crate::crypto::TransformHeader`]).
//!
//! Reading: `Request::parse(message)` takes the bytes of one message from its header on, as [`compound::Compound`]
//! yields them, since offsets on the wire count from there; what it returns borrows from them. Names are
//! UTF-16LE bytes as they came. A body that is not as it should be is a [`BadMessage`], answered with
//! STATUS_INVALID_PARAMETER. Nothing is read outside `message`, whatever it says.
//!
//! Writing: `let start = header.encode(&mut out)`, then [`Encode::encode`] with that `start`.
//! A buffer or name that is longer than the field for its length can say is cut there; only a caller that
//! ignores the limits it negotiated gets that far.
//!
//! ```
//! use smb::wire::{Encode, header::{Command, Header}, read};
//!
//! let mut out = Vec::new();
//! let start = Header::request(Command::Read).encode(&mut out);
//! read::Request { length: 4096, offset: 65_536, ..read::Request::default() }.encode(&mut out, start);
//! let request = read::Request::parse(&out[start..])?;
//! assert_eq!((request.length, request.offset), (4096, 65_536));
//! # Ok::<(), smb::wire::BadMessage>(())
//! ```

pub mod bare;
mod bytes;
pub mod change_notify;
pub mod close;
pub mod compound;
pub mod context;
pub mod create;
pub mod error;
pub mod flush;
pub mod header;
pub mod ioctl;
pub mod lease_break;
pub mod lock;
pub mod negotiate;
pub mod oplock_break;
pub mod output;
pub mod query_directory;
pub mod query_info;
pub mod read;
pub mod session_setup;
pub mod set_info;
pub mod smb1;
pub mod tree_connect;
pub mod write;

pub use bare as cancel;
pub use bare as echo;
pub use bare as logoff;
pub use bare as tree_disconnect;
pub use bytes::U16s;

use crate::NtStatus;

/// Why bytes are not the message that they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BadMessage {
    /// Fewer bytes than the fixed part has, or than a list needs.
    #[error("shorter than it must be")]
    Truncated,
    /// It does not begin as an SMB2 message does.
    #[error("not an SMB2 header")]
    Protocol,
    /// StructureSize is not what this command has.
    #[error("StructureSize of another structure")]
    StructureSize,
    /// A buffer is not where a buffer may be: in the fixed part, past the end, or not aligned.
    #[error("buffer out of place")]
    Offset,
    /// A field has a value that it may not have.
    #[error("value that means nothing")]
    Value,
    /// What may be there once is there twice.
    #[error("twice what may be there once")]
    Duplicate,
    /// More elements than this side is willing to look at.
    #[error("too many elements")]
    TooMany,
}

impl BadMessage {
    /// What a server answers: STATUS_INVALID_PARAMETER, whatever was wrong (MS-SMB2 3.3.5.2).
    #[must_use]
    pub const fn status(self) -> NtStatus {
        NtStatus::INVALID_PARAMETER
    }
}

impl From<BadMessage> for NtStatus {
    fn from(bad: BadMessage) -> Self {
        bad.status()
    }
}

/// A body that can be written behind its header.
pub trait Encode {
    /// Appends the body to `out`, whose header begins at `start`. What is written depends on `out` only by its
    /// length, which must be `start + 64`.
    fn encode(&self, out: &mut Vec<u8>, start: usize);
}

/// Bytes of the largest message that can be: the length in front of a frame has 24 bits (MS-SMB2 2.1).
pub const FRAME_MAX: usize = 0xff_ffff;

/// Bytes that one credit pays for (MS-SMB2 3.1.5.2).
pub const CREDIT_BYTES: u64 = 65_536;

/// The CreditCharge that `payload_len` bytes need, the larger of what is sent and what is asked for
/// (MS-SMB2 3.3.5.2.5). At least 1. `payload_len` is what `payload_len()` of a request says.
#[must_use]
pub const fn credit_charge_needed(payload_len: u64) -> u64 {
    match payload_len {
        0 => 1,
        len => (len - 1) / CREDIT_BYTES + 1,
    }
}

#[cfg(test)]
mod tests;
