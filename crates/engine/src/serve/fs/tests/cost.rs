//! What the usual requests cost, in time. Not a test that can fail: run it alone and read it.

use std::fs;
use std::time::Instant;

use smb::fscc::Entry;

use super::super::Directory;
use super::{Config, FILE, LOOK, READ, Share, create, open};

#[test]
#[ignore = "prints times"]
fn of_the_usual_requests() {
    for place in ["/dev/shm", "/var/tmp"] {
        let folder = tempfile::TempDir::new_in(place).unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        for n in 0..1000 {
            fs::write(folder.path().join(format!("a/b/{n}")), "").unwrap();
        }
        let share = Share::new(Config::new(folder.path(), "cost")).unwrap();
        let time = |what: &str, count: u32, call: &mut dyn FnMut(u32)| {
            for _ in 0..2 {
                (0..count).for_each(&mut *call);
            }
            let start = Instant::now();
            (0..count).for_each(&mut *call);
            println!("{place} {what}: {:?}", start.elapsed() / count);
        };
        std::thread::sleep(std::time::Duration::from_millis(100));
        time("open to look", 1000, &mut |n| drop(open(&share, &format!("a\\b\\{n}"), LOOK)));
        time("open to read", 1000, &mut |n| drop(open(&share, &format!("a\\b\\{n}"), READ)));
        time("create, delete", 1000, &mut |n| {
            create(&share, &format!("a\\b\\new{n}"), FILE).delete().unwrap();
        });
        let listed = open(&share, "a\\b", READ);
        time("list 1000", 20, &mut |_| {
            let mut entries = Directory::open(&listed).unwrap();
            let mut entry = Entry::default();
            while entries.next(&mut |_| true, &mut entry).unwrap() {}
        });
    }
}
