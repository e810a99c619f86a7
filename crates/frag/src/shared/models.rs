//! Two cores and one bucket, in every order.

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
        assert_eq!((table.datagrams(), table.ledger.left()), (0, 64 << 10));
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
/// Datagrams in the model of a move.
const MANY: usize = 6;

/// Half of a datagram: the first of the first [`MANY`] numbers, the second of the others.
fn half(buffer: usize) -> Vec<u8> {
    let mut packet = PACKETS[buffer / MANY].to_vec();
    packet[5] = u8::try_from(buffer % MANY).unwrap();
    packet
}

/// What one core has seen of halves: identifications of whole datagrams, and buffers.
#[derive(Default)]
struct Halves {
    whole: Vec<usize>,
    released: Vec<usize>,
}

impl Sink<usize> for Halves {
    fn whole(&mut self, _: usize, _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, usize>) {
        self.whole.push(usize::try_from(datagram.key().id & 0xffff).unwrap());
    }

    fn release(&mut self, buffer: usize, _: Released) {
        self.released.push(buffer);
    }
}

fn push_halves(table: &Shared<usize>, which: &[usize]) -> Halves {
    let (mut core, mut seen) = (table.core(), Halves::default());
    for buffer in which {
        let packet = half(*buffer);
        table.push(&mut core, Arrival::new(&packet, *buffer), 1, &mut seen);
    }
    seen
}

/// While the index moves, one core begins a datagram and ends another, and a second core ends some that may
/// be in the old part of it or in the new one. What is moved meanwhile is neither lost nor found twice.
#[test]
fn two_cores_push_while_the_index_moves() {
    let mut model = loom::model::Builder::new();
    model.max_branches = 100_000;
    model.check(|| {
        let config = Config { memory_bytes: ROOM, shards: 2, copy_below: 0, ..Config::default() };
        let table: Arc<Shared<usize>> =
            Shared::new(&config.limits().unwrap(), 1, &HashKey::new([1, 2]));
        // With the fifth, half of the slots are not enough.
        let begun = push_halves(&table, &[0, 1, 2, 3, 4]);
        assert_eq!(table.counters().resized, 1, "the index has begun to grow");
        let other = {
            let table = Arc::clone(&table);
            thread::spawn(move || push_halves(&table, &[MANY, MANY + 2]))
        };
        let one = push_halves(&table, &[5, MANY + 1]);
        let other = other.join().unwrap();
        let end = push_halves(&table, &[MANY + 5, MANY + 4, MANY + 3]);
        let all = [begun, one, other, end];
        let mut whole: Vec<usize> = all.iter().flat_map(|seen| seen.whole.clone()).collect();
        let mut released: Vec<usize> = all.iter().flat_map(|seen| seen.released.clone()).collect();
        whole.sort_unstable();
        released.sort_unstable();
        assert!(whole.iter().copied().eq(0..MANY), "{whole:?}");
        assert!(released.iter().copied().eq(0..2 * MANY), "{released:?}");
        assert_eq!((table.datagrams(), table.ledger.left()), (0, ROOM));
    });
}
