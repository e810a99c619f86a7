//! LOCK (MS-SMB2 2.2.26, 2.2.27).

use bitflags::bitflags;

use super::bytes::{Body, Fields, Writer};
use super::{BadMessage, Encode};
use crate::FileId;

pub use super::bare::Response;

/// StructureSize, which counts one element.
const REQUEST_SIZE: u16 = 48;
const ELEMENT_LEN: usize = 24;
/// Where the elements begin, bytes from the body's beginning.
const ELEMENTS_AT: usize = 24;

/// Elements that one request may have.
pub const ELEMENTS_MAX: usize = 1024;

bitflags! {
    /// Flags of an element. Bits without a name are kept, so that they can be refused.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u32 {
        /// SMB2_LOCKFLAG_SHARED_LOCK.
        const SHARED = 0x01;
        /// SMB2_LOCKFLAG_EXCLUSIVE_LOCK.
        const EXCLUSIVE = 0x02;
        /// SMB2_LOCKFLAG_UNLOCK.
        const UNLOCK = 0x04;
        /// SMB2_LOCKFLAG_FAIL_IMMEDIATELY: do not wait.
        const FAIL_IMMEDIATELY = 0x10;
        const _ = !0;
    }
}

/// One range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Element {
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// What to do with it.
    pub flags: Flags,
}

impl Element {
    /// Appends the element's 24 bytes, for [`Elements::new`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
        out.extend_from_slice(&self.flags.bits().to_le_bytes());
        out.extend_from_slice(&[0; 4]);
    }
}

/// Ranges, in the order in which they are to be locked or unlocked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Elements<'a>(&'a [u8]);

impl<'a> Elements<'a> {
    /// From the bytes of elements; what is not a whole one at the end is left out.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        let whole = bytes.len() - bytes.len() % ELEMENT_LEN;
        Self(bytes.get(..whole).unwrap_or_default())
    }

    /// The elements, in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Element> + 'a {
        self.0.chunks_exact(ELEMENT_LEN).map(|element| {
            let fields = Fields(element);
            Element {
                offset: fields.u64(0),
                length: fields.u64(8),
                flags: Flags::from_bits_retain(fields.u32(16)),
            }
        })
    }

    /// How many.
    #[must_use]
    pub fn len(self) -> usize {
        self.0.len() / ELEMENT_LEN
    }

    /// Whether there is none, which no request has.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

/// Ranges of an open to lock or to unlock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request<'a> {
    /// LockSequenceNumber, the low 4 bits, and LockSequenceIndex, the 28 above (MS-SMB2 3.3.5.14). 2.1 and later.
    pub sequence: u32,
    /// The open.
    pub file: FileId,
    /// The ranges, one at least.
    pub elements: Elements<'a>,
}

impl<'a> Request<'a> {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is wrong, or there is no element, or fewer than it says;
    /// [`BadMessage::TooMany`] past [`ELEMENTS_MAX`].
    pub fn parse(message: &'a [u8]) -> Result<Self, BadMessage> {
        let body = Body::request(message, REQUEST_SIZE)?;
        let count = body.len16(2);
        if count == 0 {
            return Err(BadMessage::Value);
        }
        if count > ELEMENTS_MAX {
            return Err(BadMessage::TooMany);
        }
        let elements = body.0.get(ELEMENTS_AT..ELEMENTS_AT + count * ELEMENT_LEN);
        let elements = Elements(elements.ok_or(BadMessage::Truncated)?);
        Ok(Self { sequence: body.u32(4), file: body.file_id(8), elements })
    }

    /// LockSequenceNumber, 0 to 15.
    #[must_use]
    pub const fn sequence_number(&self) -> u32 {
        self.sequence & 0xf
    }

    /// LockSequenceIndex; 0 is none, 1 to 64 have a meaning.
    #[must_use]
    pub const fn sequence_index(&self) -> u32 {
        self.sequence >> 4
    }
}

impl Encode for Request<'_> {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, REQUEST_SIZE);
        to.len16(self.elements.len()).u32(self.sequence).file_id(self.file).bytes(self.elements.0);
    }
}
