//! TREE_CONNECT (MS-SMB2 2.2.9, 2.2.10).

use bitflags::bitflags;

use super::bytes::{Body, Fields, Writer, cut16};
use super::header::HEADER_LEN;
use super::{BadMessage, Encode};
use crate::Access;

const REQUEST_SIZE: u16 = 9;
const REQUEST_END: usize = HEADER_LEN + 8;
const RESPONSE_SIZE: u16 = 16;
/// Bytes of the extension's fixed part (MS-SMB2 2.2.9.1).
const EXTENSION_LEN: usize = 16;

bitflags! {
    /// Flags of a request, 3.1.1. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u16 {
        /// SMB2_TREE_CONNECT_FLAG_CLUSTER_RECONNECT.
        const CLUSTER_RECONNECT = 1;
        /// SMB2_TREE_CONNECT_FLAG_REDIRECT_TO_OWNER.
        const REDIRECT_TO_OWNER = 2;
        /// SMB2_TREE_CONNECT_FLAG_EXTENSION_PRESENT.
        const EXTENSION = 4;
        const _ = !0;
    }

    /// ShareFlags of an answer. Bits without a name are kept. The two bits 0x30 are a number: 0 manual caching,
    /// 0x10 automatic, 0x20 programs too, 0x30 none.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ShareFlags: u32 {
        /// SMB2_SHAREFLAG_DFS.
        const DFS = 0x0000_0001;
        /// SMB2_SHAREFLAG_DFS_ROOT.
        const DFS_ROOT = 0x0000_0002;
        /// SMB2_SHAREFLAG_NO_CACHING: clients keep nothing while offline.
        const NO_CACHING = 0x0000_0030;
        /// SMB2_SHAREFLAG_RESTRICT_EXCLUSIVE_OPENS.
        const RESTRICT_EXCLUSIVE_OPENS = 0x0000_0100;
        /// SMB2_SHAREFLAG_FORCE_SHARED_DELETE.
        const FORCE_SHARED_DELETE = 0x0000_0200;
        /// SMB2_SHAREFLAG_ALLOW_NAMESPACE_CACHING.
        const ALLOW_NAMESPACE_CACHING = 0x0000_0400;
        /// SMB2_SHAREFLAG_ACCESS_BASED_DIRECTORY_ENUM.
        const ACCESS_BASED_DIRECTORY_ENUM = 0x0000_0800;
        /// SMB2_SHAREFLAG_FORCE_LEVELII_OPLOCK.
        const FORCE_LEVEL_II_OPLOCK = 0x0000_1000;
        /// SMB2_SHAREFLAG_ENCRYPT_DATA, 3.x: all messages about this share are to be encrypted.
        const ENCRYPT_DATA = 0x0000_8000;
        const _ = !0;
    }

    /// Capabilities of a share. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ShareCapabilities: u32 {
        /// SMB2_SHARE_CAP_DFS.
        const DFS = 0x08;
        /// SMB2_SHARE_CAP_CONTINUOUS_AVAILABILITY.
        const CONTINUOUS_AVAILABILITY = 0x10;
        /// SMB2_SHARE_CAP_SCALEOUT.
        const SCALEOUT = 0x20;
        /// SMB2_SHARE_CAP_CLUSTER.
        const CLUSTER = 0x40;
        /// SMB2_SHARE_CAP_ASYMMETRIC.
        const ASYMMETRIC = 0x80;
        /// SMB2_SHARE_CAP_REDIRECT_TO_OWNER.
        const REDIRECT_TO_OWNER = 0x100;
        const _ = !0;
    }
}

/// Which share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request<'a> {
    /// 3.1.1; reserved in earlier dialects, where [`Flags::EXTENSION`] means nothing but is not sent either.
    pub flags: Flags,
    /// `\\server\share`, UTF-16LE.
    pub path: &'a [u8],
    /// The tree connect contexts of an extension, as they came, when the flags say that there is one.
    pub contexts: &'a [u8],
    /// How many contexts that says there are.
    pub context_count: u16,
}

impl<'a> Request<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize, the place of the path, or an extension is wrong.
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::request(message, REQUEST_SIZE)?;
        let flags = Flags::from_bits_retain(body.u16(2));
        let (contexts, context_count) = match flags.contains(Flags::EXTENSION) {
            false => (&[][..], 0),
            true => {
                let extension = Fields::at_least(body.rest(), EXTENSION_LEN)?;
                // The offset counts from the body's beginning, unlike all others (MS-SMB2 2.2.9.1).
                let at = extension.len32(0);
                let contexts = match at {
                    0 => &[][..],
                    _ if at < 8 + EXTENSION_LEN => return Err(BadMessage::Offset),
                    _ => body.0.get(at..).ok_or(BadMessage::Offset)?,
                };
                (contexts, extension.u16(4))
            }
        };
        let path = body.buffer(body.len16(4), body.len16(6))?;
        Ok(Self { flags, path, contexts, context_count })
    }
}

impl Encode for Request<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let path = cut16(self.path);
        let extended = self.flags.contains(Flags::EXTENSION);
        let path_at = REQUEST_END + if extended { EXTENSION_LEN } else { 0 };
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.u16(self.flags.bits()).len16(path_at).len16(path.len());
        if extended {
            let contexts_at = (path_at + path.len()).next_multiple_of(8) - HEADER_LEN;
            to.len32(contexts_at).u16(self.context_count).zeros(10);
            to.bytes(path).pad8().bytes(self.contexts);
        } else {
            to.bytes(path).at_least_one(REQUEST_END);
        }
    }
}

/// What kind of share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ShareType {
    /// SMB2_SHARE_TYPE_DISK: files.
    #[default]
    Disk = 1,
    /// SMB2_SHARE_TYPE_PIPE: named pipes.
    Pipe = 2,
    /// SMB2_SHARE_TYPE_PRINT: a printer.
    Print = 3,
}

impl ShareType {
    /// From the number on the wire; `None` for one that means nothing.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        [Self::Disk, Self::Pipe, Self::Print].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// The share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Response {
    /// Files, pipes or a printer.
    pub kind: ShareType,
    /// What clients should know.
    pub flags: ShareFlags,
    /// What it can.
    pub capabilities: ShareCapabilities,
    /// What the user may do at most.
    pub maximal_access: Access,
}

impl Response {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is not 16, the message is shorter, or the kind of share means nothing.
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, RESPONSE_SIZE)?;
        Ok(Self {
            kind: ShareType::from_wire(body.u8(2)).ok_or(BadMessage::Value)?,
            flags: ShareFlags::from_bits_retain(body.u32(4)),
            capabilities: ShareCapabilities::from_bits_retain(body.u32(8)),
            maximal_access: Access::from_bits_retain(body.u32(12)),
        })
    }
}

impl Encode for Response {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, RESPONSE_SIZE);
        to.u8(self.kind as u8).u8(0).u32(self.flags.bits());
        to.u32(self.capabilities.bits()).u32(self.maximal_access.bits());
    }
}
