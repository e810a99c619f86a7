//! What must not be exceeded, whatever comes: the longest call, the price of a hostile fragment.

use super::{Bench, Job, named, rows_or_failure, times};
use crate::bench::report::Line;

/// No call may take longer, nanoseconds.
const STALL_NS: f64 = 50_000.0;
/// A fragment that is aimed at the table may cost so many times the usual.
const AIMED: f64 = 2.0;
/// One of the smallest fragments may cost so much, nanoseconds.
const SMALLEST_NS: f64 = 200.0;

pub(crate) fn jobs() -> Vec<Job> {
    let job = |name: &'static str, quick, run: fn(&Bench) -> anyhow::Result<Vec<Line>>| {
        Job::new(name.into(), quick, move |bench| rows_or_failure(name, run(bench)))
    };
    // A stall needs many rounds, each of a million datagrams: of one alone what counts is what else ran.
    vec![job("stall", false, stall), job("flood", true, flood)]
}

fn stall(bench: &Bench) -> anyhow::Result<Vec<Line>> {
    // Of more rounds than others have, since one call in a million counts.
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
    for (policy, what) in [
        ("strict", "given up"),
        ("first", "the first believed"),
        ("last", "the last believed"),
        ("linux", "as Linux did"),
    ] {
        for most in ["1024", "8192"] {
            let ours = named(&figures, &format!("overlap-{policy}-{most}"))?;
            let allowed = vec![SMALLEST_NS; ours.len()];
            let name = format!(
                "flood: fragments of 16 bytes that overlap, {what}, at most {most}: 200 ns allowed"
            );
            rows.push(times(name, &allowed, ours, Some(1.0)));
        }
    }
    Ok(rows)
}
