//! Links that are lost, and connections that come meanwhile. On a machine that stands still handshakes come too late, and
//! are tried again.

use std::sync::mpsc::{Sender, channel};

use roce::Status;
use smc::SystemId;
use smc::clc::{Answer, Decline, Message, RdmaAnswer};
use smc::group::LinkSlot;

use super::*;

fn links(engine: &Engine) -> usize {
    let stat = engine.stat();
    let all = stat.vectors[0].groups.iter().flat_map(|group| &group.links);
    all.filter(|link| link.state == "ACTIVE").count()
}

/// Two hosts with two links, and one connection on each of these.
fn with_two_links() -> Option<(Hosts, [[Guest; 2]; 2])> {
    let settings = [("max_links", "2"), ("testlink_time", "0")];
    let hosts = Hosts::with_two_addresses(&settings)?;
    let first = talk(&hosts, 1).remove(0);
    hosts.wait("two links", |h| h.engines.iter().all(|e| links(e) == 2));
    let second = talk(&hosts, 1).remove(0);
    Some((hosts, [first, second]))
}

/// The vector of an engine does nothing until the answer is dropped.
fn stop(engine: &Engine) -> Sender<()> {
    let (go, gone) = channel::<()>();
    let (tell, told) = channel();
    let act = move |_: &mut Vector| {
        tell.send(()).unwrap();
        let _ = gone.recv();
    };
    engine.shared.vectors[0].inbox.put(Order::Do(Act(Box::new(act))));
    told.recv_timeout(Duration::from_secs(60)).unwrap();
    go
}

/// What a card has finished may show late.
#[test]
fn what_a_lost_link_says_is_not_about_what_goes_by_another() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    let all = talk(&hosts, 1);
    if hosts.by_smc(1) != 1 {
        return;
    }
    let [client, server] = &all[0];
    let writes = |engine: &Engine| within(engine, |vector| vector.stat.writes_tx);
    client.wait("all to be released", |g| g.unreleased() == 0);
    let go = stop(&hosts.engines[1]);
    let before = writes(&hosts.engines[0]);
    client.send(b"not acknowledged");
    client.wait("it to be sent", |_| writes(&hosts.engines[0]) > before);
    let completed = |own: bool| {
        within(&hosts.engines[0], move |vector| {
            let id = *vector.running.keys().next().unwrap();
            let qpn = by_smc(vector)[0].qpn;
            let other = roce::Qpn::new(qpn.value() ^ 1);
            // What the client has read it may have said before.
            for _ in 0..4 {
                vector.completed(id, if own { qpn } else { other });
            }
        });
        client.unreleased()
    };
    assert_eq!((completed(false), completed(true)), (16, 0));
    drop(go);
    assert_eq!(server.receive_all(16), b"not acknowledged");
}

/// The first link is lost for a host whose peer has yet to hear of the buffer of a third connection, which has a place
/// on that link. Whether that was in time.
fn lose_first_link(engine: &Engine) -> bool {
    let lose = |vector: &mut Vector| {
        let id = vector.handshaking.values().next();
        let place = id.and_then(|id| vector.exchanges.get(*id)?.place);
        let link = place.and_then(|place| vector.groups.link(place.group, place.slot));
        let (Some(place), Some(link)) = (place, link) else {
            return (vector.stat.declined_total > 0).then_some(false);
        };
        vector.on_link_failed(link.qpn, Status::RetryExceeded, sys::call::now_ns());
        Some(place.slot == LinkSlot::FIRST)
    };
    // What the other host does it does not tell at the moment.
    loop {
        if let Some(is_so) = within(engine, lose) {
            return is_so;
        }
    }
}

/// Passes a message of a handshake on. Whether there was any.
fn pass(from: &mut TcpStream, to: &mut TcpStream) -> bool {
    from.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut message = vec![0; 1 << 16];
    let n = from.read(&mut message).unwrap_or(0);
    to.write_all(&message[..n]).unwrap();
    n > 0
}

#[test]
fn a_server_names_the_link_that_is_left() {
    let is_named = |(hosts, _others): (Hosts, [[Guest; 2]; 2])| {
        let [here, there] = hosts.addresses;
        let ((ours, mut near), (mut far, theirs)) = (tcp(here, there), tcp(here, there));
        let client = hosts.give(0, ours, Role::Client, there);
        let server = hosts.give(1, theirs, Role::Server, here);
        let mut proposal = vec![0; 1 << 16];
        let n = near.read(&mut proposal).unwrap();
        let go = stop(&hosts.engines[0]);
        far.write_all(&proposal[..n]).unwrap();
        let is_lost = lose_first_link(&hosts.engines[1]);
        drop(go);
        // The Accept and the Confirm.
        if !is_lost || !pass(&mut far, &mut near) || !pass(&mut near, &mut far) {
            return false;
        }
        client.send(b"hello");
        assert_eq!(server.receive_all(5), b"hello");
        server.send(b"and to you");
        assert_eq!(client.receive_all(10), b"and to you");
        hosts.by_smc(3) == 3
    };
    assert!((0..3).any(|_| with_two_links().is_none_or(is_named)));
}

/// What the server has named is of no use without the link, and there is TCP.
#[test]
fn a_client_whose_link_is_lost_before_it_has_confirmed_goes_by_tcp() {
    let goes_by_tcp = |(hosts, _others): (Hosts, [[Guest; 2]; 2])| {
        let [here, there] = hosts.addresses;
        let ((ours, mut near), (mut far, theirs)) = (tcp(here, there), tcp(here, there));
        let client = hosts.give(0, ours, Role::Client, there);
        let server = hosts.give(1, theirs, Role::Server, here);
        assert!(pass(&mut near, &mut far), "the Proposal");
        let mut accept = vec![0; 1 << 16];
        let n = far.read(&mut accept).unwrap();
        let go = stop(&hosts.engines[1]);
        near.write_all(&accept[..n]).unwrap();
        let is_lost = lose_first_link(&hosts.engines[0]);
        drop(go);
        // The Decline.
        if !is_lost || !pass(&mut near, &mut far) {
            return false;
        }
        client.send(b"hello");
        assert!(pass(&mut near, &mut far));
        assert_eq!(server.receive_all(5), b"hello");
        let waits = |engine: &Engine| within(engine, |vector| vector.exchanges.len());
        hosts.wait("no handshake", |h| h.engines.iter().all(|e| waits(e) == 0));
        hosts.declined(0, Diagnosis::NoActiveLink.text()) == 1
    };
    assert!((0..3).any(|_| with_two_links().is_none_or(goes_by_tcp)));
}

/// A server that does not say that it is Shunt, as Linux does not, still uses a link that is lost until it has heard of that.
#[test]
fn what_a_connection_has_to_say_after_a_move_waits_until_linux_has_left_the_lost_link() {
    let settings = [("max_links", "2"), ("testlink_time", "0")];
    let Some(hosts) = Hosts::with_two_addresses(&settings) else { return };
    let [here, there] = hosts.addresses;
    let ((ours, mut near), (mut far, theirs)) = (tcp(here, there), tcp(here, there));
    let client = hosts.give(0, ours, Role::Client, there);
    let server = hosts.give(1, theirs, Role::Server, here);
    if !pass(&mut near, &mut far) {
        return;
    }
    let mut message = vec![0; 1 << 16];
    let n = far.read(&mut message).unwrap();
    let Ok(Message::Accept(Answer::Rdma(mut accept))) = Message::parse(&message[..n]) else {
        return;
    };
    let first = accept.v2.as_mut().and_then(|v2| v2.first.as_mut());
    let says = first.and_then(|first| first.v2x.as_mut()).expect("first contact");
    (says.vendor, says.reserved) = ([0; 4], [0; 8]);
    near.write_all(&Message::Accept(Answer::Rdma(accept)).emit()).unwrap();
    if !pass(&mut near, &mut far) || hosts.by_smc(1) != 1 {
        return;
    }
    hosts.wait("two links", |h| h.engines.iter().all(|e| links(e) == 2));
    client.send(b"before");
    assert_eq!(server.receive_all(6), b"before");
    client.wait("all to be released", |g| g.unreleased() == 0);

    let go = stop(&hosts.engines[1]);
    let before = within(&hosts.engines[0], |vector| {
        let qpn = by_smc(vector)[0].qpn;
        let writes = vector.stat.writes_tx;
        vector.on_link_failed(qpn, Status::RetryExceeded, sys::call::now_ns());
        writes
    });
    client.send(b"after");
    let looked = |vector: &mut Vector| {
        let unsent = by_smc(vector)[0].pump.unsent();
        (unsent, vector.stat.writes_tx)
    };
    client.wait("it to be seen", |_| {
        let (unsent, writes) = within(&hosts.engines[0], looked);
        unsent > 0 || writes > before
    });
    assert_eq!(within(&hosts.engines[0], looked), (5, before));
    drop(go);
    assert_eq!(server.receive_all(5), b"after");
    server.send(b"and back");
    assert_eq!(client.receive_all(8), b"and back");
    let holds = |vector: &mut Vector| {
        vector.groups.get(by_smc(vector)[0].place.group).map(|group| group.holds())
    };
    assert_eq!(within(&hosts.engines[0], holds), Some(false));
}

/// The Accept cannot be taken back before the client has spoken, and its Confirm is for a link that nobody will answer on.
#[test]
fn a_server_whose_link_is_lost_before_the_confirm_goes_by_tcp() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    let [here, there] = hosts.addresses;
    let ((ours, mut near), (mut far, theirs)) = (tcp(here, there), tcp(here, there));
    let _client = hosts.give(0, ours, Role::Client, there);
    let server = hosts.give(1, theirs, Role::Server, here);
    assert!(pass(&mut near, &mut far), "the Proposal");
    let mut message = vec![0; 1 << 16];
    let n = far.read(&mut message).unwrap();
    assert!(lose_first_link(&hosts.engines[1]));
    near.write_all(&message[..n]).unwrap();
    assert!(pass(&mut near, &mut far), "the Confirm");
    far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let n = far.read(&mut message).expect("the server says something");
    let said = Message::parse(&message[..n]);
    let is_meant = |d: &Decline| d.diagnosis == Diagnosis::NoActiveLink;
    assert!(matches!(&said, Ok(Message::Decline(d)) if is_meant(d)), "{said:?}");
    server.send(b"hello");
    let mut came = [0; 5];
    far.read_exact(&mut came).unwrap();
    assert_eq!((&came, hosts.declined(1, Diagnosis::NoActiveLink.text())), (b"hello", 1));
}

/// A server names a link of the group that two connections have, of which its client hears something else and says so.
/// Whether all of it was in time, and what that did to the two was right.
fn declines(change: impl Fn(&mut RdmaAnswer), why: Diagnosis) -> bool {
    let Some(hosts) = Hosts::new(&[]) else { return true };
    let both = talk(&hosts, 2);
    if hosts.by_smc(2) != 2 {
        return false;
    }
    let [here, there] = hosts.addresses;
    let ((ours, mut near), (mut far, theirs)) = (tcp(here, there), tcp(here, there));
    let client = hosts.give(0, ours, Role::Client, there);
    let server = hosts.give(1, theirs, Role::Server, here);
    if !pass(&mut near, &mut far) {
        return false;
    }
    let mut message = vec![0; 1 << 16];
    let n = far.read(&mut message).unwrap();
    let Ok(Message::Accept(Answer::Rdma(mut accept))) = Message::parse(&message[..n]) else {
        return false;
    };
    change(&mut accept);
    near.write_all(&Message::Accept(Answer::Rdma(accept)).emit()).unwrap();
    // The Decline, and what the program has to say.
    if !pass(&mut near, &mut far) {
        return false;
    }
    client.send(b"hello");
    assert!(pass(&mut near, &mut far));
    assert_eq!(server.receive_all(5), b"hello");
    for [client, server] in &both {
        if why == Diagnosis::OutOfSync {
            server.wait("the reset", |g| g.closed() == Some(true));
        } else {
            client.send(b"and more");
            assert_eq!(server.receive_all(8), b"and more");
        }
    }
    // The next one goes by SMC-R whatever became of those.
    let _next = talk(&hosts, 1);
    let said = [why.text(), &format!("The peer: {}", why.text())];
    let heard = [0, 1].map(|host| hosts.declined(host, said[host]));
    hosts.by_smc(4) == 3 && heard == [1, 1]
}

#[test]
fn a_link_that_the_client_does_not_have_is_declined_and_others_stay() {
    let number = |accept: &mut RdmaAnswer| accept.qpn = smc::Qpn::new(accept.qpn.get() ^ 1 << 20);
    assert!((0..3).any(|_| declines(number, Diagnosis::NoServerLink)));
}

/// A client that has no link group with the server at all says so, and the server ends its own (RFC 7609 C.4).
#[test]
fn a_server_whose_client_has_no_link_group_with_it_ends_its_own() {
    let system = |accept: &mut RdmaAnswer| accept.system = SystemId([9; 8]);
    assert!((0..3).any(|_| declines(system, Diagnosis::OutOfSync)));
}
