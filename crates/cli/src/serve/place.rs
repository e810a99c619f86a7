//! Where people talk to servers that run.

use std::env::var_os;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use engine::serve::control::{Request, ask};
use serde_json::Value;

/// What the names of sockets begin with; the port follows.
const NAME: &str = "serve-";

/// The directory for sockets: what systemd made for the service, else the user's own.
fn directory() -> PathBuf {
    let absolute = |name: &str| var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(dirs) = var_os("RUNTIME_DIRECTORY")
        && let Some(first) = dirs.to_string_lossy().split(':').next()
        && first.starts_with('/')
    {
        return first.into();
    }
    let uid = sys::call::geteuid();
    if uid == 0 {
        return "/run/shunt".into();
    }
    match absolute("XDG_RUNTIME_DIR") {
        Some(dir) => dir.join("shunt"),
        None => format!("/dev/shm/shunt-{uid}").into(),
    }
}

/// Whether a directory is ours, and closed to others.
fn is_ours(dir: &Path) -> bool {
    std::fs::symlink_metadata(dir).is_ok_and(|m| {
        m.is_dir()
            && m.uid() == sys::call::geteuid()
            && (m.mode() & 0o022 == 0 || m.mode() & 0o077 == 0)
    })
}

/// Where a server at this port answers, if nothing else is said. `None`: there is no place for it.
pub(super) fn usual(port: u16) -> Option<PathBuf> {
    let dir = directory();
    // If it cannot be made, or is somebody else's, the next line says so.
    let _ = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    is_ours(&dir).then(|| dir.join(format!("{NAME}{port}")))
}

/// Which server is meant.
#[derive(clap::Args, Debug, Default)]
pub(crate) struct Place {
    /// Port of the server, where more than one runs
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Socket of the server, if it was started with --control
    #[arg(long, value_name = "PATH", conflicts_with = "port")]
    control: Option<PathBuf>,
}

impl Place {
    /// The socket of the server.
    fn find(&self) -> anyhow::Result<PathBuf> {
        if let Some(path) = &self.control {
            return Ok(path.clone());
        }
        let dir = directory();
        if let Some(port) = self.port {
            return Ok(dir.join(format!("{NAME}{port}")));
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let named = name.to_str().and_then(|name| name.strip_prefix(NAME)?.parse::<u16>().ok());
            if named.is_some() && std::os::unix::net::UnixStream::connect(entry.path()).is_ok() {
                found.push(entry.path());
            }
        }
        found.sort();
        match &found[..] {
            [one] => Ok(one.clone()),
            [] => bail!(
                "no `shunt serve` runs here for this user (as root: sudo; another socket: --control PATH)"
            ),
            many => {
                let ports: Vec<_> = many
                    .iter()
                    .filter_map(|path| path.file_name()?.to_str()?.strip_prefix(NAME))
                    .collect();
                bail!("more than one server runs here: say --port, of {}", ports.join(", "))
            }
        }
    }

    /// Asks it.
    ///
    /// # Errors
    ///
    /// That there is none, or what it says.
    pub(crate) fn ask(&self, request: &Request) -> anyhow::Result<Value> {
        use std::io::ErrorKind::{ConnectionRefused, InvalidData, NotFound};
        let path = self.find()?;
        ask(&path, request).map_err(|e| match e.kind() {
            NotFound | ConnectionRefused => {
                anyhow!("no server answers at {}: does it run?", path.display())
            }
            InvalidData => anyhow!("{e}"),
            _ => anyhow::Error::from(e).context("the server does not answer"),
        })
    }
}
