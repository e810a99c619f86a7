//! Capture files: classic pcap and pcapng, read and written as streams.
//!
//! Blocks that are no packets pass through as they are, and so do packets that nobody touched. This is
//! our own and not the crate `pcap-file` 2.0, because that refuses packets which were cut by a snap
//! length and takes each pcapng timestamp for nanoseconds, whatever its interface says.

mod read;
mod write;

use std::io;

pub use read::{Interface, Item, Place, Reader};
pub use write::Writer;

/// What we write as the longest packet there may be: what readers of captures accept at most.
pub const SNAPLEN: u32 = 262_144;

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;
const ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const PCAP_MICROS: u32 = 0xa1b2_c3d4;
const PCAP_NANOS: u32 = 0xa1b2_3c4d;
/// By a libpcap that was patched to keep more of each packet.
const PCAP_LONGER: u32 = 0xa1b2_cd34;
/// An option of an interface: bytes of the checksum behind its frames.
const OPTION_FCS: u16 = 13;
/// In the word of a pcap file that has the link type: the length of checksums stands above, in units of 2 bytes.
const FCS_KNOWN: u32 = 1 << 26;
const FCS_AT: u32 = 28;

/// The two kinds of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One link type, no comments; what `tcpdump -w` writes.
    Pcap,
    /// Several interfaces, comments, name tables; what Wireshark writes.
    Pcapng,
}

/// Order of bytes in a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Lowest first.
    Little,
    /// Highest first.
    Big,
}

impl Order {
    pub(super) fn u16(self, b: &[u8], at: usize) -> u16 {
        let bytes = [b[at], b[at + 1]];
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    pub(super) fn u32(self, b: &[u8], at: usize) -> u32 {
        let bytes = [b[at], b[at + 1], b[at + 2], b[at + 3]];
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    pub(super) fn put16(self, n: u16) -> [u8; 2] {
        match self {
            Self::Little => n.to_le_bytes(),
            Self::Big => n.to_be_bytes(),
        }
    }

    pub(super) fn put32(self, n: u32) -> [u8; 4] {
        match self {
            Self::Little => n.to_le_bytes(),
            Self::Big => n.to_be_bytes(),
        }
    }
}

/// When a packet came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Nanoseconds since 1970.
    pub ns: u64,
    /// As it stood in the file, in whatever unit.
    pub stamp: u64,
}

/// A packet, in a file or on its way there.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The interface it came from, in the order of their descriptions.
    pub interface: u32,
    /// When.
    pub time: Time,
    /// Bytes it had on the wire; more than are here if it was cut.
    pub original_len: u32,
    /// From the link's header on.
    pub bytes: &'a [u8],
    /// Comments and the like (pcapng), as they stand.
    pub options: &'a [u8],
    /// The order of bytes in these.
    pub order: Order,
    /// The whole record, if it is to be copied as it stands.
    pub block: Option<&'a [u8]>,
}

/// Where a capture stops making sense. Everything before was read.
#[derive(Debug, thiserror::Error)]
#[error("at byte {at}, after {packets} packets: {why}")]
pub struct Damage {
    /// The first byte of the record that is wrong.
    pub at: u64,
    /// Packets that came before it.
    pub packets: u64,
    /// What is wrong with it.
    pub why: Why,
}

/// What is wrong with a record.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The end of the file came too early.
    #[error("the file ends in the middle of a record, so it was cut off or is still being written")]
    Ends,
    /// A length that cannot be.
    #[error(
        "a record claims to have {0} bytes, so the file was changed on its way here: copy it again, \
         as binary"
    )]
    Length(u32),
    /// The two lengths of a pcapng block differ.
    #[error(
        "a block is {0} bytes long at its beginning and {1} at its end, so the file was changed on its \
         way here: copy it again, as binary"
    )]
    Trailer(u32, u32),
    /// A section in no known order of bytes.
    #[error("a section begins with {0:#010x} where its order of bytes should be")]
    Order(u32),
    /// A packet before the description of where it came from.
    #[error("a packet is of interface {0}, which the file does not describe")]
    Interface(u32),
    /// More interfaces than anybody has.
    #[error(
        "a section describes more than 65536 interfaces, so the file was changed on its way here, or was made \
         to use up memory"
    )]
    Interfaces,
    /// The system could not read on.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
}

#[cfg(test)]
pub(super) mod tests;
