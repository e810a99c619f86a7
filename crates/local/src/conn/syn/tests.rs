use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use super::*;

/// A connection, when it began as its client has it, and its ends as the server sees them.
fn connected(at: &str, conn: &Conn) -> (TcpStream, TcpStream, u64, Ends) {
    let listener = TcpListener::bind(at).unwrap();
    conn.keep_syns(listener.as_raw_fd());
    let since = call::now_ns();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let began = began(client.as_raw_fd(), since);
    let (server, _) = listener.accept().unwrap();
    let end = |addr: SocketAddr| match addr {
        SocketAddr::V4(v4) => SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0),
        SocketAddr::V6(v6) => v6,
    };
    let ends =
        Ends { local: end(server.local_addr().unwrap()), remote: end(server.peer_addr().unwrap()) };
    (client, server, began, ends)
}

#[test]
fn a_connection_is_known_by_its_first_segment() {
    for at in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        let conn = Conn::default();
        let (_client, server, began, ends) = connected(at, &conn);
        assert_eq!(conn.options.load(Ordering::Relaxed), options::SYN_KEPT);
        assert_ne!(began, 0);
        // The loopback has no hardware address.
        assert_eq!(
            interface::hardware_towards(server.as_raw_fd(), *ends.local.ip(), *ends.remote.ip()),
            None
        );
        let begun = conn.begun(server.as_raw_fd(), ends).unwrap();
        assert!(begun.fits(began, 0, true), "{at}");
        assert!(!begun.fits(began, 0, false), "{at}: from nowhere");
        assert!(!begun.fits(0, 0, true), "{at}: it is not known when");
        // The kernel tells it once, and we remember it.
        assert_eq!(conn.begun(server.as_raw_fd(), ends), Some(begun), "{at}");
        let other = Conn::default();
        assert_eq!(other.begun(server.as_raw_fd(), ends), None, "{at}: not kept");
        other.options.store(options::SYN_KEPT, Ordering::Relaxed);
        for _ in 0..2 {
            assert_eq!(other.begun(server.as_raw_fd(), ends), None, "{at}: told before");
        }
        let (_client, server, began, ends) = connected(at, &Conn::default());
        let mut segment = [0; SEGMENT];
        let fd = server.as_raw_fd();
        // A look at it takes it away, but for a place that is too small.
        assert_eq!(call::getsockopt_bytes(fd, TCP, TCP_SAVED_SYN, &mut segment[..8]), Err(22));
        assert!(call::getsockopt_bytes(fd, TCP, TCP_SAVED_SYN, &mut segment).is_ok());
        let (from, packet) = unwrapped(&segment);
        assert_eq!(from, Some([0; 6]));
        for wrong in [ends.mirrored(), Ends { remote: ends.local, ..ends }] {
            assert_eq!(stamp(packet, wrong), None);
        }
        assert!(stamp(packet, ends).is_some_and(|at| fits(at, began)));
        // As a link without a header has it.
        assert_eq!(unwrapped(packet), (None, packet));
    }
}

#[test]
fn stamps_of_other_times_and_hosts_do_not_fit() {
    let began = |last: u32, before: u32| u64::from(last) << 32 | u64::from(before);
    for (stamp, last, before, fit) in [
        (1000, 1000, 2, true),
        (1002, 1000, 2, true),
        (1003, 1000, 2, false),
        (998, 1000, 2, true),
        (997, 1000, 2, false),
        // It wraps.
        (u32::MAX, 1, 2, true),
        (1, u32::MAX, 2, true),
        (2, u32::MAX, 2, false),
        (0, u32::MAX, u32::MAX, true),
    ] {
        assert_eq!(fits(stamp, began(last, before)), fit, "{stamp} {last} {before}");
    }
}

/// No bytes of a segment, and no lengths in it, make the reading of it panic or go on for ever; what is cut short has no
/// stamp.
#[test]
fn segments_that_are_none() {
    let conn = Conn::default();
    let (_client, server, _, ends) = connected("127.0.0.1:0", &conn);
    let mut segment = [0; SEGMENT];
    let len = call::getsockopt_bytes(server.as_raw_fd(), TCP, TCP_SAVED_SYN, &mut segment).unwrap();
    let read = |segment: &[u8]| stamp(unwrapped(segment).1, ends);
    assert!(read(&segment[..len]).is_some());
    for cut in 0..len {
        assert_eq!(read(&segment[..cut]), None, "cut at {cut} of {len}");
    }
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..200_000 {
        let mut changed = segment;
        for _ in 0..3 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            changed[usize::try_from(seed % len as u64).unwrap()] = seed.to_le_bytes()[7];
        }
        let _ = read(&changed[..len]);
    }
}

#[test]
fn who_looks_at_first_segments_keeps_them() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let fd = listener.as_raw_fd();
    // Somebody has asked for them before we came.
    call::setsockopt(fd, TCP, TCP_SAVE_SYN, 1i32).unwrap();
    let conn = Conn::default();
    conn.keep_syns(fd);
    assert_eq!(conn.options.load(Ordering::Relaxed), 0);
    // Or later.
    call::setsockopt(fd, TCP, TCP_SAVE_SYN, 0i32).unwrap();
    conn.keep_syns(fd);
    assert_eq!(conn.options.load(Ordering::Relaxed), options::SYN_KEPT);
    conn.asks_for_syns();
    conn.keep_syns(fd);
    assert_eq!(conn.options.load(Ordering::Relaxed), options::SYN_ASKED);
    // Who has the listener from us finds that it was us.
    let heir = Conn::default();
    heir.keep_syns(fd);
    assert_eq!(heir.options.load(Ordering::Relaxed), options::SYN_KEPT);
}

#[test]
fn a_stamp_without_a_secret_is_the_clock() {
    let now = 5_000_000u64;
    for (ms, is) in [
        (now, true),
        (now - 1, true),
        (now - 900, true),
        (now + 2, true),
        (now + 4, false),
        (now - 1100, false),
        (7, false),
    ] {
        assert_eq!(is_the_clock(u32::try_from(ms).unwrap(), now * 1_000_000), is, "{ms}");
    }
    // It wraps after 49 days.
    let late = u64::from(u32::MAX) + 10;
    assert!(is_the_clock(5, late * 1_000_000) && is_the_clock(u32::MAX, late * 1_000_000));
    assert!(!is_the_clock(u32::MAX / 2, late * 1_000_000));
}
