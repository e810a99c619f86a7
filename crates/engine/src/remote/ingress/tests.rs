use roce::{
    Access, Device, DeviceConfig, Fault, Handle, Key, Memory, Mtu, Operation, Outcome, Piece,
    ProtectionDomain, Psn, QpConfig, Qpn, Region, RtrAttributes, RtsAttributes, Secret,
    SendRequest, Source, Time,
};

use super::*;

struct Bytes(Vec<u8>);

impl Memory for Bytes {
    fn read(&self, _: Handle, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        let at = usize::try_from(offset).unwrap();
        to.copy_from_slice(self.0.get(at..at + to.len()).ok_or(Fault)?);
        Ok(())
    }
    fn write(&mut self, _: Handle, offset: u64, from: &[u8]) -> Result<(), Fault> {
        let at = usize::try_from(offset).unwrap();
        self.0.get_mut(at..at + from.len()).ok_or(Fault)?.copy_from_slice(from);
        Ok(())
    }
}

const LEN: u32 = 3000;

fn device(word: u64) -> (Device, Qpn, Key) {
    let mut device = Device::new(&DeviceConfig::default(), Secret::new([word, 1])).unwrap();
    let (domain, access) = (ProtectionDomain(0), Access::REMOTE_WRITE);
    let region = Region { domain, address: 0, len: LEN.into(), access, handle: Handle(0) };
    let key = device.register(region).unwrap();
    let qpn = device.create_qp(&QpConfig::default()).unwrap();
    device.init(qpn).unwrap();
    (device, qpn, key)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

fn way(family: Family) -> Addresses {
    let [src, dst] = match family {
        Family::V4 => [2, 1].map(|host| IpAddr::from([198, 19, 0, host])),
        Family::V6 => [2, 1].map(|host| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, host])),
    };
    Addresses::new(src, dst).unwrap()
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(v4) => v4.octets().into(),
        IpAddr::V6(v6) => v6.octets().into(),
    }
}

/// An IP packet that a router has cut up into fragments of at most `most` bytes.
fn cut_up(family: Family, protocol: u8, id: u32, payload: &[u8], most: usize) -> Vec<Vec<u8>> {
    let way = way(family);
    let word = |n: usize| u16::try_from(n).unwrap().to_be_bytes();
    let pieces = payload.chunks(most).enumerate().map(|(nth, piece)| {
        let (at, more) = (nth * most, (nth + 1) * most < payload.len());
        let mut b = Vec::new();
        match family {
            Family::V4 => {
                b.extend([0x45, 0]);
                b.extend(word(20 + piece.len()));
                b.extend(word(id as usize));
                b.extend(word((at / 8) | (usize::from(more) << 13)));
                b.extend([64, protocol, 0, 0]);
            }
            Family::V6 => {
                b.extend([0x60, 0, 0, 0]);
                b.extend(word(8 + piece.len()));
                b.extend([44, 64]);
            }
        }
        b.extend([octets(way.src()), octets(way.dst())].concat());
        if family == Family::V6 {
            b.extend([protocol, 0]);
            b.extend(word(at | usize::from(more)));
            b.extend(id.to_be_bytes());
        }
        if family == Family::V4 {
            let words = b.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
            let sum: u32 = words.sum();
            let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
            b[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        b.extend(piece);
        b
    });
    pieces.collect()
}

/// A datagram of UDP to this port, cut up.
fn cut(family: Family, port: u16, id: u32, payload: &[u8], most: usize) -> Vec<Vec<u8>> {
    let len = u16::try_from(payload.len() + UDP_BYTES).unwrap();
    let words = [PORT, port, len, 0].map(u16::to_be_bytes);
    cut_up(family, UDP, id, &[words.as_flattened(), payload].concat(), most)
}

/// A WRITE goes over in fragments, and arrives.
fn goes_over(family: Family) {
    let way = way(family);
    let ((mut here, ours, key), (mut there, theirs, rkey)) = (device(1), device(2));
    let ends = [(&mut here, ours, theirs, way), (&mut there, theirs, ours, way.reversed())];
    for (device, own, peer, way) in ends {
        let to = RtrAttributes::new(way, peer, Psn::new(5), Mtu::B4096);
        device.ready_to_receive(own, &to).unwrap();
        device.ready_to_send(own, &RtsAttributes::new(Psn::new(5))).unwrap();
    }
    let (from, mut to) = (Bytes(vec![0x5a; LEN as usize]), Bytes(vec![0; LEN as usize]));
    let pieces = [Piece { key, address: 0, len: LEN }];
    let write = SendRequest {
        id: 0,
        operation: Operation::Write { address: 0, rkey: rkey.0 },
        source: Source::Pieces(&pieces),
        immediate: None,
        signaled: true,
        solicited: false,
    };
    here.post_send(ours, &write).unwrap();
    let mut buffer = vec![0; roce::PACKET_MAX];
    let now = Time::from_nanos(1);
    let sent = here.transmit(now, &from, &mut buffer, 1).unwrap();
    // It was sent with identification 0, of which the checksum is.
    let mut fragments = cut(family, PORT, 0, &buffer[..sent.len], 1000);
    assert!(fragments.len() > 3);
    fragments.reverse();
    let mut assembly = Assembly::new([1, 2]);
    let last = fragments.pop().unwrap();
    for fragment in &fragments {
        assert_eq!(assembly.take(fragment, way.dst(), 1), None);
    }
    assert_eq!(assembly.waiting.held.len(), fragments.len());
    let packet = assembly.take(&last, way.dst(), 1).unwrap();
    assert_eq!(packet.arrival.identification, (family == Family::V4).then_some(0));
    let outcome = there.receive(now, &mut to, &packet.arrival, &packet.bytes);
    assert_eq!(outcome, Ok(Outcome::Message));
    assert!(to.0 == from.0);
    assert!(assembly.waiting.held.is_empty(), "nothing is kept");
    if family == Family::V4 {
        // Another identification than it was sent with is found out, as any wrong bit is.
        let arrival = Arrival { identification: Some(1), ..packet.arrival };
        let outcome = there.receive(now, &mut to, &arrival, &packet.bytes);
        assert_eq!(outcome, Err(roce::Reason::Icrc));
    }
}

#[test]
fn packets_in_fragments_arrive() {
    goes_over(Family::V4);
    goes_over(Family::V6);
}

#[test]
fn what_is_not_for_us_comes_to_nothing() {
    let mut assembly = Assembly::new([1, 2]);
    let (ours, payload) = (way(Family::V4).dst(), [7; 100]);
    let mut take = |packets: Vec<Vec<u8>>, address| {
        packets.iter().filter_map(|packet| assembly.take(packet, address, 1)).count()
    };
    assert_eq!(take(cut(Family::V4, PORT, 1, &payload, 64), ours), 1);
    assert_eq!(take(cut(Family::V4, 53, 2, &payload, 64), ours), 0, "another port");
    assert_eq!(take(cut(Family::V4, PORT, 3, &payload, 64), [10, 0, 0, 1].into()), 0);
    assert_eq!(take(cut(Family::V4, PORT, 4, &payload, 4096), ours), 0, "no fragment");
    assert_eq!(take(cut_up(Family::V4, 6, 5, &payload, 48), ours), 0, "not UDP");
    // The length in UDP's header says more than there is.
    let mut long = cut(Family::V4, PORT, 6, &payload, 64);
    long[0][24..26].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(take(long, ours), 0);
    assert!(assembly.waiting.held.is_empty());
}

/// Each of two taps at one interface sees all fragments of both addresses.
#[test]
fn two_addresses_of_one_interface_do_not_take_each_others() {
    for family in [Family::V4, Family::V6] {
        let (ours, other) = (way(family).dst(), way(family).src());
        let mut assembly = Assembly::new([1, 2]);
        let mut whole = 0;
        for fragment in cut(family, PORT, 1, &[7; 100], 64) {
            assert_eq!(assembly.take(&fragment, other, 1), None);
            whole += usize::from(assembly.take(&fragment, ours, 1).is_some());
            assert_eq!(assembly.take(&fragment, other, 1), None);
        }
        assert_eq!(whole, 1);
        assert!(assembly.waiting.held.is_empty(), "nothing is kept for nobody");
    }
}

#[test]
fn no_room_is_taken_by_what_goes_elsewhere() {
    let mut assembly = Assembly::new([1, 2]);
    let first = &cut(Family::V4, PORT, 1, &[7; 100], 64)[0];
    assert_eq!(assembly.take(first, [198, 19, 0, 3].into(), 1), None);
    // The same octets in a header of the other version, and headers that end too early.
    let first = &cut(Family::V6, PORT, 1, &[7; 100], 64)[0];
    assert_eq!(assembly.take(first, way(Family::V4).dst(), 1), None);
    for len in 0..40 {
        assert_eq!(assembly.take(&first[..len], way(Family::V6).dst(), 1), None);
    }
    assert!(assembly.waiting.held.is_empty());
}

#[test]
fn what_waits_is_bounded_and_given_up() {
    let mut assembly = Assembly::new([1, 2]);
    for id in 0..20_000 {
        let first = &cut(Family::V4, PORT, id, &[7; 1400], 1000)[0];
        assert_eq!(assembly.take(first, way(Family::V4).dst(), 1), None);
    }
    let held: usize = assembly.waiting.held.values().map(|bytes| bytes.len()).sum();
    assert!(held > 0 && held as u64 <= MEMORY, "{held}");
    assert!(assembly.shard.gauges().datagrams < DATAGRAMS, "memory is what limits them");
    assert_eq!(assembly.waiting.held.len() as u64, u64::from(assembly.shard.gauges().datagrams));
    for _ in 0..DATAGRAMS {
        assembly.expire(2 * TIMEOUT_NS);
    }
    assert!(assembly.waiting.held.is_empty());
}

#[test]
fn a_packet_goes_to_the_vector_of_its_queue_pair() {
    let packet = |qpn: u8| [0, 0, 0, 0, 0, 0x12, 0x34, qpn];
    assert_eq!([0, 1, 5, 6].map(|qpn| vector_of(&packet(qpn), 4)), [0, 1, 1, 2]);
    assert_eq!([3, 4].map(|qpn| vector_of(&packet(qpn), 1)), [0, 0]);
    assert_eq!(vector_of(&[], 4), 0);
}

#[test]
fn no_more_waits_for_a_busy_vector_than_there_is_room_for() {
    let vectors: Vec<Arc<Inbox<Order>>> = (0..2).map(|_| Arc::new(Inbox::new().unwrap())).collect();
    let mut counts = Counts::default();
    let mut hand = |qpn: u8, len: usize| {
        let mut bytes = vec![0; len].into_boxed_slice();
        bytes[7] = qpn;
        let arrival = Arrival {
            addresses: way(Family::V4),
            src_port: PORT,
            marked: false,
            identification: None,
        };
        hand_over(Packet { arrival, bytes }, 0, &vectors, &mut counts).is_some()
    };
    assert!(hand(0, 8), "ours does not wait");
    for _ in 0..1000 {
        assert!(!hand(1, 4096));
    }
    let waits: Vec<usize> = vectors[1]
        .take()
        .into_iter()
        .map(|order| match order {
            Order::Packet(packet) => packet.bytes.len(),
            _ => panic!("nothing else was left"),
        })
        .collect();
    let bytes: usize = waits.iter().sum();
    assert!((WAITING_BYTES / 2..=WAITING_BYTES).contains(&bytes), "{bytes}");
    assert!(!hand(1, 4096));
    assert_eq!(vectors[1].take().len(), 1, "there is room again");
    assert!(vectors[0].take().is_empty());
    assert_eq!((counts.packets, counts.dropped), (1002, 1000 - waits.len() as u64));
}
