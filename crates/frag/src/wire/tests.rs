use proptest::prelude::*;
use testkit::fragments::{self, Family, cases};

use super::*;

fn fragment_of(bytes: &[u8]) -> Fragment {
    match parse(bytes, 9) {
        Ok(Packet::Fragment(fragment)) => fragment,
        other => panic!("{other:?}"),
    }
}

fn v4() -> fragments::Packet {
    let mut packet = fragments::Packet::new(Family::V4, 0x1234, vec![7; 24]);
    (packet.offset, packet.more, packet.tos) = (800, true, 2);
    packet
}

fn v6() -> fragments::Packet {
    let mut packet = fragments::Packet { family: Family::V6, ..v4() };
    packet.extensions = vec![0, 43, 60];
    packet.id = 0x1234_5678;
    packet
}

#[test]
fn each_field_is_where_it_should_be() {
    let f = fragment_of(&v4().emit());
    assert_eq!((f.offset, f.len, f.payload_at, f.header_len, f.next_at), (800, 24, 20, 20, 9));
    assert_eq!((f.protocol, f.ecn, f.more, f.end()), (253, 2, true, 824));
    assert_eq!(f.key, Key::v4(0xc613_0002, 0xc613_0001, 0x1234, 253, 9));
    let f = fragment_of(&v6().emit());
    assert_eq!((f.offset, f.len, f.payload_at, f.header_len, f.next_at), (800, 24, 72, 64, 56));
    assert_eq!((f.protocol, f.ecn, f.more, f.is_atomic()), (253, 2, true, false));
    let address = |last| [0xfd00_0000_0000_0000, last];
    assert_eq!(f.key, Key::v6(address(2), address(1), 0x1234_5678, 9));
}

#[test]
fn a_header_that_was_changed_on_its_way_is_not_sound() {
    for packet in [v4(), fragments::Packet { options: 8, ..v4() }] {
        let bytes = packet.emit();
        assert!(is_sound(&bytes));
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x10;
            let header = at < usize::from(bytes[0] & 15) * 4;
            // Of another version or length it says nothing, or something else.
            assert!(at == 0 || is_sound(&changed) != header, "byte {at}");
        }
        assert!((0..bytes.len()).all(|len| is_sound(&bytes[..len]) || len >= 20));
    }
    // What is no fragment, or has no checksum.
    let mut whole = fragments::Packet { offset: 0, more: false, ..v4() }.emit();
    whole[10] ^= 1;
    assert!(is_sound(&whole) && is_sound(&v6().emit()) && is_sound(&[]));
}

#[test]
fn a_packet_without_fragment_header_is_whole_without_its_padding() {
    for mut packet in [v4(), v6()] {
        (packet.offset, packet.more, packet.padding) = (0, false, 0);
        let mut bytes = packet.emit_whole(&[7; 24]);
        let len = bytes.len();
        assert_eq!(parse(&bytes, 0), Ok(Packet::Whole(len)));
        bytes.extend([0; 20]);
        assert_eq!(parse(&bytes, 0), Ok(Packet::Whole(len)));
    }
}

#[test]
fn a_packet_that_ends_early_is_truncated_wherever_it_ends() {
    for packet in [v4().emit(), v6().emit()] {
        for len in 0..packet.len() {
            assert_eq!(parse(&packet[..len], 0), Err(Reason::Truncated), "{len} bytes");
        }
    }
}

#[test]
fn a_header_that_makes_no_sense_is_refused() {
    let bytes = v4().emit();
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        parse(&bytes, 0)
    };
    for (at, byte) in [(0, 0x44), (0, 0x40), (0, 0x55), (0, 0x05), (0, 0xf5)] {
        assert_eq!(with(at, byte), Err(Reason::BadHeader), "{byte:x} at {at}");
    }
    // 60 bytes of header in 44 of packet.
    assert_eq!(with(0, 0x4f), Err(Reason::BadHeader));
    assert_eq!(with(3, 19), Err(Reason::BadHeader), "shorter than its header");
    assert_eq!(with(2, 1), Err(Reason::Truncated), "longer than what came");
    assert_eq!(with(3, 43), Err(Reason::Unaligned));
    assert_eq!(with(3, 20), Err(Reason::Empty));
}

#[test]
fn extension_headers_may_not_lead_out_of_the_packet() {
    let bytes = v6().emit();
    for (at, units) in [(41, 255), (49, 5), (57, 4)] {
        let mut bytes = bytes.clone();
        bytes[at] = units;
        assert_eq!(parse(&bytes, 0), Err(Reason::Truncated), "{units} at {at}");
    }
}

#[test]
fn extension_headers_are_passed_up_to_a_number() {
    let packet = |n: usize| fragments::Packet { extensions: vec![60; n], ..v6() }.emit();
    assert_eq!(fragment_of(&packet(EXTENSIONS_MAX)).header_len, 40 + 16 * 8);
    assert_eq!(parse(&packet(EXTENSIONS_MAX + 1), 0), Err(Reason::BadHeader));
}

#[test]
fn nothing_lies_behind_the_largest_datagram() {
    let at = |family, offset, len, more| {
        let mut packet = fragments::Packet::new(family, 1, vec![0; len]);
        (packet.offset, packet.more) = (offset, more);
        parse(&packet.emit(), 0).map(|_| ())
    };
    use Family::{V4, V6};
    assert_eq!(at(V4, 65_504, 11, false), Ok(()));
    assert_eq!(at(V4, 65_504, 12, false), Err(Reason::Oversize));
    assert_eq!(at(V4, 65_496, 8, true), Ok(()));
    assert_eq!(at(V4, 65_504, 8, true), Ok(()));
    assert_eq!(at(V4, 65_504, 16, true), Err(Reason::Oversize));
    assert_eq!(at(V6, 65_528, 7, false), Ok(()));
    assert_eq!(at(V6, 65_528, 8, false), Err(Reason::Oversize));
    assert_eq!(at(V6, 65_520, 8, true), Ok(()));
    assert_eq!(at(V6, 65_528, 8, true), Err(Reason::Oversize));
}

#[test]
fn the_first_fragment_holds_all_headers_or_not() {
    let tcp = [0; 20];
    assert!(holds_headers(protocol::TCP, &tcp));
    assert!(!holds_headers(protocol::TCP, &tcp[..19]));
    assert!(holds_headers(protocol::UDP, &tcp[..8]));
    assert!(!holds_headers(protocol::UDP, &tcp[..7]));
    assert!(!holds_headers(protocol::ICMP_V6, &tcp[..3]));
    assert!(!holds_headers(protocol::SCTP, &tcp[..11]));
    // Nobody knows how long another protocol's header is.
    assert!(holds_headers(59, &[]) && holds_headers(253, &[]));
    // Options of 16 bytes, then AH of 12 + 12 (4 words less 2), then UDP.
    let mut chain = vec![0; 16 + 24 + 8];
    (chain[0], chain[1]) = (protocol::AH, 1);
    (chain[16], chain[17]) = (protocol::UDP, 4);
    assert!(holds_headers(protocol::DESTINATION, &chain));
    for len in 0..chain.len() {
        assert!(!holds_headers(protocol::DESTINATION, &chain[..len]), "{len} bytes");
    }
    // Headers without end.
    assert!(!holds_headers(protocol::DESTINATION, &[protocol::DESTINATION; 4096]));
}

/// RFC 3168 section 5.3, as a table: what was seen, in the order not-ECT, ECT(1), ECT(0), CE.
#[test]
fn congestion_marks_are_merged_by_the_table() {
    for first in 0..4 {
        for seen in (1..16u8).filter(|seen| seen & 1 << first != 0) {
            let expected = match (seen & 1 != 0, seen & 8 != 0) {
                (true, _) if seen == 1 => Some(0),
                (true, _) => None,
                (false, true) => Some(3),
                (false, false) => Some(first),
            };
            assert_eq!(merge_ecn(seen, first), expected, "{seen:04b} {first}");
        }
    }
}

#[test]
fn a_checksum_of_nothing_but_ones_is_folded_twice() {
    assert_eq!(checksum(30 * 0xffff), 0);
    assert_eq!(checksum(0), 0xffff);
    assert_eq!(checksum(0x1_ffff), !1, "the carry of the carry");
    // Section 3 of RFC 1071.
    assert_eq!(checksum(0x0001 + 0xf203 + 0xf4f5 + 0xf6f7), !0xddf2);
}

fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let all: Vec<Vec<u8>> =
        cases().into_iter().flat_map(|case| case.fragments).take(120).map(|f| f.emit()).collect();
    let changes = proptest::collection::vec((0..90usize, any::<u8>()), 0..6);
    (proptest::sample::select(all), changes, 0..90usize).prop_map(|(mut bytes, changes, cut)| {
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(bytes.len().saturating_sub(cut / 3));
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_parsed_lies_in_the_packet(bytes in plausible()) {
        match parse(&bytes, 0) {
            Ok(Packet::Whole(len)) => prop_assert!(len <= bytes.len()),
            Ok(Packet::Fragment(f)) => {
                prop_assert!(f.len > 0 && f.offset.is_multiple_of(8) && f.end() <= 65_535);
                prop_assert!(!f.more || f.len.is_multiple_of(8));
                prop_assert!(usize::from(f.payload_at) + usize::from(f.len) <= bytes.len());
                prop_assert!(f.header_len <= f.payload_at && f.next_at < f.header_len);
                prop_assert!(f.ecn < 4);
            }
            Err(_) => {}
        }
    }

    #[test]
    fn nothing_at_all_is_parsed_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = parse(&bytes, 0);
    }
}

/// Words of a right header, its checksum with them, add up to 0xffff.
fn is_right(header: &[u8]) -> bool {
    let sum: u32 = header.chunks_exact(2).map(|pair| u32::from(u16_at(pair, 0))).sum();
    checksum(sum) == 0
}

proptest! {
    /// With options and without, whatever the first fragment's header said of itself.
    #[test]
    fn the_header_of_a_whole_datagram_is_right(
        words in 5..=15usize,
        bytes in proptest::array::uniform32(any::<u8>()),
        len in 1..=65_475u16,
        ecn in 0..4u8,
    ) {
        let mut first: Vec<u8> = bytes.iter().chain(&bytes).copied().take(words * 4).collect();
        first[0] = 0x40 | u8::try_from(words).unwrap();
        let mut whole = vec![1; 3];
        finish(&first, &Finish { next_at: 9, protocol: first[9], ecn, len }, &mut whole);
        prop_assert!(is_right(&whole), "{first:02x?} {whole:02x?}");
        prop_assert_eq!(usize::from(u16_at(&whole, 2)), first.len() + usize::from(len));
        prop_assert_eq!((whole[1], u16_at(&whole, 6)), (first[1] & !3 | ecn, u16_at(&first, 6) & 0x4000));
        let kept = |header: &[u8]| [&header[4..6], &header[8..10], &header[12..]].concat();
        prop_assert_eq!((whole[0], kept(&whole)), (first[0], kept(&first)));
    }

    /// What is parsed of a plain header is all that matters of it.
    #[test]
    fn a_plain_header_is_made_of_what_was_parsed(
        bytes in proptest::array::uniform32(any::<u8>()),
        len in 1..=1000u16,
        more in any::<bool>(),
    ) {
        let mut packet = vec![0; 20 + 1600];
        packet[..20].copy_from_slice(&bytes[..20]);
        (packet[0], packet[6], packet[7]) = (0x45, 0x20 | packet[6] & 0x40, 0);
        packet[2..4].copy_from_slice(&(20 + 1600u16).to_be_bytes());
        let Ok(Packet::Fragment(f)) = parse(&packet, 7) else { panic!("a first fragment") };
        prop_assert!(f.has_plain_header());
        let made = plain_header(&f.key, f.rest, f.ecn, more, len);
        prop_assert!(is_right(&made), "{made:02x?}");
        let mut expected = packet[..20].to_vec();
        expected[2..4].copy_from_slice(&(20 + len).to_be_bytes());
        expected[6] = packet[6] & 0x40 | u8::from(more) << 5;
        expected[10..12].copy_from_slice(&made[10..12]);
        prop_assert_eq!(&made[..], &expected[..]);
    }
}
