//! What a sender finds room for.

use std::sync::Barrier;

use super::*;
use crate::conn::Got;
use crate::conn::taken::tests::ends;

/// Small messages find as much room as the largest ring has, though nobody has read any; and come out as they went in.
#[test]
fn much_is_taken_in_small_pieces_before_any_is_read() {
    const MESSAGE: usize = 100;
    const LEAST: usize = 1 << 20;
    let [client, server] = ends();
    assert!(server.settle(true) && client.settle(false));
    for end in [&client, &server] {
        let (_, half) = end.conn.my_half(end.w).unwrap();
        assert!(end.conn.go_up(end.w, half));
    }
    let message =
        |n: usize| -> Vec<u8> { (n * 7..).take(MESSAGE).map(|i| i.to_le_bytes()[0]).collect() };
    let mut sent = 0;
    while sent < 4 * LEAST / MESSAGE {
        let put =
            Buffers::over(&mut message(sent), |from| client.conn.send(client.w, client.fd(), from));
        if put != Put::All {
            assert_eq!(put, Put::Full);
            break;
        }
        sent += 1;
    }
    assert!(sent * MESSAGE >= LEAST, "{} bytes", sent * MESSAGE);
    for n in 0..sent {
        let mut got: Vec<u8> = Vec::new();
        while got.len() < MESSAGE {
            let mut room = vec![0; MESSAGE - got.len()];
            let what =
                Buffers::over(&mut room, |to| server.conn.recv(server.w, server.fd(), to, 0));
            match what {
                Got::Bytes(n) | Got::Part(n) => got.extend(&room[..n]),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(got, message(n), "message {n} of {sent}");
    }
}

/// The end of a direction that never left TCP. Who sees it in the kernel before it is said takes the peer for gone.
#[test]
fn an_end_by_tcp_is_said_before_the_kernel_tells_it() {
    for n in 0..100 {
        let [client, server] = ends();
        assert!(server.settle(true) && client.settle(false));
        let (_, half) = server.conn.my_half(server.w).unwrap();
        // As if others sent as well: then it stays on TCP.
        half.users.fetch_add(1, Ordering::Relaxed);
        half.flags.fetch_and(!flag::UP, Ordering::Relaxed);
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            let ender = scope.spawn(|| {
                both.wait();
                server.conn.shutdown(server.w, server.fd(), false, true)
            });
            both.wait();
            while !call::ended(client.fd()) {}
            let (_, peer) = client.conn.halves(client.w).unwrap();
            let flags = peer.flags.load(Ordering::Acquire);
            assert_eq!(flags & (flag::SHUT | flag::UP), flag::SHUT, "time {n}");
            assert_eq!(ender.join().unwrap(), Some(Ok(())));
        });
        half.users.fetch_sub(1, Ordering::Relaxed);
    }
}
