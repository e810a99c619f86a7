use proptest::prelude::*;
use testkit::fragments::{ORDERS, Random, cut};

use super::*;

fn fragment(offset: usize, len: usize, more: bool) -> Fragment {
    let narrow = |n: usize| u16::try_from(n).expect("below 65536");
    let key = Key::v4(1, 2, 3, 4, 0);
    let (offset, len, payload_at, header_len, next_at) = (narrow(offset), narrow(len), 20, 20, 9);
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

/// A datagram whose buffers are numbers, and what was charged for its places.
struct World {
    node: Node<usize>,
    paid: u32,
    handed: usize,
}

impl World {
    fn new() -> Self {
        let mut node = Node::default();
        node.begin(Key::v4(1, 2, 3, 4, 0), 0, false);
        Self { node, paid: Node::<usize>::COST, handed: 0 }
    }

    /// The same, with a record that another datagram had before, whose pieces were of this size.
    fn after(size: usize) -> Self {
        let mut world = Self::new();
        world.push(&fragment(2 * size, 5, false), 8192);
        world.push(&fragment(0, size, true), 8192);
        let mut node = world.end();
        node.begin(Key::v4(1, 2, 4, 4, 0), 0, false);
        let paid = node.cost();
        Self { node, paid, handed: 0 }
    }

    /// What [`crate::table::Table`] does with a fragment.
    fn push(&mut self, f: &Fragment, fragments_max: u16) -> Look {
        if let Ok(look) = self.node.put_usual(f, self.handed) {
            self.handed += 1;
            self.check();
            return look;
        }
        let mut look = self.node.look(f, fragments_max, false);
        if look == Look::Irregular {
            self.paid += self.node.list_growth();
            self.node.list();
            look = self.node.look(f, fragments_max, false);
        }
        if matches!(look, Look::Piece(_) | Look::Tail) {
            let growth = self.node.growth(look, fragments_max);
            self.paid += self.node.growth_cost(growth).0 + self.node.map_growth(look);
            if growth > 0 {
                self.node.grow(growth);
            }
            self.node.put(look, f, Store::Held(self.handed));
            self.handed += 1;
        }
        self.check();
        look
    }

    fn check(&self) {
        assert!(self.node.cost() <= self.paid, "{} for {}", self.paid, self.node.cost());
        assert_eq!(usize::from(self.node.count), self.handed);
    }

    /// The pieces of a complete datagram follow each other.
    fn check_complete(&self, len: u32) {
        assert_eq!(self.node.len(), len);
        let Laid { places, len: each, list, last, .. } = self.node.laid();
        let places: Vec<_> = places.into_iter().flatten().collect();
        assert!(places.iter().all(|place| place.is_some()), "{places:?}");
        let places = u32::from(each) * u32::try_from(places.len()).expect("a few");
        let mut end = list.iter().map(Part::of).chain(last).fold(places, |at, part| {
            assert_eq!(u32::from(part.offset), at);
            part.end()
        });
        while end < len {
            let piece = self.node.mapped(end).expect("a piece begins where one ends");
            assert_eq!(u32::from(piece.offset), end);
            end = piece.end();
        }
        assert_eq!(end, len);
    }

    fn end(mut self) -> Node<usize> {
        let mut released = Vec::new();
        self.node.release(|buffer| released.push(buffer));
        self.node.end(true);
        released.sort_unstable();
        assert!(released.iter().copied().eq(0..self.handed), "all, once");
        assert!(!self.node.is_complete() || self.node.count == 0);
        self.node
    }
}

/// The rules, of a list.
fn expected(there: &[(usize, usize, bool)], new: (usize, usize, bool)) -> &'static str {
    let (offset, len, more) = new;
    let end = offset + len;
    if there.contains(&new) {
        return "duplicate";
    }
    let overlaps = there.iter().any(|(o, l, _)| offset < o + l && *o < end);
    let disagrees = there.iter().any(|(o, l, m)| match (m, more) {
        (false, true) => end >= o + l,
        (false, false) => end != o + l,
        (true, false) => o + l >= end,
        (true, true) => false,
    });
    if overlaps || disagrees { "conflict" } else { "new" }
}

fn name(look: Look) -> &'static str {
    match look {
        Look::Piece(_) | Look::Tail | Look::Layer => "new",
        Look::Duplicate => "duplicate",
        Look::Conflict(_) => "conflict",
        Look::Irregular => "to be looked at again",
    }
}

/// Offset, length, whether more follows.
type Sent = (usize, usize, bool);

/// Fragments that a sender with some ideas of its own might send.
fn sent() -> impl Strategy<Value = Vec<Sent>> {
    let odd = (0..20usize, 1..5usize, any::<bool>());
    let even = (0..20usize, prop_oneof![9 => Just(true), 1 => Just(false)]);
    let sizes = prop_oneof![Just(1usize), Just(2), Just(3)];
    (sizes, proptest::collection::vec((even, proptest::option::weighted(0.1, odd)), 1..40))
        .prop_map(|(size, all)| {
            let of = |((n, more), odd): ((usize, bool), Option<Sent>)| match odd {
                Some((offset, len, more)) => (offset * 8, len * 8 - usize::from(!more) * 3, more),
                None => (n * size * 8, size * 8, more),
            };
            all.into_iter().map(of).collect()
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn fragments_are_taken_as_a_list_would_take_them(sent in sent(), before in 0..4usize) {
        let mut world = if before == 0 { World::new() } else { World::after(before * 8) };
        let mut there = Vec::new();
        for new in sent {
            let look = world.push(&fragment(new.0, new.1, new.2), 8192);
            let expected = expected(&there, new);
            prop_assert_eq!(name(look), expected, "{:?} beside {:?}", new, there);
            match expected {
                "new" => there.push(new),
                "conflict" => break,
                _ => {}
            }
            let end = there.iter().find(|(_, _, more)| !more).map(|(o, l, _)| o + l);
            let received: usize = there.iter().map(|(_, len, _)| len).sum();
            prop_assert_eq!(world.node.is_complete(), end == Some(received));
            if world.node.is_complete() {
                world.check_complete(u32::try_from(received).unwrap());
            }
        }
        world.end();
    }
}

#[test]
fn pieces_of_one_size_are_regular_in_every_order() {
    let mut random = Random::new(1);
    for size in [8, 16, 24, 1480, 1232, 8960] {
        for len in [size + 1, 3 * size, 3 * size + 5, 65_515] {
            let before = [8, 24, 1480, size];
            for (order, before) in ORDERS.into_iter().flat_map(|o| before.map(|size| (o, size))) {
                let mut world = World::after(before);
                for cut in order.of(&cut(len, size), &mut random) {
                    let look = world.push(&fragment(cut.at, cut.end - cut.at, cut.end < len), 8192);
                    assert_eq!(name(look), "new", "{size} {len} {order:?}");
                }
                assert_eq!(world.node.layout, Layout::Regular, "{size} {len} {order:?}");
                world.check_complete(u32::try_from(len).expect("below 65536"));
                world.end();
            }
        }
    }
}

/// The places of pieces are found by a multiplication, which must be exact.
#[test]
fn the_place_of_each_piece_is_its_offset_by_the_size() {
    for size in (8..=65_528u16).step_by(8) {
        let mut world = World::new();
        world.push(&fragment(0, usize::from(size), true), 8192);
        for offset in (0..=65_528u16).step_by(if size < 800 { 8 } else { 1016 }) {
            assert_eq!(world.node.place(offset), usize::from(offset / size), "{offset} by {size}");
        }
    }
}

#[test]
fn a_piece_of_another_size_makes_a_list() {
    for (fragments, len) in [
        (&[(0, 16, true), (16, 8, true), (24, 16, true), (40, 3, false)][..], 43),
        (&[(8, 16, true), (0, 8, true), (24, 16, true), (40, 3, false)], 43),
        (&[(40, 3, false), (0, 16, true), (24, 16, true), (16, 8, true)], 43),
        (&[(40, 3, false), (24, 16, true), (0, 24, true)], 43),
        (&[(0, 16, true), (16, 16, true), (40, 3, false), (32, 8, true)], 43),
    ] {
        let mut world = World::new();
        for (offset, len, more) in fragments {
            assert_eq!(name(world.push(&fragment(*offset, *len, *more), 8192)), "new");
        }
        assert_eq!(world.node.layout, Layout::General);
        world.check_complete(len);
        world.end();
    }
}

/// A sink is told of them before they are copied.
#[test]
fn the_first_buffers_are_those_of_the_first_pieces() {
    let sizes = [[16, 16, 16, 16, 16, 5], [16, 8, 16, 16, 16, 5]];
    for (sizes, expected) in sizes.into_iter().zip([vec![0, 1, 2, 3, 5], vec![0, 1, 2, 3]]) {
        let mut world = World::new();
        let mut at = 0;
        for (n, size) in sizes.into_iter().enumerate() {
            world.push(&fragment(at, size, n < 5), 8192);
            at += size;
        }
        assert!(world.node.is_complete());
        let told: Vec<usize> = world.node.first_buffers().copied().collect();
        assert_eq!(told, expected, "{sizes:?}");
        world.end();
    }
}

/// In whatever order: so many pieces are found by a map, and it is paid for.
#[test]
fn a_list_that_gets_long_gets_a_map() {
    let mut random = Random::new(3);
    for order in ORDERS {
        let cuts = cut(16 * 100 + 5, 16);
        let mut world = World::new();
        // Of another size, so that it is a list from the second on.
        for f in [fragment(1616, 8, true), fragment(1624, 8, true)] {
            assert_eq!(name(world.push(&f, 8192)), "new");
        }
        for cut in order.of(&cuts[..101], &mut random) {
            let f = fragment(cut.at, 16, true);
            assert_eq!(name(world.push(&f, 8192)), "new", "{order:?}");
            assert_eq!(name(world.push(&f, 8192)), "duplicate", "{order:?}");
            assert_eq!(world.node.map.is_some(), world.node.pieces.len() > LISTED_MAX);
        }
        assert_eq!(name(world.push(&fragment(1632, 3, false), 8192)), "new");
        assert!(world.node.is_complete() && world.node.first().is_some());
        world.check_complete(1635);
        assert_eq!(name(world.push(&fragment(48, 32, true), 8192)), "conflict", "as long as two");
        assert_eq!(name(world.push(&fragment(1632, 8, true), 8192)), "conflict", "behind the end");
        assert!(world.end().map.is_none());
    }
}

/// The last piece joins the list when there is no place left: that place must have been paid for.
#[test]
fn a_list_that_takes_the_last_piece_has_paid_for_its_place() {
    for pieces in 1..40 {
        for last_first in [false, true] {
            let mut world = World::new();
            let last = fragment(800 * 8, 3, false);
            if last_first {
                world.push(&last, 8192);
            }
            for n in 0..pieces {
                world.push(&fragment(n * 16, 16, true), 8192);
            }
            if !last_first {
                world.push(&last, 8192);
            }
            // Of another size: from here on a list.
            world.push(&fragment(700 * 8, 8, true), 8192);
            assert_eq!(world.node.layout, Layout::General);
            world.end();
        }
    }
}

#[test]
fn there_are_no_more_pieces_than_allowed() {
    for far in [None, Some(8), Some(16)] {
        let mut world = World::new();
        if let Some(len) = far {
            world.push(&fragment(32_000, len, true), 10);
        }
        let looks = (0..100).map(|n| world.push(&fragment(n * 8, 8, true), 10));
        let fits = looks.take_while(|look| *look != Look::Conflict(Reason::TooMany)).count();
        assert_eq!(fits + usize::from(far.is_some()), 10);
        assert_eq!(name(world.push(&fragment(40_000, 3, false), 10)), "conflict");
        world.end();
    }
}

#[test]
fn a_record_is_used_again_as_a_new_one() {
    let mut node: Node<usize> = Node::default();
    for round in 0..3 {
        node.begin(Key::v4(round, 2, 3, 4, 0), 5, false);
        assert!(!node.heading.is_there() && !node.is_complete() && node.first().is_none());
        for (n, f) in
            [fragment(8, 8, true), fragment(0, 8, true), fragment(16, 3, false)].iter().enumerate()
        {
            let look = node.look(f, 10, false);
            let growth = node.growth(look, 10);
            if growth > 0 {
                node.grow(growth);
            }
            node.put(look, f, Store::Held(n));
        }
        node.put_head(&[7; 200], &Fragment { header_len: 200, ..fragment(0, 8, true) });
        assert_eq!(node.head(), [7; 200]);
        assert!(node.is_complete() && node.first().is_some());
        let mut released = 0;
        node.release(|_| released += 1);
        node.end(true);
        assert_eq!(released, 3);
    }
}

/// A sender that hopes for work by the square ("FragmentSmack"): the smallest fragments, of one size and of two, in
/// any order. What a fragment moves is counted, and does not grow with how many there are.
#[test]
fn a_fragment_moves_few_others_however_many_there_are() {
    // Of a list that doubles each piece moves twice at most, of one that is sorted half of it does.
    const MEAN: usize = LISTED_MAX / 2 + 4;
    let mut random = Random::new(19);
    for (small, large) in [(8, 8), (8, 16)] {
        for len in [8 * 1024, 32 * 1024, 65_512] {
            let mut cuts = Vec::new();
            let mut at = 0;
            while at < len {
                let size = if cuts.len() % 2 == 0 { small } else { large };
                cuts.push((at, (at + size).min(len)));
                at += size;
            }
            for order in ORDERS {
                let mut world = World::new();
                let mut most = 0;
                let last = cuts.len() - 1;
                for cut in order.of(&cut(cuts.len(), 1), &mut random) {
                    let (at, end) = cuts[cut.at];
                    let before = world.node.moved;
                    let look = world.push(&fragment(at, end - at, cut.at != last), 8192);
                    assert!(!matches!(look, Look::Conflict(_)), "{look:?}");
                    most = most.max(world.node.moved - before);
                }
                let mean = world.node.moved / cuts.len();
                let case = format!("{small} and {large} of {len}, {order:?}");
                assert!(mean <= MEAN, "{case}: {mean} moved for each");
                // One list that grows, and once a list that becomes another kind.
                assert!(most <= 2 * cuts.len() + LISTED_MAX, "{case}: {most} moved at once");
                let before = world.node.moved;
                let look = world.push(&fragment(len - 24, 32, true), 8192);
                assert!(matches!(look, Look::Conflict(_)), "{case}: {look:?}");
                assert!(
                    world.node.moved - before <= cuts.len(),
                    "{case}: what overlaps moves nothing"
                );
            }
        }
    }
}
