//! The budget: never more, whatever comes, and all of it back.

use std::rc::Rc;

use frag::{Arrival, Config, HashKey, Ledger, Reason, Released, Shard};
use testkit::fragments::{Cut, Family, ORDERS, Order, Packet, Random, cut};

use crate::host::{Buffer, Host, MS, Out, SECOND};

/// Fragments of a datagram, in some order.
fn push_all(host: &mut Host, whole: &Packet, cuts: &[Cut]) {
    cuts.iter().for_each(|cut| host.push(&whole.fragment(cut.at, cut.end)));
}

#[test]
fn two_shards_never_hold_more_than_the_limit() {
    let limits =
        Config { memory_bytes: 1 << 20, shards: 2, ..Config::default() }.limits().expect("right");
    let ledger = Ledger::of(&limits);
    let mut shards =
        [1, 2].map(|secret| Shard::<Buffer>::new(&limits, &ledger, HashKey::new([secret, 9])));
    let (mut out, mut most) = (Out::default(), 0);
    // Until something is complete, each is expected to be of the largest size.
    let small = Packet::new(Family::V4, 0, vec![0; 16]);
    for shard in &mut shards {
        for cut in cut(16, 8) {
            let bytes = Rc::new(small.fragment(cut.at, cut.end).emit());
            shard.push(Arrival::new(&bytes, Rc::clone(&bytes)), SECOND, &mut out);
        }
    }
    let bytes: Buffer = Rc::new(Packet::new(Family::V4, 0, vec![0; 1480]).fragment(0, 1000).emit());
    for n in 0..40_000u32 {
        let mut packet = Vec::clone(&bytes);
        packet[12..20].copy_from_slice(&u64::from(n).to_be_bytes());
        let arrival = Arrival { packet: &packet, buffer: Rc::clone(&bytes), cost: 2304, scope: 0 };
        // One after the other, then both.
        let of = if n < 12_000 { 0 } else { n as usize % 2 };
        shards[of].push(arrival, SECOND + u64::from(n) * 700, &mut out);
        let gauges = [shards[0].gauges(), shards[1].gauges()];
        let held: u64 = gauges.iter().map(|g| g.memory_bytes).sum();
        let leased: u64 = gauges.iter().map(|g| g.leased_bytes).sum();
        assert!(held <= leased && leased + ledger.left() == 1 << 20, "{held} of {leased}");
        most = held.max(most);
    }
    assert!(most > 700 << 10, "only {most} bytes were ever in use");
    drop(shards);
    assert_eq!(ledger.left(), 1 << 20);
    assert_eq!(Rc::strong_count(&bytes), 1, "buffers that never came back");
}

/// A million datagrams of which only the first fragment comes.
#[test]
fn a_million_first_fragments_never_take_more_than_the_limit() {
    const LIMIT: u64 = 4 << 20;
    let limits = Config { memory_bytes: LIMIT, ..Config::default() }.limits().expect("right");
    let ledger = Ledger::of(&limits);
    let mut shard = Shard::<Buffer>::new(&limits, &ledger, HashKey::new([3, 9]));
    let mut out = Out::default();
    let first: Buffer = Rc::new(Packet::new(Family::V4, 0, vec![0; 1480]).fragment(0, 1000).emit());
    // What datagrams need is known before.
    let small = Packet::new(Family::V4, 0, vec![0; 16]);
    for cut in cut(16, 8) {
        let bytes = Rc::new(small.fragment(cut.at, cut.end).emit());
        shard.push(Arrival::new(&bytes, Rc::clone(&bytes)), SECOND, &mut out);
    }
    assert_eq!((out.delivered.len(), out.released.len()), (1, 2));
    out.released.clear();
    let (mut most, mut returned) = (0, 0);
    let mut packet = Vec::clone(&first);
    for n in 0..1_000_000u32 {
        packet[12..16].copy_from_slice(&n.to_be_bytes());
        let arrival = Arrival { packet: &packet, buffer: Rc::clone(&first), cost: 2304, scope: 0 };
        shard.push(arrival, SECOND + u64::from(n) * 700, &mut out);
        let gauges = shard.gauges();
        assert!(gauges.memory_bytes <= gauges.leased_bytes);
        assert_eq!(gauges.leased_bytes + ledger.left(), LIMIT);
        most = most.max(gauges.memory_bytes);
        // What it says of a million is not to be kept.
        returned += out.released.len();
        out.released.clear();
    }
    assert!(most > LIMIT / 2, "only {most} bytes were ever in use");
    assert_eq!(shard.counters().fragments, 1_000_002);
    let in_progress = shard.gauges().datagrams as usize;
    assert_eq!((returned + in_progress, out.delivered.len()), (1_000_000, 1));
    drop(shard);
    assert_eq!((ledger.left(), Rc::strong_count(&first)), (LIMIT, 1));
}

#[test]
fn a_shard_without_memory_refuses_and_recovers() {
    let mut host = Host::new(&Config { memory_bytes: 64 << 10, ..Config::default() });
    host.frame = 2048;
    for id in 0..100 {
        host.push(&Packet::new(Family::V4, id, vec![1; 3000]).fragment(0, 1480));
    }
    let counters = host.shard.counters();
    let refused = counters.fragments(Reason::NoMemory) + counters.fragments(Reason::NoShare);
    let begun = u64::from(host.gauges().datagrams);
    assert!(refused > 50 && begun > 0, "{counters:?}");
    assert_eq!(begun + refused, 100);
    host.now += 30 * SECOND;
    assert_eq!(host.expire(), None);
    host.check_empty();
    let whole = Packet::new(Family::V4, 200, vec![1; 3000]);
    push_all(&mut host, &whole, &cut(3000, 1480));
    assert_eq!(host.payloads(), [&whole.payload[..]]);
}

#[test]
fn eight_bytes_do_not_pin_a_frame() {
    let mut host = Host::new(&Config::default());
    host.frame = 2048;
    let whole = Packet::new(Family::V4, 1, vec![7; 800]);
    push_all(&mut host, &whole, &cut(800, 8)[..99]);
    assert_eq!(host.out.released, vec![Released::Copied; 99]);
    let gauges = host.gauges();
    assert_eq!(gauges.blocks, 2);
    assert!(gauges.memory_bytes < 99 * 100, "{} bytes for 99 times 8", gauges.memory_bytes);
    host.push(&whole.fragment(792, 800));
    assert_eq!(host.payloads(), [&whole.payload[..]]);
    host.check_empty();
}

#[test]
fn a_frame_is_charged_at_its_true_size() {
    let mut host = Host::new(&Config { copy_below: 0, ..Config::default() });
    host.frame = 2048;
    let whole = Packet::new(Family::V4, 1, vec![7; 800]);
    push_all(&mut host, &whole, &cut(800, 8)[..50]);
    assert!(host.gauges().memory_bytes > 50 * 2048);
}

/// The header of the first fragment is kept apart, and may be most of its packet.
#[test]
fn a_long_header_is_paid_for() {
    let mut host = Host::new(&Config::default());
    let mut whole = Packet::new(Family::V6, 1, vec![7; 16]);
    whole.extensions = vec![60; 16];
    let short = Packet { extensions: Vec::new(), ..whole.clone() };
    host.frame = 2048;
    host.push(&whole.fragment(0, 8));
    let with = host.gauges().memory_bytes;
    host.push(&Packet { id: 2, ..short }.fragment(0, 8));
    let without = host.gauges().memory_bytes - with;
    assert!(with >= without + 128, "{with} bytes with 128 bytes of header, {without} without");
    host.push(&whole.fragment(8, 16));
    assert_eq!(host.out.delivered[0].packet, whole.emit_whole(&[7; 16]));
}

/// Also where the record has been another datagram's, of pieces of the same size.
#[test]
fn a_long_header_is_paid_for_in_a_record_that_was_used() {
    let mut host = Host::new(&Config::default());
    let short = Packet::new(Family::V6, 1, vec![7; 1024]);
    let long = Packet { id: 3, extensions: vec![60; 16], ..short.clone() };
    for id in [1, 2] {
        host.push(&Packet { id, ..short.clone() }.fragment(0, 512));
    }
    for id in [1, 2] {
        host.push(&Packet { id, ..short.clone() }.fragment(512, 1024));
    }
    assert_eq!((host.out.delivered.len(), host.gauges().memory_bytes), (2, 0));
    host.push(&long.fragment(0, 512));
    let with = host.gauges().memory_bytes;
    host.push(&Packet { id: 4, ..short }.fragment(0, 512));
    let without = host.gauges().memory_bytes - with;
    assert!(with >= without + 128, "{with} bytes with 128 bytes of header, {without} without");
    host.push(&long.fragment(512, 1024));
    assert_eq!(host.out.delivered[2].packet, long.emit_whole(&[7; 1024]));
}

#[test]
fn the_smallest_fragments_in_any_order_make_a_datagram() {
    let mut random = Random::new(1);
    for order in ORDERS {
        let mut host = Host::new(&Config { fragments_max: 8192, ..Config::default() });
        host.frame = 2048;
        let whole =
            Packet::new(Family::V4, 1, (0..65_515u32).map(|n| n.to_le_bytes()[0]).collect());
        push_all(&mut host, &whole, &order.of(&cut(65_515, 8), &mut random));
        assert!(host.payloads() == [&whole.payload[..]], "{order:?}");
        host.check_empty();
    }
}

#[test]
fn a_datagram_of_too_many_fragments_is_given_up_and_stays_so() {
    let mut random = Random::new(1);
    let whole = Packet::new(Family::V4, 1, vec![7; 65_512]);
    let whole_v6 = Packet { family: Family::V6, ..whole.clone() };
    for (packet, order) in [(whole, Order::Straight), (whole_v6, Order::Shuffled)] {
        let mut host = Host::new(&Config::default());
        host.frame = 2048;
        push_all(&mut host, &packet, &order.of(&cut(65_512, 8), &mut random));
        let counters = host.shard.counters();
        assert_eq!(counters.datagrams(Reason::TooMany), 1, "{counters:?}");
        assert!(counters.fragments(Reason::Refused) > 5000, "{counters:?}");
        host.check_empty();
    }
}

/// Whatever overlaps at any time: gone at once, and what comes after begins at nothing.
#[test]
fn the_smallest_fragments_with_overlaps_hold_nothing() {
    let mut host = Host::new(&Config { fragments_max: 8192, ..Config::default() });
    let whole = Packet::new(Family::V4, 1, vec![7; 65_512]);
    let mut random = Random::new(2);
    let mut cuts = Order::Shuffled.of(&cut(65_512, 8)[..8000], &mut random);
    cuts.push(Cut { at: cuts[0].at, end: cuts[0].at + 16 });
    push_all(&mut host, &whole, &cuts);
    assert_eq!(host.shard.counters().datagrams(Reason::Overlap), 1);
    host.check_empty();
}

#[test]
fn no_more_datagrams_than_allowed_and_what_was_refused_stays_so() {
    let mut host = Host::new(&Config { datagrams_max: 10, ..Config::default() });
    let packet = |id| Packet::new(Family::V6, id, vec![7; 24]);
    (0..20).for_each(|id| host.push(&packet(id).fragment(0, 8)));
    assert_eq!(host.gauges().datagrams, 10);
    assert_eq!(host.shard.counters().fragments(Reason::TooManyDatagrams), 10);
    (0..10).for_each(|id| push_all(&mut host, &packet(id), &cut(24, 8)[1..]));
    assert_eq!(host.out.delivered.len(), 10);
    host.now += MS;
    (10..20).for_each(|id| push_all(&mut host, &packet(id), &cut(24, 8)[1..]));
    assert_eq!(host.shard.counters().fragments(Reason::Refused), 20);
    host.check_empty();
}
