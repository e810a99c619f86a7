//! When to spin, and for how long.
//!
//! A sleep and a wake-up across CPUs cost tens of microseconds of latency, and the waker a third of
//! that; spinning costs the CPU that it holds. So a wait spins about as long as recent waits have
//! taken, gives up early where spinning has not been paying, and tries again now and then. A waiter
//! whose peer was last seen on the same CPU yields it instead, because there the peer can do nothing
//! while we look.

use sys::call;
use sys::sync::{AtomicU32, Ordering};

/// What one waiter has learnt.
#[derive(Debug, Default)]
pub struct Spin {
    /// Moving average of how long answered waits took, nanoseconds.
    took_ns: AtomicU32,
    /// Confidence that spinning pays: 0 to [`SCORE_MAX`].
    score: AtomicU32,
    /// Waits without a spin since the last attempt.
    idle: AtomicU32,
    /// Attempts that failed in a row; each doubles the pause.
    failed: AtomicU32,
}

const SCORE_MAX: u32 = 16;
const YIELD_NS: u64 = 4_000;
/// Looks before the clock is read, and about how long they take, nanoseconds.
const QUICK_LOOKS: u32 = 128;
const QUICK_NS: u32 = 500;
/// A yield that took this long found somebody who does not give the CPU back.
const HOGGED_NS: u64 = 400_000;

impl Spin {
    /// A fresh one, which believes in spinning until it learns better.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            took_ns: AtomicU32::new(20_000),
            score: AtomicU32::new(SCORE_MAX / 2),
            idle: AtomicU32::new(0),
            failed: AtomicU32::new(0),
        }
    }

    /// How long to spin now, nanoseconds; 0: do not.
    fn budget(&self, max_ns: u64) -> u64 {
        if max_ns == 0 {
            return 0;
        }
        if self.score.load(Ordering::Relaxed) == 0 {
            let idle = self.idle.load(Ordering::Relaxed) + 1;
            let pause = 8u32 << self.failed.load(Ordering::Relaxed).min(7);
            if idle < pause {
                self.idle.store(idle, Ordering::Relaxed);
                return 0;
            }
            self.idle.store(0, Ordering::Relaxed);
            return max_ns;
        }
        (u64::from(self.took_ns.load(Ordering::Relaxed)) * 4 + 20_000).min(max_ns)
    }

    fn hit(&self, took: u64) {
        let score = self.score.load(Ordering::Relaxed);
        self.score.store((score + 2).min(SCORE_MAX), Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
        let old = u64::from(self.took_ns.load(Ordering::Relaxed));
        let new = old - old / 8 + took.min(1_000_000) / 8;
        self.took_ns.store(u32::try_from(new).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// [`Self::hit`] after no time worth measuring; writes only what changes.
    #[inline]
    fn hit_at_once(&self) {
        if self.score.load(Ordering::Relaxed) < SCORE_MAX
            || self.took_ns.load(Ordering::Relaxed) > 2 * QUICK_NS
        {
            self.hit(u64::from(QUICK_NS));
        }
    }

    fn miss(&self) {
        let score = self.score.load(Ordering::Relaxed);
        if score == 0 {
            let failed = self.failed.load(Ordering::Relaxed);
            self.failed.store((failed + 1).min(8), Ordering::Relaxed);
        }
        self.score.store(score.saturating_sub(1), Ordering::Relaxed);
    }

    /// Looks until `ready` or until it does not pay. `peer_cpu`: where the peer was last seen.
    /// `true`: it became ready.
    pub fn until(
        &self,
        max_ns: u64,
        peer_cpu: impl Fn() -> u32,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        let budget = self.budget(max_ns);
        if budget == 0 {
            return false;
        }
        if peer_cpu() != call::cpu() {
            // The quickest answers come before a clock could be read twice.
            for look in 0..QUICK_LOOKS {
                if ready() {
                    self.hit_at_once();
                    return true;
                }
                if look % 4 == 3 {
                    std::hint::spin_loop();
                }
            }
        }
        let start = call::now_ns();
        let mut yielded = start;
        loop {
            let shared = peer_cpu() == call::cpu();
            if shared {
                call::sched_yield();
            } else {
                for _ in 0..24 {
                    std::hint::spin_loop();
                    if ready() {
                        self.hit(call::now_ns() - start);
                        return true;
                    }
                }
            }
            if ready() {
                self.hit(call::now_ns() - start);
                return true;
            }
            let now = call::now_ns();
            if shared && now - yielded > HOGGED_NS {
                break;
            }
            if now - start > budget {
                break;
            }
            if !shared && now - yielded > YIELD_NS {
                // Costs little when nobody waits for this CPU, and lets the peer run when it was
                // moved here after we last heard of it.
                call::sched_yield();
                let after = call::now_ns();
                if after - now > HOGGED_NS {
                    break;
                }
                yielded = after;
                continue;
            }
            if shared {
                yielded = now;
            }
        }
        if ready() {
            return true;
        }
        self.miss();
        false
    }
}
