//! How a connection ends beside threads that are in the middle of something on it.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicBool;

use sys::iov::Buffers;
use sys::sync::AtomicU32;

use super::*;
use crate::conn::taken::tests::{End, ends};
use crate::conn::{Got, Put};

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

/// A call has looked at its number when another thread closes that: what keeps the connection open for the call is where its
/// doorbells go, and where those of the peer are taken from. With no call under way there is nothing.
#[test]
fn under_a_lock_nobody_goes_by_a_number_that_was_closed() {
    let [client, server] = attached();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut its_peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    its_peer.write_all(b"y").unwrap();
    eventually_has(other.as_raw_fd(), 1);
    let [mine, theirs] = [&client, &server].map(|end| end.conn.my_half(end.w).unwrap().1);
    let sends = |end: &End, fd| Buffers::over(&mut [1], |from| end.conn.send(end.w, fd, from));

    client.conn.kept.store(client.fd().cast_unsigned() + 1, Ordering::Relaxed);
    server.conn.arm_cold(server.w, theirs);
    assert_eq!(sends(&client, other.as_raw_fd()), Put::All);
    eventually_has(server.fd(), 1);
    client.conn.arm_cold(client.w, mine);
    assert_eq!(sends(&server, server.fd()), Put::All);
    eventually_has(client.fd(), 1);
    client.conn.drain(client.w, other.as_raw_fd());
    assert_eq!(queued(client.fd()), 0, "the doorbell is there");

    client.conn.kept.store(0, Ordering::Relaxed);
    client.conn.refs.store(0, Ordering::Relaxed);
    server.conn.arm_cold(server.w, theirs);
    // Nor is anything done to the half, which may be another connection's by then.
    let sent = mine.sent.load(Ordering::Relaxed);
    assert_eq!(sends(&client, other.as_raw_fd()), Put::Kernel);
    assert_eq!(mine.sent.load(Ordering::Relaxed), sent);
    let got = Buffers::over(&mut [0], |to| client.conn.recv(client.w, client.fd(), to, 0));
    assert_eq!(got, Got::Kernel);
    assert_eq!([&other, &its_peer].map(|end| queued(end.as_raw_fd())), [1, 0]);
}

fn queued(fd: i32) -> i32 {
    call::ioctl_int(fd, SIOCINQ).unwrap()
}

fn eventually_has(fd: i32, bytes: i32) {
    let deadline = call::now_ns() + 10_000_000_000;
    while queued(fd) != bytes {
        assert!(call::now_ns() < deadline, "{} bytes and not {bytes}", queued(fd));
        call::sched_yield();
    }
}

/// Our direction is back on TCP: its end is the kernel's, which does it behind what the peer is told.
#[test]
fn who_closes_waits_for_an_end_that_is_the_kernels() {
    let [client, server] = attached();
    client.conn.demote_sender(client.w, client.fd(), crate::Reason::Urgent);
    let done = client.conn.shuts_down(client.w, client.fd(), false, true);
    assert_eq!((done, call::ended(server.fd())), (Ok(()), true));
    // Nor is it done by a number that is another file's.
    client.conn.refs.store(0, Ordering::Relaxed);
    assert_eq!(client.conn.shuts_down(client.w, client.fd(), true, true), Err(9));
}

/// A call that has looked at the connection before another thread closes it finds that it has none.
#[test]
fn what_was_closed_is_not_ended() {
    let [client, server] = attached();
    assert!(client.conn.closes_alone());
    assert_eq!(client.conn.shuts_down(client.w, client.fd(), true, true), Err(9));
    let (_, mine) = client.conn.my_half(client.w).unwrap();
    assert_eq!(mine.flags.load(Ordering::Relaxed) & (flag::SHUT | flag::SHUT_RD), 0);
    assert!(!call::ended(server.fd()));
}

/// It is waited for, so its number is good until it has ended; and a child of ours may go on with the connection, so that no
/// end in the kernel wakes the peer.
#[test]
fn a_send_that_has_begun_before_a_close_rings() {
    let [client, server] = attached();
    let (_, theirs) = server.conn.my_half(server.w).unwrap();
    server.conn.arm_cold(server.w, theirs);
    let read = |_: *mut [u8]| {
        assert!(client.conn.closes_alone());
        Ok(1)
    };
    assert_eq!(client.conn.send_with(client.w, client.fd(), 1, read), Ok(1));
    eventually_has(server.fd(), 1);
}

/// Nor before who has found that its number leads here has done something by that.
#[test]
fn who_closes_waits_for_one_that_goes_by_the_number() {
    let [client, server] = attached();
    let (begun, done) = (&AtomicBool::new(false), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _numbered = client.conn.by_number();
            begun.store(true, Ordering::Release);
            call::pause_ms(100);
            done.store(true, Ordering::Relaxed);
        });
        while !begun.load(Ordering::Acquire) {
            call::sched_yield();
        }
        client.conn.closing(client.w, client.fd());
        assert!(done.load(Ordering::Relaxed), "the number is another file's before");
    });
    server.conn.closing(server.w, server.fd());
}

/// A handler has left it for good, or waits in it for what this thread holds.
#[test]
fn who_goes_by_a_number_waits_for_no_other_one_for_ever() {
    let [client, _server] = attached();
    let (taken, is_taken) = std::sync::mpsc::channel();
    let (tell, told) = std::sync::mpsc::channel();
    let conn = client.conn;
    std::thread::scope(|scope| {
        let (end, ends) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || {
            std::mem::forget(conn.by_number());
            taken.send(()).expect("it is waited for");
            // It lives for as long as the others look.
            let _ = ends.recv();
            lock::free_if_left(&conn.numbered);
        });
        is_taken.recv().expect("it says so");
        scope.spawn(move || tell.send(conn.by_number().is_none()));
        let got = told.recv_timeout(std::time::Duration::from_secs(30));
        drop(end);
        assert_eq!(got, Ok(true));
    });
}

fn is_free(word: &AtomicU32) -> bool {
    word.load(Ordering::Acquire) == 0
}
