//! `shunt share`: makes a directory in which users who trust each other, or containers, share a board.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use clap::Args;
use local::board::{self, ACROSS, Board, OFF};
use nix::fcntl::OFlag;

use crate::{doctor, run, say};

/// Who may enter: root, and the group; nobody removes what another one has made there.
const MODE: u32 = 0o3770;
// Each architecture has other numbers for these.
const O_NOFOLLOW: i32 = OFlag::O_NOFOLLOW.bits();
const O_DIRECTORY: i32 = OFlag::O_DIRECTORY.bits();
const STICKY: u32 = 0o1000;
/// Who owns what belongs to no user that a user namespace knows.
const NOBODY: u32 = 65_534;
/// Descriptors from here on are out of the way of others; there are none here.
const HIGH: i32 = 64;

#[derive(Args, Debug)]
pub(crate) struct ShareArguments {
    /// The group whose users share it, by name or number
    #[arg(long, value_name = "GROUP")]
    group: String,
    /// Also share it between all network namespaces of this host, as containers have
    #[arg(long)]
    containers: bool,
    /// The directory, in memory [/dev/shm/shunt-GROUP]
    dir: Option<PathBuf>,
}

/// A group, as the system has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    name: String,
    number: u32,
}

/// Makes the directory, or sees that it is as it should be, and says how to use it.
pub(crate) fn share(arguments: &ShareArguments) -> anyhow::Result<()> {
    ensure!(
        sys::call::geteuid() == 0,
        "only a directory of root's is shared by users: sudo shunt share (in the user namespace of rootless containers: \
         podman unshare shunt share)"
    );
    let group = group(&arguments.group)?;
    let dir = place(arguments.dir.as_deref(), &group)?;
    let Some(text) = dir.to_str().filter(|text| !text.contains([':', '\n'])) else {
        bail!("{}: containers cannot be told of a directory with such a name", dir.display());
    };
    let changed = make(&dir, group.number, arguments.containers)?;
    if let Err(e) = join(text, &dir, group.number, arguments.containers) {
        changed.undo(&dir);
        return Err(e);
    }
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_host = is_of_the_host(&map);
    if let Some(closed) = closed_above(&dir, group.number).filter(|_| is_host) {
        say::line(format_args!(
            "shunt: {} is closed to the users of group {}, who so do not come to {text}: name a directory elsewhere, as in \
             /dev/shm",
            closed.display(),
            group.name
        ));
    }
    for check in doctor::space_checks(&dir) {
        if let Some(advice) = check.advice {
            say::line(format_args!("shunt: {}: {}", check.found, advice));
        }
    }
    let library = run::find_library().ok();
    let is_across = board::is_across(Some(text));
    let mut said = instructions(text, &group, is_across, library.as_deref(), is_host);
    if doctor::is_in_memory(&dir) {
        said += &lasting(text, &group, is_across, is_host);
    }
    std::io::stdout().write_all(said.as_bytes())?;
    Ok(())
}

/// A group by its name or number.
fn group(said: &str) -> anyhow::Result<Group> {
    if said.bytes().all(|byte| byte.is_ascii_digit()) {
        // The last number is no group's: it means none in many calls.
        let number = said.parse().ok().filter(|number| *number != u32::MAX);
        let number = number.with_context(|| format!("{said} is no number of a group"))?;
        return Ok(Group { name: said.to_owned(), number });
    }
    // The system's own look-up: groups may be those of a network.
    let mut asked = Command::new("getent");
    let told = asked.args(["group", "--", said]).stderr(Stdio::null()).output();
    let told =
        told.context("getent(1), which knows the groups, does not run: name it by its number")?;
    parse(&String::from_utf8_lossy(&told.stdout)).with_context(|| {
        format!("there is no group {said}: make it (groupadd {said}), and add users (usermod -aG {said} USER)")
    })
}

/// A line of `/etc/group`.
fn parse(line: &str) -> Option<Group> {
    let mut fields = line.lines().next()?.split(':');
    let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?);
    Some(Group { name: name.to_owned(), number: number.parse().ok()? })
}

/// Where the directory is to be, by a path that nobody else can lead elsewhere.
fn place(said: Option<&Path>, group: &Group) -> anyhow::Result<PathBuf> {
    let usual = || PathBuf::from(format!("/dev/shm/shunt-{}", group.name));
    let dir = said.map_or_else(usual, Path::to_owned);
    let dir = std::path::absolute(&dir).with_context(|| dir.display().to_string())?;
    let (Some(above), Some(name)) = (dir.parent(), dir.file_name()) else {
        bail!("{} is no place for it", dir.display());
    };
    let above = above.canonicalize().with_context(|| above.display().to_string())?;
    let dir = above.join(name);
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let is_users =
        name.to_str().and_then(|name| name.strip_prefix("shunt-")).is_some_and(is_number);
    ensure!(
        !is_users || above != Path::new("/dev/shm"),
        "{} is where programs of the user of that number meet: name another directory",
        dir.display()
    );
    for at in above.ancestors() {
        let about = fs::metadata(at).with_context(|| at.display().to_string())?;
        // In a user namespace what is the host's belongs to nobody who is known there.
        let is_hosts = [0, NOBODY].contains(&about.uid());
        ensure!(
            is_hosts && (about.mode() & 0o022 == 0 || about.mode() & STICKY != 0),
            "{}: other users can change {}, and so what this is; name a directory in one of root's",
            dir.display(),
            at.display()
        );
    }
    Ok(dir)
}

/// Root's board is one that no member can put another in the place of; one may have been quicker.
fn join(text: &str, dir: &Path, group: u32, is_across: bool) -> anyhow::Result<()> {
    Board::join(Some(text), HIGH).map_err(|e| anyhow::anyhow!("{text}: {e}"))?;
    is_for_this(&File::open(dir)?, dir, group, is_across)
}

/// A directory on the way to this one that the users of a group cannot pass, by its mode.
fn closed_above(dir: &Path, group: u32) -> Option<&Path> {
    let is_closed = |at: &&Path| {
        let is_open = |about: fs::Metadata| {
            let by_group = about.gid() == group && about.mode() & 0o010 != 0;
            by_group || about.mode() & 0o001 != 0
        };
        !fs::metadata(at).is_ok_and(is_open)
    };
    dir.ancestors().skip(1).find(is_closed)
}

/// What was changed to make a directory one for a group, for who has to change it back.
#[derive(Debug)]
struct Changed {
    opened: File,
    /// It was not there before.
    is_new: bool,
    /// Its group and mode before.
    before: (u32, u32),
    /// [`ACROSS`] was not there before.
    has_new_word: bool,
    /// The board, if it was not there before.
    board: Option<PathBuf>,
}

impl Changed {
    /// Leaves the directory as it was found, as far as that goes.
    fn undo(self, dir: &Path) {
        // A board that users share is none for one alone.
        let word = self.has_new_word.then(|| dir.join(ACROSS));
        self.board.into_iter().chain(word).for_each(|path| drop(fs::remove_file(path)));
        let (group, mode) = self.before;
        let _ = fchown(&self.opened, None, Some(group));
        let _ = self.opened.set_permissions(fs::Permissions::from_mode(mode));
        if self.is_new {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Makes the directory for a group, unless it is there and nothing else than that.
fn make(dir: &Path, group: u32, is_across: bool) -> anyhow::Result<Changed> {
    let shown = dir.display();
    let is_new = match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => true,
        Err(e) if e.kind() == ErrorKind::AlreadyExists => false,
        Err(e) => return Err(e).with_context(|| format!("{shown} cannot be made")),
    };
    let mut options = OpenOptions::new();
    let opened = options.read(true).custom_flags(O_NOFOLLOW | O_DIRECTORY).open(dir);
    let opened =
        opened.with_context(|| format!("{shown} is there already, and is not a directory"))?;
    is_for_this(&opened, dir, group, is_across)?;
    let about = opened.metadata().with_context(|| format!("{shown}"))?;
    let mut changed = Changed {
        opened,
        is_new,
        before: (about.gid(), about.mode() & 0o7777),
        has_new_word: false,
        board: None,
    };
    match changed.open_to(dir, group, is_across) {
        Ok(()) => Ok(changed),
        Err(e) => {
            changed.undo(dir);
            Err(e)
        }
    }
}

impl Changed {
    fn open_to(&mut self, dir: &Path, group: u32, is_across: bool) -> anyhow::Result<()> {
        let shown = dir.display();
        if is_across {
            self.has_new_word = say_across(dir, group)
                .with_context(|| format!("{shown}/{ACROSS} cannot be made"))?;
        }
        let board = dir.to_str().and_then(|dir| board::locate(Some(dir)).ok());
        let board = board.map(|(path, _)| PathBuf::from(OsStr::from_bytes(path.as_bytes())));
        self.board = board.filter(|path| fs::symlink_metadata(path).is_err());
        fchown(&self.opened, Some(0), Some(group))
            .with_context(|| format!("{shown}: its group"))?;
        let mode = fs::Permissions::from_mode(MODE);
        self.opened.set_permissions(mode).with_context(|| format!("{shown}: its mode"))
    }
}

/// Whether something that is there may become, or is, such a directory: it is nobody's else and for nothing else.
fn is_for_this(opened: &File, dir: &Path, group: u32, is_across: bool) -> anyhow::Result<()> {
    let shown = dir.display();
    let at = opened.metadata().with_context(|| format!("{shown}"))?;
    ensure!(
        at.uid() == 0,
        "{shown} is there already, and belongs to user {}: name another one",
        at.uid()
    );
    let is_empty =
        fs::read_dir(dir).with_context(|| format!("{shown} cannot be read"))?.next().is_none();
    // Docker makes such a one for a mount whose directory is not there, after a start of the host say.
    let is_ours_by_name =
        dir.file_name().is_some_and(|name| name.as_bytes().starts_with(b"shunt-"));
    let is_nobodys = is_ours_by_name && at.mode() & 0o022 == 0 && is_empty;
    ensure!(
        at.mode() & 0o007 == 0 || is_nobodys,
        "{shown} is there already, and open to everybody: name another one"
    );
    let again = format!("remove it (rm -r {shown}) when no program uses it");
    for entry in fs::read_dir(dir).with_context(|| format!("{shown} cannot be read"))? {
        let entry = entry.with_context(|| format!("{shown} cannot be read"))?;
        let name = entry.file_name();
        let text = name.to_str().unwrap_or_default();
        let is_board = text.starts_with("board-");
        ensure!(
            is_board || [ACROSS, OFF].contains(&text) || text.starts_with("engine-"),
            "{shown} holds {}, so it is for something else: name another one",
            name.display()
        );
        ensure!(at.gid() == group, "{shown} is shared by group {}: {again}", at.gid());
        let about = entry.metadata().with_context(|| format!("{shown}/{text}"))?;
        ensure!(
            about.uid() == 0 && !about.is_symlink(),
            "{shown}/{text} is of user {} and not root's: {again}",
            about.uid()
        );
        // One that users share is that from the beginning, under its name: see `sys::map`.
        let is_draft = text.split_once("-v").is_some_and(|(_, version)| version.contains('-'));
        ensure!(
            !is_board || is_draft || about.mode() & 0o7777 == 0o660 && about.gid() == group,
            "{shown} is in use by root alone ({text}), whose programs would not meet those of the group: end them and remove \
             it (rm -r {shown}), or name another one"
        );
        ensure!(
            !is_board || !is_across || text.starts_with("board-all-"),
            "{shown} is in use for one network namespace ({text}), whose programs would meet no others: {again}"
        );
    }
    Ok(())
}

/// Whether it had to be said.
fn say_across(dir: &Path, group: u32) -> std::io::Result<bool> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o640).custom_flags(O_NOFOLLOW);
    match options.open(dir.join(ACROSS)) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(false),
        made => fchown(made?, Some(0), Some(group)).map(|()| true),
    }
}

/// Whether a process with this map of users has those of the host, and not those of a user namespace.
fn is_of_the_host(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// What to do next. `is_host`: not in a user namespace, so that what is written into `/etc/tmpfiles.d` is done for it.
fn instructions(
    dir: &str,
    group: &Group,
    is_across: bool,
    library: Option<&Path>,
    is_host: bool,
) -> String {
    let Group { name, number } = group;
    let whom = if is_across { ", in all network namespaces" } else { "" };
    let mut said = format!("{dir} is shared by the users of group {name} ({number}){whom}.\n");
    // The root of a user namespace is one of the host's users, whose programs outside of it reach containers by others.
    let engine = if is_host { "docker" } else { "podman" };
    if is_host {
        said += &format!(
            "\nPrograms of root and of these users:\n  SHUNT_DIR={dir} shunt run -- PROGRAM\n"
        );
    }
    if is_across {
        let library = library.unwrap_or_else(|| Path::new("/usr/lib/shunt/libshunt_preload.so"));
        let folder = library.parent().unwrap_or_else(|| Path::new("/")).display();
        said += &format!(
            "\nContainers, whose images need not be changed:\n  \
               {engine} run -v {dir}:{dir} -v {folder}:/usr/lib/shunt:ro --group-add {number} \\\n    \
                 -e SHUNT_DIR={dir} -e 'LD_PRELOAD={}' IMAGE\n",
            in_container(library)
        );
    }
    said
}

/// How to have it again after a start of the host, as it is in memory.
fn lasting(dir: &str, group: &Group, is_across: bool, is_host: bool) -> String {
    if !is_host {
        return "\nIt is in memory: make it again after a start of the host.\n".to_owned();
    }
    let (name, place) = (&group.name, Path::new(dir).file_name().unwrap_or_default().display());
    let mut said = format!(
        "\nIt is in memory. To have it after a start of the host, put into /etc/tmpfiles.d/{place}.conf:\n  \
           d {dir} {MODE:o} root {name}\n"
    );
    if is_across {
        said += &format!("  f {dir}/{ACROSS} 0640 root {name}\n");
    }
    said
}

/// What the loader of a container is told to load. `$LIB` is its own word for where its libraries are; the C library that
/// has no such word is not the one that ours is for, and looks for a file that is not there.
fn in_container(library: &Path) -> String {
    let name = library.file_name().unwrap_or_default().display();
    let any = if run::is_laid_out(library) { "$LIB/" } else { "" };
    format!("/usr/lib/shunt/{any}{name}")
}

#[cfg(test)]
mod tests;
