//! Reading and writing files: at once from the page cache, else without blocking the vector.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags};

use super::offload::offload;

/// Reads from `fd` at `offset` into `buf[range]`; the buffer comes back with how many bytes were read, 0 at
/// the end of the file. What is in the page cache is read at once.
///
/// # Panics
///
/// When `range` is not within `buf`.
pub async fn read_at(
    fd: Arc<OwnedFd>,
    mut buf: Vec<u8>,
    range: Range<usize>,
    offset: u64,
) -> (Vec<u8>, io::Result<usize>) {
    let mut into = [IoSliceMut::new(&mut buf[range.clone()])];
    match rustix::io::preadv2(&fd, &mut into, offset, ReadWriteFlags::NOWAIT) {
        // Part of it was there. What is missing is read when it is asked for: or it is the end.
        Ok(n) => return (buf, Ok(n)),
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => {}
        Err(error) => return (buf, Err(error.into())),
    }
    offload(move || {
        let n = again(|| rustix::io::pread(&fd, &mut buf[range.clone()], offset));
        (buf, n)
    })
    .await
}

/// Writes `buf[range]` to `fd` at `offset`; the buffer comes back with how many bytes were written.
///
/// Where the file system can do it without waiting (`RWF_NOWAIT`), at once.
///
/// # Panics
///
/// When `range` is not within `buf`.
pub async fn write_at(
    fd: Arc<OwnedFd>,
    buf: Vec<u8>,
    range: Range<usize>,
    offset: u64,
) -> (Vec<u8>, io::Result<usize>) {
    let from = [IoSlice::new(&buf[range.clone()])];
    match rustix::io::pwritev2(&fd, &from, offset, ReadWriteFlags::NOWAIT) {
        Ok(n) => return (buf, Ok(n)),
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => {}
        Err(error) => return (buf, Err(error.into())),
    }
    offload(move || {
        let n = again(|| rustix::io::pwrite(&fd, &buf[range.clone()], offset));
        (buf, n)
    })
    .await
}

/// Has what was written to `fd` reach the disk, and all that is said about the file.
///
/// # Errors
///
/// Those of `fsync(2)`.
pub async fn fsync(fd: Arc<OwnedFd>) -> io::Result<()> {
    offload(move || again(|| rustix::fs::fsync(&fd))).await
}

/// Has what was written to `fd` reach the disk, and what is needed to read it again.
///
/// # Errors
///
/// Those of `fdatasync(2)`.
pub async fn fdatasync(fd: Arc<OwnedFd>) -> io::Result<()> {
    offload(move || again(|| rustix::fs::fdatasync(&fd))).await
}

fn again<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    Ok(rustix::io::retry_on_intr(&mut call)?)
}
