use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::{Limiter, LimiterSettings};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn limiter(entries: usize) -> Limiter {
    Limiter::new(LimiterSettings {
        free: 2,
        max_delay: seconds(5),
        entries,
        ..LimiterSettings::default()
    })
}

#[test]
fn each_failure_costs_twice_as_much() {
    let mut limiter = limiter(10);
    for (failures, wait) in
        [(1, None), (2, None), (3, Some(1)), (4, Some(2)), (5, Some(4)), (6, Some(5))]
    {
        limiter.failed("Alice", HERE, seconds(100));
        assert_eq!(limiter.wait("aLICE", HERE, seconds(100)), wait.map(seconds), "{failures}");
    }
    for _ in 0..100 {
        limiter.failed("alice", HERE, seconds(100));
    }
    assert_eq!(limiter.wait("alice", HERE, seconds(104)), Some(seconds(1)));
    assert_eq!(limiter.wait("alice", HERE, seconds(105)), None);
    assert_eq!(limiter.wait("alice", THERE, seconds(100)), None, "somebody else");
    assert_eq!(limiter.wait("bob", HERE, seconds(100)), None);
    limiter.succeeded("ALICE", HERE);
    limiter.failed("alice", HERE, seconds(100));
    assert_eq!(limiter.wait("alice", HERE, seconds(100)), None);
}

#[test]
fn old_failures_are_forgotten() {
    let mut limiter = limiter(10);
    for _ in 0..3 {
        limiter.failed("alice", HERE, seconds(0));
    }
    limiter.failed("alice", HERE, seconds(3600));
    assert_eq!(limiter.wait("alice", HERE, seconds(3600)), None);
}

/// However many names are tried, the table stays as it is, and who fails now is known.
#[test]
fn the_table_is_bounded() {
    let mut limiter = limiter(16);
    for n in 0..10_000 {
        let name = format!("user {n}");
        for _ in 0..3 {
            limiter.failed(&name, HERE, seconds(n / 100));
        }
        assert!(limiter.failures.len() <= 16);
        assert!(limiter.wait(&name, HERE, seconds(n / 100)).is_some(), "{n}");
    }
    // A name of any length costs as much as one of 64 letters.
    limiter.failed(&"x".repeat(1 << 20), HERE, seconds(200));
    assert!(limiter.failures.keys().all(|(_, name)| name.len() <= 64 * 4));
    limiter.settings.entries = 0;
    limiter.failed("alice", HERE, seconds(200));
    assert!(limiter.failures.len() <= 16);
    let mut none = Limiter::new(LimiterSettings { entries: 0, ..LimiterSettings::default() });
    none.failed("alice", HERE, seconds(200));
    assert!(none.failures.is_empty());
}
