//! A connection leaves TCP by a call of one thread while others wait for it by TCP, or while another process has it
//! too. Each case twice: with nothing moved before, and after a request and its answer.

use std::thread;
use std::time::{Duration, Instant};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLIN, EPOLLONESHOT, POLLIN};

use crate::calls::{self, Forked};
use crate::say;
use crate::show::stream_bytes;
use crate::stage::{Conn, SETTLE, Stage};

fn settle() {
    thread::sleep(SETTLE);
}

/// A connection on which nothing has moved, or a request and its answer.
fn begun(s: &mut Stage, used: bool) -> Conn {
    let c = s.fresh_pair();
    if used {
        assert_eq!(calls::send(c.a, b"question", 0), Ok(8));
        s.b_recv(c, 99);
        s.b_send(c, "answer");
        assert_eq!(calls::recv(c.a, 99, 0), Ok(b"answer".to_vec()));
    }
    c
}

/// Our end sends and the peer receives, until both ends have left TCP if they can; nothing comes back.
fn leave_tcp(s: &mut Stage, c: Conn) {
    s.b(&format!("recvnow {} 9 0", c.b));
    say!("one", calls::send(c.a, b"one", 0), s.b_recv(c, 99));
    for seed in 0..3 {
        say!("much", calls::send(c.a, &stream_bytes(seed, 0, 20_000), 0));
        say!("there", s.b(&format!("recvn {} 20000 {seed}", c.b)));
        s.b(&format!("recvnow {} 9 0", c.b));
    }
    say!("two", calls::send(c.a, b"two", 0), s.b_recv(c, 99));
}

/// What a thread gets that waits by `wait` while the connection leaves TCP, and then bytes come.
fn beside<T: Send + 'static>(
    s: &mut Stage,
    wait: impl Fn(i32) -> T + Clone + Send + 'static,
    mut tell: impl FnMut(T),
) {
    for used in [false, true] {
        let c = begun(s, used);
        let waiting = thread::spawn({
            let wait = wait.clone();
            move || wait(c.a)
        });
        thread::sleep(Duration::from_millis(80));
        leave_tcp(s, c);
        s.b_send(c, "01234");
        settle();
        s.b_send(c, "56789");
        tell(waiting.join().expect("no panic"));
        settle();
        say!("left", calls::recv(c.a, 99, libc::MSG_DONTWAIT));
        say!("goes on", s.b_send(c, "more"), calls::recv(c.a, 99, 0));
        say!("the end", s.b_close(c), calls::recv(c.a, 99, 0));
    }
}

/// In `poll`.
pub fn late_beside_poll(s: &mut Stage) {
    beside(s, |fd| calls::poll(fd, POLLIN, 4000), |got| say!("woken", got));
}

/// In `poll` for the peer's end, which no doorbell tells.
pub fn late_beside_poll_for_end(s: &mut Stage) {
    for used in [false, true] {
        let c = begun(s, used);
        let waiting = thread::spawn(move || calls::poll(c.a, libc::POLLRDHUP, 4000));
        thread::sleep(Duration::from_millis(80));
        leave_tcp(s, c);
        settle();
        say!("half", s.b_shutdown(c, libc::SHUT_WR), waiting.join().expect("no panic"));
        say!("the end", calls::recv(c.a, 99, 0), s.b_close(c));
    }
}

/// In `poll`, together with a connection that has left TCP long before.
pub fn late_beside_poll_of_two(s: &mut Stage) {
    let other = begun(s, true);
    leave_tcp(s, other);
    let wait = move |fd| calls::poll_many(&[(other.a, POLLIN), (fd, POLLIN)], 4000);
    beside(s, wait, |got| say!("woken", got));
}

/// In `select`.
pub fn late_beside_select(s: &mut Stage) {
    let wait = |fd| calls::select(&[fd], &[], &[], Some(Duration::from_secs(4)), None);
    beside(s, wait, |got| say!("woken", got.map(|r| r.count)));
}

/// In `poll`, together with a descriptor that is not ours.
pub fn late_beside_mixed_poll(s: &mut Stage) {
    let other = calls::eventfd(0).expect("an eventfd");
    let wait = move |fd| calls::poll_many(&[(other, POLLIN), (fd, POLLIN)], 4000);
    beside(s, wait, |got| say!("woken", got));
}

/// In `epoll_wait`.
pub fn late_beside_epoll(s: &mut Stage) {
    let wait = |fd| {
        let ep = calls::epoll_create().expect("a set");
        calls::epoll_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, 1).expect("added");
        calls::epoll_wait(ep, 8, 4000)
    };
    beside(s, wait, |got| say!("woken", got));
}

/// In `recv`.
pub fn late_beside_recv(s: &mut Stage) {
    beside(s, |fd| calls::recv(fd, 5, 0), |got| say!("got", got));
}

/// In `recv` for all of it.
pub fn late_beside_waitall(s: &mut Stage) {
    beside(s, |fd| calls::recv(fd, 10, libc::MSG_WAITALL), |got| say!("got", got));
}

/// All of it comes in parts, by TCP; then the connection goes on, and leaves TCP.
pub fn late_waitall_in_parts(s: &mut Stage) {
    for used in [false, true] {
        let c = begun(s, used);
        let waiting = thread::spawn(move || calls::recv(c.a, 10, libc::MSG_WAITALL));
        thread::sleep(Duration::from_millis(80));
        s.b_send(c, "01234");
        settle();
        s.b_send(c, "56789");
        say!("got", waiting.join().expect("no panic"));
        for _ in 0..3 {
            say!("goes on", s.b_send(c, "more"), calls::recv(c.a, 99, 0));
            say!("and back", calls::send(c.a, b"back", 0), s.b_recv(c, 99));
        }
        // What was given back too early would be the next one's.
        let other = begun(s, true);
        leave_tcp(s, c);
        say!("beside", s.b_send(other, "other"), calls::recv(other.a, 99, 0));
        say!("the end", s.b_close(c), calls::recv(c.a, 99, 0), calls::close(c.a));
        say!("goes on", s.b_send(other, "more"), calls::recv(other.a, 99, 0));
    }
}

/// A reset behind a part of what `recv` waits for is told to the next call.
pub fn late_waitall_and_reset(s: &mut Stage) {
    for used in [false, true] {
        let c = begun(s, used);
        let wait = move || calls::recv(c.a, 10, libc::MSG_WAITALL);
        let waiting = thread::spawn(wait);
        thread::sleep(Duration::from_millis(80));
        s.b_send(c, "01234");
        settle();
        s.b_reset(c);
        say!("part", waiting.join().expect("no panic"));
        say!("then", calls::recv(c.a, 10, 0), calls::recv(c.a, 10, 0));
    }
}

/// In `recv` to look at all of it.
pub fn late_beside_peek(s: &mut Stage) {
    let flags = libc::MSG_WAITALL | libc::MSG_PEEK;
    beside(s, move |fd| calls::recv(fd, 10, flags), |got| say!("got", got));
}

/// A one-shot registration that has fired stays so until it is armed again, whatever carries the bytes.
pub fn late_one_shot(s: &mut Stage) {
    for used in [false, true] {
        let c = begun(s, used);
        let ep = calls::epoll_create().expect("a set");
        let soon = || calls::epoll_wait(ep, 8, 60);
        let next = || calls::epoll_wait(ep, 8, 4000);
        let ctl = |op| calls::epoll_ctl(ep, op, c.a, EPOLLIN | EPOLLONESHOT, 1);
        say!("added", ctl(EPOLL_CTL_ADD), soon());
        s.b(&format!("recvnow {} 9 0", c.b));
        say!("sent", calls::send(c.a, b"question", 0), s.b_recv(c, 99));
        say!("one", s.b_send(c, "one"), next(), soon());
        // By this both may leave TCP, the registration having fired.
        say!("got", calls::recv(c.a, 99, 0));
        say!("sent", calls::send(c.a, b"another", 0), s.b_recv(c, 99));
        leave_tcp(s, c);
        say!("two", s.b_send(c, "two"), soon());
        say!("armed", ctl(EPOLL_CTL_MOD), next(), soon());
        say!("got", calls::recv(c.a, 99, 0), s.b_send(c, "three"), soon());
        say!("armed", ctl(EPOLL_CTL_MOD), next(), calls::recv(c.a, 99, 0));
        say!("armed, nothing", ctl(EPOLL_CTL_MOD), soon(), s.b_send(c, "four"), next(), soon());
        say!("got", calls::recv(c.a, 99, 0));
        say!("armed for the end", ctl(EPOLL_CTL_MOD), s.b_close(c), next(), soon());
    }
}

/// One that has fired before either end has sent by a call that might make them leave TCP.
pub fn late_one_shot_first(s: &mut Stage) {
    for used in [false, true] {
        let c = begun(s, used);
        let ep = calls::epoll_create().expect("a set");
        let soon = || calls::epoll_wait(ep, 8, 60);
        let ctl = |op| calls::epoll_ctl(ep, op, c.a, EPOLLIN | EPOLLONESHOT, 1);
        say!("added", ctl(EPOLL_CTL_ADD), s.b_send(c, "one"), calls::epoll_wait(ep, 8, 4000));
        say!("got", calls::recv(c.a, 99, 0), soon());
        say!("two", s.b_send(c, "two"), soon(), calls::recv(c.a, 99, 0));
        leave_tcp(s, c);
        say!("three", s.b_send(c, "three"), soon(), soon());
        say!("armed", ctl(EPOLL_CTL_MOD), calls::epoll_wait(ep, 8, 4000), soon());
        say!("got", calls::recv(c.a, 99, 0));
    }
}

/// A one-shot registration that is armed while both ends leave TCP fires for what comes by the ring.
pub fn late_one_shot_armed(s: &mut Stage) {
    for used in [false, true] {
        let c = begun(s, used);
        let ep = calls::epoll_create().expect("a set");
        let ctl = |op| calls::epoll_ctl(ep, op, c.a, EPOLLIN | EPOLLONESHOT, 1);
        say!("added", ctl(EPOLL_CTL_ADD));
        let waiting = thread::spawn(move || calls::epoll_wait(ep, 8, 4000));
        settle();
        leave_tcp(s, c);
        say!("one", s.b_send(c, "one"), waiting.join().expect("no panic"));
        say!("no more", calls::epoll_wait(ep, 8, 60), calls::recv(c.a, 99, 0));
        say!("armed", ctl(EPOLL_CTL_MOD), s.b_send(c, "two"), calls::epoll_wait(ep, 8, 4000));
    }
}

/// Forked between two requests: parent and child both have it.
pub fn late_and_forked(s: &mut Stage) {
    for used in [false, true] {
        let c = begun(s, used);
        s.b_send(c, "first");
        say!("first", calls::recv(c.a, 99, 0), calls::send(c.a, b"answer", 0), s.b_recv(c, 99));
        let pid = match calls::fork() {
            Forked::Child => {
                let got = calls::recv(c.a, 99, 0).unwrap_or_default();
                let sent = calls::send(c.a, b"by the child", 0);
                let again = calls::recv(c.a, 99, 0).unwrap_or_default();
                let right = got == b"second" && sent == Ok(12) && again == b"third";
                calls::exit_now(i32::from(!right))
            }
            Forked::Parent(pid) => pid,
        };
        s.b_send(c, "second");
        say!("by the child", s.b_recv(c, 99));
        s.b_send(c, "third");
        say!("the child", calls::wait(pid));
        for text in ["fourth", "fifth"] {
            s.b_send(c, text);
            say!("ours again", calls::recv(c.a, 99, 0));
            say!("sent", calls::send(c.a, b"by the parent", 0), s.b_recv(c, 99));
        }
        say!("the end", s.b_close(c), calls::recv(c.a, 99, 0));
    }
}

/// Parent and child send in turn, what was put off before the fork being due after it.
pub fn late_and_forked_sending(s: &mut Stage) {
    let c = begun(s, true);
    let pid = match calls::fork() {
        Forked::Child => {
            let sent = (0..3).all(|_| calls::send(c.a, b"child.", 0) == Ok(6));
            calls::exit_now(i32::from(!sent))
        }
        Forked::Parent(pid) => pid,
    };
    say!("the child", calls::wait(pid), s.b_recv(c, 18));
    for _ in 0..3 {
        say!("sent", calls::send(c.a, b"parent", 0), s.b_recv(c, 99));
        say!("back", s.b_send(c, "back"), calls::recv(c.a, 99, 0));
    }
}

/// `shutdown` while another thread sends more than there is room for, before anything has been received.
pub fn late_shut_beside_send(s: &mut Stage) {
    for used in [false, true] {
        let c = begun(s, used);
        let sending = thread::spawn(move || {
            let much = vec![b'x'; 32 << 20];
            calls::send(c.a, &much, libc::MSG_NOSIGNAL) != Ok(much.len())
        });
        thread::sleep(Duration::from_millis(150));
        say!("waits", !sending.is_finished());
        say!("shut", calls::shutdown(c.a, libc::SHUT_RDWR), sending.join().expect("no panic"));
        s.b_close(c);
    }
}

/// `recv` of three bytes, of which the third comes too late: 100 ms after the limit of 300 ms, and 200 ms after the
/// second.
fn trickled(s: &mut Stage, c: Conn) -> (calls::Bytes, bool) {
    calls::set_timeout(c.a, libc::SO_RCVTIMEO, 300).expect("a limit");
    let start = Instant::now();
    let waiting = thread::spawn(move || {
        let got = calls::recv(c.a, 3, libc::MSG_WAITALL);
        (got, start.elapsed() < Duration::from_millis(390))
    });
    for (ms, text) in [(100, "a"), (100, "b"), (200, "c")] {
        thread::sleep(Duration::from_millis(ms));
        s.b_send(c, text);
    }
    waiting.join().expect("no panic")
}

/// The limit of time is that of the whole call, of each thread that receives.
pub fn late_receive_timeouts(s: &mut Stage) {
    for left in [true, false] {
        let c = begun(s, left);
        if left {
            leave_tcp(s, c);
        }
        let (got, in_time) = trickled(s, c);
        say!("in part", got, in_time, calls::recv(c.a, 3, 0));
        let start = Instant::now();
        let wait = || thread::spawn(move || calls::recv(c.a, 9, 0));
        let both = [wait(), wait()].map(|t| t.join().expect("no panic")).to_vec();
        say!("both", both, start.elapsed() < Duration::from_millis(500));
    }
}
