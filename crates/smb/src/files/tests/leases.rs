//! smb2.lease.

use super::*;

/// smb2.lease.request: what combinations there are.
#[test]
fn what_may_be_asked_for() {
    let cases = [
        ("", ""),
        ("R", "R"),
        ("H", ""),
        ("W", ""),
        ("RH", "RH"),
        ("RW", "RW"),
        ("HW", ""),
        ("RHW", "RHW"),
    ];
    for (wanted, had) in cases {
        let mut stage = Stage::new();
        let (_, granted) = stage.open(with_lease(1, wanted));
        assert_eq!(granted.oplock, OplockLevel::Lease);
        assert_eq!((granted.lease, granted.breaking), (state(had), false), "{wanted}");
    }
}

/// smb2.lease.upgrade2: more is had only if all is asked for that there was, and more.
#[test]
fn upgrades_alone() {
    let cases = [
        ("", "", ""),
        ("", "R", "R"),
        ("", "RH", "RH"),
        ("", "RW", "RW"),
        ("", "RWH", "RWH"),
        ("R", "", "R"),
        ("R", "R", "R"),
        ("R", "RH", "RH"),
        ("R", "RW", "RW"),
        ("R", "RWH", "RWH"),
        ("RH", "", "RH"),
        ("RH", "R", "RH"),
        ("RH", "RH", "RH"),
        ("RH", "RW", "RH"),
        ("RH", "RWH", "RWH"),
        ("RW", "", "RW"),
        ("RW", "R", "RW"),
        ("RW", "RH", "RW"),
        ("RW", "RW", "RW"),
        ("RW", "RWH", "RWH"),
        ("RWH", "", "RWH"),
        ("RWH", "R", "RWH"),
        ("RWH", "RH", "RWH"),
        ("RWH", "RW", "RWH"),
        ("RWH", "RWH", "RWH"),
    ];
    for (first, second, had) in cases {
        let mut stage = Stage::new();
        stage.open(with_lease(1, first));
        let (_, granted) = stage.open(with_lease(1, second));
        assert_eq!(granted.lease, state(had), "{first} {second}");
        stage.no_break();
    }
}

/// smb2.lease.upgrade3: and only if it goes together with what others have, which is not broken for it.
#[test]
fn upgrades_beside_another() {
    for one in ["R", "RH"] {
        for other in ["R", "RH"] {
            for wanted in ["", "R", "RH", "RW", "RWH"] {
                let mut stage = Stage::new();
                stage.open(with_lease(1, one));
                stage.open(with_lease(2, other));
                let (_, granted) = stage.open(with_lease(1, wanted));
                // Writes are never cached by two, and then not the rest of what was asked for either.
                let more = state(wanted).contains(state(one)) && !wanted.contains('W');
                let had = if more { wanted } else { one };
                assert_eq!(granted.lease, state(had), "{one} {other} {wanted}");
                stage.no_break();
            }
        }
    }
}

/// smb2.lease.break.
#[test]
fn what_a_second_lease_leaves_of_the_first_and_gets() {
    let cases = [
        ("R", "R", "R", "R"),
        ("R", "RH", "R", "RH"),
        ("R", "RW", "R", "R"),
        ("R", "RHW", "R", "RH"),
        ("RH", "R", "RH", "R"),
        ("RH", "RH", "RH", "RH"),
        ("RH", "RW", "RH", "R"),
        ("RH", "RHW", "RH", "RH"),
        ("RW", "R", "R", "R"),
        ("RW", "RH", "R", "RH"),
        ("RW", "RW", "R", "R"),
        ("RW", "RHW", "R", "RH"),
        ("RHW", "R", "RH", "R"),
        ("RHW", "RH", "RH", "RH"),
        ("RHW", "RW", "RH", "R"),
        ("RHW", "RHW", "RH", "RH"),
    ];
    for (first, second, left, had) in cases {
        let mut stage = Stage::new();
        stage.open(with_lease(1, first));
        let (_, granted, breaks) = stage.open_obeyed(with_lease(2, second));
        assert_eq!(granted.lease, state(had), "{first} {second}");
        assert_eq!(breaks.len(), usize::from(first != left));
        let (_, granted) = stage.open(with_lease(1, ""));
        assert_eq!(granted.lease, state(left), "{first} {second}");
    }
}

/// smb2.lease.oplock: leases and oplocks of one file.
#[test]
fn leases_and_oplocks() {
    let cases = [
        ("R", "s", "R", "s"),
        ("R", "x", "R", "s"),
        ("R", "b", "R", "s"),
        ("RH", "s", "RH", ""),
        ("RH", "x", "RH", ""),
        ("RH", "b", "RH", ""),
        ("RW", "s", "R", "s"),
        ("RW", "x", "R", "s"),
        ("RW", "b", "R", "s"),
        ("RHW", "s", "RH", ""),
        ("RHW", "x", "RH", ""),
        ("RHW", "b", "RH", ""),
    ];
    for (first, second, left, had) in cases {
        let mut stage = Stage::new();
        stage.open(with_lease(1, first));
        let (_, granted, _) = stage.open_obeyed(with_oplock(second));
        assert_eq!(granted.oplock, level(had), "{first} {second}");
        assert_eq!(stage.open(with_lease(1, "")).1.lease, state(left), "{first} {second}");
    }
    for first in ["s", "x", "b"] {
        for second in ["R", "RH", "RW", "RHW"] {
            let mut stage = Stage::new();
            let (open, granted) = stage.open(with_oplock(first));
            assert_eq!(granted.oplock, level(first));
            let (_, granted, breaks) = stage.open_obeyed(with_lease(2, second));
            assert_eq!(granted.lease, state("R"), "{first} {second}");
            assert_eq!(breaks.len(), usize::from(first != "s"));
            assert_eq!(stage.has(open).oplock, OplockLevel::Two);
        }
    }
}

/// smb2.lease.nobreakself: opens of one lease do not break it.
#[test]
fn a_lease_is_not_broken_by_its_own_opens() {
    let mut stage = Stage::new();
    let (own, _) = stage.open(with_lease(1, "RHW"));
    stage.open(with_lease(1, "RHW"));
    stage.open(overwriting(with_lease(1, "RHW")));
    stage.contend(own);
    stage.no_break();
    // The same key of another client is another lease.
    let other = Request { opener: opener(2, 1), ..with_lease(1, "R") };
    stage.wait(other);
    stage.lease_break(1, "RHW", "RH", true);
}

/// smb2.lease.nobreakself, the second half: a write by one breaks the other, and not its own.
#[test]
fn writes_break_what_others_have_read() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(with_lease(1, "R"));
    let (second, _) = stage.open(with_lease(2, "R"));
    stage.contend(first);
    stage.lease_break(2, "R", "", false);
    stage.contend(first);
    stage.no_break();
    let (_, granted) = stage.open(with_lease(2, "R"));
    assert_eq!(granted.lease, state("R"), "it may be had again");
    stage.contend(second);
    stage.lease_break(1, "R", "", false);
}

#[test]
fn what_was_begun_by_an_open_that_is_closed_breaks_what_all_have_read() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(with_lease(1, "R"));
    let (same, _) = stage.open(with_lease(1, "R"));
    stage.open(with_lease(2, "R"));
    stage.contend_late(first);
    stage.lease_break(2, "R", "", false);
    stage.no_break();
    stage.close(first);
    stage.contend_late(first);
    stage.lease_break(1, "R", "", false);
    stage.close(same);
    stage.contend_late(same);
    stage.no_break();
}

/// smb2.lease.statopen, statopen2, statopen4.
#[test]
fn who_only_looks_breaks_nothing() {
    let cases = [
        (Access::READ_DATA, false),
        (Access::WRITE_DATA, false),
        (Access::READ_EA, false),
        (Access::WRITE_EA, false),
        (Access::EXECUTE, false),
        (Access::READ_ATTRIBUTES, true),
        (Access::WRITE_ATTRIBUTES, true),
        (Access::DELETE, false),
        (Access::READ_CONTROL, true),
        (Access::WRITE_DAC, false),
        (Access::WRITE_OWNER, false),
        (Access::SYNCHRONIZE, true),
    ];
    for (access, looks) in cases {
        let mut stage = Stage::new();
        stage.open(with_lease(1, "RWH"));
        if looks {
            stage.open(Request { access, ..plain() });
            stage.no_break();
            // And the lease keeps all it has when it is opened once more.
            assert_eq!(stage.open(with_lease(1, "RWH")).1.lease, state("RWH"), "{access:?}");
        } else {
            stage.wait(Request { access, ..plain() });
            stage.lease_break(1, "RWH", "RH", true);
        }
    }
    let mut stage = Stage::new();
    stage.open(with_lease(1, "RWH"));
    stage.wait(overwriting(Request { access: Access::READ_ATTRIBUTES, ..plain() }));
    stage.lease_break(1, "RWH", "", true);
}

/// smb2.lease.statopen3.
#[test]
fn who_only_looks_keeps_nobody_from_a_lease() {
    let mut stage = Stage::new();
    stage.open(Request { access: Access::READ_ATTRIBUTES, ..plain() });
    let wanted = Request { access: Access::WRITE_DATA, ..with_lease(1, "RWH") };
    assert_eq!(stage.open(wanted).1.lease, state("RWH"));
}

#[test]
fn who_only_looks_shares_the_lease_of_nobody() {
    let mut stage = Stage::new();
    stage.open(with_lease(1, "RWH"));
    let looks = Request { access: Access::READ_ATTRIBUTES, ..with_lease(2, "RWH") };
    let (_, granted) = stage.open(looks);
    assert!(!granted.lease.contains(LeaseState::WRITE), "there is one already");
}

/// smb2.lease.break_twice.
#[test]
fn a_lease_that_is_in_the_way_twice() {
    let mut stage = Stage::new();
    let reads = Request { share: share("R"), access: Access::READ_DATA, ..with_lease(1, "RWH") };
    stage.open(reads);
    // Does not share: the handle goes first, and it is still there.
    let writes = Request { access: Access::WRITE_DATA, share: share("RW"), ..with_lease(2, "RWH") };
    let waits = stage.wait(writes);
    stage.lease_break(1, "RWH", "RW", true);
    stage.acknowledge(1, "RW").unwrap();
    assert!(matches!(stage.again(&waits), Outcome::Refused(NtStatus::SHARING_VIOLATION)));
    stage.no_break();
    // Shares: now the rest.
    let waits = stage.wait(Request { access: Access::READ_DATA, ..writes });
    stage.lease_break(1, "RW", "R", true);
    stage.acknowledge(1, "R").unwrap();
    assert_eq!(stage.let_in(&waits).1.lease, state("RH"));
}

/// smb2.lease.breaking1, breaking6: who waits, waits for the answer; it may be less than was asked.
#[test]
fn a_break_that_is_answered_late() {
    for answer in ["RH", "R", ""] {
        let mut stage = Stage::new();
        stage.open(with_lease(1, "RWH"));
        let waits = stage.wait(plain());
        stage.lease_break(1, "RWH", "RH", true);
        let (own, granted) = stage.open(with_lease(1, "RWH"));
        assert_eq!((granted.lease, granted.breaking), (state("RWH"), true));
        stage.close(own);
        // It was woken by that, in vain.
        assert!(matches!(stage.again(&waits), Outcome::Wait { .. }));
        stage.no_break();
        assert_eq!(stage.acknowledge(1, answer), Ok(state(answer)));
        let (_, granted) = stage.let_in(&waits);
        assert_eq!(granted.oplock, OplockLevel::None);
        stage.no_break();
        let (_, granted) = stage.open(with_lease(1, ""));
        assert_eq!((granted.lease, granted.breaking), (state(answer), false));
    }
}

/// smb2.lease.breaking2: more than was offered, and answers that nobody asked for.
#[test]
fn answers_that_are_wrong() {
    let mut stage = Stage::new();
    stage.open(with_lease(1, "RWH"));
    assert_eq!(stage.acknowledge(1, ""), Err(NtStatus::UNSUCCESSFUL));
    let waits = stage.wait(overwriting(plain()));
    stage.lease_break(1, "RWH", "", true);
    for more in ["RWH", "RH", "RW", "R", "H", "W", "HW"] {
        assert_eq!(stage.acknowledge(1, more), Err(NtStatus::REQUEST_NOT_ACCEPTED), "{more}");
    }
    assert_eq!(stage.acknowledge(2, ""), Err(NtStatus::OBJECT_NAME_NOT_FOUND));
    assert!(stage.fx.wake.is_empty());
    assert_eq!(stage.acknowledge(1, ""), Ok(state("")));
    stage.let_in(&waits);
    assert_eq!(stage.acknowledge(1, ""), Err(NtStatus::UNSUCCESSFUL));
}

/// smb2.lease.breaking3, v2_breaking3: who overwrites comes while the lease is breaking already; it goes in
/// steps.
#[test]
fn a_break_on_a_break() {
    let mut stage = Stage::new();
    stage.open(with_lease(1, "RWH"));
    let second = stage.wait(plain());
    stage.lease_break(1, "RWH", "RH", true);
    let third = stage.wait(overwriting(plain()));
    stage.no_break();
    assert_eq!(stage.acknowledge(1, "RH"), Ok(state("RH")));
    stage.lease_break(1, "RH", "R", true);
    assert!(matches!(stage.again(&second), Outcome::Wait { .. }));
    assert!(matches!(stage.again(&third), Outcome::Wait { .. }));
    stage.no_break();
    let (_, granted) = stage.open(with_lease(1, "RWH"));
    assert_eq!((granted.lease, granted.breaking), (state("RH"), true));
    assert_eq!(stage.acknowledge(1, "R"), Ok(state("R")));
    stage.lease_break(1, "R", "", false);
    stage.let_in(&second);
    stage.let_in(&third);
    stage.no_break();
}

/// smb2.lease.breaking4: RH is broken to nothing by who overwrites, who does not wait for it.
#[test]
fn reads_are_not_waited_for() {
    let mut stage = Stage::new();
    stage.open(with_lease(1, "RH"));
    let (second, _) = stage.open(overwriting(plain()));
    stage.lease_break(1, "RH", "", true);
    stage.close(second);
    let (second, _) = stage.open(overwriting(plain()));
    stage.close(second);
    stage.no_break();
    let (_, granted) = stage.open(with_lease(1, ""));
    assert_eq!((granted.lease, granted.breaking), (state("RH"), true));
    assert_eq!(stage.acknowledge(1, ""), Ok(state("")));
    stage.no_break();
}

/// smb2.lease.breaking5: R alone is not asked for an answer.
#[test]
fn what_was_only_read_is_gone_at_once() {
    let mut stage = Stage::new();
    stage.open(with_lease(1, "R"));
    stage.open(overwriting(plain()));
    stage.lease_break(1, "R", "", false);
    assert_eq!(stage.open(with_lease(1, "")).1.lease, state(""));
    assert_eq!(stage.acknowledge(1, ""), Err(NtStatus::UNSUCCESSFUL));
}

/// smb2.lease.multibreak.
#[test]
fn the_first_break_is_answered_before_the_second() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(with_lease(1, "RWH"));
    let waits = stage.wait(with_lease(2, "RWH"));
    stage.lease_break(1, "RWH", "RH", true);
    stage.contend(first);
    stage.no_break();
    stage.close(first);
    let (_, granted) = stage.let_in(&waits);
    assert_eq!(granted.lease, state("RWH"), "its holder is gone");
}

/// smb2.lease.timeout.
#[test]
fn who_does_not_answer_has_nothing_left() {
    let mut stage = Stage::new();
    stage.open(with_lease(1, "RWH"));
    let (_, granted) = stage.open(Request { access: Access::READ_ATTRIBUTES, ..plain() });
    assert_eq!(granted.oplock, OplockLevel::None);
    stage.now_ms = 1000;
    let waits = stage.wait(with_lease(2, "RWH"));
    assert_eq!(stage.shard.deadline(), Some(36_000));
    assert_eq!(stage.shard.expire(35_999, &mut stage.fx), Some(36_000));
    assert!(stage.fx.wake.is_empty());
    assert_eq!(stage.shard.expire(36_000, &mut stage.fx), None);
    let (_, granted) = stage.let_in(&waits);
    assert_eq!(granted.lease, state("RH"), "an open that has lost its lease is there still");
    assert_eq!(stage.acknowledge(1, "RH"), Err(NtStatus::UNSUCCESSFUL));
    assert_eq!(stage.open(with_lease(1, "")).1.lease, state(""));
}

/// smb2.lease.v2_epoch1, v2_epoch2, v2_epoch3.
#[test]
fn the_epoch_counts_changes() {
    let mut stage = Stage::new();
    let (first, granted) = stage.open(with_lease_v2(1, "R", 0x4711));
    assert_eq!((granted.epoch, granted.version), (0x4712, LeaseVersion::Two));
    let (second, granted) = stage.open(with_lease(1, "RH"));
    assert_eq!((granted.epoch, granted.version), (0x4713, LeaseVersion::Two));
    stage.close(first);
    let (third, granted) = stage.open(with_lease_v2(1, "RHW", 0x11));
    assert_eq!((granted.epoch, granted.lease), (0x4714, state("RHW")));
    assert_eq!(stage.open(with_lease_v2(1, "RHW", 0x11)).1.epoch, 0x4714, "nothing new");
    stage.wait(plain());
    assert!(matches!(stage.breaks()[..], [Break::Lease { epoch: 0x4715, .. }]));
    for open in [second, third, OpenId(4)] {
        stage.close(open);
    }
    let (_, granted) = stage.open(with_lease(1, "R"));
    assert_eq!(granted.version, LeaseVersion::One, "a new lease");
    stage.open(overwriting(plain()));
    assert!(matches!(stage.breaks()[..], [Break::Lease { epoch: 0, .. }]));
    assert_eq!(stage.open(with_lease_v2(3, "", 7)).1.epoch, 7, "nothing was granted");
}

/// smb2.lease.v2_complex1.
#[test]
fn two_leases_that_write_in_turn() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(with_lease_v2(1, "R", 0x4711));
    let (upgrade, granted) = stage.open(with_lease_v2(1, "RWH", 0x4711));
    assert_eq!((granted.lease, granted.epoch), (state("RWH"), 0x4713));
    stage.close(upgrade);
    let (other, granted, breaks) = stage.open_obeyed(with_lease_v2(2, "R", 0x11));
    assert_eq!((granted.lease, granted.epoch), (state("R"), 0x12));
    assert!(matches!(breaks[..], [Break::Lease { epoch: 0x4714, .. }]));
    assert_eq!(stage.open(with_lease_v2(1, "RH", 0)).1.epoch, 0x4714);
    stage.contend(first);
    assert!(matches!(stage.breaks()[..], [Break::Lease { epoch: 0x13, acknowledge: false, .. }]));
    stage.contend(other);
    assert!(matches!(stage.breaks()[..], [Break::Lease { epoch: 0x4715, acknowledge: true, .. }]));
}

/// smb2.lease.unlink.
#[test]
fn who_deletes_breaks_the_handles_that_are_cached() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(with_lease(1, "RWH"));
    let (second, ..) = stage.open_obeyed(with_lease(2, "RWH"));
    stage.close(second);
    let deletes = Request { access: Access::DELETE, delete_on_close: true, ..plain() };
    let (deletes, _) = stage.open(deletes);
    stage.lease_break(1, "RH", "R", true);
    assert_eq!(stage.close(deletes).delete, None);
    assert!(stage.close(first).delete.is_some());
}

/// smb2.lease.v2_rename, rename_wait.
#[test]
fn who_renames_waits_for_handles_that_are_cached() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(with_lease(1, "RWH"));
    let ask = |stage: &mut Stage, open| {
        stage.shard.contend_handles(0, FILE, open, Waiter(99), &mut stage.fx)
    };
    assert_eq!(ask(&mut stage, first), Ok(None));
    stage.open_obeyed(with_lease(2, "RWH"));
    assert_eq!(ask(&mut stage, first), Ok(Some(35_000)));
    stage.lease_break(2, "RH", "R", true);
    stage.acknowledge(2, "R").unwrap();
    assert_eq!(stage.fx.wake, [Waiter(99)]);
    assert_eq!(ask(&mut stage, first), Ok(None));
    stage.no_break();
    assert_eq!(stage.open(with_lease(1, "")).1.lease, state("RH"), "its own is not broken");
}

#[test]
fn who_replaces_a_file_without_having_it_open_waits_for_handles_too() {
    let mut stage = Stage::new();
    stage.open(with_lease(1, "RH"));
    let ask = |stage: &mut Stage, file| {
        stage.shard.contend_all_handles(0, file, Waiter(99), &mut stage.fx)
    };
    assert_eq!(ask(&mut stage, FILE), Ok(Some(35_000)));
    stage.lease_break(1, "RH", "R", true);
    stage.acknowledge(1, "R").unwrap();
    assert_eq!(stage.fx.wake, [Waiter(99)]);
    assert_eq!(ask(&mut stage, FILE), Ok(None));
    let elsewhere = FileKey { inode: 77, ..FILE };
    assert_eq!(ask(&mut stage, elsewhere), Ok(None));
    assert_eq!(stage.shard.held_of(FILE).count(), 1);
    assert_eq!(stage.shard.held_of(elsewhere).count(), 0);
}

/// The streams of a file have leases of their own (smb2.lease.request).
#[test]
fn streams_do_not_break_each_other() {
    let mut stage = Stage::new();
    stage.open(with_lease(1, "RWH"));
    let stream = FileKey { stream: 7, ..FILE };
    let (_, granted) = stage.open_key(stream, with_lease(2, "RWH"));
    assert_eq!(granted.lease, state("RWH"));
    stage.no_break();
}

#[test]
fn leases_of_directories() {
    let directory = Request { directory: true, ..with_lease_v2(1, "RWH", 0) };
    let mut stage = Stage::new();
    let (open, granted) = stage.open(directory);
    assert_eq!(granted.lease, state("RH"), "nobody writes to a directory");
    let second = Request { directory: true, ..with_lease_v2(2, "RH", 0) };
    stage.open(Request { opener: opener(2, 1), ..second });
    // Who changed an entry, by an open that names the first lease as its parent's, is spared.
    let by = Some((client(1), lease_key(1)));
    stage.shard.contend_directory(0, FILE, by, &mut stage.fx);
    stage.lease_break(2, "RH", "", true);
    stage.shard.contend_directory(0, FILE, None, &mut stage.fx);
    stage.lease_break(1, "RH", "", true);
    assert_eq!(stage.has(open).lease, state("RH"));
    stage.acknowledge(1, "").unwrap();
    let other = (client(2), lease_key(2));
    stage.shard.acknowledge_lease(0, FILE, other, state(""), &mut stage.fx).unwrap();
    // smb2.lease.v2_request: one more open of it has all that may be had again.
    assert_eq!(stage.open(directory).1.lease, state("RH"));

    let mut stage = Stage::new();
    let old = Request { directory: true, ..with_lease(1, "RH") };
    assert_eq!(stage.open(old).1.oplock, OplockLevel::None, "version 1 knows none");
    let limits = Limits { directory_leases: false, ..Limits::default() };
    let mut stage = Stage { shard: Shard::new(limits), ..Stage::new() };
    assert_eq!(stage.open(directory).1.oplock, OplockLevel::None);
    assert_eq!(
        stage.open(Request { directory: true, ..with_oplock("b") }).1.oplock,
        OplockLevel::None
    );
}

#[test]
fn what_a_client_was_told_of_last_is_known_until_it_answers() {
    let mut stage = Stage::new();
    stage.open(with_lease(1, "RWH"));
    let lease = (client(1), lease_key(1));
    assert_eq!(stage.shard.breaking_lease(FILE, lease), None);
    stage.wait(with_lease(2, "R"));
    stage.lease_break(1, "RWH", "RH", true);
    assert_eq!(stage.shard.breaking_lease(FILE, lease), Some(state("RH")));
    stage.acknowledge(1, "RH").unwrap();
    assert_eq!(stage.shard.breaking_lease(FILE, lease), None);
    assert_eq!(stage.shard.breaking_lease(FILE, (client(2), lease_key(1))), None);
}
