//! How a connection ends beside threads that are in the middle of something on it.

use super::*;
use crate::conn::taken::tests::{End, ends};

/// Two ends that have both left TCP.
fn attached() -> [End; 2] {
    let [client, server] = ends();
    assert!(server.settle(true) && client.settle(false));
    for end in [&client, &server] {
        let (_, half) = end.conn.my_half(end.w).unwrap();
        assert!(end.conn.go_up(end.w, half));
    }
    [client, server]
}

/// Whoever receives takes the lock of senders too, if its peer asks for a demotion: the other way round nobody must wait.
#[test]
fn who_ends_sending_keeps_senders_out_for_no_receiver() {
    let [client, server] = attached();
    assert_eq!(server.conn.shutdown(server.w, server.fd(), false, true), Some(Ok(())));
    let (mine, _) = client.conn.halves(client.w).unwrap();
    let receiving = lock::lock(&mine.rx_lock);
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| client.conn.shutdown(client.w, client.fd(), false, true));
        while mine.flags.load(Ordering::Acquire) & flag::SHUT == 0 {
            call::sched_yield();
        }
        let deadline = call::now_ns() + 20_000_000_000;
        let is_free = || lock::try_lock(&mine.tx_lock).is_some();
        let free = loop {
            match is_free() {
                false if call::now_ns() < deadline => call::sched_yield(),
                free => break free,
            }
        };
        drop(receiving);
        assert_eq!(ending.join().unwrap(), Some(Ok(())));
        assert!(free, "it waits for who receives, and senders for it");
    });
}
