//! A share: a folder of the file system as SMB clients see it.
//!
//! Everything here is a plain function around a few system calls; the fast ones may be called on a loop, those
//! that wait for a disk belong on a thread of their own. Values are `Send + Sync`; failures are [`NtStatus`].
//!
//! - **Look-ups** ([`Share::open`]) try the name as it was said, with one `openat2(2)` from the share's root
//!   that the kernel keeps beneath it: whatever links and renames race with it, nothing outside is opened. Only
//!   when there is no such name, case is folded, by an index of the folder that the kernel keeps up to date
//!   (`fs/index.rs`).
//! - **A handle** ([`Handle`]) is one descriptor, `O_PATH` where attributes are all that was asked for.
//! - **What is said about a file** is one `statx(2)`; its extended attributes are remembered until the file's
//!   change time moves (`fs/memo.rs`).
//!
//! All of it is done as whoever the calling thread is for files (`acting.rs`), and nothing is kept between two calls
//! that depends on who asks: what the server itself has written into extended attributes is read as itself.
//!
//! `/proc` must be mounted: extended attributes and modes of `O_PATH` descriptors are reached through it.

mod change;
mod closed;
mod delays;
mod device;
mod directory;
pub mod dosattrib;
mod errno;
mod facts;
mod handle;
mod index;
mod lookup;
mod memo;
mod permission;
mod plain;
mod rename;
mod special;
mod stream;
#[cfg(test)]
mod tests;
mod unshown;
mod volume;
mod watch;
pub mod write_time;
mod xattr;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use smb::{Access, NtStatus};

use super::runtime::{self, Budget};
use device::Mount;
use lookup::Waits;

pub use change::{Posix, SetTimes};
pub use closed::{Closed, Lack, Unwritable, try_folder, try_writing};
pub use directory::{Directory, Errand};
pub use errno::{status, status_of};
pub use handle::{Handle, Identity};
pub use lookup::{Create, Found, Vacancy};
pub use permission::{Unix, allowed};
pub use rename::Destination;
pub use special::{Special, is_made_beside};
pub use stream::{STREAM_MAX, Stream, StreamFacts};
pub use watch::{Change, ChangeKind, Limits as WatchLimits, Watch, Watcher};
pub use xattr::Ea;

/// What to do about symbolic links on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Follow those that stay inside the share. One whose target is an absolute path never does.
    #[default]
    Follow,
    /// A path with a link in it is refused: ACCESS_DENIED.
    Refuse,
    /// The client is told, STOPPED_ON_SYMLINK, and may follow it itself.
    Client,
}

/// Settings of a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The folder.
    pub root: PathBuf,
    /// The name that clients know, shown as the volume's label.
    pub label: String,
    /// Nothing may be changed.
    pub read_only: bool,
    /// `a` and `A` are two files.
    pub case_sensitive: bool,
    /// What to do about symbolic links on disk.
    pub links: Links,
    /// Permission bits that a new file may have; the process's umask counts too.
    pub file_mode: u32,
    /// Permission bits that a new folder may have; the process's umask counts too.
    pub folder_mode: u32,
    /// Keep DOS attributes and creation times in `user.DOSATTRIB`. Without it READONLY is the owner's write
    /// permission, and the other attributes cannot be set.
    pub dos_attributes: bool,
    /// Offer named streams, kept in extended attributes.
    pub streams: bool,
    /// What the name of the extended attribute of a stream begins with; Samba's default is
    /// `user.DosStream.`, after which come the stream's name and `:$DATA`.
    pub stream_prefix: String,
    /// Names that begin with a full stop have the attribute HIDDEN.
    pub hide_dot_files: bool,
    /// Names that Windows reserves for devices are shown with a mark ([`smb::name::mark_device`]).
    pub map_devices: bool,
}

impl Config {
    /// The usual settings for a folder.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>, label: impl Into<String>) -> Self {
        Self {
            root: root.into(),
            label: label.into(),
            read_only: false,
            case_sensitive: false,
            links: Links::Follow,
            file_mode: 0o664,
            folder_mode: 0o775,
            dos_attributes: true,
            streams: true,
            stream_prefix: "user.DosStream.".to_owned(),
            hide_dot_files: true,
            map_devices: false,
        }
    }
}

/// What a descriptor must be good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Reading data, or listing a folder.
    pub read: bool,
    /// Writing data.
    pub write: bool,
    /// The link itself, if the path ends in a symbolic link (FILE_OPEN_REPARSE_POINT).
    pub link: bool,
}

impl Want {
    /// What an open with these rights does to data. Generic rights must have been expanded;
    /// MAXIMUM_ALLOWED is nothing here: open, ask [`allowed`], then [`Handle::reopen`].
    #[must_use]
    pub fn by_access(access: Access) -> Self {
        Self {
            read: access.intersects(Access::READ_DATA | Access::EXECUTE),
            write: access.intersects(Access::WRITE_DATA | Access::APPEND_DATA),
            link: false,
        }
    }

    /// The same of a folder, if it is one, which is written to by adding files.
    fn of_kind(self, kind: FileType) -> Self {
        Self { write: self.write && kind != FileType::Directory, ..self }
    }

    /// Another descriptor of what one is of, whatever it is called by now.
    fn open_again(self, fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        // What is behind that link is no link.
        let flags = Self { link: false, ..self }.flags();
        rustix::fs::open(facts::proc_path(fd), flags, Mode::empty())
    }

    fn flags(self) -> OFlags {
        let how = match (self.read, self.write) {
            (false, false) => OFlags::PATH,
            (true, false) => OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY,
            (false, true) => OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY,
            (true, true) => OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY,
        };
        let link = if self.link { OFlags::NOFOLLOW } else { OFlags::empty() };
        how | link | OFlags::CLOEXEC
    }
}

/// A folder of the file system, offered to clients.
#[derive(Clone, Debug)]
pub struct Share(Arc<Inner>);

/// What every handle of a share needs.
#[derive(Debug)]
struct Inner {
    config: Config,
    root: Arc<OwnedFd>,
    resolve: ResolveFlags,
    index: index::Indexes,
    waits: Waits,
    delays: delays::Delays,
    unshown: unshown::Unshown,
    callers: Budget,
    turns: Arc<stream::Turns>,
    memo: memo::Memo,
    plain: plain::Plain,
    devices: device::Devices,
}

impl Share {
    /// Opens the folder. It need not be empty, and stays that folder if it is renamed.
    ///
    /// # Errors
    ///
    /// What `open(2)` says, for one that is not there, is no folder, or may not be searched.
    pub fn new(config: Config) -> Result<Self, NtStatus> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&config.root, flags, Mode::empty()).map_err(status)?;
        let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        if config.links != Links::Follow {
            resolve |= ResolveFlags::NO_SYMLINKS;
        }
        let kind = device::Kind::of(&root)?;
        let waits = match (kind.in_memory, kind.local) {
            (true, _) => Waits::Never,
            (false, false) => Waits::Always,
            (false, true) => {
                let (resolve, none) = (resolve | ResolveFlags::CACHED, Mode::empty());
                match rustix::fs::openat2(&root, ".", flags, none, resolve) {
                    Err(Errno::INVAL) => Waits::Never,
                    _ => Waits::ForNames,
                }
            }
        };
        let stat = facts::stat(&root).map_err(status)?;
        let turns = stream::turns_of(facts::device(&stat));
        Ok(Self(Arc::new(Inner {
            config,
            root: Arc::new(root),
            resolve,
            index: index::Indexes::new(kind.local),
            waits,
            delays: delays::Delays::new(),
            unshown: unshown::Unshown::new(),
            callers: Budget::new(runtime::Config::default().offload_threads / 2),
            turns,
            memo: memo::Memo::default(),
            plain: plain::Plain::default(),
            devices: device::Devices::new(Mount::of(&stat), kind),
        })))
    }

    /// Whether its path leads to it still, as far as can be told. One that was made in its place, or is mounted there
    /// since, is another folder.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let Ok(ours) = rustix::fs::fstat(&*self.0.root) else { return false };
        let there = rustix::fs::stat(&self.0.config.root);
        there.is_ok_and(|there| (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino))
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Whether its file system is one of this host, which answers at once for what is in memory.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.0.devices.root().local
    }

    /// Whether calls to its file system are for who may wait: it is one of another host or of a program (NFS, FUSE), or has
    /// kept somebody waiting of late.
    #[must_use]
    pub fn keeps_waiting(&self) -> bool {
        match self.0.waits {
            Waits::Always => true,
            _ => !self.0.devices.root().in_memory && self.0.delays.are_long(),
        }
    }

    /// Calls `what`, which calls its file system, and remembers if that took long.
    pub fn timed<T>(&self, what: impl FnOnce() -> T) -> T {
        if self.0.devices.root().in_memory || self.0.waits == Waits::Always {
            return what();
        }
        let from = Instant::now();
        let done = what();
        self.0.delays.note(from, Instant::now(), &self.0.config.label);
        done
    }

    /// Threads that may be in its file system at a time, of those that may wait.
    #[must_use]
    pub fn callers(&self) -> &Budget {
        &self.0.callers
    }

    /// How many folders have been read to find names that differ in case: what look-ups cost beyond a fixed
    /// number of system calls.
    #[must_use]
    pub fn scans(&self) -> u64 {
        self.0.index.scans()
    }
}

impl Inner {
    /// Whether something there is for who may wait, though the share's root is not: what is mounted beneath it is of
    /// another host or of a program, or nobody has asked yet.
    fn is_far(&self, mount: Mount) -> bool {
        !self.devices.is_root(mount) && !self.devices.is_local(mount)
    }

    /// Nothing may be changed in a share that is read-only.
    fn writable(&self) -> Result<(), NtStatus> {
        if self.config.read_only { Err(NtStatus::ACCESS_DENIED) } else { Ok(()) }
    }
}
