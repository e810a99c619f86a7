//! What to do where fragments overlap: give the datagram up, or do as some host would.
//!
//! RFC 5722 forbids overlaps for IPv6, and no honest sender makes them for IPv4. A host gives such a
//! datagram up ([`Policy::Strict`]). Whoever watches other people's hosts must see what they see; they
//! differ, and attackers use that. The policies are those of U. Shankar and V. Paxson's active mapping,
//! as J. Novak named them ("Target-Based Fragmentation Reassembly", 2005) and Suricata and Snort know
//! them. Each says for an old and a new fragment that overlap whose bytes count.

use crate::datagram::{Piece, Store};
use crate::leaves::Leaves;
use crate::wire::Fragment;

/// Whose bytes count where fragments overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Nobody's: the datagram is given up (RFC 5722). A fragment of exactly the same range is taken for a duplicate and
    /// dropped alone, whatever it holds: contents stay in the caller's buffers, where nobody reads them to compare.
    #[default]
    Strict,
    /// The one that came first.
    First,
    /// The one that came last.
    Last,
    /// The old one, if it begins before the new one or with it.
    Bsd,
    /// The new one, if the old one begins before it or with it.
    BsdRight,
    /// The old one, if it begins before the new one.
    Linux,
    /// The old one, unless the new one begins before it and ends behind it.
    Windows,
    /// The old one, unless the new one begins before it and ends with it or behind it.
    Solaris,
}

impl Policy {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Strict,
        Self::First,
        Self::Last,
        Self::Bsd,
        Self::BsdRight,
        Self::Linux,
        Self::Windows,
        Self::Solaris,
    ];

    /// As people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::First => "first",
            Self::Last => "last",
            Self::Bsd => "bsd",
            Self::BsdRight => "bsd-right",
            Self::Linux => "linux",
            Self::Windows => "windows",
            Self::Solaris => "solaris",
        }
    }

    /// Whether the new fragment's bytes count; both are (offset, end) as they came.
    const fn new_wins(self, old: (u32, u32), new: (u32, u32)) -> bool {
        match self {
            Self::Strict | Self::First => false,
            Self::Last => true,
            Self::Bsd => new.0 < old.0,
            Self::BsdRight => old.0 <= new.0,
            Self::Linux => new.0 <= old.0,
            Self::Windows => new.0 < old.0 && new.1 > old.1,
            Self::Solaris => new.0 < old.0 && new.1 >= old.1,
        }
    }
}

impl std::str::FromStr for Policy {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|policy| policy.name() == name).ok_or(())
    }
}

/// A fragment as it came. Its bytes may be in several pieces of the datagram, or in none.
#[derive(Debug)]
struct Whole<B> {
    store: Store<B>,
    range: (u32, u32),
}

/// The first places for those.
const WHOLES_MIN: usize = 4;

/// The fragments of a datagram whose overlaps are resolved, and the pieces that they were resolved to: in order, no
/// two of which overlap.
#[derive(Debug)]
pub(crate) struct Shelf<B> {
    wholes: Vec<Whole<B>>,
    pieces: Leaves<B>,
}

impl<B> Default for Shelf<B> {
    fn default() -> Self {
        Self { wholes: Vec::new(), pieces: Leaves::default() }
    }
}

impl<B> Shelf<B> {
    pub(crate) fn len(&self) -> usize {
        self.wholes.len()
    }

    /// The pieces.
    pub(crate) fn pieces(&self) -> &Leaves<B> {
        &self.pieces
    }

    /// Bytes of memory that [`Self::layer`] takes at most, at any time of it.
    pub(crate) fn growth_most(&self, f: &Fragment) -> u32 {
        // Those that grow are there twice for a moment.
        let more = self.more_places();
        let wholes = if more == 0 { 0 } else { self.wholes.capacity() + more };
        let (place, overlaps) = self.pieces.overlapped((f.offset.into(), f.end()));
        // It may fill as many gaps as it overlaps pieces, and one more; or lie in the middle of one.
        let pieces = if overlaps == 0 { 1 } else { 2 * overlaps + 1 };
        let pieces = self.pieces.growth_most(place, overlaps, pieces);
        u32::try_from(wholes * size_of::<Whole<B>>() + pieces).unwrap_or(u32::MAX)
    }

    /// Places for fragments that one more needs: as many as there are, when all are in use.
    fn more_places(&self) -> usize {
        let full = self.wholes.len() == self.wholes.capacity();
        if full { self.wholes.capacity().max(WHOLES_MIN) } else { 0 }
    }

    /// Memory that it takes.
    pub(crate) fn bytes(&self) -> u32 {
        let wholes = self.wholes.capacity() * size_of::<Whole<B>>();
        u32::try_from(wholes + self.pieces.bytes()).unwrap_or(u32::MAX)
    }

    pub(crate) fn store(&self, at: u16) -> &Store<B> {
        &self.wholes[usize::from(at)].store
    }

    /// Where the fragment began that something on the shelf came in.
    pub(crate) fn offset(&self, at: u16) -> u16 {
        u16::try_from(self.wholes[usize::from(at)].range.0).unwrap_or(0)
    }

    pub(crate) fn end(&mut self, release: &mut impl FnMut(B)) {
        let Self { wholes, .. } = std::mem::take(self);
        for whole in wholes {
            if let Store::Held(buffer) = whole.store {
                release(buffer);
            }
        }
    }

    /// Lays a fragment over or under the pieces that are there. Answers how many bytes in front of `end` are there
    /// that were not.
    ///
    /// Only pieces that it overlaps are looked at, and they are found by bisection: so a fragment costs what
    /// its own length says, however many others there are. Those behind it in its leaf are moved.
    pub(crate) fn layer(&mut self, f: &Fragment, store: Store<B>, policy: Policy, end: u32) -> u32 {
        let new = (u32::from(f.offset), f.end());
        let Ok(mine) = u16::try_from(self.wholes.len()) else { return 0 };
        self.wholes.reserve_exact(self.more_places());
        self.wholes.push(Whole { store, range: new });
        // Where the payload of its fragment begins, and not where the piece does: with an IPv6 header before it
        // that may be more than 16 bits tell.
        let cut = |from: u32, to: u32, at: u16, owner: u16| {
            let narrow = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
            let (offset, len) = (narrow(from), narrow(to - from));
            Piece { offset, len, at, store: Store::Shelved(owner) }
        };
        let inside = |piece: &Piece<B>| inside(piece, end);
        let (place, overlaps) = self.pieces.overlapped(new);
        if overlaps == 0 {
            let piece = cut(new.0, new.1, f.payload_at, mine);
            let gained = inside(&piece);
            self.pieces.put(place, [piece].into_iter());
            return gained;
        }
        let under = self.pieces.cut_out(place, overlaps);
        let before: u32 = under.iter().map(inside).sum();
        let mut result = Vec::with_capacity(2 * overlaps + 1);
        // The next byte of the new fragment that has no place yet.
        let mut next = new.0;
        for old in under {
            let (start, end) = (u32::from(old.offset), old.end());
            let Store::Shelved(owner) = old.store else { continue };
            if policy.new_wins(self.wholes[usize::from(owner)].range, new) {
                if start < new.0 {
                    result.push(cut(start, new.0, old.at, owner));
                }
                if end > new.1 {
                    if next < new.1 {
                        result.push(cut(next, new.1, f.payload_at, mine));
                        next = new.1;
                    }
                    result.push(cut(new.1, end, old.at, owner));
                }
                continue;
            }
            if next < start {
                result.push(cut(next, start, f.payload_at, mine));
            }
            next = next.max(end);
            result.push(old);
        }
        if next < new.1 {
            result.push(cut(next, new.1, f.payload_at, mine));
        }
        let gained = result.iter().map(inside).sum::<u32>() - before;
        self.pieces.put(place, result.into_iter());
        gained
    }
}

/// Bytes of a piece in front of `end`.
pub(crate) fn inside<B>(piece: &Piece<B>, end: u32) -> u32 {
    piece.end().min(end).saturating_sub(u32::from(piece.offset))
}

#[cfg(all(test, not(loom)))]
mod tests;
