//! What a fuzzer would do, a little of it in each run; and senders as those of the kernel's own test.

use frag::{Config, Reason};
use proptest::prelude::*;
use testkit::fragments::random::{overlap, with_duplicates};
use testkit::fragments::{Family, ORDERS, Packet, Random, cases, cut, cut_unevenly};

use crate::host::Host;
use crate::{lanes, ops, packets};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence_of_calls_keeps_the_promises(bytes in proptest::collection::vec(any::<u8>(), 1..700)) {
        ops::run(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_sequence_of_calls_on_several_cores_gives_what_one_gives(bytes in proptest::collection::vec(any::<u8>(), 1..900)) {
        lanes::run(&bytes);
    }
}

/// Packets of the named cases with some bytes changed, each behind its length.
fn spoilt() -> impl Strategy<Value = Vec<u8>> {
    let short = |f: &Packet| f.payload.len() < 60;
    let all: Vec<Vec<u8>> = cases()
        .iter()
        .flat_map(|case| &case.fragments)
        .filter(|f| short(f))
        .map(Packet::emit)
        .collect();
    let some = proptest::collection::vec(proptest::sample::select(all), 1..12);
    let changes = proptest::collection::vec((any::<u16>(), any::<u8>()), 0..4);
    (any::<u8>(), some, changes).prop_map(|(how, some, changes)| {
        let mut bytes = vec![how];
        for packet in some {
            bytes.push(u8::try_from(packet.len()).unwrap_or(u8::MAX));
            bytes.extend(packet);
        }
        for (at, byte) in changes {
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn packets_of_any_bytes_do_no_harm(bytes in spoilt()) {
        packets::run(&bytes);
    }
}

/// Datagrams of 1 to 10,000 bytes and more, cut into 8 bytes and more, in each order, with duplicates; and
/// then with one fragment that overlaps, which ends it.
#[test]
fn datagrams_of_all_sizes_come_whole_and_overlaps_end_them() {
    let mut random = Random::new(11);
    let config = Config { fragments_max: 8192, ..Config::default() };
    for round in 0..400u32 {
        let family = if round.is_multiple_of(2) { Family::V4 } else { Family::V6 };
        let len = 1 + random.below(10_000);
        let size = 8 * (1 + random.below(len.div_ceil(8).min(180)));
        let whole =
            Packet::new(family, round, (0..len).map(|_| random.word().to_le_bytes()[0]).collect());
        let cuts = if round.is_multiple_of(5) {
            cut_unevenly(&mut random, len, size)
        } else {
            cut(len, size)
        };
        if cuts.len() < 2 {
            continue;
        }
        let order = ORDERS[round as usize % ORDERS.len()];
        let once = order.of(&cuts, &mut random);
        let cuts = with_duplicates(&once, &mut random);
        let mut host = Host::new(&config);
        host.frame = 2048;
        cuts.iter().for_each(|cut| host.push(&whole.fragment(cut.at, cut.end)));
        assert!(host.payloads() == [&whole.payload[..]], "{len} by {size} {order:?}");
        host.check_empty();
        let Some(odd) = overlap(len, size, &mut random).filter(|odd| !cuts.contains(odd)) else {
            continue;
        };
        let (before, behind) = once.split_at(random.below(once.len() - 1) + 1);
        let overlaps = before.iter().any(|cut| cut.at < odd.end && odd.at < cut.end);
        before.iter().chain([&odd]).for_each(|cut| host.push(&whole.fragment(cut.at, cut.end)));
        let given_up = host.shard.counters().datagrams(Reason::Overlap);
        assert_eq!(given_up, u64::from(overlaps), "{len} by {size} {order:?}");
        behind.iter().for_each(|cut| host.push(&whole.fragment(cut.at, cut.end)));
        assert_eq!(host.out.delivered.len(), 1, "{len} by {size} {order:?}");
    }
}

/// A datagram is not given up for a place that is far behind: what counts is how many fragments there are.
#[test]
fn a_short_piece_far_behind_is_no_sign_of_many() {
    let whole = Packet::new(Family::V6, 1, (0..65_000u32).map(|n| n.to_le_bytes()[0]).collect());
    let cuts = [(64_992, 65_000), (64_984, 64_992), (33_000, 64_984), (1000, 33_000), (0, 1000)];
    let mut host = Host::new(&Config::default());
    cuts.iter().for_each(|(at, end)| host.push(&whole.fragment(*at, *end)));
    assert!(host.payloads() == [&whole.payload[..]]);
    host.check_empty();
}

/// As many pieces as there can be where no two neighbours are of one size: they are found by a map.
#[test]
fn a_datagram_of_thousands_of_uneven_pieces_comes_whole() {
    let mut random = Random::new(12);
    let len = 65_000;
    let bytes = (0..len).map(|_| random.word().to_le_bytes()[0]).collect();
    let whole = Packet::new(Family::V6, 1, bytes);
    let mut cuts = Vec::new();
    while cuts.last().is_none_or(|(_, end)| *end < len) {
        let at = cuts.last().map_or(0, |(_, end)| *end);
        let size = if cuts.len().is_multiple_of(2) { 8 } else { 16 };
        cuts.push((at, (at + size).min(len)));
    }
    for copy_below in [0, 512] {
        let config = Config { fragments_max: 8192, copy_below, ..Config::default() };
        let mut host = Host::new(&config);
        random.shuffle(&mut cuts);
        for (at, end) in &cuts {
            host.push(&whole.fragment(*at, *end));
        }
        assert!(cuts.len() > 5000 && host.payloads() == [&whole.payload[..]], "{copy_below}");
        host.check_empty();
    }
}
