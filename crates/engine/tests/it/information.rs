//! What is said about files, set about them, and who may do what with them.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use smb::security::{Ace, AceFlags, Acl, Control, Descriptor, SecurityInfo, Sid};
use smb::wire::context::{AppleQuery, Lease, LeaseV2, Requested, ServerQuery};
use smb::wire::header::Command;
use smb::wire::{close, create, lease_break, query_info, set_info};
use smb::{
    Access, CreateOptions, Disposition, FileId, FileTime, Guid, LeaseKey, LeaseState, NtStatus,
    OplockLevel, ShareAccess,
};

use crate::client::{Answer, Client, Offer, request, utf16};
use crate::place::Place;

/// FileBasicInformation and its like (MS-FSCC 2.4, 2.5).
const BASIC: u8 = 4;
const STANDARD: u8 = 5;
const NAME: u8 = 9;
const RENAME: u8 = 10;
const LINK: u8 = 11;
const DISPOSITION: u8 = 13;
const POSITION: u8 = 14;
const FULL_EA: u8 = 15;
const MODE: u8 = 16;
const ALL: u8 = 18;
const ALLOCATION: u8 = 19;
const END_OF_FILE: u8 = 20;
const STREAM: u8 = 22;
const VALID_DATA_LENGTH: u8 = 39;
const SHORT_NAME: u8 = 40;
/// FileFsControlInformation (MS-FSCC 2.5.2).
const FS_CONTROL: u8 = 6;

pub(crate) fn enter(place: &Place) -> Client {
    Client::enter(place.address(), Offer::default(), "alice", "files")
}

fn other(place: &Place) -> Client {
    let offer = Offer { guid: Guid([8; 16]), ..Offer::default() };
    Client::enter(place.address(), offer, "bob", "files")
}

/// An open that asks for this, of what is there or is made.
fn ask<'a>(name: &'a [u8], access: Access, options: CreateOptions) -> create::Request<'a> {
    create::Request { access, options, share: ShareAccess::all(), ..Client::create_body(name) }
}

pub(crate) fn open_as(
    client: &mut Client,
    name: &str,
    access: Access,
    options: CreateOptions,
) -> Result<FileId, NtStatus> {
    let name = utf16(name);
    let answer = client.call(Command::Create, &ask(&name, access, options));
    match answer.status() {
        NtStatus::SUCCESS => Ok(create::Response::parse(&answer.message).unwrap().file),
        status => Err(status),
    }
}

fn folder(client: &mut Client, name: &str) -> FileId {
    open_as(client, name, Access::FILE_ALL, CreateOptions::DIRECTORY_FILE).unwrap()
}

fn shut(client: &mut Client, file: FileId) {
    client.call(Command::Close, &close::Request { file, ..close::Request::default() }).good();
}

pub(crate) fn query(client: &mut Client, file: FileId, class: u8, output_max: u32) -> Answer {
    let subject = query_info::Subject::File;
    query_about(client, file, (subject, class, 0), output_max, &[])
}

pub(crate) fn query_about(
    client: &mut Client,
    file: FileId,
    (subject, class, additional): (query_info::Subject, u8, u32),
    output_max: u32,
    input: &[u8],
) -> Answer {
    let body =
        query_info::Request { subject, class, output_max, input, additional, flags: 0, file };
    client.call(Command::QueryInfo, &body)
}

pub(crate) fn told(answer: &Answer) -> Vec<u8> {
    query_info::Response::parse(&answer.message).unwrap().data.to_vec()
}

pub(crate) fn set(client: &mut Client, file: FileId, class: u8, data: &[u8]) -> NtStatus {
    let subject = set_info::Subject::File;
    let body = set_info::Request { subject, class, additional: 0, file, data };
    client.call(Command::SetInfo, &body).status()
}

/// FILE_RENAME_INFORMATION_TYPE_2.
pub(crate) fn renaming(name: &str, replace: bool) -> Vec<u8> {
    let name = utf16(name);
    let mut data = vec![0; 16];
    data[0] = replace.into();
    data.extend(u32::try_from(name.len()).unwrap().to_le_bytes());
    data.extend(name);
    data
}

fn security(client: &mut Client, file: FileId, info: SecurityInfo, new: &Descriptor) -> NtStatus {
    let (subject, data) = (set_info::Subject::Security, new.to_bytes());
    let body = set_info::Request { subject, class: 0, additional: info.bits(), file, data: &data };
    client.call(Command::SetInfo, &body).status()
}

fn descriptor(client: &mut Client, file: FileId, info: SecurityInfo) -> Descriptor {
    let about = (query_info::Subject::Security, 0, info.bits());
    let answer = query_about(client, file, about, 65536, &[]).good();
    Descriptor::parse(&told(&answer)).unwrap()
}

/// The four times that FileBasicInformation begins with.
fn times(client: &mut Client, file: FileId) -> [FileTime; 4] {
    let basic = told(&query(client, file, BASIC, 40).good());
    [0, 8, 16, 24].map(|at| FileTime(u64::from_le_bytes(*basic[at..].first_chunk().unwrap())))
}

fn set_times(client: &mut Client, file: FileId, times: [FileTime; 4]) {
    let mut data: Vec<u8> = times.into_iter().flat_map(|time| time.0.to_le_bytes()).collect();
    data.extend([0; 8]);
    assert_eq!(set(client, file, BASIC, &data), NtStatus::SUCCESS);
}

#[test]
fn times_that_a_client_sets_stay_until_it_lets_them_go() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("times.txt");
    let long_ago = FileTime(126_000_000_000_000_000);
    set_times(&mut client, file, [long_ago; 4]);
    assert_eq!(times(&mut client, file), [long_ago; 4]);
    assert_eq!(client.write(file, 0, b"later"), NtStatus::SUCCESS);
    let [created, _, written, changed] = times(&mut client, file);
    assert_eq!((created, written, changed), (long_ago, long_ago, long_ago));
    // Another handle has not promised anything.
    let second = client.open("times.txt");
    assert_eq!(client.write(second, 0, b"other"), NtStatus::SUCCESS);
    let [_, _, written, changed] = times(&mut client, file);
    assert!(written > long_ago && changed > long_ago);
    let none = FileTime::NONE;
    set_times(&mut client, file, [none, none, FileTime::FREEZE, none]);
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(client.write(file, 0, b"frozen"), NtStatus::SUCCESS);
    assert_eq!(times(&mut client, file)[2], written, "frozen");
    set_times(&mut client, file, [none, none, FileTime::THAW, none]);
    assert_eq!(client.write(file, 0, b"thawed"), NtStatus::SUCCESS);
    assert!(times(&mut client, file)[2] > written, "thawed");
}

/// What MS-FSCC 2.4 lets be set and the other tests here do not: set, and asked for again.
#[test]
fn each_level_that_may_be_set_is_set_or_refused_as_it_must_be() {
    const SYNCHRONOUS: u32 = 0x20;
    let (good, bad) = (NtStatus::SUCCESS, NtStatus::INVALID_PARAMETER);
    let (short, never) = (NtStatus::INFO_LENGTH_MISMATCH, NtStatus::PRIVILEGE_NOT_HELD);
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("levels.txt");
    assert_eq!(client.write(file, 0, &[7; 10_000]), good);
    let mut name = 16_u32.to_le_bytes().to_vec();
    name.extend(utf16("LEVELS~1"));
    let number = |number: u64| number.to_le_bytes().to_vec();
    let mode = |mode: u32| mode.to_le_bytes().to_vec();
    for (class, data, status) in [
        (POSITION, number(4711), good),
        (POSITION, number(u64::MAX), bad),
        (POSITION, vec![0; 7], short),
        (MODE, mode(SYNCHRONOUS | 0x2), good),
        (MODE, mode(SYNCHRONOUS | 0x10), bad),
        (MODE, mode(0x1), bad),
        (MODE, vec![0; 3], short),
        (VALID_DATA_LENGTH, number(20_000), never),
        (VALID_DATA_LENGTH, vec![0; 7], short),
        (SHORT_NAME, name, never),
        (SHORT_NAME, mode(0x100), bad),
        (ALLOCATION, vec![0; 7], short),
        (ALLOCATION, number(u64::MAX), bad),
        (END_OF_FILE, vec![0; 7], short),
        // Which can be asked for and not set, and which there is not.
        (STANDARD, vec![0; 24], NtStatus::INVALID_INFO_CLASS),
        (STREAM, vec![0; 64], NtStatus::INVALID_INFO_CLASS),
        (99, vec![0; 64], NtStatus::INVALID_INFO_CLASS),
    ] {
        assert_eq!(set(&mut client, file, class, &data), status, "{class}: {data:?}");
    }
    let mut ask = |class, room| told(&query(&mut client, file, class, room).good());
    assert_eq!(ask(POSITION, 8), number(4711));
    assert_eq!(ask(MODE, 4), mode(SYNCHRONOUS | 0x2));
    assert_eq!(place.folder().join("levels.txt").metadata().unwrap().len(), 10_000, "as it was");
}

/// FileAllocationInformation: less than there is cuts it, more is set aside and no data.
#[test]
fn what_is_set_aside_for_a_file_is_not_its_length() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("aside.txt");
    assert_eq!(client.write(file, 0, &[7; 10_000]), NtStatus::SUCCESS);
    let mut set_aside = |bytes: u64| {
        assert_eq!(set(&mut client, file, ALLOCATION, &bytes.to_le_bytes()), NtStatus::SUCCESS);
        let standard = told(&query(&mut client, file, STANDARD, 24).good());
        [0, 8].map(|at| u64::from_le_bytes(*standard[at..].first_chunk().unwrap()))
    };
    let [allocated, length] = set_aside(1 << 20);
    assert!(allocated >= 1 << 20, "{allocated}");
    assert_eq!(length, 10_000);
    let [allocated, length] = set_aside(5_000);
    assert!((5_000..1 << 20).contains(&allocated), "{allocated}");
    assert_eq!(length, 5_000, "cut");
    assert_eq!(set_aside(0), [0, 0]);
    let read_only = open_as(&mut client, "aside.txt", Access::FILE_READ, CreateOptions::empty());
    let more = (1_u64 << 20).to_le_bytes();
    let refused = set(&mut client, read_only.unwrap(), ALLOCATION, &more);
    assert_eq!(refused, NtStatus::ACCESS_DENIED);
}

#[test]
fn a_rename_is_seen_by_all_who_have_it_open() {
    let place = Place::new();
    let mut client = enter(&place);
    let first = client.open("before.txt");
    let second = client.open("before.txt");
    let above = folder(&mut client, "Folder");
    shut(&mut client, above);
    assert_eq!(
        set(&mut client, first, RENAME, &renaming("folder\\after.txt", false)),
        NtStatus::SUCCESS
    );
    let name = told(&query(&mut client, second, NAME, 200).good());
    assert_eq!(name[4..], utf16("\\Folder\\after.txt"), "as the disk has it");
    assert!(place.folder().join("Folder/after.txt").exists());
    assert_eq!(set(&mut client, second, DISPOSITION, &[1]), NtStatus::SUCCESS);
    shut(&mut client, first);
    assert!(place.folder().join("Folder/after.txt").exists(), "open still");
    shut(&mut client, second);
    assert!(!place.folder().join("Folder/after.txt").exists(), "deleted by its new name");
}

#[test]
fn what_is_in_the_way_of_a_rename() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("file.txt");
    let there = client.open("there.txt");
    assert_eq!(
        set(&mut client, file, RENAME, &renaming("there.txt", false)),
        NtStatus::OBJECT_NAME_COLLISION
    );
    let onto = renaming("there.txt", true);
    assert_eq!(set(&mut client, file, RENAME, &onto), NtStatus::ACCESS_DENIED, "it is open");
    shut(&mut client, there);
    assert_eq!(set(&mut client, file, RENAME, &onto), NtStatus::SUCCESS);
    let above = folder(&mut client, "folder");
    let inside = renaming("folder\\file.txt", false);
    // Whoever may delete the folder does not share that.
    assert_eq!(set(&mut client, file, RENAME, &inside), NtStatus::SHARING_VIOLATION);
    let child = client.open("folder\\child.txt");
    let away = renaming("elsewhere", false);
    assert_eq!(set(&mut client, above, RENAME, &away), NtStatus::ACCESS_DENIED, "a child is open");
    shut(&mut client, child);
    assert_eq!(set(&mut client, above, RENAME, &away), NtStatus::SUCCESS);
    let reads = Access::FILE_READ;
    let file = open_as(&mut client, "there.txt", reads, CreateOptions::empty()).unwrap();
    let away = renaming("moved.txt", false);
    assert_eq!(set(&mut client, file, RENAME, &away), NtStatus::ACCESS_DENIED, "without DELETE");
}

/// Opens or makes a file, with a lease by which it may be kept open.
fn keep(client: &mut Client, name: &str) -> FileId {
    let name = utf16(name);
    let lease = Lease {
        key: LeaseKey([3; 16]),
        state: LeaseState::READ | LeaseState::HANDLE,
        v2: Some(LeaseV2::default()),
        ..Lease::default()
    };
    let create = create::Request {
        oplock: OplockLevel::Lease,
        contexts: Requested { lease: Some(lease), ..Requested::default() },
        ..ask(&name, Access::FILE_READ, CreateOptions::NON_DIRECTORY_FILE)
    };
    let answer = client.call(Command::Create, &create).good();
    create::Response::parse(&answer.message).unwrap().file
}

#[test]
fn a_rename_waits_for_who_caches_the_handle() {
    let place = Place::new();
    let (mut alice, mut bob) = (enter(&place), other(&place));
    keep(&mut alice, "cached.txt");
    let access = Access::READ_ATTRIBUTES | Access::DELETE;
    let file = open_as(&mut bob, "cached.txt", access, CreateOptions::empty()).unwrap();
    let data = renaming("renamed.txt", false);
    let subject = set_info::Subject::File;
    let body = set_info::Request { subject, class: RENAME, additional: 0, file, data: &data };
    bob.send_one(request(Command::SetInfo, &body));
    let told = lease_break::Notification::parse(&alice.receive_break().message).unwrap();
    assert_eq!(told.new, LeaseState::READ, "the handle is let go of");
    assert!(place.folder().join("cached.txt").exists(), "not before alice has said so");
    let said = lease_break::Request { flags: 0, key: told.key, state: told.new };
    alice.call(Command::OplockBreak, &said).good();
    bob.receive_last().good();
    assert!(place.folder().join("renamed.txt").exists());
}

#[test]
fn data_that_was_opened_meanwhile_is_not_replaced_by_a_stream() {
    let place = Place::new();
    let (mut alice, mut bob) = (enter(&place), other(&place));
    let data = alice.open("file.txt");
    assert_eq!(alice.write(data, 0, b"data"), NtStatus::SUCCESS);
    shut(&mut alice, data);
    let kept = keep(&mut alice, "file.txt:stream");
    let access = Access::READ_ATTRIBUTES | Access::DELETE;
    let file = open_as(&mut bob, "file.txt:stream", access, CreateOptions::empty()).unwrap();
    let renaming = renaming("::$DATA", true);
    let subject = set_info::Subject::File;
    let body = set_info::Request { subject, class: RENAME, additional: 0, file, data: &renaming };
    bob.send_one(request(Command::SetInfo, &body));
    alice.receive_break();
    let reads = Access::FILE_READ;
    let data = open_as(&mut alice, "file.txt", reads, CreateOptions::empty()).unwrap();
    shut(&mut alice, kept);
    assert_eq!(bob.receive_last().status(), NtStatus::ACCESS_DENIED);
    assert_eq!(alice.read(data, 0, 4).as_deref(), Ok(&b"data"[..]));
    shut(&mut alice, data);
    assert_eq!(set(&mut bob, file, RENAME, &renaming), NtStatus::SUCCESS, "nobody has it open");
    let data = open_as(&mut alice, "file.txt", reads, CreateOptions::empty()).unwrap();
    assert_eq!(alice.read(data, 0, 4), Err(NtStatus::END_OF_FILE), "as empty as the stream");
}

#[test]
fn a_file_goes_with_its_last_open_even_if_that_is_of_a_stream() {
    let place = Place::new();
    let mut client = enter(&place);
    let stream = client.open("doomed.txt:stream");
    let file = client.open("doomed.txt");
    assert_eq!(set(&mut client, file, DISPOSITION, &[1]), NtStatus::SUCCESS);
    assert_eq!(told(&query(&mut client, file, STANDARD, 24).good())[20], 1, "delete pending");
    let again = open_as(&mut client, "doomed.txt", Access::FILE_READ, CreateOptions::empty());
    assert_eq!(again, Err(NtStatus::DELETE_PENDING));
    shut(&mut client, file);
    assert!(place.folder().join("doomed.txt").exists());
    shut(&mut client, stream);
    assert!(!place.folder().join("doomed.txt").exists());
    let full = folder(&mut client, "full");
    let child = client.open("full\\child.txt");
    assert_eq!(set(&mut client, full, DISPOSITION, &[1]), NtStatus::DIRECTORY_NOT_EMPTY);
    assert_eq!(set(&mut client, child, DISPOSITION, &[1]), NtStatus::SUCCESS);
    assert_eq!(set(&mut client, child, DISPOSITION, &[0]), NtStatus::SUCCESS, "after all not");
    shut(&mut client, child);
    assert!(place.folder().join("full/child.txt").exists());
}

#[test]
fn a_descriptor_that_modes_can_say_is_kept_as_one() {
    let place = Place::new();
    let mut client = enter(&place);
    let path = place.folder().join("plain.txt");
    let file = open_as(&mut client, "plain.txt", Access::FILE_ALL, CreateOptions::empty()).unwrap();
    let parts = SecurityInfo::OWNER | SecurityInfo::GROUP | SecurityInfo::DACL;
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
    let of_640 = descriptor(&mut client, file, parts);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert_ne!(descriptor(&mut client, file, parts), of_640);
    assert_eq!(security(&mut client, file, SecurityInfo::DACL, &of_640), NtStatus::SUCCESS);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    assert_ne!(descriptor(&mut client, file, parts), of_640, "nothing was stored beside the mode");
}

#[test]
fn a_descriptor_that_was_set_decides_and_is_inherited() {
    let place = Place::new();
    let mut client = enter(&place);
    let above = folder(&mut client, "above");
    let owner = descriptor(&mut client, above, SecurityInfo::OWNER).owner.unwrap();
    let inherits = AceFlags::OBJECT_INHERIT | AceFlags::CONTAINER_INHERIT;
    let dacl = Acl::new([
        Ace::allow(owner, Access::FILE_ALL).with(AceFlags::CONTAINER_INHERIT),
        Ace::allow(owner, Access::FILE_READ | Access::WRITE_DAC)
            .with(AceFlags::OBJECT_INHERIT | AceFlags::INHERIT_ONLY),
        Ace::allow(Sid::GUESTS, Access::FILE_READ).with(inherits),
    ]);
    let new =
        Descriptor { control: Control::DACL_PRESENT, dacl: Some(dacl), ..Descriptor::default() };
    assert_eq!(security(&mut client, above, SecurityInfo::DACL, &new), NtStatus::SUCCESS);
    let file = client.open("above\\file.txt");
    assert_eq!(client.write(file, 0, b"x"), NtStatus::SUCCESS, "its creator has what it asked for");
    shut(&mut client, file);
    let mut try_with =
        |access| open_as(&mut client, "above\\file.txt", access, CreateOptions::empty());
    assert_eq!(try_with(Access::WRITE_DATA), Err(NtStatus::ACCESS_DENIED));
    assert!(try_with(Access::DELETE).is_ok(), "the folder allows that");
    let file = try_with(Access::FILE_READ | Access::WRITE_DAC).unwrap();
    let dacl = descriptor(&mut client, file, SecurityInfo::DACL).dacl.unwrap();
    assert_eq!(dacl.aces.len(), 2);
    assert!(dacl.aces.iter().all(|ace| ace.flags.is_empty()), "{dacl:?}");
    let stranger = Descriptor { owner: Some(Sid::USERS), ..Descriptor::default() };
    assert_eq!(
        security(&mut client, file, SecurityInfo::OWNER, &stranger),
        NtStatus::ACCESS_DENIED,
        "without WRITE_OWNER"
    );
    let file = open_as(&mut client, "own.txt", Access::FILE_ALL, CreateOptions::empty()).unwrap();
    assert_eq!(
        security(&mut client, file, SecurityInfo::OWNER, &stranger),
        NtStatus::INVALID_OWNER
    );
}

#[test]
fn buffers_that_are_too_short() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("a long name.txt");
    assert_eq!(query(&mut client, file, ALL, 103).status(), NtStatus::INFO_LENGTH_MISMATCH);
    let answer = query(&mut client, file, ALL, 110);
    assert_eq!((answer.status(), told(&answer).len()), (NtStatus::BUFFER_OVERFLOW, 110));
    assert_eq!(query(&mut client, file, 77, 100).status(), NtStatus::INVALID_INFO_CLASS);
    assert_eq!(query(&mut client, file, ALL, 1 << 30).status(), NtStatus::INVALID_PARAMETER);
    let file =
        open_as(&mut client, "a long name.txt", Access::READ_CONTROL, CreateOptions::empty());
    let file = file.unwrap();
    let about = (query_info::Subject::Security, 0, SecurityInfo::OWNER.bits());
    let answer = query_about(&mut client, file, about, 0, &[]);
    assert_eq!(answer.status(), NtStatus::BUFFER_TOO_SMALL);
    let needs = smb::wire::error::Response::parse(&answer.message).unwrap();
    let needs = u32::from_le_bytes(*needs.status_data().unwrap().first_chunk().unwrap());
    assert!(query_about(&mut client, file, about, needs, &[]).status() == NtStatus::SUCCESS);
    assert_eq!(query(&mut client, file, ALL, 200).status(), NtStatus::ACCESS_DENIED);
}

#[test]
fn attributes_and_streams_beside_the_data() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = open_as(&mut client, "both.txt", Access::FILE_ALL, CreateOptions::empty()).unwrap();
    let mut eas = Vec::new();
    let ea = |name: &str, value: &[u8]| smb::fscc::Ea {
        flags: 0,
        name: name.to_owned(),
        value: value.to_vec(),
    };
    smb::fscc::put_eas(&[ea("ONE", b"1"), ea("Two", b"22")], 4096, &mut eas).unwrap();
    assert_eq!(set(&mut client, file, FULL_EA, &eas), NtStatus::SUCCESS);
    // FILE_GET_EA_INFORMATION: next, length, name, zero.
    let about = (query_info::Subject::File, FULL_EA, 0);
    for (name, value) in [("three", &b""[..]), ("Two", b"22"), ("TWO", b"22")] {
        let len = u8::try_from(name.len()).unwrap();
        let names = [&[0; 4][..], &[len], name.as_bytes(), b"\0"].concat();
        let answer = query_about(&mut client, file, about, 4096, &names).good();
        assert_eq!(smb::fscc::parse_eas(&told(&answer)).unwrap(), [ea(name, value)]);
    }
    let mut none = Vec::new();
    smb::fscc::put_eas(&[ea("one", b"")], 4096, &mut none).unwrap();
    assert_eq!(set(&mut client, file, FULL_EA, &none), NtStatus::SUCCESS);
    let answer = query(&mut client, file, FULL_EA, 4096).good();
    assert_eq!(smb::fscc::parse_eas(&told(&answer)).unwrap(), [ea("Two", b"22")]);

    let stream = open_as(&mut client, "both.txt:old", Access::FILE_ALL, CreateOptions::empty());
    let stream = stream.unwrap();
    assert_eq!(set(&mut client, stream, END_OF_FILE, &5u64.to_le_bytes()), NtStatus::SUCCESS);
    assert_eq!(set(&mut client, stream, RENAME, &renaming(":new?", false)), NtStatus::SUCCESS);
    let listed = told(&query(&mut client, file, STREAM, 4096).good());
    assert!(listed.windows(16).any(|window| window == &utf16(":new?:$D")[..16]));
    assert!(!listed.windows(8).any(|window| window == &utf16(":old")[..8]));
    assert_eq!(
        set(&mut client, stream, RENAME, &renaming("other.txt", false)),
        NtStatus::INVALID_PARAMETER,
        "a stream stays with its file"
    );
}

#[test]
fn one_more_name_for_a_file() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("one.txt");
    assert_eq!(client.write(file, 0, b"same"), NtStatus::SUCCESS);
    assert_eq!(set(&mut client, file, LINK, &renaming("two.txt", false)), NtStatus::SUCCESS);
    assert_eq!(std::fs::read(place.folder().join("two.txt")).unwrap(), b"same");
    let again = set(&mut client, file, LINK, &renaming("two.txt", false));
    assert_eq!(again, NtStatus::OBJECT_NAME_COLLISION);
    assert_eq!(set(&mut client, file, DISPOSITION, &[1]), NtStatus::SUCCESS);
    shut(&mut client, file);
    assert!(!place.folder().join("one.txt").exists());
    assert!(place.folder().join("two.txt").exists(), "the other name stays");
    let name = utf16("two.txt");
    let create = create::Request {
        disposition: Disposition::Open,
        ..ask(&name, Access::FILE_READ, CreateOptions::empty())
    };
    client.call(Command::Create, &create).good();
}

/// What has the new name is asked to go, and is another one by the time that it has.
#[test]
fn a_link_takes_the_place_of_what_was_asked_to_go_and_of_nothing_else() {
    let place = Place::new();
    let (mut alice, mut bob) = (enter(&place), other(&place));
    let hers = keep(&mut alice, "there.txt");
    let file = bob.open("file.txt");
    let data = renaming("there.txt", true);
    let subject = set_info::Subject::File;
    let body = set_info::Request { subject, class: LINK, additional: 0, file, data: &data };
    bob.send_one(request(Command::SetInfo, &body));
    alice.receive_break();
    std::fs::rename(place.folder().join("there.txt"), place.folder().join("away.txt")).unwrap();
    shut(&mut alice, hers);
    assert_eq!(bob.receive_last().status(), NtStatus::SHARING_VIOLATION);
    assert!(place.folder().join("away.txt").exists(), "it has another name now");
    assert!(!place.folder().join("there.txt").exists());
    assert_eq!(set(&mut bob, file, LINK, &data), NtStatus::SUCCESS, "nothing is in the way");
    assert!(place.folder().join("there.txt").exists());
}

/// Of eight and three characters: told, as some programs ask, and not kept.
#[test]
fn no_file_is_found_by_its_short_name() {
    const ALTERNATE_NAME: u8 = 21;
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("a rather long name.text");
    let short = told(&query(&mut client, file, ALTERNATE_NAME, 100).good());
    let short = String::from_utf16(
        &short[4..].chunks(2).map(|c| u16::from_le_bytes([c[0], c[1]])).collect::<Vec<_>>(),
    )
    .unwrap();
    assert!(short.contains('~') && short.len() <= 12, "{short}");
    let name = utf16(&short);
    let body = create::Request {
        disposition: Disposition::Open,
        ..ask(&name, Access::FILE_READ, CreateOptions::empty())
    };
    let answer = client.call(Command::Create, &body);
    assert_eq!(answer.status(), NtStatus::OBJECT_NAME_NOT_FOUND);
    // It is a name like any other, of another file.
    client.open(&short);
    assert_eq!(std::fs::read_dir(place.folder()).unwrap().count(), 2);
}

#[test]
fn quotas_are_refused_and_nonsense_about_them_is_called_so() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("any.txt");
    let about = (query_info::Subject::Quota, 0, 0);
    // SMB2_QUERY_QUOTA_INFO: all users, from the first one on; and one that says it has a list of them.
    let mut all = [0; 16];
    all[1] = 1;
    let answer = query_about(&mut client, file, about, 65536, &all);
    assert_eq!(answer.status(), NtStatus::NOT_SUPPORTED);
    all[4] = 40;
    for wrong in [&all[..], &all[..15], &[]] {
        let answer = query_about(&mut client, file, about, 65536, wrong);
        assert_eq!(answer.status(), NtStatus::INVALID_PARAMETER, "{wrong:?}");
    }
    // FILE_QUOTA_INFORMATION of S-1-1-0, with a limit.
    let mut quota = vec![0; 40];
    quota[4] = 12;
    quota[24] = 1;
    quota.extend([1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    let subject = set_info::Subject::Quota;
    let body = set_info::Request { subject, class: 0, additional: 0, file, data: &quota };
    assert_eq!(client.call(Command::SetInfo, &body).status(), NtStatus::NOT_SUPPORTED);
    // FileFsControlInformation, which says what the default quotas are, and sets them.
    let volume = (query_info::Subject::FileSystem, FS_CONTROL, 0);
    let answer = query_about(&mut client, file, volume, 48, &[]);
    if answer.status() == NtStatus::SUCCESS {
        let flags = u32::from_le_bytes(*told(&answer)[40..].first_chunk().unwrap());
        assert_eq!(flags & 3, 0, "no quota is tracked or enforced");
    } else {
        assert_eq!(answer.status(), NtStatus::INVALID_INFO_CLASS);
    }
    let subject = set_info::Subject::FileSystem;
    let body =
        set_info::Request { subject, class: FS_CONTROL, additional: 0, file, data: &[0; 48] };
    assert_eq!(client.call(Command::SetInfo, &body).status(), NtStatus::NOT_SUPPORTED);
}

#[test]
fn a_mac_is_told_what_server_and_volume_can() {
    let place = Place::new();
    let mut client = enter(&place);
    let mut ask = |wanted| {
        let name = utf16("mac.txt");
        // What macOS says of itself: everything there is.
        let apple = AppleQuery { wanted, client_caps: 15 };
        let contexts = Requested { apple: Some(apple), ..Requested::default() };
        let body = create::Request { contexts, ..Client::create_body(&name) };
        let answer = client.call(Command::Create, &body).good();
        let said = create::Response::parse(&answer.message).unwrap().contexts.apple.unwrap();
        (said.server_caps, said.volume_caps, said.model.map(<[u8]>::to_vec))
    };
    let (server, volume, model) = ask(ServerQuery::from_bits_retain(7));
    assert_eq!(server, Some(4), "UNIX_BASED, and no READ_DIR_ATTR, OSX_COPYFILE or NFS_ACE");
    assert_eq!(volume, Some(4), "FULL_SYNC, and neither RESOLVE_ID nor CASE_SENSITIVE");
    assert_eq!(model, Some(utf16("RackMac")));
    assert_eq!(ask(ServerQuery::VOLUME_CAPS), (None, Some(4), None), "what was not asked for");
    assert_eq!(ask(ServerQuery::empty()), (None, None, None));
}
