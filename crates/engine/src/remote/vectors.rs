//! Sets of completion vectors, as people write them.

use std::fmt;
use std::str::FromStr;

/// Vectors that there can be.
pub const VECTORS_MAX: u32 = 64;

/// Some of the vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vectors(u64);

/// What is no set of vectors: said in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all, none, or numbers of vectors from 0 to 63 as in 0,2-5")]
pub struct BadVectors;

impl Vectors {
    /// Each that there is.
    pub const ALL: Self = Self(u64::MAX);
    /// None of them.
    pub const NONE: Self = Self(0);

    /// Whether a vector is among them.
    #[must_use]
    pub const fn has(self, vector: u32) -> bool {
        vector < VECTORS_MAX && self.0 >> vector & 1 != 0
    }

    /// The first one that is not there, where there are `count`; all of them are those that there are.
    #[must_use]
    pub fn absent(self, count: u32) -> Option<u32> {
        (self != Self::ALL).then(|| (count..VECTORS_MAX).find(|vector| self.has(*vector))).flatten()
    }
}

impl FromStr for Vectors {
    type Err = BadVectors;

    fn from_str(text: &str) -> Result<Self, BadVectors> {
        match text.trim() {
            "all" => return Ok(Self::ALL),
            "none" => return Ok(Self::NONE),
            _ => {}
        }
        let number = |text: &str| -> Result<u32, BadVectors> {
            text.trim().parse().ok().filter(|n| *n < VECTORS_MAX).ok_or(BadVectors)
        };
        let mut set = 0;
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(BadVectors);
            }
            (first..=last).for_each(|vector| set |= 1 << vector);
        }
        Ok(Self(set))
    }
}

impl fmt::Display for Vectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALL => return f.write_str("all"),
            Self::NONE => return f.write_str("none"),
            Self(_) => {}
        }
        let (mut at, mut comma) = (0, "");
        while at < VECTORS_MAX {
            if !self.has(at) {
                at += 1;
                continue;
            }
            let end = (at..VECTORS_MAX).find(|vector| !self.has(*vector)).unwrap_or(VECTORS_MAX);
            match end - at {
                1 => write!(f, "{comma}{at}")?,
                _ => write!(f, "{comma}{at}-{}", end - 1)?,
            }
            (at, comma) = (end, ",");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_shown_as_they_can_be_written() {
        for (text, shown, has) in [
            ("all", "all", &[0, 1, 63][..]),
            ("none", "none", &[]),
            ("3", "3", &[3]),
            ("5,0, 1 ,2-3", "0-3,5", &[0, 1, 2, 3, 5]),
            ("62-63,7", "7,62-63", &[7, 62, 63]),
        ] {
            let set: Vectors = text.parse().unwrap();
            assert_eq!((set.to_string().as_str(), set.to_string().parse()), (shown, Ok(set)));
            if text != "all" {
                assert!((0..VECTORS_MAX).filter(|v| set.has(*v)).eq(has.iter().copied()), "{text}");
            }
            assert!(!set.has(64));
        }
        assert_eq!("0-63".parse(), Ok(Vectors::ALL));
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for text in ["", ",", "1,", "64", "-1", "3-1", "1-", "a", "0-64", "all,1"] {
            assert_eq!(text.parse::<Vectors>(), Err(BadVectors), "{text}");
        }
    }

    #[test]
    fn those_that_are_not_there_are_found() {
        let set = |text: &str| text.parse::<Vectors>().unwrap();
        assert_eq!(set("0,2").absent(2), Some(2));
        assert_eq!(
            (set("0,2").absent(3), set("none").absent(1), Vectors::ALL.absent(1)),
            (None, None, None)
        );
    }
}
