//! The way that packets take: programs that have chosen one, ways that are narrower than they look, and such that become so.

use testkit::hosts::DEVICE;

use super::going::Going;
use super::*;
use crate::reasons::assert_counted;
use local::Reason;

/// What a program binds to an interface, as for a VPN, or marks for a route of its own, leaves by that way and no other: RoCEv2
/// would go by the one that addresses lead to.
#[test]
fn who_has_chosen_an_interface_stays_on_tcp() {
    let (Some(python), Some(pair)) = (python(), Pair::with(Hosts::new(), &ALL_BY_SMC)) else {
        return;
    };
    let check = |mode: &str, words: &[&str], side: Side| {
        let talk = Talk::serve(&pair, &python, mode, true);
        let carried = pair.carries(|| {
            let got = talk.client(&pair, &python, words, true);
            assert!(got.ok(), "{mode}, {words:?}: {got:?}");
        });
        let none = carried.iter().all(|c| (c.connections, c.bytes) == (0, 0));
        assert!(none, "{mode}, {words:?}: {carried:?}");
        assert_counted(pair.board(side), Reason::ChosenWay, &format!("{mode}, {words:?}"));
    };
    for by in [DEVICE, "mark"] {
        check("echo", &["noted", "bound", by], Side::Client);
    }
    // A listener's connections are where it is, also one that has been bound after clients were told that it speaks SMC.
    for how in ["by", "later"] {
        check(&format!("echo-{how}-{DEVICE}"), &["talk"], Side::Server);
    }
    // And nobody else has lost anything.
    let talk = Talk::serve(&pair, &python, "echo", true);
    pair.must_carry([100_000; 2], || {
        let got = talk.client(&pair, &python, &["talk"], true);
        assert!(got.ok(), "{got:?}");
    });
}

/// Both cards take long packets, and a router between them does not.
#[test]
fn a_path_that_is_narrower_than_both_cards() {
    let Some(python) = python() else { return };
    let Some(pair) = Pair::with(Hosts::with_router(9000, 1500), &ALL_BY_SMC) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    pair.must_carry([300_000; 2], || {
        let got = talk.client(&pair, &python, &["echo", "300000"], true);
        assert!(got.ok(), "{got:?}\n{:#}", pair.status(Side::Client));
    });
    assert_eq!(pair.sum(Side::Client, "links_lost"), 0, "{:#}", pair.status(Side::Client));
    assert_eq!(mtus(&pair, Side::Client), [1024], "{:#}", pair.status(Side::Client));
    // Where nothing is between them the packets are as long as the cards take.
    let hosts = Hosts::new().inspect(|hosts| {
        for host in [&hosts.server, &hosts.client] {
            host.set_mtu(9000).unwrap();
        }
    });
    let Some(pair) = Pair::with(hosts, &ALL_BY_SMC) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    pair.must_carry([1; 2], || {
        let got = talk.client(&pair, &python, &["echo", "1"], true);
        assert!(got.ok(), "{got:?}");
    });
    assert_eq!(mtus(&pair, Side::Client), [4096], "{:#}", pair.status(Side::Client));
}

/// What a router takes that takes long packets nobody knows who is not told.
#[test]
fn a_router_that_takes_long_packets() {
    let Some(python) = python() else { return };
    let hosts = Hosts::with_router(9000, 9000).inspect(|hosts| {
        for host in [&hosts.server, &hosts.client] {
            host.set_route_mtu(9000).unwrap();
        }
    });
    let Some(pair) = Pair::with(hosts, &ALL_BY_SMC) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    pair.must_carry([300_000; 2], || {
        let got = talk.client(&pair, &python, &["echo", "300000"], true);
        assert!(got.ok(), "{got:?}\n{:#}", pair.status(Side::Client));
    });
    assert_eq!(mtus(&pair, Side::Client), [4096], "{:#}", pair.status(Side::Client));
    assert_eq!(pair.sum(Side::Client, "links_lost"), 0, "{:#}", pair.status(Side::Client));
}

/// Packets of a group's second link are not longer than those of its first, or no connection would join the group.
#[test]
fn a_second_cable_beside_a_narrow_one() {
    let settings = ["--max-links", "2", "--vectors", "1", "--spare-short", "off"];
    let Some(python) = python() else { return };
    let hosts = Hosts::with_two_cables().inspect(|hosts| {
        for host in [&hosts.server, &hosts.client] {
            host.set_mtu(1000).unwrap();
        }
    });
    let Some(pair) = Pair::with(hosts, &settings) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    let going = Going::start(&pair, &talk, &python, &["8"]);
    eventually("links by both cables", || mtus(&pair, Side::Client).len() == 2);
    pair.must_carry([70_000; 2], || {
        let got = talk.client(&pair, &python, &["echo", "70000"], true);
        assert!(got.ok(), "{got:?}\n{:#}", pair.status(Side::Client));
    });
    assert_eq!(mtus(&pair, Side::Client), [512; 2], "{:#}", pair.status(Side::Client));
    going.end(&pair);
}

/// The largest payload of each link of a host.
fn mtus(pair: &Pair, side: Side) -> Vec<u64> {
    let status = pair.status(side);
    let vectors = status["vectors"].as_array().unwrap();
    let groups = vectors.iter().flat_map(|vector| vector["groups"].as_array().unwrap());
    let links = groups.flat_map(|group| group["links"].as_array().unwrap());
    links.map(|link| link["mtu"].as_u64().unwrap()).collect()
}

/// The cards take shorter packets from now on. What was set up before may be lost, nothing that comes behind is.
#[test]
fn a_path_that_becomes_narrower() {
    let Some(python) = python() else { return };
    let hosts = Hosts::new();
    let narrow = |hosts: &Hosts, bytes| {
        for host in [&hosts.server, &hosts.client] {
            host.set_mtu(bytes).unwrap();
        }
    };
    let hosts = hosts.inspect(|hosts| narrow(hosts, 9000));
    let Some(pair) = Pair::with(hosts, &ALL_BY_SMC) else { return };
    let talk = Talk::serve(&pair, &python, "echo", true);
    // One that keeps the old group, in which long packets do not arrive any more.
    let going = Going::start(&pair, &talk, &python, &["8"]);
    assert_eq!(mtus(&pair, Side::Client), [4096], "{:#}", pair.status(Side::Client));
    narrow(&pair.hosts, 1500);
    let echo = || {
        let got = talk.client(&pair, &python, &["echo", "300000"], true);
        assert!(got.ok(), "{got:?}\n{:#}", pair.status(Side::Client));
    };
    pair.must_carry([300_000; 2], echo);
    assert_eq!(pair.sum(Side::Client, "links_lost"), 0, "{:#}", pair.status(Side::Client));
    going.end(&pair);
    // One whose packets are too long already is reset, and takes nobody along.
    narrow(&pair.hosts, 9000);
    let talk = Talk::serve(&pair, &python, "echo", true);
    let going = Going::start(&pair, &talk, &python, &["200000"]);
    narrow(&pair.hosts, 1500);
    assert_eq!(going.ended(), ["ended ConnectionResetError"]);
    pair.must_carry([300_000; 2], echo);
    let of_both = |name| pair.sum(Side::Client, name) + pair.sum(Side::Server, name);
    let [refused, lost] = ["packets_refused", "links_lost"].map(of_both);
    assert!(refused > 0 && lost > 0, "{:#}", pair.status(Side::Server));
}
