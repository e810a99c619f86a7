#![expect(clippy::cast_possible_truncation, reason = "numbers in tests are small")]

use super::*;
use crate::defrag::{Defragmenter, Error, Options, Outlet, copy};

/// A capture in the making, its packets a second apart.
#[derive(Clone)]
pub(in crate::defrag) struct Capture {
    pub(in crate::defrag) bytes: Vec<u8>,
    order: Order,
    format: Format,
    /// Units of time in a second, for each interface.
    units: Vec<u64>,
    frames: u64,
}

impl Capture {
    pub(in crate::defrag) fn pcap(link: u32) -> Self {
        Self::pcap_as(Order::Little, PCAP_MICROS, link)
    }

    fn pcap_as(order: Order, magic: u32, link: u32) -> Self {
        let units = vec![if magic == PCAP_NANOS { 1_000_000_000 } else { 1_000_000 }];
        let mut capture = Self { bytes: Vec::new(), order, format: Format::Pcap, units, frames: 0 };
        capture.word(magic);
        capture.bytes.extend(order.put16(2));
        capture.bytes.extend(order.put16(4));
        [0, 0, 1500, link].into_iter().for_each(|n| capture.word(n));
        capture
    }

    /// Interfaces: link type and exponent of ten of the resolution.
    pub(in crate::defrag) fn pcapng(interfaces: &[(u16, u8)]) -> Self {
        Self::pcapng_as(Order::Little, interfaces)
    }

    pub(in crate::defrag) fn pcapng_as(order: Order, interfaces: &[(u16, u8)]) -> Self {
        let units =
            interfaces.iter().map(|(_, exponent)| 10u64.pow(u32::from(*exponent))).collect();
        let mut capture =
            Self { bytes: Vec::new(), order, format: Format::Pcapng, units, frames: 0 };
        let half = |n| order.put16(n);
        let magic = order.put32(ORDER_MAGIC);
        capture = capture.block(SECTION, &[&magic[..], &half(1), &half(0), &[0; 8]].concat());
        for (link, exponent) in interfaces {
            let head = [half(*link), half(0)].concat();
            let option = [&half(9)[..], &half(1), &[*exponent, 0, 0, 0], &[0; 4]].concat();
            capture = capture.block(INTERFACE, &[&head, &order.put32(1500)[..], &option].concat());
        }
        capture
    }

    fn word(&mut self, n: u32) {
        let word = self.order.put32(n);
        self.bytes.extend(word);
    }

    pub(in crate::defrag) fn block(mut self, kind: u32, body: &[u8]) -> Self {
        let len = 12 + body.len().next_multiple_of(4);
        self.word(kind);
        self.word(len as u32);
        self.bytes.extend_from_slice(body);
        self.bytes.extend(vec![0; len - 12 - body.len()]);
        self.word(len as u32);
        self
    }

    pub(in crate::defrag) fn frames(mut self, frames: &[Vec<u8>]) -> Self {
        for frame in frames {
            self = self.cut(frame, frame.len());
        }
        self
    }

    pub(in crate::defrag) fn frame_at(self, ns: u64, frame: &[u8]) -> Self {
        self.record(0, ns, frame, frame.len(), &[])
    }

    /// A frame of which `len` bytes were recorded.
    pub(in crate::defrag) fn cut(mut self, frame: &[u8], len: usize) -> Self {
        self.frames += 1;
        let ns = (1_700_000_000 + self.frames) * 1_000_000_000 + self.frames * 1000;
        self.record(0, ns, frame, len, &[])
    }

    pub(in crate::defrag) fn record(
        mut self,
        interface: u32,
        ns: u64,
        frame: &[u8],
        len: usize,
        more: &[u8],
    ) -> Self {
        let (len32, all32) = (len as u32, frame.len() as u32);
        let units = self.units[interface as usize];
        if self.format == Format::Pcap {
            let fraction = ns % 1_000_000_000 / (1_000_000_000 / units);
            let seconds = (ns / 1_000_000_000) as u32;
            [seconds, fraction as u32, len32, all32].into_iter().for_each(|n| self.word(n));
            self.bytes.extend_from_slice(&frame[..len]);
            return self;
        }
        let stamp = (u128::from(ns) * u128::from(units) / 1_000_000_000) as u64;
        let words = [interface, (stamp >> 32) as u32, stamp as u32, len32, all32];
        let mut body: Vec<u8> = words.into_iter().flat_map(|n| self.order.put32(n)).collect();
        body.extend_from_slice(&frame[..len]);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend_from_slice(more);
        self.block(ENHANCED_PACKET, &body)
    }
}

/// A packet of a file, by our own reader.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::defrag) struct Got {
    pub(in crate::defrag) bytes: Vec<u8>,
    pub(in crate::defrag) time: Time,
    pub(in crate::defrag) original_len: u32,
    interface: u32,
    pub(in crate::defrag) options: Vec<u8>,
}

pub(in crate::defrag) fn packets_of(bytes: &[u8]) -> Vec<Got> {
    let mut reader = Reader::open(bytes).unwrap();
    let mut packets = Vec::new();
    while let Ok(Some(item)) = reader.advance() {
        if let Item::Packet(place) = &item {
            let packet = reader.packet(place);
            packets.push(Got {
                bytes: packet.bytes.to_vec(),
                time: packet.time,
                original_len: packet.original_len,
                interface: packet.interface,
                options: packet.options.to_vec(),
            });
        }
    }
    packets
}

fn copied(bytes: &[u8], format: Format) -> Result<Vec<u8>, Error> {
    let mut reader = Reader::open(bytes)?;
    let mut out = Vec::new();
    let mut writer = Writer::like(&mut out, format, &reader)?;
    let mut defragmenter = Defragmenter::new(&Options::default())?;
    let report = copy(&mut reader, &mut writer, &mut defragmenter, &mut |_, _| Ok(()))?;
    assert!(report.damage.is_none(), "{:?}", report.damage);
    Ok(out)
}

fn frames() -> Vec<Vec<u8>> {
    (1..=5u8).map(|n| vec![n; 11 + usize::from(n)]).collect()
}

#[test]
fn pcap_in_each_order_and_resolution_is_copied() {
    for order in [Order::Little, Order::Big] {
        for magic in [PCAP_MICROS, PCAP_NANOS] {
            let capture = Capture::pcap_as(order, magic, 1).frames(&frames());
            let out = copied(&capture.bytes, Format::Pcap).unwrap();
            let mut expected = capture.bytes.clone();
            expected[16..20].copy_from_slice(&order.put32(SNAPLEN));
            assert_eq!(out, expected);
            let times: Vec<u64> = packets_of(&out).iter().map(|got| got.time.ns % 10_000).collect();
            assert_eq!(times, [1000, 2000, 3000, 4000, 5000]);
        }
    }
}

#[test]
fn blocks_of_pcapng_are_copied() {
    for order in [Order::Little, Order::Big] {
        let comment = [&order.put16(1)[..], &order.put16(5), b"hello\0\0\0", &[0; 4]].concat();
        let capture = Capture::pcapng_as(order, &[(1, 6), (101, 9), (113, 3)])
            .frames(&frames())
            .block(4, b"names of hosts")
            .record(1, 1_234_567_890_123_456_789, &[0x45], 1, &comment)
            .record(2, 1_234_567_890_123_000_000, &[1; 20], 20, &[])
            .block(5, &[0; 12])
            .block(0x0bad, &[1; 8]);
        let out = copied(&capture.bytes, Format::Pcapng).unwrap();
        // All that differs: the length of the section, and three snap lengths.
        let different = out.iter().zip(&capture.bytes).filter(|(a, b)| a != b).count();
        assert_eq!(out.len(), capture.bytes.len());
        assert!((8..=8 + 3 * 3).contains(&different), "{different}");
        let packets = packets_of(&out);
        assert_eq!(packets, packets_of(&capture.bytes));
        assert_eq!(packets[5].time.ns, 1_234_567_890_123_456_789);
        assert_eq!(packets[5].options, comment);
        assert_eq!(packets[6].time.ns, 1_234_567_890_123_000_000);
        assert_eq!((packets[6].interface, packets[6].time.stamp), (2, 1_234_567_890_123));
    }
}

#[test]
fn sections_may_differ_in_order() {
    let mut bytes = Capture::pcapng_as(Order::Little, &[(1, 6)]).frames(&frames()).bytes;
    bytes.extend(Capture::pcapng_as(Order::Big, &[(101, 9), (1, 6)]).frames(&frames()).bytes);
    let out = copied(&bytes, Format::Pcapng).unwrap();
    assert_eq!(packets_of(&out), packets_of(&bytes));
    assert_eq!(packets_of(&out).len(), 10);
}

#[test]
fn one_format_becomes_the_other() {
    let plain = |packets: Vec<Got>| -> Vec<_> {
        packets.into_iter().map(|got| (got.bytes, got.time.ns, got.original_len)).collect()
    };
    for capture in [
        Capture::pcap_as(Order::Big, PCAP_MICROS, 1),
        Capture::pcap_as(Order::Little, PCAP_NANOS, 1),
        Capture::pcapng_as(Order::Big, &[(1, 6)]),
    ] {
        let capture = capture.frames(&frames()).cut(&[7; 50], 20);
        for format in [Format::Pcap, Format::Pcapng] {
            let out = copied(&capture.bytes, format).unwrap();
            assert_eq!(Reader::open(&out[..]).unwrap().format(), format);
            assert_eq!(plain(packets_of(&out)), plain(packets_of(&capture.bytes)));
        }
    }
    let nothing = copied(&Capture::pcapng(&[]).bytes, Format::Pcap).unwrap();
    assert!(packets_of(&nothing).is_empty());
    let two = Capture::pcapng(&[(1, 6), (101, 6)]).frames(&frames());
    assert!(matches!(copied(&two.bytes, Format::Pcap), Err(Error::LinksDiffer(1, 101))));
}

/// Interfaces of which one alone promises checksums.
#[test]
fn pcap_has_one_rule_for_checksums() {
    let order = Order::Little;
    let head = [&order.put16(1)[..], &[0; 6]].concat();
    let option = [&order.put16(13)[..], &order.put16(1), &[4, 0, 0, 0], &[0; 4]].concat();
    let capture = Capture::pcapng(&[(1, 6)]).block(INTERFACE, &[head, option].concat());
    let bytes = capture.frames(&frames()).bytes;
    assert!(matches!(copied(&bytes, Format::Pcap), Err(Error::ChecksumsDiffer)));
    assert!(copied(&bytes, Format::Pcapng).is_ok());
    let plain = Interface::of_word;
    assert_eq!([0x2400_0001, 0x2000_0001, 1].map(|word| plain(word).word()), [0x2400_0001, 1, 1]);
    assert_eq!((plain(0x2400_0001).link, plain(0x2400_0001).fcs_bytes), (1, 4));
}

#[test]
fn simple_blocks_that_were_cut_get_a_length() {
    let order = Order::Little;
    let body = |len: u32, bytes: &[u8]| [&order.put32(len)[..], bytes].concat();
    let capture = Capture::pcapng(&[(1, 6)])
        .frames(&frames())
        .block(SIMPLE_PACKET, &body(7, &[3; 7]))
        .block(SIMPLE_PACKET, &body(9000, &[4; 1500]));
    let packets = packets_of(&copied(&capture.bytes, Format::Pcapng).unwrap());
    assert_eq!(packets.len(), 7);
    assert_eq!(packets[5].bytes, [3; 7]);
    assert_eq!((packets[6].bytes.len(), packets[6].original_len), (1500, 9000));
    assert_eq!(packets[6].time, packets[4].time);
}

/// A simple block is of interface 0, whose units need not be those of the packet before it.
#[test]
fn simple_blocks_have_a_time_in_the_units_of_their_interface() {
    let order = Order::Little;
    let ns = 1_700_000_000_123_456_000;
    // Cut, so that it is written with a time.
    let simple = [&order.put32(9000)[..], &[4; 1500]].concat();
    let capture = Capture::pcapng(&[(1, 6), (1, 9)])
        .record(1, ns, &[3; 20], 20, &[])
        .block(SIMPLE_PACKET, &simple)
        .block(SIMPLE_PACKET, &simple);
    let packets = packets_of(&copied(&capture.bytes, Format::Pcapng).unwrap());
    let times: Vec<_> = packets.iter().map(|got| (got.interface, got.time.ns)).collect();
    assert_eq!(times, [(1, ns), (0, ns), (0, ns)]);
    assert_eq!(packets[1].time.stamp, ns / 1000);
    // In another section the numbers of interfaces mean others.
    let next = Capture::pcapng(&[(1, 9)]).block(SIMPLE_PACKET, &simple).bytes;
    let bytes = [Capture::pcapng(&[(1, 6)]).frames(&frames()).bytes, next].concat();
    let packets = packets_of(&copied(&bytes, Format::Pcapng).unwrap());
    assert_eq!(packets[5].time.ns, packets[4].time.ns);
}

#[test]
fn a_section_does_not_describe_more_interfaces_than_there_may_be() {
    let description = Capture::pcapng(&[(1, 6)]).bytes.split_off(28);
    let mut bytes = Capture::pcapng(&[]).bytes;
    bytes.extend(description.repeat(65_536));
    let all = |bytes: &[u8]| {
        let mut reader = Reader::open(bytes).unwrap();
        while reader.advance()?.is_some() {}
        Ok::<_, Damage>(reader.interfaces().len())
    };
    assert_eq!(all(&bytes).unwrap(), 65_536);
    // Each section has its own.
    assert_eq!(all(&[&bytes[..], &bytes].concat()).unwrap(), 65_536);
    bytes.extend(description);
    assert!(matches!(all(&bytes).unwrap_err().why, Why::Interfaces));
}

#[test]
fn units_and_offsets_of_time() {
    let order = Order::Big;
    let option = |code: u16, value: &[u8]| {
        [&order.put16(code)[..], &order.put16(value.len() as u16), value].concat()
    };
    let ns = |options: &[u8], stamp| {
        let block = [&[0; 16], options, &[0; 4]].concat();
        read::describe(order, &block).ns(stamp)
    };
    assert_eq!(ns(&[], 1_500_000), 1_500_000_000);
    assert_eq!(ns(&option(9, &[9, 0, 0, 0]), 5), 5);
    let binary = [&order.put16(9)[..], &order.put16(1), &[0x81, 0, 0, 0]].concat();
    assert_eq!(ns(&binary, 3), 1_500_000_000);
    assert_eq!(ns(&option(14, &10i64.to_be_bytes()), 0), 10_000_000_000);
    assert_eq!(ns(&option(14, &(-10i64).to_be_bytes()), 11_000_000), 1_000_000_000);
    assert_eq!(ns(&option(9, &[0xff, 0, 0, 0]), u64::MAX), 1_000_000_000, "2^-127 s");
    assert_eq!(ns(&[0, 9, 0xff, 0xff, 1], 1_000_000), 1_000_000_000, "an option that ends behind");
}

#[test]
fn damage_is_told_with_its_place() {
    let damage = |bytes: &[u8]| {
        let mut reader = Reader::open(bytes).unwrap();
        loop {
            match reader.advance() {
                Ok(item) => assert!(item.is_some(), "no damage"),
                Err(damage) => break damage,
            }
        }
    };
    let mut pcap = Capture::pcap(1).frames(&frames()).bytes;
    let second = 24 + 16 + 12;
    pcap[second + 8..second + 12].fill(0xff);
    let found = damage(&pcap);
    assert_eq!((found.at, found.packets), (second as u64, 1));
    assert!(matches!(found.why, Why::Length(u32::MAX)));
    let no_interface = Capture::pcapng(&[(1, 6)]);
    let bytes = no_interface.clone().block(ENHANCED_PACKET, &[9; 40]).bytes;
    assert!(matches!(damage(&bytes).why, Why::Interface(0x0909_0909)));
    let mut bytes = no_interface.frames(&frames()).bytes;
    let last = bytes.len() - 1;
    bytes[last] = 1;
    assert!(matches!(damage(&bytes).why, Why::Trailer(..)));
}

/// As some writers have it: padded, and the padding not counted.
#[test]
fn a_length_that_is_no_multiple_of_four_is_rounded_up() {
    let capture = Capture::pcapng(&[(1, 6)]);
    let begin = capture.bytes.len();
    let mut bytes = capture.clone().block(5, &[9; 10]).bytes;
    let (words, end) = (Order::Little.put32(22), bytes.len());
    bytes[begin + 4..begin + 8].copy_from_slice(&words);
    bytes[end - 4..].copy_from_slice(&words);
    let rest = capture.clone().frames(&frames()).bytes.split_off(begin);
    bytes.extend(&rest);
    assert_eq!(packets_of(&bytes).len(), frames().len());
    // What is written has lengths as they should be.
    let mut reader = Reader::open(&bytes[..]).unwrap();
    (0..3).for_each(|_| _ = reader.advance().unwrap());
    let good = capture.block(5, &[9; 10]).bytes;
    assert_eq!(reader.block(), &good[begin..]);
    assert!(reader.holds_next(&rest));
    bytes[end - 4] = 21;
    let mut reader = Reader::open(&bytes[..]).unwrap();
    (0..2).for_each(|_| _ = reader.advance().unwrap());
    assert!(matches!(reader.advance().unwrap_err().why, Why::Trailer(22, 21)));
}

/// By libpcap as patched in the nineties, and by some devices to this day: with 8 bytes more before each packet.
#[test]
fn captures_with_longer_records_are_read() {
    for order in [Order::Little, Order::Big] {
        let plain = Capture::pcap_as(order, PCAP_MICROS, 1).frames(&frames()).bytes;
        let mut bytes = plain[..24].to_vec();
        bytes[..4].copy_from_slice(&order.put32(0xa1b2_cd34));
        let mut rest = &plain[24..];
        while !rest.is_empty() {
            let len = order.u32(rest, 8) as usize;
            bytes.extend(&rest[..16]);
            bytes.extend([1, 2, 3, 4, 5, 6, 7, 8]);
            bytes.extend(&rest[16..16 + len]);
            rest = &rest[16 + len..];
        }
        assert_eq!(packets_of(&bytes), packets_of(&plain));
        let reader = Reader::open(&bytes[..]).unwrap();
        assert_eq!(reader.header(), &plain[..24], "of what is written");
        let first = 24 + frames()[0].len();
        assert!(!reader.holds_next(&bytes[24..24 + first - 1]));
        assert!(reader.holds_next(&bytes[24..24 + first]));
    }
}

#[test]
fn what_is_no_capture_is_refused() {
    for bytes in [&b"\x1f\x8b\x08\0compressed"[..], b"GET / HTTP/1.1", &[0; 64]] {
        assert!(matches!(Reader::open(bytes), Err(Error::NoCapture)));
    }
    assert!(matches!(Reader::open(&b""[..]), Err(Error::Damaged(_))));
    assert!(matches!(Reader::open(&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0][..]), Err(Error::Damaged(_))));
}

#[test]
fn packets_from_elsewhere_are_written() {
    for format in [Format::Pcap, Format::Pcapng] {
        let mut out = Vec::new();
        let mut writer = Writer::fresh(&mut out, format, &[1]).unwrap();
        let time = Time { ns: 1_700_000_000_123_456_789, stamp: 0 };
        let bytes = &[1, 2, 3];
        let (options, order) = (&Order::Big.put32(0x0001_0002)[..], Order::Big);
        let options = &[options, b"hi\0\0", &[0; 4]].concat();
        let packet =
            Packet { interface: 0, time, original_len: 3, bytes, options, order, block: None };
        writer.packet(&packet).unwrap();
        let packets = packets_of(&out);
        if format == Format::Pcapng {
            assert_eq!(packets[0].options, *b"\x01\0\x02\0hi\0\0\0\0\0\0");
        }
        assert_eq!((packets[0].bytes.as_slice(), packets[0].time.ns), (&bytes[..], time.ns));
    }
}
