//! Boards that nobody will come to again: of network namespaces that are gone, and of versions of Shunt that are. A board
//! is a file in memory, so each that is left there costs megabytes until the host is started anew; services with a network
//! of their own (`PrivateNetwork=yes`, containers, `ip netns`) would leave one with each start.
//!
//! That a namespace is gone cannot be asked. So it is the boards on which nobody is that are taken away, whosever they were:
//! who comes next makes another. Whoever has one open has a lock on its [`JOINED`] byte, which is the kernel's to tell,
//! in all namespaces of processes.

use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use sys::call;
use sys::map::{Access, Map, MapError};
use sys::passing;

use super::locate;

/// Byte of a board's file that each process that has joined it holds a read lock on, and what it has forked.
const JOINED: i64 = (1 << 40) - 1;
/// How often who joins tries anew, a millisecond apart, because what it has opened is being taken away.
const TRIES: u32 = 20;
/// Versions that do not know of [`JOINED`] have nothing locked between joining and their first connection. A board that was
/// opened since is left.
const SETTLED: Duration = Duration::from_secs(600);
const ECONNREFUSED: i32 = 111;
const O_NONBLOCK: i32 = 0o4000;
/// What the names of boards start with, and those of the doors of engines.
const BOARD: &str = "board-";
const ENGINE: &str = "engine-";

/// Opens the board, and says so to who takes away what nobody has open.
pub(super) fn open(path: &CStr, netns: u64, access: Access) -> Result<(Map, i32), MapError> {
    let mut left = TRIES;
    loop {
        left -= 1;
        let (map, fd) = Map::open(path, netns, access)?;
        let is_told = call::share_byte(fd, JOINED).is_ok();
        let is_there = call::fstat(fd).is_ok_and(|stat| stat.st_nlink > 0);
        // That it cannot be said (a filter of system calls, a member who has it locked) is no reason to stay away: at worst
        // those who come later do not meet us.
        if (is_told && is_there) || left == 0 {
            return Ok((map, fd));
        }
        map.unmap();
        let _ = call::close(fd);
        let _ = call::poll(&mut [], 1);
    }
}

/// Takes away the boards in the directory on which nobody is, but for the one that we would come to; and the doors of
/// engines that were theirs. What is not ours to remove stays. Answers how many boards there were.
pub fn sweep(dir: Option<&str>) -> usize {
    sweep_at(dir, SystemTime::now())
}

fn sweep_at(dir: Option<&str>, now: SystemTime) -> usize {
    let Ok((own, _)) = locate(dir) else { return 0 };
    let own = Path::new(OsStr::from_bytes(own.to_bytes()));
    let Some(folder) = own.parent() else { return 0 };
    let names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let boards = names.iter().filter(|name| of_board(name, BOARD) == Some(""));
    let swept = boards
        .map(|name| folder.join(name))
        .filter(|path| path != own && take_away(path, now))
        .count();
    for name in &names {
        let Some(rest @ ("" | "-control")) = of_board(name, ENGINE) else { continue };
        let board = name.trim_end_matches(rest).replacen(ENGINE, BOARD, 1);
        // An engine is on its board before it opens its door.
        let is_alone = fs::symlink_metadata(folder.join(board)).is_err();
        let path = CString::new(folder.join(name).into_os_string().into_vec());
        let is_shut = |path: &CString| passing::connect_now(path).err() == Some(ECONNREFUSED);
        if let Some(path) = path.ok().filter(|path| is_alone && is_shut(path)) {
            let _ = call::unlink(&path);
        }
    }
    swept
}

/// What follows the namespace and the version in the name of something that starts so; `None`: it is not of a board.
fn of_board<'a>(name: &'a str, starts: &str) -> Option<&'a str> {
    let (netns, version) = name.strip_prefix(starts)?.split_once("-v")?;
    let is_netns = netns == "all" || u64::from_str_radix(netns, 16).is_ok();
    let rest = version.trim_start_matches(|c: char| c.is_ascii_digit());
    (is_netns && rest.len() < version.len()).then_some(rest)
}

/// Removes a board if nobody has it open.
fn take_away(path: &Path, now: SystemTime) -> bool {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(call::NOFOLLOW | O_NONBLOCK)
        .open(path);
    let Ok(file) = opened else { return false };
    let is_settled = file.metadata().is_ok_and(|facts| {
        let opened = Duration::from_secs(u64::try_from(facts.ctime()).unwrap_or(0));
        let age = now.duration_since(SystemTime::UNIX_EPOCH + opened);
        facts.is_file() && age.is_ok_and(|age| age > SETTLED)
    });
    let fd = file.as_raw_fd();
    // With the lock nobody joins; and whoever has opened it meanwhile sees that it is gone.
    is_settled
        && call::lock_byte(fd, JOINED).is_ok()
        && call::any_locked(fd) == Ok(false)
        && fs::remove_file(path).is_ok()
}

#[cfg(test)]
mod tests;
