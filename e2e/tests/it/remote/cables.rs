//! Cables that are pulled: one that is plugged in again, and a second one that takes over.

use testkit::hosts::{DEVICE, SECOND};

use super::going::Going;
use super::*;

/// One with short and one with long messages.
const SIZES: &[&str] = &["8", "200000"];

/// From which addresses the links of each of a host's groups are that work.
pub(super) fn groups(pair: &Pair, side: Side) -> Vec<Vec<String>> {
    let status = pair.status(side);
    let of = |thing: &serde_json::Value, name: &str| thing[name].as_array().unwrap().clone();
    let groups = of(&status, "vectors").into_iter().flat_map(|vector| of(&vector, "groups"));
    let local = |link: serde_json::Value| link["local"].as_str().unwrap().to_owned();
    let works = |group| of(&group, "links").into_iter().filter(|link| link["state"] == "ACTIVE");
    groups.map(|group| works(group).map(local).collect()).collect()
}

/// Those of all of them.
pub(super) fn links(pair: &Pair, side: Side) -> Vec<String> {
    groups(pair, side).concat()
}

#[test]
fn a_cable_that_is_plugged_in_again_costs_time_only() {
    let (Some(python), Some(pair)) = (python(), Pair::new()) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let going = Going::start(&pair, &talk, &python, SIZES);
    // All of them far from the time after which a link is given up.
    for (side, time_ms) in [(Side::Server, 200), (Side::Client, 600), (Side::Server, 400)] {
        pair.host(side).plug(DEVICE, false).unwrap();
        std::thread::sleep(Duration::from_millis(time_ms));
        pair.host(side).plug(DEVICE, true).unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    let lost = pair.sum(Side::Client, "timeouts") + pair.sum(Side::Server, "timeouts");
    assert!(lost > 0, "nothing was missed: {:#}", pair.status(Side::Client));
    assert_eq!(pair.sum(Side::Client, "links_lost"), 0);
    going.end(&pair);
    assert_eq!(pair.sum(Side::Client, "aborted_total"), 0);
    assert!(pair.carried(Side::Client) >= 2, "{}", pair.board(Side::Client).summary());
}

#[test]
fn a_second_cable_takes_over() {
    let settings = ["--max-links", "2", "--testlink-time", "1"];
    let Some(python) = python() else { return };
    let Some(pair) = Pair::with(Hosts::with_two_cables(), &settings) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let going = Going::start(&pair, &talk, &python, SIZES);
    let [first, second] = [0, 1].map(|at| {
        let address = pair.host(Side::Client).addresses().nth(at);
        address.unwrap().to_string()
    });
    eventually("links by both cables", || {
        let links = links(&pair, Side::Client);
        links.contains(&first) && links.contains(&second)
    });
    pair.host(Side::Server).plug(DEVICE, false).unwrap();
    for side in [Side::Client, Side::Server] {
        eventually("the first link is given up", || pair.sum(side, "links_lost") > 0);
    }
    eventually("one link", || {
        let links = links(&pair, Side::Client);
        !links.is_empty() && links.iter().all(|link| *link == second)
    });
    // With the way of TCP there again, so are new connections.
    pair.host(Side::Server).plug(DEVICE, true).unwrap();
    let carried = pair.carried(Side::Client);
    eventually("new connections go by SMC-R", || {
        // Hosts that did not find each other say so for a moment longer.
        let got = talk.client(&pair, &python, &["echo", "1,70000"], true);
        got.ok() && pair.carried(Side::Client) > carried
    });
    // The server finds the first cable again for the group that is left, after which the second may go.
    eventually("each group has links by both cables", || {
        let groups = groups(&pair, Side::Client);
        groups.iter().all(|links| links.contains(&first) && links.contains(&second))
    });
    pair.host(Side::Server).plug(SECOND, false).unwrap();
    eventually("one link", || {
        let links = links(&pair, Side::Client);
        !links.is_empty() && links.iter().all(|link| *link == first)
    });
    std::thread::sleep(Duration::from_millis(300));
    going.end(&pair);
    assert_eq!(pair.sum(Side::Client, "aborted_total"), 0);
}
