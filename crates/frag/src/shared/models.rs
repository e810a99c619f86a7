//! Two cores and one bucket, or two, in every order.

use super::*;
use crate::limits::Config;
use crate::output::{Datagram, Released};
use loom::thread;

/// Two halves of a datagram.
const PACKETS: [&[u8]; 2] = [
    b"\x45\0\0\x1c\0\x07\x20\0\x40\xfd\0\0\x0a\0\0\x01\x0a\0\0\x02FRAGMENT",
    b"\x45\0\0\x19\0\x07\0\x01\x40\xfd\0\0\x0a\0\0\x01\x0a\0\0\x02ATION",
];

/// What one core has seen.
#[derive(Default)]
struct Seen {
    whole: Vec<Vec<u8>>,
    released: Vec<usize>,
}

impl Sink<usize> for Seen {
    fn whole(&mut self, _: usize, _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, usize>) {
        let mut packet = vec![0; datagram.packet_len()];
        datagram.write_to(&mut packet, |buffer| PACKETS[*buffer]).unwrap();
        self.whole.push(packet[20..].to_vec());
    }

    fn release(&mut self, buffer: usize, _: Released) {
        self.released.push(buffer);
    }
}

/// One core, which ends afterwards.
fn push(table: &Shared<usize>, which: &[usize]) -> Seen {
    let (mut core, mut seen) = (table.core(), Seen::default());
    for buffer in which {
        table.push(&mut core, Arrival::new(PACKETS[*buffer], *buffer), 1, &mut seen);
    }
    seen
}

fn table() -> Arc<Shared<usize>> {
    let config = Config { memory_bytes: 64 << 10, shards: 2, copy_below: 0, ..Config::default() };
    Shared::new(&config.limits().unwrap(), 1, &HashKey::new([1, 2]))
}

/// Memory that is neither leased nor charged to a table, and that which is charged.
fn accounted<B>(table: &Shared<B>) -> u64 {
    let charged = table.buckets.iter().map(|bucket| {
        let bucket = bucket.0.lock().unwrap();
        bucket.held() + bucket.spare()
    });
    table.ledger.left() + charged.sum::<u64>()
}

#[test]
fn two_halves_from_two_cores_make_one_datagram() {
    loom::model(|| {
        let table = table();
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || push(&table, &[1]))
        };
        let one = push(&table, &[0]);
        let other = other.join().unwrap();
        let whole = [one.whole, other.whole].concat();
        assert_eq!(whole, [b"FRAGMENTATION".to_vec()]);
        let mut released = [one.released, other.released].concat();
        released.sort_unstable();
        assert_eq!(released, [0, 1]);
        // Both leases are back, and what was charged on one core was refunded on another.
        assert_eq!((table.datagrams(), accounted(&table)), (0, 64 << 10));
    });
}

#[test]
fn a_datagram_that_comes_twice_is_whole_once_or_twice() {
    loom::model(|| {
        let table = table();
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || push(&table, &[0, 1]))
        };
        let one = push(&table, &[0, 1]);
        let other = other.join().unwrap();
        let whole = [one.whole, other.whole].concat();
        assert!(whole.iter().all(|whole| whole == b"FRAGMENTATION"));
        let left = table.datagrams();
        assert_eq!(whole.len(), if left == 0 { 2 } else { 1 }, "{left} in progress");
        assert!(left <= 1);
    });
}

/// Room for all of them, each of which may be expected to be of the largest size.
const ROOM: u64 = 4 << 20;
const SECRET: [u64; 2] = [1, 2];

/// The first half of the datagram with that identification, or the second.
type Half = (u8, bool);

fn first(id: u8) -> Half {
    (id, true)
}

fn second(id: u8) -> Half {
    (id, false)
}

fn packet((id, is_first): Half) -> Vec<u8> {
    let mut packet = PACKETS[usize::from(!is_first)].to_vec();
    packet[5] = id;
    packet
}

/// What one core has seen of halves: identifications of whole datagrams, and buffers.
#[derive(Default)]
struct Halves {
    whole: Vec<u8>,
    released: Vec<Half>,
}

impl Sink<Half> for Halves {
    fn whole(&mut self, _: Half, _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, Half>) {
        self.whole.push(u8::try_from(datagram.key().id & 0xffff).unwrap());
    }

    fn release(&mut self, half: Half, _: Released) {
        self.released.push(half);
    }
}

fn push_halves(table: &Shared<Half>, which: &[Half]) -> Halves {
    let (mut core, mut seen) = (table.core(), Halves::default());
    for half in which {
        table.push(&mut core, Arrival::new(&packet(*half), *half), 1, &mut seen);
    }
    seen
}

/// Identifications of datagrams whose search begins at these slots, in an index with so many.
fn searched_from<const N: usize>(homes: [u64; N], slots: u64) -> [u8; N] {
    let key = HashKey::new(SECRET).successor();
    let mut ids = 0..=u8::MAX;
    homes.map(|home| {
        let is_there = |id: &u8| {
            let Ok(wire::Packet::Fragment(f)) = wire::parse(&packet(first(*id)), 0) else {
                unreachable!("it is one")
            };
            (key.hash(&f.key) >> 32) % slots == home
        };
        ids.find(is_there).expect("one in some of 256")
    })
}

/// A case: what is done before, by one core each; on two cores meanwhile; and afterwards.
struct Case {
    before: Vec<Vec<Half>>,
    /// How often the index has begun to move by then.
    resized: u64,
    meanwhile: [Vec<Half>; 2],
    after: Vec<Half>,
}

/// Of each datagram both halves are in the case: it is whole once, each buffer comes back once, and so does all memory,
/// on whatever core it was charged.
fn check(case: impl Fn() -> Case + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.max_branches = 100_000;
    model.check(move || {
        let Case { before, resized, meanwhile: [mine, others], after } = case();
        let every = [&before.concat()[..], &mine, &others, &after].concat();
        let config = Config { memory_bytes: ROOM, shards: 2, copy_below: 0, ..Config::default() };
        let table = Shared::new(&config.limits().unwrap(), 1, &HashKey::new(SECRET));
        let mut seen = Vec::new();
        for halves in before {
            seen.push(push_halves(&table, &halves));
            // What moves by then has moved, but for the last.
            if seen.len() as u64 <= resized.saturating_sub(1) {
                let mut core = table.core();
                (0..4).for_each(|_| _ = table.expire(&mut core, 0..1, 1, &mut Halves::default()));
            }
        }
        assert_eq!(table.counters().resized, resized, "it moves");
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || push_halves(&table, &others))
        };
        seen.push(push_halves(&table, &mine));
        seen.push(other.join().unwrap());
        seen.push(push_halves(&table, &after));
        let mut whole: Vec<u8> = seen.iter().flat_map(|seen| seen.whole.clone()).collect();
        let mut released: Vec<Half> = seen.iter().flat_map(|seen| seen.released.clone()).collect();
        let mut every = every.clone();
        whole.sort_unstable();
        released.sort_unstable();
        every.sort_unstable();
        assert_eq!(released, every);
        assert!(released.iter().filter(|half| half.1).map(|half| half.0).eq(whole));
        assert_eq!((table.datagrams(), accounted(&table)), (0, ROOM));
        assert_eq!(table.buckets[0].0.lock().unwrap().indexed(), 0, "nor does anything lead there");
    });
}

/// While the index moves, one core begins a datagram and ends another, and a second core ends some that may
/// be in the old part of it or in the new one. What is moved meanwhile is neither lost nor found twice.
#[test]
fn two_cores_push_while_the_index_grows() {
    check(|| {
        let [a, b, c, d, e, new] = searched_from([0, 1, 2, 3, 4, 5], 8);
        Case {
            // With the fifth, half of the slots are not enough.
            before: vec![[a, b, c, d, e].map(first).to_vec()],
            resized: 1,
            meanwhile: [vec![first(new), second(b)], vec![second(a), second(c)]],
            after: [new, e, d].map(second).to_vec(),
        }
    });
}

/// The same when it has become too large.
#[test]
fn two_cores_push_while_the_index_shrinks() {
    check(|| {
        let [a, b, c, d, e, new] = searched_from([0, 1, 2, 11, 12, 3], 16);
        Case {
            // When three are left of five, there are too many slots.
            before: vec![[a, b, c, d, e].map(first).to_vec(), [e, d].map(second).to_vec()],
            resized: 2,
            meanwhile: [vec![second(b), first(new)], vec![second(a), second(c)]],
            after: vec![second(new)],
        }
    });
}

/// The same when so many are searched for from one slot that the key is changed.
#[test]
fn two_cores_push_while_the_key_changes() {
    check(|| {
        let [a, b, c, d, new] = searched_from([0, 0, 0, 0, 0], 8);
        Case {
            before: vec![[a, b, c, d].map(first).to_vec()],
            resized: 1,
            meanwhile: [vec![second(b), first(new)], vec![second(a), second(c)]],
            after: [new, d].map(second).to_vec(),
        }
    });
}

/// Two buckets, little memory, and in them two datagrams that wait for nothing any more; each of two cores begins another,
/// one of them by a burst. Nobody waits for the other for ever; each buffer comes back once, and all memory with the
/// table, whatever core it was charged on. `buckets`: those of the old datagrams and of the new ones. Answers by `there`
/// what is in each bucket before the end.
fn ask(
    (old, new): ([u32; 2], [u32; 2]),
    (cost, preemptions): (u32, usize),
    there: impl Fn([u32; 2]) + Send + Sync + 'static,
) {
    const LIMIT: u64 = 64 << 10;
    const OLD_COST: u32 = 28_000;
    const LATER: u64 = 10_000_000_000;
    let mut model = loom::model::Builder::new();
    model.max_branches = 100_000;
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let config = Config { memory_bytes: LIMIT, shards: 2, copy_below: 0, ..Config::default() };
        let limits = config.limits().unwrap();
        let table: Arc<Shared<Half>> = Shared::new(&limits, 2, &HashKey::new(SECRET));
        let ids = || (0..=u8::MAX).map(|id| (id, first(id)));
        let bucket_of = |half: Half| match wire::parse(&packet(half), 0) {
            Ok(wire::Packet::Fragment(f)) => table.steering.shard(&f.key),
            _ => unreachable!("it is one"),
        };
        // All of them are others.
        let mut taken = Vec::new();
        let mut one_in = |bucket: u32| {
            let is_free =
                |(id, half): &(u8, Half)| bucket_of(*half) == bucket && !taken.contains(id);
            let (id, half) = ids().find(is_free).expect("half of 256 are there");
            taken.push(id);
            half
        };
        let (old, new) = (old.map(&mut one_in), new.map(&mut one_in));
        let push = |table: &Shared<Half>,
                    halves: &[Half],
                    (cost, by_burst): (u32, bool),
                    now: u64| {
            let (mut core, mut seen) = (table.core(), Halves::default());
            let packets: Vec<Vec<u8>> = halves.iter().map(|half| packet(*half)).collect();
            let arrivals = packets.iter().zip(halves);
            let mut arrivals: Vec<_> = arrivals
                .map(|(packet, half)| Arrival { cost, ..Arrival::new(packet, *half) })
                .collect();
            if by_burst {
                table.push_burst(&mut core, &mut arrivals, now, &mut seen);
            }
            arrivals.into_iter().for_each(|arrival| table.push(&mut core, arrival, now, &mut seen));
            seen
        };
        let before = push(&table, &old, (OLD_COST, false), 1);
        assert_eq!((table.datagrams(), before.released.len()), (2, 0), "both are there");
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || push(&table, &new[1..], (cost, true), LATER))
        };
        let mine = push(&table, &new[..1], (cost, false), LATER);
        let other = other.join().unwrap();
        let in_progress = table.datagrams();
        let released = mine.released.len() + other.released.len();
        assert_eq!(in_progress + released as u64, 4);
        there([0, 1].map(|at: usize| table.buckets[at].0.lock().unwrap().datagrams()));
        let (mut core, mut last) = (table.core(), Halves::default());
        table.clear(&mut core, LATER, &mut last);
        drop(core);
        let mut released = [mine.released, other.released, last.released].concat();
        released.sort_unstable();
        let mut every = [old, new].concat();
        every.sort_unstable();
        assert_eq!(released, every);
        assert_eq!((table.datagrams(), accounted(&table)), (0, LIMIT));
        let shares = table.shares.as_ref().unwrap();
        assert!((0..4).all(|source| shares.bytes(source) == 0), "an account that does not end");
    });
}

/// Both new ones are in a bucket that has nothing to let go: who comes to the other one first gets something.
#[test]
fn two_cores_ask_the_same_bucket_for_room() {
    ask(([0, 0], [1, 1]), (28_000, 3), |[_, new]| assert!(new > 0, "nobody got room"));
}

/// Each needs more than its own bucket can let go, and all that the other's can, and asks that in which the other is at
/// work. One switch is enough for two that wait for each other; there are too many ways for more.
#[test]
fn two_cores_ask_each_other_for_room() {
    ask(([0, 1], [0, 1]), (60_000, 1), |_| ());
}
