//! Event loops of more connections than a set looks at when they are quiet: who is busy needs no doorbell, however many there
//! are.

use std::io::{BufRead as _, BufReader, Write as _};
use std::mem::offset_of;
use std::process::Stdio;

use e2e::installed;
use e2e::run::{BoardDir, Guest, Under, command, plain_only, skipped};
use sys::abi::Half;

/// Connections: more than twice of what a set looks at in any case.
const COUNT: u64 = 1200;
/// Messages of each connection and way that are counted.
const ROUNDS: u64 = 20;

/// Takes connections and sends back what comes, in one loop.
const SERVER: &str = r#"
import resource, select, socket
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
print(listener.getsockname()[1], flush=True)
loop, peers = select.epoll(), {}
loop.register(listener, select.POLLIN)
while True:
    for fd, _ in loop.poll():
        if fd == listener.fileno():
            peer = listener.accept()[0]
            peers[peer.fileno()] = peer
            loop.register(peer, select.POLLIN)
        else:
            peer = peers[fd]
            message = peer.recv(100)
            if message: peer.sendall(message)
            else: loop.unregister(peers.pop(fd))
"#;

/// Sends to all, and waits for all in one loop, so many rounds as it is told.
const CLIENT: &str = r#"
import resource, select, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
loop, peers = select.epoll(), {}
for _ in range(int(sys.argv[2])):
    peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    peers[peer.fileno()] = peer
    loop.register(peer, select.POLLIN)
for line in sys.stdin:
    for _ in range(int(line)):
        for peer in peers.values(): peer.sendall(b"m" * 100)
        missing = len(peers)
        while missing:
            for fd, _ in loop.poll():
                assert len(peers[fd].recv(100)) == 100
                missing -= 1
    print("so many", flush=True)
"#;

#[test]
fn who_is_busy_is_not_rung_for() {
    if plain_only() {
        return skipped("there are no doorbells on kernel TCP");
    }
    let Some(python) = installed("python3") else { return skipped("no python3 here") };
    let dir = BoardDir::new();
    let start = |script: &str, args: &[&str]| {
        let mut command = command(&python, Under::Shunt(&dir));
        command.args(["-c", script]).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guest = Guest::start(&mut command);
        let said = BufReader::new(guest.take_stdout().unwrap());
        (guest, said)
    };
    let (server, mut said) = start(SERVER, &[]);
    let mut port = String::new();
    said.read_line(&mut port).unwrap();
    let (mut client, mut said) = start(CLIENT, &[port.trim(), &COUNT.to_string()]);
    let mut orders = client.take_stdin().unwrap();
    let mut rounds = |count: u64| {
        writeln!(orders, "{count}").unwrap();
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "so many\n");
    };
    let board = dir.board().unwrap();
    let sum = |field: usize| -> u64 {
        let pids = [server.pid(), client.pid()].map(i64::from);
        let slots = board.processes().into_iter().filter(|p| pids.contains(&i64::from(p.pid)));
        let halves = slots.flat_map(|p| board.halves_of(p.slot));
        halves.map(|at| u64::from(board.word32(at + field))).sum()
    };
    // They meet first, and learn that they are busy.
    rounds(5);
    let before = (sum(offset_of!(Half, n_rx)), sum(offset_of!(Half, bells)));
    rounds(ROUNDS);
    let rx = sum(offset_of!(Half, n_rx)) - before.0;
    let bells = sum(offset_of!(Half, bells)) - before.1;
    assert!(rx >= 2 * COUNT * ROUNDS, "{rx} messages\n{}", dir.summary());
    assert!(bells < rx / 8, "{bells} doorbells for {rx} messages\n{}", dir.summary());
}
