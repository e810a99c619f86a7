//! Changing what is said about a file, and how long it is.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW,
    UTIME_OMIT, Uid,
};
use rustix::io::Errno;
use smb::{Attributes, FileTime, NtStatus};

use super::super::acting::{Actor, act, now};
use super::dosattrib::{self, DosAttrib, STORED};
use super::errno::status;
use super::facts::stat;
use super::{Handle, xattr};

/// Times to set; what is no time ([`FileTime::is_time`]) is left as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetTimes {
    /// Creation; kept in `user.DOSATTRIB`.
    pub created: FileTime,
    /// Last access.
    pub accessed: FileTime,
    /// Last write.
    pub written: FileTime,
    /// Last change of anything. The file system keeps one of its own that cannot be set; this one is told to
    /// clients until something about the file changes, or the server ends.
    pub changed: FileTime,
}

/// What POSIX clients may change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Posix {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
}

fn timespec(time: FileTime) -> Timespec {
    if !time.is_time() {
        return Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    }
    let (tv_sec, nanoseconds) = time.to_unix();
    Timespec { tv_sec, tv_nsec: nanoseconds.into() }
}

/// Reserves room by way of `fallocate`. Some file systems (ext4) get as much as there is before they say that it is
/// not enough, and leave the disk full: so they are not asked for what cannot be, and what they got all the same is
/// given back.
fn reserve(
    fd: &OwnedFd,
    bytes: u64,
    fallocate: impl FnOnce(u64) -> Result<(), Errno>,
) -> Result<(), NtStatus> {
    let volume = rustix::fs::fstatvfs(fd).map_err(status)?;
    let free = volume.f_bavail.saturating_mul(volume.f_frsize);
    let more = bytes.saturating_sub(stat(fd).map_err(status)?.stx_blocks.saturating_mul(512));
    // Some that have no disk of their own say that they have no blocks at all.
    if volume.f_blocks > 0 && more > free {
        return Err(NtStatus::DISK_FULL);
    }
    match fallocate(bytes) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => {
            give_back(fd)?;
            Err(status(errno))
        }
    }
}

/// Gives back what is reserved behind the end of a file. Every file system does that when it is cut off where it ends;
/// ext4 punches no holes there. What somebody else writes behind it between the two calls would be lost; on a full disk, to
/// the same file, that is not likely.
fn give_back(fd: &OwnedFd) -> Result<(), NtStatus> {
    let end = stat(fd).map_err(status)?.stx_size;
    rustix::fs::ftruncate(fd, end).map_err(status)
}

impl Handle {
    /// Sets times, to 100 ns if the file system has that.
    ///
    /// # Errors
    ///
    /// ACCESS_DENIED for a share that is read-only, and a file of somebody else that may not be written to, or for which
    /// the server cannot act.
    pub fn set_times(&self, times: SetTimes) -> Result<(), NtStatus> {
        self.share().writable()?;
        if times.accessed.is_time() || times.written.is_time() {
            let stamps = Timestamps {
                last_access: timespec(times.accessed),
                last_modification: timespec(times.written),
            };
            self.stamp(&stamps).map_err(status)?;
        }
        if times.created.is_time() {
            self.store(|stored| stored.created = Some(times.created))?;
        }
        if times.changed.is_time() {
            self.share().memo.tell(&stat(self).map_err(status)?, times.changed);
        }
        Ok(())
    }

    /// A stream of it was written to: of a file that is a time of its own, as on Windows. The kernel takes streams for
    /// something that is said about it.
    pub(super) fn note_write(&self) {
        let at = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        if !self.is_folder() {
            let now = Timestamps { last_access: at(UTIME_OMIT), last_modification: at(UTIME_NOW) };
            // What was written stays written, whatever becomes of the time.
            let _ = self.stamp(&now);
        }
    }

    /// `utimensat(2)`, for who may write.
    fn stamp(&self, stamps: &Timestamps) -> Result<(), Errno> {
        let set = || rustix::fs::utimensat(self, c"", stamps, AtFlags::EMPTY_PATH);
        let done = set();
        if done != Err(Errno::PERM) {
            return done;
        }
        match self.owner_to_act_for() {
            owner @ Some(_) => act(&owner, set).unwrap_or(done),
            None => done,
        }
    }

    /// Who owns the file, if whose work this is may write to it: to the kernel its times are the owner's to set, to clients
    /// those of who may write (as with Samba's `dos filetimes`). `None` also where the server acts for nobody.
    fn owner_to_act_for(&self) -> Option<Arc<Actor>> {
        let actor = now()?;
        if self.first_facts().reparse_tag != 0 {
            return None;
        }
        let may = Access::WRITE_OK;
        rustix::fs::accessat(CWD, &*self.proc_path(), may, AtFlags::EACCESS).ok()?;
        let stat = stat(self).ok()?;
        Some(Arc::new(actor.turned_to(stat.stx_uid, stat.stx_gid)))
    }

    /// Sets the DOS attributes; those that follow from the file itself (DIRECTORY, REPARSE_POINT, NORMAL and
    /// others that are not kept) are passed over.
    ///
    /// # Errors
    ///
    /// ACCESS_DENIED for a share that is read-only or a file of somebody else.
    pub fn set_attributes(&self, attributes: Attributes) -> Result<(), NtStatus> {
        self.share().writable()?;
        let wished = attributes & STORED;
        if self.share().config.dos_attributes {
            return self.store(|stored| stored.attributes = Some(wished));
        }
        self.set_readonly(wished.contains(Attributes::READONLY))
    }

    /// Changes what `user.DOSATTRIB` says. Where it cannot be stored, READONLY at least is.
    fn store(&self, change: impl FnOnce(&mut DosAttrib)) -> Result<(), NtStatus> {
        if !self.share().config.dos_attributes || self.first_facts().reparse_tag != 0 {
            return Ok(());
        }
        let path = self.proc_path();
        let mut value = [0; dosattrib::LEN_MAX];
        let before = xattr::get(&path, dosattrib::NAME.as_bytes(), &mut value, true)
            .ok()
            .and_then(|len| DosAttrib::parse(value.get(..len)?));
        let mut after = before.unwrap_or_default();
        change(&mut after);
        if Some(after) == before {
            return Ok(());
        }
        let set = xattr::set(&path, dosattrib::NAME.as_bytes(), &after.emit());
        self.extra_changed();
        match set {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP) => match after.attributes {
                Some(attributes) => self.set_readonly(attributes.contains(Attributes::READONLY)),
                None => Ok(()),
            },
            Err(errno) => Err(status(errno)),
        }
    }

    fn set_readonly(&self, readonly: bool) -> Result<(), NtStatus> {
        let mode = u32::from(stat(self).map_err(status)?.stx_mode) & 0o7777;
        let writers = self.share().config.file_mode & 0o222;
        let wanted = match (readonly, mode & 0o222) {
            (true, _) => mode & !0o222,
            (false, 0) => mode | if writers == 0 { 0o200 } else { writers },
            (false, _) => mode,
        };
        if self.is_folder() || wanted == mode {
            return Ok(());
        }
        self.set_posix(Posix { mode: Some(wanted), ..Posix::default() })
    }

    /// Sets what POSIX knows about a file.
    ///
    /// # Errors
    ///
    /// What `chmod(2)` and `chown(2)` say; not on a symbolic link.
    pub fn set_posix(&self, posix: Posix) -> Result<(), NtStatus> {
        self.share().writable()?;
        if posix.uid.is_some() || posix.gid.is_some() {
            let uid = posix.uid.map(Uid::from_raw);
            let gid = posix.gid.map(Gid::from_raw);
            rustix::fs::chownat(self, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(status)?;
        }
        if let Some(mode) = posix.mode {
            let mode = Mode::from_raw_mode(mode & 0o7777);
            rustix::fs::chmod(&*self.proc_path(), mode).map_err(status)?;
        }
        Ok(())
    }

    /// Sets where the file ends, in bytes.
    ///
    /// # Errors
    ///
    /// FILE_IS_A_DIRECTORY, DISK_FULL, and what `ftruncate(2)` says.
    pub fn set_size(&self, size: u64) -> Result<(), NtStatus> {
        self.with_writer(|fd| rustix::fs::ftruncate(fd, size).map_err(status))
    }

    /// Reserves room for this many bytes, as far as the file system can do that; less than the file has cuts
    /// it off there, as on Windows (MS-FSA 2.1.5.15.1).
    ///
    /// What was reserved before beyond that stays reserved: it could be given back only by cutting the file off at its
    /// end, and with that what somebody else writes behind it at this moment.
    ///
    /// # Errors
    ///
    /// FILE_IS_A_DIRECTORY, DISK_FULL, and what `fallocate(2)` says; nothing is reserved then.
    pub fn set_allocation(&self, bytes: u64) -> Result<(), NtStatus> {
        self.with_writer(|fd| {
            let stat = stat(fd).map_err(status)?;
            if bytes < stat.stx_size {
                return rustix::fs::ftruncate(fd, bytes).map_err(status);
            }
            if bytes <= stat.stx_blocks.saturating_mul(512) || bytes == 0 {
                return Ok(());
            }
            reserve(fd, bytes, |bytes| {
                rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, 0, bytes)
            })
        })
    }

    /// Makes these bytes all that the file holds. Room for them is reserved before anything goes, as far as the file system
    /// can do that.
    ///
    /// # Errors
    ///
    /// As [`Handle::set_allocation`], and what `pwrite(2)` says.
    pub fn hold(&self, bytes: &[u8]) -> Result<(), NtStatus> {
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.with_writer(|fd| {
            if len > 0 {
                let keep = FallocateFlags::KEEP_SIZE;
                reserve(fd, len, |len| rustix::fs::fallocate(fd, keep, 0, len))?;
            }
            let mut done = 0;
            while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
                let at = u64::try_from(done).unwrap_or(u64::MAX);
                match rustix::io::pwrite(fd, rest, at) {
                    Ok(0) => return Err(NtStatus::DISK_FULL),
                    Ok(more) => done += more,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(status(errno)),
                }
            }
            rustix::fs::ftruncate(fd, len).map_err(status)
        })
    }

    /// Makes `range` read as zeros and gives its blocks back (FSCTL_SET_ZERO_DATA); the file keeps its length.
    ///
    /// # Errors
    ///
    /// NOT_SUPPORTED where the file system has no holes, and what `fallocate(2)` says.
    pub fn zero(&self, range: std::ops::Range<u64>) -> Result<(), NtStatus> {
        let len = range.end.saturating_sub(range.start);
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.with_writer(|fd| rustix::fs::fallocate(fd, flags, range.start, len).map_err(status))
    }

    /// A descriptor by which what was written reaches the disk: this one, or another of the same file where this is
    /// none that the kernel synchronizes, as that of a stream is (`O_PATH`). That one is opened once.
    ///
    /// # Errors
    ///
    /// What `open(2)` says to somebody who may neither read nor write the file.
    pub fn sync_fd(&self) -> Result<Arc<OwnedFd>, NtStatus> {
        let want = self.good_for();
        if want.read || want.write {
            return Ok(self.shared_fd().clone());
        }
        if let Some(fd) = self.synced_by.get() {
            return Ok(fd.clone());
        }
        let read = super::Want { read: true, ..super::Want::default() };
        let write = super::Want { write: true, ..super::Want::default() };
        let again = self.reopen(read).or_else(|_| self.reopen(write))?;
        Ok(self.synced_by.get_or_init(|| again.shared_fd().clone()).clone())
    }

    /// Brings what was written to the disk.
    ///
    /// # Errors
    ///
    /// What `fsync(2)` says.
    pub fn sync(&self) -> Result<(), NtStatus> {
        rustix::fs::fsync(self.sync_fd()?).map_err(status)
    }

    /// Calls with a descriptor that may be written to, this one or another of the same file.
    fn with_writer<T>(
        &self,
        call: impl FnOnce(&OwnedFd) -> Result<T, NtStatus>,
    ) -> Result<T, NtStatus> {
        self.share().writable()?;
        if self.is_folder() {
            return Err(NtStatus::FILE_IS_A_DIRECTORY);
        }
        if self.first_facts().reparse_tag != 0 {
            return Err(NtStatus::ACCESS_DENIED);
        }
        if self.good_for().write {
            return call(self.owned_fd());
        }
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let path = super::facts::proc_path(self.as_fd());
        call(&rustix::fs::open(&*path, flags, Mode::empty()).map_err(status)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[track_caller]
    fn on_each(test: impl Fn(&OwnedFd, &dyn Fn() -> u64)) {
        let disk = std::env::temp_dir();
        for place in [std::path::Path::new("/dev/shm"), &disk] {
            let mut file = tempfile::tempfile_in(place).unwrap();
            std::io::Write::write_all(&mut file, &[1; 100]).unwrap();
            file.sync_all().unwrap();
            let fd = OwnedFd::from(file.try_clone().unwrap());
            test(&fd, &|| file.metadata().unwrap().blocks());
            assert_eq!(file.metadata().unwrap().len(), 100);
        }
    }

    #[test]
    fn what_a_file_system_got_before_it_failed_is_given_back() {
        on_each(|fd, blocks| {
            let before = blocks();
            let failed = reserve(fd, 4 << 20, |_| {
                rustix::fs::fallocate(fd, FallocateFlags::KEEP_SIZE, 0, 2 << 20)?;
                assert!(blocks() >= before + 4000, "as ext4 leaves it");
                Err(Errno::NOSPC)
            });
            assert_eq!(failed, Err(NtStatus::DISK_FULL));
            assert_eq!(blocks(), before);
        });
    }

    #[test]
    fn a_file_system_is_not_asked_for_more_than_it_has() {
        on_each(|fd, _| {
            let refused = reserve(fd, 1 << 62, |_| panic!("it was asked"));
            assert_eq!(refused, Err(NtStatus::DISK_FULL));
        });
    }
}
