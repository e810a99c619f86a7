mod attributes;
mod closed;
mod coarse;
mod cost;
mod escape;
mod folders;
mod fuse;
mod lookup;
mod names;
mod streams;
mod watching;

use smb::name::Path;
use smb::{Access, NtStatus};
use tempfile::TempDir;

use super::{Config, Create, Found, Handle, Share, Want};

const READ: Want = Want { read: true, write: false, link: false };
const BOTH: Want = Want { read: true, write: true, link: false };
const LOOK: Want = Want { read: false, write: false, link: false };

/// Runs a test on a file system in memory and on one on disk.
#[track_caller]
fn on_each(test: impl Fn(&Share, &std::path::Path)) {
    on_each_with(|_| {}, test);
}

#[track_caller]
fn on_each_with(settings: impl Fn(&mut Config), test: impl Fn(&Share, &std::path::Path)) {
    let disk = std::env::temp_dir();
    for place in [std::path::Path::new("/dev/shm"), &disk] {
        let folder = TempDir::new_in(place).unwrap();
        let root = folder.path().join("share");
        std::fs::create_dir(&root).unwrap();
        let mut config = Config::new(&root, "test");
        settings(&mut config);
        test(&Share::new(config).unwrap(), &root);
    }
}

fn path(text: &str) -> Path {
    Path::parse_str(text).unwrap()
}

#[track_caller]
fn open(share: &Share, text: &str, want: Want) -> Handle {
    share.open_existing(&path(text), want).unwrap()
}

#[track_caller]
fn failure(share: &Share, text: &str) -> NtStatus {
    match share.open(&path(text), LOOK) {
        Ok(Found::Missing(_)) => NtStatus::OBJECT_NAME_NOT_FOUND,
        Ok(Found::There(handle)) => panic!("{text} is there: {}", handle.path()),
        Err(status) => status,
    }
}

#[track_caller]
fn create(share: &Share, text: &str, how: Create) -> Handle {
    match share.open(&path(text), LOOK).unwrap() {
        Found::Missing(vacancy) => vacancy.create(how).unwrap(),
        Found::There(handle) => panic!("{text} is there: {}", handle.path()),
    }
}

const FILE: Create = Create { folder: false, attributes: smb::Attributes::empty(), mode: None };
const FOLDER: Create = Create { folder: true, ..FILE };

#[test]
fn rights_say_what_a_descriptor_must_do() {
    assert_eq!(Want::by_access(Access::READ_ATTRIBUTES | Access::DELETE), LOOK);
    assert_eq!(Want::by_access(Access::FILE_READ), READ);
    assert_eq!(Want::by_access(Access::FILE_ALL), BOTH);
}
