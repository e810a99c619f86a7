//! One file, whose bytes are also in memory: random reads, writes, maps and cuts must agree on both.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};
use clap::Args;
use testkit::fragments::Random;

#[derive(Args, Debug)]
pub(crate) struct Bytes {
    /// The file; made new
    file: PathBuf,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 500)]
    operations: u32,
    /// The file is never longer than this many bytes
    #[arg(long, default_value_t = 1 << 20)]
    size: usize,
    /// Leave out mmap, for file systems and caches that have none
    #[arg(long)]
    no_map: bool,
    /// Leave out holes
    #[arg(long)]
    no_punch: bool,
    /// Write here what the file must be in the end
    #[arg(long)]
    model: Option<PathBuf>,
}

/// What is done to the file next. Offsets and lengths in bytes.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write { at: usize, len: usize },
    Read { at: usize, len: usize },
    MapWrite { at: usize, len: usize },
    MapRead { at: usize, len: usize },
    Cut { len: usize },
    Punch { at: usize, len: usize },
    Sync,
    Reopen,
}

struct Run {
    path: PathBuf,
    file: File,
    model: Vec<u8>,
    random: Random,
    stamp: u8,
}

impl Bytes {
    pub(crate) fn run(&self) -> anyhow::Result<String> {
        ensure!(self.size > 1, "a file of {} bytes is too short", self.size);
        let _ = std::fs::remove_file(&self.file);
        let file = open(&self.file, true)?;
        let random = Random::new(self.seed);
        let mut run = Run { path: self.file.clone(), file, model: Vec::new(), random, stamp: 0 };
        for number in 0..self.operations {
            let step = self.choose(&mut run);
            run.take(step).with_context(|| {
                format!(
                    "seed {}, operation {number}, {step:?}, of {} bytes",
                    self.seed,
                    run.model.len()
                )
            })?;
        }
        run.take(Step::Reopen)?;
        run.compare_all().with_context(|| format!("seed {}, at the end", self.seed))?;
        if let Some(model) = &self.model {
            std::fs::write(model, &run.model)?;
        }
        Ok(format!("operations={} bytes={}", self.operations, run.model.len()))
    }

    fn choose(&self, run: &mut Run) -> Step {
        let (size, now) = (self.size, run.model.len());
        let mut below = |n: usize| run.random.below(n);
        let kind = below(100);
        // Mostly short, at times as long as a message or longer.
        let longest = if below(10) == 0 { size } else { size.min(20_000) };
        let len = 1 + below(longest);
        let inside = |at: usize| (at, len.min(now.saturating_sub(at)));
        match kind {
            0..35 => {
                let at = below(size.min(now + size / 8));
                Step::Write { at, len: len.min(size - at) }
            }
            35..65 => Step::Read { at: below(now + 1), len },
            65..73 if now > 0 && !self.no_map => {
                let (at, len) = inside(below(now));
                Step::MapWrite { at, len }
            }
            73..82 if now > 0 && !self.no_map => {
                let (at, len) = inside(below(now));
                Step::MapRead { at, len }
            }
            82..88 => Step::Cut { len: below(size) },
            88..91 if now > 0 && !self.no_punch => {
                let (at, len) = inside(below(now));
                Step::Punch { at, len }
            }
            91..95 => Step::Sync,
            95..100 => Step::Reopen,
            _ => Step::Read { at: 0, len },
        }
    }
}

fn open(path: &PathBuf, new: bool) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(new);
    options.open(path).with_context(|| path.display().to_string())
}

impl Run {
    fn take(&mut self, step: Step) -> anyhow::Result<()> {
        match step {
            Step::Write { at, len } => {
                let bytes = self.fresh(len);
                self.file.write_all_at(&bytes, at as u64).context("write")?;
                self.keep(at, &bytes);
            }
            Step::Read { at, len } => {
                let mut bytes = vec![0xee; len];
                let n = read_all(&self.file, at, &mut bytes).context("read")?;
                bytes.truncate(n);
                let end = self.model.len().min(at + len);
                compare(at, &bytes, &self.model[at.min(end)..end])?;
            }
            Step::MapWrite { at, len } => {
                let bytes = self.fresh(len);
                let map = Map::new(&self.file, at + len)?;
                map.write(at, &bytes)?;
                drop(map);
                self.keep(at, &bytes);
            }
            Step::MapRead { at, len } => {
                let bytes = Map::new(&self.file, at + len)?.read(at, len);
                compare(at, &bytes, &self.model[at..at + len])?;
            }
            Step::Cut { len } => {
                self.file.set_len(len as u64).context("truncate")?;
                self.model.resize(len, 0);
            }
            Step::Punch { at, len } => {
                if punch(&self.file, at, len)? {
                    self.model[at..at + len].fill(0);
                }
            }
            Step::Sync => self.file.sync_all().context("fsync")?,
            Step::Reopen => self.file = open(&self.path, false)?,
        }
        let len = self.file.metadata().context("stat")?.len();
        ensure!(len == self.model.len() as u64, "it says that it has {len} bytes");
        Ok(())
    }

    /// Bytes that differ from those around them and from earlier ones.
    fn fresh(&mut self, len: usize) -> Vec<u8> {
        self.stamp = self.stamp.wrapping_add(1);
        let mut word = self.random.word();
        (0..len)
            .map(|at| {
                if at % 8 == 0 {
                    word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                }
                word.to_le_bytes()[7 - at % 8] ^ self.stamp
            })
            .collect()
    }

    fn keep(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[at..end].copy_from_slice(bytes);
    }

    fn compare_all(&self) -> anyhow::Result<()> {
        let found = std::fs::read(&self.path)?;
        compare(0, &found, &self.model)
    }
}

fn read_all(file: &File, at: usize, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], (at + done) as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

/// Says where they begin to differ.
fn compare(at: usize, found: &[u8], wanted: &[u8]) -> anyhow::Result<()> {
    if found == wanted {
        return Ok(());
    }
    let differ = found.iter().zip(wanted).filter(|(a, b)| a != b).count();
    let Some(first) = found.iter().zip(wanted).position(|(a, b)| a != b) else {
        bail!("{} bytes from {at} on, not {}", found.len(), wanted.len());
    };
    let last = found.iter().zip(wanted).rposition(|(a, b)| a != b).unwrap_or(first);
    let (f, w) = (found[first], wanted[first]);
    bail!("{differ} wrong bytes from {} to {}: first {f:#04x}, not {w:#04x}", at + first, at + last)
}

/// Makes a hole; whether the file system can.
fn punch(file: &File, at: usize, len: usize) -> anyhow::Result<bool> {
    let (at, len) = (i64::try_from(at)?, i64::try_from(len)?);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a descriptor and numbers.
    if unsafe { libc::fallocate(file.as_raw_fd(), mode, at, len) } == 0 {
        return Ok(true);
    }
    let e = io::Error::last_os_error();
    match e.raw_os_error() {
        Some(libc::EOPNOTSUPP) => Ok(false),
        _ => Err(e).context("fallocate"),
    }
}

/// The first bytes of a file, shared.
struct Map {
    at: *mut libc::c_void,
    len: usize,
}

impl Map {
    fn new(file: &File, len: usize) -> anyhow::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping where the kernel likes; nobody else uses it.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        ensure!(at != libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        Ok(Self { at, len })
    }

    fn write(&self, at: usize, bytes: &[u8]) -> anyhow::Result<()> {
        ensure!(at + bytes.len() <= self.len, "outside the mapping");
        // SAFETY: inside the mapping, by the line above, and the file is not cut while it is there.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.at.cast::<u8>().add(at),
                bytes.len(),
            );
        }
        // SAFETY: the mapping itself.
        let r = unsafe { libc::msync(self.at, self.len, libc::MS_SYNC) };
        ensure!(r == 0, "msync: {}", io::Error::last_os_error());
        Ok(())
    }

    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.min(self.len.saturating_sub(at))];
        // SAFETY: inside the mapping, by the line above.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.at.cast::<u8>().add(at),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
        bytes
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: made by mmap with this length, and nobody looks at it any more.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_found_and_said_where() {
        assert!(compare(0, b"abc", b"abc").is_ok());
        let said = compare(10, b"abxd", b"abcd").unwrap_err().to_string();
        assert!(said.contains("1 wrong bytes from 12 to 12"), "{said}");
        assert!(compare(0, b"ab", b"abc").is_err());
    }

    #[test]
    fn files_of_this_machine_are_what_files_are() {
        let directory = testkit::kernels::ending::Directory::new().unwrap();
        for seed in 0..4 {
            let file = directory.path().join("bytes");
            let bytes = Bytes {
                file,
                seed,
                operations: 300,
                size: 200_000,
                no_map: false,
                no_punch: false,
                model: None,
            };
            bytes.run().unwrap();
        }
    }

    #[test]
    fn a_file_that_somebody_else_changed_is_noticed() {
        let directory = testkit::kernels::ending::Directory::new().unwrap();
        let path = directory.path().join("bytes");
        let file = open(&path, true).unwrap();
        let random = Random::new(1);
        let mut run = Run { path, file, model: Vec::new(), random, stamp: 0 };
        run.take(Step::Write { at: 5, len: 100 }).unwrap();
        run.compare_all().unwrap();
        run.file.write_all_at(b"?", 50).unwrap();
        assert!(run.take(Step::Read { at: 0, len: 105 }).is_err());
    }
}
