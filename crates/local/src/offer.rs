//! The word of an offer: who offers, and who has taken it.
//!
//! A client's half plus one in the lower 32 bits; above it, once taken, the server's half plus one.
//! Client and server decide by compare and swap on this one word, so exactly one of them is right. Any process of the
//! user can write there, though. A client whose word was overwritten asks the halves, which only their owners write:
//!
//! ```text
//! server: takes the word, TAKEN in its half, fence, does the client doubt? then its decision counts
//! client: DOUBT in its half, fence, has anybody TAKEN? then attached, else TCP
//! ```

use sys::abi::{half_flags, half_state};
use sys::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// What the word of an offer of ours says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Not taken.
    Open,
    /// Taken by this half.
    Taken(u32),
    /// It is not about our offer any more: somebody has overwritten it.
    Lost,
}

/// What the word of the offer of `half` says.
pub(crate) fn status(word: &AtomicU64, half: u32) -> Status {
    // Acquire: the taker's half. Pairs with `take`.
    match split(word.load(Ordering::Acquire)) {
        Some((h, taker)) if h == half => taker.map_or(Status::Open, Status::Taken),
        _ => Status::Lost,
    }
}

/// Server: says in its own half's flags that it has taken an offer, which the word does not say for ever. What the
/// client believes is looked at after this.
pub(crate) fn tell_taken(flags: &AtomicU32) {
    flags.fetch_or(half_flags::TAKEN, Ordering::Release);
    // Either the client sees it, or we see that it doubts. Pairs with `begin_doubt`.
    fence(Ordering::SeqCst);
}

/// Client: its word was overwritten, so it looks at all halves after this.
pub(crate) fn begin_doubt(state: &AtomicU32) {
    state.store(half_state::DOUBT, Ordering::Relaxed);
    // Pairs with `tell_taken`.
    fence(Ordering::SeqCst);
}

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

/// Takes our own offer back; `false` if it has been taken, or if the word was overwritten, in which case nobody knows
/// by it.
#[must_use]
pub fn withdraw(word: &AtomicU64, half: u32) -> bool {
    let open = u64::from(half) + 1;
    word.compare_exchange(open, 0, Ordering::AcqRel, Ordering::Acquire).is_ok()
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
    match status(word, half) {
        Status::Taken(taker) => Some(taker),
        Status::Open | Status::Lost => None,
    }
}

#[cfg(all(test, loom))]
mod models;
