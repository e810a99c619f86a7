//! What the specification says of one thing at a time, on a network that does what the test says.

use roce::wire::{Aeth, Bth, Header, Nak, Opcode, Packet, Place, Reth, Syndrome};
use roce::*;

use crate::hosts::{DOMAIN, Host, Setup, exchange};

const NOW: Time = Time::from_nanos(1_000_000_000);
const RING_AT: u64 = 0x10_0000;

fn after(nanos: u64) -> Time {
    NOW.plus_nanos(nanos)
}

/// Two hosts; the second has a ring of 4096 bytes and receives up to 100 bytes each in `receives`
/// requests. The first has 4096 bytes to write from, each what its place is.
fn hosts(setup: &Setup, receives: u64) -> ([Host; 2], Key, Key) {
    let [mut a, mut b] = setup.hosts();
    let source: Vec<u8> = (0..4096u32).map(|n| n.to_le_bytes()[0]).collect();
    let source = a.buffer(0, source, Access::READ);
    let ring = b.buffer(RING_AT, vec![0; 4096], Access::REMOTE_WRITE);
    let inbox = b.buffer(0, vec![0; 1000], Access::LOCAL_WRITE);
    for id in 0..receives {
        b.post_receive(id, inbox, id * 100, 100);
    }
    ([a, b], source, ring)
}

fn write(host: &mut Host, id: u64, key: Key, rkey: Key, len: u32) {
    let source = [Piece { key, address: 0, len }];
    let operation = Operation::Write { address: RING_AT, rkey: rkey.0 };
    host.post(id, operation, Source::Pieces(&source)).unwrap();
}

fn psns(packets: &[(Flow, Vec<u8>)]) -> Vec<u32> {
    packets.iter().map(|(_, bytes)| header(bytes).bth.psn.value()).collect()
}

fn header(bytes: &[u8]) -> Header {
    Packet::parse(bytes).unwrap().header
}

fn syndrome(host: &mut Host, now: Time) -> (u32, Syndrome, u32) {
    let (_, bytes) = host.packet(now).expect("an answer");
    let Header { bth, aeth, .. } = header(&bytes);
    let Aeth { syndrome, msn } = aeth.unwrap();
    assert!(host.packet(now).is_none(), "one answer only");
    (bth.psn.value(), syndrome, msn.value())
}

const ACK: Syndrome = Syndrome::Ack(31);

#[test]
fn numbers_go_round_in_the_middle_of_a_message() {
    let ([mut a, mut b], source, ring) = hosts(&Setup::default(), 0);
    write(&mut a, 7, source, ring, 1000);
    let packets = a.packets(NOW);
    assert_eq!(psns(&packets), [0xff_fffe, 0xff_ffff, 0, 1]);
    for (flow, bytes) in &packets {
        b.take(NOW, *flow, bytes).unwrap();
    }
    assert_eq!(syndrome(&mut b, NOW), (1, ACK, 1));
    assert_eq!(b.memory.all[0][..1000], a.memory.all[0][..1000]);
    assert_eq!(b.memory.all[0][1000..], [0; 3096]);
}

#[test]
fn a_gap_is_told_once_and_everything_behind_it_sent_again() {
    let ([mut a, mut b], source, ring) = hosts(&Setup::default(), 0);
    write(&mut a, 7, source, ring, 1500);
    let packets = a.packets(NOW);
    for (flow, bytes) in packets.iter().enumerate().filter(|(at, _)| *at != 2).map(|(_, p)| p) {
        _ = b.take(NOW, *flow, bytes);
    }
    let (flow, nak) = b.packet(NOW).unwrap();
    assert_eq!(header(&nak).aeth.unwrap().syndrome, Syndrome::Nak(Nak::Sequence));
    assert_eq!(header(&nak).bth.psn.value(), 0);
    assert!(b.packet(NOW).is_none());
    assert_eq!(a.take(NOW, flow, &nak), Ok(Outcome::Resend));
    let again = a.packets(NOW);
    assert_eq!(psns(&again), [0, 1, 2, 3]);
    for (flow, bytes) in &again {
        b.take(NOW, *flow, bytes).unwrap();
    }
    assert_eq!(syndrome(&mut b, NOW), (3, ACK, 1));
    assert_eq!(b.memory.all[0][..1500], a.memory.all[0][..1500]);
    assert_eq!((a.device.counters().retransmitted, b.device.counters().naks_out), (4, 1));
    let view = a.device.qp(a.qpn).unwrap();
    assert_eq!((view.packets_out, view.retransmitted, view.in_flight), (10, 4, 4));
}

#[test]
fn a_gap_that_was_lost_again_is_told_again() {
    let ([mut a, mut b], source, ring) = hosts(&Setup::default(), 0);
    write(&mut a, 7, source, ring, 1500);
    let packets = a.packets(NOW);
    for round in 0..3 {
        // Numbers go back, so the peer has gone back, and still the first is missing.
        for (flow, bytes) in &packets[1..] {
            assert_eq!(b.take(NOW, *flow, bytes), Err(Reason::OutOfOrder));
        }
        let (_, syndrome, _) = syndrome(&mut b, NOW);
        assert_eq!(syndrome, Syndrome::Nak(Nak::Sequence), "{round}");
    }
}

#[test]
fn what_is_mended_within_a_burst_is_acknowledged_as_far_as_it_is() {
    let ([mut a, mut b], source, ring) = hosts(&Setup::default(), 0);
    write(&mut a, 7, source, ring, 1000);
    let packets = a.packets(NOW);
    for at in [1, 0, 2, 3] {
        let (flow, bytes) = &packets[at];
        _ = b.take(NOW, *flow, bytes);
    }
    // The second was dropped when it came too early.
    let missing = (0xff_ffff, Syndrome::Nak(Nak::Sequence), 0);
    assert_eq!(syndrome(&mut b, NOW), missing);

    // The same where nothing comes behind it, and with something that came before.
    let ([mut a, mut b], source, ring) = hosts(&Setup::default(), 0);
    write(&mut a, 7, source, ring, 1000);
    let packets = a.packets(NOW);
    for at in [1, 0, 0] {
        let (flow, bytes) = &packets[at];
        _ = b.take(NOW, *flow, bytes);
    }
    assert_eq!(syndrome(&mut b, NOW), missing);
    for at in [1, 3, 2, 3] {
        let (flow, bytes) = &packets[at];
        _ = b.take(NOW, *flow, bytes);
    }
    assert_eq!(syndrome(&mut b, NOW), (1, ACK, 1));
}

#[test]
fn duplicates_are_acknowledged_again_and_write_nothing() {
    let ([mut a, mut b], source, ring) = hosts(&Setup::default(), 0);
    write(&mut a, 7, source, ring, 300);
    let packets = a.packets(NOW);
    for (flow, bytes) in &packets {
        b.take(NOW, *flow, bytes).unwrap();
    }
    assert_eq!(syndrome(&mut b, NOW), (0xff_ffff, ACK, 1));
    b.memory.all[0].fill(9);
    for (flow, bytes) in &packets {
        assert_eq!(b.take(NOW, *flow, bytes), Err(Reason::Duplicate));
    }
    assert_eq!(syndrome(&mut b, NOW), (0xff_ffff, ACK, 1));
    assert_eq!(b.memory.all[0], [9; 4096]);
}

#[test]
fn an_acknowledgement_answers_a_burst() {
    let (mut hosts, source, ring) = hosts(&Setup::default(), 8);
    let [a, b] = &mut hosts;
    for id in 0..8 {
        write(a, id * 2, source, ring, 10);
        a.send(id * 2 + 1, b"word").unwrap();
    }
    let packets = a.packets(NOW);
    for (flow, bytes) in &packets {
        b.take(NOW, *flow, bytes).unwrap();
    }
    let (flow, ack) = b.packet(NOW).unwrap();
    assert_eq!(header(&ack).aeth.unwrap().msn.value(), 16);
    assert!(b.packet(NOW).is_none());
    a.take(NOW, flow, &ack).unwrap();
    assert!(a.done().into_iter().eq((0..16).map(|id| (id, Status::Success))));
    assert_eq!(a.take(NOW, flow, &ack), Err(Reason::StaleAck));
}

#[test]
fn without_a_receive_request_the_sender_waits_as_long_as_asked() {
    let (mut hosts, ..) = hosts(&Setup::default(), 0);
    let [a, b] = &mut hosts;
    a.send(1, b"knock").unwrap();
    a.send(2, b"knock").unwrap();
    for round in 0..20 {
        let now = after(round * 60_000);
        let sent = a.packets(now);
        assert_eq!(psns(&sent), [0xff_fffe, 0xff_ffff]);
        for (flow, bytes) in &sent {
            assert!(b.take(now, *flow, bytes).is_err());
        }
        let (flow, rnr) = b.packet(now).unwrap();
        assert_eq!(header(&rnr).aeth.unwrap().syndrome, Syndrome::Rnr(5));
        assert!(b.packet(now).is_none());
        assert_eq!(a.take(now, flow, &rnr), Ok(Outcome::Resend));
        // Code 5 is 60 us.
        assert_eq!(a.device.next_deadline(), Some(now.plus_nanos(60_000)));
        assert!(a.packet(now.plus_nanos(59_999)).is_none());
        a.device.on_deadline(now.plus_nanos(60_000));
    }
    let key = b.buffer(0, vec![0; 100], Access::LOCAL_WRITE);
    b.post_receive(1, key, 0, 50);
    b.post_receive(2, key, 50, 50);
    exchange(&mut hosts, after(20 * 60_000));
    let [a, b] = &mut hosts;
    assert_eq!(a.done(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(b.done(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(b.memory.all[2][50..56], *b"knock\0");
}

#[test]
fn retries_of_a_receiver_that_is_not_ready_end() {
    let rts = RtsAttributes { rnr_retry: 2, ..RtsAttributes::new(Psn::default()) };
    let (mut hosts, ..) = hosts(&Setup { rts, ..Setup::default() }, 0);
    hosts[0].send(1, b"knock").unwrap();
    hosts[0].send(2, b"knock").unwrap();
    for round in 0..3 {
        hosts[0].device.on_deadline(after(round * 100_000));
        exchange(&mut hosts, after(round * 100_000));
    }
    assert_eq!(hosts[0].done(), [(1, Status::RnrRetryExceeded), (2, Status::Flushed)]);
    assert_eq!(hosts[0].device.counters().rnr_in, 3);
}

#[test]
fn tries_count_anew_with_each_message() {
    let rts = RtsAttributes { rnr_retry: 1, ..RtsAttributes::new(Psn::default()) };
    let (mut hosts, ..) = hosts(&Setup { rts, ..Setup::default() }, 0);
    let key = hosts[1].buffer(0, vec![0; 10], Access::LOCAL_WRITE);
    for id in 0..4 {
        let now = after(id * 1_000_000);
        hosts[0].send(id, b"knock").unwrap();
        exchange(&mut hosts, now);
        hosts[1].post_receive(id, key, 0, 10);
        hosts[0].device.on_deadline(now.plus_nanos(60_000));
        exchange(&mut hosts, now.plus_nanos(60_000));
        assert_eq!(hosts[0].done(), [(id, Status::Success)]);
    }
}

#[test]
fn the_time_that_a_receiver_asks_for_does_not_count_against_it() {
    // Given up after 4 times 4.2 ms; the receiver asks for 655 ms.
    let rts = RtsAttributes { timeout: 10, retry_count: 3, ..RtsAttributes::new(Psn::default()) };
    let (mut hosts, ..) = hosts(&Setup { rts, min_rnr_timer: 0, ..Setup::default() }, 0);
    hosts[0].send(1, b"knock").unwrap();
    exchange(&mut hosts, NOW);
    let [a, _] = &mut hosts;
    let mut sent = Vec::new();
    while let Some(now) = a.device.next_deadline() {
        a.device.on_deadline(now);
        sent.extend(a.packets(now).iter().map(|_| now.since(NOW)));
    }
    // All of them get lost.
    let times = (0..4).map(|n| 655_360_000 + n * (4096 << 10));
    assert!(sent.iter().copied().eq(times), "{sent:?}");
    assert_eq!(a.done(), [(1, Status::RetryExceeded)]);
}

#[test]
fn patience_is_short_again_after_progress() {
    let rts = RtsAttributes::shunt(Psn::default());
    let ([mut a, mut b], source, ring) = hosts(&Setup { rts, ..Setup::default() }, 0);
    measure(&mut a, &mut b, source, ring, 100_000);
    write(&mut a, 1, source, ring, 600);
    a.packets(NOW);
    let mut now = NOW;
    for nanos in [1_000_000, 2_000_000, 4_000_000] {
        assert_eq!(a.device.next_deadline(), Some(now.plus_nanos(nanos)));
        now = now.plus_nanos(nanos);
        a.device.on_deadline(now);
        assert_eq!(a.packets(now).len(), 1);
    }
    // The probe is answered, but what follows it is lost.
    let later = now.plus_nanos(8_000_000);
    a.device.on_deadline(later);
    let (_, probe) = a.packet(later).unwrap();
    b.take(later, to_b(), &probe).unwrap();
    let (back, ack) = b.packet(later).unwrap();
    a.take(later, back, &ack).unwrap();
    assert_eq!(a.packets(later).len(), 2);
    assert_eq!(a.device.next_deadline(), Some(later.plus_nanos(1_000_000)));
}

#[test]
fn a_peer_that_is_silent_is_given_up_after_all_retries() {
    for retransmission in [Retransmission::Fixed, Retransmission::SHUNT] {
        // 4.096 us * 2^10: 4.2 ms.
        let rts = RtsAttributes {
            timeout: 10,
            retry_count: 3,
            retransmission,
            ..RtsAttributes::new(Psn::default())
        };
        let ([mut a, _], source, ring) = hosts(&Setup { rts, ..Setup::default() }, 0);
        write(&mut a, 1, source, ring, 1000);
        a.send(2, b"word").unwrap();
        assert_eq!(a.packets(NOW).len(), 5);
        let mut now = NOW;
        let mut probes = 0;
        while let Some(next) = a.device.next_deadline() {
            now = next;
            a.device.on_deadline(now);
            let sent = a.packets(now);
            // Only the oldest, and with the wish for an answer.
            assert!(sent.len() <= 1);
            for (_, bytes) in &sent {
                assert!(header(bytes).bth.ack_request);
                assert_eq!(psns(&sent), [0xff_fffe]);
            }
            probes += sent.len();
        }
        assert_eq!(now.since(NOW), 4 * (4096 << 10), "{retransmission:?}");
        assert!(probes >= 3);
        assert_eq!(a.done(), [(1, Status::RetryExceeded), (2, Status::Flushed)]);
        assert_eq!(a.device.qp(a.qpn).unwrap().state, State::Error);
        assert_eq!(a.send(3, b"late"), Err(PostError::State));
    }
}

#[test]
fn a_peer_that_is_late_is_sent_one_packet_twice() {
    let rts = RtsAttributes { ack_every: 4, ..RtsAttributes::new(Psn::default()) };
    let ([mut a, mut b], source, ring) = hosts(&Setup { rts, ..Setup::default() }, 0);
    write(&mut a, 1, source, ring, 1000);
    write(&mut a, 2, source, ring, 4000);
    let packets = a.packets(NOW);
    let later = a.device.next_deadline().unwrap();
    a.device.on_deadline(later);
    let probe = a.packets(later);
    assert_eq!(psns(&probe), [0xff_fffe]);
    // It was busy with something else, and goes on with what has come long ago.
    for part in [&packets[..6], &packets[6..], &probe] {
        for (flow, bytes) in part {
            _ = b.take(later, *flow, bytes);
        }
        let (back, ack) = b.packet(later).unwrap();
        _ = a.take(later, back, &ack);
        assert_eq!(psns(&a.packets(later)), []);
    }
    assert_eq!(a.done(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(a.device.counters().retransmitted, 1);
    write(&mut a, 3, source, ring, 1000);
    assert_eq!(a.packets(later).len(), 4);
}

#[test]
fn a_lost_acknowledgement_costs_one_packet() {
    let ([mut a, mut b], source, ring) = hosts(&Setup::default(), 0);
    write(&mut a, 1, source, ring, 4000);
    for (flow, bytes) in a.packets(NOW) {
        b.take(NOW, flow, &bytes).unwrap();
    }
    assert!(b.packet(NOW).is_some(), "which gets lost");
    let later = a.device.next_deadline().unwrap();
    a.device.on_deadline(later);
    let mut hosts = [a, b];
    exchange(&mut hosts, later);
    assert_eq!(hosts[0].done(), [(1, Status::Success)]);
    assert_eq!(hosts[0].device.counters().retransmitted, 1);
}

#[test]
fn a_lost_tail_is_sent_again_as_soon_as_the_path_suggests() {
    let rts = RtsAttributes::shunt(Psn::default());
    let (mut hosts, source, ring) = hosts(&Setup { rts, ..Setup::default() }, 0);
    write(&mut hosts[0], 1, source, ring, 100);
    exchange(&mut hosts, NOW);
    let [a, _] = &mut hosts;
    write(a, 2, source, ring, 100);
    assert_eq!(a.packets(NOW).len(), 1, "which gets lost");
    // One measurement was made: not 134 ms but the floor.
    assert_eq!(a.device.next_deadline(), Some(after(1_000_000)));
    a.device.on_deadline(after(1_000_000));
    exchange(&mut hosts, after(1_000_000));
    assert_eq!(hosts[0].done(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn what_is_sent_behind_it_does_not_put_off_when_something_is_sent_again() {
    let rts = RtsAttributes::shunt(Psn::default());
    let ([mut a, mut b], source, ring) = hosts(&Setup { rts, ..Setup::default() }, 0);
    measure(&mut a, &mut b, source, ring, 100_000);
    write(&mut a, 1, source, ring, 100);
    assert_eq!(a.packets(NOW).len(), 1, "which gets lost");
    for (id, at) in [(2, after(400_000)), (3, after(800_000))] {
        write(&mut a, id, source, ring, 100);
        for (flow, bytes) in a.packets(at) {
            assert_eq!(b.take(at, flow, &bytes), Err(Reason::OutOfOrder));
        }
        // What the peer says of it gets lost, too, and it says so once.
        assert_eq!(b.packets(at).len(), usize::from(id == 2));
        assert_eq!(a.device.next_deadline(), Some(after(1_000_000)));
    }
    a.device.on_deadline(after(1_000_000));
    let mut hosts = [a, b];
    exchange(&mut hosts, after(1_000_000));
    let done = [0, 1, 2, 3].map(|id| (id, Status::Success));
    assert_eq!(hosts[0].done(), done);
}

#[test]
fn who_was_away_for_long_has_not_given_up_before_something_is_sent_again() {
    let ([mut a, mut b], source, ring) = hosts(&Setup::default(), 0);
    // All but the first arrive; nobody looks at what the peer says of that.
    write(&mut a, 1, source, ring, 1000);
    for (flow, bytes) in &a.packets(NOW)[1..] {
        _ = b.take(NOW, *flow, bytes);
    }
    let (flow, nak) = b.packet(NOW).unwrap();
    let later = after(60_000_000_000);
    assert_eq!(a.take(later, flow, &nak), Ok(Outcome::Resend));
    let mut hosts = [a, b];
    exchange(&mut hosts, later);
    let [a, b] = &mut hosts;
    // And nothing does.
    write(a, 2, source, ring, 1000);
    assert_eq!(a.packets(later).len(), 4);
    let later = later.plus_nanos(60_000_000_000);
    a.device.on_deadline(later);
    for (flow, bytes) in a.packets(later) {
        b.take(later, flow, &bytes).unwrap();
    }
    exchange(&mut hosts, later);
    assert_eq!(hosts[0].done(), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn who_was_away_for_long_tries_as_often_as_others() {
    let rts = RtsAttributes::shunt(Psn::default());
    for hears_naks in [false, true] {
        let ([mut a, mut b], source, ring) = hosts(&Setup { rts, ..Setup::default() }, 0);
        measure(&mut a, &mut b, source, ring, 200_000);
        // The first gets lost.
        write(&mut a, 1, source, ring, 100);
        write(&mut a, 2, source, ring, 100);
        let packets = a.packets(NOW);
        let [_, (flow, second)] = &packets[..] else { panic!("{packets:?}") };
        assert_eq!(b.take(NOW, *flow, second), Err(Reason::OutOfOrder));
        let (flow, nak) = b.packet(NOW).unwrap();
        let back = after(60_000_000_000);
        let mut now = back;
        for _ in 0..3 {
            if hears_naks {
                assert_eq!(a.take(now, flow, &nak), Ok(Outcome::Resend));
                assert!(!a.packets(now).is_empty());
                now = now.plus_nanos(1_000_000);
            } else {
                a.device.on_deadline(now);
                assert!(!a.packets(now).is_empty(), "given up after {} ns", now.since(back));
                now = a.device.next_deadline().unwrap();
            }
        }
        let mut hosts = [a, b];
        hosts[0].device.on_deadline(now.plus_nanos(20_000_000));
        exchange(&mut hosts, now.plus_nanos(20_000_000));
        let done = hosts[0].done();
        assert_eq!(done, [0, 1, 2].map(|id| (id, Status::Success)), "{hears_naks}");
    }
}

#[test]
fn no_more_packets_are_out_than_the_window_has() {
    for window in [1, 3, 8] {
        let rts = RtsAttributes { window, ..RtsAttributes::new(Psn::default()) };
        let (mut hosts, source, ring) = hosts(&Setup { rts, ..Setup::default() }, 0);
        write(&mut hosts[0], 1, source, ring, 4096);
        let sent = hosts[0].packets(NOW);
        assert_eq!(sent.len(), usize::from(window));
        let asks = |bytes: &[u8]| header(bytes).bth.ack_request;
        assert!(asks(&sent.last().unwrap().1), "or nobody would go on");
        assert_eq!(sent.iter().filter(|(_, bytes)| asks(bytes)).count(), 1);
        for (flow, bytes) in sent {
            hosts[1].take(NOW, flow, &bytes).unwrap();
        }
        exchange(&mut hosts, NOW);
        assert_eq!(hosts[0].done(), [(1, Status::Success)]);
    }
}

/// Writes, and takes the acknowledgement so much later.
fn measure(a: &mut Host, b: &mut Host, source: Key, ring: Key, nanos: u64) {
    write(a, 0, source, ring, 10);
    for (flow, bytes) in a.packets(NOW) {
        b.take(NOW, flow, &bytes).unwrap();
    }
    let (flow, ack) = b.packet(NOW).unwrap();
    a.take(after(nanos), flow, &ack).unwrap();
}

#[test]
fn the_round_trip_is_measured_where_it_is_certain() {
    let rts = RtsAttributes::shunt(Psn::default());
    let ([mut a, mut b], source, ring) = hosts(&Setup { rts, ..Setup::default() }, 0);
    let rtt = |a: &Host| a.device.qp(a.qpn).unwrap().rtt_nanos;
    write(&mut a, 0, source, ring, 10);
    assert_eq!(a.packets(NOW).len(), 1);
    let later = a.device.next_deadline().unwrap();
    a.device.on_deadline(later);
    // Which of the two is answered is not known.
    for (flow, bytes) in a.packets(later) {
        b.take(later, flow, &bytes).unwrap();
    }
    let (flow, ack) = b.packet(later).unwrap();
    a.take(later.plus_nanos(70_000), flow, &ack).unwrap();
    assert_eq!(rtt(&a), None);
    measure(&mut a, &mut b, source, ring, 100_000);
    assert_eq!(rtt(&a), Some(100_000));
}

#[test]
fn the_same_gap_told_twice_is_one_gap() {
    let ([mut a, mut b], source, ring) = hosts(&Setup::default(), 0);
    measure(&mut a, &mut b, source, ring, 100_000);
    write(&mut a, 1, source, ring, 1000);
    let packets = a.packets(NOW);
    for (flow, bytes) in &packets[1..] {
        _ = b.take(NOW, *flow, bytes);
    }
    let (flow, nak) = b.packet(NOW).unwrap();
    assert_eq!(a.take(NOW, flow, &nak), Ok(Outcome::Resend));
    assert_eq!(a.packets(NOW).len(), 4);
    assert_eq!(a.take(after(49_999), flow, &nak), Err(Reason::StaleAck));
    assert!(a.packets(after(49_999)).is_empty());
    assert_eq!(a.take(after(50_000), flow, &nak), Ok(Outcome::Resend));
    assert_eq!(a.packets(after(50_000)).len(), 4);
}

#[test]
fn an_acknowledgement_is_asked_for_now_and_then() {
    let asks = |ack_every, signaled| {
        let rts = RtsAttributes { ack_every, ..RtsAttributes::new(Psn::default()) };
        let ([mut a, _], source, ring) = hosts(&Setup { rts, ..Setup::default() }, 0);
        for id in 0..2 {
            let request = SendRequest {
                id,
                operation: Operation::Write { address: RING_AT, rkey: ring.0 },
                source: Source::Pieces(&[Piece { key: source, address: 0, len: 1500 }]),
                immediate: None,
                signaled,
                solicited: false,
            };
            a.device.post_send(a.qpn, &request).unwrap();
        }
        let sent = a.packets(NOW);
        let asking = sent.iter().zip(0..).filter(|((_, bytes), _)| header(bytes).bth.ack_request);
        asking.map(|(_, at)| at).collect::<Vec<u32>>()
    };
    // Two messages of six packets.
    assert_eq!(asks(64, true), [5, 11]);
    assert_eq!(asks(64, false), [11], "the first is answered by the second");
    assert_eq!(asks(4, true), [3, 5, 9, 11]);
    assert_eq!(asks(4, false), [3, 7, 11]);
}

#[test]
fn only_the_end_of_a_message_is_solicited_and_has_the_immediate() {
    let ([mut a, _], source, _) = hosts(&Setup::default(), 0);
    let request = SendRequest {
        id: 1,
        operation: Operation::Send,
        source: Source::Pieces(&[Piece { key: source, address: 0, len: 600 }]),
        immediate: Some(7),
        signaled: true,
        solicited: true,
    };
    a.device.post_send(a.qpn, &request).unwrap();
    let sent = a.packets(NOW).into_iter().map(|(_, bytes)| header(&bytes));
    let ends: Vec<_> = sent.map(|header| (header.bth.solicited, header.immediate)).collect();
    assert_eq!(ends, [(false, None), (false, None), (true, Some(7))]);
}

/// A request of the peer's, made by hand.
fn request(host: &Host, opcode: Opcode, psn: u32, reth: Option<Reth>, payload: &[u8]) -> Vec<u8> {
    let mut bth = Bth::new(opcode, host.qpn, Psn::new(psn));
    bth.ack_request = true;
    let immediate = opcode.has_immediate().then_some(0xfeed);
    let header = Header { reth, immediate, ..Header::new(bth) };
    let mut bytes = vec![0; PACKET_MAX];
    let end = Packet { header, payload }.emit(&mut bytes).unwrap();
    let len = icrc::seal(&to_b(), 0, &mut bytes, end).unwrap();
    bytes.truncate(len);
    bytes
}

/// How packets come to the second host.
fn to_b() -> Flow {
    let addresses = Addresses::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).unwrap();
    Flow { addresses, src_port: wire::UDP_PORT }
}

const FIRST: u32 = 0xff_fffe;

/// The second host, with room for two messages of 500 bytes, after one of a message that has begun, if
/// any; and what it answers to a request that must end its connection.
fn refused_after(
    begun: Option<(Opcode, Option<Reth>)>,
    opcode: Opcode,
    reth: Option<Reth>,
    len: usize,
) -> (Syndrome, Reason) {
    let ([_, mut b], ..) = hosts(&Setup::default(), 0);
    let inbox = b.buffer(0, vec![0; 1000], Access::LOCAL_WRITE);
    b.post_receive(0, inbox, 0, 500);
    b.post_receive(1, inbox, 500, 500);
    let mut psn = FIRST;
    if let Some((opcode, reth)) = begun {
        let bytes = request(&b, opcode, psn, reth, &[2; 256]);
        assert_eq!(b.take(NOW, to_b(), &bytes), Ok(Outcome::Payload));
        psn += 1;
    }
    let before = b.memory.clone();
    let bytes = request(&b, opcode, psn, reth, &vec![1; len]);
    let reason = b.take(NOW, to_b(), &bytes).unwrap_err();
    let (told, syndrome, msn) = syndrome(&mut b, NOW);
    assert_eq!((told, msn), (psn, 0));
    assert_eq!(b.device.qp(b.qpn).unwrap().state, State::Error);
    assert_eq!(b.memory.all, before.all);
    assert_eq!(b.done().len(), 2, "both receive requests end");
    assert_eq!(b.take(NOW, to_b(), &bytes), Err(Reason::State));
    (syndrome, reason)
}

fn refused(opcode: Opcode, reth: Option<Reth>, len: usize) -> (Syndrome, Reason) {
    refused_after(None, opcode, reth, len)
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    use Place::{First, Last, Middle, Only};
    let ([_, _], _, ring) = hosts(&Setup::default(), 0);
    let invalid = (Syndrome::Nak(Nak::InvalidRequest), Reason::InvalidRequest);
    let send = |place| Opcode::Send(place, false);
    let write = |place| Opcode::Write(place, false);
    let reth = |len| Some(Reth { address: RING_AT, rkey: ring.0, len });
    for (place, len) in [(Middle, 256), (Last, 50)] {
        assert_eq!(refused(send(place), None, len), invalid, "nothing has begun");
        assert_eq!(refused(write(place), None, len), invalid);
        assert_eq!(refused_after(Some((send(First), None)), write(place), None, len), invalid);
        assert_eq!(refused_after(Some((write(First), reth(512))), send(place), None, len), invalid);
    }
    for begun in [(send(First), None), (write(First), reth(512))] {
        for (place, len) in [(First, 256), (Only, 50)] {
            assert_eq!(refused_after(Some(begun), send(place), None, len), invalid, "not ended");
            let whole = reth(if place == First { 300 } else { 50 });
            assert_eq!(refused_after(Some(begun), write(place), whole, len), invalid);
        }
    }
    assert_eq!(refused(send(First), None, 255), invalid, "not a whole packet");
    assert_eq!(refused(send(Only), None, 257), invalid, "more than a packet");
    assert_eq!(refused(write(First), reth(300), 255), invalid);
    assert_eq!(refused(write(Only), reth(257), 257), invalid);
    let begun = Some((send(First), None));
    assert_eq!(refused_after(begun, send(Middle), None, 200), invalid);
    assert_eq!(refused_after(begun, send(Last), None, 0), invalid);
    assert_eq!(refused_after(begun, send(Last), None, 245), invalid, "more than the request");
}

#[test]
fn writes_elsewhere_are_refused() {
    let ([_, _], _, ring) = hosts(&Setup::default(), 0);
    let access = (Syndrome::Nak(Nak::RemoteAccess), Reason::Access);
    let invalid = (Syndrome::Nak(Nak::InvalidRequest), Reason::InvalidRequest);
    let only = Opcode::Write(Place::Only, false);
    let first = Opcode::Write(Place::First, false);
    let reth = |address, rkey, len| Some(Reth { address, rkey, len });
    // Keys are drawn by the device's secret: these hosts have the same.
    assert_eq!(refused(only, reth(RING_AT, ring.0 ^ 1, 8), 8), access);
    assert_eq!(refused(only, reth(RING_AT - 1, ring.0, 8), 8), access);
    assert_eq!(refused(only, reth(RING_AT + 4089, ring.0, 8), 8), access);
    assert_eq!(refused(only, reth(u64::MAX, ring.0, 8), 8), access);
    assert_eq!(refused(first, reth(RING_AT, ring.0, 4097), 256), access, "all of it is checked");
    assert_eq!(refused(only, reth(RING_AT, ring.0, 9), 8), invalid);
    assert_eq!(refused(only, reth(RING_AT, ring.0, 7), 8), invalid);
    assert_eq!(refused(first, reth(RING_AT, ring.0, 256), 256), invalid);
    assert_eq!(refused(first, reth(RING_AT, ring.0, u32::MAX), 256), access);
}

#[test]
fn a_write_of_nothing_needs_no_key() {
    let ([_, mut b], ..) = hosts(&Setup::default(), 1);
    let reth = Some(Reth { address: u64::MAX, rkey: 0, len: 0 });
    let bytes = request(&b, Opcode::Write(Place::Only, true), FIRST, reth, &[]);
    assert_eq!(b.take(NOW, to_b(), &bytes), Ok(Outcome::Message));
    let done = b.completions();
    assert_eq!(
        (done[0].kind, done[0].bytes, done[0].immediate),
        (Kind::ReceiveWrite, 0, Some(0xfeed))
    );
}

#[test]
fn a_write_with_immediate_waits_for_a_receive_request_and_writes_nothing_before() {
    let ([mut a, mut b], source, ring) = hosts(&Setup::default(), 0);
    let request = SendRequest {
        id: 1,
        operation: Operation::Write { address: RING_AT, rkey: ring.0 },
        source: Source::Pieces(&[Piece { key: source, address: 1, len: 300 }]),
        immediate: Some(7),
        signaled: true,
        solicited: false,
    };
    a.device.post_send(a.qpn, &request).unwrap();
    let packets = a.packets(NOW);
    let (flow, first) = &packets[0];
    assert_eq!(b.take(NOW, *flow, first), Ok(Outcome::Payload));
    assert_eq!(b.take(NOW, *flow, &packets[1].1), Err(Reason::NotReady));
    assert_eq!(b.memory.all[0][256..300], [0; 44]);
    b.post_receive(9, Key(0), 0, 0);
    assert_eq!(b.take(NOW, *flow, &packets[1].1), Ok(Outcome::Message));
    let done = b.completions()[0];
    assert_eq!((done.id, done.bytes, done.immediate), (9, 300, Some(7)));
    assert_eq!(b.memory.all[0][..300], a.memory.all[0][1..301]);
}

#[test]
fn a_region_that_went_is_refused_in_the_middle_of_a_message() {
    let ([mut a, mut b], source, ring) = hosts(&Setup::default(), 0);
    write(&mut a, 1, source, ring, 600);
    let packets = a.packets(NOW);
    let (flow, first) = &packets[0];
    assert_eq!(b.take(NOW, *flow, first), Ok(Outcome::Payload));
    b.device.deregister(ring).unwrap();
    assert_eq!(b.take(NOW, *flow, &packets[1].1), Err(Reason::Access));
    let mut hosts = [a, b];
    exchange(&mut hosts, NOW);
    assert_eq!(hosts[0].done(), [(1, Status::RemoteAccess)]);
}

#[test]
fn memory_that_cannot_be_reached_fails_one_connection() {
    let (mut hosts, source, ring) = hosts(&Setup::default(), 0);
    hosts[1].memory.gone = Some(0);
    write(&mut hosts[0], 1, source, ring, 10);
    exchange(&mut hosts, NOW);
    assert_eq!(hosts[0].done(), [(1, Status::RemoteOperational)]);

    let ([mut a, _], source, ring) = self::hosts(&Setup::default(), 0);
    a.send(1, b"word").unwrap();
    write(&mut a, 2, source, ring, 10);
    write(&mut a, 3, source, ring, 10);
    a.memory.gone = Some(0);
    assert_eq!(a.packets(NOW).len(), 1);
    let statuses = [Status::Flushed, Status::LocalProtection, Status::Flushed];
    assert!(a.done().into_iter().eq((1..).zip(statuses)));
}

#[test]
fn sends_from_what_is_not_registered_fail() {
    let ([mut a, _], source, ring) = hosts(&Setup::default(), 0);
    let wrong = [
        Piece { key: Key(source.0 ^ 1), address: 0, len: 8 },
        Piece { key: source, address: 4090, len: 8 },
        Piece { key: source, address: u64::MAX, len: 8 },
    ];
    for piece in wrong {
        let mut host = hosts(&Setup::default(), 0).0.into_iter().next().unwrap();
        let operation = Operation::Write { address: RING_AT, rkey: ring.0 };
        host.post(1, operation, Source::Pieces(&[piece])).unwrap();
        assert!(host.packets(NOW).is_empty());
        assert_eq!(host.done(), [(1, Status::LocalProtection)]);
    }
    // A request that is longer than its packets' memory ends where that ends.
    write(&mut a, 1, source, ring, 4097);
    assert_eq!(a.packets(NOW).len(), 16);
    assert_eq!(a.done(), [(1, Status::LocalProtection)]);
}

#[test]
fn what_does_not_fit_is_not_posted() {
    let ([mut a, _], source, _) = hosts(&Setup::default(), 0);
    let piece = Piece { key: source, address: 0, len: 1 };
    assert_eq!(a.send(1, &[0; 65]), Err(PostError::Length));
    let long = Piece { len: MESSAGE_MAX, ..piece };
    let post = |a: &mut Host, pieces: &[Piece]| a.post(1, Operation::Send, Source::Pieces(pieces));
    assert_eq!(post(&mut a, &[long, piece]), Err(PostError::Length));
    assert_eq!(post(&mut a, &[piece, piece, piece]), Err(PostError::Pieces));
    assert_eq!(post(&mut a, &[long]), Ok(()), "4,194,304 packets of 256 bytes");
    assert_eq!(post(&mut a, &[piece]), Err(PostError::Full), "or numbers would say nothing");
    let ([mut a, _], ..) = hosts(&Setup::default(), 0);
    for id in 0..48 {
        a.send(id, b"").unwrap();
    }
    assert_eq!(a.send(48, b""), Err(PostError::Full));
}

#[test]
fn states_follow_one_another() {
    let mut host = Host::new(&DeviceConfig::default(), 1);
    let qpn = host.device.create_qp(&QpConfig { domain: DOMAIN, ..QpConfig::default() }).unwrap();
    host.qpn = qpn;
    let addresses = to_b().addresses;
    let rtr = RtrAttributes::new(addresses, Qpn::new(99), Psn::default(), Mtu::B1024);
    let rts = RtsAttributes::new(Psn::default());
    let wrong = |state| Err(ModifyError::State(state));
    assert_eq!(host.device.ready_to_receive(qpn, &rtr), wrong(State::Reset));
    assert_eq!(host.device.ready_to_send(qpn, &rts), wrong(State::Reset));
    assert_eq!(host.send(1, b""), Err(PostError::State));
    host.device.init(qpn).unwrap();
    assert_eq!(host.device.init(qpn), wrong(State::Init));
    assert_eq!(host.device.ready_to_send(qpn, &rts), wrong(State::Init));
    host.device.ready_to_receive(qpn, &rtr).unwrap();
    assert_eq!(host.send(1, b""), Err(PostError::State));
    host.device.ready_to_send(qpn, &rts).unwrap();
    host.send(1, b"").unwrap();
    host.post_receive(2, Key(0), 0, 0);
    host.device.fail(NOW, qpn).unwrap();
    assert_eq!(host.done(), [(1, Status::Flushed), (2, Status::Flushed)]);
    assert!(host.packets(NOW).is_empty());
    host.device.reset(qpn).unwrap();
    host.device.init(qpn).unwrap();
    host.device.destroy_qp(qpn).unwrap();
    assert_eq!(host.device.init(qpn), Err(ModifyError::Unknown));
    assert_eq!(host.device.destroy_qp(qpn), Err(ModifyError::Unknown));
    assert_eq!(host.send(1, b""), Err(PostError::Unknown));
}

#[test]
fn a_queue_pair_is_used_again_after_reset() {
    let (mut hosts, source, ring) = hosts(&Setup::default(), 0);
    write(&mut hosts[0], 1, source, ring, 1000);
    let half = hosts[0].packets(NOW);
    hosts[1].take(NOW, half[0].0, &half[0].1).unwrap();
    for host in &mut hosts {
        host.device.fail(NOW, host.qpn).unwrap();
        host.completions();
        host.device.reset(host.qpn).unwrap();
    }
    Setup::default().connect(&mut hosts);
    write(&mut hosts[0], 2, source, ring, 1000);
    exchange(&mut hosts, NOW);
    assert_eq!(hosts[0].done(), [(2, Status::Success)]);
}

#[test]
fn packets_of_others_are_dropped() {
    let ([mut a, mut b], source, ring) = hosts(&Setup::default(), 0);
    write(&mut a, 1, source, ring, 10);
    let (flow, bytes) = a.packet(NOW).unwrap();
    let other = Addresses::new([10, 0, 0, 3].into(), [10, 0, 0, 2].into()).unwrap();
    assert_eq!(b.take(NOW, Flow { addresses: other, ..flow }, &bytes), Err(Reason::Address));
    assert_eq!(b.take(NOW, Flow { src_port: 1, ..flow }, &bytes), Err(Reason::Icrc));
    let change = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        bytes
    };
    assert_eq!(b.take(NOW, flow, &change(2, 0x12)), Err(Reason::Partition));
    assert_eq!(b.take(NOW, flow, &change(5, !bytes[5])), Err(Reason::UnknownQp));
    assert_eq!(b.take(NOW, flow, &change(0, 0x0c)), Err(Reason::Opcode));
    assert_eq!(b.take(NOW, flow, &change(1, 1)), Err(Reason::Malformed));
    assert_eq!(b.take(NOW, flow, &change(30, !bytes[30])), Err(Reason::Icrc));
    assert_eq!(b.take(NOW, flow, &bytes[..bytes.len() - 4]), Err(Reason::Icrc));
    assert_eq!(b.take(NOW, flow, &[]), Err(Reason::Malformed));
    assert!(b.packet(NOW).is_none(), "and nobody is told");
    assert_eq!(b.take(NOW, flow, &bytes), Ok(Outcome::Message));
    assert_eq!(b.device.counters().packets_in, 10);
}

#[test]
fn of_two_members_of_a_partition_one_is_a_full_one() {
    for (pkey, outcome) in [(0x8001, Ok(Outcome::Message)), (1, Err(Reason::Partition))] {
        let ([mut a, mut b], source, ring) = hosts(&Setup { pkey, ..Setup::default() }, 0);
        write(&mut a, 1, source, ring, 10);
        let (flow, bytes) = a.packet(NOW).unwrap();
        assert_eq!(header(&bytes).bth.pkey, pkey);
        assert_eq!(b.take(NOW, flow, &bytes), outcome);
        assert_eq!(b.packet(NOW).map(|(_, ack)| header(&ack).bth.pkey), outcome.ok().map(|_| pkey));
    }
}

#[test]
fn acknowledgements_of_what_was_not_sent_are_dropped() {
    let ([mut a, b], source, ring) = hosts(&Setup::default(), 0);
    write(&mut a, 1, source, ring, 1000);
    let sent = a.packets(NOW);
    assert_eq!(sent.len(), 4);
    let mut answer = |psn: u32, syndrome| {
        let bth = Bth::new(Opcode::Acknowledge, a.qpn, Psn::new(psn));
        let aeth = Some(Aeth { syndrome, msn: Psn::default() });
        let mut bytes = [0; 20];
        let end = Header { aeth, ..Header::new(bth) }.emit(0, &mut bytes).unwrap();
        let flow = Flow { addresses: to_b().addresses.reversed(), src_port: wire::UDP_PORT };
        icrc::seal(&flow, 0, &mut bytes, end).unwrap();
        a.take(NOW, flow, &bytes)
    };
    for syndrome in
        [ACK, Syndrome::Rnr(1), Syndrome::Nak(Nak::RemoteAccess), Syndrome::Nak(Nak::Sequence)]
    {
        assert_eq!(answer(2, syndrome), Err(Reason::BadAck));
        assert_eq!(answer(0x7f_fffd, syndrome), Err(Reason::BadAck));
        assert_eq!(answer(0xff_fffd, syndrome), Err(Reason::StaleAck));
        assert_eq!(answer(0x80_0002, syndrome), Err(Reason::StaleAck));
    }
    assert_eq!(answer(0, ACK), Ok(Outcome::Acknowledged));
    assert_eq!(answer(0, ACK), Err(Reason::StaleAck));
    assert_eq!(answer(1, ACK), Ok(Outcome::Acknowledged));
    assert_eq!(answer(1, ACK), Err(Reason::StaleAck));
    drop(b);
    assert_eq!(a.done(), [(1, Status::Success)]);
}
