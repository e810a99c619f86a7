//! What a client may keep in its own memory: oplocks and leases, as both sides name them.

use bitflags::bitflags;

/// How much a client may cache for one open (MS-SMB2 2.2.13, RequestedOplockLevel).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OplockLevel {
    /// Nothing.
    #[default]
    None = 0x00,
    /// SMB2_OPLOCK_LEVEL_II: what it has read.
    Two = 0x01,
    /// SMB2_OPLOCK_LEVEL_EXCLUSIVE: reads and writes.
    Exclusive = 0x08,
    /// SMB2_OPLOCK_LEVEL_BATCH: reads, writes, and the open itself.
    Batch = 0x09,
    /// SMB2_OPLOCK_LEVEL_LEASE: what the lease says.
    Lease = 0xff,
}

impl OplockLevel {
    /// From the byte on the wire; `None` for one that means nothing.
    #[must_use]
    pub fn from_wire(byte: u8) -> Option<Self> {
        [Self::None, Self::Two, Self::Exclusive, Self::Batch, Self::Lease]
            .into_iter()
            .find(|level| *level as u8 == byte)
    }
}

bitflags! {
    /// What a lease lets its holder cache (MS-SMB2 2.2.13.2.8).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LeaseState: u32 {
        /// SMB2_LEASE_READ_CACHING.
        const READ = 1;
        /// SMB2_LEASE_HANDLE_CACHING.
        const HANDLE = 2;
        /// SMB2_LEASE_WRITE_CACHING.
        const WRITE = 4;
    }
}

/// The name a client has given to a lease; unique with its ClientGuid (MS-SMB2 3.3.1.12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey(pub [u8; 16]);
