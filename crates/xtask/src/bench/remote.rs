//! `cargo xtask bench remote`: programs on two hosts, SMC-R between their engines against TCP over the
//! same cable.

mod cable;
mod memory;
mod setup;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use testkit::hosts::{self, Host, Hosts};

use super::report::Book;
use super::rows::{self, Row};
use super::stage::{self, Running, Stage};
use super::{Bench, LOCAL, Options, build, built, warn_when_busy};

const READING: &str = "\
two network namespaces with a veth pair between them, one engine in each; peer: the same programs over
TCP through the same pair; ratio: how many times as good, the median over the pairs; spread: the worst and
the best pair; both hosts share this machine's CPUs";

/// The name under which both hosts speak SMC with each other.
const EID: &str = "SHUNT.BENCH";

/// Runs `cargo xtask bench remote`.
///
/// # Errors
///
/// When something cannot be built, measured, or is below its floor.
pub(super) fn main(options: &Options, command: &str) -> anyhow::Result<()> {
    let root = crate::workspace_root();
    let rows = chosen(options);
    if options.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        in_memory(options).iter().for_each(|row| println!("{}", row.name));
        println!("{}", memory::SPREAD);
        cables(options).iter().for_each(|row| println!("{}", row.name));
        setups(options).iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    hosts::possible()?;
    if !options.no_build {
        build(&root, LOCAL)?;
        build(&root, &["shunt-bench"])?;
    }
    stage::clean_up_when_interrupted()?;
    warn_when_busy();
    let programs: Vec<&str> = stage::LOCAL.iter().copied().chain(["rocebench"]).collect();
    let stage = Stage::with(&built(&root), &programs)?.on(Hosts::new()?);
    let mut bench = Bench::new(stage, options);
    bench.book = Book::new(options.json).within(options.limit());
    if !rows.is_empty() {
        let engines = Engines::start(&bench.stage, &[])?;
        rows.iter().for_each(|row| bench.measure(row));
        bench.stop_servers();
        drop(engines);
    }
    let (rounds, seconds) = (options.rounds.unwrap_or(3).max(1), bench.seconds());
    for row in in_memory(options) {
        let line = memory::measure(&bench.stage, &row, rounds, seconds);
        bench.book.tell(line);
    }
    if options.wants(memory::SPREAD) {
        let line = memory::spread(&bench.stage);
        bench.book.tell(line);
    }
    for row in cables(options) {
        let line = cable::measure(&bench.stage, &row, rounds, seconds);
        bench.book.tell(line);
    }
    for row in setups(options) {
        let lines = setup::measure(&built(&root), &row, rounds, seconds);
        lines.into_iter().for_each(|line| bench.book.tell(line));
    }
    if options.record {
        let path = bench.book.record(&root, "remote", READING, command)?;
        eprintln!("recorded in {}", path.display());
    }
    bench.book.verdict()
}

fn in_memory(options: &Options) -> Vec<memory::Row> {
    let mut rows = memory::rows();
    rows.retain(|row| options.wants(&row.name));
    rows
}

fn cables(options: &Options) -> Vec<cable::Row> {
    let mut rows = cable::rows();
    rows.retain(|row| options.wants(&row.name));
    rows
}

fn setups(options: &Options) -> Vec<setup::Row> {
    let mut rows = setup::rows();
    rows.retain(|row| options.wants(&row.name));
    rows
}

fn chosen(options: &Options) -> Vec<Row> {
    let mut rows = rows::remote();
    rows.retain(|row| {
        options.wants(&row.name) && (row.quick || !options.quick || !options.only.is_empty())
    });
    rows
}

/// An engine on each host, which take their connections to the other.
struct Engines {
    running: [Running; 2],
}

impl Engines {
    fn start(stage: &Stage, settings: &[&str]) -> anyhow::Result<Self> {
        let hosts = stage.hosts().context("there are no hosts")?;
        let running =
            [start(stage, &hosts.server, settings)?, start(stage, &hosts.client, settings)?];
        Ok(Self { running })
    }
}

fn start(stage: &Stage, host: &Host, settings: &[&str]) -> anyhow::Result<Running> {
    let group = host.group().context("no hierarchy of control groups of version 2 is mounted")?;
    let mut words = host.prefix();
    words.extend([stage.program("shunt").into(), "engine".into()]);
    let address = host.address().to_string();
    words.extend(["--address", &address, "--eid", EID, "--cgroup"].map(OsString::from));
    words.push(group.into());
    words.extend(settings.iter().map(OsString::from));
    let dir = stage.new_dir()?;
    let mut running = Running::start(&words, &dir, &[])?;
    let begin = Instant::now();
    while !running.output().contains("ready") {
        if let Some(fall) = running.fell() {
            anyhow::bail!("the engine fell: {fall}");
        }
        ensure!(
            begin.elapsed() < Duration::from_secs(10),
            "the engine does not say that it is ready"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(running)
}
