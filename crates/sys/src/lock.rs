//! A lock on a shared word that survives the death of its owner.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicPtr};

use crate::sync::{AtomicU32, Ordering};
use crate::{call, delays, foreign, handler, lent, pids};

mod owner;

thread_local! {
    static TID: Cell<u32> = const { Cell::new(0) };
}

/// Bits of an id of a thread: as many as the largest has that the kernel gives (`PID_MAX_LIMIT`).
const TID_BITS: u32 = 22;

/// Who this thread is to the locks, asked once: its id, and above it a mark of the namespace that this is of. Processes of
/// two namespaces may share a lock over a fork, and each may have a thread of the same id.
#[must_use]
#[inline]
pub fn tid() -> u32 {
    TID.with(|tid| {
        if tid.get() == 0 {
            tid.set(call::gettid() | pids::mark(pids::own()) << TID_BITS);
        }
        tid.get()
    })
}

/// To be called in a forked child: its thread id is another one, and may be of another namespace.
pub fn forget_tid() {
    pids::forked();
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
        delays::here();
        self.word.store(0, Ordering::Release);
        delays::here();
    }
}

/// Takes the lock if it is free.
#[inline]
pub fn try_lock(word: &AtomicU32) -> Option<Held<'_>> {
    // Acquire: what the last owner did. Pairs with `Held::drop`.
    delays::here();
    word.compare_exchange(0, tid(), Ordering::Acquire, Ordering::Relaxed).ok()?;
    delays::here();
    Some(Held { word })
}

/// Address of libc's own word for "this process has one thread"; null: unknown, as on other libcs.
static SINGLE: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// Finds out how libc counts threads, and asks for fences that borrowers will have made. To be called once, early.
pub fn watch_threads() {
    FENCED.store(call::ask_for_fences().is_ok(), Ordering::Relaxed);
    // SAFETY: a name with its zero byte. glibc exports this word since 2.32, for this purpose.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    SINGLE.store(at.cast(), Ordering::Relaxed);
}

/// Whether this process is known to have one thread only.
#[must_use]
#[inline]
pub fn alone() -> bool {
    let at = SINGLE.load(Ordering::Relaxed);
    // SAFETY: found by `watch_threads`, and libc is never unloaded; written only by a thread that begins
    // or ends another one.
    !at.is_null() && unsafe { at.read_volatile() } != 0
}

/// Whether this process has asked the kernel for fences that others have it make: see [`crate::lent`]. What it forks has
/// asked too.
static FENCED: AtomicBool = AtomicBool::new(false);

/// [`lock_of`] for a word that only this process uses (`own`). While it has one thread, nobody can come
/// between but a signal handler, which is done before we go on, and a borrower, who looks after us: no locked
/// instruction is needed.
#[inline]
pub fn lock_own<'a>(word: &'a AtomicU32, lent: &AtomicU32, own: bool) -> Option<Held<'a>> {
    if own && alone() && FENCED.load(Ordering::Relaxed) && lent::take_alone(word, lent, tid()) {
        return Some(Held { word });
    }
    lock_of(word, lent)
}

/// [`lock`] for a word that others may have [borrowed](borrow), as `lent` says. `None` also if it is not free and lies in
/// a [`foreign`] mapping: there it may never be.
#[inline]
pub fn lock_of<'a>(word: &'a AtomicU32, lent: &AtomicU32) -> Option<Held<'a>> {
    let held = match try_lock(word) {
        Some(held) => held,
        None if foreign::holds(word) => return None,
        None => contended(word)?,
    };
    if lent::is_ours(lent) { Some(held) } else { lock_lent(word, lent, held) }
}

/// [`try_lock`] likewise.
#[inline]
pub fn try_lock_of<'a>(word: &'a AtomicU32, lent: &AtomicU32) -> Option<Held<'a>> {
    try_lock(word).filter(|_| lent::is_ours(lent))
}

#[cold]
fn lock_lent<'a>(word: &'a AtomicU32, lent: &AtomicU32, held: Held<'a>) -> Option<Held<'a>> {
    let mut held = held;
    if foreign::holds(word) {
        return None;
    }
    loop {
        // The borrower may wait for nobody who waits for it.
        drop(held);
        wait_until_free(lent)?;
        held = lock(word)?;
        if lent::is_ours(lent) {
            return Some(held);
        }
    }
}

/// Locks of another process, borrowed.
#[derive(Debug)]
pub struct Borrowed<'a> {
    lent: &'a AtomicU32,
}

impl Drop for Borrowed<'_> {
    fn drop(&mut self) {
        lent::give_back(self.lent);
    }
}

/// Takes these locks, of which `lent` says that they are, if all of them are free. Never waits for them.
#[must_use]
pub fn borrow<'a>(lent: &'a AtomicU32, words: &[&AtomicU32]) -> Option<Borrowed<'a>> {
    free_if_dead(lent, lent.load(Ordering::Relaxed));
    // Without the fence nothing is known of an owner that takes its locks without locked instructions.
    lent::borrow(lent, words, tid(), || call::fence_all().is_ok()).then_some(Borrowed { lent })
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
    loop {
        wait_until_free(word)?;
        if let Some(held) = try_lock(word) {
            return Some(held);
        }
    }
}

/// Waits for the owner; `None` if that is this very thread.
fn wait_until_free(word: &AtomicU32) -> Option<()> {
    let me = tid();
    let mut turns = 0u32;
    loop {
        let owner = word.load(Ordering::Relaxed);
        if owner == 0 {
            return Some(());
        }
        if owner == me {
            return None;
        }
        turns += 1;
        if turns < 64 {
            std::hint::spin_loop();
            continue;
        }
        call::sched_yield();
        if turns.is_multiple_of(1024) {
            free_if_dead(word, owner);
        }
    }
}

/// Waits until no other thread of this process has the lock, for so many nanoseconds at most: `false`, one has it still. Not for
/// this very thread, nor for one that has ended, nor for those of other processes.
#[inline]
pub fn outlast(word: &AtomicU32, patience_ns: u64) -> bool {
    // Acquire: what the last owner did. Pairs with `Held::drop`.
    word.load(Ordering::Acquire) == 0 || outlast_owner(word, patience_ns)
}

#[cold]
fn outlast_owner(word: &AtomicU32, patience_ns: u64) -> bool {
    let deadline = call::now_ns().saturating_add(patience_ns);
    let mut known = None;
    for turns in 1u32.. {
        let owner = word.load(Ordering::Acquire);
        if owner == 0 || owner == tid() {
            return true;
        }
        // By and by once more: it may have ended inside.
        if known != Some(owner) || turns.is_multiple_of(64) {
            if !owner::is_ours(owner) {
                return true;
            }
            known = Some(owner);
        }
        if call::now_ns() > deadline {
            return false;
        }
        // Whoever has a lower priority than this thread runs only while this one sleeps.
        if turns < 64 { call::sched_yield() } else { call::pause_ms(1) }
    }
    true
}

/// An owner that was killed inside: the words under the lock are each valid at any time, so the lock is simply free.
fn free_if_dead(word: &AtomicU32, owner: u32) {
    if owner != 0 && !owner::lives(owner) {
        let _ = word.compare_exchange(owner, 0, Ordering::Relaxed, Ordering::Relaxed);
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
        let lent = AtomicU32::new(0);
        let held = lock_own(&word, &lent, true);
        assert!(held.is_some());
        assert_eq!(word.load(Ordering::Relaxed), tid());
        assert!(lock_own(&word, &lent, true).is_none());
        assert!(lock_own(&word, &lent, false).is_none());
        assert!(borrow(&lent, &[&word]).is_none());
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
        let [word, lent, inside] = [const { AtomicU32::new(0) }; 3];
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let _held = lock_own(&word, &lent, true).expect("not held by this thread");
                        assert_eq!(inside.swap(1, Ordering::Relaxed), 0);
                        inside.store(0, Ordering::Relaxed);
                    }
                });
            }
        });
    }

    #[test]
    fn others_of_ours_are_waited_for() {
        /// More than any machine takes for what is waited for.
        const LONG_NS: u64 = 60_000_000_000;
        let word = &AtomicU32::new(0);
        assert!(outlast(word, 0));
        let own = lock(word);
        assert!(outlast(word, LONG_NS), "it is the caller's");
        drop(own);
        let done = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            scope.spawn(move || {
                let _held = lock(word);
                tell.send(()).expect("it is waited for");
                call::pause_ms(100);
                done.store(true, Ordering::Relaxed);
            });
            told.recv().expect("it says so");
            assert!(!outlast(word, 0), "it has it still");
            assert!(outlast(word, LONG_NS) && done.load(Ordering::Relaxed));
        });
        // Who has ended, and who is none of ours: the first process of all.
        let gone = std::thread::spawn(tid).join().expect("no panic");
        for owner in [gone, tid() >> TID_BITS << TID_BITS | 1] {
            assert!(outlast(&AtomicU32::new(owner), LONG_NS), "{owner:#x}");
        }
    }

    #[test]
    fn what_a_child_holds_that_was_killed_and_not_waited_for_is_free() {
        let word = &words()[0];
        // SAFETY: the child uses words and system calls only, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            forget_tid();
            std::mem::forget(lock(word));
            call::raise(libc::SIGKILL);
        }
        while word.load(Ordering::Acquire) == 0 {
            call::sched_yield();
        }
        assert!(lock(word).is_some());
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
    }

    #[test]
    fn who_has_the_same_number_elsewhere_is_somebody_else() {
        let theirs = tid() ^ (1 << TID_BITS);
        let word = AtomicU32::new(theirs);
        free_if_left(&word);
        free_if_dead(&word, theirs);
        // Nor is anything known of one that nobody has here.
        let gone = theirs | ((1 << TID_BITS) - 1);
        let other = AtomicU32::new(gone);
        free_if_dead(&other, gone);
        assert_eq!([&word, &other].map(|word| word.load(Ordering::Relaxed)), [theirs, gone]);
    }

    /// Words in memory that a forked child has too.
    fn words() -> &'static [AtomicU32] {
        let common: &'static crate::common::Common = Box::leak(Box::default());
        common.words().expect("memory")
    }

    #[test]
    fn what_is_lent_is_waited_for_and_what_is_held_is_not_lent() {
        watch_threads();
        let [word, lent] = [const { AtomicU32::new(0) }; 2];
        let held = lock_of(&word, &lent);
        assert!(borrow(&lent, &[&word]).is_none());
        drop(held);
        let borrowed = borrow(&lent, &[&word]);
        assert!(borrowed.is_some());
        // By ourselves.
        assert!(lock_own(&word, &lent, true).is_none() && try_lock_of(&word, &lent).is_none());
        assert_eq!(word.load(Ordering::Relaxed), 0);
        drop(borrowed);
        assert!(lock_own(&word, &lent, true).is_some());
        // By one that has been killed.
        lent.store(tid() | ((1 << TID_BITS) - 1), Ordering::Relaxed);
        assert!(lock_of(&word, &lent).is_some());
    }

    /// The owner has one thread, and takes its lock without a locked instruction; another process borrows it.
    #[test]
    fn an_owner_and_a_borrower_are_never_both_inside() {
        /// How often each is inside at least, if it comes to that before the owner gives up.
        const OWNED: u32 = 200_000;
        const BORROWED: u32 = 500;
        const GIVES_UP_NS: u64 = 20_000_000_000;
        watch_threads();
        let [word, lent, inside, times, ended, ..] = words() else { unreachable!() };
        let can_borrow = call::fence_all().is_ok();
        // SAFETY: the child uses words and system calls only, and ends.
        let owner = unsafe { libc::fork() };
        if owner == 0 {
            TID.with(|tid| tid.set(0));
            let fenced = FENCED.load(Ordering::Relaxed);
            let (start, mut wrong, mut owned) = (call::now_ns(), 0, 0);
            let is_enough = |owned| {
                let borrowed = !can_borrow || times.load(Ordering::Relaxed) >= BORROWED;
                owned >= OWNED && borrowed
            };
            while !is_enough(owned) && call::now_ns() - start < GIVES_UP_NS {
                // `lock_own` of a process that has one thread, which a child of a test may not believe of itself.
                while !(fenced && lent::take_alone(word, lent, tid())) {
                    let Some(held) = lock_of(word, lent) else { continue };
                    std::mem::forget(held);
                    break;
                }
                wrong += u32::from(inside.swap(1, Ordering::Relaxed) != 0);
                inside.store(0, Ordering::Relaxed);
                drop(Held { word });
                owned = owned.saturating_add(1);
            }
            ended.store(1, Ordering::Release);
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(wrong > 0)) };
        }
        while ended.load(Ordering::Acquire) == 0 {
            if let Some(_borrowed) = borrow(lent, &[word]) {
                assert_eq!(inside.swap(1, Ordering::Relaxed), 0);
                times.fetch_add(1, Ordering::Relaxed);
                inside.store(0, Ordering::Relaxed);
            }
            // Locks are borrowed now and then. Who does nothing else leaves the owner no moment: it waits until nothing is
            // lent, and a borrower's fence takes far longer than the pause between two of its attempts.
            for _ in 0..1_000 {
                std::hint::spin_loop();
            }
        }
        let mut status = 0;
        // SAFETY: our child, and a valid place.
        assert_eq!(unsafe { libc::waitpid(owner, &raw mut status, 0) }, owner);
        assert_eq!(status, 0, "both were inside");
        if can_borrow {
            assert!(times.load(Ordering::Relaxed) > 0, "never borrowed");
        }
    }
}
