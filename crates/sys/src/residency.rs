//! Which bytes of a file are in memory, and calls about a file's data that have no safe form.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `cachestat(2)`, Linux 6.5, has this number everywhere.
const SYS_CACHESTAT: libc::c_long = 451;
/// `_IOW(0x94, 13, struct file_clone_range)` of `linux/fs.h`.
const FICLONERANGE: u64 = 0x4020_940d;

/// `struct cachestat_range` of `linux/mman.h`.
#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

/// `struct cachestat` of `linux/mman.h`: how many pages of a range are in which state.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStat {
    /// In the page cache.
    pub cached: u64,
    /// Of these, not yet written.
    pub dirty: u64,
    /// Of these, being written.
    pub writeback: u64,
    /// Once cached, then given up.
    pub evicted: u64,
    /// Of these, lately: they would still be there if there were more memory.
    pub recently_evicted: u64,
}

/// How many pages (of [`crate::pages::size`]) of bytes `offset..offset + len` are in memory. Not 0 for `len`, which would mean
/// the rest of the file.
///
/// # Errors
///
/// `ENOSYS` before Linux 6.5, `EPERM` for a file that is neither ours nor open for writing (Linux
/// tells nobody else, from 6.16 on), `EOPNOTSUPP` on hugetlbfs, `InvalidInput` if `len` is 0.
pub fn cachestat(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<CacheStat> {
    if len == 0 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let range = Range { offset, len };
    let mut stat = CacheStat::default();
    // SAFETY: the kernel reads a `Range` and writes a `CacheStat`, both laid out as it wants them.
    let done = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut stat,
            0 as libc::c_uint,
        )
    };
    if done == 0 { Ok(stat) } else { Err(io::Error::last_os_error()) }
}

/// Appends up to `len` bytes that a file has from `offset` on, and says how many; fewer, also before the end of
/// the file. With `now` it is only what is in memory (`RWF_NOWAIT`).
///
/// # Errors
///
/// With `now`: `EAGAIN` if nothing is in memory, `EOPNOTSUPP` where that cannot be known (tmpfs). Otherwise
/// those of `pread(2)`.
pub fn append_at(
    file: BorrowedFd<'_>,
    bytes: &mut Vec<u8>,
    len: usize,
    offset: u64,
    now: bool,
) -> io::Result<usize> {
    let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    bytes.reserve(len);
    let room =
        libc::iovec { iov_base: bytes.spare_capacity_mut().as_mut_ptr().cast(), iov_len: len };
    let flags = if now { libc::RWF_NOWAIT } else { 0 };
    // SAFETY: `reserve` has seen to `len` bytes of room that are nobody else's while `bytes` is borrowed.
    let read = unsafe { libc::preadv2(file.as_raw_fd(), &raw const room, 1, offset, flags) };
    let Ok(read) = usize::try_from(read) else { return Err(io::Error::last_os_error()) };
    // SAFETY: the kernel has written so many bytes, which are no more than `len`, behind those there were.
    unsafe { bytes.set_len(bytes.len() + read) };
    Ok(read)
}

/// `struct file_clone_range` of `linux/fs.h`.
#[repr(C)]
struct CloneRange {
    source: i64,
    source_offset: u64,
    len: u64,
    target_offset: u64,
}

/// Lets `target` share the extents of `len` bytes of `source`; `len` of 0 means up to the end.
///
/// # Errors
///
/// `EOPNOTSUPP` where the file system cannot share, `EXDEV` between two file systems, `EINVAL` for
/// what is not a multiple of its blocks; what `ioctl_ficlonerange(2)` says otherwise.
pub fn clone_range(
    source: BorrowedFd<'_>,
    source_offset: u64,
    target: BorrowedFd<'_>,
    target_offset: u64,
    len: u64,
) -> io::Result<()> {
    let range =
        CloneRange { source: i64::from(source.as_raw_fd()), source_offset, len, target_offset };
    // SAFETY: the kernel reads a `CloneRange`, laid out as it wants it, and writes none of our memory.
    let done = unsafe { libc::ioctl(target.as_raw_fd(), FICLONERANGE as _, &raw const range) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_was_just_written_is_in_memory() {
        let path = std::env::temp_dir().join(format!("shunt-residency-{}", std::process::id()));
        let mut file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let page = crate::pages::size();
        file.write_all(&vec![1; 10 * page - 100]).unwrap();
        let page = page as u64;
        match cachestat(file.as_fd(), 0, 10 * page - 100) {
            Ok(stat) => {
                assert_eq!(stat.cached, 10);
                assert_eq!(cachestat(file.as_fd(), page, 2 * page).unwrap().cached, 2);
                assert_eq!(cachestat(file.as_fd(), 1 << 20, 8192).unwrap().cached, 0);
            }
            Err(e) => println!("skipped: no cachestat here: {e}"),
        }
        let nothing = cachestat(file.as_fd(), 0, 0).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn bytes_of_a_file_are_appended() {
        let path = std::env::temp_dir().join(format!("shunt-append-{}", std::process::id()));
        let mut file =
            File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut bytes = b"head ".to_vec();
        assert_eq!(append_at(file.as_fd(), &mut bytes, 3, 2, false).unwrap(), 3);
        assert_eq!(append_at(file.as_fd(), &mut bytes, 1 << 20, 8, false).unwrap(), 2);
        assert_eq!(append_at(file.as_fd(), &mut bytes, 4, 10, false).unwrap(), 0);
        assert_eq!(bytes, b"head 23489");
        match append_at(file.as_fd(), &mut bytes, 1, 0, true) {
            Ok(n) => assert_eq!((n, bytes.last()), (1, Some(&b'0'))),
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EOPNOTSUPP)),
        }
        let beyond = append_at(file.as_fd(), &mut bytes, 1, u64::MAX, false).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_clone_of_what_cannot_be_cloned_is_refused() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(clone_range(reader.as_fd(), 0, writer.as_fd(), 0, 4096).is_err());
    }
}
