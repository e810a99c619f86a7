//! The server under test: ours, Samba's, or one that runs already.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::matrix;
use crate::bench::stage::{self, Running};
use crate::smbd::{PASSWORD, Smbd, USERS};

/// Whom to test.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// The program `shunt`, here.
    Shunt(PathBuf),
    Smbd,
    /// Somebody's, on this port.
    Port(u16),
}

/// A server with its folders, all of which go when this is dropped.
pub(crate) struct Server {
    running: Option<Running>,
    dir: Option<PathBuf>,
    pub(crate) port: u16,
}

impl Server {
    /// Starts one with new, empty folders, for a case that may want a certain port.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub(crate) fn start(kind: &Kind, wanted: Option<u16>) -> anyhow::Result<Self> {
        if let Kind::Port(port) = *kind {
            return Ok(Self { running: None, dir: None, port });
        }
        let dir = stage::new_dir(&std::env::temp_dir().join("shunt-torture"))?;
        let wanted = wanted.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
        let port = wanted.map_or_else(stage::free_port, Ok)?;
        let mut server = Self { running: None, dir: Some(dir.clone()), port };
        fs::set_permissions(&dir, Permissions::from_mode(0o755))?;
        let folders = dir.join("folders");
        fs::create_dir(&folders)?;
        let shares = matrix::shares(&folders);
        for share in &shares {
            fs::create_dir(&share.path)?;
            // Samba serves as the user who is logged on.
            let mode = if share.name == matrix::CLOSED { 0 } else { 0o777 };
            fs::set_permissions(&share.path, Permissions::from_mode(mode))?;
        }
        server.running = Some(match kind {
            Kind::Shunt(program) => {
                let mut running = Running::start(&ours(program, server.port, &shares), &dir, &[])?;
                running.wait_for_port(server.port).context("shunt serve")?;
                running
            }
            _ => Smbd::start(Vec::new(), &dir, server.port, matrix::GLOBAL, &shares)?.running,
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
        if let Some(dir) = &self.dir {
            stage::remove_dir(dir);
        }
    }
}

/// `shunt serve` with the test codes switched on.
fn ours(program: &Path, port: u16, shares: &[crate::smbd::Share]) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![program.into(), "serve".into(), "--torture".into()];
    words.extend(["--dialects".into(), "2.0.2-3.1.1".into()]);
    words.extend(["--listen".into(), format!("127.0.0.1:{port}").into(), "--guest".into()]);
    for user in USERS {
        words.extend(["--user".into(), format!("{user}:{PASSWORD}").into()]);
    }
    for share in shares {
        let mut word = OsString::from(format!("{}=", share.name));
        word.push(&share.path);
        if share.settings.contains(&"smb encrypt = required") {
            word.push(",encrypt");
        }
        words.extend(["--share".into(), word]);
    }
    words
}
