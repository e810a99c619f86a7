//! Pieces in order, however many, in lists that are short.
//!
//! Where overlaps are resolved a datagram has as many pieces as its sender likes, of any sizes, and each new one
//! may come between any others. In one list all behind it would move, 256 KiB for 8 bytes at worst. In leaves only
//! those of its own leaf do.

use crate::datagram::Piece;

/// Pieces in a leaf at most. Few where sequences of a few fragments are to find what is wrong.
pub(crate) const LEAF: usize = if cfg!(test) { 8 } else { 64 };
/// The first places of the first leaf.
const PLACES_MIN: usize = 4;
/// The first places for leaves.
const LEAVES_MIN: usize = 4;

/// See the module. No leaf is empty.
#[derive(Debug)]
pub(crate) struct Leaves<B> {
    all: Vec<Vec<Piece<B>>>,
    /// Places of all leaves.
    places: usize,
    /// Pieces and leaves that were moved to make room for others, ever.
    #[cfg(test)]
    pub(crate) moved: usize,
}

impl<B> Default for Leaves<B> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            places: 0,
            #[cfg(test)]
            moved: 0,
        }
    }
}

/// Where a piece is, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    leaf: usize,
    at: usize,
}

impl<B> Leaves<B> {
    /// Memory that they take, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.places * size_of::<Piece<B>>() + self.all.capacity() * size_of::<Vec<Piece<B>>>()
    }

    /// Memory that it takes at most, at any time of it, to put `pieces` in place of `overlaps` at a place; beyond
    /// what they take before.
    pub(crate) fn growth_most(&self, place: Place, overlaps: usize, pieces: usize) -> usize {
        let leaf = self.all.get(place.leaf);
        let (len, room) = leaf.map_or((0, 0), |leaf| (leaf.len(), leaf.capacity()));
        let lists = if overlaps == 0 { 0 } else { overlaps + pieces };
        if len + pieces <= room {
            return lists * size_of::<Piece<B>>();
        }
        let all = len + pieces;
        if all <= LEAF {
            // The first leaf, or a larger one in its place.
            let places = all.next_power_of_two().clamp(PLACES_MIN, LEAF);
            let directory = if self.all.is_empty() { LEAVES_MIN } else { 0 };
            return (lists + places) * size_of::<Piece<B>>()
                + directory * size_of::<Vec<Piece<B>>>();
        }
        // All of the leaf at once, and then in leaves.
        let leaves = all.div_ceil(LEAF) + 1;
        let directory = (self.all.len() + leaves).max(self.all.capacity() * 2).max(LEAVES_MIN);
        (lists + all + leaves * LEAF) * size_of::<Piece<B>>()
            + directory * size_of::<Vec<Piece<B>>>()
    }

    /// The first piece of which something is in that range of the payload, or where it would be; and how many such
    /// pieces there are.
    pub(crate) fn overlapped(&self, range: (u32, u32)) -> (Place, usize) {
        let before = |piece: &Piece<B>| piece.end() <= range.0;
        let mut leaf = self.all.partition_point(|leaf| leaf.last().is_some_and(before));
        if leaf == self.all.len() {
            // Behind all: in the last leaf.
            leaf = leaf.saturating_sub(1);
        }
        let at = self.all.get(leaf).map_or(0, |leaf| leaf.partition_point(before));
        let place = Place { leaf, at };
        let overlaps = self.from(place).take_while(|piece| u32::from(piece.offset) < range.1);
        (place, overlaps.count())
    }

    /// The pieces from a place on.
    pub(crate) fn from(&self, Place { leaf, at }: Place) -> impl Iterator<Item = &Piece<B>> {
        let leaves = self.all.get(leaf..).unwrap_or_default();
        leaves.iter().flatten().skip(at)
    }

    /// All pieces.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Piece<B>> {
        self.all.iter().flatten()
    }

    /// The piece that begins there.
    pub(crate) fn find(&self, offset: u32) -> Option<&Piece<B>> {
        let (place, _) = self.overlapped((offset, offset + 1));
        self.from(place).next().filter(|piece| u32::from(piece.offset) == offset)
    }

    /// Takes so many pieces out, from a place on. What is put there next must not be nothing.
    pub(crate) fn cut_out(&mut self, Place { leaf, at }: Place, count: usize) -> Vec<Piece<B>> {
        let mut out = Vec::with_capacity(count);
        let Some(first) = self.all.get_mut(leaf) else { return out };
        let here = count.min(first.len() - at);
        out.extend(first.drain(at..at + here));
        // Leaves of which nothing stays, and one of which something does.
        let mut last = leaf + 1;
        while let Some(next) = self.all.get_mut(last).filter(|_| out.len() < count) {
            let here = (count - out.len()).min(next.len());
            out.extend(next.drain(..here));
            if !next.is_empty() {
                break;
            }
            self.places -= next.capacity();
            last += 1;
        }
        self.all.drain(leaf + 1..last);
        out
    }

    /// Puts pieces where others were, or where they would be.
    pub(crate) fn put(
        &mut self,
        Place { leaf, at }: Place,
        pieces: impl ExactSizeIterator<Item = Piece<B>>,
    ) {
        if self.all.is_empty() {
            self.all.reserve_exact(LEAVES_MIN);
            self.all.push(Vec::new());
        }
        let is_last = leaf + 1 == self.all.len();
        let there = &mut self.all[leaf];
        let len = there.len() + pieces.len();
        if len <= LEAF {
            if len > there.capacity() {
                // Only the first leaf begins small.
                let room = len.next_power_of_two().clamp(PLACES_MIN, LEAF);
                self.places += room - there.capacity();
                there.reserve_exact(room - there.len());
            }
            #[cfg(test)]
            {
                self.moved += there.len() - at;
            }
            there.splice(at..at, pieces);
        } else if is_last && at > 0 && at == there.len() {
            // Who sends in order fills leaf after leaf.
            self.fill(leaf + 1, pieces, LEAF);
        } else {
            let mut all = std::mem::take(there);
            self.places -= all.capacity();
            all.reserve_exact(pieces.len());
            all.splice(at..at, pieces);
            self.all.remove(leaf);
            #[cfg(test)]
            {
                self.moved += all.len() + self.all.len() - leaf;
            }
            // Of equal length, so that each has room for more.
            let each = all.len().div_ceil(all.len().div_ceil(LEAF));
            self.fill(leaf, all.into_iter(), each);
        }
    }

    /// Makes leaves of pieces, in front of leaf `at`.
    fn fill(
        &mut self,
        at: usize,
        mut pieces: impl ExactSizeIterator<Item = Piece<B>>,
        each: usize,
    ) {
        let count = pieces.len().div_ceil(each);
        if self.all.len() + count > self.all.capacity() {
            let room = (self.all.len() + count).max(self.all.capacity() * 2);
            self.all.reserve_exact(room - self.all.len());
        }
        let leaves = (0..count).map(|_| {
            let mut leaf = Vec::with_capacity(LEAF);
            leaf.extend(pieces.by_ref().take(each));
            leaf
        });
        self.all.splice(at..at, leaves);
        self.places += count * LEAF;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::datagram::Store;

    fn piece(offset: usize, len: usize) -> Piece<u32> {
        let narrow = |n: usize| u16::try_from(n).expect("below 65536");
        Piece { offset: narrow(offset), len: narrow(len), at: 20, store: Store::Nothing }
    }

    fn check(leaves: &Leaves<u32>, expected: &[(usize, usize)]) {
        let there = leaves.iter().map(|p| (usize::from(p.offset), usize::from(p.len)));
        assert!(there.eq(expected.iter().copied()));
        assert!(leaves.all.iter().all(|leaf| (1..=LEAF).contains(&leaf.len())));
        let places: usize = leaves.all.iter().map(Vec::capacity).sum();
        assert_eq!(places, leaves.places);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Beside one sorted list of offsets and lengths, of which what a range overlaps is replaced by pieces of 8.
        #[test]
        fn leaves_are_one_list(ranges in proptest::collection::vec((0..600usize, 1..40usize, 1..4usize), 1..200)) {
            let mut leaves: Leaves<u32> = Leaves::default();
            let mut list: Vec<(usize, usize)> = Vec::new();
            for (start, len, step) in ranges {
                let range = (start * 8, (start + len) * 8);
                let narrow = |n: usize| u32::try_from(n).expect("small");
                let first = list.partition_point(|(at, len)| at + len <= range.0);
                let count = list[first..].partition_point(|(at, _)| *at < range.1);
                let (place, overlaps) = leaves.overlapped((narrow(range.0), narrow(range.1)));
                prop_assert_eq!(overlaps, count);
                // What sticks out stays.
                let begin = list.get(first).filter(|_| count > 0).map_or(range.0, |p| p.0.min(range.0));
                let end = list[first..first + count].last().map_or(range.1, |p| (p.0 + p.1).max(range.1));
                let new: Vec<_> = (begin..end).step_by(8 * step).map(|at| (at, 8)).collect();
                let before = leaves.bytes();
                let most = leaves.growth_most(place, count, new.len());
                let old = leaves.cut_out(place, overlaps);
                let old = old.iter().map(|p| (usize::from(p.offset), usize::from(p.len)));
                prop_assert!(old.eq(list[first..first + count].iter().copied()));
                leaves.put(place, new.iter().map(|(at, len)| piece(*at, *len)));
                prop_assert!(leaves.bytes() <= before + most);
                list.splice(first..first + count, new);
                check(&leaves, &list);
                for (at, _) in &list {
                    prop_assert!(leaves.find(narrow(*at)).is_some());
                    prop_assert!(leaves.find(narrow(*at) + 4).is_none());
                }
            }
        }
    }
}
