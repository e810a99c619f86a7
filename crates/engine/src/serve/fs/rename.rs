//! Names that change: renames, links, deletion.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, RawDir, RenameFlags};
use rustix::io::Errno;
use smb::NtStatus;
use smb::name::Path;

use super::errno::status;
use super::handle::Place;
use super::lookup::{push_component, split};
use super::special::make_beside;
use super::{Found, Handle, Share, Want};

/// Where a file is to get a name.
#[derive(Debug)]
pub struct Destination {
    folder: Arc<OwnedFd>,
    /// From the root, as on disk, ending in the name as the client said it.
    path: Vec<u8>,
    existing: Option<Handle>,
    /// It is the file itself under another case of its name.
    same: bool,
}

impl Destination {
    pub(super) fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// What has that name now, in whichever case, unless it is the file that is to get it.
    #[must_use]
    pub fn existing(&self) -> Option<&Handle> {
        self.existing.as_ref()
    }

    /// Whether the file itself has the name already, perhaps in another case.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.same
    }
}

impl Share {
    /// Looks up the place that `handle` is to be renamed or linked to; `exact`: for a client to which `a` and `A` are
    /// two names, whatever they are to others.
    ///
    /// # Errors
    ///
    /// As [`Share::open`]; OBJECT_NAME_INVALID for the root.
    pub fn destination(
        &self,
        handle: &Handle,
        to: &Path,
        exact: bool,
    ) -> Result<Destination, NtStatus> {
        if to.is_root() {
            return Err(NtStatus::OBJECT_NAME_INVALID);
        }
        let itself = Want { link: true, ..Want::default() };
        let found = if exact { self.open_exact(to, itself) } else { self.open(to, itself) };
        let existing = match found? {
            Found::Missing(vacancy) => {
                let (folder, path) = vacancy.into_parts();
                return Ok(Destination { folder, path, existing: None, same: false });
            }
            Found::There(existing) => existing,
        };
        let mut path = split(&existing.place().path).0.to_vec();
        let folder = self.0.folder_at(&path).map_err(|errno| self.0.refusal(errno))?;
        let named = existing.unix_name();
        let mine = handle.unix_name();
        // Two hard links in one folder are two names, even though they are the same file.
        let same =
            existing.identity() == handle.identity() && named == mine && handle.is_in(&folder);
        push_component(&mut path, to.name())?;
        Ok(Destination { folder, path, existing: (!same).then_some(existing), same })
    }
}

impl Handle {
    /// Renames the file or folder. Whether others have something beneath a folder open must have been asked
    /// before, and whether anybody has what is to be replaced.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_COLLISION if there is something and `replace` is not set, ACCESS_DENIED if that is a
    /// folder or the target is beneath the folder itself, NOT_SAME_DEVICE, and what `rename(2)` says.
    pub fn rename(&self, to: &Destination, replace: bool) -> Result<(), NtStatus> {
        self.share().writable()?;
        let (folder, name) = self.located()?;
        let new = split(&to.path).1;
        match &to.existing {
            None if to.same && name == new => {}
            None => move_to(&folder, &name, &to.folder, new)?,
            Some(_) if !replace => return Err(NtStatus::OBJECT_NAME_COLLISION),
            Some(existing) if existing.is_folder() => return Err(NtStatus::ACCESS_DENIED),
            Some(existing) => {
                // In one step for those who look; the case of the name follows.
                let old = existing.unix_name();
                rustix::fs::renameat(&*folder, &*name, &*to.folder, &*old).map_err(refusal)?;
                if existing.identity() == self.identity() {
                    // `rename(2)` of one hard link over another does nothing.
                    rustix::fs::unlinkat(&*folder, &*name, AtFlags::empty()).map_err(status)?;
                }
                if old != new {
                    move_to(&to.folder, &old, &to.folder, new)?;
                }
            }
        }
        *self.place() = Place { path: to.path.clone(), folder: None };
        Ok(())
    }

    /// Gives the file another name; what has it is replaced in one step for those who look.
    ///
    /// # Errors
    ///
    /// FILE_IS_A_DIRECTORY, OBJECT_NAME_COLLISION if there is something and `replace` is not set,
    /// ACCESS_DENIED if that is a folder, and what `link(2)` says.
    pub fn link(&self, to: &Destination, replace: bool) -> Result<(), NtStatus> {
        self.share().writable()?;
        if self.is_folder() {
            return Err(NtStatus::FILE_IS_A_DIRECTORY);
        }
        if to.same {
            return if replace { Ok(()) } else { Err(NtStatus::OBJECT_NAME_COLLISION) };
        }
        let new = split(&to.path).1;
        let Some(existing) = &to.existing else {
            return self.link_as(&to.folder, new).map_err(refusal);
        };
        if !replace {
            return Err(NtStatus::OBJECT_NAME_COLLISION);
        }
        if existing.is_folder() {
            return Err(NtStatus::ACCESS_DENIED);
        }
        let old = existing.unix_name();
        // `rename(2)` of one hard link over another does nothing.
        if existing.identity() != self.identity() {
            // What is there stays until this is: there may be no room for it, or no more links of the file.
            let (beside, ()) = make_beside(|name| self.link_as(&to.folder, name))?;
            if let Err(errno) = rustix::fs::renameat(&*to.folder, &*beside, &*to.folder, &*old) {
                // Nobody knows that name; that it cannot be removed either is no news.
                let _ = rustix::fs::unlinkat(&*to.folder, &*beside, AtFlags::empty());
                return Err(refusal(errno));
            }
        }
        if old != new {
            move_to(&to.folder, &old, &to.folder, new)?;
        }
        Ok(())
    }

    fn link_as(&self, folder: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
        let path = self.proc_path();
        rustix::fs::linkat(rustix::fs::CWD, &*path, folder, name, AtFlags::SYMLINK_FOLLOW)
    }

    /// Removes the name by which it was opened, if that still is this file. Others that have it open may go
    /// on; a hard link stays.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_NOT_FOUND if it has no name in the share any more, DIRECTORY_NOT_EMPTY, ACCESS_DENIED for
    /// the root and for a share that is read-only, and what `unlink(2)` says.
    pub fn delete(&self) -> Result<(), NtStatus> {
        self.share().writable()?;
        let (folder, name) = self.located()?;
        let mut done = Err(Errno::NOTDIR);
        if self.is_folder() {
            done = rustix::fs::unlinkat(&*folder, &*name, AtFlags::REMOVEDIR);
        }
        // Of a folder that was opened through a link, the link goes; `unlink(2)` removes no folder.
        if done == Err(Errno::NOTDIR) {
            done = rustix::fs::unlinkat(&*folder, &*name, AtFlags::empty());
        }
        done.map_err(|errno| match errno {
            // POSIX lets a file system say either.
            Errno::EXIST => NtStatus::DIRECTORY_NOT_EMPTY,
            errno => status(errno),
        })
    }

    /// Whether a folder has nothing in it: what may be marked for deletion.
    ///
    /// # Errors
    ///
    /// NOT_A_DIRECTORY, and what `getdents(2)` says.
    pub fn is_empty_folder(&self) -> Result<bool, NtStatus> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(self, c".", flags, Mode::empty()).map_err(status)?;
        let mut buffer = Vec::with_capacity(4096);
        let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            match entry.map_err(status)?.file_name().to_bytes() {
                b"." | b".." => {}
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Where a symbolic link leads, as it stands on disk.
    ///
    /// # Errors
    ///
    /// NOT_A_REPARSE_POINT for anything else.
    pub fn link_target(&self) -> Result<Vec<u8>, NtStatus> {
        if self.first_facts().reparse_tag != super::facts::TAG_SYMLINK {
            return Err(NtStatus::NOT_A_REPARSE_POINT);
        }
        Ok(rustix::fs::readlinkat(self, c"", Vec::new()).map_err(status)?.into_bytes())
    }

    fn is_in(&self, folder: &OwnedFd) -> bool {
        let Ok((mine, _)) = self.located() else { return false };
        let key = |fd: &OwnedFd| {
            super::facts::stat(fd).map(|s| (s.stx_dev_major, s.stx_dev_minor, s.stx_ino))
        };
        matches!((key(&mine), key(folder)), (Ok(a), Ok(b)) if a == b)
    }
}

/// Renames where nothing has the new name.
fn move_to(folder: &OwnedFd, name: &[u8], to: &OwnedFd, new: &[u8]) -> Result<(), NtStatus> {
    match rustix::fs::renameat_with(folder, name, to, new, RenameFlags::NOREPLACE) {
        // Some network file systems cannot.
        Err(Errno::INVAL | Errno::NOSYS) if super::facts::stat_at(to, new).is_err() => {
            rustix::fs::renameat(folder, name, to, new).map_err(refusal)
        }
        done => done.map_err(refusal),
    }
}

/// What a failed rename is called.
fn refusal(errno: Errno) -> NtStatus {
    match errno {
        // Into itself.
        Errno::INVAL => NtStatus::ACCESS_DENIED,
        Errno::NOTEMPTY | Errno::ISDIR => NtStatus::ACCESS_DENIED,
        errno => status(errno),
    }
}
