//! SESSION_SETUP (MS-SMB2 2.2.5, 2.2.6).

use bitflags::bitflags;

use super::bytes::{Body, Writer, cut16};
use super::{BadMessage, Encode};
use crate::SessionId;

const REQUEST_SIZE: u16 = 25;
const RESPONSE_SIZE: u16 = 9;
const REQUEST_BLOB_AT: usize = 88;
const RESPONSE_BLOB_AT: usize = 72;

bitflags! {
    /// Flags of a request. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RequestFlags: u8 {
        /// SMB2_SESSION_FLAG_BINDING: a further channel of a session that there is.
        const BINDING = 1;
        const _ = !0;
    }

    /// SessionFlags of an answer. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SessionFlags: u16 {
        /// SMB2_SESSION_FLAG_IS_GUEST.
        const GUEST = 1;
        /// SMB2_SESSION_FLAG_IS_NULL: nobody.
        const NULL = 2;
        /// SMB2_SESSION_FLAG_ENCRYPT_DATA: all messages of the session are to be encrypted.
        const ENCRYPT = 4;
        const _ = !0;
    }
}

/// Who it is, one token of perhaps several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request<'a> {
    /// Whether a channel is bound.
    pub flags: RequestFlags,
    /// SMB2_NEGOTIATE_SIGNING_ENABLED (1) and _REQUIRED (2), see [`super::negotiate::SecurityMode`].
    pub security_mode: super::negotiate::SecurityMode,
    /// What the client can, of which only DFS has a meaning here.
    pub capabilities: super::negotiate::Capabilities,
    /// A session of an earlier connection that is to go, or 0.
    pub previous_session: SessionId,
    /// The GSS token.
    pub token: &'a [u8],
}

impl<'a> Request<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize or the place of the token is wrong.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::request(message, REQUEST_SIZE)?;
        Ok(Self {
            flags: RequestFlags::from_bits_retain(body.u8(2)),
            security_mode: super::negotiate::SecurityMode::from_bits_retain(body.u8(3).into()),
            capabilities: super::negotiate::Capabilities::from_bits_retain(body.u32(4)),
            previous_session: SessionId(body.u64(16)),
            token: body.buffer(body.len16(12), body.len16(14))?,
        })
    }
}

impl Encode for Request<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let token = cut16(self.token);
        let [mode, _] = self.security_mode.bits().to_le_bytes();
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.u8(self.flags.bits()).u8(mode).u32(self.capabilities.bits()).u32(0);
        to.len16(REQUEST_BLOB_AT).len16(token.len()).u64(self.previous_session.0).bytes(token);
        to.at_least_one(REQUEST_BLOB_AT);
    }
}

/// The server's token, and in the last answer what kind of session it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Response<'a> {
    /// Guest, nobody, encrypted.
    pub flags: SessionFlags,
    /// The GSS token.
    pub token: &'a [u8],
}

impl<'a> Response<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize or the place of the token is wrong.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, RESPONSE_SIZE)?;
        Ok(Self {
            flags: SessionFlags::from_bits_retain(body.u16(2)),
            token: body.buffer(body.len16(4), body.len16(6))?,
        })
    }
}

impl Encode for Response<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let token = cut16(self.token);
        let mut to = Writer::body(out, start, RESPONSE_SIZE);
        to.u16(self.flags.bits()).len16(RESPONSE_BLOB_AT).len16(token.len()).bytes(token);
    }
}
