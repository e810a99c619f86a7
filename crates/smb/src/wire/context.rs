//! Create contexts: what a CREATE asks for or is told besides (MS-SMB2 2.2.13.2, 2.2.14.2).
//!
//! [`Contexts`] is the chain as it stands in the message, [`Requested`] and [`Granted`] what it says. Of two
//! contexts with one name the first counts, as for smbd; a name that nobody knows is passed over.

mod apple;
mod granted;
mod requested;

pub use apple::{AppleQuery, AppleReply, ServerQuery, ServerReply};
pub use granted::{DurableGrant, Granted, MaximalAccess, OnDiskId, PosixReply};
pub use requested::{AppVersion, DurableRequest, Reconnect, Requested};

use bitflags::bitflags;

use super::BadMessage;
use super::bytes::{Fields, Writer};
use crate::{LeaseKey, LeaseState};

/// Contexts that one CREATE may have.
pub const CONTEXTS_MAX: usize = 64;

/// Bytes of a context before its name.
const HEAD_LEN: usize = 16;
/// Names have four bytes at least (MS-SMB2 3.3.5.9).
const NAME_LEN_MIN: usize = 4;

/// Names of contexts (MS-SMB2 2.2.13.2). A name of 16 bytes is a GUID, written from its first digit on.
pub mod name {
    /// SMB2_CREATE_EA_BUFFER: extended attributes.
    pub const EA: &[u8] = b"ExtA";
    /// SMB2_CREATE_SD_BUFFER: a security descriptor.
    pub const SECURITY: &[u8] = b"SecD";
    /// SMB2_CREATE_DURABLE_HANDLE_REQUEST.
    pub const DURABLE: &[u8] = b"DHnQ";
    /// SMB2_CREATE_DURABLE_HANDLE_RECONNECT.
    pub const RECONNECT: &[u8] = b"DHnC";
    /// SMB2_CREATE_ALLOCATION_SIZE.
    pub const ALLOCATION: &[u8] = b"AlSi";
    /// SMB2_CREATE_QUERY_MAXIMAL_ACCESS_REQUEST.
    pub const MAXIMAL_ACCESS: &[u8] = b"MxAc";
    /// SMB2_CREATE_TIMEWARP_TOKEN: a snapshot.
    pub const TIMEWARP: &[u8] = b"TWrp";
    /// SMB2_CREATE_QUERY_ON_DISK_ID.
    pub const ON_DISK_ID: &[u8] = b"QFid";
    /// SMB2_CREATE_REQUEST_LEASE and _V2.
    pub const LEASE: &[u8] = b"RqLs";
    /// SMB2_CREATE_DURABLE_HANDLE_REQUEST_V2.
    pub const DURABLE_V2: &[u8] = b"DH2Q";
    /// SMB2_CREATE_DURABLE_HANDLE_RECONNECT_V2.
    pub const RECONNECT_V2: &[u8] = b"DH2C";
    /// SMB2_CREATE_APP_INSTANCE_ID.
    pub const APP_INSTANCE_ID: &[u8] =
        b"\x45\xbc\xa6\x6a\xef\xa7\xf7\x4a\x90\x08\xfa\x46\x2e\x14\x4d\x74";
    /// SMB2_CREATE_APP_INSTANCE_VERSION.
    pub const APP_INSTANCE_VERSION: &[u8] =
        b"\xb9\x82\xd0\xb7\x3b\x56\x07\x4f\xa0\x7b\x52\x4a\x81\x16\xa0\x10";
    /// SVHDX_OPEN_DEVICE_CONTEXT (MS-RSVD 2.2.4.12): shared virtual disks, which we do not have.
    pub const SVHDX: &[u8] = b"\x9c\xcb\xcf\x9e\x04\xc1\xe6\x43\x98\x0e\x15\x8d\xa1\xf6\xec\x83";
    /// SMB2_CREATE_TAG_POSIX (SMB3 POSIX Extensions).
    pub const POSIX: &[u8] = b"\x93\xad\x25\x50\x9c\xb4\x11\xe7\xb4\x23\x83\xde\x96\x8b\xcd\x7c";
    /// Apple's extension.
    pub const APPLE: &[u8] = b"AAPL";
}

/// A chain of contexts, unread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contexts<'a>(&'a [u8]);

/// One context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context<'a> {
    /// See [`name`].
    pub name: &'a [u8],
    /// What it says.
    pub data: &'a [u8],
}

impl<'a> Contexts<'a> {
    /// The chain that stands in `bytes`.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The contexts, in order. Ends with the last one, or with the first error.
    pub fn iter(self) -> impl Iterator<Item = Result<Context<'a>, BadMessage>> {
        let mut rest = (!self.0.is_empty()).then_some(self.0);
        let mut count = 0;
        std::iter::from_fn(move || {
            let bytes = rest.take()?;
            count += 1;
            if count > CONTEXTS_MAX {
                return Some(Err(BadMessage::TooMany));
            }
            Some(first(bytes).map(|(context, more)| {
                rest = more;
                context
            }))
        })
    }
}

/// The context at the beginning of `bytes`, and what follows it.
fn first(bytes: &[u8]) -> Result<(Context<'_>, Option<&[u8]>), BadMessage> {
    let head = Fields::at_least(bytes, HEAD_LEN)?;
    let next = head.len32(0);
    let (name_at, name_len) = (head.len16(4), head.len16(6));
    let (data_at, data_len) = (head.len16(10), head.len32(12));
    let name_end = name_at + name_len;
    if name_at != HEAD_LEN
        || name_len < NAME_LEN_MIN
        || !next.is_multiple_of(8)
        || !data_at.is_multiple_of(8)
        || data_at != 0 && data_at < name_end
        || data_at == 0 && data_len != 0
    {
        return Err(BadMessage::Offset);
    }
    let more = match next {
        0 => None,
        _ => Some(bytes.get(next..).ok_or(BadMessage::Offset)?),
    };
    let name = bytes.get(name_at..name_end).ok_or(BadMessage::Offset)?;
    let data_end = data_at.checked_add(data_len).ok_or(BadMessage::Offset)?;
    let data = bytes.get(data_at..data_end).ok_or(BadMessage::Offset)?;
    Ok((Context { name, data }, more))
}

/// Appends contexts behind each other. The first begins where `out` ends, at a multiple of 8 from the header.
pub struct Chain<'a> {
    out: &'a mut Vec<u8>,
    /// Where the last one begins.
    last: Option<usize>,
}

impl<'a> Chain<'a> {
    /// An empty chain at the end of `out`.
    #[must_use]
    pub const fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, last: None }
    }

    /// Appends a context.
    pub fn push(&mut self, name: &[u8], data: &[u8]) {
        self.push_with(name, |out| out.extend_from_slice(data));
    }

    /// Appends a context whose data `write` appends to what it is given.
    pub fn push_with(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(last) = self.last {
            let mut before = Writer::new(self.out, last);
            before.pad8();
            let next = before.at();
            before.put32(0, next);
        }
        let start = self.out.len();
        self.last = Some(start);
        let mut to = Writer::new(self.out, start);
        to.u32(0).len16(HEAD_LEN).len16(name.len()).u16(0).u16(0).u32(0).bytes(name).pad8();
        let data_at = to.at();
        write(to.out());
        let len = to.at() - data_at;
        to.put16(10, data_at);
        to.put32(12, len);
    }
}

bitflags! {
    /// LeaseFlags (MS-SMB2 2.2.13.2.10, 2.2.14.2.10). Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LeaseFlags: u32 {
        /// SMB2_LEASE_FLAG_BREAK_IN_PROGRESS, in answers.
        const BREAK_IN_PROGRESS = 2;
        /// SMB2_LEASE_FLAG_PARENT_LEASE_KEY_SET, version 2.
        const PARENT_KEY_SET = 4;
        const _ = !0;
    }

    /// Flags of durable handles, version 2 (MS-SMB2 2.2.13.2.11). Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct DurableFlags: u32 {
        /// SMB2_DHANDLE_FLAG_PERSISTENT.
        const PERSISTENT = 2;
        const _ = !0;
    }
}

/// A lease, asked for or granted (MS-SMB2 2.2.13.2.8, 2.2.13.2.10, 2.2.14.2.10, 2.2.14.2.11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The client's name for it.
    pub key: LeaseKey,
    /// What may be cached. Bits that mean nothing are kept.
    pub state: LeaseState,
    /// Whether it is being broken, whether there is a parent.
    pub flags: LeaseFlags,
    /// What only version 2 has; `None`: version 1.
    pub v2: Option<LeaseV2>,
}

/// What version 2 of a lease has more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LeaseV2 {
    /// The lease of the directory that the file is in; without meaning unless [`LeaseFlags::PARENT_KEY_SET`].
    pub parent: LeaseKey,
    /// Counts changes of the lease's state.
    pub epoch: u16,
}

impl Lease {
    const V1_LEN: usize = 32;
    const V2_LEN: usize = 52;

    /// Reads the data of a context.
    ///
    /// # Errors
    ///
    /// [`BadMessage::Truncated`] when it has neither version's length.
    pub fn parse(data: &[u8]) -> Result<Self, BadMessage> {
        let fields = Fields(data);
        let v2 = match data.len() {
            Self::V1_LEN => None,
            Self::V2_LEN => {
                Some(LeaseV2 { parent: LeaseKey(fields.chunk(32)), epoch: fields.u16(48) })
            }
            _ => return Err(BadMessage::Truncated),
        };
        Ok(Self {
            key: LeaseKey(fields.chunk(0)),
            state: LeaseState::from_bits_retain(fields.u32(16)),
            flags: LeaseFlags::from_bits_retain(fields.u32(20)),
            v2,
        })
    }

    fn encode(&self, chain: &mut Chain<'_>) {
        chain.push_with(name::LEASE, |out| {
            let start = out.len();
            let mut to = Writer::new(out, start);
            to.bytes(&self.key.0).u32(self.state.bits()).u32(self.flags.bits()).u64(0);
            if let Some(v2) = &self.v2 {
                to.bytes(&v2.parent.0).u16(v2.epoch).u16(0);
            }
        });
    }
}
