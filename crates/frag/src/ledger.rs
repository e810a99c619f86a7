//! Memory that several cores share, counted without a shared word per fragment.
//!
//! All memory is in the **ledger** or **leased** to a core. A core charges what it holds to its lease, and
//! goes to the ledger only for a batch. What is held is never more than what is leased, and what is leased
//! never more than there is: so the limit holds at every instant, and the only error is on the safe side,
//! the unused part of the leases.
//!
//! ```text
//! limit  =  ledger (one atomic)  +  lease of core 0  +  lease of core 1  +  …
//!                                   held | unused       held | unused
//! ```
//!
//! What a core holds for datagrams that nothing comes for any more, others may need. Nobody can take it from that core;
//! so who has too little says when, and each core looks at that now and then ([`Lease::wanted`]).
//!
//! As many cores as were said keep a part for good; whoever is more than these takes what it needs, and gives back all that it
//! does not.
//!
//! A second account, kept in the same way, says what datagrams in progress are expected to need when they
//! are complete. It has more than there is memory, because they are not all complete at once. What is expected may be
//! far from what comes: so it binds nobody while there is memory ([`Lease::is_roomy`]).

use crate::pace::Pace;
use crate::sync::{Arc, AtomicU64, Ordering};

/// More may be promised than there is: datagrams of which some are half there need half. 20/11, which is
/// 1 / 0.55, was found by simulation to keep most at any overload.
const OVERCOMMIT: (u64, u64) = (20, 11);

/// While this part of memory is free, nobody asks what is promised. Whether it is a half or an eighth, as much comes through
/// at any overload, within a fortieth; but of small datagrams, three times too many, most with a quarter.
const ROOMY_PART: u64 = 4;

#[derive(Debug)]
struct Pool {
    /// As a signed number: what a core has promised too much it takes along when it ends.
    left: AtomicU64,
    /// What a core takes at once.
    batch: u64,
    /// What a core keeps for good, so that others cannot starve it.
    floor: u64,
}

impl Pool {
    fn new(limit: u64, cores: u64) -> Self {
        let batch = (limit / (8 * cores)).clamp(1, 512 << 10);
        Self { left: AtomicU64::new(limit), batch, floor: limit / (4 * cores) }
    }

    fn unbatched(limit: u64) -> Self {
        Self { left: AtomicU64::new(limit), batch: 1, floor: 0 }
    }

    /// Takes `least` bytes, up to `most` if there are. 0: there are not.
    fn take(&self, least: u64, most: u64) -> u64 {
        // Relaxed: a count of bytes orders nothing else.
        let mut left = self.left.load(Ordering::Relaxed);
        loop {
            let n = most.min(u64::try_from(left.cast_signed()).unwrap_or(0));
            if n < least || n == 0 {
                return 0;
            }
            let taken = self.left.compare_exchange_weak(
                left,
                left - n,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match taken {
                Ok(_) => return n,
                Err(now) => left = now,
            }
        }
    }

    fn give(&self, n: u64) {
        self.left.fetch_add(n, Ordering::Relaxed);
    }
}

/// When a core has last had too little: in units of 2^20 ns, plus one; 0: never. On a line of its own, since every core
/// reads it for each datagram that begins, and it is written to once in a unit.
#[derive(Debug)]
#[repr(align(64))]
struct Wanted(AtomicU64);

/// See [`Wanted`]: about a millisecond.
const WANTED_UNIT: u32 = 20;

/// What is left for leases.
#[derive(Debug)]
pub struct Ledger {
    memory: Pool,
    promises: Pool,
    limit: u64,
    /// Leases that there may still be that keep a part for good.
    seats: AtomicU64,
    wanted: Wanted,
}

impl Ledger {
    /// `limit` bytes for `cores` leases. There may be more: those keep nothing that they do not use, and go for each amount
    /// to a word that all share.
    #[must_use]
    pub fn new(limit: u64, cores: u32) -> Arc<Self> {
        let cores = u64::from(cores.max(1));
        Self::made(limit, cores, |limit| Pool::new(limit, cores))
    }

    /// `limit` bytes, of which a core takes no more than it charges, and keeps none that it does not: each fragment is
    /// counted in a word that all share. Nothing is idle where memory is very little; else it is here to be compared with.
    #[must_use]
    pub fn unbatched(limit: u64) -> Arc<Self> {
        Self::made(limit, 0, Pool::unbatched)
    }

    fn made(limit: u64, seats: u64, pool: impl Fn(u64) -> Pool) -> Arc<Self> {
        // What is left is a signed number: "no limit" is the most that it can be, with what may be promised beyond.
        let limit = limit.min(i64::MAX.cast_unsigned() / OVERCOMMIT.0);
        let promises = limit.saturating_mul(OVERCOMMIT.0) / OVERCOMMIT.1;
        let (memory, promises) = (pool(limit), pool(promises));
        let wanted = Wanted(AtomicU64::new(0));
        Arc::new(Self { memory, promises, limit, seats: AtomicU64::new(seats), wanted })
    }

    /// Takes a seat, if one is left.
    fn sit(&self) -> bool {
        // Relaxed: a count orders nothing else.
        let mut left = self.seats.load(Ordering::Relaxed);
        while let Some(less) = left.checked_sub(1) {
            let taken =
                self.seats.compare_exchange(left, less, Ordering::Relaxed, Ordering::Relaxed);
            match taken {
                Ok(_) => return true,
                Err(now) => left = now,
            }
        }
        false
    }

    /// What may be promised in all.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn promises_limit(&self) -> u64 {
        self.limit * OVERCOMMIT.0 / OVERCOMMIT.1
    }

    /// What may be promised further.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn promises_left(&self) -> u64 {
        self.promises.left.load(Ordering::Relaxed)
    }

    /// All there ever was, bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that are not leased. A guess where others lease meanwhile.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.memory.left.load(Ordering::Relaxed)
    }
}

/// What a core has of a pool and does not use. Less than nothing where more was promised than allowed.
#[derive(Debug)]
struct Account {
    unused: i64,
    /// More than this is given back. Beside what it is compared with, and not in memory that all share.
    most: i64,
    /// What stays then, and what is taken at once.
    keep: u64,
    batch: u64,
}

impl Account {
    fn new(pool: &Pool, has_seat: bool) -> Self {
        if !has_seat {
            return Self { unused: 0, most: 1, keep: 1, batch: 1 };
        }
        // Above what stays by a batch, so that a core that has just given back works for a while before it gives again;
        // where memory is little, by less: what lies idle there others miss.
        let (keep, batch) = (pool.batch.max(pool.floor), pool.batch);
        let most = signed(keep + batch.min(pool.floor / 8).max(1));
        Self { unused: signed(pool.take(0, pool.floor)), most, keep, batch }
    }

    #[inline]
    fn charge(&mut self, pool: &Pool, n: u64) -> bool {
        let n = signed(n);
        let there = self.unused >= n || self.take(pool, n);
        if there {
            self.unused -= n;
        }
        there
    }

    /// Takes a batch, so that `n` bytes are unused, which are not yet. `false`: there are not so many.
    #[cold]
    fn take(&mut self, pool: &Pool, n: i64) -> bool {
        let missing = n.abs_diff(self.unused);
        let got = pool.take(missing, missing.max(self.batch));
        self.unused += signed(got);
        got != 0
    }

    #[inline]
    fn refund(&mut self, pool: &Pool, n: u64) {
        self.unused += signed(n);
        if self.unused > self.most {
            self.give_back(pool);
        }
    }

    #[cold]
    fn give_back(&mut self, pool: &Pool) {
        let keep = signed(self.keep);
        pool.give(self.unused.abs_diff(keep));
        self.unused = keep;
    }

    fn end(&self, pool: &Pool) {
        pool.give(self.unused.cast_unsigned());
    }
}

/// Amounts of memory are far below 2^63.
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX / 4)
}

/// One core's part of a [`Ledger`]. What is not in use goes back when it is dropped.
#[derive(Debug)]
pub struct Lease {
    ledger: Arc<Ledger>,
    memory: Account,
    promises: Account,
    has_seat: bool,
    /// When this core has last said that it has too little, as in [`Wanted`].
    said: u64,
    /// And it has not been asked since.
    is_short: bool,
    /// How datagrams have gone of late, as this core has seen it.
    pub(crate) pace: Pace,
}

impl Lease {
    /// A share of the ledger's memory, with what a core keeps for good if there are no more of them than it was made for.
    #[must_use]
    pub fn new(ledger: &Arc<Ledger>) -> Self {
        let has_seat = ledger.sit();
        let memory = Account::new(&ledger.memory, has_seat);
        let promises = Account::new(&ledger.promises, has_seat);
        Self {
            ledger: Arc::clone(ledger),
            memory,
            promises,
            has_seat,
            said: 0,
            is_short: false,
            pace: Pace::default(),
        }
    }

    /// Bytes that are leased and not in use.
    #[must_use]
    pub fn unused(&self) -> u64 {
        u64::try_from(self.memory.unused).unwrap_or(0)
    }

    /// Charges `n` bytes; `false`: there are none.
    #[inline]
    #[must_use]
    pub fn charge(&mut self, n: u64) -> bool {
        self.memory.charge(&self.ledger.memory, n)
    }

    /// Whether `n` bytes are unused here, perhaps now that some were taken.
    #[inline(always)]
    #[must_use]
    pub(crate) fn has(&mut self, n: u32) -> bool {
        self.memory.unused >= i64::from(n) || self.memory.take(&self.ledger.memory, i64::from(n))
    }

    /// Charges `n` bytes, of which [`Self::has`] said that they are there.
    #[inline(always)]
    pub(crate) fn spend(&mut self, n: u32) {
        debug_assert!(self.memory.unused >= i64::from(n));
        self.memory.unused -= i64::from(n);
    }

    /// Gives `n` bytes back that were charged, here or on another core.
    #[inline]
    pub fn refund(&mut self, n: u64) {
        self.memory.refund(&self.ledger.memory, n);
    }

    /// Promises `n` bytes to a datagram; `false`: too much is promised.
    #[inline]
    #[must_use]
    pub(crate) fn promise(&mut self, n: u64) -> bool {
        self.promises.charge(&self.ledger.promises, n)
    }

    /// Whether so much is free that a datagram may begin whatever was promised to others, as far as this core can see: what
    /// others have leased counts as in use.
    #[cold]
    pub(crate) fn is_roomy(&self) -> bool {
        self.ledger.left() + self.unused() >= self.ledger.limit / ROOMY_PART
    }

    /// Says to all that here is too little, at most once in a unit of time.
    #[cold]
    pub(crate) fn want(&mut self, now: u64) {
        let stamp = (now >> WANTED_UNIT) + 1;
        if self.said != stamp {
            self.said = stamp;
            self.is_short = true;
            // Relaxed: a hint, which orders nothing else.
            self.ledger.wanted.0.store(stamp, Ordering::Relaxed);
        }
    }

    /// When some core has said that it has too little, in some unit; 0: never.
    #[inline(always)]
    pub(crate) fn wanted(&self) -> u64 {
        self.ledger.wanted.0.load(Ordering::Relaxed)
    }

    /// Whether this core has said so since it was asked last.
    #[inline]
    pub(crate) fn was_short(&mut self) -> bool {
        std::mem::take(&mut self.is_short)
    }

    /// Promises what is in use already, or is there to be used.
    pub(crate) fn promise_more(&mut self, n: u64) {
        if !self.promise(n) {
            self.promises.unused -= signed(n);
        }
    }

    /// A promise was kept, or the datagram is gone.
    #[inline]
    pub(crate) fn redeem(&mut self, n: u64) {
        self.promises.refund(&self.ledger.promises, n);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.memory.end(&self.ledger.memory);
        self.promises.end(&self.ledger.promises);
        if self.has_seat {
            self.ledger.seats.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
