//! Both ends of a connection in this process, call by call, in orders that programs rarely hit.

use e2e::calls;
use e2e::run::eventually;
use e2e::targets::pair::{End, worlds};
use local::Reason;
use local::conn::{Got, Put, reg_flags};
use sys::abi::half_flags as flag;
use sys::lock;
use sys::sync::{AtomicU32, Ordering};

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

/// A thread waits for room in an event set, or in a call of its own, and a send of another one finds some: the
/// reader goes on being asked to ring.
#[test]
fn a_send_that_finds_room_leaves_those_who_wait_for_more() {
    let worlds = worlds();
    let [ours, theirs] = worlds.connect();
    let (mine, peer) = theirs.conn.halves(theirs.w).unwrap();
    let asks = || mine.room_wait.load(Ordering::Relaxed) != 0;
    // There is room: that was asked for in vain, and is forgotten with the next send.
    assert!(!theirs.conn.wait_for_room(mine, peer) && asks());
    assert_eq!(theirs.send(b"nobody waits"), (Put::All, 0));
    assert!(!asks());

    let set = &theirs.conn.sets[1];
    set.set.store(1, Ordering::Relaxed);
    set.flags.store(reg_flags::ROOM, Ordering::Relaxed);
    let _ = theirs.conn.wait_for_room(mine, peer);
    assert_eq!(theirs.send(b"an event set waits"), (Put::All, 0));
    assert!(asks());
    set.set.store(0, Ordering::Relaxed);

    mine.sleepers.store(1, Ordering::Relaxed);
    assert_eq!(theirs.send(b"a thread sleeps"), (Put::All, 0));
    assert!(asks());
    mine.sleepers.store(0, Ordering::Relaxed);

    assert_eq!(theirs.send(b"nobody waits"), (Put::All, 0));
    assert!(!asks());
    ours.close();
    theirs.close();
}

/// The first send was left by a jump, or its thread cancelled: what it has moved is asked of the kernel, and both
/// directions are exact.
#[test]
fn a_send_that_was_left_is_counted_by_the_kernel() {
    let worlds = worlds();
    let [ours, theirs] = worlds.connect_by(|ours| ours.conn.send_left(ours.w));
    assert_eq!(ours.send(b"to the ring"), (Put::All, 0));
    assert_eq!(ours.half().up_at.load(Ordering::Relaxed), 1);
    assert_eq!(read(&theirs, 11), b"to the ring");
    assert_eq!(theirs.send(b"and back"), (Put::All, 0));
    assert_eq!(read(&ours, 8), b"and back");
    ours.close();
    theirs.close();
}

/// Leaves a lock as a jump out of a handler does.
fn leave(word: &AtomicU32) {
    std::mem::forget(lock::lock(word));
}

/// Takes a connection back to TCP, and shows that each end then reads what the other has written.
fn goes_on_by_tcp(ours: End, theirs: End) {
    assert!(theirs.conn.demote(theirs.w, theirs.fd, Reason::Exec));
    for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
        assert_eq!(from.send(b"by TCP").0, Put::Kernel);
        calls::send(from.fd, b"by TCP", 0).expect("room");
        assert_eq!(read(to, 6), b"by TCP");
    }
    ours.close();
    theirs.close();
}

/// A signal that comes while a doorbell is sent is delivered when it has been; its handler jumps. The doorbell is not
/// sent again, where it would be taken for a byte of the program.
#[test]
fn a_doorbell_that_was_sent_when_a_jump_came_is_not_sent_again() {
    let worlds = worlds();
    let [ours, theirs] = worlds.connect();
    let half = ours.half();
    leave(&half.bell_lock);
    let n = half.bells.load(Ordering::Relaxed);
    half.bells.store(n + 1, Ordering::Relaxed);
    half.bell_owed.store(1, Ordering::Relaxed);
    calls::send(ours.fd, &[0x5a], 0).unwrap();
    ours.conn.free_left_locks(ours.w);
    assert_eq!(half.bell_owed.load(Ordering::Relaxed), 0);

    theirs.conn.arm_cold(theirs.half());
    assert_eq!(ours.send(b"rung for"), (Put::All, 0));
    assert_eq!(half.bells.load(Ordering::Relaxed), n + 2);
    assert_eq!(read(&theirs, 8), b"rung for");
    goes_on_by_tcp(ours, theirs);
}

/// The same before it has been sent: it is still owed.
#[test]
fn a_doorbell_that_was_not_sent_when_a_jump_came_is_owed() {
    let worlds = worlds();
    let [ours, theirs] = worlds.connect();
    let half = ours.half();
    leave(&half.bell_lock);
    let n = half.bells.load(Ordering::Relaxed);
    half.bells.store(n + 1, Ordering::Relaxed);
    half.bell_owed.store(1, Ordering::Relaxed);
    ours.conn.free_left_locks(ours.w);
    assert_eq!(half.bell_owed.load(Ordering::Relaxed), 1);
    theirs.conn.arm_cold(theirs.half());
    assert_eq!(ours.send(b"rung for"), (Put::All, 0));
    assert_eq!(half.bells.load(Ordering::Relaxed), n + 1);
    assert_eq!(read(&theirs, 8), b"rung for");
    goes_on_by_tcp(ours, theirs);
}

/// A jump when doorbells had just been taken out of the socket: they are not taken out once more, from among the
/// bytes of the program.
#[test]
fn doorbells_that_were_taken_when_a_jump_came_are_counted() {
    let worlds = worlds();
    let [ours, theirs] = worlds.connect();
    for text in [b"one", b"two"] {
        theirs.conn.arm_cold(theirs.half());
        assert_eq!(ours.send(text), (Put::All, 0));
    }
    let bells = ours.half().bells.load(Ordering::Relaxed);
    let left = || bells - theirs.half().drained.load(Ordering::Relaxed);
    let n = left();
    assert!(n >= 2);
    eventually("all doorbells have come", || {
        calls::ioctl_int(theirs.fd, libc::FIONREAD) == Ok(n.cast_signed())
    });
    leave(&theirs.half().rx_lock);
    assert_eq!(calls::recv(theirs.fd, 1, 0).unwrap(), [0x5a]);
    theirs.conn.free_left_locks(theirs.w);
    assert_eq!(left(), n - 1);
    assert_eq!(read(&theirs, 6), b"onetwo");
    goes_on_by_tcp(ours, theirs);
}

/// Nor does a descriptor that does not wait answer for ever that there is nothing.
#[test]
fn locks_that_were_left_do_not_stop_a_connection() {
    let worlds = worlds();
    let [ours, theirs] = worlds.connect();
    leave(&ours.half().tx_lock);
    assert_eq!(ours.send(b"past the lock"), (Put::All, 0));
    leave(&theirs.half().rx_lock);
    assert_eq!(read(&theirs, 13), b"past the lock");
    goes_on_by_tcp(ours, theirs);
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
