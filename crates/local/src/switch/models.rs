//! Every interleaving of a switch, a demotion, and what may come between, in small cases.
//!
//! The functions are the code's own. What stands around them in `conn` (which lock is held, what is
//! looked at first) is said again here in the same order, by the names it has there. The kernel's
//! TCP stream is a queue under a lock: whoever takes a byte out of a socket sees what was done
//! before it was put in.

use std::collections::VecDeque;

use loom::sync::{Arc, Mutex};
use loom::thread;
use sys::ring;
use sys::sync::full_fence;

use super::*;

/// The byte that is a doorbell.
const BELL: u32 = 0x5a;

/// One direction of a connection, with both of its ends.
#[derive(Default)]
struct Direction {
    // The sender's.
    tx: Sending,
    users: AtomicU32,
    flags: AtomicU32,
    up_at: AtomicU64,
    down_at: AtomicU64,
    tail: AtomicU64,
    bells: AtomicU32,
    owed: AtomicU32,
    cells: [AtomicU32; 3],
    tx_lock: Mutex<()>,
    bell_lock: Mutex<()>,
    tcp: Mutex<VecDeque<u32>>,
    // The reader's.
    wish: AtomicU32,
    head: AtomicU64,
}

/// What only the reading thread knows.
#[derive(Default)]
struct Reader {
    taken: u64,
    drained: u32,
    got: Vec<u32>,
}

impl Direction {
    /// `Conn::go_up`.
    fn go_up(&self) -> bool {
        self.go_up_by(&self.tx)
    }

    fn go_up_by(&self, tx: &Sending) -> bool {
        let counted = || Some(self.tcp.lock().unwrap().len() as u64);
        self.flags.load(Ordering::Acquire) & flag::UP != 0
            || tx.rise(&self.flags, &self.up_at, &self.users, counted)
    }

    /// `io::way`, then one byte that way.
    fn send(&self, byte: u32) {
        self.send_by(&self.tx, byte);
    }

    fn send_by(&self, tx: &Sending, byte: u32) {
        loop {
            if self.go_up_by(tx) {
                return self.send_ring(byte);
            }
            if tx.begins(|| false) {
                self.tcp.lock().unwrap().push_back(byte);
                return tx.ends(1);
            }
            thread::yield_now();
        }
    }

    /// `life::fork_prepare`, and what the child has.
    fn fork(&self) -> Sending {
        self.users.fetch_add(1, Ordering::AcqRel);
        self.tx.doubt();
        while self.tx.is_rising() {
            thread::yield_now();
        }
        let [busy, rising, unsure] =
            [&self.tx.busy, &self.tx.rising, &self.tx.unsure].map(|n| n.load(Ordering::Relaxed));
        let child = Sending::default();
        child.busy.store(busy, Ordering::Relaxed);
        child.rising.store(rising, Ordering::Relaxed);
        child.unsure.store(unsure, Ordering::Relaxed);
        child.correct(self.tx.sent());
        child.forked();
        child
    }

    /// `Conn::send`.
    fn send_ring(&self, byte: u32) {
        let _held = self.tx_lock.lock().unwrap();
        loop {
            if self.flags.load(Ordering::Relaxed) & flag::DOWN != 0 {
                return self.tcp.lock().unwrap().push_back(byte);
            }
            if self.wish.load(Ordering::Relaxed) & flag::WANT_DOWN == 0 {
                break;
            }
            self.go_down_for();
        }
        let at = self.tail.load(Ordering::Relaxed);
        self.cells[at as usize].store(byte, Ordering::Relaxed);
        ring::publish(&self.tail, at + 1);
        self.ring_bell();
    }

    /// `Conn::ring_bell`.
    fn ring_bell(&self) {
        let _held = self.bell_lock.lock().unwrap();
        if announce(&self.flags, &self.bells, &self.owed) {
            self.tcp.lock().unwrap().push_back(BELL);
            self.owed.store(0, Ordering::Relaxed);
        }
    }

    /// `Conn::go_down`.
    fn go_down(&self, at: u64) {
        let _held = self.bell_lock.lock().unwrap();
        go_down(&self.flags, &self.down_at, at);
    }

    /// `Conn::go_down_for` and `Conn::replay`; the send lock is held.
    fn go_down_for(&self) -> bool {
        let Some(from) = answer(&self.flags, &self.wish, &self.head) else { return false };
        let tail = self.tail.load(Ordering::Relaxed);
        self.go_down(from);
        for at in from..tail {
            let byte = self.cells[at as usize].load(Ordering::Relaxed);
            self.tcp.lock().unwrap().push_back(byte);
        }
        true
    }

    /// `Conn::recv`, one byte: from the ring, or what `recv_slow` does.
    fn recv(&self, me: &mut Reader) {
        let head = self.head.load(Ordering::Relaxed);
        let tail = ring::tail(&self.tail);
        let frozen = self.wish.load(Ordering::Relaxed) & flag::WANT_DOWN != 0;
        let in_ring = risen(&self.flags, &self.up_at).is_some_and(|at| me.taken >= at);
        if !frozen && tail != head && in_ring {
            // `Conn::take`.
            if fallen(&self.flags, &self.down_at).is_none_or(|at| at != head) {
                me.got.push(self.cells[head as usize].load(Ordering::Relaxed));
                return ring::give_back(&self.head, head + 1);
            }
        }
        self.recv_slow(me, frozen);
    }

    fn recv_slow(&self, me: &mut Reader, frozen: bool) {
        let down = fallen(&self.flags, &self.down_at);
        if frozen && down.is_none() {
            return;
        }
        if risen(&self.flags, &self.up_at).is_none_or(|at| me.taken < at) {
            return self.recv_before_up(me);
        }
        let head = self.head.load(Ordering::Relaxed);
        self.drain_bells(me);
        if down == Some(head) && me.drained == announced(&self.bells) {
            let byte = self.tcp.lock().unwrap().pop_front();
            me.got.extend(byte);
        }
    }

    /// One byte of TCP at most, which may turn out to be a doorbell: `Conn::recv_before_up` and `Conn::trim`. Whoever
    /// called had seen no switch, or not come to it; here it is looked at anew.
    fn recv_before_up(&self, me: &mut Reader) {
        let up = risen(&self.flags, &self.up_at);
        if up.is_some_and(|at| me.taken >= at) {
            // Nothing to ask TCP for, which is no end of the stream.
            return;
        }
        let Some(byte) = self.tcp.lock().unwrap().pop_front() else { return };
        if up.is_none() && risen(&self.flags, &self.up_at).is_some_and(|at| me.taken >= at) {
            me.drained += 1;
            return;
        }
        me.taken += 1;
        me.got.push(byte);
    }

    /// `Conn::drain_bells`.
    fn drain_bells(&self, me: &mut Reader) {
        for _ in me.drained..announced(&self.bells) {
            if self.tcp.lock().unwrap().pop_front().is_some() {
                me.drained += 1;
            }
        }
    }

    fn recv_all(&self, me: &mut Reader, n: usize) {
        while me.got.len() < n {
            self.recv(me);
            thread::yield_now();
        }
    }

    /// What is left in the socket are the doorbells that were announced, and nothing else.
    fn only_bells_are_left(&self, me: &Reader) {
        let left = self.tcp.lock().unwrap();
        assert_eq!(me.drained as usize + left.len(), announced(&self.bells) as usize);
        assert!(left.iter().all(|byte| *byte == BELL));
    }
}

/// A thread is in the middle of a send by TCP when another one attaches the connection and switches
/// it; the reader gets each byte once and in order.
#[test]
fn bytes_around_the_switch_come_once_and_in_order() {
    loom::model(|| {
        let way = Arc::new(Direction::default());
        let sender = thread::spawn({
            let way = way.clone();
            move || {
                // Begun before anything was attached.
                if way.tx.begins(|| false) {
                    way.tcp.lock().unwrap().push_back(1);
                    way.tx.ends(1);
                } else {
                    way.send(1);
                }
                way.send(2);
            }
        });
        let riser = thread::spawn({
            let way = way.clone();
            move || way.go_up()
        });
        let mut me = Reader::default();
        for _ in 0..3 {
            way.recv(&mut me);
        }
        sender.join().unwrap();
        let _ = riser.join().unwrap();
        way.recv_all(&mut me, 2);
        assert_eq!(me.got, [1, 2]);
        way.only_bells_are_left(&me);
    });
}

/// A send by TCP is left by a jump, and nobody says what it has moved: the direction switches behind it all the
/// same, at the byte that the kernel has counted.
#[test]
fn a_send_that_was_left_is_counted_by_the_kernel() {
    loom::model(|| {
        let way = Arc::new(Direction::default());
        let sender = thread::spawn({
            let way = way.clone();
            move || {
                if way.tx.begins(|| false) {
                    way.tcp.lock().unwrap().push_back(1);
                    way.tx.left();
                } else {
                    way.send(1);
                }
                way.send(2);
            }
        });
        let riser = thread::spawn({
            let way = way.clone();
            move || way.go_up()
        });
        sender.join().unwrap();
        let _ = riser.join().unwrap();
        assert!(way.go_up(), "nobody is sending any more");
        let mut me = Reader::default();
        way.recv_all(&mut me, 2);
        assert_eq!(me.got, [1, 2]);
        way.only_bells_are_left(&me);
    });
}

/// A process forks while one of its threads switches, and then both send; once one of them has left, the other one
/// switches behind all that was sent.
#[test]
fn a_fork_beside_a_switch() {
    loom::model(|| {
        let way = Arc::new(Direction::default());
        way.users.store(1, Ordering::Relaxed);
        let riser = thread::spawn({
            let way = way.clone();
            move || way.go_up()
        });
        let child = way.fork();
        let child = thread::spawn({
            let way = way.clone();
            move || {
                way.send_by(&child, 1);
                way.users.fetch_sub(1, Ordering::AcqRel);
            }
        });
        let _ = riser.join().unwrap();
        let _ = way.go_up();
        child.join().unwrap();
        assert!(way.go_up(), "nobody else is there");
        way.send(2);
        let mut me = Reader::default();
        way.recv_all(&mut me, 2);
        assert_eq!(me.got, [1, 2]);
        way.only_bells_are_left(&me);
    });
}

/// What a reader may believe that has seen no byte of the ring yet: with the flag comes its offset.
/// A reader that took the old one would take a byte of the program for the doorbell.
#[test]
fn the_offset_comes_with_its_flag() {
    loom::model(|| {
        let way = Arc::new(Direction::default());
        way.tcp.lock().unwrap().push_back(1);
        way.tx.correct(1);
        let riser = thread::spawn({
            let way = way.clone();
            move || assert!(way.go_up())
        });
        if let Some(at) = risen(&way.flags, &way.up_at) {
            assert_eq!(at, 1);
        }
        riser.join().unwrap();
        assert_eq!(risen(&way.flags, &way.up_at), Some(1));
    });
}

/// The same of the way back.
#[test]
fn the_offset_of_the_way_back_comes_with_its_flag() {
    loom::model(|| {
        let way = Arc::new(Direction::default());
        let sender = thread::spawn({
            let way = way.clone();
            move || go_down(&way.flags, &way.down_at, 1)
        });
        assert!(fallen(&way.flags, &way.down_at).is_none_or(|at| at == 1));
        sender.join().unwrap();
        assert_eq!(fallen(&way.flags, &way.down_at), Some(1));
    });
}

/// Two threads send while the connection switches: each byte arrives once.
#[test]
fn two_senders_switch_once() {
    loom::model(|| {
        let way = Arc::new(Direction::default());
        let senders = [1, 2].map(|byte| {
            let way = way.clone();
            thread::spawn(move || way.send(byte))
        });
        for sender in senders {
            sender.join().unwrap();
        }
        let mut me = Reader::default();
        way.recv_all(&mut me, 2);
        me.got.sort_unstable();
        assert_eq!(me.got, [1, 2]);
        way.only_bells_are_left(&me);
    });
}

/// `Conn::settle_server`: while a server attaches, nobody sends by TCP, and its count is right.
#[test]
fn nobody_sends_while_a_server_attaches() {
    const SERVER: u32 = 2;
    const BUSY: u32 = 6;
    loom::model(|| {
        let way = Arc::new(Direction::default());
        let phase = Arc::new(AtomicU32::new(SERVER));
        let sender = thread::spawn({
            let (way, phase) = (way.clone(), phase.clone());
            move || {
                if way.tx.begins(|| phase.load(Ordering::Acquire) == BUSY) {
                    way.tcp.lock().unwrap().push_back(1);
                    way.tx.ends(1);
                }
            }
        });
        phase.compare_exchange(SERVER, BUSY, Ordering::AcqRel, Ordering::Relaxed).unwrap();
        if way.tx.is_idle() {
            let sent = way.tcp.lock().unwrap().len() as u64;
            assert_eq!(way.tx.sent(), sent);
            // A sender that is just being refused may keep us from it, but not move the offset.
            if way.go_up() {
                assert_eq!(risen(&way.flags, &way.up_at), Some(sent));
            }
            assert_eq!(way.tcp.lock().unwrap().len() as u64, sent);
        }
        phase.store(SERVER, Ordering::Release);
        sender.join().unwrap();
    });
}

/// A direction that is in the ring, with one byte in it that is not read yet.
fn in_ring() -> Direction {
    let way = Direction::default();
    assert!(way.go_up());
    way.send(1);
    way
}

/// The reader freezes at any point; what it has not read comes again by TCP, behind the doorbells,
/// and what follows behind that.
#[test]
fn nothing_is_lost_or_doubled_by_a_demotion() {
    loom::model(|| {
        let way = Arc::new(in_ring());
        let sender = thread::spawn({
            let way = way.clone();
            move || {
                way.send(2);
                way.send(3);
            }
        });
        let mut me = Reader::default();
        way.recv(&mut me);
        freeze(&way.wish);
        way.recv(&mut me);
        sender.join().unwrap();
        // `Conn::answer_demotion`, at the sender's next call.
        let _ = answer_now(&way);
        way.recv_all(&mut me, 3);
        assert_eq!(me.got, [1, 2, 3]);
        way.only_bells_are_left(&me);
    });
}

fn answer_now(way: &Direction) -> bool {
    let _held = way.tx_lock.lock().unwrap();
    way.wish.load(Ordering::Acquire) & flag::WANT_DOWN != 0
        && way.flags.load(Ordering::Relaxed) & flag::DOWN == 0
        && way.go_down_for()
}

/// The reader loses patience and reads on, at the very moment at which the sender answers.
#[test]
fn a_late_answer_and_a_thaw_agree() {
    loom::model(|| {
        let way = Arc::new(in_ring());
        let sender = thread::spawn({
            let way = way.clone();
            move || {
                way.send(2);
                let _ = answer_now(&way);
            }
        });
        let mut me = Reader::default();
        freeze(&way.wish);
        way.recv(&mut me);
        let mut looks = 0;
        let thawed = thaw(&way.wish, &way.flags, || {
            looks += 1;
            thread::yield_now();
            looks < 3
        });
        if thawed {
            // From here on the ring's bytes are ours.
            way.recv(&mut me);
        }
        sender.join().unwrap();
        if !thawed {
            // We sleep until the bytes come by TCP: the sender must not have left it at that.
            assert!(fallen(&way.flags, &way.down_at).is_some());
        }
        way.recv_all(&mut me, 2);
        assert_eq!(me.got, [1, 2]);
        way.only_bells_are_left(&me);
    });
}

/// The only call that the sender makes for long, perhaps before it sleeps for ever: if it is what
/// keeps the reader from thawing, it is what answers.
#[test]
fn whoever_prevents_a_thaw_answers() {
    loom::model(|| {
        let way = Arc::new(in_ring());
        let sender = thread::spawn({
            let way = way.clone();
            move || {
                let _ = answer_now(&way);
            }
        });
        freeze(&way.wish);
        let thawed = thaw(&way.wish, &way.flags, || false);
        sender.join().unwrap();
        let down = fallen(&way.flags, &way.down_at);
        assert_eq!(down, if thawed { None } else { Some(0) });
    });
}

/// The reader thaws, reads, and freezes again, while the sender answers: it answers where the head
/// stands now.
#[test]
fn a_second_wish_is_answered_at_its_own_head() {
    loom::model(|| {
        let way = Arc::new(in_ring());
        let sender = thread::spawn({
            let way = way.clone();
            move || {
                let _ = answer_now(&way);
            }
        });
        let mut me = Reader::default();
        freeze(&way.wish);
        if thaw(&way.wish, &way.flags, || false) {
            way.recv(&mut me);
            freeze(&way.wish);
        }
        sender.join().unwrap();
        let _ = answer_now(&way);
        way.recv_all(&mut me, 1);
        assert_eq!(me.got, [1]);
        way.only_bells_are_left(&me);
    });
}

/// One thread goes back to TCP while another rings (it has read, and the peer waits for room): the
/// doorbell comes before the byte that follows, or not at all.
#[test]
fn no_doorbell_follows_the_way_back() {
    loom::model(|| {
        let way = Arc::new(Direction::default());
        assert!(way.go_up());
        let bell = thread::spawn({
            let way = way.clone();
            move || way.ring_bell()
        });
        let sender = thread::spawn({
            let way = way.clone();
            move || {
                let _held = way.tx_lock.lock().unwrap();
                way.go_down(way.tail.load(Ordering::Relaxed));
                way.tcp.lock().unwrap().push_back(1);
            }
        });
        let mut me = Reader::default();
        way.recv(&mut me);
        sender.join().unwrap();
        way.recv_all(&mut me, 1);
        bell.join().unwrap();
        assert_eq!(me.got, [1]);
        way.only_bells_are_left(&me);
    });
}

/// A reader that finds a doorbell in the socket finds it announced as well.
#[test]
fn a_doorbell_is_announced_before_it_is_sent() {
    loom::model(|| {
        let way = Arc::new(Direction::default());
        assert!(way.go_up());
        let sender = thread::spawn({
            let way = way.clone();
            move || way.send(1)
        });
        let bells = way.tcp.lock().unwrap().len();
        assert!(announced(&way.bells) as usize >= bells);
        sender.join().unwrap();
    });
}

/// What a closer and who rings for it share besides a direction: `CLOSED`, the word of the bell lock, and whether the socket
/// is closed.
#[derive(Default)]
struct Closing {
    way: Direction,
    closed: AtomicU32,
    bell_lock: AtomicU32,
    gone: AtomicU32,
}

impl Closing {
    /// `Conn::ring_bell`.
    fn ring(&self) {
        assert_eq!(self.bell_lock.swap(1, Ordering::Acquire), 0, "one rings");
        if announce(&self.way.flags, &self.way.bells, &self.way.owed) {
            full_fence();
            if self.closed.load(Ordering::Acquire) == 0 {
                let mut tcp = self.way.tcp.lock().unwrap();
                assert_eq!(self.gone.load(Ordering::Relaxed), 0, "a doorbell for a closed socket");
                tcp.push_back(BELL);
                self.way.owed.store(0, Ordering::Relaxed);
            } else {
                take_back(&self.way.bells, &self.way.owed);
            }
        }
        self.bell_lock.store(0, Ordering::Release);
    }

    /// `Conn::say_closed` and `Conn::bells_come_in`, and `close` behind them.
    fn close(&self) {
        self.closed.store(1, Ordering::Release);
        full_fence();
        let mut drained = 0;
        loop {
            let last = self.bell_lock.load(Ordering::Acquire) == 0;
            let announced = announced(&self.way.bells);
            while drained < announced && self.way.tcp.lock().unwrap().pop_front().is_some() {
                drained += 1;
            }
            if last || drained == announced {
                break;
            }
            thread::yield_now();
        }
        let tcp = self.way.tcp.lock().unwrap();
        assert!(tcp.is_empty(), "closed with a doorbell unread");
        self.gone.store(1, Ordering::Relaxed);
    }
}

#[test]
fn no_doorbell_comes_into_a_socket_that_is_closed() {
    loom::model(|| {
        let both = Arc::new(Closing { way: in_ring(), ..Closing::default() });
        let ringer = Arc::clone(&both);
        let ringing = thread::spawn(move || ringer.ring());
        both.close();
        ringing.join().unwrap();
    });
}
