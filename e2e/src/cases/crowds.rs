//! Event sets with many connections, and with others beside them: nobody is forgotten, and nobody starves.

use std::time::Duration;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT};

use crate::calls;
use crate::say;
use crate::stage::{Conn, SETTLE, Stage};

/// More than a set looks at all of.
const MANY: usize = 560;

fn settle() {
    std::thread::sleep(SETTLE);
}

/// What a set tells of one of its members, whose data is its number, once it is asked to. What is there already comes at once.
fn told_of(ep: i32, c: Conn, number: usize, events: i32) -> bool {
    calls::epoll_ctl(ep, EPOLL_CTL_MOD, c.a, events, number as u64).expect("changed");
    let told = calls::epoll_wait(ep, 8, 300).expect("events");
    told.iter().any(|(_, data)| *data == number as u64)
}

/// A set with so many connections is looked at, and sleeps: some that were quiet are the kernel's to wake by then.
fn sleeps(ep: i32) {
    for _ in 0..1200 {
        let _ = calls::epoll_wait(ep, 8, 0);
    }
    for _ in 0..3 {
        let _ = calls::epoll_wait(ep, 8, 2);
    }
}

/// Connections that have been quiet, and that the program asks about anew: there is room, or something that it has not read.
pub fn many_armed_anew(s: &mut Stage) {
    calls::raise_descriptor_limit().expect("a limit");
    let all: Vec<Conn> = (0..MANY).map(|_| s.warm_pair(4)).collect();
    let ep = calls::epoll_create().expect("a set");
    for (i, c) in all.iter().enumerate() {
        calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, i as u64).expect("added");
    }
    sleeps(ep);
    // From everywhere: which of them sleep is the library's business.
    let some = || (0..MANY).step_by(7);
    let mut with_room = 0;
    for i in some() {
        with_room += usize::from(told_of(ep, all[i], i, EPOLLIN | EPOLLOUT));
        calls::epoll_ctl(ep, EPOLL_CTL_MOD, all[i].a, EPOLLIN, i as u64).expect("changed");
        sleeps(ep);
    }
    say!("room", with_room);
    for (label, events) in
        [("level", EPOLLIN), ("once", EPOLLIN | EPOLLONESHOT), ("edge", EPOLLIN | EPOLLET)]
    {
        let mut told = (0, 0);
        for i in some() {
            s.b_send(all[i], "x");
            told.0 += usize::from(told_of(ep, all[i], i, events));
            // Not now.
            let not_now = if events == EPOLLIN { 0 } else { events & !EPOLLIN };
            calls::epoll_ctl(ep, EPOLL_CTL_MOD, all[i].a, not_now, i as u64).expect("changed");
        }
        sleeps(ep);
        for i in some() {
            told.1 += usize::from(told_of(ep, all[i], i, events));
            assert!(calls::recv(all[i].a, 1, 0).is_ok());
            calls::epoll_ctl(ep, EPOLL_CTL_MOD, all[i].a, EPOLLIN, i as u64).expect("changed");
        }
        say!(label, told.0, told.1);
    }
}

/// A connection that is waited for until there is room in it, in a loop that never sleeps since all others have something;
/// which sleeps by the time there is room.
pub fn room_beside_what_is_always_ready(s: &mut Stage) {
    calls::raise_descriptor_limit().expect("a limit");
    let all: Vec<Conn> = (0..MANY).map(|_| s.warm_pair(4)).collect();
    let ep = calls::epoll_create().expect("a set");
    for (i, c) in all.iter().enumerate() {
        let events = if i == 0 { EPOLLIN | EPOLLOUT } else { EPOLLIN };
        calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, events, i as u64).expect("added");
    }
    let x = all[0];
    calls::set_nonblocking(x.a, true).expect("a flag");
    for c in &all[1..] {
        s.b_send(*c, "x");
    }
    // A piece for each event: no call tells that there is no room.
    let of_x = |events: &[(u32, u64)]| events.iter().any(|(_, data)| *data == 0);
    let mut waits = 0;
    while waits < 3000 {
        waits += 1;
        if of_x(&calls::epoll_wait(ep, MANY, -1).expect("events")) {
            calls::send(x.a, &[7; 4096], 0).expect("room, as was told");
            waits = 0;
        }
    }
    for c in &all[1..] {
        assert!(calls::recv(c.a, 1, 0).is_ok());
    }
    s.tell(&format!("drain {}", x.b));
    say!("room", of_x(&calls::epoll_wait(ep, MANY, 10_000).expect("events")));
    s.answer();
}

/// A connection that always has something, and one that is plain TCP: turns until its bytes are told.
pub fn plain_beside_what_is_always_ready(s: &mut Stage) {
    let (always, plain) = (s.pair_nb(), s.pair_nb());
    // Whoever gets it knows nothing of ours: it goes by TCP from now on.
    let [one, other] = calls::socketpair().expect("a pair");
    say!("pass", calls::send_fd(one, plain.a), calls::recv_fd(other).map(calls::close));
    let ep = calls::epoll_create().expect("a set");
    for (data, c) in [(1, always), (2, plain)] {
        calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, data).expect("added");
    }
    s.b_send(always, "x");
    settle();
    for _ in 0..200 {
        let _ = calls::epoll_wait(ep, 8, -1);
    }
    s.b_send(plain, "y");
    settle();
    let told = (0..8).any(|_| {
        // The program has something to do.
        std::thread::sleep(Duration::from_millis(2));
        calls::epoll_wait(ep, 8, -1).expect("events").iter().any(|(_, data)| *data == 2)
    });
    say!("soon", told);
}

/// A pipe and a connection that always have something, and room for one of them at a time.
pub fn one_event_at_a_time(s: &mut Stage) {
    let c = s.pair_nb();
    let [r, w] = calls::pipe(0).expect("a pipe");
    let ep = calls::epoll_create().expect("a set");
    for (data, fd) in [(1, c.a), (2, r)] {
        calls::epoll_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, data).expect("added");
    }
    s.b_send(c, "x");
    calls::write(w, b"x").expect("written");
    settle();
    for timeout in [0, -1] {
        let mut seen = [0; 3];
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(1));
            for (_, data) in calls::epoll_wait(ep, 1, timeout).expect("events") {
                seen[usize::try_from(data).expect("small")] += 1;
            }
        }
        say!("both", seen[1] > 4, seen[2] > 4, seen[1] + seen[2]);
    }
}

/// A set that somebody gets who knows nothing of it tells the program's own data there.
pub fn set_passed_on(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = calls::epoll_create().expect("a set");
    calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, 77).expect("added");
    let [one, other] = calls::socketpair().expect("a pair");
    say!("pass", calls::send_fd(one, ep));
    let there = calls::recv_fd(other).expect("a set");
    say!("nothing", calls::epoll_wait(there, 8, 20));
    s.b_send(c, "x");
    say!("there", calls::epoll_wait(there, 8, 1000));
    say!("here", calls::epoll_wait(ep, 8, 1000));
    say!("read", calls::recv(c.a, 9, 0), calls::epoll_wait(there, 8, 20));
    say!("room", calls::epoll_ctl(there, EPOLL_CTL_MOD, c.a, EPOLLOUT, 78));
    say!("of it", calls::epoll_wait(there, 8, 1000), calls::epoll_wait(ep, 8, 1000));
    // Also what comes into it since.
    let c = s.pair_nb();
    calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, 79).expect("added");
    s.b_send(c, "x");
    settle();
    let told = calls::epoll_wait(there, 8, 1000).expect("events");
    say!("another", told.iter().any(|(events, data)| (*events, *data) == (EPOLLIN as u32, 79)));
}
