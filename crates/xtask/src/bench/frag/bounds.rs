//! What must not be exceeded, whatever comes: the longest call, the price of a hostile fragment, memory.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use testkit::fragments::{Family, Packet};

use super::{Bench, Job, named, row, rows_or_failure, times};
use crate::bench::pairs::Better;
use crate::bench::report::Line;

/// No call may take longer, nanoseconds.
const STALL_NS: f64 = 50_000.0;
/// A fragment that is aimed at the table may cost so many times the usual.
const AIMED: f64 = 2.0;
/// One of the smallest fragments may cost so much, nanoseconds.
const SMALLEST_NS: f64 = 200.0;
/// Memory for ten times as long a stream, against that for one.
const CONSTANT: f64 = 1.0 / 1.05;

pub(crate) fn jobs() -> Vec<Job> {
    let job = |name: &'static str, quick, run: fn(&Bench) -> anyhow::Result<Vec<Line>>| {
        Job::new(name.into(), quick, move |bench| rows_or_failure(name, run(bench)))
    };
    vec![
        job("stall", true, stall),
        job("flood", true, flood),
        job("defrag-file", false, defrag_file),
    ]
}

fn stall(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let rounds = (bench.rounds + 2).to_string();
    let figures = bench.fragbench(&["stall", "--rounds", &rounds])?;
    let mut rows = Vec::new();
    for table in ["shard", "shared"] {
        for (step, what) in [
            ("grow", "1 K to 1 M in progress"),
            ("rekey", "change of key at 1 M"),
            ("shrink", "1 M to 1 K in progress"),
        ] {
            let mut row = |suffix: &str, how: &str, floor| -> anyhow::Result<()> {
                let ours = named(&figures, &format!("{table}-{step}{suffix}"))?;
                let name = format!("{table}, {what}: {how}");
                rows.push(times(name, &[STALL_NS], ours, floor));
                Ok(())
            };
            row("", "longest call, 50 us allowed", Some(1.0))?;
            row("-longest", "longest call, with what others take", None)?;
            row("-p99.99", "one of ten thousand calls takes longer", None)?;
        }
    }
    Ok(rows)
}

fn flood(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let figures = bench.rounds(bench.rounds, &["flood"])?;
    let of = |name| named(&figures, name);
    let mut rows = Vec::new();
    for (name, what) in [
        ("keys-crc", "keys that collide in any CRC32C"),
        ("keys-known", "keys aimed at a secret that leaked"),
    ] {
        let name_of_row = format!("flood: {what}, against any keys");
        rows.push(times(name_of_row, of("keys-any")?, of(name)?, Some(1.0 / AIMED)));
    }
    for (what, sizes) in [("smallest", "8 bytes"), ("uneven", "8 and 16 bytes in turn")] {
        for most in ["1024", "8192"] {
            let ours = named(&figures, &format!("{what}-{most}"))?;
            let allowed = vec![SMALLEST_NS; ours.len()];
            let name =
                format!("flood: fragments of {sizes}, shuffled, at most {most}: 200 ns allowed");
            rows.push(times(name, &allowed, ours, Some(1.0)));
        }
    }
    Ok(rows)
}

/// How a run of `shunt defrag` went.
struct Stream {
    most_mib: f64,
    mb_a_second: f64,
}

/// A capture of 1 GB and one of 10 GB, as they are made.
fn defrag_file(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    let [short, long] = [1, 10].map(|gigabytes| stream(bench, gigabytes * 1_000_000_000));
    let (short, long) = (short?, long?);
    let name = "defrag of a stream, 10 GB against 1 GB";
    let memory = (&[short.most_mib], &[long.most_mib]);
    let speed = (&[short.mb_a_second], &[long.mb_a_second]);
    Ok(vec![
        row(format!("{name}: memory"), "MiB", Better::Lower, memory.0, memory.1, Some(CONSTANT)),
        row(format!("{name}: speed"), "MB/s", Better::Higher, speed.0, speed.1, None),
    ])
}

fn stream(bench: &Bench, bytes: u64) -> anyhow::Result<Stream> {
    let mut child = Command::new(bench.stage.program("shunt"))
        .args(["defrag", "-", "/dev/null"])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let status_path = format!("/proc/{}/status", child.id());
    let mut input = child.stdin.take().context("no pipe")?;
    let begin = Instant::now();
    let (header, records) = capture();
    input.write_all(&header)?;
    let mut written = 0;
    while written < bytes {
        input.write_all(&records)?;
        written += records.len() as u64;
    }
    // All but what is in the pipe was read: its memory is what it is, and was never more than it says.
    let status = std::fs::read_to_string(status_path)?;
    drop(input);
    let ended = child.wait()?;
    let took = begin.elapsed();
    ensure!(ended.success(), "`shunt defrag` ended with {ended}");
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: f64 =
        most.and_then(|most| most.split_whitespace().next()).context("no VmHWM")?.parse()?;
    Ok(Stream { most_mib: kib / 1024.0, mb_a_second: written as f64 / 1e6 / took.as_secs_f64() })
}

/// The link type of a capture of IP packets without link headers.
const RAW_IP: u32 = 101;

/// The beginning of a capture, and records of whole datagrams that may follow it any number of times.
fn capture() -> (Vec<u8>, Vec<u8>) {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let header: Vec<u8> = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, RAW_IP]);
    let mut records: Vec<u8> = Vec::new();
    for id in 0..20 {
        let whole = Packet::new(Family::V4, id, vec![7; 65_120]);
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
