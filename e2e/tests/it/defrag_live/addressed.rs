//! To whom fragments are addressed: with `--xdp` those that are others' stay the kernel's.

use std::net::{Ipv4Addr, SocketAddrV6, UdpSocket};

use e2e::run::eventually;
use sys::bpf::Classic;
use sys::packet::Copies;

use super::stage::{Stage, Told, fragment4, fragment6, payload, seal};
use super::{LIMIT, METRICS, frame, number, page};

const XDP: [&str; 6] = ["--xdp", "--json", "--stats", "0", "--metrics", METRICS];
const XDP_TO: [&str; 8] = ["--xdp", "--to", "tap7", "--json", "--stats", "0", "--metrics", METRICS];
/// An address that nobody on the cable has.
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// To this host, to another one (`PACKET_HOST`, `PACKET_OTHERHOST`).
const HOST: u32 = 0;
const OTHER_HOST: u32 = 3;

/// What host B's kernel gets of frames to others.
fn look(stage: &Stage) -> Copies {
    look_at(stage, OTHER_HOST)
}

/// What it gets of frames that are addressed so.
fn look_at(stage: &Stage, addressed: u32) -> Copies {
    let line = |code, no, k| Classic { code, yes: 0, no, k };
    let filter =
        [line(0x20, 0, 0xffff_f004), line(0x15, 1, addressed), line(6, 0, u32::MAX), line(6, 0, 0)];
    let index = stage.end().index;
    stage.inside(|| Copies::open(index, &filter, 1 << 20).unwrap())
}

/// Identifications of the packets that have come.
fn ids(copies: &Copies) -> Vec<u16> {
    let mut packet = [0; 2000];
    let next =
        || copies.receive(&mut packet).ok().map(|_| u16::from_be_bytes([packet[4], packet[5]]));
    std::iter::from_fn(next).collect()
}

/// A datagram in two fragments.
fn two(id: u16) -> [Vec<u8>; 2] {
    let part = |at, more| frame(&[], 0x0800, &fragment4(id, at, more, &[7; 1480]));
    [part(0, true), part(1480, false)]
}

fn whole(stage: &Stage) -> u64 {
    number(&page(stage), "\nshunt_defrag_datagrams_total ")
}

/// As on a port of a bridge, behind which others are.
#[test]
fn fragments_for_others_are_left_to_the_kernel() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&XDP);
    let kernel = look(&stage);
    stage.send_frames_to(OTHER, &two(1));
    stage.send_frames(&two(2));
    // To all, and to a group.
    stage.send_frames_to([0xff; 6], &two(3));
    stage.send_frames_to([1, 0, 0x5e, 0, 0, 1], &two(4));
    eventually("what is the host's is whole", || whole(&stage) >= 3);
    let told = Told::of(&shunt.stop());
    assert_eq!(["fragments", "datagrams"].map(|name| told.get(name)), [6, 3], "of others, too");
    let mut seen = Vec::new();
    eventually("the kernel has them", || {
        seen.extend(ids(&kernel));
        seen == [1, 1]
    });
}

/// As they come where somebody else has made the interface promiscuous; a virtual cable does not filter at all.
#[test]
fn fragments_for_others_are_looked_at_on_demand() {
    for (options, datagrams) in [(&[][..], 1), (&["--promiscuous"], 2)] {
        let Some(stage) = Stage::new() else { return };
        let mut shunt = stage.shunt(&[&XDP[1..], options].concat());
        stage.send_frames_to(OTHER, &two(1));
        stage.send_frames(&two(2));
        eventually("what is the host's is whole", || whole(&stage) >= datagrams);
        let told = Told::of(&shunt.stop());
        let seen = ["fragments", "datagrams"].map(|name| told.get(name));
        assert_eq!(seen, [2 * datagrams, datagrams], "{options:?}");
    }
}

#[test]
fn an_address_that_changes_is_followed() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&XDP);
    let kernel = look(&stage);
    let old = stage.end().address;
    stage.set_address("02:00:00:00:00:07");
    // It looks once a second: until then the kernel has them.
    let mut id = 0;
    eventually("what is addressed to the new one is taken", || {
        id += 1;
        stage.send_frames(&two(id));
        whole(&stage) > 0
    });
    assert!(ids(&kernel).is_empty(), "they were addressed to the host");
    stage.send_frames_to(old, &two(9000));
    let mut seen = Vec::new();
    eventually("what is addressed to the old one is not", || {
        seen.extend(ids(&kernel));
        seen == [9000, 9000]
    });
    shunt.stop();
}

/// The same packet to another address.
fn to(destination: Ipv4Addr, mut packet: Vec<u8>) -> Vec<u8> {
    packet[16..20].copy_from_slice(&destination.octets());
    seal(&mut packet);
    frame(&[], 0x0800, &packet)
}

/// By the hardware address they are the host's: it is their router. Whole they would be too long for the next link.
#[test]
fn fragments_that_the_host_would_forward_are_left_to_the_kernel() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&XDP_TO);
    let kernel = look_at(&stage, HOST);
    for id in 1..3 {
        stage.send_frames(&two(id).map(|frame| to([10, 99, 0, 1].into(), frame[14..].to_vec())));
        // fd99::2
        stage.send_frames(&[(0, true), (1400, false)].map(|(at, more)| {
            let mut packet = fragment6(id.into(), at, more, &[7; 1400], 1);
            packet[25] = 0x99;
            frame(&[], 0x86dd, &packet)
        }));
    }
    // Behind a tag, too.
    stage.send_frames(&two(5).map(|frame| {
        let there = to([10, 99, 0, 1].into(), frame[14..].to_vec());
        super::frame(&[(0x8100, 7)], 0x0800, &there[14..])
    }));
    stage.send_frames(&two(9));
    eventually("what is the host's is whole", || whole(&stage) >= 1);
    let told = Told::of(&shunt.stop());
    assert_eq!(["fragments", "datagrams"].map(|name| told.get(name)), [2, 1], "of others, too");
    let mut seen = Vec::new();
    eventually("the kernel has them", || {
        // Where IPv4 has it IPv6 has a length, which is none of these.
        seen.extend(ids(&kernel));
        seen.iter().filter(|id| [1, 2, 5].contains(id)).count() >= 6
    });
}

/// Such addresses mean something on one interface only: on the device nobody is there.
#[test]
fn groups_and_addresses_of_the_link_are_heard_where_they_were() {
    let Some(stage) = Stage::new() else { return };
    let group = Ipv4Addr::new(239, 7, 7, 7);
    let mut shunt = stage.shunt(&XDP_TO);
    stage.trust("tap7");
    let listener = stage.inside(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 4488)).unwrap();
        socket.join_multicast_v4(&group, &Ipv4Addr::new(10, 77, 0, 2)).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket
    });
    let body = payload(3, 2000);
    let udp: Vec<u8> = [&[0, 9, 0x11, 0x88][..], &2008u16.to_be_bytes(), &[0, 0], &body].concat();
    let parts = [(0, true), (1480, false)].map(|(at, more)| {
        let end = (at + 1480).min(udp.len());
        to(group, fragment4(7, at, more, &udp[at..end]))
    });
    stage.send_frames_to([1, 0, 0x5e, 7, 7, 7], &parts);
    let mut room = vec![0; 9000];
    let len = listener.recv(&mut room).unwrap_or_else(|e| panic!("group: {e}; {}", shunt.said()));
    assert!(room[..len] == body);

    let local = stage.link_local();
    let listener = stage.inside(|| {
        let socket = UdpSocket::bind(SocketAddrV6::new(local, 4489, 0, stage.end().index)).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket
    });
    stage.send_to_link_local(&body, 4489);
    let len = listener.recv(&mut room).unwrap_or_else(|e| panic!("fe80: {e}; {}", shunt.said()));
    assert!(room[..len] == body);
    assert_eq!(Told::of(&shunt.stop()).get("fragments"), 0);
}

#[test]
fn addresses_of_the_host_that_come_and_go_are_followed() {
    let Some(stage) = Stage::new() else { return };
    let mut shunt = stage.shunt(&XDP_TO);
    let kernel = look_at(&stage, HOST);
    let mut id = 0;
    let mut comes = |address: [u8; 4]| {
        id += 1;
        let before = whole(&stage);
        stage.send_frames(&two(id).map(|frame| to(address.into(), frame[14..].to_vec())));
        let (mut is_taken, mut is_left) = (false, false);
        eventually("it goes one way or the other", || {
            is_left |= ids(&kernel).contains(&id);
            is_taken = whole(&stage) > before;
            is_taken || is_left
        });
        is_taken
    };
    assert!(!comes([10, 77, 0, 3]), "it is not there yet");
    stage.types("ip address add 10.77.0.3/24 dev vb").unwrap();
    // It looks once a second.
    eventually("it is taken", || comes([10, 77, 0, 3]));
    stage.types("ip address delete 10.77.0.3/24 dev vb").unwrap();
    eventually("it is not any more", || !comes([10, 77, 0, 3]));
    // Where an interface is down its addresses are not the host's.
    stage.types("ip link add nobody type veth peer name other").unwrap();
    stage.types("ip address add 10.78.0.3/24 dev nobody").unwrap();
    stage.types("ip link set nobody up").unwrap();
    eventually("another interface's is taken", || comes([10, 78, 0, 3]));
    stage.types("ip link set nobody down").unwrap();
    eventually("it is not while that is down", || !comes([10, 78, 0, 3]));
    shunt.stop();
}
