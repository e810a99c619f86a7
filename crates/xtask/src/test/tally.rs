//! How many tests ran, read from what `cargo test` prints while it prints it.

use std::collections::VecDeque;
use std::fmt;

/// Tests counted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// Ignored by an attribute; those that skipped themselves are in `skips`.
    pub(crate) ignored: usize,
    /// Tests that said `skipped: reason` and ended well, with the reason.
    pub(crate) skips: Vec<(String, String)>,
    /// Tests that failed, with what they printed: the beginning and the end of it.
    pub(crate) failures: Vec<Failure>,
    /// Things that tests `noted:` and went on from: a difference that did not come again, for one.
    pub(crate) noted: usize,
}

/// A test that failed and what it had printed, as far as somebody reads who was not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failure {
    test: String,
    lines: VecDeque<String>,
    /// Lines of the middle that are not in `lines`.
    left_out: usize,
}

impl Failure {
    /// Lines from its beginning, and as many from its end.
    const LINES: usize = 20;

    fn push(&mut self, line: &str) {
        if self.lines.len() == 2 * Self::LINES {
            self.lines.remove(Self::LINES);
            self.left_out += 1;
        }
        self.lines.push_back(line.to_owned());
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}:", self.test)?;
        for (i, line) in self.lines.iter().enumerate() {
            if i == Self::LINES && self.left_out > 0 {
                write!(f, "\n    [{} lines]", self.left_out)?;
            }
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

impl Tally {
    /// Both together.
    pub(crate) fn and(mut self, other: &Self) -> Self {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.noted += other.noted;
        self.skips.extend_from_slice(&other.skips);
        self.failures.extend_from_slice(&other.failures);
        self
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        match self.ignored + self.skips.len() {
            0 => Ok(()),
            skipped => write!(f, ", {skipped} skipped"),
        }
    }
}

/// Reads the output of test harnesses run with `--show-output`.
///
/// What passing tests printed is read for `skipped:` and then hidden, but for `noted:`; all else is for people.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) tally: Tally,
    /// Tests in the harness that runs; what tests print may look like the end of another one.
    running: Option<usize>,
    /// Outcomes that the harness has told one by one: all there is if it crashes.
    told: Tally,
    /// Inside of what passing tests printed.
    in_successes: bool,
    /// Inside of what failing tests printed.
    in_failures: bool,
    test: String,
    skips: Vec<(String, String)>,
}

impl Reader {
    /// Takes a line; answers whether a person wants to see it.
    pub(crate) fn handle_line(&mut self, line: &str) -> bool {
        match line {
            "successes:" => self.in_successes = true,
            // What they printed comes first, and then once more who they are.
            "failures:" => {
                self.in_successes = false;
                self.in_failures = !self.in_failures;
            }
            _ => {}
        }
        if !self.in_successes {
            if let Some(tests) = parse_start(line) {
                self.finish();
                self.running = Some(tests);
            }
            self.handle_outcome(line);
        }
        if let Some(result) = parse_result(line)
            && self.running == Some(result.iter().sum())
        {
            self.handle_end(result);
        }
        if self.in_successes {
            self.handle_success(line);
        }
        if self.in_failures {
            self.handle_failure(line);
        }
        let noted = line.starts_with("noted: ");
        self.tally.noted += usize::from(noted);
        !self.in_successes || noted
    }

    /// No more lines of this harness. One that began and did not end has crashed: what it had told
    /// counts, and so does the crash.
    pub(crate) fn finish(&mut self) {
        let told = std::mem::take(&mut self.told);
        if self.running.take().is_some() {
            self.tally = std::mem::take(&mut self.tally).and(&told);
            self.tally.failed += 1;
            (self.in_successes, self.in_failures) = (false, false);
            self.skips.clear();
        }
    }

    fn handle_outcome(&mut self, line: &str) {
        if !line.starts_with("test ") {
            return;
        }
        match line.rsplit_once(" ... ").map(|(_, outcome)| outcome) {
            Some("ok") => self.told.passed += 1,
            Some("FAILED") => self.told.failed += 1,
            Some(outcome) if outcome.starts_with("ignored") => self.told.ignored += 1,
            _ => {}
        }
    }

    fn handle_end(&mut self, [passed, failed, ignored, measured]: [usize; 4]) {
        self.running = None;
        self.told = Tally::default();
        (self.in_successes, self.in_failures) = (false, false);
        self.tally.passed += passed.saturating_sub(self.skips.len()) + measured;
        self.tally.failed += failed;
        self.tally.ignored += ignored;
        self.tally.skips.append(&mut self.skips);
    }

    fn handle_failure(&mut self, line: &str) {
        if let Some(test) = heading(line) {
            self.tally.failures.push(Failure { test: test.to_owned(), ..Failure::default() });
        } else if let Some(failure) = self.tally.failures.last_mut()
            && !matches!(line, "" | "failures:")
        {
            failure.push(line);
        }
    }

    fn handle_success(&mut self, line: &str) {
        if let Some(test) = heading(line) {
            test.clone_into(&mut self.test);
        } else if let Some(why) = line.strip_prefix("skipped: ")
            && self.skips.last().is_none_or(|(test, _)| *test != self.test)
        {
            self.skips.push((self.test.clone(), why.to_owned()));
        }
    }
}

/// `---- the::test stdout ----`, before what it has printed.
fn heading(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// `running 4 tests`.
fn parse_start(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("running ")?;
    rest.strip_suffix(" tests").or_else(|| rest.strip_suffix(" test"))?.parse().ok()
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …`, of which these four.
fn parse_result(line: &str) -> Option<[usize; 4]> {
    let rest = line.strip_prefix("test result: ")?;
    let (verdict, counts) = rest.split_once(". ")?;
    if !matches!(verdict, "ok" | "FAILED") {
        return None;
    }
    let mut fields = counts.split("; ");
    let mut next = |unit: &str| fields.next()?.strip_suffix(unit)?.trim().parse().ok();
    Some([next("passed")?, next("failed")?, next("ignored")?, next("measured")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 4 tests
test echo::slow ... ignored
test echo::bytes ... ok
test echo::root_only ... ok
test echo::wrong ... FAILED

successes:

---- echo::bytes stdout ----
sent 3 bytes
noted: twice
test result: ok. 1000 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0s
test failed successfully: not a result line

---- echo::root_only stdout ----
skipped: needs root
skipped: and iproute2


successes:
    echo::bytes
    echo::root_only

failures:

---- echo::wrong stdout ----
skipped: not counted, for it failed
thread 'echo::wrong' panicked

failures:
    echo::wrong

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

    fn read(output: &str) -> (Tally, Vec<&str>) {
        let mut reader = Reader::default();
        let shown = output.lines().filter(|line| reader.handle_line(line)).collect();
        reader.finish();
        (reader.tally, shown)
    }

    #[test]
    fn a_test_that_skipped_itself_did_not_pass() {
        let (tally, _) = read(OUTPUT);
        let skips = vec![("echo::root_only".to_owned(), "needs root".to_owned())];
        let said = ["skipped: not counted, for it failed", "thread 'echo::wrong' panicked"];
        let lines = said.map(str::to_owned).into();
        let failures = vec![Failure { test: "echo::wrong".to_owned(), lines, left_out: 0 }];
        let noted = 1;
        assert_eq!(tally, Tally { passed: 1, failed: 1, ignored: 1, skips, failures, noted });
        assert_eq!(tally.to_string(), "1 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn of_what_a_failure_printed_both_ends_are_kept() {
        let mut failure = Failure { test: "it".to_owned(), ..Failure::default() };
        (0..41).for_each(|n| failure.push(&n.to_string()));
        let said = failure.to_string();
        assert!(said.starts_with("  it:\n    0\n    1\n"), "{said}");
        assert!(said.contains("\n    19\n    [1 lines]\n    21\n"), "{said}");
        assert!(said.ends_with("\n    40"), "{said}");
    }

    #[test]
    fn people_see_failures_and_not_what_passing_tests_printed() {
        let (_, shown) = read(OUTPUT);
        assert!(shown.contains(&"thread 'echo::wrong' panicked"));
        assert!(shown.contains(&"test echo::bytes ... ok"));
        assert!(!shown.contains(&"sent 3 bytes"));
        assert!(shown.contains(&"noted: twice"), "but what they want to have said");
    }

    #[test]
    fn harnesses_add_up() {
        let ok = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let (tally, _) = read(&ok.repeat(2));
        assert_eq!(tally.to_string(), "6 passed, 0 failed");
    }

    #[test]
    fn a_harness_that_crashes_counts_what_it_had_told_and_itself() {
        let (tally, _) = read(
            "running 4 tests\n\
             test a ... ok\n\
             test b ... FAILED\n\
             test c ... ignored, by hand\n\
             running 1 test\n\
             test d ... ok\n\
             test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(tally.to_string(), "2 passed, 2 failed, 1 skipped");
        let (tally, _) = read("running 2 tests\ntest a ... ok\n");
        assert_eq!(tally.to_string(), "1 passed, 1 failed");
    }

    #[test]
    fn a_harness_that_did_not_begin_does_not_end() {
        let (tally, _) = read("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured\n");
        assert_eq!(tally, Tally::default());
    }

    #[test]
    fn other_lines_count_nothing() {
        for line in [
            "test result: maybe. 3 passed; 0 failed; 0 ignored; 0 measured",
            "test result: ok. x",
            "",
        ] {
            assert_eq!(parse_result(line), None, "{line}");
        }
    }
}
