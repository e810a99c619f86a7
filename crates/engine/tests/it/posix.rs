//! Names as on Unix: FileDispositionInformationEx, FileRenameInformationEx and FileLinkInformationEx (MS-FSCC 2.4.12,
//! 2.4.43, 2.4.28).

use smb::wire::header::Command;
use smb::wire::{close, create, set_info};
use smb::{Attributes, CreateOptions, Disposition, FileId, Guid, NtStatus, ShareAccess};

use crate::client::{Client, Offer, utf16};
use crate::place::Place;

const DISPOSITION_EX: u8 = 64;
const RENAME_EX: u8 = 65;
const LINK_EX: u8 = 72;

const DELETE: u8 = 1;
const REPLACE: u32 = 1;
const POSIX: u32 = 2;
const ON_CLOSE: u8 = 8;
const DELETE_READONLY: u8 = 0x10;
const REPLACE_READONLY: u32 = 0x40;

fn enter(place: &Place) -> Client {
    Client::enter(place.address(), Offer::default(), "alice", "files")
}

fn other(place: &Place) -> Client {
    let offer = Offer { guid: Guid([8; 16]), ..Offer::default() };
    Client::enter(place.address(), offer, "bob", "files")
}

fn open(client: &mut Client, name: &str, share: ShareAccess) -> Result<FileId, NtStatus> {
    let name = utf16(name);
    let body = create::Request { share, ..Client::create_body(&name) };
    let answer = client.call(Command::Create, &body);
    match answer.status() {
        NtStatus::SUCCESS => Ok(create::Response::parse(&answer.message).unwrap().file),
        status => Err(status),
    }
}

fn shared(client: &mut Client, name: &str) -> FileId {
    open(client, name, ShareAccess::all()).unwrap()
}

fn shut(client: &mut Client, file: FileId) {
    client.call(Command::Close, &close::Request { file, ..close::Request::default() }).good();
}

fn set(client: &mut Client, file: FileId, class: u8, data: &[u8]) -> NtStatus {
    let subject = set_info::Subject::File;
    let body = set_info::Request { subject, class, additional: 0, file, data };
    client.call(Command::SetInfo, &body).status()
}

fn dispose(client: &mut Client, file: FileId, flags: u8) -> NtStatus {
    set(client, file, DISPOSITION_EX, &[flags, 0, 0, 0])
}

fn named(name: &str, flags: u32) -> Vec<u8> {
    let name = utf16(name);
    let mut data = flags.to_le_bytes().to_vec();
    data.resize(16, 0);
    data.extend(u32::try_from(name.len()).unwrap().to_le_bytes());
    data.extend(name);
    data
}

#[test]
fn a_name_goes_with_the_open_that_deletes_it() {
    let place = Place::new();
    let (mut alice, mut bob) = (enter(&place), other(&place));
    let hers = shared(&mut alice, "file.txt");
    assert_eq!(alice.write(hers, 0, b"still here"), NtStatus::SUCCESS);
    let his = shared(&mut bob, "file.txt");
    assert_eq!(dispose(&mut bob, his, DELETE | 2), NtStatus::SUCCESS);
    let again = open(&mut alice, "file.txt", ShareAccess::all());
    assert_eq!(again, Err(NtStatus::DELETE_PENDING));
    assert!(place.folder().join("file.txt").exists(), "until it is closed");
    shut(&mut bob, his);
    assert!(!place.folder().join("file.txt").exists(), "though alice has it open");
    assert_eq!(alice.read(hers, 0, 100).as_deref(), Ok(&b"still here"[..]));
    // The name is free for another file.
    let new = shared(&mut bob, "file.txt");
    assert_eq!(bob.write(new, 0, b"new"), NtStatus::SUCCESS);
    assert_eq!(alice.write(hers, 0, b"old"), NtStatus::SUCCESS);
    shut(&mut alice, hers);
    assert_eq!(std::fs::read(place.folder().join("file.txt")).unwrap(), b"new");
    shut(&mut bob, new);
    assert_eq!(place.counts().files, 0);
}

#[test]
fn a_folder_may_go_while_another_has_it_open() {
    let place = Place::new();
    let (mut alice, mut bob) = (enter(&place), other(&place));
    let name = utf16("folder");
    let body = create::Request {
        share: ShareAccess::all(),
        options: CreateOptions::DIRECTORY_FILE,
        ..Client::create_body(&name)
    };
    let opened = |client: &mut Client| {
        let answer = client.call(Command::Create, &body).good();
        create::Response::parse(&answer.message).unwrap().file
    };
    let (hers, his) = (opened(&mut alice), opened(&mut bob));
    let child = shared(&mut alice, "folder\\child");
    assert_eq!(dispose(&mut bob, his, DELETE | 2), NtStatus::DIRECTORY_NOT_EMPTY);
    assert_eq!(dispose(&mut alice, child, DELETE | 2), NtStatus::SUCCESS);
    shut(&mut alice, child);
    assert_eq!(dispose(&mut bob, his, DELETE | 2), NtStatus::SUCCESS);
    shut(&mut bob, his);
    assert!(!place.folder().join("folder").exists());
    shut(&mut alice, hers);
}

#[test]
fn what_was_said_of_a_deletion_may_be_taken_back_and_what_cannot_is_refused() {
    let place = Place::new();
    let mut alice = enter(&place);
    let file = shared(&mut alice, "file.txt");
    assert_eq!(dispose(&mut alice, file, DELETE | 2), NtStatus::SUCCESS);
    assert_eq!(dispose(&mut alice, file, 0), NtStatus::SUCCESS);
    assert_eq!(dispose(&mut alice, file, DELETE | ON_CLOSE), NtStatus::NOT_SUPPORTED);
    shut(&mut alice, file);
    assert!(place.folder().join("file.txt").exists());
}

#[test]
fn what_is_read_only_goes_if_that_is_said() {
    let place = Place::new();
    let mut alice = enter(&place);
    let name = utf16("fixed.txt");
    let body = create::Request {
        disposition: Disposition::Create,
        attributes: Attributes::READONLY,
        share: ShareAccess::all(),
        ..Client::create_body(&name)
    };
    let answer = alice.call(Command::Create, &body).good();
    let fixed = create::Response::parse(&answer.message).unwrap().file;
    assert_eq!(dispose(&mut alice, fixed, DELETE), NtStatus::CANNOT_DELETE);
    shut(&mut alice, fixed);
    let file = shared(&mut alice, "file.txt");
    let onto = |flags| named("fixed.txt", REPLACE | flags);
    assert_eq!(set(&mut alice, file, RENAME_EX, &onto(POSIX)), NtStatus::ACCESS_DENIED);
    assert_eq!(set(&mut alice, file, RENAME_EX, &onto(REPLACE_READONLY)), NtStatus::SUCCESS);
    shut(&mut alice, file);
    assert!(!place.folder().join("file.txt").exists());
    let name = utf16("again.txt");
    let body = create::Request { name: &name, ..body };
    let answer = alice.call(Command::Create, &body).good();
    let fixed = create::Response::parse(&answer.message).unwrap().file;
    assert_eq!(dispose(&mut alice, fixed, DELETE | DELETE_READONLY), NtStatus::SUCCESS);
    shut(&mut alice, fixed);
    assert!(!place.folder().join("again.txt").exists());
}

#[test]
fn what_is_open_is_replaced_if_who_has_it_shares_that() {
    let place = Place::new();
    let (mut alice, mut bob) = (enter(&place), other(&place));
    let old = open(&mut alice, "there.txt", ShareAccess::READ | ShareAccess::WRITE).unwrap();
    assert_eq!(alice.write(old, 0, b"old"), NtStatus::SUCCESS);
    let file = shared(&mut bob, "file.txt");
    assert_eq!(bob.write(file, 0, b"new"), NtStatus::SUCCESS);
    let onto = |flags| named("there.txt", flags);
    assert_eq!(
        set(&mut bob, file, RENAME_EX, &onto(POSIX)),
        NtStatus::OBJECT_NAME_COLLISION,
        "it is not to be replaced"
    );
    assert_eq!(
        set(&mut bob, file, RENAME_EX, &onto(REPLACE | POSIX)),
        NtStatus::SHARING_VIOLATION,
        "alice does not share its deletion"
    );
    shut(&mut alice, old);
    let old = shared(&mut alice, "there.txt");
    assert_eq!(set(&mut bob, file, RENAME_EX, &onto(REPLACE)), NtStatus::ACCESS_DENIED);
    assert_eq!(set(&mut bob, file, RENAME_EX, &onto(REPLACE | POSIX)), NtStatus::SUCCESS);
    assert_eq!(alice.read(old, 0, 100).as_deref(), Ok(&b"old"[..]), "alice keeps what she has");
    assert_eq!(std::fs::read(place.folder().join("there.txt")).unwrap(), b"new");
    // What she deletes is not what has the name now.
    assert_eq!(dispose(&mut alice, old, DELETE), NtStatus::SUCCESS);
    shut(&mut alice, old);
    assert!(place.folder().join("there.txt").exists());
    let third = shared(&mut alice, "third.txt");
    assert_eq!(set(&mut alice, third, LINK_EX, &onto(REPLACE)), NtStatus::ACCESS_DENIED);
    assert_eq!(set(&mut alice, third, LINK_EX, &onto(REPLACE | POSIX)), NtStatus::SUCCESS);
    assert_eq!(bob.read(file, 0, 100).as_deref(), Ok(&b"new"[..]));
    assert_eq!(std::fs::read(place.folder().join("there.txt")).unwrap(), b"");
}
