//! `cargo xtask conformance`: CPython's own socket tests, plain and under Shunt, compared test by
//! test. What differs must be listed in `docs/conformance.md` with its reason.

mod record;
mod suite;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::Parser;

use crate::bench::stage::{self, Stage};
use crate::{bench, install};
use suite::{Mode, Outcomes, Python, Ran};

/// One of CPython's test modules.
#[derive(Clone, Copy, Debug)]
struct Suite {
    name: &'static str,
    /// Whether its tests connect to one another by TCP, so that under Shunt some must use shared memory.
    connects: bool,
    /// Whether an end that accepts receives something, so that it has to know whether its peer takes part.
    receives: bool,
}

const fn suite(name: &'static str) -> Suite {
    Suite { name, connects: true, receives: true }
}

/// One in which ends that accept send, and receive nothing.
const fn deaf(name: &'static str) -> Suite {
    Suite { name, connects: true, receives: false }
}

/// One whose tests have other descriptors than TCP sockets.
const fn other(name: &'static str) -> Suite {
    Suite { name, connects: false, receives: false }
}

/// The modules, as CPython names them; those that `--quick` runs come first.
const SUITES: &[Suite] = &[
    suite("test_socket"),
    other("test_selectors"),
    other("test_select"),
    other("test_poll"),
    deaf("test_epoll"),
    suite("test_socketserver"),
    suite("test_httplib"),
    suite("test_urllib2_localnet"),
    suite("test_smtplib"),
    suite("test_ssl"),
    suite("test_asyncio"),
    other("test_subprocess"),
];
const QUICK: usize = 6;
/// A test whose outcome differs is run alone, in both ways, until it differs again, but not more
/// often than this: once may be the machine's mood.
const REPEATS: usize = 20;

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask conformance",
    about = "CPython's socket tests, plain and under `shunt run`: each outcome must be the same"
)]
struct Cli {
    /// Only the modules closest to sockets, plain and with both ends under Shunt
    #[arg(long)]
    quick: bool,
    /// A Python that has its test package (default: python3)
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Only these modules
    #[arg(long, value_name = "MODULE")]
    only: Vec<String>,
    /// Only these runs beside the plain one: server, client, offered, shunt
    #[arg(long, value_name = "RUN", value_enum)]
    run: Vec<Mode>,
    /// Test what was built before
    #[arg(long)]
    no_build: bool,
    /// Write the table of what ran, with date and commit, into docs/conformance.md: only of a whole run
    #[arg(long, conflicts_with_all = ["quick", "only", "run"])]
    record: bool,
}

/// A test that does not end as it does without Shunt.
#[derive(Debug)]
struct Difference {
    test: String,
    mode: Mode,
    plain: String,
    ours: String,
    why: String,
}

/// The runs that are compared with the plain one.
const MODES: &[Mode] = &[Mode::Server, Mode::Client, Mode::Offered, Mode::Shunt];

/// Runs `cargo xtask conformance`.
///
/// # Errors
///
/// When there is no Python with its tests, or a test differs that is not listed.
pub(crate) fn main(args: &[String]) -> anyhow::Result<()> {
    let words = ["cargo xtask conformance"].into_iter().chain(args.iter().map(String::as_str));
    let cli = Cli::parse_from(words);
    let root = crate::workspace_root();
    let python = cli.python.clone().or_else(|| install::python_with("test.test_socket"));
    let Some(python) = python else {
        bail!(
            "no Python here has its test package: apt-get install libpython3-testsuite, or --python PATH"
        );
    };
    if !cli.no_build {
        bench::build(&root, bench::LOCAL)?;
    }
    stage::clean_up_when_interrupted()?;
    let stage = Stage::new(&bench::built(&root))?;
    let python = Python::new(&stage, &python)?;
    println!("{}", python.version());
    let known = record::known_differences(&root)?;
    // Now: the files may be others when it ends.
    let heading = record::heading(&root, python.version());
    let mut compared = Compared::default();
    for suite in chosen(&cli)? {
        compare(&python, suite, &modes(&cli), &mut compared)?;
    }
    let what = record::what_ran(&heading, &compared.rows);
    println!("\n{what}");
    if cli.record {
        record::write(&root, &what)?;
    }
    compared.verdict(&known, cli.is_partial())
}

fn chosen(cli: &Cli) -> anyhow::Result<Vec<Suite>> {
    let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
    if let Some(unknown) = cli.only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("{unknown} is not one of {}", names.join(" "));
    }
    let count = if cli.quick { QUICK } else { SUITES.len() };
    let suites = if cli.only.is_empty() { &SUITES[..count] } else { SUITES };
    let wanted =
        |suite: &&Suite| cli.only.is_empty() || cli.only.iter().any(|only| only == suite.name);
    Ok(suites.iter().filter(wanted).copied().collect())
}

fn modes(cli: &Cli) -> Vec<Mode> {
    match (&cli.run[..], cli.quick) {
        ([], true) => vec![Mode::Shunt],
        ([], false) => MODES.to_vec(),
        (chosen, _) => MODES.iter().copied().filter(|mode| chosen.contains(mode)).collect(),
    }
}

impl Cli {
    /// Whether something is left out, so that a difference that is listed need not be seen.
    const fn is_partial(&self) -> bool {
        self.quick || !self.only.is_empty() || !self.run.is_empty()
    }
}

/// What all comparisons gave.
#[derive(Debug, Default)]
struct Compared {
    tests: usize,
    differences: Vec<Difference>,
    rows: Vec<Row>,
    /// Modules of which a run did not do what it is for.
    hollow: Vec<String>,
}

/// What is recorded of a module.
#[derive(Debug, Default)]
struct Row {
    suite: &'static str,
    tests: usize,
    /// Outcomes without Shunt, by kind.
    plain: String,
    /// Tests that ended as they did without Shunt, or of which a repetition took the suspicion.
    same: BTreeMap<Mode, usize>,
    /// Ends of connections in shared memory, in the run of both ends.
    attached: u64,
    /// Ends that were alone, in the run of accepting ends and in that of offers that nobody takes.
    alone: BTreeMap<Mode, u64>,
}

fn compare(
    python: &Python<'_>,
    suite: Suite,
    modes: &[Mode],
    into: &mut Compared,
) -> anyhow::Result<()> {
    let name = suite.name;
    let plain = run(python, name, Mode::Plain)?.outcomes;
    ensure!(!plain.is_empty(), "{name} has no test at all");
    into.tests += plain.len();
    let mut row = Row { suite: name, tests: plain.len(), plain: kinds(&plain), ..Row::default() };
    for mode in modes {
        let ran = run(python, name, *mode)?;
        into.hollow.extend(hollow(suite, *mode, ran.attached, alone(&ran, *mode)));
        let ours = &ran.outcomes;
        let suspects: BTreeSet<&String> = plain
            .keys()
            .chain(ours.keys())
            .filter(|test| plain.get(*test) != ours.get(*test))
            .collect();
        let before = into.differences.len();
        for test in suspects {
            into.differences.extend(confirm(python, name, test, *mode, &plain, ours)?);
        }
        let differ = into.differences.len() - before;
        row.same.insert(*mode, plain.len().saturating_sub(differ));
        if *mode == Mode::Shunt {
            row.attached = ran.attached;
        }
        row.alone.insert(*mode, alone(&ran, *mode));
    }
    into.rows.push(row);
    Ok(())
}

/// Connections of which one end took part, and found that it was alone: the accepting ends say that their peer is not
/// under Shunt; of offers that nobody takes the other end is known, which says that it was left out.
fn alone(ran: &Ran, mode: Mode) -> u64 {
    // Reasons keep their numbers (`local::Reason`, shunt-stat(1)).
    const PEER_NOT_SHUNT: u64 = 1;
    const EXCLUDED: u64 = 3;
    let stayed = |reason| ran.stayed.get(&reason).copied().unwrap_or(0);
    match mode {
        Mode::Server => stayed(PEER_NOT_SHUNT),
        Mode::Offered => stayed(EXCLUDED),
        // Who connects to a port at which nobody under Shunt listens makes no entry anywhere.
        Mode::Plain | Mode::Client | Mode::Shunt => 0,
    }
}

/// Why a run has proved nothing, if so: all stayed on TCP that should not have, or the reverse.
fn hollow(suite: Suite, mode: Mode, attached: u64, alone: u64) -> Option<String> {
    let name = suite.name;
    match mode {
        Mode::Shunt if suite.connects && attached == 0 => {
            Some(format!("{name}: no connection used shared memory under Shunt"))
        }
        Mode::Server | Mode::Offered if suite.receives && alone == 0 => {
            Some(format!("{name}, {mode}: no end found that it was alone"))
        }
        Mode::Server | Mode::Client | Mode::Offered if attached > 0 => {
            Some(format!("{name}, {mode}: {attached} ends in shared memory"))
        }
        Mode::Plain | Mode::Server | Mode::Client | Mode::Offered | Mode::Shunt => None,
    }
}

fn run(python: &Python<'_>, suite: &str, mode: Mode) -> anyhow::Result<Ran> {
    let begin = Instant::now();
    let ran = python.run(suite, mode).with_context(|| format!("{suite}, {mode}"))?;
    let ends = match mode {
        Mode::Plain | Mode::Client => String::new(),
        Mode::Server | Mode::Offered => format!("; {} ends alone", alone(&ran, mode)),
        Mode::Shunt => format!("; {} ends in shared memory", ran.attached),
    };
    let took = begin.elapsed().as_secs_f64();
    println!("{suite:22} {mode:10} {took:4.0} s  {}{ends}", kinds(&ran.outcomes));
    Ok(ran)
}

/// How many tests ended in which way.
fn kinds(outcomes: &Outcomes) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    outcomes.values().for_each(|outcome| *counts.entry(outcome.kind()).or_default() += 1);
    let counts: Vec<String> =
        counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    counts.join(", ")
}

/// Repeats a test that differed, alone, in both ways. It is a difference if it happens again under
/// Shunt and never without; else it is told and left.
fn confirm(
    python: &Python<'_>,
    suite: &str,
    test: &str,
    mode: Mode,
    plain: &Outcomes,
    ours: &Outcomes,
) -> anyhow::Result<Option<Difference>> {
    let kind = |outcomes: &Outcomes| {
        outcomes.get(test).map_or("absent", |outcome| outcome.kind()).to_owned()
    };
    let first = (kind(plain), kind(ours));
    // What failed before a test began (setUpClass) cannot be asked for alone.
    let alone = !test.contains(' ') && test != suite;
    let (mut repeats, mut unstable, mut recurs) = (0, false, false);
    while alone && !unstable && !recurs && repeats < REPEATS {
        repeats += 1;
        unstable = kind(&python.run_one(suite, Mode::Plain, test)?) != first.0;
        recurs = kind(&python.run_one(suite, mode, test)?) != first.0;
    }
    let why = ours.get(test).map_or_else(String::new, |outcome| outcome.why.clone());
    if alone && (unstable || !recurs) {
        let verdict = if unstable { "it also differs plain" } else { "it did not happen again" };
        println!(
            "  note: {test}: {} plain, {} {mode}. {why} Repeated {repeats} times, {verdict}.",
            first.0, first.1
        );
        return Ok(None);
    }
    let ours = if alone { format!("{} (again at repeat {repeats})", first.1) } else { first.1 };
    Ok(Some(Difference { test: test.into(), mode, plain: first.0, ours, why }))
}

impl Compared {
    fn verdict(&self, known: &BTreeMap<String, String>, partial: bool) -> anyhow::Result<()> {
        let mut unlisted = 0;
        for difference in &self.differences {
            let Difference { test, mode, plain, ours, why } = difference;
            let reason = known.get(test);
            unlisted += usize::from(reason.is_none());
            let verdict =
                reason.map_or_else(|| "NOT LISTED".into(), |reason| format!("known: {reason}"));
            println!("differs: {test}: {plain} plain, {ours} {mode}. {why} [{verdict}]");
        }
        let differs =
            |test: &&String| self.differences.iter().any(|difference| difference.test == **test);
        for test in known.keys().filter(|test| !partial && !differs(test)) {
            println!("listed in {}, but the same today: {test}", record::KNOWN);
        }
        println!(
            "{} tests compared, {} differ, {unlisted} of them not listed",
            self.tests,
            self.differences.len()
        );
        self.hollow.iter().for_each(|why| println!("{why}"));
        ensure!(
            unlisted == 0,
            "{unlisted} tests end differently under Shunt and are not listed in {}",
            record::KNOWN
        );
        ensure!(self.hollow.is_empty(), "{}", self.hollow.join("; "));
        Ok(())
    }
}

/// The directory of this crate's sources is not there at run time: the script is part of us.
const RUNNER: &str = include_str!("conformance/runner.py");

#[cfg(test)]
mod tests {
    use super::{Mode, deaf, hollow, other, suite};

    #[test]
    fn a_run_in_which_nothing_was_attached_is_no_proof() {
        let of_sockets =
            |mode, attached, alone| hollow(suite("test_socket"), mode, attached, alone);
        assert!(of_sockets(Mode::Shunt, 0, 0).is_some());
        assert!(of_sockets(Mode::Shunt, 2, 0).is_none());
        assert!(hollow(deaf("test_epoll"), Mode::Shunt, 0, 0).is_some());
        assert!(hollow(other("test_subprocess"), Mode::Shunt, 0, 0).is_none());
        for mode in [Mode::Server, Mode::Offered] {
            assert!(of_sockets(mode, 0, 0).is_some());
            assert!(hollow(other("test_subprocess"), mode, 0, 0).is_none());
            assert!(hollow(deaf("test_epoll"), mode, 0, 0).is_none());
            assert!(of_sockets(mode, 0, 3).is_none());
            assert!(of_sockets(mode, 1, 3).is_some());
        }
        assert!(of_sockets(Mode::Client, 0, 0).is_none());
        assert!(of_sockets(Mode::Client, 1, 0).is_some());
        assert!(of_sockets(Mode::Plain, 0, 0).is_none());
    }
}
