//! The limit, beside what is allocated in truth: counted by the allocator, at each instant.

use std::sync::Arc;

use frag::{
    Arrival, Config, Core, Datagram, Gauges, HashKey, Ledger, Policy, Released, Shard, Shared,
    Sink, lane, lane_bytes,
};
use proptest::prelude::*;
use testkit::fragments::{Family, ORDERS, Packet, Random, cut};
use testkit::heap;

use crate::host::{MS, SECOND};

/// Frames by number, which count as if they were allocated for as long as somebody has them.
#[derive(Default)]
struct Frames {
    costs: Vec<u32>,
    datagrams: u64,
    released: usize,
}

impl Sink<u32> for Frames {
    fn whole(&mut self, _: u32, _: usize) {
        unreachable!("only fragments are sent here");
    }

    fn datagram(&mut self, _: &Datagram<'_, u32>) {
        self.datagrams += 1;
    }

    fn release(&mut self, buffer: u32, _: Released) {
        heap::count(-i64::from(self.costs[buffer as usize]));
        self.released += 1;
    }
}

/// Shards, or cores with a table, that share a limit.
enum Engine {
    Shards(Vec<Shard<u32>>),
    Table(Arc<Shared<u32>>, Vec<Core>),
}

struct World {
    engine: Engine,
    frames: Frames,
    now: u64,
    /// What the engine has allocated and the frames that it holds, bytes; and how much that may be.
    taken: i64,
    most: i64,
    /// The most that it ever was.
    seen: i64,
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).expect("far below 2^63")
}

impl World {
    fn new(config: &Config, buckets: Option<u32>) -> Self {
        let limits = config.limits().expect("settings that can be");
        let beside = match buckets {
            None => u64::from(config.shards) * Shard::<u32>::beside_bytes(&limits),
            Some(buckets) => Shared::<u32>::beside_bytes(&limits, buckets),
        };
        // The ledger, and the lists in which engines are here.
        let slack = 1024 + 1024 * u64::from(config.shards);
        let before = heap::held();
        let engine = match buckets {
            None => {
                let ledger = Ledger::of(&limits);
                let shard = |n| Shard::new(&limits, &ledger, HashKey::new([n, 3]));
                Engine::Shards((0..u64::from(config.shards)).map(shard).collect())
            }
            Some(buckets) => {
                let table = Shared::new(&limits, buckets, &HashKey::new([7, 11]));
                let cores = (0..config.shards).map(|_| table.core()).collect();
                Engine::Table(table, cores)
            }
        };
        let taken = heap::held() - before;
        assert!(taken <= signed(beside + slack), "{taken} bytes for nothing");
        let most = signed(config.memory_bytes + beside + slack);
        Self { engine, frames: Frames::default(), now: SECOND, taken, most, seen: taken }
    }

    /// Looks at all instants of a call. Beside the limit there may be a frame that is being looked at.
    fn during(&mut self, frame: u32, call: impl FnOnce(&mut Engine, &mut Frames, u64)) {
        let before = heap::held();
        heap::most();
        heap::count(i64::from(frame));
        call(&mut self.engine, &mut self.frames, self.now);
        let most = self.taken + heap::most() - before - i64::from(frame);
        assert!(most <= self.most, "{most} bytes where {} are allowed", self.most);
        self.seen = self.seen.max(most);
        self.taken += heap::held() - before;
    }

    fn push(&mut self, core: usize, packet: &Packet, cost: u32) {
        let bytes = packet.emit();
        let buffer = u32::try_from(self.frames.costs.len()).expect("few");
        self.frames.costs.push(cost);
        let arrival = Arrival { packet: &bytes, buffer, cost, scope: 0 };
        self.during(cost, |engine, frames, now| match engine {
            Engine::Shards(shards) => {
                let core = core % shards.len();
                shards[core].push(arrival, now, frames);
            }
            Engine::Table(table, cores) => {
                let core = core % cores.len();
                table.push(&mut cores[core], arrival, now, frames);
            }
        });
    }

    fn expire(&mut self) {
        self.during(0, |engine, frames, now| match engine {
            Engine::Shards(shards) => shards.iter_mut().for_each(|shard| {
                shard.expire(now, usize::MAX, frames);
            }),
            Engine::Table(table, cores) => {
                table.expire(&mut cores[0], 0..table.buckets(), now, frames);
            }
        });
    }

    fn gauges(&self) -> Gauges {
        match &self.engine {
            Engine::Shards(shards) => shards[0].gauges(),
            Engine::Table(table, _) => table.gauges(),
        }
    }

    /// That it ever took `least` bytes, or the test shows nothing.
    fn end(self, least: u64) {
        let (seen, most) = (self.seen, self.most);
        assert!(seen >= signed(least), "no more than {seen} of {most} were ever taken");
        let Self { engine, frames, taken, .. } = self;
        let before = heap::held();
        drop(engine);
        // What a table has it drops with its frames, which then are nobody's.
        let held = frames.costs.len() - frames.released;
        if held == 0 {
            assert_eq!(before - heap::held(), taken, "all that was allocated is given back");
        }
    }
}

const LIMIT: u64 = 1 << 20;

fn config() -> Config {
    Config { memory_bytes: LIMIT, ..Config::default() }
}

/// A datagram of any size, of a source of its own.
fn packet(id: u32, len: usize) -> Packet {
    let mut packet = Packet::new(Family::V6, id, vec![7; len]);
    packet.src = id.to_le_bytes()[0];
    packet
}

/// What datagrams need is known from here on.
fn learn(world: &mut World) {
    for core in 0..2 {
        for id in 0..20 {
            (0..3).for_each(|n| world.push(core, &packet(id, 24).fragment(8 * n, 8 * n + 8), 8));
        }
    }
}

/// Thousands of small ones, most of which then are complete; and then some that are large. What the small ones had is
/// free and in the hands of the engine, since of each chunk something is in use: it would be beyond the limit.
#[test]
fn records_that_are_free_count() {
    for buckets in [None, Some(4)] {
        let mut world = World::new(&Config { copy_below: 0, shards: 2, ..config() }, buckets);
        learn(&mut world);
        for round in 0..3 {
            let ids = || (0..2400).map(|id| 10_000 * (round + 1) + id);
            let push = |world: &mut World, id: u32, at: usize| {
                world.push(id as usize, &packet(id, 24).fragment(at, at + 8), 8);
            };
            ids().for_each(|id| push(&mut world, id, 0));
            for id in ids().filter(|id| id % 32 > 1) {
                push(&mut world, id, 16);
                push(&mut world, id, 8);
            }
            for id in 0..1800u32 {
                let large = packet(900_000 + 3000 * round + id, 3000);
                world.push(id as usize, &large.fragment(0, 1480), 3000);
            }
            world.now += 100 * SECOND;
            world.expire();
        }
        assert!(world.frames.datagrams > 1500, "{}", world.frames.datagrams);
        world.end(LIMIT * 7 / 8);
    }
}

/// The same with small payloads, which are copied to blocks: in turn to those of one that stays and of others. Some are
/// kept that are free, and count; the others are memory again at once.
#[test]
fn blocks_that_are_free_count_or_go() {
    let mut world = World::new(&config(), None);
    learn(&mut world);
    let push = |world: &mut World, id: u32, at: usize| {
        world.push(0, &packet(id, 60_000).fragment(at, at + 200), 2048);
    };
    for n in 0..60 {
        // One block in 16 is of the first, which then is the one that stays.
        let of = |n: usize| {
            if n.is_multiple_of(16) { 0 } else { 1 + u32::try_from(n % 16).expect("small") }
        };
        (0..16)
            .for_each(|m| (0..2).for_each(|k| push(&mut world, of(n * 16 + m), 400 * n + 200 * k)));
    }
    assert!(world.gauges().blocks > 700, "{:?}", world.gauges());
    (1..16).for_each(|id| push(&mut world, id, 100 * 8 - 400));
    (1..16).for_each(|id| world.push(0, &packet(id, 60_000).fragment(8, 216), 2048));
    let gauges = world.gauges();
    assert!(gauges.blocks < 150 && gauges.spare_bytes < 80_000, "{gauges:?}");
    for id in 0..900u32 {
        world.push(0, &packet(1000 + id, 3000).fragment(0, 1480), 3000);
    }
    world.end(LIMIT * 7 / 8);
}

/// Small ones in all memory, the youngest anywhere among the others, and then large ones: what goes for those is moved
/// together on the way.
#[test]
fn records_that_are_moved_count() {
    for (buckets, cost) in [(None, 8), (None, 600), (Some(4), 8), (Some(4), 600)] {
        let mut world = World::new(&config(), buckets);
        learn(&mut world);
        let mut ids: Vec<u32> = (1000..4000).collect();
        ids.iter().for_each(|id| world.push(0, &packet(*id, 24).fragment(0, 8), cost));
        Random::new(8).shuffle(&mut ids);
        for id in &ids[..1500] {
            (1..3).for_each(|n| world.push(0, &packet(*id, 24).fragment(8 * n, 8 * n + 8), cost));
        }
        (5000..7000).for_each(|id| world.push(0, &packet(id, 24).fragment(0, 8), cost));
        let before = world.frames.datagrams;
        // Of a source that has nothing else, and so may have what others have.
        for id in 0..20 {
            let large = Packet::new(Family::V4, id, vec![7; 20_000]);
            for cut in cut(20_000, 1000) {
                world.push(0, &large.fragment(cut.at, cut.end), 1100);
            }
        }
        assert!(world.frames.datagrams - before >= 15, "{}", world.frames.datagrams - before);
        world.end(LIMIT * 7 / 8);
    }
}

/// As many as make the index grow, of whatever cost: where that and a chunk of records are not both to be had,
/// somebody is refused or goes.
#[test]
fn an_admission_ends_where_there_is_a_chunk_and_no_index() {
    for cost in 500..=620 {
        let mut world = World::new(&Config { copy_below: 0, ..config() }, None);
        for id in 0..20 {
            let whole = packet(id, 16);
            (0..2).for_each(|n| world.push(0, &whole.fragment(8 * n, 8 * n + 8), cost));
        }
        for id in 0..1100 {
            world.push(0, &packet(1000 + id, 24).fragment(0, 8), cost);
        }
        assert!(world.gauges().datagrams > 700, "cost {cost}: {:?}", world.gauges());
        world.end(LIMIT * 3 / 4);
    }
}

/// Each wants with its fifth piece a further block and a longer list: where a chunk of blocks is to be had and that is not,
/// somebody goes.
#[test]
fn a_charge_ends_where_there_is_a_chunk_and_no_places() {
    for few in 800..=928 {
        let mut world = World::new(&config(), None);
        learn(&mut world);
        for id in 0..few {
            world.push(0, &packet(1000 + id, 24).fragment(0, 8), 600);
        }
        for id in 0..60 {
            let whole = packet(9000 + id, 60_000);
            (0..5).for_each(|n| world.push(0, &whole.fragment(n * 128, (n + 1) * 128), 600));
        }
        assert!(world.gauges().datagrams > 100, "{few}: {:?}", world.gauges());
        world.end(LIMIT * 3 / 4);
    }
}

/// What a fragment needs while it is taken in is not set aside for its datagram for good.
#[test]
fn what_is_needed_for_a_moment_is_not_set_aside() {
    let mut world = World::new(&Config { overlap: Policy::First, ..config() }, None);
    learn(&mut world);
    let learned = world.gauges();
    assert_eq!((learned.datagrams, learned.committed_bytes), (0, 0));
    for id in 0..100 {
        world.push(0, &packet(1000 + id, 24).fragment(0, 8), 8);
    }
    let Gauges { datagrams, committed_bytes, memory_bytes, .. } = world.gauges();
    assert_eq!(datagrams, 100);
    // Those that are complete had three pieces.
    assert!(committed_bytes < memory_bytes + 100 * 64, "{committed_bytes} for {memory_bytes}");
    world.end(0);
}

/// What is held beside its bytes by one datagram of many pieces: places, a map, layers.
#[test]
fn pieces_are_counted_as_they_are_kept() {
    let mut random = Random::new(4);
    for overlap in [Policy::Strict, Policy::First, Policy::Last] {
        let most = Config { fragments_max: 8192, copy_below: 0, overlap, ..config() };
        let mut world = World::new(&most, None);
        for (id, order) in (0..).zip(ORDERS) {
            // All but one, so that it stays; then of uneven sizes.
            let whole = packet(id, 65_000);
            for cut in order.of(&cut(65_000, 8)[..8000], &mut random) {
                world.push(0, &whole.fragment(cut.at, cut.end), 8);
            }
            let uneven = packet(100 + id, 65_000);
            for cut in order.of(&cut(65_000, 32)[..2000], &mut random) {
                world.push(0, &uneven.fragment(cut.at + 8, cut.end), 8);
                world.push(0, &uneven.fragment(cut.at, cut.at + 16), 8);
            }
            if overlap != Policy::Strict {
                world.push(0, &uneven.fragment(0, 64_000), 8);
            }
        }
        world.now += 100 * SECOND;
        world.expire();
        world.end(LIMIT / 2);
    }
}

/// A table of many buckets, each of which has had something to do: none of them keeps from others what it does not
/// need.
#[test]
fn buckets_that_have_nothing_to_do_hold_nothing() {
    let few = Config { memory_bytes: 64 << 10, copy_below: 0, ..config() };
    let mut world = World::new(&few, Some(256));
    for id in 0..5000 {
        let whole = packet(id, 3000);
        for cut in cut(3000, 1000) {
            world.push(0, &whole.fragment(cut.at, cut.end), 1024);
        }
    }
    assert_eq!(world.frames.datagrams, 5000, "each finds all that there is");
    world.end(0);
}

/// Of what a table has beside the limit, most is there for each bucket: little enough that hundreds of them do not come to
/// more than what they are to keep within.
#[test]
fn hundreds_of_buckets_take_little_beside_the_limit() {
    const BESIDE: u64 = 1_900_000;
    for shards in [1, 2] {
        let four = Config { memory_bytes: 4 << 20, shards, ..config() };
        let beside = Shared::<u32>::beside_bytes(&four.limits().expect("right"), 256);
        assert!(beside <= BESIDE, "{beside} bytes beside 4 MiB");
        let mut world = World::new(&four, Some(256));
        assert!(world.taken < 700_000, "{} bytes for nothing", world.taken);
        for id in 0..200 {
            let whole = packet(id, 3000);
            for cut in cut(3000, 1000) {
                world.push(id as usize, &whole.fragment(cut.at, cut.end), 2304);
            }
        }
        assert_eq!(world.frames.datagrams, 200);
        // In each bucket something has been, and in most something is: of all sizes, copied or not, and far too much.
        for id in 0..6000 {
            let whole = packet(id, 3000);
            for cut in &cut(3000, 1000)[..usize::from(id % 3 == 0) + 1] {
                world.push(id as usize, &whole.fragment(cut.at, cut.end), 2304);
            }
            world.push(id as usize, &whole.fragment(2960, 2968), 2304);
            world.now += MS / 100;
        }
        world.now += 100 * SECOND;
        world.expire();
        let Engine::Table(table, _) = &world.engine else { unreachable!("it is one") };
        assert_eq!(table.datagrams(), 0);
        world.end((4 << 20) + 500_000);
    }
}

#[test]
fn a_lane_takes_what_it_says() {
    for room in [0, 2, 3, 1000, 1024] {
        let before = heap::held();
        let ends = lane(room);
        assert_eq!(heap::held() - before, signed(lane_bytes(room)), "{room}");
        drop(ends);
        assert_eq!(heap::held(), before);
    }
}

/// What a fragment is like, of the hundreds that somebody may send.
fn sent() -> impl Strategy<Value = Vec<(u32, u16, u16, u8, u32)>> {
    let one = (0..3000u32, 0..400u16, 1..200u16, any::<u8>(), 8..5000u32);
    proptest::collection::vec(one, 1..1500)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_comes_no_more_is_allocated_than_said(
        sent in sent(),
        memory_bytes in prop_oneof![Just(64u64 << 10), Just(200_000), Just(1 << 20)],
        copy_below in prop_oneof![Just(0u16), Just(64), Just(512)],
        overlap in prop_oneof![2 => Just(Policy::Strict), 1 => proptest::sample::select(Policy::ALL)],
        buckets in proptest::option::of(1..20u32),
        shards in 1..3u32,
    ) {
        let config = Config { memory_bytes, copy_below, overlap, shards, ..Config::default() };
        let mut world = World::new(&config, buckets);
        for (id, at, len, how, cost) in sent {
            // Some are the first three pieces of a datagram that is complete with them.
            let (id, at, len) = match how % 4 {
                0 => (id, usize::from(at) * 8, usize::from(len) * 8),
                _ => (id % 40, usize::from(at % 3) * 8, 8),
            };
            let whole = packet(id, if how % 4 == 0 { 6000 } else { 24 });
            if at + len > whole.payload.len() || at == 0 && len == whole.payload.len() {
                continue;
            }
            world.push(id as usize, &whole.fragment(at, at + len), cost);
            if how == 255 {
                world.now += SECOND;
            } else {
                world.now += u64::from(how) * MS / 100;
            }
            if how == 254 {
                world.expire();
            }
        }
        world.end(0);
    }
}

/// The room for the longest header there can be is not kept, and counts while it is there.
#[test]
fn long_headers_are_given_back() {
    let mut world = World::new(&config(), None);
    for id in 0..50 {
        let mut long = packet(id, 16);
        long.extensions = vec![60; 16];
        let plain = Packet { extensions: Vec::new(), ..long.clone() };
        world.push(0, &long.fragment(0, 8), 100);
        world.push(0, &plain.fragment(8, 16), 100);
    }
    assert_eq!(world.frames.datagrams, 50);
    assert_eq!((world.gauges().memory_bytes, world.gauges().datagrams), (0, 0));
    world.end(0);
}
