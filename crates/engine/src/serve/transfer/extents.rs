//! Data moved inside of the file system, and where a file has any. All of it may wait for the disk.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};
use rustix::io::Errno;

use super::DataFile;

/// Copies `len` bytes of `source` at `source_offset` to `target` at `target_offset`, by the file
/// system where it can; answers how many, fewer only at the end of `source`. For
/// `FSCTL_SRV_COPYCHUNK` (MS-SMB2 3.3.5.15.6).
///
/// The two ranges must not overlap in one file.
///
/// # Errors
///
/// What reading or writing says. What was copied before stays.
pub fn copy_range(
    source: &DataFile,
    mut source_offset: u64,
    target: &DataFile,
    mut target_offset: u64,
    len: u64,
) -> io::Result<u64> {
    let mut left = len;
    while left > 0 {
        // So many at a time that a thread of the pool can be ended.
        let want = usize::try_from(left.min(64 << 20)).unwrap_or(64 << 20);
        let (from, to) = (Some(&mut source_offset), Some(&mut target_offset));
        match copy_file_range(source, from, target, to, want) {
            Ok(0) => break,
            Ok(n) => left -= n as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                return Ok(
                    len - left + copy_by_hand(source, source_offset, target, target_offset, left)?
                );
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(len - left)
}

fn copy_by_hand(
    source: &DataFile,
    source_offset: u64,
    target: &DataFile,
    target_offset: u64,
    len: u64,
) -> io::Result<u64> {
    let mut bytes = vec![0; 256 << 10];
    let mut done = 0;
    while done < len {
        let want = usize::try_from(len - done).unwrap_or(usize::MAX).min(bytes.len());
        match source.read_at(&mut bytes[..want], source_offset + done) {
            Ok(0) => break,
            Ok(n) => {
                target.write_all(&bytes[..n], target_offset + done)?;
                done += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Lets `target` share extents with `source`, for `FSCTL_DUPLICATE_EXTENTS_TO_FILE`
/// (MS-FSCC 2.3.7): shared or refused, never copied.
///
/// # Errors
///
/// `EOPNOTSUPP` where the file system cannot; see [`sys::residency::clone_range`].
pub fn clone_range(
    source: &DataFile,
    source_offset: u64,
    target: &DataFile,
    target_offset: u64,
    len: u64,
) -> io::Result<()> {
    if len == 0 {
        // To the system that would mean up to the end.
        return Ok(());
    }
    sys::residency::clone_range(source.as_fd(), source_offset, target.as_fd(), target_offset, len)
}

/// Takes the space of a range away, which then reads as zero; the length of the file stays. For
/// `FSCTL_SET_ZERO_DATA` on a sparse file (MS-FSCC 2.3.71).
///
/// # Errors
///
/// `EOPNOTSUPP` where the file system cannot: use [`zero`].
pub fn punch(file: &DataFile, offset: u64, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, mode, offset, len)?)
}

/// Makes a range zero, keeping its space where the file system can do that; the length of the file
/// stays. For `FSCTL_SET_ZERO_DATA` on a file that is not sparse. Where zeros have to be written,
/// `goes_on` is asked before each part; whether it always said yes.
///
/// # Errors
///
/// What the file system says.
pub fn zero(
    file: &DataFile,
    offset: u64,
    len: u64,
    goes_on: impl Fn() -> bool,
) -> io::Result<bool> {
    let len = len.min(file.size()?.saturating_sub(offset));
    if len == 0 {
        return Ok(true);
    }
    let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, mode, offset, len) {
        Err(Errno::OPNOTSUPP) => {}
        done => return Ok(done.map(|()| true)?),
    }
    let zeros = vec![0; 256 << 10];
    let mut done = 0;
    while done < len {
        if !goes_on() {
            return Ok(false);
        }
        let n = usize::try_from(len - done).unwrap_or(usize::MAX).min(zeros.len());
        file.write_all(&zeros[..n], offset + done)?;
        done += n as u64;
    }
    Ok(true)
}

/// Takes space for a range, beyond the end of the file too, whose length stays. For
/// `FileAllocationInformation` (MS-FSCC 2.4.4).
///
/// # Errors
///
/// `ENOSPC`; `EOPNOTSUPP` where the file system takes space only when it is written.
pub fn reserve(file: &DataFile, offset: u64, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    Ok(fallocate(file, FallocateFlags::KEEP_SIZE, offset, len)?)
}

/// The parts of `offset..offset + len` that have data, in order, at most `most` of them: offset and
/// length of each. For `FSCTL_QUERY_ALLOCATED_RANGES` (MS-FSCC 2.3.48); if there are `most`, there
/// may be more.
///
/// # Errors
///
/// What `lseek` says, but for "no more data".
pub fn allocated(
    file: &DataFile,
    offset: u64,
    len: u64,
    most: usize,
) -> io::Result<Vec<(u64, u64)>> {
    let end = offset.saturating_add(len).min(file.size()?);
    let mut ranges = Vec::new();
    let mut at = offset;
    while at < end && ranges.len() < most {
        // The position of the descriptor is moved by this; nothing of ours reads at it.
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < end => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        let stop = match seek(file, SeekFrom::Hole(start)) {
            Ok(stop) => stop.min(end),
            // Cut off meanwhile.
            Err(Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        ranges.push((start, stop - start));
        at = stop;
    }
    Ok(ranges)
}
