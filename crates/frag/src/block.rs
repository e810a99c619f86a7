//! Compact blocks: where small fragments are copied to, so that 8 bytes do not pin a frame of 2 KiB.

use crate::slab::{Linked, NONE, Slab};

/// Bytes in a block.
pub(crate) const BLOCK_BYTES: usize = 512;
/// What a block costs, with its link.
#[expect(clippy::cast_possible_truncation, reason = "some hundred bytes")]
pub(crate) const BLOCK_COST: u32 = size_of::<Block>() as u32;

#[derive(Debug)]
pub(crate) struct Block {
    next: u32,
    used: u16,
    bytes: [u8; BLOCK_BYTES],
}

impl Default for Block {
    fn default() -> Self {
        Self { next: NONE, used: 0, bytes: [0; BLOCK_BYTES] }
    }
}

impl Linked for Block {
    fn next(&self) -> u32 {
        self.next
    }

    fn set_next(&mut self, next: u32) {
        self.next = next;
    }
}

/// The blocks of a shard.
#[derive(Debug)]
pub(crate) struct Blocks(Slab<Block>);

/// A datagram's blocks, the newest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain(u32);

impl Default for Chain {
    fn default() -> Self {
        Self(NONE)
    }
}

impl Chain {
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == NONE
    }
}

impl Blocks {
    /// See [`Slab::keeping`].
    pub(crate) fn keeping(bytes: u64) -> Self {
        Self(Slab::keeping(bytes))
    }

    /// What the first chunk of blocks takes, bytes.
    pub(crate) const FIRST_BYTES: u64 = Slab::<Block>::FIRST_BYTES;

    pub(crate) const fn used(&self) -> u32 {
        self.0.used()
    }

    /// See [`Slab::idle`].
    pub(crate) const fn idle(&self) -> u64 {
        self.0.idle()
    }

    /// Bytes of what is there beside the blocks in use.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn spare(&self) -> u64 {
        self.0.spare(|_| u64::from(BLOCK_COST))
    }

    /// Bytes that one more block takes beside itself: see [`Slab::growth`]. 0: there is a free one.
    pub(crate) fn growth(&self) -> u64 {
        if self.0.free().is_some() { 0 } else { self.0.growth() }
    }

    /// See [`Slab::grow`].
    pub(crate) fn grow(&mut self) -> u64 {
        self.0.grow()
    }

    /// Bytes that were given back of free blocks: see [`Slab::trim`].
    pub(crate) fn trim(&mut self) -> u64 {
        if self.0.trim(|_| ()) { Slab::<Block>::CHUNK_BYTES } else { 0 }
    }

    /// Whether `n` bytes need a further block.
    pub(crate) fn needs_another(&self, chain: Chain, n: usize) -> bool {
        chain.is_empty() || usize::from(self.0[chain.0].used) + n > BLOCK_BYTES
    }

    /// Copies; answers the block and where in it. The caller has asked [`Self::needs_another`] and paid.
    pub(crate) fn put(&mut self, chain: &mut Chain, bytes: &[u8]) -> (u32, u16) {
        if self.needs_another(*chain, bytes.len()) {
            let at = self.0.take();
            self.0[at].next = chain.0;
            self.0[at].used = 0;
            chain.0 = at;
        }
        let block = &mut self.0[chain.0];
        let at = block.used;
        let end = usize::from(at) + bytes.len();
        block.bytes[usize::from(at)..end].copy_from_slice(bytes);
        // At most BLOCK_BYTES.
        block.used = u16::try_from(end).unwrap_or(0);
        (chain.0, at)
    }

    pub(crate) fn bytes(&self, block: u32, at: u16, len: usize) -> &[u8] {
        &self.0[block].bytes[usize::from(at)..usize::from(at) + len]
    }

    /// Gives all of a datagram's blocks back. Answers how many there were, and the bytes of chunks that went with them.
    #[inline]
    pub(crate) fn free(&mut self, chain: &mut Chain) -> (u32, u64) {
        let (mut blocks, mut gone) = (0, 0);
        while chain.0 != NONE {
            let next = self.0[chain.0].next;
            gone += u64::from(self.0.give(chain.0, |_| ())) * Slab::<Block>::CHUNK_BYTES;
            blocks += 1;
            chain.0 = next;
        }
        (blocks, gone)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_where_they_were_put() {
        let mut blocks = Blocks::keeping(0);
        let mut chains = [Chain::default(); 3];
        let mut places = Vec::new();
        for n in 0..60u8 {
            let len = 8 + usize::from(n % 32) * 16;
            let chain = &mut chains[usize::from(n) % 3];
            let (before, needed) = (blocks.used(), blocks.needs_another(*chain, len));
            let (block, at) = blocks.put(chain, &vec![n; len]);
            assert_eq!(blocks.used() - before, u32::from(needed));
            places.push((block, at, vec![n; len]));
        }
        assert!(
            places.iter().all(|(block, at, bytes)| blocks.bytes(*block, *at, bytes.len()) == bytes)
        );
        let used = blocks.used();
        let freed: u32 = chains.iter_mut().map(|chain| blocks.free(chain).0).sum();
        assert_eq!(freed, used);
        assert!(blocks.used() == 0 && chains.iter().all(|chain| chain.is_empty()));
        // Free blocks are used again, from their beginning.
        let (_, at) = blocks.put(&mut chains[0], &[1; BLOCK_BYTES]);
        assert_eq!((at, blocks.used()), (0, 1));
    }
}
