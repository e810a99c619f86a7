//! `shunt serve` when things go wrong: disks, clients, the server itself. What was acknowledged is there, what
//! failed is said, and whoever did nothing wrong is served.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

mod abuse;
pub(crate) mod client;
mod disks;
mod faults;
mod handles;
mod kills;
mod programs;
mod reflinks;
mod rights;

use std::io::{BufRead, BufReader, Read};

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use e2e::built;
use e2e::run::Guest;

use client::{PASSWORD, SHARE, USER};

/// A folder to share. It goes with the test.
pub(crate) struct Folder(testkit::kernels::ending::Directory);

impl Folder {
    pub(crate) fn new() -> Self {
        Self::open(testkit::kernels::ending::Directory::new().unwrap())
    }

    /// One on a file system in memory, which is served otherwise than one on a disk; `None` if there is none.
    pub(crate) fn in_memory() -> Option<Self> {
        testkit::kernels::ending::Directory::new_in(Path::new("/dev/shm")).ok().map(Self::open)
    }

    fn open(directory: testkit::kernels::ending::Directory) -> Self {
        let folder = Self(directory);
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        folder
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) guest: Guest,
    pub(crate) port: u16,
    /// The line by which it says that it serves.
    pub(crate) ready: String,
    said: Arc<Mutex<String>>,
}

/// The port of the last address that a server says it is ready at.
pub(crate) fn port_of(line: &str) -> Option<u16> {
    line.strip_prefix("ready: ")?.split(',').next()?.trim().rsplit(':').next()?.parse().ok()
}

impl Server {
    /// Serves a folder, on a port that it finds itself.
    pub(crate) fn start(folder: &Path) -> Self {
        Self::start_as(folder, 0, &[], &[])
    }

    /// Serves a folder, on `port` unless that is 0; the words of `before` stand before the command, those of `after`
    /// behind it.
    pub(crate) fn start_as(folder: &Path, port: u16, before: &[&str], after: &[&str]) -> Self {
        Self::start_of(&built("shunt"), folder, port, before, after)
    }

    /// The same of another copy of the program.
    pub(crate) fn start_of(
        program: &Path,
        folder: &Path,
        port: u16,
        before: &[&str],
        after: &[&str],
    ) -> Self {
        let mut words: Vec<String> = before.iter().map(|word| (*word).to_owned()).collect();
        words.push(program.display().to_string());
        words.extend(["serve", "--listen", &format!("127.0.0.1:{port}")].map(str::to_owned));
        words.extend(["--user", &format!("{USER}:{PASSWORD}"), "--share"].map(str::to_owned));
        words.push(format!("{SHARE}={}", folder.display()));
        words.extend(after.iter().map(|word| (*word).to_owned()));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut guest = Guest::start(&mut command);
        let said = Arc::new(Mutex::new(String::new()));
        let (mut err, into) = (guest.take_stderr().unwrap(), Arc::clone(&said));
        thread::spawn(move || {
            let mut block = [0; 4096];
            while let Ok(n @ 1..) = err.read(&mut block) {
                into.lock().unwrap().push_str(&String::from_utf8_lossy(&block[..n]));
            }
        });
        let mut out = BufReader::new(guest.take_stdout().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let port = port_of(&line);
        let server = Self { guest, port: port.unwrap_or(0), ready: line, said };
        let line = &server.ready;
        assert!(port.is_some(), "the server says {line:?} and {}", server.said());
        // Whoever closes its output would end a server that says something.
        thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        server
    }

    /// What it has said to its user.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// The process that serves, which may be a child of what was started.
    pub(crate) fn serving(&self) -> i32 {
        let mut pid = self.guest.pid();
        loop {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let children = format!("/proc/{pid}/task/{pid}/children");
            let children = std::fs::read_to_string(children).unwrap_or_default();
            match children.split_whitespace().next().and_then(|child| child.parse().ok()) {
                Some(child) if comm.trim() != "shunt" => pid = child,
                _ => return pid,
            }
        }
    }

    pub(crate) fn must_live(&mut self) {
        let ended = self.guest.ended();
        assert!(ended.is_none(), "the server ended with {ended:?} and says {}", self.said());
    }
}

/// Bytes that no other block of no other file has.
pub(crate) fn block(seed: u64, len: usize) -> Vec<u8> {
    let mut random = testkit::fragments::Random::new(seed.wrapping_mul(0x1_0001));
    std::iter::repeat_with(|| random.word().to_le_bytes()).flatten().take(len).collect()
}
