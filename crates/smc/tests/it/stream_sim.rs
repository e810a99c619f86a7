//! Two ends of a connection, with rings of real bytes and a network that keeps order, is late, and loses
//! links.

#[path = "stream.rs"]
mod stream;

use proptest::prelude::*;

use stream::{Pair, run};

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 2, max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_arrives_once_and_both_sides_close(ops in prop::collection::vec(any::<u8>(), 0..600)) {
        run(&ops);
    }

    #[test]
    fn a_peer_that_says_anything_harms_nobody(ops in prop::collection::vec(any::<u8>(), 0..600)) {
        crate::hostile::run(&ops);
    }
}

/// As in the simulation, but one side only writes and the other only reads, in pieces of this size.
fn one_way(write: u32, read: u32, ring: u8, rmb: u8) {
    let mut pair = Pair::new([ring, rmb, ring, rmb], false);
    let total = 200_000;
    for _ in 0..10_000_000 / read.min(write) {
        if pair.sides[0].wrote < total {
            pair.write(0, write, false);
        }
        pair.settle();
        pair.read(1, read);
        pair.settle();
        if pair.sides[1].read >= total {
            return;
        }
    }
    panic!("{} of {total} bytes arrived", pair.sides[1].read);
}

#[test]
fn a_reader_of_small_pieces_is_told_of_room_in_time() {
    // With the smallest buffer a tenth of it is less than what Linux waits for.
    for (write, read) in [(1 << 20, 100), (100, 1 << 20), (5000, 5000), (16_384, 2303), (99, 77)] {
        one_way(write, read, 0, 0);
        one_way(write, read, 2, 0);
        one_way(write, read, 0, 2);
    }
}

#[test]
fn a_full_ring_says_so_exactly_when_there_is_no_room_left() {
    // With equal rings the last byte that fits is the last that there is, and nobody would say a word.
    let mut pair = Pair::new([0; 4], false);
    pair.write(0, 16_384, false);
    let blocked = pair.post(0);
    assert!(blocked, "exactly as much as there is room");
    pair.settle();
    pair.read(1, 16_384);
    pair.settle();
    pair.write(0, 16_383, false);
    assert!(!pair.post(0), "one less");
}

#[test]
fn nothing_follows_an_urgent_byte_until_it_was_read() {
    let mut pair = Pair::new([2; 4], false);
    pair.write(0, 10, false);
    pair.write(0, 3, true);
    assert_eq!(pair.sides[0].conn.room(), Ok(0));
    pair.settle();
    assert_eq!(pair.sides[1].urgent, Some(pair.byte(0, 12)));
    assert_eq!(pair.sides[1].conn.readable(), 12, "up to the urgent byte");
    assert!(!pair.sides[1].conn.at_mark());
    pair.read(1, 12);
    assert!(pair.sides[1].conn.at_mark());
    pair.settle();
    assert_ne!(pair.sides[0].conn.room(), Ok(0));
}
