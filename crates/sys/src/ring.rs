//! A ring of bytes between two processes: cursors that are checked, and copies.
//!
//! The producer owns the bytes, `tail` and the place of the ring; the consumer owns `head`. Each
//! side believes its own cursor and checks the other's before it uses it, so that a peer that
//! writes nonsense costs its own connection and nothing else.

use crate::sync::{AtomicU64, Ordering};

/// The peer's cursor cannot be: more is in the ring than it holds, or less than nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// Bytes between the cursors.
///
/// # Errors
///
/// If that is more than the capacity.
#[inline]
pub fn used(head: u64, tail: u64, capacity: usize) -> Result<usize, Corrupt> {
    let distance = tail.wrapping_sub(head);
    if distance <= capacity as u64 {
        #[expect(clippy::cast_possible_truncation, reason = "at most the capacity")]
        return Ok(distance as usize);
    }
    Err(Corrupt)
}

/// Room for the producer, whose own cursor is `tail`.
///
/// # Errors
///
/// If the consumer's cursor cannot be.
#[inline]
pub fn room(consumer_head: &AtomicU64, tail: u64, capacity: usize) -> Result<usize, Corrupt> {
    // Acquire: the consumer has finished reading what it gave back. Pairs with `give_back`.
    let head = consumer_head.load(Ordering::Acquire);
    Ok(capacity - used(head, tail, capacity)?)
}

/// Bytes for the consumer, whose own cursor is `head`; not checked against a capacity yet, because
/// the place of the ring may only be read after this.
#[inline]
pub fn tail(producer_tail: &AtomicU64) -> u64 {
    // Acquire: the bytes, and the place of the ring, before the count of them. Pairs with `publish`.
    producer_tail.load(Ordering::Acquire)
}

/// Shows the consumer what was written.
#[inline]
pub fn publish(tail: &AtomicU64, value: u64) {
    // Release: the bytes before the count of them. Pairs with `tail`.
    stop();
    tail.store(value, Ordering::Release);
    stop();
}

/// In a build with delays a thread may stop here.
#[inline(always)]
fn stop() {
    #[cfg(not(loom))]
    crate::delays::here();
}

/// Gives room back to the producer.
#[inline]
pub fn give_back(head: &AtomicU64, value: u64) {
    // Release: we are done reading before the room is free. Pairs with `room`.
    stop();
    head.store(value, Ordering::Release);
    stop();
}

/// One stretch of a ring as up to two pieces: pointer offset and length.
#[inline]
#[must_use]
pub fn pieces(at: u64, n: usize, capacity: usize) -> [(usize, usize); 2] {
    #[expect(clippy::cast_possible_truncation, reason = "masked to the capacity")]
    let start = at as usize & (capacity - 1);
    let first = n.min(capacity - start);
    [(start, first), (0, n - first)]
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
