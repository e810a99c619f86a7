//! Numbered places for what comes and goes in pieces: chunks of records, pages of blocks.
//!
//! A list that is nearly full is followed by one that is twice as long, to which each piece that comes moves a few
//! places; and each gives back a little of the list before when that is done. No call copies or frees all.

/// No number.
pub(crate) const NONE: u32 = u32::MAX;
/// The first places.
const PLACES_MIN: usize = 4;
/// Places that are moved to a longer list when a piece comes.
const MOVES: usize = 8;
/// Places of the list before that are given back then, when all are moved.
const DRAINED: usize = 512;

#[derive(Debug)]
enum Place<C> {
    There(C),
    /// Nothing, and which is the next of those.
    Gone(u32),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Directory<C> {
    /// The places of all, or of the first of them: the others are in `rest` then.
    list: Vec<Place<C>>,
    rest: Vec<Place<C>>,
    /// The first place with nothing in it.
    gone: u32,
}

impl<C> Directory<C> {
    /// What the first places take, bytes.
    pub(crate) const FIRST_BYTES: u64 = Self::list_bytes(PLACES_MIN);

    pub(crate) const fn new() -> Self {
        Self { list: Vec::new(), rest: Vec::new(), gone: NONE }
    }

    const fn list_bytes(places: usize) -> u64 {
        (places * size_of::<Place<C>>()) as u64
    }

    /// What all places take, bytes.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn bytes(&self) -> u64 {
        Self::list_bytes(self.list.capacity() + self.rest.capacity())
    }

    /// What is there.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &C> {
        self.list.iter().chain(&self.rest).filter_map(|place| match place {
            Place::There(what) => Some(what),
            Place::Gone(_) => None,
        })
    }

    /// What is in a place.
    #[inline(always)]
    pub(crate) fn get(&self, number: u32) -> Option<&C> {
        let at = number as usize;
        let place = match self.list.get(at) {
            Some(place) => place,
            None => self.rest.get(at)?,
        };
        match place {
            Place::There(what) => Some(what),
            Place::Gone(_) => None,
        }
    }

    /// As [`Self::get`].
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut C> {
        let at = number as usize;
        let place = match self.list.get_mut(at) {
            Some(place) => place,
            None => self.rest.get_mut(at)?,
        };
        match place {
            Place::There(what) => Some(what),
            Place::Gone(_) => None,
        }
    }

    /// Whether some places are still in the list before.
    fn is_moving(&self) -> bool {
        self.list.len() < self.rest.len()
    }

    /// Places of a list that [`Self::open`] begins; `None`: it needs none.
    fn more_places(&self) -> Option<usize> {
        let places = self.list.capacity();
        let few = self.list.len() * 4 >= places * 3 && !self.is_moving();
        (self.gone == NONE && few).then(|| (places * 2).max(PLACES_MIN))
    }

    /// Bytes that [`Self::open`] takes, at the most that there are of them at once.
    pub(crate) fn growth(&self) -> u64 {
        self.more_places().map_or(0, Self::list_bytes)
    }

    /// A place with nothing in it, for [`Self::put`]. Answers also how many bytes of [`Self::growth`], or of what was
    /// there before, were given back.
    pub(crate) fn open(&mut self) -> (u32, u64) {
        let over = if self.gone == NONE { self.extend() } else { 0 };
        (self.gone, over)
    }

    /// Makes one more place. Answers how many bytes were given back.
    fn extend(&mut self) -> u64 {
        let mut over = 0;
        if let Some(places) = self.more_places() {
            // There has been no memory to drain it.
            over = Self::list_bytes(self.rest.capacity());
            self.rest = std::mem::replace(&mut self.list, Vec::with_capacity(places));
        }
        // Of the list before a quarter was left, and all of it is moved before that is used up.
        let list = if self.is_moving() { &mut self.rest } else { &mut self.list };
        self.gone = u32::try_from(list.len()).expect("fewer than 2^32 pieces");
        list.push(Place::Gone(NONE));
        for place in self.rest.iter_mut().skip(self.list.len()).take(MOVES) {
            self.list.push(std::mem::replace(place, Place::Gone(NONE)));
            #[cfg(test)]
            crate::effort::count(1);
        }
        over
    }

    /// Puts something into the place that [`Self::open`] has answered.
    pub(crate) fn put(&mut self, number: u32, what: C) {
        let place = std::mem::replace(self.place(number), Place::There(what));
        if let Place::Gone(next) = place {
            self.gone = next;
        }
    }

    /// Takes out what is in a place.
    pub(crate) fn take(&mut self, number: u32) -> Option<C> {
        let gone = Place::Gone(std::mem::replace(&mut self.gone, number));
        match std::mem::replace(self.place(number), gone) {
            Place::There(what) => Some(what),
            Place::Gone(_) => None,
        }
    }

    fn place(&mut self, number: u32) -> &mut Place<C> {
        let at = number as usize;
        if at < self.list.len() { &mut self.list[at] } else { &mut self.rest[at] }
    }

    /// Bytes that [`Self::drain`] takes for a moment; `None`: there is nothing to be drained.
    pub(crate) fn drainage(&self) -> Option<u64> {
        let there = self.rest.capacity() > 0 && !self.is_moving();
        there.then(|| Self::list_bytes(self.rest.len().saturating_sub(DRAINED)))
    }

    /// Gives back some places of a list of which all were moved. Answers how many bytes.
    pub(crate) fn drain(&mut self) -> u64 {
        let before = self.rest.capacity();
        #[cfg(test)]
        crate::effort::count(self.rest.len().min(DRAINED));
        self.rest.truncate(self.rest.len().saturating_sub(DRAINED));
        self.rest.shrink_to_fit();
        Self::list_bytes(before - self.rest.capacity())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use testkit::fragments::Random;

    use super::*;

    /// A longer list comes by and by, and the one before goes so, if it can; what is in them is found all the time.
    #[test]
    fn of_a_list_of_any_length_a_call_moves_a_few_places() {
        for is_drained in [true, false] {
            let mut all = Directory::new();
            let (mut bytes, mut lists, mut drained) = (0, 0, 0);
            for n in 0..20_000 {
                let (list, rest) = (all.list.len(), all.rest.len());
                bytes += all.growth();
                let (number, over) = all.open();
                bytes -= over;
                assert_eq!((number, all.growth()), (n, 0));
                all.put(number, n);
                let can = all.drainage().is_some_and(|_| is_drained);
                bytes -= if can { all.drain() } else { 0 };
                if all.list.len() < list {
                    lists += 1;
                    assert!(all.list.len() <= MOVES);
                } else {
                    assert!(all.list.len() <= list + MOVES && all.rest.len() + DRAINED >= rest);
                    drained += usize::from(all.rest.len() + 1 < rest);
                }
                assert_eq!(bytes, all.bytes());
                if n % 997 == 0 {
                    assert!((0..=n).all(|at| all.get(at) == Some(&at)));
                }
            }
            assert!(lists > 8 && (drained > 10) == is_drained, "{lists} {drained}");
        }
    }

    /// In the middle of a move, too.
    #[test]
    fn places_of_what_has_gone_are_filled_first() {
        let mut random = Random::new(8);
        let mut all = Directory::new();
        let mut there = Vec::new();
        let mut most = 0;
        for step in 0..20_000_u32 {
            if there.is_empty() || random.below(5) < 3 {
                let (number, _) = all.open();
                assert_eq!(all.get(number), None);
                all.put(number, step);
                there.push((number, step));
            } else {
                let (number, what) = there.swap_remove(random.below(there.len()));
                assert_eq!(
                    (all.get_mut(number).copied(), all.take(number)),
                    (Some(what), Some(what))
                );
                assert_eq!(all.get(number), None);
            }
            most = most.max(there.len());
            assert!(all.iter().count() == there.len());
            let places = all.list.len().max(all.rest.len());
            assert!(places <= most.max(PLACES_MIN) + MOVES, "{places} for {most}");
        }
        there.iter().for_each(|(number, what)| assert_eq!(all.get(*number), Some(what)));
        assert!(all.get(NONE).is_none() && there.len() > 2000);
    }
}
