//! One table for all cores, with a lock for each of many buckets: for callers who cannot steer.

use crate::key::HashKey;
use crate::ledger::{Lease, Ledger};
use crate::limits::Limits;
use crate::output::{Datagram, Notice, Released, Sink};
use crate::reason::{Counters, Reason};
use crate::shard::{Arrival, BURST, FAR, Gauges, Nobody, Parsed, Steering, pass};
use crate::shares::Shares;
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use crate::table::Table;
use crate::table::outlet::{Given, Outlet, Room};
use crate::wire::{self, Fragment};

/// A part of the table. On cache lines of its own, so that two cores in two buckets do not meet.
#[derive(Debug)]
#[repr(align(128))]
struct Bucket<B>(Mutex<Table<B>>);

impl<B> Bucket<B> {
    /// A sink that has panicked while it was locked has left the table as a sink may: a shard survives it, too.
    fn lock(&self) -> MutexGuard<'_, Table<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// If nobody is at work there.
    fn try_lock(&self) -> Option<MutexGuard<'_, Table<B>>> {
        match self.0.try_lock() {
            Ok(table) => Some(table),
            Err(TryLockError::Poisoned(table)) => Some(table.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Buckets that a core looks into when memory has ended in another, and datagrams that go for it at most. So often as a
/// lease says that it is short, about once in a millisecond.
const BUCKETS_RELIEVED: usize = 16;
const DATAGRAMS_RELIEVED: usize = 16;
/// Buckets with datagrams that are asked to let one go for a fragment when memory has ended in its own, and those that
/// are looked at for that.
const ASKED_AT_ALL: usize = 256;
const ASKED_FOR_A_NEW_ONE: usize = 32;
const ASKED_FOR_THE_HEAVIEST: usize = 2;
const ASKED_FOR_ONE_BEGUN: usize = 64;
/// Datagrams that are given up of one bucket at a time.
const EXPIRED_UNDER_A_LOCK: usize = 64;

/// Fragments of all datagrams that several cores put together.
///
/// Any core may push any fragment. A bucket is locked while one fragment is worked on, or those of a burst
/// that belong there; it grows and shrinks by itself, while others are in use. Datagrams are handed out on the core whose fragment
/// completed them, and buffers are released on the core that causes it.
///
/// What a source may have it may have in all buckets together. Where memory has ended in a bucket, others give back what
/// is free there, and let go what is idle, or of the source that uses most, or younger than the datagram that is in need:
/// some of them, as far as no other core is at work there.
#[derive(Debug)]
pub struct Shared<B> {
    buckets: Box<[Bucket<B>]>,
    /// Which bucket a datagram is in.
    steering: Steering,
    ledger: Arc<Ledger>,
    /// What buckets know together; none: there is one.
    shares: Option<Arc<Shares>>,
}

/// One core's hold on a [`Shared`] table: its lease, and what it has counted.
#[derive(Debug)]
pub struct Core {
    lease: Lease,
    counters: Counters,
    /// Packets of a burst, between parsing and work.
    parsed: Box<[Parsed]>,
    /// The bucket that is relieved next.
    next: usize,
    /// From which bucket on others are asked.
    dice: u64,
}

/// A place in a burst fits into so many bits.
const PLACE_BITS: u32 = BURST.ilog2() + 1;
/// The bucket of what is no fragment: more than there ever are.
const NOWHERE: u32 = u32::MAX >> PLACE_BITS;

impl<B> Shared<B> {
    /// A table of `buckets` buckets (256 are enough for some tens of cores). `secret`: drawn at random.
    #[must_use]
    pub fn new(limits: &Limits, buckets: u32, secret: &HashKey) -> Arc<Self> {
        Self::with(limits, buckets, secret, &Ledger::of(limits))
    }

    /// The same, of the memory of a ledger that there is: others may have theirs from it, too.
    #[must_use]
    pub fn with(
        limits: &Limits,
        buckets: u32,
        secret: &HashKey,
        ledger: &Arc<Ledger>,
    ) -> Arc<Self> {
        let buckets = buckets.clamp(1, 4096);
        let limits = limits.shared(buckets);
        let mut key = secret.clone();
        // One alone knows all by itself.
        let shares = (buckets > 1).then(|| Arc::new(Shares::new(secret.clone(), buckets)));
        let all = (0..buckets).map(|bucket| {
            key = key.successor();
            let table = match &shares {
                None => Table::new(&limits, key.clone()),
                Some(shares) => Table::sharing(&limits, key.clone(), (shares, bucket)),
            };
            Bucket(Mutex::new(table))
        });
        let buckets_of = all.collect();
        let steering = Steering::new(key.successor(), buckets);
        Arc::new(Self { buckets: buckets_of, steering, ledger: Arc::clone(ledger), shares })
    }

    /// The most memory that a table of so many buckets ever takes beside
    /// [`Config::memory_bytes`](crate::Config::memory_bytes), bytes: about 6 KiB for each bucket (most of it when the first
    /// datagram begins there), and for each core what a shard takes to work. Sources, flows and what was refused are
    /// remembered in all buckets together as in one shard ([`Shard::beside_bytes`](crate::Shard::beside_bytes)). 256
    /// buckets come to less than 1.9 MB at 4 MiB. With as many cores as [`Config::shards`](crate::Config::shards) says.
    #[must_use]
    pub fn beside_bytes(limits: &Limits, buckets: u32) -> u64 {
        let buckets = buckets.clamp(1, 4096);
        let each =
            Table::<B>::beside_bytes(&limits.shared(buckets)) + size_of::<Bucket<B>>() as u64;
        let core = Table::<B>::AT_WORK_BYTES + (BURST * size_of::<Parsed>()) as u64;
        let shares = if buckets > 1 { Shares::bytes_for(buckets) } else { 0 };
        u64::from(buckets) * each + shares + u64::from(limits.shards) * core
    }

    /// What a core needs to push. One for each core.
    #[must_use]
    pub fn core(&self) -> Core {
        Core {
            lease: Lease::new(&self.ledger),
            counters: Counters::default(),
            parsed: Parsed::burst(),
            next: 0,
            dice: 0,
        }
    }

    /// Takes in a packet: as [`Shard::push`](crate::Shard::push).
    pub fn push(
        &self,
        core: &mut Core,
        arrival: Arrival<'_, B>,
        now: u64,
        sink: &mut impl Sink<B>,
    ) {
        let mut fragment = Fragment::NONE;
        match wire::parse_to(arrival.packet, arrival.scope, &mut fragment) {
            Ok(None) => {
                let at = self.steering.shard(&fragment.key) as usize;
                let mut table = self.buckets[at].lock();
                table.settle();
                let ahead = table.ahead(fragment);
                let Core { lease, dice, .. } = core;
                let mut among = Among { sink: &mut *sink, table: self, dice, at };
                table.push(lease, &ahead, arrival, now, &mut among);
                drop(table);
                if core.lease.was_short() {
                    self.relieve(core, now, sink);
                }
            }
            other => pass(&mut core.counters, other, &fragment, arrival, sink),
        }
    }

    /// Takes in many packets, and empties the list. A bucket is locked once for all fragments of a burst that belong
    /// there, and what they need of it is fetched at once: as [`Shard::push_burst`](crate::Shard::push_burst), which
    /// says what the list holds if the sink panics. Fragments of a datagram stay in order; datagrams do not.
    pub fn push_burst(
        &self,
        core: &mut Core,
        arrivals: &mut Vec<Arrival<'_, B>>,
        now: u64,
        sink: &mut impl Sink<B>,
    ) {
        let parsed = std::mem::replace(&mut core.parsed, Box::new([]));
        // None: a sink has panicked in the middle of the last burst.
        let mut parsed = if parsed.is_empty() { Parsed::burst() } else { parsed };
        let mut rest = arrivals.drain(..);
        let mut burst = [const { None }; BURST];
        loop {
            // Where each belongs, and which it is: sorted, fragments of a bucket are together and in order.
            let mut order = [0u32; BURST];
            let mut came = 0;
            for (at, arrival) in (0u32..).zip(rest.by_ref().take(BURST)) {
                let to = &mut parsed[came];
                to.other = wire::parse_to(arrival.packet, arrival.scope, &mut to.ahead.fragment);
                let bucket = match to.other {
                    Ok(None) => self.steering.shard(&to.ahead.fragment.key),
                    _ => NOWHERE,
                };
                order[came] = bucket << PLACE_BITS | at;
                burst[came] = Some(arrival);
                came += 1;
            }
            if came == 0 {
                break;
            }
            order[..came].sort_unstable();
            for run in order[..came].chunk_by(|a, b| a >> PLACE_BITS == b >> PLACE_BITS) {
                self.push_run(core, run, &mut parsed, &mut burst, now, sink);
            }
        }
        drop(rest);
        core.parsed = parsed;
        if core.lease.was_short() {
            self.relieve(core, now, sink);
        }
    }

    /// Memory has ended in some bucket: has others let go what they hold for nothing. That is there for the next
    /// datagram. A bucket that is in use now gives some itself.
    #[cold]
    fn relieve(&self, core: &mut Core, now: u64, sink: &mut impl Sink<B>) {
        let mut left = DATAGRAMS_RELIEVED;
        for _ in 0..BUCKETS_RELIEVED.min(self.buckets.len()) {
            let bucket = &self.buckets[core.next % self.buckets.len()];
            core.next = core.next.wrapping_add(1);
            let Some(mut table) = bucket.try_lock() else { continue };
            left -= table.relieve(&mut core.lease, now, left, sink);
            if left == 0 {
                break;
            }
        }
    }

    /// Packets of a burst that belong into the same bucket, or into none.
    fn push_run<'p>(
        &self,
        core: &mut Core,
        run: &[u32],
        parsed: &mut [Parsed],
        burst: &mut [Option<Arrival<'p, B>>],
        now: u64,
        sink: &mut impl Sink<B>,
    ) {
        let places = run.iter().map(|place| (place & ((1 << PLACE_BITS) - 1)) as usize);
        let at = (run[0] >> PLACE_BITS) as usize;
        let Some(bucket) = self.buckets.get(at) else {
            for place in places {
                let Parsed { ahead, other, .. } = &parsed[place];
                let Some(arrival) = burst[place].take() else { continue };
                pass(&mut core.counters, *other, &ahead.fragment, arrival, sink);
            }
            return;
        };
        let mut table = bucket.lock();
        table.settle();
        places.clone().for_each(|place| table.look_up(&mut parsed[place].ahead));
        if run.len() > 1 && table.datagrams() >= FAR {
            let seen = places.clone().map(|place| table.touch(&parsed[place].ahead));
            std::hint::black_box(seen.fold(0, |all, seen| all ^ seen));
        }
        let Core { lease, dice, .. } = core;
        let mut sink = Among { sink, table: self, dice, at };
        for place in places {
            let Some(arrival) = burst[place].take() else { continue };
            table.push(lease, &parsed[place].ahead, arrival, now, &mut sink);
        }
    }

    /// Gives up datagrams that have taken too long, in one bucket after the other, at most 64 of each so that
    /// none is locked for long; each core may do a part of it. Answers when the next one's time ends, if there
    /// is one: that may be over already, where there are more.
    pub fn expire(
        &self,
        core: &mut Core,
        buckets: std::ops::Range<usize>,
        now: u64,
        sink: &mut impl Sink<B>,
    ) -> Option<u64> {
        let ends = self.buckets.get(buckets)?.iter().filter_map(|bucket| {
            let mut table = bucket.lock();
            table.expire(&mut core.lease, now, EXPIRED_UNDER_A_LOCK, sink)
        });
        ends.min()
    }

    /// How many buckets there are.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// What all cores have seen and done in the buckets.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut all = Counters::default();
        for bucket in &self.buckets {
            all.add(&bucket.lock().counters);
        }
        all
    }

    /// Datagrams in progress.
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        let of = |bucket: &Bucket<B>| u64::from(bucket.lock().datagrams());
        self.buckets.iter().map(of).sum()
    }

    /// What all buckets hold. Looked at one after the other: where others push meanwhile, that is what there was at no
    /// one instant. [`Gauges::leased_bytes`] are those in use and spare; what is leased beside them each core has
    /// ([`Core::unused_bytes`]).
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        let mut all = Gauges::default();
        for bucket in &self.buckets {
            bucket.lock().gauge(&mut all);
        }
        all
    }

    /// Gives up all datagrams in progress, in one bucket after the other, and releases what they hold. What another
    /// core begins meanwhile, in a bucket that is done, stays.
    pub fn clear(&self, core: &mut Core, now: u64, sink: &mut impl Sink<B>) {
        for bucket in &self.buckets {
            bucket.lock().clear(&mut core.lease, now, sink);
        }
    }

    /// The memory that it takes part in.
    #[must_use]
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }
}

/// The sink of who is at work in a bucket, and the others.
struct Among<'a, B, S> {
    sink: &'a mut S,
    table: &'a Shared<B>,
    dice: &'a mut u64,
    /// That which is locked.
    at: usize,
}

impl<B, S: Sink<B>> Sink<B> for Among<'_, B, S> {
    #[inline(always)]
    fn whole(&mut self, buffer: B, len: usize) {
        self.sink.whole(buffer, len);
    }

    #[inline(always)]
    fn datagram(&mut self, datagram: &Datagram<'_, B>) {
        self.sink.datagram(datagram);
    }

    #[inline(always)]
    fn release(&mut self, buffer: B, why: Released) {
        self.sink.release(buffer, why);
    }

    #[inline(always)]
    fn notice(&mut self, notice: &Notice<'_, B>) {
        self.sink.notice(notice);
    }
}

impl<B, S: Sink<B>> Outlet<B> for Among<'_, B, S> {
    /// None is waited for: another core may hold it, and wait for this one.
    #[cold]
    fn elsewhere(&mut self, lease: &mut Lease, room: &Room, now: u64) -> bool {
        let buckets = &self.table.buckets;
        let asked = match (room.is_begun(), room.is_of_the_heaviest()) {
            (true, _) => ASKED_FOR_ONE_BEGUN,
            (false, false) => ASKED_FOR_A_NEW_ONE,
            // For whom none can go but what is idle.
            (false, true) => ASKED_FOR_THE_HEAVIEST,
        };
        let Some(shares) = &self.table.shares else { return false };
        // From anywhere on: where all are asked in the same order, datagrams go in that order.
        *self.dice = self.dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let first = (*self.dice >> 32) as usize % buckets.len();
        let mut left = asked;
        for other in shares.stocked(first).take(ASKED_AT_ALL) {
            if other == self.at {
                continue;
            }
            let Some(mut table) = buckets[other].try_lock() else { continue };
            match table.give_way(lease, room, now, self.sink) {
                Given::Something => return true,
                Given::Nothing => left -= 1,
                Given::Bare => {}
            }
            if left == 0 {
                break;
            }
        }
        false
    }
}

/// Of what is still in progress no sink hears any more: call [`Shared::clear`] before. Its memory goes back to the ledger.
impl<B> Drop for Shared<B> {
    fn drop(&mut self) {
        let mut lease = Lease::new(&self.ledger);
        for bucket in &mut self.buckets {
            let mut table = bucket.lock();
            table.clear(&mut lease, 0, &mut Nobody);
            table.end(&mut lease);
        }
    }
}

impl Core {
    /// Bytes of memory that this core has leased and nothing is in.
    #[must_use]
    pub fn unused_bytes(&self) -> u64 {
        self.lease.unused()
    }

    /// What this core has seen that reached no bucket: whole packets, and packets that made no sense.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How often this core has dropped a packet that made no sense.
    #[must_use]
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.counters.fragments(reason)
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
