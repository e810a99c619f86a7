//! System calls of short connections, counted: those whose peer does not run under Shunt cost the end that does no call more
//! than they would by themselves.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::load::Style;
use e2e::run::{BoardDir, Guest, Under, command, library, plain_only, skipped};
use e2e::{installed, turns};

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
    let mut line = String::new();
    let mut said = BufReader::new(server.take_stdout().unwrap());
    said.read_line(&mut line).unwrap();
    let Some(port) = line.trim().strip_prefix("port ") else {
        let ended = server.wait(LIMIT);
        skipped(&format!("strace does not run a guest: {ended:?}"));
        return None;
    };
    let mut ask = if is_client { traced(&log, under) } else { plain() };
    let mut client = Guest::start(ask.args(["in-turn", port, style.0]));
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
