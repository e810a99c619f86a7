//! A lock on a shared word that survives the death of its owner.

use std::cell::Cell;
use std::sync::atomic::AtomicPtr;

use crate::sync::{AtomicU32, Ordering};
use crate::{call, handler};

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

/// Address of libc's own word for "this process has one thread"; null: unknown, as on other libcs.
static SINGLE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// Finds out how libc counts threads. To be called once, early.
pub fn watch_threads() {
    // SAFETY: a name with its zero byte. glibc exports this word since 2.32, for this purpose.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    SINGLE.store(at.cast(), Ordering::Relaxed);
}

/// Whether this process is known to have one thread only.
#[inline]
fn alone() -> bool {
    let at = SINGLE.load(Ordering::Relaxed);
    // SAFETY: found by `watch_threads`, and libc is never unloaded; written only by a thread that begins
    // or ends another one.
    !at.is_null() && unsafe { at.read_volatile() } != 0
}

/// [`lock`] for a word that only this process uses (`own`). While it has one thread, nobody can come
/// between but a signal handler, which is done before we go on: no locked instruction is needed.
#[inline]
pub fn lock_own(word: &AtomicU32, own: bool) -> Option<Held<'_>> {
    if own && alone() && word.load(Ordering::Relaxed) == 0 {
        word.store(tid(), Ordering::Relaxed);
        return Some(Held { word });
    }
    lock(word)
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

/// Frees the lock if this thread has left the call that held it, by `siglongjmp` out of a signal handler: as if it
/// had been killed there. To be called where this thread can only hold it because of that, or because a handler
/// that runs now has interrupted it.
#[inline]
pub fn free_if_left(word: &AtomicU32) {
    drop(take_if_left(word));
}

/// As [`free_if_left`], for what is to be put right before it is free: the lock, held by the caller now.
#[inline]
pub fn take_if_left(word: &AtomicU32) -> Option<Held<'_>> {
    (word.load(Ordering::Relaxed) == tid() && !handler::may_run()).then(|| Held { word })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_holds_it_is_not_kept_waiting_for_itself() {
        watch_threads();
        let word = AtomicU32::new(0);
        let held = lock_own(&word, true);
        assert!(held.is_some());
        assert_eq!(word.load(Ordering::Relaxed), tid());
        assert!(lock_own(&word, true).is_none());
        assert!(lock_own(&word, false).is_none());
        drop(held);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_a_handler_has_interrupted_is_not_free() {
        static WORD: AtomicU32 = AtomicU32::new(0);
        extern "C" fn handler(_signal: i32) {
            free_if_left(&WORD);
        }
        // SAFETY: all zeros is a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as *const () as usize;
        // SAFETY: a valid action, and a signal that nothing else here uses.
        unsafe { libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()) };
        let held = lock(&WORD);
        // SAFETY: this thread lives.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGURG) };
        assert_eq!(WORD.load(Ordering::Relaxed), tid());
        drop(held);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn what_was_left_behind_is_free() {
        let word = AtomicU32::new(0);
        std::mem::forget(lock(&word));
        assert!(lock(&word).is_none());
        let again = take_if_left(&word);
        assert!(again.is_some() && lock(&word).is_none());
        std::mem::forget(again);
        free_if_left(&word);
        assert!(lock(&word).is_some());
        // Nor is that of others.
        let theirs = AtomicU32::new(tid() + 1);
        free_if_left(&theirs);
        assert_eq!(theirs.load(Ordering::Relaxed), tid() + 1);
    }

    #[test]
    fn two_threads_take_turns() {
        watch_threads();
        let (word, inside) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let _held = lock_own(&word, true).expect("not held by this thread");
                        assert_eq!(inside.swap(1, Ordering::Relaxed), 0);
                        inside.store(0, Ordering::Relaxed);
                    }
                });
            }
        });
    }
}
