#![expect(clippy::cast_possible_truncation, reason = "numbers in tests are small")]

use std::io::Cursor;

use proptest::prelude::*;

use super::file::tests::{Capture, packets_of};
use super::file::{Interface, Order, Time};
use super::*;

/// Packets as senders make them.
pub(super) mod packets {
    pub(in crate::defrag) const MORE: u16 = 0x2000;

    fn checksum(bytes: &[u8]) -> u16 {
        let words =
            bytes.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0)));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        !(((sum & 0xffff) + (sum >> 16)) as u16)
    }

    /// `word`: flags and offset.
    pub(in crate::defrag) fn ip4(protocol: u8, word: u16, payload: &[u8]) -> Vec<u8> {
        let mut packet =
            vec![0x45, 0, 0, 0, 0, 7, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet[2..4].copy_from_slice(&((20 + payload.len()) as u16).to_be_bytes());
        packet[6..8].copy_from_slice(&word.to_be_bytes());
        let sum = checksum(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend_from_slice(payload);
        packet
    }

    pub(in crate::defrag) fn ip6(next: u8, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u16).to_be_bytes();
        let mut packet = vec![0x60, 0, 0, 0, len[0], len[1], next, 64];
        packet.extend([[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]; 2].as_flattened());
        packet.extend_from_slice(payload);
        packet
    }

    pub(in crate::defrag) fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
        let words = [from, to, 8 + payload.len() as u16, 0];
        [&words.map(u16::to_be_bytes).concat(), payload].concat()
    }

    pub(in crate::defrag) fn gre(key: Option<u32>, sum: Option<()>, inner: &[u8]) -> Vec<u8> {
        let mut head = vec![0, 0, 8, 0];
        if sum.is_some() {
            head[0] |= 0x80;
            head.extend([0; 4]);
        }
        if let Some(key) = key {
            head[0] |= 0x20;
            head.extend(key.to_be_bytes());
        }
        head.extend_from_slice(inner);
        if sum.is_some() {
            let sum = checksum(&head);
            head[4..6].copy_from_slice(&sum.to_be_bytes());
        }
        head
    }

    pub(in crate::defrag) fn vxlan(network: u32, inner: &[u8]) -> Vec<u8> {
        [&[8, 0, 0, 0], &(network << 8).to_be_bytes()[..], &ethernet(&[8, 0], inner)].concat()
    }

    /// `extension`: from its length on.
    pub(in crate::defrag) fn gtp(tunnel: u32, extension: &[u8], inner: &[u8]) -> Vec<u8> {
        let optional = [&[0, 0, 0, 0x85], extension].concat();
        let optional = if extension.is_empty() { &[] } else { &optional[..] };
        let flags = if extension.is_empty() { 0x30 } else { 0x34 };
        let len = ((optional.len() + inner.len()) as u16).to_be_bytes();
        [&[flags, 0xff, len[0], len[1]], &tunnel.to_be_bytes()[..], optional, inner].concat()
    }

    pub(in crate::defrag) fn ethernet(rest: &[u8], packet: &[u8]) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], rest, packet].concat()
    }

    /// A datagram in fragments with `step` bytes of payload each.
    pub(in crate::defrag) fn fragments(whole: &[u8], step: usize) -> Vec<Vec<u8>> {
        let payload = &whole[20..];
        let pieces = payload.chunks(step).enumerate().map(|(at, piece)| {
            let more = if (at + 1) * step < payload.len() { MORE } else { 0 };
            ip4(whole[9], (at * step / 8) as u16 | more, piece)
        });
        pieces.collect()
    }
}

use packets::{ethernet, fragments, gre, gtp, ip4, udp, vxlan};

const TYPE: &[u8] = &[8, 0];

fn whole(len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
    ip4(17, 0, &udp(1000, 2000, &payload))
}

fn framed(packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    packets.iter().map(|packet| ethernet(TYPE, packet)).collect()
}

fn tunnelling() -> Options {
    Options { tunnels: true, ..Options::default() }
}

fn keeping() -> Options {
    Options { keep_incomplete: true, ..Options::default() }
}

/// What becomes of a file.
fn convert(bytes: &[u8], format: Option<Format>, options: &Options) -> (Vec<u8>, Report) {
    let mut reader = Reader::open(Cursor::new(bytes)).unwrap();
    let format = format.unwrap_or_else(|| reader.format());
    let mut out = Vec::new();
    let mut writer = Writer::like(&mut out, format, &reader).unwrap();
    let mut defragmenter = Defragmenter::new(options).unwrap();
    let report = copy(&mut reader, &mut writer, &mut defragmenter, &mut |_, _| Ok(())).unwrap();
    (out, report)
}

/// What becomes of frames.
fn defragment(frames: &[Vec<u8>], options: &Options) -> (Vec<Vec<u8>>, Report) {
    let (out, report) = convert(&Capture::pcap(1).frames(frames).bytes, None, options);
    (packets_of(&out).into_iter().map(|packet| packet.bytes).collect(), report)
}

#[test]
fn a_datagram_has_the_header_of_its_first_and_the_time_of_its_last_fragment() {
    let datagram = whole(3000);
    let mut frames = framed(&fragments(&datagram, 1480));
    frames.reverse();
    frames[2][5] = 9; // another destination: the first fragment's
    let other = ethernet(&[8, 6], &[0; 40]);
    frames.insert(1, other.clone());
    let capture = Capture::pcap(1).frames(&frames);
    let (out, report) = convert(&capture.bytes, None, &Options::default());
    let packets = packets_of(&out);
    assert_eq!(packets[0].bytes, other);
    let mut expected = ethernet(TYPE, &datagram);
    expected[5] = 9;
    assert_eq!(packets[1].bytes, expected);
    assert_eq!(packets[1].time, packets_of(&capture.bytes)[3].time);
    assert_eq!((report.packets, report.written, report.frag.datagrams), (4, 2, 1));
}

#[test]
fn fragments_of_two_vlans_never_meet() {
    let parts = fragments(&whole(100), 56);
    let tag = |id: u8| [0x81, 0, 0, id, 8, 0];
    let (a, b) = (ethernet(&tag(1), &parts[0]), ethernet(&tag(2), &parts[1]));
    let (out, report) = defragment(&[a.clone(), b], &Options::default());
    assert!(out.is_empty());
    assert_eq!(report.incomplete, 2);
    let (out, _) = defragment(&[a, ethernet(&tag(1), &parts[1])], &Options::default());
    assert_eq!(out, [ethernet(&tag(1), &whole(100))]);
}

#[test]
fn a_length_in_place_of_the_type_becomes_a_type() {
    let parts = fragments(&whole(3000), 1400);
    let frame = |part: &Vec<u8>| {
        let len = ((part.len() + 8) as u16).to_be_bytes();
        ethernet(&[&len[..], &[0xaa, 0xaa, 3, 0, 0, 0, 8, 0]].concat(), part)
    };
    let (out, _) = defragment(&parts.iter().map(frame).collect::<Vec<_>>(), &Options::default());
    assert_eq!(out, [ethernet(TYPE, &whole(3000))]);
}

/// Where frames end with a checksum, so do those that are put together, in either format.
#[test]
fn frames_that_are_put_together_end_with_the_checksum_that_the_file_promises() {
    const PROMISED: u32 = 1 | 0x2400_0000;
    let sealed = |frame: &[u8]| [frame, &crc32fast::hash(frame).to_le_bytes()].concat();
    let frames = framed(&fragments(&whole(3000), 800));
    let frames: Vec<_> = frames.iter().map(|frame| sealed(frame)).collect();
    let expected = [sealed(&ethernet(TYPE, &whole(3000)))];
    let mut bytes = Capture::pcap(PROMISED).frames(&frames).bytes;
    // Fragments that are too small pass as they are.
    let config = Config { fragment_min: 1280, ..Config::default() };
    let passing = Options { config, ..keeping() };
    for from in [Format::Pcap, Format::Pcapng, Format::Pcapng, Format::Pcap] {
        bytes = convert(&bytes, Some(from), &passing).0;
        assert_eq!(packets_of(&bytes).len(), frames.len());
        for to in [Format::Pcap, Format::Pcapng] {
            let (out, _) = convert(&bytes, Some(to), &Options::default());
            let packets = packets_of(&out);
            let came: Vec<_> = packets.iter().map(|packet| packet.bytes.clone()).collect();
            assert_eq!(came, expected, "{from:?} to {to:?}");
            assert_eq!(packets[0].original_len as usize, expected[0].len());
            let pcap = convert(&out, Some(Format::Pcap), &Options::default()).0;
            assert_eq!(pcap[20..24], PROMISED.to_le_bytes(), "{from:?} to {to:?}");
        }
    }
}

#[test]
fn what_makes_no_datagram_is_dropped_or_kept_in_order() {
    let mut frames = framed(&fragments(&whole(100), 32));
    frames.pop();
    frames.swap(0, 2);
    let (out, report) = defragment(&frames, &Options::default());
    assert_eq!((out.len(), report.incomplete, report.kept), (0, 1, 0));
    let (out, report) = defragment(&frames, &keeping());
    assert_eq!(out, frames);
    assert_eq!((report.incomplete, report.kept), (1, 3));
    // One that contradicts the others: all of them are dropped, for that reason.
    let mut frames = framed(&fragments(&whole(100), 32));
    frames.insert(1, ethernet(TYPE, &ip4(17, 1 | packets::MORE, &[1; 32])));
    let (out, report) = defragment(&frames, &keeping());
    assert_eq!(out, frames);
    assert_eq!(report.dropped().next().map(|d| (d.0, d.2)), Some((Reason::Overlap, 1)));
}

#[test]
fn fragments_that_no_host_takes_are_dropped_or_kept() {
    let bad = framed(&[ip4(17, packets::MORE, &[1; 9])]);
    let (out, report) = defragment(&bad, &Options::default());
    assert_eq!((out.len(), report.frag.fragments(Reason::Unaligned)), (0, 1));
    assert_eq!(defragment(&bad, &keeping()).0, bad);
    // No fragment at all, perhaps; it is not for us to judge.
    let mut strange = framed(&[ip4(17, 0, &[1; 9])]);
    strange[0][16] = 0xff;
    let (out, report) = defragment(&strange, &Options::default());
    assert_eq!((out, report.malformed), (strange, 1));
}

/// No host takes one with a wrong checksum in its header, so that what it says is not what was said; one without is of a host
/// whose card adds it.
#[test]
fn a_fragment_with_a_wrong_checksum_is_not_believed() {
    let datagram = whole(3000);
    let mut parts = fragments(&datagram, 1480);
    let mut false_one = parts[1].clone();
    (false_one[8], false_one[400]) = (false_one[8] ^ 1, !false_one[400]);
    parts.insert(1, false_one);
    for options in [Options::default(), keeping()] {
        let (out, report) = defragment(&framed(&parts), &options);
        assert_eq!(report.frag.fragments(Reason::Checksum), 1);
        assert_eq!((report.frag.datagrams, out.last()), (1, Some(&ethernet(TYPE, &datagram))));
    }
    parts.remove(1);
    parts.iter_mut().for_each(|part| part[10..12].fill(0));
    assert_eq!(defragment(&framed(&parts), &Options::default()).1.frag.datagrams, 1);
}

#[test]
fn cut_packets_pass() {
    let frames = framed(&[whole(100)]);
    let capture = Capture::pcap(1).cut(&frames[0], 40);
    let (out, report) = convert(&capture.bytes, None, &Options::default());
    let packets = packets_of(&out);
    assert_eq!(packets[0].bytes, frames[0][..40]);
    assert_eq!(packets[0].original_len as usize, frames[0].len());
    assert_eq!((packets.len(), report.cut, report.malformed), (1, 1, 0));
}

/// A fragment that was cut makes no datagram, and neither do the others of its datagram: all go, or stay in order.
#[test]
fn cut_fragments_go_with_the_others_of_their_datagram() {
    let v6 = packets::ip6(
        60,
        &[[44, 0, 1, 4, 0, 0, 0, 0].as_slice(), &[17, 0, 0, 1, 0, 0, 0, 9], &[7; 80]].concat(),
    );
    let v6 = ethernet(&[0x86, 0xdd], &v6);
    let frames = framed(&fragments(&whole(100), 56));
    let capture = Capture::pcap(1).cut(&frames[0], 40).frames(&frames[1..]).cut(&v6, 80);
    let (out, report) = convert(&capture.bytes, None, &Options::default());
    assert_eq!((packets_of(&out).len(), report.cut, report.incomplete), (0, 0, 1));
    assert_eq!(report.frag.fragments(Reason::Truncated), 2);
    let (out, report) = convert(&capture.bytes, None, &keeping());
    let lens: Vec<usize> = packets_of(&out).iter().map(|packet| packet.bytes.len()).collect();
    assert_eq!((lens.len(), report.kept, report.written), (3, 3, 3));
    assert_eq!(lens.iter().sum::<usize>(), 40 + frames[1].len() + 80);
}

/// Of a frame that lost nothing but its checksum all is there.
#[test]
fn fragments_of_which_only_the_checksum_of_the_frame_was_cut_are_whole() {
    let frames: Vec<_> =
        framed(&fragments(&whole(100), 56)).into_iter().map(|f| [f, vec![0; 4]].concat()).collect();
    let cut = |capture: Capture, frame: &Vec<u8>| capture.cut(frame, frame.len() - 4);
    let capture = frames.iter().fold(Capture::pcap(1), cut);
    let (_, report) = convert(&capture.bytes, None, &Options::default());
    assert_eq!((report.frag.datagrams, report.cut), (1, 0));
}

/// Two interfaces whose clocks differ by years, and a packet with no time among the fragments of each.
#[test]
fn clocks_that_differ_and_wrong_times_drop_nothing() {
    let frames = framed(&fragments(&whole(3000), 800));
    let wrong = ethernet(TYPE, &whole(20));
    let mut capture = Capture::pcapng(&[(1, 6), (1, 9)]);
    for (at, frame) in (0..).zip(&frames) {
        for (interface, seconds) in [(0, 1_700_000_000), (1, 1_600_000_000)] {
            let ns = (seconds + at) * 1_000_000_000;
            capture = capture.record(interface, ns, frame, frame.len(), &[]);
            if at == 1 {
                capture = capture.record(interface, 0, &wrong, wrong.len(), &[]);
            }
        }
    }
    let (_, report) = convert(&capture.bytes, None, &Options::default());
    assert_eq!((report.frag.datagrams, report.incomplete), (2, 0));
    assert_eq!(report.dropped().count(), 0);
}

/// Comments of all fragments in the order in which they came, and the direction of the first one.
#[test]
fn what_is_noted_of_fragments_is_noted_of_the_datagram() {
    for order in [Order::Little, Order::Big] {
        let option = |code: u16, value: &[u8]| {
            [&order.put16(code)[..], &order.put16(value.len() as u16), value].concat()
        };
        let noted = |word: &[u8; 4], flags: u32| {
            [option(1, word), option(2, &order.put32(flags)), vec![0; 4]].concat()
        };
        let frames = framed(&fragments(&whole(3000), 1480));
        let mut capture = Capture::pcapng_as(order, &[(1, 6)]);
        for (at, word, flags) in [(2, b"last", 2), (0, b"head", 1), (1, b"body", 2)] {
            let (ns, frame) = (1_700_000_000_000_000_000, &frames[at]);
            capture = capture.record(0, ns, frame, frame.len(), &noted(word, flags));
        }
        let (out, _) = convert(&capture.bytes, None, &Options::default());
        let comments = [b"last", b"head", b"body"].map(|word| option(1, word)).concat();
        let expected = [comments, option(2, &order.put32(1)), vec![0; 4]].concat();
        assert_eq!(packets_of(&out).remove(0).options, expected);
    }
}

/// A file may have a link type for each of its packets.
#[test]
fn of_unknown_links_only_some_are_told() {
    let links: Vec<(u16, u8)> = (0..200).map(|n| (1000 + n, 6)).collect();
    let mut capture = Capture::pcapng(&links);
    for interface in (0..200).chain(0..200) {
        capture = capture.record(interface, 0, &[1], 1, &[]);
    }
    let (_, report) = convert(&capture.bytes, None, &Options::default());
    assert_eq!((report.unknown_link, report.unknown_links.len()), (400, UNKNOWN_LINKS_MAX));
    assert!(report.more_unknown_links);
    let few = Capture::pcapng(&[(1, 6), (999, 6)]).record(1, 0, &[1], 1, &[]);
    let (_, report) = convert(&few.bytes, None, &Options::default());
    assert_eq!((report.unknown_links, report.more_unknown_links), (vec![999], false));
}

/// Options of a packet in a pcapng file are as long as the file says, and kept with it.
#[test]
fn options_of_a_fragment_count_for_the_limit() {
    const MEMORY: usize = 1 << 20;
    let config = Config { memory_bytes: MEMORY as u64, ..Config::default() };
    let held = |note: &[u8]| {
        let options = Options { config: config.clone(), ..Options::default() };
        let mut defragmenter = Defragmenter::new(&options).unwrap();
        let mut push = |id: u8, part: &[u8], options| {
            let mut bytes = ethernet(TYPE, part);
            bytes[14 + 5] = id;
            bytes[14 + 10..14 + 12].fill(0);
            let (original_len, time) = (bytes.len() as u32, Time::default());
            let bytes = &bytes[..];
            let order = Order::Little;
            let packet =
                Packet { interface: 0, time, original_len, bytes, options, order, block: None };
            defragmenter.push(&packet, &Interface::new(1), &mut Nowhere).unwrap();
        };
        let parts = fragments(&whole(100), 56);
        // That datagrams are small is learnt from those that complete.
        (0..64).for_each(|id| parts.iter().for_each(|part| push(id, part, &[])));
        (0..=u8::MAX).for_each(|id| push(id, &parts[0], note));
        defragmenter.finish(&mut Nowhere).unwrap().incomplete as usize
    };
    assert_eq!(held(&[]), 256, "there is room for all of them alone");
    let noted = held(&[7; 16 << 10]);
    assert!((16..MEMORY >> 14).contains(&noted), "{noted} with 16 KiB each");
}

/// Takes what is written.
struct Nowhere;

impl Outlet for Nowhere {
    fn packet(&mut self, _: &Packet<'_>) -> Result<(), Error> {
        Ok(())
    }
}

#[test]
fn a_datagram_that_takes_too_long_is_given_up() {
    let frames = framed(&fragments(&whole(100), 56));
    let late = 31_000_000_000;
    let capture = Capture::pcap(1).frame_at(0, &frames[0]).frame_at(late, &frames[1]);
    let (out, report) = convert(&capture.bytes, None, &Options::default());
    assert!(packets_of(&out).is_empty());
    assert_eq!(report.frag.datagrams(Reason::Timeout), 1);
}

/// Three of four datagrams have no last fragment, and all timestamps are the same or hardly differ.
#[test]
fn what_is_never_complete_does_not_take_the_place_of_the_rest_where_time_stands_still() {
    const DATAGRAMS: u32 = 1200;
    let parts = fragments(&whole(65_100), 1480);
    for (step_ns, memory_bytes) in [(0, 16 << 20), (1000, 16 << 20), (100, 4 << 20)] {
        let config = Config { memory_bytes, ..Config::default() };
        let mut all = Defragmenter::new(&Options { config, ..Options::default() }).unwrap();
        let (interface, mut ns) = (Interface::new(1), 0);
        for n in 0..DATAGRAMS {
            let end = if n % 4 == 0 { parts.len() } else { parts.len() - 1 };
            for part in &parts[..end] {
                let mut part = part.clone();
                part[4..6].copy_from_slice(&(n as u16).to_be_bytes());
                // Of another network each 64.
                part[10..16].copy_from_slice(&[0, 0, 10, 0, (n / 64) as u8, n as u8]);
                let bytes = &ethernet(TYPE, &part)[..];
                ns += step_ns;
                let time = Time { ns, stamp: ns };
                let original_len = bytes.len() as u32;
                let (options, order, block) = (&[][..], Order::Little, None);
                let packet =
                    Packet { interface: 0, time, original_len, bytes, options, order, block };
                all.push(&packet, &interface, &mut Nowhere).unwrap();
            }
        }
        let report = all.finish(&mut Nowhere).unwrap();
        let told = report.frag.datagrams;
        assert!(told >= u64::from(DATAGRAMS) / 4 * 9 / 10, "{told} at {step_ns}: {report:?}");
    }
}

/// Of datagrams that came together some are left, and what those that are complete had is free: time passes as the file says,
/// which is not at all.
#[test]
fn memory_that_is_free_again_makes_no_time_pass() {
    const DATAGRAMS: std::ops::Range<u16> = 0..8000;
    let config = Config { memory_bytes: 4 << 20, timeout_v4_ns: SECOND / 2, ..Config::default() };
    let mut all = Defragmenter::new(&Options { config, ..Options::default() }).unwrap();
    let mut push = |network: u8, id: u16, part: &[u8]| {
        let mut bytes = ethernet(TYPE, part);
        bytes[14 + 4..14 + 6].copy_from_slice(&id.to_be_bytes());
        // Of another host each 32.
        let [high, low] = (id / 32).to_be_bytes();
        bytes[14 + 10..14 + 16].copy_from_slice(&[0, 0, 10, network, high, low]);
        let (original_len, time, bytes) = (bytes.len() as u32, Time::default(), &bytes[..]);
        let (options, order) = (&[][..], Order::Little);
        let packet =
            Packet { interface: 0, time, original_len, bytes, options, order, block: None };
        all.push(&packet, &Interface::new(1), &mut Nowhere).unwrap();
    };
    let parts = fragments(&whole(8), 8);
    DATAGRAMS.for_each(|id| push(0, id, &parts[0]));
    DATAGRAMS.filter(|id| id % 3 != 0).for_each(|id| push(0, id, &parts[1]));
    for id in 0..20_000 {
        parts.iter().for_each(|part| push(1, id, part));
    }
    let report = all.finish(&mut Nowhere).unwrap();
    assert_eq!(report.frag.datagrams(Reason::Timeout), 0, "{report:?}");
    assert!(report.incomplete > 0, "some are left");
}

/// One packet with a time far ahead, between the fragments of a datagram.
#[test]
fn a_wrong_time_far_ahead_ends_no_datagram() {
    let frames = framed(&fragments(&whole(3000), 1480));
    let second = 1_000_000_000;
    let capture = Capture::pcap(1).frame_at(1000 * second, &frames[0]);
    let capture = capture.frame_at(4_000_000_000 * second, &ethernet(&[8, 6], &[0; 46]));
    let capture = capture.frame_at(1001 * second, &frames[1]).frame_at(1002 * second, &frames[2]);
    let (_, report) = convert(&capture.bytes, None, &Options::default());
    assert_eq!((report.frag.datagrams, report.incomplete), (1, 0));
}

/// As [`fragments`], of a datagram of its own: `id` in the header, and no checksum there.
fn fragments_of(id: u16, pieces: usize) -> Vec<Vec<u8>> {
    let mut parts = fragments(&whole(56 * pieces - 8), 56);
    for part in &mut parts {
        part[4..6].copy_from_slice(&id.to_be_bytes());
        part[10..12].fill(0);
    }
    framed(&parts)
}

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * SECOND;

/// Of each datagram the first fragment is the first packet after a pause, of one interface or of two, whose clocks may
/// differ. The first of the two has an orphan in progress.
#[test]
fn datagrams_behind_pauses_are_complete() {
    let cases = [(1, 0), (2, 0), (2, 500_000_000)];
    for (pieces, (interfaces, apart)) in [2, 3].into_iter().flat_map(|n| cases.map(|c| (n, c))) {
        let start = |interface| START + u64::from(interface) * apart * SECOND;
        let mut capture = Capture::pcapng(&[(1, 9), (1, 9)]);
        let orphan = &fragments_of(99, 2)[0];
        capture = capture.record(0, START, orphan, orphan.len(), &[]);
        if apart > 0 {
            let other = &ethernet(&[8, 6], &[0; 46]);
            capture = capture.record(1, start(1), other, other.len(), &[]);
        }
        for n in 1..=10 {
            for (at, frame) in (0..).zip(&fragments_of(n, pieces)) {
                for interface in 0..interfaces {
                    let ns = start(interface) + u64::from(n) * 130 * SECOND + at * 10_000;
                    capture = capture.record(interface, ns, frame, frame.len(), &[]);
                }
            }
        }
        let (out, report) = convert(&capture.bytes, None, &Options::default());
        let told = (report.frag.datagrams, report.frag.datagrams(Reason::Timeout));
        let expected = (u64::from(interfaces) * 10, 1);
        assert_eq!((told, report.incomplete), (expected, 0), "{pieces}, {interfaces}, {apart}");
        let is_sorted = packets_of(&out).is_sorted_by_key(|packet| packet.time.ns);
        assert!(is_sorted || apart > 0, "{pieces}, {interfaces}");
    }
}

/// What waits alone behind a pause is as old as its timestamp says once the next one comes.
#[test]
fn a_fragment_in_doubt_is_booked_when_it_came() {
    let frames = fragments_of(1, 2);
    let late = |apart: u64| {
        let capture = Capture::pcap(1).frame_at(START, &ethernet(&[8, 6], &[0; 46]));
        let capture = capture.frame_at(START + 500 * SECOND, &frames[0]);
        let capture = capture.frame_at(START + (500 + apart) * SECOND, &frames[1]);
        convert(&capture.bytes, None, &Options::default()).1.frag.datagrams
    };
    assert_eq!([0, 29, 31, 500].map(late), [1, 1, 0, 0]);
}

/// The only packet with a wrong time is a fragment: last, or followed by one with the time of the others.
#[test]
fn a_fragment_with_a_wrong_time_belongs_to_its_datagram_all_the_same() {
    let frames = fragments_of(1, 3);
    for wrong in 1..3 {
        let mut capture = Capture::pcap(1);
        for (at, frame) in (0..).zip(&frames) {
            let ahead = if at == wrong { 2_000_000_000 } else { 0 };
            capture = capture.frame_at(START + (at + ahead) * SECOND, frame);
        }
        let (_, report) = convert(&capture.bytes, None, &Options::default());
        assert_eq!((report.frag.datagrams, report.incomplete), (1, 0), "{wrong}");
    }
}

/// Many interfaces, whose clocks differ, come to a pause's end with a fragment: not all of these are kept aside, and none is
/// lost.
#[test]
fn only_some_fragments_wait_for_the_next_timestamp() {
    const INTERFACES: u32 = 40;
    let mut capture = Capture::pcapng(&[(1, 9); INTERFACES as usize]);
    for (id, ns) in [(1, START), (2, START + 500 * SECOND)] {
        let frame = &fragments_of(id, 2)[0];
        for interface in 0..INTERFACES {
            capture = capture.record(
                interface,
                ns + u64::from(interface) * 1000 * SECOND,
                frame,
                frame.len(),
                &[],
            );
        }
    }
    let (out, report) = convert(&capture.bytes, None, &keeping());
    assert_eq!((packets_of(&out).len(), report.written), (80, 80));
}

// ----- tunnels -----------------------------------------------------------------------------------

type Tunnel = fn(&[u8]) -> Vec<u8>;

const TUNNELS: [Tunnel; 5] = [
    |inner| ip4(4, 0, inner),
    |inner| ip4(47, 0, &gre(Some(9), None, inner)),
    |inner| ip4(17, 0, &udp(1, 4789, &vxlan(9, inner))),
    |inner| ip4(17, 0, &udp(1, 2152, &gtp(9, &[], inner))),
    |inner| packets::ip6(4, inner),
];

fn in_tunnel(tunnel: Tunnel, inner: &[u8]) -> Vec<u8> {
    let packet = tunnel(inner);
    let kind = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    ethernet(&kind, &packet)
}

#[test]
fn fragments_in_tunnels_are_put_together_if_asked_for() {
    for (at, tunnel) in TUNNELS.into_iter().enumerate() {
        let frames: Vec<_> =
            fragments(&whole(3000), 1400).iter().map(|part| in_tunnel(tunnel, part)).collect();
        assert_eq!(defragment(&frames, &Options::default()).0, frames, "tunnel {at}");
        let (out, report) = defragment(&frames, &tunnelling());
        assert_eq!(out, [in_tunnel(tunnel, &whole(3000))], "tunnel {at}");
        assert_eq!(report.frag.datagrams, 1);
    }
}

/// Fragments of the outer packets, which hold fragments.
#[test]
fn tunnels_are_opened_after_they_are_put_together() {
    let tunnel = TUNNELS[2];
    let outer = fragments(&whole(3000), 1400).into_iter().map(|part| tunnel(&part));
    let frames: Vec<_> = outer.flat_map(|outer| framed(&fragments(&outer, 1000))).collect();
    let (out, report) = defragment(&frames, &tunnelling());
    assert_eq!(out, [in_tunnel(tunnel, &whole(3000))]);
    assert_eq!(report.frag.datagrams, 3, "two outer ones and the inner one");
}

#[test]
fn tunnels_in_tunnels_have_a_limit() {
    let parts = fragments(&whole(100), 56);
    let deep = |part: &[u8], depth: usize| {
        framed(&[(0..depth).fold(part.to_vec(), |inner, _| ip4(4, 0, &inner))]).remove(0)
    };
    for depth in [TUNNELS_MAX, TUNNELS_MAX + 1] {
        let frames: Vec<_> = parts.iter().map(|part| deep(part, depth)).collect();
        let (out, _) = defragment(&frames, &tunnelling());
        assert_eq!(out.len(), if depth == TUNNELS_MAX { 1 } else { 2 });
    }
}

/// Fragment headers in fragment headers in fragment headers.
#[test]
fn headers_in_headers_have_a_limit() {
    // Options stand between them, so that no header of a fragment follows one at once.
    let options = |next| [next, 0, 1, 4, 0, 0, 0, 0];
    let level = [options(44), [60, 0, 0, 0, 0, 0, 0, 1]].concat();
    let packet = [level.repeat(50), options(59).to_vec()].concat();
    let frame = ethernet(&[0x86, 0xdd], &packets::ip6(60, &packet));
    let (out, report) = defragment(std::slice::from_ref(&frame), &tunnelling());
    assert_eq!(report.frag.datagrams, 1 + TUNNELS_MAX as u64);
    assert_eq!(out[0].len(), frame.len() - 8 * (1 + TUNNELS_MAX));
}

#[test]
fn tunnels_of_two_networks_never_meet() {
    let parts = fragments(&whole(100), 56);
    let frame =
        |network, part: &[u8]| ethernet(TYPE, &ip4(17, 0, &udp(1, 4789, &vxlan(network, part))));
    let (out, report) = defragment(&[frame(1, &parts[0]), frame(2, &parts[1])], &tunnelling());
    assert_eq!((out.len(), report.incomplete), (0, 2));
}

/// Tags in a tunnel tell networks apart as those outside do, whatever their number.
#[test]
fn vlans_in_tunnels_never_meet() {
    let parts = fragments(&whole(100), 56);
    let frame = |first: u8, part: &[u8]| {
        let tags = [0x81, 0, first, 0, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 8, 0];
        let inner = [&[8, 0, 0, 0, 0, 0, 7, 0][..], &ethernet(&tags, part)].concat();
        ethernet(TYPE, &ip4(17, 0, &udp(1, 4789, &inner)))
    };
    let (out, report) = defragment(&[frame(1, &parts[0]), frame(2, &parts[1])], &tunnelling());
    assert_eq!((out.len(), report.incomplete), (0, 2));
    let (out, _) = defragment(&[frame(1, &parts[0]), frame(1, &parts[1])], &tunnelling());
    assert_eq!(out, [frame(1, &whole(100))]);
}

/// As [`fragments_of_two_vlans_never_meet`], for sessions and for stacks of tags.
#[test]
fn vlans_and_sessions_never_meet() {
    let parts = fragments(&whole(100), 56);
    let session = |id: u8| [0x88, 0x64, 0x11, 0, 0, id, 0, 78, 0, 0x21];
    let vlan = [0x81, 0, 0, 5, 8, 0];
    let stack = [0x81, 0, 0, 16, 0x81, 0, 0, 2, 8, 0];
    let tagged = [&[0x81, 0, 0, 1][..], &session(2)].concat();
    for (one, other) in [(&vlan[..], &session(5)[..]), (&stack, &tagged)] {
        let frames = [ethernet(one, &parts[0]), ethernet(other, &parts[1])];
        assert_eq!(defragment(&frames, &Options::default()).1.incomplete, 2);
    }
    // A tag that says how urgent a frame is makes no network of its own.
    let frames = [ethernet(TYPE, &parts[0]), ethernet(&[0x81, 0, 0xe0, 0, 8, 0], &parts[1])];
    assert_eq!(defragment(&frames, &Options::default()).1.frag.datagrams, 1);
}

#[test]
fn a_datagram_too_long_for_its_tunnel_stays_in_fragments() {
    let tunnel = TUNNELS[0];
    let frames: Vec<_> =
        fragments(&whole(65_500), 8000).iter().map(|part| in_tunnel(tunnel, part)).collect();
    let (out, report) = defragment(&frames, &tunnelling());
    assert_eq!(out, frames);
    assert_eq!((report.too_long, report.kept), (9, 9));
    assert_eq!((report.frag.datagrams, report.frag.bytes), (0, 0), "none was put together");
}

// ----- whatever a file says -----------------------------------------------------------------------

fn small_captures() -> Vec<Vec<u8>> {
    let frames = framed(&fragments(&whole(60), 24));
    vec![
        Capture::pcap(1).frames(&frames).bytes,
        Capture::pcapng(&[(1, 6), (101, 9)]).frames(&frames).bytes,
    ]
}

#[test]
fn a_file_that_ends_anywhere_gives_what_could_be_read() {
    for whole in small_captures() {
        let all = packets_of(&whole).len() as u64;
        for end in 0..=whole.len() {
            let part = &whole[..end];
            let Ok(_) = Reader::open(part) else {
                assert!(end < 28);
                continue;
            };
            let (out, report) = convert(part, None, &keeping());
            assert_eq!(packets_of(&out).len() as u64, report.written, "cut at {end}");
            assert!(report.damage.is_some() || end >= 24, "cut at {end}");
            assert!(report.packets <= all);
            if let Some(damage) = &report.damage {
                assert!(damage.at < end as u64 && damage.packets == report.packets);
            }
        }
    }
}

proptest! {
    #[test]
    fn changed_files_break_nothing(
        which in 0..2usize,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        tunnels in any::<bool>(),
    ) {
        let mut bytes = small_captures().swap_remove(which);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if Reader::open(&bytes[..]).is_ok() {
            let options = Options { tunnels, ..keeping() };
            let (out, report) = convert(&bytes, None, &options);
            prop_assert_eq!(packets_of(&out).len() as u64, report.written);
        }
    }

    #[test]
    fn frames_of_any_bytes_break_nothing(
        frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..90), 1..20),
        link in prop::sample::select(vec![0u32, 1, 9, 12, 113, 276]),
    ) {
        let bytes = Capture::pcap(link).frames(&frames).bytes;
        let (out, report) = convert(&bytes, None, &Options { tunnels: true, ..keeping() });
        prop_assert_eq!(packets_of(&out).len() as u64, report.written);
    }
}
