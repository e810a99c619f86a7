//! Two ways to one folder, as two clients of one server have them: what one changes the other sees, though
//! both keep what they have read.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use testkit::fragments::Random;

/// A client learns that what it keeps is old by a message of its own, which may be under way.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Args, Debug)]
pub(crate) struct Pair {
    one: PathBuf,
    other: PathBuf,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 40)]
    rounds: u32,
    /// Leave out locks: two ways of one kernel to one inode have none between them
    #[arg(long)]
    no_locks: bool,
}

impl Pair {
    pub(crate) fn run(&self) -> anyhow::Result<String> {
        let mut random = Random::new(self.seed);
        for round in 0..self.rounds {
            // Each of them is first in turn.
            let (one, other) =
                if round % 2 == 0 { (&self.one, &self.other) } else { (&self.other, &self.one) };
            let name = format!("pair-{round}");
            let said = |what: &str| format!("round {round}, {what}");
            let (one, other) = (one.join(&name), other.join(&name));
            closed(&mut random, &one, &other)
                .with_context(|| said("one closes, then the other"))?;
            open(&mut random, &one, &other).with_context(|| said("both have it open"))?;
            if !self.no_locks {
                locks(&one, &other).with_context(|| said("locks"))?;
            }
            gone(&one, &other).with_context(|| said("one removes it"))?;
        }
        Ok(format!("rounds={}", self.rounds))
    }
}

fn fresh(random: &mut Random) -> Vec<u8> {
    let len = 1 + random.below(100_000);
    std::iter::repeat_with(|| random.word().to_le_bytes()).flatten().take(len).collect()
}

/// Waits until it is so.
fn soon(what: &str, mut so: impl FnMut() -> io::Result<bool>) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if so().with_context(|| what.to_owned())? {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(20));
    }
}

/// Whoever opens a file after it was closed sees all of it. Soon, not at once: Linux takes the length that it
/// knew for a second more, whoever serves.
fn closed(random: &mut Random, one: &PathBuf, other: &PathBuf) -> anyhow::Result<()> {
    for (writer, reader) in [(one, other), (other, one)] {
        let bytes = fresh(random);
        fs::write(writer, &bytes).context("written")?;
        soon("what was closed is read", || fs::read(reader).map(|found| found == bytes))?;
    }
    Ok(())
}

/// Whoever has it open sees what the other writes.
fn open(random: &mut Random, one: &PathBuf, other: &PathBuf) -> anyhow::Result<()> {
    let both = |path: &PathBuf| OpenOptions::new().read(true).write(true).open(path);
    let (first, second) = (both(one)?, both(other)?);
    let mut bytes = fresh(random);
    for (writer, reader) in [(&first, &second), (&second, &first), (&first, &second)] {
        let mut found = vec![0; bytes.len()];
        // It keeps what it reads here.
        let _ = reader.read_at(&mut found, 0)?;
        bytes.iter_mut().for_each(|b| *b = b.wrapping_add(1));
        writer.write_all_at(&bytes, 0)?;
        writer.sync_all()?;
        soon("the other's reads", || {
            let n = read(reader, &mut found)?;
            Ok(n == bytes.len() && found == bytes)
        })?;
    }
    Ok(())
}

fn read(file: &File, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// A range that one has locked is not to be had by the other, until one lets go.
fn locks(one: &PathBuf, other: &PathBuf) -> anyhow::Result<()> {
    let both = |path: &PathBuf| OpenOptions::new().read(true).write(true).open(path);
    let (first, second) = (both(one)?, both(other)?);
    lock(&first, libc::F_WRLCK, 10, 20).context("one locks")?;
    let refused = lock(&second, libc::F_WRLCK, 15, 1).err().and_then(|e| e.raw_os_error());
    ensure!(
        matches!(refused, Some(libc::EAGAIN | libc::EACCES)),
        "the other's lock of the same bytes: {refused:?}"
    );
    lock(&second, libc::F_WRLCK, 100, 10).context("the other locks what is free")?;
    lock(&first, libc::F_UNLCK, 10, 20).context("one unlocks")?;
    lock(&second, libc::F_WRLCK, 15, 1).context("the other locks what was let go")?;
    Ok(())
}

fn lock(file: &File, kind: i32, at: i64, len: i64) -> io::Result<()> {
    // SAFETY: a plain C structure of integers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap_or(0);
    lock.l_start = at;
    lock.l_len = len;
    // SAFETY: a descriptor and a structure that lives through the call.
    let r = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) };
    if r == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What one removes while the other has it open is gone for both when that is closed.
fn gone(one: &PathBuf, other: &PathBuf) -> anyhow::Result<()> {
    let held = File::open(other)?;
    fs::remove_file(one).context("removed")?;
    drop(held);
    let is_gone =
        |path: &PathBuf| fs::metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
    soon("it is gone for one", || Ok(is_gone(one)))?;
    soon("it is gone for the other", || Ok(is_gone(other)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_folder_by_two_names_is_one_folder() {
        let directory = testkit::kernels::ending::Directory::new().unwrap();
        let (one, other) = (directory.path().to_owned(), directory.path().join("."));
        Pair { one, other, seed: 1, rounds: 4, no_locks: true }.run().unwrap();
    }

    #[test]
    fn two_folders_are_not_one() {
        let directory = testkit::kernels::ending::Directory::new().unwrap();
        let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&other).unwrap();
        assert!(Pair { one, other, seed: 1, rounds: 1, no_locks: true }.run().is_err());
    }
}
