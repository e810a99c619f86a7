//! Both ends of a connection in this process, call by call, in orders that programs rarely hit.

use e2e::calls;
use e2e::targets::pair::{End, worlds};
use local::Reason;
use local::conn::{Got, Put};
use sys::abi::half_flags as flag;
use sys::sync::Ordering;

/// Reads what an end has to read, by the ring and then by the kernel, as the hooks do.
fn read(end: &End, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for _ in 0..64 {
        match end.recv(len, 0) {
            (Got::Bytes(n) | Got::Part(n), bytes) => all.extend_from_slice(&bytes[..n]),
            (Got::Kernel, _) => all.extend(calls::recv(end.fd, len, 0).unwrap_or_default()),
            (Got::Empty, _) => return all,
            (got, _) if local::conn::Conn::is_retry(got) => {}
            (got, _) => panic!("{got:?}"),
        }
        if all.len() >= len {
            break;
        }
    }
    all
}

/// One end sends urgent data and so goes back to TCP, while the other waits for room in its ring.
/// Room is made after that: no doorbell may stand among the bytes that go by TCP now, and the one
/// that waits must not wait for one.
#[test]
fn no_doorbell_stands_among_the_bytes_of_the_way_back() {
    let worlds = worlds();
    let [ours, theirs] = worlds.connect();
    assert_eq!(ours.send(b"to the ring"), (Put::All, 0));
    assert_eq!(read(&theirs, 11), b"to the ring");
    // The peer fills its ring, and waits for room in the kernel.
    let much = vec![7u8; 600 << 10];
    let (put, left) = theirs.send(&much);
    assert_eq!(put, Put::Full);
    let (mine, peer) = theirs.conn.halves(theirs.w).unwrap();
    theirs.conn.arm_cold(mine);
    assert!(theirs.conn.wait_for_room(mine, peer));

    ours.conn.demote_sender(ours.w, ours.fd, Reason::Urgent);
    calls::send(ours.fd, b"hello", 0).unwrap();
    let taken = read(&ours, much.len() - left);
    assert_eq!(taken.len(), much.len() - left);
    calls::send(ours.fd, b" world", 0).unwrap();

    assert_eq!(read(&theirs, 11), b"hello world");
    // Full again, with nobody who could ring: the rest goes by TCP.
    let (mut put, mut left) = theirs.send(&much);
    if put == Put::Full {
        (put, left) = theirs.send(&much[much.len() - left..]);
    }
    assert_eq!(put, Put::Kernel, "{left} left");
    assert_ne!(theirs.half().flags.load(Ordering::Relaxed) & flag::DOWN, 0);
    ours.close();
    theirs.close();
}

/// A demotion in mid-stream: what was not read comes again, once, and what follows behind it.
#[test]
fn a_demotion_keeps_each_byte() {
    let worlds = worlds();
    let [ours, theirs] = worlds.connect();
    assert_eq!(ours.send(b"one two three"), (Put::All, 0));
    assert_eq!(read(&theirs, 4), b"one ");
    // The peer's part is done for it: nobody else runs here.
    assert!(theirs.conn.demote(theirs.w, theirs.fd, Reason::Exec));
    assert_eq!(ours.send(b" four").0, Put::Kernel);
    calls::send(ours.fd, b" four", 0).unwrap();
    assert_eq!(read(&theirs, 14), b"two three four");
    ours.close();
    theirs.close();
}

/// A reader that gave up waiting reads on in the ring, and the sender stays there.
#[test]
fn a_thawed_connection_is_as_before() {
    let worlds = worlds();
    let [ours, theirs] = worlds.connect();
    assert_eq!(ours.send(b"one"), (Put::All, 0));
    // As if a thread of the peer's were in the middle of a send: its part cannot be done for it.
    ours.half().tx_lock.store(1, Ordering::Relaxed);
    assert!(!theirs.conn.demote(theirs.w, theirs.fd, Reason::Exec));
    ours.half().tx_lock.store(0, Ordering::Relaxed);
    theirs.conn.thaw(theirs.w);
    assert_eq!(ours.send(b" two"), (Put::All, 0));
    assert_eq!(read(&theirs, 7), b"one two");
    ours.close();
    theirs.close();
}
