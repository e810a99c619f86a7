//! Signals that arrive in calls, and signals that calls raise.

use std::time::Duration;

use crate::calls::{self, Waiting};
use crate::peer;
use crate::say;
use crate::stage::{SETTLE, Stage, timed};

const USR1: i32 = libc::SIGUSR1;

fn signal_later(s: &mut Stage, ms: u64) {
    s.b_later(ms, &format!("kill {} {USR1}", calls::getpid()));
}

/// Each call that can find the other end gone raises `SIGPIPE`, but for `MSG_NOSIGNAL`.
pub fn sigpipe(s: &mut Stage) {
    calls::count(libc::SIGPIPE, 0).expect("a handler");
    let c = s.pair();
    calls::shutdown(c.a, libc::SHUT_WR).expect("shut");
    let pipes = || calls::arrived(libc::SIGPIPE);
    say!("send", calls::send(c.a, b"x", 0), pipes());
    say!("send NOSIGNAL", calls::send(c.a, b"x", libc::MSG_NOSIGNAL), pipes());
    say!("send of nothing", calls::send(c.a, b"", 0), pipes());
    say!("sendto", calls::sendto(c.a, b"x", 9), pipes());
    say!("write", calls::write(c.a, b"x"), pipes());
    say!("write of nothing", calls::write(c.a, b""), pipes());
    say!("writev", calls::writev(c.a, &[b"x"]), pipes());
    say!("pwritev2", calls::pwritev2(c.a, &[b"x"], -1, 0), pipes());
    say!("sendmsg", calls::sendmsg(c.a, &[b"x"], 0), pipes());
    say!("sendmsg NOSIGNAL", calls::sendmsg(c.a, &[b"x"], libc::MSG_NOSIGNAL), pipes());
    say!("sendmmsg", calls::sendmmsg(c.a, &[b"x"], 0), pipes());
    let file = calls::memfd(b"file").expect("a file");
    say!("sendfile", calls::sendfile(c.a, file, None, 4), pipes());
    let [r, w] = calls::pipe(0).expect("a pipe");
    calls::write(w, b"abc").expect("written");
    say!("splice", calls::splice(r, c.a, 3, 0), pipes());
    say!("dprintf", calls::dprintf(c.a, "x").is_err(), pipes());
    // The other way to get there: the peer has gone.
    let c = s.pair();
    s.b_close(c);
    std::thread::sleep(SETTLE);
    say!("first send", calls::send(c.a, b"x", 0), pipes());
    std::thread::sleep(SETTLE);
    say!("second send", calls::send(c.a, b"x", 0), pipes());
    let c = s.pair();
    s.b_reset(c);
    std::thread::sleep(SETTLE);
    say!("after a reset", calls::send(c.a, b"x", 0), pipes());
    say!("once more", calls::send(c.a, b"x", 0), pipes());
}

/// `recv` ends with `EINTR` without `SA_RESTART`.
pub fn eintr_recv(s: &mut Stage) {
    calls::count(USR1, 0).expect("a handler");
    let c = s.pair();
    signal_later(s, 100);
    let (got, when) = timed(|| calls::recv(c.a, 9, 0));
    say!("recv", got, when, calls::arrived(USR1));
    signal_later(s, 100);
    let (got, when) = timed(|| calls::readv(c.a, &[1, 9]));
    say!("readv", got, when, calls::arrived(USR1));
    signal_later(s, 100);
    say!("peek", calls::recv(c.a, 9, libc::MSG_PEEK), calls::arrived(USR1));
    say!("after", s.b_send(c, "fine"), calls::recv(c.a, 9, 0));
}

/// `recv` goes on with `SA_RESTART`.
pub fn eintr_recv_restarts(s: &mut Stage) {
    calls::count(USR1, libc::SA_RESTART).expect("a handler");
    let c = s.pair();
    signal_later(s, 80);
    s.b_later(120, &format!("send {} 0 later", c.b));
    let (got, when) = timed(|| calls::recv(c.a, 9, 0));
    say!("recv", got, when, calls::arrived(USR1));
    signal_later(s, 80);
    s.b_later(120, &format!("send {} 0 later", c.b));
    say!("read", calls::read(c.a, 9), calls::arrived(USR1));
    let (l, port) = s.listener(4);
    signal_later(s, 80);
    s.b_later(120, &format!("connect {port}"));
    say!("accept", calls::accept(l, 0).is_ok(), calls::arrived(USR1));
}

/// A receive timeout takes `SA_RESTART` away.
pub fn eintr_recv_with_timeout(s: &mut Stage) {
    calls::count(USR1, libc::SA_RESTART).expect("a handler");
    let c = s.pair();
    calls::set_timeout(c.a, libc::SO_RCVTIMEO, 5000).expect("a timeout");
    signal_later(s, 100);
    say!("recv", calls::recv(c.a, 9, 0), calls::arrived(USR1));
    s.b_send(c, "abc");
    signal_later(s, 100);
    say!("waitall", calls::recv(c.a, 9, libc::MSG_WAITALL), calls::arrived(USR1));
}

/// `send` into a full socket.
pub fn eintr_send(s: &mut Stage) {
    calls::count(USR1, 0).expect("a handler");
    let c = s.pair();
    say!("fill", Stage::fill(c.a));
    signal_later(s, 100);
    let (got, when) = timed(|| calls::send(c.a, b"x", 0));
    say!("send", got, when, calls::arrived(USR1));
    s.b(&format!("drain {}", c.b));
    say!("after", calls::send(c.a, b"fine", 0), s.b_recv(c, 9));
    // Something went before the signal: a count, not an error.
    let block = vec![1u8; 64 << 20];
    signal_later(s, 150);
    let got = calls::send(c.a, &block, 0);
    say!("partial", got.is_ok_and(|n| n > 0 && n < block.len()), calls::arrived(USR1));
}

/// Each call that sends, into a full socket; where bytes come from, they are still there.
pub fn eintr_each_send(s: &mut Stage) {
    calls::count(USR1, 0).expect("a handler");
    let c = s.pair();
    say!("fill", Stage::fill(c.a));
    let file = calls::memfd(b"of a file").expect("a file");
    let [r, w] = calls::pipe(0).expect("a pipe");
    calls::write(w, b"of a pipe").expect("written");
    let fd = c.a;
    let each: [(&str, &dyn Fn() -> calls::Ret); 7] = [
        ("write", &|| calls::write(fd, b"x")),
        ("writev", &|| calls::writev(fd, &[b"x", b"y"])),
        ("pwritev2", &|| calls::pwritev2(fd, &[b"x"], -1, 0)),
        ("sendmsg", &|| calls::sendmsg(fd, &[b"x"], 0)),
        ("sendmmsg", &|| calls::sendmmsg(fd, &[b"x", b"y"], 0).map(|all| all.len())),
        ("sendfile", &|| calls::sendfile(fd, file, None, 9)),
        ("splice", &|| calls::splice(r, fd, 9, 0)),
    ];
    for (name, call) in each {
        signal_later(s, 100);
        let (got, when) = timed(call);
        say!(name, got, when, calls::arrived(USR1));
    }
    say!("still there", calls::read(file, 99), calls::read(r, 99));
    s.b(&format!("drain {}", c.b));
    say!("after", calls::send(c.a, b"fine", 0), s.b_recv(c, 9));
}

/// Each call that receives.
pub fn eintr_each_receive(s: &mut Stage) {
    calls::count(USR1, 0).expect("a handler");
    let c = s.pair();
    let [r, w] = calls::pipe(0).expect("a pipe");
    let fd = c.a;
    let each: [(&str, &dyn Fn() -> calls::Ret); 6] = [
        ("read", &|| calls::read(fd, 9).map(|bytes| bytes.len())),
        ("recvfrom", &|| calls::recvfrom(fd, 9, 0).0.map(|bytes| bytes.len())),
        ("recvmsg", &|| calls::recvmsg(fd, &[9], 0).0.map(|bytes| bytes.len())),
        ("recvmmsg", &|| calls::recvmmsg(fd, &[9, 9], 0, None).map(|all| all.len())),
        ("preadv2", &|| calls::preadv2(fd, &[9], -1, 0).map(|bytes| bytes.len())),
        ("splice", &|| calls::splice(fd, w, 9, 0)),
    ];
    for (name, call) in each {
        signal_later(s, 100);
        let (got, when) = timed(call);
        say!(name, got, when, calls::arrived(USR1));
    }
    say!("after", s.b_send(c, "fine"), calls::splice(c.a, w, 9, 0), calls::read(r, 9));
}

/// `accept` and `connect`, without `SA_RESTART`, and with it beside a time limit, which takes it away. A connection
/// that was being made goes on being made.
pub fn eintr_accept_and_connect(s: &mut Stage) {
    let (listener, port) = s.listener(0);
    for (flags, limit) in [(0, 0), (libc::SA_RESTART, 5000)] {
        calls::count(USR1, flags).expect("a handler");
        calls::set_timeout(listener, libc::SO_RCVTIMEO, limit).expect("a limit");
        signal_later(s, 100);
        let (got, when) = timed(|| calls::accept(listener, 0));
        say!("accept", got, when, calls::arrived(USR1));
    }
    for _ in 0..4 {
        let fd = calls::socket(libc::SOCK_NONBLOCK).expect("a socket");
        let _ = calls::connect(fd, port);
    }
    std::thread::sleep(SETTLE);
    for (flags, limit) in [(0, 0), (libc::SA_RESTART, 5000)] {
        calls::count(USR1, flags).expect("a handler");
        let fd = calls::prompt_socket(0).expect("a socket");
        calls::set_timeout(fd, libc::SO_SNDTIMEO, limit).expect("a limit");
        signal_later(s, 100);
        let (got, when) = timed(|| calls::connect(fd, port));
        say!("connect", got, when, calls::arrived(USR1));
        calls::set_nonblocking(fd, true).expect("a flag");
        say!(
            "goes on",
            calls::connect(fd, port),
            calls::poll(fd, libc::POLLOUT, 0),
            calls::close(fd)
        );
    }
}

/// `MSG_WAITALL` answers what it has when a signal comes.
pub fn eintr_waitall_partial(s: &mut Stage) {
    calls::count(USR1, 0).expect("a handler");
    let c = s.pair();
    s.b_send(c, "abc");
    signal_later(s, 100);
    let (got, when) = timed(|| calls::recv(c.a, 9, libc::MSG_WAITALL));
    say!("partial", got, when, calls::arrived(USR1));
    signal_later(s, 100);
    say!("nothing", calls::recv(c.a, 9, libc::MSG_WAITALL), calls::arrived(USR1));
    // And with restart: what it has, too.
    calls::count(USR1, libc::SA_RESTART).expect("a handler");
    s.b_send(c, "abc");
    signal_later(s, 80);
    s.b_later(120, &format!("send {} 0 defghi", c.b));
    say!("restart", calls::recv(c.a, 9, libc::MSG_WAITALL), calls::arrived(USR1));
}

/// `poll` is never restarted.
pub fn eintr_poll(s: &mut Stage) {
    calls::count(USR1, libc::SA_RESTART).expect("a handler");
    let c = s.pair();
    signal_later(s, 100);
    let (got, when) = timed(|| calls::poll(c.a, libc::POLLIN, 5000));
    say!("poll", got, when, calls::arrived(USR1));
    say!("after", s.b_send(c, "x"), calls::poll(c.a, libc::POLLIN, 5000));
}

/// `select` is never restarted.
pub fn eintr_select(s: &mut Stage) {
    calls::count(USR1, libc::SA_RESTART).expect("a handler");
    let c = s.pair();
    signal_later(s, 100);
    let wait = Some(Duration::from_secs(5));
    say!("select", calls::select(&[c.a], &[], &[], wait, None), calls::arrived(USR1));
    say!("after", s.b_send(c, "x"), calls::select(&[c.a], &[], &[], wait, None).map(|r| r.count));
}

/// `epoll_wait` is never restarted.
pub fn eintr_epoll(s: &mut Stage) {
    calls::count(USR1, libc::SA_RESTART).expect("a handler");
    let c = s.pair();
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1).expect("added");
    signal_later(s, 100);
    let (got, when) = timed(|| calls::epoll_wait(ep, 4, 5000));
    say!("epoll_wait", got, when, calls::arrived(USR1));
    signal_later(s, 100);
    say!("epoll_pwait2", calls::epoll_wait_by(Waiting::Fine, ep, 4, 5000), calls::arrived(USR1));
    say!("after", s.b_send(c, "x"), calls::epoll_wait(ep, 4, 5000));
}

/// A signal that is pending and unblocked by `ppoll`'s mask ends it, ready or not.
pub fn ppoll_mask(s: &mut Stage) {
    calls::count(USR1, 0).expect("a handler");
    let c = s.pair();
    calls::block_signals(&[USR1], true).expect("blocked");
    calls::kill(calls::getpid(), USR1).expect("sent");
    let ppoll =
        |ms, mask: &[i32]| calls::ppoll(c.a, libc::POLLIN, Some(Duration::from_millis(ms)), mask);
    say!("blocked", ppoll(30, &[USR1]), calls::arrived(USR1));
    say!("unblocked", ppoll(5000, &[]), calls::arrived(USR1));
    // Arrives while it waits.
    signal_later(s, 100);
    say!("unblocked, later", ppoll(5000, &[]), calls::arrived(USR1));
    signal_later(s, 30);
    say!("blocked, later", ppoll(120, &[USR1]), calls::arrived(USR1));
    say!("ready", s.b_send(c, "x"));
    say!("ready, pending, blocked", ppoll(5000, &[USR1]), calls::arrived(USR1));
    calls::block_signals(&[USR1], false).expect("unblocked");
    say!("delivered", calls::arrived(USR1));
}

/// The same with `pselect`.
pub fn pselect_mask(s: &mut Stage) {
    calls::count(USR1, 0).expect("a handler");
    let c = s.pair();
    calls::block_signals(&[USR1], true).expect("blocked");
    calls::kill(calls::getpid(), USR1).expect("sent");
    let wait = |ms, mask: &[i32]| {
        calls::select(&[c.a], &[], &[], Some(Duration::from_millis(ms)), Some(mask))
    };
    say!("blocked", wait(30, &[USR1]), calls::arrived(USR1));
    say!("unblocked", wait(5000, &[]), calls::arrived(USR1));
    say!("ready", s.b_send(c, "x"), wait(5000, &[USR1]), calls::arrived(USR1));
}

/// The same with `epoll_pwait` and `epoll_pwait2`.
pub fn epoll_pwait_mask(s: &mut Stage) {
    calls::count(USR1, 0).expect("a handler");
    let c = s.pair();
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1).expect("added");
    calls::block_signals(&[USR1], true).expect("blocked");
    for fine in [false, true] {
        let wait = |ms, mask: &[i32]| {
            let how = if fine { Waiting::FineMask(mask) } else { Waiting::Mask(mask) };
            calls::epoll_wait_by(how, ep, 4, ms)
        };
        calls::kill(calls::getpid(), USR1).expect("sent");
        say!("blocked", fine, wait(30, &[USR1]), calls::arrived(USR1));
        say!("unblocked", wait(5000, &[]), calls::arrived(USR1));
        signal_later(s, 100);
        say!("unblocked, later", wait(5000, &[]), calls::arrived(USR1));
        say!("ready", s.b_send(c, "x"), wait(5000, &[USR1]), calls::arrived(USR1));
        say!("taken", calls::recv(c.a, 9, 0));
    }
}

/// A handler that receives and sends on the connection that was interrupted.
pub fn handler_uses_the_connection(s: &mut Stage) {
    calls::count(USR1, libc::SA_RESTART).expect("a handler");
    let c = s.pair();
    calls::use_in_handler(c.a);
    // In a blocked recv: nothing is there for the handler, which sends.
    signal_later(s, 80);
    s.b_later(120, &format!("send {} 0 main", c.b));
    say!("recv", calls::recv(c.a, 9, 0), calls::handler_got(), calls::arrived(USR1));
    say!("the handler sent", s.b_recv(c, 9));
    // With a byte for the handler.
    s.b_send(c, "Hrest");
    calls::kill(calls::getpid(), USR1).expect("sent");
    std::thread::sleep(SETTLE);
    say!("the handler got", calls::handler_got(), calls::recv(c.a, 9, 0));
    say!("the handler sent", s.b_recv(c, 9));
    // A storm of signals while bytes pass: none may be lost or doubled.
    calls::use_in_handler(-1);
    let me = calls::getpid();
    s.b_later(0, &format!("sendn {} 3000000 8", c.b));
    let calls::Forked::Parent(child) = calls::fork() else {
        for _ in 0..400 {
            let _ = calls::kill(me, USR1);
            std::thread::sleep(Duration::from_micros(200));
        }
        calls::exit_now(0);
    };
    say!("storm", peer::receive_stream(c.a, 3_000_000, 8), calls::wait(child));
}

/// The same from the first byte on, at moments of all kinds: while the connection is attached, and in the middle of the
/// calls that the handler makes as well. What it takes and sends then is a matter of the moment.
pub fn handler_uses_the_connection_at_any_moment(s: &mut Stage) {
    calls::count(USR1, libc::SA_RESTART).expect("a handler");
    let me = calls::getpid();
    let calls::Forked::Parent(child) = calls::fork() else {
        for n in 0u64.. {
            std::thread::sleep(Duration::from_micros(200 + n * 37 % 400));
            if calls::kill(me, USR1).is_err() {
                break;
            }
        }
        calls::exit_now(0);
    };
    let mut sent = 0;
    for _ in 0..60 {
        let c = s.fresh_pair();
        calls::use_in_handler(c.a);
        for _ in 0..4 {
            s.b_send(c, "ping");
            let _ = calls::recv(c.a, 9, libc::MSG_DONTWAIT);
            sent += calls::send(c.a, b"pong", 0).unwrap_or(0);
        }
        calls::use_in_handler(-1);
        let _ = (calls::close(c.a), s.b_close(c));
    }
    say!("sent", sent, calls::kill(child, libc::SIGKILL), calls::wait(child));
    // On a busy machine all of those may have stayed on TCP.
    let c = s.pair();
    say!("in peace", s.b_send(c, "ping"), calls::recv(c.a, 9, 0));
}

/// `O_ASYNC` raises `SIGIO`, urgent data `SIGURG`.
pub fn async_io(s: &mut Stage) {
    calls::count(libc::SIGIO, libc::SA_RESTART).expect("a handler");
    calls::count(libc::SIGURG, libc::SA_RESTART).expect("a handler");
    let c = s.pair();
    say!("owner", calls::fcntl(c.a, libc::F_SETOWN, calls::getpid()));
    let flags = libc::O_ASYNC | libc::O_NONBLOCK;
    say!("flags", calls::fcntl(c.a, libc::F_SETFL, flags));
    let _ = calls::arrived(libc::SIGIO);
    s.b_send(c, "abc");
    std::thread::sleep(SETTLE);
    say!("SIGIO", calls::arrived(libc::SIGIO) > 0, calls::recv(c.a, 9, 0));
    s.b(&format!("send {} 1 U", c.b));
    std::thread::sleep(SETTLE);
    say!("SIGURG", calls::arrived(libc::SIGURG) > 0);
    say!("off", calls::fcntl(c.a, libc::F_SETFL, 0));
    let _ = calls::arrived(libc::SIGIO);
    s.b_send(c, "def");
    std::thread::sleep(SETTLE);
    say!("no SIGIO", calls::arrived(libc::SIGIO), calls::recv(c.a, 9, 0));
}

/// An ignored signal does not end a wait.
pub fn ignored_signal_wakes_nobody(s: &mut Stage) {
    calls::set_signal(USR1, true);
    let c = s.pair();
    signal_later(s, 50);
    let (got, when) = timed(|| calls::poll(c.a, libc::POLLIN, 150));
    say!("poll", got, when);
    signal_later(s, 50);
    s.b_later(50, &format!("send {} 0 data", c.b));
    say!("recv", calls::recv(c.a, 9, 0));
}

/// A program that has forbidden itself calls which it does not make is not killed for one that is made in its name, whichever
/// end waits for the other.
pub fn filtered_by_itself(s: &mut Stage) {
    let c = s.pair();
    let [one, two] = [(); 2].map(|()| calls::send(c.a, b"before", 0));
    say!("before", one, two, s.b_recv(c, 12));
    let forbidden = [
        libc::SYS_futex,
        libc::SYS_futex_waitv,
        libc::SYS_prctl,
        libc::SYS_openat,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open,
    ];
    say!("filter", calls::filter::forbid(&forbidden).is_ok());
    s.tell(&format!("echo {}", c.b));
    let mut answers = 0;
    for n in 0..40 {
        // So that the peer sleeps, or not.
        std::thread::sleep(Duration::from_micros(n % 4 * 700));
        assert_eq!(calls::send(c.a, b"message", 0), Ok(7), "message {n}");
        if n % 2 == 0 {
            assert_eq!(calls::poll(c.a, libc::POLLIN, 5000), Ok(libc::POLLIN), "message {n}");
        }
        answers += calls::recv(c.a, 7, libc::MSG_WAITALL).map_or(0, |bytes| bytes.len() / 7);
    }
    say!("answers", answers, calls::shutdown(c.a, libc::SHUT_WR), s.answer());
}
