//! `cargo xtask demo`: real programs side by side on TCP and under Shunt, in under a minute.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;

use crate::bench::load::Load;
use crate::bench::report::short;
use crate::bench::rows::{self, Row};
use crate::bench::server::{Kind, Server, words};
use crate::bench::stage::{self, Cpus, End, Running, Stage, Way};
use crate::bench::{self, Bench, Options};
use crate::install;

#[derive(Parser)]
#[command(
    bin_name = "cargo xtask demo",
    about = "Builds Shunt, then shows programs side by side on TCP and under `shunt run`"
)]
struct Cli {
    /// Fetch nginx, wrk and redis first (Debian packages)
    #[arg(long)]
    install: bool,
    /// Show what was built before
    #[arg(long)]
    no_build: bool,
    /// Show programs built in this workspace only, as where nginx, wrk and redis are absent
    #[arg(long, conflicts_with = "install")]
    built_here: bool,
}

/// Programs of others that it shows, where they are present.
pub(crate) const PROGRAMS: &[&str] = &["nginx", "wrk", "redis-server", "redis-benchmark"];
/// Lines of `shunt stat` that are shown: enough to see how it looks.
const STAT_LINES: usize = 16;
/// While `shunt stat` is asked, this many connections are busy.
const STAT_CONNECTIONS: u32 = 4;

/// Runs `cargo xtask demo`.
///
/// # Errors
///
/// When it cannot be built, or something that is shown fails.
pub(crate) fn main(args: &[String]) -> anyhow::Result<()> {
    let cli =
        Cli::parse_from(["cargo xtask demo"].into_iter().chain(args.iter().map(String::as_str)));
    if !cli.built_here {
        install::check("demo", PROGRAMS, cli.install)?;
    }
    let root = crate::workspace_root();
    if !cli.no_build {
        println!("building (cargo build --release) ...");
        bench::build(&root, bench::LOCAL)?;
    }
    stage::clean_up_when_interrupted()?;
    bench::warn_when_busy();
    let stage = Stage::new(&bench::built(&root))?;
    let rows = shown(|kind| !(cli.built_here && is_of_others(kind)) && kind.absent().is_none());
    println!(
        "\nThe same programs, unchanged, server on CPU 0 and client on CPU 1: first over TCP, then each"
    );
    println!("started by `shunt run`:\n");
    let options = Options::brief();
    let mut bench = Bench::new(stage, &options);
    let failed = compare(&mut bench, &rows);
    let web = rows.first().context("there is always a web server")?.server;
    drop(bench);
    show_connections(&Stage::new(&bench::built(&root))?, web)?;
    println!(
        "\nYour own:  target/release/shunt run -- PROGRAM ARGS     (both ends; see `shunt run --help`)"
    );
    ensure!(failed == 0, "{failed} of {} rows failed", rows.len());
    Ok(())
}

/// Whether a server is one that people know.
fn is_of_others(kind: Kind) -> bool {
    rows::known().iter().any(|row| row.server == kind)
}

/// Programs that people know where they are present, ours where not.
fn shown(is_present: impl Fn(Kind) -> bool) -> Vec<Row> {
    let mut rows = rows::known();
    rows.retain(|row| is_present(row.server));
    if !is_present(Kind::Nginx) {
        rows.splice(0..0, rows::built_here());
    }
    rows.push(rows::ping_pong());
    rows
}

/// Prints the table and returns how many rows failed.
fn compare(bench: &mut Bench<'_>, rows: &[Row]) -> usize {
    println!("  {:32} {:>10} {:>12}   {:8} {:>6}", "", "TCP", "Shunt", "", "ratio");
    let mut failed = 0;
    for row in rows {
        match bench.compare(row) {
            Ok(pairs) => println!(
                "  {:32} {:>10} {:>12}   {:8} {:>5.1}x",
                row.name,
                short(pairs.peer),
                short(pairs.ours),
                row.unit,
                pairs.ratio
            ),
            Err(error) => {
                failed += 1;
                bench.stop_servers();
                println!("  {:32} failed: {error:#}", row.name);
            }
        }
    }
    failed
}

/// Asks `shunt stat` while a web server is busy, and prints what it says.
fn show_connections(stage: &Stage, web: Kind) -> anyhow::Result<()> {
    let cpus = Cpus::Two;
    let server = Server::start(stage, web, Way::Shunt, cpus)?;
    let dir = stage.new_dir()?;
    let mut client = stage.prefix(Way::Shunt, End::Client, cpus);
    let load = match web {
        Kind::Nginx => Load::Wrk { c: STAT_CONNECTIONS, close: false },
        _ => Load::Http { c: STAT_CONNECTIONS, close: false },
    };
    client.extend(load.words(stage, &server, 3.0)?);
    let running = Running::start(&client, &dir, &[])?;
    sleep(Duration::from_millis(1500));
    let stat = Command::new(stage.program("shunt"))
        .args(words("stat"))
        .output()
        .context("cannot start shunt stat")?;
    let text = String::from_utf8_lossy(&stat.stdout).into_owned();
    println!("\nWhile {STAT_CONNECTIONS} connections are busy, `shunt stat` says:\n");
    for line in text.lines().take(STAT_LINES) {
        println!("  {line}");
    }
    if text.lines().count() > STAT_LINES {
        println!("  ...");
    }
    let said = String::from_utf8_lossy(&stat.stderr).into_owned();
    ensure!(stat.status.success(), "shunt stat failed ({}): {}", stat.status, said.trim());
    running.finish(Duration::from_secs(20)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(is_present: impl Fn(Kind) -> bool) -> Vec<Kind> {
        let mut servers: Vec<_> = shown(is_present).iter().map(|row| row.server).collect();
        servers.dedup();
        servers
    }

    #[test]
    fn programs_built_here_stand_in_for_those_that_are_absent() {
        assert_eq!(servers(|_| true), [Kind::Nginx, Kind::Redis, Kind::PingPong]);
        assert_eq!(servers(|kind| !is_of_others(kind)), [Kind::Httpd, Kind::PingPong]);
        // Who has only one of both sees that.
        let but_nginx = servers(|kind| kind != Kind::Nginx);
        assert_eq!(but_nginx, [Kind::Httpd, Kind::Redis, Kind::PingPong]);
        assert_eq!(servers(|kind| kind != Kind::Redis), [Kind::Nginx, Kind::PingPong]);
    }
}
