//! Several threads on one connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::calls::{self, Cancellable};
use crate::say;
use crate::stage::{Conn, SETTLE, Stage};

fn settle() {
    thread::sleep(SETTLE);
}

/// `close` while another thread is in `recv`: that call goes on and gets its bytes.
pub fn close_during_recv(s: &mut Stage) {
    let c = s.pair();
    let blocked = thread::spawn(move || calls::recv(c.a, 9, 0));
    thread::sleep(Duration::from_millis(80));
    say!("close", calls::close(c.a));
    settle();
    say!("still in recv", !blocked.is_finished(), s.b_mask(c));
    say!("bytes", s.b_send(c, "hey"), blocked.join().expect("no panic"));
    say!("the peer", s.b_mask(c), s.b_recv(c, 9));
}

/// One of two descriptors is closed while a thread is in `recv` by it, and its number is another connection's before bytes
/// come.
pub fn duplicate_closed_during_recv(s: &mut Stage) {
    let c = s.pair();
    let left = calls::dup(c.a).expect("a duplicate");
    let blocked = thread::spawn(move || calls::recv(c.a, 6, libc::MSG_WAITALL));
    thread::sleep(Duration::from_millis(80));
    say!("close", calls::close(c.a));
    let other = s.fresh_pair();
    say!("the same number", other.a == c.a, s.b_send(other, "abc"));
    settle();
    say!("some", s.b_send(c, "hey"));
    settle();
    say!("the rest", s.b_send(c, "you"), blocked.join().expect("no panic"));
    say!("the other", calls::recv(other.a, 9, 0));
    say!("goes on", s.b_send(c, "more"), calls::recv(left, 9, 0));
    say!("goes on", calls::send(left, b"back", 0), s.b_recv(c, 9));
    say!("the end", calls::close(left), s.b_mask(c), s.b_recv(c, 9));
}

/// `shutdown` while another thread is in `recv` wakes it.
pub fn shutdown_during_recv(s: &mut Stage) {
    let c = s.pair();
    let blocked = thread::spawn(move || calls::recv(c.a, 9, 0));
    thread::sleep(Duration::from_millis(80));
    say!("shutdown", calls::shutdown(c.a, libc::SHUT_RD), blocked.join().expect("no panic"));
    say!("poll", s.mask(c.a));
    let c = s.pair();
    let blocked = thread::spawn(move || calls::poll(c.a, libc::POLLIN, 5000));
    thread::sleep(Duration::from_millis(80));
    say!("shutdown", calls::shutdown(c.a, libc::SHUT_RDWR), blocked.join().expect("no panic"));
}

/// Two threads in `recv`: each byte goes to one of them.
pub fn two_receivers(s: &mut Stage) {
    let c = s.pair();
    for _ in 0..10 {
        let one = thread::spawn(move || calls::recv(c.a, 1, 0));
        let two = thread::spawn(move || calls::recv(c.a, 1, 0));
        thread::sleep(Duration::from_millis(20));
        s.b_send(c, "ab");
        let mut got = vec![one.join().expect("no panic"), two.join().expect("no panic")];
        got.sort();
        say!("each one", got);
    }
    say!("nothing left", calls::recv(c.a, 9, libc::MSG_DONTWAIT));
}

/// A signal that goes on by itself, for a thread that waits to send while another waits to receive, and the other way round.
pub fn signals_beside_another_thread(s: &mut Stage) {
    const USR1: i32 = libc::SIGUSR1;
    calls::count(USR1, libc::SA_RESTART).expect("a handler");
    for sends_first in [true, false] {
        let c = s.pair();
        say!("fill", Stage::fill(c.a));
        let sending = || thread::spawn(move || calls::send(c.a, b"x", 0));
        let receiving = || thread::spawn(move || calls::recv(c.a, 9, 0));
        let wait = || thread::sleep(Duration::from_millis(80));
        let (sender, receiver) = if sends_first {
            let sender = sending();
            wait();
            (sender, receiving())
        } else {
            let receiver = receiving();
            wait();
            (sending(), receiver)
        };
        wait();
        for _ in 0..20 {
            calls::thread_kill(&sender, USR1).expect("sent");
            calls::thread_kill(&receiver, USR1).expect("sent");
            thread::sleep(Duration::from_millis(3));
        }
        say!("signals", calls::arrived(USR1) > 2, sender.is_finished(), receiver.is_finished());
        s.b_later(0, &format!("drain {}", c.b));
        say!("sent", sender.join().expect("no panic"), s.b_send(c, "word"));
        say!("received", receiver.join().expect("no panic"));
    }
}

/// Two threads send: each send stays whole.
pub fn two_senders_whole(s: &mut Stage) {
    let c = s.pair();
    let sender = |letter: u8| {
        thread::spawn(move || {
            let record = vec![letter; 1000];
            (0..20).all(|_| calls::send(c.a, &record, 0) == Ok(1000))
        })
    };
    let (one, two) = (sender(b'1'), sender(b'2'));
    say!("sent", one.join().expect("no panic"), two.join().expect("no panic"));
    let mut counts = [0; 2];
    for _ in 0..40 {
        let record = s.b(&format!("recv {} 1000 {}", c.b, libc::MSG_WAITALL));
        for (count, letter) in counts.iter_mut().zip([b'1', b'2']) {
            let whole = crate::show::Show::show(&vec![letter; 1000]);
            *count += i32::from(record == whole);
        }
    }
    say!("whole", counts.to_vec());
}

/// Cancelled while it waits: the connection is as before.
pub fn cancel_blocked_recv(s: &mut Stage) {
    let c = s.pair();
    let waiting = Cancellable::start(c.a).expect("a thread");
    thread::sleep(Duration::from_millis(60));
    let (cancelled, got) = waiting.cancel();
    say!("cancelled", cancelled, got);
    say!("works", s.b_send(c, "abc"), calls::recv(c.a, 9, 0));
    say!("works", calls::send(c.a, b"def", 0), s.b_recv(c, 9));
}

/// Cancelled when a byte arrives at the same time. The C library may lose the byte then (it is
/// cancelled between the system call and its return); nothing may see it twice or hang.
pub fn cancel_takes_nothing(s: &mut Stage) {
    let c = s.pair();
    let mut doubled = 0;
    for i in 0..40 {
        let waiting = Cancellable::start(c.a).expect("a thread");
        thread::sleep(Duration::from_micros(i % 10 * 300));
        s.b_later(i % 4, &format!("send {} 0 x", c.b));
        thread::sleep(Duration::from_micros(i % 8 * 700));
        let (_, got) = waiting.cancel();
        s.b("sleep 0");
        settle();
        let rest = calls::recv(c.a, 9, libc::MSG_DONTWAIT).map_or(0, |bytes| bytes.len());
        doubled += i32::from(rest + usize::from(got == 1) > 1);
    }
    say!("doubled", doubled);
    say!("works", s.b_send(c, "abc"), calls::recv(c.a, 9, 0));
}

/// Two threads wait on one set: an edge wakes one.
pub fn epoll_two_waiters(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = calls::epoll_create().expect("a set");
    let events = libc::EPOLLIN | libc::EPOLLET;
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, events, 1).expect("added");
    for round in 0..5 {
        let wait = || thread::spawn(move || calls::epoll_wait(ep, 4, 250).map_or(99, |e| e.len()));
        let (one, two) = (wait(), wait());
        thread::sleep(Duration::from_millis(60));
        s.b_send(c, "x");
        let woken = one.join().expect("no panic") + two.join().expect("no panic");
        say!("woken by an edge", round, woken);
    }
    say!("recv", calls::recv(c.a, 9, 0));
    // One-shot: one of them, whatever comes.
    let events = libc::EPOLLIN | libc::EPOLLONESHOT;
    calls::epoll_ctl(ep, libc::EPOLL_CTL_MOD, c.a, events, 2).expect("changed");
    let wait = || thread::spawn(move || calls::epoll_wait(ep, 4, 250).map_or(99, |e| e.len()));
    let (one, two) = (wait(), wait());
    thread::sleep(Duration::from_millis(60));
    s.b_send(c, "y");
    s.b_send(c, "z");
    say!("one-shot", one.join().expect("no panic") + two.join().expect("no panic"));
}

/// Two threads wait, and whoever is told does not read: the next arrival is told to the other one. And room, where there is
/// something unread.
pub fn epoll_two_waiters_that_do_not_read(s: &mut Stage) {
    let wait = |ep| thread::spawn(move || calls::epoll_wait(ep, 4, 300).map_or(99, |e| e.len()));
    let soon = || thread::sleep(Duration::from_millis(40));
    let (c, ep) = (s.pair_nb(), calls::epoll_create().expect("a set"));
    let events = libc::EPOLLIN | libc::EPOLLET;
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, events, 1).expect("added");
    for round in 0..3 {
        let (one, two) = (wait(ep), wait(ep));
        soon();
        s.b_send(c, "x");
        soon();
        s.b_send(c, "y");
        let woken = one.join().expect("no panic") + two.join().expect("no panic");
        say!("woken by two edges", round, woken);
    }
    let text = vec![b'x'; 1 << 16];
    for how in [0, libc::EPOLLET] {
        let (c, ep) = (s.pair_nb(), calls::epoll_create().expect("a set"));
        s.b_send(c, "unread");
        while calls::send(c.a, &text, libc::MSG_DONTWAIT).is_ok() {}
        let events = libc::EPOLLOUT | how;
        calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, events, 1).expect("added");
        say!("full", s.mask(c.a), calls::epoll_wait(ep, 4, 30));
        let (one, two) = (wait(ep), wait(ep));
        soon();
        let _ = s.b(&format!("drain {}", c.b));
        let woken = one.join().expect("no panic") + two.join().expect("no panic");
        say!("room", woken > 0, calls::close(ep), calls::close(c.a), s.b_close(c));
    }
}

/// Room is told beside what lies unread: to one set of two, through a set that is in another one, after a registration was
/// changed for a while, and once.
pub fn epoll_room_beside_unread(s: &mut Stage) {
    let text = vec![b'x'; 1 << 16];
    let soon = || thread::sleep(Duration::from_millis(40));
    let set = || calls::epoll_create().expect("a set");
    let ctl = |ep, op, fd, events| calls::epoll_ctl(ep, op, fd, events, 1).expect("changed");
    let (add, modify) = (libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD);
    let wait = |ep| thread::spawn(move || calls::epoll_wait(ep, 4, 400).map_or(99, |e| e.len()));
    for (way, how) in [
        ("two sets", 0),
        ("two sets", libc::EPOLLET),
        ("nested", 0),
        ("nested", libc::EPOLLET),
        ("changed", 0),
        ("once", libc::EPOLLONESHOT),
    ] {
        let (c, ep, other) = (s.pair_nb(), set(), set());
        ctl(ep, add, c.a, libc::EPOLLOUT | how);
        match way {
            "two sets" => ctl(other, add, c.a, libc::EPOLLIN | how),
            "nested" => ctl(other, add, ep, libc::EPOLLIN | how),
            _ => 0,
        };
        say!("at first", way, how.cast_unsigned(), calls::epoll_wait(ep, 4, 30));
        s.b_send(c, "unread");
        let _ = s.mask(c.a);
        while calls::send(c.a, &text, libc::MSG_DONTWAIT).is_ok() {}
        if way != "nested" {
            let events = calls::epoll_wait(ep, 4, 30);
            say!("full", events, calls::epoll_wait(other, 4, 30));
        }
        if way == "changed" {
            ctl(ep, modify, c.a, libc::EPOLLIN | libc::EPOLLOUT);
            say!("read", calls::epoll_wait(ep, 4, 30), calls::recv(c.a, 1, 0));
            ctl(ep, modify, c.a, libc::EPOLLOUT);
        }
        if way == "once" {
            ctl(ep, modify, c.a, libc::EPOLLOUT | how);
        }
        let waiters = match way {
            "two sets" => vec![wait(ep)],
            "nested" => vec![wait(other)],
            _ => vec![wait(ep), wait(ep)],
        };
        soon();
        s.b_send(c, "more");
        soon();
        let _ = s.b(&format!("drain {}", c.b));
        let told: usize = waiters.into_iter().map(|w| w.join().expect("no panic")).sum();
        say!(
            "room",
            told > 0,
            calls::close(ep),
            calls::close(other),
            calls::close(c.a),
            s.b_close(c)
        );
    }
}

/// A set is changed while a thread waits on it.
pub fn epoll_changed_while_waiting(s: &mut Stage) {
    let (c, d) = (s.pair_nb(), s.pair_nb());
    let ep = calls::epoll_create().expect("a set");
    let wait = move || thread::spawn(move || calls::epoll_wait(ep, 4, 3000));
    s.b_send(c, "there");
    settle();
    let waiting = wait();
    thread::sleep(Duration::from_millis(60));
    let ctl = |op, fd, events, data| calls::epoll_ctl(ep, op, fd, events, data);
    say!("added with bytes", ctl(libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1));
    say!("woken", waiting.join().expect("no panic"));
    say!("deleted", ctl(libc::EPOLL_CTL_DEL, c.a, 0, 0));
    let waiting = wait();
    thread::sleep(Duration::from_millis(60));
    say!("added without", ctl(libc::EPOLL_CTL_ADD, d.a, libc::EPOLLIN, 2));
    thread::sleep(Duration::from_millis(60));
    say!("bytes", s.b_send(d, "x"), waiting.join().expect("no panic"));
    say!("recv", calls::recv(d.a, 9, 0));
    let waiting = wait();
    thread::sleep(Duration::from_millis(60));
    say!("changed", ctl(libc::EPOLL_CTL_MOD, d.a, libc::EPOLLIN | libc::EPOLLOUT, 3));
    say!("woken", waiting.join().expect("no panic"));
}

/// A thread waits for a connection on which nothing comes; others do what ends that all the same.
pub fn epoll_ended_by_other_threads(s: &mut Stage) {
    type Way = fn(&mut Stage, i32, Conn);
    let put_in = |ep, fd, events| calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, fd, events, 7);
    let ways: [(&str, Way); 6] = [
        ("another is put in", |_, ep, _| {
            let counter = calls::eventfd(1).expect("an eventfd");
            say!("put in", calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, counter, libc::EPOLLIN, 3));
        }),
        ("a new connection is put in", |s, ep, _| {
            let d = s.pair_nb();
            say!("put in", calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, d.a, libc::EPOLLIN, 4));
            say!("bytes", s.b_send(d, "new"));
        }),
        ("it asks for room", |_, ep, c| {
            let both = libc::EPOLLIN | libc::EPOLLOUT;
            say!("asks", calls::epoll_ctl(ep, libc::EPOLL_CTL_MOD, c.a, both, 5));
        }),
        ("we shut down receiving", |_, _, c| say!("shut", calls::shutdown(c.a, libc::SHUT_RD))),
        ("the peer shuts down", |s, _, c| say!("shut", s.b_shutdown(c, libc::SHUT_WR))),
        ("the peer closes", |s, _, c| say!("closed", s.b_close(c))),
    ];
    for (what, way) in ways {
        let c = s.pair_nb();
        let ep = calls::epoll_create().expect("a set");
        say!(what, s.b_send(c, "x"), put_in(ep, c.a, libc::EPOLLIN));
        settle();
        say!("told", calls::epoll_wait(ep, 4, 3000), calls::recv(c.a, 9, 0));
        let waiting = thread::spawn(move || calls::epoll_wait(ep, 4, 5000));
        thread::sleep(Duration::from_millis(60));
        way(s, ep, c);
        say!("woken", waiting.join().expect("no panic"));
    }
    // A descriptor that is asked for again.
    let c = s.pair_nb();
    let (ep, counter) = (calls::epoll_create().expect("a set"), calls::eventfd(1).expect("one"));
    say!("both", put_in(ep, counter, 0), s.b_send(c, "x"), put_in(ep, c.a, libc::EPOLLIN));
    settle();
    say!("told", calls::epoll_wait(ep, 4, 3000), calls::recv(c.a, 9, 0));
    let waiting = thread::spawn(move || calls::epoll_wait(ep, 4, 5000));
    thread::sleep(Duration::from_millis(60));
    say!("asks", calls::epoll_ctl(ep, libc::EPOLL_CTL_MOD, counter, libc::EPOLLIN, 6));
    say!("woken", waiting.join().expect("no panic"));
}

/// One thread receives, the other sends, all the time.
pub fn wait_in_thread_send_in_main(s: &mut Stage) {
    let c = s.pair();
    s.b_later(0, &format!("echo {}", c.b));
    let receiving = thread::spawn(move || crate::peer::receive_stream(c.a, 300 * 997, 31));
    let mut at = 0;
    for i in 0..300u64 {
        let part = crate::show::stream_bytes(31, at, 997);
        at += 997;
        assert_eq!(calls::send(c.a, &part, 0), Ok(997), "send {i}");
        if i % 20 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
    }
    say!("received", receiving.join().expect("no panic"));
    say!("shut", calls::shutdown(c.a, libc::SHUT_WR), s.b_close(c), calls::recv(c.a, 9, 0));
}

/// `dup2` over a number whose connection another thread is receiving on.
pub fn dup2_during_recv(s: &mut Stage) {
    let (c, d) = (s.pair(), s.pair());
    let blocked = thread::spawn(move || calls::recv(c.a, 9, 0));
    thread::sleep(Duration::from_millis(80));
    say!("dup2", calls::dup2(d.a, c.a) == Ok(c.a));
    settle();
    say!("still in recv", !blocked.is_finished());
    say!("bytes", s.b_send(c, "old"), blocked.join().expect("no panic"));
    say!("new", s.b_send(d, "new"), calls::recv(c.a, 9, 0));
    say!("the old peer", s.b_mask(c));
}

/// A connection of this process with itself.
fn own_pair(listener: i32, port: u16) -> (i32, i32) {
    let a = calls::socket(0).expect("a socket");
    calls::connect(a, port).expect("connected");
    let b = calls::accept(listener, 0).expect("accepted");
    (a, b)
}

/// Both ends say something, often enough for memory to be used.
fn answers((a, b): (i32, i32), what: &str) -> bool {
    let reaches = |from, to| {
        calls::send(from, what.as_bytes(), 0).is_ok()
            && calls::recv(to, 99, 0).is_ok_and(|got| got == what.as_bytes())
    };
    (0..3).all(|_| reaches(a, b) && reaches(b, a))
}

/// The number is closed by one thread at the moment at which a call of another thread's begins: that has no number any
/// more, or sees the end of the connection, and those that are made next are connections of their own.
pub fn closed_as_calls_begin(_: &mut Stage) {
    const ROUNDS: u32 = 1500;
    let listener = calls::socket(0).expect("a socket");
    calls::bind(listener, 0).expect("bound");
    calls::listen(listener, 8).expect("listens");
    let port = calls::local_port(listener).expect("a port");
    let (mut ended, mut right) = (0, 0);
    for round in 0..ROUNDS {
        let (a, b) = own_pair(listener, port);
        let met = answers((a, b), "met");
        let begins: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let caller = thread::spawn(move || {
            begins.store(true, Ordering::Release);
            match round % 3 {
                0 => drop(calls::recv(a, 9, 0)),
                1 => drop(calls::poll(a, libc::POLLIN, 5000)),
                _ => drop(calls::select(&[a], &[], &[], Some(Duration::from_secs(5)), None)),
            }
        });
        while !begins.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        for _ in 0..round * 7 % 400 {
            std::hint::spin_loop();
        }
        let closed = calls::close(a).is_ok();
        thread::sleep(Duration::from_micros(50));
        let closed = closed && calls::close(b).is_ok();
        caller.join().expect("no panic");
        ended += u32::from(met && closed);
        let one = own_pair(listener, port);
        let first = answers(one, "one");
        let two = own_pair(listener, port);
        right += u32::from(first && answers(two, "two") && answers(one, "one once more"));
        for fd in [one.0, one.1, two.0, two.1] {
            let _ = calls::close(fd);
        }
    }
    say!("ended", ended, "right", right);
}
