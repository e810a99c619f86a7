//! Descriptor numbers: duplicated, closed, reused, wrapped in streams.

use crate::calls::{self, Stream};
use crate::say;
use crate::stage::{Conn, Role, SETTLE, Stage, timed};

fn settle() {
    std::thread::sleep(SETTLE);
}

/// A duplicate is the same connection.
pub fn dup_shares(s: &mut Stage) {
    let c = s.pair();
    let d = calls::dup(c.a).expect("a duplicate");
    say!("send by either", calls::send(c.a, b"one ", 0), calls::send(d, b"two", 0));
    settle();
    say!("the peer", s.b_recv(c, 99));
    s.b_send(c, "abcdef");
    say!("recv by either", calls::recv(c.a, 3, 0), calls::recv(d, 3, 0));
    say!("one closed", calls::close(c.a), s.b_mask(c));
    say!("the other works", calls::send(d, b"alive", 0), s.b_recv(c, 99));
    s.b_send(c, "yes");
    say!("recv", calls::recv(d, 9, 0));
    let e = calls::dup(d).expect("a duplicate");
    say!("shutdown counts for all", calls::shutdown(e, libc::SHUT_WR));
    say!("send", calls::send(d, b"x", libc::MSG_NOSIGNAL), s.b_recv(c, 9));
    say!("all closed", calls::close(d), s.b_mask(c), calls::close(e), s.b_mask(c));
}

/// `dup2` over a connection closes it.
pub fn dup2_over_connection(s: &mut Stage) {
    let (c, d) = (s.pair(), s.pair());
    say!("onto itself", calls::dup2(c.a, c.a) == Ok(c.a));
    say!("works", calls::send(c.a, b"still", 0), s.b_recv(c, 9));
    say!("dup2", calls::dup2(d.a, c.a) == Ok(c.a));
    say!("the old peer", s.b_mask(c), s.b_recv(c, 9));
    say!("the number is the other", calls::send(c.a, b"other", 0), s.b_recv(d, 9));
    let [r, w] = calls::pipe(0).expect("a pipe");
    say!("a pipe over it", calls::dup2(r, c.a) == Ok(c.a), s.b_mask(d));
    calls::write(w, b"piped").expect("written");
    say!("read", calls::read(c.a, 9), calls::send(c.a, b"x", 0));
    say!("a connection over a pipe", calls::dup2(d.a, r) == Ok(r));
    s.b_send(d, "hello");
    say!("read", calls::read(r, 9));
    say!("to a closed number", calls::dup2(999, c.a), calls::read(d.a, 0));
}

/// `dup3`, `F_DUPFD`, `F_DUPFD_CLOEXEC`.
pub fn dup3_and_fcntl_dup(s: &mut Stage) {
    let c = s.pair();
    say!("dup3 equal", calls::dup3(c.a, c.a, 0));
    say!("dup3", calls::dup3(c.a, 200, libc::O_CLOEXEC), calls::fcntl(200, libc::F_GETFD, 0));
    say!("bad flags", calls::dup3(c.a, 201, 1));
    say!("F_DUPFD", calls::fcntl(c.a, libc::F_DUPFD, 300), calls::fcntl(300, libc::F_GETFD, 0));
    say!("F_DUPFD_CLOEXEC", calls::fcntl(c.a, libc::F_DUPFD_CLOEXEC, 300));
    // Over a connection these would end it, were they done.
    let other = s.pair();
    say!("bad flags over another", calls::dup3(c.a, other.a, 1));
    say!("lives", calls::send(other.a, b"x", 0), s.b_recv(other, 9), s.b_send(other, "y"));
    say!("both ways", calls::recv(other.a, 9, 0));
    for fd in [200, 300, 301] {
        say!("send", calls::send(fd, b"via", 0), s.b_recv(c, 9));
    }
    s.b_send(c, "abc");
    say!("recv", calls::recv(200, 1, 0), calls::recv(300, 1, 0), calls::recv(301, 9, 0));
    for fd in [c.a, 200, 300] {
        calls::close(fd).expect("closed");
    }
    say!("one left", s.b_mask(c), calls::close(301), s.b_mask(c));
}

/// `F_DUPFD` on to the descriptor that stdio reads, which is what closing it first leads to.
pub fn fcntl_dup_on_to_stdio(s: &mut Stage) {
    for command in [libc::F_DUPFD, libc::F_DUPFD_CLOEXEC] {
        let c = s.pair();
        say!("before", s.b_send(c, "one "), calls::recv(c.a, 9, 0), s.b_send(c, "two "));
        settle();
        let kept = calls::dup_above(0, 400).expect("a duplicate");
        say!("put there", calls::close(0), calls::fcntl(c.a, command, 0));
        say!("more", s.b_send(c, "three"), s.b_shutdown(c, libc::SHUT_WR));
        let stream = Stream::standard_input();
        say!("line", stream.line().map(|line| line.into_bytes()));
        say!("and out", calls::send(c.a, b"four", 0), s.b_recv(c, 9));
        say!("back", calls::dup2(kept, 0), calls::close(kept), s.b_mask(c));
    }
}

/// A socket that comes to have the number which stdio reads, as where that was closed before.
pub fn made_at_stdio(s: &mut Stage) {
    // Another one, which leaves TCP as ever.
    let other = s.pair();
    let kept = calls::dup_above(0, 400).expect("a duplicate");
    let c = if s.role() == Role::Client {
        say!("closed", calls::close(0));
        s.fresh_pair()
    } else {
        let (listener, port) = s.listener(4);
        say!("closed", calls::close(0));
        let b = s.b(&format!("connect {port}")).parse().expect("a connection");
        Conn { a: calls::accept(listener, 0).expect("a connection"), b }
    };
    say!("number", c.a, calls::send(c.a, b"greeting", 0), s.b_recv(c, 9));
    let stream = Stream::standard_input();
    for n in 0..5 {
        say!("told", s.b_send(c, &format!("line {n} ")), calls::send(c.a, b"answer", 0));
        say!("answer", s.b_recv(c, 9));
    }
    say!("end", s.b_shutdown(c, libc::SHUT_WR), stream.line().map(|line| line.into_bytes()));
    say!("back", calls::dup2(kept, 0), calls::close(kept), s.b_mask(c));
    say!("the other", s.b_send(other, "text"), calls::recv(other.a, 9, 0));
}

/// `close_range` over a connection and over numbers that a library may use for itself.
pub fn close_ranges(s: &mut Stage) {
    let (c, d) = (s.pair(), s.pair());
    let high = calls::dup_above(c.a, 500).expect("a duplicate");
    say!("duplicate", calls::close_range(500, 600, 0), calls::send(high, b"x", 0));
    say!("c lives", calls::send(c.a, b"x", 0), s.b_recv(c, 9));
    // Everything above d, whatever it is.
    let top = c.a.max(d.a);
    let low = c.a.min(d.a);
    say!("all above", calls::close_range(top + 1, i32::MAX, 0));
    for one in [c, d] {
        say!("works", calls::send(one.a, b"y", 0), s.b_recv(one, 9), s.b_send(one, "z"));
        say!("works", calls::recv(one.a, 9, 0));
    }
    s.b_later(120, &format!("send {} 0 late", c.b));
    let (got, when) = timed(|| calls::recv(c.a, 9, 0));
    say!("waits", got, when);
    say!("bad flags", calls::close_range(low, top, 0x80), s.b_send(c, "x"), calls::recv(c.a, 9, 0));
    let cloexec = 4;
    say!("cloexec", calls::close_range(low, top, cloexec), calls::fcntl(c.a, libc::F_GETFD, 0));
    say!("both", calls::close_range(low, top, 0), s.b_mask(c), s.b_mask(d));
    say!("bad order", calls::close_range(9, 3, 0));
}

/// `closefrom` closes connections as well.
pub fn close_from(s: &mut Stage) {
    let c = s.pair();
    let low = calls::dup_above(c.a, 400).expect("a duplicate");
    calls::closefrom(low);
    say!("c lives", calls::send(c.a, b"x", 0), s.b_recv(c, 9), calls::send(low, b"x", 0));
    let moved = calls::dup_above(c.a, 400).expect("a duplicate");
    calls::close(c.a).expect("closed");
    say!("moved", calls::send(moved, b"x", 0), s.b_recv(c, 9));
    calls::closefrom(moved);
    say!("the peer", s.b_mask(c), s.b_recv(c, 9));
}

/// A number that was a connection is something else afterwards.
pub fn number_reused(s: &mut Stage) {
    let c = s.pair();
    calls::close(c.a).expect("closed");
    let fd = calls::memfd(b"a file").expect("a file");
    say!("the same number", fd == c.a);
    say!("a file", calls::read(fd, 9), calls::send(fd, b"x", 0), calls::is_socket(fd));
    calls::close(fd).expect("closed");
    let [r, w] = calls::pipe(0).expect("a pipe");
    say!("a pipe", calls::write(w, b"x"), calls::read(r, 9), calls::poll(r, libc::POLLIN, 0));
    calls::close(r).expect("closed");
    let d = s.pair();
    say!("a connection", d.a == r, calls::send(d.a, b"new", 0), s.b_recv(d, 9));
    say!("the old peer", s.b_mask(c));
}

/// `O_NONBLOCK` belongs to the connection, not to the number.
pub fn nonblock_shared(s: &mut Stage) {
    let c = s.pair();
    let d = calls::dup(c.a).expect("a duplicate");
    say!("set", calls::set_nonblocking(d, true), calls::recv(c.a, 9, 0));
    say!("cleared", calls::set_nonblocking(c.a, false));
    s.b_later(120, &format!("send {} 0 x", c.b));
    let (got, when) = timed(|| calls::recv(d, 9, 0));
    say!("waits", got, when);
}

/// Flags as they read.
pub fn getfl(s: &mut Stage) {
    let c = s.pair();
    say!("flags", calls::fcntl(c.a, libc::F_GETFL, 0), calls::fcntl(c.a, libc::F_GETFD, 0));
    say!("set", calls::fcntl(c.a, libc::F_SETFL, libc::O_NONBLOCK));
    say!("flags", calls::fcntl(c.a, libc::F_GETFL, 0));
    say!("cloexec", calls::fcntl(c.a, libc::F_SETFD, 1), calls::fcntl(c.a, libc::F_GETFD, 0));
    say!("recv", calls::recv(c.a, 9, 0));
    say!("cleared", calls::fcntl(c.a, libc::F_SETFL, 0), calls::fcntl(c.a, libc::F_GETFL, 0));
    say!("owner", calls::fcntl(c.a, libc::F_GETOWN, 0));
    let made = calls::socket(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK).expect("a socket");
    say!("made so", calls::fcntl(made, libc::F_GETFD, 0), calls::fcntl(made, libc::F_GETFL, 0));
    say!("to nobody", calls::recv(made, 9, 0), calls::close(made));
}

/// `FIONBIO`.
pub fn fionbio(s: &mut Stage) {
    let c = s.pair();
    say!("set", calls::ioctl_set(c.a, libc::FIONBIO, 1), calls::recv(c.a, 9, 0));
    say!("cleared", calls::ioctl_set(c.a, libc::FIONBIO, 0));
    s.b_later(120, &format!("send {} 0 x", c.b));
    let (got, when) = timed(|| calls::recv(c.a, 9, 0));
    say!("waits", got, when);
    say!("FIOCLEX", calls::ioctl_set(c.a, libc::FIOCLEX, 0), calls::fcntl(c.a, libc::F_GETFD, 0));
}

/// A stdio stream on a live connection.
pub fn fdopen_stream(s: &mut Stage) {
    let c = s.pair();
    let other = calls::dup(c.a).expect("a duplicate");
    let reader = Stream::open(c.a, "r").expect("a stream");
    let writer = Stream::open(other, "w").expect("a stream");
    say!("put", writer.put("from stdio\n"), s.b_recv(c, 99));
    s.b_send(c, "line one");
    s.b_shutdown(c, libc::SHUT_WR);
    say!("line", reader.line().map(|l| l.into_bytes()), reader.line());
    say!("put", writer.put("after the end\n"), s.b_recv(c, 99));
    say!("close", writer.close(), s.b_mask(c), reader.close(), s.b_mask(c));
}

/// A stream is made when bytes are waiting in both directions.
pub fn fdopen_with_bytes_queued(s: &mut Stage) {
    let c = s.pair();
    say!("sent before", calls::send(c.a, b"before ", 0), s.b_send(c, "waiting "));
    settle();
    let stream = Stream::open(c.a, "r+").expect("a stream");
    s.b_send(c, "later");
    say!("put", stream.put("through stdio"));
    settle();
    say!("the peer", s.b_recv(c, 99));
    s.b_close(c);
    say!("line", stream.line().map(|l| l.into_bytes()), stream.line());
    say!("close", stream.close());
}

/// `dprintf`.
pub fn stdio_dprintf(s: &mut Stage) {
    let c = s.pair();
    say!("send", calls::send(c.a, b"one ", 0), calls::dprintf(c.a, "two "));
    say!("send", calls::send(c.a, b"three", 0));
    settle();
    say!("the peer", s.b_recv(c, 99));
    say!("back", s.b_send(c, "fine"), calls::recv(c.a, 9, 0));
}

/// No more descriptors: connections go on, new ones are refused as usual.
pub fn limit_reached(s: &mut Stage) {
    let c = s.pair();
    let (listener, port) = s.listener(8);
    let b = s.b(&format!("connect {port}"));
    calls::limit_descriptors(64).expect("a limit");
    let mut held = Vec::new();
    while let Ok(fd) = calls::dup(listener) {
        held.push(fd);
    }
    say!("accept", calls::accept(listener, 0), calls::socket(0), calls::dup(c.a));
    say!("works", calls::send(c.a, b"x", 0), s.b_recv(c, 9), s.b_send(c, "y"));
    say!("works", calls::recv(c.a, 9, 0));
    s.b_later(120, &format!("send {} 0 z", c.b));
    let (got, when) = timed(|| calls::recv(c.a, 9, 0));
    say!("waits", got, when, calls::poll(c.a, libc::POLLIN, 30));
    calls::close(held.pop().expect("some")).expect("closed");
    let accepted = calls::accept(listener, 0);
    say!("accept", accepted.is_ok());
    let fd = accepted.expect("a connection");
    for text in ["one", "two", "three", "four"] {
        s.b(&format!("send {b} 0 {text}"));
        say!("the new one", calls::recv(fd, 9, 0), calls::send(fd, text.as_bytes(), 0));
        say!("the peer", s.b(&format!("recv {b} 9 0")));
    }
    say!("close", s.b(&format!("close {b}")), s.mask(fd));
}
