//! Servers that let connections wait: their clients wait as over TCP, and nobody else does.

use super::*;

/// Accepts one connection of each of two ports: of the second at once, of the first when it has been told, on the second.
const SERVER: &str = "
import socket, sys
late, early = [socket.create_server((sys.argv[1], port), backlog=8) for port in (7400, 7401)]
for n in range(2):
    peer, _ = early.accept()
    said = peer.recv(100)
    peer.sendall(said)
    peer.close()
peer, _ = late.accept()
peer.sendall(peer.recv(100))
assert peer.recv(1) == b''
";

/// Is there first at the port that nobody accepts from, for longer than a message of CLC is waited for (6 s).
const CLIENT: &str = "
import socket, sys, time
connected = lambda port: socket.create_connection((sys.argv[1], port))
waits = connected(7400)
waits.sendall(b'early')
for n in range(2):
    peer = connected(7401)
    peer.sendall(b'in time')
    assert peer.recv(100) == b'in time'
    peer.close()
    if n == 0:
        time.sleep(7)
assert waits.recv(100) == b'early'
waits.close()
print('done')
";

#[test]
fn who_is_accepted_late_waits_and_others_do_not() {
    let Some(python) = python() else { return };
    let Some(pair) = Pair::with(Hosts::new(), &ALL_BY_SMC) else { return };
    let mut command = pair.shunt(Side::Server, &python);
    let mut server = pair.listening(command.args(["-c", SERVER, &pair.address()]), 7401);
    let carried = pair.carries(|| {
        let mut command = pair.shunt(Side::Client, &python);
        let got = outcome(command.args(["-c", CLIENT, &pair.address()]), LIMIT);
        assert!(got.ok() && got.out.trim() == "done" && got.err.is_empty(), "{got:?}");
        assert!(server.wait(LIMIT).unwrap().success());
    });
    assert!(carried.iter().all(|c| c.connections == 3), "{carried:?}");
}
