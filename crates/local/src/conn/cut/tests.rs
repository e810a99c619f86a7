//! How a stream ends that is cut short, and whoever has heard of it first.

use std::io::Write;

use sys::iov::Buffers;

use super::*;
use crate::conn::taken::tests::{End, ends};
use crate::conn::{EAGAIN_RETRY, call, ring};

/// A server that has taken the offer, and sends by its ring; its client sends so much more by TCP and has not looked since.
pub(in crate::conn) fn unread(n: usize) -> [End; 2] {
    let [client, server] = ends();
    assert!(server.settle(true), "not taken");
    assert!(server.conn.go_up(server.w, half(&server)));
    assert!(client.conn.tcp_send_begins());
    (&client.stream).write_all(&vec![7; n]).unwrap();
    client.conn.tcp_send_ends(n);
    [client, server]
}

/// Its half, where it may be written.
pub(in crate::conn) fn half(end: &End) -> &'static Half {
    end.conn.my_half(end.w).unwrap().1
}

pub(in crate::conn) fn receives(end: &End) -> Got {
    Buffers::over(&mut [0; 64], |bytes| end.conn.recv(end.w, end.fd(), bytes, 0))
}

/// The client's socket is gone, and its end with it, in this way.
fn is_reset(client: &End, server: &End) {
    let _ = call::setsockopt(client.fd(), 1, 13, [1i32, 0]);
    call::disconnect(client.fd()).unwrap();
    assert!(call::hung_up(server.fd()), "no reset has come");
}

#[test]
fn a_reset_that_a_doorbell_has_heard_of_is_told_behind_what_came_before() {
    let [client, server] = unread(100);
    is_reset(&client, &server);
    let (mine, peer) = server.conn.halves(server.w).unwrap();
    client.conn.arm_cold(client.w, half(&client));
    server.conn.notify(server.w, server.fd(), mine, peer);
    assert_eq!(server.conn.error.load(Ordering::Relaxed), 104, "the doorbell has not heard of it");
    assert_eq!([(); 2].map(|()| receives(&server)), [Got::Part(64), Got::Part(36)]);
    assert_eq!(receives(&server), Got::Failed(ECONNRESET));
    assert_eq!(receives(&server), Got::End, "told twice");
}

#[test]
fn what_is_missing_before_the_switch_is_no_end() {
    let [client, server] = unread(10);
    let (mine, peer) = server.conn.halves(server.w).unwrap();
    // It has sent more, which is lost with its socket, and so is the error.
    half(&client).up_at.store(1 + 10 + 5, Ordering::Relaxed);
    half(&client).flags.fetch_or(flag::UP, Ordering::Release);
    is_reset(&client, &server);
    assert_eq!(call::getsockopt::<i32>(server.fd(), 1, 4), Ok(104));
    assert_eq!(receives(&server), Got::Part(10));
    assert_eq!(receives(&server), Got::Failed(ECONNRESET));
    assert_eq!((receives(&server), Conn::before(mine, peer)), (Got::End, 5));
}

#[test]
fn the_kernels_own_word_of_a_reset_is_told_once() {
    let [client, server] = unread(10);
    is_reset(&client, &server);
    assert_eq!(receives(&server), Got::Part(10));
    assert_eq!(receives(&server), Got::Failed(ECONNRESET));
    let (mine, _) = server.conn.halves(server.w).unwrap();
    assert!(server.conn.is_told(mine));
    assert_eq!(receives(&server), Got::End);
}

#[test]
fn an_end_in_order_is_one() {
    let [client, server] = unread(10);
    call::shutdown(client.fd(), 1).unwrap();
    assert_eq!(receives(&server), Got::Part(10));
    assert_eq!(receives(&server), Got::End);
}

fn sends(end: &End, text: &[u8]) -> Put {
    let mut text = text.to_vec();
    Buffers::over(&mut text, |bytes| end.conn.send(end.w, end.fd(), bytes))
}

#[test]
fn a_peer_that_died_beside_a_doorbell_is_sent_one_message_more() {
    let [client, server] = unread(10);
    half(&client).up_at.store(1 + 10, Ordering::Relaxed);
    half(&client).flags.fetch_or(flag::UP, Ordering::Release);
    assert_eq!(receives(&server), Got::Part(10));
    let (mine, peer) = server.conn.halves(server.w).unwrap();
    client.conn.arm_cold(client.w, half(&client));
    server.conn.notify(server.w, server.fd(), mine, peer);
    // With the doorbell unread, as where it is killed.
    is_reset(&client, &server);
    assert!(server.conn.ask(server.fd()));
    assert_eq!((receives(&server), receives(&server)), (Got::End, Got::End));
    assert_eq!((sends(&server, b""), sends(&server, b"one")), (Put::Lost, Put::Lost));
    assert_eq!(receives(&server), Got::End, "behind its end a stream gives no error");
    assert_eq!(server.conn.socket_error(server.w, server.fd(), 0), EPIPE);
    assert_eq!(server.conn.socket_error(server.w, server.fd(), 0), 0, "told twice");
    for _ in 0..2 {
        assert_eq!(sends(&server, b"two"), Put::Failed(EPIPE));
    }
}

/// Who has frozen, to go back to TCP, is not told of the end before what is left in the ring.
#[test]
fn a_clean_end_comes_behind_what_lies_in_the_ring() {
    let [client, server] = unread(0);
    half(&client).flags.fetch_or(flag::UP, Ordering::Release);
    ring::publish(&half(&client).tail, ring::tail(&half(&client).tail) + 4);
    server.conn.kernel.fetch_or(kernel::RDHUP | kernel::HUP | kernel::CLEAN, Ordering::Relaxed);
    let (mine, peer) = server.conn.halves(server.w).unwrap();
    let flags = peer.flags.load(Ordering::Relaxed);
    for frozen in [0, flag::WANT_DOWN] {
        mine.flags.fetch_or(frozen, Ordering::Relaxed);
        let got = server.conn.at_end(server.w, server.fd(), mine, peer, flags);
        assert_eq!(got, Some(Got::Failed(EAGAIN_RETRY)), "frozen: {}", frozen != 0);
    }
}
