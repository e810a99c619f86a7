//! Datagrams of which all fragments come in one burst, as most do that a sender has not mixed with others.
//!
//! They wait for nothing. So they need no record, no place in the index and no memory set aside, and are handed out also
//! where there is none left: found by one look at the burst, put in order, and handed out when the last of their fragments
//! has its turn. Whatever is not plain about a datagram (a fragment that comes twice, an overlap, a mark that contradicts
//! another) goes the usual way, and one of which anything is in progress does. So all comes out as if each fragment had come
//! alone, but that no payload is copied; and that what would be refused alone, for want of memory or because there are too
//! many datagrams in progress, is not so here.

use crate::datagram::{Piece, Store};
use crate::index::tag_of;
use crate::output::{Released, Sink};
use crate::shard::{BURST, Kind, Parsed};
use crate::wire::{self, Fragment};

/// Where fragments of one datagram find each other: by some bits of its hash, twice as many as can be needed.
const SLOTS: usize = 2 * BURST;
const SLOT_BITS: u32 = SLOTS.ilog2();
const NONE: u8 = u8::MAX;
/// Datagrams of which all may be in a burst: each has two fragments at least.
pub(crate) const SETS: usize = BURST / 2;
/// Fragments of a set that are put in order by counting, without a branch.
const COUNTED_MAX: usize = 8;
/// Where datagrams are mixed, so that none comes in one burst, one burst of `2^MISSES_MAX` that may have one is looked at in
/// vain.
const MISSES_MAX: u8 = 4;

/// Fragments of a burst that have the same hash, since it was whole last.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    hash: u64,
    members: u32,
    /// Bytes of payload.
    received: u32,
    /// Where the last fragment ends; 0: it has not come.
    end: u32,
    /// Some of them go the usual way, and so do all that follow.
    is_barred: bool,
}

/// A datagram of which all is there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Set {
    /// Its fragments' places in the burst.
    members: u32,
    /// Of those the first in the datagram.
    pub(crate) first: u8,
    /// Where its pieces begin.
    base: u8,
    /// What becomes of the congestion marks of all.
    pub(crate) ecn: u8,
    /// Bytes of payload.
    pub(crate) len: u16,
    /// Memory that it would have held, had it not been in one burst, bytes.
    pub(crate) cost: u64,
}

/// Those of one burst.
#[derive(Debug)]
pub(crate) struct Sets<B> {
    groups: [Group; BURST],
    sets: [Set; SETS],
    found: u8,
    /// Bursts in a row in which none was found, up to [`MISSES_MAX`]; and how many are not looked at before the next.
    misses: u8,
    pause: u8,
    /// Places in the burst in the order of offsets, set by set.
    order: [u8; BURST],
    /// Fragments of all sets; and of each place in the burst where its piece goes and whose it is.
    all: u32,
    place: [u8; BURST],
    owner: [u8; BURST],
    /// Set by set, in order. What is left of them when a sink panics the next call gives back.
    pieces: [Piece<B>; BURST],
}

/// What a table says of a datagram that it has not seen.
pub(crate) trait Rules {
    /// Whether memory has been short of late: then each datagram that needs none is worth looking for.
    fn is_short(&self) -> bool;
    /// Whether a fragment is one that it takes in.
    fn takes(&self, f: &Fragment, packet: &[u8]) -> bool;
    /// What a datagram of so many fragments would hold in progress, bytes, whose buffers cost so many; `None`: it is one
    /// that would be given up.
    fn cost(&self, fragments: u32, buffers: u64) -> Option<u64>;
}

impl<B> Sets<B> {
    pub(crate) fn new() -> Box<Self> {
        Box::new(Self {
            groups: [Group::default(); BURST],
            sets: [Set::default(); SETS],
            found: 0,
            misses: 0,
            pause: 0,
            order: [0; BURST],
            all: 0,
            place: [0; BURST],
            owner: [0; BURST],
            pieces: [const { Piece::NONE }; BURST],
        })
    }

    /// Finds the sets of a burst, and says so of their fragments. `new`: places of fragments of whose datagrams nothing is
    /// in progress, bit `1 << n` for the n-th. `packet`: bytes and cost of the packet at a place.
    #[inline]
    pub(crate) fn find<'p>(
        &mut self,
        new: u32,
        parsed: &mut [Parsed],
        rules: &impl Rules,
        packet: impl Fn(usize) -> (&'p [u8], u32),
    ) {
        let (mut all, mut firsts, mut lasts) = (0, 0, 0);
        for at in bits(new) {
            let f = &parsed[at].ahead.fragment;
            // One that is all of a datagram is apart from all others (RFC 6946).
            all |= u32::from(!f.is_atomic()) << at;
            firsts |= u32::from((f.offset == 0) & f.more) << at;
            lasts |= u32::from((f.offset != 0) & !f.more) << at;
        }
        if (firsts == 0) | (lasts == 0) {
            return;
        }
        if self.pause > 0 && !rules.is_short() {
            self.pause -= 1;
            return;
        }
        self.find_among((all, firsts, lasts), parsed, rules, packet);
        self.misses = if self.found > 0 { 0 } else { MISSES_MAX.min(self.misses + 1) };
        self.pause = (1 << self.misses) - 1;
    }

    /// `lasts`, `firsts`: those of `new` that are the last of their datagram, and the first.
    #[inline(never)]
    fn find_among<'p>(
        &mut self,
        (new, firsts, lasts): (u32, u32, u32),
        parsed: &mut [Parsed],
        rules: &impl Rules,
        packet: impl Fn(usize) -> (&'p [u8], u32),
    ) {
        (self.found, self.all) = (0, 0);
        let mut tags = [0; BURST];
        for (tag, parsed) in tags.iter_mut().zip(&*parsed) {
            *tag = tag_of(parsed.ahead.hash);
        }
        let (mut sets, mut count) = ([0; SETS], 0);
        for last in bits(lasts) {
            let members = alike(&tags, tags[last % BURST]) & new;
            if members & firsts == 0 {
                continue;
            }
            let of = |at: usize| &parsed[at].ahead.fragment;
            let received: u32 = bits(members).map(|at| u32::from(of(at).len)).sum();
            let end = of(last).end();
            if (received > end) | (members & lasts != 1 << last) {
                return self.find_in_turn(new, parsed, rules, packet);
            }
            sets[count % SETS] = members;
            count += usize::from(received == end);
        }
        for members in &sets[..count.min(SETS)] {
            self.enter(*members, parsed, rules, &packet);
        }
    }

    /// The same where more has come of a datagram than is in it: what of one hash was whole is a set, whatever comes behind.
    #[cold]
    fn find_in_turn<'p>(
        &mut self,
        new: u32,
        parsed: &mut [Parsed],
        rules: &impl Rules,
        packet: impl Fn(usize) -> (&'p [u8], u32),
    ) {
        (self.found, self.all) = (0, 0);
        let mut slots = [NONE; SLOTS];
        let mut groups = 0;
        for at in bits(new) {
            let ahead = &parsed[at].ahead;
            let f = &ahead.fragment;
            let mut slot = (ahead.hash >> (u64::BITS - SLOT_BITS)) as usize;
            let of = loop {
                let slot_now = &mut slots[slot % SLOTS];
                if *slot_now == NONE {
                    *slot_now = groups;
                    let of = usize::from(groups) % BURST;
                    groups += 1;
                    self.groups[of] = Group { hash: ahead.hash, ..Group::default() };
                    break of;
                }
                let of = usize::from(*slot_now) % BURST;
                if self.groups[of].hash == ahead.hash {
                    break of;
                }
                slot += 1;
            };
            let group = &mut self.groups[of];
            group.members |= 1 << at;
            group.received += u32::from(f.len);
            group.end = if f.more { group.end } else { f.end() };
            if (group.received == group.end) & !group.is_barred {
                let Group { hash, members, .. } = *group;
                // What comes of that key behind a set is of another datagram.
                let is_barred = !self.enter(members, parsed, rules, &packet);
                self.groups[of] = Group { hash, is_barred, ..Group::default() };
            }
        }
    }

    /// Enters a set. `false`: it is none.
    fn enter<'p>(
        &mut self,
        members: u32,
        parsed: &mut [Parsed],
        rules: &impl Rules,
        packet: &impl Fn(usize) -> (&'p [u8], u32),
    ) -> bool {
        let base = self.all.count_ones() as usize;
        let count = members.count_ones() as usize;
        let Some(order) = self.order.get_mut(base..base + count) else { return false };
        let of = |at: u8| &parsed[usize::from(at)].ahead.fragment;
        let (mut is_sorted, mut before) = (true, 0);
        for (place, at) in order.iter_mut().zip(bits(members)) {
            let offset = parsed[at].ahead.fragment.offset;
            is_sorted &= before <= offset;
            before = offset;
            *place = number(at);
        }
        if !is_sorted {
            sort(order, parsed);
        }
        let first = of(order[0]);
        let (mut end, mut ecn_seen, mut cost) = (0, 0u8, 0);
        for (rank, at) in order.iter().enumerate() {
            let f = of(*at);
            let (packet, its_cost) = packet(usize::from(*at));
            let fits = (u32::from(f.offset) == end) & (f.more == (rank + 1 < count));
            if !fits || f.key != first.key || !rules.takes(f, packet) {
                return false;
            }
            end = f.end();
            ecn_seen |= 1 << (f.ecn & 3);
            cost += u64::from(its_cost);
        }
        let fixed = if first.key.is_v6() { 40 } else { 0 };
        let whole = u32::from(first.header_len).saturating_sub(fixed) + end;
        let (Ok(_), Ok(len)) = (u16::try_from(whole), u16::try_from(end)) else { return false };
        let Some(ecn) = wire::merge_ecn(ecn_seen, first.ecn) else { return false };
        let Some(cost) = rules.cost(members.count_ones(), cost) else { return false };
        let Some(set) = self.sets.get_mut(usize::from(self.found)) else { return false };
        *set = Set { members, first: order[0], base: number(base), ecn, len, cost };
        for (place, at) in (number(base)..).zip(order) {
            self.place[usize::from(*at) % BURST] = place;
            self.owner[usize::from(*at) % BURST] = self.found;
            parsed[usize::from(*at)].kind = Kind::Member;
        }
        self.found += 1;
        self.all |= members;
        true
    }

    /// The number of the set that the fragment at a place is of.
    #[inline]
    pub(crate) fn owner(&self, at: usize) -> usize {
        usize::from(self.owner[at % BURST]) % SETS
    }

    /// Puts a fragment of a set where it belongs. The set, if it is the last of it.
    #[inline]
    pub(crate) fn put(&mut self, at: usize, f: &Fragment, buffer: B) -> Option<Set> {
        let piece = &mut self.pieces[usize::from(self.place[at % BURST]) % BURST];
        *piece = Piece::held(f, buffer);
        let set = self.sets[self.owner(at)];
        (set.members >> at == 1).then_some(set)
    }

    /// Hands out what is held of sets that were not handed out. Should that panic, nothing is handed out twice.
    #[cold]
    pub(crate) fn left(&mut self, mut release: impl FnMut(B)) {
        for piece in &mut self.pieces {
            if let Store::Held(buffer) = std::mem::take(&mut piece.store) {
                release(buffer);
            }
        }
    }

    /// The pieces of a set.
    #[inline]
    pub(crate) fn pieces(&mut self, set: Set) -> &mut [Piece<B>] {
        let base = usize::from(set.base);
        &mut self.pieces[base..base + set.members.count_ones() as usize]
    }
}

/// Gives back the buffers of a set that was handed out. Should the sink panic, the others are dropped.
#[inline]
pub(crate) fn release<B>(pieces: &mut [Piece<B>], sink: &mut impl Sink<B>) {
    let mut pieces = Delivered(pieces.iter_mut());
    for piece in pieces.0.by_ref() {
        if let Store::Held(buffer) = std::mem::take(&mut piece.store) {
            sink.release(buffer, Released::Delivered);
        }
    }
}

/// Puts places in a burst in the order of offsets. In which order the pieces of a small datagram come may be as good as
/// chance: so of few the rank of each is counted.
fn sort(order: &mut [u8], parsed: &[Parsed]) {
    let of = |at: u8| parsed[usize::from(at)].ahead.fragment.offset;
    let count = order.len();
    if count > COUNTED_MAX {
        return order.sort_unstable_by_key(|at| of(*at));
    }
    let (mut offsets, mut places) = ([0; COUNTED_MAX], [0; COUNTED_MAX]);
    for ((offset, place), at) in offsets.iter_mut().zip(&mut places).zip(&*order) {
        (*offset, *place) = (of(*at), *at);
    }
    for known in 0..count {
        // Those with the same offset, of which there will be no set, as they came. None is greater than 65,528.
        let offset = offsets[known];
        let less = |other: usize| usize::from(offsets[other] < offset + u16::from(other < known));
        let rank: usize = (0..count).map(less).sum();
        order[rank] = places[known];
    }
}

/// Which of them are the same as `tag`: bit `1 << n` for the n-th.
#[inline]
fn alike(tags: &[u32; BURST], tag: u32) -> u32 {
    let mut alike = 0;
    for (at, other) in tags.iter().enumerate() {
        alike |= u32::from(*other == tag) << at;
    }
    alike
}

/// Pieces that were handed out and are not given back yet.
struct Delivered<'s, B>(std::slice::IterMut<'s, Piece<B>>);

impl<B> Drop for Delivered<'_, B> {
    #[inline]
    fn drop(&mut self) {
        for piece in &mut self.0 {
            piece.store = Store::Nothing;
        }
    }
}

/// A place in a burst.
fn number(at: usize) -> u8 {
    const { assert!(BURST <= u32::BITS as usize) };
    u8::try_from(at).unwrap_or(NONE)
}

/// The numbers of the bits that are set.
fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (at < u32::BITS).then_some(at as usize)
    })
}
