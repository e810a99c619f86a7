//! What comes out: whole datagrams, buffers that are free again, messages to send.

use crate::block::Blocks;
use crate::datagram::{Bytes, Laid, Node, Part, Piece, Store};
use crate::key::Key;
use crate::reason::Reason;

/// Receives what a shard has to say. All calls come from within the call that caused them.
pub trait Sink<B> {
    /// A packet that is no fragment: pass it on. `len` of its bytes belong to it.
    fn whole(&mut self, buffer: B, len: usize);

    /// A datagram is complete. Its buffers are released, one by one, after this returns. Should this panic, it was not
    /// delivered: a datagram that was in progress stays so until its time is up, and of one that was not, all of it having
    /// come in one burst or being one atomic fragment, the next burst, [`Shard::expire`](crate::Shard::expire) or
    /// [`Shard::clear`](crate::Shard::clear) releases the buffers ([`Reason::Cleared`]).
    fn datagram(&mut self, datagram: &Datagram<'_, B>);

    /// The shard does not need this buffer any more. Should this panic where several buffers of a datagram are
    /// released, the others are dropped, and the shard can be used as before.
    fn release(&mut self, buffer: B, why: Released);

    /// A datagram with this buffer will be handed out within the next few packets of a burst, most likely: for whoever copies
    /// payload to prefetch it, as [`Datagram::write_ahead`] says. Of a long datagram its first pieces are told. A hint: what
    /// is told may not be handed out, and what is handed out may not have been told, as where the last two packets of a
    /// datagram come one behind the other. Told by [`Shard::push_burst`](crate::Shard::push_burst) and
    /// [`Shard::push_fragments`](crate::Shard::push_fragments), and by no other call.
    fn soon(&mut self, buffer: &B) {
        let _ = buffer;
    }

    /// The `at`-th packet of a call, from 0, is about to be taken in: for what the caller has to do for each packet anyway,
    /// and better between them than all at once. That is to prefetch the headers of the packets of the next call: a core
    /// waits for a place once ten to twenty lines are on their way, and 32 headers asked for at once are more. Called
    /// once for each packet by [`Shard::push_burst`](crate::Shard::push_burst),
    /// [`Shard::push_steered`](crate::Shard::push_steered) (there not in the order in which they lie) and
    /// [`Shard::push_fragments`](crate::Shard::push_fragments), and by no other call.
    #[inline(always)]
    fn meanwhile(&mut self, at: usize) {
        let _ = at;
    }

    /// A message that a router or host should send, if it sends such messages and has not sent too many.
    fn notice(&mut self, notice: &Notice<'_, B>) {
        let _ = notice;
    }
}

/// Why a buffer is free again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Its datagram was handed out.
    Delivered,
    /// Its payload was small and has been copied.
    Copied,
    /// It was dropped, alone or with its datagram.
    Dropped(Reason),
}

/// An ICMP message (RFC 792, RFC 4443) that a fragment calls for.
#[derive(Clone, Copy, Debug)]
pub struct Notice<'a, B> {
    /// What it says.
    pub kind: NoticeKind,
    /// Which datagram it is about.
    pub key: &'a Key,
    /// The header of its first fragment, or of the fragment that no datagram can have. Of a datagram in
    /// progress, without options, it is made anew, with the right checksum.
    pub header: &'a [u8],
    /// The buffer of that fragment, to quote from; an error if its payload was copied: then it is here.
    pub first: Result<&'a B, &'a [u8]>,
}

/// What a [`Notice`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoticeKind {
    /// Time exceeded, code 1: fragment reassembly time exceeded.
    TimeExceeded,
    /// ICMPv6 parameter problem, code 3: first fragment has incomplete header chain (RFC 7112).
    IncompleteHeader,
    /// Parameter problem, code 0, with a pointer to the length (RFC 8200 section 4.5): a fragment in the
    /// middle is no multiple of 8 bytes.
    BadLength,
    /// Parameter problem, code 0, with a pointer to the fragment offset: longer than 65,535 bytes.
    TooLong,
}

/// The numbers of an ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// Its type: of ICMP (RFC 792) where the key is IPv4's, else of ICMPv6 (RFC 4443).
    pub message: u8,
    /// Its code.
    pub code: u8,
    /// Of a parameter problem: the byte of the packet that is wrong. Else 0.
    pub pointer: u32,
}

impl<B> Notice<'_, B> {
    /// How to say it.
    #[must_use]
    pub fn icmp(&self) -> Icmp {
        let v6 = self.key.is_v6();
        // The fragment header follows the header that is kept; the offset is its third byte. In IPv4's
        // header it is the seventh.
        let behind = u32::try_from(self.header.len()).unwrap_or(0);
        let (message, code, pointer) = match self.kind {
            NoticeKind::TimeExceeded => (if v6 { 3 } else { 11 }, 1, 0),
            NoticeKind::IncompleteHeader => (4, 3, 0),
            NoticeKind::BadLength => (4, 0, 4),
            NoticeKind::TooLong if v6 => (4, 0, behind + 2),
            NoticeKind::TooLong => (12, 0, 6),
        };
        Icmp { message, code, pointer }
    }
}

/// Some bytes of a datagram's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slice<'a, B> {
    /// In the caller's buffer: `len` bytes, `at` bytes behind the beginning of the IP packet in it.
    Held {
        /// The buffer.
        buffer: &'a B,
        /// Offset from the packet's first byte.
        at: usize,
        /// Bytes.
        len: usize,
    },
    /// Copied when they came.
    Copied(&'a [u8]),
}

/// A complete datagram, where its bytes came.
#[derive(Debug)]
pub struct Datagram<'a, B> {
    pub(crate) key: &'a Key,
    pub(crate) header: &'a [u8],
    pub(crate) len: usize,
    pub(crate) first_at: u64,
    pub(crate) payload: Payload<'a, B>,
}

#[derive(Debug)]
pub(crate) enum Payload<'a, B> {
    /// An atomic fragment.
    One {
        buffer: &'a B,
        at: u16,
    },
    /// In one burst: all pieces, in order, each in a buffer.
    Together(&'a [Piece<B>]),
    Many {
        node: &'a Node<B>,
        blocks: &'a Blocks,
    },
}

impl<B> Clone for Payload<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Payload<'_, B> {}

impl<'a, B> Datagram<'a, B> {
    /// Which one it is.
    #[must_use]
    pub const fn key(&self) -> &Key {
        self.key
    }

    /// The IP header to use: the first fragment's, with the length of the whole, no trace of
    /// fragmentation, the congestion marks of all fragments, and a checksum where IPv4 has one.
    #[must_use]
    pub const fn header(&self) -> &'a [u8] {
        self.header
    }

    /// Bytes of payload, those behind [`Self::header`].
    #[must_use]
    pub const fn payload_len(&self) -> usize {
        self.len
    }

    /// Bytes of the whole packet, header and payload.
    #[must_use]
    pub const fn packet_len(&self) -> usize {
        self.header.len() + self.len
    }

    /// Fragments that it came in.
    #[must_use]
    pub const fn fragments(&self) -> u16 {
        match &self.payload {
            Payload::One { .. } => 1,
            #[expect(clippy::cast_possible_truncation, reason = "no more than in a burst")]
            Payload::Together(pieces) => pieces.len() as u16,
            Payload::Many { node, .. } => node.count,
        }
    }

    /// When its first fragment came in (of those that came; not that with the first bytes).
    #[must_use]
    pub const fn first_at(&self) -> u64 {
        self.first_at
    }

    /// The payload, in order.
    #[must_use]
    pub fn slices(&self) -> Slices<'a, B> {
        let mut slices = Slices {
            places: [[].iter(), [].iter()],
            at: [0; 2],
            len: 0,
            pieces: [].iter(),
            last: None,
            payload: self.payload,
            next: 0,
            end: self.len,
        };
        match self.payload {
            Payload::One { buffer, at } => {
                slices.last = Some(Slice::Held { buffer, at: at.into(), len: self.len });
            }
            Payload::Together(pieces) => slices.pieces = pieces.iter(),
            Payload::Many { node, blocks } => {
                let Laid { places, from, len, list, last } = node.laid();
                (slices.places, slices.pieces) = (places.map(<[_]>::iter), list.iter());
                (slices.at, slices.len) = (from.map(usize::from), len.into());
                slices.last = last.map(|last| slice(blocks, last, self.len));
            }
        }
        slices
    }

    /// Writes header and payload to the beginning of `out`; answers how many bytes that is. `bytes`
    /// finds the packet in a buffer, from its IP header on.
    ///
    /// # Errors
    ///
    /// How many bytes of room are needed, if `out` is shorter than that or `bytes` finds fewer than were
    /// handed in.
    pub fn write_to<'b>(
        &self,
        out: &mut [u8],
        bytes: impl Fn(&'b B) -> &'b [u8],
    ) -> Result<usize, usize>
    where
        'a: 'b,
    {
        // Not by `write_ahead`: to find all pieces twice costs a sixth, where nobody prefetches them.
        let (all, mut rest) = self.write_header(out)?;
        for slice in self.slices() {
            let from = match slice {
                Slice::Held { buffer, at, len } => bytes(buffer).get(at..at + len).ok_or(all)?,
                Slice::Copied(bytes) => bytes,
            };
            let (here, behind) = rest.split_at_mut(from.len());
            here.copy_from_slice(from);
            rest = behind;
        }
        Ok(all)
    }

    /// Writes the header to the beginning of `out`; answers how long the whole packet is, and where the rest goes.
    #[inline]
    fn write_header<'o>(&self, out: &'o mut [u8]) -> Result<(usize, &'o mut [u8]), usize> {
        let all = self.packet_len();
        let out = out.get_mut(..all).ok_or(all)?;
        let (head, rest) = out.split_at_mut(self.header.len());
        head.copy_from_slice(self.header);
        Ok((all, rest))
    }

    /// As [`Self::write_to`], and `ahead` is told of bytes that will be copied soon, four pieces ahead of the copy. Whoever can
    /// prefetches them, best into the second cache: what a network card has written lies far away, and a core that asks for a
    /// piece only when it copies it waits for the first lines of each. [`Sink::soon`] has the first pieces come early too. With
    /// both, packets that lie in memory are put together in 0.59 to 0.94 of the time that a bare copy of them takes, with up to
    /// 1000 datagrams in progress (`bench/record/2026-12-01-frag.txt`); of what is in the caches already nothing is gained.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn write_ahead<'b>(
        &self,
        out: &mut [u8],
        bytes: impl Fn(&'b B) -> &'b [u8],
        ahead: impl Fn(&'b [u8]),
    ) -> Result<usize, usize>
    where
        'a: 'b,
    {
        let (all, mut rest) = self.write_header(out)?;
        let find = |slice: Slice<'a, B>| match slice {
            Slice::Held { buffer, at, len } => bytes(buffer).get(at..at + len),
            Slice::Copied(bytes) => Some(bytes),
        };
        let mut soon = self.slices().filter_map(find);
        soon.by_ref().take(AHEAD).for_each(&ahead);
        for slice in self.slices() {
            let from = find(slice).ok_or(all)?;
            soon.next().into_iter().for_each(&ahead);
            let (here, behind) = rest.split_at_mut(from.len());
            here.copy_from_slice(from);
            rest = behind;
        }
        Ok(all)
    }
}

/// Pieces that are told ahead of the one that is copied.
pub(crate) const AHEAD: usize = 4;

/// The payload of a [`Datagram`], in order.
#[derive(Debug)]
pub struct Slices<'a, B> {
    /// Pieces of one length, each in a buffer: those and then those.
    places: [std::slice::Iter<'a, Option<B>>; 2],
    /// Where the next of those begins in its packet, and those behind it; and the length.
    at: [usize; 2],
    len: usize,
    pieces: std::slice::Iter<'a, Piece<B>>,
    /// What comes behind those.
    last: Option<Slice<'a, B>>,
    payload: Payload<'a, B>,
    /// Where the next begins of pieces that are found by a map.
    next: usize,
    /// Bytes of payload; what lies behind does not count.
    end: usize,
}

impl<'a, B> Slices<'a, B> {
    /// A piece that is copied, or cut out of a fragment, or cut by the end.
    fn unusual(&self, part: Part<'a, B>) -> Option<Slice<'a, B>> {
        let Payload::Many { blocks, .. } = self.payload else { return None };
        (usize::from(part.offset) < self.end).then(|| slice(blocks, part, self.end))
    }

    /// What comes behind the list: the last piece, or all pieces if there is none.
    fn behind(&mut self) -> Option<Slice<'a, B>> {
        let Payload::Many { node, .. } = self.payload else { return self.last.take() };
        if self.last.is_some() || self.next >= self.end {
            return self.last.take();
        }
        let part = node.mapped(u32::try_from(self.next).ok()?)?;
        self.next = part.end() as usize;
        self.unusual(part)
    }
}

impl<'a, B> Iterator for Slices<'a, B> {
    type Item = Slice<'a, B>;

    #[inline]
    fn next(&mut self) -> Option<Slice<'a, B>> {
        let [near, far] = &mut self.places;
        if let Some(place) = near.next().or_else(|| far.next()) {
            let [at, others] = self.at;
            self.at[0] = others;
            return place.as_ref().map(|buffer| Slice::Held { buffer, at, len: self.len });
        }
        let Some(piece) = self.pieces.next() else { return self.behind() };
        match &piece.store {
            Store::Held(buffer) if piece.end() as usize <= self.end => {
                let (at, len) = (usize::from(piece.at), usize::from(piece.len));
                Some(Slice::Held { buffer, at, len })
            }
            _ => self.unusual(Part::of(piece)),
        }
    }
}

/// Some bytes as a slice, cut at the end of the payload.
#[inline]
pub(crate) fn slice<'a, B>(blocks: &'a Blocks, part: Part<'a, B>, end: usize) -> Slice<'a, B> {
    let len = usize::from(part.len).min(end - usize::from(part.offset));
    match part.bytes {
        Bytes::Held(buffer) => {
            Slice::Held { buffer, at: usize::from(part.at) + usize::from(part.skipped), len }
        }
        // In a block `at` counts from what was copied.
        Bytes::Copied { block, at } => Slice::Copied(blocks.bytes(block, at + part.skipped, len)),
        Bytes::Nowhere => Slice::Copied(&[]),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_numbers_of_their_family() {
        let (v4, v6) = (Key::v4(1, 2, 3, 17, 0), Key::v6([1; 2], [2; 2], 3, 0));
        let of = |kind, key, header: &[u8]| {
            let Icmp { message, code, pointer } =
                Notice { kind, key, header, first: Ok(&0u32) }.icmp();
            (message, code, pointer)
        };
        assert_eq!(of(NoticeKind::TimeExceeded, &v4, &[0; 20]), (11, 1, 0));
        assert_eq!(of(NoticeKind::TimeExceeded, &v6, &[0; 40]), (3, 1, 0));
        assert_eq!(of(NoticeKind::IncompleteHeader, &v6, &[0; 40]), (4, 3, 0));
        assert_eq!(of(NoticeKind::BadLength, &v6, &[0; 40]), (4, 0, 4), "the payload's length");
        assert_eq!(of(NoticeKind::TooLong, &v6, &[0; 48]), (4, 0, 50), "behind the extensions");
        assert_eq!(of(NoticeKind::TooLong, &v4, &[0; 60]), (12, 0, 6));
    }
}
