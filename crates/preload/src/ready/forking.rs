//! Sets over a fork, while other threads use them: the child has lists that are whole, and that nobody holds.

use std::cell::Cell;

use super::*;

thread_local! {
    /// The set whose list this thread has locked last, for a fork. They hang together by `Set::held_before`: another
    /// thread may be closing one meanwhile, so that it is not in the table any more.
    static HELD: Cell<u64> = const { Cell::new(0) };
    /// This thread's number when it forked last: in the child it has another one.
    static FORKS: Cell<u32> = const { Cell::new(0) };
}

/// How long a handler that forks waits for threads that change lists, altogether: for ever if they wait for what it has
/// interrupted. Nanoseconds.
const CHANGING_NS: u64 = 50_000_000;

/// Before a fork: no other thread is in the middle of changing a list.
pub(crate) fn hold_sets(w: &World) {
    let (deadline, by_handler) = (call::now_ns() + CHANGING_NS, handler::may_run());
    FORKS.set(lock::tid());
    fds::each(|_, entry| {
        let Entry::Set(set) = entry else { return };
        set.may_be_used_elsewhere(w);
        let word = set.members.word();
        // Not where this very thread holds it: for another descriptor of the same set, or because a handler that forks
        // has interrupted it. Whoever else holds it may wait for what the handler has interrupted.
        let mut held = if by_handler { lock::try_lock(word) } else { lock::lock(word) };
        while by_handler
            && held.is_none()
            && word.load(Ordering::Relaxed) != lock::tid()
            && call::now_ns() < deadline
        {
            call::sched_yield();
            held = lock::try_lock(word);
        }
        if let Some(held) = held {
            set.held_before.store(HELD.replace(set.id()), Ordering::Relaxed);
            std::mem::forget(held);
        }
    });
}

/// After it, in either process: [`hold_sets`] in reverse. In the child this thread has another number by now.
pub(crate) fn let_sets_go() {
    let mut at = HELD.replace(0);
    while at != 0 {
        // SAFETY: sets are never unmapped.
        let set = unsafe { &*(at as *const Set) };
        at = set.held_before.load(Ordering::Relaxed);
        // Release: pairs with whoever locks it next.
        set.members.word().store(0, Ordering::Release);
    }
}

impl Set {
    /// In a forked child: who waits on it in the parent does not do so here.
    pub(crate) fn forget_other_threads(&self) {
        // A list that could not be had before the fork is held by nobody here.
        let word = self.members.word();
        if word.load(Ordering::Relaxed) != FORKS.get() {
            word.store(0, Ordering::Release);
        }
        self.waiting.store(left::waits_on(self), Ordering::SeqCst);
        self.settling.store(0, Ordering::SeqCst);
    }
}
