use std::time::Duration;

use super::*;
use crate::clc::{Answer, DIAGNOSES, Decline, Message, Proposal, V2Offer};
use crate::limits::{Config, Limits};
use crate::time::Time;

fn identity(eids: &[&str]) -> Identity {
    Identity {
        system: SystemId([1, 2, 2, 0, 0, 0, 0, 1]),
        gid: Gid::v4([10, 0, 0, 1].into()),
        mac: Mac([2, 0, 0, 0, 0, 1]),
        host: *b"here                            ",
        eids: eids.iter().map(|eid| eid.parse().unwrap()).collect(),
        answers_marks: true,
    }
}

fn end() -> LocalEnd {
    LocalEnd { mtu: Mtu::BYTES_4096, token: Token(3), qpn: Qpn::new(9), ..LocalEnd::default() }
}

const START: Time = Time::from_nanos(0);

fn client() -> Client {
    Client::new(identity(&["EID.A", "EID.B"]), Limits::default(), START)
}

fn server(config: Config) -> Server {
    Server::new(identity(&["EID.B"]), config.limits().unwrap(), START)
}

/// The only step there is, which sends a message.
#[track_caller]
fn said(steps: impl FnMut() -> Option<Step>) -> Message {
    let mut steps: Vec<_> = std::iter::from_fn(steps).collect();
    match steps.remove(0) {
        Step::Send(bytes) => Message::parse(&bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn take_send(step: Option<Step>) -> Vec<u8> {
    match step {
        Some(Step::Send(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

/// A client whose Confirm of first contact is out, and a server that has seen it.
fn at_link() -> (Client, Server) {
    let (mut client, mut server) = (client(), server(Config::default()));
    server.on_bytes(&take_send(client.poll()));
    let Some(Step::FindGroup(proposed)) = server.poll() else { panic!() };
    assert_eq!(proposed.terms.eid.to_string(), "EID.B");
    assert_eq!((proposed.terms.max_conns, proposed.terms.max_links), (255, 1));
    assert!(proposed.terms.peer_is_shunt);
    server.accept(&LocalEnd { mtu: Mtu::BYTES_1024, ..end() }, true, START);
    client.on_bytes(&take_send(server.poll()));
    let Some(Step::Prepare(peer)) = client.poll() else { panic!() };
    assert_eq!(peer.terms.map(|t| (t.max_links, t.peer_is_shunt)), Some((1, true)));
    client.confirm(&end(), &[Gid::default()]);
    server.on_bytes(&take_send(client.poll()));
    assert_eq!(client.poll(), Some(Step::ConfirmLink(None)));
    let Some(Step::ConfirmLink(Some(peer))) = server.poll() else { panic!() };
    assert_eq!(peer.answer.mtu, Mtu::BYTES_1024, "the smaller of both");
    assert!(peer.terms.unwrap().peer_is_shunt);
    (client, server)
}

#[test]
fn first_contact() {
    let (mut client, mut server) = at_link();
    assert_eq!((client.next_deadline(), server.next_deadline()), (None, None));
    client.link_confirmed();
    server.link_confirmed();
    assert_eq!(client.poll(), Some(Step::Established(None)));
    assert_eq!(server.poll(), Some(Step::Established(None)));
    assert!(!client.wants_message() && !server.wants_message());
}

#[test]
fn subsequent_contact_is_established_by_the_confirm() {
    let (mut client, mut server) = (client(), server(Config::default()));
    server.on_bytes(&take_send(client.poll()));
    let Some(Step::FindGroup(_)) = server.poll() else { panic!() };
    server.accept(&end(), false, START);
    client.on_bytes(&take_send(server.poll()));
    let Some(Step::Prepare(peer)) = client.poll() else { panic!() };
    assert_eq!(peer.terms, None);
    client.confirm(&end(), &[]);
    server.on_bytes(&take_send(client.poll()));
    assert_eq!(client.poll(), Some(Step::Established(None)));
    let Some(Step::Established(Some(peer))) = server.poll() else { panic!() };
    assert_eq!(peer.answer.token, Token(3));
}

#[test]
fn a_link_that_does_not_come_up_leaves_room_for_a_decline() {
    let second = START.after(Duration::from_secs(1));
    let (mut client, mut server) = at_link();
    server.link_timed_out(START);
    assert_eq!(server.next_deadline(), Some(second));
    server.on_deadline(START);
    assert_eq!(server.poll(), None, "too early");
    server.on_deadline(second);
    let decline = take_send(server.poll());
    let Some(Step::FallBack(why)) = server.poll() else { panic!() };
    assert_eq!(why.ours, Diagnosis::TimeoutConfirmLink);
    // The client has waited as well, and now is told.
    client.link_timed_out(START);
    client.on_bytes(&decline);
    let Some(Step::FallBack(why)) = client.poll() else { panic!() };
    assert_eq!(
        (why.ours, why.theirs),
        (Diagnosis::PeerDeclined, Some(Diagnosis::TimeoutConfirmLink))
    );
    assert_eq!(client.poll(), None, "a Decline is not answered");
}

#[test]
fn a_timeout_is_no_way_back_since_the_answer_may_still_come() {
    let late = START.after(Duration::from_secs(6));
    let mut client = client();
    let _ = client.poll();
    assert_eq!(client.next_deadline(), Some(late));
    client.on_deadline(late);
    assert_eq!(client.poll(), Some(Step::Abort(Abort::TimedOut)));
    let mut server = server(Config::default());
    server.on_deadline(late);
    assert_eq!(server.poll(), Some(Step::Abort(Abort::TimedOut)));
}

#[test]
fn without_an_eid_the_server_is_told() {
    let mut client = Client::new(identity(&[]), Limits::default(), START);
    // It has seen the option, and would take the application's first bytes for CLC.
    let Some(Step::Send(bytes)) = client.poll() else { panic!("nothing is said") };
    assert!(
        matches!(Message::parse(&bytes), Ok(Message::Decline(d)) if d.diagnosis == Diagnosis::NoDevice)
    );
    assert!(matches!(client.poll(), Some(Step::FallBack(_))));
    assert_eq!(client.poll(), None);
}

#[test]
fn a_server_that_cannot_says_so_to_a_client_that_has_spoken() {
    let config = Config::default().limits().unwrap();
    let mut server = Server::declining(identity(&["EID.B"]), config, Diagnosis::Memory, START);
    assert!(server.wants_message() && server.poll().is_none(), "nobody has spoken");
    let mut client = client();
    server.on_bytes(&take_send(client.poll()));
    client.on_bytes(&take_send(server.poll()));
    let Some(Step::FallBack(ours)) = server.poll() else { panic!() };
    let Some(Step::FallBack(theirs)) = client.poll() else { panic!() };
    assert_eq!((ours.ours, theirs.theirs), (Diagnosis::Memory, Some(Diagnosis::Memory)));
    assert!(!server.wants_message() && !client.wants_message());
    // One that says nothing is not waited for without end, and one that does not want to is not answered.
    let mut server = Server::declining(identity(&[]), config, Diagnosis::Memory, START);
    server.on_deadline(server.next_deadline().unwrap());
    assert_eq!(server.poll(), Some(Step::Abort(Abort::TimedOut)));
    let mut server = Server::declining(identity(&[]), config, Diagnosis::Memory, START);
    server.on_bytes(&take_send(Client::new(identity(&[]), config, START).poll()));
    assert!(matches!(server.poll(), Some(Step::FallBack(_))));
    assert_eq!(server.poll(), None);
}

#[test]
fn out_of_sync_is_said_so() {
    let (mut client, mut server) = (client(), server(Config::default()));
    server.on_bytes(&take_send(client.poll()));
    let _ = server.poll();
    server.accept(&end(), false, START);
    client.on_bytes(&take_send(server.poll()));
    let _ = client.poll();
    client.refuse(Diagnosis::OutOfSync);
    server.on_bytes(&take_send(client.poll()));
    let Some(Step::FallBack(why)) = server.poll() else { panic!() };
    assert!(why.out_of_sync);
}

#[test]
fn behind_the_point_of_no_return_nothing_is_declined() {
    let (mut client, mut server) = at_link();
    client.link_confirmed();
    server.link_confirmed();
    let _ = (client.poll(), server.poll());
    client.refuse(Diagnosis::Memory);
    server.refuse(Diagnosis::Memory);
    assert_eq!((client.poll(), server.poll()), (None, None));
    // A Confirm for a group that exists and that makes no sense is too late to decline.
    let mut server = self::server(Config::default());
    server.on_bytes(&take_send(self::client().poll()));
    let _ = server.poll();
    server.accept(&end(), false, START);
    let _ = server.poll();
    let answer =
        identity(&[]).answer(&LocalEnd::default(), Mtu::BYTES_1024, "EID.B".parse().unwrap(), None);
    server.on_bytes(&Message::Confirm(Answer::Rdma(Box::new(answer))).emit());
    assert_eq!(server.poll(), Some(Step::Abort(Abort::TooLate(Diagnosis::Internal))));
}

#[test]
fn whoever_is_asked_may_say_no_instead() {
    let (mut client, mut server) = (client(), server(Config::default()));
    server.on_bytes(&take_send(client.poll()));
    let _ = server.poll();
    server.refuse(Diagnosis::Memory);
    client.on_bytes(&take_send(server.poll()));
    let Some(Step::FallBack(why)) = client.poll() else { panic!() };
    assert_eq!(why.theirs, Some(Diagnosis::Memory));
}

#[test]
fn each_reason_to_say_no_is_heard_by_the_other_side() {
    for diagnosis in DIAGNOSES.iter().copied() {
        for by_server in [true, false] {
            let (mut client, mut server) = (client(), server(Config::default()));
            server.on_bytes(&take_send(client.poll()));
            let Some(Step::FindGroup(_)) = server.poll() else { panic!() };
            let (ours, theirs) = if by_server {
                server.refuse(diagnosis);
                client.on_bytes(&take_send(server.poll()));
                (server.poll(), client.poll())
            } else {
                server.accept(&end(), true, START);
                client.on_bytes(&take_send(server.poll()));
                let Some(Step::Prepare(_)) = client.poll() else { panic!() };
                client.refuse(diagnosis);
                server.on_bytes(&take_send(client.poll()));
                (client.poll(), server.poll())
            };
            let (Some(Step::FallBack(ours)), Some(Step::FallBack(theirs))) = (ours, theirs) else {
                panic!("{diagnosis:?}")
            };
            assert_eq!((ours.ours, theirs.theirs), (diagnosis, Some(diagnosis)));
            assert_eq!(theirs.out_of_sync, diagnosis == Diagnosis::OutOfSync);
        }
    }
}

#[test]
fn an_answer_of_smcd_is_declined() {
    let mut client = client();
    let _ = client.poll();
    client.on_bytes(&Message::Accept(Answer::Ism(Box::default())).emit());
    let Message::Decline(decline) = said(|| client.poll()) else { panic!() };
    assert_eq!(decline.diagnosis, Diagnosis::Mode);
}

/// An Accept or a Confirm of first contact, and the features that it says.
fn features(message: &[u8]) -> (Message, u16) {
    let message = Message::parse(message).unwrap();
    let (Message::Accept(answer) | Message::Confirm(answer)) = &message else { panic!() };
    let features = answer.first().unwrap().v2x.unwrap().features;
    (message, features)
}

/// The same with other features.
fn with_features(message: &[u8], features: u16) -> Vec<u8> {
    let mut message = self::features(message).0;
    let (Message::Accept(Answer::Rdma(answer)) | Message::Confirm(Answer::Rdma(answer))) =
        &mut message
    else {
        panic!()
    };
    let first = answer.v2.as_mut().unwrap().first.as_mut().unwrap();
    first.v2x.as_mut().unwrap().features = features;
    message.emit()
}

#[test]
fn only_features_that_both_have_are_agreed_on() {
    // What either is told that the other has: all that there may ever be, ours, or none.
    for (of_server, of_client) in [(u16::MAX, u16::MAX), (1, u16::MAX), (1, 0), (0, u16::MAX)] {
        let (mut client, mut server) = (client(), server(Config::default()));
        server.on_bytes(&take_send(client.poll()));
        let Some(Step::FindGroup(_)) = server.poll() else { panic!() };
        server.accept(&end(), true, START);
        let accept = take_send(server.poll());
        assert_eq!(features(&accept).1, 1);
        client.on_bytes(&with_features(&accept, of_server));
        let Some(Step::Prepare(peer)) = client.poll() else { panic!() };
        assert_eq!(peer.terms.unwrap().features, of_server & 1);
        client.confirm(&end(), &[]);
        let confirm = take_send(client.poll());
        assert_eq!(features(&confirm).1, of_server & 1);
        server.on_bytes(&with_features(&confirm, of_client));
        let Some(Step::ConfirmLink(Some(peer))) = server.poll() else { panic!() };
        assert_eq!(peer.terms.unwrap().features, of_client & 1);
    }
}

fn offer(change: impl Fn(&mut V2Offer)) -> Vec<u8> {
    let mut offer = V2Offer {
        release: 1,
        max_conns: 255,
        max_links: 2,
        features: 1,
        eids: vec!["EID.B".parse().unwrap()],
        ..V2Offer::default()
    };
    change(&mut offer);
    let proposal = Proposal::rdma_v2(SystemId::default(), Mac::default(), offer);
    Message::Proposal(Box::new(proposal)).emit()
}

#[test]
fn the_server_takes_the_smaller_of_both() {
    type Change = fn(&mut V2Offer);
    type Agreed = Result<(u8, u8, u8), Diagnosis>;
    let cases: [(Change, Agreed); 7] = [
        (|_| {}, Ok((1, 100, 2))),
        (|o| o.max_conns = 16, Ok((1, 16, 2))),
        (|o| o.max_conns = 15, Err(Diagnosis::MaxConns)),
        (|o| o.max_links = 0, Err(Diagnosis::MaxLinks)),
        (|o| o.release = 7, Ok((1, 100, 2))),
        (|o| (o.release, o.max_conns, o.max_links) = (0, 0, 0), Ok((0, 255, 2))),
        (|o| o.eids = vec!["EID.A".parse().unwrap()], Err(Diagnosis::NoDevice)),
    ];
    for (change, want) in cases {
        let mut server = server(Config { max_conns: 100, max_links: 2, ..Config::default() });
        server.on_bytes(&offer(change));
        let got = match server.poll() {
            Some(Step::FindGroup(Proposed { terms, .. })) => {
                assert!(!terms.peer_is_shunt, "these are the bytes of Linux");
                Ok((terms.release, terms.max_conns, terms.max_links))
            }
            Some(Step::Send(bytes)) => match Message::parse(&bytes) {
                Ok(Message::Decline(decline)) => Err(decline.diagnosis),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        assert_eq!(got, want);
    }
}

#[test]
fn the_client_must_repeat_what_the_server_said() {
    type Change = fn(&mut FirstContact);
    let cases: [(Change, Option<Diagnosis>); 4] = [
        (|_| {}, None),
        (|f| f.release = 0, Some(Diagnosis::Release)),
        (|f| f.v2x.as_mut().unwrap().max_conns = 99, Some(Diagnosis::MaxConns)),
        (|f| f.v2x.as_mut().unwrap().max_links = 2, Some(Diagnosis::MaxLinks)),
    ];
    for (change, want) in cases {
        let mut server = server(Config { max_conns: 100, ..Config::default() });
        server.on_bytes(&offer(|_| {}));
        let Some(Step::FindGroup(proposed)) = server.poll() else { panic!() };
        server.accept(&end(), true, START);
        let _ = server.poll();
        let us = identity(&["EID.B"]);
        let mut first = us.first_contact(&proposed.terms);
        change(&mut first);
        let mut answer = us.answer(&end(), Mtu::BYTES_1024, proposed.terms.eid, Some(first));
        answer.v2.as_mut().unwrap().gids = Some((Vec::new(), [0; 3]));
        server.on_bytes(&Message::Confirm(Answer::Rdma(Box::new(answer))).emit());
        match want {
            None => assert!(matches!(server.poll(), Some(Step::ConfirmLink(_)))),
            Some(diagnosis) => {
                let Message::Decline(decline) = said(|| server.poll()) else { panic!() };
                assert_eq!(decline.diagnosis, diagnosis);
            }
        }
    }
}

#[test]
fn a_confirm_that_contradicts_the_accept_ends_the_connection() {
    let confirm = |eid: &str, is_first: bool| {
        let mut server = server(Config::default());
        server.on_bytes(&take_send(client().poll()));
        let Some(Step::FindGroup(proposed)) = server.poll() else { panic!() };
        server.accept(&end(), true, START);
        let _ = server.poll();
        let us = identity(&[]);
        // Other than in the Proposal it does not say that it is Shunt.
        let first =
            us.first_contact(&Terms { peer_is_shunt: false, marks: false, ..proposed.terms });
        let eid = eid.parse().unwrap();
        let mut answer = us.answer(&end(), Mtu::BYTES_1024, eid, is_first.then_some(first));
        if let (true, Some(v2)) = (is_first, &mut answer.v2) {
            v2.gids = Some((Vec::new(), [0; 3]));
        }
        server.on_bytes(&Message::Confirm(Answer::Rdma(Box::new(answer))).emit());
        server.poll()
    };
    assert_eq!(confirm("EID.A", true), Some(Step::Abort(Abort::Contradiction)));
    assert_eq!(confirm("EID.B", false), Some(Step::Abort(Abort::Contradiction)));
    let Some(Step::ConfirmLink(Some(peer))) = confirm("EID.B", true) else { panic!() };
    assert!(!peer.terms.unwrap().peer_is_shunt, "both messages have to say so");
    assert!(!peer.terms.unwrap().marks);
}

/// What both sides' terms say of marks, of which each answers them or not, and the messages of first contact.
fn marks(client_does: bool, server_does: bool) -> ([bool; 2], [Message; 2]) {
    let us = |does| Identity { answers_marks: does, ..identity(&["EID.B"]) };
    let mut client = Client::new(us(client_does), Limits::default(), START);
    let mut server = Server::new(us(server_does), Limits::default(), START);
    server.on_bytes(&take_send(client.poll()));
    let Some(Step::FindGroup(_)) = server.poll() else { panic!() };
    server.accept(&end(), true, START);
    let accept = take_send(server.poll());
    client.on_bytes(&accept);
    let Some(Step::Prepare(of_client)) = client.poll() else { panic!() };
    client.confirm(&end(), &[Gid::default()]);
    let confirm = take_send(client.poll());
    server.on_bytes(&confirm);
    let Some(Step::ConfirmLink(Some(of_server))) = server.poll() else { panic!() };
    let terms = [of_client, of_server].map(|peer| peer.terms.unwrap());
    assert!(terms.iter().all(|terms| terms.peer_is_shunt), "that does not depend on it");
    (terms.map(|terms| terms.marks), [accept, confirm].map(|m| Message::parse(&m).unwrap()))
}

#[test]
fn marks_are_answered_where_both_say_so() {
    let says = |message: &Message| {
        let (Message::Accept(answer) | Message::Confirm(answer)) = message else { panic!() };
        answer.first().unwrap().v2x.unwrap().reserved
    };
    for (client, server) in [(true, true), (true, false), (false, true), (false, false)] {
        let (terms, messages) = marks(client, server);
        assert_eq!(terms, [client && server; 2], "{client} {server}");
        // The client need not say it to a server that does not.
        let said = [server, client && server].map(|yes| [u8::from(yes), 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!([says(&messages[0]), says(&messages[1])], said, "{client} {server}");
    }
}

#[test]
fn nothing_is_said_of_marks_to_a_client_that_is_not_shunt() {
    let mut server = server(Config::default());
    server.on_bytes(&offer(|_| {}));
    let Some(Step::FindGroup(proposed)) = server.poll() else { panic!() };
    assert!(!proposed.terms.marks);
    server.accept(&end(), true, START);
    let Message::Accept(accept) = said(|| server.poll()) else { panic!() };
    assert_eq!(accept.first().unwrap().v2x.unwrap().reserved, [0; 8]);
}

#[test]
fn the_client_declines_what_it_cannot_be() {
    type Change = fn(&mut RdmaAnswer);
    fn first(answer: &mut RdmaAnswer) -> &mut FirstContact {
        answer.v2.as_mut().unwrap().first.as_mut().unwrap()
    }
    let cases: [(Change, Diagnosis); 7] = [
        (|a| first(a).release = 2, Diagnosis::Release),
        (|a| first(a).v2x.as_mut().unwrap().max_conns = 15, Diagnosis::MaxConns),
        (|a| first(a).v2x.as_mut().unwrap().max_links = 3, Diagnosis::MaxLinks),
        (|a| first(a).v2x.as_mut().unwrap().max_links = 0, Diagnosis::MaxLinks),
        (|a| a.v2.as_mut().unwrap().eid = "EID.C".parse().unwrap(), Diagnosis::NoUeid),
        (|a| a.mtu = Mtu::new(6), Diagnosis::Internal),
        (|a| a.v2 = None, Diagnosis::Version),
    ];
    for (change, want) in cases {
        let mut client = client();
        let _ = client.poll();
        let eid = "EID.A".parse().unwrap();
        let terms = Terms {
            release: 1,
            max_conns: 255,
            max_links: 1,
            features: 1,
            eid,
            peer_is_shunt: false,
            marks: false,
        };
        let us = identity(&[]);
        let mut answer = us.answer(&end(), Mtu::BYTES_1024, eid, Some(us.first_contact(&terms)));
        change(&mut answer);
        client.on_bytes(&Message::Accept(Answer::Rdma(Box::new(answer))).emit());
        let Message::Decline(decline) = said(|| client.poll()) else { panic!("{want:?}") };
        assert_eq!(decline.diagnosis, want);
    }
}

#[test]
fn what_is_not_due_or_no_message_ends_the_connection() {
    let mut client = client();
    let proposal = take_send(client.poll());
    client.on_bytes(&proposal);
    assert_eq!(client.poll(), Some(Step::Abort(Abort::Unexpected)));
    let mut server = server(Config::default());
    server.on_bytes(b"GET / HTTP/1.1\r\n");
    assert_eq!(server.poll(), Some(Step::Abort(Abort::Malformed(clc::ParseError::EyeCatcher))));
}

#[test]
fn a_proposal_of_version_1_is_declined_in_version_1() {
    let proposal = Proposal {
        version: 1,
        v1: clc::Kinds::R,
        v2: clc::Kinds::R,
        ism: None,
        prefixes: Some(clc::Prefixes::default()),
        offer: None,
        ..Proposal::rdma_v2(SystemId::default(), Mac::default(), V2Offer::default())
    };
    let bytes = Message::Proposal(Box::new(proposal)).emit();
    assert_eq!(bytes.len(), 52, "as in RFC 7609");
    let mut server = server(Config::default());
    server.on_bytes(&bytes);
    let Message::Decline(decline) = said(|| server.poll()) else { panic!() };
    assert_eq!(decline, Decline::new(1, identity(&[]).system, Diagnosis::NoDevice));
}
