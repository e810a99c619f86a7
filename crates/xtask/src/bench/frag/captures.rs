//! `shunt defrag` of captures of any length, by a pipe and from a disk: in memory that does not grow with
//! them, and with every datagram told.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::sys::statvfs::statvfs;
use testkit::fragments::{Family, Packet};

use super::{Bench, Job, row, rows_or_failure};
use crate::bench::pairs::Better;
use crate::bench::report::{Line, Outcome};
use crate::bench::{built, stage};

/// Memory for ten times as long a capture, against that for one.
const CONSTANT: f64 = 1.0 / 1.05;
const GIGABYTE: u64 = 1_000_000_000;
/// How long the captures are.
const LENGTHS: [u64; 2] = [GIGABYTE, 10 * GIGABYTE];
/// What must stay free on the disk besides.
const SPARE: u64 = 2 * GIGABYTE;
/// Between two looks at the memory of a program.
const GLANCE: Duration = Duration::from_millis(5);
/// The link type of a capture of IP packets without link headers.
const RAW_IP: u32 = 101;
/// Datagrams in [`capture`].
const DATAGRAMS: u16 = 20;

pub(crate) fn jobs() -> Vec<Job> {
    let stream = Job::new("defrag-stream".into(), false, |bench| {
        rows_or_failure(
            "defrag-stream",
            pair("a stream", || LENGTHS.map(|bytes| stream(bench, bytes))),
        )
    });
    let file = Job::new("defrag-file".into(), false, |bench| match room(&built(&bench.root)) {
        Ok(None) => rows_or_failure(
            "defrag-file",
            pair("a file", || LENGTHS.map(|bytes| file(bench, bytes))),
        ),
        Ok(Some(why)) => {
            vec![Line { name: "defrag-file".into(), unit: "MiB", outcome: Outcome::Skipped(why) }]
        }
        Err(error) => rows_or_failure("defrag-file", Err(error)),
    });
    vec![stream, file]
}

/// How a run of `shunt defrag` went.
struct Run {
    most_mib: f64,
    mb_a_second: f64,
}

fn pair(what: &str, run: impl FnOnce() -> [anyhow::Result<Run>; 2]) -> anyhow::Result<Vec<Line>> {
    let [short, long] = run();
    let (short, long) = (short?, long?);
    let name = format!("defrag of {what}, 10 GB against 1 GB");
    let memory = (&[short.most_mib], &[long.most_mib]);
    let speed = (&[short.mb_a_second], &[long.mb_a_second]);
    Ok(vec![
        row(format!("{name}: memory"), "MiB", Better::Lower, memory.0, memory.1, Some(CONSTANT)),
        row(format!("{name}: speed"), "MB/s", Better::Higher, speed.0, speed.1, None),
    ])
}

/// Through a pipe.
fn stream(bench: &Bench, bytes: u64) -> anyhow::Result<Run> {
    let begin = Instant::now();
    let mut child = start(bench, Path::new("-"), Stdio::piped())?;
    let mut input = child.stdin.take().context("no pipe")?;
    let mut memory = Memory::of(&child);
    let written = write(&mut input, bytes, || memory.look())?;
    drop(input);
    finish(child, begin, written, memory)
}

/// From a disk: near what was built, since `/tmp` may be memory.
fn file(bench: &Bench, bytes: u64) -> anyhow::Result<Run> {
    let dir = stage::new_dir(&built(&bench.root).join("capture"))?;
    let path = dir.join("in.pcap");
    let run = || -> anyhow::Result<Run> {
        let mut file = File::create(&path)?;
        let written = write(&mut file, bytes, || ())?;
        // Else the program's time would be that of the disk.
        file.sync_all()?;
        let begin = Instant::now();
        let child = start(bench, &path, Stdio::null())?;
        let memory = Memory::of(&child);
        finish(child, begin, written, memory)
    };
    let run = run();
    stage::remove_dir(&dir);
    run
}

/// Why the longest capture has no room there, if it has none.
fn room(dir: &Path) -> anyhow::Result<Option<String>> {
    let disk = statvfs(dir)?;
    let there = disk.blocks_available() * disk.fragment_size();
    let wanted = LENGTHS[1] + SPARE;
    let why = || {
        format!("{} MB are free in {}, of {}", there / 1_000_000, dir.display(), wanted / 1_000_000)
    };
    Ok((there < wanted).then(why))
}

fn start(bench: &Bench, from: &Path, input: Stdio) -> anyhow::Result<Child> {
    let mut command = Command::new(bench.stage.program("shunt"));
    command.args(["defrag", "--json"]).arg(from).arg("/dev/null");
    Ok(command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?)
}

/// What was written: bytes, and datagrams.
struct Written {
    bytes: u64,
    datagrams: u64,
}

/// A capture of so many bytes and a few more; now and then `meanwhile` is called.
fn write(to: &mut impl Write, bytes: u64, mut meanwhile: impl FnMut()) -> anyhow::Result<Written> {
    let (header, records) = capture();
    to.write_all(&header)?;
    let mut written = Written { bytes: 0, datagrams: 0 };
    while written.bytes < bytes {
        to.write_all(&records)?;
        written.bytes += records.len() as u64;
        written.datagrams += u64::from(DATAGRAMS);
        meanwhile();
    }
    Ok(written)
}

/// The most memory that a program was seen to have. Of its own: how much of its file is mapped at a time
/// depends on what the system has of that in its cache.
struct Memory {
    status: PathBuf,
    most_kib: f64,
}

impl Memory {
    fn of(child: &Child) -> Self {
        Self { status: format!("/proc/{}/status", child.id()).into(), most_kib: 0.0 }
    }

    fn look(&mut self) {
        let now = fs::read_to_string(&self.status).ok().as_deref().and_then(anonymous);
        self.most_kib = now.map_or(self.most_kib, |now| now.max(self.most_kib));
    }
}

/// Waits for the end, and looks at the memory meanwhile.
fn finish(
    mut child: Child,
    begin: Instant,
    written: Written,
    mut memory: Memory,
) -> anyhow::Result<Run> {
    let ended = loop {
        memory.look();
        if let Some(ended) = child.try_wait()? {
            break ended;
        }
        sleep(GLANCE);
    };
    let seconds = begin.elapsed().as_secs_f64();
    ensure!(ended.success(), "`shunt defrag` ended with {ended}");
    let mut said = String::new();
    child.stdout.take().context("no output")?.read_to_string(&mut said)?;
    let told: serde_json::Value = serde_json::from_str(&said)?;
    let came = told["datagrams"].as_u64().context("no datagrams are told")?;
    ensure!(came == written.datagrams, "{came} datagrams of {}", written.datagrams);
    ensure!(memory.most_kib > 0.0, "its memory was never seen");
    let most_mib = memory.most_kib / 1024.0;
    Ok(Run { most_mib, mb_a_second: written.bytes as f64 / 1e6 / seconds })
}

/// KiB that a process has for itself, by its status.
fn anonymous(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The beginning of a capture, and records of whole datagrams that may follow it any number of times.
fn capture() -> (Vec<u8>, Vec<u8>) {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let header: Vec<u8> = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, RAW_IP]);
    let mut records: Vec<u8> = Vec::new();
    for id in 0..DATAGRAMS {
        let whole = Packet::new(Family::V4, u32::from(id), vec![7; 65_120]);
        for at in (0..65_120).step_by(1480) {
            let packet = whole.fragment(at, at + 1480).emit();
            let len = u32::try_from(packet.len()).unwrap_or(0);
            let record: Vec<u8> = words(&[1_700_000_000, 0, len, len]);
            records.extend(record);
            records.extend(packet);
        }
    }
    (header, records)
}

#[cfg(test)]
mod tests {
    use super::{anonymous, capture, write};

    #[test]
    fn the_memory_of_its_own_is_read() {
        assert_eq!(anonymous("Name:\tshunt\nRssAnon:\t    612 kB\nRssFile:\t 9 kB\n"), Some(612.0));
        assert_eq!(anonymous("State:\tZ (zombie)\n"), None, "of a process that has ended");
    }

    #[test]
    fn a_capture_is_as_long_as_is_asked_and_ends_with_a_datagram() {
        let mut out = Vec::new();
        let mut looks = 0;
        let written = write(&mut out, 3_000_000, || looks += 1).unwrap();
        let (header, records) = capture();
        assert_eq!(out.len(), header.len() + records.len() * 3);
        assert_eq!((written.bytes, written.datagrams), (records.len() as u64 * 3, 60));
        assert_eq!(looks, 3);
    }
}
