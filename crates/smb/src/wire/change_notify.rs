//! CHANGE_NOTIFY (MS-SMB2 2.2.35, 2.2.36).

use bitflags::bitflags;

use super::bytes::{Body, Writer};
use super::{BadMessage, Encode};
use crate::FileId;

pub use super::output::{Response, begin, finish};

const REQUEST_SIZE: u16 = 32;

bitflags! {
    /// Flags of a request. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u16 {
        /// SMB2_WATCH_TREE: what is below, too.
        const WATCH_TREE = 1;
        const _ = !0;
    }

    /// CompletionFilter: what kind of change is wanted. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Filter: u32 {
        /// FILE_NOTIFY_CHANGE_FILE_NAME.
        const FILE_NAME = 0x0001;
        /// FILE_NOTIFY_CHANGE_DIR_NAME.
        const DIR_NAME = 0x0002;
        /// FILE_NOTIFY_CHANGE_ATTRIBUTES.
        const ATTRIBUTES = 0x0004;
        /// FILE_NOTIFY_CHANGE_SIZE.
        const SIZE = 0x0008;
        /// FILE_NOTIFY_CHANGE_LAST_WRITE.
        const LAST_WRITE = 0x0010;
        /// FILE_NOTIFY_CHANGE_LAST_ACCESS.
        const LAST_ACCESS = 0x0020;
        /// FILE_NOTIFY_CHANGE_CREATION.
        const CREATION = 0x0040;
        /// FILE_NOTIFY_CHANGE_EA.
        const EA = 0x0080;
        /// FILE_NOTIFY_CHANGE_SECURITY.
        const SECURITY = 0x0100;
        /// FILE_NOTIFY_CHANGE_STREAM_NAME.
        const STREAM_NAME = 0x0200;
        /// FILE_NOTIFY_CHANGE_STREAM_SIZE.
        const STREAM_SIZE = 0x0400;
        /// FILE_NOTIFY_CHANGE_STREAM_WRITE.
        const STREAM_WRITE = 0x0800;
        const _ = !0;
    }
}

/// Which changes to which directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request {
    /// How deep.
    pub flags: Flags,
    /// Bytes of records that may come back.
    pub output_max: u32,
    /// The open of the directory.
    pub file: FileId,
    /// What kind.
    pub filter: Filter,
}

impl Request {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is not 32 or the message is shorter.
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        let body = Body::request(message, REQUEST_SIZE)?;
        Ok(Self {
            flags: Flags::from_bits_retain(body.u16(2)),
            output_max: body.u32(4),
            file: body.file_id(8),
            filter: Filter::from_bits_retain(body.u32(24)),
        })
    }

    /// Bytes that credits must pay for: see [`super::credit_charge_needed`].
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        self.output_max.into()
    }
}

impl Encode for Request {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.u16(self.flags.bits()).u32(self.output_max).file_id(self.file);
        to.u32(self.filter.bits()).u32(0);
    }
}
