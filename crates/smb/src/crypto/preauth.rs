//! What both ends have said before they had keys.

use std::fmt;

use aws_lc_rs::digest;

/// Connection.PreauthIntegrityHashValue and Session.PreauthIntegrityHashValue: a chain of SHA-512 over the messages
/// of NEGOTIATE and SESSION_SETUP (MS-SMB2 3.1.4.4.1, 3.3.5.4, 3.3.5.5). Starts as zeros.
///
/// A connection has one, for its NEGOTIATE request and response. Each session, and each binding of a channel, goes
/// on with a copy of it, for its SESSION_SETUP requests and the responses that are not the last, successful one.
/// Keys are derived with what has come out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PreauthHash([u8; 64]);

impl PreauthHash {
    /// Adds a message, from the first byte of its header, without the four bytes of the transport.
    pub fn update(&mut self, message: &[u8]) {
        self.update_parts(&[message]);
    }

    /// Adds one message that lies in several pieces.
    pub fn update_parts(&mut self, parts: &[&[u8]]) {
        let mut hash = digest::Context::new(&digest::SHA512);
        hash.update(&self.0);
        parts.iter().for_each(|part| hash.update(part));
        self.0.copy_from_slice(hash.finish().as_ref());
    }

    /// The value of the chain.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }
}

impl From<[u8; 64]> for PreauthHash {
    fn from(value: [u8; 64]) -> Self {
        Self(value)
    }
}

impl Default for PreauthHash {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl fmt::Debug for PreauthHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
