//! `cargo xtask torture`: Samba's own tests of SMB2 servers against ours, compared test by test with
//! what Samba's server makes of them, and with what ours made of them before.

mod matrix;
mod outcome;
mod server;
mod smoke;
mod suite;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use clap::{Parser, ValueEnum};

use crate::bench::{report, stage};
use crate::{bench, install, page};
use matrix::{CASES, Case};
use outcome::Table;
use server::Kind;

/// What Samba 4.17.12 makes of them.
const SAMBA: &str = "docs/torture/samba.tsv";
/// What ours made of them.
const OURS: &str = "docs/torture/shunt.tsv";
/// Why some differ, by hand.
const REASONS: &str = "docs/torture/reasons.tsv";
/// Where the table of differences stands, between these two lines.
const PAGE: &str = "docs/torture.md";
const BEGIN: &str = "<!-- begin: written by cargo xtask torture --record -->";
const END: &str = "<!-- end -->";

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask torture",
    about = "smbtorture's smb2.* suites against `shunt serve`, compared with Samba and with before"
)]
struct Cli {
    /// Only these suites, such as smb2.read,smb2.lock:aio
    #[arg(long, value_delimiter = ',', value_name = "SUITE")]
    only: Vec<String>,
    /// A file there and back with smbclient, and some short suites
    #[arg(long, conflicts_with_all = ["only", "record", "port"])]
    smoke: bool,
    /// Those suites of leases, oplocks and the like that wait most of the time, all at the same time
    #[arg(long, conflicts_with_all = ["only", "record", "port", "smoke"])]
    waiting: bool,
    /// Suites at the same time, each against a server of its own [1; with --waiting all]
    #[arg(long)]
    jobs: Option<usize>,
    /// Test another server: to see what this machine makes of the tests
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Have the server run as a user other than root, to whom the folders belong: root may do everything, and whoever tests
    /// as root sees no right that is missing
    #[arg(long, conflicts_with_all = ["peer", "port", "record"])]
    as_user: bool,
    /// Test a server that runs on this port of this host, with the shares and users of the matrix
    #[arg(long, value_name = "N", conflicts_with = "peer")]
    port: Option<u16>,
    /// Write what came of it to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Keep what ours makes of the tests, and write the table of docs/torture.md anew
    #[arg(long, conflicts_with_all = ["peer", "port"])]
    record: bool,
    /// Keep it although tests that passed before do not now
    #[arg(long, requires = "record")]
    accept_lost: bool,
    /// Test what was built before
    #[arg(long)]
    no_build: bool,
    /// First fetch the Debian packages that are absent
    #[arg(long)]
    install: bool,
    /// Name the suites and stop
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// Samba's server, from this machine's package
    Smbd,
}

/// Runs `cargo xtask torture`.
///
/// # Errors
///
/// When something cannot be run, or a test fails that passed before.
pub(crate) fn main(args: &[String]) -> anyhow::Result<()> {
    let words = ["cargo xtask torture"].into_iter().chain(args.iter().map(String::as_str));
    let cli = Cli::parse_from(words);
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let mut cases = chosen(&match (cli.smoke, cli.waiting) {
        (true, _) => named(SMOKE),
        (_, true) => named(WAITING),
        _ => cli.only.clone(),
    })?;
    let jobs = cli.jobs.unwrap_or(if cli.waiting { WAITING.len() } else { 1 });
    if cli.list {
        cases.iter().for_each(|case| println!("{:48} on {}", case.name, case.share));
        return Ok(());
    }
    install::check("torture", &["smbtorture", "smbd", "smbclient", "mkfs.btrfs"], cli.install)?;
    cases.retain(|case| {
        let why = case.file_system().and_then(server::cannot_mount);
        if let Some(why) = &why {
            println!("{:48} skipped: {why}", case.name);
        }
        why.is_none()
    });
    let root = crate::workspace_root();
    let kind = match (cli.peer, cli.port) {
        (Some(Peer::Smbd), _) => Kind::Smbd,
        (None, Some(port)) => Kind::Port(port),
        (None, None) => ours(&root, cli.no_build, cli.as_user)?,
    };
    stage::clean_up_when_interrupted()?;
    if cli.smoke {
        smoke::there_and_back(&kind)?;
    }
    let samba = outcome::read(&root.join(SAMBA))?;
    let listed = suite::list()?;
    let mut table = run_all(&kind, &cases, &listed, jobs, &samba)?;
    if let Some(path) = &cli.out {
        outcome::write(path, &table, share_of)?;
    }
    if kind.is_ours() {
        let before = recorded(&root)?;
        let lost = confirm(&kind, &before, &mut table)?;
        report(&cases, &samba, &table);
        lost.iter().for_each(|line| println!("passed before, and does not now: {line}"));
        let lost = if cli.accept_lost { Vec::new() } else { lost };
        if cli.record {
            record(&root, &samba, before, &table, &lost)?;
        }
        return verdict(&lost);
    }
    report(&cases, &samba, &table);
    Ok(())
}

/// What `--smoke` runs, beside smbclient: all that takes a second or three.
const SMOKE: &[&str] = &[
    "smb2.connect",
    "smb2.read",
    "smb2.rw",
    "smb2.tcon",
    "smb2.mkdir",
    "smb2.sharemode",
    "smb2.session-id",
    "smb2.session",
    "smb2.getinfo",
    "smb2.lock",
    "smb2.compound",
    "smb2.credits",
    "smb2.durable-open",
    "smb2.durable-v2-open",
    "smb2.streams",
    "smb2.ioctl",
    "smb2.acls",
    "smb2.rename",
];

/// What `--waiting` runs: most of them wait for a client that does not answer, the longest for three minutes.
const WAITING: &[&str] = &[
    "smb2.lease",
    "smb2.oplock",
    "smb2.kernel-oplocks",
    "smb2.create",
    "smb2.dir",
    "smb2.durable-v2-delay",
    "smb2.compound_find",
];

fn chosen(only: &[String]) -> anyhow::Result<Vec<Case>> {
    if let Some(unknown) = only.iter().find(|name| !CASES.iter().any(|case| case.name == **name)) {
        bail!("{unknown} is no suite; `--list` names them");
    }
    let wanted = |case: &&Case| only.is_empty() || only.iter().any(|name| name == case.name);
    Ok(CASES.iter().filter(wanted).copied().collect())
}

fn share_of(suite: &str) -> &'static str {
    CASES.iter().find(|case| case.name == suite).map_or("-", |case| case.share)
}

fn ours(root: &Path, no_build: bool, as_user: bool) -> anyhow::Result<Kind> {
    if !no_build {
        bench::build(root, &["shunt-cli"])?;
    }
    let program = bench::built(root).join("shunt");
    let absent = cannot_serve(&program);
    ensure!(absent.is_none(), "{}", absent.unwrap_or_default());
    if !as_user {
        return Ok(Kind::Shunt(program));
    }
    let absent = server::cannot_be_plain();
    ensure!(absent.is_none(), "{}", absent.unwrap_or_default());
    Ok(Kind::Plain(program))
}

/// Why `program` has no `serve`, if so.
pub(crate) fn cannot_serve(program: &Path) -> Option<String> {
    let asked = std::process::Command::new(program).args(["serve", "--help"]).output();
    match asked {
        Ok(output) if output.status.success() => None,
        Ok(_) => Some("this `shunt` has no `serve`".into()),
        Err(error) => Some(format!("cannot start {}: {error}", program.display())),
    }
}

fn recorded(root: &Path) -> anyhow::Result<Table> {
    let path = root.join(OURS);
    if path.exists() { outcome::read(&path) } else { Ok(Table::new()) }
}

/// Runs the suites, `jobs` at a time, and tells each as it is done.
fn run_all(
    kind: &Kind,
    cases: &[Case],
    listed: &str,
    jobs: usize,
    samba: &Table,
) -> anyhow::Result<Table> {
    ensure!(jobs == 1 || !matches!(kind, Kind::Port(_)), "--jobs wants a server for each job");
    let mut waiting = cases.to_vec();
    // The longest first, taken from the end.
    waiting.sort_by_key(|case| case.seconds);
    let (waiting, table) = (Mutex::new(waiting), Mutex::new(Table::new()));
    let work = || -> anyhow::Result<()> {
        while let Some(case) = take(&waiting) {
            let begun = Instant::now();
            let done = suite::run(kind, &case, listed).with_context(|| case.name)?;
            let passed = done.iter().filter(|(_, outcome)| outcome.passed()).count();
            let name = case.name;
            println!(
                "{name:48} {passed:3} of {:3} pass, {:3} with Samba {:6.1} s",
                done.len(),
                passing(samba, name),
                begun.elapsed().as_secs_f64()
            );
            for (test, outcome) in done {
                locked(&table).insert((name.into(), test), outcome);
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        let ends = threads.into_iter().map(|thread| thread.join());
        ends.map(|end| end.unwrap_or_else(|_| bail!("a job panicked")))
            .collect::<Result<Vec<()>, _>>()
    })?;
    Ok(table.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn take(waiting: &Mutex<Vec<Case>>) -> Option<Case> {
    locked(waiting).pop()
}

fn passing(table: &Table, suite: &str) -> usize {
    table.iter().filter(|((name, _), outcome)| name == suite && outcome.passed()).count()
}

/// Tests that passed before and do not now, not even alone. One that passes alone is told and left.
fn confirm(kind: &Kind, before: &Table, now: &mut Table) -> anyhow::Result<Vec<String>> {
    let ran = |suite: &str| now.keys().any(|(name, _)| name == suite);
    let gone = |(key, outcome): &(&(String, String), &outcome::Outcome)| {
        outcome.passed() && ran(&key.0) && !now.contains_key(*key)
    };
    let gone = before.iter().filter(gone);
    let mut lost: Vec<String> =
        gone.map(|((suite, test), _)| format!("{suite} {test}: did not run")).collect();
    for ((suite, test), outcome) in &mut *now {
        let passed =
            before.get(&(suite.clone(), test.clone())).is_some_and(outcome::Outcome::passed);
        if !passed || outcome.passed() {
            continue;
        }
        let case =
            CASES.iter().find(|case| case.name == *suite).context("a suite without a case")?;
        let again = suite::run_one(kind, case, test)?;
        if again.passed() {
            println!("note: {suite} {test} failed once and passes alone: {}", outcome.note);
            *outcome = again;
        } else {
            lost.push(format!("{suite} {test}: {} {}", again.result, again.note));
        }
    }
    Ok(lost)
}

/// Each suite, and all together.
fn report(cases: &[Case], samba: &Table, now: &Table) {
    println!("\n{:48} {:>5} {:>5} {:>5}", "suite", "here", "Samba", "less");
    let (mut here_all, mut samba_all, mut less_all) = (0, 0, 0);
    for case in cases {
        let (here, theirs) = (passing(now, case.name), passing(samba, case.name));
        let less = differing(samba, now).filter(|(suite, _)| suite == case.name).count();
        println!("{:48} {here:5} {theirs:5} {less:5}", case.name);
        here_all += here;
        samba_all += theirs;
        less_all += less;
    }
    println!("{:48} {here_all:5} {samba_all:5} {less_all:5}", "all");
    for (suite, test) in differing(samba, now) {
        let outcome = &now[&(suite.clone(), test.clone())];
        println!("passes with Samba only: {suite} {test}: {} {}", outcome.result, outcome.note);
    }
}

/// Tests that Samba passes and that did not pass now.
fn differing<'a>(samba: &'a Table, now: &'a Table) -> impl Iterator<Item = &'a (String, String)> {
    let theirs = |key: &&(String, String)| samba.get(*key).is_some_and(outcome::Outcome::passed);
    now.iter().filter(|(_, outcome)| !outcome.passed()).map(|(key, _)| key).filter(theirs)
}

fn verdict(lost: &[String]) -> anyhow::Result<()> {
    ensure!(lost.is_empty(), "{} tests passed before and do not now", lost.len());
    Ok(())
}

/// Keeps what is new, and writes the table of the page; nothing of it while tests are lost: the next run would be
/// compared with one in which they do not pass.
fn record(
    root: &Path,
    samba: &Table,
    mut all: Table,
    now: &Table,
    lost: &[String],
) -> anyhow::Result<()> {
    if !lost.is_empty() {
        println!("nothing is recorded; --accept-lost records it all the same");
        return Ok(());
    }
    // Of what was tested: as the files were before these are written.
    let when =
        format!("Last recorded {}, of commit {}.", report::today(root), report::commit(root));
    let ran = |suite: &str| now.keys().any(|(name, _)| name == suite);
    all.retain(|(suite, _), _| !ran(suite));
    all.extend(now.iter().map(|(key, outcome)| (key.clone(), outcome.clone())));
    outcome::write(&root.join(OURS), &all, share_of)?;
    let reasons = outcome::read_reasons(&root.join(REASONS))?;
    let path = root.join(PAGE);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let table = format!("{when}\n\n{}", table_text(samba, &all, &reasons)?);
    let text = page::with_table(&text, BEGIN, END, &table).context(PAGE)?;
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    println!("recorded in {OURS} and {PAGE}");
    Ok(())
}

fn table_text(
    samba: &Table,
    all: &Table,
    reasons: &BTreeMap<(String, String), String>,
) -> anyhow::Result<String> {
    let passed = |table: &Table| table.values().filter(|outcome| outcome.passed()).count();
    let ran: Table = samba
        .iter()
        .filter(|((suite, _), _)| all.keys().any(|(name, _)| name == suite))
        .map(|(key, outcome)| (key.clone(), outcome.clone()))
        .collect();
    let mut text = format!(
        "{} of {} tests pass; with Samba's server {}.\n\n| Test | Outcome | Reason |\n| --- | --- | --- |\n",
        passed(all),
        all.len(),
        passed(&ran)
    );
    for key in differing(samba, all) {
        let reason = reasons.get(key).map_or("not known yet", String::as_str);
        writeln!(text, "| `{} {}` | {} | {reason} |", key.0, key.1, all[key].result)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcome::Outcome;

    fn table(rows: &[(&str, &str)]) -> Table {
        let row = |(test, result): &(&str, &str)| {
            let outcome = Outcome { result: (*result).into(), seconds: 0.0, note: String::new() };
            (("smb2.read".to_owned(), (*test).to_owned()), outcome)
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn only_what_samba_passes_can_differ() {
        let samba = table(&[("eof", "success"), ("dir", "success"), ("access", "failure")]);
        let now = table(&[("eof", "success"), ("dir", "timeout"), ("access", "failure")]);
        let found: Vec<&str> = differing(&samba, &now).map(|(_, test)| &**test).collect();
        assert_eq!(found, ["dir"]);
        let reasons = BTreeMap::from([(("smb2.read".into(), "dir".into()), "it is late".into())]);
        let text = table_text(&samba, &now, &reasons).unwrap();
        assert!(text.starts_with("1 of 3 tests pass; with Samba's server 2."), "{text}");
        assert!(text.ends_with("| `smb2.read dir` | timeout | it is late |\n"), "{text}");
    }

    #[test]
    fn nothing_is_recorded_while_tests_are_lost() {
        let root = std::env::temp_dir().join(format!("torture-record-{}", std::process::id()));
        fs::create_dir_all(root.join(OURS).parent().unwrap()).unwrap();
        fs::write(root.join(REASONS), "").unwrap();
        let page = format!("{BEGIN}\n{END}\n");
        fs::write(root.join(PAGE), &page).unwrap();
        let before = table(&[("eof", "success"), ("dir", "success")]);
        outcome::write(&root.join(OURS), &before, share_of).unwrap();
        let now = table(&[("eof", "success"), ("dir", "failure")]);
        let lost = ["smb2.read dir: failure".to_owned()];
        record(&root, &before, before.clone(), &now, &lost).unwrap();
        assert_eq!(recorded(&root).unwrap(), before);
        assert_eq!(fs::read_to_string(root.join(PAGE)).unwrap(), page);
        record(&root, &before, before.clone(), &now, &[]).unwrap();
        assert_eq!(recorded(&root).unwrap(), now);
        let page = fs::read_to_string(root.join(PAGE)).unwrap();
        assert!(page.contains("Last recorded 20") && page.contains("1 of 2 tests pass"), "{page}");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_files_of_the_repository_can_be_read() {
        let root = crate::workspace_root();
        let samba = outcome::read(&root.join(SAMBA)).unwrap();
        assert!(samba.values().filter(|outcome| outcome.passed()).count() > 500);
        outcome::read_reasons(&root.join(REASONS)).unwrap();
        page::with_table(&fs::read_to_string(root.join(PAGE)).unwrap(), BEGIN, END, "x").unwrap();
        for case in CASES {
            assert!(samba.keys().any(|(suite, _)| suite == case.name), "{}", case.name);
        }
        for name in SMOKE {
            assert!(CASES.iter().any(|case| case.name == *name), "{name}");
        }
    }
}
