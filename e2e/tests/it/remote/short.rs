//! Connections too short for SMC-R: after a few the engine leaves their destination to TCP, says so, and finds
//! out when that changes.

use super::*;
use e2e::board::Board;
use local::Reason;

/// Where connections stay on TCP, by the engine of the client's host.
fn spared(pair: &Pair) -> Vec<String> {
    let status = pair.status(Side::Client);
    let all = status["spared"].as_array().unwrap();
    all.iter().map(|to| to.as_str().unwrap().to_owned()).collect()
}

/// Connections with that reason for TCP, of all programs on the client's host.
fn too_short(pair: &Pair) -> u32 {
    let board = Board::find(pair.board(Side::Client).path(), false).unwrap().unwrap();
    let code = Reason::TooShort.code() as usize;
    board.processes().iter().map(|process| process.reasons[code]).sum()
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
    let spared_by_guest = u64::from(too_short(&pair));
    eventually("all are counted", || pair.carried(Side::Client) + spared_by_guest == 1000);
    let carried = pair.carried(Side::Client);
    // Those of the first moment, and trials.
    assert!((9..200).contains(&carried), "{carried}");
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
    client(&["turns", "100"]);
    eventually("it goes by SMC-R", || pair.carried(Side::Client) == carried + 1);
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
    eventually("all go by SMC-R", || pair.carried(Side::Client) == 100);
    assert_eq!(spared(&pair), [""; 0]);
}
