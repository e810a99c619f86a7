//! Two processes' worlds in this one, and a third process that writes to the table of offers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use sys::sync::AtomicU32;

use super::*;
use crate::Limits;
use crate::conn::{BELL, options};

/// One end of a connection.
pub(in crate::conn) struct End {
    pub(in crate::conn) w: &'static World,
    pub(in crate::conn) conn: &'static Conn,
    pub(in crate::conn) stream: TcpStream,
}

impl End {
    pub(in crate::conn) fn fd(&self) -> i32 {
        self.stream.as_raw_fd()
    }

    pub(in crate::conn) fn settle(&self, data: bool) -> bool {
        self.conn.settle(self.w, self.fd(), data)
    }

    /// The word of its offer, as a number.
    fn word(&self) -> u64 {
        self.offer().load(Ordering::Relaxed)
    }

    /// Somebody writes to the word of its offer.
    fn overwrite(&self, with: u64) {
        self.offer().store(with, Ordering::Relaxed);
    }

    fn offer(&self) -> &sys::sync::AtomicU64 {
        self.w.board.map.offer_word(self.conn.offer.load(Ordering::Relaxed))
    }
}

fn mapped(port: u16) -> SocketAddrV6 {
    SocketAddrV6::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped(), port, 0, 0)
}

/// A client that has offered and sent a byte, and a server that has received it.
pub(in crate::conn) fn ends() -> [End; 2] {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("shunt-taken-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700)).unwrap();
    let world = || {
        let limits = Limits { dir: Some(dir.to_str().unwrap().to_owned()), ..Limits::default() };
        let w: &'static World =
            Box::leak(Box::new(World::join(limits, "test".into(), 600).unwrap()));
        w
    };
    let (near, far) = (world(), world());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    far.board.listen(port).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let client = End { w: near, conn: near.conn().unwrap(), stream };
    client.conn.connecting(near, client.fd(), mapped(port), 0);
    assert_eq!(client.conn.phase(), Phase::Offered);
    client.conn.io_seen(near);
    assert!(client.conn.tcp_send_begins());
    (&client.stream).write_all(b"?").unwrap();
    client.conn.tcp_send_ends(1);

    let (mut stream, peer) = listener.accept().unwrap();
    let conn = far.conn().unwrap();
    conn.accepted(far, port, None, Some(mapped(peer.port())));
    stream.read_exact(&mut [0]).unwrap();
    assert_eq!(conn.after_tcp_recv(far, stream.as_raw_fd(), 1, Some(b'?')), Some(1));
    std::fs::remove_dir_all(&dir).unwrap();
    [client, End { w: far, conn, stream }]
}

/// The same, once the server has taken the offer.
fn taken() -> [End; 2] {
    let [client, server] = ends();
    assert!(server.settle(true), "not taken");
    [client, server]
}

/// The same, the server having said something before, by TCP.
fn greeted() -> [End; 2] {
    let [client, server] = ends();
    assert!(server.conn.tcp_send_begins());
    (&server.stream).write_all(b"hello").unwrap();
    server.conn.tcp_send_ends(5);
    assert!(server.settle(true), "not taken");
    [client, server]
}

/// The client takes so many bytes from its socket: how many of them are its program's.
fn receives(client: &End, n: usize) -> Option<usize> {
    let mut bytes = vec![0; n];
    (&client.stream).read_exact(&mut bytes).unwrap();
    client.conn.after_tcp_recv(client.w, client.fd(), n, bytes.last().copied())
}

/// What others may write there: nothing, another offer, one that somebody has taken, and a taker that is none.
fn garbage(word: u64) -> [u64; 5] {
    let (client, taker) = (word & 0xffff_ffff, word >> 32);
    [0, client + 1, (client + 1) | taker << 32, client | (taker + 1) << 32, u64::MAX]
}

#[test]
fn an_offer_that_is_overwritten_once_it_is_taken_was_taken() {
    for n in 0..5 {
        let [client, _server] = taken();
        client.overwrite(garbage(client.word())[n]);
        assert!(client.conn.is_taken(client.w), "nobody would look");
        assert!(client.settle(false), "garbage {n}");
        assert_eq!(client.conn.phase(), Phase::Attached);
    }
}

#[test]
fn who_withdraws_an_offer_that_was_overwritten_learns_that_it_was_taken() {
    let [client, _server] = taken();
    client.overwrite(0);
    assert!(!client.conn.keep_tcp(client.w, client.fd(), Reason::Passed));
    assert_eq!(client.conn.phase(), Phase::Attached);
}

#[test]
fn an_offer_that_is_overwritten_before_it_is_taken_is_none() {
    for n in 0..5 {
        let [client, server] = ends();
        let open = client.word();
        client.overwrite(garbage(open)[n]);
        assert!(!client.settle(false));
        assert_eq!(client.conn.phase(), Phase::Tcp, "garbage {n}");
        // Whoever has overwritten it puts it back.
        client.overwrite(open);
        assert!(!server.settle(true), "taken, and nobody knows");
    }
}

#[test]
fn a_doorbell_is_no_byte_of_the_stream_although_the_offer_looks_open() {
    let [client, server] = taken();
    client.overwrite(client.word() & 0xffff_ffff);
    assert!(!client.settle(false), "it cannot know");
    (&server.stream).write_all(&[BELL]).unwrap();
    let mut byte = [0];
    (&client.stream).read_exact(&mut byte).unwrap();
    let kept = client.conn.after_tcp_recv(client.w, client.fd(), 1, Some(byte[0]));
    assert_eq!((kept, client.conn.phase()), (None, Phase::Attached));
}

#[test]
fn a_byte_like_a_doorbell_is_one_of_the_stream_where_nobody_has_taken_the_offer() {
    let [client, _server] = ends();
    for last in [BELL, b'x'] {
        let kept = client.conn.after_tcp_recv(client.w, client.fd(), 1, Some(last));
        assert_eq!((kept, client.conn.phase()), (Some(1), Phase::Offered));
    }
    assert!(!client.conn.settle_at_bell(client.w, client.fd(), Some(BELL)));
}

/// A client whose peer sends on and on by TCP: it is none of ours, and its offer is not looked at for ever.
#[test]
fn a_peer_that_goes_on_by_tcp_has_no_offer_any_more() {
    let [client, server] = ends();
    let receives = || client.conn.after_tcp_recv(client.w, client.fd(), 1, Some(b'x'));
    for _ in 0..200 {
        assert_eq!((receives(), client.conn.phase()), (Some(1), Phase::Offered), "not so soon");
    }
    // As long ago as can be.
    client.conn.held_until.store(1, Ordering::Relaxed);
    // The end is no byte.
    let end = client.conn.after_tcp_recv(client.w, client.fd(), 0, None);
    assert_eq!((end, client.conn.phase()), (Some(0), Phase::Offered));
    let moves = client.w.offer_moves();
    assert_eq!((receives(), client.conn.phase()), (Some(1), Phase::Tcp));
    assert_eq!(client.word(), 0, "withdrawn");
    assert_ne!(client.w.offer_moves(), moves, "who looks at offers is told");
    assert!(!server.settle(true), "taken, and nobody knows");
}

/// The server has taken the word at the moment in which the client found it overwritten: the client's decision counts.
#[test]
fn a_server_waits_for_a_client_that_is_in_doubt() {
    let [client, server] = ends();
    let (_, mine) = client.conn.my_half(client.w).unwrap();
    let generation = mine.generation.load(Ordering::Relaxed);
    // Of the server's half only a flag is written.
    let half = mine;
    mine.state.store(half_state::DOUBT, Ordering::Relaxed);
    assert_eq!(is_believed(half, mine, generation), Err(Undecided), "a client that is stopped");
    mine.state.store(half_state::TCP, Ordering::Relaxed);
    assert_eq!(is_believed(half, mine, generation), Ok(false));
    assert_eq!(is_believed(half, mine, generation + 1), Ok(true), "it serves another one by now");
    for state in [half_state::OFFERED, half_state::ATTACHED, half_state::CLOSED] {
        mine.state.store(state, Ordering::Relaxed);
        assert_eq!(is_believed(half, mine, generation), Ok(true));
    }
    drop(server);
}

#[test]
fn what_a_call_has_just_taken_counts_once_though_the_client_has_forked() {
    let [client, _server] = greeted();
    client.w.forks.fetch_add(1, Ordering::Relaxed);
    assert_eq!(receives(&client, 5), Some(5), "bytes of the stream were taken for doorbells");
    let (_, mine) = client.conn.my_half(client.w).unwrap();
    assert_eq!(mine.tcp_rx.load(Ordering::Relaxed), 5);
}

/// The kernel has given out a doorbell too by the time that a second process of the client learns of the taking.
#[test]
fn the_second_process_of_a_client_leaves_what_the_first_has_counted() {
    let [client, server] = greeted();
    let child = client.w.conn().unwrap();
    for (from, to) in [(&client.conn.half, &child.half), (&client.conn.fd, &child.fd)] {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    child.offer.store(client.conn.offer.load(Ordering::Relaxed), Ordering::Relaxed);
    child.forks.store(u32::MAX, Ordering::Relaxed);
    child.set_phase(Phase::Offered);

    assert!(client.settle(false));
    assert_eq!(receives(&client, 5), Some(5));
    (&server.stream).write_all(&[BELL]).unwrap();
    assert_eq!(receives(&client, 1), None);

    assert!(child.settle(client.w, client.fd(), false));
    assert_eq!(child.phase(), Phase::Attached);
    let (_, mine) = child.my_half(client.w).unwrap();
    assert_eq!(mine.tcp_rx.load(Ordering::Relaxed), 5);
}

#[test]
fn nothing_is_taken_for_a_ring_while_another_process_holds_the_connection() {
    let [client, _server] = taken();
    let (_, mine) = client.conn.my_half(client.w).unwrap();
    mine.users.store(2, Ordering::Relaxed);
    assert!(client.settle(false));
    assert!(!client.conn.go_up(client.w, mine));
    assert_eq!(mine.loc.load(Ordering::Relaxed), 0, "a ring that nobody may write to");
    mine.users.store(1, Ordering::Relaxed);
    assert!(client.conn.go_up(client.w, mine));
}

/// Another thread, an event loop's, is in the middle of attaching what is closed here: its record, which serves the next
/// connection, is given back after that.
#[test]
fn a_close_waits_for_who_attaches() {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    let [client, server] = ends();
    assert!(server.settle(true));
    let (begun, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let counting = lock::lock(&client.conn.counting).unwrap();
            assert!(client.conn.swap_phase(Phase::Offered, Phase::Busy));
            begun.store(true, SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(20));
            client.conn.set_phase(Phase::Offered);
            over.store(true, SeqCst);
            drop(counting);
        });
        while !begun.load(SeqCst) {
            std::thread::yield_now();
        }
        client.conn.closing(client.w, client.fd());
        assert!(over.load(SeqCst));
    });
    assert!(
        client.conn.halves(client.w).is_some(),
        "the server has answered, and it was attached for the end"
    );
    assert_eq!(client.conn.phase(), Phase::Tcp, "who comes by it now goes on in the kernel");
}

/// A call that comes by the record of a closed connection neither brings it to life nor ends it once more.
#[test]
fn what_is_closed_is_not_held() {
    let [client, _server] = ends();
    let conn = client.conn;
    assert!(conn.hold() && !conn.closes_alone(), "a call is under way");
    assert!(!conn.let_go());
    assert!(conn.closes_alone());
    assert!(!conn.hold() && !conn.leads_here_too());
    let counts = [&conn.refs, &conn.inside].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(counts, [0, 0]);
    client.w.give_back(conn);
    assert!(!std::ptr::eq(client.w.conn().unwrap(), conn), "it rests before it serves another one");
}

/// An event loop that still comes by the record of a closed connection attaches nothing.
#[test]
fn what_is_closed_is_not_attached() {
    let [client, server] = ends();
    let (_, half) = client.conn.my_half(client.w).unwrap();
    client.conn.closing(client.w, client.fd());
    let state = half.state.load(Ordering::Relaxed);
    assert!(!client.settle(false) && client.conn.phase() == Phase::Tcp);
    assert_eq!(half.state.load(Ordering::Relaxed), state, "it is another connection's now");
    server.conn.closing(server.w, server.fd());
    assert!(!server.settle(true) && server.conn.phase() == Phase::Tcp);
    assert!(server.conn.my_half(server.w).is_none());
}

/// Who fills a ring with its socket corked, as nginx does for large files, waits for the peer to be woken.
#[test]
fn a_doorbell_of_a_corked_socket_does_not_wait_for_more() {
    const TCP: i32 = 6;
    const CORK: i32 = 3;
    let [client, server] = taken();
    assert!(client.settle(false));
    let (mine, _) = client.conn.halves(client.w).unwrap();
    client.conn.arm_cold(client.w, mine);
    call::setsockopt(server.fd(), TCP, CORK, 1i32).unwrap();
    server.conn.options.fetch_or(options::CORK, Ordering::Relaxed);
    let (mine, peer) = server.conn.halves(server.w).unwrap();
    server.conn.notify(server.w, server.fd(), mine, peer);
    client.stream.set_nonblocking(true).unwrap();
    let mut bell = [0];
    assert_eq!(client.stream.peek(&mut bell).unwrap(), 1, "it was held back");
    // The program believes what it has said.
    assert_ne!(server.conn.options.load(Ordering::Relaxed) & options::CORK, 0);
}
