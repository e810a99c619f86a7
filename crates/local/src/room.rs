//! The word by which those who wait for room in a ring tell its reader so, and when it is forgotten.
//!
//! Apart from the rest of a connection, so that loom runs this very code: see `room/models.rs`.
//!
//! ```text
//! waiter: notes where it waits   word := another   fence   room? then do not sleep
//! sender: word read              others? leave it  word still that? then 0
//! reader: head := new            fence             word? then ring
//! ```

use sys::sync::{AtomicU32, Ordering, full_fence};

/// Says that somebody waits for room, of which [`forget`] learns by other words, written before. Whoever calls
/// this looks for room once more before it sleeps.
pub(crate) fn want(word: &AtomicU32) {
    // Another value each time, and never 0: who forgets an earlier one does not forget this one. Release: where
    // we wait. Pairs with `forget`.
    let next = |seen: u32| Some(seen.wrapping_add(2) | 1);
    let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
    // Either the reader sees that we wait, or we see the room. Pairs with `is_wanted`.
    full_fence();
}

/// Asked by the reader, after it has made room: whether somebody waits for some.
#[inline]
pub(crate) fn is_wanted(word: &AtomicU32) -> bool {
    // Either the sender sees the room, or we see that it waits. Pairs with `want`.
    full_fence();
    word.load(Ordering::Relaxed) != 0
}

/// After a send that found room: nobody waits for some any more, unless `others` do. The caller holds the send
/// lock: what another one forgets meanwhile could make the word the same again.
#[inline]
pub(crate) fn forget(word: &AtomicU32, others: impl FnOnce() -> bool) {
    // Acquire: where those wait who have said so. Pairs with `want`; whoever says so from here on changes the
    // word, and it stays.
    let seen = word.load(Ordering::Acquire);
    if seen != 0 && !others() {
        let _ = word.compare_exchange(seen, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A sender looks who else waits, finds nobody, and somebody begins to before it has forgotten: that one
    /// sleeps until the reader rings.
    #[test]
    fn who_begins_to_wait_while_a_sender_looks_is_not_forgotten() {
        let word = AtomicU32::new(0);
        want(&word);
        forget(&word, || {
            want(&word);
            false
        });
        assert!(is_wanted(&word));
    }

    #[test]
    fn it_is_forgotten_when_nobody_else_waits() {
        let word = AtomicU32::new(u32::MAX);
        want(&word);
        assert!(is_wanted(&word), "0 is nobody");
        forget(&word, || true);
        assert!(is_wanted(&word));
        forget(&word, || false);
        assert!(!is_wanted(&word));
        forget(&word, || unreachable!("nobody waits"));
    }
}
