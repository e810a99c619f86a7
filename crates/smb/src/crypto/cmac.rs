//! AES-128-CMAC (RFC 4493, SP800-38B).

use std::fmt;

use aes::Aes128;
use aes::cipher::consts::U16;
use aes::cipher::{
    Array, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, BlockSizeUser, KeyInit,
};

const BLOCK: usize = 16;

/// An expanded key and its two subkeys.
///
/// Every block waits for the one before, so what counts is how few cycles lie between two AES operations: whole
/// blocks are taken in one loop with the state in registers, and only what straddles two parts goes through memory.
pub(super) struct Cmac {
    cipher: Aes128,
    whole: u128,
    padded: u128,
}

/// Multiplies by x in the field of CMAC, whose polynomial is x^128 + x^7 + x^2 + x + 1; in constant time.
const fn double(block: u128) -> u128 {
    block << 1 ^ ((block >> 127) * 0x87)
}

impl Cmac {
    pub(super) fn new(key: &[u8; 16]) -> Self {
        let cipher = Aes128::new(&(*key).into());
        let mut zero = Array::default();
        cipher.encrypt_block(&mut zero);
        let whole = double(u128::from_be_bytes(zero.0));
        Self { cipher, whole, padded: double(whole) }
    }

    /// The tags of `N` messages, each of a head, which is not empty, and what follows. They take as long as that of the
    /// longest alone, or not much longer: what one chain waits for, the others need not.
    pub(super) fn tags<const N: usize>(&self, messages: [(&[u8], &[u8]); N]) -> [[u8; BLOCK]; N] {
        let mut chains = messages.map(|(head, _)| {
            let mut chain = Chain { cmac: self, state: Array::default(), held: [0; BLOCK], len: 0 };
            chain.update(head);
            chain
        });
        let mut rest = messages.map(|(_, rest)| rest);
        // The last block of each, whole or not, stays back; and heads are as long as headers, which are whole blocks.
        let blocks = rest.iter().map(|rest| rest.len().saturating_sub(1) / BLOCK).min();
        let abreast = blocks.unwrap_or(0) * BLOCK;
        if abreast > 0 && chains.iter().all(|chain| chain.len == BLOCK) {
            for chain in &mut chains {
                let held = chain.held;
                chain.absorb(&held);
                chain.len = 0;
            }
            let parts = rest.map(|rest| rest[..abreast].as_chunks::<BLOCK>().0);
            let states = std::array::from_fn(|at| chains[at].state);
            let mut states: [Array<u8, U16>; N] = states;
            self.cipher.encrypt_with_backend(AbsorbAbreast { parts, states: &mut states });
            for (chain, state) in chains.iter_mut().zip(states) {
                chain.state = state;
            }
            rest = rest.map(|rest| &rest[abreast..]);
        }
        for (chain, rest) in chains.iter_mut().zip(rest) {
            chain.update(rest);
        }
        chains.map(Chain::finish)
    }

    /// The tag of all parts one behind the other. `first` is not empty.
    pub(super) fn tag(&self, first: &[u8], rest: &[&[u8]]) -> [u8; BLOCK] {
        let mut chain = Chain { cmac: self, state: Array::default(), held: [0; BLOCK], len: 0 };
        chain.update(first);
        rest.iter().for_each(|part| chain.update(part));
        chain.finish()
    }
}

impl fmt::Debug for Cmac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cmac(..)")
    }
}

/// One message on its way through. The last block is treated differently, so one is always held back.
struct Chain<'a> {
    cmac: &'a Cmac,
    state: Array<u8, U16>,
    held: [u8; BLOCK],
    len: usize,
}

impl Chain<'_> {
    fn update(&mut self, mut part: &[u8]) {
        let room = BLOCK - self.len;
        if part.len() <= room {
            self.held[self.len..self.len + part.len()].copy_from_slice(part);
            self.len += part.len();
            return;
        }
        let (fill, more) = part.split_at(room);
        self.held[self.len..].copy_from_slice(fill);
        part = more;
        let held = self.held;
        self.absorb(&held);
        // Not empty; the last block, whole or not, stays back.
        let keep = (part.len() - 1) % BLOCK + 1;
        let (blocks, last) = part.split_at(part.len() - keep);
        self.absorb(blocks);
        self.held[..keep].copy_from_slice(last);
        self.len = keep;
    }

    /// Chains whole blocks.
    fn absorb(&mut self, blocks: &[u8]) {
        let (blocks, _) = blocks.as_chunks::<BLOCK>();
        self.cmac.cipher.encrypt_with_backend(Absorb { blocks, state: &mut self.state });
    }

    fn finish(mut self) -> [u8; BLOCK] {
        let subkey = if self.len == BLOCK {
            self.cmac.whole
        } else {
            self.held[self.len..].fill(0);
            self.held[self.len] = 0x80;
            self.cmac.padded
        };
        let last = (u128::from_be_bytes(self.held) ^ subkey).to_be_bytes();
        self.absorb(&last);
        self.state.0
    }
}

/// The loop, which the cipher compiles for the instructions that the machine has.
struct Absorb<'a> {
    blocks: &'a [[u8; BLOCK]],
    state: &'a mut Array<u8, U16>,
}

impl BlockSizeUser for Absorb<'_> {
    type BlockSize = U16;
}

impl BlockCipherEncClosure for Absorb<'_> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let mut state = *self.state;
        for block in self.blocks {
            let mixed = u128::from_ne_bytes(state.0) ^ u128::from_ne_bytes(*block);
            state = mixed.to_ne_bytes().into();
            backend.encrypt_block_inplace(&mut state);
        }
        *self.state = state;
    }
}

/// [`Absorb`] for chains side by side, of as many blocks each: an AES operation takes several times as long as it keeps
/// others from beginning.
struct AbsorbAbreast<'a, const N: usize> {
    parts: [&'a [[u8; BLOCK]]; N],
    states: &'a mut [Array<u8, U16>; N],
}

impl<const N: usize> BlockSizeUser for AbsorbAbreast<'_, N> {
    type BlockSize = U16;
}

impl<const N: usize> BlockCipherEncClosure for AbsorbAbreast<'_, N> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let mut states = *self.states;
        let blocks = self.parts.iter().map(|part| part.len()).min().unwrap_or(0);
        for at in 0..blocks {
            for (state, part) in states.iter_mut().zip(&self.parts) {
                let mixed = u128::from_ne_bytes(state.0) ^ u128::from_ne_bytes(part[at]);
                *state = mixed.to_ne_bytes().into();
                backend.encrypt_block_inplace(state);
            }
        }
        *self.states = states;
    }
}

#[cfg(test)]
mod tests;
