//! Programs on two hosts, each with an engine: the same bytes and the same ends as over TCP, by SMC-R.
//!
//! The hosts are network namespaces with a cable between them (`testkit::hosts`), so this needs root.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use e2e::run::{BoardDir, Guest, Outcome, eventually, outcome, outcome_after, skipped};
use e2e::{built, installed};
use testkit::hosts::{self, Host, Hosts};

mod bad_network;
mod cables;
mod captured;
mod congestion;
mod files;
mod going;
mod handed;
mod interrupted;
mod knobs;
mod late;
mod meeting;
mod paths;
mod peers;
mod programs;
mod rights;
mod short;
mod switched;
mod unprivileged;
mod users;
mod v6;

const LIMIT: Duration = Duration::from_secs(120);
/// The name under which both hosts speak SMC.
const EID: &str = "SHUNT.TEST";

/// Settings with which connections go by SMC-R however short they are.
const ALL_BY_SMC: [&str; 2] = ["--spare-short", "off"];

/// Two hosts with an engine on each.
struct Pair {
    // Guests and engines end before the hosts do.
    engines: Vec<Guest>,
    boards: [BoardDir; 2],
    hosts: Hosts,
    kind: Kind,
    /// Programs that anybody may run, for who has no privileges.
    copies: Option<unprivileged::Copies>,
}

/// How two hosts are connected, and how their engines find out who speaks SMC.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    /// By IPv6.
    v6: bool,
    /// The engines ask each other; nothing is said in the TCP handshake.
    meets: bool,
    /// The engines say it for the sockets of one control group that has both hosts in it, as where nobody has chosen one.
    one_group: bool,
    /// Engines and programs are those of a user who may do nothing that others may not.
    unprivileged: bool,
}

/// What an engine has carried by SMC-R.
#[derive(Clone, Copy, Debug)]
struct Carried {
    connections: u64,
    bytes: u64,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Server,
    Client,
}

impl Pair {
    /// `None`, with the reason printed, where there can be none.
    fn new() -> Option<Self> {
        Self::with(Hosts::new(), &[])
    }

    fn with(hosts: anyhow::Result<Hosts>, settings: &[&str]) -> Option<Self> {
        Self::of(Kind::default(), hosts, [settings; 2])
    }

    /// `settings`: of the server's engine and of the client's.
    fn of(kind: Kind, hosts: anyhow::Result<Hosts>, settings: [&[&str]; 2]) -> Option<Self> {
        let hosts = match hosts::possible().and(hosts) {
            Ok(hosts) => hosts,
            Err(why) => {
                skipped(&format!("{why:#}"));
                return None;
            }
        };
        if !kind.meets && hosts.server.group().is_none() {
            skipped("there is no cgroup hierarchy of version 2");
            return None;
        }
        let boards = [BoardDir::new(), BoardDir::new()];
        let copies = kind.unprivileged.then(|| unprivileged::Copies::for_boards(&boards));
        let mut pair = Self { engines: Vec::new(), boards, hosts, kind, copies };
        for (side, settings) in [Side::Server, Side::Client].into_iter().zip(settings) {
            let engine = pair.engine(side, settings);
            pair.engines.push(engine);
        }
        Some(pair)
    }

    /// The program `shunt`.
    fn program(&self) -> PathBuf {
        self.copies.as_ref().map_or_else(|| built("shunt"), |copies| copies.program("shunt"))
    }

    fn host(&self, side: Side) -> &Host {
        match side {
            Side::Server => &self.hosts.server,
            Side::Client => &self.hosts.client,
        }
    }

    fn board(&self, side: Side) -> &BoardDir {
        &self.boards[usize::from(side == Side::Client)]
    }

    /// Starts an engine and waits until it is ready.
    fn engine(&self, side: Side, settings: &[&str]) -> Guest {
        let host = self.host(side);
        let mut command = self.plain(side, &self.program());
        let addresses: Vec<String> = match self.kind.v6 {
            true => vec![self.address_of(side)],
            false => host.addresses().map(|ip| ip.to_string()).collect(),
        };
        command.arg("engine").args(["--address", &addresses.join(","), "--eid", EID]);
        if self.kind.meets {
            let networks = "198.18.77.0/24,2001:2:0:4d::/64";
            command.args(["--cgroup", "none"]);
            if !settings.contains(&"--peers") {
                command.args(["--peers", networks]);
            }
        } else {
            let group = host.group().unwrap();
            let all = group.parent().unwrap();
            command.arg("--cgroup").arg(if self.kind.one_group { all } else { group });
        }
        command.args(settings);
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        let mut engine = Guest::start(&mut command);
        let mut said = BufReader::new(engine.take_stdout().unwrap());
        let mut line = String::new();
        while !line.contains("ready") {
            line.clear();
            assert!(
                said.read_line(&mut line).unwrap() > 0,
                "the engine ends: {:?}",
                engine.ended()
            );
        }
        std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
        engine
    }

    /// A program on a host, on TCP.
    fn plain(&self, side: Side, program: &Path) -> Command {
        let words = self.host(side).prefix();
        let mut command = e2e::run::command(&words[0], e2e::run::Under::Tcp);
        command.args(&words[1..]);
        if self.kind.unprivileged {
            command.args(unprivileged::PREFIX);
        }
        command.arg(program);
        command.env("SHUNT_DIR", self.board(side).path());
        if let Some(level) = std::env::var_os("SHUNT_LOG") {
            command.env("SHUNT_LOG", level);
        }
        command
    }

    /// A program on a host, under Shunt.
    fn shunt(&self, side: Side, program: &Path) -> Command {
        let mut command = self.plain(side, &self.program());
        command.args(["run", "--"]).arg(program);
        command
    }

    /// What `shunt stat --json` says on a host.
    fn stat(&self, side: Side) -> serde_json::Value {
        let mut command = self.plain(side, &self.program());
        let got = outcome(command.args(["stat", "--json", "--all"]), LIMIT);
        assert!(got.ok(), "{got:?}");
        serde_json::from_str(&got.out).unwrap()
    }

    /// What `shunt engine status --json` says on a host.
    fn status(&self, side: Side) -> serde_json::Value {
        let mut command = self.plain(side, &self.program());
        let got = outcome(command.args(["engine", "status", "--json"]), LIMIT);
        assert!(got.ok(), "{got:?}");
        serde_json::from_str(&got.out).unwrap()
    }

    /// Connections that were ever attached by programs of this name on a host.
    fn attached(&self, side: Side, program: &str) -> u64 {
        self.board(side).attached_by_program(program)
    }

    /// The sum of a count of all vectors of a host's engine.
    fn sum(&self, side: Side, name: &str) -> u64 {
        let status = self.status(side);
        let vectors = status["vectors"].as_array().unwrap();
        let count = |vector: &serde_json::Value| {
            vector[name].as_u64().unwrap_or_else(|| panic!("no {name} in {vector:#}"))
        };
        vectors.iter().map(count).sum()
    }

    /// Connections that the engine of a host ever carried by SMC-R.
    fn carried(&self, side: Side) -> u64 {
        self.sum(side, "connections_total")
    }

    /// Connections that the engine of a host left to TCP, for whatever reason.
    fn declined(&self, side: Side) -> u64 {
        self.sum(side, "declined_total")
    }

    /// What the engines carry while `run` runs: connections, and bytes that were written into the peer's memory.
    fn carries(&self, run: impl FnOnce()) -> [Carried; 2] {
        let now = || {
            [Side::Server, Side::Client].map(|side| Carried {
                connections: self.carried(side),
                bytes: self.sum(side, "bytes_tx"),
            })
        };
        let before = now();
        run();
        let after = now();
        [0, 1].map(|at| Carried {
            connections: after[at].connections - before[at].connections,
            bytes: after[at].bytes - before[at].bytes,
        })
    }

    /// Has `run` go by SMC-R: both engines carry a connection and so many bytes, the server's first, at least.
    /// That a guest was handed over says little: those whose handshake comes to nothing were too. Where a machine is
    /// busy, or a network bad enough, one may be late and so on TCP; then there is another.
    #[track_caller]
    fn must_carry(&self, bytes: [u64; 2], mut run: impl FnMut()) {
        let mut all = Vec::new();
        for _ in 0..5 {
            let carried = self.carries(&mut run);
            if carried.iter().zip(bytes).all(|(c, n)| c.connections > 0 && c.bytes >= n) {
                return;
            }
            all.push(carried);
        }
        panic!("not {bytes:?} bytes by SMC-R: {all:?}\n{:#}", self.status(Side::Client));
    }

    /// Starts a server on its host, and waits until it listens at a port.
    #[track_caller]
    fn listening(&self, command: &mut Command, port: u16) -> Guest {
        let mut server = Guest::start(command.stdin(Stdio::null()));

        eventually("the server listens", || {
            assert!(server.ended().is_none(), "the server ended: {:?}", server.ended());
            // Before it is on its host, it is on ours.
            let netns = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
            netns("self") != netns(&server.pid().to_string())
                && crate::programs::is_listened_at(server.pid(), port)
        });
        server
    }

    /// Starts a server that says so when it is ready and nothing else, at a port.
    #[track_caller]
    fn ready(&self, command: &mut Command, port: u16) -> Guest {
        let mut server = self.listening(command.stdout(Stdio::piped()), port);
        let mut said = BufReader::new(server.take_stdout().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
        server
    }

    fn address_of(&self, side: Side) -> String {
        let host = self.host(side);
        if self.kind.v6 { host.address_v6().to_string() } else { host.address().to_string() }
    }

    fn address(&self) -> String {
        self.address_of(Side::Server)
    }
}

/// A script for Python, for both ends.
const PEER: &str = include_str!("remote/peer.py");

/// A server and a client of ours that run `mode`; answers what the client left.
struct Talk {
    server: Guest,
    port: u16,
    place: PathBuf,
    /// What the server says, by the line.
    said: Receiver<String>,
}

impl Talk {
    /// Starts the server.
    fn serve(pair: &Pair, python: &Path, mode: &str, shunt: bool) -> Self {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("shunt-remote-{}-{count}.py", std::process::id());
        let place = std::env::temp_dir().join(name);
        std::fs::write(&place, PEER).unwrap();
        let mut command =
            if shunt { pair.shunt(Side::Server, python) } else { pair.plain(Side::Server, python) };
        command.arg(&place).args(["server", &pair.address(), "0", mode]);
        command.stdout(Stdio::piped()).stdin(Stdio::null());
        let mut server = Guest::start(&mut command);
        let lines = BufReader::new(server.take_stdout().unwrap()).lines();
        let (say, said) = mpsc::channel();
        // Ends with the server, or when nobody listens.
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| say.send(line)));
        let line = said.recv_timeout(LIMIT).unwrap();
        let port = line.trim().parse().unwrap_or_else(|_| panic!("the server says {line:?}"));
        Self { server, port, place, said }
    }

    /// What the server says next.
    #[track_caller]
    fn says(&self) -> String {
        self.said.recv_timeout(LIMIT).expect("the server says something")
    }

    fn client(&self, pair: &Pair, python: &Path, words: &[&str], shunt: bool) -> Outcome {
        let mut command =
            if shunt { pair.shunt(Side::Client, python) } else { pair.plain(Side::Client, python) };
        command.arg(&self.place).args(["client", &pair.address(), &self.port.to_string()]);
        outcome(command.args(words), LIMIT)
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.server.kill_all();
        let _ = std::fs::remove_file(&self.place);
    }
}

/// Python, or the end of the test with the reason.
fn python() -> Option<PathBuf> {
    let found = installed("python3");
    if found.is_none() {
        skipped("python3 is not installed");
    }
    found
}
