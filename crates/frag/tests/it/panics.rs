//! A sink that panics: what the shard has it keeps or gives back, and goes on.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use frag::wire::parse;
use frag::{Arrival, Config, Datagram, HashKey, Ledger, Policy, Released, Shard, Sink};
use testkit::fragments::{Family, Packet, cut};
use testkit::heap;

use crate::host::SECOND;

/// A buffer that says when it is gone.
struct Buffer(Rc<Cell<i64>>);

impl Drop for Buffer {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Panics at some call.
#[derive(Default)]
struct Angry {
    /// Releases until then.
    patience: Option<u32>,
    datagrams: u64,
}

impl Sink<Buffer> for Angry {
    fn whole(&mut self, _: Buffer, _: usize) {}

    fn datagram(&mut self, _: &Datagram<'_, Buffer>) {
        self.datagrams += 1;
    }

    fn release(&mut self, _: Buffer, _: Released) {
        match &mut self.patience {
            Some(0) => {
                self.patience = None;
                // As `panic!`, without words on standard error.
                std::panic::resume_unwind(Box::new("enough"));
            }
            Some(left) => *left -= 1,
            None => {}
        }
    }
}

struct World {
    shard: Shard<Buffer>,
    ledger: Arc<Ledger>,
    sink: Angry,
    buffers: Rc<Cell<i64>>,
    now: u64,
}

impl World {
    fn new(config: &Config) -> Self {
        let limits = config.limits().expect("settings that can be");
        let ledger = Ledger::of(&limits);
        let shard = Shard::new(&limits, &ledger, HashKey::new([7, 11]));
        let (sink, buffers) = (Angry::default(), Rc::default());
        Self { shard, ledger, sink, buffers, now: SECOND }
    }

    /// Whether it panicked.
    fn push(&mut self, packet: &Packet) -> bool {
        let bytes = packet.emit();
        self.buffers.set(self.buffers.get() + 1);
        let buffer = Buffer(Rc::clone(&self.buffers));
        let arrival = Arrival { packet: &bytes, buffer, cost: 2048, scope: 0 };
        let Self { shard, sink, now, .. } = self;
        catch_unwind(AssertUnwindSafe(|| shard.push(arrival, *now, sink))).is_err()
    }

    fn check(&self) {
        let gauges = self.shard.gauges();
        assert!(gauges.memory_bytes + gauges.spare_bytes <= gauges.leased_bytes);
        assert_eq!(gauges.leased_bytes + self.ledger.left(), self.ledger.limit());
    }

    /// Nothing is in progress, and nothing held.
    fn check_empty(&self) {
        self.check();
        let gauges = self.shard.gauges();
        let there = (gauges.datagrams, gauges.memory_bytes, gauges.committed_bytes, gauges.blocks);
        assert_eq!((there, self.buffers.get()), ((0, 0, 0, 0), 0), "buffers are somewhere");
    }
}

/// How a datagram of some fragments comes to its end.
#[derive(Clone, Copy, Debug)]
enum End {
    /// With its last piece.
    Whole,
    /// With one that overlaps.
    Overlap,
    Timeout,
    /// Another one needs its memory.
    Evicted,
}

/// One of them. Answers how often it panicked.
fn run(world: &mut World, end: End, id: u32, cuts: &[(usize, usize)]) -> u32 {
    let whole = Packet::new(Family::V4, id, vec![7; 1600]);
    let (last, rest) = cuts.split_last().expect("some");
    let fragment = |(at, end): (usize, usize)| whole.fragment(at, end);
    let mut panics: u32 = rest.iter().map(|cut| u32::from(world.push(&fragment(*cut)))).sum();
    match end {
        End::Whole => panics += u32::from(world.push(&fragment(*last))),
        End::Overlap => panics += u32::from(world.push(&whole.fragment(rest[0].0, rest[0].1 + 8))),
        End::Timeout => {
            world.now += 100 * SECOND;
            let World { shard, sink, now, .. } = world;
            let expire = || shard.expire(*now, usize::MAX, sink);
            panics += u32::from(catch_unwind(AssertUnwindSafe(expire)).is_err());
        }
        End::Evicted => {
            // Idle when the others come, of which each needs more than there is.
            world.now += 10 * SECOND;
            for other in 0..40 {
                let other = Packet::new(Family::V4, id + 1 + other, vec![7; 3000]);
                panics += u32::from(world.push(&other.fragment(0, 1480)));
            }
            let World { shard, sink, now, .. } = world;
            shard.clear(*now, sink);
        }
    }
    panics
}

/// Wherever it panics: each account is right afterwards, no record and no buffer is lost, and what comes next is put
/// together as ever.
#[test]
fn a_sink_that_panics_while_buffers_are_released_loses_nothing_of_the_shard() {
    let even: Vec<(usize, usize)> = cut(1600, 400).iter().map(|cut| (cut.at, cut.end)).collect();
    let uneven = vec![(0, 400), (1208, 1600), (400, 1000), (1000, 1208)];
    for overlap in [Policy::Strict, Policy::First] {
        for end in [End::Whole, End::Overlap, End::Timeout, End::Evicted] {
            for cuts in [&even, &uneven] {
                if overlap != Policy::Strict && matches!(end, End::Overlap) {
                    continue;
                }
                let config = Config { overlap, memory_bytes: 64 << 10, ..Config::default() };
                let mut world = World::new(&config);
                let mut held = Vec::new();
                for id in 0..200 {
                    world.sink.patience = Some(id % 3);
                    let panics = run(&mut world, end, id * 100, cuts);
                    assert_eq!(panics, 1, "{end:?}");
                    world.now += 100 * SECOND;
                    world.shard.expire(world.now, usize::MAX, &mut world.sink);
                    world.check_empty();
                    world.sink.patience = None;
                    let whole = world.sink.datagrams;
                    assert_eq!(run(&mut world, End::Whole, id * 100 + 99, cuts), 0);
                    assert_eq!(world.sink.datagrams, whole + 1, "{end:?}: as ever");
                    world.check_empty();
                    held.push(heap::held());
                }
                let (first, last) = (held[20], held[199]);
                // The list of figures grows, and nothing else.
                assert!(last - first <= 8 * 256, "{end:?}: {} bytes are lost", last - first);
                let World { shard, ledger, .. } = world;
                drop(shard);
                assert_eq!(ledger.left(), ledger.limit());
            }
        }
    }
}

/// Knows buffers by their numbers, and panics when it is to take a datagram.
#[derive(Default)]
struct Refusing {
    /// Datagrams until then.
    patience: Option<u32>,
    taken: u64,
    /// How often each buffer was released, and how often of those as delivered.
    released: HashMap<u32, (u32, u32)>,
}

impl Sink<u32> for Refusing {
    fn whole(&mut self, _: u32, _: usize) {}

    fn datagram(&mut self, _: &Datagram<'_, u32>) {
        if let Some(left) = &mut self.patience {
            if *left == 0 {
                self.patience = None;
                std::panic::resume_unwind(Box::new("enough"));
            }
            *left -= 1;
        }
        self.taken += 1;
    }

    fn release(&mut self, buffer: u32, why: Released) {
        let (all, delivered) = self.released.entry(buffer).or_default();
        *all += 1;
        *delivered += u32::from(why == Released::Delivered);
    }
}

/// How packets come in.
#[derive(Clone, Copy, Debug)]
enum Way {
    OneByOne,
    Burst,
    Parsed,
}

/// What is called next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Burst,
    Expire,
    Clear,
}

/// Hands in what comes at once. Answers whether the sink panicked.
fn hand_in(
    shard: &mut Shard<u32>,
    packets: &[Vec<u8>],
    (way, first): (Way, u32),
    sink: &mut Refusing,
) -> bool {
    let arrivals = (first..).zip(packets).map(|(buffer, packet)| Arrival::new(packet, buffer));
    let all = || match way {
        Way::OneByOne => arrivals.for_each(|arrival| shard.push(arrival, SECOND, sink)),
        Way::Burst => shard.push_burst(&mut arrivals.collect(), SECOND, sink),
        Way::Parsed => {
            let parsed = arrivals.map(|arrival| match parse(arrival.packet, 0) {
                Ok(frag::wire::Packet::Fragment(fragment)) => (fragment, arrival),
                other => panic!("{other:?}"),
            });
            shard.push_fragments(parsed, SECOND, sink);
        }
    };
    catch_unwind(AssertUnwindSafe(all)).is_err()
}

/// Wherever it panics: what it has not taken is not delivered, and each buffer that was looked at is released once.
#[test]
fn a_datagram_that_a_sink_panics_at_is_not_delivered() {
    // Two datagrams of which the fragments are mixed, one that is atomic, and one more.
    let [one, two, three] = [1, 2, 3].map(|id| Packet::new(Family::V6, id, vec![7; 1600]));
    let mut packets = Vec::new();
    for (at, end) in [(0, 800), (800, 1600)] {
        packets.extend([&one, &two].map(|packet| packet.fragment(at, end).emit()));
    }
    packets.push(Packet::new(Family::V6, 4, vec![7; 100]).fragment(0, 100).emit());
    packets.extend([(0, 800), (800, 1600)].map(|(at, end)| three.fragment(at, end).emit()));
    let other = Packet::new(Family::V6, 5, vec![7; 1600]);
    let others = [(0, 800), (800, 1600)].map(|(at, end)| other.fragment(at, end).emit());
    // With which packet each datagram is complete.
    let ends = [2, 3, 4, 6];
    for way in [Way::OneByOne, Way::Burst, Way::Parsed] {
        for next in [Next::Burst, Next::Expire, Next::Clear] {
            for (patience, end) in (0..).zip(ends) {
                let what = format!("{way:?}, then {next:?}, datagram {patience}");
                let limits = Config::default().limits().expect("settings that can be");
                let ledger = Ledger::of(&limits);
                let mut shard = Shard::new(&limits, &ledger, HashKey::new([7, 11]));
                let mut sink = Refusing { patience: Some(patience), ..Refusing::default() };
                assert!(hand_in(&mut shard, &packets, (way, 0), &mut sink), "{what}");
                let so_far = shard.counters();
                assert_eq!((so_far.datagrams, sink.taken), (patience.into(), patience.into()));
                match next {
                    Next::Burst => {
                        assert!(!hand_in(&mut shard, &others, (Way::Burst, 100), &mut sink));
                    }
                    Next::Expire => drop(shard.expire(SECOND, usize::MAX, &mut sink)),
                    Next::Clear => shard.clear(SECOND, &mut sink),
                }
                // What was in progress has its time.
                shard.expire(100 * SECOND, usize::MAX, &mut sink);
                let counters = shard.counters().clone();
                assert_eq!((counters.datagrams, counters.fragments_in_progress()), (sink.taken, 0));
                for buffer in 0..=end {
                    let delivered = ends.iter().take(patience as usize);
                    let delivered = u32::from(delivered.copied().any(|end| is_of(end, buffer)));
                    assert_eq!(
                        sink.released.get(&buffer),
                        Some(&(1, delivered)),
                        "{what}, {buffer}"
                    );
                }
                let once = sink.released.values().all(|(all, _)| *all == 1);
                assert!(once, "{what}: {:?}", sink.released);
                drop(shard);
                assert_eq!(ledger.left(), ledger.limit());
            }
        }
    }
}

/// Whether a packet is of the datagram that is complete with that one.
fn is_of(end: u32, packet: u32) -> bool {
    match end {
        2 => [0, 2].contains(&packet),
        3 => [1, 3].contains(&packet),
        4 => packet == 4,
        _ => [5, 6].contains(&packet),
    }
}

/// What the next burst gives back is so, whatever comes in it.
#[test]
fn an_atomic_fragment_that_a_sink_panics_at_comes_back_by_the_next_burst() {
    let atomic = Packet::new(Family::V6, 4, vec![7; 100]).fragment(0, 100).emit();
    let other = Packet::new(Family::V6, 5, vec![7; 1600]);
    let others = [(0, 800), (800, 1600)].map(|(at, end)| other.fragment(at, end).emit());
    for way in [Way::OneByOne, Way::Burst, Way::Parsed] {
        let limits = Config::default().limits().expect("settings that can be");
        let mut shard = Shard::new(&limits, &Ledger::of(&limits), HashKey::new([7, 11]));
        let mut sink = Refusing { patience: Some(0), ..Refusing::default() };
        assert!(hand_in(&mut shard, std::slice::from_ref(&atomic), (way, 0), &mut sink), "{way:?}");
        assert!(!hand_in(&mut shard, &others, (Way::Burst, 100), &mut sink));
        assert_eq!(sink.released.get(&0), Some(&(1, 0)), "{way:?}");
        let counters = shard.counters();
        assert_eq!((counters.datagrams, counters.fragments_in_progress()), (1, 0), "{way:?}");
    }
}

/// Panics at all that it is told.
struct Never;

impl Sink<u32> for Never {
    fn whole(&mut self, _: u32, _: usize) {}

    fn datagram(&mut self, _: &Datagram<'_, u32>) {
        std::panic::resume_unwind(Box::new("enough"));
    }

    fn release(&mut self, _: u32, _: Released) {
        std::panic::resume_unwind(Box::new("enough"));
    }
}

#[test]
fn a_burst_is_emptied_also_where_the_sink_panics_at_what_was_left() {
    let limits = Config::default().limits().expect("settings that can be");
    let mut shard = Shard::new(&limits, &Ledger::of(&limits), HashKey::new([7, 11]));
    for id in 1..3 {
        let one = Packet::new(Family::V6, id, vec![7; 1600]);
        let packets = [(0, 800), (800, 1600)].map(|(at, end)| one.fragment(at, end).emit());
        let mut arrivals = (0..).zip(&packets).map(|(n, p)| Arrival::new(p, n)).collect();
        let all = || shard.push_burst(&mut arrivals, SECOND, &mut Never);
        assert!(catch_unwind(AssertUnwindSafe(all)).is_err());
        assert!(arrivals.is_empty(), "datagram {id}");
    }
}
