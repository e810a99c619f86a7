//! Breaks to clients that do not hear them, and to those that do.

use std::time::{Duration, Instant};

use smb::fscc::fsctl::Code;
use smb::wire::context::{Lease, Requested};
use smb::wire::header::Command;
use smb::wire::lease_break::{Acknowledgement, Notification};
use smb::wire::{create, ioctl};
use smb::{FileId, Guid, LeaseKey, LeaseState, NtStatus, OplockLevel};

use crate::client::{Answer, Client, Offer, request, utf16};
use crate::place::Place;

const BOB: Guid = Guid([8; 16]);
const KEY: LeaseKey = LeaseKey([1; 16]);

fn leased(name: &[u8]) -> Vec<u8> {
    let lease = Lease { key: KEY, state: LeaseState::all(), ..Lease::default() };
    let body = create::Request {
        oplock: OplockLevel::Lease,
        contexts: Requested { lease: Some(lease), ..Requested::default() },
        ..Client::create_body(name)
    };
    request(Command::Create, &body)
}

fn granted(answer: &Answer) -> (FileId, LeaseState) {
    assert_eq!(answer.status(), NtStatus::SUCCESS);
    let response = create::Response::parse(&answer.message).unwrap();
    (response.file, response.contexts.lease.unwrap().state)
}

/// From now on nothing that is sent to this client is acknowledged, as far as the server knows.
fn deafen(client: &mut Client) {
    let body = ioctl::Request {
        code: Code::TORTURE_FORCE_UNACKED_TIMEOUT.0,
        file: FileId::ALL_ONES,
        flags: ioctl::IS_FSCTL,
        ..ioctl::Request::default()
    };
    client.call(Command::Ioctl, &body).good();
}

fn place() -> Place {
    Place::with(|config| config.test_codes = true)
}

fn bob(place: &Place) -> Client {
    let offer = Offer { guid: BOB, ..Offer::default() };
    Client::enter(place.address(), offer, "bob", "files")
}

#[test]
fn a_break_that_was_acknowledged_is_not_sent_again_by_another_channel() {
    // Who takes longer to acknowledge than the server waits is rightly told again.
    assert!((0..10).any(|_| is_told_once_if_in_time()), "this machine is too slow to say");
}

/// Whether the break was acknowledged before the server's patience was at its end.
fn is_told_once_if_in_time() -> bool {
    let place = place();
    let mut first = Client::enter(place.address(), Offer::default(), "alice", "files");
    let mut second = Client::connect(place.address(), Offer::default());
    second.bind(&first, "alice", "pw").unwrap();
    let name = utf16("leased.txt");
    first.send_one(leased(&name));
    assert_eq!(granted(&first.receive_last()).1, LeaseState::all());
    deafen(&mut first);
    let mut bob = bob(&place);
    let began = Instant::now();
    bob.send_one(request(Command::Create, &Client::create_body(&name)));
    let told = Notification::parse(&first.receive_break().message).unwrap();
    let keeps = Acknowledgement { flags: 0, key: KEY, state: told.new };
    first.call(Command::OplockBreak, &keeps).good();
    // Less than the 1250 ms that the server waits, which began later.
    if began.elapsed() >= Duration::from_secs(1) {
        return false;
    }
    bob.receive_last().good();
    second.hurry(Duration::from_secs(3));
    assert!(!second.is_closed());
    assert!(second.breaks.is_empty(), "it was acknowledged");
    true
}

#[test]
fn a_break_that_is_not_heard_goes_by_another_channel() {
    let place = place();
    let mut first = Client::enter(place.address(), Offer::default(), "alice", "files");
    let mut second = Client::connect(place.address(), Offer::default());
    second.bind(&first, "alice", "pw").unwrap();
    let name = utf16("leased.txt");
    first.send_one(leased(&name));
    granted(&first.receive_last());
    deafen(&mut first);
    let mut bob = bob(&place);
    bob.send_one(request(Command::Create, &Client::create_body(&name)));
    let told = Notification::parse(&second.receive_break().message).unwrap();
    let keeps = Acknowledgement { flags: 0, key: KEY, state: told.new };
    second.call(Command::OplockBreak, &keeps).good();
    bob.receive_last().good();
}

#[test]
fn a_client_that_hears_no_break_is_not_waited_for_until_the_break_is_over() {
    let place = place();
    let mut alice = Client::enter(place.address(), Offer::default(), "alice", "files");
    let name = utf16("oplocked.txt");
    let create = create::Request { oplock: OplockLevel::Batch, ..Client::create_body(&name) };
    alice.call(Command::Create, &create).good();
    deafen(&mut alice);
    let mut bob = bob(&place);
    bob.hurry(Duration::from_secs(30));
    let began = Instant::now();
    bob.call(Command::Create, &create).good();
    // A break is over after 35 seconds.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(alice.is_closed());
    assert_eq!(place.counts().opens, 1);
}

#[test]
fn a_client_that_only_takes_its_time_keeps_its_connection() {
    let place = place();
    let mut alice = Client::enter(place.address(), Offer::default(), "alice", "files");
    let name = utf16("oplocked.txt");
    let create = create::Request { oplock: OplockLevel::Batch, ..Client::create_body(&name) };
    alice.call(Command::Create, &create).good();
    let mut bob = bob(&place);
    bob.send_one(request(Command::Create, &create));
    alice.receive_break();
    // Longer than a client may be silent that does not hear: its TCP acknowledges for it.
    alice.hurry(Duration::from_secs(8));
    assert!(!alice.is_closed());
    assert_eq!(bob.receive().status(), NtStatus::PENDING);
    assert_eq!(place.counts().breaking, 1);
}

/// MS-SMB2 3.3.4.1.4: what is said of a share is encrypted where its answers are. A lease is of no share.
#[test]
fn that_an_oplock_of_a_secret_share_is_broken_is_secret() {
    let place = Place::new();
    for (share, is_secret) in [("files", false), ("secret", true)] {
        let mut alice = Client::connect(place.address(), Offer::default());
        alice.log_on("alice", "pw").unwrap();
        (alice.sign, alice.seal) = (!is_secret, is_secret);
        alice.enter_tree(share).unwrap();
        let name = utf16(share);
        let create = create::Request { oplock: OplockLevel::Batch, ..Client::create_body(&name) };
        alice.call(Command::Create, &create).good();
        let mut bob = bob(&place);
        bob.send_one(request(Command::Create, &create));
        assert_eq!(alice.receive_break().sealed, is_secret, "{share}");
    }
}
