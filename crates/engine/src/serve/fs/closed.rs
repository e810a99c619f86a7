//! Folders that whoever runs the server cannot use: a descriptor of them can be had, and nothing can be done with it.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags, accessat};
use rustix::io::Errno;

/// What cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// To enter the folder: nothing in it can be reached.
    Enter,
    /// To list it: what is in it can be reached by who knows its name.
    List,
    /// To make anything in it, or delete it.
    Write,
}

/// A folder that is closed to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// The folder, or one above it.
    pub at: PathBuf,
    /// What we cannot do there.
    pub lack: Lack,
    /// Who we are: the effective user.
    uid: u32,
    /// Its owner and mode, if they are told.
    about: Option<(u32, u32)>,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, uid) = (self.at.display(), self.uid);
        // An entry for a user takes the place of what all others may: it has to have all of it.
        let (what, letter, entry) = match self.lack {
            Lack::Enter => ("enter", 'x', "x"),
            Lack::List => ("list", 'r', "rx"),
            Lack::Write => ("write to", 'w', "rwx"),
        };
        write!(f, "user {uid}, as whom the server runs, may not {what} {at}")?;
        let owner = match self.about {
            Some((owner, mode)) => {
                write!(f, " (of user {owner}, mode {mode:o})")?;
                owner
            }
            None => uid,
        };
        if owner == uid {
            return write!(f, ": chmod u+{letter} {at}");
        }
        write!(f, ": setfacl -m u:{uid}:{entry} {at}")?;
        // Nobody is told to have everybody on the host write there.
        if self.lack != Lack::Write {
            write!(f, ", or chmod o+{letter} {at}")?;
        }
        write!(f, ", or run the server as user {owner}")
    }
}

/// Why nothing can be made in a folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwritable {
    /// We may not.
    #[error("{0}")]
    Closed(Closed),
    /// Nobody can here.
    #[error(
        "{at} is read-only here: mount its file system for writing (for a service of systemd, ReadWritePaths={at})",
        at = .0.display()
    )]
    ReadOnly(PathBuf),
}

/// Looks whether whoever we are can enter a folder, all those above it included, and list it.
///
/// # Errors
///
/// [`Closed`]: the first of them that is in the way. What is not there is nobody's fault here.
pub fn try_folder(folder: &Path) -> Result<(), Closed> {
    let mut above: Vec<&Path> = folder.ancestors().collect();
    above.reverse();
    for at in above {
        may(at, Access::EXEC_OK, Lack::Enter)?;
    }
    may(folder, Access::READ_OK, Lack::List)
}

/// Looks whether anything can be made in a folder that can be entered. `as_ourselves`: by whoever we are.
///
/// # Errors
///
/// [`Unwritable`]. What is not there is nobody's fault here.
pub fn try_writing(folder: &Path, as_ourselves: bool) -> Result<(), Unwritable> {
    let mount = rustix::fs::statvfs(folder);
    if mount.is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        return Err(Unwritable::ReadOnly(folder.to_owned()));
    }
    if as_ourselves {
        may(folder, Access::WRITE_OK, Lack::Write).map_err(Unwritable::Closed)?;
    }
    Ok(())
}

fn may(at: &Path, access: Access, lack: Lack) -> Result<(), Closed> {
    // Where the kernel does not know the question it will be asked again, by clients.
    match accessat(CWD, at, access, AtFlags::EACCESS) {
        Err(Errno::ACCESS) => {}
        _ => return Ok(()),
    }
    let about = std::fs::metadata(at).ok().map(|about| (about.uid(), about.mode() & 0o7777));
    Err(Closed { at: at.to_owned(), lack, uid: sys::call::geteuid(), about })
}
