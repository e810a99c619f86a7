//! What a failed system call is called on the wire.

use rustix::io::Errno;
use smb::NtStatus;

/// [`status`] of an error that came by way of the standard library; IO_DEVICE_ERROR if it was none of the system.
#[must_use]
pub fn status_of(error: &std::io::Error) -> NtStatus {
    match (error.raw_os_error(), error.kind()) {
        (Some(errno), _) => status(Errno::from_raw_os_error(errno)),
        (None, std::io::ErrorKind::StorageFull) => NtStatus::DISK_FULL,
        (None, std::io::ErrorKind::QuotaExceeded) => NtStatus::QUOTA_EXCEEDED,
        (None, _) => NtStatus::IO_DEVICE_ERROR,
    }
}

/// The status for an error of the file system, as Samba's `map_nt_error_from_unix` has it where clients can
/// tell the difference. `ENOENT` becomes `OBJECT_NAME_NOT_FOUND`; that a folder on the way is missing is
/// known to the look-up only.
#[must_use]
pub fn status(errno: Errno) -> NtStatus {
    match errno {
        Errno::NOENT => NtStatus::OBJECT_NAME_NOT_FOUND,
        // `EXDEV` from a look-up beneath the share's root is an attempt to leave it: see `escape`.
        Errno::XDEV => NtStatus::NOT_SAME_DEVICE,
        Errno::ACCESS | Errno::PERM | Errno::TXTBSY => NtStatus::ACCESS_DENIED,
        Errno::EXIST => NtStatus::OBJECT_NAME_COLLISION,
        Errno::NOTDIR => NtStatus::NOT_A_DIRECTORY,
        Errno::ISDIR => NtStatus::FILE_IS_A_DIRECTORY,
        Errno::NOTEMPTY => NtStatus::DIRECTORY_NOT_EMPTY,
        Errno::NAMETOOLONG | Errno::ILSEQ => NtStatus::OBJECT_NAME_INVALID,
        Errno::LOOP => NtStatus::OBJECT_PATH_NOT_FOUND,
        Errno::NOSPC | Errno::FBIG => NtStatus::DISK_FULL,
        Errno::DQUOT => NtStatus::QUOTA_EXCEEDED,
        Errno::ROFS => NtStatus::MEDIA_WRITE_PROTECTED,
        Errno::MFILE | Errno::NFILE => NtStatus::TOO_MANY_OPENED_FILES,
        Errno::MLINK => NtStatus::TOO_MANY_LINKS,
        Errno::BUSY => NtStatus::SHARING_VIOLATION,
        Errno::NOMEM => NtStatus::NO_MEMORY,
        Errno::NOBUFS => NtStatus::INSUFFICIENT_RESOURCES,
        Errno::INVAL | Errno::RANGE | Errno::OVERFLOW => NtStatus::INVALID_PARAMETER,
        Errno::BADF => NtStatus::INVALID_HANDLE,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => NtStatus::NOT_SUPPORTED,
        Errno::NODATA => NtStatus::NOT_FOUND,
        Errno::TOOBIG => NtStatus::EA_TOO_LARGE,
        Errno::IO => NtStatus::IO_DEVICE_ERROR,
        Errno::NODEV | Errno::NXIO => NtStatus::NO_SUCH_DEVICE,
        Errno::STALE => NtStatus::FILE_CLOSED,
        Errno::AGAIN | Errno::DEADLK => NtStatus::FILE_LOCK_CONFLICT,
        Errno::CANCELED => NtStatus::CANCELLED,
        Errno::TIMEDOUT => NtStatus::IO_TIMEOUT,
        _ => NtStatus::UNSUCCESSFUL,
    }
}

#[cfg(test)]
mod tests {
    use super::{Errno, NtStatus, status};

    #[test]
    fn what_users_meet_has_its_own_status() {
        for (errno, want) in [
            (Errno::NOSPC, NtStatus::DISK_FULL),
            (Errno::DQUOT, NtStatus::QUOTA_EXCEEDED),
            (Errno::ROFS, NtStatus::MEDIA_WRITE_PROTECTED),
            (Errno::MFILE, NtStatus::TOO_MANY_OPENED_FILES),
            (Errno::NOTEMPTY, NtStatus::DIRECTORY_NOT_EMPTY),
        ] {
            assert_eq!(status(errno), want);
        }
        assert!(status(Errno::from_raw_os_error(4000)).is_error());
    }
}
