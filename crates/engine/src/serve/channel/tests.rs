use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, mpsc};
use std::task::Poll;

use super::super::runtime::{Config, Runtime};
use super::super::server::tests::opened;
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
