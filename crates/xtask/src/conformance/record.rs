//! What `docs/conformance.md` says to us, and what we say there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

use super::Row;
use super::suite::Mode;
use crate::bench::report::{commit, today};

/// The document.
pub(super) const KNOWN: &str = "docs/conformance.md";
/// Its section with the differences that there may be.
const DIFFERENCES: &str = "## Known differences";
/// Its section with the table of the last whole run.
const RUNS: &str = "## What ran";

fn document(root: &Path) -> anyhow::Result<String> {
    let path = root.join(KNOWN);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// Test and reason from the table of known differences.
///
/// # Errors
///
/// When the document cannot be read or has no such section: an empty list would be another claim.
pub(super) fn known_differences(root: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let text = document(root)?;
    let (_, section, _) = split(&text, DIFFERENCES)
        .with_context(|| format!("{KNOWN} has no section `{DIFFERENCES}`"))?;
    Ok(parse_known(section))
}

/// What is before a section's heading, the section under its heading, and what follows it.
fn split<'a>(text: &'a str, heading: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let line = format!("\n{heading}\n");
    let begin = text.find(&line)? + line.len();
    let len = text[begin..].find("\n## ").map_or(text.len() - begin, |at| at + 1);
    Some((&text[..begin], &text[begin..begin + len], &text[begin + len..]))
}

/// Lines of a table whose first column is a test in backticks; the last column is the reason.
fn parse_known(section: &str) -> BTreeMap<String, String> {
    let line = |line: &str| {
        let cells: Vec<&str> =
            line.trim().strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let test = cells.first()?.strip_prefix('`')?.strip_suffix('`')?;
        Some((test.to_owned(), (*cells.last()?).to_owned()))
    };
    section.lines().filter_map(line).collect()
}

/// Date, commit and machine.
pub(super) fn heading(root: &Path, python: &str) -> String {
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!("{}, commit {}, {python}, {cpus} CPUs.", today(root), commit(root))
}

/// The table of a run under its heading, in Markdown.
pub(super) fn what_ran(heading: &str, rows: &[Row]) -> String {
    let mut text = format!(
        "{heading}\n\n\
         | module | tests | plain | same, server only | client only | offered | both | ends alone, server and offered | ends in shared memory |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
    );
    for row in rows {
        let same = |mode| row.same.get(&mode).map_or_else(|| "-".to_owned(), usize::to_string);
        let alone = |mode| row.alone.get(&mode).copied().unwrap_or(0);
        text += &format!(
            "| `{}` | {} | {} | {} | {} | {} | {} | {} and {} | {} |\n",
            row.suite,
            row.tests,
            row.plain,
            same(Mode::Server),
            same(Mode::Client),
            same(Mode::Offered),
            same(Mode::Shunt),
            alone(Mode::Server),
            alone(Mode::Offered),
            row.attached
        );
    }
    text
}

/// Puts a run in place of the one that the document has.
///
/// # Errors
///
/// When the document cannot be read or written, or has no such section.
pub(super) fn write(root: &Path, what: &str) -> anyhow::Result<()> {
    let text = document(root)?;
    let new = replaced(&text, what);
    ensure!(new.is_some(), "{KNOWN} has no section `{RUNS}` that begins a table");
    let path = root.join(KNOWN);
    fs::write(&path, new.unwrap_or_default())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The document with another run; what people wrote below the table stays.
fn replaced(text: &str, what: &str) -> Option<String> {
    let (before, section, after) = split(text, RUNS)?;
    let end = section.rfind("|\n")? + 2;
    Some(format!("{before}\n{what}{}{after}", &section[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "# Conformance\n\n## What ran\n\nYesterday.\n\n| module | tests |\n| --- | --- |\n\
        | `test_socket` | 7 |\n\nA word of a person.\n\n## Known differences\n\n| Test | Outcome | Reason |\n\
        | --- | --- | --- |\n| `test.test_socket.A.test_b` | skip | it counts descriptors |\n`not.a.row`\n\n\
        ## Our own tests\n\n| `oracle::transfer` | x | decision |\n";

    #[test]
    fn known_differences_are_those_of_their_section() {
        let (_, section, _) = split(DOCUMENT, DIFFERENCES).unwrap();
        let known = parse_known(section);
        assert_eq!(known.len(), 1, "{known:?}");
        assert_eq!(known["test.test_socket.A.test_b"], "it counts descriptors");
        assert!(split("# Conformance\n", DIFFERENCES).is_none());
    }

    #[test]
    fn a_section_may_be_the_last() {
        let (before, section, after) = split("a\n## What ran\nb\n", RUNS).unwrap();
        assert_eq!((before, section, after), ("a\n## What ran\n", "b\n", ""));
    }

    #[test]
    fn a_run_takes_the_place_of_the_last() {
        let new = replaced(DOCUMENT, "Today.\n\n| `test_socket` | 8 |\n").unwrap();
        assert!(new.contains(
            "## What ran\n\nToday.\n\n| `test_socket` | 8 |\n\nA word of a person.\n\n## Known"
        ));
        assert!(!new.contains("Yesterday") && !new.contains("| 7 |"));
        assert!(new.ends_with("| `oracle::transfer` | x | decision |\n"));
    }

    #[test]
    fn the_document_has_both_sections() {
        let root = crate::workspace_root();
        known_differences(&root).unwrap();
        assert!(replaced(&document(&root).unwrap(), "x\n").is_some());
    }

    #[test]
    fn a_row_says_how_many_used_shared_memory() {
        let row = Row {
            suite: "test_socket",
            tests: 9,
            plain: "8 ok, 1 skip".into(),
            same: [(Mode::Shunt, 9)].into(),
            attached: 42,
            alone: [(Mode::Server, 5), (Mode::Offered, 6)].into(),
        };
        let text = what_ran("Today.", &[row]);
        assert!(text.starts_with("Today.\n\n| module |"), "{text}");
        assert!(
            text.ends_with("| `test_socket` | 9 | 8 ok, 1 skip | - | - | - | 9 | 5 and 6 | 42 |\n"),
            "{text}"
        );
    }
}
