//! Who waits for one connection alone naps, and so does an event loop: counted in doorbells, which naps do without. What ends
//! a nap is the oracle's (`oracle::napping`).

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test, with its line")]

use std::io::{BufRead as _, BufReader};
use std::mem::offset_of;
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use e2e::run::{BoardDir, Guest, Under, command, eventually, plain_only, skipped};
use e2e::{built, installed};
use sys::abi::Half;

/// Sends a message and waits for it to come back, for ever, by four threads: blocked in `recv`, or, with a limit, in `poll`; or
/// for it and for something else by an event set or by `poll`.
const CLIENT: &str = r#"
import os, select, socket, sys, threading
def rounds():
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = getattr(select, sys.argv[2], lambda: None)()
        if loop:
            s.setblocking(False)
            loop.register(s, select.POLLIN)
            loop.register(os.pipe()[0], select.POLLIN)
        else:
            s.settimeout(float(sys.argv[2]) or None)
        while True:
            s.sendall(b"m" * 100)
            n = 100
            while n:
                if loop: loop.poll(30000)
                n -= len(s.recv(n))
for _ in range(4): threading.Thread(target=rounds).start()
"#;

/// Messages that each end has got before they are counted.
const MESSAGES: u64 = 5_000;

fn messages_end_naps(how: &str) {
    if plain_only() {
        return skipped("there are no naps on kernel TCP");
    }
    if e2e::emulated() && matches!(how, "epoll" | "poll") {
        return skipped("on an emulated CPU a round of a loop takes longer than it naps");
    }
    let Some(python) = installed("python3") else { return skipped("no python3 here") };
    let dir = BoardDir::new();
    // Nobody spins, so that each wait is a sleep.
    let settings = [("SHUNT_SPIN_US", "0")];
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).unwrap().port();
    let mut server = command(built("pingpong"), Under::Shunt(&dir));
    server.args(["server", &port.to_string()]).envs(settings);
    let server = Guest::start(&mut server);
    eventually("it listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let mut client = command(python, Under::Shunt(&dir));
    client.args(["-c", CLIENT, &port.to_string(), how]).envs(settings).stdin(Stdio::null());
    let client = Guest::start(&mut client);
    let board = dir.board().unwrap();
    for pid in [server.pid(), client.pid()] {
        let sum = |field: usize| -> u64 {
            let slots =
                board.processes().into_iter().filter(|p| i64::from(p.pid) == i64::from(pid));
            let halves = slots.flat_map(|p| board.halves_of(p.slot));
            halves.map(|at| u64::from(board.word32(at + field))).sum()
        };
        eventually("messages have come", || sum(offset_of!(Half, n_rx)) > MESSAGES);
        // In this order: what is counted goes on.
        let bells = sum(offset_of!(Half, bells));
        let (woken, slept) = (sum(offset_of!(Half, n_bells)), sum(offset_of!(Half, n_sleeps)));
        assert!(slept > MESSAGES / 4, "{slept} sleeps: nothing to see\n{}", dir.summary());
        assert!(bells < woken / 4, "{bells} doorbells for {woken} wake-ups\n{}", dir.summary());
    }
}

#[test]
fn a_receive_naps() {
    messages_end_naps("0");
}

#[test]
fn a_poll_of_one_connection_naps() {
    messages_end_naps("30");
}

#[test]
fn an_event_loop_naps() {
    messages_end_naps("epoll");
}

#[test]
fn a_poll_of_several_naps() {
    messages_end_naps("poll");
}

/// Waits for the end of what its peer sends, and reads nothing of it, by `poll`, half a second at a time.
const WAITS_FOR_THE_END: &str = r#"
import select, socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
    s.sendall(b"m" * 100)
    while not select.select([s], [], [], 10)[0]: pass
    end = select.poll()
    end.register(s, 0x2000)
    for _ in range(4):
        assert end.poll(500) == []
    print("waited", flush=True)
    sys.stdin.read()
"#;

/// It took a core: what was unread ended each look, and was none of what was asked for.
#[test]
fn who_waits_for_the_end_sleeps_over_what_is_unread() {
    if plain_only() {
        return skipped("on kernel TCP it is the kernel that sleeps");
    }
    let Some(python) = installed("python3") else { return skipped("no python3 here") };
    let dir = BoardDir::new();
    let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).unwrap().port();
    let mut server = command(built("pingpong"), Under::Shunt(&dir));
    let _server = Guest::start(server.args(["server", &port.to_string()]));
    eventually("it listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let mut client = command(python, Under::Shunt(&dir));
    client.args(["-c", WAITS_FOR_THE_END, &port.to_string()]);
    let mut client = Guest::start(client.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut said = BufReader::new(client.take_stdout().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line, "waited\n");
    let board = dir.board().unwrap();
    let slots =
        board.processes().into_iter().filter(|p| i64::from(p.pid) == i64::from(client.pid()));
    let halves: Vec<_> = slots.flat_map(|p| board.halves_of(p.slot)).collect();
    let sum = |field: usize| halves.iter().map(|at| board.word32(at + field)).sum::<u32>();
    let (spun, slept) = (sum(offset_of!(Half, n_spins)), sum(offset_of!(Half, n_sleeps)));
    assert!(!halves.is_empty() && spun + slept < 100, "{spun} spins, {slept} sleeps");
}
