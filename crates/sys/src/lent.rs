//! Locks that another process may borrow: who takes them without a locked instruction, and who borrows them, find out
//! about each other.
//!
//! Apart from [`crate::lock`], so that loom runs this very code: see `lent/models.rs`. The owner's threads exclude each
//! other by the word of each lock; a borrower writes to none of them, but to one word for all.
//!
//! ```text
//! owner:    word := me, fence, lent? then word := 0 and wait
//! borrower: lent := me, fence, a word? then lent := 0 and not now
//! ```
//!
//! The owner's fence would cost more than all the rest, and it is hardly ever needed: the borrower, who has time, has
//! the kernel make one in all threads of those who have asked for it.

use crate::sync::{AtomicU32, Ordering, fence};

/// The owner's fence, where the borrower makes it.
#[inline]
fn light_fence() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// Owner, whose only thread this is, and who has asked for fences: takes the lock if it is free, and not lent.
#[inline]
pub(crate) fn take_alone(word: &AtomicU32, lent: &AtomicU32, me: u32) -> bool {
    if word.load(Ordering::Relaxed) != 0 {
        return false;
    }
    word.store(me, Ordering::Relaxed);
    // Either we see that it is lent, or the borrower sees that we hold it. Pairs with `borrow`.
    light_fence();
    // Acquire: what the last borrower did. Pairs with `give_back`.
    if lent.load(Ordering::Acquire) == 0 {
        return true;
    }
    word.store(0, Ordering::Release);
    false
}

/// Owner, who has the word: whether the lock is not lent. If it is, the caller frees the word, and waits.
#[inline]
pub(crate) fn is_ours(lent: &AtomicU32) -> bool {
    // As in `take_alone`. The locked instruction that has taken the word is such a fence where it is called so.
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    fence(Ordering::SeqCst);
    lent.load(Ordering::Acquire) == 0
}

/// Borrower: takes all of these locks if they are free, and none else. `fence_all`: a fence in all threads of the owner;
/// `false`: there was none.
pub(crate) fn borrow(
    lent: &AtomicU32,
    words: &[&AtomicU32],
    me: u32,
    fence_all: impl FnOnce() -> bool,
) -> bool {
    if lent.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return false;
    }
    fence(Ordering::SeqCst);
    // Acquire: what the owner did under the lock. Pairs with the store of who frees it.
    let free = fence_all() && words.iter().all(|word| word.load(Ordering::Acquire) == 0);
    if !free {
        give_back(lent);
    }
    free
}

/// Borrower: the owner may go on.
pub(crate) fn give_back(lent: &AtomicU32) {
    // Release: what we did. Pairs with `take_alone` and `is_ours`.
    lent.store(0, Ordering::Release);
}

#[cfg(all(test, loom))]
mod models;
