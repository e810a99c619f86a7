//! What the buckets of a table for all cores know together: who uses how much in all of them, and what datagrams are like.
//!
//! A source's datagrams are spread over all buckets. Who looked at one bucket only would see one or two of each source
//! there, and take a flood for one sender among others. So what a source holds is counted in words that all share, once
//! when a datagram begins and once when it ends, and so are the datagrams that a flow has begun.

use crate::key::{HashKey, Key};
use crate::pace::Pace;
use crate::source::{FLOWS, SOURCES, flow};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// See the module. All of it is counts and hints, which order nothing else: each access is relaxed.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Memory that each source's datagrams hold or that is set aside for them, bytes; and above it, how many those are: in
    /// one word, since each more would be written to by all cores.
    used: Box<[AtomicU64]>,
    /// Datagrams that flows have ever begun; wraps.
    begun: Box<[AtomicU32]>,
    secret: HashKey,
    /// A bit for each bucket in which there may be something that can go for others.
    stocked: Box<[AtomicU64]>,
    /// The source that was found to use most, and above it how often that may be believed: see [`Self::heaviest`].
    top: AtomicU64,
    /// Likewise, that which was found to have most datagrams.
    busiest: AtomicU64,
    /// What all used then.
    total: AtomicU64,
    /// Of [`Pace`], what some core has found: for those that have not learned it themselves.
    cost: AtomicU64,
    gap: AtomicU64,
}

/// Looking at all sources takes a microsecond; in between, one that shrinks may be taken for the heaviest.
const BELIEVED: u64 = 8;
const TOP_BITS: u32 = 16;
/// Bits of a source's word that are bytes. Whoever uses more than that, 1 TiB, seems to have datagrams that he has not:
/// then others may go for the wrong one, and nothing else.
const BYTES_BITS: u32 = 40;
/// What a datagram adds to the word beside its bytes.
const DATAGRAM: u64 = 1 << BYTES_BITS;

impl Shares {
    /// What they take for so many buckets, bytes.
    pub(crate) fn bytes_for(buckets: u32) -> u64 {
        let words = SOURCES + buckets.div_ceil(u64::BITS) as usize;
        // With the counts of the `Arc` around it.
        let counts = 2 * size_of::<usize>();
        let all = size_of::<Self>() + counts + words * size_of::<AtomicU64>();
        (all + FLOWS * size_of::<AtomicU32>()) as u64
    }

    pub(crate) fn new(secret: HashKey, buckets: u32) -> Self {
        Self {
            used: (0..SOURCES).map(|_| AtomicU64::new(0)).collect(),
            begun: (0..FLOWS).map(|_| AtomicU32::new(0)).collect(),
            secret,
            stocked: (0..buckets.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect(),
            top: AtomicU64::new(0),
            busiest: AtomicU64::new(0),
            total: AtomicU64::new(0),
            cost: AtomicU64::new(0),
            gap: AtomicU64::new(0),
        }
    }

    pub(crate) fn secret(&self) -> &HashKey {
        &self.secret
    }

    /// A datagram begins in a bucket. Most of the time that is known.
    #[inline]
    pub(crate) fn stock(&self, bucket: u32) {
        let (word, bit) = self.place(bucket);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// There is nothing in it, says who has it locked.
    pub(crate) fn is_bare(&self, bucket: u32) {
        let (word, bit) = self.place(bucket);
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    fn place(&self, bucket: u32) -> (&AtomicU64, u64) {
        (&self.stocked[(bucket / u64::BITS) as usize], 1 << (bucket % u64::BITS))
    }

    /// Buckets in which there may be something: each once, from some on.
    pub(crate) fn stocked(&self, from: usize) -> impl Iterator<Item = usize> {
        let (words, bits) = (self.stocked.len(), u64::BITS as usize);
        let behind = u64::MAX << (from % bits);
        (0..=words).flat_map(move |n| {
            let at = (from / bits + n) % words;
            let word = self.stocked[at].load(Ordering::Relaxed);
            // Of the first word what is behind the place, and at last what is before it.
            let word = match n {
                0 => word & behind,
                n if n == words => word & !behind,
                _ => word,
            };
            let next = |left: &u64| Some(*left & (*left - 1)).filter(|left| *left != 0);
            let left = std::iter::successors(Some(word).filter(|word| *word != 0), next);
            left.map(move |left| at * bits + left.trailing_zeros() as usize)
        })
    }

    pub(crate) fn charge(&self, at: u16, bytes: u64) {
        self.word(at).fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn refund(&self, at: u16, bytes: u64) {
        self.word(at).fetch_sub(bytes, Ordering::Relaxed);
    }

    /// One datagram more, for which so many bytes are set aside.
    pub(crate) fn enter(&self, at: u16, bytes: u64) {
        self.charge(at, DATAGRAM + bytes);
    }

    /// One less.
    pub(crate) fn leave(&self, at: u16, bytes: u64) {
        self.refund(at, DATAGRAM + bytes);
    }

    fn word(&self, at: u16) -> &AtomicU64 {
        &self.used[usize::from(at) % SOURCES]
    }

    pub(crate) fn bytes(&self, at: u16) -> u64 {
        bytes_of(self.word(at).load(Ordering::Relaxed))
    }

    pub(crate) fn datagrams(&self, at: u16) -> u64 {
        self.word(at).load(Ordering::Relaxed) >> BYTES_BITS
    }

    fn flow(&self, key: &Key) -> &AtomicU32 {
        &self.begun[flow(key, &self.secret)]
    }

    pub(crate) fn begun(&self, key: &Key) -> u32 {
        self.flow(key).load(Ordering::Relaxed)
    }

    /// One more. Answers how many there were.
    pub(crate) fn begin(&self, key: &Key) -> u32 {
        self.flow(key).fetch_add(1, Ordering::Relaxed)
    }

    /// The source that uses most, or did a moment ago. Two cores may both look for it: then both are right.
    pub(crate) fn heaviest(&self) -> u16 {
        if let Some(known) = believed(&self.top) {
            return known;
        }
        let mut total = 0u64;
        let top = self.most(|word| {
            total = total.saturating_add(bytes_of(word));
            bytes_of(word)
        });
        self.total.store(total, Ordering::Relaxed);
        believe(&self.top, top)
    }

    /// The source that has most datagrams in progress, likewise.
    pub(crate) fn busiest(&self) -> u16 {
        let known = believed(&self.busiest);
        known.unwrap_or_else(|| believe(&self.busiest, self.most(|word| word >> BYTES_BITS)))
    }

    /// The source whose word comes to most.
    fn most(&self, mut of: impl FnMut(u64) -> u64) -> u16 {
        let (mut top, mut most) = (0, 0);
        for (at, word) in (0u16..).zip(&self.used) {
            let n = of(word.load(Ordering::Relaxed));
            if n > most {
                (top, most) = (at, n);
            }
        }
        top
    }

    /// What all sources used when [`Self::heaviest`] last looked.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// Tells all what a core has found, if they would be far wrong without. Most of the time nothing is written.
    pub(crate) fn learn(&self, pace: &Pace) {
        let learn = |known: &AtomicU64, found: u64| {
            let old = known.load(Ordering::Relaxed);
            if found.abs_diff(old) > old / 4 {
                known.store(found, Ordering::Relaxed);
            }
        };
        learn(&self.cost, pace.cost);
        learn(&self.gap, pace.gap());
    }

    /// Memory of complete datagrams, as some core has found it, bytes; 0: none has.
    pub(crate) fn cost(&self) -> u64 {
        self.cost.load(Ordering::Relaxed)
    }

    /// All of it, for tests that ask what changes it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn words(&self) -> Vec<u64> {
        let words = [&self.top, &self.busiest, &self.total, &self.cost, &self.gap];
        let words = self.used.iter().chain(&self.stocked).chain(words);
        let begun = self.begun.iter().map(|word| u64::from(word.load(Ordering::Relaxed)));
        words.map(|word| word.load(Ordering::Relaxed)).chain(begun).collect()
    }

    /// Time between two fragments, as some core has found it, nanoseconds.
    pub(crate) fn gap(&self) -> u64 {
        self.gap.load(Ordering::Relaxed)
    }
}

fn bytes_of(word: u64) -> u64 {
    word & (DATAGRAM - 1)
}

/// What was found, if it may be believed once more.
fn believed(found: &AtomicU64) -> Option<u16> {
    let known = found.load(Ordering::Relaxed);
    (known >> TOP_BITS > 0).then(|| {
        found.store(known - (1 << TOP_BITS), Ordering::Relaxed);
        (known & 0xffff) as u16
    })
}

fn believe(found: &AtomicU64, at: u16) -> u16 {
    found.store(u64::from(at) | (BELIEVED - 1) << TOP_BITS, Ordering::Relaxed);
    at
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn stocked_buckets_are_named_once_from_anywhere_on() {
        let shares = Shares::new(HashKey::new([1, 2]), 200);
        let all = [0, 3, 63, 64, 130, 199];
        all.iter().for_each(|bucket| shares.stock(*bucket));
        for from in 0..200 {
            let named: Vec<usize> = shares.stocked(from).collect();
            let split = all.partition_point(|bucket| (*bucket as usize) < from);
            let (before, behind) = all.split_at(split);
            let expected: Vec<usize> =
                behind.iter().chain(before).map(|bucket| *bucket as usize).collect();
            assert_eq!(named, expected, "from {from}");
        }
        all[1..].iter().for_each(|bucket| shares.is_bare(*bucket));
        assert!(shares.stocked(100).eq([0]));
    }

    #[test]
    fn what_buckets_charge_adds_up_and_the_heaviest_is_found() {
        let shares = Shares::new(HashKey::new([1, 2]), 16);
        shares.charge(3, 100);
        shares.charge(9, 90);
        assert_eq!((shares.heaviest(), shares.total()), (3, 190));
        shares.refund(3, 20);
        assert!((0..=BELIEVED).any(|_| shares.heaviest() == 9));
        assert_eq!((shares.bytes(3), shares.total()), (80, 170));
        // Who has more datagrams need not use more.
        [(9, 1), (9, 2), (3, 30)].iter().for_each(|(at, bytes)| shares.enter(*at, *bytes));
        assert_eq!((shares.busiest(), shares.bytes(9), shares.datagrams(9)), (9, 93, 2));
        [1, 2].iter().for_each(|bytes| shares.leave(9, *bytes));
        assert!((0..=BELIEVED).any(|_| shares.busiest() == 3));
        assert_eq!((shares.bytes(9), shares.datagrams(9), shares.datagrams(3)), (90, 0, 1));
        let keys = [1, 2].map(|id| Key::v4(1, 2, id, 17, 0));
        assert_eq!(
            (shares.begin(&keys[0]), shares.begin(&keys[1]), shares.begun(&keys[0])),
            (0, 1, 2)
        );
    }

    #[test]
    fn others_learn_what_is_far_from_what_they_know() {
        let shares = Shares::new(HashKey::new([1, 2]), 16);
        let mut pace = Pace::default();
        pace.completed(1000, 2);
        shares.learn(&pace);
        assert_eq!(shares.cost(), 1000);
        (0..3).for_each(|_| pace.completed(1400, 2));
        shares.learn(&pace);
        assert_eq!(shares.cost(), 1000, "near enough");
        (0..30).for_each(|_| pace.completed(1400, 2));
        shares.learn(&pace);
        assert!(shares.cost() > 1300, "{}", shares.cost());
    }
}
