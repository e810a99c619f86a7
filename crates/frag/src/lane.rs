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
/// Of the offset: see [`emit`].
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
    let cells = room.clamp(2, 1 << 20).next_power_of_two();
    let cells = (0..cells).map(|_| Cell::default()).collect();
    let lane = Arc::new(Lane { cells, sent: Count::default(), received: Count::default() });
    let sender = Sender { lane: Arc::clone(&lane), sent: 0, received: 0 };
    (sender, Receiver { lane, received: 0, sent: 0 })
}

/// The end of a lane that fragments go in at: see [`lane`].
#[derive(Debug)]
pub struct Sender {
    lane: Arc<Lane>,
    /// Cells ever written.
    sent: u64,
    /// Cells that the receiver has read, as far as is known here.
    received: u64,
}

impl Sender {
    /// Puts a fragment into the lane, as [`parse`](crate::wire::parse) has answered it. The receiver sees
    /// it after [`Self::flush`]. `false`: there is no room.
    #[inline]
    #[must_use]
    pub fn send(&mut self, fragment: &Fragment, ticket: u64) -> bool {
        let v6 = fragment.key.is_v6();
        let cells = if v6 { 2 } else { 1 };
        if !self.has_room(cells) {
            return false;
        }
        let (first, second) = emit(fragment, ticket);
        self.lane.write(self.sent, first);
        if v6 {
            self.lane.write(self.sent + 1, second);
        }
        self.sent += cells;
        true
    }

    #[inline]
    fn has_room(&mut self, cells: u64) -> bool {
        let most = self.lane.cells.len() as u64;
        if self.sent + cells - self.received > most {
            // Pairs with the Release at the end of `Received`: what is written now was read before.
            self.received = self.lane.received.0.load(Ordering::Acquire);
        }
        self.sent + cells - self.received <= most
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
        // All lines at once: each alone would be waited for.
        let cells = self.received..self.sent.min(self.received + TOUCHED);
        let seen = cells.step_by(2).map(|at| self.lane.cell(at)[0].load(Ordering::Relaxed));
        std::hint::black_box(seen.fold(0, |all, word| all ^ word));
        Received { begin: self.received, receiver: self }
    }
}

/// What has come by a lane: see [`Receiver::receive`].
#[derive(Debug)]
pub struct Received<'r> {
    receiver: &'r mut Receiver,
    begin: u64,
}

impl Iterator for Received<'_> {
    type Item = (Fragment, u64);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let Receiver { lane, received, sent } = self.receiver;
        if received == sent {
            return None;
        }
        let first = lane.read(*received);
        *received += 1;
        if bytes_of(first[1])[3] & V6 == 0 {
            return Some((parse_v4(first), first[3]));
        }
        // Both are shown together.
        let second = lane.read(*received);
        *received += 1;
        Some((parse_v6(first, second), first[3]))
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
#[inline]
fn emit(f: &Fragment, ticket: u64) -> ([u64; WORDS], [u64; WORDS]) {
    let id = f.key.id.to_le_bytes();
    let flags = f.ecn & ECN | if f.more { MORE } else { 0 };
    let (first, flags) = if f.key.is_v6() {
        let [h, n, p] = [f.header_len, f.next_at, f.payload_at].map(u16::to_le_bytes);
        (u64::from_le_bytes([h[0], h[1], n[0], n[1], p[0], p[1], id[2], id[3]]), flags | V6)
    } else {
        let words = f.header_len.to_le_bytes()[0] >> 2;
        (f.key.src[1] | f.key.dst[1] << 32, flags | words << HEADER_SHIFT)
    };
    // An offset is a multiple of 8: one that is not says that it is 0, and above the bit the rest.
    let offset = if f.offset == 0 { f.rest << 1 | FIRST } else { f.offset };
    let (o, l) = (offset.to_le_bytes(), f.len.to_le_bytes());
    let second = u64::from_le_bytes([id[0], id[1], f.protocol, flags, o[0], o[1], l[0], l[1]]);
    let Key { src, dst, scope, .. } = f.key;
    ([first, second, scope, ticket], [src[0], src[1], dst[0], dst[1]])
}

#[inline]
const fn bytes_of(word: u64) -> [u8; 8] {
    word.to_le_bytes()
}

#[inline]
fn parse_v4(words: [u64; WORDS]) -> Fragment {
    let [s0, s1, s2, s3, d0, d1, d2, d3] = bytes_of(words[0]);
    let [i0, i1, protocol, flags, ..] = bytes_of(words[1]);
    let (src, dst) = (u32::from_le_bytes([s0, s1, s2, s3]), u32::from_le_bytes([d0, d1, d2, d3]));
    let header_len = u16::from(flags >> HEADER_SHIFT) * 4;
    Fragment {
        key: Key::v4(src, dst, u16::from_le_bytes([i0, i1]), protocol, words[2]),
        payload_at: header_len,
        header_len,
        next_at: V4_NEXT_AT,
        ..common(words[1])
    }
}

#[inline]
fn parse_v6(words: [u64; WORDS], more: [u64; WORDS]) -> Fragment {
    let [h0, h1, n0, n1, p0, p1, i2, i3] = bytes_of(words[0]);
    let [i0, i1, ..] = bytes_of(words[1]);
    let id = u32::from_le_bytes([i0, i1, i2, i3]);
    Fragment {
        key: Key::v6([more[0], more[1]], [more[2], more[3]], id, words[2]),
        payload_at: u16::from_le_bytes([p0, p1]),
        header_len: u16::from_le_bytes([h0, h1]),
        next_at: u16::from_le_bytes([n0, n1]),
        ..common(words[1])
    }
}

/// What both families have in the second word.
#[inline]
fn common(word: u64) -> Fragment {
    let [_, _, protocol, flags, o0, o1, l0, l1] = bytes_of(word);
    let offset = u16::from_le_bytes([o0, o1]);
    let (offset, rest) = if offset & FIRST == 0 { (offset, 0) } else { (0, offset >> 1) };
    Fragment {
        offset,
        rest,
        len: u16::from_le_bytes([l0, l1]),
        protocol,
        ecn: flags & ECN,
        more: flags & MORE != 0,
        ..Fragment::NONE
    }
}

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;
