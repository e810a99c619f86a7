//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers, as far as fragments need them.

use crate::key::Key;
use crate::reason::Reason;

const V4_HEADER: usize = 20;
const V4_HEADER_LEN: u16 = 20;
const V6_HEADER: usize = 40;
const V6_FRAGMENT_HEADER: usize = 8;
/// Extension headers that are passed before a fragment header; more is no sender's idea of a packet.
const EXTENSIONS_MAX: usize = 16;
const MORE: u16 = 0x2000;
const OFFSET: u16 = 0x1fff;
/// Among the flags, in the seventh byte of an IPv4 header; and in [`Fragment::rest`].
const DONT_FRAGMENT: u8 = 0x40;

/// Protocol numbers of headers (RFC 8200 section 4, IANA).
pub mod protocol {
    /// Hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// Routing header.
    pub const ROUTING: u8 = 43;
    /// Fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Authentication header.
    pub const AH: u8 = 51;
    /// ICMPv6.
    pub const ICMP_V6: u8 = 58;
    /// Destination options.
    pub const DESTINATION: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
    /// Mobility header.
    pub const MOBILITY: u8 = 135;
    /// UDP-Lite.
    pub const UDP_LITE: u8 = 136;
}

/// What a packet is to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// No fragment. So many of its bytes belong to it; what follows is padding of the link.
    Whole(usize),
    /// A fragment, its header checked. May be sent to another core in place of the packet's bytes.
    Fragment(Fragment),
}

/// What a fragment's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Which datagram it belongs to.
    pub key: Key,
    /// Where its payload begins in the datagram's, bytes; a multiple of 8.
    pub offset: u16,
    /// Bytes of payload; not 0.
    pub len: u16,
    /// Where its payload begins in the packet.
    pub payload_at: u16,
    /// Bytes of header that a datagram with this as its first fragment keeps: those before the IPv6
    /// fragment header, or the IPv4 header.
    pub header_len: u16,
    /// Where in the header the type of the next header is, which for IPv6 changes.
    pub next_at: u16,
    /// Protocol of the payload.
    pub protocol: u8,
    /// ECN bits of the header (RFC 3168).
    pub ecn: u8,
    /// More fragments follow.
    pub more: bool,
    /// What else is in the first 20 bytes of an IPv4 header, where the offset is 0: DSCP in bits 0 to 5,
    /// "don't fragment" in bit 6, time to live from bit 7 on. Else 0. With it, the header of a datagram
    /// can be made without another look at the packet, which may be on another core.
    pub rest: u16,
}

impl Fragment {
    /// Of no datagram, with no payload: what [`parse_to`] may write over.
    pub const NONE: Self = Self {
        key: Key { src: [0; 2], dst: [0; 2], id: 0, scope: 0 },
        offset: 0,
        len: 0,
        payload_at: 0,
        header_len: 0,
        next_at: 0,
        protocol: 0,
        ecn: 0,
        more: false,
        rest: 0,
    };

    /// Where its payload ends in the datagram's, bytes.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.offset as u32 + self.len as u32
    }

    /// Whether a header like the first fragment's can be made of what is said here: IPv4 without options.
    #[must_use]
    pub const fn has_plain_header(&self) -> bool {
        // IPv6's is twice as long.
        self.header_len == V4_HEADER_LEN
    }

    /// Whether it is not the first of its datagram, or [`Self::has_plain_header`].
    #[inline(always)]
    pub(crate) const fn has_plain_header_if_first(&self) -> bool {
        (self.offset != 0) | (self.header_len == V4_HEADER_LEN)
    }

    /// A whole datagram with a fragment header (RFC 6946).
    #[must_use]
    pub const fn is_atomic(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

/// Reads the headers of an IP packet. `scope`: see [`Key::scope`].
///
/// # Errors
///
/// Why the packet must be dropped.
#[inline]
pub fn parse(packet: &[u8], scope: u64) -> Result<Packet, Reason> {
    let mut fragment = Fragment::NONE;
    Ok(match parse_to(packet, scope, &mut fragment)? {
        None => Packet::Fragment(fragment),
        Some(len) => Packet::Whole(len),
    })
}

/// [`parse`], which writes what a fragment's header says to where it is needed. So many bytes of a packet
/// that is no fragment; `None`: it is one.
///
/// # Errors
///
/// Why the packet must be dropped. Of a fragment that no datagram can have, `to` says what it says.
#[inline(always)]
pub fn parse_to(packet: &[u8], scope: u64, to: &mut Fragment) -> Result<Option<usize>, Reason> {
    match packet.first().map(|b| b >> 4) {
        Some(4) => parse_v4(packet, scope, to),
        Some(6) => parse_v6(packet, scope, to),
        Some(_) => Err(Reason::BadHeader),
        None => Err(Reason::Truncated),
    }
}

/// Whether the checksum of an IPv4 fragment's header is right (RFC 791 section 3.1), without which no host takes it. Of a
/// packet that is no such fragment nothing is said. [`parse`] does not look: cards do that for most callers. Others count
/// what they leave out by [`Shard::refuse`](crate::Shard::refuse).
#[must_use]
pub fn is_sound(packet: &[u8]) -> bool {
    let Some(head) = packet.first_chunk::<V4_HEADER>() else { return true };
    let len = usize::from(head[0] & 15) * 4;
    let is_fragment = head[0] >> 4 == 4 && u16_at(head, 6) & (MORE | OFFSET) != 0;
    let Some(header) = packet.get(..len).filter(|_| is_fragment) else { return true };
    let words = header.chunks_exact(2).map(|word| u32::from(u16_at(word, 0)));
    let sum = words.sum::<u32>();
    let folded = (sum & 0xffff) + (sum >> 16);
    (folded & 0xffff) + (folded >> 16) == 0xffff
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn address(b: &[u8], at: usize) -> [u64; 2] {
    let word = |at| u64::from(u32_at(b, at)) << 32 | u64::from(u32_at(b, at + 4));
    [word(at), word(at + 8)]
}

#[inline(always)]
fn parse_v4(b: &[u8], scope: u64, to: &mut Fragment) -> Result<Option<usize>, Reason> {
    let Some(head) = b.first_chunk::<V4_HEADER>() else { return Err(Reason::Truncated) };
    let header_len = u16::from(head[0] & 15) * 4;
    let total = u16::from_be_bytes([head[2], head[3]]);
    if usize::from(header_len) < V4_HEADER || total < header_len {
        return Err(Reason::BadHeader);
    }
    if b.len() < usize::from(total) {
        return Err(Reason::Truncated);
    }
    let word = u16::from_be_bytes([head[6], head[7]]);
    if word & (MORE | OFFSET) == 0 {
        return Ok(Some(usize::from(total)));
    }
    let word_at = |at| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let id = u16::from_be_bytes([head[4], head[5]]);
    *to = Fragment {
        key: Key::v4(word_at(12), word_at(16), id, head[9], scope),
        offset: (word & OFFSET) * 8,
        len: total - header_len,
        payload_at: header_len,
        header_len,
        next_at: 9,
        protocol: head[9],
        ecn: head[1] & 3,
        more: word & MORE != 0,
        // Without a branch, which would be as good as chance.
        rest: rest_of(head) * u16::from(word & OFFSET == 0),
    };
    check(to)
}

/// [`Fragment::rest`] of an IPv4 header.
#[inline(always)]
const fn rest_of(head: &[u8; V4_HEADER]) -> u16 {
    (head[1] >> 2) as u16 | (head[6] & DONT_FRAGMENT) as u16 | (head[8] as u16) << 7
}

/// The checks that both families share.
#[inline(always)]
fn check(f: &Fragment) -> Result<Option<usize>, Reason> {
    if f.len == 0 {
        return Err(Reason::Empty);
    }
    if f.more && !f.len.is_multiple_of(8) {
        return Err(Reason::Unaligned);
    }
    // A datagram of 65,535 bytes at most. The header that counts is the first fragment's; this is what
    // no first fragment could mend. Behind a fragment that is not the last there is one byte at least.
    let header = if f.key.is_v6() { 0 } else { 20 };
    if f.end() + u32::from(f.more) + header > 65_535 {
        return Err(Reason::Oversize);
    }
    Ok(None)
}

fn parse_v6(b: &[u8], scope: u64, to: &mut Fragment) -> Result<Option<usize>, Reason> {
    let Some(head) = b.first_chunk::<V6_HEADER>() else { return Err(Reason::Truncated) };
    let len = usize::from(u16_at(head, 4));
    if len == 0 && head[6] == protocol::HOP_BY_HOP {
        // A jumbogram, which cannot be in fragments (RFC 2675 section 3).
        return Ok(Some(b.len()));
    }
    let end = V6_HEADER + len;
    if b.len() < end {
        return Err(Reason::Truncated);
    }
    let b = &b[..end];
    let (mut next, mut next_at, mut at) = (head[6], 6, V6_HEADER);
    for _ in 0..EXTENSIONS_MAX {
        match next {
            protocol::FRAGMENT => break,
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION => {
                let Some(&[following, units]) = b.get(at..).and_then(|b| b.first_chunk()) else {
                    return Err(Reason::Truncated);
                };
                (next, next_at) = (following, at);
                at += (usize::from(units) + 1) * 8;
            }
            _ => return Ok(Some(end)),
        }
    }
    if next != protocol::FRAGMENT {
        return Err(Reason::BadHeader);
    }
    let Some(header) = b.get(at..).and_then(|b| b.first_chunk::<V6_FRAGMENT_HEADER>()) else {
        return Err(Reason::Truncated);
    };
    let word = u16_at(header, 2);
    let (offset, more) = (word & 0xfff8, word & 1 != 0);
    let key = Key::v6(address(head, 8), address(head, 24), u32_at(header, 4), scope);
    let payload_at = at + V6_FRAGMENT_HEADER;
    if offset == 0 && header[0] == protocol::FRAGMENT {
        return Err(Reason::Nested);
    }
    let narrow = |n: usize| u16::try_from(n).map_err(|_| Reason::BadHeader);
    *to = Fragment {
        key,
        offset,
        len: narrow(end - payload_at)?,
        payload_at: narrow(payload_at)?,
        header_len: narrow(at)?,
        next_at: narrow(next_at)?,
        protocol: header[0],
        ecn: head[1] >> 4 & 3,
        more,
        rest: 0,
    };
    check(to)
}

/// Whether the payload of a first fragment holds all headers up to and with that of the transport
/// (RFC 7112 section 5).
#[must_use]
pub fn holds_headers(protocol: u8, payload: &[u8]) -> bool {
    let (mut next, mut at) = (protocol, 0);
    for _ in 0..EXTENSIONS_MAX {
        let unit = match next {
            protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::DESTINATION
            | protocol::MOBILITY => 8,
            protocol::AH => 4,
            _ => return payload.len() >= at + transport_header(next),
        };
        let Some(&[following, units]) = payload.get(at..).and_then(|b| b.first_chunk()) else {
            return false;
        };
        // The length of AH is in words of 4 bytes, less 2 (RFC 4302 section 2.2).
        let extra = if unit == 4 { 2 } else { 1 };
        at += (usize::from(units) + extra) * unit;
        next = following;
    }
    false
}

const fn transport_header(protocol: u8) -> usize {
    match protocol {
        protocol::TCP => 20,
        protocol::SCTP => 12,
        protocol::UDP | protocol::UDP_LITE => 8,
        protocol::ICMP_V6 => 4,
        _ => 0,
    }
}

/// What congestion marks of all fragments make of the datagram's (RFC 3168 section 5.3): `seen` has bit
/// `1 << ecn` for each value. `None`: they contradict each other.
pub(crate) const fn merge_ecn(seen: u8, first: u8) -> Option<u8> {
    const NOT_ECT: u8 = 1;
    const CE: u8 = 8;
    if seen & NOT_ECT != 0 {
        return if seen == NOT_ECT { Some(0) } else { None };
    }
    Some(if seen & CE != 0 { 3 } else { first })
}

/// What makes the header of a whole datagram out of its first fragment's.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    pub(crate) next_at: u16,
    pub(crate) protocol: u8,
    pub(crate) ecn: u8,
    /// Bytes of payload.
    pub(crate) len: u16,
}

/// The IPv4 header without options of that key, with [`Fragment::rest`], "more fragments" if there are,
/// and `len` bytes behind it.
#[inline]
pub(crate) fn plain_header(key: &Key, rest: u16, ecn: u8, more: bool, len: u16) -> [u8; 20] {
    // In words of 32 bits, as the header is drawn in RFC 791; the checksum is of words of 16.
    let [dscp_and_flag, ttl] = [rest & 0x7f, rest >> 7].map(u32::from);
    let tos = (dscp_and_flag << 2 & 0xff) | u32::from(ecn);
    let flags = dscp_and_flag & u32::from(DONT_FRAGMENT) | u32::from(more) << 5;
    let [i0, i1, _, _, protocol, ..] = key.id.to_le_bytes();
    let version_to_len = 0x4500_0000 | tos << 16 | u32::from(V4_HEADER_LEN + len);
    let id_to_offset = u32::from(u16::from_le_bytes([i0, i1])) << 16 | flags << 8;
    let ttl_and_protocol = ttl << 24 | u32::from(protocol) << 16;
    let [source, destination] = [key.src[1], key.dst[1]].map(low);
    let words = [version_to_len, id_to_offset, ttl_and_protocol, source, destination];
    let sum = words.into_iter().map(|word| (word >> 16) + (word & 0xffff)).sum();
    let with_sum = ttl_and_protocol | u32::from(checksum(sum));
    let words = [version_to_len, id_to_offset, with_sum, source, destination];
    let mut header = [0; V4_HEADER];
    for (to, word) in header.chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_be_bytes());
    }
    header
}

/// An IPv4 address of a [`Key`].
#[expect(clippy::cast_possible_truncation, reason = "the low half")]
const fn low(address: u64) -> u32 {
    address as u32
}

/// Writes the header of a whole datagram to `to`, given its first fragment's.
/// Without options [`plain_header`] does it.
#[inline(never)]
pub(crate) fn finish(first: &[u8], with: &Finish, to: &mut Vec<u8>) {
    to.clear();
    if first.first().is_some_and(|b| b >> 4 == 6) {
        to.extend_from_slice(first);
        let extensions = u16::try_from(first.len() - V6_HEADER).unwrap_or(0);
        to[4..6].copy_from_slice(&(extensions + with.len).to_be_bytes());
        to[usize::from(with.next_at)] = with.protocol;
        to[1] = first[1] & !0x30 | with.ecn << 4;
        return;
    }
    let Some((head, options)) = first.split_first_chunk::<V4_HEADER>() else { return };
    let sum = options.chunks_exact(2).map(|pair| u32::from(u16_at(pair, 0))).sum();
    let options_len = u16::try_from(options.len()).unwrap_or(0);
    let finish = Finish { len: with.len + options_len, ..*with };
    to.extend_from_slice(&finish_v4(head, sum, &finish));
    to.extend_from_slice(options);
}

/// The first 20 bytes of the header of a whole IPv4 datagram; `with.len` counts what follows them, and
/// `options` is the sum of the words among that which belong to the header.
#[inline(always)]
fn finish_v4(first: &[u8; V4_HEADER], options: u32, with: &Finish) -> [u8; V4_HEADER] {
    let tos = first[1] & !3 | with.ecn;
    let total = V4_HEADER_LEN + with.len;
    // "Don't fragment" stays as the sender had it.
    let flags = first[6] & DONT_FRAGMENT;
    let mut to = *first;
    to[1] = tos;
    to[2..4].copy_from_slice(&total.to_be_bytes());
    (to[6], to[7]) = (flags, 0);
    // Summed from what is read, not from what was just written, which would have to be waited for.
    let word = |at| u32::from(u16_at(first, at));
    let new = u32::from(u16::from_be_bytes([first[0], tos])) + u32::from(total);
    let old = word(4) + word(8) + word(12) + word(14) + word(16) + word(18);
    let sum = checksum(options + new + old + (u32::from(flags) << 8));
    to[10..12].copy_from_slice(&sum.to_be_bytes());
    to
}

/// The Internet checksum (RFC 1071) of words that add up to `sum`.
fn checksum(sum: u32) -> u16 {
    // At most 2^16 words: twice is enough.
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    #[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
    {
        !(sum as u16)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
