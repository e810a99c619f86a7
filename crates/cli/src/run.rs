//! `shunt run`: becomes the program, with the library in front of its C library.
//!
//! No process stays behind, and what the program inherits is what it would have inherited without
//! us, but for `LD_PRELOAD` and the `SHUNT_` variables: see also `main` on SIGPIPE.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use local::Level;
use nix::errno::Errno;
use nix::unistd::execvpe;

use crate::asan;
use crate::config::{self, Merged, SettingOptions};
use crate::doctor;
use crate::elf::{self, Elf};
use crate::program::{self, NoProgram, Program};
use crate::say;

/// File name of the library.
pub(crate) const LIBRARY: &str = "libshunt_preload.so";
/// Exit status when the program was found and cannot be executed, as of env(1).
pub(crate) const EXIT_CANNOT: u8 = 126;
/// Exit status when the program was not found, as of env(1).
pub(crate) const EXIT_NOT_FOUND: u8 = 127;
/// Exit status when we failed ourselves, as of env(1).
pub(crate) const EXIT_OURS: u8 = 125;

/// Variables by name.
pub(crate) type Variables = BTreeMap<OsString, OsString>;

/// Where the library may be, the first place first.
pub(crate) fn library_places(own_executable: Option<&Path>) -> Vec<PathBuf> {
    let beside = own_executable.and_then(Path::parent);
    let relative = beside
        .into_iter()
        .flat_map(|dir| [dir.join(LIBRARY), dir.join("../lib/shunt").join(LIBRARY)]);
    let fixed = ["/usr/lib/shunt", "/usr/local/lib/shunt"].map(|dir| Path::new(dir).join(LIBRARY));
    relative.chain(fixed).collect()
}

/// The library's path: absolute, of our machine, and writable in `LD_PRELOAD`.
pub(crate) fn find_library() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("SHUNT_PRELOAD").filter(|v| !v.is_empty()).map(PathBuf::from);
    if let Some(path) = named {
        return usable(&path).context("SHUNT_PRELOAD names a library that cannot be used");
    }
    let own = std::env::current_exe().ok();
    let places = library_places(own.as_deref());
    match places.iter().find(|path| path.exists()) {
        Some(path) => usable(path),
        None => {
            let places: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
            bail!(
                "{LIBRARY} was not found: install it, or set SHUNT_PRELOAD to its path (looked at {})",
                places.join(", ")
            )
        }
    }
}

fn usable(path: &Path) -> anyhow::Result<PathBuf> {
    let shown = path.display().to_string();
    let path = path.canonicalize().with_context(|| shown.clone())?;
    let separator = |b: &u8| b" \t\n:".contains(b);
    if path.as_os_str().as_bytes().iter().any(separator) {
        bail!(
            "{shown}: LD_PRELOAD cannot name a path with a space or a colon in it; move the library"
        );
    }
    let file = File::open(&path).with_context(|| shown.clone())?;
    match elf::parse(&file) {
        Ok(Elf::Native(native)) if native.loadable && native.interpreter.is_none() => Ok(path),
        Ok(Elf::Native(_)) => bail!("{shown} is a program and not a shared library"),
        Ok(Elf::Foreign { bits, machine }) => {
            bail!("{shown} is for {}, {bits} bits", elf::machine_name(machine))
        }
        Err(bad) => bail!("{shown}: {bad}"),
    }
}

/// Whether the library is there, too, for each way in which loaders of glibc read `$LIB` beside it, as packages lay it out:
/// those of Arch, of Fedora and SUSE, and of Debian.
pub(crate) fn is_laid_out(library: &Path) -> bool {
    let Some(folder) = library.parent() else { return false };
    let multiarch = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    ["lib", "lib64", &multiarch]
        .iter()
        .all(|lib| folder.join(lib).join(LIBRARY).canonicalize().is_ok_and(|it| it == library))
}

/// The library as `LD_PRELOAD` is to name it. What the program starts inherits that, and may be linked with musl, whose
/// loader refuses a library for glibc and the program with it. It does not know the word `$LIB`: so there is no file for it,
/// and it goes on.
pub(crate) fn in_preload(library: &Path) -> PathBuf {
    match library.parent() {
        Some(folder) if is_laid_out(library) => folder.join("$LIB").join(LIBRARY),
        _ => library.to_owned(),
    }
}

/// `LD_PRELOAD` with the library in front; theirs stay in their order behind it.
pub(crate) fn preload_with(library: &Path, theirs: Option<&OsStr>) -> OsString {
    let others = preload_without(theirs);
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = others {
        all.push(":");
        all.push(others);
    }
    all
}

/// `LD_PRELOAD` without any library of ours; `None` if nothing is left.
pub(crate) fn preload_without(theirs: Option<&OsStr>) -> Option<OsString> {
    let ours =
        |entry: &[u8]| Path::new(OsStr::from_bytes(entry)).file_name() == Some(LIBRARY.as_ref());
    let entries: Vec<&[u8]> = theirs?
        .as_bytes()
        .split(|b| b" :".contains(b))
        .filter(|entry| !entry.is_empty() && !ours(entry))
        .collect();
    (!entries.is_empty()).then(|| OsString::from_vec(entries.join(&b':')))
}

/// The environment of the program. `library`: `None` leaves ours out.
pub(crate) fn environment(
    mut variables: Variables,
    merged: &Merged,
    library: Option<&Path>,
) -> Variables {
    for (name, value) in merged.exports() {
        match value {
            Some(value) => variables.insert(name.into(), value.into()),
            None => variables.remove(OsStr::new(name)),
        };
    }
    let theirs = variables.remove(OsStr::new("LD_PRELOAD"));
    let preload = match library {
        Some(library) => Some(preload_with(library, theirs.as_deref())),
        None => preload_without(theirs.as_deref()),
    };
    if let Some(preload) = preload {
        variables.insert("LD_PRELOAD".into(), preload);
    }
    variables
}

/// Becomes the program; returns only if that fails, with the exit status.
///
/// `is_strict`: not if there is a mistake in the configuration file or the environment.
pub(crate) fn run(
    options: &SettingOptions,
    is_strict: bool,
    command: &[OsString],
) -> (u8, anyhow::Error) {
    match prepare(options, is_strict, command) {
        Ok((arguments, variables)) => execute(&command[0], &arguments, &variables),
        Err((status, error)) => (status, error),
    }
}

type Prepared = (Vec<CString>, Vec<CString>);

fn prepare(
    options: &SettingOptions,
    is_strict: bool,
    command: &[OsString],
) -> Result<Prepared, (u8, anyhow::Error)> {
    let ours = |error| (EXIT_OURS, error);
    let name = command.first().ok_or_else(|| ours(anyhow!("no program was given")))?;
    let (mut merged, mut mistakes) = config::look(options);
    // Who has typed the options is there to correct them. The rest is one file for many services, none of which is to stay
    // down for it.
    if let Some(at) = mistakes.iter().position(|bad| is_strict || bad.is_of_options()) {
        return Err(ours(mistakes.swap_remove(at).into()));
    }
    let search = std::env::var_os("PATH");
    let path = program::find(name, search.as_deref()).map_err(|e| {
        let status = match e {
            NoProgram::NotFound(_) => EXIT_NOT_FOUND,
            NoProgram::NotExecutable(_) => EXIT_CANNOT,
        };
        // A path is in the message already.
        let is_path = name.as_bytes().contains(&b'/');
        (status, if is_path { anyhow!("{e}") } else { anyhow!("{}: {e}", name.display()) })
    })?;
    // What cannot be followed may run all the same: the kernel has the last word.
    let program = Program::follow(path, search.as_deref()).ok();
    if sys::inherited::environment_is_cut() && merged.limits.log != Level::Off {
        say::line(
            "shunt: its file gives it rights (setcap, set-user-id), so LD_PRELOAD, LD_LIBRARY_PATH, TMPDIR and their like are gone \
             from the environment",
        );
    }
    if let Some(bad) = mistakes.first() {
        if merged.limits.log != Level::Off {
            let more = match mistakes.len() {
                1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            };
            let name = Path::new(name).file_name().unwrap_or(name).display();
            say::line(format_args!("shunt: {bad}{more}; so {name} runs on TCP"));
        }
        // What was to be left on TCP may be among what is not understood.
        merged = merged.switched_off();
    }
    if let Some((name, meant)) = config::mistyped_here().first()
        && merged.limits.log != Level::Off
    {
        say::line(format_args!(
            "shunt: {name} is in the environment, and no setting: say {meant}, if that is meant"
        ));
    }
    if let Some(words) = merged.closed_for_certain().filter(|_| merged.limits.log != Level::Off) {
        say::line(format_args!("shunt: {words}"));
    }
    let library = if merged.limits.enabled {
        let library = find_library().map_err(ours)?;
        // Before it is one of those who are there.
        local::board::sweep(merged.limits.dir.as_deref());
        warn_if_it_stays_on_tcp(name, program.as_ref(), &merged);
        if let Some(words) = warning_of_place(&merged).filter(|_| merged.limits.log != Level::Off) {
            say::line(format_args!("shunt: {words}"));
        }
        let harmless = program.as_ref().is_none_or(|p| !p.refuses_preload())
            && asan::in_the_way(program.as_ref()).is_none();
        harmless.then(|| in_preload(&library))
    } else {
        None
    };
    let variables = environment(std::env::vars_os().collect(), &merged, library.as_deref());
    let arguments = command.iter().map(|a| c_string(a)).collect::<Result<_, _>>().map_err(ours)?;
    let variables = variables.iter().map(|(k, v)| assignment(k, v)).collect::<Result<_, _>>();
    Ok((arguments, variables.map_err(ours)?))
}

fn warn_if_it_stays_on_tcp(name: &OsStr, program: Option<&Program>, merged: &Merged) {
    let reason = program.and_then(doctor::reason_for_tcp);
    if let Some(reason) = reason.filter(|_| merged.limits.log != Level::Off) {
        say::line(format_args!("shunt: {} stays on TCP: {reason}", name.display()));
    }
}

/// A directory that somebody has named, and may have mistyped: it works on a disk as well, and badly.
fn warning_of_place(merged: &Merged) -> Option<String> {
    let dir = merged.limits.dir.as_ref()?;
    let source = merged.source("dir")?;
    // The library makes it in what is there, and no more than that.
    let at = Path::new(dir);
    let (there, making) = match at.symlink_metadata() {
        // It is not used, and the library says why.
        Ok(about) if !about.is_dir() || about.mode() & 0o007 != 0 => return None,
        Ok(_) => (at, ""),
        Err(_) => (at.parent()?, ", and is made now"),
    };
    if doctor::is_in_memory(there) {
        return None;
    }
    Some(format!(
        "the directory {dir} ({source}) is not in memory (a tmpfs){making}: the kernel writes to the disk, again and again, what \
         programs say to each other there; name one in /dev/shm"
    ))
}

fn c_string(text: &OsStr) -> anyhow::Result<CString> {
    CString::new(text.as_bytes()).context("an argument has a NUL byte in it")
}

fn assignment(name: &OsStr, value: &OsStr) -> anyhow::Result<CString> {
    let mut text = name.to_owned();
    text.push("=");
    text.push(value);
    c_string(&text)
}

fn execute(name: &OsStr, arguments: &[CString], variables: &[CString]) -> (u8, anyhow::Error) {
    let Some(first) = arguments.first() else {
        return (EXIT_OURS, anyhow!("no program was given"));
    };
    let Err(errno) = execvpe(first, arguments, variables);
    let status = if errno == Errno::ENOENT { EXIT_NOT_FOUND } else { EXIT_CANNOT };
    (status, anyhow!("{}: {}", name.display(), errno.desc()))
}

#[cfg(test)]
pub(crate) mod tests;
