//! Headers around an IP packet that say how long it is, or have a checksum over it.

use frag::wire::protocol;

use super::link::u16_at;

const V4_HEADER: usize = 20;
const V6_HEADER: usize = 40;
const ADDRESS_BYTES: usize = 16;
const UDP: u8 = 17;
/// Kinds of routing headers: source routes (RFC 5095 has done away with them), Mobile IPv6, segments (RFC 8754).
const SOURCE_ROUTE: u8 = 0;
const HOME_ADDRESS: u8 = 2;
const SEGMENTS: u8 = 4;
const PPPOE_HEADER: usize = 6;
const GTP_HEADER: usize = 8;

/// Such a header, and where in the frame it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrap {
    /// IPv4 or IPv6.
    Ip { at: usize },
    /// UDP in the IP packet at `ip`.
    Udp { at: usize, ip: usize },
    /// GRE with a checksum.
    Gre { at: usize },
    /// GTP version 1.
    Gtp { at: usize },
    /// PPPoE.
    Pppoe { at: usize },
    /// A length in place of Ethernet's type, and 802.2 headers behind it.
    Snap { at: usize },
}

/// The frame would need a length that a header cannot say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Makes headers right for a frame whose end is now elsewhere. `wraps`: from the outermost.
pub(super) fn refit(frame: &mut Vec<u8>, wraps: &[Wrap]) -> Result<(), TooLong> {
    for wrap in wraps.iter().rev() {
        refit_one(frame, *wrap)?;
    }
    Ok(())
}

fn refit_one(frame: &mut Vec<u8>, wrap: Wrap) -> Result<(), TooLong> {
    let end = frame.len();
    match wrap {
        Wrap::Ip { at } => refit_ip(&mut frame[at..]),
        Wrap::Udp { at, ip } => refit_udp(frame, at, ip),
        Wrap::Gre { at } => {
            put(frame, at + 4, 0);
            let sum = sum(0, &frame[at..]);
            put(frame, at + 4, !sum);
            Ok(())
        }
        Wrap::Gtp { at } => put_len(frame, at + 2, end - at - GTP_HEADER),
        Wrap::Pppoe { at } => put_len(frame, at + 4, end - at - PPPOE_HEADER),
        Wrap::Snap { at } => {
            // A length goes to 1500 only; the same packet with a type in its place has no such limit.
            frame.drain(at..at + 8);
            Ok(())
        }
    }
}

fn refit_ip(packet: &mut [u8]) -> Result<(), TooLong> {
    if packet[0] >> 4 == 6 {
        return put_len(packet, 4, packet.len() - V6_HEADER);
    }
    put_len(packet, 2, packet.len())?;
    put(packet, 10, 0);
    let header = V4_HEADER.max(usize::from(packet[0] & 15) * 4);
    let sum = sum(0, &packet[..header]);
    put(packet, 10, !sum);
    Ok(())
}

/// IPv4 does without a checksum. IPv6 needs one, unless the sender did without (RFC 6935).
fn refit_udp(frame: &mut [u8], at: usize, ip: usize) -> Result<(), TooLong> {
    let len = frame.len() - at;
    put_len(frame, at + 4, len)?;
    let had = u16_at(frame, at + 6) != Some(0);
    put(frame, at + 6, 0);
    if frame[ip] >> 4 == 6 && had {
        let source = sum(len as u64 + u64::from(UDP), &frame[ip + 8..ip + 24]);
        let both = sum(source.into(), destination(&frame[ip..at]));
        let sum = !sum(both.into(), &frame[at..]);
        put(frame, at + 6, if sum == 0 { 0xffff } else { sum });
    }
    Ok(())
}

/// Where an IPv6 packet with these headers ends up, which is what checksums are over (RFC 8200 section 8.1): a routing
/// header that is not used up names it.
fn destination(headers: &[u8]) -> &[u8] {
    let (mut next, mut at) = (headers[6], V6_HEADER);
    let mut to = &headers[24..V6_HEADER];
    while let Some([following, units, kind, left]) = headers.get(at..).and_then(<[u8]>::first_chunk)
    {
        if !matches!(next, protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION) {
            break;
        }
        let end = at + (usize::from(*units) + 1) * 8;
        if next == protocol::ROUTING && *left > 0 {
            let named = match *kind {
                SOURCE_ROUTE => end.checked_sub(ADDRESS_BYTES).filter(|last| *last >= at + 8),
                HOME_ADDRESS | SEGMENTS => Some(at + 8),
                _ => None,
            };
            let named = named.filter(|begin| begin + ADDRESS_BYTES <= end);
            to = named.and_then(|begin| headers.get(begin..begin + ADDRESS_BYTES)).unwrap_or(to);
        }
        (next, at) = (*following, end);
    }
    to
}

fn put(b: &mut [u8], at: usize, n: u16) {
    b[at..at + 2].copy_from_slice(&n.to_be_bytes());
}

fn put_len(b: &mut [u8], at: usize, len: usize) -> Result<(), TooLong> {
    put(b, at, u16::try_from(len).map_err(|_| TooLong)?);
    Ok(())
}

/// The sum of RFC 1071, not inverted.
#[expect(clippy::cast_possible_truncation, reason = "folded to 16 bits")]
fn sum(from: u64, bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |b| u64::from(*b) << 8);
    let words = words.iter().map(|word| u64::from(u16::from_be_bytes(*word)));
    let mut sum = from + last + words.sum::<u64>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
