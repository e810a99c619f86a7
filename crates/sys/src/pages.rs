//! Much memory of our own.

use std::ops::{Deref, DerefMut};

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::call::{self, Failure};

/// Bytes of the smallest page that the kernel maps: 4 KiB on x86-64; on Arm's CPUs as the kernel was built, 4, 16 or 64 KiB.
/// A power of two.
#[must_use]
pub fn size() -> usize {
    static SIZE: AtomicUsize = AtomicUsize::new(0);
    let known = SIZE.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: a plain call.
    let said = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let size = usize::try_from(said).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096);
    SIZE.store(size, Ordering::Relaxed);
    size
}

/// The whole pages that have a part of these bytes: where they begin, and how many bytes they have.
#[must_use]
pub fn around(offset: usize, bytes: usize) -> (usize, usize) {
    let from = offset & !(size() - 1);
    (from, (offset + bytes).next_multiple_of(size()) - from)
}

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
        call::populate(start, ready.min(len).next_multiple_of(size()));
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
