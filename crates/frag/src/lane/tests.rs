use std::mem::offset_of;

use super::*;
use crate::wire::{self, Packet};

fn v4(id: u16) -> Fragment {
    let key = Key::v4(0xfedc_ba98, 0x7654_3210, id, 253, u64::MAX - 1);
    let (offset, header_len) = (id & 0x1fff, 20 + (id % 11) * 4);
    Fragment {
        key,
        offset: offset * 8,
        len: id | 1,
        payload_at: header_len,
        header_len,
        next_at: V4_NEXT_AT,
        protocol: 253,
        ecn: id.to_le_bytes()[0] & 3,
        more: id & 4 != 0,
        // Any, of a first fragment.
        rest: if offset == 0 { id | 1 & 0x7fff } else { 0 },
    }
}

fn v6(id: u16) -> Fragment {
    let key = Key::v6([u64::MAX - 1, 2], [3, u64::MAX - 4], u32::from(id) << 16 | 0x89ab, 6);
    Fragment { key, payload_at: 0xfff7, header_len: 0xffef, next_at: 0xff07, ..v4(id) }
}

#[test]
fn a_fragment_comes_out_as_it_went_in() {
    let (mut sender, mut receiver) = lane(1000);
    for id in (0..=u16::MAX).step_by(37) {
        for fragment in [v4(id), v6(id), v4(!id)] {
            let ticket = u64::from(id) << 48 | 5;
            assert!(sender.send(&fragment, ticket));
            sender.flush();
            let came: Vec<_> = receiver.receive().collect();
            assert_eq!(came, [(fragment, ticket)]);
        }
    }
}

/// What [`wire::parse`] answers has nothing in it that a lane leaves out.
#[test]
fn so_does_what_was_parsed() {
    let mut packets = Vec::new();
    for (words, flags) in [(5u8, 0x20u8), (6, 0), (15, 0x20)] {
        let mut packet = vec![0x40 | words, 2, 0, 0, 9, 8, flags, 7, 64, 17, 0, 0];
        packet.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet.resize(usize::from(words) * 4 + 16, 0);
        packet[3] = u8::try_from(packet.len()).unwrap();
        packets.push(packet);
    }
    // With a header of options before that of the fragment.
    let mut packet = vec![0x60, 0x10, 0, 0, 0, 32, 60, 64];
    packet.extend(1..=32);
    packet.extend_from_slice(&[44, 0, 0, 0, 0, 0, 0, 0]);
    packet.extend_from_slice(&[17, 0, 0x12, 0x39, 0xde, 0xad, 0xbe, 0xef]);
    packet.resize(40 + 32, 1);
    packets.push(packet);
    let (mut sender, mut receiver) = lane(2);
    for packet in packets {
        let Ok(Packet::Fragment(fragment)) = wire::parse(&packet, 77) else {
            panic!("no fragment");
        };
        assert!(sender.send(&fragment, 1));
        sender.flush();
        assert_eq!(receiver.receive().next(), Some((fragment, 1)));
    }
}

#[test]
fn a_lane_is_full_when_it_is_and_no_sooner() {
    let (mut sender, mut receiver) = lane(5);
    for round in 0..5 {
        assert!((0..8).all(|n| sender.send(&v4(n), u64::from(n))), "round {round}: 8 cells");
        assert!(!sender.send(&v4(8), 8));
        assert_eq!(receiver.receive().next(), None, "not shown yet");
        sender.flush();
        assert!(!sender.send(&v4(8), 8), "nothing was read yet");
        assert_eq!(receiver.receive().take(3).count(), 3);
        assert!(sender.send(&v6(8), 8));
        assert!(!sender.send(&v6(9), 9), "one cell is no room for two");
        assert!(sender.send(&v4(9), 9));
        sender.flush();
        let mut tickets: Vec<u64> = receiver.receive().map(|(_, ticket)| ticket).collect();
        tickets.extend(receiver.receive().map(|(_, ticket)| ticket));
        assert_eq!(tickets, [3, 4, 5, 6, 7, 8, 9], "round {round}");
    }
}

#[test]
fn room_has_bounds() {
    assert_eq!(lane(0).0.lane.cells.len(), 2);
    assert_eq!(lane(u32::MAX).0.lane.cells.len(), 1 << 20);
}

/// What one side writes for each fragment is on no line that the other writes to, nor fetched with one.
#[test]
fn both_ends_write_to_lines_of_their_own() {
    const FETCHED: usize = 128;
    let [sent, received] = [offset_of!(Lane, sent), offset_of!(Lane, received)];
    assert_eq!(align_of::<Lane>() % FETCHED, 0);
    assert!(sent.abs_diff(received) >= FETCHED && size_of::<Count>() == FETCHED);
}
