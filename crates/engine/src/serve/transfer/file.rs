//! An open file as transfers see it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Advice, FsWord, SeekFrom, fadvise, fstat, fstatfs};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2, pwrite, pwritev2};
use sys::filemap::{Access, FileMap};
use sys::pages;
use sys::residency::cachestat;
use sys::sync::AtomicU64;

use super::super::runtime::Budget;

/// `TMPFS_MAGIC` of `linux/magic.h`.
const TMPFS: FsWord = 0x0102_1994;
/// `RAMFS_MAGIC`.
const RAMFS: FsWord = 0x8584_58f6_u32 as FsWord;

/// Windows begin at multiples of this, so that reads one after the other need a new one each GiB.
const WINDOW: u64 = 1 << 30;
/// By how much windows overlap: what one transfer may move.
const OVERLAP: usize = super::buffers::LARGEST;
/// Windows that all files together may have mapped; `vm.max_map_count` is 65530 for the process.
const MAPS_MOST: usize = 16 << 10;

/// From this length on a copy by way of a mapping is worth its calls.
pub(super) const MAPPED_LEAST: usize = 64 << 10;
/// What is written by a call at the end even where the rest went into a mapping: a call is what
/// gives the file its time of modification and tells those who watch it.
pub(super) const BY_CALL: usize = 4096;

static MAPS: AtomicUsize = AtomicUsize::new(0);

/// How a file system tells whether bytes are in memory.
const BY_CACHESTAT: u8 = 0;
const BY_PROBING: u8 = 1;
const NEVER: u8 = 2;

/// What the kernel reads ahead at least.
const READ_AHEAD: usize = 64 << 10;

#[cfg(test)]
thread_local! {
    /// Bytes that this thread has read to see whether they are in memory.
    pub(super) static PROBED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// A file whose data is moved: its descriptor, and what has been found out about it. One for each
/// open, shared by the channels that use that open.
#[derive(Debug)]
pub struct DataFile {
    file: Arc<OwnedFd>,
    /// Memory is all it has (tmpfs): nothing here ever waits for a disk.
    in_memory: bool,
    residency: AtomicU8,
    /// Writing without waiting (`RWF_NOWAIT`) was not refused yet.
    tries_to_write: AtomicBool,
    /// Copying between a mapping of it and memory of ours was not refused yet.
    copies_maps: AtomicBool,
    /// Bytes that were written where the file had some already.
    overwritten: AtomicUsize,
    map: Mutex<Option<Arc<Window>>>,
    callers: Option<Budget>,
    /// Even of what is in memory its file system may ask elsewhere whether that is still so (NFS, FUSE).
    asks: bool,
    /// What was read is in memory afterwards, where we look for it, as far as is known of its file system.
    keeps: Arc<AtomicBool>,
}

/// A mapping that is counted.
#[derive(Debug)]
pub(super) struct Window {
    map: FileMap,
    start: u64,
    /// A bit for each block that was made present once.
    present: Box<[AtomicU64]>,
}

/// What is made present at once, bytes. Transfers that have no whole block leave it to faults.
const BLOCK: u64 = 64 << 10;

impl std::ops::Deref for Window {
    type Target = FileMap;

    fn deref(&self) -> &FileMap {
        &self.map
    }
}

impl Window {
    fn new(map: FileMap, start: u64, bytes: usize) -> Self {
        let words = (bytes as u64).div_ceil(BLOCK * 64);
        Self { map, start, present: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Has the kernel map pages that a transfer is about to use, the first time that it is about to: one call
    /// costs less than the faults. Bytes that are in no whole block are left to these.
    pub(super) fn prepare(&self, offset: u64, len: usize) {
        let from = (offset - self.start).div_ceil(BLOCK);
        let to = (offset - self.start + len as u64) / BLOCK;
        let bit = |block: u64| (usize::try_from(block / 64).unwrap_or(0), 1 << (block % 64));
        let is_present = |block| {
            let (word, bit) = bit(block);
            self.present.get(word).is_none_or(|word| word.load(Ordering::Relaxed) & bit != 0)
        };
        if (from..to).all(is_present) {
            return;
        }
        // Past the end of the file it stops, and a fault will say so.
        let _ = self.map.populate(offset, len);
        for (word, bit) in (from..to).map(bit) {
            if let Some(word) = self.present.get(word) {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        MAPS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl DataFile {
    /// Asks the file system what it is.
    ///
    /// # Errors
    ///
    /// What `fstatfs` says.
    pub fn new(file: File) -> io::Result<Self> {
        let in_memory = is_in_memory(&file)?;
        Ok(Self::of(Arc::new(file.into()), in_memory))
    }

    /// Of a descriptor that others use too, on a file system of which [`is_in_memory`] has been asked: no
    /// system call.
    #[must_use]
    pub fn of(file: Arc<OwnedFd>, in_memory: bool) -> Self {
        Self {
            file,
            in_memory,
            residency: AtomicU8::new(BY_CACHESTAT),
            tries_to_write: AtomicBool::new(true),
            copies_maps: AtomicBool::new(true),
            overwritten: AtomicUsize::new(0),
            map: Mutex::new(None),
            callers: None,
            asks: false,
            keeps: Arc::new(AtomicBool::new(true)),
        }
    }

    /// Says how many threads may wait for its file system at a time.
    #[must_use]
    pub fn called_by(self, callers: Budget) -> Self {
        Self { callers: Some(callers), ..self }
    }

    /// Those threads, one for each unit.
    #[must_use]
    pub fn callers(&self) -> Option<&Budget> {
        self.callers.as_ref()
    }

    /// Says that its file system may ask elsewhere whether what is in memory is still what the file says. Such a file is
    /// not mapped, which would go past that, and read only by who may wait.
    #[must_use]
    pub fn that_asks(self) -> Self {
        Self { asks: true, ..self }
    }

    /// Says who else finds out whether its file system keeps what was read in memory.
    #[must_use]
    pub fn kept_as(self, keeps: Arc<AtomicBool>) -> Self {
        Self { keeps, ..self }
    }

    /// As on kernels without `cachestat(2)` (before Linux 6.5).
    #[cfg(test)]
    pub(super) fn without_cachestat(self) -> Self {
        Self { residency: AtomicU8::new(BY_PROBING), ..self }
    }

    /// Whether it is of use to have somebody bring it into memory, and then to take it from there. It is not where
    /// caches are past us: another inode's (overlayfs), the file system's own (ZFS), or none (DAX).
    pub(super) fn is_kept(&self) -> bool {
        self.in_memory || (!self.asks && self.keeps.load(Ordering::Relaxed))
    }

    /// Looks whether what was read just now was kept. Where it can only be asked by reading, of its ends: a file system keeps
    /// what is read, or does not.
    pub(super) fn look_again(&self, offset: u64, len: u64) -> bool {
        let kept = !self.asks && self.resident_by(offset, len, usize::MAX);
        if self.keeps.load(Ordering::Relaxed) != kept {
            self.keeps.store(kept, Ordering::Relaxed);
        }
        kept
    }

    /// Reads what there is, 0 bytes at the end of the file, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// Those of `pread`.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(pread(&self.file, bytes, offset)?)
    }

    /// Reads until `bytes` is full or the file ends, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// Those of `pread`.
    pub fn fill(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        // All at once, then one after the other.
        let len = (bytes.len() as u64).try_into().ok();
        let _ = fadvise(&self.file, offset, len, Advice::WillNeed);
        let mut read = 0;
        while read < bytes.len() {
            match self.read_at(&mut bytes[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(n) => read += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(read)
    }

    /// Whether reading and writing never wait for a disk.
    #[must_use]
    pub fn in_memory(&self) -> bool {
        self.in_memory
    }

    /// Bytes that the file has now.
    ///
    /// # Errors
    ///
    /// What `fstat` says.
    pub fn size(&self) -> io::Result<u64> {
        Ok(u64::try_from(fstat(&self.file)?.st_size).unwrap_or(0))
    }

    /// How many of `len` bytes from `offset` on the file has now: what a READ may promise.
    ///
    /// # Errors
    ///
    /// What `fstat` says.
    pub fn clamp(&self, offset: u64, len: u32) -> io::Result<u32> {
        let there = self.size()?.saturating_sub(offset);
        Ok(u32::try_from(there).unwrap_or(u32::MAX).min(len))
    }

    /// Whether `len` bytes from `offset` on can be read without waiting for a disk. An answer that
    /// is out of date soon costs time, never more.
    pub fn resident(&self, offset: u64, len: u64) -> bool {
        self.resident_by(offset, len, READ_AHEAD)
    }

    fn resident_by(&self, offset: u64, len: u64, step: usize) -> bool {
        if self.in_memory || len == 0 {
            return true;
        }
        if self.residency.load(Ordering::Relaxed) == BY_CACHESTAT {
            match cachestat(self.file.as_fd(), offset, len) {
                Ok(stat) => {
                    let page = pages::size() as u64;
                    let pages = (offset + len).div_ceil(page) - offset / page;
                    return stat.cached >= pages;
                }
                Err(_) => self.residency.store(BY_PROBING, Ordering::Relaxed),
            }
        }
        self.residency.load(Ordering::Relaxed) == BY_PROBING && self.probe(offset, len, step)
    }

    /// Reads a byte here and there, `step` apart, and the last one.
    fn probe(&self, offset: u64, len: u64, step: usize) -> bool {
        let last = offset + len - 1;
        let places = (offset..last).step_by(step).chain([last]);
        for at in places {
            let mut byte = [0];
            #[cfg(test)]
            PROBED.with(|probed| probed.set(probed.get() + 1));
            match self.read_now(&mut byte, at) {
                Ok(_) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => {
                    self.residency.store(NEVER, Ordering::Relaxed);
                    return false;
                }
            }
        }
        true
    }

    /// Reads what is in memory.
    pub(super) fn read_now(&self, bytes: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let flags = if self.in_memory { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT };
        preadv2(&self.file, &mut [io::IoSliceMut::new(bytes)], offset, flags)
    }

    /// Writes what can be written without waiting; 0: nothing can.
    pub(super) fn write_now(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        if self.in_memory {
            return loop {
                match pwrite(&self.file, bytes, offset) {
                    Err(Errno::INTR) => {}
                    done => break Ok(done?),
                }
            };
        }
        if !self.tries_to_write.load(Ordering::Relaxed) {
            return Ok(0);
        }
        let slices = [io::IoSlice::new(bytes)];
        match pwritev2(&self.file, &slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(n) => Ok(n),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                // ext4, for one: only a thread that may wait can write.
                self.tries_to_write.store(false, Ordering::Relaxed);
                Ok(0)
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Writes all of it, waiting as long as it takes.
    ///
    /// # Errors
    ///
    /// Those of `pwrite`, and `WriteZero`; a part may have been written.
    pub fn write_all(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match pwrite(&self.file, &bytes[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Writes all of it, as [`Self::write_all`] does, by way of a mapping where that is faster: in memory, into a
    /// file that is written over again and again.
    ///
    /// By way of a mapping it is not one step for who makes the file shorter at the same time, as `pwrite(2)` is by the
    /// lock of the inode: what was copied before the cut is gone with it, and what comes after is written by a call,
    /// which makes the file as long again as the write wanted it, with zeros between the two. To hold the file's size
    /// still there is no call. Who writes a file and cuts it off, without waiting for the one before the other, gets
    /// one of the two as a whole only by an oplock, a lease or a lock of its own.
    ///
    /// # Errors
    ///
    /// Those of [`Self::write_all`].
    pub fn overwrite(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if bytes.len() < MAPPED_LEAST || !self.in_memory {
            return self.write_all(bytes, offset);
        }
        let size = self.size().unwrap_or(0);
        let overwrites = size >= offset.saturating_add(bytes.len() as u64);
        let done =
            if overwrites && self.has_rewritten(size) { self.store(bytes, offset) } else { 0 };
        self.write_all(&bytes[done..], offset + done as u64)?;
        if overwrites {
            self.count_overwritten(bytes.len());
        }
        Ok(())
    }

    /// Writes into a mapping what can be written so, all but the end: a call is what gives the file its time of
    /// modification and tells those who watch it.
    fn store(&self, bytes: &[u8], offset: u64) -> usize {
        let most = bytes.len() - BY_CALL.min(bytes.len());
        if !self.copies_maps() {
            return 0;
        }
        let Some(window) = self.window(offset, most, Access::Write) else { return 0 };
        window.prepare(offset, most);
        self.copied(window.store(&bytes[..most], offset))
    }

    /// Appends up to `len` bytes that there are in memory from `offset` on, by way of a mapping where that is
    /// faster, and says how many: 0 if it is not, or nothing is there.
    pub fn append_mapped(&self, bytes: &mut Vec<u8>, offset: u64, len: usize) -> usize {
        if len < MAPPED_LEAST || !self.in_memory || !self.copies_maps() {
            return 0;
        }
        // No more than it has: the rest of its last page is no part of it.
        let there = self.size().unwrap_or(0).saturating_sub(offset);
        let len = usize::try_from(there).unwrap_or(usize::MAX).min(len);
        if len == 0 {
            return 0;
        }
        let Some(window) = self.window(offset, len, Access::Read) else { return 0 };
        window.prepare(offset, len);
        self.copied(window.append(bytes, offset, len))
    }

    /// How many bytes a copy from or to a mapping has moved. One that is not allowed is not tried again.
    fn copied(&self, moved: io::Result<usize>) -> usize {
        if let Err(error) = &moved {
            self.copy_failed(Errno::from_io_error(error).unwrap_or(Errno::IO));
        }
        moved.unwrap_or(0)
    }

    /// A copy from or to a mapping has failed: one that is not allowed is not tried again.
    pub(super) fn copy_failed(&self, error: Errno) {
        if error != Errno::FAULT {
            self.copies_maps.store(false, Ordering::Relaxed);
        }
    }

    /// Whether nobody forbids copies from and to mappings, as far as is known.
    pub(super) fn copies_maps(&self) -> bool {
        self.copies_maps.load(Ordering::Relaxed)
    }

    /// Brings bytes into memory, and waits until they are there.
    ///
    /// # Errors
    ///
    /// What reading them says.
    pub fn prefetch(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.in_memory {
            return Ok(());
        }
        // All at once, then wait for one after the other.
        let _ = fadvise(&self.file, offset, len.try_into().ok(), Advice::WillNeed);
        let mut scratch = vec![0; 128 << 10];
        let end = offset.saturating_add(len);
        let mut at = offset;
        while at < end {
            let want = usize::try_from(end - at).unwrap_or(usize::MAX).min(scratch.len());
            match self.read_at(&mut scratch[..want], at) {
                Ok(0) => break,
                Ok(n) => at += n as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Counts bytes that were written where there were some.
    pub(super) fn count_overwritten(&self, len: usize) {
        self.overwritten.fetch_add(len, Ordering::Relaxed);
    }

    /// Whether as much as it holds has been written over through this open already. Who does that
    /// once does it again, and then a mapping pays, whose pages cost a fault each at first.
    pub(super) fn rewritten(&self) -> bool {
        self.has_rewritten(self.size().unwrap_or(u64::MAX))
    }

    fn has_rewritten(&self, size: u64) -> bool {
        size > 0 && self.overwritten.load(Ordering::Relaxed) as u64 >= size
    }

    /// A mapping that has `len` bytes from `offset` on; none where files cannot be mapped, too many are, reading would fill
    /// holes, or nobody would ask whether it is current. `len` must not exceed what one transfer may move.
    pub(super) fn window(&self, offset: u64, len: usize, access: Access) -> Option<Arc<Window>> {
        if self.asks || access == Access::Read && self.in_memory && self.has_holes(offset, len) {
            return None;
        }
        let mut kept = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = kept.as_ref()
            && window.covers(offset, len)
            && (access == Access::Read || window.access() == Access::Write)
        {
            return Some(Arc::clone(window));
        }
        *kept = None;
        if len > OVERLAP {
            return None;
        }
        if MAPS.fetch_add(1, Ordering::Relaxed) >= MAPS_MOST {
            MAPS.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let start = offset / WINDOW * WINDOW;
        let bytes = usize::try_from(WINDOW).ok()? + OVERLAP;
        match FileMap::new(self.file.as_fd(), start, bytes, access) {
            Ok(map) => {
                let window = Arc::new(Window::new(map, start, bytes));
                *kept = Some(Arc::clone(&window));
                Some(window)
            }
            Err(_) => {
                MAPS.fetch_sub(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Whether some of these bytes are in no page. A file system in memory takes one for each such page of a mapping,
    /// though it is only read; for a call that reads it takes none.
    pub(super) fn has_holes(&self, offset: u64, len: usize) -> bool {
        let Ok(stat) = fstat(&self.file) else { return true };
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let page = pages::size() as u64;
        let pages = u64::try_from(stat.st_blocks).unwrap_or(0) / (page / 512);
        // As a rule. With other numbers there may be pages behind the end, or larger ones.
        if pages == size.div_ceil(page) {
            return false;
        }
        let end = offset.saturating_add(len as u64).min(size);
        rustix::fs::seek(&self.file, SeekFrom::Hole(offset)).map_or(offset < end, |hole| hole < end)
    }

    /// Unmaps what transfers have mapped, for an open that has not been used for a while.
    pub fn forget_map(&self) {
        *self.map.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Whether the file system that a file is on has no disk (tmpfs, ramfs).
///
/// # Errors
///
/// What `fstatfs` says.
pub fn is_in_memory(file: impl AsFd) -> io::Result<bool> {
    let kind = fstatfs(file)?.f_type;
    Ok(kind == TMPFS || kind == RAMFS)
}

#[cfg(test)]
impl DataFile {
    /// Another descriptor of the file.
    pub(super) fn file(&self) -> File {
        self.file.try_clone().expect("a descriptor").into()
    }

    /// Makes it shorter, as another process may.
    pub(in crate::serve) fn cut(&self, len: u64) {
        self.file().set_len(len).expect("a shorter file");
    }

    /// As on a file system that cannot write without waiting.
    pub(super) fn tries_to_write_not(&self) {
        self.tries_to_write.store(false, Ordering::Relaxed);
    }
}

impl AsFd for DataFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
