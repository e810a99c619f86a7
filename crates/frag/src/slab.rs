//! Records that are found by number. It grows by a chunk at a time, so that no call takes long, and a chunk of
//! which no record is in use goes again: free records are memory that somebody pays for. Where memory has ended,
//! records in use are moved together, and only there.

use crate::directory::Directory;
/// No record, no chunk.
pub(crate) use crate::directory::NONE;

/// Records in a chunk. Few where short sequences are to have chunks emptied.
const RECORDS: u32 = if cfg!(test) { 4 } else { 16 };
const CHUNK: usize = RECORDS as usize;
/// Chunks that are kept of which nothing is in use, at most: those of a thousand records.
const IDLE_MAX: usize = 64;
/// Chunks among which that is chosen of which fewest records are to be moved.
const SPARSE_LOOKS: usize = 8;

/// A record that can be linked to the next free one.
pub(crate) trait Linked: Default {
    fn next(&self) -> u32;
    fn set_next(&mut self, next: u32);
}

#[derive(Debug)]
pub(crate) struct Chunk<T> {
    records: Box<[T; CHUNK]>,
    /// Its first free record; [`NONE`]: all are in use.
    free: u32,
    used: u32,
    /// Beside it in the list of those with free records.
    next: u32,
    before: u32,
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Directory<Chunk<T>>,
    /// The first chunk with free records.
    open: u32,
    /// The chunks that are kept of which no record is in use, and how many there are and may be.
    idle: [u32; IDLE_MAX],
    idle_len: usize,
    idle_most: usize,
    used: u32,
    /// Chunks that are there.
    there: u32,
}

impl<T: Linked> Slab<T> {
    /// What the records of a chunk take, bytes.
    pub(crate) const CHUNK_BYTES: u64 = (CHUNK * size_of::<T>()) as u64;
    /// What the first chunk takes with its place, bytes.
    pub(crate) const FIRST_BYTES: u64 = Self::CHUNK_BYTES + Directory::<Chunk<T>>::FIRST_BYTES;

    /// Of that, what stays when all chunks have gone.
    pub(crate) const LIST_BYTES: u64 = Directory::<Chunk<T>>::FIRST_BYTES;

    /// One that keeps free chunks of about so many bytes, but one at least: they would go and come where many
    /// datagrams begin and end together.
    pub(crate) fn keeping(bytes: u64) -> Self {
        let idle_most = usize::try_from(bytes / Self::CHUNK_BYTES).unwrap_or(IDLE_MAX);
        Self {
            chunks: Directory::new(),
            open: NONE,
            idle: [NONE; IDLE_MAX],
            idle_len: 0,
            idle_most: idle_most.clamp(1, IDLE_MAX),
            used: 0,
            there: 0,
        }
    }

    /// Bytes of what is there beside the records in use, of which each free one is as `cost` says.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn spare(&self, cost: impl Fn(&T) -> u64) -> u64 {
        let mut free = 0;
        for chunk in self.chunks.iter() {
            let mut at = chunk.free;
            while at != NONE {
                free += cost(&self[at]);
                at = self[at].next();
            }
        }
        free + self.chunks.bytes()
    }

    /// Records in use.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    #[inline]
    fn chunk(&self, number: u32) -> &Chunk<T> {
        self.chunks.get(number).expect("a chunk that is there")
    }

    #[inline]
    fn chunk_mut(&mut self, number: u32) -> &mut Chunk<T> {
        self.chunks.get_mut(number).expect("a chunk that is there")
    }

    /// The record that [`Self::take`] answers next; `None`: it has to grow first.
    #[inline]
    pub(crate) fn free(&self) -> Option<u32> {
        (self.open != NONE).then(|| self.chunk(self.open).free)
    }

    /// As [`Self::free`], with the record. To be taken with [`Self::take_free`].
    #[inline(always)]
    pub(crate) fn free_mut(&mut self) -> Option<(u32, &mut T)> {
        let chunk = self.chunks.get_mut(self.open)?;
        Some((chunk.free, &mut chunk.records[chunk.free as usize % CHUNK]))
    }

    /// Takes the record of [`Self::free_mut`], which had `next` behind it.
    #[inline(always)]
    pub(crate) fn take_free(&mut self, next: u32) {
        self.take_before(self.open, next);
    }

    /// Takes the first free record of that chunk, which has `next` behind it.
    #[inline(always)]
    fn take_before(&mut self, open: u32, next: u32) {
        let chunk = self.chunk_mut(open);
        let was_idle = chunk.used == 0;
        chunk.used += 1;
        chunk.free = next;
        self.used += 1;
        if next == NONE {
            self.close(open);
        }
        if was_idle {
            self.is_idle_no_more(open);
        }
    }

    /// A free record, as it was left.
    #[inline]
    pub(crate) fn take(&mut self) -> u32 {
        if self.open == NONE {
            self.grow();
        }
        self.take_of(self.open)
    }

    /// A free record of that chunk, which has one.
    #[inline]
    fn take_of(&mut self, open: u32) -> u32 {
        let chunk = self.chunk(open);
        let at = chunk.free;
        let next = chunk.records[at as usize % CHUNK].next();
        self.take_before(open, next);
        at
    }

    fn is_idle_no_more(&mut self, chunk: u32) {
        let idle = &self.idle[..self.idle_len];
        if let Some(at) = idle.iter().rposition(|idle| *idle == chunk) {
            self.idle_len -= 1;
            self.idle.swap(at, self.idle_len);
        }
    }

    /// Takes a record back. `true`: its chunk has gone, since no record of it is in use and enough such chunks are
    /// there. What it had has been shown to `see`.
    #[inline]
    pub(crate) fn give(&mut self, at: u32, see: impl FnMut(&T)) -> bool {
        let number = at / RECORDS;
        let chunk = self.chunk_mut(number);
        let free = std::mem::replace(&mut chunk.free, at);
        chunk.used -= 1;
        let is_idle = chunk.used == 0;
        chunk.records[at as usize % CHUNK].set_next(free);
        self.used -= 1;
        if free == NONE {
            self.reopen(number);
        }
        if !is_idle {
            return false;
        }
        if self.idle_len < self.idle_most {
            self.idle[self.idle_len] = number;
            self.idle_len += 1;
            return false;
        }
        self.let_go(number, see);
        true
    }

    /// [`Self::give`] of a record beside which another is in use, after `end`. `false`: it is the last of its chunk, and
    /// nothing was done.
    #[inline(always)]
    pub(crate) fn give_near(&mut self, at: u32, end: impl FnOnce(&mut T)) -> bool {
        let number = at / RECORDS;
        let chunk = self.chunk_mut(number);
        if chunk.used == 1 {
            return false;
        }
        chunk.used -= 1;
        let free = std::mem::replace(&mut chunk.free, at);
        let record = &mut chunk.records[at as usize % CHUNK];
        end(record);
        record.set_next(free);
        self.used -= 1;
        if free == NONE {
            self.reopen(number);
        }
        true
    }

    /// Enters a chunk among those with free records, as the first: what was given last is most likely near.
    fn reopen(&mut self, number: u32) {
        let next = std::mem::replace(&mut self.open, number);
        let chunk = self.chunk_mut(number);
        (chunk.next, chunk.before) = (next, NONE);
        if next != NONE {
            self.chunk_mut(next).before = number;
        }
    }

    /// Takes a chunk out of those with free records.
    fn close(&mut self, number: u32) {
        let Chunk { next, before, .. } = *self.chunk(number);
        match before {
            NONE => self.open = next,
            before => self.chunk_mut(before).next = next,
        }
        if next != NONE {
            self.chunk_mut(next).before = before;
        }
    }

    /// Bytes that [`Self::grow`] takes, at the most that there are of them at once.
    pub(crate) fn growth(&self) -> u64 {
        Self::CHUNK_BYTES + self.chunks.growth()
    }

    /// The places of chunks.
    pub(crate) fn places(&mut self) -> &mut Directory<Chunk<T>> {
        &mut self.chunks
    }

    /// Makes a chunk of free records. Answers how many bytes of [`Self::growth`] it has given back.
    #[cold]
    pub(crate) fn grow(&mut self) -> u64 {
        let (number, over) = self.chunks.open();
        #[cfg(test)]
        crate::effort::count(CHUNK);
        let first = number * RECORDS;
        // Made where it stays: on the way by the stack it would take some KiB of that.
        let records: Box<[T]> = (0..CHUNK).map(|_| T::default()).collect();
        let Ok(mut records) = <Box<[T; CHUNK]>>::try_from(records) else {
            unreachable!("so many records were made")
        };
        for (at, record) in (first + 1..).zip(records.iter_mut()) {
            record.set_next(at);
        }
        if let Some(last) = records.last_mut() {
            last.set_next(NONE);
        }
        let chunk = Chunk { records, free: first, used: 0, next: NONE, before: NONE };
        self.chunks.put(number, chunk);
        self.there += 1;
        self.idle[self.idle_len] = number;
        self.idle_len += 1;
        self.reopen(number);
        over
    }

    /// Lets go a chunk of which nothing is in use, as [`Self::give`] does. `false`: there is none.
    #[cold]
    pub(crate) fn trim(&mut self, see: impl FnMut(&T)) -> bool {
        let Some(last) = self.idle_len.checked_sub(1) else { return false };
        self.idle_len = last;
        self.let_go(self.idle[last], see);
        true
    }

    #[cold]
    fn let_go(&mut self, number: u32, see: impl FnMut(&T)) {
        self.close(number);
        if let Some(chunk) = self.chunks.take(number) {
            #[cfg(test)]
            crate::effort::count(CHUNK);
            chunk.records.iter().for_each(see);
        }
        self.there -= 1;
    }

    /// A chunk that is not that of `keep`, and for whose records in use there are free ones elsewhere; `None`: there
    /// are fewer free ones than a chunk has.
    #[cold]
    pub(crate) fn sparse(&self, keep: u32) -> Option<u32> {
        if self.there * RECORDS - self.used < RECORDS {
            return None;
        }
        let next = |chunk: &u32| some(self.chunk(*chunk).next);
        let open = std::iter::successors(some(self.open), next);
        let others = open.filter(|chunk| *chunk != keep / RECORDS).take(SPARSE_LOOKS);
        others.min_by_key(|chunk| self.chunk(*chunk).used)
    }

    /// The records in use of a chunk that is there, as it is now.
    pub(crate) fn in_use(&self, chunk: u32) -> impl Iterator<Item = u32> + use<T> {
        let first = chunk * RECORDS;
        let next = |at: &u32| some(self[*at].next());
        let free = std::iter::successors(some(self.chunk(chunk).free), next);
        let free = free.fold(0u32, |all, at| all | 1 << (at - first));
        (0..RECORDS).filter(move |at| free >> at & 1 == 0).map(move |at| first + at)
    }

    /// Exchanges a record with a free one of another chunk, which is in use now. Answers which. To be followed by
    /// [`Self::leave`].
    pub(crate) fn move_away(&mut self, from: u32) -> u32 {
        let chunk = from / RECORDS;
        // That it leaves has free ones itself.
        let open = if self.open == chunk { self.chunk(chunk).next } else { self.open };
        let to = self.take_of(open);
        let record = std::mem::take(&mut self[from]);
        self[from] = std::mem::replace(&mut self[to], record);
        to
    }

    /// Takes a record back of which was moved away what it had. Its chunk stays, even if nothing of it is in use: for
    /// [`Self::trim`].
    pub(crate) fn leave(&mut self, from: u32) {
        let went = self.give(from, |_| ());
        debug_assert!(!went, "others may not be idle while records are moved");
    }
}

/// What a link leads to.
fn some(at: u32) -> Option<u32> {
    (at != NONE).then_some(at)
}

impl<T> Slab<T> {
    /// A record that may have been given back since it was found, and its chunk with it.
    #[inline(always)]
    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        let chunk = self.chunks.get(at / RECORDS)?;
        Some(&chunk.records[at as usize % CHUNK])
    }

    /// As [`Self::get`].
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        let chunk = self.chunks.get_mut(at / RECORDS)?;
        Some(&mut chunk.records[at as usize % CHUNK])
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, at: u32) -> &T {
        self.get(at).expect("a record in use keeps its chunk")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        self.get_mut(at).expect("a record in use keeps its chunk")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use testkit::fragments::Random;

    use super::*;

    /// The next free one, and what it says.
    #[derive(Default)]
    struct Record(u32, u32);

    impl Linked for Record {
        fn next(&self) -> u32 {
            self.0
        }

        fn set_next(&mut self, next: u32) {
            self.0 = next;
        }
    }

    #[test]
    fn no_record_is_taken_twice() {
        let mut slab: Slab<Record> = Slab::keeping(0);
        let mut taken: BTreeSet<u32> = (0..200).map(|_| slab.take()).collect();
        assert_eq!((taken.len(), slab.used()), (200, 200));
        let some: Vec<u32> = taken.iter().copied().filter(|n| n % 3 == 0).collect();
        some.iter().for_each(|n| {
            slab.give(*n, |_| ());
            taken.remove(n);
        });
        let there = slab.there;
        (0..some.len()).for_each(|_| assert!(taken.insert(slab.take())));
        assert_eq!((slab.used(), slab.there), (200, there), "and nothing grew");
    }

    /// What is there is never more than what is in use needs, and one chunk; whatever the order.
    #[test]
    fn chunks_of_which_nothing_is_in_use_go() {
        let mut random = Random::new(5);
        let mut slab: Slab<Record> = Slab::keeping(0);
        for round in 0..40 {
            let mut taken: Vec<u32> = (0..10 * round).map(|_| slab.take()).collect();
            random.shuffle(&mut taken);
            let mut gone = 0;
            while let Some(at) = taken.pop() {
                let before = slab.there;
                let mut seen = 0;
                let went = slab.give(at, |_| seen += 1);
                assert_eq!(
                    (before - slab.there, seen),
                    (u32::from(went), CHUNK * usize::from(went))
                );
                gone += usize::from(went);
                let needed: BTreeSet<u32> = taken.iter().map(|at| at / RECORDS).collect();
                let there = slab.chunks.iter().count();
                assert_eq!(slab.there as usize, there);
                assert!(there <= needed.len() + 1, "{there} for {}", needed.len());
            }
            assert!(slab.there <= 1 && (round < 10 || gone > 4), "{gone} went");
        }
        assert!(slab.trim(|_| ()) && slab.there == 0 && !slab.trim(|_| ()));
        assert!(slab.get(0).is_none() && slab.get_mut(1000).is_none());
        let again: BTreeSet<u32> = (0..100).map(|_| slab.take()).collect();
        assert_eq!((again.len(), slab.there), (100, 100_u32.div_ceil(RECORDS)));
    }

    /// As many as are free elsewhere, wherever they are; and what they say goes with them.
    #[test]
    fn records_are_moved_together_where_a_chunk_is_free_in_all() {
        let mut random = Random::new(6);
        for round in 0..60 {
            let mut slab: Slab<Record> = Slab::keeping(0);
            let mut taken: Vec<u32> = (0..10 * round).map(|_| slab.take()).collect();
            taken.iter().for_each(|at| slab[*at].1 = *at + 1);
            random.shuffle(&mut taken);
            let left = random.below(taken.len() + 1);
            taken.drain(left..).for_each(|at| _ = slab.give(at, |_| ()));
            let mut said: Vec<u32> = taken.iter().map(|at| slab[*at].1).collect();
            let keep = taken.first().copied().unwrap_or(NONE);
            while slab.trim(|_| ()) {}
            while let Some(chunk) = slab.sparse(keep) {
                let moved: Vec<u32> = slab.in_use(chunk).collect();
                assert!((1..CHUNK).contains(&moved.len()), "{} of a chunk", moved.len());
                for from in moved {
                    let to = slab.move_away(from);
                    slab.leave(from);
                    let known = taken.iter_mut().find(|at| **at == from).expect("it was in use");
                    *known = to;
                }
                assert!(slab.trim(|_| ()) && !slab.trim(|_| ()), "that chunk, and no other");
            }
            assert!(slab.there * RECORDS < slab.used() + RECORDS, "{} are free", slab.there);
            assert!(taken.first().is_none_or(|at| *at == keep), "it was to stay");
            let mut says: Vec<u32> = taken.iter().map(|at| slab[*at].1).collect();
            says.sort_unstable();
            said.sort_unstable();
            assert_eq!((says, taken.len()), (said, slab.used() as usize));
        }
    }

    #[test]
    fn growth_is_said_before() {
        let mut slab: Slab<Record> = Slab::keeping(0);
        assert_eq!(slab.growth(), Slab::<Record>::FIRST_BYTES);
        let mut bytes = 0;
        for _ in 0..1000 {
            if slab.free().is_none() {
                bytes += slab.growth();
                bytes -= slab.grow();
            }
            let next = slab.free();
            assert_eq!(next, Some(slab.take()));
        }
        let chunks = u64::from(1000_u32.div_ceil(RECORDS)) * Slab::<Record>::CHUNK_BYTES;
        assert_eq!(bytes, chunks + slab.chunks.bytes());
    }

    #[test]
    fn records_are_found_while_the_list_of_chunks_grows() {
        let mut slab: Slab<Record> = Slab::keeping(0);
        for n in 0..40_000 {
            assert_eq!(slab.take(), n);
            slab[n].1 = n;
            if n % 997 == 0 {
                assert!((0..=n).all(|at| slab[at].1 == at));
            }
        }
        // Also to be given back, and to come again.
        (0..40_000).for_each(|at| _ = slab.give(at, |_| ()));
        let again: BTreeSet<u32> = (0..40_000).map(|_| slab.take()).collect();
        assert_eq!((again.len(), again.last()), (40_000, Some(&39_999)));
    }
}
