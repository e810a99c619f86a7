//! What time does: datagrams that take too long, and identifications that come round.

use std::collections::HashMap;

use frag::{Config, NoticeKind, Reason, Released};
use testkit::fragments::{Family, Packet, Random};

use crate::host::{Host, MS, SECOND};

const V4_TIMEOUT: u64 = 30 * SECOND;
const V6_TIMEOUT: u64 = 60 * SECOND;

fn packet(family: Family, id: u32, letter: u8) -> Packet {
    Packet::new(family, id, vec![letter; 300])
}

fn timeout(family: Family) -> u64 {
    if family == Family::V4 { V4_TIMEOUT } else { V6_TIMEOUT }
}

#[test]
fn a_datagram_that_takes_too_long_is_reported_with_its_first_fragment() {
    for (family, copy_below) in
        [(Family::V4, 0), (Family::V4, 512), (Family::V6, 0), (Family::V6, 512)]
    {
        let mut host = Host::new(&Config { copy_below, ..Config::default() });
        host.frame = 2048;
        let began = host.now;
        let whole = packet(family, 1, b'a');
        host.push(&whole.fragment(0, 152));
        assert_eq!(host.expire(), Some(began + timeout(family)));
        host.now = began + timeout(family) - 1;
        assert_eq!(host.expire(), Some(began + timeout(family)));
        assert_eq!(host.gauges().datagrams, 1);
        host.now += 1;
        assert_eq!(host.expire(), None);
        host.check_empty();
        assert_eq!(host.shard.counters().datagrams(Reason::Timeout), 1);
        assert_eq!(host.shard.counters().fragments_lost, 1);
        let [(kind, header, quote)] = &host.out.notices[..] else {
            panic!("{} messages", host.out.notices.len())
        };
        assert_eq!(*kind, NoticeKind::TimeExceeded);
        let bytes = whole.fragment(0, 152).emit();
        assert_eq!(*header, bytes[..header.len()]);
        assert!(quote.ends_with(&[b'a'; 152]));
    }
}

#[test]
fn nobody_is_told_of_a_datagram_whose_first_fragment_never_came() {
    for family in [Family::V4, Family::V6] {
        let mut host = Host::new(&Config::default());
        host.push(&packet(family, 1, b'a').fragment(152, 300));
        host.now += timeout(family);
        assert_eq!(host.expire(), None);
        host.check_empty();
        assert_eq!(host.shard.counters().datagrams(Reason::TimeoutNoFirst), 1);
        assert!(host.out.notices.is_empty());
    }
}

#[test]
fn the_rest_must_come_before_the_time_is_up() {
    for family in [Family::V4, Family::V6] {
        let mut host = Host::new(&Config::default());
        let whole = packet(family, 1, b'a');
        host.push(&whole.fragment(0, 152));
        host.now += timeout(family) - MS;
        host.push(&whole.fragment(152, 300));
        assert_eq!(host.payloads(), [&whole.payload[..]]);
        host.push(&whole.fragment(0, 152));
        host.now += timeout(family) + MS;
        host.push(&whole.fragment(152, 300));
        assert_eq!(host.out.delivered.len(), 1);
        assert_eq!(host.gauges().datagrams, 1, "what came too late begins a datagram");
    }
}

/// A call lets only some go; the others' time is up all the same.
#[test]
fn what_is_too_late_stays_too_late_when_many_are() {
    let mut host = Host::new(&Config::default());
    for id in 0..100 {
        host.push(&packet(Family::V4, id, b'a').fragment(0, 152));
    }
    host.now += V4_TIMEOUT;
    for id in (0..100).rev() {
        host.push(&packet(Family::V4, id, b'a').fragment(152, 300));
    }
    assert_eq!(host.out.delivered.len(), 0);
    assert_eq!(host.shard.counters().datagrams(Reason::Timeout), 100);
    assert_eq!(host.out.notices.len(), 100);
}

#[test]
fn one_call_lets_only_some_go() {
    let mut host = Host::new(&Config::default());
    for id in 0..100 {
        host.push(&packet(Family::V4, id, b'a').fragment(0, 152));
    }
    host.now += V4_TIMEOUT;
    let next = host.shard.expire(host.now, 30, &mut host.out);
    assert_eq!((host.gauges().datagrams, next), (70, Some(host.now)));
    let released = host.out.released.iter().filter(|r| **r == Released::Dropped(Reason::Timeout));
    assert_eq!(released.count(), 30);
}

#[test]
fn fragments_on_the_way_do_not_prolong_the_time() {
    for family in [Family::V4, Family::V6] {
        let mut host = Host::new(&Config::default());
        let whole = packet(family, 1, b'a');
        let began = host.now;
        for at in [0, 64, 128, 192] {
            host.push(&whole.fragment(at, at + 64));
            // The fourth came when the time was up, and began the next.
            let began = if at < 192 { began } else { host.now };
            assert_eq!(host.expire(), Some(began + timeout(family)));
            host.now += timeout(family) / 3;
        }
        assert_eq!(host.shard.counters().datagrams(Reason::Timeout), 1);
        assert!(host.out.delivered.is_empty());
    }
}

#[test]
fn a_duplicate_costs_and_prolongs_nothing() {
    let mut host = Host::new(&Config::default());
    let first = packet(Family::V4, 1, b'a').fragment(0, 152);
    host.push(&first);
    let (before, ends) = (host.gauges(), host.expire());
    for _ in 0..1000 {
        host.now += MS;
        host.push(&first);
    }
    assert_eq!((host.gauges(), host.expire()), (before, ends));
    assert_eq!(host.shard.counters().fragments(Reason::Duplicate), 1000);
    host.push(&packet(Family::V4, 1, b'a').fragment(152, 300));
    assert_eq!(host.out.delivered[0].fragments, 2);
}

/// The identifications of one source come round more than once before any time is up, and some fragments
/// are lost on the way.
#[test]
fn an_identification_that_comes_round_joins_no_two_datagrams() {
    let mut host = Host::new(&Config { copy_below: 0, ..Config::default() });
    let mut random = Random::new(5);
    let (mut sent, mut mixed) = (0u32, 0);
    let mut lost = HashMap::new();
    for n in 0..200_000u32 {
        let generation = u8::try_from(n >> 16).expect("four rounds") + b'a';
        let whole = Packet::new(Family::V4, n & 0xffff, vec![generation; 16]);
        let loses = random.below(100);
        if loses != 0 {
            host.push(&whole.fragment(0, 8));
        }
        if loses != 1 {
            host.push(&whole.fragment(8, 16));
        }
        sent += 1;
        *lost.entry(loses < 2).or_insert(0u32) += 1;
        for delivered in host.out.delivered.drain(..) {
            mixed += u32::from(delivered.payload().iter().any(|b| *b != delivered.payload()[0]));
        }
    }
    assert_eq!(mixed, 0);
    let counters = host.shard.counters();
    let stale = counters.datagrams(Reason::Stale);
    assert!(stale > 1000, "{stale} of {sent} were of an earlier round");
    assert_eq!(counters.datagrams, u64::from(lost[&false]), "whoever lost nothing was delivered");
}

#[test]
fn a_sender_hears_of_what_no_datagram_can_have() {
    let mut host = Host::new(&Config::default());
    for family in [Family::V4, Family::V6] {
        let odd = Packet { more: true, ..Packet::new(family, 1, vec![1; 13]) };
        let far = Packet { offset: 65_528, ..Packet::new(family, 2, vec![2; 100]) };
        host.push(&odd);
        host.push_burst(&[far]);
    }
    let kinds: Vec<NoticeKind> = host.out.notices.iter().map(|(kind, ..)| *kind).collect();
    assert_eq!(kinds, [NoticeKind::BadLength, NoticeKind::TooLong], "of IPv6 only");
    let (_, header, quote) = &host.out.notices[0];
    assert_eq!(
        (header.len(), &quote[8..]),
        (40, &[1; 13][..]),
        "the fragment header is quoted, too"
    );
    host.check_empty();
}

/// RFC 7112 section 5 and RFC 8200 section 4.5, of one fragment and of what fragments come to together.
#[test]
fn a_sender_hears_of_an_incomplete_first_fragment_and_of_too_long_a_datagram() {
    let mut host = Host::new(&Config::default());
    // TCP's header has 20 bytes, of which there are 16.
    let short = Packet { protocol: 6, ..Packet::new(Family::V6, 1, vec![5; 64]) };
    host.push(&short.fragment(0, 16));
    let [(NoticeKind::IncompleteHeader, header, quote)] = &host.out.notices[..] else {
        panic!("{:?}", host.out.notices)
    };
    let sent = short.fragment(0, 16).emit();
    assert_eq!((&header[..], &quote[..]), (&sent[..40], &sent[40..]));
    assert_eq!(host.shard.counters().fragments(Reason::IncompleteHeader), 1);
    host.out.notices.clear();

    // Nothing comes behind an atomic fragment: whether what it holds is enough says the transport (RFC 6946).
    host.push(&Packet { protocol: 6, ..Packet::new(Family::V6, 1, vec![5; 16]) }.fragment(0, 16));
    assert_eq!((host.out.notices.len(), host.out.delivered.len()), (0, 1));
    host.out.delivered.clear();

    // Of IPv4 nobody is told, since nothing forbids it there.
    let short = Packet { family: Family::V4, ..short };
    host.push(&short.fragment(0, 16));
    host.push(&short.fragment(16, 64));
    assert_eq!((host.out.notices.len(), host.out.delivered.len()), (0, 1));

    // 65,532 bytes of payload, for which the headers of the first fragment leave no room. They are not
    // part of the others, so that each alone is right.
    let long = Packet::new(Family::V6, 2, vec![9; 65_532]);
    let headed = Packet { extensions: vec![60; 2], ..long.clone() };
    host.push(&headed.fragment(0, 32_768));
    assert!(host.out.notices.is_empty());
    host.push(&long.fragment(32_768, 65_532));
    let [(NoticeKind::TooLong, header, quote)] = &host.out.notices[..] else {
        panic!("{:?}", host.out.notices.len())
    };
    let sent = headed.fragment(0, 32_768).emit();
    assert_eq!(header[..], sent[..header.len()]);
    assert_eq!((header.len(), quote[..] == sent[header.len()..]), (56, true));
    assert_eq!(host.shard.counters().datagrams(Reason::Oversize), 1);
    assert_eq!(host.out.delivered.len(), 1);
    host.check_empty();
}

/// Others of the network use up identifications of their own.
#[test]
fn a_busy_network_makes_no_datagram_stale() {
    let mut host = Host::new(&Config { copy_below: 0, ..Config::default() });
    let of = |src: u8, protocol: u8, id: u32, fill: u8| Packet {
        src,
        protocol,
        ..Packet::new(Family::V4, id, vec![fill; 16])
    };
    host.push(&of(250, 17, 7, b'a').fragment(0, 8));
    for n in 0..50_000u32 {
        let src = u8::try_from(n % 200).expect("below 200");
        let whole = of(src, 17, n / 200, b'b');
        host.push(&whole.fragment(0, 8));
        host.push(&whole.fragment(8, 16));
        host.out.delivered.clear();
        host.out.released.clear();
    }
    host.push(&of(250, 17, 7, b'a').fragment(8, 16));
    assert_eq!(host.payloads(), [&[b'a'; 16]]);
    // But its own, of the same protocol.
    host.push(&of(250, 6, 7, b'c').fragment(0, 8));
    host.push(&of(250, 17, 7, b'c').fragment(0, 8));
    for n in 0..33_000u32 {
        let whole = of(250, 17, 1000 + n, b'd');
        host.push(&whole.fragment(0, 8));
        host.push(&whole.fragment(8, 16));
        host.out.delivered.clear();
    }
    host.push(&of(250, 6, 7, b'c').fragment(8, 16));
    host.push(&of(250, 17, 7, b'e').fragment(8, 16));
    assert_eq!(host.payloads(), [&[b'c'; 16]]);
    assert_eq!(host.shard.counters().datagrams(Reason::Stale), 1);
}
