//! From a hash to the number of a record: open addressing in cache lines, growing while in use.
//!
//! A slot is 8 bytes, half of the hash and a record's number, so that a cache line holds eight and a
//! search rarely leaves it. There is room for four times as many at least, while that is in a core's own caches,
//! and else for twice as many: a search that goes on behind its first slot was not foreseen, and what the core
//! has begun meanwhile is lost. When that room ends, or the table is nearly empty, or a search gets so long
//! that somebody may have found out the key, a second table is begun, and each call moves a few slots: no call
//! waits for the whole. Both are cut into segments that come when they are first written to and go when they
//! are passed.

/// Slots in a segment: a page of 4 KiB. Few where every interleaving is tried, so that some datagrams make
/// the table grow.
const SEGMENT: usize = if cfg!(loom) { 8 } else { 512 };
/// The smallest table.
const SLOTS_MIN: usize = SEGMENT;
/// Slots that each call moves while there are two tables.
const MOVES: usize = if cfg!(loom) { 1 } else { 16 };
/// What a move costs into a segment that comes with it, in slots: its memory is most likely new to the
/// process. By another key the first moves go to a new one each.
const SEGMENT_MOVES: usize = 8;
/// A search of this many slots is no chance: at most half of the slots are in use.
const SEARCH_MAX: usize = if cfg!(loom) { 2 } else { 128 };
/// Slots of a table that is in a core's second cache whatever else is there, and of one that alone would fill it. Up to so
/// many are used more freely.
const NEAR_SLOTS: usize = 8192;
const FAR_SLOTS: usize = 131_072;
/// A table is too large when it has more than so many times as many slots as one of a quarter of them would need. Twice
/// that quarter: or it would shrink and grow again.
const SPARSE: usize = if cfg!(loom) { 2 } else { 8 };
/// For each slot of a table that is too large so many records come and go before it is left for a smaller one.
const PATIENCE: usize = if cfg!(loom) { 0 } else { 4 };
/// Slots that are looked at for a guess: nearly all searches end within so many.
const GUESSES: usize = 6;
const EMPTY: u64 = 0;
/// In a table that is being left: was in use.
const GONE: u64 = u64::MAX;

#[derive(Debug)]
struct Table {
    segments: Vec<Option<Box<[u64; SEGMENT]>>>,
    mask: usize,
    used: usize,
    /// Records that there is room for, and of how many or more it is not too large.
    most: usize,
    least: usize,
    /// Segments that have come.
    made: usize,
}

impl Table {
    fn new(slots: usize) -> Self {
        debug_assert!(slots.is_power_of_two() && slots >= SLOTS_MIN);
        // Of zeros, which the system writes when they are first looked at.
        let segments = vec![None; slots / SEGMENT];
        let most = slots / Self::each(slots);
        let least = match slots {
            SLOTS_MIN => 0,
            _ => (slots / SPARSE).div_ceil(Self::each(Self::fewer(slots))),
        };
        Self { segments, mask: slots - 1, used: 0, most, least, made: 0 }
    }

    /// Bytes that a table of so many slots takes once all of its segments have come.
    const fn bytes(slots: usize) -> u64 {
        (slots * size_of::<u64>() + slots / SEGMENT * size_of::<Option<Box<[u64; SEGMENT]>>>())
            as u64
    }

    fn slots(&self) -> usize {
        self.mask + 1
    }

    /// How many of so many slots each record has at least.
    const fn each(slots: usize) -> usize {
        if cfg!(loom) {
            2
        } else if slots < NEAR_SLOTS {
            8
        } else if slots < FAR_SLOTS {
            4
        } else {
            2
        }
    }

    /// Slots of the one that follows a table of so many that is too large.
    const fn fewer(slots: usize) -> usize {
        if slots / 4 > SLOTS_MIN { slots / 4 } else { SLOTS_MIN }
    }

    #[inline]
    fn slot(&self, at: usize) -> u64 {
        #[cfg(test)]
        crate::effort::count(1);
        match &self.segments[at / SEGMENT] {
            Some(segment) => segment[at % SEGMENT],
            None => EMPTY,
        }
    }

    /// A slot that may be written to.
    #[inline]
    fn slot_mut(&mut self, at: usize) -> &mut u64 {
        if self.segments[at / SEGMENT].is_none() {
            self.make(at / SEGMENT);
        }
        let segment = self.segments[at / SEGMENT].as_mut();
        &mut segment.expect("it is there or was just made")[at % SEGMENT]
    }

    #[cold]
    fn make(&mut self, segment: usize) {
        self.made += 1;
        #[cfg(test)]
        crate::effort::count(SEGMENT);
        self.segments[segment] = Some(Box::new([EMPTY; SEGMENT]));
    }

    /// Where a slot with that in it is. No two slots are the same.
    #[inline]
    fn position(&self, wanted: u64) -> Option<usize> {
        let mut at = tag(wanted) as usize & self.mask;
        for _ in 0..self.slots() {
            let slot = self.slot(at);
            if slot == wanted {
                return Some(at);
            }
            if slot == EMPTY {
                return None;
            }
            at = (at + 1) & self.mask;
        }
        None
    }

    /// The slot that leads to a record for which `is` holds.
    #[inline]
    fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<(usize, u32)> {
        let mut at = home(hash) & self.mask;
        for _ in 0..self.slots() {
            let slot = self.slot(at);
            if slot == EMPTY {
                return None;
            }
            if tag(slot) == tag_of(hash) && slot != GONE && is(record(slot)) {
                return Some((at, record(slot)));
            }
            at = (at + 1) & self.mask;
        }
        None
    }

    /// Answers how many slots were passed.
    #[inline]
    fn insert(&mut self, slot: u64) -> usize {
        let mut at = tag(slot) as usize & self.mask;
        let mut passed = 0;
        self.used += 1;
        while let Some(segment) = &mut self.segments[at / SEGMENT] {
            #[cfg(test)]
            crate::effort::count(1);
            let place = &mut segment[at % SEGMENT];
            if *place == EMPTY {
                *place = slot;
                return passed;
            }
            at = (at + 1) & self.mask;
            passed += 1;
        }
        *self.slot_mut(at) = slot;
        passed
    }

    /// [`Self::remove`] of what stands where its search begins, with nothing behind it, as most do. `false`: it does not.
    #[inline(always)]
    fn remove_usual(&mut self, wanted: u64) -> bool {
        let at = tag(wanted) as usize & self.mask;
        #[cfg(test)]
        crate::effort::count(1);
        let Some(segment) = &mut self.segments[at / SEGMENT] else { return false };
        let is_usual = (segment[at % SEGMENT] == wanted)
            & (segment[(at + 1) % SEGMENT] == EMPTY)
            // What is behind the last is in another segment.
            & !(at + 1).is_multiple_of(SEGMENT);
        if is_usual {
            segment[at % SEGMENT] = EMPTY;
            self.used -= 1;
        }
        is_usual
    }

    /// Empties a slot, such that searches may still stop at the first empty one.
    #[inline]
    fn remove(&mut self, at: usize) {
        self.used -= 1;
        if self.slot((at + 1) & self.mask) == EMPTY {
            *self.slot_mut(at) = EMPTY;
        } else {
            self.close(at);
        }
    }

    /// Fills a gap with what stands behind it.
    #[inline(never)]
    fn close(&mut self, mut gap: usize) {
        let mut at = gap;
        loop {
            at = (at + 1) & self.mask;
            let slot = self.slot(at);
            if slot == EMPTY {
                break;
            }
            // Stays if its search begins after the gap.
            let begins = tag(slot) as usize & self.mask;
            if at.wrapping_sub(begins) & self.mask >= at.wrapping_sub(gap) & self.mask {
                *self.slot_mut(gap) = slot;
                gap = at;
            }
        }
        *self.slot_mut(gap) = EMPTY;
    }
}

/// Where a search begins, before the mask: by what the slot itself keeps of the hash, so that slots can be
/// moved without a look at their records.
#[inline]
const fn home(hash: u64) -> usize {
    tag_of(hash) as usize
}

/// What a slot keeps of a hash.
#[inline]
pub(crate) const fn tag_of(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[inline]
const fn tag(slot: u64) -> u32 {
    (slot >> 32) as u32
}

/// Numbers are kept plus one, so that no slot in use is [`EMPTY`].
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the low half")]
const fn record(slot: u64) -> u32 {
    (slot as u32).wrapping_sub(1)
}

#[inline]
const fn emit(hash: u64, record: u32) -> u64 {
    (tag_of(hash) as u64) << 32 | (record as u64 + 1)
}

/// A guess: there is no record. What the empty slot says, so that it needs no branch.
pub(crate) const ABSENT: u32 = record(EMPTY);
/// A guess: it takes a longer search. All numbers of records are less.
pub(crate) const UNKNOWN: u32 = ABSENT - 1;

/// What the caller should do after an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Good,
    /// The search was longer than chance explains: change the key.
    Clustered,
}

/// The table that is being left.
#[derive(Debug)]
struct Old {
    table: Table,
    /// The first slot that has not been moved.
    from: usize,
    /// Its slots are by another key.
    rekeyed: bool,
}

/// The table, or two of them while one follows the other.
#[derive(Debug)]
pub(crate) struct Index {
    now: Table,
    old: Option<Old>,
    /// Tables ever begun, but for the first.
    begun: u64,
    /// Bytes of tables that have gone: see [`Self::freed`].
    freed: u64,
    /// Records put in or taken out since the present table began, in one go.
    worked: usize,
}

impl Index {
    /// What the smallest one takes, bytes.
    pub(crate) const BYTES_MIN: u64 = Table::bytes(SLOTS_MIN);

    pub(crate) fn new() -> Self {
        Self { now: Table::new(SLOTS_MIN), old: None, begun: 0, freed: 0, worked: 0 }
    }

    /// Bytes that the next insertion takes for a second table; 0: none.
    #[inline]
    pub(crate) fn growth(&self) -> u64 {
        if self.is_full() { Table::bytes(self.now.slots() * 2) } else { 0 }
    }

    fn is_full(&self) -> bool {
        self.now.used >= self.now.most && !self.is_moving()
    }

    /// Bytes that [`Self::begin_again`] takes.
    pub(crate) fn again(&self) -> u64 {
        Table::bytes(self.now.slots())
    }

    /// Bytes that [`Self::shrink`] takes at first; 0: it is not too large.
    #[inline]
    pub(crate) fn shrinkage(&self) -> u64 {
        let is_too_large = self.now.used < self.now.least && !self.is_moving();
        if is_too_large { Table::bytes(Table::fewer(self.now.slots())) } else { 0 }
    }

    /// Begins a smaller table.
    pub(crate) fn shrink(&mut self) {
        self.begin(Table::fewer(self.now.slots()), false);
    }

    /// Bytes that it has, for all segments of its tables.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn bytes(&self) -> u64 {
        let old = self.old.as_ref().map_or(0, |old| Table::bytes(old.table.slots()));
        Table::bytes(self.now.slots()) + old
    }

    /// Bytes that tables had which have gone since this was asked last.
    #[inline]
    pub(crate) fn freed(&mut self) -> u64 {
        std::mem::take(&mut self.freed)
    }

    /// Records in it.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.now.used + self.old.as_ref().map_or(0, |old| old.table.used)
    }

    /// How often it has grown, shrunk or changed its key.
    pub(crate) fn begun(&self) -> u64 {
        self.begun
    }

    /// Whether two tables are in use.
    #[inline]
    pub(crate) fn is_moving(&self) -> bool {
        self.old.is_some()
    }

    /// Where a search for `hash` is likely to end: the number of a record, [`UNKNOWN`], or [`ABSENT`]: then
    /// there is none, for sure unless [`Self::is_moving`]. Loads the cache line.
    #[inline(always)]
    pub(crate) fn guess(&self, hash: u64) -> u32 {
        let mut at = home(hash) & self.now.mask;
        for _ in 0..GUESSES {
            let slot = self.now.slot(at);
            // Whether there is one is as good as chance, that the search ends here is not. So one branch
            // for both: a product, which is 0 if a factor is. Below 2^32 are the difference and the
            // number in the slot, not 0: their product is no multiple of 2^64.
            let difference = u64::from(tag(slot) ^ tag_of(hash));
            if slot.wrapping_mul(difference) == 0 {
                return record(slot);
            }
            at = (at + 1) & self.now.mask;
        }
        UNKNOWN
    }

    /// The record for which `is` holds. `old_hash`: its hash by the key before, if that has changed.
    #[inline]
    pub(crate) fn find(
        &self,
        hash: u64,
        old_hash: impl FnOnce() -> u64,
        mut is: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        if let Some((_, record)) = self.now.find(hash, &mut is) {
            return Some(record);
        }
        let old = self.old.as_ref().filter(|old| old.table.used > 0)?;
        let hash = if old.rekeyed { old_hash() } else { hash };
        old.table.find(hash, is).map(|(_, record)| record)
    }

    /// `hash_of`: the hash of a record by the present key. Who inserts has paid for [`Self::growth`].
    #[inline]
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        record: u32,
        hash_of: impl Fn(u32) -> u64,
    ) -> Health {
        // What was paid for is decided before a step may end the last move.
        if self.is_full() {
            self.begin(self.now.slots() * 2, false);
        }
        self.step(&hash_of);
        let passed = self.now.insert(emit(hash, record));
        if passed > SEARCH_MAX && !self.is_moving() { Health::Clustered } else { Health::Good }
    }

    /// Whether [`Self::enter`] may be called: there is one table, with room.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.old.is_none() & (self.now.used < self.now.most)
    }

    /// [`Self::insert`], of which [`Self::is_ready`] said that it takes nothing more.
    #[inline(always)]
    pub(crate) fn enter(&mut self, hash: u64, record: u32) -> Health {
        self.worked += 1;
        let passed = self.now.insert(emit(hash, record));
        if passed > SEARCH_MAX { Health::Clustered } else { Health::Good }
    }

    /// Takes a record out (then ask [`Self::shrinkage`]), whose hash is `hash` and was `old_hash` by the key before.
    #[inline]
    pub(crate) fn remove(
        &mut self,
        hash: u64,
        old_hash: impl FnOnce() -> u64,
        record: u32,
        hash_of: impl Fn(u32) -> u64,
    ) {
        if let Some(at) = self.now.position(emit(hash, record)) {
            self.now.remove(at);
        } else if let Some(old) = self.old.as_mut().filter(|old| old.table.used > 0) {
            let hash = if old.rekeyed { old_hash() } else { hash };
            if let Some(at) = old.table.position(emit(hash, record)) {
                *old.table.slot_mut(at) = GONE;
                old.table.used -= 1;
            }
        }
        self.step(&hash_of);
    }

    /// Whether [`Self::leave`] may be called: there is one table.
    #[inline(always)]
    pub(crate) fn is_one(&self) -> bool {
        self.old.is_none()
    }

    /// Whether there is one table that is too large, and that much work has been done in it: where many come and go at
    /// once, again and again, one would shrink and grow each time.
    #[inline(always)]
    pub(crate) fn is_outgrown(&self) -> bool {
        self.shrinkage() > 0 && self.worked > self.now.slots() * PATIENCE
    }

    /// [`Self::remove`] where there is one table.
    #[inline(always)]
    pub(crate) fn leave(&mut self, hash: u64, record: u32) {
        self.worked += 1;
        let slot = emit(hash, record);
        if !self.now.remove_usual(slot) {
            self.leave_unusual(slot);
        }
    }

    #[inline(never)]
    fn leave_unusual(&mut self, slot: u64) {
        if let Some(at) = self.now.position(slot) {
            self.now.remove(at);
        }
    }

    /// A record has another number from now on.
    pub(crate) fn rename(&mut self, hash: u64, old_hash: u64, from: u32, to: u32) {
        if let Some(at) = self.now.position(emit(hash, from)) {
            *self.now.slot_mut(at) = emit(hash, to);
        } else if let Some(old) = self.old.as_mut().filter(|old| old.table.used > 0) {
            let hash = if old.rekeyed { old_hash } else { hash };
            if let Some(at) = old.table.position(emit(hash, from)) {
                *old.table.slot_mut(at) = emit(hash, to);
            }
        }
    }

    /// Begins a table of the same size: the key has changed.
    pub(crate) fn begin_again(&mut self) {
        debug_assert!(!self.is_moving());
        self.begin(self.now.slots(), true);
    }

    fn begin(&mut self, slots: usize, rekeyed: bool) {
        let table = std::mem::replace(&mut self.now, Table::new(slots));
        self.old = Some(Old { table, from: 0, rekeyed });
        self.worked = 0;
        self.begun += 1;
    }

    /// Moves a few slots, or gives back a segment of what has been moved.
    #[inline(always)]
    pub(crate) fn step(&mut self, hash_of: &impl Fn(u32) -> u64) {
        if self.is_moving() {
            self.step_on(hash_of);
        }
    }

    #[inline(never)]
    fn step_on(&mut self, hash_of: &impl Fn(u32) -> u64) {
        let Some(Old { table, from, rekeyed }) = &mut self.old else { return };
        if table.used == 0 {
            #[cfg(test)]
            crate::effort::count(SEGMENT);
            table.segments.pop();
            if table.segments.is_empty() {
                self.freed += Table::bytes(table.slots());
                self.old = None;
            }
            return;
        }
        let mut left = MOVES.min(table.slots() - *from);
        while left > 0 {
            left -= 1;
            let at = *from;
            *from += 1;
            let slot = table.slot(at);
            if slot == EMPTY || slot == GONE {
                continue;
            }
            // Searches from slots before it still come by here.
            *table.slot_mut(at) = GONE;
            table.used -= 1;
            let record = record(slot);
            let made = self.now.made;
            self.now.insert(if *rekeyed { emit(hash_of(record), record) } else { slot });
            left = left.saturating_sub((self.now.made - made) * SEGMENT_MOVES);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
