//! Keys of a session and of a channel, and what is done with them: signing and encryption.

use aes::Aes128;
use aes::cipher::consts::U16;
use aes::cipher::{
    Array, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, BlockSizeUser, KeyInit,
};
use anyhow::{Context, ensure};
use aws_lc_rs::cipher::{DecryptingKey, DecryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::{aead, cipher, cmac, hmac};

/// How messages are signed: ids of MS-SMB2 2.2.3.1.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signing {
    /// AES-128-CMAC.
    Cmac,
    /// AES-128-GMAC.
    Gmac,
}

/// How messages are encrypted: ids of MS-SMB2 2.2.3.1.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encryption {
    /// AES-128-GCM.
    Gcm128,
    /// AES-256-GCM.
    Gcm256,
}

impl Signing {
    pub(crate) fn of(id: u16) -> Option<Self> {
        match id {
            1 => Some(Self::Cmac),
            2 => Some(Self::Gmac),
            _ => None,
        }
    }
}

impl Encryption {
    pub(crate) fn of(id: u16) -> Option<Self> {
        match id {
            2 => Some(Self::Gcm128),
            4 => Some(Self::Gcm256),
            _ => None,
        }
    }

    /// Bytes of its key.
    pub(crate) fn key_len(self) -> usize {
        match self {
            Self::Gcm128 => 16,
            Self::Gcm256 => 32,
        }
    }
}

/// SP 800-108 in counter mode with HMAC-SHA256, MS-SMB2 3.1.4.2; `len` is at most 32.
pub(crate) fn derive(key: &[u8], label: &[u8], context: &[u8], len: usize) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut mac = hmac::Context::with_key(&key);
    let bits: u32 = if len > 16 { 256 } else { 128 };
    let parts = [&1_u32.to_be_bytes()[..], label, &[0], context, &bits.to_be_bytes()];
    parts.iter().for_each(|part| mac.update(part));
    mac.sign().as_ref()[..len].to_vec()
}

fn gcm(algorithm: &'static aead::Algorithm, key: &[u8]) -> anyhow::Result<aead::LessSafeKey> {
    let key = aead::UnboundKey::new(algorithm, key).ok().context("a key of another length")?;
    Ok(aead::LessSafeKey::new(key))
}

/// What a WRITE has in front of its data, header and fixed part: whole blocks of AES.
pub(crate) type WriteHead = [u8; 112];

/// Signs and checks messages.
pub(crate) enum Signer {
    /// The key, and the same expanded for several messages at a time.
    Cmac(cmac::Key, Box<Aes128>),
    Gmac(aead::LessSafeKey),
}

impl Signer {
    pub(crate) fn new(signing: Signing, key: &[u8]) -> anyhow::Result<Self> {
        Ok(match signing {
            Signing::Cmac => {
                let one = cmac::Key::new(cmac::AES_128, key).ok();
                let many = Aes128::new_from_slice(key).context("a key of another length")?;
                Self::Cmac(one.context("a key of another length")?, Box::new(many))
            }
            Signing::Gmac => Self::Gmac(gcm(&aead::AES_128_GCM, key)?),
        })
    }

    /// The signature of a message whose own field for it is zero, MS-SMB2 3.1.4.1.
    pub(crate) fn sign(
        &self,
        message_id: u64,
        from_server: bool,
        message: &[u8],
    ) -> anyhow::Result<[u8; 16]> {
        match self {
            Self::Cmac(key, _) => {
                let tag = cmac::sign(key, message).ok().context("AES-CMAC failed")?;
                Ok(tag.as_ref().try_into()?)
            }
            Self::Gmac(key) => {
                let mut nonce = [0; 12];
                nonce[..8].copy_from_slice(&message_id.to_le_bytes());
                nonce[8] = u8::from(from_server);
                let nonce = aead::Nonce::assume_unique_for_key(nonce);
                let tag = key
                    .seal_in_place_separate_tag(nonce, aead::Aad::from(message), &mut [])
                    .ok()
                    .context("AES-GMAC failed")?;
                Ok(tag.as_ref().try_into()?)
            }
        }
    }
}

impl Signer {
    /// Signs several WRITEs of the same data, of which each has a head of its own: AES-CMAC takes no longer for some at
    /// a time than for one, whose blocks wait for each other. `false`: it is another algorithm, or nothing to gain.
    ///
    /// # Errors
    ///
    /// When there is no data.
    pub(crate) fn sign_writes(&self, heads: &mut [WriteHead], data: &[u8]) -> anyhow::Result<bool> {
        let Self::Cmac(_, key) = self else { return Ok(false) };
        ensure!(!data.is_empty(), "a WRITE of nothing");
        match heads {
            [a, b] => sign_abreast(key, [a, b], data),
            [a, b, c] => sign_abreast(key, [a, b, c], data),
            [a, b, c, d] => sign_abreast(key, [a, b, c, d], data),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// RFC 4493, of heads that are whole blocks and of data that is not empty.
fn sign_abreast<const N: usize>(key: &Aes128, heads: [&mut WriteHead; N], data: &[u8]) {
    let mut zero = Array::default();
    key.encrypt_block(&mut zero);
    let double = |block: u128| (block << 1) ^ ((block >> 127) * 0x87);
    let whole = double(u128::from_be_bytes(zero.0));
    // The last block, whole or not, is another matter.
    let (blocks, last) = data.split_at((data.len() - 1) / 16 * 16);
    let mut end = [0; 16];
    end[..last.len()].copy_from_slice(last);
    let subkey = match end.get_mut(last.len()) {
        Some(byte) => {
            *byte = 0x80;
            double(whole)
        }
        None => whole,
    };
    let end = (u128::from_be_bytes(end) ^ subkey).to_be_bytes();
    let mut states = [Array::default(); N];
    let own: [&[[u8; 16]]; N] = std::array::from_fn(|at| heads[at].as_chunks().0);
    key.encrypt_with_backend(Chains { parts: own, states: &mut states });
    for part in [blocks.as_chunks().0, &[end]] {
        key.encrypt_with_backend(Chains { parts: [part; N], states: &mut states });
    }
    for (head, state) in heads.into_iter().zip(states) {
        head[48..64].copy_from_slice(&state.0);
    }
}

/// CBC chains side by side, of as many blocks each.
struct Chains<'a, const N: usize> {
    parts: [&'a [[u8; 16]]; N],
    states: &'a mut [Array<u8, U16>; N],
}

impl<const N: usize> BlockSizeUser for Chains<'_, N> {
    type BlockSize = U16;
}

impl<const N: usize> BlockCipherEncClosure for Chains<'_, N> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let mut states = *self.states;
        for at in 0..self.parts.first().map_or(0, |part| part.len()) {
            for (state, part) in states.iter_mut().zip(&self.parts) {
                let mixed = u128::from_ne_bytes(state.0) ^ u128::from_ne_bytes(part[at]);
                *state = mixed.to_ne_bytes().into();
                backend.encrypt_block_inplace(state);
            }
        }
        *self.states = states;
    }
}

/// Encrypts what is sent and decrypts what comes.
pub(crate) struct Sealer {
    sending: aead::LessSafeKey,
    receiving: aead::LessSafeKey,
    /// The cipher under GCM, for a look at the head of a message whose tail is thrown away.
    stream: DecryptingKey,
}

impl Sealer {
    pub(crate) fn new(
        encryption: Encryption,
        sending: &[u8],
        receiving: &[u8],
    ) -> anyhow::Result<Self> {
        let (algorithm, block) = match encryption {
            Encryption::Gcm128 => (&aead::AES_128_GCM, &cipher::AES_128),
            Encryption::Gcm256 => (&aead::AES_256_GCM, &cipher::AES_256),
        };
        let stream = UnboundCipherKey::new(block, receiving).and_then(DecryptingKey::ctr);
        Ok(Self {
            sending: gcm(algorithm, sending)?,
            receiving: gcm(algorithm, receiving)?,
            stream: stream.ok().context("a key of another length")?,
        })
    }

    /// Encrypts in place and returns the tag.
    pub(crate) fn seal(
        &self,
        nonce: [u8; 12],
        head: &[u8],
        message: &mut [u8],
    ) -> anyhow::Result<[u8; 16]> {
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        let tag = self
            .sending
            .seal_in_place_separate_tag(nonce, aead::Aad::from(head), message)
            .ok()
            .context("AES-GCM failed")?;
        Ok(tag.as_ref().try_into()?)
    }

    /// Decrypts in place a message with its tag behind it, and checks it.
    pub(crate) fn open(
        &self,
        nonce: [u8; 12],
        head: &[u8],
        message_and_tag: &mut [u8],
    ) -> anyhow::Result<()> {
        let nonce = aead::Nonce::assume_unique_for_key(nonce);
        self.receiving
            .open_in_place(nonce, aead::Aad::from(head), message_and_tag)
            .ok()
            .context("a message does not decrypt: its tag is wrong")?;
        Ok(())
    }

    /// Decrypts the first bytes of a message, unchecked: GCM is counter mode from block 2 on.
    pub(crate) fn peek(&self, nonce: [u8; 12], head: &mut [u8]) -> anyhow::Result<()> {
        let mut counter = [0; 16];
        counter[..12].copy_from_slice(&nonce);
        counter[15] = 2;
        let context = DecryptionContext::Iv128(FixedLength::from(counter));
        self.stream.decrypt(head, context).ok().context("AES-CTR failed")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_and_its_head_can_be_looked_at() {
        for (encryption, key) in
            [(Encryption::Gcm128, vec![7; 16]), (Encryption::Gcm256, vec![9; 32])]
        {
            let sealer = Sealer::new(encryption, &key, &key).unwrap();
            let mut message = b"a message that is longer than one block of the cipher".to_vec();
            let plain = message.clone();
            let tag = sealer.seal([3; 12], b"head", &mut message).unwrap();
            let mut head = message[..40].to_vec();
            sealer.peek([3; 12], &mut head).unwrap();
            assert_eq!(head, plain[..40]);
            message.extend(tag);
            let mut wrong = message.clone();
            wrong[5] ^= 1;
            assert!(sealer.open([3; 12], b"head", &mut wrong).is_err());
            sealer.open([3; 12], b"head", &mut message).unwrap();
            assert_eq!(message[..plain.len()], plain);
        }
    }

    /// RFC 4493 section 4, example 2.
    #[test]
    fn cmac_is_that_of_the_example() {
        let key = 0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c_u128.to_be_bytes();
        let message = 0x6bc1_bee2_2e40_9f96_e93d_7e11_7393_172a_u128.to_be_bytes();
        let signer = Signer::new(Signing::Cmac, &key).unwrap();
        let tag = u128::from_be_bytes(signer.sign(0, false, &message).unwrap());
        assert_eq!(tag, 0x070a_16b4_6b4d_4144_f79b_dd9d_d04a_287c);
    }

    #[test]
    fn writes_are_signed_together_as_they_are_alone() {
        let signer = Signer::new(Signing::Cmac, &[5; 16]).unwrap();
        for len in [1, 15, 16, 17, 4096, 4101] {
            let data = vec![9; len];
            for count in 2..=4 {
                let mut heads: Vec<WriteHead> = (0..count).map(|at| [at; 112]).collect();
                heads.iter_mut().for_each(|head| head[48..64].fill(0));
                let alone = heads.clone().into_iter().map(|head| {
                    signer.sign(0, false, &[&head[..], &data].concat()).unwrap().to_vec()
                });
                let alone: Vec<_> = alone.collect();
                assert!(signer.sign_writes(&mut heads, &data).unwrap());
                assert!(heads.iter().map(|head| head[48..64].to_vec()).eq(alone), "{len}, {count}");
            }
        }
        assert!(!signer.sign_writes(&mut [[0; 112]], b"x").unwrap(), "one alone");
        let gmac = Signer::new(Signing::Gmac, &[1; 16]).unwrap();
        assert!(!gmac.sign_writes(&mut [[0; 112]; 2], b"x").unwrap());
    }

    #[test]
    fn a_signature_is_of_one_direction() {
        let signer = Signer::new(Signing::Gmac, &[1; 16]).unwrap();
        let (ours, theirs) =
            (signer.sign(5, false, b"x").unwrap(), signer.sign(5, true, b"x").unwrap());
        assert_ne!(ours, theirs);
    }
}
