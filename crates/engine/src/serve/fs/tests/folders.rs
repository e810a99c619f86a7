//! Listing.

use std::collections::BTreeSet;
use std::fs;

use smb::fscc::Entry;
use smb::{Attributes, NtStatus};

use super::super::Directory;
use super::{Create, FILE, FOLDER, LOOK, READ, create, on_each, open};

fn names(folder: &mut Directory, matches: &mut dyn FnMut(&str) -> bool) -> Vec<String> {
    let mut entry = Entry::default();
    let mut names = Vec::new();
    while folder.next(matches, &mut entry).unwrap() {
        names.push(entry.name.clone());
    }
    names
}

#[test]
fn every_entry_is_seen_once_with_its_facts() {
    on_each(|share, root| {
        for n in 0..3000 {
            fs::write(root.join(format!("file-{n}")), vec![0; n % 7]).unwrap();
        }
        create(share, "hidden", Create { attributes: Attributes::HIDDEN, ..FILE });
        create(share, "folder", FOLDER);
        let mut folder = Directory::open(&open(share, "", LOOK)).unwrap();
        let mut entry = Entry::default();
        let mut seen = BTreeSet::new();
        while folder.next(&mut |_| true, &mut entry).unwrap() {
            assert!(seen.insert(entry.name.clone()), "{} twice", entry.name);
            let handle = match entry.name.as_str() {
                "." | ".." => open(share, "", LOOK),
                name => open(share, name, LOOK),
            };
            assert_eq!(entry.facts, *handle.first_facts(), "{}", entry.name);
        }
        assert_eq!(seen.len(), 3004);
        assert!(!folder.next(&mut |_| true, &mut entry).unwrap());
        folder.restart().unwrap();
        assert_eq!(names(&mut folder, &mut |name| name.starts_with("file-1")).len(), 1111);
    });
}

#[test]
fn what_another_thread_looks_up_counts_until_the_answer_is_complete() {
    on_each(|share, root| {
        let write = |text| {
            for n in 0..1000 {
                fs::write(root.join(format!("file-{n:04}")), text).unwrap();
            }
        };
        write("");
        let mut folder = Directory::open(&open(share, "", READ)).unwrap();
        let mut entry = Entry::default();
        let mut sizes = |folder: &mut Directory, count| -> Vec<u64> {
            let size = |_| {
                assert!(folder.next(&mut |_| true, &mut entry).unwrap());
                entry.facts.size
            };
            (0..count).map(size).collect()
        };
        sizes(&mut folder, 3);
        assert!(folder.errand(100).is_none(), "so few are not worth it");
        let errand = folder.errand(usize::MAX).unwrap();
        assert!(folder.errand(usize::MAX).is_none(), "it is under way");
        std::thread::spawn(move || errand.run()).join().unwrap();
        write("longer");
        // The first ones are left to who is at them already.
        sizes(&mut folder, 64);
        assert_eq!(sizes(&mut folder, 300), [0; 300], "as they were when they were looked up");
        folder.pause();
        assert_eq!(sizes(&mut folder, 300), [6; 300]);
        // Nobody wants it any more: it does nothing.
        let errand = folder.errand(usize::MAX).unwrap();
        folder.restart().unwrap();
        errand.run();
        write("x");
        sizes(&mut folder, 2);
        assert_eq!(sizes(&mut folder, 1000), [1; 1000]);
    });
}

#[test]
fn dots_come_first_and_what_does_not_fit_comes_again() {
    on_each(|share, root| {
        for name in ["a", "b"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        fs::write(root.join("a/x"), "").unwrap();
        let mut folder = Directory::open(&open(share, "a", READ)).unwrap();
        let mut entry = Entry::default();
        let mut got = Vec::new();
        for put_back in [true, false, true, false, true, false] {
            assert!(folder.next(&mut |_| true, &mut entry).unwrap());
            got.push(entry.name.clone());
            if put_back {
                folder.put_back();
            }
        }
        assert_eq!(got, [".", ".", "..", "..", "x", "x"]);
        assert!(!folder.next(&mut |_| true, &mut entry).unwrap());
        let up = folder.find("..").unwrap().unwrap();
        assert_eq!(up.facts.index, open(share, "", LOOK).identity().inode);
    });
}

#[test]
fn one_name_is_found_without_reading_the_folder() {
    on_each(|share, root| {
        fs::write(root.join("ReadMe"), "12").unwrap();
        let folder = Directory::open(&open(share, "", READ)).unwrap();
        assert_eq!(folder.find("ReadMe").unwrap().unwrap().facts.size, 2);
        assert_eq!(share.scans(), 0);
        for _ in 0..10 {
            assert_eq!(folder.find("README").unwrap().unwrap().name, "ReadMe");
            assert_eq!(folder.find("nothing").unwrap(), None);
        }
        assert_eq!(share.scans(), 1);
    });
}

#[test]
fn a_folder_may_change_while_it_is_listed() {
    on_each(|share, root| {
        for n in 0..2000 {
            fs::write(root.join(format!("{n}")), "").unwrap();
        }
        let mut folder = Directory::open(&open(share, "", READ)).unwrap();
        let mut entry = Entry::default();
        for _ in 0..100 {
            assert!(folder.next(&mut |_| true, &mut entry).unwrap());
        }
        for n in 0..2000 {
            fs::remove_file(root.join(format!("{n}"))).unwrap();
        }
        assert_eq!(names(&mut folder, &mut |_| true), Vec::<String>::new());
    });
}

#[test]
fn a_file_is_not_listed() {
    on_each(|share, _| {
        let file = create(share, "file", FILE);
        assert_eq!(Directory::open(&file).map(|_| ()), Err(NtStatus::NOT_A_DIRECTORY));
    });
}
