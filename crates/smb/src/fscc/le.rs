//! Little-endian numbers in and out of bytes.

use crate::FileTime;

/// Numbers out of bytes, in order; `None` behind the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(first)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn time(&mut self) -> Option<FileTime> {
        self.u64().map(FileTime)
    }

    pub(crate) const fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Numbers at the end of a vector.
pub(crate) trait Put {
    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]);

    fn u8(&mut self, n: u8) {
        self.put(&[n]);
    }

    fn u16(&mut self, n: u16) {
        self.put(&n.to_le_bytes());
    }

    fn u32(&mut self, n: u32) {
        self.put(&n.to_le_bytes());
    }

    fn u64(&mut self, n: u64) {
        self.put(&n.to_le_bytes());
    }

    fn time(&mut self, time: FileTime) {
        self.u64(time.0);
    }
}

impl Put for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A length in the 32 bits that formats have for it. Nothing here is longer than a response, which is far
/// below that.
pub(crate) fn len32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Writes zeros until what was written from `start` on has a length that is a multiple of `unit`.
pub(crate) fn pad(out: &mut Vec<u8>, start: usize, unit: usize) {
    let len = out.len() - start;
    out.resize(start + len.next_multiple_of(unit), 0);
}

/// Writes a number over what stands at `at`.
pub(crate) fn patch_u32(out: &mut [u8], at: usize, n: u32) {
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&n.to_le_bytes());
    }
}
