//! SET_INFO (MS-SMB2 2.2.39, 2.2.40).

use super::bytes::{Body, Writer};
use super::header::HEADER_LEN;
use super::{BadMessage, Encode};
use crate::FileId;

pub use super::query_info::Subject;

const REQUEST_SIZE: u16 = 33;
const REQUEST_END: usize = HEADER_LEN + 32;
const RESPONSE_SIZE: u16 = 2;

/// What is to be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request<'a> {
    /// About what.
    pub subject: Subject,
    /// FileInfoClass: the information level.
    pub class: u8,
    /// AdditionalInformation: which parts of a security descriptor.
    pub additional: u32,
    /// The open.
    pub file: FileId,
    /// What the level is given.
    pub data: &'a [u8],
}

impl<'a> Request<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize or the place of the data is wrong.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::request(message, REQUEST_SIZE)?;
        Ok(Self {
            subject: Subject::from_wire(body.u8(2)),
            class: body.u8(3),
            additional: body.u32(12),
            file: body.file_id(16),
            data: body.buffer(body.len16(8), body.len32(4))?,
        })
    }

    /// Bytes that credits must pay for: see [`super::credit_charge_needed`].
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        u64::try_from(self.data.len()).unwrap_or(u64::MAX)
    }
}

impl Encode for Request<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.u8(self.subject.to_wire()).u8(self.class).len32(self.data.len());
        to.len16(REQUEST_END).u16(0).u32(self.additional).file_id(self.file).bytes(self.data);
        to.at_least_one(REQUEST_END);
    }
}

/// It is so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Response;

impl Response {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is not 2.
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        Body::lenient(message, RESPONSE_SIZE).map(|_| Self)
    }
}

impl Encode for Response {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        Writer::body(out, start, RESPONSE_SIZE);
    }
}
