//! In the place of one of two Linux hosts: what the other one sent goes in, and what comes out is what the
//! host whose place we take has sent, bit for bit but for what is said beside.

use smc::cdc::Cdc;
use smc::clc::{Answer, Message, RdmaAnswer};
use smc::conn::{Conn, Push, Remote, Setup, State};
use smc::group::{Action, Group, LinkBuffer, LinkEnd, LinkSlot};
use smc::handshake::{Client, Identity, LocalEnd, PeerEnd, Proposed, Server, Step};
use smc::{Config, Gid, Limits, Mac, SizeClass, SystemId, Time};

use crate::vectors::{CDC, CLC, LLC, first};

const START: Time = Time::from_nanos(0);

/// The bytes of a CLC message of a capture, by type.
fn clc(capture: &str, kind: u8) -> Vec<u8> {
    first(CLC, capture, |bytes| (bytes[4] == kind).then(|| bytes.to_vec()))
}

/// The bytes of an LLC message of a capture, by type and flags.
fn llc(capture: &str, kind: u8, flags: u8) -> Vec<u8> {
    let is = |bytes: &[u8]| bytes[0] == kind && bytes[3] == flags;
    first(LLC, capture, |bytes| is(bytes).then(|| bytes.to_vec()))
}

fn answer(bytes: &[u8]) -> RdmaAnswer {
    match Message::parse(bytes) {
        Ok(Message::Accept(Answer::Rdma(answer)) | Message::Confirm(Answer::Rdma(answer))) => {
            *answer
        }
        other => panic!("{other:?}"),
    }
}

/// Who has sent an answer of first contact.
fn identity(answer: &RdmaAnswer) -> Identity {
    let v2 = answer.v2.as_ref().expect("of version 2");
    Identity {
        system: answer.system,
        gid: answer.gid,
        mac: answer.mac,
        host: v2.first.expect("of first contact").host,
        eids: vec![v2.eid],
        // Towards Linux that changes no byte.
        answers_marks: true,
    }
}

fn local_end(answer: &RdmaAnswer) -> LocalEnd {
    let RdmaAnswer { gid, mac, qpn, psn, mtu, rkey, vaddr, size, token, .. } = *answer;
    LocalEnd { gid, mac, qpn, psn, mtu, rkey, vaddr, size, token }
}

fn link_end(answer: &RdmaAnswer) -> LinkEnd {
    let RdmaAnswer { gid, mac, qpn, psn, mtu, .. } = *answer;
    LinkEnd { gid, mac, qpn, psn, mtu }
}

fn as_linux() -> Limits {
    Config { max_links: 2, ..Config::default() }.limits().expect("settings")
}

fn sent(step: Option<Step>) -> Vec<u8> {
    match step {
        Some(Step::Send(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

/// In the client's place; what it learns of the server.
fn client(capture: &str) -> (Client, PeerEnd) {
    let confirm = answer(&clc(capture, 3));
    let mut client = Client::new(identity(&confirm), as_linux(), START);
    let mut proposal = sent(client.poll());
    // Who we are and that we are Shunt is all that Linux does not say.
    proposal[8..16].fill(0);
    proposal[32..38].fill(0);
    proposal[52..60].fill(0);
    assert_eq!(proposal, clc(capture, 1));
    client.on_bytes(&clc(capture, 2));
    match client.poll() {
        Some(Step::Prepare(peer)) => (client, *peer),
        other => panic!("{other:?}"),
    }
}

#[test]
fn proposal_and_confirm_of_a_client() {
    for (capture, gids) in [("01", &[1][..]), ("10", &[1, 11])] {
        let (mut client, _) = client(capture);
        let gids: Vec<_> = gids.iter().map(|last| Gid::v4([10, 99, 0, *last].into())).collect();
        let confirm = clc(capture, 3);
        client.confirm(&local_end(&answer(&confirm)), &gids);
        assert_eq!(sent(client.poll()), confirm);
    }
}

/// In the server's place; what it learns of the client.
fn server(capture: &str) -> (Proposed, PeerEnd) {
    let accept = clc(capture, 2);
    let mut server = Server::new(identity(&answer(&accept)), as_linux(), START);
    server.on_bytes(&clc(capture, 1));
    let Some(Step::FindGroup(proposed)) = server.poll() else { panic!() };
    server.accept(&local_end(&answer(&accept)), true, START);
    assert_eq!(sent(server.poll()), accept);
    server.on_bytes(&clc(capture, 3));
    match server.poll() {
        Some(Step::ConfirmLink(Some(peer))) => (proposed, *peer),
        other => panic!("{other:?}"),
    }
}

#[test]
fn accept_of_a_server() {
    let (proposed, peer) = server("01");
    assert_eq!(proposed.system, SystemId::default());
    assert!(!peer.terms.expect("of first contact").peer_is_shunt);
}

fn next_send(group: &mut Group) -> (LinkSlot, Vec<u8>) {
    loop {
        match group.poll().expect("something to say") {
            Action::Send { link, bytes } => return (link, bytes),
            Action::ReadyLink { .. } | Action::LinkActive(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// But for the name that each side gives to a link for itself.
fn same_confirm_link(mut ours: Vec<u8>, linux: &[u8]) {
    ours[30..34].copy_from_slice(&linux[30..34]);
    assert_eq!(ours, linux);
}

#[test]
fn a_client_that_rejects_a_second_link() {
    let (_, peer) = client("01");
    let own = link_end(&answer(&clc("01", 3)));
    let mut group = Group::client(as_linux(), &peer, own, START).expect("first contact");
    group.on_message(LinkSlot::FIRST, &llc("01", 0x21, 3), START);
    let (_, confirmed) = next_send(&mut group);
    same_confirm_link(confirmed, &llc("01", 0x21, 0x83));
    group.on_message(LinkSlot::FIRST, &llc("01", 0x22, 0), START);
    let mut created = None;
    while let Some(action) = group.poll() {
        if let Action::CreateLink { link, .. } = action {
            created = Some(link);
        }
    }
    group.link_refused(created.expect("a link is offered"), START);
    assert_eq!(next_send(&mut group).1, llc("01", 0x22, 0xc0));
}

#[test]
fn a_client_that_takes_a_second_link() {
    let (_, peer) = client("10");
    let confirm = answer(&clc("10", 3));
    let mut group = Group::client(as_linux(), &peer, link_end(&confirm), START).expect("first");
    let opened = group.open(None).expect("new");
    let key = LinkBuffer { rkey: confirm.rkey, vaddr: confirm.vaddr };
    let buffer = group.add_first_buffer(&[(LinkSlot::FIRST, key)]).expect("new");
    let of_server = &peer.answer;
    group.reach(opened.token, LinkSlot::FIRST, of_server.rkey, of_server.vaddr).expect("new");
    group.on_message(LinkSlot::FIRST, &llc("10", 0x21, 3), START);
    same_confirm_link(next_send(&mut group).1, &llc("10", 0x21, 0x83));
    group.on_message(LinkSlot::FIRST, &llc("10", 0x22, 0), START);
    let new = std::iter::from_fn(|| group.poll()).find_map(|action| match action {
        Action::CreateLink { link, .. } => Some(link),
        _ => None,
    });
    let new = new.expect("a link is offered");
    // What Linux had on its second port.
    let reply = llc("10", 0x22, 0x80);
    let Ok(smc::llc::Message { body: smc::llc::Body::AddLink(add), .. }) =
        smc::llc::Message::parse(&reply)
    else {
        panic!()
    };
    let end = LinkEnd { gid: add.gid, mac: add.mac, qpn: add.qpn, psn: add.psn, mtu: add.mtu };
    let on_new = add.v2.expect("of version 2").keys[0];
    let key = LinkBuffer { rkey: on_new.new, vaddr: on_new.vaddr };
    group.link_created(new, end, &[(buffer, key)], START);
    assert_eq!(next_send(&mut group), (LinkSlot::FIRST, reply));
    // The link fails, and the connection goes on over the other.
    group.on_message(new, &llc("11", 0x21, 3), START);
    let _ = next_send(&mut group);
    group.on_link_failed(LinkSlot::FIRST, START);
    let moved = std::iter::from_fn(|| group.poll()).find_map(|action| match action {
        Action::Move { token, link, remote, .. } if token == opened.token => Some((link, remote)),
        _ => None,
    });
    let there = moved.expect("there is another link");
    assert_eq!(there, (new, Remote { rkey: smc::RKey(0x3c2), vaddr: of_server.vaddr }));
}

#[test]
fn a_server_confirms_and_answers() {
    let (proposed, peer) = server("01");
    let own = link_end(&answer(&clc("01", 2)));
    let mut group = Group::server(as_linux(), &proposed, own);
    group.first_contact(&peer, START);
    same_confirm_link(next_send(&mut group).1, &llc("01", 0x21, 3));
    group.on_message(LinkSlot::FIRST, &llc("01", 0x21, 0x83), START);
    while let Some(action) = group.poll() {
        if let Action::CreateLink { link, .. } = action {
            group.link_refused(link, START);
        }
    }
    for kind in [0x27, 0x26] {
        group.on_message(LinkSlot::FIRST, &llc("11", kind, 0), START);
        assert_eq!(next_send(&mut group).1, llc("11", kind, 0x80));
    }
}

#[test]
fn five_bytes_and_their_echo() {
    // Linux sends five bytes, gets them back, and closes. Of each kind there are two messages.
    let cdc = |sequence, consumer| {
        let is = |cdc: &Cdc| cdc.sequence == sequence && cdc.consumer.count == consumer;
        first(CDC, "01", |bytes| Cdc::parse(bytes).ok().filter(is))
    };
    let setup = Setup {
        rmb: SizeClass::new(2),
        send_ring: SizeClass::new(2),
        peer_token: smc::Token(1),
        peer_rmb: SizeClass::new(2),
        ..Setup::default()
    };
    let (mut client, mut server) = (Conn::new(&setup), Conn::new(&setup));
    let says = |conn: &mut Conn, want: &Cdc| {
        let plan = conn.plan(Push::Auto).expect("something to say");
        assert_eq!(plan.cdc, want.emit());
        conn.completed(plan.ticket);
        assert!(conn.plan(Push::Auto).is_none());
    };
    client.wrote(5);
    says(&mut client, &cdc(1, 0));
    assert_eq!(server.on_cdc(&cdc(1, 0)).map(|heard| heard.arrived), Ok(5));
    server.consumed(5);
    server.wrote(5);
    says(&mut server, &cdc(1, 5));
    client.on_cdc(&cdc(1, 5)).expect("of Linux");
    client.consumed(5);
    client.close();
    says(&mut client, &cdc(2, 5));
    server.on_cdc(&cdc(2, 5)).expect("of Linux");
    assert_eq!(server.state(), State::AppCloseWait1);
    server.close();
    says(&mut server, &cdc(2, 5));
    client.on_cdc(&cdc(2, 5)).expect("of Linux");
    assert_eq!((client.state(), server.state()), (State::Closed, State::Closed));
    assert!(client.is_over() && server.is_over());
}

#[test]
fn a_mac_is_no_system_id() {
    assert!(!SystemId::new([1, 2], Mac([0; 6])).is_valid());
    let system = answer(&clc("01", 2)).system;
    assert!(system.is_valid());
    assert_eq!(system, SystemId::new([system.0[0], system.0[1]], answer(&clc("01", 2)).mac));
}
