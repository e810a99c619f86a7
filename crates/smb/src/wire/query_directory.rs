//! QUERY_DIRECTORY (MS-SMB2 2.2.33, 2.2.34).

use bitflags::bitflags;

use super::bytes::{Body, Writer, cut16};
use super::header::HEADER_LEN;
use super::{BadMessage, Encode};
use crate::FileId;

pub use super::output::{Response, begin, finish};

const REQUEST_SIZE: u16 = 33;
const REQUEST_END: usize = HEADER_LEN + 32;

bitflags! {
    /// Flags of a request. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// SMB2_RESTART_SCANS: from the beginning.
        const RESTART = 0x01;
        /// SMB2_RETURN_SINGLE_ENTRY.
        const SINGLE = 0x02;
        /// SMB2_INDEX_SPECIFIED: from FileIndex on.
        const INDEX = 0x04;
        /// SMB2_REOPEN: from the beginning, and with this pattern from now on.
        const REOPEN = 0x10;
        const _ = !0;
    }
}

/// Which names of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request<'a> {
    /// FileInformationClass: what to tell of each (MS-FSCC 2.4).
    pub class: u8,
    /// From where.
    pub flags: Flags,
    /// Where, when the flags say so.
    pub index: u32,
    /// The open of the directory.
    pub file: FileId,
    /// FileName: the pattern, UTF-16LE.
    pub pattern: &'a [u8],
    /// Bytes of entries that may come back.
    pub output_max: u32,
}

impl<'a> Request<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize or the place of the pattern is wrong.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::request(message, REQUEST_SIZE)?;
        Ok(Self {
            class: body.u8(2),
            flags: Flags::from_bits_retain(body.u8(3)),
            index: body.u32(4),
            file: body.file_id(8),
            pattern: body.buffer(body.len16(24), body.len16(26))?,
            output_max: body.u32(28),
        })
    }

    /// Bytes that credits must pay for: see [`super::credit_charge_needed`].
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        self.output_max.into()
    }
}

impl Encode for Request<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let pattern = cut16(self.pattern);
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.u8(self.class).u8(self.flags.bits()).u32(self.index).file_id(self.file);
        to.len16(REQUEST_END).len16(pattern.len()).u32(self.output_max).bytes(pattern);
        to.at_least_one(REQUEST_END);
    }
}
