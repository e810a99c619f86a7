//! Byte-range locks (MS-SMB2 3.3.5.14, MS-FSA 2.1.5.7, 2.1.5.8).
//!
//! Locks stand in one ordered map, by kind, stream, **class** and start; those that are the same are one entry with a
//! count. The class of a lock is the number of bits of its length; so the locks of a class that may overlap a range
//! begin within a known distance before it, however long other locks are. A search looks at the classes that have a
//! lock, at most 65.
//!
//! What is searched must not depend on how many locks others have put there, as the file's shard waits meanwhile. Of
//! exclusive locks, which do not overlap each other, at most two of a class begin before a range and may still end
//! before it. Shared ones may be any number: the class is divided into **buckets** by start, each half as long as the
//! longest lock, and so no longer than the shortest one. A lock that begins in the bucket of the range's first byte,
//! no later than that byte, reaches it; of each of the two buckets before, the last byte that is locked tells.

mod sequence;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use bitflags::bitflags;

use super::effects::LockOutcome;
use super::key::{OpenId, Waiter};
use super::limits::Limits;
use crate::NtStatus;
pub use sequence::LockSequence;

bitflags! {
    /// What a lock element asks for (MS-SMB2 2.2.26.1). Bits without a name are kept, so that they are refused.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LockFlags: u32 {
        /// Nobody may write, several may read.
        const SHARED = 1;
        /// Nobody else may read or write.
        const EXCLUSIVE = 2;
        /// Gives a lock back.
        const UNLOCK = 4;
        /// Does not wait.
        const FAIL_IMMEDIATELY = 0x10;
        const _ = !0;
    }
}

/// One range of a lock request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockElement {
    /// The first byte.
    pub offset: u64,
    /// How many bytes; 0 is a place between two bytes.
    pub length: u64,
    /// What to do about it.
    pub flags: LockFlags,
}

/// A lock, and its place among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct At {
    exclusive: bool,
    stream: u64,
    class: u8,
    start: u64,
    length: u64,
    open: OpenId,
}

/// The last byte of a shared lock, among those of its bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    stream: u64,
    class: u8,
    bucket: u64,
    last: u64,
}

/// A lock that is wanted, or a range that is to be read or written.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    open: OpenId,
    stream: u64,
    start: u64,
    length: u64,
    exclusive: bool,
}

/// The classes: 0 to 64 bits.
const CLASSES: usize = 65;

#[derive(Debug)]
pub(super) struct Locks {
    /// How many there are of each.
    held: BTreeMap<At, u32>,
    /// The same, by whose they are.
    owned: BTreeSet<(OpenId, At)>,
    /// How many of those in `held` end there.
    ends: BTreeMap<End, u32>,
    /// How many in `held` there are of each class, shared and exclusive.
    counts: [[u32; CLASSES]; 2],
    /// How many locks there are.
    total: usize,
    queue: VecDeque<(Waiter, Wanted)>,
}

impl Default for Locks {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
            owned: BTreeSet::new(),
            ends: BTreeMap::new(),
            counts: [[0; CLASSES]; 2],
            total: 0,
            queue: VecDeque::new(),
        }
    }
}

impl At {
    /// Before all of that class that begin at `start` or later.
    const fn before(exclusive: bool, stream: u64, class: u8, start: u64) -> Self {
        Self { exclusive, stream, class, start, length: 0, open: OpenId(0) }
    }

    /// Where it ends, if that is to be known.
    fn end(&self) -> Option<End> {
        let bits = self.class.checked_sub(1).filter(|_| !self.exclusive)?;
        let last = last(self.start, self.length)?;
        Some(End { stream: self.stream, class: self.class, bucket: self.start >> bits, last })
    }
}

/// The number of bits of a length.
fn class(length: u64) -> u8 {
    u8::try_from(u64::BITS - length.leading_zeros()).unwrap_or(64)
}

/// The greatest length of a class.
fn longest(class: usize) -> u64 {
    match u32::try_from(class) {
        Ok(bits @ 0..=63) => (1 << bits) - 1,
        _ => u64::MAX,
    }
}

/// Whether the last byte has a number (MS-FSA 2.1.5.7: else INVALID_LOCK_RANGE).
fn is_valid(start: u64, length: u64) -> bool {
    length == 0 || start.checked_add(length - 1).is_some()
}

/// The last byte: for no bytes, the one before the first, which for (0, 0) there is not.
fn last(start: u64, length: u64) -> Option<u64> {
    if length == 0 { start.checked_sub(1) } else { Some(start.saturating_add(length - 1)) }
}

/// MS-FSA 2.1.4.10. A range of no bytes is overlapped by what has a byte before it and one behind.
fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    match (last(a.0, a.1), last(b.0, b.1)) {
        (Some(last_a), Some(last_b)) => a.0 <= last_b && b.0 <= last_a,
        _ => false,
    }
}

/// What a request of several elements is.
enum Kind {
    Lock { wait: bool },
    Unlock,
}

/// The first element says which it is; MS-SMB2 3.3.5.14.
fn kind(elements: &[LockElement]) -> Result<Kind, NtStatus> {
    let (first, rest) = elements.split_first().ok_or(NtStatus::INVALID_PARAMETER)?;
    let lock = |flags: LockFlags| {
        let mode = flags.difference(LockFlags::FAIL_IMMEDIATELY);
        mode == LockFlags::SHARED || mode == LockFlags::EXCLUSIVE
    };
    if first.flags == LockFlags::UNLOCK {
        // What is wrong with a later one shows when its turn comes.
        return Ok(Kind::Unlock);
    }
    let wait = !first.flags.contains(LockFlags::FAIL_IMMEDIATELY);
    let patient = |e: &LockElement| !e.flags.contains(LockFlags::FAIL_IMMEDIATELY);
    let wrong = !elements.iter().all(|e| lock(e.flags))
        || (!rest.is_empty() && elements.iter().any(patient));
    if wrong { Err(NtStatus::INVALID_PARAMETER) } else { Ok(Kind::Lock { wait }) }
}

impl Locks {
    pub(super) fn is_empty(&self) -> bool {
        self.total == 0
    }

    pub(super) fn len(&self) -> usize {
        self.total
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Those that are had and those that are waited for.
    pub(super) fn all(&self) -> usize {
        self.total + self.queue.len()
    }

    /// Whether there is a lock on this stream.
    pub(super) fn any_of(&self, stream: u64) -> bool {
        [false, true].into_iter().any(|exclusive| {
            let next = self.held.range(At::before(exclusive, stream, 0, 0)..).next();
            next.is_some_and(|(at, _)| at.exclusive == exclusive && at.stream == stream)
        })
    }

    /// The classes that have a lock of one kind.
    fn classes(&self, exclusive: bool) -> impl Iterator<Item = u8> {
        let counts = &self.counts[usize::from(exclusive)];
        (0..).zip(counts).filter(|(_, count)| **count > 0).map(|(class, _)| class)
    }

    /// The locks of a class that begin there.
    fn begin(
        &self,
        exclusive: bool,
        stream: u64,
        class: u8,
        starts: RangeInclusive<u64>,
    ) -> impl Iterator<Item = &At> {
        let (low, high) = starts.into_inner();
        let first = At::before(exclusive, stream, class, low);
        let past = At { length: u64::MAX, open: OpenId(u64::MAX), ..first };
        let past = At { start: high, ..past };
        // A map does not take a range that ends before it begins.
        (low <= high).then(|| self.held.range(first..=past).map(|(at, _)| at)).into_iter().flatten()
    }

    /// Whether an exclusive lock overlaps a range and belongs to one who is `other`.
    fn meets_exclusive(&self, wanted: &Wanted, other: impl Fn(OpenId) -> bool) -> bool {
        let Some(high) = last(wanted.start, wanted.length) else { return false };
        let range = (wanted.start, wanted.length);
        self.classes(true).any(|class| {
            // Those of no bytes may be many at one place: at the first byte they are before it.
            let low = match class {
                0 => wanted.start.saturating_add(1),
                _ => wanted.start.saturating_sub(longest(class.into())),
            };
            self.begin(true, wanted.stream, class, low..=high)
                .any(|at| other(at.open) && overlap((at.start, at.length), range))
        })
    }

    /// Whether a shared lock overlaps a range.
    fn meets_shared(&self, wanted: &Wanted) -> bool {
        let Some(high) = last(wanted.start, wanted.length) else { return false };
        let stream = wanted.stream;
        self.classes(false).any(|class| {
            let begins = |low| self.begin(false, stream, class, low..=high).next().is_some();
            let Some(bits) = class.checked_sub(1) else {
                return begins(wanted.start.saturating_add(1));
            };
            let bucket = wanted.start >> bits;
            let reaches = |bucket: u64| {
                let first = End { stream, class, bucket, last: 0 };
                let mut ends = self.ends.range(first..=End { last: u64::MAX, ..first });
                ends.next_back().is_some_and(|(end, _)| end.last >= wanted.start)
            };
            begins(bucket << bits)
                || (1..=2).any(|back| bucket.checked_sub(back).is_some_and(reaches))
        })
    }

    /// Whether a lock is kept from being granted.
    fn conflicts(&self, wanted: &Wanted) -> bool {
        if wanted.exclusive {
            // Not even beside one's own.
            return self.meets_exclusive(wanted, |_| true) || self.meets_shared(wanted);
        }
        // Who has the range exclusively may have it shared as well.
        self.meets_exclusive(wanted, |open| open != wanted.open)
    }

    /// Whether reading or writing a range is kept from an open (MS-FSA 2.1.4.10).
    pub(super) fn conflicts_with_io(
        &self,
        open: OpenId,
        stream: u64,
        (start, length): (u64, u64),
        write: bool,
    ) -> bool {
        if length == 0 {
            return false;
        }
        let wanted = Wanted { open, stream, start, length, exclusive: write };
        // Nobody writes to a range that is locked shared, not even who has locked it.
        self.meets_exclusive(&wanted, |other| other != open)
            || (write && self.meets_shared(&wanted))
    }

    fn insert(&mut self, wanted: &Wanted) -> At {
        let &Wanted { open, stream, start, length, exclusive } = wanted;
        let at = At { exclusive, stream, class: class(length), start, length, open };
        let count = self.held.entry(at).or_insert(0);
        *count += 1;
        self.total += 1;
        if *count == 1 {
            self.owned.insert((open, at));
            self.counts[usize::from(exclusive)][usize::from(at.class)] += 1;
            if let Some(end) = at.end() {
                *self.ends.entry(end).or_insert(0) += 1;
            }
        }
        at
    }

    fn remove(&mut self, at: At) {
        let Some(count) = self.held.get_mut(&at) else { return };
        if *count > 1 {
            *count -= 1;
            self.total -= 1;
        } else {
            self.owned.remove(&(at.open, at));
            self.forget(at);
        }
    }

    /// Forgets all locks of an entry, which is in `owned` no more.
    fn forget(&mut self, at: At) {
        self.total -= self.held.remove(&at).map_or(0, |count| count as usize);
        self.counts[usize::from(at.exclusive)][usize::from(at.class)] -= 1;
        let Some(end) = at.end() else { return };
        if let Some(count) = self.ends.get_mut(&end) {
            *count -= 1;
            if *count == 0 {
                self.ends.remove(&end);
            }
        }
    }

    /// All elements, or none of them. `held` counts the locks of this open.
    pub(super) fn request(
        &mut self,
        (open, stream): (OpenId, u64),
        elements: &[LockElement],
        waiter: Waiter,
        held: &mut u32,
        limits: &Limits,
    ) -> LockOutcome {
        match kind(elements) {
            Err(status) => LockOutcome::Refused(status),
            Ok(Kind::Unlock) => self.unlock((open, stream), elements, held),
            Ok(Kind::Lock { wait }) => {
                let wanted = elements.iter().map(|e| Wanted {
                    open,
                    stream,
                    start: e.offset,
                    length: e.length,
                    exclusive: e.flags.contains(LockFlags::EXCLUSIVE),
                });
                self.lock(wanted, wait.then_some(waiter), held, limits)
            }
        }
    }

    fn lock(
        &mut self,
        all: impl Iterator<Item = Wanted>,
        waiter: Option<Waiter>,
        held: &mut u32,
        limits: &Limits,
    ) -> LockOutcome {
        let mut got = Vec::new();
        for wanted in all {
            let refused = if !is_valid(wanted.start, wanted.length) {
                Some(NtStatus::INVALID_LOCK_RANGE)
            } else if *held >= limits.locks_per_open || self.all() >= limits.locks_per_file {
                Some(NtStatus::INSUFFICIENT_RESOURCES)
            } else if self.conflicts(&wanted) {
                if let Some(waiter) = waiter {
                    if self.queue.len() >= limits.waiters_per_file {
                        return LockOutcome::Refused(NtStatus::INSUFFICIENT_RESOURCES);
                    }
                    self.queue.push_back((waiter, wanted));
                    *held += 1;
                    return LockOutcome::Wait;
                }
                Some(NtStatus::LOCK_NOT_GRANTED)
            } else {
                None
            };
            if let Some(status) = refused {
                for at in got {
                    self.remove(at);
                    *held -= 1;
                }
                return LockOutcome::Refused(status);
            }
            got.push(self.insert(&wanted));
            *held += 1;
        }
        LockOutcome::Done
    }

    /// One after the other: what comes before one that is wrong stays unlocked.
    fn unlock(
        &mut self,
        (open, stream): (OpenId, u64),
        elements: &[LockElement],
        held: &mut u32,
    ) -> LockOutcome {
        for element in elements {
            if element.flags != LockFlags::UNLOCK {
                return LockOutcome::Refused(NtStatus::INVALID_PARAMETER);
            }
            let Some(at) = self.find(open, stream, element) else {
                return LockOutcome::Refused(NtStatus::RANGE_NOT_LOCKED);
            };
            self.remove(at);
            *held -= 1;
        }
        LockOutcome::Done
    }

    /// A lock of exactly this range: an exclusive one before the shared ones it carries.
    fn find(&self, open: OpenId, stream: u64, element: &LockElement) -> Option<At> {
        let &LockElement { offset: start, length, .. } = element;
        let class = class(length);
        let of = |exclusive| At { exclusive, stream, class, start, length, open };
        [true, false].map(of).into_iter().find(|at| self.held.contains_key(at))
    }

    /// Grants what is free by now, in the order in which it was asked for.
    pub(super) fn grant_waiting(&mut self, granted: &mut dyn FnMut(Waiter)) {
        let mut at = 0;
        while let Some((waiter, wanted)) = self.queue.get(at).copied() {
            if self.conflicts(&wanted) {
                at += 1;
                continue;
            }
            self.insert(&wanted);
            self.queue.remove(at);
            granted(waiter);
        }
    }

    /// Forgets one who waits, and says whose lock it was.
    pub(super) fn cancel(&mut self, waiter: Waiter) -> Option<OpenId> {
        let at = self.queue.iter().position(|(w, _)| *w == waiter)?;
        self.queue.remove(at).map(|(_, wanted)| wanted.open)
    }

    /// All that an open has or waits for.
    pub(super) fn remove_open(&mut self, open: OpenId, cancelled: &mut dyn FnMut(Waiter)) {
        let first = At::before(false, 0, 0, 0);
        let mine = self.owned.range((open, first)..).take_while(|(owner, _)| *owner == open);
        let mine: Vec<_> = mine.copied().collect();
        for mine in mine {
            self.owned.remove(&mine);
            self.forget(mine.1);
        }
        self.queue.retain(|(waiter, wanted)| {
            if wanted.open == open {
                cancelled(*waiter);
            }
            wanted.open != open
        });
    }
}

#[cfg(test)]
mod tests;
