//! Each way to move bytes, with its flags, counts and limits.

use std::time::Duration;

use crate::calls::{self, Bytes, tls};
use crate::peer;
use crate::say;
use crate::stage::{Conn, SETTLE, Stage, timed};

fn settle() {
    std::thread::sleep(SETTLE);
}

fn try_recv(fd: i32, len: usize) -> Bytes {
    calls::recv(fd, len, libc::MSG_DONTWAIT)
}

/// Zero bytes, asked for and sent.
pub fn zero_lengths(s: &mut Stage) {
    let c = s.pair_nb();
    say!("empty: read recv", calls::read(c.a, 0), calls::recv(c.a, 0, 0));
    say!("empty: readv recvmsg", calls::readv(c.a, &[0, 0]), calls::recvmsg(c.a, &[0], 0).0);
    say!("peer sends", s.b_send(c, "z"));
    settle();
    say!("queued: recv FIONREAD", calls::recv(c.a, 0, 0), calls::ioctl_int(c.a, libc::FIONREAD));
    say!("queued: read", calls::read(c.a, 0), calls::ioctl_int(c.a, libc::FIONREAD));
    say!("send write", calls::send(c.a, b"", 0), calls::write(c.a, b""));
    say!("writev sendmsg", calls::writev(c.a, &[b"", b""]), calls::sendmsg(c.a, &[b""], 0));
    say!("sendmsg of nothing", calls::sendmsg(c.a, &[], 0), calls::writev(c.a, &[]));
    say!("recvmsg of nothing", calls::recvmsg(c.a, &[], 0).0);
    settle();
    say!("the peer", s.b_mask(c));
    s.b_close(c);
    settle();
    say!("recv", try_recv(c.a, 9));
    say!("at the end: recv read", calls::recv(c.a, 0, 0), calls::read(c.a, 0));
}

/// `recv` of zero bytes on a blocking socket waits for something.
pub fn zero_length_recv_blocks(s: &mut Stage) {
    let c = s.pair();
    s.b_later(120, &format!("send {} 0 x", c.b));
    let (got, when) = timed(|| calls::recv(c.a, 0, 0));
    say!("recv(0)", got, when);
    say!("recv", calls::recv(c.a, 9, 0));
    let (got, when) = timed(|| calls::read(c.a, 0));
    say!("read(0)", got, when);
}

/// Address and flags that receive calls write.
pub fn receive_address(s: &mut Stage) {
    let c = s.pair_nb();
    s.b_send(c, "abcdef");
    settle();
    let (got, len) = calls::recvfrom(c.a, 3, 0);
    say!("recvfrom", got, len);
    let (got, extra) = calls::recvmsg(c.a, &[3], 0);
    say!("recvmsg", got, extra);
    let (got, len) = calls::recvfrom(c.a, 3, 0);
    say!("recvfrom, nothing there", got, len);
    say!("sendto with an address", calls::sendto(c.a, b"x", 9), s.b_recv(c, 9));
    s.b_close(c);
    settle();
    let (got, extra) = calls::recvmsg(c.a, &[3], 0);
    say!("recvmsg at the end", got, extra);
}

/// `MSG_PEEK` leaves what it shows.
pub fn peek(s: &mut Stage) {
    let c = s.pair_nb();
    say!("nothing", calls::recv(c.a, 4, libc::MSG_PEEK));
    s.b_send(c, "0123456789");
    settle();
    let peek = |n| calls::recv(c.a, n, libc::MSG_PEEK);
    say!("peek", peek(4), peek(4), peek(99));
    say!("FIONREAD", calls::ioctl_int(c.a, libc::FIONREAD));
    say!("recv", try_recv(c.a, 4), peek(4), try_recv(c.a, 99), peek(4));
    s.b_send(c, "last");
    s.b_close(c);
    settle();
    say!("before the end", peek(99), peek(99), try_recv(c.a, 99), peek(99), try_recv(c.a, 99));
}

/// `MSG_PEEK` sees across what were several writes, and with `MSG_WAITALL` waits for all.
pub fn peek_across_writes(s: &mut Stage) {
    let c = s.pair();
    s.b_send(c, "abc");
    s.b_send(c, "def");
    settle();
    say!("peek", calls::recv(c.a, 6, libc::MSG_PEEK));
    let (got, extra) = calls::recvmsg(c.a, &[2, 2, 9], libc::MSG_PEEK);
    say!("recvmsg peek", got, extra);
    s.b_later(120, &format!("send {} 0 ghi", c.b));
    let (got, when) = timed(|| calls::recv(c.a, 9, libc::MSG_PEEK | libc::MSG_WAITALL));
    say!("peek waitall", got, when);
    say!("recv", calls::recv(c.a, 99, 0));
}

/// `SO_RCVTIMEO` is the limit of the whole of a look that waits for all, of which the first part comes late.
pub fn peek_waitall_times_out_once(s: &mut Stage) {
    let c = s.pair();
    calls::set_timeout(c.a, libc::SO_RCVTIMEO, 1500).expect("a timeout");
    let look = move || calls::recv(c.a, 6, libc::MSG_PEEK | libc::MSG_WAITALL);
    let waiting = std::thread::spawn(look);
    std::thread::sleep(Duration::from_millis(800));
    s.b_send(c, "abc");
    std::thread::sleep(Duration::from_millis(1400));
    s.b_send(c, "def");
    say!("three of six", waiting.join().expect("no panic"));
    say!("recv", calls::recv(c.a, 6, libc::MSG_WAITALL));
}

/// `MSG_TRUNC` throws bytes away.
pub fn trunc(s: &mut Stage) {
    let c = s.pair_nb();
    s.b_send(c, "0123456789");
    settle();
    say!("without a buffer", calls::recv_nowhere(c.a, 3, libc::MSG_TRUNC));
    say!("recv", try_recv(c.a, 4));
    say!("more than there is", calls::recv_nowhere(c.a, 99, libc::MSG_TRUNC));
    say!("nothing", calls::recv_nowhere(c.a, 3, libc::MSG_TRUNC), s.mask(c.a));
}

/// `MSG_WAITALL` gives what there is when `SO_RCVTIMEO` ends it.
pub fn waitall_times_out(s: &mut Stage) {
    let c = s.pair();
    calls::set_timeout(c.a, libc::SO_RCVTIMEO, 90).expect("a timeout");
    s.b_send(c, "abc");
    let (got, when) = timed(|| calls::recv(c.a, 6, libc::MSG_WAITALL));
    say!("three of six", got, when);
    let (got, when) = timed(|| calls::recv(c.a, 6, libc::MSG_WAITALL));
    say!("nothing", got, when);
}

/// `MSG_WAITALL` gives what there is at the end of the stream.
pub fn waitall_until_the_end(s: &mut Stage) {
    let c = s.pair();
    s.b_send(c, "abc");
    s.b_later(120, &format!("close {}", c.b));
    let (got, when) = timed(|| calls::recv(c.a, 6, libc::MSG_WAITALL));
    say!("three of six", got, when);
    say!("then", calls::recv(c.a, 6, libc::MSG_WAITALL));
    // And at a reset: the bytes first, the error after.
    let c = s.pair();
    s.b_send(c, "abc");
    s.b_later(120, &format!("reset {}", c.b));
    say!("three of six", calls::recv(c.a, 6, libc::MSG_WAITALL));
    say!("then", calls::recv(c.a, 6, libc::MSG_WAITALL), calls::recv(c.a, 6, 0));
}

/// `MSG_WAITALL` across several sends, also for more than any buffer holds.
pub fn waitall_whole(s: &mut Stage) {
    let c = s.pair();
    s.b_send(c, "abc");
    s.b_later(120, &format!("send {} 0 def", c.b));
    let (got, when) = timed(|| calls::recv(c.a, 6, libc::MSG_WAITALL));
    say!("six", got, when);
    let len = 3 << 20;
    s.b_later(0, &format!("sendn {} {len} 5", c.b));
    let got = calls::recv(c.a, len, libc::MSG_WAITALL);
    say!("three million", got.map(|b| b == crate::show::stream_bytes(5, 0, len)));
    s.b_send(c, "uvwxyz");
    let (got, extra) = calls::recvmsg(c.a, &[2, 4], libc::MSG_WAITALL);
    say!("recvmsg", got, extra);
}

/// `MSG_WAITALL | MSG_DONTWAIT` does not wait.
pub fn waitall_dontwait(s: &mut Stage) {
    let c = s.pair();
    let flags = libc::MSG_WAITALL | libc::MSG_DONTWAIT;
    say!("nothing", calls::recv(c.a, 6, flags));
    s.b_send(c, "abc");
    settle();
    say!("three of six", calls::recv(c.a, 6, flags));
}

/// Nothing there, each call that must not wait.
pub fn dontwait_when_empty(s: &mut Stage) {
    let c = s.pair();
    say!("recv", try_recv(c.a, 1));
    say!("recvfrom", calls::recvfrom(c.a, 1, libc::MSG_DONTWAIT).0);
    say!("recvmsg", calls::recvmsg(c.a, &[1], libc::MSG_DONTWAIT).0);
    say!("recvmmsg", calls::recvmmsg(c.a, &[1, 1], libc::MSG_DONTWAIT, None));
    calls::set_nonblocking(c.a, true).expect("a flag");
    say!("read", calls::read(c.a, 1));
    say!("readv", calls::readv(c.a, &[1, 1]));
    say!("recv", calls::recv(c.a, 1, 0));
    say!("error queue", calls::recv(c.a, 1, libc::MSG_ERRQUEUE));
}

/// `SO_RCVLOWAT` holds readiness back, not a call that does not wait.
pub fn low_water_mark(s: &mut Stage) {
    let c = s.pair_nb();
    let set = |n: i32| calls::setsockopt(c.a, libc::SOL_SOCKET, libc::SO_RCVLOWAT, n);
    say!("set", set(4), calls::getsockopt(c.a, libc::SOL_SOCKET, libc::SO_RCVLOWAT));
    say!("two", s.b_send(c, "ab"), s.mask(c.a));
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1).expect("added");
    say!("epoll", calls::epoll_wait(ep, 4, 30));
    say!("four", s.b_send(c, "cd"), s.mask(c.a), calls::epoll_wait(ep, 4, 300));
    say!("recv", try_recv(c.a, 1), s.mask(c.a));
    say!("recv", try_recv(c.a, 9), s.mask(c.a));
    say!("two", s.b_send(c, "ef"), s.mask(c.a), set(1), s.mask(c.a), try_recv(c.a, 9));
    say!("and the end", set(4), s.b_send(c, "gh"), s.b_close(c), s.mask(c.a));
}

/// A blocking `recv` waits for the low-water mark.
pub fn low_water_mark_blocks(s: &mut Stage) {
    let c = s.pair();
    say!("set", calls::setsockopt(c.a, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 4));
    s.b_send(c, "ab");
    s.b_later(120, &format!("send {} 0 cdef", c.b));
    let (got, when) = timed(|| calls::recv(c.a, 99, 0));
    say!("recv", got, when);
}

/// `SO_RCVTIMEO`.
pub fn receive_timeout(s: &mut Stage) {
    let c = s.pair();
    say!("set", calls::set_timeout(c.a, libc::SO_RCVTIMEO, 90));
    let (got, when) = timed(|| calls::recv(c.a, 9, 0));
    say!("recv", got, when);
    let (got, when) = timed(|| calls::read(c.a, 9));
    say!("read", got, when);
    s.b_later(20, &format!("send {} 0 in-time", c.b));
    say!("in time", calls::recv(c.a, 9, 0));
    say!("off", calls::set_timeout(c.a, libc::SO_RCVTIMEO, 0));
    s.b_later(150, &format!("send {} 0 patient", c.b));
    let (got, when) = timed(|| calls::recv(c.a, 9, 0));
    say!("without", got, when);
}

/// `SO_SNDTIMEO`.
pub fn send_timeout(s: &mut Stage) {
    let c = s.pair();
    say!("set", calls::set_timeout(c.a, libc::SO_SNDTIMEO, 90));
    say!("fill", Stage::fill(c.a));
    let (got, when) = timed(|| calls::send(c.a, b"x", 0));
    say!("send", got, when);
    let (got, when) = timed(|| calls::write(c.a, &[0; 4096]));
    say!("write", got, when);
    say!("poll", s.mask(c.a));
}

/// `TCP_USER_TIMEOUT` ends a connection whose peer reads nothing while there is something for it, and tells who waits for
/// room.
pub fn user_timeout(s: &mut Stage) {
    for by_file in [false, true] {
        let c = s.pair();
        let file = calls::memfd(b"0123456789").expect("a file");
        let set = || calls::setsockopt(c.a, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 700);
        say!("set", set(), Stage::fill(c.a));
        let sent =
            if by_file { calls::sendfile(c.a, file, None, 10) } else { calls::send(c.a, b"x", 0) };
        say!("told", sent, s.mask(c.a));
        say!("then", calls::send(c.a, b"x", libc::MSG_NOSIGNAL), calls::recv(c.a, 9, 0));
        say!("closed", calls::close(c.a));
    }
    // Who reads now and then is waited for, and a handler with SA_RESTART ends nothing.
    let c = s.pair();
    calls::count(libc::SIGUSR1, libc::SA_RESTART).expect("a handler");
    let me = calls::getpid();
    let calls::Forked::Parent(child) = calls::fork() else {
        while calls::kill(me, libc::SIGUSR1).is_ok() {
            std::thread::sleep(Duration::from_millis(40));
        }
        calls::exit_now(0);
    };
    say!("set", calls::setsockopt(c.a, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 5000));
    say!("fill", Stage::fill(c.a));
    s.b_later(300, &format!("drain {}", c.b));
    say!("sent", timed(|| calls::send(c.a, b"x", 0)));
    say!("in peace", calls::kill(child, libc::SIGKILL), calls::wait(child));
}

/// `SO_RCVTIMEO` is no limit of who waits for room.
pub fn receive_timeout_does_not_limit_sending(s: &mut Stage) {
    let file = calls::memfd(b"0123456789").expect("a file");
    for way in ["send", "sendfile"] {
        let c = s.pair();
        say!("set", calls::set_timeout(c.a, libc::SO_RCVTIMEO, 30));
        say!("fill", Stage::fill(c.a));
        s.b_later(300, &format!("drain {}", c.b));
        let (got, when) = timed(|| match way {
            "send" => calls::send(c.a, b"0123456789", 0),
            _ => calls::sendfile(c.a, file, None, 10),
        });
        say!(way, got, when);
        say!("end", calls::close(c.a));
    }
}

/// Calls that succeed leave `errno` as it was: some programs set it to 0 before and look at nothing else.
pub fn errno_is_left_alone(s: &mut Stage) {
    for c in [s.fresh_pair(), s.pair()] {
        for _ in 0..3 {
            say!("send", left(|| calls::send(c.a, b"abc", 0)), s.b_recv(c, 9));
            say!("bytes", s.b_send(c, "0123456789"), calls::poll(c.a, libc::POLLIN, 5000));
            say!("recv", left(|| calls::recv(c.a, 2, 0)), left(|| calls::read(c.a, 2)));
            say!("readv", left(|| calls::readv(c.a, &[1, 1])), left(|| s.mask(c.a)));
        }
        s.b_later(120, &format!("send {} 0 late", c.b));
        say!("rest", left(|| calls::recv(c.a, 99, 0)));
        say!("waits", left(|| calls::recv(c.a, 99, 0)));
        let ep = left(calls::epoll_create).0.expect("a set");
        say!("added", left(|| calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1)));
        say!("nothing", left(|| calls::epoll_wait(ep, 4, 0)));
        s.b_later(120, &format!("send {} 0 late", c.b));
        say!("event", left(|| calls::epoll_wait(ep, 4, 5000)), calls::recv(c.a, 9, 0));
        let mask = &[libc::SIGUSR1];
        say!("masked", left(|| calls::epoll_wait_by(calls::Waiting::Mask(mask), ep, 4, 10)));
        say!("duplicate", left(|| calls::dup_above(c.a, 300)), left(|| calls::close(300)));
        say!("shut", left(|| calls::shutdown(c.a, libc::SHUT_WR)), s.b_recv(c, 9));
        say!("end", s.b_close(c), left(|| calls::recv(c.a, 9, 0)), left(|| calls::close(c.a)));
    }
}

/// What a call answers, and whether it has left `errno` alone.
fn left<T>(call: impl FnOnce() -> T) -> (T, bool) {
    calls::set_errno(77);
    let answer = call();
    (answer, calls::errno() == 77)
}

/// What is not read yet is counted, however much it is.
pub fn queue_of_much(s: &mut Stage) {
    // On one CPU, where a ring may grow the most.
    say!("one CPU", calls::cpus::pin(0), s.b("pin 0"));
    let c = s.warm_pair(6);
    let mut sent = 0;
    while let Ok(n) = calls::send(c.a, &vec![1; 8 << 20], libc::MSG_DONTWAIT) {
        sent += n;
    }
    let queued = calls::ioctl_int(c.a, libc::TIOCOUTQ).expect("a count").unsigned_abs() as usize;
    // What has come to the other host is not counted there.
    say!("much", sent > 64 << 10, queued <= sent, queued > 0);
    say!("drained", s.b(&format!("drain {}", c.b)).ends_with("and no more"));
    settle();
    say!("none", calls::ioctl_int(c.a, libc::TIOCOUTQ));
}

/// `FIONREAD`, `SIOCOUTQ`, `SIOCOUTQNSD`, `SIOCATMARK`.
pub fn queue_sizes(s: &mut Stage) {
    let c = s.pair_nb();
    let sizes = |label: &str| {
        let ask = |request| calls::ioctl_int(c.a, request);
        say!(label, ask(libc::FIONREAD), ask(libc::TIOCOUTQ), ask(0x894b), ask(0x8905));
    };
    // An acknowledgement may be delayed: let the warm-up's come.
    std::thread::sleep(Duration::from_millis(250));
    sizes("nothing");
    s.b_send(c, "abc");
    settle();
    let ask = |request| calls::ioctl_int(c.a, request);
    say!("three", ask(libc::FIONREAD));
    s.b_send(c, "defg");
    settle();
    say!("seven", ask(libc::FIONREAD), try_recv(c.a, 2), ask(libc::FIONREAD));
    say!("drained", try_recv(c.a, 99), ask(libc::FIONREAD));
    say!("send", calls::send(c.a, b"1234567890", 0), s.b(&format!("inq {}", c.b)));
    // It has come, if not been read.
    std::thread::sleep(Duration::from_millis(250));
    sizes("come");
    say!("the peer takes it", s.b_recv(c, 99));
    std::thread::sleep(Duration::from_millis(250));
    sizes("all taken");
    say!("sockatmark", calls::sockatmark(c.a));
    s.b_close(c);
    settle();
    say!("at the end", ask(libc::FIONREAD));
}

/// Urgent data, out of line.
pub fn urgent(s: &mut Stage) {
    let c = s.pair_nb();
    say!("peer", s.b_send(c, "abc"), s.b(&format!("send {} 1 X", c.b)), s.b_send(c, "def"));
    say!("poll FIONREAD", s.mask(c.a), calls::ioctl_int(c.a, libc::FIONREAD));
    say!("at mark", calls::sockatmark(c.a));
    say!("recv stops at the mark", try_recv(c.a, 99));
    say!("at mark", calls::ioctl_int(c.a, 0x8905), calls::sockatmark(c.a));
    let urgent = || calls::recv(c.a, 1, libc::MSG_OOB);
    say!("urgent", urgent(), urgent());
    say!("rest", try_recv(c.a, 99), s.mask(c.a));
    say!("we send", calls::send(c.a, b"12U", libc::MSG_OOB), calls::send(c.a, b"34", 0));
    say!("the peer", s.b_mask(c), s.b_recv(c, 9), s.b_recv(c, 9));
    say!("after", s.b_send(c, "normal"), s.mask(c.a), try_recv(c.a, 99));
    say!("after", calls::send(c.a, b"normal", 0), s.b_recv(c, 99));
}

/// Urgent data, inline.
pub fn urgent_inline(s: &mut Stage) {
    let c = s.pair_nb();
    say!("inline", calls::setsockopt(c.a, libc::SOL_SOCKET, libc::SO_OOBINLINE, 1));
    say!("peer", s.b(&format!("send {} 1 abX", c.b)));
    say!("poll", s.mask(c.a));
    say!("recv", try_recv(c.a, 9), calls::sockatmark(c.a), try_recv(c.a, 9));
    say!("urgent", calls::recv(c.a, 1, libc::MSG_OOB), s.mask(c.a));
}

/// No urgent data.
pub fn urgent_none(s: &mut Stage) {
    let c = s.pair_nb();
    say!("urgent", calls::recv(c.a, 1, libc::MSG_OOB));
    say!("peer", s.b_send(c, "abc"), s.mask(c.a));
    say!("urgent", calls::recv(c.a, 1, libc::MSG_OOB), try_recv(c.a, 9));
}

/// `readv` and `writev`.
pub fn vectors(s: &mut Stage) {
    let c = s.pair_nb();
    say!("writev", calls::writev(c.a, &[b"ab", b"", b"cde", b"f"]), s.b_recv(c, 99));
    s.b_send(c, "0123456789");
    settle();
    say!("readv", calls::readv(c.a, &[3, 0, 4]), calls::readv(c.a, &[1, 99]));
    say!("readv, nothing", calls::readv(c.a, &[1, 99]));
    let big = vec![7u8; 5000];
    say!("writev", calls::writev(c.a, &[&big, b"-", &big]), s.b(&format!("drain {}", c.b)));
    s.b_close(c);
    settle();
    say!("readv at the end", calls::readv(c.a, &[1, 99]));
}

/// The limit of 1024 parts.
pub fn too_many_vectors(s: &mut Stage) {
    let c = s.pair_nb();
    let part: &[u8] = b"x";
    say!("writev 1024", calls::writev(c.a, &[part; 1024]), s.b(&format!("drain {}", c.b)));
    say!("writev 1025", calls::writev(c.a, &[part; 1025]));
    say!("sendmsg 1024", calls::sendmsg(c.a, &[part; 1024], 0), s.b(&format!("drain {}", c.b)));
    say!("sendmsg 1025", calls::sendmsg(c.a, &[part; 1025], 0));
    s.b(&format!("sendn {} 1100 1", c.b));
    settle();
    say!("readv 1025", calls::readv(c.a, &[1; 1025]));
    say!("recvmsg 1025", calls::recvmsg(c.a, &[1; 1025], 0).0);
    say!("readv 1024", calls::readv(c.a, &[1; 1024]));
}

/// `sendmsg` and `recvmsg`.
pub fn messages(s: &mut Stage) {
    let c = s.pair_nb();
    say!("sendmsg", calls::sendmsg(c.a, &[b"one ", b"two"], 0), s.b_recv(c, 99));
    s.b_send(c, "0123456789");
    settle();
    let (got, extra) = calls::recvmsg(c.a, &[3, 3], 0);
    say!("recvmsg", got, extra);
    let (got, extra) = calls::recvmsg(c.a, &[99], libc::MSG_CMSG_CLOEXEC);
    say!("recvmsg", got, extra);
    let (got, extra) = calls::recvmsg(c.a, &[99], 0);
    say!("recvmsg, nothing", got, extra);
    s.b_send(c, "truncate me");
    settle();
    let (got, extra) = calls::recvmsg(c.a, &[3], libc::MSG_PEEK | libc::MSG_TRUNC);
    say!("peek trunc", got, extra);
    say!("recv", try_recv(c.a, 99));
}

/// `sendmmsg` and `recvmmsg` that do not wait.
pub fn many_messages(s: &mut Stage) {
    let c = s.pair_nb();
    say!("sendmmsg", calls::sendmmsg(c.a, &[b"one", b"", b"three"], 0), s.b_recv(c, 99));
    s.b_send(c, "0123456789");
    settle();
    say!("recvmmsg", calls::recvmmsg(c.a, &[3, 3], 0, None));
    say!("recvmmsg", calls::recvmmsg(c.a, &[3, 3, 3], 0, None));
    say!("nothing", calls::recvmmsg(c.a, &[3], 0, None));
    s.b_send(c, "end");
    s.b_close(c);
    settle();
    say!("at the end", calls::recvmmsg(c.a, &[9, 9], 0, None));
}

/// `recvmmsg` that waits.
pub fn many_messages_block(s: &mut Stage) {
    let c = s.pair();
    s.b_send(c, "abc");
    settle();
    say!("wait for one", calls::recvmmsg(c.a, &[9, 9], 0x10000, None));
    s.b_later(120, &format!("send {} 0 def", c.b));
    let (got, when) = timed(|| calls::recvmmsg(c.a, &[3, 9], 0x10000, None));
    say!("wait for one", got, when);
    s.b_send(c, "ghi");
    s.b_later(120, &format!("send {} 0 jkl", c.b));
    let (got, when) = timed(|| calls::recvmmsg(c.a, &[3, 3], 0, None));
    say!("wait for two", got, when);
}

/// `preadv2` and `pwritev2`.
pub fn preadv2_pwritev2(s: &mut Stage) {
    let c = s.pair_nb();
    say!("pwritev2", calls::pwritev2(c.a, &[b"ab", b"cd"], -1, 0), s.b_recv(c, 99));
    s.b_send(c, "0123456789");
    settle();
    say!("preadv2", calls::preadv2(c.a, &[2, 2], -1, 0));
    say!("at an offset", calls::preadv2(c.a, &[2], 0, 0), calls::pwritev2(c.a, &[b"x"], 0, 0));
    say!("rest", calls::preadv2(c.a, &[99], -1, 0), calls::preadv2(c.a, &[99], -1, 0));
}

/// `RWF_NOWAIT` on a blocking socket.
pub fn nowait_read(s: &mut Stage) {
    let c = s.pair();
    say!("nothing", calls::preadv2(c.a, &[9], -1, libc::RWF_NOWAIT));
    s.b_send(c, "abc");
    settle();
    say!("three", calls::preadv2(c.a, &[9], -1, libc::RWF_NOWAIT));
}

/// `sendfile` from a file.
pub fn sendfile(s: &mut Stage) {
    let c = s.pair();
    let file = calls::memfd(b"0123456789").expect("a file");
    let mut at = 2;
    say!("with an offset", calls::sendfile(c.a, file, Some(&mut at), 3), at, s.b_recv(c, 99));
    say!("with the position", calls::sendfile(c.a, file, None, 4), s.b_recv(c, 99));
    say!("past the end", calls::sendfile(c.a, file, None, 99), s.b_recv(c, 99));
    say!("at the end", calls::sendfile(c.a, file, None, 99));
    say!("nothing", calls::sendfile(c.a, file, Some(&mut 0), 0));
    let big = crate::show::stream_bytes(9, 0, 700_000);
    let file = calls::memfd(&big).expect("a file");
    s.b_later(0, &format!("recvn {} 700000 9", c.b));
    let mut sent = 0;
    while let Ok(n) = calls::sendfile(c.a, file, None, 1 << 20) {
        sent += n;
        if n == 0 {
            break;
        }
    }
    say!("large", sent);
    say!("after", calls::send(c.a, b"tail", 0), s.b_recv(c, 99));
}

/// `sendfile` that is stopped in the middle of a file because the socket is full: what it says, the offset and the
/// position of the file agree with what comes out at the other end, which then is sent the rest.
pub fn sendfile_stops_midway(s: &mut Stage) {
    const LEN: usize = 24 << 20;
    let big = crate::show::stream_bytes(11, 0, LEN);
    for by_offset in [true, false] {
        let c = s.pair_nb();
        let file = calls::memfd(&big).expect("a file");
        s.b_later(150, &format!("recvn {} {LEN} 11", c.b));
        let (mut at, mut sent, mut stops) = (0i64, 0, 0);
        let mut agrees = true;
        while sent < LEN {
            let offset = if by_offset { Some(&mut at) } else { None };
            match calls::sendfile(c.a, file, offset, LEN) {
                Ok(n) => sent += n,
                Err(libc::EAGAIN) => {
                    stops += 1;
                    let _ = calls::poll(c.a, libc::POLLOUT, 5000);
                }
                Err(errno) => {
                    say!("failed", errno);
                    break;
                }
            }
            let is_at =
                if by_offset { usize::try_from(at).ok() } else { calls::position(file).ok() };
            agrees &= is_at == Some(sent);
        }
        say!("by offset", by_offset, "sent", sent, "stopped", stops > 0, "agrees", agrees);
        calls::set_nonblocking(c.a, false).expect("a flag");
        say!("after", calls::send(c.a, b"tail", 0), s.b_recv(c, 99));
    }
}

/// `sendfile` where it must refuse, and into a full socket.
pub fn sendfile_limits(s: &mut Stage) {
    let c = s.pair_nb();
    let file = calls::memfd(&[b'f'; 100_000]).expect("a file");
    say!("from a socket", calls::sendfile(file, c.a, None, 5));
    let mut negative = -1;
    say!("negative offset", calls::sendfile(c.a, file, Some(&mut negative), 5));
    say!("fill", Stage::fill(c.a));
    let mut at = 5;
    say!("full", calls::sendfile(c.a, file, Some(&mut at), 5), at);
    s.b_close(c);
    settle();
    calls::set_signal(libc::SIGPIPE, true);
    say!("closed", calls::sendfile(c.a, file, None, 5), calls::sendfile(c.a, file, None, 5));
}

/// `splice` from a socket to a pipe.
pub fn splice_in(s: &mut Stage) {
    let c = s.pair_nb();
    let [r, w] = calls::pipe(libc::O_NONBLOCK).expect("a pipe");
    say!("nothing", calls::splice(c.a, w, 99, libc::SPLICE_F_NONBLOCK));
    s.b_send(c, "0123456789");
    settle();
    say!("four", calls::splice(c.a, w, 4, 0), calls::read(r, 99));
    say!("rest", calls::splice(c.a, w, 99, libc::SPLICE_F_MOVE), calls::read(r, 99));
    say!("nothing", calls::splice(c.a, w, 99, 0));
    say!("peer sends", s.b_send(c, "more"), s.mask(c.a), try_recv(c.a, 99));
    s.b_send(c, "last");
    s.b_close(c);
    settle();
    say!("last", calls::splice(c.a, w, 99, 0), calls::splice(c.a, w, 99, 0));
    say!("pipe", calls::read(r, 99));
    // A blocking one waits.
    let c = s.pair();
    s.b_later(120, &format!("send {} 0 waited-for", c.b));
    let (got, when) = timed(|| calls::splice(c.a, w, 99, 0));
    say!("blocking", got, when, calls::read(r, 99));
}

/// Much by `splice` from a socket to a pipe: one that waits for its reader, and one that does not.
pub fn splice_in_much(s: &mut Stage) {
    const LEN: usize = 3_000_000;
    let c = s.warm_pair(6);
    for flags in [0, libc::O_NONBLOCK] {
        let [r, w] = calls::pipe(flags).expect("a pipe");
        s.tell(&format!("sendn {} {LEN} 5", c.b));
        let reading = std::thread::spawn(move || {
            let mut at = 0;
            while at < LEN {
                match calls::read(r, 30_011) {
                    Ok(got)
                        if got == crate::show::stream_bytes(5, at as u64, got.len())
                            && !got.is_empty() =>
                    {
                        at += got.len()
                    }
                    Err(libc::EAGAIN) => {
                        let _ = calls::poll(r, libc::POLLIN, 1000);
                    }
                    _ => break,
                }
            }
            at
        });
        let (mut moved, mut full) = (0, false);
        while moved < LEN {
            match calls::splice(c.a, w, 1 << 20, 0) {
                Ok(n) if n > 0 => moved += n,
                Err(libc::EAGAIN) => {
                    full = true;
                    let _ = calls::poll(w, libc::POLLOUT, 1000);
                }
                _ => break,
            }
        }
        // Whether it was ever full is a matter of time, but one that waits never says so.
        say!("moved", moved, reading.join().expect("no panic"), full && flags == 0, s.answer());
    }
    say!("the end", s.b_close(c), calls::recv(c.a, 9, 0));
}

/// `splice` from a pipe to a socket.
pub fn splice_out(s: &mut Stage) {
    let c = s.pair();
    let [r, w] = calls::pipe(libc::O_NONBLOCK).expect("a pipe");
    say!("nothing", calls::splice(r, c.a, 99, libc::SPLICE_F_NONBLOCK));
    say!("pipe", calls::write(w, b"0123456789"));
    say!("four", calls::splice(r, c.a, 4, libc::SPLICE_F_MORE), calls::splice(r, c.a, 99, 0));
    let mut got = String::new();
    while got.len() < 12 {
        got += s.b_recv(c, 99).trim_start_matches("b:");
        if got.len() >= 10 {
            break;
        }
    }
    say!("the peer", got);
    say!("send", calls::send(c.a, b"direct", 0), s.b_recv(c, 99));
    calls::close(w).expect("closed");
    say!("pipe at its end", calls::splice(r, c.a, 99, 0));
}

/// `sendfile` from a connection into a pipe, which Linux has done since 5.12: what the connection has, and no more.
pub fn sendfile_into_a_pipe(s: &mut Stage) {
    let c = s.pair();
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1).expect("added");
    let [r, w] = calls::pipe(libc::O_NONBLOCK).expect("a pipe");
    for n in 0..4 {
        // Who sleeps is rung for.
        s.b_later(100, &format!("send {} 0 text {n}", c.b));
        say!("event", calls::epoll_wait(ep, 4, 5000));
        say!("moved", calls::sendfile(w, c.a, None, 99), calls::read(r, 99));
    }
    say!("at a place", calls::sendfile(w, c.a, Some(&mut 0), 99));
    calls::set_nonblocking(c.a, true).expect("a flag");
    say!("nothing", calls::sendfile(w, c.a, None, 99), calls::read(r, 99));
    say!("more than asked for", s.b_send(c, "abcdef"), calls::poll(c.a, libc::POLLIN, 5000));
    say!("moved", calls::sendfile(w, c.a, None, 3), calls::read(r, 99), calls::recv(c.a, 9, 0));
    say!("end", s.b_shutdown(c, libc::SHUT_WR), calls::poll(c.a, libc::POLLIN, 5000));
    say!("moved", calls::sendfile(w, c.a, None, 99));
}

/// `splice` that does not wait, by what its flags say and by what the two ends are; of what it does not wait for is the
/// other end.
pub fn splice_that_does_not_wait(s: &mut Stage) {
    let c = s.warm_pair(6);
    let [r, w] = calls::pipe(libc::O_NONBLOCK).expect("a pipe");
    let now = libc::SPLICE_F_NONBLOCK;
    say!("an empty pipe", calls::splice(r, c.a, 99, 0), calls::splice(r, c.a, 99, now));
    let [waiting, _writer] = calls::pipe(0).expect("a pipe");
    say!("one that waits", calls::splice(waiting, c.a, 99, now));
    for flags in [0, now] {
        say!("no bytes", calls::splice(waiting, c.a, 0, flags), calls::splice(c.a, w, 0, flags));
    }
    // Into a pipe from a connection where nothing is.
    for (to, flags) in [(w, now), (w, 0)] {
        s.b_later(120, &format!("send {} 0 waited-for", c.b));
        let (got, when) = timed(|| calls::splice(c.a, to, 99, flags));
        say!("waits", got, when, calls::read(r, 99));
        settle();
        say!("and what was left", calls::recv(c.a, 99, libc::MSG_DONTWAIT));
    }
    // Into a pipe that is full.
    let size = calls::fcntl(w, libc::F_GETPIPE_SZ, 0).expect("a size");
    say!("full", calls::write(w, &vec![b'.'; size]).is_ok_and(|n| n == size), s.b_send(c, "more"));
    settle();
    say!("no room", calls::splice(c.a, w, 99, now), calls::splice(c.a, w, 99, 0));
    say!("still there", calls::recv(c.a, 99, libc::MSG_DONTWAIT));
    // From a pipe into a connection that is full.
    let [r, w] = calls::pipe(0).expect("a pipe");
    say!("pipe", calls::write(w, b"0123456789"), Stage::fill(c.a));
    s.b_later(150, &format!("drain {}", c.b));
    let (got, when) = timed(|| calls::splice(r, c.a, 5, now));
    say!("a full connection", got, when);
    say!("nonblocking", calls::set_nonblocking(c.a, true));
    s.b("sleep 300");
    say!("drained", s.b(&format!("drain {}", c.b)).ends_with("and no more"));
    say!("fill", Stage::fill(c.a), calls::splice(r, c.a, 5, 0), calls::splice(r, c.a, 5, now));
}

/// `sendfile` from what has no place that could be sought.
pub fn sendfile_from_what_is_no_file(s: &mut Stage) {
    let (c, other) = (s.warm_pair(6), s.warm_pair(6));
    let [r, w] = calls::pipe(libc::O_NONBLOCK).expect("a pipe");
    say!("an empty pipe", calls::sendfile(c.a, r, None, 5));
    calls::write(w, b"of a pipe").expect("written");
    s.b_send(other, "of another");
    settle();
    let mut at = 0;
    say!("a pipe", calls::sendfile(c.a, r, None, 5), calls::sendfile(c.a, r, Some(&mut at), 5), at);
    say!("a connection", calls::sendfile(c.a, other.a, None, 5));
    say!("one at a place", calls::sendfile(c.a, other.a, Some(&mut at), 5), at);
    say!("itself", calls::sendfile(c.a, c.a, None, 5), calls::sendfile(c.a, -1, None, 5));
    say!("nothing", calls::sendfile(c.a, r, None, 0));
    say!("all is there", calls::read(r, 99), calls::recv(other.a, 99, libc::MSG_DONTWAIT));
    say!("and goes on", calls::send(c.a, b"on", 0), s.b_recv(c, 9), s.b_send(other, "x"));
}

/// Calls that refuse sockets.
pub fn tee_and_others_refuse(s: &mut Stage) {
    let c = s.pair_nb();
    let [r, w] = calls::pipe(libc::O_NONBLOCK).expect("a pipe");
    s.b_send(c, "abc");
    settle();
    say!("tee", calls::tee(c.a, w, 9), calls::tee(r, c.a, 9));
    let file = calls::memfd(b"file").expect("a file");
    say!("copy_file_range", calls::copy_file_range(c.a, file, 4));
    say!("copy_file_range", calls::copy_file_range(file, c.a, 4));
    let other = s.pair_nb();
    say!("splice socket to socket", calls::splice(c.a, other.a, 4, 0));
    say!("recv", try_recv(c.a, 9));
}

/// Buffers that are not there.
pub fn bad_pointers(s: &mut Stage) {
    let c = s.pair_nb();
    say!("recv, nothing queued", calls::bad_pointer(c.a, false));
    say!("send", calls::bad_pointer(c.a, true));
    s.b_send(c, "abcdefgh");
    settle();
    say!("recv", calls::bad_pointer(c.a, false));
    say!("still there", try_recv(c.a, 99));
}

/// A direction filled to the brim and drained.
pub fn full_and_drained(s: &mut Stage) {
    let c = s.pair_nb();
    say!("fill", Stage::fill(c.a));
    say!("poll send", s.mask(c.a), calls::send(c.a, b"x", 0));
    say!("the peer", s.b_mask(c));
    let drained = s.b(&format!("drain {}", c.b));
    say!("drained", drained.ends_with("and no more"));
    say!("poll send", s.mask(c.a), calls::send(c.a, b"x", 0), s.b_recv(c, 9));
}

/// Who has ended receiving, and so hears nothing more of the peer, waits for room and is told when there is some.
pub fn room_behind_an_end(s: &mut Stage) {
    for by_select in [false, true] {
        let c = s.warm_pair(6);
        say!("nonblocking", calls::set_nonblocking(c.a, true));
        say!("shut", calls::shutdown(c.a, libc::SHUT_RD));
        say!("fill", Stage::fill(c.a));
        s.b_later(300, &format!("drain {}", c.b));
        if by_select {
            let limit = Some(Duration::from_secs(20));
            say!("select", calls::select(&[], &[c.a], &[], limit, None).map(|found| found.write));
        } else {
            say!("poll", calls::poll(c.a, libc::POLLOUT, 20_000));
        }
        say!("send", calls::send(c.a, b"x", 0));
    }
}

/// Eight million bytes to and fro at the same time.
pub fn large_both_ways(s: &mut Stage) {
    let c = s.pair();
    let (fd, len) = (c.a, 8 << 20);
    let sending = std::thread::spawn(move || peer::send_stream(fd, len, 21));
    s.b_later(0, &format!("echo {}", c.b));
    say!("received", peer::receive_stream(c.a, len, 21));
    say!("sent", sending.join().expect("no panic"));
    say!("shut", calls::shutdown(c.a, libc::SHUT_WR), s.b_close(c), calls::recv(c.a, 9, 0));
}

/// Large blocking writes and small reads.
pub fn large_one_way_blocking(s: &mut Stage) {
    let c = s.pair();
    let len = 4_000_000;
    s.b_later(0, &format!("recvn {} {len} 3", c.b));
    let bytes = crate::show::stream_bytes(3, 0, len);
    say!("one write", calls::write(c.a, &bytes));
    s.b_later(0, &format!("sendn {} {len} 4", c.b));
    let mut at = 0;
    while at < len {
        let step = 1 + at % 30_011;
        let Ok(got) = calls::recv(c.a, step.min(len - at), 0) else { break };
        if got.is_empty() || got != crate::show::stream_bytes(4, at as u64, got.len()) {
            break;
        }
        at += got.len();
    }
    say!("read", at);
}

/// `syscall(2)` instead of the function of that name.
pub fn syscall_function(s: &mut Stage) {
    let c = s.pair();
    say!("write", calls::syscall_write(c.a, b"straight"), s.b_recv(c, 99));
    s.b_send(c, "in");
    say!("read", calls::syscall_read(c.a, 99));
    say!("usual", calls::send(c.a, b"usual", 0), s.b_recv(c, 99));
    s.b_send(c, "usual");
    say!("usual", calls::recv(c.a, 99, 0));
}

/// `MSG_MORE` does not hold bytes back for ever.
pub fn more_flag(s: &mut Stage) {
    let c = s.pair();
    say!("more", calls::send(c.a, b"abc", libc::MSG_MORE));
    say!("rest", calls::send(c.a, b"def", 0));
    std::thread::sleep(Duration::from_millis(30));
    say!("the peer", s.b_recv(c, 99));
    say!("more", calls::send(c.a, b"lonely", libc::MSG_MORE), s.b_recv(c, 99));
    say!("more", calls::send(c.a, b"bye", libc::MSG_MORE), calls::close(c.a), s.b_recv(c, 9));
}

/// `SO_ZEROCOPY` and `MSG_ZEROCOPY`: the completion shows on the error queue.
pub fn zero_copy_sending(s: &mut Stage) {
    let c = s.pair();
    say!("option", calls::setsockopt(c.a, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1));
    say!("send", calls::send(c.a, b"zero copies", libc::MSG_ZEROCOPY), s.b_recv(c, 99));
    // Complete when acknowledged.
    std::thread::sleep(Duration::from_millis(250));
    say!("poll", s.mask(c.a));
    let (got, extra) = calls::recvmsg(c.a, &[9], libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
    say!("completion", got, extra);
    let (got, extra) = calls::recvmsg(c.a, &[9], libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
    say!("no more", got, extra);
    say!("poll", s.mask(c.a));
    say!("back", s.b_send(c, "hello"), calls::recv(c.a, 9, 0));
}

/// `SO_ZEROCOPY`, and no send that asks for it: gRPC sets it on its listener.
pub fn zero_copy_unasked(s: &mut Stage) {
    let (listener, port) = s.listener(16);
    say!("option", calls::setsockopt(listener, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1));
    let b = Stage::number(&s.b(&format!("connect {port}")));
    let c = Conn { a: calls::accept(listener, 0).expect("a connection"), b };
    say!("it", calls::getsockopt(c.a, libc::SOL_SOCKET, libc::SO_ZEROCOPY));
    for _ in 0..6 {
        say!("sent", calls::send(c.a, b"there", 0), s.b_recv(c, 9));
        say!("received", s.b_send(c, "back"), calls::recv(c.a, 9, 0));
    }
    say!("asked", calls::send(c.a, b"zero copies", libc::MSG_ZEROCOPY), s.b_recv(c, 99));
    std::thread::sleep(Duration::from_millis(250));
    say!("poll", s.mask(c.a));
    let (got, extra) = calls::recvmsg(c.a, &[9], libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT);
    say!("completion", got, extra);
    say!("back", s.b_send(c, "hello"), calls::recv(c.a, 9, 0));
}

/// Kernel TLS: whatever the kernel says, bytes still flow; where it has it, as records that it has sealed.
pub fn kernel_tls_refused_or_not(s: &mut Stage) {
    let c = s.pair();
    let found = calls::setsockopt_text(c.a, libc::IPPROTO_TCP, libc::TCP_ULP, "tls");
    say!("TCP_ULP", found);
    if found == Err(libc::ENOENT) {
        crate::run::skipped("the kernel has no kernel TLS: only the way back to TCP was compared");
    }
    say!("nonsense", calls::setsockopt_text(c.a, libc::IPPROTO_TCP, libc::TCP_ULP, "no-such"));
    say!("send", calls::send(c.a, b"plain text", 0), s.b_recv(c, 99));
    say!("back", s.b_send(c, "hello"), calls::recv(c.a, 9, 0));
    if found.is_ok() {
        sealed_records(s, c);
    }
}

/// A connection whose socket has kernel TLS and no keys yet gets them. The peer knows nothing of it: it sees records,
/// and what it sends back is opened.
fn sealed_records(s: &mut Stage, c: Conn) {
    // The first record goes one way only.
    say!("keys", tls::set_key(c.a, tls::SENDING, 0), tls::set_key(c.a, tls::RECEIVING, 1));
    say!("send", calls::send(c.a, b"sealed", 0));
    // A record of application data: its kind, version and length, an explicit nonce, and a tag of 16 bytes.
    say!("kind", s.b(&format!("first {}", c.b)), "the rest", s.b_recv(c, 99));
    s.tell(&format!("echo {}", c.b));
    for text in ["there", "and back again"] {
        say!("send", calls::send(c.a, text.as_bytes(), 0), calls::recv(c.a, 99, 0));
    }
    say!("end", calls::shutdown(c.a, libc::SHUT_WR), s.answer());
}
