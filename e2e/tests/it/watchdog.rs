//! The watchdog build of the library: it ends a program whose wake-up was lost, and no other.
//!
//! Only where `SHUNT_BIN_DIR` holds such a build, which `SHUNT_WATCHDOG=1` says: `just watchdog`.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::built;
use e2e::run::{BoardDir, Guest, Outcome, Under, command, outcome, skipped};

const GUEST: &str = env!("CARGO_BIN_EXE_load-guest");
const LIMIT: Duration = Duration::from_secs(30);
const ABORTED: i32 = 128 + libc::SIGABRT;

fn is_watchdog() -> bool {
    let is = std::env::var_os("SHUNT_WATCHDOG").is_some();
    if !is {
        skipped("this is not the watchdog build: `just watchdog`");
    }
    is
}

/// Programs that sleep at once, so that each message needs its doorbell.
fn sleepy(program: &str, dir: &BoardDir) -> Command {
    let program = if program == GUEST { PathBuf::from(GUEST) } else { built(program) };
    let mut command = command(program, Under::Shunt(dir));
    command.envs([("SHUNT_SPIN_US", "0"), ("SHUNT_NAP_US", "0")]).stdin(Stdio::null());
    command
}

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

/// A server that swallows each so many doorbells (0: none), and its client.
fn pair(server: &[&str], client: &[&str], drop: &str) -> (BoardDir, Outcome) {
    let (dir, port) = (BoardDir::new(), free_port());
    let with_port = |name: &str, args: &[&str]| {
        let mut command = sleepy(name, &dir);
        command.args(args.iter().map(|a| a.replace("PORT", &port)));
        command
    };
    let mut command = with_port(server[0], &server[1..]);
    let _server = Guest::start(command.env("SHUNT_WATCHDOG_DROP", drop).stdout(Stdio::null()));
    while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let got = outcome(&mut with_port(client[0], &client[1..]), LIMIT);
    (dir, got)
}

/// The client was ended, asleep on such a thing and for such a reason.
#[track_caller]
fn assert_alarm([server, client]: [&[&str]; 2], drop: &str, (on, wants): (&str, &str)) {
    let (_, got) = pair(server, client, drop);
    let words = ["watchdog: lost wake-up: ", &format!(" on {on} "), &format!(" {wants} for ")];
    let told = got.err.lines().any(|line| words.iter().all(|words| line.contains(words)));
    assert!(got.code == ABORTED && told, "exit {}\n{}\n{:?}", got.code, got.err, got.hung);
}

#[track_caller]
fn assert_calm(dir: &BoardDir, got: &Outcome) {
    assert!(got.ok(), "exit {}\n{}\n{:?}", got.code, got.err, got.hung);
    assert!(dir.attached() > 0, "on TCP:\n{}", dir.summary());
}

const PINGPONG: [&[&str]; 2] =
    [&["pingpong", "server", "PORT"], &["pingpong", "client", "PORT", "--seconds", "2"]];
const HTTP: [&[&str]; 2] = [&["httpd", "PORT"], &["httpload", "PORT", "--seconds", "2"]];
/// The client sends, and all that its server may ring for is room.
const BULK: [&[&str]; 2] =
    [&["bulk", "server", "PORT"], &["bulk", "client", "PORT", "--seconds", "2"]];
const POLL: [&[&str]; 2] =
    [&[GUEST, "serve-rally", "poll", "PORT"], &[GUEST, "rally", "PORT", "poll"]];
const SELECT: [&[&str]; 2] =
    [&[GUEST, "serve-rally", "select", "PORT"], &[GUEST, "rally", "PORT", "select"]];
/// Two threads wait for one event set, whose connections then have a doorbell each.
const IN_TWOS: [&[&str]; 2] =
    [&[GUEST, "serve-rally", "blocking", "PORT"], &[GUEST, "rally-in-twos", "PORT"]];

#[test]
fn a_blocked_reader_whose_doorbell_was_swallowed_is_noticed() {
    if is_watchdog() {
        assert_alarm(PINGPONG, "50", ("connection", "unread"));
    }
}

#[test]
fn an_event_loop_whose_doorbell_was_swallowed_is_noticed() {
    if is_watchdog() {
        assert_alarm(HTTP, "50", ("set", "unread"));
    }
}

#[test]
fn a_writer_without_room_whose_doorbell_was_swallowed_is_noticed() {
    if is_watchdog() {
        assert_alarm(BULK, "20", ("connection", "room"));
    }
}

#[test]
fn who_polls_and_whose_doorbell_was_swallowed_is_noticed() {
    if is_watchdog() {
        assert_alarm(POLL, "50", ("connection", "unread"));
    }
}

#[test]
fn who_selects_and_whose_doorbell_was_swallowed_is_noticed() {
    if is_watchdog() {
        assert_alarm(SELECT, "50", ("connection", "unread"));
    }
}

#[test]
fn an_event_set_with_two_waiters_whose_doorbell_was_swallowed_is_noticed() {
    if is_watchdog() {
        assert_alarm(IN_TWOS, "50", ("set", "unread"));
    }
}

#[test]
fn nothing_is_said_where_each_doorbell_rings() {
    if is_watchdog() {
        for [server, client] in [PINGPONG, HTTP, BULK, POLL, SELECT, IN_TWOS] {
            let (dir, got) = pair(server, client, "0");
            assert_calm(&dir, &got);
        }
    }
}
