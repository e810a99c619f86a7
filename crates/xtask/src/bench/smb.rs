//! `cargo xtask bench smb`: `shunt serve` and Samba's server, the same files, the same load.
//!
//! For each load the best of Samba's configurations is found first, then both are measured in turn.

mod rows;
mod servers;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::pairs::Pairs;
use super::report::{Book, Line, Outcome};
use super::stage::{self, End, Running, Stage};
use super::{Options, build, built, cpus, warn_when_busy};
use crate::smbd::{self, PASSWORD, USERS};
use crate::torture::cannot_serve;
use rows::{Medium, Metric, Row};
use servers::{Folders, Kind, SMBD, Server, Setup, size_of_each};

const READING: &str = "\
peer: Samba's smbd in the configuration that is the best one for the row; ours: `shunt serve`; ratio: how many
times as good, the median over the pairs; spread: the worst and the best pair. Client and servers share the CPUs.
Data that was read is dropped in the client's kernel. Eight operations are in flight, if nothing else is said.
Under shunt run: ours and its client; the peer and its client are on TCP. A CPU each: the server has CPU 0 and the
client CPU 1. Eight clients have files of 128 MiB, fewer of 512.";

/// What `cargo xtask bench smb` is told.
#[derive(Args, Debug)]
pub(crate) struct SmbOptions {
    #[command(flatten)]
    options: Options,
    /// smbd in place of `shunt serve`: shows what equals look like here; no floors
    #[arg(long)]
    against_itself: bool,
}

struct Bench<'a> {
    // Servers end before the folders that they serve go.
    servers: Vec<Server>,
    folders: Folders,
    stage: Stage,
    options: &'a Options,
    ours: Kind,
    peers: Peers,
}

/// Which of Samba's configurations rows were measured against, and which could not be tried.
#[derive(Debug, Default)]
struct Peers {
    /// The row, and its best one, by its place in [`SMBD`].
    best: Vec<(String, usize)>,
    /// The configuration, and why; each once.
    left_out: Vec<(&'static str, String)>,
}

impl Peers {
    fn leave_out(&mut self, name: &'static str, why: String) {
        if !self.left_out.iter().any(|(other, _)| *other == name) {
            self.left_out.push((name, why));
        }
    }

    /// What the record says of them, a line for each.
    fn words(&self) -> String {
        let mut words = String::new();
        for (number, (name, _)) in SMBD.iter().enumerate() {
            let rows = self.best.iter().filter(|(_, best)| *best == number);
            let rows: Vec<&str> = rows.map(|(row, _)| row.as_str()).collect();
            let what = match self.left_out.iter().find(|(other, _)| other == name) {
                Some((_, why)) => format!("left out in part or whole: {why}"),
                None if rows.is_empty() => "the best one of no row".to_owned(),
                None => rows.join("; "),
            };
            words += &format!("smbd as `{name}`: {what}\n");
        }
        words
    }
}

/// Runs `cargo xtask bench smb`.
///
/// # Errors
///
/// When something cannot be built, measured, or is below its floor.
pub(crate) fn main(smb: &SmbOptions, command: &str) -> anyhow::Result<()> {
    let options = &smb.options;
    let root = crate::workspace_root();
    let rows = chosen(options);
    if options.list {
        rows.iter().for_each(|row| println!("{}", row.name));
        return Ok(());
    }
    if let Some(why) = smbd::absent() {
        anyhow::bail!("{why}");
    }
    if !options.no_build {
        build(&root, &["shunt-cli", "shunt-preload", "shunt-testkit"])?;
    }
    let built = built(&root);
    let ours = ["smbload", "shunt", "libshunt_preload.so"];
    let programs: &[&str] = if smb.against_itself { &ours[..1] } else { &ours };
    let absent = cannot_serve(&built.join("shunt")).filter(|_| !smb.against_itself);
    anyhow::ensure!(absent.is_none(), "{}", absent.unwrap_or_default());
    stage::clean_up_when_interrupted()?;
    warn_when_busy();
    let mut book = Book::new(options.json).within(options.limit());
    let mut bench = Bench {
        servers: Vec::new(),
        folders: Folders::new()?,
        stage: Stage::with(&built, programs)?,
        options,
        ours: if smb.against_itself { Kind::Smbd(0) } else { Kind::Shunt },
        peers: Peers::default(),
    };
    bench.fill()?;
    for row in &rows {
        let passed_over = book.passed_over(&row.name, "");
        let lines = passed_over.map_or_else(|| bench.measure(row), |line| vec![line]);
        lines.into_iter().for_each(|line| book.tell(line));
    }
    if options.record {
        let reading = format!("{READING}\n{}", bench.peers.words().trim_end());
        let itself = smb.against_itself.then(|| "against-itself".to_owned());
        let part = itself.into_iter().chain(options.part()).reduce(|one, rest| one + " " + &rest);
        book.record(&root, "smb", part.as_deref(), &reading, command)?;
    }
    book.verdict()
}

fn chosen(options: &Options) -> Vec<Row> {
    let mut rows = rows::all();
    let all = options.only.is_empty();
    rows.retain(|row| options.wants(&row.name) && (row.quick || !options.quick || !all));
    rows
}

impl Bench<'_> {
    /// Bytes of each client's file.
    fn size(&self) -> u64 {
        if self.options.quick { 64 << 20 } else { 512 << 20 }
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        let setup = Setup { kind: Kind::Smbd(0), apart: false };
        let at = self.server(setup)?;
        let port = self.servers[at].port;
        self.folders.fill(self.size(), |medium, clients, size| {
            let (clients, size) = (clients.to_string(), size.to_string());
            let words = ["prepare", "--clients", &clients, "--size", &size];
            let patience = Duration::from_secs(120);
            smbload(&self.stage, (setup, port), medium, &words, patience).map(drop)
        })
    }

    /// Where in `servers` this one is; it is started if it does not run.
    fn server(&mut self, setup: Setup) -> anyhow::Result<usize> {
        if let Some(at) = self.servers.iter().position(|server| server.setup == setup) {
            return Ok(at);
        }
        self.servers.push(Server::start(&self.stage, setup, &self.folders)?);
        Ok(self.servers.len() - 1)
    }

    fn measure(&mut self, row: &Row) -> Vec<Line> {
        if row.apart && cpus() < 2 {
            let outcome = Outcome::Skipped("wants two CPUs".into());
            return vec![Line { name: row.name.clone(), unit: "", outcome }];
        }
        match self.pairs(row) {
            Ok(pairs) => row.metrics.iter().map(|metric| self.line(row, *metric, &pairs)).collect(),
            Err(error) => {
                // Whatever state they are in, the next row shall not suffer from it.
                self.servers.clear();
                let outcome = Outcome::Failed(format!("{error:#}"));
                vec![Line { name: row.name.clone(), unit: "", outcome }]
            }
        }
    }

    fn line(
        &self,
        row: &Row,
        (metric, floor): (Metric, Option<f64>),
        pairs: &[(serde_json::Value, serde_json::Value)],
    ) -> Line {
        let (words, unit, better) = metric.words();
        let values: Option<Vec<(f64, f64)>> =
            pairs.iter().map(|(peer, ours)| Some((metric.of(peer)?, metric.of(ours)?))).collect();
        let floor = floor.filter(|_| self.ours == Kind::Shunt);
        let outcome = match values.and_then(|values| Pairs::of(&values, better)) {
            Some(pairs) => Outcome::Measured { pairs, floor },
            None => Outcome::Failed("smbload did not say it".into()),
        };
        Line { name: format!("{}{words}", row.name), unit, outcome }
    }

    /// What smbload said of the best smbd and of ours, in turn.
    fn pairs(&mut self, row: &Row) -> anyhow::Result<Vec<(serde_json::Value, serde_json::Value)>> {
        let peer = self.best(row)?;
        let usual = if self.options.quick { 1 } else { 3 };
        let mut pairs = Vec::new();
        for _ in 0..self.options.rounds.unwrap_or(usual).max(1) {
            let theirs = self.figure(row, peer).context("the peer")?;
            let ours =
                if row.carried && self.ours == Kind::Shunt { Kind::Carried } else { self.ours };
            pairs.push((theirs, self.figure(row, ours).context("ours")?));
        }
        Ok(pairs)
    }

    /// The configuration of smbd that is best at this load.
    fn best(&mut self, row: &Row) -> anyhow::Result<Kind> {
        if self.options.quick {
            return Ok(Kind::Smbd(0));
        }
        let metric = row.metrics[0].0;
        let (_, _, better) = metric.words();
        let mut best: Option<(f64, usize)> = None;
        for (number, (name, _)) in SMBD.iter().enumerate() {
            let line = match self.figure(row, Kind::Smbd(number)) {
                Ok(line) => line,
                Err(error) => {
                    // Debian has the module for io_uring in a package of its own, samba-vfs-modules.
                    eprintln!("{}: smbd as `{name}` is left out: {error:#}", row.name);
                    self.peers.leave_out(name, format!("{error:#}"));
                    continue;
                }
            };
            let value = metric.of(&line).context("smbload did not say it")?;
            let is_better = |(other, _): (f64, usize)| match better {
                super::pairs::Better::Higher => value > other,
                super::pairs::Better::Lower => value < other,
            };
            if best.is_none_or(is_better) {
                best = Some((value, number));
            }
        }
        let (_, number) = best.context("smbd serves in no configuration")?;
        eprintln!("{}: the best smbd is `{}`", row.name, SMBD[number].0);
        self.peers.best.push((row.name.clone(), number));
        Ok(Kind::Smbd(number))
    }

    fn figure(&mut self, row: &Row, kind: Kind) -> anyhow::Result<serde_json::Value> {
        let setup = Setup { kind, apart: row.apart };
        let at = self.server(setup)?;
        let server = &self.servers[at];
        let usual = if self.options.quick { 0.5 } else { 2.0 };
        let seconds = self.options.seconds.unwrap_or(usual).max(row.seconds_min);
        let (process, length) = (server.process()?.to_string(), seconds.to_string());
        let warm_up = (seconds / 4.0).min(1.0).to_string();
        let size = size_of_each(self.size(), row.clients()).to_string();
        let mut words = row.load.clone();
        words.extend(["--secs", &length, "--warmup", &warm_up]);
        words.extend(["--size", &size, "--server-pid", &process]);
        let patience = Duration::from_secs_f64(seconds * 2.0 + 40.0);
        let output = smbload(&self.stage, (setup, server.port), row.medium, &words, patience)?;
        serde_json::from_str(output.trim()).context("smbload printed no line of JSON")
    }
}

fn smbload(
    stage: &Stage,
    (setup, port): (Setup, u16),
    medium: Medium,
    words: &[&str],
    patience: Duration,
) -> anyhow::Result<String> {
    let dir = stage.new_dir()?;
    let mut command = setup.prefix(stage, End::Client);
    command.push(stage.program("smbload").into());
    command.extend(words.iter().map(OsString::from));
    let (address, share) = (format!("127.0.0.1:{port}"), medium.share());
    let common = ["--addr", &address, "--share", share, "--user", USERS[0], "--pass", PASSWORD];
    command.extend(common.map(OsString::from));
    let output = Running::start(&command, &dir, &[])?.finish(patience);
    stage::remove_dir(&dir);
    output
}

#[cfg(test)]
mod tests {
    use super::{Peers, SMBD};

    #[test]
    fn a_record_names_what_was_measured_against_and_what_was_left_out() {
        let mut peers = Peers::default();
        peers.best.extend([("read 1M".into(), 0), ("write 1M".into(), 3), ("echo".into(), 0)]);
        peers.leave_out(SMBD[1].0, "no module".into());
        peers.leave_out(SMBD[1].0, "again".into());
        assert_eq!(
            peers.words(),
            "smbd as `default`: read 1M; echo\n\
             smbd as `io_uring`: left out in part or whole: no module\n\
             smbd as `no aio`: the best one of no row\n\
             smbd as `sendfile`: write 1M\n"
        );
    }
}
