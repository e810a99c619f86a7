//! Records that never move, found by number. It grows by a chunk at a time, so that no call takes long.

/// Records in a chunk.
const CHUNK: usize = 64;
/// No record.
pub(crate) const NONE: u32 = u32::MAX;

/// A record that can be linked to the next free one.
pub(crate) trait Linked: Default {
    fn next(&self) -> u32;
    fn set_next(&mut self, next: u32);
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Box<[T; CHUNK]>>,
    free: u32,
    used: u32,
}

impl<T: Linked> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), free: NONE, used: 0 }
    }

    /// Records in use.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    /// A free record, as it was left.
    #[inline]
    pub(crate) fn take(&mut self) -> u32 {
        if self.free == NONE {
            self.grow();
        }
        let at = self.free;
        self.free = self[at].next();
        self.used += 1;
        at
    }

    #[inline]
    pub(crate) fn give(&mut self, at: u32) {
        let free = self.free;
        self[at].set_next(free);
        self.free = at;
        self.used -= 1;
    }

    #[cold]
    fn grow(&mut self) {
        let first = u32::try_from(self.chunks.len() * CHUNK).expect("fewer than 2^32 records");
        // Made where it stays: on the way by the stack it would take some ten KiB of that.
        let chunk: Box<[T]> = (0..CHUNK).map(|_| T::default()).collect();
        let Ok(mut chunk) = <Box<[T; CHUNK]>>::try_from(chunk) else {
            unreachable!("so many records were made")
        };
        for (at, record) in (first + 1..).zip(chunk.iter_mut()) {
            record.set_next(at);
        }
        if let Some(last) = chunk.last_mut() {
            last.set_next(self.free);
        }
        self.free = first;
        self.chunks.push(chunk);
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;
    #[inline]
    fn index(&self, at: u32) -> &T {
        &self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.chunks[at as usize / CHUNK][at as usize % CHUNK]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[derive(Default)]
    struct Record(u32);

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
        let mut slab: Slab<Record> = Slab::new();
        let mut taken: BTreeSet<u32> = (0..200).map(|_| slab.take()).collect();
        assert_eq!((taken.len(), slab.used()), (200, 200));
        let some: Vec<u32> = taken.iter().copied().filter(|n| n % 3 == 0).collect();
        some.iter().for_each(|n| {
            slab.give(*n);
            taken.remove(n);
        });
        let chunks = slab.chunks.len();
        // What was given last is taken first: it is still in the cache.
        assert_eq!(slab.take(), some[some.len() - 1]);
        taken.insert(some[some.len() - 1]);
        (1..some.len()).for_each(|_| assert!(taken.insert(slab.take())));
        assert_eq!((slab.used(), slab.chunks.len()), (200, chunks), "and nothing grew");
    }
}
