//! `cargo xtask test`: everything a contributor must pass, each step with its time, all steps even
//! if one failed, and one line at the end that says how many tests ran.

mod steps;
pub(crate) mod tally;

use std::process::{Child, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::{autogroup, install};
use steps::{Outcome, Plan, Report};
use tally::Tally;

const USAGE: &str = "\
usage: cargo xtask test [--install] [--lacking] [--quick]

  --install   first fetch the Debian packages that the tests drive and this machine lacks, and from PyPI two clients of
              file servers and a checker of spelling (into target/python); before the step that wants them QEMU and a
              kernel for it (into target/interop); as this is what CI does, it fails when all of it takes over 45
              minutes, and says so when over 25, which is the aim
  --lacking   run although programs are absent: what wants them is skipped. Without it that is a failure, before
              anything has run
  --quick     fewer seeds (SHUNT_TEST_QUICK=1), no loom models, no documentation, no real kernels
";

#[derive(Clone, Copy, Debug, Default)]
struct Options {
    install: bool,
    lacking: bool,
    quick: bool,
}

fn parse(args: &[String]) -> anyhow::Result<Option<Options>> {
    let mut options = Options::default();
    for arg in args {
        match arg.as_str() {
            "--install" => options.install = true,
            "--lacking" => options.lacking = true,
            "--quick" => options.quick = true,
            "--help" | "-h" => return Ok(None),
            other => bail!("`cargo xtask test` has no {other}\n\n{USAGE}"),
        }
    }
    Ok(Some(options))
}

/// How long all of it is meant to take on two cores, from nothing.
const AIM: Duration = Duration::from_secs(25 * 60);
/// How long it may take there: a machine that is slow today is no failure, steps that have grown are.
const TIME_MAX: Duration = Duration::from_secs(45 * 60);

/// Runs all of it; the exit code is that of the whole.
///
/// # Errors
///
/// When it could not begin. What fails later is in the exit code and in the last line.
pub(crate) fn main(args: &[String]) -> anyhow::Result<ExitCode> {
    let start = Instant::now();
    let Some(options) = parse(args)? else {
        print!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    };
    // What is fetched keeps the network busy, and what is built the cores. What goes wrong with it the step says.
    let ahead = options.install.then(Ahead::begin);
    let absent = install::check("test", &[], options.install)?;
    if let Some(why) = refusal(options, absent) {
        bail!(why);
    }
    let begin = Instant::now();
    ahead.into_iter().for_each(Ahead::go_on);
    let reports = {
        let _off = autogroup::Off::for_now();
        Plan::new(options.quick, options.install).run()
    };
    let is_judged = options.install;
    Ok(conclude(&reports, begin.elapsed(), is_judged.then(|| start.elapsed())))
}

/// A build that has begun before its step; it ends with us if nothing is run.
struct Ahead(Option<Child>);

impl Ahead {
    fn begin() -> Self {
        let mut command = steps::build();
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok())
    }

    /// Its step waits for it, as builds wait for each other.
    fn go_on(mut self) {
        if let Some(mut child) = self.0.take() {
            thread::spawn(move || child.wait());
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Why nothing is run with so many programs absent: tests that were skipped for want of them have shown nothing, and
/// whoever has not said so does not know. With `--install` they were to be had, and could not.
fn refusal(options: Options, absent: usize) -> Option<String> {
    if options.install && absent > 0 && !options.lacking {
        let words = "programs that the tests drive could not be installed, so nothing was run: `cargo xtask test \
                     --install --lacking` runs what does without them";
        return Some(format!("{absent} {words}"));
    }
    (absent > 0 && !options.lacking).then(|| {
        format!(
            "{absent} of the programs that the tests drive are absent, so nothing was run: `{}` brings them and \
             runs the tests, `cargo xtask test --lacking` runs what does without them",
            install::remedy("test")
        )
    })
}

/// `took`: all of the steps, some of which run beside each other. `judged`: how long it took from the beginning, where
/// that is to be judged.
fn conclude(reports: &[Report], took: Duration, judged: Option<Duration>) -> ExitCode {
    println!("\n{:<34} {:>9}", "step", "time");
    for report in reports {
        println!("{:<34} {:>9}  {}", report.name, seconds(report.took), report.outcome);
    }
    println!("{:<34} {:>9}", "all of them", seconds(took));
    let total = reports.iter().fold(Tally::default(), |sum, report| sum.and(&report.counted()));
    if total.noted > 0 {
        println!("\nnoted by tests that went on: {} times (see above)", total.noted);
    }
    if !total.skips.is_empty() {
        println!("\nskipped, with the reason:");
        total.skips.iter().for_each(|(test, why)| println!("  {test}: {why}"));
    }
    if !total.failures.is_empty() {
        println!("\nfailed, with what they printed:");
        total.failures.iter().for_each(|failure| println!("{failure}"));
    }
    let ran = total.passed + total.failed > 0;
    if !ran {
        println!("\nno test ran: that is a failure");
    }
    let time = judged.map_or(Ok(String::new()), judgement);
    match &time {
        Ok(line) | Err(line) if line.is_empty() => {}
        Ok(line) | Err(line) => println!("\n{line}"),
    }
    println!("\n{}", last_words(reports, &total));
    let failed = reports.iter().any(|report| matches!(report.outcome, Outcome::Failed(_)));
    let is_good = ran && !failed && total.failed == 0 && time.is_ok();
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What is to be said of the time that all of it took, what was installed and built included.
fn judgement(took: Duration) -> Result<String, String> {
    let minutes = |time: Duration| format!("{:.1} minutes", time.as_secs_f64() / 60.0);
    let (all, aim) = (minutes(took), minutes(AIM));
    if took > TIME_MAX {
        return Err(format!("FAILED: it took {all}, and may take {}", minutes(TIME_MAX)));
    }
    Ok(if took > AIM {
        format!("TOO LONG: it took {all}, and is meant to take {aim} on two cores")
    } else {
        format!("it took {all}, of the {aim} that it is meant to take on two cores")
    })
}

/// Which steps did not run, if any, and why, and how many tests did: that is the last line, and alone on it, for who reads
/// it by machine.
fn last_words(reports: &[Report], total: &Tally) -> String {
    let mut lines = Vec::new();
    for report in reports {
        if let Outcome::Skipped(why) = &report.outcome {
            lines.push(format!("NOT RUN: {}: {why}", report.name));
        }
    }
    if !lines.is_empty() {
        lines.push(format!("{} of {} steps skipped", lines.len(), reports.len()));
    }
    lines.push(total.to_string());
    lines.join("\n")
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_are_known_or_refused() {
        let both = parse(&words("--quick --install")).unwrap().unwrap();
        assert!(both.install && both.quick && !both.lacking);
        assert!(parse(&words("--lacking")).unwrap().unwrap().lacking);
        assert!(parse(&words("--help")).unwrap().is_none());
        assert!(parse(&words("--fast")).is_err());
    }
    #[test]
    fn with_programs_absent_nothing_runs_and_the_command_that_brings_them_is_named() {
        let with = |line| parse(&words(line)).unwrap().unwrap();
        let why = refusal(with("--quick"), 3).unwrap();
        assert!(why.starts_with("3 of") && why.contains("`cargo xtask test --install`"), "{why}");
        assert_eq!(refusal(with("--quick"), 0), None);
        assert_eq!(refusal(with("--lacking"), 3), None, "somebody wants just that");
        assert!(refusal(with("--install"), 3).is_some(), "they could not be had");
        assert_eq!(refusal(with("--install --lacking"), 3), None);
    }

    #[test]
    fn steps_that_were_skipped_are_named_before_the_last_line() {
        let outcomes = ["", "no typos here", "no cargo-deny here"];
        let reports = outcomes.map(|why| {
            Report::without_tests(match why {
                "" => Outcome::Passed,
                why => Outcome::Skipped(why.to_owned()),
            })
        });
        let total = Tally { passed: 7, ..Tally::default() };
        assert_eq!(
            last_words(&reports, &total),
            "NOT RUN: a step: no typos here\n\
             NOT RUN: a step: no cargo-deny here\n\
             2 of 3 steps skipped\n\
             7 passed, 0 failed"
        );
        assert_eq!(last_words(&reports[..1], &total), "7 passed, 0 failed");
    }
    #[test]
    fn what_takes_too_long_is_told_and_then_a_failure() {
        let of = |minutes: u64| judgement(Duration::from_secs(minutes * 60));
        assert_eq!(
            of(24),
            Ok("it took 24.0 minutes, of the 25.0 minutes that it is meant to take on two cores"
                .to_owned())
        );
        assert!(of(26).unwrap().starts_with("TOO LONG: it took 26.0 minutes, and is meant to"));
        assert!(of(45).is_ok());
        let why = of(46).unwrap_err();
        assert_eq!(why, "FAILED: it took 46.0 minutes, and may take 45.0 minutes");
    }

    #[test]
    fn a_time_that_is_too_long_fails_what_else_is_good() {
        let step = Report::with_a_test(Outcome::Passed);
        let steps = std::slice::from_ref(&step);
        assert_eq!(conclude(steps, AIM, None), ExitCode::SUCCESS);
        assert_eq!(conclude(steps, AIM, Some(AIM)), ExitCode::SUCCESS);
        assert_eq!(conclude(steps, AIM, Some(2 * AIM)), ExitCode::FAILURE);
    }
}
