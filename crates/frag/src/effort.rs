//! What a call has done, counted where it does more for more datagrams: for tests, which time would tell less.

use std::cell::Cell;

thread_local! {
    static DONE: Cell<u64> = const { Cell::new(0) };
}

/// So many slots, places or records were looked at, moved, made or given back.
pub(crate) fn count(n: usize) {
    DONE.with(|done| done.set(done.get() + n as u64));
}

/// What was counted since this was asked last.
#[cfg(not(loom))]
pub(crate) fn take() -> u64 {
    DONE.with(|done| done.replace(0))
}
