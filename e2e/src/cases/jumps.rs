//! What becomes of calls that a signal handler leaves by `siglongjmp`: no lock is held, nobody is believed
//! to wait, and a close is the end.

use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLLET, EPOLLIN};

use crate::calls;
use crate::calls::jump::{Left, left_after};
use crate::say;
use crate::stage::{Conn, SETTLE, Stage, timed};

const WHILE: Duration = Duration::from_millis(60);

/// Both directions go on, and waiting is waiting.
fn works(s: &mut Stage, c: Conn) {
    say!("sent", calls::send(c.a, b"after", 0), s.b_recv(c, 9));
    say!("received", s.b_send(c, "answer"), calls::recv(c.a, 9, 0));
    s.b_later(120, &format!("send {} 0 later", c.b));
    let (got, when) = timed(|| calls::recv(c.a, 9, 0));
    say!("waited for", got, when);
}

/// The end is seen by the peer at once, although a call on the connection has never ended.
fn ends(s: &mut Stage, c: Conn) {
    say!("closed", calls::close(c.a), s.b_mask(c), s.b_recv(c, 9));
}

fn out_of(s: &mut Stage, call: Left) {
    let c = s.pair();
    for _ in 0..3 {
        say!("left", left_after(WHILE, c.a, call));
    }
    works(s, c);
    say!("left", left_after(WHILE, c.a, call));
    ends(s, c);
    // Left for good, without another wait of this thread's.
    let c = s.pair();
    say!("left", left_after(WHILE, c.a, call));
    ends(s, c);
}

/// Out of `recv`.
pub fn jump_out_of_recv(s: &mut Stage) {
    out_of(s, Left::Recv);
}

/// Out of `recv` that waits for all.
pub fn jump_out_of_waitall(s: &mut Stage) {
    out_of(s, Left::WaitAll);
}

/// Out of `poll`.
pub fn jump_out_of_poll(s: &mut Stage) {
    out_of(s, Left::Poll);
}

/// Out of `select`.
pub fn jump_out_of_select(s: &mut Stage) {
    out_of(s, Left::Select);
}

/// Out of a `send` that has no room.
pub fn jump_out_of_send(s: &mut Stage) {
    let c = s.pair();
    say!("left", left_after(Duration::from_millis(300), c.a, Left::Send));
    say!("full", calls::poll(c.a, libc::POLLOUT, 0));
    let drained = s.b(&format!("drain {}", c.b));
    say!("drained", drained.ends_with("no more"));
    works(s, c);
    ends(s, c);
}

/// Out of a `send` that fills the socket in the first moments of a connection, when all is TCP: what follows does
/// not wait for that send, and the bytes are those of the kernel's count.
pub fn jump_out_of_the_first_send(s: &mut Stage) {
    for only_tcp in [false, true] {
        let c = s.fresh_pair();
        say!("left", left_after(Duration::from_millis(300), c.a, Left::Send));
        if only_tcp {
            say!("option", calls::setsockopt(c.a, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1));
        }
        let drained = s.b(&format!("drain {}", c.b));
        say!("drained", drained.ends_with("no more"));
        for _ in 0..3 {
            works(s, c);
        }
        ends(s, c);
    }
}

/// Out of `epoll_wait`: levels and edges are as before, and one event is one event.
pub fn jump_out_of_epoll(s: &mut Stage) {
    let c = s.pair_nb();
    for events in [EPOLLIN, EPOLLIN | EPOLLET] {
        let ep = calls::epoll_create().expect("a set");
        calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, events, 1).expect("added");
        for _ in 0..3 {
            say!("left", left_after(WHILE, ep, Left::Epoll));
        }
        for i in 0..3 {
            s.b_later(100, &format!("send {} 0 e{i}", c.b));
            let (got, when) = timed(|| calls::epoll_wait(ep, 8, 5000));
            say!("event", got, when, calls::recv(c.a, 9, 0), calls::epoll_wait(ep, 8, 40));
        }
        say!("left", left_after(WHILE, ep, Left::Epoll), calls::close(ep));
    }
    calls::set_nonblocking(c.a, false).expect("a flag");
    works(s, c);
    ends(s, c);
}

/// In the first moments of a connection: the call began when all was TCP.
pub fn jump_before_the_first_byte(s: &mut Stage) {
    let c = s.fresh_pair();
    say!("left", left_after(WHILE, c.a, Left::Recv), left_after(WHILE, c.a, Left::Poll));
    for _ in 0..3 {
        works(s, c);
    }
    ends(s, c);
}

/// Out of the calls at moments of all kinds: while they look, arm, sleep and wake.
pub fn jump_at_any_moment(s: &mut Stage) {
    let c = s.pair();
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, 1).expect("added");
    let mut left = 0;
    for i in 0..400u64 {
        let after = Duration::from_micros(10 + i * 7 % 190);
        let (fd, call) = match i % 4 {
            0 => (c.a, Left::Recv),
            1 => (c.a, Left::Poll),
            2 => (ep, Left::Epoll),
            _ => (c.a, Left::Select),
        };
        left += i32::from(left_after(after, fd, call));
        if i % 40 == 39 {
            s.b_later(20, &format!("send {} 0 m{i}", c.b));
            let got = calls::epoll_wait(ep, 8, 5000);
            say!("between", got, calls::recv(c.a, 9, 0), calls::epoll_wait(ep, 8, 0));
        }
    }
    say!("left", left);
    works(s, c);
    std::thread::sleep(SETTLE);
    say!("nothing", calls::epoll_wait(ep, 8, 0));
    // That the peer sees the end is not asked here: see `docs/conformance.md`.
    say!("closed", calls::close(c.a));
}
