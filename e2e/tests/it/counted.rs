//! System calls, counted: short connections whose peer does not run under Shunt cost the end that does no call more than
//! they would by themselves, and messages between two that are both awake cost none.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use e2e::load::Style;
use e2e::run::{BoardDir, Guest, Under, command, library, plain_only, skipped};
use e2e::{calls, installed, rally, turns};

const GUEST: &str = env!("CARGO_BIN_EXE_load-guest");
/// Far longer than anything takes here.
const LIMIT: Duration = Duration::from_secs(60);

/// System calls by name.
type Calls = BTreeMap<String, usize>;

/// Between what guests do once and what they do in the end: see `turns`.
const MARK: &str = "getppid";

/// A guest under strace, which writes to `log`.
fn traced(log: &Path, under: Under<'_>) -> Command {
    // Not strace itself: the guest alone is to run under Shunt.
    let mut strace = command("strace", Under::Tcp);
    strace.args(["-f", "-qq", "-o"]).arg(log);
    if let Under::Shunt(dir) = under {
        strace.arg("-E").arg(format!("LD_PRELOAD={}", library().display()));
        strace.arg("-E").arg(format!("SHUNT_DIR={}", dir.path().display()));
    }
    strace.arg(GUEST);
    strace
}

/// What was called between both marks; `None`: strace may not look, which was said.
fn counted(log: &Path) -> Option<Calls> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    // Lines are `1234  name(arguments) = result`.
    let name = |line: &str| {
        let call = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        call.split_once('(').map(|(name, _)| name.to_owned())
    };
    let all: Vec<String> = text.lines().filter_map(name).collect();
    let marks: Vec<usize> = (0..all.len()).filter(|at| all[*at] == MARK).collect();
    let [first, last] = marks[..] else {
        skipped(&format!("strace may not look at a guest: {}", text.lines().next().unwrap_or("")));
        return None;
    };
    let mut calls = Calls::new();
    for name in &all[first + 1..last] {
        // The library waits by the kin of a call that can do as much.
        let name = match name.as_str() {
            "ppoll" | "select" | "pselect6" => "poll",
            "epoll_pwait" | "epoll_pwait2" => "epoll_wait",
            other => other,
        };
        *calls.entry(name.to_owned()).or_default() += 1;
    }
    Some(calls)
}

/// Which end is counted; the other is plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A server at one address.
    Server,
    /// A server at all addresses.
    ServerForAll,
    /// A client.
    Client,
}

fn log_of(what: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("counted-{what}-{}", std::process::id()))
}

/// The port that a guest's first line tells; `None`: it does not run under strace, which was said.
fn port_of(server: &mut Guest) -> Option<String> {
    let mut line = String::new();
    BufReader::new(server.take_stdout().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().strip_prefix("port ").map(str::to_owned);
    if port.is_none() {
        skipped(&format!("strace does not run a guest: {:?}", server.wait(LIMIT)));
    }
    port
}

/// The calls of one end in a run.
fn calls_of(role: Role, style: (&str, Style), under: Under<'_>) -> Option<Calls> {
    let plain_run = matches!(under, Under::Tcp);
    let log = log_of(&format!("{role:?}-{}-{}", style.0, plain_run));
    let plain = || command(GUEST, Under::Tcp);
    let is_client = role == Role::Client;
    let mut serve = if is_client { plain() } else { traced(&log, under) };
    if role == Role::ServerForAll {
        serve.env("E2E_HOST", "0.0.0.0");
    }
    let mut server = Guest::start(serve.args(["turns", style.0]).stdout(Stdio::piped()));
    let port = port_of(&mut server)?;
    let mut ask = if is_client { traced(&log, under) } else { plain() };
    let mut client = Guest::start(ask.args(["in-turn", &port, style.0]));
    for (end, guest) in [("client", &mut client), ("server", &mut server)] {
        let ended = guest.wait(LIMIT).unwrap_or_else(|e| panic!("{role:?} {style:?} {end}: {e}"));
        assert!(ended.success(), "{role:?} {style:?} {end}: {ended}");
    }
    let calls = counted(&log);
    let _ = std::fs::remove_file(&log);
    calls
}

fn costs_no_call(role: Role) {
    if plain_only() {
        return skipped("both runs would be the same");
    }
    if installed("strace").is_none() {
        return skipped("there is no strace");
    }
    for style in Style::ALL {
        let dir = BoardDir::new();
        let Some(plain) = calls_of(role, style, Under::Tcp) else { return };
        let Some(shunt) = calls_of(role, style, Under::Shunt(&dir)) else {
            return;
        };
        // That the library was there at all, and what was counted.
        assert!(role == Role::Client || dir.board().is_some(), "{role:?} {style:?}: no board");
        assert!(
            plain.values().sum::<usize>() >= 4 * turns::COUNTED,
            "{role:?} {style:?}: {plain:?}"
        );
        assert_eq!(
            plain,
            shunt,
            "{role:?} {style:?}: system calls of {} connections",
            turns::COUNTED
        );
    }
}

#[test]
fn a_server_makes_the_calls_that_it_would_make_alone() {
    costs_no_call(Role::Server);
}

#[test]
fn a_server_at_all_addresses_makes_the_calls_that_it_would_make_alone() {
    costs_no_call(Role::ServerForAll);
}

#[test]
fn a_client_makes_the_calls_that_it_would_make_alone() {
    costs_no_call(Role::Client);
}

/// What each end of a rally called, server and client, each on one of these CPUs.
fn rallied(name: &str, [here, there]: [usize; 2], dir: &BoardDir) -> Option<[Calls; 2]> {
    let logs = ["server", "client"].map(|end| log_of(&format!("rally-{name}-{end}")));
    let mut serve = traced(&logs[0], Under::Shunt(dir));
    serve.args(["serve-rally", name, "0", &here.to_string()]);
    let mut server = Guest::start(serve.stdout(Stdio::piped()));
    let port = port_of(&mut server)?;
    let mut play = traced(&logs[1], Under::Shunt(dir));
    let mut client = Guest::start(play.args(["rally", &port, name, &there.to_string()]));
    for (end, guest) in [("client", &mut client), ("server", &mut server)] {
        let ended = guest.wait(LIMIT).unwrap_or_else(|e| panic!("{name} {end}: {e}"));
        assert!(ended.success(), "{name} {end}: {ended}");
    }
    let [server, client] = logs.map(|log| {
        let calls = counted(&log);
        let _ = std::fs::remove_file(&log);
        calls
    });
    Some([server?, client?])
}

/// Whether two threads that do nothing but compute for a while keep these CPUs to themselves.
fn are_to_spare(cpus: [usize; 2]) -> bool {
    let lost = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        status.lines().find(|line| line.starts_with("nonvoluntary")).unwrap().to_owned()
    };
    let keeps = |cpu: usize| {
        calls::cpus::pin(cpu).unwrap();
        let (begin, before) = (Instant::now(), lost());
        while begin.elapsed() < Duration::from_millis(4) {
            std::hint::spin_loop();
        }
        lost() == before
    };
    std::thread::scope(|scope| {
        let threads = cpus.map(|cpu| scope.spawn(move || keeps(cpu)));
        threads.map(|thread| thread.join().unwrap()) == [true; 2]
    })
}

/// Where both ends are awake, a message and its answer cost neither of them a system call. Not so with `poll` and `select`,
/// which ask the kernel every 20 microseconds, for strace makes each of these calls take longer than that. Whoever loses
/// its CPU to others meanwhile has the other sleep, and wakes it: of some tries one has to go well, and only those
/// count before and after which both CPUs were to spare.
#[test]
fn messages_between_two_that_are_awake_cost_no_call() {
    const DISTURBED: usize = 4;
    const UNDISTURBED: usize = 6;
    if plain_only() {
        return skipped("each message is a system call on kernel TCP");
    }
    if installed("strace").is_none() {
        return skipped("there is no strace");
    }
    let [here, there, ..] = *calls::cpus::allowed() else {
        return skipped("one CPU: the ends are not awake at the same time");
    };
    let cpus = [here, there];
    let is_free = |calls: &Calls| {
        let yields = calls.get("sched_yield").copied().unwrap_or(0);
        // Who waits for one that has lost its CPU gives its own away in between.
        calls.values().sum::<usize>() - yields < rally::COUNTED / 100
            && yields < rally::COUNTED / 10
    };
    for name in ["blocking", "level", "edge"] {
        let (mut tries, mut disturbed) = (Vec::new(), 0);
        loop {
            let dir = BoardDir::new();
            let spare = are_to_spare(cpus);
            let Some(ends) = rallied(name, cpus, &dir) else { return };
            assert!(dir.attached() > 0, "{name} stayed on TCP:\n{}", dir.summary());
            if ends.iter().all(is_free) {
                break;
            }
            if spare && are_to_spare(cpus) {
                tries.push(ends);
                let messages = rally::COUNTED;
                assert!(tries.len() < UNDISTURBED, "{name}, {messages} messages: {tries:?}");
                // What has disturbed it unseen may be over then.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            disturbed += 1;
            if disturbed == DISTURBED {
                return skipped("this machine has no two CPUs to spare");
            }
        }
    }
}
