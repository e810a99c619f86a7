//! Encrypted messages (MS-SMB2 2.2.41, 3.1.4.3).

use std::fmt;
use std::ops::Range;
#[expect(clippy::disallowed_types, reason = "a counter that orders nothing needs no loom")]
use std::sync::atomic::{AtomicU64, Ordering};

use aes::{Aes128, Aes256};
use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ccm::Ccm;
use ccm::aead::{AeadInOut, KeyInit};
use ccm::consts::{U11, U16};

use super::{Cipher, SecretKey};
use crate::SessionId;

/// Bytes of an SMB2 TRANSFORM_HEADER.
pub const TRANSFORM_HEADER_LEN: usize = 52;
/// What an encrypted message begins with.
pub const TRANSFORM_ID: [u8; 4] = *b"\xfdSMB";

const TAG: Range<usize> = 4..20;
/// From here to the end the header is authenticated.
const AUTHENTICATED_AT: usize = 20;
const NONCE: Range<usize> = 20..36;
const SIZE: Range<usize> = 36..40;
const FLAGS: Range<usize> = 42..44;
const SESSION: Range<usize> = 44..52;
/// Flags in 3.1.1, EncryptionAlgorithm before: encrypted, with whatever is agreed on.
const ENCRYPTED: u16 = 1;
const GCM_NONCE: usize = 12;
const CCM_NONCE: usize = 11;
/// Messages that one key may encrypt.
const MESSAGES_MAX: u64 = 1 << 63;

/// Why a message cannot be encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// All nonces of this key have been used. The session must end.
    #[error("a key has encrypted all the messages that it may")]
    Exhausted,
    /// There is no room for the header, or the message is longer than 4 GiB.
    #[error("a message of a length that cannot be encrypted")]
    Length,
}

/// Why what came is no encrypted message that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No whole transform header.
    #[error("an encrypted message shorter than its header of {TRANSFORM_HEADER_LEN} bytes")]
    TooShort,
    /// It begins with something else.
    #[error("no encrypted message")]
    NotTransform,
    /// Flags, or the algorithm, that nobody has specified.
    #[error("an encrypted message with flags {0:#06x}")]
    Flags(u16),
    /// The length in the header is not that of the message.
    #[error("an encrypted message said to have {said} bytes that has {there}")]
    Length {
        /// What the header says, bytes.
        said: u32,
        /// What there is, bytes.
        there: usize,
    },
    /// It was changed on the way, or encrypted with another key.
    #[error("an encrypted message with a wrong tag")]
    BadTag,
}

/// What stands before an encrypted message, in the clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformHeader {
    /// Whose keys it is encrypted with.
    pub session: SessionId,
    /// Bytes of the message in the clear, and as well of what follows this header.
    pub original_size: u32,
}

impl TransformHeader {
    /// Reads the header of a message, to learn whose [`Opener`] is to open it. Nothing of it is authenticated yet.
    ///
    /// # Errors
    ///
    /// Anything but [`OpenError::Length`] and [`OpenError::BadTag`], which only [`Opener::open`] finds.
    pub fn parse(frame: &[u8]) -> Result<Self, OpenError> {
        let header = frame.first_chunk().ok_or(OpenError::TooShort)?;
        Self::of(header)
    }

    fn of(header: &[u8; TRANSFORM_HEADER_LEN]) -> Result<Self, OpenError> {
        if header[..TAG.start] != TRANSFORM_ID {
            return Err(OpenError::NotTransform);
        }
        let flags = u16::from_le_bytes(array(&header[FLAGS]));
        if flags != ENCRYPTED {
            return Err(OpenError::Flags(flags));
        }
        Ok(Self {
            session: SessionId(u64::from_le_bytes(array(&header[SESSION]))),
            original_size: u32::from_le_bytes(array(&header[SIZE])),
        })
    }
}

/// The bytes of a field, of which `N` is the length.
fn array<const N: usize>(field: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(field);
    bytes
}

/// An expanded key.
enum Key {
    Gcm(Box<LessSafeKey>),
    Ccm128(Box<Ccm<Aes128, U16, U11>>),
    Ccm256(Box<Ccm<Aes256, U16, U11>>),
}

impl Key {
    /// A key that is too short is taken as if zeros followed, one that is too long up to where it is too long.
    fn new(cipher: Cipher, key: &SecretKey) -> Self {
        let mut bytes = zeroize::Zeroizing::new([0; SecretKey::MAX]);
        bytes[..key.as_bytes().len()].copy_from_slice(key.as_bytes());
        let bytes = &bytes[..cipher.key_len()];
        let gcm = |algorithm| {
            let key = UnboundKey::new(algorithm, bytes).expect("a key as long as the cipher's is");
            Self::Gcm(Box::new(LessSafeKey::new(key)))
        };
        match cipher {
            Cipher::Aes128Gcm => gcm(&AES_128_GCM),
            Cipher::Aes256Gcm => gcm(&AES_256_GCM),
            Cipher::Aes128Ccm => {
                Self::Ccm128(Box::new(Ccm::new_from_slice(bytes).expect("16 bytes are a key")))
            }
            Cipher::Aes256Ccm => {
                Self::Ccm256(Box::new(Ccm::new_from_slice(bytes).expect("32 bytes are a key")))
            }
        }
    }

    /// Encrypts in place. `None`: too long.
    fn seal(&self, nonce: &[u8; 16], aad: &[u8], message: &mut [u8]) -> Option<[u8; 16]> {
        match self {
            Self::Gcm(key) => {
                let nonce = Nonce::assume_unique_for_key(array::<GCM_NONCE>(&nonce[..GCM_NONCE]));
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(aad), message).ok()?;
                Some(array(tag.as_ref()))
            }
            Self::Ccm128(key) => {
                let nonce = array::<CCM_NONCE>(&nonce[..CCM_NONCE]).into();
                key.encrypt_inout_detached(&nonce, aad, message.into()).ok().map(|tag| tag.0)
            }
            Self::Ccm256(key) => {
                let nonce = array::<CCM_NONCE>(&nonce[..CCM_NONCE]).into();
                key.encrypt_inout_detached(&nonce, aad, message.into()).ok().map(|tag| tag.0)
            }
        }
    }

    /// Decrypts in place. `None`: the tag is another's.
    fn open(&self, nonce: &[u8; 16], aad: &[u8], tag: &[u8; 16], message: &mut [u8]) -> Option<()> {
        match self {
            Self::Gcm(key) => {
                let nonce = Nonce::assume_unique_for_key(array::<GCM_NONCE>(&nonce[..GCM_NONCE]));
                key.open_in_place_separate_tag(nonce, Aad::from(aad), tag, message).ok()?;
                Some(())
            }
            Self::Ccm128(key) => {
                let nonce = array::<CCM_NONCE>(&nonce[..CCM_NONCE]).into();
                key.decrypt_inout_detached(&nonce, aad, message.into(), &(*tag).into()).ok()
            }
            Self::Ccm256(key) => {
                let nonce = array::<CCM_NONCE>(&nonce[..CCM_NONCE]).into();
                key.decrypt_inout_detached(&nonce, aad, message.into(), &(*tag).into()).ok()
            }
        }
    }
}

/// Encrypts what one end of a session says. All channels of the session share it.
///
/// The nonce is a counter, so that none comes twice with a key; it is taken with one atomic addition.
pub struct Sealer {
    key: Key,
    cipher: Cipher,
    session: SessionId,
    used: Counter,
}

#[expect(clippy::disallowed_types, reason = "a counter that orders nothing needs no loom")]
type Counter = AtomicU64;

impl Sealer {
    /// Encrypts with this key, as long as the cipher's keys are. For each key there must be one `Sealer` only, as it
    /// is what keeps nonces apart.
    #[must_use]
    pub fn new(cipher: Cipher, key: &SecretKey, session: SessionId) -> Self {
        Self { key: Key::new(cipher, key), cipher, session, used: Counter::new(0) }
    }

    /// The cipher that it uses.
    #[must_use]
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Encrypts in place a message, or a compound of them, that begins at byte [`TRANSFORM_HEADER_LEN`] of `frame`
    /// and ends with it; writes the header before it.
    ///
    /// # Errors
    ///
    /// [`SealError`], and the message is as it was.
    pub fn seal(&self, frame: &mut [u8]) -> Result<(), SealError> {
        let (header, message) = frame.split_first_chunk_mut().ok_or(SealError::Length)?;
        self.seal_parts(header, message)
    }

    /// [`Sealer::seal`] for a header that does not lie before its message.
    ///
    /// # Errors
    ///
    /// [`SealError`], and the message is as it was.
    pub fn seal_parts(
        &self,
        header: &mut [u8; TRANSFORM_HEADER_LEN],
        message: &mut [u8],
    ) -> Result<(), SealError> {
        let size = u32::try_from(message.len()).map_err(|_| SealError::Length)?;
        // Relaxed: only that no two threads get the same number matters.
        let number = self.used.fetch_add(1, Ordering::Relaxed);
        if number >= MESSAGES_MAX {
            // So that it never wraps, however many still try.
            self.used.store(MESSAGES_MAX, Ordering::Relaxed);
            return Err(SealError::Exhausted);
        }
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        header.fill(0);
        header[..TAG.start].copy_from_slice(&TRANSFORM_ID);
        header[NONCE].copy_from_slice(&nonce);
        header[SIZE].copy_from_slice(&size.to_le_bytes());
        header[FLAGS].copy_from_slice(&ENCRYPTED.to_le_bytes());
        header[SESSION].copy_from_slice(&self.session.0.to_le_bytes());
        let tag = self.key.seal(&nonce, &header[AUTHENTICATED_AT..], message);
        header[TAG].copy_from_slice(&tag.ok_or(SealError::Length)?);
        Ok(())
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealer({:?}, {:?})", self.cipher, self.session)
    }
}

/// Decrypts what the other end of a session says. All channels of the session share it.
pub struct Opener {
    key: Key,
    cipher: Cipher,
}

impl Opener {
    /// Decrypts with this key, as long as the cipher's keys are.
    #[must_use]
    pub fn new(cipher: Cipher, key: &SecretKey) -> Self {
        Self { key: Key::new(cipher, key), cipher }
    }

    /// Decrypts in place a message with its transform header, and tells where in `frame` it is. Which session it
    /// is of tells [`TransformHeader::parse`].
    ///
    /// # Errors
    ///
    /// [`OpenError`]. After [`OpenError::BadTag`] what lies behind the header is undefined and must not be used.
    pub fn open(&self, frame: &mut [u8]) -> Result<Range<usize>, OpenError> {
        let len = frame.len();
        let (header, message) = frame.split_first_chunk_mut().ok_or(OpenError::TooShort)?;
        self.open_parts(header, message)?;
        Ok(TRANSFORM_HEADER_LEN..len)
    }

    /// [`Opener::open`] for a message that does not lie behind its header.
    ///
    /// # Errors
    ///
    /// [`OpenError`]. After [`OpenError::BadTag`] the message is undefined and must not be used.
    pub fn open_parts(
        &self,
        header: &[u8; TRANSFORM_HEADER_LEN],
        message: &mut [u8],
    ) -> Result<(), OpenError> {
        let said = TransformHeader::of(header)?.original_size;
        if usize::try_from(said) != Ok(message.len()) {
            return Err(OpenError::Length { said, there: message.len() });
        }
        let (nonce, tag) = (array(&header[NONCE]), array(&header[TAG]));
        let aad = &header[AUTHENTICATED_AT..];
        self.key.open(&nonce, aad, &tag, message).ok_or(OpenError::BadTag)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener({:?})", self.cipher)
    }
}

#[cfg(test)]
mod tests;
