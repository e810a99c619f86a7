//! What is on the page.

use std::collections::BTreeSet;

use engine::remote::stat::{Stat, UserStat, VectorStat};

use super::*;
use crate::snapshot::{Counters, Fallback};

fn process(slot: u32, program: &str, alive: bool) -> Process {
    Process {
        slot,
        pid: 100 + slot,
        host_pid: None,
        elsewhere: false,
        container: None,
        uid: 33,
        program: program.into(),
        alive,
        since: 1_700_000_000,
        memory_owned_bytes: 65_536,
        memory_used_bytes: 4096,
        connections_shm: 3,
        connections_smcr: 2,
        connections_tcp: 1,
        attached_total: 10,
        attached_clients: 4,
        closed_total: 5,
        counters: Counters { bytes_tx: 77, ..Counters::default() },
        tx_buffers: Default::default(),
        rx_buffers: Default::default(),
        fallbacks: vec![Fallback { reason: 3, words: "excluded", count: 9 }],
    }
}

#[test]
fn boards_and_engines_are_on_one_page() {
    let snapshot = |processes| Some(Snapshot { processes, ..Snapshot::default() });
    let boards = [
        (
            "/dev/shm/shunt-33".to_owned(),
            snapshot(vec![process(0, "ngi\"nx", true), process(1, "dead", false)]),
        ),
        ("/dev/shm/shunt-34".to_owned(), None),
        ("/dev/shm/shunt-35".to_owned(), snapshot(vec![process(0, "redis", true)])),
    ];
    let declined = |n| [("No device.".to_owned(), n)].into_iter().collect();
    let vector = |vector, n| VectorStat { vector, declined: declined(n), ..VectorStat::default() };
    let engine = Stat {
        vectors: vec![vector(0, 2), vector(1, 3)],
        users: vec![UserStat { uid: 33, connections: 8, ..UserStat::default() }],
        ..Stat::default()
    };
    let switches =
        [("/dev/shm/shunt-33".to_owned(), true), ("/dev/shm/shunt-35".to_owned(), false)];
    let page = page(&boards, &[("/dev/shm/shunt-0".to_owned(), engine)], &switches);
    let of = "dir=\"/dev/shm/shunt-33\",slot=\"0\",program=\"ngi\\\"nx\"";
    for line in [
        "shunt_board_readable{dir=\"/dev/shm/shunt-34\"} 0".to_owned(),
        "shunt_switched_off{dir=\"/dev/shm/shunt-33\"} 1".to_owned(),
        "shunt_switched_off{dir=\"/dev/shm/shunt-35\"} 0".to_owned(),
        "shunt_processes{dir=\"/dev/shm/shunt-33\"} 1".to_owned(),
        format!("shunt_connections{{{of},mode=\"shm\"}} 3"),
        format!("shunt_connections_attached_total{{{of},end=\"server\"}} 6"),
        format!("shunt_fallbacks_total{{{of},reason=\"3\",words=\"excluded\"}} 9"),
        format!("shunt_sent_bytes_total{{{of}}} 77"),
        "shunt_sent_bytes_total{dir=\"/dev/shm/shunt-35\",slot=\"0\",program=\"redis\"} 77"
            .to_owned(),
        "shunt_engine_declined_total{dir=\"/dev/shm/shunt-0\",reason=\"No device.\"} 5".to_owned(),
        "shunt_engine_user_connections{dir=\"/dev/shm/shunt-0\",uid=\"33\"} 8".to_owned(),
    ] {
        assert!(page.lines().any(|l| l == line), "{line} is not in:\n{page}");
    }
    assert!(!page.contains("dead"), "what it has counted is nobody's any more");
    // Numbers of a name are together, behind its type, and none is told twice.
    let (mut names, mut all, mut name) = (BTreeSet::new(), BTreeSet::new(), String::new());
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            name = rest.split(' ').next().unwrap().to_owned();
            assert!(names.insert(name.clone()), "{name} has two places");
        } else if !line.starts_with('#') {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert_eq!(series.split('{').next(), Some(&*name), "{line}");
            assert!(all.insert(series.to_owned()), "{series} is told twice");
            value.parse::<f64>().unwrap();
        }
    }
}
