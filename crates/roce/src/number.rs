//! Numbers of 24 bits: packet sequence numbers, which go round, and queue pair numbers, which do not.

use core::fmt;

const BITS: u32 = 24;
const MASK: u32 = (1 << BITS) - 1;

/// A packet sequence number (IBTA vol. 1, 9.2.7): 24 bits that go round.
///
/// Numbers are compared by how far apart they are ([`Psn::after`]), which says something only while
/// they are less than 2^23 apart. There is no order (`Ord`) on purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// 0 to 2^24 - 1.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// The number `count` packets earlier.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_sub(count))
    }

    /// How many packets `self` comes after `other`; negative: before. From -2^23 to 2^23 - 1.
    #[must_use]
    pub const fn after(self, other: Self) -> i32 {
        // The difference moved to the top, so that its sign is the sign of the word.
        (self.0.wrapping_sub(other.0) << (32 - BITS)).cast_signed() >> (32 - BITS)
    }

    /// How many packets lie between `start` and `self`, `start` among them, going upwards: 0 to 2^24 - 1.
    #[must_use]
    pub const fn since(self, start: Self) -> u32 {
        self.0.wrapping_sub(start.0) & MASK
    }

    pub(crate) const fn from_bytes(b: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, b[0], b[1], b[2]]))
    }

    pub(crate) const fn bytes(self) -> [u8; 3] {
        let [_, a, b, c] = self.0.to_be_bytes();
        [a, b, c]
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06x}", self.0)
    }
}

/// A queue pair number: 24 bits. 0 and 1 are those of management, which are never ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Qpn(u32);

impl Qpn {
    /// The low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// 0 to 2^24 - 1.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    pub(crate) const fn from_bytes(b: [u8; 3]) -> Self {
        Self(u32::from_be_bytes([0, b[0], b[1], b[2]]))
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_go_round() {
        let last = Psn::new(MASK);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), last);
        assert_eq!(Psn::new(2).after(last), 3);
        assert_eq!(last.after(Psn::new(2)), -3);
        assert_eq!(Psn::new(0).after(Psn::new(1 << 23)), -(1 << 23));
        assert_eq!(Psn::new(1).since(last), 2);
        assert_eq!(Psn::new(0x0100_0001), Psn::new(1));
    }

    proptest! {
        #[test]
        fn after_undoes_plus(start in any::<u32>(), count in 0u32..1 << 23) {
            let start = Psn::new(start);
            prop_assert_eq!(start.plus(count).after(start), count.cast_signed());
            prop_assert_eq!(start.minus(count).after(start), -count.cast_signed());
            prop_assert_eq!(start.plus(count).since(start), count);
            prop_assert_eq!(Psn::from_bytes(start.bytes()), start);
        }
    }
}
