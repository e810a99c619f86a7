//! The word of an offer: who offers, and who has taken it.
//!
//! A client's half plus one in the lower 32 bits; above it, once taken, the server's half plus one.
//! Client and server decide by compare and swap on this one word, so exactly one of them is right.

use sys::sync::{AtomicU64, Ordering};

/// The client half and the taker in an offer word.
pub(crate) fn split(word: u64) -> Option<(u32, Option<u32>)> {
    #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
    let (client, taker) = (word as u32, (word >> 32) as u32);
    client.checked_sub(1).map(|c| (c, taker.checked_sub(1)))
}

/// Puts the offer of `half` into a word that holds `old`; `false`: the word has changed.
pub(crate) fn publish(word: &AtomicU64, old: u64, half: u32) -> bool {
    // Release: our half's words before the word that leads to it. Pairs with `Board::find`.
    word.compare_exchange(old, u64::from(half) + 1, Ordering::Release, Ordering::Relaxed).is_ok()
}

/// Takes the offer of `client` for `server`; `false` if it was withdrawn or taken meanwhile.
#[must_use]
pub fn take(word: &AtomicU64, client: u32, server: u32) -> bool {
    let open = u64::from(client) + 1;
    let taken = open | (u64::from(server) + 1) << 32;
    // Release: our half's words before the word that leads to it. Pairs with `taken`.
    word.compare_exchange(open, taken, Ordering::AcqRel, Ordering::Relaxed).is_ok()
}

/// Takes our own offer back; `false` if it has been taken.
#[must_use]
pub fn withdraw(word: &AtomicU64, half: u32) -> bool {
    let open = u64::from(half) + 1;
    word.compare_exchange(open, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
        || split(word.load(Ordering::Acquire)).is_none_or(|(h, _)| h != half)
}

/// Clears the word of an offer of ours, taken or not.
pub fn clear(word: &AtomicU64, half: u32) {
    let now = word.load(Ordering::Relaxed);
    if split(now).is_some_and(|(h, _)| h == half) {
        let _ = word.compare_exchange(now, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Who has taken the offer of `half`.
#[must_use]
pub fn taken(word: &AtomicU64, half: u32) -> Option<u32> {
    // Acquire: the taker's half. Pairs with `take`.
    match split(word.load(Ordering::Acquire)) {
        Some((h, Some(taker))) if h == half => Some(taker),
        _ => None,
    }
}

#[cfg(all(test, loom))]
mod models;
