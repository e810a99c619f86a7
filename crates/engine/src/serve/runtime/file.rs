//! Reading and writing files: at once from the page cache, else without blocking the vector.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::{Errno, ReadWriteFlags};

use sys::uring::{Done, Op};

use super::core::Core;
use super::offload::offload;

/// The most that is written at once to a file system that might wait but as a rule does not: about 20 µs of
/// copying, what it takes to have another thread do it.
const AT_ONCE: usize = 128 << 10;
/// `f_type` of statfs(2) where there is no disk: tmpfs, ramfs.
const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
/// `f_type` of ext2 to ext4.
const EXT: u64 = 0xef53;

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
        Err(Errno::OPNOTSUPP) if in_memory(&fd) => {
            let n = again(|| rustix::io::pread(&fd, &mut buf[range.clone()], offset));
            return (buf, n);
        }
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => {}
        Err(error) => return (buf, Err(error.into())),
    }
    match operate(Op::Read { fd, buf, range, offset }).await {
        Ok(Done { result, op: Some(Op::Read { buf, .. }), .. }) => (buf, moved(result)),
        Err(Op::Read { fd, mut buf, range, offset }) => {
            offload(move || {
                let n = again(|| rustix::io::pread(&fd, &mut buf[range.clone()], offset));
                (buf, n)
            })
            .await
        }
        _ => unreachable!("what is given comes back"),
    }
}

/// Writes `buf[range]` to `fd` at `offset`; the buffer comes back with how many bytes were written.
///
/// At once where the file system can say beforehand that it will not wait (`RWF_NOWAIT`: XFS, btrfs). ext4 and
/// tmpfs cannot say it of writes, though as a rule they only copy into memory: there, what is in memory
/// is written at once, and up to 128 KiB on ext4. It may then wait when there is more dirty memory
/// than the kernel likes (`vm.dirty_ratio`), and its vector with it.
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
        Err(Errno::OPNOTSUPP) if written_at_once(&fd, range.len()) => {
            let n = again(|| rustix::io::pwrite(&fd, &buf[range.clone()], offset));
            return (buf, n);
        }
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::INTR) => {}
        Err(error) => return (buf, Err(error.into())),
    }
    match operate(Op::Write { fd, buf, range, offset }).await {
        Ok(Done { result, op: Some(Op::Write { buf, .. }), .. }) => (buf, moved(result)),
        Err(Op::Write { fd, buf, range, offset }) => {
            offload(move || {
                let n = again(|| rustix::io::pwrite(&fd, &buf[range.clone()], offset));
                (buf, n)
            })
            .await
        }
        _ => unreachable!("what is given comes back"),
    }
}

/// Has what was written to `fd` reach the disk, and all that is said about the file.
///
/// # Errors
///
/// Those of `fsync(2)`.
pub async fn fsync(fd: Arc<OwnedFd>) -> io::Result<()> {
    match operate(Op::Sync { fd: fd.clone(), data_only: false }).await {
        Ok(done) => moved(done.result).map(drop),
        Err(_) => offload(move || again(|| rustix::fs::fsync(&fd))).await,
    }
}

/// Has what was written to `fd` reach the disk, and what is needed to read it again.
///
/// # Errors
///
/// Those of `fdatasync(2)`.
pub async fn fdatasync(fd: Arc<OwnedFd>) -> io::Result<()> {
    match operate(Op::Sync { fd: fd.clone(), data_only: true }).await {
        Ok(done) => moved(done.result).map(drop),
        Err(_) => offload(move || again(|| rustix::fs::fdatasync(&fd))).await,
    }
}

/// The kind of file system that `fd` is on; 0 if that cannot be told.
#[expect(clippy::cast_sign_loss, reason = "a number of 32 bits")]
fn kind(fd: &OwnedFd) -> u64 {
    rustix::fs::fstatfs(fd).map_or(0, |stat| stat.f_type as u64 & 0xffff_ffff)
}

fn in_memory(fd: &OwnedFd) -> bool {
    MEMORY.contains(&kind(fd))
}

fn written_at_once(fd: &OwnedFd, len: usize) -> bool {
    let kind = kind(fd);
    MEMORY.contains(&kind) || kind == EXT && len <= AT_ONCE
}

/// What the ring makes of `op`, or the same back if there is no ring.
pub(super) async fn operate(op: Op) -> Result<Done, Op> {
    let operation = Core::with(|core| core.reactor.operate(op))?;
    Ok(operation.await)
}

pub(super) fn moved(result: Result<u32, i32>) -> io::Result<usize> {
    result.map(|n| n as usize).map_err(io::Error::from_raw_os_error)
}

fn again<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    Ok(rustix::io::retry_on_intr(&mut call)?)
}
