//! Which way long pieces are copied to another CPU: through the caches or past them.
//!
//! Through them, each line of the ring is fetched from the reader before it is overwritten, and the reader
//! fetches it back; past them, it goes to memory and comes from there. Which is faster depends on how far the
//! CPUs are from each other: 13 against 10 GB/s on one machine, 2.4 against 12 on another. So it is tried, by
//! all connections of a process together, because most are too short to learn it alone (ADR 18).

use sys::sync::{AtomicU32, AtomicU64, Ordering};

/// Bytes over which one rate is taken.
const WINDOW: u64 = 4 << 20;
/// Windows of a trial: two of each way in turn. The first of them begins while bytes of the other way are in
/// the ring, and does not count.
const TRIAL: u32 = 12;
/// A window that took longer, nanoseconds, says how fast the programs are, or who else has had the CPU.
const WINDOW_NS: u64 = 12_000_000;
/// How long the outcome of a trial counts, nanoseconds: programs move between CPUs.
const KEPT_NS: u64 = 10_000_000_000;

/// What this process knows.
static TRIED: Trial = Trial::new();

/// A trial, and what came of it. Its words are changed by all senders of a process; where two of them meet,
/// the trial is a window longer or shorter.
#[derive(Debug)]
struct Trial {
    /// Windows of this trial that are over; [`TRIAL`]: it has an outcome.
    turn: AtomicU32,
    /// The present way: 0 through the caches, 1 past them.
    way: AtomicU32,
    /// What the last trial came to.
    outcome: AtomicU32,
    /// The best rate of this trial each way, bytes per microsecond; 0: not known.
    best: [AtomicU32; 2],
    /// Until when the outcome counts, nanoseconds of the monotonic clock.
    until: AtomicU64,
}

impl Trial {
    const fn new() -> Self {
        Self {
            turn: AtomicU32::new(0),
            way: AtomicU32::new(0),
            outcome: AtomicU32::new(0),
            best: [AtomicU32::new(0), AtomicU32::new(0)],
            until: AtomicU64::new(0),
        }
    }

    /// A window is over at `now`. `rate`, if it says anything: bytes per microsecond and the way of all of it.
    fn window(&self, rate: Option<(u32, u32)>, now: u64) {
        let turn = self.turn.load(Ordering::Relaxed);
        if turn >= TRIAL {
            // A clock may stand before what another said, in a child with a clock of its own.
            if self.until.load(Ordering::Relaxed).wrapping_sub(now).wrapping_sub(1) >= KEPT_NS {
                self.best[0].store(0, Ordering::Relaxed);
                self.best[1].store(0, Ordering::Relaxed);
                self.way.store(0, Ordering::Relaxed);
                self.turn.store(0, Ordering::Relaxed);
            }
            return;
        }
        if let Some((rate, way)) = rate {
            // The best of them: what disturbs a window only makes it slower.
            self.best[way as usize & 1].fetch_max(rate, Ordering::Relaxed);
        }
        let turn = turn + 1;
        if turn < TRIAL {
            self.way.store((turn / 2) & 1, Ordering::Relaxed);
        } else {
            let [through, past] = [0, 1].map(|way: usize| self.best[way].load(Ordering::Relaxed));
            if through != 0 && past != 0 {
                // Past the caches only where that is clearly better: what is read at once is read from a cache.
                let outcome = u32::from(u64::from(past) * 8 > u64::from(through) * 9);
                self.outcome.store(outcome, Ordering::Relaxed);
            }
            self.way.store(self.outcome.load(Ordering::Relaxed), Ordering::Relaxed);
            self.until.store(now.saturating_add(KEPT_NS), Ordering::Relaxed);
        }
        self.turn.store(turn, Ordering::Relaxed);
    }
}

/// The present window of one sender. Its words are written under the lock of the sending direction.
#[derive(Debug, Default)]
pub(super) struct Copying {
    /// Bytes sent in it.
    bytes: AtomicU64,
    /// When it began, nanoseconds of the monotonic clock; 0: none has.
    began: AtomicU64,
    /// What the reader had read then.
    read: AtomicU64,
    /// The way of the window before it plus one; 0: there was none.
    before: AtomicU32,
    /// Its way plus one.
    way: AtomicU32,
}

impl Copying {
    /// For a connection that begins.
    pub(super) fn reset(&self) {
        for word in [&self.bytes, &self.began, &self.read] {
            word.store(0, Ordering::Relaxed);
        }
        self.before.store(0, Ordering::Relaxed);
        self.way.store(0, Ordering::Relaxed);
    }

    /// Whether the next piece goes past the caches.
    #[inline]
    pub(super) fn past_caches(&self) -> bool {
        TRIED.way.load(Ordering::Relaxed) != 0
    }

    /// `n` bytes more were sent to another CPU. `at`: what the reader has read, as it says, and the monotonic
    /// clock, nanoseconds.
    #[inline]
    pub(super) fn sent(&self, n: usize, at: impl FnOnce() -> (u64, u64)) {
        let bytes = self.bytes.load(Ordering::Relaxed) + n as u64;
        if bytes < WINDOW && self.began.load(Ordering::Relaxed) != 0 {
            self.bytes.store(bytes, Ordering::Relaxed);
            return;
        }
        self.bytes.store(0, Ordering::Relaxed);
        let (read, now) = at();
        self.window(&TRIED, read, now);
    }

    /// A window is over, and another begins.
    #[cold]
    fn window(&self, trial: &Trial, read: u64, now: u64) {
        let began = self.began.swap(now.max(1), Ordering::Relaxed);
        let read = read.wrapping_sub(self.read.swap(read, Ordering::Relaxed));
        let way = self.way.load(Ordering::Relaxed);
        if began != 0 {
            // What was read, not what was written: a ring takes some of that in, and gives it to the window
            // that follows. Twice as much as was written nobody can have read.
            let whole = way != 0 && way == self.before.load(Ordering::Relaxed);
            let took = now.checked_sub(began).filter(|ns| (1..WINDOW_NS).contains(ns));
            let rate = took
                .filter(|_| whole && read <= 2 * WINDOW)
                .and_then(|ns| u32::try_from(read * 1000 / ns).ok())
                .map(|rate| (rate, way - 1));
            trial.window(rate, now);
            self.before.store(way, Ordering::Relaxed);
        }
        self.way.store(trial.way.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: u64 = 4 << 20;
    const PIECE: u64 = 128 << 10;

    /// A sender, its ring, and a reader.
    struct Machine {
        trial: Trial,
        copying: Copying,
        /// Bytes per microsecond, through the caches and past them: of the sender and of the reader.
        rates: [[u64; 2]; 2],
        /// Nanoseconds.
        now: u64,
        /// The way of each piece in the ring.
        ring: std::collections::VecDeque<usize>,
        /// Bytes taken from the first piece, and all that were.
        taken: u64,
        read: u64,
    }

    impl Machine {
        fn new(rates: [[u64; 2]; 2]) -> Self {
            Self {
                trial: Trial::new(),
                copying: Copying::default(),
                rates,
                now: 7,
                ring: std::collections::VecDeque::new(),
                taken: 0,
                read: 0,
            }
        }

        /// Lets the reader read for `ns`.
        fn pass(&mut self, mut ns: u64) {
            self.now += ns;
            while let Some(way) = self.ring.front().copied() {
                let rate = self.rates[1][way];
                let n = (ns * rate / 1000).min(PIECE - self.taken);
                ns = ns.saturating_sub(n * 1000 / rate);
                self.taken += n;
                self.read += n;
                if self.taken < PIECE {
                    return;
                }
                self.taken = 0;
                self.ring.pop_front();
            }
        }

        /// Sends `bytes`; answers how many of them went past the caches.
        fn send(&mut self, bytes: u64) -> u64 {
            let mut past = 0;
            for _ in 0..bytes / PIECE {
                while self.ring.len() as u64 * PIECE >= RING {
                    self.pass(1000);
                }
                let way = self.trial.way.load(Ordering::Relaxed) as usize;
                past += PIECE * way as u64;
                self.pass(PIECE * 1000 / self.rates[0][way]);
                self.ring.push_back(way);
                let bytes = self.copying.bytes.load(Ordering::Relaxed) + PIECE;
                self.copying.bytes.store(bytes % WINDOW, Ordering::Relaxed);
                if bytes >= WINDOW || self.copying.began.load(Ordering::Relaxed) == 0 {
                    self.copying.bytes.store(0, Ordering::Relaxed);
                    self.copying.window(&self.trial, self.read, self.now);
                }
            }
            past
        }
    }

    #[test]
    fn the_way_by_which_more_arrives_is_taken() {
        for (sender, reader, expected) in [
            ([17_000, 11_000], [15_000, 12_000], false),
            ([2_400, 12_000], [2_400, 12_000], true),
            // The sender is quicker by one way, the reader by the other: the slower of both counts.
            ([11_000, 14_000], [13_000, 10_000], false),
            ([14_000, 11_000], [8_000, 13_000], true),
            ([10_000, 10_500], [20_000, 20_000], false),
        ] {
            let mut machine = Machine::new([sender, reader]);
            machine.send(WINDOW * u64::from(TRIAL + 2));
            let past = machine.send(WINDOW);
            assert_eq!(past, if expected { WINDOW } else { 0 }, "{sender:?} {reader:?}");
        }
    }

    #[test]
    fn short_connections_learn_together() {
        let mut machine = Machine::new([[2_400, 12_000]; 2]);
        for _ in 0..TRIAL {
            machine.send(WINDOW * 5 / 2);
            machine.copying.reset();
        }
        assert_eq!(machine.send(WINDOW), WINDOW);
    }

    #[test]
    fn a_machine_that_changes_is_noticed_and_trials_cost_little() {
        let mut machine = Machine::new([[2_000, 10_000]; 2]);
        machine.send(WINDOW * 20);
        machine.rates = [[10_000, 2_000]; 2];
        // Until the outcome has been kept for long enough, and a trial.
        machine.send(3 * KEPT_NS);
        let begin = machine.now;
        let bytes = 20 * KEPT_NS;
        let past = machine.send(bytes);
        assert!(past > 0, "never tried again");
        assert!((machine.now - begin) as f64 / (bytes as f64 / 10.0) < 1.02, "{past} of {bytes}");
    }

    #[test]
    fn slow_windows_say_nothing() {
        let mut machine = Machine::new([[100, 300]; 2]);
        machine.send(WINDOW * 30);
        assert_eq!(machine.trial.best.each_ref().map(|b| b.load(Ordering::Relaxed)), [0, 0]);
        assert_eq!(machine.send(WINDOW), 0);
    }

    #[test]
    fn one_way_without_a_rate_changes_nothing() {
        let trial = Trial::new();
        for turn in 0..TRIAL {
            trial.window(((turn / 2) & 1 == 1).then_some((5, 1)), 1);
        }
        assert_eq!(trial.way.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn no_time_and_no_count_is_too_large() {
        let (trial, copying) = (Trial::new(), Copying::default());
        for at in [0, u64::MAX, 1, u64::MAX, u64::MAX, 0, 0, 5, u64::MAX, 3, 2, 1] {
            for read in [at, 0, u64::MAX] {
                copying.window(&trial, read, at);
            }
        }
        // Behind an outcome of the far future there is a new trial.
        for now in 1..100 {
            copying.window(&trial, 0, now);
        }
        assert!(trial.until.load(Ordering::Relaxed) <= 100 + KEPT_NS);
    }
}
