//! smb2.lock, as far as it is about one table, and random requests against a table that looks at every lock.

use proptest::prelude::*;

use super::{LockElement, LockFlags, LockOutcome, Locks};
use crate::NtStatus;
use crate::files::{Limits, OpenId, Waiter};

const SHARED: LockFlags = LockFlags::SHARED;
const EXCLUSIVE: LockFlags = LockFlags::EXCLUSIVE;
const NOW: LockFlags = LockFlags::FAIL_IMMEDIATELY;
const UNLOCK: LockFlags = LockFlags::UNLOCK;

const fn refused(status: NtStatus) -> LockOutcome {
    LockOutcome::Refused(status)
}

fn element(offset: u64, length: u64, flags: LockFlags) -> LockElement {
    LockElement { offset, length, flags }
}

fn ask(locks: &mut Locks, open: u64, elements: &[LockElement]) -> LockOutcome {
    // Enough to give back.
    let mut held = 30_000;
    locks.request((OpenId(open), 0), elements, Waiter(open), &mut held, &Limits::default())
}

fn lock(locks: &mut Locks, open: u64, offset: u64, length: u64, flags: LockFlags) -> LockOutcome {
    ask(locks, open, &[element(offset, length, flags | NOW)])
}

fn unlock(locks: &mut Locks, open: u64, offset: u64, length: u64) -> LockOutcome {
    ask(locks, open, &[element(offset, length, UNLOCK)])
}

/// smb2.lock.valid-request: which flags there may be, in which combinations.
#[test]
fn what_may_be_asked_for() {
    let wrong = refused(NtStatus::INVALID_PARAMETER);
    let one = |flags| {
        let mut locks = Locks::default();
        ask(&mut locks, 1, &[element(100, 50, flags)])
    };
    for flags in [SHARED, EXCLUSIVE, SHARED | NOW, EXCLUSIVE | NOW] {
        assert_eq!(one(flags), LockOutcome::Done, "{flags:?}");
    }
    assert_eq!(one(UNLOCK), refused(NtStatus::RANGE_NOT_LOCKED));
    let strange = [0, 3, 5, 6, 7, 0x10, 0x13, 0x14, 0x20, 0x22, u32::MAX];
    for bits in strange {
        assert_eq!(one(LockFlags::from_bits_retain(bits)), wrong, "{bits:#x}");
    }
    let mut locks = Locks::default();
    assert_eq!(ask(&mut locks, 1, &[]), wrong);
    // Several, of which one would wait.
    let several = |first, second| {
        let mut locks = Locks::default();
        ask(&mut locks, 1, &[element(0, 1, first), element(5, 1, second)])
    };
    assert_eq!(several(SHARED | NOW, EXCLUSIVE | NOW), LockOutcome::Done);
    assert_eq!(several(SHARED, SHARED), wrong);
    assert_eq!(several(SHARED | NOW, SHARED), wrong);
    assert_eq!(several(SHARED, SHARED | NOW), wrong);
    assert_eq!(several(SHARED | NOW, UNLOCK), wrong);
}

/// smb2.lock.valid-request, multiple-unlock: what comes before an error stays unlocked.
#[test]
fn unlocking_goes_as_far_as_it_can() {
    let mut locks = Locks::default();
    for at in [0, 10, 20] {
        assert_eq!(lock(&mut locks, 1, at, 1, EXCLUSIVE), LockOutcome::Done);
    }
    let elements = [element(0, 1, UNLOCK), element(10, 1, SHARED), element(20, 1, UNLOCK)];
    assert_eq!(ask(&mut locks, 1, &elements), refused(NtStatus::INVALID_PARAMETER));
    let elements = [element(10, 1, UNLOCK), element(11, 1, UNLOCK), element(20, 1, UNLOCK)];
    assert_eq!(ask(&mut locks, 1, &elements), refused(NtStatus::RANGE_NOT_LOCKED));
    assert_eq!(locks.len(), 1);
    assert_eq!(unlock(&mut locks, 2, 20, 1), refused(NtStatus::RANGE_NOT_LOCKED), "not his");
    assert_eq!(unlock(&mut locks, 1, 20, 2), refused(NtStatus::RANGE_NOT_LOCKED), "not this one");
    assert_eq!(unlock(&mut locks, 1, 20, 1), LockOutcome::Done);
    assert!(locks.is_empty());
}

/// smb2.lock.range: where the last byte has no number.
#[test]
fn ranges_have_an_end() {
    let max = u64::MAX;
    let wrong = refused(NtStatus::INVALID_LOCK_RANGE);
    let cases = [
        (0, 0, LockOutcome::Done),
        (0, max, LockOutcome::Done),
        (1, max, LockOutcome::Done),
        (2, max, wrong),
        (max, 0, LockOutcome::Done),
        (max, 1, LockOutcome::Done),
        (max, 2, wrong),
        (max, max, wrong),
        (max - 1, 2, LockOutcome::Done),
        (max - 1, 3, wrong),
        (1 << 63, 1 << 63, LockOutcome::Done),
        (1 << 63, (1 << 63) + 1, wrong),
    ];
    for (offset, length, outcome) in cases {
        let mut locks = Locks::default();
        assert_eq!(lock(&mut locks, 1, offset, length, EXCLUSIVE), outcome, "{offset} {length}");
        let done = outcome == LockOutcome::Done;
        assert_eq!(unlock(&mut locks, 1, offset, length) == LockOutcome::Done, done);
    }
    // All or none: the first was had, and is given back.
    let mut locks = Locks::default();
    let elements = [element(0, 1, EXCLUSIVE | NOW), element(max, 2, EXCLUSIVE | NOW)];
    assert_eq!(ask(&mut locks, 1, &elements), wrong);
    assert!(locks.is_empty());
}

/// smb2.lock.zerobytelength, zerobyteread: no bytes are between two bytes.
#[test]
fn locks_of_no_bytes() {
    // (offset, length) held, and asked for by another: whether they are in each other's way.
    let cases = [
        ((10, 0), (10, 0), false),
        ((10, 0), (10, 1), false),
        ((10, 0), (9, 1), false),
        ((10, 0), (9, 2), true),
        ((10, 0), (0, 100), true),
        ((9, 2), (10, 0), true),
        ((10, 5), (10, 0), false),
        ((10, 5), (15, 0), false),
        ((10, 5), (14, 0), true),
        ((0, 0), (0, 0), false),
        ((0, 0), (0, 100), false),
        ((0, 100), (0, 0), false),
        ((0, u64::MAX), (u64::MAX, 0), false),
        ((1, u64::MAX), (u64::MAX, 0), true),
    ];
    for (held, wanted, conflict) in cases {
        let mut locks = Locks::default();
        lock(&mut locks, 1, held.0, held.1, EXCLUSIVE);
        let outcome = lock(&mut locks, 2, wanted.0, wanted.1, EXCLUSIVE);
        let expected =
            if conflict { refused(NtStatus::LOCK_NOT_GRANTED) } else { LockOutcome::Done };
        assert_eq!(outcome, expected, "{held:?} {wanted:?}");
        assert!(!locks.conflicts_with_io(OpenId(3), 0, (10, 0), true), "no bytes are written");
    }
}

/// smb2.lock.overlap, stacking, contend, context: own locks and those of others.
#[test]
fn shared_and_exclusive() {
    let no = refused(NtStatus::LOCK_NOT_GRANTED);
    let done = LockOutcome::Done;
    // (held, wanted, by the same open, by another)
    let cases = [
        (SHARED, SHARED, done, done),
        (SHARED, EXCLUSIVE, no, no),
        (EXCLUSIVE, SHARED, done, no),
        (EXCLUSIVE, EXCLUSIVE, no, no),
    ];
    for (held, wanted, same, other) in cases {
        for (open, outcome) in [(1, same), (2, other)] {
            let mut locks = Locks::default();
            lock(&mut locks, 1, 10, 10, held);
            assert_eq!(lock(&mut locks, open, 15, 10, wanted), outcome, "{held:?} {wanted:?}");
            assert_eq!(lock(&mut locks, open, 20, 10, wanted), done);
        }
    }
    // An exclusive lock carries shared ones of the same range, and goes first.
    let mut locks = Locks::default();
    lock(&mut locks, 1, 0, 10, EXCLUSIVE);
    lock(&mut locks, 1, 0, 10, SHARED);
    unlock(&mut locks, 1, 0, 10);
    assert!(!locks.conflicts_with_io(OpenId(2), 0, (0, 10), false));
    assert!(locks.conflicts_with_io(OpenId(2), 0, (0, 10), true));
    unlock(&mut locks, 1, 0, 10);
    assert_eq!(unlock(&mut locks, 1, 0, 10), refused(NtStatus::RANGE_NOT_LOCKED));
}

#[test]
fn a_read_beyond_the_end_of_numbers_meets_what_is_there() {
    let mut locks = Locks::default();
    lock(&mut locks, 1, u64::MAX, 1, EXCLUSIVE);
    assert!(locks.conflicts_with_io(OpenId(2), 0, (u64::MAX - 5, u64::MAX), false));
}

/// A great many locks, as smb2.lock.many has: each request looks at few of them.
#[test]
fn many_locks() {
    let mut locks = Locks::default();
    lock(&mut locks, 9, 1 << 40, 1 << 40, SHARED);
    for at in 0..20_000 {
        assert_eq!(lock(&mut locks, at % 7, at * 3, 2, EXCLUSIVE), LockOutcome::Done);
    }
    for at in 0..20_000 {
        assert!(locks.conflicts_with_io(OpenId(8), 0, (at * 3 + 1, 1), false));
        assert!(!locks.conflicts_with_io(OpenId(8), 0, (at * 3 + 2, 1), true));
    }
    locks.remove_open(OpenId(3), &mut |_| {});
    assert!(!locks.conflicts_with_io(OpenId(8), 0, (9, 2), true));
    assert_eq!(locks.len(), 1 + 20_000 - 2857);
}

/// However many locks others have, nobody looks at all of them: if that were done, this would go on for minutes.
#[test]
fn many_locks_of_others_that_are_almost_in_the_way() {
    for of in [
        (|_| element(0, 1 << 16, SHARED | NOW)) as fn(u64) -> LockElement,
        |at| element(at, 1 << 15, SHARED | NOW),
        |_| element(1 << 16, 0, EXCLUSIVE | NOW),
    ] {
        let mut locks = Locks::default();
        let mut held = 0;
        for at in 0..1 << 15 {
            let element = [of(at)];
            let owner = (OpenId(1), 0);
            locks.request(owner, &element, Waiter(0), &mut held, &Limits::default());
        }
        for _ in 0..20_000 {
            assert!(!locks.conflicts_with_io(OpenId(2), 0, (1 << 16, 10), true));
            assert_eq!(lock(&mut locks, 2, 0, 1 << 16, SHARED), LockOutcome::Done);
            assert_eq!(unlock(&mut locks, 2, 0, 1 << 16), LockOutcome::Done);
            lock(&mut locks, 2, 1 << 20, 1, SHARED);
            locks.remove_open(OpenId(2), &mut |_| {});
        }
        assert_eq!(locks.len(), 1 << 15);
    }
}

/// The same, without any order: what is slow and plainly right.
#[derive(Default)]
struct Model {
    held: Vec<(u64, u64, u64, bool)>,
    queue: Vec<(u64, (u64, u64, u64, bool))>,
}

/// In numbers that do not wrap: the bytes of a range, and for none the gap before its offset.
fn meet(a: (u64, u64), b: (u64, u64)) -> bool {
    let [(a0, a1), (b0, b1)] = [a, b]
        .map(|(offset, length)| (u128::from(offset), u128::from(offset) + u128::from(length)));
    match (a0 == a1, b0 == b1) {
        (true, true) => false,
        (true, false) => b0 < a0 && a0 < b1,
        (false, true) => a0 < b0 && b0 < a1,
        (false, false) => a0 < b1 && b0 < a1,
    }
}

impl Model {
    fn conflicts(&self, wanted: (u64, u64, u64, bool)) -> bool {
        let (open, offset, length, exclusive) = wanted;
        self.held.iter().any(|(owner, at, size, held_exclusive)| {
            meet((offset, length), (*at, *size))
                && (exclusive || (*held_exclusive && *owner != open))
        })
    }

    fn grant(&mut self) -> Vec<u64> {
        let mut granted = Vec::new();
        let mut at = 0;
        while at < self.queue.len() {
            if self.conflicts(self.queue[at].1) {
                at += 1;
            } else {
                let (waiter, wanted) = self.queue.remove(at);
                self.held.push(wanted);
                granted.push(waiter);
            }
        }
        granted
    }

    fn unlock(&mut self, open: u64, offset: u64, length: u64) -> bool {
        let same = |exclusive: bool| {
            self.held.iter().position(|h| *h == (open, offset, length, exclusive))
        };
        let Some(at) = same(true).or_else(|| same(false)) else { return false };
        self.held.remove(at);
        true
    }

    fn blocks(&self, open: u64, offset: u64, length: u64, write: bool) -> bool {
        length > 0
            && self.held.iter().any(|(owner, at, size, exclusive)| {
                meet((offset, length), (*at, *size))
                    && if *exclusive { *owner != open } else { write }
            })
    }
}

#[derive(Clone, Debug)]
enum Step {
    Lock { open: u64, ranges: Vec<(u64, u64, bool)>, wait: bool },
    Unlock { open: u64, range: (u64, u64) },
    Close { open: u64 },
    Cancel { waiter: u64 },
    Io { open: u64, range: (u64, u64), write: bool },
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    let high = u64::MAX - 20;
    prop_oneof![
        6 => (0..20_u64, 0..8_u64),
        1 => (0..20_u64, prop_oneof![Just(100), Just(1 << 40), Just(u64::MAX - 30)]),
        1 => (high..=u64::MAX, 0..8_u64),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let open = 0..4_u64;
    let ranges = prop::collection::vec((range(), any::<bool>()), 1..4);
    prop_oneof![
        4 => (open.clone(), ranges, any::<bool>()).prop_map(|(open, ranges, wait)| {
            let ranges: Vec<_> = ranges.into_iter().map(|((o, l), e)| (o, l, e)).collect();
            let wait = wait && ranges.len() == 1;
            Step::Lock { open, ranges, wait }
        }),
        3 => (open.clone(), range()).prop_map(|(open, range)| Step::Unlock { open, range }),
        1 => open.clone().prop_map(|open| Step::Close { open }),
        1 => (0..100_u64).prop_map(|waiter| Step::Cancel { waiter }),
        3 => (open, range(), any::<bool>())
            .prop_map(|(open, range, write)| Step::Io { open, range, write }),
    ]
}

fn expect(model: &mut Model, step: &Step, waiter: u64) -> LockOutcome {
    match step {
        Step::Lock { open, ranges, wait } => {
            let before = model.held.len();
            for (offset, length, exclusive) in ranges {
                let wanted = (*open, *offset, *length, *exclusive);
                let status = if u128::from(*offset) + u128::from(*length) > 1 << 64 {
                    NtStatus::INVALID_LOCK_RANGE
                } else if model.conflicts(wanted) {
                    if *wait {
                        model.queue.push((waiter, wanted));
                        return LockOutcome::Wait;
                    }
                    NtStatus::LOCK_NOT_GRANTED
                } else {
                    model.held.push(wanted);
                    continue;
                };
                model.held.truncate(before);
                return refused(status);
            }
            LockOutcome::Done
        }
        Step::Unlock { open, range: (offset, length) } => {
            if model.unlock(*open, *offset, *length) {
                LockOutcome::Done
            } else {
                refused(NtStatus::RANGE_NOT_LOCKED)
            }
        }
        _ => LockOutcome::Done,
    }
}

proptest! {
    #[test]
    fn as_if_every_lock_were_looked_at(steps in prop::collection::vec(step(), 1..120)) {
        let (mut locks, mut model) = (Locks::default(), Model::default());
        let mut held = [0_u32; 4];
        for (at, step) in steps.iter().enumerate() {
            let waiter = u64::try_from(at).unwrap();
            let (open, elements) = match step {
                Step::Lock { open, ranges, wait } => {
                    let now = if *wait { LockFlags::empty() } else { NOW };
                    let flags = |exclusive| if exclusive { EXCLUSIVE | now } else { SHARED | now };
                    (*open, ranges.iter().map(|(o, l, e)| element(*o, *l, flags(*e))).collect())
                }
                Step::Unlock { open, range } => (*open, vec![element(range.0, range.1, UNLOCK)]),
                Step::Close { open } => {
                    locks.remove_open(OpenId(*open), &mut |_| {});
                    held[usize::try_from(*open).unwrap()] = 0;
                    model.held.retain(|h| h.0 != *open);
                    model.queue.retain(|(_, h)| h.0 != *open);
                    (*open, Vec::new())
                }
                Step::Cancel { waiter } => {
                    let waits = model.queue.iter().position(|(w, _)| w == waiter);
                    let open = waits.map(|at| model.queue.remove(at).1.0);
                    prop_assert_eq!(locks.cancel(Waiter(*waiter)).map(|o| o.0), open);
                    if let Some(open) = open {
                        held[usize::try_from(open).unwrap()] -= 1;
                    }
                    (0, Vec::new())
                }
                Step::Io { open, range, write } => {
                    let met = locks.conflicts_with_io(OpenId(*open), 0, *range, *write);
                    prop_assert_eq!(met, model.blocks(*open, range.0, range.1, *write));
                    (*open, Vec::new())
                }
            };
            if !elements.is_empty() {
                let held = &mut held[usize::try_from(open).unwrap()];
                let outcome =
                    locks.request((OpenId(open), 0), &elements, Waiter(waiter), held, &Limits::default());
                prop_assert_eq!(outcome, expect(&mut model, step, waiter), "{:?}", step);
            }
            let mut granted = Vec::new();
            locks.grant_waiting(&mut |waiter| granted.push(waiter.0));
            prop_assert_eq!(granted, model.grant());
            prop_assert_eq!(locks.len(), model.held.len());
            prop_assert_eq!(locks.waiting(), model.queue.len());
            let all: u32 = held.iter().sum();
            prop_assert_eq!(usize::try_from(all).unwrap(), locks.len() + locks.waiting());
        }
    }
}
