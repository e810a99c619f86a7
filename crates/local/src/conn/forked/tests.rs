//! What a fork makes of connections, as far as one process can say it.

use super::*;
use crate::conn::taken::tests::{End, ends};

fn forks_in_vain(end: &End) {
    let begun = end.conn.fork_begins(end.w);
    end.conn.fork_prepare(end.w, begun);
    end.w.forks.fetch_add(1, Ordering::Relaxed);
    end.conn.fork_failed(end.w);
}

/// Another thread of the parent was in the middle of something, which in the child nobody brings to an end.
#[test]
fn nothing_stays_busy_in_a_child() {
    let before = [Phase::Fresh, Phase::Server, Phase::Offered, Phase::Asked];
    let after = [Phase::Fresh, Phase::Server, Phase::Offered, Phase::Tcp];
    for (before, after) in before.into_iter().zip(after) {
        let conn = Conn::default();
        conn.set_phase(before);
        assert!(conn.swap_phase(before, Phase::Busy));
        conn.forked(Calls::default());
        assert_eq!(conn.phase(), after, "from {before:?}");
    }
    let conn = Conn::default();
    assert!(conn.leaves_for_tcp(Phase::Fresh));
    conn.forked(Calls::default());
    assert_eq!(conn.phase(), Phase::Tcp);
}

/// A handler does not wait for the thread that it has interrupted.
#[test]
fn who_settles_it_on_tcp_is_known_to_itself() {
    let conn = Conn::default();
    assert!(conn.leaves_for_tcp(Phase::Fresh));
    assert_eq!(conn.phase(), Phase::Busy);
    assert!(conn.is_staying_here());
    std::thread::scope(|scope| scope.spawn(|| assert!(!conn.is_staying_here())).join().unwrap());
    conn.set_phase(Phase::Busy);
    assert!(!conn.is_staying_here());
}

#[test]
fn a_fork_that_fails_has_counted_nobody() {
    let [client, server] = ends();
    for end in [&client, &server] {
        forks_in_vain(end);
        forks_in_vain(end);
    }
    assert!(server.settle(true), "held by a process that there is not");
    assert!(client.settle(false));
    for end in [&client, &server] {
        forks_in_vain(end);
        let (_, half) = end.conn.my_half(end.w).unwrap();
        assert_eq!(half.users.load(Ordering::Relaxed), 1);
        assert!(end.conn.go_up(end.w, half));
    }
}

/// The fork that fails has counted neither a connection that was begun since, nor one that has found no word to count
/// in: what comes of that one is undone.
#[test]
fn a_fork_that_fails_takes_back_no_more_than_it_has_counted() {
    let [client, server] = ends();
    let (_, half) = client.conn.my_half(client.w).unwrap();
    half.users.store(2, Ordering::Relaxed);
    client.conn.fork_failed(client.w);
    assert_eq!(half.users.load(Ordering::Relaxed), 2);

    server.conn.holders.store(UNCOUNTED, Ordering::Relaxed);
    forks_in_vain(&server);
    assert_eq!(server.conn.holders.load(Ordering::Relaxed), UNCOUNTED);
    for word in server.w.common.words().unwrap() {
        word.store(9, Ordering::Relaxed);
    }
    server.conn.holders.store(0, Ordering::Relaxed);
    forks_in_vain(&server);
    assert_eq!(server.conn.holders.load(Ordering::Relaxed), 0);
}

/// A parent that does not run between its fork and its close does not keep the connection on TCP, however quick the
/// child and its client are.
#[test]
fn others_are_waited_for_by_receives_and_by_time() {
    let (held, until) = (AtomicU32::new(0), AtomicU64::new(0));
    for n in 0..HELD_MAX {
        assert!(!has_waited(&held, &until, || panic!("the clock was read for receive {n}")));
    }
    assert!(!has_waited(&held, &until, || 7));
    for n in 0..10_000 {
        assert!(!has_waited(&held, &until, || HELD_NS), "receive {n}");
    }
    assert!(has_waited(&held, &until, || HELD_NS + 8));
    // Who is slow has as many receives as others.
    let (held, until) = (AtomicU32::new(0), AtomicU64::new(0));
    let early = (0..=HELD_MAX).filter(|_| has_waited(&held, &until, || u64::MAX / 2));
    assert_eq!(early.count(), 0);
}
