//! Connections that gain nothing by SMC-R, because they are too short or streams: after a few the engine leaves their
//! destination to TCP, says so, and finds out when that changes.

use super::*;
use crate::reasons::assert_counted;
use e2e::board::Board;
use local::Reason;

/// Where connections stay on TCP, by the engine of the client's host.
fn spared(pair: &Pair) -> Vec<String> {
    let status = pair.status(Side::Client);
    let all = status["spared"].as_array().unwrap();
    all.iter().map(|to| to.as_str().unwrap().to_owned()).collect()
}

/// Connections with a reason for TCP, of all programs on the client's host: those with that one, and all.
fn on_tcp(pair: &Pair) -> [u64; 2] {
    let board = Board::find(pair.board(Side::Client).path(), false).unwrap().unwrap();
    let short = Reason::TooShort.code() as usize;
    let (mut of_short, mut of_all) = (0, 0);
    for process in board.processes() {
        of_short += u64::from(process.reasons[short]);
        of_all += process.reasons.iter().copied().map(u64::from).sum::<u64>();
    }
    [of_short, of_all]
}

#[test]
fn they_stay_on_tcp_until_longer_ones_come() {
    let (Some(python), Some(pair)) = (python(), Pair::new()) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let client = |words: &[&str]| {
        let got = talk.client(&pair, &python, words, true);
        assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
    };
    client(&["short", "1000", "0.002"]);
    let to = format!("{}:{}", pair.address(), talk.port);
    eventually("the destination is known", || spared(&pair) == [&*to]);
    // On a machine that is busy enough a few may be declined, by the engine or for want of its answer.
    let [too_short, on_tcp] = on_tcp(&pair);
    let by_engine = || pair.carried(Side::Client) + pair.declined(Side::Client);
    eventually("all are counted", || by_engine() + on_tcp >= 1000);
    // Those of the first moment, and trials.
    let carried = pair.carried(Side::Client);
    assert!((9..200).contains(&by_engine()) && carried > 0, "{carried} of {}", by_engine());
    assert!(too_short >= 700, "{too_short} of {on_tcp}");
    assert_counted(pair.board(Side::Client), Reason::TooShort, "a thousand short ones");
    // Another program profits from what this one has taught.
    client(&["short", "100", "0"]);
    std::thread::sleep(Duration::from_millis(200));
    assert!(pair.carried(Side::Client) <= carried + 2);
    // A trial that turns out to be long brings SMC-R back.
    eventually("SMC-R is back", || {
        client(&["turns", "1000"]);
        spared(&pair).is_empty()
    });
    std::thread::sleep(Duration::from_millis(200));
    let carried = pair.carried(Side::Client);
    eventually("one goes by SMC-R", || {
        client(&["turns", "100"]);
        pair.carried(Side::Client) > carried
    });
}

#[test]
fn they_go_by_smc_where_that_is_wanted() {
    let settings = ["--spare-short", "off"];
    let (Some(python), Some(pair)) = (python(), Pair::with(Hosts::new(), &settings)) else {
        return;
    };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let got = talk.client(&pair, &python, &["short", "100", "0"], true);
    assert!(got.ok(), "{got:?}");
    eventually("all are counted", || {
        pair.carried(Side::Client) + pair.declined(Side::Client) + on_tcp(&pair)[1] >= 100
    });
    assert!(pair.carried(Side::Client) >= 90, "{:#}", pair.status(Side::Client));
    assert_eq!(spared(&pair), [""; 0]);
}

#[test]
fn streams_stay_on_tcp_after_the_first() {
    const BYTES: &str = "40000000";
    let (Some(python), Some(pair)) = (python(), Pair::new()) else { return };
    // Towards the server, and from there.
    for (talks, words) in [("digest", ["digest", BYTES]), ("source", ["source", BYTES])] {
        let talk = Talk::serve(&pair, &python, talks, true);
        let client = || {
            let got = talk.client(&pair, &python, &words, true);
            assert!(got.ok(), "{got:?}\n{}", pair.board(Side::Client).summary());
        };
        let to = format!("{}:{}", pair.address(), talk.port);
        let before = pair.carried(Side::Client);
        client();
        eventually("it has gone by SMC-R", || pair.carried(Side::Client) > before);
        eventually("the destination is known", || spared(&pair).contains(&to));
        std::thread::sleep(Duration::from_millis(200));
        let carried = pair.carried(Side::Client);
        client();
        client();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(pair.carried(Side::Client), carried, "{:#}", pair.status(Side::Client));
        assert_eq!(pair.declined(Side::Client), 0);
    }
}
