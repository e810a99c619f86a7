use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, mpsc};
use std::task::Poll;
use std::time::Instant;

use smb::crypto::{ABREAST, SecretKey};
use smb::wire::Encode;
use smb::wire::bare;
use smb::wire::header::{Command, HEADER_LEN, Target};
use smb::wire::{lock, read, write};
use smb::{NtStatus, TreeId};

use super::super::open::Open;
use super::super::runtime::{Config, Runtime};
use super::super::server::tests::opened;
use super::gathered::Gathered;
use super::*;

/// Of a connection whose task ends by a panic.
#[test]
fn a_channel_whose_task_panics_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (server, session, open) = opened(folder.path());
    let server = Arc::new(server);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // What never comes is to be seen as such.
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (socket, peer) = listener.accept().unwrap();
    let given = Mutex::new(Some((server.clone(), session, socket)));
    let (done, ended) = mpsc::channel();
    let config = Config { vectors: 1, ..Config::default() };
    let runtime = Runtime::start(&config, move |_| {
        let (taken, done) = (given.lock().unwrap().take(), done.clone());
        async move {
            let (server, session, socket) = taken.unwrap();
            let task = runtime::spawn::<()>(async move {
                let socket = Socket::new(socket.into()).unwrap();
                let mut serving = std::pin::pin!(Channel::serve(server, socket, peer));
                let polled =
                    std::future::poll_fn(|context| Poll::Ready(serving.as_mut().poll(context)));
                assert!(polled.await.is_pending());
                let channel = CHANNELS.with_borrow(|all| all.values().next().cloned()).unwrap();
                session.state().channels.push(channel.shared.clone());
                let bound = Bound::new(session.clone(), None);
                channel.sessions.borrow_mut().insert(session.id, Rc::new(bound));
                drop(channel);
                panic!("meant: what a mistake of ours would be");
            });
            let lost = task.await.is_err();
            done.send((lost, CHANNELS.with_borrow(HashMap::len))).unwrap();
        }
    });
    assert_eq!(ended.recv_timeout(Duration::from_secs(60)), Ok((true, 0)));
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "its socket is shut");
    assert!(open.is_closed(), "its session has ended");
    assert_eq!((server.counts().opens, server.counts().files), (0, 0));
    assert_eq!(server.connections().0, 0);
    runtime.unwrap().stop(Duration::ZERO);
}

/// What is negotiated with those who come without negotiating.
fn agreed() -> Agreed {
    Agreed {
        dialect: Dialect::Smb311,
        client: Guid::default(),
        client_mode: SecurityMode::empty(),
        client_capabilities: Capabilities::empty(),
        mode: SecurityMode::empty(),
        capabilities: Capabilities::LARGE_MTU,
        cipher: None,
        signing: SigningAlgorithm::AesCmac,
        posix: false,
        payload: 1 << 20,
        preauth: PreauthHash::default(),
    }
}

/// Sends a request and takes its answer: what is in it from the header on.
fn ask(client: &mut TcpStream, message: &[u8]) -> Vec<u8> {
    client.write_all(&u32::try_from(message.len()).unwrap().to_be_bytes()).unwrap();
    client.write_all(message).unwrap();
    let mut len = [0; 4];
    client.read_exact(&mut len).expect("an answer, though somebody holds a lock");
    let mut answer = vec![0; u32::from_be_bytes(len) as usize];
    client.read_exact(&mut answer).unwrap();
    answer
}

/// A loop that serves one connection, which is a channel of the session, and the client's end of that.
fn serving(server: &Arc<Server>, session: &Arc<Session>) -> (Runtime, TcpStream) {
    let (runtime, client, _) = serving_socket(server, session);
    (runtime, client)
}

/// The same, and the server's end, too.
fn serving_socket(server: &Arc<Server>, session: &Arc<Session>) -> (Runtime, TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (socket, peer) = listener.accept().unwrap();
    let (ready, is_ready) = mpsc::channel();
    let ours = socket.try_clone().unwrap();
    let given = Mutex::new(Some((server.clone(), session.clone(), socket, ready)));
    let config = Config { vectors: 1, ..Config::default() };
    let runtime = Runtime::start(&config, move |_| {
        let taken = given.lock().unwrap().take();
        async move {
            let (server, session, socket, ready) = taken.unwrap();
            let socket = Socket::new(socket.into()).unwrap();
            let mut serving = std::pin::pin!(Channel::serve(server, socket, peer));
            let polled =
                std::future::poll_fn(|context| Poll::Ready(serving.as_mut().poll(context)));
            assert!(polled.await.is_pending());
            let channel = CHANNELS.with_borrow(|all| all.values().next().cloned()).unwrap();
            assert!(channel.agreed.set(agreed()).is_ok());
            let bound = Bound::new(session.clone(), None);
            channel.sessions.borrow_mut().insert(session.id, Rc::new(bound));
            channel.window.borrow_mut().grant(512, 1, Grant::AsAsked, 512);
            drop(channel);
            ready.send(()).unwrap();
            serving.await;
        }
    });
    // Before that it would be a request of nobody.
    is_ready.recv().unwrap();
    (runtime.unwrap(), client, ours)
}

#[test]
fn who_is_silent_is_found_dead_sooner_than_who_takes_no_answers() {
    const LEN: u32 = 64 << 10;
    let folder = tempfile::tempdir().unwrap();
    let (mut server, session, open) = opened(folder.path());
    // All that is asked for may wait: who takes nothing is not to be cut off yet.
    server.config.limits.backlog = 1 << 30;
    std::fs::write(folder.path().join("file"), vec![7; LEN as usize]).unwrap();
    let (runtime, mut client, ours) = serving_socket(&Arc::new(server), &session);
    let becomes = |unheard| {
        let began = Instant::now();
        while sockopt::tcp_user_timeout(&ours) != Ok(unheard) {
            assert!(began.elapsed() < Duration::from_secs(60), "it is not {unheard} ms");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    becomes(UNHEARD_MS);
    becomes(UNHEARD_IN_SILENCE_MS);
    for number in 0..200 {
        let body = read::Request { file: open.file_id, length: LEN, ..Default::default() };
        client.write_all(&frame_of(&open, Command::Read, number, 1, &body)).unwrap();
    }
    becomes(UNHEARD_MS);
    // Nothing moves, and it stays so.
    std::thread::sleep(3 * LOOK_EVERY);
    assert_eq!(sockopt::tcp_user_timeout(&ours), Ok(UNHEARD_MS));
    drop((client, ours));
    runtime.stop(Duration::ZERO);
}

#[test]
fn who_takes_no_answers_is_cut_off_and_the_log_says_so() {
    const LEN: u32 = 64 << 10;
    let folder = tempfile::tempdir().unwrap();
    let (mut server, session, open) = opened(folder.path());
    server.config.limits.backlog = 1 << 20;
    std::fs::write(folder.path().join("file"), vec![7; LEN as usize]).unwrap();
    let (runtime, mut client) = serving(&Arc::new(server), &session);
    let us = client.local_addr().unwrap();
    // More than the buffers of two sockets hold.
    for number in 0..500 {
        let header = Header {
            message_id: MessageId(number),
            session: session.id,
            credits: 1,
            target: Target::Sync { process: 0, tree: open.tree.id },
            ..Header::request(Command::Read)
        };
        let mut message = Vec::new();
        let start = header.encode(&mut message);
        let body = read::Request { file: open.file_id, length: LEN, ..Default::default() };
        body.encode(&mut message, start);
        client.write_all(&u32::try_from(message.len()).unwrap().to_be_bytes()).unwrap();
        client.write_all(&message).unwrap();
    }
    let line = format!("{us}: connection ended: it takes no answers");
    let until = Instant::now() + Duration::from_secs(60);
    while !super::super::log::SAID.lock().unwrap().contains(&line) {
        assert!(Instant::now() < until, "nobody says: {line}");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(open.is_closed(), "what it had open is left");
    runtime.stop(Duration::ZERO);
}

/// A request about an open, in its frame.
fn frame_of(
    open: &Open,
    command: Command,
    number: u64,
    charge: u16,
    body: &impl Encode,
) -> Vec<u8> {
    let header = Header {
        message_id: MessageId(number),
        session: open.session,
        credit_charge: charge,
        credits: charge,
        target: Target::Sync { process: 0, tree: open.tree.id },
        ..Header::request(command)
    };
    let mut frame = vec![0; 4];
    let start = header.encode(&mut frame);
    body.encode(&mut frame, start);
    framed(frame)
}

/// With its length, of a frame with room for that.
fn framed(mut frame: Vec<u8>) -> Vec<u8> {
    let len = u32::try_from(frame.len() - 4).unwrap().to_be_bytes();
    frame[..4].copy_from_slice(&len);
    frame
}

/// The next answer, from the header on.
fn answer(client: &mut TcpStream) -> Vec<u8> {
    let mut len = [0; 4];
    client.read_exact(&mut len).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(len) as usize];
    client.read_exact(&mut answer).unwrap();
    answer
}

/// A lock that another one of the same open is in the way of waits for ever, and so does whatever is behind it in its frame.
#[test]
fn requests_that_wait_keep_no_more_than_there_is_memory() {
    const JUNK: usize = 30_000;
    const COUNT: usize = 150;
    let folder = tempfile::tempdir().unwrap();
    let (mut server, session, open) = opened(folder.path());
    server.config.limits.memory = 1 << 20;
    let server = Arc::new(server);
    let (runtime, mut client) = serving(&server, &session);
    let mut element = Vec::new();
    let flags = lock::Flags::EXCLUSIVE;
    lock::Element { offset: 0, length: 10, flags }.encode(&mut element);
    let elements = lock::Elements::new(&element);
    let body = lock::Request { file: open.file_id, elements, sequence: 0 };
    let lock = |number| frame_of(&open, Command::Lock, number, 1, &body);
    client.write_all(&lock(0)).unwrap();
    assert_eq!(Header::parse(&answer(&mut client)).unwrap().status, NtStatus::SUCCESS);
    let mut waiting = 0;
    for number in 1..=COUNT {
        let mut large = lock(number as u64);
        large.resize(large.len() + JUNK, 0);
        client.write_all(&framed(large)).unwrap();
        match Header::parse(&answer(&mut client)).unwrap().status {
            NtStatus::PENDING => waiting += 1,
            refused => assert_eq!(refused, NtStatus::INSUFFICIENT_RESOURCES, "{number}"),
        }
    }
    let kept = waiting * JUNK;
    assert!(kept > 1 << 19 && kept < (1 << 20) + JUNK, "{waiting} of {COUNT}");
    assert!(server.backlog().bytes() >= kept, "it is told");
    // Those that are as they should be wait all the same.
    client.write_all(&lock(COUNT as u64 + 1)).unwrap();
    assert_eq!(Header::parse(&answer(&mut client)).unwrap().status, NtStatus::PENDING);
    drop(client);
    runtime.stop(Duration::from_secs(20));
    assert_eq!(server.backlog().bytes(), 0);
}

/// Of a request that has come in two pieces, of which the second may never come.
#[test]
fn a_small_request_that_is_not_all_here_takes_no_buffer() {
    let folder = tempfile::tempdir().unwrap();
    let (server, session, open) = opened(folder.path());
    let (runtime, mut client) = serving(&Arc::new(server), &session);
    let mut first = frame_of(&open, Command::Echo, 0, 1, &bare::Request);
    first.resize(first.len() + 20_000, 0);
    let first = framed(first);
    let (half, rest) = first.split_at(10_000);
    client.write_all(half).unwrap();
    let buffers = || {
        let (tell, told) = mpsc::channel();
        runtime.post(VectorId(0), move || {
            tell.send(POOLS.with(|pools| pools.buffers.bytes())).unwrap();
        });
        told.recv_timeout(Duration::from_secs(60)).unwrap()
    };
    let received = || {
        let (tell, told) = mpsc::channel();
        runtime.post(VectorId(0), move || {
            let bytes: u64 = CHANNELS
                .with_borrow(|all| all.values().map(|channel| channel.shared.bytes().0).sum());
            tell.send(bytes).unwrap();
        });
        told.recv_timeout(Duration::from_secs(60)).unwrap()
    };
    let until = Instant::now() + Duration::from_secs(60);
    while received() < half.len() as u64 {
        assert!(Instant::now() < until, "it does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(buffers(), 0);
    client.write_all(rest).unwrap();
    assert_eq!(Header::parse(&answer(&mut client)).unwrap().status, NtStatus::SUCCESS);
    assert_eq!(buffers(), 0);
    runtime.stop(Duration::ZERO);
}

/// Of a WRITE whose data goes from the socket to the file, a part of which is there.
#[test]
fn a_write_that_has_begun_when_the_server_stops_is_done_and_answered() {
    const LEN: usize = 400_000;
    let folder = tempfile::tempdir().unwrap();
    let (server, session, open) = opened(folder.path());
    let (runtime, mut client) = serving(&Arc::new(server), &session);
    let data = vec![7; LEN];
    let mut frame = vec![0; 4];
    let header = Header {
        session: session.id,
        credit_charge: 7,
        target: Target::Sync { process: 0, tree: open.tree.id },
        ..Header::request(Command::Write)
    };
    let start = header.encode(&mut frame);
    let body = write::Request { file: open.file_id, ..write::Request::default() };
    body.encode_with(&mut frame, start, &[], &data);
    let frame = framed(frame);
    let (half, rest) = frame.split_at(LEN / 2);
    client.write_all(half).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let stopping = std::thread::spawn(move || runtime.stop(Duration::from_secs(60)));
    std::thread::sleep(Duration::from_millis(300));
    client.write_all(rest).unwrap();
    // It is not to be served any more.
    client.write_all(&frame_of(&open, Command::Echo, 7, 1, &bare::Request)).unwrap();
    let done = answer(&mut client);
    assert_eq!(Header::parse(&done).unwrap().status, NtStatus::SUCCESS);
    assert_eq!(write::Response::parse(&done).unwrap().count as usize, LEN);
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "an end of file");
    stopping.join().unwrap();
}

/// It has not taken its answers yet, and asks for more.
#[test]
fn a_client_that_asks_still_when_the_server_stops_gets_all_answers_to_what_it_has_asked() {
    const LEN: u32 = 512 << 10;
    const COUNT: u64 = 6;
    let folder = tempfile::tempdir().unwrap();
    let (server, session, open) = opened(folder.path());
    std::fs::write(folder.path().join("file"), vec![7; LEN as usize]).unwrap();
    let (runtime, mut client) = serving(&Arc::new(server), &session);
    for number in 0..COUNT {
        let body = read::Request { file: open.file_id, length: LEN, ..Default::default() };
        client.write_all(&frame_of(&open, Command::Read, 8 * number, 8, &body)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(300));
    let stopping = std::thread::spawn(move || runtime.stop(Duration::from_secs(60)));
    std::thread::sleep(Duration::from_millis(300));
    for number in 0..COUNT {
        client
            .write_all(&frame_of(&open, Command::Echo, 8 * COUNT + number, 1, &bare::Request))
            .unwrap();
        let answer = answer(&mut client);
        let response = read::Response::parse(&answer).unwrap();
        assert!(response.data.len() == LEN as usize && response.data.iter().all(|b| *b == 7));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(client.read(&mut [0]).unwrap(), 0, "an end of file");
    stopping.join().unwrap();
}

/// Whatever the other channels of a session do with it, and others with the file: who holds the lock of the session's
/// state, of the open's or of the file's keeps no READ or WRITE waiting.
#[test]
fn reads_and_writes_take_no_lock_that_channels_share() {
    let folder = tempfile::tempdir().unwrap();
    let (server, session, open) = opened(folder.path());
    let server = Arc::new(server);
    let (runtime, mut client) = serving(&server, &session);
    let mut next = 0;
    let mut header = |command, charge| {
        let header = Header {
            message_id: MessageId(next),
            session: session.id,
            credit_charge: charge,
            credits: 64,
            target: Target::Sync { process: 0, tree: open.tree.id },
            ..Header::request(command)
        };
        next += u64::from(charge);
        header
    };
    let mut both = |large: bool| {
        // What is in the message, and what goes from the socket to the file.
        let data = vec![7; if large { 200_000 } else { 100 }];
        let charge = if large { 4 } else { 1 };
        let mut message = Vec::new();
        let start = header(Command::Write, charge).encode(&mut message);
        let file = open.file_id;
        let body = write::Request { file, ..write::Request::default() };
        body.encode_with(&mut message, start, &[], &data);
        let answer = ask(&mut client, &message);
        assert_eq!(Header::parse(&answer).unwrap().status, NtStatus::SUCCESS);
        let mut message = Vec::new();
        let start = header(Command::Read, charge).encode(&mut message);
        let length = u32::try_from(data.len()).unwrap();
        read::Request { file, length, ..Default::default() }.encode(&mut message, start);
        let answer = ask(&mut client, &message);
        assert_eq!(Header::parse(&answer).unwrap().status, NtStatus::SUCCESS);
        assert!(read::Response::parse(&answer).unwrap().data == data);
    };
    // The first look-up is in the tables of the session.
    both(false);
    server.with_file(open.key, |_, _| {
        let _held = (session.state(), open.state());
        both(false);
        both(true);
    });
    drop(client);
    runtime.stop(Duration::ZERO);
}

/// What a channel has looked up is not what it was: the tree ends, the open is closed or becomes another.
#[test]
fn what_a_channel_remembers_of_its_session_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let (server, session, open) = opened(folder.path());
    let (recent, volatile) = (Recent::default(), open.file_id.volatile);
    let found = |recent: &Recent| recent.open(&session, volatile);
    for _ in 0..2 {
        assert!(found(&recent).is_some_and(|found| Arc::ptr_eq(&found, &open)));
        assert!(recent.tree(&session, open.tree.id).is_some());
    }
    assert!(recent.open(&session, volatile + 8).is_none(), "of another number at its place");
    assert!(recent.tree(&session, TreeId(open.tree.id.0 + 1)).is_none());
    session.state().end_trees(|_| true);
    assert!(recent.tree(&session, open.tree.id).is_none(), "though its opens have it still");
    // Another value of the same number, as when a file becomes a link or its client comes back.
    session.state().opens.clear();
    assert!(found(&recent).is_some(), "nobody has said that it is closed");
    server.close(&open);
    assert!(found(&recent).is_none());
    drop(open);
    assert_eq!(server.counts().opens, 0);
}

/// A request that is as long as `len` says, signed: an ECHO, or a WRITE to a file that is not open.
fn request(
    command: Command,
    signer: &Signer,
    session: SessionId,
    number: u64,
    len: usize,
) -> Vec<u8> {
    let header = Header {
        message_id: MessageId(number),
        session,
        credit_charge: 1,
        ..Header::request(command)
    };
    let mut bytes = Vec::new();
    let start = header.encode(&mut bytes);
    if command == Command::Write {
        let data = vec![0; len - write::HEAD_LEN];
        write::Request::default().encode_with(&mut bytes, start, &[], &data);
    } else {
        bare::Request.encode(&mut bytes, start);
    }
    bytes.resize(len, 0);
    signer.sign(&mut bytes).unwrap();
    bytes
}

/// Of requests that are verified together one is changed, at each place; the others are served, in order, and it is
/// refused. Nothing is served before there are as many as go together, or it is said that no more will come, or one
/// comes that is no WRITE: it may change what others are judged by before they are served.
#[test]
fn large_signed_requests_are_gathered_and_one_that_is_wrong_is_refused_alone() {
    const LEN: usize = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let (server, session, _open) = opened(folder.path());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let (socket, peer) = listener.accept().unwrap();
    let given = Mutex::new(Some((Arc::new(server), session, socket)));
    let (done, ended) = mpsc::channel();
    let config = Config { vectors: 1, ..Config::default() };
    let runtime = Runtime::start(&config, move |_| {
        let (taken, done) = (given.lock().unwrap().take(), done.clone());
        async move {
            let (server, session, socket) = taken.unwrap();
            let socket = Socket::new(socket.into()).unwrap();
            let mut serving = std::pin::pin!(Channel::serve(server, socket, peer));
            let polled =
                std::future::poll_fn(|context| Poll::Ready(serving.as_mut().poll(context)));
            assert!(polled.await.is_pending());
            let channel = CHANNELS.with_borrow(|all| all.values().next().cloned()).unwrap();
            let key = SecretKey::new(&[7; 16]);
            let signer = Arc::new(Signer::new(SigningAlgorithm::AesCmac, &key));
            assert!(channel.agreed.set(agreed()).is_ok());
            let bound = Bound::new(session.clone(), Some(signer.clone()));
            channel.sessions.borrow_mut().insert(session.id, Rc::new(bound));
            channel.window.borrow_mut().grant(64, 1, Grant::AsAsked, 64);
            let mut gathered = Gathered::default();
            let mut number = 0;
            for count in [1, 2, ABREAST, ABREAST + 2] {
                for wrong in 0..=count {
                    let before = channel.output.pushed();
                    for at in 0..count {
                        let mut message = request(Command::Write, &signer, session.id, number, LEN);
                        if at == wrong {
                            message[LEN - 1] ^= 1;
                        }
                        number += 1;
                        let mut frame = channel.pools().buffers.lend(LEN).unwrap();
                        frame.copy_from_slice(&message);
                        gathered.take(&channel, frame);
                        let whole = (at + 1) / ABREAST;
                        assert_eq!(channel.output.pushed() > before, whole > 0, "{at} of {count}");
                        channel.window.borrow_mut().grant(1, 1, Grant::AsAsked, 64);
                    }
                    let before = channel.output.pushed();
                    channel.window.borrow_mut().grant(1, 1, Grant::AsAsked, 64);
                    let echo = request(Command::Echo, &signer, session.id, number, LEN);
                    let mut frame = channel.pools().buffers.lend(LEN).unwrap();
                    frame.copy_from_slice(&echo);
                    gathered.take(&channel, frame);
                    assert!(channel.output.pushed() > before);
                    number += 1;
                }
            }
            done.send(number).unwrap();
            // The client sees no end before it has all.
            runtime::sleep(Duration::from_secs(60)).await;
        }
    });
    let all = ended.recv_timeout(Duration::from_secs(60)).unwrap();
    let mut number = 0;
    for count in [1, 2, ABREAST, ABREAST + 2] {
        for wrong in 0..=count {
            for at in 0..=count {
                let mut len = [0; 4];
                client.read_exact(&mut len).unwrap();
                let mut message = vec![0; u32::from_be_bytes(len) as usize];
                client.read_exact(&mut message).unwrap();
                let header = Header::parse(&message[..HEADER_LEN]).unwrap();
                let wanted = match at {
                    _ if at == count => NtStatus::SUCCESS,
                    _ if at == wrong => NtStatus::ACCESS_DENIED,
                    _ => NtStatus::NETWORK_NAME_DELETED,
                };
                assert_eq!(header.message_id, MessageId(number));
                assert_eq!(header.status, wanted, "{at} of {count}, of which {wrong} is wrong");
                number += 1;
            }
        }
    }
    assert_eq!(number, all);
    runtime.unwrap().stop(Duration::ZERO);
}
