//! Extended attributes: as they are, and as clients' EAs.

use std::os::fd::AsFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use smb::NtStatus;
use smb::fscc::Facts;

use super::super::acting::as_itself;
use super::errno::status;
use super::facts::proc_path;
use super::{Destination, Handle, Inner, Share, Vacancy, dosattrib};

/// One extended attribute as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ea {
    /// Its name, as it is kept.
    pub name: Vec<u8>,
    /// Its value; setting an empty one removes it (MS-FSCC 2.4.15).
    pub value: Vec<u8>,
}

/// Where a security descriptor is kept. Samba's `security.NTACL` needs CAP_SYS_ADMIN.
pub(super) const SECURITY: &str = "user.shunt.NTACL";
/// What Linux allows for one value.
const VALUE_MAX: usize = 65536;
/// What Linux allows for all names of a file.
const NAMES_MAX: usize = 65536;

/// The names of all attributes, each ended by a NUL.
pub(super) fn names(path: &[u8], follow: bool) -> Result<Vec<u8>, Errno> {
    let list = |buffer: &mut [u8]| {
        if follow {
            rustix::fs::listxattr(path, buffer)
        } else {
            rustix::fs::llistxattr(path, buffer)
        }
    };
    let mut near = [0; 512];
    match list(&mut near) {
        Ok(len) => Ok(near[..len.min(near.len())].to_vec()),
        Err(Errno::RANGE) => {
            let mut far = vec![0; NAMES_MAX];
            let len = list(&mut far)?;
            far.truncate(len);
            Ok(far)
        }
        Err(errno) => Err(errno),
    }
}

/// Reads a value into `buffer`.
pub(super) fn get(
    path: &[u8],
    name: &[u8],
    buffer: &mut [u8],
    follow: bool,
) -> Result<usize, Errno> {
    if follow {
        rustix::fs::getxattr(path, name, buffer)
    } else {
        rustix::fs::lgetxattr(path, name, buffer)
    }
}

/// How long a value is.
pub(super) fn len(path: &[u8], name: &[u8], follow: bool) -> Result<usize, Errno> {
    if follow {
        rustix::fs::getxattr_query(path, name)
    } else {
        rustix::fs::lgetxattr_query(path, name)
    }
}

/// The whole value.
pub(super) fn value(path: &[u8], name: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; len(path, name, true)?.max(1)];
    let len = match get(path, name, &mut buffer, true) {
        // It has grown meanwhile.
        Err(Errno::RANGE) => {
            buffer.resize(VALUE_MAX, 0);
            get(path, name, &mut buffer, true)?
        }
        len => len?,
    };
    buffer.truncate(len);
    Ok(buffer)
}

/// Writes a value.
pub(super) fn set(path: &[u8], name: &[u8], value: &[u8]) -> Result<(), Errno> {
    rustix::fs::setxattr(path, name, value, XattrFlags::empty())
}

/// What one attribute takes as FILE_FULL_EA_INFORMATION. `name` is without `user.`.
pub(super) fn full_ea_len(name: &[u8], value: usize) -> u32 {
    // Next entry, flags, lengths; the name without "user." with its NUL; the value.
    let name = name.strip_prefix(b"user.").unwrap_or(name);
    u32::try_from(8 + name.len() + 1 + value).unwrap_or(u32::MAX)
}

/// Whether clients are told of an attribute with so long a value: not of one whose name is no text, or whose value is longer
/// than FILE_FULL_EA_INFORMATION can say; and what holds nothing is not there to them, and Windows takes it for damaged, says
/// Samba.
pub(super) fn is_told(name: &[u8], value: usize) -> bool {
    (1..=usize::from(u16::MAX)).contains(&value) && str::from_utf8(name).is_ok()
}

/// The descriptor that a file has, if it has one.
fn security(path: &[u8]) -> Result<Option<Vec<u8>>, NtStatus> {
    // It is for us to heed, not for who asks to read.
    match as_itself(|| value(path, SECURITY.as_bytes())) {
        Ok(value) => Ok(Some(value)),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(status(errno)),
    }
}

impl Vacancy {
    /// [`Handle::security`] of the folder that it is in.
    ///
    /// # Errors
    ///
    /// What `getxattr(2)` says, but that there is none is no error.
    pub fn folder_security(&self) -> Result<Option<Vec<u8>>, NtStatus> {
        security(&proc_path(self.folder().as_fd()))
    }
}

impl Destination {
    /// What is known of the folder that the name will be in.
    ///
    /// # Errors
    ///
    /// What `statx(2)` says.
    pub fn folder_facts(&self, share: &Share) -> Result<Facts, NtStatus> {
        let stat = super::facts::stat(self.folder()).map_err(status)?;
        Ok(share.0.facts_with(&stat, super::memo::Extra::default(), b""))
    }

    /// [`Handle::security`] of that folder.
    ///
    /// # Errors
    ///
    /// What `getxattr(2)` says, but that there is none is no error.
    pub fn folder_security(&self) -> Result<Option<Vec<u8>>, NtStatus> {
        security(&proc_path(self.folder().as_fd()))
    }
}

impl Inner {
    /// The attribute's whole name, if it is one that clients see as an EA.
    pub(super) fn ea_name<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        let own = name.strip_prefix(b"user.")?;
        let prefix = self.config.stream_prefix.as_bytes();
        // In whichever case, since clients do not tell cases apart.
        let hidden = name.eq_ignore_ascii_case(dosattrib::NAME.as_bytes())
            || name.eq_ignore_ascii_case(SECURITY.as_bytes())
            || name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
            || own.starts_with(b"SAMBA_PAI");
        (!hidden && !own.is_empty()).then_some(name)
    }
}

impl Handle {
    /// The EAs, in the order in which the file system lists them.
    ///
    /// # Errors
    ///
    /// What `listxattr(2)` says. A file system without extended attributes has none.
    pub fn eas(&self) -> Result<Vec<Ea>, NtStatus> {
        let path = self.proc_path();
        let names = match names(&path, true) {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            names => names.map_err(status)?,
        };
        let mut eas = Vec::new();
        for whole in names.split(|byte| *byte == 0).filter_map(|name| self.share().ea_name(name)) {
            let value = match value(&path, whole) {
                Err(Errno::NODATA) => continue,
                Ok(value) if !is_told(whole, value.len()) => continue,
                value => value.map_err(status)?,
            };
            let name = whole.strip_prefix(b"user.").unwrap_or(whole).to_vec();
            eas.push(Ea { name, value });
        }
        Ok(eas)
    }

    /// Sets one EA, whichever case its name had before; an empty value removes it.
    ///
    /// # Errors
    ///
    /// INVALID_EA_NAME for a name that is empty or has a NUL; ACCESS_DENIED for one that is ours, as Samba answers for
    /// its own; EA_TOO_LARGE for a value that the file system cannot keep.
    pub fn set_ea(&self, name: &[u8], value: &[u8]) -> Result<(), NtStatus> {
        self.share().writable()?;
        let mut whole = b"user.".to_vec();
        whole.extend_from_slice(name);
        if name.is_empty() || name.contains(&0) || name.len() > 250 {
            return Err(NtStatus::INVALID_EA_NAME);
        }
        if self.share().ea_name(&whole).is_none() {
            return Err(NtStatus::ACCESS_DENIED);
        }
        let path = self.proc_path();
        let there = names(&path, true).map_err(|errno| match errno {
            Errno::OPNOTSUPP => NtStatus::EAS_NOT_SUPPORTED,
            errno => status(errno),
        })?;
        // Programs on the host do tell cases apart.
        let mut names = there.split(|byte| *byte == 0);
        if names.clone().all(|other| other != whole)
            && let Some(same) = names.find(|other| other.eq_ignore_ascii_case(&whole))
        {
            whole = same.to_vec();
        }
        let done = match value {
            [] => match rustix::fs::removexattr(&*path, &*whole) {
                Err(Errno::NODATA) => Ok(()),
                done => done.map_err(status),
            },
            value => set(&path, &whole, value).map_err(|errno| match errno {
                Errno::TOOBIG | Errno::RANGE | Errno::NOSPC => NtStatus::EA_TOO_LARGE,
                errno => status(errno),
            }),
        };
        self.extra_changed();
        done
    }

    /// What was remembered of its extended attributes counts no more.
    pub(super) fn extra_changed(&self) {
        let identity = self.identity();
        self.share().memo.forget(identity.device, identity.inode);
    }

    /// The security descriptor that was stored, self-relative, if there is one.
    ///
    /// # Errors
    ///
    /// What `getxattr(2)` says, but that there is none is no error.
    pub fn security(&self) -> Result<Option<Vec<u8>>, NtStatus> {
        security(&self.proc_path())
    }

    /// [`Handle::security`] of the folder that it is in; `None` also of the share's root.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_NOT_FOUND if it has no name in the share any more, and as [`Handle::security`].
    pub fn folder_security(&self) -> Result<Option<Vec<u8>>, NtStatus> {
        if self.place().path.is_empty() {
            return Ok(None);
        }
        let (folder, _) = self.located()?;
        security(&proc_path(folder.as_fd()))
    }

    /// Stores a security descriptor, self-relative, or with `None` removes what was stored.
    ///
    /// # Errors
    ///
    /// What `setxattr(2)` says.
    pub fn set_security(&self, descriptor: Option<&[u8]>) -> Result<(), NtStatus> {
        self.share().writable()?;
        let path = self.proc_path();
        let done = match descriptor {
            Some(bytes) => set(&path, SECURITY.as_bytes(), bytes),
            None => match rustix::fs::removexattr(&*path, SECURITY) {
                Err(Errno::NODATA) => Ok(()),
                done => done,
            },
        };
        self.extra_changed();
        done.map_err(status)
    }
}
