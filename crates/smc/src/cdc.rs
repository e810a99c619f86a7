//! CDC, connection data control: how far each side has written and read (RFC 7609 A.4).

use crate::cursor::Cursor;
use crate::name::Token;

/// Bytes of a CDC message of SMC-R, and what its length field says.
pub const CDC_LEN: usize = 44;
/// First byte of a CDC message, by which it is told from LLC.
pub const CDC_TYPE: u8 = 0xfe;
/// Bytes that must be there; what follows is reserved.
const CDC_USED: usize = 26;
/// Bytes of the header at the start of each DMB of SMC-D; its ring begins behind it.
pub const SMCD_HEADER_LEN: usize = 32;

/// What a producer says of its writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProducerFlags(pub u8);

impl ProducerFlags {
    /// There is more to write than there is room: tell me when you have read.
    pub const WRITE_BLOCKED: Self = Self(0x80);
    /// An urgent byte is on its way, behind what has been written.
    pub const URGENT_PENDING: Self = Self(0x40);
    /// The byte before the producer cursor is urgent.
    pub const URGENT_PRESENT: Self = Self(0x20);
    /// Send me a message with your consumer cursor.
    pub const CURSOR_UPDATE_REQUESTED: Self = Self(0x10);
    /// Sent first on another link, with the last sequence number that was acknowledged on the old one.
    pub const FAILOVER_VALIDATION: Self = Self(0x08);

    /// Those of a message of SMC-R, as it is on the wire.
    #[must_use]
    pub const fn of_message(message: &[u8; CDC_LEN]) -> Self {
        Self(message[24])
    }

    /// Whether all of `flags` are set.
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Sets `flags` or clears them.
    pub const fn set(&mut self, flags: Self, on: bool) {
        self.0 = if on { self.0 | flags.0 } else { self.0 & !flags.0 };
    }
}

/// What one side says of the connection's end. Once said it stays said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateFlags(pub u8);

impl StateFlags {
    /// Nothing will be written any more.
    pub const SENDING_DONE: Self = Self(0x80);
    /// The connection is closed.
    pub const CLOSED: Self = Self(0x40);
    /// The connection ended abnormally.
    pub const ABORTED: Self = Self(0x20);

    /// Whether all of `flags` are set.
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether any of `flags` is set.
    #[must_use]
    pub const fn has_any(self, flags: Self) -> bool {
        self.0 & flags.0 != 0
    }

    /// Both.
    #[must_use]
    pub const fn with(self, flags: Self) -> Self {
        Self(self.0 | flags.0)
    }
}

/// A CDC message of SMC-R. Its cursors are as they came: what they must satisfy is known by the connection
/// that `token` names, which checks them before it believes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cdc {
    /// One more than the last, modulo 2^16; the first is 1.
    pub sequence: u16,
    /// The receiver's connection.
    pub token: Token,
    /// How far the sender has written, in the receiver's buffer.
    pub producer: Cursor,
    /// How far the sender has read, in its own buffer.
    pub consumer: Cursor,
    /// Of the sender's writing.
    pub producer_flags: ProducerFlags,
    /// Of the connection's end.
    pub state_flags: StateFlags,
    /// Two reserved fields before the wraps and what follows the flags, kept as they came.
    pub reserved: CdcReserved,
}

/// Bytes that mean nothing to us (some vendors keep credits in the first of `tail`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CdcReserved {
    /// Before the wrap of the producer cursor.
    pub producer: u16,
    /// Before the wrap of the consumer cursor.
    pub consumer: u16,
    /// At the end.
    pub tail: [u8; 18],
}

/// Bytes that are no CDC message. Linux ignores them, and so may the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Too few bytes.
    #[error("{0} bytes are no CDC message")]
    Short(usize),
    /// The first byte is another.
    #[error("type {0:#04x} is not CDC")]
    Type(u8),
    /// The length field is another.
    #[error("a CDC message of length {0}")]
    Length(u8),
}

impl Cdc {
    /// Reads a message. As Linux does, at least 26 bytes must be there and the length field must say 44;
    /// what is missing reads as zero, what is beyond byte 44 is not looked at.
    ///
    /// # Errors
    ///
    /// It is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        if bytes.len() < CDC_USED {
            return Err(ParseError::Short(bytes.len()));
        }
        let mut b = [0; CDC_LEN];
        let len = bytes.len().min(CDC_LEN);
        b[..len].copy_from_slice(&bytes[..len]);
        if b[0] != CDC_TYPE {
            return Err(ParseError::Type(b[0]));
        }
        if usize::from(b[1]) != CDC_LEN {
            return Err(ParseError::Length(b[1]));
        }
        let u16_at = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        let u32_at = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let mut tail = [0; 18];
        tail.copy_from_slice(&b[CDC_USED..]);
        Ok(Self {
            sequence: u16_at(2),
            token: Token(u32_at(4)),
            producer: Cursor { wrap: u16_at(10), count: u32_at(12) },
            consumer: Cursor { wrap: u16_at(18), count: u32_at(20) },
            producer_flags: ProducerFlags(b[24]),
            state_flags: StateFlags(b[25]),
            reserved: CdcReserved { producer: u16_at(8), consumer: u16_at(16), tail },
        })
    }

    /// The bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; CDC_LEN] {
        let mut b = [0; CDC_LEN];
        (b[0], b[1]) = (CDC_TYPE, 44);
        b[2..4].copy_from_slice(&self.sequence.to_be_bytes());
        b[4..8].copy_from_slice(&self.token.0.to_be_bytes());
        b[8..10].copy_from_slice(&self.reserved.producer.to_be_bytes());
        b[10..12].copy_from_slice(&self.producer.wrap.to_be_bytes());
        b[12..16].copy_from_slice(&self.producer.count.to_be_bytes());
        b[16..18].copy_from_slice(&self.reserved.consumer.to_be_bytes());
        b[18..20].copy_from_slice(&self.consumer.wrap.to_be_bytes());
        b[20..24].copy_from_slice(&self.consumer.count.to_be_bytes());
        (b[24], b[25]) = (self.producer_flags.0, self.state_flags.0);
        b[CDC_USED..].copy_from_slice(&self.reserved.tail);
        b
    }
}

/// The header at the start of a DMB of SMC-D, in the byte order of the host that both sides run on. Linux
/// reads both bytes of flags from the half of the consumer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmcdHeader {
    /// How far the sender has written.
    pub producer: Cursor,
    /// How far the sender has read.
    pub consumer: Cursor,
    /// Of the sender's writing.
    pub producer_flags: ProducerFlags,
    /// Of the connection's end.
    pub state_flags: StateFlags,
}

impl SmcdHeader {
    /// Reads a header out of a private copy.
    ///
    /// # Errors
    ///
    /// The first byte is another.
    pub const fn parse(b: &[u8; SMCD_HEADER_LEN]) -> Result<Self, ParseError> {
        if b[0] != CDC_TYPE {
            return Err(ParseError::Type(b[0]));
        }
        let producer = Self::cursor([b[8], b[9]], [b[10], b[11], b[12], b[13]]);
        let consumer = Self::cursor([b[16], b[17]], [b[18], b[19], b[20], b[21]]);
        let (producer_flags, state_flags) = (ProducerFlags(b[22]), StateFlags(b[23]));
        Ok(Self { producer, consumer, producer_flags, state_flags })
    }

    const fn cursor(wrap: [u8; 2], count: [u8; 4]) -> Cursor {
        Cursor { wrap: u16::from_ne_bytes(wrap), count: u32::from_ne_bytes(count) }
    }

    /// The bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; SMCD_HEADER_LEN] {
        let mut b = [0; SMCD_HEADER_LEN];
        b[0] = CDC_TYPE;
        b[8..10].copy_from_slice(&self.producer.wrap.to_ne_bytes());
        b[10..14].copy_from_slice(&self.producer.count.to_ne_bytes());
        b[16..18].copy_from_slice(&self.consumer.wrap.to_ne_bytes());
        b[18..22].copy_from_slice(&self.consumer.count.to_ne_bytes());
        (b[22], b[23]) = (self.producer_flags.0, self.state_flags.0);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cdc() -> Cdc {
        let producer_flags = ProducerFlags::WRITE_BLOCKED;
        Cdc { sequence: 7, token: Token(9), producer_flags, ..Cdc::default() }
    }

    #[test]
    fn what_linux_ignores_is_an_error() {
        let mut bytes = cdc().emit();
        assert_eq!(Cdc::parse(&bytes[..25]), Err(ParseError::Short(25)));
        assert_eq!(Cdc::parse(&bytes[..26]), Ok(cdc()));
        bytes[1] = 43;
        assert_eq!(Cdc::parse(&bytes), Err(ParseError::Length(43)));
        bytes[0] = 0x21;
        assert_eq!(Cdc::parse(&bytes), Err(ParseError::Type(0x21)));
    }

    #[test]
    fn reserved_bytes_are_kept() {
        let mut bytes = [0x5a; CDC_LEN];
        (bytes[0], bytes[1]) = (CDC_TYPE, 44);
        assert_eq!(Cdc::parse(&bytes).unwrap().emit(), bytes);
    }

    #[test]
    fn flags_of_smcd_are_in_the_half_of_the_consumer() {
        let header = SmcdHeader {
            producer: Cursor { wrap: 1, count: 2 },
            consumer: Cursor { wrap: 3, count: 4 },
            producer_flags: ProducerFlags::URGENT_PENDING,
            state_flags: StateFlags::CLOSED,
        };
        let bytes = header.emit();
        assert_eq!((bytes[14], bytes[15], bytes[22], bytes[23]), (0, 0, 0x40, 0x40));
        assert_eq!(SmcdHeader::parse(&bytes), Ok(header));
        assert!(SmcdHeader::parse(&[0; SMCD_HEADER_LEN]).is_err());
    }
}
