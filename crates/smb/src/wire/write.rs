//! WRITE (MS-SMB2 2.2.21, 2.2.22).

use std::ops::Range;

use bitflags::bitflags;

use super::bytes::{Body, Writer};
use super::header::HEADER_LEN;
use super::{BadMessage, Encode};
use crate::FileId;

const REQUEST_SIZE: u16 = 49;
const RESPONSE_SIZE: u16 = 17;

/// Bytes of a request that must be there to read it: the header and the fixed part.
pub const HEAD_LEN: usize = HEADER_LEN + 48;

/// The furthest that data may begin, bytes from the header (MS-SMB2 3.3.5.13).
pub const DATA_AT_MAX: usize = 0x100;

bitflags! {
    /// Flags of a request. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u32 {
        /// SMB2_WRITEFLAG_WRITE_THROUGH, 2.1: to the disk before the answer.
        const WRITE_THROUGH = 1;
        /// SMB2_WRITEFLAG_WRITE_UNBUFFERED, 3.0.2: not through the server's cache.
        const UNBUFFERED = 2;
        const _ = !0;
    }
}

/// Where data goes, and where in the message it stands. The data need not have come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request {
    /// Here in the file.
    pub offset: u64,
    /// The open.
    pub file: FileId,
    /// 0: in the message; else by RDMA.
    pub channel: u32,
    /// RemainingBytes: how much more will be written soon; for RDMA, how much comes by it.
    pub remaining: u32,
    /// How.
    pub flags: Flags,
    /// Where the channel's blob stands, bytes from the header. Empty without a channel.
    pub channel_blob: Range<usize>,
    /// Where the data stands, bytes from the header.
    pub data: Range<usize>,
}

impl Request {
    /// Reads the body of `message`, which is all there.
    ///
    /// # Errors
    ///
    /// As [`Request::parse_head`].
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        Self::parse_head(message, message.len())
    }

    /// Reads the body of a message of `message_len` bytes, of which `head` is what has come: [`HEAD_LEN`] at
    /// least.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is wrong, or data or blob are not within `message_len`, or the data
    /// begins past [`DATA_AT_MAX`].
    #[inline]
    pub fn parse_head(head: &[u8], message_len: usize) -> Result<Self, BadMessage> {
        let body = Body::lenient(head, REQUEST_SIZE)?;
        let channel = body.u32(32);
        let channel_blob = match channel {
            0 => HEAD_LEN..HEAD_LEN,
            _ => range(body.len16(40), body.len16(42), message_len)?,
        };
        let (data_at, data_len) = (body.len16(2), body.len32(4));
        if data_at > DATA_AT_MAX {
            return Err(BadMessage::Offset);
        }
        // What comes by RDMA is not in the message, which then says nothing of a place.
        let data = match channel {
            0 => inside(data_at, data_len, message_len)?,
            _ => range(data_at, data_len, message_len)?,
        };
        Ok(Self {
            offset: body.u64(8),
            file: body.file_id(16),
            channel,
            remaining: body.u32(36),
            flags: Flags::from_bits_retain(body.u32(44)),
            channel_blob,
            data,
        })
    }

    /// Bytes that credits must pay for: see [`super::credit_charge_needed`].
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        u64::try_from(self.data.len()).unwrap_or(u64::MAX)
    }

    /// The 48 bytes of a request's fixed part, after which `data_len` bytes follow at once. There is no blob.
    pub fn encode_head(&self, out: &mut Vec<u8>, start: usize, data_len: u32) {
        self.fixed(out, start, HEAD_LEN, data_len, &[]);
    }

    /// Appends the request with its data to `out`. [`Request::data`] and [`Request::channel_blob`] are not
    /// looked at: they follow from what is given here. An empty blob is left out; one that would push the data
    /// past [`DATA_AT_MAX`] is cut.
    pub fn encode_with(&self, out: &mut Vec<u8>, start: usize, blob: &[u8], data: &[u8]) {
        let data_len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let blob = blob.get(..DATA_AT_MAX - HEAD_LEN).unwrap_or(blob);
        let data_at = HEAD_LEN + blob.len();
        self.fixed(out, start, data_at, data_len, blob);
        out.extend_from_slice(blob);
        out.extend_from_slice(data);
    }

    fn fixed(&self, out: &mut Vec<u8>, start: usize, data_at: usize, data_len: u32, blob: &[u8]) {
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.len16(data_at).u32(data_len).u64(self.offset).file_id(self.file);
        to.u32(self.channel).u32(self.remaining);
        to.len16(if blob.is_empty() { 0 } else { HEAD_LEN }).len16(blob.len());
        to.u32(self.flags.bits());
    }
}

/// The range of a buffer that need not be there.
fn range(at: usize, len: usize, message_len: usize) -> Result<Range<usize>, BadMessage> {
    if len == 0 { Ok(HEAD_LEN..HEAD_LEN) } else { inside(at, len, message_len) }
}

fn inside(at: usize, len: usize, message_len: usize) -> Result<Range<usize>, BadMessage> {
    let end = at.checked_add(len).ok_or(BadMessage::Offset)?;
    if at < HEAD_LEN || end > message_len { Err(BadMessage::Offset) } else { Ok(at..end) }
}

/// It was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Response {
    /// Bytes that were written.
    pub count: u32,
}

impl Response {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is not 17 or the message is shorter than its fixed part.
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, RESPONSE_SIZE)?;
        Ok(Self { count: body.u32(4) })
    }
}

impl Encode for Response {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        Writer::body(out, start, RESPONSE_SIZE).u16(0).u32(self.count).u32(0).u32(0);
    }
}
