//! Connections that do nothing cost their event loop nothing: counted, not timed; and those that are gone hold no memory.

use std::io::{BufRead, BufReader};
use std::mem::offset_of;
use std::process::Stdio;

use e2e::installed;
use e2e::run::{BoardDir, Guest, Under, command, eventually, plain_only, skipped};
use sys::abi::{SLOTS_AT, Slot};

use super::reasons::Pausing;

/// Idle connections.
const COUNT: u64 = 500;
/// Messages there and back on another one.
const ROUNDS: u64 = 1000;

/// A loop that waits for connections which are offered, and of which nobody has taken the offer, looks at them when
/// something happens to an offer, and not each time that it wakes up.
#[test]
fn offers_that_nobody_takes_are_not_looked_at_again() {
    if plain_only() {
        return skipped("nothing is offered on kernel TCP");
    }
    let dir = BoardDir::new();
    let mut server = Pausing::start(&dir, &["serve-idle"]);
    let port = server.told("port");
    let mut client =
        Pausing::start(&dir, &["wait-idle", &port, &COUNT.to_string(), &ROUNDS.to_string()]);
    client.says("done");
    let board = dir.board().unwrap();
    let pid = client.pid();
    let its = board.processes().into_iter().find(|p| i64::from(p.pid) == i64::from(pid)).unwrap();
    assert_eq!(its.attached, 1, "{}", dir.summary());
    assert_eq!(board.offers_of(its.slot).len() as u64, COUNT, "{}", dir.summary());
    let slot = SLOTS_AT + its.slot as usize * size_of::<Slot>();
    let looks = board.word64(slot + offset_of!(Slot, offer_looks));
    // Some looks at all of them, and not one for each message.
    assert!((1..COUNT * ROUNDS / 20).contains(&looks), "{looks} looks at {COUNT} connections");
    // Each of them answers when it is asked.
    client.ends();
}

/// Sends as much as is taken to whoever asks, and forgets who is gone.
const GENEROUS: &str = r#"
import select, socket
listener = socket.create_server(("127.0.0.1", 0), backlog=128)
listener.setblocking(False)
print(listener.getsockname()[1], flush=True)
events, clients, data = select.epoll(), {}, bytes(1 << 20)
events.register(listener, select.EPOLLIN)
while True:
    for fd, event in events.poll():
        if fd == listener.fileno():
            client, _ = listener.accept()
            client.setblocking(False)
            clients[client.fileno()] = client
            events.register(client, select.EPOLLIN)
            continue
        try:
            if event & select.EPOLLIN and not clients[fd].recv(100):
                raise ConnectionError
            events.modify(fd, select.EPOLLIN | select.EPOLLOUT)
            clients[fd].send(data)
        except BlockingIOError:
            pass
        except OSError:
            events.unregister(fd)
            clients.pop(fd).close()
"#;

/// Takes some megabytes on each of some connections, and dies without a word.
const KILLED: &str = r#"
import os, signal, socket, sys
kept = []
for _ in range(8):
    server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    for _ in range(8):
        server.sendall(b"x")
        taken = 0
        while taken < 1 << 20:
            taken += len(server.recv(1 << 18))
    kept.append(server)
os.kill(os.getpid(), signal.SIGKILL)
"#;

const LAST: &str = r#"
import socket, sys
server = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
server.sendall(b"x")
server.recv(1)
"#;

/// A loop that has no connection any more gives their memory back, also where they ended with bytes that nobody had read.
#[test]
fn a_loop_without_connections_gives_memory_back() {
    if installed("python3").is_none() || plain_only() {
        return skipped("there is no python3, or no memory on kernel TCP");
    }
    let dir = BoardDir::new();
    let python = |text: &str| {
        let mut command = command("python3", Under::Shunt(&dir));
        command.args(["-c", text]);
        command
    };
    let mut server = Guest::start(python(GENEROUS).stdout(Stdio::piped()));
    let mut port = String::new();
    BufReader::new(server.take_stdout().unwrap()).read_line(&mut port).unwrap();
    let owned = || {
        let board = dir.board().unwrap();
        let its = |pid: u32| i64::from(pid) == i64::from(server.pid());
        let slot = board.processes().into_iter().find(|p| its(p.pid)).unwrap().slot;
        board.word64(SLOTS_AT + slot as usize * size_of::<Slot>() + offset_of!(Slot, bytes_owned))
    };
    let _ = python(KILLED).arg(port.trim()).status().unwrap();
    assert!(owned() > 2 << 20, "too little was ever held: {}", dir.summary());
    // What the one that was killed had goes when another joins.
    assert!(python(LAST).arg(port.trim()).status().unwrap().success());
    eventually("little is held", || owned() < 1 << 20);
}
