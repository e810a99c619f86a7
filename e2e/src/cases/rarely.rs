//! What few programs do: two processes that listen on one port, bytes with the handshake, numbers that were closed
//! past libc, control data and addresses that make no sense.

use libc::{IPPROTO_TCP, MSG_DONTWAIT, POLLIN, POLLOUT, SHUT_WR, SO_REUSEPORT, SOL_SOCKET};

use crate::calls::rarely::{
    FASTOPEN_CONNECT, MAKERS, Name, close_unseen, connect_of, exit_by_number, exit_quickly,
    fork_by_number, getsockopt_of, limit_addresses, limit_of_another, lock_memory,
    lock_more_memory_than_allowed, name_in, open_with, recv_unseen, send_with, soft_limit,
    unlock_memory, wait_for_ever, written_of,
};
use crate::calls::{self, Forked};
use crate::say;
use crate::stage::{Conn, Role, SETTLE, Stage, timed};

fn settle() {
    std::thread::sleep(SETTLE);
}

/// Requests and answers, so that whoever can leave TCP does.
fn warm(s: &mut Stage, c: Conn) {
    for _ in 0..6 {
        say!("sent", calls::send(c.a, b"there", 0), s.b_recv(c, 9));
        say!("received", s.b_send(c, "back"), calls::recv(c.a, 9, 0));
    }
}

/// Both directions, then each end's end.
fn to_the_end(s: &mut Stage, c: Conn) {
    warm(s, c);
    say!("shut", calls::shutdown(c.a, SHUT_WR), s.b_recv(c, 9));
    say!("last", s.b_send(c, "last"), s.b_close(c));
    say!("the end", calls::recv(c.a, 9, 0), calls::recv(c.a, 9, 0), calls::close(c.a));
}

/// Two processes with a listener each on one port: the kernel deals connections out to them, and whoever gets one
/// serves it. Then one of them is closed, and the other gets all.
pub fn reuseport_of_two(s: &mut Stage) {
    const COUNT: usize = 12;
    let ours = calls::prompt_socket(0).expect("a socket");
    calls::setsockopt(ours, SOL_SOCKET, SO_REUSEPORT, 1).expect("an option");
    calls::bind(ours, 0).expect("a port");
    calls::listen(ours, 64).expect("a listener");
    calls::set_nonblocking(ours, true).expect("a flag");
    let port = calls::local_port(ours).expect("its port");
    let theirs = Stage::number(&s.b(&format!("listen_too {port}")));
    let connect = || {
        let fd = calls::prompt_socket(0).expect("a socket");
        calls::connect(fd, port).map(|_| fd).expect("a connection")
    };
    let mut clients: Vec<i32> = (0..COUNT).map(|_| connect()).collect();
    // By the number that each client sends first.
    for (name, fd) in (b'A'..).zip(&clients) {
        calls::send(*fd, &[name], 0).expect("sent");
    }
    let mut served = vec![None; COUNT];
    while served.iter().any(Option::is_none) {
        if let Ok(fd) = calls::accept(ours, 0) {
            let first = calls::recv(fd, 1, 0).expect("its number");
            served[usize::from(first[0] - b'A')] = Some((true, fd));
        }
        if let Ok(fd) = s.b(&format!("accept_now {theirs}")).parse::<i32>() {
            let first = s.b(&format!("first {fd}"));
            served[first.parse::<usize>().expect("a byte") - usize::from(b'A')] = Some((false, fd));
        }
    }
    let served: Vec<(bool, i32)> = served.into_iter().flatten().collect();
    for round in 0..6 {
        for (i, (fd, by)) in clients.iter().zip(&served).enumerate() {
            say!("turn", round, i, turn(s, *fd, *by));
        }
    }
    say!("ours closed", calls::close(ours));
    for _ in 0..3 {
        let fd = connect();
        let by = Stage::number(&s.b(&format!("accept {theirs}")));
        for _ in 0..6 {
            say!("turn", turn(s, fd, (false, by)));
        }
        clients.push(fd);
    }
    // Those that ours had accepted go on.
    for (fd, by) in clients.iter().zip(&served) {
        say!("still", turn(s, *fd, *by));
        say!("closed", calls::close(*fd), end_of(s, *by));
    }
}

/// A request and its answer over a connection of ours, which we or the peer serve.
fn turn(s: &mut Stage, fd: i32, (ours, by): (bool, i32)) -> bool {
    let sent = calls::send(fd, b"request", 0) == Ok(7);
    if ours {
        let got = calls::recv(by, 99, 0) == Ok(b"request".to_vec());
        let _ = calls::send(by, b"answer", 0);
        return sent && got && calls::recv(fd, 99, 0) == Ok(b"answer".to_vec());
    }
    let got = s.b(&format!("recv {by} 99 0"));
    let _ = s.b(&format!("send {by} 0 answer"));
    sent && got.contains("request") && calls::recv(fd, 99, 0) == Ok(b"answer".to_vec())
}

fn end_of(s: &mut Stage, (ours, by): (bool, i32)) -> bool {
    if ours {
        calls::recv(by, 9, 0) == Ok(Vec::new()) && calls::close(by).is_ok()
    } else {
        let end = s.b(&format!("recv {by} 9 0"));
        s.b(&format!("close {by}")) == "0"
            && end == crate::show::Show::show(&Ok::<_, i32>(Vec::<u8>::new()))
    }
}

/// Bytes with the handshake, asked for in each way that there is and at both ends. Where the kernel does not grant it
/// (by default it does to clients only), they follow the handshake. Twice: the second time there is a cookie.
pub fn fast_open(s: &mut Stage) {
    const QUEUE: i32 = 16;
    let answer = s.b("listen");
    let (theirs, their_port) = answer.split_once(' ').expect("a listener");
    let their_port: u16 = their_port.parse().expect("a port");
    say!("theirs", s.b(&format!("option {theirs} {IPPROTO_TCP} {} {QUEUE}", libc::TCP_FASTOPEN)));
    let (ours, our_port) = s.listener(16);
    say!("ours", calls::setsockopt(ours, IPPROTO_TCP, libc::TCP_FASTOPEN, QUEUE));
    for (by_message, blocks) in [(false, true), (false, true), (true, true), (false, false)] {
        let a = calls::prompt_socket(0).expect("a socket");
        calls::set_nonblocking(a, !blocks).expect("a flag");
        say!("first bytes", open_with(a, their_port, b"first", by_message));
        calls::set_nonblocking(a, false).expect("a flag");
        let c = Conn { a, b: Stage::number(&s.b(&format!("accept {theirs}"))) };
        say!("came", s.b_recv(c, 5));
        to_the_end(s, c);
    }
    // An option has `connect` wait for the first bytes.
    for _ in 0..2 {
        let a = calls::prompt_socket(0).expect("a socket");
        say!("option", calls::setsockopt(a, IPPROTO_TCP, FASTOPEN_CONNECT, 1));
        say!("connect", calls::connect(a, their_port), calls::send(a, b"first", 0));
        let c = Conn { a, b: Stage::number(&s.b(&format!("accept {theirs}"))) };
        say!("came", s.b_recv(c, 5));
        to_the_end(s, c);
    }
    for _ in 0..2 {
        let b = Stage::number(&s.b(&format!("open_with {our_port} first")));
        let c = Conn { a: calls::accept(ours, 0).expect("a connection"), b };
        say!("came", calls::recv(c.a, 5, 0));
        to_the_end(s, c);
    }
    // Once connected the flag says nothing any more.
    let c = s.pair();
    say!("later", calls::send(c.a, b"later", libc::MSG_FASTOPEN), s.mask(c.a));
}

/// A number that was closed past libc and that the next call hands out is what that call has made.
pub fn number_closed_past_us(s: &mut Stage) {
    for (name, make) in MAKERS {
        let c = s.pair();
        close_unseen(c.a).expect("closed");
        let (fd, other) = make().expect(name);
        say!(*name, fd == c.a, other.is_some());
        say!("as a socket", calls::recv(fd, 9, MSG_DONTWAIT), calls::shutdown(fd, SHUT_WR));
        say!("ready", calls::poll(fd, POLLIN | POLLOUT, 0));
        if let Some(other) = other {
            say!("other", calls::write(other, b"x"), calls::read(fd, 9), calls::close(other));
        }
        say!("duplicate", calls::dup(fd).and_then(calls::close), calls::close(fd));
        // The connection itself has ended.
        say!("the peer", s.b(&format!("drain {}", c.b)), s.b_close(c));
    }
}

/// Bytes that a server has taken by a system call of its own making, before anything else. (A client's cannot be told
/// apart: see `docs/conformance.md`.)
pub fn bytes_taken_past_us(s: &mut Stage) {
    let c = s.fresh_pair();
    say!("sent", s.b_send(c, "unseen and seen"));
    settle();
    let unseen = |fd, len| match s.role() {
        Role::Server => recv_unseen(fd, len, 0),
        Role::Client => calls::recv(fd, len, 0),
    };
    say!("unseen", unseen(c.a, 7));
    say!("seen", calls::recv(c.a, 99, 0));
    to_the_end(s, c);
}

/// Control data to send: what TCP takes no notice of, what it does not know, and what is none.
pub fn control_data_to_send(s: &mut Stage) {
    for (level, kind, len) in [
        (SOL_SOCKET, libc::SCM_RIGHTS, 20),
        (SOL_SOCKET, libc::SO_TIMESTAMPING, 20),
        (SOL_SOCKET, 9999, 20),
        (libc::IPPROTO_IP, libc::IP_TOS, 20),
        (SOL_SOCKET, libc::SO_TIMESTAMPING, 3),
        (SOL_SOCKET, libc::SO_TIMESTAMPING, 4096),
    ] {
        for c in [s.fresh_pair(), s.pair()] {
            say!("with control data", send_with(c.a, b"bytes", level, kind, len), s.mask(c.a));
            say!("and now", calls::send(c.a, b"more", 0));
            settle();
            say!("came", s.b(&format!("recvnow {} 99 0", c.b)));
            to_the_end(s, c);
        }
    }
}

/// Room for a part of an address, for none, and for less than none.
pub fn truncated_addresses(s: &mut Stage) {
    let (listener, port) = s.listener(16);
    let c = s.pair();
    for room in [16, 8, 2, 0, 128, -1, i32::MIN] {
        let b = s.b(&format!("connect {port}"));
        say!(
            "accept",
            room,
            name_in(Name::Accept, listener, room).map(|(n, at)| format!("{n} {at:x?}"))
        );
        say!("closed", s.b(&format!("close {b}")));
        for what in [Name::Local, Name::Remote] {
            say!("name", room, name_in(what, c.a, room).map(|(n, at)| format!("{n} {at:x?}")));
        }
    }
    for len in [0, 2, 8, 15, 16, 28, 128, 129] {
        let a = calls::prompt_socket(0).expect("a socket");
        let done = connect_of(a, port, len);
        say!(
            "connect",
            len,
            done,
            done.is_ok() && calls::accept(listener, 0).and_then(calls::close).is_ok()
        );
        say!("closed", calls::close(a));
    }
    to_the_end(s, c);
}

/// A socket that connects to itself.
pub fn connected_to_itself(s: &mut Stage) {
    let a = calls::prompt_socket(0).expect("a socket");
    calls::bind(a, 0).expect("a port");
    let port = calls::local_port(a).expect("its port");
    say!("connect", calls::connect(a, port), calls::peer_port(a) == Ok(port), s.mask(a));
    for _ in 0..6 {
        say!("to itself", calls::send(a, b"hello", 0), calls::recv(a, 9, 0));
    }
    say!("end", calls::shutdown(a, SHUT_WR), calls::recv(a, 9, 0), s.mask(a), calls::close(a));
}

/// Options that put off when a listener's connections are there, and that map what has come.
pub fn options_for_bytes(s: &mut Stage) {
    let (listener, port) = s.listener(16);
    say!("defer", calls::setsockopt(listener, IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 5));
    calls::set_nonblocking(listener, true).expect("a flag");
    let b = Stage::number(&s.b(&format!("connect {port}")));
    settle();
    say!("nobody yet", calls::accept(listener, 0));
    say!("bytes", s.b(&format!("send {b} 0 first")), calls::poll(listener, POLLIN, 5000));
    let c = Conn { a: calls::accept(listener, 0).expect("a connection"), b };
    say!("came", calls::recv(c.a, 9, 0));
    to_the_end(s, c);
    // TCP_ZEROCOPY_RECEIVE, of no memory: nothing is taken.
    for c in [s.fresh_pair(), s.pair()] {
        s.b_send(c, "unread");
        settle();
        say!(
            "mapped",
            getsockopt_of(c.a, IPPROTO_TCP, 35, 4),
            getsockopt_of(c.a, IPPROTO_TCP, 35, 64)
        );
        say!("still there", calls::recv(c.a, 99, MSG_DONTWAIT));
        to_the_end(s, c);
    }
}

/// `dup2` over numbers that a program thinks are free, where the library may keep what is its own.
pub fn numbers_of_the_library(s: &mut Stage) {
    let c = s.pair();
    let [r, w] = calls::pipe(0).expect("a pipe");
    calls::write(w, b"x").expect("written");
    // Those that are open in any process that was started so.
    for to in (1000..1012).chain([1023]) {
        say!("over", to, calls::dup2(r, to), calls::poll(to, POLLIN, 0));
        say!(
            "turn",
            s.b_send(c, "there"),
            calls::recv(c.a, 9, 0),
            calls::send(c.a, b"back", 0),
            s.b_recv(c, 9)
        );
    }
    let c2 = s.pair();
    to_the_end(s, c2);
    for to in (1000..1012).chain([1023]) {
        say!("still", calls::poll(to, POLLIN, 0), calls::close(to));
    }
    to_the_end(s, c);
}

/// The same where the library keeps a connection open that was closed under a call of another thread.
pub fn numbers_of_calls_that_go_on(s: &mut Stage) {
    let [r, w] = calls::pipe(0).expect("a pipe");
    calls::write(w, b"x").expect("written");
    for texts in [&["one"][..], &["on", "e"]] {
        let c = s.pair();
        let blocked = std::thread::spawn(move || calls::recv(c.a, 3, libc::MSG_WAITALL));
        settle();
        say!("closed", calls::close(c.a));
        for to in (1000..1012).chain([1023]) {
            say!("over", to, calls::dup2(r, to), calls::poll(to, POLLIN, 0));
        }
        settle();
        say!("still in recv", !blocked.is_finished());
        for text in texts {
            s.b_send(c, text);
            settle();
        }
        say!("bytes", blocked.join().expect("no panic"));
        settle();
        say!("the peer", s.b_mask(c), s.b_close(c));
        for to in (1000..1012).chain([1023]) {
            say!("still", calls::poll(to, POLLIN, 0), calls::read(to, 0), calls::close(to));
        }
    }
    let c = s.pair();
    to_the_end(s, c);
}

/// A table without a free number, and `dup2` over the high ones, where the library may keep what is its own: what cannot
/// be moved stays, and all goes on.
pub fn full_table_of_numbers(s: &mut Stage) {
    const HIGH: std::ops::Range<i32> = 1000..1012;
    let c = s.pair();
    let [r, w] = calls::pipe(0).expect("a pipe");
    calls::write(w, b"x").expect("written");
    let before = soft_limit(HIGH.end.unsigned_abs().into()).expect("a limit");
    let mut all = Vec::new();
    let full = loop {
        match calls::dup(r) {
            Ok(fd) => all.push(fd),
            Err(e) => break e,
        }
    };
    say!("full", full == libc::EMFILE);
    for to in HIGH {
        let got = calls::dup2(r, to);
        // Refused only where what is there is not the program's.
        let is_ours = got == Ok(to) || all.contains(&to);
        say!("over", to, got == Ok(to) || got == Err(libc::EMFILE) && !is_ours);
        if got.is_ok() && !all.contains(&to) {
            all.push(to);
        }
    }
    warm(s, c);
    say!("closed", all.into_iter().all(|fd| calls::close(fd).is_ok()));
    soft_limit(before).expect("the limit");
    let c2 = s.pair();
    to_the_end(s, c2);
    to_the_end(s, c);
}

/// `close_range` that first makes the table of descriptors this process's own.
pub fn close_range_unshares(s: &mut Stage) {
    const UNSHARE: i32 = 2;
    let (c, other) = (s.pair(), s.pair());
    say!("closed", calls::close_range(c.a, c.a, UNSHARE), s.b_recv(c, 9), s.b_mask(c));
    say!("gone", calls::send(c.a, b"x", 0), calls::recv(c.a, 9, 0));
    to_the_end(s, other);
    // A thread's own table: the others keep theirs.
    let c = s.pair();
    let closed = std::thread::spawn(move || calls::close_range(c.a, c.a, UNSHARE)).join();
    say!("closed for one", closed.expect("no panic"));
    settle();
    to_the_end(s, c);
}

/// Which memory is locked by what a program asks for in turn, and by what it may not have.
pub fn memory_locked_in_turn(s: &mut Stage) {
    use libc::{MCL_CURRENT, MCL_FUTURE};
    let c = s.pair();
    for flags in [MCL_FUTURE, MCL_CURRENT, MCL_CURRENT | MCL_FUTURE, MCL_CURRENT] {
        say!("locked", flags, lock_memory(flags));
    }
    say!("none", unlock_memory());
    for flags in [MCL_CURRENT, MCL_CURRENT | MCL_FUTURE] {
        say!("too much", flags, lock_more_memory_than_allowed(flags));
    }
    to_the_end(s, c);
}

/// How much address space a program may have that says so itself: what is the library's does not count.
pub fn addresses_limited(s: &mut Stage) {
    let c = s.pair();
    // More than the programs of these cases have, and less than the library.
    let limit = 4 << 30;
    for by in ["setrlimit", "setrlimit64", "prlimit", "prlimit64"] {
        say!("limited", by, limit_addresses(by, limit));
        say!("and not", by, limit_addresses(by, libc::RLIM_INFINITY));
    }
    say!("limited", limit_addresses("setrlimit", limit));
    // Another program has the limit that was set, and nothing else.
    say!("another program's, KiB", limit_of_another());
    say!("and not", limit_addresses("setrlimit", libc::RLIM_INFINITY));
    to_the_end(s, c);
}

/// A child made by the number of `fork` or of `clone`, and ended by that of `exit_group`.
pub fn forked_by_number(s: &mut Stage) {
    for clone in [false, true] {
        for c in [s.fresh_pair(), s.pair()] {
            let Some(child) = fork_by_number(clone) else { continue };
            let pid = match child {
                Forked::Child => {
                    let _ = calls::send(c.a, b"from the child", 0);
                    exit_by_number(3)
                }
                Forked::Parent(pid) => pid,
            };
            say!("the child", calls::wait(pid), s.b_recv(c, 99));
            to_the_end(s, c);
        }
    }
}

/// Options whose answer has less room than it has bytes: no more is written.
pub fn options_cut_short(s: &mut Stage) {
    let c = s.pair();
    for (level, name) in [(SOL_SOCKET, libc::SO_ERROR), (IPPROTO_TCP, libc::TCP_NODELAY)] {
        for room in 0..5 {
            say!("bytes written", name, room, written_of(c.a, level, name, room));
        }
    }
    to_the_end(s, c);
}

/// Waits that are meant to last for ever, by the largest time that there is.
pub fn waits_of_centuries(s: &mut Stage) {
    let c = s.pair();
    // Seconds and nanoseconds together wrap to a little less than a second.
    for (name, ms) in [("ppoll", 1100), ("pselect", 150), ("select", 1100), ("epoll_pwait2", 150)] {
        s.b_later(ms, &format!("send {} 0 late", c.b));
        let (got, when) = timed(|| wait_for_ever(name, c.a));
        say!(name, got, when, calls::recv(c.a, 9, 0));
    }
    to_the_end(s, c);
}

/// The last holder of a connection ends without anything that is done at exit.
pub fn ended_quickly(s: &mut Stage) {
    for (quick, unread) in [(true, false), (false, false), (true, true), (false, true)] {
        let c = s.pair();
        if unread {
            s.b_send(c, "unread");
            settle();
        }
        let pid = match calls::fork() {
            Forked::Child => {
                let _ = calls::send(c.a, b"from the child", 0);
                if quick { exit_quickly(3) } else { calls::exit_now(3) }
            }
            Forked::Parent(pid) => pid,
        };
        say!("parent closes", calls::close(c.a), calls::wait(pid));
        settle();
        say!("the peer", s.b_mask(c), s.b(&format!("drain {}", c.b)), s.b_close(c));
    }
}
