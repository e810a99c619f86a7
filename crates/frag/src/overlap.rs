//! What to do where fragments overlap: give the datagram up, or do as some host would.
//!
//! RFC 5722 forbids overlaps for IPv6, and no honest sender makes them for IPv4. A host gives such a
//! datagram up ([`Policy::Strict`]). Whoever watches other people's hosts must see what they see; they
//! differ, and attackers use that. The policies are those of U. Shankar and V. Paxson's active mapping,
//! as J. Novak named them ("Target-Based Fragmentation Reassembly", 2005) and Suricata and Snort know
//! them. Each says for an old and a new fragment that overlap whose bytes count.

use crate::datagram::{Part, Store};
use crate::leaves::{Cut, Leaves, Place};
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
    /// Where it begins and ends in the payload of the datagram.
    begin: u16,
    end: u16,
    /// Where its payload begins in its packet. With an IPv6 header before it, what is cut from it may begin further behind
    /// than 16 bits tell.
    at: u16,
}

/// The first places for those.
const WHOLES_MIN: usize = 4;

/// A fragment that overlaps so many pieces is resolved without memory from the system.
const FEW: usize = 8;

/// What a fragment may become: it may fill as many gaps as it overlaps pieces, and one more; or lie in the middle of one.
const fn pieces_most(overlaps: usize) -> usize {
    if overlaps == 0 { 1 } else { 2 * overlaps + 1 }
}

/// Where a fragment goes, and how many pieces it overlaps there; until another one has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    place: Place,
    overlaps: usize,
}

/// The fragments of a datagram whose overlaps are resolved, and the pieces that they were resolved to: in order, no
/// two of which overlap.
#[derive(Debug)]
pub(crate) struct Shelf<B> {
    wholes: Vec<Whole<B>>,
    pieces: Leaves,
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
    pub(crate) fn pieces(&self) -> &Leaves {
        &self.pieces
    }

    /// Where a fragment goes.
    #[inline]
    pub(crate) fn spot(&self, f: &Fragment) -> Spot {
        let (place, overlaps) = self.pieces.overlapped((f.offset.into(), f.end()));
        Spot { place, overlaps }
    }

    /// Bytes of memory that [`Self::layer`] takes at most, at any time of it.
    pub(crate) fn growth_most(&self, spot: Spot) -> u32 {
        // Those that grow are there twice for a moment.
        let more = self.more_places();
        let wholes = if more == 0 { 0 } else { self.wholes.capacity() + more };
        let Spot { place, overlaps } = spot;
        let pieces = pieces_most(overlaps);
        let list = if overlaps > FEW { pieces * size_of::<Cut>() } else { 0 };
        let pieces = self.pieces.growth_most(place, pieces);
        u32::try_from(wholes * size_of::<Whole<B>>() + list + pieces).unwrap_or(u32::MAX)
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

    /// The piece that begins there.
    pub(crate) fn find(&self, offset: u32) -> Option<Part<'_, B>> {
        self.pieces.find(offset).and_then(|cut| self.part(cut))
    }

    /// What a piece is cut from.
    pub(crate) fn part(&self, cut: Cut) -> Option<Part<'_, B>> {
        let whole = self.wholes.get(usize::from(cut.owner))?;
        let Cut { offset, len, .. } = cut;
        let (at, skipped) = (whole.at, offset - whole.begin);
        Some(Part { offset, len, at, skipped, bytes: whole.store.bytes() })
    }

    pub(crate) fn end(&mut self, release: &mut impl FnMut(B)) {
        let Self { wholes, .. } = std::mem::take(self);
        for whole in wholes {
            if let Store::Held(buffer) = whole.store {
                release(buffer);
            }
        }
    }

    /// Lays a fragment over or under the pieces that are there, at its spot. Answers how many bytes in front of `end` are
    /// there that were not.
    ///
    /// Only pieces that it overlaps are looked at, and they are found by bisection: so a fragment costs what
    /// its own length says, however many others there are. Those behind it in its leaf are moved.
    pub(crate) fn layer(
        &mut self,
        spot: Spot,
        f: &Fragment,
        store: Store<B>,
        policy: Policy,
        end: u32,
    ) -> u32 {
        let new = (u32::from(f.offset), f.end());
        // A datagram has 65,535 bytes at most, and of 8 bytes or more no more fragments than that.
        let (Ok(mine), Ok(its_end)) = (u16::try_from(self.wholes.len()), u16::try_from(new.1))
        else {
            debug_assert!(false, "more than a datagram can have");
            return 0;
        };
        self.wholes.reserve_exact(self.more_places());
        self.wholes.push(Whole { store, begin: f.offset, end: its_end, at: f.payload_at });
        let cut = |from: u32, to: u32, owner: u16| {
            let narrow = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
            Cut { offset: narrow(from), len: narrow(to - from), owner }
        };
        let Spot { place, overlaps } = spot;
        debug_assert_eq!((place, overlaps), self.pieces.overlapped(new), "another has come");
        let (mut few, mut many);
        let result = if overlaps <= FEW {
            few = [Cut::NONE; pieces_most(FEW)];
            &mut few[..]
        } else {
            many = vec![Cut::NONE; pieces_most(overlaps)];
            &mut many[..]
        };
        let (mut count, mut before, mut after) = (0, 0, 0);
        let mut put = |cut: Cut| {
            after += inside(cut, end);
            result[count] = cut;
            count += 1;
        };
        // The next byte of the new fragment that has no place yet.
        let mut next = new.0;
        for old in self.pieces.from(place).take(overlaps) {
            before += inside(old, end);
            let (start, end) = (u32::from(old.offset), old.end());
            let whole = &self.wholes[usize::from(old.owner)];
            if policy.new_wins((whole.begin.into(), whole.end.into()), new) {
                if start < new.0 {
                    put(cut(start, new.0, old.owner));
                }
                if end > new.1 {
                    if next < new.1 {
                        put(cut(next, new.1, mine));
                        next = new.1;
                    }
                    put(cut(new.1, end, old.owner));
                }
                continue;
            }
            if next < start {
                put(cut(next, start, mine));
            }
            next = next.max(end);
            put(old);
        }
        if next < new.1 {
            put(cut(next, new.1, mine));
        }
        self.pieces.replace(place, overlaps, &result[..count]);
        after - before
    }
}

/// Bytes of a piece in front of `end`.
#[inline]
pub(crate) fn inside(cut: Cut, end: u32) -> u32 {
    cut.end().min(end).saturating_sub(u32::from(cut.offset))
}

#[cfg(all(test, not(loom)))]
mod tests;
