//! Which way long pieces are copied to another CPU: through the caches or past them.
//!
//! Through them, each line of the ring is fetched from the reader before it is overwritten, and the reader
//! fetches it back; past them, it goes to memory and comes from there. Which is faster depends on how far the
//! CPUs are from each other: 13 against 10 GB/s on one machine, 2.4 against 12 on another. So it is tried.

use sys::sync::{AtomicU32, AtomicU64, Ordering};

/// Bytes over which one rate is taken: several times the largest ring, most of which may have been written the
/// other way.
const WINDOW: u64 = 16 << 20;
/// Windows of a trial; every other one goes past the caches.
const TRIAL: u32 = 6;
/// A window that took longer, nanoseconds, says how fast the programs are, or who else has had the CPU.
const WINDOW_NS: u64 = 50_000_000;
/// How long the outcome of a trial counts, nanoseconds: programs move between CPUs.
const KEPT_NS: u64 = 10_000_000_000;

/// What the last trial of this process came to, for connections that have had none: 1 is past the caches.
static LAST: AtomicU32 = AtomicU32::new(0);

/// What one sender has learnt. Its words are written under the lock of the sending direction.
#[derive(Debug, Default)]
pub(super) struct Copying {
    /// Bytes sent in the present window.
    bytes: AtomicU64,
    /// When it began, nanoseconds of the monotonic clock; 0: none has.
    began: AtomicU64,
    /// Windows of this trial that are over; [`TRIAL`]: it has an outcome.
    turn: AtomicU32,
    /// Until when the outcome counts, nanoseconds of the monotonic clock.
    until: AtomicU64,
    /// The best rate of this trial each way, bytes per microsecond; 0: not known.
    best: [AtomicU32; 2],
    /// The present way: 1 is past the caches. Counts in a window.
    way: AtomicU32,
}

impl Copying {
    /// For a connection that begins.
    pub(super) fn reset(&self) {
        for word in [&self.bytes, &self.began, &self.until] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.turn, &self.way, &self.best[0], &self.best[1]] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the next piece goes past the caches.
    #[inline]
    pub(super) fn past_caches(&self) -> bool {
        let way = if self.began.load(Ordering::Relaxed) == 0 { &LAST } else { &self.way };
        way.load(Ordering::Relaxed) != 0
    }

    /// `n` bytes more were sent to another CPU. `now`: reads the monotonic clock, nanoseconds.
    #[inline]
    pub(super) fn sent(&self, n: usize, now: impl FnOnce() -> u64) {
        let bytes = self.bytes.load(Ordering::Relaxed) + n as u64;
        if bytes < WINDOW {
            self.bytes.store(bytes, Ordering::Relaxed);
            return;
        }
        self.bytes.store(0, Ordering::Relaxed);
        self.window(bytes, now());
    }

    /// A window of `bytes` is over.
    #[cold]
    fn window(&self, bytes: u64, now: u64) {
        let began = self.began.swap(now.max(1), Ordering::Relaxed);
        if began == 0 {
            self.way.store(0, Ordering::Relaxed);
            return;
        }
        let turn = self.turn.load(Ordering::Relaxed);
        if turn >= TRIAL {
            if now >= self.until.load(Ordering::Relaxed) {
                self.turn.store(0, Ordering::Relaxed);
                self.best[0].store(0, Ordering::Relaxed);
                self.best[1].store(0, Ordering::Relaxed);
                self.way.store(0, Ordering::Relaxed);
            }
            return;
        }
        let took = now.saturating_sub(began).max(1);
        if took < WINDOW_NS {
            let rate = u32::try_from(bytes * 1000 / took).unwrap_or(u32::MAX);
            // The best of them: what disturbs a window only makes it slower.
            self.best[self.way.load(Ordering::Relaxed) as usize & 1]
                .fetch_max(rate, Ordering::Relaxed);
        }
        self.turn.store(turn + 1, Ordering::Relaxed);
        if turn + 1 < TRIAL {
            self.way.store((turn + 1) & 1, Ordering::Relaxed);
            return;
        }
        let [through, past] = [0, 1].map(|way: usize| self.best[way].load(Ordering::Relaxed));
        // Past the caches only where that is clearly better: what is read at once is read from a cache.
        let way = u32::from(u64::from(past) * 8 > u64::from(through) * 9);
        self.way.store(way, Ordering::Relaxed);
        self.until.store(now.saturating_add(KEPT_NS), Ordering::Relaxed);
        if through != 0 && past != 0 {
            LAST.store(way, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `bytes` on a machine with these rates (through the caches, past them; bytes per microsecond) from
    /// the time `now` on; answers how many of them went past the caches.
    fn send(copying: &Copying, bytes: u64, rates: [u64; 2], now: &mut u64) -> u64 {
        const PIECE: usize = 128 << 10;
        let mut past = 0;
        for _ in 0..bytes / PIECE as u64 {
            let way = usize::from(copying.past_caches());
            past += (PIECE * way) as u64;
            *now += PIECE as u64 * 1000 / rates[way];
            copying.sent(PIECE, || *now);
        }
        past
    }

    #[test]
    fn the_faster_way_is_taken() {
        for (rates, expected) in [([13_000, 10_000], false), ([2_400, 12_000], true)] {
            let (copying, mut now) = (Copying::default(), 7);
            send(&copying, WINDOW * (2 + u64::from(TRIAL)), rates, &mut now);
            let past = send(&copying, WINDOW, rates, &mut now);
            assert_eq!(past, if expected { WINDOW } else { 0 }, "{rates:?}");
        }
    }

    #[test]
    fn ways_that_differ_little_go_through_the_caches() {
        let (copying, mut now) = (Copying::default(), 7);
        send(&copying, WINDOW * (2 + u64::from(TRIAL)), [10_000, 10_500], &mut now);
        assert_eq!(send(&copying, WINDOW, [10_000, 10_500], &mut now), 0);
    }

    #[test]
    fn a_machine_that_changes_is_noticed_and_trials_cost_little() {
        let (copying, mut now) = (Copying::default(), 7);
        let (far, near) = ([2_000, 10_000], [10_000, 2_000]);
        send(&copying, WINDOW * 8, far, &mut now);
        // Until the outcome has been kept for long enough, and a trial.
        send(&copying, 10 * KEPT_NS, near, &mut now);
        let begin = now;
        let bytes = 20 * KEPT_NS;
        let past = send(&copying, bytes, near, &mut now);
        assert!(past > 0, "never tried again");
        assert!((now - begin) as f64 / (bytes as f64 / 10.0) < 1.02, "{past} of {bytes}");
    }

    #[test]
    fn slow_windows_say_nothing() {
        let (copying, mut now) = (Copying::default(), 7);
        // Slower than any machine: the program computes between its sends.
        send(&copying, WINDOW * 8, [100, 300], &mut now);
        assert_eq!(copying.best.each_ref().map(|b| b.load(Ordering::Relaxed)), [0, 0]);
        assert_eq!(send(&copying, WINDOW, [100, 300], &mut now), 0);
    }

    #[test]
    fn no_time_of_the_clock_is_too_large() {
        let copying = Copying::default();
        for now in [0, u64::MAX, 1, u64::MAX, u64::MAX, 0, 0, 5, u64::MAX, 3, 2, 1] {
            copying.sent(16 << 20, || now);
        }
    }
}
