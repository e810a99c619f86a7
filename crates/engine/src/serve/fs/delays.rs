//! How long the file system of a share keeps those waiting who call it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sys::sync::AtomicU64;

use super::super::log;

/// A call that takes so long has waited for something: where all is in memory, it takes some microseconds. And so long a
/// scheduler seldom leaves a thread without a CPU.
const LONG: Duration = Duration::from_millis(5);

/// So long after the last of those no loop calls the file system.
const WARY: Duration = Duration::from_secs(10);

/// What is known of the delays of a file system.
#[derive(Debug)]
pub(super) struct Delays {
    began: Instant,
    /// Until when calls are made by who may wait: milliseconds from `began`, 0 for no such time.
    until: AtomicU64,
    /// The log has a line about it.
    told: AtomicBool,
}

impl Delays {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), until: AtomicU64::new(0), told: AtomicBool::new(false) }
    }

    /// Whether it has kept somebody waiting of late.
    pub(super) fn are_long(&self) -> bool {
        // It hurts nobody to hear of it late.
        self.until.load(Ordering::Relaxed) != 0 && self.are_long_at(Instant::now())
    }

    fn are_long_at(&self, now: Instant) -> bool {
        self.until.load(Ordering::Relaxed) > self.milliseconds(now)
    }

    /// A call has begun and ended. `share`: for the log.
    pub(super) fn note(&self, from: Instant, to: Instant, share: &str) {
        let took = to.saturating_duration_since(from);
        if took < LONG {
            return;
        }
        self.until.store(self.milliseconds(to + WARY).max(1), Ordering::Relaxed);
        if !self.told.swap(true, Ordering::Relaxed) {
            log::say(format_args!(
                "share {share}: a call to its file system took {} ms; where that happens, threads make the calls that \
                 loops make otherwise, and others need not wait",
                took.as_millis()
            ));
        }
    }

    fn milliseconds(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.began).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_long_call_is_remembered_for_a_while() {
        let delays = Delays::new();
        let at = |ms| delays.began + Duration::from_millis(ms);
        let call = |from, to| delays.note(at(from), at(to), "files");
        call(0, 4);
        assert!(!delays.are_long() && !delays.are_long_at(at(4)));
        call(10, 15);
        assert!(delays.are_long_at(at(15)) && delays.are_long_at(at(10_014)));
        // Calls that are short say nothing of the next one.
        call(20, 21);
        assert!(delays.are_long_at(at(10_014)) && !delays.are_long_at(at(10_015)));
        // From the end of the one that took long.
        call(20_000, 60_000);
        assert!(delays.are_long_at(at(69_999)) && !delays.are_long_at(at(70_000)));
    }
}
