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
