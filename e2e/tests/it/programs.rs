//! Real programs under load: right results, no errors, and shared memory where it is expected.
//!
//! Each test says which program it needs and is skipped, with that reason, where it is absent.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use e2e::installed;
use e2e::run::{BoardDir, Guest, Outcome, PATIENCE, Under};
use e2e::run::{command, eventually, outcome, plain_only, skipped, until};
use sys::sync::{AtomicU32, Ordering};

mod databases;
mod killed;
mod runtimes;
mod web;

const LIMIT: Duration = Duration::from_secs(180);

/// The path of a program, or the end of this test with the reason.
macro_rules! need {
    ($name:expr) => {
        match e2e::installed($name) {
            Some(path) => path,
            None => {
                e2e::run::skipped(&format!("{} is not installed", $name));
                return;
            }
        }
    };
}
pub(crate) use need;

/// A directory for what a program writes; removed in the end, unless the test has failed.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("shunt-e2e-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let said = ["log", "error.log"].map(|name| {
            let path = self.0.join(name);
            let said = fs::read(&path).unwrap_or_default();
            (path, String::from_utf8_lossy(&said).into_owned())
        });
        if thread::panicking() {
            // What a server said is often the only trace of why.
            for (path, said) in &said {
                let end = said.char_indices().rev().nth(8000).map_or(0, |(at, _)| at);
                eprintln!("the end of {}:\n{}", path.display(), &said[end..]);
            }
            return;
        }
        let _ = fs::remove_dir_all(&self.0);
        // A worker that the watchdog has ended is started again by its master, and nobody else would know.
        for (path, said) in &said {
            let alarm = said.lines().find(|line| line.contains("watchdog: "));
            assert_eq!(alarm, None, "in {}", path.display());
        }
    }
}

/// A port that was free a moment ago, is no other test's, and none that the kernel gives to who asks for any: the
/// server that is to have it may start late.
fn free_port() -> u16 {
    const FIRST: u32 = 20_000;
    const PORTS: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (0..PORTS)
        .find_map(|_| {
            let n = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id());
            let port = u16::try_from(FIRST + n % PORTS).unwrap();
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok().then_some(port)
        })
        .expect("a port of 20000 to 31999 is free")
}

/// Waits until somebody listens.
#[track_caller]
fn await_port(server: &mut Guest, port: u16) {
    eventually("somebody listens", || {
        assert!(server.ended().is_none(), "the server ended at once: {:?}", server.ended());
        is_listened_at(server.pid(), port)
    });
}

/// Whether somebody listens at a port in the network of a process. Asking by a connection would be one to the server:
/// one of iperf3 sends others away until it is done with it.
pub(crate) fn is_listened_at(pid: i32, port: u16) -> bool {
    let end = format!(":{port:04X}");
    let listens = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|at| at.ends_with(&end)) && words.nth(1) == Some("0A")
    };
    ["tcp", "tcp6"].iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().any(listens)
    })
}

/// Starts a server; its output goes to a file of `place` for whoever reads a failure.
fn serve(command: &mut Command, place: &Path, port: u16) -> Guest {
    let log = fs::File::options().create(true).append(true).open(place.join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut guest = Guest::start(command);
    await_port(&mut guest, port);
    guest
}

/// What a client of iperf3 left, as soon as its server has time for one: it serves one at a time, and takes a while
/// to be done with who came before.
pub(crate) fn iperf3_client(client: impl Fn() -> Command) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let got = outcome(&mut client(), LIMIT);
        let said = format!("{}{}", got.out, got.err);
        // It says so, or ends the connection before the client has said who it is.
        let is_busy = ["the server is busy", "unable to send cookie to server"];
        let is_busy = is_busy.iter().any(|words| said.contains(words));
        // With `-J` it has ended well even then.
        if !is_busy || Instant::now() > deadline {
            return got;
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Asserts that a client ended well.
#[track_caller]
fn assert_ok(what: &str, got: &Outcome, dir: &BoardDir) {
    assert!(
        got.ok(),
        "{what}: exit {}\n{}\n{}\n{:?}\non the board:\n{}",
        got.code,
        got.out,
        got.err,
        got.hung,
        dir.summary()
    );
}

/// Asserts that a program of this name used shared memory.
#[track_caller]
fn assert_attached(program: &str, dir: &BoardDir) {
    let n = dir.attached_by_program(program);
    assert!(n > 0 || plain_only(), "{program} stayed on TCP:\n{}", dir.summary());
}

/// Asserts that somebody used shared memory: for programs whose slots others have taken over since.
#[track_caller]
fn assert_any_attached(dir: &BoardDir) {
    assert!(dir.attached() > 0 || plain_only(), "all stayed on TCP:\n{}", dir.summary());
}

fn seconds() -> u64 {
    if e2e::quick() { 1 } else { 2 }
}
