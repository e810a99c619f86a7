//! READ (MS-SMB2 2.2.19, 2.2.20).

use bitflags::bitflags;

use super::bytes::{Body, Writer, cut16};
use super::header::HEADER_LEN;
use super::{BadMessage, Encode};
use crate::FileId;

const REQUEST_SIZE: u16 = 49;
const REQUEST_END: usize = HEADER_LEN + 48;
const RESPONSE_SIZE: u16 = 17;

/// Bytes of an answer before its data, from the body's beginning.
pub const RESPONSE_HEAD_LEN: usize = 16;

/// Where the data of an answer of ours begins, bytes from the header.
pub const DATA_AT: u8 = 80;

bitflags! {
    /// Flags of a request. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// SMB2_READFLAG_READ_UNBUFFERED, 3.0.2: not through the server's cache.
        const UNBUFFERED = 1;
        /// SMB2_READFLAG_REQUEST_COMPRESSED, 3.1.1: the answer may be compressed.
        const COMPRESSED = 2;
        const _ = !0;
    }
}

/// Which bytes of which open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request<'a> {
    /// Padding: where the client would like the data in the answer. To be ignored by servers.
    pub padding: u8,
    /// How.
    pub flags: Flags,
    /// So many bytes.
    pub length: u32,
    /// From here in the file.
    pub offset: u64,
    /// The open.
    pub file: FileId,
    /// With fewer bytes than these it has failed (STATUS_END_OF_FILE).
    pub minimum: u32,
    /// 0: in the answer; else by RDMA.
    pub channel: u32,
    /// RemainingBytes: how much more will be read soon.
    pub remaining: u32,
    /// What the channel needs to know.
    pub channel_blob: &'a [u8],
}

impl<'a> Request<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize or the place of the channel's blob is wrong.
    #[inline]
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::request(message, REQUEST_SIZE)?;
        let channel = body.u32(36);
        // Without a channel the two fields mean nothing, and some clients fill them.
        let channel_blob = match channel {
            0 => &[],
            _ => body.buffer(body.len16(44), body.len16(46))?,
        };
        Ok(Self {
            padding: body.u8(2),
            flags: Flags::from_bits_retain(body.u8(3)),
            length: body.u32(4),
            offset: body.u64(8),
            file: body.file_id(16),
            minimum: body.u32(32),
            channel,
            remaining: body.u32(40),
            channel_blob,
        })
    }

    /// Bytes that credits must pay for: see [`super::credit_charge_needed`].
    #[must_use]
    pub fn payload_len(&self) -> u64 {
        self.length.into()
    }
}

impl Encode for Request<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let blob = cut16(self.channel_blob);
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.u8(self.padding).u8(self.flags.bits()).u32(self.length).u64(self.offset);
        to.file_id(self.file).u32(self.minimum).u32(self.channel).u32(self.remaining);
        to.len16(if blob.is_empty() { 0 } else { REQUEST_END }).len16(blob.len()).bytes(blob);
        to.at_least_one(REQUEST_END);
    }
}

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Response<'a> {
    /// DataRemaining: bytes that an RDMA channel still brings, or 0.
    pub remaining: u32,
    /// Flags, 3.1.1: 1 when RDMA data is transformed.
    pub flags: u32,
    /// The data.
    pub data: &'a [u8],
}

impl<'a> Response<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize or the place of the data is wrong.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, RESPONSE_SIZE)?;
        Ok(Self {
            data: body.buffer(usize::from(body.u8(2)), body.len32(4))?,
            remaining: body.u32(8),
            flags: body.u32(12),
        })
    }
}

impl Encode for Response<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let len = u32::try_from(self.data.len()).unwrap_or(u32::MAX);
        Head { data_len: len, remaining: self.remaining, flags: self.flags }.encode(out, start);
        out.extend_from_slice(self.data);
    }
}

/// An answer without its data, which follows it by other means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Head {
    /// Bytes of data that follow.
    pub data_len: u32,
    /// See [`Response::remaining`].
    pub remaining: u32,
    /// See [`Response::flags`].
    pub flags: u32,
}

impl Head {
    /// The 16 bytes between the header and the data.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; RESPONSE_HEAD_LEN] {
        let mut bytes = [0; RESPONSE_HEAD_LEN];
        bytes[..2].copy_from_slice(&RESPONSE_SIZE.to_le_bytes());
        bytes[2] = DATA_AT;
        bytes[4..8].copy_from_slice(&self.data_len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.remaining.to_le_bytes());
        bytes[12..].copy_from_slice(&self.flags.to_le_bytes());
        bytes
    }
}

impl Encode for Head {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        debug_assert_eq!(out.len(), start + HEADER_LEN, "a body begins where its header ends");
        out.extend_from_slice(&self.to_bytes());
    }
}
