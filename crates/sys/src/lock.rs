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

/// A value behind such a lock, for one process.
#[derive(Debug, Default)]
pub struct Guarded<T> {
    word: AtomicU32,
    value: std::cell::UnsafeCell<T>,
}

// SAFETY: the value is reached under the lock only.
unsafe impl<T: Send> Sync for Guarded<T> {}

/// A value, held.
#[derive(Debug)]
pub struct Value<'a, T> {
    _held: Held<'a>,
    value: &'a std::cell::UnsafeCell<T>,
}

impl<T> std::ops::Deref for Value<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held for as long as this lives.
        unsafe { &*self.value.get() }
    }
}

impl<T> std::ops::DerefMut for Value<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the same, and we are borrowed mutably.
        unsafe { &mut *self.value.get() }
    }
}

impl<T> Guarded<T> {
    /// Puts a value behind a lock.
    pub const fn new(value: T) -> Self {
        Self { word: AtomicU32::new(0), value: std::cell::UnsafeCell::new(value) }
    }

    /// Takes the lock; `None` if this thread holds it already (a signal handler).
    pub fn lock(&self) -> Option<Value<'_, T>> {
        let held = lock(&self.word)?;
        Some(Value { _held: held, value: &self.value })
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<Value<'_, T>> {
        let held = try_lock(&self.word)?;
        Some(Value { _held: held, value: &self.value })
    }

    /// The word of the lock, for those who hold it over `fork`.
    pub fn word(&self) -> &AtomicU32 {
        &self.word
    }
}
