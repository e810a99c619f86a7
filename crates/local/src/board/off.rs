//! Whether new connections are to stay on TCP: `shunt off`, and `shunt on`.
//!
//! A file in the directory of boards says so, [`OFF`]: it is there whether programs run or not, and whatever becomes of a
//! board. Programs are told by a word in the head of each board, which a connection costs nothing to look at.
//!
//! The word is what the file says. Whoever has changed the file, or comes to a board, looks at the file, writes the word, and
//! looks at the file again until it says the same. So who writes the word last has seen the file afterwards as it is: who
//! changed it after that would have written later.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::io;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;

use sys::abi::{FILE_BYTES, Header, MAGIC, VERSION};
use sys::acting::{self, Credentials};
use sys::call;
use sys::map::MapError;
use sys::sync::{AtomicU32, Ordering, full_fence};

use super::{HOME, O_CLOEXEC, directory, owner_of, prepare};

/// A file of this name in a directory, of the directory's owner: new connections of programs there stay on TCP. Who is of a
/// group that shares the directory can make files in it as well, and is not asked.
pub const OFF: &str = "switched-off";

const ROOT: u32 = 0;
const ENOENT: i32 = 2;
const ENXIO: i32 = 6;
const EEXIST: i32 = 17;
const EISDIR: i32 = 21;
const EIO: i32 = 5;
const ELOOP: i32 = 40;
const O_CREAT: i32 = 0o100;
const O_EXCL: i32 = 0o200;
const O_WRONLY: i32 = 0o1;
const O_RDWR: i32 = 0o2;
const O_NONBLOCK: i32 = 0o4000;
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
/// How often the file is looked at for one board, and made in place of what somebody else has put there: each time others
/// have changed it meanwhile.
const TRIES: u32 = 64;

/// Why nothing is switched, or not everywhere.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// The directory is none, or is open to others.
    #[error("{0}")]
    Directory(#[from] MapError),
    /// Only its owner switches.
    #[error("only its owner, user {0}, can switch it on and off, and root: sudo")]
    NotOwner(u32),
    /// The owner cannot be acted as.
    #[error("its user {0} cannot be acted as: {1}")]
    NotActed(u32, io::Error),
    /// What did not work with the file that says so.
    #[error("{OFF}: {0}")]
    File(io::Error),
    /// The directory says so, and programs that run do not know.
    #[error("programs that start are told, and those that run on {0} are not: {1}")]
    Untold(String, io::Error),
}

/// Whether new connections of programs in this directory are to stay on TCP.
#[must_use]
pub fn is_off(dir: Option<&str>) -> bool {
    let dir = directory(dir);
    let about = |path: String| CString::new(path).ok().and_then(|path| call::lstat(&path).ok());
    let Some(file) = about(format!("{dir}/{OFF}")) else { return false };
    file.st_mode & S_IFMT == S_IFREG && about(dir).is_some_and(|dir| dir.st_uid == file.st_uid)
}

/// Has new connections of programs in this directory stay on TCP, those of programs that run and of those that will, or not
/// any more. By the owner of the directory, or by root, who does it with the owner's rights and no others.
///
/// # Errors
///
/// [`SwitchError`]. Where it is not [`SwitchError::Untold`], all is as it was.
pub fn switch(dir: Option<&str>, off: bool) -> Result<(), SwitchError> {
    let (path, own) = (directory(dir), call::geteuid());
    let at = CString::new(path.as_str()).map_err(|_| MapError::NotOurs)?;
    let Ok(about) = call::lstat(&at) else {
        // The first program would make it, and it would be its user's.
        let users = path.strip_prefix(HOME).and_then(|name| owner_of(name.trim_matches('/')));
        return match users {
            Some(uid) if uid != own => Err(SwitchError::NotOwner(uid)),
            _ if off => switch_own(dir, off),
            _ => Ok(()),
        };
    };
    if about.st_mode & S_IFMT != S_IFDIR {
        return Err(MapError::NotADirectory.into());
    }
    match about.st_uid {
        uid if uid == own => switch_own(dir, off),
        // That of root itself is root's, or somebody else has taken its name.
        uid if own != ROOT || dir.is_none() => Err(SwitchError::NotOwner(uid)),
        uid => as_user(uid, about.st_gid, || switch_own(dir, off))?,
    }
}

/// Does something with a user's rights: what is in its directory, and the directory, may at any time lead elsewhere.
fn as_user<T>(uid: u32, gid: u32, act: impl FnOnce() -> T) -> Result<T, SwitchError> {
    struct Resume<'a>(&'a Credentials);
    impl Drop for Resume<'_> {
        fn drop(&mut self) {
            acting::resume(self.0);
        }
    }
    let refused = |e| SwitchError::NotActed(uid, e);
    let own = Credentials::of_thread().map_err(refused)?;
    acting::assume(&own, &Credentials::new(uid, gid, &[])).map_err(refused)?;
    let _resume = Resume(&own);
    Ok(act())
}

/// [`switch`] of a directory of this user.
fn switch_own(dir: Option<&str>, off: bool) -> Result<(), SwitchError> {
    prepare(dir)?;
    let folder = directory(dir);
    let path = CString::new(format!("{folder}/{OFF}")).map_err(|_| MapError::NotOurs)?;
    let done = if off { put(&path, dir) } else { take_away(&path) };
    done.map_err(|errno| SwitchError::File(io::Error::from_raw_os_error(errno)))?;
    let names = match fs::read_dir(&folder) {
        Ok(names) => names,
        Err(e) => return Err(SwitchError::Untold(folder, e)),
    };
    let (first, last) = ("board-", format!("-v{VERSION}"));
    let names = names.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut all = Ok(());
    for name in names.filter(|name| name.starts_with(first) && name.ends_with(&last)) {
        let path = format!("{folder}/{name}");
        let told = CString::new(path.as_str()).map_or(Err(EIO), |path| tell(&path, dir));
        // The others as well, whatever is wrong with one.
        if let Err(errno) = told {
            all = Err(SwitchError::Untold(path, io::Error::from_raw_os_error(errno)));
        }
    }
    all
}

fn put(path: &CStr, dir: Option<&str>) -> Result<(), i32> {
    for _ in 0..TRIES {
        let flags = O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | call::NOFOLLOW;
        match call::open(path, flags, 0o600) {
            Ok(fd) => {
                let _ = call::close(fd);
            }
            Err(EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        if is_off(dir) {
            return Ok(());
        }
        // Somebody of the group has put something else there.
        take_away(path)?;
    }
    Err(EEXIST)
}

fn take_away(path: &CStr) -> Result<(), i32> {
    match call::unlink(path) {
        Err(ENOENT) => Ok(()),
        // Somebody of the group's, who may have put something into it: out of the way, under a name that nobody guesses.
        Err(EISDIR) => {
            let from = OsStr::from_bytes(path.to_bytes());
            let mut to = from.to_owned();
            to.push(format!("-{}", call::now_ns()));
            fs::rename(from, to).map_err(|e| e.raw_os_error().unwrap_or(EIO))
        }
        done => done,
    }
}

/// To be called by who has come to a board.
pub(super) fn tell_at_joining(word: &AtomicU32, dir: Option<&str>) {
    let is_told = word.load(Ordering::Relaxed) == u32::from(is_off(dir));
    if !is_told {
        let _ = agree(dir, |off| {
            word.store(u32::from(off), Ordering::Relaxed);
            // Before the file is looked at.
            full_fence();
            Ok(())
        });
    }
}

/// Tells the programs on a board. It is written to as a file, and not mapped: who has it may make it shorter at any time.
fn tell(path: &CStr, dir: Option<&str>) -> Result<(), i32> {
    let flags = O_RDWR | O_NONBLOCK | O_CLOEXEC | call::NOFOLLOW;
    let fd = match call::open(path, flags, 0) {
        Ok(fd) => fd,
        // No board, or none any more: a link, a folder, a socket.
        Err(ENOENT | ELOOP | EISDIR | ENXIO) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let at = i64::try_from(offset_of!(Header, off)).unwrap_or(i64::MAX);
    // Who is making it at this moment looks at the file once it is one.
    let told = match is_board(fd) {
        true => agree(dir, |off| call::pwrite(fd, &u32::from(off).to_ne_bytes(), at).map(drop)),
        false => Ok(()),
    };
    let _ = call::close(fd);
    told
}

fn is_board(fd: i32) -> bool {
    let mut head = [0; 12];
    let is_whole = call::fstat(fd).is_ok_and(|about| {
        let is_file = about.st_mode & S_IFMT == S_IFREG;
        is_file && usize::try_from(about.st_size) == Ok(FILE_BYTES)
    });
    let (magic, version) = (MAGIC.to_ne_bytes(), VERSION.to_ne_bytes());
    is_whole
        && call::pread(fd, &mut head, 0) == Ok(head.len())
        && head[..8] == magic
        && head[8..] == version
}

/// Says what the file says, until it says that.
fn agree(dir: Option<&str>, mut say: impl FnMut(bool) -> Result<(), i32>) -> Result<(), i32> {
    let mut is = is_off(dir);
    for _ in 0..TRIES {
        say(is)?;
        let now = is_off(dir);
        if now == is {
            return Ok(());
        }
        is = now;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
