//! `shunt defrag` of captures of any length, by a pipe and from a disk: in memory that does not grow with
//! them, and with every datagram told. Also of one in which most datagrams are never complete, so that its memory is
//! always full; there a few of the others have to make room, too.

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
/// Datagrams in a [`Capture`]'s records.
const DATAGRAMS: u16 = 20;
const PAYLOAD: usize = 65_120;
const EACH: usize = 1480;
/// Of so many datagrams one is complete, in a capture where most are not.
const COMPLETE: u16 = 4;
/// Before each packet in its file.
const RECORD_HEADER: usize = 16;
/// Between two packets.
const PACE_US: u64 = 1;

pub(crate) fn jobs() -> Vec<Job> {
    let streams = Job::new("defrag-stream".into(), false, |bench| {
        rows_or_failure(
            "defrag-stream",
            pair("a stream", || LENGTHS.map(|bytes| stream(bench, Capture::whole(), bytes))),
        )
    });
    let incomplete = Job::new("defrag-incomplete".into(), false, |bench| {
        let run = |bytes| stream(bench, Capture::mostly_incomplete(), bytes);
        rows_or_failure(
            "defrag-incomplete",
            pair("a stream, three of four datagrams incomplete", || LENGTHS.map(run)),
        )
    });
    let files = Job::new("defrag-file".into(), false, |bench| match room(&built(&bench.root)) {
        Ok(None) => rows_or_failure(
            "defrag-file",
            pair("a file", || LENGTHS.map(|bytes| file(bench, bytes))),
        ),
        Ok(Some(why)) => {
            vec![Line { name: "defrag-file".into(), unit: "MiB", outcome: Outcome::Skipped(why) }]
        }
        Err(error) => rows_or_failure("defrag-file", Err(error)),
    });
    vec![streams, incomplete, files]
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
fn stream(bench: &Bench, capture: Capture, bytes: u64) -> anyhow::Result<Run> {
    let begin = Instant::now();
    let mut child = start(bench, Path::new("-"), Stdio::piped())?;
    let mut input = child.stdin.take().context("no pipe")?;
    let mut memory = Memory::of(&child);
    let written = capture.write(&mut input, bytes, || memory.look())?;
    drop(input);
    finish(child, begin, written, memory)
}

/// From a disk: near what was built, since `/tmp` may be memory.
fn file(bench: &Bench, bytes: u64) -> anyhow::Result<Run> {
    let dir = stage::new_dir(&built(&bench.root).join("capture"))?;
    let path = dir.join("in.pcap");
    let run = || -> anyhow::Result<Run> {
        let mut file = File::create(&path)?;
        let written = Capture::whole().write(&mut file, bytes, || ())?;
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

/// What was written: bytes, datagrams that are complete, and how many of them are to be told at least.
struct Written {
    bytes: u64,
    datagrams: u64,
    told_min: u64,
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
    let expected = written.told_min..=written.datagrams;
    ensure!(expected.contains(&came), "{came} datagrams of {}", written.datagrams);
    ensure!(memory.most_kib > 0.0, "its memory was never seen");
    let most_mib = memory.most_kib / 1024.0;
    Ok(Run { most_mib, mb_a_second: written.bytes as f64 / 1e6 / seconds })
}

/// KiB that a process has for itself, by its status.
fn anonymous(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Records of datagrams that are written any number of times, each time from another host.
struct Capture {
    header: Vec<u8>,
    records: Vec<u8>,
    /// Where packets begin in `records`.
    packets: Vec<usize>,
    /// Of the datagrams in `records`.
    complete: u64,
}

impl Capture {
    fn whole() -> Self {
        Self::with(|_| true)
    }

    fn mostly_incomplete() -> Self {
        Self::with(|id| id % COMPLETE == 0)
    }

    /// Those datagrams that are not complete have no last fragment.
    fn with(is_complete: impl Fn(u16) -> bool) -> Self {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let header = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, RAW_IP]);
        let mut capture = Self { header, records: Vec::new(), packets: Vec::new(), complete: 0 };
        for id in 0..DATAGRAMS {
            let whole = Packet::new(Family::V4, u32::from(id), vec![7; PAYLOAD]);
            let is_complete = is_complete(id);
            capture.complete += u64::from(is_complete);
            let end = if is_complete { PAYLOAD } else { PAYLOAD - EACH };
            for at in (0..end).step_by(EACH) {
                let packet = whole.fragment(at, at + EACH).emit();
                let len = u32::try_from(packet.len()).unwrap_or(0);
                let record: Vec<u8> = words(&[0, 0, len, len]);
                capture.records.extend(record);
                capture.packets.push(capture.records.len());
                capture.records.extend(packet);
            }
        }
        capture
    }

    /// A file of so many bytes and a few more; now and then `meanwhile` is called.
    fn write(
        mut self,
        to: &mut impl Write,
        bytes: u64,
        mut meanwhile: impl FnMut(),
    ) -> anyhow::Result<Written> {
        to.write_all(&self.header)?;
        let mut written = Written { bytes: 0, datagrams: 0, told_min: 0 };
        for round in 0.. {
            if written.bytes >= bytes {
                break;
            }
            self.begin(round);
            to.write_all(&self.records)?;
            written.bytes += self.records.len() as u64;
            written.datagrams += self.complete;
            meanwhile();
        }
        let all = self.complete == u64::from(DATAGRAMS);
        written.told_min = if all { written.datagrams } else { written.datagrams / 10 * 9 };
        Ok(written)
    }

    /// Gives all packets the source and the times of this round.
    fn begin(&mut self, round: u32) {
        let [a, b, c, d] = round.to_be_bytes();
        for (n, at) in (0u64..).zip(&self.packets) {
            let us = (u64::from(round) * self.packets.len() as u64 + n) * PACE_US;
            let narrow = |n: u64| u32::try_from(n).unwrap_or(0).to_le_bytes();
            let record = &mut self.records[at - RECORD_HEADER..];
            record[..4].copy_from_slice(&narrow(1_700_000_000 + us / 1_000_000));
            record[4..8].copy_from_slice(&narrow(us % 1_000_000));
            let ip = &mut record[RECORD_HEADER..];
            ip[12..16].copy_from_slice(&[10 ^ a, b, c, d]);
            ip[10..12].fill(0);
            let sum: u32 =
                ip[..20].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(0);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Capture, anonymous};

    #[test]
    fn the_memory_of_its_own_is_read() {
        assert_eq!(anonymous("Name:\tshunt\nRssAnon:\t    612 kB\nRssFile:\t 9 kB\n"), Some(612.0));
        assert_eq!(anonymous("State:\tZ (zombie)\n"), None, "of a process that has ended");
    }

    #[test]
    fn a_capture_is_as_long_as_is_asked_and_ends_with_a_datagram() {
        for (capture, datagrams) in [(Capture::whole(), 60), (Capture::mostly_incomplete(), 15)] {
            let mut out = Vec::new();
            let mut looks = 0;
            let (header, records) = (capture.header.len(), capture.records.len());
            let written = capture.write(&mut out, 3_000_000, || looks += 1).unwrap();
            assert_eq!(out.len(), header + records * 3);
            assert_eq!((written.bytes, written.datagrams), (records as u64 * 3, datagrams));
            assert_eq!(written.told_min, if datagrams == 60 { 60 } else { 9 });
            assert_eq!(looks, 3);
        }
    }

    /// Else datagrams of one round would be finished by the fragments of the next.
    #[test]
    fn rounds_come_from_other_hosts_and_later() {
        let mut capture = Capture::mostly_incomplete();
        let mut seen = Vec::new();
        for round in [0, 1, 70_000] {
            capture.begin(round);
            let at = capture.packets[9];
            let time = &capture.records[at - 16..at - 8];
            let time = [&time[..4], &time[4..]].map(|n| u32::from_le_bytes(n.try_into().unwrap()));
            let header = &capture.records[at..at + 20];
            let words = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
            assert_eq!(words.sum::<u32>() % 0xffff, 0, "checksum");
            seen.push((time, header[12..16].to_vec()));
        }
        assert!(seen.is_sorted_by(|a, b| a.0 < b.0), "{seen:?}");
        assert_ne!(seen[0].1, seen[1].1);
        assert_ne!(seen[0].1, seen[2].1);
    }
}
