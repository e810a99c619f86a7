//! CREATE (MS-SMB2 2.2.13, 2.2.14). Create contexts are in [`super::context`].

use super::bytes::{Body, Writer, cut16};
use super::context::{Contexts, Granted, Requested};
use super::header::HEADER_LEN;
use super::{BadMessage, Encode};
use crate::{
    Access, Attributes, CreateAction, CreateOptions, Disposition, FileId, FileTime, OplockLevel,
    ShareAccess,
};

const REQUEST_SIZE: u16 = 57;
const REQUEST_END: usize = HEADER_LEN + 56;
const RESPONSE_SIZE: u16 = 89;
const RESPONSE_END: usize = HEADER_LEN + 88;
/// Where a request says where its contexts are, bytes from the header.
const REQUEST_CONTEXTS: usize = HEADER_LEN + 48;
const RESPONSE_CONTEXTS: usize = HEADER_LEN + 80;

/// ImpersonationLevel: Impersonation, which is what clients send.
pub const IMPERSONATION: u32 = 2;

/// The last ImpersonationLevel there is, Delegate; above it, STATUS_BAD_IMPERSONATION_LEVEL.
pub const IMPERSONATION_MAX: u32 = 3;

/// Which file, how, and who else may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// How much the client would like to cache. A level that means nothing counts as none.
    pub oplock: OplockLevel,
    /// ImpersonationLevel, see [`IMPERSONATION_MAX`].
    pub impersonation: u32,
    /// DesiredAccess.
    pub access: Access,
    /// FileAttributes of a file that comes to be.
    pub attributes: Attributes,
    /// ShareAccess. Bits that mean nothing are kept, so that they can be refused.
    pub share: ShareAccess,
    /// CreateDisposition.
    pub disposition: Disposition,
    /// CreateOptions.
    pub options: CreateOptions,
    /// The name from the share's root, UTF-16LE, without a leading backslash.
    pub name: &'a [u8],
    /// What else.
    pub contexts: Requested<'a>,
}

impl Default for Request<'_> {
    fn default() -> Self {
        Self {
            oplock: OplockLevel::None,
            impersonation: IMPERSONATION,
            access: Access::FILE_READ,
            attributes: Attributes::empty(),
            share: ShareAccess::all(),
            disposition: Disposition::Open,
            options: CreateOptions::empty(),
            name: &[],
            contexts: Requested::default(),
        }
    }
}

impl<'a> Request<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize, a place or the disposition is wrong, or as [`Requested::parse`].
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::request(message, REQUEST_SIZE)?;
        let name = body.buffer(body.len16(44), body.len16(46))?;
        let chain = Contexts::new(body.buffer(body.len32(48), body.len32(52))?);
        let oplock = OplockLevel::from_wire(body.u8(3)).unwrap_or_default();
        let contexts = Requested::parse(chain, oplock)?;
        let disposition = match Disposition::from_wire(body.u32(36)) {
            Some(disposition) => disposition,
            // Of a request to have an open again only its name and contexts count (MS-SMB2 3.3.5.9.7).
            None if contexts.reconnects() => Disposition::Open,
            None => return Err(BadMessage::Value),
        };
        Ok(Self {
            oplock,
            impersonation: body.u32(4),
            access: Access::from_bits_retain(body.u32(24)),
            attributes: Attributes::from_bits_retain(body.u32(28)),
            share: ShareAccess::from_bits_retain(body.u32(32)),
            disposition,
            options: CreateOptions::from_bits_retain(body.u32(40)),
            name,
            contexts,
        })
    }
}

impl Encode for Request<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let name = cut16(self.name);
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.u8(0).u8(self.oplock as u8).u32(self.impersonation).zeros(16);
        to.u32(self.access.bits()).u32(self.attributes.bits()).u32(self.share.bits());
        to.u32(self.disposition as u32).u32(self.options.bits());
        to.len16(REQUEST_END).len16(name.len()).u64(0).bytes(name);
        // The first context must begin at a multiple of 8, and something must follow the fixed part.
        let before = to.at();
        let contexts_at = before.next_multiple_of(8);
        to.pad8();
        self.contexts.encode(to.out());
        let len = to.at() - contexts_at;
        if len == 0 {
            to.out().truncate(start + before);
            to.at_least_one(REQUEST_END);
        } else {
            to.put32(REQUEST_CONTEXTS, contexts_at);
            to.put32(REQUEST_CONTEXTS + 4, len);
        }
    }
}

/// The open, and what the file is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// How much the client may cache.
    pub oplock: OplockLevel,
    /// Flags, 3.x: 1 when the name is a reparse point.
    pub flags: u8,
    /// What was done.
    pub action: CreateAction,
    /// When it was made.
    pub created: FileTime,
    /// When it was last read.
    pub accessed: FileTime,
    /// When its data last changed.
    pub written: FileTime,
    /// When anything of it last changed.
    pub changed: FileTime,
    /// Bytes it takes.
    pub allocation: u64,
    /// Bytes it has.
    pub size: u64,
    /// What kind of file.
    pub attributes: Attributes,
    /// The open.
    pub file: FileId,
    /// What else.
    pub contexts: Granted<'a>,
}

impl Default for Response<'_> {
    fn default() -> Self {
        Self {
            oplock: OplockLevel::None,
            flags: 0,
            action: CreateAction::Opened,
            created: FileTime::NONE,
            accessed: FileTime::NONE,
            written: FileTime::NONE,
            changed: FileTime::NONE,
            allocation: 0,
            size: 0,
            attributes: Attributes::empty(),
            file: FileId::default(),
            contexts: Granted::default(),
        }
    }
}

impl<'a> Response<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize, a place, the oplock or the action is wrong, or as [`Granted::parse`].
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, RESPONSE_SIZE)?;
        let chain = match body.len32(84) {
            0 => &[][..],
            len => body.buffer(body.len32(80), len)?,
        };
        let action = match body.u32(4) {
            0 => CreateAction::Superseded,
            1 => CreateAction::Opened,
            2 => CreateAction::Created,
            3 => CreateAction::Overwritten,
            _ => return Err(BadMessage::Value),
        };
        Ok(Self {
            oplock: OplockLevel::from_wire(body.u8(2)).ok_or(BadMessage::Value)?,
            flags: body.u8(3),
            action,
            created: body.time(8),
            accessed: body.time(16),
            written: body.time(24),
            changed: body.time(32),
            allocation: body.u64(40),
            size: body.u64(48),
            attributes: Attributes::from_bits_retain(body.u32(56)),
            file: body.file_id(64),
            contexts: Granted::parse(Contexts::new(chain))?,
        })
    }
}

impl Encode for Response<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, RESPONSE_SIZE);
        to.u8(self.oplock as u8).u8(self.flags).u32(self.action as u32);
        to.u64(self.created.0).u64(self.accessed.0).u64(self.written.0).u64(self.changed.0);
        to.u64(self.allocation).u64(self.size).u32(self.attributes.bits()).u32(0);
        to.file_id(self.file).u64(0);
        self.contexts.encode(to.out());
        let len = to.at() - RESPONSE_END;
        if len > 0 {
            to.put32(RESPONSE_CONTEXTS, RESPONSE_END);
            to.put32(RESPONSE_CONTEXTS + 4, len);
        }
    }
}
