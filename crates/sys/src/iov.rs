//! The buffers of somebody else's call: where bytes of a guest program come from and go to.

use crate::map::Ring;
use crate::{call, ring};

/// A list of buffers and how far we are in it.
///
/// Made once at the edge, where the guest promises that its buffers are valid; safe to use after.
#[derive(Clone, Debug)]
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

    /// One buffer, as a program would give it to a call.
    pub fn over<T>(bytes: &mut [u8], call: impl FnOnce(&mut Buffers<'_>) -> T) -> T {
        let list = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
        call(&mut Buffers { list: &list, offset: 0, left: bytes.len() })
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

    /// Copies the next `n` bytes into the ring at offset `at`. `past_caches`: not by
    /// way of this CPU's caches.
    ///
    /// The caller has made sure that there is room for `n`, and that it is the only producer; else
    /// bytes are lost, but nothing outside of the ring is touched.
    pub fn to_ring(&mut self, ring: Ring, mut at: u64, n: usize, past_caches: bool) {
        let Ring { start: ring, bytes: capacity } = ring;
        assert!(n <= capacity && n <= self.left);
        self.each(n, |from, count| {
            let [(a, x), (b, y)] = ring::pieces(at, count, capacity);
            if past_caches && count >= STREAM_MIN {
                // SAFETY: as below.
                unsafe { stream(from, ring.add(a), x) };
                if y > 0 {
                    // SAFETY: as below.
                    unsafe { stream(from.add(x), ring.add(b), y) };
                }
                at = at.wrapping_add(count as u64);
                return;
            }
            // SAFETY: `pieces` stays inside of the ring, `from` is valid as `new` was promised, and
            // a guest's buffer does not overlap our mapping.
            unsafe { std::ptr::copy_nonoverlapping(from, ring.add(a), x) };
            if y > 0 {
                // SAFETY: the same.
                unsafe { std::ptr::copy_nonoverlapping(from.add(x), ring.add(b), y) };
            }
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
            if y > 0 {
                // SAFETY: the same.
                unsafe { std::ptr::copy_nonoverlapping(ring.add(b), to.add(x), y) };
            }
            at = at.wrapping_add(count as u64);
        });
    }

    /// Receives up to `max` bytes from a socket without waiting. `MSG_PEEK` leaves them there; with
    /// `MSG_TRUNC` they are dropped, and passed over all the same.
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
            let got = if v.iov_base.is_null() {
                call::recv_nowhere(fd, want, flags)
            } else {
                // SAFETY: inside of a buffer that is valid as `new` was promised.
                call::recv(fd, unsafe { std::slice::from_raw_parts_mut(at, want) }, flags)
            };
            match got {
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

    /// Copies as many of these bytes as there is room for; answers how many.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.left);
        let mut at = 0;
        self.each(n, |to, count| {
            let from = &bytes[at..at + count];
            // SAFETY: `to` is valid as `new` was promised, and does not overlap what we own.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, count) };
            at += count;
        });
        n
    }

    /// Passes over the next `n` bytes without touching them (`MSG_TRUNC`).
    pub fn discard(&mut self, n: usize) {
        self.each(n.min(self.left), |_, _| ());
    }
}

/// Least number of bytes that [`stream`] is for: buffers of a vector may be short.
const STREAM_MIN: usize = 1 << 10;

/// Copies past the caches into what is read late or never: no line there is fetched before it is overwritten, and none that
/// others need goes for it. As many bytes as both have.
pub fn copy_far(to: &mut [u8], from: &[u8]) {
    let n = to.len().min(from.len());
    // SAFETY: inside of both, one of which is borrowed by us alone.
    unsafe { stream(from.as_ptr(), to.as_mut_ptr(), n) };
}

/// Copies past the caches: no line of the ring is fetched before it is overwritten. What is written is in order
/// for whoever sees a store that follows.
///
/// # Safety
///
/// As for `copy_nonoverlapping`.
unsafe fn stream(from: *const u8, to: *mut u8, n: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    unsafe {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        const LINE: usize = 64;
        let lead = to.align_offset(LINE).min(n);
        std::ptr::copy_nonoverlapping(from, to, lead);
        let mut at = lead;
        while n - at >= LINE {
            let (source, target) = (from.add(at), to.add(at));
            let a = _mm_loadu_si128(source.cast());
            let b = _mm_loadu_si128(source.add(16).cast());
            let c = _mm_loadu_si128(source.add(32).cast());
            let d = _mm_loadu_si128(source.add(48).cast());
            _mm_stream_si128(target.cast(), a);
            _mm_stream_si128(target.add(16).cast(), b);
            _mm_stream_si128(target.add(32).cast(), c);
            _mm_stream_si128(target.add(48).cast(), d);
            at += LINE;
        }
        std::ptr::copy_nonoverlapping(from.add(at), to.add(at), n - at);
        // These stores are not in order with others: before the count of them is published.
        _mm_sfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_past_the_caches_is_as_long_as_both_are() {
        let from: Vec<u8> = (0..3000u32).map(|i| (i * 7).to_le_bytes()[0]).collect();
        for (room, n) in [(3000, 3000), (1500, 3000), (3000, 1499), (10, 0)] {
            let mut to = vec![0xee; room];
            copy_far(&mut to, &from[..n]);
            let both = room.min(n);
            assert_eq!(&to[..both], &from[..both]);
            assert!(to[both..].iter().all(|byte| *byte == 0xee));
        }
    }

    #[test]
    fn a_streamed_copy_is_a_copy() {
        let from: Vec<u8> = (0..70_000u32).map(|i| ((i * 31) >> 3).to_le_bytes()[0]).collect();
        for (skip, shift, n) in [(0, 0, 65_536), (3, 5, 65_000), (1, 63, 64), (7, 2, 63), (0, 1, 0)]
        {
            let mut to = vec![0xeeu8; 70_100];
            // SAFETY: both are inside of their vectors.
            unsafe { stream(from.as_ptr().add(skip), to.as_mut_ptr().add(shift), n) };
            assert_eq!(&to[shift..shift + n], &from[skip..skip + n]);
            assert!(to[..shift].iter().chain(&to[shift + n..]).all(|b| *b == 0xee));
        }
    }
}
