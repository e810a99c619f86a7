//! What became of each case when it was last played: a line for each, and a table of them for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::bench::report;
use crate::page;

/// What is played, and where that is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Book {
    /// As `interop`: by `cargo xtask` it is played, and with `--record` recorded.
    pub(crate) verb: &'static str,
    /// The file with a line for each case, in the repository.
    pub(crate) account: &'static str,
    /// The page with a table for people.
    pub(crate) page: &'static str,
}

const END: &str = "<!-- end -->";
/// The first line of the file.
const HEAD: &str = "# pair\tcase\tresult\tcommit\tdate";
/// How a case is recorded that came to its end as it should.
const PASSED: &str = "passed";
const FAILED: &str = "failed";

/// Names a case: the pair (`kernel-shunt`: client, server), and what is done.
pub(crate) type Key = (String, String);

/// How a case ended, of which commit, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Last {
    result: &'static str,
    commit: String,
    /// As `2026-01-31`.
    date: String,
}

type Account = BTreeMap<Key, Last>;

/// Reads what [`write()`] wrote; nothing when there is no such file.
///
/// # Errors
///
/// When it cannot be read, or a line has other columns.
fn read(path: &Path) -> anyhow::Result<Account> {
    if !path.exists() {
        return Ok(Account::new());
    }
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [pair, case, result, commit, date] = cells[..] else {
            anyhow::bail!("{}: not five columns: {line}", path.display())
        };
        let result = [PASSED, FAILED].into_iter().find(|known| *known == result);
        let result = result.with_context(|| format!("{}: no result: {line}", path.display()))?;
        let last = Last { result, commit: commit.to_owned(), date: date.to_owned() };
        Ok(((pair.to_owned(), case.to_owned()), last))
    };
    lines.map(read).collect()
}

fn write(path: &Path, account: &Account) -> anyhow::Result<()> {
    let mut text = format!("{HEAD}\n");
    for ((pair, case), Last { result, commit, date }) in account {
        writeln!(text, "{pair}\t{case}\t{result}\t{commit}\t{date}")?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

impl Book {
    /// Notes what became of the cases that were played, of `known` ones.
    ///
    /// # Errors
    ///
    /// When the file or the page cannot be read or written.
    pub(crate) fn record(
        &self,
        root: &Path,
        played: Vec<(Key, bool)>,
        known: &[Key],
    ) -> anyhow::Result<()> {
        let (commit, date) = (report::commit(root), report::today(root));
        let last = |passed| Last {
            result: if passed { PASSED } else { FAILED },
            commit: commit.clone(),
            date: date.clone(),
        };
        let now = played.into_iter().map(|(key, passed)| (key, last(passed))).collect();
        self.add(root, now, known)?;
        println!("recorded in {} and {}", self.account, self.page);
        Ok(())
    }

    /// Adds what was played now to what was played before, in the file and on the page.
    fn add(&self, root: &Path, now: Account, known: &[Key]) -> anyhow::Result<()> {
        let path = root.join(self.account);
        let mut account = read(&path)?;
        account.extend(now);
        // Cases that are no more.
        account.retain(|key, _| known.contains(key));
        write(&path, &account)?;
        let page = root.join(self.page);
        let text = fs::read_to_string(&page).with_context(|| page.display().to_string())?;
        fs::write(&page, self.with_table(&text, &account, known)?)
            .with_context(|| page.display().to_string())
    }

    /// The page with what the account says; `known`: all cases with all pairs.
    fn with_table(&self, text: &str, account: &Account, known: &[Key]) -> anyhow::Result<String> {
        let begin = format!("<!-- begin: written by cargo xtask {} --record -->", self.verb);
        page::with_table(text, &begin, END, &table(account, known)).context(self.page)
    }

    /// Reads the file of the repository, of which each line must be of a case that there is.
    ///
    /// # Errors
    ///
    /// Also when the page says something else.
    #[cfg(test)]
    pub(crate) fn check(&self, root: &Path, known: &[Key]) -> anyhow::Result<()> {
        use anyhow::ensure;

        let account = read(&root.join(self.account))?;
        ensure!(!account.is_empty(), "{} is empty", self.account);
        for key in account.keys() {
            ensure!(known.contains(key), "there is no case {key:?}");
        }
        let text = fs::read_to_string(root.join(self.page))?;
        let told = self.with_table(&text, &account, known)? == text;
        ensure!(told, "{} does not say what {} does", self.page, self.account);
        Ok(())
    }
}

/// A line for each pair: how many cases it has, how many have passed when they were last played, and of which commits.
fn table(account: &Account, known: &[Key]) -> String {
    let mut text = String::from(
        "| client-server | cases | passed | failed | not played | last played | commits |\n\
         | --- | ---: | ---: | ---: | ---: | --- | --- |\n",
    );
    let mut pairs: Vec<&str> = known.iter().map(|(pair, _)| pair.as_str()).collect();
    pairs.sort_unstable();
    pairs.dedup();
    let row = |text: &mut String, name: &str, of: &dyn Fn(&str) -> bool| {
        let all = known.iter().filter(|(pair, _)| of(pair)).count();
        let played: Vec<&Last> =
            account.iter().filter(|((pair, _), _)| of(pair)).map(|(_, last)| last).collect();
        let count = |result| played.iter().filter(|last| last.result == result).count();
        let (passed, failed) = (count(PASSED), count(FAILED));
        let mut dates: Vec<&str> = played.iter().map(|last| last.date.as_str()).collect();
        dates.sort_unstable();
        let dates = match (dates.first(), dates.last()) {
            (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
            (Some(first), _) => (*first).to_owned(),
            _ => String::new(),
        };
        let mut commits: Vec<&str> = played.iter().map(|last| last.commit.as_str()).collect();
        commits.sort_unstable();
        commits.dedup();
        let unplayed = all - played.len();
        let commits = commits.join(" ");
        *text += &format!(
            "| {name} | {all} | {passed} | {failed} | {unplayed} | {dates} | {commits} |\n"
        );
    };
    for pair in pairs {
        row(&mut text, pair, &|other| other == pair);
    }
    row(&mut text, "**all**", &|_| true);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_played_again_is_recorded_in_its_place() {
        const BOOK: Book =
            Book { verb: "play", account: "bench/record/play.tsv", page: "docs/play.md" };
        let root = std::env::temp_dir().join(format!("interop-account-{}", std::process::id()));
        fs::create_dir_all(root.join("bench/record")).unwrap();
        fs::create_dir_all(root.join("docs")).unwrap();
        let begin = "<!-- begin: written by cargo xtask play --record -->";
        fs::write(root.join(BOOK.page), format!("a\n{begin}\n{END}\nb\n")).unwrap();
        let key = |case: &str| ("kernel-shunt".to_owned(), case.to_owned());
        let known = [key("echo"), key("abort"), key("late")];
        let last = |result, date: &str| Last { result, commit: "c".into(), date: date.into() };
        let first = [
            (key("echo"), last(FAILED, "2026-01-01")),
            (key("abort"), last(PASSED, "2026-01-01")),
            (key("gone"), last(PASSED, "2026-01-01")),
        ];
        BOOK.add(&root, first.into(), &known).unwrap();
        BOOK.add(&root, [(key("echo"), last(PASSED, "2026-01-02"))].into(), &known).unwrap();
        BOOK.check(&root, &known).unwrap();
        let page = fs::read_to_string(root.join(BOOK.page)).unwrap();
        let row = "| kernel-shunt | 3 | 2 | 0 | 1 | 2026-01-01 to 2026-01-02 | c |\n";
        assert!(page.contains(row) && page.ends_with("b\n"), "{page}");
        assert_eq!(read(&root.join(BOOK.account)).unwrap().len(), 2);
        assert!(BOOK.check(&root, &known[1..]).is_err());
        fs::write(root.join(BOOK.account), "a\tb\tperhaps\tc\td\n").unwrap();
        assert!(read(&root.join(BOOK.account)).is_err());
        fs::remove_dir_all(root).unwrap();
    }
}
