//! Where the pieces of a datagram are that has very many of any sizes.
//!
//! A sorted list is short or slow: to put a piece into one of thousands moves half of it. So from some
//! number of pieces on they stay in the order in which they came, and for each 8 bytes of payload it is
//! written down whether they are there and which piece begins there. Then a piece costs the same whatever
//! the order and however many there are.

use std::ops::Range;

/// Bytes of payload that all but the last piece consist of.
const UNIT: u16 = 8;
/// Those of the largest payload.
const UNITS: usize = 8192;

/// See the module.
#[derive(Debug)]
pub(crate) struct Map {
    /// The number of the piece that begins there, plus one; 0: none.
    begins: Vec<u16>,
    /// A bit for each.
    there: Vec<u64>,
}

impl Map {
    /// What one costs, bytes.
    pub(crate) const COST: u32 = 2 * 8192 + 8192 / 8 + 64;

    pub(crate) fn new() -> Self {
        Self { begins: vec![0; UNITS], there: vec![0; UNITS / 64] }
    }

    /// The piece that begins at `offset`.
    #[inline]
    pub(crate) fn find(&self, offset: u16) -> Option<usize> {
        let begins = self.begins[usize::from(offset / UNIT)];
        begins.checked_sub(1).map(usize::from)
    }

    /// Whether some of these bytes are there. `end`: behind the last.
    #[inline]
    pub(crate) fn has_any(&self, offset: u16, end: u32) -> bool {
        words(units(offset, end)).any(|(at, bits)| self.there[at] & bits != 0)
    }

    /// Takes in the piece of that number: at most 8192 of them.
    #[inline]
    pub(crate) fn add(&mut self, offset: u16, end: u32, number: usize) {
        debug_assert!(!self.has_any(offset, end) && number < UNITS);
        self.begins[usize::from(offset / UNIT)] = u16::try_from(number + 1).unwrap_or(0);
        for (at, bits) in words(units(offset, end)) {
            self.there[at] |= bits;
        }
    }
}

#[inline]
fn units(offset: u16, end: u32) -> Range<u32> {
    let unit = u32::from(UNIT);
    u32::from(offset) / unit..end.div_ceil(unit)
}

/// The words of [`Map::there`] in which those have bits, and these.
#[inline]
fn words(units: Range<u32>) -> impl Iterator<Item = (usize, u64)> {
    let bits = move |word: u32| {
        let begin = units.start.max(word * 64) % 64;
        let end = units.end.min(word * 64 + 64) - word * 64;
        (word as usize, u64::MAX >> (64 - (end - begin)) << begin)
    };
    (units.start / 64..units.end.div_ceil(64)).map(bits)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_there_where_a_piece_is_and_nowhere_else() {
        let mut map = Map::new();
        // Within a word, over the seam of two, over several, the first and the last of all.
        let pieces = [(0, 8), (504, 1024), (2048, 2056), (4096, 8200), (65_528, 65_535)];
        for (number, (offset, end)) in pieces.into_iter().enumerate() {
            assert!(!map.has_any(offset, end));
            map.add(offset, end, number);
        }
        let inside = |at: u32| pieces.iter().any(|(o, e)| (u32::from(*o)..*e).contains(&at));
        for at in (0..=u16::MAX).step_by(8) {
            assert_eq!(map.has_any(at, u32::from(at) + 8), inside(u32::from(at)), "{at}");
            let expected = pieces.iter().position(|(offset, _)| *offset == at);
            assert_eq!(map.find(at), expected, "{at}");
        }
        assert!(map.has_any(1032, 2049) && !map.has_any(1024, 2048), "up to the end, not further");
        assert!(map.has_any(8, 65_535), "in the middle of a long one");
    }
}
