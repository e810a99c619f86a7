//! `cargo xtask conformance`: CPython's own socket tests, plain and under Shunt, compared test by
//! test. What differs must be listed in `docs/conformance.md` with its reason.

mod suite;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::Parser;

use crate::bench::stage::{self, Stage};
use crate::{bench, install};
use suite::{Mode, Outcomes, Python};

/// The modules, as CPython names them; those that `--quick` runs come first.
const SUITES: &[&str] = &[
    "test_socket",
    "test_selectors",
    "test_select",
    "test_poll",
    "test_epoll",
    "test_socketserver",
    "test_httplib",
    "test_urllib2_localnet",
    "test_smtplib",
    "test_ssl",
    "test_asyncio",
    "test_subprocess",
];
const QUICK: usize = 6;
/// A test whose outcome differs is run alone, in both ways, until it differs again, but not more
/// often than this: once may be the machine's mood.
const REPEATS: usize = 20;
const KNOWN: &str = "docs/conformance.md";

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask conformance",
    about = "CPython's socket tests, plain and under `shunt run`: each outcome must be the same"
)]
struct Cli {
    /// Only the modules closest to sockets, and not the run with everything excluded
    #[arg(long)]
    quick: bool,
    /// A Python that has its test package (default: python3)
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Only these modules
    #[arg(long, value_name = "MODULE")]
    only: Vec<String>,
    /// Test what was built before
    #[arg(long)]
    no_build: bool,
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
    let known = known_differences(&root)?;
    let mut compared = Compared::default();
    for suite in chosen(&cli)? {
        compare(&python, suite, modes(cli.quick), &mut compared)?;
    }
    compared.verdict(&known, cli.quick || !cli.only.is_empty())
}

fn chosen(cli: &Cli) -> anyhow::Result<Vec<&'static str>> {
    if let Some(unknown) = cli.only.iter().find(|name| !SUITES.contains(&name.as_str())) {
        bail!("{unknown} is not one of {}", SUITES.join(" "));
    }
    let count = if cli.quick { QUICK } else { SUITES.len() };
    let suites = if cli.only.is_empty() { &SUITES[..count] } else { SUITES };
    let wanted = |name: &&&str| cli.only.is_empty() || cli.only.iter().any(|only| only == *name);
    Ok(suites.iter().filter(wanted).copied().collect())
}

fn modes(quick: bool) -> &'static [Mode] {
    if quick { &[Mode::Shunt] } else { &[Mode::Excluded, Mode::Shunt] }
}

/// What all comparisons gave.
#[derive(Debug, Default)]
struct Compared {
    tests: usize,
    differences: Vec<Difference>,
}

fn compare(
    python: &Python<'_>,
    suite: &str,
    modes: &[Mode],
    into: &mut Compared,
) -> anyhow::Result<()> {
    let plain = run(python, suite, Mode::Plain)?;
    ensure!(!plain.is_empty(), "{suite} has no test at all");
    into.tests += plain.len();
    for mode in modes {
        let ours = run(python, suite, *mode)?;
        let suspects: BTreeSet<&String> = plain
            .keys()
            .chain(ours.keys())
            .filter(|test| plain.get(*test) != ours.get(*test))
            .collect();
        for test in suspects {
            into.differences.extend(confirm(python, suite, test, *mode, &plain, &ours)?);
        }
    }
    Ok(())
}

fn run(python: &Python<'_>, suite: &str, mode: Mode) -> anyhow::Result<Outcomes> {
    let begin = Instant::now();
    let outcomes = python.run(suite, mode).with_context(|| format!("{suite}, {mode}"))?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    outcomes.values().for_each(|outcome| *counts.entry(outcome.kind()).or_default() += 1);
    let counts: Vec<String> =
        counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    println!("{suite:22} {mode:10} {:4.0} s  {}", begin.elapsed().as_secs_f64(), counts.join(", "));
    Ok(outcomes)
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
            println!("listed in {KNOWN}, but the same today: {test}");
        }
        println!(
            "{} tests compared, {} differ, {unlisted} of them not listed",
            self.tests,
            self.differences.len()
        );
        ensure!(
            unlisted == 0,
            "{unlisted} tests end differently under Shunt and are not listed in {KNOWN}"
        );
        Ok(())
    }
}

/// Test and reason from the table in `docs/conformance.md`.
fn known_differences(root: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let path = root.join(KNOWN);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(parse_known(&text))
}

/// Lines of a table whose first column is a test in backticks; the last column is the reason.
fn parse_known(text: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let cells: Vec<&str> =
            line.trim().strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let test = cells.first()?.strip_prefix('`')?.strip_suffix('`')?;
        Some((test.to_owned(), (*cells.last()?).to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// The directory of this crate's sources is not there at run time: the script is part of us.
const RUNNER: &str = include_str!("conformance/runner.py");

#[cfg(test)]
mod tests {
    use super::parse_known;

    #[test]
    fn known_differences_are_read_from_the_table() {
        let known = parse_known(
            "| Test | Outcome | Reason |\n| --- | --- | --- |\n| `test.test_socket.A.test_b` | skip | it counts descriptors |\n\
             `not.a.row`\n",
        );
        assert_eq!(known.len(), 1);
        assert_eq!(known["test.test_socket.A.test_b"], "it counts descriptors");
    }
}
