use super::*;
use crate::defrag::tests::packets::{gre, gtp, ip4, ip6, udp, vxlan};
use crate::defrag::wrap::{TooLong, refit};

fn inner() -> Vec<u8> {
    ip4(17, 0, &udp(1000, 2000, b"inside"))
}

/// Opens a packet behind a header of 3 bytes; the kinds of headers around, and the inner packet's place.
#[track_caller]
fn check(packet: &[u8], inner: &[u8], wraps: &[Wrap]) -> Place {
    let frame = [b"abc", packet].concat();
    let place = open(&frame, 3).expect("there is a tunnel");
    assert_eq!(&frame[place.at..place.at + inner.len()], inner);
    assert_eq!(place.wraps, wraps);
    place
}

#[test]
fn each_kind_is_opened() {
    let inner = inner();
    let outer = Wrap::Ip { at: 3 };
    check(&ip4(4, 0, &inner), &inner, &[outer]);
    check(&ip6(4, &inner), &inner, &[outer]);
    let inner6 = ip6(17, &udp(1000, 2000, b"inside"));
    check(&ip4(41, 0, &inner6), &inner6, &[outer]);
    check(&ip4(47, 0, &gre(None, None, &inner)), &inner, &[outer]);
    check(&ip4(47, 0, &gre(Some(7), None, &inner)), &inner, &[outer]);
    check(&ip4(47, 0, &gre(Some(7), Some(()), &inner)), &inner, &[outer, Wrap::Gre { at: 23 }]);
    let udp_wrap = Wrap::Udp { at: 23, ip: 3 };
    check(&ip4(17, 0, &udp(9, 4789, &vxlan(5, &inner))), &inner, &[outer, udp_wrap]);
    let gtp_wrap = Wrap::Gtp { at: 31 };
    check(&ip4(17, 0, &udp(9, 2152, &gtp(5, &[], &inner))), &inner, &[outer, udp_wrap, gtp_wrap]);
    let extended = gtp(5, &[1, 0x10, 9, 0], &inner);
    check(&ip4(17, 0, &udp(9, 2152, &extended)), &inner, &[outer, udp_wrap, gtp_wrap]);
}

#[test]
fn tunnels_between_two_hosts_are_told_apart() {
    let scopes: Vec<_> = [0, 1, 2]
        .iter()
        .flat_map(|n| {
            let inner = inner();
            [
                ip4(47, 0, &gre(Some(*n), None, &inner)),
                ip4(17, 0, &udp(9, 4789, &vxlan(*n, &inner))),
                ip4(17, 0, &udp(9, 2152, &gtp(*n, &[], &inner))),
            ]
        })
        .chain([ip4(4, 0, &inner()), ip4(47, 0, &gre(None, None, &inner()))])
        .map(|packet| open(&packet, 0).unwrap().scope)
        .collect();
    for (at, scope) in scopes.iter().enumerate() {
        assert!(!scopes[..at].contains(scope), "{scopes:x?}");
    }
}

#[test]
fn what_is_no_tunnel_stays_closed() {
    let inner = inner();
    assert_eq!(open(&inner, 0), None);
    assert_eq!(
        open(&ip4(17, 0, &udp(4789, 53, &vxlan(5, &inner))), 0),
        None,
        "an answer to a client"
    );
    assert_eq!(open(&ip4(17, 0, &udp(9, 2152, &[0x32, 1, 0, 4, 0, 0, 0, 0])), 0), None, "an echo");
    assert_eq!(open(&ip4(4, 0, &[0x60; 40]), 0), None, "another version than it says");
    let mut routed = gre(None, None, &inner);
    routed[0] |= 0x40;
    assert_eq!(open(&ip4(47, 0, &routed), 0), None);
}

#[test]
fn packets_that_end_anywhere() {
    let inner = inner();
    for whole in [
        ip4(47, 0, &gre(Some(7), Some(()), &inner)),
        ip4(17, 0, &udp(9, 4789, &vxlan(5, &inner))),
        ip4(17, 0, &udp(9, 2152, &gtp(5, &[1, 0x10, 9, 0], &inner))),
        ip6(41, &ip6(17, &[])),
    ] {
        for end in 1..whole.len() - 20 {
            let _ = open(&whole[..end], 0);
        }
    }
}

/// Lengths and checksums after a change of the inner packet are those of a packet made so.
#[test]
fn headers_fit_the_new_length() {
    let (short, long) = (ip4(17, 0, &udp(1, 2, b"x")), ip4(17, 0, &udp(1, 2, &[7; 2001])));
    type Maker<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;
    let makers: [Maker<'_>; 7] = [
        &|inner| ip4(4, 0, inner),
        &|inner| ip6(4, inner),
        &|inner| ip4(47, 0, &gre(Some(7), Some(()), inner)),
        &|inner| ip4(17, 0, &udp(9, 4789, &vxlan(5, inner))),
        &|inner| ip6(17, &udp(9, 4789, &vxlan(5, inner))),
        &|inner| ip4(17, 0, &udp(9, 2152, &gtp(5, &[1, 0x10, 9, 0], inner))),
        &|inner| ip4(4, 0, &ip4(17, 0, &udp(9, 2152, &gtp(5, &[], inner)))),
    ];
    for (at, make) in makers.iter().enumerate() {
        let (mut frame, expected) = (make(&short), make(&long));
        let mut place = open(&frame, 0).unwrap();
        if let Some(deeper) = open(&frame, place.at) {
            place = Place { wraps: [place.wraps, deeper.wraps].concat(), ..deeper };
        }
        frame.truncate(place.at);
        frame.extend_from_slice(&long);
        assert_eq!(refit(&mut frame, &place.wraps), Ok(()));
        assert_eq!(frame, expected, "maker {at}");
        frame.resize(70_000, 0);
        assert_eq!(refit(&mut frame, &place.wraps), Err(TooLong), "maker {at}");
    }
}

#[test]
fn udp_over_ipv6_keeps_or_gains_its_checksum() {
    let mut frame = ip6(17, &udp(9, 4789, &vxlan(5, &inner())));
    let wraps = open(&frame, 0).unwrap().wraps;
    frame[46..48].copy_from_slice(&[1, 2]);
    refit(&mut frame, &wraps).unwrap();
    let sum = u16_at(&frame, 46).unwrap();
    assert!(sum != 0 && sum != 0x0102);
    // With its checksum in place, everything sums to zero.
    assert_eq!(total(&[&frame[8..]], frame.len() - 40), 0xffff);
}

/// The sum of RFC 1071 over all of these, and what stands for a datagram of UDP of so many bytes.
fn total(all: &[&[u8]], len: usize) -> u64 {
    let words = |b: &&[u8]| -> u64 {
        b.chunks(2).map(|w| u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0))).sum()
    };
    let mut total = all.iter().map(words).sum::<u64>() + len as u64 + 17;
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total
}

/// A routing header that is not used up names the address that the checksum is over.
#[test]
fn udp_behind_a_routing_header_has_a_checksum_for_where_it_ends_up() {
    let (first, last) = ([0x11; 16], [0x77; 16]);
    let header = |units: u8, kind: u8, left: u8, addresses: &[[u8; 16]]| {
        [&[17, units, kind, left, 0, 0, 0, 0], addresses.as_flattened()].concat()
    };
    let plain = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    for (at, (routing, to)) in [
        (header(4, 4, 1, &[last, first]), last),
        (header(4, 0, 1, &[first, last]), last),
        (header(2, 2, 1, &[last]), last),
        (header(4, 4, 0, &[last, first]), plain),
        (header(4, 9, 1, &[last, first]), plain),
        // With no room for what it claims to name.
        (header(0, 4, 1, &[]), plain),
        (header(0, 0, 1, &[]), plain),
    ]
    .into_iter()
    .enumerate()
    {
        let datagram = udp(9, 4789, &vxlan(5, &inner()));
        let mut frame = ip6(43, &[&routing[..], &datagram].concat());
        let wraps = open(&frame, 0).unwrap().wraps;
        let begin = 40 + routing.len();
        frame[begin + 6..begin + 8].copy_from_slice(&[1, 2]);
        refit(&mut frame, &wraps).unwrap();
        let all = [&frame[8..24], &to, &frame[begin..]];
        assert_eq!(total(&all, datagram.len()), 0xffff, "header {at}");
    }
}
