//! `cargo xtask bench`: Shunt and its peers in turn, ratios and floors.
//!
//! The machine's speed drifts by more than many differences that matter. So each figure of ours is
//! taken right after one of the peer's, the ratio is that of each such pair, and a row's ratio is
//! the median over its pairs.

pub(crate) mod costs;
pub(crate) mod frag;
pub(crate) mod load;
pub(crate) mod pairs;
pub(crate) mod remote;
pub(crate) mod report;
pub(crate) mod rows;
pub(crate) mod server;
pub(crate) mod smb;
pub(crate) mod stage;

use std::collections::HashMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, Parser, Subcommand};

use costs::{Tracer, cpu_per_request};
use load::{Figure, Load, Run};
use pairs::{Better, Pairs};
use report::{Book, Line, Outcome};
use rows::{Against, IDLE, Row};
use server::{Kind, Server, patience};
use stage::{Cpus, End, Running, Stage, Way};

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask bench",
    about = "Measures in pairs against what people have today"
)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Programs on this host: `shunt run` against the kernel's TCP
    Local(Options),
    /// Programs on two hosts: SMC-R between engines against the kernel's TCP (wants root)
    Remote(Options),
    /// Fragments put together: our engine against others, in memory and under overload
    Frag(frag::FragOptions),
    /// Files served: `shunt serve` against Samba's server (wants root)
    Smb(smb::SmbOptions),
}

#[derive(Args, Debug, Default)]
pub(crate) struct Options {
    /// Fewer rows and one round: under three minutes; rows for which no time is left are named and skipped
    #[arg(long)]
    quick: bool,
    /// One line of JSON for each row
    #[arg(long)]
    json: bool,
    /// Only rows whose name contains this (may be given more than once)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Keep the table in bench/record; of some rows only, in a file with their name
    #[arg(long)]
    record: bool,
    /// Pairs for each row [3; with --quick 1]; three or nine times as many where the difference is small
    #[arg(long)]
    rounds: Option<u32>,
    /// Length of one measurement [2; with --quick 1]
    #[arg(long)]
    seconds: Option<f64>,
    /// Measure what was built before
    #[arg(long)]
    no_build: bool,
    /// Name the rows and stop
    #[arg(long)]
    list: bool,
    /// First bring what peers need and is not here (as root)
    #[arg(long)]
    fetch: bool,
}

/// What `--quick` promises is three minutes; the rest is for programs to start and to end in, on a busy machine.
const QUICK: Duration = Duration::from_secs(170);
/// How many times as many pairs show a difference that is smaller than what one pair can show.
const CLOSE_CALL_ROUNDS: u32 = 3;
/// And one of a hundredth or two, which is what peers without Shunt may cost.
const ONE_SIDED_ROUNDS: u32 = 9;

/// Runs `cargo xtask bench`.
///
/// # Errors
///
/// When something cannot be built, measured, or is below its floor.
pub(crate) fn main(args: &[String]) -> anyhow::Result<()> {
    let words = ["cargo xtask bench"].into_iter().chain(args.iter().map(String::as_str));
    let command = format!("cargo xtask bench {}", args.join(" "));
    match Cli::parse_from(words).what {
        What::Local(options) => local(&options, &command),
        What::Remote(options) => remote::main(&options, &command),
        What::Frag(options) => frag::main(&options, &command),
        What::Smb(options) => smb::main(&options, &command),
    }
}

const LOCAL_READING: &str = "\
peer: the same programs over TCP, or what the row names; ratio: how many times as good,
the median over the pairs; spread: the worst and the best pair. System calls are those of a whole run of a client,
beginning and end included, and all that the program asks for beside its connections (nginx opens and reads a file
for each request, PostgreSQL sets timers); two ends that are both awake make none for a connection";

fn local(options: &Options, command: &str) -> anyhow::Result<()> {
    let root = crate::workspace_root();
    let rows = chosen(options);
    if options.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        IDLE.iter().for_each(|idle| println!("{}", idle_name(idle.connections)));
        return Ok(());
    }
    if !options.no_build {
        build(&root, LOCAL)?;
    }
    stage::clean_up_when_interrupted()?;
    warn_when_busy();
    let book = Book::new(options.json).within(options.limit());
    let mut bench = Bench::new(Stage::new(&built(&root))?, options);
    bench.book = book;
    rows.iter().for_each(|row| bench.measure(row));
    bench.measure_idle();
    if options.record {
        let part = options.part();
        bench.book.record(&root, "local", part.as_deref(), LOCAL_READING, command)?;
    }
    bench.book.verdict()
}

fn chosen(options: &Options) -> Vec<Row> {
    let mut rows = rows::all();
    rows.retain(|row| {
        options.wants(&row.name) && (row.quick || !options.quick || !options.only.is_empty())
    });
    rows
}

fn idle_name(connections: u32) -> String {
    format!("{connections} idle connections")
}

impl Options {
    /// One round of a second for each row.
    pub(crate) fn brief() -> Self {
        Self { quick: true, ..Self::default() }
    }

    /// How long all of it may take, once everything is built.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.quick.then_some(QUICK)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }

    /// What was asked for, if not every row.
    pub(crate) fn part(&self) -> Option<String> {
        let quick = self.quick.then_some("quick");
        let words: Vec<&str> = self.only.iter().map(String::as_str).chain(quick).collect();
        (!words.is_empty()).then(|| words.join(" "))
    }

    fn rounds(&self, row: &Row) -> u32 {
        let rounds = self.rounds.unwrap_or(if self.quick { 1 } else { 3 }).max(1);
        if self.quick {
            rounds
        } else if row.is_one_sided() {
            rounds * ONE_SIDED_ROUNDS
        } else if row.is_close_call() {
            rounds * CLOSE_CALL_ROUNDS
        } else {
            rounds
        }
    }
}

/// What a measurement of programs on this host needs built.
pub(crate) const LOCAL: &[&str] = &["shunt-cli", "shunt-preload", "shunt-testkit"];

/// Builds what is measured, as a user would have it.
///
/// # Errors
///
/// When it does not build.
pub(crate) fn build(root: &Path, packages: &[&str]) -> anyhow::Result<()> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release"])
        .args(packages.iter().flat_map(|package| ["-p", package]))
        .current_dir(root)
        .status()
        .context("cannot start cargo")?;
    ensure!(status.success(), "the release build failed");
    Ok(())
}

/// Where the release build is.
pub(crate) fn built(root: &Path) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    root.join(target).join("release")
}

/// How many there are to run on.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Says so when others use the CPUs.
pub(crate) fn warn_when_busy() {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    if load > 0.7 {
        eprintln!(
            "warning: this machine is busy (load {load}): figures will be low and ratios unsteady"
        );
    }
}

/// A series of measurements.
pub(crate) struct Bench<'a> {
    stage: Stage,
    options: &'a Options,
    servers: Vec<Server>,
    /// Rates that clients had which want a number of requests, for the next time.
    rates: HashMap<(String, bool), f64>,
    book: Book,
}

impl<'a> Bench<'a> {
    /// Nothing measured yet.
    pub(crate) fn new(stage: Stage, options: &'a Options) -> Self {
        Self { stage, options, servers: Vec::new(), rates: HashMap::new(), book: Book::silent() }
    }

    fn seconds(&self) -> f64 {
        self.options.seconds.unwrap_or(if self.options.quick { 1.0 } else { 2.0 })
    }

    fn tell(&mut self, name: String, unit: &'static str, outcome: Outcome) {
        self.book.tell(Line { name, unit, outcome });
    }

    /// Measures a row and tells what came of it.
    fn measure(&mut self, row: &Row) {
        if let Some(why) = self.obstacle(row) {
            return self.tell(row.name.clone(), row.unit, Outcome::Skipped(why));
        }
        match self.pairs(row) {
            Ok(pairs) => self.tell_pairs(row, &pairs),
            Err(error) => {
                // Whatever state they are in, the next row shall not suffer from it.
                self.servers.clear();
                self.tell(row.name.clone(), row.unit, Outcome::Failed(format!("{error:#}")));
            }
        }
    }

    fn obstacle(&self, row: &Row) -> Option<String> {
        if row.cpus == Cpus::Two && cpus() < 2 {
            return Some("wants two CPUs".into());
        }
        let no_client = || row.load.absent();
        row.server
            .absent()
            .or_else(no_client)
            .or_else(|| row.server.refused())
            .or_else(|| self.book.too_late())
    }

    /// Measures a row and returns its pairs.
    ///
    /// # Errors
    ///
    /// When a server cannot start or a client fails.
    pub(crate) fn compare(&mut self, row: &Row) -> anyhow::Result<Pairs> {
        let pairs = self.pairs(row)?;
        let values: Vec<(f64, f64)> =
            pairs.iter().map(|(peer, ours)| (peer.value, ours.value)).collect();
        Pairs::of(&values, row.better).context("nothing was measured")
    }

    /// Forgets servers that may be in any state.
    pub(crate) fn stop_servers(&mut self) {
        self.servers.clear();
    }

    /// Pairs of (peer, ours). Who is first changes from pair to pair: what the machine does to whoever comes second
    /// (closed connections that the kernel still holds, a CPU that grows hot) hits both alike.
    fn pairs(&mut self, row: &Row) -> anyhow::Result<Vec<(Figure, Figure)>> {
        let mut pairs = Vec::new();
        for round in 0..self.options.rounds(row) {
            let early = (round % 2 == 1).then(|| self.ours(row)).transpose()?;
            let peer = self.peer(row).context("the peer")?;
            let ours = early.map_or_else(|| self.ours(row), Ok)?;
            pairs.push((peer, ours));
        }
        Ok(pairs)
    }

    fn ours(&mut self, row: &Row) -> anyhow::Result<Figure> {
        let (server, client) = row.against.ours();
        self.figure(row, server, client, false).context("under Shunt")
    }

    fn peer(&mut self, row: &Row) -> anyhow::Result<Figure> {
        match row.against {
            Against::LineEachWay => cache_line(&self.stage, "each_way_ns"),
            Against::OneLine => cache_line(&self.stage, "round_trip_ns"),
            against => self.figure(row, Way::Tcp, Way::Tcp, against == Against::UnixSocket),
        }
    }

    fn figure(
        &mut self,
        row: &Row,
        server: Way,
        client: Way,
        unix_socket: bool,
    ) -> anyhow::Result<Figure> {
        let run = self.run(row, server, client, unix_socket)?;
        let at = self.server(row.server, server, row.cpus)?;
        row.load.run(&self.stage, &mut self.servers[at], run)
    }

    /// How to run the client. One that wants a number of requests is asked first how fast it is.
    fn run(
        &mut self,
        row: &Row,
        server: Way,
        client: Way,
        unix_socket: bool,
    ) -> anyhow::Result<Run<'static>> {
        let seconds = self.seconds();
        let mut run = Run { way: client, seconds, expected_rate: 0.0, tracer: &[], unix_socket };
        if let Load::Redis { .. } | Load::Siege { .. } = row.load {
            let key = (row.name.clone(), server == Way::Shunt);
            run.expected_rate = if let Some(rate) = self.rates.get(&key) {
                *rate
            } else {
                let taste = Run { expected_rate: 4000.0 / seconds, ..run };
                let at = self.server(row.server, server, row.cpus)?;
                let rate = row.load.run(&self.stage, &mut self.servers[at], taste)?.value;
                self.rates.insert(key, rate);
                rate
            };
        }
        Ok(run)
    }

    /// Where in `servers` this one is; it is started if it does not run, and others are ended.
    fn server(&mut self, kind: Kind, way: Way, cpus: Cpus) -> anyhow::Result<usize> {
        self.servers.retain(|server| server.kind == kind && server.cpus == cpus);
        if let Some(at) = self.servers.iter().position(|server| server.way == way) {
            return Ok(at);
        }
        self.servers.push(Server::start(&self.stage, kind, way, cpus)?);
        Ok(self.servers.len() - 1)
    }

    fn tell_pairs(&mut self, row: &Row, pairs: &[(Figure, Figure)]) {
        let values: Vec<(f64, f64)> =
            pairs.iter().map(|(peer, ours)| (peer.value, ours.value)).collect();
        let outcome = measured(&values, row.better, at_least(row.floor));
        self.tell(row.name.clone(), row.unit, outcome);
        if !row.costs {
            return;
        }
        let cpu = pairs
            .iter()
            .filter_map(|(peer, ours)| Some((cpu_per_request(peer)?, cpu_per_request(ours)?)));
        let cpu: Vec<(f64, f64)> = cpu.collect();
        self.tell(
            format!("  {}: CPU per request", row.name),
            "us",
            measured(&cpu, Better::Lower, None),
        );
        if !self.options.quick {
            self.tell_calls(row, End::Server, "server");
            self.tell_calls(row, End::Client, "client");
        }
    }

    fn tell_calls(&mut self, row: &Row, end: End, whose: &str) {
        let user = if end == End::Client { row.load.user() } else { Vec::new() };
        let outcome = match Tracer::here(&user) {
            Err(why) => Outcome::Skipped(why),
            Ok(tracer) => match self.calls(row, tracer, end) {
                // Calls of a start-up are always some: never 0.
                Ok(pair) => measured(&[pair], Better::Lower, at_least(row.calls_floor)),
                Err(error) => Outcome::Failed(format!("{error:#}")),
            },
        };
        self.tell(format!("  {}: system calls per request, {whose}", row.name), "calls", outcome);
    }

    fn calls(&mut self, row: &Row, tracer: Tracer, end: End) -> anyhow::Result<(f64, f64)> {
        let mut count = |(server, client)| {
            let run = self.run(row, server, client, false)?;
            let at = self.server(row.server, server, row.cpus)?;
            tracer.calls_per_request(&self.stage, &mut self.servers[at], row.load, run, end)
        };
        Ok((count((Way::Tcp, Way::Tcp))?, count(row.against.ours())?))
    }

    fn measure_idle(&mut self) {
        self.servers.clear();
        for idle in IDLE {
            let name = idle_name(idle.connections);
            if !self.options.wants(&name)
                || (self.options.quick && !idle.quick && self.options.only.is_empty())
            {
                continue;
            }
            if let Some(line) = self.book.passed_over(&name, "B") {
                self.book.tell(line);
                continue;
            }
            match costs::idle(&self.stage, idle.connections, self.seconds()) {
                Ok(findings) => {
                    for (name, unit, pairs, floor) in findings {
                        self.tell(name, unit, Outcome::Measured { pairs, floor });
                    }
                }
                Err(error) => self.tell(name, "B", Outcome::Failed(format!("{error:#}"))),
            }
        }
    }
}

/// A row's floor, if it has one.
fn at_least(floor: f64) -> Option<f64> {
    (floor > 0.0).then_some(floor)
}

fn measured(pairs: &[(f64, f64)], better: Better, floor: Option<f64>) -> Outcome {
    Pairs::of(pairs, better).map_or_else(
        || Outcome::Failed("the client did not say how many requests it made".into()),
        |pairs| Outcome::Measured { pairs, floor },
    )
}

/// A bare round trip between the two CPUs.
fn cache_line(stage: &Stage, which: &str) -> anyhow::Result<Figure> {
    let dir = stage.new_dir()?;
    let command = [stage.program("cacheline").into()];
    let output = Running::start(&command, &dir, &[])?.finish(patience(1.0))?;
    stage::remove_dir(&dir);
    let none = Duration::ZERO;
    Ok(Figure {
        value: load::named(&output, which)?,
        requests: 0.0,
        client_cpu: none,
        server_cpu: none,
    })
}
