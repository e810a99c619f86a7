use proptest::prelude::*;

use super::*;
use crate::eid::Eid;
use crate::name::{Gid, Mac, SizeClass, SystemId};

fn roundtrip(message: &Message, len: usize) {
    let bytes = message.emit();
    assert_eq!(bytes.len(), len);
    assert_eq!(frame(&bytes), Ok(Frame::Whole(len)));
    assert_eq!(Message::parse(&bytes).as_ref(), Ok(message));
}

fn proposal(v1: Kinds, v2: Kinds, prefixes: usize, eids: usize, ism_gids: usize) -> Message {
    let gids = vec![IsmGid { gid: 7, chid: 0xffff }; ism_gids];
    let ism = IsmV2Offer { seid: Eid::default(), reserved: [0; 16], gids };
    let offer = V2Offer {
        release: 1,
        eids: vec![Eid::default(); eids],
        ism: v2.has_d().then_some(ism),
        ..V2Offer::default()
    };
    let prefixes = Prefixes { v6: vec![([0xfd; 16], 64); prefixes], ..Prefixes::default() };
    Message::Proposal(Box::new(Proposal {
        v1,
        v2,
        prefix_offset: if v1 == Kinds::Neither { 0 } else { 40 },
        prefixes: (v1 != Kinds::Neither).then_some(prefixes),
        offer: (v2 != Kinds::Neither).then_some(offer.clone()),
        ..Proposal::rdma_v2(Default::default(), Default::default(), offer)
    }))
}

#[test]
fn proposals_have_the_lengths_of_their_parts() {
    use Kinds::{Both, D, Neither, R};
    // Fixed part and trailer 44, for SMC-D 40, prefixes 8 + 17 each, version 2 40 + 32 each EID, SMC-Dv2
    // 48 + 10 each device.
    roundtrip(&proposal(Neither, R, 0, 1, 0), 156);
    roundtrip(&proposal(R, Neither, 0, 0, 0), 92);
    roundtrip(&proposal(R, R, 2, 1, 0), 198);
    roundtrip(&proposal(Neither, D, 0, 1, 2), 224);
    roundtrip(&proposal(Both, Both, 8, 8, 8), MESSAGE_MAX);
}

#[test]
fn answers_have_the_lengths_of_their_parts() {
    let rdma = |v2| Answer::Rdma(Box::new(RdmaAnswer { v2, ..RdmaAnswer::default() }));
    roundtrip(&Message::Accept(rdma(None)), 68);
    roundtrip(&Message::Accept(rdma(Some(RdmaV2::default()))), 108);
    let first = |gids: Option<usize>| {
        let gids = gids.map(|n| (vec![Default::default(); n], [0; 3]));
        let v2 = RdmaV2 { first: Some(FirstContact::default()), gids, ..RdmaV2::default() };
        Answer::Rdma(Box::new(RdmaAnswer {
            first_contact: true,
            v2: Some(v2),
            ..RdmaAnswer::default()
        }))
    };
    roundtrip(&Message::Accept(first(None)), 160);
    roundtrip(&Message::Confirm(first(Some(0))), 164);
    roundtrip(&Message::Confirm(first(Some(2))), 196);
}

#[test]
fn answers_of_smcd() {
    let ism = |v2: Option<IsmV2>| {
        let first_contact = v2.as_ref().is_some_and(|v2| v2.first.is_some());
        Answer::Ism(Box::new(IsmAnswer {
            first_contact,
            gid: 1,
            dmb_token: 2,
            size: SizeClass::new(6),
            link_id: 3,
            v2,
            ..IsmAnswer::default()
        }))
    };
    roundtrip(&Message::Accept(ism(None)), 48);
    let v2 = IsmV2 { chid: 0xff01, gid_extension: 9, ..IsmV2::default() };
    roundtrip(&Message::Confirm(ism(Some(v2.clone()))), 78);
    let old = FirstContact { release: 0, v2x: None, ..FirstContact::default() };
    roundtrip(&Message::Accept(ism(Some(IsmV2 { first: Some(old), ..v2.clone() }))), 114);
    let new = Some(FirstContact::default());
    roundtrip(&Message::Accept(ism(Some(IsmV2 { first: new, ..v2 }))), 130);
}

#[test]
fn declines() {
    for (version, len) in [(1, 28), (2, 44)] {
        let decline = Decline::new(version, Default::default(), Diagnosis::OutOfSync);
        assert!(decline.out_of_sync);
        roundtrip(&Message::Decline(decline), len);
    }
}

#[test]
fn each_diagnosis_is_told_by_its_number() {
    for diagnosis in DIAGNOSES.iter().copied().chain([Diagnosis::Other(7)]) {
        for (version, len) in [(1, 28), (2, 44)] {
            let message = Message::Decline(Decline::new(version, SystemId([3; 8]), diagnosis));
            roundtrip(&message, len);
            let bytes = message.emit();
            assert_eq!(bytes[16..20], diagnosis.code().to_be_bytes(), "{diagnosis:?}");
            // With the flag that has the receiver end its link group, for that one alone.
            assert_eq!(
                bytes[7] & FLAG_FIRST != 0,
                diagnosis == Diagnosis::OutOfSync,
                "{diagnosis:?}"
            );
        }
    }
}

/// So many bytes that are like no others.
fn distinct<const N: usize>(first: u8) -> [u8; N] {
    core::array::from_fn(|at| first.wrapping_add(at.to_le_bytes()[0]))
}

#[track_caller]
fn stands(bytes: &[u8], at: usize, want: &[u8]) {
    assert_eq!(bytes[at..at + want.len()], *want, "at {at}");
}

/// No capture has a device for SMC-D.
#[test]
fn fields_of_an_answer_of_smcd_are_where_linux_has_them() {
    let first = FirstContact { os: 2, release: 1, host: distinct(0xa0), ..Default::default() };
    let eid = Eid::from_wire(distinct(0x60));
    let v2 = IsmV2 { chid: 0x0506, eid, gid_extension: 0x0708_090a_0b0c_0d0e, first: Some(first) };
    let answer = IsmAnswer {
        first_contact: true,
        gid: 0x1112_1314_1516_1718,
        dmb_token: 0x2122_2324_2526_2728,
        element: 0x31,
        size: SizeClass::new(4),
        link_id: 0x4142_4344,
        ..IsmAnswer::default()
    };
    let old = Message::Confirm(Answer::Ism(Box::new(answer.clone()))).emit();
    let new = IsmAnswer { v2: Some(v2), ..answer };
    let new = Message::Accept(Answer::Ism(Box::new(new))).emit();
    // Type, length, and flags: the version, first contact, SMC-D.
    stands(&old, 0, &[0xe2, 0xd4, 0xc3, 0xc4, 3, 0, 48, 0x19]);
    stands(&new, 0, &[0xe2, 0xd4, 0xc3, 0xc4, 2, 0, 130, 0x29]);
    for bytes in [&old, &new] {
        stands(bytes, 8, &distinct::<8>(0x11));
        stands(bytes, 16, &distinct::<8>(0x21));
        stands(bytes, 24, &[0x31, 0x40, 0, 0, 0x41, 0x42, 0x43, 0x44]);
        stands(bytes, bytes.len() - 4, &EYE_D);
    }
    stands(&new, 32, &[5, 6]);
    stands(&new, 34, &distinct::<32>(0x60));
    stands(&new, 66, &distinct::<8>(7));
    stands(&new, 74, &[0, 0x21, 0, 0]);
    stands(&new, 78, &distinct::<32>(0xa0));
}

/// Nor does any offer version 1, or two kinds of SMC.
#[test]
fn fields_of_a_whole_proposal_are_where_linux_has_them() {
    let eids = [0x20, 0x40].map(|first| Eid::from_wire(distinct(first)));
    let gids = [(0x5152_5354_5556_5758, 0xff01), (0x6162_6364_6566_6768, 0xff01)];
    let gids = gids.map(|(gid, chid)| IsmGid { gid, chid }).to_vec();
    let offer = V2Offer {
        release: 1,
        seid_valid: true,
        gid: Gid(distinct(0xb0)),
        max_conns: 0x71,
        max_links: 0x72,
        features: 0x7374,
        eids: eids.to_vec(),
        ism: Some(IsmV2Offer { seid: Eid::from_wire(distinct(0x80)), reserved: [0; 16], gids }),
        ..V2Offer::default()
    };
    let v6 = vec![(distinct(0xc0), 64)];
    let proposal = Proposal {
        v1: Kinds::Both,
        v2: Kinds::Both,
        gid: Gid(distinct(0xd0)),
        ism: Some(IsmArea {
            gid: 0x0102_0304_0506_0708,
            chid: 0x090a,
            oui: distinct(0x11),
            vendor: distinct(0x14),
            ..IsmArea::default()
        }),
        prefix_offset: 40,
        prefixes: Some(Prefixes { subnet: [10, 99, 0, 0], mask_len: 24, reserved: [0; 2], v6 }),
        ..Proposal::rdma_v2(SystemId(distinct(0xe0)), Mac(distinct(0xf0)), offer)
    };
    let bytes = Message::Proposal(Box::new(proposal)).emit();
    stands(&bytes, 0, &[0xe2, 0xd4, 0xc3, 0xd9, 1, 1, 25, 0x2f]);
    stands(&bytes, 8, &distinct::<8>(0xe0));
    stands(&bytes, 16, &distinct::<16>(0xd0));
    stands(&bytes, 32, &distinct::<6>(0xf0));
    stands(&bytes, 38, &[0, 40]);
    stands(&bytes, 40, &distinct::<10>(1));
    stands(&bytes, 50, &[0, 53]);
    stands(&bytes, 52, &distinct::<8>(0x11));
    stands(&bytes, 80, &[10, 99, 0, 0, 24, 0, 0, 1]);
    stands(&bytes, 88, &distinct::<16>(0xc0));
    stands(&bytes, 104, &[64]);
    // Version 2.
    stands(&bytes, 105, &[2, 2, 0, 0x11, 0, 0, 0, 96]);
    stands(&bytes, 113, &distinct::<16>(0xb0));
    stands(&bytes, 129, &distinct::<4>(0x71));
    stands(&bytes, 145, &distinct::<32>(0x20));
    stands(&bytes, 177, &distinct::<32>(0x40));
    // SMC-D of it.
    stands(&bytes, 209, &distinct::<32>(0x80));
    stands(&bytes, 257, &distinct::<8>(0x51));
    stands(&bytes, 265, &[0xff, 1]);
    stands(&bytes, 267, &distinct::<8>(0x61));
    stands(&bytes, 275, &[0xff, 1, 0xe2, 0xd4, 0xc3, 0xd9]);
}

#[test]
fn what_is_wrong_is_told() {
    let bytes = proposal(Kinds::Neither, Kinds::R, 0, 1, 0).emit();
    let changed = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        Message::parse(&bytes).expect_err("wrong")
    };
    assert_eq!(changed(0, 0), ParseError::EyeCatcher);
    assert_eq!(changed(3, 0xc4), ParseError::Trailer);
    assert_eq!(changed(4, 5), ParseError::Type(5));
    assert_eq!(changed(6, 155), ParseError::Length(156));
    assert_eq!(changed(7, 0x0a), ParseError::Version(0));
    assert_eq!(changed(39, 41), ParseError::Offset(41));
    assert_eq!(changed(51, 29), ParseError::Offset(29));
    assert_eq!(changed(80, 9), ParseError::Count(9));
    assert_eq!(changed(80, 2), ParseError::Length(156));
    assert_eq!(changed(81, 1), ParseError::Count(1));
    assert_eq!(changed(87, 1), ParseError::Offset(1));
    assert_eq!(changed(155, 0), ParseError::Trailer);
    assert_eq!(frame(b"\xe2\xd4\xc3\xd9\x01\xff\xff\x22"), Err(ParseError::Length(65_535)));
    assert_eq!(frame(b"GET / HT"), Err(ParseError::EyeCatcher));
}

proptest! {
    #[test]
    fn what_is_read_is_written_as_it_was(
        kind in 1..5u8, len in 28..200u16, flags in any::<u8>(), ism in any::<bool>(),
        body in prop::collection::vec(any::<u8>(), 200), few in any::<bool>(),
    ) {
        let eye = if ism { EYE_D } else { EYE_R };
        let mut bytes = eye.to_vec();
        bytes.put_u8(kind);
        bytes.put_u16(len);
        bytes.put_u8(flags);
        bytes.put(&body[..usize::from(len) - 12]);
        bytes.put(&eye);
        if kind == 1 && few && bytes.len() > 90 {
            // What a proposal seldom is by chance.
            bytes[38..40].copy_from_slice(&[0, 0]);
            bytes[50..52].copy_from_slice(&[0, 28]);
            (bytes[7], bytes[80], bytes[81]) = (0x22, len.to_be_bytes()[1] / 64, 0);
        }
        if let Ok(message) = Message::parse(&bytes) {
            prop_assert_eq!(message.emit(), bytes);
        }
    }
}
