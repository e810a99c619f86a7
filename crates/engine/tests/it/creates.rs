//! What a create opens of what is there: with which rights, and what it leaves of it.

use smb::wire::context::Requested;
use smb::wire::header::Command;
use smb::wire::{close, create};
use smb::{Access, Attributes, CreateOptions, Disposition, FileId, NtStatus, ShareAccess};

use crate::client::{Client, Offer, utf16};
use crate::place::Place;

fn enter(place: &Place) -> Client {
    Client::enter(place.address(), Offer::default(), "alice", "files")
}

/// An open of what is there.
fn ask(name: &[u8], access: Access) -> create::Request<'_> {
    create::Request {
        access,
        options: CreateOptions::empty(),
        share: ShareAccess::all(),
        disposition: Disposition::Open,
        ..Client::create_body(name)
    }
}

fn try_open(client: &mut Client, body: &create::Request<'_>) -> Result<FileId, NtStatus> {
    let answer = client.call(Command::Create, body);
    match answer.status() {
        NtStatus::SUCCESS => Ok(create::Response::parse(&answer.message).unwrap().file),
        status => Err(status),
    }
}

fn shut(client: &mut Client, file: FileId) {
    client.call(Command::Close, &close::Request { file, ..close::Request::default() }).good();
}

#[test]
fn who_asks_for_all_it_may_have_reads_and_writes() {
    let place = Place::new();
    let mut client = enter(&place);
    std::fs::write(place.folder().join("file"), b"was there").unwrap();
    let all = Access::MAXIMUM_ALLOWED;
    for access in [all, all | Access::GENERIC_READ, all | Access::READ_DATA, all | Access::DELETE] {
        let file = try_open(&mut client, &ask(&utf16("file"), access)).unwrap();
        assert_eq!(client.read(file, 0, 100).as_deref(), Ok(&b"was there"[..]), "{access:?}");
        assert_eq!(client.write(file, 0, b"was"), NtStatus::SUCCESS, "{access:?}");
        shut(&mut client, file);
    }
    let body = create::Request {
        disposition: Disposition::OverwriteIf,
        ..ask(&[], Access::MAXIMUM_ALLOWED)
    };
    let name = utf16("file");
    let file = try_open(&mut client, &create::Request { name: &name, ..body }).unwrap();
    assert_eq!(client.write(file, 0, b"is new"), NtStatus::SUCCESS);
    assert_eq!(client.read(file, 0, 100).as_deref(), Ok(&b"is new"[..]));
}

/// What the host lets nobody do is none of all that may be had.
#[test]
fn what_the_host_refuses_is_not_granted() {
    let place = Place::new();
    let mut client = enter(&place);
    let path = place.folder().join("program");
    std::fs::copy("/bin/sleep", &path).unwrap();
    // Nobody writes to a program that is running.
    let mut running = match std::process::Command::new(&path).arg("600").spawn() {
        Ok(running) => running,
        Err(error) => return eprintln!("skipped: no program runs there: {error}"),
    };
    let opened = try_open(&mut client, &ask(&utf16("program"), Access::MAXIMUM_ALLOWED));
    let read = opened.map(|file| client.read(file, 0, 4));
    let wrote = opened.map(|file| client.write(file, 0, b"was"));
    let named = Access::MAXIMUM_ALLOWED | Access::WRITE_DATA;
    let refused = try_open(&mut client, &ask(&utf16("program"), named));
    running.kill().unwrap();
    running.wait().unwrap();
    assert_eq!(read, Ok(Ok(b"\x7fELF".to_vec())));
    assert_eq!(wrote, Ok(NtStatus::ACCESS_DENIED));
    assert_eq!(refused, Err(NtStatus::ACCESS_DENIED));
}

#[test]
fn what_only_its_name_hides_may_be_overwritten() {
    let place = Place::new();
    let mut client = enter(&place);
    let (dot, told) = (utf16(".profile"), utf16("told"));
    let all = Access::FILE_READ | Access::FILE_WRITE;
    for name in [".profile", "told"] {
        std::fs::write(place.folder().join(name), b"was there").unwrap();
    }
    let over = |name, disposition, attributes| create::Request {
        disposition,
        attributes,
        ..ask(name, all)
    };
    let (none, hidden) = (Attributes::empty(), Attributes::HIDDEN);
    for disposition in [Disposition::OverwriteIf, Disposition::Overwrite, Disposition::Supersede] {
        for attributes in [none, Attributes::NORMAL] {
            let body = create::Request {
                access: all | Access::DELETE,
                ..over(&dot, disposition, attributes)
            };
            let file = try_open(&mut client, &body).unwrap();
            shut(&mut client, file);
        }
    }
    // One that was told to hide must go on, whatever its name is.
    for name in [&told, &dot] {
        let body = over(name, Disposition::OverwriteIf, hidden);
        let file = try_open(&mut client, &body).unwrap();
        shut(&mut client, file);
        let body = over(name, Disposition::OverwriteIf, none);
        assert_eq!(try_open(&mut client, &body), Err(NtStatus::ACCESS_DENIED));
    }
    // Not so on Linux, where it stays hidden.
    let offer = Offer { posix: true, ..Offer::default() };
    let mut linux = Client::enter(place.address(), offer, "alice", "files");
    let contexts = Requested { posix_mode: Some(0o644), ..Requested::default() };
    let body = create::Request { contexts, ..over(&told, Disposition::OverwriteIf, none) };
    let file = try_open(&mut linux, &body).unwrap();
    shut(&mut linux, file);
    let body = over(&told, Disposition::OverwriteIf, none);
    assert_eq!(try_open(&mut client, &body), Err(NtStatus::ACCESS_DENIED));
}

#[test]
fn streams_go_with_what_their_file_held() {
    let place = Place::new();
    let mut client = enter(&place);
    let (base, named, other) = (utf16("file"), utf16("file:one"), utf16("file:two"));
    let all = Access::FILE_READ | Access::FILE_WRITE | Access::DELETE;
    let how = |name, disposition| create::Request { disposition, ..ask(name, all) };
    for over in [Disposition::OverwriteIf, Disposition::Overwrite, Disposition::Supersede] {
        let make = |client: &mut Client, name| {
            let file = try_open(client, &how(name, Disposition::OpenIf)).unwrap();
            assert_eq!(client.write(file, 0, b"held"), NtStatus::SUCCESS);
            file
        };
        for name in [&base, &named] {
            let file = make(&mut client, name);
            shut(&mut client, file);
        }
        let open = make(&mut client, &other);
        // Who empties a stream empties that.
        let file = try_open(&mut client, &how(&named, Disposition::OverwriteIf)).unwrap();
        shut(&mut client, file);
        assert_eq!(client.read(open, 0, 9).as_deref(), Ok(&b"held"[..]));
        let file = try_open(&mut client, &how(&base, over)).unwrap();
        shut(&mut client, file);
        // Also for who has one open.
        let gone = Err(NtStatus::OBJECT_NAME_NOT_FOUND);
        assert_eq!(client.read(open, 0, 9), gone.map(|_: FileId| vec![]), "{over:?}");
        shut(&mut client, open);
        for name in [&named, &other] {
            assert_eq!(try_open(&mut client, &how(name, Disposition::Open)), gone, "{over:?}");
        }
    }
    assert_eq!(place.counts().opens, 0);
}
