//! CLOSE (MS-SMB2 2.2.15, 2.2.16).

use bitflags::bitflags;

use super::bytes::{Body, Writer};
use super::{BadMessage, Encode};
use crate::{Attributes, FileId, FileTime};

const REQUEST_SIZE: u16 = 24;
const RESPONSE_SIZE: u16 = 60;

bitflags! {
    /// Flags of a request and its answer. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u16 {
        /// SMB2_CLOSE_FLAG_POSTQUERY_ATTRIB: tell what the file is like now.
        const POSTQUERY_ATTRIB = 1;
        const _ = !0;
    }
}

/// Which open goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request {
    /// Whether to tell what the file is like.
    pub flags: Flags,
    /// The open.
    pub file: FileId,
}

impl Request {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is not 24 or the message is shorter.
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        let body = Body::request(message, REQUEST_SIZE)?;
        Ok(Self { flags: Flags::from_bits_retain(body.u16(2)), file: body.file_id(8) })
    }
}

impl Encode for Request {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.u16(self.flags.bits()).u32(0).file_id(self.file);
    }
}

/// It is closed. All but the flags is zero unless they ask for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Response {
    /// Whether the rest says anything.
    pub flags: Flags,
    /// When it was made.
    pub created: FileTime,
    /// When it was last read.
    pub accessed: FileTime,
    /// When its data last changed.
    pub written: FileTime,
    /// When anything of it last changed.
    pub changed: FileTime,
    /// Bytes it takes.
    pub allocation: u64,
    /// Bytes it has.
    pub size: u64,
    /// What kind of file.
    pub attributes: Attributes,
}

impl Response {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is not 60 or the message is shorter.
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, RESPONSE_SIZE)?;
        Ok(Self {
            flags: Flags::from_bits_retain(body.u16(2)),
            created: body.time(8),
            accessed: body.time(16),
            written: body.time(24),
            changed: body.time(32),
            allocation: body.u64(40),
            size: body.u64(48),
            attributes: Attributes::from_bits_retain(body.u32(56)),
        })
    }
}

impl Encode for Response {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, RESPONSE_SIZE);
        to.u16(self.flags.bits()).u32(0).u64(self.created.0).u64(self.accessed.0);
        to.u64(self.written.0).u64(self.changed.0).u64(self.allocation).u64(self.size);
        to.u32(self.attributes.bits());
    }
}
