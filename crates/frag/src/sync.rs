//! The few shared words of this crate; under `cfg(loom)` those that loom explores.

#[cfg(loom)]
use loom::sync::{self, atomic};
#[cfg(not(loom))]
use std::sync::{self, atomic};

pub(crate) use atomic::Ordering;
#[cfg(loom)]
pub(crate) use loom::sync::MutexGuard;
#[cfg(not(loom))]
pub(crate) use std::sync::{MutexGuard, PoisonError, TryLockError};
#[cfg(loom)]
pub(crate) use std::sync::{PoisonError, TryLockError};
pub(crate) use sync::{Arc, Mutex};

/// Words that several cores count in.
#[expect(clippy::disallowed_types, reason = "this is where the allowed one comes from")]
pub(crate) type AtomicU32 = atomic::AtomicU32;
#[expect(clippy::disallowed_types, reason = "this is where the allowed one comes from")]
pub(crate) type AtomicU64 = atomic::AtomicU64;
