//! Either side killed at moments that load alone hardly hits: before a connection is in use, and while it
//! goes back to TCP.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use e2e::differential::Random;
use e2e::run::{BoardDir, Guest, Under, command, outcome, plain_only};
use local::Reason;

const GUEST: &str = env!("CARGO_BIN_EXE_load-guest");
/// Far longer than anything takes here.
const LIMIT: Duration = Duration::from_secs(60);
const ENDLESS: u64 = 1 << 50;

/// A server of the load guest, and what it says.
struct Server {
    guest: Guest,
    port: u16,
    lines: Receiver<String>,
}

impl Server {
    fn start(dir: &BoardDir) -> Self {
        let mut command = command(GUEST, Under::Shunt(dir));
        let mut guest = Guest::start(command.arg("serve").stdout(Stdio::piped()));
        let out = BufReader::new(guest.take_stdout().unwrap());
        let (say, lines) = channel();
        thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|line| say.send(line))
        });
        let first: String = lines.recv_timeout(LIMIT).unwrap();
        let port = first.strip_prefix("port ").and_then(|port| port.parse().ok());
        Self { guest, port: port.unwrap_or_else(|| panic!("the server said {first:?}")), lines }
    }

    /// Waits until all that began has ended, each in a way that TCP knows.
    fn assert_all_ended(&self, open: &mut i64) {
        let begun = Instant::now();
        loop {
            match self.lines.recv_timeout(Duration::from_millis(200)) {
                Ok(line) if line == "began" => *open += 1,
                Ok(line) => {
                    *open -= 1;
                    assert_cut_off(&line);
                }
                Err(_) if *open == 0 => return,
                Err(_) => assert!(begun.elapsed() < LIMIT, "{open} requests never ended"),
            }
        }
    }
}

/// What may be said after the other side was killed: what came was right, and the end is one of TCP's.
#[track_caller]
fn assert_cut_off(line: &str) {
    let wrong = line.contains("wrong") || line.contains("nothing ready");
    let known = ["end", "ECONNRESET", "EPIPE", "ECONNREFUSED", "of a request"];
    assert!(!wrong && known.iter().any(|end| line.ends_with(end)), "after a kill: {line:?}");
}

/// After all that, a stream is as exact as the first would have been, and goes through shared memory.
#[track_caller]
fn assert_as_good_as_new(server: &Server, dir: &BoardDir) {
    const LEN: u64 = 24 << 20;
    let attached = || dir.board().map_or(0, |board| board.attached_by(server.guest.pid()));
    let before = attached();
    let mut command = command(GUEST, Under::Shunt(dir));
    let got = outcome(command.args(transfer(server.port, 3, 5, LEN)), LIMIT);
    let want = format!("sent={LEN} received={LEN} status=done");
    assert_eq!(got.out.trim(), want, "{}{:?}\n{}", got.err, got.hung, dir.summary());
    assert!(attached() > before || plain_only(), "stayed on TCP:\n{}", dir.summary());
}

fn transfer(port: u16, style: u64, seed: u64, len: u64) -> [String; 5] {
    ["transfer".to_owned(), port.to_string(), style.to_string(), seed.to_string(), len.to_string()]
}

fn rounds() -> u64 {
    if e2e::quick() { 15 } else { 80 }
}

/// A client that is killed in its first moments: before it connects, as it offers, as it is taken.
#[test]
fn client_killed_as_it_begins() {
    let dir = BoardDir::new();
    let server = Server::start(&dir);
    let (mut random, mut open) = (Random::new(81), 0);
    for round in 0..rounds() {
        let mut load = command(GUEST, Under::Shunt(&dir));
        load.args(transfer(server.port, random.below(5), round, ENDLESS)).stdout(Stdio::null());
        let mut load = Guest::start(&mut load);
        thread::sleep(Duration::from_micros(random.below(3_000)));
        load.kill_all();
    }
    server.assert_all_ended(&mut open);
    assert_as_good_as_new(&server, &dir);
}

/// A server that is killed in the first moments of a client.
#[test]
fn server_killed_as_a_client_begins() {
    let dir = BoardDir::new();
    let mut random = Random::new(82);
    for round in 0..rounds() / 2 {
        let mut server = Server::start(&dir);
        let mut load = command(GUEST, Under::Shunt(&dir));
        load.args(transfer(server.port, random.below(5), round, ENDLESS)).stdout(Stdio::piped());
        let mut load = Guest::start(&mut load);
        thread::sleep(Duration::from_micros(random.below(3_000)));
        server.guest.kill_all();
        load.wait(LIMIT).unwrap_or_else(|e| panic!("round {round}: {e}\n{}", dir.summary()));
        let mut said = String::new();
        load.take_stdout().unwrap().read_to_string(&mut said).unwrap();
        assert_cut_off(said.trim());
    }
    assert_as_good_as_new(&Server::start(&dir), &dir);
}

/// One side is killed while connections go back to TCP one after the other.
fn kill_in_demotion(kill_server: bool) {
    let dir = BoardDir::new();
    let mut random = Random::new(if kill_server { 83 } else { 84 });
    let (mut server, mut open) = (Server::start(&dir), 0);
    let mut demoted = [0; WAYS.len()];
    for seed in 0..rounds() / 2 {
        let mut load = command(GUEST, Under::Shunt(&dir));
        load.args(["demoting", &server.port.to_string(), &seed.to_string()]);
        let mut load = Guest::start(load.stdout(Stdio::piped()));
        // Once it has begun to go back and forth, at any moment of that.
        let first = server.lines.recv_timeout(LIMIT);
        open += i64::from(first.is_ok_and(|line| line == "began"));
        thread::sleep(Duration::from_micros(2_000 + random.below(60_000)));
        for (all, now) in demoted.iter_mut().zip(went_back(&dir)) {
            *all = now.max(*all);
        }
        if kill_server {
            server.guest.kill_all();
            load.wait(LIMIT).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", dir.summary()));
            let mut said = String::new();
            load.take_stdout().unwrap().read_to_string(&mut said).unwrap();
            // In the middle of an echo, or of a connect.
            if !said.starts_with("the end after ") {
                assert_cut_off(said.trim());
            }
            server = Server::start(&dir);
            open = 0;
        } else {
            load.kill_all();
            server.assert_all_ended(&mut open);
        }
    }
    let each = demoted.iter().all(|n| *n > 0);
    // An emulated CPU comes to fewer of them.
    assert!(
        each || plain_only() || e2e::emulated(),
        "of {WAYS:?} {demoted:?} went back to TCP:\n{}",
        dir.summary()
    );
    assert_as_good_as_new(&server, &dir);
}

/// Why `demoting` lets connections go back to TCP. (It also has a program without the library inherit them, which is
/// counted by a process that is gone by then.)
const WAYS: [Reason; 4] = [Reason::Option, Reason::Passed, Reason::Urgent, Reason::Stdio];

/// How often connections went back to TCP, for each of them.
fn went_back(dir: &BoardDir) -> [u32; WAYS.len()] {
    let processes = dir.board().map_or_else(Vec::new, |board| board.processes());
    WAYS.map(|reason| processes.iter().map(|p| p.reasons[reason.code() as usize]).sum())
}

#[test]
fn client_killed_in_a_demotion() {
    kill_in_demotion(false);
}

#[test]
fn server_killed_in_a_demotion() {
    kill_in_demotion(true);
}

/// One side is stopped for a while, again and again, at any moment of connections that begin, are taken, and go back
/// to TCP: nothing is lost, and nobody waits for what has happened. (`demoting` looks at each byte of its echoes.)
fn stopped_in_a_demotion(stop_server: bool) {
    let dir = BoardDir::new();
    let mut random = Random::new(if stop_server { 85 } else { 86 });
    let (server, mut open) = (Server::start(&dir), 0);
    let mut load = command(GUEST, Under::Shunt(&dir));
    load.args(["demoting", &server.port.to_string(), "9"]).stdout(Stdio::piped());
    let mut load = Guest::start(&mut load);
    let victim = if stop_server { server.guest.pid() } else { load.pid() };
    let demoted = || went_back(&dir).iter().sum::<u32>();
    let said = |load: &mut Guest| {
        let server: Vec<String> = server.lines.try_iter().filter(|line| line != "began").collect();
        format!("{}; the server said {server:?}\n{}", last_word(load).trim(), dir.summary())
    };
    for round in 0..rounds() * 2 {
        thread::sleep(Duration::from_micros(random.below(6_000)));
        let _ = e2e::calls::kill(victim, libc::SIGSTOP);
        // Shorter, and longer, than the other waits for a peer that does not do its part.
        thread::sleep(Duration::from_micros(*random.pick(&[1_000, 20_000, 150_000])));
        let _ = e2e::calls::kill(victim, libc::SIGCONT);
        assert!(load.ended().is_none(), "round {round}: {}", said(&mut load));
    }
    // It goes on, and not only with what is left.
    let (before, begun) = (demoted(), Instant::now());
    while demoted() <= before && !plain_only() {
        assert!(load.ended().is_none(), "afterwards: {}", said(&mut load));
        assert!(begun.elapsed() < LIMIT, "it does not go on:\n{}", dir.summary());
        thread::sleep(Duration::from_millis(2));
    }
    load.kill_all();
    server.assert_all_ended(&mut open);
    assert_as_good_as_new(&server, &dir);
}

fn last_word(load: &mut Guest) -> String {
    let mut said = String::new();
    let _ = load.take_stdout().map(|mut out| out.read_to_string(&mut said));
    said
}

#[test]
fn client_stopped_in_a_demotion() {
    stopped_in_a_demotion(false);
}

#[test]
fn server_stopped_in_a_demotion() {
    stopped_in_a_demotion(true);
}
