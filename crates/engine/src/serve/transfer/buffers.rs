//! Large buffers that are used again.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use sys::call::Failure;
use sys::pages::Pages;

/// Sizes that there are: what is asked for is rounded up. Beside the payload of READ and WRITE of the
/// usual sizes there is room for headers and padding.
const SIZES: [usize; 5] =
    [68 << 10, (256 << 10) + 4096, (1 << 20) + 4096, (4 << 20) + 4096, (8 << 20) + (64 << 10)];

/// The most bytes that one buffer may have: 8 MiB and 64 KiB.
pub(super) const LARGEST: usize = SIZES[SIZES.len() - 1];

/// The buffers of one loop. Clones are the same pool; a buffer may be given back on any thread.
#[derive(Clone, Debug)]
pub struct BufferPool {
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Debug)]
struct Shelf {
    free: [Vec<Pages>; SIZES.len()],
    /// Bytes of all that exist, free or lent.
    bytes: usize,
    /// Bound on them.
    most: usize,
}

/// A buffer on loan. Its bytes are what was last in it, not zero: whoever sends them has written them
/// before. Goes back to its pool when dropped.
#[derive(Debug)]
pub struct Buffer {
    pages: Option<Pages>,
    len: usize,
    class: usize,
    home: Arc<Mutex<Shelf>>,
}

impl BufferPool {
    /// Buffers of `most` bytes together, taken from the system when first wanted.
    #[must_use]
    pub fn new(most: usize) -> Self {
        let shelf = Shelf { free: [const { Vec::new() }; SIZES.len()], bytes: 0, most };
        Self { shelf: Arc::new(Mutex::new(shelf)) }
    }

    /// A buffer of `len` bytes; none when that is more than there may be (8 MiB and 64 KiB for one;
    /// the bound of the pool for all), or the system has no memory. Wait for another to be given
    /// back, or do with less.
    #[must_use]
    pub fn lend(&self, len: usize) -> Option<Buffer> {
        let class = SIZES.iter().position(|size| *size >= len)?;
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = match shelf.free[class].pop() {
            Some(pages) => pages,
            None => shelf.take(class)?,
        };
        Some(Buffer { pages: Some(pages), len, class, home: Arc::clone(&self.shelf) })
    }

    /// A buffer of `len` bytes if there is one, else of fewer: 64 KiB are had even when the pool is
    /// used up, so that who holds one already need not wait for others who wait for it.
    pub(super) fn lend_some(&self, len: usize) -> io::Result<Buffer> {
        if let Some(buffer) = self.lend(len.min(LARGEST)) {
            return Ok(buffer);
        }
        let pages = Pages::new(SIZES[0], 0).map_err(|e| io::Error::from_raw_os_error(e.errno))?;
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        shelf.bytes += SIZES[0];
        let (len, home) = (len.min(SIZES[0]), Arc::clone(&self.shelf));
        Ok(Buffer { pages: Some(pages), len, class: 0, home })
    }

    /// A buffer of `len` bytes if that leaves half of all to others, else as [`Self::lend_some`] of `less`.
    pub(super) fn lend_much(&self, len: usize, less: usize) -> io::Result<Buffer> {
        let size = SIZES.into_iter().find(|size| *size >= len);
        let leaves_half = {
            let shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
            size.is_some_and(|size| shelf.lent() + size <= shelf.most / 2)
        };
        self.lend_some(if leaves_half { len } else { less })
    }

    /// Gives memory that nobody uses back to the system, for a loop that has had nothing to do for a
    /// while.
    pub fn trim(&self) {
        let mut guard = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = &mut *guard;
        for (free, size) in shelf.free.iter_mut().zip(SIZES) {
            shelf.bytes -= free.len() * size;
            free.clear();
        }
    }

    /// Bytes of all buffers, free or lent.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }
}

impl Shelf {
    fn lent(&self) -> usize {
        let free = self.free.iter().zip(SIZES).map(|(free, size)| free.len() * size);
        self.bytes.saturating_sub(free.sum())
    }

    fn take(&mut self, class: usize) -> Option<Pages> {
        let size = SIZES[class];
        // Those of other sizes make room.
        for other in (0..SIZES.len()).rev().filter(|other| *other != class) {
            while self.bytes + size > self.most && self.free[other].pop().is_some() {
                self.bytes -= SIZES[other];
            }
        }
        if self.bytes + size > self.most {
            return None;
        }
        let taken: Result<Pages, Failure> = Pages::new(size, 0);
        let pages = taken.ok()?;
        self.bytes += size;
        Some(pages)
    }
}

impl Buffer {
    /// Makes it `len` bytes long; more than it was taken for only as far as it has room.
    ///
    /// # Panics
    ///
    /// If `len` exceeds [`Self::capacity`].
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity(), "{len} bytes of {}", self.capacity());
        self.len = len;
    }

    /// Bytes that it has room for.
    #[must_use]
    pub fn capacity(&self) -> usize {
        SIZES[self.class]
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages.as_ref().expect("taken in drop only")[..self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut().expect("taken in drop only")[..self.len]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(pages) = self.pages.take() {
            let mut shelf = self.home.lock().unwrap_or_else(PoisonError::into_inner);
            if shelf.bytes > shelf.most {
                shelf.bytes -= SIZES[self.class];
            } else {
                shelf.free[self.class].push(pages);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_used_again_as_it_was() {
        let pool = BufferPool::new(4 << 20);
        let mut one = pool.lend(1 << 20).unwrap();
        assert_eq!(one.len(), 1 << 20);
        one[77] = 7;
        drop(one);
        let again = pool.lend((1 << 20) + 100).unwrap();
        assert!(again[77] == 7 && again.len() == (1 << 20) + 100);
        assert_eq!(pool.bytes(), again.capacity());
    }

    #[test]
    fn the_bound_holds_and_free_ones_make_room() {
        let pool = BufferPool::new(3 << 20);
        let (a, b) = (pool.lend(1 << 20).unwrap(), pool.lend(1 << 20).unwrap());
        assert!(pool.lend(1 << 20).is_none() && pool.lend(LARGEST + 1).is_none());
        drop((a, b));
        let small: Vec<_> = (0..20).map_while(|_| pool.lend(1)).collect();
        assert_eq!(small.len(), 20);
        assert!(pool.bytes() <= 3 << 20);
        drop(small);
        pool.trim();
        assert_eq!(pool.bytes(), 0);
    }
}
