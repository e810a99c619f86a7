//! Bytes of files that went by a share: each vector counts for itself, as its tally does, so that no two write to one cache
//! line.

use sys::sync::{AtomicU64, Ordering};

use super::runtime;

/// As many as there can be vectors.
const VECTORS: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Moved(Box<[Stripe]>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    read: AtomicU64,
    written: AtomicU64,
}

impl Default for Moved {
    fn default() -> Self {
        Self((0..VECTORS).map(|_| Stripe::default()).collect())
    }
}

impl Moved {
    fn add(&self, of: impl Fn(&Stripe) -> &AtomicU64, bytes: u64) {
        // Its vector alone writes it.
        if let Some(stripe) = self.0.get(runtime::vector().0) {
            let counter = of(stripe);
            let sum = counter.load(Ordering::Relaxed).wrapping_add(bytes);
            counter.store(sum, Ordering::Relaxed);
        }
    }

    /// So many bytes were read, by this loop.
    pub(super) fn read(&self, bytes: u64) {
        self.add(|stripe| &stripe.read, bytes);
    }

    /// So many were written.
    pub(super) fn written(&self, bytes: u64) {
        self.add(|stripe| &stripe.written, bytes);
    }

    /// Bytes read and written so far.
    pub(super) fn sums(&self) -> (u64, u64) {
        let sum = |of: fn(&Stripe) -> &AtomicU64| {
            self.0.iter().fold(0u64, |sum, s| sum.wrapping_add(of(s).load(Ordering::Relaxed)))
        };
        (sum(|stripe| &stripe.read), sum(|stripe| &stripe.written))
    }
}
