//! What a packet is, and where it stands in its message.

use super::{AETH_BYTES, BTH_BYTES, CNP_BYTES, IMMEDIATE_BYTES, RETH_BYTES};

/// Where in its message a packet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Place {
    /// The first of several.
    First = 0,
    /// Neither first nor last.
    Middle = 1,
    /// The last of several.
    Last = 2,
    /// The whole message.
    Only = 4,
}

impl Place {
    /// Whether it begins a message.
    #[must_use]
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether it ends a message.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Operations of the reliable connection that we speak (IBTA vol. 1, table 38), and the notification of
/// congestion. READ, atomics and invalidation are not among them: SMC never uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// Part of a SEND; with immediate only where it ends.
    Send(Place, bool),
    /// Part of a RDMA WRITE; with immediate only where it ends.
    Write(Place, bool),
    /// Positive or negative acknowledgement.
    Acknowledge,
    /// Congestion notification packet (annex A17.9).
    Cnp,
}

impl Opcode {
    #[inline]
    pub(super) const fn from_byte(byte: u8) -> Option<Self> {
        use Place::{First, Last, Middle, Only};
        Some(match byte {
            0x00 => Self::Send(First, false),
            0x01 => Self::Send(Middle, false),
            0x02 => Self::Send(Last, false),
            0x03 => Self::Send(Last, true),
            0x04 => Self::Send(Only, false),
            0x05 => Self::Send(Only, true),
            0x06 => Self::Write(First, false),
            0x07 => Self::Write(Middle, false),
            0x08 => Self::Write(Last, false),
            0x09 => Self::Write(Last, true),
            0x0a => Self::Write(Only, false),
            0x0b => Self::Write(Only, true),
            0x11 => Self::Acknowledge,
            0x81 => Self::Cnp,
            _ => return None,
        })
    }

    #[inline]
    pub(super) const fn byte(self) -> u8 {
        const fn within(place: Place, immediate: bool) -> u8 {
            // Where a message ends it may have immediate, which is the next number.
            place as u8 + (immediate && place.ends()) as u8
        }
        match self {
            Self::Send(place, immediate) => within(place, immediate),
            Self::Write(place, immediate) => 6 + within(place, immediate),
            Self::Acknowledge => 0x11,
            Self::Cnp => 0x81,
        }
    }

    /// Whether a RETH follows.
    #[must_use]
    pub const fn has_reth(self) -> bool {
        matches!(self, Self::Write(place, _) if place.begins())
    }

    /// Whether immediate follows.
    #[must_use]
    pub const fn has_immediate(self) -> bool {
        matches!(self, Self::Send(place, true) | Self::Write(place, true) if place.ends())
    }

    /// Bytes before the payload.
    #[must_use]
    #[inline]
    pub const fn headers(self) -> usize {
        let reth = if self.has_reth() { RETH_BYTES } else { 0 };
        let immediate = if self.has_immediate() { IMMEDIATE_BYTES } else { 0 };
        let rest = match self {
            Self::Acknowledge => AETH_BYTES,
            Self::Cnp => CNP_BYTES,
            _ => 0,
        };
        BTH_BYTES + reth + immediate + rest
    }
}
