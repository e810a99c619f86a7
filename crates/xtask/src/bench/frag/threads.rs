//! Two threads against one, and the steps from one lock to shards that share nothing.

use super::cells::SIZES;
use super::{Bench, Job, named, rows_or_failure, times};
use crate::bench::report::Line;

/// Rates of two threads against one.
const SEPARATE: f64 = 1.9;
const SPRAYED: f64 = 1.5;
/// Datagrams in flight where there are floors, and where there are none.
const USUAL: u32 = 100;
const OTHERS: [u32; 3] = [1, 10, 1000];

/// The steps, each against the one before: (what it is, the engine on two threads). Each writes its
/// datagrams out, until one does not.
const LADDER: [(&str, &str); 7] = [
    ("a map and a lock", "naive.2"),
    ("our table, one lock", "mutex.2"),
    ("a lock for each bucket", "buckets-one-count.2"),
    ("leased accounts", "buckets.2"),
    ("shards, fragments handed over", "sprayed.2"),
    ("shards, steered", "separate.2"),
    ("zero copy", "slices.2"),
];

/// Orders that have no floor either: (how they are called, and what the program calls them).
const ORDERS: [(&str, &str); 2] = [("reversed", "rev"), ("random", "rnd")];

const LADDER_NAME: &str = "ladder";

/// For each size.
pub(crate) fn jobs() -> Vec<Job> {
    let job = |what: &'static str, run: fn(&Bench, u32) -> anyhow::Result<Vec<Line>>| {
        SIZES.map(|size| {
            let name = format!("{what} {size} x 100");
            Job::new(name.clone(), what != LADDER_NAME, move |bench| {
                rows_or_failure(&name, run(bench, size))
            })
        })
    };
    let mut jobs: Vec<Job> =
        job("threads", |bench, size| threads(bench, size, USUAL, None)).into_iter().collect();
    for size in SIZES {
        jobs.extend(OTHERS.map(|flows| {
            let name = format!("threads {size} x {flows}");
            let run = move |bench: &Bench| threads(bench, size, flows, None);
            Job::new(name.clone(), false, move |bench| rows_or_failure(&name, run(bench)))
        }));
        jobs.extend(ORDERS.map(|order| {
            let name = format!("threads {size} x {USUAL} {}", order.0);
            let run = move |bench: &Bench| threads(bench, size, USUAL, Some(order));
            Job::new(name.clone(), false, move |bench| rows_or_failure(&name, run(bench)))
        }));
    }
    jobs.extend(job(LADDER_NAME, ladder));
    jobs
}

/// A turn of each way.
fn ways(bench: &Bench, size: u32, more: &[&str]) -> anyhow::Result<super::Figures> {
    let size = size.to_string();
    bench.rounds(bench.rounds, &[&["many", "--size", &size], more].concat())
}

/// `order`: another than theirs.
fn threads(
    bench: &Bench,
    size: u32,
    flows: u32,
    order: Option<(&str, &str)>,
) -> anyhow::Result<Vec<Line>> {
    let each = flows.to_string();
    let (called, order_words) = match order {
        Some((called, word)) => (format!(" {called}"), vec!["--order", word]),
        None => (String::new(), Vec::new()),
    };
    let words = ["separate", "sprayed", "headers", "arithmetic", "copies"];
    let words: Vec<&str> = words.into_iter().flat_map(|way| ["--way", way]).collect();
    // Threads that wait for locks take long where other programs run beside.
    let locked: &[&str] = if bench.quick { &[] } else { &["--way", "buckets"] };
    let figures =
        ways(bench, size, &[&["--flows", &each][..], &order_words, &words, locked].concat())?;
    let row = |what: &str, one, two, floor: Option<f64>| -> anyhow::Result<Line> {
        let name = format!("{size} x {flows}{called}, two threads: {what}");
        // With one datagram at a time there is nothing to share, with a thousand caches are shared.
        let floor = floor.filter(|_| flows == USUAL && order.is_none());
        Ok(times(name, named(&figures, one)?, named(&figures, two)?, floor))
    };
    let mut rows = vec![
        row("bound, arithmetic alone", "arithmetic.1", "arithmetic.2", None)?,
        row("bound, one memcpy", "copies.1", "copies.2", None)?,
        row("headers alone", "headers.1", "headers.2", None)?,
        row("a shard each, steered", "separate.1", "separate.2", Some(SEPARATE))?,
        row("a shard each, handed over", "separate.1", "sprayed.2", Some(SPRAYED))?,
    ];
    if !bench.quick {
        rows.push(row("one table, bucket locks", "buckets.1", "buckets.2", None)?);
    }
    Ok(rows)
}

fn ladder(bench: &Bench, size: u32) -> anyhow::Result<Vec<Line>> {
    let mut words = vec!["--threads", "2", "--copy"];
    for (_, way) in LADDER {
        words.extend(["--way", way.trim_end_matches(".2")]);
    }
    let figures = ways(bench, size, &words)?;
    let name = |what: &str| format!("{size} x 100, ladder: {what}");
    let mut rows = Vec::new();
    for pair in LADDER.windows(2) {
        let [(_, before), (what, way)] = pair else { continue };
        rows.push(times(name(what), named(&figures, before)?, named(&figures, way)?, None));
    }
    Ok(rows)
}
