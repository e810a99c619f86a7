//! An event set that two processes have since a fork: who is told of what, and how often.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

use crate::calls::{self, Forked};
use crate::say;
use crate::show::Show;
use crate::stage::{Conn, Stage};

const IN: i32 = libc::EPOLLIN;
const OUT: i32 = libc::EPOLLOUT;
const RDHUP: i32 = libc::EPOLLRDHUP;
const ET: i32 = libc::EPOLLET;
const ONESHOT: i32 = libc::EPOLLONESHOT;

/// How long is waited for what does not come, milliseconds.
const SOON: i32 = 10;

/// How long is waited for what one of two is told.
const LONG: i32 = 120;

/// What a process waits for.
fn ways() -> impl Iterator<Item = (&'static str, i32)> {
    [("level", 0), ("edges", ET), ("once", ONESHOT), ("once, edges", ONESHOT | ET)].into_iter()
}

/// All that a set tells in two answers.
fn told(ep: i32) -> String {
    let first = calls::epoll_wait(ep, 4, SOON);
    match &first {
        Ok(events) if events.is_empty() => "nothing".to_owned(),
        _ => format!("{} {}", first.show(), calls::epoll_wait(ep, 4, SOON).show()),
    }
}

/// A forked child that does as it is told.
struct Second {
    pid: i32,
    orders: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Second {
    fn new() -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        match calls::fork() {
            Forked::Child => {
                drop(ours);
                calls::exit_now(serve(theirs));
            }
            Forked::Parent(pid) => {
                let answers = BufReader::new(ours.try_clone().expect("a second descriptor"));
                Self { pid, orders: ours, answers }
            }
        }
    }

    fn does(&mut self, order: &str) -> String {
        self.begins(order);
        self.answer()
    }

    fn waits(&mut self, ep: i32) -> String {
        self.does(&format!("wait {ep}"))
    }

    /// Has it do something; [`Self::answer`] must follow.
    fn begins(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the child listens");
    }

    fn answer(&mut self) -> String {
        let mut answer = String::new();
        let n = self.answers.read_line(&mut answer).expect("an answer");
        assert!(n > 0, "the child has gone");
        answer.trim_end().to_owned()
    }

    fn ends(self) -> calls::Ret {
        // A later child has this one's socket as well, which would not end.
        writeln!(&self.orders, "end").expect("the child listens");
        calls::wait(self.pid)
    }
}

/// The child's part.
fn serve(mut line: UnixStream) -> i32 {
    let mut pending = Vec::new();
    let mut byte = [0u8];
    while let Ok(1) = line.read(&mut byte) {
        if byte != *b"\n" {
            pending.extend(byte);
            continue;
        }
        let order = String::from_utf8(std::mem::take(&mut pending)).unwrap_or_default();
        let words: Vec<&str> = order.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|w| w.parse::<i32>().ok()).unwrap_or(-1);
        let data = || u64::try_from(number(4)).unwrap_or(0);
        let answer = match words[0] {
            "wait" => told(number(1)),
            "await" => calls::epoll_wait(number(1), 4, LONG).show(),
            "close" => calls::close(number(1)).show(),
            "fill" => {
                fill(number(1));
                "full".to_owned()
            }
            "recv" => calls::recv(number(1), 99, libc::MSG_DONTWAIT).show(),
            "add" => calls::epoll_ctl(number(1), libc::EPOLL_CTL_ADD, number(2), number(3), data())
                .show(),
            "arm" => calls::epoll_ctl(number(1), libc::EPOLL_CTL_MOD, number(2), number(3), data())
                .show(),
            _ => return 0,
        };
        if writeln!(line, "{answer}").is_err() {
            return 1;
        }
    }
    0
}

/// Sends until there is no room.
fn fill(fd: i32) {
    let text = vec![b'x'; 1 << 16];
    while calls::send(fd, &text, libc::MSG_DONTWAIT).is_ok() {}
}

fn set() -> i32 {
    calls::epoll_create().expect("a set")
}

fn add(ep: i32, c: Conn, events: i32) {
    calls::epoll_ctl(ep, libc::EPOLL_CTL_ADD, c.a, events, 7).expect("added");
}

/// What was there at the fork, and nobody has been told of, is told once: by whichever of the two that asks first.
pub fn told_once_of_what_was_there(s: &mut Stage) {
    let whats = [IN, IN | OUT | RDHUP, RDHUP];
    for (n, what) in whats.into_iter().enumerate() {
        let ways = ["nothing", "bytes", "bytes, told", "told and more", "the end"];
        for (m, way) in ways.into_iter().enumerate() {
            let child_first = (n + m).is_multiple_of(2);
            let c = s.pair_nb();
            let ep = set();
            add(ep, c, what | ET);
            match way {
                "bytes" => say!("bytes", s.b_send(c, "abc")),
                "bytes, told" => say!("bytes", s.b_send(c, "abc"), told(ep)),
                "told and more" => {
                    say!("bytes", s.b_send(c, "abc"), told(ep), s.b_send(c, "def"));
                }
                "the end" => say!("the end", s.b_shutdown(c, libc::SHUT_WR)),
                _ => {}
            }
            // So that it has come.
            let _ = s.mask(c.a);
            let mut child = Second::new();
            say!("what", what.cast_unsigned(), child_first, way);
            let both = |child: &mut Second| match child_first {
                true => {
                    let first = child.waits(ep);
                    say!("told", first, told(ep));
                }
                false => {
                    let first = told(ep);
                    say!("told", first, child.waits(ep));
                }
            };
            both(&mut child);
            both(&mut child);
            if way != "the end" {
                say!("more", s.b_send(c, "ghi"));
                both(&mut child);
                say!("the end", s.b_shutdown(c, libc::SHUT_WR));
                both(&mut child);
            }
            say!("read", calls::recv(c.a, 99, 0));
            both(&mut child);
            say!("ended", child.ends(), calls::close(ep), calls::close(c.a), s.b_close(c));
        }
    }
}

/// A process is told of a connection of which it holds no descriptor: it had one and has closed it.
pub fn waits_without_a_descriptor(s: &mut Stage) {
    for (way, how) in ways() {
        for what in [IN, RDHUP, 0] {
            let c = s.pair_nb();
            let ep = set();
            add(ep, c, what | how);
            let mut child = Second::new();
            say!("waits", way, what.cast_unsigned(), child.does(&format!("close {}", c.a)));
            let arm = || calls::epoll_ctl(ep, libc::EPOLL_CTL_MOD, c.a, what | how, 8);
            say!("nothing", child.waits(ep));
            say!("bytes", s.b_send(c, "abc"), child.waits(ep));
            say!("more", s.b_send(c, "def"), child.waits(ep));
            if how & ONESHOT != 0 {
                say!("armed", arm(), child.waits(ep));
            }
            say!("the end", s.b_shutdown(c, libc::SHUT_WR), child.waits(ep), told(ep));
            if how & ONESHOT != 0 {
                say!("armed", arm(), child.waits(ep));
            }
            say!("read", calls::recv(c.a, 99, 0), child.waits(ep));
            say!("we end", calls::shutdown(c.a, libc::SHUT_WR), child.waits(ep));
            if how & ONESHOT != 0 {
                say!("armed", arm(), child.waits(ep));
            }
            say!("ended", child.ends(), calls::close(ep), calls::close(c.a), s.b_close(c));
        }
    }
}

/// The same where it never had one: the other has made the connection since, before or after this one began to wait.
pub fn waits_for_what_another_has_made(s: &mut Stage) {
    for (n, (way, how)) in ways().enumerate() {
        for (m, what) in [IN, RDHUP].into_iter().enumerate() {
            let waits_first = (n + m).is_multiple_of(2);
            let ep = set();
            let mut child = Second::new();
            if waits_first {
                say!("waits first", child.waits(ep));
            }
            let c = s.pair_nb();
            add(ep, c, what | how);
            say!("waits", way, what.cast_unsigned(), waits_first, child.waits(ep));
            let arm = || calls::epoll_ctl(ep, libc::EPOLL_CTL_MOD, c.a, what | how, 8);
            say!("bytes", s.b_send(c, "abc"), child.waits(ep));
            if how & ONESHOT != 0 {
                say!("armed", arm(), child.waits(ep));
            }
            say!("the end", s.b_shutdown(c, libc::SHUT_WR), child.waits(ep), told(ep));
            say!("read", calls::recv(c.a, 99, 0), child.waits(ep));
            say!("ended", child.ends(), calls::close(ep), calls::close(c.a), s.b_close(c));
        }
    }
}

/// Bytes were there already when the other began to wait for a connection that it never had.
pub fn waits_late_for_what_another_has_made(s: &mut Stage) {
    for (way, how) in ways() {
        for what in [IN | OUT, RDHUP] {
            let ep = set();
            let mut child = Second::new();
            let c = s.pair_nb();
            add(ep, c, what | how);
            say!("bytes", way, what.cast_unsigned(), s.b_send(c, "abc"), s.mask(c.a));
            say!("told", child.waits(ep), child.waits(ep));
            if how & ONESHOT == 0 {
                say!("read", calls::recv(c.a, 99, 0), child.waits(ep));
                say!("more", s.b_send(c, "def"), child.waits(ep), told(ep));
            }
            say!("the end", s.b_shutdown(c, libc::SHUT_WR), child.waits(ep));
            say!("ended", child.ends(), calls::close(ep), calls::close(c.a), s.b_close(c));
        }
    }
}

/// Both wait when something comes: an edge and a one-shot event are told to one of them, and what stays is told to both;
/// whether the child holds the connection or not.
pub fn told_while_both_wait(s: &mut Stage) {
    for (n, (way, how)) in ways().enumerate() {
        let holds = n % 2 == 0;
        let c = s.pair_nb();
        let ep = set();
        add(ep, c, IN | RDHUP | how);
        let mut child = Second::new();
        if !holds {
            say!("close", child.does(&format!("close {}", c.a)));
        }
        let order = format!("await {ep}");
        for what in ["send {} 0 abc", "send {} 0 def", "shutdown {} 1"] {
            child.begins(&order);
            s.b_later(30, &what.replace("{}", &c.b.to_string()));
            let mut all = [calls::epoll_wait(ep, 4, LONG).show(), child.answer()];
            all.sort();
            say!("both wait", way, holds, what, all.join(" "));
            if how & ONESHOT != 0 {
                let events = IN | RDHUP | how;
                say!("read", calls::recv(c.a, 99, 0));
                say!("armed", calls::epoll_ctl(ep, libc::EPOLL_CTL_MOD, c.a, events, 8));
            }
        }
        say!("ended", child.ends(), calls::close(ep), calls::close(c.a), s.b_close(c));
    }
}

/// Two children, one of them forked when the set was shared already.
pub fn told_once_among_three(s: &mut Stage) {
    for what in [IN, IN | OUT] {
        let c = s.pair_nb();
        let ep = set();
        add(ep, c, what | ET);
        say!("bytes", s.b_send(c, "abc"), s.mask(c.a));
        let mut one = Second::new();
        say!("told", one.waits(ep), told(ep));
        say!("more", s.b_send(c, "def"), s.mask(c.a));
        let mut two = Second::new();
        say!("told", two.waits(ep), one.waits(ep), told(ep));
        say!("more", s.b_send(c, "ghi"), told(ep), two.waits(ep), one.waits(ep));
        say!("read", one.does(&format!("recv {}", c.a)), s.b_send(c, "j"));
        say!("told", one.waits(ep), two.waits(ep), told(ep));
        let arm = format!("arm {ep} {} {} 9", c.a, what | ET);
        say!("armed by one", one.does(&arm), two.waits(ep), one.waits(ep), told(ep));
        say!("one ends", one.ends(), s.b_send(c, "k"), told(ep), two.waits(ep));
        say!("the end", s.b_shutdown(c, libc::SHUT_WR), two.waits(ep), told(ep));
        say!("ended", two.ends(), calls::close(ep), calls::close(c.a), s.b_close(c));
    }
}

/// A sender has found no room before the fork, or after it: that there is some is told once.
pub fn room_is_told_once(s: &mut Stage) {
    for (before, child_first) in [(true, true), (true, false), (false, true), (false, false)] {
        let c = s.pair_nb();
        let ep = set();
        add(ep, c, OUT | ET);
        say!("told", told(ep));
        if before {
            fill(c.a);
        }
        let mut child = Second::new();
        say!("nothing", before, child_first, child.waits(ep), told(ep));
        if !before {
            fill(c.a);
        }
        let _ = s.b(&format!("drain {}", c.b));
        // The last acknowledgement may be a late one.
        std::thread::sleep(std::time::Duration::from_millis(50));
        say!("drained", s.mask(c.a));
        let first = if child_first { child.waits(ep) } else { told(ep) };
        say!("room", first, told(ep), child.waits(ep));
        say!("ended", child.ends(), calls::close(ep), calls::close(c.a), s.b_close(c));
    }
}

/// The process that finds no room is not the one that has put the connection into the set.
pub fn room_is_told_whoever_sends(s: &mut Stage) {
    for child_sends in [true, false] {
        let c = s.pair_nb();
        let ep = set();
        let mut child = Second::new();
        let events = OUT | ET;
        if child_sends {
            add(ep, c, events);
        } else {
            say!("added", child.does(&format!("add {ep} {} {events} 7", c.a)));
        }
        say!("told", child.waits(ep), told(ep));
        if child_sends {
            say!("fill", child.does(&format!("fill {}", c.a)));
        } else {
            fill(c.a);
        }
        say!("nothing", child.waits(ep), told(ep));
        let _ = s.b(&format!("drain {}", c.b));
        std::thread::sleep(std::time::Duration::from_millis(50));
        say!("room", s.mask(c.a), told(ep), child.waits(ep));
        say!("ended", child.ends(), calls::close(ep), calls::close(c.a), s.b_close(c));
    }
}

/// A connection comes into the set, or is asked for anew, with something to tell, while the other process waits.
pub fn told_of_what_is_put_in(s: &mut Stage) {
    for (n, (way, how)) in ways().enumerate() {
        let ep = set();
        // What the child holds, and what it does not.
        let early = (n % 2 == 0).then(|| s.pair_nb());
        let mut child = Second::new();
        let c = early.unwrap_or_else(|| s.pair_nb());
        say!("waits", way, child.waits(ep), s.b_send(c, "abc"), s.mask(c.a));
        child.begins(&format!("await {ep}"));
        std::thread::sleep(std::time::Duration::from_millis(30));
        add(ep, c, IN | how);
        say!("put in", child.answer());
        say!("taken out", calls::epoll_ctl(ep, libc::EPOLL_CTL_DEL, c.a, 0, 0), child.waits(ep));
        add(ep, c, RDHUP | how);
        child.begins(&format!("await {ep}"));
        std::thread::sleep(std::time::Duration::from_millis(30));
        let anew = |events| calls::epoll_ctl(ep, libc::EPOLL_CTL_MOD, c.a, events | how, 9);
        say!("asked anew", anew(IN), child.answer());
        say!("of the end", anew(RDHUP), child.waits(ep));
        child.begins(&format!("await {ep}"));
        std::thread::sleep(std::time::Duration::from_millis(30));
        say!("of room", anew(OUT), child.answer());
        say!("ended", child.ends(), calls::close(ep), calls::close(c.a), s.b_close(c));
    }
}

/// One that is armed once is not lost to who begins to wait after that, and is told of something else first.
pub fn armed_once_and_told_of_something_else(s: &mut Stage) {
    for holds in [true, false] {
        let ep = set();
        let early = holds.then(|| s.pair_nb());
        let mut child = Second::new();
        let c = early.unwrap_or_else(|| s.pair_nb());
        fill(c.a);
        add(ep, c, OUT | ONESHOT);
        say!("nothing", holds, child.waits(ep));
        child.begins(&format!("await {ep}"));
        say!("bytes", s.b_send(c, "abc"));
        let _ = s.b(&format!("drain {}", c.b));
        let mut all = [calls::epoll_wait(ep, 4, LONG).show(), child.answer()];
        all.sort();
        say!("room", s.mask(c.a), all.join(" "));
        say!("ended", child.ends(), calls::close(ep), calls::close(c.a), s.b_close(c));
    }
}
