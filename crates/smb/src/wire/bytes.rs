//! Fixed fields read from a slice and written to a vector, little endian.

use std::ops::Deref;

use super::BadMessage;
use super::header::HEADER_LEN;
use crate::{FileId, FileTime, Guid};

/// Fields at fixed places. Who makes one has checked that they are there; what is not there reads as zero.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    /// `bytes`, of which there must be `len` at least.
    pub(super) fn at_least(bytes: &'a [u8], len: usize) -> Result<Self, BadMessage> {
        if bytes.len() < len { Err(BadMessage::Truncated) } else { Ok(Self(bytes)) }
    }

    /// `bytes`, of which there must be exactly `len`.
    pub(super) fn exactly(bytes: &'a [u8], len: usize) -> Result<Self, BadMessage> {
        if bytes.len() == len { Ok(Self(bytes)) } else { Err(BadMessage::Truncated) }
    }

    #[inline]
    pub(super) fn chunk<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or([0; N])
    }

    #[inline]
    pub(super) fn u8(&self, at: usize) -> u8 {
        u8::from_le_bytes(self.chunk(at))
    }

    #[inline]
    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.chunk(at))
    }

    #[inline]
    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.chunk(at))
    }

    #[inline]
    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.chunk(at))
    }

    pub(super) fn guid(&self, at: usize) -> Guid {
        Guid(self.chunk(at))
    }

    pub(super) fn time(&self, at: usize) -> FileTime {
        FileTime(self.u64(at))
    }

    #[inline]
    pub(super) fn file_id(&self, at: usize) -> FileId {
        FileId { persistent: self.u64(at), volatile: self.u64(at + 8) }
    }

    /// A length or offset of 16 bits.
    pub(super) fn len16(&self, at: usize) -> usize {
        usize::from(self.u16(at))
    }

    /// A length or offset of 32 bits; one that does not fit is past the end of everything.
    pub(super) fn len32(&self, at: usize) -> usize {
        usize::try_from(self.u32(at)).unwrap_or(usize::MAX)
    }
}

/// The body of a message: its fields count from the body's beginning, its buffers from the header's.
#[derive(Clone, Copy)]
pub(super) struct Body<'a> {
    fields: Fields<'a>,
    message: &'a [u8],
    /// Where buffers may begin, from the header on.
    fixed_end: usize,
}

impl<'a> Deref for Body<'a> {
    type Target = Fields<'a>;

    fn deref(&self) -> &Fields<'a> {
        &self.fields
    }
}

impl<'a> Body<'a> {
    /// A body with that StructureSize, an odd one of which says that bytes follow: `dynamic_min` at least.
    /// The fixed part is `structure_size` without its lowest bit (smbd_smb2_request_verify_sizes).
    #[inline]
    pub(super) fn of(
        message: &'a [u8],
        structure_size: u16,
        dynamic_min: usize,
    ) -> Result<Self, BadMessage> {
        let body = message.get(HEADER_LEN..).ok_or(BadMessage::Truncated)?;
        let fields = Fields::at_least(body, 2)?;
        if fields.u16(0) != structure_size {
            return Err(BadMessage::StructureSize);
        }
        let fixed = usize::from(structure_size & !1);
        if body.len() < fixed + dynamic_min {
            return Err(BadMessage::Truncated);
        }
        Ok(Self { fields, message, fixed_end: HEADER_LEN + fixed })
    }

    /// The body of a request: an odd StructureSize asks for one byte more than the fixed part.
    #[inline]
    pub(super) fn request(message: &'a [u8], structure_size: u16) -> Result<Self, BadMessage> {
        Self::of(message, structure_size, usize::from(structure_size & 1))
    }

    /// The body of a request or an answer which may end with its fixed part.
    #[inline]
    pub(super) fn lenient(message: &'a [u8], structure_size: u16) -> Result<Self, BadMessage> {
        Self::of(message, structure_size, 0)
    }

    /// What follows the fixed part.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.message.get(self.fixed_end..).unwrap_or_default()
    }

    /// The buffer at `offset` from the header. Nothing at offset 0 is no buffer; any other must be between the
    /// fixed part and the end.
    #[inline]
    pub(super) fn buffer(&self, offset: usize, len: usize) -> Result<&'a [u8], BadMessage> {
        if offset == 0 && len == 0 {
            return Ok(&[]);
        }
        if offset < self.fixed_end {
            return Err(BadMessage::Offset);
        }
        let from = self.message.get(offset..).ok_or(BadMessage::Offset)?;
        from.get(..len).ok_or(BadMessage::Offset)
    }
}

/// Appends fields to a message whose header begins at `start` of `out`.
pub(super) struct Writer<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>, start: usize) -> Self {
        Self { out, start }
    }

    /// The body of a message, beginning with its StructureSize.
    pub(super) fn body(out: &'a mut Vec<u8>, start: usize, structure_size: u16) -> Self {
        debug_assert_eq!(out.len(), start + HEADER_LEN, "a body begins where its header ends");
        let mut to = Self { out, start };
        to.u16(structure_size);
        to
    }

    /// Bytes since the header began.
    pub(super) fn at(&self) -> usize {
        self.out.len() - self.start
    }

    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.out.push(value);
        self
    }

    pub(super) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn file_id(&mut self, id: FileId) -> &mut Self {
        self.u64(id.persistent).u64(id.volatile)
    }

    /// A length or offset of 16 bits.
    pub(super) fn len16(&mut self, len: usize) -> &mut Self {
        self.u16(clamp16(len))
    }

    /// A length or offset of 32 bits.
    pub(super) fn len32(&mut self, len: usize) -> &mut Self {
        self.u32(clamp32(len))
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.out.extend_from_slice(bytes);
        self
    }

    pub(super) fn zeros(&mut self, len: usize) -> &mut Self {
        self.out.resize(self.out.len() + len, 0);
        self
    }

    /// Zeros up to the next multiple of 8, from the header.
    pub(super) fn pad8(&mut self) -> &mut Self {
        let len = self.at().next_multiple_of(8) - self.at();
        self.zeros(len)
    }

    /// One byte that stands for an empty buffer, if nothing follows the fixed part, which ends at `fixed_end`.
    pub(super) fn at_least_one(&mut self, fixed_end: usize) {
        if self.at() <= fixed_end {
            self.u8(0);
        }
    }

    /// Overwrites what was written at `at` from the header.
    pub(super) fn put16(&mut self, at: usize, value: usize) {
        self.put(at, &clamp16(value).to_le_bytes());
    }

    /// Overwrites what was written at `at` from the header.
    pub(super) fn put32(&mut self, at: usize, value: usize) {
        self.put(at, &clamp32(value).to_le_bytes());
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(to) = self.out.get_mut(self.start + at..self.start + at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
    }

    /// The vector itself.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }
}

/// So much of `bytes` as a length of 16 bits can say, in whole UTF-16 units.
pub(super) fn cut16(bytes: &[u8]) -> &[u8] {
    match u16::try_from(bytes.len()) {
        Ok(_) => bytes,
        Err(_) => &bytes[..usize::from(u16::MAX - 1)],
    }
}

fn clamp16(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

fn clamp32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// 16-bit numbers that stand behind each other in a message: dialects, ciphers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct U16s<'a>(&'a [u8]);

impl<'a> U16s<'a> {
    /// From their bytes; an odd one at the end is left out.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes.get(..bytes.len() & !1).unwrap_or_default())
    }

    /// The numbers, in order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = u16> + ExactSizeIterator + 'a {
        self.0.chunks_exact(2).map(|pair| Fields(pair).u16(0))
    }

    /// How many.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.len() / 2
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Whether `number` is among them.
    #[must_use]
    pub fn contains(self, number: u16) -> bool {
        self.iter().any(|n| n == number)
    }

    /// Their bytes.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The bytes of `numbers`, for [`U16s::new`].
    #[must_use]
    pub fn bytes_of(numbers: &[u16]) -> Vec<u8> {
        numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
    }
}

impl std::fmt::Debug for U16s<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|n| format!("{n:#06x}"))).finish()
    }
}
