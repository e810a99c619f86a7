use proptest::prelude::*;

use super::*;
use crate::name::RKey;

fn roundtrip(version: Version, response: bool, body: Body, len: usize) {
    let message = Message { version, response, body };
    let bytes = message.emit();
    assert_eq!(bytes.len(), len);
    assert_eq!(Message::parse(&bytes), Ok(message));
}

#[test]
fn version_1_has_what_version_2_has_not() {
    let key = |n: u32| NewKey { known: RKey(n), new: RKey(n + 1), vaddr: u64::from(n + 2) };
    let cont = AddLinkCont { link: 2, left: 5, keys: [key(0x10), key(0x20)] };
    roundtrip(Version::V1, true, Body::AddLinkCont(cont), 44);
    let body = Body::AddLinkCont(cont);
    let bytes = Message { version: Version::V1, response: true, body }.emit();
    // Linux has two bytes before the keys, Wireshark none.
    assert_eq!(bytes[..8], [3, 44, 0, 0x80, 2, 5, 0, 0]);
    let pair = |n: u8| [0, 0, 0, n, 0, 0, 0, n + 1, 0, 0, 0, 0, 0, 0, 0, n + 2];
    assert_eq!((&bytes[8..24], &bytes[24..40]), (&pair(0x10)[..], &pair(0x20)[..]));
    let rejected = AddLink { reject: Some(RejectReason::NoAlternatePath), ..AddLink::default() };
    let bytes =
        Message { version: Version::V1, response: true, body: Body::AddLink(rejected.clone()) }
            .emit();
    assert_eq!(bytes[..4], [2, 44, 1, 0xc0]);
    roundtrip(Version::V1, true, Body::AddLink(rejected), 44);
    let mut v2 = bytes;
    v2[0] |= 0x20;
    let parsed = Message::parse(&v2).unwrap();
    let Body::AddLink(add) = parsed.body else { panic!() };
    assert_eq!(add.reject, Some(RejectReason::Unsaid));
}

#[test]
fn keys_are_continued_in_a_message_of_their_own() {
    let key = |link| LinkKey { link, rkey: RKey(0x0102_0304), vaddr: 0x0506_0708 };
    let keys = [key(4), key(5), key(6)];
    for (negative, retry, flags) in [(false, false, 0x80), (true, false, 0xa0), (true, true, 0xb0)]
    {
        let cont = ConfirmRkeyCont { left: 3, keys, negative, retry };
        roundtrip(Version::V2, true, Body::ConfirmRkeyCont(cont), 44);
        let bytes =
            Message { version: Version::V2, response: true, body: Body::ConfirmRkeyCont(cont) };
        let bytes = bytes.emit();
        assert_eq!(bytes[..5], [0x28, 44, 0, flags, 3]);
        assert_eq!(bytes[5..18], [4, 1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 7, 8]);
    }
}

#[test]
fn longer_messages() {
    let keys = vec![NewKey::default(); 255];
    let v2 = AddLinkV2 { keys, ..AddLinkV2::default() };
    let add = AddLink { v2: Some(v2), ..AddLink::default() };
    roundtrip(Version::V2, false, Body::AddLink(add), 72 + 255 * 16);
    let delete = |n| DeleteRkey { keys: vec![RKey(7); n], answer: DeleteRkeyAnswer::default() };
    roundtrip(Version::V2, false, Body::DeleteRkey(delete(255)), 8 + 255 * 4);
    roundtrip(Version::V1, false, Body::DeleteRkey(delete(8)), 44);
    let body = Body::DeleteRkey(delete(2));
    let bytes = Message { version: Version::V1, response: false, body }.emit();
    assert_eq!(bytes[..16], [9, 44, 0, 0, 2, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 7]);
    let gids = vec![Default::default(); 2];
    roundtrip(Version::V2, false, Body::RequestAddLink(RequestAddLink { gids, reject: None }), 60);
}

#[test]
fn counts_of_keys_in_either_order() {
    let v2 = AddLinkV2 { keys: vec![NewKey::default()], ..AddLinkV2::default() };
    let body = Body::AddLink(AddLink { v2: Some(v2), ..AddLink::default() });
    let message = Message { version: Version::V2, response: false, body };
    let mut bytes = message.emit();
    assert_eq!(bytes[70..72], [1, 0], "as Linux on x86 reads it");
    bytes.swap(70, 71);
    assert_eq!(Message::parse(&bytes), Ok(message));
    (bytes[70], bytes[71]) = (1, 1);
    assert_eq!(Message::parse(&bytes), Err(ParseError::Count(257)));
}

#[test]
fn what_is_not_known_may_be_ignored_or_not() {
    let with_type = |kind: u8| {
        let mut bytes = [0; LLC_LEN];
        (bytes[0], bytes[1]) = (kind, 44);
        Message::parse(&bytes).expect_err("unknown")
    };
    assert_eq!(with_type(0x2f), ParseError::Type(0x2f));
    assert_eq!(with_type(0x31), ParseError::Type(0x31));
    assert_eq!(with_type(0x23), ParseError::Type(0x23), "continuation is of version 1");
    assert_eq!(with_type(0x05), ParseError::Type(0x05), "requests for links are of version 2");
    assert_eq!(with_type(0x8a), ParseError::Optional(0x8a));
    assert_eq!(Message::parse(&[0x27; 43]), Err(ParseError::Short(43)));
    let mut long = [0; LLC_LEN];
    (long[0], long[1]) = (0x07, 45);
    assert_eq!(Message::parse(&long), Err(ParseError::Length(45)));
}

#[test]
fn entries_of_confirm_rkey_are_those_that_are_meant() {
    let mut confirm = ConfirmRkey::default();
    assert!(confirm.others().is_empty());
    confirm.this.link = 200;
    assert_eq!(confirm.others().len(), 2);
}

proptest! {
    #[test]
    fn what_is_written_is_read(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0..10u8, v2 in any::<bool>()) {
        let mut bytes = bytes;
        if bytes.len() >= 4 {
            bytes[0] = kind | if v2 { 0x20 } else { 0 };
            (bytes[1], bytes[2]) = (44, 0);
        }
        if let Ok(message) = Message::parse(&bytes) {
            let again = message.emit();
            prop_assert!(again.len() <= LLC_MAX);
            prop_assert_eq!(Message::parse(&again), Ok(message));
        }
    }
}
