//! Every interleaving of the small cases that matter.

use loom::sync::{Arc, Condvar, Mutex, Notify};
use loom::thread;

use super::*;
use crate::sync::{AtomicU32, fence};
use crate::wait::{self, WaitWord};

#[derive(Default)]
struct Pair {
    head: AtomicU64,
    tail: AtomicU64,
    wait: AtomicU64,
    sleeping: AtomicU32,
    room_wait: AtomicU32,
    bytes: [AtomicU32; 2],
}

/// Bytes come out as they went in, across the wrap.
#[test]
fn bytes_arrive_in_order() {
    loom::model(|| {
        let pair = Arc::new(Pair::default());
        let writer = thread::spawn({
            let pair = pair.clone();
            move || {
                for at in 0..3u64 {
                    while room(&pair.head, at, 2).unwrap() == 0 {
                        thread::yield_now();
                    }
                    pair.bytes[(at & 1) as usize].store(at as u32 + 7, Ordering::Relaxed);
                    publish(&pair.tail, at + 1);
                }
            }
        });
        let mut head = 0;
        while head < 3 {
            if used(head, tail(&pair.tail), 2).unwrap() == 0 {
                thread::yield_now();
                continue;
            }
            assert_eq!(pair.bytes[(head & 1) as usize].load(Ordering::Relaxed), head as u32 + 7);
            head += 1;
            give_back(&pair.head, head);
        }
        writer.join().unwrap();
    });
}

/// A cold sleeper is woken by the doorbell of its sequence number.
#[test]
fn a_cold_sleeper_is_woken() {
    loom::model(|| {
        let pair = Arc::new(Pair::default());
        let bell = Arc::new(Notify::new());
        let writer = thread::spawn({
            let (pair, bell) = (pair.clone(), bell.clone());
            move || {
                publish(&pair.tail, 1);
                if let WaitWord::Cold(_) = wait::look(&pair.wait) {
                    bell.notify();
                }
            }
        });
        while tail(&pair.tail) == 0 {
            wait::arm(&pair.wait, WaitWord::Cold(1));
            if tail(&pair.tail) == 0 {
                bell.wait();
            }
        }
        writer.join().unwrap();
    });
}

/// The futex of a word: who sleeps compares the word under the lock that who wakes takes.
#[derive(Default)]
struct Futex {
    lock: Mutex<()>,
    bell: Condvar,
}

impl Futex {
    fn wait(&self, word: &AtomicU32, seen: u32) {
        let held = self.lock.lock().unwrap();
        if word.load(Ordering::Relaxed) == seen {
            drop(self.bell.wait(held).unwrap());
        }
    }

    fn wake(&self) {
        drop(self.lock.lock().unwrap());
        self.bell.notify_all();
    }
}

/// A pair one of whose ends naps, by threads of which each waits until there are so many bytes.
#[derive(Default)]
struct Napping {
    pair: Pair,
    seq: AtomicU32,
    rung: AtomicU32,
    futex: Futex,
}

impl Napping {
    /// `nap::nap`, until there is more than `head`.
    fn wait(&self, head: u64) {
        while tail(&self.pair.tail) <= head {
            let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
            let seen = wait::arm_nap(&self.pair.wait, seq, &self.rung);
            if tail(&self.pair.tail) <= head {
                self.futex.wait(&self.rung, seen);
            }
        }
    }

    /// `Conn::send`.
    fn send(&self, to: u64) {
        publish(&self.pair.tail, to);
        self.wake();
    }

    /// `Conn::notify`.
    fn wake(&self) {
        if let WaitWord::Nap(seq) = wait::look(&self.pair.wait)
            && wait::end_naps(&self.rung, seq)
        {
            self.futex.wake();
        }
    }
}

/// Who naps is woken by each of two messages, whichever nap it is in. Who is not would sleep for ever, which loom finds.
#[test]
fn who_naps_is_woken() {
    loom::model(|| {
        let both = Arc::new(Napping::default());
        let writer = thread::spawn({
            let both = both.clone();
            move || {
                both.send(1);
                both.send(2);
            }
        });
        both.wait(0);
        both.wait(1);
        writer.join().unwrap();
    });
}

/// Two threads that nap on one connection, which has one word for both, are woken by one message.
#[test]
fn all_who_nap_are_woken() {
    loom::model(|| {
        let both = Arc::new(Napping::default());
        let other = thread::spawn({
            let both = both.clone();
            move || both.wait(0)
        });
        let writer = thread::spawn({
            let both = both.clone();
            move || both.send(1)
        });
        both.wait(0);
        other.join().unwrap();
        writer.join().unwrap();
    });
}

/// A waker that comes late, for a nap that another one has ended: it must not undo what that one notes of the next nap, or
/// this would not end.
#[test]
fn who_wakes_late_puts_nothing_back() {
    loom::model(|| {
        let both = Arc::new(Napping::default());
        both.seq.store(1, Ordering::Relaxed);
        both.rung.store(1, Ordering::Relaxed);
        both.pair.wait.store(WaitWord::Nap(1).emit(), Ordering::Relaxed);
        let late = thread::spawn({
            let both = both.clone();
            move || {
                if wait::end_naps(&both.rung, 1) {
                    both.futex.wake();
                }
            }
        });
        let writer = thread::spawn({
            let both = both.clone();
            move || both.send(1)
        });
        both.wait(0);
        late.join().unwrap();
        writer.join().unwrap();
    });
}

/// An event loop that polls two connections and then sleeps is woken, whichever moves.
#[test]
fn a_warm_waiter_is_woken() {
    loom::model(|| {
        let pair = Arc::new(Pair::default());
        pair.wait.store(WaitWord::Warm(0).emit(), Ordering::Relaxed);
        let bell = Arc::new(Notify::new());
        let writer = thread::spawn({
            let (pair, bell) = (pair.clone(), bell.clone());
            move || {
                publish(&pair.tail, 1);
                if let WaitWord::Warm(0) = wait::look(&pair.wait)
                    && wait::asleep(&pair.sleeping).is_some()
                {
                    bell.notify();
                }
            }
        });
        while tail(&pair.tail) == 0 {
            let sleep = wait::fall_asleep(&pair.sleeping);
            if tail(&pair.tail) == 0 {
                bell.wait();
            }
            wait::awake_from(&pair.sleeping, sleep);
        }
        writer.join().unwrap();
    });
}

/// An event loop that naps by the futex of its own word, for two connections, and sleeps when nobody has ended a nap.
#[derive(Default)]
struct Loop {
    pairs: [Pair; 2],
    sleeping: AtomicU32,
    futex: Futex,
}

impl Loop {
    fn new() -> Arc<Self> {
        let this = Self::default();
        for pair in &this.pairs {
            pair.wait.store(WaitWord::Warm(0).emit(), Ordering::Relaxed);
        }
        Arc::new(this)
    }

    fn moved(&self, heads: [u64; 2]) -> bool {
        self.pairs.iter().zip(heads).any(|(pair, head)| tail(&pair.tail) > head)
    }

    /// `Set::nap`, again and again: loom knows no time, so a nap that should have been ended and is not goes on for ever.
    fn naps(&self, heads: [u64; 2]) {
        while !self.moved(heads) {
            let seen = wait::nap(&self.sleeping);
            if !self.moved(heads) {
                self.futex.wait(&self.sleeping, seen);
            }
            wait::awake_from(&self.sleeping, seen);
        }
    }

    /// `Set::nap` that nobody ends in time, and `Set::sleep` behind it.
    fn sleeps(&self, heads: [u64; 2], bell: &Notify) {
        let nap = wait::nap(&self.sleeping);
        wait::awake_from(&self.sleeping, nap);
        while !self.moved(heads) {
            let sleep = wait::fall_asleep(&self.sleeping);
            if !self.moved(heads) {
                bell.wait();
            }
            wait::awake_from(&self.sleeping, sleep);
        }
    }

    /// `Conn::send` and `Conn::notify`.
    fn send(&self, which: usize, to: u64, bell: Option<&Notify>) {
        publish(&self.pairs[which].tail, to);
        let WaitWord::Warm(0) = wait::look(&self.pairs[which].wait) else { unreachable!() };
        match wait::asleep(&self.sleeping) {
            Some(wait::Sleep::Nap(nap)) => {
                if wait::end_nap(&self.sleeping, nap) {
                    self.futex.wake();
                }
            }
            Some(wait::Sleep::Kernel(_)) => bell.expect("nobody sleeps").notify(),
            None => {}
        }
    }
}

/// Of two peers that each send something, one ends the nap; the loop sees what both have sent, in one nap or in two.
#[test]
fn a_loop_that_naps_is_woken() {
    loom::model(|| {
        let all = Loop::new();
        let peers = [0, 1].map(|which| {
            let all = all.clone();
            thread::spawn(move || all.send(which, 1, None))
        });
        all.naps([0, 0]);
        let [first, second] = [0, 1].map(|which| tail(&all.pairs[which].tail));
        if first == 0 || second == 0 {
            all.naps([first, second]);
        }
        for peer in peers {
            peer.join().unwrap();
        }
    });
}

/// A peer that has seen a nap comes too late for it: the loop sees what it has sent before it sleeps in the kernel, or it
/// rings.
#[test]
fn a_nap_that_is_over_hides_nothing_from_the_sleep() {
    loom::model(|| {
        let (all, bell) = (Loop::new(), Arc::new(Notify::new()));
        let peer = thread::spawn({
            let (all, bell) = (all.clone(), bell.clone());
            move || all.send(0, 1, Some(&bell))
        });
        all.sleeps([0, 0], &bell);
        peer.join().unwrap();
    });
}

/// A producer that waits for room is woken by the consumer that makes some.
#[test]
fn a_full_ring_wakes_its_producer() {
    loom::model(|| {
        let pair = Arc::new(Pair::default());
        pair.tail.store(2, Ordering::Relaxed);
        let bell = Arc::new(Notify::new());
        let reader = thread::spawn({
            let (pair, bell) = (pair.clone(), bell.clone());
            move || {
                give_back(&pair.head, 2);
                fence(Ordering::SeqCst);
                if pair.room_wait.load(Ordering::Relaxed) != 0 {
                    bell.notify();
                }
            }
        });
        while room(&pair.head, 2, 2).unwrap() == 0 {
            pair.room_wait.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if room(&pair.head, 2, 2).unwrap() == 0 {
                bell.wait();
            }
        }
        reader.join().unwrap();
    });
}

/// The place of the ring that goes with a byte is seen with it, when the ring is exchanged while
/// it is drained.
#[test]
fn an_exchanged_ring_is_seen_with_its_bytes() {
    loom::model(|| {
        let pair = Arc::new(Pair::default());
        let writer = thread::spawn({
            let pair = pair.clone();
            move || {
                pair.bytes[0].store(5, Ordering::Relaxed);
                publish(&pair.tail, 1);
                // Only when drained may the place change: here `room_wait` stands for the place.
                if room(&pair.head, 1, 2).unwrap() == 2 {
                    pair.room_wait.store(1, Ordering::Relaxed);
                    pair.bytes[1].store(6, Ordering::Relaxed);
                    publish(&pair.tail, 2);
                }
            }
        });
        if tail(&pair.tail) >= 1 {
            assert_eq!(pair.bytes[0].load(Ordering::Relaxed), 5);
            give_back(&pair.head, 1);
            if tail(&pair.tail) == 2 {
                assert_eq!(pair.room_wait.load(Ordering::Relaxed), 1);
                assert_eq!(pair.bytes[1].load(Ordering::Relaxed), 6);
            }
        }
        writer.join().unwrap();
    });
}

/// Both ends demote at once: each sees the other's last ring offset before bytes behind it.
#[test]
fn an_exact_switch_is_seen_before_what_follows_it() {
    loom::model(|| {
        let pair = Arc::new(Pair::default());
        let writer = thread::spawn({
            let pair = pair.clone();
            move || {
                // `bytes[0]` stands for `up_at`, `bytes[1]` for a byte of the ring.
                pair.bytes[0].store(9, Ordering::Relaxed);
                pair.sleeping.store(1, Ordering::Release);
                pair.bytes[1].store(4, Ordering::Relaxed);
                publish(&pair.tail, 1);
            }
        });
        if tail(&pair.tail) == 1 {
            assert_eq!(pair.sleeping.load(Ordering::Acquire), 1);
            assert_eq!(pair.bytes[0].load(Ordering::Relaxed), 9);
            assert_eq!(pair.bytes[1].load(Ordering::Relaxed), 4);
        }
        writer.join().unwrap();
    });
}
