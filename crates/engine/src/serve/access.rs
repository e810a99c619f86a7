//! Who may do what with a file: the descriptor that it carries, or else its POSIX mode.

use smb::fscc::Facts;
use smb::{Access, NtStatus};

use super::fs::{Handle, Unix, allowed};
use super::server::{Server, SharePoint};

/// What may be done in a share that is read-only.
const READING: Access = Access::FILE_READ.union(Access::FILE_EXECUTE);

/// All that may be done with a file by whoever opens it (MAXIMUM_ALLOWED).
///
/// # Errors
///
/// What the file system says when it is asked about the file or its folder.
pub(super) fn maximal(
    handle: &Handle,
    facts: &Facts,
    needs_folder: bool,
    point: &SharePoint,
    server: &Server,
) -> Result<Access, NtStatus> {
    let user = &server.unix;
    // The superuser needs no look at the folder.
    let folder = match needs_folder && user.uid != 0 {
        true => handle.folder_facts()?,
        false => None,
    };
    let mut access = allowed(facts, folder.as_ref(), user);
    if !needs_folder {
        access |= Access::DELETE;
    }
    if point.config.read_only {
        access &= READING;
    }
    Ok(access)
}

/// Whether a name may be added to a folder.
///
/// # Errors
///
/// ACCESS_DENIED if not.
pub(super) fn may_add(folder: &Facts, server: &Server) -> Result<(), NtStatus> {
    let user: &Unix = &server.unix;
    if allowed(folder, None, user).contains(Access::WRITE_DATA) {
        Ok(())
    } else {
        Err(NtStatus::ACCESS_DENIED)
    }
}

/// Gives a new file the descriptor that its creator wishes for. Whether it has one then.
///
/// # Errors
///
/// INVALID_SECURITY_DESCR, and what the file system says.
pub(super) fn new_descriptor(handle: &Handle, wished: Option<&[u8]>) -> Result<bool, NtStatus> {
    let Some(bytes) = wished else { return Ok(false) };
    smb::security::Descriptor::parse(bytes)?;
    handle.set_security(Some(bytes))?;
    Ok(true)
}

/// A number for a name, the same whatever its case, never zero.
pub(super) fn name_hash(name: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    smb::name::fold(name).hash(&mut hasher);
    hasher.finish() | 1
}
