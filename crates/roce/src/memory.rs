//! Memory that work requests and peers may name: protection domains, regions, keys.
//!
//! Nothing here touches a byte: the engine moves them, by [`Memory`]. What is checked here, on each
//! packet, is that the bytes named lie within a region whose key, protection domain and access fit
//! (IBTA vol. 1, 10.6 and 9.7.4.1.5).

use crate::random::Random;

/// The engine's name for the memory behind a region; never looked into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Handle(pub u64);

/// Memory that is not there any more, or cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory behind a region cannot be reached")]
pub struct Fault;

/// Who moves bytes from and to registered memory. Offsets count from the region's first byte, and what
/// is named lies within the region.
pub trait Memory {
    /// Copies bytes out. They may change at any time; what is copied is what is sent.
    ///
    /// # Errors
    ///
    /// [`Fault`]: the queue pair fails with a local protection error.
    fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<(), Fault>;

    /// As [`Self::read`], and goes on with a CRC-32 over the copy if that can be done meanwhile: from register to
    /// register, which are all ones before the first byte of a message. `None`: it was copied alone.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    fn read_summed(
        &self,
        handle: Handle,
        offset: u64,
        to: &mut [u8],
        register: u32,
    ) -> Result<Option<u32>, Fault> {
        let _ = register;
        self.read(handle, offset, to).map(|()| None)
    }

    /// Goes on with a CRC-32 over bytes, whose number is a multiple of 64, from register to register, if that can be
    /// done faster than by 16 bytes at a time.
    fn sum(&self, register: u32, bytes: &[u8]) -> Option<u32> {
        let _ = (register, bytes);
        None
    }

    /// Copies bytes in.
    ///
    /// # Errors
    ///
    /// [`Fault`]: the peer is told of a remote operational error, and the queue pair fails.
    fn write(&mut self, handle: Handle, offset: u64, from: &[u8]) -> Result<(), Fault>;

    /// As [`Self::write`], and goes on with a CRC-32 over the bytes if that can be done meanwhile, from register to
    /// register. `None`: nothing was written, and [`Self::write`] says why, if it cannot be.
    ///
    /// The bytes may be wrong, which the CRC shows only afterwards: this is asked for where nobody reads before
    /// the same place was written once more with those that are right: where one queue pair alone writes.
    fn write_summed(
        &mut self,
        handle: Handle,
        offset: u64,
        from: &[u8],
        register: u32,
    ) -> Option<u32> {
        let _ = (handle, offset, from, register);
        None
    }
}

/// A protection domain: queue pairs may use the regions of their own only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProtectionDomain(pub u64);

/// What may be done with a region beside reading it here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Receive requests may name it.
    pub local_write: bool,
    /// RDMA WRITE may.
    pub remote_write: bool,
}

impl Access {
    /// For what is sent.
    pub const READ: Self = Self { local_write: false, remote_write: false };
    /// For receive requests.
    pub const LOCAL_WRITE: Self = Self { local_write: true, remote_write: false };
    /// For an RMB.
    pub const REMOTE_WRITE: Self = Self { local_write: true, remote_write: true };
}

/// A range of memory that work requests and peers may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Whose it is.
    pub domain: ProtectionDomain,
    /// The address of its first byte, as work requests and peers give it.
    pub address: u64,
    /// Bytes; not 0.
    pub len: u64,
    /// What may be done.
    pub access: Access,
    /// The engine's name for it.
    pub handle: Handle,
}

/// A region's key: `lkey` and `rkey` in one. The slot's number is in the middle; the low 8 bits and what is above the
/// number are drawn by chance at each registration, and are never what they were at the last one of that slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key(pub u32);

/// Why a region was not registered, or is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// As many as may be are registered.
    #[error("no room for another memory region")]
    Full,
    /// No bytes, or some beyond the last address.
    #[error("a memory region has at least one byte and ends before the last address")]
    Range,
    /// No region has this key.
    #[error("no memory region has this key")]
    Key,
}

/// What somebody wants to do with a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Read,
    LocalWrite,
    RemoteWrite,
}

/// No region of that key allows it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied;

const KEY_BITS: u32 = 8;

#[derive(Debug)]
struct Slot {
    key: u32,
    region: Option<Region>,
    /// Place of the queue pair by which a peer has last written to it.
    writer: Option<u32>,
}

/// The regions of a device.
#[derive(Debug)]
pub(crate) struct Regions {
    slots: Vec<Slot>,
    free: Vec<u32>,
    max: u32,
    index_bits: u32,
    random: Random,
}

impl Regions {
    /// The queue pair in this place writes to a region; which one did before it, if that was another.
    pub(crate) fn written_by(&mut self, key: u32, writer: u32) -> Option<u32> {
        let index = self.index_of(key)?;
        let slot = self.slots.get_mut(index as usize)?;
        let before = slot.writer.replace(writer);
        before.filter(|before| *before != writer)
    }

    /// For at most `max` regions, 1 to 2^20.
    pub(crate) const fn new(max: u32, random: Random) -> Self {
        let index_bits = u32::BITS - max.saturating_sub(1).leading_zeros();
        Self { slots: Vec::new(), free: Vec::new(), max, index_bits, random }
    }

    pub(crate) fn register(&mut self, region: Region) -> Result<Key, RegionError> {
        check(&region)?;
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).map_err(|_| RegionError::Full)?;
                if index >= self.max {
                    return Err(RegionError::Full);
                }
                self.slots.push(Slot { key: 0, region: None, writer: None });
                index
            }
        };
        Ok(self.place(index, region))
    }

    pub(crate) fn reregister(&mut self, key: Key, region: Region) -> Result<Key, RegionError> {
        check(&region)?;
        let index = self.index_of(key.0).ok_or(RegionError::Key)?;
        Ok(self.place(index, region))
    }

    pub(crate) fn rebind(&mut self, key: Key, handle: Handle) -> Result<(), RegionError> {
        let index = self.index_of(key.0).ok_or(RegionError::Key)?;
        let slot = self.slots.get_mut(index as usize).ok_or(RegionError::Key)?;
        let region = slot.region.as_mut().ok_or(RegionError::Key)?;
        (region.handle, slot.writer) = (handle, None);
        Ok(())
    }

    pub(crate) fn deregister(&mut self, key: Key) -> Result<Region, RegionError> {
        let index = self.index_of(key.0).ok_or(RegionError::Key)?;
        let slot = self.slots.get_mut(index as usize).ok_or(RegionError::Key)?;
        self.free.push(index);
        slot.writer = None;
        slot.region.take().ok_or(RegionError::Key)
    }

    pub(crate) fn draw(&mut self) -> u64 {
        self.random.next_u64()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn place(&mut self, index: u32, region: Region) -> Key {
        let number = ((1 << self.index_bits) - 1) << KEY_BITS;
        let slot = &mut self.slots[index as usize];
        let mut key = slot.key;
        while key == slot.key {
            key = self.random.next_u32() & !number | index << KEY_BITS;
        }
        slot.key = key;
        slot.region = Some(region);
        Key(key)
    }

    fn index_of(&self, key: u32) -> Option<u32> {
        let index = key >> KEY_BITS & ((1 << self.index_bits) - 1);
        let slot = self.slots.get(index as usize)?;
        (slot.key == key && slot.region.is_some()).then_some(index)
    }

    /// Where the bytes are, if the region of this key may be used so.
    #[inline]
    pub(crate) fn find(
        &self,
        domain: ProtectionDomain,
        key: u32,
        purpose: Purpose,
        address: u64,
        len: u32,
    ) -> Result<(Handle, u64), Denied> {
        let index = self.index_of(key).ok_or(Denied)?;
        let region = self.slots.get(index as usize).and_then(|slot| slot.region).ok_or(Denied)?;
        let allowed = match purpose {
            Purpose::Read => true,
            Purpose::LocalWrite => region.access.local_write,
            Purpose::RemoteWrite => region.access.remote_write,
        };
        let offset = address.checked_sub(region.address).ok_or(Denied)?;
        let inside = offset.checked_add(u64::from(len)).is_some_and(|end| end <= region.len);
        if !allowed || !inside || region.domain != domain {
            return Err(Denied);
        }
        Ok((region.handle, offset))
    }
}

fn check(region: &Region) -> Result<(), RegionError> {
    let ends = region.len > 0 && region.address.checked_add(region.len).is_some();
    ends.then_some(()).ok_or(RegionError::Range)
}

#[cfg(test)]
mod tests;
