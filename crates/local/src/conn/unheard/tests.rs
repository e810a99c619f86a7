//! An end of which only who looks by himself hears.

use sys::iov::Buffers;

use super::*;
use crate::conn::call;
use crate::conn::cut::tests::{half, receives, unread};
use crate::conn::{ECONNRESET, Got, Put};

#[test]
fn who_waits_for_room_finds_that_its_peer_has_died() {
    let [client, server] = unread(10);
    let (mine, peer) = server.conn.halves(server.w).unwrap();
    let died = || {
        assert!(!server.conn.is_heard(server.w, mine, peer), "it is before the switch");
        server.conn.kernel.load(Ordering::Relaxed) & kernel::DIED != 0
    };
    mine.sent.store(1, Ordering::Relaxed);
    assert!(!died(), "it lives");
    // As the kernel does when it dies.
    call::unlock_byte(client.w.board.fd(), crate::board::lock_of(client.w.board.slot().unwrap()));
    half(&client).users.store(2, Ordering::Relaxed);
    assert!(!died(), "another process has it");
    half(&client).users.store(1, Ordering::Relaxed);
    half(&client).flags.fetch_or(flag::CLOSED, Ordering::Relaxed);
    assert!(!died(), "it has closed in order");
    half(&client).flags.fetch_and(!flag::CLOSED, Ordering::Relaxed);
    assert!(died());
    assert!(server.conn.moved(mine, peer, true), "the wait goes on");
    // What is unread over there makes a reset of it; what was sent can be read.
    let put = Buffers::over(&mut [1], |bytes| server.conn.send(server.w, server.fd(), bytes));
    assert_eq!(put, Put::Failed(ECONNRESET));
    assert_eq!(receives(&server), Got::Part(10));
}
