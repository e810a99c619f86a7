//! `cargo xtask bench smb`: `shunt serve` and Samba's server, the same files, the same load.
//!
//! For each load and each figure the best of Samba's configurations is found first, then both are measured in turn.

mod rows;
mod servers;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::pairs::{Better, Pairs};
use super::report::{Book, Line, Outcome};
use super::stage::{self, End, Running, Stage};
use super::{Options, build, built, cpus, warn_when_busy};
use crate::smbd::{self, PASSWORD, USERS};
use crate::torture::cannot_serve;
use rows::{Medium, Metric, Row};
use servers::{Folders, Kind, SMBD, Server, Setup, size_of_each};

const READING: &str = "\
peer: Samba's smbd in the configuration that is the best one for the figure, by the middle of three measurements;
ours: `shunt serve`; ratio: how many times as good, the median over the pairs; spread: the worst and the best pair.
Of a pair each is the first in turn. Against a bare splice: the peer is no server, but a file in memory that is spliced
into a pipe and from there into the socket of the same client. Client and servers share the CPUs.
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

/// How often each configuration of smbd is measured to find the best one.
const SAMPLES: usize = 3;
/// For what part of the usual time.
const SAMPLE: f64 = 0.5;

/// What smbload said of a peer and of ours, for each pair.
type Figures = Vec<(serde_json::Value, serde_json::Value)>;

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
    /// The figure, and its best one, by its place in [`SMBD`].
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
        match self.compare(row) {
            Ok(lines) => lines,
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

    /// Each figure, of ours and of the peer that is the best one by it.
    fn compare(&mut self, row: &Row) -> anyhow::Result<Vec<Line>> {
        let peers = self.best(row)?;
        let mut measured: Vec<(Kind, Figures)> = Vec::new();
        let mut lines = Vec::new();
        for (metric, peer) in row.metrics.iter().zip(peers) {
            if !measured.iter().any(|(known, _)| *known == peer) {
                measured.push((peer, self.pairs(row, peer)?));
            }
            let pairs = measured.iter().find(|(known, _)| *known == peer);
            lines.extend(pairs.map(|(_, pairs)| self.line(row, *metric, pairs)));
        }
        Ok(lines)
    }

    /// What smbload said of the peer and of ours. Who is first changes from pair to pair: what the machine does to
    /// whoever comes second hits both alike.
    fn pairs(&mut self, row: &Row, peer: Kind) -> anyhow::Result<Figures> {
        let usual = if self.options.quick { 1 } else { 4 };
        let ours = if row.carried && self.ours == Kind::Shunt { Kind::Carried } else { self.ours };
        let mut pairs = Vec::new();
        for round in 0..self.options.rounds.unwrap_or(usual).max(1) {
            let our = |bench: &mut Self| bench.figure(row, ours, 1.0).context("ours");
            let early = (round % 2 == 1).then(|| our(self)).transpose()?;
            let theirs = self.figure(row, peer, 1.0).context("the peer")?;
            pairs.push((theirs, early.map_or_else(|| our(self), Ok)?));
        }
        Ok(pairs)
    }

    /// For each figure the configuration of smbd that is best by it.
    fn best(&mut self, row: &Row) -> anyhow::Result<Vec<Kind>> {
        let all = |kind| Ok(vec![kind; row.metrics.len()]);
        if row.bare {
            return all(Kind::Bare);
        }
        if self.options.quick {
            return all(Kind::Smbd(0));
        }
        let samples = self.samples(row);
        let mut peers = Vec::new();
        for (at, (metric, floor)) in row.metrics.iter().enumerate() {
            if at > 0 && floor.is_none() {
                peers.push(peers[0]);
                continue;
            }
            let (words, _, better) = metric.words();
            let (which, figures): (Vec<usize>, Vec<Vec<f64>>) = samples
                .iter()
                .map(|(number, lines)| {
                    (*number, lines.iter().filter_map(|l| metric.of(l)).collect())
                })
                .unzip();
            let best = best_of(&figures, better).context("smbd serves in no configuration")?;
            let (number, name) = (which[best], format!("{}{words}", row.name));
            eprintln!("{name}: the best smbd is `{}`", SMBD[number].0);
            self.peers.best.push((name, number));
            peers.push(Kind::Smbd(number));
        }
        Ok(peers)
    }

    /// What smbload said of each configuration of smbd that serves, three times in turn.
    fn samples(&mut self, row: &Row) -> Vec<(usize, Vec<serde_json::Value>)> {
        let mut samples: Vec<_> = (0..SMBD.len()).map(|number| (number, Vec::new())).collect();
        for _ in 0..SAMPLES {
            samples.retain_mut(|(number, lines)| {
                match self.figure(row, Kind::Smbd(*number), SAMPLE) {
                    Ok(line) => lines.push(line),
                    Err(error) => {
                        // Debian has the module for io_uring in a package of its own, samba-vfs-modules.
                        let name = SMBD[*number].0;
                        eprintln!("{}: smbd as `{name}` is left out: {error:#}", row.name);
                        self.peers.leave_out(name, format!("{error:#}"));
                        return false;
                    }
                }
                true
            });
        }
        samples
    }

    /// What smbload says, measured for `part` of the usual time.
    fn figure(&mut self, row: &Row, kind: Kind, part: f64) -> anyhow::Result<serde_json::Value> {
        let setup = Setup { kind, apart: row.apart };
        let usual = if self.options.quick { 0.5 } else { 2.0 };
        let seconds = (self.options.seconds.unwrap_or(usual) * part).max(row.seconds_min);
        if kind == Kind::Bare {
            return self.bare(seconds);
        }
        let at = self.server(setup)?;
        let server = &self.servers[at];
        let (process, length) = (server.process()?.to_string(), seconds.to_string());
        let warm_up = (seconds / 4.0).min(1.0).to_string();
        let size = size_of_each(self.size(), row.clients()).to_string();
        let mut words = row.load.clone();
        words.extend(["--secs", &length, "--warmup", &warm_up]);
        words.extend(["--size", &size, "--server-pid", &process]);
        let patience = Duration::from_secs_f64(seconds * 2.0 + 40.0);
        let output = smbload(&self.stage, (setup, server.port), row.medium, &words, patience)?;
        parsed(&output)
    }

    /// What smbload says of a splice without a server.
    fn bare(&self, seconds: f64) -> anyhow::Result<serde_json::Value> {
        let dir = self.stage.new_dir()?;
        let (length, size) = (seconds.to_string(), self.size().to_string());
        let mut command: Vec<OsString> = vec![self.stage.program("smbload").into()];
        command.extend(["bare", "--secs", &length, "--size", &size].map(OsString::from));
        let patience = Duration::from_secs_f64(seconds * 2.0 + 40.0);
        let output = Running::start(&command, &dir, &[])?.finish(patience);
        stage::remove_dir(&dir);
        parsed(&output?)
    }
}

fn parsed(output: &str) -> anyhow::Result<serde_json::Value> {
    serde_json::from_str(output.trim()).context("smbload printed no line of JSON")
}

/// Which of some peers has the best middle figure; none, where none has one.
fn best_of(figures: &[Vec<f64>], better: Better) -> Option<usize> {
    let middle = |figures: &Vec<f64>| {
        let mut sorted = figures.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    };
    let middles = figures.iter().enumerate().filter_map(|(at, own)| Some((at, middle(own)?)));
    let best = middles.min_by(|(_, one), (_, other)| match better {
        Better::Higher => other.total_cmp(one),
        Better::Lower => one.total_cmp(other),
    });
    best.map(|(at, _)| at)
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
    use super::{Better, Peers, SMBD, best_of};

    #[test]
    fn the_best_is_so_by_its_middle_and_by_the_figure_that_is_asked_for() {
        let speed = [vec![2.0, 9.0, 2.1], vec![3.0, 1.0, 3.1], vec![]];
        assert_eq!(best_of(&speed, Better::Higher), Some(1), "one that was lucky once");
        let cost = [vec![0.5, 0.5, 0.5], vec![0.6, 0.1, 0.6]];
        assert_eq!(best_of(&cost, Better::Lower), Some(0));
        assert_eq!(best_of(&[vec![]], Better::Lower), None);
    }

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
