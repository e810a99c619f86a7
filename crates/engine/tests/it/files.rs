//! Files by way of the wire: compounds, requests that wait, and what one client does to another.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use smb::wire::context::{DurableFlags, DurableRequest, Lease, LeaseV2, Reconnect, Requested};
use smb::wire::header::{Command, Flags};
use smb::wire::{bare, close, create, lease_break, lock, oplock_break, read};
use smb::{
    Access, Attributes, CreateOptions, Disposition, FileId, FileTime, Guid, LeaseKey, LeaseState,
    NtStatus, OplockLevel,
};

use crate::client::{
    Answer, Client, Offer, PREVIOUS, request, utf16, write_request, write_request_behind,
};
use crate::place::Place;

fn enter(place: &Place) -> Client {
    Client::enter(place.address(), Offer::default(), "alice", "files")
}

/// Another machine.
fn other(place: &Place) -> Client {
    let offer = Offer { guid: Guid([8; 16]), ..Offer::default() };
    Client::enter(place.address(), offer, "bob", "files")
}

fn closing(file: FileId) -> Vec<u8> {
    request(Command::Close, &close::Request { file, ..close::Request::default() })
}

#[test]
fn who_asks_is_told_at_the_close_what_the_file_is_like() {
    let place = Place::new();
    let mut client = enter(&place);
    let close = |client: &mut Client, file, flags| {
        let answer = client.call(Command::Close, &close::Request { file, flags }).good();
        close::Response::parse(&answer.message).unwrap()
    };
    let file = client.open("file.bin");
    assert_eq!(client.write(file, 0, &[7; 5000]), NtStatus::SUCCESS);
    let said = close(&mut client, file, close::Flags::POSTQUERY_ATTRIB);
    let found = std::fs::metadata(place.folder().join("file.bin")).unwrap();
    let time = |seconds, nanos: i64| FileTime::from_unix(seconds, u32::try_from(nanos).unwrap());
    let expected = close::Response {
        flags: close::Flags::POSTQUERY_ATTRIB,
        // It was there before the bytes: asked below.
        created: said.created,
        accessed: time(found.atime(), found.atime_nsec()),
        written: time(found.mtime(), found.mtime_nsec()),
        changed: said.changed,
        allocation: found.blocks() * 512,
        size: 5000,
        attributes: Attributes::ARCHIVE,
    };
    assert_eq!(said, expected);
    assert!(said.created.is_time() && said.created <= said.written);
    assert!(said.changed >= said.written);
    // Who does not ask is told nothing, and a pipe has nothing to tell.
    let file = client.open("file.bin");
    assert_eq!(close(&mut client, file, close::Flags::empty()), close::Response::default());
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "IPC$");
    let name = utf16("srvsvc");
    let pipe = client.call(Command::Create, &Client::create_body(&name)).good();
    let pipe = created(&pipe).file;
    let said = close(&mut client, pipe, close::Flags::POSTQUERY_ATTRIB);
    assert_eq!(said, close::Response::default());
}

fn reading(file: FileId, length: u32) -> Vec<u8> {
    request(Command::Read, &read::Request { file, length, ..read::Request::default() })
}

fn created(answer: &Answer) -> create::Response<'_> {
    create::Response::parse(&answer.message).unwrap()
}

#[test]
fn large_files_there_and_back() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("large.bin");
    let data: Vec<u8> =
        (0..3_000_000u32).map(|n| n.to_le_bytes()[1] ^ n.to_le_bytes()[0]).collect();
    assert_eq!(client.write(file, 0, &data), NtStatus::SUCCESS);
    assert!(client.read(file, 0, 3_000_000).unwrap() == data, "not signed: data goes its own ways");
    assert!(std::fs::read(place.folder().join("large.bin")).unwrap() == data);
    client.sign = true;
    assert!(client.read(file, 7, 2_000_000).unwrap() == data[7..2_000_007], "signed");
    assert_eq!(client.read(file, 3_000_000, 1), Err(NtStatus::END_OF_FILE));
    client.seal = true;
    assert_eq!(client.write(file, 1_000_000, &data[..1_000_000]), NtStatus::SUCCESS);
    assert!(client.read(file, 1_000_000, 1_000_000).unwrap() == data[..1_000_000], "sealed");
    client.send_one(closing(file));
    client.receive().good();
    assert_eq!(client.read(file, 0, 1), Err(NtStatus::FILE_CLOSED));
}

/// After a large frame only the head of the next one is received at first: 116 bytes with its length, which is less
/// than, as much as, or more than there is of it.
#[test]
fn frames_of_all_lengths_follow_each_other() {
    let place = Place::new();
    // Lengths of data; in front of it are 112 bytes. From 32 KiB on, a frame is a large one.
    let lens = [40_000, 1, 2, 200_000, 3, 4, 5, 40_000, 6, 32_655, 32_656, 1, 70_000, 65_536, 100];
    for (sign, seal) in [(false, false), (true, false), (false, true)] {
        let mut client = enter(&place);
        (client.sign, client.seal) = (sign, seal);
        let file = client.open(&format!("mixed {sign} {seal}"));
        let mut all = Vec::new();
        // Each behind the one before it, so that the server finds some of the next already.
        for (len, number) in lens.into_iter().zip(1..) {
            client.send_one(write_request(file, all.len() as u64, &vec![number; len]));
            all.extend(vec![number; len]);
        }
        for len in lens {
            assert_eq!(client.receive_last().status(), NtStatus::SUCCESS, "{len}, {sign}, {seal}");
        }
        let length = u32::try_from(all.len()).unwrap();
        assert!(client.read(file, 0, length) == Ok(all), "{sign}, {seal}");
    }
    assert_eq!(place.panics(), 0);
}

/// What is signed by AES-CMAC is verified some at a time where it comes so fast. Whatever was together, each is answered
/// by itself, in order, and who changes one on the way has changed that one only.
#[test]
fn large_writes_signed_by_cmac_are_taken_as_they_are_sent() {
    let place = Place::new();
    let offer = Offer { signing: vec![1], ..Offer::default() };
    let mut client = Client::enter(place.address(), offer, "alice", "files");
    client.sign = true;
    let lens = [200_000, 40_000, 1_000_000, 300_000, 70_000, 5, 32_657, 900_000, 40_000, 40_000];
    for wrong in 0..=lens.len() {
        let file = client.open(&format!("cmac {wrong}"));
        let (mut all, mut offset) = (Vec::new(), 0);
        for (at, len) in lens.into_iter().enumerate() {
            let data = vec![u8::try_from(at + 1).unwrap(); len];
            client.changes_last = at == wrong;
            client.send_one(write_request(file, offset, &data));
            offset += len as u64;
            all.extend(if at == wrong { vec![0; len] } else { data });
        }
        client.changes_last = false;
        for at in 0..lens.len() {
            let wanted = if at == wrong { NtStatus::ACCESS_DENIED } else { NtStatus::SUCCESS };
            assert_eq!(client.receive_last().status(), wanted, "{at}, {wrong}");
        }
        if wrong + 1 == lens.len() {
            all.truncate(all.len() - lens[wrong]);
        }
        let mut there = Vec::new();
        while there.len() < all.len() {
            let len = u32::try_from((all.len() - there.len()).min(1_000_000)).unwrap();
            there.extend(client.read(file, there.len() as u64, len).unwrap());
        }
        assert!(there == all, "{wrong}");
    }
    assert_eq!(place.panics(), 0);
}

/// The data of a WRITE begins 112 to 256 bytes from its header. What has come of a frame when it is looked at may end
/// in front of that: behind a large frame always, and of any if its client is slow.
#[test]
fn data_begins_wherever_a_write_says() {
    let place = Place::new();
    let mut client = enter(&place);
    for sign in [false, true] {
        client.sign = sign;
        for at in [112, 113, 116, 120, 255, 256] {
            let before = vec![0xee; at - 112];
            // So much comes at first, the length of the frame included, if it is the first one.
            for first in [116, 117, 4 + at, 5 + at, 300] {
                let file = client.open(&format!("first {sign} {at} {first}"));
                client.pause_at = Some(first);
                let data: Vec<u8> = (0..40_000_u32).map(|n| n.to_le_bytes()[0]).collect();
                client.send_one(write_request_behind(file, 0, &before, &data));
                assert_eq!(client.receive_last().status(), NtStatus::SUCCESS, "{at}, {first}");
                client.pause_at = None;
                // And behind a large one.
                let more = vec![7; 50_000];
                client.send_one(write_request_behind(file, 40_000, &before, &more));
                client.send_one(write_request_behind(file, 90_000, &before, &data));
                for _ in 0..2 {
                    assert_eq!(client.receive_last().status(), NtStatus::SUCCESS, "{at}, {first}");
                }
                let all = [&data[..], &more, &data].concat();
                assert!(client.read(file, 0, 130_000) == Ok(all), "{sign}, {at}, {first}");
            }
        }
    }
    assert_eq!(place.panics(), 0);
}

#[test]
fn a_compound_is_answered_in_one_frame_each_part_of_it_padded() {
    let place = Place::new();
    let mut client = enter(&place);
    for (sign, seal) in [(false, false), (true, false), (false, true)] {
        (client.sign, client.seal) = (sign, seal);
        let name = utf16("compound.txt");
        let all = vec![
            request(Command::Create, &Client::create_body(&name)),
            write_request(PREVIOUS, 0, b"abc"),
            reading(PREVIOUS, 100),
            closing(PREVIOUS),
            reading(PREVIOUS, 3),
        ];
        client.send(all, true);
        let answers: Vec<Answer> = (0..5).map(|_| client.receive()).collect();
        for answer in &answers[..4] {
            assert_eq!(answer.status(), NtStatus::SUCCESS, "{:?}", answer.header.command);
        }
        assert_eq!(answers[4].status(), NtStatus::FILE_CLOSED, "it was closed before");
        assert_eq!(read::Response::parse(&answers[2].message).unwrap().data, b"abc");
        assert!(answers.iter().all(|answer| answer.frame_len == answers[0].frame_len));
        assert!(answers.iter().all(|answer| answer.message.len() % 8 == 0), "padded, the last too");
        assert!(answers.iter().all(|answer| answer.sealed == seal));
    }
}

/// The length of a frame has three bytes (MS-SMB2 2.1), and nobody has memory for as many answers as a frame can ask for.
#[test]
fn a_compound_asks_for_no_more_than_a_frame_can_hold() {
    const LARGE: u32 = 8 << 20;
    let place = Place::new();
    let mut client = enter(&place);
    let name = utf16("large");
    let answer = client.call(Command::Create, &Client::create_body(&name));
    let file = created(&answer).file;
    client.send(vec![write_request(file, u64::from(LARGE) - 1, b"x")], false);
    assert_eq!(client.receive().status(), NtStatus::SUCCESS);
    while client.credits < 1000 {
        client.call(Command::Echo, &bare::Request);
    }
    for (sign, seal) in [(true, false), (false, false), (false, true)] {
        (client.sign, client.seal) = (sign, seal);
        let mut all: Vec<_> = (0..5).map(|_| reading(file, LARGE)).collect();
        all.push(reading(file, 1 << 20));
        all.push(closing(FileId { persistent: 1, volatile: 1 }));
        client.send(all, false);
        let answers: Vec<NtStatus> = (0..7).map(|_| client.receive().status()).collect();
        let refused = NtStatus::INSUFFICIENT_RESOURCES;
        assert_eq!(answers[0], NtStatus::SUCCESS);
        assert_eq!(answers[1..5], [refused; 4]);
        assert_eq!(
            answers[5..],
            [NtStatus::SUCCESS, NtStatus::FILE_CLOSED],
            "there is room for these"
        );
    }
    assert_eq!(place.panics(), 0);
}

#[test]
fn what_a_failed_create_leaves_to_a_compound_is_its_status() {
    let place = Place::new();
    let mut client = enter(&place);
    let name = utf16("not there.txt");
    let create = create::Request { disposition: Disposition::Open, ..Client::create_body(&name) };
    client.send(vec![request(Command::Create, &create), reading(PREVIOUS, 1)], true);
    assert_eq!(client.receive().status(), NtStatus::OBJECT_NAME_NOT_FOUND);
    assert_eq!(client.receive().status(), NtStatus::OBJECT_NAME_NOT_FOUND);
    client.send_related_to_nothing(reading(PREVIOUS, 1));
    assert_eq!(client.receive().status(), NtStatus::INVALID_PARAMETER, "related to nothing");
}

#[test]
fn unrelated_requests_in_one_frame_have_nothing_to_do_with_each_other() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("unrelated.txt");
    assert_eq!(client.write(file, 0, b"x"), NtStatus::SUCCESS);
    client.send(vec![closing(FileId::default()), reading(file, 1), closing(file)], false);
    let statuses: Vec<_> = (0..3).map(|_| client.receive().status()).collect();
    assert_eq!(statuses, [NtStatus::FILE_CLOSED, NtStatus::SUCCESS, NtStatus::SUCCESS]);
}

fn lock_all(file: FileId, wait: bool) -> Vec<u8> {
    let mut element = Vec::new();
    let how = if wait { lock::Flags::empty() } else { lock::Flags::FAIL_IMMEDIATELY };
    let flags = lock::Flags::EXCLUSIVE | how;
    lock::Element { offset: 0, length: 10, flags }.encode(&mut element);
    let elements = lock::Elements::new(&element);
    request(Command::Lock, &lock::Request { sequence: 0, file, elements })
}

#[test]
fn a_lock_that_waits_can_be_cancelled_and_can_be_granted() {
    let place = Place::new();
    let (mut alice, mut bob) = (enter(&place), other(&place));
    for (sign, seal) in [(false, false), (true, false), (false, true)] {
        (bob.sign, bob.seal) = (sign, seal);
        let (hers, his) = (alice.open("locked.txt"), bob.open("locked.txt"));
        alice.send_one(lock_all(hers, false));
        alice.receive().good();
        bob.send_one(lock_all(his, false));
        assert_eq!(bob.receive().status(), NtStatus::LOCK_NOT_GRANTED);

        bob.send_one(lock_all(his, true));
        let pending = bob.receive();
        assert_eq!(pending.status(), NtStatus::PENDING);
        assert!(pending.header.async_id().is_some());
        bob.call(Command::Echo, &bare::Request).good();
        bob.cancel(&pending);
        // What is behind it is answered behind it.
        bob.send_one(request(Command::Echo, &bare::Request));
        let cancelled = bob.receive();
        assert_eq!(cancelled.status(), NtStatus::CANCELLED);
        bob.receive().good();
        assert_eq!(cancelled.header.async_id(), pending.header.async_id());
        assert_eq!(cancelled.header.message_id, pending.header.message_id);

        bob.send_one(lock_all(his, true));
        let pending = bob.receive();
        assert_eq!(pending.status(), NtStatus::PENDING);
        alice.send_one(closing(hers));
        alice.receive().good();
        let granted = bob.receive().good();
        assert_eq!(granted.header.async_id(), pending.header.async_id());
        bob.send_one(closing(his));
        bob.receive().good();
    }
}

/// An open that caches, and what it was granted.
fn cache(client: &mut Client, name: &str, oplock: OplockLevel, contexts: Requested<'_>) -> Answer {
    let name = utf16(name);
    let body = create::Request { oplock, contexts, ..Client::create_body(&name) };
    client.call(Command::Create, &body).good()
}

#[test]
fn who_opens_a_file_waits_until_the_other_has_let_go_of_its_oplock() {
    let place = Place::new();
    let (mut alice, mut bob) = (enter(&place), other(&place));
    let hers = cache(&mut alice, "cached.txt", OplockLevel::Batch, Requested::default());
    assert_eq!(created(&hers).oplock, OplockLevel::Batch);
    let file = created(&hers).file;
    let name = utf16("cached.txt");
    bob.send_one(request(Command::Create, &Client::create_body(&name)));
    assert_eq!(bob.receive().status(), NtStatus::PENDING);
    let told = oplock_break::Notification::parse(&alice.receive_break().message).unwrap();
    assert_eq!((told.file, told.level), (file, OplockLevel::Two));
    let said = oplock_break::Request { level: OplockLevel::Two, file };
    alice.call(Command::OplockBreak, &said).good();
    bob.receive().good();
}

#[test]
fn an_open_that_waits_can_be_cancelled_and_is_none() {
    let place = Place::new();
    let (mut alice, mut bob) = (enter(&place), other(&place));
    let hers = cache(&mut alice, "cached.txt", OplockLevel::Batch, Requested::default());
    let file = created(&hers).file;
    let name = utf16("cached.txt");
    // It would empty the file, if it came to that.
    let empties =
        create::Request { disposition: Disposition::Overwrite, ..Client::create_body(&name) };
    assert_eq!(alice.write(file, 0, b"hers"), NtStatus::SUCCESS);
    bob.send_one(request(Command::Create, &empties));
    let pending = bob.receive();
    assert_eq!(pending.status(), NtStatus::PENDING);
    alice.receive_break();
    bob.cancel(&pending);
    let cancelled = bob.receive();
    assert_eq!(cancelled.status(), NtStatus::CANCELLED);
    assert_eq!(cancelled.header.async_id(), pending.header.async_id());
    // What was asked of her is to be answered all the same, and then nobody else has the file.
    let said = oplock_break::Request { level: OplockLevel::None, file };
    alice.call(Command::OplockBreak, &said).good();
    assert_eq!(alice.read(file, 0, 100).as_deref(), Ok(&b"hers"[..]));
    assert_eq!(place.counts().opens, 1);
    bob.call(Command::Echo, &bare::Request).good();
}

#[test]
fn who_empties_a_file_keeps_the_oplock_that_it_got_for_it() {
    let place = Place::new();
    let (mut alice, mut bob) = (enter(&place), other(&place));
    let file = alice.open("emptied.txt");
    assert_eq!(alice.write(file, 0, b"full"), NtStatus::SUCCESS);
    let name = utf16("emptied.txt");
    let empties = create::Request {
        disposition: Disposition::OverwriteIf,
        oplock: OplockLevel::Batch,
        ..Client::create_body(&name)
    };
    let his = bob.call(Command::Create, &empties).good();
    assert_eq!(created(&his).oplock, OplockLevel::Two);
    bob.call(Command::Echo, &bare::Request).good();
    assert!(bob.breaks.is_empty(), "{:?}", bob.breaks);
    assert_eq!(alice.read(file, 0, 4), Err(NtStatus::END_OF_FILE));
    assert_eq!(alice.write(file, 0, b"anew"), NtStatus::SUCCESS);
    let told = oplock_break::Notification::parse(&bob.receive_break().message).unwrap();
    assert_eq!((told.file, told.level), (created(&his).file, OplockLevel::None));
}

fn lease(key: u8) -> Requested<'static> {
    let lease = Lease {
        key: LeaseKey([key; 16]),
        state: LeaseState::READ | LeaseState::HANDLE | LeaseState::WRITE,
        v2: Some(LeaseV2::default()),
        ..Lease::default()
    };
    Requested { lease: Some(lease), ..Requested::default() }
}

#[test]
fn a_break_goes_by_another_channel_when_the_first_is_gone() {
    let place = Place::new();
    let (mut first, mut bob) = (enter(&place), other(&place));
    first.sign = true;
    cache(&mut first, "leased.txt", OplockLevel::Lease, lease(1));
    let mut second = Client::connect(place.address(), Offer::default());
    second.bind(&first, "alice", "pw").unwrap();
    drop(first);
    second.call(Command::Echo, &bare::Request).good();
    let name = utf16("leased.txt");
    bob.send_one(request(Command::Create, &Client::create_body(&name)));
    let told = lease_break::Notification::parse(&second.receive_break().message).unwrap();
    assert_eq!(told.key, LeaseKey([1; 16]));
    assert!(!told.new.contains(LeaseState::WRITE));
    let said = lease_break::Request { flags: 0, key: told.key, state: told.new };
    second.call(Command::OplockBreak, &said).good();
    bob.receive_last().good();
}

#[test]
fn a_lost_client_finds_its_file_again() {
    let place = Place::new();
    let mut client = enter(&place);
    let guid = Guid([9; 16]);
    let durable = DurableRequest { create: guid, ..DurableRequest::default() };
    let contexts = Requested { durable_v2: Some(durable), ..lease(2) };
    let answer = cache(&mut client, "durable.txt", OplockLevel::Lease, contexts);
    let file = created(&answer).file;
    assert!(created(&answer).contexts.durable_v2.is_some());
    assert_eq!(client.write(file, 0, b"before"), NtStatus::SUCCESS);
    let session = client.session;
    drop(client);

    let mut again = Client::connect(place.address(), Offer::default());
    again.log_on_after("alice", session).unwrap();
    again.sign = true;
    again.enter_tree("files").unwrap();
    let reconnect = Reconnect { file, create: guid, flags: DurableFlags::empty() };
    let contexts = Requested { reconnect_v2: Some(reconnect), ..lease(2) };
    let answer = cache(&mut again, "durable.txt", OplockLevel::Lease, contexts);
    let file = created(&answer).file;
    assert_eq!(again.read(file, 0, 100).as_deref(), Ok(&b"before"[..]));
    assert_eq!(again.write(file, 6, b" and after"), NtStatus::SUCCESS);
    let text = std::fs::read(place.folder().join("durable.txt")).unwrap();
    assert_eq!(text, b"before and after");
}

#[test]
fn what_a_lost_client_had_open_for_itself_is_free_again() {
    let place = Place::new();
    let (alice, mut bob) = (enter(&place), other(&place));
    let mut alice = alice;
    let name = utf16("alone.txt");
    let alone = create::Request {
        share: smb::ShareAccess::empty(),
        access: Access::FILE_READ | Access::FILE_WRITE | Access::DELETE,
        options: CreateOptions::DELETE_ON_CLOSE,
        ..Client::create_body(&name)
    };
    alice.call(Command::Create, &alone).good();
    let refused = bob.call(Command::Create, &Client::create_body(&name));
    assert_eq!(refused.status(), NtStatus::SHARING_VIOLATION);
    drop(alice);
    let until = Instant::now() + Duration::from_secs(10);
    while place.folder().join("alone.txt").exists() {
        assert!(Instant::now() < until, "a file that was to be deleted with its last open");
        std::thread::sleep(Duration::from_millis(5));
    }
    bob.call(Command::Create, &Client::create_body(&name)).good();
}

#[test]
fn what_an_older_channel_sends_late_is_not_done() {
    let place = Place::new();
    let mut client = enter(&place);
    client.sign = true;
    let file = client.open("sequence.txt");
    client.channel_sequence = 1;
    assert_eq!(client.write(file, 0, b"new"), NtStatus::SUCCESS);
    client.channel_sequence = 0;
    assert_eq!(client.write(file, 0, b"old"), NtStatus::FILE_NOT_AVAILABLE);
    client.sign = false;
    assert_eq!(client.write(file, 0, &[b'o'; 100_000]), NtStatus::FILE_NOT_AVAILABLE);
    assert_eq!(client.read(file, 0, 10).as_deref(), Ok(&b"new"[..]));
}

#[test]
fn a_stop_answers_what_waits() {
    let mut place = Place::new();
    let mut client = enter(&place);
    let (held, wanted) = (client.open("stopped.txt"), client.open("stopped.txt"));
    client.send_one(lock_all(held, false));
    client.receive().good();
    client.send_one(lock_all(wanted, true));
    assert_eq!(client.receive().status(), NtStatus::PENDING);
    let began = Instant::now();
    place.stop();
    assert!(began.elapsed() < Duration::from_secs(5), "less than the time of grace");
    assert_eq!(client.receive().status(), NtStatus::CANCELLED);
    assert!(client.is_closed());
}

/// The request says that it was perhaps sent before.
fn replayed(mut message: Vec<u8>) -> Vec<u8> {
    let flags = message[16..].first_chunk_mut().unwrap();
    *flags = (u32::from_le_bytes(*flags) | Flags::REPLAY.bits()).to_le_bytes();
    message
}

/// A channel is lost in the middle of its work: what had not been answered is sent again by another, and nothing of
/// what the first one sent is done after that.
#[test]
fn writes_of_a_lost_channel_are_sent_again_by_another() {
    const LEN: usize = 100_000;
    const COUNT: u8 = 24;
    let place = Place::new();
    // By way of a buffer, from the socket to the file, and sealed.
    for (round, (sign, seal)) in [(true, false), (false, false), (false, true)].iter().enumerate() {
        let mut first = enter(&place);
        first.sign = true;
        let name = format!("lost {round}.bin");
        let file = first.open(&name);
        while first.credits < 4 * u64::from(COUNT) {
            first.call(Command::Echo, &bare::Request).good();
        }
        let mut second = Client::connect(place.address(), Offer::default());
        second.bind(&first, "alice", "pw").unwrap();
        (first.sign, first.seal) = (*sign, *seal);
        (second.sign, second.seal) = (*sign, *seal);
        let write =
            |at: u8, what: u8| write_request(file, u64::from(at) * LEN as u64, &vec![what; LEN]);
        for at in 0..COUNT {
            first.send_one(write(at, 1));
        }
        // No answer is taken: some are done by now, some are not, and some never come whole.
        drop(first);
        second.channel_sequence = 1;
        let until = Instant::now() + Duration::from_secs(20);
        for at in 0..COUNT {
            let status = loop {
                second.send_one(replayed(write(at, 2)));
                let status = second.receive_last().status();
                // While one of the lost channel is under way (MS-SMB2 3.3.5.2.10), clients ask again.
                if status != NtStatus::FILE_NOT_AVAILABLE || Instant::now() > until {
                    break status;
                }
            };
            assert_eq!(status, NtStatus::SUCCESS, "{at}, {sign}, {seal}");
        }
        // And what came late, with the number of before, is not done.
        second.channel_sequence = 0;
        second.send_one(write(0, 3));
        assert_eq!(second.receive_last().status(), NtStatus::FILE_NOT_AVAILABLE);
        second.channel_sequence = 1;
        let all = vec![2; LEN * usize::from(COUNT)];
        let length = u32::try_from(all.len()).unwrap();
        while second.credits - second.next < 64 {
            second.call(Command::Echo, &bare::Request).good();
        }
        assert!(second.read(file, 0, length) == Ok(all.clone()), "{sign}, {seal}");
        assert!(std::fs::read(place.folder().join(&name)).unwrap() == all, "{sign}, {seal}");
        assert_eq!(place.stat().opens.iter().filter(|open| open.path == name).count(), 1);
    }
    assert_eq!(place.panics(), 0);
}

#[test]
fn an_earlier_version_is_not_there() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("kept.txt");
    assert_eq!(client.write(file, 0, b"now"), NtStatus::SUCCESS);
    for name in ["kept.txt", "never.txt"] {
        let wide = utf16(name);
        // A day in 2022.
        let timewarp = Some(FileTime(133_000_000_000_000_000));
        let contexts = Requested { timewarp, ..Requested::default() };
        let body = create::Request { contexts, ..Client::create_body(&wide) };
        let answer = client.call(Command::Create, &body);
        assert_eq!(answer.status(), NtStatus::OBJECT_NAME_NOT_FOUND, "{name}");
        assert_eq!(place.folder().join(name).exists(), name == "kept.txt");
    }
    assert_eq!(client.read(file, 0, 9).as_deref(), Ok(&b"now"[..]), "the connection goes on");
    assert_eq!(place.counts().opens, 1);
}

#[test]
fn a_share_without_streams_has_no_name_with_a_colon() {
    for (streams, wanted) in [(true, NtStatus::SUCCESS), (false, NtStatus::OBJECT_NAME_INVALID)] {
        let place = Place::with(|config| config.shares[0].streams = streams);
        let mut client = Client::enter(place.address(), Offer::default(), "alice", "files");
        client.open("there");
        for name in ["there::$DATA", "new::$DATA", "there:stream"] {
            let name = utf16(name);
            let answer = client.call(Command::Create, &Client::create_body(&name));
            assert_eq!(answer.status(), wanted, "{streams}");
        }
        assert_eq!(place.folder().join("new").exists(), streams);
    }
}
