//! The program that a name on the command line means: through PATH, through `#!`, to an ELF file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, eaccess};

use crate::elf::{self, BadElf, Bytes, Elf};

/// What glibc searches when there is no PATH.
const PATH_DEFAULT: &str = "/bin:/usr/bin";
/// As the kernel: scripts whose interpreters are scripts.
const SCRIPTS_MAX: usize = 4;
/// As the kernel: what of a `#!` line is read.
const LINE_BYTES_MAX: usize = 256;

/// As the kernel: what of a name it keeps.
const COMM_BYTES_MAX: usize = 15;

/// Why a name leads to no program.
#[derive(Debug)]
pub(crate) enum NoProgram {
    /// There is no such file.
    NotFound(String),
    /// There is, and it cannot be executed.
    NotExecutable(String),
}

impl std::fmt::Display for NoProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::NotFound(why) | Self::NotExecutable(why)) = self;
        f.write_str(why)
    }
}

/// Finds a program as execvp(3) does.
pub(crate) fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, NoProgram> {
    if name.as_bytes().contains(&b'/') {
        return executable(Path::new(name)).map(|()| name.into());
    }
    if name.is_empty() {
        return Err(NoProgram::NotFound("the name is empty".into()));
    }
    let default = OsString::from(PATH_DEFAULT);
    let mut refused = None;
    for dir in std::env::split_paths(path.unwrap_or(&default)) {
        let dir = if dir.as_os_str().is_empty() { PathBuf::from(".") } else { dir };
        let candidate = dir.join(name);
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(e @ NoProgram::NotExecutable(_)) => refused = refused.or(Some(e)),
            Err(NoProgram::NotFound(_)) => {}
        }
    }
    Err(refused.unwrap_or_else(|| NoProgram::NotFound("not found in PATH".into())))
}

fn executable(path: &Path) -> Result<(), NoProgram> {
    let shown = path.display();
    let file = std::fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            NoProgram::NotFound(format!("{shown}: no such file"))
        }
        _ => NoProgram::NotExecutable(format!("{shown}: {e}")),
    })?;
    if file.is_dir() {
        return Err(NoProgram::NotExecutable(format!("{shown} is a directory")));
    }
    eaccess(path, AccessFlags::X_OK).map_err(|_| {
        NoProgram::NotExecutable(format!("{shown} is not executable for you (see chmod(1))"))
    })
}

/// Bits and attributes that make the loader ignore LD_PRELOAD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Privileges {
    /// Set-user-id: to whom.
    pub(crate) set_uid: Option<u32>,
    /// Set-group-id: to which.
    pub(crate) set_gid: Option<u32>,
    /// It has file capabilities.
    pub(crate) capabilities: bool,
}

impl Privileges {
    fn of(path: &Path) -> io::Result<Self> {
        let file = std::fs::metadata(path)?;
        let mode = file.permissions().mode();
        // Set-gid without the group's execute bit has meant mandatory locking.
        let set_gid = mode & 0o2010 == 0o2010;
        Ok(Self {
            set_uid: (mode & 0o4000 != 0).then(|| file.uid()),
            set_gid: set_gid.then(|| file.gid()),
            // A file system without attributes has no capabilities.
            capabilities: xattr::get_deref(path, "security.capability").is_ok_and(|c| c.is_some()),
        })
    }
}

/// A `#!` line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shebang {
    interpreter: PathBuf,
    argument: Option<OsString>,
}

fn shebang(head: &[u8]) -> Option<Shebang> {
    let line = head.strip_prefix(b"#!")?;
    let end = line.iter().position(|b| *b == b'\n').unwrap_or(line.len());
    let line = line[..end].trim_ascii();
    let cut = line.iter().position(|b| b" \t".contains(b)).unwrap_or(line.len());
    let (interpreter, argument) = line.split_at(cut);
    let argument = argument.trim_ascii();
    if interpreter.is_empty() {
        return None;
    }
    Some(Shebang {
        interpreter: OsStr::from_bytes(interpreter).into(),
        argument: (!argument.is_empty()).then(|| OsString::from_vec(argument.to_vec())),
    })
}

/// The program that env(1) would run: `env python3`, `env -S -u HOME VAR=1 python3 -u`.
fn program_of_env(argument: &OsStr) -> Option<&OsStr> {
    let is_space = |b: &u8| b" \t".contains(b);
    let mut words = argument.as_bytes().split(is_space).filter(|word| !word.is_empty());
    while let Some(word) = words.next() {
        let word = match word {
            b"-" | b"--" => continue,
            // What is split may begin here.
            _ if word.starts_with(b"--") => match word.strip_prefix(b"--split-string=") {
                Some(first) => first,
                None => {
                    if [&b"--unset"[..], b"--chdir", b"--argv0"].contains(&word) {
                        words.next();
                    }
                    continue;
                }
            },
            [b'-', letters @ ..] => {
                let takes = |b: &u8| b"uCaS".contains(b);
                let Some(at) = letters.iter().position(takes) else { continue };
                match (letters[at], &letters[at + 1..]) {
                    (b'S', []) => continue,
                    (b'S', first) => first,
                    (_, value) => {
                        if value.is_empty() {
                            words.next();
                        }
                        continue;
                    }
                }
            }
            _ => word,
        };
        if !word.contains(&b'=') {
            return Some(OsStr::from_bytes(word));
        }
    }
    None
}

/// A program, followed to the file that the kernel loads.
#[derive(Debug)]
pub(crate) struct Program {
    /// The file that the name means.
    pub(crate) path: PathBuf,
    /// Scripts on the way: each file, and what runs it.
    pub(crate) scripts: Vec<(PathBuf, PathBuf)>,
    /// The last file: the one that is loaded.
    pub(crate) loaded: PathBuf,
    /// What the kernel calls it (`comm`).
    pub(crate) comm: String,
    /// What it is.
    pub(crate) elf: Result<Elf, BadElf>,
    /// Its privileges.
    pub(crate) privileges: Privileges,
}

impl Program {
    /// Follows a program that was found.
    pub(crate) fn follow(path: PathBuf, search: Option<&OsStr>) -> Result<Self, NoProgram> {
        let mut scripts = Vec::new();
        let mut loaded = path.clone();
        let mut comm = comm_of(&path);
        loop {
            let unreadable = |e: io::Error| {
                NoProgram::NotExecutable(format!("{} cannot be read: {e}", loaded.display()))
            };
            let file = match File::open(&loaded) {
                // It is executable, as has been seen, and that is enough to run it.
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    let privileges = Privileges::of(&loaded).map_err(unreadable)?;
                    return Ok(Self {
                        path,
                        scripts,
                        elf: Err(BadElf::Closed),
                        loaded,
                        comm,
                        privileges,
                    });
                }
                opened => opened.map_err(unreadable)?,
            };
            let head = file.at(0, LINE_BYTES_MAX);
            let Some(next) = interpreter_of(&loaded, &head, search)? else {
                let privileges = Privileges::of(&loaded).map_err(unreadable)?;
                return Ok(Self {
                    path,
                    scripts,
                    elf: elf::parse(&file),
                    loaded,
                    comm,
                    privileges,
                });
            };
            let Next { path: next, is_started } = next;
            // A script that the kernel gives to its interpreter keeps its name.
            if is_started {
                comm = comm_of(&next);
            }
            if scripts.len() == SCRIPTS_MAX {
                let why = format!("{}: too many scripts run each other", path.display());
                return Err(NoProgram::NotExecutable(why));
            }
            scripts.push((loaded, next.clone()));
            loaded = next;
        }
    }

    /// The same for a file that is known to be the loaded one, such as `/proc/PID/exe`.
    pub(crate) fn at(link: &Path, shown: PathBuf) -> io::Result<Self> {
        let elf = elf::parse(&File::open(link)?);
        let privileges = Privileges::of(link)?;
        let comm = comm_of(&shown);
        Ok(Self { path: shown.clone(), scripts: Vec::new(), loaded: shown, comm, elf, privileges })
    }

    /// Whether its dynamic loader could choke on the library: not glibc's, or not of our machine.
    pub(crate) fn refuses_preload(&self) -> bool {
        match &self.elf {
            Ok(Elf::Native(native)) => native.is_musl(),
            Ok(Elf::Foreign { .. }) => true,
            Err(_) => false,
        }
    }
}

/// What the kernel calls a program that is started by this path.
fn comm_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().as_bytes();
    String::from_utf8_lossy(&name[..name.len().min(COMM_BYTES_MAX)]).into_owned()
}

/// What runs a file.
struct Next {
    path: PathBuf,
    /// It is started by its own path, and not by the kernel in place of a script.
    is_started: bool,
}

/// What runs a file which is not loaded itself.
fn interpreter_of(
    path: &Path,
    head: &[u8],
    search: Option<&OsStr>,
) -> Result<Option<Next>, NoProgram> {
    let Some(line) = shebang(head) else {
        // A text without `#!`: execvp(3) and shells give it to /bin/sh.
        let text = !head.is_empty() && !head.starts_with(b"\x7fELF") && !head.contains(&0);
        return Ok(text.then(|| Next { path: PathBuf::from("/bin/sh"), is_started: true }));
    };
    executable(&line.interpreter).map_err(|e| {
        let why = format!("the interpreter of {}: {e}", path.display());
        match e {
            NoProgram::NotFound(_) => NoProgram::NotFound(why),
            NoProgram::NotExecutable(_) => NoProgram::NotExecutable(why),
        }
    })?;
    let is_env = line.interpreter.file_name() == Some(OsStr::new("env"));
    match line.argument.as_deref().and_then(program_of_env).filter(|_| is_env) {
        Some(name) => {
            let found = find(name, search).map_err(|e| {
                NoProgram::NotFound(format!("{} asks env(1) for {name:?}: {e}", path.display()))
            })?;
            Ok(Some(Next { path: found, is_started: true }))
        }
        None => Ok(Some(Next { path: line.interpreter, is_started: false })),
    }
}

#[cfg(test)]
mod tests;
