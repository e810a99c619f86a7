//! Which entries of a directory a search is for (MS-FSA 2.1.4.4), in time that is bounded.
//!
//! | character | stands for |
//! | --- | --- |
//! | `*` | any characters, or none |
//! | `?` | one character |
//! | `<` (DOS_STAR) | any characters or none, up to and with the last dot |
//! | `>` (DOS_QM) | one character; none before a dot or at the end |
//! | `"` (DOS_DOT) | a dot; nothing at the end |

use super::fold::upper;
use super::{COMPONENT_MAX, fold, same, unmark_device, utf16};
use crate::NtStatus;

/// A search pattern, compiled. Case is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Kind);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// `*`: everything.
    All,
    /// No wildcard: this very name.
    Name(String),
    /// `*` and `?` only, in upper case.
    Plain(Vec<char>),
    /// With characters of DOS, in upper case.
    Dos(Vec<char>),
}

/// Words of a set of positions in a pattern: one more than it has characters.
const WORDS: usize = COMPONENT_MAX / 64 + 1;

impl Pattern {
    /// From the UTF-16 of a QUERY_DIRECTORY request.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER for an odd number of bytes; OBJECT_NAME_INVALID for a pattern that is empty, longer
    /// than [`COMPONENT_MAX`], or has a separator or a control character.
    pub fn parse(bytes: &[u8]) -> Result<Self, NtStatus> {
        Self::parse_str(&utf16::decode(bytes)?)
    }

    /// [`Pattern::parse`] of what is a string already.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_INVALID, as [`Pattern::parse`].
    pub fn parse_str(text: &str) -> Result<Self, NtStatus> {
        let forbidden = |c: char| c < ' ' || matches!(c, '\\' | '/' | '|' | ':');
        if text.is_empty() || text.contains(forbidden) || utf16::len(text) > COMPONENT_MAX * 2 {
            return Err(NtStatus::OBJECT_NAME_INVALID);
        }
        if !text.contains(['*', '?', '<', '>', '"']) {
            return Ok(Self(Kind::Name(unmark_device(text).into_owned())));
        }
        let mut chars: Vec<char> = fold(text).chars().collect();
        // Several stars are one.
        chars.dedup_by(|b, a| *a == '*' && *b == '*');
        Ok(Self(match chars[..] {
            ['*'] => Kind::All,
            _ if chars.iter().any(|c| matches!(c, '<' | '>' | '"')) => Kind::Dos(chars),
            _ => Kind::Plain(chars),
        }))
    }

    /// Whether every entry matches.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.0 == Kind::All
    }

    /// The one name that this is for, if it has no wildcard: look it up instead of reading the directory.
    #[must_use]
    pub fn as_name(&self) -> Option<&str> {
        match &self.0 {
            Kind::Name(name) => Some(name),
            _ => None,
        }
    }

    /// Whether the search is for `name`. Takes no more steps than the product of the two lengths.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match &self.0 {
            Kind::All => true,
            Kind::Name(only) => same(only, name),
            Kind::Plain(pattern) => plain(pattern, name),
            // The parent is found as the directory itself is.
            Kind::Dos(pattern) => dos(pattern, if name == ".." { "." } else { name }),
        }
    }
}

/// `*` and `?`: goes back to the last star only, which is enough.
fn plain(pattern: &[char], name: &str) -> bool {
    let (mut at, mut rest) = (0, name.chars());
    // Behind the last star, and the name from where that star would eat one more.
    let mut star = None;
    loop {
        let mut ahead = rest.clone();
        let next = ahead.next().map(upper);
        match (pattern.get(at), next) {
            (Some('*'), _) => {
                at += 1;
                star = Some((at, rest.clone()));
            }
            (None, None) => return true,
            (Some(p), Some(c)) if *p == '?' || *p == c => {
                at += 1;
                rest = ahead;
            }
            _ => {
                let Some((behind, from)) = &mut star else { return false };
                if from.next().is_none() {
                    return false;
                }
                at = *behind;
                rest = from.clone();
            }
        }
    }
}

/// Positions of a pattern at which a match may be.
#[derive(Clone, Copy, Default)]
struct Set([u64; WORDS]);

impl Set {
    fn add(&mut self, position: usize) {
        if let Some(word) = self.0.get_mut(position / 64) {
            *word |= 1 << (position % 64);
        }
    }

    fn has(&self, position: usize) -> bool {
        self.0.get(position / 64).is_some_and(|word| word >> (position % 64) & 1 == 1)
    }

    fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }
}

/// All characters: keeps all positions at once instead of trying one after the other.
fn dos(pattern: &[char], name: &str) -> bool {
    let end = pattern.len();
    // What may stand for nothing at the end of a name.
    let null_from =
        end - pattern.iter().rev().take_while(|c| matches!(c, '*' | '<' | '>' | '"')).count();
    let last_dot = name.rfind('.');
    let mut now = Set::default();
    now.add(0);
    for (at, c) in name.char_indices() {
        let c = upper(c);
        let is_last_dot = last_dot == Some(at);
        let at_end = at + c.len_utf8() >= name.len();
        let mut next = Set::default();
        for (position, item) in pattern.iter().enumerate() {
            if !now.has(position) {
                continue;
            }
            match *item {
                '*' => {
                    now.add(position + 1);
                    next.add(position);
                }
                '<' => {
                    now.add(position + 1);
                    next.add(if is_last_dot { position + 1 } else { position });
                }
                '?' => next.add(position + 1),
                '>' if c == '.' => {
                    now.add(position + 1);
                    if at_end && is_last_dot && position + 1 >= null_from {
                        next.add(end);
                    }
                }
                '>' => next.add(position + 1),
                '"' if c == '.' => next.add(position + 1),
                '"' => {}
                literal if literal == c => next.add(position + 1),
                _ => {}
            }
        }
        if next.is_empty() {
            return false;
        }
        now = next;
    }
    (null_from..=end).any(|position| now.has(position))
}
