//! Where the inner IP packet is in one that carries another: IP in IP, GRE, VXLAN, GTP-U.

use frag::wire::protocol;

use super::link::{Place, ethernet, ip, u16_at, version};
use super::wrap::Wrap;

const IP_IN_IP: u8 = 4;
const V6_IN_IP: u8 = 41;
const GRE: u8 = 47;

const VXLAN_PORT: u16 = 4789;
const GTP_PORT: u16 = 2152;
/// Names for these two; the others are named by their protocol.
const VXLAN: u8 = 1;
const GTP: u8 = 2;

const GRE_CHECKSUM: u16 = 0x8000;
const GRE_KEY: u16 = 0x2000;
const GRE_SEQUENCE: u16 = 0x1000;
/// Routing (RFC 1701), which nobody sends, recursion and version: then it is something else.
const GRE_OTHER: u16 = 0x4f87;
const GRE_V4: u16 = 0x0800;
const GRE_V6: u16 = 0x86dd;
const GRE_ETHERNET: u16 = 0x6558;

/// Extension headers of IPv6 that are passed.
const EXTENSIONS_MAX: usize = 16;
const GTP_EXTENSIONS_MAX: usize = 16;

/// Names a tunnel: whoever uses one pair of addresses may have several, and their packets never meet. A number that is
/// not there is none of those that may be.
fn name(kind: u8, number: Option<u32>) -> u64 {
    u64::from(kind) << 33 | number.map_or(0, |number| 1 << 32 | u64::from(number))
}

/// The packet inside of the whole IP packet at `at`, with which `b` ends.
pub(super) fn open(b: &[u8], at: usize) -> Option<Place> {
    let (protocol, inner) = payload(b, at)?;
    let mut place = match protocol {
        IP_IN_IP => bare(b, 4, inner, protocol),
        V6_IN_IP => bare(b, 6, inner, protocol),
        GRE => gre(b, inner),
        protocol::UDP => udp(b, inner, at),
        _ => None,
    }?;
    place.wraps.insert(0, Wrap::Ip { at });
    Some(place)
}

/// A packet of that version with nothing between it and the one around it.
fn bare(b: &[u8], wanted: u8, at: usize, protocol: u8) -> Option<Place> {
    let inner = ip(b, wanted, Place { at, ..Place::default() })?;
    Some(within(Vec::new(), name(protocol, None), inner))
}

/// The protocol of a packet's payload and where that begins.
fn payload(b: &[u8], at: usize) -> Option<(u8, usize)> {
    if version(b, at)? == 4 {
        let header = usize::from(b[at] & 15) * 4;
        return Some((*b.get(at + 9)?, at + header));
    }
    let (mut next, mut at) = (*b.get(at + 6)?, at + 40);
    for _ in 0..EXTENSIONS_MAX {
        if !matches!(next, protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION) {
            break;
        }
        let [following, units] = *b.get(at..)?.first_chunk()?;
        next = following;
        at += (usize::from(units) + 1) * 8;
    }
    Some((next, at))
}

/// RFC 2784 and, for the key, RFC 2890.
fn gre(b: &[u8], at: usize) -> Option<Place> {
    let (flags, kind) = (u16_at(b, at)?, u16_at(b, at + 2)?);
    if flags & GRE_OTHER != 0 {
        return None;
    }
    let mut end = at + 4;
    let mut outer = Vec::new();
    if flags & GRE_CHECKSUM != 0 {
        outer.push(Wrap::Gre { at });
        end += 4;
    }
    let mut key = None;
    if flags & GRE_KEY != 0 {
        key = Some(u32_at(b, end)?);
        end += 4;
    }
    if flags & GRE_SEQUENCE != 0 {
        end += 4;
    }
    let inner = Place { at: end, ..Place::default() };
    let inner = match kind {
        GRE_V4 => ip(b, 4, inner),
        GRE_V6 => ip(b, 6, inner),
        GRE_ETHERNET => ethernet(b, end),
        _ => None,
    }?;
    Some(within(outer, name(GRE, key), inner))
}

fn udp(b: &[u8], at: usize, ip_at: usize) -> Option<Place> {
    let inner = at + 8;
    let (outer, tunnel, inner) = match u16_at(b, at + 2)? {
        VXLAN_PORT => vxlan(b, inner)?,
        GTP_PORT => gtp(b, inner)?,
        _ => return None,
    };
    let mut wraps = vec![Wrap::Udp { at, ip: ip_at }];
    wraps.extend(outer);
    Some(within(wraps, tunnel, inner))
}

/// RFC 7348: flags with a bit for a valid network identifier, and that identifier.
fn vxlan(b: &[u8], at: usize) -> Option<(Option<Wrap>, u64, Place)> {
    let (flags, network) = (u32_at(b, at)?, u32_at(b, at + 4)?);
    let inner = ethernet(b, at + 8)?;
    (flags & 0x0800_0000 != 0).then_some((None, name(VXLAN, Some(network >> 8)), inner))
}

/// 3GPP TS 29.281: version 1, a packet of a user (message 255), an identifier of the tunnel.
fn gtp(b: &[u8], at: usize) -> Option<(Option<Wrap>, u64, Place)> {
    let head = u16_at(b, at)?;
    if head & 0xf0ff != 0x30ff {
        return None;
    }
    let tunnel = name(GTP, Some(u32_at(b, at + 4)?));
    let inner = Place { at: gtp_payload(b, at, head)?, ..Place::default() };
    let inner = ip(b, version(b, inner.at)?, inner)?;
    Some((Some(Wrap::Gtp { at }), tunnel, inner))
}

fn gtp_payload(b: &[u8], at: usize, head: u16) -> Option<usize> {
    // Three flags, any of which brings the fields for all.
    if head & 0x0700 == 0 {
        return Some(at + 8);
    }
    let (mut end, mut next) = (at + 12, *b.get(at + 11)?);
    for _ in 0..GTP_EXTENSIONS_MAX {
        if next == 0 || head & 0x0400 == 0 {
            return Some(end);
        }
        let units = usize::from(*b.get(end)?);
        end += units.max(1) * 4;
        next = *b.get(end - 1)?;
    }
    None
}

fn within(mut wraps: Vec<Wrap>, tunnel: u64, inner: Place) -> Place {
    wraps.extend(inner.wraps);
    Place { at: inner.at, scope: inner.scope.within(tunnel), wraps }
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*b.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests;
