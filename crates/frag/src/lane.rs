//! Parsed fragments on their way to the core that owns their datagram.
//!
//! Between two cores a line of the cache is what costs: the receiver waits for it, and the sender for its
//! return. So a fragment is told in few bytes, half a line for IPv4 and a line for IPv6; many are shown
//! with one store ([`Sender::flush`]) and taken with another; and neither side reads the other's count
//! until what it knew of it is used up. The bytes of the packet stay where they are, and the receiver
//! needs them only for the first fragment of a datagram, if its header is not a plain one.

use crate::key::Key;
use crate::sync::{Arc, AtomicU64, Ordering};
use crate::wire::Fragment;

/// Words of a cell: half a cache line.
const WORDS: usize = 4;
/// Cells whose lines are fetched together.
const TOUCHED: u64 = 32;
/// Bits of [`Cell`]'s flags.
const ECN: u8 = 3;
const MORE: u8 = 4;
const V6: u8 = 8;
/// Of the offset: see [`second`].
const FIRST: u16 = 1;
/// Above the flags: bytes of an IPv4 header, a multiple of 4 as the header itself has it.
const HEADER_SHIFT: u32 = 4;
/// Where in an IPv4 header the protocol is.
const V4_NEXT_AT: u16 = 9;

/// Part of a fragment. Words that both cores see, so that none needs to be trusted with a pointer.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Cell([AtomicU64; WORDS]);

/// A count that one side writes, alone on the lines that are fetched together.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Count(AtomicU64);

#[derive(Debug)]
struct Lane {
    cells: Box<[Cell]>,
    /// Cells ever written and shown.
    sent: Count,
    /// Cells ever read.
    received: Count,
}

impl Lane {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the low bits")]
    fn cell(&self, at: u64) -> &[AtomicU64; WORDS] {
        &self.cells[at as usize & (self.cells.len() - 1)].0
    }

    /// Relaxed: what orders the words of a cell is the count that shows them.
    #[inline]
    fn write(&self, at: u64, words: [u64; WORDS]) {
        for (to, word) in self.cell(at).iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    #[inline]
    fn read(&self, at: u64) -> [u64; WORDS] {
        let cell = self.cell(at);
        std::array::from_fn(|word| cell[word].load(Ordering::Relaxed))
    }
}

/// A lane from one core to one other, with room for `room` fragments of IPv4, or half as many of IPv6: at
/// least 2, at most 2^20, rounded up to a power of two.
///
/// What goes with each fragment is a number of the caller's, by which the receiver finds its buffer.
#[must_use]
pub fn lane(room: u32) -> (Sender, Receiver) {
    let cells = cells(room);
    let cells = (0..cells).map(|_| Cell::default()).collect();
    let lane = Arc::new(Lane { cells, sent: Count::default(), received: Count::default() });
    let until = lane.cells.len() as u64;
    let sender = Sender { lane: Arc::clone(&lane), sent: 0, until };
    (sender, Receiver { lane, received: 0, sent: 0 })
}

fn cells(room: u32) -> u32 {
    room.clamp(2, 1 << 20).next_power_of_two()
}

/// Memory that such a [`lane`] takes, all of it from the beginning: beside every limit.
#[must_use]
pub fn lane_bytes(room: u32) -> u64 {
    // With the two counts of an `Arc`, which has it aligned as what is in it.
    let all = size_of::<Lane>() + align_of::<Lane>();
    u64::from(cells(room)) * size_of::<Cell>() as u64 + all as u64
}

/// The end of a lane that fragments go in at: see [`lane`].
#[derive(Debug)]
pub struct Sender {
    lane: Arc<Lane>,
    /// Cells ever written.
    sent: u64,
    /// What that may come to: how many there is room for, with those that the receiver has read as far as is known here.
    until: u64,
}

impl Sender {
    /// Puts a fragment into the lane, as [`parse`](crate::wire::parse) has answered it. The receiver sees
    /// it after [`Self::flush`]. `false`: there is no room.
    #[inline]
    #[must_use]
    pub fn send(&mut self, fragment: &Fragment, ticket: u64) -> bool {
        if fragment.key.is_v6() {
            return self.send_v6(fragment, ticket);
        }
        let there = self.has_room(1);
        if there {
            self.lane.write(self.sent, emit_v4(fragment, ticket));
            self.sent += 1;
        }
        there
    }

    #[inline(never)]
    fn send_v6(&mut self, fragment: &Fragment, ticket: u64) -> bool {
        let there = self.has_room(2);
        if there {
            let (first, second) = emit_v6(fragment, ticket);
            self.lane.write(self.sent, first);
            self.lane.write(self.sent + 1, second);
            self.sent += 2;
        }
        there
    }

    #[inline]
    fn has_room(&mut self, cells: u64) -> bool {
        self.sent + cells <= self.until || self.finds_room(cells)
    }

    #[cold]
    fn finds_room(&mut self, cells: u64) -> bool {
        // Pairs with the Release at the end of `Received`: what is written now was read before.
        let received = self.lane.received.0.load(Ordering::Acquire);
        self.until = received + self.lane.cells.len() as u64;
        self.sent + cells <= self.until
    }

    /// Shows the receiver all that was sent. Once for each burst is enough, and cheap.
    #[inline]
    pub fn flush(&mut self) {
        self.lane.sent.0.store(self.sent, Ordering::Release);
    }
}

/// The end of a lane that fragments come out at: see [`lane`].
#[derive(Debug)]
pub struct Receiver {
    lane: Arc<Lane>,
    /// Cells ever read.
    received: u64,
    /// Cells that were sent, as far as is known here.
    sent: u64,
}

impl Receiver {
    /// What has been shown by now, in the order in which it was sent: fragments, and the numbers that
    /// went with them. Their room is free again when the iterator is dropped.
    #[inline]
    pub fn receive(&mut self) -> Received<'_> {
        if self.received == self.sent {
            // Pairs with the Release in `Sender::flush`.
            self.sent = self.lane.sent.0.load(Ordering::Acquire);
        }
        let (begin, next) = (self.received, self.received);
        let received = Received { begin, next, receiver: self };
        received.touch();
        received
    }
}

/// What has come by a lane: see [`Receiver::receive`].
#[derive(Debug)]
pub struct Received<'r> {
    receiver: &'r mut Receiver,
    begin: u64,
    /// Cells ever read. Those that nobody will want again are [`Receiver::received`].
    next: u64,
}

impl Received<'_> {
    /// Has the next cells brought near, all lines at once: each alone would be waited for.
    #[inline]
    pub(crate) fn touch(&self) {
        let Receiver { lane, sent, .. } = &*self.receiver;
        let cells = self.next..(*sent).min(self.next + TOUCHED);
        let seen = cells.step_by(2).map(|at| lane.cell(at)[0].load(Ordering::Relaxed));
        std::hint::black_box(seen.fold(0, |all, word| all ^ word));
    }

    /// Reads the next fragment to where it is needed. Answers its number, and what to say to
    /// [`Self::taken`]: whoever does not gets it again the next time.
    #[inline(always)]
    pub(crate) fn peek_to(&mut self, to: &mut Fragment) -> Option<(u64, u64)> {
        let Receiver { lane, sent, .. } = &*self.receiver;
        if self.next == *sent {
            return None;
        }
        let first = lane.read(self.next);
        self.next += 1;
        if byte(first[1], 3) & V6 == 0 {
            *to = parse_v4(first);
        } else {
            // Both are shown together.
            *to = parse_v6(first, lane.read(self.next));
            self.next += 1;
        }
        Some((first[3], self.next))
    }

    /// All that was read up to there is somebody else's now.
    #[inline(always)]
    pub(crate) fn taken(&mut self, up_to: u64) {
        self.receiver.received = up_to;
    }
}

impl Iterator for Received<'_> {
    type Item = (Fragment, u64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let mut fragment = Fragment::NONE;
        let (ticket, up_to) = self.peek_to(&mut fragment)?;
        self.taken(up_to);
        Some((fragment, ticket))
    }
}

impl Drop for Received<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.receiver.received != self.begin {
            let received = self.receiver.received;
            self.receiver.lane.received.0.store(received, Ordering::Release);
        }
    }
}

/// The words of a fragment; the second cell is IPv6's. As little-endian bytes:
///
/// ```text
///        IPv4                                       IPv6
/// 0      source, destination (4 each)               header, next, payload (2 each), 2 of identification
/// 1      identification (2), protocol, flags, offset or rest (2), length (2)
/// 2, 3   scope; ticket
/// 4..8   -                                          source, destination
/// ```
#[inline(always)]
fn emit_v4(f: &Fragment, ticket: u64) -> [u64; WORDS] {
    let words = byte(f.header_len.into(), 0) >> 2;
    let Key { src, dst, scope, .. } = f.key;
    let second = f.key.id & 0xffff | second(f, words << HEADER_SHIFT);
    [src[1] | dst[1] << 32, second, scope, ticket]
}

fn emit_v6(f: &Fragment, ticket: u64) -> ([u64; WORDS], [u64; WORDS]) {
    let [header, next, payload] = [f.header_len, f.next_at, f.payload_at].map(u64::from);
    let Key { src, dst, scope, id } = f.key;
    let first = header | next << 16 | payload << 32 | (id >> 16 & 0xffff) << 48;
    let second = id & 0xffff | second(f, V6);
    ([first, second, scope, ticket], [src[0], src[1], dst[0], dst[1]])
}

/// What both families have in the second word: all but the identification.
#[inline(always)]
fn second(f: &Fragment, flags: u8) -> u64 {
    let more = u64::from(f.more) * u64::from(MORE);
    let flags = u64::from(flags | f.ecn & ECN) | more;
    // An offset is a multiple of 8: one that is not says that it is 0, and above the bit the rest.
    let offset = if f.offset == 0 { f.rest << 1 | FIRST } else { f.offset };
    let [protocol, offset, len] = [f.protocol.into(), offset, f.len].map(u64::from);
    protocol << 16 | flags << 24 | offset << 32 | len << 48
}

/// A byte of a word, the lowest is 0.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "that is the point")]
const fn byte(word: u64, at: u32) -> u8 {
    (word >> (8 * at)) as u8
}

/// Two bytes of a word, the lowest are 0.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "that is the point")]
const fn pair(word: u64, at: u32) -> u16 {
    (word >> (16 * at)) as u16
}

/// Half of a word, the lower is 0.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "that is the point")]
const fn half(word: u64, at: u32) -> u32 {
    (word >> (32 * at)) as u32
}

#[inline(always)]
fn parse_v4(words: [u64; WORDS]) -> Fragment {
    let header_len = u16::from(byte(words[1], 3) >> HEADER_SHIFT) * 4;
    let (id, protocol) = (pair(words[1], 0), byte(words[1], 2));
    Fragment {
        key: Key::v4(half(words[0], 0), half(words[0], 1), id, protocol, words[2]),
        payload_at: header_len,
        header_len,
        next_at: V4_NEXT_AT,
        ..common(words[1])
    }
}

#[inline(never)]
fn parse_v6(words: [u64; WORDS], more: [u64; WORDS]) -> Fragment {
    let id = u32::from(pair(words[0], 3)) << 16 | u32::from(pair(words[1], 0));
    Fragment {
        key: Key::v6([more[0], more[1]], [more[2], more[3]], id, words[2]),
        payload_at: pair(words[0], 2),
        header_len: pair(words[0], 0),
        next_at: pair(words[0], 1),
        ..common(words[1])
    }
}

/// What both families have in the second word.
#[inline(always)]
fn common(word: u64) -> Fragment {
    let (flags, offset) = (byte(word, 3), pair(word, 2));
    // Without a branch: whether a fragment is the first is as good as chance.
    let is_first = offset & FIRST;
    Fragment {
        offset: offset * (is_first ^ FIRST),
        rest: (offset >> 1) * is_first,
        len: pair(word, 3),
        protocol: byte(word, 2),
        ecn: flags & ECN,
        more: flags & MORE != 0,
        ..Fragment::NONE
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
