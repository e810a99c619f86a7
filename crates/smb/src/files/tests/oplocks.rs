//! smb2.oplock.

use super::*;

const LOOKS: Access =
    Access::READ_ATTRIBUTES.union(Access::WRITE_ATTRIBUTES).union(Access::SYNCHRONIZE);

/// What becomes of an oplock when somebody else opens the file, who waits for it or does not.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Nothing,
    Waits(&'static str),
    Goes(&'static str),
    Violates,
}

/// smb2.oplock.exclusive1, 2, 4, 5, 9; batch5 to batch9, 13, 14; levelII500.
#[test]
fn a_second_open() {
    let shares = plain();
    let alone = Request { share: ShareAccess::empty(), ..plain() };
    let looks = Request { access: LOOKS, ..plain() };
    // The first open and its oplock; the second and what it asks for; what happens; what it gets.
    let cases = [
        (alone, "x", alone, "x", Then::Violates, ""),
        (shares, "x", shares, "x", Then::Waits("s"), "s"),
        (alone, "x", looks, "x", Then::Nothing, ""),
        (alone, "b", looks, "b", Then::Nothing, ""),
        (shares, "x", overwriting(looks), "s", Then::Waits(""), "s"),
        (shares, "x", overwriting(shares), "s", Then::Waits(""), "s"),
        (shares, "b", overwriting(looks), "b", Then::Waits(""), "s"),
        (shares, "b", shares, "", Then::Waits("s"), ""),
        (shares, "b", shares, "b", Then::Waits("s"), "s"),
        (shares, "s", shares, "b", Then::Nothing, "s"),
        (shares, "s", overwriting(shares), "b", Then::Goes(""), "s"),
        (shares, "", shares, "b", Then::Nothing, "s"),
        (looks, "", shares, "b", Then::Nothing, "b"),
    ];
    for case @ (first, level1, second, level2, then, had) in cases {
        let mut stage = Stage::new();
        let first = Request { caching: Caching::Oplock(level(level1)), ..first };
        let (open, granted) = stage.open(first);
        assert_eq!(granted.oplock, level(level1), "{case:?}");
        let second = Request { caching: Caching::Oplock(level(level2)), ..second };
        let granted = match then {
            Then::Violates => {
                assert_eq!(stage.refuse(second), NtStatus::SHARING_VIOLATION);
                stage.no_break();
                continue;
            }
            Then::Nothing => {
                let (_, granted) = stage.open(second);
                stage.no_break();
                granted
            }
            Then::Goes(to) => {
                let (_, granted) = stage.open(second);
                stage.oplock_break(open, to, false);
                granted
            }
            Then::Waits(to) => {
                let waits = stage.wait(second);
                stage.oplock_break(open, to, true);
                stage.acknowledge_oplock(open, to).unwrap();
                stage.let_in(&waits).1
            }
        };
        assert_eq!(granted.oplock, level(had), "{case:?}");
    }
}

/// smb2.oplock.batch1, batch2: the handle is given up, and the file is still open; then no further break.
#[test]
fn who_does_not_share_loses_its_handle_first() {
    for (answer, after) in [("s", true), ("", false)] {
        let mut stage = Stage::new();
        let alone = Request { share: ShareAccess::empty(), ..with_oplock("b") };
        let (open, _) = stage.open(alone);
        let deletes = Request { access: Access::DELETE, delete_on_close: true, ..plain() };
        let waits = stage.wait(deletes);
        stage.oplock_break(open, "s", true);
        stage.acknowledge_oplock(open, answer).unwrap();
        assert!(matches!(stage.again(&waits), Outcome::Refused(NtStatus::SHARING_VIOLATION)));
        assert_eq!(stage.refuse(deletes), NtStatus::SHARING_VIOLATION);
        stage.no_break();
        // Its own write breaks what is left, its own oplock with it.
        stage.contend(open);
        if after {
            stage.oplock_break(open, "", false);
        } else {
            stage.no_break();
        }
    }
}

/// smb2.oplock.batch3, batch7: it closes the file when it hears of the break.
#[test]
fn a_close_is_an_answer() {
    let mut stage = Stage::new();
    let alone = Request { share: ShareAccess::empty(), ..with_oplock("b") };
    let (open, _) = stage.open(alone);
    let waits = stage.wait(alone);
    stage.oplock_break(open, "s", true);
    stage.close(open);
    assert_eq!(stage.let_in(&waits).1.oplock, OplockLevel::Batch);
}

/// smb2.oplock.batch6, batch9, batch10: a write breaks level II of everybody.
#[test]
fn a_write_breaks_level_two_of_all() {
    let mut stage = Stage::new();
    let created = Request { access: LOOKS, created: true, ..with_oplock("b") };
    let (first, granted) = stage.open(created);
    assert_eq!(granted.oplock, OplockLevel::Batch, "who makes the file may look and cache");
    let (second, granted, _) = stage.open_obeyed(with_oplock("b"));
    assert_eq!(granted.oplock, OplockLevel::Two);
    let (third, _) = stage.open(plain());
    stage.no_break();
    stage.contend(third);
    let told: Vec<_> = stage
        .breaks()
        .into_iter()
        .map(|told| match told {
            Break::Oplock { open, to: OplockLevel::None, acknowledge: false, .. } => open,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, [first, second]);
    stage.contend(third);
    stage.no_break();
    assert_eq!(stage.shard.counts().oplocks, 0);
}

/// smb2.oplock.exclusive5, exclusive9, batch13, batch14, batch16: that the file is emptied breaks level II of those who
/// were there, and not what this open was granted with it.
#[test]
fn who_empties_the_file_keeps_what_it_is_promised() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(with_oplock("b"));
    let empties = Request { overwrites: true, ..with_oplock("b") };
    let (second, granted, told) = stage.open_obeyed(empties);
    assert_eq!((granted.oplock, told.len()), (OplockLevel::Two, 1));
    stage.contend_as_new(second);
    stage.no_break();
    // Who was let in before the file was empty is told.
    let (third, granted) = stage.open(with_oplock("s"));
    assert_eq!(granted.oplock, OplockLevel::Two);
    stage.contend_as_new(second);
    stage.oplock_break(third, "", false);
    stage.contend(first);
    stage.oplock_break(second, "", false);
}

/// smb2.oplock.brl1 to brl3: a byte-range lock is like a write.
#[test]
fn who_alone_may_write_breaks_nothing() {
    let mut stage = Stage::new();
    let (open, _) = stage.open(with_oplock("x"));
    stage.contend(open);
    stage.no_break();
}

/// smb2.oplock.doc: delete-on-close does not change what is cached.
#[test]
fn an_oplock_of_what_is_to_be_deleted() {
    let mut stage = Stage::new();
    let request = Request { delete_on_close: true, created: true, ..with_oplock("b") };
    assert_eq!(stage.open(request).1.oplock, OplockLevel::Batch);
}

#[test]
fn answers_that_are_wrong() {
    let mut stage = Stage::new();
    let (open, _) = stage.open(with_oplock("b"));
    let wrong = Err(NtStatus::INVALID_OPLOCK_PROTOCOL);
    assert_eq!(stage.acknowledge_oplock(open, "s"), wrong, "nobody asked");
    let waits = stage.wait(overwriting(plain()));
    stage.oplock_break(open, "", true);
    for more in ["x", "b"] {
        assert_eq!(stage.acknowledge_oplock(open, more), Err(NtStatus::INVALID_PARAMETER));
    }
    assert_eq!(stage.acknowledge_oplock(open, "s"), Ok(OplockLevel::None), "it was to be none");
    assert_eq!(stage.acknowledge_oplock(open, ""), wrong, "once");
    stage.let_in(&waits);
    assert_eq!(stage.acknowledge_oplock(OpenId(77), ""), Err(NtStatus::FILE_CLOSED));
}

/// smb2.oplock.batch22a: no answer, and the second open is let in when the time is over.
#[test]
fn no_answer_is_taken_for_one() {
    let mut stage = Stage::new();
    let (open, _) = stage.open(with_oplock("b"));
    stage.now_ms = 500;
    let waits = stage.wait(with_oplock("b"));
    let second = stage.wait(with_oplock("b"));
    stage.oplock_break(open, "s", true);
    assert_eq!(stage.shard.expire(35_499, &mut stage.fx), Some(35_500));
    assert!(stage.fx.wake.is_empty());
    assert_eq!(stage.shard.expire(35_500, &mut stage.fx), None);
    assert_eq!(stage.let_in(&waits).1.oplock, OplockLevel::Two);
    assert_eq!(stage.let_in(&second).1.oplock, OplockLevel::Two);
    assert_eq!(stage.has(open).oplock, OplockLevel::None);
}

/// smb2.oplock.stream1: the oplocks of a file and of its streams are apart.
#[test]
fn streams_have_their_own() {
    let mut stage = Stage::new();
    let stream = FileKey { stream: 5, ..FILE };
    assert_eq!(stage.open_key(stream, with_oplock("b")).1.oplock, OplockLevel::Batch);
    assert_eq!(stage.open(with_oplock("x")).1.oplock, OplockLevel::Exclusive);
    stage.no_break();
}

#[test]
fn who_gives_up_waiting_is_not_woken() {
    let mut stage = Stage::new();
    let (open, _) = stage.open(with_oplock("b"));
    let waits = stage.wait(plain());
    stage.shard.forget(FILE, waits.waiter);
    stage.acknowledge_oplock(open, "s").unwrap();
    assert!(stage.fx.wake.is_empty());
}

#[test]
fn there_is_an_end_to_waiting() {
    let limits = Limits { waiters_per_file: 1, ..Limits::default() };
    let mut stage = Stage { shard: Shard::new(limits), ..Stage::new() };
    stage.open(with_oplock("b"));
    let waits = stage.wait(plain());
    assert_eq!(stage.refuse(plain()), NtStatus::INSUFFICIENT_RESOURCES);
    assert!(matches!(stage.ask(FILE, &waits), Outcome::Wait { .. }), "it waits already");
    assert_eq!(stage.shard.counts().waiters, 1);
    assert_eq!(stage.shard.counts().breaking, 1);
}

/// Somebody else opens the file before the first client knows of its open.
#[test]
fn what_is_broken_before_it_is_told_of_was_never_had() {
    for (had, left) in [("b", "s"), ("x", "s")] {
        let mut stage = Stage::new();
        let (open, granted) = stage.open(Request { untold: true, ..with_oplock(had) });
        assert_eq!(granted.oplock, level(had));
        let waits = stage.wait(with_oplock("s"));
        stage.no_break();
        assert!(stage.fx.wake.is_empty(), "it waits all the same");
        assert_eq!(stage.shard.granted(FILE, open).unwrap().oplock, level(left));
        assert!(stage.fx.wake.is_empty(), "that is seen, and not told");
        assert_eq!(stage.has(open).oplock, level(left));
        assert_eq!(stage.acknowledge_oplock(open, left), Err(NtStatus::INVALID_OPLOCK_PROTOCOL));
        let (second, _) = stage.let_in(&waits);
        stage.no_break();
        // From here on it is told of each.
        stage.contend(second);
        let both = stage.breaks();
        let told = [open, second].map(|open| {
            both.iter().any(|b| matches!(b, Break::Oplock { open: of, .. } if *of == open))
        });
        assert_eq!((both.len(), told), (2, [true, true]), "{both:?}");
    }
}

#[test]
fn what_was_only_read_is_gone_before_it_is_told_of() {
    let mut stage = Stage::new();
    let (writer, _) = stage.open(plain());
    let (open, granted) = stage.open(Request { untold: true, ..with_oplock("s") });
    assert_eq!(granted.oplock, OplockLevel::Two);
    stage.contend(writer);
    stage.no_break();
    assert_eq!(stage.has(open).oplock, OplockLevel::None);
    stage.contend(writer);
    stage.no_break();
}

/// Who is told gives nothing up by that: a break of which it hears it acknowledges.
#[test]
fn what_is_broken_when_it_is_told_of_is_given_up_by_its_client() {
    let mut stage = Stage::new();
    let (open, _) = stage.open(Request { untold: true, ..with_oplock("b") });
    assert_eq!(stage.has(open).oplock, OplockLevel::Batch);
    let waits = stage.wait(plain());
    stage.oplock_break(open, "s", true);
    // A create that is sent again.
    stage.has(open);
    assert!(stage.fx.wake.is_empty());
    stage.acknowledge_oplock(open, "s").unwrap();
    stage.let_in(&waits);
}

/// Nobody will be told of it any more.
#[test]
fn what_ends_before_it_is_told_of_is_waited_for_no_more() {
    let mut stage = Stage::new();
    let (open, _) = stage.open(Request { untold: true, ..with_oplock("b") });
    let waits = stage.wait(plain());
    stage.close(open);
    stage.let_in(&waits);
    stage.no_break();
}
