//! Signatures of messages (MS-SMB2 3.1.4.1).

use aws_lc_rs::{constant_time, hmac};

use super::cmac::Cmac;
use super::gmac::Gmac;
use super::{SecretKey, SigningAlgorithm};

/// Bytes of an SMB2 header (MS-SMB2 2.2.1).
pub const HEADER_LEN: usize = 64;
/// Where in the header the signature is.
pub const SIGNATURE_AT: usize = 48;
/// Bytes of a signature.
pub const SIGNATURE_LEN: usize = 16;

const COMMAND_AT: usize = 12;
const CANCEL: u16 = 0x000c;
const FLAGS_AT: usize = 16;
const FLAG_RESPONSE: u32 = 0x0000_0001;
const FLAG_SIGNED: u8 = 0x08;
const MESSAGE_ID_AT: usize = 24;

/// A message that was changed on the way, or was signed with another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message with a wrong signature")]
pub struct BadSignature;

/// A message that has no whole header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message shorter than a header of {HEADER_LEN} bytes")]
pub struct TooShort;

/// Signs and verifies the messages of one channel.
///
/// Each message of a compound is signed for itself, from its header to its padding. With GMAC the message number
/// is the nonce: no two messages of one direction and key may have the same. So interim responses
/// (STATUS_PENDING) and breaks, whose number is not their own, must not be signed; nor does the specification
/// want it (MS-SMB2 3.3.4.1.1).
#[derive(Debug)]
pub struct Signer {
    algorithm: Algorithm,
}

#[derive(Debug)]
enum Algorithm {
    Hmac(Box<hmac::Key>),
    Cmac(Box<Cmac>),
    Gmac(Box<Gmac>),
}

impl Signer {
    /// Signs with this key, of which the first 16 bytes count.
    #[must_use]
    pub fn new(algorithm: SigningAlgorithm, key: &SecretKey) -> Self {
        let key = key.first_16();
        let algorithm = match algorithm {
            SigningAlgorithm::HmacSha256 => {
                Algorithm::Hmac(Box::new(hmac::Key::new(hmac::HMAC_SHA256, key)))
            }
            SigningAlgorithm::AesCmac => Algorithm::Cmac(Box::new(Cmac::new(key))),
            SigningAlgorithm::AesGmac => Algorithm::Gmac(Box::new(Gmac::new(key))),
        };
        Self { algorithm }
    }

    /// The algorithm that it uses.
    #[must_use]
    pub fn algorithm(&self) -> SigningAlgorithm {
        match self.algorithm {
            Algorithm::Hmac(_) => SigningAlgorithm::HmacSha256,
            Algorithm::Cmac(_) => SigningAlgorithm::AesCmac,
            Algorithm::Gmac(_) => SigningAlgorithm::AesGmac,
        }
    }

    /// Signs a message that lies in one piece: sets SMB2_FLAGS_SIGNED and writes the signature.
    ///
    /// # Errors
    ///
    /// [`TooShort`], and nothing is written.
    pub fn sign(&self, message: &mut [u8]) -> Result<(), TooShort> {
        let head = message.first_chunk_mut::<HEADER_LEN>().ok_or(TooShort)?;
        head[FLAGS_AT] |= FLAG_SIGNED;
        head[SIGNATURE_AT..].fill(0);
        let signature = match &self.algorithm {
            // One piece is what GMAC is fastest with.
            Algorithm::Gmac(gmac) => {
                let nonce = nonce(head);
                gmac.tag(nonce, message)
            }
            Algorithm::Hmac(_) | Algorithm::Cmac(_) => self.over(message, &[]),
        };
        message[SIGNATURE_AT..HEADER_LEN].copy_from_slice(&signature);
        Ok(())
    }

    /// Signs a message whose header is here and whose other bytes lie elsewhere: sets SMB2_FLAGS_SIGNED and
    /// writes the signature.
    pub fn sign_parts(&self, header: &mut [u8; HEADER_LEN], rest: &[&[u8]]) {
        header[FLAGS_AT] |= FLAG_SIGNED;
        let signature = self.signature(header, rest);
        header[SIGNATURE_AT..].copy_from_slice(&signature);
    }

    /// The signature of a message, of which the header is the first part and the rest lies where it may. What is
    /// in the field for the signature counts as zero.
    #[must_use]
    pub fn signature(&self, header: &[u8; HEADER_LEN], rest: &[&[u8]]) -> [u8; SIGNATURE_LEN] {
        let mut head = *header;
        head[SIGNATURE_AT..].fill(0);
        self.over(&head, rest)
    }

    /// `first` begins with a header whose signature is zero.
    fn over(&self, first: &[u8], rest: &[&[u8]]) -> [u8; SIGNATURE_LEN] {
        match &self.algorithm {
            Algorithm::Hmac(key) => {
                let mut mac = hmac::Context::with_key(key);
                mac.update(first);
                rest.iter().for_each(|part| mac.update(part));
                let mut signature = [0; SIGNATURE_LEN];
                signature.copy_from_slice(&mac.sign().as_ref()[..SIGNATURE_LEN]);
                signature
            }
            Algorithm::Cmac(cmac) => cmac.tag(first, rest),
            Algorithm::Gmac(gmac) => gmac.tag_parts(nonce(first), first, rest),
        }
    }

    /// Whether a message has the right signature, compared in constant time. Whether it has to have one is the
    /// caller's to know, by its flags.
    ///
    /// # Errors
    ///
    /// [`BadSignature`].
    pub fn verify(&self, header: &[u8; HEADER_LEN], rest: &[&[u8]]) -> Result<(), BadSignature> {
        let signature = self.signature(header, rest);
        constant_time::verify_slices_are_equal(&signature, &header[SIGNATURE_AT..])
            .map_err(|_| BadSignature)
    }

    /// [`Signer::verify`] of a message that lies in one piece.
    ///
    /// # Errors
    ///
    /// [`BadSignature`], as of a message that has no whole header.
    pub fn verify_message(&self, message: &[u8]) -> Result<(), BadSignature> {
        let (header, rest) = message.split_first_chunk().ok_or(BadSignature)?;
        self.verify(header, &[rest])
    }

    /// Whether [`Signer::verify_messages`] takes less time than one message after the other.
    #[must_use]
    pub fn gains_by_many(&self) -> bool {
        matches!(self.algorithm, Algorithm::Cmac(_))
    }

    /// [`Signer::verify_message`] of several, in the order in which they are given. What cannot be done any faster for
    /// one message, since each block of it waits for the one before, is done for up to [`ABREAST`] of them at a time.
    #[must_use]
    pub fn verify_messages(&self, messages: &[&[u8]]) -> Vec<Result<(), BadSignature>> {
        let mut all = Vec::with_capacity(messages.len());
        for some in messages.chunks(ABREAST) {
            match (&self.algorithm, some) {
                (Algorithm::Cmac(cmac), [a, b]) => all.extend(verify_abreast(cmac, [a, b])),
                (Algorithm::Cmac(cmac), [a, b, c]) => all.extend(verify_abreast(cmac, [a, b, c])),
                (Algorithm::Cmac(cmac), [a, b, c, d]) => {
                    all.extend(verify_abreast(cmac, [a, b, c, d]));
                }
                _ => all.extend(some.iter().map(|message| self.verify_message(message))),
            }
        }
        all
    }
}

/// Messages whose AES-CMAC is computed at the same time.
pub const ABREAST: usize = 4;

fn verify_abreast<const N: usize>(
    cmac: &Cmac,
    messages: [&[u8]; N],
) -> [Result<(), BadSignature>; N] {
    let taken = messages.map(|message| take(message).unwrap_or(([0; HEADER_LEN], &[], &[])));
    let parts: [(&[u8], &[u8]); N] = std::array::from_fn(|at| (&taken[at].0[..], taken[at].1));
    let tags = cmac.tags(parts);
    // Of one without a whole header there is no signature, and none is as long as no bytes.
    std::array::from_fn(|at| {
        constant_time::verify_slices_are_equal(&tags[at], taken[at].2).map_err(|_| BadSignature)
    })
}

/// A message that lies in one piece: its header with a signature of zeros, what follows, and the signature.
type Taken<'a> = ([u8; HEADER_LEN], &'a [u8], &'a [u8]);

fn take(message: &[u8]) -> Option<Taken<'_>> {
    let (header, rest) = message.split_first_chunk::<HEADER_LEN>()?;
    let mut head = *header;
    head[SIGNATURE_AT..].fill(0);
    Some((head, rest, &header[SIGNATURE_AT..]))
}

/// The nonce of GMAC: the message's number, then one bit for a response and one for a CANCEL. Callers have checked
/// that there is a header.
fn nonce(header: &[u8]) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&header[MESSAGE_ID_AT..MESSAGE_ID_AT + 8]);
    let flags = u32::from(header[FLAGS_AT]) & FLAG_RESPONSE;
    let command = u16::from_le_bytes([header[COMMAND_AT], header[COMMAND_AT + 1]]);
    let cancel = u32::from(command == CANCEL) << 1;
    nonce[8..].copy_from_slice(&(flags | cancel).to_le_bytes());
    nonce
}

#[cfg(test)]
mod tests;
