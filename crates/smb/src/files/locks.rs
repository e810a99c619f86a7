//! Byte-range locks (MS-SMB2 3.3.5.14, MS-FSA 2.1.5.7, 2.1.5.8).
//!
//! Locks stand in one ordered map, by kind, stream, **class** and start. The class of a lock is the number of
//! bits of its length; so the locks of a class that may overlap a range begin within a known distance before
//! it, however long other locks are. A search looks at the classes that have a lock, at most 65.

mod sequence;

use std::collections::{BTreeMap, VecDeque};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct At {
    exclusive: bool,
    stream: u64,
    class: u8,
    start: u64,
    /// Locks of one range stay in the order in which they came.
    sequence: u64,
}

#[derive(Clone, Copy, Debug)]
struct Lock {
    open: OpenId,
    length: u64,
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
    held: BTreeMap<At, Lock>,
    /// How many there are of each class, shared and exclusive.
    counts: [[u32; CLASSES]; 2],
    next: u64,
    queue: VecDeque<(Waiter, Wanted)>,
}

impl Default for Locks {
    fn default() -> Self {
        Self { held: BTreeMap::new(), counts: [[0; CLASSES]; 2], next: 0, queue: VecDeque::new() }
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
        self.held.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len()
    }

    fn total(&self) -> usize {
        self.held.len() + self.queue.len()
    }

    /// Whether there is a lock on this stream.
    pub(super) fn any_of(&self, stream: u64) -> bool {
        [false, true].into_iter().any(|exclusive| {
            let first = At { exclusive, stream, class: 0, start: 0, sequence: 0 };
            self.held
                .range(first..)
                .next()
                .is_some_and(|(at, _)| at.exclusive == exclusive && at.stream == stream)
        })
    }

    /// Whether a lock of one kind overlaps a range and belongs to one who is `other`.
    fn is_met(&self, exclusive: bool, wanted: &Wanted, other: impl Fn(OpenId) -> bool) -> bool {
        let Some(high) = last(wanted.start, wanted.length) else { return false };
        let range = (wanted.start, wanted.length);
        (0..CLASSES).any(|class| {
            if self.counts[usize::from(exclusive)][class] == 0 {
                return false;
            }
            let low = wanted.start.saturating_sub(longest(class));
            if low > high {
                return false;
            }
            let at = |start, sequence| At {
                exclusive,
                stream: wanted.stream,
                class: u8::try_from(class).unwrap_or(u8::MAX),
                start,
                sequence,
            };
            self.held
                .range(at(low, 0)..=at(high, u64::MAX))
                .any(|(at, lock)| other(lock.open) && overlap((at.start, lock.length), range))
        })
    }

    /// Whether a lock is kept from being granted.
    fn conflicts(&self, wanted: &Wanted) -> bool {
        if wanted.exclusive {
            // Not even beside one's own.
            return self.is_met(true, wanted, |_| true) || self.is_met(false, wanted, |_| true);
        }
        // Who has the range exclusively may have it shared as well.
        self.is_met(true, wanted, |open| open != wanted.open)
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
        self.is_met(true, &wanted, |other| other != open)
            || (write && self.is_met(false, &wanted, |_| true))
    }

    fn insert(&mut self, wanted: &Wanted) -> At {
        let at = At {
            exclusive: wanted.exclusive,
            stream: wanted.stream,
            class: class(wanted.length),
            start: wanted.start,
            sequence: self.next,
        };
        self.next += 1;
        self.held.insert(at, Lock { open: wanted.open, length: wanted.length });
        self.counts[usize::from(at.exclusive)][usize::from(at.class)] += 1;
        at
    }

    fn remove(&mut self, at: At) {
        if self.held.remove(&at).is_some() {
            self.counts[usize::from(at.exclusive)][usize::from(at.class)] -= 1;
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
            } else if *held >= limits.locks_per_open || self.total() >= limits.locks_per_file {
                Some(NtStatus::INSUFFICIENT_RESOURCES)
            } else if self.conflicts(&wanted) {
                if let Some(waiter) = waiter {
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

    /// The oldest lock of exactly this range: an exclusive one before the shared ones it carries.
    fn find(&self, open: OpenId, stream: u64, element: &LockElement) -> Option<At> {
        [true, false].into_iter().find_map(|exclusive| {
            let at = |sequence| At {
                exclusive,
                stream,
                class: class(element.length),
                start: element.offset,
                sequence,
            };
            let mut same = self.held.range(at(0)..=at(u64::MAX));
            same.find(|(_, lock)| lock.open == open && lock.length == element.length)
                .map(|(at, _)| *at)
        })
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
        let counts = &mut self.counts;
        self.held.retain(|at, lock| {
            if lock.open == open {
                counts[usize::from(at.exclusive)][usize::from(at.class)] -= 1;
            }
            lock.open != open
        });
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
