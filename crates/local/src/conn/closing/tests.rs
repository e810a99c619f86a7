//! How a connection ends beside threads that are in the middle of something on it.

use std::sync::atomic::AtomicBool;

use sys::sync::AtomicU32;

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

/// The peer may have read, and answered, what a thread has still to ring for by a number that is free after a close.
#[test]
fn who_closes_waits_for_a_send_that_is_about_to_ring() {
    let [client, server] = attached();
    let (begun, done) = (&AtomicBool::new(false), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let read = |_: *mut [u8]| {
                begun.store(true, Ordering::Release);
                call::pause_ms(100);
                // It is in the ring, as the peer sees it, and not rung for.
                done.store(true, Ordering::Relaxed);
                Ok(1)
            };
            client.conn.send_with(client.w, client.fd(), 1, read)
        });
        while !begun.load(Ordering::Acquire) {
            call::sched_yield();
        }
        client.conn.closing(client.w, client.fd());
        assert!(done.load(Ordering::Relaxed), "the number is another file's before");
    });
    server.conn.closing(server.w, server.fd());
}

/// The same of one that has told its peer of the end, and not the kernel.
#[test]
fn who_closes_waits_for_one_that_ends_a_direction() {
    let [client, server] = attached();
    assert_eq!(server.conn.shutdown(server.w, server.fd(), false, true), Some(Ok(())));
    let (mine, _) = client.conn.halves(client.w).unwrap();
    let done = &AtomicBool::new(false);
    // A thread of another process, so far as can be told: it is waited for there, and not by who closes.
    mine.rx_lock.store(lock::tid() ^ 1 << 31, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ended = client.conn.shutdown(client.w, client.fd(), false, true);
            done.store(true, Ordering::Relaxed);
            ended
        });
        while mine.flags.load(Ordering::Acquire) & flag::SHUT == 0 || !is_free(&mine.tx_lock) {
            call::sched_yield();
        }
        let closing = scope.spawn(|| {
            client.conn.closing(client.w, client.fd());
            done.load(Ordering::Relaxed)
        });
        call::pause_ms(100);
        mine.rx_lock.store(0, Ordering::Release);
        assert!(closing.join().unwrap(), "the number is another file's before");
    });
    server.conn.closing(server.w, server.fd());
}

fn is_free(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) == 0
}
