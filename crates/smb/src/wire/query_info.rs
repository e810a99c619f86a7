//! QUERY_INFO (MS-SMB2 2.2.37, 2.2.38).

use super::bytes::{Body, Writer};
use super::header::HEADER_LEN;
use super::{BadMessage, Encode};
use crate::FileId;

pub use super::output::{Response, begin, finish};

const REQUEST_SIZE: u16 = 41;
const REQUEST_END: usize = HEADER_LEN + 40;

/// About what something is asked or set: InfoType.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// SMB2_0_INFO_FILE: the file; classes of MS-FSCC 2.4.
    File,
    /// SMB2_0_INFO_FILESYSTEM: the file system; classes of MS-FSCC 2.5.
    FileSystem,
    /// SMB2_0_INFO_SECURITY: the security descriptor.
    Security,
    /// SMB2_0_INFO_QUOTA: quotas.
    Quota,
    /// A number that means nothing.
    Unknown(u8),
}

impl Subject {
    /// From the number on the wire.
    #[must_use]
    pub const fn from_wire(number: u8) -> Self {
        match number {
            1 => Self::File,
            2 => Self::FileSystem,
            3 => Self::Security,
            4 => Self::Quota,
            _ => Self::Unknown(number),
        }
    }

    /// The number on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u8 {
        match self {
            Self::File => 1,
            Self::FileSystem => 2,
            Self::Security => 3,
            Self::Quota => 4,
            Self::Unknown(number) => number,
        }
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request<'a> {
    /// About what.
    pub subject: Subject,
    /// FileInfoClass: the information level.
    pub class: u8,
    /// Bytes that may come back.
    pub output_max: u32,
    /// Names of extended attributes, or which quotas.
    pub input: &'a [u8],
    /// AdditionalInformation: which parts of a security descriptor, or from which attribute on.
    pub additional: u32,
    /// Flags for extended attributes: 1 restart, 2 single, 4 index.
    pub flags: u32,
    /// The open.
    pub file: FileId,
}

impl<'a> Request<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize or the place of the input is wrong.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, REQUEST_SIZE)?;
        Ok(Self {
            subject: Subject::from_wire(body.u8(2)),
            class: body.u8(3),
            output_max: body.u32(4),
            input: body.buffer(body.len16(8), body.len32(12))?,
            additional: body.u32(16),
            flags: body.u32(20),
            file: body.file_id(24),
        })
    }

    /// Bytes that credits must pay for: see [`super::credit_charge_needed`].
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        let sent = u64::try_from(self.input.len()).unwrap_or(u64::MAX);
        sent.max(self.output_max.into())
    }
}

impl Encode for Request<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.u8(self.subject.to_wire()).u8(self.class).u32(self.output_max);
        to.len16(if self.input.is_empty() { 0 } else { REQUEST_END })
            .u16(0)
            .len32(self.input.len())
            .u32(self.additional);
        to.u32(self.flags).file_id(self.file).bytes(self.input);
    }
}
