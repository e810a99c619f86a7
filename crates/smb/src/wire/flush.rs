//! FLUSH (MS-SMB2 2.2.17, 2.2.18).

use super::bytes::{Body, Writer};
use super::{BadMessage, Encode};
use crate::FileId;

pub use super::bare::Response;

const REQUEST_SIZE: u16 = 24;

/// What was written to which open goes to the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request {
    /// Reserved1; 0xffff is what macOS sends for a full sync.
    pub reserved: u16,
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
        Ok(Self { reserved: body.u16(2), file: body.file_id(8) })
    }
}

impl Encode for Request {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        Writer::body(out, start, REQUEST_SIZE).u16(self.reserved).u32(0).file_id(self.file);
    }
}
