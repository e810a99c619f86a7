//! `cargo xtask bench frag`: fragments put together by our engine and by others, on one trace.
//!
//! All that is measured in memory is nanoseconds per fragment. `fragbench` runs the engines that are
//! written in Rust in turn, some passes each, and prints a figure for each turn; a C program does the same
//! for DPDK. A pair is two figures of the same turn.

mod bounds;
mod captures;
mod cells;
mod dpdk;
mod kernel;
mod live;
mod threads;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::pairs::{Better, Pairs};
use super::report::{Book, Line, Outcome};
use super::stage::{self, Running, Stage};
use super::{Options, build, built, warn_when_busy};
use cells::Cell;

const READING: &str = "\
peer and ours: nanoseconds per fragment, or what the row names; ratio: how many times as good, the median
over the pairs; spread: the worst and the best pair. Times are CPU times, of two threads that of the slower
one, less what it waits for the other to catch up; where threads wait for locks they are times of a clock.
What comes to a thread lies in a ring of its own. Before each pass of one thread all packets are written anew.
Engines have their turns there and back. Frames are 2368 bytes apart, as those of DPDK's pools are.
Headers of the next packets are prefetched for our engine (not under locks), for the headers alone, which are
its bound, and for DPDK as in its own example; by etherparse and the memcpy nothing is. What our engine says will be
copied soon (`Sink::soon`, `Datagram::write_ahead`) is prefetched into the second cache.
Frames are in large pages, as `shunt defrag` has its own, and so is what whole datagrams are written to: a place for
each flow, for ours and for the memcpy; etherparse writes to memory of its own. DPDK runs without huge pages, and we
beside it: there all is on 4 KiB. Its figure has the return of packets to their pool, if not said otherwise, and Linux's
the look-up of a UDP socket and delivery there; ours has neither.
Bursts: `push_burst`, 32 packets at once, against `push` of each; headers are prefetched for both.
Bound: what reads each header takes as long as the headers alone, and what writes a datagram out when it is
complete, and prefetches nothing of it, as long as one copy besides (of 24 lines of a packet the sum has one twice). Where
the ratio of a bound is below a floor, that floor was out of reach in that run for who prefetches nothing. Of two
threads that share nothing: arithmetic in registers says how many cores the machine has, a memcpy and the headers what
its caches and memory let two have.
Overload: the part of what is offered that is completed, with 4 MiB of memory and 1.6 million fragments a
second in computed time; memory holds 4 MiB / all at best; Linux is live, offered as many, as fast as it takes.
Longest call: of each 64 calls the longest, of the rounds the least of these, of all blocks the most; what
another program takes of the CPU hits other calls each time. Without that: least over the rounds.
live: `shunt defrag` between two namespaces; in reassembly: what a worker takes beyond what it takes to count
what its ring brings. With two workers two senders, who share the CPUs with them: what a worker takes of one, a fifth at
most, they have not for sending, so there the floor is of what they send for each second of CPU that they get.
defrag of a stream, of a file: peer is 1 GB and ours 10 GB through `shunt defrag` from a pipe, or from a file
on a disk, to /dev/null; the most memory of its own that each was seen to have. All datagrams were told. Where three
of four are incomplete, from ever new hosts, the 64 MiB for what waits are always full; of the others nine of ten were
told at least.";

/// What `cargo xtask bench frag` is told.
#[derive(Args, Debug)]
pub(crate) struct FragOptions {
    #[command(flatten)]
    options: Options,
    /// Only the rows of `shunt defrag` on an interface (wants root)
    #[arg(long)]
    live: bool,
}

/// Longer than any of them takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// Gives the rows of a job.
type Measurement = Box<dyn Fn(&Bench) -> Vec<Line>>;

/// Something to measure: a name for people and `--only`, and what gives its rows.
pub(crate) struct Job {
    name: String,
    quick: bool,
    run: Measurement,
}

impl Job {
    pub(crate) fn new(
        name: String,
        quick: bool,
        run: impl Fn(&Bench) -> Vec<Line> + 'static,
    ) -> Self {
        Self { name, quick, run: Box::new(run) }
    }
}

fn jobs() -> Vec<Job> {
    let mut jobs: Vec<Job> = Cell::all().into_iter().map(Cell::job).collect();
    jobs.extend(cells::orders_and_flows());
    jobs.extend(cells::bursts());
    jobs.extend(threads::jobs());
    jobs.extend(kernel::jobs());
    jobs.extend(bounds::jobs());
    jobs.extend(captures::jobs());
    jobs.extend(live::jobs());
    jobs
}

/// Where measurements run, and with what.
pub(crate) struct Bench {
    stage: Stage,
    root: PathBuf,
    rounds: u32,
    passes: u32,
    /// What takes long is left out, or done less often.
    quick: bool,
}

/// Runs `cargo xtask bench frag`.
///
/// # Errors
///
/// When something cannot be built, measured, or is below its floor.
pub(crate) fn main(frag: &FragOptions, command: &str) -> anyhow::Result<()> {
    let options = &frag.options;
    let root = crate::workspace_root();
    let all = options.only.is_empty() && !frag.live;
    let live = |job: &Job| job.name.starts_with(live::NAME) || !frag.live;
    let wanted =
        |job: &Job| live(job) && options.wants(&job.name) && (job.quick || !options.quick || !all);
    let jobs: Vec<Job> = jobs().into_iter().filter(wanted).collect();
    if options.list {
        jobs.iter().for_each(|job| println!("{}", job.name));
        return Ok(());
    }
    if options.fetch {
        dpdk::fetch(&root)?;
    }
    if !options.no_build {
        build(&root, &["shunt-bench", "shunt-cli", "shunt-testkit"])?;
    }
    stage::clean_up_when_interrupted()?;
    warn_when_busy();
    let mut book = Book::new(options.json).within(options.limit());
    let bench = Bench {
        stage: Stage::with(&built(&root), &["fragbench", "shunt"])?,
        root,
        rounds: options.rounds.unwrap_or(if options.quick { 2 } else { 3 }).max(1),
        passes: if options.quick { 1 } else { 7 },
        quick: options.quick,
    };
    for job in &jobs {
        let passed_over = book.passed_over(&job.name, "ns");
        let lines = passed_over.map_or_else(|| (job.run)(&bench), |line| vec![line]);
        lines.into_iter().for_each(|line| book.tell(line));
    }
    if options.record {
        let live = frag.live.then(|| "live".to_owned());
        let part = live.into_iter().chain(options.part()).reduce(|live, rest| live + " " + &rest);
        book.record(&bench.root, "frag", part.as_deref(), READING, command)?;
    }
    book.verdict()
}

/// Figures by name, one for each turn.
pub(crate) type Figures = HashMap<String, Vec<f64>>;

impl Bench {
    /// Runs `fragbench` and reads what it prints.
    ///
    /// # Errors
    ///
    /// When it fails.
    pub(crate) fn fragbench(&self, words: &[&str]) -> anyhow::Result<Figures> {
        let mut command = vec![OsString::from(self.stage.program("fragbench"))];
        command.extend(words.iter().map(OsString::from));
        self.run(&command)
    }

    /// As [`Self::fragbench`], with rounds and passes.
    ///
    /// # Errors
    ///
    /// When it fails.
    pub(crate) fn rounds(&self, rounds: u32, words: &[&str]) -> anyhow::Result<Figures> {
        let (rounds, passes) = (rounds.to_string(), self.passes.to_string());
        let last = ["--rounds", &rounds, "--passes", &passes];
        self.fragbench(&[words, &last].concat())
    }

    fn run(&self, command: &[OsString]) -> anyhow::Result<Figures> {
        let dir = self.stage.new_dir()?;
        let output = Running::start(command, &dir, &[])?.finish(PATIENCE);
        stage::remove_dir(&dir);
        Ok(figures(&output?))
    }
}

/// Reads lines of `name=1.5,2.5`.
fn figures(output: &str) -> Figures {
    let line = |line: &str| {
        let (name, figures) = line.split_once('=')?;
        let figures = figures.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
        Some((name.to_owned(), figures))
    };
    output.lines().filter_map(line).collect()
}

/// The figures of that name.
///
/// # Errors
///
/// When there are none.
pub(crate) fn named<'f>(figures: &'f Figures, name: &str) -> anyhow::Result<&'f [f64]> {
    figures.get(name).map(Vec::as_slice).with_context(|| format!("no figure {name}"))
}

/// A row of two columns of times.
pub(crate) fn times(name: String, peer: &[f64], ours: &[f64], floor: Option<f64>) -> Line {
    row(name, "ns", Better::Lower, peer, ours, floor)
}

/// A row of two columns.
pub(crate) fn row(
    name: String,
    unit: &'static str,
    better: Better,
    peer: &[f64],
    ours: &[f64],
    floor: Option<f64>,
) -> Line {
    let pairs: Vec<(f64, f64)> = peer.iter().copied().zip(ours.iter().copied()).collect();
    let outcome = Pairs::of(&pairs, better).map_or_else(
        || Outcome::Failed("nothing was measured".into()),
        |pairs| Outcome::Measured { pairs, floor },
    );
    Line { name, unit, outcome }
}

/// Rows, or what went wrong in place of them.
pub(crate) fn rows_or_failure(name: &str, rows: anyhow::Result<Vec<Line>>) -> Vec<Line> {
    let failed = |error: anyhow::Error| Outcome::Failed(format!("{error:#}"));
    rows.unwrap_or_else(|error| {
        vec![Line { name: name.to_owned(), unit: "ns", outcome: failed(error) }]
    })
}

#[cfg(test)]
mod tests {
    use super::{figures, named};

    #[test]
    fn figures_are_read_by_name() {
        let figures = figures("a=1.5,2\nno figure\nb.2=3\n");
        assert_eq!(named(&figures, "a").unwrap(), [1.5, 2.0]);
        assert_eq!(named(&figures, "b.2").unwrap(), [3.0]);
        assert!(named(&figures, "c").is_err());
    }
}
