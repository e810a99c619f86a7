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
        let mut chunk: Box<[T; CHUNK]> = Box::new(std::array::from_fn(|_| T::default()));
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
