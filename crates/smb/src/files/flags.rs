//! What there is to look at before reading and writing, without a lock.

use std::sync::atomic::{AtomicU8, Ordering};

const LOCKED: u8 = 1;
const CACHED: u8 = 2;

/// Says whether a READ or WRITE may skip the shard. One for each open file, shared by all opens of it.
///
/// Set while the shard is locked. A READ or WRITE that is in progress when a lock is granted has come before
/// it. When the file is closed by all the handle may come to speak of another file: then a look at the shard
/// is in vain, and nothing worse.
#[derive(Debug, Default)]
pub struct Flags(AtomicU8);

impl Flags {
    /// There is a byte-range lock on the file: ask [`Shard::check_io`](super::Shard::check_io) before READ and
    /// WRITE.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        // Acquire: pairs with the Release of `set`, so that who sees a lock released sees what was written
        // before it was.
        self.0.load(Ordering::Acquire) & LOCKED != 0
    }

    /// Several may cache what they have read: call [`Shard::contend`](super::Shard::contend) before WRITE, and, if it is
    /// so then, when all is written: a lease may have been granted in between.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.0.load(Ordering::Acquire) & CACHED != 0
    }

    /// Neither of the two: WRITE may go ahead.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    pub(super) fn set(&self, locked: bool, cached: bool) {
        let bits = if locked { LOCKED } else { 0 } | if cached { CACHED } else { 0 };
        self.0.store(bits, Ordering::Release);
    }
}
