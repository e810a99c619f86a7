//! How results are told: one line of JSON for each row, or a table for people; and the record.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;

use super::pairs::Pairs;
use crate::autogroup;

/// What became of a row.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// It was measured; a floor is the ratio it must reach.
    Measured { pairs: Pairs, floor: Option<f64> },
    /// It cannot be measured here, and why.
    Skipped(String),
    /// It failed, and how.
    Failed(String),
}

/// A row's result.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// The row.
    pub(crate) name: String,
    /// Of ours and peer's.
    pub(crate) unit: &'static str,
    /// What became of it.
    pub(crate) outcome: Outcome,
}

impl Line {
    /// Whether it is as it must be. What was not measured is nobody's fault.
    pub(crate) fn passes(&self) -> bool {
        match &self.outcome {
            Outcome::Measured { pairs, floor } => floor.is_none_or(|floor| pairs.ratio >= floor),
            Outcome::Skipped(_) => true,
            Outcome::Failed(_) => false,
        }
    }

    /// One line of JSON, its fields in the order in which people read them.
    pub(crate) fn json(&self) -> String {
        let mut fields = vec![("name", json!(self.name))];
        match &self.outcome {
            Outcome::Measured { pairs, floor } => fields.extend([
                ("ours", json!(rounded(pairs.ours))),
                ("peer", json!(rounded(pairs.peer))),
                ("unit", json!(self.unit)),
                ("ratio", json!(rounded(pairs.ratio))),
                ("ratio_min", json!(rounded(pairs.ratio_min))),
                ("ratio_max", json!(rounded(pairs.ratio_max))),
                ("floor", json!(floor)),
                ("pass", json!(self.passes())),
            ]),
            // Nothing was reached, and nothing missed.
            Outcome::Skipped(why) => {
                fields.extend([("skipped", json!(why)), ("pass", json!(null))])
            }
            Outcome::Failed(how) => fields.extend([("error", json!(how)), ("pass", json!(false))]),
        }
        let fields: Vec<String> =
            fields.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", fields.join(","))
    }

    /// One line of the table.
    pub(crate) fn text(&self) -> String {
        let name = &self.name;
        match &self.outcome {
            Outcome::Measured { pairs, floor } => {
                let (peer, ours) = (short(pairs.peer), short(pairs.ours));
                let spread = format!("{}..{}", short(pairs.ratio_min), short(pairs.ratio_max));
                let floor = floor.map_or("-".into(), floor_text);
                let verdict = if self.passes() { "" } else { "  BELOW" };
                format!(
                    "{name:58} {peer:>8} {ours:>8} {:8} {:>7}x {spread:>14} {floor:>6}{verdict}",
                    self.unit,
                    short(pairs.ratio)
                )
            }
            Outcome::Skipped(why) => format!("{name:58} skipped: {why}"),
            Outcome::Failed(how) => format!("{name:58} FAILED: {how}"),
        }
    }
}

/// As it was set, if that was short.
fn floor_text(floor: f64) -> String {
    let plain = format!("{floor}");
    if plain.len() > 6 { format!("{floor:.3}") } else { plain }
}

/// The head of the table.
pub(crate) fn head() -> String {
    format!(
        "{:58} {:>8} {:>8} {:8} {:>8} {:>14} {:>6}",
        "what", "peer", "ours", "unit", "ratio", "spread", "floor"
    )
}

/// Enough digits for a person.
pub(crate) fn short(figure: f64) -> String {
    match figure.abs() {
        size if size.is_infinite() => "inf".into(),
        size if size >= 999_500.0 => format!("{:.2}M", figure / 1e6),
        size if size >= 9_999.5 => format!("{:.1}k", figure / 1e3),
        size if size >= 99.95 => format!("{figure:.0}"),
        size if size >= 9.995 => format!("{figure:.1}"),
        size if size < 0.0995 && size > 0.0 => format!("{figure:.4}"),
        _ => format!("{figure:.2}"),
    }
}

/// Six digits: no measurement here has more.
fn rounded(figure: f64) -> f64 {
    format!("{figure:.5e}").parse().unwrap_or(figure)
}

/// About how long the row that takes longest may take where there is a limit.
const LONGEST_ROW: Duration = Duration::from_secs(20);

/// All that was measured, told as it comes.
#[derive(Debug)]
pub(crate) struct Book {
    json: bool,
    lines: Vec<Line>,
    begun: Instant,
    limit: Option<Duration>,
}

impl Book {
    /// An empty one; a table for people begins with its head.
    pub(crate) fn new(json: bool) -> Self {
        if !json {
            println!("{}", head());
        }
        Self { json, ..Self::silent() }
    }

    /// Nothing told yet: for who asks for single rows.
    pub(crate) fn silent() -> Self {
        Self { json: false, lines: Vec::new(), begun: Instant::now(), limit: None }
    }

    /// The same, to be done within this time from when it was made: before what is measured is prepared.
    pub(crate) fn within(self, limit: Option<Duration>) -> Self {
        Self { limit, ..self }
    }

    /// Why nothing more is begun, if so: what would be is not likely to be done within the limit.
    pub(crate) fn too_late(&self) -> Option<String> {
        self.too_late_after(self.begun.elapsed())
    }

    fn too_late_after(&self, took: Duration) -> Option<String> {
        let limit = self.limit.filter(|limit| took + LONGEST_ROW > *limit)?;
        let (begun, most) = (took.as_secs(), limit.as_secs());
        Some(format!("{begun} s of the {most} that are promised have gone; `--only` measures it"))
    }

    /// What to tell of a row for which no time is left.
    pub(crate) fn passed_over(&self, name: &str, unit: &'static str) -> Option<Line> {
        let outcome = Outcome::Skipped(self.too_late()?);
        Some(Line { name: name.to_owned(), unit, outcome })
    }

    /// Tells a row.
    pub(crate) fn tell(&mut self, line: Line) {
        println!("{}", if self.json { line.json() } else { line.text() });
        self.lines.push(line);
    }

    /// What came of it all.
    ///
    /// # Errors
    ///
    /// When no row was measured, one is below its floor or failed, or it took longer than it may.
    pub(crate) fn verdict(&self) -> anyhow::Result<()> {
        self.verdict_after(self.begun.elapsed())
    }

    fn verdict_after(&self, took: Duration) -> anyhow::Result<()> {
        self.has_any()?;
        let skipped =
            self.lines.iter().filter(|line| matches!(line.outcome, Outcome::Skipped(_))).count();
        let below = self.lines.iter().filter(|line| !line.passes()).count();
        let all = self.lines.len();
        let seconds = took.as_secs_f64();
        eprintln!(
            "{all} rows, {skipped} skipped, {below} below their floor or failed, in {seconds:.0} s"
        );
        ensure!(below == 0, "{below} of {all} rows are below their floor or failed");
        ensure!(skipped < all, "no row was measured: see above why each was skipped");
        if let Some(limit) = self.limit {
            let most = limit.as_secs();
            ensure!(took <= limit, "it took {seconds:.0} s, and {most} are promised");
        }
        Ok(())
    }

    fn has_any(&self) -> anyhow::Result<()> {
        ensure!(!self.lines.is_empty(), "no row has such a name; `--list` names them");
        Ok(())
    }

    /// Writes `bench/record/DATE-WHAT.txt` and says where it is. `part`: which rows were asked for, if not all; they
    /// have a file of their own. Of the same rows on the same day the last record counts.
    ///
    /// # Errors
    ///
    /// When there is nothing to record, or the file cannot be written.
    pub(crate) fn record(
        &self,
        root: &Path,
        what: &str,
        part: Option<&str>,
        reading: &str,
        command: &str,
    ) -> anyhow::Result<PathBuf> {
        self.has_any()?;
        let date = today(root);
        let part = part.map(|part| format!("-{}", file_name(part))).unwrap_or_default();
        let path = root.join(format!("bench/record/{date}-{what}{part}.txt"));
        let instead = if path.exists() { ", in place of an earlier one of today" } else { "" };
        let mut text = circumstances(root, command)?;
        writeln!(text, "\n{reading}\n")?;
        writeln!(text, "{}", head())?;
        self.lines.iter().try_for_each(|line| writeln!(text, "{}", line.text()))?;
        fs::create_dir_all(root.join("bench/record"))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("recorded in {}{instead}", path.display());
        Ok(path)
    }
}

/// What people have called some rows, as a part of a file's name.
fn file_name(part: &str) -> String {
    const CHARS_MAX: usize = 60;
    let part = part.to_lowercase();
    let words = part.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name = words.collect::<Vec<_>>().join("-");
    name.chars().take(CHARS_MAX).collect()
}

/// The machine, the commit and the command.
fn circumstances(root: &Path, command: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    let cpu = cpu_model();
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    writeln!(text, "cpu      {cpu}, {cpus} of them")?;
    // What stands behind the version names somebody's build.
    let kernel = said(root, "uname", &["-sr"]);
    writeln!(text, "kernel   {}", kernel.split('-').next().unwrap_or_default())?;
    writeln!(text, "control  {}", fs::read_to_string(CONTROL).unwrap_or_default().trim())?;
    let groups = if autogroup::is_on() { "sessions are scheduled as groups" } else { "no" };
    writeln!(text, "groups   {groups}")?;
    writeln!(text, "commit   {}", commit(root))?;
    writeln!(text, "command  {command}")?;
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split(' ').take(3).collect();
    writeln!(text, "load     {} at the end", load.join(" "))?;
    Ok(text)
}

/// The commit that is checked out, and whether files differ from it.
pub(crate) fn commit(root: &Path) -> String {
    let clean = said(root, "git", &["status", "--porcelain"]).is_empty();
    let changed = if clean { "" } else { ", with changes" };
    format!("{}{changed}", said(root, "git", &["rev-parse", "--short=12", "HEAD"]))
}

/// Today, as `2026-01-31`.
pub(crate) fn today(root: &Path) -> String {
    said(root, "date", &["+%F"])
}

const CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split_once(':'))
        .map_or_else(|| "unknown".into(), |(_, model)| model.trim().into())
}

/// What a command prints, or nothing.
fn said(root: &Path, program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(root).output();
    output.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Book, Line, Outcome, rounded, short};
    use crate::bench::pairs::{Better, Pairs};

    fn line(ours: f64, floor: Option<f64>) -> Line {
        let pairs = Pairs::of(&[(100.0, ours)], Better::Higher).unwrap();
        Line { name: "x".into(), unit: "req/s", outcome: Outcome::Measured { pairs, floor } }
    }

    #[test]
    fn a_floor_is_reached_or_not() {
        assert!(line(200.0, Some(2.0)).passes());
        assert!(!line(199.0, Some(2.0)).passes());
        assert!(line(1.0, None).passes());
        assert!(line(199.0, Some(2.0)).text().ends_with("BELOW"));
    }

    #[test]
    fn rows_that_were_all_skipped_show_nothing() {
        let skipped =
            || Line { outcome: Outcome::Skipped("no nginx here".into()), ..line(1.0, None) };
        let mut book = Book::silent();
        book.lines.extend([skipped(), skipped()]);
        let error = book.verdict_after(Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("no row was measured"), "{error}");
        book.lines.push(line(1.0, None));
        book.verdict_after(Duration::ZERO).unwrap();
    }

    #[test]
    fn what_takes_too_long_has_failed() {
        let mut book = Book::silent().within(Some(Duration::from_secs(180)));
        book.lines.push(line(1.0, None));
        book.verdict_after(Duration::from_secs(180)).unwrap();
        let error = book.verdict_after(Duration::from_secs(181)).unwrap_err();
        assert_eq!(error.to_string(), "it took 181 s, and 180 are promised");
        let book = Book { limit: None, ..book };
        book.verdict_after(Duration::from_secs(9999)).unwrap();
    }

    #[test]
    fn what_would_end_too_late_is_not_begun() {
        let book = Book::silent().within(Some(Duration::from_secs(180)));
        assert_eq!(book.too_late_after(Duration::from_secs(160)), None);
        let why = book.too_late_after(Duration::from_secs(161)).unwrap();
        assert!(why.contains("161 s of the 180"), "{why}");
        assert_eq!(Book::silent().too_late_after(Duration::from_secs(9999)), None, "no limit");
    }

    #[test]
    fn a_record_of_some_rows_leaves_that_of_all_alone() {
        let root = crate::bench::stage::new_dir(&std::env::temp_dir().join("shunt-report-test"));
        let root = root.unwrap();
        let mut book = Book::silent();
        book.lines.push(line(150.0, None));
        let record =
            |book: &Book, part| book.record(&root, "local", part, "how to read", "command");
        let all = record(&book, None).unwrap();
        let text = std::fs::read_to_string(&all).unwrap();
        book.lines.push(line(300.0, None));
        let some = record(&book, Some("redis GET c=1, \"one CPU\" quick")).unwrap();
        assert_eq!(std::fs::read_to_string(&all).unwrap(), text);
        let stem = some.file_stem().unwrap().to_str().unwrap();
        assert!(stem.ends_with("-local-redis-get-c-1-one-cpu-quick"), "{stem}");
        assert_ne!(std::fs::read_to_string(&some).unwrap(), text);
        // The same rows once more: the last one counts.
        assert_eq!(record(&book, None).unwrap(), all);
        assert_ne!(std::fs::read_to_string(&all).unwrap(), text);
        // Of nothing there is none: whoever has asked for what is not there would commit it.
        let kept = std::fs::read_to_string(&all).unwrap();
        let error = record(&Book::silent(), None).unwrap_err();
        assert!(error.to_string().starts_with("no row has such a name"), "{error}");
        assert_eq!(std::fs::read_to_string(&all).unwrap(), kept);
        crate::bench::stage::remove_dir(&root);
    }

    #[test]
    fn json_has_each_field() {
        let json: serde_json::Value = serde_json::from_str(&line(300.0, Some(2.0)).json()).unwrap();
        for field in
            ["name", "ours", "peer", "unit", "ratio", "ratio_min", "ratio_max", "floor", "pass"]
        {
            assert!(json.get(field).is_some(), "{field}");
        }
        assert_eq!((&json["ratio"], &json["pass"]), (&3.0.into(), &true.into()));
    }

    /// A reader who looks for rows that are below their floor finds those, and who counts those that have passed does not
    /// count what was not measured.
    #[test]
    fn json_says_of_each_row_whether_it_passed() {
        let of = |outcome| {
            let line = Line { outcome, ..line(1.0, None) };
            serde_json::from_str::<serde_json::Value>(&line.json()).unwrap()
        };
        let skipped = of(Outcome::Skipped("no nginx here".into()));
        assert_eq!(skipped.get("pass"), Some(&serde_json::Value::Null), "{skipped}");
        assert_eq!(skipped["skipped"], "no nginx here");
        assert_eq!(of(Outcome::Failed("hung".into()))["pass"], false);
        let below: serde_json::Value =
            serde_json::from_str(&line(199.0, Some(2.0)).json()).unwrap();
        assert_eq!(below["pass"], false);
    }

    #[test]
    fn figures_are_short() {
        let shorts = [0.0, 0.012, 1.234, 98.76, 123.4, 9999.0, 134_567.0, 3_700_000.0].map(short);
        assert_eq!(shorts, ["0.00", "0.0120", "1.23", "98.8", "123", "9999", "134.6k", "3.70M"]);
        assert_eq!(rounded(1.0 / 3.0), 0.333_333);
    }
}
