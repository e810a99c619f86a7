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

/// Who waits for one that has nothing to do does not wait long.
#[test]
fn an_idle_engine_ends_at_once() {
    let Some(mut pair) = Pair::new() else { return };
    drain(&pair, Side::Client, &["--wait"], 0);
    let ended = pair.engines[Side::Client as usize].ended();
    assert!(ended.is_some_and(|ended| ended.success()), "{ended:?}");
}
