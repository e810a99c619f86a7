//! Where the IP packet is in a frame, for each kind of link whose frames hold some.

use super::wrap::Wrap;

const V4: u16 = 0x0800;
const V6: u16 = 0x86dd;
const PPPOE_SESSION: u16 = 0x8864;
const PPP_V4: u16 = 0x0021;
const PPP_V6: u16 = 0x0057;
/// Tags of VLANs: 802.1Q, 802.1ad, and what was used for stacks before that.
const TAGS: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];
const TAGS_MAX: usize = 4;
/// What begins 802.2 headers of IP (RFC 1042), before the type.
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
/// Numbers of IPv6 in front of packets of loopback interfaces: Linux, the BSDs, macOS. IPv4 is 2.
const LOOPBACK_V6: [u32; 4] = [10, 24, 28, 30];

/// A kind of link that we know. The numbers are those of <https://www.tcpdump.org/linktypes.html>.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// 1
    Ethernet,
    /// 113: "any" interface of Linux.
    Cooked,
    /// 276: the same, with the number of the interface.
    Cooked2,
    /// 101, 12, 14, 228, 229: nothing before the IP packet.
    Raw,
    /// 0, 108: loopback of the BSDs, in either order of bytes.
    Loopback,
    /// 9, 50
    Ppp,
}

/// What [`Link::of`] knows, for people.
pub const KNOWN: &str = "Ethernet (1), Linux cooked (113, 276), raw IP (12, 14, 101, 228, 229), \
                         loopback (0, 108), PPP (9, 50)";

const TAG_BITS: u32 = 12;
const TAGS_BITS: u32 = TAG_BITS * 4;
const TAGS_MASK: u64 = (1 << TAGS_BITS) - 1;
/// A session that nobody has (RFC 2516 section 4), for frames that claim to be of session 0.
const NO_SESSION: u16 = 0xffff;

/// What of the headers before a packet tells networks apart. Each thing has bits of its own, so no two networks have one
/// name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scope {
    /// From the lowest bit on at most four VLANs, the outermost first, each 12 bits that are not all 0; above them the
    /// session of PPPoE, which is not 0 either. VLAN 0 is none: such a tag has a priority and nothing else.
    ethernet: u64,
    /// What carries the frames: an interface, a tunnel.
    carrier: u64,
}

impl Scope {
    const fn carried_by(carrier: u64) -> Self {
        Self { ethernet: 0, carrier }
    }

    /// The same in a tunnel.
    pub(super) const fn within(self, tunnel: u64) -> Self {
        Self { carrier: tunnel, ..self }
    }

    /// The same behind a tag that the card has taken out of the frame, which was the first. `None`: there are more tags
    /// than we open.
    pub(super) fn behind(self, tag: u16) -> Option<Self> {
        let (tags, id) = (self.ethernet & TAGS_MASK, vlan(tag));
        if id == 0 {
            return Some(self);
        }
        let ethernet = self.ethernet & !TAGS_MASK | tags << TAG_BITS & TAGS_MASK | id;
        (tags >> (TAGS_BITS - TAG_BITS) == 0).then_some(Self { ethernet, ..self })
    }

    /// All of it.
    pub(super) const fn words(self) -> [u64; 2] {
        [self.ethernet, self.carrier]
    }

    /// All of it for frames of Ethernet, and of links without any header: these have no carrier.
    pub(super) const fn of_ethernet(self) -> u64 {
        self.ethernet
    }
}

fn vlan(tag: u16) -> u64 {
    u64::from(tag & 0xfff)
}

/// An IP packet in a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Where it begins.
    pub(super) at: usize,
    /// Which network it is of.
    pub(super) scope: Scope,
    /// Headers before it that depend on its length, from the outermost.
    pub(super) wraps: Vec<Wrap>,
}

impl Link {
    /// The kind with this number.
    #[must_use]
    pub const fn of(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Ethernet,
            113 => Self::Cooked,
            276 => Self::Cooked2,
            12 | 14 | 101 | 228 | 229 => Self::Raw,
            0 | 108 => Self::Loopback,
            9 | 50 => Self::Ppp,
            _ => return None,
        })
    }

    /// Where the IP packet in a frame begins, and which network it is of, if there is one: as [`Self::locate`] says, which
    /// is asked only where there is more before it than the plain header that nearly all have.
    #[inline]
    pub(super) fn find(self, frame: &[u8]) -> Option<(usize, Scope)> {
        match self.plain(frame) {
            Some(at) => Some((at, Scope::default())),
            None => self.locate(frame).map(|place| (place.at, place.scope)),
        }
    }

    /// Where it begins in a frame of Ethernet that has no tags, or of a link without any header. `None` says nothing.
    #[inline]
    fn plain(self, frame: &[u8]) -> Option<usize> {
        let (at, wanted) = match self {
            Self::Ethernet => match u16_at(frame, 12)? {
                V4 => (14, 4),
                V6 => (14, 6),
                _ => return None,
            },
            Self::Raw => (0, version(frame, 0).filter(|version| matches!(version, 4 | 6))?),
            _ => return None,
        };
        (version(frame, at)? == wanted).then_some(at)
    }

    /// The IP packet in a frame, if there is one.
    pub(super) fn locate(self, frame: &[u8]) -> Option<Place> {
        match self {
            Self::Ethernet => ethernet(frame, 0),
            Self::Cooked => {
                let scope = Scope::carried_by(u16_at(frame, 0)?.into());
                tagged(frame, u16_at(frame, 14)?, Place { at: 16, scope, ..Place::default() })
            }
            Self::Cooked2 => {
                let interface = u64::from(u16_at(frame, 4)?) << 16 | u64::from(u16_at(frame, 6)?);
                let scope = Scope::carried_by(interface << 3 | u64::from(*frame.get(10)? & 7));
                tagged(frame, u16_at(frame, 0)?, Place { at: 20, scope, ..Place::default() })
            }
            Self::Raw => ip(frame, version(frame, 0)?, Place::default()),
            Self::Loopback => loopback(frame),
            Self::Ppp => {
                // Address and control may be left out (RFC 1661 section 6.6).
                let at = if frame.starts_with(&[0xff, 3]) { 2 } else { 0 };
                ppp(frame, Place { at, ..Place::default() })
            }
        }
    }
}

pub(super) fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*b.get(at..)?.first_chunk()?))
}

/// The version of an IP packet.
pub(super) fn version(b: &[u8], at: usize) -> Option<u8> {
    b.get(at).map(|b| b >> 4)
}

/// An IP packet of that version at the place, if it is one.
pub(super) fn ip(b: &[u8], wanted: u8, place: Place) -> Option<Place> {
    (version(b, place.at) == Some(wanted) && matches!(wanted, 4 | 6)).then_some(place)
}

/// In an Ethernet frame that begins at `at`.
pub(super) fn ethernet(b: &[u8], at: usize) -> Option<Place> {
    let kind = u16_at(b, at + 12)?;
    tagged_ethernet(b, kind, Place { at: at + 14, ..Place::default() })
}

/// Behind a type of Ethernet: where that is small it is the length of what follows.
fn tagged_ethernet(b: &[u8], kind: u16, place: Place) -> Option<Place> {
    let (kind, mut place) = untagged(b, kind, place)?;
    if kind > 1500 || !b.get(place.at..)?.starts_with(&SNAP) {
        return typed(b, kind, place);
    }
    place.wraps.push(Wrap::Snap { at: place.at - 2 });
    let kind = u16_at(b, place.at + 6)?;
    place.at += 8;
    typed(b, kind, place)
}

/// Behind a type of Ethernet that is never a length.
fn tagged(b: &[u8], kind: u16, place: Place) -> Option<Place> {
    let (kind, place) = untagged(b, kind, place)?;
    typed(b, kind, place)
}

fn untagged(b: &[u8], mut kind: u16, mut place: Place) -> Option<(u16, Place)> {
    let mut shift = 0;
    for _ in 0..TAGS_MAX {
        if !TAGS.contains(&kind) {
            break;
        }
        let id = vlan(u16_at(b, place.at)?);
        place.scope.ethernet |= id << shift;
        shift += if id == 0 { 0 } else { TAG_BITS };
        kind = u16_at(b, place.at + 2)?;
        place.at += 4;
    }
    Some((kind, place))
}

fn typed(b: &[u8], kind: u16, mut place: Place) -> Option<Place> {
    match kind {
        V4 => ip(b, 4, place),
        V6 => ip(b, 6, place),
        PPPOE_SESSION => {
            // RFC 2516 section 4: version and type, code 0, session, length.
            if u16_at(b, place.at)? != 0x1100 {
                return None;
            }
            let session = Some(u16_at(b, place.at + 2)?).filter(|session| *session != 0);
            place.scope.ethernet |= u64::from(session.unwrap_or(NO_SESSION)) << TAGS_BITS;
            place.wraps.push(Wrap::Pppoe { at: place.at });
            place.at += 6;
            ppp(b, place)
        }
        _ => None,
    }
}

fn ppp(b: &[u8], mut place: Place) -> Option<Place> {
    let first = *b.get(place.at)?;
    // The first byte of a protocol may be left out if it is 0: then the second one, which is odd, comes.
    let protocol = if first & 1 == 1 { u16::from(first) } else { u16_at(b, place.at)? };
    place.at += if first & 1 == 1 { 1 } else { 2 };
    match protocol {
        PPP_V4 => ip(b, 4, place),
        PPP_V6 => ip(b, 6, place),
        _ => None,
    }
}

fn loopback(b: &[u8]) -> Option<Place> {
    let bytes = *b.first_chunk()?;
    let place = Place { at: 4, ..Place::default() };
    [u32::from_le_bytes(bytes), u32::from_be_bytes(bytes)].into_iter().find_map(|family| {
        match family {
            2 => ip(b, 4, place.clone()),
            _ if LOOPBACK_V6.contains(&family) => ip(b, 6, place.clone()),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests;
