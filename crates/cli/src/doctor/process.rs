//! A process that runs, which may be in a container: with files, users and numbers of its own.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use local::Limits;
use local::config::SETTINGS;
use nix::sys::statfs::TMPFS_MAGIC;
use rustix::fs::{Mode, OFlags, ResolveFlags, StatVfsMountFlags};

use super::{Check, Report, memory_limit_check, process_limits, program_checks, status_value};
use crate::program::Program;
use crate::snapshot::{self, Process};
use crate::{numbers, run};

/// Name of the check for the process's slot.
const SLOT: &str = super::SLOT;
const DIRECTORY: &str = "directory";
/// Of `/proc/PID/status`: bit of CAP_DAC_OVERRIDE, by which modes do not bind.
const DAC_OVERRIDE: u64 = 1 << 1;

/// Looks at a process that runs.
pub(crate) fn examine(pid: u32) -> Report {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let comm = fs::read_to_string(proc.join("comm"));
    let name = comm.map_or_else(|_| "it".into(), |c| c.trim_end().to_owned());
    if !proc.exists() {
        let check = Check::no("process", format!("there is no process {pid}"), "see ps(1)");
        return Report::new(name, Some(pid), vec![check]);
    }
    match checks(&proc, pid) {
        Ok(checks) => Report::new(name, Some(pid), checks),
        Err(closed) => Report::unknown(name, Some(pid), vec![closed]),
    }
}

/// What there is to say where the kernel does not let us look.
fn closed(pid: u32, e: &io::Error, euid: u32) -> Check {
    let advice = match euid {
        0 => "this root may not (CAP_SYS_PTRACE): ask outside of the container or sandbox",
        _ => "ask as the same user, or as root",
    };
    Check::warn("process", format!("process {pid} cannot be looked at: {e}"), advice)
}

/// What is found; the other way, why nothing can be.
fn checks(proc: &Path, pid: u32) -> Result<Vec<Check>, Check> {
    let closed = |e: &io::Error| closed(pid, e, sys::call::geteuid());
    let mut checks = Vec::new();
    let exe = proc.join("exe");
    let program = fs::read_link(&exe).and_then(|shown| Program::at(&exe, shown));
    match program {
        Ok(program) => {
            // How it was started decides about these, and that is over: see `loaded`.
            let of_start = |c: &Check| matches!(c.name, "set-uid" | "capabilities" | "asan");
            checks.extend(program_checks(&program).into_iter().filter(|c| !of_start(c)));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let found = format!("process {pid} has no program: it is the kernel's, or has ended");
            return Ok(vec![Check::no("process", found, "see ps(1)")]);
        }
        Err(e) => return Err(closed(&e)),
    }
    let environ = Environment::of(proc);
    let maps = fs::read(proc.join("maps"));
    let maps = maps.map(|maps| String::from_utf8_lossy(&maps).into_owned());
    let maps = maps.map_err(|e| closed(&e))?;
    checks.push(loaded_check(proc, &environ, &maps));
    let is_loaded = checks.iter().all(|check| check.outcome != super::Outcome::No);
    checks.push(settings_check(&environ));
    if is_loaded {
        match maps.lines().find_map(board_in_map) {
            Some(board) => {
                let dir = Directory::called(proc, board.directory.clone());
                checks.push(directory_check(&dir));
                checks.extend(dir.is_off().map(super::switch_check));
                checks.push(match moved(proc, &environ, &dir, &board) {
                    Some(found) => lost(&found),
                    None => slot_check(pid, &dir, &board),
                });
            }
            None => checks.push(absence_check(proc, &environ)),
        }
    }
    checks.extend(memory_limit_check(&pid.to_string()));
    checks.extend(process_limits(&pid.to_string()));
    Ok(checks)
}

/// What a process was started with, as `/proc/PID/environ` has it.
struct Environment(Vec<u8>);

impl Environment {
    fn of(proc: &Path) -> Self {
        Self(fs::read(proc.join("environ")).unwrap_or_default())
    }

    fn entries(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|b| *b == 0)
    }

    /// Whether it is there still: some programs write their titles over it.
    fn is_known(&self) -> bool {
        let is_variable =
            |entry: &[u8]| entry.iter().position(|b| *b == b'=').is_some_and(|at| at > 0);
        self.entries().any(is_variable)
    }

    fn variable(&self, name: &str) -> Option<String> {
        let value = |entry: &[u8]| {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        self.entries().find_map(value)
    }
}

fn loaded_check(proc: &Path, environ: &Environment, maps: &str) -> Check {
    const NAME: &str = "loaded";
    match maps.lines().find_map(library_in_map) {
        Some(path) if path.ends_with(" (deleted)") => Check::warn(
            NAME,
            path,
            "the library was replaced since it started: start it again to use the new one",
        ),
        Some(path) => Check::ok(NAME, path),
        None => not_loaded(proc, environ),
    }
}

fn not_loaded(proc: &Path, environ: &Environment) -> Check {
    const NAME: &str = "loaded";
    let said = environ.variable("LD_PRELOAD").unwrap_or_default();
    let ours = said.split([':', ' ']).find(|path| path.ends_with(run::LIBRARY));
    let Some(path) = ours else {
        // What it says on standard error at the start is the loader's word.
        let advice = match environ.is_known() {
            true => "start it by `shunt run -- PROGRAM`",
            false => {
                "start it by `shunt run -- PROGRAM`; if LD_PRELOAD named it, which cannot be seen any more, the loader has \
                 said why on standard error"
            }
        };
        return Check::no(NAME, "the library is not loaded", advice);
    };
    // `$LIB` is one of several directories in it.
    let folder = path.split("/$").next().unwrap_or(path);
    let found = format!("the library is not loaded, though LD_PRELOAD names {path}");
    match in_root(proc, folder) {
        Err(e) => Check::no(
            NAME,
            format!("{found}: {folder} in its file system: {e}"),
            "in a container: mount the directory (docker run -v /usr/lib/shunt:/usr/lib/shunt:ro)",
        ),
        Ok(_) => Check::no(
            NAME,
            found,
            "its loader has not found it or refuses it; what it says on standard error at the start tells which",
        ),
    }
}

/// The path in a line of `/proc/PID/maps`, if it is the library's.
fn library_in_map(line: &str) -> Option<&str> {
    let path = &line[line.find('/')?..];
    let plain = path.strip_suffix(" (deleted)").unwrap_or(path);
    (plain.rsplit('/').next() == Some(run::LIBRARY)).then_some(path)
}

/// A board that a process has mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapped {
    /// Its directory, as the process calls it.
    directory: String,
    /// Its file's name.
    name: String,
    /// Major and minor number of its device.
    device: (u32, u32),
    inode: u64,
}

impl Mapped {
    /// Whether this is its file. Where it is not in memory the kernel may have two numbers for one device.
    fn is_at(&self, about: &fs::Metadata, is_in_memory: bool) -> bool {
        let device = (rustix::fs::major(about.dev()), rustix::fs::minor(about.dev()));
        about.ino() == self.inode && (!is_in_memory || device == self.device)
    }
}

/// The board in a line of `/proc/PID/maps`.
fn board_in_map(line: &str) -> Option<Mapped> {
    let path = &line[line.find('/')?..];
    let (directory, name) = path.strip_suffix(" (deleted)").unwrap_or(path).rsplit_once('/')?;
    let is_board = name.starts_with("board-") && name.contains("-v");
    let mut fields = line.split_whitespace().skip(3);
    let (major, minor) = fields.next()?.split_once(':')?;
    let number = |hex| u32::from_str_radix(hex, 16).ok();
    let device = (number(major)?, number(minor)?);
    let inode = fields.next()?.parse().ok()?;
    let (directory, name) = (directory.to_owned(), name.to_owned());
    is_board.then_some(Mapped { directory, name, device, inode })
}

/// Whether its settings let it take part, as the library reads them.
fn settings_check(environ: &Environment) -> Check {
    const NAME: &str = "settings";
    let mut limits = Limits::default();
    for setting in SETTINGS {
        let Some(value) = environ.variable(setting.env) else { continue };
        if let Err(bad) = limits.set(setting.name, &value) {
            return Check::no(NAME, format!("{}: {bad}", setting.env), "start it with another one");
        }
    }
    match limits.enabled {
        true => Check::ok(NAME, "switched on"),
        false => Check::no(NAME, "switched off by SHUNT_ENABLED", "start it without"),
    }
}

/// Something in the file system of a process, wherever its links lead; a link at the end is not followed.
fn in_root(proc: &Path, path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::open(proc.join("root"), flags | OFlags::DIRECTORY, Mode::empty())?;
    let flags = flags | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?)
}

/// The directory of a process's board, as the process sees it.
struct Directory {
    /// How it calls it.
    name: String,
    /// It is another one than the usual one of its user.
    is_named: bool,
    at: io::Result<OwnedFd>,
}

impl Directory {
    fn called(proc: &Path, name: String) -> Self {
        let at = in_root(proc, &name);
        let is_named = name != local::board::home_of(inner_uid(proc));
        Self { name, is_named, at }
    }

    /// What its environment says.
    fn said(proc: &Path, environ: &Environment) -> Self {
        let said = environ.variable("SHUNT_DIR").filter(|dir| !dir.is_empty());
        Self::called(proc, said.unwrap_or_else(|| local::board::home_of(inner_uid(proc))))
    }

    fn metadata(&self) -> Option<fs::Metadata> {
        fs::metadata(path_of(self.at.as_ref().ok()?)).ok()
    }

    /// Whether new connections of programs there stay on TCP.
    fn is_off(&self) -> Option<bool> {
        let at = path_of(self.at.as_ref().ok()?).join(".");
        at.to_str().map(|at| local::board::is_off(Some(at)))
    }

    /// Whether programs of this host that name it meet this very one.
    fn is_the_hosts(&self) -> bool {
        let identity = |at: fs::Metadata| (at.dev(), at.ino());
        let here = fs::symlink_metadata(&self.name).ok().map(identity);
        here.is_some() && here == self.metadata().map(identity)
    }
}

fn path_of(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// The effective user of a process, as its own namespace numbers it.
fn inner_uid(proc: &Path) -> u32 {
    let read = |file: &str| fs::read_to_string(proc.join(file)).unwrap_or_default();
    // Real, effective, saved, file system.
    let status = read("status");
    let uid = status_value(&status, "Uid").and_then(|ids| ids.split_whitespace().nth(1));
    let uid = uid.and_then(|uid| uid.parse().ok()).unwrap_or(0);
    mapped(&read("uid_map"), uid).unwrap_or(uid)
}

/// What a user of ours is within a namespace with this map: first number there, first number here, how many.
fn mapped(map: &str, uid: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map_while(|number| number.parse::<u32>().ok());
        let (inner, outer, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
        let nth = uid.checked_sub(outer).filter(|nth| *nth < count)?;
        inner.checked_add(nth)
    })
}

/// Whom a process meets that has come to its board.
fn directory_check(dir: &Directory) -> Check {
    let Directory { name, is_named, .. } = dir;
    if !is_named || dir.is_the_hosts() {
        return Check::ok(DIRECTORY, name);
    }
    Check::warn(
        DIRECTORY,
        format!(
            "{name} in its file system is not that of this host: it meets nobody who uses that one"
        ),
        format!("if it should: mount it (docker run -v {name}:{name}), and start it again"),
    )
}

/// Why a process that has the library has not come to its board.
fn absence_check(proc: &Path, environ: &Environment) -> Check {
    if !environ.is_known() {
        return Check::no(
            DIRECTORY,
            "it has come to no board, and has written over its environment, so that it cannot be seen which it was to be",
            "its first line on standard error says why",
        );
    }
    let dir = Directory::said(proc, environ);
    let Directory { name, .. } = &dir;
    let at = match &dir.at {
        Ok(at) => at,
        Err(e) => {
            return Check::no(
                DIRECTORY,
                format!("{name} in its file system: {e}"),
                format!("in a container: mount the directory (docker run -v {name}:{name})"),
            );
        }
    };
    if rustix::fs::fstatvfs(at).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        let advice =
            format!("mount it to be written to (docker run -v {name}:{name}, without :ro)");
        return Check::no(DIRECTORY, format!("{name} is read-only for it"), advice);
    }
    let status = fs::read_to_string(proc.join("status")).unwrap_or_default();
    match dir.metadata() {
        Some(about) if !about.is_dir() => {
            let advice = "name another one (SHUNT_DIR)";
            Check::no(DIRECTORY, format!("{name} is not a directory"), advice)
        }
        Some(about) if about.mode() & 0o077 == 0o070 && !is_open_to(&about, &status) => Check::no(
            DIRECTORY,
            format!(
                "{name} is shared by the users of group {}, and it is none of them",
                about.gid()
            ),
            format!("start it as one (containers: --group-add {})", about.gid()),
        ),
        Some(about) if about.mode() & 0o007 != 0 => Check::no(
            DIRECTORY,
            format!("{name} is open to everybody (mode {:o})", about.mode() & 0o7777),
            "name another one (SHUNT_DIR); `sudo shunt share` makes one",
        ),
        _ => Check::no(
            DIRECTORY,
            format!("it has not come to the board in {name}"),
            "start it again with SHUNT_LOG=info: it says why",
        ),
    }
}

/// Whether a process with this status may enter and write a directory of a group.
fn is_open_to(about: &fs::Metadata, status: &str) -> bool {
    let numbers = |name| {
        let all = status_value(status, name).unwrap_or_default();
        all.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>()
    };
    let capabilities = status_value(status, "CapEff");
    let capabilities = capabilities.and_then(|bits| u64::from_str_radix(bits, 16).ok());
    capabilities.unwrap_or(0) & DAC_OVERRIDE != 0
        || numbers("Uid").get(1) == Some(&about.uid())
        || numbers("Gid").get(1) == Some(&about.gid())
        || numbers("Groups").contains(&about.gid())
}

fn is_in_memory(at: &OwnedFd) -> bool {
    rustix::fs::fstatfs(at).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC.0)
}

/// Nobody who comes later gets the board that a process has.
fn lost(found: &str) -> Check {
    Check::no(SLOT, format!("{found}: it meets nobody who came later"), "start it again")
}

/// What has become of a board that is there still, and not where those come to who come later.
fn moved(proc: &Path, environ: &Environment, dir: &Directory, board: &Mapped) -> Option<String> {
    let found = || format!("its board is {}/{} now", dir.name, board.name);
    let version = board.name.rsplit_once("-v").map_or("", |(_, version)| version);
    if version.is_empty() || !version.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(found());
    }
    let netns = |proc: &Path| fs::read_link(proc.join("ns/net")).ok();
    let is_ours = netns(proc).is_some_and(|it| Some(it) == netns(Path::new("/proc/self")));
    if is_ours && version == sys::abi::VERSION.to_string() {
        let at = dir.at.as_ref().ok().map(path_of);
        let usual = at.and_then(|at| local::board::locate(at.to_str()).ok());
        let usual = usual.map(|(path, _)| path.to_string_lossy().into_owned());
        if usual.is_some_and(|usual| !usual.ends_with(&format!("/{}", board.name))) {
            return Some(found());
        }
    }
    match environ.variable("SHUNT_DIR").filter(|dir| !dir.is_empty()) {
        Some(said) => {
            // By another way to it, it may be the same.
            let identity = |dir: &Directory| dir.metadata().map(|at| (at.dev(), at.ino()));
            let said = Directory::called(proc, said);
            (identity(&said) != identity(dir)).then(found)
        }
        // Whose it was when it began cannot be seen: it may have become another user since.
        None if environ.is_known() => {
            let name = dir.name.strip_prefix(local::board::HOME)?.strip_prefix('/')?;
            local::board::owner_of(name).is_none().then(found)
        }
        None => None,
    }
}

/// Whether the process holds a slot on the board that it has mapped.
fn slot_check(pid: u32, dir: &Directory, board: &Mapped) -> Check {
    let gone = || lost("its board was removed since");
    let Ok(at) = &dir.at else { return gone() };
    if !dir.is_the_hosts() && !is_in_memory(at) {
        // One that it has mounted itself may make us wait for ever.
        return Check::warn(
            SLOT,
            "its board is on a file system of its own, which is not looked into",
            "use a tmpfs such as /dev/shm",
        );
    }
    let path = path_of(at).join(&board.name);
    if !fs::symlink_metadata(&path).is_ok_and(|about| board.is_at(&about, is_in_memory(at))) {
        return gone();
    }
    if !board.name.ends_with(&format!("-v{}", sys::abi::VERSION)) {
        return Check::warn(
            SLOT,
            format!("its board, {}, is of another version of Shunt", board.name),
            "start it again: it meets only those of its own version",
        );
    }
    let processes = match snapshot::at(&path) {
        Ok(snapshot) => snapshot.unwrap_or_default().processes,
        Err(e) => return Check::warn(SLOT, format!("{e:#}"), "the board cannot be read"),
    };
    let inner = numbers::inner(pid);
    let is_it = |p: &&Process| match p.host_pid {
        Some(number) => number == pid,
        None => p.alive && inner.is_some_and(|(_, number)| number == p.pid),
    };
    match processes.iter().find(is_it) {
        Some(p) => Check::ok(
            SLOT,
            format!(
                "{}, with {} connections in shared memory and {} on TCP",
                p.slot, p.connections_shm, p.connections_tcp
            ),
        ),
        None => {
            Check::warn(SLOT, "holds none", "it takes one with its first listener or connection")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_known_in_maps_by_its_name() {
        let line = |path: &str| format!("7f00-7f01 r-xp 00000000 08:01 12   {path}");
        let found = |path: &str| library_in_map(&line(path)).map(str::to_owned);
        assert_eq!(found("/opt/libshunt_preload.so"), Some("/opt/libshunt_preload.so".into()));
        let deleted = "/opt/libshunt_preload.so (deleted)";
        assert_eq!(found(deleted), Some(deleted.into()));
        assert_eq!(found("/opt/libshunt_preload.so.bak"), None);
        assert_eq!(library_in_map("7f00-7f01 rw-p 00000000 00:00 0 [heap]"), None);
    }

    #[test]
    fn a_board_is_known_in_maps_by_its_name() {
        let found =
            |path: &str| board_in_map(&format!("7f00-7f01 rw-s 00000000 00:19 4711 {path}"));
        let board = |directory: &str, name: &str| {
            let (directory, name) = (directory.into(), name.into());
            Some(Mapped { directory, name, device: (0, 0x19), inode: 4711 })
        };
        let usual = "/dev/shm/shunt-0";
        assert_eq!(found("/dev/shm/shunt-0/board-1f-v13"), board(usual, "board-1f-v13"));
        assert_eq!(found("/x/board-all-v12 (deleted)"), board("/x", "board-all-v12"));
        assert_eq!(found("/srv/board-game"), None);
        assert_eq!(board_in_map("7f00-7f01 rw-p 00000000 00:00 0"), None);
    }

    fn environment(text: &[u8]) -> Environment {
        Environment(text.to_vec())
    }

    #[test]
    fn a_board_that_is_not_where_others_come_to_is_told() {
        let own = Path::new("/proc/self");
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |dir: &tempfile::TempDir| dir.path().to_str().unwrap().to_owned();
        let usual = local::board::locate(Some(&path(&dir))).unwrap().0.into_string().unwrap();
        let usual = usual.rsplit('/').next().unwrap();
        let is_moved = |said: &str, at: &str, name: &str| {
            let environ = environment(format!("A=b\0{said}\0").as_bytes());
            let (directory, name) = (at.to_owned(), name.to_owned());
            let board = Mapped { directory, name, device: (0, 0), inode: 1 };
            moved(own, &environ, &Directory::called(own, at.to_owned()), &board).is_some()
        };
        let said = format!("SHUNT_DIR={}", path(&dir));
        assert!(!is_moved(&said, &path(&dir), usual));
        // As its directory or itself was renamed.
        assert!(is_moved(&said, &path(&other), usual));
        assert!(is_moved(&said, &path(&dir), &format!("{usual}.old")));
        assert!(is_moved(&said, &path(&dir), &format!("old-{usual}")));
        // It may have begun as root.
        assert!(!is_moved("", "/dev/shm/shunt-4711", "board-1f-v0"));
        assert!(is_moved("", "/dev/shm/old-4711", "board-1f-v0"));
    }

    #[test]
    fn a_process_that_is_closed_to_us_is_not_called_one_on_tcp() {
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let report = Report::unknown("x".into(), Some(1), vec![closed(1, &denied, 1000)]);
        assert_eq!(serde_json::to_value(&report).unwrap()["accelerated"], serde_json::Value::Null);
        let text = report.text();
        assert!(text.contains("as root") && text.contains("cannot be told"), "{text}");
        assert!(!text.contains("stays on TCP"), "{text}");
        let advice = closed(1, &denied, 0).advice.unwrap();
        assert!(!advice.contains("as root"), "{advice}");
    }

    #[test]
    fn a_variable_is_read_whole() {
        let environ = environment(b"XSHUNT_DIR=/no\0SHUNT_DIR=/yes\0SHUNT_DIRX=/no\0");
        assert_eq!(environ.variable("SHUNT_DIR"), Some("/yes".into()));
        assert_eq!(environ.variable("SHUNT"), None);
    }

    #[test]
    fn an_environment_that_was_written_over_is_not_believed() {
        assert!(environment(b"HOME=/\0").is_known());
        for gone in [&b""[..], b"\0\0\0\0", b" *:6379\0\0", b"\0=\0"] {
            assert!(!environment(gone).is_known(), "{gone:?}");
        }
    }

    #[test]
    fn settings_are_those_that_the_process_was_started_with() {
        let outcome = |environ: &[u8]| settings_check(&environment(environ)).outcome;
        assert_eq!(outcome(b""), super::super::Outcome::Ok);
        assert_eq!(outcome(b"SHUNT_ENABLED=off\0"), super::super::Outcome::No);
        assert_eq!(outcome(b"SHUNT_SPIN_US=many\0"), super::super::Outcome::No);
    }

    #[test]
    fn users_of_a_namespace_have_numbers_of_their_own() {
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(mapped(rootless, 1000), Some(0));
        assert_eq!(mapped(rootless, 100_100), Some(101));
        assert_eq!(mapped(rootless, 7), None);
        assert_eq!(mapped("0 0 4294967295\n", 33), Some(33));
        assert_eq!(mapped("nonsense\n4294967295 0 4294967295\n", 1), None);
    }

    #[test]
    fn who_may_enter_a_directory_is_asked_of_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let about = fs::metadata(dir.path()).unwrap();
        let (uid, gid) = (about.uid(), about.gid());
        let other = gid + 1;
        let status = |uid: u32, gid: u32, groups: u32, capabilities: &str| {
            format!(
                "Uid:\t1\t{uid}\t1\t1\nGid:\t1\t{gid}\t1\t1\nGroups:\t7 {groups} \nCapEff:\t{capabilities}\n"
            )
        };
        let none = "0000000000000000";
        assert!(!is_open_to(&about, &status(uid + 1, other, other, none)));
        assert!(is_open_to(&about, &status(uid, other, other, none)));
        assert!(is_open_to(&about, &status(uid + 1, gid, other, none)));
        assert!(is_open_to(&about, &status(uid + 1, other, gid, none)));
        assert!(is_open_to(&about, &status(uid + 1, other, other, "00000000a80425fb")));
        assert!(!is_open_to(&about, ""));
    }

    #[test]
    fn paths_lead_through_the_root_of_the_process() {
        let own = Path::new("/proc/self");
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(in_root(own, dir.path().to_str().unwrap()).is_ok());
        let at = fs::symlink_metadata(path_of(&in_root(own, link.to_str().unwrap()).unwrap()));
        assert!(at.is_ok());
        let absent = in_root(own, "/no/such/place").unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}
