//! `shunt doctor`: whether a program can be accelerated here, and if not, why and what to do.

mod host;
mod process;
mod units;

use std::ffi::{CString, OsStr};
use std::path::Path;

use engine::remote::host as remote_host;
use local::Limits;
use local::config::Rule;
use nix::libc;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::{AccessFlags, eaccess};
use serde::Serialize;
use sys::abi::FILE_BYTES;
use sys::map::{Access, Map, MapError};
use sys::memory_group::MemoryLimit;

use crate::asan;
use crate::config::{Merged, Wrong};
use crate::elf::{self, BadElf, Elf, Native};
use crate::program::{self, Privileges, Program};
use crate::{run, snapshot};

pub(crate) use host::examine as examine_host;
pub(crate) use process::examine as examine_process;

/// Less space than this for shared memory is not enough to start.
const SPACE_BYTES_MIN: u64 = 4 << 20;
/// Less than this is worth a word.
const SPACE_BYTES_WARN: u64 = 64 << 20;
const DESCRIPTORS_WARN: u64 = 1024;
/// `ramfs` is as good as tmpfs, but has no limit.
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// The loader of musl, where it is installed.
const MUSL: &str = if cfg!(target_arch = "aarch64") {
    "/lib/ld-musl-aarch64.so.1"
} else {
    "/lib/ld-musl-x86_64.so.1"
};

/// Name of the check for the program's file.
const PROGRAM: &str = "program";
/// Name of the check for the process's slot.
const SLOT: &str = "slot";

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// Nothing stands in the way.
    Ok,
    /// It works, but not always or not as well.
    Warn,
    /// Connections stay on TCP.
    No,
}

impl Outcome {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::No => "no",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    /// What was looked at: a stable word.
    pub(crate) name: &'static str,
    /// How it ended.
    pub(crate) outcome: Outcome,
    /// What was found.
    pub(crate) found: String,
    /// What to do about it.
    pub(crate) advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Ok, found: found.into(), advice: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::Warn, found: found.into(), advice: Some(advice.into()) }
    }

    fn no(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, outcome: Outcome::No, found: found.into(), advice: Some(advice.into()) }
    }
}

/// Everything that was looked at.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// The program, as it was named; `None`: whichever, on this host.
    pub(crate) program: Option<String>,
    /// The process, if one was asked about.
    pub(crate) pid: Option<u32>,
    /// Whether nothing stands in the way; `None`: it cannot be told.
    pub(crate) accelerated: Option<bool>,
    /// What stands in the way, the first of the checks that ended with no; or why it cannot be told.
    pub(crate) reason: Option<String>,
    /// What was looked at.
    pub(crate) checks: Vec<Check>,
}

impl Report {
    fn new(program: String, pid: Option<u32>, checks: Vec<Check>) -> Self {
        Self { program: Some(program), pid, ..Self::of_host(checks) }
    }

    /// Of whatever program.
    fn of_host(checks: Vec<Check>) -> Self {
        let reason = first_no(&checks);
        Self { program: None, pid: None, accelerated: Some(reason.is_none()), reason, checks }
    }

    /// The last of the checks says why one cannot see what matters.
    fn unknown(program: String, pid: Option<u32>, checks: Vec<Check>) -> Self {
        let reason = checks.last().map(|check| check.found.clone());
        Self { program: Some(program), pid, accelerated: None, reason, checks }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let width = self.checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for check in &self.checks {
            let word = check.outcome.word();
            text += &format!("{word:<4}  {:<width$}  {}", check.name, plain(&check.found));
            if let Some(advice) = &check.advice {
                text += &format!("; {}", plain(advice));
            }
            text.push('\n');
        }
        text += &plain(&self.verdict());
        text.push('\n');
        text
    }

    fn verdict(&self) -> String {
        let process = self.pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
        let Some(program) = &self.program else {
            return match &self.reason {
                Some(reason) => format!("programs stay on TCP here: {reason}"),
                None => "programs can be accelerated here".to_owned(),
            };
        };
        let name = format!("{program}{process}");
        let takes_part = |c: &Check| c.name == SLOT && c.outcome == Outcome::Ok;
        let at_once = |c: &Check| c.name == PROGRAM && c.outcome == Outcome::No;
        match &self.reason {
            Some(reason) if self.accelerated.is_none() => {
                format!("{name}: whether it is accelerated cannot be told: {reason}")
            }
            None if self.checks.iter().any(takes_part) => format!("{name} is accelerated"),
            None => format!("{name} can be accelerated"),
            Some(reason) if self.checks.iter().any(at_once) => {
                format!("{name} cannot be run: {reason}")
            }
            Some(reason) => format!("{name} stays on TCP: {reason}"),
        }
    }
}

/// File and process names may hold anything: a terminal is not to obey them, nor is one to look like another line.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn first_no(checks: &[Check]) -> Option<String> {
    checks.iter().find(|c| c.outcome == Outcome::No).map(|c| c.found.clone())
}

/// Why this program stays on TCP wherever it runs; `None`: it need not.
pub(crate) fn reason_for_tcp(program: &Program) -> Option<String> {
    first_no(&program_checks(program))
}

/// Looks at a program and at what this place offers to it.
/// `sections`: what is wrong with those of the configuration file that are for an engine and a server.
pub(crate) fn examine(
    name: &OsStr,
    settings: &anyhow::Result<Merged>,
    sections: &[Wrong],
) -> Report {
    let search = std::env::var_os("PATH");
    let found = program::find(name, search.as_deref())
        .and_then(|path| Program::follow(path, search.as_deref()));
    let mut checks = match &found {
        Ok(program) => program_checks(program),
        Err(why) => {
            vec![Check::no(PROGRAM, why.to_string(), "check the name and its permissions")]
        }
    };
    checks.push(library_check());
    let comm = found.map_or_else(|_| name.to_string_lossy().into_owned(), |program| program.comm);
    checks.extend(settings_checks(settings, &comm));
    checks.extend(sections_checks(settings, sections));
    let dir = settings.as_ref().ok().and_then(|m| m.limits.dir.clone());
    checks.extend(place_checks(dir.as_deref()));
    checks.extend(memory_limit_check("self"));
    checks.extend(process_limits("self"));
    Report::new(name.to_string_lossy().into_owned(), None, checks)
}

/// What the file says.
fn program_checks(program: &Program) -> Vec<Check> {
    let mut checks = vec![Check::ok(PROGRAM, program.path.display().to_string())];
    for (script, interpreter) in &program.scripts {
        let found = format!("{} is run by {}", script.display(), interpreter.display());
        checks.push(Check::ok("script", found));
    }
    match &program.elf {
        Err(bad @ BadElf::Closed) => {
            let found = format!("{}: {bad}", program.loaded.display());
            let advice = "whether the library can be loaded into it is not seen; ask as root, or by --pid once it runs";
            checks.push(Check::warn("format", found, advice));
        }
        Err(bad) => {
            let found = format!("{}: {bad}", program.loaded.display());
            checks.push(Check::no(
                "format",
                found,
                "the library can be loaded into ELF programs only",
            ));
        }
        Ok(Elf::Foreign { bits, machine }) => {
            let found = format!("built for {}, {bits} bits", elf::machine_name(*machine));
            let ours = elf::machine_name(elf::OUR_MACHINE);
            checks.push(Check::no("machine", found, format!("use a build for {ours}, 64 bits")));
        }
        Ok(Elf::Native(native)) => {
            checks.push(Check::ok("machine", elf::machine_name(elf::OUR_MACHINE)));
            checks.extend(native_checks(native));
        }
    }
    checks.extend(asan_check(asan::in_the_way(Some(program))));
    checks.extend(privilege_checks(program.privileges, nix::unistd::getuid().as_raw()));
    checks
}

/// `runtime`: what of AddressSanitizer is in the way.
fn asan_check(runtime: Option<String>) -> Option<Check> {
    Some(Check::no(
        "asan",
        format!("AddressSanitizer ({}) starts no program with a library in front of it", runtime?),
        format!("{} lets the library come before it", asan::WORD),
    ))
}

fn native_checks(native: &Native) -> Vec<Check> {
    let mut checks = Vec::new();
    if native.go {
        checks.push(Check::no(
            "go",
            "written in Go, which makes system calls past the C library",
            "nothing helps but to accelerate its peers among each other",
        ));
    } else {
        checks.push(Check::ok("go", "not a Go program"));
    }
    checks.push(match native.interpreter.as_deref() {
        _ if !native.loadable => {
            Check::no("linkage", "an object file or a core file", "name the program itself")
        }
        None => Check::no(
            "linkage",
            "statically linked: there is no dynamic loader that could load the library",
            "use a dynamically linked build",
        ),
        Some(_) if native.is_musl() => Check::no(
            "linkage",
            "linked with musl; the library is for glibc",
            "use a build for glibc (in containers: a Debian or Fedora image and not Alpine)",
        ),
        Some(loader) => linkage_check(loader),
    });
    checks.push(match native.uring() {
        Some(library) => Check::warn(
            "io_uring",
            format!("asks for {library}"),
            "what it does through io_uring stays on TCP; if it has an epoll back end, choose that",
        ),
        None => Check::ok("io_uring", "does not ask for liburing"),
    });
    checks
}

fn linkage_check(loader: &str) -> Check {
    if !Path::new(loader).exists() {
        return Check::no(
            "linkage",
            format!("its loader {loader} does not exist"),
            "install its C library",
        );
    }
    let usual =
        ["/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"].iter().any(|d| loader.starts_with(d));
    let found = format!("dynamically linked, {loader}");
    if usual {
        Check::ok("linkage", found)
    } else {
        let advice =
            "it brings its own C library: the library must be built for that one or an older one";
        Check::warn("linkage", found, advice)
    }
}

/// What makes the kernel set AT_SECURE, upon which the loader ignores LD_PRELOAD.
fn privilege_checks(privileges: Privileges, our_uid: u32) -> Vec<Check> {
    const SECURE: &str = "the loader ignores LD_PRELOAD then";
    let mut checks = Vec::new();
    checks.push(match (privileges.set_uid, privileges.set_gid) {
        (Some(uid), _) if uid != our_uid => Check::no(
            "set-uid",
            format!("runs as user {uid} (set-user-id): {SECURE}"),
            format!("start it as user {uid}, or remove the bit"),
        ),
        (_, Some(gid)) if gid != nix::unistd::getgid().as_raw() => Check::no(
            "set-uid",
            format!("runs as group {gid} (set-group-id): {SECURE}"),
            "remove the bit, or start it in that group",
        ),
        (None, None) => Check::ok("set-uid", "neither set-user-id nor set-group-id"),
        _ => Check::ok("set-uid", "set-user-id or set-group-id to what we are already"),
    });
    checks.push(match privileges.capabilities {
        true if our_uid != 0 => Check::no(
            "capabilities",
            format!("has file capabilities: {SECURE}"),
            "give them by ambient capabilities instead (systemd: AmbientCapabilities=), then setcap -r",
        ),
        true => Check::ok("capabilities", "has file capabilities, which change nothing for root"),
        false => Check::ok("capabilities", "no file capabilities"),
    });
    checks
}

fn library_check() -> Check {
    match run::find_library() {
        Ok(path) if !run::is_laid_out(&path) && Path::new(MUSL).exists() => Check::warn(
            "library",
            format!("{}, and not as packages lay it out", path.display()),
            "programs with musl do not start if one under `shunt run` starts them: `cargo xtask package`",
        ),
        Ok(path) => Check::ok("library", path.display().to_string()),
        Err(e) => Check::no("library", format!("{e:#}"), "see `shunt run --help`"),
    }
}

fn settings_checks(settings: &anyhow::Result<Merged>, comm: &str) -> Vec<Check> {
    let merged = match settings {
        Ok(merged) => merged,
        Err(e) => return vec![Check::no("settings", format!("{e:#}"), "correct it")],
    };
    if !merged.limits.enabled {
        let source = merged.source("enabled").map(ToString::to_string).unwrap_or_default();
        return vec![Check::no(
            "settings",
            format!("switched off by {source}"),
            "set enabled = on",
        )];
    }
    let file = merged.file.as_ref().map_or_else(|| "no file".into(), |f| f.display().to_string());
    let mut checks = vec![Check::ok("settings", format!("valid ({file})"))];
    if let Some(found) = merged.closed() {
        let advice = "open it to those who are to read it (chmod a+r; its folder: a+rx)";
        checks.push(Check::warn("settings", found, advice));
    }
    for (name, meant) in crate::config::mistyped_here() {
        let found = format!("{name} is in the environment, and no setting");
        checks.push(Check::warn("settings", found, format!("say {meant}, if that is meant")));
    }
    if let Some(check) = rules_check(&merged.limits, comm) {
        checks.push(check);
    }
    checks
}

/// What is wrong with what is for an engine and a server.
fn sections_checks(settings: &anyhow::Result<Merged>, sections: &[Wrong]) -> Vec<Check> {
    // A file that nobody understands is told by then.
    let mut told: Vec<String> =
        settings.as_ref().err().map(|bad| format!("{bad:#}")).into_iter().collect();
    let mut checks = Vec::new();
    for bad in sections.iter().map(|bad| format!("{:#}", bad.error)) {
        if !told.contains(&bad) {
            let advice = "correct it: what this section is for does not start";
            checks.push(Check::warn("settings", bad.clone(), advice));
            told.push(bad);
        }
    }
    checks
}

/// What rules say of this program, whatever the port.
fn rules_check(limits: &Limits, comm: &str) -> Option<Check> {
    let names = |rules: &[Rule]| rules.iter().any(|rule| rule.names(comm));
    if names(&limits.exclude) {
        return Some(Check::no("rules", format!("exclude has program:{comm}"), "remove that rule"));
    }
    let of_programs = |r: &Rule| matches!(r, Rule::Program(_));
    let others_only = !limits.include.is_empty() && limits.include.iter().all(of_programs);
    if others_only && !names(&limits.include) {
        let found = format!("include names programs, and {comm} is not one of them");
        return Some(Check::no("rules", found, format!("add program:{comm} to include")));
    }
    let some = !limits.include.is_empty() || !limits.exclude.is_empty();
    some.then(|| {
        let advice = "connections that they leave out stay on TCP with reason 3";
        Check::warn("rules", "there are include or exclude rules", advice)
    })
}

/// What this host and user offer.
fn place_checks(dir: Option<&str>) -> Vec<Check> {
    let (path, netns) = match snapshot::locate(dir) {
        Ok(located) => located,
        Err(e) => return vec![Check::no("board", format!("{e:#}"), "see `dir` in shunt-run(1)")],
    };
    let (is_named, is_across) = (dir.is_some(), local::board::is_across(dir));
    let named = dir;
    let dir = local::board::directory(dir);
    let mut checks = vec![directory_check(Path::new(&dir), is_named, sys::call::geteuid())];
    checks.extend(is_across.then(across_check));
    checks.push(switch_check(local::board::is_off(Some(&dir))));
    checks.extend(space_checks(Path::new(&dir)));
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let file_max = soft_limit(&limits, "Max file size");
    checks.push(board_check(&path, netns, shared_by(Path::new(&dir), is_named), file_max));
    checks.push(netlink_check());
    let engine = snapshot::engine_at(&path, netns);
    // One of another user does not answer us, and may be as good as any.
    let said = engine.as_ref().and_then(|_| remote_host::look(named).ok()).unwrap_or_default();
    checks.push(engine_check(engine.map(|engine| (engine.pid, engine.uid)), &said));
    checks
}

/// Nothing stands in the way of programs on this host without one. `engine`: its process and its user; `said`: what it says
/// of itself, if it does.
fn engine_check(engine: Option<(u32, u32)>, said: &serde_json::Value) -> Check {
    const NAME: &str = "engine";
    let speaks = said["addresses"].as_array().is_some_and(|all| !all.is_empty());
    match (engine, said["problem"].as_str()) {
        (Some((pid, uid)), Some(problem)) => {
            let takes = if speaks { "takes" } else { "has taken no" };
            let found =
                format!("pid {pid}, of user {uid}, {takes} connections to other hosts: {problem}");
            Check::warn(NAME, found, "connections that this concerns stay on TCP")
        }
        (Some((pid, uid)), None) => {
            Check::ok(NAME, format!("pid {pid}, of user {uid}, takes connections to other hosts"))
        }
        (None, _) => Check::ok(
            NAME,
            "none serves this user: connections to other hosts are TCP (`shunt engine`)",
        ),
    }
}

/// `is_named`: it is not the usual one.
fn directory_check(dir: &Path, is_named: bool, uid: u32) -> Check {
    const NAME: &str = "directory";
    use std::os::unix::fs::MetadataExt;
    if let Some(group) = shared_by(dir, is_named) {
        return shared_directory_check(dir, group);
    }
    let shown = dir.display();
    match std::fs::symlink_metadata(dir) {
        Ok(at) if !at.is_dir() => {
            let advice = if is_named { "name another one (SHUNT_DIR)" } else { "remove it" };
            Check::no(NAME, format!("{shown} is not a directory"), advice)
        }
        Ok(at) if at.uid() != uid => Check::no(
            NAME,
            format!("{shown} belongs to user {}", at.uid()),
            "have it removed, or set SHUNT_DIR to a directory of your own",
        ),
        Ok(at) if at.mode() & 0o077 != 0 => Check::no(
            NAME,
            format!("{shown} is open to others (mode {:o})", at.mode() & 0o7777),
            match is_named {
                // It may be any of the system's, which needs its mode.
                true => "name another one (SHUNT_DIR), which is yours alone (mode 700); where users or containers are to \
                         meet: sudo shunt share"
                    .to_owned(),
                false => format!("chmod 700 {shown}"),
            },
        ),
        Ok(at) => Check::ok(NAME, format!("{shown}, yours, mode {:o}", at.mode() & 0o7777)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => absent_directory_check(dir, is_named),
        Err(e) => {
            Check::no(NAME, format!("{shown}: {e}"), "set SHUNT_DIR to a directory of your own")
        }
    }
}

/// What keeps us from using a directory that was named, and what to do.
pub(crate) fn wrong_directory(dir: &str) -> Option<String> {
    let check = directory_check(Path::new(dir), true, sys::call::geteuid());
    let advice = check.advice.unwrap_or_default();
    (check.outcome == Outcome::No).then(|| format!("{}; {advice}", check.found))
}

/// Of a directory.
fn switch_check(is_off: bool) -> Check {
    const NAME: &str = "switch";
    match is_off {
        true => Check::no(NAME, "switched off for all programs here (`shunt off`)", "shunt on"),
        false => Check::ok(NAME, "on"),
    }
}

/// One whose board is for all network namespaces.
fn across_check() -> Check {
    const NAME: &str = "namespaces";
    const STAMPS: &str = "/proc/sys/net/ipv4/tcp_timestamps";
    let found = format!("one board for all network namespaces ({})", local::board::ACROSS);
    let stamps = std::fs::read_to_string(STAMPS).unwrap_or_default();
    let (whose, is_known) = match stamps.trim() {
        "0" => ("those with programs in other namespaces stay on TCP", false),
        // No secret in them, and no other proof where addresses are translated.
        "2" => ("those that `routed` is for stay on TCP", false),
        _ => ("", true),
    };
    if is_known {
        return Check::ok(NAME, found);
    }
    Check::warn(NAME, found, format!("{whose}: sysctl -w net.ipv4.tcp_timestamps=1"))
}

/// One that root has opened to a group.
fn shared_directory_check(dir: &Path, gid: u32) -> Check {
    const NAME: &str = "directory";
    let shown = dir.display();
    match eaccess(dir, AccessFlags::R_OK | AccessFlags::W_OK | AccessFlags::X_OK) {
        Ok(()) => Check::ok(
            NAME,
            format!("{shown}, shared by the users of group {gid}, who are trusted as one user is"),
        ),
        Err(errno) => Check::no(
            NAME,
            format!("{shown} is shared by the users of group {gid}: {}", errno.desc()),
            "become one of them, or set SHUNT_DIR to a directory of your own",
        ),
    }
}

fn absent_directory_check(dir: &Path, is_named: bool) -> Check {
    const NAME: &str = "directory";
    let shown = dir.display();
    let parent = dir.parent().unwrap_or_else(|| Path::new("/"));
    match eaccess(parent, AccessFlags::W_OK | AccessFlags::X_OK) {
        // It may be another name than was meant.
        Ok(()) if is_named => Check::warn(
            NAME,
            format!("{shown} is not there: the first program makes it, for its user alone"),
            "where users or containers are to meet: sudo shunt share",
        ),
        Ok(()) => Check::ok(NAME, format!("{shown} will be made by the first program")),
        Err(errno) => Check::no(
            NAME,
            format!("{shown} cannot be made: {}: {}", parent.display(), errno.desc()),
            "mount a tmpfs there, or set SHUNT_DIR to a directory that you may make",
        ),
    }
}

/// Whether what is in a directory is in memory, as far as can be told.
pub(crate) fn is_in_memory(dir: &Path) -> bool {
    let kind = statfs(dir).map(|fs| fs.filesystem_type());
    kind.map_or(true, |kind| kind == TMPFS_MAGIC || kind.0 == RAMFS_MAGIC)
}

pub(crate) fn space_checks(dir: &Path) -> Vec<Check> {
    let Some(existing) = dir.ancestors().find(|d| d.exists()) else { return Vec::new() };
    let shown = existing.display();
    let fs = match statfs(existing) {
        Ok(fs) => fs,
        Err(errno) => {
            let found = format!("{shown}: {}", errno.desc());
            return vec![Check::warn("space", found, "the free space is not known")];
        }
    };
    let kind = fs.filesystem_type();
    let in_memory = kind == TMPFS_MAGIC || kind.0 == RAMFS_MAGIC;
    let memory = if in_memory {
        Check::ok("memory", format!("{shown} is in memory"))
    } else {
        let advice = "the kernel would write it to disk all the time: use a tmpfs such as /dev/shm";
        Check::warn("memory", format!("{shown} is not a tmpfs"), advice)
    };
    let free = fs.blocks_available().saturating_mul(u64::try_from(fs.block_size()).unwrap_or(0));
    let found = format!("{} MiB free in {shown}", free >> 20);
    let advice = "make the tmpfs larger (mount -o remount,size=…; containers: --shm-size)";
    let space = match free {
        // A ramfs has no limit and says 0.
        _ if kind.0 == RAMFS_MAGIC => Check::ok("space", "no limit"),
        0..SPACE_BYTES_MIN => Check::no("space", found, advice),
        SPACE_BYTES_MIN..SPACE_BYTES_WARN => Check::warn("space", found, advice),
        _ => Check::ok("space", found),
    };
    vec![memory, space]
}

/// The group whose users share what is in a directory; `is_named`: it is not the usual one.
fn shared_by(dir: &Path, is_named: bool) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    let at = std::fs::symlink_metadata(dir).ok().filter(std::fs::Metadata::is_dir)?;
    (is_named && at.uid() == 0 && at.mode() & 0o077 == 0o070).then_some(at.gid())
}

/// `group`: whose users share it. `file_max`: how large a file may be.
fn board_check(path: &CString, netns: u64, group: Option<u32>, file_max: Option<u64>) -> Check {
    const NAME: &str = "board";
    let shown = path.to_string_lossy();
    let opened = Map::open(path, netns, Access::Look);
    let is_to_be_made =
        matches!(opened, Err(MapError::System(_, libc::ENOENT) | MapError::Incomplete));
    match (opened, file_max) {
        (_, Some(bytes)) if is_to_be_made && bytes < FILE_BYTES as u64 => Check::no(
            NAME,
            format!("{shown} cannot be made: files may have {} MiB at most", bytes >> 20),
            format!(
                "it has {} GiB, with holes (ulimit -f unlimited, LimitFSIZE=), or start another program under Shunt first",
                FILE_BYTES >> 30
            ),
        ),
        (Ok((map, fd)), _) => {
            map.unmap();
            let file = sys::call::fstat(fd);
            let _ = sys::call::close(fd);
            let mode = |file: libc::stat| file.st_mode & 0o7777;
            let good = file.is_ok_and(|file| match group {
                Some(group) => file.st_gid == group && mode(file) == 0o660 && file.st_nlink == 1,
                None => mode(file) & 0o077 == 0,
            });
            match good {
                true => Check::ok(NAME, shown),
                false => Check::no(
                    NAME,
                    format!("{shown} is not as this directory wants it (owner, group, mode)"),
                    "end the programs that use it and remove it",
                ),
            }
        }
        (Err(MapError::System(_, libc::EACCES)), _) => {
            Check::no(NAME, format!("{shown} is closed to this user"), "see `directory`")
        }
        (Err(MapError::System(_, libc::ENOENT)), _) => {
            Check::ok(NAME, format!("{shown} will be made by the first program"))
        }
        // It is being made, or a maker died over it: the next guest completes it.
        (Err(MapError::Incomplete), _) => Check::warn(
            NAME,
            format!(
                "{shown} is not complete: the next program completes it, if the file system has room"
            ),
            "see `space`",
        ),
        (Err(e), _) => Check::no(NAME, format!("{shown}: {e}"), "remove the file"),
    }
}

fn netlink_check() -> Check {
    const NAME: &str = "netlink";
    match sys::diag::open() {
        Ok(fd) => {
            let _ = sys::call::close(fd);
            Check::ok(NAME, "the kernel says who is at the other end (sock_diag)")
        }
        Err(errno) => Check::no(
            NAME,
            format!("NETLINK_SOCK_DIAG: {}", nix::errno::Errno::from_raw(errno).desc()),
            "allow AF_NETLINK sockets (systemd: RestrictAddressFamilies=; seccomp profiles of containers)",
        ),
    }
}

/// What the control group of a process has for its connections; `None`: it has no limit.
fn memory_limit_check(process: &str) -> Option<Check> {
    const NAME: &str = "memory-limit";
    let groups = std::fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let limit = MemoryLimit::of(&groups)?.bytes;
    let share = local::board::share_of_group(limit);
    let found = format!(
        "its control group may have {} MiB, of which connections take {} at most",
        limit >> 20,
        share >> 20
    );
    if share >= SPACE_BYTES_MIN {
        return Some(Check::ok(NAME, found));
    }
    let advice = "raise it (containers: --memory), for others stay on TCP with reason 6";
    Some(Check::warn(NAME, found, advice))
}

/// What limits a process: `self` or a number.
fn process_limits(process: &str) -> Vec<Check> {
    let mut checks = Vec::new();
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{process}/{file}"));
    if let Ok(status) = read("status") {
        checks.extend(seccomp_check(&status));
    }
    if let Ok(limits) = read("limits") {
        checks.push(descriptors_check(soft_limit(&limits, "Max open files")));
        let space = "Max address space";
        checks.push(address_space_check(soft_limit(&limits, space), hard_limit(&limits, space)));
    }
    checks
}

fn status_value<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
}

fn seccomp_check(status: &str) -> Option<Check> {
    const NAME: &str = "seccomp";
    Some(match status_value(status, "Seccomp")? {
        "0" => Check::ok(NAME, "no filter"),
        "1" => Check::no(NAME, "strict mode allows read and write only", "nothing helps"),
        _ => Check::warn(
            NAME,
            "a filter is at work",
            "it must allow mmap, mprotect, fallocate, fcntl, process_vm_readv, prctl and AF_NETLINK sockets, as systemd's \
             @system-service does; a connection that a busy peer is to lead back to TCP waits for it",
        ),
    })
}

/// A soft limit of `/proc/PID/limits`; `None`: unlimited.
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    limit(limits, name, 0)
}

fn hard_limit(limits: &str, name: &str) -> Option<u64> {
    limit(limits, name, 1)
}

fn limit(limits: &str, name: &str, column: usize) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().nth(column)?.parse().ok()
}

fn descriptors_check(soft: Option<u64>) -> Check {
    const NAME: &str = "descriptors";
    match soft {
        Some(n) if n < DESCRIPTORS_WARN => Check::warn(
            NAME,
            format!("at most {n} open files"),
            "the library needs three of its own (four with log_file); raise the limit (ulimit -n, LimitNOFILE=)",
        ),
        Some(n) => Check::ok(NAME, format!("at most {n} open files")),
        None => Check::ok(NAME, "no limit of open files"),
    }
}

fn address_space_check(soft: Option<u64>, hard: Option<u64>) -> Check {
    const NAME: &str = "address-space";
    const NEEDED: u64 = FILE_BYTES as u64;
    let Some(soft) = soft else { return Check::ok(NAME, "no limit") };
    let found = format!("address space is limited to {} MiB", soft >> 20);
    if hard.is_some_and(|hard| hard.saturating_sub(soft) <= NEEDED) {
        let advice = format!(
            "the board needs {} GiB of addresses (not memory) besides: ulimit -v unlimited, or the soft limit alone \
             (ulimit -S -v)",
            NEEDED >> 30
        );
        return Check::no(NAME, found, advice);
    }
    Check::ok(NAME, format!("{found}, which Shunt puts up by what it takes"))
}

#[cfg(test)]
mod tests;
