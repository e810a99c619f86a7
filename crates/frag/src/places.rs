//! Places that are found by number, for what comes and goes one by one.
//!
//! They come a page at a time, and a page goes when nothing is in it: one list of all would be copied whenever it
//! grows, in a single call.

use crate::directory::{Directory, NONE};

/// See the module. At most 128 places are a page.
#[derive(Debug)]
pub(crate) struct Places<T, const PAGE: usize> {
    pages: Directory<Box<Page<T, PAGE>>>,
    /// The first page with a vacant place.
    open: u32,
}

#[derive(Debug)]
pub(crate) struct Page<T, const PAGE: usize> {
    places: [Option<T>; PAGE],
    /// A bit for each place with nothing in it.
    vacant: u128,
    /// Beside it in the list of those with vacant places.
    next: u32,
    before: u32,
}

impl<T, const PAGE: usize> Places<T, PAGE> {
    pub(crate) const PAGE_BYTES: u64 = size_of::<Page<T, PAGE>>() as u64;
    const ALL_VACANT: u128 = u128::MAX >> (u128::BITS as usize - PAGE);
    /// What the first page takes, bytes.
    pub(crate) const FIRST_BYTES: u64 =
        Self::PAGE_BYTES + Directory::<Box<Page<T, PAGE>>>::FIRST_BYTES;

    pub(crate) const fn new() -> Self {
        Self { pages: Directory::new(), open: NONE }
    }

    /// Bytes that all of them take.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn bytes(&self) -> u64 {
        self.pages.iter().count() as u64 * Self::PAGE_BYTES + self.pages.bytes()
    }

    /// What is there.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flat_map(|page| page.places.iter().flatten())
    }

    /// What is in a place.
    #[inline(always)]
    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.pages.get(at / Self::SIZE)?.places[at as usize % PAGE].as_ref()
    }

    /// As [`Self::get`].
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.pages.get_mut(at / Self::SIZE)?.places[at as usize % PAGE].as_mut()
    }

    /// Bytes that [`Self::open`] takes, at the most that there are of them at once.
    pub(crate) fn growth(&self) -> u64 {
        if self.open == NONE { Self::PAGE_BYTES + self.pages.growth() } else { 0 }
    }

    /// The list of pages.
    pub(crate) fn pages(&mut self) -> &mut Directory<Box<Page<T, PAGE>>> {
        &mut self.pages
    }

    /// A vacant place, which stays so until [`Self::fill`]. Answers also how many bytes of [`Self::growth`] were given
    /// back.
    pub(crate) fn open(&mut self) -> (u32, u64) {
        let over = if self.open == NONE { self.turn_page() } else { 0 };
        let first = self.page(self.open).vacant.trailing_zeros();
        (self.open * Self::SIZE + first, over)
    }

    #[expect(clippy::cast_possible_truncation, reason = "at most 128")]
    const SIZE: u32 = PAGE as u32;

    #[cold]
    fn turn_page(&mut self) -> u64 {
        let (number, over) = self.pages.open();
        let page = Box::new(Page {
            places: [const { None }; PAGE],
            vacant: Self::ALL_VACANT,
            next: NONE,
            before: NONE,
        });
        self.pages.put(number, page);
        self.enter(number);
        over
    }

    /// Puts something into the place that [`Self::open`] has answered.
    pub(crate) fn fill(&mut self, at: u32, what: T) {
        let number = at / Self::SIZE;
        let page = self.page_mut(number);
        page.places[at as usize % PAGE] = Some(what);
        page.vacant &= !(1 << (at % Self::SIZE));
        if page.vacant == 0 {
            self.withdraw(number);
        }
    }

    /// Takes out what is in a place, and how many bytes of places have gone with it.
    pub(crate) fn take(&mut self, at: u32) -> (Option<T>, u64) {
        let number = at / Self::SIZE;
        let page = self.page_mut(number);
        let what = page.places[at as usize % PAGE].take();
        let before = page.vacant;
        page.vacant |= 1 << (at % Self::SIZE);
        let is_empty = page.vacant == Self::ALL_VACANT;
        if before == 0 {
            self.enter(number);
        }
        if !is_empty {
            return (what, 0);
        }
        self.withdraw(number);
        self.pages.take(number);
        (what, Self::PAGE_BYTES)
    }

    /// Enters a page among those with vacant places.
    fn enter(&mut self, number: u32) {
        let next = std::mem::replace(&mut self.open, number);
        let page = self.page_mut(number);
        (page.next, page.before) = (next, NONE);
        if next != NONE {
            self.page_mut(next).before = number;
        }
    }

    /// Takes a page out of those.
    fn withdraw(&mut self, number: u32) {
        let Page { next, before, .. } = *self.page(number);
        match before {
            NONE => self.open = next,
            before => self.page_mut(before).next = next,
        }
        if next != NONE {
            self.page_mut(next).before = before;
        }
    }

    fn page(&self, number: u32) -> &Page<T, PAGE> {
        self.pages.get(number).expect("a page goes when nothing is in it")
    }

    fn page_mut(&mut self, number: u32) -> &mut Page<T, PAGE> {
        self.pages.get_mut(number).expect("a page goes when nothing is in it")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use testkit::fragments::Random;

    use super::*;

    /// Beside a map, in waves, so that pages come and go anywhere; and what is there is what was said before.
    #[test]
    fn pages_come_with_the_first_and_go_with_the_last() {
        let mut random = Random::new(3);
        let mut places: Places<Box<u32>, 4> = Places::new();
        let (mut there, mut bytes, mut next, mut went) = (BTreeMap::new(), 0, 0, 0);
        for wave in 0..60 {
            for _ in 0..random.below(80) {
                bytes += places.growth();
                let (at, over) = places.open();
                bytes -= over;
                if wave % 2 == 0 && places.pages.drainage().is_some() {
                    bytes -= places.pages.drain();
                }
                assert!(places.get(at).is_none() && places.growth() == 0);
                places.fill(at, Box::new(next));
                assert_eq!(there.insert(at, next), None, "place {at} was taken");
                next += 1;
            }
            let leave = if wave % 5 == 4 { 0 } else { random.below(there.len() + 1) };
            while there.len() > leave {
                let at = *there.keys().nth(random.below(there.len())).expect("some are there");
                let (what, gone) = places.take(at);
                assert_eq!(what.map(|what| *what), there.remove(&at));
                bytes -= gone;
                went += usize::from(gone > 0);
            }
            assert_eq!(bytes, places.bytes());
            let pages = there.keys().map(|at| at / 4).collect::<std::collections::BTreeSet<_>>();
            let list = places.pages.bytes();
            let page = Places::<Box<u32>, 4>::PAGE_BYTES;
            assert_eq!(places.bytes() - list, pages.len() as u64 * page);
            for (at, what) in &mut there {
                assert_eq!(places.get(*at).map(|what| **what), Some(*what));
                assert_eq!(places.get_mut(*at).map(|what| **what), Some(*what));
            }
            assert_eq!(places.iter().count(), there.len());
        }
        assert!(went > 100 && places.get(u32::MAX).is_none(), "{went}");
    }
}
