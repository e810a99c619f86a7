//! The invariant CRC (IBTA vol. 1, 7.8.1; annex A17.3.3): a CRC-32 over the IP header, UDP, the
//! transport headers, payload and padding, with fields that routers may change read as ones.
//!
//! It covers the IPv4 **identification**, which is neither known before the kernel has sent a packet nor
//! told to who receives from a UDP socket:
//!
//! - *Sending*: Linux numbers packets of an unconnected UDP socket that may not be fragmented (DF) with
//!   0, and the segments of one `UDP_SEGMENT` super-packet with 0, 1, 2, … So the CRC can be computed.
//! - *Receiving*: a CRC is linear. Two packets that differ in the identification alone have CRCs whose
//!   difference is that of the identifications, moved on by as many bytes as follow. [`check`] moves
//!   the difference between the CRC that came and the one for identification 0 back again. What comes
//!   out are 32 bits: the 16 of the identification, and 16 which are zero if the packet is whole.
//!
//! So a check that solves for the identification has the strength of 16 bits: one broken packet in
//! 65,536 passes, where the CRC as such lets one in 2^32 pass. A single wrong bit is always found, unless
//! it is in the identification itself; longer bursts, which the CRC as such would always find, are not.
//! If it is known that the sender counts from 0 ([`Identification::Below`]), strength comes back:
//! 26 bits for segments of super-packets of 64. A raw socket or a packet ring sees the identification,
//! and then the check is exact.

use crate::memory::{Fault, Handle, Memory};
use crate::wire::{BTH_BYTES, UDP_PORT};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The CRC-32 polynomial, the lowest power on top.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// x^0 in that order.
const ONE: u32 = 1 << 31;
const UDP_BYTES: usize = 8;
const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;
/// Where the identification is in the IPv4 header.
const ID_AT: usize = 4;
/// The local routing header, which RoCE does not have, counts as ones.
const LRH_BYTES: usize = 8;
const UDP_PROTOCOL: u8 = 17;
/// "Don't fragment", no offset: all RoCE packets are so.
const DONT_FRAGMENT: u16 = 0x4000;

/// Source and destination of a packet, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// IPv4.
    V4 {
        /// Who sent it.
        src: Ipv4Addr,
        /// For whom it is.
        dst: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Who sent it.
        src: Ipv6Addr,
        /// For whom it is.
        dst: Ipv6Addr,
    },
}

impl Addresses {
    /// `None`: they are of two families.
    #[must_use]
    pub const fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4 { src, dst }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6 { src, dst }),
            _ => None,
        }
    }

    /// Those of the answer.
    #[must_use]
    pub const fn reversed(self) -> Self {
        match self {
            Self::V4 { src, dst } => Self::V4 { src: dst, dst: src },
            Self::V6 { src, dst } => Self::V6 { src: dst, dst: src },
        }
    }

    /// Who sent it.
    #[must_use]
    pub const fn src(self) -> IpAddr {
        match self {
            Self::V4 { src, .. } => IpAddr::V4(src),
            Self::V6 { src, .. } => IpAddr::V6(src),
        }
    }

    /// For whom it is.
    #[must_use]
    pub const fn dst(self) -> IpAddr {
        match self {
            Self::V4 { dst, .. } => IpAddr::V4(dst),
            Self::V6 { dst, .. } => IpAddr::V6(dst),
        }
    }

    /// Whether they are IPv4, which has an identification.
    #[must_use]
    pub const fn is_v4(self) -> bool {
        matches!(self, Self::V4 { .. })
    }
}

/// What the CRC covers of IP and UDP, beside the length, the identification and what is constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// From whom to whom.
    pub addresses: Addresses,
    /// UDP source port. The destination's is 4791.
    pub src_port: u16,
}

/// The CRC of a packet: `transport` is BTH to padding. `identification` is that of IPv4, with DF set;
/// IPv6 has none. Stored [little endian](store).
#[must_use]
pub fn compute(flow: &Flow, identification: u16, transport: &[u8]) -> u32 {
    Last::default().compute(&Nothing, flow, identification, transport)
}

/// No memory, and nobody who sums faster.
struct Nothing;

impl Memory for Nothing {
    fn read(&self, _: Handle, _: u64, _: &mut [u8]) -> Result<(), Fault> {
        Err(Fault)
    }
    fn write(&mut self, _: Handle, _: u64, _: &[u8]) -> Result<(), Fault> {
        Err(Fault)
    }
}

/// Goes on with a CRC over bytes of a packet.
#[inline]
pub(crate) fn go_on(memory: &impl Memory, crc: u32, bytes: &[u8]) -> u32 {
    let (head, body) = bytes.split_at(bytes.len() % SUMMED_BYTES);
    if body.len() < SUMMED_LEAST {
        return by_sixteen(crc, bytes);
    }
    let crc = by_sixteen(crc, head);
    memory.sum(!crc, body).map_or_else(|| by_sixteen(crc, body), |register| !register)
}

/// What [`Memory::sum`] is asked for is a multiple of this, and not so little that asking would take longer.
const SUMMED_BYTES: usize = 64;
const SUMMED_LEAST: usize = 256;

#[inline]
fn by_sixteen(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.is_empty() {
        return crc;
    }
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// The front of the last packet and its CRC: packets of one message, one behind the other, have the same, but
/// for the identification and the packet sequence number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Last {
    /// Whose front it is: of packets of this length that begin so.
    of: Option<(Flow, usize, [u8; STEADY])>,
    crc: u32,
}

impl Last {
    #[inline]
    fn compute(
        &mut self,
        memory: &impl Memory,
        flow: &Flow,
        identification: u16,
        transport: &[u8],
    ) -> u32 {
        let front = self.front_crc(flow, identification, transport, transport.len());
        go_on(memory, front, transport.get(BTH_BYTES..).unwrap_or_default())
    }

    /// The CRC of a packet of `len` bytes, BTH to padding, up to its payload, before which is `head`.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        flow: &Flow,
        identification: u16,
        head: &[u8],
        len: usize,
    ) -> u32 {
        let front = self.front_crc(flow, identification, head, len);
        by_sixteen(front, head.get(BTH_BYTES..).unwrap_or_default())
    }

    /// The CRC of the front of a packet of `len` bytes that begins so.
    #[inline]
    fn front_crc(&mut self, flow: &Flow, identification: u16, begins: &[u8], len: usize) -> u32 {
        // What is too short for a header is no packet, and counts as if zeros followed.
        let mut short = [0; BTH_BYTES];
        let bth = begins.first_chunk().unwrap_or_else(|| {
            short.iter_mut().zip(begins).for_each(|(to, from)| *to = *from);
            &short
        });
        let [.., high, middle, low] = *bth;
        self.steady(flow, bth, len).at(identification, [high, middle, low])
    }

    /// What the CRCs of the fronts of packets of `len` bytes have in common that begin as `bth`, whatever their
    /// numbers.
    #[inline]
    pub(crate) fn steady(&mut self, flow: &Flow, bth: &[u8; BTH_BYTES], len: usize) -> Steady {
        Steady { crc: self.front_crc_of_first(flow, bth, len), has_id: flow.addresses.is_v4() }
    }

    /// That with identification and packet sequence number 0.
    #[inline]
    fn front_crc_of_first(&mut self, flow: &Flow, bth: &[u8; BTH_BYTES], len: usize) -> u32 {
        let [start @ .., _, _, _] = bth;
        // Compared where they are: what was just put together could not be read again at once.
        let is_same = self.of.as_ref().is_some_and(|(its_flow, its_len, its_start)| {
            *its_len == len && its_start == start && its_flow == flow
        });
        if !is_same {
            let (front, bytes) = front(flow, start, len + crate::wire::ICRC_BYTES);
            self.crc = crc32fast::hash(front.get(..bytes).unwrap_or(&front));
            self.of = Some((*flow, len, *start));
        }
        self.crc
    }

    /// As [`seal`].
    #[inline]
    pub(crate) fn seal(
        &mut self,
        flow: &Flow,
        identification: u16,
        packet: &mut [u8],
        len: usize,
    ) -> Option<usize> {
        let (transport, rest) = packet.split_at_mut_checked(len)?;
        *rest.first_chunk_mut()? = store(self.compute(&Nothing, flow, identification, transport));
        Some(len + crate::wire::ICRC_BYTES)
    }
}

/// The CRC of the fronts of packets that differ in their numbers alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steady {
    /// With identification and packet sequence number 0.
    crc: u32,
    /// They have an identification.
    has_id: bool,
}

impl Steady {
    /// That of the one with this identification and these bytes of packet sequence number.
    #[inline]
    pub(crate) fn at(self, identification: u16, psn: [u8; 3]) -> u32 {
        let moved = if self.has_id { identification_crc(identification) } else { 0 };
        let [high, middle, low] = psn.map(usize::from);
        self.crc ^ moved ^ PSN[0][high] ^ PSN[1][middle] ^ PSN[2][low]
    }
}

/// What a packet's CRC is made with, beside its bytes.
pub(crate) struct Seal<'a> {
    /// What the last one began with.
    pub(crate) last: &'a mut Last,
    pub(crate) flow: &'a Flow,
    pub(crate) identification: u16,
}

impl Seal<'_> {
    /// As [`seal`].
    #[inline]
    pub(crate) fn close(&mut self, packet: &mut [u8], len: usize) -> Option<usize> {
        self.last.seal(self.flow, self.identification, packet, len)
    }

    /// As [`Last::begin`].
    #[inline]
    pub(crate) fn begin(&mut self, head: &[u8], len: usize) -> u32 {
        self.last.begin(self.flow, self.identification, head, len)
    }

    /// As [`Last::steady`].
    #[inline]
    pub(crate) fn steady(&mut self, bth: &[u8; BTH_BYTES], len: usize) -> Steady {
        self.last.steady(self.flow, bth, len)
    }
}

/// Which identification a peer's next packet has, most likely: Shunt and others count from 0 in each burst.
///
/// The last one, and [`BURSTS`](Self::BURSTS). It is one number because it is read again right after it was written: what
/// was written as two could not be handed on, and each packet of a run would wait until the payload of the one before is
/// in the cache.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count(u32);

impl Count {
    /// The last 0 was followed by a 1.
    const BURSTS: u32 = 1 << 16;

    const fn last(self) -> u16 {
        let [low, high, ..] = self.0.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    pub(crate) const fn next(self) -> u16 {
        match self.last() {
            0 if self.0 & Self::BURSTS == 0 => 0,
            last => last.wrapping_add(1),
        }
    }

    pub(crate) const fn came(&mut self, identification: u16) {
        let bursts = match self.last() {
            0 if identification == 1 => Self::BURSTS,
            0 => 0,
            _ => self.0 & Self::BURSTS,
        };
        self.0 = bursts | identification as u32;
    }
}

/// What an identification other than 0 changes in the CRC of the front of an IPv4 packet. A CRC is linear: that is
/// the sum of what its bits change.
#[inline]
fn identification_crc(identification: u16) -> u32 {
    let [high, low] = identification.to_be_bytes();
    IDENTIFICATION[0][usize::from(high)] ^ IDENTIFICATION[1][usize::from(low)]
}

/// For each value of either byte: 2 KiB, made by the compiler.
static IDENTIFICATION: [[u32; 256]; 2] = changes(V4_BYTES + UDP_BYTES + BTH_BYTES - ID_AT);

/// The same of the packet sequence number, with which the BTH ends: 3 KiB.
static PSN: [[u32; 256]; 3] = changes(3);

/// What each value of each of `N` bytes in turn, which are zeros as a rule, changes in the CRC; so many bytes before
/// the end is the first of them.
const fn changes<const N: usize>(before_end: usize) -> [[u32; 256]; N] {
    let (mut table, mut byte) = ([[0; 256]; N], 0);
    while byte < N {
        let mut value: u32 = 0;
        while value < 256 {
            // The byte itself, and all that stand behind it.
            let (mut crc, mut bits) = (value, 8 * (before_end - byte));
            while bits > 0 {
                crc = times_x(crc);
                bits -= 1;
            }
            table[byte][value as usize] = crc;
            value += 1;
        }
        byte += 1;
    }
    table
}

/// Writes the CRC of the first `len` bytes of `packet`, which are BTH to padding, behind them.
///
/// Says where the packet ends; `None`: there is no room.
pub fn seal(flow: &Flow, identification: u16, packet: &mut [u8], len: usize) -> Option<usize> {
    Last::default().seal(flow, identification, packet, len)
}

/// As it stands in a packet.
#[must_use]
pub const fn store(crc: u32) -> [u8; 4] {
    crc.to_le_bytes()
}

/// The bytes of BTH up to and with the one that is masked.
const MASKED: usize = 5;
/// Those before the packet sequence number, with which it ends.
const STEADY: usize = BTH_BYTES - 3;
const FRONT_MAX: usize = LRH_BYTES + V6_BYTES + UDP_BYTES + BTH_BYTES;

/// Everything up to the end of the BTH, with identification and packet sequence number 0, and how many bytes.
fn front(flow: &Flow, start: &[u8; STEADY], len: usize) -> ([u8; FRONT_MAX], usize) {
    // What cannot be sent has no CRC that anybody would compare with; it must not panic either.
    let narrow = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_be_bytes();
    let mut front = [0xff; FRONT_MAX];
    let udp_at = match flow.addresses {
        Addresses::V4 { src, dst } => {
            let ip = &mut front[LRH_BYTES..LRH_BYTES + V4_BYTES];
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&narrow(V4_BYTES + UDP_BYTES + len));
            ip[ID_AT..ID_AT + 2].fill(0);
            ip[6..8].copy_from_slice(&DONT_FRAGMENT.to_be_bytes());
            ip[9] = UDP_PROTOCOL;
            ip[12..16].copy_from_slice(&src.octets());
            ip[16..20].copy_from_slice(&dst.octets());
            LRH_BYTES + V4_BYTES
        }
        Addresses::V6 { src, dst } => {
            let ip = &mut front[LRH_BYTES..LRH_BYTES + V6_BYTES];
            ip[0] = 0x6f;
            ip[4..6].copy_from_slice(&narrow(UDP_BYTES + len));
            ip[6] = UDP_PROTOCOL;
            ip[8..24].copy_from_slice(&src.octets());
            ip[24..40].copy_from_slice(&dst.octets());
            LRH_BYTES + V6_BYTES
        }
    };
    let udp = &mut front[udp_at..udp_at + UDP_BYTES];
    udp[..2].copy_from_slice(&flow.src_port.to_be_bytes());
    udp[2..4].copy_from_slice(&UDP_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&narrow(UDP_BYTES + len));
    let bth_at = udp_at + UDP_BYTES;
    let bth = &mut front[bth_at..bth_at + BTH_BYTES];
    bth[..STEADY].copy_from_slice(start);
    bth[MASKED - 1] = 0xff;
    bth[STEADY..].fill(0);
    (front, bth_at + BTH_BYTES)
}

/// What is known of the identification of a packet that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identification {
    /// This one (a raw socket, a packet ring). Exact.
    Known(u16),
    /// Less than this: the sender counts from 0 within each super-packet.
    Below(u16),
    /// Nothing.
    Unknown,
}

impl Identification {
    /// The one to be tried first of a packet that has `likely`, most likely; `is_v4`: there is one at all.
    #[inline]
    pub(crate) fn first_try(self, is_v4: bool, likely: u16) -> u16 {
        match self {
            Self::Known(identification) => identification,
            _ if !is_v4 => 0,
            Self::Below(end) if likely >= end => 0,
            _ => likely,
        }
    }
}

/// The CRC is not that of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the invariant CRC is not that of the packet")]
pub struct Mismatch;

/// The longest packet that can be solved: BTH to padding.
const TRANSPORT_MAX: usize = crate::wire::HEADERS_MAX + 4096;
/// From the identification to the end of the UDP header.
const BEHIND_ID: usize = V4_BYTES - ID_AT + UDP_BYTES;
const STEPS: usize = (TRANSPORT_MAX + BEHIND_ID) / 4 + 1;

/// x^(-32 n) modulo the polynomial, for each length of n words: 4 KiB, made by the compiler.
static BACK: [u32; STEPS] = {
    let mut back = [ONE; STEPS];
    let (mut power, mut step) = (ONE, 0);
    while step < STEPS {
        back[step] = power;
        let mut bit = 0;
        while bit < 32 {
            power = divide_by_x(power);
            bit += 1;
        }
        step += 1;
    }
    back
};

/// Checks a packet, BTH to ICRC. The identification for which the CRC is right; 0 for IPv6.
///
/// # Errors
///
/// [`Mismatch`]: there is none, or not one that is allowed.
pub fn check(flow: &Flow, known: Identification, packet: &[u8]) -> Result<u16, Mismatch> {
    Last::default().check(&Nothing, flow, known, 0, packet)
}

impl Last {
    /// As [`check`]. `likely`: the identification that it has, most likely, which is the faster to be found.
    #[inline]
    pub(crate) fn check(
        &mut self,
        memory: &impl Memory,
        flow: &Flow,
        known: Identification,
        likely: u16,
        packet: &[u8],
    ) -> Result<u16, Mismatch> {
        let (transport, came) = packet.split_last_chunk().ok_or(Mismatch)?;
        let came = u32::from_le_bytes(*came);
        let is_v4 = flow.addresses.is_v4();
        let is_exact = !is_v4 || matches!(known, Identification::Known(_));
        let is_allowed = |identification| match known {
            Identification::Below(end) => identification < end,
            _ => true,
        };
        let tried = known.first_try(is_v4, likely);
        let difference = came ^ self.compute(memory, flow, tried, transport);
        if difference == 0 {
            return Ok(tried);
        }
        if is_exact || !transport.len().is_multiple_of(4) {
            return Err(Mismatch);
        }
        let back = *BACK.get((transport.len() + BEHIND_ID) / 4).ok_or(Mismatch)?;
        // The CRC reads the lowest byte first: identification, flags, fragment offset as they stand.
        let [id_high, id_low, flags_high, flags_low] = multiply(back, difference).to_le_bytes();
        let identification = u16::from_be_bytes([id_high, id_low]) ^ tried;
        let right = is_allowed(identification) && flags_high | flags_low == 0;
        right.then_some(identification).ok_or(Mismatch)
    }
}

const fn times_x(a: u32) -> u32 {
    a >> 1 ^ if a & 1 != 0 { POLYNOMIAL } else { 0 }
}

const fn divide_by_x(a: u32) -> u32 {
    if a & ONE != 0 { (a ^ POLYNOMIAL) << 1 | 1 } else { a << 1 }
}

/// The product of two polynomials modulo that of the CRC.
const fn multiply(a: u32, b: u32) -> u32 {
    let (mut product, mut b, mut bit) = (0, b, 0);
    while bit < 32 {
        // All ones if the coefficient is one: as fast for each input.
        product ^= b & 0u32.wrapping_sub(a >> (31 - bit) & 1);
        b = times_x(b);
        bit += 1;
    }
    product
}

#[cfg(test)]
mod tests;
