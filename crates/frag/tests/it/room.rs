//! Memory has ended: who goes for a fragment is about what the fragment needs, wherever it lies.

use std::rc::Rc;

use frag::{Arrival, Config, Reason};
use testkit::fragments::{Family, Packet, Random, cut};

use crate::host::{Host, MS};

const LIMIT: u64 = 1 << 20;
/// What a frame costs, and the least that one costs of which the payload is copied.
const FRAME: u32 = 2304;
const COPIED: u32 = 600;
/// Of the smallest datagrams some must go for a frame, and by sixteen, since their records are in chunks.
const MOST: u64 = 32;
/// Of those that are there when memory has ended.
const YOUNGEST: usize = 4;
/// Bytes for which the old datagram wants memory, in fragments.
const WANTED: usize = 44_400;

fn evicted(host: &Host) -> u64 {
    let counters = host.shard.counters();
    [Reason::EvictedIdle, Reason::EvictedShare, Reason::EvictedYoung]
        .map(|reason| counters.datagrams(reason))
        .into_iter()
        .sum()
}

fn small(id: u32) -> Packet {
    Packet::new(Family::V4, id, vec![1; 16])
}

/// Begins datagrams from that number on until none has room.
fn fill(host: &mut Host, from: u32) -> Vec<u32> {
    let mut ids = Vec::new();
    for id in from.. {
        let before = host.gauges().datagrams;
        host.push(&small(id).fragment(0, 8));
        if host.gauges().datagrams == before {
            break;
        }
        ids.push(id);
    }
    ids
}

/// An old datagram, and small ones in all the rest of memory. Of those half were complete, and others have their
/// records: so the youngest lie anywhere. Answers the small ones that are not young.
fn crowd(old: &Packet, frame: u32) -> (Host, Vec<u32>) {
    let mut host = Host::new(&Config { memory_bytes: LIMIT, ..Config::default() });
    host.frame = frame;
    for id in 0..20 {
        cut(16, 8).iter().for_each(|cut| host.push(&small(id).fragment(cut.at, cut.end)));
    }
    host.push(&old.fragment(0, 8));
    let mut ids = fill(&mut host, 1000);
    // What is needed for others to end may cost the youngest their places: they are none of those that are asked for.
    ids.truncate(ids.len() - YOUNGEST);
    Random::new(u64::from(frame)).shuffle(&mut ids);
    let stay = ids.split_off(ids.len() / 2);
    let before = host.out.delivered.len();
    ids.iter().for_each(|id| host.push(&small(*id).fragment(8, 16)));
    assert_eq!(host.out.delivered.len() - before, ids.len());
    let gone = usize::try_from(evicted(&host)).expect("few");
    assert!(gone <= YOUNGEST, "{gone} had no room");
    let young = fill(&mut host, 10_000);
    assert!(stay.len() > 300 && young.len() * 2 > stay.len(), "{} {}", stay.len(), young.len());
    (host, stay)
}

/// The old one gets fragments of `len` bytes, in buffers of the usual cost.
fn want(host: &mut Host, old: &Packet, len: usize) {
    host.frame = FRAME;
    for n in 0..WANTED / len {
        let (before, at) = (evicted(host), 8 + n * len);
        host.push(&old.fragment(at, at + len));
        let gone = evicted(host) - before;
        assert!(gone <= MOST, "{gone} datagrams for fragment {n} of {len} bytes");
    }
    let before = host.out.delivered.len();
    let at = old.payload.len() - 8;
    host.push(&old.fragment(at, old.payload.len()));
    assert_eq!(host.out.delivered.len(), before + 1, "the oldest ends");
    assert!(host.out.delivered[before].payload() == old.payload);
}

/// To be of `len` bytes each, between 8 and 8.
fn old(family: Family, len: usize) -> Packet {
    let payload = (0..WANTED / len * len + 16).map(|n| n.to_le_bytes()[0]).collect();
    Packet::new(family, 9, payload)
}

/// Whatever those that go have, and what is wanted: buffers, blocks, records.
#[test]
fn a_fragment_costs_others_what_it_needs() {
    for frame in [0, COPIED] {
        for len in [200, 1480] {
            let old = old(Family::V4, len);
            let (mut host, stay) = crowd(&old, frame);
            want(&mut host, &old, len);
            assert!(evicted(&host) > 0, "nobody had to go: that was no pressure");
            // They were before the young ones.
            let before = host.out.delivered.len();
            stay.iter().for_each(|id| host.push(&small(*id).fragment(8, 16)));
            assert_eq!(host.out.delivered.len() - before, stay.len(), "of frames of {frame}");
        }
    }
}

#[test]
fn so_it_does_where_a_source_uses_most() {
    let old = old(Family::V6, 1480);
    let (mut host, stay) = crowd(&old, COPIED);
    want(&mut host, &old, 1480);
    assert!(host.shard.counters().datagrams(Reason::EvictedShare) > 0);
    let before = host.out.delivered.len();
    stay.iter().for_each(|id| host.push(&small(*id).fragment(8, 16)));
    assert_eq!(host.out.delivered.len() - before, stay.len());
}

#[test]
fn so_it_does_where_all_are_idle() {
    let old = old(Family::V4, 1480);
    let (mut host, _) = crowd(&old, COPIED);
    host.now += 100 * MS;
    want(&mut host, &old, 1480);
    assert!(host.shard.counters().datagrams(Reason::EvictedIdle) > 0);
}

/// A caller may say what he likes: also where there is so much memory.
#[test]
fn a_datagram_of_buffers_of_four_gibibytes_is_given_up() {
    let costs = [(100, u32::MAX), (3 << 30, 3 << 30), (u32::MAX - 600, 2048), (u32::MAX, 2048)];
    for (memory_bytes, copy_below) in [(64 << 20, 0), (1 << 40, 0), (1 << 40, 256)] {
        for (first, second) in costs {
            let config = Config { memory_bytes, copy_below, ..Config::default() };
            let mut host = Host::new(&config);
            let whole = Packet::new(Family::V4, 1, vec![1; 900]);
            let other = Packet { id: 2, ..whole.clone() };
            // Records that are free know how datagrams are cut.
            for (at, end) in [(0, 304), (304, 608), (608, 900)] {
                [3, 4].iter().for_each(|id| {
                    host.push(&Packet { id: *id, ..whole.clone() }.fragment(at, end));
                });
            }
            host.out.delivered.clear();
            host.push(&other.fragment(0, 304));
            for (at, cost) in [(0, first), (304, second)] {
                let bytes = Rc::new(whole.fragment(at, at + 304).emit());
                let arrival = Arrival { cost, ..Arrival::new(&bytes, Rc::clone(&bytes)) };
                host.shard.push(arrival, host.now, &mut host.out);
                host.taken(1);
            }
            // A small one, whose block would be too much.
            host.push(&whole.fragment(608, 616));
            let counters = host.shard.counters();
            assert_eq!(counters.datagrams(Reason::TooCostly), 1, "{first} {second} {counters:?}");
            assert_eq!(host.gauges().datagrams, 1, "nobody else went");
            host.push(&other.fragment(304, 900));
            assert_eq!(host.out.delivered.len(), 1);
            host.check_empty();
        }
    }
}
