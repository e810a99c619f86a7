//! Where the next message is looked for before it has come.

use sys::iov::Buffers;

use super::*;
use crate::conn::taken::tests::{End, ends};
use crate::conn::{Got, Put};

fn sends(from: &End, to: &End, n: usize) -> Option<(*const u8, usize)> {
    let put = Buffers::over(&mut vec![7; n], |bytes| from.conn.send(from.w, from.fd(), bytes));
    assert_eq!(put, Put::All);
    let mut room = vec![0; n];
    let got = Buffers::over(&mut room, |bytes| to.conn.recv(to.w, to.fd(), bytes, 0));
    assert_eq!(got, Got::Bytes(n));
    let (mine, peer) = to.conn.halves(to.w).unwrap();
    to.conn.next_short(to.w, mine, peer)
}

#[test]
fn a_short_message_is_looked_for_behind_the_last_one() {
    let [client, server] = ends();
    assert!(server.settle(true) && client.settle(false));
    for end in [&client, &server] {
        let (_, half) = end.conn.my_half(end.w).unwrap();
        assert!(end.conn.go_up(end.w, half));
    }
    let (mine, peer) = client.conn.halves(client.w).unwrap();
    assert_eq!(client.conn.next_short(client.w, mine, peer), None, "there was none yet");
    let (first, n) = sends(&server, &client, 100).expect("a short one");
    assert_eq!(n, 100);
    let (second, n) = sends(&server, &client, 14).expect("a shorter one");
    assert_eq!((second.addr() - first.addr(), n), (14, 14));
    assert_eq!(sends(&server, &client, SHORT + 1), None, "a long one");
    assert!(sends(&server, &client, 1).is_some());
}
