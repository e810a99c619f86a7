use super::*;
use proptest::prelude::*;

fn opcodes() -> Vec<Opcode> {
    (0..=255).filter_map(Opcode::from_byte).collect()
}

fn header(opcode: Opcode) -> Header {
    let bth = Bth {
        solicited: true,
        migrated: true,
        pkey: 0x1234,
        fecn: true,
        becn: true,
        ack_request: true,
        ..Bth::new(opcode, Qpn::new(0x0102_0304), Psn::new(0x00aa_bbcc))
    };
    let reth = Reth { address: 0x0102_0304_0506_0708, rkey: 0x090a_0b0c, len: 0x0d0e_0f10 };
    let aeth = Aeth { syndrome: Syndrome::Nak(Nak::RemoteAccess), msn: Psn::new(0x11_2233) };
    Header {
        bth,
        reth: opcode.has_reth().then_some(reth),
        immediate: opcode.has_immediate().then_some(0x1415_1617),
        aeth: (opcode == Opcode::Acknowledge).then_some(aeth),
    }
}

fn emitted(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 5000];
    let len = packet.emit(&mut bytes).unwrap();
    assert_eq!(len + ICRC_BYTES, packet_len(packet.header.bth.opcode, packet.payload.len()));
    bytes.truncate(len + ICRC_BYTES);
    bytes
}

#[test]
fn each_opcode_is_its_number() {
    let bytes: Vec<u8> = opcodes().into_iter().map(Opcode::byte).collect();
    assert_eq!(bytes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x11, 0x81]);
}

#[test]
fn a_write_with_immediate_is_as_the_specification_draws_it() {
    let payload = b"abcde";
    let bytes = emitted(&Packet { header: header(Opcode::Write(Place::Only, true)), payload });
    #[rustfmt::skip]
    assert_eq!(bytes[..bytes.len() - 4], [
        0x0b, 0xc0 | 3 << 4, 0x12, 0x34, 0xc0, 0x02, 0x03, 0x04, 0x80, 0xaa, 0xbb, 0xcc,
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
        0x14, 0x15, 0x16, 0x17,
        b'a', b'b', b'c', b'd', b'e', 0, 0, 0,
    ]);
}

#[test]
fn headers_that_are_not_the_opcodes_are_refused() {
    let mut bytes = [0; 100];
    for opcode in opcodes() {
        let good = header(opcode);
        assert!(good.emit(0, &mut bytes).is_ok());
        assert_eq!(good.emit(0, &mut bytes[..opcode.headers() - 1]), Err(WireError::NoRoom));
        let reth = Some(Reth { address: 0, rkey: 0, len: 0 });
        let wrong = [
            Header { reth: if good.reth.is_some() { None } else { reth }, ..good },
            Header { immediate: if good.immediate.is_some() { None } else { Some(1) }, ..good },
        ];
        for wrong in wrong {
            assert_eq!(wrong.emit(0, &mut bytes), Err(WireError::Headers), "{opcode:?}");
        }
    }
}

#[test]
fn packets_that_are_cut_or_wrong_are_refused() {
    for opcode in opcodes() {
        let bytes = emitted(&Packet { header: header(opcode), payload: &[] });
        for len in 0..bytes.len() {
            assert!(Packet::parse(&bytes[..len]).is_err(), "{opcode:?} {len}");
        }
        let change = |at: usize, to: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = to;
            Packet::parse(&bytes).map(|_| ())
        };
        assert_eq!(change(0, 0x0c), Err(WireError::Opcode(0x0c)));
        assert_eq!(change(1, 0x02), Err(WireError::Version(2)));
        // Padding that is not there.
        assert!(change(1, 0x30).is_err());
    }
    let ack = emitted(&Packet { header: header(Opcode::Acknowledge), payload: &[] });
    let syndrome = |byte| {
        let mut ack = ack.clone();
        ack[12] = byte;
        Packet::parse(&ack).map(|packet| packet.header.aeth.map(|aeth| aeth.syndrome))
    };
    assert_eq!(syndrome(0x1f), Ok(Some(Syndrome::Ack(31))));
    assert_eq!(syndrome(0x25), Ok(Some(Syndrome::Rnr(5))));
    assert_eq!(syndrome(0x60), Ok(Some(Syndrome::Nak(Nak::Sequence))));
    for reserved in [0x40, 0x64, 0x80, 0xff] {
        assert_eq!(syndrome(reserved), Err(WireError::Syndrome(reserved)));
    }
    let mut long = ack.clone();
    long.extend([0; 4]);
    assert_eq!(Packet::parse(&long), Err(WireError::Payload));
    let long =
        emitted(&Packet { header: header(Opcode::Send(Place::Only, false)), payload: &[0; 4097] });
    assert_eq!(Packet::parse(&long), Err(WireError::Oversize));
}

#[test]
fn path_mtu_is_as_linux_has_it() {
    let of = |mtu| Mtu::of_interface(mtu).map(Mtu::bytes);
    assert_eq!(
        [of(335), of(336), of(1500), of(4175), of(4176), of(9000)],
        [None, Some(256), Some(1024), Some(2048), Some(4096), Some(4096)]
    );
    for code in 0..=255 {
        let mtu = Mtu::from_code(code);
        assert_eq!(mtu.map(Mtu::code), (1..=5).contains(&code).then_some(code));
    }
}

#[test]
fn timers_of_receivers_that_are_not_ready() {
    let micros = |code| rnr_nanos(code) / 1000;
    assert_eq!([0, 1, 5, 14, 31, 32 + 5].map(micros), [655_360, 10, 60, 1280, 491_520, 60]);
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        opcode in proptest::sample::select(opcodes()),
        len in 0usize..=4096,
        flags in any::<u8>(),
    ) {
        let alone = matches!(opcode, Opcode::Acknowledge | Opcode::Cnp);
        let payload = vec![0xa5; if alone { 0 } else { len }];
        let mut header = header(opcode);
        let bth = &mut header.bth;
        (bth.solicited, bth.migrated, bth.fecn) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        (bth.becn, bth.ack_request) = (flags & 8 != 0, flags & 16 != 0);
        let packet = Packet { header, payload: &payload };
        let bytes = emitted(&packet);
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(Packet::parse(&bytes), Ok(packet));
    }

    #[test]
    fn any_bytes_are_a_packet_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert!(packet.payload.len() + packet.header.bth.opcode.headers() <= bytes.len());
        }
    }
}
