//! For all sizes and numbers: what is sent arrives.

use proptest::prelude::*;
use roce::*;

use crate::hosts::{Setup, exchange};

const NOW: Time = Time::from_nanos(1);

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn messages_of_any_size_arrive_by_any_mtu(
        mtu in 1u8..=5,
        // Around the places where numbers go round and where their difference changes its sign.
        psn in prop_oneof![0xff_fff0u32..0x100_0000, 0u32..16, 0x7f_fff0u32..0x80_0010],
        lens in proptest::collection::vec((0u32..9000, 0u32..9000), 1..5),
        window in 1u16..40,
        at in 0u64..100,
    ) {
        let mtu = Mtu::from_code(mtu).unwrap();
        let rts = RtsAttributes { window, ..RtsAttributes::new(Psn::default()) };
        let setup = Setup { mtu, psns: [Psn::new(psn), Psn::new(!psn)], rts, ..Setup::default() };
        let mut hosts = setup.hosts();
        let [a, b] = &mut hosts;
        let bytes: Vec<u8> = (0..20_000u32).map(|n| n.wrapping_mul(0x9e37_79b1).to_be_bytes()[0]).collect();
        let source = a.buffer(1 << 40, bytes.clone(), Access::READ);
        let ring = b.buffer(7, vec![0; 20_000], Access::REMOTE_WRITE);
        let inbox = b.buffer(0, vec![0; 20_000], Access::LOCAL_WRITE);
        for (id, (first, second)) in (0..).zip(lens) {
            let [a, b] = &mut hosts;
            let piece = |from: u64, len| Piece { key: source, address: (1 << 40) + from, len };
            let pieces = [piece(at, first), piece(at + u64::from(second), second)];
            let expected: Vec<u8> = pieces
                .iter()
                .flat_map(|piece| {
                    let from = usize::try_from(piece.address - (1 << 40)).unwrap();
                    bytes[from..from + usize::try_from(piece.len).unwrap()].to_vec()
                })
                .collect();
            // The request has two pieces as well, cut elsewhere.
            let cut = (first + second) / 3;
            let room = [
                Piece { key: inbox, address: 1, len: cut },
                Piece { key: inbox, address: 1 + u64::from(cut), len: 19_000 },
            ];
            b.device.post_receive(b.qpn, &ReceiveRequest { id, pieces: &room }).unwrap();
            a.post(id * 2, Operation::Send, Source::Pieces(&pieces)).unwrap();
            let operation = Operation::Write { address: 7 + at, rkey: ring.0 };
            a.post(id * 2 + 1, operation, Source::Pieces(&pieces)).unwrap();
            exchange(&mut hosts, NOW);
            let [a, b] = &mut hosts;
            let status = Status::Success;
            prop_assert_eq!(a.done(), [(id * 2, status), (id * 2 + 1, status)]);
            let received = b.completions();
            prop_assert_eq!(received.len(), 1);
            prop_assert_eq!((received[0].id, received[0].bytes), (id, first + second));
            let len = expected.len();
            let from = usize::try_from(at).unwrap();
            prop_assert_eq!(&b.memory.all[0][from..from + len], &expected[..]);
            prop_assert_eq!(&b.memory.all[1][1..1 + len], &expected[..]);
        }
        prop_assert_eq!(hosts[0].device.counters().retransmitted, 0);
    }
}
