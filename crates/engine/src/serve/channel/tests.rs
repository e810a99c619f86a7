use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, mpsc};
use std::task::Poll;

use smb::NtStatus;
use smb::crypto::{ABREAST, SecretKey};
use smb::wire::Encode;
use smb::wire::bare;
use smb::wire::header::{Command, HEADER_LEN};
use smb::wire::write;

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
                let bound = Bound { session: session.clone(), signer: None };
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
            let agreed = Agreed {
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
            };
            assert!(channel.agreed.set(agreed).is_ok());
            let bound = Bound { session: session.clone(), signer: Some(signer.clone()) };
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
