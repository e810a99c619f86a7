//! Several messages in one frame (MS-SMB2 2.2.1, NextCommand, and 3.3.5.2.7).

use std::ops::Range;

use super::BadMessage;
use super::bytes::Fields;
use super::header::{HEADER_LEN, Header};

/// Bytes that a message has at least: a header and a StructureSize.
pub const MESSAGE_MIN: usize = HEADER_LEN + 2;

/// The messages of a frame, in order. Iteration ends with the last one, or with the first that is not right.
///
/// A message that another follows ends where that one begins, and so includes the padding between them: that is
/// also what its signature covers.
#[derive(Clone, Debug)]
pub struct Compound<'a> {
    frame: &'a [u8],
    at: Option<usize>,
}

/// One message of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Its header.
    pub header: Header,
    /// Its bytes in the frame, header and padding included.
    pub range: Range<usize>,
}

impl<'a> Compound<'a> {
    /// The messages of `frame`, which is what follows the length of 4 bytes, decrypted.
    #[must_use]
    pub const fn new(frame: &'a [u8]) -> Self {
        Self { frame, at: Some(0) }
    }

    /// Where the message that begins at `at` ends.
    fn element(&self, at: usize) -> Result<(Element, Option<usize>), BadMessage> {
        let message = self.frame.get(at..).unwrap_or_default();
        if message.len() < MESSAGE_MIN {
            return Err(BadMessage::Truncated);
        }
        let header = Header::parse(message)?;
        if Fields(message).u16(HEADER_LEN) < 2 {
            return Err(BadMessage::StructureSize);
        }
        let next = usize::try_from(header.next).map_err(|_| BadMessage::Offset)?;
        if next == 0 {
            return Ok((Element { header, range: at..self.frame.len() }, None));
        }
        if next < MESSAGE_MIN || !next.is_multiple_of(8) || next > message.len() {
            return Err(BadMessage::Offset);
        }
        // A message that is said to be followed by nothing is the last, as for smbd.
        let end = at + next;
        Ok((Element { header, range: at..end }, (end < self.frame.len()).then_some(end)))
    }
}

impl Iterator for Compound<'_> {
    type Item = Result<Element, BadMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at.take()?;
        Some(self.element(at).map(|(element, next)| {
            self.at = next;
            element
        }))
    }
}
