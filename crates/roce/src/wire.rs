//! The transport headers of RoCEv2: BTH, RETH, AETH, ImmDt, CNP (IBTA vol. 1, chapter 9; annex A17).
//!
//! ```text
//! IP | UDP (to 4791) | BTH 12 | RETH 16 | ImmDt 4 | AETH 4 | payload | 0-3 pad | ICRC 4
//!                    '---- each extension where its operation has it ----'
//! ```
//!
//! What stands here begins behind UDP. [`Packet::parse`] takes it with the ICRC, which is checked by
//! [`icrc`](crate::icrc) because it covers the IP header as well.

mod mtu;
mod opcode;

use crate::number::{Psn, Qpn};

pub use mtu::Mtu;
pub use opcode::{Opcode, Place};

/// The UDP port of RoCEv2 (annex A17.3.1, IANA).
pub const UDP_PORT: u16 = 4791;
/// Bytes of the base transport header.
pub const BTH_BYTES: usize = 12;
/// Bytes of the header that says where a RDMA WRITE goes.
pub const RETH_BYTES: usize = 16;
/// Bytes of the header of acknowledgements.
pub const AETH_BYTES: usize = 4;
/// Bytes of immediate.
pub const IMMEDIATE_BYTES: usize = 4;
/// Bytes of the invariant CRC.
pub const ICRC_BYTES: usize = 4;
/// The most bytes that come before the payload.
pub const HEADERS_MAX: usize = BTH_BYTES + RETH_BYTES + IMMEDIATE_BYTES;
/// Reserved bytes of a congestion notification packet (annex A17.9.3).
const CNP_BYTES: usize = 16;
/// The default partition, full member (IBTA vol. 1, 10.9.1).
pub const PKEY_DEFAULT: u16 = 0xffff;

/// The base transport header (IBTA vol. 1, 9.2), without its pad count, which follows from the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// The receiver's completion is worth waking somebody up for.
    pub solicited: bool,
    /// State of path migration, which nobody uses; ignored.
    pub migrated: bool,
    /// Partition.
    pub pkey: u16,
    /// A switch met congestion on the way (forward notification); not covered by the ICRC.
    pub fecn: bool,
    /// Set in notifications of congestion; not covered by the ICRC.
    pub becn: bool,
    /// Whom it is for.
    pub to: Qpn,
    /// The sender wants an acknowledgement.
    pub ack_request: bool,
    /// Its number.
    pub psn: Psn,
}

impl Bth {
    /// With the default partition and no flags.
    #[must_use]
    pub const fn new(opcode: Opcode, to: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            migrated: false,
            pkey: PKEY_DEFAULT,
            fecn: false,
            becn: false,
            to,
            ack_request: false,
            psn,
        }
    }

    /// Its three words.
    #[inline]
    const fn words(&self, pad: u8) -> [u32; BTH_BYTES / 4] {
        let flags = flag(self.solicited, 0x80) | flag(self.migrated, 0x40) | pad << 4;
        let marks = flag(self.fecn, 0x80) | flag(self.becn, 0x40);
        [
            (self.opcode.byte() as u32) << 24 | (flags as u32) << 16 | self.pkey as u32,
            (marks as u32) << 24 | self.to.value(),
            (flag(self.ack_request, 0x80) as u32) << 24 | self.psn.value(),
        ]
    }
}

const fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

/// Where a RDMA WRITE goes (IBTA vol. 1, 9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address as the peer's memory region has it.
    pub address: u64,
    /// Key of that region.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub len: u32,
}

impl Reth {
    #[inline]
    fn bytes(&self) -> [u8; RETH_BYTES] {
        let mut bytes = [0; RETH_BYTES];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    #[inline]
    const fn parse(b: &[u8; RETH_BYTES]) -> Self {
        Self {
            address: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            len: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
        }
    }
}

/// Why the responder refuses a packet (IBTA vol. 1, table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Nak {
    /// A packet is missing: go back to the number of the NAK.
    Sequence = 0,
    /// The request makes no sense here. Fatal.
    InvalidRequest = 1,
    /// Memory that may not be written so. Fatal.
    RemoteAccess = 2,
    /// The responder could not carry it out. Fatal.
    RemoteOperational = 3,
}

/// What an acknowledgement says (IBTA vol. 1, 9.7.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Everything up to its number is there. The credit count, 5 bits; 31: not used.
    Ack(u8),
    /// There is no receive request. Try again after the time of this code, see [`rnr_nanos`].
    Rnr(u8),
    /// Refused.
    Nak(Nak),
}

/// Credits are not used: as every known implementation for which receive requests never run out.
pub const CREDITS_UNUSED: u8 = 31;

impl Syndrome {
    const fn from_byte(byte: u8) -> Option<Self> {
        Some(match (byte >> 5, byte & 31) {
            (0, credits) => Self::Ack(credits),
            (1, timer) => Self::Rnr(timer),
            (3, 0) => Self::Nak(Nak::Sequence),
            (3, 1) => Self::Nak(Nak::InvalidRequest),
            (3, 2) => Self::Nak(Nak::RemoteAccess),
            (3, 3) => Self::Nak(Nak::RemoteOperational),
            _ => return None,
        })
    }

    const fn byte(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 31,
            Self::Rnr(timer) => 0x20 | timer & 31,
            Self::Nak(why) => 0x60 | why as u8,
        }
    }
}

/// Units of 10 microseconds for each RNR timer code (IBTA vol. 1, table 45).
const RNR_UNITS: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// How long a RNR timer code (5 bits) means, nanoseconds: 10 us (1) to 491.52 ms (31), 655.36 ms (0).
#[must_use]
pub const fn rnr_nanos(code: u8) -> u64 {
    RNR_UNITS[(code & 31) as usize] as u64 * 10_000
}

/// The header of acknowledgements (IBTA vol. 1, 9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What it says.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, modulo 2^24.
    pub msn: Psn,
}

impl Aeth {
    const fn bytes(self) -> [u8; AETH_BYTES] {
        let [m2, m1, m0] = self.msn.bytes();
        [self.syndrome.byte(), m2, m1, m0]
    }

    fn parse(b: &[u8; AETH_BYTES]) -> Result<Self, WireError> {
        let syndrome = Syndrome::from_byte(b[0]).ok_or(WireError::Syndrome(b[0]))?;
        Ok(Self { syndrome, msn: Psn::from_bytes([b[1], b[2], b[3]]) })
    }
}

/// Why bytes are no packet that we speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Shorter than its headers, or than its padding.
    #[error("packet is shorter than its headers say")]
    Truncated,
    /// No multiple of 4 bytes.
    #[error("packet is no multiple of 4 bytes")]
    Unaligned,
    /// Longer than any path MTU allows.
    #[error("packet has more than 4096 bytes of payload")]
    Oversize,
    /// An operation that we do not speak, or that does not exist.
    #[error("opcode {0:#04x} is not supported")]
    Opcode(u8),
    /// Transport header version other than 0.
    #[error("transport header version {0} is not 0")]
    Version(u8),
    /// An acknowledgement or a notification has neither payload nor padding.
    #[error("acknowledgement or notification with payload")]
    Payload,
    /// A syndrome that is reserved.
    #[error("syndrome {0:#04x} is reserved")]
    Syndrome(u8),
    /// What is to be written does not fit.
    #[error("no room for the packet")]
    NoRoom,
    /// Header and opcode contradict each other.
    #[error("headers are not those of the opcode")]
    Headers,
}

/// Everything before the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The base header.
    pub bth: Bth,
    /// Where the opcode [has it](Opcode::has_reth).
    pub reth: Option<Reth>,
    /// Where the opcode [has it](Opcode::has_immediate). In the order of the wire: big endian.
    pub immediate: Option<u32>,
    /// In acknowledgements.
    pub aeth: Option<Aeth>,
}

impl Header {
    /// With no extension.
    #[must_use]
    pub const fn new(bth: Bth) -> Self {
        Self { bth, reth: None, immediate: None, aeth: None }
    }

    /// Writes the header of a packet with so many bytes of payload; says how many bytes it takes. The
    /// payload goes behind it; then [`pad`].
    ///
    /// # Errors
    ///
    /// [`WireError::NoRoom`]; [`WireError::Headers`] if extensions are not those of the opcode.
    #[inline]
    pub fn emit(&self, payload_len: usize, to: &mut [u8]) -> Result<usize, WireError> {
        let Self { bth, reth, immediate, aeth } = self;
        let opcode = bth.opcode;
        let fits = reth.is_some() == opcode.has_reth()
            && immediate.is_some() == opcode.has_immediate()
            && aeth.is_some() == matches!(opcode, Opcode::Acknowledge);
        if !fits {
            return Err(WireError::Headers);
        }
        let len = opcode.headers();
        let to = to.get_mut(..len).ok_or(WireError::NoRoom)?;
        // Word by word: bytes that were just put together could not be copied at once.
        let [one, two, three] = bth.words(pad_of(payload_len));
        let mut rest = put(to, one.to_be_bytes())?;
        rest = put(rest, two.to_be_bytes())?;
        rest = put(rest, three.to_be_bytes())?;
        if let Some(reth) = reth {
            rest = put(rest, reth.bytes())?;
        }
        if let Some(immediate) = immediate {
            rest = put(rest, immediate.to_be_bytes())?;
        }
        if let Some(aeth) = aeth {
            rest = put(rest, aeth.bytes())?;
        }
        // The reserved bytes of a notification.
        rest.fill(0);
        Ok(len)
    }
}

#[inline]
fn put<const N: usize>(to: &mut [u8], bytes: [u8; N]) -> Result<&mut [u8], WireError> {
    let (to, rest) = to.split_first_chunk_mut().ok_or(WireError::NoRoom)?;
    *to = bytes;
    Ok(rest)
}

/// Bytes of padding behind so many of payload: 0 to 3.
#[must_use]
#[inline]
pub const fn pad_of(payload_len: usize) -> u8 {
    [0, 3, 2, 1][payload_len % 4]
}

/// Bytes of a packet from BTH to ICRC.
#[must_use]
#[inline]
pub const fn packet_len(opcode: Opcode, payload_len: usize) -> usize {
    opcode.headers() + payload_len + pad_of(payload_len) as usize + ICRC_BYTES
}

/// A packet, its header checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What comes before the payload.
    pub header: Header,
    /// Without padding.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads what is behind UDP, ICRC included. Reserved bits are ignored, as the specification wants;
    /// the ICRC is not looked at.
    ///
    /// # Errors
    ///
    /// Why it must be dropped.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (head, rest) = bytes.split_first_chunk::<BTH_BYTES>().ok_or(WireError::Truncated)?;
        let opcode = Opcode::from_byte(head[0]).ok_or(WireError::Opcode(head[0]))?;
        if head[1] & 15 != 0 {
            return Err(WireError::Version(head[1] & 15));
        }
        if !bytes.len().is_multiple_of(4) {
            return Err(WireError::Unaligned);
        }
        let pad = usize::from(head[1] >> 4 & 3);
        let len = rest.len().checked_sub(pad + ICRC_BYTES).ok_or(WireError::Truncated)?;
        let mut rest = rest.get(..len).ok_or(WireError::Truncated)?;
        let mut header = Header::new(Bth {
            opcode,
            solicited: head[1] & 0x80 != 0,
            migrated: head[1] & 0x40 != 0,
            pkey: u16::from_be_bytes([head[2], head[3]]),
            fecn: head[4] & 0x80 != 0,
            becn: head[4] & 0x40 != 0,
            to: Qpn::from_bytes([head[5], head[6], head[7]]),
            ack_request: head[8] & 0x80 != 0,
            psn: Psn::from_bytes([head[9], head[10], head[11]]),
        });
        if opcode.has_reth() {
            header.reth = Some(Reth::parse(take(&mut rest)?));
        }
        if opcode.has_immediate() {
            header.immediate = Some(u32::from_be_bytes(*take(&mut rest)?));
        }
        match opcode {
            Opcode::Acknowledge => header.aeth = Some(Aeth::parse(take(&mut rest)?)?),
            Opcode::Cnp => _ = take::<CNP_BYTES>(&mut rest)?,
            _ => {}
        }
        let alone = matches!(opcode, Opcode::Acknowledge | Opcode::Cnp);
        if alone && (pad != 0 || !rest.is_empty()) {
            return Err(WireError::Payload);
        }
        if rest.len() > Mtu::B4096.bytes() {
            return Err(WireError::Oversize);
        }
        Ok(Self { header, payload: rest })
    }

    /// Writes the packet up to and with its padding; the ICRC goes behind it. Says how many bytes.
    ///
    /// # Errors
    ///
    /// As [`Header::emit`].
    pub fn emit(&self, to: &mut [u8]) -> Result<usize, WireError> {
        let at = self.header.emit(self.payload.len(), to)?;
        let end = at + self.payload.len();
        to.get_mut(at..end).ok_or(WireError::NoRoom)?.copy_from_slice(self.payload);
        pad(to, end, self.payload.len())
    }
}

/// Writes the padding behind a payload of `payload_len` bytes that ends at `end`; says where it ends.
///
/// # Errors
///
/// [`WireError::NoRoom`].
#[inline]
pub fn pad(to: &mut [u8], end: usize, payload_len: usize) -> Result<usize, WireError> {
    let behind = end + usize::from(pad_of(payload_len));
    to.get_mut(end..behind).ok_or(WireError::NoRoom)?.fill(0);
    Ok(behind)
}

#[inline]
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Result<&'a [u8; N], WireError> {
    let (taken, behind) = rest.split_first_chunk::<N>().ok_or(WireError::Truncated)?;
    *rest = behind;
    Ok(taken)
}

#[cfg(test)]
mod tests;
