//! Packets of others: Linux 6.12 over soft RoCE, and a peer written in Python.
//!
//! Some stand in text files by what they are. `linux.pcap` is what is left of 18,677 captured ones where one is kept of
//! those that differ only in their numbers (of the packet, of messages, the identification) or, among WRITEs, in what is
//! written and to where; each distinct message that went by SEND is there.

use roce::icrc::{self, Identification};
use roce::wire::{Opcode, Packet, Place, Syndrome};
use roce::*;

use crate::hosts::{DOMAIN, Host};

const KINDS: &str = include_str!("../vectors/kinds.txt");
const ECHO: &str = include_str!("../vectors/echo.txt");
const WRITE: &str = include_str!("../vectors/write.txt");
const LINUX: &[u8] = include_bytes!("../vectors/linux.pcap");

/// An IPv4 packet of a file.
struct Vector {
    flow: Flow,
    identification: u16,
    /// What is behind UDP.
    transport: Vec<u8>,
}

fn hex(line: &str) -> Vec<u8> {
    let digit = |c: char| u8::try_from(c.to_digit(16).expect("hexadecimal")).unwrap();
    let digits: Vec<u8> = line.chars().map(digit).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

impl Vector {
    fn new(ip: &[u8]) -> Self {
        let address = |at: usize| <[u8; 4]>::try_from(&ip[at..at + 4]).unwrap();
        let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        assert_eq!((ip[0], ip[9], word(2)), (0x45, 17, u16::try_from(ip.len()).unwrap()));
        // DF, and the port of RoCE.
        assert_eq!((word(6), word(22)), (0x4000, wire::UDP_PORT));
        let addresses = Addresses::V4 { src: address(12).into(), dst: address(16).into() };
        Self {
            flow: Flow { addresses, src_port: word(20) },
            identification: word(4),
            transport: ip[28..].to_vec(),
        }
    }

    fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.transport).unwrap()
    }
}

/// The packets of a file, and their names if they have some.
fn vectors(text: &str) -> Vec<(&str, Vector)> {
    let mut name = "";
    let mut all = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with("45") {
            all.push((name, Vector::new(&hex(line))));
        } else {
            name = line;
        }
    }
    all
}

/// The packets of a capture, which begin with their IP header.
fn captured(mut pcap: &'static [u8]) -> impl Iterator<Item = Vector> {
    pcap = &pcap[24..];
    std::iter::from_fn(move || {
        let (head, rest) = pcap.split_first_chunk::<16>()?;
        let len = u32::from_le_bytes(*head[8..].first_chunk().unwrap());
        let (packet, rest) = rest.split_at(len as usize);
        pcap = rest;
        Some(Vector::new(packet))
    })
}

fn every() -> Vec<(&'static str, Vector)> {
    let texts = [KINDS, ECHO, WRITE].into_iter().flat_map(vectors);
    texts.chain(captured(LINUX).map(|vector| ("captured", vector))).collect()
}

#[test]
fn each_is_made_again_bit_for_bit() {
    assert_eq!(every().len(), 4335);
    for (name, vector) in every() {
        let packet = vector.packet();
        let mut again = vec![0xee; vector.transport.len()];
        let end = packet.emit(&mut again).unwrap();
        let sealed = icrc::seal(&vector.flow, vector.identification, &mut again, end);
        assert_eq!(sealed, Some(again.len()), "{name}");
        assert_eq!(again, vector.transport, "{name}");
    }
}

#[test]
fn each_crc_is_right_and_gives_the_identification_away() {
    for (name, vector) in every() {
        let Vector { flow, identification, mut transport } = vector;
        let exact = Identification::Known(identification);
        assert_eq!(icrc::check(&flow, exact, &transport), Ok(identification), "{name}");
        let solved = icrc::check(&flow, Identification::Unknown, &transport);
        assert_eq!(solved, Ok(identification), "{name}");
        let last = transport.len() - 1;
        for at in [0, 9, 12, last] {
            transport[at] ^= 0x10;
            let solved = icrc::check(&flow, Identification::Unknown, &transport);
            assert!(solved.is_err(), "{name} {at}");
            transport[at] ^= 0x10;
        }
    }
}

#[test]
fn each_is_what_its_name_says() {
    let opcode = |name: &str| match name {
        "send_only" => Opcode::Send(Place::Only, false),
        "write_first" => Opcode::Write(Place::First, false),
        "write_middle" => Opcode::Write(Place::Middle, false),
        "write_last" => Opcode::Write(Place::Last, false),
        "write_only" => Opcode::Write(Place::Only, false),
        "acknowledge" => Opcode::Acknowledge,
        _ => panic!("{name}"),
    };
    for (name, vector) in vectors(KINDS) {
        let words: Vec<&str> = name.split('_').collect();
        let at = words.iter().position(|word| word.parse::<usize>().is_ok()).unwrap();
        let Packet { header, payload } = vector.packet();
        assert_eq!(header.bth.opcode, opcode(&words[..at].join("_")), "{name}");
        assert_eq!(payload.len(), words[at].parse().unwrap(), "{name}");
        assert_eq!(header.bth.pkey, wire::PKEY_DEFAULT);
        if let Some(aeth) = header.aeth {
            assert_eq!(aeth.syndrome, Syndrome::Ack(wire::CREDITS_UNUSED));
        }
    }
}

/// The same packet for another queue pair and, if it has one, another key.
fn to(vector: &Vector, qpn: Qpn, rkey: u32) -> Vec<u8> {
    let mut packet = vector.packet();
    packet.header.bth.to = qpn;
    if let Some(reth) = &mut packet.header.reth {
        reth.rkey = rkey;
    }
    let mut bytes = vec![0; vector.transport.len()];
    let end = packet.emit(&mut bytes).unwrap();
    icrc::seal(&vector.flow, vector.identification, &mut bytes, end).unwrap();
    bytes
}

/// A host in the place of the receiver of the first packet, ready for it.
fn stand_in(vectors: &[(&str, Vector)], peer: Qpn) -> (Host, Key) {
    let first = &vectors[0].1;
    let is_request = |v: &Vector| v.packet().header.aeth.is_none();
    let theirs =
        vectors.iter().map(|(_, v)| v).filter(|v| v.flow.addresses == first.flow.addresses);
    let reth = theirs.clone().find_map(|v| v.packet().header.reth).unwrap();
    let mut host = Host::new(&DeviceConfig::default(), 9);
    host.qpn = host.device.create_qp(&QpConfig { domain: DOMAIN, ..QpConfig::default() }).unwrap();
    let ring = host.buffer(reth.address, vec![0; 65_536], Access::REMOTE_WRITE);
    let inbox = host.buffer(0, vec![0; 48 * 100], Access::LOCAL_WRITE);
    let psn = theirs.clone().find(|v| is_request(v)).unwrap().packet().header.bth.psn;
    let addresses = first.flow.addresses.reversed();
    let rtr = RtrAttributes {
        src_port: first.flow.src_port,
        ..RtrAttributes::new(addresses, peer, psn, Mtu::B1024)
    };
    host.device.init(host.qpn).unwrap();
    for id in 0..48 {
        host.post_receive(id, inbox, id * 100, 100);
    }
    host.device.ready_to_receive(host.qpn, &rtr).unwrap();
    (host, ring)
}

#[test]
fn a_connection_of_linux_is_answered_as_linux_did() {
    let vectors = vectors(ECHO);
    let first = &vectors[0].1;
    // Both ends of that connection had this number.
    let peer = Qpn::new(0x11);
    let (mut host, ring) = stand_in(&vectors, peer);
    let mut answers = Vec::new();
    let mut theirs = Vec::new();
    for (_, vector) in &vectors {
        let mine = vector.flow.addresses != first.flow.addresses;
        let is_answer = vector.packet().header.aeth.is_some();
        if mine && is_answer {
            theirs.push(vector.packet().header);
        }
        if mine || is_answer {
            continue;
        }
        let arrival = Arrival {
            addresses: vector.flow.addresses,
            src_port: vector.flow.src_port,
            marked: false,
            identification: None,
        };
        let bytes = to(vector, host.qpn, ring.0);
        let outcome = host.device.receive(Time::ZERO, &mut host.memory, &arrival, &bytes);
        assert_eq!(outcome, Ok(Outcome::Message));
        for (flow, bytes) in host.packets(Time::ZERO) {
            assert_eq!(flow.addresses, vector.flow.addresses.reversed());
            answers.push(Packet::parse(&bytes).unwrap().header);
        }
    }
    assert!(answers.len() >= 6);
    assert_eq!(answers, theirs);
    assert_eq!(host.memory.all[0][..6], *b"hello\0");
    let received = host.completions();
    assert!(received.iter().all(|done| done.status == Status::Success && done.solicited));
    assert_eq!(received.len() + 1, answers.len(), "all but the write took a request");
}

#[test]
fn a_write_of_many_packets_lands_where_linux_put_it() {
    let vectors = vectors(WRITE);
    let (mut host, ring) = stand_in(&vectors, Qpn::new(0x11));
    let mut expected = Vec::new();
    for (at, (_, vector)) in vectors.iter().enumerate() {
        expected.extend_from_slice(vector.packet().payload);
        let arrival = Arrival {
            addresses: vector.flow.addresses,
            src_port: vector.flow.src_port,
            marked: false,
            identification: Some(vector.identification),
        };
        let bytes = to(vector, host.qpn, ring.0);
        let outcome = host.device.receive(Time::ZERO, &mut host.memory, &arrival, &bytes);
        let last = at + 1 == vectors.len();
        assert_eq!(outcome, Ok(if last { Outcome::Message } else { Outcome::Payload }));
    }
    let reth = vectors[0].1.packet().header.reth.unwrap();
    assert_eq!(expected.len(), usize::try_from(reth.len).unwrap());
    assert_eq!(host.memory.all[0][..expected.len()], expected);
    assert_eq!(host.packets(Time::ZERO).len(), 1, "one acknowledgement for all");
}

#[test]
fn our_write_is_bit_for_bit_the_one_of_linux() {
    // The same memory, numbers and addresses give the same packets, but for the identification and where
    // an acknowledgement is asked for in the middle.
    let vectors = vectors(WRITE);
    let first = vectors[0].1.packet();
    let reth = first.header.reth.unwrap();
    let bytes: Vec<u8> = vectors.iter().flat_map(|(_, v)| v.packet().payload.to_vec()).collect();
    let mut host = Host::new(&DeviceConfig::default(), 9);
    host.qpn = host.device.create_qp(&QpConfig { domain: DOMAIN, ..QpConfig::default() }).unwrap();
    let key = host.buffer(0, bytes, Access::READ);
    let addresses = vectors[0].1.flow.addresses;
    let rtr = RtrAttributes {
        src_port: vectors[0].1.flow.src_port,
        ..RtrAttributes::new(addresses, first.header.bth.to, Psn::default(), Mtu::B1024)
    };
    host.device.init(host.qpn).unwrap();
    host.device.ready_to_receive(host.qpn, &rtr).unwrap();
    host.device.ready_to_send(host.qpn, &RtsAttributes::new(first.header.bth.psn)).unwrap();
    let source = [Piece { key, address: 0, len: reth.len }];
    let operation = Operation::Write { address: reth.address, rkey: reth.rkey };
    host.post(1, operation, Source::Pieces(&source)).unwrap();
    let ours = host.packets(Time::ZERO);
    assert_eq!(ours.len(), vectors.len());
    for ((flow, bytes), (_, vector)) in ours.iter().zip(&vectors) {
        assert_eq!(*flow, vector.flow);
        let mut theirs = vector.transport.clone();
        let end = theirs.len() - wire::ICRC_BYTES;
        assert_eq!(icrc::seal(flow, 0, &mut theirs, end), Some(bytes.len()));
        assert_eq!(*bytes, theirs);
    }
}
