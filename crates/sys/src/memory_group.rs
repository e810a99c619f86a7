//! The control group whose limit binds the memory of a process: what a container was given, say.
//!
//! Pages of a shared file are charged to the group of who takes them first, and a group that is over its limit is answered
//! by the kernel with the end of one of its processes. So whoever takes memory for others' sake asks before.

use std::ffi::CString;

use crate::call;

/// Where the trees are, in hosts and in containers.
const UNIFIED: &str = "/sys/fs/cgroup";
const MEMORY: &str = "/sys/fs/cgroup/memory";
/// Groups within groups that are looked at.
const LEVELS: usize = 32;
/// Bytes of `/proc/PID/cgroup` that are read: a line for each of a dozen controllers.
const TEXT: usize = 16 << 10;
/// From here on a number means that there is none; version 1 writes a little less than 2^63.
const UNLIMITED: u64 = 1 << 60;
const O_CLOEXEC: i32 = 0o2_000_000;

/// The tightest limit that binds a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The group that has it, by the inode number of its directory, which is the same from wherever it is seen.
    pub group: u64,
    /// Bytes that all processes of the group, and of those within it, may have together.
    pub bytes: u64,
}

impl MemoryLimit {
    /// That of this process. `None`: there is none, or it is not to be seen.
    #[must_use]
    pub fn own() -> Option<Self> {
        let text = read(c"/proc/self/cgroup".to_owned(), TEXT)?;
        Self::of(&String::from_utf8_lossy(&text))
    }

    /// That of the process whose `/proc/PID/cgroup` this is.
    #[must_use]
    pub fn of(groups: &str) -> Option<Self> {
        let (tree, path, files) = place(groups)?;
        let limit = |at: &str| {
            let limits = files.iter().filter_map(|file| parse(&read_at(at, file)?));
            Some(Self { bytes: limits.min()?, group: inode(at)? })
        };
        above(tree, path).filter_map(|at| limit(&at)).min_by_key(|limit| limit.bytes)
    }
}

/// In which tree, and where there, a process has its memory, and which files say how much of it.
fn place(groups: &str) -> Option<(&'static str, &str, &'static [&'static str])> {
    let mut unified = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if controllers.split(',').any(|name| name == "memory") {
            return Some((MEMORY, path, &["memory.limit_in_bytes"]));
        }
        if controllers.is_empty() {
            unified = Some(path);
        }
    }
    unified.map(|path| (UNIFIED, path, ["memory.max", "memory.high"].as_slice()))
}

/// The directory of a group, and those of the groups above it. A container sees the tree from its own group on, by which
/// its path may be named or not.
fn above<'a>(tree: &'static str, path: &'a str) -> impl Iterator<Item = String> + 'a {
    let path = path.trim_end_matches('/');
    // Outside of what we may see.
    let path = if path.split('/').any(|part| part == "..") { "" } else { path };
    let longest = std::iter::successors(Some(path), |path| path.rfind('/').map(|at| &path[..at]));
    longest.take(LEVELS).map(move |path| format!("{tree}{path}"))
}

/// A number of bytes; `None`: there is no limit.
fn parse(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.trim().parse().ok().filter(|bytes| *bytes < UNLIMITED)
}

fn read_at(directory: &str, file: &str) -> Option<Vec<u8>> {
    read(CString::new(format!("{directory}/{file}")).ok()?, 64)
}

fn inode(directory: &str) -> Option<u64> {
    call::lstat(&CString::new(directory).ok()?).ok().map(|at| at.st_ino)
}

/// The beginning of a file. By system calls: the program may have its own ideas of the C library's functions.
fn read(path: CString, most: usize) -> Option<Vec<u8>> {
    let fd = call::open(&path, O_CLOEXEC, 0).ok()?;
    let mut text = vec![0; most];
    let mut len = 0;
    while len < most {
        match call::read(fd, &mut text[len..]) {
            Ok(0) | Err(_) => break,
            Ok(n) => len += n,
        }
    }
    let _ = call::close(fd);
    text.truncate(len);
    (len > 0).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directories(groups: &str) -> Vec<String> {
        let (tree, path, _) = place(groups).unwrap();
        above(tree, path).collect()
    }

    #[test]
    fn a_group_and_those_above_it_are_looked_at() {
        let found = directories("0::/system.slice/docker-1f.scope\n");
        let tree = "/sys/fs/cgroup";
        let inner = format!("{tree}/system.slice/docker-1f.scope");
        assert_eq!(found, [inner, format!("{tree}/system.slice"), tree.to_owned()]);
    }

    #[test]
    fn a_container_that_sees_itself_as_the_top_is_there() {
        assert_eq!(directories("0::/\n"), ["/sys/fs/cgroup"]);
    }

    #[test]
    fn what_is_above_what_we_see_is_not_looked_for() {
        assert_eq!(directories("0::/../../other\n"), ["/sys/fs/cgroup"]);
    }

    #[test]
    fn the_controller_of_version_one_counts_where_there_is_one() {
        let hybrid = "9:cpu,cpuacct:/x\n5:memory:/docker/1f\n1:name=systemd:/y\n0::/z\n";
        let (tree, path, files) = place(hybrid).unwrap();
        assert_eq!((tree, path), ("/sys/fs/cgroup/memory", "/docker/1f"));
        assert_eq!(files, ["memory.limit_in_bytes"]);
        assert_eq!(place("1:name=systemd:/y\n"), None, "nobody counts memory");
        assert_eq!(place("nonsense\n"), None);
    }

    #[test]
    fn no_limit_is_none() {
        assert_eq!(parse(b"max\n"), None);
        assert_eq!(parse(b"9223372036854771712\n"), None);
        assert_eq!(parse(b"67108864\n"), Some(64 << 20));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"\xff"), None);
    }
}
