//! Clients that see files as Unix does: the SMB3 POSIX Extensions, agreed on by negotiate context 0x100.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use engine::serve::config::Links;
use smb::security::{Ace, Acl, Control, Descriptor, SecurityInfo, Sid};
use smb::wire::context::Requested;
use smb::wire::header::Command;
use smb::wire::query_directory::{self, Flags};
use smb::wire::{close, create, query_info, set_info};
use smb::{Access, CreateOptions, Disposition, FileId, NtStatus, ShareAccess};

use crate::client::{Client, Offer, utf16};
use crate::place::Place;

/// SMB_FILE_POSIX_INFO, SMB_FIND_FILE_POSIX_INFO and SMB3_FS_POSIX_INFO.
const POSIX: u8 = 100;
const RENAME: u8 = 10;
const LINK: u8 = 11;

fn enter(place: &Place) -> Client {
    let offer = Offer { posix: true, ..Offer::default() };
    Client::enter(place.address(), offer, "alice", "files")
}

/// A CREATE as Linux sends it.
fn body(name: &[u8], disposition: Disposition, mode: u32) -> create::Request<'_> {
    create::Request {
        access: Access::FILE_READ | Access::FILE_WRITE | Access::DELETE | Access::WRITE_DAC,
        share: ShareAccess::all(),
        disposition,
        options: CreateOptions::OPEN_REPARSE_POINT,
        contexts: Requested { posix_mode: Some(mode), ..Requested::default() },
        ..Client::create_body(name)
    }
}

fn try_open(client: &mut Client, name: &str, how: Disposition) -> Result<FileId, NtStatus> {
    let name = utf16(name);
    let answer = client.call(Command::Create, &body(&name, how, 0o640));
    match answer.status() {
        NtStatus::SUCCESS => Ok(create::Response::parse(&answer.message).unwrap().file),
        status => Err(status),
    }
}

fn open(client: &mut Client, name: &str, how: Disposition) -> FileId {
    try_open(client, name, how).unwrap()
}

fn shut(client: &mut Client, file: FileId) {
    client.call(Command::Close, &close::Request { file, ..close::Request::default() }).good();
}

/// Makes a file that holds its own name.
fn make(client: &mut Client, name: &str) {
    let file = open(client, name, Disposition::Create);
    assert_eq!(client.write(file, 0, name.as_bytes()), NtStatus::SUCCESS);
    shut(client, file);
}

fn set(client: &mut Client, file: FileId, class: u8, data: &[u8]) -> NtStatus {
    let subject = set_info::Subject::File;
    let body = set_info::Request { subject, class, additional: 0, file, data };
    client.call(Command::SetInfo, &body).status()
}

/// Another name for a file, in place of what has it.
fn name(client: &mut Client, from: &str, class: u8, to: &str) -> NtStatus {
    let file = open(client, from, Disposition::Open);
    let to = utf16(to);
    let len = u32::try_from(to.len()).unwrap().to_le_bytes();
    let status = set(client, file, class, &[&[1][..], &[0; 15], &len, &to].concat());
    shut(client, file);
    status
}

fn ask(client: &mut Client, subject: query_info::Subject, file: FileId) -> Vec<u8> {
    let (class, output_max) = (POSIX, 4096);
    let body = query_info::Request {
        subject,
        class,
        output_max,
        input: &[],
        additional: 0,
        flags: 0,
        file,
    };
    let answer = client.call(Command::QueryInfo, &body).good();
    query_info::Response::parse(&answer.message).unwrap().data.to_vec()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The entries of the share's root: mode and name.
fn list(client: &mut Client) -> Vec<(u32, String)> {
    let root = create::Request {
        access: Access::FILE_READ,
        options: CreateOptions::DIRECTORY_FILE,
        ..body(&[], Disposition::Open, 0)
    };
    let answer = client.call(Command::Create, &root).good();
    let file = create::Response::parse(&answer.message).unwrap().file;
    let pattern = utf16("*");
    let query = query_directory::Request {
        class: POSIX,
        flags: Flags::empty(),
        index: 0,
        file,
        pattern: &pattern,
        output_max: 65_536,
    };
    let answer = client.call(Command::QueryDirectory, &query).good();
    let data = query_directory::Response::parse(&answer.message).unwrap().data.to_vec();
    shut(client, file);
    let (mut at, mut all) = (0, Vec::new());
    loop {
        let entry = &data[at..];
        let len = u32_at(entry, 120) as usize;
        let (units, _) = entry[124..124 + len].as_chunks::<2>();
        let units: Vec<u16> = units.iter().map(|unit| u16::from_le_bytes(*unit)).collect();
        let name = String::from_utf16(&units).unwrap();
        if name != "." && name != ".." {
            all.push((u32_at(entry, 84), name));
        }
        match u32_at(entry, 0) {
            0 => break,
            next => at += next as usize,
        }
    }
    all.sort();
    all
}

#[test]
fn two_names_that_differ_in_case_are_two_files() {
    let place = Place::new();
    let mut client = enter(&place);
    let on_host = |name: &str| fs::read_to_string(place.folder().join(name)).unwrap();
    for name in ["a", "A", "b"] {
        make(&mut client, name);
    }
    assert_eq!((on_host("a"), on_host("A")), ("a".to_owned(), "A".to_owned()));
    for name in ["a", "A"] {
        let file = open(&mut client, name, Disposition::Open);
        assert_eq!(client.read(file, 0, 1).as_deref(), Ok(name.as_bytes()));
        shut(&mut client, file);
    }
    let missing = try_open(&mut client, "B", Disposition::Open);
    assert_eq!(missing, Err(NtStatus::OBJECT_NAME_NOT_FOUND));
    // A name that is like another one takes nothing's place.
    assert_eq!(name(&mut client, "A", RENAME, "B"), NtStatus::SUCCESS);
    assert_eq!((on_host("b"), on_host("B")), ("b".to_owned(), "A".to_owned()));
    assert_eq!(name(&mut client, "b", LINK, "A"), NtStatus::SUCCESS);
    assert_eq!((on_host("a"), on_host("A")), ("a".to_owned(), "b".to_owned()));
    // The one that has just that name does.
    assert_eq!(name(&mut client, "a", RENAME, "A"), NtStatus::SUCCESS);
    assert_eq!(on_host("A"), "a");
    let names: Vec<_> = list(&mut client).into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, ["A", "B", "b"]);
    // Who has not agreed on it finds a file whatever the case.
    let mut other = Client::enter(place.address(), Offer::default(), "bob", "files");
    let file = other.open("a");
    assert_eq!(other.read(file, 0, 1).as_deref(), Ok(&b"a"[..]));
}

#[test]
fn characters_that_are_reserved_elsewhere_are_in_names() {
    let place = Place::new();
    let mut client = enter(&place);
    // As `mapposix` of Linux has them.
    for (said, on_disk) in [
        ("colon\u{f022}", "colon:"),
        ("star\u{f021}", "star*"),
        ("mark\u{f025}", "mark?"),
        ("back\u{f026}slash", "back\\slash"),
        ("more\u{f024}", "more>"),
        ("dot\u{f029}", "dot."),
    ] {
        make(&mut client, said);
        assert_eq!(fs::read_to_string(place.folder().join(on_disk)).unwrap(), said);
        let listed = list(&mut client);
        assert_eq!(listed, [(0o640, said.to_owned())], "{on_disk}");
        fs::remove_file(place.folder().join(on_disk)).unwrap();
    }
}

#[test]
fn what_stat_tells_is_told() {
    // Links are for the client to follow.
    let place = Place::with(|config| config.shares[0].links = Links::Client);
    let mut client = enter(&place);
    make(&mut client, "file");
    fs::hard_link(place.folder().join("file"), place.folder().join("other")).unwrap();
    symlink("file", place.folder().join("link")).unwrap();
    let host = fs::metadata(place.folder().join("file")).unwrap();
    let name = utf16("file");
    let answer = client.call(Command::Create, &body(&name, Disposition::Open, 0)).good();
    let response = create::Response::parse(&answer.message).unwrap();
    let said = response.contexts.posix.unwrap();
    assert_eq!((said.links, said.mode, said.reparse_tag), (2, 0o640, 0));
    let info = ask(&mut client, query_info::Subject::File, response.file);
    assert_eq!(u64_at(&info, 32), host.len());
    assert_eq!((u64_at(&info, 52), u32_at(&info, 68)), (host.ino(), 2));
    assert_eq!(u32_at(&info, 76), 0o640);
    let (owner, len) = Sid::parse(&info[80..]).unwrap();
    let (group, _) = Sid::parse(&info[80 + len..]).unwrap();
    assert_eq!((owner, group), (Sid::unix_user(host.uid()), Sid::unix_group(host.gid())));
    let volume = ask(&mut client, query_info::Subject::FileSystem, response.file);
    let host = rustix::fs::statvfs(place.folder()).unwrap();
    assert_eq!(volume.len(), 56);
    assert_eq!((u64::from(u32_at(&volume, 4)), u64_at(&volume, 8)), (host.f_frsize, host.f_blocks));
    let files = u64_at(&volume, 32);
    assert_eq!(files, host.f_files);
    // A symbolic link is one, with all that a link has.
    let kinds: Vec<_> =
        list(&mut client).into_iter().map(|(mode, name)| (mode >> 12, name)).collect();
    let named = |kind, name: &str| (kind, name.to_owned());
    assert_eq!(kinds, [named(0, "file"), named(0, "other"), named(2, "link")]);
}

#[test]
fn a_mode_is_changed_as_linux_says_it() {
    let place = Place::new();
    let mut client = enter(&place);
    make(&mut client, "file");
    let file = open(&mut client, "file", Disposition::Open);
    let mode = || fs::metadata(place.folder().join("file")).unwrap().permissions().mode() & 0o7777;
    let chmod = |client: &mut Client, wanted| {
        let dacl = Acl::new([Ace::allow(Sid::unix_mode(wanted), Access::empty())]);
        let control = Control::DACL_PRESENT | Control::SELF_RELATIVE;
        let new = Descriptor { control, dacl: Some(dacl), ..Descriptor::default() };
        let (subject, data) = (set_info::Subject::Security, new.to_bytes());
        let additional = SecurityInfo::DACL.bits();
        let body = set_info::Request { subject, class: 0, additional, file, data: &data };
        client.call(Command::SetInfo, &body).status()
    };
    for wanted in [0o600, 0o755, 0o444, 0o640] {
        assert_eq!(chmod(&mut client, wanted), NtStatus::SUCCESS);
        assert_eq!(mode(), wanted);
        let info = ask(&mut client, query_info::Subject::File, file);
        assert_eq!(u32_at(&info, 76), wanted);
    }
    shut(&mut client, file);
    // It is still for its owner to open.
    let file = open(&mut client, "file", Disposition::Open);
    assert_eq!(client.read(file, 0, 4).as_deref(), Ok(&b"file"[..]));
}

#[test]
fn a_file_that_is_new_has_the_mode_that_was_said_if_one_was() {
    let place = Place::new();
    let mut client = enter(&place);
    let mut modes = |said: &[u32], options| {
        let made = |said: &u32| {
            let name = format!("{said:o} {options:?}");
            let wide = utf16(&name);
            let body = create::Request { options, ..body(&wide, Disposition::Create, *said) };
            client.call(Command::Create, &body).good();
            fs::metadata(place.folder().join(name)).unwrap().permissions().mode() & 0o7777
        };
        said.iter().map(made).collect::<Vec<_>>()
    };
    let (file, folder) = (CreateOptions::NON_DIRECTORY_FILE, CreateOptions::DIRECTORY_FILE);
    let said = [0, 0o600, 0o4700, 0o2700, 0o100_600];
    assert_eq!(modes(&said, file), [0, 0o600, 0o4700, 0o2700, 0o600]);
    assert_eq!(modes(&[0, 0o700, 0o1700], folder), [0, 0o700, 0o1700]);
    // What Linux says where it says none: as for who does not know of modes.
    let mut other = Client::enter(place.address(), Offer::default(), "alice", "files");
    for (options, name) in [(file, "usual"), (folder, "usual folder")] {
        let wide = utf16(name);
        let create = create::Request { options, ..Client::create_body(&wide) };
        other.call(Command::Create, &create).good();
        let usual = fs::metadata(place.folder().join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(modes(&[0xffff, u32::MAX], options), [usual; 2]);
    }
}
