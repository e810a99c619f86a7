use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::eid::Eid;
use crate::limits::Config;
use crate::llc::{
    AddLink, ConfirmLink, ConfirmRkey, ConfirmRkeyCont, DeleteRkey, DeleteRkeyAnswer, LinkKey,
    RejectReason,
};
use crate::name::{Mac, Mtu, Psn, Qpn, RKey};

const START: Time = Time::from_nanos(0);
const FIRST: LinkSlot = LinkSlot::FIRST;

fn after(millis: u64) -> Time {
    START.after(Duration::from_millis(millis))
}

fn terms(shunt: bool, max_links: u8) -> Terms {
    let eid = Eid::default();
    Terms {
        release: 1,
        max_conns: 16,
        max_links,
        features: 0,
        eid,
        peer_is_shunt: shunt,
        marks: false,
    }
}

fn end(n: u8) -> LinkEnd {
    let gid = Gid::v4([10, 0, 0, n].into());
    LinkEnd {
        gid,
        mac: Mac::default(),
        qpn: Qpn::new(n.into()),
        psn: Psn::default(),
        mtu: Mtu::BYTES_1024,
    }
}

fn peer_end(terms: Option<Terms>) -> PeerEnd {
    let LinkEnd { gid, qpn, mtu, .. } = end(9);
    let system = SystemId([9; 8]);
    PeerEnd { answer: RdmaAnswer { system, gid, qpn, mtu, ..RdmaAnswer::default() }, terms }
}

fn proposed(terms: Terms) -> Proposed {
    Proposed { system: SystemId([9; 8]), gid: end(9).gid, mac: Mac::default(), terms }
}

fn limits() -> Limits {
    Config { max_links: 2, ..Config::default() }.limits().unwrap()
}

/// What a group wants done, messages parsed.
#[derive(Debug, PartialEq, Eq)]
enum Did {
    Say(LinkSlot, bool, Body),
    Do(Action),
}

fn all(group: &mut Group) -> Vec<Did> {
    let did = |action| match action {
        Action::Send { link, bytes } => {
            let Message { version, response, body } = Message::parse(&bytes).unwrap();
            assert_eq!(version, Version::V2);
            Did::Say(link, response, body)
        }
        action => Did::Do(action),
    };
    std::iter::from_fn(|| group.poll()).map(did).collect()
}

fn hear(group: &mut Group, link: LinkSlot, response: bool, body: Body, now: Time) -> Received {
    let bytes = Message { version: Version::V2, response, body }.emit();
    group.on_message(link, &bytes, now)
}

fn confirm_link(link: u8) -> Body {
    Body::ConfirmLink(ConfirmLink { link, eye_catcher_bits: 3, ..ConfirmLink::default() })
}

/// A client's group with a link that works.
fn client(shunt: bool, max_links: u8) -> Group {
    let terms = terms(shunt, max_links);
    let mut group = Group::client(limits(), &peer_end(Some(terms)), end(1), START).unwrap();
    assert_eq!(all(&mut group), [Did::Do(Action::ReadyLink { link: FIRST, peer: end(9) })]);
    hear(&mut group, FIRST, false, confirm_link(1), START);
    let did = all(&mut group);
    let Did::Say(FIRST, true, Body::ConfirmLink(answer)) = &did[0] else { panic!("{did:?}") };
    assert_eq!((answer.link, answer.eye_catcher_bits), (1, 3));
    assert_eq!(did[1..], [Did::Do(Action::LinkActive(FIRST))]);
    group
}

/// A server's group with a link that works.
fn server(shunt: bool, max_links: u8) -> Group {
    let terms = terms(shunt, max_links);
    let mut group = Group::server(limits(), &proposed(terms), end(1));
    assert!(group.poll().is_none(), "the Confirm is not here");
    group.first_contact(&peer_end(Some(terms)), START);
    let did = all(&mut group);
    assert_eq!(did[0], Did::Do(Action::ReadyLink { link: FIRST, peer: end(9) }));
    let Did::Say(FIRST, false, Body::ConfirmLink(ask)) = &did[1] else { panic!("{did:?}") };
    assert_eq!((ask.link, ask.max_conns, ask.max_links), (1, 16, max_links));
    hear(&mut group, FIRST, true, confirm_link(1), START);
    assert_eq!(all(&mut group)[0], Did::Do(Action::LinkActive(FIRST)));
    group
}

#[test]
fn a_first_link_that_is_not_confirmed_is_told_to_the_handshake() {
    let terms = terms(false, 1);
    let mut group = Group::client(limits(), &peer_end(Some(terms)), end(1), START).unwrap();
    assert_eq!(group.next_deadline(), Some(after(4000)));
    let _ = all(&mut group);
    group.on_deadline(after(3999));
    assert!(group.poll().is_none());
    group.on_deadline(after(4000));
    let timeout = Action::FirstLinkFailed(Diagnosis::TimeoutConfirmLink);
    assert_eq!(all(&mut group), [Did::Do(timeout)]);
    assert!(group.is_ended() && group.next_deadline().is_none());

    let mut group = Group::client(limits(), &peer_end(Some(terms)), end(1), START).unwrap();
    let _ = all(&mut group);
    let with_eye_catchers = Body::ConfirmLink(ConfirmLink { link: 1, ..ConfirmLink::default() });
    hear(&mut group, FIRST, false, with_eye_catchers, START);
    let refused = Action::FirstLinkFailed(Diagnosis::EyeCatcher);
    assert_eq!(all(&mut group), [Did::Do(refused)]);
    assert!(Group::client(limits(), &peer_end(None), end(1), START).is_none());
}

#[test]
fn a_first_link_that_is_lost_is_told_to_the_handshake() {
    let terms = terms(false, 1);
    let mut of_client = Group::client(limits(), &peer_end(Some(terms)), end(1), START).unwrap();
    let mut of_server = Group::server(limits(), &proposed(terms), end(1));
    of_server.first_contact(&peer_end(Some(terms)), START);
    for group in [&mut of_client, &mut of_server] {
        let _ = all(group);
        group.on_link_failed(FIRST, START);
        assert_eq!(all(group), [Did::Do(Action::FirstLinkFailed(Diagnosis::LinkReady))]);
        assert!(group.is_ended() && group.next_deadline().is_none());
    }
}

#[test]
fn a_silent_link_is_tested_and_then_given_up() {
    let mut group = client(false, 1);
    assert_eq!(group.next_deadline(), Some(after(30_000)));
    group.on_deadline(after(30_000));
    assert_eq!(all(&mut group), [Did::Say(FIRST, false, Body::TestLink([0; 16]))]);
    // Whatever comes shows that it is alive.
    hear(&mut group, FIRST, true, Body::TestLink([0; 16]), after(31_000));
    assert_eq!(group.next_deadline(), Some(after(61_000)));
    group.on_deadline(after(61_000));
    let _ = all(&mut group);
    group.on_deadline(after(63_000));
    let want = [Action::LinkDown(FIRST), Action::Terminated(Terminated::NoLink)];
    assert_eq!(all(&mut group), want.map(Did::Do));
}

/// Links are three at most, so nothing is continued (RFC 7609 appendix A.3.6): as to Linux it is nothing, and no end.
#[test]
fn a_continuation_of_keys_is_left_aside() {
    let mut group = client(true, 2);
    let keys = [LinkKey { link: 1, rkey: RKey(7), vaddr: 0 }; 3];
    for response in [false, true] {
        let cont = ConfirmRkeyCont { left: 9, keys, negative: false, retry: false };
        let heard = hear(&mut group, FIRST, response, Body::ConfirmRkeyCont(cont), START);
        assert_eq!((heard, all(&mut group)), (Received::Control, vec![]));
    }
    hear(&mut group, FIRST, false, Body::TestLink([7; 16]), START);
    assert_eq!(all(&mut group), [Did::Say(FIRST, true, Body::TestLink([7; 16]))]);
}

#[test]
fn tests_of_the_peer_are_answered_with_what_it_sent() {
    let mut group = client(false, 1);
    hear(&mut group, FIRST, false, Body::TestLink([7; 16]), START);
    assert_eq!(all(&mut group), [Did::Say(FIRST, true, Body::TestLink([7; 16]))]);
}

#[test]
fn a_group_that_nobody_uses_ends_after_ten_minutes() {
    for (mut group, seconds) in [(server(false, 1), 600), (client(false, 1), 610)] {
        let opened = group.open(None).unwrap();
        group.close(opened.token, after(5000));
        for n in 0..100 {
            // A link that is heard is not tested.
            hear(&mut group, FIRST, true, Body::TestLink([0; 16]), after(n * 7000));
            let _ = all(&mut group);
        }
        let due = after(5000 + seconds * 1000);
        assert!(group.next_deadline() <= Some(due));
        group.on_deadline(due);
        let reason = DeleteReason::Inactivity;
        let bye = Body::DeleteLink(DeleteLink { link: None, orderly: false, reason });
        let did = all(&mut group);
        assert!(did.contains(&Did::Say(FIRST, false, bye)), "{did:?}");
        assert_eq!(did.last(), Some(&Did::Do(Action::Terminated(Terminated::Idle))));
    }
}

#[test]
fn the_end_of_all_is_said_back_once() {
    let mut group = server(false, 1);
    let _ = group.open(None).unwrap();
    let bye = DeleteLink { link: None, orderly: false, reason: DeleteReason::Operator };
    hear(&mut group, FIRST, false, Body::DeleteLink(bye), START);
    let end = Action::Terminated(Terminated::ByPeer(DeleteReason::Operator));
    assert_eq!(all(&mut group), [Did::Say(FIRST, false, Body::DeleteLink(bye)), Did::Do(end)]);
    assert_eq!(hear(&mut group, FIRST, false, Body::DeleteLink(bye), START), Received::Ignored);
    assert!(group.poll().is_none());
}

#[test]
fn what_must_be_understood_and_is_not_ends_the_group() {
    let mut group = client(false, 1);
    let mut bytes = [0; 44];
    (bytes[0], bytes[1]) = (0x8a, 44);
    assert_eq!(group.on_message(FIRST, &bytes, START), Received::Ignored);
    bytes[0] = 0x2f;
    group.on_message(FIRST, &bytes, START);
    let did = all(&mut group);
    assert!(matches!(
        did[0],
        Did::Say(
            FIRST,
            false,
            Body::DeleteLink(DeleteLink { reason: DeleteReason::ProtocolViolation, .. })
        )
    ));
    assert_eq!(did[1], Did::Do(Action::Terminated(Terminated::ProtocolViolation)));
}

fn buffer(rkey: u32) -> [(LinkSlot, LinkBuffer); 1] {
    [(FIRST, LinkBuffer { rkey: RKey(rkey), vaddr: 0 })]
}

fn asked(did: &[Did]) -> Vec<u32> {
    let key = |did: &Did| match did {
        Did::Say(_, false, Body::ConfirmRkey(body)) => Some(body.this.rkey.0),
        Did::Say(_, false, Body::DeleteRkey(body)) => Some(1000 + body.keys[0].0),
        _ => None,
    };
    did.iter().filter_map(key).collect()
}

fn yes(rkey: u32) -> Body {
    let this = LinkKey { link: 0, rkey: RKey(rkey), vaddr: 0 };
    Body::ConfirmRkey(ConfirmRkey { this, ..ConfirmRkey::default() })
}

#[test]
fn towards_linux_one_request_about_keys_is_under_way() {
    let mut group = client(false, 1);
    let first = group.confirm_rkey(&buffer(1), START).unwrap();
    let second = group.confirm_rkey(&buffer(2), START).unwrap();
    assert_eq!(asked(&all(&mut group)), [1]);
    // The peer's own request is answered meanwhile.
    hear(&mut group, FIRST, false, yes(77), START);
    assert_eq!(all(&mut group), [Did::Say(FIRST, true, yes(77))]);
    hear(&mut group, FIRST, true, yes(1), START);
    let did = all(&mut group);
    assert_eq!(did[0], Did::Do(Action::RkeyConfirmed(first)));
    assert_eq!(asked(&did), [2]);
    let Body::ConfirmRkey(mut no) = yes(2) else { panic!() };
    no.negative = true;
    hear(&mut group, FIRST, true, Body::ConfirmRkey(no), START);
    assert_eq!(all(&mut group), [Did::Do(Action::RkeyRejected(second))]);
}

fn forgotten() -> Body {
    // Linux does not say which key its answer is for.
    Body::DeleteRkey(DeleteRkey { keys: vec![RKey(0)], answer: DeleteRkeyAnswer::default() })
}

/// A handshake that is given up while its buffer is told leaves nothing behind.
#[test]
fn a_buffer_given_up_while_it_is_told_is_deleted_when_it_was() {
    let mut group = client(false, 1);
    for n in 1..=300 {
        let asks = group.confirm_rkey(&buffer(2 * n), START).unwrap();
        let waits = group.confirm_rkey(&buffer(2 * n + 1), START).unwrap();
        assert_eq!(asked(&all(&mut group)), [2 * n]);
        group.delete_rkey(waits, START);
        group.delete_rkey(asks, START);
        group.delete_rkey(asks, START);
        let gone = |buffer| Did::Do(Action::RkeyDeleted { buffer, acknowledged: true });
        assert_eq!(all(&mut group), [gone(waits)], "the peer has never heard of it");
        // The answer to the other one comes, or does not in time.
        if n % 3 > 0 {
            hear(&mut group, FIRST, true, yes(2 * n), START);
        } else {
            group.on_deadline(after(2000));
        }
        let did = all(&mut group);
        assert_eq!((asked(&did), did.len()), (vec![1000 + 2 * n], 1), "{did:?}");
        hear(&mut group, FIRST, true, forgotten(), START);
        assert_eq!(all(&mut group), [gone(asks)]);
        if n % 3 == 0 {
            hear(&mut group, FIRST, true, yes(2 * n), START);
            assert_eq!(all(&mut group), [], "it came late");
        }
    }
}

#[test]
fn a_buffer_given_up_whose_question_was_lost_with_its_link_is_deleted_by_the_other() {
    for late in [false, true] {
        let (mut group, _, second) = client_with_two();
        let keys = |n| [FIRST, second].map(|on| (on, LinkBuffer { rkey: RKey(n), vaddr: 0 }));
        let [gone, other] = [31, 32].map(|n| group.confirm_rkey(&keys(n), START).unwrap());
        assert_eq!(asked(&all(&mut group)), [31]);
        if !late {
            group.delete_rkey(gone, START);
        }
        group.on_link_failed(FIRST, START);
        if late {
            group.delete_rkey(gone, START);
        }
        assert_eq!(asked(&all(&mut group)), [], "the link is deleted first");
        let bye = DeleteLink { link: Some(1), orderly: true, reason: DeleteReason::LostPath };
        hear(&mut group, second, false, Body::DeleteLink(bye), START);
        // The peer may have heard the question.
        let first = asked(&all(&mut group));
        assert_eq!(first, if late { [32] } else { [1031] });
        hear(&mut group, second, true, if late { yes(32) } else { forgotten() }, START);
        let did = all(&mut group);
        assert_eq!(asked(&did), if late { [1031] } else { [32] });
        let confirmed = Did::Do(Action::RkeyConfirmed(other));
        assert_eq!(did[0] == confirmed, late);
    }
}

#[test]
fn a_group_without_room_for_another_buffer_serves_nobody() {
    let terms = Terms { max_conns: 255, ..terms(false, 1) };
    let mut group = server(false, 1);
    let client = proposed(terms);
    let ids: Vec<_> = (1..=255)
        .map(|n| {
            assert!(group.serves(&client), "{n}");
            group.confirm_rkey(&buffer(n), START).unwrap()
        })
        .collect();
    assert!(!group.serves(&client), "there is no place for its buffer");
    assert!(group.open(None).is_err());
    // As soon as one of them is forgotten by the peer.
    group.delete_rkey(ids[254], START);
    let _ = all(&mut group);
    assert!(group.serves(&client));
}

/// What our caller still has to do for one that is gone is not done to another of the same name.
#[test]
fn a_name_is_free_when_its_end_was_told() {
    let mut group = client(true, 1);
    let first = group.add_first_buffer(&buffer(1)).unwrap();
    group.delete_rkey(first, START);
    let second = group.confirm_rkey(&buffer(2), START).unwrap();
    assert_ne!(first, second);
    let gone = Action::RkeyDeleted { buffer: first, acknowledged: true };
    assert_eq!(all(&mut group), [gone, Action::RkeyConfirmed(second)].map(Did::Do));
    assert_eq!(group.confirm_rkey(&buffer(3), START).unwrap(), first);
}

#[test]
fn a_buffer_is_known_when_the_peer_reaches_it_over_each_link() {
    let (mut group, _, second) = client_with_two();
    let keys = |n| [FIRST, second].map(|on| (on, LinkBuffer { rkey: RKey(n), vaddr: 0 }));
    let id = group.confirm_rkey(&keys(21), START).unwrap();
    assert!(!group.is_known(id), "the peer has yet to say so");
    let _ = all(&mut group);
    hear(&mut group, FIRST, true, yes(21), START);
    assert!(group.is_known(id));
    // One that a link is missing for is not.
    let short = group.confirm_rkey(&buffer(22), START).unwrap();
    let _ = all(&mut group);
    hear(&mut group, FIRST, true, yes(22), START);
    assert!(!group.is_known(short));
    let before = group.buffers();
    group.delete_rkey(id, START);
    assert!(!group.is_known(id));
    let _ = all(&mut group);
    hear(&mut group, FIRST, true, forgotten(), START);
    let _ = all(&mut group);
    assert_eq!(group.buffers(), before - 1);
    let other = group.confirm_rkey(&keys(23), START).unwrap();
    let _ = all(&mut group);
    hear(&mut group, FIRST, true, yes(23), START);
    assert!(group.is_known(other));
    group.shut_down();
    assert!(!group.is_known(other));
}

#[test]
fn towards_shunt_many_are() {
    let mut group = client(true, 2);
    let ids: Vec<_> = (1..=20).map(|n| group.confirm_rkey(&buffer(n), START).unwrap()).collect();
    assert_eq!(asked(&all(&mut group)), (1..=16).collect::<Vec<_>>());
    hear(&mut group, FIRST, true, yes(1), START);
    let did = all(&mut group);
    assert_eq!(did[0], Did::Do(Action::RkeyConfirmed(ids[0])));
    assert_eq!(asked(&did), [17]);
    for n in 2..=20 {
        hear(&mut group, FIRST, true, yes(n), START);
    }
    let _ = all(&mut group);
    // So are requests to forget them.
    ids.iter().for_each(|id| group.delete_rkey(*id, START));
    assert_eq!(asked(&all(&mut group)), (1001..=1016).collect::<Vec<_>>());
    hear(&mut group, FIRST, true, forgotten(), START);
    let did = all(&mut group);
    let gone = Action::RkeyDeleted { buffer: ids[0], acknowledged: true };
    assert_eq!((&did[0], asked(&did)), (&Did::Do(gone), vec![1017]));
}

#[test]
fn towards_shunt_over_one_link_nobody_is_asked() {
    let mut group = client(true, 1);
    let _ = all(&mut group);
    let ids: Vec<_> = (1..=20).map(|n| group.confirm_rkey(&buffer(n), START).unwrap()).collect();
    let told: Vec<_> = ids.iter().map(|id| Did::Do(Action::RkeyConfirmed(*id))).collect();
    assert_eq!(all(&mut group), told);
    group.delete_rkey(ids[3], START);
    let gone = Action::RkeyDeleted { buffer: ids[3], acknowledged: true };
    assert_eq!(all(&mut group), [Did::Do(gone)]);
}

#[test]
fn an_answer_that_comes_late_is_not_taken_for_that_of_another() {
    let mut group = client(false, 1);
    let first = group.add_first_buffer(&buffer(1)).unwrap();
    let second = group.add_first_buffer(&buffer(2)).unwrap();
    group.delete_rkey(first, START);
    group.delete_rkey(second, START);
    assert_eq!(asked(&all(&mut group)), [1001]);
    group.on_deadline(after(2000));
    let did = all(&mut group);
    let gone = |buffer, acknowledged| Did::Do(Action::RkeyDeleted { buffer, acknowledged });
    assert_eq!(did[0], gone(first, false));
    assert_eq!(asked(&did), [1002]);
    // Linux does not say which key its answer is for.
    let answer = || {
        Body::DeleteRkey(DeleteRkey { keys: vec![RKey(0)], answer: DeleteRkeyAnswer::default() })
    };
    hear(&mut group, FIRST, true, answer(), after(2001));
    assert_eq!(all(&mut group), [], "the first one's");
    hear(&mut group, FIRST, true, answer(), after(2002));
    assert_eq!(all(&mut group), [gone(second, true)]);
    let third = group.confirm_rkey(&buffer(3), after(3000)).unwrap();
    group.on_deadline(after(5000));
    assert_eq!(all(&mut group)[1..], [Did::Do(Action::RkeyRejected(third))]);
    hear(&mut group, FIRST, true, yes(3), after(5001));
    assert_eq!(all(&mut group), [], "it was rejected");
}

#[test]
fn a_link_that_misses_too_many_answers_has_failed() {
    let mut group = client(true, 2);
    for n in 1..=17 {
        group.confirm_rkey(&buffer(n), START).unwrap();
    }
    group.on_deadline(after(2000));
    assert!(!group.is_ended(), "16 are missing");
    group.on_deadline(after(4000));
    let end = Did::Do(Action::Terminated(Terminated::NoLink));
    assert_eq!(all(&mut group).last(), Some(&end));
}

#[test]
fn a_link_that_is_wanted_is_not_kept_waiting_by_ever_more_keys() {
    let mut group = server(true, 2);
    let _ = all(&mut group);
    group.link_refused(LinkSlot::ALL[1], START);
    for n in 1..=18 {
        group.confirm_rkey(&buffer(n), START).unwrap();
    }
    group.add_link(None, START);
    let _ = all(&mut group);
    for n in 1..=15 {
        hear(&mut group, FIRST, true, yes(n), START);
        assert_eq!(asked(&all(&mut group)), []);
    }
    hear(&mut group, FIRST, true, yes(16), START);
    let new = second(&mut group);
    group.link_refused(new, START);
    assert_eq!(asked(&all(&mut group)), [17, 18]);
}

#[test]
fn a_buffer_of_the_peer_outlives_its_connection() {
    let (mut group, token, new) = client_with_two();
    group.close(token, START);
    let opened = group.open(Some(FIRST)).unwrap();
    group.reach(opened.token, FIRST, RKey(5), 0x500).unwrap();
    group.on_link_failed(FIRST, START);
    let remote = Remote { rkey: RKey(6), vaddr: 0x600 };
    let moved = Action::Move { token: opened.token, link: new, remote, hold: true };
    assert!(all(&mut group).contains(&Did::Do(moved)));
}

#[test]
fn no_peer_makes_us_keep_more_than_255_keys() {
    let mut group = server(false, 1);
    let opened = group.open(None).unwrap();
    for n in 1..=300 {
        hear(&mut group, FIRST, false, yes(n), START);
    }
    let no = |did: &Did| matches!(did, Did::Say(_, true, Body::ConfirmRkey(body)) if body.negative);
    assert_eq!(all(&mut group).iter().filter(|did| no(did)).count(), 45);
    assert!(!group.serves(&proposed(terms(false, 1))), "no room for another connection's");
    assert_eq!(group.reach(opened.token, FIRST, RKey(999), 0), Err(Diagnosis::RToken));
    // The same key again takes nothing, and what is deleted makes room.
    hear(&mut group, FIRST, false, yes(255), START);
    let delete = DeleteRkey { keys: vec![RKey(1), RKey(300)], answer: DeleteRkeyAnswer::default() };
    hear(&mut group, FIRST, false, Body::DeleteRkey(delete), START);
    let did = all(&mut group);
    assert_eq!(did.iter().filter(|did| no(did)).count(), 0);
    let Some(Did::Say(_, true, Body::DeleteRkey(answer))) = did.last() else { panic!() };
    assert_eq!((answer.answer.unknown, answer.answer.negative), (1, true));
    assert!(group.serves(&proposed(terms(false, 1))));
}

#[test]
fn a_key_that_a_connection_uses_is_forgotten_with_it() {
    let mut group = server(false, 1);
    let opened = group.open(None).unwrap();
    let reached = group.reach(opened.token, FIRST, RKey(5), 0x100);
    assert_eq!(reached, Ok((FIRST, Remote { rkey: RKey(5), vaddr: 0x100 })));
    let delete = || {
        Body::DeleteRkey(DeleteRkey { keys: vec![RKey(5)], answer: DeleteRkeyAnswer::default() })
    };
    hear(&mut group, FIRST, false, delete(), START);
    // A new buffer by that key is another one.
    hear(&mut group, FIRST, false, yes(5), START);
    group.close(opened.token, START);
    assert!(group.remote.buffers.iter().flatten().all(|b| !b.deleted && b.users == 0));
}

#[test]
fn nothing_is_reached_when_the_group_has_ended() {
    let mut group = server(false, 1);
    let opened = group.open(None).unwrap();
    group.shut_down();
    let reached = group.reach(opened.token, FIRST, RKey(5), 0);
    assert_eq!(reached, Err(Diagnosis::NoActiveLink));
}

#[test]
fn tokens_are_unique_and_never_zero() {
    let mut group = client(false, 1);
    let kept = group.open(None).unwrap().token;
    group.conns.skip_to(u32::MAX - 1);
    let mut seen = vec![kept];
    for _ in 0..10 {
        let token = group.open(None).unwrap().token;
        assert!(token.0 != 0 && !seen.contains(&token));
        seen.push(token);
    }
}

#[test]
fn a_server_keeps_to_the_number_of_connections() {
    let mut group = server(false, 1);
    for _ in 0..16 {
        assert!(group.serves(&proposed(terms(false, 1))));
        group.open(None).unwrap();
    }
    assert!(!group.serves(&proposed(terms(false, 1))));
    assert_eq!(group.open(None), Err(Full));
}

#[test]
fn groups_are_found_by_who_and_where() {
    let group = server(false, 1);
    let is = |change: fn(&mut Proposed)| {
        let mut client = proposed(terms(false, 1));
        change(&mut client);
        group.serves(&client)
    };
    assert!(is(|_| {}));
    assert!(!is(|p| p.system = SystemId([8; 8])));
    assert!(!is(|p| p.gid = end(8).gid));
    assert!(!is(|p| p.terms.eid = "OTHER".parse().unwrap()));
    let group = client(false, 1);
    let names = |change: fn(&mut RdmaAnswer)| {
        let mut answer = peer_end(None).answer;
        change(&mut answer);
        group.names(&answer)
    };
    assert_eq!(names(|_| {}), Some(FIRST));
    assert_eq!(names(|a| a.qpn = Qpn::new(8)), None);
    assert_eq!(names(|a| a.gid = end(8).gid), None);
    assert_eq!(names(|a| a.system = SystemId([8; 8])), None);
    assert!(group.knows(SystemId([9; 8])) && !group.knows(SystemId([8; 8])));
    assert!(!group.serves(&proposed(terms(false, 1))), "a client serves nobody");
}

/// ADD LINK from the peer, for link 2.
fn add_link() -> AddLink {
    let LinkEnd { gid, qpn, mtu, .. } = end(19);
    AddLink { gid, qpn, mtu, link: 2, v2: Some(AddLinkV2Keys::one()), ..AddLink::default() }
}

/// One key that is known as 5, and as 6 on the new link.
struct AddLinkV2Keys;

impl AddLinkV2Keys {
    fn one() -> llc::AddLinkV2 {
        let key = llc::NewKey { known: RKey(5), new: RKey(6), vaddr: 0x600 };
        llc::AddLinkV2 { keys: vec![key], ..llc::AddLinkV2::default() }
    }
}

fn second(group: &mut Group) -> LinkSlot {
    let did = all(group);
    match did.last() {
        Some(Did::Do(Action::CreateLink { link, .. })) => *link,
        _ => panic!("{did:?}"),
    }
}

/// A client's group with two links and a connection on the first, whose buffer is known on both.
fn client_with_two() -> (Group, Token, LinkSlot) {
    client_with_two_by(false)
}

/// The same, of a server that is Shunt or not.
fn client_with_two_by(shunt: bool) -> (Group, Token, LinkSlot) {
    let mut group = client(shunt, 2);
    let ours = group.add_first_buffer(&buffer(1)).unwrap();
    let opened = group.open(None).unwrap();
    group.reach(opened.token, FIRST, RKey(5), 0x500).unwrap();
    hear(&mut group, FIRST, false, Body::AddLink(add_link()), START);
    let new = second(&mut group);
    let key = LinkBuffer { rkey: RKey(11), vaddr: 0 };
    group.link_created(new, end(2), &[(ours, key)], START);
    let did = all(&mut group);
    assert_eq!(
        did[0],
        Did::Do(Action::ReadyLink { link: new, peer: end(19) }),
        "before the answer"
    );
    let Did::Say(FIRST, true, Body::AddLink(answer)) = &did[1] else { panic!("{did:?}") };
    assert_eq!((answer.link, answer.qpn), (2, Qpn::new(2)));
    let keys = &answer.v2.as_ref().unwrap().keys;
    assert_eq!((keys[0].known, keys[0].new), (RKey(1), RKey(11)));
    hear(&mut group, new, false, confirm_link(2), START);
    assert_eq!(all(&mut group)[1..], [Did::Do(Action::LinkActive(new))]);
    (group, opened.token, new)
}

#[test]
fn when_a_link_fails_its_connections_move() {
    let (mut group, token, new) = client_with_two();
    group.on_link_failed(FIRST, START);
    let did = all(&mut group);
    let remote = Remote { rkey: RKey(6), vaddr: 0x600 };
    let moved = Action::Move { token, link: new, remote, hold: true };
    let want = [Action::LinkDown(FIRST), moved];
    assert_eq!(did[..2], want.map(Did::Do));
    let reason = DeleteReason::LostPath;
    let gone = DeleteLink { link: Some(1), orderly: true, reason };
    assert_eq!(did[2..], [Did::Say(new, false, Body::DeleteLink(gone))]);
    // The server begins the exchange that counts.
    hear(&mut group, new, false, Body::DeleteLink(gone), START);
    let answer = DeleteLink { reason: DeleteReason::Other(0), ..gone };
    // By then it has moved its own end, and what our connections have to say may come.
    let want = [Did::Do(Action::DestroyLink(FIRST)), Did::Do(Action::Release)];
    let did = all(&mut group);
    assert_eq!(did[0], Did::Say(new, true, Body::DeleteLink(answer)));
    assert_eq!(did[1..], want);
    let buffer = group.conns.buffer_of(token).unwrap();
    assert_eq!(group.remote.on_link(buffer, FIRST), None, "another link may get its place");
    hear(&mut group, new, false, Body::DeleteLink(gone), START);
    let unknown = DeleteLink { reason: DeleteReason::UnknownLink, ..gone };
    assert_eq!(all(&mut group), [Did::Say(new, true, Body::DeleteLink(unknown))]);
}

/// Whether a connection is to say nothing after it has moved, whether others are that begin now, and whether all may go on.
fn held(group: &mut Group) -> (Option<bool>, bool, bool) {
    let did = all(group);
    let hold = did.iter().find_map(|did| match did {
        Did::Do(Action::Move { hold, .. }) => Some(*hold),
        _ => None,
    });
    (hold, group.holds(), did.contains(&Did::Do(Action::Release)))
}

fn validation(token: Token) -> [u8; crate::cdc::CDC_LEN] {
    let producer_flags = ProducerFlags::FAILOVER_VALIDATION;
    Cdc { token, producer_flags, ..Cdc::default() }.emit()
}

#[test]
fn a_clients_connections_that_have_moved_wait_for_linux_to_leave_the_link() {
    let reason = DeleteReason::LostPath;
    let gone = DeleteLink { link: Some(1), orderly: true, reason };
    // The server says so by its own moves, or when it deletes the link, or never.
    for how in 0..3 {
        let (mut group, token, new) = client_with_two();
        let other = group.open(Some(new)).unwrap().token;
        group.on_link_failed(FIRST, START);
        assert_eq!(held(&mut group), (Some(true), true, false));
        // What came over the lost link, or says nothing of a move, is no sign of it.
        for (link, bytes) in
            [(FIRST, validation(token)), (new, Cdc { token, ..Cdc::default() }.emit())]
        {
            assert!(matches!(group.on_message(link, &bytes, START), Received::Cdc { .. }));
            assert_eq!(held(&mut group), (None, true, false));
        }
        match how {
            0 => drop(group.on_message(new, &validation(other), START)),
            1 => drop(hear(&mut group, new, false, Body::DeleteLink(gone), START)),
            _ => group.on_deadline(after(3_999)),
        }
        if how == 2 {
            assert_eq!(held(&mut group), (None, true, false));
            group.on_deadline(after(4_000));
        }
        assert_eq!(held(&mut group), (None, false, true), "{how}");
    }
    // One that was first to say so has left it.
    for moves in [false, true] {
        let (mut group, token, new) = client_with_two();
        if moves {
            group.on_message(new, &validation(token), START);
        } else {
            hear(&mut group, new, false, Body::DeleteLink(gone), START);
        }
        assert_eq!(held(&mut group), (Some(false), false, false));
    }
}

#[test]
fn neither_shunt_nor_a_client_is_waited_for() {
    for shunt in [false, true] {
        let terms = terms(shunt, 2);
        let (mut group, new) = server_offering_by(terms);
        let opened = group.open(Some(FIRST)).unwrap();
        group.reach(opened.token, FIRST, RKey(5), 0x500).unwrap();
        hear(&mut group, FIRST, true, Body::AddLink(add_link()), START);
        hear(&mut group, new, true, confirm_link(2), START);
        let _ = all(&mut group);
        group.on_link_failed(FIRST, START);
        assert_eq!(held(&mut group), (Some(false), false, false));
    }
    let (mut group, ..) = client_with_two_by(true);
    group.on_link_failed(FIRST, START);
    assert_eq!(held(&mut group), (Some(false), false, false));
}

#[test]
fn the_peers_move_is_believed() {
    let (mut group, token, new) = client_with_two();
    let flags = ProducerFlags::FAILOVER_VALIDATION;
    let cdc = Cdc { token, producer_flags: flags, ..Cdc::default() };
    let received = group.on_message(new, &cdc.emit(), START);
    assert_eq!(received, Received::Cdc { token, cdc });
    let did = all(&mut group);
    assert_eq!(did[0], Did::Do(Action::LinkDown(FIRST)));
    assert!(matches!(did[1], Did::Do(Action::Move { hold: false, .. })), "nothing is waited for");
    // What had come over the old link before is still for the connection.
    let late = Cdc { token, ..Cdc::default() };
    assert_eq!(group.on_message(FIRST, &late.emit(), START), Received::Cdc { token, cdc: late });
    let nobody = Cdc { token: Token(99), ..late };
    assert_eq!(group.on_message(new, &nobody.emit(), START), Received::Ignored);
}

#[test]
fn a_connection_whose_buffer_is_not_known_elsewhere_is_stranded() {
    let (mut group, _, new) = client_with_two();
    let opened = group.open(Some(FIRST)).unwrap();
    group.reach(opened.token, FIRST, RKey(50), 0).unwrap();
    group.on_link_failed(FIRST, START);
    assert!(all(&mut group).contains(&Did::Do(Action::Strand(opened.token))));
    assert_eq!(group.link_of(opened.token), Some(new));
}

#[test]
fn a_link_that_is_offered_at_the_wrong_time_waits() {
    let mut group = client(false, 2);
    let id = group.confirm_rkey(&buffer(1), START).unwrap();
    let _ = all(&mut group);
    hear(&mut group, FIRST, false, Body::AddLink(add_link()), START);
    assert_eq!(all(&mut group), [], "keys first");
    group.confirm_rkey(&buffer(2), START).unwrap();
    hear(&mut group, FIRST, true, yes(1), START);
    let did = all(&mut group);
    assert_eq!(did[0], Did::Do(Action::RkeyConfirmed(id)));
    let Some(Did::Do(Action::CreateLink { link, peer })) = did.last() else { panic!("{did:?}") };
    assert_eq!(*peer, Some(end(19).gid));
    group.link_refused(*link, START);
    let did = all(&mut group);
    let Did::Say(FIRST, true, Body::AddLink(answer)) = &did[0] else { panic!("{did:?}") };
    assert_eq!((answer.reject, answer.link), (Some(RejectReason::Unsaid), 2));
    assert_eq!(asked(&did), [2], "and keys go on");
}

#[test]
fn links_that_cannot_be_are_rejected() {
    type Change = fn(&mut AddLink);
    let cases: [Change; 3] = [|a| a.mtu = Mtu::new(0), |a| a.link = 1, |a| a.link = 0];
    for change in cases {
        let mut group = client(false, 2);
        let mut request = add_link();
        change(&mut request);
        hear(&mut group, FIRST, false, Body::AddLink(request), START);
        let did = all(&mut group);
        assert!(
            matches!(&did[..], [Did::Say(FIRST, true, Body::AddLink(a))] if a.reject.is_some())
        );
    }
    let mut group = client(false, 1);
    hear(&mut group, FIRST, false, Body::AddLink(add_link()), START);
    assert!(
        matches!(&all(&mut group)[..], [Did::Say(_, true, Body::AddLink(a))] if a.reject.is_some())
    );
}

/// A server's group that has offered a second link.
fn server_offering() -> (Group, LinkSlot) {
    server_offering_by(terms(false, 2))
}

fn server_offering_by(terms: Terms) -> (Group, LinkSlot) {
    let mut group = Group::server(limits(), &proposed(terms), end(1));
    group.first_contact(&peer_end(Some(terms)), START);
    let _ = all(&mut group);
    hear(&mut group, FIRST, true, confirm_link(1), START);
    let new = second(&mut group);
    group.link_created(new, end(2), &[], START);
    let did = all(&mut group);
    assert!(
        matches!(&did[..], [Did::Say(FIRST, false, Body::AddLink(a))] if a.link == 2),
        "{did:?}"
    );
    (group, new)
}

/// Its `connect` waits for an offer unless one link was agreed on, which release 0 cannot.
#[test]
fn a_linux_client_is_not_kept_waiting_where_there_is_no_second_link() {
    for (release, shunt) in [(0, false), (1, false), (1, true)] {
        let terms = Terms { release, ..terms(shunt, 2) };
        let mut group = Group::server(limits(), &proposed(terms), end(1));
        group.first_contact(&peer_end(Some(terms)), START);
        let _ = all(&mut group);
        hear(&mut group, FIRST, true, confirm_link(1), START);
        let new = second(&mut group);
        group.link_refused(new, START);
        let did = all(&mut group);
        match &did[..] {
            [] => assert!(shunt, "Linux waits"),
            [Did::Say(FIRST, false, Body::AddLink(nothing))] => {
                assert_eq!((nothing.link, nothing.mtu.bytes(), nothing.gid), (2, None, end(1).gid));
                // Nothing waits for the answer.
                let _ = group.confirm_rkey(&buffer(1), START).unwrap();
                assert_eq!((shunt, asked(&all(&mut group))), (false, vec![1]));
                let reject = Some(RejectReason::Unsaid);
                let no = AddLink { reject, v2: None, ..nothing.clone() };
                hear(&mut group, FIRST, true, Body::AddLink(no), START);
                assert_eq!(all(&mut group), []);
            }
            _ => panic!("{did:?}"),
        }
        assert_eq!(group.links().count(), 1);
    }
}

#[test]
fn an_offer_may_be_accepted_rejected_or_forgotten() {
    let (mut group, new) = server_offering();
    hear(&mut group, FIRST, true, Body::AddLink(add_link()), START);
    let did = all(&mut group);
    assert_eq!(did[0], Did::Do(Action::ReadyLink { link: new, peer: end(19) }));
    assert!(
        matches!(&did[1], Did::Say(link, false, Body::ConfirmLink(c)) if *link == new && c.link == 2)
    );
    hear(&mut group, new, true, confirm_link(2), START);
    assert_eq!(all(&mut group), [Did::Do(Action::LinkActive(new))]);

    let (mut group, new) = server_offering();
    let late = AddLink { link: 7, reject: Some(RejectReason::Unsaid), ..add_link() };
    hear(&mut group, FIRST, true, Body::AddLink(late), START);
    assert_eq!(all(&mut group), [], "an answer to another offer");
    let no = AddLink { reject: Some(RejectReason::Unsaid), v2: None, ..add_link() };
    hear(&mut group, FIRST, true, Body::AddLink(no), START);
    assert_eq!(all(&mut group), [Did::Do(Action::DestroyLink(new))]);

    let (mut group, new) = server_offering();
    group.on_deadline(after(2000));
    assert_eq!(all(&mut group), [Did::Do(Action::DestroyLink(new))]);

    let (mut group, new) = server_offering();
    hear(&mut group, FIRST, true, Body::AddLink(add_link()), START);
    let _ = all(&mut group);
    group.on_deadline(after(5000));
    let did = all(&mut group);
    assert_eq!(did[0], Did::Do(Action::LinkDown(new)), "it was not confirmed");
    assert!(matches!(
        did[1],
        Did::Say(FIRST, false, Body::DeleteLink(DeleteLink { link: Some(2), .. }))
    ));
    group.on_deadline(after(7000));
    assert_eq!(all(&mut group), [Did::Do(Action::DestroyLink(new))], "nor was its end");
}

/// A server's group with two links.
fn server_with_two() -> (Group, LinkSlot) {
    let (mut group, new) = server_offering();
    hear(&mut group, FIRST, true, Body::AddLink(add_link()), START);
    hear(&mut group, new, true, confirm_link(2), START);
    let _ = all(&mut group);
    (group, new)
}

/// A link of a server's group with that number is lost, which the client answers over the one that is left.
fn lose(group: &mut Group, (slot, number): (LinkSlot, u8), left: LinkSlot, now: Time) {
    group.on_link_failed(slot, now);
    let gone = DeleteLink { link: Some(number), orderly: true, reason: DeleteReason::LostPath };
    hear(group, left, true, Body::DeleteLink(gone), now);
    assert!(all(group).contains(&Did::Do(Action::DestroyLink(slot))));
}

#[test]
fn a_link_that_was_lost_is_sought_again_less_and_less_often() {
    let (mut group, new) = server_with_two();
    assert!(group.again.at.is_none(), "there are two");
    lose(&mut group, (FIRST, 1), new, START);
    let create = |did: &[Did]| {
        let slot = |d: &Did| match d {
            Did::Do(Action::CreateLink { link, .. }) => Some(*link),
            _ => None,
        };
        did.iter().find_map(slot)
    };
    let mut now = 0;
    let mut due = |group: &mut Group, seconds: u64| {
        // The link that is left works.
        let left = group.links.active().map(|(slot, _)| slot).next().unwrap();
        let just_now = after(now + seconds * 1000 - 1);
        hear(group, left, true, Body::TestLink([0; 16]), just_now);
        group.on_deadline(after(now + seconds * 1000 - 1));
        assert_eq!(create(&all(group)), None, "not before {seconds} s");
        now += seconds * 1000;
        assert!(group.next_deadline() <= Some(after(now)));
        group.on_deadline(after(now));
        (create(&all(group)).expect("a link is wanted"), after(now))
    };
    // There is no path from here; the peer has none; it does not answer; what was offered does not come up.
    let (slot, at) = due(&mut group, 10);
    group.link_refused(slot, at);
    let (slot, at) = due(&mut group, 20);
    group.link_created(slot, end(2), &[], at);
    let did = all(&mut group);
    let Did::Say(by, false, Body::AddLink(offer)) = &did[0] else { panic!("{did:?}") };
    let no =
        AddLink { link: offer.link, reject: Some(RejectReason::Unsaid), v2: None, ..add_link() };
    hear(&mut group, *by, true, Body::AddLink(no), at);
    let (slot, at) = due(&mut group, 40);
    group.link_created(slot, end(2), &[], at);
    group.on_deadline(at.after(Duration::from_secs(2)));
    assert!(all(&mut group).contains(&Did::Do(Action::DestroyLink(slot))), "no answer");
    let (slot, at) = due(&mut group, 82);
    group.link_created(slot, end(2), &[], at);
    let did = all(&mut group);
    let Did::Say(by, false, Body::AddLink(offer)) = &did[0] else { panic!("{did:?}") };
    let number = offer.link;
    let yes = AddLink { link: number, ..add_link() };
    hear(&mut group, *by, true, Body::AddLink(yes), at);
    hear(&mut group, slot, true, confirm_link(number), at);
    assert!(all(&mut group).contains(&Did::Do(Action::LinkActive(slot))));
    // There are two again. One that is lost at once was none.
    lose(&mut group, (slot, number), new, at);
    let (slot, at) = due(&mut group, 160);
    group.link_created(slot, end(2), &[], at);
    let did = all(&mut group);
    let Did::Say(by, false, Body::AddLink(offer)) = &did[0] else { panic!("{did:?}") };
    let number = offer.link;
    hear(&mut group, *by, true, Body::AddLink(AddLink { link: number, ..add_link() }), at);
    hear(&mut group, slot, true, confirm_link(number), at);
    // After one that has worked for long what comes next is as at first.
    let later = at.after(Duration::from_secs(320));
    lose(&mut group, (slot, number), new, later);
    assert_eq!(group.again.at, Some(later.after(Duration::from_secs(10))));
}

#[test]
fn a_path_that_was_dead_from_the_beginning_is_tried_again_and_holds_others_up_for_a_second() {
    let (mut group, new) = server_offering();
    // The client has a second path, and nothing comes over it.
    hear(&mut group, FIRST, true, Body::AddLink(add_link()), START);
    hear(&mut group, FIRST, true, Body::TestLink([0; 16]), after(4999));
    group.on_deadline(after(5000));
    let did = all(&mut group);
    let gone = |did: &Did| match did {
        Did::Say(FIRST, false, Body::DeleteLink(gone)) => gone.link,
        _ => None,
    };
    let number = did.iter().find_map(gone).expect("the client is told");
    let gone = DeleteLink { link: Some(number), orderly: true, reason: DeleteReason::LostPath };
    hear(&mut group, FIRST, true, Body::DeleteLink(gone), after(5000));
    assert!(all(&mut group).contains(&Did::Do(Action::DestroyLink(new))));
    assert_eq!(group.again.at, Some(after(25_000)));
    // Again: what waits for a key of a new buffer goes on after one second.
    hear(&mut group, FIRST, true, Body::TestLink([0; 16]), after(25_000));
    group.on_deadline(after(25_000));
    let slot = second(&mut group);
    group.link_created(slot, end(2), &[], after(25_000));
    let did = all(&mut group);
    let Did::Say(FIRST, false, Body::AddLink(offer)) = &did[0] else { panic!("{did:?}") };
    let yes = AddLink { link: offer.link, ..add_link() };
    hear(&mut group, FIRST, true, Body::AddLink(yes), after(25_000));
    group.confirm_rkey(&buffer(7), after(25_000)).unwrap();
    let _ = all(&mut group);
    group.on_deadline(after(26_000));
    let gone = DeleteLink { link: Some(offer.link), orderly: true, reason: DeleteReason::LostPath };
    hear(&mut group, FIRST, true, Body::DeleteLink(gone), after(26_000));
    assert_eq!(asked(&all(&mut group)), [7]);
    assert_eq!(group.again.at, Some(after(26_000 + 40_000)));
}

#[test]
fn a_client_with_one_path_is_not_asked_again() {
    let (mut group, new) = server_offering();
    let no = AddLink { reject: Some(RejectReason::NoAlternatePath), v2: None, ..add_link() };
    hear(&mut group, FIRST, true, Body::AddLink(no), START);
    assert!(all(&mut group).contains(&Did::Do(Action::DestroyLink(new))));
    assert_eq!(group.again.at, None);
}

#[test]
fn a_link_that_an_operator_deletes_is_not_sought_again() {
    let (mut group, _) = server_with_two();
    group.delete_link(FIRST, START);
    assert!(group.again.at.is_none());
}

#[test]
fn a_client_that_asks_for_a_link_gets_an_answer() {
    let mut group = server(false, 1);
    let ask =
        || Body::RequestAddLink(llc::RequestAddLink { gids: vec![end(19).gid], reject: None });
    hear(&mut group, FIRST, false, ask(), START);
    let rejected = |did: &[Did]| matches!(did, [Did::Say(FIRST, true, Body::RequestAddLink(r))] if r.reject.is_some());
    assert!(rejected(&all(&mut group)), "there may be one link only");

    let mut group = server(false, 2);
    let _ = all(&mut group);
    group.link_refused(LinkSlot::ALL[1], START);
    let _ = all(&mut group);
    hear(&mut group, FIRST, false, ask(), START);
    assert_eq!(all(&mut group), [Did::Do(Action::AddLinkRequested(vec![end(19).gid]))]);
    group.add_link(Some(end(19).gid), START);
    let new = second(&mut group);
    group.link_refused(new, START);
    assert!(rejected(&all(&mut group)));
    // An offer is the answer, whatever becomes of it: one that the client rejects, or that it does not answer.
    for is_answered in [true, false] {
        hear(&mut group, FIRST, false, ask(), START);
        assert_eq!(all(&mut group), [Did::Do(Action::AddLinkRequested(vec![end(19).gid]))]);
        group.add_link(Some(end(19).gid), START);
        let new = second(&mut group);
        group.link_created(new, end(2), &[], START);
        let did = all(&mut group);
        let [Did::Say(FIRST, false, Body::AddLink(offer))] = &did[..] else { panic!("{did:?}") };
        if is_answered {
            let reject = Some(RejectReason::NoAlternatePath);
            let answer = AddLink { reject, v2: None, ..offer.clone() };
            hear(&mut group, FIRST, true, Body::AddLink(answer), START);
        } else {
            group.on_deadline(after(2000));
        }
        assert!(all(&mut group).contains(&Did::Do(Action::DestroyLink(new))), "{is_answered}");
    }
}

#[test]
fn a_connection_comes_to_no_link_that_is_not_confirmed() {
    let (mut group, left) = server_with_two();
    lose(&mut group, (FIRST, 1), left, START);
    let offer = |group: &mut Group, reject: Option<RejectReason>| {
        group.add_link(None, START);
        let added = second(group);
        group.link_created(added, end(2), &[], START);
        let did = all(group);
        let [Did::Say(_, false, Body::AddLink(offer))] = &did[..] else { panic!("{did:?}") };
        let answer = AddLink { link: offer.link, reject, ..add_link() };
        hear(group, left, true, Body::AddLink(answer), START);
        let _ = all(group);
        added
    };
    assert_ne!(offer(&mut group, Some(RejectReason::NoAlternatePath)), FIRST);
    // The place of the first one, which is free again.
    assert_eq!(offer(&mut group, None), FIRST);
    assert_eq!(group.open(None).map(|opened| opened.link), Ok(left));
}

#[test]
fn a_client_asks_a_server_that_is_not_ours_for_a_link_in_place_of_a_lost_one() {
    let lose = |group: &mut Group, reason: DeleteReason, new| {
        let gone = DeleteLink { link: Some(1), orderly: true, reason };
        hear(group, new, false, Body::DeleteLink(gone), START);
        let _ = all(group);
    };
    let ask = Did::Do(Action::AskForLink);
    // Either side may have seen it first.
    for by_us in [true, false] {
        let (mut group, _, new) = client_with_two();
        if by_us {
            group.on_link_failed(FIRST, START);
        }
        lose(&mut group, DeleteReason::LostPath, new);
        group.on_deadline(after(9999));
        assert!(!all(&mut group).contains(&ask));
        group.on_deadline(after(10_000));
        assert!(all(&mut group).contains(&ask), "{by_us}");
        group.request_add_link(&[end(1).gid]);
        let did = all(&mut group);
        let [Did::Say(slot, false, Body::RequestAddLink(said))] = &did[..] else {
            panic!("{did:?}")
        };
        assert_eq!((*slot, &said.gids[..], said.reject), (new, &[end(1).gid][..], None));
        // It is asked again, each time twice as long after the last one, and no more once there is one.
        group.on_deadline(after(29_999));
        assert!(!all(&mut group).contains(&ask));
        group.on_deadline(after(30_000));
        assert!(all(&mut group).contains(&ask));
        hear(&mut group, new, false, Body::AddLink(AddLink { link: 3, ..add_link() }), START);
        let third = second(&mut group);
        group.link_created(third, end(1), &[], START);
        hear(&mut group, third, false, confirm_link(3), START);
        assert!(all(&mut group).contains(&Did::Do(Action::LinkActive(third))));
        assert_eq!(group.again.at, None);
        // One that is lost soon again came to nothing.
        group.on_link_failed(third, after(31_000));
        let _ = all(&mut group);
        assert_eq!(group.again.at, Some(after(31_000 + 80_000)), "{by_us}");
    }
    // One that somebody does not want any more is not.
    let (mut group, _, new) = client_with_two();
    lose(&mut group, DeleteReason::Operator, new);
    assert_eq!(group.again.at, None);
}

#[test]
fn a_request_on_a_link_that_failed_is_asked_again() {
    let (mut group, _, new) = client_with_two();
    let key = LinkBuffer { rkey: RKey(20), vaddr: 0 };
    let on_new = LinkBuffer { rkey: RKey(21), vaddr: 0 };
    let id = group.confirm_rkey(&[(FIRST, key), (new, on_new)], START).unwrap();
    let did = all(&mut group);
    let Did::Say(FIRST, false, Body::ConfirmRkey(body)) = &did[0] else { panic!() };
    assert_eq!(body.others(), [LinkKey { link: 2, rkey: RKey(21), vaddr: 0 }]);
    group.on_link_failed(FIRST, START);
    let _ = all(&mut group);
    let gone = DeleteLink { link: Some(1), orderly: true, reason: DeleteReason::LostPath };
    hear(&mut group, new, false, Body::DeleteLink(gone), START);
    assert_eq!(asked(&all(&mut group)), [21]);
    hear(&mut group, new, true, yes(21), START);
    assert_eq!(all(&mut group), [Did::Do(Action::RkeyConfirmed(id))]);
}

proptest! {
    #[test]
    fn no_message_makes_much_of_little(
        messages in prop::collection::vec((0..3usize, 0..10u8, any::<u8>(), prop::collection::vec(any::<u8>(), 40..120)), 0..60),
        is_server in any::<bool>(),
    ) {
        let mut group = if is_server { server(true, 2) } else { client_with_two().0 };
        for _ in 0..3 {
            let _ = group.open(None);
        }
        let _ = all(&mut group);
        for (link, kind, flags, body) in messages {
            let mut bytes = vec![0x20 | kind, 44, 0, flags & 0xf0 | 3];
            bytes.extend(body);
            group.on_message(LinkSlot::ALL[link], &bytes, START);
            let mut actions = 0;
            while let Some(action) = group.poll() {
                actions += 1;
                if let Action::CreateLink { link, .. } = action {
                    group.link_created(link, end(30), &[], START);
                }
            }
            prop_assert!(actions < 20, "{actions} actions");
        }
    }
}
