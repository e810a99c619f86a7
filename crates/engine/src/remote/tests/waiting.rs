//! Handshakes that wait for somebody else, and what comes by their TCP connections meanwhile.

use sys::call;
use sys::event::{Events, Interest, Poller};

use super::super::exchange::{Exchange, ExchangeId, Machine, reset_on_close};
use super::super::meeting::Wish;
use super::*;

/// Something happens to the TCP connection of the first handshake that `is_meant`: in how many of some turns in a row its
/// vector is told of something then. `None`: there is no such handshake.
fn turns_told(
    engine: &Engine,
    is_meant: fn(&Exchange) -> bool,
    happens: impl FnOnce() + Send + 'static,
) -> Option<usize> {
    within(engine, move |vector| {
        let is_meant = |(_, exchange): &(ExchangeId, &Exchange)| is_meant(exchange);
        let wire = vector.exchanges.iter().find(is_meant).map(|(_, e)| e.wire.as_raw_fd())?;
        let (poller, mut events) = (Poller::new().unwrap(), Events::new(8));
        poller.add(&wire, Interest::READ, 0).unwrap();
        happens();
        poller.wait(&mut events, None);
        let mut is_told = |vector: &mut Vector| {
            vector.poller.wait(&mut events, Some(0));
            let told = !events.is_empty();
            vector.hear(call::now_ns(), Some(0));
            told
        };
        Some((0..50).take_while(|_| is_told(vector)).count())
    })
}

/// What has happened is told some times at most.
#[track_caller]
fn comes_to_rest(turns: usize) {
    assert!(turns < 10, "{turns} turns, and each was told of something");
}

/// Its client waits for another one's first contact, and nobody reads.
#[test]
fn a_server_that_speaks_early_or_resets_wakes_a_client_that_waits_once() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    let [client, server] = hosts.addresses;
    for resets in [false, true] {
        let (first, silent) = tcp(client, server);
        let _first = hosts.give(0, first, Role::Client, server);
        let is_under_way = |h: &Hosts| h.engines[0].stat().vectors[0].handshakes == 1;
        hosts.wait("the first contact", is_under_way);
        let (ours, mut theirs) = tcp(client, server);
        let second = hosts.give(0, ours, Role::Client, server);
        let waits = |exchange: &Exchange| matches!(exchange.machine, Machine::Waits);
        hosts.wait("the second to come", |h| h.engines[0].stat().vectors[0].handshakes == 2);
        let _stays_open = (!resets).then(|| theirs.try_clone().unwrap());
        let happens = move || {
            if resets {
                reset_on_close(&theirs);
                drop(theirs);
            } else {
                theirs.write_all(b"220 ready").unwrap();
            }
        };
        // Where all of this took longer than one waits for another, there is none that does.
        if let Some(turns) = turns_told(&hosts.engines[0], waits, happens) {
            comes_to_rest(turns);
        }
        // It has not been missed.
        second.wait("the end", |g| g.closed() == Some(true));
        drop(silent);
        hosts.wait("the first one's end", |h| h.engines[0].stat().vectors[0].handshakes == 0);
    }
}

/// Its server waits for a Proposal.
#[test]
fn word_of_what_was_sent_that_nobody_reads_wakes_no_handshake_for_ever() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    let [client, server] = hosts.addresses;
    let (mut ours, theirs) = tcp(client, server);
    ask_for_word_of_sent(&theirs);
    let mut kept = theirs.try_clone().unwrap();
    let accepted = hosts.give(1, theirs, Role::Server, client);
    hosts.wait("the handshake", |h| h.engines[1].stat().vectors[0].handshakes == 1);
    let awaits = |exchange: &Exchange| matches!(exchange.machine, Machine::Server(_));
    let happens = move || kept.write_all(b"x").unwrap();
    comes_to_rest(turns_told(&hosts.engines[1], awaits, happens).unwrap());
    // What the client says is heard.
    ours.read_exact(&mut [0]).unwrap();
    let client = hosts.give(0, ours, Role::Client, server);
    client.send(b"hello");
    assert_eq!(accepted.receive_all(5), b"hello");
}

/// A server that speaks first, whose engine waits for the first message of a client that has been promised so.
#[test]
fn a_promise_is_taken_back_though_the_engines_have_lost_each_other() {
    for _ in 0..5 {
        let Some(hosts) = Hosts::that_meet() else { return };
        if is_taken_back_without_a_link(&hosts) {
            return;
        }
    }
    panic!("the engines never answer in time");
}

/// Whether the client was promised a handshake, and could not make use of it before its time was over.
fn is_taken_back_without_a_link(hosts: &Hosts) -> bool {
    let [client, server] = hosts.addresses;
    // First contact is being made with somebody who says nothing.
    let (ours, _silent) = tcp(client, server);
    let _first = hosts.give(0, ours, Role::Client, server);
    let [Ok(client), Ok(server)] = hosts.ask(5000, [true; 2]) else { panic!("both have it") };
    let is_over = |h: &Hosts| h.engines[0].stat().vectors[0].declined_total == 1;
    hosts.wait("a promise", |h| {
        let promised = within(&h.engines[0], |vector| {
            let promised = vector.exchanges.iter().any(|(_, exchange)| exchange.answered);
            if promised {
                vector.meeting.put(Wish::Stop);
            }
            promised
        });
        promised || is_over(h)
    });
    server.send(b"220 ready");
    client.wait("the first words", |g| g.unread() == 9 || server.closed().is_some());
    client.send(b"hello");
    server.wait("the answer", |g| g.unread() == 5 || g.closed().is_some());
    assert_eq!((client.closed(), server.closed()), (None, None));
    hosts.wait("the reason", is_over);
    hosts.declined(0, "First contact with the peer was not made in time.") == 1
}
