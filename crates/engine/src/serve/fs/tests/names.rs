//! Renames, links, deletion.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use smb::NtStatus;

use super::super::{Destination, Handle, Share};
use super::{BOTH, FILE, FOLDER, LOOK, create, failure, on_each, open, path};

#[track_caller]
fn to(share: &Share, handle: &Handle, text: &str) -> Destination {
    share.destination(handle, &path(text), false).unwrap()
}

#[test]
fn a_file_gets_another_name() {
    on_each(|share, root| {
        fs::create_dir(root.join("Folder")).unwrap();
        let file = create(share, "file", FILE);
        file.rename(&to(share, &file, "FOLDER\\New"), false).unwrap();
        assert_eq!(file.path(), "Folder\\New");
        assert!(root.join("Folder/New").exists() && !root.join("file").exists());
        file.delete().unwrap();
        assert_eq!(failure(share, "folder\\new"), NtStatus::OBJECT_NAME_NOT_FOUND);
        assert_eq!(
            share.destination(&file, &path("no\\where"), false).unwrap_err(),
            NtStatus::OBJECT_PATH_NOT_FOUND
        );
    });
}

#[test]
fn only_the_case_may_change() {
    on_each(|share, root| {
        let file = create(share, "file", FILE);
        let there = to(share, &file, "FILE");
        assert!(there.is_same() && there.existing().is_none());
        file.rename(&there, false).unwrap();
        assert_eq!(file.path(), "FILE");
        assert!(root.join("FILE").exists());
        assert_eq!(fs::read_dir(root).unwrap().count(), 1);
        file.rename(&to(share, &file, "FILE"), false).unwrap();
        assert!(root.join("FILE").exists());
    });
}

#[test]
fn what_is_there_is_replaced_when_that_is_asked_for() {
    on_each(|share, root| {
        fs::write(root.join("Old"), "old").unwrap();
        let file = create(share, "file", FILE);
        file.set_size(1).unwrap();
        let there = to(share, &file, "OLD");
        assert_eq!(there.existing().unwrap().path(), "Old");
        assert_eq!(file.rename(&there, false), Err(NtStatus::OBJECT_NAME_COLLISION));
        file.rename(&there, true).unwrap();
        assert_eq!(fs::read(root.join("OLD")).unwrap(), [0]);
        assert_eq!(fs::read_dir(root).unwrap().count(), 1);
        let folder = create(share, "folder", FOLDER);
        assert_eq!(file.rename(&to(share, &file, "folder"), true), Err(NtStatus::ACCESS_DENIED));
        assert_eq!(
            folder.rename(&to(share, &folder, "folder\\sub"), true),
            Err(NtStatus::ACCESS_DENIED)
        );
    });
}

/// Between the look-up and the rename somebody else takes the name.
#[test]
fn a_rename_without_replacing_never_replaces() {
    on_each(|share, root| {
        let file = create(share, "file", FILE);
        let there = to(share, &file, "new");
        fs::write(root.join("new"), "theirs").unwrap();
        assert_eq!(file.rename(&there, false), Err(NtStatus::OBJECT_NAME_COLLISION));
        assert_eq!(fs::read(root.join("new")).unwrap(), b"theirs");
    });
}

#[test]
fn hard_links() {
    on_each(|share, root| {
        let file = create(share, "file", FILE);
        let look = open(share, "file", LOOK);
        look.link(&to(share, &look, "link"), false).unwrap();
        assert_eq!(fs::metadata(root.join("link")).unwrap().nlink(), 2);
        assert_eq!(
            file.link(&to(share, &file, "LINK"), false),
            Err(NtStatus::OBJECT_NAME_COLLISION)
        );
        fs::write(root.join("other"), "other").unwrap();
        file.link(&to(share, &file, "other"), true).unwrap();
        assert_eq!(file.facts().unwrap().links, 3);
        // One name of a file over another of it: the first one goes.
        file.rename(&to(share, &file, "Link"), true).unwrap();
        let mut names: Vec<_> =
            fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["Link", "other"]);
        let folder = create(share, "folder", FOLDER);
        assert_eq!(
            folder.link(&to(share, &folder, "f2"), false),
            Err(NtStatus::FILE_IS_A_DIRECTORY)
        );
    });
}

/// The new name comes, or the file that has it stays.
#[test]
fn a_link_takes_the_place_of_a_name_or_leaves_it() {
    on_each(|share, root| {
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        fs::write(root.join("There"), "there").unwrap();
        let file = create(share, "file", FILE);
        // What has no name left cannot be given one.
        fs::remove_file(root.join("file")).unwrap();
        let there = to(share, &file, "there");
        assert_eq!(file.link(&there, true), Err(NtStatus::OBJECT_NAME_NOT_FOUND));
        assert_eq!(fs::read(root.join("There")).unwrap(), b"there");
        assert_eq!(names(), ["There"], "nothing is left beside it");
        let file = create(share, "file", FILE);
        file.link(&to(share, &file, "THERE"), true).unwrap();
        assert_eq!(names(), ["THERE", "file"]);
        assert_eq!(file.facts().unwrap().links, 2);
        // A link of the file itself.
        file.link(&to(share, &file, "there"), true).unwrap();
        assert_eq!(names(), ["file", "there"]);
        assert_eq!(file.facts().unwrap().links, 2);
        create(share, "folder", FOLDER);
        assert_eq!(file.link(&to(share, &file, "folder"), true), Err(NtStatus::ACCESS_DENIED));
    });
}

#[test]
fn the_name_that_was_opened_is_deleted() {
    on_each(|share, root| {
        fs::write(root.join("one"), "").unwrap();
        fs::hard_link(root.join("one"), root.join("two")).unwrap();
        open(share, "two", BOTH).delete().unwrap();
        assert!(root.join("one").exists() && !root.join("two").exists());
    });
}

#[test]
fn another_file_of_the_same_name_is_not_deleted() {
    on_each(|share, root| {
        let file = create(share, "file", FILE);
        fs::rename(root.join("file"), root.join("moved")).unwrap();
        fs::write(root.join("file"), "theirs").unwrap();
        // It is followed to where it is now.
        file.delete().unwrap();
        assert!(root.join("file").exists() && !root.join("moved").exists());
        assert_eq!(file.delete(), Err(NtStatus::OBJECT_NAME_NOT_FOUND));
        assert!(root.join("file").exists());
    });
}

#[test]
fn a_handle_survives_that_a_folder_above_it_is_renamed() {
    on_each(|share, root| {
        fs::create_dir(root.join("a")).unwrap();
        let made = create(share, "a\\made", FILE);
        fs::write(root.join("a/opened"), "").unwrap();
        let opened = open(share, "a\\opened", LOOK);
        let folder = open(share, "a", LOOK);
        folder.rename(&to(share, &folder, "b"), false).unwrap();
        opened.moved(&path("b\\opened")).unwrap();
        assert_eq!(opened.path(), "b\\opened");
        made.delete().unwrap();
        opened.delete().unwrap();
        assert!(folder.is_empty_folder().unwrap());
    });
}

#[test]
fn only_empty_folders_are_deleted() {
    on_each(|share, _| {
        let folder = create(share, "folder", FOLDER);
        let file = create(share, "folder\\file", FILE);
        assert!(!folder.is_empty_folder().unwrap());
        assert_eq!(folder.delete(), Err(NtStatus::DIRECTORY_NOT_EMPTY));
        file.delete().unwrap();
        assert!(folder.is_empty_folder().unwrap());
        folder.delete().unwrap();
        assert_eq!(failure(share, "folder\\file"), NtStatus::OBJECT_PATH_NOT_FOUND);
    });
}

#[test]
fn many_who_create_and_delete_at_once() {
    on_each(|share, root| {
        std::thread::scope(|scope| {
            for worker in 0..4 {
                scope.spawn(move || {
                    for n in 0..300 {
                        let name = format!("W{worker}-{}", n % 5);
                        let file = create(share, &name, FILE);
                        let there = to(share, &file, &format!("X{worker}"));
                        file.rename(&there, false).unwrap();
                        assert_eq!(
                            open(share, &format!("x{worker}"), LOOK).identity(),
                            file.identity()
                        );
                        file.delete().unwrap();
                        assert_eq!(
                            failure(share, &format!("x{worker}")),
                            NtStatus::OBJECT_NAME_NOT_FOUND
                        );
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(root).unwrap().count(), 0);
    });
}
