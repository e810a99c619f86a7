//! The board: who takes part, who listens where, who offers which connection.
//!
//! One file per user and network namespace, in a directory that nobody else may enter, or one for users who trust each
//! other, in a directory that root has opened to them ([`prepare`]). Being able to open it *is* the permission to take
//! part; a process that drops its privileges afterwards keeps what it has mapped.
//!
//! A directory with a file [`ACROSS`] in it has one board for the programs of all network namespaces that come to it.

use std::ffi::{CStr, CString};
use std::net::{Ipv6Addr, SocketAddrV6};

use sys::abi::{
    BLOCK_BYTES, DATA_AT, ENGINE_MEETS, EXTENT_BYTES, EXTENTS, FILE_BYTES, HALF_BYTES,
    HALVES_PER_BLOCK, Half, OWNER_HALVES, PORT_OFFERED, SLOTS, Slot, VERSION, half_flags,
    half_state, slot_state,
};
use sys::call;
use sys::diag;
use sys::lock;
use sys::map::{Access, Map, MapError};
use sys::memory_group::MemoryLimit;
use sys::pids;
use sys::sync::{AtomicU32, AtomicU64, Ordering};

use crate::spin::UNKNOWN;
use crate::{Reason, offer};

mod burial;
mod leftovers;
mod off;

pub use leftovers::sweep;
pub use off::{OFF, SwitchError, is_off, switch};

/// `SO_NETNS_COOKIE`, absent from libc.
const SO_NETNS_COOKIE: i32 = 71;
/// Byte of the file whose lock says that the owner of slot 0 lives; the others follow. Far behind
/// the last byte, so that nothing else can mean it.
const LOCKS_AT: i64 = 1 << 40;
/// The same for extents: the kernel, not a word that anybody may overwrite, says whose one is.
const EXTENT_LOCKS_AT: i64 = 1 << 41;

/// Number of the network namespace of a socket. `None`: `fd` is none, or it is before Linux 5.14.
#[must_use]
pub fn netns_of(fd: i32) -> Option<u64> {
    // SOL_SOCKET is 1.
    call::getsockopt(fd, 1, SO_NETNS_COOKIE).ok()
}

/// Number of the current network namespace.
fn netns() -> Result<u64, MapError> {
    let fd = call::socket(1, 1 | 0o2_000_000, 0).map_err(|e| MapError::System("socket", e))?;
    let cookie = netns_of(fd);
    let _ = call::close(fd);
    match cookie {
        Some(cookie) => Ok(cookie),
        // Before Linux 5.14: the inode number does as well, and lives as long.
        None => {
            inode_of(c"/proc/self/ns/net").map_err(|e| MapError::System("network namespace", e))
        }
    }
}

/// Whether process numbers are those of a namespace of our own, as a container has them. `false` also if it is not known.
#[must_use]
pub fn is_in_container() -> bool {
    // PROC_PID_INIT_INO of `linux/proc_ns.h`.
    const HOST: u64 = 0xefff_fffc;
    ![0, HOST].contains(&pids::own())
}

/// The inode number of what is there, or of what a link there leads to.
fn inode_of(path: &CStr) -> Result<u64, i32> {
    let fd = call::open(path, O_CLOEXEC, 0)?;
    let stat = call::fstat(fd);
    let _ = call::close(fd);
    stat.map(|stat| stat.st_ino)
}

const O_CLOEXEC: i32 = 0o2_000_000;

/// What the processes of a control group may have of the boards, of the bytes that the group may have: over its limit the
/// kernel ends one of them, and their programs need the rest.
#[must_use]
pub const fn share_of_group(bytes: u64) -> u64 {
    bytes / 4
}

/// Where boards are, each in a directory of its user's.
pub const HOME: &str = "/dev/shm";
/// What their names begin with.
const PREFIX: &str = "shunt-";

/// The usual directory of a user's board.
#[must_use]
pub fn home_of(uid: u32) -> String {
    format!("{HOME}/{PREFIX}{uid}")
}

/// The user whose board's directory in [`HOME`] has this name.
#[must_use]
pub fn owner_of(name: &str) -> Option<u32> {
    let uid = name.strip_prefix(PREFIX)?.parse().ok()?;
    // As it is written, and no other way to write the number.
    (format!("{PREFIX}{uid}") == name).then_some(uid)
}

/// A file of this name in a directory: its board is one for all network namespaces.
pub const ACROSS: &str = "all-namespaces";

/// Whether the board in this directory is one for all network namespaces. That is the directory's to say and not a
/// setting, for who disagrees with others would meet nobody.
#[must_use]
pub fn is_across(dir: Option<&str>) -> bool {
    let path = CString::new(format!("{}/{ACROSS}", directory(dir)));
    path.is_ok_and(|path| call::lstat(&path).is_ok())
}

/// The number of the network namespace whose board is in this directory, and how it is written; 0: of all.
fn namespace(dir: Option<&str>) -> Result<(u64, String), MapError> {
    if is_across(dir) {
        return Ok((0, "all".into()));
    }
    let netns = netns()?;
    Ok((netns, format!("{netns:x}")))
}

/// The directory of the board: `dir`, or the usual one of this user.
#[must_use]
pub fn directory(dir: Option<&str>) -> String {
    dir.map_or_else(|| home_of(call::geteuid()), str::to_owned)
}

/// Where the board of this user and network namespace is: its path, and the namespace's number (0: of all).
///
/// # Errors
///
/// If the namespace cannot be named, or the path cannot be written as one.
pub fn locate(dir: Option<&str>) -> Result<(CString, u64), MapError> {
    let (netns, name) = namespace(dir)?;
    let path = format!("{}/board-{name}-v{VERSION}", directory(dir));
    CString::new(path).map(|p| (p, netns)).map_err(|_| MapError::NotOurs)
}

/// Where the process that takes connections to other hosts is reached: see [`crate::relay`].
///
/// # Errors
///
/// As [`locate`].
pub fn door(dir: Option<&str>) -> Result<CString, MapError> {
    let (_, name) = namespace(dir)?;
    let path = format!("{}/engine-{name}-v{VERSION}", directory(dir));
    CString::new(path).map_err(|_| MapError::NotOurs)
}

/// The group to which root has opened the directory of the board; `None`: to none, or it is not there.
#[must_use]
pub fn group_of(dir: Option<&str>) -> Option<u32> {
    let path = CString::new(directory(dir)).ok()?;
    let stat = call::lstat(&path).ok()?;
    (dir.is_some() && is_shared(stat.st_uid, stat.st_mode)).then_some(stat.st_gid)
}

/// Whether a directory of this owner and mode is root's, and open to its group alone.
const fn is_shared(uid: u32, mode: u32) -> bool {
    const ROOT: u32 = 0;
    uid == ROOT && mode & 0o077 == 0o070
}

/// The way to the engine for guests that do not come to its [`door`]: see [`crate::relay::Door`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Of an abstract address, as [`sys::passing::listen_anywhere`] numbers them.
    pub number: u32,
    /// What is to be said there first.
    pub key: SideKey,
}

/// Nobody knows it who has not been given the board.
pub type SideKey = [u32; 3];

/// Makes the directory if it is absent; it must be ours and closed to others. Or, if it was named (`dir`), root's, open to
/// a group and closed to others: then the users of that group share a board in it, and this answers which group. Nobody
/// but root can make such a one, and nobody is on such a board who has not asked for it.
///
/// # Errors
///
/// [`MapError::OpenDirectory`] if it is neither, [`MapError::NotADirectory`] if it is none, or why it cannot be made.
pub fn prepare(dir: Option<&str>) -> Result<Option<u32>, MapError> {
    let path = CString::new(directory(dir)).map_err(|_| MapError::NotOurs)?;
    let stat = match call::lstat(&path) {
        Ok(stat) => stat,
        Err(_) => {
            let _ = call::mkdir(&path, 0o700);
            call::lstat(&path).map_err(|e| MapError::System("make the board's directory", e))?
        }
    };
    const S_IFMT: u32 = 0o170_000;
    const S_IFDIR: u32 = 0o040_000;
    if stat.st_mode & S_IFMT != S_IFDIR {
        return Err(MapError::NotADirectory);
    }
    if stat.st_uid == call::geteuid() && stat.st_mode & 0o077 == 0 {
        return Ok(None);
    }
    let is_shared = dir.is_some() && is_shared(stat.st_uid, stat.st_mode);
    if is_shared { Ok(Some(stat.st_gid)) } else { Err(MapError::OpenDirectory) }
}

/// Each half that is or was in use, with its number. What a tool reads is racy by nature. `fd`: the file, which is asked
/// whether a block was taken: a look at memory that nobody has taken would take it, or, on a file system that is full, end
/// the process (SIGBUS).
pub fn halves(map: &Map, fd: i32) -> impl Iterator<Item = (u32, &Half)> {
    let extents = (map.header().extents_used.load(Ordering::Relaxed) as usize).min(EXTENTS);
    (DATA_AT / EXTENT_BYTES..extents)
        .filter(|e| map.owner(*e).load(Ordering::Acquire) & OWNER_HALVES != 0)
        .flat_map(move |extent| taken_halves(fd, extent))
        .filter_map(|at| number(at).and_then(|i| Some((i, map.half(i)?))))
        .filter(|(_, half)| half.state.load(Ordering::Relaxed) != half_state::FREE)
}

/// Numbers of the halves in an extent that have or had an owner.
fn taken_halves(fd: i32, extent: usize) -> impl Iterator<Item = usize> {
    let first = extent * (EXTENT_BYTES / HALF_BYTES);
    let blocks = (0..EXTENT_BYTES / BLOCK_BYTES).map(move |b| first + b * HALVES_PER_BLOCK);
    // Blocks are taken in order, and a taken block has no half of generation 0.
    blocks.take_while(move |at| generation(fd, *at) != 0).flat_map(|at| at..at + HALVES_PER_BLOCK)
}

/// The generation of a half as the file has it; 0 where nobody has written anything.
fn generation(fd: i32, at: usize) -> u32 {
    let mut bytes = [0; 4];
    let place = at * HALF_BYTES + std::mem::offset_of!(Half, generation);
    let read = i64::try_from(place).map(|place| call::pread(fd, &mut bytes, place));
    if read == Ok(Ok(bytes.len())) { u32::from_ne_bytes(bytes) } else { 0 }
}

fn number(at: usize) -> Option<u32> {
    u32::try_from(at).ok()
}

/// Both ends of a connection as words, for halves and hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Our address and port.
    pub local: SocketAddrV6,
    /// The peer's.
    pub remote: SocketAddrV6,
}

fn words(addr: SocketAddrV6) -> [u64; 2] {
    let n = u128::from(*addr.ip());
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    [(n >> 64) as u64, n as u64]
}

impl Ends {
    /// As the peer sees it.
    #[must_use]
    pub const fn mirrored(self) -> Self {
        Self { local: self.remote, remote: self.local }
    }

    /// Whether both ends are surely in one network namespace: their addresses mean nothing outside of it, or the same
    /// host twice.
    #[must_use]
    pub fn are_within(self) -> bool {
        let ip = self.remote.ip();
        let is_loopback = |ip: &Ipv6Addr| {
            ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback())
        };
        is_loopback(ip) || is_loopback(self.local.ip()) || ip == self.local.ip()
    }

    /// Our port alone, for who may see everything else as something else.
    fn port_alone(self) -> Self {
        let at = |port| SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
        Self { local: at(self.local.port()), remote: at(0) }
    }

    /// Whether a half says that it is at our end.
    #[must_use]
    pub fn begin_at(self, half: &Half) -> bool {
        let ports = half.ports.load(Ordering::Relaxed);
        let mut at = half.local_addr.iter().zip(words(self.local));
        ports & 0xffff == u32::from(self.local.port())
            && at.all(|(at, word)| at.load(Ordering::Relaxed) == word)
    }

    /// Both ports, ours in the low half.
    #[must_use]
    pub fn ports(self) -> u32 {
        u32::from(self.local.port()) | u32::from(self.remote.port()) << 16
    }

    fn hash(self) -> u64 {
        let mut h = u64::from(self.ports());
        for word in words(self.local).into_iter().chain(words(self.remote)) {
            h = (h ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        h ^ h >> 32
    }

    /// Writes the ends into a half.
    pub fn write(self, half: &Half) {
        half.ports.store(self.ports(), Ordering::Relaxed);
        for (to, addr) in [(&half.local_addr, self.local), (&half.remote_addr, self.remote)] {
            for (to, word) in to.iter().zip(words(addr)) {
                to.store(word, Ordering::Relaxed);
            }
        }
    }

    /// Whether a half says these ends.
    #[must_use]
    pub fn are_of(self, half: &Half) -> bool {
        let same = |at: &[AtomicU64; 2], addr| {
            at.iter().zip(words(addr)).all(|(at, word)| at.load(Ordering::Relaxed) == word)
        };
        half.ports.load(Ordering::Relaxed) == self.ports()
            && same(&half.local_addr, self.local)
            && same(&half.remote_addr, self.remote)
    }
}

/// An offer on the board.
#[derive(Clone, Copy, Debug)]
pub struct Found<'b> {
    /// Its word.
    pub word: &'b AtomicU64,
    /// The half that is offered.
    pub half: u32,
    /// Which connection of that half is meant: the half may serve another one by the time that the
    /// word is taken.
    pub generation: u32,
    /// The half that has taken it already.
    pub taker: Option<u32>,
}

const ENOENT: i32 = 2;
/// How long others may ask the kernel who somebody is, which takes some microseconds; nanoseconds.
const ASKING_NS: u64 = 20_000_000;

/// Byte of the board's file that the process of this slot holds locked for as long as it lives, and what it has forked.
#[must_use]
pub const fn lock_of(slot: u32) -> i64 {
    LOCKS_AT + slot as i64
}

/// This process on the board.
#[derive(Debug)]
pub struct Board {
    /// The mapped file.
    pub map: Map,
    /// Descriptor of the file: memory is taken through it, and it holds our slot's lock. Changes
    /// when a child takes a slot of its own.
    fd: AtomicU32,
    path: CString,
    /// Our slot plus one; 0: none yet.
    slot: AtomicU32,
    /// See [`Slot::bound`]. Asked when we join and never again: later a filter of system calls may end the program for
    /// it. Children have it from us.
    bound: AtomicU32,
    /// Serialises the threads that take a slot: a process has one, and all its memory belongs to it.
    taking: AtomicU32,
    netlink: AtomicU32,
    /// Held while one of our threads asks by it.
    asking: AtomicU32,
    /// First number for descriptors of our own.
    pub(crate) high: i32,
    /// The user whose board it is: ours when we joined, whatever we have become since.
    pub(crate) owner: u32,
    /// Users share it.
    is_shared: bool,
    /// It is for all network namespaces.
    is_across: bool,
    /// What binds our memory. Asked when we join and never again, for the reason that [`Self::bound`] has.
    pub(crate) memory_limit: Option<MemoryLimit>,
    /// What the program was called when it joined: by that rules know it, whatever its threads call themselves later.
    name: [u8; 16],
}

impl Board {
    /// Opens (or makes) the board. `high`: descriptors of ours get at least this number.
    ///
    /// # Errors
    ///
    /// What [`MapError`] says; the process then stays on TCP.
    pub fn join(dir: Option<&str>, high: i32) -> Result<Self, MapError> {
        Self::join_as(dir, high, Access::Guest)
    }

    /// The same of a user who is not trusted, by a thread that is that user for files ([`sys::acting`]).
    ///
    /// # Errors
    ///
    /// As [`Self::join`].
    pub fn join_foreign(high: i32) -> Result<Self, MapError> {
        Self::join_as(None, high, Access::Foreign)
    }

    fn join_as(dir: Option<&str>, high: i32, access: Access) -> Result<Self, MapError> {
        let access = match (prepare(dir)?, access) {
            (Some(group), Access::Guest) => Access::Member(group),
            (Some(_), _) => return Err(MapError::OpenDirectory),
            (None, access) => access,
        };
        let (path, netns) = locate(dir)?;
        let (map, fd) = leftovers::open(&path, netns, access)?;
        // Others can see that it is there by now.
        off::tell_at_joining(&map.header().off, dir);
        let fd = out_of_the_way(fd, high);
        Ok(Self {
            map,
            fd: AtomicU32::new(fd.cast_unsigned()),
            path,
            slot: AtomicU32::new(0),
            bound: AtomicU32::new(call::only_cpu().map_or(0, |cpu| cpu + 1)),
            taking: AtomicU32::new(0),
            netlink: AtomicU32::new(u32::MAX),
            asking: AtomicU32::new(0),
            high,
            owner: call::geteuid(),
            is_shared: matches!(access, Access::Member(_)),
            is_across: netns == 0,
            memory_limit: MemoryLimit::own(),
            name: call::comm(),
        })
    }

    /// Whether users share it: see [`prepare`].
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Whether it is for all network namespaces: see [`is_across`].
    #[inline]
    #[must_use]
    pub fn is_across(&self) -> bool {
        self.is_across
    }

    /// Whether new connections are to stay on TCP: see [`switch`].
    #[inline]
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.map.header().off.load(Ordering::Relaxed) != 0
    }

    /// Whether the number of the process of a slot means the same to us as to itself.
    #[must_use]
    pub fn knows_pid_of(&self, slot: u32) -> bool {
        let theirs = self.map.slot(slot).pids.load(Ordering::Relaxed);
        // On a board of one user, who are in one namespace unless told otherwise, no answer is the same answer.
        let may_be_unknown = !self.is_across && !self.is_shared;
        theirs == pids::own() && (theirs != 0 || may_be_unknown)
    }

    /// Whether nothing there means anything any more: see [`Map::is_spoiled`].
    #[inline]
    #[must_use]
    pub fn is_spoiled(&self) -> bool {
        self.map.is_spoiled()
    }

    /// Takes back all that this process has of the board: for who has given nothing of it to anybody.
    pub(crate) fn leave(self) {
        for fd in self.own_fds() {
            if fd >= 0 {
                let _ = call::close(fd);
            }
        }
        self.map.unmap();
    }

    /// Whether the file is as large as it was made, and its head says that we serve it: who makes it shorter and then longer
    /// again has taken all of it away.
    #[must_use]
    pub fn is_served(&self) -> bool {
        let size = call::fstat(self.fd()).map_or(0, |stat| stat.st_size);
        let engine = self.map.header().engine.load(Ordering::Relaxed);
        usize::try_from(size) == Ok(FILE_BYTES) && self.slot().is_some_and(|s| engine == s + 1)
    }

    /// Whether the file has no name any more, so that nobody else will join this board.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        call::fstat(self.fd()).map_or(true, |stat| stat.st_nlink == 0)
    }

    /// The user whose board it is.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Descriptor of the file.
    #[must_use]
    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed).cast_signed()
    }

    /// Moves a descriptor of ours to a high number, where the guest does not look.
    #[must_use]
    pub fn hide(&self, fd: i32) -> i32 {
        out_of_the_way(fd, self.high)
    }

    /// Whether a descriptor is one of our own, which the guest must not close.
    #[must_use]
    pub fn owns(&self, fd: i32) -> bool {
        fd >= 0 && (fd == self.fd() || fd.cast_unsigned() == self.netlink.load(Ordering::Relaxed))
    }

    /// Moves a descriptor of ours off a number that the guest is about to use. It stays open all the time, and
    /// with it our slot's lock.
    pub fn moves(&self, fd: i32) -> bool {
        // Who has read the number of the netlink socket has his answer by then: his question would go into the stream of
        // what the guest puts there.
        let _asking = self.asks();
        let Ok(up) = call::dup_aside(fd, self.high) else { return false };
        let (from, to) = (fd.cast_unsigned(), up.cast_unsigned());
        let moved = [&self.fd, &self.netlink].into_iter().any(|word| {
            word.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        });
        if !moved {
            // Somebody else has, meanwhile.
            let _ = call::close(up);
        }
        true
    }

    /// Our own descriptors; negative ones are none.
    #[must_use]
    pub fn own_fds(&self) -> [i32; 2] {
        [self.fd(), self.netlink.load(Ordering::Relaxed).cast_signed()]
    }

    /// Our slot, if we have one.
    #[must_use]
    pub fn slot(&self) -> Option<u32> {
        self.slot.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Our slot's words.
    #[must_use]
    pub fn my_slot(&self) -> Option<&Slot> {
        self.slot().map(|s| self.map.slot(s))
    }

    /// To be called in a forked child: the slot is the parent's. The parent's descriptor stays
    /// open, so that memory we share with it is not taken for a dead process's.
    pub fn forked(&self) {
        self.slot.store(0, Ordering::Relaxed);
        // Whoever held it is not in this process.
        self.taking.store(0, Ordering::Relaxed);
        self.asking.store(0, Ordering::Relaxed);
        // The netlink socket is shared with the parent: answers would go astray.
        let old = self.netlink.swap(u32::MAX, Ordering::Relaxed);
        if old != u32::MAX {
            let _ = call::close(old.cast_signed());
        }
    }

    /// Whether the process of a slot has ended, and each child that it has forked. `false` also where we cannot know: an open
    /// file that we have inherited has the lock of whoever it comes from, and does not see it.
    pub(crate) fn has_ended(&self, slot: u32) -> bool {
        let is_other = self.slot().is_some_and(|own| own != slot) && (slot as usize) < SLOTS;
        is_other
            && !self.map.is_foreign()
            && call::byte_locked(self.fd(), lock_of(slot)) == Ok(false)
    }

    /// Our slot; takes one if we have none.
    ///
    /// # Errors
    ///
    /// [`Reason::NoSlot`] or [`Reason::NoMemory`].
    pub fn ensure_slot(&self) -> Result<u32, Reason> {
        if let Some(slot) = self.slot() {
            return Ok(slot);
        }
        let _taking = lock::lock(&self.taking).ok_or(Reason::NoSlot)?;
        if let Some(slot) = self.slot() {
            return Ok(slot);
        }
        if self.map.is_foreign() {
            // Who serves it forks nobody, and opens nothing there that need not be.
            let slot = self.take_slot(self.fd()).ok_or(Reason::NoSlot)?;
            self.slot.store(slot + 1, Ordering::Relaxed);
            return Ok(slot);
        }
        // A lock of our own needs an open file of our own: the one inherited from a parent holds
        // the parent's.
        let fd = call::open(&self.path, 0o2 | 0o2_000_000 | call::NOFOLLOW | 0o4000, 0)
            .map(|fd| out_of_the_way(fd, self.high))
            .map_err(|_| Reason::NoSlot)?;
        // Somebody may have removed the file that we have mapped, and made another: its locks say nothing of ours.
        if !is_same_file(fd, self.fd()) {
            let _ = call::close(fd);
            return Err(Reason::NoSlot);
        }
        match self.take_slot(fd) {
            Some(slot) => {
                // The inherited descriptor is kept open on purpose, see `forked`; the one that
                // this very process opened before it had a slot is kept too (two descriptors at
                // most).
                self.fd.store(fd.cast_unsigned(), Ordering::Relaxed);
                self.slot.store(slot + 1, Ordering::Relaxed);
                Ok(slot)
            }
            None => {
                let _ = call::close(fd);
                Err(Reason::NoSlot)
            }
        }
    }

    fn take_slot(&self, fd: i32) -> Option<u32> {
        let used = &self.map.header().slots_used;
        if !self.map.is_foreign() {
            // Who lives there and who is dead its user can make up as he likes.
            self.reclaim(fd);
        }
        for index in 0..SLOTS {
            let index = number(index)?;
            if call::byte_locked(fd, lock_of(index)).unwrap_or(true) {
                continue;
            }
            if self.map.commit(fd, Map::slot_offset(index), size_of::<Slot>()).is_err() {
                return None;
            }
            let slot = self.map.slot(index);
            let free = slot.state.compare_exchange(
                slot_state::FREE,
                slot_state::BUSY,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if free.is_err() {
                continue;
            }
            if call::lock_byte(fd, lock_of(index)).is_err() {
                slot.state.store(slot_state::FREE, Ordering::Release);
                continue;
            }
            self.fill(slot);
            used.fetch_max(index + 1, Ordering::Relaxed);
            slot.state.store(slot_state::LIVE, Ordering::Release);
            return Some(index);
        }
        None
    }

    /// Says in our slot who we are, for people: what the thread was that took it may be another user, and have another
    /// name.
    pub fn says_who(&self, uid: u32, name: [u8; 16]) {
        if let Some(slot) = self.my_slot() {
            slot.uid.store(uid, Ordering::Relaxed);
            name_slot(slot, name);
        }
    }

    fn fill(&self, slot: &Slot) {
        slot.generation.fetch_add(1, Ordering::Relaxed);
        slot.pid.store(call::getpid(), Ordering::Relaxed);
        slot.uid.store(call::geteuid(), Ordering::Relaxed);
        slot.pids.store(pids::own(), Ordering::Relaxed);
        slot.bound.store(self.bound.load(Ordering::Relaxed), Ordering::Relaxed);
        slot.memory_group
            .store(self.memory_limit.map_or(0, |limit| limit.group), Ordering::Relaxed);
        slot.cpu.store(UNKNOWN, Ordering::Relaxed);
        slot.since.store(call::wall_ns() / 1_000_000_000, Ordering::Relaxed);
        name_slot(slot, self.name);
        let t = &slot.totals;
        for counter in [
            &slot.bytes_owned,
            &slot.bytes_used,
            &slot.attached,
            &slot.attached_clients,
            &slot.closed,
            &t.bytes_tx,
            &t.bytes_rx,
            &t.bells,
            &t.sleeps,
            &t.spins,
            &t.stalls,
            &t.sends,
            &t.receives,
        ] {
            counter.store(0, Ordering::Relaxed);
        }
        for word in slot.reasons.iter().chain(&slot.links) {
            word.store(0, Ordering::Relaxed);
        }
        for line in &slot.waiters {
            // Awake, but the count goes on: peers remember for which sleep they rang, and must not
            // take a sleep of ours for one of the last owner's.
            sys::wait::awake(&line.word);
        }
    }

    /// Whether the processes of our control group may take so much more memory, of which this one has `own`: together no
    /// more than [`share_of_group`], and for what is large, no more than half of that.
    pub(crate) fn group_has_room(&self, own: usize, bytes: usize, is_large: bool) -> bool {
        let Some(limit) = self.memory_limit else { return true };
        let share = share_of_group(limit.bytes);
        let most = if is_large { share / 2 } else { share };
        let used = self.map.header().slots_used.load(Ordering::Relaxed).min(1024);
        let others = (0..used).filter(|slot| self.slot() != Some(*slot)).map(|index| {
            let slot = self.map.slot(index);
            let is_one = slot.memory_group.load(Ordering::Relaxed) == limit.group
                && slot.state.load(Ordering::Relaxed) != slot_state::FREE;
            if is_one { slot.bytes_owned.load(Ordering::Relaxed) } else { 0 }
        });
        let all = others.fold(own as u64, u64::saturating_add);
        all.saturating_add(bytes as u64) <= most
    }

    /// Takes a free extent for `slot`, without pages yet. `kind`: 0 or [`OWNER_HALVES`]. `is_ours`: whether we have one
    /// already, whatever its word says; the kernel gives us its lock as often as we ask.
    pub(crate) fn take_extent(
        &self,
        slot: u32,
        kind: u32,
        is_ours: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let used = &self.map.header().extents_used;
        let all = DATA_AT / EXTENT_BYTES..EXTENTS;
        // Of halves there may be some that nobody has, and that have pages.
        let free = [kind, 0].into_iter().skip(usize::from(kind == 0));
        for (free, extent) in free.flat_map(|free| all.clone().map(move |extent| (free, extent))) {
            let word = self.map.owner(extent);
            if word.load(Ordering::Relaxed) == free
                && !is_ours(extent)
                && word
                    .compare_exchange(free, (slot + 1) | kind, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                let byte = EXTENT_LOCKS_AT + i64::try_from(extent).ok()?;
                if call::lock_byte(self.fd(), byte).is_err() {
                    // Somebody lives there: the word was overwritten.
                    continue;
                }
                used.fetch_max(number(extent + 1)?, Ordering::Relaxed);
                return Some(extent);
            }
        }
        None
    }

    /// Whether a process takes connections to other hosts. One that was killed may still be named:
    /// then its door is shut.
    #[inline]
    #[must_use]
    pub fn has_engine(&self) -> bool {
        self.engine_slot().is_some()
    }

    /// The slot of the process that takes connections to other hosts.
    #[must_use]
    pub fn engine_slot(&self) -> Option<u32> {
        // Acquire: its slot, before the word that names it. Pairs with `serve`.
        let slot = self.map.header().engine.load(Ordering::Acquire).checked_sub(1)?;
        let lives = (slot as usize) < SLOTS
            && self.map.slot(slot).state.load(Ordering::Relaxed) == slot_state::LIVE;
        lives.then_some(slot)
    }

    /// The name of the socket option by which sockets ask for the TCP option, if there is an engine that
    /// has it.
    #[inline]
    #[must_use]
    pub fn engine_option(&self) -> Option<i32> {
        self.last_engine_option().filter(|_| self.has_engine())
    }

    /// The same of an engine that may have gone since, for sockets that were promised something in its name.
    #[inline]
    #[must_use]
    pub fn last_engine_option(&self) -> Option<i32> {
        let word = self.map.header().engine_option.load(Ordering::Relaxed);
        let name = (word & !ENGINE_MEETS).cast_signed();
        (name > 0).then_some(name)
    }

    /// Whether the engine finds out by itself which connections lead to guests of another one: those to
    /// other hosts are handed over to it although their peers have not announced SMC.
    #[inline]
    #[must_use]
    pub fn engine_meets(&self) -> bool {
        let word = self.map.header().engine_option.load(Ordering::Relaxed);
        word & ENGINE_MEETS != 0 && self.has_engine()
    }

    /// Whether the engine takes no new connections, because it is to end.
    #[inline]
    #[must_use]
    pub fn engine_drains(&self) -> bool {
        self.map.header().engine_drains.load(Ordering::Relaxed) != 0
    }

    /// Says that we take no new connections, or do again.
    pub fn drains(&self, on: bool) {
        self.map.header().engine_drains.store(u32::from(on), Ordering::Relaxed);
    }

    /// The way to the engine for who cannot come to its path.
    #[must_use]
    pub fn engine_side(&self) -> Option<Side> {
        let header = self.map.header();
        let number = header.engine_side.load(Ordering::Relaxed).checked_sub(1)?;
        let key = std::array::from_fn(|i| header.engine_key[i].load(Ordering::Relaxed));
        self.has_engine().then_some(Side { number, key })
    }

    /// The ends of a connection to another host, as its guest has them, by the `SO_COOKIE` of the engine's end of the
    /// stand-in. Looks at all halves.
    #[must_use]
    pub fn far_ends(&self, cookie: u64) -> Option<Ends> {
        let engine = self.engine_slot()?;
        let is_it = |half: &Half| {
            half.slot.load(Ordering::Relaxed) == engine
                && half.cookie.load(Ordering::Relaxed) == cookie
        };
        let (_, half) = halves(&self.map, self.fd()).find(|(_, half)| is_it(half))?;
        Some(Ends::read(half).mirrored())
    }

    /// Says that we take connections to other hosts. `option`: see [`Self::engine_option`]; `meets`: see
    /// [`Self::engine_meets`]; `side`: see [`Self::engine_side`].
    ///
    /// # Errors
    ///
    /// [`Reason::NoSlot`] or [`Reason::NoMemory`].
    pub fn serve(&self, option: Option<i32>, meets: bool, side: Side) -> Result<(), Reason> {
        let slot = self.ensure_slot()?;
        let header = self.map.header();
        for (to, word) in header.engine_key.iter().zip(side.key) {
            to.store(word, Ordering::Relaxed);
        }
        header.engine_side.store(side.number + 1, Ordering::Relaxed);
        let option = option.unwrap_or(0).cast_unsigned() | if meets { ENGINE_MEETS } else { 0 };
        self.forget_destinations();
        // As the one before us may have said.
        self.drains(false);
        header.engine_option.store(option, Ordering::Relaxed);
        header.engine.store(slot + 1, Ordering::Release);
        Ok(())
    }

    /// Takes [`Self::serve`] back, unless another process has taken our place.
    pub fn serve_no_more(&self) {
        if let Some(slot) = self.slot() {
            let engine = &self.map.header().engine;
            let relaxed = Ordering::Relaxed;
            if engine.compare_exchange(slot + 1, 0, relaxed, relaxed).is_ok() {
                // An engine that comes after us may not know the word, and leave it as it is.
                self.drains(false);
            }
        }
    }

    /// Tells the process of a client that we have taken its offer, and that there is something to see for it. What we
    /// send on it comes after this.
    pub fn has_taken(&self, client: &Half) {
        let slot = client.slot.load(Ordering::Relaxed);
        if (slot as usize) < SLOTS {
            // Release: the offer's word. Pairs with `World::offer_moves`.
            self.map.slot(slot).taken.word.fetch_add(1, Ordering::Release);
        }
    }

    /// Says that we (or what we were forked from) listen on `port`.
    pub fn listen(&self, port: u16) -> Result<(), Reason> {
        let slot = self.ensure_slot()?;
        let word = self.map.port(port);
        if !self.listening(port) {
            word.store(slot + 1, Ordering::Release);
        }
        Ok(())
    }

    /// Whether somebody under Shunt listens on `port`.
    #[must_use]
    pub fn listening(&self, port: u16) -> bool {
        let word = self.map.port(port).load(Ordering::Acquire);
        let slot = listener_slot(word);
        slot.is_some_and(|s| self.map.slot(s).state.load(Ordering::Acquire) == slot_state::LIVE)
    }

    /// Says, before a client's first byte, that connections to `port` are offered.
    pub fn note_offers(&self, port: u16) {
        let word = self.map.port(port);
        if word.load(Ordering::Relaxed) & PORT_OFFERED == 0 {
            word.fetch_or(PORT_OFFERED, Ordering::Release);
        }
    }

    /// The same of a connection whose server may have another port.
    pub fn note_routed(&self) {
        let word = &self.map.header().routed;
        if word.load(Ordering::Relaxed) == 0 {
            word.store(1, Ordering::Release);
        }
    }

    /// Whether anybody has offered a connection to `port` since there is a listener: who was sent bytes by a
    /// client need not look for its offer where not.
    #[must_use]
    pub fn has_offers(&self, port: u16) -> bool {
        self.map.port(port).load(Ordering::Acquire) & PORT_OFFERED != 0 || self.routes()
    }

    fn routes(&self) -> bool {
        self.is_across && self.map.header().routed.load(Ordering::Acquire) != 0
    }

    /// CPU on which the process that listens on `port` was seen last; [`UNKNOWN`]: it never was.
    #[must_use]
    pub fn listener_cpu(&self, port: u16) -> u32 {
        let word = self.map.port(port).load(Ordering::Relaxed);
        let Some(slot) = listener_slot(word) else { return UNKNOWN };
        match self.map.slot(slot).cpu.load(Ordering::Relaxed) {
            // It has no event loop, but what it was forked for: workers of a process that is bound are so too.
            UNKNOWN => self.bound_to(slot).unwrap_or(UNKNOWN),
            cpu => cpu,
        }
    }

    /// The one CPU on which the process that listens on `port` may run.
    #[must_use]
    pub fn listener_bound_to(&self, port: u16) -> Option<u32> {
        self.bound_to(listener_slot(self.map.port(port).load(Ordering::Relaxed))?)
    }

    /// The one CPU on which the process of a slot may run. Other processes name slots, so it is looked at whether there
    /// is such a one.
    #[must_use]
    pub fn bound_to(&self, slot: u32) -> Option<u32> {
        let slot = Some(slot).filter(|slot| (*slot as usize) < SLOTS)?;
        self.map.slot(slot).bound.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Puts an offer on the board: our half, under the ends as we see them, or, where they are
    /// [`ROUTED`](half_flags::ROUTED), under our port alone. Answers the number of the word, to be asked by
    /// [`offer::taken`].
    ///
    /// # Errors
    ///
    /// [`Reason::OffersFull`].
    pub fn offer(&self, half: u32, ends: Ends, is_routed: bool) -> Result<u64, Reason> {
        let hash = if is_routed { ends.port_alone() } else { ends }.hash();
        let (line, first) = (self.map.offers(hash), Map::offer_index(hash));
        let h = self.map.half_known(half);
        let note =
            |index: u64| h.offer_word.store(u32::try_from(index).unwrap_or(0), Ordering::Relaxed);
        for (way, word) in line.iter().enumerate() {
            if word.load(Ordering::Relaxed) != 0 {
                continue;
            }
            note(first + way as u64);
            if offer::publish(word, 0, half) {
                return Ok(first + way as u64);
            }
        }
        // A word may have outlived its half: the owner was killed, or the half serves another
        // connection now.
        for (way, word) in line.iter().enumerate() {
            let old = word.load(Ordering::Acquire);
            if !self.stale(old) {
                continue;
            }
            note(first + way as u64);
            if offer::publish(word, old, half) {
                return Ok(first + way as u64);
            }
        }
        Err(Reason::OffersFull)
    }

    fn stale(&self, word: u64) -> bool {
        let Some((half, _)) = offer::split(word) else { return true };
        self.map.half(half).is_none_or(|h| {
            let state = h.state.load(Ordering::Acquire);
            state != half_state::OFFERED && state != half_state::ATTACHED
        })
    }

    /// The offers that may be of the peer of a connection whose ends *we* see as `ends`: those that say the same ends, and
    /// then those whose clients may see both ends at other addresses, and ours at another port. `fd`: our socket, whose
    /// namespace is asked for where it matters.
    pub fn offers_to(&self, ends: Ends, fd: i32) -> impl Iterator<Item = Found<'_>> {
        let theirs = ends.mirrored();
        // Other namespaces have the same addresses for their own hosts.
        let within = (self.is_across && ends.are_within()).then(|| netns_of(fd));
        let is_there =
            move |h: &Half| within.is_none_or(|at| at == Some(h.netns.load(Ordering::Relaxed)));
        let is_routed = |h: &Half| h.flags.load(Ordering::Relaxed) & half_flags::ROUTED != 0;
        let same = self
            .offers_under(theirs.hash(), move |h| theirs.are_of(h) && !is_routed(h) && is_there(h));
        let routed = self.routes().then(|| {
            self.offers_under(theirs.port_alone().hash(), move |h| {
                let may_be = match within {
                    Some(_) => theirs.are_of(h) && is_there(h),
                    None => h.ports.load(Ordering::Relaxed) & 0xffff == theirs.ports() & 0xffff,
                };
                may_be && is_routed(h)
            })
        });
        same.chain(routed.into_iter().flatten())
    }

    /// The offers under a hash for whose halves this holds.
    fn offers_under(
        &self,
        hash: u64,
        is_it: impl Fn(&Half) -> bool,
    ) -> impl Iterator<Item = Found<'_>> {
        let first = Map::offer_index(hash);
        self.map.offers(hash).iter().zip(first..).filter_map(move |(word, index)| {
            let (half, taker) = offer::split(word.load(Ordering::Acquire))?;
            let h = self.map.half(half)?;
            // Before all else of the half. Acquire: the half was free before it got this number, so
            // what is read below is of this number or of a later one. Pairs with `Arena::half`.
            let generation = h.generation.load(Ordering::Acquire);
            let state = h.state.load(Ordering::Acquire);
            let open = state == half_state::OFFERED || state == half_state::ATTACHED;
            // A word may have outlived its connection, and its half serve another one by now.
            let current = u64::from(h.offer_word.load(Ordering::Relaxed)) == index;
            (open && current && is_it(h)).then_some(Found { word, half, generation, taker })
        })
    }

    /// The netlink socket, opened once per process.
    ///
    /// # Errors
    ///
    /// [`Reason::NoDiag`].
    pub fn netlink(&self) -> Result<i32, Reason> {
        let fd = self.netlink.load(Ordering::Relaxed);
        if fd != u32::MAX {
            return Ok(fd.cast_signed());
        }
        let fd = diag::open().map_err(|_| Reason::NoDiag)?;
        let fd = out_of_the_way(fd, self.high).cast_unsigned();
        match self.netlink.compare_exchange(u32::MAX, fd, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Ok(fd.cast_signed()),
            Err(other) => {
                let _ = call::close(fd.cast_signed());
                Ok(other.cast_signed())
            }
        }
    }

    /// The kernel's word on the socket at `local` whose peer is `remote`; `None`: there is none.
    ///
    /// # Errors
    ///
    /// [`Reason::NoDiag`].
    pub fn who_is(
        &self,
        local: SocketAddrV6,
        remote: SocketAddrV6,
    ) -> Result<Option<diag::Peer>, Reason> {
        for _ in 0..2 {
            let asking = self.asks();
            let netlink = match asking {
                Some(_) => self.netlink()?,
                None => diag::open().map_err(|_| Reason::NoDiag)?,
            };
            let found = diag::peer(netlink, local, remote);
            if asking.is_none() {
                let _ = call::close(netlink);
            }
            match found {
                Ok(found) => return Ok(Some(found)),
                Err(ENOENT) => return Ok(None),
                // Somebody closed our descriptor, or made another one of its number.
                Err(_) if asking.is_some() => self.netlink_gone(netlink),
                Err(_) => {}
            }
        }
        Err(Reason::NoDiag)
    }

    /// Frees what this thread holds since it was asking and has left that by a jump. To be called where it does not ask.
    pub fn free_left_locks(&self) {
        lock::free_if_left(&self.asking);
    }

    /// The netlink socket, to ourselves: an answer goes to whoever reads first. `None`: not to be had, because we have
    /// interrupted whoever holds it, or another thread has left it by a jump out of a handler.
    fn asks(&self) -> Option<lock::Held<'_>> {
        let deadline = call::now_ns() + ASKING_NS;
        loop {
            let held = lock::try_lock(&self.asking);
            let owner = self.asking.load(Ordering::Relaxed);
            if held.is_some() || call::now_ns() > deadline {
                return held;
            }
            if owner == lock::tid() {
                return lock::take_if_left(&self.asking);
            }
            call::sched_yield();
        }
    }

    /// Forgets the netlink socket `fd`: somebody closed it behind our back. Another one meanwhile stays.
    pub fn netlink_gone(&self, fd: i32) {
        let fd = fd.cast_unsigned();
        let _ = self.netlink.compare_exchange(fd, u32::MAX, Ordering::Relaxed, Ordering::Relaxed);
    }
}

fn name_slot(slot: &Slot, name: [u8; 16]) {
    for (to, from) in slot.comm.iter().zip(name.chunks_exact(8)) {
        let mut word = [0; 8];
        word.copy_from_slice(from);
        to.store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
}

/// The process that the word of a port names; words may be overwritten by anybody who takes part.
fn listener_slot(word: u32) -> Option<u32> {
    (word & !PORT_OFFERED).checked_sub(1).filter(|slot| (*slot as usize) < SLOTS)
}

fn is_same_file(one: i32, other: i32) -> bool {
    let of = |fd| call::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    of(one).is_ok_and(|this| of(other) == Ok(this))
}

/// Moves a descriptor of ours to a high number, where the guest does not look.
fn out_of_the_way(fd: i32, high: i32) -> i32 {
    match call::dup_above(fd, high) {
        Ok(up) => {
            let _ = call::close(fd);
            up
        }
        Err(_) => fd,
    }
}

#[cfg(test)]
mod tests;
