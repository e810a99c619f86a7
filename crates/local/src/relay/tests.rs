//! A guest and an engine in one process, on a board of their own.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;

use sys::iov::Buffers;

use super::*;
use crate::Limits;
use crate::conn::{Conn, Got, Phase, Put};

const MSG_PEEK: i32 = 2;
const SO_SNDBUF: i32 = 7;
const SO_RCVBUF: i32 = 8;

pub(super) fn world(dir: &std::path::Path) -> &'static World {
    let limits = Limits { dir: Some(dir.to_str().unwrap().to_owned()), ..Limits::default() };
    Box::leak(Box::new(World::join(limits, "test".into(), 600).unwrap()))
}

/// A guest and an engine on a board of their own, and a connection that the guest has handed over.
pub(super) struct Pair {
    pub(super) guest: &'static World,
    pub(super) conn: &'static Conn,
    pub(super) fd: i32,
    pub(super) relay: Relay,
    waiter: Waiter,
    /// The other end of what went to the engine, and the engine's socket of it.
    far: TcpStream,
    socket: OwnedFd,
}

pub(super) fn pair(order: u32) -> Pair {
    let [one] = pairs(order);
    one
}

/// Where a board of its own is.
pub(super) fn board_dir() -> std::path::PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("shunt-relay-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    dir
}

/// So many connections between the same two.
fn pairs<const N: usize>(order: u32) -> [Pair; N] {
    let dir = board_dir();
    let (engine, guest) = (world(&dir), world(&dir));
    let door = Door::open(Some(dir.to_str().unwrap())).unwrap();
    engine.board.serve(Some(7), false, door.side()).unwrap();
    assert_eq!(guest.board.engine_option(), Some(7));
    let mut visitor = None;
    let pairs = std::array::from_fn(|_| meet(engine, guest, &door, &mut visitor, order));
    // What is mapped stays.
    std::fs::remove_dir_all(&dir).unwrap();
    pairs
}

#[test]
fn an_engine_that_has_gone_takes_what_it_said_with_it() {
    let dir = board_dir();
    let (engine, guest) = (world(&dir), world(&dir));
    let door = Door::open(Some(dir.to_str().unwrap())).unwrap();
    engine.board.serve(Some(7), false, door.side()).unwrap();
    engine.board.drains(true);
    assert!(guest.board.engine_drains());
    engine.board.serve_no_more();
    // One of an earlier build that is next here leaves words alone that it does not know.
    assert!(!guest.board.has_engine() && !guest.board.engine_drains());
    // What is promised in its name is for nobody else.
    assert_eq!((guest.board.engine_option(), guest.board.last_engine_option()), (None, Some(7)));
    std::fs::remove_dir_all(&dir).unwrap();
}

/// The guest makes a connection and hands it over.
fn meet(
    engine: &'static World,
    guest: &'static World,
    door: &Door,
    visitor: &mut Option<Visitor>,
    order: u32,
) -> Pair {
    let waiter = Waiter::new(engine).unwrap();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let fd = near.into_raw_fd();
    let conn = guest.conn().unwrap();
    conn.fd.store(fd.cast_unsigned(), Ordering::Relaxed);
    conn.ask_later();
    assert!(conn.leave_asked() && !conn.leave_asked(), "one thread hands it over");

    let ((relay, socket), (new, welcome)) = std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let mut stand_ins = StandIns::new(1).unwrap();
            let visitor = visitor.get_or_insert_with(|| {
                call::wait_readable(door.fd(), 5000);
                door.accept().unwrap()
            });
            call::wait_readable(visitor.fd(), 5000);
            let Said::Hello(hello, socket) = visitor.listen() else { panic!("no hello") };
            let mut stand_in = stand_ins.take().unwrap();
            let (relay, welcome) =
                Relay::attach(engine, &hello, &mut stand_in, order, &waiter).unwrap();
            assert!(visitor.answer(Ok((welcome, &stand_in))));
            assert!(matches!(visitor.listen(), Said::Nothing));
            (relay, socket)
        });
        let Given::StandIn(new, welcome) = conn.hand_over(guest, fd, true, true).unwrap() else {
            panic!("no stand-in")
        };
        let given = (new, welcome);
        (serving.join().unwrap(), given)
    });
    call::dup_over(new, fd, 0).unwrap();
    call::close(new).unwrap();
    conn.stand_in(guest, welcome).unwrap();
    assert_eq!(conn.phase(), Phase::Attached);
    Pair { guest, conn, fd, relay, waiter, far, socket }
}

impl Pair {
    pub(super) fn send(&self, bytes: &[u8]) -> usize {
        Buffers::over(&mut bytes.to_vec(), |from| match self.conn.send(self.guest, self.fd, from) {
            Put::All | Put::Full => bytes.len() - from.left(),
            other => panic!("{other:?}"),
        })
    }

    pub(super) fn recv(&self, room: usize) -> Result<Vec<u8>, Got> {
        let mut bytes = vec![0; room];
        let got = Buffers::over(&mut bytes, |to| self.conn.recv(self.guest, self.fd, to, 0));
        match got {
            Got::Bytes(n) | Got::Part(n) => {
                bytes.truncate(n);
                Ok(bytes)
            }
            other => Err(other),
        }
    }

    pub(super) fn out(&mut self, at: u64, n: usize) -> Vec<u8> {
        let mut bytes = vec![0; n];
        self.relay.copy_out(at, &mut bytes).unwrap();
        let mut again = vec![0; n];
        let summed = self.relay.copy_out_summed(at, &mut again, u32::MAX).unwrap();
        assert_eq!(again, bytes);
        assert!(summed.is_none_or(|register| register == register_behind(&bytes)));
        bytes
    }
}

/// Of CRC-32, bit by bit.
fn register_behind(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |sum, byte| {
        let step = |sum: u32, _| sum >> 1 ^ if sum & 1 == 0 { 0 } else { 0xedb8_8320 };
        (0..8).fold(sum ^ u32::from(*byte), step)
    })
}

/// Has this test run alone, in a process that may have few descriptors, but more than it may inherit of tests that run
/// beside this one. `false`: it is that process.
fn is_left_to_a_process_with_few_descriptors(test: &str) -> bool {
    const MARK: &str = "SHUNT_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(MARK).is_some() {
        return false;
    }
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -n 512; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args([&format!("relay::tests::{test}"), "--exact", "--nocapture"])
        .env(MARK, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    true
}

/// As many descriptors as this process may have.
fn all_the_rest() -> Vec<std::fs::File> {
    let more = || std::fs::File::open("/dev/null");
    let all: Vec<_> = std::iter::from_fn(|| more().ok()).collect();
    assert_eq!(more().unwrap_err().raw_os_error(), Some(EMFILE));
    all
}

#[test]
fn a_stand_in_without_a_descriptor_for_it_is_waited_for_or_ends_the_connection() {
    if is_left_to_a_process_with_few_descriptors(
        "a_stand_in_without_a_descriptor_for_it_is_waited_for_or_ends_the_connection",
    ) {
        return;
    }
    let dir = board_dir();
    let (engine, guest) = (world(&dir), world(&dir));
    let door = Door::open(Some(dir.to_str().unwrap())).unwrap();
    engine.board.serve(Some(7), true, door.side()).unwrap();
    let mut visitor = None;
    // The first one opens what the two keep.
    let first = meet(engine, guest, &door, &mut visitor, 0);
    let mut visitor = visitor.unwrap();
    let mut stand_ins = StandIns::new(8).unwrap();
    while stand_ins.refill() {}
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connections: [_; 5] = std::array::from_fn(|_| {
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let conn = guest.conn().unwrap();
        conn.fd.store(near.as_raw_fd().cast_unsigned(), Ordering::Relaxed);
        (conn, near, listener.accept().unwrap().0)
    });
    let waiter = Waiter::new(engine).unwrap();
    let mut all = all_the_rest();

    let mut hand_over = |at: usize, promised: bool, free: [usize; 3]| {
        let (conn, near, _) = &connections[at];
        let [before, by_the_engine, after] = free;
        all.truncate(all.len() - before);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                call::wait_readable(visitor.fd(), 1000);
                all.truncate(all.len() - by_the_engine);
                let Said::Hello(hello, socket) = visitor.listen() else { return None };
                let mut stand_in = stand_ins.take().unwrap();
                let (relay, welcome) =
                    Relay::attach(engine, &hello, &mut stand_in, 0, &waiter).unwrap();
                assert!(visitor.answer(Ok((welcome, &stand_in))));
                std::mem::forget(stand_in);
                all.truncate(all.len() - after);
                Some((relay, socket))
            });
            let given = conn.hand_over(guest, near.as_raw_fd(), true, promised);
            (given, serving.join().unwrap())
        })
    };

    let (given, served) = hand_over(0, false, [0, 0, 0]);
    assert!(matches!(given, Err(Reason::NoDescriptor)), "{given:?}");
    assert!(served.is_none(), "the engine was told of a connection that stays TCP");

    let (given, served) = hand_over(1, false, [1, 1, 0]);
    let Ok(Given::StandIn(new, _)) = given else { panic!("the place that was kept: {given:?}") };
    assert!(served.is_some());
    call::close(new).unwrap();

    // No place could be kept, and one comes after the answer.
    let _full = all_the_rest();
    let (given, served) = hand_over(2, true, [0, 1, 1]);
    let Ok(Given::StandIn(new, _)) = given else { panic!("a place that came later: {given:?}") };
    assert!(served.is_some());

    // None comes: the engine has it all the same, and the answer is not taken for that of the next.
    let (given, served) = hand_over(3, true, [0, 1, 0]);
    assert!(given == Ok(Given::Lost) && served.is_some());
    call::close(new).unwrap();
    let (given, served) = hand_over(4, false, [0, 1, 0]);
    assert!(matches!(given, Ok(Given::StandIn(..))) && served.is_some());
    drop(first);
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Of a connection that was promised SMC, and that the engine has no room for, or its own program.
#[test]
fn what_is_declined_is_the_guests_as_it_was() {
    let dir = board_dir();
    let (engine, guest) = (world(&dir), world(&dir));
    let no_room = Limits { memory_max: 0, dir: guest.limits.dir.clone(), ..Limits::default() };
    let no_room: &'static World =
        Box::leak(Box::new(World::join(no_room, "no room".into(), 3).unwrap()));
    let door = Door::open(Some(dir.to_str().unwrap())).unwrap();
    engine.board.serve(Some(7), true, door.side()).unwrap();
    let served = |world: &'static World, told: bool| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let conn = world.conn().unwrap();
        conn.fd.store(near.as_raw_fd().cast_unsigned(), Ordering::Relaxed);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                call::wait_readable(door.fd(), 5000);
                let mut visitor = door.accept().unwrap();
                call::wait_readable(visitor.fd(), 5000);
                let Said::Hello(hello, _) = visitor.listen() else { panic!("no hello") };
                if told {
                    visitor.decline(Reason::NoMemory);
                } else {
                    assert!(visitor.answer(Err(Reason::NoMemory)));
                }
                (visitor, hello)
            });
            let given = conn.hand_over(world, near.as_raw_fd(), false, true);
            assert!(!conn.stands_in());
            (given, serving.join().unwrap())
        })
    };
    let (given, (_visitor, hello)) = served(guest, true);
    assert_eq!(given, Ok(Given::Declined(Reason::NoMemory)));
    assert!(hello.half != NO_HALF && hello.promised && !hello.client);
    // The guest's own memory: the engine can tell the peer all the same.
    let (given, (_visitor, hello)) = served(no_room, true);
    assert_eq!(given, Ok(Given::Declined(Reason::NoMemory)));
    assert_eq!(hello.half, NO_HALF);
    assert!(engine.board.map.half(NO_HALF).is_none(), "nobody's");
    let (given, _) = served(world(&dir), false);
    assert_eq!(given, Err(Reason::NoMemory), "the peer does not know");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Who waits no longer for an engine that stalls is not heard by it later: what was promised to nobody
/// stays TCP.
#[test]
fn a_silent_engine_does_not_get_what_was_not_promised() {
    let dir = board_dir();
    let (engine, guest) = (world(&dir), world(&dir));
    let door = Door::open(Some(dir.to_str().unwrap())).unwrap();
    engine.board.serve(Some(7), true, door.side()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    let conn = guest.conn().unwrap();
    conn.fd.store(near.as_raw_fd().cast_unsigned(), Ordering::Relaxed);
    conn.ask_later();
    assert!(conn.leave_asked());
    let began = std::time::Instant::now();
    let given = conn.hand_over(guest, near.as_raw_fd(), true, false);
    assert_eq!(given.unwrap_err(), Reason::EngineSilent);
    let promised = std::time::Duration::from_secs(PATIENCE_S);
    assert!(began.elapsed() < promised, "it waits less than one that cannot do without");
    // Now the engine goes on: what was said to it is still there, its answer is heard by nobody.
    let mut visitor = door.accept().unwrap();
    let Said::Hello(hello, socket) = visitor.listen() else { panic!("no hello") };
    assert!(!hello.promised);
    let stand_in = StandIns::new(1).unwrap().take().unwrap();
    let welcome = Welcome { half: 0, generation: 0 };
    assert!(!visitor.answer(Ok((welcome, &stand_in))), "it is not to adopt it");
    assert!(matches!(visitor.listen(), Said::Gone));
    drop((socket, stand_in));
    (&near).write_all(b"plain").unwrap();
    let mut got = [0; 5];
    far.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"plain");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn bytes_go_both_ways_through_rings() {
    let mut p = pair(0);
    assert_eq!(p.relay.written(), Ok(0));
    assert_eq!(p.send(b"request"), 7);
    assert_eq!(p.relay.written(), Ok(7));
    assert_eq!(p.out(0, 7), b"request");
    assert_eq!(p.out(3, 4), b"uest");
    p.relay.release(7);
    assert_eq!(p.conn.unsent(p.guest, p.fd), Some(0));

    assert_eq!(p.recv(64), Err(Got::Empty));
    assert!(p.relay.write_at(0, b"answer"));
    assert_eq!(p.recv(64), Err(Got::Empty), "not before it is published");
    p.relay.publish(6);
    assert_eq!(p.relay.consumed(), Ok(0));
    assert_eq!(p.recv(64).unwrap(), b"answer");
    assert_eq!(p.relay.consumed(), Ok(6));
    assert!(!p.relay.write_at(p.relay.rmb_bytes() - 2, b"too far"), "outside of the RMB");

    // The connection to the other host is the engine's now.
    call::send(p.socket.as_raw_fd(), b"in band", 0).unwrap();
    let mut got = [0; 7];
    p.far.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"in band");
    p.far.write_all(b"x").unwrap();
    assert_eq!(p.recv(64), Err(Got::Empty), "and not the guest's");
}

#[test]
fn the_stream_wraps_and_grows() {
    let mut p = pair(0);
    let mut sent = 0u64;
    let mut at = 0u64;
    let byte = |i: u64| u8::try_from(i % 251).unwrap();
    for round in 0..200u64 {
        let want: Vec<u8> = (0..1 + round * 997 % 30_000).map(|i| byte(sent + i)).collect();
        sent += p.send(&want) as u64;
        let there = p.relay.written().unwrap();
        assert_eq!(there, sent);
        // Not all of it is done with at once, as when acknowledgements are under way.
        let keep = there.saturating_sub(round % 3 * 1000).max(at);
        let n = usize::try_from(keep - at).unwrap();
        let got = p.out(at, n);
        assert!(got.iter().enumerate().all(|(i, b)| *b == byte(at + i as u64)), "round {round}");
        at = keep;
        p.relay.release(at);
    }
    assert!(sent > 1_000_000);
}

#[test]
fn the_rmb_fills_and_empties() {
    let mut p = pair(0);
    let size = p.relay.rmb_bytes();
    let all = vec![7; size];
    match p.relay.write_at_summed(0, &all, u32::MAX) {
        Some(register) => assert_eq!(register, register_behind(&all)),
        // This CPU does not sum while it copies.
        None => assert!(p.relay.write_at(0, &all)),
    }
    assert_eq!(p.relay.write_at_summed(size - 256, &all[..512], 0), None, "outside of the RMB");
    assert_eq!(p.relay.write_at_summed(usize::MAX, &all, 0), None, "nowhere");
    p.relay.publish(size as u64);
    assert_eq!(p.relay.consumed(), Ok(0));
    assert_eq!(p.recv(size).unwrap().len(), size);
    assert_eq!(p.relay.consumed(), Ok(size as u64));
    assert!(p.relay.write_at(0, b"again"));
    p.relay.publish(size as u64 + 5);
    assert_eq!(p.recv(64).unwrap(), b"again");
}

#[test]
fn a_sleeping_engine_is_rung_for() {
    let mut p = pair(0);
    p.waiter.fall_asleep();
    assert_eq!(p.send(b"wake up"), 7);
    call::wait_readable(p.relay.fd(), 5000);
    assert!(call::readable(p.relay.fd()).0, "a doorbell");
    p.waiter.awake();
    p.relay.heard(false, false);
    assert!(!call::readable(p.relay.fd()).0);
    assert_eq!(p.relay.written(), Ok(7));
    p.send(b"!");
    assert!(!call::readable(p.relay.fd()).0, "who is awake is not rung for");
}

#[test]
fn a_bell_on_a_closed_connection_wakes_nobody_and_does_not_count() {
    let [mut closed, mut other] = pairs(0);
    let guest = closed.guest;
    // One event loop of the guest, which sleeps; both connections are in it.
    let waiter = guest.take_waiter().unwrap();
    for p in [&closed, &other] {
        let (_, half) = p.conn.my_half(guest).unwrap();
        wait::arm(&half.wait, wait::WaitWord::Warm(waiter));
    }
    closed.conn.closing(guest, closed.fd);
    call::close(closed.fd).unwrap();
    let _ = wait::fall_asleep(guest.waiter(waiter).unwrap());
    // The peer's last word comes after that.
    closed.relay.publish(0);
    closed.relay.shut();
    assert!(other.relay.write_at(0, b"news"));
    other.relay.publish(4);
    call::wait_readable(other.fd, 2000);
    assert!(call::readable(other.fd).0, "the sleeper hears of it");
}

#[test]
fn ends_are_told() {
    let mut p = pair(0);
    assert_eq!(p.relay.program(), Program::Open);
    p.send(b"last words");
    p.conn.shutdown(p.guest, p.fd, false, true);
    assert_eq!(p.relay.program(), Program::Shut);
    assert_eq!(p.relay.written(), Ok(10));
    assert!(p.relay.write_at(0, b"and yours"));
    p.relay.publish(9);
    p.relay.shut();
    assert_eq!(p.recv(64).unwrap(), b"and yours");
    assert_eq!(p.recv(64), Err(Got::End));
    p.conn.closing(p.guest, p.fd);
    call::close(p.fd).unwrap();
    assert_eq!(p.relay.program(), Program::Closed);
    assert_eq!(p.out(0, 10), b"last words", "what was written outlives who wrote it");
    p.relay.close(false);
}

/// Back on TCP, the end of the other host's stream comes behind all of it, also what the socket had no room for.
#[test]
fn an_end_behind_an_urgent_byte_is_told() {
    let mut p = pair(0);
    let most = p.relay.rmb_bytes();
    assert!(p.relay.write_at(0, b"soon!"));
    p.relay.publish_urgent(5);
    assert!(p.relay.write_at(5, &vec![7; most - 5]));
    p.relay.publish(most as u64);
    p.relay.shut();
    let begun = call::now_ns();
    let (mut got, mut at_end) = (0, false);
    while !at_end && call::now_ns() - begun < 10_000_000_000 {
        let _ = p.relay.pour();
        let mut bytes = vec![0; 64 << 10];
        match call::recv_now(p.fd, &mut bytes) {
            Ok(Some(0)) => at_end = true,
            Ok(Some(n)) => got += n,
            Ok(None) => call::sched_yield(),
            Err(errno) => panic!("{errno}"),
        }
    }
    // Doorbells come before, and the urgent byte stands beside the others.
    assert!(at_end && got >= most - 1, "{got} of {most}, end: {at_end}");
}

#[test]
fn a_reset_is_one_for_the_guest() {
    let p = pair(0);
    let (conn, guest, fd) = (p.conn, p.guest, p.fd);
    p.relay.close(true);
    let got = Buffers::over(&mut [0; 8], |to| conn.recv(guest, fd, to, 0));
    assert_eq!(got, Got::Failed(104));
}

/// The kernel tells a reset once: to a doorbell, if one is rung before the program asks.
#[test]
fn a_reset_that_a_doorbell_meets_is_told_by_the_next_send() {
    let p = pair(0);
    let (engines, _) = p.relay.halves().unwrap();
    // The engine sleeps, and dies: its kernel closes what it had.
    engines.wait.store(wait::WaitWord::Cold(77).emit(), Ordering::SeqCst);
    call::close(p.relay.fd()).unwrap();
    assert_eq!(p.send(b"rings"), 5);
    let again = |bytes: &mut [u8]| Buffers::over(bytes, |from| p.conn.send(p.guest, p.fd, from));
    assert_eq!(again(&mut [0; 5]), Put::Failed(104));
    assert_eq!(again(&mut [0; 5]), Put::Failed(32), "and once");
}

/// An engine that is killed is a reset, whatever it has read and taken out by then, and whoever hears of it first: the next
/// call tells it, and a send behind that finds a broken pipe.
#[test]
fn an_engine_that_is_killed_is_a_reset_in_whatever_order_it_is_heard_of() {
    type Hears = fn(&Pair);
    let ways: [(&str, Hears); 4] = [
        ("nobody", |_| {}),
        ("a look", |p| {
            let [ended, hung_up, failed] = call::ends_of(p.fd);
            assert!(ended && hung_up && failed);
            let hints = kernel::RDHUP | kernel::HUP | kernel::ERR;
            p.conn.kernel.fetch_or(hints, Ordering::Relaxed);
        }),
        ("the end alone", |p| {
            p.conn.kernel.fetch_or(kernel::RDHUP, Ordering::Relaxed);
        }),
        // It is told once, and to us.
        ("who takes doorbells out", |p| {
            p.conn.take_error(call::recv(p.fd, &mut [0], 0).unwrap_err())
        }),
    ];
    for (who, hears) in ways {
        for (bell_left, unread) in [(false, false), (true, false), (true, true)] {
            for sends in [true, false] {
                if who == "nobody" && !sends {
                    // It would sleep, and hear of it so.
                    continue;
                }
                let mut p = pair(0);
                let (engines, _) = p.relay.halves().unwrap();
                engines.wait.store(wait::WaitWord::Cold(77).emit(), Ordering::SeqCst);
                assert_eq!(p.send(b"rings"), 5);
                assert_eq!(p.relay.written(), Ok(5));
                if !bell_left {
                    call::wait_readable(p.relay.fd(), 2000);
                    p.relay.heard(false, false);
                }
                if !unread {
                    assert_eq!(p.out(0, 5), b"rings");
                    p.relay.release(5);
                }
                // And goes to sleep again before it is killed.
                engines.wait.store(wait::WaitWord::Cold(78).emit(), Ordering::SeqCst);
                call::close(p.relay.fd()).unwrap();
                hears(&p);
                let send = || Buffers::over(&mut [0; 5], |from| p.conn.send(p.guest, p.fd, from));
                let first = if sends {
                    // What nobody has heard of can be sent, and rings.
                    let first = if who == "nobody" { send() } else { Put::All };
                    assert_eq!(first, Put::All);
                    send()
                } else {
                    match p.recv(8) {
                        Err(Got::Failed(errno)) => Put::Failed(errno),
                        other => panic!("{who}, {bell_left}, {unread}: {other:?}"),
                    }
                };
                assert_eq!(first, Put::Failed(104), "{who}, {bell_left}, {unread}, {sends}");
                assert_eq!(send(), Put::Failed(32), "and once: {who}, {bell_left}, {unread}");
                assert_eq!(p.recv(8), Err(Got::End), "{who}, {bell_left}, {unread}");
            }
        }
    }
}

/// The same behind the end of the other host's stream, where TCP says a broken pipe at once, and nothing to who receives.
#[test]
fn an_engine_that_is_killed_behind_an_end_is_a_broken_pipe() {
    for took in [false, true] {
        let mut p = pair(0);
        assert_eq!(p.send(b"asks"), 4);
        assert_eq!(p.relay.written(), Ok(4));
        p.relay.release(4);
        p.relay.shut();
        assert_eq!(p.recv(8), Err(Got::End));
        call::close(p.relay.fd()).unwrap();
        if took {
            // A doorbell lies before it.
            p.conn.drain(p.guest, p.fd);
            p.conn.take_error(call::recv(p.fd, &mut [0], 0).unwrap_err());
        } else {
            let hints = kernel::RDHUP | kernel::HUP | kernel::ERR;
            p.conn.kernel.fetch_or(hints, Ordering::Relaxed);
        }
        assert_eq!(p.recv(8), Err(Got::End), "{took}");
        for _ in 0..2 {
            let got = Buffers::over(&mut [0; 5], |from| p.conn.send(p.guest, p.fd, from));
            assert_eq!(got, Put::Failed(32), "{took}");
        }
        assert_eq!(call::getsockopt::<i32>(p.fd, 1, 4), Ok(0), "it is not told twice");
    }
}

/// The peer switches between two looks of one receive, at the very byte that comes next: there is nothing to ask TCP
/// for any more, and that is no end of the stream.
#[test]
fn a_switch_in_the_middle_of_a_receive_is_no_end() {
    let mut p = pair(0);
    let (mine, peer) = p.conn.halves(p.guest).unwrap();
    assert!(peer.flags.load(Ordering::Relaxed) & flag::UP != 0, "the engine begins in the ring");
    let look = |room: &mut [u8], flags| {
        Buffers::over(room, |to| p.conn.recv_before_up(p.guest, p.fd, mine, peer, to, flags))
    };
    for flags in [0, MSG_PEEK] {
        let got = look(&mut [0; 8], flags);
        assert!(Conn::is_retry(got), "{got:?}");
        assert_eq!(look(&mut [], flags), Got::Bytes(0), "who asks for nothing gets that");
    }
    // The next look is at the ring.
    assert!(p.relay.write_at(0, b"by ring"));
    p.relay.publish(7);
    assert_eq!(p.recv(64).unwrap(), b"by ring");
}

#[test]
fn a_guest_goes_back_to_tcp_and_nothing_is_lost() {
    let mut p = pair(0);
    p.send(b"by ring, ");
    assert!(p.relay.write_at(0, b"unread by ring, "));
    p.relay.publish(16);
    let (conn, guest, fd) = (p.conn, p.guest, p.fd);
    let demoted = std::thread::spawn(move || conn.demote(guest, fd, Reason::Exec));
    let mut relay = p.relay;
    while !demoted.is_finished() {
        relay.heard(false, false);
        let there = relay.written().unwrap();
        relay.release(there);
        call::sched_yield();
    }
    assert!(demoted.join().unwrap());
    assert_eq!(conn.phase(), Phase::Tcp);
    // What a program without the library does now.
    call::send(fd, b"by TCP", 0).unwrap();
    relay.heard(false, false);
    let mut there = relay.written().unwrap();
    for _ in 0..1000 {
        if there == 15 {
            break;
        }
        call::wait_readable(relay.fd(), 10);
        relay.heard(false, false);
        there = relay.written().unwrap();
    }
    assert_eq!(there, 15);
    let mut got = [0; 6];
    relay.copy_out(9, &mut got).unwrap();
    assert_eq!(&got, b"by TCP");
    assert!(relay.write_at(16, b"then by TCP"));
    relay.publish(27);
    assert!(relay.pour());
    assert_eq!(relay.consumed(), Ok(27));
    let mut all = Vec::new();
    while all.len() < 27 {
        let mut chunk = [0; 64];
        call::wait_readable(fd, 1000);
        let n = call::recv(fd, &mut chunk, MSG_DONTWAIT).unwrap();
        all.extend_from_slice(&chunk[..n]);
    }
    assert_eq!(all, b"unread by ring, then by TCP");
}

/// What a guest leaves unread may be more than its socket takes, and it may not read that either.
#[test]
fn a_guest_that_goes_back_and_does_not_read_is_not_waited_for() {
    let mut p = pair(Loc::ORDER_MAX);
    let size = p.relay.rmb_bytes();
    let bytes: Vec<u8> = (0..size).map(|i| (i / 3).to_le_bytes()[0]).collect();
    assert!(p.relay.write_at(0, &bytes));
    p.relay.publish(size as u64);
    for (fd, buffer) in [(p.relay.fd(), SO_SNDBUF), (p.fd, SO_RCVBUF)] {
        call::setsockopt(fd, SOL_SOCKET, buffer, 64i32 << 10).unwrap();
    }
    call::wait_readable(p.fd, 2000);
    p.conn.drain(p.guest, p.fd);
    let (mine, _) = p.conn.halves(p.guest).unwrap();
    mine.flags.fetch_or(flag::WANT_DOWN, Ordering::Release);
    p.relay.heard(false, false);
    let gone = p.relay.consumed().unwrap();
    assert!(gone < size as u64 && !p.relay.pour(), "{gone}: there is no such room");
    p.relay.shut();
    let mut got = Vec::new();
    while got.len() < size {
        let mut chunk = [0; 64 << 10];
        let n = call::recv(p.fd, &mut chunk, MSG_DONTWAIT);
        assert!(n != Ok(0), "the end comes behind the bytes");
        match n {
            Ok(n) => got.extend_from_slice(&chunk[..n]),
            Err(_) => call::wait_readable(p.fd, 10),
        }
        let _ = p.relay.pour();
    }
    assert!(got == bytes, "other bytes");
    assert!(p.relay.pour() && p.relay.consumed() == Ok(size as u64));
    call::wait_readable(p.fd, 2000);
    assert_eq!(call::recv(p.fd, &mut [0; 1], MSG_DONTWAIT), Ok(0));
}

/// The peer host must not write over what the guest has still to read.
#[test]
fn what_lies_in_the_ring_is_not_consumed_by_what_follows_by_tcp() {
    let mut p = pair(0);
    assert!(p.relay.write_at(0, b"ring!"));
    p.relay.publish(4);
    p.relay.publish_urgent(5);
    assert_eq!(p.relay.consumed(), Ok(0));
    assert_eq!(p.recv(64).unwrap(), b"ring");
    assert_eq!(p.relay.consumed(), Ok(5));
}

/// Whoever takes part may write any word of ours, and nothing of that may lead to a page that is given back while somebody
/// has it: the next store there would be a fault.
#[test]
fn what_others_write_does_not_say_which_memory_is_whose() {
    let [one, other] = pairs::<2>(4);
    let engine = one.relay.w;
    let (half, _) = one.relay.conn.halves(engine).unwrap();
    let index = one.relay.conn.my_half(engine).unwrap().0;
    // Nobody has our halves, and our ring is that of another connection.
    let extent = index as usize * sys::abi::HALF_BYTES / sys::abi::EXTENT_BYTES;
    engine.board.map.owner(extent).store(0, Ordering::Relaxed);
    half.loc.store(other.relay.rmb.emit(), Ordering::Relaxed);
    let (guest, _) = one.conn.halves(one.guest).unwrap();
    guest.flags.fetch_or(flag::CLOSED, Ordering::Release);
    let used = engine.arena.lock().unwrap().bytes_used();
    let bytes = one.relay.rmb_bytes();
    one.relay.close(false);
    let mut arena = engine.arena.lock().unwrap();
    assert_eq!(arena.bytes_used(), used - bytes, "its own ring is free");
    let ring = arena.block(&engine.board, Loc::ORDER_MAX, usize::MAX).unwrap();
    assert_ne!(ring.offset() / sys::abi::EXTENT_BYTES, extent, "that is where halves are");
    arena.free_block(&engine.board, ring);
    drop(arena);
    engine.trim(0);
    assert!(other.relay.write_at(0, b"still there"));
    half.tail.store(1, Ordering::Relaxed);
}

#[test]
fn an_urgent_byte_is_told_and_given() {
    let mut p = pair(0);
    p.send(b"before ");
    p.conn.demote_sender(p.guest, p.fd, Reason::Urgent);
    call::send(p.fd, b"!", MSG_OOB).unwrap();
    call::send(p.fd, b" after", 0).unwrap();
    let mut there = 0;
    for _ in 0..1000 {
        p.relay.heard(false, false);
        there = p.relay.written().unwrap();
        p.relay.release(there.min(7));
        if there == 14 {
            break;
        }
        call::wait_readable(p.relay.fd(), 10);
    }
    assert_eq!((there, p.relay.urgent()), (14, Some(8)));
    assert_eq!(p.out(7, 7), b"! after");

    assert!(p.relay.write_at(0, b"ring"));
    p.relay.publish(4);
    assert!(p.relay.write_at(4, b"tcp?"));
    p.relay.publish_urgent(8);
    assert!(p.relay.write_at(8, b"rest"));
    p.relay.publish(12);
    assert_eq!(p.recv(64).unwrap(), b"ring");
    p.conn.drain(p.guest, p.fd);
    call::wait_readable(p.fd, 2000);
    let mut byte = [0; 1];
    assert_eq!(call::recv(p.fd, &mut byte, MSG_OOB | MSG_DONTWAIT), Ok(1));
    assert_eq!(&byte, b"?");
    let mut rest = Vec::new();
    while rest.len() < 7 {
        let mut chunk = [0; 16];
        call::wait_readable(p.fd, 2000);
        let n = call::recv(p.fd, &mut chunk, MSG_DONTWAIT).unwrap();
        rest.extend_from_slice(&chunk[..n]);
    }
    assert_eq!(rest, b"tcprest", "the urgent byte is not among the others");
}

#[test]
fn names_are_those_of_the_far_connection() {
    let p = pair(0);
    let ends = p.conn.far_ends().unwrap();
    let mapped = |a: std::net::SocketAddr| match a {
        std::net::SocketAddr::V4(v4) => {
            std::net::SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0)
        }
        std::net::SocketAddr::V6(v6) => v6,
    };
    assert_eq!(ends.remote, mapped(p.far.local_addr().unwrap()));
    assert_eq!(ends.local, mapped(p.far.peer_addr().unwrap()));
    assert_ne!(call::name(p.fd, true).unwrap().unwrap().port(), ends.remote.port());
    let _ = p.far.as_raw_fd();
}

#[test]
fn who_says_nonsense_is_refused() {
    let p = pair(0);
    let mut stand_in = StandIns::new(0).unwrap().take().unwrap();
    let engine = p.relay.w;
    let bad = |half, generation| Hello { half, generation, client: true, promised: true };
    for hello in [bad(u32::MAX, 1), bad(0, 0), bad(1, 7)] {
        let got = Relay::attach(engine, &hello, &mut stand_in, 0, &p.waiter);
        assert_eq!(got.err(), Some(Reason::PeerBroken), "{hello:?}");
    }
    for bytes in [&b""[..], b"short", &[0; BYTES], &[0xff; BYTES]] {
        assert_eq!(Hello::parse(bytes), None);
    }
    let hello = bad(12, 34);
    assert_eq!(Hello::parse(&hello.emit()), Some(hello));
}

#[test]
fn a_guest_that_dies_without_a_word_has_closed() {
    let mut p = pair(0);
    assert_eq!(p.send(b"last words"), 10);
    // What the kernel does with a process that was killed.
    call::close(p.fd).unwrap();
    call::wait_readable(p.relay.fd(), 5000);
    p.relay.heard(false, call::ended(p.relay.fd()));
    assert_eq!(p.relay.program(), Program::Closed);
    assert_eq!(p.relay.written(), Ok(10), "what it had written is sent all the same");
}

#[test]
fn a_guest_that_has_shut_down_lives() {
    let mut p = pair(0);
    assert_eq!(p.relay.program(), Program::Open);
    let _ = p.conn.shutdown(p.guest, p.fd, false, true);
    // Its socket may say so, too.
    let _ = call::shutdown(p.fd, 1);
    call::wait_readable(p.relay.fd(), 5000);
    p.relay.heard(false, call::ended(p.relay.fd()));
    assert_eq!(p.relay.program(), Program::Shut);
}
