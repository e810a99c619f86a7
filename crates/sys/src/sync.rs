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

/// A fence that also orders earlier stores before later loads, as `fence(SeqCst)` does.
///
/// On x86-64 any locked instruction is one; on the stack's own line it takes half the time of the
/// `mfence` that the compiler would choose.
#[inline]
pub fn full_fence() {
    #[cfg(not(loom))]
    crate::delays::here();
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: the top of our own stack keeps its value; flags may change, as the block allows.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0");
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    fence(Ordering::SeqCst);
}
