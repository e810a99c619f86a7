//! The atomics that shared words are made of; under `cfg(loom)` the ones that loom explores.
//!
//! Aliases, not re-exports: clippy looks through a re-export and would refuse it everywhere.

#[cfg(loom)]
use loom::sync::atomic;
#[cfg(not(loom))]
use std::sync::atomic;

pub use atomic::{Ordering, fence};

/// A 32-bit word that another thread or process may be writing.
#[expect(clippy::disallowed_types, reason = "this is where the allowed ones come from")]
pub type AtomicU32 = atomic::AtomicU32;
/// A 64-bit word that another thread or process may be writing.
#[expect(clippy::disallowed_types, reason = "this is where the allowed ones come from")]
pub type AtomicU64 = atomic::AtomicU64;
