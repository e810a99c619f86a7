//! What a device does beside its connections: numbers, turns, super-packets, completion queues, rates.

use std::collections::{BTreeSet, VecDeque};

use roce::wire::Packet;
use roce::*;
use testkit::network::{Conditions, Network};

use crate::hosts::{Buffers, DOMAIN, Host, Setup, exchange};

const NOW: Time = Time::from_nanos(1_000_000_000);

fn qp() -> QpConfig {
    QpConfig { domain: DOMAIN, ..QpConfig::default() }
}

#[test]
fn numbers_say_their_vector_and_come_again_late() {
    let config = DeviceConfig { vector: 5, vector_bits: 3, qps_max: 8, ..DeviceConfig::default() };
    let mut device = Device::new(&config, Secret::new([1, 2])).unwrap();
    let mut seen = BTreeSet::new();
    for _ in 0..100 {
        let qpns: Vec<_> = (0..8).map(|_| device.create_qp(&qp()).unwrap()).collect();
        assert_eq!(device.create_qp(&qp()), Err(CreateError::Full));
        assert_eq!(device.qps().collect::<BTreeSet<_>>(), qpns.iter().copied().collect());
        for qpn in qpns {
            assert!(qpn.value() > 16 && qpn.value() & 7 == 5, "{qpn}");
            device.destroy_qp(qpn).unwrap();
            assert_eq!(device.qp(qpn), None);
            seen.insert(qpn);
        }
    }
    assert!(seen.len() > 790, "{} of 800", seen.len());
    let mut other = Device::new(&config, Secret::new([1, 3])).unwrap();
    let numbers: Vec<_> = (0..8).map(|_| other.create_qp(&qp()).unwrap()).collect();
    assert!(numbers.iter().filter(|qpn| seen.contains(qpn)).count() < 4, "not those of another");
}

#[test]
fn a_number_is_not_the_one_before_even_if_there_are_few() {
    let few = DeviceConfig { vector_bits: 8, qps_max: 1 << 14, ..DeviceConfig::default() };
    let mut device = Device::new(&few, Secret::new([1, 2])).unwrap();
    let mut last = None;
    for _ in 0..100 {
        let qpn = device.create_qp(&qp()).unwrap();
        assert_ne!(last.replace(qpn), Some(qpn));
        device.destroy_qp(qpn).unwrap();
    }
}

#[test]
fn only_packets_of_paced_flows_say_that_marks_are_understood() {
    for (congestion, ecn) in [(None, 1), (Some(Dcqcn::default()), 2)] {
        let setup = Setup { congestion, traffic_class: 0x68 | 1, ..Setup::default() };
        let [mut a, _] = setup.hosts();
        a.send(1, b"word").unwrap();
        let run = a.device.transmit(NOW, &a.memory, &mut [0; PACKET_MAX], 1).unwrap();
        assert_eq!(run.traffic_class, 0x68 | ecn);
    }
}

#[test]
fn nobody_waits_for_a_queue_pair_that_is_gone() {
    let [mut a, _] = Setup::default().hosts();
    a.send(1, b"word").unwrap();
    assert_eq!(a.packets(NOW).len(), 1);
    assert!(a.device.next_deadline().is_some());
    a.device.destroy_qp(a.qpn).unwrap();
    assert_eq!(a.device.next_deadline(), None);
    assert!(a.packet(NOW).is_none());

    a.qpn = a.device.create_qp(&qp()).unwrap();
    a.device.init(a.qpn).unwrap();
    a.post_receive(1, Key(0), 0, 0);
    a.device.fail(NOW, a.qpn).unwrap();
    a.device.destroy_qp(a.qpn).unwrap();
    assert_eq!(a.done(), [], "nor hears of it");
}

#[test]
fn settings_that_cannot_be_are_told() {
    let good = DeviceConfig::default();
    let wrong = [
        DeviceConfig { vector_bits: 9, ..good },
        DeviceConfig { vector: 64, ..good },
        DeviceConfig { qps_max: 0, ..good },
        DeviceConfig { qps_max: (1 << 14) + 1, ..good },
        DeviceConfig { regions_max: 0, ..good },
        DeviceConfig { regions_max: (1 << 20) + 1, ..good },
        DeviceConfig { cqs: 0, ..good },
        DeviceConfig { cqs: 1, split: true, ..good },
        DeviceConfig { cqs: 65, ..good },
        DeviceConfig { cq_capacity: 15, ..good },
    ];
    for config in wrong {
        let error = Device::new(&config, Secret::new([0, 0])).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(" is "), "{error}");
    }
    let most = DeviceConfig { vector: 255, vector_bits: 8, qps_max: 1 << 14, ..good };
    let mut device = Device::new(&most, Secret::new([0, 0])).unwrap();
    assert_eq!(device.create_qp(&qp()).unwrap().value() & 0xff, 255);
}

#[test]
fn new_queue_pairs_use_the_queues_that_are_used_least() {
    let config = DeviceConfig { cqs: 4, split: true, qps_max: 4, ..DeviceConfig::default() };
    let mut host = Host::new(&config, 1);
    let ids: Vec<_> = host.device.cqs().collect();
    let mut used = Vec::new();
    for id in 0..2 {
        host.qpn = host.device.create_qp(&qp()).unwrap();
        host.device.init(host.qpn).unwrap();
        host.post_receive(id, Key(0), 0, 0);
        host.device.fail(NOW, host.qpn).unwrap();
        let found = ids.iter().position(|cq| host.device.poll_cq(*cq).unwrap().is_some());
        used.push(found.unwrap());
    }
    assert_eq!(used, [1, 3], "sends of the first at 0, of the second at 2");
    let config = DeviceConfig { cqs: 2, ..config };
    let mut host = Host::new(&config, 1);
    let (first, second) = (ids[0], ids[1]);
    let mine = QpConfig { send_cq: Some(second), receive_cq: Some(first), ..qp() };
    host.qpn = host.device.create_qp(&mine).unwrap();
    let none = QpConfig { send_cq: Some(ids[3]), ..qp() };
    assert_eq!(host.device.create_qp(&none), Err(CreateError::Cq));
}

#[test]
fn a_completion_queue_that_runs_over_fails_its_queue_pairs() {
    let base = Setup::default();
    let device = DeviceConfig { cq_capacity: 16, ..base.device };
    let mut hosts = Setup { device, ..base }.hosts();
    let bystander = hosts[0].device.create_qp(&qp()).unwrap();
    hosts[0].device.init(bystander).unwrap();
    for id in 0..20 {
        hosts[1].post_receive(id, Key(0), 0, 0);
        hosts[0].send(id, b"").unwrap();
    }
    let cq = hosts[0].device.cqs().next().unwrap();
    hosts[0].device.arm_cq(cq, Arm::Solicited);
    exchange(&mut hosts, NOW);
    let [a, _] = &mut hosts;
    for qpn in [a.qpn, bystander] {
        assert_eq!(a.device.qp(qpn).unwrap().state, State::Error);
    }
    assert_eq!(a.device.poll_event(), Some(cq));
    for id in 0..16 {
        assert_eq!(a.device.poll_cq(cq).map(|done| done.map(|done| done.id)), Ok(Some(id)));
    }
    assert_eq!(a.device.poll_cq(cq), Err(Overflow));
    assert_eq!(a.device.cq_counters(cq).overflows, 4);
}

#[test]
fn an_event_tells_of_a_completion_and_moderation_of_time() {
    let base = Setup::default();
    let moderation = Moderation { count: 2, period_nanos: 5000 };
    let mut hosts = Setup { device: DeviceConfig { moderation, ..base.device }, ..base }.hosts();
    let cq = hosts[1].device.cqs().next().unwrap();
    hosts[1].post_receive(1, Key(0), 0, 0);
    assert!(!hosts[1].device.arm_cq(cq, Arm::Solicited));
    hosts[0].send(1, b"").unwrap();
    exchange(&mut hosts, NOW);
    let [_, b] = &mut hosts;
    assert_eq!(b.device.poll_event(), None);
    assert_eq!(b.device.next_deadline(), Some(NOW.plus_nanos(5000)));
    b.device.on_deadline(NOW.plus_nanos(5000));
    assert_eq!((b.device.poll_event(), b.device.poll_event()), (Some(cq), None));
    assert_eq!(b.done(), [(1, Status::Success)]);
}

#[test]
fn packets_of_one_size_go_as_one_super_packet() {
    let (setup, mut buffer) = (Setup::default(), vec![0; 60_000]);
    let [mut a, mut b] = setup.hosts();
    let source = a.buffer(0, (0..5000u32).map(|n| n.to_le_bytes()[0]).collect(), Access::READ);
    let ring = b.buffer(0, vec![0; 5000], Access::REMOTE_WRITE);
    let pieces = [Piece { key: source, address: 0, len: 2600 }];
    let operation = Operation::Write { address: 0, rkey: ring.0 };
    for id in 0..2 {
        a.post(id, operation, Source::Pieces(&pieces)).unwrap();
    }
    let mut runs = Vec::new();
    while let Some(run) = a.device.transmit(NOW, &a.memory, &mut buffer, 6) {
        runs.push((run.segments, run.segment_len, run.len));
        // As the kernel numbers them: from 0 in each super-packet.
        for (identification, bytes) in (0..).zip(buffer[..run.len].chunks(run.segment_len)) {
            let arrival = Arrival {
                addresses: run.flow.addresses,
                src_port: run.flow.src_port,
                marked: false,
                identification: Some(identification),
            };
            b.device.receive(NOW, &mut b.memory, &arrival, bytes).unwrap();
        }
    }
    // The first of a message has 16 bytes more than those in the middle, the last is shorter.
    let (first, middle, last) = (28 + 256 + 4, 12 + 256 + 4, 12 + 40 + 4);
    let message =
        [(2, first, first + middle), (6, middle, 6 * middle), (3, middle, 2 * middle + last)];
    assert_eq!(runs, [message, message].concat());
    assert_eq!(b.memory.all[0][..2600], a.memory.all[0][..2600]);
}

#[test]
fn ipv6_has_no_identification_and_needs_none() {
    let (src, dst) = ([0xfd, 0, 0, 0, 0, 0, 0, 1].into(), [0xfd, 0, 0, 0, 0, 0, 0, 2].into());
    let way = Addresses::V6 { src, dst };
    let mut hosts = Setup { way, ..Setup::default() }.hosts();
    let [a, b] = &mut hosts;
    let source = a.buffer(0, vec![9; 1000], Access::READ);
    let ring = b.buffer(0, vec![0; 1000], Access::REMOTE_WRITE);
    let operation = Operation::Write { address: 0, rkey: ring.0 };
    a.post(1, operation, Source::Pieces(&[Piece { key: source, address: 0, len: 1000 }])).unwrap();
    let (flow, mut bytes) = a.packet(NOW).unwrap();
    assert_eq!(flow.addresses, way);
    bytes[100] ^= 1;
    assert_eq!(b.take(NOW, flow, &bytes), Err(Reason::Icrc));
    bytes[100] ^= 1;
    assert_eq!(b.take(NOW, flow, &bytes), Ok(Outcome::Payload));
    exchange(&mut hosts, NOW);
    assert_eq!(hosts[0].done(), [(1, Status::Success)]);
    assert_eq!(hosts[1].memory.all[0], [9; 1000]);
    let v4 = Addresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
    assert_eq!(hosts[1].take(NOW, Flow { addresses: v4, ..flow }, &bytes), Err(Reason::Address));
}

#[test]
fn queue_pairs_take_turns() {
    let config = DeviceConfig { qps_max: 8, ..DeviceConfig::default() };
    let mut host = Host::new(&config, 1);
    let key = host.buffer(0, vec![0; 4096], Access::READ);
    let addresses = Addresses::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).unwrap();
    let qpns: Vec<_> = (0..8).map(|_| host.device.create_qp(&qp()).unwrap()).collect();
    for (at, qpn) in (0..).zip(&qpns) {
        let rtr = RtrAttributes::new(addresses, Qpn::new(100 + at), Psn::default(), Mtu::B256);
        host.device.init(*qpn).unwrap();
        host.device.ready_to_receive(*qpn, &rtr).unwrap();
        host.device.ready_to_send(*qpn, &RtsAttributes::new(Psn::default())).unwrap();
        host.qpn = *qpn;
        // The first has much to send, the others little.
        let (messages, len) = if at == 0 { (4, 1024) } else { (1, 600) };
        for id in 0..messages {
            let operation = Operation::Write { address: 0, rkey: 1 };
            host.post(id, operation, Source::Pieces(&[Piece { key, address: 0, len }])).unwrap();
        }
    }
    let sent = host.packets(NOW);
    let to: Vec<u32> = sent
        .iter()
        .map(|(_, bytes)| Packet::parse(bytes).unwrap().header.bth.to.value() - 100)
        .collect();
    let turns: Vec<u32> = (0..8).cycle().take(24).collect();
    assert_eq!(to[..24], turns);
    assert_eq!(to[24..], [0; 13]);
}

#[test]
fn a_buffer_that_is_too_short_loses_nothing() {
    let [mut a, _] = Setup::default().hosts();
    a.send(1, b"word").unwrap();
    assert_eq!(a.device.transmit(NOW, &a.memory, &mut [0; 19], 1), None);
    assert!(a.device.has_queued());
    assert!(a.packet(NOW).is_some());
}

#[test]
fn what_is_sent_is_what_was_copied_even_if_memory_changes_meanwhile() {
    /// Memory that is never twice the same.
    struct Moving(core::cell::Cell<u8>);
    impl Memory for Moving {
        fn read(&self, _: Handle, _: u64, to: &mut [u8]) -> Result<(), Fault> {
            self.0.set(self.0.get().wrapping_add(1));
            to.fill(self.0.get());
            Ok(())
        }
        fn write(&mut self, _: Handle, _: u64, _: &[u8]) -> Result<(), Fault> {
            Err(Fault)
        }
    }
    let [mut a, mut b] = Setup::default().hosts();
    let source = a.buffer(0, vec![0; 5000], Access::READ);
    let ring = b.buffer(0, vec![0; 5000], Access::REMOTE_WRITE);
    let operation = Operation::Write { address: 0, rkey: ring.0 };
    let pieces = [Piece { key: source, address: 0, len: 2000 }];
    a.post(1, operation, Source::Pieces(&pieces)).unwrap();
    let (moving, mut buffer) = (Moving(core::cell::Cell::new(0)), [0; PACKET_MAX]);
    while let Some(run) = a.device.transmit(NOW, &moving, &mut buffer, 1) {
        b.take(NOW, run.flow, &buffer[..run.len]).unwrap();
    }
    assert_eq!((b.memory.all[0][0], b.memory.all[0][1999]), (1, 8), "each packet was read once");
}

#[test]
fn memory_that_sums_while_it_copies_makes_the_same_packets() {
    /// The CRC-32 register behind bytes.
    fn sum(register: u32, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new_with_initial(!register);
        hasher.update(bytes);
        !hasher.finalize()
    }
    /// Memory that sums what it is asked to: how often that was.
    struct Summing<'a>(&'a Buffers, core::cell::Cell<usize>, core::cell::Cell<usize>);
    impl Memory for Summing<'_> {
        fn read(&self, handle: Handle, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
            self.0.read(handle, offset, to)
        }
        fn read_summed(
            &self,
            handle: Handle,
            offset: u64,
            to: &mut [u8],
            register: u32,
        ) -> Result<Option<u32>, Fault> {
            self.0.read(handle, offset, to)?;
            // Only now and then: some packets are summed afterwards.
            let nth = self.1.replace(self.1.get() + 1);
            Ok((nth % 3 != 2).then(|| sum(register, to)))
        }
        fn sum(&self, register: u32, bytes: &[u8]) -> Option<u32> {
            assert!(bytes.len().is_multiple_of(64));
            self.2.set(self.2.get() + 1);
            Some(sum(register, bytes))
        }
        fn write(&mut self, _: Handle, _: u64, _: &[u8]) -> Result<(), Fault> {
            Err(Fault)
        }
    }
    // A padded end, and a message of two pieces, which is no single copy.
    for parts in [&[(0, 3001)][..], &[(0, 700), (900, 1300)]] {
        let [mut plain, mut summing] = [Setup::default().hosts(), Setup::default().hosts()];
        for [from, to] in [&mut plain, &mut summing] {
            let bytes = (0..5000u32).map(|i| (i * i / 8).to_le_bytes()[0]).collect();
            let source = from.buffer(0, bytes, Access::READ);
            let ring = to.buffer(0, vec![0; 5000], Access::REMOTE_WRITE);
            let pieces: Vec<Piece> = parts
                .iter()
                .map(|(address, len)| Piece { key: source, address: *address, len: *len })
                .collect();
            let operation = Operation::Write { address: 0, rkey: ring.0 };
            from.post(1, operation, Source::Pieces(&pieces)).unwrap();
        }
        let ([a, _], [c, d]) = (&mut plain, &mut summing);
        let mut buffers = [[0; PACKET_MAX]; 2];
        let counts = [0, 0].map(core::cell::Cell::new);
        let memory = Summing(&c.memory, counts[0].clone(), counts[1].clone());
        let mut packets = 0;
        loop {
            let one = a.device.transmit(NOW, &a.memory, &mut buffers[0], 1);
            let other = c.device.transmit(NOW, &memory, &mut buffers[1], 1);
            let (Some(one), Some(other)) = (one, other) else { break };
            assert_eq!(buffers[0][..one.len], buffers[1][..other.len]);
            d.take(NOW, other.flow, &buffers[1][..other.len]).unwrap();
            packets += 1;
        }
        assert!(packets > 2 && memory.1.get() + memory.2.get() > 2, "{packets}");
    }
}

/// Sends for so long through a link of 1 Gbit/s behind a line of 10; what the network did, and bytes
/// that arrived.
fn congested(congestion: Option<Dcqcn>) -> (testkit::network::Fates, u64) {
    const SENT: u32 = 1 << 20;
    let rts = RtsAttributes { window: 2000, ..RtsAttributes::shunt(Psn::default()) };
    let mut hosts = Setup { mtu: Mtu::B1024, rts, congestion, ..Setup::default() }.hosts();
    let source = hosts[0].buffer(0, vec![7; 1 << 20], Access::READ);
    let ring = hosts[1].buffer(0, vec![0; 1 << 20], Access::REMOTE_WRITE);
    let slow = Conditions {
        bits_per_second: 1_000_000_000,
        queue_bytes: 200_000,
        mark_above_bytes: 30_000,
        ..Conditions::default()
    };
    let mut wires = [Network::new(slow, 1), Network::new(Conditions::default(), 2)];
    let mut now = NOW;
    let end = NOW.plus_nanos(100_000_000);
    let mut posted = 0;
    while now < end {
        for at in 0..2 {
            while let Some(came) = wires[1 - at].receive(now.nanos()) {
                let flow: Flow = came.tag;
                let arrival = Arrival {
                    addresses: flow.addresses,
                    src_port: flow.src_port,
                    marked: came.marked,
                    identification: Some(0),
                };
                let Host { device, memory, .. } = &mut hosts[at];
                _ = device.receive(now, memory, &arrival, &came.bytes);
            }
            hosts[at].device.on_deadline(now);
            hosts[at].completions();
            if at == 0 && hosts[0].device.qp(hosts[0].qpn).unwrap().sends < 2 {
                let pieces = [Piece { key: source, address: 0, len: SENT }];
                let operation = Operation::Write { address: 0, rkey: ring.0 };
                hosts[0].post(posted, operation, Source::Pieces(&pieces)).unwrap();
                posted += 1;
            }
            // A line of 10 Gbit/s takes 0.9 us for a packet; one each microsecond here.
            if let Some((flow, bytes)) = hosts[at].packet(now) {
                wires[at].send(now.nanos(), flow, &bytes);
            }
        }
        now = now.plus_nanos(1000);
    }
    (wires[0].fates(), hosts[1].device.counters().bytes_in)
}

#[test]
fn with_congestion_control_a_slow_link_is_full_and_loses_little() {
    let (without, bytes_without) = congested(None);
    let dcqcn = Dcqcn {
        line_bits: 10_000_000_000,
        additive_bits: 8_000_000,
        hyper_bits: 40_000_000,
        ..Dcqcn::default()
    };
    let (with, bytes_with) = congested(Some(dcqcn));
    // A tenth of a second at 1 Gbit/s: 12.5 MB.
    assert!(without.lost > 1000, "{without:?} {bytes_without}");
    assert!(with.lost * 20 < without.lost, "{with:?} {without:?}");
    assert!(bytes_with > 9_000_000, "{bytes_with} {with:?}, without {bytes_without} {without:?}");
    println!("{with:?} {bytes_with}, without {without:?} {bytes_without}");
}

#[test]
fn packets_that_came_together_are_taken_as_one_by_one() {
    let setup = Setup::default();
    let mut hosts = setup.hosts();
    let first = [hosts[0].qpn, hosts[1].qpn];
    for host in &mut hosts {
        host.qpn = host.device.create_qp(&setup.qp).unwrap();
    }
    setup.connect(&mut hosts);
    let second = [hosts[0].qpn, hosts[1].qpn];
    let [mut a, mut b] = hosts;
    let key = b.buffer(0, vec![0; 64], Access::LOCAL_WRITE);
    for (ours, theirs) in [(first[0], first[1]), (second[0], second[1])] {
        for id in 0..2 {
            (a.qpn, b.qpn) = (ours, theirs);
            b.post_receive(id, key, 0, 64);
            a.send(id, b"word").unwrap();
        }
    }
    // Those of both in turn, one of them broken, and something that is none.
    let sent = a.packets(NOW);
    let to = |at: usize| Packet::parse(&sent[at].1).unwrap().header.bth.to;
    assert!(sent.len() == 4 && to(0) != to(1), "queue pairs take turns");
    let mut broken = sent[3].1.clone();
    broken[13] ^= 1;
    let mut burst: Vec<&[u8]> = sent.iter().map(|(_, bytes)| &bytes[..]).collect();
    burst.insert(3, &broken);
    burst.insert(1, b"nothing of the kind");
    let flow = sent[0].0;
    let (addresses, src_port) = (flow.addresses, flow.src_port);
    let came = Arrival { addresses, src_port, marked: false, identification: Some(0) };
    b.device.receive_burst(NOW, &mut b.memory, &came, burst.into_iter());
    assert_eq!(b.done().len(), 4);
    let counters = b.device.counters();
    assert_eq!((counters.packets_in, counters.dropped(Reason::Icrc)), (6, 1));
    // Each has one answer, for all that came.
    let answers = b.packets(NOW);
    assert_eq!(answers.len(), 2);
    for (flow, bytes) in answers {
        assert_eq!(a.take(NOW, flow, &bytes), Ok(Outcome::Acknowledged));
    }
    assert_eq!(a.done().len(), 4);
}

/// Two hosts, and a WRITE of so many bytes from the first to the second.
fn writing(len: usize) -> ([Host; 2], Vec<u8>) {
    let rts = RtsAttributes { window: 40, ack_every: 12, ..RtsAttributes::new(Psn::default()) };
    let mut hosts = Setup { rts, identification_end: Some(64), ..Setup::default() }.hosts();
    let bytes: Vec<u8> = (0..len).map(|i| (i * i / 16).to_le_bytes()[0]).collect();
    let key = hosts[0].buffer(0, bytes.clone(), Access::READ);
    let ring = hosts[1].buffer(0, vec![0; len], Access::REMOTE_WRITE);
    let piece = Piece { key, address: 0, len: u32::try_from(len).unwrap() };
    let operation = Operation::Write { address: 0, rkey: ring.0 };
    hosts[0].post(1, operation, Source::Pieces(&[piece])).unwrap();
    (hosts, bytes)
}

#[test]
fn what_acknowledgements_let_go_is_sent_in_long_runs() {
    let rts = RtsAttributes { window: 64, ack_every: 4, ..RtsAttributes::new(Psn::default()) };
    let [mut a, mut b] = Setup { rts, identification_end: Some(64), ..Setup::default() }.hosts();
    let len = 256 * 400;
    let bytes = vec![7; len];
    let key = a.buffer(0, bytes.clone(), Access::READ);
    let ring = b.buffer(0, vec![0; len], Access::REMOTE_WRITE);
    let piece = Piece { key, address: 0, len: u32::try_from(len).unwrap() };
    let operation = Operation::Write { address: 0, rkey: ring.0 };
    a.post(1, operation, Source::Pieces(&[piece])).unwrap();
    let (mut on_their_way, mut runs) = (VecDeque::<Vec<u8>>::new(), Vec::new());
    let mut buffer = vec![0; 1 << 16];
    loop {
        while let Some(run) = a.device.transmit(NOW, &a.memory, &mut buffer, 64) {
            runs.push(run.segments);
            let packets = buffer[..run.len].chunks(run.segment_len).map(<[u8]>::to_vec);
            on_their_way.extend(packets);
        }
        // One packet comes at a time, and is acknowledged at once if that was asked for.
        let Some(packet) = on_their_way.pop_front() else { break };
        b.take_burst(NOW, std::iter::once(&packet[..]));
        for (flow, answer) in b.packets(NOW) {
            a.take(NOW, flow, &answer).unwrap();
        }
    }
    assert_eq!((&b.memory.all[0], a.done()), (&bytes, vec![(1, Status::Success)]));
    let (last, others) = runs.split_last().unwrap();
    // The first two fill the window, a first packet being longer than others, and the last is what is left.
    assert!(others[2..].iter().all(|packets| *packets >= 8), "{runs:?}");
    assert_eq!(others.iter().sum::<usize>() + last, 400);
}

/// All that the first host sends at a time, `segments` at once: each packet with its identification.
fn burst(from: &mut Host, segments: usize) -> Vec<(u16, Vec<u8>)> {
    let (mut buffer, mut all) = (vec![0; 1 << 16], Vec::new());
    while let Some(run) = from.device.transmit(NOW, &from.memory, &mut buffer, segments) {
        let packets = buffer[..run.len].chunks(run.segment_len).map(<[u8]>::to_vec);
        all.extend((0..).zip(packets));
    }
    all
}

#[test]
fn packets_that_are_made_together_are_as_one_by_one() {
    // Of whole packets, and with an end that is none.
    for len in [256 * 30, 256 * 30 + 3, 256 * 3] {
        let ([mut one, _], bytes) = writing(len);
        let ([mut many, mut to], _) = writing(len);
        let (one, many) = (burst(&mut one, 1), burst(&mut many, 64));
        assert_eq!(one.len(), many.len(), "{len}");
        let flow = Flow { addresses: Setup::default().way, src_port: wire::UDP_PORT };
        for ((_, one), (identification, many)) in one.iter().zip(&many) {
            let (body, _) = many.split_last_chunk::<4>().unwrap();
            assert_eq!(one[..one.len() - 4], *body);
            let known = icrc::Identification::Known(*identification);
            assert_eq!(icrc::check(&flow, known, many), Ok(*identification));
        }
        let packets = many.iter().map(|(_, bytes)| &bytes[..]);
        to.take_burst(NOW, packets);
        assert_eq!(to.memory.all[0], bytes, "{len}");
        let counters = to.device.counters();
        let (packets_in, bytes_in) = (counters.packets_in, counters.bytes_in);
        assert_eq!((packets_in, bytes_in), (many.len() as u64, len as u64));
    }
}

#[test]
fn a_packet_that_broke_among_its_like_comes_again() {
    let ([mut a, mut b], bytes) = writing(256 * 30);
    let mut sent = burst(&mut a, 64);
    // In its payload, which is written before that shows.
    sent[9].1[100] ^= 4;
    let packets = sent.iter().map(|(_, bytes)| &bytes[..]);
    b.take_burst(NOW, packets);
    let counters = b.device.counters();
    assert_eq!(counters.dropped(Reason::Icrc), 1);
    assert_eq!((counters.bytes_in, counters.dropped(Reason::OutOfOrder)), (256 * 9, 20));
    assert!(b.memory.summed > 5, "{}", b.memory.summed);
    let mut hosts = [a, b];
    exchange(&mut hosts, NOW);
    assert_eq!(hosts[1].memory.all[0], bytes);
    assert_eq!(hosts[0].done(), [(1, Status::Success)]);
}

#[test]
fn what_memory_does_not_sum_is_taken_as_ever() {
    let ([mut a, mut b], bytes) = writing(256 * 30);
    // A region that is not there any more is refused, also in the middle of a burst.
    let sent = burst(&mut a, 64);
    let (first, rest) = sent.split_at(10);
    b.take_burst(NOW, first.iter().map(|(_, p)| &p[..]));
    assert_eq!(b.memory.all[0][..2560], bytes[..2560]);
    b.memory.gone = Some(0);
    b.take_burst(NOW, rest.iter().map(|(_, p)| &p[..]));
    assert_eq!(b.device.counters().dropped(Reason::Operational), 1);
    assert_eq!(b.device.qp(b.qpn).unwrap().state, State::Error);
}

#[test]
fn where_another_queue_pair_has_written_a_broken_packet_writes_nothing() {
    for moved in [false, true] {
        let (mut hosts, _) = writing(256 * 30);
        let mut sent = burst(&mut hosts[0], 64);
        let deliver = |b: &mut Host, sent: &[(u16, Vec<u8>)]| {
            let packets = sent.iter().map(|(_, bytes)| &bytes[..]);
            b.take_burst(NOW, packets);
        };
        deliver(&mut hosts[1], &sent[..5]);
        assert!(hosts[1].memory.summed > 0);
        if moved {
            // As after a failover: the same bytes over another link.
            let rkey = Packet::parse(&sent[0].1).unwrap().header.reth.unwrap().rkey;
            for host in &mut hosts {
                host.qpn = host.device.create_qp(&Setup::default().qp).unwrap();
            }
            Setup::default().connect(&mut hosts);
            let operation = Operation::Write { address: 0, rkey };
            hosts[0].post(2, operation, Source::Inline(&[7; 10])).unwrap();
            let again = burst(&mut hosts[0], 64);
            deliver(&mut hosts[1], &again);
            assert_eq!(hosts[1].memory.all[0][..10], [7; 10]);
        }
        hosts[1].memory.summed = 0;
        sent[9].1[100] ^= 4;
        deliver(&mut hosts[1], &sent[5..]);
        let there = &hosts[1].memory.all[0][256 * 9..256 * 10];
        assert_eq!(there.iter().all(|byte| *byte == 0), moved);
        assert_eq!(hosts[1].memory.summed == 0, moved);
    }
}

#[test]
fn packets_whose_identification_nobody_foresees_are_written_once() {
    let rts = RtsAttributes { window: 40, ack_every: 12, ..RtsAttributes::new(Psn::default()) };
    let [mut a, mut b] = Setup { rts, ..Setup::default() }.hosts();
    let bytes: Vec<u8> = (0..=255).cycle().take(256 * 30).collect();
    let key = a.buffer(0, bytes.clone(), Access::READ);
    let ring = b.buffer(0, vec![0; bytes.len()], Access::REMOTE_WRITE);
    let piece = Piece { key, address: 0, len: 256 * 30 };
    let operation = Operation::Write { address: 0, rkey: ring.0 };
    a.post(1, operation, Source::Pieces(&[piece])).unwrap();
    let mut sent = burst(&mut a, 64);
    let flow = Flow { addresses: Setup::default().way, src_port: wire::UDP_PORT };
    for (identification, (_, packet)) in (100..).step_by(3).zip(&mut sent) {
        let len = packet.len() - 4;
        icrc::seal(&flow, identification, packet, len).unwrap();
    }
    let packets = sent.iter().map(|(_, bytes)| &bytes[..]);
    b.take_burst(NOW, packets);
    assert_eq!(b.memory.all[0], bytes);
    assert_eq!(b.memory.summed, 0, "each of them once more");
}
