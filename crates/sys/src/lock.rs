//! A lock on a shared word that survives the death of its owner.

use std::cell::Cell;

use crate::call;
use crate::sync::{AtomicU32, Ordering};

thread_local! {
    static TID: Cell<u32> = const { Cell::new(0) };
}

/// This thread's id, asked once.
#[must_use]
#[inline]
pub fn tid() -> u32 {
    TID.with(|tid| {
        if tid.get() == 0 {
            tid.set(call::gettid());
        }
        tid.get()
    })
}

/// To be called in a forked child: its thread id is another one.
pub fn forget_tid() {
    TID.with(|tid| tid.set(0));
}

/// The lock, held.
#[derive(Debug)]
pub struct Held<'a> {
    word: &'a AtomicU32,
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: what we did under the lock before the next owner. Pairs with `try_lock`.
        self.word.store(0, Ordering::Release);
    }
}

/// Takes the lock if it is free.
#[inline]
pub fn try_lock(word: &AtomicU32) -> Option<Held<'_>> {
    // Acquire: what the last owner did. Pairs with `Held::drop`.
    word.compare_exchange(0, tid(), Ordering::Acquire, Ordering::Relaxed).ok()?;
    Some(Held { word })
}

/// Takes the lock; `None` if this very thread holds it already (a signal handler has interrupted
/// it), in which case waiting would be for ever.
#[inline]
pub fn lock(word: &AtomicU32) -> Option<Held<'_>> {
    match try_lock(word) {
        Some(held) => Some(held),
        None => contended(word),
    }
}

#[cold]
fn contended(word: &AtomicU32) -> Option<Held<'_>> {
    let me = tid();
    let mut turns = 0u32;
    loop {
        let owner = word.load(Ordering::Relaxed);
        if owner == me {
            return None;
        }
        if owner == 0 {
            if let Some(held) = try_lock(word) {
                return Some(held);
            }
            continue;
        }
        turns += 1;
        if turns < 64 {
            std::hint::spin_loop();
            continue;
        }
        call::sched_yield();
        // The owner was killed inside: the words under the lock are each valid at any time, so
        // the lock is simply free.
        if turns.is_multiple_of(1024) && !call::thread_exists(owner) {
            let _ = word.compare_exchange(owner, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
