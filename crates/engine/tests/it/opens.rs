//! Creates that are sent again (MS-SMB2 3.3.5.9.10): smb2.replay in short.

use smb::wire::context::{DurableRequest, Requested};
use smb::wire::header::{Command, Flags, HEADER_LEN, Header};
use smb::wire::{close, create};
use smb::{CreateAction, FileId, Guid, NtStatus, OplockLevel};

use crate::client::{Answer, Client, Offer, request, utf16};
use crate::place::Place;

/// A create that can be sent again, with a batch oplock.
fn creating(name: &[u8], guid: u8) -> Vec<u8> {
    let durable = DurableRequest { create: Guid([guid; 16]), ..DurableRequest::default() };
    let body = create::Request {
        oplock: OplockLevel::Batch,
        contexts: Requested { durable_v2: Some(durable), ..Requested::default() },
        ..Client::create_body(name)
    };
    request(Command::Create, &body)
}

/// The same message, sent again.
fn again(message: &[u8]) -> Vec<u8> {
    let mut header = Header::parse(message).unwrap();
    header.flags |= Flags::REPLAY;
    [&header.to_bytes()[..], &message[HEADER_LEN..]].concat()
}

fn ask(client: &mut Client, message: Vec<u8>) -> Answer {
    client.send_one(message);
    client.receive_last()
}

fn made(answer: &Answer) -> (FileId, CreateAction) {
    assert_eq!(answer.status(), NtStatus::SUCCESS);
    let response = create::Response::parse(&answer.message).unwrap();
    (response.file, response.action)
}

#[test]
fn a_create_that_is_sent_again_makes_nothing_new_until_its_open_is_used() {
    let place = Place::new();
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "files");
    let name = utf16("replayed.txt");
    let create = creating(&name, 1);
    let (file, action) = made(&ask(&mut client, create.clone()));
    assert_eq!(action, CreateAction::Created);
    assert_eq!(ask(&mut client, create.clone()).status(), NtStatus::DUPLICATE_OBJECTID);
    assert_eq!(made(&ask(&mut client, again(&create))), (file, CreateAction::Created));
    assert_eq!(place.counts().opens, 1);
    let close = close::Request { file, ..close::Request::default() };
    client.call(Command::Close, &close).good();
    let (other, action) = made(&ask(&mut client, again(&create)));
    assert_ne!(other, file);
    assert_eq!(action, CreateAction::Opened);
}

#[test]
fn a_create_that_waits_is_found_when_it_is_sent_again() {
    let place = Place::new();
    let mut alice = Client::enter(place.address(), Offer::default(), "alice", "files");
    let offer = Offer { guid: Guid([8; 16]), ..Offer::default() };
    let mut bob = Client::enter(place.address(), offer, "bob", "files");
    let name = utf16("waited-for.txt");
    let (held, _) = made(&ask(&mut alice, creating(&name, 1)));
    let create = creating(&name, 2);
    bob.send_one(create.clone());
    assert_eq!(bob.receive().status(), NtStatus::PENDING);
    assert_eq!(ask(&mut bob, again(&create)).status(), NtStatus::FILE_NOT_AVAILABLE);
    let _told = alice.receive_break();
    alice.send_one(request(
        Command::Close,
        &close::Request { file: held, ..close::Request::default() },
    ));
    alice.receive().good();
    let (file, _) = made(&bob.receive_last());
    assert_eq!(made(&ask(&mut bob, again(&create))).0, file);
    assert_eq!(place.counts().opens, 1);
}
