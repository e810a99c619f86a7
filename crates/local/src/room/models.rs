//! Every interleaving of threads that wait for room with one that finds some, and with the reader.

use loom::sync::{Arc, Notify};
use loom::thread;
use sys::ring;
use sys::sync::AtomicU64;

use super::*;

const CAPACITY: usize = 2;
const TAIL: u64 = 2;

/// A full ring, of which somebody has wanted room before.
struct Full {
    word: AtomicU32,
    head: AtomicU64,
    /// `reg_flags::ROOM` of an event set, or `Half::sleepers`.
    waits: AtomicU32,
    bell: Notify,
}

impl Full {
    fn new() -> Self {
        let word = AtomicU32::new(0);
        want(&word);
        Self { word, head: AtomicU64::new(0), waits: AtomicU32::new(0), bell: Notify::new() }
    }

    fn has_room(&self) -> bool {
        ring::room(&self.head, TAIL, CAPACITY).unwrap() > 0
    }

    /// `Set::sleep`, or `io::sleep`, until there is room.
    fn wait(&self) {
        while !self.has_room() {
            self.waits.store(1, Ordering::Relaxed);
            want(&self.word);
            if !self.has_room() {
                self.bell.wait();
            }
        }
    }

    /// The end of `Conn::send`, whose bytes have filled the ring; the send lock is held.
    fn sent(&self) {
        forget(&self.word, || self.waits.load(Ordering::Relaxed) != 0);
    }

    /// `Conn::take`.
    fn read(&self) {
        ring::give_back(&self.head, TAIL);
        if is_wanted(&self.word) {
            self.bell.notify();
        }
    }
}

/// One thread's send finds room while another begins to wait for some: the reader rings for that one.
/// Whom nobody rings for would sleep for ever, which loom finds.
#[test]
fn a_send_that_finds_room_forgets_nobody() {
    loom::model(|| {
        let full = Arc::new(Full::new());
        let sender = thread::spawn({
            let full = full.clone();
            move || full.sent()
        });
        let reader = thread::spawn({
            let full = full.clone();
            move || full.read()
        });
        full.wait();
        sender.join().unwrap();
        reader.join().unwrap();
    });
}

/// Two sends after another, each of which may find nobody else.
#[test]
fn two_sends_forget_nobody() {
    loom::model(|| {
        let full = Arc::new(Full::new());
        let sender = thread::spawn({
            let full = full.clone();
            move || {
                full.sent();
                full.sent();
            }
        });
        let reader = thread::spawn({
            let full = full.clone();
            move || full.read()
        });
        full.wait();
        sender.join().unwrap();
        reader.join().unwrap();
    });
}
