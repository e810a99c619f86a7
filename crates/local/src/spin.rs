//! When to spin, and for how long.
//!
//! A sleep and a wake-up across CPUs cost tens of microseconds of latency, and the waker a third of
//! that; spinning costs the CPU that it holds. So a wait spins about as long as recent waits have
//! taken, gives up early where spinning has not been paying, and tries again now and then. A waiter
//! whose peer was last seen on the same CPU yields it instead, because there the peer can do nothing
//! while we look. Where others compete for the CPU nobody spins: a yield gives a whole slice away, and
//! a sleeper is woken ahead of them.

use sys::call;
use sys::sync::{AtomicU32, AtomicU64, Ordering};

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
/// A yield that took less than this came back without a switch: nobody else can run, or the
/// scheduler holds that it is still our turn, and would for as long as we asked.
const BARREN_NS: u64 = 1_500;

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

    /// Looks until `ready` or until it does not pay. `peer_cpu`: where the peer was last seen; `peer_moved`: a
    /// count of the bytes that it has written and read. `true`: it became ready.
    pub fn until(
        &self,
        max_ns: u64,
        peer_cpu: impl Fn() -> u32,
        peer_moved: impl Fn() -> u64,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        let budget = self.budget(max_ns);
        if budget == 0 || CROWD.is_near() {
            return false;
        }
        if !is_here(peer_cpu()) {
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
        // When the clock was read last, and when we last gave the CPU to others.
        let (mut looked, mut yielded) = (start, start);
        loop {
            let shared = is_here(peer_cpu());
            let mut found = false;
            let moved = if shared { peer_moved() } else { 0 };
            if shared {
                call::sched_yield();
            } else {
                for _ in 0..24 {
                    std::hint::spin_loop();
                    found = ready();
                    if found {
                        break;
                    }
                }
            }
            found = found || ready();
            let now = call::now_ns();
            // Found or not: who was away for so long has competitors, or a peer that copies a lot.
            let away = now - looked;
            let hogged = shared && away > HOGGED_NS && is_hogged(away, peer_moved(), moved);
            if hogged {
                CROWD.met(now);
            }
            if found {
                if !hogged {
                    CROWD.parted();
                }
                self.hit(now - start);
                return true;
            }
            if hogged || now - start > budget || shared && now - looked < BARREN_NS {
                break;
            }
            looked = now;
            if !shared && now - yielded > YIELD_NS {
                // Costs little when nobody waits for this CPU, and lets the peer run when it was
                // moved here after we last heard of it.
                let moved = peer_moved();
                call::sched_yield();
                yielded = call::now_ns();
                let away = yielded - now;
                if away > HOGGED_NS && is_hogged(away, peer_moved(), moved) {
                    CROWD.met(yielded);
                    break;
                }
                looked = yielded;
            }
        }
        if ready() {
            return true;
        }
        self.miss();
        false
    }
}

/// A CPU that is not known.
pub const UNKNOWN: u32 = u32::MAX;

/// Whether that CPU is ours. Where it is not known neither is the same as the other.
#[must_use]
pub fn is_here(cpu: u32) -> bool {
    cpu != UNKNOWN && cpu == call::cpu()
}

/// Who else wants our CPUs. A yield to a program that computes costs a whole slice of the scheduler's,
/// milliseconds, where a sleep would have been woken ahead of it; so who has met one does not spin for a
/// while, longer each time.
#[derive(Debug, Default)]
pub struct Crowd {
    /// Until when no wait spins, nanoseconds of the monotonic clock; 0: they may.
    until: AtomicU64,
    /// How often it was met, less how often it was not; each doubles the time.
    times: AtomicU32,
}

/// That of this process.
static CROWD: Crowd = Crowd { until: AtomicU64::new(0), times: AtomicU32::new(0) };

/// How long nobody spins after the first meeting, nanoseconds, and how often that doubles: up to 1.3 s,
/// so that a slice lost to one attempt is less than a hundredth of the time.
const CROWD_NS: u64 = 5_000_000;
const CROWD_DOUBLINGS: u32 = 8;

impl Crowd {
    /// Whether nobody is to spin now.
    #[inline]
    pub fn is_near(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        until != 0 && {
            let near = call::now_ns() < until;
            if !near {
                self.until.store(0, Ordering::Relaxed);
            }
            near
        }
    }

    /// A wait has lost its CPU to somebody else at `now`.
    pub fn met(&self, now: u64) {
        let times = self.times.load(Ordering::Relaxed);
        self.times.store((times + 1).min(CROWD_DOUBLINGS), Ordering::Relaxed);
        self.until.store(now + (CROWD_NS << times.min(CROWD_DOUBLINGS)), Ordering::Relaxed);
    }

    /// A wait has had its answer, and lost its CPU to nobody else.
    #[inline]
    pub fn parted(&self) {
        let times = self.times.load(Ordering::Relaxed);
        if times > 0 {
            self.times.store(times - 1, Ordering::Relaxed);
        }
    }
}

/// Whether somebody else has had the CPU for most of `away` nanoseconds, in which the peer has come from
/// `before` to `after` bytes.
fn is_hogged(away: u64, after: u64, before: u64) -> bool {
    // What a peer needs to fill or to empty the largest ring, at 2 bytes a nanosecond; it may say anything.
    const MOST: u64 = 4 << 20;
    away > HOGGED_NS + after.wrapping_sub(before).min(MOST) / 2
}

#[cfg(test)]
mod tests {
    use super::{AtomicU32, AtomicU64, CROWD_DOUBLINGS, CROWD_NS, Crowd, Ordering};

    #[test]
    fn a_peer_that_copies_is_told_from_a_competitor() {
        let before = u64::MAX - 5;
        let after = |bytes| before.wrapping_add(bytes);
        assert!(!super::is_hogged(600_000, after(4 << 20), before));
        // A short answer after somebody else's slice; nothing at all; a ring emptied before that slice.
        assert!(super::is_hogged(3_000_000, after(1000), before));
        assert!(super::is_hogged(600_000, before, before));
        assert!(super::is_hogged(3_300_000, after(4 << 20), before));
        // A count that went back, or was forged.
        assert!(super::is_hogged(3_000_000, 0, 7));
    }

    fn nobody() -> Crowd {
        Crowd { until: AtomicU64::new(0), times: AtomicU32::new(0) }
    }

    fn pause(crowd: &Crowd, now: u64) -> u64 {
        crowd.met(now);
        crowd.until.load(Ordering::Relaxed) - now
    }

    #[test]
    fn each_meeting_doubles_the_pause_up_to_a_bound() {
        let crowd = nobody();
        for times in 0..20 {
            assert_eq!(pause(&crowd, 7), CROWD_NS << times.min(CROWD_DOUBLINGS));
        }
    }

    #[test]
    fn an_answer_without_a_competitor_halves_it() {
        let crowd = nobody();
        assert_eq!(pause(&crowd, 0), CROWD_NS);
        assert_eq!(pause(&crowd, 0), CROWD_NS * 2);
        for _ in 0..3 {
            crowd.parted();
        }
        assert_eq!(pause(&crowd, 0), CROWD_NS);
    }

    #[test]
    fn a_pause_that_is_over_is_forgotten() {
        let crowd = nobody();
        assert!(!crowd.is_near());
        crowd.until.store(u64::MAX, Ordering::Relaxed);
        assert!(crowd.is_near());
        crowd.until.store(1, Ordering::Relaxed);
        assert!(!crowd.is_near());
        assert_eq!(crowd.until.load(Ordering::Relaxed), 0);
    }
}
