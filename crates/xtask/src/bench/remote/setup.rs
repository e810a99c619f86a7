//! What a handshake waits for: the network, or anything else. Short connections go to a host that is a
//! millisecond away, and the engines tell for how long their handshakes have waited and for how much of that
//! nothing was there that they could have gone on with.
//!
//! An answer is there from when the kernel of its host has taken the packet in, which it notes (the engine's setting
//! `stamps`): that a vector still sleeps then, has no CPU, or is busy with others counts against us, at each end for
//! its own handshakes. What the other end does meanwhile is what this one waits for, and counts there. So does
//! for how long a vector lets a connection lie that the door has handed over, unless the door has sent the first
//! message itself; of a vector, what it waits for a CPU after it has taken an answer up and before its own next
//! message has left; and of the door's thread, what it waits for a CPU after a guest has knocked.
//!
//! A second line leaves out for how long threads of the engines had work and no CPU, as the scheduler tells it: two
//! engines and two programs share the machine's CPUs here, and a virtual CPU that sleeps takes its time to wake up.
//!
//! Not seen: what the guest waits for before the door has heard it.

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

/// Connections at a time, of each row. Of many, answers come together, and each waits for those before it and for the
/// CPUs that both hosts, their programs and the box between them share here.
const CONNECTIONS: [u32; 2] = [1, 8];
/// Of all off-CPU time.
const FLOOR: f64 = 0.95;
/// The way of a packet in one direction, microseconds.
const AWAY_US: u32 = 1000;
/// Each connection by SMC. A vector that has nothing to do sleeps at once: what it waits for then is seen by the
/// scheduler.
const SETTINGS: &[&str] = &["--spare-short", "off", "--poll-us", "0", "--stamps", "on"];

/// Of all rows.
pub(super) const UNIT: &str = "ms each";

/// So many connections at a time.
pub(super) struct Row {
    pub(super) name: String,
    connections: u32,
}

/// The rows, in order.
pub(super) fn rows() -> Vec<Row> {
    let name = |c| format!("off-CPU time of a set-up, waiting for the network, c={c}");
    CONNECTIONS.map(|connections| Row { name: name(connections), connections }).into()
}

/// Measures a row; `built`: where programs are. Two lines: of all off-CPU time, and of that without what threads of
/// the engines had work and no CPU, which two hosts on one machine take from each other.
pub(super) fn measure(built: &Path, row: &Row, rounds: u32, seconds: f64) -> [Line; 2] {
    let [all, with_cpu] = match pairs(built, row.connections, rounds, seconds) {
        Ok([all, with_cpu]) => [
            Outcome::Measured { pairs: all, floor: Some(FLOOR) },
            Outcome::Measured { pairs: with_cpu, floor: None },
        ],
        Err(error) => [0, 1].map(|_| Outcome::Failed(format!("{error:#}"))),
    };
    let second = format!("  {}: waits for a CPU left out", row.name);
    [(row.name.clone(), all), (second, with_cpu)].map(|(name, outcome)| Line {
        name,
        unit: UNIT,
        outcome,
    })
}

fn pairs(built: &Path, c: u32, rounds: u32, seconds: f64) -> anyhow::Result<[Pairs; 2]> {
    let programs: Vec<&str> = stage::LOCAL.iter().copied().chain(["middlebox"]).collect();
    let stage = Stage::with(built, &programs)?.on(Hosts::with_middle()?);
    let between = middlebox(&stage)?;
    let engines = Engines::start(&stage, SETTINGS)?;
    let mut server = Server::start(&stage, Kind::Nginx, Way::Shunt, Cpus::Two)?;
    let load = Load::Wrk { c, close: true };
    let run = Run { way: Way::Shunt, seconds, expected_rate: 0.0, tracer: &[], unix_socket: false };
    let mut values = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        let before = Account::read(&stage, &engines)?;
        load.run(&stage, &mut server, run)?;
        let account = Account::read(&stage, &engines)?.since(&before);
        values[0].push(account.pair()?);
        values[1].push(account.without_cpu().pair()?);
    }
    drop((server, engines, between));
    let [all, with_cpu] = values.map(|of| Pairs::of(&of, Better::Higher));
    all.zip(with_cpu).map(<[Pairs; 2]>::from).context("nothing was measured")
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
    /// While the vector could have gone on and had no CPU.
    no_cpu: u64,
    connections: u64,
}

/// Of all vectors of both engines, in an order that stays, and for how long each engine's door has waited for a
/// CPU, nanoseconds.
#[derive(Debug, Default)]
struct Account(Vec<Waited>, Vec<u64>);

impl Account {
    fn read(stage: &Stage, engines: &Engines) -> anyhow::Result<Self> {
        let (mut account, mut doors) = (Vec::new(), Vec::new());
        for (said, engine) in engines.status(stage)?.iter().zip(&engines.running) {
            let vectors = said["vectors"].as_array().context("no vectors")?;
            let door = engine.family().into_iter().find_map(|pid| waited_for_cpu(pid, DOOR));
            doors.push(door.context("no thread at the door")?);
            for vector in vectors {
                let count =
                    |name: &str| vector[name].as_u64().with_context(|| format!("no {name}"));
                let kinds = vector["setup_waits"].as_object().context("no setup_waits")?;
                let no_cpu = kinds.values().filter_map(|kind| kind["no_cpu_ns"].as_u64());
                account.push(Waited {
                    all: count("setup_wait_ns")?,
                    no_cpu: no_cpu.sum(),
                    network: count("setup_network_ns")?,
                    connections: count("connections_total")?,
                });
            }
        }
        Ok(Self(account, doors))
    }

    fn since(&self, before: &Self) -> Self {
        let each = self.0.iter().zip(&before.0).map(|(now, before)| Waited {
            all: now.all.saturating_sub(before.all),
            network: now.network.saturating_sub(before.network),
            no_cpu: now.no_cpu.saturating_sub(before.no_cpu),
            connections: now.connections.saturating_sub(before.connections),
        });
        let doors = self.1.iter().zip(&before.1).map(|(now, before)| now.saturating_sub(*before));
        Self(each.collect(), doors.collect())
    }

    /// But for what anybody waited for a CPU.
    fn without_cpu(&self) -> Self {
        let each = self.0.iter().map(|waited| Waited {
            all: waited.all.saturating_sub(waited.no_cpu),
            no_cpu: 0,
            ..*waited
        });
        Self(each.collect(), vec![0; self.1.len()])
    }

    /// All off-CPU time of a set-up, and how much of that was for the network, milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    fn pair(&self) -> anyhow::Result<(f64, f64)> {
        let connections: u64 = self.0.iter().map(|vector| vector.connections).sum();
        let waited: u64 = self.0.iter().map(|vector| vector.all).sum();
        ensure!(connections > 0 && waited > 0, "no connection went by SMC-R");
        let all = waited + self.1.iter().sum::<u64>();
        let network: u64 = self.0.iter().map(|vector| vector.network).sum();
        // Both hosts count a connection.
        let each = connections as f64 / 2.0 * 1e6;
        Ok((all as f64 / each, network as f64 / each))
    }
}

/// Name of the thread that guests hand connections to.
const DOOR: &str = "shunt-door";

/// For how long a thread of a process had work and no CPU, nanoseconds; `None`: it is not this process's.
fn waited_for_cpu(pid: u32, name: &str) -> Option<u64> {
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
    fn what_others_than_the_network_are_waited_for_counts() {
        let waited = Waited { all: 8_000_000, network: 7_900_000, no_cpu: 60_000, connections: 4 };
        let account = Account(vec![waited, Waited::default()], vec![0, 0]);
        let (all, network) = account.pair().unwrap();
        assert!((all - 4.0).abs() < 1e-9 && (network - 3.95).abs() < 1e-9, "{all} {network}");
        // A door that had to wait is ours too.
        let later = Account(vec![waited, waited], vec![300_000, 700_000]);
        let (all, network) =
            later.since(&Account(vec![Waited::default(); 2], vec![0; 2])).pair().unwrap();
        assert!(
            (all - 17.0 / 4.0).abs() < 1e-9 && (network - 3.95).abs() < 1e-9,
            "{all} {network}"
        );
        assert!(Account::default().pair().is_err());
        // Both kinds of waiting for a CPU, and nothing else, are left out of the second row.
        let (all, network) = later.without_cpu().pair().unwrap();
        assert!((all - 3.97).abs() < 1e-9 && (network - 3.95).abs() < 1e-9, "{all} {network}");
    }

    #[test]
    fn a_thread_is_found_by_its_name() {
        assert_eq!(waited_for_cpu(std::process::id(), DOOR), None);
        let here = std::thread::Builder::new().name(DOOR.into());
        let found =
            here.spawn(|| waited_for_cpu(std::process::id(), DOOR)).unwrap().join().unwrap();
        assert!(found.is_some());
    }
}
