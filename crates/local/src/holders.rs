//! How many processes hold a server's connection that has not been attached: who attaches it has to be alone, because
//! what others send goes by TCP, of which the peer takes no byte for one of the stream any more.
//!
//! Apart from the rest of a connection, so that loom runs this very code: see `holders/models.rs`.
//!
//! ```text
//! attach: BUSY, fence           others hold it? then not now
//! fork:   one more holder, fence   BUSY? then wait for its end, before there is a child
//! ```

use sys::sync::{AtomicU32, Ordering, fence};

/// Takes a word that counts nobody; the holder that it counts then is this process. Answers its number. `next`: where to
/// look first, behind the one that was taken last, so that a fork with many connections does not look at all words for
/// each of them.
pub(crate) fn found(words: &[AtomicU32], next: &AtomicU32) -> Option<usize> {
    let is_taken = |at: &usize| {
        words.get(*at).is_some_and(|word| {
            word.load(Ordering::Relaxed) == 0
                && word.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
    };
    let first = next.load(Ordering::Relaxed) as usize;
    let at = (first..words.len()).chain(0..first.min(words.len())).find(is_taken)?;
    next.store(u32::try_from(at + 1).unwrap_or(0), Ordering::Relaxed);
    Some(at)
}

/// A process is about to be made that holds it too. The caller looks after this whether somebody is attaching it.
pub(crate) fn joins(word: &AtomicU32) {
    word.fetch_add(1, Ordering::Relaxed);
    // Either who attaches sees one more, or we see that he attaches. Pairs with `is_alone`.
    fence(Ordering::SeqCst);
}

/// Before a fork: has `more` count another process in the half that a connection has now, `half` being its word (a
/// number plus one, or 0), but not in the one that an earlier look has `counted`. Answers which it has, for a later look.
pub(crate) fn count_half(half: &AtomicU32, counted: u32, more: impl FnOnce(u32)) -> u32 {
    // Read once: what is answered is what was counted, also while another thread attaches the connection. Acquire: the
    // half's own count. Pairs with `Conn::try_attach`.
    let now = half.load(Ordering::Acquire);
    if now != 0 && now != counted {
        more(now);
    }
    now
}

/// This process will not use it any more.
pub(crate) fn leaves(word: &AtomicU32) {
    // Release: what it has sent and received. Pairs with `is_alone`.
    let _ = word.fetch_update(Ordering::Release, Ordering::Relaxed, |n| n.checked_sub(1));
}

/// A process that had left holds it again; `false`: nobody else did meanwhile, so the word may count another one.
pub(crate) fn comes_back(word: &AtomicU32) -> bool {
    let more = |n: u32| (n > 0).then(|| n + 1);
    word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
}

/// Whether this process is the only one, to be asked after it has said that it attaches.
pub(crate) fn is_alone(word: &AtomicU32) -> bool {
    // Pairs with `joins`.
    fence(Ordering::SeqCst);
    // Acquire: what others have sent and received. Pairs with `leaves`.
    word.load(Ordering::Acquire) <= 1
}

#[cfg(all(test, loom))]
mod models;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn words_are_looked_for_behind_the_last_one_and_all_of_them_are_found() {
        let words = [const { AtomicU32::new(0) }; 4];
        let next = AtomicU32::new(0);
        assert_eq!([(); 3].map(|()| found(&words, &next)), [Some(0), Some(1), Some(2)]);
        leaves(&words[0]);
        leaves(&words[1]);
        assert_eq!([(); 3].map(|()| found(&words, &next)), [Some(3), Some(0), Some(1)]);
        assert_eq!(found(&words, &next), None);
        leaves(&words[3]);
        assert_eq!([(); 2].map(|()| found(&words, &next)), [Some(3), None]);
    }
}
