//! WRITEs whose data comes long after their header, and what others do in between.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use smb::wire::context::{Lease, Requested};
use smb::wire::header::Command;
use smb::wire::lease_break::Notification;
use smb::wire::{close, create, lock};
use smb::{FileId, Guid, LeaseKey, LeaseState, NtStatus, OplockLevel, ShareAccess};

use crate::client::{Client, Offer, request, utf16, write_request};
use crate::place::Place;

const LEN: usize = 1 << 20;
/// Bytes of a WRITE before its data: its length, the header, and its own fixed part.
const HEAD: usize = 4 + 64 + 48;
const NAME: &str = "late.bin";

/// A server, and a client of it with a file of ones.
fn begin() -> Option<(Place, Client, FileId)> {
    let place = Place::new();
    if !place.is_in_memory() {
        println!("skipped: no tmpfs, and elsewhere data is written when all has come");
        return None;
    }
    let mut alice = Client::enter(place.address(), Offer::default(), "alice", "files");
    let file = open(&mut alice, None).0;
    assert_eq!(alice.write(file, 0, &vec![1; LEN]), NtStatus::SUCCESS);
    Some((place, alice, file))
}

fn bob(place: &Place) -> Client {
    let offer = Offer { guid: Guid([8; 16]), ..Offer::default() };
    Client::enter(place.address(), offer, "bob", "files")
}

fn open(client: &mut Client, lease: Option<Lease>) -> (FileId, Option<LeaseState>) {
    let name = utf16(NAME);
    let body = create::Request {
        share: ShareAccess::all(),
        oplock: if lease.is_some() { OplockLevel::Lease } else { OplockLevel::None },
        contexts: Requested { lease, ..Requested::default() },
        ..Client::create_body(&name)
    };
    let answer = client.call(Command::Create, &body).good();
    let response = create::Response::parse(&answer.message).unwrap();
    (response.file, response.contexts.lease.map(|lease| lease.state))
}

/// Sends half of a WRITE of twos, all of which are in the file by the end of this; answers the other half.
fn half(place: &Place, alice: &mut Client, file: FileId) -> Vec<u8> {
    alice.sends_at_most = Some(LEN / 2);
    let frame = alice.send_one(write_request(file, 0, &vec![2; LEN]));
    alice.sends_at_most = None;
    let there = std::fs::File::open(place.folder().join(NAME)).unwrap();
    let began = Instant::now();
    let last = LEN / 2 - HEAD - 1;
    let mut byte = [0];
    // Of the last one: what the server is still taking it may take to the end, whatever others do.
    while byte != [2] {
        assert!(began.elapsed() < Duration::from_secs(60), "half of it has come, and is nowhere");
        std::thread::sleep(Duration::from_millis(1));
        there.read_exact_at(&mut byte, last as u64).unwrap();
    }
    let len = u32::try_from(frame.len()).unwrap().to_be_bytes();
    [&len[..], &frame].concat().split_off(LEN / 2)
}

#[test]
fn who_may_cache_since_a_write_began_hears_of_its_end() {
    let Some((place, mut alice, file)) = begin() else { return };
    let mut bob = bob(&place);
    let rest = half(&place, &mut alice, file);
    let lease = Lease { key: LeaseKey([1; 16]), state: LeaseState::READ, ..Lease::default() };
    let (his, state) = open(&mut bob, Some(lease));
    assert_eq!(state, Some(LeaseState::READ));
    let last = LEN as u64 - 1;
    assert_eq!(bob.read(his, last, 1).as_deref(), Ok(&[1][..]), "as it was");
    alice.send_bytes(&rest).unwrap();
    assert_eq!(alice.receive().status(), NtStatus::SUCCESS);
    let told = Notification::parse(&bob.receive_break().message).unwrap();
    assert_eq!((told.current, told.new), (LeaseState::READ, LeaseState::empty()));
    assert_eq!(bob.read(his, last, 1).as_deref(), Ok(&[2][..]));
}

#[test]
fn what_is_locked_since_a_write_began_is_not_written() {
    let Some((place, mut alice, file)) = begin() else { return };
    let mut bob = bob(&place);
    let his = open(&mut bob, None).0;
    let rest = half(&place, &mut alice, file);
    let mut element = Vec::new();
    let flags = lock::Flags::EXCLUSIVE | lock::Flags::FAIL_IMMEDIATELY;
    lock::Element { offset: LEN as u64 - 10, length: 10, flags }.encode(&mut element);
    let elements = lock::Elements::new(&element);
    bob.send_one(request(Command::Lock, &lock::Request { sequence: 0, file: his, elements }));
    assert_eq!(bob.receive_last().status(), NtStatus::SUCCESS);
    alice.send_bytes(&rest).unwrap();
    assert_eq!(alice.receive().status(), NtStatus::FILE_LOCK_CONFLICT);
    assert_eq!(bob.read(his, LEN as u64 - 10, 10).as_deref(), Ok(&[1; 10][..]));
    // What was not taken for the file was taken from the connection.
    assert_eq!(alice.write(file, 0, &[3; 100_000]), NtStatus::SUCCESS);
}

#[test]
fn what_was_closed_since_a_write_began_is_not_written() {
    let Some((place, mut alice, file)) = begin() else { return };
    let mut second = Client::connect(place.address(), Offer::default());
    second.bind(&alice, "alice", "pw").unwrap();
    let rest = half(&place, &mut alice, file);
    let shut = close::Request { file, ..close::Request::default() };
    second.call(Command::Close, &shut).good();
    alice.send_bytes(&rest).unwrap();
    assert_eq!(alice.receive().status(), NtStatus::FILE_CLOSED);
    let there = std::fs::read(place.folder().join(NAME)).unwrap();
    assert_eq!((there[0], there[LEN - 1]), (2, 1));
}
