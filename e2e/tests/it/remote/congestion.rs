//! A slow link on the way that marks packets (ECN): links between two hosts that have Shunt keep to it.

use super::bad_network::Bad;
use super::*;
use crate::programs::{iperf3_client, need};

/// Megabits a second of the slow link: little, so that a busy machine still fills it. All that two ends may have on
/// their way finds room there.
const MEGABITS: u64 = 100;
const SLOW: &str = "rate=100 queue=8000000 above=40000";
const PORT: &str = "5300";
/// The links of the client's host: whether they answer marks, and the rate.
fn links(pair: &Pair) -> Vec<(bool, Option<u64>)> {
    let status = pair.status(Side::Client);
    let of = |thing: &serde_json::Value, name: &str| thing[name].as_array().unwrap().clone();
    let groups = of(&status, "vectors").into_iter().flat_map(|vector| of(&vector, "groups"));
    let links = groups.flat_map(|group| of(&group, "links"));
    links.map(|link| (link["congestion"].as_bool().unwrap(), link["rate_bits"].as_u64())).collect()
}

/// Sends by iperf3 for some seconds; the bytes that arrived in each, and the lowest rate that a link had meanwhile.
fn send(pair: &Pair, iperf: &Path) -> (f64, Option<u64>) {
    let address = pair.address();
    let mut command = pair.shunt(Side::Server, iperf);
    command.args(["-s", "-B", &address, "-p", PORT]).stdout(Stdio::null());
    let _server = pair.listening(&mut command, PORT.parse().unwrap());
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            iperf3_client(|| {
                let mut command = pair.shunt(Side::Client, iperf);
                command.args(["-c", &address, "-p", PORT, "-t", "5", "-J"]);
                command
            })
        });
        let mut lowest = None;
        while !client.is_finished() {
            let rates = links(pair).into_iter().filter_map(|(_, rate)| rate);
            lowest = rates.chain(lowest).min();
            std::thread::sleep(Duration::from_millis(50));
        }
        let got = client.join().unwrap();
        assert!(got.ok(), "{got:?}");
        let said: serde_json::Value = serde_json::from_str(&got.out).unwrap();
        let received = &said["end"]["sum_received"];
        (received["bits_per_second"].as_f64().unwrap() / 8.0, lowest)
    })
}

fn count(pair: &Pair, side: Side, name: &str) -> u64 {
    let status = pair.status(side);
    let vectors = status["vectors"].as_array().unwrap();
    vectors.iter().map(|vector| vector[name].as_u64().unwrap()).sum()
}

#[test]
fn marks_slow_a_link_down_before_anything_is_lost() {
    let iperf = need!("iperf3");
    let Some(bad) = Bad::with(SLOW, &[], |_| ()) else { return };
    let (bytes, lowest) = send(&bad.pair, &iperf);
    let pair = &bad.pair;
    assert!(pair.carried(Side::Client) > 0, "{}", pair.board(Side::Client).summary());
    let said = [
        count(pair, Side::Server, "marks_rx"),
        count(pair, Side::Server, "cnp_tx"),
        count(pair, Side::Client, "rate_cuts"),
    ];
    assert!(said.iter().all(|count| *count > 0), "{said:?}");
    assert!(links(pair).iter().all(|(answers, _)| *answers), "{:#}", pair.status(Side::Client));
    // Once it has found the link's rate it is not far above it, and the link is not idle.
    let link = (MEGABITS * 1_000_000) as f64 / 8.0;
    assert!(lowest.is_some_and(|bits| bits < 4 * MEGABITS * 1_000_000), "{lowest:?}");
    assert!(bytes > link * 0.25, "{bytes} of {link} bytes a second");
    let mut command = pair.plain(Side::Server, &built("shunt"));
    let text = outcome(command.args(["engine", "status"]), LIMIT).out;
    assert!(text.contains("\nCongestion: "), "{text}");
    let [_, to_server] = bad.counted();
    assert!(to_server["capable"] > 0 && to_server["marked"] > 0, "{to_server:?}");
    assert_eq!(to_server["lost"], 0, "{to_server:?}");
}

#[test]
fn a_host_that_leaves_it_off_sends_and_gets_nothing_of_it() {
    let iperf = need!("iperf3");
    let Some(bad) = Bad::with(SLOW, &[], |_| ()) else { return };
    let mut command = bad.pair.plain(Side::Server, &built("shunt"));
    let got = outcome(command.args(["engine", "set", "congestion=off"]), LIMIT);
    assert!(got.ok(), "{got:?}");
    let (_, lowest) = send(&bad.pair, &iperf);
    assert!(bad.pair.carried(Side::Client) > 0);
    assert_eq!(lowest, None);
    let links = links(&bad.pair);
    assert!(!links.is_empty() && links.iter().all(|(answers, _)| !answers), "{links:?}");
    for way in bad.counted() {
        assert_eq!((way["capable"], way["marked"]), (0, 0), "{way:?}");
    }
}

/// A client that carries bytes. One that a server is too busy for ends at once, and is started again.
fn sending(command: &mut Command, sent: impl Fn() -> u64) -> Guest {
    let deadline = Instant::now() + LIMIT;
    loop {
        let guest = Guest::start(command);
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until {
            if sent() > 1_000_000 {
                return guest;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(Instant::now() < deadline, "nothing was carried: {command:?}");
    }
}

/// Two links of the same two hosts, each of a vector of its own.
#[test]
fn two_links_share_a_slow_one() {
    let iperf = need!("iperf3");
    let Some(bad) = Bad::with(SLOW, &["--vectors", "2"], |_| ()) else { return };
    let pair = &bad.pair;
    let address = pair.address();
    let sent = || {
        let status = pair.status(Side::Client);
        [0, 1].map(|vector| status["vectors"][vector]["bytes_tx"].as_u64().unwrap())
    };
    let mut all = Vec::new();
    for vector in 0..2 {
        for side in [Side::Server, Side::Client] {
            let mut command = pair.plain(side, &built("shunt"));
            let set = format!("use_vectors={vector}");
            let got = outcome(command.args(["engine", "set", &set]), LIMIT);
            assert!(got.ok(), "{got:?}");
        }
        let port = 5300 + u16::try_from(vector).unwrap();
        let words = |command: &mut Command| {
            command.args(["-p", &port.to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
        };
        let mut command = pair.shunt(Side::Server, &iperf);
        words(command.args(["-s", "-B", &address]));
        all.push(pair.listening(&mut command, port));
        let mut command = pair.shunt(Side::Client, &iperf);
        words(command.args(["-c", &address, "-t", "600"]));
        all.push(sending(&mut command, || sent()[vector]));
    }
    // How much of it each has is for the simulation to say, where no machine is busy; here neither is starved, and
    // each feels the other.
    let before = sent();
    eventually("both go on", || {
        let bytes = [0, 1].map(|vector| sent()[vector] - before[vector]);
        bytes[0].min(bytes[1]) > 3_000_000
    });
    eventually("both were told of marks", || {
        let status = pair.status(Side::Client);
        [0, 1].iter().all(|vector| status["vectors"][*vector]["rate_cuts"].as_u64().unwrap() > 0)
    });
    // Whoever looks at all connections sees how the two share the load.
    let loads = pair.stat(Side::Client)["vectors"].clone();
    for vector in 0..2 {
        let load = &loads[vector];
        assert_eq!(load["vector"], vector, "{loads:#}");
        for what in ["connections", "link_groups", "links", "completions", "bytes_tx", "cpu_ns"] {
            assert!(load[what].as_u64().is_some_and(|n| n > 0), "{what}: {loads:#}");
        }
    }
    drop(all);
    let [_, to_server] = bad.counted();
    assert!(to_server["marked"] > 0 && to_server["lost"] == 0, "{to_server:?}");
}
