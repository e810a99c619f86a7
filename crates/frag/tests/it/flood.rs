//! One source sends far more than there is memory for: the others go on. In a shard, and in a table for all cores, where
//! the flood's datagrams are in all buckets.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use frag::{Arrival, Config, Core, Counters, HashKey, Ledger, Reason, Shard, Shared};
use testkit::fragments::Family;

use crate::host::{Buffer, MS, Out, SECOND};
use crate::overload::{FRAME, Mould};

/// What is flooded.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Shard,
    /// Of so many buckets, with two cores that get fragments in turn.
    Table(u32),
    /// The same, many fragments at a time.
    Bursts(u32),
}

const KINDS: [Kind; 5] =
    [Kind::Shard, Kind::Table(16), Kind::Table(256), Kind::Bursts(16), Kind::Bursts(256)];

enum Engine {
    Shard(Box<Shard<Buffer>>),
    Table { table: Arc<Shared<Buffer>>, cores: Box<[Core; 2]>, burst: usize },
}

struct World {
    engine: Engine,
    out: Out,
    now: u64,
    pushed: usize,
    waiting: Vec<Buffer>,
}

/// Fragments that come at once.
const BURST: usize = 32;

impl World {
    fn new(kind: Kind, memory_bytes: u64) -> Self {
        Self::with(kind, Config { memory_bytes, copy_below: 0, ..Config::default() })
    }

    fn with(kind: Kind, config: Config) -> Self {
        let shards = if matches!(kind, Kind::Shard) { 1 } else { 2 };
        let config = Config { shards, ..config };
        let limits = config.limits().expect("settings that can be");
        let secret = HashKey::new([7, 11]);
        let engine = match kind {
            Kind::Shard => {
                Engine::Shard(Box::new(Shard::new(&limits, &Ledger::of(&limits), secret)))
            }
            Kind::Table(buckets) | Kind::Bursts(buckets) => {
                let table = Shared::new(&limits, buckets, &secret);
                let cores = Box::new([table.core(), table.core()]);
                let burst = if matches!(kind, Kind::Table(_)) { 1 } else { BURST };
                Engine::Table { table, cores, burst }
            }
        };
        Self { engine, out: Out::default(), now: SECOND, pushed: 0, waiting: Vec::new() }
    }

    fn push(&mut self, bytes: Vec<u8>) {
        let buffer = Rc::new(bytes);
        self.pushed += 1;
        match &mut self.engine {
            Engine::Shard(shard) => {
                let arrival = Arrival { cost: FRAME, ..Arrival::new(&buffer, Rc::clone(&buffer)) };
                shard.push(arrival, self.now, &mut self.out);
            }
            Engine::Table { table, cores, burst: 1 } => {
                let arrival = Arrival { cost: FRAME, ..Arrival::new(&buffer, Rc::clone(&buffer)) };
                table.push(&mut cores[self.pushed % 2], arrival, self.now, &mut self.out);
            }
            Engine::Table { burst, .. } => {
                let burst = *burst;
                self.waiting.push(buffer);
                if self.waiting.len() == burst {
                    self.push_waiting();
                }
            }
        }
    }

    fn push_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let Engine::Table { table, cores, .. } = &mut self.engine else { return };
        let mut burst = Vec::new();
        for buffer in &waiting {
            burst.push(Arrival { cost: FRAME, ..Arrival::new(buffer, Rc::clone(buffer)) });
        }
        table.push_burst(&mut cores[self.pushed / BURST % 2], &mut burst, self.now, &mut self.out);
    }

    fn counters(&self) -> Counters {
        match &self.engine {
            Engine::Shard(shard) => shard.counters().clone(),
            Engine::Table { table, .. } => table.counters(),
        }
    }

    /// How many of them are missing.
    fn missing(&mut self, sent: &[(u32, u16)], mould: &Mould) -> usize {
        self.push_waiting();
        let delivered: BTreeSet<_> = self.out.delivered.iter().map(|d| mould.name(d)).collect();
        sent.iter().filter(|name| !delivered.contains(name)).count()
    }
}

/// One source fills all memory with first fragments; ten others send three fragments each, all the time.
#[test]
fn who_floods_harms_himself() {
    const STEP: u64 = 625;
    const FLOOD: u32 = 0xff_ffff;
    for kind in KINDS {
        let (mut world, mould) = (World::new(kind, 1 << 20), Mould::new(Family::V4, 3));
        let mut sent = Vec::new();
        let mut flooded = 0u16;
        // What datagrams need is known when the flood begins.
        for round in 0..630u16 {
            for _ in 0..if round < 30 { 0 } else { 20 } {
                flooded = flooded.wrapping_add(1);
                world.push(mould.emit(0, (FLOOD, flooded)));
                world.now += STEP;
            }
            for sender in 1..=10 {
                let (piece, name) = (usize::from(round % 3), (sender, round / 3));
                world.push(mould.emit_named(piece, name));
                world.now += STEP;
                if piece == 2 {
                    sent.push(name);
                }
            }
        }
        let missing = world.missing(&sent, &mould);
        let counters = world.counters();
        assert!(missing * 100 <= sent.len(), "{kind:?}: {missing} of {}: {counters:?}", sent.len());
    }
}

/// What the flood sends of each of its datagrams, of which none is ever complete.
#[derive(Clone, Copy, Debug)]
enum Flood {
    First,
    Last,
    /// Right after each other: so it seems that fragments of a datagram come so.
    FirstAndSecond,
}

/// Ten senders whose fragments are 10 ms apart, while one network sends 20,000 others a second; and memory for four times
/// what the ten need. All that they begin comes through, but for what was refused before the first was complete.
fn slow_senders_come_through(kind: Kind, family: Family, pieces: usize, flood: Flood) {
    const GAP: u64 = 10 * MS;
    let memory_bytes = 40 * (pieces as u64 * u64::from(FRAME) + 2048);
    let mut world = World::new(kind, memory_bytes.max(1 << 20));
    let mould = Mould::new(family, pieces);
    let push = |world: &mut World, piece: usize, name| world.push(mould.emit_named(piece, name));
    let mut sent = Vec::new();
    let mut flooded = 0u16;
    let steps = 8 * pieces.max(15);
    for step in 0..steps {
        for sender in 0..10 {
            // Each begins at another time.
            let Some(at) = (step).checked_sub(sender * pieces / 10) else { continue };
            let (piece, id) = (at % pieces, u16::try_from(at / pieces).expect("few"));
            let name = (u32::try_from(sender).expect("ten") + 1, id);
            push(&mut world, piece, name);
            if piece + 1 == pieces && id >= 2 {
                sent.push(name);
            }
            for _ in 0..20 {
                flooded = flooded.wrapping_add(1);
                match flood {
                    Flood::First => push(&mut world, 0, (0xff_ffff, flooded)),
                    Flood::Last => push(&mut world, pieces - 1, (0xff_ffff, flooded)),
                    Flood::FirstAndSecond => {
                        push(&mut world, 0, (0xff_ffff, flooded));
                        push(&mut world, 1, (0xff_ffff, flooded));
                    }
                }
                world.now += GAP / 200;
            }
        }
    }
    let missing = world.missing(&sent, &mould);
    let what = (kind, family, pieces, flood);
    assert!(sent.len() >= 40, "{what:?}: too few to say anything: {}", sent.len());
    let counters = world.counters();
    assert!(missing * 100 <= sent.len(), "{what:?}: {missing} of {}: {counters:?}", sent.len());
}

fn who_floods_harms_no_slow_sender_of(kind: Kind) {
    for family in [Family::V4, Family::V6] {
        for pieces in [3, 45] {
            for flood in [Flood::First, Flood::Last, Flood::FirstAndSecond] {
                slow_senders_come_through(kind, family, pieces, flood);
            }
        }
    }
}

#[test]
fn who_floods_a_shard_harms_no_slow_sender() {
    who_floods_harms_no_slow_sender_of(Kind::Shard);
}

#[test]
fn who_floods_a_table_harms_no_slow_sender() {
    who_floods_harms_no_slow_sender_of(Kind::Table(16));
    who_floods_harms_no_slow_sender_of(Kind::Table(256));
}

#[test]
fn who_floods_a_table_by_bursts_harms_no_slow_sender() {
    who_floods_harms_no_slow_sender_of(Kind::Bursts(16));
    who_floods_harms_no_slow_sender_of(Kind::Bursts(256));
}

/// With so many places over all tables, and memory for more.
fn crowded(kind: Kind, places: u32) -> World {
    World::with(kind, Config { datagrams_max: places, copy_below: 0, ..Config::default() })
}

/// One source begins ten datagrams where ten others have one each, and never ends any, until there is no place left: before
/// any of its own is idle. And its datagrams are small to those of the others.
#[test]
fn who_takes_all_places_harms_himself() {
    const STEP: u64 = 625;
    const FLOOD: u32 = 0xff_ffff;
    for kind in KINDS {
        for (pieces, flood_piece) in [(3, 0), (3, 2), (45, 0)] {
            let mut world = crowded(kind, 1024);
            let mould = Mould::new(Family::V4, pieces);
            let mut sent = Vec::new();
            let mut flooded = 0u16;
            for round in 0..5 * pieces.max(18) {
                for _ in 0..if round < pieces { 0 } else { 100 } {
                    flooded = flooded.wrapping_add(1);
                    world.push(mould.emit(flood_piece, (FLOOD, flooded)));
                    world.now += STEP;
                }
                let (piece, id) = (round % pieces, u16::try_from(round / pieces).expect("few"));
                for sender in 1..=10 {
                    world.push(mould.emit_named(piece, (sender, id)));
                    world.now += STEP;
                    if piece + 1 == pieces {
                        sent.push((sender, id));
                    }
                }
            }
            let missing = world.missing(&sent, &mould);
            let what = (kind, pieces, flood_piece, world.counters());
            let full = what.3.fragments(Reason::TooManyDatagrams);
            assert!(full > 0, "places were left: {what:?}");
            assert!(missing * 50 <= sent.len(), "{missing} of {}: {what:?}", sent.len());
        }
    }
}

/// So many senders of so many sources take turns, with more datagrams than there are places, and memory for all. Nobody
/// pushes others out so that none ends: as many come through as there are places for, or nearly so.
fn as_many_end_as_there_are_places_for(kind: Kind, sources: u32, senders: u32, pieces: usize) {
    const PLACES: u32 = 64;
    let mut world = crowded(kind, PLACES);
    let mould = Mould::new(Family::V4, pieces);
    // Each begins somewhere in a datagram.
    let mut all: Vec<_> = (0..senders as usize).map(|n| (n * 7 % pieces, 0)).collect();
    let mut offered = 0;
    for _ in 0..20 * pieces {
        for (n, (piece, id)) in (0..senders).zip(&mut all) {
            let name = *id * (senders / sources) + n / sources;
            let name = u16::try_from(name).expect("few");
            world.push(mould.emit_named(*piece, (1 + n % sources, name)));
            world.now += 625;
            *piece += 1;
            if *piece == pieces {
                (*piece, *id) = (0, *id + 1);
                offered += 1;
            }
        }
    }
    world.push_waiting();
    let delivered = world.out.delivered.len() as u64;
    let most = offered * u64::from(PLACES) / u64::from(senders);
    let what = (kind, sources, senders, pieces, world.counters());
    assert!(what.4.fragments(Reason::TooManyDatagrams) > 0, "places were left: {what:?}");
    assert!(delivered * 5 >= most * 4, "{delivered} of {most}: {what:?}");
}

#[test]
fn where_places_are_few_those_are_used() {
    for kind in [Kind::Shard, Kind::Table(16)] {
        for (sources, senders) in [(1, 200), (10, 200), (50, 200), (200, 200), (10, 1000)] {
            for pieces in [3, 9] {
                as_many_end_as_there_are_places_for(kind, sources, senders, pieces);
            }
        }
        as_many_end_as_there_are_places_for(kind, 10, 200, 45);
    }
}
