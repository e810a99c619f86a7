//! smb2.delete-on-close-perms, and what is to be deleted when.

use super::*;

fn deletes() -> Request {
    Request { delete_on_close: true, ..plain() }
}

/// FILE_DELETE_ON_CLOSE: known to others only when that open is closed.
#[test]
fn an_open_that_deletes_when_it_is_closed() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(Request { opener: opener(3, 9), ..deletes() });
    let (second, _) = stage.open(plain());
    assert!(!stage.shard.is_delete_pending(FILE, 0));
    assert_eq!(stage.close(first), Closed::default());
    assert!(stage.shard.is_delete_pending(FILE, 0));
    assert_eq!(stage.refuse(plain()), NtStatus::DELETE_PENDING);
    assert_eq!(
        stage.refuse(Request { access: Access::READ_ATTRIBUTES, ..plain() }),
        NtStatus::DELETE_PENDING
    );
    let closed = stage.close(second);
    let delete = closed.delete.expect("the last one");
    assert!(closed.last);
    assert_eq!((delete.by, delete.stream), (Opener { open: first, ..opener(3, 9) }, 0));
    // Until the name is gone, nobody comes in between.
    assert_eq!(stage.refuse(plain()), NtStatus::DELETE_PENDING);
    stage.shard.deleted(FILE, 0, &mut stage.fx);
    assert_eq!(stage.shard.counts().files, 0);
    stage.open(plain());
}

#[test]
fn a_disposition_may_be_taken_back() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(plain());
    stage.shard.set_delete_pending(FILE, first, true).unwrap();
    assert!(stage.shard.held().all(|held| held.delete_pending));
    assert_eq!(stage.refuse(plain()), NtStatus::DELETE_PENDING);
    stage.shard.set_delete_pending(FILE, first, false).unwrap();
    let (second, _) = stage.open(plain());
    stage.shard.set_delete_pending(FILE, second, true).unwrap();
    assert_eq!(stage.close(second).delete, None);
    assert!(stage.close(first).delete.is_some());
    let gone = stage.shard.set_delete_pending(FILE, second, true);
    assert_eq!(gone, Err(NtStatus::FILE_CLOSED));
}

/// A name is deleted, not the file: another name of it is open still.
#[test]
fn hard_links() {
    let mut stage = Stage::new();
    let (one, _) = stage.open(Request { link: 1, ..plain() });
    let (two, _) = stage.open(Request { link: 2, ..plain() });
    stage.shard.set_delete_pending(FILE, one, true).unwrap();
    assert!(!stage.shard.is_delete_pending(FILE, 2));
    stage.open(Request { link: 2, ..plain() });
    assert_eq!(stage.close(one).delete.map(|d| d.link), Some(1));
    stage.shard.deleted(FILE, 1, &mut stage.fx);
    assert_eq!(stage.close(two).delete, None);
}

#[test]
fn what_is_renamed_is_deleted_under_its_new_name() {
    let mut stage = Stage::new();
    let (one, _) = stage.open(Request { link: 1, ..deletes() });
    let (two, _) = stage.open(Request { link: 1, ..plain() });
    stage.shard.renamed(FILE, two, 7);
    assert_eq!(stage.close(one).delete, None);
    assert_eq!(stage.close(two).delete.map(|d| d.link), Some(7));
}

/// smb2.streams.delete: a stream goes alone; the file takes its streams with it, and waits for them.
#[test]
fn streams() {
    let stream = FileKey { stream: 5, ..FILE };
    let mut stage = Stage::new();
    let (open, _) = stage.open_key(stream, deletes());
    let (file, _) = stage.open(plain());
    let closed = stage.shard.close(stream, open, &mut stage.fx).unwrap();
    assert_eq!(closed.delete.map(|d| d.stream), Some(5));
    assert_eq!(stage.refuse_key(stream, plain()), NtStatus::DELETE_PENDING);
    stage.open(plain());
    stage.shard.deleted(stream, 0, &mut stage.fx);
    let (open, _) = stage.open_key(stream, deletes());
    stage.shard.set_delete_pending(FILE, file, true).unwrap();
    assert_eq!(stage.refuse_key(stream, plain()), NtStatus::DELETE_PENDING);
    stage.close(file);
    let other = stage.shard.held().find(|held| held.key == FILE).unwrap().opener.open;
    assert_eq!(stage.close(other).delete, None, "a stream is open");
    let closed = stage.shard.close(stream, open, &mut stage.fx).unwrap();
    assert_eq!(closed.delete.map(|d| d.stream), Some(0));
    stage.shard.deleted(FILE, 0, &mut stage.fx);
    assert_eq!(stage.shard.counts().files, 0);
}

/// What is being removed is not asked for again by who closes the file meanwhile.
#[test]
fn a_name_is_removed_once() {
    let stream = FileKey { stream: 5, ..FILE };
    let mut stage = Stage::new();
    let (file, _) = stage.open(plain());
    let (open, _) = stage.open_key(stream, deletes());
    assert!(stage.shard.close(stream, open, &mut stage.fx).unwrap().delete.is_some());
    assert_eq!(stage.close(file), Closed { delete: None, last: true });
    assert_eq!(stage.refuse_key(stream, plain()), NtStatus::DELETE_PENDING);
    stage.shard.deleted(stream, 0, &mut stage.fx);
    assert_eq!(stage.shard.counts().files, 0);
}

/// FILE_DISPOSITION_POSIX_SEMANTICS: others keep the file, without its name.
#[test]
fn a_name_may_go_before_its_last_open() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(plain());
    let (second, _) = stage.open(plain());
    stage.shard.set_delete_with(FILE, first).unwrap();
    assert_eq!(stage.refuse(plain()), NtStatus::DELETE_PENDING);
    let closed = stage.close(first);
    assert_eq!(closed.delete.map(|d| d.by.open), Some(first));
    assert!(!closed.last);
    stage.shard.deleted(FILE, 0, &mut stage.fx);
    assert_eq!(stage.close(second), Closed { delete: None, last: true });
    assert_eq!(stage.shard.counts().files, 0);
}

#[test]
fn who_leaves_before_takes_no_name_along() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(plain());
    let (second, _) = stage.open(plain());
    stage.shard.set_delete_with(FILE, first).unwrap();
    assert_eq!(stage.close(second).delete, None);
    stage.shard.set_delete_pending(FILE, first, false).unwrap();
    assert_eq!(stage.close(first), Closed { delete: None, last: true });
}

#[test]
fn a_name_that_goes_with_its_last_open_may_go_sooner_after_all() {
    let mut stage = Stage::new();
    let (first, _) = stage.open(plain());
    let (second, _) = stage.open(plain());
    stage.shard.set_delete_pending(FILE, first, true).unwrap();
    stage.shard.set_delete_with(FILE, second).unwrap();
    assert!(stage.close(second).delete.is_some());
    stage.shard.deleted(FILE, 0, &mut stage.fx);
    assert_eq!(stage.close(first).delete, None);
}

#[test]
fn who_opens_by_a_name_that_another_file_takes_waits() {
    let mut stage = Stage::new();
    stage.shard.begin_replacement(FILE, 7, opener(3, 9));
    let by_name = |link| Request { link, ..plain() };
    let waits = stage.wait(by_name(7));
    // By another name of the file it may be opened, and closed: that ends nothing.
    let (other, _) = stage.open(by_name(8));
    assert_eq!(stage.close(other).delete, None);
    assert!(stage.shard.is_delete_pending(FILE, 7));
    assert!(matches!(stage.again(&waits), Outcome::Wait { .. }));
    stage.shard.deleted(FILE, 7, &mut stage.fx);
    stage.let_in(&waits);
}

#[test]
fn what_is_to_go_while_its_name_is_taken_goes_if_it_is_not() {
    let mut stage = Stage::new();
    let (open, _) = stage.open(Request { link: 7, ..plain() });
    stage.shard.begin_replacement(FILE, 7, opener(3, 9));
    stage.shard.set_delete_pending(FILE, open, true).expect("it is open");
    stage.shard.deleted(FILE, 7, &mut stage.fx);
    assert!(stage.close(open).delete.is_some_and(|delete| delete.link == 7));
}
