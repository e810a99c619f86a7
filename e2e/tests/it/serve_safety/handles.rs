//! Connections that break, and what is still open behind them.

use std::os::fd::AsRawFd;
use std::time::Duration;

use e2e::run::{eventually, until};
use smb::wire::context::Requested;
use smb::wire::create;
use smb::wire::negotiate::dialect::{SMB_2_1, SMB_3_1_1};
use smb::{Disposition, NtStatus, OplockLevel};

use super::client::{Client, USER, Wish};
use super::disks::refused;
use super::{Folder, Server, block};

/// Ends a connection by a reset, as a cut cable ends it after a while.
fn cut(client: Client) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = libc::socklen_t::try_from(size_of::<libc::linger>()).unwrap();
    // SAFETY: a socket, and a structure with its length.
    let r = unsafe {
        libc::setsockopt(
            client.stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            len,
        )
    };
    assert_eq!(r, 0);
    drop(client);
}

fn durable(name: &str) -> Wish<'_> {
    let contexts = Requested { durable: true, ..Requested::default() };
    Wish { oplock: OplockLevel::Batch, contexts, ..Wish::file(name) }
}

#[test]
fn a_durable_handle_survives_its_connection_with_all_that_was_written() {
    let folder = Folder::new();
    let server = Server::start(folder.path());
    for round in 0..5 {
        let name = format!("file-{round}");
        let mut client = Client::ready(server.port, SMB_2_1).unwrap();
        let (file, answer) = client.create(&durable(&name)).unwrap();
        let granted = create::Response::parse(&answer).unwrap();
        assert_eq!(granted.oplock, OplockLevel::Batch);
        assert!(granted.contexts.durable, "no durable handle");
        let bytes = block(round, 200_000);
        client.write(file, 0, &bytes, false).unwrap();
        // A request may be on its way when the connection goes.
        let late = block(round + 100, 60_000);
        let request = client.write_request(file, 200_000, &late, false);
        client.send(&request).unwrap();
        let session = client.session;
        cut(client);
        let mut client = Client::connect(server.port, SMB_2_1).unwrap();
        client.log_on(session).unwrap();
        client.connect_tree().unwrap();
        let contexts = Requested { reconnect: Some(file), ..Requested::default() };
        let wish = Wish {
            oplock: OplockLevel::Batch,
            disposition: Disposition::Open,
            contexts,
            ..Wish::file(&name)
        };
        let (again, _) = client.create(&wish).unwrap();
        assert_eq!(again.persistent, file.persistent);
        assert!(client.read(again, 0, 200_000).unwrap() == bytes, "round {round}");
        // The late write is there whole or not at all; sent again, it is there.
        assert_eq!(client.write(again, 200_000, &late, false).unwrap(), 60_000);
        assert!(client.read(again, 200_000, 60_000).unwrap() == late);
        client.close(again).unwrap();
        let found = std::fs::read(folder.file(&name)).unwrap();
        assert!(found == [bytes, late].concat());
    }
}

#[test]
fn what_is_not_durable_is_closed_with_its_connection() {
    let folder = Folder::new();
    let server = Server::start(folder.path());
    let mut client = Client::ready(server.port, SMB_2_1).unwrap();
    let wish = Wish { options: smb::CreateOptions::DELETE_ON_CLOSE, ..Wish::file("file") };
    client.create(&wish).unwrap();
    assert!(folder.file("file").exists());
    cut(client);
    // A durable handle would be kept for five minutes.
    until("it is closed", Duration::from_secs(40), || !folder.file("file").exists());
}

/// A name is the client's: whoever reads the log sees what it is, and a terminal does not do what it says.
#[test]
fn a_folder_that_cannot_be_deleted_is_named_as_it_is() {
    let folder = Folder::new();
    let server = Server::start(folder.path());
    let mut client = Client::ready(server.port, SMB_2_1).unwrap();
    let options = smb::CreateOptions::DELETE_ON_CLOSE | smb::CreateOptions::DIRECTORY_FILE;
    let name = "folder\u{9b}2J\u{202e}";
    let (file, _) = client.create(&Wish { options, ..Wish::file(name) }).unwrap();
    std::fs::write(folder.file(name).join("of the host"), "").unwrap();
    client.close(file).unwrap();
    eventually("it is told", || server.said().contains("not deleted"));
    let said = server.said();
    let line = said.lines().find(|line| line.contains("not deleted")).unwrap();
    assert!(line.contains("folder\\u{9b}2J\\u{202e}"), "{line:?}");
}

#[test]
fn connections_leave_no_descriptor_behind() {
    let folder = Folder::new();
    let server = Server::start(folder.path());
    let held = || std::fs::read_dir(format!("/proc/{}/fd", server.serving())).unwrap().count();
    let mut first = Client::ready(server.port, SMB_2_1).unwrap();
    let file = first.open("first").unwrap();
    let before = held();
    for round in 0..50 {
        let mut client = Client::ready(server.port, SMB_2_1).unwrap();
        for at in 0..5 {
            client.open(&format!("file-{at}")).unwrap();
        }
        if round % 2 == 0 { cut(client) } else { drop(client) }
    }
    eventually("all are closed", || held() <= before + 2);
    first.write(file, 0, b"still served", false).unwrap();
}

#[test]
fn who_has_become_nobody_opens_nothing_more() {
    let folder = Folder::new();
    let server = Server::start_as(folder.path(), 0, &[], &["--anonymous"]);
    let mut client = Client::ready(server.port, SMB_3_1_1).unwrap();
    let file = client.open("mine").unwrap();
    client.write(file, 0, b"before", false).unwrap();
    client.become_nobody().unwrap();
    // MS-SMB2 3.3.5.5.3: what is open stays open.
    assert_eq!(client.read(file, 0, 6).unwrap(), b"before");
    for name in ["mine", "other"] {
        let refusal = refused(client.open(name));
        assert_eq!(refusal, NtStatus::ACCESS_DENIED, "{name}");
    }
    assert!(!folder.file("other").exists());
    // And who it was before opens again.
    client.log_on_again().unwrap();
    client.open("other").unwrap();
    // Who reads the log sees each of them, and not only the first.
    eventually("the third line of a session", || server.said().matches("session 0x").count() >= 3);
    let said = server.said();
    let lines: Vec<_> = said.lines().filter(|line| line.contains("session 0x")).collect();
    let says = |at: usize, what: [&str; 2]| what.iter().all(|part| lines[at].contains(part));
    assert_eq!(lines.len(), 3, "{said}");
    assert!(says(0, [&format!("user {USER:?}"), " logged on, "]), "{said}");
    assert!(says(1, ["nobody \"\"", " took a session over, "]), "{said}");
    assert!(says(2, [&format!("user {USER:?}"), " took a session over, "]), "{said}");
}
