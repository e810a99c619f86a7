use std::collections::HashMap;

use proptest::prelude::*;
use testkit::fragments::{Family, Packet, Random, cases};

use super::*;
use crate::ledger::Ledger;
use crate::limits::Config;
use crate::output::Released;
use crate::sync::Arc;
use crate::wire;

/// Buffers are numbers.
#[derive(Default)]
struct Out {
    released: HashMap<u32, u32>,
    delivered: Vec<(Key, usize)>,
    /// Fragments of those.
    fragments: u64,
}

impl Sink<u32> for Out {
    fn whole(&mut self, _: u32, _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, u32>) {
        self.delivered.push((*datagram.key(), datagram.payload_len()));
        self.fragments += u64::from(datagram.fragments());
    }

    fn release(&mut self, buffer: u32, _: Released) {
        *self.released.entry(buffer).or_default() += 1;
    }
}

struct World {
    table: Table<u32>,
    ledger: Arc<Ledger>,
    lease: Lease,
    out: Out,
    handed: u32,
    now: u64,
}

impl World {
    fn new(config: &Config) -> Self {
        let limits = config.limits().expect("right");
        let ledger = Ledger::of(&limits);
        Self {
            table: Table::new(&limits, HashKey::new([1, 2])),
            lease: Lease::new(&ledger),
            ledger,
            out: Out::default(),
            handed: 0,
            now: 1_000_000_000,
        }
    }

    fn parse(bytes: &[u8]) -> Fragment {
        match wire::parse(bytes, 0) {
            Ok(wire::Packet::Fragment(fragment)) => fragment,
            other => panic!("{other:?}"),
        }
    }

    fn push(&mut self, packet: &Packet, cost: u32) {
        let bytes = packet.emit();
        let ahead = self.table.ahead(Self::parse(&bytes));
        self.push_ahead(&ahead, &bytes, cost);
    }

    fn push_ahead(&mut self, ahead: &Ahead, packet: &[u8], cost: u32) {
        let arrival = Arrival { packet, buffer: self.handed, cost, scope: 0 };
        self.handed += 1;
        let mut out = outlet::Alone(&mut self.out);
        self.table.push(&mut self.lease, ahead, arrival, self.now, &mut out);
    }

    /// Some time in which nothing comes and nobody's time is up.
    fn rest(&mut self) {
        (0..100).for_each(|_| {
            _ = self.table.expire(&mut self.lease, self.now, usize::MAX, &mut self.out);
        });
    }

    /// The datagrams in progress: by age, and so that the list is the same in both directions.
    fn in_progress(&self) -> Vec<u32> {
        let mut all = Vec::new();
        for (ages, is_v6) in self.table.ages.iter().zip([false, true]) {
            let (mut n, mut before) = (ages.oldest, NONE);
            while n != NONE {
                let node = &self.table.nodes[n];
                assert_eq!((node.older, node.key.is_v6()), (before, is_v6));
                all.push(n);
                (before, n) = (n, node.younger);
            }
            assert_eq!(ages.youngest, before);
        }
        all
    }

    /// All that must be true between any two calls.
    fn check(&self) {
        let table = &self.table;
        let all = self.in_progress();
        assert_eq!(all.len(), table.nodes.used() as usize);
        assert_eq!(all.len(), table.index.len());
        let sum = |of: fn(&Node<u32>) -> u32| -> u64 {
            all.iter().map(|n| u64::from(of(&table.nodes[*n]))).sum()
        };
        assert_eq!(sum(|node| node.used), table.held());
        assert_eq!(sum(|node| node.reserved), table.committed);
        let free = table.nodes.spare(|node| node.cost().into()) + table.blocks.spare();
        assert_eq!(free + table.index.bytes(), table.holding.all_spare());
        assert_eq!(
            table.kept,
            table.nodes.spare(|node| node.room().into()) - table.nodes.spare(|_| 0)
        );
        let charged = table.held() + table.spare();
        assert!(charged + self.lease.unused() + self.ledger.left() == self.ledger.limit());
        for n in &all {
            let node = &table.nodes[*n];
            assert!(node.used <= node.reserved);
            assert!(node.true_cost() <= node.used, "{} for {}", node.used, node.true_cost());
            assert_eq!(table.find(table.hash(&node.key), &node.key), Some(*n));
        }
        self.check_sources(&all);
        // Each fragment is in one place, and counted there.
        let counters = &table.counters;
        let dropped = counters.fragments_dropped.iter().sum::<u64>() + counters.fragments_lost;
        let there: u64 = all.iter().map(|n| u64::from(table.nodes[*n].count)).sum();
        assert_eq!(counters.fragments, dropped + self.out.fragments + there);
        assert_eq!(counters.fragments_delivered, self.out.fragments);
        assert_eq!(counters.fragments_in_progress(), there);
        assert_eq!(counters.datagrams, self.out.delivered.len() as u64);
    }

    fn check_sources(&self, all: &[u32]) {
        let mut sums: HashMap<u16, (u64, u32)> = HashMap::new();
        for n in all {
            let node = &self.table.nodes[*n];
            let (bytes, count) = sums.entry(node.source).or_default();
            *bytes += u64::from(node.reserved);
            *count += 1;
        }
        for at in 0..1024 {
            let source = &self.table.sources[at];
            let expected = sums.get(&at).copied().unwrap_or_default();
            assert_eq!((self.table.sources.bytes(at), source.count), expected);
            let mut n = source.youngest;
            for _ in 0..expected.1 {
                n = self.table.nodes[n].source_older;
            }
            assert_eq!(n, NONE);
        }
    }

    /// Gives up what is in progress: then all is as in the beginning.
    fn end(mut self) {
        self.table.clear(&mut self.lease, self.now, &mut self.out);
        self.check();
        let table = &self.table;
        assert_eq!(
            (table.held(), table.committed, table.blocks.used(), table.datagrams()),
            (0, 0, 0, 0)
        );
        assert!(table.ages.iter().all(|ages| ages.oldest == NONE && ages.youngest == NONE));
        assert!((0..1024).all(|at| table.sources[at].youngest == NONE));
        let released = self.out.released.values();
        assert!(released.clone().all(|n| *n == 1), "a buffer was released twice");
        assert_eq!(released.len(), self.handed as usize, "a buffer was not released");
        self.table.end(&mut self.lease);
        drop(self.lease);
        assert_eq!(self.ledger.left(), self.ledger.limit());
        assert_eq!(self.ledger.promises_left(), self.ledger.promises_limit());
    }
}

/// Each named case, and after each call all accounts; after each case all is as in the beginning.
#[test]
fn named_cases_leave_nothing_behind() {
    for (policy, copy_below) in [(Policy::Strict, 0), (Policy::Strict, 512), (Policy::Linux, 32)] {
        for case in cases() {
            let config = Config {
                overlap: policy,
                copy_below,
                fragments_max: 8192,
                memory_bytes: 64 << 20,
                ..Config::default()
            };
            let mut world = World::new(&config);
            for fragment in &case.fragments {
                let bytes = fragment.emit();
                let Ok(wire::Packet::Fragment(parsed)) = wire::parse(&bytes, 0) else { continue };
                let ahead = world.table.ahead(parsed);
                world.push_ahead(&ahead, &bytes, 2048);
                // Long cases are the same all the way.
                if world.handed.is_multiple_of(97) || case.fragments.len() < 200 {
                    world.check();
                }
            }
            world.check();
            if policy == Policy::Strict {
                let fragmented = case.fragments.iter().any(|f| f.more || f.offset > 0);
                let expected = if fragmented { case.payloads.len() } else { 0 };
                let came = world.out.delivered.len();
                assert!(came == expected || !fragmented, "{}: {came} came", case.name);
            }
            world.end();
        }
    }
}

/// Keys of which all searches begin in the same slots, for who knows the key.
fn aimed(secret: &HashKey, count: usize) -> Vec<u32> {
    let lands = |id: &u32| {
        let key = Key::v6([0xfd00_0000_0000_0000, 2], [0xfd00_0000_0000_0000, 1], *id, 0);
        (secret.hash(&key) >> 32) & 8191 < 8
    };
    (0..).filter(lands).take(count).collect()
}

fn v6(id: u32) -> Packet {
    Packet::new(Family::V6, id, vec![1; 24])
}

#[test]
fn a_key_that_was_found_out_is_changed_and_nothing_is_lost() {
    let mut world = World::new(&Config { copy_below: 0, ..Config::default() });
    let ids = aimed(&HashKey::new([1, 2]), 1000);
    for id in &ids {
        world.push(&v6(*id).fragment(0, 8), 100);
    }
    world.check();
    assert_eq!(world.table.epoch, 1, "the key was changed, once");
    // It says nothing about the next one: no search is long any more.
    for id in 1_000_000..1_000_300 {
        world.push(&v6(id).fragment(0, 8), 100);
    }
    assert_eq!(world.table.epoch, 1);
    world.check();
    for at in [8, 16] {
        ids.iter().for_each(|id| world.push(&v6(*id).fragment(at, at + 8), 100));
    }
    assert_eq!(world.out.delivered.len(), 1000);
    world.check();
    world.end();
}

/// The key changes twice between parsing and work, and the index is moved meanwhile.
#[test]
fn fragments_that_were_parsed_before_a_change_of_key_find_their_datagram() {
    let mut world = World::new(&Config { copy_below: 0, ..Config::default() });
    let packets: Vec<_> = (0..40).map(|id| v6(id).fragment(8, 16).emit()).collect();
    let ahead: Vec<_> = packets.iter().map(|p| world.table.ahead(World::parse(p))).collect();
    (0..40).for_each(|id| world.push(&v6(id).fragment(0, 8), 100));
    for _ in 0..2 {
        assert!(world.table.change_key(&mut world.lease));
        for id in 1000..1400 {
            world.push(&v6(id).fragment(0, 8), 100);
            world.push(&v6(id).fragment(8, 24), 100);
        }
        assert!(!world.table.index.is_moving());
    }
    for (ahead, packet) in ahead.iter().zip(&packets) {
        world.push_ahead(ahead, packet, 100);
    }
    assert_eq!(world.table.datagrams(), 40);
    (0..40).for_each(|id| world.push(&v6(id).fragment(16, 24), 100));
    assert_eq!(world.table.datagrams(), 0);
    world.check();
    world.end();
}

/// As long as the key before is known, each fragment that begins a datagram is hashed a second time.
#[test]
fn the_key_before_is_forgotten_when_nothing_is_by_it_any_more() {
    let mut world = World::new(&Config { copy_below: 0, ..Config::default() });
    (0..450).for_each(|id| world.push(&v6(id).fragment(0, 8), 100));
    assert!(world.table.change_key(&mut world.lease));
    world.table.settle();
    assert!(world.table.old_key.is_some(), "450 slots are by it");
    for id in 1000.. {
        world.push(&v6(id).fragment(0, 8), 100);
        world.push(&v6(id).fragment(8, 24), 100);
        world.table.settle();
        assert_eq!(world.table.old_key.is_some(), world.table.index.is_moving());
        if world.table.old_key.is_none() {
            break;
        }
    }
    world.check();
    (0..450).for_each(|id| world.push(&v6(id).fragment(8, 24), 100));
    assert_eq!(world.table.datagrams(), 0, "those that began by the key before are found");
    world.end();
}

/// One that fills all gaps between others makes as many pieces as there are gaps.
#[test]
fn what_fills_many_gaps_pays_for_the_pieces() {
    let config = Config { overlap: Policy::First, copy_below: 0, ..Config::default() };
    let mut world = World::new(&config);
    let whole = Packet::new(Family::V6, 1, vec![1; 9000]);
    // Of buffers that cost nothing, so that what is charged is for the places alone.
    (1..500).for_each(|at| world.push(&whole.fragment(at * 16, at * 16 + 8), 0));
    world.check();
    world.push(&whole.fragment(8, 8800), 0);
    world.check();
    assert_eq!(world.table.datagrams(), 1);
    world.end();
}

#[test]
fn growth_and_changes_of_key_are_counted() {
    let mut world = World::new(&Config { copy_below: 0, ..Config::default() });
    (0..2000).for_each(|id| world.push(&v6(id).fragment(0, 24), 100));
    assert_eq!(world.table.counters.resized, 0, "whole datagrams take no place");
    (0..2000).for_each(|id| world.push(&v6(id).fragment(0, 8), 8));
    assert!(world.table.counters.resized >= 4, "512, 1024, 2048, 4096, 8192");
    let grown = world.table.counters.resized;
    (0..2000).for_each(|id| world.push(&v6(id).fragment(8, 24), 8));
    assert_eq!(world.table.counters.resized, grown, "as many may come at once again");
    world.rest();
    assert!(world.table.counters.resized > grown, "and back, where nothing comes");
    let shrunk = world.table.counters.resized;
    // With few at a time, the next time it is too large it is left while they come.
    (0..1000).for_each(|id| world.push(&v6(id).fragment(0, 8), 8));
    let grown = world.table.counters.resized;
    assert!(grown > shrunk);
    (0..1000).for_each(|id| world.push(&v6(id).fragment(8, 24), 8));
    for id in 0..40_000 {
        world.push(&v6(id).fragment(0, 8), 8);
        world.push(&v6(id).fragment(8, 24), 8);
    }
    assert!(world.table.counters.resized > grown, "and back after much work");
    world.end();
}

/// Where overlaps are resolved, whatever overlapped is kept until the end.
#[test]
fn layers_are_paid_for_once() {
    let config = Config { overlap: Policy::Last, copy_below: 0, ..Config::default() };
    let mut world = World::new(&config);
    let whole = Packet::new(Family::V6, 1, vec![1; 9000]);
    for at in 1..1000 {
        world.push(&whole.fragment(at * 8, at * 8 + 16), 100);
        world.check();
    }
    let (held, frames) = (world.table.held(), 999 * 100);
    assert!(held < 3 * frames, "{held} bytes for {frames} bytes of frames");
    world.end();
}

#[test]
fn a_buffer_that_costs_more_than_there_is_is_dropped() {
    let mut world = World::new(&Config::default());
    let whole = Packet::new(Family::V6, 1, vec![1; 3000]);
    world.push(&whole.fragment(0, 1000), 1000);
    // Once as the first of a datagram, once where most fragments go.
    for at in [1000, 2000] {
        world.push(&whole.fragment(at, at + 1000), u32::MAX);
        world.push(&Packet { id: 2, ..whole.clone() }.fragment(at, at + 1000), u32::MAX);
        world.check();
    }
    assert_eq!((world.table.datagrams(), world.out.delivered.len()), (0, 0));
    world.end();
}

/// Of one family and source or of both, also while the index is moved by another key. What is moved for one fragment is
/// as little as what goes for it.
#[test]
fn a_datagram_that_is_moved_is_found_and_goes_as_ever() {
    for (families, rekeyed) in [(1, false), (2, false), (2, true)] {
        let config = Config { memory_bytes: 256 << 10, copy_below: 0, ..Config::default() };
        let mut world = World::new(&config);
        let small = |id: u32| {
            let family = if id.is_multiple_of(families) { Family::V6 } else { Family::V4 };
            Packet::new(family, id, vec![1; 16])
        };
        for at in [0, 8] {
            (0..40).for_each(|id| world.push(&small(id).fragment(at, at + 8), 8));
        }
        let old = Packet::new(Family::V4, 9, vec![2; 48_000]);
        world.push(&old.fragment(0, 800), 800);
        let mut ids: Vec<u32> = (1000..1800).collect();
        ids.iter().for_each(|id| world.push(&small(*id).fragment(0, 8), 8));
        Random::new(3).shuffle(&mut ids);
        let mut stay = ids.split_off(ids.len() / 2);
        ids.iter().for_each(|id| world.push(&small(*id).fragment(8, 16), 8));
        (2000..2800).for_each(|id| world.push(&small(id).fragment(0, 8), 8));
        // Another index needs room.
        while rekeyed && !world.table.change_key(&mut world.lease) {
            let id = stay.pop().expect("more than it needs");
            world.push(&small(id).fragment(8, 16), 8);
            world.table.trim(&mut world.lease, Spare::Blocks, NONE);
        }
        world.table.moved = 0;
        let (mut all, mut meanwhile) = (0, false);
        for at in 1..60 {
            world.push(&old.fragment(at * 800, at * 800 + 800), 1200);
            world.check();
            let moved = std::mem::take(&mut world.table.moved);
            assert!(moved <= 32, "{moved} records were moved for one fragment");
            all += moved;
            meanwhile |= moved > 0 && world.table.index.is_moving();
        }
        assert_eq!(meanwhile, rekeyed);
        assert!(all > 30, "only {all} records were moved");
        assert_eq!(world.out.delivered.last().map(|(key, _)| key.is_v6()), Some(false));
        stay.iter().for_each(|id| world.push(&small(*id).fragment(8, 16), 8));
        world.check();
        world.end();
    }
}

#[derive(Clone, Debug)]
enum Op {
    Push { id: u32, v6: bool, at: usize, len: usize, cost: u32, layer: u8 },
    Wait(u64),
    Clear,
    ChangeKey,
}

fn op() -> impl Strategy<Value = Op> {
    let push = (0..12u32, any::<bool>(), 0..12usize, 1..4usize, 8..20_000u32, 0..=255u8);
    prop_oneof![
        80 => push.prop_map(|(id, v6, at, len, cost, layer)| Op::Push {
            id, v6, at: at * 8, len: len * 8, cost, layer,
        }),
        10 => prop_oneof![1..2_000_000u64, 1..40_000_000_000u64].prop_map(Op::Wait),
        1 => Just(Op::Clear),
        2 => Just(Op::ChangeKey),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let policy = prop_oneof![3 => Just(Policy::Strict), 1 => proptest::sample::select(Policy::ALL)];
    let memory = prop_oneof![Just(64u64 << 10), Just(128 << 10), Just(64 << 20)];
    (memory, policy, prop_oneof![Just(0u16), Just(32), Just(512)], 2..12u16, 1..20u32).prop_map(
        |(memory_bytes, overlap, copy_below, fragments_max, datagrams_max)| Config {
            memory_bytes,
            overlap,
            copy_below,
            fragments_max,
            datagrams_max,
            ..Config::default()
        },
    )
}

fn apply(world: &mut World, op: &Op) {
    match *op {
        Op::Push { id, v6, at, len, cost, layer } => {
            let family = if v6 { Family::V6 } else { Family::V4 };
            let mut whole = Packet::new(family, id, vec![7; 100]);
            whole.src = layer % 3;
            whole.tos = if layer == 255 { 1 } else { 0 };
            if layer % 16 == 15 {
                whole.extensions = vec![60; 12];
            }
            let packet = whole.fragment(at, (at + len).min(100));
            if packet.more || packet.offset > 0 {
                world.push(&packet, cost);
            }
        }
        Op::Wait(ns) => world.now += ns,
        Op::Clear => world.table.clear(&mut world.lease, world.now, &mut world.out),
        Op::ChangeKey if world.table.index.is_moving() => {}
        Op::ChangeKey => _ = world.table.change_key(&mut world.lease),
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn accounts_lists_and_index_agree_after_each_call(
        config in config(),
        ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut world = World::new(&config);
        for op in &ops {
            apply(&mut world, op);
            world.check();
        }
        world.end();
    }
}

/// That a fragment overlaps is seen before its datagram becomes a list, which takes memory: nobody goes for that.
#[test]
fn nobody_goes_for_a_fragment_that_is_refused() {
    let config = Config { memory_bytes: 64 << 10, copy_below: 0, ..Config::default() };
    let mut world = World::new(&config);
    let mut old = Packet::new(Family::V4, 1, vec![1; 30_000]);
    old.src = 9;
    (0..3).for_each(|n| world.push(&old.fragment(1480 * n, 1480 * (n + 1)), 8));
    let evicted = |world: &World| {
        let dropped = world.table.counters.datagrams_dropped.iter().enumerate();
        let evicted = |n: &usize| *n != Reason::Overlap as usize;
        dropped.filter(|(n, _)| evicted(n)).map(|(_, count)| count).sum::<u64>()
    };
    let mut refused = 0;
    for id in 0..10_000 {
        world.push(&Packet::new(Family::V4, 100 + id, vec![1; 3000]).fragment(0, 1480), 8);
        refused = world.table.counters.fragments_dropped.iter().sum();
        if refused > 0 {
            break;
        }
    }
    assert!(refused > 0, "memory has ended");
    // Whatever is left over goes, too.
    let left = world.lease.unused() + world.ledger.left();
    world.push(&old.fragment(1480 * 3, 1480 * 4), u32::try_from(left).expect("few"));
    let before = evicted(&world);
    world.push(&old.fragment(8, 16), 8);
    assert_eq!(world.table.counters.datagrams(Reason::Overlap), 1);
    assert_eq!(evicted(&world), before);
    world.end();
}
