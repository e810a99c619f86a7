//! What became of each suite when it was last run: a line for each, and a table for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

use super::suite::SUITES;
use crate::bench::report;
use crate::page;
use crate::test::tally::Tally;

const ACCOUNT: &str = "bench/record/aarch64.tsv";
const PAGE: &str = "docs/aarch64.md";
const HEAD: &str = "# suite\tpages\tpassed\tfailed\tskipped\tcommit\tdate";
const BEGIN: &str = "<!-- begin: written by cargo xtask aarch64 --record -->";
const END: &str = "<!-- end -->";

/// Where a suite was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Pages4k,
    Pages16k,
}

impl Place {
    const ALL: [Self; 2] = [Self::Pages4k, Self::Pages16k];

    const fn name(self) -> &'static str {
        match self {
            Self::Pages4k => "4k",
            Self::Pages16k => "16k",
        }
    }
}

/// How many tests did what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Cell {
    pub(super) fn of(tally: &Tally) -> Self {
        let skipped = tally.ignored + tally.skips.len();
        Self { passed: tally.passed, failed: tally.failed, skipped }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Last {
    cell: Cell,
    commit: String,
    date: String,
}

type Account = BTreeMap<(String, Place), Last>;

/// Notes what became of suites.
///
/// # Errors
///
/// When the file or the page cannot be read or written.
pub(super) fn record(
    root: &Path,
    place: Place,
    cells: Vec<(&'static str, Cell)>,
) -> anyhow::Result<()> {
    let (commit, date) = (report::commit(root), report::today(root));
    let mut account = read(&root.join(ACCOUNT))?;
    for (name, cell) in cells {
        let last = Last { cell, commit: commit.clone(), date: date.clone() };
        account.insert((name.to_owned(), place), last);
    }
    // Suites that are no more.
    account.retain(|(name, _), _| SUITES.iter().any(|suite| suite.name == name));
    write(&root.join(ACCOUNT), &account)?;
    let page = root.join(PAGE);
    let text = fs::read_to_string(&page).with_context(|| PAGE.to_owned())?;
    fs::write(&page, page::with_table(&text, BEGIN, END, &table(&account))?)?;
    println!("recorded in {ACCOUNT} and {PAGE}");
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<Account> {
    let mut account = Account::new();
    if !path.exists() {
        return Ok(account);
    }
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let wrong = || format!("{}: {line}", path.display());
        let cells: Vec<&str> = line.split('\t').collect();
        ensure!(cells.len() == 7, "not seven columns: {}", wrong());
        let number = |at: usize| cells[at].parse::<usize>().with_context(wrong);
        let place = Place::ALL.into_iter().find(|place| place.name() == cells[1]);
        let cell = Cell { passed: number(2)?, failed: number(3)?, skipped: number(4)? };
        let last = Last { cell, commit: cells[5].to_owned(), date: cells[6].to_owned() };
        account.insert((cells[0].to_owned(), place.with_context(wrong)?), last);
    }
    Ok(account)
}

fn write(path: &Path, account: &Account) -> anyhow::Result<()> {
    let mut text = format!("{HEAD}\n");
    for ((name, place), Last { cell: Cell { passed, failed, skipped }, commit, date }) in account {
        let place = place.name();
        writeln!(text, "{name}\t{place}\t{passed}\t{failed}\t{skipped}\t{commit}\t{date}")?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A line for each suite, with what became of it on either kind of page.
fn table(account: &Account) -> String {
    let mut text = String::from(
        "| tests | pages of 4 KiB: passed, failed, skipped | of 16 KiB | commits | last |\n\
         | --- | ---: | ---: | --- | --- |\n",
    );
    for suite in SUITES {
        let lasts = Place::ALL.map(|place| account.get(&(suite.name.to_owned(), place)));
        let cells = lasts.map(|last| {
            last.map_or_else(String::new, |last| {
                let Cell { passed, failed, skipped } = last.cell;
                format!("{passed}, {failed}, {skipped}")
            })
        });
        let mut commits: Vec<_> = lasts.iter().flatten().map(|last| last.commit.as_str()).collect();
        commits.dedup();
        let date = lasts.iter().flatten().map(|last| last.date.as_str()).max().unwrap_or_default();
        let (name, commits, [small, large]) = (suite.name, commits.join(" "), cells);
        text += &format!("| {name} | {small} | {large} | {commits} | {date} |\n");
    }
    text
}

/// Reads the file of the repository, each line of which must be of a suite that there is.
///
/// # Errors
///
/// Also when the page says something else.
#[cfg(test)]
pub(super) fn check(root: &Path) -> anyhow::Result<()> {
    let account = read(&root.join(ACCOUNT))?;
    ensure!(!account.is_empty(), "{ACCOUNT} is empty");
    for (name, _) in account.keys() {
        ensure!(SUITES.iter().any(|suite| suite.name == name), "there is no suite {name}");
    }
    let text = fs::read_to_string(root.join(PAGE))?;
    ensure!(
        page::with_table(&text, BEGIN, END, &table(&account))? == text,
        "{PAGE} does not say what {ACCOUNT} does"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let path = std::env::temp_dir().join(format!("aarch64-account-{}", std::process::id()));
        let cell = Cell { passed: 7, failed: 1, skipped: 2 };
        let last = Last { cell, commit: "c".into(), date: "2026-01-01".into() };
        let account = Account::from([((SUITES[0].name.to_owned(), Place::Pages16k), last)]);
        write(&path, &account).unwrap();
        assert_eq!(read(&path).unwrap(), account);
        let row = format!("| {} |  | 7, 1, 2 | c | 2026-01-01 |\n", SUITES[0].name);
        assert!(table(&account).contains(&row), "{}", table(&account));
        for wrong in ["a\t4k\t1\n", "a\t5k\t1\t1\t1\tc\td\n", "a\t4k\tx\t1\t1\tc\td\n"] {
            fs::write(&path, wrong).unwrap();
            assert!(read(&path).is_err(), "{wrong}");
        }
        fs::remove_file(path).unwrap();
    }
}
