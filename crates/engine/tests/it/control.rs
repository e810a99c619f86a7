//! Control codes by way of the wire.

use std::os::unix::fs::FileExt;

use engine::serve::config::Interface;
use smb::fscc::fsctl::Code;
use smb::session::Dialect;
use smb::wire::header::Command;
use smb::wire::{create, ioctl};
use smb::{Access, FileId, NtStatus};

use crate::client::{Client, Offer, request, utf16, write_request};
use crate::place::Place;

fn enter(place: &Place) -> Client {
    Client::enter(place.address(), Offer::default(), "alice", "files")
}

fn control(code: Code, file: FileId, input: &[u8]) -> ioctl::Request<'_> {
    ioctl::Request { code: code.0, file, input, output_max: 65_536, ..ioctl::Request::default() }
}

/// The status, and what came with it.
fn call(client: &mut Client, body: &ioctl::Request<'_>) -> (NtStatus, Vec<u8>) {
    client.send_one(request(Command::Ioctl, body));
    let answer = client.receive_last();
    let output = ioctl::Response::parse(&answer.message).map(|said| said.output.to_vec());
    (answer.status(), output.unwrap_or_default())
}

fn good(client: &mut Client, code: Code, file: FileId, input: &[u8]) -> Vec<u8> {
    let (status, output) = call(client, &control(code, file, input));
    assert_eq!(status, NtStatus::SUCCESS, "{code:?}");
    output
}

fn key_of(client: &mut Client, file: FileId) -> Vec<u8> {
    good(client, Code::SRV_REQUEST_RESUME_KEY, file, &[])[..24].to_vec()
}

/// SRV_COPYCHUNK_COPY: from, to, length of each.
fn copy(key: &[u8], chunks: &[(u64, u64, u32)]) -> Vec<u8> {
    let count = u32::try_from(chunks.len()).unwrap();
    let mut bytes = [key, &count.to_le_bytes(), &[0; 4]].concat();
    for (from, to, len) in chunks {
        bytes.extend(from.to_le_bytes());
        bytes.extend(to.to_le_bytes());
        bytes.extend(len.to_le_bytes());
        bytes.extend([0; 4]);
    }
    bytes
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four)).collect()
}

#[test]
fn the_server_copies_as_far_as_the_source_goes_and_says_how_far() {
    let place = Place::new();
    let mut client = enter(&place);
    let (source, target) = (client.open("source"), client.open("target"));
    let data: Vec<u8> = (0..300_000u32).map(|n| n.to_le_bytes()[1]).collect();
    assert_eq!(client.write(source, 0, &data), NtStatus::SUCCESS);
    let key = key_of(&mut client, source);
    let input = copy(&key, &[(0, 100, 200_000), (250_000, 0, 50), (290_000, 0, 20_000)]);
    let (status, output) = call(&mut client, &control(Code::SRV_COPYCHUNK, target, &input));
    assert_eq!(status, NtStatus::INVALID_VIEW_SIZE);
    assert_eq!(numbers(&output), [2, 0, 200_050], "two chunks");
    let copied = std::fs::read(place.folder().join("target")).unwrap();
    assert!(copied[..50] == data[250_000..250_050] && copied[100..] == data[..200_000]);
}

#[test]
fn who_may_only_append_overwrites_nothing() {
    let place = Place::new();
    let mut client = enter(&place);
    let source = client.open("source");
    assert_eq!(client.write(source, 0, &[b's'; 200_000]), NtStatus::SUCCESS);
    let key = key_of(&mut client, source);
    for (round, len) in [100, 100_000].into_iter().enumerate() {
        // The large ones go from the socket to the file.
        for name in [format!("log-{round}"), format!("log-{round}:stream")] {
            let file = client.open(&name);
            let part = if name.contains(':') { 100 } else { len };
            assert_eq!(client.write(file, 0, &vec![b'a'; part]), NtStatus::SUCCESS);
            let wide = utf16(&name);
            let body = create::Request {
                access: Access::APPEND_DATA | Access::READ_ATTRIBUTES,
                ..Client::create_body(&wide)
            };
            let answer = client.call(Command::Create, &body).good();
            let log = create::Response::parse(&answer.message).unwrap().file;
            let end = part as u64;
            let denied = NtStatus::ACCESS_DENIED;
            assert_eq!(client.write(log, 0, &vec![b'b'; part]), denied, "{name}");
            assert_eq!(client.write(log, end - 1, &vec![b'b'; part]), denied, "{name}");
            assert_eq!(client.write(log, end, &vec![b'c'; part]), NtStatus::SUCCESS, "{name}");
            let over = copy(&key, &[(0, 2 * end, 50), (0, end, 50)]);
            let (status, output) =
                call(&mut client, &control(Code::SRV_COPYCHUNK_WRITE, log, &over));
            assert_eq!((status, numbers(&output)), (denied, vec![1, 0, 50]), "{name}");
            // What one chunk has appended is there when the next comes.
            let twice = copy(&key, &[(0, 2 * end + 50, 50), (50, 2 * end + 50, 50)]);
            let (status, output) =
                call(&mut client, &control(Code::SRV_COPYCHUNK_WRITE, log, &twice));
            assert_eq!((status, numbers(&output)), (denied, vec![1, 0, 50]), "{name}");
            let all = client.read(file, 0, 65_536 * 4).unwrap();
            let expected = [vec![b'a'; part], vec![b'c'; part], vec![b's'; 100]].concat();
            assert!(all == expected, "{name}");
        }
    }
}

/// Each finds the same end before the others have written.
#[test]
fn of_many_who_append_at_the_same_place_one_does() {
    const LEN: usize = 1 << 20;
    const ROUNDS: usize = 64;
    let place = Place::new();
    let mut clients: Vec<_> = (0..4).map(|_| enter(&place)).collect();
    let wide = utf16("log");
    let body = create::Request {
        access: Access::APPEND_DATA | Access::READ_ATTRIBUTES,
        share: smb::ShareAccess::all(),
        ..Client::create_body(&wide)
    };
    let logs: Vec<_> = clients
        .iter_mut()
        .map(|client| {
            let answer = client.call(Command::Create, &body).good();
            create::Response::parse(&answer.message).unwrap().file
        })
        .collect();
    for round in 0..ROUNDS {
        let end = (round * LEN) as u64;
        let together = std::sync::Barrier::new(clients.len());
        let write = |(client, log): (&mut Client, FileId)| {
            let request = write_request(log, end, &vec![b'x'; LEN]);
            together.wait();
            client.send_one(request);
            client.receive_last().status()
        };
        let write = &write;
        let statuses: Vec<_> = std::thread::scope(|scope| {
            let each = clients.iter_mut().zip(logs.iter().copied());
            let all: Vec<_> = each.map(|one| scope.spawn(move || write(one))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let (written, others): (Vec<_>, Vec<_>) =
            statuses.into_iter().partition(|status| *status == NtStatus::SUCCESS);
        assert_eq!((written.len(), others), (1, vec![NtStatus::ACCESS_DENIED; 3]), "{round}");
    }
    let there = std::fs::read(place.folder().join("log")).unwrap();
    assert!(there == vec![b'x'; ROUNDS * LEN]);
}

#[test]
fn a_copy_within_a_file_may_overlap() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("file");
    assert_eq!(client.write(file, 0, b"abcdefgh"), NtStatus::SUCCESS);
    let key = key_of(&mut client, file);
    let output = good(&mut client, Code::SRV_COPYCHUNK, file, &copy(&key, &[(0, 3, 8)]));
    assert_eq!(numbers(&output), [1, 0, 8]);
    assert_eq!(std::fs::read(place.folder().join("file")).unwrap(), b"abcabcdefgh");
}

#[test]
fn copies_have_limits_and_sources_that_are_the_sessions_own() {
    let place = Place::new();
    let (mut client, mut mallory) = (enter(&place), enter(&place));
    let (source, target) = (client.open("source"), client.open("target"));
    let key = key_of(&mut client, source);
    let (status, output) = call(
        &mut client,
        &control(Code::SRV_COPYCHUNK, target, &copy(&key, &[(0, 0, (1 << 20) + 1)])),
    );
    assert_eq!(
        (status, numbers(&output)),
        (NtStatus::INVALID_PARAMETER, vec![256, 1 << 20, 16 << 20])
    );
    let theirs = mallory.open("mallory's");
    let stolen = control(Code::SRV_COPYCHUNK, theirs, &[]);
    let input = copy(&key, &[(0, 0, 1)]);
    let (status, _) = call(&mut mallory, &ioctl::Request { input: &input, ..stolen });
    assert_eq!(status, NtStatus::OBJECT_NAME_NOT_FOUND);
    let (status, _) = call(&mut client, &control(Code::SRV_COPYCHUNK, target, &key[..23]));
    assert_eq!(status, NtStatus::INVALID_PARAMETER);
}

fn range(from: u64, to: u64) -> Vec<u8> {
    [from.to_le_bytes(), to.to_le_bytes()].concat()
}

#[test]
fn a_sparse_file_has_data_where_it_was_written() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("sparse");
    assert_eq!(client.write(file, 0, &[7; 65_536]), NtStatus::SUCCESS);
    assert_eq!(client.write(file, 1 << 20, &[7; 65_536]), NtStatus::SUCCESS);
    let whole = range(0, 4 << 20);
    let query = Code::QUERY_ALLOCATED_RANGES;
    let all = range(0, (1 << 20) + 65_536);
    assert_eq!(good(&mut client, query, file, &whole), all, "not sparse: everywhere");
    good(&mut client, Code::SET_SPARSE, file, &[]);
    let two = [range(0, 65_536), range(1 << 20, 65_536)].concat();
    assert_eq!(good(&mut client, query, file, &whole), two);
    good(&mut client, Code::SET_ZERO_DATA, file, &range(0, 65_536));
    assert_eq!(good(&mut client, query, file, &whole), range(1 << 20, 65_536));
    let mut first = [1; 16];
    let on_disk = std::fs::File::open(place.folder().join("sparse")).unwrap();
    on_disk.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(first, [0; 16]);
    let none = ioctl::Request { output_max: 15, ..control(query, file, &whole) };
    assert_eq!(call(&mut client, &none).0, NtStatus::BUFFER_TOO_SMALL);
    let backwards = control(Code::SET_ZERO_DATA, file, &[0; 16]);
    let input = range(2, 1);
    let backwards = ioctl::Request { input: &input, ..backwards };
    assert_eq!(call(&mut client, &backwards).0, NtStatus::INVALID_PARAMETER);
}

#[test]
fn nothing_written_behind_the_end_of_a_stream_changes_nothing() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("file:stream");
    assert_eq!(client.write(file, 0, b"held"), NtStatus::SUCCESS);
    for offset in [1000, 100_000, u64::from(u32::MAX)] {
        assert_eq!(client.write(file, offset, b""), NtStatus::SUCCESS, "{offset}");
        good(&mut client, Code::SET_ZERO_DATA, file, &range(offset, offset + 1000));
    }
    assert_eq!(client.read(file, 0, 9000).as_deref(), Ok(&b"held"[..]));
    good(&mut client, Code::SET_ZERO_DATA, file, &range(2, 9000));
    assert_eq!(client.read(file, 0, 9000).as_deref(), Ok(&b"he\0\0"[..]));
}

/// VALIDATE_NEGOTIATE_INFO of what [`Client`] offers.
fn negotiated(offer: &Offer, capabilities: u32) -> Vec<u8> {
    let count = u16::try_from(offer.dialects.len()).unwrap();
    let mut bytes = [&capabilities.to_le_bytes()[..], &offer.guid.0, &[1, 0]].concat();
    bytes.extend(count.to_le_bytes());
    bytes.extend(offer.dialects.iter().flat_map(|dialect| (*dialect as u16).to_le_bytes()));
    bytes
}

#[test]
fn who_was_lied_to_in_negotiate_finds_out_and_who_lies_is_gone() {
    let place = Place::new();
    let offer = Offer {
        dialects: vec![Dialect::Smb210, Dialect::Smb300, Dialect::Smb302],
        ..Offer::default()
    };
    // DFS aside, what `Client::negotiate` says.
    let said = 0x02 | 0x04 | 0x08 | 0x20 | 0x40;
    let validate = Code::VALIDATE_NEGOTIATE_INFO;
    let mut client = Client::enter(place.address(), offer.clone(), "alice", "files");
    let output = good(&mut client, validate, FileId::ALL_ONES, &negotiated(&offer, said));
    assert_eq!(output.len(), 24);
    assert_eq!(output[22..], [0x02, 0x03]);
    let newer = Offer { dialects: Dialect::ALL.to_vec(), ..offer.clone() };
    let other = Offer { guid: smb::Guid([9; 16]), ..offer.clone() };
    for lie in [negotiated(&newer, said), negotiated(&other, said), negotiated(&offer, said | 1)] {
        let mut client = Client::enter(place.address(), offer.clone(), "alice", "files");
        client.send_one(request(Command::Ioctl, &control(validate, FileId::ALL_ONES, &lie)));
        assert!(client.is_closed());
    }
    // MS-SMB2 3.3.5.15.12: nor is one believed who has no room for the answer.
    let mut client = Client::enter(place.address(), offer.clone(), "alice", "files");
    let input = negotiated(&offer, said);
    let short = ioctl::Request { output_max: 23, ..control(validate, FileId::ALL_ONES, &input) };
    client.send_one(request(Command::Ioctl, &short));
    assert!(client.is_closed());
}

/// RSS_CAPABLE (MS-SMB2 2.2.32.5).
const RSS: u32 = 1;

/// Capability and LinkSpeed of a NETWORK_INTERFACE_INFO.
fn capability_and_speed(info: &[u8]) -> (u32, u64) {
    let caps = u32::from_le_bytes(*info[8..].first_chunk().unwrap());
    (caps, u64::from_le_bytes(*info[16..].first_chunk().unwrap()))
}

#[test]
fn clients_are_told_what_the_settings_say_of_each_interface() {
    let set = |address: [u8; 4], speed, rss| Interface { address: address.into(), speed, rss };
    let place = Place::with(|config| {
        config.interfaces = vec![
            set([127, 0, 0, 1], Some(25_000_000_000), true),
            set([198, 51, 100, 1], Some(10_000_000_000), false),
        ];
    });
    let mut client = enter(&place);
    let query = Code::QUERY_NETWORK_INTERFACE_INFO;
    let output = good(&mut client, query, FileId::ALL_ONES, &[]);
    let (first, second) = output.split_at(152);
    assert_eq!(second.len(), 152);
    assert_eq!((&first[..4], &second[..4]), (&152_u32.to_le_bytes()[..], &[0; 4][..]), "Next");
    assert_eq!(capability_and_speed(first), (RSS, 25_000_000_000));
    assert_eq!(capability_and_speed(second), (0, 10_000_000_000));
    assert_eq!(first[24..32], [2, 0, 0, 0, 127, 0, 0, 1]);
    assert_eq!(second[24..32], [2, 0, 0, 0, 198, 51, 100, 1]);
    assert_ne!(first[4..8], second[4..8], "an interface each");
}

#[test]
fn clients_are_told_where_else_the_server_is() {
    let place = Place::new();
    let mut client = enter(&place);
    let query = Code::QUERY_NETWORK_INTERFACE_INFO;
    let output = good(&mut client, query, FileId::ALL_ONES, &[]);
    assert_eq!(output.len(), 152, "it listens at one address");
    assert_eq!(output[24..32], [2, 0, 0, 0, 127, 0, 0, 1]);
    let (caps, speed) = capability_and_speed(&output);
    assert_eq!((caps, speed), (RSS, 100_000_000_000), "within the host");
    let short = ioctl::Request { output_max: 151, ..control(query, FileId::ALL_ONES, &[]) };
    assert_eq!(call(&mut client, &short).0, NtStatus::BUFFER_TOO_SMALL);
    let file = client.open("file");
    assert_eq!(call(&mut client, &control(query, file, &[])).0, NtStatus::INVALID_PARAMETER);
}

#[test]
fn what_nobody_knows_is_refused_as_clients_expect() {
    let place = Place::new();
    let mut client = enter(&place);
    let file = client.open("file");
    let unknown = [Code(0x1234), Code::FILE_LEVEL_TRIM, Code::OFFLOAD_READ, Code::PIPE_TRANSCEIVE];
    for code in unknown {
        let (status, _) = call(&mut client, &control(code, file, &[]));
        assert_eq!(status, NtStatus::INVALID_DEVICE_REQUEST, "{code:?}");
    }
    let gone = FileId { persistent: 1, volatile: 2 };
    assert_eq!(call(&mut client, &control(Code(0x1234), gone, &[])).0, NtStatus::FILE_CLOSED);
    let pass = ioctl::Request { flags: 0, ..control(Code::GET_COMPRESSION, file, &[]) };
    assert_eq!(call(&mut client, &pass).0, NtStatus::NOT_SUPPORTED);
    // The codes of the test suite are no codes here.
    let code = Code::TORTURE_FORCE_UNACKED_TIMEOUT;
    let (status, _) = call(&mut client, &control(code, FileId::ALL_ONES, &[]));
    assert_eq!(status, NtStatus::FILE_CLOSED);
    let (status, _) = call(&mut client, &control(code, file, &[]));
    assert_eq!(status, NtStatus::INVALID_DEVICE_REQUEST);
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// What Windows asks of files and volumes besides, of which there is little here.
#[test]
fn of_what_there_is_not_here_it_is_said_so() {
    let (good_status, no) = (NtStatus::SUCCESS, NtStatus::NOT_SUPPORTED);
    let bad = NtStatus::INVALID_PARAMETER;
    let place = Place::new();
    let mut client = enter(&place);
    let (file, other) = (client.open("file"), client.open("other"));
    assert_eq!(client.write(file, 0, &[7; 5000]), NtStatus::SUCCESS);
    let unit = u32::try_from(rustix::fs::statvfs(place.folder()).unwrap().f_frsize).unwrap();
    // No compression, no checksums, no snapshots (an empty list ends in two zeros), and the volume is not dirty.
    assert_eq!(good(&mut client, Code::GET_COMPRESSION, file, &[]), [0, 0]);
    let integrity = good(&mut client, Code::GET_INTEGRITY_INFORMATION, file, &[]);
    assert_eq!(integrity, words(&[0, 0, unit, unit]));
    let snapshots = good(&mut client, Code::SRV_ENUMERATE_SNAPSHOTS, file, &[]);
    assert_eq!(snapshots, words(&[0, 0, 2, 0]));
    assert_eq!(good(&mut client, Code::IS_VOLUME_DIRTY, file, &[]), [0; 4]);
    let disc = good(&mut client, Code::QUERY_ON_DISK_VOLUME_INFO, file, &[]);
    assert_eq!((disc.len(), &disc[..16]), (264, &[0xff; 16][..]), "nobody knows how many");
    // An id is the same each time, and of each file another one.
    let mut id = |file| good(&mut client, Code::CREATE_OR_GET_OBJECT_ID, file, &[]);
    let (first, second) = (id(file), id(other));
    assert_eq!((first.len(), &first[48..]), (64, &[0; 16][..]));
    assert!(first != second && first == id(file));
    // All of a file is valid; a length of 5,000 from 1,000 on is 4,000.
    let regions = good(&mut client, Code::QUERY_FILE_REGIONS, file, &[]);
    let region = |offset, len| [range(offset, len), words(&[1, 0])].concat();
    let head = words(&[0, 1, 1, 0]);
    assert_eq!(regions, [head.clone(), region(0, 5000)].concat());
    let some = [range(1000, 5000), words(&[1, 0])].concat();
    let regions = good(&mut client, Code::QUERY_FILE_REGIONS, file, &some);
    assert_eq!(regions, [head, region(1000, 4000)].concat());
    // What it is already may be set, and nothing else.
    for (code, input, status) in [
        (Code::SET_COMPRESSION, vec![0, 0], good_status),
        (Code::SET_COMPRESSION, vec![2, 0], no),
        (Code::SET_COMPRESSION, vec![9, 0], bad),
        (Code::SET_COMPRESSION, vec![0], bad),
        (Code::SET_INTEGRITY_INFORMATION, words(&[0xffff, 0]), good_status),
        (Code::SET_INTEGRITY_INFORMATION, words(&[2, 0]), no),
        (Code::SET_INTEGRITY_INFORMATION, words(&[7, 0]), bad),
        (Code::LMR_REQUEST_RESILIENCY, words(&[1000, 0]), no),
    ] {
        let (got, _) = call(&mut client, &control(code, file, &input));
        assert_eq!(got, status, "{code:?} {input:?}");
    }
    // Who is sent to another server by a file system that is distributed: nobody.
    for code in [Code::DFS_GET_REFERRALS, Code::DFS_GET_REFERRALS_EX] {
        let (status, _) = call(&mut client, &control(code, FileId::ALL_ONES, &[4, 0]));
        assert_eq!(status, NtStatus::INVALID_DEVICE_REQUEST, "{code:?}");
    }
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "IPC$");
    let (status, _) =
        call(&mut client, &control(Code::DFS_GET_REFERRALS, FileId::ALL_ONES, &[4, 0]));
    assert_eq!(status, NtStatus::FS_DRIVER_REQUIRED, "as Windows without that service says");
}

/// FSCTL_PIPE_WAIT and FSCTL_PIPE_PEEK; FSCTL_PIPE_TRANSCEIVE is how shares are listed.
#[test]
fn pipes_are_waited_for_and_looked_into() {
    let place = Place::new();
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "IPC$");
    // Timeout, length of the name, whether it is there, padding, the name.
    let waiting = |name: &str| {
        let name = utf16(name);
        let len = u32::try_from(name.len()).unwrap().to_le_bytes();
        [&[0; 8][..], &len, &[1, 0], &name].concat()
    };
    for (name, status) in
        [("srvsvc", NtStatus::SUCCESS), ("spoolss", NtStatus::OBJECT_NAME_NOT_FOUND)]
    {
        let input = waiting(name);
        let (got, _) = call(&mut client, &control(Code::PIPE_WAIT, FileId::ALL_ONES, &input));
        assert_eq!(got, status, "{name}");
    }
    let name = utf16("srvsvc");
    let answer = client.call(Command::Create, &Client::create_body(&name)).good();
    let pipe = create::Response::parse(&answer.message).unwrap().file;
    assert_eq!(good(&mut client, Code::PIPE_PEEK, pipe, &[]), words(&[3, 0, 0, 0]));
    // A BIND of srvsvc, to which the answer waits.
    let mut bind = b"\x05\x00\x0b\x03\x10\0\0\0\x48\0\0\0\x01\0\0\0\xb8\x10\xb8\x10\0\0\0\0\x01\0\0\0\0\0\x01\0".to_vec();
    bind.extend(b"\xc8\x4f\x32\x4b\x70\x16\xd3\x01\x12\x78\x5a\x47\xbf\x6e\xe1\x88\x03\0\0\0");
    bind.extend(b"\x04\x5d\x88\x8a\xeb\x1c\xc9\x11\x9f\xe8\x08\x00\x2b\x10\x48\x60\x02\0\0\0");
    assert_eq!(client.write(pipe, 0, &bind), NtStatus::SUCCESS);
    let (status, peeked) = call(&mut client, &control(Code::PIPE_PEEK, pipe, &[]));
    assert_eq!(status, NtStatus::BUFFER_OVERFLOW, "there is more than is told");
    let answer = client.read(pipe, 0, 4280).unwrap();
    assert_eq!(peeked, words(&[3, u32::try_from(answer.len()).unwrap(), 1, 0]));
    assert_eq!(answer[2], 12, "BIND_ACK");
    assert_eq!(good(&mut client, Code::PIPE_PEEK, pipe, &[]), words(&[3, 0, 0, 0]));
}
