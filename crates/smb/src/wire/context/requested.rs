//! What a CREATE asks for besides (MS-SMB2 2.2.13.2).

use super::{AppleQuery, Chain, Contexts, DurableFlags, Lease, name};
use crate::wire::BadMessage;
use crate::wire::bytes::{Fields, Writer};
use crate::{FileId, FileTime, Guid, OplockLevel};

/// The contexts of a request, each at most once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requested<'a> {
    /// How many contexts there were, known or not, twice or not. Not looked at by `encode`.
    pub count: usize,
    /// ExtA: a list of FILE_FULL_EA_INFORMATION.
    pub ea: Option<&'a [u8]>,
    /// SecD: a security descriptor.
    pub security: Option<&'a [u8]>,
    /// DHnQ: a durable handle.
    pub durable: bool,
    /// DHnC: an open of before, to be had again.
    pub reconnect: Option<FileId>,
    /// AlSi: bytes to reserve.
    pub allocation: Option<u64>,
    /// MxAc: what may the user do? The time, or [`FileTime::NONE`] without one, says "only when it changed since".
    pub maximal_access: Option<FileTime>,
    /// TWrp: the file as it was then.
    pub timewarp: Option<FileTime>,
    /// QFid: what is the file's number?
    pub on_disk_id: bool,
    /// RqLs, when the oplock level asks for a lease, or an open is to be had again; otherwise it has no meaning
    /// and is not looked at.
    pub lease: Option<Lease>,
    /// DH2Q: a durable handle, version 2.
    pub durable_v2: Option<DurableRequest>,
    /// DH2C: an open of before, version 2.
    pub reconnect_v2: Option<Reconnect>,
    /// SMB2_CREATE_APP_INSTANCE_ID: the same program, perhaps on another machine.
    pub app_instance: Option<Guid>,
    /// SMB2_CREATE_APP_INSTANCE_VERSION: which run of that program.
    pub app_version: Option<AppVersion>,
    /// POSIX: the mode of a file that comes to be.
    pub posix_mode: Option<u32>,
    /// AAPL: what Apple's clients ask. `None` also for a question that is none of theirs that is known.
    pub apple: Option<AppleQuery>,
}

/// DH2Q (MS-SMB2 2.2.13.2.11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DurableRequest {
    /// How long the open is to be kept without a connection, milliseconds; 0: the server says.
    pub timeout_ms: u32,
    /// Whether it is to survive the server.
    pub flags: DurableFlags,
    /// The client's name for the request, by which its replay is known.
    pub create: Guid,
}

/// DH2C (MS-SMB2 2.2.13.2.12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reconnect {
    /// The open.
    pub file: FileId,
    /// The name of the request that made it.
    pub create: Guid,
    /// Whether it is to survive the server.
    pub flags: DurableFlags,
}

/// SMB2_CREATE_APP_INSTANCE_VERSION (MS-SMB2 2.2.13.2.15); the larger one wins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AppVersion {
    /// AppInstanceVersionHigh.
    pub high: u64,
    /// AppInstanceVersionLow.
    pub low: u64,
}

impl<'a> Requested<'a> {
    /// Reads a chain.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when the chain or a known context in it does not hold together;
    /// [`BadMessage::Duplicate`] for two ways at once to get or to have again a durable handle, which are all
    /// pairs of DHnQ, DHnC, DH2Q, DH2C but those of the two requests and of DHnQ with DHnC
    /// (MS-SMB2 3.3.5.9.6, .7, .10, .12).
    pub fn parse(contexts: Contexts<'a>, oplock: OplockLevel) -> Result<Self, BadMessage> {
        let mut all = Self::default();
        let mut lease = None;
        for context in contexts.iter() {
            let context = context?;
            all.count += 1;
            if context.name == name::LEASE {
                lease = lease.or(Some(context.data));
            } else {
                all.take(context.name, context.data)?;
            }
        }
        if oplock == OplockLevel::Lease || all.reconnects() {
            all.lease = lease.map(Lease::parse).transpose()?;
        }
        let again = all.reconnect.is_some();
        let (v2, again_v2) = (all.durable_v2.is_some(), all.reconnect_v2.is_some());
        if again && (v2 || again_v2) || again_v2 && (v2 || all.durable) {
            return Err(BadMessage::Duplicate);
        }
        Ok(all)
    }

    /// Whether a request to reconnect has no more contexts than it may: a lease, and for DHnC a DHnQ. With more
    /// it is answered with STATUS_OBJECT_NAME_NOT_FOUND (MS-SMB2 3.3.5.9.7, 3.3.5.9.12). True when it asks for no
    /// reconnect.
    #[must_use]
    pub fn reconnects_alone(&self) -> bool {
        let allowed = 1 + usize::from(self.lease.is_some()) + usize::from(self.durable);
        (self.reconnect.is_none() && self.reconnect_v2.is_none()) || self.count == allowed
    }

    /// Whether an open of before is to be had again.
    #[must_use]
    pub const fn reconnects(&self) -> bool {
        self.reconnect.is_some() || self.reconnect_v2.is_some()
    }

    fn take(&mut self, name: &[u8], data: &'a [u8]) -> Result<(), BadMessage> {
        match name {
            name::EA => first(&mut self.ea, || Ok(data)),
            name::SECURITY => first(&mut self.security, || Ok(data)),
            name::DURABLE => {
                self.durable = true;
                Fields::exactly(data, 16).map(|_| ())
            }
            name::RECONNECT => first(&mut self.reconnect, || {
                Fields::exactly(data, 16).map(|fields| fields.file_id(0))
            }),
            name::ALLOCATION => {
                first(&mut self.allocation, || Fields::exactly(data, 8).map(|fields| fields.u64(0)))
            }
            name::MAXIMAL_ACCESS => first(&mut self.maximal_access, || match data {
                [] => Ok(FileTime::NONE),
                _ => Fields::exactly(data, 8).map(|fields| fields.time(0)),
            }),
            name::TIMEWARP => {
                first(&mut self.timewarp, || Fields::exactly(data, 8).map(|fields| fields.time(0)))
            }
            name::ON_DISK_ID => {
                self.on_disk_id = true;
                Fields::exactly(data, 0).map(|_| ())
            }
            name::DURABLE_V2 => first(&mut self.durable_v2, || {
                Fields::exactly(data, 32).map(|fields| DurableRequest {
                    timeout_ms: fields.u32(0),
                    flags: DurableFlags::from_bits_retain(fields.u32(4)),
                    create: fields.guid(16),
                })
            }),
            name::RECONNECT_V2 => first(&mut self.reconnect_v2, || {
                Fields::exactly(data, 36).map(|fields| Reconnect {
                    file: fields.file_id(0),
                    create: fields.guid(16),
                    flags: DurableFlags::from_bits_retain(fields.u32(32)),
                })
            }),
            name::APP_INSTANCE_ID => {
                first(&mut self.app_instance, || sized(data, 20).map(|fields| fields.guid(4)))
            }
            name::APP_INSTANCE_VERSION => first(&mut self.app_version, || {
                let fields = sized(data, 24)?;
                Ok(AppVersion { high: fields.u64(8), low: fields.u64(16) })
            }),
            name::POSIX => {
                first(&mut self.posix_mode, || Fields::exactly(data, 4).map(|fields| fields.u32(0)))
            }
            name::APPLE => {
                if self.apple.is_none() {
                    self.apple = AppleQuery::parse(data)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Appends the chain to `out`, in the order of Samba's client.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut chain = Chain::new(out);
        if let Some(ea) = self.ea {
            chain.push(name::EA, ea);
        }
        match self.maximal_access {
            Some(FileTime::NONE) => chain.push(name::MAXIMAL_ACCESS, &[]),
            Some(since) => chain.push(name::MAXIMAL_ACCESS, &since.0.to_le_bytes()),
            None => {}
        }
        if let Some(bytes) = self.allocation {
            chain.push(name::ALLOCATION, &bytes.to_le_bytes());
        }
        self.encode_durable(&mut chain);
        if let Some(time) = self.timewarp {
            chain.push(name::TIMEWARP, &time.0.to_le_bytes());
        }
        if let Some(security) = self.security {
            chain.push(name::SECURITY, security);
        }
        if self.on_disk_id {
            chain.push(name::ON_DISK_ID, &[]);
        }
        if let Some(lease) = &self.lease {
            lease.encode(&mut chain);
        }
        self.encode_durable_v2(&mut chain);
        self.encode_program(&mut chain);
    }

    fn encode_durable(&self, chain: &mut Chain<'_>) {
        if self.durable {
            chain.push(name::DURABLE, &[0; 16]);
        }
        if let Some(file) = self.reconnect {
            chain.push_with(name::RECONNECT, |out| {
                Writer::new(out, 0).file_id(file);
            });
        }
    }

    fn encode_durable_v2(&self, chain: &mut Chain<'_>) {
        if let Some(durable) = &self.durable_v2 {
            chain.push_with(name::DURABLE_V2, |out| {
                let mut to = Writer::new(out, 0);
                to.u32(durable.timeout_ms).u32(durable.flags.bits()).u64(0);
                to.bytes(&durable.create.0);
            });
        }
        if let Some(again) = &self.reconnect_v2 {
            chain.push_with(name::RECONNECT_V2, |out| {
                let mut to = Writer::new(out, 0);
                to.file_id(again.file).bytes(&again.create.0).u32(again.flags.bits());
            });
        }
    }

    /// What is about the program or the system that asks.
    fn encode_program(&self, chain: &mut Chain<'_>) {
        if let Some(instance) = self.app_instance {
            chain.push_with(name::APP_INSTANCE_ID, |out| {
                Writer::new(out, 0).u16(20).u16(0).bytes(&instance.0);
            });
        }
        if let Some(version) = self.app_version {
            chain.push_with(name::APP_INSTANCE_VERSION, |out| {
                let mut to = Writer::new(out, 0);
                to.u16(24).u16(0).u32(0).u64(version.high).u64(version.low);
            });
        }
        if let Some(mode) = self.posix_mode {
            chain.push(name::POSIX, &mode.to_le_bytes());
        }
        if let Some(apple) = &self.apple {
            chain.push_with(name::APPLE, |out| apple.encode(out));
        }
    }
}

/// Takes what `parse` reads, unless there is one already.
fn first<T>(
    slot: &mut Option<T>,
    parse: impl FnOnce() -> Result<T, BadMessage>,
) -> Result<(), BadMessage> {
    if slot.is_none() {
        *slot = Some(parse()?);
    }
    Ok(())
}

/// Data that begins with a StructureSize, which is all of it.
fn sized(data: &[u8], len: usize) -> Result<Fields<'_>, BadMessage> {
    let fields = Fields::exactly(data, len)?;
    if fields.len16(0) == len { Ok(fields) } else { Err(BadMessage::StructureSize) }
}
