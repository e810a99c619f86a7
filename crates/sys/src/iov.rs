//! The buffers of somebody else's call: where bytes of a guest program come from and go to.

use crate::map::Ring;
use crate::{call, ring};

/// A list of buffers and how far we are in it.
///
/// Made once at the edge, where the guest promises that its buffers are valid; safe to use after.
#[derive(Debug)]
pub struct Buffers<'a> {
    list: &'a [libc::iovec],
    /// Done of `list[0]`.
    offset: usize,
    left: usize,
}

impl<'a> Buffers<'a> {
    /// Takes the buffers of a call.
    ///
    /// # Errors
    ///
    /// `EINVAL` if their lengths add up to more than a call may move (`SSIZE_MAX`).
    ///
    /// # Safety
    ///
    /// Each buffer is valid for its length, for reading when it is used by [`Self::to_ring`],
    /// for writing when it is used by [`Self::from_ring`] or [`Self::receive`], and
    /// nobody else touches it for `'a`.
    pub unsafe fn new(list: &'a [libc::iovec]) -> Result<Self, i32> {
        let mut left = 0usize;
        for v in list {
            left = left
                .checked_add(v.iov_len)
                .filter(|n| *n <= isize::MAX as usize)
                .ok_or(libc::EINVAL)?;
        }
        Ok(Self { list, offset: 0, left })
    }

    /// Bytes not yet moved.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Whether the next `n` bytes are in one buffer at a null pointer (only `MSG_TRUNC` allows it).
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.list.iter().all(|v| v.iov_base.is_null() || v.iov_len == 0)
    }

    fn each(&mut self, mut n: usize, mut f: impl FnMut(*mut u8, usize)) {
        debug_assert!(n <= self.left);
        while n > 0 {
            let Some(v) = self.list.first() else { return };
            let here = (v.iov_len - self.offset).min(n);
            if here > 0 {
                f(v.iov_base.cast::<u8>().wrapping_add(self.offset), here);
            }
            n -= here;
            self.left -= here;
            self.offset += here;
            if self.offset == v.iov_len {
                self.list = &self.list[1..];
                self.offset = 0;
            }
        }
    }

    /// Copies the next `n` bytes into the ring at offset `at`.
    ///
    /// The caller has made sure that there is room for `n`, and that it is the only producer; else
    /// bytes are lost, but nothing outside of the ring is touched.
    pub fn to_ring(&mut self, ring: Ring, mut at: u64, n: usize) {
        let Ring { start: ring, bytes: capacity } = ring;
        assert!(n <= capacity && n <= self.left);
        self.each(n, |from, count| {
            let [(a, x), (b, y)] = ring::pieces(at, count, capacity);
            // SAFETY: `pieces` stays inside of the ring, `from` is valid as `new` was promised, and
            // a guest's buffer does not overlap our mapping.
            unsafe { std::ptr::copy_nonoverlapping(from, ring.add(a), x) };
            // SAFETY: the same.
            unsafe { std::ptr::copy_nonoverlapping(from.add(x), ring.add(b), y) };
            at = at.wrapping_add(count as u64);
        });
    }

    /// Copies the next `n` bytes out of the ring at offset `at`.
    ///
    /// The caller has checked that `n` bytes are there; see [`Self::to_ring`].
    pub fn from_ring(&mut self, ring: Ring, mut at: u64, n: usize) {
        let Ring { start: ring, bytes: capacity } = ring;
        assert!(n <= capacity && n <= self.left);
        self.each(n, |to, count| {
            let [(a, x), (b, y)] = ring::pieces(at, count, capacity);
            // SAFETY: as in `to_ring`; a peer that writes meanwhile changes bytes, not lengths.
            unsafe { std::ptr::copy_nonoverlapping(ring.add(a), to, x) };
            // SAFETY: the same.
            unsafe { std::ptr::copy_nonoverlapping(ring.add(b), to.add(x), y) };
            at = at.wrapping_add(count as u64);
        });
    }

    /// Receives up to `max` bytes from a socket without waiting. `peek` leaves them there.
    ///
    /// # Errors
    ///
    /// The errno, when nothing was received.
    pub fn receive(&mut self, fd: i32, max: usize, flags: i32) -> Result<usize, i32> {
        let mut total = 0;
        let flags = flags | libc::MSG_DONTWAIT;
        while total < max && self.left > 0 {
            let Some(v) = self.list.first() else { break };
            let want = (v.iov_len - self.offset).min(max - total);
            if want == 0 {
                self.list = &self.list[1..];
                self.offset = 0;
                continue;
            }
            let at = v.iov_base.cast::<u8>().wrapping_add(self.offset);
            // SAFETY: inside of a buffer that is valid as `new` was promised.
            let to = unsafe { std::slice::from_raw_parts_mut(at, want) };
            match call::recv(fd, to, flags) {
                Ok(n) => {
                    self.each(n, |_, _| ());
                    total += n;
                    if n < want || flags & libc::MSG_PEEK != 0 {
                        break;
                    }
                }
                Err(_) if total > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(total)
    }

    /// Passes over the next `n` bytes without touching them (`MSG_TRUNC`).
    pub fn discard(&mut self, n: usize) {
        self.each(n.min(self.left), |_, _| ());
    }
}
