//! What is wrong with a create before anything is looked at.

use smb::wire::create::Request;
use smb::{Access, Attributes, CreateOptions, NtStatus, ShareAccess};

/// Attributes that may be named with a create; of those that are not settable nothing is heard again.
const ATTRIBUTES: u32 = 0x0000_7fb7;

/// Rights that there are.
const ACCESS: Access = Access::FILE_ALL
    .union(Access::SYSTEM_SECURITY)
    .union(Access::MAXIMUM_ALLOWED)
    .union(Access::GENERIC_ALL)
    .union(Access::GENERIC_EXECUTE)
    .union(Access::GENERIC_WRITE)
    .union(Access::GENERIC_READ);

/// Create options that mean nothing.
const UNKNOWN_OPTIONS: u32 = 0xff00_0000;

/// Create options that mean something which is not done: FILE_CREATE_TREE_CONNECTION, FILE_OPEN_BY_FILE_ID,
/// FILE_RESERVE_OPFILTER.
const REFUSED_OPTIONS: u32 = 0x0010_2080;

/// What is wrong with a request whatever it is for (MS-SMB2 3.3.5.9, MS-FSA 2.1.5.1).
pub(super) fn check(request: &Request<'_>) -> Result<(), NtStatus> {
    let options = request.options;
    let access = request.access;
    if access.is_empty() || !ACCESS.contains(access) {
        return Err(NtStatus::ACCESS_DENIED);
    }
    let both = CreateOptions::DIRECTORY_FILE | CreateOptions::NON_DIRECTORY_FILE;
    if options.contains(both) || !ShareAccess::all().contains(request.share) {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if options.bits() & UNKNOWN_OPTIONS != 0 {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if options.bits() & REFUSED_OPTIONS != 0 {
        return Err(NtStatus::NOT_SUPPORTED);
    }
    if request.attributes.bits() & !ATTRIBUTES != 0 {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if request.attributes.contains(Attributes::ENCRYPTED) && request.disposition.may_create() {
        // Nothing is kept encrypted here, and nobody is to believe that it is.
        return Err(NtStatus::ACCESS_DENIED);
    }
    if access.contains(Access::SYSTEM_SECURITY) {
        // Nobody is an auditor here.
        return Err(NtStatus::PRIVILEGE_NOT_HELD);
    }
    if options.contains(CreateOptions::DIRECTORY_FILE) && request.disposition.overwrites() {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    if options.contains(CreateOptions::DELETE_ON_CLOSE)
        && !access.intersects(Access::DELETE | Access::GENERIC_ALL | Access::MAXIMUM_ALLOWED)
    {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    Ok(())
}
