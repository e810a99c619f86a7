//! Both ends of a connection in this process, call by call, in orders that programs rarely hit.

use std::time::Duration;

use e2e::calls;
use e2e::run::{BoardDir, eventually};
use e2e::targets::pair::{End, Worlds, worlds};
use local::beside::Beside;
use local::conn::{Conn, Got, Put, reg_flags};
use local::spin::UNKNOWN;
use local::world::World;
use local::{Limits, Reason};
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
            (got, _) if Conn::is_retry(got) => {}
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
    theirs.conn.arm_cold(theirs.w, mine);
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

    theirs.conn.arm_cold(theirs.w, theirs.half());
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
    theirs.conn.arm_cold(theirs.w, theirs.half());
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
        theirs.conn.arm_cold(theirs.w, theirs.half());
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

/// What was there to be read is there for who does not wait, whatever way it comes.
#[test]
fn what_is_sent_again_is_not_missed() {
    let worlds = worlds();
    for hole in [false, true] {
        let [ours, theirs] = worlds.connect();
        assert_eq!(ours.send(b"one"), (Put::All, 0));
        // As a sender does that goes back to TCP and wants what was not read to go along; it is interrupted right there,
        // or in the middle of its part.
        theirs.half().flags.fetch_or(flag::WANT_DOWN, Ordering::Release);
        std::thread::scope(|scope| {
            if hole {
                ours.half().tx_lock.store(1, Ordering::Relaxed);
                let head = theirs.half().head.load(Ordering::Relaxed);
                ours.half().down_at.store(head, Ordering::Relaxed);
                ours.half().flags.fetch_or(flag::DOWN, Ordering::Release);
            }
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(10));
                if hole {
                    calls::send(ours.fd, b"one", 0).expect("sent");
                    ours.half().tx_lock.store(0, Ordering::Release);
                } else {
                    ours.conn.demote_sender(ours.w, ours.fd, Reason::Exec);
                }
            });
            let mut got = theirs.recv(3, libc::MSG_DONTWAIT).0;
            while Conn::is_retry(got) {
                got = theirs.recv(3, libc::MSG_DONTWAIT).0;
            }
            assert_eq!(got, Got::Kernel);
            assert_eq!(calls::recv(theirs.fd, 9, libc::MSG_DONTWAIT).expect("it is there"), b"one");
        });
        close([ours, theirs]);
    }
}

/// Both worlds may run on the CPU of this thread only, until this goes.
struct Bound<'a>(&'a Worlds);

impl<'a> Bound<'a> {
    fn new(worlds: &'a Worlds) -> Self {
        let cpu = calls::cpus::allowed()[0];
        calls::cpus::pin(cpu).expect("a CPU");
        let bound = Self(worlds);
        bound.set(u32::try_from(cpu).expect("a small number") + 1);
        // Whatever the connections of other tests have carried, one carries more.
        let [ours, theirs] = worlds.connect();
        assert_eq!(ours.send(b"another"), (Put::All, 0));
        assert_eq!(read(&theirs, 7), b"another");
        close([ours, theirs]);
        bound
    }

    fn set(&self, word: u32) {
        for world in [self.0.ours(), self.0.theirs()] {
            world.board.ensure_slot().expect("a slot");
            world.slot().expect("a slot").bound.store(word, Ordering::Relaxed);
        }
    }

    /// A connection whose first request has come.
    fn begin(&self) -> [End; 2] {
        self.0.begin(|ours| ours.conn.tcp_send_ends(1))
    }

    /// So many connections of one request each, all attached.
    fn brief(&self, n: usize) {
        for _ in 0..n {
            let [ours, theirs] = self.begin();
            assert!(settle(&theirs), "taken with its first request");
            assert!(ours.conn.settle(ours.w, ours.fd, false));
            close([ours, theirs]);
        }
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

fn settle(end: &End) -> bool {
    end.conn.settle(end.w, end.fd, true)
}

fn close(ends: [End; 2]) {
    ends.into_iter().for_each(End::close);
}

/// Both ends of connections that carry one request each, on one CPU, know that; one that carries more ends it, as does one
/// whose peer may run elsewhere.
#[test]
fn short_connections_on_one_cpu_are_known() {
    let worlds = worlds();
    let bound = Bound::new(&worlds);
    let known = || [worlds.ours(), worlds.theirs()].map(World::is_brief);
    bound.brief(7);
    assert_eq!(known(), [false; 2]);
    bound.brief(1);
    assert_eq!(known(), [true; 2]);
    // A second request.
    let [ours, theirs] = worlds.connect();
    assert_eq!(ours.send(b"another"), (Put::All, 0));
    assert_eq!(read(&theirs, 7), b"another");
    close([ours, theirs]);
    assert_eq!(known(), [false; 2]);
    bound.brief(8);
    assert_eq!(known(), [true; 2]);
    // A long answer.
    let [ours, theirs] = worlds.connect();
    assert_eq!(theirs.send(&[2; 100_000]), (Put::All, 0));
    assert_eq!(read(&ours, 100_000).len(), 100_000);
    close([ours, theirs]);
    assert_eq!(known(), [false; 2]);
    bound.brief(8);
    assert_eq!(known(), [true; 2]);
    worlds.ours().slot().unwrap().bound.store(0, Ordering::Relaxed);
    bound.brief(8);
    assert_eq!(known(), [false; 2], "the client may run elsewhere");
}

/// What a loop expects of its next peer is what the last one was: one that may run elsewhere ends it.
#[test]
fn the_next_peer_is_expected_where_the_last_one_was() {
    let worlds = worlds();
    let _bound = Bound::new(&worlds);
    let (server, w, here) = (Beside::default(), worlds.theirs(), sys::call::cpu());
    assert!(!server.is_so(w, None) && server.cpu(w, None) == UNKNOWN);
    let short = || {
        let ends = worlds.connect();
        let theirs = ends[1].conn;
        assert_eq!(server.cpu(w, Some(theirs)), here, "where its peer is");
        (server.ended(w, theirs), ends)
    };
    // Whose record is forgotten, because all that it could tell is known.
    let (beside, ends) = short();
    assert!(beside);
    close(ends);
    assert!(server.is_so(w, None) && server.cpu(w, None) == here);
    // A record that has no peer yet: what is expected.
    let fresh = w.conn().unwrap();
    assert!(server.is_so(w, Some(fresh)) && server.cpu(w, Some(fresh)) == here);
    assert!(!server.ended(w, fresh) && server.is_so(w, None), "it has led nowhere");

    let bound = worlds.ours().slot().unwrap().bound.swap(0, Ordering::Relaxed);
    let (beside, ends) = short();
    assert!(!beside, "its record, which the next one gets, tells more");
    close(ends);
    assert!(!server.is_so(w, None) && !server.is_so(w, Some(fresh)));
    worlds.ours().slot().unwrap().bound.store(bound, Ordering::Relaxed);
    close(short().1);
    assert!(server.is_so(w, None));
    w.give_back(fresh);
}

/// A word of a process that one of its threads was let go from since is not believed.
#[test]
fn a_peer_that_was_seen_elsewhere_is_not_on_our_cpu() {
    let worlds = worlds();
    let _bound = Bound::new(&worlds);
    let client = Beside::default();
    let [ours, theirs] = worlds.connect();
    client.offered(ours.w, ours.conn);
    assert!(client.is_so(ours.w, None), "its listener has no loop, but is bound");
    assert!(ours.w.is_beside(theirs.half()));
    let seen = theirs.half().cpu.swap(1000, Ordering::Relaxed);
    assert!(!ours.w.is_beside(theirs.half()) && !client.is_so(ours.w, Some(ours.conn)));
    theirs.half().cpu.store(seen, Ordering::Relaxed);
    // A listener that has a loop.
    let listener = theirs.w.slot().unwrap();
    listener.cpu.store(1000, Ordering::Relaxed);
    client.offered(ours.w, ours.conn);
    assert!(!client.is_so(ours.w, None) && client.cpu(ours.w, None) == 1000);
    listener.cpu.store(UNKNOWN, Ordering::Relaxed);
    close([ours, theirs]);
}

/// A connection that goes on is waited for as ever, however many short ones come and go beside it.
#[test]
fn a_long_connection_among_short_ones_is_not_brief() {
    let worlds = worlds();
    let bound = Bound::new(&worlds);
    bound.brief(8);
    let [ours, theirs] = bound.begin();
    assert!(settle(&theirs) && ours.conn.settle(ours.w, ours.fd, false));
    let loops = [(Beside::default(), &ours), (Beside::default(), &theirs)];
    let known = |last: bool| {
        let of = |(it, end): &(Beside, &End)| it.is_brief(end.w, last.then_some(end.conn));
        [of(&loops[0]), of(&loops[1])]
    };
    for (it, end) in &loops {
        it.ended(end.w, end.conn);
    }
    assert_eq!((known(false), known(true)), ([true; 2], [true; 2]));
    assert_eq!(ours.send(b"another"), (Put::All, 0));
    assert_eq!(read(&theirs, 7), b"another");
    assert_eq!((known(false), known(true)), ([true; 2], [false; 2]));
    close([ours, theirs]);
}

/// A proxy that a short connection has asked, and that has asked a server behind it by a connection that goes on, waits for
/// that; when it has answered the short one it waits for the next of these.
#[test]
fn who_has_just_asked_by_a_long_connection_is_not_brief() {
    let worlds = worlds();
    let bound = Bound::new(&worlds);
    let long = worlds.connect();
    let ask = || {
        assert_eq!(long[0].send(b"asked"), (Put::All, 0));
        assert_eq!(read(&long[1], 5), b"asked");
    };
    ask();
    bound.brief(8);
    let short = bound.begin();
    assert!(settle(&short[1]) && short[0].conn.settle(short[0].w, short[0].fd, false));
    // Ours is the proxy: it has connected to the server, and stands at the client's end of the short one as well, which
    // tells as much here.
    let proxy = Beside::default();
    proxy.ended(short[0].w, short[0].conn);
    let is_brief = || proxy.is_brief(short[0].w, Some(short[0].conn));
    assert!(is_brief(), "nothing was asked since");
    ask();
    assert!(!is_brief(), "the answer comes by memory");
    assert_eq!(short[0].send(b"x"), (Put::All, 0));
    assert!(proxy.is_brief(short[0].w, None), "the short one was spoken to last");
    ask();
    assert!(!proxy.is_brief(short[0].w, None));
    close(short);
    close(long);
    bound.brief(8);
    assert!(proxy.is_brief(worlds.ours(), None), "nobody is left to answer");
}

/// What we count stands where a peer may write, which must end no program that checks its sums.
#[test]
fn counts_that_were_overwritten_are_many() {
    let worlds = worlds();
    let _bound = Bound::new(&worlds);
    let ends = worlds.connect();
    for end in &ends {
        end.half().bytes_tx.store(u64::MAX, Ordering::Relaxed);
        end.half().bytes_rx.store(2, Ordering::Relaxed);
        assert!(!end.conn.is_brief(end.w));
    }
    close(ends);
}

/// A process that may run on one CPU only is known to be there, whether or not it has an event loop.
#[test]
fn a_slot_says_on_which_cpu_its_process_may_run() {
    let join = || {
        let dir = BoardDir::new();
        let mut limits = Limits::default();
        limits.set("dir", &dir.path().to_string_lossy()).unwrap();
        let world = World::join(limits, "master".into(), 400).unwrap();
        world.board.listen(1).unwrap();
        (world, dir)
    };
    if calls::cpus::allowed().len() > 1 {
        let (world, _dir) = join();
        assert_eq!(world.bound_to(), None);
        assert_eq!(world.board.listener_bound_to(1), None);
    }
    let cpu = *calls::cpus::allowed().last().unwrap();
    calls::cpus::pin(cpu).unwrap();
    let (world, _dir) = join();
    assert_eq!(world.bound_to().map(|cpu| cpu as usize), Some(cpu));
    assert_eq!(world.board.listener_cpu(1) as usize, cpu);
    assert_eq!(world.board.listener_bound_to(1).map(|cpu| cpu as usize), Some(cpu));
    // A child has it from us: it may be under a filter of system calls by then, which ends it for asking.
    let elsewhere = calls::cpus::allowed()[0];
    calls::cpus::pin(elsewhere).unwrap();
    world.forked();
    world.board.ensure_slot().unwrap();
    assert_eq!(world.slot().unwrap().bound.load(Ordering::Relaxed) as usize, cpu + 1);
    assert_eq!(world.slot().unwrap().cpu.load(Ordering::Relaxed), UNKNOWN);
    calls::cpus::pin(cpu).unwrap();
    // Another CPU than that tells that it was let go.
    world.slot().unwrap().bound.store(1000, Ordering::Relaxed);
    assert_eq!(world.bound_to(), None);
    assert_eq!(world.slot().unwrap().bound.load(Ordering::Relaxed), 0);
}

/// Who has gone back to TCP by itself sees the peer's end in memory and closes, before the peer has come to ring for it: a
/// doorbell that is in a socket when it is closed makes a reset, which takes bytes with it that are on their way by TCP.
#[test]
fn a_doorbell_for_who_has_closed_makes_no_reset() {
    let worlds = worlds();
    let [ours, theirs] = worlds.connect();
    assert_eq!(ours.send(b"to the ring"), (Put::All, 0));
    assert_eq!(read(&theirs, 11), b"to the ring");
    assert_eq!(theirs.send(b"and back"), (Put::All, 0));
    assert_eq!(read(&ours, 8), b"and back");
    // It has slept, and wants to be rung for once.
    ours.conn.arm_cold(ours.w, ours.conn.halves(ours.w).unwrap().0);
    ours.conn.demote_sender(ours.w, ours.fd, Reason::Urgent);
    calls::send(ours.fd, b"last words", 0).unwrap();

    let (mine, peer) = theirs.conn.halves(theirs.w).unwrap();
    mine.flags.fetch_or(flag::SHUT, Ordering::Release);
    ours.conn.closing(ours.w, ours.fd);
    theirs.conn.notify(theirs.w, theirs.fd, mine, peer);
    calls::close(ours.fd).unwrap();

    assert_eq!(read(&theirs, 10), b"last words");
    // On a busy machine the kernel takes a moment for it.
    let _ = calls::poll(theirs.fd, libc::POLLIN, 5000);
    assert_eq!(calls::recv(theirs.fd, 1, 0), Ok(Vec::new()), "the end, and no reset");
}
