//! `shunt off` and `shunt on`: what becomes of connections of programs that run, and of those that start meanwhile.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use e2e::run::{BoardDir, Guest, Under, command, outcome, plain_only, skipped};
use e2e::{built, installed};
use local::Reason;
use serde_json::Value;

use crate::reasons::assert_counted;
use crate::seen::{said, shunt};

const GUEST: &str = env!("CARGO_BIN_EXE_load-guest");
/// Far longer than anything takes here.
const LIMIT: Duration = Duration::from_secs(60);

#[track_caller]
fn look(dir: &Path) -> Value {
    serde_json::from_str(&said(&["stat", "--json"], dir, 0)).unwrap()
}

/// A program under Shunt, on the board in a directory that need not be there yet.
fn guest(dir: &Path, words: &[&str]) -> Guest {
    let mut command = command(GUEST, Under::Tcp);
    if !plain_only() {
        command.env("LD_PRELOAD", e2e::run::library()).env("SHUNT_DIR", dir);
    }
    // How short a connection is, is not what is asked here.
    command.env("SHUNT_SPARE_SHORT", "off");
    Guest::start(command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()))
}

/// A server, and its port.
fn server(dir: &Path) -> (Guest, String) {
    let mut server = guest(dir, &["serve"]);
    let mut lines = BufReader::new(server.take_stdout().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    let port = first.trim().strip_prefix("port ").unwrap_or_else(|| panic!("{first:?}"));
    (server, port.to_owned())
}

/// A client that moves what it is told to.
struct Client {
    program: Guest,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Client {
    /// `how`: `steps`, over one connection, or `steps-anew`, over one for each order.
    fn start(dir: &Path, how: &str, port: &str) -> Self {
        let mut program = guest(dir, &[how, port]);
        let orders = program.take_stdin().unwrap();
        let answers = BufReader::new(program.take_stdout().unwrap());
        Self { program, orders, answers }
    }

    #[track_caller]
    fn moves(&mut self, bytes: u64) {
        writeln!(self.orders, "{bytes}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer.trim(), format!("moved {bytes}"));
    }

    /// The mode of its connection, and why it has that.
    #[track_caller]
    fn mode(&self, dir: &Path) -> (String, u64) {
        let stat = look(dir);
        let all = stat["connections"].as_array().unwrap();
        let one = all.iter().find(|c| c["pid"] == self.program.pid());
        let one = one.unwrap_or_else(|| panic!("not of {}: {stat:#}", self.program.pid()));
        (one["mode"].as_str().unwrap().to_owned(), one["reason"].as_u64().unwrap())
    }
}

/// Programs that run hear of it at their next connection, and what is in shared memory stays there.
#[test]
fn programs_that_run() {
    if plain_only() {
        return skipped("nothing leaves kernel TCP, so nothing is to be switched off");
    }
    let (dir, other) = (BoardDir::new(), BoardDir::new());
    let (_server, port) = server(dir.path());
    let mut kept = Client::start(dir.path(), "steps", &port);
    let mut anew = Client::start(dir.path(), "steps-anew", &port);
    for _ in 0..8 {
        kept.moves(100);
    }
    anew.moves(100);
    assert_eq!(kept.mode(dir.path()), ("SHM".to_owned(), 0), "{}", dir.summary());
    assert_eq!(dir.attached(), 4, "two connections, two ends: {}", dir.summary());
    assert_eq!(look(dir.path())["switched_off"], false);

    let words = said(&["off"], dir.path(), 0);
    assert!(
        words.contains("shunt on") && words.contains(&*dir.path().to_string_lossy()),
        "{words}"
    );
    let before = look(dir.path());
    kept.moves(1_000_000);
    assert_eq!(kept.mode(dir.path()), ("SHM".to_owned(), 0), "{}", dir.summary());
    let sent = |stat: &Value| {
        let all = stat["connections"].as_array().unwrap();
        let one = all.iter().find(|c| c["pid"] == kept.program.pid()).unwrap();
        one["bytes_tx"].as_u64().unwrap()
    };
    let after = look(dir.path());
    assert_eq!(sent(&after) - sent(&before), 1_000_000, "not all of it by memory: {after:#}");
    // Of a program that had one in memory before, and of one that has just begun.
    anew.moves(100);
    assert_counted(&dir, Reason::SwitchedOff, "a connection while it is off");
    let mut late = Client::start(dir.path(), "steps", &port);
    late.moves(100);
    assert_eq!(dir.attached(), 4, "{}", dir.summary());
    // The end of one who takes part already is told.
    let ends = look(dir.path());
    let ends = ends["connections"].as_array().unwrap().iter();
    let off = ends.filter(|c| c["mode"] == "TCP" && c["reason"] == 40 && c["client"] == false);
    assert_eq!(off.count(), 1, "{}", dir.summary());
    seen(dir.path(), true);

    // Others are not concerned.
    let (_server, elsewhere) = server(other.path());
    let mut their = Client::start(other.path(), "steps-anew", &elsewhere);
    their.moves(100);
    assert_eq!(other.attached(), 2, "{}", other.summary());
    seen(other.path(), false);

    said(&["on"], dir.path(), 0);
    anew.moves(100);
    assert_eq!(dir.attached(), 6, "{}", dir.summary());
    let mut later = Client::start(dir.path(), "steps", &port);
    for _ in 0..8 {
        later.moves(100);
    }
    assert_eq!(later.mode(dir.path()), ("SHM".to_owned(), 0), "{}", dir.summary());
    assert_eq!(kept.mode(dir.path()), ("SHM".to_owned(), 0));
    // What has begun on TCP is not taken off it.
    late.moves(100);
    assert_eq!(dir.attached(), 8, "{}", dir.summary());
    seen(dir.path(), false);
}

/// Everybody says that it is off, or nobody.
#[track_caller]
fn seen(dir: &Path, off: bool) {
    let first = said(&["stat"], dir, 0);
    assert_eq!(first.starts_with("switched off: "), off, "{first}");
    assert_eq!(look(dir)["switched_off"], off);
    let page = said(&["stat", "--prometheus"], dir, 0);
    let line = format!("shunt_switched_off{{dir=\"{}\"}} {}", dir.display(), u8::from(off));
    assert!(page.lines().any(|l| l == line), "no {line}: {page}");
    let report = said(&["doctor", "true"], dir, i32::from(off));
    let words = "stays on TCP: switched off for all programs here";
    assert_eq!(report.lines().last().unwrap().contains(words), off, "{report}");
}

/// Programs that start when it is off, on a board that was not there, join nothing until it is on.
#[test]
fn programs_that_start_later() {
    if plain_only() {
        return skipped("nothing leaves kernel TCP, so nothing is to be switched off");
    }
    let place = BoardDir::new();
    let dir = place.path().join("later");
    said(&["on"], &dir, 0);
    assert!(!dir.exists(), "it is on where nobody has been");
    said(&["off"], &dir, 0);
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o7777, 0o700);
    seen(&dir, true);
    let (server, port) = server(&dir);
    let mut client = Client::start(&dir, "steps-anew", &port);
    client.moves(100);
    let attached = |dir: &Path| {
        let stat = look(dir);
        let all = stat["processes"].as_array().unwrap();
        all.iter().map(|p| p["attached_total"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(attached(&dir), 0);
    let told = said(&["doctor", "--pid", &server.pid().to_string()], &dir, 1);
    assert!(told.contains("switched off for all programs here"), "{told}");
    said(&["on"], &dir, 0);
    client.moves(100);
    assert_eq!(attached(&dir), 2, "{}", said(&["stat", "--totals"], &dir, 0));
    said(&["doctor", "--pid", &server.pid().to_string()], &dir, 0);
}

/// Root switches all users, in the place where boards usually are: a copy of it here.
#[test]
fn of_all_users() {
    if sys::call::geteuid() != 0 || installed("unshare").is_none() {
        return skipped("a /dev/shm of one's own needs root and unshare");
    }
    let script = "set -e
        mount -t tmpfs -o mode=1777 tmpfs /dev/shm
        mkdir -m 700 /dev/shm/shunt-54341 /dev/shm/shunt-54342 /dev/shm/shunt-54343
        chown 54341 /dev/shm/shunt-54341
        chown 54342 /dev/shm/shunt-54342
        # Not its.
        chown 54341 /dev/shm/shunt-54343
        mkdir /dev/shm/others
        $SHUNT off --everyone
        stat -c '%u %n' /dev/shm/*/switched-off
        $SHUNT stat --prometheus --everyone | grep ^shunt_switched_off
        $SHUNT on --everyone
        ! ls /dev/shm/*/switched-off";
    let mut command = command("unshare", Under::Tcp);
    command.args(["-m", "sh", "-c", script]).env("SHUNT", built("shunt"));
    let got = outcome(&mut command, LIMIT);
    assert!(got.ok(), "{got:?}");
    for line in [
        "54341 /dev/shm/shunt-54341/switched-off",
        "54342 /dev/shm/shunt-54342/switched-off",
        "shunt_switched_off{dir=\"/dev/shm/shunt-54341\"} 1",
        "/dev/shm/shunt-54342 is switched on",
    ] {
        assert!(got.out.lines().any(|l| l == line), "no {line}: {got:?}");
    }
    assert!(!got.out.contains("54343"), "{got:?}");
    let mut nobody = shunt(&["off", "--everyone"], Path::new("/dev/shm/none"));
    let nobody = outcome(nobody.uid(54_341), LIMIT);
    assert!(!nobody.ok() && nobody.err.contains("--everyone is for root"), "{nobody:?}");
}
