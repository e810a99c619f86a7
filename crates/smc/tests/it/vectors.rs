//! Messages that Linux 6.12 exchanged, read and written again bit for bit.
//!
//! A line is the captures in which the bytes occurred and the bytes. Of each kind of message there is at
//! least one from each capture that has one: 01 first contact, 02 subsequent contact, 03 a megabyte, 04 ten
//! connections at once, 05 a slow reader, 06 half-close, abort and urgent bytes, 07 declines, 08 tests of
//! links and their end, 10 two links, 11 failover, 12 to 14 a prototype against the kernel, 61 Linux 6.1.
//!
//! Of CLC those are all that were captured, 61 of 84 being distinct. All distinct messages that went over links are in
//! the packets that `roce` is tested with.

use std::collections::BTreeMap;

use smc::cdc::{Cdc, ProducerFlags, StateFlags};
use smc::clc::{self, Answer, Diagnosis, Frame, Kinds};
use smc::llc::{self, Body, DeleteReason, RejectReason, Version};
use smc::{Cursor, Gid, Mtu, Psn, Qpn, RKey, SizeClass, Token};

pub(crate) const CLC: &str = include_str!("../vectors/clc.txt");
pub(crate) const LLC: &str = include_str!("../vectors/llc.txt");
pub(crate) const CDC: &str = include_str!("../vectors/cdc.txt");
/// Packets that begin with their IP header.
const PACKETS: &[u8] = include_bytes!("../../../roce/tests/vectors/linux.pcap");

fn bytes(hex: &str) -> Vec<u8> {
    assert_eq!(hex.len() % 2, 0);
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex"))
        .collect()
}

fn lines(text: &str) -> impl Iterator<Item = (&str, Vec<u8>)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        line.split_once(' ').map(|(from, hex)| (from, bytes(hex))).expect("two columns")
    })
}

/// The first message from a capture that is like this.
pub(crate) fn first<T>(text: &str, capture: &str, like: impl Fn(&[u8]) -> Option<T>) -> T {
    let of = lines(text).filter(|(from, _)| from.split(',').any(|c| c == capture));
    of.filter_map(|(_, bytes)| like(&bytes)).next().expect("a message like this")
}

#[test]
fn each_clc_message_is_written_as_it_was_read() {
    let mut kinds = BTreeMap::new();
    for (from, bytes) in lines(CLC) {
        let message = clc::Message::parse(&bytes).unwrap_or_else(|e| panic!("{from}: {e}"));
        assert_eq!(message.emit(), bytes, "{from}: {message:?}");
        *kinds.entry(bytes[4]).or_insert(0) += 1;
    }
    assert_eq!(kinds.keys().copied().collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn each_llc_message_is_written_as_it_was_read() {
    let mut kinds = BTreeMap::new();
    for (from, bytes) in lines(LLC) {
        let message = llc::Message::parse(&bytes).unwrap_or_else(|e| panic!("{from}: {e}"));
        assert_eq!(message.emit(), bytes, "{from}: {message:?}");
        *kinds.entry((bytes[0], message.response)).or_insert(0) += 1;
    }
    let both = |kind| [(kind, false), (kind, true)];
    let want: Vec<_> = [0x21, 0x22, 0x24, 0x26, 0x27, 0x29].into_iter().flat_map(both).collect();
    assert_eq!(kinds.into_keys().collect::<Vec<_>>(), want);
}

#[test]
fn each_cdc_message_is_written_as_it_was_read() {
    let mut flags = 0;
    for (from, bytes) in lines(CDC) {
        let message = Cdc::parse(&bytes).unwrap_or_else(|e| panic!("{from}: {e}"));
        assert_eq!(message.emit()[..], bytes, "{from}: {message:?}");
        flags |= message.producer_flags.0;
    }
    assert_eq!(flags, 0xe8, "no capture asks for a cursor, all other flags are there");
}

/// What went by RC SEND ONLY, behind the headers of IPv4, UDP and InfiniBand, and before the ICRC.
fn sent() -> Vec<&'static [u8]> {
    const SEND_ONLY: u8 = 4;
    let (mut rest, mut all) = (&PACKETS[24..], Vec::new());
    while let Some((head, packets)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes(*head[8..].first_chunk().expect("a length"));
        let packet;
        (packet, rest) = packets.split_at(len as usize);
        if packet[28] == SEND_ONLY {
            all.push(&packet[40..packet.len() - 4]);
        }
    }
    all
}

#[test]
fn each_message_that_went_over_links_is_written_as_it_was_read() {
    let (cdc, llc): (Vec<_>, Vec<_>) = sent().into_iter().partition(|bytes| bytes[0] == 0xfe);
    assert_eq!((cdc.len(), llc.len()), (4083, 107));
    for bytes in cdc {
        let message = Cdc::parse(bytes).unwrap_or_else(|e| panic!("{bytes:x?}: {e}"));
        assert_eq!(message.emit()[..], *bytes, "{message:?}");
    }
    for bytes in llc {
        let message = llc::Message::parse(bytes).unwrap_or_else(|e| panic!("{bytes:x?}: {e}"));
        assert_eq!(message.emit(), bytes, "{message:?}");
    }
}

#[test]
fn every_prefix_asks_for_what_is_missing_and_no_more() {
    for (from, bytes) in lines(CLC) {
        for have in 0..bytes.len() {
            let total = if have < clc::HEADER_LEN { clc::HEADER_LEN } else { bytes.len() };
            assert_eq!(clc::frame(&bytes[..have]), Ok(Frame::Needs(total - have)), "{from}");
        }
        let mut more = bytes.clone();
        more.extend_from_slice(b"application");
        assert_eq!(clc::frame(&more), Ok(Frame::Whole(bytes.len())), "{from}");
    }
}

#[test]
fn a_message_of_another_length_is_none() {
    for (from, bytes) in lines(CLC) {
        for len in 0..bytes.len() {
            assert!(clc::Message::parse(&bytes[..len]).is_err(), "{from}");
        }
        // The header says a byte more or less, and so has the message.
        for wrong in [bytes.len() - 1, bytes.len() + 1] {
            let mut changed = bytes[..bytes.len() - 4].to_vec();
            changed.resize(wrong - 4, 0);
            changed.extend_from_slice(&bytes[bytes.len() - 4..]);
            changed[5..7].copy_from_slice(&u16::try_from(wrong).unwrap().to_be_bytes());
            assert!(clc::Message::parse(&changed).is_err(), "{from}: {wrong}");
        }
    }
}

#[test]
fn proposal_of_linux() {
    let proposal = first(CLC, "01", |b| match clc::Message::parse(b) {
        Ok(clc::Message::Proposal(proposal)) => Some(proposal),
        _ => None,
    });
    assert_eq!((proposal.v1, proposal.v2, proposal.version), (Kinds::Neither, Kinds::R, 2));
    assert!(!proposal.system.is_valid());
    let offer = proposal.offer.expect("of version 2");
    assert_eq!((offer.release, offer.max_conns, offer.max_links), (1, 255, 2));
    assert_eq!(offer.features, 1);
    assert_eq!(offer.gid, Gid::v4([10, 99, 0, 1].into()));
    assert_eq!(offer.eids, ["TESTEID.SMCV2".parse().unwrap()]);
}

#[test]
fn confirm_of_linux_with_two_ports() {
    let confirm = first(CLC, "10", |b| match clc::Message::parse(b) {
        Ok(clc::Message::Confirm(Answer::Rdma(answer))) => Some(answer),
        _ => None,
    });
    assert!(confirm.first_contact && confirm.system.is_valid());
    assert_eq!((confirm.qpn, confirm.psn), (Qpn::new(0x11), Psn::new(0x0c_d00f)));
    assert_eq!((confirm.rkey, confirm.vaddr), (RKey(0x3d1), 0xff11_0000_0763_0000));
    assert_eq!((confirm.element, confirm.token), (1, Token(1)));
    assert_eq!((confirm.size, confirm.mtu), (SizeClass::new(2), Mtu::BYTES_1024));
    let v2 = confirm.v2.expect("of version 2");
    let first = v2.first.expect("of first contact");
    assert!(first.direct);
    assert_eq!((first.os, first.release), (2, 1));
    assert_eq!(first.host.trim_ascii(), b"a");
    let v2x = first.v2x.expect("of release 1");
    assert_eq!((v2x.max_conns, v2x.max_links, v2x.features, v2x.vendor), (255, 2, 1, [0; 4]));
    let (gids, _) = v2.gids.expect("a list");
    assert_eq!(gids, [1, 11].map(|last| Gid::v4([10, 99, 0, last].into())));
}

#[test]
fn subsequent_contact_has_no_extension() {
    let accept = first(CLC, "02", |b| match clc::Message::parse(b) {
        Ok(clc::Message::Accept(Answer::Rdma(answer))) => Some(answer),
        _ => None,
    });
    assert!(!accept.first_contact);
    let v2 = accept.v2.expect("of version 2");
    assert!(v2.first.is_none() && v2.gids.is_none());
}

#[test]
fn decline_without_a_common_eid() {
    let decline = first(CLC, "07c", |b| match clc::Message::parse(b) {
        Ok(clc::Message::Decline(decline)) => Some(decline),
        _ => None,
    });
    assert_eq!((decline.diagnosis, decline.out_of_sync), (Diagnosis::NoDevice, false));
    assert_eq!((decline.version, decline.os), (2, 2));
}

/// The first LLC message of a capture of which `like` makes something.
fn llc<T>(capture: &str, response: bool, like: impl Fn(Body) -> Option<T>) -> T {
    first(LLC, capture, |b| {
        let message = llc::Message::parse(b).ok()?;
        assert_eq!(message.version, Version::V2);
        if message.response == response { like(message.body) } else { None }
    })
}

#[test]
fn add_link_of_linux_and_its_rejection() {
    let add = |body| if let Body::AddLink(add) = body { Some(add) } else { None };
    let request = llc("10", false, add);
    assert_eq!((request.link, request.qpn, request.mtu), (2, Qpn::new(0x11), Mtu::BYTES_1024));
    assert_eq!(request.gid, Gid::v4([10, 99, 0, 12].into()));
    let v2 = request.v2.expect("of version 2");
    // The count is little endian, which is what Linux on x86 does.
    assert_eq!(v2.keys.len(), 1);
    assert_eq!((v2.keys[0].known, v2.keys[0].new), (RKey(0x3db), RKey(0x3c2)));
    let rejection = llc("01", true, add);
    assert_eq!((rejection.reject, rejection.v2), (Some(RejectReason::Unsaid), None));
    assert_eq!(rejection.link, 2);
}

#[test]
fn keys_of_two_links() {
    let confirm = llc("11", false, |body| match body {
        Body::ConfirmRkey(confirm) => Some(confirm),
        _ => None,
    });
    assert_eq!(confirm.this.rkey, RKey(0x3db));
    assert_eq!(confirm.others().len(), 1);
    assert_eq!(confirm.others()[0].link, 2);
}

#[test]
fn end_of_a_link_and_of_all() {
    let delete = |body| if let Body::DeleteLink(delete) = body { Some(delete) } else { None };
    let all = llc("08", false, delete);
    assert_eq!((all.link, all.orderly, all.reason), (None, false, DeleteReason::Operator));
    let one = llc("11", false, delete);
    assert_eq!((one.link, one.orderly, one.reason), (Some(1), true, DeleteReason::LostPath));
}

#[test]
fn lengths_in_either_order() {
    let (_, mut bytes) = lines(LLC).next().unwrap();
    let message = llc::Message::parse(&bytes).unwrap();
    assert_eq!(bytes[1..3], [44, 0]);
    bytes.swap(1, 2);
    assert_eq!(llc::Message::parse(&bytes), Ok(message));
    (bytes[1], bytes[2]) = (43, 0);
    assert!(llc::Message::parse(&bytes).is_ok(), "43 << 8 in the other order");
    (bytes[1], bytes[2]) = (0, 0);
    assert_eq!(llc::Message::parse(&bytes), Err(llc::ParseError::Length(0)));
}

#[test]
fn a_full_ring_an_urgent_byte_and_a_move() {
    let cdc =
        |capture, like: fn(&Cdc) -> bool| first(CDC, capture, |b| Cdc::parse(b).ok().filter(like));
    let full = cdc("05", |c| c.producer_flags.has(ProducerFlags::WRITE_BLOCKED));
    assert_eq!(full.producer, Cursor { wrap: 1, count: 0 });
    let urgent = cdc("06", |c| c.producer_flags.has(ProducerFlags::URGENT_PRESENT));
    assert!(urgent.producer_flags.has(ProducerFlags::URGENT_PENDING));
    let moved = cdc("11", |c| c.producer_flags.has(ProducerFlags::FAILOVER_VALIDATION));
    assert_eq!((moved.producer, moved.consumer), Default::default());
    let done = cdc("06", |c| c.state_flags.has(StateFlags::SENDING_DONE));
    assert_eq!(done.state_flags.0 & 0x1f, 0);
}
