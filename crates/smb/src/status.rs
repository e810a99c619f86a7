//! What became of a request: NTSTATUS (MS-ERREF 2.3).

use std::fmt;

/// An NTSTATUS. The top two bits say success, information, warning or error.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NtStatus(pub u32);

impl NtStatus {
    /// Whether this is an error, as opposed to success, information or warning.
    #[must_use]
    pub const fn is_error(self) -> bool {
        self.0 >> 30 == 3
    }

    /// The name of the specification without `STATUS_`, if this is one that we say.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(status, _)| *status == self).map(|(_, name)| *name)
    }
}

impl fmt::Display for NtStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "STATUS_{name}"),
            None => write!(f, "status {:#010x}", self.0),
        }
    }
}

impl fmt::Debug for NtStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for NtStatus {}

impl NtStatus {
    /// STATUS_SUCCESS: it worked.
    pub const SUCCESS: Self = Self(0x0000_0000);
    /// STATUS_PENDING: the answer comes later; this is the interim one.
    pub const PENDING: Self = Self(0x0000_0103);
    /// STATUS_SOME_NOT_MAPPED: not all of these users or groups are known.
    pub const SOME_NOT_MAPPED: Self = Self(0x0000_0107);
    /// STATUS_NOTIFY_CLEANUP: the directory that was watched is closed.
    pub const NOTIFY_CLEANUP: Self = Self(0x0000_010b);
    /// STATUS_NOTIFY_ENUM_DIR: more changed than fits: look at the directory again.
    pub const NOTIFY_ENUM_DIR: Self = Self(0x0000_010c);
    /// STATUS_BUFFER_OVERFLOW: there is more than fits; what fits is here.
    pub const BUFFER_OVERFLOW: Self = Self(0x8000_0005);
    /// STATUS_NO_MORE_FILES: the enumeration is at its end.
    pub const NO_MORE_FILES: Self = Self(0x8000_0006);
    /// STATUS_STOPPED_ON_SYMLINK: a symbolic link is on the way; the client is to follow it.
    pub const STOPPED_ON_SYMLINK: Self = Self(0x8000_002d);
    /// STATUS_INVALID_EA_NAME: an extended attribute has a name that cannot be.
    pub const INVALID_EA_NAME: Self = Self(0x8000_0013);
    /// STATUS_EA_LIST_INCONSISTENT: the list of extended attributes does not hold together.
    pub const EA_LIST_INCONSISTENT: Self = Self(0x8000_0014);
    /// STATUS_NO_MORE_EAS: no further extended attributes.
    pub const NO_MORE_EAS: Self = Self(0x8000_0012);
    /// STATUS_UNSUCCESSFUL: it failed, and there is no better word.
    pub const UNSUCCESSFUL: Self = Self(0xc000_0001);
    /// STATUS_NOT_IMPLEMENTED: nobody has built this.
    pub const NOT_IMPLEMENTED: Self = Self(0xc000_0002);
    /// STATUS_INVALID_INFO_CLASS: no such information level.
    pub const INVALID_INFO_CLASS: Self = Self(0xc000_0003);
    /// STATUS_INFO_LENGTH_MISMATCH: the buffer has not the length that this level has.
    pub const INFO_LENGTH_MISMATCH: Self = Self(0xc000_0004);
    /// STATUS_INVALID_HANDLE: no such handle.
    pub const INVALID_HANDLE: Self = Self(0xc000_0008);
    /// STATUS_INVALID_PARAMETER: the request contradicts itself or the specification.
    pub const INVALID_PARAMETER: Self = Self(0xc000_000d);
    /// STATUS_NO_SUCH_DEVICE: no such device.
    pub const NO_SUCH_DEVICE: Self = Self(0xc000_000e);
    /// STATUS_NO_SUCH_FILE: nothing matches the pattern.
    pub const NO_SUCH_FILE: Self = Self(0xc000_000f);
    /// STATUS_INVALID_DEVICE_REQUEST: not on an object of this kind.
    pub const INVALID_DEVICE_REQUEST: Self = Self(0xc000_0010);
    /// STATUS_END_OF_FILE: the read starts behind the last byte.
    pub const END_OF_FILE: Self = Self(0xc000_0011);
    /// STATUS_MORE_PROCESSING_REQUIRED: authentication needs another step.
    pub const MORE_PROCESSING_REQUIRED: Self = Self(0xc000_0016);
    /// STATUS_NO_MEMORY: a limit of memory is reached.
    pub const NO_MEMORY: Self = Self(0xc000_0017);
    /// STATUS_INVALID_VIEW_SIZE: more than the source of a copy has.
    pub const INVALID_VIEW_SIZE: Self = Self(0xc000_001f);
    /// STATUS_ACCESS_DENIED: the user may not.
    pub const ACCESS_DENIED: Self = Self(0xc000_0022);
    /// STATUS_BUFFER_TOO_SMALL: the answer does not fit.
    pub const BUFFER_TOO_SMALL: Self = Self(0xc000_0023);
    /// STATUS_OBJECT_TYPE_MISMATCH: a thing of another kind.
    pub const OBJECT_TYPE_MISMATCH: Self = Self(0xc000_0024);
    /// STATUS_OBJECT_NAME_INVALID: a name that cannot be.
    pub const OBJECT_NAME_INVALID: Self = Self(0xc000_0033);
    /// STATUS_OBJECT_NAME_NOT_FOUND: no such file; its folder is there.
    pub const OBJECT_NAME_NOT_FOUND: Self = Self(0xc000_0034);
    /// STATUS_OBJECT_NAME_COLLISION: a file of that name is there already.
    pub const OBJECT_NAME_COLLISION: Self = Self(0xc000_0035);
    /// STATUS_OBJECT_PATH_INVALID: a path that cannot be.
    pub const OBJECT_PATH_INVALID: Self = Self(0xc000_0039);
    /// STATUS_OBJECT_PATH_NOT_FOUND: a folder on the way is not there.
    pub const OBJECT_PATH_NOT_FOUND: Self = Self(0xc000_003a);
    /// STATUS_OBJECT_PATH_SYNTAX_BAD: a path that cannot be read.
    pub const OBJECT_PATH_SYNTAX_BAD: Self = Self(0xc000_003b);
    /// STATUS_DATA_ERROR: the device lost data.
    pub const DATA_ERROR: Self = Self(0xc000_003e);
    /// STATUS_CRC_ERROR: the device found a wrong checksum.
    pub const CRC_ERROR: Self = Self(0xc000_003f);
    /// STATUS_SHARING_VIOLATION: somebody has it open and does not share it that way.
    pub const SHARING_VIOLATION: Self = Self(0xc000_0043);
    /// STATUS_QUOTA_EXCEEDED: the user's quota is full.
    pub const QUOTA_EXCEEDED: Self = Self(0xc000_0044);
    /// STATUS_EAS_NOT_SUPPORTED: no extended attributes here.
    pub const EAS_NOT_SUPPORTED: Self = Self(0xc000_004f);
    /// STATUS_EA_TOO_LARGE: the extended attributes do not fit.
    pub const EA_TOO_LARGE: Self = Self(0xc000_0050);
    /// STATUS_NONEXISTENT_EA_ENTRY: no such extended attribute.
    pub const NONEXISTENT_EA_ENTRY: Self = Self(0xc000_0051);
    /// STATUS_NO_EAS_ON_FILE: the file has no extended attributes.
    pub const NO_EAS_ON_FILE: Self = Self(0xc000_0052);
    /// STATUS_FILE_LOCK_CONFLICT: the bytes are locked against this operation.
    pub const FILE_LOCK_CONFLICT: Self = Self(0xc000_0054);
    /// STATUS_LOCK_NOT_GRANTED: the bytes are locked by somebody else.
    pub const LOCK_NOT_GRANTED: Self = Self(0xc000_0055);
    /// STATUS_DELETE_PENDING: the file goes when its last open is closed.
    pub const DELETE_PENDING: Self = Self(0xc000_0056);
    /// STATUS_PRIVILEGE_NOT_HELD: the user has not that privilege.
    pub const PRIVILEGE_NOT_HELD: Self = Self(0xc000_0061);
    /// STATUS_WRONG_PASSWORD: not that user's password.
    pub const WRONG_PASSWORD: Self = Self(0xc000_006a);
    /// STATUS_LOGON_FAILURE: unknown user or wrong password.
    pub const LOGON_FAILURE: Self = Self(0xc000_006d);
    /// STATUS_ACCOUNT_RESTRICTION: the account may not log on in this way.
    pub const ACCOUNT_RESTRICTION: Self = Self(0xc000_006e);
    /// STATUS_PASSWORD_EXPIRED: the password is too old.
    pub const PASSWORD_EXPIRED: Self = Self(0xc000_0071);
    /// STATUS_ACCOUNT_DISABLED: the account is locked by its administrator.
    pub const ACCOUNT_DISABLED: Self = Self(0xc000_0072);
    /// STATUS_NONE_MAPPED: no such user or group.
    pub const NONE_MAPPED: Self = Self(0xc000_0073);
    /// STATUS_INVALID_OWNER: that owner cannot be set.
    pub const INVALID_OWNER: Self = Self(0xc000_005a);
    /// STATUS_INVALID_SID: not a security identifier.
    pub const INVALID_SID: Self = Self(0xc000_0078);
    /// STATUS_INVALID_ACL: not an access control list.
    pub const INVALID_ACL: Self = Self(0xc000_0077);
    /// STATUS_INVALID_SECURITY_DESCR: not a security descriptor.
    pub const INVALID_SECURITY_DESCR: Self = Self(0xc000_0079);
    /// STATUS_RANGE_NOT_LOCKED: those bytes are not locked.
    pub const RANGE_NOT_LOCKED: Self = Self(0xc000_007e);
    /// STATUS_DISK_FULL: no space left.
    pub const DISK_FULL: Self = Self(0xc000_007f);
    /// STATUS_INSUFFICIENT_RESOURCES: a limit is reached.
    pub const INSUFFICIENT_RESOURCES: Self = Self(0xc000_009a);
    /// STATUS_MEDIA_WRITE_PROTECTED: the file system is read-only.
    pub const MEDIA_WRITE_PROTECTED: Self = Self(0xc000_00a2);
    /// STATUS_IO_DEVICE_ERROR: the device failed.
    pub const IO_DEVICE_ERROR: Self = Self(0xc000_0185);
    /// STATUS_INSTANCE_NOT_AVAILABLE: no free instance of the pipe.
    pub const INSTANCE_NOT_AVAILABLE: Self = Self(0xc000_00ab);
    /// STATUS_PIPE_NOT_AVAILABLE: no such pipe.
    pub const PIPE_NOT_AVAILABLE: Self = Self(0xc000_00ac);
    /// STATUS_PIPE_BUSY: the pipe is busy.
    pub const PIPE_BUSY: Self = Self(0xc000_00ae);
    /// STATUS_PIPE_DISCONNECTED: the pipe is disconnected.
    pub const PIPE_DISCONNECTED: Self = Self(0xc000_00b0);
    /// STATUS_PIPE_CLOSING: the pipe is closing.
    pub const PIPE_CLOSING: Self = Self(0xc000_00b1);
    /// STATUS_PIPE_EMPTY: nothing to read in the pipe.
    pub const PIPE_EMPTY: Self = Self(0xc000_00d9);
    /// STATUS_IO_TIMEOUT: the device took too long.
    pub const IO_TIMEOUT: Self = Self(0xc000_00b5);
    /// STATUS_FILE_FORCED_CLOSED: the open was taken by a later run of the same program.
    pub const FILE_FORCED_CLOSED: Self = Self(0xc000_00b6);
    /// STATUS_FILE_IS_A_DIRECTORY: a directory where a file must be.
    pub const FILE_IS_A_DIRECTORY: Self = Self(0xc000_00ba);
    /// STATUS_NOT_SUPPORTED: not supported.
    pub const NOT_SUPPORTED: Self = Self(0xc000_00bb);
    /// STATUS_BAD_NETWORK_PATH: no such path.
    pub const BAD_NETWORK_PATH: Self = Self(0xc000_00be);
    /// STATUS_DUPLICATE_NAME: the name is taken.
    pub const DUPLICATE_NAME: Self = Self(0xc000_00bd);
    /// STATUS_BAD_NETWORK_NAME: no such share.
    pub const BAD_NETWORK_NAME: Self = Self(0xc000_00cc);
    /// STATUS_REQUEST_NOT_ACCEPTED: the server is full.
    pub const REQUEST_NOT_ACCEPTED: Self = Self(0xc000_00d0);
    /// STATUS_INVALID_OPLOCK_PROTOCOL: an acknowledgement of a break that was not asked for.
    pub const INVALID_OPLOCK_PROTOCOL: Self = Self(0xc000_00e3);
    /// STATUS_INTERNAL_ERROR: a fault of the server.
    pub const INTERNAL_ERROR: Self = Self(0xc000_00e5);
    /// STATUS_NOT_SAME_DEVICE: source and target are on different file systems.
    pub const NOT_SAME_DEVICE: Self = Self(0xc000_00d4);
    /// STATUS_FILE_RENAMED: the file was renamed.
    pub const FILE_RENAMED: Self = Self(0xc000_00d5);
    /// STATUS_DIRECTORY_NOT_EMPTY: the directory has entries.
    pub const DIRECTORY_NOT_EMPTY: Self = Self(0xc000_0101);
    /// STATUS_NOT_A_DIRECTORY: a file where a directory must be.
    pub const NOT_A_DIRECTORY: Self = Self(0xc000_0103);
    /// STATUS_CANCELLED: the client took the request back.
    pub const CANCELLED: Self = Self(0xc000_0120);
    /// STATUS_CANNOT_DELETE: the file may not be deleted.
    pub const CANNOT_DELETE: Self = Self(0xc000_0121);
    /// STATUS_FILE_DELETED: the file is deleted.
    pub const FILE_DELETED: Self = Self(0xc000_0123);
    /// STATUS_FILE_CLOSED: the open is closed.
    pub const FILE_CLOSED: Self = Self(0xc000_0128);
    /// STATUS_NETWORK_NAME_DELETED: the tree connect is gone.
    pub const NETWORK_NAME_DELETED: Self = Self(0xc000_00c9);
    /// STATUS_USER_SESSION_DELETED: no such session, any more.
    pub const USER_SESSION_DELETED: Self = Self(0xc000_0203);
    /// STATUS_NETWORK_SESSION_EXPIRED: the session must be authenticated again.
    pub const NETWORK_SESSION_EXPIRED: Self = Self(0xc000_035c);
    /// STATUS_NOT_FOUND: what was asked for is not there.
    pub const NOT_FOUND: Self = Self(0xc000_0225);
    /// STATUS_TOO_MANY_OPENED_FILES: too many opens.
    pub const TOO_MANY_OPENED_FILES: Self = Self(0xc000_011f);
    /// STATUS_TOO_MANY_LINKS: too many hard links.
    pub const TOO_MANY_LINKS: Self = Self(0xc000_0265);
    /// STATUS_REPARSE_POINT_NOT_RESOLVED: a reparse point that leads nowhere.
    pub const REPARSE_POINT_NOT_RESOLVED: Self = Self(0xc000_0280);
    /// STATUS_FS_DRIVER_REQUIRED: nobody here knows this control code.
    pub const FS_DRIVER_REQUIRED: Self = Self(0xc000_019c);
    /// STATUS_NOT_A_REPARSE_POINT: no reparse point.
    pub const NOT_A_REPARSE_POINT: Self = Self(0xc000_0275);
    /// STATUS_IO_REPARSE_TAG_MISMATCH: another kind of reparse point.
    pub const IO_REPARSE_TAG_MISMATCH: Self = Self(0xc000_0277);
    /// STATUS_IO_REPARSE_TAG_INVALID: a kind of reparse point that cannot be.
    pub const IO_REPARSE_TAG_INVALID: Self = Self(0xc000_0276);
    /// STATUS_IO_REPARSE_DATA_INVALID: a reparse point whose data makes no sense.
    pub const IO_REPARSE_DATA_INVALID: Self = Self(0xc000_0278);
    /// STATUS_IO_REPARSE_TAG_NOT_HANDLED: a kind of reparse point that nobody handles.
    pub const IO_REPARSE_TAG_NOT_HANDLED: Self = Self(0xc000_0279);
    /// STATUS_DEVICE_FEATURE_NOT_SUPPORTED: the file system cannot do that.
    pub const DEVICE_FEATURE_NOT_SUPPORTED: Self = Self(0xc000_0463);
    /// STATUS_CONNECTION_DISCONNECTED: the connection is gone.
    pub const CONNECTION_DISCONNECTED: Self = Self(0xc000_020c);
    /// STATUS_INVALID_LOCK_RANGE: the range wraps around.
    pub const INVALID_LOCK_RANGE: Self = Self(0xc000_01a1);
    /// STATUS_FILE_NOT_AVAILABLE: the file is in use by a request that is still going on.
    pub const FILE_NOT_AVAILABLE: Self = Self(0xc000_0467);
    /// STATUS_FILE_SYSTEM_LIMITATION: the file system cannot hold that.
    pub const FILE_SYSTEM_LIMITATION: Self = Self(0xc000_0427);
    /// STATUS_INVALID_DEVICE_STATE: not in this state.
    pub const INVALID_DEVICE_STATE: Self = Self(0xc000_0184);
    /// STATUS_DIRECTORY_IS_A_REPARSE_POINT: a reparse point where a directory must be.
    pub const DIRECTORY_IS_A_REPARSE_POINT: Self = Self(0xc000_0281);
    /// STATUS_ACCOUNT_LOCKED_OUT: too many wrong passwords.
    pub const ACCOUNT_LOCKED_OUT: Self = Self(0xc000_0234);
    /// STATUS_LOGON_TYPE_NOT_GRANTED: the user may not log on to this machine.
    pub const LOGON_TYPE_NOT_GRANTED: Self = Self(0xc000_015b);
    /// STATUS_INVALID_LOGON_HOURS: not at this hour.
    pub const INVALID_LOGON_HOURS: Self = Self(0xc000_006f);
    /// STATUS_SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP: no preauthentication hash that both know.
    pub const SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP: Self = Self(0xc05d_0000);
    /// STATUS_REQUEST_OUT_OF_SEQUENCE: not at this point.
    pub const REQUEST_OUT_OF_SEQUENCE: Self = Self(0xc000_042a);
    /// STATUS_UNEXPECTED_NETWORK_ERROR: the connection failed.
    pub const UNEXPECTED_NETWORK_ERROR: Self = Self(0xc000_00c4);
    /// STATUS_UNKNOWN_REVISION: a revision that nobody knows.
    pub const UNKNOWN_REVISION: Self = Self(0xc000_0058);
    /// STATUS_NO_SUCH_LOGON_SESSION: no such logon.
    pub const NO_SUCH_LOGON_SESSION: Self = Self(0xc000_005f);
    /// STATUS_NO_SUCH_USER: no such user.
    pub const NO_SUCH_USER: Self = Self(0xc000_0064);
    /// STATUS_TRUSTED_DOMAIN_FAILURE: no trust.
    pub const TRUSTED_DOMAIN_FAILURE: Self = Self(0xc000_018c);
    /// STATUS_NETWORK_ACCESS_DENIED: not by the network.
    pub const NETWORK_ACCESS_DENIED: Self = Self(0xc000_00ca);
    /// STATUS_BAD_IMPERSONATION_LEVEL: an impersonation level that cannot be.
    pub const BAD_IMPERSONATION_LEVEL: Self = Self(0xc000_00a5);
    /// STATUS_DISK_CORRUPT_ERROR: the file system is damaged.
    pub const DISK_CORRUPT_ERROR: Self = Self(0xc000_0032);
    /// STATUS_FILE_CORRUPT_ERROR: the file is damaged.
    pub const FILE_CORRUPT_ERROR: Self = Self(0xc000_0102);
    /// STATUS_VOLUME_DISMOUNTED: the file system is gone.
    pub const VOLUME_DISMOUNTED: Self = Self(0xc000_026e);
    /// STATUS_DUPLICATE_OBJECTID: an open of that name is there already.
    pub const DUPLICATE_OBJECTID: Self = Self(0xc000_022a);
    /// STATUS_NAME_TOO_LONG: the name is too long.
    pub const NAME_TOO_LONG: Self = Self(0xc000_0106);
    /// STATUS_TIMEOUT: it took too long.
    pub const TIMEOUT: Self = Self(0x0000_0102);
    /// STATUS_LOCAL_DISCONNECT: this end gave the connection up.
    pub const LOCAL_DISCONNECT: Self = Self(0xc000_013b);
}

/// Every status that has a name here.
const NAMES: &[(NtStatus, &str)] = &[
    (NtStatus::SUCCESS, "SUCCESS"),
    (NtStatus::PENDING, "PENDING"),
    (NtStatus::SOME_NOT_MAPPED, "SOME_NOT_MAPPED"),
    (NtStatus::NOTIFY_CLEANUP, "NOTIFY_CLEANUP"),
    (NtStatus::NOTIFY_ENUM_DIR, "NOTIFY_ENUM_DIR"),
    (NtStatus::BUFFER_OVERFLOW, "BUFFER_OVERFLOW"),
    (NtStatus::NO_MORE_FILES, "NO_MORE_FILES"),
    (NtStatus::STOPPED_ON_SYMLINK, "STOPPED_ON_SYMLINK"),
    (NtStatus::INVALID_EA_NAME, "INVALID_EA_NAME"),
    (NtStatus::EA_LIST_INCONSISTENT, "EA_LIST_INCONSISTENT"),
    (NtStatus::NO_MORE_EAS, "NO_MORE_EAS"),
    (NtStatus::UNSUCCESSFUL, "UNSUCCESSFUL"),
    (NtStatus::NOT_IMPLEMENTED, "NOT_IMPLEMENTED"),
    (NtStatus::INVALID_INFO_CLASS, "INVALID_INFO_CLASS"),
    (NtStatus::INFO_LENGTH_MISMATCH, "INFO_LENGTH_MISMATCH"),
    (NtStatus::INVALID_HANDLE, "INVALID_HANDLE"),
    (NtStatus::INVALID_PARAMETER, "INVALID_PARAMETER"),
    (NtStatus::NO_SUCH_DEVICE, "NO_SUCH_DEVICE"),
    (NtStatus::NO_SUCH_FILE, "NO_SUCH_FILE"),
    (NtStatus::INVALID_DEVICE_REQUEST, "INVALID_DEVICE_REQUEST"),
    (NtStatus::END_OF_FILE, "END_OF_FILE"),
    (NtStatus::MORE_PROCESSING_REQUIRED, "MORE_PROCESSING_REQUIRED"),
    (NtStatus::NO_MEMORY, "NO_MEMORY"),
    (NtStatus::INVALID_VIEW_SIZE, "INVALID_VIEW_SIZE"),
    (NtStatus::ACCESS_DENIED, "ACCESS_DENIED"),
    (NtStatus::BUFFER_TOO_SMALL, "BUFFER_TOO_SMALL"),
    (NtStatus::OBJECT_TYPE_MISMATCH, "OBJECT_TYPE_MISMATCH"),
    (NtStatus::OBJECT_NAME_INVALID, "OBJECT_NAME_INVALID"),
    (NtStatus::OBJECT_NAME_NOT_FOUND, "OBJECT_NAME_NOT_FOUND"),
    (NtStatus::OBJECT_NAME_COLLISION, "OBJECT_NAME_COLLISION"),
    (NtStatus::OBJECT_PATH_INVALID, "OBJECT_PATH_INVALID"),
    (NtStatus::OBJECT_PATH_NOT_FOUND, "OBJECT_PATH_NOT_FOUND"),
    (NtStatus::OBJECT_PATH_SYNTAX_BAD, "OBJECT_PATH_SYNTAX_BAD"),
    (NtStatus::DATA_ERROR, "DATA_ERROR"),
    (NtStatus::CRC_ERROR, "CRC_ERROR"),
    (NtStatus::SHARING_VIOLATION, "SHARING_VIOLATION"),
    (NtStatus::QUOTA_EXCEEDED, "QUOTA_EXCEEDED"),
    (NtStatus::EAS_NOT_SUPPORTED, "EAS_NOT_SUPPORTED"),
    (NtStatus::EA_TOO_LARGE, "EA_TOO_LARGE"),
    (NtStatus::NONEXISTENT_EA_ENTRY, "NONEXISTENT_EA_ENTRY"),
    (NtStatus::NO_EAS_ON_FILE, "NO_EAS_ON_FILE"),
    (NtStatus::FILE_LOCK_CONFLICT, "FILE_LOCK_CONFLICT"),
    (NtStatus::LOCK_NOT_GRANTED, "LOCK_NOT_GRANTED"),
    (NtStatus::DELETE_PENDING, "DELETE_PENDING"),
    (NtStatus::PRIVILEGE_NOT_HELD, "PRIVILEGE_NOT_HELD"),
    (NtStatus::WRONG_PASSWORD, "WRONG_PASSWORD"),
    (NtStatus::LOGON_FAILURE, "LOGON_FAILURE"),
    (NtStatus::ACCOUNT_RESTRICTION, "ACCOUNT_RESTRICTION"),
    (NtStatus::PASSWORD_EXPIRED, "PASSWORD_EXPIRED"),
    (NtStatus::ACCOUNT_DISABLED, "ACCOUNT_DISABLED"),
    (NtStatus::NONE_MAPPED, "NONE_MAPPED"),
    (NtStatus::INVALID_OWNER, "INVALID_OWNER"),
    (NtStatus::INVALID_SID, "INVALID_SID"),
    (NtStatus::INVALID_ACL, "INVALID_ACL"),
    (NtStatus::INVALID_SECURITY_DESCR, "INVALID_SECURITY_DESCR"),
    (NtStatus::RANGE_NOT_LOCKED, "RANGE_NOT_LOCKED"),
    (NtStatus::DISK_FULL, "DISK_FULL"),
    (NtStatus::INSUFFICIENT_RESOURCES, "INSUFFICIENT_RESOURCES"),
    (NtStatus::MEDIA_WRITE_PROTECTED, "MEDIA_WRITE_PROTECTED"),
    (NtStatus::IO_DEVICE_ERROR, "IO_DEVICE_ERROR"),
    (NtStatus::INSTANCE_NOT_AVAILABLE, "INSTANCE_NOT_AVAILABLE"),
    (NtStatus::PIPE_NOT_AVAILABLE, "PIPE_NOT_AVAILABLE"),
    (NtStatus::PIPE_BUSY, "PIPE_BUSY"),
    (NtStatus::PIPE_DISCONNECTED, "PIPE_DISCONNECTED"),
    (NtStatus::PIPE_CLOSING, "PIPE_CLOSING"),
    (NtStatus::PIPE_EMPTY, "PIPE_EMPTY"),
    (NtStatus::IO_TIMEOUT, "IO_TIMEOUT"),
    (NtStatus::FILE_IS_A_DIRECTORY, "FILE_IS_A_DIRECTORY"),
    (NtStatus::NOT_SUPPORTED, "NOT_SUPPORTED"),
    (NtStatus::BAD_NETWORK_PATH, "BAD_NETWORK_PATH"),
    (NtStatus::DUPLICATE_NAME, "DUPLICATE_NAME"),
    (NtStatus::BAD_NETWORK_NAME, "BAD_NETWORK_NAME"),
    (NtStatus::REQUEST_NOT_ACCEPTED, "REQUEST_NOT_ACCEPTED"),
    (NtStatus::INVALID_OPLOCK_PROTOCOL, "INVALID_OPLOCK_PROTOCOL"),
    (NtStatus::INTERNAL_ERROR, "INTERNAL_ERROR"),
    (NtStatus::NOT_SAME_DEVICE, "NOT_SAME_DEVICE"),
    (NtStatus::FILE_RENAMED, "FILE_RENAMED"),
    (NtStatus::DIRECTORY_NOT_EMPTY, "DIRECTORY_NOT_EMPTY"),
    (NtStatus::NOT_A_DIRECTORY, "NOT_A_DIRECTORY"),
    (NtStatus::CANCELLED, "CANCELLED"),
    (NtStatus::CANNOT_DELETE, "CANNOT_DELETE"),
    (NtStatus::FILE_DELETED, "FILE_DELETED"),
    (NtStatus::FILE_CLOSED, "FILE_CLOSED"),
    (NtStatus::FILE_FORCED_CLOSED, "FILE_FORCED_CLOSED"),
    (NtStatus::NETWORK_NAME_DELETED, "NETWORK_NAME_DELETED"),
    (NtStatus::USER_SESSION_DELETED, "USER_SESSION_DELETED"),
    (NtStatus::NETWORK_SESSION_EXPIRED, "NETWORK_SESSION_EXPIRED"),
    (NtStatus::NOT_FOUND, "NOT_FOUND"),
    (NtStatus::TOO_MANY_OPENED_FILES, "TOO_MANY_OPENED_FILES"),
    (NtStatus::TOO_MANY_LINKS, "TOO_MANY_LINKS"),
    (NtStatus::REPARSE_POINT_NOT_RESOLVED, "REPARSE_POINT_NOT_RESOLVED"),
    (NtStatus::FS_DRIVER_REQUIRED, "FS_DRIVER_REQUIRED"),
    (NtStatus::NOT_A_REPARSE_POINT, "NOT_A_REPARSE_POINT"),
    (NtStatus::IO_REPARSE_TAG_MISMATCH, "IO_REPARSE_TAG_MISMATCH"),
    (NtStatus::IO_REPARSE_TAG_INVALID, "IO_REPARSE_TAG_INVALID"),
    (NtStatus::IO_REPARSE_DATA_INVALID, "IO_REPARSE_DATA_INVALID"),
    (NtStatus::IO_REPARSE_TAG_NOT_HANDLED, "IO_REPARSE_TAG_NOT_HANDLED"),
    (NtStatus::DEVICE_FEATURE_NOT_SUPPORTED, "DEVICE_FEATURE_NOT_SUPPORTED"),
    (NtStatus::CONNECTION_DISCONNECTED, "CONNECTION_DISCONNECTED"),
    (NtStatus::INVALID_LOCK_RANGE, "INVALID_LOCK_RANGE"),
    (NtStatus::FILE_NOT_AVAILABLE, "FILE_NOT_AVAILABLE"),
    (NtStatus::FILE_SYSTEM_LIMITATION, "FILE_SYSTEM_LIMITATION"),
    (NtStatus::INVALID_DEVICE_STATE, "INVALID_DEVICE_STATE"),
    (NtStatus::DIRECTORY_IS_A_REPARSE_POINT, "DIRECTORY_IS_A_REPARSE_POINT"),
    (NtStatus::ACCOUNT_LOCKED_OUT, "ACCOUNT_LOCKED_OUT"),
    (NtStatus::LOGON_TYPE_NOT_GRANTED, "LOGON_TYPE_NOT_GRANTED"),
    (NtStatus::INVALID_LOGON_HOURS, "INVALID_LOGON_HOURS"),
    (NtStatus::SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP, "SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP"),
    (NtStatus::REQUEST_OUT_OF_SEQUENCE, "REQUEST_OUT_OF_SEQUENCE"),
    (NtStatus::UNEXPECTED_NETWORK_ERROR, "UNEXPECTED_NETWORK_ERROR"),
    (NtStatus::UNKNOWN_REVISION, "UNKNOWN_REVISION"),
    (NtStatus::NO_SUCH_LOGON_SESSION, "NO_SUCH_LOGON_SESSION"),
    (NtStatus::NO_SUCH_USER, "NO_SUCH_USER"),
    (NtStatus::TRUSTED_DOMAIN_FAILURE, "TRUSTED_DOMAIN_FAILURE"),
    (NtStatus::NETWORK_ACCESS_DENIED, "NETWORK_ACCESS_DENIED"),
    (NtStatus::BAD_IMPERSONATION_LEVEL, "BAD_IMPERSONATION_LEVEL"),
    (NtStatus::DISK_CORRUPT_ERROR, "DISK_CORRUPT_ERROR"),
    (NtStatus::FILE_CORRUPT_ERROR, "FILE_CORRUPT_ERROR"),
    (NtStatus::VOLUME_DISMOUNTED, "VOLUME_DISMOUNTED"),
    (NtStatus::DUPLICATE_OBJECTID, "DUPLICATE_OBJECTID"),
    (NtStatus::NAME_TOO_LONG, "NAME_TOO_LONG"),
    (NtStatus::TIMEOUT, "TIMEOUT"),
    (NtStatus::LOCAL_DISCONNECT, "LOCAL_DISCONNECT"),
];

#[cfg(test)]
mod tests {
    use super::NtStatus;

    #[test]
    fn says_its_name_or_its_number() {
        assert_eq!(NtStatus::ACCESS_DENIED.to_string(), "STATUS_ACCESS_DENIED");
        assert_eq!(NtStatus(0xc123_4567).to_string(), "status 0xc1234567");
        assert!(NtStatus::ACCESS_DENIED.is_error() && !NtStatus::BUFFER_OVERFLOW.is_error());
    }
}
