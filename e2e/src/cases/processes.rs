//! Connections that are shared, inherited and passed on.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::calls::{self, Forked};
use crate::say;
use crate::stage::{Conn, SETTLE, Stage};

fn settle() {
    std::thread::sleep(SETTLE);
}

/// Forks: the child runs `work` and ends with its value.
fn child(work: impl FnOnce() -> i32) -> i32 {
    match calls::fork() {
        Forked::Child => calls::exit_now(work()),
        Forked::Parent(pid) => pid,
    }
}

fn len_of(got: calls::Bytes) -> i32 {
    got.map_or(-1, |bytes| i32::try_from(bytes.len()).unwrap_or(-2))
}

fn sent(got: calls::Ret) -> i32 {
    got.map_or_else(|e| e + 100, |n| i32::try_from(n).unwrap_or(-2))
}

/// The parent closes, the child goes on, in both directions.
pub fn fork_child_continues(s: &mut Stage) {
    let c = s.pair();
    s.b_send(c, "queued before ");
    settle();
    let pid = child(|| {
        settle();
        let _ = calls::send(c.a, b"from the child", 0);
        for _ in 0..20 {
            let Ok(got) = calls::recv(c.a, 99, 0) else { return 1 };
            if got.is_empty() {
                return 0;
            }
            let _ = calls::send(c.a, &got, 0);
        }
        2
    });
    say!("close", calls::close(c.a));
    say!("the peer", s.b_recv(c, 14), s.b_recv(c, 99));
    for text in ["one", "two", "three", "four", "five"] {
        say!("echo", s.b_send(c, text), s.b_recv(c, 99));
    }
    say!("shut", s.b_shutdown(c, libc::SHUT_WR), calls::wait(pid), s.b_mask(c), s.b_recv(c, 9));
}

/// The child ends, the parent goes on.
pub fn fork_parent_continues(s: &mut Stage) {
    let c = s.pair();
    let pid = child(|| 0);
    say!("child", calls::wait(pid));
    settle();
    say!("the peer", s.b_mask(c));
    for text in ["one", "two", "three"] {
        say!("send", calls::send(c.a, text.as_bytes(), 0), s.b_recv(c, 99));
        say!("recv", s.b_send(c, text), calls::recv(c.a, 99, 0));
    }
    let pid = child(|| sent(calls::close(c.a)));
    say!("child closed", calls::wait(pid), s.b_mask(c));
    say!("close", calls::close(c.a), s.b_mask(c));
}

/// Both read the stream: each byte goes to one of them.
pub fn fork_both_read(s: &mut Stage) {
    let c = s.pair();
    let pid = child(|| len_of(calls::recv(c.a, 3, 0)));
    s.b_send(c, "abcdef");
    settle();
    say!("child", calls::wait(pid), "parent", calls::recv(c.a, 99, 0));
    // And both write.
    let pid = child(|| sent(calls::send(c.a, b"child ", 0)));
    say!("child", calls::wait(pid), "parent", calls::send(c.a, b"parent", 0));
    settle();
    say!("the peer", s.b_recv(c, 99));
    // In turns, many times.
    let [r, w] = calls::pipe(0).expect("a pipe");
    let pid = child(|| {
        for _ in 0..20 {
            let Ok(got) = calls::recv(c.a, 1, 0) else { return 1 };
            if calls::write(w, &got).is_err() {
                return 2;
            }
        }
        0
    });
    let mut ours = Vec::new();
    for i in 0..20 {
        s.b_send(c, &format!("{}{}", i % 10, i % 10));
        // The child may be quicker twice.
        if calls::poll(c.a, libc::POLLIN, 100) == Ok(libc::POLLIN) {
            ours.extend(calls::recv(c.a, 1, libc::MSG_DONTWAIT).unwrap_or_default());
        }
    }
    say!("child", calls::wait(pid));
    ours.extend(calls::recv(c.a, 99, libc::MSG_DONTWAIT).unwrap_or_default());
    let theirs = calls::read(r, 99).expect("bytes");
    let mut all = [ours, theirs].concat();
    all.sort_unstable();
    say!("shared out", all);
}

/// `shutdown` in the child counts for the parent.
pub fn fork_shutdown(s: &mut Stage) {
    let c = s.pair();
    let pid = child(|| sent(calls::shutdown(c.a, libc::SHUT_WR)));
    say!("child", calls::wait(pid));
    say!("send", calls::send(c.a, b"x", libc::MSG_NOSIGNAL), s.mask(c.a), s.b_mask(c));
    say!("recv", s.b_send(c, "x"), calls::recv(c.a, 9, 0));
    let c = s.pair();
    let pid = child(|| sent(calls::shutdown(c.a, libc::SHUT_RD)));
    say!("child", calls::wait(pid), calls::recv(c.a, 9, 0), s.mask(c.a));
}

/// `O_NONBLOCK` set by the child counts for the parent.
pub fn fork_nonblock(s: &mut Stage) {
    let c = s.pair();
    let pid = child(|| sent(calls::set_nonblocking(c.a, true)));
    say!("child", calls::wait(pid), calls::recv(c.a, 9, 0));
    let flags = calls::fcntl(c.a, libc::F_GETFL, 0).expect("flags");
    say!("flag", flags & libc::O_NONBLOCK.cast_unsigned() as usize != 0);
}

/// An event set is shared by parent and child.
pub fn fork_epoll_shared(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1).expect("added");
    let pid = child(|| {
        let got = calls::epoll_wait(ep, 4, 2000).map_or(9, |e| e.len());
        i32::try_from(got).unwrap_or(-1) * 10 + len_of(calls::recv(c.a, 1, 0))
    });
    s.b_later(50, &format!("send {} 0 ab", c.b));
    say!("child", calls::wait(pid), "parent", calls::epoll_wait(ep, 4, 1000));
    say!("recv", calls::recv(c.a, 9, 0), calls::epoll_wait(ep, 4, 30));
    let pid = child(|| sent(calls::epoll_ctl(ep, libc::EPOLL_CTL_DEL, c.a, 0, 0)));
    say!("deleted by the child", calls::wait(pid));
    say!("event", s.b_send(c, "x"), calls::epoll_wait(ep, 4, 40));
    let pid = child(|| {
        let events = libc::EPOLLIN | libc::EPOLLET;
        sent(calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, events, 7))
    });
    say!("added by the child", calls::wait(pid), calls::epoll_wait(ep, 4, 1000));
    say!("more", s.b_send(c, "y"), calls::epoll_wait(ep, 4, 1000), calls::recv(c.a, 9, 0));
}

/// Edge-triggered: what comes between a fork and the first wait after it is an edge, also where the child has ended.
pub fn fork_epoll_edges(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = calls::epoll_create().expect("a set");
    let soon = || calls::epoll_wait(ep, 4, 40);
    let events = libc::EPOLLIN | libc::EPOLLET;
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, events, 1).expect("added");
    say!("bytes", s.b_send(c, "abc"), soon(), soon(), calls::send(c.a, b"x", 0), s.b_recv(c, 9));
    let pid = child(|| sent(calls::send(c.a, b"by the child", 0)));
    say!("child", calls::wait(pid), s.b_recv(c, 99));
    say!("more", s.b_send(c, "defg"), s.mask(c.a), s.b_send(c, "h"), soon(), soon());
    say!("and more", s.b_send(c, "j"), soon(), soon());
    say!("recv", calls::recv(c.a, 99, 0), soon(), s.b_send(c, "i"), soon(), soon());
}

/// An event set that a fork shares, with something in it that is ready all the time: a connection is told of all the same,
/// also where an answer has room for one event only.
pub fn fork_epoll_beside_others(s: &mut Stage) {
    let c = s.pair_nb();
    let [out, into] = calls::pipe(0).expect("a pipe");
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1).expect("added");
    let soon = |max| calls::epoll_wait(ep, max, 40);
    // Whether any answer has the same twice, and what is in all of them.
    let told = |answers: Vec<Result<Vec<(u32, u64)>, i32>>| {
        let (mut all, mut twice) = (Vec::new(), false);
        for got in answers {
            let mut answer = got.expect("events");
            let told = answer.len();
            answer.sort_unstable();
            answer.dedup();
            twice |= answer.len() != told;
            all.extend(answer);
        }
        all.sort_unstable();
        all.dedup();
        (twice, all)
    };
    say!("bytes", s.b_send(c, "abc"), soon(4), calls::recv(c.a, 1, 0));
    let pid = child(|| sent(calls::send(c.a, b"by the child", 0)));
    say!("child", calls::wait(pid), s.b_recv(c, 99), soon(4));
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, out, libc::EPOLLIN, 2).expect("added");
    say!("pipe", calls::write(into, b"x"));
    for max in [4, 2, 1] {
        say!("answers", max, told((0..4).map(|_| soon(max)).collect()));
    }
    say!("each", told(vec![soon(4)]), told(vec![soon(2)]));
    say!("recv", calls::recv(c.a, 9, 0), told((0..4).map(|_| soon(1)).collect()));
    say!("more", s.b_send(c, "d"), told((0..4).map(|_| soon(1)).collect()));
}

/// One-shot registrations of an event set that a fork shares: each is told once, by whichever process, and armed for both by
/// either; also beside something that is ready all the time.
pub fn fork_epoll_once(s: &mut Stage) {
    let c = s.pair_nb();
    let [out, into] = calls::pipe(0).expect("a pipe");
    let ep = calls::epoll_create().expect("a set");
    let once = libc::EPOLLIN | libc::EPOLLONESHOT;
    let arm = |data| calls::epoll_ctl(ep, libc::EPOLL_CTL_MOD, c.a, once, data);
    let events = |max, times: usize| {
        let answer = |_| calls::epoll_wait(ep, max, 40).expect("events");
        let mut all: Vec<_> = (0..times).flat_map(answer).collect();
        all.sort_unstable();
        all
    };
    let count = |max, times| i32::try_from(events(max, times).len()).unwrap_or(-1);
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, once, 1).expect("added");
    say!("bytes", s.b_send(c, "abcdef"), events(4, 2), calls::recv(c.a, 1, 0));
    // Has fired before the fork: the child arms it, and there is an event for one of them.
    let pid = child(|| 10 * count(4, 1) + sent(arm(2)));
    say!("armed by the child", calls::wait(pid), events(4, 2));
    let pid = child(|| count(4, 2));
    say!("told to the parent", arm(3), events(4, 1), "not to the child", calls::wait(pid));
    let pid = child(|| {
        std::thread::sleep(Duration::from_millis(100));
        count(4, 2)
    });
    say!("told once", arm(4), events(4, 1), events(4, 2), calls::wait(pid));
    say!("armed by the parent", arm(5));
    let pid = child(|| count(4, 2));
    say!("told to the child", calls::wait(pid), "not to the parent", events(4, 2));
    // Beside others.
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, out, libc::EPOLLIN, 9).expect("added");
    say!("pipe", calls::write(into, b"x"));
    for max in [4, 2, 1] {
        say!("beside", max, arm(6), events(max, 1).len(), events(max, 1).len(), events(max, 3));
        let pid = child(|| sent(arm(7)));
        say!("armed by the child", calls::wait(pid), events(max, 4));
    }
    say!("no more bytes", calls::recv(c.a, 99, 0), arm(8), events(4, 2));
    say!("more", s.b_send(c, "g"), events(4, 3), s.b_send(c, "h"), events(4, 2));
    // Both wait, and one of them is told.
    calls::epoll_ctl(ep, libc::EPOLL_CTL_DEL, out, 0, 0).expect("taken out");
    say!("read", calls::recv(c.a, 99, 0), arm(10));
    for round in 0..4 {
        let told = || calls::epoll_wait(ep, 4, 300).expect("events").len();
        let pid = child(|| i32::try_from(told()).unwrap_or(-1));
        s.b_later(60, &format!("send {} 0 x", c.b));
        let all = told() + calls::wait(pid).expect("a child");
        say!("both wait", round, all, calls::recv(c.a, 9, 0), arm(10));
    }
    let pid = child(|| sent(calls::epoll_ctl(ep, libc::EPOLL_CTL_DEL, c.a, 0, 0)));
    say!("taken out by the child", calls::wait(pid));
    say!("gone", arm(11), s.b_send(c, "z"), events(4, 2));
}

/// A sharer is killed.
pub fn fork_killed_sharer(s: &mut Stage) {
    let c = s.pair();
    let pid = child(|| {
        std::thread::sleep(Duration::from_secs(20));
        0
    });
    settle();
    say!("kill", calls::kill(pid, libc::SIGKILL), calls::wait(pid));
    say!("works", calls::send(c.a, b"x", 0), s.b_recv(c, 9), s.b_send(c, "y"));
    say!("works", calls::recv(c.a, 9, 0), s.b_mask(c));
    // Killed while it waits in recv.
    let pid = child(|| len_of(calls::recv(c.a, 9, 0)));
    settle();
    say!("kill", calls::kill(pid, libc::SIGKILL), calls::wait(pid));
    say!("works", s.b_send(c, "z"), calls::recv(c.a, 9, 0));
    say!("close", calls::close(c.a), s.b_mask(c), s.b_recv(c, 9));
}

/// The last holder ends with bytes unread.
pub fn fork_exit_with_unread(s: &mut Stage) {
    let c = s.pair();
    let pid = child(|| {
        std::thread::sleep(Duration::from_millis(100));
        0
    });
    s.b_send(c, "unread");
    settle();
    say!("close", calls::close(c.a), calls::wait(pid));
    say!("the peer", s.b_mask(c), s.b_recv(c, 9));
    let c = s.pair();
    let pid = child(|| {
        std::thread::sleep(Duration::from_secs(20));
        0
    });
    calls::close(c.a).expect("closed");
    say!("held by a child", s.b_mask(c));
    say!("killed", calls::kill(pid, libc::SIGKILL), calls::wait(pid), s.b_mask(c));
}

/// Eight children, each with its own connection of the parent's.
pub fn fork_many_children(s: &mut Stage) {
    let all: Vec<Conn> = (0..8).map(|_| s.pair()).collect();
    let mut pids = Vec::new();
    for c in &all {
        pids.push(child(|| {
            for other in all.iter().filter(|o| o.a != c.a) {
                let _ = calls::close(other.a);
            }
            let mut total = 0;
            loop {
                match calls::recv(c.a, 4096, 0) {
                    Ok(got) if got.is_empty() => return total,
                    Ok(got) => {
                        total += 1;
                        let _ = calls::send(c.a, &got, 0);
                    }
                    Err(_) => return -1,
                }
            }
        }));
        calls::close(c.a).expect("closed");
    }
    for round in 0..5 {
        for (i, c) in all.iter().enumerate() {
            let text = format!("r{round}c{i}");
            say!("echo", s.b_send(*c, &text), s.b_recv(*c, 99));
        }
    }
    for (c, pid) in all.iter().zip(pids) {
        say!("end", s.b_shutdown(*c, libc::SHUT_WR), calls::wait(pid), s.b_recv(*c, 9));
    }
}

fn image() -> String {
    let path = std::env::current_exe().expect("our own path");
    path.to_str().expect("a plain path").to_owned()
}

/// The environment, without the library.
fn bare_env() -> Vec<String> {
    let kept = std::env::vars().filter(|(name, _)| name != "LD_PRELOAD");
    kept.map(|(name, value)| format!("{name}={value}")).collect()
}

/// Turns this process into an image that reads a little and answers.
fn exec_image(fd: i32, library: bool) -> i32 {
    let (path, fd) = (image(), fd.to_string());
    let args = [path.as_str(), "--image", "greet", fd.as_str()];
    if library {
        return calls::exec(&path, &args);
    }
    let env = bare_env();
    let env: Vec<&str> = env.iter().map(String::as_str).collect();
    calls::exec_env(&path, &args, &env)
}

fn exec_and_talk(s: &mut Stage, library: bool) {
    let c = s.pair();
    say!("sent before", calls::send(c.a, b"before ", 0), s.b_send(c, "queued "));
    settle();
    let pid = child(|| exec_image(c.a, library));
    calls::close(c.a).expect("closed");
    say!("the peer", s.b_recv(c, 7), s.b_recv(c, 99));
    say!("then", s.b_send(c, "later"), s.b_recv(c, 99));
    say!("ended", calls::wait(pid), s.b_mask(c), s.b_recv(c, 9));
    // The parent keeps it and goes on after the image has ended.
    let c = s.pair();
    let pid = child(|| exec_image(c.a, library));
    say!("image", s.b_send(c, "one"), s.b_recv(c, 99), s.b_send(c, "two"), s.b_recv(c, 99));
    say!("ended", calls::wait(pid), s.b_mask(c));
    say!("parent", s.b_send(c, "three"), calls::recv(c.a, 99, 0));
    say!("parent", calls::send(c.a, b"four", 0), s.b_recv(c, 99));
}

/// A child becomes a program with the library.
pub fn exec_with_library(s: &mut Stage) {
    exec_and_talk(s, true);
}

/// A child becomes a program without the library.
pub fn exec_without_library(s: &mut Stage) {
    exec_and_talk(s, false);
}

/// A child becomes a program without the library, and the kernel does not let it borrow the peer's socket (a policy for
/// debuggers: Yama's, or a process that has forbidden it): the peer, which is in a call on the connection, does its part.
pub fn exec_beside_a_guarded_peer(s: &mut Stage) {
    say!("guarded", s.b("guard"), calls::may_not_trace(), calls::borrows(s.peer_pid(), 0));
    for _ in 0..3 {
        let c = s.pair();
        say!("before", calls::send(c.a, b"before", 0), s.b_recv(c, 99), s.b_send(c, "queued "));
        settle();
        s.tell(&format!("recv {} 99 0", c.b));
        settle();
        let pid = child(|| exec_image(c.a, false));
        calls::close(c.a).expect("closed");
        say!("the peer", s.answer(), s.b_send(c, "later"), s.b_recv(c, 99));
        say!("ended", calls::wait(pid), s.b_mask(c), s.b_recv(c, 9));
    }
}

/// `exec` closes what is close-on-exec.
pub fn exec_cloexec(s: &mut Stage) {
    let c = s.pair();
    calls::fcntl(c.a, libc::F_SETFD, libc::FD_CLOEXEC).expect("a flag");
    let pid = child(|| {
        calls::exec("/bin/sh", &["sh", "-c", &format!("test ! -e /proc/self/fd/{}", c.a)])
    });
    say!("ended", calls::wait(pid), s.b_mask(c));
    say!("works", calls::send(c.a, b"x", 0), s.b_recv(c, 9), s.b_send(c, "y"));
    say!("works", calls::recv(c.a, 9, 0));
    // The only holder turns into something else.
    let pid = child(|| calls::exec("/bin/sh", &["sh", "-c", "exit 3"]));
    calls::close(c.a).expect("closed");
    say!("ended", calls::wait(pid), s.b_mask(c), s.b_recv(c, 9));
}

/// A process makes a connection, uses it, and becomes another program, with no fork between.
fn becomes_image(s: &mut Stage, library: bool) {
    let [r, w] = calls::pipe(0).expect("a pipe");
    let pid = child(|| {
        let c = s.pair();
        let _ = calls::send(c.a, b"me ", 0);
        s.b_send(c, "queued");
        settle();
        // From here on the parent gives the orders.
        let _ = calls::write(w, c.b.to_string().as_bytes());
        exec_image(c.a, library)
    });
    let b = calls::read(r, 9).expect("a number");
    let b = Stage::number(&String::from_utf8_lossy(&b));
    let c = Conn { a: -1, b };
    say!("the peer", s.b_recv(c, 3), s.b_recv(c, 99));
    say!("then", s.b_send(c, "later"), s.b_recv(c, 99));
    say!("ended", calls::wait(pid), s.b_mask(c), s.b_recv(c, 9));
}

/// With the library.
pub fn exec_by_itself(s: &mut Stage) {
    becomes_image(s, true);
}

/// Without the library.
pub fn exec_by_itself_without_library(s: &mut Stage) {
    becomes_image(s, false);
}

/// An `exec` that fails leaves everything usable.
pub fn exec_fails(s: &mut Stage) {
    let c = s.pair();
    s.b_send(c, "queued");
    settle();
    say!("exec", crate::show::errno_name(calls::exec("/no/such/file", &["x"])));
    say!("exec", crate::show::errno_name(calls::exec_env("/no/such/file", &["x"], &["A=1"])));
    say!("exec", crate::show::errno_name(calls::exec("/etc/passwd", &["x"])));
    say!("works", calls::recv(c.a, 99, 0), calls::send(c.a, b"fine", 0), s.b_recv(c, 9));
    say!("works", s.b_send(c, "still"), calls::recv(c.a, 99, 0));
}

fn talk_to_cat(s: &mut Stage, c: Conn, pid: Result<i32, i32>) {
    say!("started", pid.is_ok());
    calls::close(c.a).expect("closed");
    for text in ["one", "two", "three"] {
        say!("echo", s.b_send(c, text), s.b_recv(c, 99));
    }
    say!("shut", s.b_shutdown(c, libc::SHUT_WR));
    say!("ended", pid.and_then(calls::wait), s.b_mask(c), s.b_recv(c, 9));
}

fn environments() -> [Vec<String>; 2] {
    let all = std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
    [all, bare_env()]
}

/// `vfork`, `dup2` and `exec` of a program that knows nothing, with and without the library.
pub fn vfork_exec_inetd(s: &mut Stage) {
    for env in environments() {
        let c = s.pair();
        let env: Vec<&str> = env.iter().map(String::as_str).collect();
        let pid = calls::vfork_exec("/bin/cat", &["cat"], &env, c.a);
        talk_to_cat(s, c, pid);
    }
    // What the child of vfork did to its own numbers has not changed ours.
    let c = s.pair();
    let pid = calls::vfork_exec("/bin/true", &["true"], &[], c.a);
    say!("ended", pid.and_then(calls::wait));
    say!("works", calls::send(c.a, b"x", 0), s.b_recv(c, 9), s.b_send(c, "y"));
    say!("works", calls::recv(c.a, 9, 0));
}

/// What a child that shares our memory closes, it closes for itself.
pub fn cloned_child_closes(s: &mut Stage) {
    let c = s.pair();
    for round in 0..3 {
        let pid = calls::entries::clone_that_closes("clone", c.a);
        say!("ended", round, pid.and_then(calls::wait));
        say!("works", calls::send(c.a, b"x", 0), s.b_recv(c, 9), s.b_send(c, "y"));
        say!("works", calls::recv(c.a, 9, 0));
    }
    say!("end", calls::close(c.a), s.b_recv(c, 9));
}

/// `posix_spawn` with the connection as standard input and output.
pub fn posix_spawn_inetd(s: &mut Stage) {
    for env in environments() {
        let c = s.pair();
        let env: Vec<&str> = env.iter().map(String::as_str).collect();
        let pid = calls::spawn("/bin/cat", &["cat"], &env, c.a);
        talk_to_cat(s, c, pid);
    }
}

/// The same with a connection that is marked to be closed on `exec`, which its copies are not.
pub fn posix_spawn_of_a_cloexec_connection(s: &mut Stage) {
    for env in environments() {
        let c = s.pair();
        say!("mark", calls::fcntl(c.a, libc::F_SETFD, libc::FD_CLOEXEC));
        let env: Vec<&str> = env.iter().map(String::as_str).collect();
        let pid = calls::spawn("/bin/cat", &["cat"], &env, c.a);
        talk_to_cat(s, c, pid);
    }
}

/// `system` hands open descriptors on.
pub fn system_inherits(s: &mut Stage) {
    let c = s.pair();
    // The shell takes one digit only.
    calls::dup2(c.a, 9).expect("a duplicate");
    say!("echo", calls::system("echo from the shell >&9"));
    settle();
    say!("the peer", s.b_recv(c, 99));
    s.b_send(c, "to the shell");
    say!("read", calls::system("head -c 12 <&9 | grep -q 'to the shell'"));
    say!("works", calls::send(c.a, b"x", 0), s.b_recv(c, 9), s.b_send(c, "y"));
    say!("works", calls::recv(9, 9, 0));
}

/// A process that takes a connection from us.
struct Taker {
    over: UnixStream,
    process: Child,
}

fn taker(library: bool) -> Taker {
    let (over, theirs) = UnixStream::pair().expect("a socket pair");
    let mut command = Command::new(image());
    command.args(["--image", "take"]).stdin(Stdio::from(OwnedFd::from(theirs)));
    if !library {
        command.env_remove("LD_PRELOAD");
    }
    Taker { over, process: command.spawn().expect("the taker starts") }
}

impl Taker {
    fn give(&self, fd: i32) -> calls::Ret {
        calls::send_fd(self.over.as_raw_fd(), fd)
    }

    fn end(mut self) -> Option<i32> {
        self.process.wait().ok().and_then(|status| status.code())
    }
}

fn pass(s: &mut Stage, library: bool) {
    let c = s.pair();
    let taker = taker(library);
    say!("pass", taker.give(c.a), calls::close(c.a));
    say!("works", s.b_send(c, "hello"), s.b_recv(c, 99));
    for text in ["one", "two", "three", "four"] {
        say!("works", s.b_send(c, text), s.b_recv(c, 99));
    }
    say!("shut", s.b_shutdown(c, libc::SHUT_WR), taker.end(), s.b_mask(c), s.b_recv(c, 9));
}

/// A live connection goes to a process with the library.
pub fn pass_to_process_with_library(s: &mut Stage) {
    pass(s, true);
}

/// A live connection goes to a process without the library.
pub fn pass_to_process_without_library(s: &mut Stage) {
    pass(s, false);
}

/// Bytes are queued in both directions when it goes.
pub fn pass_with_bytes_queued(s: &mut Stage) {
    for library in [true, false] {
        let c = s.pair();
        say!("queued", calls::send(c.a, b"before ", 0), s.b_send(c, "waiting"));
        settle();
        let taker = taker(library);
        say!("pass", taker.give(c.a), calls::close(c.a));
        say!("the peer", s.b_recv(c, 7), s.b_recv(c, 99));
        say!("works", s.b_send(c, "later"), s.b_recv(c, 99));
        say!("close", s.b_close(c), taker.end());
    }
}

/// A connection in flight is alive; it ends with the queue.
pub fn pass_in_flight(s: &mut Stage) {
    let c = s.pair();
    let [one, two] = calls::socketpair().expect("a socket pair");
    say!("pass", calls::send_fd(one, c.a), calls::close(c.a));
    say!("the peer", s.b_mask(c));
    say!("closed", calls::close(one), calls::close(two), s.b_mask(c), s.b_recv(c, 9));
    // Taken out again by ourselves.
    let c = s.pair();
    let [one, two] = calls::socketpair().expect("a socket pair");
    say!("pass", calls::send_fd(one, c.a), calls::close(c.a));
    s.b_send(c, "meanwhile");
    let fd = calls::recv_fd(two).expect("a descriptor");
    say!("works", calls::recv(fd, 99, 0), calls::send(fd, b"back", 0), s.b_recv(c, 9));
    say!("close", calls::close(fd), s.b_mask(c));
}

/// Passed on and kept: both use it in turns.
pub fn pass_and_keep(s: &mut Stage) {
    let c = s.pair();
    let taker = taker(true);
    say!("pass", taker.give(c.a));
    say!("the taker", s.b_send(c, "one"), s.b_recv(c, 99));
    say!("we", calls::send(c.a, b"from us", 0), s.b_recv(c, 99));
    say!("the taker", s.b_send(c, "two"), s.b_recv(c, 99));
    say!("close", calls::close(c.a), s.b_mask(c));
    say!("end", s.b_shutdown(c, libc::SHUT_WR), taker.end(), s.b_mask(c));
}

/// Workers that were forked accept on one listener.
pub fn accept_in_forked_workers(s: &mut Stage) {
    let (listener, port) = s.listener(16);
    let mut pids = Vec::new();
    for _ in 0..2 {
        pids.push(child(|| {
            loop {
                let Ok(fd) = calls::accept(listener, 0) else { return 1 };
                while let Ok(got) = calls::recv(fd, 4096, 0) {
                    if got == b"end" {
                        return 0;
                    }
                    if got.is_empty() {
                        break;
                    }
                    let _ = calls::send(fd, &got, 0);
                }
                let _ = calls::close(fd);
            }
        }));
    }
    for i in 0..8 {
        let b = s.b(&format!("connect {port}"));
        for round in 0..8 {
            s.b(&format!("send {b} 0 r{round}c{i}"));
            say!("echo", s.b(&format!("recv {b} 99 0")));
        }
        say!("close", s.b(&format!("close {b}")));
    }
    let ends: Vec<String> = (0..2).map(|_| s.b(&format!("connect {port}"))).collect();
    for b in ends {
        s.b(&format!("send {b} 0 end"));
    }
    for pid in pids {
        say!("ended", calls::wait(pid));
    }
}

/// Four processes wait for one connection in sets of their own.
pub fn exclusive_wakes_one(s: &mut Stage) {
    let byte = |s: &mut Stage, flags| {
        let c = s.pair_nb();
        let woken = woken_of_four(c.a, flags, || drop(s.b_send(c, "x")));
        say!("recv", calls::recv(c.a, 9, 0), calls::close(c.a));
        woken
    };
    say!("all woken", byte(s, 0));
    some_woken((0..5).map(|_| byte(s, libc::EPOLLEXCLUSIVE)).collect());
}

/// Four processes wait for who comes to one listener, in sets of their own.
pub fn exclusive_listener_wakes_one(s: &mut Stage) {
    let (listener, port) = s.listener(16);
    let come = |s: &mut Stage, flags| {
        let mut b = String::new();
        let woken = woken_of_four(listener, flags, || b = s.b(&format!("connect {port}")));
        let a = calls::accept(listener, 0).expect("a connection");
        say!("accept", calls::close(a), s.b(&format!("close {b}")));
        woken
    };
    say!("all woken", come(s, 0));
    some_woken((0..5).map(|_| come(s, libc::EPOLLEXCLUSIVE)).collect());
}

/// The parent and its children watch one connection, each in a set of its own: each of them is told at once.
pub fn told_in_sets_of_their_own(s: &mut Stage) {
    for first in [true, false] {
        let c = s.pair_nb();
        let ep = calls::epoll_create().expect("a set");
        let adds = |ep| calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1);
        let before = if first { adds(ep) } else { Ok(0) };
        let own = move || calls::epoll_create().and_then(|own| adds(own).map(|_| own));
        let waits = |ep| {
            let told = calls::epoll_wait(ep, 4, 5000);
            told.map_or(100, |e| i32::try_from(e.len()).unwrap_or(100))
        };
        let pids: Vec<i32> = (0..3).map(|_| child(|| own().map_or(100, waits))).collect();
        std::thread::sleep(Duration::from_millis(100));
        let after = if first { Ok(0) } else { adds(ep) };
        let parent = std::thread::spawn(move || waits(ep));
        std::thread::sleep(Duration::from_millis(100));
        say!("added", before, after, s.b_send(c, "x"));
        let told: Vec<calls::Ret> = pids.into_iter().map(calls::wait).collect();
        say!("told", told, parent.join().expect("no panic"));
        say!("recv", calls::recv(c.a, 9, 0), calls::epoll_wait(ep, 4, 0), calls::close(c.a));
        say!("set", calls::close(ep), s.b_mask(c));
    }
}

/// Waits for bytes on a connection, in one of the ways that there are, without taking any: 1 when there are some.
fn waits_for_bytes(fd: i32, way: usize) -> i32 {
    const LIMIT: i32 = 5000;
    let in_a_set = |events| {
        let ep = calls::epoll_create()?;
        calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd, events, 1)?;
        calls::epoll_wait(ep, 4, LIMIT).map(|events| events.len())
    };
    let found = match way {
        0 => in_a_set(libc::EPOLLIN),
        1 => in_a_set(libc::EPOLLIN | libc::EPOLLET),
        2 => in_a_set(libc::EPOLLIN | libc::EPOLLONESHOT),
        3 => calls::poll(fd, libc::POLLIN, LIMIT).map(|mask| usize::from(mask == libc::POLLIN)),
        4 => calls::select(&[fd], &[], &[], Some(Duration::from_secs(5)), None).map(|_| 1),
        _ => calls::recv(fd, 9, libc::MSG_PEEK).map(|bytes| bytes.len()),
    };
    found.map_or(100, |n| i32::try_from(n).unwrap_or(100))
}

/// Processes that hold one connection wait for bytes, each in its own way, beside a thread of their parent: all are told,
/// by the first bytes and by those that come after somebody has read them.
pub fn told_each_in_its_own_way(s: &mut Stage) {
    const WAYS: usize = 6;
    for parents in 0..WAYS {
        let c = s.pair();
        for round in 0..2 {
            let pids: Vec<i32> = (0..WAYS).map(|way| child(|| waits_for_bytes(c.a, way))).collect();
            let parent = std::thread::spawn(move || waits_for_bytes(c.a, parents));
            std::thread::sleep(Duration::from_millis(120));
            let sent = s.b_send(c, "x");
            let told: Vec<calls::Ret> = pids.into_iter().map(calls::wait).collect();
            say!(
                "round",
                round,
                sent,
                told,
                parent.join().expect("no panic"),
                calls::recv(c.a, 9, 0)
            );
        }
        say!("closed", calls::close(c.a), s.b_mask(c));
    }
}

/// A connection that a child holds and uses as well is full, and has something that nobody reads: who waits for room
/// sleeps until there is some.
pub fn full_and_unread_beside_a_child(s: &mut Stage) {
    const AFTER: u64 = 600;
    // Far less than the wait, far more than it takes to send what fits.
    const BUSY: Duration = Duration::from_millis(300);
    for blocking in [true, false] {
        let c = s.pair_nb();
        let [r, w] = calls::pipe(0).expect("a pipe");
        let pid = child(|| {
            let _ = calls::recv(c.a, 9, libc::MSG_DONTWAIT);
            i32::from(calls::read(r, 1).is_err())
        });
        settle();
        say!("unread", s.b_send(c, "unread"), Stage::fill(c.a));
        s.b_later(AFTER, &format!("drain {}", c.b));
        let before = calls::cpu_time();
        let waited = if blocking {
            calls::set_nonblocking(c.a, false).expect("a flag");
            calls::send(c.a, b"room", 0).map_or(-1, |n| i32::try_from(n).unwrap_or(-1))
        } else {
            calls::poll(c.a, libc::POLLOUT, 5000).map_or(-1, i32::from)
        };
        say!("waited", waited, "asleep", calls::cpu_time() - before < BUSY);
        say!("read", calls::recv(c.a, 99, 0), calls::write(w, b"."), calls::wait(pid));
        let _ = (calls::close(c.a), calls::close(r), calls::close(w));
    }
}

/// How many is the kernel's choice; none, or each time all, is not. Who comes late to its wait is woken by what is
/// there already, so a single round says little.
fn some_woken(mut rounds: Vec<i32>) {
    rounds.sort_unstable();
    say!("some woken", rounds[0] >= 1, rounds[2] < 4, rounds[4] <= 4);
}

/// How many of four processes that wait for this descriptor with these flags are woken by what `wake` does.
fn woken_of_four(fd: i32, flags: i32, wake: impl FnOnce()) -> i32 {
    let waits = || {
        let Ok(ep) = calls::epoll_create() else { return 100 };
        if calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN | flags, 1).is_err() {
            return 100;
        }
        calls::epoll_wait(ep, 4, 500).map_or(100, |e| i32::try_from(e.len()).unwrap_or(100))
    };
    let pids: Vec<i32> = (0..4).map(|_| child(waits)).collect();
    std::thread::sleep(Duration::from_millis(150));
    wake();
    let code = |pid| calls::wait(pid).map_or(100, |n| i32::try_from(n).unwrap_or(100));
    pids.into_iter().map(code).sum()
}

/// What an image does that was made by `exec`: `greet FD` answers twice what it reads; `take`
/// receives a connection over standard input and echoes until its end; `drain` prints what it receives over such a one.
///
/// # Panics
///
/// When it was started by hand with something else.
pub fn image_main(words: &[String]) -> i32 {
    match words {
        [verb, fd] if verb == "greet" => {
            let fd = fd.parse().expect("a descriptor");
            for _ in 0..2 {
                let Ok(got) = calls::recv(fd, 99, 0) else { return 1 };
                let answer = [b"image:", got.as_slice()].concat();
                if calls::send(fd, &answer, 0).is_err() {
                    return 2;
                }
            }
            0
        }
        [verb] if verb == "take" => {
            let Ok(fd) = calls::recv_fd(0) else { return 3 };
            loop {
                match calls::recv(fd, 4096, 0) {
                    Ok(got) if got.is_empty() => return 0,
                    Ok(got) => {
                        let answer = [b"taken:", got.as_slice()].concat();
                        if calls::send(fd, &answer, 0).is_err() {
                            return 4;
                        }
                    }
                    Err(_) => return 5,
                }
            }
        }
        [verb] if verb == "drain" => {
            let Ok(fd) = calls::recv_fd(0) else { return 3 };
            loop {
                match calls::recv(fd, 4096, 0) {
                    Ok(got) if got.is_empty() => break println!("the end"),
                    Ok(got) => print!("{}", got.escape_ascii()),
                    Err(errno) => break println!("{}", crate::show::errno_name(errno)),
                }
            }
            0
        }
        _ => panic!("greet FD, take, or drain"),
    }
}
