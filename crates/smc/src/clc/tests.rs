use proptest::prelude::*;

use super::*;
use crate::eid::Eid;
use crate::name::{SizeClass, SystemId};

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
