use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// An index, and the records that should be in it.
struct World {
    index: Index,
    records: BTreeSet<u32>,
    next: u32,
    /// The number of the key.
    key: u64,
    /// Bits of the hash that the first key leaves in use: a key that somebody has found out.
    weak: u64,
    clustered: u32,
    /// Segments that the present table has had at last.
    made: usize,
}

impl World {
    fn new(weak: u64) -> Self {
        let (index, records) = (Index::new(), BTreeSet::new());
        Self { index, records, next: 0, key: 0, weak, clustered: 0, made: 0 }
    }

    fn hash(record: u32, key: u64, weak: u64) -> u64 {
        let x = (u64::from(record) ^ key << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = x ^ x >> 32;
        if key == 0 { x & weak } else { x }
    }

    fn hash_of(&self, record: u32) -> u64 {
        Self::hash(record, self.key, self.weak)
    }

    fn insert(&mut self) {
        let (record, key, weak) = (self.next, self.key, self.weak);
        self.next += 1;
        self.records.insert(record);
        let work = self.before();
        let health = self.index.insert(self.hash_of(record), record, |r| Self::hash(r, key, weak));
        self.check_work(work);
        if health == Health::Clustered {
            self.clustered += 1;
            self.change_key();
        }
    }

    fn change_key(&mut self) {
        if !self.index.is_moving() {
            self.key += 1;
            self.index.begin_again();
        }
    }

    fn remove(&mut self, at: usize) {
        let Some(record) = self.records.iter().nth(at % self.records.len().max(1)).copied() else {
            return;
        };
        self.records.remove(&record);
        let (key, weak) = (self.key, self.weak);
        let old = || Self::hash(record, key.wrapping_sub(1), weak);
        let work = self.before();
        self.index.remove(self.hash_of(record), old, record, |r| Self::hash(r, key, weak));
        if self.index.shrinkage() > 0 {
            self.index.shrink();
        }
        self.check_work(work);
    }

    /// How far the move is: slots that are left, segments that are left.
    fn before(&self) -> Option<(usize, usize)> {
        let old = self.index.old.as_ref()?;
        Some((old.table.slots() - old.from, old.table.segments.len()))
    }

    /// No call moves more than a few slots, or makes more segments than two and that for what it inserts
    /// itself, or gives back more than one.
    fn check_work(&mut self, before: Option<(usize, usize)>) {
        let made = std::mem::replace(&mut self.made, self.index.now.made);
        let (Some(before), Some(after)) = (before, self.before()) else { return };
        let made = self.made.saturating_sub(made);
        assert!(made <= MOVES.div_ceil(SEGMENT_MOVES) + 1, "{made} segments at once");
        if after.0 > before.0 || after.1 > before.1 {
            // That move has ended, and the next begun.
            return assert!(before.1 <= 1 && after.0 + MOVES >= self.old_slots());
        }
        assert!(before.0 - after.0 <= MOVES && before.1 - after.1 <= 1, "{before:?} {after:?}");
    }

    fn old_slots(&self) -> usize {
        self.index.old.as_ref().map_or(0, |old| old.table.slots())
    }

    fn find(&self, record: u32) -> Option<u32> {
        let old = || Self::hash(record, self.key.wrapping_sub(1), self.weak);
        self.index.find(self.hash_of(record), old, |r| r == record)
    }

    fn check(&self) {
        assert_eq!(self.index.len(), self.records.len());
        for record in 0..self.next {
            assert_eq!(self.find(record).is_some(), self.records.contains(&record), "{record}");
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Insert(u16),
    Remove(u16, u16),
    ChangeKey,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (1..400u16).prop_map(Op::Insert),
        4 => (1..400u16, any::<u16>()).prop_map(|(n, at)| Op::Remove(n, at)),
        1 => Just(Op::ChangeKey),
    ];
    proptest::collection::vec(op, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn holds_what_a_set_holds(ops in ops(), weak in prop_oneof![Just(u64::MAX), Just(0x3f << 32)]) {
        let mut world = World::new(weak);
        for op in ops {
            match op {
                Op::Insert(n) => (0..n).for_each(|_| world.insert()),
                Op::Remove(n, at) => (0..n).for_each(|_| world.remove(usize::from(at))),
                Op::ChangeKey => world.change_key(),
            }
            world.check();
        }
    }
}

#[test]
fn a_million_records_come_and_go_a_few_slots_at_a_time() {
    let mut world = World::new(u64::MAX);
    for n in 0..1_000_000 {
        world.insert();
        if n % 1000 == 0 {
            // Whatever moves meanwhile is found.
            assert!((0..=n).step_by(997).all(|record| world.find(record) == Some(record)), "{n}");
        }
    }
    assert!(world.index.now.slots() >= 1 << 21);
    for _ in 0..1_000_000 {
        world.remove(0);
    }
    // The last moves come with the next few.
    for _ in 0..100_000 {
        world.insert();
        world.remove(0);
    }
    assert_eq!(world.index.len(), 0);
    assert!(world.index.now.slots() < 1 << 12, "{} slots for nothing", world.index.now.slots());
}

#[test]
fn a_key_that_was_found_out_is_changed_while_records_come() {
    let mut world = World::new(0xf << 32);
    (0..1000).for_each(|_| world.insert());
    assert!(world.clustered > 0);
    assert_eq!(world.key, 1, "once is enough");
    world.check();
    for at in 0..1000 {
        world.remove(at);
    }
    world.check();
}

#[test]
fn chance_is_not_taken_for_an_attack() {
    let mut world = World::new(u64::MAX);
    for n in 0..200_000 {
        world.insert();
        if n % 3 == 0 {
            world.remove(0);
        }
    }
    assert_eq!(world.clustered, 0);
}

#[test]
fn a_table_that_is_left_gives_its_segments_back() {
    let mut world = World::new(u64::MAX);
    (0..5000).for_each(|_| world.insert());
    world.change_key();
    assert!(world.index.is_moving() || world.key == 0);
    for _ in 0..2000 {
        world.insert();
        world.remove(0);
    }
    assert!(!world.index.is_moving());
    world.check();
}

/// By another key each slot goes to a segment of its own: no call has the memory of many to touch.
#[test]
fn a_change_of_key_makes_few_segments_at_a_time() {
    let mut world = World::new(u64::MAX);
    (0..100_000).for_each(|_| world.insert());
    while world.index.is_moving() {
        world.insert();
        world.remove(0);
    }
    world.change_key();
    let all = world.index.now.segments.len();
    let mut calls = 0;
    while world.index.is_moving() {
        world.insert();
        world.remove(0);
        calls += 2;
        assert!(world.index.now.made <= 3 * calls, "{} in {calls} calls", world.index.now.made);
    }
    assert!(all > 256 && world.index.now.made == all, "{all} segments");
    world.check();
}

/// What has been moved leaves a mark that is no record, whatever the hash.
#[test]
fn no_mark_of_the_move_is_taken_for_a_record() {
    let mut index = Index::new();
    for record in 0..100 {
        index.insert(u64::MAX, record, |_| u64::MAX);
    }
    index.begin_again();
    // Moves the end of the table, where searches of this hash begin, last: so go all round.
    for record in 100..140 {
        index.insert(u64::MAX, record, |_| u64::MAX);
        let all_real = |r| {
            assert!(r < 140, "{r}");
            r == 99
        };
        assert_eq!(index.find(u64::MAX, || u64::MAX, all_real), Some(99));
    }
}

#[test]
fn a_guess_is_right_or_none_for_what_is_alone() {
    let mut world = World::new(u64::MAX);
    assert_eq!(world.index.guess(1), ABSENT);
    world.insert();
    assert_eq!(world.index.guess(world.hash_of(0)), 0);
    assert_eq!(world.index.guess(world.hash_of(1)), ABSENT);
}

#[test]
fn a_guess_looks_a_few_slots_on() {
    let mut index = Index::new();
    // Of all of these a search begins at slot 5.
    let hash = |n: u32| u64::from(n) << 41 | 5 << 32;
    (0..8).for_each(|n| _ = index.insert(hash(n), n, hash));
    let guesses: Vec<u32> = (0..8).map(|n| index.guess(hash(n))).collect();
    let near = (0u32..).take(GUESSES);
    assert_eq!(guesses, near.chain([UNKNOWN; 8 - GUESSES]).collect::<Vec<_>>());
}
