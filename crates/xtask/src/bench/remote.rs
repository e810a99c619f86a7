//! `cargo xtask bench remote`: programs on two hosts, SMC-R between their engines against TCP over the
//! same cable.

mod cable;
mod memory;
mod setup;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use testkit::hosts::{self, Host, Hosts};

use super::load::Load;
use super::pairs::{Better, median};
use super::report::{Book, Line, Outcome};
use super::rows::{self, Row};
use super::stage::{self, Board, Running, Stage, Way};
use super::{Bench, LOCAL, Options, build, built, measured, warn_when_busy};

const READING: &str = "\
two network namespaces with a veth pair between them, one engine in each; peer: the same programs over
TCP through the same pair; ratio: how many times as good, the median over the pairs; spread: the worst and
the best pair; both hosts share this machine's CPUs. \"by SMC-R\": of the connections that the programs made under Shunt
(peer), how many SMC-R has carried (ours); engines leave connections that were short or streams before to TCP unless a
row says otherwise; \"one board\": no engines, but one board for both namespaces, as containers of one host may have";

/// The name under which both hosts speak SMC with each other.
const EID: &str = "SHUNT.BENCH";

/// Settings of engines that leave no connection to TCP because it gains nothing.
const EVERY_ONE: &[&str] = &["--spare-short", "off"];
/// After so long each vector has told what it has counted.
const TOLD: Duration = Duration::from_millis(300);
/// Of all connections, so many must be SMC-R's where nothing is left to TCP: a client is cut off in the middle of a
/// handshake when its time is up.
const CARRIED: f64 = 0.95;

/// Of the rate of few short connections at a time that of many: flat or rising.
const FLAT: f64 = 0.9;

/// Runs `cargo xtask bench remote`.
///
/// # Errors
///
/// When something cannot be built, measured, or is below its floor.
pub(super) fn main(options: &Options, command: &str) -> anyhow::Result<()> {
    let root = crate::workspace_root();
    let rows = chosen(options, rows::remote());
    let all_by_smc = chosen(options, rows::remote_all_by_smc());
    let one_board = chosen(options, rows::one_board());
    if options.list {
        rows.iter().chain(&all_by_smc).chain(&one_board).for_each(|row| println!("{}", row.name));
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
    let book = Book::new(options.json).within(options.limit());
    let hosts = Hosts::new()?;
    hosts.open_many()?;
    let stage = Stage::with(&built(&root), &programs)?.on(hosts);
    let mut bench = Bench::new(stage, options);
    bench.book = book;
    for (rows, settings) in [(rows, &[][..]), (all_by_smc, EVERY_ONE)] {
        if rows.is_empty() {
            continue;
        }
        let every_one = !settings.is_empty();
        let engines = Engines::start(&bench.stage, settings)?;
        let mut short = Vec::new();
        for row in &rows {
            let rate = measure(&mut bench, &engines, row, every_one);
            short.extend(rate.filter(|_| is_short(row)).map(|rate| (row, rate)));
        }
        bench.stop_servers();
        drop(engines);
        tell_growth(&mut bench, &short, (!every_one).then_some(FLAT));
    }
    if !one_board.is_empty() {
        bench.stage.share(Board::across()?);
        one_board.iter().for_each(|row| bench.measure(row));
        bench.stop_servers();
    }
    let rounds = options.rounds.unwrap_or(if options.quick { 1 } else { 3 }).max(1);
    let seconds = bench.seconds();
    for row in in_memory(options) {
        let passed_over = bench.book.passed_over(&row.name, row.unit);
        let rounds = if options.quick { rounds } else { rounds * row.times };
        let measure = || memory::measure(&bench.stage, &row, rounds, seconds);
        let lines = passed_over.map_or_else(measure, |line| vec![line]);
        lines.into_iter().for_each(|line| bench.book.tell(line));
    }
    if options.wants(memory::SPREAD) {
        let passed_over = bench.book.passed_over(memory::SPREAD, memory::MEANS);
        let lines = passed_over.map_or_else(|| memory::spread(&bench.stage), |line| vec![line]);
        lines.into_iter().for_each(|line| bench.book.tell(line));
    }
    for row in cables(options) {
        let passed_over = bench.book.passed_over(&row.name, cable::UNIT);
        let measure = || cable::measure(&bench.stage, &row, rounds, seconds);
        let line = passed_over.unwrap_or_else(measure);
        bench.book.tell(line);
    }
    for row in setups(options) {
        let passed_over = bench.book.passed_over(&row.name, setup::UNIT);
        let measure = || setup::measure(&built(&root), &row, rounds, seconds).into();
        let lines: Vec<Line> = passed_over.map_or_else(measure, |line| vec![line]);
        lines.into_iter().for_each(|line| bench.book.tell(line));
    }
    if options.record {
        let part = options.part();
        bench.book.record(&root, "remote", part.as_deref(), READING, command)?;
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

fn chosen(options: &Options, mut rows: Vec<Row>) -> Vec<Row> {
    rows.retain(|row| {
        options.wants(&row.name) && (row.quick || !options.quick || !options.only.is_empty())
    });
    rows
}

/// Measures a row, and of its connections how many SMC-R has carried: a ratio says nothing of SMC-R where programs
/// fell back to TCP. `every_one`: none may be left to TCP because it gains nothing. Answers our median.
fn measure(bench: &mut Bench<'_>, engines: &Engines, row: &Row, every_one: bool) -> Option<f64> {
    if bench.obstacle(row).is_some() {
        bench.measure(row);
        return None;
    }
    // A client that wants a number of requests is asked first how fast it is: those connections do not count.
    if let Err(error) = bench.run(row, Way::Shunt, Way::Shunt, false) {
        let outcome = Outcome::Failed(format!("{error:#}"));
        bench.tell(row.name.clone(), row.unit, outcome);
        return None;
    }
    let before = engines.carried(&bench.stage);
    let pairs = match bench.pairs(row) {
        Ok(pairs) => pairs,
        Err(error) => {
            bench.stop_servers();
            let outcome = Outcome::Failed(format!("{error:#}"));
            bench.tell(row.name.clone(), row.unit, outcome);
            return None;
        }
    };
    let carried = before.and_then(|before| Ok(engines.carried(&bench.stage)? - before));
    bench.tell_pairs(row, &pairs);
    let made: Option<f64> = pairs.iter().map(|(_, ours)| row.load.connections(ours)).sum();
    // Of others the engine leaves none to TCP.
    let is_left = is_short(row) || matches!(row.load, Load::Iperf { .. });
    let floor = (every_one || !is_left).then_some(CARRIED);
    let outcome = match (made, carried) {
        (Some(made), Ok(carried)) => measured(&[(made, carried)], Better::Higher, floor),
        (None, _) => {
            Outcome::Skipped("this client does not tell how many connections it makes".into())
        }
        (_, Err(error)) => Outcome::Failed(format!("{error:#}")),
    };
    bench.tell(format!("  {}: connections, by SMC-R", row.name), "of them", outcome);
    median(pairs.iter().map(|(_, ours)| ours.value).collect())
}

/// Whether each of its requests has a connection of its own.
const fn is_short(row: &Row) -> bool {
    matches!(row.load, Load::Wrk { close: true, .. })
}

/// Whether many short connections at a time are made as fast as few: each row against the first.
fn tell_growth(bench: &mut Bench<'_>, short: &[(&Row, f64)], floor: Option<f64>) {
    let Some(((first, few), others)) = short.split_first() else { return };
    for (row, many) in others {
        let outcome = measured(&[(*few, *many)], Better::Higher, floor);
        bench.tell(format!("  {}, over {}", row.name, first.name), row.unit, outcome);
    }
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

    /// What each engine says of itself, in the order server, client.
    ///
    /// # Errors
    ///
    /// When one does not answer.
    fn status(&self, stage: &Stage) -> anyhow::Result<[serde_json::Value; 2]> {
        let hosts = stage.hosts().context("there are no hosts")?;
        let ask = |host: &Host| -> anyhow::Result<serde_json::Value> {
            let mut words = host.prefix();
            words.push(stage.program("shunt").into());
            words.extend(["engine", "status", "--json"].map(OsString::from));
            let dir = stage.new_dir()?;
            let said = Running::start(&words, &dir, &[])?.finish(Duration::from_secs(10))?;
            stage::remove_dir(&dir);
            Ok(serde_json::from_str(&said)?)
        };
        Ok([ask(&hosts.server)?, ask(&hosts.client)?])
    }

    /// How many connections have gone by SMC-R until now.
    fn carried(&self, stage: &Stage) -> anyhow::Result<f64> {
        // A vector that is busy has told what it counted a moment ago.
        std::thread::sleep(TOLD);
        let of_server = &self.status(stage)?[0];
        let vectors = of_server["vectors"].as_array().context("no vectors")?;
        let counts = vectors.iter().map(|vector| vector["connections_total"].as_f64());
        counts.sum::<Option<f64>>().context("no connections_total")
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
