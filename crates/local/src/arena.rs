//! This process's memory on the board: halves and ring blocks.
//!
//! Extents of 4 MiB are taken from the board and split like a buddy heap; pages are taken
//! 256 KiB at a time. What is given back is kept for the next connection, so that in
//! the steady state nothing here calls the kernel.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use sys::abi::{
    BLOCK_BYTES, EXTENT_BYTES, HALF_BYTES, HALVES_PER_BLOCK, Half, Loc, OWNER_HALVES, half_flags,
    half_state,
};
use sys::sync::Ordering;

use crate::Reason;
use crate::board::Board;

/// Blocks of 16 KiB in an extent.
const BLOCKS: u32 = 256;
/// Blocks in a part, the unit in which pages are taken.
const PART: u32 = 16;
/// Blocks up to this order, 64 KiB, are small: a connection is nearly as fast with such a ring as with a larger one, and
/// all of them should have one.
const SMALL: u32 = 2;

/// What of the board is ours.
#[derive(Debug, Default)]
pub struct Arena {
    /// Free blocks by order, as numbers in the file.
    free: [BTreeSet<u32>; Loc::ORDER_MAX as usize + 1],
    /// Free halves; last in, first out, so that they are warm.
    halves: Vec<u32>,
    /// Extent from which halves are cut, and its next block.
    half_extent: Option<(usize, u32)>,
    /// For each ring extent its parts that have pages.
    parts: Vec<(u32, u16)>,
    /// Closed halves whose peers have not closed yet.
    limbo: VecDeque<u32>,
    /// Extents that are ours.
    extents: BTreeSet<usize>,
    /// Rings of halves whose words do not say so: others may write them.
    kept: BTreeMap<u32, Loc>,
    bytes_owned: usize,
    /// Of these, what halves are cut from.
    bytes_halves: usize,
    bytes_used: usize,
}

impl Arena {
    /// To be called in a forked child: all of it is the parent's.
    pub fn forked(&mut self) {
        *self = Self::default();
    }

    /// Bytes of ring blocks handed out.
    #[must_use]
    pub fn bytes_used(&self) -> usize {
        self.bytes_used
    }

    /// Bytes that rings have or had, handed out or not.
    #[must_use]
    pub fn bytes_of_rings(&self) -> usize {
        self.bytes_owned - self.bytes_halves
    }

    /// Bytes of the file that have pages for us.
    #[must_use]
    pub fn bytes_owned(&self) -> usize {
        self.bytes_owned
    }

    fn account(&self, board: &Board) {
        if let Some(slot) = board.my_slot() {
            slot.bytes_owned.store(self.bytes_owned as u64, Ordering::Relaxed);
            slot.bytes_used.store(self.bytes_used as u64, Ordering::Relaxed);
        }
    }

    fn extent(&mut self, board: &Board, kind: u32) -> Result<usize, Reason> {
        let slot = board.ensure_slot()?;
        let extent = board.take_extent(slot, kind, |extent| self.extents.contains(&extent));
        let extent = extent.ok_or(Reason::NoMemory)?;
        self.extents.insert(extent);
        Ok(extent)
    }

    /// The ring of a half of ours goes with it when it is buried, and what its words say does not count.
    pub fn keep(&mut self, index: u32, ring: Loc) {
        self.kept.insert(index, ring);
    }

    /// Takes a half of ours; its generation is new, all else but its counters is for the caller
    /// to write.
    ///
    /// # Errors
    ///
    /// [`Reason::NoMemory`] or [`Reason::NoSlot`].
    pub fn half(&mut self, board: &Board, bytes_max: usize) -> Result<u32, Reason> {
        self.sweep(board, 4);
        if self.halves.is_empty() {
            self.more_halves(board, bytes_max)?;
        }
        let index = self.halves.pop().ok_or(Reason::NoMemory)?;
        let half = board.map.half_known(index);
        // Release: that it was free, before its new number. Pairs with `Board::find`.
        half.generation.fetch_add(1, Ordering::Release);
        Ok(index)
    }

    fn more_halves(&mut self, board: &Board, bytes_max: usize) -> Result<(), Reason> {
        if !may_take(board, self.bytes_owned, BLOCK_BYTES, bytes_max, false) {
            return Err(Reason::NoMemory);
        }
        let (extent, block) = match self.half_extent {
            Some((extent, block)) if block < BLOCKS => (extent, block),
            _ => (self.extent(board, OWNER_HALVES)?, 0),
        };
        let offset = extent * EXTENT_BYTES + block as usize * BLOCK_BYTES;
        self.half_extent = Some((extent, block));
        board.map.commit(board.fd(), offset, BLOCK_BYTES).map_err(|_| Reason::NoMemory)?;
        self.half_extent = Some((extent, block + 1));
        self.bytes_owned += BLOCK_BYTES;
        self.bytes_halves += BLOCK_BYTES;
        let first = u32::try_from(offset / HALF_BYTES).map_err(|_| Reason::NoMemory)?;
        let count = u32::try_from(HALVES_PER_BLOCK).map_err(|_| Reason::NoMemory)?;
        for index in (first..first + count).rev() {
            // Who had it before may still be looked for there: see `Board::free_halves`.
            let generation = &board.map.half_known(index).generation;
            generation.store(generation.load(Ordering::Relaxed).max(1), Ordering::Relaxed);
            self.halves.push(index);
        }
        self.account(board);
        Ok(())
    }

    /// Gives a half back for which no peer waits.
    pub fn free_half(&mut self, board: &Board, index: u32) {
        let half = board.map.half_known(index);
        half.peer.store(0, Ordering::Relaxed);
        half.state.store(half_state::FREE, Ordering::Release);
        self.halves.push(index);
    }

    /// Keeps a closed half, and its ring, until its peer has closed too.
    pub fn retire(&mut self, board: &Board, index: u32) {
        if self.try_bury(board, index) {
            return;
        }
        self.limbo.push_back(index);
    }

    /// Looks at up to `n` closed halves whether their peers have closed meanwhile.
    pub fn sweep(&mut self, board: &Board, n: usize) {
        for _ in 0..n.min(self.limbo.len()) {
            let Some(index) = self.limbo.pop_front() else { return };
            if !self.try_bury(board, index) {
                self.limbo.push_back(index);
            }
        }
    }

    fn try_bury(&mut self, board: &Board, index: u32) -> bool {
        let half = board.map.half_known(index);
        if half.users.load(Ordering::Relaxed) > 0 || !peer_is_done(board, index, half) {
            return false;
        }
        if let Some(ring) = self.kept.remove(&index) {
            self.free_block(board, ring);
            self.free_half(board, index);
            return true;
        }
        for word in [&half.loc, &half.next_loc, &half.again] {
            if let Some(loc) = Loc::parse(word.swap(0, Ordering::Relaxed)) {
                self.free_block(board, loc);
            }
        }
        self.free_half(board, index);
        true
    }

    /// Takes a ring block of `order`.
    ///
    /// # Errors
    ///
    /// [`Reason::NoMemory`].
    pub fn block(&mut self, board: &Board, order: u32, bytes_max: usize) -> Result<Loc, Reason> {
        let free = self.bytes_owned - self.bytes_halves.min(self.bytes_owned);
        let free = free.saturating_sub(self.bytes_used);
        match self.take_block(board, order, bytes_max) {
            // What is free may have its pages elsewhere.
            Err(Reason::NoMemory) if free >= BLOCK_BYTES << order => {
                self.trim(board, 0);
                self.take_block(board, order, bytes_max)
            }
            taken => taken,
        }
    }

    fn take_block(&mut self, board: &Board, order: u32, bytes_max: usize) -> Result<Loc, Reason> {
        let found = (order..=Loc::ORDER_MAX).find(|o| !self.free[*o as usize].is_empty());
        let (mut have, block) = match found {
            Some(o) => (o, self.free[o as usize].pop_first().ok_or(Reason::NoMemory)?),
            None => {
                if !may_take(
                    board,
                    self.bytes_owned,
                    BLOCK_BYTES << order,
                    bytes_max,
                    order > SMALL,
                ) {
                    return Err(Reason::NoMemory);
                }
                let extent = self.extent(board, 0)?;
                let first = u32::try_from(extent).map_err(|_| Reason::NoMemory)? * BLOCKS;
                self.parts.push((first, 0));
                (Loc::ORDER_MAX, first)
            }
        };
        while have > order {
            have -= 1;
            self.free[have as usize].insert(block + (1 << have));
        }
        let loc = Loc { block, order };
        if let Err(reason) = self.pages(board, loc, bytes_max) {
            self.insert(loc);
            return Err(reason);
        }
        self.bytes_used += loc.bytes();
        self.account(board);
        Ok(loc)
    }

    /// Makes sure that a block has pages.
    fn pages(&mut self, board: &Board, loc: Loc, bytes_max: usize) -> Result<(), Reason> {
        let first = loc.block & !(BLOCKS - 1);
        let Some(entry) = self.parts.iter_mut().find(|(f, _)| *f == first) else {
            return Err(Reason::NoMemory);
        };
        let from = (loc.block - first) / PART;
        let to = (loc.block - first + (1 << loc.order)).div_ceil(PART);
        for part in from..to {
            if entry.1 & 1 << part != 0 {
                continue;
            }
            let bytes = PART as usize * BLOCK_BYTES;
            if !may_take(board, self.bytes_owned, bytes, bytes_max, loc.order > SMALL) {
                return Err(Reason::NoMemory);
            }
            let offset = (first + part * PART) as usize * BLOCK_BYTES;
            board.map.commit(board.fd(), offset, bytes).map_err(|_| Reason::NoMemory)?;
            entry.1 |= 1 << part;
            self.bytes_owned += bytes;
        }
        Ok(())
    }

    /// Gives a ring block back.
    pub fn free_block(&mut self, board: &Board, loc: Loc) {
        self.bytes_used = self.bytes_used.saturating_sub(loc.bytes());
        self.insert(loc);
        self.account(board);
    }

    /// Gives pages of free blocks back to the system, but for about `keep` bytes.
    pub fn trim(&mut self, board: &Board, keep: usize) {
        let whole = PART.trailing_zeros();
        for order in whole..=Loc::ORDER_MAX {
            for block in self.free[order as usize].clone() {
                let first = block & !(BLOCKS - 1);
                let Some(entry) = self.parts.iter_mut().find(|(f, _)| *f == first) else {
                    continue;
                };
                let from = (block - first) / PART;
                for part in from..from + (1 << (order - whole)) {
                    if entry.1 & 1 << part == 0 {
                        continue;
                    }
                    if self.bytes_owned <= self.bytes_halves + self.bytes_used + keep {
                        return self.account(board);
                    }
                    let bytes = PART as usize * BLOCK_BYTES;
                    board.map.release(
                        board.fd(),
                        (first + part * PART) as usize * BLOCK_BYTES,
                        bytes,
                    );
                    entry.1 &= !(1 << part);
                    self.bytes_owned -= bytes;
                }
            }
        }
        self.account(board);
    }

    fn insert(&mut self, loc: Loc) {
        let Loc { mut block, mut order } = loc;
        while order < Loc::ORDER_MAX {
            let buddy = block ^ (1 << order);
            if !self.free[order as usize].remove(&buddy) {
                break;
            }
            block &= buddy;
            order += 1;
        }
        self.free[order as usize].insert(block);
    }
}

/// Whether who owns so much may take so many bytes more: `bytes_max` is its own limit, and its control group may have one.
/// What is large takes no more than half of either: readers that are slow would leave nothing for new connections.
fn may_take(board: &Board, owned: usize, bytes: usize, bytes_max: usize, is_large: bool) -> bool {
    let most = if is_large { bytes_max / 2 } else { bytes_max };
    owned + bytes <= most && board.group_has_room(owned, bytes, is_large)
}

/// Whether the peer of a closed half will not look at it any more: it has closed too, serves
/// another connection, or is gone.
fn peer_is_done(board: &Board, index: u32, half: &Half) -> bool {
    let Some(peer) = half.peer.load(Ordering::Relaxed).checked_sub(1) else { return true };
    let Some(p) = board.map.half(peer) else { return true };
    let same = p.generation.load(Ordering::Acquire) == half.peer_generation.load(Ordering::Relaxed);
    if same && p.state.load(Ordering::Acquire) == half_state::OFFERED {
        // A client whose offer we took, and which has not looked yet.
        return false;
    }
    p.generation.load(Ordering::Acquire) != half.peer_generation.load(Ordering::Relaxed)
        || p.peer.load(Ordering::Acquire) != index + 1
        || p.flags.load(Ordering::Acquire) & (half_flags::CLOSED | half_flags::GONE) != 0
        || p.state.load(Ordering::Acquire) == half_state::FREE
}

#[cfg(test)]
mod tests;
