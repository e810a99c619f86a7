//! What becomes of calls that wait when their thread is cancelled or their descriptor is closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::calls;
use crate::calls::cancel::{Waiter, Waits, thread_id, until_asleep};
use crate::say;
use crate::stage::{Conn, SETTLE, Stage, timed};

/// Starts a thread whose work is a call that waits, and waits until it sleeps there.
fn in_call<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let known = Arc::new(AtomicI32::new(0));
    let told = Arc::clone(&known);
    let thread = thread::spawn(move || {
        told.store(thread_id(), Ordering::SeqCst);
        work()
    });
    until_asleep(&known);
    thread
}

fn works(s: &mut Stage, c: Conn) {
    say!("sent", calls::send(c.a, b"after", 0), s.b_recv(c, 9));
    say!("received", s.b_send(c, "answer"), calls::recv(c.a, 9, 0));
}

/// A thread that fills its direction is cancelled when nothing goes any more: what its finished sends
/// took arrives, a part of the last one perhaps, and then what follows.
pub fn cancel_full_send(s: &mut Stage) {
    let c = s.pair();
    let waiting = Waiter::start(c.a, Waits::Send).expect("a thread");
    let begun = Instant::now();
    let mut before = (usize::MAX, begun);
    // Full is where nothing has moved for a while.
    while before.1.elapsed() < Duration::from_millis(400) {
        if waiting.sent() != before.0 {
            before = (waiting.sent(), Instant::now());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let sent = waiting.sent();
    say!("cancelled", waiting.cancel(), sent > 0);
    say!("whole sends", sent % (64 << 10));
    // What of the last send went out before it was cancelled is the C library's business.
    s.tell(&format!("until {} 77", c.b));
    let fd = c.a;
    let marker = thread::spawn(move || calls::send(fd, b"M", 0));
    let arrived: usize = s.answer().parse().expect("a count");
    say!("arrived", arrived >= sent && arrived <= sent + (64 << 10), marker.join().expect("sent"));
    works(s, c);
}

/// Cancelled in `accept`: the listener goes on.
pub fn cancel_accept(s: &mut Stage) {
    let (listener, port) = s.listener(16);
    let waiting = Waiter::start(listener, Waits::Accept).expect("a thread");
    waiting.until_asleep();
    say!("cancelled", waiting.cancel());
    let b = Stage::number(&s.b(&format!("connect {port}")));
    let c = Conn { a: calls::accept(listener, 0).expect("a connection"), b };
    for _ in 0..4 {
        works(s, c);
    }
}

/// A listener that takes nobody until it accepts, and connections that wait in it.
fn full_listener(s: &Stage) -> (i32, u16, Vec<i32>) {
    let (listener, port) = s.listener(0);
    let queued = (0..4).map(|_| {
        let fd = calls::socket(libc::SOCK_NONBLOCK).expect("a socket");
        let _ = calls::connect(fd, port);
        fd
    });
    let queued = queued.collect();
    thread::sleep(SETTLE);
    (listener, port, queued)
}

/// Cancelled in `connect`: the kernel goes on connecting.
pub fn cancel_connect(s: &mut Stage) {
    let (listener, port, queued) = full_listener(s);
    let fd = calls::prompt_socket(0).expect("a socket");
    let waiting = Waiter::start(fd, Waits::Connect(port)).expect("a thread");
    waiting.until_asleep();
    say!("cancelled", waiting.cancel());
    let ours = calls::local_port(fd).expect("a port");
    let Some(accepted) = accepted_from(listener, ours) else {
        return say!("never accepted");
    };
    say!("connected", calls::poll(fd, libc::POLLOUT, 10_000), calls::peer_port(fd) == Ok(port));
    for text in ["one", "two", "three"] {
        say!("there", calls::send(fd, text.as_bytes(), 0), calls::recv(accepted, 9, 0));
        say!("back", calls::send(accepted, text.as_bytes(), 0), calls::recv(fd, 9, 0));
    }
    drop(queued.into_iter().map(calls::close).collect::<Vec<_>>());
}

/// Accepts until the connection from this port is there.
fn accepted_from(listener: i32, port: u16) -> Option<i32> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(15) {
        if calls::poll(listener, libc::POLLIN, 1000) != Ok(libc::POLLIN) {
            continue;
        }
        match calls::accept_from(listener) {
            Ok((fd, from)) if from == port => return Some(fd),
            Ok((fd, _)) => drop(calls::close(fd)),
            Err(_) => {}
        }
    }
    None
}

/// Cancelled in each call that waits for readiness, and in some that wait for bytes: nothing is lost, and the next one sees it.
pub fn cancel_readiness(s: &mut Stage) {
    let c = s.pair();
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1).expect("added");
    let on_it = [Waits::Poll, Waits::Ppoll, Waits::Select, Waits::Message, Waits::Readv];
    for (fd, waits) in on_it.map(|waits| (c.a, waits)).into_iter().chain([(ep, Waits::Epoll)]) {
        let waiting = Waiter::start(fd, waits).expect("a thread");
        waiting.until_asleep();
        say!("cancelled", waiting.cancel());
        say!("bytes", s.b_send(c, "abc"), calls::poll(c.a, libc::POLLIN, 5000));
        say!("event", calls::epoll_wait(ep, 4, 5000), calls::recv(c.a, 9, 0));
        works(s, c);
    }
}

/// Cancelled while it makes calls that do not wait, with something there for them and without.
pub fn cancel_what_does_not_wait(s: &mut Stage) {
    let c = s.pair();
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1).expect("added");
    let on_it = [Waits::RecvNow, Waits::SendNow, Waits::PollNow, Waits::SelectNow];
    for there in [false, true] {
        for (fd, waits) in
            on_it.map(|waits| (c.a, waits)).into_iter().chain([(ep, Waits::EpollNow)])
        {
            if there {
                s.b_send(c, "there");
            }
            let waiting = Waiter::start(fd, waits).expect("a thread");
            thread::sleep(SETTLE);
            say!("cancelled", waiting.cancel());
        }
    }
    s.b(&format!("drain {}", c.b));
    while calls::recv(c.a, 99, libc::MSG_DONTWAIT).is_ok() {}
    works(s, c);
}

/// `close` while another thread fills the connection: its call goes on until all is taken.
pub fn close_during_send(s: &mut Stage) {
    let c = s.pair();
    let len = 12 << 20;
    let fd = c.a;
    let bytes = vec![b'x'; len];
    let sending = in_call(move || calls::send(fd, &bytes, 0));
    say!("close", calls::close(c.a));
    thread::sleep(SETTLE);
    say!("still in send", !sending.is_finished());
    say!("the peer", s.b(&format!("drain {}", c.b)), sending.join().expect("no panic"));
}

/// `close` of a listener while another thread is in `accept`: it accepts one more.
pub fn close_during_accept(s: &mut Stage) {
    let (listener, port) = s.listener(16);
    let accepting = in_call(move || calls::accept(listener, 0));
    say!("close", calls::close(listener));
    thread::sleep(SETTLE);
    say!("still in accept", !accepting.is_finished());
    let b = Stage::number(&s.b(&format!("connect {port}")));
    let c = Conn { a: accepting.join().expect("no panic").expect("a connection"), b };
    for _ in 0..4 {
        works(s, c);
    }
}

/// `close` of a socket while another thread is in `connect`.
pub fn close_during_connect(s: &mut Stage) {
    let (listener, port, queued) = full_listener(s);
    let fd = calls::prompt_socket(0).expect("a socket");
    let connecting = in_call(move || calls::connect(fd, port));
    let ours = calls::local_port(fd).expect("a port");
    say!("close", calls::close(fd));
    let accepted = accepted_from(listener, ours);
    say!("connected", connecting.join().expect("no panic"), accepted.is_some());
    if let Some(fd) = accepted {
        say!("and ended", calls::recv(fd, 9, 0));
    }
    drop(queued.into_iter().map(calls::close).collect::<Vec<_>>());
}

/// `close` while another thread waits for bytes in `poll` or `select`; then bytes come.
pub fn close_during_readiness(s: &mut Stage) {
    let c = s.pair();
    let fd = c.a;
    let waiting = in_call(move || calls::poll(fd, libc::POLLIN, 3000));
    say!("close", calls::close(c.a));
    thread::sleep(SETTLE);
    say!("still in poll", !waiting.is_finished());
    s.b_send(c, "x");
    say!("poll", waiting.join().expect("no panic"));
    let c = s.pair();
    let fd = c.a;
    let limit = Some(Duration::from_secs(3));
    let waiting = in_call(move || calls::select(&[fd], &[], &[], limit, None).map(|got| got.count));
    say!("close", calls::close(c.a));
    thread::sleep(SETTLE);
    say!("still in select", !waiting.is_finished());
    s.b_send(c, "x");
    say!("select", waiting.join().expect("no panic"));
}

/// `close` takes a connection out of a set on which another thread waits.
pub fn close_during_epoll_wait(s: &mut Stage) {
    let (c, d) = (s.pair(), s.pair());
    let ep = calls::epoll_create().expect("a set");
    for (conn, n) in [(c, 1), (d, 2)] {
        calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, conn.a, libc::EPOLLIN, n).expect("added");
    }
    let waiting = in_call(move || timed(|| calls::epoll_wait(ep, 4, 5000)));
    say!("close", calls::close(c.a));
    say!("the peer", s.b_mask(c), s.b_send(c, "to nobody"));
    thread::sleep(SETTLE);
    say!("still waiting", !waiting.is_finished());
    say!("bytes", s.b_send(d, "x"));
    let (events, when) = waiting.join().expect("no panic");
    say!("event", events, when);
    works_after(s, d);
}

fn works_after(s: &mut Stage, c: Conn) {
    say!("byte", calls::recv(c.a, 1, 0));
    works(s, c);
}
