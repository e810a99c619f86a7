//! What the answer to a CREATE says besides (MS-SMB2 2.2.14.2).

use super::{AppleReply, Chain, Contexts, DurableFlags, Lease, name};
use crate::wire::BadMessage;
use crate::wire::bytes::{Fields, Writer};
use crate::{Access, NtStatus};

/// The contexts of an answer, each at most once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted<'a> {
    /// RqLs: the lease.
    pub lease: Option<Lease>,
    /// DHnQ: the handle is durable.
    pub durable: bool,
    /// DH2Q: the handle is durable, version 2.
    pub durable_v2: Option<DurableGrant>,
    /// MxAc: what the user may do.
    pub maximal_access: Option<MaximalAccess>,
    /// QFid: the file's number.
    pub on_disk_id: Option<OnDiskId>,
    /// POSIX: what it is to POSIX.
    pub posix: Option<PosixReply<'a>>,
    /// AAPL: the answer for Apple's clients.
    pub apple: Option<AppleReply<'a>>,
}

/// DH2Q of an answer (MS-SMB2 2.2.14.2.12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DurableGrant {
    /// How long the open is kept without a connection, milliseconds.
    pub timeout_ms: u32,
    /// Whether it survives the server.
    pub flags: DurableFlags,
}

/// MxAc of an answer (MS-SMB2 2.2.14.2.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MaximalAccess {
    /// Whether it is known.
    pub status: NtStatus,
    /// What the user may do.
    pub access: Access,
}

/// QFid of an answer (MS-SMB2 2.2.14.2.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OnDiskId {
    /// DiskFileId: the file on its volume.
    pub file: u64,
    /// VolumeId.
    pub volume: u64,
}

/// POSIX of an answer (SMB3 POSIX Extensions).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PosixReply<'a> {
    /// Hard links.
    pub links: u32,
    /// The reparse tag, or 0.
    pub reparse_tag: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group, two security identifiers behind each other.
    pub sids: &'a [u8],
}

impl<'a> Granted<'a> {
    /// Reads a chain.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when the chain or a known context in it does not hold together.
    pub fn parse(contexts: Contexts<'a>) -> Result<Self, BadMessage> {
        let mut all = Self::default();
        for context in contexts.iter() {
            let context = context?;
            all.take(context.name, context.data)?;
        }
        Ok(all)
    }

    fn take(&mut self, name: &[u8], data: &'a [u8]) -> Result<(), BadMessage> {
        match name {
            name::LEASE => self.lease = Some(Lease::parse(data)?),
            name::DURABLE => {
                Fields::exactly(data, 8)?;
                self.durable = true;
            }
            name::DURABLE_V2 => {
                let fields = Fields::exactly(data, 8)?;
                let flags = DurableFlags::from_bits_retain(fields.u32(4));
                self.durable_v2 = Some(DurableGrant { timeout_ms: fields.u32(0), flags });
            }
            name::MAXIMAL_ACCESS => {
                let fields = Fields::exactly(data, 8)?;
                let access = Access::from_bits_retain(fields.u32(4));
                let status = NtStatus(fields.u32(0));
                self.maximal_access = Some(MaximalAccess { status, access });
            }
            name::ON_DISK_ID => {
                let fields = Fields::exactly(data, 32)?;
                self.on_disk_id = Some(OnDiskId { file: fields.u64(0), volume: fields.u64(8) });
            }
            name::POSIX => {
                let fields = Fields::at_least(data, 12)?;
                self.posix = Some(PosixReply {
                    links: fields.u32(0),
                    reparse_tag: fields.u32(4),
                    mode: fields.u32(8),
                    sids: &data[12..],
                });
            }
            name::APPLE => self.apple = AppleReply::parse(data)?,
            _ => {}
        }
        Ok(())
    }

    /// Appends the chain to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut chain = Chain::new(out);
        if let Some(apple) = &self.apple {
            chain.push_with(name::APPLE, |out| apple.encode(out));
        }
        if let Some(maximal) = &self.maximal_access {
            chain.push_with(name::MAXIMAL_ACCESS, |out| {
                Writer::new(out, 0).u32(maximal.status.0).u32(maximal.access.bits());
            });
        }
        if self.durable {
            chain.push(name::DURABLE, &[0; 8]);
        }
        if let Some(durable) = &self.durable_v2 {
            chain.push_with(name::DURABLE_V2, |out| {
                Writer::new(out, 0).u32(durable.timeout_ms).u32(durable.flags.bits());
            });
        }
        if let Some(id) = &self.on_disk_id {
            chain.push_with(name::ON_DISK_ID, |out| {
                Writer::new(out, 0).u64(id.file).u64(id.volume).zeros(16);
            });
        }
        if let Some(lease) = &self.lease {
            lease.encode(&mut chain);
        }
        if let Some(posix) = &self.posix {
            chain.push_with(name::POSIX, |out| {
                let mut to = Writer::new(out, 0);
                to.u32(posix.links).u32(posix.reparse_tag).u32(posix.mode).bytes(posix.sids);
            });
        }
    }
}
