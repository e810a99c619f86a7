//! Processes that die, stop, run out of things, or come and go in thousands: what is left must be
//! what TCP leaves.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::thread;
use std::time::Duration;

use e2e::differential::Random;
use e2e::load::Style;
use e2e::run::{BoardDir, Guest, Outcome, Under};
use e2e::run::{command, eventually, library, outcome, plain_only, skipped};

const GUEST: &str = env!("CARGO_BIN_EXE_load-guest");
const LIMIT: Duration = Duration::from_secs(120);

/// A server and what it says.
struct Server {
    guest: Guest,
    port: u16,
    lines: BufReader<ChildStdout>,
}

impl Server {
    fn start(words: &[&str], under: Under<'_>) -> Self {
        Self::start_with(words, under, &[])
    }

    fn start_with(words: &[&str], under: Under<'_>, settings: &[(&str, &str)]) -> Self {
        let mut command = command(GUEST, under);
        command.args(words).stdout(Stdio::piped()).envs(settings.iter().copied());
        let mut guest = Guest::start(&mut command);
        let mut lines = BufReader::new(guest.take_stdout().unwrap());
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        let port = first.trim().strip_prefix("port ").and_then(|p| p.parse().ok());
        Self { guest, port: port.unwrap_or_else(|| panic!("the server said {first:?}")), lines }
    }

    /// The next line of this kind, which must come in time.
    #[track_caller]
    fn line(&mut self, kind: &str, limit: Duration) -> String {
        let watch = Watch::over(self.guest.pid(), limit);
        let mut line = String::new();
        while self.lines.read_line(&mut line).is_ok_and(|n| n > 0) && !line.starts_with(kind) {
            line.clear();
        }
        assert!(!watch.bit(), "the server hangs: no line {kind:?} within {limit:?}");
        line.trim().to_owned()
    }

    /// How the next request ended.
    #[track_caller]
    fn ended(&mut self, limit: Duration) -> String {
        self.line("ended", limit)
    }
}

/// Kills a process when something takes too long.
struct Watch {
    done: std::sync::mpsc::Sender<()>,
    thread: thread::JoinHandle<bool>,
}

impl Watch {
    fn over(pid: i32, limit: Duration) -> Self {
        let (done, waits) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let late = waits.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            if late {
                let _ = e2e::calls::kill(pid, libc::SIGKILL);
            }
            late
        });
        Self { done, thread }
    }

    fn bit(self) -> bool {
        let _ = self.done.send(());
        self.thread.join().unwrap()
    }
}

fn client(words: &[String], under: Under<'_>) -> Outcome {
    outcome(command(GUEST, under).args(words), LIMIT)
}

fn transfer_words(port: u16, style: usize, seed: u64, len: u64) -> Vec<String> {
    vec!["transfer".into(), port.to_string(), style.to_string(), seed.to_string(), len.to_string()]
}

/// Asserts that a client said `want`.
#[track_caller]
fn assert_said(got: &Outcome, want: &str, dir: &BoardDir) {
    assert!(
        got.ok() && got.out.trim() == want,
        "wanted {want:?}, got exit {} {:?}\n{}{:?}\non the board:\n{}",
        got.code,
        got.out,
        got.err,
        got.hung,
        dir.summary()
    );
}

/// Streams both ways in one style; `attach`: they must have gone through shared memory.
fn exact(style: Style, ours: bool, theirs: bool, settings: &[(&str, &str)], attach: bool) {
    let dir = BoardDir::new();
    let under = |shunt: bool| if shunt { Under::Shunt(&dir) } else { Under::Tcp };
    let mut server = Server::start_with(&["serve"], under(theirs), settings);
    // More than sockets hold, so that a stream cannot end before its ends have met.
    let len: u64 = if e2e::quick() { 24 << 20 } else { 64 << 20 };
    let index = Style::ALL.iter().position(|(_, s)| *s == style).unwrap();
    let mut command = command(GUEST, under(ours));
    command.args(transfer_words(server.port, index, 11, len)).envs(settings.iter().copied());
    let got = outcome(&mut command, LIMIT);
    assert_said(&got, &format!("sent={len} received={len} status=done"), &dir);
    let line = server.ended(Duration::from_secs(20));
    assert_eq!(line, format!("ended sent={len} received={len} status=done"));
    let attached = dir.attached();
    if plain_only() {
        return;
    }
    if attach {
        assert!(attached >= 2, "stayed on TCP:\n{}", dir.summary());
    } else {
        assert_eq!(attached, 0, "attached to a peer without Shunt:\n{}", dir.summary());
    }
}

#[test]
fn streams_are_exact_blocking() {
    exact(Style::Blocking, true, true, &[], true);
}

/// One thread sends and another receives, at both ends: the switch comes while senders are in the middle
/// of a call, which no later byte may enter. Many connections, because the moment differs each time, and each
/// of them must have left TCP.
#[test]
fn streams_are_exact_when_switched_in_mid_call() {
    const LEN: u64 = 20_000_000;
    let dir = BoardDir::new();
    let mut server = Server::start_with(&["serve"], Under::Shunt(&dir), &[]);
    let blocking = Style::ALL.iter().position(|(_, s)| *s == Style::Blocking).unwrap();
    let mut attached = 0;
    for seed in 0..if e2e::quick() { 20 } else { 100 } {
        let words = transfer_words(server.port, blocking, seed, LEN);
        let got = client(&words, Under::Shunt(&dir));
        assert_said(&got, &format!("sent={LEN} received={LEN} status=done"), &dir);
        let line = server.ended(Duration::from_secs(20));
        assert_eq!(line, format!("ended sent={LEN} received={LEN} status=done"));
        let by_now = attached_by(&server, &dir);
        assert!(by_now > attached || plain_only(), "{seed} stayed on TCP:\n{}", dir.summary());
        attached = by_now;
    }
}

/// A connection is closed, and another one made by its number, while the thread that has sent on it, or has ended it, may
/// not be back from that call.
fn made_anew(words: &[&str]) {
    let dir = BoardDir::new();
    let server = Server::start(&["serve-anew"], Under::Shunt(&dir));
    let port = server.port.to_string();
    let words: Vec<String> =
        ["anew", &port, "1000"].iter().chain(words).map(ToString::to_string).collect();
    let got = client(&words, Under::Shunt(&dir));
    assert_said(&got, "done", &dir);
    assert!(plain_only() || dir.attached() > 0, "stayed on TCP:\n{}", dir.summary());
}

#[test]
fn another_connection_by_its_number_hears_nothing_of_a_send() {
    made_anew(&[]);
}

#[test]
fn another_connection_by_its_number_is_not_ended_by_a_shutdown() {
    made_anew(&["ends"]);
}

#[test]
fn streams_are_exact_poll() {
    exact(Style::Poll, true, true, &[], true);
}

#[test]
fn streams_are_exact_select() {
    exact(Style::Select, true, true, &[], true);
}

#[test]
fn streams_are_exact_epoll_level() {
    exact(Style::Level, true, true, &[], true);
}

#[test]
fn streams_are_exact_epoll_edge() {
    exact(Style::Edge, true, true, &[], true);
}

#[test]
fn streams_are_exact_without_spinning() {
    exact(Style::Level, true, true, &[("SHUNT_SPIN_US", "0")], true);
}

#[test]
fn streams_are_exact_in_small_rings() {
    let small = [("SHUNT_RING_MIN", "16K"), ("SHUNT_RING_MAX", "16K")];
    exact(Style::Edge, true, true, &small, true);
    exact(Style::Blocking, true, true, &small, true);
}

#[test]
fn streams_are_exact_with_one_side_under_shunt() {
    exact(Style::Edge, true, false, &[], false);
    exact(Style::Edge, false, true, &[], false);
    exact(Style::Blocking, true, false, &[], false);
    exact(Style::Blocking, false, true, &[], false);
}

#[test]
fn switched_off_stays_on_tcp() {
    exact(Style::Poll, true, true, &[("SHUNT_ENABLED", "off")], false);
}

const ENDLESS: u64 = 1 << 50;

/// What a transfer may say after the other side was killed: bytes that came were right, and the end
/// is one that TCP knows.
#[track_caller]
fn assert_cut_off(line: &str) {
    let status = line.rsplit("status=").next().unwrap_or_default();
    assert!(
        ["end", "ECONNRESET", "EPIPE"].contains(&status),
        "after a kill of the other side: {line:?}"
    );
}

/// How long it may take until one side has noticed what became of the other. A guest that waits in vain says so after
/// 10 s, which [`assert_cut_off`] does not take for an end.
const NOTICED: Duration = Duration::from_secs(30);

/// How many connections a server has attached.
fn attached_by(server: &Server, dir: &BoardDir) -> u64 {
    dir.board().map_or(0, |board| board.attached_by(server.guest.pid()))
}

/// Waits until a server has attached one more connection than `before`, and answers how many it has then.
#[track_caller]
fn attached_one_more(server: &Server, dir: &BoardDir, before: u64) -> u64 {
    let by_now = || attached_by(server, dir);
    if !plain_only() {
        eventually("the connection is attached", || by_now() > before);
    }
    by_now()
}

/// Kills one side under load at a random moment, the load being in shared memory: the other must notice at once. (For
/// the moments before that see `kills`.)
fn kill_one_side(kill_server: bool) {
    let mut random = Random::new(if kill_server { 71 } else { 72 });
    let dir = BoardDir::new();
    let mut server = Server::start(&["serve"], Under::Shunt(&dir));
    let rounds = if e2e::quick() { 5 } else { 25 };
    let mut attached = 0;
    for round in 0..rounds {
        let style = usize::try_from(random.below(5)).unwrap();
        let mut load = command(GUEST, Under::Shunt(&dir));
        load.args(transfer_words(server.port, style, round, ENDLESS)).stdout(Stdio::piped());
        let mut load = Guest::start(&mut load);
        let _ = server.line("began", NOTICED);
        attached = attached_one_more(&server, &dir, attached);
        thread::sleep(Duration::from_micros(random.below(60_000)));
        if kill_server {
            server.guest.signal(libc::SIGKILL);
            load.wait(NOTICED).unwrap_or_else(|e| panic!("style {style}: {e}"));
            let mut said = String::new();
            BufReader::new(load.take_stdout().unwrap()).read_line(&mut said).unwrap();
            assert_cut_off(said.trim());
            (server, attached) = (Server::start(&["serve"], Under::Shunt(&dir)), 0);
        } else {
            load.kill_all();
            let line = server.ended(NOTICED);
            // Killed before it had sent its request.
            if line.contains("status=") {
                assert_cut_off(&line);
            }
        }
    }
    // Whatever was killed, the next one is as good as the first.
    let got = client(&transfer_words(server.port, 0, 5, 1 << 20), Under::Shunt(&dir));
    assert_said(&got, "sent=1048576 received=1048576 status=done", &dir);
}

#[test]
fn server_killed_under_load() {
    kill_one_side(true);
}

#[test]
fn client_killed_under_load() {
    kill_one_side(false);
}

/// Stops either side again and again while bytes flow.
#[test]
fn stopped_and_continued() {
    let dir = BoardDir::new();
    let mut random = Random::new(73);
    let server = Server::start(&["serve"], Under::Shunt(&dir));
    let len: u64 = if e2e::quick() { 16 << 20 } else { 256 << 20 };
    let mut attached = 0;
    for style in 0..Style::ALL.len() {
        let mut load = command(GUEST, Under::Shunt(&dir));
        load.args(transfer_words(server.port, style, 9, len)).stdout(Stdio::piped());
        let mut load = Guest::start(&mut load);
        for _ in 0..8 {
            thread::sleep(Duration::from_micros(1_000 + random.below(20_000)));
            let victim = if random.once_in(2) { load.pid() } else { server.guest.pid() };
            let _ = e2e::calls::kill(victim, libc::SIGSTOP);
            thread::sleep(Duration::from_micros(5_000 + random.below(60_000)));
            let _ = e2e::calls::kill(victim, libc::SIGCONT);
        }
        load.wait(LIMIT).unwrap_or_else(|e| panic!("style {style}: {e}\n{}", dir.summary()));
        let mut said = String::new();
        BufReader::new(load.take_stdout().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said.trim(), format!("sent={len} received={len} status=done"), "style {style}");
        attached = attached_one_more(&server, &dir, attached);
    }
}

/// A killed client that was stopped first, so that the server sleeps on a silent peer.
#[test]
fn killed_while_stopped() {
    let dir = BoardDir::new();
    let mut server = Server::start(&["serve"], Under::Shunt(&dir));
    let mut attached = 0;
    for style in 0..Style::ALL.len() {
        let mut load = command(GUEST, Under::Shunt(&dir));
        load.args(transfer_words(server.port, style, 3, ENDLESS)).stdout(Stdio::null());
        let mut load = Guest::start(&mut load);
        let _ = server.line("began", NOTICED);
        attached = attached_one_more(&server, &dir, attached);
        load.signal(libc::SIGSTOP);
        thread::sleep(Duration::from_millis(100));
        load.kill_all();
        assert_cut_off(&server.ended(NOTICED));
    }
}

/// Many connections at once.
fn many(count: usize, settings: &[(&str, &str)], dir: &BoardDir) -> Outcome {
    let server = Server::start_with(&["serve-many"], Under::Shunt(dir), settings);
    let mut command = command(GUEST, Under::Shunt(dir));
    let words = ["many".to_owned(), server.port.to_string(), count.to_string(), "10".to_owned()];
    outcome(command.args(words).envs(settings.iter().copied()), LIMIT)
}

#[test]
fn a_thousand_connections() {
    let dir = BoardDir::new();
    let got = many(1000, &[], &dir);
    assert_said(&got, "all 1000", &dir);
    let attached = dir.attached();
    assert!(
        attached >= 1800 || plain_only(),
        "of 2000 halves {attached} were attached:\n{}",
        dir.summary()
    );
}

/// So little memory that most connections stay on TCP: all of them work.
#[test]
fn tiny_memory_limit() {
    let dir = BoardDir::new();
    let got = many(400, &[("SHUNT_MEMORY_MAX", "1M")], &dir);
    assert_said(&got, "all 400", &dir);
}

/// The file system of the board is full before there is a board, and when there are some rings.
#[test]
fn full_file_system() {
    for size in ["1M", "24M", "40M"] {
        let dir = match BoardDir::small(size) {
            Ok(dir) => dir,
            Err(e) => {
                skipped(&format!("cannot mount a tmpfs: {}", e2e::show::errno_name(e)));
                return;
            }
        };
        let got = many(600, &[], &dir);
        assert_said(&got, "all 600", &dir);
        let mut server = Server::start(&["serve"], Under::Shunt(&dir));
        let got = client(&transfer_words(server.port, 3, 4, 8 << 20), Under::Shunt(&dir));
        assert_said(&got, "sent=8388608 received=8388608 status=done", &dir);
        assert_eq!(server.ended(LIMIT), "ended sent=8388608 received=8388608 status=done");
    }
}

/// Of processes that have ended, or were killed, with connections open there are offers left on the board. Whoever meets
/// one when the file system is full looks for its half, which has been taken off the board, where there is memory still.
#[test]
fn full_file_system_after_many_have_died() {
    for how in ["ended", "killed"] {
        let dir = match BoardDir::small("64M") {
            Ok(dir) => dir,
            Err(e) => {
                return skipped(&format!("cannot mount a tmpfs: {}", e2e::show::errno_name(e)));
            }
        };
        let server = Server::start(&["serve-many"], Under::Shunt(&dir));
        let many = |count: u32, how: &str| {
            let mut command = command(GUEST, Under::Shunt(&dir));
            let port = server.port.to_string();
            outcome(command.args(["many", &port, &count.to_string(), "2", how]), LIMIT)
        };
        let first = many(2000, how);
        assert_eq!(first.out.trim(), "all 2000", "{}\n{}", first.err, dir.summary());
        // Whoever comes next takes what was theirs off the board; not before the server has seen that they are gone.
        let buried = || {
            assert_said(&many(1, "ended"), "all 1", &dir);
            let all = dir.board().map(|board| board.processes()).unwrap_or_default();
            all.iter().filter(|process| process.live).count() <= 2
        };
        eventually("only the server and who came last are left", buried);
        crate::reasons::fill(&dir);
        for _ in 0..5 {
            assert_said(&many(400, "ended"), "all 400", &dir);
        }
    }
}

/// Under a limit of file sizes the library makes no board, which would end the program by a signal; one that is there it
/// uses.
#[test]
fn limit_of_file_sizes() {
    let dir = BoardDir::new();
    let limited = |words: &[String]| {
        // The shell is not under Shunt, or it would make the board.
        let mut command = command("sh", Under::Tcp);
        if !plain_only() {
            command.env("LIBRARY", library()).env("SHUNT_DIR", dir.path());
        }
        let script = "ulimit -f 1000; LD_PRELOAD=\"$LIBRARY\" exec \"$0\" \"$@\"";
        command.args(["-c", script, GUEST]).args(words);
        outcome(&mut command, LIMIT)
    };
    let plain = Server::start(&["serve"], Under::Tcp);
    let got = limited(&transfer_words(plain.port, 3, 4, 1 << 20));
    assert_said(&got, "sent=1048576 received=1048576 status=done", &dir);
    assert_eq!(dir.attached(), 0, "somebody could make the board:\n{}", dir.summary());
    let server = Server::start(&["serve"], Under::Shunt(&dir));
    let before = dir.attached();
    let got = limited(&transfer_words(server.port, 3, 4, 1 << 20));
    assert_said(&got, "sent=1048576 received=1048576 status=done", &dir);
    assert!(dir.attached() > before || plain_only(), "stayed on TCP:\n{}", dir.summary());
}

/// What a program may have of addresses it has besides the board's: a limit is put up by them, where that can be done, and the
/// program does not see it; where not, there is no board.
#[test]
fn limit_of_addresses() {
    const KIB: u64 = 17_100_000;
    let dir = BoardDir::new();
    let limited = |how: &str, words: &[String]| {
        let mut command = command("sh", Under::Tcp);
        if !plain_only() {
            command.env("LIBRARY", library()).env("SHUNT_DIR", dir.path());
        }
        // By a shell that is under Shunt, whose limits another program looks at.
        let inner = "ulimit -v; cat /proc/$$/limits; exec \"$0\" \"$@\"";
        let script = format!(
            "ulimit {how} {KIB}; LD_PRELOAD=\"$LIBRARY\" exec sh -c '{inner}' \"$0\" \"$@\""
        );
        command.args(["-c", &script, GUEST]).args(words);
        let got = outcome(&mut command, LIMIT);
        let line = got.out.lines().find_map(|line| line.strip_prefix("Max address space"));
        let soft = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        (got.out, soft.unwrap_or(0u64))
    };
    let server = Server::start(&["serve"], Under::Shunt(&dir));
    let words = transfer_words(server.port, 3, 4, 1 << 20);
    let done = "sent=1048576 received=1048576 status=done";
    let (said, soft) = limited("-v", &words);
    assert!(said.starts_with(&KIB.to_string()) && said.trim_end().ends_with(done), "{said}");
    assert_eq!(soft, KIB << 10);
    assert_eq!(dir.attached(), 0, "the board takes what the program may need:\n{}", dir.summary());
    let (said, soft) = limited("-S -v", &words);
    assert!(said.starts_with(&KIB.to_string()) && said.trim_end().ends_with(done), "{said}");
    if !plain_only() {
        assert!(soft > (KIB << 10) + (16 << 30), "{soft}");
        assert!(dir.attached() > 0, "stayed on TCP:\n{}", dir.summary());
    }
}

/// A program that locks all of its memory does not lock the board, of which next to nothing exists: the kernel would
/// make every page of it, as far as the file system goes.
#[test]
fn all_memory_locked() {
    let dir = match BoardDir::small("100M") {
        Ok(dir) => dir,
        Err(e) => {
            return skipped(&format!("cannot mount a tmpfs: {}", e2e::show::errno_name(e)));
        }
    };
    let mut server = Server::start(&["serve-locked"], Under::Shunt(&dir));
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.guest.pid())).unwrap();
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap().trim();
    let locked: u64 = locked.split(' ').next().unwrap().parse().unwrap();
    assert!(locked > 1000, "{locked} KiB of the program are locked");
    assert!(locked < 1 << 20 || plain_only(), "{locked} KiB are locked: the board is among them");
    let got = client(&transfer_words(server.port, 3, 4, 8 << 20), Under::Shunt(&dir));
    assert_said(&got, "sent=8388608 received=8388608 status=done", &dir);
    assert_eq!(server.ended(LIMIT), "ended sent=8388608 received=8388608 status=done");
    // Were the file system full, there would have been no memory for rings.
    assert!(dir.attached() > 0 || plain_only(), "stayed on TCP:\n{}", dir.summary());
}

/// Few descriptors, and all of them in use: who comes then waits, and is served as well as anybody.
#[test]
fn few_descriptors() {
    const LIMIT_OF: usize = 40;
    let dir = BoardDir::new();
    let server = Server::start(&["serve-few", &LIMIT_OF.to_string()], Under::Shunt(&dir));
    let transfers = |from: u64| -> Vec<thread::JoinHandle<Outcome>> {
        let one = |seed| {
            let mut command = command(GUEST, Under::Shunt(&dir));
            command.args(transfer_words(server.port, 2, seed, 3 << 20));
            thread::spawn(move || outcome(&mut command, LIMIT))
        };
        (from..from + 4).map(one).collect()
    };
    let assert_done = |all: Vec<thread::JoinHandle<Outcome>>| {
        for got in all {
            let done = "sent=3145728 received=3145728 status=done";
            assert_said(&got.join().unwrap(), done, &dir);
        }
    };
    assert_done(transfers(0));
    // They say nothing, so that each keeps a descriptor of the server's; more than it may have.
    let connect = || TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let holding: Vec<TcpStream> = (0..LIMIT_OF + 20).map(|_| connect()).collect();
    let open = |fd: &usize| Path::new(&format!("/proc/{}/fd/{fd}", server.guest.pid())).exists();
    eventually("no descriptor is left", || (0..LIMIT_OF).filter(open).count() == LIMIT_OF);
    let waiting = transfers(4);
    drop(holding);
    assert_done(waiting);
    assert_done(transfers(8));
    assert!(dir.attached() > 0 || plain_only(), "all stayed on TCP:\n{}", dir.summary());
}

/// Connections that come and go, ended in every way.
#[test]
fn close_storm() {
    let dir = BoardDir::new();
    let server = Server::start(&["serve-many"], Under::Shunt(&dir));
    let count = if e2e::quick() { 300 } else { 3000 };
    let clients: Vec<thread::JoinHandle<Outcome>> = (0..3)
        .map(|seed: u64| {
            let words =
                ["storm".to_owned(), server.port.to_string(), count.to_string(), seed.to_string()];
            let mut command = command(GUEST, Under::Shunt(&dir));
            command.args(words);
            thread::spawn(move || outcome(&mut command, LIMIT))
        })
        .collect();
    for client in clients {
        assert_said(&client.join().unwrap(), &format!("all {count}"), &dir);
    }
    if plain_only() {
        return;
    }
    assert!(dir.attached() > 0, "nothing was attached:\n{}", dir.summary());
    // The server has closed everything it attached, once it has heard of the last ones.
    eventually("all halves are closed", || {
        let processes = dir.board().unwrap().processes();
        processes.iter().all(|process| process.attached <= process.closed)
    });
}

/// Slots, memory and offers of processes that have gone are used again: the last pair shares memory as the first did.
#[test]
fn generations_of_processes() {
    const LEN: u64 = 20_000_000;
    let dir = BoardDir::new();
    let rounds = if e2e::quick() { 20 } else { 120 };
    for round in 0..rounds {
        let mut server = Server::start(&["serve"], Under::Shunt(&dir));
        let got = client(&transfer_words(server.port, 3, round, LEN), Under::Shunt(&dir));
        assert_said(&got, &format!("sent={LEN} received={LEN} status=done"), &dir);
        let _ = server.ended(LIMIT);
        let attached = attached_by(&server, &dir) > 0 || plain_only();
        assert!(attached, "pair {round} stayed on TCP:\n{}", dir.summary());
    }
    if plain_only() {
        return;
    }
    let board = dir.board().unwrap();
    let used = board.processes().len();
    assert!(used < 32, "{used} slots for {} processes, never more than two at once", rounds * 2);
    let extents = board.word32(std::mem::offset_of!(sys::abi::Header, extents_used)) as usize;
    assert!(extents < 80, "{extents} extents of memory in use after {rounds} rounds");
}

/// Each of two threads has a descriptor of its own for the connection (`TcpStream::try_clone`), and closes it when it is
/// done, while the other one is in a call.
#[test]
fn threads_with_a_descriptor_each() {
    let dir = BoardDir::new();
    let peer = e2e::built("smcpeer");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let port = port.to_string();
    let mut serve = command(&peer, Under::Shunt(&dir));
    let _server = Guest::start(serve.args(["serve", "--tcp", &port]).stdout(Stdio::null()));
    eventually("it listens", || TcpStream::connect(format!("127.0.0.1:{port}")).is_ok());
    for purpose in ["echo", "both"].repeat(8) {
        let mut visit = command(&peer, Under::Shunt(&dir));
        visit.args(["visit", "--tcp", "--purpose", purpose, "--bytes", "1048576"]);
        let got = outcome(visit.args(["127.0.0.1", &port]), LIMIT);
        assert!(got.ok() && got.out.contains("done bytes="), "{purpose}: {got:?}");
    }
}

/// A server answers and becomes another program before its client has looked whether it was attached: asleep meanwhile, or
/// in a receive of the kernel's. What comes by TCP then is the answer, behind doorbells.
#[test]
fn an_answer_of_a_server_that_became_another_program_before_its_client_looked() {
    const PROGRAM: &str = r#"
import os, socket, time
listener = socket.create_server(("127.0.0.1", 0))
wrong = []
for n in range(30):
    server = os.fork()
    if server == 0:
        c, _ = listener.accept()
        if n % 3 == 1 and os.fork(): os._exit(0)
        if n % 2:
            # The client is in its receive, or about to be.
            os.dup2(c.fileno(), 1)
            os.execl("/bin/echo", "echo", "LAST.")
        c.recv(6, socket.MSG_WAITALL)
        c.sendall(b"LAST.\n")
        os.set_inheritable(c.fileno(), True)
        os.execl("/bin/true", "true")
    with socket.create_connection(listener.getsockname()) as s:
        if not n % 2:
            s.sendall(b"hello\n")
            time.sleep(0.02)
        got = b""
        try:
            while more := s.recv(99): got += more
        except OSError as e: got += str(e).encode()
        if got != b"LAST.\n": wrong.append((n, got))
    os.waitpid(server, 0)
print(wrong)
"#;
    let Some(python) = e2e::installed("python3") else {
        return skipped("no python3 here");
    };
    let dir = BoardDir::new();
    let mut program = command(python, Under::Shunt(&dir));
    let got = outcome(program.args(["-c", PROGRAM]), Duration::from_secs(60));
    assert!(got.ok() && got.out == "[]\n", "{got:?}");
}
