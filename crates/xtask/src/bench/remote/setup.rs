//! What a handshake waits for: the network, or anything else. Short connections go to a host that is a
//! millisecond away, and the engines tell for how long their handshakes have waited and for how much of that
//! nothing was there that they could have gone on with. What the scheduler lets a vector wait whose answer has
//! come, the kernel tells.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use testkit::hosts::{Hosts, TO_CLIENT, TO_SERVER};

use super::Engines;
use crate::bench::load::{Load, Run};
use crate::bench::pairs::{Better, Pairs};
use crate::bench::report::{Line, Outcome};
use crate::bench::server::{Kind, Server};
use crate::bench::stage::{self, Cpus, Running, Stage, Way};

/// Name of the row.
pub(super) const NAME: &str = "off-CPU time of a set-up, waiting for the network";
/// Of all off-CPU time.
const FLOOR: f64 = 0.95;
/// The way of a packet in one direction, microseconds.
const AWAY_US: u32 = 1000;
/// Connections at a time.
const CONNECTIONS: u32 = 8;
/// Each connection by SMC. A vector that has nothing to do sleeps at once: what it waits for then is seen by the
/// scheduler.
const SETTINGS: &[&str] = &["--spare-short", "off", "--poll-us", "0"];

/// Measures it; `built`: where programs are.
pub(super) fn measure(built: &Path, rounds: u32, seconds: f64) -> Line {
    let outcome = pairs(built, rounds, seconds).map_or_else(
        |error| Outcome::Failed(format!("{error:#}")),
        |pairs| Outcome::Measured { pairs, floor: Some(FLOOR) },
    );
    Line { name: NAME.into(), unit: "ms each", outcome }
}

fn pairs(built: &Path, rounds: u32, seconds: f64) -> anyhow::Result<Pairs> {
    let programs: Vec<&str> = stage::LOCAL.iter().copied().chain(["middlebox"]).collect();
    let stage = Stage::with(built, &programs)?.on(Hosts::with_middle()?);
    let between = middlebox(&stage)?;
    let engines = Engines::start(&stage, SETTINGS)?;
    let mut server = Server::start(&stage, Kind::Nginx, Way::Shunt, Cpus::Two)?;
    let load = Load::Wrk { c: CONNECTIONS, close: true };
    let run = Run { way: Way::Shunt, seconds, expected_rate: 0.0, tracer: &[], unix_socket: false };
    let mut values = Vec::new();
    for _ in 0..rounds {
        let (before, began) = (Account::read(&stage, &engines)?, Instant::now());
        load.run(&stage, &mut server, run)?;
        let waited = Account::read(&stage, &engines)?.since(&before);
        values.push(waited.pair(began.elapsed())?);
    }
    drop((server, engines, between));
    Pairs::of(&values, Better::Higher).context("nothing was measured")
}

/// The box in the middle of the cable, which holds everything up.
fn middlebox(stage: &Stage) -> anyhow::Result<Running> {
    let prefix = stage.hosts().and_then(Hosts::middle_prefix).context("there is no middle")?;
    // It ends when its standard input does.
    let mut words: Vec<OsString> =
        ["sh", "-c", "tail -f /dev/null | \"$@\"", "sh"].map(OsString::from).into();
    words.extend(prefix);
    words.push(stage.program("middlebox").into());
    words.extend([TO_SERVER, TO_CLIENT].map(OsString::from));
    words.push(format!("delay={AWAY_US}").into());
    let running = Running::start(&words, &stage.new_dir()?, &[])?;
    let begin = Instant::now();
    while !running.output().contains("ready") {
        ensure!(begin.elapsed() < Duration::from_secs(10), "the middlebox is not ready");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(running)
}

/// For how long the handshakes of a vector have waited, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Waited {
    all: u64,
    network: u64,
    /// The vector, for a CPU.
    for_cpu: u64,
    connections: u64,
}

/// Of all vectors of both engines, in an order that stays.
#[derive(Debug, Default)]
struct Account(Vec<Waited>);

impl Account {
    fn read(stage: &Stage, engines: &Engines) -> anyhow::Result<Self> {
        let hosts = stage.hosts().context("there are no hosts")?;
        let mut account = Vec::new();
        for (host, engine) in [&hosts.server, &hosts.client].into_iter().zip(&engines.running) {
            let mut words = host.prefix();
            words.push(stage.program("shunt").into());
            words.extend(["engine", "status", "--json"].map(OsString::from));
            let dir = stage.new_dir()?;
            let said = Running::start(&words, &dir, &[])?.finish(Duration::from_secs(10))?;
            stage::remove_dir(&dir);
            let said: serde_json::Value = serde_json::from_str(&said)?;
            let vectors = said["vectors"].as_array().context("no vectors")?;
            let family = engine.family();
            for vector in vectors {
                let count =
                    |name: &str| vector[name].as_u64().with_context(|| format!("no {name}"));
                let number = count("vector")?;
                let for_cpu = family.iter().find_map(|pid| waited_for_cpu(*pid, number));
                account.push(Waited {
                    all: count("setup_wait_ns")?,
                    network: count("setup_network_ns")?,
                    connections: count("connections_total")?,
                    for_cpu: for_cpu.with_context(|| format!("no thread of vector {number}"))?,
                });
            }
        }
        Ok(Self(account))
    }

    fn since(&self, before: &Self) -> Self {
        let each = self.0.iter().zip(&before.0).map(|(now, before)| Waited {
            all: now.all.saturating_sub(before.all),
            network: now.network.saturating_sub(before.network),
            for_cpu: now.for_cpu.saturating_sub(before.for_cpu),
            connections: now.connections.saturating_sub(before.connections),
        });
        Self(each.collect())
    }

    /// All off-CPU time of a set-up, and how much of that was for the network, milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn pair(&self, elapsed: Duration) -> anyhow::Result<(f64, f64)> {
        let connections: u64 = self.0.iter().map(|vector| vector.connections).sum();
        let all: u64 = self.0.iter().map(|vector| vector.all).sum();
        ensure!(connections > 0 && all > 0, "no connection went by SMC-R");
        let network: f64 = self.0.iter().map(|vector| vector.network(elapsed)).sum();
        // Both hosts count a connection.
        let each = connections as f64 / 2.0 * 1e6;
        Ok((all as f64 / each, network / each))
    }
}

impl Waited {
    /// What was for the network: as if whenever the vector waited for a CPU, all handshakes that it had waited with
    /// it, although the answers of some had not come yet. Those of other vectors did not.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn network(&self, elapsed: Duration) -> f64 {
        let at_a_time = (self.all as f64 / elapsed.as_nanos() as f64).max(1.0);
        (self.network as f64 - self.for_cpu as f64 * at_a_time).max(0.0)
    }
}

/// For how long a vector of a process had work and no CPU, nanoseconds; `None`: it is not this process's.
fn waited_for_cpu(pid: u32, vector: u64) -> Option<u64> {
    let name = format!("shunt-vector-{vector}");
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut tasks = tasks.map(|task| task.path());
    let task = tasks.find(|path| {
        fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
    })?;
    fs::read_to_string(task.join("schedstat")).ok()?.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_vectors_waited_for_a_cpu_is_not_the_networks() {
        let waited = Waited { all: 8_000_000, network: 7_900_000, for_cpu: 50_000, connections: 4 };
        // Two handshakes at a time.
        let account = Account(vec![waited, Waited::default()]);
        let (all, network) = account.pair(Duration::from_millis(4)).unwrap();
        assert!((all - 4.0).abs() < 1e-9 && (network - 3.9).abs() < 1e-9, "{all} {network}");
        // Nobody waits with a vector but its own handshakes.
        let other = Waited { for_cpu: 3_000_000, ..Waited::default() };
        let beside = Account(vec![waited, other]).pair(Duration::from_millis(4)).unwrap();
        assert!((beside.1 - 3.9).abs() < 1e-9, "{beside:?}");
        assert!(Account::default().pair(Duration::from_millis(4)).is_err());
    }

    #[test]
    fn a_thread_is_found_by_its_name() {
        assert_eq!(waited_for_cpu(std::process::id(), 7), None);
        let here = std::thread::Builder::new().name("shunt-vector-7".into());
        let found = here.spawn(|| waited_for_cpu(std::process::id(), 7)).unwrap().join().unwrap();
        assert!(found.is_some());
    }
}
