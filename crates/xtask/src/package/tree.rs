//! A folder that looks as `/` will once a package is there.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use tempfile::TempDir;

use super::{output, run};

/// Files with the permissions that they will have; owners are nobody's matter before it is packed.
pub(super) struct Tree {
    root: TempDir,
    beside: TempDir,
}

impl Tree {
    pub(super) fn new() -> anyhow::Result<Self> {
        let root = tempfile::tempdir()?;
        fs::set_permissions(root.path(), Permissions::from_mode(0o755))?;
        Ok(Self { root, beside: tempfile::tempdir()? })
    }

    pub(super) fn root(&self) -> &Path {
        self.root.path()
    }

    /// A folder for what becomes part of it in another form.
    pub(super) fn aside(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.beside.path().join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }

    /// Where `to` is to be, with the folders that it takes.
    fn place(&self, to: &str) -> anyhow::Result<PathBuf> {
        let mut path = self.root.path().to_owned();
        let (folders, name) = to.rsplit_once('/').unwrap_or(("", to));
        for folder in folders.split('/') {
            path.push(folder);
            if !path.is_dir() {
                fs::create_dir(&path).with_context(|| path.display().to_string())?;
                fs::set_permissions(&path, Permissions::from_mode(0o755))?;
            }
        }
        Ok(path.join(name))
    }

    fn put(&self, from: &Path, to: &str, mode: u32) -> anyhow::Result<PathBuf> {
        let path = self.place(to)?;
        fs::copy(from, &path).with_context(|| format!("{} to {to}", from.display()))?;
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
        Ok(path)
    }

    pub(super) fn file(&self, from: &Path, to: &str) -> anyhow::Result<()> {
        self.put(from, to, 0o644).map(drop)
    }

    pub(super) fn text(&self, text: &str, to: &str) -> anyhow::Result<()> {
        let path = self.place(to)?;
        fs::write(&path, text)?;
        Ok(fs::set_permissions(&path, Permissions::from_mode(0o644))?)
    }

    /// A file that is compressed on the way; `to` ends in `.gz`.
    pub(super) fn zipped(&self, from: &Path, to: &str) -> anyhow::Result<()> {
        let plain = to.strip_suffix(".gz").context("to end in .gz")?;
        let path = self.put(from, plain, 0o644)?;
        // Without a name and a time in it, so that the same makes the same.
        run(Command::new("gzip").args(["-9nf"]).arg(path))
    }

    pub(super) fn program(&self, from: &Path, to: &str) -> anyhow::Result<()> {
        self.stripped(from, to, 0o755)
    }

    pub(super) fn library(&self, from: &Path, to: &str) -> anyhow::Result<()> {
        self.stripped(from, to, 0o644)
    }

    /// A symbolic link to `target`, as it stands in it.
    pub(super) fn link(&self, target: &str, to: &str) -> anyhow::Result<()> {
        let path = self.place(to)?;
        symlink(target, &path).with_context(|| format!("{to} to {target}"))
    }

    /// Without what a debugger reads; the names of functions stay, for backtraces and `perf`.
    fn stripped(&self, from: &Path, to: &str, mode: u32) -> anyhow::Result<()> {
        let path = self.put(from, to, 0o644)?;
        run(Command::new("strip").arg("--strip-debug").arg(&path))?;
        Ok(fs::set_permissions(&path, Permissions::from_mode(mode))?)
    }

    /// All files, by name, as they will be named below `/`; links are none.
    pub(super) fn files(&self) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        let mut folders = vec![self.root.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if !path.is_symlink() {
                    let name = path.strip_prefix(self.root.path())?;
                    found.push(name.to_str().context("a name that is no text")?.to_owned());
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// What objects in it need from others: names of libraries, and of the C library the newest version.
    pub(super) fn needs(&self) -> anyhow::Result<Vec<String>> {
        let mut said = String::new();
        for name in self.files()? {
            let path = self.root.path().join(&name);
            if fs::read(&path)?.starts_with(b"\x7fELF") {
                said += &output(Command::new("objdump").arg("-p").arg(&path))?;
            }
        }
        Ok(said.lines().map(|line| line.trim().to_owned()).collect())
    }

    /// `tar` in the folder `at` of it, before what it is to do: the same archive for the same files.
    pub(super) fn tar(&self, at: &str, time: &str) -> Command {
        let mut command = Command::new("tar");
        command.arg("-C").arg(self.root.path().join(at));
        command.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
        command.arg(format!("--mtime=@{time}"));
        command
    }
}
