//! The watchdog build: doorbells that are swallowed on purpose, so that a wake-up is lost.

use sys::sync::{AtomicU32, Ordering};

static EVERY: AtomicU32 = AtomicU32::new(0);
static COUNT: AtomicU32 = AtomicU32::new(0);

/// From now on each `every`th doorbell of this process is not sent; 0: all are.
pub fn swallow(every: u32) {
    EVERY.store(every, Ordering::Relaxed);
}

/// Whether this doorbell is one of those.
pub(crate) fn swallows() -> bool {
    let every = EVERY.load(Ordering::Relaxed);
    every != 0 && COUNT.fetch_add(1, Ordering::Relaxed) % every == every - 1
}
