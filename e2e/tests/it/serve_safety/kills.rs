//! The server is killed while clients write.

use std::thread;
use std::time::Duration;

use e2e::run::{PATIENCE, eventually};
use smb::wire::negotiate::dialect::{SMB_2_1, SMB_3_1_1};

use super::client::Client;
use super::{Folder, Server, block};

pub(super) const LEN: usize = 48_000;
const CLIENTS: u64 = 3;

/// Writes blocks until the server is gone; answers how many it acknowledged as kept.
pub(super) fn write_until_gone(port: u16, number: u64, through: bool) -> u64 {
    let mut client = Client::ready(port, SMB_2_1).unwrap();
    let file = client.open(&format!("file-{number}")).unwrap();
    for count in 0.. {
        let bytes = block(number << 32 | count, LEN);
        let at = count * LEN as u64;
        let kept = client.write(file, at, &bytes, through).and_then(|_| match through {
            true => Ok(()),
            false => client.flush(file),
        });
        if kept.is_err() {
            return count;
        }
    }
    0
}

fn killed(through: bool, options: &[&str]) {
    let folder = Folder::new();
    let mut server = Server::start_as(folder.path(), 0, &[], options);
    let port = server.port;
    let writers: Vec<_> = (0..CLIENTS)
        .map(|number| thread::spawn(move || write_until_gone(port, number, through)))
        .collect();
    let large = |number: u64| {
        let facts = std::fs::metadata(folder.file(&format!("file-{number}")));
        facts.is_ok_and(|facts| facts.len() > 20 * LEN as u64)
    };
    eventually("all have written", || (0..CLIENTS).all(large));
    server.guest.signal(libc::SIGKILL);
    server.guest.wait(PATIENCE).unwrap();
    let counts: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    let check = |number: u64, count: u64| {
        let found = std::fs::read(folder.file(&format!("file-{number}"))).unwrap();
        for at in 0..count {
            let from = usize::try_from(at).unwrap() * LEN;
            let found = found.get(from..from + LEN);
            assert!(found == Some(&block(number << 32 | at, LEN)[..]), "block {at} of {count}");
        }
    };
    for (number, count) in (0..).zip(&counts) {
        assert!(*count >= 19, "only {count} blocks");
        check(number, *count);
    }
    // Another one, at the same place, gives out what the first one took.
    let _server = Server::start_as(folder.path(), port, &[], options);
    let mut client = Client::ready(port, SMB_3_1_1).unwrap();
    let file = client.open("file-0").unwrap();
    for at in 0..counts[0] {
        let found = client.read(file, at * LEN as u64, u32::try_from(LEN).unwrap()).unwrap();
        assert!(found == block(at, LEN), "block {at} as it is read");
    }
}

#[test]
fn what_was_written_through_survives_the_server() {
    killed(true, &[]);
}

#[test]
fn what_was_flushed_survives_the_server() {
    killed(false, &["--uring=off"]);
}

#[test]
fn a_server_that_is_told_to_end_ends_with_clients_on_it() {
    let folder = Folder::new();
    let mut server = Server::start(folder.path());
    let mut client = Client::ready(server.port, SMB_3_1_1).unwrap();
    let file = client.open("file").unwrap();
    client.write(file, 0, b"kept", false).unwrap();
    server.guest.signal(libc::SIGTERM);
    let status = server.guest.wait(Duration::from_secs(30)).unwrap();
    assert!(status.success(), "{status}: {}", server.said());
    assert_eq!(std::fs::read(folder.file("file")).unwrap(), b"kept");
    assert!(client.read(file, 0, 4).is_err());
}
