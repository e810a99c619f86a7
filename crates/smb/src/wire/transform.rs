//! What a frame is before it is known to be SMB2: encrypted, compressed, or of a protocol before it
//! (MS-SMB2 2.2.41, 2.2.42, 3.3.5.2).

use std::ops::Range;

use super::BadMessage;
use super::bytes::Fields;
use super::header;
use crate::SessionId;

/// Bytes of an SMB2 TRANSFORM_HEADER.
pub const TRANSFORM_LEN: usize = 52;

/// What an encrypted frame begins with.
pub const PROTOCOL_ID: [u8; 4] = *b"\xfdSMB";

/// The part of the header that is authenticated with the message: all but ProtocolId and Signature
/// (MS-SMB2 3.1.4.3).
pub const AAD: Range<usize> = 20..TRANSFORM_LEN;

/// Flags (3.1.1), or EncryptionAlgorithm (3.0): the message is encrypted.
pub const ENCRYPTED: u16 = 1;

/// What a frame is, by its first four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// 0xfe 'SMB': messages in the clear.
    Smb2,
    /// 0xfd 'SMB': an SMB2 TRANSFORM_HEADER.
    Encrypted,
    /// 0xfc 'SMB': an SMB2 COMPRESSION_TRANSFORM_HEADER.
    Compressed,
    /// 0xff 'SMB': a client that may not know SMB2 yet, see [`super::smb1`].
    Smb1,
}

impl Kind {
    /// Of `frame`; `None`: of nothing known, or less than four bytes.
    #[must_use]
    pub fn of(frame: &[u8]) -> Option<Self> {
        match frame.first_chunk::<4>()? {
            &header::PROTOCOL_ID => Some(Self::Smb2),
            &PROTOCOL_ID => Some(Self::Encrypted),
            b"\xfcSMB" => Some(Self::Compressed),
            b"\xffSMB" => Some(Self::Smb1),
            _ => None,
        }
    }
}

/// An SMB2 TRANSFORM_HEADER.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Transform {
    /// The authentication tag.
    pub signature: [u8; 16],
    /// The nonce: 11 bytes for CCM, 12 for GCM, then zeros.
    pub nonce: [u8; 16],
    /// OriginalMessageSize: bytes that follow.
    pub message_len: u32,
    /// [`ENCRYPTED`].
    pub flags: u16,
    /// Whose key.
    pub session: SessionId,
}

impl Transform {
    /// Reads the header at the beginning of `frame`, of which all must be there.
    ///
    /// # Errors
    ///
    /// [`BadMessage::Truncated`] below 52 bytes, or when fewer follow than it says; [`BadMessage::Protocol`]
    /// when it begins otherwise; [`BadMessage::Value`] when it does not say that it is encrypted.
    pub fn parse(frame: &[u8]) -> Result<Self, BadMessage> {
        let transform = Self::parse_head(frame)?;
        let len = usize::try_from(transform.message_len).map_err(|_| BadMessage::Truncated)?;
        if frame.len() - TRANSFORM_LEN < len {
            return Err(BadMessage::Truncated);
        }
        Ok(transform)
    }

    /// Reads the header, whatever has come of what follows.
    ///
    /// # Errors
    ///
    /// As [`Transform::parse`], but for what follows.
    pub fn parse_head(frame: &[u8]) -> Result<Self, BadMessage> {
        let fields = Fields::at_least(frame, TRANSFORM_LEN)?;
        if fields.chunk(0) != PROTOCOL_ID {
            return Err(BadMessage::Protocol);
        }
        let flags = fields.u16(42);
        if flags != ENCRYPTED {
            return Err(BadMessage::Value);
        }
        Ok(Self {
            signature: fields.chunk(4),
            nonce: fields.chunk(20),
            message_len: fields.u32(36),
            flags,
            session: SessionId(fields.u64(44)),
        })
    }

    /// The header's bytes, of which [`AAD`] are to be authenticated.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; TRANSFORM_LEN] {
        let mut bytes = [0; TRANSFORM_LEN];
        bytes[..4].copy_from_slice(&PROTOCOL_ID);
        bytes[4..20].copy_from_slice(&self.signature);
        bytes[20..36].copy_from_slice(&self.nonce);
        bytes[36..40].copy_from_slice(&self.message_len.to_le_bytes());
        bytes[42..44].copy_from_slice(&self.flags.to_le_bytes());
        bytes[44..].copy_from_slice(&self.session.0.to_le_bytes());
        bytes
    }
}

/// Writes the tag of a message into its header, which begins `frame`. Less than a header is left alone.
pub fn set_signature(frame: &mut [u8], signature: &[u8; 16]) {
    if let Some(to) = frame.get_mut(4..20) {
        to.copy_from_slice(signature);
    }
}
