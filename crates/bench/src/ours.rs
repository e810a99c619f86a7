//! Our engine, one shard on one thread.

use frag::wire::{self, Fragment};
use frag::{Arrival, Config, Datagram, HashKey, Ledger, Limits, Released, Shard, Sink};
use sys::cache;

use crate::Engine;
use crate::trace::{COST, Places, Slot, Trace};

/// Packets that are handed in at once.
pub(crate) const BURST: usize = 32;
/// More than any case needs: nothing is to be evicted.
pub(crate) const ROOM: u64 = 1 << 30;

/// What a shard runs on, here.
///
/// # Errors
///
/// When the limits cannot be.
pub(crate) fn limits(shards: u32) -> anyhow::Result<Limits> {
    Ok(Config { memory_bytes: ROOM, shards, ..Config::default() }.limits()?)
}

/// A shard alone.
pub(crate) fn shard() -> anyhow::Result<Shard<Slot>> {
    let limits = limits(1)?;
    Ok(Shard::new(&limits, &Ledger::of(&limits), HashKey::new([3, 4])))
}

/// The packet in a slot, come in.
#[inline]
pub(crate) fn arrival(trace: &Trace, slot: usize) -> Arrival<'_, Slot> {
    Arrival { packet: trace.packet(slot), buffer: Slot::new(slot), cost: COST, scope: 0 }
}

/// Takes datagrams as they are.
#[derive(Debug, Default)]
pub(crate) struct Count {
    pub(crate) datagrams: usize,
    bytes: usize,
    released: usize,
}

impl Sink<Slot> for Count {
    fn whole(&mut self, _: Slot, _: usize) {}

    #[inline]
    fn datagram(&mut self, datagram: &Datagram<'_, Slot>) {
        self.datagrams += 1;
        self.bytes += datagram.payload_len();
    }

    #[inline]
    fn release(&mut self, buffer: Slot, _: Released) {
        self.released ^= buffer.at();
    }
}

/// Has the headers of the next burst brought near, one by one, while this one is taken in.
#[derive(Debug)]
pub(crate) struct Before<'s, 't, S> {
    pub(crate) sink: &'s mut S,
    pub(crate) trace: &'t Trace,
    /// The first slot of that burst.
    pub(crate) next: usize,
}

impl<S: Sink<Slot>> Sink<Slot> for Before<'_, '_, S> {
    #[inline(always)]
    fn whole(&mut self, buffer: Slot, len: usize) {
        self.sink.whole(buffer, len);
    }

    #[inline(always)]
    fn datagram(&mut self, datagram: &Datagram<'_, Slot>) {
        self.sink.datagram(datagram);
    }

    #[inline(always)]
    fn release(&mut self, buffer: Slot, why: Released) {
        self.sink.release(buffer, why);
    }

    #[inline(always)]
    fn soon(&mut self, buffer: &Slot) {
        self.sink.soon(buffer);
    }

    #[inline(always)]
    fn meanwhile(&mut self, at: usize) {
        prefetch(self.trace, self.next + at);
    }
}

/// Writes each datagram to one place: that of its flow.
#[derive(Debug)]
pub(crate) struct Gather<'t> {
    trace: &'t Trace,
    places: &'t mut Places,
    datagrams: usize,
}

impl<'t> Gather<'t> {
    pub(crate) fn new(trace: &'t Trace, places: &'t mut Places) -> Self {
        Self { trace, places, datagrams: 0 }
    }

    fn place(&mut self, datagram: &Datagram<'_, Slot>) -> &mut [u8] {
        let source = u32::try_from(datagram.key().src[1]).unwrap_or(0);
        self.places.of(self.trace.flow(source))
    }
}

impl Sink<Slot> for Gather<'_> {
    fn whole(&mut self, _: Slot, _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, Slot>) {
        let trace = self.trace;
        let place = self.place(datagram);
        let packet = |slot: &Slot| trace.packet(slot.at());
        let written = datagram.write_ahead(place, packet, cache::pull_second);
        self.datagrams += usize::from(written.is_ok());
    }

    fn release(&mut self, _: Slot, _: Released) {}

    #[inline]
    fn soon(&mut self, slot: &Slot) {
        cache::pull_second(self.trace.packet(slot.at()));
    }
}

/// Compares each datagram with what was sent.
struct Check<'t>(Gather<'t>);

impl Sink<Slot> for Check<'_> {
    fn whole(&mut self, _: Slot, _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, Slot>) {
        self.0.datagram(datagram);
        let trace = self.0.trace;
        let (header, payload) = self.0.place(datagram)[..datagram.packet_len()].split_at(20);
        let source = u32::from_be_bytes([header[12], header[13], header[14], header[15]]);
        let id = u16::from_be_bytes([header[4], header[5]]);
        assert!(trace.is_right(source, id, payload), "a datagram is not what was sent");
    }

    fn release(&mut self, _: Slot, why: Released) {
        assert!(!matches!(why, Released::Dropped(_)), "{why:?}");
    }
}

/// Everything in bursts.
fn push_all(shard: &mut Shard<Slot>, trace: &Trace, sink: &mut impl Sink<Slot>) {
    let mut burst = Vec::with_capacity(BURST);
    let mut now = 0;
    for begin in (0..trace.len()).step_by(BURST) {
        let end = (begin + BURST).min(trace.len());
        burst.extend((begin..end).map(|slot| arrival(trace, slot)));
        now += 1000;
        shard.push_burst(&mut burst, now, &mut Before { sink, trace, next: end });
    }
}

/// Has the header of the packet in a slot brought near, if there is one, without a wait for it. Every program that takes
/// packets from a ring does so with the next ones; DPDK's does.
#[inline]
pub(crate) fn prefetch(trace: &Trace, slot: usize) {
    if slot >= trace.len() {
        return;
    }
    let packet = trace.place(slot);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address whatever changes nothing that a program can see.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(packet.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = packet;
}

/// All that it is given, and looked at.
fn check(shard: &mut Shard<Slot>, places: &mut Places, trace: &Trace) -> usize {
    let mut sink = Check(Gather::new(trace, places));
    push_all(shard, trace, &mut sink);
    sink.0.datagrams
}

/// Zero copy.
pub(crate) struct ZeroCopy(pub(crate) Shard<Slot>);

impl Engine for ZeroCopy {
    fn pass(&mut self, trace: &Trace) -> usize {
        let mut sink = Count::default();
        push_all(&mut self.0, trace, &mut sink);
        std::hint::black_box(sink.released);
        sink.datagrams
    }

    fn check(&mut self, trace: &Trace) -> usize {
        Places::new(&trace.case).map_or(0, |mut places| check(&mut self.0, &mut places, trace))
    }
}

/// Zero copy, and each packet by a call of its own: nothing of the table is fetched for many at once. Headers are prefetched
/// as they are for bursts.
pub(crate) struct OneByOne(pub(crate) Shard<Slot>);

impl Engine for OneByOne {
    fn pass(&mut self, trace: &Trace) -> usize {
        let mut sink = Count::default();
        let mut now = 0;
        for begin in (0..trace.len()).step_by(BURST) {
            now += 1000;
            for slot in begin..(begin + BURST).min(trace.len()) {
                prefetch(trace, slot + BURST);
                self.0.push(arrival(trace, slot), now, &mut sink);
            }
        }
        std::hint::black_box(sink.released);
        sink.datagrams
    }

    fn check(&mut self, trace: &Trace) -> usize {
        Places::new(&trace.case).map_or(0, |mut places| check(&mut self.0, &mut places, trace))
    }
}

/// With a copy to one place.
pub(crate) struct Contiguous(pub(crate) Shard<Slot>, pub(crate) Places);

impl Engine for Contiguous {
    fn pass(&mut self, trace: &Trace) -> usize {
        let mut sink = Gather::new(trace, &mut self.1);
        push_all(&mut self.0, trace, &mut sink);
        let datagrams = sink.datagrams;
        std::hint::black_box(&self.1);
        datagrams
    }

    fn check(&mut self, trace: &Trace) -> usize {
        check(&mut self.0, &mut self.1, trace)
    }
}

/// Headers read and hashed, and nothing else: what zero copy cannot do without.
pub(crate) struct Headers(pub(crate) HashKey);

impl Engine for Headers {
    fn pass(&mut self, trace: &Trace) -> usize {
        hash_headers(&self.0, trace)
    }

    fn check(&mut self, trace: &Trace) -> usize {
        self.pass(trace)
    }
}

/// Answers how many datagrams there would be.
pub(crate) fn hash_headers(secret: &HashKey, trace: &Trace) -> usize {
    let mut sum = 0;
    // As the engine does it: a burst, each to a place of its own.
    let mut parsed = [Fragment::NONE; BURST];
    for begin in (0..trace.len()).step_by(BURST) {
        for (slot, to) in (begin..trace.len()).zip(&mut parsed) {
            prefetch(trace, slot + BURST);
            if let Ok(None) = wire::parse_to(trace.packet(slot), 0, to) {
                sum ^= secret.hash(&to.key);
            }
        }
        std::hint::black_box(&parsed);
    }
    std::hint::black_box(sum);
    trace.datagrams
}
