//! The server under test: ours, Samba's, or one that runs already.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use super::matrix::{self, Case};
use crate::bench::stage::{self, Running};
use crate::install;
use crate::smbd::{PASSWORD, Smbd, USERS};

/// Whom to test.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// The program `shunt`, here.
    Shunt(PathBuf),
    /// The same, as a user who is not root and owns the folders.
    Plain(PathBuf),
    Smbd,
    /// Somebody's, on this port.
    Port(u16),
}

impl Kind {
    /// Whether it is ours, whoever runs it.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Shunt(_) | Self::Plain(_))
    }
}

/// The number of a user whom nobody else is, and who need not be known: [`Kind::Plain`].
const PLAIN: u32 = 64_110;

/// A server with its folders, all of which go when this is dropped.
pub(crate) struct Server {
    running: Option<Running>,
    mounted: Option<Mounted>,
    dir: Option<PathBuf>,
    pub(crate) port: u16,
}

impl Server {
    /// Starts one with new, empty folders, as a case wants it.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub(crate) fn start(kind: &Kind, case: &Case) -> anyhow::Result<Self> {
        if let Kind::Port(port) = *kind {
            return Ok(Self { running: None, mounted: None, dir: None, port });
        }
        let dir = stage::new_dir(&std::env::temp_dir().join("shunt-torture"))?;
        let is_plain = matches!(kind, Kind::Plain(_));
        let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        // Root alone has the ports below 1024.
        let wanted = case.port().filter(|port| (*port >= 1024 || !is_plain) && is_free(port));
        let port = wanted.map_or_else(stage::free_port, Ok)?;
        let mut server = Self { running: None, mounted: None, dir: Some(dir.clone()), port };
        fs::set_permissions(&dir, Permissions::from_mode(0o755))?;
        let folders = dir.join("folders");
        fs::create_dir(&folders)?;
        server.mounted = case.file_system().map(|kind| Mounted::new(kind, &folders)).transpose()?;
        let shares = matrix::shares(&folders);
        for share in &shares {
            fs::create_dir(&share.path)?;
            // Samba serves as the user who is logged on.
            let mode = if share.name == matrix::CLOSED { 0 } else { 0o777 };
            fs::set_permissions(&share.path, Permissions::from_mode(mode))?;
            if is_plain {
                chown(&share.path, Some(PLAIN), Some(PLAIN))?;
            }
        }
        server.running = Some(match kind {
            Kind::Shunt(program) => {
                running_ours(&ours(program, server.port, case, &shares), &dir, server.port, &[])?
            }
            Kind::Plain(program) => {
                // A copy, in a place where that user may look.
                let home = dir.join("home");
                fs::create_dir(&home)?;
                chown(&home, Some(PLAIN), Some(PLAIN))?;
                let copy = home.join("shunt-serve");
                fs::copy(program, &copy)?;
                let words = [as_plain(), ours(&copy, server.port, case, &shares)].concat();
                let homes = ["HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"];
                let settings = homes.map(|name| (name, OsString::from(&home)));
                running_ours(&words, &dir, server.port, &settings)?
            }
            _ => {
                let global = [matrix::GLOBAL, case.global()].concat();
                Smbd::start(Vec::new(), &dir, server.port, &global, &shares)?.running
            }
        });
        Ok(server)
    }

    /// Where a share's folder is, unless the server is somebody's.
    pub(crate) fn folder(&self, share: &str) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.join("folders").join(share))
    }

    /// Whether it has ended by itself, and how.
    pub(crate) fn fell(&mut self) -> Option<String> {
        self.running.as_mut().and_then(Running::fell)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // What runs in a directory ends before the directory goes.
        self.running = None;
        self.mounted = None;
        if let Some(dir) = &self.dir {
            stage::remove_dir(dir);
        }
    }
}

/// A file system of its own in a file, mounted on a folder as long as this is there.
struct Mounted(PathBuf);

impl Mounted {
    /// Bytes of the file, which has holes.
    const SIZE: u64 = 512 << 20;

    fn new(kind: &str, on: &Path) -> anyhow::Result<Self> {
        let image = on.with_extension("image");
        fs::File::create(&image)?.set_len(Self::SIZE)?;
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(on))?;
        Ok(Self(on.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("umount").arg("-l").arg(&self.0)) {
            eprintln!("{error:#}");
        }
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}", words.trim());
    Ok(())
}

/// Why no case can have a file system of this kind here, if so.
pub(crate) fn cannot_mount(kind: &str) -> Option<String> {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !nix::unistd::geteuid().is_root() {
        Some("a mount wants root".into())
    } else if install::find(&format!("mkfs.{kind}")).is_none() {
        Some(format!("there is no mkfs.{kind}"))
    } else if !known.split_whitespace().any(|word| word == kind) {
        Some(format!("this kernel has no {kind}"))
    } else {
        None
    }
}

fn running_ours(
    words: &[OsString],
    dir: &Path,
    port: u16,
    settings: &[(&str, OsString)],
) -> anyhow::Result<Running> {
    let mut running = Running::start(words, dir, settings)?;
    running.wait_for_port(port).context("shunt serve")?;
    Ok(running)
}

/// What to type before a program so that it is that user's.
fn as_plain() -> Vec<OsString> {
    let id = PLAIN.to_string();
    ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"].map(OsString::from).into()
}

/// Why nothing can be run as that user, if so.
pub(crate) fn cannot_be_plain() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        Some(
            "only root can run a server as somebody else: without root it is one of a plain user anyway",
        )
    } else if install::find("setpriv").is_none() {
        Some("there is no setpriv (Debian: util-linux)")
    } else {
        None
    }
}

/// `shunt serve` with the test codes switched on.
fn ours(program: &Path, port: u16, case: &Case, shares: &[crate::smbd::Share]) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![program.into(), "serve".into(), "--torture".into()];
    words.extend(["--dialects".into(), "2.0.2-3.1.1".into()]);
    words.extend(["--listen".into(), format!("127.0.0.1:{port}").into()]);
    words.extend(case.settings().iter().map(OsString::from));
    for user in USERS {
        words.extend(["--user".into(), format!("{user}:{PASSWORD}").into()]);
    }
    for share in shares {
        let mut word = OsString::from(format!("{}=", share.name));
        word.push(&share.path);
        if share.settings.contains(&"smb encrypt = required") {
            word.push(",encrypt");
        }
        if share.name == matrix::NO_STREAMS {
            word.push(",streams=off");
        }
        words.extend(["--share".into(), word]);
    }
    words
}
