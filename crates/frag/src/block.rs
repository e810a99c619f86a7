//! Compact blocks: where small fragments are copied to, so that 8 bytes do not pin a frame of 2 KiB.
//!
//! Each block is allocated on its own, so that those of a datagram that goes are memory again at once, whoever
//! has the others. Some free ones are kept, which go when memory ends.

use crate::directory::Directory;
use crate::places::{Page, Places};
use crate::slab::NONE;

/// Bytes in a block.
pub(crate) const BLOCK_BYTES: usize = 512;
/// What a block costs, with its link.
#[expect(clippy::cast_possible_truncation, reason = "some hundred bytes")]
pub(crate) const BLOCK_COST: u32 = size_of::<Block>() as u32;
/// Places for blocks that come together.
pub(crate) const PAGE: usize = 128;
/// Free blocks that are kept: at least so many, and at most.
const IDLE_MIN: u32 = 12;
const IDLE_MAX: u32 = 1024;
/// Free blocks that are given back in one go.
const TRIMMED: u32 = 16;

#[derive(Debug)]
pub(crate) struct Block {
    next: u32,
    used: u16,
    bytes: [u8; BLOCK_BYTES],
}

/// The blocks of a shard.
#[derive(Debug)]
pub(crate) struct Blocks {
    places: Places<Box<Block>, PAGE>,
    /// The first free block.
    free: u32,
    /// Free blocks, and how many may be kept.
    idle: u32,
    idle_most: u32,
    used: u32,
}

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
    /// What the first blocks take with their places, bytes.
    pub(crate) const FIRST_BYTES: u64 =
        Places::<Box<Block>, PAGE>::FIRST_BYTES + (IDLE_MIN * BLOCK_COST) as u64;

    /// Of that, what stays when all blocks have gone.
    pub(crate) const LIST_BYTES: u64 =
        Places::<Box<Block>, PAGE>::FIRST_BYTES - Places::<Box<Block>, PAGE>::PAGE_BYTES;

    /// Those that keep free blocks of about so many bytes, but some at least: they would go and come where many
    /// datagrams begin and end together.
    pub(crate) fn keeping(bytes: u64) -> Self {
        let idle_most = u32::try_from(bytes / u64::from(BLOCK_COST)).unwrap_or(IDLE_MAX);
        Self {
            places: Places::new(),
            free: NONE,
            idle: 0,
            idle_most: idle_most.clamp(IDLE_MIN, IDLE_MAX),
            used: 0,
        }
    }

    /// Blocks in use.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    /// Bytes of what is there beside the blocks in use.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn spare(&self) -> u64 {
        u64::from(self.idle) * u64::from(BLOCK_COST) + self.places.bytes()
    }

    /// Bytes that one more block takes, at the most that there are of them at once. 0: there is a free one.
    pub(crate) fn growth(&self) -> u64 {
        if self.free != NONE {
            return 0;
        }
        u64::from(BLOCK_COST) + self.places.growth()
    }

    /// Makes a free block. Answers how many bytes of [`Self::growth`] it has given back.
    #[cold]
    pub(crate) fn grow(&mut self) -> u64 {
        let (at, over) = self.places.open();
        self.places.fill(at, Box::new(Block { next: NONE, used: 0, bytes: [0; BLOCK_BYTES] }));
        self.lay_aside(at);
        over
    }

    /// The list of pages of places for blocks.
    pub(crate) fn pages(&mut self) -> &mut Directory<Box<Page<Box<Block>, PAGE>>> {
        self.places.pages()
    }

    /// Enters a block among the free ones.
    fn lay_aside(&mut self, at: u32) {
        let free = std::mem::replace(&mut self.free, at);
        self.block_mut(at).next = free;
        self.idle += 1;
    }

    /// A free block.
    fn take(&mut self) -> u32 {
        if self.free == NONE {
            self.grow();
        }
        let at = self.free;
        self.free = self.block(at).next;
        self.idle -= 1;
        self.used += 1;
        at
    }

    /// Frees a block. Answers how many bytes that is, with those of its place if they go as well.
    fn drop_block(&mut self, at: u32) -> u64 {
        let (_, places) = self.places.take(at);
        u64::from(BLOCK_COST) + places
    }

    /// Bytes that were given back of some free blocks; `None`: there are none.
    #[cold]
    pub(crate) fn trim(&mut self) -> Option<u64> {
        let blocks = self.idle.min(TRIMMED);
        let mut gone = 0;
        for _ in 0..blocks {
            let at = self.free;
            self.free = self.block(at).next;
            gone += self.drop_block(at);
        }
        self.idle -= blocks;
        (blocks > 0).then_some(gone)
    }

    fn block(&self, at: u32) -> &Block {
        self.places.get(at).expect("a block in use stays")
    }

    fn block_mut(&mut self, at: u32) -> &mut Block {
        self.places.get_mut(at).expect("a block in use stays")
    }

    /// Whether `n` bytes need a further block.
    pub(crate) fn needs_another(&self, chain: Chain, n: usize) -> bool {
        chain.is_empty() || usize::from(self.block(chain.0).used) + n > BLOCK_BYTES
    }

    /// Copies; answers the block and where in it. The caller has asked [`Self::needs_another`] and paid.
    pub(crate) fn put(&mut self, chain: &mut Chain, bytes: &[u8]) -> (u32, u16) {
        if self.needs_another(*chain, bytes.len()) {
            let at = self.take();
            let block = self.block_mut(at);
            (block.next, block.used) = (chain.0, 0);
            chain.0 = at;
        }
        let block = self.block_mut(chain.0);
        let at = block.used;
        let end = usize::from(at) + bytes.len();
        block.bytes[usize::from(at)..end].copy_from_slice(bytes);
        // At most BLOCK_BYTES.
        block.used = u16::try_from(end).unwrap_or(0);
        (chain.0, at)
    }

    pub(crate) fn bytes(&self, block: u32, at: u16, len: usize) -> &[u8] {
        &self.block(block).bytes[usize::from(at)..usize::from(at) + len]
    }

    /// Gives all of a datagram's blocks back. Answers how many there were, and the bytes of those that went, with their
    /// places.
    #[inline]
    pub(crate) fn free(&mut self, chain: &mut Chain) -> (u32, u64) {
        let (mut blocks, mut gone) = (0, 0);
        while chain.0 != NONE {
            let at = chain.0;
            chain.0 = self.block(at).next;
            if self.idle < self.idle_most {
                self.lay_aside(at);
            } else {
                gone += self.drop_block(at);
            }
            blocks += 1;
        }
        self.used -= blocks;
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

    /// Whoever has the others.
    #[test]
    fn each_block_goes_on_its_own() {
        let mut blocks = Blocks::keeping(0);
        let mut chains = [Chain::default(); 400];
        let mut bytes = 0;
        for chain in &mut chains {
            let growth = blocks.growth();
            bytes += growth;
            if growth > 0 {
                bytes -= blocks.grow();
            }
            blocks.put(chain, &[1; 8]);
        }
        let cost = u64::from(BLOCK_COST);
        assert_eq!(bytes, blocks.spare() + 400 * cost, "as was said before");
        let places = blocks.spare();
        let gone: u64 = chains.iter_mut().step_by(2).map(|chain| blocks.free(chain).1).sum();
        let idle = u64::from(IDLE_MIN) * cost;
        assert_eq!((gone, blocks.spare()), (200 * cost - idle, places + idle));
        assert_eq!((blocks.trim(), blocks.trim(), blocks.spare()), (Some(idle), None, places));
        // Their places are used again.
        for chain in chains.iter_mut().step_by(2) {
            assert_eq!(blocks.growth(), cost);
            blocks.put(chain, &[2; 8]);
        }
        assert_eq!((blocks.used(), blocks.spare()), (400, places));
        assert!(chains.iter().all(|chain| blocks.block(chain.0).used == 8));
    }

    /// When all are free, and free ones are wanted elsewhere, of a peak nothing is left but the list of pages.
    #[test]
    fn places_of_a_peak_go() {
        let mut blocks = Blocks::keeping(u64::MAX);
        let mut chains = [Chain::default(); 4000];
        chains.iter_mut().for_each(|chain| _ = blocks.put(chain, &[1; 8]));
        let cost = u64::from(BLOCK_COST);
        let peak = blocks.places.bytes();
        assert!(peak > 4000 * 8, "{peak}");
        let mut there = blocks.spare() + 4000 * cost;
        for chain in &mut chains {
            let (_, gone) = blocks.free(chain);
            assert!(gone < 2 * cost + PAGE as u64 * 8, "{gone} bytes at once");
            there -= gone;
        }
        while let Some(gone) = blocks.trim() {
            there -= gone;
        }
        assert_eq!(there, blocks.spare());
        assert!(there < peak / 20, "{there} of {peak} bytes");
    }
}
