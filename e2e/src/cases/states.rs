//! Poll masks, the order of errors and which of them show once, in each state of a connection.

use std::time::Duration;

use crate::calls::{self, Ret};
use crate::peer::settled_mask;
use crate::say;
use crate::stage::{Conn, SETTLE, Stage};

fn settle() {
    std::thread::sleep(SETTLE);
}

fn try_recv(fd: i32, len: usize) -> calls::Bytes {
    calls::recv(fd, len, libc::MSG_DONTWAIT)
}

fn try_send(fd: i32, text: &str) -> Ret {
    calls::send(fd, text.as_bytes(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
}

/// A connection in use and nothing else.
pub fn established(s: &mut Stage) {
    let c = s.pair_nb();
    say!("poll", s.mask(c.a));
    say!("recv", try_recv(c.a, 1));
    say!("queues", calls::ioctl_int(c.a, libc::FIONREAD), calls::ioctl_int(c.a, 0x8905));
    say!("peer sends", s.b_send(c, "abc"));
    say!("poll", s.mask(c.a));
    say!("recv", try_recv(c.a, 9));
    say!("poll", s.mask(c.a), s.b_mask(c));
    say!("SO_ERROR", calls::getsockopt(c.a, libc::SOL_SOCKET, libc::SO_ERROR));
}

/// Neither bound nor connected.
pub fn fresh_socket(s: &mut Stage) {
    let fd = calls::socket(0).expect("a socket");
    say!("poll", s.mask(fd));
    say!("send recv", try_send(fd, "x"), try_recv(fd, 1));
    say!("shutdown", calls::shutdown(fd, libc::SHUT_RDWR));
    say!("peer", calls::peer_port(fd));
    say!("FIONREAD", calls::ioctl_int(fd, libc::FIONREAD));
}

/// Listening, nobody comes.
pub fn idle_listener(s: &mut Stage) {
    let (fd, _) = s.listener(8);
    say!("poll", s.mask(fd));
    say!("send recv", try_send(fd, "x"), try_recv(fd, 1));
    say!("FIONREAD", calls::ioctl_int(fd, libc::FIONREAD));
    say!("SO_ACCEPTCONN", calls::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN));
    say!("accept", calls::set_nonblocking(fd, true), calls::accept(fd, 0));
    say!("accept flags", calls::accept(fd, 1));
}

/// A non-blocking connect to a port where nobody listens.
pub fn connect_refused(s: &mut Stage) {
    let (listener, port) = s.listener(8);
    calls::close(listener).expect("closed");
    let fd = calls::socket(libc::SOCK_NONBLOCK).expect("a socket");
    say!("connect", calls::connect(fd, port));
    say!("poll", s.mask(fd));
    let error = || calls::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    say!("SO_ERROR", error(), error());
    say!("poll", s.mask(fd));
    say!("recv send", try_recv(fd, 1), try_send(fd, "x"));
    say!("again", calls::connect(fd, port));
    let fd = calls::socket(0).expect("a socket");
    say!("blocking", calls::connect(fd, port), s.mask(fd));
}

/// A non-blocking connect that succeeds.
pub fn connect_states(s: &mut Stage) {
    let answer = s.b("listen");
    let (listener, port) = answer.split_once(' ').expect("a listener");
    let port = port.parse().expect("a port");
    let a = calls::prompt_socket(libc::SOCK_NONBLOCK).expect("a socket");
    say!("connect", calls::connect(a, port));
    say!("poll", s.mask(a));
    say!("again", calls::connect(a, port), calls::connect(a, port));
    let b = Stage::number(&s.b(&format!("accept {listener}")));
    let c = Conn { a, b };
    say!("send", try_send(a, "hello"), s.b_recv(c, 9));
    say!("back", s.b_send(c, "world"), s.mask(a), try_recv(a, 9));
    say!("again", calls::connect(a, port));
}

/// A connect that cannot finish: states while it is under way.
pub fn connect_to_full_backlog(s: &mut Stage) {
    let (_listener, port) = s.listener(0);
    for _ in 0..4 {
        let fd = calls::socket(libc::SOCK_NONBLOCK).expect("a socket");
        let _ = calls::connect(fd, port);
    }
    settle();
    let fd = calls::socket(0).expect("a socket");
    calls::set_timeout(fd, libc::SO_SNDTIMEO, 60).expect("a timeout");
    say!("connect with SO_SNDTIMEO", calls::connect(fd, port));
    say!("poll", s.mask(fd));
    say!("send recv", try_send(fd, "x"), try_recv(fd, 1));
}

/// `connect(AF_UNSPEC)` on a connection in use.
pub fn connect_unspec(s: &mut Stage) {
    dissolved(s, calls::disconnect);
}

/// The same with an address of which there is little but the family, and one of which there is less.
pub fn connect_unspec_cut_short(s: &mut Stage) {
    for len in [2, 8] {
        dissolved(s, |fd| calls::corner::disconnect_by(fd, len));
    }
    let c = s.pair_nb();
    say!("too short", calls::corner::disconnect_by(c.a, 1), s.mask(c.a));
    say!("works", try_send(c.a, "x"), s.b_recv(c, 9));
}

/// Who did not wait for `connect` may ask by another one how it went, and is told so once, whatever has gone over it.
pub fn connect_asked_again(s: &mut Stage) {
    let before = s.attached_by_both();
    let answer = s.b("listen");
    let (listener, port) = answer.split_once(' ').expect("a listener");
    let port = port.parse().expect("a port");
    let a = calls::prompt_socket(0).expect("a socket");
    calls::set_nonblocking(a, true).expect("a flag");
    say!("begun", calls::connect(a, port));
    let b = Stage::number(&s.b(&format!("accept {listener}")));
    let c = Conn { a, b };
    say!("there", calls::poll(a, libc::POLLOUT, 1000));
    calls::set_nonblocking(a, false).expect("a flag");
    s.until_attached(c, before);
    say!("how it went", calls::connect(a, port));
    say!(
        "goes on",
        try_send(a, "there"),
        s.b_recv(c, 9),
        s.b_send(c, "back"),
        calls::recv(a, 9, 0)
    );
    say!("told already", calls::connect(a, port));
    say!(
        "goes on",
        try_send(a, "there"),
        s.b_recv(c, 9),
        s.b_send(c, "back"),
        calls::recv(a, 9, 0)
    );
}

fn dissolved(s: &mut Stage, by: impl Fn(i32) -> Ret) {
    let c = s.pair_nb();
    say!("disconnect", by(c.a));
    say!("poll", s.mask(c.a));
    say!("peer name", calls::peer_port(c.a));
    say!("send recv", try_send(c.a, "x"), try_recv(c.a, 1));
    say!("the peer", s.b_mask(c), s.b_recv(c, 9));
    // The socket can be used again.
    let answer = s.b("listen");
    let (listener, port) = answer.split_once(' ').expect("a listener");
    calls::set_nonblocking(c.a, false).expect("a flag");
    say!("connect again", calls::connect(c.a, port.parse().expect("a port")));
    let b = Stage::number(&s.b(&format!("accept {listener}")));
    let c = Conn { a: c.a, b };
    say!("send", try_send(c.a, "second life"), s.b_recv(c, 20));
    say!("back", s.b_send(c, "yes"), s.mask(c.a), try_recv(c.a, 9));
}

/// The peer has finished sending.
pub fn peer_fin(s: &mut Stage) {
    let c = s.pair_nb();
    say!("peer shuts", s.b_shutdown(c, libc::SHUT_WR));
    say!("poll", s.mask(c.a));
    say!("recv", try_recv(c.a, 5), try_recv(c.a, 5), calls::read(c.a, 5));
    say!("send", try_send(c.a, "abc"), s.b_recv(c, 9));
    say!("poll", s.mask(c.a), s.b_mask(c));
    say!("send", try_send(c.a, "def"), s.b_recv(c, 9));
    say!("FIONREAD", calls::ioctl_int(c.a, libc::FIONREAD));
    say!("names", calls::peer_port(c.a).is_ok());
}

/// The peer sends and finishes at once.
pub fn peer_fin_with_bytes_queued(s: &mut Stage) {
    let c = s.pair_nb();
    say!("peer", s.b_send(c, "last words"), s.b_close(c));
    say!("poll", s.mask(c.a));
    say!("FIONREAD", calls::ioctl_int(c.a, libc::FIONREAD));
    say!("recv", try_recv(c.a, 4), try_recv(c.a, 20), try_recv(c.a, 20));
    say!("poll", s.mask(c.a));
}

/// Both have finished, the peer first.
pub fn both_fin_peer_first(s: &mut Stage) {
    let c = s.pair_nb();
    s.b_shutdown(c, libc::SHUT_WR);
    say!("poll", s.mask(c.a));
    say!("we shut", calls::shutdown(c.a, libc::SHUT_WR));
    say!("poll", s.mask(c.a), s.b_mask(c));
    say!("names", calls::peer_port(c.a).is_ok(), calls::local_port(c.a).is_ok());
    say!("shutdown again", calls::shutdown(c.a, libc::SHUT_WR));
    say!("recv send", try_recv(c.a, 1), try_send(c.a, "x"));
    say!("SO_ERROR", calls::getsockopt(c.a, libc::SOL_SOCKET, libc::SO_ERROR));
}

/// Both have finished, we first.
pub fn both_fin_we_first(s: &mut Stage) {
    let c = s.pair_nb();
    say!("we shut", calls::shutdown(c.a, libc::SHUT_WR));
    say!("poll", s.mask(c.a), s.b_mask(c));
    say!("peer shuts", s.b_shutdown(c, libc::SHUT_WR));
    say!("poll", s.mask(c.a), s.b_mask(c));
    say!("recv send", try_recv(c.a, 1), try_send(c.a, "x"));
    say!("shutdown again", calls::shutdown(c.a, libc::SHUT_WR));
    say!("peer recv", s.b(&format!("recvnow {} 9 0", c.b)));
    say!("peer send", s.b(&format!("send {} {} x", c.b, libc::MSG_NOSIGNAL)));
}

/// The peer resets.
pub fn reset(s: &mut Stage) {
    let c = s.pair_nb();
    say!("peer resets", s.b_reset(c));
    say!("poll", s.mask(c.a));
    say!("recv", try_recv(c.a, 1), try_recv(c.a, 1));
    say!("send", try_send(c.a, "x"));
    say!("poll", s.mask(c.a));
    say!("names", calls::peer_port(c.a), calls::local_port(c.a).is_ok());
    say!("shutdown", calls::shutdown(c.a, libc::SHUT_WR));
    let c = s.pair_nb();
    s.b_reset(c);
    settle();
    let error = || calls::getsockopt(c.a, libc::SOL_SOCKET, libc::SO_ERROR);
    say!("SO_ERROR", error(), error());
    say!("poll", s.mask(c.a), try_recv(c.a, 1));
}

/// The peer resets and we send.
pub fn reset_then_send_twice(s: &mut Stage) {
    let c = s.pair_nb();
    s.b_reset(c);
    settle();
    say!("send", try_send(c.a, "x"), try_send(c.a, "x"));
    say!("recv", try_recv(c.a, 1));
    say!("poll", s.mask(c.a));
}

/// The peer sends, then resets.
pub fn bytes_then_reset(s: &mut Stage) {
    let c = s.pair_nb();
    say!("peer sends", s.b_send(c, "hello"));
    settle();
    s.b_reset(c);
    say!("poll", s.mask(c.a));
    say!("recv", try_recv(c.a, 9), try_recv(c.a, 9), try_recv(c.a, 9));
    let c = s.pair_nb();
    s.b_send(c, "hello");
    settle();
    s.b_reset(c);
    settle();
    say!("send first", try_send(c.a, "x"), try_recv(c.a, 9), try_recv(c.a, 9));
}

/// The peer closes without having read what we sent.
pub fn close_with_unread_bytes(s: &mut Stage) {
    let c = s.pair_nb();
    say!("send", try_send(c.a, "0123456789"));
    settle();
    say!("peer closes", s.b_close(c));
    say!("poll", s.mask(c.a));
    say!("recv", try_recv(c.a, 1), try_recv(c.a, 1));
    say!("send", try_send(c.a, "x"));
    // Read in part is unread, too.
    let c = s.pair_nb();
    say!("send", try_send(c.a, "0123456789"), s.b_recv(c, 4));
    s.b_close(c);
    say!("poll recv", s.mask(c.a), try_recv(c.a, 1), try_recv(c.a, 1));
}

/// The peer has closed cleanly, and we send.
pub fn peer_closes_we_send_twice(s: &mut Stage) {
    let c = s.pair_nb();
    say!("peer closes", s.b_close(c));
    say!("poll", s.mask(c.a));
    say!("send", try_send(c.a, "x"));
    say!("poll", s.mask(c.a));
    say!("send", try_send(c.a, "x"), try_send(c.a, "x"));
    say!("recv", try_recv(c.a, 1), try_recv(c.a, 1));
    say!("poll", s.mask(c.a));
    // The other order after the first send: what recv says.
    let c = s.pair_nb();
    s.b_close(c);
    settle();
    say!("recv, send", try_recv(c.a, 1), try_send(c.a, "x"));
    settle();
    say!("recv", try_recv(c.a, 1), try_recv(c.a, 1));
}

/// We shut down receiving.
pub fn shut_rd(s: &mut Stage) {
    let c = s.pair_nb();
    say!("shut", calls::shutdown(c.a, libc::SHUT_RD));
    say!("poll", s.mask(c.a));
    say!("recv", try_recv(c.a, 1));
    say!("peer sends", s.b_send(c, "late"));
    settle();
    say!("poll", s.mask(c.a));
    say!("recv", try_recv(c.a, 9), try_recv(c.a, 9));
    say!("the peer", s.b_mask(c));
    say!("send", try_send(c.a, "still"), s.b_recv(c, 9));
}

/// We shut down sending.
pub fn shut_wr(s: &mut Stage) {
    let c = s.pair_nb();
    say!("send", try_send(c.a, "last"));
    say!("shut", calls::shutdown(c.a, libc::SHUT_WR));
    say!("send", try_send(c.a, "x"), try_send(c.a, ""));
    say!("poll", s.mask(c.a));
    say!("the peer", s.b_mask(c), s.b_recv(c, 2), s.b_recv(c, 9), s.b_recv(c, 9));
    say!("peer sends", s.b_send(c, "answer"), s.mask(c.a), try_recv(c.a, 9));
    say!("poll", s.mask(c.a));
}

/// We shut down both.
pub fn shut_rdwr(s: &mut Stage) {
    let c = s.pair_nb();
    say!("shut", calls::shutdown(c.a, libc::SHUT_RDWR));
    say!("poll", s.mask(c.a));
    say!("send recv", try_send(c.a, "x"), try_recv(c.a, 1));
    say!("the peer", s.b_mask(c), s.b_recv(c, 9));
    say!("peer sends", s.b_send(c, "late"));
    settle();
    say!("recv", try_recv(c.a, 9), try_recv(c.a, 9));
    say!("the peer", s.b_mask(c));
    say!("bad how", calls::shutdown(c.a, 7));
}

/// The peer shuts down receiving, which we must not notice.
pub fn peer_shuts_rd(s: &mut Stage) {
    let c = s.pair_nb();
    say!("peer shuts", s.b_shutdown(c, libc::SHUT_RD));
    say!("poll", s.mask(c.a));
    say!("send", try_send(c.a, "abc"), try_send(c.a, "def"));
    settle();
    say!("poll", s.mask(c.a));
    say!("the peer", s.b_mask(c), s.b(&format!("recvnow {} 9 0", c.b)));
}

/// The peer shuts down both and still holds the socket.
pub fn peer_shuts_rdwr(s: &mut Stage) {
    let c = s.pair_nb();
    say!("peer shuts", s.b_shutdown(c, libc::SHUT_RDWR));
    say!("poll", s.mask(c.a), try_recv(c.a, 1));
    say!("send", try_send(c.a, "abc"));
    say!("poll", s.mask(c.a));
    say!("close", calls::close(c.a), s.b_mask(c));
}

/// A connection that is reset before it is accepted.
pub fn reset_in_accept_queue(s: &mut Stage) {
    let (listener, port) = s.listener(8);
    let b = s.b(&format!("connect {port}"));
    s.b(&format!("reset {b}"));
    say!("poll listener", s.mask(listener));
    let fd = calls::accept(listener, 0).expect("accept succeeds");
    say!("recv", try_recv(fd, 1), try_recv(fd, 1), s.mask(fd));
}

/// `shutdown` of a listener wakes its acceptor.
pub fn listener_shut_down(s: &mut Stage) {
    let (listener, _) = s.listener(8);
    let waiting = std::thread::spawn(move || calls::accept(listener, 0));
    settle();
    say!("shut", calls::shutdown(listener, libc::SHUT_RD));
    say!("accept", waiting.join().expect("no panic"));
    say!("poll", s.mask(listener));
}

/// Calls that make no sense on a socket.
pub fn fd_misuse(s: &mut Stage) {
    let c = s.pair_nb();
    s.b_send(c, "data");
    say!("lseek", calls::lseek(c.a));
    say!("pread", calls::pread(c.a, 4, 0));
    say!("open", calls::open(&format!("/proc/self/fd/{}", c.a)));
    say!("is a socket", calls::is_socket(c.a));
    let link = std::fs::read_link(format!("/proc/self/fd/{}", c.a)).expect("a link");
    say!("link", link.to_string_lossy().starts_with("socket:["));
    say!("accept", calls::accept(c.a, 0));
    say!("listen", calls::listen(c.a, 1));
    say!("bind", calls::bind(c.a, 0));
    say!("recv", try_recv(c.a, 9));
    let closed = calls::dup(c.a).expect("a duplicate");
    calls::close(closed).expect("closed");
    say!("closed", try_recv(closed, 1), try_send(closed, "x"), calls::close(closed));
}

/// Zero linger: the peer sees a reset, bytes in flight or not.
pub fn linger_zero_seen_by_peer(s: &mut Stage) {
    let c = s.pair();
    say!("linger", calls::set_linger(c.a, 1, 0), calls::close(c.a));
    say!("the peer", s.b_mask(c), s.b_recv(c, 9), s.b_recv(c, 9));
    let c = s.pair();
    say!("send", calls::send(c.a, b"gone?", 0));
    settle();
    say!("linger", calls::set_linger(c.a, 1, 0), calls::close(c.a));
    say!("the peer", s.b_mask(c), s.b_recv(c, 9), s.b_recv(c, 9), s.b_recv(c, 9));
}

/// Linger with time: the bytes arrive.
pub fn linger_seconds(s: &mut Stage) {
    let c = s.pair();
    say!("linger", calls::set_linger(c.a, 1, 2));
    say!(
        "value",
        calls::getsockopt_pair(c.a, libc::SOL_SOCKET, libc::SO_LINGER).map(|v| v.to_vec())
    );
    say!("send", calls::send(c.a, b"arrives", 0));
    say!("close", calls::close(c.a));
    say!("the peer", s.b_mask(c), s.b_recv(c, 9), s.b_recv(c, 9));
}

/// A close waits for what the peer does not read, as long as it was told to, whether the socket blocks or not; what
/// was sent arrives all the same, when the peer reads at last.
pub fn linger_when_full(s: &mut Stage) {
    // As much as there is differs from run to run, and from TCP to rings.
    let how = |drained: String| drained.split_once(" and ").map(|(_, end)| end.to_owned());
    for blocks in [true, false] {
        let c = s.pair();
        say!("full", Stage::fill(c.a), calls::set_linger(c.a, 1, 1));
        calls::set_nonblocking(c.a, !blocks).expect("a flag");
        let (closed, when) = crate::stage::timed(|| calls::close(c.a));
        say!("close", blocks, closed, when);
        say!("the peer", how(s.b(&format!("drain {}", c.b))).unwrap_or_default(), s.b_close(c));
    }
    // Who reads meanwhile ends the wait.
    let c = s.pair();
    say!("full", Stage::fill(c.a), calls::set_linger(c.a, 1, 15));
    s.b_later(200, &format!("drain {}", c.b));
    let start = std::time::Instant::now();
    let (closed, when) = crate::stage::timed(|| calls::close(c.a));
    say!("close", closed, when, start.elapsed() < Duration::from_secs(10));
    say!("the peer", s.b_mask(c), s.b_close(c));
    // Nothing waits for who has shut down and has nothing to send.
    let c = s.pair();
    say!("empty", calls::set_linger(c.a, 1, 15), calls::shutdown(c.a, libc::SHUT_WR));
    let start = std::time::Instant::now();
    say!("read", s.b_recv(c, 9), calls::close(c.a), start.elapsed() < Duration::from_secs(10));
    say!("the peer", s.b_mask(c), s.b_close(c));
}

/// Options as they read on a connection in use.
pub fn options_of_a_live_connection(s: &mut Stage) {
    let c = s.pair();
    for (name, option) in [
        ("TYPE", libc::SO_TYPE),
        ("DOMAIN", libc::SO_DOMAIN),
        ("PROTOCOL", libc::SO_PROTOCOL),
        ("ERROR", libc::SO_ERROR),
        ("ACCEPTCONN", libc::SO_ACCEPTCONN),
        ("RCVLOWAT", libc::SO_RCVLOWAT),
        ("KEEPALIVE", libc::SO_KEEPALIVE),
        ("OOBINLINE", libc::SO_OOBINLINE),
    ] {
        say!(name, calls::getsockopt(c.a, libc::SOL_SOCKET, option));
    }
    let set = |level, name, value: i32| calls::setsockopt(c.a, level, name, value);
    say!("sndbuf", set(libc::SOL_SOCKET, libc::SO_SNDBUF, 50_000));
    say!("reads", calls::getsockopt(c.a, libc::SOL_SOCKET, libc::SO_SNDBUF));
    say!("rcvbuf", set(libc::SOL_SOCKET, libc::SO_RCVBUF, 50_000));
    say!("reads", calls::getsockopt(c.a, libc::SOL_SOCKET, libc::SO_RCVBUF));
    say!("nodelay", set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1));
    say!("reads", calls::getsockopt(c.a, libc::IPPROTO_TCP, libc::TCP_NODELAY));
    say!("cork", set(libc::IPPROTO_TCP, libc::TCP_CORK, 1));
    say!("quickack", set(libc::IPPROTO_TCP, libc::TCP_QUICKACK, 1));
    say!("keepalive", set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1));
    say!("reuseaddr", set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1));
    say!("nonsense", set(libc::SOL_SOCKET, 9999, 1));
    say!("send", calls::send(c.a, b"after all that", 0));
    say!("uncork", set(libc::IPPROTO_TCP, libc::TCP_CORK, 0));
    say!("the peer", s.b_recv(c, 20));
}

/// The state in `TCP_INFO`.
pub fn tcp_info(s: &mut Stage) {
    let c = s.pair_nb();
    say!("established", calls::tcp_state(c.a));
    s.b_reset(c);
    settle();
    say!("closed", calls::tcp_state(c.a));
}

/// What an accepted socket has from its listener. A low water mark keeps it on TCP.
pub fn accept_inherits(s: &mut Stage) {
    inherits(s, 3);
}

/// The same in shared memory.
pub fn accept_inherits_in_memory(s: &mut Stage) {
    inherits(s, 1);
}

fn inherits(s: &mut Stage, low: i32) {
    let (l, port) = s.listener(8);
    let set = |level, name, value: i32| calls::setsockopt(l, level, name, value);
    say!("keepalive", set(libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1));
    say!("oobinline", set(libc::SOL_SOCKET, libc::SO_OOBINLINE, 1));
    say!("nodelay", set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1));
    say!("linger", calls::set_linger(l, 1, 3));
    say!("lowat", set(libc::SOL_SOCKET, libc::SO_RCVLOWAT, low));
    say!("rcvtimeo", calls::set_timeout(l, libc::SO_RCVTIMEO, 70));
    say!("user timeout", set(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 1234));
    say!("nonblock", calls::set_nonblocking(l, true));
    let b = Stage::number(&s.b(&format!("connect {port}")));
    settle();
    let a = calls::accept(l, 0).expect("a connection");
    let of = |level, name| calls::getsockopt(a, level, name);
    say!("keepalive", of(libc::SOL_SOCKET, libc::SO_KEEPALIVE));
    say!("oobinline", of(libc::SOL_SOCKET, libc::SO_OOBINLINE));
    say!("nodelay", of(libc::IPPROTO_TCP, libc::TCP_NODELAY));
    say!("lowat", of(libc::SOL_SOCKET, libc::SO_RCVLOWAT));
    say!("user timeout", of(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT));
    say!(
        "linger",
        calls::getsockopt_pair(a, libc::SOL_SOCKET, libc::SO_LINGER).map(|v| v.to_vec())
    );
    let flags = calls::fcntl(a, libc::F_GETFL, 0).expect("flags");
    say!("nonblock", flags & libc::O_NONBLOCK.cast_unsigned() as usize != 0);
    // What was inherited must work as well, wherever the bytes are.
    let c = Conn { a, b };
    for _ in 0..6 {
        assert_eq!(s.b_send(c, "ping"), "4");
        assert_eq!(calls::recv(a, 4, 0), Ok(b"ping".to_vec()));
        assert_eq!(calls::send(a, b"pong", 0), Ok(4));
        let _ = s.b_recv(c, 9);
    }
    let (got, waited) = crate::stage::timed(|| calls::recv(a, 9, 0));
    say!("receive timeout", got, waited);
    say!("low water", s.b_send(c, "ab"), settled_mask(a));
    say!("low water", s.b_send(c, "c"), settled_mask(a), calls::recv(a, 9, 0));
}

/// `accept4` flags and `accept` with an address.
pub fn accept_flags(s: &mut Stage) {
    let (l, port) = s.listener(8);
    let b = s.b(&format!("connect {port}"));
    let a = calls::accept(l, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC).expect("a connection");
    let flags = calls::fcntl(a, libc::F_GETFL, 0).expect("flags");
    say!("nonblock", flags & libc::O_NONBLOCK.cast_unsigned() as usize != 0);
    say!("cloexec", calls::fcntl(a, libc::F_GETFD, 0));
    say!("close", s.b(&format!("close {b}")));
    let b = s.b(&format!("connect {port}"));
    let (a, from) = calls::accept_from(l).expect("a connection");
    say!("address is the peer's", calls::peer_port(a) == Ok(from));
    say!("close", s.b(&format!("close {b}")), s.mask(a));
}

/// Names of both ends while and after the connection lives.
pub fn names_of_the_ends(s: &mut Stage) {
    let c = s.pair();
    let (ours, theirs) = (calls::local_port(c.a), calls::peer_port(c.a));
    say!("names", ours.is_ok(), theirs.is_ok(), ours != theirs);
    s.b_close(c);
    settle();
    say!("after the peer's close", calls::local_port(c.a) == ours, calls::peer_port(c.a) == theirs);
    say!("send", calls::send(c.a, b"x", libc::MSG_NOSIGNAL));
    settle();
    say!("after a reset", calls::local_port(c.a) == ours, calls::peer_port(c.a));
}

/// The peer is killed, of which only the kernel knows: who merely writes, or merely looks whether something has come, hears
/// of it by and by as over TCP, where it costs a message.
pub fn killed_without_a_word(s: &mut Stage) {
    let [writes, has_written, full, looks, peeks, asks] = [(); 6].map(|()| s.pair_nb());
    say!("unread", try_send(has_written.a, "unread"), try_send(asks.a, "unread"));
    say!("fill", Stage::fill(full.a));
    // Closed last.
    let last = s.pair();
    calls::kill(s.peer_pid(), libc::SIGKILL).expect("killed");
    say!("gone", calls::poll(last.a, libc::POLLRDHUP, 10_000));
    // How many are taken is a matter of how soon the peer was missed.
    let mut taken = 0;
    let heard = loop {
        match try_send(writes.a, "message") {
            Ok(7) if taken < 50 => taken += 1,
            other => break other,
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    say!("written", matches!(heard, Err(libc::EPIPE | libc::ECONNRESET)));
    say!("and more", try_send(writes.a, "more"), try_send(writes.a, "more"));
    say!("full", try_send(full.a, "more"), try_send(full.a, "more"), try_send(full.a, "more"));
    say!("look", try_recv(looks.a, 9), try_recv(looks.a, 9));
    let peek = || calls::recv(peeks.a, 9, libc::MSG_DONTWAIT | libc::MSG_PEEK);
    say!("peek", peek(), peek());
    let error = || calls::getsockopt(asks.a, libc::SOL_SOCKET, libc::SO_ERROR);
    say!("SO_ERROR", error(), error());
    say!("then", try_send(asks.a, "x"), try_recv(asks.a, 9));
    say!("reset", try_recv(has_written.a, 9), try_recv(has_written.a, 9));
    say!("then", try_send(has_written.a, "x"), try_send(has_written.a, "x"));
}
