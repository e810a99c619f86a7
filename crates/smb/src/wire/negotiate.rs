//! NEGOTIATE (MS-SMB2 2.2.3, 2.2.4). Negotiate contexts, which 3.1.1 has, are [`Context`]s.

mod context;

pub use context::{CONTEXTS_MAX, CompressionFlags, Context, TRANSPORT_SECURITY};

use bitflags::bitflags;

use super::bytes::{Body, U16s, Writer, cut16};
use super::header::HEADER_LEN;
use super::{BadMessage, Encode};
use crate::{FileTime, Guid};

const REQUEST_SIZE: u16 = 36;
const REQUEST_END: usize = HEADER_LEN + 36;
const RESPONSE_SIZE: u16 = 65;
const RESPONSE_END: usize = HEADER_LEN + 64;

/// Dialects as numbers (MS-SMB2 2.2.3).
pub mod dialect {
    /// SMB 2.0.2.
    pub const SMB_2_0_2: u16 = 0x0202;
    /// SMB 2.1.
    pub const SMB_2_1: u16 = 0x0210;
    /// SMB 3.0.
    pub const SMB_3_0: u16 = 0x0300;
    /// SMB 3.0.2.
    pub const SMB_3_0_2: u16 = 0x0302;
    /// SMB 3.1.1.
    pub const SMB_3_1_1: u16 = 0x0311;
    /// Any dialect after 2.0.2: ask again, by SMB2 (answers only).
    pub const WILDCARD: u16 = 0x02ff;
}

/// Dialects that a request may name.
pub const DIALECTS_MAX: usize = 64;

bitflags! {
    /// SecurityMode. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SecurityMode: u16 {
        /// SMB2_NEGOTIATE_SIGNING_ENABLED.
        const SIGNING_ENABLED = 1;
        /// SMB2_NEGOTIATE_SIGNING_REQUIRED.
        const SIGNING_REQUIRED = 2;
        const _ = !0;
    }

    /// Capabilities of either end. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Capabilities: u32 {
        /// SMB2_GLOBAL_CAP_DFS.
        const DFS = 0x01;
        /// SMB2_GLOBAL_CAP_LEASING, 2.1.
        const LEASING = 0x02;
        /// SMB2_GLOBAL_CAP_LARGE_MTU, 2.1: requests of more than one credit.
        const LARGE_MTU = 0x04;
        /// SMB2_GLOBAL_CAP_MULTI_CHANNEL, 3.0.
        const MULTI_CHANNEL = 0x08;
        /// SMB2_GLOBAL_CAP_PERSISTENT_HANDLES, 3.0.
        const PERSISTENT_HANDLES = 0x10;
        /// SMB2_GLOBAL_CAP_DIRECTORY_LEASING, 3.0.
        const DIRECTORY_LEASING = 0x20;
        /// SMB2_GLOBAL_CAP_ENCRYPTION, 3.0.
        const ENCRYPTION = 0x40;
        /// SMB2_GLOBAL_CAP_NOTIFICATIONS, 3.1.1.
        const NOTIFICATIONS = 0x80;
        const _ = !0;
    }
}

/// What the client speaks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request<'a> {
    /// Whether it signs.
    pub security_mode: SecurityMode,
    /// What it can.
    pub capabilities: Capabilities,
    /// Which client it is.
    pub client: Guid,
    /// The dialects it speaks, one at least, see [`dialect`].
    pub dialects: U16s<'a>,
    /// Negotiate contexts, when 3.1.1 is among the dialects; otherwise none, and none are looked for.
    pub contexts: Vec<Context<'a>>,
}

impl<'a> Request<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is wrong, when there are no dialects or fewer than it says, or when 3.1.1
    /// is among them and the contexts are not as [`Context`] needs them; [`BadMessage::Duplicate`] for two of a
    /// kind that may be there once (MS-SMB2 3.3.5.4); [`BadMessage::TooMany`] past [`DIALECTS_MAX`] or
    /// [`CONTEXTS_MAX`].
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::request(message, REQUEST_SIZE)?;
        let count = body.len16(2);
        if count == 0 {
            return Err(BadMessage::Value);
        }
        if count > DIALECTS_MAX {
            return Err(BadMessage::TooMany);
        }
        let dialects = body.rest().get(..count * 2).ok_or(BadMessage::Truncated)?;
        let dialects = U16s::new(dialects);
        let mut contexts = Vec::new();
        if dialects.contains(dialect::SMB_3_1_1) {
            let at = body.len32(28);
            // "The offset … to the first, 8-byte-aligned negotiate context".
            if at != (REQUEST_END + count * 2).next_multiple_of(8) {
                return Err(BadMessage::Offset);
            }
            let bytes = message.get(at..).ok_or(BadMessage::Offset)?;
            contexts = Context::parse_all(bytes, body.len16(32))?;
        }
        Ok(Self {
            security_mode: SecurityMode::from_bits_retain(body.u16(4)),
            capabilities: Capabilities::from_bits_retain(body.u32(8)),
            client: body.guid(12),
            dialects,
            contexts,
        })
    }
}

impl Encode for Request<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.len16(self.dialects.len()).u16(self.security_mode.bits()).u16(0);
        to.u32(self.capabilities.bits()).bytes(&self.client.0);
        let contexts_at = (REQUEST_END + self.dialects.len() * 2).next_multiple_of(8);
        if self.dialects.contains(dialect::SMB_3_1_1) {
            to.len32(contexts_at).len16(self.contexts.len()).u16(0);
            to.bytes(self.dialects.as_bytes()).pad8();
            Context::encode_all(&self.contexts, to.out());
        } else {
            to.u64(0).bytes(self.dialects.as_bytes());
        }
    }
}

/// What is spoken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response<'a> {
    /// Whether the server signs.
    pub security_mode: SecurityMode,
    /// The dialect, see [`dialect`].
    pub dialect: u16,
    /// Which server it is.
    pub server: Guid,
    /// What it can.
    pub capabilities: Capabilities,
    /// MaxTransactSize: bytes that a query, a control code or a listing may have.
    pub transact_max: u32,
    /// MaxReadSize, bytes.
    pub read_max: u32,
    /// MaxWriteSize, bytes.
    pub write_max: u32,
    /// SystemTime: what the server's clock says.
    pub now: FileTime,
    /// ServerStartTime; zero.
    pub started: FileTime,
    /// The first GSS token.
    pub token: &'a [u8],
    /// Negotiate contexts, when the dialect is 3.1.1.
    pub contexts: Vec<Context<'a>>,
}

impl<'a> Response<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize, the place of the token or a context is wrong.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, RESPONSE_SIZE)?;
        let dialect = body.u16(4);
        let contexts = match dialect {
            dialect::SMB_3_1_1 => {
                let at = body.len32(60);
                if at < RESPONSE_END || !at.is_multiple_of(8) {
                    return Err(BadMessage::Offset);
                }
                let bytes = message.get(at..).ok_or(BadMessage::Offset)?;
                Context::parse_all(bytes, body.len16(6))?
            }
            _ => Vec::new(),
        };
        Ok(Self {
            security_mode: SecurityMode::from_bits_retain(body.u16(2)),
            dialect,
            server: body.guid(8),
            capabilities: Capabilities::from_bits_retain(body.u32(24)),
            transact_max: body.u32(28),
            read_max: body.u32(32),
            write_max: body.u32(36),
            now: body.time(40),
            started: body.time(48),
            token: body.buffer(body.len16(56), body.len16(58))?,
            contexts,
        })
    }
}

impl Encode for Response<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let token = cut16(self.token);
        let has_contexts = self.dialect == dialect::SMB_3_1_1;
        let (count, contexts_at) = match has_contexts {
            true => (self.contexts.len(), (RESPONSE_END + token.len()).next_multiple_of(8)),
            false => (0, 0),
        };
        let mut to = Writer::body(out, start, RESPONSE_SIZE);
        to.u16(self.security_mode.bits()).u16(self.dialect).len16(count);
        to.bytes(&self.server.0).u32(self.capabilities.bits());
        to.u32(self.transact_max).u32(self.read_max).u32(self.write_max);
        to.u64(self.now.0).u64(self.started.0);
        to.len16(RESPONSE_END).len16(token.len()).len32(contexts_at).bytes(token);
        if has_contexts {
            to.pad8();
            Context::encode_all(&self.contexts, to.out());
        }
    }
}
