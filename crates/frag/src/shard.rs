//! What one core owns.

use crate::key::{HashKey, Key};
use crate::ledger::{Lease, Ledger};
use crate::limits::Limits;
use crate::output::{Released, Sink};
use crate::reason::{Counters, Reason};
use crate::sync::Arc;
use crate::table::{Incoming, Table};
use crate::wire::{self, Fragment, Packet};

/// Packets whose lines are fetched together.
const BURST: usize = 32;

/// A packet that has come in.
#[derive(Debug)]
pub struct Arrival<'p, B> {
    /// Its bytes from the IP header on. Padding of the link may follow.
    pub packet: &'p [u8],
    /// The caller's handle for where they are. The shard keeps it as long as it needs the bytes.
    pub buffer: B,
    /// Memory that keeping the buffer costs, bytes: the size of the frame, not of the packet.
    pub cost: u32,
    /// The caller's: see [`Key::scope`].
    pub scope: u64,
}

impl<'p, B> Arrival<'p, B> {
    /// A packet in a buffer of its own size, in scope 0.
    pub fn new(packet: &'p [u8], buffer: B) -> Self {
        let cost = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        Self { packet, buffer, cost, scope: 0 }
    }
}

/// What a shard holds at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Datagrams in progress.
    pub datagrams: u32,
    /// Bytes of memory in use by them.
    pub memory_bytes: u64,
    /// Bytes of memory in use or set aside for them.
    pub committed_bytes: u64,
    /// Bytes of memory that this shard has leased.
    pub leased_bytes: u64,
    /// Compact blocks in use.
    pub blocks: u32,
}

/// Fragments of all datagrams that one core puts together.
#[derive(Debug)]
pub struct Shard<B> {
    table: Table<B>,
    lease: Lease,
}

impl Ledger {
    /// The memory that `limits` allow, for as many shards as they say.
    #[must_use]
    pub fn of(limits: &Limits) -> Arc<Self> {
        Self::new(limits.memory_bytes, limits.shards)
    }
}

impl<B> Shard<B> {
    /// An empty shard. `secret` must be another one for each shard, drawn at random.
    #[must_use]
    pub fn new(limits: &Limits, ledger: &Arc<Ledger>, secret: HashKey) -> Self {
        Self { table: Table::new(limits, secret), lease: Lease::new(ledger) }
    }

    /// Takes in a packet. `now`: nanoseconds of a clock that does not go back.
    pub fn push(&mut self, arrival: Arrival<'_, B>, now: u64, sink: &mut impl Sink<B>) {
        match wire::parse(arrival.packet, arrival.scope) {
            Ok(Packet::Fragment(fragment)) => {
                self.push_fragment(&fragment, arrival, now, sink);
            }
            Ok(Packet::Whole(len)) => {
                self.table.counters.whole += 1;
                sink.whole(arrival.buffer, len);
            }
            Err(reason) => self.refuse(arrival.buffer, reason, sink),
        }
    }

    /// Takes in a fragment that was parsed before, perhaps on another core. `arrival.packet` must be what
    /// was parsed, or at least its headers if its payload is not small and never copied.
    pub fn push_fragment(
        &mut self,
        fragment: &Fragment,
        arrival: Arrival<'_, B>,
        now: u64,
        sink: &mut impl Sink<B>,
    ) {
        let Arrival { packet, buffer, cost, .. } = arrival;
        let hash = self.table.hash(&fragment.key);
        let incoming = Incoming { fragment: *fragment, hash, packet, cost, buffer };
        self.table.push(&mut self.lease, incoming, now, sink);
    }

    /// Takes in many packets, and empties the list. Faster than one by one where datagrams are many: what
    /// the next packets need is fetched while the first are worked on.
    pub fn push_burst(
        &mut self,
        arrivals: &mut Vec<Arrival<'_, B>>,
        now: u64,
        sink: &mut impl Sink<B>,
    ) {
        let mut parsed: [Option<Result<Packet, Reason>>; BURST] = [const { None }; BURST];
        let mut rest = arrivals.drain(..).peekable();
        while rest.peek().is_some() {
            let mut burst: [Option<Arrival<'_, B>>; BURST] = [const { None }; BURST];
            let mut touched = 0;
            for (arrival, parsed) in burst.iter_mut().zip(&mut parsed) {
                let Some(next) = rest.next() else { break };
                let packet = wire::parse(next.packet, next.scope);
                if let Ok(Packet::Fragment(fragment)) = &packet {
                    touched ^= self.table.touch(self.table.hash(&fragment.key));
                }
                *parsed = Some(packet);
                *arrival = Some(next);
            }
            std::hint::black_box(touched);
            for (arrival, parsed) in burst.iter_mut().zip(&mut parsed) {
                let (Some(arrival), Some(parsed)) = (arrival.take(), parsed.take()) else { break };
                match parsed {
                    Ok(Packet::Fragment(fragment)) => {
                        self.push_fragment(&fragment, arrival, now, sink);
                    }
                    Ok(Packet::Whole(len)) => {
                        self.table.counters.whole += 1;
                        sink.whole(arrival.buffer, len);
                    }
                    Err(reason) => self.refuse(arrival.buffer, reason, sink),
                }
            }
        }
    }

    fn refuse(&mut self, buffer: B, reason: Reason, sink: &mut impl Sink<B>) {
        self.table.counters.fragments += 1;
        self.table.drop_fragment(buffer, reason, sink);
    }

    /// Gives up datagrams that have taken too long, at most `most`. Answers when the next one's time
    /// ends, if there is one; a time that is past means that there are more.
    ///
    /// [`Self::push`] does some of this by itself. Call this when nothing comes in.
    pub fn expire(&mut self, now: u64, most: usize, sink: &mut impl Sink<B>) -> Option<u64> {
        self.table.expire(&mut self.lease, now, most, sink)
    }

    /// Gives up all datagrams in progress.
    pub fn clear(&mut self, now: u64, sink: &mut impl Sink<B>) {
        self.table.clear(&mut self.lease, now, sink);
    }

    /// What it has seen and done.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.table.counters
    }

    /// What it holds.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges {
            datagrams: self.table.datagrams(),
            memory_bytes: self.table.held(),
            committed_bytes: self.table.committed(),
            leased_bytes: self.table.held() + self.lease.unused(),
            blocks: self.table.blocks(),
        }
    }
}

impl<B> Drop for Shard<B> {
    fn drop(&mut self) {
        struct Nobody;
        impl<B> Sink<B> for Nobody {
            fn whole(&mut self, _: B, _: usize) {}
            fn datagram(&mut self, _: &crate::Datagram<'_, B>) {}
            fn release(&mut self, _: B, _: Released) {}
        }
        self.table.clear(&mut self.lease, 0, &mut Nobody);
    }
}

/// Which shard a datagram's fragments go to. The same for all cores.
#[derive(Clone, Debug)]
pub struct Steering {
    secret: HashKey,
    shards: u32,
}

impl Steering {
    /// To `shards` shards. The secret must not be that of a shard.
    #[must_use]
    pub fn new(secret: HashKey, shards: u32) -> Self {
        Self { secret, shards: shards.max(1) }
    }

    /// The number of the shard, below the number of shards.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "below the number of shards")]
    pub fn shard(&self, key: &Key) -> u32 {
        ((self.secret.hash(key) >> 32) * u64::from(self.shards) >> 32) as u32
    }
}
