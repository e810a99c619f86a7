//! Packets of any bytes, one after the other, as a fuzzer and a test make them.

use frag::wire::{self, Fragment, Packet};
use frag::{Arrival, Config, Datagram, HashKey, Ledger, Policy, Released, Shard, Sink};
use testkit::fragments::packet::checksum;

/// The packets; a number stands for the buffer of each.
struct Out<'a> {
    packets: &'a [&'a [u8]],
    returned: usize,
}

impl Sink<usize> for Out<'_> {
    fn whole(&mut self, buffer: usize, len: usize) {
        assert!(len <= self.packets[buffer].len());
        self.returned += 1;
    }

    fn datagram(&mut self, datagram: &Datagram<'_, usize>) {
        let mut packet = vec![0; datagram.packet_len()];
        let written = datagram.write_to(&mut packet, |buffer| self.packets[*buffer]);
        assert_eq!(written, Ok(packet.len()));
        assert_eq!(packet.len(), datagram.header().len() + datagram.payload_len());
        check_whole(&packet, datagram.header());
    }

    fn release(&mut self, _: usize, _: Released) {
        self.returned += 1;
    }
}

/// What came out is a whole packet, of the length that it says.
fn check_whole(packet: &[u8], header: &[u8]) {
    if packet[0] >> 4 == 4 {
        assert_eq!(wire::parse(packet, 0), Ok(Packet::Whole(packet.len())));
        assert_eq!(checksum(header), 0);
    } else {
        let len = usize::from(packet[4]) << 8 | usize::from(packet[5]);
        assert_eq!(len + 40, packet.len());
    }
}

/// What is parsed lies in the packet, and keeps the rules that the rest relies on.
fn check_fragment(f: &Fragment, packet: &[u8]) {
    assert!(f.len > 0 && f.offset.is_multiple_of(8) && f.end() <= 65_535);
    assert!(!f.more || f.len.is_multiple_of(8));
    assert!(f.header_len <= f.payload_at && f.next_at < f.header_len && f.ecn < 4);
    let end = usize::from(f.payload_at) + usize::from(f.len);
    let _ = wire::holds_headers(f.protocol, &packet[usize::from(f.payload_at)..end]);
}

/// Cuts the bytes into packets, and pushes them: once alone, once in bursts.
pub(crate) fn run(bytes: &[u8]) {
    let Some((how, mut rest)) = bytes.split_first() else { return };
    let mut packets = Vec::new();
    while let Some((len, behind)) = rest.split_first() {
        let (packet, behind) = behind.split_at(behind.len().min(usize::from(*len)));
        packets.push(packet);
        rest = behind;
    }
    for packet in &packets {
        if let Ok(Packet::Fragment(fragment)) = wire::parse(packet, 0) {
            check_fragment(&fragment, packet);
        }
    }
    let config = Config {
        memory_bytes: 64 << 10,
        overlap: Policy::ALL[usize::from(*how) % Policy::ALL.len()],
        copy_below: if how & 128 == 0 { 0 } else { 512 },
        whole_header: how & 64 == 0,
        ..Config::default()
    };
    push(&config, &packets, false);
    push(&config, &packets, true);
}

fn push(config: &Config, packets: &[&[u8]], at_once: bool) {
    let limits = config.limits().expect("settings that can be");
    let ledger = Ledger::of(&limits);
    let mut shard = Shard::new(&limits, &ledger, HashKey::new([1, 2]));
    let mut out = Out { packets, returned: 0 };
    let numbered = packets.iter().enumerate();
    let arrivals = numbered.map(|(n, packet)| Arrival { cost: 1000, ..Arrival::new(packet, n) });
    let mut arrivals: Vec<_> = arrivals.collect();
    if at_once {
        shard.push_burst(&mut arrivals, 1, &mut out);
    }
    arrivals.into_iter().for_each(|arrival| shard.push(arrival, 1, &mut out));
    shard.clear(1, &mut out);
    assert_eq!(out.returned, packets.len());
    drop(shard);
    assert_eq!(ledger.left(), ledger.limit());
}
