//! LLC: the messages by which the two ends of a link group talk about its links and keys, sent over the
//! links themselves (RFC 7609 A.3; version 2 as Linux 6.12 has it).
//!
//! Linux writes two fields of version 2 in the byte order of its host: the length of each message and the
//! number of keys in ADD LINK. Here both are written little endian and read in either order.

mod link;
mod rkey;

pub use link::{
    AddLink, AddLinkCont, AddLinkV2, ConfirmLink, DeleteLink, DeleteReason, NewKey, RejectReason,
    RequestAddLink,
};
pub use rkey::{ConfirmRkey, ConfirmRkeyCont, DeleteRkey, DeleteRkeyAnswer, LinkKey};

use crate::bytes::{Put, Reader, Short, bit};

/// Bytes of every message of version 1 and of most of version 2.
pub const LLC_LEN: usize = 44;
/// Longest message.
pub const LLC_MAX: usize = 8192;

const RESPONSE: u8 = 0x80;
const V2: u8 = 0x20;

/// Which layout a link group speaks. One group speaks one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// RFC 7609.
    V1,
    /// Version 2.
    #[default]
    V2,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its layout.
    pub version: Version,
    /// An answer, not a request.
    pub response: bool,
    /// What it says.
    pub body: Body,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A link works.
    ConfirmLink(ConfirmLink),
    /// Another link.
    AddLink(AddLink),
    /// Keys of buffers on the other link; version 1.
    AddLinkCont(AddLinkCont),
    /// A link goes away, or all.
    DeleteLink(DeleteLink),
    /// The client would like another link; version 2.
    RequestAddLink(RequestAddLink),
    /// Keys of one buffer.
    ConfirmRkey(ConfirmRkey),
    /// More of them.
    ConfirmRkeyCont(ConfirmRkeyCont),
    /// Are you there?
    TestLink([u8; 16]),
    /// Keys that do not count any more.
    DeleteRkey(DeleteRkey),
}

/// Bytes that are no LLC message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Fewer bytes than the message needs. Linux ignores such a message.
    #[error("{0} bytes are no LLC message")]
    Short(usize),
    /// The length field is wrong. Linux ignores such a message.
    #[error("an LLC message of length {0}")]
    Length(u16),
    /// A type that may not be ignored and is not known: a protocol violation (RFC 7609 A.3).
    #[error("LLC type {0:#04x}")]
    Type(u8),
    /// A type that may be ignored (RFC 7609 A.3: the upper two bits are 10).
    #[error("LLC type {0:#04x}, which may be ignored")]
    Optional(u8),
    /// More entries than there may be.
    #[error("{0} entries in a list that may not have so many")]
    Count(u16),
}

/// The flag byte of a message and the low bits in front of it.
#[derive(Clone, Copy)]
struct Flags {
    flags: u8,
    /// Low nibble of the third byte.
    reason: u8,
}

impl Message {
    /// Reads one message.
    ///
    /// # Errors
    ///
    /// Why it is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let short = ParseError::Short(bytes.len());
        let head = bytes.first_chunk::<LLC_LEN>().ok_or(short)?;
        let [kind, len, low, flags] = [head[0], head[1], head[2], head[3]];
        let version = match kind >> 4 {
            0 => Version::V1,
            2 => Version::V2,
            8..=11 => return Err(ParseError::Optional(kind)),
            _ => return Err(ParseError::Type(kind)),
        };
        let length = match version {
            Version::V1 => u16::from(len),
            Version::V2 => u16::from_le_bytes([len, low]).max(u16::from_be_bytes([len, low])),
        };
        let fits = match version {
            Version::V1 => usize::from(length) == LLC_LEN,
            Version::V2 => usize::from(length) >= LLC_LEN,
        };
        if !fits {
            return Err(ParseError::Length(length));
        }
        let mut body = Reader::new(&bytes[4..]);
        // In version 2 the reason of a rejection would share a byte with the length, and Linux sends none.
        let reason = if version == Version::V1 { low & 15 } else { 0 };
        let flags = Flags { flags, reason };
        let body = Body::parse(kind & 15, version, flags, &mut body)
            .map_err(|wrong| wrong.with(short, kind))?;
        Ok(Self { version, response: flags.flags & RESPONSE != 0, body })
    }

    /// The bytes: 44, or more for ADD LINK, REQUEST ADD LINK and DELETE RKEY of version 2.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(LLC_LEN);
        bytes.put(&[self.body.kind() | bit(V2, self.version == Version::V2), 0, 0, 0]);
        let Flags { flags, reason } = self.body.emit(self.version, &mut bytes);
        if bytes.len() < LLC_LEN {
            bytes.resize(LLC_LEN, 0);
        }
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes();
        let of_v1 = [44, reason];
        bytes[1..3].copy_from_slice(if self.version == Version::V2 { &len } else { &of_v1 });
        bytes[3] = flags | bit(RESPONSE, self.response);
        bytes
    }
}

/// What can go wrong in the body of a message.
enum Wrong {
    Short,
    Type,
    Count(u16),
}

impl From<Short> for Wrong {
    fn from(_: Short) -> Self {
        Self::Short
    }
}

impl Wrong {
    const fn with(self, short: ParseError, kind: u8) -> ParseError {
        match self {
            Self::Short => short,
            Self::Type => ParseError::Type(kind),
            Self::Count(n) => ParseError::Count(n),
        }
    }
}

impl Body {
    fn parse(
        kind: u8,
        version: Version,
        flags: Flags,
        body: &mut Reader<'_>,
    ) -> Result<Self, Wrong> {
        Ok(match (kind, version) {
            (1, _) => Self::ConfirmLink(ConfirmLink::parse(flags, body)?),
            (2, _) => Self::AddLink(AddLink::parse(flags, version, body)?),
            (3, Version::V1) => Self::AddLinkCont(AddLinkCont::parse(body)?),
            (4, _) => Self::DeleteLink(DeleteLink::parse(flags, body)?),
            (5, Version::V2) => Self::RequestAddLink(RequestAddLink::parse(flags, body)?),
            (6, _) => Self::ConfirmRkey(ConfirmRkey::parse(flags, body)?),
            (7, _) => Self::TestLink(body.array()?),
            (8, _) => Self::ConfirmRkeyCont(ConfirmRkeyCont::parse(flags, body)?),
            (9, _) => Self::DeleteRkey(DeleteRkey::parse(flags, version, body)?),
            _ => return Err(Wrong::Type),
        })
    }

    const fn kind(&self) -> u8 {
        match self {
            Self::ConfirmLink(_) => 1,
            Self::AddLink(_) => 2,
            Self::AddLinkCont(_) => 3,
            Self::DeleteLink(_) => 4,
            Self::RequestAddLink(_) => 5,
            Self::ConfirmRkey(_) => 6,
            Self::TestLink(_) => 7,
            Self::ConfirmRkeyCont(_) => 8,
            Self::DeleteRkey(_) => 9,
        }
    }

    fn emit(&self, version: Version, bytes: &mut Vec<u8>) -> Flags {
        let only = |flags| Flags { flags, reason: 0 };
        match self {
            Self::ConfirmLink(body) => only(body.emit(bytes)),
            Self::AddLink(body) => body.emit(version, bytes),
            Self::AddLinkCont(body) => only(body.emit(bytes)),
            Self::DeleteLink(body) => only(body.emit(bytes)),
            Self::RequestAddLink(body) => body.emit(bytes),
            Self::ConfirmRkey(body) => only(body.emit(bytes)),
            Self::ConfirmRkeyCont(body) => only(body.emit(bytes)),
            Self::TestLink(user) => {
                bytes.put(user);
                only(0)
            }
            Self::DeleteRkey(body) => only(body.emit(version, bytes)),
        }
    }
}

#[cfg(test)]
mod tests;
