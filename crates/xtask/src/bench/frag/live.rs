//! `shunt defrag` on an interface: what it takes of what a ring can bring, and how much of a core.
//!
//! Two namespaces with a cable; on one side a program sends fragments of the largest datagrams as fast as it
//! can, each sender from a CPU of its own. What a ring can bring is what `--count-only` takes.

use std::ffi::OsString;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use testkit::hosts::Hosts;

use super::kernel::{obstacle, skipped};
use super::{Bench, Job, row, rows_or_failure};
use crate::bench::built;
use crate::bench::pairs::Better;
use crate::bench::report::Line;
use crate::bench::stage::{Running, Stage};

/// Name of the rows, before what they are of.
pub(super) const NAME: &str = "live";
/// Interface at both ends of the cable.
const DEVICE: &str = "q0";
const SENDING: &str = "2";
const PATIENCE: Duration = Duration::from_secs(30);
/// What is still on its way when the senders have ended.
const SETTLING: Duration = Duration::from_millis(500);
/// Of what the ring brings, so much must be taken.
const TAKEN: f64 = 0.95;
/// Of each core that receives, hundredths.
const SHARE: f64 = 20.0;
/// Less than can be measured of a core, hundredths.
const NOTHING: f64 = 0.1;
/// Fragments of each datagram that the sender sends.
const FRAGMENTS: f64 = 45.0;

/// A way in, and what comes.
#[derive(Clone, Copy, Debug)]
struct Case {
    xdp: bool,
    /// Workers, each with a ring of its own and a sender; and receive queues.
    queues: u32,
    /// Datagrams in progress of each sender. Of 1000 memory holds three quarters.
    flows: u32,
}

impl Case {
    fn name(self) -> String {
        let way = if self.xdp { "AF_XDP" } else { "AF_PACKET" };
        let workers = if self.queues > 1 { ", two workers" } else { "" };
        format!("{NAME} {way}{workers}, 65507 x {}", self.flows)
    }
}

pub(crate) fn jobs() -> Vec<Job> {
    let mut cases = Vec::new();
    for xdp in [false, true] {
        cases.extend([1, 100, 1000].map(|flows| Case { xdp, queues: 1, flows }));
    }
    for xdp in [false, true] {
        cases.extend([100, 1000].map(|flows| Case { xdp, queues: 2, flows }));
    }
    cases.into_iter().map(Case::job).collect()
}

impl Case {
    fn job(self) -> Job {
        let name = self.name();
        Job::new(name.clone(), false, move |bench| match obstacle() {
            Some(why) => vec![skipped(&name, why)],
            None => rows_or_failure(&name, self.rows(bench)),
        })
    }

    fn rows(self, bench: &Bench) -> anyhow::Result<Vec<Line>> {
        let stage = Stage::with(&built(&bench.root), &["shunt", "fragsend"])?.on(Hosts::new()?);
        let road = Road::new(&stage, self)?;
        let (mut alone, mut whole) = (Vec::new(), Vec::new());
        for _ in 0..bench.rounds {
            alone.push(road.run(true)?);
            whole.push(road.run(false)?);
        }
        let name = self.name();
        let of = |runs: &[Run], figure: fn(&Run) -> f64| runs.iter().map(figure).collect();
        let pair = |what: &str, unit, better, figure: fn(&Run) -> f64, floor| {
            let (peer, ours): (Vec<f64>, Vec<f64>) = (of(&alone, figure), of(&whole, figure));
            row(format!("{name}: {what}"), unit, better, &peer, &ours, floor)
        };
        // A ring costs its part of a core whoever looks at what it brings.
        let beyond = alone.iter().zip(&whole).map(|(alone, whole)| whole.share - alone.share);
        let reassembly: Vec<f64> = beyond.map(|share| share.max(NOTHING)).collect();
        let allowed = vec![SHARE; whole.len()];
        let share = format!("{name}: of each core in reassembly, 20 % allowed");
        let higher = Better::Higher;
        let alone_on_a_cpu = (self.queues == 1).then_some(TAKEN);
        Ok(vec![
            pair(
                "taken of what was sent, against counting",
                "part",
                higher,
                |run| run.taken,
                Some(TAKEN),
            ),
            row(share, "%", Better::Lower, &allowed, &reassembly, Some(1.0)),
            pair(
                "of each core, all of the worker, against counting",
                "%",
                Better::Lower,
                |run| run.share,
                None,
            ),
            // Two senders have of both CPUs what the workers leave, who may have a fifth: then these send less, whatever
            // a ring can bring.
            pair("fragments, against counting", "M/s", higher, |run| run.rate, alone_on_a_cpu),
            pair(
                "fragments for each second of the senders' CPU, against counting",
                "M/s",
                higher,
                |run| run.rate_of_cpu,
                Some(TAKEN),
            ),
            row(
                format!("{name}: in whole datagrams, of what was taken"),
                "part",
                higher,
                &vec![1.0; whole.len()],
                &of(&whole, |run| run.whole),
                None,
            ),
        ])
    }
}

/// How a run went.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Fragments that came out of the ring, of those that were sent.
    taken: f64,
    /// Millions of fragments a second.
    rate: f64,
    /// Likewise, for each second of CPU time of the senders.
    rate_of_cpu: f64,
    /// CPU time of a worker while fragments came, hundredths of a core.
    share: f64,
    /// Fragments that came out in datagrams, of those that were taken.
    whole: f64,
}

/// The cable, and the programs at its ends.
struct Road<'s> {
    stage: &'s Stage,
    hosts: &'s Hosts,
    case: Case,
    /// Ethernet address of the end where fragments come out.
    to: String,
}

impl<'s> Road<'s> {
    fn new(stage: &'s Stage, case: Case) -> anyhow::Result<Self> {
        let hosts = stage.hosts().context("there are no hosts")?;
        let (s, c) = (hosts.server.namespace(), hosts.client.namespace());
        let queues = format!("numrxqueues {0} numtxqueues {0}", case.queues);
        ip(&format!(
            "-n {s} link add {DEVICE} {queues} type veth peer name {DEVICE} netns {c} {queues}"
        ))?;
        for host in [s, c] {
            ip(&format!("-n {host} link set {DEVICE} up"))?;
        }
        let link = ip(&format!("-n {s} -br link show {DEVICE}"))?;
        let to = link.split_whitespace().nth(2).context("no Ethernet address")?.to_owned();
        Ok(Self { stage, hosts, case, to })
    }

    fn run(&self, count_only: bool) -> anyhow::Result<Run> {
        let Case { xdp, queues, flows } = self.case;
        let mut words = self.hosts.server.prefix();
        words.push(self.stage.program("shunt").into());
        let workers = queues.to_string();
        let live =
            ["defrag", "--interface", DEVICE, "--workers", &workers, "--stats", "0", "--json"];
        words.extend(live.map(OsString::from));
        words.extend(xdp.then(|| "--xdp".into()));
        words.extend(count_only.then(|| "--count-only".into()));
        let dir = self.stage.new_dir()?;
        let shunt = Running::start(&words, &dir, &[])?.ends_by_interrupt();
        let begin = Instant::now();
        // Said when all rings are there.
        while !fs::read_to_string(dir.join("stderr"))?.contains("Ctrl-C ends") {
            ensure!(begin.elapsed() < PATIENCE, "`shunt defrag` is not ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        let senders = (0..queues).map(|cpu| self.sender(flows, (cpu + 1) % 2));
        let senders = senders.collect::<anyhow::Result<Vec<Running>>>()?;
        let (mut sent, mut cpu) = (0.0, 0.0);
        for sender in senders {
            let said = sender.finish(PATIENCE)?;
            let mut words = said.split(' ');
            // "N fragments, N s of CPU"
            let mut figure = |at| -> anyhow::Result<f64> {
                Ok(words.nth(at).context("the sender says nothing")?.parse()?)
            };
            sent += figure(0)?;
            cpu += figure(1)?;
        }
        std::thread::sleep(SETTLING);
        shunt.ask_to_end();
        let said = shunt.finish(PATIENCE)?;
        let last = said.lines().last().context("`shunt defrag` says nothing")?;
        let told: serde_json::Value = serde_json::from_str(last)?;
        let figure = |name: &str| told[name].as_f64().with_context(|| format!("no {name}"));
        // A count of fragments is told of frames where nothing looks at them.
        let fragments = figure(if count_only { "frames" } else { "fragments" })?;
        let seconds: f64 = SENDING.parse()?;
        ensure!(sent > 0.0 && cpu > 0.0 && fragments > 0.0, "nothing came: {last}");
        Ok(Run {
            taken: fragments / sent,
            rate: fragments / seconds / 1e6,
            rate_of_cpu: fragments / cpu / 1e6,
            share: figure("cpu")? * figure("seconds")? / seconds / f64::from(queues) * 100.0,
            whole: if count_only { 0.0 } else { figure("datagrams")? * FRAGMENTS / fragments },
        })
    }

    fn sender(&self, flows: u32, cpu: u32) -> anyhow::Result<Running> {
        let mut words = self.hosts.client.prefix();
        words.push(self.stage.program("fragsend").into());
        let (flows, cpu) = (flows.to_string(), cpu.to_string());
        // Each has datagrams of its own, or one's would be copies of the other's.
        let how = [
            DEVICE,
            &self.to,
            "--seconds",
            SENDING,
            "--flows",
            &flows,
            "--pin",
            &cpu,
            "--sender",
            &cpu,
        ];
        words.extend(how.map(OsString::from));
        Running::start(&words, &self.stage.new_dir()?, &[])
    }
}

fn ip(words: &str) -> anyhow::Result<String> {
    let output = Command::new("ip").args(words.split(' ')).output().context("cannot start ip")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`ip {words}`: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::jobs;

    #[test]
    fn live_rows_are_found_by_one_word() {
        let jobs = jobs();
        assert!(jobs.len() == 10 && jobs.iter().all(|job| job.name.starts_with(super::NAME)));
    }
}
