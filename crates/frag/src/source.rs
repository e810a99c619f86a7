//! Who uses how much, so that one source cannot take what others need.

use crate::key::{HashKey, Key};
use crate::shares::Shares;
use crate::slab::NONE;
use crate::sync::Arc;

/// Sources are told apart by a keyed hash of their prefix. Two that meet share their share.
pub(crate) const SOURCES: usize = if cfg!(loom) { 4 } else { 1024 };
const SOURCE_BITS: u32 = SOURCES.ilog2();
/// Lists of datagrams by source that a bucket of many has at least.
const LISTS_MIN: usize = if cfg!(loom) { 4 } else { 8 };

/// A source's datagrams in progress; in a bucket of many, those of some sources.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Memory they hold or that is set aside for them, bytes.
    bytes: u64,
    /// How many.
    pub(crate) count: u32,
    /// The one that began last.
    pub(crate) youngest: u32,
}

/// Flows are told apart by a keyed hash: what an identification is one of. Those that meet seem to use it up together.
pub(crate) const FLOWS: usize = if cfg!(loom) { 4 } else { 1024 };

/// The number of a key's flow: datagrams of IPv4 with the addresses and the protocol of a key, among which an
/// identification is one's own (RFC 6864 section 4).
#[inline]
pub(crate) fn flow(key: &Key, secret: &HashKey) -> usize {
    let flow = (key.src[1] << 32 | key.dst[1]) ^ key.id >> 32 ^ key.scope.rotate_left(24);
    (secret.hash_word(flow) >> 54) as usize % FLOWS
}

/// All sources of a shard, or those that a bucket of many has datagrams of.
#[derive(Debug)]
pub(crate) struct Sources {
    /// By source; fewer than there are sources in a bucket of many: then some share a list.
    all: Box<[Source]>,
    /// Datagrams that flows have ever begun; wraps. None where that is shared.
    begun: Box<[u32]>,
    /// By which flows are told apart: always the same, since datagrams are compared with others that began long ago.
    secret: HashKey,
    /// The one that was found to use most.
    top: u16,
    /// Times that this may be believed before all are looked at again.
    believed: u32,
    /// Likewise, the one that was found to have most datagrams.
    busiest: u16,
    busiest_believed: u32,
    /// What all buckets know together, which counts there; and which one this is.
    shares: Option<(Arc<Shares>, u32)>,
}

/// Looking at all sources takes a microsecond; in between, one that shrinks may be taken for the heaviest.
const BELIEVED: u32 = 8;

/// Lists of a bucket of so many. Together they are about as many as those of a shard.
fn lists(buckets: u32) -> usize {
    (SOURCES / buckets as usize).max(LISTS_MIN).next_power_of_two()
}

impl Sources {
    /// What they take in a shard, bytes.
    pub(crate) const BYTES: u64 = (SOURCES * size_of::<Source>() + FLOWS * size_of::<u32>()) as u64;

    pub(crate) fn new(secret: HashKey) -> Self {
        Self::made(SOURCES, FLOWS, secret, None)
    }

    /// Those of one of so many buckets, which share an account.
    pub(crate) fn sharing(shares: &Arc<Shares>, bucket: u32, buckets: u32) -> Self {
        let secret = shares.secret().clone();
        Self::made(lists(buckets), 0, secret, Some((Arc::clone(shares), bucket)))
    }

    /// What those take, bytes, beside the account.
    pub(crate) fn bytes_sharing(buckets: u32) -> u64 {
        (lists(buckets) * size_of::<Source>()) as u64
    }

    fn made(
        lists: usize,
        flows: usize,
        secret: HashKey,
        shares: Option<(Arc<Shares>, u32)>,
    ) -> Self {
        let none = Source { bytes: 0, count: 0, youngest: NONE };
        let (all, begun) = (vec![none; lists].into(), vec![0; flows].into());
        Self { all, begun, secret, top: 0, believed: 0, busiest: 0, busiest_believed: 0, shares }
    }

    /// The number of a key's source. `secret`: the table's; all buckets must come to the same, so they have another.
    #[inline]
    pub(crate) fn of(&self, key: &Key, secret: &HashKey) -> u16 {
        Self::of_alone(key, if self.shares.is_some() { &self.secret } else { secret })
    }

    /// [`Self::of`] where nothing is shared.
    #[inline]
    pub(crate) fn of_alone(key: &Key, secret: &HashKey) -> u16 {
        let prefix = key.source_prefix() ^ key.scope.rotate_left(32);
        (secret.hash_word(prefix) >> (u64::BITS - SOURCE_BITS)) as u16
    }

    /// Datagrams that the flow of a key has begun.
    #[inline]
    pub(crate) fn begun(&self, key: &Key) -> u32 {
        match &self.shares {
            None => self.begun[flow(key, &self.secret)],
            Some((shares, _)) => shares.begun(key),
        }
    }

    /// It begins one more. Answers how many there were.
    #[inline]
    fn begin(&mut self, key: &Key) -> u32 {
        match &self.shares {
            None => self.begin_alone(key),
            Some((shares, _)) => shares.begin(key),
        }
    }

    /// [`Self::begin`] where nothing is shared.
    #[inline]
    fn begin_alone(&mut self, key: &Key) -> u32 {
        let begun = &mut self.begun[flow(key, &self.secret)];
        std::mem::replace(begun, begun.wrapping_add(1))
    }

    /// One datagram less, for which `bytes` were set aside. Where nothing is shared.
    #[inline(always)]
    pub(crate) fn leave(&mut self, at: u16, bytes: u64) -> &mut Source {
        let source = &mut self[at];
        source.bytes -= bytes;
        source.count -= 1;
        source
    }

    /// The same, of any family: what [`Self::begun`] is compared with.
    #[inline(always)]
    pub(crate) fn born(&mut self, key: &Key) -> u32 {
        if key.is_v6() { 0 } else { self.begin(key) }
    }

    /// [`Self::born`] where nothing is shared.
    #[inline(always)]
    pub(crate) fn born_alone(&mut self, key: &Key) -> u32 {
        if key.is_v6() { 0 } else { self.begin_alone(key) }
    }

    #[inline]
    pub(crate) fn charge(&mut self, at: u16, bytes: u64) {
        if let Some((shares, bucket)) = &self.shares {
            shares.stock(*bucket);
            return shares.charge(at, bytes);
        }
        let now = self[at].bytes + bytes;
        self[at].bytes = now;
        if now > self[self.top].bytes {
            self.top = at;
        }
    }

    /// [`Self::enter`], whether or not anything is shared.
    #[inline]
    pub(crate) fn enter_any(&mut self, at: u16, n: u32, bytes: u64) -> u32 {
        let Some((shares, bucket)) = &self.shares else { return self.enter(at, n, bytes) };
        shares.stock(*bucket);
        shares.enter(at, bytes);
        let list = &mut self[at];
        list.count += 1;
        std::mem::replace(&mut list.youngest, n)
    }

    /// [`Self::leave`], likewise.
    #[inline]
    pub(crate) fn leave_any(&mut self, at: u16, bytes: u64) -> &mut Source {
        let Some((shares, _)) = &self.shares else { return self.leave(at, bytes) };
        shares.leave(at, bytes);
        let list = &mut self[at];
        list.count -= 1;
        list
    }

    /// The `n`-th record is the youngest of a source now, for which `bytes` are set aside. Answers which was. Where
    /// nothing is shared.
    #[inline(always)]
    pub(crate) fn enter(&mut self, at: u16, n: u32, bytes: u64) -> u32 {
        let source = &mut self[at];
        source.bytes += bytes;
        source.count += 1;
        let (now, before) = (source.bytes, std::mem::replace(&mut source.youngest, n));
        if now > self[self.top].bytes {
            self.top = at;
        }
        before
    }

    #[inline]
    pub(crate) fn refund(&mut self, at: u16, bytes: u64) {
        match &self.shares {
            None => self[at].bytes -= bytes,
            Some((shares, _)) => shares.refund(at, bytes),
        }
    }

    /// What a source uses, in all buckets where there are many.
    pub(crate) fn bytes(&self, at: u16) -> u64 {
        match &self.shares {
            None => self[at].bytes,
            Some((shares, _)) => shares.bytes(at),
        }
    }

    /// The source that uses most, or did a moment ago.
    pub(crate) fn heaviest(&mut self) -> u16 {
        if let Some((shares, _)) = &self.shares {
            return shares.heaviest();
        }
        if self.believed == 0 {
            let heaviest = (0u16..).zip(self.all.iter()).max_by_key(|(_, source)| source.bytes);
            self.top = heaviest.map_or(0, |(at, _)| at);
            self.believed = BELIEVED;
        }
        self.believed -= 1;
        self.top
    }

    /// How many datagrams of a source are in progress, in all buckets where there are many.
    pub(crate) fn datagrams(&self, at: u16) -> u64 {
        match &self.shares {
            None => self[at].count.into(),
            Some((shares, _)) => shares.datagrams(at),
        }
    }

    /// The source that has most of them, or had a moment ago.
    pub(crate) fn busiest(&mut self) -> u16 {
        if let Some((shares, _)) = &self.shares {
            return shares.busiest();
        }
        if self.busiest_believed == 0 {
            let busiest = (0u16..).zip(self.all.iter()).max_by_key(|(_, source)| source.count);
            self.busiest = busiest.map_or(0, |(at, _)| at);
            self.busiest_believed = BELIEVED;
        }
        self.busiest_believed -= 1;
        self.busiest
    }

    /// What all buckets know together; none: there is one table.
    #[inline]
    pub(crate) fn shares(&self) -> Option<&Shares> {
        self.shares.as_ref().map(|(shares, _)| &**shares)
    }

    /// Nothing is in this bucket.
    pub(crate) fn is_bare(&self) {
        if let Some((shares, bucket)) = &self.shares {
            shares.is_bare(*bucket);
        }
    }
}

impl std::ops::Index<u16> for Sources {
    type Output = Source;
    #[inline]
    fn index(&self, at: u16) -> &Source {
        &self.all[usize::from(at) & (self.all.len() - 1)]
    }
}

impl std::ops::IndexMut<u16> for Sources {
    #[inline]
    fn index_mut(&mut self, at: u16) -> &mut Source {
        let lists = self.all.len();
        &mut self.all[usize::from(at) & (lists - 1)]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_heaviest_is_found_some_time_after_it_has_shrunk() {
        let mut sources = Sources::new(HashKey::new([1, 2]));
        sources.charge(3, 100);
        sources.charge(9, 90);
        assert_eq!(sources.heaviest(), 3);
        sources.refund(3, 20);
        assert!((0..=BELIEVED).any(|_| sources.heaviest() == 9));
        // Whoever grows beyond it is known at once.
        sources.charge(3, 11);
        assert_eq!((sources.heaviest(), sources.bytes(3)), (3, 91));
    }

    #[test]
    fn sources_are_spread_and_networks_stay_together() {
        let secret = HashKey::new([1, 2]);
        let sources = Sources::new(secret.successor());
        let of = |src| sources.of(&Key::v4(src, 1, 1, 1, 0), &secret);
        assert_eq!(of(0x0a00_0001), of(0x0a00_00fe));
        let mut used: Vec<u16> = (0..1024).map(|n| of(n << 8)).collect();
        used.sort_unstable();
        used.dedup();
        // 1 - 1/e of them, as chance has it.
        assert!((580..720).contains(&used.len()), "{}", used.len());
    }
}
