//! One open file, folder or other thing of the file system.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};
use rustix::io::Errno;
use smb::fscc::Facts;
use smb::{Attributes, NtStatus, name};

use super::device::{Kind, Mount};
use super::errno::status;
use super::facts::{At, device, file_type, proc_path, stat, stat_at};
use super::lookup::{Names, split};
use super::{Inner, Links, Share, Want};

/// Which file it is, whatever it is called. The file system may use the inode again once the file is deleted
/// and the last handle dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The device number.
    pub device: u64,
    /// The inode.
    pub inode: u64,
}

/// Where a file was when it was last looked up.
#[derive(Debug)]
pub(super) struct Place {
    /// From the root, as on disk; empty for the root.
    pub(super) path: Vec<u8>,
    /// The folder that it is in, where it was made by way of that.
    pub(super) folder: Option<Arc<OwnedFd>>,
}

/// A descriptor and what belongs to it.
#[derive(Debug)]
pub struct Handle {
    share: Share,
    fd: Arc<OwnedFd>,
    want: Want,
    facts: Facts,
    mount: Mount,
    /// What its file system is like, once that was asked: it stays mounted as long as this is open.
    kind: OnceLock<Kind>,
    place: Mutex<Place>,
    /// Another descriptor of the file, which the kernel synchronizes, once somebody needed it.
    pub(super) synced_by: OnceLock<Arc<OwnedFd>>,
}

impl Handle {
    /// The most descriptors that one has: see [`Self::descriptors`].
    pub const DESCRIPTORS: usize = 3;

    /// Of a descriptor.
    pub(super) fn opened(
        share: &Share,
        fd: OwnedFd,
        path: Vec<u8>,
        want: Want,
        folder: Option<Arc<OwnedFd>>,
    ) -> Result<Self, NtStatus> {
        let stat = stat(&fd).map_err(status)?;
        Self::of(share, fd, path, want, folder, &stat)
    }

    /// Of one of which this is known.
    pub(super) fn of(
        share: &Share,
        fd: OwnedFd,
        path: Vec<u8>,
        want: Want,
        folder: Option<Arc<OwnedFd>>,
        stat: &Statx,
    ) -> Result<Self, NtStatus> {
        let kind = file_type(stat);
        let mut want = want;
        match kind {
            FileType::Symlink if share.config().links == Links::Refuse => {
                return Err(NtStatus::ACCESS_DENIED);
            }
            FileType::Directory => want.write = false,
            // It keeps O_NONBLOCK, which was for pipes: read(2) and write(2) of a file do not look at it. Of
            // io_uring only IORING_OP_READ and WRITE do; it is asked for neither, and would say EAGAIN.
            FileType::RegularFile => {}
            // Pipes, sockets and devices are shown, but not read or written by clients.
            _ if (want.read || want.write) && kind != FileType::Symlink => {
                return Err(NtStatus::ACCESS_DENIED);
            }
            _ => (want.read, want.write) = (false, false),
        }
        let facts = share.0.facts(stat, &At::File(fd.as_fd()), split(&path).1)?;
        Ok(Self::new(share, fd, path, want, folder, (Mount::of(stat), facts)))
    }

    pub(super) fn new(
        share: &Share,
        fd: OwnedFd,
        path: Vec<u8>,
        want: Want,
        folder: Option<Arc<OwnedFd>>,
        (mount, facts): (Mount, Facts),
    ) -> Self {
        Self {
            share: share.clone(),
            fd: Arc::new(fd),
            want,
            facts,
            mount,
            kind: OnceLock::new(),
            place: Mutex::new(Place { path, folder }),
            synced_by: OnceLock::new(),
        }
    }

    /// Descriptors that it has or may come to have: its own, that of the folder in which it was made if that is not the
    /// share's root, and another that the kernel synchronizes if it does not synchronize its own.
    #[must_use]
    pub fn descriptors(&self) -> usize {
        let of_root = |folder: &Arc<OwnedFd>| Arc::ptr_eq(folder, &self.share().root);
        let folder = self.place().folder.as_ref().is_some_and(|folder| !of_root(folder));
        1 + usize::from(folder) + usize::from(!self.want.read && !self.want.write)
    }

    /// The share that it was opened in.
    #[must_use]
    pub fn of_share(&self) -> &Share {
        &self.share
    }

    pub(super) fn share(&self) -> &Inner {
        &self.share.0
    }

    /// What the descriptor is good for. An `O_PATH` one for neither reading nor writing; one of a folder
    /// never for writing.
    #[must_use]
    pub fn good_for(&self) -> Want {
        self.want
    }

    /// Which file it is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity { device: self.facts.device, inode: self.facts.index }
    }

    /// Whether its file system has no disk. Asked once of each (`fstatfs(2)`).
    ///
    /// # Errors
    ///
    /// What that says.
    pub fn is_in_memory(&self) -> Result<bool, NtStatus> {
        Ok(self.kind()?.in_memory)
    }

    /// Whether what is read of the files beside it is in memory afterwards, as who reads them finds out.
    ///
    /// # Errors
    ///
    /// As [`Self::is_in_memory`].
    pub fn keeps(&self) -> Result<&Arc<AtomicBool>, NtStatus> {
        Ok(&self.kind()?.keeps)
    }

    fn kind(&self) -> Result<&Kind, NtStatus> {
        if let Some(kind) = self.kind.get() {
            return Ok(kind);
        }
        let kind = self.share().devices.ask(self.mount, &*self.fd)?;
        Ok(self.kind.get_or_init(|| kind))
    }

    /// Whether it is on a file system that was mounted beneath the share's root, and is one of another host or of a
    /// program, which may keep those waiting who call it. Nothing is asked.
    #[must_use]
    pub fn is_far(&self) -> bool {
        !self.share().devices.is_root(self.mount) && !self.is_local()
    }

    /// [`Share::keeps_waiting`], for the file system that it is on.
    #[must_use]
    pub fn keeps_waiting(&self) -> bool {
        self.is_far() || self.share.keeps_waiting()
    }

    /// [`Share::is_local`], for the file system that it is on.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let known = self.kind.get().map(|kind| kind.local);
        known.unwrap_or_else(|| self.share().devices.is_local(self.mount))
    }

    /// Whether it is a folder.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        self.facts.is_directory()
    }

    /// What was known when it was opened or created, at no cost.
    #[must_use]
    pub fn first_facts(&self) -> &Facts {
        &self.facts
    }

    /// What is known now: one `statx(2)`, and the extended attributes if they may have changed.
    ///
    /// # Errors
    ///
    /// What these calls say.
    pub fn facts(&self) -> Result<Facts, NtStatus> {
        let stat = stat(&self.fd).map_err(status)?;
        // No more of the name counts; and nobody waits for the place while a disk is waited for.
        let mut head = [0; 3];
        let len = {
            let place = self.place();
            let name = split(&place.path).1;
            let len = name.len().min(head.len());
            head[..len].copy_from_slice(&name[..len]);
            len
        };
        self.share().facts(&stat, &At::File(self.fd.as_fd()), &head[..len])
    }

    /// Which of HIDDEN and SYSTEM it has now, whatever its name is.
    ///
    /// # Errors
    ///
    /// As [`Self::facts`].
    pub fn hides(&self) -> Result<Attributes, NtStatus> {
        let stat = stat(&self.fd).map_err(status)?;
        let facts = self.share().facts(&stat, &At::File(self.fd.as_fd()), b"")?;
        Ok(facts.attributes & (Attributes::HIDDEN | Attributes::SYSTEM))
    }

    /// Whether it has no name any more, as far as the kernel of this host knows: it asks nobody else.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let known = rustix::fs::statx(&*self.fd, c"", flags, StatxFlags::NLINK);
        known.is_ok_and(|known| known.stx_nlink == 0)
    }

    /// Bytes that the file holds on its file system now: one `fstat(2)`.
    ///
    /// # Errors
    ///
    /// What that says.
    pub fn allocated(&self) -> Result<u64, NtStatus> {
        let stat = rustix::fs::fstat(&*self.fd).map_err(status)?;
        Ok(u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512))
    }

    /// Another descriptor of the same file, whatever it is called by now.
    ///
    /// # Errors
    ///
    /// ACCESS_DENIED for writing in a share that is read-only, and what `open(2)` says.
    pub fn reopen(&self, want: Want) -> Result<Self, NtStatus> {
        if want.write {
            self.share().writable()?;
        }
        if self.facts.reparse_tag != 0 && (want.read || want.write) {
            return Err(NtStatus::ACCESS_DENIED);
        }
        let want = Want { write: want.write && !self.is_folder(), ..want };
        let fd = want.open_again(self.fd.as_fd()).map_err(status)?;
        let (path, folder) = {
            let place = self.place();
            (place.path.clone(), place.folder.clone())
        };
        Self::opened(&self.share, fd, path, want, folder)
    }

    /// Its name on disk, without the folders; empty for the share's root.
    #[must_use]
    pub fn unix_name(&self) -> Vec<u8> {
        split(&self.place().path).1.to_vec()
    }

    /// Its path from the share's root as clients see it, `\` between its parts, as it was when it was opened
    /// or renamed through a handle; empty for the root.
    #[must_use]
    pub fn path(&self) -> String {
        seen_path(&self.place().path)
    }

    /// The descriptor, for whoever uses it past this handle.
    #[must_use]
    pub fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Whether it is the share's root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.place().path.is_empty()
    }

    /// What is known of the folder that it is in; `None` of the share's root.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_NOT_FOUND if it has no name in the share any more, and what `statx(2)` says.
    pub fn folder_facts(&self) -> Result<Option<Facts>, NtStatus> {
        if self.is_root() {
            return Ok(None);
        }
        let (folder, _) = self.located()?;
        let stat = stat(&*folder).map_err(status)?;
        Ok(Some(self.share().facts_with(&stat, super::memo::Extra::default(), b"")))
    }

    pub(super) fn owned_fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn proc_path(&self) -> Vec<u8> {
        proc_path(self.fd.as_fd())
    }

    pub(super) fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where it is now, after a rename of a folder above it.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_INVALID for a path that cannot be.
    pub fn moved(&self, path: &name::Path) -> Result<(), NtStatus> {
        self.place().path = super::lookup::on_disk(path)?;
        Ok(())
    }

    /// Says that it is where another handle of the same file is, after a rename through that one.
    pub fn moved_with(&self, other: &Self) {
        let path = other.place().path.clone();
        *self.place() = Place { path, folder: None };
    }

    /// The folder it is in and its name there, when that name really is this file: the place that is
    /// remembered, or, when somebody else has moved it, where the kernel says that it is. The folder is not kept: each
    /// descriptor of a handle is counted when it is opened.
    pub(super) fn located(&self) -> Result<(Arc<OwnedFd>, Vec<u8>), NtStatus> {
        let (path, folder) = {
            let place = self.place();
            (place.path.clone(), place.folder.clone())
        };
        if path.is_empty() {
            return Err(NtStatus::ACCESS_DENIED);
        }
        let (above, name) = split(&path);
        let folder = folder.map_or_else(|| self.share().folder_at(above), Ok);
        if let Ok(folder) = folder
            && (self.is_at(&folder, name) || self.is_led_to(&folder, &path))
        {
            return Ok((folder, name.to_vec()));
        }
        self.found_again()
    }

    fn is_at(&self, folder: &OwnedFd, name: &[u8]) -> bool {
        stat_at(folder, name)
            .is_ok_and(|s| Identity { device: device(&s), inode: s.stx_ino } == self.identity())
    }

    /// Whether it was opened through a symbolic link that still leads here: then the link is what has the
    /// name, and what is renamed or deleted.
    fn is_led_to(&self, folder: &OwnedFd, path: &[u8]) -> bool {
        let is_link =
            stat_at(folder, split(path).1).is_ok_and(|s| file_type(&s) == FileType::Symlink);
        is_link
            && self.share().open_at(path, Want::default(), Names::All).is_ok_and(|fd| {
                stat(&fd).is_ok_and(|s| {
                    Identity { device: device(&s), inode: s.stx_ino } == self.identity()
                })
            })
    }

    /// Asks `/proc` where the file is. What has left the share is not found.
    fn found_again(&self) -> Result<(Arc<OwnedFd>, Vec<u8>), NtStatus> {
        let read = |path: &[u8]| rustix::fs::readlinkat(rustix::fs::CWD, path, Vec::new());
        let gone = |_: Errno| NtStatus::OBJECT_NAME_NOT_FOUND;
        let root = read(&proc_path(self.share().root.as_fd())).map_err(gone)?.into_bytes();
        let now = read(&self.proc_path()).map_err(gone)?.into_bytes();
        let beneath = now
            .strip_prefix(&*root)
            .and_then(
                |path| if root.ends_with(b"/") { Some(path) } else { path.strip_prefix(b"/") },
            )
            .ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
        let (above, name) = split(beneath);
        let folder = self.share().folder_at(above).map_err(gone)?;
        if !self.is_at(&folder, name) {
            return Err(NtStatus::OBJECT_NAME_NOT_FOUND);
        }
        *self.place() = Place { path: beneath.to_vec(), folder: None };
        Ok((folder, name.to_vec()))
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A path on disk as clients see it.
pub(super) fn seen_path(path: &[u8]) -> String {
    let mut seen = String::with_capacity(path.len());
    for (at, component) in path.split(|byte| *byte == b'/').enumerate() {
        if at > 0 {
            seen.push('\\');
        }
        seen.push_str(&name::from_unix(component));
    }
    seen
}
