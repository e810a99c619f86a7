//! One table for all cores, with a lock for each of many buckets: for callers who cannot steer.

use crate::key::HashKey;
use crate::ledger::{Lease, Ledger};
use crate::limits::Limits;
use crate::output::Sink;
use crate::reason::{Counters, Reason};
use crate::shard::{Arrival, Steering};
use crate::sync::{Arc, Mutex};
use crate::table::Table;
use crate::wire::{self, Packet};

/// A part of the table. On cache lines of its own, so that two cores in two buckets do not meet.
#[derive(Debug)]
#[repr(align(128))]
struct Bucket<B>(Mutex<Table<B>>);

/// Fragments of all datagrams that several cores put together.
///
/// Any core may push any fragment. A bucket is locked while one fragment is worked on; it grows and
/// shrinks by itself, while others are in use. Datagrams are handed out on the core whose fragment
/// completed them, and buffers are released on the core that causes it.
#[derive(Debug)]
pub struct Shared<B> {
    buckets: Box<[Bucket<B>]>,
    /// Which bucket a datagram is in.
    steering: Steering,
    ledger: Arc<Ledger>,
}

/// One core's hold on a [`Shared`] table: its lease, and what it has counted.
#[derive(Debug)]
pub struct Core {
    lease: Lease,
    counters: Counters,
}

impl<B> Shared<B> {
    /// A table of `buckets` buckets (256 are enough for some tens of cores). `secret`: drawn at random.
    #[must_use]
    pub fn new(limits: &Limits, buckets: u32, secret: &HashKey) -> Arc<Self> {
        let buckets = buckets.clamp(1, 4096);
        let ledger = Ledger::of(limits);
        let limits = limits.shared(buckets);
        let mut key = secret.clone();
        let all = (0..buckets).map(|_| {
            key = key.successor();
            Bucket(Mutex::new(Table::new(&limits, key.clone())))
        });
        let buckets_of = all.collect();
        let steering = Steering::new(key.successor(), buckets);
        Arc::new(Self { buckets: buckets_of, steering, ledger })
    }

    /// The most memory that a table of so many buckets ever takes beside
    /// [`Config::memory_bytes`](crate::Config::memory_bytes), bytes: see
    /// [`Shard::beside_bytes`](crate::Shard::beside_bytes).
    #[must_use]
    pub fn beside_bytes(limits: &Limits, buckets: u32) -> u64 {
        let buckets = buckets.clamp(1, 4096);
        let each =
            Table::<B>::beside_bytes(&limits.shared(buckets)) + size_of::<Bucket<B>>() as u64;
        u64::from(buckets) * each
    }

    /// What a core needs to push. One for each core.
    #[must_use]
    pub fn core(&self) -> Core {
        Core { lease: Lease::new(&self.ledger), counters: Counters::default() }
    }

    /// Takes in a packet: as [`Shard::push`](crate::Shard::push).
    ///
    /// # Panics
    ///
    /// If a call of the sink has panicked before, in this bucket.
    pub fn push(
        &self,
        core: &mut Core,
        arrival: Arrival<'_, B>,
        now: u64,
        sink: &mut impl Sink<B>,
    ) {
        match wire::parse(arrival.packet, arrival.scope) {
            Ok(Packet::Fragment(fragment)) => {
                let bucket = &self.buckets[self.steering.shard(&fragment.key) as usize];
                let mut table = bucket.0.lock().expect("no call of a sink has panicked");
                table.settle();
                let ahead = table.ahead(fragment);
                table.push(&mut core.lease, &ahead, arrival, now, sink);
            }
            Ok(Packet::Whole(len)) => {
                core.counters.whole += 1;
                sink.whole(arrival.buffer, len);
            }
            Err(reason) => {
                core.counters.fragments += 1;
                core.counters.fragments_dropped[reason as usize] += 1;
                sink.release(arrival.buffer, crate::Released::Dropped(reason));
            }
        }
    }

    /// Gives up datagrams that have taken too long, in one bucket after the other; each core may do a
    /// part of it. Answers when the next one's time ends, if there is one.
    ///
    /// # Panics
    ///
    /// As [`Self::push`].
    pub fn expire(
        &self,
        core: &mut Core,
        buckets: std::ops::Range<usize>,
        now: u64,
        sink: &mut impl Sink<B>,
    ) -> Option<u64> {
        let ends = self.buckets.get(buckets)?.iter().filter_map(|bucket| {
            let mut table = bucket.0.lock().expect("no call of a sink has panicked");
            table.expire(&mut core.lease, now, 64, sink)
        });
        ends.min()
    }

    /// How many buckets there are.
    #[must_use]
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// What all cores have seen and done in the buckets.
    ///
    /// # Panics
    ///
    /// As [`Self::push`].
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut all = Counters::default();
        for bucket in &self.buckets {
            all.add(&bucket.0.lock().expect("no call of a sink has panicked").counters);
        }
        all
    }

    /// Datagrams in progress.
    ///
    /// # Panics
    ///
    /// As [`Self::push`].
    #[must_use]
    pub fn datagrams(&self) -> u64 {
        let of = |bucket: &Bucket<B>| {
            u64::from(bucket.0.lock().expect("no call of a sink has panicked").datagrams())
        };
        self.buckets.iter().map(of).sum()
    }
}

impl Core {
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
