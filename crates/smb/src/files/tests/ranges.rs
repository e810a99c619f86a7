//! smb2.lock, as far as it is about several opens.

use super::super::{LockElement, LockFlags, LockOutcome};
use super::*;

const EXCLUSIVE: LockFlags = LockFlags::EXCLUSIVE;
const NOW: LockFlags = LockFlags::FAIL_IMMEDIATELY;
const UNLOCK: LockFlags = LockFlags::UNLOCK;

fn element(offset: u64, length: u64, flags: LockFlags) -> LockElement {
    LockElement { offset, length, flags }
}

impl Stage {
    fn lock(&mut self, open: OpenId, elements: &[LockElement], waiter: u64) -> LockOutcome {
        self.shard.lock(self.now_ms, FILE, open, elements, Waiter(waiter), &mut self.fx)
    }

    fn writes(&self, open: OpenId, offset: u64) -> bool {
        self.shard.check_io(FILE, open, offset, 1, true).is_ok()
    }

    fn reads(&self, open: OpenId, offset: u64) -> bool {
        self.shard.check_io(FILE, open, offset, 1, false).is_ok()
    }
}

/// smb2.lock.rw-exclusive, rw-shared, rw-none.
#[test]
fn who_may_read_and_write() {
    let mut stage = Stage::new();
    let (own, granted) = stage.open(plain());
    let (other, _) = stage.open(plain());
    assert!(granted.flags.is_clear());
    assert_eq!(stage.lock(own, &[element(10, 5, EXCLUSIVE | NOW)], 0), LockOutcome::Done);
    assert!(granted.flags.is_locked());
    assert!(stage.writes(own, 12) && stage.reads(own, 12));
    assert!(!stage.writes(other, 14) && !stage.reads(other, 14));
    assert!(stage.writes(other, 15) && stage.writes(other, 9));
    assert_eq!(stage.lock(own, &[element(10, 5, UNLOCK)], 0), LockOutcome::Done);
    assert!(!granted.flags.is_locked());
    stage.lock(own, &[element(10, 5, LockFlags::SHARED | NOW)], 0);
    assert!(stage.reads(own, 12) && stage.reads(other, 12));
    assert!(!stage.writes(own, 12), "not even who has locked it");
    assert!(!stage.writes(other, 12));
    stage.close(own);
    assert!(granted.flags.is_clear());
    assert!(stage.writes(other, 12));
}

/// smb2.lock.async, contend, multiple-unlock: who waits gets it in turn.
#[test]
fn who_waits_gets_it_in_turn() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(plain());
    let (second, _) = stage.open(plain());
    let (third, _) = stage.open(plain());
    let range = [element(0, 10, EXCLUSIVE)];
    assert_eq!(stage.lock(first, &range, 1), LockOutcome::Done);
    assert_eq!(stage.lock(second, &range, 2), LockOutcome::Wait);
    assert_eq!(stage.lock(third, &range, 3), LockOutcome::Wait);
    assert_eq!(stage.lock(third, &[element(20, 1, EXCLUSIVE)], 4), LockOutcome::Done);
    assert_eq!(stage.shard.counts().waiters, 2);
    let not_now = [element(0, 10, EXCLUSIVE | NOW)];
    let refused = LockOutcome::Refused(NtStatus::LOCK_NOT_GRANTED);
    assert_eq!(stage.lock(third, &not_now, 5), refused);
    stage.lock(first, &[element(0, 10, UNLOCK)], 0);
    assert_eq!(stage.fx.locked, [(Waiter(2), NtStatus::SUCCESS)]);
    stage.close(second);
    assert_eq!(stage.fx.locked[1..], [(Waiter(3), NtStatus::SUCCESS)]);
    assert!(!stage.writes(first, 5));
    stage.close(third);
    assert!(stage.writes(first, 5));
}

/// smb2.lock.cancel, cancel-tdis, cancel-logoff.
#[test]
fn who_waits_may_stop_waiting() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(plain());
    let (second, _) = stage.open(plain());
    let range = [element(0, 10, EXCLUSIVE)];
    stage.lock(first, &range, 1);
    stage.lock(second, &range, 2);
    assert!(stage.shard.cancel_lock(FILE, Waiter(2)));
    assert!(!stage.shard.cancel_lock(FILE, Waiter(2)), "once");
    stage.lock(second, &range, 3);
    stage.close(second);
    assert_eq!(stage.fx.locked, [(Waiter(3), NtStatus::RANGE_NOT_LOCKED)]);
    stage.lock(first, &[element(0, 10, UNLOCK)], 0);
    assert_eq!(stage.fx.locked.len(), 1);
    assert_eq!(stage.shard.counts().locks, 0);
}

/// smb2.lease.lock1, smb2.oplock.brl1: a lock is a write to come.
#[test]
fn locks_and_what_is_cached() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(with_lease(1, "RWH"));
    stage.open_obeyed(with_lease(2, "RWH"));
    let (third, ..) = stage.open_obeyed(with_lease(3, "RWH"));
    stage.lock(first, &[element(0, 1, EXCLUSIVE)], 0);
    let breaks = stage.obey();
    assert_eq!(breaks.len(), 2);
    for (number, left) in [(1, "RH"), (2, ""), (3, "")] {
        assert_eq!(stage.open(with_lease(number, "")).1.lease, state(left), "{number}");
    }
    stage.lock(third, &[element(100, 1, EXCLUSIVE)], 0);
    stage.lease_break(1, "RH", "", true);
    stage.acknowledge(1, "").unwrap();
    // As long as there are locks, nobody caches.
    assert_eq!(stage.open(with_lease(4, "RH")).1.lease, state(""));
    assert_eq!(stage.open(with_oplock("b")).1.oplock, OplockLevel::None);
}

#[test]
fn directories_and_opens_that_are_not_there() {
    let mut stage = Stage::new();
    let (directory, _) = stage.open(Request { directory: true, ..plain() });
    let range = [element(0, 1, EXCLUSIVE)];
    let refused = LockOutcome::Refused;
    assert_eq!(stage.lock(directory, &range, 0), refused(NtStatus::INVALID_DEVICE_REQUEST));
    assert_eq!(stage.lock(OpenId(9), &range, 0), refused(NtStatus::FILE_CLOSED));
}

#[test]
fn each_stream_has_its_ranges() {
    let mut stage = Stage::new();
    let stream = FileKey { stream: 3, ..FILE };
    let (file, _) = stage.open(plain());
    let (other, _) = stage.open_key(stream, plain());
    stage.lock(file, &[element(0, 10, EXCLUSIVE)], 0);
    assert_eq!(stage.shard.check_io(stream, other, 0, 5, true), Ok(()));
    let done =
        stage.shard.lock(0, stream, other, &[element(0, 10, EXCLUSIVE)], Waiter(0), &mut stage.fx);
    assert_eq!(done, LockOutcome::Done);
}

#[test]
fn there_is_an_end_to_locks() {
    let limits = Limits { locks_per_open: 3, ..Limits::default() };
    let mut stage = Stage { shard: Shard::new(limits), ..Stage::new() };
    let (open, _) = stage.open(plain());
    let at = |offset| element(offset, 1, EXCLUSIVE | NOW);
    let refused = LockOutcome::Refused(NtStatus::INSUFFICIENT_RESOURCES);
    assert_eq!(stage.lock(open, &[at(0), at(1), at(2), at(3)], 0), refused);
    assert_eq!(stage.shard.counts().locks, 0, "all or none");
    assert_eq!(stage.lock(open, &[at(0), at(1), at(2)], 0), LockOutcome::Done);
    assert_eq!(stage.lock(open, &[at(3)], 0), refused);

    let limits = Limits { locks_per_file: 2, ..Limits::default() };
    let mut stage = Stage { shard: Shard::new(limits), ..Stage::new() };
    let (one, _) = stage.open(plain());
    let (other, _) = stage.open(plain());
    assert_eq!(stage.lock(one, &[at(0)], 0), LockOutcome::Done);
    assert_eq!(stage.lock(other, &[element(0, 1, EXCLUSIVE)], 1), LockOutcome::Wait);
    assert_eq!(stage.lock(other, &[at(5)], 0), refused, "who waits is counted");

    let limits = Limits { locks: 3, ..Limits::default() };
    let mut stage = Stage { shard: Shard::new(limits), ..Stage::new() };
    let elsewhere = FileKey { inode: FILE.inode + 1, ..FILE };
    let (one, _) = stage.open(plain());
    let (other, _) = stage.open_key(elsewhere, plain());
    let there = |stage: &mut Stage, element, waiter| {
        stage.shard.lock(0, elsewhere, other, &[element], Waiter(waiter), &mut stage.fx)
    };
    assert_eq!(stage.lock(one, &[at(0), at(1)], 0), LockOutcome::Done);
    assert_eq!(there(&mut stage, at(0), 0), LockOutcome::Done);
    assert_eq!(there(&mut stage, at(1), 0), refused, "those of other files are counted");
    stage.lock(one, &[element(0, 1, UNLOCK)], 0);
    assert_eq!(stage.lock(one, &[element(1, 1, EXCLUSIVE)], 1), LockOutcome::Wait);
    assert_eq!(there(&mut stage, at(1), 0), refused);
    assert!(stage.shard.cancel_lock(FILE, Waiter(1)));
    assert_eq!(there(&mut stage, at(1), 0), LockOutcome::Done);
    stage.close(one);
    assert_eq!(there(&mut stage, at(2), 0), LockOutcome::Done);
    assert_eq!(there(&mut stage, at(3), 0), refused);

    let limits = Limits { waiters_per_file: 1, ..Limits::default() };
    let mut stage = Stage { shard: Shard::new(limits), ..Stage::new() };
    let (one, _) = stage.open(plain());
    assert_eq!(stage.lock(one, &[element(0, 1, EXCLUSIVE)], 1), LockOutcome::Done);
    assert_eq!(stage.lock(one, &[element(0, 1, EXCLUSIVE)], 2), LockOutcome::Wait);
    assert_eq!(stage.lock(one, &[element(0, 1, EXCLUSIVE)], 3), refused);
}
