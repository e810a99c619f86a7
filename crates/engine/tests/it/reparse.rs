//! Links and special files that clients make: FSCTL_SET_REPARSE_POINT and its like.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use engine::serve::config::Links;
use smb::fscc::fsctl::Code;
use smb::fscc::reparse::{self, Reparse, Special, Symlink};
use smb::security::{Ace, AceFlags, Acl, Control, Descriptor, SecurityInfo, Sid};
use smb::session::Dialect;
use smb::wire::header::Command;
use smb::wire::{close, create, error, ioctl, query_info, set_info};
use smb::{Access, Attributes, CreateOptions, Disposition, FileId, Guid, NtStatus, ShareAccess};

use crate::client::{Client, Offer, PREVIOUS, request, utf16};
use crate::place::Place;

fn enter(place: &Place) -> Client {
    Client::enter(place.address(), Offer::default(), "alice", "files")
}

/// As Linux makes and looks at them.
fn body(name: &[u8], disposition: Disposition) -> create::Request<'_> {
    create::Request {
        access: Access::READ_ATTRIBUTES | Access::WRITE_ATTRIBUTES | Access::DELETE,
        share: ShareAccess::all(),
        options: CreateOptions::OPEN_REPARSE_POINT,
        disposition,
        ..Client::create_body(name)
    }
}

fn open(client: &mut Client, name: &str, disposition: Disposition) -> FileId {
    let name = utf16(name);
    let answer = client.call(Command::Create, &body(&name, disposition)).good();
    create::Response::parse(&answer.message).unwrap().file
}

fn shut(client: &mut Client, file: FileId) {
    client.call(Command::Close, &close::Request { file, ..close::Request::default() }).good();
}

fn control<'a>(code: Code, file: FileId, input: &'a [u8]) -> ioctl::Request<'a> {
    let output_max = 16_384;
    let flags = ioctl::IS_FSCTL;
    ioctl::Request { code: code.0, file, flags, input, output_max, ..ioctl::Request::default() }
}

fn set(client: &mut Client, file: FileId, point: &Reparse) -> NtStatus {
    let bytes = point.to_bytes();
    client.call(Command::Ioctl, &control(Code::SET_REPARSE_POINT, file, &bytes)).status()
}

fn get(client: &mut Client, file: FileId) -> Result<Reparse, NtStatus> {
    let answer = client.call(Command::Ioctl, &control(Code::GET_REPARSE_POINT, file, &[]));
    match answer.status() {
        NtStatus::SUCCESS => {
            Ok(Reparse::parse(ioctl::Response::parse(&answer.message).unwrap().output).unwrap())
        }
        status => Err(status),
    }
}

fn link(target: &str) -> Reparse {
    Reparse::Symlink(Symlink::from_unix(target))
}

/// Makes one under this name.
fn make(client: &mut Client, name: &str, point: &Reparse) -> NtStatus {
    let file = open(client, name, Disposition::Create);
    let status = set(client, file, point);
    shut(client, file);
    status
}

fn leads(path: &Path) -> String {
    fs::read_link(path).unwrap().to_str().unwrap().to_owned()
}

#[test]
fn a_link_is_made_read_followed_and_unmade() {
    let place = Place::new();
    let mut client = enter(&place);
    fs::create_dir(place.folder().join("folder")).unwrap();
    fs::write(place.folder().join("file.txt"), "data").unwrap();
    assert_eq!(make(&mut client, "folder\\link", &link("../file.txt")), NtStatus::SUCCESS);
    assert_eq!(leads(&place.folder().join("folder/link")), "../file.txt");
    let file = open(&mut client, "folder\\link", Disposition::Open);
    assert_eq!(get(&mut client, file), Ok(link("../file.txt")));
    // Another target, of the same kind of point.
    assert_eq!(set(&mut client, file, &link("other")), NtStatus::SUCCESS);
    assert_eq!(get(&mut client, file), Ok(link("other")), "the open is of the new link");
    let fifo = Reparse::Special(Special::Fifo);
    assert_eq!(set(&mut client, file, &fifo), NtStatus::IO_REPARSE_TAG_MISMATCH);
    assert_eq!(set(&mut client, file, &link("../file.txt")), NtStatus::SUCCESS);
    shut(&mut client, file);
    let through = client.open("folder\\link");
    assert_eq!(client.read(through, 0, 10).as_deref(), Ok(&b"data"[..]));
    shut(&mut client, through);
    let file = open(&mut client, "folder\\link", Disposition::Open);
    let head = |tag: u32| [&tag.to_le_bytes()[..], &[0; 4]].concat();
    let mut delete = |tag| {
        let head = head(tag);
        client.call(Command::Ioctl, &control(Code::DELETE_REPARSE_POINT, file, &head)).status()
    };
    assert_eq!(delete(reparse::NFS), NtStatus::IO_REPARSE_TAG_MISMATCH);
    assert_eq!(delete(reparse::SYMLINK), NtStatus::SUCCESS);
    assert_eq!(delete(reparse::SYMLINK), NtStatus::NOT_A_REPARSE_POINT);
    shut(&mut client, file);
    assert!(fs::symlink_metadata(place.folder().join("folder/link")).unwrap().is_file());
    assert_eq!(fs::read_to_string(place.folder().join("file.txt")).unwrap(), "data");
    assert_eq!(place.counts().files, 0);
    let names = fs::read_dir(place.folder().join("folder")).unwrap().count();
    assert_eq!(names, 1, "nothing is left beside it");
}

/// In one frame, as Linux does: create, set, ask what it is now, close.
#[test]
fn a_compound_sees_what_its_file_has_become() {
    let place = Place::new();
    let mut client = enter(&place);
    let name = utf16("link");
    let bytes = link("somewhere").to_bytes();
    let asked = query_info::Request {
        subject: query_info::Subject::File,
        class: 18,
        output_max: 1000,
        input: &[],
        additional: 0,
        flags: 0,
        file: PREVIOUS,
    };
    let parts = vec![
        request(Command::Create, &body(&name, Disposition::Create)),
        request(Command::Ioctl, &control(Code::SET_REPARSE_POINT, PREVIOUS, &bytes)),
        request(Command::QueryInfo, &asked),
        request(Command::Close, &close::Request { file: PREVIOUS, ..close::Request::default() }),
    ];
    client.send(parts, true);
    client.receive_last().good();
    client.receive_last().good();
    let told = client.receive_last().good();
    let told = query_info::Response::parse(&told.message).unwrap();
    let attributes = u32::from_le_bytes(*told.data[32..].first_chunk().unwrap());
    assert!(Attributes::from_bits_retain(attributes).contains(Attributes::REPARSE_POINT));
    client.receive_last().good();
    assert_eq!(leads(&place.folder().join("link")), "somewhere");
    assert_eq!(place.counts().opens, 0);
}

#[test]
fn special_files_but_no_devices() {
    let place = Place::new();
    let mut client = enter(&place);
    let kind = |name: &str| fs::symlink_metadata(place.folder().join(name)).unwrap().file_type();
    for (name, special) in [("fifo", Special::Fifo), ("socket", Special::Socket)] {
        let point = Reparse::Special(special);
        assert_eq!(make(&mut client, name, &point), NtStatus::SUCCESS);
        let file = open(&mut client, name, Disposition::Open);
        assert_eq!(get(&mut client, file), Ok(point));
        shut(&mut client, file);
    }
    assert!(kind("fifo").is_fifo() && kind("socket").is_socket());
    let device = Reparse::Special(Special::Char { major: 1, minor: 3 });
    assert_eq!(make(&mut client, "null", &device), NtStatus::ACCESS_DENIED);
    assert!(kind("null").is_file());
    let lx_fifo = Reparse::Other { tag: reparse::LX_FIFO, bytes: vec![] };
    assert_eq!(make(&mut client, "wsl", &lx_fifo), NtStatus::SUCCESS);
    assert!(kind("wsl").is_fifo());
    let other = Reparse::Other { tag: reparse::MOUNT_POINT, bytes: vec![0; 12] };
    assert_eq!(make(&mut client, "junction", &other), NtStatus::NOT_SUPPORTED);
}

#[test]
fn a_folder_becomes_a_link_if_it_is_empty() {
    let place = Place::new();
    let mut client = enter(&place);
    fs::create_dir(place.folder().join("there")).unwrap();
    for name in ["empty", "full"] {
        let folder = place.folder().join(name);
        fs::create_dir(&folder).unwrap();
        if name == "full" {
            fs::write(folder.join("file"), "").unwrap();
        }
        let file = open(&mut client, name, Disposition::Open);
        let wanted = if name == "full" { NtStatus::DIRECTORY_NOT_EMPTY } else { NtStatus::SUCCESS };
        assert_eq!(set(&mut client, file, &link("there")), wanted, "{name}");
        shut(&mut client, file);
    }
    assert_eq!(leads(&place.folder().join("empty")), "there");
    assert!(place.folder().join("full/file").exists());
    fs::write(place.folder().join("data"), "data").unwrap();
    let file = open(&mut client, "data", Disposition::Open);
    assert_eq!(set(&mut client, file, &link("there")), NtStatus::NOT_SUPPORTED);
    assert_eq!(fs::read_to_string(place.folder().join("data")).unwrap(), "data");
}

#[test]
fn a_file_that_others_have_open_stays_what_it_is() {
    let place = Place::new();
    let mut client = enter(&place);
    let offer = Offer { guid: Guid([8; 16]), ..Offer::default() };
    let mut bob = Client::enter(place.address(), offer, "bob", "files");
    let file = open(&mut client, "file", Disposition::Create);
    let his = open(&mut bob, "file", Disposition::Open);
    assert_eq!(set(&mut client, file, &link("there")), NtStatus::SHARING_VIOLATION);
    shut(&mut bob, his);
    assert_eq!(set(&mut client, file, &link("there")), NtStatus::SUCCESS);
    assert_eq!(place.counts().opens, 1);
}

/// Lets the folder's owner do this, in the folder and by inheritance with files in it.
fn secure(client: &mut Client, folder: &Path, here: Access, files: Access) {
    let name = utf16(folder.file_name().unwrap().to_str().unwrap());
    let access = Access::READ_CONTROL | Access::WRITE_DAC;
    let options = CreateOptions::DIRECTORY_FILE;
    let ask = create::Request {
        access,
        options,
        share: ShareAccess::all(),
        ..Client::create_body(&name)
    };
    let answer = client.call(Command::Create, &ask).good();
    let file = create::Response::parse(&answer.message).unwrap().file;
    let owner = Sid::unix_user(fs::metadata(folder).unwrap().uid());
    let dacl = Acl::new([
        Ace::allow(owner, here),
        Ace::allow(owner, files).with(AceFlags::OBJECT_INHERIT | AceFlags::INHERIT_ONLY),
    ]);
    let new =
        Descriptor { control: Control::DACL_PRESENT, dacl: Some(dacl), ..Descriptor::default() };
    let (subject, data) = (set_info::Subject::Security, new.to_bytes());
    let additional = SecurityInfo::DACL.bits();
    let body = set_info::Request { subject, class: 0, additional, file, data: &data };
    client.call(Command::SetInfo, &body).good();
    shut(client, file);
}

#[test]
fn who_may_not_add_a_file_cannot_turn_one_into_another() {
    let place = Place::new();
    let mut client = enter(&place);
    let folder = place.folder().join("folder");
    fs::create_dir(&folder).unwrap();
    let file = open(&mut client, "folder\\file", Disposition::Create);
    let adds = Access::WRITE_DATA;
    secure(&mut client, &folder, Access::FILE_ALL - adds, Access::FILE_ALL);
    assert_eq!(set(&mut client, file, &link("there")), NtStatus::ACCESS_DENIED);
    assert!(fs::symlink_metadata(folder.join("file")).unwrap().is_file());
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
    secure(&mut client, &folder, Access::FILE_ALL, Access::FILE_ALL);
    assert_eq!(set(&mut client, file, &link("there")), NtStatus::SUCCESS);
    assert_eq!(leads(&folder.join("file")), "there");
}

#[test]
fn who_may_do_what_outlasts_being_something_else() {
    let place = Place::new();
    let mut client = enter(&place);
    let mode = |name: &str| {
        fs::symlink_metadata(place.folder().join(name)).unwrap().permissions().mode() & 0o777
    };
    let delete = |client: &mut Client, file| {
        let head = [&reparse::NFS.to_le_bytes()[..], &[0; 4]].concat();
        client.call(Command::Ioctl, &control(Code::DELETE_REPARSE_POINT, file, &head)).good();
    };
    let fifo = Reparse::Special(Special::Fifo);
    // The mode stays.
    let file = open(&mut client, "private", Disposition::Create);
    fs::set_permissions(place.folder().join("private"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(set(&mut client, file, &fifo), NtStatus::SUCCESS);
    assert_eq!(mode("private"), 0o600);
    delete(&mut client, file);
    assert_eq!(mode("private"), 0o600);
    shut(&mut client, file);
    // A pipe has no descriptor on disk; the file that it becomes inherits one, as a new one does.
    let folder = place.folder().join("folder");
    fs::create_dir(&folder).unwrap();
    secure(&mut client, &folder, Access::FILE_ALL, Access::FILE_READ);
    let file = open(&mut client, "folder\\file", Disposition::Create);
    assert_eq!(set(&mut client, file, &fifo), NtStatus::SUCCESS);
    delete(&mut client, file);
    shut(&mut client, file);
    assert!(fs::symlink_metadata(folder.join("file")).unwrap().is_file());
    let name = utf16("folder\\file");
    let mut opened = |access| {
        let ask =
            create::Request { access, share: ShareAccess::all(), ..Client::create_body(&name) };
        client.call(Command::Create, &ask).status()
    };
    assert_eq!(opened(Access::WRITE_DATA), NtStatus::ACCESS_DENIED);
    assert_eq!(opened(Access::READ_DATA), NtStatus::SUCCESS);
}

/// Who opens it, and does not want a link, is told where it leads.
#[track_caller]
fn stops_on(client: &mut Client, name: &str, target: &str, unparsed_len: u16) {
    let name = utf16(name);
    let body = create::Request { disposition: Disposition::Open, ..Client::create_body(&name) };
    let answer = client.call(Command::Create, &body);
    assert_eq!(answer.status(), NtStatus::STOPPED_ON_SYMLINK);
    let told = error::Response::parse(&answer.message).unwrap();
    assert_eq!(told.context_count, u8::from(client.dialect == Dialect::Smb311));
    let target = utf16(target);
    let (substitute, print) = (&target[..], &target[..]);
    let symlink = error::Symlink { unparsed_len, substitute, print, relative: true };
    assert_eq!(error::Symlink::parse(told.status_data().unwrap()), Ok(symlink));
}

#[test]
fn where_links_lead_is_the_shares_business() {
    const OUTWARD: [&str; 4] = ["/etc/passwd", "../outside", "a/../../..", "folder/.."];
    let with = |links| Place::with(|config| config.shares[0].links = links);
    let windows = |substitute: &str| {
        let name = substitute.to_owned();
        Reparse::Symlink(Symlink { substitute: name.clone(), print: name, relative: false })
    };
    let place = with(Links::Follow);
    let mut client = enter(&place);
    for target in OUTWARD {
        assert_eq!(make(&mut client, "out", &link(target)), NtStatus::ACCESS_DENIED, "{target}");
        fs::remove_file(place.folder().join("out")).unwrap();
    }
    let place = with(Links::Client);
    let mut client = enter(&place);
    for (number, target) in OUTWARD.into_iter().enumerate() {
        let name = format!("out{number}");
        assert_eq!(make(&mut client, &name, &link(target)), NtStatus::SUCCESS, "{target}");
        assert_eq!(leads(&place.folder().join(&name)), target, "the client's business");
        let file = open(&mut client, &name, Disposition::Open);
        assert_eq!(get(&mut client, file), Ok(link(target)));
    }
    stops_on(&mut client, "out1", "..\\outside", 0);
    stops_on(&mut client, "out1\\a\\bc", "..\\outside", 10);
    let old = Offer { dialects: vec![Dialect::Smb302], ..Offer::default() };
    let mut old = Client::enter(place.address(), old, "bob", "files");
    stops_on(&mut old, "out1\\a", "..\\outside", 4);
    for (name, target) in [("drive", "\\??\\C:\\x"), ("server", "\\\\server\\share")] {
        let status = make(&mut client, name, &windows(target));
        assert_eq!(status, NtStatus::ACCESS_DENIED, "{target}");
    }
    let place = with(Links::Refuse);
    let mut client = enter(&place);
    assert_eq!(make(&mut client, "in", &link("there")), NtStatus::ACCESS_DENIED);
}
