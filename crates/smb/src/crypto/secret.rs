//! Bytes that nobody is to see.

use std::fmt;

use zeroize::Zeroize;

/// A key of up to 32 bytes. It is not printed, and it is wiped when it goes.
#[derive(Clone)]
pub struct SecretKey {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl SecretKey {
    /// Bytes of the longest key: what AES-256 takes.
    pub const MAX: usize = 32;
    /// Bytes of a session key, a signing key, and a key of AES-128.
    pub const SHORT: usize = 16;

    /// The key that these bytes are. What is behind byte 32 is not used: no key of SMB is longer.
    #[must_use]
    pub fn new(key: &[u8]) -> Self {
        let len = key.len().min(Self::MAX);
        let mut bytes = [0; Self::MAX];
        bytes[..len].copy_from_slice(&key[..len]);
        Self { bytes, len }
    }

    /// The key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The first 16 bytes, with zeros behind a key that is shorter: Session.SessionKey of a GSS key
    /// (MS-SMB2 3.3.5.5.3).
    #[must_use]
    pub fn first_16(&self) -> &[u8; Self::SHORT] {
        // Bytes behind a shorter key are zero.
        self.bytes.first_chunk().expect("32 bytes are more than 16")
    }
}

impl Drop for SecretKey {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretKey({} bytes)", self.len)
    }
}
