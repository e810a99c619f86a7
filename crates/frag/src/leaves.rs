//! Pieces in order, however many, in lists that are short.
//!
//! Where overlaps are resolved a datagram has as many pieces as its sender likes, of any sizes, and each new one
//! may come between any others. In one list all behind it would move, 256 KiB for 8 bytes at worst. In leaves only
//! those of its own leaf do.

/// Pieces in a leaf at most. Few where sequences of a few fragments are to find what is wrong.
pub(crate) const LEAF: usize = if cfg!(test) { 8 } else { 64 };
/// The first places of the first leaf.
const PLACES_MIN: usize = 4;
/// The first places for leaves.
const LEAVES_MIN: usize = 4;

/// Some bytes of a datagram's payload, and whose they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) offset: u16,
    pub(crate) len: u16,
    /// The number of the fragment that they came in.
    pub(crate) owner: u16,
}

impl Cut {
    pub(crate) const NONE: Self = Self { offset: 0, len: 0, owner: 0 };

    #[inline]
    pub(crate) const fn end(self) -> u32 {
        self.offset as u32 + self.len as u32
    }
}

#[derive(Debug)]
struct Leaf {
    /// Where its first piece begins: so a search goes through one list of these, and one leaf.
    begin: u16,
    cuts: Vec<Cut>,
}

impl Leaf {
    fn of(cuts: Vec<Cut>) -> Self {
        Self { begin: cuts.first().map_or(0, |first| first.offset), cuts }
    }

    /// Its first piece is another one, or begins elsewhere.
    fn begin_again(&mut self) {
        self.begin = self.cuts.first().map_or(0, |first| first.offset);
    }
}

/// See the module. No leaf is empty.
#[derive(Debug, Default)]
pub(crate) struct Leaves {
    all: Vec<Leaf>,
    /// Places of all leaves.
    places: usize,
    /// Pieces and leaves that were moved to make room for others, ever.
    #[cfg(test)]
    pub(crate) moved: usize,
}

/// Where a piece is, or would be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    leaf: usize,
    at: usize,
}

impl Leaves {
    /// Memory that they take, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.places * size_of::<Cut>() + self.all.capacity() * size_of::<Leaf>()
    }

    /// Memory that it takes at most, at any time of it, to put `pieces` in place of others at a place; beyond what they
    /// take before.
    pub(crate) fn growth_most(&self, place: Place, pieces: usize) -> usize {
        let leaf = self.all.get(place.leaf);
        let (len, room) = leaf.map_or((0, 0), |leaf| (leaf.cuts.len(), leaf.cuts.capacity()));
        if len + pieces <= room {
            return 0;
        }
        let all = len + pieces;
        if all <= LEAF {
            // The first leaf, or a larger one in its place.
            let places = all.next_power_of_two().clamp(PLACES_MIN, LEAF);
            let directory = if self.all.is_empty() { LEAVES_MIN } else { 0 };
            return places * size_of::<Cut>() + directory * size_of::<Leaf>();
        }
        // All of the leaf at once, and then in leaves.
        let leaves = all.div_ceil(LEAF) + 1;
        let directory = (self.all.len() + leaves).max(self.all.capacity() * 2).max(LEAVES_MIN);
        (all + leaves * LEAF) * size_of::<Cut>() + directory * size_of::<Leaf>()
    }

    /// The first piece of which something is in that range of the payload, or where it would be; and how many such
    /// pieces there are.
    #[inline]
    pub(crate) fn overlapped(&self, range: (u32, u32)) -> (Place, usize) {
        let begun = self.all.partition_point(|leaf| u32::from(leaf.begin) <= range.0);
        // All pieces of leaves before this one end before it begins.
        let leaf = begun.saturating_sub(1);
        let Some(here) = self.all.get(leaf) else { return (Place { leaf: 0, at: 0 }, 0) };
        let mut place = Place { leaf, at: here.cuts.partition_point(|cut| cut.end() <= range.0) };
        if place.at == here.cuts.len()
            && self.all.get(leaf + 1).is_some_and(|next| u32::from(next.begin) < range.1)
        {
            place = Place { leaf: leaf + 1, at: 0 };
        }
        let overlaps = self.from(place).take_while(|cut| u32::from(cut.offset) < range.1);
        (place, overlaps.count())
    }

    /// The pieces from a place on.
    #[inline]
    pub(crate) fn from(&self, Place { leaf, at }: Place) -> impl Iterator<Item = Cut> {
        let (here, behind) = match self.all.get(leaf..) {
            Some([here, behind @ ..]) => (here.cuts.get(at..).unwrap_or_default(), behind),
            _ => (&[][..], &[][..]),
        };
        here.iter().chain(behind.iter().flat_map(|leaf| &leaf.cuts)).copied()
    }

    /// All pieces.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Cut> {
        self.all.iter().flat_map(|leaf| &leaf.cuts).copied()
    }

    /// The piece that begins there.
    pub(crate) fn find(&self, offset: u32) -> Option<Cut> {
        let (place, _) = self.overlapped((offset, offset + 1));
        self.from(place).next().filter(|cut| u32::from(cut.offset) == offset)
    }

    /// Puts pieces, one at least, where `count` others are, or where they would be.
    #[inline]
    pub(crate) fn replace(&mut self, place: Place, count: usize, new: &[Cut]) {
        let Place { leaf, at } = place;
        if let Some(there) = self.all.get_mut(leaf) {
            let (behind, len) = (at + count, there.cuts.len());
            if behind <= len && len - count + new.len() <= there.cuts.capacity() {
                #[cfg(test)]
                {
                    self.moved += if count == new.len() { 0 } else { len - behind };
                }
                let moved_to = at + new.len();
                if new.len() > count {
                    // As many as there will be, in room that is there.
                    there.cuts.resize(len - count + new.len(), Cut::NONE);
                }
                there.cuts.copy_within(behind..len, moved_to);
                there.cuts.truncate(len - count + new.len());
                there.cuts[at..moved_to].copy_from_slice(new);
                if at == 0 {
                    there.begin_again();
                }
                return;
            }
        }
        self.cut_out(place, count);
        self.put(place, new);
    }

    /// Takes so many pieces out, from a place on. What is put there next must not be nothing.
    fn cut_out(&mut self, Place { leaf, at }: Place, count: usize) {
        let Some(first) = self.all.get_mut(leaf) else { return };
        let here = count.min(first.cuts.len() - at);
        first.cuts.drain(at..at + here);
        let mut left = count - here;
        // Leaves of which nothing stays, and one of which something does.
        let mut last = leaf + 1;
        while let Some(next) = self.all.get_mut(last).filter(|_| left > 0) {
            let here = left.min(next.cuts.len());
            next.cuts.drain(..here);
            left -= here;
            if !next.cuts.is_empty() {
                next.begin_again();
                break;
            }
            self.places -= next.cuts.capacity();
            last += 1;
        }
        self.all.drain(leaf + 1..last);
    }

    /// Puts pieces where others were, or where they would be.
    #[inline(never)]
    fn put(&mut self, Place { leaf, at }: Place, new: &[Cut]) {
        if self.all.is_empty() {
            self.all.reserve_exact(LEAVES_MIN);
            self.all.push(Leaf::of(Vec::new()));
        }
        let is_last = leaf + 1 == self.all.len();
        let there = &mut self.all[leaf];
        let len = there.cuts.len() + new.len();
        if len <= LEAF {
            if len > there.cuts.capacity() {
                // Only the first leaf begins small.
                let room = len.next_power_of_two().clamp(PLACES_MIN, LEAF);
                self.places += room - there.cuts.capacity();
                there.cuts.reserve_exact(room - there.cuts.len());
            }
            #[cfg(test)]
            {
                self.moved += there.cuts.len() - at;
            }
            there.cuts.splice(at..at, new.iter().copied());
            there.begin_again();
        } else if is_last && at > 0 && at == there.cuts.len() {
            // Who sends in order fills leaf after leaf.
            self.fill(leaf + 1, new, LEAF);
        } else {
            let mut all = std::mem::take(&mut there.cuts);
            self.places -= all.capacity();
            all.reserve_exact(new.len());
            all.splice(at..at, new.iter().copied());
            self.all.remove(leaf);
            #[cfg(test)]
            {
                self.moved += all.len() + self.all.len() - leaf;
            }
            // Of equal length, so that each has room for more.
            let each = all.len().div_ceil(all.len().div_ceil(LEAF));
            self.fill(leaf, &all, each);
        }
    }

    /// Makes leaves of pieces, in front of leaf `at`.
    fn fill(&mut self, at: usize, pieces: &[Cut], each: usize) {
        let count = pieces.len().div_ceil(each);
        if self.all.len() + count > self.all.capacity() {
            let room = (self.all.len() + count).max(self.all.capacity() * 2);
            self.all.reserve_exact(room - self.all.len());
        }
        let leaves = pieces.chunks(each).map(|pieces| {
            let mut leaf = Vec::with_capacity(LEAF);
            leaf.extend_from_slice(pieces);
            Leaf::of(leaf)
        });
        self.all.splice(at..at, leaves);
        self.places += count * LEAF;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut((offset, len): (usize, usize)) -> Cut {
        let narrow = |n: usize| u16::try_from(n).expect("below 65536");
        Cut { offset: narrow(offset), len: narrow(len), owner: narrow(offset / 8) }
    }

    fn check(leaves: &Leaves, expected: &[(usize, usize)]) {
        assert!(leaves.iter().eq(expected.iter().copied().map(cut)));
        for leaf in &leaves.all {
            assert!((1..=LEAF).contains(&leaf.cuts.len()));
            assert_eq!(leaf.begin, leaf.cuts[0].offset);
        }
        let places: usize = leaves.all.iter().map(|leaf| leaf.cuts.capacity()).sum();
        assert_eq!(places, leaves.places);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Beside one sorted list of offsets and lengths, of which what a range overlaps is replaced by pieces of 8.
        #[test]
        fn leaves_are_one_list(ranges in proptest::collection::vec((0..600usize, 1..40usize, 1..4usize), 1..200)) {
            let mut leaves = Leaves::default();
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
                let most = leaves.growth_most(place, new.len());
                let old = leaves.from(place).take(overlaps);
                prop_assert!(old.eq(list[first..first + count].iter().copied().map(cut)));
                let cuts: Vec<_> = new.iter().copied().map(cut).collect();
                leaves.replace(place, overlaps, &cuts);
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
