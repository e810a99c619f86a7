//! The shared file in our address space.
//!
//! The whole file is mapped once, read-only but for the board and the slots; the extents that this
//! process owns are made writable in place, so that an offset in the file is the same pointer for
//! reading and for writing. Nothing here hands out a Rust reference to bytes that another process
//! may write: only atomics, and raw pointers to ring bytes that [`crate::ring`] copies in and out.

use std::ffi::{CStr, CString};
use std::io;

use crate::abi::{
    BUCKET_WAYS, BUCKETS, DATA_AT, DESTINATION_LINES, DESTINATION_WAYS, DESTINATIONS_AT,
    EXTENT_BYTES, EXTENTS, FILE_BYTES, HALF_BYTES, Half, Header, Loc, MAGIC, OFFERS_AT,
    OWNER_HALVES, OWNERS_AT, PORTS_AT, SLOTS, SLOTS_AT, Slot, VERSION,
};
use crate::foreign::{self, Foreign};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{cache, call, pages, ring};

/// The mapped file. Never unmapped while the process lives.
#[derive(Clone, Copy, Debug)]
pub struct Map {
    base: *mut u8,
    foreign: Option<&'static Foreign>,
}

// SAFETY: the mapping is for the life of the process, and everything reached through it is atomic
// or copied by `ring` under its own rules.
unsafe impl Send for Map {}
// SAFETY: the same.
unsafe impl Sync for Map {}

/// The bytes of a ring: where they are and how many. Only a [`Map`] makes it, of a place in the file.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    pub(crate) start: *mut u8,
    pub(crate) bytes: usize,
}

impl Ring {
    /// The piece of the ring at `at`, for a system call or a copy that fills it, or takes what is there.
    ///
    /// # Panics
    ///
    /// If the piece does not lie in the ring.
    #[must_use]
    pub fn piece(&self, at: usize, n: usize) -> *mut [u8] {
        assert!(at <= self.bytes && n <= self.bytes - at);
        std::ptr::slice_from_raw_parts_mut(self.start.wrapping_add(at), n)
    }

    /// Pushes `n` bytes from offset `at` on towards their reader: see [`cache::push`].
    #[inline]
    pub fn push(self, at: u64, n: usize) {
        for (at, n) in ring::pieces(at, n.min(self.bytes), self.bytes) {
            cache::push(self.start.wrapping_add(at), n);
        }
    }

    /// Where the byte at offset `at` lies.
    #[inline]
    #[must_use]
    pub fn place(self, at: u64) -> *const u8 {
        let [(at, _), _] = ring::pieces(at, 1, self.bytes);
        self.start.wrapping_add(at)
    }
}

/// How to open a board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// As a guest: make it if it is absent, take part.
    Guest,
    /// The same, of a board that the users of this group share, in a directory that nobody else may enter.
    Member(u32),
    /// The same, of a user who is not trusted: see [`foreign`].
    Foreign,
    /// As a tool that only looks.
    Look,
}

/// Why there is no board.
#[derive(Debug)]
#[non_exhaustive]
pub enum MapError {
    /// A system call failed: what, and its errno.
    System(&'static str, i32),
    /// The file belongs to somebody else or is open to others.
    NotOurs,
    /// The directory does, and is not one that root has opened to a group either.
    OpenDirectory,
    /// What is to be the directory is something else.
    NotADirectory,
    /// The file was made by another version of Shunt.
    Version(u32),
    /// The file is not a board.
    NotABoard,
    /// The file is not a board yet.
    Incomplete,
    /// This program may not make a file as large as a board, which is sparse.
    FileLimit,
    /// This program may not have as many addresses as a board takes, beside those that it may need itself.
    AddressLimit,
    /// Its user is not trusted, and what he may do to the file cannot be guarded against here.
    Unguarded,
}

impl std::fmt::Display for MapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System(what, errno) => {
                write!(f, "{what}: {}", io::Error::from_raw_os_error(*errno))
            }
            // It may be any file or directory of the system, so nobody is told to remove it or to change its mode.
            Self::OpenDirectory => f.write_str(
                "the directory belongs to another user or is open to others: name another one (dir, SHUNT_DIR), which is \
                 yours and closed to others (mode 700), or which `shunt share` has made for a group",
            ),
            Self::NotADirectory => {
                f.write_str("this is not a directory: name another one (dir, SHUNT_DIR)")
            }
            Self::NotOurs => f.write_str(
                "the file of the board belongs to another user or is open to others: end the programs that use it and \
                 remove that file, or name another directory (dir, SHUNT_DIR)",
            ),
            Self::Version(v) => write!(
                f,
                "the board was made by another version of Shunt (layout {v}, ours is {VERSION}): \
                 end its programs, then remove it"
            ),
            Self::NotABoard => f.write_str("the file is not a board of Shunt"),
            Self::Incomplete => f.write_str(
                "the file of the board is not complete: was the file system full when it was made? The next program completes \
                 it if there is room",
            ),
            Self::Unguarded => f.write_str("its memory cannot be guarded"),
            Self::AddressLimit => f.write_str(
                "the limit of address space (RLIMIT_AS, ulimit -v) cannot be put up by the 16 GiB of addresses that the \
                 board takes: raise its hard limit by them, or take it away",
            ),
            Self::FileLimit => f.write_str(
                "the limit of file sizes (RLIMIT_FSIZE, ulimit -f) is too low for this program to make the board: raise \
                 it, or start another program under Shunt first",
            ),
        }
    }
}

impl std::error::Error for MapError {}

/// [`FILE_BYTES`], as the kernel counts sizes.
#[expect(clippy::cast_possible_wrap, reason = "16 GiB")]
const SIZE: i64 = FILE_BYTES as i64;

/// Whether a file is the kernel's alone: pages of others (FUSE) come when somebody else likes.
fn is_in_memory(fd: i32) -> bool {
    // SAFETY: all zeros is a valid answer.
    let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place.
    let asked = unsafe { libc::fstatfs(fd, &raw mut facts) };
    asked == 0 && facts.f_type == libc::TMPFS_MAGIC
}

/// Whether `RLIMIT_FSIZE` forbids this program a file of so many bytes.
fn is_too_large_a_file(bytes: usize) -> bool {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a valid place.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur < bytes as u64
}

/// Opens a board that the users of a group share. Who makes it gives it its name only when they all may open it: one who
/// came a moment too early would be refused.
fn open_shared(path: &CStr, flags: i32, group: u32) -> Result<i32, i32> {
    let mut left = SHARED_TRIES;
    loop {
        left -= 1;
        match call::open(path, flags, 0) {
            Err(libc::ENOENT) if left > 0 => {}
            opened => return opened,
        }
        // Nobody else has this name, in whatever namespace of processes they are.
        let now = call::now_ns();
        let mut draft = path.to_bytes().to_vec();
        draft.extend(format!("-{}-{now:x}", call::getpid()).into_bytes());
        let draft = CString::new(draft).map_err(|_| libc::EINVAL)?;
        let fd = call::open(&draft, flags | libc::O_CREAT | libc::O_EXCL, 0o600)?;
        let made = call::fchown(fd, u32::MAX, group)
            .and_then(|()| call::fchmod(fd, SHARED_MODE))
            .and_then(|()| call::rename_new(&draft, path));
        let _ = call::close(fd);
        if let Err(errno) = made {
            let _ = call::unlink(&draft);
            if errno != libc::EEXIST {
                return Err(errno);
            }
        }
    }
}

/// The mode of a board that users share.
const SHARED_MODE: u32 = 0o660;
/// How often who finds no board makes one: each time somebody may have taken away what was there.
const SHARED_TRIES: u32 = 4;

impl Map {
    /// The addresses of the mapping.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<usize> {
        let start = self.base.addr();
        start..start + FILE_BYTES
    }

    /// Opens the board file `path`, making it if `access` says so; answers the mapping and the
    /// descriptor, which the caller keeps for [`Self::commit`] and for slot locks.
    ///
    /// # Errors
    ///
    /// What [`MapError`] says. Nothing is left open.
    pub fn open(path: &CStr, netns: u64, access: Access) -> Result<(Self, i32), MapError> {
        let flags = libc::O_CLOEXEC | libc::O_NOFOLLOW;
        let write = libc::PROT_READ | libc::PROT_WRITE;
        let (opened, prot) = match access {
            Access::Guest => (call::open(path, flags | libc::O_RDWR | libc::O_CREAT, 0o600), write),
            // Whoever has made it may have a lease on it, whose end would be waited for.
            Access::Member(group) => {
                (open_shared(path, flags | libc::O_RDWR | libc::O_NONBLOCK, group), write)
            }
            // Its owner may have a lease on it, whose end would be waited for.
            Access::Foreign => {
                let flags = flags | libc::O_RDWR | libc::O_CREAT | libc::O_NONBLOCK;
                (call::open(path, flags, 0o600), write)
            }
            Access::Look => {
                let flags = flags | libc::O_RDONLY | libc::O_NONBLOCK;
                (call::open(path, flags, 0), libc::PROT_READ)
            }
        };
        let fd = opened.map_err(|e| MapError::System("open the board", e))?;
        match Self::open_fd(fd, netns, access, prot) {
            Ok(map) => Ok((map, fd)),
            Err(e) => {
                let _ = call::close(fd);
                Err(e)
            }
        }
    }

    fn open_fd(fd: i32, netns: u64, access: Access, prot: i32) -> Result<Self, MapError> {
        let stat = call::fstat(fd).map_err(|e| MapError::System("stat the board", e))?;
        let uid = call::geteuid();
        let takes_part = access != Access::Look;
        let (is_ours, closed) = match access {
            Access::Guest | Access::Foreign => (stat.st_uid == uid, 0o077),
            // Whichever of those users has made it; and no other file that has got a second name there.
            Access::Member(group) => {
                let mode = stat.st_mode & 0o7777;
                (stat.st_gid == group && mode == SHARED_MODE && stat.st_nlink <= 1, 0o007)
            }
            Access::Look => (true, 0o007),
        };
        if !is_ours || stat.st_mode & closed != 0 || stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return Err(MapError::NotOurs);
        }
        if access == Access::Foreign && !is_in_memory(fd) {
            return Err(MapError::Unguarded);
        }
        if takes_part {
            if stat.st_size != SIZE {
                // Past the limit the kernel does not only refuse: its signal would end the program.
                if is_too_large_a_file(FILE_BYTES) {
                    return Err(MapError::FileLimit);
                }
                // Idempotent, so that two makers do not disturb each other.
                call::ftruncate(fd, SIZE).map_err(|e| MapError::System("size the board", e))?;
            }
            // The tables that anybody may write: pages now, so that no write can find the file
            // system full later (that would be SIGBUS).
            call::fallocate(fd, 0, OWNERS_AT + EXTENTS * 4)
                .map_err(|e| MapError::System("reserve the board", e))?;
        } else if stat.st_size != SIZE {
            let is_new = stat.st_size == 0;
            return Err(if is_new { MapError::Incomplete } else { MapError::NotABoard });
        }
        let base = call::mmap_shared(fd, FILE_BYTES, libc::PROT_READ)
            .map_err(|e| MapError::System("map the board", e))?;
        let mut map = Self { base, foreign: None };
        if access == Access::Foreign {
            // Before the first look.
            map.foreign = foreign::watch(&map.range());
            if map.foreign.is_none() {
                map.unmap();
                return Err(MapError::Unguarded);
            }
        }
        if access == Access::Look {
            // A tool should outlive whoever cuts the file it reads; it is no reason not to look that it may not.
            map.foreign = foreign::watch(&map.range());
        }
        if prot & libc::PROT_WRITE != 0 {
            if let Err(e) = call::mprotect(base, DATA_AT, prot) {
                map.unmap();
                return Err(MapError::System("map the board", e));
            }
            call::dontdump(base, FILE_BYTES);
        }
        let header = map.header();
        if takes_part && header.magic.load(Ordering::Acquire) == 0 {
            header.version.store(VERSION, Ordering::Relaxed);
            header.uid.store(uid, Ordering::Relaxed);
            header.netns.store(netns, Ordering::Relaxed);
            #[expect(clippy::cast_possible_truncation, reason = "16")]
            let first = (DATA_AT / EXTENT_BYTES) as u32;
            let _ = header.extents_used.compare_exchange(
                0,
                first,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            // Release: the fields before the word that says they are there.
            header.magic.store(MAGIC, Ordering::Release);
        }
        let (magic, version) =
            (header.magic.load(Ordering::Acquire), header.version.load(Ordering::Relaxed));
        let wrong = match (magic, version) {
            (MAGIC, VERSION) => return Ok(map),
            (MAGIC, version) => MapError::Version(version),
            (0, _) => MapError::Incomplete,
            _ => MapError::NotABoard,
        };
        map.unmap();
        Err(wrong)
    }

    /// Takes the mapping away. It is only for who has nothing of it any more.
    pub fn unmap(self) {
        if let Some(foreign) = self.foreign {
            foreign::unwatch(foreign);
        }
        call::munmap(self.base, FILE_BYTES);
    }

    /// Whether the file, of a user who is [not trusted](Access::Foreign) or at which we only [look](Access::Look), has lost
    /// pages: nothing there means anything.
    #[inline]
    #[must_use]
    pub fn is_spoiled(&self) -> bool {
        self.foreign.is_some_and(Foreign::is_spoiled)
    }

    /// Whether its user is not trusted, or we only look.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.foreign.is_some()
    }

    /// Makes `bytes` at `offset` ours to write: takes pages for them (so that no later write can
    /// meet a full file system) and opens them for writing.
    ///
    /// # Errors
    ///
    /// The errno; `ENOSPC` when the file system of the board is full.
    pub fn commit(&self, fd: i32, offset: usize, bytes: usize) -> Result<(), i32> {
        assert!(offset + bytes <= FILE_BYTES && offset >= SLOTS_AT);
        call::fallocate(fd, offset, bytes)?;
        if offset >= DATA_AT {
            // Where pages are larger than a block, its neighbours are ours as well: they are of the same extent.
            let (offset, bytes) = pages::around(offset, bytes);
            // SAFETY: inside the mapping, as asserted; it ends with a page.
            let start = unsafe { self.base.add(offset) };
            call::mprotect(start, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
            call::populate(start, bytes);
        }
        Ok(())
    }

    /// Opens the page of a half of another process for writing (`false`: for reading only again).
    /// Only for what a peer that does not answer must have done on its behalf, under its lock.
    pub fn lend(&self, index: u32, write: bool) -> bool {
        self.open_pages(index as usize * HALF_BYTES, HALF_BYTES, write)
    }

    /// The same of an extent of halves whose owner is dead, for who takes it off the board.
    pub fn open_extent(&self, extent: usize, write: bool) -> bool {
        self.open_pages(extent * EXTENT_BYTES, EXTENT_BYTES, write)
    }

    /// Opens the ring of a process that we were forked from for writing: pages that it has [taken](Self::commit) after the
    /// fork it has opened for itself alone.
    pub fn open_ring(&self, loc: Loc) -> bool {
        self.open_pages(loc.offset(), loc.bytes(), true)
    }

    fn open_pages(&self, offset: usize, bytes: usize, write: bool) -> bool {
        let (offset, bytes) = pages::around(offset, bytes);
        if offset < DATA_AT || offset + bytes > FILE_BYTES {
            return false;
        }
        // SAFETY: inside the mapping.
        let start = unsafe { self.base.add(offset) };
        let prot = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        call::mprotect(start, bytes, prot).is_ok()
    }

    /// Gives the pages of `bytes` at `offset` back to the system; they read as zero from now on. Both are whole pages.
    pub fn release(&self, fd: i32, offset: usize, bytes: usize) {
        assert!(offset + bytes <= FILE_BYTES && offset >= DATA_AT);
        debug_assert!(pages::around(offset, bytes) == (offset, bytes));
        let _ = call::punch(fd, offset, bytes);
        // SAFETY: inside the mapping, as asserted.
        let start = unsafe { self.base.add(offset) };
        let _ = call::mprotect(start, bytes, libc::PROT_READ);
    }

    fn at<T>(&self, offset: usize) -> &T {
        debug_assert!(
            offset + size_of::<T>() <= FILE_BYTES && offset.is_multiple_of(align_of::<T>())
        );
        // SAFETY: inside the mapping, aligned, made of atomics only (private callers below), and
        // mapped for the life of the process.
        unsafe { &*self.base.add(offset).cast::<T>() }
    }

    /// The head of the file.
    #[must_use]
    pub fn header(&self) -> &Header {
        self.at(0)
    }

    /// The listener word of a port.
    #[must_use]
    pub fn port(&self, port: u16) -> &AtomicU32 {
        self.at(PORTS_AT + usize::from(port) * 4)
    }

    /// The cache line of offers that a hash leads to.
    #[must_use]
    pub fn offers(&self, hash: u64) -> &[AtomicU64; BUCKET_WAYS] {
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let line = hash as usize & (BUCKETS / BUCKET_WAYS - 1);
        self.at(OFFERS_AT + line * BUCKET_WAYS * 8)
    }

    /// A line of the table of destinations; a number that cannot be is taken modulo the table.
    #[must_use]
    pub fn destinations(&self, line: usize) -> &[AtomicU64; DESTINATION_WAYS] {
        let line = line & (DESTINATION_LINES - 1);
        self.at(DESTINATIONS_AT + line * DESTINATION_WAYS * 8)
    }

    /// Number of the first word that a hash leads to.
    #[must_use]
    pub const fn offer_index(hash: u64) -> u64 {
        (hash & (BUCKETS / BUCKET_WAYS - 1) as u64) * BUCKET_WAYS as u64
    }

    /// An offer word by its number; a number that cannot be is taken modulo the table.
    #[must_use]
    pub fn offer_word(&self, index: u64) -> &AtomicU64 {
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        self.at(OFFERS_AT + (index as usize & (BUCKETS - 1)) * 8)
    }

    /// Copies bytes into a ring of our own, from offset `at` on.
    ///
    /// # Panics
    ///
    /// If there are more than the ring holds.
    pub fn copy_in(&self, loc: Loc, at: u64, from: &[u8]) {
        assert!(from.len() <= loc.bytes());
        let start = self.ring(loc).start;
        let [(a, x), (b, y)] = ring::pieces(at, from.len(), loc.bytes());
        // SAFETY: `pieces` stays inside of the ring and `from` has `x + y` bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), start.add(a), x) };
        // SAFETY: the same.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().add(x), start.add(b), y) };
    }

    /// As [`Self::copy_in`], and goes on with a CRC-32 over the bytes, from register to register, if that can be done
    /// meanwhile ([`crate::crc`]) and they do not wrap. `None`: nothing was copied.
    ///
    /// # Panics
    ///
    /// As [`Self::copy_in`].
    #[must_use]
    pub fn copy_in_summed(&self, loc: Loc, at: u64, from: &[u8], register: u32) -> Option<u32> {
        assert!(from.len() <= loc.bytes());
        let [(start, n), _] = ring::pieces(at, from.len(), loc.bytes());
        if n != from.len() {
            return None;
        }
        let to = self.ring(loc).start.wrapping_add(start);
        // SAFETY: `pieces` stays inside of the ring, which is no memory of `from`; whoever reads or writes there
        // meanwhile is another process, and of ours no reference is made to it.
        unsafe { crate::crc::copy_to_shared(register, from, to) }
    }

    /// Copies bytes of a ring, from stream offset `at`.
    pub fn copy_out(&self, loc: Loc, at: u64, to: &mut [u8]) {
        assert!(to.len() <= loc.bytes());
        let start = self.ring(loc).start;
        let [(a, x), (b, y)] = ring::pieces(at, to.len(), loc.bytes());
        // SAFETY: `pieces` stays inside of the ring and `to` has `x + y` bytes.
        unsafe { std::ptr::copy_nonoverlapping(start.add(a), to.as_mut_ptr(), x) };
        // SAFETY: the same.
        unsafe { std::ptr::copy_nonoverlapping(start.add(b), to.as_mut_ptr().add(x), y) };
    }

    /// As [`Self::copy_out`], and goes on with a CRC-32 over the copy, from register to register, if that can be done
    /// meanwhile ([`crate::crc`]). `None`: it was copied alone.
    pub fn copy_out_summed(&self, loc: Loc, at: u64, to: &mut [u8], register: u32) -> Option<u32> {
        assert!(to.len() <= loc.bytes());
        let [(start, n), _] = ring::pieces(at, to.len(), loc.bytes());
        if n == to.len() {
            let from = self.ring(loc).start.wrapping_add(start);
            // SAFETY: `pieces` stays inside of the ring, which is no memory of `to`; whoever writes to it meanwhile
            // is not disturbed by our reading.
            let summed = unsafe { crate::crc::copy_shared(register, from, to) };
            if summed.is_some() {
                return summed;
            }
        }
        self.copy_out(loc, at, to);
        None
    }

    /// The owner word of an extent.
    ///
    /// # Panics
    ///
    /// If there is no such extent.
    #[must_use]
    pub fn owner(&self, extent: usize) -> &AtomicU32 {
        assert!(extent < EXTENTS);
        self.at(OWNERS_AT + extent * 4)
    }

    /// A process slot.
    ///
    /// # Panics
    ///
    /// If there is no such slot.
    #[must_use]
    pub fn slot(&self, slot: u32) -> &Slot {
        assert!((slot as usize) < SLOTS);
        self.at(SLOTS_AT + slot as usize * size_of::<Slot>())
    }

    /// Offset of a slot in the file, for [`Self::commit`].
    #[must_use]
    pub const fn slot_offset(slot: u32) -> usize {
        SLOTS_AT + slot as usize * size_of::<Slot>()
    }

    /// A half by its number, if that lies in an extent that holds halves (another one may have no
    /// pages, and reading it would take some).
    #[must_use]
    pub fn half(&self, index: u32) -> Option<&Half> {
        let offset = index as usize * HALF_BYTES;
        let inside = offset >= DATA_AT && offset + HALF_BYTES <= FILE_BYTES;
        if !inside || self.owner(offset / EXTENT_BYTES).load(Ordering::Acquire) & OWNER_HALVES == 0
        {
            return None;
        }
        Some(self.at(offset))
    }

    /// A half that we know to be ours or a peer's, without the check of [`Self::half`].
    ///
    /// # Panics
    ///
    /// If the number leads outside of the file.
    #[must_use]
    pub fn half_known(&self, index: u32) -> &Half {
        let offset = index as usize * HALF_BYTES;
        assert!(offset >= DATA_AT && offset + HALF_BYTES <= FILE_BYTES);
        self.at(offset)
    }

    /// First byte of a ring. The caller has checked whose it is.
    #[must_use]
    pub fn ring(&self, loc: Loc) -> Ring {
        debug_assert!(Loc::parse(loc.emit()).is_some());
        // SAFETY: a `Loc` lies inside of the file.
        Ring { start: unsafe { self.base.add(loc.offset()) }, bytes: loc.bytes() }
    }

    /// Which slot owns the extent that `offset` lies in.
    #[must_use]
    pub fn owner_of(&self, offset: usize) -> Option<u32> {
        if offset >= FILE_BYTES {
            return None;
        }
        let word = self.owner(offset / EXTENT_BYTES).load(Ordering::Acquire);
        (word & !OWNER_HALVES).checked_sub(1)
    }
}
