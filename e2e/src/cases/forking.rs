//! Forks while another thread is in a call on the connection: the child has no such thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::calls::{self, Forked, entries};
use crate::peer;
use crate::say;
use crate::stage::{Role, SETTLE, Stage};

fn settle() {
    thread::sleep(SETTLE);
}

/// Long enough for a thread to be in the call that it was started for.
fn into_the_call() {
    thread::sleep(Duration::from_millis(80));
}

/// What a child does first of all.
fn closes(fd: i32) {
    let _ = calls::close(fd);
}

/// A child that waits for a word between two parts of its work.
struct Child {
    pid: i32,
    go: i32,
}

impl Child {
    /// `after` is not begun before [`Self::go_on`], or some seconds, so that nobody waits for ever. The child ends
    /// with its value.
    fn start(before: impl FnOnce(), after: impl FnOnce() -> i32) -> Self {
        let [wait, go] = calls::pipe(libc::O_CLOEXEC).expect("a pipe");
        match calls::fork() {
            Forked::Child => {
                before();
                let _ = calls::poll(wait, libc::POLLIN, 4000);
                calls::exit_now(after());
            }
            Forked::Parent(pid) => {
                let _ = calls::close(wait);
                Self { pid, go }
            }
        }
    }

    fn go_on(&self) {
        let _ = calls::write(self.go, b"!");
    }

    fn ends(self) -> calls::Ret {
        self.go_on();
        let ended = calls::wait(self.pid);
        let _ = calls::close(self.go);
        ended
    }
}

/// The child closes what another thread of the parent receives on, and lives on: the parent's close is the end.
pub fn fork_during_recv(s: &mut Stage) {
    for fresh in [false, true] {
        let c = if fresh { s.fresh_pair() } else { s.pair() };
        let blocked = thread::spawn(move || calls::recv(c.a, 9, 0));
        into_the_call();
        let child = Child::start(|| closes(c.a), || 0);
        settle();
        say!("fresh", fresh, s.b_send(c, "hey"), blocked.join().expect("no panic"));
        say!("answer", calls::send(c.a, b"you", 0), s.b_recv(c, 9));
        say!("close", calls::close(c.a));
        settle();
        say!("the peer", s.b_mask(c), s.b_recv(c, 9), child.ends());
    }
}

/// The same where the parent closes under its own thread's call, whose end is then the connection's.
pub fn fork_during_recv_and_closed(s: &mut Stage) {
    let c = s.pair();
    let blocked = thread::spawn(move || calls::recv(c.a, 9, 0));
    into_the_call();
    let child = Child::start(|| closes(c.a), || 0);
    settle();
    say!("close", calls::close(c.a));
    settle();
    say!("still open", s.b_mask(c), blocked.is_finished());
    say!("bytes", s.b_send(c, "hey"), blocked.join().expect("no panic"));
    settle();
    say!("the peer", s.b_mask(c), s.b_recv(c, 9), child.ends());
}

/// The parent closes once its thread has what it waited for, and the child goes on: it is alone there, whatever was
/// under way when it was born.
pub fn fork_during_recv_child_goes_on(s: &mut Stage) {
    // An accepted one that is not attached yet belongs to whoever of the two looks for its offer first.
    for fresh in [false, s.role() == Role::Client] {
        let c = if fresh { s.fresh_pair() } else { s.pair() };
        let blocked = thread::spawn(move || calls::recv(c.a, 9, 0));
        into_the_call();
        let child = Child::start(|| {}, move || echoes(c.a));
        settle();
        say!("fresh", fresh, s.b_send(c, "hey"), blocked.join().expect("no panic"));
        say!("close", calls::close(c.a));
        child.go_on();
        say!("the child", s.b_recv(c, 9));
        for text in ["one", "two", "three", "four"] {
            say!("echo", s.b_send(c, text), s.b_recv(c, 9));
        }
        say!("shut", s.b_shutdown(c, libc::SHUT_WR), child.ends());
        settle();
        say!("the end", s.b_mask(c), s.b_recv(c, 9));
    }
}

/// Says something, and answers what comes with itself: how often, or a larger number for an event that told of nothing.
fn echoes(fd: i32) -> i32 {
    let ep = calls::epoll_create().expect("a set");
    let _ = calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, 1);
    let _ = calls::send(fd, b"mine", 0);
    for got in 0..10 {
        let events = calls::epoll_wait(ep, 4, 3000).map_or(9, |events| events.len());
        let Ok(bytes) = calls::recv(fd, 9, 0) else { return 90 };
        if bytes.is_empty() {
            return got;
        }
        // There is nothing more to read: nobody sends before he has an answer.
        let more = calls::epoll_wait(ep, 4, 0).map_or(9, |events| events.len());
        if (events, more) != (1, 0) {
            return 80 + i32::from(more != 0);
        }
        let _ = calls::send(fd, &bytes, 0);
    }
    70
}

/// A fork that fails has made nobody who holds the connection too.
pub fn forks_that_fail(s: &mut Stage) {
    let c = s.fresh_pair();
    let said = entries::forks_refused().expect("limits");
    if said.contains(&0) {
        crate::run::skipped("the limit of processes does not hold here");
    }
    say!("forks", said);
    for _ in 0..6 {
        say!("there", calls::send(c.a, b"there", 0), s.b_recv(c, 9));
        say!("back", s.b_send(c, "back"), calls::recv(c.a, 9, 0));
    }
    say!("close", calls::close(c.a), s.b_recv(c, 9));
}

/// The parent writes more than what carried its bytes before the fork holds: what carries them from then on is in the
/// child's reach as well, and in that of its own child.
pub fn fork_and_then_much(s: &mut Stage) {
    const MUCH: usize = 1 << 20;
    let c = s.pair();
    let file = calls::memfd(&crate::show::stream_bytes(3, 0, 5000)).expect("a file");
    let child = Child::start(
        || {},
        move || {
            let sent = peer::send_stream(c.a, 4000, 2) == "4000"
                && calls::sendfile(c.a, file, None, 5000) == Ok(5000);
            let grandchild =
                Child::start(|| {}, move || i32::from(calls::send(c.a, b"own", 0) != Ok(3)));
            if grandchild.ends() == Ok(0) && sent { 0 } else { 1 }
        },
    );
    s.tell(&format!("recvn {} {MUCH} 1", c.b));
    say!("much", peer::send_stream(c.a, MUCH, 1), s.answer());
    child.go_on();
    say!("the child", s.b(&format!("recvn {} 4000 2", c.b)));
    say!("its file", s.b(&format!("recvn {} 5000 3", c.b)));
    say!("ends", child.ends(), s.b(&format!("recv {} 3 0", c.b)));
    s.tell(&format!("recvn {} {MUCH} 4", c.b));
    say!("much", peer::send_stream(c.a, MUCH, 4), s.answer(), calls::close(c.a), s.b_recv(c, 9));
}

/// A thread that polls, one in `select` and one in a send for which there is no room.
pub fn fork_during_other_waits(s: &mut Stage) {
    let c = s.pair();
    let blocked = thread::spawn(move || calls::poll(c.a, libc::POLLIN, 5000));
    into_the_call();
    let child = Child::start(|| closes(c.a), || 0);
    say!("polls", s.b_send(c, "x"), blocked.join().expect("no panic"), calls::close(c.a));
    settle();
    say!("the peer", s.b_mask(c), s.b_recv(c, 9), child.ends());

    let c = s.pair();
    let blocked =
        thread::spawn(move || calls::select(&[c.a], &[], &[], Some(Duration::from_secs(5)), None));
    into_the_call();
    let child = Child::start(|| closes(c.a), || 0);
    say!("selects", s.b_send(c, "x"), blocked.join().expect("no panic"), calls::recv(c.a, 9, 0));
    say!("close", calls::close(c.a));
    settle();
    say!("the peer", s.b_mask(c), s.b_recv(c, 9), child.ends());

    let c = s.pair();
    let much = vec![b'm'; 12 << 20];
    let blocked = thread::spawn(move || calls::send(c.a, &much, libc::MSG_NOSIGNAL));
    into_the_call();
    let child = Child::start(|| closes(c.a), || 0);
    settle();
    say!("reset", s.b_reset(c));
    let failed = blocked.join().expect("no panic").map_or(-1, |n| i32::from(n == 12 << 20));
    say!("sends", failed < 1, calls::close(c.a), child.ends());
}

/// A thread that waits on a set, while another one forks: what the child does to what it has inherited is no reason for
/// the thread to sleep on when something comes.
pub fn fork_during_epoll_wait(s: &mut Stage) {
    type Way = fn(i32, i32);
    let ways: [(&str, Way); 6] = [
        ("set first", |ep, fd| [ep, fd].into_iter().for_each(closes)),
        ("connection first", |ep, fd| [fd, ep].into_iter().for_each(closes)),
        ("connection only", |_, fd| closes(fd)),
        ("all", |ep, fd| {
            let _ = calls::close_range(ep.min(fd), ep.max(fd), 0);
        }),
        ("a set of its own", |_, fd| {
            let own = calls::epoll_create().unwrap_or(-1);
            let _ = calls::epoll_ctl(own, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, 9);
            closes(own);
            closes(fd);
        }),
        ("nothing", |_, _| {}),
    ];
    for (what, way) in ways {
        let c = s.pair_nb();
        let ep = calls::epoll_create().expect("a set");
        calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1).expect("added");
        let blocked = thread::spawn(move || calls::epoll_wait(ep, 4, 5000));
        into_the_call();
        let child = Child::start(|| way(ep, c.a), || 0);
        settle();
        say!(what, s.b_send(c, "hey"), blocked.join().expect("no panic"), calls::recv(c.a, 9, 0));
        // What comes next is told of as well.
        let blocked = thread::spawn(move || calls::epoll_wait(ep, 4, 5000));
        into_the_call();
        say!("then", s.b_send(c, "more"), blocked.join().expect("no panic"));
        say!("bytes", calls::recv(c.a, 9, 0), calls::epoll_wait(ep, 4, 30));
        say!("ends", child.ends(), calls::close(c.a), calls::close(ep));
        settle();
        say!("the peer", s.b_mask(c), s.b_recv(c, 9));
    }
}

/// Forks at any moment of what other threads do to sets and connections: each child comes to its end.
pub fn fork_among_busy_threads(s: &mut Stage) {
    let c = s.pair_nb();
    let d = s.pair_nb();
    let ep = calls::epoll_create().expect("a set");
    let done: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let busy = move |fd: i32| {
        thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                let _ = calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, 1);
                let _ = calls::epoll_wait(ep, 4, 0);
                let _ = calls::recv(fd, 1, libc::MSG_DONTWAIT);
                let _ = calls::epoll_ctl(ep, libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
        })
    };
    let threads = [busy(c.a), busy(d.a)];
    let mut ended = 0;
    for _ in 0..150 {
        match calls::fork() {
            Forked::Child => {
                let _ = calls::epoll_wait(ep, 4, 0);
                let _ = calls::recv(c.a, 1, libc::MSG_DONTWAIT);
                let _ = calls::close(c.a);
                let _ = calls::close(d.a);
                let _ = calls::close(ep);
                calls::exit_now(7);
            }
            Forked::Parent(pid) => ended += i32::from(calls::wait(pid) == Ok(7)),
        }
    }
    done.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    say!("children", ended);
    say!("bytes", s.b_send(c, "abc"), s.b_send(d, "def"));
    settle();
    say!("bytes", calls::recv(c.a, 9, 0), calls::recv(d.a, 9, 0));
    say!("close", calls::close(c.a), calls::close(d.a));
    settle();
    say!("the peer", s.b_mask(c), s.b_mask(d));
}
