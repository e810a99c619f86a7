//! poll, select and epoll: what is ready, when, how often, and together with other descriptors.

use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT};
use libc::{EPOLLRDHUP, POLLIN, POLLOUT, POLLRDHUP};

use crate::calls::{self, Bytes, Waiting};
use crate::say;
use crate::stage::{Conn, SETTLE, Stage, timed};

fn settle() {
    std::thread::sleep(SETTLE);
}

fn try_recv(fd: i32, len: usize) -> Bytes {
    calls::recv(fd, len, libc::MSG_DONTWAIT)
}

type Events = Result<Vec<(u32, u64)>, i32>;

/// What comes within 40 ms: enough for an event that is due, short for one that must not come.
fn soon(ep: i32) -> Events {
    calls::epoll_wait(ep, 8, 40)
}

fn set_with(fd: i32, events: i32) -> i32 {
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, EPOLL_CTL_ADD, fd, events, 1).expect("added");
    ep
}

/// Lists with duplicates, negative and closed descriptors.
pub fn poll_sets(s: &mut Stage) {
    let (c, d) = (s.pair_nb(), s.pair_nb());
    let closed = calls::dup(c.a).expect("a duplicate");
    calls::close(closed).expect("closed");
    let all = [(c.a, POLLIN), (-1, POLLIN), (d.a, POLLIN | POLLOUT), (c.a, POLLIN), (d.a, 0)];
    say!("nothing", calls::poll_many(&all, 30));
    s.b_send(c, "x");
    settle();
    say!("one", calls::poll_many(&all, 1000));
    say!("bad", calls::poll_many(&[(closed, POLLIN), (c.a, POLLIN)], 1000));
    say!("empty list", calls::poll_many(&[], 30));
    s.b_reset(d);
    settle();
    say!("reset, no events asked", calls::poll_many(&[(d.a, 0), (c.a, POLLOUT)], 1000));
    let all = [(c.a, libc::POLLRDNORM | libc::POLLWRNORM | libc::POLLRDBAND | libc::POLLWRBAND)];
    say!("other names", calls::poll_many(&all, 1000));
    say!("recv", try_recv(c.a, 9), calls::poll_many(&[(c.a, POLLIN)], 0));
}

/// `poll` waits as long as it was told, and wakes up for bytes.
pub fn poll_waits(s: &mut Stage) {
    let c = s.pair_nb();
    let (got, when) = timed(|| calls::poll(c.a, POLLIN, 80));
    say!("times out", got, when);
    for text in ["a", "b", "c"] {
        s.b_later(120, &format!("send {} 0 {text}", c.b));
        let (got, when) = timed(|| calls::poll(c.a, POLLIN, 5000));
        say!("bytes", got, when, calls::recv(c.a, 9, 0));
    }
    s.b_later(120, &format!("send {} 0 for-ever", c.b));
    let (got, when) = timed(|| calls::poll(c.a, POLLIN, -1));
    say!("for ever", got, when, calls::recv(c.a, 9, 0));
    s.b_later(120, &format!("shutdown {} 1", c.b));
    let (got, when) = timed(|| calls::poll(c.a, POLLIN | POLLRDHUP, 5000));
    say!("the end", got, when, calls::recv(c.a, 9, 0));
    let c = s.pair_nb();
    s.b_later(120, &format!("reset {}", c.b));
    let (got, when) = timed(|| calls::poll(c.a, 0, 5000));
    say!("reset", got, when);
}

/// `select` with all three sets.
pub fn select_sets(s: &mut Stage) {
    let (c, d) = (s.pair_nb(), s.pair_nb());
    let fds = [c.a, d.a];
    let wait = Some(Duration::from_millis(30));
    let now = Some(Duration::ZERO);
    say!("nothing", calls::select(&fds, &[], &fds, wait, None));
    say!("writable", calls::select(&fds, &fds, &fds, now, None));
    s.b_send(c, "x");
    settle();
    let got = calls::select(&fds, &[c.a], &fds, now, None).expect("a result");
    say!("readable", got, got.read == vec![c.a]);
    s.b_close(d);
    settle();
    say!("and closed", calls::select(&fds, &[], &fds, now, None));
    s.b(&format!("send {} 1 u", c.b));
    settle();
    let got = calls::select(&[], &[], &[c.a], now, None).expect("a result");
    say!("urgent", got);
    say!("pselect", calls::select(&fds, &fds, &[], now, Some(&[])));
    say!("only time", calls::select(&[], &[], &[], wait, None));
}

/// `select` waits and writes back the time that is left.
pub fn select_waits(s: &mut Stage) {
    let c = s.pair_nb();
    let (got, when) =
        timed(|| calls::select(&[c.a], &[], &[], Some(Duration::from_millis(90)), None));
    say!("times out", got, when);
    s.b_later(120, &format!("send {} 0 x", c.b));
    let (got, when) = timed(|| calls::select(&[c.a], &[], &[], Some(Duration::from_secs(5)), None));
    say!("bytes", got, when);
    say!("recv", try_recv(c.a, 9));
    s.b_later(120, &format!("send {} 0 y", c.b));
    let (got, when) = timed(|| calls::select(&[c.a], &[], &[], None, None).map(|r| r.count));
    say!("for ever", got, when);
}

/// A closed descriptor fails the whole `select`.
pub fn select_bad_fd(s: &mut Stage) {
    let c = s.pair_nb();
    s.b_send(c, "x");
    settle();
    let closed = calls::dup(c.a).expect("a duplicate");
    calls::close(closed).expect("closed");
    say!("closed", calls::select(&[c.a, closed], &[], &[], Some(Duration::ZERO), None));
    say!("open", calls::select(&[c.a], &[], &[], Some(Duration::ZERO), None));
}

/// Level-triggered.
pub fn epoll_level(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLIN | EPOLLRDHUP);
    say!("nothing", soon(ep));
    say!("bytes", s.b_send(c, "abcd"), soon(ep), soon(ep));
    say!("read in part", try_recv(c.a, 1), soon(ep), soon(ep));
    say!("read all", try_recv(c.a, 9), soon(ep));
    say!("add out", calls::epoll_ctl(ep, EPOLL_CTL_MOD, c.a, EPOLLIN | EPOLLOUT, 2), soon(ep));
    say!("bytes", s.b_send(c, "x"), calls::epoll_wait(ep, 8, 1000).is_ok());
    settle();
    say!("both", soon(ep), try_recv(c.a, 9), soon(ep));
    say!(
        "no more out",
        calls::epoll_ctl(ep, EPOLL_CTL_MOD, c.a, EPOLLIN | EPOLLRDHUP, 3),
        soon(ep)
    );
    say!("fin", s.b_shutdown(c, libc::SHUT_WR));
    settle();
    say!("fin", soon(ep), soon(ep), try_recv(c.a, 1), soon(ep));
    say!("we shut", calls::shutdown(c.a, libc::SHUT_WR));
    settle();
    say!("both shut", soon(ep), calls::epoll_ctl(ep, EPOLL_CTL_DEL, c.a, 0, 0), soon(ep));
}

/// Edge-triggered: an event for each arrival, none without one.
pub fn epoll_edge(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP);
    say!("first", soon(ep), soon(ep));
    say!("bytes", s.b_send(c, "aaaa"), soon(ep), soon(ep));
    say!("read in part", try_recv(c.a, 1), soon(ep));
    say!("another arrival", s.b_send(c, "b"), soon(ep), soon(ep));
    say!("we send", calls::send(c.a, b"x", 0), s.b_recv(c, 9), soon(ep));
    say!("MOD", calls::epoll_ctl(ep, EPOLL_CTL_MOD, c.a, EPOLLIN | EPOLLET, 1), soon(ep), soon(ep));
    say!("read all", try_recv(c.a, 99), try_recv(c.a, 99), soon(ep));
    say!("bytes", s.b_send(c, "c"), soon(ep), soon(ep), try_recv(c.a, 9));
    for i in 0..5 {
        s.b_later(5, &format!("send {} 0 {i}", c.b));
        say!("ping", calls::epoll_wait(ep, 8, 2000), try_recv(c.a, 9));
    }
    say!("fin", s.b_close(c), soon(ep), soon(ep), try_recv(c.a, 1), soon(ep));
}

/// Edge-triggered writability.
pub fn epoll_edge_out(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLOUT | EPOLLET);
    say!("first", soon(ep), soon(ep));
    say!("fill", Stage::fill(c.a), calls::send(c.a, b"x", 0));
    let _ = soon(ep);
    say!("full", soon(ep));
    let drained = s.b(&format!("drain {}", c.b));
    say!("drained", drained.ends_with("no more"), soon(ep), soon(ep));
    say!("send", calls::send(c.a, b"x", 0), soon(ep));
    say!(
        "MOD",
        calls::epoll_ctl(ep, EPOLL_CTL_MOD, c.a, EPOLLOUT | EPOLLET, 2),
        soon(ep),
        soon(ep)
    );
}

/// Edge-triggered: that a low water mark was set is an edge, if there is something to read.
pub fn epoll_edge_low_water_mark(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLIN | EPOLLET);
    let low = |fd| calls::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
    say!("nothing there", low(c.a), soon(ep));
    say!("bytes", s.b_send(c, "abc"), soon(ep), soon(ep));
    say!("set", low(c.a), soon(ep), soon(ep));
    say!("taken", try_recv(c.a, 9), low(c.a), soon(ep));
    say!("end", s.b_shutdown(c, libc::SHUT_WR), soon(ep), soon(ep), low(c.a), soon(ep), soon(ep));
}

/// Edge-triggered: that the limit of what may be queued was set is an edge, if there is room, for who asks for room.
pub fn epoll_edge_send_buffer(s: &mut Stage) {
    let c = s.pair_nb();
    let (room, bytes) = (set_with(c.a, EPOLLOUT | EPOLLET), set_with(c.a, EPOLLIN | EPOLLET));
    let buffer = |fd| calls::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 50_000);
    let unsent = |fd| calls::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 9_000);
    say!("at first", soon(room), soon(room), soon(bytes));
    say!("bytes", s.b_send(c, "abc"), soon(bytes), soon(bytes), calls::send(c.a, b"x", 0));
    let _ = soon(room);
    say!("set", buffer(c.a), soon(room), soon(room), soon(bytes));
    say!("set", unsent(c.a), soon(room), soon(room), soon(bytes));
    say!("full", Stage::fill(c.a));
    let _ = soon(room);
    say!("set", buffer(c.a), soon(room), soon(bytes));
}

/// Edge-triggered: a reset is an edge.
pub fn epoll_edge_reset(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLIN | EPOLLET);
    say!("nothing", soon(ep));
    s.b_reset(c);
    say!("reset", soon(ep), soon(ep));
    say!("recv", try_recv(c.a, 1), soon(ep));
}

/// `EPOLLONESHOT`.
pub fn epoll_oneshot(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLIN | EPOLLONESHOT);
    say!("bytes", s.b_send(c, "a"), soon(ep), soon(ep));
    say!("more bytes", s.b_send(c, "b"), soon(ep));
    let again = || calls::epoll_ctl(ep, EPOLL_CTL_MOD, c.a, EPOLLIN | EPOLLONESHOT, 2);
    say!("armed again", again(), soon(ep), soon(ep));
    say!("drained", try_recv(c.a, 9), again(), soon(ep));
    s.b_later(120, &format!("send {} 0 c", c.b));
    say!("later", calls::epoll_wait(ep, 8, 2000), soon(ep), try_recv(c.a, 9));
    say!("closed while off", s.b_close(c), soon(ep));
    say!("armed", again(), soon(ep), soon(ep));
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLIN | EPOLLOUT | EPOLLONESHOT | EPOLLET);
    say!("edge and oneshot", soon(ep), s.b_send(c, "x"), soon(ep));
}

/// No events asked for: only the end shows.
pub fn epoll_no_events(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, 0);
    say!("bytes", s.b_send(c, "x"), soon(ep));
    s.b_reset(c);
    say!("reset", soon(ep), soon(ep));
    let c = s.pair_nb();
    let ep = set_with(c.a, 0);
    s.b_close(c);
    say!("fin", soon(ep));
}

/// What `epoll_ctl` and `epoll_wait` refuse.
pub fn epoll_errors(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLIN);
    let ctl = |op, fd, events| calls::epoll_ctl(ep, op, fd, events, 1);
    say!("add twice", ctl(EPOLL_CTL_ADD, c.a, EPOLLIN));
    say!("exclusive by MOD", ctl(EPOLL_CTL_MOD, c.a, EPOLLIN | libc::EPOLLEXCLUSIVE));
    say!("delete", ctl(EPOLL_CTL_DEL, c.a, 0), ctl(EPOLL_CTL_DEL, c.a, 0));
    say!("change what is not there", ctl(EPOLL_CTL_MOD, c.a, EPOLLIN));
    say!("bad operation", ctl(9, c.a, EPOLLIN));
    say!("closed fd", ctl(EPOLL_CTL_ADD, 999, EPOLLIN));
    let file = calls::memfd(b"x").expect("a file");
    say!("file", ctl(EPOLL_CTL_ADD, file, EPOLLIN));
    say!("itself", ctl(EPOLL_CTL_ADD, ep, EPOLLIN));
    say!("no set", calls::epoll_ctl(c.a, EPOLL_CTL_ADD, c.a, EPOLLIN, 1));
    say!("wait for none", calls::epoll_wait(ep, 0, 0), calls::epoll_wait(c.a, 4, 0));
    say!("wait for less than none", calls::epoll_wait_for_less(ep));
    let exclusive = EPOLLIN | libc::EPOLLEXCLUSIVE;
    say!("exclusive with RDHUP", ctl(EPOLL_CTL_ADD, c.a, exclusive | EPOLLRDHUP));
    say!("exclusive", ctl(EPOLL_CTL_ADD, c.a, exclusive), s.b_send(c, "x"), soon(ep));
    say!("exclusive changed", ctl(EPOLL_CTL_MOD, c.a, EPOLLIN));
}

/// A registered descriptor is closed, its duplicate lives on.
pub fn epoll_closed_duplicate(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLIN);
    let other = calls::dup(c.a).expect("a duplicate");
    calls::close(c.a).expect("closed");
    say!("bytes", s.b_send(c, "a"), soon(ep));
    say!("recv", try_recv(other, 9), soon(ep));
    say!("last close", calls::close(other), s.b_mask(c), soon(ep));
}

/// A registered descriptor is closed and another file takes its number; the connection is passed on by its duplicate, which
/// is closed as well.
pub fn epoll_number_of_another(s: &mut Stage) {
    let c = s.pair_nb();
    let (edge, level) = (set_with(c.a, EPOLLIN | EPOLLET), set_with(c.a, EPOLLIN));
    say!("bytes", s.b_send(c, "a"), soon(edge), soon(level), try_recv(c.a, 9));
    let other = calls::dup(c.a).expect("a duplicate");
    calls::close(c.a).expect("closed");
    let [to, from] = calls::socketpair().expect("a pair");
    say!("its number is taken", to == c.a || from == c.a);
    say!("pass", calls::send_fd(to, other), calls::close(other));
    let passed = calls::recv_fd(from).expect("it arrives");
    say!("nothing", soon(edge), soon(level));
    say!("bytes", s.b_send(c, "b"), soon(edge), soon(level), soon(edge));
    say!("recv", try_recv(passed, 9), soon(edge), soon(level));
    say!("last close", calls::close(passed), s.b_mask(c), soon(edge), soon(level));
}

/// A connection whose peer has closed it is taken out of its set, passed on and closed.
pub fn epoll_taken_out_and_passed(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLIN | EPOLLRDHUP);
    say!("bytes", s.b_send(c, "a"), soon(ep), try_recv(c.a, 9));
    say!("the end", s.b_close(c), soon(ep));
    say!("out", calls::epoll_ctl(ep, EPOLL_CTL_DEL, c.a, 0, 0));
    let [to, from] = calls::socketpair().expect("a pair");
    say!("pass", calls::send_fd(to, c.a), calls::close(c.a));
    let passed = calls::recv_fd(from).expect("it arrives");
    say!("nothing", soon(ep), try_recv(passed, 9));
    let d = s.pair_nb();
    say!("another", s.b_send(d, "b"), soon(ep), try_recv(d.a, 9), calls::close(passed));
}

/// `dup2` over a registered descriptor.
pub fn epoll_dup2_over(s: &mut Stage) {
    let (c, d) = (s.pair_nb(), s.pair_nb());
    let ep = set_with(c.a, EPOLLIN);
    say!("dup2", calls::dup2(d.a, c.a) == Ok(c.a));
    say!("the old peer sees the end", s.b_mask(c));
    say!("event", s.b_send(d, "x"), soon(ep));
    say!("MOD", calls::epoll_ctl(ep, EPOLL_CTL_MOD, c.a, EPOLLIN, 1));
    say!("ADD", calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, 2), soon(ep));
    say!("recv", try_recv(c.a, 9), soon(ep));
}

/// A set inside of a set.
pub fn epoll_nested(s: &mut Stage) {
    let c = s.pair_nb();
    let inner = set_with(c.a, EPOLLIN);
    let outer = set_with(inner, EPOLLIN);
    say!("nothing", soon(outer), calls::poll(inner, POLLIN, 0));
    say!("bytes", s.b_send(c, "a"), soon(outer), calls::poll(inner, POLLIN, 1000), soon(inner));
    say!("read", try_recv(c.a, 9), soon(outer), calls::poll(inner, POLLIN, 0));
    s.b_later(120, &format!("send {} 0 b", c.b));
    let (got, when) = timed(|| calls::epoll_wait(outer, 4, 5000));
    say!("woken through the outer set", got, when, soon(inner), try_recv(c.a, 9));
    s.b_later(120, &format!("send {} 0 c", c.b));
    let (got, when) = timed(|| calls::poll(inner, POLLIN, 5000));
    say!("woken by poll of the set", got, when, try_recv(c.a, 9));
    s.b_later(120, &format!("send {} 0 d", c.b));
    let wait = Some(Duration::from_secs(5));
    let (got, when) = timed(|| calls::select(&[inner], &[], &[], wait, None).map(|r| r.count));
    say!("woken by select of the set", got, when, try_recv(c.a, 9));
    say!("no writing", calls::poll(inner, POLLIN | POLLOUT, 0));
}

/// Sets that are looked at from outside once there is something in them already, or what comes into them is ready.
pub fn epoll_nested_with_something_there(s: &mut Stage) {
    // By `poll` of a set that was waited on by itself before.
    let c = s.warm_pair(6);
    say!("nonblocking", calls::set_nonblocking(c.a, true));
    let inner = set_with(c.a, EPOLLIN);
    say!("nothing", soon(inner), s.b_send(c, "a"));
    settle();
    say!("by poll", calls::poll(inner, POLLIN, 1000), soon(inner), calls::poll(inner, POLLIN, 0));
    let outer = set_with(inner, EPOLLIN);
    say!("by the outer set", soon(outer), soon(inner), soon(outer));
    say!("read", try_recv(c.a, 9), s.b_send(c, "b"), calls::poll(inner, POLLIN, 1000));
    say!("read", soon(inner), try_recv(c.a, 9), soon(outer), soon(inner));
    // What is put into one that is in another set.
    let inner = calls::epoll_create().expect("a set");
    let outer = set_with(inner, EPOLLIN);
    let c = s.warm_pair(6);
    say!("greeting", calls::set_nonblocking(c.a, true), s.b_send(c, "hello"));
    settle();
    say!("put in", calls::epoll_ctl(inner, EPOLL_CTL_ADD, c.a, EPOLLIN, 5), soon(outer));
    say!("told", soon(inner), try_recv(c.a, 9), s.b_send(c, "more"), soon(outer), soon(inner));
    say!("read", try_recv(c.a, 9), soon(outer), soon(inner));
    // Room.
    say!("to write", calls::epoll_ctl(inner, EPOLL_CTL_MOD, c.a, EPOLLIN | EPOLLOUT, 6));
    say!("room", soon(outer), soon(inner), soon(outer), calls::poll(inner, POLLIN, 0));
    say!("no more", calls::epoll_ctl(inner, EPOLL_CTL_MOD, c.a, EPOLLIN, 7), soon(inner));
    say!("quiet", soon(outer), calls::poll(inner, POLLIN, 0));
    let other = s.warm_pair(6);
    let inner = set_with(other.a, EPOLLOUT);
    say!("room by poll", calls::poll(inner, POLLIN, 1000), soon(inner));
}

/// A set that goes on by another number of its descriptor.
pub fn epoll_by_another_number(s: &mut Stage) {
    let c = s.warm_pair(6);
    say!("nonblocking", calls::set_nonblocking(c.a, true));
    let ep = set_with(c.a, EPOLLIN);
    say!("nothing", soon(ep));
    let other = calls::dup_above(ep, 300).expect("a duplicate");
    say!("closed", calls::close(ep));
    let events = EPOLLIN | EPOLLONESHOT;
    say!("once", calls::epoll_ctl(other, EPOLL_CTL_MOD, c.a, events, 2));
    say!("told once", s.b_send(c, "a"), calls::epoll_wait(other, 4, 1000), soon(other));
    say!("read", try_recv(c.a, 9), s.b_close(c));
    settle();
    say!("not of the end", soon(other));
    say!("armed", calls::epoll_ctl(other, EPOLL_CTL_MOD, c.a, events, 3), soon(other), soon(other));
    say!("out", calls::epoll_ctl(other, EPOLL_CTL_DEL, c.a, 0, 0));
}

/// Sets that come and go leave nothing behind.
pub fn epoll_many_in_turn(s: &mut Stage) {
    let c = s.warm_pair(2);
    let pages = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        text.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok()).unwrap_or(0)
    };
    let turns = |n: usize, with_one: bool| {
        for _ in 0..n {
            let ep = calls::epoll_create().expect("a set");
            if with_one {
                calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, 1).expect("added");
            }
            let _ = calls::epoll_wait(ep, 1, 0);
            calls::close(ep).expect("closed");
        }
    };
    for with_one in [false, true] {
        turns(1000, with_one);
        let before = pages();
        turns(40_000, with_one);
        say!("no more memory", pages().saturating_sub(before) < 1024);
    }
    say!("and a set works", s.b_send(c, "x"), soon(set_with(c.a, EPOLLIN)));
}

/// With more ready than room, nobody starves.
pub fn epoll_maxevents_rotates(s: &mut Stage) {
    let all: Vec<Conn> = (0..6).map(|_| s.pair_nb()).collect();
    let ep = calls::epoll_create().expect("a set");
    for (i, c) in all.iter().enumerate() {
        calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, i as u64).expect("added");
        s.b_send(*c, "x");
    }
    settle();
    let mut seen = [0; 6];
    for _ in 0..6 {
        for (_, i) in calls::epoll_wait(ep, 2, 1000).expect("events") {
            seen[usize::try_from(i).expect("small")] += 1;
        }
    }
    say!("each seen", seen.iter().all(|n| *n > 0), seen.iter().sum::<i32>());
    say!("all at once", calls::epoll_wait(ep, 8, 0));
    // A pipe among them does not starve, either.
    let [r, w] = calls::pipe(0).expect("a pipe");
    calls::epoll_ctl(ep, EPOLL_CTL_ADD, r, EPOLLIN, 77).expect("added");
    calls::write(w, b"x").expect("written");
    let pipe_seen = (0..16).any(|_| {
        calls::epoll_wait(ep, 1, 1000).expect("events").iter().any(|(_, data)| *data == 77)
    });
    say!("the pipe is seen", pipe_seen);
}

/// `epoll_pwait2`.
pub fn epoll_pwait2(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLIN);
    let wait = |ms| calls::epoll_wait_by(Waiting::Fine, ep, 4, ms);
    let (got, when) = timed(|| wait(80));
    say!("times out", got, when);
    say!("at once", wait(0));
    s.b_later(120, &format!("send {} 0 x", c.b));
    let (got, when) = timed(|| wait(5000));
    say!("bytes", got, when, try_recv(c.a, 9));
    s.b_later(120, &format!("send {} 0 y", c.b));
    let (got, when) = timed(|| wait(-1));
    say!("for ever", got, when);
}

/// Registered when bytes are already there.
pub fn epoll_added_with_bytes(s: &mut Stage) {
    for flags in [0, EPOLLET, EPOLLONESHOT] {
        let c = s.pair_nb();
        s.b_send(c, "early");
        settle();
        let ep = set_with(c.a, EPOLLIN | flags);
        say!("added", soon(ep), soon(ep), try_recv(c.a, 2), soon(ep));
    }
    let c = s.pair_nb();
    s.b_send(c, "early");
    s.b_close(c);
    settle();
    let ep = set_with(c.a, EPOLLIN | EPOLLRDHUP | EPOLLET);
    say!("with the end", soon(ep), soon(ep), try_recv(c.a, 9), soon(ep));
}

/// In two sets at once.
pub fn epoll_two_sets(s: &mut Stage) {
    let c = s.pair_nb();
    let (one, two) = (set_with(c.a, EPOLLIN), set_with(c.a, EPOLLIN | EPOLLET));
    say!("nothing", soon(one), soon(two));
    say!("bytes", s.b_send(c, "a"), soon(one), soon(two), soon(one), soon(two));
    say!("more", s.b_send(c, "b"), soon(two), soon(one));
    say!("read", try_recv(c.a, 9), soon(one), soon(two));
    let three = set_with(c.a, EPOLLIN | EPOLLOUT);
    say!("a third", soon(three), s.b_send(c, "c"), soon(one), soon(two), soon(three));
    say!("first closed", calls::close(one), s.b_send(c, "d"), soon(two), try_recv(c.a, 9));
}

/// User data comes back as it was, whatever it is.
pub fn epoll_data_verbatim(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = calls::epoll_create().expect("a set");
    let mut op = EPOLL_CTL_ADD;
    for data in [0, u64::MAX, 0x5348_554e_0000_0001, 1 << 63, 0xffff_0000_dead_beef] {
        calls::epoll_ctl(ep, op, c.a, EPOLLIN, data).expect("set");
        op = EPOLL_CTL_MOD;
        s.b_send(c, "x");
        say!("data", soon(ep), try_recv(c.a, 9));
    }
}

/// Level-triggered writability.
pub fn epoll_level_out(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLOUT);
    say!("free", soon(ep), soon(ep));
    say!("fill", Stage::fill(c.a), soon(ep));
    s.b_later(120, &format!("drain {}", c.b));
    let (got, when) = timed(|| calls::epoll_wait(ep, 4, 5000));
    say!("drained", got, when, calls::send(c.a, b"x", 0));
}

/// poll of a connection with a pipe, a timer and a counter.
pub fn mixed_poll(s: &mut Stage) {
    let c = s.pair_nb();
    let [r, w] = calls::pipe(0).expect("a pipe");
    let (timer, counter) = (calls::timerfd(100).expect("a timer"), calls::eventfd(0).expect("one"));
    let all = [(c.a, POLLIN), (r, POLLIN), (timer, POLLIN), (counter, POLLIN)];
    say!("nothing", calls::poll_many(&all, 0));
    let (got, when) = timed(|| calls::poll_many(&all, 5000));
    say!("the timer", got, when, calls::read(timer, 8));
    s.b_later(120, &format!("send {} 0 x", c.b));
    let (got, when) = timed(|| calls::poll_many(&all, 5000));
    say!("the connection", got, when, try_recv(c.a, 9));
    calls::write(w, b"x").expect("written");
    calls::write(counter, &1u64.to_ne_bytes()).expect("counted");
    s.b_send(c, "y");
    settle();
    say!("three", calls::poll_many(&all, 5000));
}

/// epoll of a connection with a pipe, a timer and a counter.
pub fn mixed_epoll(s: &mut Stage) {
    let c = s.pair_nb();
    let [r, w] = calls::pipe(0).expect("a pipe");
    let (timer, counter) = (calls::timerfd(100).expect("a timer"), calls::eventfd(0).expect("one"));
    let ep = set_with(c.a, EPOLLIN);
    for (fd, data) in [(r, 2), (timer, 3), (counter, 4)] {
        calls::epoll_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, data).expect("added");
    }
    say!("nothing", calls::epoll_wait(ep, 8, 0));
    let (got, when) = timed(|| calls::epoll_wait(ep, 8, 5000));
    say!("the timer", got, when, calls::read(timer, 8));
    s.b_later(120, &format!("send {} 0 x", c.b));
    let (got, when) = timed(|| calls::epoll_wait(ep, 8, 5000));
    say!("the connection", got, when, try_recv(c.a, 9));
    calls::write(w, b"x").expect("written");
    calls::write(counter, &1u64.to_ne_bytes()).expect("counted");
    s.b_send(c, "y");
    settle();
    say!("three", calls::epoll_wait(ep, 8, 5000));
    // Busy with the connection, the pipe must be heard.
    calls::epoll_ctl(ep, EPOLL_CTL_DEL, counter, 0, 0).expect("deleted");
    calls::read(r, 9).expect("read");
    say!("writing", calls::write(w, b"z"));
    settle();
    say!("both", calls::epoll_wait(ep, 8, 5000));
}

/// select of a connection with a pipe.
pub fn mixed_select(s: &mut Stage) {
    let c = s.pair_nb();
    let [r, w] = calls::pipe(0).expect("a pipe");
    let wait = || {
        let got = calls::select(&[c.a, r], &[], &[], Some(Duration::from_secs(5)), None);
        got.map(|g| vec![g.read.contains(&c.a), g.read.contains(&r)])
    };
    s.b_later(120, &format!("send {} 0 x", c.b));
    say!("the connection", wait());
    calls::write(w, b"x").expect("written");
    say!("both", wait(), try_recv(c.a, 9));
    say!("the pipe", wait());
}

/// A set forgets a descriptor that is closed, and a new one of that number is not in it.
pub fn epoll_closed_fd_forgets(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLIN);
    s.b_send(c, "unread");
    settle();
    say!("close", soon(ep), calls::close(c.a), soon(ep));
    let d = s.pair_nb();
    say!("the same number", d.a == c.a);
    say!("bytes", s.b_send(d, "x"), soon(ep));
    say!("add", calls::epoll_ctl(ep, EPOLL_CTL_ADD, d.a, EPOLLIN, 5), soon(ep));
}

/// `POLLRDHUP` shows only when asked for; `POLLHUP` and `POLLERR` always.
pub fn poll_without_rdhup(s: &mut Stage) {
    let c = s.pair_nb();
    s.b_shutdown(c, libc::SHUT_WR);
    settle();
    say!("fin", calls::poll(c.a, POLLIN, 100), calls::poll(c.a, POLLRDHUP, 100));
    say!("fin, none asked", calls::poll(c.a, 0, 30));
    calls::shutdown(c.a, libc::SHUT_WR).expect("shut");
    settle();
    say!("both", calls::poll(c.a, 0, 100), calls::poll(c.a, POLLOUT, 100));
    let ep = set_with(c.a, EPOLLIN);
    say!("epoll", soon(ep));
}

/// One wait reports a descriptor once, all its events together.
pub fn epoll_one_event_each(s: &mut Stage) {
    let (c, d) = (s.pair_nb(), s.pair_nb());
    let ep = set_with(c.a, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
    calls::epoll_ctl(ep, EPOLL_CTL_ADD, d.a, EPOLLIN | EPOLLET, 2).expect("added");
    s.b_send(c, "x");
    s.b_send(d, "y");
    s.b_close(c);
    s.b_send(d, "z");
    settle();
    say!("all", soon(ep), soon(ep));
    say!("read", try_recv(c.a, 9), try_recv(d.a, 9), soon(ep));
}

/// Many messages one by one, with sleeps of many lengths between: none is lost, none too many.
pub fn many_small_wakeups(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = set_with(c.a, EPOLLIN);
    let mut events = 0;
    for i in 0..60u64 {
        s.b_later(i % 7, &format!("send {} 0 m{i}", c.b));
        let got = calls::epoll_wait(ep, 8, 3000).expect("a wait");
        events += got.len();
        let want = format!("m{i}").into_bytes();
        if try_recv(c.a, 99) != Ok(want) {
            say!("wrong at", i);
        }
        if try_recv(c.a, 99) != Err(libc::EAGAIN) {
            say!("more at", i);
        }
    }
    say!("events", events, soon(ep));
}
