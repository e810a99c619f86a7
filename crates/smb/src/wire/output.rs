//! The answer that is one buffer: QUERY_DIRECTORY, CHANGE_NOTIFY and QUERY_INFO (MS-SMB2 2.2.34, 2.2.36, 2.2.38).

use super::bytes::{Body, Writer};
use super::header::HEADER_LEN;
use super::{BadMessage, Encode};

const STRUCTURE_SIZE: u16 = 9;

/// Where the buffer stands in an answer of ours, bytes from the header.
pub const DATA_AT: usize = HEADER_LEN + 8;

/// The answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Response<'a> {
    /// OutputBuffer: entries, or what was asked for.
    pub data: &'a [u8],
}

impl<'a> Response<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize or the place of the buffer is wrong.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, STRUCTURE_SIZE)?;
        Ok(Self { data: body.buffer(body.len16(2), body.len32(4))? })
    }
}

impl Encode for Response<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        begin(out, start);
        out.extend_from_slice(self.data);
        finish(out, start);
    }
}

/// Begins an answer whose buffer the caller then appends to `out`. [`finish`] ends it.
pub fn begin(out: &mut Vec<u8>, start: usize) {
    Writer::body(out, start, STRUCTURE_SIZE).len16(DATA_AT).u32(0);
}

/// Ends what [`begin`] began: all that was appended since is the buffer. An empty one is said to be nowhere.
pub fn finish(out: &mut Vec<u8>, start: usize) {
    let mut to = Writer::new(out, start);
    let len = to.at().saturating_sub(DATA_AT);
    to.put32(HEADER_LEN + 4, len);
    if len == 0 {
        to.put16(HEADER_LEN + 2, 0);
    }
}
