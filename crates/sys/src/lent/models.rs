//! Every interleaving of an owner with one who borrows.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::*;

const OWNER: u32 = 1;
const SECOND: u32 = 2;
const BORROWER: u32 = 3;

/// Two locks that are borrowed together, and what the first guards: loom finds two who are inside at once.
struct World {
    word: AtomicU32,
    other: AtomicU32,
    lent: AtomicU32,
    guarded: UnsafeCell<u32>,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU32::new(0),
            other: AtomicU32::new(0),
            lent: AtomicU32::new(0),
            guarded: UnsafeCell::new(0),
        })
    }

    fn inside(&self) {
        self.guarded.with_mut(|n| {
            // SAFETY: loom panics if anybody else is here.
            unsafe { *n += 1 }
        });
    }

    /// `lock::lock_own`, by the only thread of the owner.
    fn alone(&self) {
        while !take_alone(&self.word, &self.lent, OWNER) {
            thread::yield_now();
        }
        self.inside();
        self.word.store(0, Ordering::Release);
    }

    /// `lock::try_lock_of`, by one of several. (With two who wait for each other there is no end of interleavings.)
    fn among_others(&self, me: u32) -> bool {
        let taken = self.word.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            return false;
        }
        let ours = is_ours(&self.lent);
        if ours {
            self.inside();
        }
        self.word.store(0, Ordering::Release);
        ours
    }

    fn borrow_once(&self) -> bool {
        let borrowed = borrow(&self.lent, &[&self.other, &self.word], BORROWER, || true);
        if borrowed {
            self.inside();
            give_back(&self.lent);
        }
        borrowed
    }

    fn had(&self) -> u32 {
        // SAFETY: loom panics if anybody else writes.
        self.guarded.with(|n| unsafe { *n })
    }
}

#[test]
fn an_owner_alone_and_a_borrower() {
    loom::model(|| {
        let world = World::new();
        let borrower = thread::spawn({
            let world = world.clone();
            move || u32::from(world.borrow_once()) + u32::from(world.borrow_once())
        });
        world.alone();
        world.alone();
        let times = borrower.join().unwrap();
        assert_eq!(world.had(), 2 + times);
        assert!(world.borrow_once(), "nobody holds it");
    });
}

#[test]
fn threads_of_an_owner_and_a_borrower() {
    loom::model(|| {
        let world = World::new();
        let borrower = thread::spawn({
            let world = world.clone();
            move || u32::from(world.borrow_once())
        });
        let second = thread::spawn({
            let world = world.clone();
            move || world.among_others(SECOND)
        });
        let first = world.among_others(OWNER);
        let times = u32::from(first) + u32::from(second.join().unwrap());
        let times = times + borrower.join().unwrap();
        assert_eq!(world.had(), times);
    });
}
