//! Two hosts with a box between them that loses, doubles and disorders packets.

use super::programs::{Pages, iperf3_server, redis_benchmark, redis_server};
use super::*;
use crate::programs::{iperf3_client, need};

/// Two hosts, and the box in the middle of their cable.
pub(super) struct Bad {
    between: Guest,
    said: BufReader<std::process::ChildStdout>,
    pub(super) pair: Pair,
}

impl Bad {
    fn new(conditions: &str) -> Option<Self> {
        Self::with(conditions, &ALL_BY_SMC, |_| ())
    }

    /// Ends the box; what it counted of each way, the server's first: words such as `lost`, and a number.
    pub(super) fn counted(mut self) -> [std::collections::HashMap<String, u64>; 2] {
        drop(self.between.take_stdin());
        let mut text = String::new();
        self.said.read_to_string(&mut text).unwrap();
        let line = |line: &str| {
            let words = line.split_whitespace().filter_map(|word| word.split_once('='));
            words.filter_map(|(name, n)| Some((name.to_owned(), n.parse().ok()?))).collect()
        };
        let mut lines = text.lines().map(line);
        [lines.next().unwrap(), lines.next().unwrap()]
    }

    /// `prepare`: what is done on both hosts before engines with these settings are started there.
    pub(super) fn with(
        conditions: &str,
        settings: &[&str],
        prepare: impl Fn(&Host),
    ) -> Option<Self> {
        let hosts = match hosts::possible().and_then(|()| Hosts::with_middle()) {
            Ok(hosts) => hosts,
            Err(why) => {
                skipped(&format!("{why:#}"));
                return None;
            }
        };
        let words = hosts.middle_prefix().unwrap();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(built("middlebox"));
        command.args([hosts::TO_SERVER, hosts::TO_CLIENT]).args(conditions.split_whitespace());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut between = Guest::start(&mut command);
        let mut said = BufReader::new(between.take_stdout().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "ready");
        prepare(&hosts.server);
        prepare(&hosts.client);
        Some(Self { between, said, pair: Pair::with(Ok(hosts), settings)? })
    }
}

/// What the box counts when it does so, by the name of the condition.
const TROUBLES: [(&str, &str); 4] = [
    ("loss", "lost"),
    ("reorder", "reordered"),
    ("duplicate", "duplicated"),
    ("corrupt", "corrupted"),
];

/// Ends the box, which has done all that it was to do, both ways.
#[track_caller]
fn suffered(bad: Bad, conditions: &str) {
    let is_wanted = |name: &str| {
        let words = conditions.split_whitespace().filter_map(|word| word.split_once('='));
        words.map(|(condition, _)| condition).any(|condition| condition == name)
    };
    for way in bad.counted() {
        for (_, count) in TROUBLES.iter().filter(|(name, _)| is_wanted(name)) {
            assert!(way[*count] > 0, "{conditions}: {way:?}");
        }
    }
}

/// Has `run` go by SMC-R on such a network, and runs it again until each host has sent something again, where packets
/// get lost.
#[track_caller]
fn carried_again(pair: &Pair, conditions: &str, bytes: [u64; 2], mut run: impl FnMut()) {
    pair.must_carry(bytes, &mut run);
    if conditions.contains("loss") {
        eventually("both have sent something again", || {
            let is_so =
                [Side::Server, Side::Client].iter().all(|s| pair.sum(*s, "packets_again") > 0);
            if !is_so {
                run();
            }
            is_so
        });
    }
    for side in [Side::Server, Side::Client] {
        assert_eq!(pair.sum(side, "links_lost"), 0, "{:#}", pair.status(side));
    }
}

#[track_caller]
fn survives(conditions: &str) {
    let Some(python) = python() else { return };
    let Some(bad) = Bad::new(conditions) else { return };
    talks(&python, &bad.pair, conditions);
    suffered(bad, conditions);
}

/// So much that one packet in a hundred is one for sure, also of those that only acknowledge.
const SIZES: &str = "1,1000,65536,3000000";
const SUM: u64 = 3_066_537;

#[track_caller]
fn talks(python: &Path, pair: &Pair, conditions: &str) {
    let talk = Talk::serve(pair, python, "echo", true);
    for (words, bytes) in [(&["echo", SIZES][..], SUM), (&["many", "40"], 1)] {
        carried_again(pair, conditions, [bytes; 2], || {
            let got = talk.client(pair, python, words, true);
            assert!(
                got.ok(),
                "{conditions}, {words:?}: {got:?}\n{}",
                pair.board(Side::Client).summary()
            );
        });
    }
}

#[test]
fn nothing_wrong() {
    survives("");
}

#[test]
fn one_in_a_hundred_lost() {
    survives("loss=0.01");
}

#[test]
fn one_in_twenty_lost() {
    survives("loss=0.05");
}

#[test]
fn out_of_order_and_twice() {
    survives("reorder=0.1 late=300 duplicate=0.1");
}

#[test]
fn a_bit_of_everything() {
    survives("loss=0.02 reorder=0.05 late=300 duplicate=0.05 corrupt=0.01");
}

/// iperf3 both ways on such a network: the bytes arrive, by links that have lost something and sent it again.
#[track_caller]
fn iperf3_survives(conditions: &str) {
    let iperf = need!("iperf3");
    let Some(bad) = Bad::new(conditions) else { return };
    let (pair, address) = (&bad.pair, bad.pair.address());
    let server = iperf3_server(pair, &iperf);
    for way in [&[][..], &["-R"], &["-P", "4"]] {
        let got = iperf3_client(|| {
            let mut command = pair.shunt(Side::Client, &iperf);
            command.args(["-c", &address, "-p", "5300", "-n", "16M", "-J"]).args(way);
            command
        });
        assert!(got.ok(), "{conditions}, {way:?}: {got:?}");
        let said: serde_json::Value = serde_json::from_str(&got.out).unwrap();
        let received = said["end"]["sum_received"]["bytes"].as_f64();
        // More than there is room for without an acknowledgement. What waits at the end of it is not counted.
        assert!(received.is_some_and(|n| n > 1e6), "{conditions}, {way:?}: {got:?}");
    }
    for side in [Side::Server, Side::Client] {
        assert!(pair.sum(side, "bytes_tx") > 1_000_000, "{:#}", pair.status(side));
        assert!(pair.sum(side, "packets_again") > 0, "{:#}", pair.status(side));
        assert_eq!(pair.sum(side, "links_lost"), 0, "{:#}", pair.status(side));
    }
    drop(server);
    suffered(bad, conditions);
}

#[test]
fn iperf3_with_one_in_a_hundred_lost() {
    iperf3_survives("loss=0.01");
}

#[test]
fn iperf3_with_one_in_twenty_lost() {
    iperf3_survives("loss=0.05");
}

#[test]
fn iperf3_with_some_late() {
    iperf3_survives("reorder=0.05 late=300");
}

#[test]
fn iperf3_with_some_twice_and_late() {
    iperf3_survives("reorder=0.02 late=300 duplicate=0.05");
}

/// nginx and wrk on such a network, connections that stay and some that do not.
#[track_caller]
fn nginx_survives(conditions: &str) {
    let (nginx, wrk) = (need!("nginx"), need!("wrk"));
    let Some(bad) = Bad::new(conditions) else { return };
    let pages = Pages::serve(&bad.pair, &nginx);
    for (words, file) in [(&["-c20"][..], "64k"), (&["-c4", "-H", "Connection: close"], "1k")] {
        // Whatever is slow, a response is more than a few packets.
        carried_again(&bad.pair, conditions, [60_000, 500], || pages.fetch(&wrk, words, file));
    }
    drop(pages);
    suffered(bad, conditions);
}

#[test]
fn nginx_with_one_in_a_hundred_lost() {
    nginx_survives("loss=0.01");
}

#[test]
fn nginx_with_one_in_twenty_lost() {
    nginx_survives("loss=0.05");
}

#[test]
fn nginx_with_some_twice_and_late() {
    nginx_survives("reorder=0.05 late=300 duplicate=0.05");
}

/// redis on such a network, with values of several packets both ways.
#[track_caller]
fn redis_survives(conditions: &str) {
    let (server, client) = (need!("redis-server"), need!("redis-benchmark"));
    let Some(bad) = Bad::new(conditions) else { return };
    let server = redis_server(&bad.pair, &server);
    carried_again(&bad.pair, conditions, [500 * 3000; 2], || {
        redis_benchmark(&bad.pair, &client, "-c 20 -n 600 -d 3000");
    });
    drop(server);
    suffered(bad, conditions);
}

#[test]
fn redis_with_one_in_a_hundred_lost() {
    redis_survives("loss=0.01");
}

#[test]
fn redis_with_one_in_twenty_lost() {
    redis_survives("loss=0.05");
}

#[test]
fn redis_with_some_twice_and_late() {
    redis_survives("reorder=0.05 late=300 duplicate=0.05");
}

/// A router cuts packets up although they forbid it, and neither kernel has room for fragments.
#[test]
fn cut_up_where_the_kernel_puts_nothing_together() {
    let Some(python) = python() else { return };
    let no_room = |host: &Host| {
        let words = host.prefix();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["sh", "-c"]);
        command.arg("cd /proc/sys/net/ipv4; echo 0 >ipfrag_low_thresh; echo 0 >ipfrag_high_thresh");
        assert!(command.status().unwrap().success());
    };
    let settings = [&ALL_BY_SMC[..], &["--raw-ingress", "on"]].concat();
    let Some(bad) = Bad::with("cut=600", &settings, no_room) else { return };
    talks(&python, &bad.pair, "cut=600");
    for side in [Side::Server, Side::Client] {
        let sum = |name: &str| bad.pair.sum(side, name);
        let (fragments, packets) = (sum("fragments_rx"), sum("reassembled"));
        // Both ways half a megabyte goes in packets of 1 KiB.
        assert!(packets > 400 && fragments >= 2 * packets, "{fragments} fragments, {packets}");
    }
}
