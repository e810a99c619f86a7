use super::*;
use proptest::prelude::*;

fn v4(src_port: u16) -> Flow {
    let addresses = Addresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
    Flow { addresses, src_port }
}

fn v6() -> Flow {
    let addresses = Addresses::V6 { src: Ipv6Addr::LOCALHOST, dst: Ipv6Addr::UNSPECIFIED };
    Flow { addresses, src_port: 49_152 }
}

/// Bit by bit, from the definition: nothing in common with the code but the polynomial.
fn slow(flow: &Flow, identification: u16, transport: &[u8]) -> u32 {
    let len = u16::try_from(transport.len() + 4 + 8).unwrap();
    let mut bytes = vec![0xff; 8];
    match flow.addresses {
        Addresses::V4 { src, dst } => {
            bytes.extend([0x45, 0xff]);
            bytes.extend((len + 20).to_be_bytes());
            bytes.extend(identification.to_be_bytes());
            bytes.extend([0x40, 0, 0xff, 17, 0xff, 0xff]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
        Addresses::V6 { src, dst } => {
            bytes.extend([0x6f, 0xff, 0xff, 0xff]);
            bytes.extend(len.to_be_bytes());
            bytes.extend([17, 0xff]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
    }
    bytes.extend(flow.src_port.to_be_bytes());
    bytes.extend(4791u16.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes.extend([0xff, 0xff]);
    let bth = bytes.len();
    bytes.extend(transport);
    bytes[bth + 4] = 0xff;
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
        }
    }
    !crc
}

fn sealed(flow: &Flow, identification: u16, transport: &[u8]) -> Vec<u8> {
    let mut packet = transport.to_vec();
    packet.extend([0; 4]);
    assert_eq!(seal(flow, identification, &mut packet, transport.len()), Some(packet.len()));
    packet
}

#[test]
fn fields_that_routers_change_do_not_count() {
    let mut transport = [7; 40];
    let before = compute(&v4(1), 5, &transport);
    transport[4] = 0;
    assert_eq!(compute(&v4(1), 5, &transport), before);
    transport[5] = 0;
    assert_ne!(compute(&v4(1), 5, &transport), before);
}

#[test]
fn short_and_long_nonsense_does_not_panic() {
    for len in [0, 1, 3, 4, 5, 8, 4097, 4136, 4140, 5000, 70_000] {
        for known in [Identification::Unknown, Identification::Known(3)] {
            assert_eq!(check(&v4(9), known, &vec![1; len]), Err(Mismatch), "{len}");
        }
    }
    assert_eq!(seal(&v6(), 0, &mut [0; 10], 7), None);
}

#[test]
fn the_longest_packet_can_be_solved() {
    let packet = sealed(&v4(4791), 0xbeef, &[3; TRANSPORT_MAX]);
    assert_eq!(check(&v4(4791), Identification::Unknown, &packet), Ok(0xbeef));
}

#[test]
fn no_single_wrong_bit_is_taken_for_another_identification() {
    // The difference that one wrong bit makes, so many bits behind the first of the identification and
    // moved back to there. In the first 16 it is the identification.
    let mut difference = 1u32;
    for bit in 1..(BEHIND_ID + TRANSPORT_MAX + 4) * 8 {
        difference = divide_by_x(difference);
        assert_eq!(difference >> 16 == 0, bit < 16, "{bit}");
    }
}

#[test]
fn one_broken_packet_in_65536_passes_unknown_and_none_known() {
    // Any difference of the stored CRC is as likely to be solvable as another: the strength claimed.
    let packet = sealed(&v4(4791), 0, &[0x5a; 64]);
    let (mut unknown, mut below) = (0, 0);
    for broken in 1..=1u32 << 18 {
        let mut packet = packet.clone();
        let crc = packet.last_chunk_mut().unwrap();
        *crc = (u32::from_le_bytes(*crc) ^ broken.wrapping_mul(0x9e37_79b1)).to_le_bytes();
        unknown += u32::from(check(&v4(4791), Identification::Unknown, &packet).is_ok());
        below += u32::from(check(&v4(4791), Identification::Below(64), &packet).is_ok());
    }
    assert!((1..=14).contains(&unknown), "{unknown} of 4 expected");
    assert!(below <= 1, "{below}");
}

proptest! {
    #[test]
    fn agrees_with_the_definition(
        identification in any::<u16>(),
        words in 3usize..80,
        seed in any::<u8>(),
        port in any::<u16>(),
    ) {
        let transport: Vec<u8> = (0..words * 4).map(|n| (n * 31 % 251).to_le_bytes()[0] ^ seed).collect();
        for flow in [v4(port), v6()] {
            prop_assert_eq!(
                compute(&flow, identification, &transport),
                slow(&flow, identification, &transport)
            );
        }
    }

    #[test]
    fn the_identification_is_found_and_one_wrong_bit_is_seen(
        identification in any::<u16>(),
        words in 3usize..300,
        bit in any::<proptest::sample::Index>(),
    ) {
        let flow = v4(4791);
        let mut packet = sealed(&flow, identification, &vec![0xa5; words * 4]);
        prop_assert_eq!(check(&flow, Identification::Unknown, &packet), Ok(identification));
        prop_assert_eq!(check(&flow, Identification::Known(identification), &packet), Ok(identification));
        prop_assert_eq!(
            check(&flow, Identification::Known(!identification), &packet),
            Err(Mismatch)
        );
        if identification > 0 {
            prop_assert_eq!(
                check(&flow, Identification::Below(identification), &packet),
                Err(Mismatch)
            );
        }
        let bit = bit.index(packet.len() * 8);
        // FECN, BECN and reserved bits are not covered.
        prop_assume!(bit / 8 != 4);
        packet[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(check(&flow, Identification::Unknown, &packet), Err(Mismatch));
    }

    #[test]
    fn what_came_before_changes_nothing(
        packets in proptest::collection::vec((any::<u16>(), 3usize..40, any::<bool>(), any::<u16>()), 1..20),
        opcode in any::<u8>(),
    ) {
        let (mut out, mut back) = (Last::default(), Last::default());
        for (identification, words, is_v4, likely) in packets {
            let flow = if is_v4 { v4(4791) } else { v6() };
            let mut packet = vec![opcode; words * 4 + 4];
            prop_assert_eq!(out.seal(&flow, identification, &mut packet, words * 4), Some(words * 4 + 4));
            prop_assert_eq!(&packet[words * 4..], &slow(&flow, identification, &packet[..words * 4]).to_le_bytes());
            let found = if is_v4 { identification } else { 0 };
            for likely in [likely, identification, 0] {
                let checked = back.check(&Nothing, &flow, Identification::Unknown, likely, &packet);
                prop_assert_eq!(checked, Ok(found));
                if identification < 64 {
                    let checked = back.check(&Nothing, &flow, Identification::Below(64), likely, &packet);
                    prop_assert_eq!(checked, Ok(found));
                }
            }
            packet[words * 2] ^= 4;
            let masked = words * 2 == 4;
            let checked = back.check(&Nothing, &flow, Identification::Unknown, identification, &packet);
            prop_assert!(masked || checked == Err(Mismatch), "{checked:?}");
        }
    }
}

#[test]
fn what_comes_next_is_guessed() {
    let guessed = |came: &[u16]| {
        let mut count = Count::default();
        let right = came.iter().filter(|id| {
            let right = count.next() == **id;
            count.came(**id);
            right
        });
        right.count()
    };
    assert_eq!(guessed(&[0; 100]), 100);
    let burst: Vec<u16> = (0..62).collect();
    // Where a burst ends is not known, and that the first is one neither.
    assert_eq!(guessed(&burst.repeat(10)), 62 * 10 - 10);
    assert_eq!(guessed(&[0, 1, 2, 0, 0, 0, 0]), 4);
}
