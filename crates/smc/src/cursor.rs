//! Cursors: where in a ring the next byte goes or comes from, and how often the ring has been round.

/// A place in a ring on the wire (RFC 7609 A.4): an offset below the ring's size, and how many times the
/// ring has been filled, modulo 2^16. The same offset with the same wrap means empty, with the next wrap
/// full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// Times round, modulo 2^16.
    pub wrap: u16,
    /// Offset in the ring, bytes.
    pub count: u32,
}

/// A cursor that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCursor {
    /// Not within the ring.
    #[error("offset {count} is outside a ring of {size} bytes")]
    Outside {
        /// The offset.
        count: u32,
        /// Bytes of the ring.
        size: u32,
    },
    /// Neither ahead of the place it is compared with by at most the ring's size, nor behind it by that.
    #[error("wrap {wrap} and offset {count} are more than a ring away")]
    Far {
        /// Its wrap.
        wrap: u16,
        /// Its offset.
        count: u32,
    },
}

/// Counts bytes of a stream from its beginning. Sixty-four bits do not come round.
pub(crate) type Position = u64;

impl Cursor {
    /// Where byte `position` of a stream goes in a ring of `size` bytes; `size` is not 0.
    #[must_use]
    pub fn at(position: u64, size: u32) -> Self {
        let (wrap, count) = (position / u64::from(size), position % u64::from(size));
        #[expect(clippy::cast_possible_truncation, reason = "modulo 2^16, and below `size`")]
        Self { wrap: wrap as u16, count: count as u32 }
    }

    /// So many bytes further in a ring of `size` bytes; `bytes` is at most `size`.
    #[must_use]
    pub fn advance(self, bytes: u32, size: u32) -> Self {
        let sum = u64::from(self.count) + u64::from(bytes);
        let step = Self::at(sum, size);
        Self { wrap: self.wrap.wrapping_add(step.wrap), count: step.count }
    }

    /// Bytes from `older` to here, from 0 (empty) to `size` (full).
    ///
    /// # Errors
    ///
    /// Outside of the ring; or not ahead of `older` by 0 to `size`.
    pub fn since(self, older: Self, size: u32) -> Result<u32, BadCursor> {
        self.inside(size)?;
        let far = BadCursor::Far { wrap: self.wrap, count: self.count };
        let round = u64::from(self.wrap.wrapping_sub(older.wrap)) * u64::from(size);
        let ahead = (round + u64::from(self.count)).checked_sub(u64::from(older.count));
        let ahead = ahead.and_then(|n| u32::try_from(n).ok()).ok_or(far)?;
        if ahead <= size { Ok(ahead) } else { Err(far) }
    }

    /// The position in the stream that this cursor names, given one that is at most `size` away in either
    /// direction.
    pub(crate) fn near(self, known: Position, size: u32) -> Result<Position, BadCursor> {
        let here = Self::at(known, size);
        if let Ok(ahead) = self.since(here, size) {
            return Ok(known + u64::from(ahead));
        }
        self.inside(size)?;
        let far = BadCursor::Far { wrap: self.wrap, count: self.count };
        let behind = here.since(self, size).map_err(|_| far)?;
        known.checked_sub(u64::from(behind)).ok_or(far)
    }

    const fn inside(self, size: u32) -> Result<(), BadCursor> {
        if self.count < size { Ok(()) } else { Err(BadCursor::Outside { count: self.count, size }) }
    }
}

#[cfg(test)]
mod tests;
