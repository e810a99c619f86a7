//! smb2.durable-open, smb2.durable-v2-open.

use super::*;

fn kept(stage: &mut Stage, open: OpenId) -> bool {
    stage.shard.disconnect(stage.now_ms, FILE, open, &mut stage.fx).is_ok()
}

/// smb2.durable-open.open-oplock, open-lease; durable-v2-open.open-oplock, open-lease.
#[test]
fn what_makes_an_open_durable() {
    let mut cases: Vec<(Request, bool)> =
        ["", "s", "x", "b"].map(|letter| (with_oplock(letter), letter == "b")).to_vec();
    for letters in ["", "R", "RW", "RH", "RWH"] {
        cases.push((with_lease(1, letters), letters.contains('H')));
    }
    for (request, durable_too) in cases {
        let mut stage = Stage::new();
        let request = Request { durability: durable(), ..request };
        let (open, granted) = stage.open(request);
        assert_eq!(granted.durable, durable_too, "{:?}", request.caching);
        assert_eq!(kept(&mut stage, open), durable_too);
        assert_eq!(stage.shard.counts().disconnected, usize::from(durable_too));

        let persistent = Durability::Persistent { timeout_ms: 60_000 };
        let mut stage = Stage::new();
        assert!(stage.open(Request { durability: persistent, ..request }).1.durable);
        let directory = Request { directory: true, ..request };
        assert!(!Stage::new().open(directory).1.durable);
        let stream = FileKey { stream: 1, ..FILE };
        assert!(!Stage::new().open_key(stream, request).1.durable);
    }
}

/// smb2.durable-open.reopen1 to reopen4: it is there again, with all that it had, and only once.
#[test]
fn its_client_comes_back() {
    let mut stage = Stage::new();
    let request = Request { durability: durable(), ..with_lease_v2(1, "RWH", 3) };
    let (open, _) = stage.open(Request { opener: opener(1, 10), ..request });
    let back = Opener { open, ..opener(1, 11) };
    let key = Some(lease_key(1));
    let refused = NtStatus::OBJECT_NAME_NOT_FOUND;
    let again =
        |stage: &mut Stage, back, key| stage.shard.reconnect(FILE, back, key).map(|g| g.lease);
    assert_eq!(again(&mut stage, back, key), Err(refused), "it is not away");
    assert!(kept(&mut stage, open));
    assert_eq!(again(&mut stage, back, None), Err(refused));
    assert_eq!(again(&mut stage, back, Some(lease_key(2))), Err(refused));
    let other = Opener { open, ..opener(2, 11) };
    assert_eq!(again(&mut stage, other, key), Err(refused), "another client");
    assert_eq!(again(&mut stage, back, key), Ok(state("RWH")));
    assert_eq!(again(&mut stage, back, key), Err(refused), "once");
    let granted = stage.has(open);
    assert_eq!((granted.epoch, granted.durable), (4, true));
    // Breaks go to it again.
    stage.wait(plain());
    stage.lease_break(1, "RWH", "RH", true);
    assert_eq!(stage.shard.held().next().unwrap().opener, back);
    // Its time is over; it has nothing to do with it any more.
    stage.acknowledge(1, "RH").unwrap();
    assert_eq!(stage.shard.expire(1_000_000, &mut stage.fx), None);
    assert!(stage.fx.purged.is_empty());
}

/// smb2.durable-open.open2-oplock, open2-lease, oplock: who comes meanwhile and would have to wait for it
/// does not.
#[test]
fn who_is_away_gives_way() {
    let cases = [
        (with_oplock("b"), plain(), true),
        (with_lease(1, "RWH"), plain(), true),
        (with_lease(1, "RH"), with_lease(2, "RH"), false),
        (with_lease(1, "RH"), overwriting(plain()), true),
        (with_lease(1, "RWH"), Request { access: Access::READ_ATTRIBUTES, ..plain() }, false),
        (Request { share: share("R"), ..with_lease(1, "RH") }, plain(), true),
    ];
    for (first, second, gives_way) in cases {
        let mut stage = Stage::new();
        let (open, _) = stage.open(Request { durability: durable(), ..first });
        assert!(kept(&mut stage, open));
        stage.open(Request { opener: opener(2, 1), ..second });
        stage.no_break();
        assert_eq!(stage.fx.purged.len(), usize::from(gives_way), "{first:?}");
        if let Some(purged) = stage.fx.purged.pop() {
            assert_eq!((purged.opener.open, purged.key), (open, FILE));
            assert_eq!(purged.lease.is_some(), matches!(first.caching, Caching::Lease(_)));
            assert!(!purged.closed.last || stage.shard.counts().opens == 1);
        }
    }
}

/// smb2.durable-open.oplock, lease: who takes its place gets all that it had.
#[test]
fn who_is_away_leaves_nothing_behind() {
    for first in [with_oplock("b"), with_lease(1, "RWH")] {
        let mut stage = Stage::new();
        let (open, _) = stage.open(Request { durability: durable(), ..first });
        assert!(kept(&mut stage, open));
        let second = Request { opener: opener(2, 1), ..first };
        let (_, granted) = stage.open(second);
        let had = if granted.oplock == OplockLevel::Lease { state("RWH") } else { state("") };
        assert_eq!((granted.lease, granted.oplock == OplockLevel::None), (had, false));
        assert_eq!(stage.fx.purged.len(), 1);
    }
}

/// Its client went while it was asked to let go of something: it will not, and who waits for that does not find
/// half of it granted.
#[test]
fn who_goes_instead_of_letting_go_is_not_kept() {
    for first in [with_oplock("b"), with_lease(1, "RWH")] {
        let mut stage = Stage::new();
        let (open, _) = stage.open(Request { durability: durable(), ..first });
        let waits = stage.wait(Request { opener: opener(2, 1), ..with_lease(2, "RWH") });
        stage.breaks();
        assert!(!kept(&mut stage, open));
        assert_eq!(stage.let_in(&waits).1.lease, state("RWH"));
        assert_eq!(stage.shard.counts().opens, 1);
    }
}

#[test]
fn a_persistent_open_does_not_give_way() {
    let persistent = Durability::Persistent { timeout_ms: 60_000 };
    let mut stage = Stage::new();
    let (open, _) = stage.open(Request { durability: persistent, ..with_lease(1, "RWH") });
    assert!(kept(&mut stage, open));
    assert_eq!(stage.refuse(plain()), NtStatus::FILE_NOT_AVAILABLE);
    assert_eq!(stage.shard.counts().disconnected, 1);
}

/// smb2.durable-open.file-position and others wait for less; this is the scavenger.
#[test]
fn it_does_not_stay_for_ever() {
    let mut stage = Stage::new();
    stage.now_ms = 5;
    let (open, _) = stage.open(Request { durability: durable(), ..with_oplock("b") });
    assert_eq!(stage.shard.deadline(), None);
    assert!(kept(&mut stage, open));
    assert_eq!(stage.shard.expire(60_004, &mut stage.fx), Some(60_005));
    assert!(stage.fx.purged.is_empty());
    assert_eq!(stage.shard.expire(60_005, &mut stage.fx), None);
    assert_eq!(stage.fx.purged.len(), 1);
    assert!(stage.fx.purged[0].closed.last);
    assert_eq!(stage.shard.counts().files, 0);
}

/// smb2.durable-open.delete_on_close1: what is to be deleted is, when its client goes.
#[test]
fn what_is_to_be_deleted_is_not_kept() {
    let mut stage = Stage::new();
    let request = Request { durability: durable(), delete_on_close: true, ..with_oplock("b") };
    let (open, _) = stage.open(request);
    let gone = stage.shard.disconnect(0, FILE, open, &mut stage.fx);
    assert!(gone.unwrap_err().unwrap().delete.is_some());
    assert_eq!(stage.shard.disconnect(0, FILE, open, &mut stage.fx), Err(None));
}

#[test]
fn what_is_written_meanwhile_is_not_read_from_a_cache() {
    let mut stage = Stage::new();
    let (away, _) = stage.open(Request { durability: durable(), ..with_lease(1, "RH") });
    let (writer, _) = stage.open(plain());
    assert!(kept(&mut stage, away));
    stage.contend(writer);
    stage.no_break();
    assert_eq!(stage.fx.purged.len(), 1);
}
