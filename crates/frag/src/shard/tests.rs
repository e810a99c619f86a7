//! That no call does more where more datagrams are in progress, or where somebody aims at the table.

use super::*;
use crate::effort;
use crate::limits::Config;
use crate::output::Datagram;

/// Buffers are nothing; all that counts is how many come back.
#[derive(Default)]
struct Out {
    delivered: usize,
    released: usize,
    dropped: usize,
}

impl Sink<()> for Out {
    fn whole(&mut self, (): (), _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, ()>) {
        assert_eq!((datagram.payload_len(), datagram.fragments()), (16, 2));
        self.delivered += 1;
    }

    fn release(&mut self, (): (), why: Released) {
        self.released += 1;
        self.dropped += usize::from(matches!(why, Released::Dropped(_)));
    }
}

struct World {
    shard: Shard<()>,
    ledger: Arc<Ledger>,
    out: Out,
    pushed: usize,
    /// The most that a call has done of what [`effort`] counts.
    most: u64,
}

const SECRET: [u64; 2] = [1, 2];

/// The hash by which a fragment was steered finds its datagram, as long as the shard has that key.
#[test]
fn what_was_steered_is_found_before_and_after_a_change_of_key() {
    let limits = Config { copy_below: 0, ..Config::default() }.limits().expect("right");
    let (ledger, steering) = (Ledger::of(&limits), Steering::new(HashKey::new(SECRET), 1));
    let mut shard = Shard::steered(&limits, &ledger, &steering);
    assert!(shard.table.is_by(&steering.secret));
    let mut out = Out::default();
    let mut push = |shard: &mut Shard<()>, ids: std::ops::Range<u32>, half| {
        let packets: Vec<_> = ids.map(|id| World::packet(id, half)).collect();
        let all: Vec<_> = packets.iter().map(|packet| Arrival::new(packet, ())).collect();
        shard.push_steered(&all, (&steering, 0), 1, &mut out, |_, _, _| unreachable!("of one"));
        (shard.gauges().datagrams, shard.table.indexed(), out.delivered)
    };
    assert_eq!(push(&mut shard, 0..50, 0), (50, 50, 0));
    assert_eq!(push(&mut shard, 0..20, 1), (30, 30, 20));
    assert!(shard.table.change_key(&mut shard.lease));
    assert!(!shard.table.is_by(&steering.secret));
    assert_eq!(push(&mut shard, 50..80, 0), (60, 60, 20));
    assert_eq!(push(&mut shard, 20..80, 1), (0, 0, 80));
    drop(shard);
    assert_eq!(ledger.left(), ledger.limit());
}

impl World {
    fn new() -> Self {
        let config = Config {
            memory_bytes: 4 << 30,
            datagrams_max: 1 << 21,
            copy_below: 0,
            ..Config::default()
        };
        let limits = config.limits().expect("right");
        let ledger = Ledger::of(&limits);
        let shard = Shard::new(&limits, &ledger, HashKey::new(SECRET));
        let mut world = Self { shard, ledger, out: Out::default(), pushed: 0, most: 0 };
        // What datagrams need is known from here on.
        world.push(u32::MAX, 0);
        world.push(u32::MAX, 1);
        world
    }

    /// One half of a datagram of two.
    fn push(&mut self, id: u32, half: u8) {
        let packet = Self::packet(id, half);
        effort::take();
        let arrival = Arrival { cost: 64, ..Arrival::new(&packet, ()) };
        self.shard.push(arrival, 1, &mut self.out);
        self.pushed += 1;
        self.most = self.most.max(effort::take());
    }

    fn packet(id: u32, half: u8) -> [u8; 56] {
        let mut packet = [0; 56];
        packet[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 16, 44, 64]);
        (packet[8], packet[23], packet[24], packet[39], packet[40]) = (0xfd, 1, 0xfd, 2, 253);
        packet[43] = if half == 0 { 1 } else { 8 };
        packet[44..48].copy_from_slice(&id.to_be_bytes());
        packet
    }

    fn datagrams(&self) -> usize {
        self.shard.gauges().datagrams as usize
    }

    fn end(mut self, delivered: usize) {
        assert_eq!((self.out.delivered, self.out.dropped), (delivered, 0));
        assert_eq!((self.out.released, self.datagrams()), (self.pushed, 0));
        self.shard.clear(1, &mut self.out);
        drop(self.shard);
        assert_eq!(self.ledger.left(), self.ledger.limit());
    }
}

/// A call moves at most 16 slots with what stands before them, makes or gives back a segment or two of 512, a chunk, and
/// up to 512 places of a list that has gone.
const EFFORT_MAX: u64 = 2000;

/// From a thousand datagrams in progress to a million and back, while others come and are complete. At each size no call
/// does more than at the others, and no fragment is lost on the way.
#[test]
fn a_shard_grows_a_thousandfold_while_it_works() {
    const FEW: u32 = 1 << 10;
    const MANY: u32 = 1 << 20;
    let mut world = World::new();
    (0..FEW).for_each(|id| world.push(id, 0));
    let mut whole = 1;
    for id in FEW..MANY {
        world.push(id, 0);
        // Some that pass through, and some that have waited since they were few.
        if id % 8 == 0 {
            (0..2).for_each(|half| world.push(MANY + id, half));
            whole += 1;
        }
        if id % 1024 == 0 {
            world.push(id / 1024 - 1, 1);
            whole += 1;
        }
    }
    let waiting = (MANY - FEW / 1024 * 1024) as usize + FEW as usize - (MANY / 1024 - 1) as usize;
    assert_eq!((world.datagrams(), world.out.delivered), (waiting, whole));
    let resized = world.shard.counters().resized;
    assert!(resized >= 11, "an index of 512 slots has become one of 2 Mi in {resized} steps");
    assert!(world.most <= EFFORT_MAX, "{} in one call", world.most);
    // The others, none of which is forgotten.
    let first = MANY / 1024 - 1;
    (first..MANY).for_each(|id| world.push(id, 1));
    assert!(world.most <= EFFORT_MAX, "{} in one call", world.most);
    // And shrinks where nothing comes, in up to eight such steps a call.
    for _ in 0..1 << 16 {
        effort::take();
        world.shard.expire(1, usize::MAX, &mut world.out);
        assert!(effort::take() <= 8 * 512);
    }
    assert!(world.shard.counters().resized > resized, "and back");
    let delivered = whole + waiting;
    world.end(delivered);
}

/// 65,536 datagrams whose search begins in the same 8 of 512 slots, for who has found out the secret. A search ends
/// after as many slots as chance never explains: then the secret is another one, and nothing that was known of the one
/// before helps any more.
#[test]
fn who_aims_at_a_shard_makes_no_search_long() {
    const AIMED: usize = 1 << 16;
    let secret = HashKey::new(SECRET);
    let lands = |id: &u32| {
        let key = Key::v6([0xfd << 56, 1], [0xfd << 56, 2], *id, 0);
        (secret.hash(&key) >> 32) & 511 < 8
    };
    let aimed: Vec<u32> = (0..).filter(lands).take(AIMED).collect();
    let mut world = World::new();
    aimed.iter().for_each(|id| world.push(*id, 0));
    assert_eq!(world.datagrams(), AIMED);
    // Seven times it has doubled, and once the secret has changed.
    let resized = world.shard.counters().resized;
    assert!((8..12).contains(&resized), "{resized}");
    assert!(world.most <= EFFORT_MAX, "{} in one call", world.most);
    // With the secret of old no search is longer than that of anybody's.
    world.most = 0;
    aimed.iter().for_each(|id| world.push(*id, 1));
    assert!(world.most <= EFFORT_MAX / 2, "{} in one call", world.most);
    world.end(AIMED + 1);
}
