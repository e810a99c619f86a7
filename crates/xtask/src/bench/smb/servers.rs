//! The servers that are compared, and the files that all of them serve.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use super::rows::Medium;
use crate::bench::stage::{self, Cpus, End, Running, Stage};
use crate::smbd::{PASSWORD, Share, Smbd, USERS};

/// A server, set up in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `shunt serve`.
    Shunt,
    /// The same under `shunt run`, where its clients are as well.
    Carried,
    /// One of [`SMBD`].
    Smbd(usize),
    /// None: what a splice from a file to a socket does by itself.
    Bare,
}

/// A server, and whether it has a CPU of its own, as its clients have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setup {
    pub(crate) kind: Kind,
    pub(crate) apart: bool,
}

impl Setup {
    /// What stands before a program, of this end.
    pub(crate) fn prefix(self, stage: &Stage, end: End) -> Vec<OsString> {
        let mut words = Vec::new();
        if self.apart {
            words.extend(["taskset", "-c", Cpus::Two.of(end)].map(OsString::from));
        }
        if self.kind == Kind::Carried {
            words.extend([stage.program("shunt").into(), "run".into(), "--".into()]);
        }
        words
    }
}

/// Samba's ways to read and write files: which is best depends on the load.
pub(crate) const SMBD: &[(&str, &[&str])] = &[
    ("default", &[]),
    ("io_uring", &["vfs objects = io_uring"]),
    ("no aio", &["aio read size = 0", "aio write size = 0"]),
    ("sendfile", &["aio read size = 0", "aio write size = 0", "use sendfile = yes"]),
];

/// One that runs.
pub(crate) struct Server {
    pub(crate) setup: Setup,
    pub(crate) port: u16,
    running: Running,
}

impl Server {
    /// Starts one.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub(crate) fn start(stage: &Stage, setup: Setup, folders: &Folders) -> anyhow::Result<Self> {
        let (dir, port) = (stage.new_dir()?, stage::free_port()?);
        let mut words = setup.prefix(stage, End::Server);
        let running = match setup.kind {
            Kind::Smbd(number) => {
                Smbd::start(words, &dir, port, SMBD[number].1, &folders.shares())?.running
            }
            Kind::Shunt | Kind::Carried => {
                words.extend([stage.program("shunt").into(), "serve".into()]);
                words.extend(["--listen".into(), format!("127.0.0.1:{port}").into()]);
                words.extend(["--user".into(), format!("{}:{PASSWORD}", USERS[0]).into()]);
                for share in folders.shares() {
                    let mut word = OsString::from(format!("{}=", share.name));
                    word.push(&share.path);
                    words.extend(["--share".into(), word]);
                }
                let mut running = Running::start(&words, &dir, &[])?;
                running.wait_for_port(port)?;
                running
            }
            Kind::Bare => bail!("there is no server"),
        };
        Ok(Self { setup, port, running })
    }

    /// The process below which all of it runs.
    ///
    /// # Errors
    ///
    /// When it has ended.
    pub(crate) fn process(&self) -> anyhow::Result<u32> {
        self.running.family().first().copied().context("the server has ended")
    }
}

/// The files that are served, by all servers the same ones.
pub(crate) struct Folders {
    memory: PathBuf,
    disk: PathBuf,
}

/// Entries of the directories that are listed.
const ENTRIES: [u32; 2] = [1000, 100_000];
/// Clients that have a file of their own, in memory and on disk.
const CLIENTS: [u32; 2] = [8, 4];
/// Of these, files are of the full size; where there are more clients, they all make do with a quarter of it.
const CLIENTS_OF_FULL_SIZE: u32 = 4;

/// Bytes of each client's file that are used where there are so many clients.
pub(crate) fn size_of_each(size: u64, clients: u32) -> u64 {
    if clients > CLIENTS_OF_FULL_SIZE { size / 4 } else { size }
}

impl Folders {
    /// New, empty ones.
    ///
    /// # Errors
    ///
    /// When they cannot be created.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let create = |parent: &Path| -> anyhow::Result<PathBuf> {
            let dir = stage::new_dir(&parent.join("shunt-bench-smb"))?;
            open_to_all(&dir, 0o777)?;
            Ok(dir)
        };
        Ok(Self { memory: create(Path::new("/dev/shm"))?, disk: create(&std::env::temp_dir())? })
    }

    fn shares(&self) -> Vec<Share> {
        let share = |medium: Medium, path: &Path| Share {
            name: medium.share().into(),
            path: path.into(),
            settings: Vec::new(),
        };
        vec![share(Medium::Memory, &self.memory), share(Medium::Disk, &self.disk)]
    }

    /// Fills both with files of `size` bytes, and directories. `prepare` writes what is read and
    /// checked; what is only there to be written over or listed is made here.
    ///
    /// # Errors
    ///
    /// When something cannot be written.
    pub(crate) fn fill(
        &self,
        size: u64,
        prepare: impl Fn(Medium, u32, u64) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let zeros = vec![0; 1 << 20];
        let places = [(Medium::Memory, &self.memory), (Medium::Disk, &self.disk)];
        for ((medium, dir), clients) in places.into_iter().zip(CLIENTS) {
            if clients > CLIENTS_OF_FULL_SIZE {
                prepare(medium, clients, size_of_each(size, clients))?;
            }
            prepare(medium, CLIENTS_OF_FULL_SIZE, size)?;
            for client in 0..clients {
                let mut file = File::create(dir.join(format!("smbload_w{client}.dat")))?;
                for _ in 0..size_of_each(size, client + 1) >> 20 {
                    file.write_all(&zeros)?;
                }
            }
            for entry in fs::read_dir(dir)? {
                let path = entry?.path();
                open_to_all(&path, if path.is_dir() { 0o777 } else { 0o666 })?;
            }
        }
        for count in ENTRIES {
            let dir = self.memory.join(format!("entries{count}"));
            fs::create_dir(&dir)?;
            open_to_all(&dir, 0o777)?;
            for number in 0..count {
                File::create(dir.join(format!("file-{number:06}.txt")))?;
            }
        }
        Ok(())
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        stage::remove_dir(&self.memory);
        stage::remove_dir(&self.disk);
    }
}

/// Samba serves as the user who is logged on, ours as who started it: both must be let in.
fn open_to_all(path: &Path, mode: u32) -> anyhow::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    ensure!(path.exists(), "{} is gone", path.display());
    Ok(())
}
