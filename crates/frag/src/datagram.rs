//! One datagram in progress: which bytes are there, and where they are.
//!
//! Senders cut a datagram into pieces of one size, but for the last. Then the place of a piece follows
//! from its offset by one multiplication, in whatever order pieces come, and whether two overlap is one
//! look: the **regular** layout. All that is to be kept of a piece is its buffer: of a thousand datagrams in
//! progress that is what fits into a core's second cache, or does not. A piece that does not fit, or is copied,
//! makes the layout **general**, a sorted list, which any sender may cause and no sender can make slow: at most
//! [`fragments_max`](crate::Config::fragments_max) pieces, found by bisection, and where they are many by a
//! [`Map`].

mod row;

use std::hint::select_unpredictable;

use crate::block::Chain;
use crate::key::Key;
use crate::map::Map;
use crate::output::AHEAD;
use crate::overlap::{Policy, Shelf, Spot, inside};
use crate::reason::Reason;
use crate::slab::{Linked, NONE};
use crate::wire::Fragment;
use row::Row;

pub(crate) use row::NEAR;

/// Where the bytes of a piece are.
#[derive(Debug, Default)]
pub(crate) enum Store<B> {
    /// Nowhere: there is no piece here.
    #[default]
    Nothing,
    /// In the caller's buffer.
    Held(B),
    /// In a compact block.
    Copied { block: u32, at: u16 },
}

impl<B> Store<B> {
    pub(crate) const fn bytes(&self) -> Bytes<'_, B> {
        match self {
            Self::Nothing => Bytes::Nowhere,
            Self::Held(buffer) => Bytes::Held(buffer),
            Self::Copied { block, at } => Bytes::Copied { block: *block, at: *at },
        }
    }
}

/// As [`Store`], to be looked into.
#[derive(Debug)]
pub(crate) enum Bytes<'a, B> {
    Nowhere,
    Held(&'a B),
    Copied { block: u32, at: u16 },
}

/// Bytes of the datagram's payload that came in one fragment.
#[derive(Debug)]
pub(crate) struct Piece<B> {
    pub(crate) offset: u16,
    /// 0: there is none.
    pub(crate) len: u16,
    /// Where they begin in the packet.
    pub(crate) at: u16,
    pub(crate) store: Store<B>,
}

impl<B> Default for Piece<B> {
    fn default() -> Self {
        Self::NONE
    }
}

impl<B> Piece<B> {
    pub(crate) const NONE: Self = Self { offset: 0, len: 0, at: 0, store: Store::Nothing };

    #[inline(always)]
    pub(crate) fn held(f: &Fragment, buffer: B) -> Self {
        Self { offset: f.offset, len: f.len, at: f.payload_at, store: Store::Held(buffer) }
    }

    pub(crate) const fn end(&self) -> u32 {
        self.offset as u32 + self.len as u32
    }
}

/// Bytes of a datagram's payload that are some of a fragment's, or all.
#[derive(Debug)]
pub(crate) struct Part<'a, B> {
    pub(crate) offset: u16,
    pub(crate) len: u16,
    /// Where the payload of the fragment begins in its packet, and how many bytes of it come before these.
    pub(crate) at: u16,
    pub(crate) skipped: u16,
    pub(crate) bytes: Bytes<'a, B>,
}

impl<'a, B> Part<'a, B> {
    pub(crate) fn of(piece: &'a Piece<B>) -> Self {
        let Piece { offset, len, at, ref store } = *piece;
        Self { offset, len, at, skipped: 0, bytes: store.bytes() }
    }

    pub(crate) const fn end(&self) -> u32 {
        self.offset as u32 + self.len as u32
    }
}

/// Bytes of header that are kept in the record itself; IPv4's always fit.
const HEAD_BYTES: usize = 64;
/// Bytes of most headers: IPv4's without options.
const HEAD_PLAIN: u16 = 20;
/// What there is to say of the first fragment's header, in a word that can be chosen without a branch: of
/// the fragments of small datagrams it is as good as chance whether one is the first. From the low bits on:
/// bytes of the header (16 bits; 0: it has not come), [`Fragment::next_at`] (16), [`Fragment::rest`] (16),
/// protocol and ECN (8 each).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Heading(u64);

impl Heading {
    #[inline(always)]
    pub(crate) fn of(f: &Fragment) -> Self {
        let [len, next_at, rest] = [f.header_len, f.next_at, f.rest].map(u64::from);
        let [protocol, ecn] = [f.protocol, f.ecn].map(u64::from);
        Self(len | next_at << 16 | rest << 32 | protocol << 48 | ecn << 56)
    }

    pub(crate) const fn is_there(self) -> bool {
        self.0 != 0
    }

    const fn part(self, at: usize) -> u16 {
        let bytes = self.0.to_le_bytes();
        u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]])
    }

    /// Bytes of the header.
    pub(crate) const fn len(self) -> u16 {
        self.part(0)
    }

    pub(crate) const fn next_at(self) -> u16 {
        self.part(1)
    }

    /// What a plain header is made of; `None`: it is not plain, and its bytes were kept.
    #[inline]
    pub(crate) const fn plain(self) -> Option<u16> {
        if self.len() == HEAD_PLAIN { Some(self.part(2)) } else { None }
    }

    pub(crate) const fn protocol(self) -> u8 {
        self.0.to_le_bytes()[6]
    }

    pub(crate) const fn ecn(self) -> u8 {
        self.0.to_le_bytes()[7]
    }
}

/// The bytes of the first fragment's header. A plain one is not kept but made anew: then these, which lie
/// last, are neither written nor read.
#[derive(Debug)]
struct Head {
    near: [u8; HEAD_BYTES],
    /// IPv6 extension headers may be longer.
    far: Vec<u8>,
}

impl Head {
    fn keep(&mut self, bytes: &[u8]) {
        match self.near.get_mut(..bytes.len()) {
            Some(near) => near.copy_from_slice(bytes),
            None => self.far = bytes.to_vec(),
        }
    }
}

/// The last piece of the regular layout, whose length is its own.
#[derive(Debug)]
struct Tail<B> {
    /// `None`: it was copied, or has not come.
    buffer: Option<B>,
    /// The compact block that it was copied to, and where its bytes begin there.
    block: u32,
    at: u16,
}

impl<B> Tail<B> {
    fn bytes(&self) -> Bytes<'_, B> {
        let copied = Bytes::Copied { block: self.block, at: self.at };
        self.buffer.as_ref().map_or(copied, Bytes::Held)
    }
}

/// The pieces of a complete datagram, in order: those of one length, or those of the list, and then the last.
#[derive(Debug)]
pub(crate) struct Laid<'a, B> {
    /// One behind the other; each is there.
    pub(crate) places: [&'a [Option<B>]; 2],
    /// Where the bytes begin in the packet of the first of those, and of the others.
    pub(crate) from: [u16; 2],
    /// Bytes of each.
    pub(crate) len: u16,
    pub(crate) list: &'a [Piece<B>],
    pub(crate) last: Option<Part<'a, B>>,
}

/// What a fragment would be to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// New: the piece of that number.
    Piece(usize),
    /// New: the last piece.
    Tail,
    /// New, and resolved against others first.
    Layer,
    /// To be looked at again, once the pieces are a list: see [`Node::list`].
    Irregular,
    /// There already, exactly.
    Duplicate,
    /// Not possible beside what is there: the datagram is to be given up.
    Conflict(Reason),
}

/// A datagram in progress, and its place in the lists of its shard. In the order of use: with handles of which an `Option` takes
/// 4 bytes the first two lines are all that a fragment in the middle needs, beside its place.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Node<B> {
    pub(crate) key: Key,
    /// Of the regular layout: all places, in use or not.
    places: Row<B>,
    /// See [`Heading`].
    pub(crate) heading: Heading,
    /// When something last came for it, nanoseconds.
    pub(crate) last_at: u64,
    /// Bytes of memory it holds, and that are set aside for it.
    pub(crate) used: u32,
    pub(crate) reserved: u32,
    /// Bytes of payload that are there.
    received: u32,
    /// Bytes of payload in all; 0: not known yet.
    end: u32,
    /// The end of the furthest piece that is not the last.
    high: u32,
    /// Where the last piece begins; not known yet: [`u32::MAX`]. Of the regular layout.
    last_from: u32,
    /// 2^31 divided by the stride in units of 8 bytes, rounded up.
    inverse: u32,
    /// Datagrams that its shard had begun before it.
    pub(crate) begun: u32,
    /// Bytes of each piece but the last, a guess until there is one; 0: no idea.
    stride: u16,
    /// Pieces that are there.
    pub(crate) count: u16,
    layout: Layout,
    /// Bit `1 << ecn` for each value seen.
    pub(crate) ecn_seen: u8,
    /// Where the bytes of a piece begin in its packet, if it is not the first, whose header may have options that others
    /// have not. While there is nothing, a guess. Of the regular layout: else 0, so that no piece is as most are.
    from: u16,

    // The third line, up to the bytes of the head: what a last fragment, a beginning and an end need too.
    tail: Tail<B>,
    /// Where those of the first piece begin. While that is not there, as of all others.
    first_from: u16,
    pub(crate) source: u16,
    pub(crate) older: u32,
    pub(crate) younger: u32,
    pub(crate) source_older: u32,
    pub(crate) source_younger: u32,
    /// Datagrams that its flow had begun before it: see `Sources::begun`.
    pub(crate) born: u32,
    /// When it began, nanoseconds.
    pub(crate) first_at: u64,
    /// Hash of the key, by the table's key of that epoch.
    pub(crate) hash: u64,
    pub(crate) epoch: u32,
    pub(crate) chain: Chain,
    head: Head,
    pub(crate) shelf: Shelf<B>,
    /// Of the general layout: the pieces, in order unless there is a map.
    pieces: Vec<Piece<B>>,
    /// Of the general layout, from [`LISTED_MAX`] pieces on.
    map: Option<Box<Map>>,
    /// Pieces that were moved, or entered into the map, for others, ever.
    #[cfg(test)]
    moved: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Regular,
    General,
    /// General, and overlaps are resolved by a policy.
    Layered,
}

impl<B> Default for Node<B> {
    fn default() -> Self {
        Self {
            key: Key { src: [0; 2], dst: [0; 2], id: 0, scope: 0 },
            older: NONE,
            younger: NONE,
            source_older: NONE,
            source_younger: NONE,
            source: 0,
            layout: Layout::Regular,
            ecn_seen: 0,
            stride: 0,
            count: 0,
            inverse: 0,
            last_from: u32::MAX,
            heading: Heading::default(),
            first_at: 0,
            last_at: 0,
            born: 0,
            begun: 0,
            hash: 0,
            epoch: 0,
            used: 0,
            reserved: 0,
            received: 0,
            end: 0,
            high: 0,
            places: Row::default(),
            from: 0,
            first_from: 0,
            tail: Tail { buffer: None, block: 0, at: 0 },
            chain: Chain::default(),
            head: Head { near: [0; HEAD_BYTES], far: Vec::new() },
            shelf: Shelf::default(),
            pieces: Vec::new(),
            map: None,
            #[cfg(test)]
            moved: 0,
        }
    }
}

impl<B> Linked for Node<B> {
    fn next(&self) -> u32 {
        self.younger
    }

    fn set_next(&mut self, next: u32) {
        self.younger = next;
    }
}

/// The first places for pieces, of either layout.
const PIECES_MIN: usize = 4;
/// Pieces in a sorted list at most: to put one between others moves some KiB, and not more. Few where
/// sequences of a few fragments are to find what is wrong.
const LISTED_MAX: usize = if cfg!(test) { 8 } else { 256 };

impl<B> Node<B> {
    /// What the record costs, without its pieces.
    #[expect(clippy::cast_possible_truncation, reason = "some hundred bytes")]
    pub(crate) const COST: u32 = size_of::<Self>() as u32;

    /// As for a new datagram.
    pub(crate) fn begin(&mut self, key: Key, now: u64, layered: bool) {
        debug_assert!(self.is_vacant());
        self.key = key;
        self.layout = Layout::Regular;
        if layered {
            self.layout = Layout::Layered;
            self.from = 0;
        }
        self.first_at = now;
        self.last_at = now;
        self.ecn_seen = 0;
        self.has_nothing();
    }

    /// A free record, as [`Self::put_usual`] finds it when it puts the first piece.
    #[inline(always)]
    pub(crate) fn restart(&mut self) {
        debug_assert!(self.is_vacant());
        self.layout = Layout::Regular;
        self.has_nothing();
    }

    fn is_vacant(&self) -> bool {
        let is_empty = self.pieces.is_empty() && self.tail.buffer.is_none() && self.count == 0;
        is_empty && self.places.all().all(Option::is_none)
    }

    /// The stride is supposed to be that of the datagram before, until a piece says another, and where their bytes
    /// begin in their packets. A last piece that is at no multiple of it does no harm: before it there will be one of
    /// another size.
    #[inline(always)]
    const fn has_nothing(&mut self) {
        self.received = 0;
        self.end = 0;
        self.high = 0;
        self.last_from = u32::MAX;
        self.first_from = self.from;
    }

    /// Whether all bytes are there.
    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        (self.end != 0) & (self.received == self.end)
    }

    /// Whether it is once that fragment has come, if that is one of those that lack.
    #[inline]
    pub(crate) fn is_completed_by(&self, f: &Fragment) -> bool {
        let end = if f.more { self.end } else { f.end() };
        (end != 0) & (self.received + u32::from(f.len) == end)
    }

    /// Buffers of the first pieces, as many as are copied before others can be looked for.
    #[inline]
    pub(crate) fn first_buffers(&self) -> impl Iterator<Item = &B> {
        let list = match self.layout {
            Layout::General if self.map.is_none() => &self.pieces[..],
            Layout::General | Layout::Regular | Layout::Layered => &[],
        };
        let listed = list.iter().take(AHEAD).filter_map(|piece| match &piece.store {
            Store::Held(buffer) => Some(buffer),
            Store::Copied { .. } | Store::Nothing => None,
        });
        self.places.all().take(AHEAD).chain([&self.tail.buffer]).flatten().chain(listed)
    }

    /// Bytes of payload in all, once the last fragment has come; else 0.
    pub(crate) const fn len(&self) -> u32 {
        self.end
    }

    /// Puts a fragment where it belongs that is as most are: a new piece of the regular layout for which
    /// there is a place. Not one that is all of a datagram. Answers which; nothing that this gives back is wrong.
    #[inline(always)]
    pub(crate) fn put_usual(&mut self, f: &Fragment, buffer: B) -> Result<Look, B> {
        let at = self.place(f.offset);
        // The last piece has a place for itself. Whether a fragment is the last is as good as chance where there are few:
        // so it is chosen by, not branched on.
        let place = self.places.get_mut(select_unpredictable(f.more, at, 0));
        let Some(place) = place else { return Err(buffer) };
        let (offset, end) = (u32::from(f.offset), f.end());
        // Of each there is nothing, or it needs a closer look.
        let beside = (at * usize::from(self.stride)) ^ usize::from(f.offset);
        let apart = f.payload_at ^ self.from;
        let in_the_middle = u32::from(self.stride ^ f.len)
            | u32::from(end > self.last_from)
            | u32::from(place.is_some());
        let at_the_end = self.end | u32::from(self.high > offset);
        let unfit = select_unpredictable(f.more, in_the_middle, at_the_end);
        if beside | usize::from(apart) | unfit as usize != 0 {
            return Err(buffer);
        }
        *select_unpredictable(f.more, place, &mut self.tail.buffer) = Some(buffer);
        self.high = select_unpredictable(f.more, self.high.max(end), self.high);
        self.end = select_unpredictable(f.more, self.end, end);
        self.last_from = select_unpredictable(f.more, self.last_from, offset);
        self.count += 1;
        self.received += u32::from(f.len);
        Ok(if f.more { Look::Piece(at) } else { Look::Tail })
    }

    /// Takes note of the header, if this is the first fragment. Where that is not plain, see [`Self::put_head`].
    #[inline(always)]
    pub(crate) fn put_plain_head(&mut self, f: &Fragment) {
        self.heading = select_unpredictable(f.offset == 0, Heading::of(f), self.heading);
    }

    /// The same of any.
    pub(crate) fn put_head(&mut self, packet: &[u8], f: &Fragment) {
        if f.offset == 0 && !f.has_plain_header() {
            self.head.keep(&packet[..usize::from(f.header_len)]);
        }
        self.put_plain_head(f);
    }

    /// Bytes of memory that [`Self::put_head`] would take.
    #[inline]
    pub(crate) fn head_growth(&self, f: &Fragment) -> u32 {
        let far = usize::from(f.header_len) > HEAD_BYTES;
        if far && f.offset == 0 && !self.heading.is_there() { u32::from(f.header_len) } else { 0 }
    }

    /// The bytes of a header that is not plain.
    pub(crate) fn head(&self) -> &[u8] {
        let len = usize::from(self.heading.len());
        self.head.near.get(..len).unwrap_or(&self.head.far)
    }

    /// Reads what a piece at that offset will need that is put by [`Self::put_usual`]: both lines of the record,
    /// and the place. Answers something that depends on all.
    #[inline(always)]
    pub(crate) fn touch(&self, offset: u16) -> u16 {
        let place = self.places.get(self.place(offset));
        let place = place.map_or(0, |place| u16::from(place.is_some()));
        place ^ self.count ^ u16::from(self.key.id == 0)
    }

    /// What a fragment would be, which is to be copied if `is_small`. Changes nothing of what is there.
    #[inline]
    pub(crate) fn look(&mut self, f: &Fragment, fragments_max: u16, is_small: bool) -> Look {
        let is_regular = self.layout == Layout::Regular;
        if is_regular && let Some(look) = self.look_regular(f, fragments_max, is_small) {
            return look;
        }
        if self.count >= fragments_max {
            return Look::Conflict(Reason::TooMany);
        }
        match self.layout {
            // That is seen before others go for the memory that a list takes.
            Layout::Regular if self.overlaps_places(f) => Look::Conflict(Reason::Overlap),
            Layout::Regular => Look::Irregular,
            Layout::General => self.look_general(f),
            Layout::Layered => Look::Layer,
        }
    }

    /// `None`: it does not fit into the regular layout.
    #[inline]
    fn look_regular(&mut self, f: &Fragment, fragments_max: u16, is_small: bool) -> Option<Look> {
        if !f.more {
            return self.look_last(f, is_small);
        }
        if self.end != 0 && f.end() > self.last_from {
            return Some(Look::Conflict(self.beyond(f)));
        }
        if self.stride != f.len {
            if !self.has_only_tail()
                || self.end != 0 && !self.last_from.is_multiple_of(f.len.into())
            {
                return None;
            }
            self.set_stride(f.len);
        }
        let at = self.place(f.offset);
        if at * usize::from(self.stride) != usize::from(f.offset) {
            return None;
        }
        Some(match self.places.get(at) {
            Some(Some(_)) => Look::Duplicate,
            // There would be too many of this size. But how many there are is not said: it may be a short one
            // far behind others, so they become a list, and are counted.
            _ if at + 1 >= usize::from(fragments_max) => return None,
            // A place has room for a buffer alone.
            _ if is_small || !self.begins_as_others(f) => return None,
            _ => Look::Piece(at),
        })
    }

    fn has_first(&self) -> bool {
        matches!(self.places.get(0), Some(Some(_)))
    }

    /// Whether the bytes of a fragment begin in its packet where those of others do, if it is not the first.
    fn begins_as_others(&self, f: &Fragment) -> bool {
        let has_copied = self.end != 0 && self.tail.buffer.is_none();
        let others = self.count - u16::from(self.has_first()) - u16::from(has_copied);
        f.offset == 0 || others == 0 || f.payload_at == self.from
    }

    /// Takes note of where the bytes of a fragment begin, which is as [`Self::begins_as_others`] says.
    fn learn_from(&mut self, f: &Fragment) {
        if f.offset != 0 {
            self.from = f.payload_at;
        }
        if !self.has_first() {
            self.first_from = f.payload_at;
        }
    }

    fn look_last(&self, f: &Fragment, is_small: bool) -> Option<Look> {
        if self.end != 0 {
            let same = self.last_from == u32::from(f.offset) && self.end == f.end();
            return Some(if same { Look::Duplicate } else { Look::Conflict(Reason::EndConflict) });
        }
        if self.high > u32::from(f.offset) {
            let shorter = self.high >= f.end();
            let reason = if shorter { Reason::EndConflict } else { Reason::Overlap };
            return Some(Look::Conflict(reason));
        }
        let is_at_a_place = self.has_only_tail() || f.offset.is_multiple_of(self.stride);
        if !is_at_a_place || !is_small && !self.begins_as_others(f) {
            return None;
        }
        Some(Look::Tail)
    }

    /// Whether a fragment of any length overlaps a piece that is not the last.
    fn overlaps_places(&self, f: &Fragment) -> bool {
        // Behind what is there nothing is; and of a piece that is there the stride is known.
        if u32::from(f.offset) >= self.high {
            return false;
        }
        let end = (f.end() - 1) / u32::from(self.stride);
        (self.place(f.offset)..=end as usize).any(|at| matches!(self.places.get(at), Some(Some(_))))
    }

    /// Whether no piece but the last is there, if even that: then the stride is open.
    fn has_only_tail(&self) -> bool {
        self.count == u16::from(self.end != 0)
    }

    fn set_stride(&mut self, stride: u16) {
        self.stride = stride;
        self.inverse = (1u32 << 31).div_ceil(u32::from(stride / 8));
    }

    /// The number of the piece at `offset`, if it is a multiple of the stride.
    #[inline]
    fn place(&self, offset: u16) -> usize {
        // Exact: the error is less than 2^13 / 2^31.
        ((u64::from(offset / 8) * u64::from(self.inverse)) >> 31) as usize
    }

    /// Why a fragment that is not the last cannot be behind the beginning of the last one.
    fn beyond(&self, f: &Fragment) -> Reason {
        if f.end() >= self.end { Reason::EndConflict } else { Reason::Overlap }
    }

    /// Bytes of memory that [`Self::list`] takes.
    pub(crate) fn list_growth(&self) -> u32 {
        Self::list_cost(self.list_places())
    }

    /// Places of a list that has those which are there, and one more.
    fn list_places(&self) -> usize {
        (usize::from(self.count) + 1).next_power_of_two().max(PIECES_MIN)
    }

    /// From here on a sorted list. Its places are kept for the next datagram of this record.
    #[cold]
    pub(crate) fn list(&mut self) {
        debug_assert!(self.layout == Layout::Regular && self.pieces.is_empty());
        #[cfg(test)]
        {
            self.moved += self.places.far();
        }
        self.pieces.reserve_exact(self.list_places());
        let (len, first, others) = (self.stride, self.first_from, self.from);
        let count = self.places_in_use();
        let Self { places, pieces, .. } = self;
        places.take(count, |number, buffer| {
            // It is there: so that is below 65,536.
            let offset = u16::try_from(number * usize::from(len)).unwrap_or(u16::MAX);
            let at = if number == 0 { first } else { others };
            pieces.push(Piece { offset, len, at, store: Store::Held(buffer) });
        });
        if self.end != 0 {
            let Tail { buffer, block, at: at_in_block } = &mut self.tail;
            let copied = Store::Copied { block: *block, at: *at_in_block };
            let store = buffer.take().map_or(copied, Store::Held);
            // Both below 65,536.
            let [offset, len] = [self.last_from, self.end - self.last_from]
                .map(|n| u16::try_from(n).unwrap_or(u16::MAX));
            self.pieces.push(Piece { offset, len, at: others, store });
        }
        (self.layout, self.from) = (Layout::General, 0);
    }

    fn look_general(&self, f: &Fragment) -> Look {
        let at = match &self.map {
            Some(map) => map.find(f.offset).unwrap_or(self.pieces.len()),
            None => self.pieces.partition_point(|piece| piece.offset < f.offset),
        };
        if let Some(piece) = self.pieces.get(at)
            && piece.offset == f.offset
            && piece.len == f.len
            && (piece.end() == self.end) != f.more
        {
            return Look::Duplicate;
        }
        let ends_elsewhere = if f.more {
            self.end != 0 && f.end() >= self.end
        } else {
            self.end != 0 && self.end != f.end() || self.high > f.end()
        };
        if ends_elsewhere {
            return Look::Conflict(Reason::EndConflict);
        }
        let overlaps = match &self.map {
            Some(map) => map.has_any(f.offset, f.end()),
            None => self.overlaps_neighbour(f, at),
        };
        if overlaps {
            return Look::Conflict(Reason::Overlap);
        }
        if !f.more && self.high == f.end() && self.high > 0 {
            return Look::Conflict(Reason::EndConflict);
        }
        Look::Piece(at)
    }

    /// Whether a fragment that would be number `at` of the list overlaps one of those beside it.
    fn overlaps_neighbour(&self, f: &Fragment, at: usize) -> bool {
        let before = at.checked_sub(1).map_or(0, |before| self.pieces[before].end());
        let after = self.pieces.get(at).map_or(u32::MAX, |piece| u32::from(piece.offset));
        before > u32::from(f.offset) || after < f.end()
    }

    /// Bytes of memory that [`Self::put`] at `look` takes for a map.
    #[inline]
    pub(crate) fn map_growth(&self, look: Look) -> u32 {
        let mapped = self.layout == Layout::General
            && self.pieces.len() >= LISTED_MAX
            && self.map.is_none()
            && matches!(look, Look::Piece(_));
        if mapped { Map::COST } else { 0 }
    }

    /// Places for pieces that [`Self::put`] at `look` would need in addition: see [`Self::grow`].
    #[inline]
    pub(crate) fn growth(&self, look: Look, fragments_max: u16) -> usize {
        let (wanted, there, most) = match look {
            // No more than there may be of one size: `put_usual` relies on that.
            Look::Piece(at) if self.layout == Layout::Regular => {
                let most = usize::from(fragments_max).max(NEAR + 1) - 1;
                ((at + 1).saturating_sub(NEAR), self.places.far(), most - NEAR)
            }
            Look::Piece(_) => (self.pieces.len() + 1, self.pieces.capacity(), usize::MAX),
            // The last piece has a place for itself, and layers have others: see `Shelf::growth_most`.
            _ => return 0,
        };
        let room = wanted.next_power_of_two().max(PIECES_MIN).min(most);
        if wanted <= there { 0 } else { room - there }
    }

    /// What so many places more cost, bytes, and those that are there: while they grow those are there twice.
    #[inline]
    pub(crate) fn growth_cost(&self, growth: usize) -> (u32, u32) {
        match (growth, self.layout) {
            (0, _) => (0, 0),
            (_, Layout::General) => {
                (Self::list_cost(growth), Self::list_cost(self.pieces.capacity()))
            }
            _ => (Self::places_cost(growth), self.room()),
        }
    }

    /// Makes so many more places.
    #[cold]
    pub(crate) fn grow(&mut self, growth: usize) {
        let is_list = self.layout == Layout::General;
        #[cfg(test)]
        {
            self.moved += if is_list { self.pieces.len() } else { self.places.far() };
        }
        if is_list {
            self.pieces.reserve_exact(self.pieces.capacity() + growth - self.pieces.len());
        } else {
            self.places.grow(growth);
        }
    }

    /// What the record costs as it is, bytes.
    pub(crate) fn cost(&self) -> u32 {
        // Only a list takes more. That is asked first, since it lies on a line of its own.
        let list = match self.layout {
            Layout::General => {
                let map = if self.map.is_some() { Map::COST } else { 0 };
                Self::list_cost(self.pieces.capacity()) + map
            }
            Layout::Regular | Layout::Layered => 0,
        };
        Self::COST + self.room() + list
    }

    /// What it takes of memory beside buffers and blocks, bytes.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn true_cost(&self) -> u32 {
        let far = u32::try_from(self.head.far.capacity()).unwrap_or(u32::MAX);
        self.cost() + self.shelf.bytes() + far
    }

    /// What so many places for pieces cost, bytes.
    #[inline]
    pub(crate) fn places_cost(places: usize) -> u32 {
        u32::try_from(places * size_of::<Option<B>>()).unwrap_or(u32::MAX)
    }

    /// What so many places of a list cost, bytes.
    fn list_cost(places: usize) -> u32 {
        u32::try_from(places * size_of::<Piece<B>>()).unwrap_or(u32::MAX)
    }

    /// Puts a piece where [`Self::look`] said.
    pub(crate) fn put(&mut self, look: Look, f: &Fragment, store: Store<B>) {
        match (look, store) {
            (Look::Tail, store) => {
                self.tail = match store {
                    Store::Held(buffer) => {
                        self.learn_from(f);
                        Tail { buffer: Some(buffer), block: 0, at: 0 }
                    }
                    Store::Copied { block, at } => Tail { buffer: None, block, at },
                    Store::Nothing => Tail { buffer: None, block: 0, at: 0 },
                };
                self.last_from = u32::from(f.offset);
            }
            (Look::Piece(at), Store::Held(buffer)) if self.layout == Layout::Regular => {
                self.learn_from(f);
                if let Some(place) = self.places.get_mut(at) {
                    *place = Some(buffer);
                }
            }
            (Look::Piece(at), store) if self.layout == Layout::General => {
                self.put_general(
                    at,
                    Piece { offset: f.offset, len: f.len, at: f.payload_at, store },
                );
            }
            _ => {
                debug_assert!(false, "not a place");
                return;
            }
        }
        if f.more {
            self.high = self.high.max(f.end());
        } else {
            self.end = f.end();
        }
        self.count += 1;
        self.received += u32::from(f.len);
    }

    /// Puts a piece into the list, or behind all if there is a map, or is one now.
    fn put_general(&mut self, at: usize, piece: Piece<B>) {
        let (offset, end) = (piece.offset, piece.end());
        #[cfg(test)]
        {
            let is_mapped_now = self.map.is_none() && self.pieces.len() == LISTED_MAX;
            self.moved += self.pieces.len() - at + if is_mapped_now { LISTED_MAX } else { 0 };
        }
        self.pieces.insert(at, piece);
        if let Some(map) = &mut self.map {
            map.add(offset, end, at);
        } else if self.pieces.len() > LISTED_MAX {
            let map = self.map.insert(Box::new(Map::new()));
            for (number, piece) in self.pieces.iter().enumerate() {
                map.add(piece.offset, piece.end(), number);
            }
        }
    }

    /// Puts a piece whatever is there, by a policy.
    pub(crate) fn layer(&mut self, spot: Spot, f: &Fragment, store: Store<B>, policy: Policy) {
        let is_first_end = !f.more && self.end == 0;
        if is_first_end {
            self.end = f.end().max(1);
        }
        // What lies behind the end does not count, and goes out with it.
        let end = if self.end == 0 { u32::MAX } else { self.end };
        let gained = self.shelf.layer(spot, f, store, policy, end);
        self.count = u16::try_from(self.shelf.len()).unwrap_or(u16::MAX);
        self.received = if is_first_end {
            self.shelf.pieces().iter().map(|cut| inside(cut, end)).sum()
        } else {
            self.received + gained
        };
    }

    /// The pieces in order, of a complete datagram; none if they are in no order, see [`Self::mapped`].
    #[inline]
    pub(crate) fn laid(&self) -> Laid<'_, B> {
        let (from, len) = ([self.first_from, self.from], self.stride);
        let mut laid = Laid { places: [&[]; 2], from, len, list: &[], last: None };
        match self.layout {
            Layout::Regular => {
                laid.places = self.places.first(self.places_in_use());
                laid.last = self.last();
            }
            Layout::General if self.map.is_none() => laid.list = &self.pieces,
            Layout::General | Layout::Layered => {}
        }
        laid
    }

    /// The last piece of the regular layout.
    #[inline]
    fn last(&self) -> Option<Part<'_, B>> {
        let (at, bytes) = (self.from, self.tail.bytes());
        let (offset, len) = (self.last_from, self.end.checked_sub(self.last_from)?);
        let [offset, len] = [offset, len].map(|n| u16::try_from(n).unwrap_or(u16::MAX));
        Some(Part { offset, len, at, skipped: 0, bytes })
    }

    /// The piece that begins at that offset, if they are not in one list.
    pub(crate) fn mapped(&self, offset: u32) -> Option<Part<'_, B>> {
        if self.layout == Layout::Layered {
            return self.shelf.find(offset);
        }
        let number = self.map.as_ref()?.find(u16::try_from(offset).ok()?)?;
        self.pieces.get(number).map(Part::of)
    }

    /// Places of the regular layout that have pieces.
    fn places_in_use(&self) -> usize {
        usize::from(self.count) - usize::from(self.end != 0)
    }

    /// The piece that holds the first byte, once it is there.
    pub(crate) fn first(&self) -> Option<Part<'_, B>> {
        let first = match self.layout {
            Layout::Regular => {
                let buffer = self.places.get(0)?.as_ref()?;
                let (len, at) = (self.stride, self.first_from);
                Some(Part { offset: 0, len, at, skipped: 0, bytes: Bytes::Held(buffer) })
            }
            Layout::General if self.map.is_none() => self.pieces.first().map(Part::of),
            Layout::General | Layout::Layered => self.mapped(0),
        };
        first.filter(|piece| piece.len != 0 && piece.offset == 0)
    }

    /// Hands out what was held. Should that panic, nothing is handed out twice.
    #[inline]
    pub(crate) fn release(&mut self, mut release: impl FnMut(B)) {
        match self.layout {
            Layout::Regular => self.release_plain(&mut release),
            Layout::General => {
                for piece in self.pieces.drain(..) {
                    if let Store::Held(buffer) = piece.store {
                        release(buffer);
                    }
                }
            }
            Layout::Layered => self.shelf.end(&mut release),
        }
    }

    /// Whether it is of the regular layout, and holds nothing but buffers.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        (self.layout == Layout::Regular)
            & self.chain.is_empty()
            & (usize::from(self.heading.len()) <= HEAD_BYTES)
    }

    /// [`Self::release`] of what [`Self::is_plain`].
    #[inline(always)]
    pub(crate) fn release_plain(&mut self, mut release: impl FnMut(B)) {
        let count = self.places_in_use();
        self.places.take(count, |_, buffer| release(buffer));
        if let Some(buffer) = self.tail.buffer.take() {
            release(buffer);
        }
    }

    /// Bytes of the room for pieces that [`Self::end`] may keep, for the next datagram.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        Self::places_cost(self.places.far())
    }

    /// Leaves the record as a new one, with its room for pieces if that is to be kept. Compact blocks must be free
    /// already, and what was held have been handed out; what was not is dropped.
    #[inline]
    pub(crate) fn end(&mut self, keep: bool) {
        if !keep {
            self.places.clear();
            self.tail.buffer = None;
        }
        if self.layout == Layout::General {
            (self.pieces, self.map) = (Vec::new(), None);
        }
        if usize::from(self.heading.len()) > HEAD_BYTES {
            self.head.far = Vec::new();
        }
        self.end_plain();
    }

    /// [`Self::end`] of what [`Self::is_plain`], which keeps its room.
    #[inline(always)]
    pub(crate) fn end_plain(&mut self) {
        self.heading = Heading::default();
        // No fragment is of this datagram any more.
        self.key.id = 0;
        self.count = 0;
        self.used = 0;
        self.reserved = 0;
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
