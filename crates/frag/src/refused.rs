//! Datagrams that were refused or given up, so that the rest of them takes no memory.
//!
//! Without it each later fragment of a refused datagram would begin it anew, and under overload most of
//! the memory would hold tails that nothing completes.

/// Entries of a set: one cache line.
const WAYS: usize = 8;
/// Sets at least: of all buckets, and of one.
const SETS_MIN: u64 = 64;
const BUCKET_SETS_MIN: u64 = 4;
/// Time is kept in units of 2^18 ns, a quarter of a millisecond.
const UNIT: u32 = 18;
/// An entry may be so many units ahead of who looks: a quarter of a second.
const AHEAD_MAX: u32 = 1000;

/// After so long without any, all are forgotten.
const FORGOTTEN_NS: u64 = 4_000_000_000;

/// A set-associative memory of hashes and when they were last seen.
#[derive(Debug)]
pub(crate) struct Refused {
    sets: Vec<[u64; WAYS]>,
    /// When something was last added or came, nanoseconds.
    last: Option<u64>,
}

impl Refused {
    /// For several times as many datagrams as `memory_bytes` can hold, of which this is one of `buckets`.
    pub(crate) fn new(memory_bytes: u64, buckets: u32) -> Self {
        Self { sets: vec![[0; WAYS]; Self::sets(memory_bytes, buckets)], last: None }
    }

    fn sets(memory_bytes: u64, buckets: u32) -> usize {
        let all = (memory_bytes / (512 * WAYS as u64)).max(SETS_MIN);
        let sets = (all / u64::from(buckets)).clamp(BUCKET_SETS_MIN, 8192);
        usize::try_from(sets).unwrap_or(64).next_power_of_two()
    }

    /// What it takes, bytes.
    pub(crate) fn bytes(memory_bytes: u64, buckets: u32) -> u64 {
        (Self::sets(memory_bytes, buckets) * size_of::<[u64; WAYS]>()) as u64
    }

    #[expect(clippy::cast_possible_truncation, reason = "times are compared modulo 2^32 units")]
    fn emit(hash: u64, now: u64) -> u64 {
        // 0 is no entry.
        hash & 0xffff_ffff_0000_0000 | u64::from(((now >> UNIT) as u32).max(1))
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low bits; the tag is the high ones")]
    fn set(&mut self, hash: u64) -> &mut [u64; WAYS] {
        let at = hash as usize & (self.sets.len() - 1);
        &mut self.sets[at]
    }

    /// Age of an entry, nanoseconds.
    fn age(entry: u64, now: u64) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32 units")]
        let age = ((now >> UNIT) as u32).wrapping_sub(entry as u32);
        // Clocks of two cores may differ a little.
        if age > u32::MAX - AHEAD_MAX { 0 } else { u64::from(age) << UNIT }
    }

    /// Whether there may be any: without pressure there is nothing to look for.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.last.is_some()
    }

    pub(crate) fn add(&mut self, hash: u64, now: u64) {
        self.last = Some(now);
        let set = self.set(hash);
        let oldest = |set: &[u64; WAYS]| {
            (0..WAYS)
                .max_by_key(|at| if set[*at] == 0 { u64::MAX } else { Self::age(set[*at], now) })
        };
        let same = set.iter().position(|entry| entry >> 32 == hash >> 32 && *entry != 0);
        let at = same.or_else(|| oldest(set)).unwrap_or(0);
        set[at] = Self::emit(hash, now);
    }

    /// How long ago something came for a datagram that was refused, nanoseconds; `None`: it was not. It is
    /// remembered for as long as something comes within `life_ns`.
    pub(crate) fn came(&mut self, hash: u64, now: u64, life_ns: u64) -> Option<u64> {
        if now.saturating_sub(self.last?) > FORGOTTEN_NS {
            self.last = None;
            return None;
        }
        let set = self.set(hash);
        let entry = set.iter_mut().find(|entry| **entry != 0 && **entry >> 32 == hash >> 32)?;
        let age = Self::age(*entry, now);
        *entry = if age <= life_ns { Self::emit(hash, now) } else { 0 };
        self.last = Some(now);
        Some(age)
    }

    /// Entries in use.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn entries(&self) -> usize {
        self.sets.iter().flatten().filter(|entry| **entry != 0).count()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn lives_while_something_comes() {
        let mut refused = Refused::new(1 << 20, 1);
        let hash = 0x1234_5678_9abc_def0;
        refused.add(hash, 1000 * MS);
        for i in 1..10 {
            let age = refused.came(hash, (1000 + i * 3) * MS, 4 * MS).expect("still there");
            assert!((2 * MS..=4 * MS).contains(&age), "{age} ns");
        }
        assert!(refused.came(hash, 1100 * MS, 4 * MS).is_some_and(|age| age > 4 * MS));
        assert_eq!(refused.came(hash, 1100 * MS, 4 * MS), None);
        assert_eq!(refused.entries(), 0);
    }

    #[test]
    fn others_in_the_same_set_are_others() {
        let mut refused = Refused::new(0, 1);
        refused.add(7 << 32, 1000 * MS);
        assert_eq!(refused.came(8 << 32, 1000 * MS, 10 * MS), None);
        assert_eq!(refused.came(7 << 32 | 1, 1000 * MS, 10 * MS), None, "another set");
        refused.add(7 << 32, 1001 * MS);
        assert_eq!(refused.entries(), 1, "the same once more takes no place");
        // A hash of nothing but zeros is one like any other.
        refused.add(0, 0);
        assert_eq!(refused.came(0, 1, 10 * MS), Some(0));
    }

    /// Or one core would forget what another has just refused, and think that fragments are slow.
    #[test]
    fn a_clock_that_is_behind_sees_an_entry_as_new() {
        let mut refused = Refused::new(0, 1);
        refused.add(7 << 32, 1000 * MS);
        assert_eq!(refused.came(7 << 32, 990 * MS, 10 * MS), Some(0));
        assert_eq!(refused.entries(), 1);
    }

    #[test]
    fn an_entry_is_old_when_its_time_has_come_round() {
        let mut refused = Refused::new(0, 1);
        let now = (1 << (32 + UNIT)) - MS;
        refused.add(7 << 32, now);
        let age = refused.came(7 << 32, now + 5 * MS, 10 * MS).unwrap();
        assert!((4 * MS..6 * MS).contains(&age), "{age} ns");
    }

    #[test]
    fn a_full_set_forgets_the_oldest() {
        let mut refused = Refused::new(0, 1);
        for i in 0..=WAYS as u64 {
            refused.add((i + 1) << 32, (i + 1) * 10 * MS);
        }
        let now = 100 * MS;
        assert_eq!(refused.came(1 << 32, now, 1000 * MS), None);
        assert!((1..=WAYS as u64).all(|i| refused.came((i + 1) << 32, now, 1000 * MS).is_some()));
    }
}
