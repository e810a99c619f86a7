//! Much memory of our own.

use std::ops::{Deref, DerefMut};

use crate::call::{self, Failure};

/// Bytes, zero at first, in large pages where the system has some.
#[derive(Debug)]
pub struct Pages {
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping is private and belongs to this value alone.
unsafe impl Send for Pages {}
// SAFETY: through a shared reference it can only be read.
unsafe impl Sync for Pages {}

impl Pages {
    /// So many bytes; not 0. The first `ready` of them are taken from the system now, so that no later
    /// write has to wait until it has found some; the others when they are first written.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no room in our address space.
    pub fn new(len: usize, ready: usize) -> Result<Self, Failure> {
        let start = call::mmap_private(len).map_err(Failure::at("take memory"))?;
        call::prefer_large_pages(start, len);
        call::populate(start, ready.min(len).next_multiple_of(4096));
        Ok(Self { start, len })
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped for as long as we live, zero or as written through `deref_mut`, and nobody
        // writes while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped for as long as we live, and borrowed by one only.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        call::munmap(self.start, self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_zero_and_stay() {
        let mut pages = Pages::new(5 << 20, 1 << 20).unwrap();
        assert!(pages.len() == 5 << 20 && pages[4 << 20] == 0);
        pages[(5 << 20) - 1] = 7;
        assert_eq!(pages.iter().map(|b| u32::from(*b)).sum::<u32>(), 7);
    }
}
