//! CLC: the messages by which two hosts agree on SMC, sent over the TCP connection before any byte of the
//! application (RFC 7609 A.2; "SMC Version 2", IBM; as Linux 6.12 sends them).
//!
//! [`frame`] says how many bytes to read next, so that none that belongs to the application is taken;
//! [`Message::parse`] reads a whole message, [`Message::emit`] gives back the same bytes.

mod answer;
mod decline;
mod diagnosis;
mod proposal;

pub use answer::{
    Answer, FirstContact, GIDS_MAX, IsmAnswer, IsmReserved, IsmV2, RdmaAnswer, RdmaReserved,
    RdmaV2, V2X,
};
pub use decline::Decline;
pub use diagnosis::{DIAGNOSES, Diagnosis};
pub use proposal::{
    IPV6_PREFIXES_MAX, ISM_GIDS_MAX, IsmArea, IsmGid, IsmV2Offer, Prefixes, Proposal, V2Offer,
};

use crate::bytes::{Put, Reader, Short};

/// Kind of the TCP option that announces SMC on SYN and SYN-ACK (RFC 7609 A.1; RFC 6994).
pub const TCP_OPTION_KIND: u8 = 254;
/// The option: kind, length, "SMCR" in EBCDIC.
pub const TCP_OPTION: [u8; 6] = [TCP_OPTION_KIND, 6, 0xe2, 0xd4, 0xc3, 0xd9];

/// Bytes of the header of each message.
pub const HEADER_LEN: usize = 8;
/// Longest message that can be: a proposal with everything in it.
pub const MESSAGE_MAX: usize = 652;

const EYE_R: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xd9];
const EYE_D: [u8; 4] = [0xe2, 0xd4, 0xc3, 0xc4];
const TRAILER_LEN: usize = 4;
/// "First contact" in Accept and Confirm, "out of sync" in Decline.
const FLAG_FIRST: u8 = 0x08;
const FLAG_RESERVED: u8 = 0x04;

/// Which kinds of SMC a proposal offers, in one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kinds {
    /// SMC-R.
    R,
    /// SMC-D.
    D,
    /// None in this version.
    Neither,
    /// SMC-R and SMC-D.
    Both,
}

impl Kinds {
    const fn from_wire(code: u8) -> Self {
        match code & 3 {
            0 => Self::R,
            1 => Self::D,
            2 => Self::Neither,
            _ => Self::Both,
        }
    }

    const fn to_wire(self) -> u8 {
        match self {
            Self::R => 0,
            Self::D => 1,
            Self::Neither => 2,
            Self::Both => 3,
        }
    }

    /// Whether SMC-R is among them.
    #[must_use]
    pub const fn has_r(self) -> bool {
        matches!(self, Self::R | Self::Both)
    }

    /// Whether SMC-D is among them.
    #[must_use]
    pub const fn has_d(self) -> bool {
        matches!(self, Self::D | Self::Both)
    }
}

/// Any CLC message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// From the client: what it offers.
    Proposal(Box<Proposal>),
    /// From the server: what it chose, and how its buffer can be reached.
    Accept(Answer),
    /// From the client: how its buffer can be reached.
    Confirm(Answer),
    /// From either: go on with TCP.
    Decline(Decline),
}

/// Bytes that are no CLC message. After one of these it is not known where the next byte of the
/// application is, so the connection has to end (RFC 7609 C.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// No eye catcher at the start.
    #[error("no SMC eye catcher at the start")]
    EyeCatcher,
    /// No eye catcher at the end, or not the one of the start.
    #[error("no SMC eye catcher at the end")]
    Trailer,
    /// No such type.
    #[error("CLC type {0}")]
    Type(u8),
    /// No such version.
    #[error("CLC version {0}")]
    Version(u8),
    /// Neither SMC-R nor SMC-D, or another than the eye catcher says.
    #[error("path type {0} where SMC-R or SMC-D is due")]
    Path(u8),
    /// The length is not the one that the contents need.
    #[error("a CLC message of {0} bytes, which its contents do not need")]
    Length(usize),
    /// More entries in a list than there may be.
    #[error("{0} entries in a list that may not have so many")]
    Count(u8),
    /// An offset that does not point to the part that it is for.
    #[error("offset {0} does not point to its part")]
    Offset(u16),
}

/// What [`frame`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// So many bytes are missing: read them, and not one more.
    Needs(usize),
    /// A whole message: so many bytes, from the start.
    Whole(usize),
}

/// How many bytes of a message are missing, given its first ones: of the header first, then of what the
/// header says. No byte behind the message is ever asked for.
///
/// # Errors
///
/// The header is none, or announces more than [`MESSAGE_MAX`] or less than any message has.
pub fn frame(bytes: &[u8]) -> Result<Frame, ParseError> {
    let Some(header) = bytes.first_chunk::<HEADER_LEN>() else {
        return Ok(Frame::Needs(HEADER_LEN - bytes.len()));
    };
    let header = Header::parse(*header)?;
    let len = usize::from(header.len);
    Ok(if bytes.len() < len { Frame::Needs(len - bytes.len()) } else { Frame::Whole(len) })
}

/// The first eight bytes, checked.
#[derive(Clone, Copy, Debug)]
struct Header {
    ism: bool,
    kind: u8,
    len: u16,
    version: u8,
    flags: u8,
}

impl Header {
    fn parse(bytes: [u8; HEADER_LEN]) -> Result<Self, ParseError> {
        let [a, b, c, d, kind, len_high, len_low, flags] = bytes;
        let ism = match [a, b, c, d] {
            EYE_R => false,
            EYE_D => true,
            _ => return Err(ParseError::EyeCatcher),
        };
        if !(1..=4).contains(&kind) {
            return Err(ParseError::Type(kind));
        }
        let len = u16::from_be_bytes([len_high, len_low]);
        if !(decline::V1_LEN..=MESSAGE_MAX).contains(&usize::from(len)) {
            return Err(ParseError::Length(len.into()));
        }
        let version = flags >> 4;
        if version == 0 {
            return Err(ParseError::Version(version));
        }
        Ok(Self { ism, kind, len, version, flags: flags & 15 })
    }

    const fn first(&self) -> bool {
        self.flags & FLAG_FIRST != 0
    }

    const fn reserved_flag(&self) -> bool {
        self.flags & FLAG_RESERVED != 0
    }

    /// Bytes before the contents of which `flags` are the low four bits of the last; the length is
    /// written by [`finish`].
    fn emit(eye: [u8; 4], kind: u8, version: u8, flags: u8) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(192);
        bytes.put(&eye);
        bytes.put(&[kind, 0, 0, version << 4 | flags & 15]);
        bytes
    }
}

/// Puts the trailer behind the contents and the length into the header.
fn finish(mut bytes: Vec<u8>) -> Vec<u8> {
    let eye = [bytes[0], bytes[1], bytes[2], bytes[3]];
    bytes.put(&eye);
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    bytes[5..7].copy_from_slice(&len.to_be_bytes());
    bytes
}

impl Message {
    /// Reads one whole message, as found by [`frame`].
    ///
    /// # Errors
    ///
    /// It is none: what, says the error. Lengths are checked as exactly as Linux checks them.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let short = ParseError::Length(bytes.len());
        let header = Header::parse(*bytes.first_chunk().ok_or(short)?)?;
        if bytes.len() != usize::from(header.len) {
            return Err(short);
        }
        let (contents, trailer) =
            bytes[HEADER_LEN..].split_at(bytes.len() - HEADER_LEN - TRAILER_LEN);
        // Linux does not look at the trailer of a Decline; what it sends has one all the same.
        if trailer != &bytes[..4] {
            return Err(ParseError::Trailer);
        }
        let mut contents = Reader::new(contents);
        let length = |Short| short;
        match header.kind {
            1 if header.ism => Err(ParseError::EyeCatcher),
            1 => Ok(Self::Proposal(Box::new(Proposal::parse(&header, &mut contents)?))),
            2 => Ok(Self::Accept(Answer::parse(&header, &mut contents, false)?)),
            3 => Ok(Self::Confirm(Answer::parse(&header, &mut contents, true)?)),
            _ => Decline::parse(&header, &mut contents).map_err(length).map(Self::Decline),
        }
        .and_then(|message| if contents.rest().is_empty() { Ok(message) } else { Err(short) })
    }

    /// The bytes: of a message that was parsed the same as came.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Proposal(proposal) => proposal.emit(),
            Self::Accept(answer) => answer.emit(false),
            Self::Confirm(answer) => answer.emit(true),
            Self::Decline(decline) => decline.emit(),
        }
    }
}

#[cfg(test)]
mod tests;
