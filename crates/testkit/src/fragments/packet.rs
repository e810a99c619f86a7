//! A packet with each field as it is told, right or wrong.

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A protocol that nobody interprets (RFC 3692).
pub const EXPERIMENT: u8 = 253;
const FRAGMENT: u8 = 44;
/// The identification of a [`Packet::nested`] fragment header.
const NESTED_ID: u32 = 0x909;

/// A fragment, or a whole packet, to be written out by [`Packet::emit`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Which header.
    pub family: Family,
    /// The last byte of the source address, 198.19.0.x or fd00::x.
    pub src: u8,
    /// The last byte of the destination address, likewise.
    pub dst: u8,
    /// Identification; 16 bits of it for IPv4.
    pub id: u32,
    /// What follows the headers.
    pub protocol: u8,
    /// Type of service, or traffic class; its last two bits are ECN.
    pub tos: u8,
    /// Where the payload belongs, bytes: a multiple of 8.
    pub offset: usize,
    /// More fragments follow.
    pub more: bool,
    /// "Don't fragment" (IPv4).
    pub dont_fragment: bool,
    /// Sets the reserved bits of an IPv6 fragment header.
    pub reserved: bool,
    /// Bytes of IPv4 options, a multiple of 4.
    pub options: usize,
    /// Types of the extension headers before the fragment header (IPv6), 8 bytes each.
    pub extensions: Vec<u8>,
    /// A second fragment header inside, which takes 8 of the payload's bytes (IPv6).
    pub nested: bool,
    /// Bytes of the link behind the packet.
    pub padding: usize,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Packet {
    /// A packet of that payload, whole.
    #[must_use]
    pub fn new(family: Family, id: u32, payload: Vec<u8>) -> Self {
        Self {
            family,
            src: 2,
            dst: 1,
            id,
            protocol: EXPERIMENT,
            tos: 0,
            offset: 0,
            more: false,
            dont_fragment: false,
            reserved: false,
            options: 0,
            extensions: Vec::new(),
            nested: false,
            padding: 0,
            payload,
        }
    }

    /// The part `at..end` of this packet's payload, with all of its headers.
    #[must_use]
    pub fn fragment(&self, at: usize, end: usize) -> Self {
        let more = end < self.payload.len();
        let payload = self.payload[at..end].to_vec();
        Self { offset: at, more, payload, ..self.clone() }
    }

    /// Its bytes from the IP header on, with all lengths and checksums right.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut packet = match self.family {
            Family::V4 => self.emit_v4(),
            Family::V6 => self.emit_v6(),
        };
        packet.resize(packet.len() + self.padding, 0xee);
        packet
    }

    /// The bytes of the packet before somebody cut it, if this is its first fragment and `payload` was all.
    #[must_use]
    pub fn emit_whole(&self, payload: &[u8]) -> Vec<u8> {
        let payload = payload.to_vec();
        let whole = Self { offset: 0, more: false, padding: 0, payload, ..self.clone() };
        let mut bytes = whole.emit();
        if self.family == Family::V6 {
            let at = 40 + 8 * self.extensions.len();
            bytes.drain(at..at + 8);
            let next_at = if self.extensions.is_empty() { 6 } else { at - 8 };
            bytes[next_at] = self.protocol;
            let len = word(bytes.len() - 40);
            bytes[4..6].copy_from_slice(&len);
        }
        bytes
    }

    fn emit_v4(&self) -> Vec<u8> {
        let header = 20 + self.options;
        let flags = u16::from(self.dont_fragment) << 14 | u16::from(self.more) << 13;
        let mut b = vec![0x40 | low(header / 4), self.tos];
        b.extend(word(header + self.payload.len()));
        b.extend(word(self.id as usize & 0xffff));
        b.extend((flags | u16::from_be_bytes(word(self.offset / 8))).to_be_bytes());
        b.extend([64, self.protocol, 0, 0, 198, 19, 0, self.src, 198, 19, 0, self.dst]);
        b.resize(header, 1); // no operation
        let sum = checksum(&b);
        b[10..12].copy_from_slice(&sum.to_be_bytes());
        b.extend(&self.payload);
        b
    }

    fn emit_v6(&self) -> Vec<u8> {
        let len = 8 * self.extensions.len() + 8 + self.payload.len();
        let mut next = self.extensions.iter().copied().chain([FRAGMENT]);
        let mut b = vec![0x60 | self.tos >> 4, self.tos << 4, 0, 0];
        b.extend(word(len));
        b.extend([next.next().unwrap_or(FRAGMENT), 64]);
        for host in [self.src, self.dst] {
            b.push(0xfd);
            b.extend([0; 14]);
            b.push(host);
        }
        for next in next {
            b.extend([next, 0, 1, 4, 0, 0, 0, 0]); // padding option
        }
        if self.nested {
            b.extend(fragment_header(FRAGMENT, self, 0, self.id));
            b.extend(fragment_header(self.protocol, self, 1, NESTED_ID));
            b.extend(self.payload.iter().skip(8));
        } else {
            b.extend(fragment_header(self.protocol, self, u16::from(self.more), self.id));
            b.extend(&self.payload);
        }
        b
    }
}

fn fragment_header(next: u8, packet: &Packet, more: u16, id: u32) -> [u8; 8] {
    let reserved = if packet.reserved { 0xff06 } else { 0u16 };
    let [first, bits] = reserved.to_be_bytes();
    let place = u16::from_be_bytes(word(packet.offset)) & 0xfff8 | u16::from(bits) | more;
    let ([a, b], [c, d, e, f]) = (place.to_be_bytes(), id.to_be_bytes());
    [next, first, a, b, c, d, e, f]
}

/// What a field of 16 bits keeps of a number.
fn word(n: usize) -> [u8; 2] {
    [low(n >> 8), low(n)]
}

fn low(n: usize) -> u8 {
    n.to_le_bytes()[0]
}

/// The Internet checksum (RFC 1071): 0 for a header whose checksum is right.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0)));
    let sum = words.fold(0u64, |sum, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    });
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fragment_is_written_as_the_kernel_writes_it() {
        let mut packet = Packet::new(Family::V4, 0x74, vec![b'B'; 8]);
        packet.offset = 16;
        let expected =
            b"\x45\0\0\x1c\0\x74\0\x02\x40\xfd\xed\x45\xc6\x13\0\x02\xc6\x13\0\x01BBBBBBBB";
        assert_eq!(packet.emit(), expected);
        assert_eq!(checksum(&expected[..20]), 0);
    }

    #[test]
    fn extension_headers_point_to_each_other() {
        let mut packet = Packet::new(Family::V6, 7, vec![b'A'; 8]);
        packet.extensions = vec![0, 60];
        packet.more = true;
        let bytes = packet.emit();
        assert_eq!((bytes[6], bytes[40], bytes[48], bytes[56]), (0, 60, 44, EXPERIMENT));
        assert_eq!(bytes[5], 32);
        assert_eq!(&bytes[58..64], &[0, 1, 0, 0, 0, 7]);
    }
}
