//! The named cases, byte for byte.

use frag::{Config, Policy, Reason};
use testkit::fragments::packet::checksum;
use testkit::fragments::{Case, Family, ORDERS, Packet, Random, cases, cut};

use crate::host::{Delivered, Host};

/// The packet that the sender cut, as far as the fragments of a case tell.
fn whole(case: &Case, payload: &[u8]) -> Vec<u8> {
    let mut first = case
        .fragments
        .iter()
        .find(|f| f.offset == 0 && f.payload.first() == payload.first())
        .expect("a first fragment")
        .clone();
    // Whoever was marked "congestion experienced" marks the whole (RFC 3168 section 5.3).
    first.tos |=
        case.fragments.iter().map(|f| f.tos & 3).filter(|ecn| *ecn == 3).max().unwrap_or(0);
    first.emit_whole(payload)
}

/// Bytes and how many of each: short enough to read.
fn runs(bytes: &[u8]) -> String {
    let runs = bytes.chunk_by(|a, b| a == b);
    runs.map(|run| format!("{:02x}*{} ", run[0], run.len())).collect()
}

fn check(case: &Case, host: &Host) {
    let name = case.name;
    let out: Vec<&[u8]> = host.out.delivered.iter().map(|d| &d.packet[..]).collect();
    let out = [out, host.out.whole.iter().map(|w| &w[..]).collect()].concat();
    let expected: Vec<_> = case.payloads.iter().map(|payload| whole(case, payload)).collect();
    assert_eq!(out.len(), expected.len(), "{name}: {:?}", host.shard.counters());
    for (out, expected) in out.iter().zip(&expected) {
        assert!(out == expected, "{name}: {} is not {}", runs(out), runs(expected));
    }
    host.out.delivered.iter().for_each(|delivered| check_header(name, delivered));
}

/// The same, of the bytes themselves and not by way of what wrote the fragments.
fn check_header(name: &str, delivered: &Delivered) {
    let packet = &delivered.packet;
    let header = &packet[..delivered.header_len];
    let length = |at: usize| usize::from(header[at]) << 8 | usize::from(header[at + 1]);
    if header[0] >> 4 == 4 {
        assert_eq!(checksum(header), 0, "{name}");
        assert_eq!(length(2), packet.len(), "{name}");
        assert_eq!((header[6] & !0x40, header[7]), (0, 0), "{name}: still a fragment");
        assert_eq!(usize::from(header[0] & 15) * 4, header.len(), "{name}");
        return;
    }
    assert_eq!(length(4), packet.len() - 40, "{name}");
    let (mut next, mut at) = (header[6], 40);
    while at < header.len() {
        assert_ne!(next, 44, "{name}: still a fragment");
        next = header[at];
        at += 8 * (1 + usize::from(header[at + 1]));
    }
    assert!(next == 253 || next == 254, "{name}: {next} follows the headers");
}

/// The same cases as another program has written them, frame by frame: what reads them here shares nothing with what
/// writes packets for the other tests. All numbers are little endian; each case is
///
/// ```text
/// u16 length of the name, the name, u8 family (4 or 6), u16 frames, and for each: u32 length, an Ethernet frame
/// ```
const FRAMES: &[u8] = include_bytes!("../fixtures/cases.bin");
/// A line for each: its name, a tab, and what comes out. `A16B8`: 16 times the byte `A`, then 8 times `B`; `|` between
/// datagrams; `-`: none.
const EXPECTED: &str = include_str!("../fixtures/cases.expect");

/// A case of [`FRAMES`]: its name, and its packets without the header of Ethernet.
type Framed = (&'static str, Vec<&'static [u8]>);

fn framed_cases() -> Vec<Framed> {
    let mut rest = FRAMES;
    let mut take = |len: usize| {
        let (taken, behind) = rest.split_at(len);
        rest = behind;
        (taken, rest.is_empty())
    };
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte));
    let mut all = Vec::new();
    loop {
        let name = number(take(2).0);
        let name = std::str::from_utf8(take(name).0).expect("a name");
        let family = take(1).0[0];
        let frames = number(take(2).0);
        let mut packets = Vec::new();
        let mut is_last = false;
        for _ in 0..frames {
            let len = number(take(4).0);
            let frame;
            (frame, is_last) = take(len);
            let (link, packet) = frame.split_at(14);
            assert_eq!(link[12..], if family == 4 { [0x08, 0x00] } else { [0x86, 0xdd] }, "{name}");
            packets.push(packet);
        }
        all.push((name, packets));
        if is_last {
            return all;
        }
    }
}

/// What came out, as [`EXPECTED`] says it.
fn said(host: &Host) -> String {
    let whole = host.out.whole.iter().map(|packet| &packet[usize::from(packet[0] & 15) * 4..]);
    let all: Vec<String> = host
        .payloads()
        .into_iter()
        .chain(whole)
        .map(|payload| {
            let runs = payload.chunk_by(|a, b| a == b);
            runs.map(|run| format!("{}{}", char::from(run[0]), run.len())).collect()
        })
        .collect();
    if all.is_empty() { "-".into() } else { all.join("|") }
}

#[test]
fn frames_of_another_program_end_as_it_says() {
    let expected: Vec<(&str, &str)> =
        EXPECTED.lines().map(|line| line.split_once('\t').expect("a name and a result")).collect();
    let all = framed_cases();
    assert_eq!((all.len(), expected.len()), (95, 95));
    for copy_below in [0, Config::default().copy_below] {
        for ((name, packets), (of, result)) in all.iter().zip(&expected) {
            assert_eq!(name, of);
            let mut host = Host::new(&Config { copy_below, ..Config::default() });
            host.frame = 2048;
            packets.iter().for_each(|packet| host.push_bytes(packet.to_vec()));
            assert_eq!(said(&host), *result, "{name}: {:?}", host.shard.counters());
            host.out.delivered.iter().for_each(|delivered| check_header(name, delivered));
        }
    }
}

fn each(config: &Config, push: impl Fn(&mut Host, &Case)) {
    for case in cases() {
        let mut host = Host::new(config);
        // Frames are larger than packets.
        host.frame = 2048;
        push(&mut host, &case);
        check(&case, &host);
    }
}

#[test]
fn each_case_ends_as_it_should() {
    each(&Config::default(), |host, case| case.fragments.iter().for_each(|f| host.push(f)));
}

#[test]
fn each_case_ends_the_same_without_copies_and_with_more_of_them() {
    for copy_below in [0, 512] {
        let config = Config { copy_below, fragments_max: 8192, ..Config::default() };
        each(&config, |host, case| case.fragments.iter().for_each(|f| host.push(f)));
    }
}

#[test]
fn each_case_ends_the_same_in_bursts() {
    each(&Config::default(), |host, case| host.push_burst(&case.fragments));
}

#[test]
fn all_cases_at_once_do_not_meet() {
    let all = cases();
    let mut host = Host::new(&Config::default());
    // "Identification 0" is the one that all cases may have.
    let most = all.iter().map(|case| case.fragments.len()).max().unwrap_or(0);
    for at in 0..most {
        all.iter().filter_map(|case| case.fragments.get(at)).for_each(|f| host.push(f));
    }
    let expected: usize = all.iter().map(|case| case.payloads.len()).sum();
    assert_eq!(host.out.delivered.len() + host.out.whole.len(), expected);
}

#[test]
fn cases_without_overlaps_end_the_same_under_every_policy() {
    let disputed = ["overlap", "teardrop", "lasts", "beyond", "below", "mf-ends", "other-data"];
    for policy in Policy::ALL.iter().copied() {
        let config = Config { overlap: policy, ..Config::default() };
        for case in cases() {
            if disputed.iter().any(|word| case.name.contains(word)) {
                continue;
            }
            let mut host = Host::new(&config);
            case.fragments.iter().for_each(|f| host.push(f));
            let payloads: Vec<_> = host.payloads().iter().map(|p| p.to_vec()).collect();
            let whole = host.out.whole.len();
            assert_eq!(payloads.len() + whole, case.payloads.len(), "{} {policy:?}", case.name);
            let same = whole == 1 || payloads == case.payloads;
            assert!(same, "{} {policy:?}", case.name);
        }
    }
}

#[test]
fn what_is_not_delivered_is_counted_by_reason() {
    let expected = [
        ("v4-overlap-tail", Reason::Overlap),
        ("v4-overlap-spans-two", Reason::Overlap),
        ("v4-two-lasts-different-end-longer", Reason::EndConflict),
        ("v4-data-beyond-last-end", Reason::EndConflict),
        ("v4-last-below-seen-data", Reason::EndConflict),
        ("v4-zero-length-last", Reason::Empty),
        ("v4-nonmult8-mf-gap", Reason::Unaligned),
        ("v4-ping-of-death", Reason::Oversize),
        ("v4-total-65536-oversize", Reason::Oversize),
        ("v4-ecn-notect-ce", Reason::Ecn),
        ("v4-dup-first-10x", Reason::Duplicate),
        ("v6-nested-fragment-header", Reason::Nested),
        ("v6-first-frag-truncated-tcp-header", Reason::IncompleteHeader),
    ];
    let all = cases();
    for (name, reason) in expected {
        let case = all.iter().find(|case| case.name == name).expect("a case of that name");
        let mut host = Host::new(&Config::default());
        case.fragments.iter().for_each(|f| host.push(f));
        let counters = host.shard.counters();
        let n = counters.fragments(reason) + counters.datagrams(reason);
        assert!(n > 0, "{name}: not for {reason:?}: {counters:?}");
    }
}

#[test]
fn a_fragment_that_is_too_small_is_dropped_if_asked_for() {
    let whole = Packet::new(Family::V4, 5, (0..200).collect());
    let config = Config { fragment_min: 64, ..Config::default() };
    let mut host = Host::new(&config);
    host.push(&whole.fragment(0, 64));
    host.push(&whole.fragment(64, 120));
    assert_eq!(host.shard.counters().fragments(Reason::Tiny), 1);
    // What is dropped harms nobody: the datagram still waits for it. The last one may be short.
    host.push(&whole.fragment(192, 200));
    host.push(&whole.fragment(64, 192));
    assert_eq!(host.payloads(), [whole.payload.as_slice()]);
    let mut host = Host::new(&Config::default());
    for (at, end) in [(0, 64), (64, 120), (120, 200)] {
        host.push(&whole.fragment(at, end));
    }
    assert_eq!(host.payloads(), [whole.payload.as_slice()], "nobody asked for it");
}

#[test]
fn a_datagram_may_have_1024_fragments_and_no_more() {
    for fragments in [1024_usize, 1025] {
        let whole = Packet::new(Family::V4, 6, vec![7; 8 * fragments]);
        let mut host = Host::new(&Config::default());
        (0..fragments).for_each(|at| host.push(&whole.fragment(8 * at, 8 * (at + 1))));
        let counters = host.shard.counters();
        let dropped = counters.fragments(Reason::TooMany) + counters.datagrams(Reason::TooMany);
        assert_eq!(
            (host.payloads().len(), dropped > 0),
            if fragments == 1024 { (1, false) } else { (0, true) }
        );
    }
}

#[test]
fn the_largest_header_is_that_of_the_first_fragment() {
    // 15 words of options in the first fragment, none in the last.
    let mut packet = Packet::new(Family::V4, 9, (0..=255).collect());
    packet.options = 40;
    let mut host = Host::new(&Config::default());
    let mut last = packet.fragment(128, 256);
    last.options = 0;
    host.push(&last);
    host.push(&packet.fragment(0, 128));
    assert_eq!(host.out.delivered[0].packet, packet.emit_whole(&packet.payload));
    assert_eq!(host.out.delivered[0].header_len, 60);
}

/// Where the bytes of a fragment begin in its packet is its own: whichever of them have options, however long, in whatever
/// order they come, whatever had the record before, copied or not.
#[test]
fn each_fragment_may_have_a_header_of_its_own() {
    let mut random = Random::new(31);
    let mut host = Host::new(&Config { copy_below: 300, ..Config::default() });
    // Beside those that are small, which are copied.
    host.frame = 2048;
    let mut id = 0;
    for (len, size) in [(3000usize, 1000), (2500, 1000), (2100, 1000), (1500, 296), (9000, 1480)] {
        for order in ORDERS {
            for first in [0, 4, 40] {
                for others in [0, 4] {
                    for odd in [None, Some(40)] {
                        id += 1;
                        let payload = (0..len).map(|n| (n % 251).to_le_bytes()[0]).collect();
                        let mut whole = Packet::new(Family::V4, id, payload);
                        let cuts = cut(len, size);
                        let which = random.below(cuts.len());
                        for (n, cut) in order.of(&cuts, &mut random).into_iter().enumerate() {
                            let mut fragment = whole.fragment(cut.at, cut.end);
                            fragment.options = if cut.at == 0 { first } else { others };
                            if let Some(odd) = odd.filter(|_| n == which) {
                                fragment.options = odd;
                            }
                            if cut.at == 0 {
                                whole.options = fragment.options;
                            }
                            host.push(&fragment);
                        }
                        let came = host.out.delivered.pop().expect("all of it came");
                        let case = format!("{len} by {size} {order:?} {first} {others} {odd:?}");
                        assert!(came.packet == whole.emit_whole(&whole.payload), "{case}");
                    }
                }
            }
        }
    }
    host.check_empty();
}

#[test]
fn a_piece_may_begin_behind_64_kib_of_its_packet() {
    // 65,535 bytes of payload behind 48 of headers: where the second fragment goes on behind the first, it is at
    // 65,536 of its packet, which only a capture can hold.
    let payload: Vec<u8> = (0..65_535u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
    let whole = Packet::new(Family::V6, 3, payload);
    for policy in Policy::ALL.iter().copied().filter(|policy| *policy != Policy::Strict) {
        let mut host = Host::new(&Config { overlap: policy, ..Config::default() });
        host.push(&whole.fragment(65_480, 65_488));
        host.push(&whole.fragment(0, 65_520));
        host.push(&whole.fragment(65_520, 65_535));
        assert_eq!(host.payloads(), [whole.payload.as_slice()], "{policy:?}");
    }
}
