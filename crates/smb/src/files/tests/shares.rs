//! smb2.sharemode, smb2.deny, and share modes across streams.

use super::*;

const RIGHTS: [(Access, &str); 3] =
    [(Access::READ_DATA, "R"), (Access::WRITE_DATA, "W"), (Access::DELETE, "D")];

/// smb2.sharemode.sharemode-access, access-sharemode: every share mode against every right.
#[test]
fn every_right_against_every_share_mode() {
    for bits in 0..8 {
        let held = ShareAccess::from_bits_truncate(bits);
        for (access, letter) in RIGHTS {
            let shares = Request { access: Access::READ_DATA, share: held, ..plain() };
            let comes = Request { access, ..plain() };
            let mut stage = Stage::new();
            stage.open(shares);
            let may = held.contains(share(letter));
            if may {
                stage.open(comes);
            } else {
                assert_eq!(stage.refuse(comes), NtStatus::SHARING_VIOLATION);
            }
            // The other way round it is the same.
            let mut stage = Stage::new();
            let (open, _) = stage.open(comes);
            if may {
                stage.open(shares);
            } else {
                assert_eq!(stage.refuse(shares), NtStatus::SHARING_VIOLATION);
                stage.close(open);
                stage.open(shares);
            }
        }
    }
}

/// smb2.sharemode.bug14375: what an open does not share counts only if it reads, writes or deletes itself.
#[test]
fn who_does_nothing_denies_nothing() {
    let mut stage = Stage::new();
    let looks = Request {
        access: Access::READ_ATTRIBUTES | Access::READ_CONTROL | Access::WRITE_DAC,
        share: ShareAccess::empty(),
        ..plain()
    };
    stage.open(looks);
    stage.open(plain());
    stage.open(looks);
    assert_eq!(stage.shard.counts().opens, 3);
}

#[test]
fn a_file_is_not_opened_to_delete_it_while_a_stream_is_in_use() {
    let stream = FileKey { stream: 5, ..FILE };
    let deletes = Request { access: Access::DELETE, ..plain() };
    let mut stage = Stage::new();
    let keeps = Request { share: share("RW"), access: Access::READ_DATA, ..plain() };
    stage.open_key(stream, keeps);
    assert_eq!(stage.refuse(deletes), NtStatus::SHARING_VIOLATION);
    stage.open(Request { access: Access::READ_DATA | Access::WRITE_DATA, ..plain() });
    stage.open_key(FileKey { stream: 6, ..FILE }, deletes);
}

/// A stream whose handle is only cached is closed for it.
#[test]
fn a_stream_that_is_only_cached_gives_way() {
    let stream = FileKey { stream: 5, ..FILE };
    let mut stage = Stage::new();
    let keeps = Request { share: share("RW"), ..with_oplock("b") };
    let (open, _) = stage.open_key(stream, keeps);
    let waits = stage.wait(Request { access: Access::DELETE, ..plain() });
    stage.oplock_break(open, "s", true);
    stage.shard.close(stream, open, &mut stage.fx).unwrap();
    stage.let_in(&waits);
}
