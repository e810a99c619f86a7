//! The targets of `fuzz/` with random inputs, a few in each run: no libFuzzer and no nightly.

use e2e::targets::{hostile_peer, offers, pair};
use local::conn::{Got, Put};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use sys::sync::Ordering;

fn check(target: fn(&[u8]), cases: u32) {
    let cases = if e2e::quick() { cases / 8 } else { cases };
    let mut runner =
        TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let inputs = proptest::collection::vec(any::<u8>(), 1..400);
    let result = runner.run(&inputs, |bytes| {
        target(&bytes);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

#[test]
fn a_hostile_peer_costs_its_own_connection_only() {
    // Of those that are led back to TCP each may wait a second for a peer that says that it is about to.
    check(hostile_peer::run, 50);
}

#[test]
fn a_board_of_nonsense_harms_nobody() {
    check(offers::run, 400);
}

/// Who gave a connection up, since its peer had written nonsense, takes nothing out of that peer's ring any more, even
/// where what is there looks right again.
#[test]
fn nothing_is_taken_where_it_lies_of_a_connection_that_was_given_up() {
    let worlds = pair::worlds();
    let [ours, theirs] = worlds.connect();
    assert_eq!(theirs.send(b"abcdef"), (Put::All, 0));
    let mut seen = 0;
    let mut take = |conn: &pair::End| {
        conn.conn.recv_with(conn.w, conn.fd, 2, |piece| {
            seen += piece.len();
            Ok(piece.len())
        })
    };
    assert!(matches!(take(&ours), Ok(2)));
    let tail = theirs.half().tail.load(Ordering::Relaxed);
    theirs.half().tail.store(tail.wrapping_add(1 << 40), Ordering::Relaxed);
    assert!(matches!(take(&ours), Err(Got::Failed(_))), "more than a ring holds");
    theirs.half().tail.store(tail, Ordering::Relaxed);
    assert!(matches!(take(&ours), Err(Got::Kernel)));
    assert_eq!(seen, 2);
    theirs.close();
    ours.close();
}

/// A callback that says it has put more into a piece of the ring than there is room for.
#[test]
fn no_more_is_sent_than_was_room_for_in_the_piece() {
    let worlds = pair::worlds();
    let [ours, theirs] = worlds.connect();
    // The way of a first send.
    assert_eq!(ours.send(b"before"), (Put::All, 0));
    let mut room = 0;
    let put = ours.conn.send_with(ours.w, ours.fd, 100, |piece| {
        room = piece.len();
        Ok(room + 5000)
    });
    assert!(matches!(put, Ok(n) if n == room && room > 0), "{room}");
    let (mut got, mut first) = (0, true);
    while let (Got::Bytes(n) | Got::Part(n), bytes) = theirs.recv(16 << 10, 0) {
        assert!(!first || bytes.starts_with(b"before"));
        (got, first) = (got + n, false);
    }
    assert_eq!(got, b"before".len() + room);
    ours.close();
    theirs.close();
}
