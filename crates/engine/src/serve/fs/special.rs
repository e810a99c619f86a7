//! Files that become links or special files under the name that they have, and back: what reparse points are here
//! (MS-FSA 2.1.5.10.37, 2.1.5.10.7).

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use smb::NtStatus;
use sys::sync::{AtomicU64, Ordering};

use super::errno::status;
use super::facts::{device, file_type, proc_path, stat, stat_at};
use super::lookup::check_name;
use super::{Handle, Identity, Links, Want};

/// How often a name for what comes is looked for.
const ATTEMPTS: usize = 16;
/// A path on disk is at most this long.
const TARGET_MAX: usize = 4095;

/// The end of such names.
const BESIDE: &str = ".shunt-new";

/// Tells apart what comes to be at the same time.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What a file becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Special {
    /// A symbolic link that leads there, as on disk.
    Link(Vec<u8>),
    /// A pipe with a name.
    Fifo,
    /// A socket, which nobody is bound to.
    Socket,
    /// The character device 0:0, which no driver has: a file that is not there, to overlayfs.
    Whiteout,
    /// A file without data, as which it can be opened again for this.
    File(Want),
}

impl Handle {
    /// Puts something else where this file or folder is, in one step for those who look, and opens that. It must be
    /// empty, and goes; whoever has it open keeps it without a name. What comes has its mode, but not that of
    /// a link or a folder, which means something else. If it is a file, `first` is called with it before anybody sees
    /// it, to say who may do what with it.
    ///
    /// # Errors
    ///
    /// ACCESS_DENIED in a share that is read-only, for the share's root, and for a link by [`Links::Refuse`] or one
    /// that leads out of the share by [`Links::Follow`]; IO_REPARSE_DATA_INVALID for a target that cannot be;
    /// DIRECTORY_NOT_EMPTY; NOT_SUPPORTED for a file that has data; what `first`, `symlink(2)` and `mknod(2)` say.
    pub fn turn_into(
        &self,
        what: &Special,
        first: impl FnOnce(&Self) -> Result<(), NtStatus>,
    ) -> Result<Self, NtStatus> {
        self.share().writable()?;
        let (folder, name) = self.located()?;
        if let Special::Link(target) = what {
            self.may_lead(&folder, target)?;
        }
        self.is_empty()?;
        let (new, file) = self.make(&folder, what)?;
        let said = match file {
            Some(file) => self.to_be(file).and_then(|file| first(&file)),
            None => Ok(()),
        };
        if let Err(failed) = said.and_then(|()| self.exchange(&folder, &new, &name)) {
            // Nobody knows its name; that it cannot be removed either is no news.
            let _ = rustix::fs::unlinkat(&*folder, &*new, AtFlags::empty());
            return Err(failed);
        }
        let want = match what {
            Special::File(want) => *want,
            _ => Want { link: true, ..Want::default() },
        };
        let flags = want.flags() | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&*folder, &*name, flags, Mode::empty()).map_err(status)?;
        let path = self.place().path.clone();
        Self::opened(self.of_share(), fd, path, want, Some(folder))
    }

    /// The numbers of a device; `None` of anything else.
    ///
    /// # Errors
    ///
    /// What `statx(2)` says.
    pub fn device_numbers(&self) -> Result<Option<(u32, u32)>, NtStatus> {
        let stat = stat(self.owned_fd()).map_err(status)?;
        let is_device =
            matches!(file_type(&stat), FileType::CharacterDevice | FileType::BlockDevice);
        Ok(is_device.then_some((stat.stx_rdev_major, stat.stx_rdev_minor)))
    }

    /// Whether a link in this folder may lead there.
    fn may_lead(&self, folder: &OwnedFd, target: &[u8]) -> Result<(), NtStatus> {
        if target.is_empty() || target.len() > TARGET_MAX || target.contains(&0) {
            return Err(NtStatus::IO_REPARSE_DATA_INVALID);
        }
        let may = match self.share().config.links {
            Links::Refuse => false,
            // Nobody but the client follows it.
            Links::Client => true,
            Links::Follow => stays_beneath(target, self.depth_of(folder)?),
        };
        if may { Ok(()) } else { Err(NtStatus::ACCESS_DENIED) }
    }

    /// How many folders are between this one and the share's root, where it really is.
    fn depth_of(&self, folder: &OwnedFd) -> Result<usize, NtStatus> {
        let place = |fd: &OwnedFd| {
            rustix::fs::readlinkat(rustix::fs::CWD, proc_path(fd.as_fd()), Vec::new())
                .map(std::ffi::CString::into_bytes)
                .map_err(status)
        };
        let (root, folder) = (place(&self.share().root)?, place(folder)?);
        let beneath = folder.strip_prefix(&*root).ok_or(NtStatus::ACCESS_DENIED)?;
        Ok(beneath.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).count())
    }

    fn is_empty(&self) -> Result<(), NtStatus> {
        let stat = stat(self.owned_fd()).map_err(status)?;
        match file_type(&stat) {
            FileType::Directory if !self.is_empty_folder()? => Err(NtStatus::DIRECTORY_NOT_EMPTY),
            FileType::RegularFile if stat.stx_size > 0 => Err(NtStatus::NOT_SUPPORTED),
            _ => Ok(()),
        }
    }

    /// Makes it beside the file, by a name that nobody asks for, and opens it if it is a file.
    fn make(
        &self,
        folder: &OwnedFd,
        what: &Special,
    ) -> Result<(Vec<u8>, Option<OwnedFd>), NtStatus> {
        let old = stat(self.owned_fd()).map_err(status)?;
        let mode = match file_type(&old) {
            FileType::Symlink | FileType::Directory => self.share().config.file_mode,
            _ => u32::from(old.stx_mode) & 0o777,
        };
        let mode = Mode::from_raw_mode(mode);
        let node =
            |name: &[u8], kind| rustix::fs::mknodat(folder, name, kind, mode, 0).map(|()| None);
        make_beside(|name| match what {
            Special::Link(target) => rustix::fs::symlinkat(target, folder, name).map(|()| None),
            Special::Fifo => node(name, FileType::Fifo),
            Special::Socket => node(name, FileType::Socket),
            Special::Whiteout => node(name, FileType::CharacterDevice),
            Special::File(_) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                rustix::fs::openat(folder, name, flags, mode).map(Some)
            }
        })
    }

    /// The file that was made, with the name that it is to have.
    fn to_be(&self, fd: OwnedFd) -> Result<Self, NtStatus> {
        let want = Want { write: true, ..Want::default() };
        let path = self.place().path.clone();
        Self::opened(self.of_share(), fd, path, want, None)
    }

    /// What is called `new` gets the name of this file, which is removed.
    fn exchange(&self, folder: &OwnedFd, new: &[u8], name: &[u8]) -> Result<(), NtStatus> {
        let swap = || rustix::fs::renameat_with(folder, new, folder, name, RenameFlags::EXCHANGE);
        match swap() {
            Ok(()) => {}
            // Some file systems cannot.
            Err(Errno::INVAL | Errno::NOSYS) if !self.is_folder() => {
                return rustix::fs::renameat(folder, new, folder, name).map_err(status);
            }
            Err(errno) => return Err(status(errno)),
        }
        let removed = match stat_at(folder, new) {
            // Somebody else was faster, on the host.
            Ok(stat)
                if (Identity { device: device(&stat), inode: stat.stx_ino }) != self.identity() =>
            {
                Err(NtStatus::OBJECT_NAME_NOT_FOUND)
            }
            Ok(_) => self.is_empty().and_then(|()| {
                let flags = if self.is_folder() { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                rustix::fs::unlinkat(folder, new, flags).map_err(status)
            }),
            Err(errno) => Err(status(errno)),
        };
        if removed.is_err() {
            swap().map_err(status)?;
        }
        removed
    }
}

/// Makes something by a name that nobody asks for, to be put in the place of what is there: that name, and what `make`
/// has said.
///
/// # Errors
///
/// What `make` says, but that there is something by that name.
pub(super) fn make_beside<T>(
    make: impl Fn(&[u8]) -> Result<T, Errno>,
) -> Result<(Vec<u8>, T), NtStatus> {
    for _ in 0..ATTEMPTS {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{number:x}{BESIDE}", beside()).into_bytes();
        check_name(&name)?;
        match make(&name) {
            Ok(made) => return Ok((name, made)),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(status(errno)),
        }
    }
    Err(NtStatus::OBJECT_NAME_COLLISION)
}

/// Whether something of this name is there only until it has another, which this server sees to.
#[must_use]
pub fn is_made_beside(name: &str) -> bool {
    name.ends_with(BESIDE) && name.starts_with(&beside())
}

/// What such names of this process begin with.
fn beside() -> String {
    format!(".{:x}-", std::process::id())
}

/// Whether a link that is so many folders below the root leads to something beneath it, whatever the folders on its
/// way are: `..` counts only before the first name, as a folder that is a link itself has another folder above it.
fn stays_beneath(target: &[u8], depth: usize) -> bool {
    if target.starts_with(b"/") {
        return false;
    }
    let mut parts = target.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    let ups = parts.by_ref().take_while(|part| *part == b"..").count();
    ups <= depth && parts.all(|part| part != b"..")
}

#[cfg(test)]
mod tests {
    use super::stays_beneath;

    #[test]
    fn what_a_link_may_say() {
        for target in ["a", "a/b", "./a", "../a", "../../a//b", "..", "../.."] {
            assert!(stays_beneath(target.as_bytes(), 2), "{target}");
        }
        for target in ["/", "/a", "../../../a", "a/..", "../a/../b", "./../../.."] {
            assert!(!stays_beneath(target.as_bytes(), 2), "{target}");
        }
    }
}
