use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::{Limiter, LimiterSettings, network};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const THERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn limiter(entries: usize) -> Limiter {
    Limiter::new(LimiterSettings {
        free: 2,
        address_free: 100,
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
    for _ in 0..90 {
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
        assert!(limiter.users.len() <= 16);
        assert!(limiter.wait(&name, HERE, seconds(n / 100)).is_some(), "{n}");
    }
    // A name of any length costs as much as one of 64 letters.
    limiter.failed(&"x".repeat(1 << 20), HERE, seconds(200));
    assert!(limiter.users.keys().all(|(_, name)| name.len() <= 64 * 4));
    limiter.settings.entries = 0;
    limiter.failed("alice", HERE, seconds(200));
    assert!(limiter.users.len() <= 16);
    let mut none = Limiter::new(LimiterSettings { entries: 0, ..LimiterSettings::default() });
    none.failed("alice", HERE, seconds(200));
    assert!(none.users.is_empty() && none.addresses.is_empty());
}

#[test]
fn all_users_of_an_address_have_so_many_failures_together() {
    let mut limiter = limiter(1000);
    let fail = |limiter: &mut Limiter, name: &str, times, now| {
        (0..times).for_each(|_| limiter.failed(name, HERE, seconds(now)));
    };
    (0..98).for_each(|n| fail(&mut limiter, &format!("user {n}"), 1, 100));
    fail(&mut limiter, "mallory", 2, 100);
    assert_eq!(limiter.wait("alice", HERE, seconds(100)), None);
    fail(&mut limiter, "bob", 1, 100);
    assert_eq!(limiter.wait("alice", HERE, seconds(100)), Some(seconds(30)));
    assert_eq!(limiter.wait("alice", THERE, seconds(100)), None);
    assert_eq!(limiter.wait("alice", HERE, seconds(130)), None);
    // Who comes in takes back what it failed itself.
    (0..2).for_each(|_| limiter.succeeded("mallory", HERE));
    limiter.succeeded("", HERE);
    fail(&mut limiter, "carol", 2, 100);
    assert_eq!(limiter.wait("alice", HERE, seconds(100)), Some(seconds(30)));
    assert_eq!(limiter.wait("alice", HERE, seconds(130)), None);
    // All is forgiven in the end, and there is no more to forgive than that.
    fail(&mut limiter, "dave", 1, 100_000);
    assert_eq!(limiter.addresses[&HERE], seconds(100_030));
}

/// Devices with an old password behind one address fail as often as they may, all day long.
#[test]
fn who_has_the_password_comes_in_beside_many_who_have_not() {
    let mut limiter = Limiter::new(LimiterSettings::default());
    for minute in 0..24 * 60 {
        let now = seconds(minute * 60);
        for device in 0..10 {
            let name = format!("device {device}");
            if limiter.wait(&name, HERE, now).is_none() {
                limiter.failed(&name, HERE, now);
            }
        }
        assert_eq!(limiter.wait("alice", HERE, now), None, "minute {minute}");
    }
}

#[test]
fn an_address_of_ipv4_is_the_same_however_it_is_written() {
    let mapped = Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped();
    let mut limiter = limiter(10);
    for address in [HERE, IpAddr::V6(mapped), HERE] {
        limiter.failed("alice", address, seconds(0));
    }
    assert_eq!(limiter.wait("alice", IpAddr::V6(mapped), seconds(0)), Some(seconds(1)));
    assert_eq!(limiter.wait("alice", THERE, seconds(0)), None);
}

#[test]
fn what_counts_as_one_address() {
    let of = |address: &str| network(address.parse().unwrap());
    assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
    assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    assert_eq!(of("::ffff:192.0.2.1"), HERE);
    // All who are on a link have that network.
    assert_ne!(of("fe80::1"), of("fe80::2"));
}

/// However somebody's name is written, it is the same name.
#[test]
fn a_long_name_is_known_in_all_its_spellings() {
    let mut limiter = limiter(10);
    (0..3).for_each(|_| limiter.failed(&"\u{130}".repeat(64), HERE, seconds(0)));
    let other = "i\u{307}".repeat(64);
    assert_eq!(limiter.wait(&other, HERE, seconds(0)), Some(seconds(1)));
}

/// Who came first is forgotten last, if it failed more often than those who came later.
#[test]
fn who_failed_least_makes_room() {
    let mut limiter = limiter(16);
    (0..3).for_each(|_| limiter.failed("alice", HERE, seconds(0)));
    for n in 0..1000u32 {
        let address = IpAddr::V4(Ipv4Addr::from_bits(n << 8));
        limiter.failed(&format!("user {n}"), address, seconds(1));
    }
    limiter.failed("alice", HERE, seconds(1));
    assert_eq!(limiter.wait("alice", HERE, seconds(1)), Some(seconds(2)));
    assert!(limiter.addresses.len() <= 16);
    assert_eq!(limiter.addresses[&HERE], seconds(120));
}

/// How often somebody who tries a name twenty times a second gets to guess Alice's password within an hour, where all
/// tries in between are for names that it invents. `address` is where it tries from.
fn guesses_of_alice(address: impl Fn(u64) -> IpAddr) -> usize {
    let mut limiter = Limiter::new(LimiterSettings::default());
    let mut guesses = 0;
    for n in 0..20 * 3600 {
        let (now, address) = (Duration::from_millis(n * 50), address(n));
        let is_alice = limiter.wait("alice", address, now).is_none();
        let name = if is_alice { "alice".to_owned() } else { format!("invented {n}") };
        if limiter.wait(&name, address, now).is_none() {
            limiter.failed(&name, address, now);
            guesses += usize::from(is_alice);
        }
    }
    guesses
}

#[test]
fn invented_names_do_not_make_room_for_guesses() {
    let guesses = guesses_of_alice(|_| HERE);
    // Five, one after each of 1 s to 512 s, and after each quarter of an hour one.
    assert!(guesses <= 18, "{guesses}");
}

/// Who has one address of IPv6 has 2^64 of them.
#[test]
fn a_network_of_ipv6_is_one_address() {
    let network = u128::from_be_bytes([0x20, 1, 0xd, 0xb8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let guesses = guesses_of_alice(|n| IpAddr::from((network | u128::from(n)).to_be_bytes()));
    assert!(guesses <= 18, "{guesses}");
}
