//! AES-128-GMAC (SP800-38D), also over parts that do not lie side by side.

use std::fmt;
use std::sync::OnceLock;

use aes::Aes128;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

const BLOCK: usize = 16;
/// A header and what a request without data says.
const GATHER_SMALL: usize = 512;
/// Messages up to this many bytes are brought together, a block of a database with its header among them: that costs
/// less than the arithmetic of parts.
const GATHER_MAX: usize = 9 * 1024;
/// Powers H^(2^k) that are kept: enough for 2^36 bytes.
const POWERS: usize = 32;

/// An expanded key, and what it takes to put tags of parts together.
///
/// The fast code that there is wants a message in one piece. GHASH is a polynomial in H, so the tag of a whole can be
/// had of the tags of its parts: each part goes through the fast code, and is then shifted to its place with some
/// multiplications by powers of H.
pub(super) struct Gmac {
    key: LessSafeKey,
    block: Aes128,
    /// H^(2^k), once they are wanted: many a session never sends more than fits one piece.
    powers: OnceLock<Box<[u128; POWERS]>>,
}

impl Gmac {
    pub(super) fn new(key: &[u8; 16]) -> Self {
        let block = Aes128::new(&(*key).into());
        let key = UnboundKey::new(&AES_128_GCM, key).expect("16 bytes are a key of AES-128");
        Self { key: LessSafeKey::new(key), block, powers: OnceLock::new() }
    }

    fn powers(&self) -> &[u128; POWERS] {
        self.powers.get_or_init(|| {
            let mut hash_key = Array::default();
            self.block.encrypt_block(&mut hash_key);
            let mut powers = Box::new([u128::from_be_bytes(hash_key.0); POWERS]);
            for k in 1..POWERS {
                powers[k] = multiply(powers[k - 1], powers[k - 1]);
            }
            powers
        })
    }

    /// The tag of a message in one piece.
    pub(super) fn tag(&self, nonce: [u8; 12], message: &[u8]) -> [u8; BLOCK] {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(message), &mut []);
        let tag = tag.expect("no slice is longer than the 2^61 bytes that GCM takes");
        let mut out = [0; BLOCK];
        out.copy_from_slice(tag.as_ref());
        out
    }

    /// The tag of all parts one behind the other.
    pub(super) fn tag_parts(&self, nonce: [u8; 12], first: &[u8], rest: &[&[u8]]) -> [u8; BLOCK] {
        let len = first.len() + rest.iter().map(|part| part.len()).sum::<usize>();
        if len == first.len() {
            return self.tag(nonce, first);
        }
        if len <= GATHER_SMALL {
            self.gathered::<GATHER_SMALL>(nonce, first, rest)
        } else if len <= GATHER_MAX {
            self.gathered::<GATHER_MAX>(nonce, first, rest)
        } else {
            self.summed(nonce, len, first, rest)
        }
    }

    /// The tag of parts that are `N` bytes or less, of a copy of them.
    fn gathered<const N: usize>(
        &self,
        nonce: [u8; 12],
        first: &[u8],
        rest: &[&[u8]],
    ) -> [u8; BLOCK] {
        let (mut whole, mut at) = ([0; N], 0);
        for part in [first].iter().chain(rest) {
            whole[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        self.tag(nonce, &whole[..at])
    }

    /// The tag of parts of `len` bytes, of the tags of the parts.
    fn summed(&self, nonce: [u8; 12], len: usize, first: &[u8], rest: &[&[u8]]) -> [u8; BLOCK] {
        let mut counter = [0; BLOCK];
        counter[..12].copy_from_slice(&nonce);
        counter[BLOCK - 1] = 1;
        let mut mask = counter.into();
        self.block.encrypt_block(&mut mask);
        let mask = u128::from_be_bytes(mask.0);
        let mut sum = Sum { gmac: self, nonce, mask, sum: 0, held: [0; BLOCK], len: 0 };
        sum.update(first);
        rest.iter().for_each(|part| sum.update(part));
        sum.finish(len)
    }

    /// What the block of lengths adds to the polynomial, for so many bytes.
    fn lengths(&self, bytes: usize) -> u128 {
        multiply((bytes as u128 * 8) << 64, self.powers()[0])
    }
}

impl fmt::Debug for Gmac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gmac(..)")
    }
}

/// Multiplies in the field of GHASH (SP800-38D 6.3), whose lowest power is the first bit; in constant time.
fn multiply(a: u128, b: u128) -> u128 {
    const REDUCE: u128 = 0xe1 << 120;
    let (mut product, mut b) = (0, b);
    for bit in (0..128).rev() {
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ (REDUCE & (b & 1).wrapping_neg());
    }
    product
}

/// The polynomial of the blocks so far.
struct Sum<'a> {
    gmac: &'a Gmac,
    nonce: [u8; 12],
    /// What a tag is XORed with.
    mask: u128,
    /// A block with n behind it counts with H^(n + 2), as in a tag, where the lengths follow.
    sum: u128,
    held: [u8; BLOCK],
    len: usize,
}

impl Sum<'_> {
    fn update(&mut self, mut part: &[u8]) {
        if self.len > 0 {
            let (fill, more) = part.split_at(part.len().min(BLOCK - self.len));
            self.held[self.len..self.len + fill.len()].copy_from_slice(fill);
            self.len += fill.len();
            part = more;
            if self.len < BLOCK {
                return;
            }
            let held = self.held;
            self.append(&held);
        }
        let (blocks, more) = part.split_at(part.len() - part.len() % BLOCK);
        if !blocks.is_empty() {
            self.append(blocks);
        }
        self.held[..more.len()].copy_from_slice(more);
        self.len = more.len();
    }

    /// Appends blocks, of which the last may be short if none follows.
    fn append(&mut self, blocks: &[u8]) {
        let tag = u128::from_be_bytes(self.gmac.tag(self.nonce, blocks));
        let own = tag ^ self.mask ^ self.gmac.lengths(blocks.len());
        if self.sum != 0 {
            let mut shift = blocks.len().div_ceil(BLOCK);
            for power in self.gmac.powers() {
                if shift & 1 == 1 {
                    self.sum = multiply(self.sum, *power);
                }
                shift >>= 1;
                if shift == 0 {
                    break;
                }
            }
        }
        self.sum ^= own;
    }

    fn finish(mut self, bytes: usize) -> [u8; BLOCK] {
        if self.len > 0 {
            let held = self.held;
            self.append(&held[..self.len]);
        }
        (self.sum ^ self.gmac.lengths(bytes) ^ self.mask).to_be_bytes()
    }
}

#[cfg(test)]
mod tests;
