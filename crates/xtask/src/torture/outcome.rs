//! What became of tests: smbtorture's output, and the tables in which it is kept.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};

/// How a test ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// `success`, `failure`, `skip`, `timeout` or `crash`.
    pub(crate) result: String,
    pub(crate) seconds: f64,
    pub(crate) note: String,
}

impl Outcome {
    pub(crate) fn passed(&self) -> bool {
        self.result == "success"
    }
}

/// Outcomes by suite and test.
pub(crate) type Table = BTreeMap<(String, String), Outcome>;

/// The columns of a table.
const HEAD: &str = "suite\ttest\tresult\tseconds\tshare\tnote";

/// Reads what smbtorture says with `--format=subunit`. A test that began and did not end is not in
/// it; its name is the second value.
pub(crate) fn parse_subunit(text: &str) -> (Vec<(String, Outcome)>, Option<String>) {
    let mut done = Vec::new();
    let (mut running, mut now, mut begun) = (None, 0.0, 0.0);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some((word, rest)) = line.split_once(": ") else { continue };
        match word {
            "time" => now = time_of_day(rest).unwrap_or(now),
            "test" => {
                begun = now;
                running = Some(rest.to_owned());
            }
            "success" | "failure" | "error" | "skip" | "xfail" => {
                let (name, has_note) = rest.strip_suffix(" [").map_or((rest, false), |n| (n, true));
                let note = if has_note { note(&mut lines) } else { String::new() };
                let result = if matches!(word, "error" | "xfail") { "failure" } else { word };
                // Midnight is no reason for a negative time.
                let seconds = (now - begun).max(0.0);
                done.push((name.to_owned(), Outcome { result: result.into(), seconds, note }));
                running = None;
            }
            _ => {}
        }
    }
    (done, running)
}

/// The lines up to the closing bracket, as one.
fn note<'a>(lines: &mut impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<&str> = lines.take_while(|line| *line != "]").collect();
    let text = lines.join(" ").replace('\t', " ").replace("../../", "");
    text.trim().chars().take(200).collect()
}

/// Seconds of `2026-11-21 18:32:29.938198` since midnight.
fn time_of_day(text: &str) -> Option<f64> {
    let mut parts = text.rsplit(' ').next()?.split(':').map(|part| part.parse::<f64>().ok());
    let (hours, minutes, seconds) = (parts.next()??, parts.next()??, parts.next()??);
    Some((hours * 60.0 + minutes) * 60.0 + seconds)
}

/// Reads a table.
///
/// # Errors
///
/// When it cannot be read or is none.
pub(crate) fn read(path: &Path) -> anyhow::Result<Table> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut lines = text.lines();
    ensure!(lines.next() == Some(HEAD), "{} does not begin with `{HEAD}`", path.display());
    let mut table = Table::new();
    for line in lines {
        let cells: Vec<&str> = line.splitn(6, '\t').collect();
        ensure!(cells.len() == 6, "{}: not six columns: {line}", path.display());
        let outcome = Outcome {
            result: cells[2].into(),
            seconds: cells[3].parse().with_context(|| format!("seconds in: {line}"))?,
            note: cells[5].into(),
        };
        table.insert((cells[0].into(), cells[1].into()), outcome);
    }
    Ok(table)
}

/// Writes a table; `share` says which share a suite ran on.
///
/// # Errors
///
/// When it cannot be written.
pub(crate) fn write(
    path: &Path,
    table: &Table,
    share: impl Fn(&str) -> &'static str,
) -> anyhow::Result<()> {
    let mut text = format!("{HEAD}\n");
    for ((suite, test), outcome) in table {
        let Outcome { result, seconds, note } = outcome;
        writeln!(text, "{suite}\t{test}\t{result}\t{seconds:.2}\t{}\t{note}", share(suite))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Reasons by suite and test, kept by hand: three columns.
///
/// # Errors
///
/// When the file cannot be read or a line has other columns.
pub(crate) fn read_reasons(path: &Path) -> anyhow::Result<BTreeMap<(String, String), String>> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut reasons = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let cells: Vec<&str> = line.splitn(3, '\t').collect();
        ensure!(cells.len() == 3, "{}: not three columns: {line}", path.display());
        reasons.insert((cells[0].into(), cells[1].into()), cells[2].into());
    }
    Ok(reasons)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
smbtorture 4.17.12-Debian
time: 2026-11-21 18:32:30.341999
progress: 3
test: complex
time: 2026-11-21 18:32:30.342211
time: 2026-11-21 18:32:31.342211
failure: complex [
../../source4/torture/smb2/getinfo.c:766: status was NT_STATUS_INVALID_PARAMETER
]
test: granted
success: granted
test: Testing wide-a
skip: Testing wide-a [
why not
]
test: hangs
time: 2026-11-21 18:32:32.0
";

    #[test]
    fn results_are_read_with_their_notes() {
        let (done, running) = parse_subunit(OUTPUT);
        let results: Vec<(&str, &str)> =
            done.iter().map(|(name, outcome)| (&**name, &*outcome.result)).collect();
        let expected = [("complex", "failure"), ("granted", "success"), ("Testing wide-a", "skip")];
        assert_eq!(results, expected);
        let expected = "source4/torture/smb2/getinfo.c:766: status was NT_STATUS_INVALID_PARAMETER";
        assert_eq!(done[0].1.note, expected);
        assert!((done[0].1.seconds - 1.0).abs() < 0.1);
        assert_eq!(running.as_deref(), Some("hangs"));
    }

    #[test]
    fn what_is_written_can_be_read() {
        let dir = std::env::temp_dir().join(format!("torture-table-{}", std::process::id()));
        let outcome = Outcome { result: "skip".into(), seconds: 1.5, note: "why".into() };
        let table = Table::from([(("smb2.lock:aio".into(), "a.b".into()), outcome)]);
        write(&dir, &table, |_| "aio").unwrap();
        let back = read(&dir).unwrap();
        fs::remove_file(&dir).unwrap();
        assert_eq!(back, table);
    }
}
