//! Settings of an engine that runs, changed by `shunt engine set` as people do, and what it says of them.

use std::collections::BTreeSet;

use engine::remote::config::SETTINGS;

use super::*;

/// Those that may be changed while it runs, with what they are changed to.
const CHANGED: [(&str, &str); 15] = [
    ("autocork", "4096"),
    ("congestion", "off"),
    ("eid", "SHUNT.OTHER"),
    ("handshakes_max", "7"),
    ("max_conns", "16"),
    ("max_links", "2"),
    ("peer_groups", "9"),
    ("poll_us", "1"),
    ("receive_buffer", "1048576"),
    ("reuse_buffers", "off"),
    ("send_buffer", "16384"),
    ("spare_short", "off"),
    ("split_cqs", "0"),
    ("testlink_time", "5"),
    ("use_vectors", "0"),
];

/// What is refused, and what is said of it.
const REFUSED: [(&str, &str); 6] = [
    ("max_links=9", "1 to 2"),
    ("send_buffer=3", "power of two"),
    ("autocork=-1", "a size"),
    ("vectors=4", "cannot be changed while the engine runs"),
    ("nonsense=1", "no such setting"),
    ("autocork", "NAME=VALUE"),
];

fn set(pair: &Pair, side: Side, words: &[&str]) -> Outcome {
    let mut command = pair.plain(side, &pair.program());
    outcome(command.args(["engine", "set"]).args(words), LIMIT)
}

#[test]
fn every_knob_is_turned_while_the_engine_runs() {
    let live = SETTINGS.iter().filter(|setting| setting.live).map(|setting| setting.name);
    let changed: BTreeSet<_> = CHANGED.iter().map(|(name, _)| *name).collect();
    assert_eq!(changed, live.collect());
    let Some(python) = python() else { return };
    let Some(pair) = Pair::new() else { return };
    let settings = |side| pair.status(side)["settings"].clone();
    let unchanged = settings(Side::Server);
    for (wrong, why) in REFUSED {
        // With one that is right beside it: all or nothing.
        let got = set(&pair, Side::Server, &["testlink-time=9", wrong]);
        assert!(!got.ok() && got.err.contains(why), "{wrong}: {got:?}");
    }
    assert_eq!(settings(Side::Server), unchanged);

    for side in [Side::Server, Side::Client] {
        let before = settings(side);
        let words = CHANGED.map(|(name, value)| format!("{name}={value}"));
        let got = set(&pair, side, &words.each_ref().map(String::as_str));
        assert!(got.ok() && got.out.is_empty() && got.err.is_empty(), "{got:?}");
        let after = settings(side);
        for (name, value) in CHANGED {
            assert_eq!(after[name], value, "{name}");
        }
        let differs = |(name, value): &(&String, &serde_json::Value)| before[*name] != **value;
        let changed = after.as_object().unwrap().iter().filter(differs).count();
        assert_eq!(changed, CHANGED.len(), "{before:#} {after:#}");
    }

    // What comes after is by them: with the other name, on the first vector.
    const SERVER: &str = "
import socket, sys
peer, _ = socket.create_server((sys.argv[1], 7410)).accept()
peer.sendall(peer.recv(100))
assert peer.recv(1) == b''
";
    const CLIENT: &str = "
import socket, sys
peer = socket.create_connection((sys.argv[1], 7410))
peer.sendall(b'turned')
assert peer.recv(100) == b'turned'
";
    let mut command = pair.shunt(Side::Server, &python);
    let mut server = pair.listening(command.args(["-c", SERVER, &pair.address()]), 7410);
    let carried = pair.carries(|| {
        let mut command = pair.shunt(Side::Client, &python);
        let got = outcome(command.args(["-c", CLIENT, &pair.address()]), LIMIT);
        assert!(got.ok() && got.err.is_empty(), "{got:?}");
        assert!(server.wait(LIMIT).unwrap().success());
    });
    assert!(carried.iter().all(|c| c.connections == 1), "{carried:?}");
    for side in [Side::Server, Side::Client] {
        let vectors = pair.status(side)["vectors"].clone();
        let counts = vectors.as_array().unwrap().iter().map(|v| v["connections_total"].as_u64());
        let counts: Vec<u64> = counts.map(Option::unwrap).collect();
        assert!(
            counts.len() > 1 && counts[0] == 1 && counts.iter().sum::<u64>() == 1,
            "{counts:?}"
        );
    }
}
