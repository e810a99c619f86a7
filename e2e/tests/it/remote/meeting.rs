//! Engines without the privilege to put an option into the TCP handshake: they ask each other which connections
//! they share.

use local::Reason;

use super::going::Going;
use super::*;
use crate::reasons::{assert_counted, assert_said_of};

const MEETS: Kind = Kind { v6: false, meets: true, one_group: false, unprivileged: false };

fn pair() -> Option<Pair> {
    // What is short goes by SMC as well.
    Pair::of(MEETS, Hosts::new(), [&ALL_BY_SMC; 2])
}

/// Connections until one goes by SMC-R: the first ones find the engines strangers.
#[track_caller]
fn acquaint(pair: &Pair, talk: &Talk, python: &Path) {
    eventually("a connection goes by SMC-R", || {
        let got = talk.client(pair, python, &["echo", "1,1000"], true);
        assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
        pair.carried(Side::Client) > 0
    });
    eventually("the server counts it", || pair.carried(Side::Server) > 0);
}

/// A reason of the status of a host, with how often.
fn declined(pair: &Pair, side: Side, why: &str) -> u64 {
    let status = pair.status(side);
    let vectors = status["vectors"].as_array().unwrap();
    vectors.iter().filter_map(|vector| vector["declined"][why].as_u64()).sum()
}

#[test]
fn engines_meet_and_all_goes_by_smc() {
    let (Some(python), Some(pair)) = (python(), pair()) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    acquaint(&pair, &talk, &python);
    let before = pair.carried(Side::Client);
    for words in [&["echo", "1,2,17,65537,5000000"][..], &["many", "100"]] {
        let got = talk.client(&pair, &python, words, true);
        assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
    }
    // On a machine that is busy enough a question or an answer may come too late for some.
    let late = || pair.declined(Side::Client);
    eventually("all are counted", || pair.carried(Side::Client) - before + late() >= 101);
    assert!(pair.carried(Side::Client) - before > 10, "{:#}", pair.status(Side::Client));
    let met = pair.status(Side::Client)["met"].to_string();
    assert!(met.contains(&pair.address()), "{met}");
}

/// Engines that name each other by their addresses are no strangers even to the first connection, nor when one has been
/// started again.
#[test]
fn engines_that_are_named_know_each_other_before() {
    let (Some(python), Some(mut pair)) = (python(), pair()) else { return };
    let addresses = [Side::Server, Side::Client].map(|side| pair.address_of(side));
    let named = |pair: &mut Pair, side: Side| {
        let at = side as usize;
        pair.engines[at].signal(libc::SIGTERM);
        pair.engines[at].wait(LIMIT).unwrap();
        let words = ["--spare-short", "off", "--peers", &addresses.join(",")];
        pair.engines[at] = pair.engine(side, &words);
    };
    let know = |pair: &Pair| {
        eventually("they know each other", || {
            [Side::Server, Side::Client].iter().zip(addresses.iter().rev()).all(|(side, other)| {
                pair.status(*side)["met"].as_array().is_some_and(|met| {
                    // And nobody meets himself.
                    met.len() == 1 && met[0].as_str() == Some(other.as_str())
                })
            })
        });
    };
    [Side::Server, Side::Client].into_iter().for_each(|side| named(&mut pair, side));
    know(&pair);
    let talk = Talk::serve(&pair, &python, "echo", true);
    let got = talk.client(&pair, &python, &["echo", "1,1000"], true);
    assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
    assert_eq!(pair.carried(Side::Client), 1, "{:#}", pair.status(Side::Client));
    // A server whose kernel would show it no connection before there is a byte, and none comes before that is decided.
    let late = Talk::serve(&pair, &python, "echo-deferred", true);
    let got = late.client(&pair, &python, &["echo", "1,1000"], true);
    assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
    assert_eq!(pair.carried(Side::Client), 2, "{:#}", pair.status(Side::Client));
    named(&mut pair, Side::Client);
    know(&pair);
    let got = talk.client(&pair, &python, &["echo", "1,1000"], true);
    assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
    assert_eq!(pair.carried(Side::Client), 1, "{:#}", pair.status(Side::Client));
}

#[test]
fn a_server_that_speaks_first() {
    let (Some(python), Some(pair)) = (python(), pair()) else { return };
    let echo = Talk::serve(&pair, &python, "echo", true);
    acquaint(&pair, &echo, &python);
    let talk = Talk::serve(&pair, &python, "greet", true);
    let before = pair.carried(Side::Client);
    eventually("one goes by SMC-R", || {
        let got = talk.client(&pair, &python, &["greet"], true);
        assert!(got.ok(), "{got:?}");
        pair.carried(Side::Client) > before
    });
}

#[test]
fn programs_without_shunt_are_on_tcp() {
    let (Some(python), Some(pair)) = (python(), pair()) else { return };
    // Both hosts have engines that know each other; one of the programs, or both, knows nothing of them.
    let echo = Talk::serve(&pair, &python, "echo", true);
    acquaint(&pair, &echo, &python);
    let carried = pair.carried(Side::Client);
    for (mode, words) in [("echo", &["echo", "1,1000,300000"][..]), ("greet", &["greet"])] {
        for (server, client) in [(true, false), (false, true), (false, false)] {
            let talk = Talk::serve(&pair, &python, mode, server);
            for _ in 0..3 {
                let got = talk.client(&pair, &python, words, client);
                let who = format!("{mode}, server under Shunt {server}, client {client}");
                assert!(got.ok(), "{who}: {got:?}");
            }
        }
    }
    assert_eq!(pair.carried(Side::Client), carried);
    let why = "Nobody under Shunt listens at the peer's port.";
    assert!(declined(&pair, Side::Client, why) > 0, "{:#}", pair.status(Side::Client));
    // And those that do are still served.
    let got = echo.client(&pair, &python, &["echo", "1,1000"], true);
    assert!(got.ok(), "{got:?}");
    eventually("SMC-R goes on", || {
        let got = echo.client(&pair, &python, &["echo", "1,1000"], true);
        assert!(got.ok(), "{got:?}");
        pair.carried(Side::Client) > carried
    });
}

#[test]
fn a_host_without_an_engine_is_on_tcp() {
    let (Some(python), Some(mut pair)) = (python(), pair()) else { return };
    pair.engines[0].signal(libc::SIGTERM);
    pair.engines[0].wait(LIMIT).unwrap();
    let talk = Talk::serve(&pair, &python, "echo", true);
    for _ in 0..3 {
        let got = talk.client(&pair, &python, &["echo", "1,1000,300000"], true);
        assert!(got.ok(), "{got:?}");
    }
    assert_eq!(pair.carried(Side::Client), 0);
    // An engine that starts is found.
    let engine = pair.engine(Side::Server, &[]);
    pair.engines[0] = engine;
    acquaint(&pair, &talk, &python);
}

/// Nobody takes connections any more, and nobody has been promised anything.
#[test]
fn an_engine_that_is_killed_leaves_connections_to_tcp() {
    let (Some(python), Some(pair)) = (python(), pair()) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    acquaint(&pair, &talk, &python);
    pair.engines[1].signal(libc::SIGKILL);
    let got = talk.client(&pair, &python, &["echo", "1,1000,300000"], true);
    assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
    assert_counted(pair.board(Side::Client), Reason::NoEngine, "a killed engine");
}

/// An engine that was known says nothing any more: ours has the connection, and forwards it by TCP, which stands there.
#[test]
fn stat_says_that_the_peers_engine_did_not_take_it() {
    let (Some(python), Some(pair)) = (python(), pair()) else { return };
    let echo = Talk::serve(&pair, &python, "echo", true);
    acquaint(&pair, &echo, &python);
    let talk = Talk::serve(&pair, &python, "echo", false);
    pair.engines[0].signal(libc::SIGSTOP);
    let going = Going::start(&pair, &talk, &python, &["8"]);
    let stat = pair.stat(Side::Client);
    let all = stat["connections"].as_array().unwrap();
    let found = all.iter().find(|c| c["state"] == "ACTIVE").unwrap_or_else(|| panic!("{stat}"));
    assert_eq!(found["mode"], "TCP", "{stat}");
    assert_said_of(found, Reason::NotMet);
    pair.engines[0].signal(libc::SIGCONT);
    going.end(&pair);
}
