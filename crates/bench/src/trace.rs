//! The fragments that every engine gets: one trace, made once, the same for the same words.
//!
//! Datagrams of many flows, some in flight at a time, each fragment in a slot of its own as a driver would
//! leave it there. What a datagram contains follows from its number, so that everybody can check it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::num::NonZero;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, ensure};
use clap::ValueEnum;
use sys::pages::Pages;

/// Bytes of the frame that a driver receives into.
pub(crate) const FRAME: usize = 2048;
/// From one slot to the next: a frame, and as much more as DPDK's pools have of it. They are 37 lines, so that headers
/// spread over all of a cache. At a stride of 2 KiB they would all lie in two of its 64 sets, and what was prefetched
/// for a burst would be gone before it is looked at.
pub(crate) const SLOT: usize = 2368;
/// Bytes of payload in a fragment of a packet of 1500 bytes.
pub(crate) const PIECE: usize = 1480;
/// What keeping one costs.
#[expect(clippy::cast_possible_truncation, reason = "2048")]
pub(crate) const COST: u32 = FRAME as u32;
const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const LINE: usize = 64;

/// How the fragments of the datagrams in flight follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// One of each datagram in turn, the first fragments first
    In,
    /// One of each datagram in turn, the last fragments first
    Rev,
    /// Shuffled among all that are in flight
    Rnd,
}

/// What a trace is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Bytes of UDP payload of each datagram.
    pub(crate) size: usize,
    /// Datagrams in flight at a time, each of a source of its own.
    pub(crate) flows: usize,
    pub(crate) order: Order,
    /// How many fragments there are, about.
    pub(crate) fragments: usize,
    /// Added to each source address, so that two traces have no flow in common.
    pub(crate) salt: u32,
}

impl Case {
    /// Bytes of IP payload of each datagram.
    pub(crate) const fn len(&self) -> usize {
        self.size + UDP_HEADER
    }

    /// Fragments of each datagram.
    pub(crate) const fn pieces(&self) -> usize {
        self.len().div_ceil(PIECE)
    }
}

/// One fragment of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// The datagram's number.
    pub(crate) datagram: u32,
    /// The fragment's, in the datagram.
    pub(crate) at: u16,
}

/// Number of a slot, as a handle of what is in it. One that is never 0: then the places of a datagram in progress take four
/// bytes for each fragment, and with any number they would take eight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot(NonZero<u32>);

impl Slot {
    pub(crate) const FIRST: Self = Self(NonZero::<u32>::MIN);

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "some ten thousand slots")]
    pub(crate) const fn new(at: usize) -> Self {
        Self(NonZero::<u32>::MIN.saturating_add(at as u32))
    }

    #[inline]
    pub(crate) const fn at(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Packets in slots, in the order in which they come in.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) case: Case,
    slots: Pages,
    lens: Vec<u16>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) datagrams: usize,
    /// How many came in before each.
    pub(crate) came: Vec<u32>,
    /// Which slots are whose.
    pub(crate) rings: Vec<Range<u32>>,
}

impl Trace {
    /// Makes a trace.
    ///
    /// # Errors
    ///
    /// When no datagram could be like this.
    pub(crate) fn new(case: Case) -> anyhow::Result<Self> {
        Self::in_rings(case, 1)
    }

    /// Makes a trace whose fragments come to several threads, each to one by chance. As with a card that
    /// has a ring for each, a thread's packets lie one behind the other.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub(crate) fn in_rings(case: Case, rings: usize) -> anyhow::Result<Self> {
        ensure!(case.flows > 0 && (PIECE..=65507).contains(&case.size), "no such datagrams");
        let windows = case.fragments.div_ceil(case.pieces() * case.flows).max(1);
        let datagrams = windows * case.flows;
        let mut random = Random::new(7);
        let mut pieces = Vec::with_capacity(datagrams * case.pieces());
        (0..windows).for_each(|window| arrange(&case, window, &mut random, &mut pieces));
        let (came, rings) = spray(pieces.len(), rings);
        let pieces: Vec<Piece> = came.iter().map(|came| pieces[*came as usize]).collect();
        let (slots, lens) = (pages(pieces.len() * SLOT)?, Vec::new());
        let mut trace = Self { case, slots, lens, pieces, datagrams, came, rings };
        trace.fill()?;
        Ok(trace)
    }

    fn fill(&mut self) -> anyhow::Result<()> {
        let mut whole = vec![0; self.case.len()];
        for (slot, piece) in self.slots.chunks_exact_mut(SLOT).zip(&self.pieces) {
            let header = header(&self.case, *piece)?;
            let at = usize::from(piece.at) * PIECE;
            let end = (at + PIECE).min(whole.len());
            write_payload(&self.case, piece.datagram, at, &mut whole[at..end]);
            slot[..IP_HEADER].copy_from_slice(&header);
            slot[IP_HEADER..IP_HEADER + end - at].copy_from_slice(&whole[at..end]);
            self.lens.push(u16::try_from(IP_HEADER + end - at)?);
        }
        Ok(())
    }

    /// Writes it to a file, for programs in other languages: see `bench/peers`.
    ///
    /// # Errors
    ///
    /// When there is no room.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        let slots_at = (5 * 8 + 2 * self.len()).next_multiple_of(4096);
        let Self { case, datagrams, .. } = self;
        for word in [self.len(), *datagrams, case.flows, case.len(), slots_at] {
            file.write_all(&(word as u64).to_le_bytes())?;
        }
        self.lens.iter().try_for_each(|len| file.write_all(&len.to_le_bytes()))?;
        let gap = slots_at - 5 * 8 - 2 * self.len();
        file.write_all(&vec![0; gap])?;
        file.write_all(&self.slots)?;
        Ok(file.flush()?)
    }

    /// How many packets there are.
    pub(crate) fn len(&self) -> usize {
        self.lens.len()
    }

    /// The packet in a slot.
    #[inline]
    pub(crate) fn packet(&self, slot: usize) -> &[u8] {
        &self.slots[slot * SLOT..][..usize::from(self.lens[slot])]
    }

    /// Where a slot begins.
    #[inline]
    pub(crate) fn place(&self, slot: usize) -> *const u8 {
        self.slots.as_ptr().wrapping_add(slot * SLOT)
    }

    /// The flow of that source.
    #[inline]
    pub(crate) const fn flow(&self, source: u32) -> usize {
        (((source - FIRST_SOURCE) >> 8) - self.case.salt) as usize
    }

    /// Whether this is the IP payload of the datagram of that source and identification.
    pub(crate) fn is_right(&self, source: u32, id: u16, payload: &[u8]) -> bool {
        let datagram = usize::from(id) * self.case.flows + self.flow(source);
        let mut right = vec![0; self.case.len()];
        write_payload(&self.case, u32::try_from(datagram).unwrap_or(0), 0, &mut right);
        payload == right
    }

    /// The packet in a slot, to be changed.
    pub(crate) fn packet_mut(&mut self, slot: usize) -> &mut [u8] {
        &mut self.slots[slot * SLOT..][..usize::from(self.lens[slot])]
    }

    /// Writes all packets anew, as a driver would: to every engine they are as far away as to the next.
    pub(crate) fn arrive(&mut self, copy: &[u8]) {
        for (slot, len) in self.lens.iter().enumerate() {
            let range = slot * SLOT..slot * SLOT + usize::from(*len);
            self.slots[range.clone()].copy_from_slice(&copy[range]);
        }
    }

    /// What [`Self::arrive`] writes.
    pub(crate) fn copy(&self) -> Vec<u8> {
        self.slots.to_vec()
    }
}

/// Memory for frames or for what they are put together to, as `shunt defrag` has it for its own: in large pages, unless
/// they were ruled out.
pub(crate) fn pages(len: usize) -> anyhow::Result<Pages> {
    Pages::new(len, len).context("no memory for the trace")
}

/// Where whole datagrams are written: a place for each that is in flight.
#[derive(Debug)]
pub(crate) struct Places {
    bytes: Pages,
    stride: usize,
}

impl Places {
    pub(crate) fn new(case: &Case) -> anyhow::Result<Self> {
        // An odd number of lines, as of slots.
        let stride = ((IP_HEADER + case.len()).div_ceil(LINE) | 1) * LINE;
        Ok(Self { bytes: pages(stride * case.flows)?, stride })
    }

    /// That of a flow.
    #[inline]
    pub(crate) fn of(&mut self, flow: usize) -> &mut [u8] {
        &mut self.bytes[flow * self.stride..][..self.stride]
    }
}

/// The fragments of the datagrams that are in flight together.
fn arrange(case: &Case, window: usize, random: &mut Random, all: &mut Vec<Piece>) {
    let begin = all.len();
    for at in 0..case.pieces() {
        let at = if case.order == Order::Rev { case.pieces() - 1 - at } else { at };
        for flow in 0..case.flows {
            let (Ok(datagram), Ok(at)) = ((window * case.flows + flow).try_into(), at.try_into())
            else {
                continue;
            };
            all.push(Piece { datagram, at });
        }
    }
    if case.order == Order::Rnd {
        random.shuffle(&mut all[begin..]);
    }
}

/// Puts each of so many packets to a ring by chance. Answers their numbers, one ring after the other, and
/// where each ring is.
fn spray(packets: usize, rings: usize) -> (Vec<u32>, Vec<Range<u32>>) {
    let mut random = Random::new(11);
    let mut of = vec![Vec::new(); rings];
    (0u32..).take(packets).for_each(|number| of[random.below(rings)].push(number));
    let mut begin = 0;
    let ranges = of.iter().map(|ring| {
        let end = begin + u32::try_from(ring.len()).unwrap_or(0);
        std::mem::replace(&mut begin, end)..end
    });
    let ranges = ranges.collect();
    (of.concat(), ranges)
}

/// The IP header of a fragment.
pub(crate) fn header(case: &Case, piece: Piece) -> anyhow::Result<[u8; IP_HEADER]> {
    let flow = piece.datagram % u32::try_from(case.flows)?;
    let id = piece.datagram / u32::try_from(case.flows)?;
    let at = usize::from(piece.at) * PIECE;
    let len = PIECE.min(case.len() - at);
    let more = at + len < case.len();
    let mut header = [0; IP_HEADER];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&u16::try_from(IP_HEADER + len)?.to_be_bytes());
    header[4..6].copy_from_slice(&id.to_be_bytes()[2..]);
    let word = u16::from(more) << 13 | u16::try_from(at / 8)?;
    header[6..8].copy_from_slice(&word.to_be_bytes());
    (header[8], header[9]) = (64, 17);
    header[12..16].copy_from_slice(&source(flow + case.salt).to_be_bytes());
    header[16..20].copy_from_slice(&DESTINATION.to_be_bytes());
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    Ok(header)
}

/// 10.9.0.2
pub(crate) const DESTINATION: u32 = 0x0a09_0002;

/// The address of a flow, each in a network of its own, none near the destination's.
const fn source(flow: u32) -> u32 {
    FIRST_SOURCE + (flow << 8)
}

const FIRST_SOURCE: u32 = 0x1400_0001;

/// The Internet checksum of a header whose own is 0.
pub(crate) fn checksum(header: &[u8]) -> u16 {
    let words =
        header.chunks_exact(2).map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u64 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap_or(0)
}

/// Bytes of a datagram's IP payload, from `at` on.
fn write_payload(case: &Case, datagram: u32, at: usize, out: &mut [u8]) {
    let words = (at / 8..).map(|word| word_of(datagram, word).to_le_bytes());
    for (chunk, word) in out.chunks_mut(8).zip(words) {
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
    if at == 0 {
        let len = u16::try_from(case.len()).unwrap_or(0).to_be_bytes();
        out[..4].copy_from_slice(&[0x30, 0, 0x30, 0]);
        out[4..6].copy_from_slice(&len);
        out[6..8].fill(0); // no checksum
    }
}

const fn word_of(datagram: u32, word: usize) -> u64 {
    let seed = (datagram as u64) << 32 | word as u64;
    (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// A generator of numbers that are always the same.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// A number below `limit`.
    #[expect(clippy::cast_possible_truncation, reason = "below the limit")]
    pub(crate) const fn below(&mut self, limit: usize) -> usize {
        ((self.next() as u128 * limit as u128) >> 64) as usize
    }

    /// Puts all into another order.
    pub(crate) fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            let other = self.below(at + 1);
            all.swap(at, other);
        }
    }
}
