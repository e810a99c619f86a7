//! From the path that a client said to a file, or to the place where one could be.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use smb::fscc::Facts;
use smb::name::{self, Path};
use smb::{Attributes, NtStatus};

use super::device::Mount;
use super::dosattrib::{self, DosAttrib};
use super::errno::status;
use super::facts::{TAG_SYMLINK, file_type, stat, stat_at_once};
use super::memo::Extra;
use super::{Handle, Inner, Links, Share, Want, xattr};

/// What a look-up found.
#[derive(Debug)]
pub enum Found {
    /// It is there, and open.
    There(Handle),
    /// It is not there, but its folder is.
    Missing(Vacancy),
}

/// A place for a file that is not there.
#[derive(Debug)]
pub struct Vacancy {
    share: Share,
    folder: Arc<OwnedFd>,
    /// From the root, as on disk, ending in the new name.
    path: Vec<u8>,
    far: bool,
}

/// How a file comes to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Create {
    /// As a folder.
    pub folder: bool,
    /// DOS attributes that the client wishes for; ARCHIVE is added for a file.
    pub attributes: Attributes,
    /// Permission bits instead of the share's (POSIX extensions).
    pub mode: Option<u32>,
}

/// Which names a look-up may go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// Any: a disk is waited for.
    All,
    /// Those that the kernel has in memory: it says EAGAIN of others.
    InMemory,
    /// The same; and one that the index of its folder does not have is taken to be missing. For who then makes it, and
    /// hears of it if it is there.
    ForNew,
}

/// What look-ups in a share may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// For nothing: the file system has no disk. Or the kernel cannot say (Linux before 5.12).
    Never,
    /// For a disk of this host, where names are not in memory.
    ForNames,
    /// For a file system of another host or of a program, which may ask about each open.
    Always,
}

/// A component is at most this long on disk.
const NAME_MAX: usize = 255;
/// A path is at most this long on disk.
const PATH_MAX: usize = 4095;
/// How often a look-up is begun again when names change under it.
const ATTEMPTS: usize = 8;

#[cfg(test)]
thread_local! {
    /// How often this thread has looked from the root.
    pub(super) static OPENED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Appends a component to a path on disk; refuses what could lead anywhere else.
pub(super) fn push_component(path: &mut Vec<u8>, name: &str) -> Result<(), NtStatus> {
    if !path.is_empty() {
        path.push(b'/');
    }
    let name = name::to_unix(name);
    check_name(&name)?;
    path.extend_from_slice(&name);
    if path.len() > PATH_MAX {
        return Err(NtStatus::OBJECT_NAME_INVALID);
    }
    Ok(())
}

/// The path on disk of what a client said.
pub(super) fn on_disk(path: &Path) -> Result<Vec<u8>, NtStatus> {
    let bytes = path.unix();
    if bytes.len() > PATH_MAX {
        return Err(NtStatus::OBJECT_NAME_INVALID);
    }
    if !bytes.is_empty() {
        bytes.split(|byte| *byte == b'/').try_for_each(check_name)?;
    }
    Ok(bytes.into_owned())
}

/// Whether this may be the name of a file on disk: not too long, and nothing that leads elsewhere.
pub(super) fn check_name(name: &[u8]) -> Result<(), NtStatus> {
    let elsewhere = name.is_empty() || name == b"." || name == b"..";
    if elsewhere || name.len() > NAME_MAX || name.contains(&b'/') || name.contains(&0) {
        return Err(NtStatus::OBJECT_NAME_INVALID);
    }
    Ok(())
}

/// The folder's path and the name in it.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

impl Share {
    /// Opens what is at `path`; its stream is not looked at.
    ///
    /// A file that is there as it was said costs `openat2(2)` and `statx(2)`, and reading its extended
    /// attributes if they are not remembered; the first time that its data is wanted, and each time of what is mounted
    /// beneath, `open(2)` and `close(2)` besides (`fs/plain.rs`).
    ///
    /// # Errors
    ///
    /// OBJECT_PATH_NOT_FOUND if a folder on the way is missing or no folder, OBJECT_NAME_INVALID for a name
    /// that cannot be, ACCESS_DENIED for a link that leads outside, STOPPED_ON_SYMLINK by
    /// [`Links::Client`], and what `open(2)` says otherwise. That the last one is missing is
    /// [`Found::Missing`].
    pub fn open(&self, said: &Path, want: Want) -> Result<Found, NtStatus> {
        self.open_in_case(said, want, self.0.config.case_sensitive)
    }

    /// [`Self::open`] for a client to which `a` and `A` are two files, whatever they are to others.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_exact(&self, said: &Path, want: Want) -> Result<Found, NtStatus> {
        self.open_in_case(said, want, true)
    }

    fn open_in_case(&self, said: &Path, want: Want, exact: bool) -> Result<Found, NtStatus> {
        let found = self.open_by(said, want, exact, (Names::All, false))?;
        Ok(found.expect("nothing is put off"))
    }

    /// [`Self::open`], or [`Self::open_exact`], if that waits for no disk; `Ok(None)` if it may, for who can wait. `new`:
    /// what is missing is made.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_at_once(
        &self,
        said: &Path,
        want: Want,
        exact: bool,
        new: bool,
    ) -> Result<Option<Found>, NtStatus> {
        let exact = exact || self.0.config.case_sensitive;
        match self.0.waits {
            _ if self.keeps_waiting() => Ok(None),
            Waits::Never => self.open_by(said, want, exact, (Names::All, true)),
            Waits::ForNames if new && !exact => {
                self.open_by(said, want, exact, (Names::ForNew, true))
            }
            Waits::ForNames => self.open_by(said, want, exact, (Names::InMemory, true)),
            Waits::Always => Ok(None),
        }
    }

    /// `None`, by names in memory, if they are not all there; and at once, if it is on a file system that may keep waiting.
    fn open_by(
        &self,
        said: &Path,
        want: Want,
        exact: bool,
        (names, at_once): (Names, bool),
    ) -> Result<Option<Found>, NtStatus> {
        let mut path = on_disk(said)?;
        if want.write {
            self.0.writable()?;
        }
        for _ in 0..ATTEMPTS {
            let unknown = match self.0.reach(&path, want, names) {
                Ok((fd, ready)) => {
                    return match self.take(fd, path, want, ready, at_once) {
                        // A program on the host has a lease on it, and is being asked to let go.
                        Err(NtStatus::FILE_LOCK_CONFLICT) if names != Names::All => Ok(None),
                        taken => Ok(taken?.map(Found::There)),
                    };
                }
                Err(Errno::NOENT) if !path.is_empty() => false,
                Err(Errno::AGAIN) if names == Names::InMemory => return Ok(None),
                Err(Errno::AGAIN) if names == Names::ForNew => true,
                Err(errno) => return Err(self.0.refusal(errno)),
            };
            if names != Names::All && !self.0.knows_folder_of(&path, exact) {
                return Ok(None);
            }
            let (folder, at) = self.0.folder_of(said, &path, exact)?;
            let name = said.name();
            match self.0.name_in_case((&folder, &at), name, exact)? {
                // It is there, and the disk has it.
                Some(_) if unknown => return Ok(None),
                Some(found) => {
                    path = beneath(&at, &found);
                    if self.0.is_dangling(&folder, &path) {
                        return Err(NtStatus::OBJECT_NAME_NOT_FOUND);
                    }
                }
                None => {
                    path = at;
                    push_component(&mut path, name)?;
                    // Of those at once it is known.
                    let far = !at_once && self.0.is_far_after_asking(&folder);
                    let vacancy = Vacancy { share: self.clone(), folder, path, far };
                    return Ok(Some(Found::Missing(vacancy)));
                }
            }
        }
        Err(NtStatus::OBJECT_NAME_NOT_FOUND)
    }

    /// What is at a path, which is open as it is wanted, or only to be looked at: it is opened if that does nothing to it.
    /// `None`: see [`Self::open_by`].
    fn take(
        &self,
        fd: OwnedFd,
        path: Vec<u8>,
        want: Want,
        ready: bool,
        at_once: bool,
    ) -> Result<Option<Handle>, NtStatus> {
        let stat = if at_once { stat_at_once(&fd) } else { stat(&fd) }.map_err(status)?;
        let mount = Mount::of(&stat);
        let kind = file_type(&stat);
        let plain = matches!(kind, FileType::RegularFile | FileType::Directory);
        // What is mounted elsewhere is opened by nobody who has not looked: another one may be mounted there by then.
        self.0.plain.note(&path, plain && self.0.devices.is_mount_of_root(mount));
        if at_once && self.0.is_far(mount) {
            return Ok(None);
        }
        if !at_once {
            // Here it may be waited for. Who needs to know asks again, and says so, if that fails.
            let _ = self.0.devices.ask(mount, &fd);
        }
        let fd = match ready || !plain {
            true => fd,
            false => want.of_kind(kind).open_again(fd.as_fd()).map_err(status)?,
        };
        Handle::of(self, fd, path, want, None, &stat).map(Some)
    }

    /// The first symbolic link on the way to what is at `path`, or that itself: where it leads, as it is on disk, and
    /// what of the path comes behind it, with the separator. `None` if there is none by now.
    #[must_use]
    pub fn stopped_on(&self, path: &Path) -> Option<(Vec<u8>, String)> {
        let whole = path.without_stream();
        let text = whole.as_str();
        let ends: Vec<usize> =
            text.match_indices('/').map(|(at, _)| at).chain([text.len()]).collect();
        let itself = Want { link: true, ..Want::default() };
        let look = |end: usize| self.open_existing(&Path::default().join(&text[..end]), itself);
        let is_link = |handle: &Handle| handle.first_facts().reparse_tag == TAG_SYMLINK;
        // In front of the link is what can be opened and is none, behind it what cannot be. Not all are looked at, each
        // from the root: there may be two thousand.
        let at = ends.partition_point(|end| look(*end).is_ok_and(|handle| !is_link(&handle)));
        let end = *ends.get(at)?;
        let link = look(end).ok().filter(is_link)?;
        Some((link.link_target().ok()?, text[end..].to_owned()))
    }

    /// [`Self::open`] for what must be there.
    ///
    /// # Errors
    ///
    /// As [`Self::open`], and OBJECT_NAME_NOT_FOUND.
    pub fn open_existing(&self, path: &Path, want: Want) -> Result<Handle, NtStatus> {
        match self.open(path, want)? {
            Found::There(handle) => Ok(handle),
            Found::Missing(_) => Err(NtStatus::OBJECT_NAME_NOT_FOUND),
        }
    }
}

impl Inner {
    /// Opens what is at a path if that is known to do nothing to it, and otherwise only to be looked at. Whether it is
    /// open as it is wanted.
    fn reach(&self, path: &[u8], want: Want, names: Names) -> Result<(OwnedFd, bool), Errno> {
        let ready = !(want.read || want.write);
        if !ready && self.plain.has(path) {
            match self.open_at_with(path, want, names, ResolveFlags::NO_XDEV) {
                // Something has been mounted there, and to open that may keep waiting. Or it leads out of the share.
                Err(Errno::XDEV) => {}
                done => return done.map(|fd| (fd, true)),
            }
        }
        let want = if ready { want } else { Want { link: want.link, ..Want::default() } };
        self.open_at(path, want, names).map(|fd| (fd, ready))
    }

    /// One `openat2(2)` that stays beneath the root.
    pub(super) fn open_at(&self, path: &[u8], want: Want, names: Names) -> Result<OwnedFd, Errno> {
        self.open_at_with(path, want, names, ResolveFlags::empty())
    }

    fn open_at_with(
        &self,
        path: &[u8],
        want: Want,
        names: Names,
        more: ResolveFlags,
    ) -> Result<OwnedFd, Errno> {
        let open = |flags| self.open_flags_by(path, flags, names, more);
        let bare = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match open(want.flags()) {
            // A folder is written to by adding files.
            Err(Errno::ISDIR) => open(Want { write: false, ..want }.flags()),
            // A link itself, or a socket, has no data.
            Err(Errno::LOOP) if want.link => open(bare),
            Err(Errno::NXIO) => open(bare),
            done => done,
        }
    }

    pub(super) fn open_flags(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        self.open_flags_by(path, flags, Names::All, ResolveFlags::empty())
    }

    fn open_flags_by(
        &self,
        path: &[u8],
        flags: OFlags,
        names: Names,
        more: ResolveFlags,
    ) -> Result<OwnedFd, Errno> {
        let path = if path.is_empty() { b"." } else { path };
        #[cfg(test)]
        OPENED.with(|opened| opened.set(opened.get() + 1));
        let (resolve, retries) = match names {
            Names::All => (self.resolve, ATTEMPTS),
            Names::InMemory | Names::ForNew => (self.resolve | ResolveFlags::CACHED, 0),
        };
        let resolve = resolve | more;
        let mut attempts = 0;
        loop {
            match rustix::fs::openat2(&*self.root, path, flags, Mode::empty(), resolve) {
                // A rename elsewhere while `..` of a link was resolved, or a signal.
                Err(Errno::AGAIN | Errno::INTR) if attempts < retries => attempts += 1,
                done => return done,
            }
        }
    }

    /// Whether a folder is on a file system as [`Self::is_far`] has it, which is asked if nobody has.
    fn is_far_after_asking(&self, folder: &OwnedFd) -> bool {
        stat_at_once(folder).is_ok_and(|stat| {
            let mount = Mount::of(&stat);
            let kind = self.devices.ask(mount, folder);
            !self.devices.is_root(mount) && kind.is_ok_and(|kind| !kind.local)
        })
    }

    /// Whether the folder that the last component is to be in, and its index if case does not count, are in memory, and
    /// nobody else is to be asked.
    fn knows_folder_of(&self, path: &[u8], exact: bool) -> bool {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let none = ResolveFlags::empty();
        let Ok(folder) = self.open_flags_by(split(path).0, flags, Names::InMemory, none) else {
            return false;
        };
        let Ok(facts) = stat_at_once(&folder) else { return false };
        let folder = (super::facts::device(&facts), facts.stx_ino);
        !self.is_far(Mount::of(&facts)) && (exact || self.index.knows(folder))
    }

    /// What a failed look-up is called.
    pub(super) fn refusal(&self, errno: Errno) -> NtStatus {
        match errno {
            Errno::XDEV => NtStatus::ACCESS_DENIED,
            Errno::NOTDIR => NtStatus::OBJECT_PATH_NOT_FOUND,
            Errno::LOOP => match self.config.links {
                Links::Follow => NtStatus::OBJECT_PATH_NOT_FOUND,
                Links::Refuse => NtStatus::ACCESS_DENIED,
                Links::Client => NtStatus::STOPPED_ON_SYMLINK,
            },
            errno => status(errno),
        }
    }

    /// A folder by its path on disk.
    pub(super) fn folder_at(&self, path: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
        if path.is_empty() {
            return Ok(Arc::clone(&self.root));
        }
        self.open_flags(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC).map(Arc::new)
    }

    /// The folder that the last component is to be in, and its path on disk. `path` is the path as it was
    /// said, or as it was found before.
    fn folder_of(
        &self,
        said: &Path,
        path: &[u8],
        exact: bool,
    ) -> Result<(Arc<OwnedFd>, Vec<u8>), NtStatus> {
        let above = split(path).0;
        match self.folder_at(above) {
            Ok(folder) => return Ok((folder, above.to_vec())),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(self.refusal(errno)),
        }
        // One at a time, each from the root again: a link on the way may lead up, inside the share.
        let mut at = Vec::new();
        let mut folder = Arc::clone(&self.root);
        let mut components = said.components();
        components.next_back();
        for name in components {
            let mut next = at.clone();
            push_component(&mut next, name)?;
            folder = match self.folder_at(&next) {
                Err(Errno::NOENT) => {
                    let found = self.name_in_case((&folder, &at), name, exact)?;
                    let found = found.ok_or(NtStatus::OBJECT_PATH_NOT_FOUND)?;
                    next.truncate(at.len());
                    if !next.is_empty() {
                        next.push(b'/');
                    }
                    next.extend_from_slice(&found);
                    self.folder_at(&next).map_err(|errno| match errno {
                        Errno::NOENT => NtStatus::OBJECT_PATH_NOT_FOUND,
                        errno => self.refusal(errno),
                    })?
                }
                folder => folder.map_err(|errno| self.refusal(errno))?,
            };
            at = next;
        }
        Ok((folder, at))
    }

    /// The name on disk of what is called `name` in a folder, of which the path on disk is known as well, in whichever
    /// case the share allows.
    pub(super) fn name_in(
        &self,
        folder: (&OwnedFd, &[u8]),
        name: &str,
    ) -> Result<Option<Vec<u8>>, NtStatus> {
        self.name_in_case(folder, name, self.config.case_sensitive)
    }

    /// [`Self::name_in`], or only in the case in which it was said.
    fn name_in_case(
        &self,
        (folder, above): (&OwnedFd, &[u8]),
        name: &str,
        exact: bool,
    ) -> Result<Option<Vec<u8>>, NtStatus> {
        if exact {
            let exact = name::to_unix(name);
            let dangling = self.is_dangling(folder, &beneath(above, &exact));
            return Ok(dangling.then(|| exact.into_owned()));
        }
        let facts = stat(folder).map_err(status)?;
        self.index.find(folder, (super::facts::device(&facts), facts.stx_ino), name)
    }

    /// Whether this, the last of `path` on disk and in `folder`, is a symbolic link that leads to nothing: inside the
    /// share, as far as may be seen by whoever asks. Asked after an open of the name has failed.
    fn is_dangling(&self, folder: &OwnedFd, path: &[u8]) -> bool {
        super::facts::stat_at(folder, split(path).1)
            .is_ok_and(|stat| file_type(&stat) == FileType::Symlink)
            && self.open_flags(path, OFlags::PATH | OFlags::CLOEXEC).err() == Some(Errno::NOENT)
    }
}

/// The path of what is called `name` in a folder.
fn beneath(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = folder.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

impl Found {
    /// [`Handle::is_far`] of what was found, or of the folder that it would be in.
    #[must_use]
    pub fn is_far(&self) -> bool {
        match self {
            Self::There(handle) => handle.is_far(),
            Self::Missing(vacancy) => vacancy.far,
        }
    }
}

impl Vacancy {
    /// The folder that it is in.
    ///
    /// # Errors
    ///
    /// What `statx(2)` says.
    pub fn folder_facts(&self) -> Result<Facts, NtStatus> {
        let stat = stat(&*self.folder).map_err(status)?;
        Ok(self.share.0.facts_with(&stat, Extra::default(), b""))
    }

    /// Creates a file or folder, never one that is there already. The handle of a file is good for reading
    /// and writing, that of a folder for listing.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_COLLISION if somebody else was faster (open it again), ACCESS_DENIED in a share that is
    /// read-only, and what `open(2)` and `mkdir(2)` say.
    pub fn create(&self, how: Create) -> Result<Handle, NtStatus> {
        let inner = &self.share.0;
        inner.writable()?;
        let name = split(&self.path).1;
        let config = &inner.config;
        let mode = match (how.mode, how.folder) {
            (Some(mode), _) => mode & 0o7777,
            (None, true) => config.folder_mode,
            (None, false)
                if !config.dos_attributes && how.attributes.contains(Attributes::READONLY) =>
            {
                config.file_mode & !0o222
            }
            (None, false) => config.file_mode,
        };
        let mode = Mode::from_raw_mode(mode);
        let nofollow = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = if how.folder {
            // Its owner must be able to open it, once.
            let more = Mode::RUSR - mode;
            rustix::fs::mkdirat(&*self.folder, name, mode | more).map_err(gone)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | nofollow;
            let fd = rustix::fs::openat(&*self.folder, name, flags, Mode::empty()).map_err(gone)?;
            if !more.is_empty() {
                let now = Mode::from_raw_mode(u32::from(stat(&fd).map_err(status)?.stx_mode));
                rustix::fs::fchmod(&fd, (now & Mode::from_raw_mode(0o7777)) - more)
                    .map_err(status)?;
            }
            fd
        } else {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | nofollow;
            rustix::fs::openat(&*self.folder, name, flags, mode).map_err(gone)?
        };
        let extra = self.store(&fd, how)?;
        let stat = stat(&fd).map_err(status)?;
        let known = (Mount::of(&stat), inner.facts_with(&stat, extra, name));
        inner.plain.note(&self.path, inner.devices.is_mount_of_root(known.0));
        let want = Want { read: true, write: !how.folder, link: false };
        let folder = Some(Arc::clone(&self.folder));
        Ok(Handle::new(&self.share, fd, self.path.clone(), want, folder, known))
    }

    /// Stores the attributes, where they are not those that a file has without being told.
    fn store(&self, fd: &OwnedFd, how: Create) -> Result<Extra, NtStatus> {
        let wished = how.attributes & dosattrib::STORED;
        let usual = if how.folder { Attributes::empty() } else { Attributes::ARCHIVE };
        let attributes = wished | usual;
        if attributes == usual || !self.share.0.config.dos_attributes {
            return Ok(Extra::default());
        }
        let value = DosAttrib { attributes: Some(attributes), created: None }.emit();
        match xattr::set(&super::facts::proc_path(fd.as_fd()), dosattrib::NAME.as_bytes(), &value) {
            Ok(()) => Ok(Extra { attributes: Some(attributes), ..Extra::default() }),
            // The file is there all the same, without what its file system cannot keep.
            Err(Errno::OPNOTSUPP) => Ok(Extra::default()),
            Err(errno) => Err(status(errno)),
        }
    }

    pub(super) fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    pub(super) fn into_parts(self) -> (Arc<OwnedFd>, Vec<u8>) {
        (self.folder, self.path)
    }

    /// The path from the root, as clients see it, `\` between its parts.
    #[must_use]
    pub fn path(&self) -> String {
        super::handle::seen_path(&self.path)
    }
}

/// Creating in a folder that has been removed is a missing path, not a missing name.
fn gone(errno: Errno) -> NtStatus {
    if errno == Errno::NOENT { NtStatus::OBJECT_PATH_NOT_FOUND } else { status(errno) }
}
