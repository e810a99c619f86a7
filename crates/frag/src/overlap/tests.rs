use proptest::prelude::*;

use super::*;
use crate::datagram::{Bytes, Look, Node};
use crate::key::Key;
use crate::leaves::LEAF;

/// A fragment `offset..offset + len` whose payload begins at byte 20 of its packet.
fn fragment(offset: u16, len: u16, more: bool) -> Fragment {
    let key = Key::v4(1, 2, 3, 4, 0);
    let (payload_at, header_len, next_at) = (20, 20, 9);
    Fragment {
        key,
        offset,
        len,
        payload_at,
        header_len,
        next_at,
        protocol: 17,
        ecn: 0,
        more,
        rest: 0,
    }
}

fn layer<B>(node: &mut Node<B>, f: &Fragment, store: Store<B>, policy: Policy) {
    node.layer(node.shelf.spot(f), f, store, policy);
}

/// Who owns each unit of 8 bytes, `None` where nothing is: as [`Shelf`] has it. The buffer of a fragment is
/// its letter.
fn shelved(policy: Policy, fragments: &[(u8, u16, u16)]) -> Vec<Option<u8>> {
    let mut node: Node<u8> = Node::default();
    node.begin(Key::v4(1, 2, 3, 4, 0), 0, true);
    for (letter, offset, len) in fragments {
        let f = fragment(*offset, *len, true);
        assert_eq!(node.look(&f, 8192, false), Look::Layer);
        layer(&mut node, &f, Store::Held(*letter), policy);
    }
    let mut owners = Vec::new();
    let mut end = 0;
    for cut in node.shelf.pieces().iter() {
        let piece = node.shelf.part(cut).expect("of some fragment");
        assert!(u32::from(piece.offset) >= end, "pieces overlap");
        end = piece.end();
        let Bytes::Held(letter) = piece.bytes else { panic!("not held") };
        let (_, offset, _) = fragments.iter().find(|(l, ..)| l == letter).expect("of that letter");
        assert_eq!(piece.skipped, piece.offset - offset, "{letter} at the wrong place");
        assert_eq!(piece.at, 20);
        owners.resize(usize::from(piece.offset) / 8, None);
        owners.resize(end as usize / 8, Some(*letter));
    }
    let mut released = Vec::new();
    node.release(|letter| released.push(letter));
    assert!(released.iter().eq(fragments.iter().map(|(letter, ..)| letter)), "all, once");
    owners
}

/// The same, of bytes in a row, each with whom it belongs to; by the words of the policies.
fn rowed(policy: Policy, fragments: &[(u8, u16, u16)]) -> Vec<Option<u8>> {
    let mut row: Vec<Option<(u8, u16, u16)>> = Vec::new();
    for new in fragments {
        let (_, start, len) = *new;
        let end = start + len;
        row.resize(row.len().max(usize::from(end / 8)), None);
        for unit in &mut row[usize::from(start / 8)..usize::from(end / 8)] {
            let keeps_old = unit.is_some_and(|(_, old, old_len)| {
                let old_end = old + old_len;
                match policy {
                    Policy::Strict | Policy::First => true,
                    Policy::Last => false,
                    Policy::Bsd => old <= start,
                    Policy::BsdRight => old > start,
                    Policy::Linux => old < start,
                    Policy::Windows => !(start < old && end > old_end),
                    Policy::Solaris => !(start < old && end >= old_end),
                }
            });
            if !keeps_old {
                *unit = Some(*new);
            }
        }
    }
    row.into_iter().map(|unit| unit.map(|(letter, ..)| letter)).collect()
}

/// The fragments by which J. Novak told hosts apart, in units of 8 bytes: letter, offset, length.
const NOVAK: [(u8, u16, u16); 18] = [
    (b'A', 0, 3),
    (b'B', 4, 2),
    (b'C', 6, 3),
    (b'D', 10, 1),
    (b'E', 13, 2),
    (b'F', 15, 3),
    (b'G', 18, 2),
    (b'H', 20, 2),
    (b'I', 22, 1),
    (b'J', 1, 4),
    (b'K', 6, 3),
    (b'L', 9, 3),
    (b'M', 12, 3),
    (b'N', 16, 1),
    (b'O', 19, 1),
    (b'P', 20, 1),
    (b'Q', 22, 2),
    (b'R', 24, 1),
];

#[test]
fn hosts_make_of_novaks_fragments_what_he_saw() {
    let fragments = NOVAK.map(|(letter, offset, len)| (letter, offset * 8, len * 8));
    let expected = [
        (Policy::First, "AAAJBBCCCLDLMEEFFFGGHHIQR"),
        (Policy::Last, "AJJJJBKKKLLLMMMFNFGOPHQQR"),
        (Policy::Bsd, "AAAJJBCCCLLLMMMFFFGGHHIQR"),
        (Policy::BsdRight, "AJJJBBKKKLDLMEEFNFGOPHQQR"),
        (Policy::Linux, "AAAJJBKKKLLLMMMFFFGGPHQQR"),
        (Policy::Windows, "AAAJBBCCCLLLMEEFFFGGHHIQR"),
        (Policy::Solaris, "AAAJBBCCCLLLMMMFFFGGHHIQR"),
    ];
    for (policy, expected) in expected {
        let owners: Vec<u8> =
            shelved(policy, &fragments).into_iter().map(|owner| owner.unwrap_or(b'.')).collect();
        assert_eq!(String::from_utf8_lossy(&owners), expected, "{policy:?}");
        assert_eq!(rowed(policy, &fragments), shelved(policy, &fragments), "{policy:?}");
    }
}

#[test]
fn each_relation_of_two_is_decided_as_the_words_say() {
    // The old fragment is 16..32; the new one begins before, with, behind it, and ends so.
    let relations =
        [(8u16, 16u16), (8, 24), (8, 32), (16, 8), (16, 16), (16, 24), (24, 8), (24, 16)];
    for policy in Policy::ALL.iter().copied().filter(|policy| *policy != Policy::Strict) {
        for (start, len) in relations {
            let fragments = [(b'A', 16, 16), (b'B', start, len)];
            let (got, expected) = (shelved(policy, &fragments), rowed(policy, &fragments));
            assert_eq!(got, expected, "{policy:?} {start} {len}");
        }
    }
}

#[test]
fn policies_are_known_by_name() {
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse(), Ok(*policy));
    }
    assert_eq!("vista".parse::<Policy>(), Err(()));
    assert_eq!(Policy::default(), Policy::Strict);
}

/// Pieces of which something is in that range of the payload.
fn overlaps(node: &Node<u16>, range: (u32, u32)) -> usize {
    node.shelf.pieces().overlapped(range).1
}

/// A sender that hopes for work by the square: each of its fragments is compared with those alone that it
/// overlaps, which are all that [`Shelf::layer`] goes through; and moves those of its own leaf alone.
#[test]
fn a_fragment_costs_what_its_length_says_however_many_there_are() {
    for policy in Policy::ALL.iter().copied().filter(|policy| *policy != Policy::Strict) {
        let mut node: Node<u16> = Node::default();
        node.begin(Key::v4(1, 2, 3, 4, 0), 0, true);
        let (mut most, mut moved_most) = (0, 0);
        // The smallest that overlap, in an order that is none: 4093 is prime.
        for n in 0..4000u16 {
            let place = u16::try_from(u32::from(n) * 1009 % 4093).expect("less than 4093");
            let f = fragment(place * 16, 24, true);
            most = most.max(overlaps(&node, (u32::from(f.offset), f.end())));
            let before = node.shelf.pieces().moved;
            layer(&mut node, &f, Store::Held(n), policy);
            // Where a leaf is full the list of leaves moves too: see the mean.
            moved_most = moved_most.max(node.shelf.pieces().moved - before);
        }
        let pieces = node.shelf.pieces().iter().count();
        assert!(pieces >= 4000, "{policy:?}: there are many");
        assert!((2..=3).contains(&most), "{policy:?}: {most} pieces in 24 bytes");
        let mean = node.shelf.pieces().moved / 4000;
        let leaves = pieces.div_ceil(LEAF / 2);
        assert!(
            moved_most <= 2 * LEAF + leaves,
            "{policy:?}: {moved_most} of {pieces} moved at once"
        );
        assert!(mean <= LEAF + 2 * leaves / LEAF, "{policy:?}: {mean} of {pieces} moved for each");
    }
}

/// Whoever sends from the end on has each of its fragments in front of all others.
#[test]
fn a_fragment_in_front_of_all_others_moves_few_of_them() {
    let mut node: Node<u16> = Node::default();
    node.begin(Key::v4(1, 2, 3, 4, 0), 0, true);
    for n in 0..8000 {
        layer(&mut node, &fragment((8190 - n) * 8, 8, true), Store::Held(n), Policy::Last);
    }
    assert_eq!(node.shelf.pieces().iter().count(), 8000);
    // All of them, with a list in one piece: 32 million.
    let moved = node.shelf.pieces().moved / 8000;
    assert!(moved <= LEAF + 2 * (8000 / (LEAF / 2)) / LEAF, "{moved} for each");
}

/// Pieces that one fragment goes through are as many as it has units of 8 bytes, at most.
#[test]
fn a_long_fragment_goes_through_what_it_overlaps() {
    let mut node: Node<u16> = Node::default();
    node.begin(Key::v4(1, 2, 3, 4, 0), 0, true);
    for n in 0..2000 {
        layer(&mut node, &fragment(n * 16, 8, true), Store::Held(n), Policy::First);
    }
    assert_eq!(overlaps(&node, (16_000, 16_000 + 1480)), 93);
    layer(&mut node, &fragment(16_000, 1480, true), Store::Held(2000), Policy::First);
    assert_eq!(node.shelf.pieces().iter().count(), 2000 + 92, "each gap is filled");
    assert_eq!(overlaps(&node, (40_000, 40_008)), 0);
}

#[test]
fn what_lies_behind_the_end_does_not_count() {
    let mut node: Node<u8> = Node::default();
    node.begin(Key::v4(1, 2, 3, 4, 0), 0, true);
    for (f, letter) in [(fragment(8, 32, true), b'b'), (fragment(0, 8, true), b'a')] {
        layer(&mut node, &f, Store::Held(letter), Policy::First);
        assert!(!node.is_complete());
    }
    layer(&mut node, &fragment(16, 4, false), Store::Held(b'c'), Policy::First);
    assert!(node.is_complete());
    assert_eq!(node.len(), 20);
    node.release(|_| ());
    node.end(true);
}

fn fragments() -> impl Strategy<Value = Vec<(u8, u16, u16)>> {
    proptest::collection::vec((0..24u16, 1..8u16), 1..24).prop_map(|all| {
        (0..).zip(all).map(|(letter, (offset, len))| (letter, offset * 8, len * 8)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fragments_are_laid_as_bytes_in_a_row(
        fragments in fragments(),
        policy in proptest::sample::select(&Policy::ALL[1..]),
    ) {
        prop_assert_eq!(shelved(policy, &fragments), rowed(policy, &fragments));
    }
}
