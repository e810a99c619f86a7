//! Enterprise IDs: names that two hosts must share before they speak version 2 with each other.

use std::fmt;
use std::str::FromStr;

/// Bytes of an EID on the wire, padded with blanks.
pub const EID_LEN: usize = 32;
/// Most EIDs in a proposal.
pub const EIDS_MAX: usize = 8;

/// An EID. Made by parsing text it is a valid user EID; from the wire it may be anything, since it is
/// only ever compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Eid([u8; EID_LEN]);

/// A text that is no user EID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEid {
    /// Empty, or too long.
    #[error("an EID has 1 to 32 characters, this one {0}")]
    Length(usize),
    /// A character that it may not have.
    #[error("an EID consists of A to Z, 0 to 9, '.' and '-', and has {0:?}")]
    Character(char),
    /// The first character is neither a letter nor a digit.
    #[error("an EID begins with a letter or a digit")]
    First,
    /// Two dots in a row.
    #[error("an EID has no two dots in a row")]
    Dots,
}

impl Eid {
    /// As it came from the wire.
    #[must_use]
    pub const fn from_wire(bytes: [u8; EID_LEN]) -> Self {
        Self(bytes)
    }

    /// As it stands on the wire.
    #[must_use]
    pub const fn as_wire(&self) -> &[u8; EID_LEN] {
        &self.0
    }
}

impl Default for Eid {
    /// Blanks, which are no EID of anybody.
    fn default() -> Self {
        Self([b' '; EID_LEN])
    }
}

impl FromStr for Eid {
    type Err = BadEid;

    fn from_str(text: &str) -> Result<Self, BadEid> {
        let allowed = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || ".-".contains(c);
        if let Some(wrong) = text.chars().find(|c| !allowed(*c)) {
            return Err(BadEid::Character(wrong));
        }
        if !(1..=EID_LEN).contains(&text.len()) {
            return Err(BadEid::Length(text.len()));
        }
        if !text.as_bytes()[0].is_ascii_alphanumeric() {
            return Err(BadEid::First);
        }
        if text.contains("..") {
            return Err(BadEid::Dots);
        }
        let mut eid = Self::default();
        eid.0[..text.len()].copy_from_slice(text.as_bytes());
        Ok(eid)
    }
}

impl fmt::Display for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().rposition(|b| !matches!(b, b' ' | 0)).map_or(0, |at| at + 1);
        write!(f, "{}", self.0[..end].escape_ascii())
    }
}

impl fmt::Debug for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Eid({self})")
    }
}

/// The first of `theirs` that is one of `ours`, which is how Linux chooses.
#[must_use]
pub fn matching(ours: &[Eid], theirs: &[Eid]) -> Option<Eid> {
    theirs.iter().find(|eid| ours.contains(eid)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_eids_are_checked() {
        let long = "A".repeat(33);
        let cases = [
            ("TESTEID.SMCV2", Ok(())),
            ("9-A.B", Ok(())),
            ("", Err(BadEid::Length(0))),
            (long.as_str(), Err(BadEid::Length(33))),
            ("Test", Err(BadEid::Character('e'))),
            ("A B", Err(BadEid::Character(' '))),
            ("É", Err(BadEid::Character('É'))),
            (".A", Err(BadEid::First)),
            ("-A", Err(BadEid::First)),
            ("A..B", Err(BadEid::Dots)),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse::<Eid>().map(|_| ()), want, "{text}");
        }
        assert!("A".repeat(32).parse::<Eid>().is_ok());
    }

    #[test]
    fn on_the_wire_there_are_blanks_behind_it() {
        let eid: Eid = "AB".parse().unwrap();
        assert_eq!(eid.as_wire(), b"AB                              ");
        assert_eq!(eid.to_string(), "AB");
        assert_eq!(Eid::from_wire([0xff; 32]).to_string(), "\\xff".repeat(32));
    }

    #[test]
    fn their_order_decides() {
        let [a, b, c] = ["A", "B", "C"].map(|t| t.parse::<Eid>().unwrap());
        assert_eq!(matching(&[a, b], &[c, b, a]), Some(b));
        assert_eq!(matching(&[a], &[c, b]), None);
        assert_eq!(matching(&[], &[a]), None);
    }
}
