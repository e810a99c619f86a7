//! A histogram of latencies: fixed memory, 1.6 % resolution.

use std::time::Duration;

/// Buckets for each power of two.
const STEPS: usize = 64;
const STEP_BITS: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = STEPS * (64 - STEP_BITS as usize + 1);

/// How long things took.
#[derive(Clone, Debug)]
pub struct Latency {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0 }
    }
}

fn bucket(ns: u64) -> usize {
    let small = usize::try_from(ns).unwrap_or(usize::MAX);
    if small < STEPS {
        return small;
    }
    let shift = ns.ilog2() - STEP_BITS;
    let step = usize::try_from(ns >> shift).unwrap_or(usize::MAX) - STEPS;
    (shift as usize + 1) * STEPS + step
}

fn lower_edge(bucket: usize) -> u64 {
    let (row, step) = (bucket / STEPS, (bucket % STEPS) as u64);
    match row {
        0 => step,
        _ => (STEPS as u64 + step) << (row - 1),
    }
}

impl Latency {
    /// Adds one.
    pub fn record(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(ns)] += 1;
        self.total += 1;
    }

    /// Adds all of another.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
        self.total += other.total;
    }

    /// How many were added.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The time that `permille` of a thousand did not exceed, in nanoseconds; 0 if there are none.
    #[must_use]
    pub fn quantile_ns(&self, permille: u64) -> u64 {
        let rank = (self.total * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return lower_edge(bucket);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, Latency, bucket, lower_edge};
    use std::time::Duration;

    #[test]
    fn each_time_falls_into_a_bucket_within_resolution() {
        for ns in [0, 1, 63, 64, 65, 127, 128, 1000, 123_456_789, u64::MAX] {
            let edge = lower_edge(bucket(ns));
            assert!(bucket(ns) < BUCKETS);
            assert!(edge <= ns && ns - edge <= ns / 64, "{ns} is put at {edge}");
        }
    }

    #[test]
    fn quantiles_of_a_hundred() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile_ns(500), 0);
        (1..=50).for_each(|ns| latency.record(Duration::from_nanos(ns)));
        (1..=50).for_each(|_| latency.record(Duration::from_nanos(1 << 20)));
        assert_eq!(latency.quantile_ns(10), 1);
        assert_eq!(latency.quantile_ns(500), 50);
        assert_eq!(latency.quantile_ns(990), 1 << 20);
        assert_eq!(latency.count(), 100);
    }
}
