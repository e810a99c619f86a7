//! A piece of a file in our address space, which the kernel touches, and [`guarded`] copies do.
//!
//! Bytes go from such a mapping to a socket, or from a socket to it, in one copy made by the kernel.
//! No reference into it is ever made and no other instruction of ours reads or writes it, for two reasons.
//! Others may write the file at any time, so what is there is not `[u8]` to Rust. And whoever makes
//! the file shorter takes pages away: a load of ours would then end the process with `SIGBUS`, where
//! the kernel's own copy ends with `EFAULT` and says how far it came, and a guarded one says that too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::guarded::{self, Caches};
use crate::pages;

/// What is mapped may be sent, or sent and received into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Source of [`FileMap::send`] only. The file must be open for reading.
    Read,
    /// Also destination of [`FileMap::receive`]. The file must be open for both.
    Write,
}

/// A shared mapping of a window of a file.
///
/// It may reach past the end of the file: bytes there are refused with `EFAULT` for as long as the
/// file does not have them. Dropped, the window is unmapped; the file may be closed before.
#[derive(Debug)]
pub struct FileMap {
    base: NonNull<u8>,
    /// First byte of the window in the file, a multiple of the page size.
    offset: u64,
    /// Bytes of the window.
    len: usize,
    access: Access,
}

// SAFETY: nobody has a reference into what is mapped, which other processes write as well. Its address goes to system
// calls, and to copies that take bytes as they find them, in any number at a time (`guarded`).
unsafe impl Send for FileMap {}
// SAFETY: the same.
unsafe impl Sync for FileMap {}

impl FileMap {
    /// Maps `len` bytes of `file` from `offset` on. No page is read in by that.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `offset` is no multiple of [`pages::size`] or `len` is 0; `EACCES` if the file was opened for
    /// less; `ENODEV` where the file system maps nothing; `ENOMEM` without address space.
    pub fn new(file: BorrowedFd<'_>, offset: u64, len: usize, access: Access) -> io::Result<Self> {
        if !offset.is_multiple_of(pages::size() as u64) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let at = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let protection = match access {
            Access::Read => libc::PROT_READ,
            Access::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address that the kernel chooses takes nothing from anybody.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                at,
            )
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(Self { base, offset, len, access })
            }
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether bytes `offset..offset + len` of the file lie in the window.
    #[must_use]
    pub fn covers(&self, offset: u64, len: usize) -> bool {
        self.inside(offset, len).is_some()
    }

    /// What the window was mapped for.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    fn inside(&self, offset: u64, len: usize) -> Option<*mut u8> {
        let skip = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        (skip <= self.len && len <= self.len - skip).then(|| self.base.as_ptr().wrapping_add(skip))
    }

    fn part(&self, offset: u64, len: usize) -> io::Result<*mut u8> {
        self.inside(offset, len).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Maps the pages of `offset..offset + len` now, with one call instead of a fault for each; those of a hole
    /// in the file are allocated if the window is for receiving. Waits for the disk where they are not in memory.
    ///
    /// # Errors
    ///
    /// `EINVAL` before Linux 5.14; `EFAULT` if the file does not have them, with those mapped that it has;
    /// `ENOMEM` without memory; `InvalidInput` outside of the window.
    pub fn populate(&self, offset: u64, len: usize) -> io::Result<()> {
        let page = usize::try_from(offset % pages::size() as u64).unwrap_or(0);
        let part = self.part(offset, len)?.wrapping_sub(page);
        let advice = match self.access {
            Access::Read => libc::MADV_POPULATE_READ,
            Access::Write => libc::MADV_POPULATE_WRITE,
        };
        // SAFETY: it changes no byte of a mapping that is ours, and says by an error what it cannot do.
        let done = unsafe { libc::madvise(part.cast(), len + page, advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends `head` and then bytes `offset..offset + len` of the file, without waiting and without
    /// `SIGPIPE`. Answers how many bytes of both together were taken. `more`: others follow, so the
    /// last packet need not leave half full.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when the socket takes nothing; `EFAULT` when the file no longer has a byte of
    /// the first piece that the socket would take (TCP: some 32 KiB, with `head`), or it cannot be
    /// read: nothing has then been taken. `InvalidInput` for bytes outside of the window; what
    /// `sendmsg` says otherwise.
    pub fn send(
        &self,
        socket: impl AsFd,
        head: &[u8],
        offset: u64,
        len: usize,
        more: bool,
    ) -> io::Result<usize> {
        send_parts(socket, &[Part::Bytes(head), Part::File { map: self, offset, len }], more)
    }

    /// Puts the pages of bytes `offset..offset + len` of the file into a pipe as they are, without waiting for room.
    /// Answers how many bytes it took. What is written into the file before somebody takes them out is seen.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when the pipe is full; `EFAULT` when the file no longer has the first page, or it cannot be read;
    /// `InvalidInput` for bytes outside of the window; what `vmsplice` says otherwise.
    pub fn pass_on(&self, pipe: impl AsFd, offset: u64, len: usize) -> io::Result<usize> {
        let part = libc::iovec { iov_base: self.part(offset, len)?.cast(), iov_len: len };
        let pipe = pipe.as_fd().as_raw_fd();
        // SAFETY: one part, within a mapping of ours; the kernel takes references to its pages, and no byte is written.
        let taken = unsafe { libc::vmsplice(pipe, &raw const part, 1, libc::SPLICE_F_NONBLOCK) };
        usize::try_from(taken).map_err(|_| io::Error::last_os_error())
    }

    /// Receives up to `len` bytes into the file at `offset`, without waiting; 0 is the end of the
    /// stream. The file must be long enough already.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when nothing is there; `EFAULT` when the first page cannot be had, because the
    /// file is shorter or its file system is full: nothing has then been taken from the socket.
    /// `InvalidInput` for bytes outside of the window or one mapped for reading.
    pub fn receive(&self, socket: impl AsFd, offset: u64, len: usize) -> io::Result<usize> {
        if self.access != Access::Write {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let part = self.part(offset, len)?;
        // SAFETY: the kernel writes into our own mapping, which nothing refers to; pages that are
        // not there it refuses by itself.
        let got =
            unsafe { libc::recv(socket.as_fd().as_raw_fd(), part.cast(), len, libc::MSG_DONTWAIT) };
        usize::try_from(got).map_err(|_| io::Error::last_os_error())
    }

    /// Writes bytes into the file at `offset`, which must be long enough already, and says how many; fewer, if it is
    /// shorter or its file system is full. It costs a quarter of what `pwrite(2)` does on tmpfs, which takes and
    /// gives back a lock for each page; half without [`guarded::install`]. Like what is received, it is no call that
    /// gives the file a new time.
    ///
    /// # Errors
    ///
    /// `EFAULT` when the first page cannot be had; `EPERM` or `ENOSYS` where the process may not do it
    /// (`process_vm_readv(2)`, seccomp); `InvalidInput` for bytes outside of the window or one mapped for reading.
    pub fn store(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        // SAFETY: bytes that are borrowed.
        unsafe { self.store_from(bytes.as_ptr(), bytes.len(), offset) }
    }

    /// [`Self::store`] of `len` bytes that others may write meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Self::store`].
    ///
    /// # Safety
    ///
    /// They lie in a mapping that stays for as long as this takes.
    pub(crate) unsafe fn store_from(
        &self,
        from: *const u8,
        len: usize,
        offset: u64,
    ) -> io::Result<usize> {
        if self.access != Access::Write {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let part = self.part(offset, len)?;
        if guarded::is_installed() {
            // SAFETY: into our own mapping, which nothing refers to, from one of the caller's.
            return had(unsafe { guarded::copy(part, from, len, Caches::Pass) }, len);
        }
        let into = libc::iovec { iov_base: part.cast(), iov_len: len };
        let from = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
        // SAFETY: the kernel reads memory of this very process and writes into our own mapping, which nothing refers
        // to; pages that are not there it refuses by itself.
        let stored = unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const into, 1, &raw const from, 1, 0)
        };
        usize::try_from(stored).map_err(|_| io::Error::last_os_error())
    }

    /// Appends bytes `offset..offset + len` of the file to `bytes`, and says how many; fewer, if it is shorter. It
    /// costs less than `pread(2)`, which looks each page up.
    ///
    /// # Errors
    ///
    /// `EFAULT` when the first page cannot be had; `EPERM` or `ENOSYS` where the process may not do it
    /// (`process_vm_writev(2)`, seccomp); `InvalidInput` for bytes outside of the window.
    pub fn append(&self, bytes: &mut Vec<u8>, offset: u64, len: usize) -> io::Result<usize> {
        self.part(offset, len)?;
        bytes.reserve(len);
        let into = bytes.spare_capacity_mut().as_mut_ptr().cast();
        // SAFETY: `len` bytes of room that are nobody else's while `bytes` is borrowed.
        let read = unsafe { self.load_to(into, len, offset, Caches::Keep) }?;
        // SAFETY: so many bytes have been written, which are no more than `len`, behind those there were.
        unsafe { bytes.set_len(bytes.len() + read) };
        Ok(read)
    }

    /// Copies bytes `offset..offset + len` of the file to memory, and says how many; fewer, if it is shorter.
    ///
    /// # Errors
    ///
    /// As [`Self::append`].
    ///
    /// # Safety
    ///
    /// They are written to a mapping that stays for as long as this takes, to bytes that nobody has a reference to.
    pub(crate) unsafe fn load_to(
        &self,
        to: *mut u8,
        len: usize,
        offset: u64,
        caches: Caches,
    ) -> io::Result<usize> {
        let part = self.part(offset, len)?;
        if guarded::is_installed() {
            // SAFETY: from our own mapping to memory that is the caller's.
            return had(unsafe { guarded::copy(to, part, len, caches) }, len);
        }
        let from = libc::iovec { iov_base: part.cast(), iov_len: len };
        let into = libc::iovec { iov_base: to.cast(), iov_len: len };
        // SAFETY: the kernel reads our own mapping, whose absent pages it refuses by itself, and writes to memory that
        // is the caller's to write.
        let read = unsafe {
            libc::process_vm_writev(libc::getpid(), &raw const from, 1, &raw const into, 1, 0)
        };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }
}

/// What a guarded copy of `len` bytes has moved, as a system call says it.
fn had(copied: usize, len: usize) -> io::Result<usize> {
    if copied == 0 && len > 0 {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    Ok(copied)
}

/// One of several pieces that are sent with one call.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Memory of ours.
    Bytes(&'a [u8]),
    /// Bytes of a mapped file.
    File {
        /// The window that has them.
        map: &'a FileMap,
        /// The first one in the file.
        offset: u64,
        /// How many.
        len: usize,
    },
}

/// Parts that one call of [`send_parts`] looks at.
pub const PARTS_MAX: usize = 64;

/// Sends the first [`PARTS_MAX`] parts, one behind the other, without waiting and without `SIGPIPE`. Answers how
/// many bytes of all together were taken. `more`: others follow, so the last packet need not leave half full.
///
/// # Errors
///
/// As [`FileMap::send`], but that `EFAULT` may be about any part, not only the first: a socket takes bytes in pieces
/// that reach over the bounds of parts (TCP: some 32 KiB), and where a page of such a piece cannot be had, nothing of
/// the piece is taken. What is before that part is sent by itself then, or it is tried in vain for ever.
pub fn send_parts(socket: impl AsFd, parts: &[Part<'_>], more: bool) -> io::Result<usize> {
    let mut slices = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
    let mut count = 0;
    for part in parts.iter().take(PARTS_MAX) {
        let (iov_base, iov_len) = match part {
            Part::Bytes(bytes) => (bytes.as_ptr().cast_mut().cast(), bytes.len()),
            Part::File { map, offset, len } => (map.part(*offset, *len)?.cast(), *len),
        };
        if iov_len > 0 {
            slices[count] = libc::iovec { iov_base, iov_len };
            count += 1;
        }
    }
    // SAFETY: all-zero is a message without address, control data or flags.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = slices.as_mut_ptr();
    message.msg_iovlen = count;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
    // SAFETY: the kernel reads `slices` and what they name: bytes that `parts` borrows, and mappings of ours, whose
    // absent pages it refuses by itself; it writes nothing.
    let sent = unsafe { libc::sendmsg(socket.as_fd().as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // SAFETY: our own mapping; nobody has a reference into it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let name =
            format!("shunt-filemap-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        let mut file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// An offset that is not in a file's first page, however large pages are.
    const FAR: u64 = 128 << 10;

    #[test]
    fn bytes_go_both_ways() {
        let file = file(&[7; 10_000]);
        let map = FileMap::new(file.as_fd(), 0, 1 << 20, Access::Write).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        assert_eq!(map.send(&ours, b"head", 5000, 3, false).unwrap(), 7);
        let mut got = [0; 7];
        theirs.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"head\x07\x07\x07");

        theirs.write_all(b"new").unwrap();
        assert_eq!(map.receive(&ours, 5000, 100).unwrap(), 3);
        let mut got = [0; 5];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut got, 4999).unwrap();
        assert_eq!(&got, b"\x07new\x07");
        let nothing = map.receive(&ours, 5000, 100).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
    }

    /// By the kernel's copies, and then by guarded ones.
    #[test]
    fn bytes_of_memory_go_both_ways() {
        if !guarded::is_installed() {
            memory_goes_both_ways();
        }
        guarded::install();
        memory_goes_both_ways();
    }

    fn memory_goes_both_ways() {
        let page = pages::size();
        let at = |pages: usize, more: usize| (pages * page + more) as u64;
        let file = file(&vec![7; 2 * page + 1808]);
        let map = FileMap::new(file.as_fd(), at(1, 0), 1 << 20, Access::Write).unwrap();
        match map.store(b"new", at(1, 904)) {
            Ok(n) => assert_eq!(n, 3),
            Err(e) => return println!("skipped: process_vm_readv is not allowed here: {e}"),
        }
        let mut got = b"head ".to_vec();
        assert_eq!(map.append(&mut got, at(1, 903), 5).unwrap(), 5);
        assert_eq!(got, b"head \x07new\x07");
        // Up to the end of the page that has the end of the file there is something, behind it nothing.
        let (mut rest, larger) = (Vec::new(), vec![1; 5 * page]);
        assert_eq!(map.append(&mut rest, at(2, 0), larger.len()).unwrap(), rest.len());
        assert!(rest.len() == page && rest.starts_with(&[7; 1808]));
        assert_eq!(map.store(&larger, at(2, 0)).unwrap(), page);
        let refused = map.append(&mut rest, at(4, 0), 1).unwrap_err();
        assert_eq!((refused.raw_os_error(), rest.len()), (Some(libc::EFAULT), page));
        let refused = map.store(b"x", at(4, 0)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
        let outside = map.store(b"x", at(1, 0) - 1).unwrap_err();
        assert_eq!(outside.kind(), io::ErrorKind::InvalidInput);
        let reading = FileMap::new(file.as_fd(), 0, page, Access::Read).unwrap();
        assert_eq!(reading.store(b"x", 0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn parts_of_memory_and_of_files_go_together() {
        let (one, other) = (file(&[7; 10_000]), file(&[8; 100]));
        let one = FileMap::new(one.as_fd(), 0, 1 << 20, Access::Read).unwrap();
        let other = FileMap::new(other.as_fd(), 0, 1 << 20, Access::Read).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let parts = [
            Part::Bytes(b"one"),
            Part::File { map: &one, offset: 9_999, len: 1 },
            Part::Bytes(b""),
            Part::File { map: &other, offset: 5, len: 2 },
            Part::Bytes(b"."),
        ];
        assert_eq!(send_parts(&ours, &parts, false).unwrap(), 7);
        let mut got = [0; 7];
        theirs.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"one\x07\x08\x08.");

        // What is before a page that is not there goes nevertheless, or the error is about it.
        let parts = [Part::Bytes(b"one"), Part::File { map: &other, offset: FAR, len: 2 }];
        match send_parts(&ours, &parts, false) {
            Ok(n) => assert!(n <= 3),
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EFAULT)),
        }
        let many = [Part::Bytes(b"x"); PARTS_MAX + 1];
        assert_eq!(send_parts(&ours, &many, false).unwrap(), PARTS_MAX);
        let outside = [Part::File { map: &other, offset: 1 << 20, len: 1 }];
        let refused = send_parts(&ours, &outside, false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_part_that_is_not_there_takes_those_before_it_along_or_not() {
        let file = file(&[7; 20_000]);
        let map = FileMap::new(file.as_fd(), 0, 1 << 20, Access::Read).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        file.set_len(0).unwrap();
        let parts = [Part::Bytes(b"one"), Part::File { map: &map, offset: 0, len: 20_000 }];
        // Whether the bytes go is the kernel's choice; that they go or not, and are not lost, is what counts.
        let taken = match send_parts(&ours, &parts, false) {
            Ok(taken) => taken,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
                0
            }
        };
        assert!(taken <= 3);
        let rest = [Part::Bytes(&b"one"[taken..])];
        assert_eq!(send_parts(&ours, &rest, false).unwrap(), 3 - taken);
        drop(ours);
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"one");
    }

    #[test]
    fn what_the_file_does_not_have_is_refused_and_not_fatal() {
        let file = file(&[7; 20_000]);
        let map = FileMap::new(file.as_fd(), 0, 1 << 20, Access::Write).unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        file.set_len(100).unwrap();
        let refused = map.send(&ours, &[], FAR, 10, false).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
        theirs.write_all(b"new").unwrap();
        let refused = map.receive(&ours, FAR, 3).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EFAULT));
        // Nothing was taken.
        assert_eq!(map.receive(&ours, 50, 3).unwrap(), 3);
        assert!(map.populate(0, 100).is_ok());
        assert_eq!(map.populate(FAR, 100).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn pages_go_into_a_pipe_as_far_as_the_file_has_them() {
        let file = file(&[7; 10_000]);
        let map = FileMap::new(file.as_fd(), 0, 1 << 20, Access::Read).unwrap();
        let (mut out, into) = io::pipe().unwrap();
        let taken = map.pass_on(&into, 5000, 5000).unwrap();
        let mut got = vec![0; taken];
        out.read_exact(&mut got).unwrap();
        assert!((1..=5000).contains(&taken) && got.iter().all(|byte| *byte == 7));
        let absent = map.pass_on(&into, 500_000, 1).unwrap_err();
        assert_eq!(absent.raw_os_error(), Some(libc::EFAULT));
        let outside = map.pass_on(&into, 1 << 20, 1).unwrap_err();
        assert_eq!(outside.kind(), io::ErrorKind::InvalidInput);
        file.set_len(1 << 20).unwrap();
        let mut filled = 0;
        let full = loop {
            match map.pass_on(&into, 0, 1 << 20) {
                Ok(taken) => filled += taken,
                Err(error) => break error,
            }
        };
        assert!(filled > 0 && full.kind() == io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_window_has_bounds() {
        let file = file(&[7; 100]);
        let odd = FileMap::new(file.as_fd(), 1, 4096, Access::Read).unwrap_err();
        assert_eq!(odd.kind(), io::ErrorKind::InvalidInput);
        let first = 2 * pages::size() as u64;
        let map = FileMap::new(file.as_fd(), first, 4096, Access::Read).unwrap();
        assert!(map.covers(first, 4096) && map.covers(first + 4096, 0));
        assert!(!map.covers(first - 1, 1) && !map.covers(first, 4097) && !map.covers(u64::MAX, 1));
        let (ours, _theirs) = UnixStream::pair().unwrap();
        for at in [0, first - 192, first + 4096, u64::MAX] {
            let refused = map.send(&ours, b"head", at, 1, false).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
        let refused = map.receive(&ours, first, 1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "mapped for reading");
    }
}
