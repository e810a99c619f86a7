//! Keys, signatures and encryption (MS-SMB2 3.1.4).
//!
//! What a channel needs is made once, when its keys are known: a [`Signer`] for the channel, a [`Sealer`] and an
//! [`Opener`] for the session. All of them are `Sync`, hold their keys expanded, and take `&self`: channels of one
//! session that run on several cores share them in an `Arc` and take no lock.
//!
//! Messages are signed and encrypted where they lie. A message in one piece is best ([`Signer::sign`],
//! [`Sealer::seal`]); one whose payload lies elsewhere can be signed and verified without a copy, too
//! ([`Signer::signature`], [`Signer::verify`]).

mod cmac;
mod gmac;
mod kdf;
mod preauth;
mod secret;
mod signer;
mod transform;

pub use kdf::{KeySchedule, SessionKeys};
pub use preauth::PreauthHash;
pub use secret::SecretKey;
pub use signer::{
    ABREAST, BadSignature, HEADER_LEN, SIGNATURE_AT, SIGNATURE_LEN, Signer, TooShort,
};
pub use transform::{
    OpenError, Opener, SealError, Sealer, TRANSFORM_HEADER_LEN, TRANSFORM_ID, TransformHeader,
};

/// How messages are encrypted: the identifiers of SMB2_ENCRYPTION_CAPABILITIES (MS-SMB2 2.2.3.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cipher {
    /// AES-128-CCM: the only one of 3.0 and 3.0.2.
    Aes128Ccm = 1,
    /// AES-128-GCM.
    Aes128Gcm = 2,
    /// AES-256-CCM.
    Aes256Ccm = 3,
    /// AES-256-GCM.
    Aes256Gcm = 4,
}

impl Cipher {
    /// Those that a server should prefer first: GCM is many times as fast as CCM.
    pub const BY_SPEED: [Self; 4] =
        [Self::Aes128Gcm, Self::Aes256Gcm, Self::Aes128Ccm, Self::Aes256Ccm];

    /// The cipher that has this identifier on the wire.
    #[must_use]
    pub const fn from_wire(id: u16) -> Option<Self> {
        Some(match id {
            1 => Self::Aes128Ccm,
            2 => Self::Aes128Gcm,
            3 => Self::Aes256Ccm,
            4 => Self::Aes256Gcm,
            _ => return None,
        })
    }

    /// Its identifier on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        self as u16
    }

    /// Bytes of a key.
    #[must_use]
    pub const fn key_len(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes256Ccm | Self::Aes256Gcm => 32,
        }
    }

    /// Bytes of the nonce that are used; the rest of the field is zero (MS-SMB2 2.2.41).
    #[must_use]
    pub const fn nonce_len(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes256Ccm => 11,
            Self::Aes128Gcm | Self::Aes256Gcm => 12,
        }
    }
}

/// How messages are signed: the identifiers of SMB2_SIGNING_CAPABILITIES (MS-SMB2 2.2.3.1.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SigningAlgorithm {
    /// HMAC-SHA256, its first half: 2.0.2 and 2.1.
    HmacSha256 = 0,
    /// AES-128-CMAC: 3.0, 3.0.2, and 3.1.1 where nothing else is negotiated.
    AesCmac = 1,
    /// AES-128-GMAC: 3.1.1 where negotiated.
    AesGmac = 2,
}

impl SigningAlgorithm {
    /// The algorithm that has this identifier on the wire.
    #[must_use]
    pub const fn from_wire(id: u16) -> Option<Self> {
        Some(match id {
            0 => Self::HmacSha256,
            1 => Self::AesCmac,
            2 => Self::AesGmac,
            _ => return None,
        })
    }

    /// Its identifier on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        self as u16
    }
}
