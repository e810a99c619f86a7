//! What settings do to clients: each that is otherwise seen only in how it is written.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use engine::serve::config::Demand;
use smb::fscc::fsctl::Code;
use smb::session::Dialect;
use smb::wire::context::{DurableFlags, DurableRequest, Lease, LeaseV2, Reconnect, Requested};
use smb::wire::header::{Command, Flags};
use smb::wire::negotiate::{self, Capabilities};
use smb::wire::{bare, create, ioctl, query_directory};
use smb::{
    Access, Attributes, CreateOptions, FileId, Guid, LeaseKey, LeaseState, NtStatus, OplockLevel,
    ShareAccess,
};

use crate::client::{Answer, Client, Offer, request, utf16};
use crate::place::Place;

fn enter(place: &Place) -> Client {
    Client::enter(place.address(), Offer::default(), "alice", "files")
}

fn created(answer: &Answer) -> create::Response<'_> {
    create::Response::parse(&answer.message).unwrap()
}

/// What the server says that it can, to somebody who can everything; and the lengths of what it takes and gives at most.
fn offered(place: &Place, dialect: Dialect) -> (Capabilities, [u32; 3]) {
    let mut client = Client::dial(place.address());
    client.offer(Offer { dialects: vec![dialect], ..Offer::default() });
    let answer = client.negotiate().good();
    let said = negotiate::Response::parse(&answer.message).unwrap();
    (said.capabilities, [said.transact_max, said.read_max, said.write_max])
}

/// SMB 3 and what was before it, of which the newer of each.
const OLD_AND_NEW: [Dialect; 3] = [Dialect::Smb210, Dialect::Smb302, Dialect::Smb311];

#[test]
fn without_multichannel_a_session_has_one_connection() {
    for multichannel in [true, false] {
        let place = Place::with(|config| config.multichannel = multichannel);
        for dialect in OLD_AND_NEW {
            let can = offered(&place, dialect).0.contains(Capabilities::MULTI_CHANNEL);
            assert_eq!(can, multichannel && dialect != Dialect::Smb210, "{dialect}");
        }
        let mut first = enter(&place);
        first.sign = true;
        let mut second = Client::connect(place.address(), Offer::default());
        let bound = second.bind(&first, "alice", "pw");
        assert_eq!(bound.err(), (!multichannel).then_some(NtStatus::REQUEST_NOT_ACCEPTED));
        let query = ioctl::Request {
            code: Code::QUERY_NETWORK_INTERFACE_INFO.0,
            file: FileId::ALL_ONES,
            output_max: 4096,
            flags: ioctl::IS_FSCTL,
            ..ioctl::Request::default()
        };
        let told = first.call(Command::Ioctl, &query).status();
        let refused = NtStatus::INVALID_DEVICE_REQUEST;
        assert_eq!(told, if multichannel { NtStatus::SUCCESS } else { refused });
        first.call(Command::Echo, &bare::Request).good();
        assert_eq!(place.stat().sessions[0].channels.len(), if multichannel { 2 } else { 1 });
    }
}

fn all_of_a_lease(key: u8, version: u8) -> Requested<'static> {
    let state = LeaseState::READ | LeaseState::HANDLE | LeaseState::WRITE;
    let v2 = (version == 2).then(LeaseV2::default);
    let lease = Lease { key: LeaseKey([key; 16]), state, v2, ..Lease::default() };
    Requested { lease: Some(lease), ..Requested::default() }
}

/// What a client may cache of what it opens: the oplock that it is told, and the lease; and whether the open outlasts its
/// connection.
fn cached(
    client: &mut Client,
    name: &str,
    (oplock, contexts): (OplockLevel, Requested<'_>),
    options: CreateOptions,
) -> (OplockLevel, Option<LeaseState>, bool) {
    let name = utf16(name);
    let (access, share) = (Access::FILE_READ | Access::DELETE, ShareAccess::all());
    let contexts = Requested { durable: true, ..contexts };
    let body =
        create::Request { oplock, contexts, options, access, share, ..Client::create_body(&name) };
    client.send_one(request(Command::Create, &body));
    // Nobody has to be waited for.
    let answer = client.receive().good();
    let told = created(&answer);
    (told.oplock, told.contexts.lease.map(|lease| lease.state), told.contexts.durable)
}

#[test]
fn who_may_cache_nothing_is_promised_nothing() {
    let (file, folder) = (CreateOptions::NON_DIRECTORY_FILE, CreateOptions::DIRECTORY_FILE);
    let all = LeaseState::all();
    let of_folder = LeaseState::READ | LeaseState::HANDLE;
    for (leases, directory_leases) in [(true, true), (true, false), (false, true), (false, false)] {
        let place = Place::with(|config| {
            (config.leases, config.directory_leases) = (leases, directory_leases);
        });
        let both = leases && directory_leases;
        for dialect in OLD_AND_NEW {
            let can = offered(&place, dialect).0;
            assert_eq!(can.contains(Capabilities::LEASING), leases, "{dialect}");
            let newer = dialect != Dialect::Smb210;
            let folders = can.contains(Capabilities::DIRECTORY_LEASING);
            assert_eq!(folders, both && newer, "{dialect}");
        }
        let mut client = enter(&place);
        let lease = |key, version| (OplockLevel::Lease, all_of_a_lease(key, version));
        let oplock = (OplockLevel::Batch, Requested::default());
        let none = (OplockLevel::None, None, false);
        let told = |level, state| if leases { (level, state, true) } else { none };
        let got = cached(&mut client, "oplock", oplock, file);
        assert_eq!(got, told(OplockLevel::Batch, None));
        for version in [1, 2] {
            let name = format!("lease {version}");
            let got = cached(&mut client, &name, lease(version, version), file);
            assert_eq!(got, told(OplockLevel::Lease, Some(all)), "{name}");
        }
        let got = cached(&mut client, "folder", lease(3, 2), folder);
        let wanted = if both { (OplockLevel::Lease, Some(of_folder), false) } else { none };
        assert_eq!(got, wanted, "{leases}, {directory_leases}");
        if !leases {
            // Nobody is asked to let go of what was not promised.
            let offer = Offer { guid: Guid([8; 16]), ..Offer::default() };
            let mut bob = Client::enter(place.address(), offer, "bob", "files");
            for name in ["oplock", "lease 1", "lease 2"] {
                assert_eq!(cached(&mut bob, name, lease(4, 1), file), none, "{name}");
            }
            client.call(Command::Echo, &bare::Request).good();
            assert!(client.breaks.is_empty());
        }
    }
}

#[test]
fn no_more_is_read_written_and_listed_at_once_than_was_said() {
    const MOST: u32 = 128 << 10;
    let place = Place::with(|config| config.limits.payload = MOST);
    assert_eq!(offered(&place, Dialect::Smb311).1, [MOST; 3]);
    assert_eq!(offered(&place, Dialect::Smb210).1, [MOST; 3]);
    let mut client = enter(&place);
    let file = client.open("file");
    let all = vec![7; MOST as usize];
    assert_eq!(client.write(file, 0, &all), NtStatus::SUCCESS);
    assert!(client.read(file, 0, MOST) == Ok(all), "as much as was said");
    assert_eq!(client.read(file, 0, MOST + 1), Err(NtStatus::INVALID_PARAMETER));
    let folder = utf16("");
    let body = create::Request {
        access: Access::FILE_READ,
        options: CreateOptions::DIRECTORY_FILE,
        ..Client::create_body(&folder)
    };
    let root = created(&client.call(Command::Create, &body).good()).file;
    let pattern = utf16("*");
    for (output_max, status) in [(MOST + 1, NtStatus::INVALID_PARAMETER), (MOST, NtStatus::SUCCESS)]
    {
        let list = query_directory::Request {
            class: 12,
            flags: query_directory::Flags::empty(),
            index: 0,
            file: root,
            pattern: &pattern,
            output_max,
        };
        let answer = client.call(Command::QueryDirectory, &list);
        assert_eq!(answer.status(), status, "{output_max}");
    }
    assert_eq!(client.write(file, 0, &vec![8; MOST as usize + 1]), NtStatus::INVALID_PARAMETER);
    let on_disk = std::fs::read(place.folder().join("file")).unwrap();
    assert!(on_disk == vec![7; MOST as usize], "none of it was written");
}

/// `durable_time`: it is told to the client, kept for so long, and then the file is free again.
#[test]
fn a_client_that_is_away_has_its_file_for_as_long_as_was_said() {
    let durable = DurableRequest { create: Guid([9; 16]), ..DurableRequest::default() };
    let holds = |place: &Place| {
        let mut client = enter(place);
        let contexts = Requested { durable_v2: Some(durable), ..all_of_a_lease(1, 2) };
        let name = utf16("held");
        let body =
            create::Request { oplock: OplockLevel::Lease, contexts, ..Client::create_body(&name) };
        let answer = client.call(Command::Create, &body).good();
        let told = created(&answer);
        (client.session, told.file, told.contexts.durable_v2.map(|granted| granted.timeout_ms))
    };
    let comes_back = |place: &Place, session, file| {
        let mut again = Client::connect(place.address(), Offer::default());
        again.log_on_after("alice", session).unwrap();
        again.sign = true;
        again.enter_tree("files").unwrap();
        let reconnect = Reconnect { file, create: durable.create, flags: DurableFlags::empty() };
        let contexts = Requested { reconnect_v2: Some(reconnect), ..all_of_a_lease(1, 2) };
        let name = utf16("held");
        let body =
            create::Request { oplock: OplockLevel::Lease, contexts, ..Client::create_body(&name) };
        again.call(Command::Create, &body).status()
    };
    let place = Place::with(|config| config.limits.durable = Duration::from_millis(300));
    let (session, file, told) = holds(&place);
    assert_eq!(told, Some(300));
    let until = Instant::now() + Duration::from_secs(20);
    while place.counts().opens > 0 {
        assert!(Instant::now() < until, "it is held for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(comes_back(&place, session, file), NtStatus::OBJECT_NAME_NOT_FOUND);
    // And for as long as that it waits: a minute, if nothing is said.
    let place = Place::new();
    let (session, file, told) = holds(&place);
    assert_eq!(told, Some(60_000));
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(comes_back(&place, session, file), NtStatus::SUCCESS);
}

/// SMB2 has no server that does not sign (MS-SMB2 3.3.5.4): who signs is answered so, and who does not is not, unless it is
/// required.
#[test]
fn signing_is_for_the_client_to_say_unless_it_is_required() {
    for demand in [Demand::Off, Demand::Offered, Demand::Required] {
        let place = Place::with(|config| config.signing = demand);
        let mut client = Client::dial(place.address());
        let answer = client.negotiate().good();
        let said = negotiate::Response::parse(&answer.message).unwrap().security_mode;
        let required = demand == Demand::Required;
        assert!(said.contains(negotiate::SecurityMode::SIGNING_ENABLED), "{demand}");
        let must = said.contains(negotiate::SecurityMode::SIGNING_REQUIRED);
        assert_eq!(must, required, "{demand}");
        client.log_on("alice", "pw").unwrap();
        for sign in [true, false] {
            client.sign = sign;
            let answer = client.call(Command::Echo, &bare::Request);
            let refused = required && !sign;
            let wanted = if refused { NtStatus::ACCESS_DENIED } else { NtStatus::SUCCESS };
            assert_eq!(answer.status(), wanted, "{demand}, {sign}");
            let signed = answer.header.flags.contains(Flags::SIGNED);
            assert_eq!(signed, sign || required, "{demand}, {sign}");
        }
    }
}

/// The bits that the process gives to nothing that it makes.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

/// `file_mode`, `folder_mode`, and `hide_dot_files`, which a client sees in the attributes.
#[test]
fn what_is_new_has_the_modes_of_its_share() {
    for (file_mode, folder_mode, hide) in [(0o640, 0o750, true), (0o604, 0o705, false)] {
        let place = Place::with(|config| {
            let share = &mut config.shares[0];
            (share.file_mode, share.folder_mode) = (file_mode, folder_mode);
            share.hide_dot_files = hide;
        });
        let mut client = enter(&place);
        let mut make = |name: &str, options| {
            let name = utf16(name);
            let body = create::Request {
                access: Access::FILE_READ,
                options,
                ..Client::create_body(&name)
            };
            created(&client.call(Command::Create, &body).good()).attributes
        };
        for (options, names, mode) in [
            (CreateOptions::NON_DIRECTORY_FILE, ["file", ".file"], file_mode),
            (CreateOptions::DIRECTORY_FILE, ["folder", ".folder"], folder_mode),
        ] {
            for name in names {
                let hidden = make(name, options).contains(Attributes::HIDDEN);
                assert_eq!(hidden, hide && name.starts_with('.'), "{name}");
                let on_disk = place.folder().join(name).metadata().unwrap().permissions();
                assert_eq!(on_disk.mode() & 0o7777, mode & !umask(), "{name}");
            }
        }
    }
}

#[test]
fn a_share_may_be_closed_to_guests() {
    let place = Place::with(|config| {
        config.guest = true;
        config.shares[1].encrypted = false;
        config.shares[1].guest = false;
    });
    let mut guest = Client::connect(place.address(), Offer::default());
    guest.log_on("mallory", "whatever").unwrap();
    assert_eq!(guest.enter_tree("files"), Ok(()));
    assert_eq!(guest.enter_tree("secret"), Err(NtStatus::ACCESS_DENIED));
    let mut alice = Client::connect(place.address(), Offer::default());
    alice.log_on("alice", "pw").unwrap();
    alice.sign = true;
    assert_eq!(alice.enter_tree("secret"), Ok(()));
}

/// The sockets that listen at a port of this host (`/proc/net/tcp`: the local address, and the state 0A).
fn listening(port: u16) -> usize {
    let all = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let local = format!(":{port:04X}");
    let listens = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        let at = fields.next().is_some_and(|address| address.ends_with(&local));
        at && fields.nth(1) == Some("0A")
    };
    all.lines().filter(listens).count()
}

/// Over which the kernel spreads connections (SO_REUSEPORT).
#[test]
fn each_loop_has_a_queue_of_connections_of_its_own() {
    for vectors in [1, 3] {
        let place = Place::with(|config| config.vectors = vectors);
        assert_eq!(listening(place.address().port()), vectors);
        let mut clients: Vec<_> = (0..2 * vectors).map(|_| enter(&place)).collect();
        let mut loops: Vec<_> =
            place.stat().sessions.iter().map(|session| session.channels[0].vector).collect();
        loops.sort_unstable();
        let twice: Vec<_> = (0..vectors).flat_map(|vector| [vector, vector]).collect();
        assert!(loops == twice, "{loops:?}");
        for client in &mut clients {
            client.call(Command::Echo, &bare::Request).good();
        }
    }
}
