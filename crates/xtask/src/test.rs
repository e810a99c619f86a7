//! `cargo xtask test`: everything a contributor must pass, each step with its time, all steps even
//! if one failed, and one line at the end that says how many tests ran.

mod steps;
mod tally;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;

use crate::install;
use steps::{Outcome, Plan, Report};
use tally::Tally;

const USAGE: &str = "\
usage: cargo xtask test [--install] [--quick]

  --install   first fetch the Debian packages that the tests drive and this machine lacks, and two clients of file
              servers from PyPI (into target/python)
  --quick     fewer seeds (SHUNT_TEST_QUICK=1), no loom models, no documentation
";

#[derive(Clone, Copy, Debug, Default)]
struct Options {
    install: bool,
    quick: bool,
}

fn parse(args: &[String]) -> anyhow::Result<Option<Options>> {
    let mut options = Options::default();
    for arg in args {
        match arg.as_str() {
            "--install" => options.install = true,
            "--quick" => options.quick = true,
            "--help" | "-h" => return Ok(None),
            other => bail!("`cargo xtask test` has no {other}\n\n{USAGE}"),
        }
    }
    Ok(Some(options))
}

/// Runs all of it; the exit code is that of the whole.
///
/// # Errors
///
/// When it could not begin. What fails later is in the exit code and in the last line.
pub(crate) fn main(args: &[String]) -> anyhow::Result<ExitCode> {
    let Some(options) = parse(args)? else {
        print!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    };
    install::check("test", &[], options.install)?;
    let reports = Plan::new(options.quick).run();
    Ok(conclude(&reports))
}

fn conclude(reports: &[Report]) -> ExitCode {
    println!("\n{:<34} {:>9}", "step", "time");
    for report in reports {
        println!("{:<34} {:>9}  {}", report.name, seconds(report.took), report.outcome);
    }
    let total = reports.iter().fold(Tally::default(), |sum, report| sum.and(&report.counted()));
    if !total.skips.is_empty() {
        println!("\nskipped, with the reason:");
        total.skips.iter().for_each(|(test, why)| println!("  {test}: {why}"));
    }
    let ran = total.passed + total.failed > 0;
    if !ran {
        println!("\nno test ran: that is a failure");
    }
    println!("\n{total}");
    let failed = reports.iter().any(|report| matches!(report.outcome, Outcome::Failed(_)));
    if ran && !failed && total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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
        assert!(both.install && both.quick);
        assert!(parse(&words("--help")).unwrap().is_none());
        assert!(parse(&words("--fast")).is_err());
    }
}
