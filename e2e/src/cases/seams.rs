//! Where a stream changes its way, and what is true of a connection around its ends: found by random
//! programs, kept here as what they come to.

use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT};

use crate::calls::{self, Bytes, Forked, Ret};
use crate::peer::receive_stream;
use crate::say;
use crate::stage::{SETTLE, Stage, timed};

fn settle() {
    std::thread::sleep(SETTLE);
}

fn try_recv(fd: i32, len: usize) -> Bytes {
    calls::recv(fd, len, libc::MSG_DONTWAIT)
}

fn peek(fd: i32, len: usize) -> Bytes {
    calls::recv(fd, len, libc::MSG_DONTWAIT | libc::MSG_PEEK)
}

fn try_send(fd: i32, text: &str) -> Ret {
    calls::send(fd, text.as_bytes(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
}

fn error(fd: i32) -> Ret {
    calls::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR)
        .map(i32::cast_unsigned)
        .map(|e| e as usize)
}

/// A connection with bytes of the peer unread that were sent before and after it left TCP.
fn with_unread_on_both_sides(s: &mut Stage) -> crate::stage::Conn {
    let c = s.fresh_pair();
    say!("before", s.b_send(c, "0123456789"));
    settle();
    say!("two", calls::recv(c.a, 2, 0), calls::send(c.a, b"x", 0), s.b_recv(c, 9));
    say!("and back", calls::send(c.a, b"y", 0), s.b_recv(c, 9));
    say!("after", s.b_send(c, "abcdef"), s.b_send(c, "ghijkl"));
    settle();
    c
}

/// `MSG_PEEK`, `MSG_TRUNC` and `splice` over the place where the stream goes on elsewhere.
pub fn looks_over_the_switch(s: &mut Stage) {
    let c = with_unread_on_both_sides(s);
    say!("look", peek(c.a, 99), peek(c.a, 9), peek(c.a, 3));
    say!("queue", calls::ioctl_int(c.a, libc::FIONREAD));
    say!("throw away", calls::recv_nowhere(c.a, 10, libc::MSG_TRUNC | libc::MSG_DONTWAIT));
    let [r, w] = calls::pipe(libc::O_NONBLOCK).expect("a pipe");
    say!("splice", calls::splice(c.a, w, 4, libc::SPLICE_F_NONBLOCK), calls::read(r, 9));
    say!("rest", try_recv(c.a, 99), try_recv(c.a, 1));
}

/// The kernel must serve the connection (`SO_RCVLOWAT`) while bytes wait that came by either way.
pub fn demoted_with_unread_on_both_sides(s: &mut Stage) {
    let c = with_unread_on_both_sides(s);
    say!("low", calls::setsockopt(c.a, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2));
    say!("more", s.b_send(c, "mnopqr"), calls::send(c.a, b"z", 0), s.b_recv(c, 9));
    settle();
    say!("look", peek(c.a, 99), calls::ioctl_int(c.a, libc::FIONREAD));
    say!("all", try_recv(c.a, 11), try_recv(c.a, 99), try_recv(c.a, 1));
}

/// Our end is served by the kernel while the peer has not read what we sent; then so is the peer's.
pub fn demoted_one_after_the_other(s: &mut Stage) {
    let c = s.pair();
    say!("send", calls::send(c.a, b"0123456789", 0), s.b_send(c, "abcdefghij"));
    settle();
    let low = [libc::SOL_SOCKET, libc::SO_RCVLOWAT];
    say!("ours", calls::setsockopt(c.a, low[0], low[1], 2));
    say!("theirs", s.b(&format!("option {} {} {} 2", c.b, low[0], low[1])));
    say!("send", calls::send(c.a, b"kl", 0), s.b_send(c, "mn"));
    settle();
    say!("all", try_recv(c.a, 99), s.b_recv(c, 99));
}

/// A receive of all that it asks for has a part when the kernel comes to serve the connection, and waits for the rest
/// there: the reset that ends it is told by the next one.
pub fn waitall_over_a_demotion_and_reset(s: &mut Stage) {
    for more in [false, true] {
        let c = s.pair();
        let waiting = std::thread::spawn(move || calls::recv(c.a, 10, libc::MSG_WAITALL));
        std::thread::sleep(Duration::from_millis(80));
        say!("a part", s.b_send(c, "0123"));
        settle();
        let low = [libc::SOL_SOCKET, libc::SO_RCVLOWAT];
        say!("theirs", s.b(&format!("option {} {} {} 2", c.b, low[0], low[1])));
        settle();
        if more {
            say!("more", s.b_send(c, "45"));
            settle();
        }
        say!("reset", s.b_reset(c), waiting.join().expect("no panic"));
        say!("then", calls::recv(c.a, 10, 0), calls::recv(c.a, 10, 0), calls::close(c.a));
    }
}

/// A call that waits until all is sent returns when all is sent, whichever way the rest of it takes: the peer has gone back
/// to TCP before, or does while the call waits for room.
pub fn sent_whole_over_a_demotion(s: &mut Stage) {
    const LEN: usize = 16 << 20;
    let bytes = crate::show::stream_bytes(9, 0, LEN);
    let file = calls::memfd(&bytes).expect("a file");
    let (half, rest) = bytes.split_at(LEN / 2 + 77);
    type Sending<'a> = &'a dyn Fn(i32) -> Ret;
    let each: [(&str, Sending<'_>); 4] = [
        ("send", &|fd| calls::send(fd, &bytes, 0)),
        ("writev", &|fd| calls::writev(fd, &[half, b"", rest])),
        ("sendmsg", &|fd| calls::sendmsg(fd, &[half, rest], libc::MSG_NOSIGNAL)),
        ("sendfile", &|fd| calls::sendfile(fd, file, Some(&mut 0), LEN)),
    ];
    for (name, sending) in each {
        for before in [true, false] {
            let c = s.warm_pair(6);
            if before {
                say!("urgent", s.b(&format!("send {} {} U", c.b, libc::MSG_OOB)));
                settle();
            }
            s.tell("sleep 200");
            s.tell(&format!("option {} {} {} 2", c.b, libc::SOL_SOCKET, libc::SO_RCVLOWAT));
            s.tell(&format!("recvn {} {LEN} 9", c.b));
            let sent = sending(c.a);
            say!(name, before, sent, s.answer(), s.answer(), s.answer());
            say!("closed", calls::close(c.a), s.b_recv(c, 9), s.b_close(c));
        }
    }
    // What has a limit, or does not wait at all, says how far it has come.
    let c = s.warm_pair(6);
    say!("urgent", s.b(&format!("send {} {} U", c.b, libc::MSG_OOB)));
    settle();
    let sent = calls::send(c.a, &bytes, libc::MSG_DONTWAIT).is_ok_and(|n| n > 0 && n < LEN);
    calls::set_timeout(c.a, libc::SO_SNDTIMEO, 100).expect("a limit");
    let (limited, when) = timed(|| calls::send(c.a, &bytes, 0));
    say!("a part", sent, limited.is_ok_and(|n| n < LEN) || limited == Err(libc::EAGAIN), when);
}

/// Where a message of several does not go whole, those behind it do not go at all.
pub fn many_messages_up_to_one_that_is_cut(s: &mut Stage) {
    const LEN: usize = 16 << 20;
    let bytes = crate::show::stream_bytes(9, 0, LEN);
    let messages = [&bytes[..], b"behind it"];
    let sent = |sent: Result<Vec<u32>, i32>| {
        sent.map(|all| all.iter().map(|n| *n > 0 && (*n as usize) < LEN).collect::<Vec<_>>())
    };
    let c = s.warm_pair(6);
    calls::set_timeout(c.a, libc::SO_SNDTIMEO, 200).expect("a limit");
    say!("with a limit", sent(calls::sendmmsg(c.a, &messages, 0)));
    for urgent in [false, true] {
        let c = s.warm_pair(6);
        if urgent {
            // The peer's own direction is back on TCP, and ours goes there when there is no room.
            say!("urgent", s.b(&format!("send {} {} U", c.b, libc::MSG_OOB)));
            settle();
        }
        say!("not waiting", sent(calls::sendmmsg(c.a, &messages, libc::MSG_DONTWAIT)));
    }
    // The rest of the first finds room, and the second with it.
    let c = s.warm_pair(6);
    s.b_later(100, &format!("drain {}", c.b));
    say!("waiting", calls::sendmmsg(c.a, &messages, 0).map(|all| all.len()));
}

/// `splice` stops at urgent data, and stays there.
pub fn splice_stops_at_urgent_data(s: &mut Stage) {
    let c = s.pair_nb();
    say!("peer", s.b_send(c, "abc"), s.b(&format!("send {} {} defU", c.b, libc::MSG_OOB)));
    say!("more", s.b_send(c, "ghi"));
    settle();
    let [r, w] = calls::pipe(libc::O_NONBLOCK).expect("a pipe");
    let mut spliced = Vec::new();
    while let Ok(n) = calls::splice(c.a, w, 99, libc::SPLICE_F_NONBLOCK) {
        spliced.extend(calls::read(r, n).expect("what was put there"));
    }
    say!("up to the mark", Ok::<_, i32>(spliced), calls::sockatmark(c.a));
    say!("over it", try_recv(c.a, 99), try_recv(c.a, 99));
}

/// The peer sends urgent data and ends its direction; we go on sending.
pub fn sent_to_a_peer_that_was_urgent_and_has_ended(s: &mut Stage) {
    let c = s.pair_nb();
    say!("peer", s.b(&format!("send {} {} aU", c.b, libc::MSG_OOB)));
    say!("ends", s.b_shutdown(c, libc::SHUT_WR));
    settle();
    say!("poll", s.mask(c.a), try_recv(c.a, 9));
    say!("send", try_send(c.a, "one"), try_send(c.a, "two"));
    settle();
    say!("the peer", s.b_recv(c, 99), s.b_mask(c));
}

/// An end of receiving before anything was received.
pub fn shut_rd_first_of_all(s: &mut Stage) {
    let c = s.fresh_pair();
    say!("shut", calls::shutdown(c.a, libc::SHUT_RD));
    for text in ["one", "two", "three"] {
        say!("peer", s.b_send(c, text));
        say!("send", calls::send(c.a, text.as_bytes(), 0), s.b_recv(c, 9));
    }
    say!("recv", try_recv(c.a, 99), s.mask(c.a));
}

/// A reset behind the peer's end: nothing for who receives, `EPIPE` for who sends.
pub fn reset_behind_the_end(s: &mut Stage) {
    for first in ["recv", "send", "SO_ERROR", "recvmmsg"] {
        let c = s.pair_nb();
        say!(first, s.b_send(c, "abc"), s.b_shutdown(c, libc::SHUT_WR), s.b_reset(c));
        settle();
        say!("poll", s.mask(c.a));
        match first {
            "recv" => say!("recv", try_recv(c.a, 9), try_recv(c.a, 9)),
            "send" => say!("send", try_send(c.a, "x"), try_send(c.a, "x")),
            "SO_ERROR" => say!("SO_ERROR", error(c.a), error(c.a)),
            _ => {
                let all = || {
                    let got = calls::recvmmsg(c.a, &[2, 2], libc::MSG_DONTWAIT, None);
                    got.map(|parts| parts.concat())
                };
                say!("recvmmsg", all(), all(), all());
            }
        }
        say!("then", s.mask(c.a), try_send(c.a, "x"), error(c.a), try_recv(c.a, 9));
    }
}

/// When both have ended nothing can be reset any more.
pub fn no_reset_after_both_ends(s: &mut Stage) {
    let c = s.pair_nb();
    say!("ends", s.b_send(c, "abc"), s.b_shutdown(c, libc::SHUT_WR));
    settle();
    say!("ours", calls::shutdown(c.a, libc::SHUT_RDWR), s.b_mask(c));
    say!("reset", s.b_reset(c), s.mask(c.a));
    say!("recv", try_recv(c.a, 9), try_recv(c.a, 9), error(c.a));
}

/// `recvmmsg` looks for an error before it looks for bytes.
pub fn recvmmsg_tells_errors_first(s: &mut Stage) {
    let c = s.pair_nb();
    say!("unread", try_send(c.a, "xyz"), s.b_send(c, "abc"));
    settle();
    say!("peer closes", s.b_close(c), s.mask(c.a));
    let all = || {
        let got = calls::recvmmsg(c.a, &[2, 2], libc::MSG_DONTWAIT, None);
        got.map(|parts| parts.concat())
    };
    say!("recvmmsg", all(), all(), all());
}

/// We have ended, the peer has shut down both ways and sends nothing: what we send resets.
pub fn error_before_the_pipe_breaks(s: &mut Stage) {
    let c = s.pair_nb();
    say!("ours", calls::shutdown(c.a, libc::SHUT_RDWR));
    say!("peer sends", s.b_send(c, "abc"));
    settle();
    say!("poll", s.mask(c.a), s.b_mask(c));
    say!("send", try_send(c.a, "x"), try_send(c.a, "x"), s.mask(c.a));
}

/// The error of a reset is told once, to whichever process asks first.
pub fn reset_told_to_a_child(s: &mut Stage) {
    let c = s.pair_nb();
    s.b_reset(c);
    settle();
    say!("poll", s.mask(c.a));
    match calls::fork() {
        Forked::Child => calls::exit_now(i32::from(try_send(c.a, "x") == Err(libc::ECONNRESET))),
        Forked::Parent(pid) => say!("child", calls::wait(pid)),
    }
    say!("parent", s.mask(c.a), try_send(c.a, "x"), try_recv(c.a, 9));
}

/// Our own end is an event for who watches edges.
pub fn own_shutdown_is_an_edge(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN | EPOLLOUT | EPOLLET, 1).expect("added");
    say!("at first", calls::epoll_wait(ep, 4, 40), calls::epoll_wait(ep, 4, 20));
    say!("peer ends", s.b_shutdown(c, libc::SHUT_WR));
    settle();
    say!("edge", calls::epoll_wait(ep, 4, 40));
    say!("ours", calls::shutdown(c.a, libc::SHUT_WR));
    say!("edge", calls::epoll_wait(ep, 4, 40).map(|events| events.len()));
}

/// A one-shot registration that has fired stays silent when the kernel takes the connection over.
pub fn one_shot_over_a_demotion(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN | EPOLLONESHOT, 1).expect("added");
    say!("bytes", s.b_send(c, "abc"), calls::epoll_wait(ep, 4, 1000));
    say!("low", calls::setsockopt(c.a, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2));
    say!("more", s.b_send(c, "def"), calls::epoll_wait(ep, 4, 40));
    say!("again", calls::epoll_ctl(ep, libc::EPOLL_CTL_MOD, c.a, EPOLLIN | EPOLLONESHOT, 2));
    say!("event", calls::epoll_wait(ep, 4, 1000), calls::epoll_wait(ep, 4, 40));
}

/// `SO_SNDTIMEO` also limits who sends while the peer has not moved a byte yet, and who hears no more.
pub fn send_timeout_at_the_seams(s: &mut Stage) {
    let c = s.fresh_pair();
    say!("bytes", s.b_send(c, "abc"), calls::recv(c.a, 9, 0));
    say!("set", calls::set_timeout(c.a, libc::SO_SNDTIMEO, 90));
    say!("fill", Stage::fill(c.a));
    let (sent, when) = timed(|| calls::send(c.a, b"x", 0));
    say!("the peer has read nothing", sent, when);
    let c = s.pair();
    say!("set", calls::set_timeout(c.a, libc::SO_SNDTIMEO, 90));
    say!("deaf", calls::shutdown(c.a, libc::SHUT_RD), Stage::fill(c.a));
    let (sent, when) = timed(|| calls::send(c.a, b"x", 0));
    say!("deaf and full", sent, when);
}

/// A registration lives on when its number is closed, and so does its one shot.
pub fn watched_under_a_closed_number(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, 1).expect("added");
    let other = calls::dup(c.a).expect("a duplicate");
    calls::close(c.a).expect("closed");
    say!("low", calls::setsockopt(other, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2));
    say!("bytes", s.b_send(c, "abc"), calls::epoll_wait(ep, 4, 1000));
    say!("recv", try_recv(other, 9), calls::epoll_wait(ep, 4, 40));
}

/// Bytes that were there before a set was shared over `fork` are an event after it.
pub fn set_shared_with_bytes_unread(s: &mut Stage) {
    let c = s.pair_nb();
    let (level, once) = (calls::epoll_create(), calls::epoll_create());
    let (level, once) = (level.expect("a set"), once.expect("a set"));
    say!("bytes", s.b_send(c, "abc"));
    settle();
    say!("some", try_recv(c.a, 1));
    calls::epoll_ctl(level, EPOLL_CTL_ADD, c.a, EPOLLIN, 1).expect("added");
    calls::epoll_ctl(once, EPOLL_CTL_ADD, c.a, EPOLLIN | EPOLLONESHOT, 2).expect("added");
    match calls::fork() {
        Forked::Child => calls::exit_now(i32::from(try_send(c.a, "x") == Ok(1))),
        Forked::Parent(pid) => say!("child", calls::wait(pid), s.b_recv(c, 9)),
    }
    say!("level", calls::epoll_wait(level, 4, 1000), calls::epoll_wait(level, 4, 1000));
    say!("one shot", calls::epoll_wait(once, 4, 1000), calls::epoll_wait(once, 4, 40));
}

/// A connection passed to ourselves when both its ends have ended keeps what is unread.
pub fn passed_to_ourselves_after_the_end(s: &mut Stage) {
    let c = s.pair();
    say!("ends", s.b_send(c, "abcdef"), s.b_shutdown(c, libc::SHUT_WR));
    settle();
    say!("ours", calls::recv(c.a, 2, 0), calls::shutdown(c.a, libc::SHUT_WR), s.b_close(c));
    let [one, two] = calls::socketpair().expect("a pair");
    say!("pass", calls::send_fd(one, c.a));
    let fd = calls::recv_fd(two).expect("it arrives");
    calls::close(c.a).expect("closed");
    say!("recv", try_recv(fd, 9), try_recv(fd, 9));
}

/// `aio_read` and `lio_listio`.
pub fn asynchronous(s: &mut Stage) {
    let c = s.pair();
    say!("write", calls::unseen::aio_write(c.a, b"there"), s.b_recv(c, 9));
    say!("peer", s.b_send(c, "back"), calls::unseen::aio_read(c.a, 9));
    s.b_later(60, &format!("send {} 0 later", c.b));
    say!("waits", calls::unseen::aio_read(c.a, 9));
    say!("works", calls::send(c.a, b"x", 0), s.b_recv(c, 9));
}

/// `dprintf` as programs call it that were compiled with `_FORTIFY_SOURCE`.
pub fn dprintf_fortified(s: &mut Stage) {
    let c = s.pair();
    say!("send", calls::send(c.a, b"one ", 0), calls::unseen::dprintf_fortified(c.a, "two"));
    std::thread::sleep(Duration::from_millis(40));
    say!("the peer", s.b_recv(c, 99));
    say!("back", s.b_send(c, "fine"), calls::recv(c.a, 9, 0));
}

/// Less than the low water mark is unread, and urgent data behind it, for which the peer has gone back to TCP: with what
/// it takes along, and with more.
pub fn low_water_mark_and_urgent_data(s: &mut Stage) {
    for (len, mark) in [(71, 100), (40_000, 50_000)] {
        let c = s.pair();
        say!("sent", len, s.b(&format!("sendn {} {len} 7", c.b)));
        say!("urgent", s.b(&format!("send {} {} !", c.b, libc::MSG_OOB)));
        settle();
        say!("set", calls::setsockopt(c.a, libc::SOL_SOCKET, libc::SO_RCVLOWAT, mark));
        say!("readable", calls::poll(c.a, libc::POLLIN, 0));
        say!("more", s.b(&format!("sendn {} 20000 9", c.b)));
        say!("readable", calls::poll(c.a, libc::POLLIN, 1000));
    }
}

/// The socket is full of bytes from before shared memory, and more lie there, when the reader asks for what only the kernel
/// can. The peer has been stopped and cannot go back by itself for now; who reads must not wait for room that it alone can
/// make.
pub fn back_to_tcp_behind_a_full_socket(s: &mut Stage) {
    const LEN: usize = 12 << 20;
    for stream in [false, true] {
        let (listener, port) = s.listener(16);
        say!("room", calls::setsockopt(listener, libc::SOL_SOCKET, libc::SO_RCVBUF, 40_000));
        let b = Stage::number(&s.b(&format!("connect {port}")));
        // Or its send would wait in the kernel, or in the middle. And room that is sure to end.
        say!("blocks", s.b(&format!("nonblock {b} 1")));
        let sockets = libc::SOL_SOCKET;
        say!("room", s.b(&format!("option {b} {sockets} {} 40000", libc::SO_SNDBUF)));
        let a = calls::accept(listener, 0).expect("a connection");
        s.tell(&format!("sendn {b} {LEN} 7"));
        settle();
        say!("first", calls::recv(a, 4, libc::MSG_PEEK).map(|bytes| bytes.len()));
        settle();
        let peer = s.peer_pid();
        calls::kill(peer, libc::SIGSTOP).expect("stopped");
        let goes_on = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            calls::kill(peer, libc::SIGCONT)
        });
        // A stream's own descriptor is another one.
        let file = stream.then(|| calls::Stream::open(calls::dup(a).expect("another"), "r"));
        if !stream {
            say!("set", calls::setsockopt(a, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 4));
        }
        say!("all", receive_stream(a, LEN, 7), s.answer(), goes_on.join().expect("went on"));
        say!("closed", s.b(&format!("close {b}")), calls::recv(a, 9, 0), calls::close(a));
        if let Some(file) = file {
            say!("stream", file.and_then(calls::Stream::close));
        }
        let _ = calls::close(listener);
    }
}
