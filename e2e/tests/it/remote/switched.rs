//! `shunt off` of the programs of one host, with an engine on each: new connections are TCP, those that there are go on.

use local::Reason;

use super::going::Going;
use super::*;
use crate::reasons::assert_counted;

/// Has new connections of a host's programs stay on TCP, or not any more.
#[track_caller]
fn switch(pair: &Pair, side: Side, how: &str) {
    let mut command = pair.plain(side, &pair.program());
    let got = outcome(command.arg(how), LIMIT);
    assert!(got.ok(), "{got:?}");
}

fn heeded(kind: Kind) {
    let (Some(python), Some(pair)) = (python(), Pair::of(kind, Hosts::new(), [&ALL_BY_SMC; 2]))
    else {
        return;
    };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let echo = || {
        let got = talk.client(&pair, &python, &["echo", "100000"], true);
        assert!(got.ok(), "{got:?}\n{:#}", pair.status(Side::Client));
    };
    // Where the engines are strangers before.
    eventually("one goes by SMC-R", || {
        echo();
        pair.carried(Side::Client) > 0
    });
    let before = pair.carried(Side::Client);
    let going = Going::start(&pair, &talk, &python, &["8"]);
    eventually("it is counted", || pair.carried(Side::Client) > before);
    for side in [Side::Client, Side::Server] {
        switch(&pair, side, "off");
        let count = || [Side::Server, Side::Client].map(|side| pair.carried(side));
        let before = count();
        (0..4).for_each(|_| echo());
        assert_eq!(count(), before, "{side:?}: {:#}", pair.status(side));
        // A client that has just begun is on no board, for this alone.
        if side == Side::Server {
            assert_counted(pair.board(side), Reason::SwitchedOff, "off where the server is");
        }
        switch(&pair, side, "on");
        pair.must_carry([100_000; 2], echo);
    }
    // What has gone by SMC-R all the while.
    going.end(&pair);
}

#[test]
fn engines_of_privilege_heed_it() {
    heeded(Kind::default());
}

#[test]
fn engines_that_meet_heed_it() {
    heeded(Kind { meets: true, ..Kind::default() });
}

/// Has an engine take no new connections, or again.
#[track_caller]
fn drain(pair: &Pair, side: Side, words: &[&str], code: i32) -> String {
    let mut command = pair.plain(side, &pair.program());
    let got = outcome(command.args(["engine", "drain"]).args(words), LIMIT);
    assert_eq!(got.code, code, "{got:?}");
    got.err
}

/// An engine that is to end takes no new connections, and ends when those that it has are gone, at either end of them.
fn drained(kind: Kind) {
    for side in [Side::Client, Side::Server] {
        let (Some(python), Some(mut pair)) =
            (python(), Pair::of(kind, Hosts::new(), [&ALL_BY_SMC; 2]))
        else {
            return;
        };
        let talk = Talk::serve(&pair, &python, "echo", true);
        let echo = |pair: &Pair| {
            let got = talk.client(pair, &python, &["echo", "100000"], true);
            assert!(got.ok(), "{got:?}\n{:#}", pair.status(Side::Client));
        };
        eventually("one goes by SMC-R", || {
            echo(&pair);
            pair.carried(Side::Client) > 0
        });
        let before = pair.carried(Side::Client);
        let going = Going::start(&pair, &talk, &python, &["8"]);
        eventually("it is counted", || pair.carried(Side::Client) > before);
        let has_left = |pair: &Pair, count: u64| {
            eventually("the others are gone", || {
                pair.status(side)["guest_connections"].as_u64() == Some(count)
            });
        };
        has_left(&pair, 1);
        drain(&pair, side, &[], 0);
        let count = |pair: &Pair| [Side::Server, Side::Client].map(|side| pair.carried(side));
        let before = count(&pair);
        (0..4).for_each(|_| echo(&pair));
        assert_eq!(count(&pair), before, "{side:?}: {:#}", pair.status(side));
        let status = pair.status(side);
        assert_eq!(status["draining"], true, "{status:#}");
        has_left(&pair, 1);
        if side == Side::Server && !kind.meets {
            assert_counted(pair.board(side), Reason::Draining, "the server's engine is to end");
        }
        let left = drain(&pair, side, &["--wait", "1"], 1);
        assert!(left.contains("1 connections are left"), "{left}");
        // It may be taken back.
        drain(&pair, side, &["--undo"], 0);
        assert_eq!(pair.status(side)["draining"], false);
        pair.must_carry([100_000; 2], || echo(&pair));
        drain(&pair, side, &[], 0);
        let at = side as usize;
        assert_eq!(pair.engines[at].ended(), None, "a connection was left");
        going.end(&pair);
        let ended = pair.engines[at].wait(LIMIT).unwrap();
        assert!(ended.success(), "{side:?}: {ended}");
        // And what comes then is TCP, as without an engine.
        echo(&pair);
    }
}

#[test]
fn engines_of_privilege_drain() {
    drained(Kind::default());
}

#[test]
fn engines_that_meet_drain() {
    drained(Kind { meets: true, ..Kind::default() });
}

/// Who waits for one that has nothing to do does not wait for anybody else.
#[test]
fn an_idle_engine_ends_soon() {
    let Some(mut pair) = Pair::new() else { return };
    drain(&pair, Side::Client, &["--wait"], 0);
    let ended = pair.engines[Side::Client as usize].wait(LIMIT).unwrap();
    assert!(ended.success(), "{ended}");
}

/// Answers what comes, a connection after the other; says how many began with what is not the client's to say.
const SERVER: &str = "
import socket, sys
listener = socket.create_server((sys.argv[1], 7410), backlog=64)
strange = 0
while True:
    peer, _ = listener.accept()
    try:
        said = peer.recv(100)
        if said == b'end':
            break
        strange += said not in (b'hello', b'')
        peer.sendall(said)
    except OSError:
        pass
    peer.close()
print('strange', strange)
";

/// Makes connections from several threads until a file is there, and then the one that says so.
const CLIENTS: &str = "
import os, socket, sys, threading
host, stop = sys.argv[1:]
failed = []
def work():
    while not os.path.exists(stop):
        try:
            with socket.create_connection((host, 7410)) as peer:
                peer.sendall(b'hello')
                said = peer.recv(100)
                assert said == b'hello', said
        except Exception as e:
            failed.append(repr(e))
all = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in all]
print('going', flush=True)
[thread.join() for thread in all]
with socket.create_connection((host, 7410)) as peer:
    peer.sendall(b'end')
print('failed', len(failed), *failed[:4])
";

/// Until its last moment listeners promise SMC in the name of an engine that is to end.
#[test]
fn who_connects_while_an_engine_drains_gets_through() {
    let (Some(python), Some(mut pair)) = (python(), Pair::with(Hosts::new(), &ALL_BY_SMC)) else {
        return;
    };
    let mut command = pair.shunt(Side::Server, &python);
    let command = command.args(["-c", SERVER, &pair.address()]).stdout(Stdio::piped());
    let mut server = pair.listening(command, 7410);
    let stop = format!("shunt-drained-{}.stop", std::process::id());
    let stop = std::env::temp_dir().join(stop);
    let mut command = pair.shunt(Side::Client, &python);
    let command = command.args(["-c", CLIENTS, &pair.address()]).arg(&stop);
    let mut clients = Guest::start(command.stdout(Stdio::piped()));
    let mut said = BufReader::new(clients.take_stdout().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "going");
    eventually("they go by SMC-R", || pair.carried(Side::Server) > 20);
    drain(&pair, Side::Server, &["--wait"], 0);
    let ended = pair.engines[Side::Server as usize].wait(LIMIT).unwrap();
    assert!(ended.success(), "{ended}");
    std::thread::sleep(Duration::from_millis(500));
    std::fs::write(&stop, "").unwrap();
    line.clear();
    said.read_line(&mut line).unwrap();
    let failed: usize = line.split(' ').nth(1).unwrap().trim().parse().unwrap();
    clients.wait(LIMIT).unwrap();
    let _ = std::fs::remove_file(&stop);
    let mut strange = String::new();
    BufReader::new(server.take_stdout().unwrap()).read_line(&mut strange).unwrap();
    server.wait(LIMIT).unwrap();
    // One whose handshake is on its way when promises end may be lost.
    assert!(failed <= 1, "{line} {strange}");
    assert!(strange.trim() == "strange 0" || failed == 1, "{strange}");
}
