//! Ways to cut a datagram and to order what comes of it: those of the kernel's own test of fragments, and
//! any others, by a seed.

/// Numbers that are the same each time (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next one.
    pub const fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A number below `n`, which is not 0.
    #[expect(clippy::cast_possible_truncation, reason = "below n")]
    pub const fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }

    /// Any order.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            all.swap(at, self.below(at + 1));
        }
    }
}

/// A part of a payload: from where, to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Its first byte, a multiple of 8.
    pub at: usize,
    /// Behind its last byte.
    pub end: usize,
}

/// Pieces of `size` bytes, a multiple of 8, of a payload of `len`; the last may be shorter.
#[must_use]
pub fn cut(len: usize, size: usize) -> Vec<Cut> {
    (0..len).step_by(size).map(|at| Cut { at, end: len.min(at + size) }).collect()
}

/// Pieces of 8 bytes to `most`, no two alike if chance has it so.
pub fn cut_unevenly(random: &mut Random, len: usize, most: usize) -> Vec<Cut> {
    let mut cuts = Vec::new();
    let mut at = 0;
    while at < len {
        let end = len.min(at + 8 * (1 + random.below(most.div_ceil(8))));
        cuts.push(Cut { at, end });
        at = end;
    }
    cuts
}

/// In which order pieces come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they were cut.
    Straight,
    /// The last first.
    Reverse,
    /// The second, fourth, …, then the first, third, …
    OddEven,
    /// Of each nine: the third three, the second, the first.
    SixThreeZero,
    /// By chance.
    Shuffled,
}

/// All of them.
pub const ORDERS: [Order; 5] =
    [Order::Straight, Order::Reverse, Order::OddEven, Order::SixThreeZero, Order::Shuffled];

impl Order {
    /// Puts them into this order.
    #[must_use]
    pub fn of<T: Copy>(self, all: &[T], random: &mut Random) -> Vec<T> {
        let mut all = all.to_vec();
        match self {
            Self::Straight => {}
            Self::Reverse => all.reverse(),
            Self::OddEven => {
                let odd = all.iter().skip(1).step_by(2);
                all = odd.chain(all.iter().step_by(2)).copied().collect();
            }
            Self::SixThreeZero => {
                let nine = |nine: &[T]| nine.rchunks(3).flatten().copied().collect::<Vec<_>>();
                all = all.chunks(9).flat_map(nine).collect();
            }
            Self::Shuffled => random.shuffle(&mut all),
        }
        all
    }
}

/// Some of them again, somewhere behind where they were first. The last one stays the last.
#[must_use]
pub fn with_duplicates(cuts: &[Cut], random: &mut Random) -> Vec<Cut> {
    let mut all = cuts.to_vec();
    let others = cuts.split_last().map_or(&[][..], |(_, others)| others);
    for cut in others {
        if random.below(4) == 0 {
            let first = all.iter().position(|c| c == cut).unwrap_or(0);
            all.insert(first + 1 + random.below(all.len() - 1 - first), *cut);
        }
    }
    all
}

/// A piece that overlaps some of a payload of `len` cut into pieces of `size`, and is none of them.
#[must_use]
pub fn overlap(len: usize, size: usize, random: &mut Random) -> Option<Cut> {
    // Shifted by 8 bytes at least, less than a piece, and all inside.
    let shift = 8 * (1 + random.below((size / 8).max(2) - 1));
    let last = len.checked_sub(size + shift + 1)? / size;
    let at = random.below(last + 1) * size + shift;
    (size > 8).then_some(Cut { at, end: at + size })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_is_of_all_pieces() {
        let all: Vec<usize> = (0..20).collect();
        for order in ORDERS {
            let mut got = order.of(&all, &mut Random::new(3));
            got.sort_unstable();
            assert_eq!(got, all, "{order:?}");
        }
        let nine = Order::SixThreeZero.of(&[0, 1, 2, 3, 4, 5, 6, 7, 8], &mut Random::new(0));
        assert_eq!(nine, [6, 7, 8, 3, 4, 5, 0, 1, 2]);
        let odd_even = Order::OddEven.of(&[0, 1, 2, 3, 4], &mut Random::new(0));
        assert_eq!(odd_even, [1, 3, 0, 2, 4]);
    }

    #[test]
    fn pieces_cover_all_once() {
        let mut random = Random::new(1);
        for len in [1, 8, 9, 1000, 65_515] {
            for cuts in [cut(len, 8), cut(len, 1480), cut_unevenly(&mut random, len, 2000)] {
                let end = cuts.iter().fold(0, |at, cut| {
                    assert_eq!(cut.at, at);
                    assert!(cut.end > at);
                    cut.end
                });
                assert_eq!(end, len);
            }
        }
    }

    #[test]
    fn what_overlaps_is_no_piece() {
        let mut random = Random::new(2);
        for _ in 0..1000 {
            let size = 16 + 8 * random.below(100);
            let len = 3 * size + random.below(5000);
            let odd = overlap(len, size, &mut random).expect("there is room");
            assert!(odd.end < len && odd.at.is_multiple_of(8), "{odd:?} {size} {len}");
            assert!(!odd.at.is_multiple_of(size), "{odd:?} {size}");
        }
    }

    #[test]
    fn duplicates_come_behind_and_never_last() {
        let mut random = Random::new(4);
        let mut more = 0;
        for _ in 0..200 {
            let cuts = cut(1000, 80);
            let all = with_duplicates(&cuts, &mut random);
            more += all.len() - cuts.len();
            assert_eq!(all.last(), cuts.last());
            assert!(cuts.iter().all(|cut| all.contains(cut)));
        }
        assert!(more > 100);
    }
}
