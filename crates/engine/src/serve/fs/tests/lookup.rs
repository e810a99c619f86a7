//! Names: as said, in another case, missing.

use std::fs;

use smb::NtStatus;

use super::super::lookup::Waits;
use super::{
    BOTH, FILE, FOLDER, Found, LOOK, READ, create, failure, on_each, on_each_with, open, path,
};

#[test]
fn the_root_is_a_folder() {
    on_each(|share, root| {
        let handle = open(share, "", READ);
        assert!(handle.is_folder());
        assert_eq!(handle.path(), "");
        use std::os::unix::fs::MetadataExt as _;
        assert_eq!(handle.identity().inode, fs::metadata(root).unwrap().ino());
        assert_eq!(handle.delete(), Err(NtStatus::ACCESS_DENIED));
    });
}

#[test]
fn case_is_folded_in_every_component() {
    on_each(|share, root| {
        fs::create_dir_all(root.join("Some/Folder")).unwrap();
        fs::write(root.join("Some/Folder/Ärger.TXT"), "x").unwrap();
        let handle = open(share, "sOME\\folder\\äRGER.txt", BOTH);
        assert_eq!(handle.path(), "Some\\Folder\\Ärger.TXT");
        assert_eq!(handle.first_facts().size, 1);
    });
}

#[test]
fn what_is_not_in_memory_is_left_to_who_can_wait() {
    on_each(|share, root| {
        let at_once = |name: &str| share.open_at_once(&path(name), LOOK, false, false).unwrap();
        fs::write(root.join("file"), "").unwrap();
        assert!(matches!(at_once("file"), Some(Found::There(_))));
        for name in ["new", "FILE", "nowhere\\new"] {
            match share.0.waits {
                // Nobody has asked the disk for such a name.
                Waits::ForNames => assert!(at_once(name).is_none(), "{name}"),
                Waits::Never => drop(share.open(&path(name), LOOK)),
                Waits::Always => panic!("neither in memory nor on a disk of this host"),
            }
        }
        assert_eq!(failure(share, "new"), NtStatus::OBJECT_NAME_NOT_FOUND);
        assert!(matches!(at_once("new"), Some(Found::Missing(_))));
        assert_eq!(open(share, "FILE", LOOK).path(), "file");
        assert!(matches!(at_once("FILE"), Some(Found::There(_))));
        // The names of a folder that were not read yet, beside one of which the disk has been asked.
        fs::create_dir(root.join("folder")).unwrap();
        assert!(fs::metadata(root.join("folder/new")).is_err());
        assert_eq!(at_once("folder\\new").is_none(), share.0.waits == Waits::ForNames);
        assert!(share.open_at_once(&path("folder\\new"), LOOK, true, false).unwrap().is_some());
        // Who makes it goes by the index, once that has been read; of what that has, the disk is asked.
        let make = |name: &str| share.open_at_once(&path(name), LOOK, false, true).unwrap();
        assert!(matches!(make("newer"), Some(Found::Missing(_))));
        assert_eq!(make("folder\\newer").is_none(), share.0.waits == Waits::ForNames);
        assert_eq!(make("FiLe").is_none(), share.0.waits == Waits::ForNames);
    });
}

#[test]
fn a_disk_that_was_slow_is_left_to_who_may_wait() {
    on_each(|share, root| {
        fs::write(root.join("file"), "").unwrap();
        open(share, "file", LOOK);
        let at_once = || share.open_at_once(&path("file"), LOOK, false, false).unwrap().is_some();
        assert_eq!(share.timed(|| 7), 7);
        assert!(at_once() && !share.keeps_waiting());
        share.timed(|| std::thread::sleep(std::time::Duration::from_millis(6)));
        let in_memory = open(share, "file", LOOK).is_in_memory().unwrap();
        assert_eq!(share.keeps_waiting(), !in_memory, "memory is slow for other reasons only");
        assert_eq!(at_once(), in_memory);
    });
}

#[test]
fn the_name_as_it_was_said_wins() {
    on_each(|share, root| {
        for name in ["file", "FILE", "File"] {
            fs::write(root.join(name), name).unwrap();
        }
        for name in ["file", "FILE", "File"] {
            assert_eq!(open(share, name, LOOK).path(), name);
        }
        assert_eq!(open(share, "fILE", LOOK).path().to_lowercase(), "file");
    });
}

#[test]
fn a_client_may_tell_cases_apart_where_others_do_not() {
    on_each(|share, root| {
        fs::create_dir(root.join("Folder")).unwrap();
        fs::write(root.join("Folder/file"), "").unwrap();
        let exact = |name: &str| share.open_exact(&path(name), LOOK);
        assert!(matches!(exact("Folder\\file"), Ok(Found::There(_))));
        let Ok(Found::Missing(vacancy)) = exact("Folder\\FILE") else { panic!("not missing") };
        vacancy.create(FILE).unwrap();
        assert_eq!(fs::read_dir(root.join("Folder")).unwrap().count(), 2);
        assert_eq!(exact("FOLDER\\file").err(), Some(NtStatus::OBJECT_PATH_NOT_FOUND));
        assert_eq!(open(share, "FOLDER\\FILE", LOOK).path(), "Folder\\FILE");
    });
}

#[test]
fn a_share_may_tell_cases_apart() {
    on_each_with(
        |config| config.case_sensitive = true,
        |share, root| {
            fs::write(root.join("file"), "").unwrap();
            assert_eq!(failure(share, "FILE"), NtStatus::OBJECT_NAME_NOT_FOUND);
            create(share, "FILE", FILE);
            assert_eq!(fs::read_dir(root).unwrap().count(), 2);
            assert_eq!(share.scans(), 0);
        },
    );
}

#[test]
fn what_is_missing_has_its_own_status() {
    on_each(|share, root| {
        fs::create_dir(root.join("folder")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        assert_eq!(failure(share, "folder\\no"), NtStatus::OBJECT_NAME_NOT_FOUND);
        assert_eq!(failure(share, "no\\no"), NtStatus::OBJECT_PATH_NOT_FOUND);
        assert_eq!(failure(share, "file\\no"), NtStatus::OBJECT_PATH_NOT_FOUND);
        assert_eq!(failure(share, "FILE\\no"), NtStatus::OBJECT_PATH_NOT_FOUND);
        assert_eq!(failure(share, &"n".repeat(255)), NtStatus::OBJECT_NAME_NOT_FOUND);
        assert_eq!(failure(share, &"ä".repeat(200)), NtStatus::OBJECT_NAME_INVALID);
    });
}

#[test]
fn two_who_create_the_same_file_are_told_apart() {
    on_each(|share, _| {
        let vacancy = || match share.open(&path("new"), LOOK).unwrap() {
            Found::Missing(vacancy) => vacancy,
            Found::There(_) => panic!("there already"),
        };
        let (one, two) = (vacancy(), vacancy());
        one.create(FILE).unwrap();
        assert_eq!(two.create(FILE).unwrap_err(), NtStatus::OBJECT_NAME_COLLISION);
        assert_eq!(two.create(FOLDER).unwrap_err(), NtStatus::OBJECT_NAME_COLLISION);
    });
}

#[test]
fn a_large_folder_is_read_once() {
    const FILES: usize = 100_000;
    let folder = tempfile::TempDir::new_in("/dev/shm").unwrap();
    for n in 0..FILES {
        fs::write(folder.path().join(format!("File-{n}")), "").unwrap();
    }
    let share = super::Share::new(super::Config::new(folder.path(), "large")).unwrap();
    for n in 0..2000 {
        create(&share, &format!("new-{n}"), FILE);
        assert_eq!(open(&share, &format!("FILE-{n}"), LOOK).path(), format!("File-{n}"));
        open(&share, &format!("NEW-{n}"), LOOK).delete().unwrap();
        assert_eq!(failure(&share, &format!("New-{n}")), NtStatus::OBJECT_NAME_NOT_FOUND);
    }
    assert_eq!(share.scans(), 1);
}

#[test]
fn names_that_are_there_as_said_need_no_index() {
    on_each(|share, root| {
        fs::create_dir(root.join("a")).unwrap();
        fs::write(root.join("a/b"), "").unwrap();
        for _ in 0..10 {
            open(share, "a\\b", READ);
        }
        assert_eq!(share.scans(), 0);
    });
}

/// Changes by others count at once, however fast they follow each other.
#[test]
fn what_others_do_is_seen_at_once() {
    on_each(|share, root| {
        assert_eq!(failure(share, "FILE"), NtStatus::OBJECT_NAME_NOT_FOUND);
        for n in 0..200 {
            fs::write(root.join("File"), "").unwrap();
            assert_eq!(open(share, "FILE", LOOK).path(), "File");
            let other = root.join(format!("Other{n}"));
            fs::rename(root.join("File"), &other).unwrap();
            assert_eq!(failure(share, "FILE"), NtStatus::OBJECT_NAME_NOT_FOUND);
            assert_eq!(open(share, &format!("OTHER{n}"), LOOK).path(), format!("Other{n}"));
            fs::remove_file(other).unwrap();
            assert_eq!(failure(share, &format!("OTHER{n}")), NtStatus::OBJECT_NAME_NOT_FOUND);
        }
        assert_eq!(share.scans(), 1);
    });
}

/// More events than the kernel's queue holds: the index begins again.
#[test]
fn a_queue_that_overflows_is_noticed() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let folder = tempfile::TempDir::new_in("/dev/shm").unwrap();
    let share = super::Share::new(super::Config::new(folder.path(), "queue")).unwrap();
    assert_eq!(failure(&share, "FILE"), NtStatus::OBJECT_NAME_NOT_FOUND);
    for n in 0..=limit / 2 {
        let name = folder.path().join(format!("x{n}"));
        fs::write(&name, "").unwrap();
        fs::remove_file(name).unwrap();
    }
    fs::write(folder.path().join("File"), "").unwrap();
    assert_eq!(open(&share, "FILE", LOOK).path(), "File");
    assert_eq!(share.scans(), 2);
}

#[test]
fn a_folder_that_is_another_one_now_is_not_mistaken() {
    on_each(|share, root| {
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/Old"), "").unwrap();
        open(share, "d\\OLD", LOOK);
        fs::remove_dir_all(root.join("d")).unwrap();
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/New"), "").unwrap();
        assert_eq!(failure(share, "d\\OLD"), NtStatus::OBJECT_NAME_NOT_FOUND);
        assert_eq!(open(share, "d\\NEW", LOOK).path(), "d\\New");
    });
}

#[test]
fn names_that_are_no_utf8_lead_back() {
    on_each(|share, root| {
        use std::os::unix::ffi::OsStrExt as _;
        fs::write(root.join(std::ffi::OsStr::from_bytes(b"caf\xe9: x.")), "12").unwrap();
        let mut folder = super::super::Directory::open(&open(share, "", READ)).unwrap();
        let mut entry = smb::fscc::Entry::default();
        let mut names = Vec::new();
        while folder.next(&mut |_| true, &mut entry).unwrap() {
            names.push(entry.name.clone());
        }
        assert_eq!(names.len(), 3);
        let name = &names[2];
        assert!(!name.contains(':') && !name.ends_with('.'));
        assert_eq!(open(share, name, READ).first_facts().size, 2);
        assert_eq!(open(share, &name.to_uppercase(), READ).first_facts().size, 2);
    });
}

#[test]
fn a_share_that_is_read_only_changes_nothing() {
    on_each_with(
        |config| config.read_only = true,
        |share, root| {
            fs::write(root.join("file"), "x").unwrap();
            assert_eq!(share.open(&path("file"), BOTH).unwrap_err(), NtStatus::ACCESS_DENIED);
            let handle = open(share, "file", READ);
            let denied = Err(NtStatus::ACCESS_DENIED);
            assert_eq!(handle.delete(), denied);
            assert_eq!(handle.set_size(0), denied);
            assert_eq!(handle.set_attributes(smb::Attributes::HIDDEN), denied);
            assert_eq!(handle.set_ea(b"A", b"b"), denied);
            assert_eq!(handle.reopen(BOTH).map(|_| ()), denied);
            let to = share.destination(&handle, &path("other"), false).unwrap();
            assert_eq!(handle.rename(&to, true), denied);
            match share.open(&path("new"), LOOK).unwrap() {
                Found::Missing(vacancy) => assert_eq!(vacancy.create(FILE).map(|_| ()), denied),
                Found::There(_) => panic!("not there"),
            }
            assert_eq!(fs::read(root.join("file")).unwrap(), b"x");
        },
    );
}

#[test]
fn many_look_in_one_folder_at_once_and_each_sees_what_was_done() {
    const THREADS: usize = 4;
    const FILES: usize = 500;
    on_each(|share, root| {
        fs::create_dir(root.join("Folder")).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for n in 0..FILES {
                        create(share, &format!("folder\\new-{thread}-{n}"), FILE);
                        let file = open(share, &format!("FOLDER\\NEW-{thread}-{n}"), LOOK);
                        assert_eq!(file.path(), format!("Folder\\new-{thread}-{n}"));
                        file.delete().unwrap();
                        let name = format!("Folder\\New-{thread}-{n}");
                        assert_eq!(failure(share, &name), NtStatus::OBJECT_NAME_NOT_FOUND);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(root.join("Folder")).unwrap().count(), 0);
    });
}

#[test]
fn a_folder_that_was_forgotten_is_read_anew() {
    on_each(|share, root| {
        // More than are remembered at a time.
        for n in 0..1100 {
            fs::create_dir(root.join(format!("d{n}"))).unwrap();
            fs::write(root.join(format!("d{n}/File")), "").unwrap();
        }
        for n in (0..1100).chain(0..10) {
            open(share, &format!("d{n}\\FILE"), LOOK);
        }
        fs::rename(root.join("d5/File"), root.join("d5/Other")).unwrap();
        assert_eq!(failure(share, "d5\\FILE"), NtStatus::OBJECT_NAME_NOT_FOUND);
        open(share, "d5\\OTHER", LOOK);
    });
}
