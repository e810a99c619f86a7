//! What few programs ask for: options that only the kernel can honour, set at each moment of a connection;
//! time limits that come back; sets in sets; more descriptors than a set is made for.

use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN, EPOLLOUT, EPOLLRDHUP, O_ASYNC, POLLIN, SOL_SOCKET};

use crate::calls::corner::{
    control_of, control_within, recvmmsg_until, select_of_many, table_size,
};
use crate::calls::{self, Bytes, Ret};
use crate::say;
use crate::stage::{Conn, SETTLE, Stage, timed};

fn settle() {
    std::thread::sleep(SETTLE);
}

fn try_recv(fd: i32, len: usize) -> Bytes {
    calls::recv(fd, len, libc::MSG_DONTWAIT)
}

/// Requests and answers, so that whoever can leave TCP does.
fn warm(s: &mut Stage, c: Conn) {
    for _ in 0..6 {
        say!("sent", calls::send(c.a, b"there", 0), s.b_recv(c, 9));
        say!("received", s.b_send(c, "back"), calls::recv(c.a, 9, 0));
    }
}

/// A connection of ours to a listener of the peer's, `prepare` being done before it is connected.
fn prepared(s: &mut Stage, prepare: impl FnOnce(i32)) -> Conn {
    let answer = s.b("listen");
    let (listener, port) = answer.split_once(' ').expect("a listener");
    let a = calls::prompt_socket(0).expect("a socket");
    prepare(a);
    calls::connect(a, port.parse().expect("a port")).expect("a connection");
    let b = Stage::number(&s.b(&format!("accept {listener}")));
    Conn { a, b }
}

/// A connection that a listener of ours has accepted, `prepare` being done to that listener.
fn inherited(s: &mut Stage, prepare: impl FnOnce(i32)) -> Conn {
    let (listener, port) = s.listener(16);
    prepare(listener);
    let b = Stage::number(&s.b(&format!("connect {port}")));
    let a = calls::accept(listener, 0).expect("a connection");
    calls::close(listener).expect("closed");
    Conn { a, b }
}

/// The connection in each of its ways of life: `set` is done before it, to its listener, before its first
/// byte, and when it is in use.
fn each_way(s: &mut Stage, set: impl Fn(i32), then: impl Fn(&mut Stage, Conn)) {
    let c = prepared(s, &set);
    warm(s, c);
    then(s, c);
    let c = inherited(s, &set);
    warm(s, c);
    then(s, c);
    let c = s.fresh_pair();
    set(c.a);
    warm(s, c);
    then(s, c);
    let c = s.pair();
    set(c.a);
    then(s, c);
}

fn signals(s: &mut Stage, c: Conn) {
    let _ = calls::arrived(libc::SIGIO);
    s.b_send(c, "abc");
    settle();
    say!("SIGIO", calls::arrived(libc::SIGIO) > 0, calls::recv(c.a, 9, 0));
    let flags = calls::fcntl(c.a, libc::F_GETFL, 0).map(|fl| fl & O_ASYNC as usize != 0);
    say!("flag", flags, calls::fcntl(c.a, libc::F_GETOWN, 0).map(|pid| pid != 0));
}

/// Signals for bytes, asked for at each moment. A listener's are not those of what it accepts.
pub fn signals_for_bytes(s: &mut Stage) {
    calls::count(libc::SIGIO, libc::SA_RESTART).expect("a handler");
    let set = |fd| {
        say!("owner", calls::fcntl(fd, libc::F_SETOWN, calls::getpid()));
        say!("flags", calls::fcntl(fd, libc::F_SETFL, O_ASYNC));
    };
    each_way(s, set, signals);
}

/// The listener's own signal: somebody has come.
pub fn signals_of_a_listener(s: &mut Stage) {
    calls::count(libc::SIGIO, libc::SA_RESTART).expect("a handler");
    let (listener, port) = s.listener(16);
    say!("owner", calls::fcntl(listener, libc::F_SETOWN, calls::getpid()));
    say!("flags", calls::fcntl(listener, libc::F_SETFL, O_ASYNC | libc::O_NONBLOCK));
    for _ in 0..3 {
        let b = Stage::number(&s.b(&format!("connect {port}")));
        settle();
        say!("somebody came", calls::arrived(libc::SIGIO) > 0);
        let c = Conn { a: calls::accept(listener, 0).expect("a connection"), b };
        say!("blocks", calls::fcntl(c.a, libc::F_GETFL, 0).map(|fl| fl & 0o4000));
        warm(s, c);
        let _ = calls::arrived(libc::SIGIO);
        signals(s, c);
        say!("closed", calls::close(c.a), s.b_close(c));
    }
}

/// `SO_RCVLOWAT` at each moment.
pub fn low_water_mark_at_any_time(s: &mut Stage) {
    let set = |fd| say!("low", calls::setsockopt(fd, SOL_SOCKET, libc::SO_RCVLOWAT, 4));
    each_way(s, set, |s, c| {
        s.b_send(c, "ab");
        settle();
        say!("two", calls::poll(c.a, POLLIN, 0), s.b_send(c, "cd"), s.mask(c.a));
        say!("all", calls::recv(c.a, 9, 0));
    });
}

/// `SO_PEEK_OFF`: each look begins where the last one ended.
pub fn peek_offset(s: &mut Stage) {
    let off = |fd| calls::getsockopt(fd, SOL_SOCKET, libc::SO_PEEK_OFF);
    let set = |fd, n: i32| calls::setsockopt(fd, SOL_SOCKET, libc::SO_PEEK_OFF, n);
    let look = |fd, n| calls::recv(fd, n, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    each_way(
        s,
        |fd| say!("set", off(fd), set(fd, 0), off(fd)),
        |s, c| {
            s.b_send(c, "0123456789");
            settle();
            say!("looks", look(c.a, 3), look(c.a, 3), off(c.a), try_recv(c.a, 2), off(c.a));
            say!("looks", look(c.a, 3), look(c.a, 9), look(c.a, 9));
            say!("off", set(c.a, -1), look(c.a, 3), look(c.a, 3), try_recv(c.a, 99));
        },
    );
}

/// Turned off where it is off: nothing changes.
pub fn peek_offset_off(s: &mut Stage) {
    let c = s.pair_nb();
    say!("off", calls::setsockopt(c.a, SOL_SOCKET, libc::SO_PEEK_OFF, -1));
    s.b_send(c, "0123456789");
    settle();
    let look = |n| calls::recv(c.a, n, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    say!("looks", look(3), look(3), try_recv(c.a, 2), look(3), try_recv(c.a, 99));
}

fn control_data(s: &mut Stage, level: i32, name: i32) {
    let set = |fd| {
        say!("set", calls::setsockopt(fd, level, name, 1), calls::getsockopt(fd, level, name));
        // Stamps begin a moment later.
        settle();
    };
    each_way(s, set, |s, c| {
        s.b_send(c, "abcdef");
        settle();
        let (look, of_look) = control_of(c.a, 3, libc::MSG_PEEK);
        say!("look", look, of_look.len());
        for _ in 0..2 {
            let (bytes, control) = control_of(c.a, 3, 0);
            say!("bytes", bytes);
            control.iter().for_each(|(level, kind)| say!("control", *level, *kind));
        }
        say!("off", calls::setsockopt(c.a, level, name, 0), s.b_send(c, "ghi"));
        let (bytes, control) = control_of(c.a, 9, 0);
        say!("bytes", bytes, control.len());
    });
}

/// `SO_TIMESTAMP`: when the bytes came, as control data.
pub fn time_stamps(s: &mut Stage) {
    control_data(s, SOL_SOCKET, libc::SO_TIMESTAMP);
}

/// `SO_TIMESTAMP`, and receives that have no room to be told, as iperf does it.
pub fn time_stamps_unseen(s: &mut Stage) {
    let set = |fd| say!("set", calls::setsockopt(fd, SOL_SOCKET, libc::SO_TIMESTAMP, 1));
    each_way(s, set, |s, c| {
        s.b_send(c, "abcdef");
        say!("some", calls::recv(c.a, 3, 0), calls::read(c.a, 9));
        warm(s, c);
    });
}

/// `SO_TIMESTAMPNS`.
pub fn time_stamps_fine(s: &mut Stage) {
    control_data(s, SOL_SOCKET, libc::SO_TIMESTAMPNS);
}

/// `SO_TIMESTAMP_NEW` and `SO_TIMESTAMPNS_NEW`, by their numbers.
pub fn time_stamps_new(s: &mut Stage) {
    control_data(s, SOL_SOCKET, 63);
    control_data(s, SOL_SOCKET, 64);
}

/// `TCP_INQ`: how much is left, as control data.
pub fn left_in_queue(s: &mut Stage) {
    control_data(s, libc::IPPROTO_TCP, 36);
}

/// `TCP_INQ` with all kinds of room, in the middle, at the last byte and at the end.
pub fn left_in_queue_counted(s: &mut Stage) {
    let set = |fd| {
        let set = |on| calls::setsockopt(fd, libc::IPPROTO_TCP, 36, on);
        say!("set", set(2), set(1), calls::getsockopt(fd, libc::IPPROTO_TCP, 36));
    };
    each_way(s, set, |s, c| {
        let some = |s: &mut Stage, room, flags| {
            s.b_send(c, "abcdefgh");
            settle();
            for _ in 0..2 {
                let (bytes, flags, used, control) = control_within(c.a, 3, flags, room);
                say!("some", bytes, flags, used, control);
            }
            let (bytes, flags, used, control) = control_within(c.a, 20, 0, room);
            say!("rest", bytes, flags, used, control);
        };
        for room in [64, 24, 23, 20, 17, 16, 15, 1, 0] {
            some(s, room, 0);
        }
        some(s, 64, libc::MSG_PEEK);
        let nothing = control_within(c.a, 3, libc::MSG_DONTWAIT, 64);
        say!("nothing", nothing.0, nothing.1, nothing.2);
        say!("ends", s.b_send(c, "abc"), s.b_shutdown(c, libc::SHUT_WR));
        settle();
        for _ in 0..3 {
            let (bytes, flags, used, control) = control_within(c.a, 2, 0, 24);
            say!("the end", bytes, flags, used, control);
        }
    });
}

/// A listener that comes from elsewhere, with `TCP_INQ` and without: what it accepts has what it has.
pub fn left_in_queue_of_a_listener_that_was_passed(s: &mut Stage) {
    for on in [0, 1] {
        let (listener, port) = s.listener(16);
        say!("set", calls::setsockopt(listener, libc::IPPROTO_TCP, 36, on));
        let [one, two] = calls::socketpair().expect("a pair");
        say!("pass", calls::send_fd(one, listener), calls::close(listener));
        let listener = calls::recv_fd(two).expect("it arrives");
        let b = Stage::number(&s.b(&format!("connect {port}")));
        let c = Conn { a: calls::accept(listener, 0).expect("a connection"), b };
        warm(s, c);
        for room in [64, 0] {
            s.b_send(c, "abcdef");
            settle();
            let (bytes, flags, used, control) = control_within(c.a, 9, 0, room);
            say!("room", bytes, flags, used, control);
        }
        for fd in [listener, one, two, c.a] {
            say!("closed", calls::close(fd));
        }
    }
}

/// The time limit of `recvmmsg`: refused if it is none, looked at after each message, and written back.
pub fn many_messages_with_a_limit(s: &mut Stage) {
    let c = s.pair();
    s.b_send(c, "abcdef");
    settle();
    for limit in [(-1, 0), (0, -1), (0, 1_000_000_000), (1, 2_000_000_000)] {
        say!("no limit", recvmmsg_until(c.a, &[2, 2], 0, limit));
    }
    say!("over at once", recvmmsg_until(c.a, &[2, 2], 0, (0, 0)));
    let (got, left) = recvmmsg_until(c.a, &[2, 2, 2], libc::MSG_DONTWAIT, (5, 0));
    say!("two", got, left < (5, 0), left >= (4, 0));
    let (got, left) = recvmmsg_until(c.a, &[2], libc::MSG_DONTWAIT, (5, 0));
    say!("nothing", got, left);
    // It is looked at between messages only.
    s.b_send(c, "gh");
    s.b_later(150, &format!("send {} 0 ij", c.b));
    let ((got, left), when) = timed(|| recvmmsg_until(c.a, &[2, 2, 2], 0, (0, 50_000_000)));
    say!("late", got, when, left);
    let wait = libc::MSG_WAITFORONE;
    s.b_later(120, &format!("send {} 0 kl", c.b));
    let ((got, left), when) = timed(|| recvmmsg_until(c.a, &[2, 2], wait, (5, 0)));
    say!("wait for one", got, when, left < (5, 0), left >= (3, 0));
    // An error behind messages is the next call's.
    s.b_send(c, "mnopqr");
    s.b_reset(c);
    settle();
    let (got, _) = recvmmsg_until(c.a, &[2, 2, 2, 2], 0, (5, 0));
    say!("then an error", got);
    say!("next", try_recv(c.a, 9), try_recv(c.a, 9));
}

/// Sets in sets, down to where the kernel refuses; what is ready in the innermost is ready in all.
pub fn epoll_nested_deep(s: &mut Stage) {
    let c = s.pair_nb();
    let sets: Vec<i32> = (0..7).map(|_| calls::epoll_create().expect("a set")).collect();
    say!("connection", calls::epoll_ctl(sets[0], EPOLL_CTL_ADD, c.a, EPOLLIN, 0));
    let mut depth = 0;
    for (i, pair) in sets.windows(2).enumerate() {
        let done = calls::epoll_ctl(pair[1], EPOLL_CTL_ADD, pair[0], EPOLLIN, i as u64);
        // Beyond the first that is refused a new row begins.
        depth += usize::from(done.is_ok() && depth == i);
        say!("set into set", i, done);
    }
    say!("itself", calls::epoll_ctl(sets[0], EPOLL_CTL_ADD, sets[0], EPOLLIN, 1));
    say!("a circle", calls::epoll_ctl(sets[0], EPOLL_CTL_ADD, sets[1], EPOLLIN, 1));
    let seen = || -> Vec<Ret> {
        let one = |ep: &i32| calls::epoll_wait(*ep, 4, 0).map(|events| events.len());
        sets[..=depth].iter().map(one).collect()
    };
    say!("nothing", seen());
    s.b_later(100, &format!("send {} 0 x", c.b));
    let (got, when) = timed(|| calls::epoll_wait(sets[depth], 4, 5000));
    say!("woken in the outermost", got, when, seen());
    say!("read", try_recv(c.a, 9), seen());
    say!("bytes", s.b_send(c, "y"), calls::poll(sets[depth], POLLIN, 5000), try_recv(c.a, 9));
}

/// `select` of descriptors above 1,023, with a set that has room for them.
pub fn select_of_high_numbers(s: &mut Stage) {
    if table_size() < 4096 {
        return crate::run::skipped("the limit of descriptors is below 4096");
    }
    let c = s.pair_nb();
    let high = calls::dup_above(c.a, 2500).expect("a duplicate");
    let [r, w] = calls::pipe(0).expect("a pipe");
    let pipe = calls::dup_above(r, 3000).expect("a duplicate");
    let fds = [c.a, high, pipe];
    let select = |ms| {
        let got = select_of_many(4096, 4096, 0, &fds, Duration::from_millis(ms));
        got.map(|(n, ready)| (n, ready.len(), fds.map(|fd| ready.contains(&fd))))
    };
    let show = |label: &str, got: Result<(usize, usize, [bool; 3]), i32>| {
        say!(label, got.map(|(n, len, which)| format!("{n} {len} {which:?}")));
    };
    show("nothing", select(30));
    s.b_later(120, &format!("send {} 0 x", c.b));
    let (got, when) = timed(|| select(5000));
    say!("waited", when);
    show("the connection", got);
    calls::write(w, b"x").expect("written");
    show("and the pipe", select(5000));
    say!("read", try_recv(high, 9), calls::poll(high, POLLIN, 0));
    show("the pipe", select(0));
    say!("closed", calls::close(high), s.b_send(c, "y"), s.mask(c.a));
}

/// `select` as old programs call it, with the limit of descriptors as the number and a set for 1,024 of them:
/// the kernel looks no further than there can be descriptors.
pub fn select_with_the_limit_as_number(s: &mut Stage) {
    let c = s.pair_nb();
    let all = table_size();
    let beyond = usize::try_from(all).unwrap_or(0).max(1024);
    let select =
        |ms| select_of_many(all, 1024, beyond, &[c.a], Duration::from_millis(ms)).map(|(n, _)| n);
    say!("nothing", select(30));
    s.b_later(120, &format!("send {} 0 x", c.b));
    let (got, when) = timed(|| select(5000));
    say!("bytes", got, when, select(0), try_recv(c.a, 9), select(0));
    // And without a connection of ours among them.
    let [r, w] = calls::pipe(0).expect("a pipe");
    let only =
        |ms| select_of_many(all, 1024, beyond, &[r], Duration::from_millis(ms)).map(|(n, _)| n);
    say!("a pipe", only(30), calls::write(w, b"x"), only(5000));
}

/// The peer is killed when it has read all: what is sent then goes nowhere, and what comes after that is told of it. Each had
/// slept for long enough to be woken by the kernel.
pub fn sent_to_a_peer_that_was_killed(s: &mut Stage) {
    let all: [Conn; 6] = std::array::from_fn(|_| s.pair());
    for c in all {
        s.tell(&format!("recv {} 9 0", c.b));
        std::thread::sleep(SETTLE * 2);
        say!("sent", calls::send(c.a, b"message", 0));
        say!("read", s.answer());
    }
    let [c, asked, watched, in_parts, ended, hushed] = all;
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, EPOLL_CTL_ADD, watched.a, EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, 1)
        .expect("added");
    let edges = || calls::epoll_wait(ep, 4, 0).map(|told| told.first().copied());
    say!("there", edges());
    let levels = calls::epoll_create().expect("a set");
    calls::epoll_ctl(levels, EPOLL_CTL_ADD, hushed.a, 0, 1).expect("added");
    let of_none = |ms| calls::epoll_wait(levels, 4, ms).map(|told| told.first().copied());
    calls::kill(s.peer_pid(), libc::SIGKILL).expect("killed");
    for c in all {
        say!("end", calls::poll(c.a, libc::POLLRDHUP, 10_000));
    }
    settle();
    let error = |c: Conn| calls::getsockopt(c.a, SOL_SOCKET, libc::SO_ERROR);
    let send = |c: Conn, text: &str| {
        let got = calls::send(c.a, text.as_bytes(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        settle();
        got
    };
    say!("the end", s.mask(c.a), edges(), edges(), error(c), try_recv(ended.a, 9));
    say!("nothing", send(c, ""), s.mask(c.a), send(watched, ""), edges());
    say!("one more", send(c, "more"), s.mask(c.a), try_recv(c.a, 9), s.mask(c.a));
    say!("and another", send(c, "more"), s.mask(c.a), send(c, "more"), error(c), try_recv(c.a, 9));
    say!("one more", send(asked, "more"), error(asked), error(asked), s.mask(asked.a));
    say!("and another", send(asked, "more"), send(asked, ""), try_recv(asked.a, 9));
    say!("one more", send(watched, "more"), edges(), edges());
    say!("and another", send(watched, "more"), edges());
    say!("not asked for", of_none(100), send(hushed, "more"), of_none(1000), of_none(0));
    let parts = calls::writev(in_parts.a, &[b"in ", b"parts"]);
    settle();
    say!("one more", parts, send(in_parts, "more"));
    say!("one more", send(ended, "more"), try_recv(ended.a, 9), send(ended, "more"));
    say!("shut", calls::shutdown(ended.a, libc::SHUT_WR), s.mask(ended.a));
}
