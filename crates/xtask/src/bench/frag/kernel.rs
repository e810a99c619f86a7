//! Linux beside us: what reassembly costs there, and what it completes when memory ends.

use super::cells::SIZES;
use super::{Bench, Job, named, row, rows_or_failure, times};
use crate::bench::pairs::Better;
use crate::bench::report::{Line, Outcome};

/// Linux's time for a fragment against ours.
const COST: f64 = 5.0;
/// Of what memory allows, so much must be completed.
const GOODPUT: f64 = 0.5;
const FLOWS: [u32; 9] = [1, 10, 16, 32, 40, 64, 100, 300, 1000];
/// What just does not fit if datagrams are large, and what does not whatever they are.
const QUICK_FLOWS: [u32; 2] = [64, 1000];
/// Of a million fragments so many are lost.
const LOSSES: [u32; 2] = [0, 1000];
/// What Linux is offered: as many as we are, for what came before its memory was full counts for less the longer it goes.
const LIVE: &str = "4000000";

pub(crate) fn jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for size in SIZES {
        let name = format!("kernel {size} x 100");
        jobs.push(Job::new(name.clone(), true, move |bench| match obstacle() {
            Some(why) => vec![skipped(&name, why)],
            None => rows_or_failure(&name, cost(bench, size)),
        }));
    }
    for size in SIZES {
        for loss in LOSSES {
            jobs.extend(FLOWS.map(|flows| overload(size, flows, loss)));
        }
    }
    jobs
}

pub(super) fn obstacle() -> Option<String> {
    let root = nix::unistd::geteuid().is_root();
    (!root).then(|| "wants root, for a network namespace".into())
}

pub(super) fn skipped(name: &str, why: String) -> Line {
    Line { name: name.into(), unit: "ns", outcome: Outcome::Skipped(why) }
}

/// By turns.
fn cost(bench: &Bench, size: u32) -> anyhow::Result<Vec<Line>> {
    let size = size.to_string();
    let (mut kernel, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        let words = ["kernel", "--size", &size];
        kernel.extend(named(&bench.rounds(1, &words)?, "kernel")?);
        let words = ["one", "--engine", "zero-copy", "--size", &size];
        ours.extend(named(&bench.rounds(1, &words)?, "zero-copy")?);
    }
    Ok(vec![times(format!("{size} x 100: against Linux's reassembly"), &kernel, &ours, Some(COST))])
}

fn overload(size: u32, flows: u32, loss: u32) -> Job {
    let lost = if loss == 0 { "nothing" } else { "0.1 %" };
    let name = format!("overload {size} x {flows}, {lost} lost");
    let quick = QUICK_FLOWS.contains(&flows);
    Job::new(name.clone(), quick, move |bench| {
        let words = [size, flows, loss].map(|word| word.to_string());
        let [size, flows, loss] = words.each_ref().map(String::as_str);
        let words = ["--size", size, "--flows", flows, "--lost", loss];
        rows_or_failure(&name, goodput(bench, &name, &words))
    })
}

fn goodput(bench: &Bench, name: &str, words: &[&str]) -> anyhow::Result<Vec<Line>> {
    let figures = bench.fragbench(&[&["overload"], words].concat())?;
    let of = |what| named(&figures, what);
    let part = |what: &str, peer: &[f64], floor| -> anyhow::Result<Line> {
        let name = format!("{name}: {what}");
        Ok(row(name, "part", Better::Higher, peer, of("goodput")?, floor))
    };
    let bound = part("against 4 MiB / all", of("bound")?, Some(GOODPUT))?;
    let beside = match obstacle() {
        Some(why) => skipped(&format!("{name}: Linux"), why),
        None => {
            let words = [&["kernel-overload", "--fragments", LIVE], words].concat();
            part("Linux", named(&bench.fragbench(&words)?, "linux")?, None)?
        }
    };
    Ok(vec![bound, beside])
}
