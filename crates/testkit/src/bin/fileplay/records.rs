//! Records that are known to be in the file: each is written and synced, and said to be there, before the
//! next. Whatever happens to the server meanwhile, what was said must be found.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use testkit::fragments::Random;

#[derive(Args, Debug)]
pub(crate) struct Write {
    file: PathBuf,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 100)]
    records: u64,
    /// Of each record, bytes
    #[arg(long, default_value_t = 10_000)]
    length: usize,
    /// Between records
    #[arg(long, default_value_t = 0)]
    pause_ms: u64,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    file: PathBuf,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// So many must be there at least
    #[arg(long)]
    records: u64,
    #[arg(long, default_value_t = 10_000)]
    length: usize,
}

fn record(seed: u64, number: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed ^ (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let words = std::iter::repeat_with(|| random.word().to_le_bytes());
    words.flatten().take(length).collect()
}

impl Write {
    pub(crate) fn run(&self) -> anyhow::Result<String> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).open(&self.file)?;
        let mut out = std::io::stdout();
        for number in 0..self.records {
            let bytes = record(self.seed, number, self.length);
            let said = || format!("record {number}");
            file.write_all_at(&bytes, number * self.length as u64).with_context(said)?;
            file.sync_all().with_context(said)?;
            writeln!(out, "kept={}", number + 1)?;
            out.flush()?;
            sleep(Duration::from_millis(self.pause_ms));
        }
        Ok("all kept".to_owned())
    }
}

impl Check {
    pub(crate) fn run(&self) -> anyhow::Result<String> {
        let bytes = std::fs::read(&self.file)?;
        for number in 0..self.records {
            let from = usize::try_from(number)? * self.length;
            let found = bytes.get(from..from + self.length);
            let found = found.with_context(|| format!("record {number} is not there"))?;
            ensure!(found == record(self.seed, number, self.length), "record {number} is another");
        }
        Ok(format!("found={}", self.records))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_is_found_and_what_was_not_is_missed() {
        let directory = testkit::kernels::ending::Directory::new().unwrap();
        let file = directory.path().join("records");
        let write = Write { file: file.clone(), seed: 3, records: 4, length: 100, pause_ms: 0 };
        write.run().unwrap();
        let check = |records| Check { file: file.clone(), seed: 3, records, length: 100 };
        check(4).run().unwrap();
        assert!(check(5).run().is_err());
        OpenOptions::new().write(true).open(&file).unwrap().write_all_at(b"?", 250).unwrap();
        check(2).run().unwrap();
        assert!(check(3).run().is_err());
    }
}
