//! What programs and we both can look at: numbers by number, a set of addresses, and a value for each socket.

use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use super::{MAP_CREATE, MAP_UPDATE_ELEM, MapCreate, MapUpdate};
use crate::call::{self, Failure};
use crate::interface::own;

const MAP_DELETE_ELEM: u32 = 3;
const BTF_LOAD: u32 = 18;
const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_SK_STORAGE: u32 = 24;
const NO_PREALLOC: u32 = 1;
const CLONE: u32 = 1 << 9;

/// A map from numbers to numbers that is filled from outside and read by programs.
#[derive(Debug)]
pub struct NumberMap(OwnedFd);

impl NumberMap {
    /// An empty map that will take so many entries.
    ///
    /// # Errors
    ///
    /// The errno: `EPERM` without `CAP_BPF`.
    pub fn new(entries: u32) -> Result<Self, Failure> {
        hash(4, entries).map(Self)
    }

    /// The number by which an instruction names the map.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// From now on this is the value of the key.
    ///
    /// # Errors
    ///
    /// The errno: `E2BIG` if the map is full.
    pub fn set(&self, key: u32, value: u32) -> Result<(), Failure> {
        set(&self.0, &raw const key, value)
    }

    /// From now on the key has no value. Whether it had one.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn remove(&self, key: u32) -> Result<bool, Failure> {
        remove(&self.0, &raw const key)
    }
}

/// A set of addresses that is filled from outside and read by programs. The key is 16 bytes, as IPv6 has them; what
/// IPv4 has is mapped. The value is of 4 bytes and means nothing.
#[derive(Debug)]
pub struct AddressSet(OwnedFd);

impl AddressSet {
    /// An empty set that will take so many addresses.
    ///
    /// # Errors
    ///
    /// The errno: `EPERM` without `CAP_BPF`.
    pub fn new(entries: u32) -> Result<Self, Failure> {
        hash(16, entries).map(Self)
    }

    /// The number by which an instruction names the map.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// From now on this address is in it.
    ///
    /// # Errors
    ///
    /// The errno: `E2BIG` if the set is full.
    pub fn add(&self, address: Ipv6Addr) -> Result<(), Failure> {
        set(&self.0, address.octets().as_ptr().cast(), 1)
    }

    /// From now on it is not. Whether it was.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn remove(&self, address: Ipv6Addr) -> Result<bool, Failure> {
        remove(&self.0, address.octets().as_ptr().cast())
    }
}

/// A map from keys of so many bytes to values of 4.
fn hash(key_bytes: u32, entries: u32) -> Result<OwnedFd, Failure> {
    let mut attributes = MapCreate {
        kind: MAP_TYPE_HASH,
        key_bytes,
        value_bytes: 4,
        entries,
        ..MapCreate::default()
    };
    let fd = call::bpf(MAP_CREATE, &mut attributes).map_err(Failure::at("make a BPF map"))?;
    Ok(own(fd))
}

fn set(map: &OwnedFd, key: *const u32, value: u32) -> Result<(), Failure> {
    let value = value.cast_signed();
    call::bpf(MAP_UPDATE_ELEM, &mut entry(map, key, &raw const value))
        .map(drop)
        .map_err(Failure::at("put a value in the BPF map"))
}

pub(super) fn remove(map: &OwnedFd, key: *const u32) -> Result<bool, Failure> {
    match call::bpf(MAP_DELETE_ELEM, &mut entry(map, key, std::ptr::null())) {
        Ok(_) => Ok(true),
        Err(libc::ENOENT) => Ok(false),
        Err(errno) => Err(Failure { step: "take a value out of the BPF map", errno }),
    }
}

/// The kernel copies key and value before the call returns.
fn entry(map: &OwnedFd, key: *const u32, value: *const i32) -> MapUpdate {
    MapUpdate { map: map.as_raw_fd().cast_unsigned(), padding: 0, key, value, flags: 0 }
}

/// Eight bytes for each socket that a program gives them to; they end with the socket. A socket that
/// is accepted begins with a copy of its listener's.
#[derive(Debug)]
pub struct SocketStorage(OwnedFd);

impl SocketStorage {
    /// Storage that no socket has yet.
    ///
    /// # Errors
    ///
    /// The errno: `EPERM` without `CAP_BPF`, `EINVAL` if the kernel is older than 5.4.
    pub fn new() -> Result<Self, Failure> {
        let types = load_types()?;
        let mut attributes = MapCreate {
            kind: MAP_TYPE_SK_STORAGE,
            key_bytes: 4,
            value_bytes: 8,
            flags: NO_PREALLOC | CLONE,
            types: types.as_raw_fd().cast_unsigned(),
            key_type: 1,
            value_type: 2,
            ..MapCreate::default()
        };
        let fd = call::bpf(MAP_CREATE, &mut attributes)
            .map_err(Failure::at("make a BPF map for sockets"))?;
        Ok(Self(own(fd)))
    }

    /// The number by which an instruction names the map.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct TypesLoad {
    types: *const u32,
    log: u64,
    bytes: u32,
    log_bytes: u32,
    log_level: u32,
    padding: u32,
}

/// The kernel wants to know the types of what it keeps for sockets: one number of 4 bytes with a sign
/// (the key, a descriptor), and one of 8 (the value), in its own notation (BTF).
fn load_types() -> Result<OwnedFd, Failure> {
    const MAGIC_AND_VERSION: u32 = 0x0001_eb9f;
    const INTEGER: u32 = 1 << 24;
    const SIGNED: u32 = 1 << 24;
    // Strings: an empty one, "key", "value".
    let strings = *b"\0key\0value\0\0";
    let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| strings[at + i]));
    let types = [
        // Header: its own length, then where types and strings are (from here on) and how long.
        [MAGIC_AND_VERSION, 24, 0, 32].as_slice(),
        &[32, 12],
        // Each type: its name, its kind, its bytes; then its encoding and its bits.
        &[1, INTEGER, 4, SIGNED | 32],
        &[5, INTEGER, 8, 64],
        &[word(0), word(4), word(8)],
    ]
    .concat();
    let mut attributes = TypesLoad {
        types: types.as_ptr(),
        log: 0,
        bytes: u32::try_from(size_of_val(types.as_slice())).unwrap_or(0),
        log_bytes: 0,
        log_level: 0,
        padding: 0,
    };
    let fd = call::bpf(BTF_LOAD, &mut attributes).map_err(Failure::at("tell the kernel types"))?;
    Ok(own(fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_takes_what_it_has_room_for() {
        let map = match NumberMap::new(2) {
            Ok(map) => map,
            Err(e) => return println!("skipped: {e}"),
        };
        map.set(1, 10).unwrap();
        map.set(2, 20).unwrap();
        map.set(1, 11).unwrap();
        assert_eq!(map.set(3, 30).unwrap_err().errno, libc::E2BIG);
        assert!(map.remove(2).unwrap());
        assert!(!map.remove(2).unwrap());
        map.set(3, 30).unwrap();
    }

    #[test]
    fn a_set_of_addresses_takes_what_it_has_room_for() {
        let set = match AddressSet::new(2) {
            Ok(set) => set,
            Err(e) => return println!("skipped: {e}"),
        };
        let [v4, v6, other] = ["::ffff:10.0.0.1", "fd00::1", "fd00::2"].map(|a| a.parse().unwrap());
        set.add(v4).unwrap();
        set.add(v6).unwrap();
        set.add(v4).unwrap();
        assert_eq!(set.add(other).unwrap_err().errno, libc::E2BIG);
        assert!(set.remove(v4).unwrap());
        assert!(!set.remove(v4).unwrap());
        set.add(other).unwrap();
    }

    #[test]
    fn the_kernel_understands_our_types() {
        match SocketStorage::new() {
            Ok(storage) => assert!(storage.number() >= 0),
            Err(e) if e.errno == libc::EPERM => println!("skipped: {e}"),
            Err(e) => panic!("{e}"),
        }
    }
}
