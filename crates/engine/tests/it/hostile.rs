//! Clients that are broken, slow, greedy or hostile. Others do not notice.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use smb::crypto::TRANSFORM_ID;
use smb::wire::header::{Command, Header, PROTOCOL_ID};
use smb::wire::{bare, close, create, lock, query_directory, read, session_setup};
use smb::{Access, CreateOptions, Disposition, FileId, NtStatus, SessionId, ShareAccess};

use crate::client::{Client, Offer, request, utf16, write_request};
use crate::place::Place;

fn enter(place: &Place) -> Client {
    Client::enter(place.address(), Offer::default(), "alice", "files")
}

/// The server serves somebody else as if nothing had been.
#[track_caller]
fn serves(place: &Place) {
    let mut client = enter(place);
    let file = client.open("still there.txt");
    assert_eq!(client.write(file, 0, b"yes"), NtStatus::SUCCESS);
}

#[test]
fn what_is_no_smb_ends_its_connection_and_no_other() {
    let place = Place::new();
    let nonsense: [&[u8]; 9] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x81, 0, 0, 4, 1, 2, 3, 4],
        &[0, 0, 0, 0],
        &[0, 0, 0, 4, 1, 2, 3, 4],
        &[0, 0xff, 0xff, 0xff],
        &[[0, 0, 0, 64].as_slice(), &PROTOCOL_ID, &[0xff; 60]].concat(),
        &[[0, 0, 0, 80].as_slice(), &TRANSFORM_ID, &[0; 76]].concat(),
        &[[0, 0, 0, 40].as_slice(), b"\xffSMB\x72", &[0; 35]].concat(),
        &[[0, 0, 0, 40].as_slice(), b"\xfcSMB", &[0; 36]].concat(),
    ];
    for bytes in nonsense {
        let mut client = Client::dial(place.address());
        let _ = client.send_bytes(bytes);
        assert!(client.is_closed(), "{bytes:?}");
    }
    serves(&place);
}

#[test]
fn what_is_no_smb_ends_a_session_too() {
    let place = Place::new();
    for spoil in 0..5u8 {
        let mut client = enter(&place);
        let mut echo = request(Command::Echo, &bare::Request);
        let mut header = Header::parse(&echo).unwrap();
        header.message_id = smb::MessageId(client.next);
        header.session = client.session;
        match spoil {
            // An answer, a compound that points nowhere, into itself, or past the end, half a header.
            0 => header.flags |= smb::wire::header::Flags::RESPONSE,
            1 => header.next = 8,
            2 => header.next = 63,
            3 => header.next = 0xffff_fff8,
            _ => echo.truncate(65),
        }
        echo[..64].copy_from_slice(&header.to_bytes());
        client.send_frame(&echo);
        assert!(client.is_closed(), "{spoil}");
    }
    serves(&place);
}

#[test]
fn a_command_that_is_none_is_refused_and_no_more() {
    let place = Place::new();
    let mut client = enter(&place);
    for number in [19, 100, u16::MAX] {
        let answer = client.call(Command::Unknown(number), &bare::Request);
        assert_eq!(answer.status(), NtStatus::INVALID_PARAMETER);
    }
    for command in (1..=18).filter(|number| *number != 12) {
        // The body of a command that wants more than four bytes, or less sense.
        let answer = client.call(Command::from_wire(command), &bare::Request);
        if answer.status() == NtStatus::SUCCESS {
            assert!([2, 4, 13].contains(&command), "{command}");
            client = enter(&place);
        }
    }
    serves(&place);
}

#[test]
fn nobody_asks_for_anything_before_a_session() {
    let place = Place::new();
    let mut client = Client::connect(place.address(), Offer::default());
    for command in [Command::TreeConnect, Command::Create, Command::Read, Command::Logoff] {
        let answer = client.call(command, &bare::Request);
        assert_eq!(answer.status(), NtStatus::USER_SESSION_DELETED, "{command:?}");
    }
    let mut client = Client::dial(place.address());
    client.send_one(request(Command::Echo, &bare::Request));
    assert!(client.is_closed(), "not even that, before anything was negotiated");
}

#[test]
fn a_session_of_another_connection_is_none_of_ours() {
    let place = Place::new();
    let hers = enter(&place);
    let mut mallory = enter(&place);
    mallory.session = hers.session;
    mallory.tree = hers.tree;
    let answer = mallory.call(Command::TreeDisconnect, &bare::Request);
    assert_eq!(answer.status(), NtStatus::USER_SESSION_DELETED);
}

#[test]
fn a_connection_may_begin_so_many_set_ups_and_no_more() {
    let place = Place::new();
    let begun = |mut client: Client| {
        let token = smb::auth::ntlm::client::Client::negotiate();
        let body = session_setup::Request { token: &token, ..session_setup::Request::default() };
        let begin = |_: &usize| {
            client.session = SessionId(0);
            let status = client.call(Command::SessionSetup, &body).status();
            let refused = status == NtStatus::INSUFFICIENT_RESOURCES;
            assert!(refused || status == NtStatus::MORE_PROCESSING_REQUIRED, "{status}");
            !refused
        };
        (0..100).take_while(begin).count()
    };
    assert_eq!(begun(Client::connect(place.address(), Offer::default())), 16);
    assert_eq!(begun(enter(&place)), 64, "somebody has said who it is");
    serves(&place);
}

#[test]
fn a_session_has_so_many_pipes_and_no_more() {
    let place = Place::new();
    let mut client = Client::enter(place.address(), Offer::default(), "alice", "IPC$");
    let name = utf16("srvsvc");
    let open = |client: &mut Client| {
        let answer = client.call(Command::Create, &Client::create_body(&name));
        let pipe = create::Response::parse(&answer.message).map(|opened| opened.file);
        pipe.map_err(|_| answer.status())
    };
    let pipes: Vec<_> = (0..100).map_while(|_| open(&mut client).ok()).collect();
    assert_eq!(pipes.len(), 64);
    assert_eq!(open(&mut client), Err(NtStatus::INSUFFICIENT_RESOURCES));
    let close = close::Request { flags: close::Flags::empty(), file: pipes[30] };
    client.call(Command::Close, &close).good();
    assert!(open(&mut client).is_ok());
    assert_eq!(open(&mut client), Err(NtStatus::INSUFFICIENT_RESOURCES));
    serves(&place);
}

fn lock(file: FileId, flags: lock::Flags) -> Vec<u8> {
    let mut element = Vec::new();
    lock::Element { offset: 0, length: 10, flags }.encode(&mut element);
    let elements = lock::Elements::new(&element);
    request(Command::Lock, &lock::Request { sequence: 0, file, elements })
}

/// While `other` has a file locked, one lock of it waits, the next one is refused, and the first gets what it wants.
fn one_may_wait(client: &mut Client, file: FileId, other: &mut Client, name: &str) {
    let hers = other.open(name);
    let at_once = lock::Flags::EXCLUSIVE | lock::Flags::FAIL_IMMEDIATELY;
    other.send_one(lock(hers, at_once));
    other.receive().good();
    client.send_one(lock(file, lock::Flags::EXCLUSIVE));
    assert_eq!(client.receive().status(), NtStatus::PENDING);
    client.send_one(lock(file, lock::Flags::EXCLUSIVE));
    assert_eq!(client.receive().status(), NtStatus::INSUFFICIENT_RESOURCES);
    other.send_one(lock(hers, lock::Flags::UNLOCK));
    other.receive().good();
    client.receive().good();
    // Nothing waits now, and the next one may.
    other.send_one(lock(hers, lock::Flags::EXCLUSIVE));
    assert_eq!(other.receive().status(), NtStatus::PENDING);
    client.send_one(lock(file, lock::Flags::UNLOCK));
    client.receive().good();
    other.receive().good();
}

#[test]
fn a_session_has_so_many_channels_and_no_more() {
    let place = Place::with(|config| config.limits.channels = 2);
    let mut client = enter(&place);
    let mut more: Vec<_> =
        (0..2).map(|_| Client::connect(place.address(), Offer::default())).collect();
    assert_eq!(more[0].bind(&client, "alice", "pw"), Ok(()));
    assert_eq!(more[1].bind(&client, "alice", "pw"), Err(NtStatus::INSUFFICIENT_RESOURCES));
    client.call(Command::Echo, &bare::Request).good();
    more[0].call(Command::Echo, &bare::Request).good();
}

#[test]
fn limits_say_what_they_are() {
    let place = Place::with(|config| {
        config.limits.connections = 8;
        config.limits.sessions = 2;
        config.limits.trees = 3;
        config.limits.opens = 4;
        config.limits.waiting = 1;
    });
    let mut client = enter(&place);
    let files: Vec<_> = (0..4).map(|number| client.open(&format!("open {number}.txt"))).collect();
    let name = utf16("one too many.txt");
    let more = client.call(Command::Create, &Client::create_body(&name));
    assert_eq!(more.status(), NtStatus::INSUFFICIENT_RESOURCES);
    let mut second = enter(&place);
    one_may_wait(&mut client, files[0], &mut second, "open 0.txt");
    client.sign = true;
    assert_eq!(client.enter_tree("files"), Ok(()));
    assert_eq!(client.enter_tree("files"), Ok(()));
    assert_eq!(client.enter_tree("files"), Err(NtStatus::INSUFFICIENT_RESOURCES));
    let mut third = Client::connect(place.address(), Offer::default());
    assert_eq!(third.log_on("alice", "pw"), Err(NtStatus::REQUEST_NOT_ACCEPTED));
    let mut more: Vec<_> = (0..8).map(|_| Client::dial(place.address())).collect();
    more.iter_mut().for_each(|client| client.hurry(Duration::from_millis(60)));
    // Which ones of them is for the kernel to say, which spreads them over the loops.
    let mut refused =
        || more.iter_mut().filter_map(|client| client.is_closed().then_some(())).count();
    let (wanted, until) = (3 + 8 - 8, Instant::now() + Duration::from_secs(20));
    while refused() < wanted && Instant::now() < until {}
    // As many, also when each has had a little longer.
    assert_eq!(refused(), wanted, "closed at once");
    drop(more);
    client.call(Command::Echo, &bare::Request).good();
}

#[test]
fn a_client_has_so_many_credits_and_no_more() {
    // Less than the window of a connection, which is a power of two.
    const MOST: u64 = 100;
    let place = Place::with(|config| config.limits.credits = 100);
    let mut client = enter(&place);
    for _ in 0..10 {
        // It asks for 64 more, each time.
        client.call(Command::Echo, &bare::Request).good();
        assert!(client.credits - client.next <= MOST, "{} of {}", client.next, client.credits);
    }
    assert_eq!(client.credits - client.next, MOST, "all that may be had");
    // The last number that was granted, and the one behind it.
    let beyond = client.credits;
    client.next = beyond - 1;
    client.call(Command::Echo, &bare::Request).good();
    client.next = beyond;
    client.send_one(request(Command::Echo, &bare::Request));
    assert!(client.is_closed(), "a number that was not granted (MS-SMB2 3.3.5.2.3)");
    serves(&place);
}

#[test]
fn who_says_nothing_is_not_kept() {
    // Long enough for those who do say something, on a machine with other work.
    let place = Place::with(|config| config.limits.set_up = Duration::from_secs(5));
    let mut silent = Client::dial(place.address());
    let mut slow = Client::dial(place.address());
    let _ = slow.send_bytes(&[0, 0, 1]);
    let mut polite = Client::connect(place.address(), Offer::default());
    let mut known = enter(&place);
    assert!(silent.is_closed() && slow.is_closed() && polite.is_closed());
    known.call(Command::Echo, &bare::Request).good();
}

#[test]
fn who_never_reads_its_answers_is_not_read_from_either() {
    let place = Place::with(|config| config.limits.backlog = 4 << 20);
    let mut client = enter(&place);
    let file = client.open("large.bin");
    assert_eq!(client.write(file, 0, &vec![1; 1 << 20]), NtStatus::SUCCESS);
    client.hurry(Duration::from_millis(300));
    let body = read::Request { file, length: 1 << 20, ..read::Request::default() };
    let mut asked = 0;
    // 16 credits each; it has some hundreds.
    let enough = client.credits / 16 - 4;
    for _ in 0..enough.min(200) {
        client.send_one(request(Command::Read, &body));
        asked += 1;
    }
    // In the meantime, somebody else is served.
    serves(&place);
    client.hurry(Duration::from_secs(20));
    for _ in 0..asked {
        client.receive_last().good();
    }
}

/// How many READs the server has answered when it has stopped: it stands for half a second.
fn standstill(place: &Place) -> u64 {
    let answered = || {
        let commands = place.stat().commands;
        commands.iter().find(|sums| sums.command == "read").map_or(0, |sums| sums.served)
    };
    let (mut before, mut since) = (answered(), Instant::now());
    while since.elapsed() < Duration::from_millis(500) {
        let now = answered();
        if now != before {
            (before, since) = (now, Instant::now());
        }
    }
    before
}

/// Bytes of answers that wait when the server has stopped answering. A machine that has much to do may let it stand for
/// a while before: it is given time until there are so many.
fn at_a_standstill_with(place: &Place, wanted: usize) -> usize {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        standstill(place);
        let backlog = place.stat().backlog_bytes;
        if backlog >= wanted || Instant::now() >= until {
            return backlog;
        }
    }
}

#[test]
fn who_never_reads_shares_a_memory_that_has_an_end() {
    const MOST: usize = 8 << 20;
    const READ: u32 = 1 << 20;
    const EACH: u64 = 60;
    // None of them comes near to what one connection may have by itself.
    let place = Place::with(|config| {
        config.limits.memory = MOST;
        config.limits.backlog = 1 << 30;
    });
    let mut first = enter(&place);
    let file = first.open("large.bin");
    assert_eq!(first.write(file, 0, &vec![1; READ as usize]), NtStatus::SUCCESS);
    let mut greedy: Vec<_> = (0..4).map(|_| enter(&place)).collect();
    for client in &mut greedy {
        let file = client.open("large.bin");
        while client.credits < EACH * 16 + 128 {
            client.call(Command::Echo, &bare::Request).good();
        }
        // Signed, an answer is in memory; plain, it would be in its file.
        client.sign = true;
        let body = read::Request { file, length: READ, ..read::Request::default() };
        // 16 credits each.
        for _ in 0..EACH {
            client.send_one(request(Command::Read, &body));
        }
    }
    // Far more than there is, and than the kernel keeps in between: 10 MiB for each of them.
    let asked = EACH * greedy.len() as u64;
    let backlog = at_a_standstill_with(&place, MOST / 2);
    let before = standstill(&place);
    // Until then some may count twice, or one more on each loop that looked at the same time.
    let most = MOST + greedy.len() * (READ as usize + 4096);
    assert!(backlog <= most, "{backlog} bytes wait, of {MOST}");
    assert!(backlog > MOST / 2, "it is taken, as far as that goes");
    assert!(before < asked, "{before} of {asked} reads were answered");
    // Who takes what it asks for is served meanwhile.
    first.sign = true;
    for _ in 0..20 {
        assert_eq!(first.read(file, 0, READ).map(|data| data.len()), Ok(READ as usize));
    }
    // And nothing is lost to those who take it late.
    for client in &mut greedy {
        for _ in 0..EACH {
            client.receive_last().good();
        }
    }
    let until = Instant::now() + Duration::from_secs(20);
    while place.stat().backlog_bytes > 0 {
        assert!(Instant::now() < until, "{} bytes wait for nobody", place.stat().backlog_bytes);
    }
}

#[test]
fn who_never_ends_its_requests_shares_a_memory_that_has_an_end() {
    const MOST: usize = 32 << 20;
    const WRITE: usize = 8 << 20;
    const GREEDY: usize = 40;
    let place = Place::with(|config| config.limits.memory = MOST);
    let mut greedy: Vec<_> = (0..GREEDY).map(|_| enter(&place)).collect();
    for client in &mut greedy {
        while client.credits < 256 {
            client.call(Command::Echo, &bare::Request).good();
        }
        let file = client.open("never.bin");
        // Signed: plain, it would go straight to its file.
        client.sign = true;
        client.sends_at_most = Some(1 << 20);
        client.send_one(write_request(file, 0, &vec![1; WRITE]));
    }
    // The loops have buffers of 64 MiB each, which are no part of it.
    let held = || place.stat().backlog_bytes;
    let until = Instant::now() + Duration::from_secs(20);
    while held() < MOST / 2 {
        assert!(Instant::now() < until, "{} bytes are counted of {GREEDY} requests", held());
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(200));
    let most = MOST + MOST / 2 + 2 * (WRITE + 4096);
    assert!(held() <= most, "{} of {MOST}", held());
    // Somebody else sends as much at once, and is served.
    let from = std::net::Ipv4Addr::new(127, 0, 0, 2);
    let mut other = Client::enter_from(from, place.address(), "bob", "files");
    while other.credits < 256 {
        other.call(Command::Echo, &bare::Request).good();
    }
    let file = other.open("theirs.bin");
    other.sign = true;
    assert_eq!(other.write(file, 0, &vec![2; 1 << 20]), NtStatus::SUCCESS);
    drop(greedy);
    let until = Instant::now() + Duration::from_secs(20);
    while held() > 0 {
        assert!(Instant::now() < until, "{} bytes are of nobody", held());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn who_never_reads_on_many_connections_has_no_more_than_an_address_may() {
    const MOST: usize = 16 << 20;
    const READ: u32 = 256 << 10;
    const EACH: u64 = 24;
    const GREEDY: usize = 48;
    let place = Place::with(|config| {
        config.limits.memory = MOST;
        config.limits.backlog = 1 << 30;
    });
    let mut first = enter(&place);
    let file = first.open("large.bin");
    assert_eq!(first.write(file, 0, &vec![1; READ as usize]), NtStatus::SUCCESS);
    let come = |from: [u8; 4]| {
        let mut client = Client::enter_from(from.into(), place.address(), "bob", "files");
        let file = client.open("large.bin");
        while client.credits < EACH * 4 + 128 {
            client.call(Command::Echo, &bare::Request).good();
        }
        client.sign = true;
        (client, read::Request { file, length: READ, ..read::Request::default() })
    };
    let mut greedy: Vec<_> = (0..GREEDY).map(|_| come([127, 0, 0, 2])).collect();
    let mut other = come([127, 0, 0, 3]);
    // More than the kernel keeps in between.
    let hoard = |(client, body): &mut (Client, read::Request<'_>)| {
        for _ in 0..EACH {
            client.send_one(request(Command::Read, body));
        }
    };
    greedy.iter_mut().for_each(hoard);
    let before = at_a_standstill_with(&place, MOST / 4 * 3);
    // Each of the two loops may go one answer beyond, in each of the accounts.
    let most = MOST / 5 * 4 + MOST / 6 + 4 * (READ as usize + 4096);
    assert!(before <= most, "{before} bytes wait for one address");
    assert!(before > MOST / 4 * 3, "as far as that goes: {before}");
    // Another address has room for answers that wait: a third of what is left, which is less by what all those loops and
    // threads were making when the last answer of the greedy one was let in.
    hoard(&mut other);
    let more = at_a_standstill_with(&place, before + 2 * READ as usize) - before;
    assert!(more >= 2 * READ as usize, "{more} bytes wait for another address");
    // Nothing is lost to those who take it late, nor to those of them who had nothing yet.
    std::thread::scope(|scope| {
        for (client, _) in greedy.iter_mut().chain([&mut other]) {
            scope.spawn(|| (0..EACH).for_each(|_| drop(client.receive_last().good())));
        }
    });
    let until = Instant::now() + Duration::from_secs(20);
    while place.stat().backlog_bytes > 0 {
        assert!(Instant::now() < until, "{} bytes wait for nobody", place.stat().backlog_bytes);
    }
}

#[test]
fn who_opens_all_there_is_leaves_room_for_others() {
    const MOST: usize = 100;
    let place = Place::with(|config| config.limits.files = Some(MOST));
    // As many sessions as it likes, each with a number of its own.
    let mut greedy: Vec<_> = (0..8).map(|_| enter(&place)).collect();
    let mut opened = 0;
    let mut refused = 0;
    for (at, client) in greedy.iter_mut().enumerate() {
        for number in 0..30 {
            let name = utf16(&format!("{at} {number}.txt"));
            match client.call(Command::Create, &Client::create_body(&name)).status() {
                NtStatus::SUCCESS => opened += 1,
                NtStatus::INSUFFICIENT_RESOURCES => {
                    refused += 1;
                    assert!(!place.folder().join(format!("{at} {number}.txt")).exists());
                }
                other => panic!("{other}"),
            }
        }
    }
    assert_eq!(opened + refused, 240);
    // Each of the two loops may go one beyond, in each of the accounts.
    assert!(opened > MOST / 5 * 4 && opened <= MOST / 5 * 4 + MOST / 6 + 4, "{opened}");
    let from = std::net::Ipv4Addr::new(127, 0, 0, 2);
    let mut other = Client::enter_from(from, place.address(), "bob", "files");
    for number in 0..10 {
        other.open(&format!("theirs {number}.txt"));
    }
    // What is closed is there for others, also by the end of its connection.
    greedy.drain(..2);
    let until = Instant::now() + Duration::from_secs(20);
    let name = utf16("once more.txt");
    while greedy[0].call(Command::Create, &Client::create_body(&name)).status() != NtStatus::SUCCESS
    {
        assert!(Instant::now() < until, "what was closed is not given back");
    }
}

/// Descriptors of this process that lead below a folder.
fn descriptors_below(folder: &std::path::Path) -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let led = all.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    led.filter(|to| to != folder && to.starts_with(folder)).count()
}

/// A file that is made below a subfolder has that open as well, and a folder that is listed has itself open once more.
#[test]
fn what_is_opened_beside_a_file_is_counted_with_it() {
    const MOST: usize = 200;
    let place = Place::with(|config| config.limits.files = Some(MOST));
    std::fs::create_dir(place.folder().join("sub")).unwrap();
    let sub = utf16("sub");
    let folder = create::Request {
        access: Access::FILE_READ,
        share: ShareAccess::all(),
        disposition: Disposition::Open,
        options: CreateOptions::DIRECTORY_FILE,
        ..Client::create_body(&sub)
    };
    let list = |client: &mut Client, file| {
        let body = query_directory::Request {
            class: 12,
            pattern: &utf16("*"),
            output_max: 65_536,
            file,
            ..query_directory::Request::default()
        };
        client.call(Command::QueryDirectory, &body).status()
    };
    let mut statuses = Vec::new();
    let mut greedy: Vec<_> = (0..8).map(|_| enter(&place)).collect();
    for (at, client) in greedy.iter_mut().enumerate() {
        for number in 0..40 {
            let name = utf16(&format!("sub\\{at} {number}.txt"));
            statuses.push(client.call(Command::Create, &Client::create_body(&name)).status());
            let opened = client.call(Command::Create, &folder);
            statuses.push(opened.status());
            if opened.status() == NtStatus::SUCCESS {
                let file = create::Response::parse(&opened.message).unwrap().file;
                statuses.push(list(client, file));
            }
        }
    }
    let known = [NtStatus::SUCCESS, NtStatus::INSUFFICIENT_RESOURCES];
    assert!(statuses.iter().all(|status| known.contains(status)), "{statuses:?}");
    let held = descriptors_below(place.folder());
    // Each of the two loops may go one beyond, in each of the accounts, of which an open may have three.
    assert!(held <= MOST / 5 * 4 + MOST / 6 + 4 * 3, "{held}");
    assert!(held > MOST / 5 * 4, "and no less than there is: {held}");
    let from = std::net::Ipv4Addr::new(127, 0, 0, 2);
    let mut other = Client::enter_from(from, place.address(), "bob", "files");
    for number in 0..5 {
        other.open(&format!("sub\\theirs {number}.txt"));
    }
    let opened = other.call(Command::Create, &folder).good();
    let file = create::Response::parse(&opened.message).unwrap().file;
    assert_eq!(list(&mut other, file), NtStatus::SUCCESS);
}

#[test]
fn who_never_stops_asking_does_not_keep_others_waiting() {
    let place = Place::with(|config| config.vectors = 1);
    let address = place.address();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut greedy = Client::enter(address, Offer::default(), "bob", "files");
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for _ in 0..50 {
                        greedy.send_one(request(Command::Echo, &bare::Request));
                    }
                    for _ in 0..50 {
                        greedy.receive().good();
                    }
                }
            });
        }
        let mut client = enter(&place);
        let mut took = [Duration::ZERO; 50];
        for took in &mut took {
            let began = Instant::now();
            client.call(Command::Echo, &bare::Request).good();
            *took = began.elapsed();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        // Whoever is kept waiting is so each time; that a loop does not run now and then is the machine's doing.
        took.sort();
        assert!(took[25] < Duration::from_secs(2), "{took:?}");
    });
}

#[test]
fn connections_that_end_in_the_middle_leave_nothing() {
    let place = Place::with(|config| config.limits.connections = 16);
    for round in 0..100usize {
        let mut client = enter(&place);
        let file = client.open("half.bin");
        let write = write_request(file, 0, &vec![2; 200_000]);
        let mut message = write.clone();
        let mut header = Header::parse(&message).unwrap();
        header.message_id = smb::MessageId(client.next);
        header.session = client.session;
        header.credit_charge = 4;
        header.target = smb::wire::header::Target::Sync { process: 0, tree: client.tree };
        message[..64].copy_from_slice(&header.to_bytes());
        let len = u32::try_from(message.len()).unwrap().to_be_bytes();
        let frame = [&len[..], &message].concat();
        let cut = round * 2_000 % frame.len();
        let _ = client.send_bytes(&frame[..cut]);
        // More than 16 of these can only be had if those before have ended.
    }
    let until = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(place.address()).is_err() {
        assert!(Instant::now() < until);
    }
    serves(&place);
}
