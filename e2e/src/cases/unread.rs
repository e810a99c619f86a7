//! A peer that has sent much before we look, and an end that does not read on while it cannot write: what was sent by TCP
//! lies in the socket and closes its window, and the peer's word that there is room, or its end, comes behind that.

use std::thread;
use std::time::{Duration, Instant};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLOUT, POLLIN, POLLOUT};

use crate::calls::{self, Forked};
use crate::say;
use crate::show::errno_name;
use crate::stage::{Conn, Stage};

/// More than two rings hold.
const MUCH: usize = 1_500_000;
/// How long a wait may last that is to end by itself, milliseconds.
const LONG: i32 = 12_000;
/// More than a set looks at all of.
const MANY: usize = 560;
/// The data of the connection that is echoed in a set; others have smaller ones.
const ECHOED: u64 = 1 << 20;

/// By what we wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Level(i32),
    Edge(i32),
    Poll,
    Select,
    Blocking,
}

/// Sends back what comes, 64 KiB at a time. Answers how much, and how that has ended.
struct Echo<'a> {
    fd: i32,
    way: Way,
    others: &'a [Conn],
    total: usize,
}

impl Echo<'_> {
    fn runs(&mut self) -> String {
        loop {
            let bytes = match calls::recv(self.fd, 64 << 10, 0) {
                Ok(bytes) if bytes.is_empty() => return "the end".to_owned(),
                Ok(bytes) => bytes,
                Err(libc::EAGAIN) if self.waits(false) => continue,
                Err(errno) => return Self::ended(errno),
            };
            let mut at = 0;
            while at < bytes.len() {
                match calls::send(self.fd, &bytes[at..], libc::MSG_NOSIGNAL) {
                    Ok(n) => at += n,
                    Err(libc::EAGAIN) if self.waits(true) => {}
                    Err(errno) => return Self::ended(errno),
                }
            }
            self.total += bytes.len();
        }
    }

    fn ended(errno: i32) -> String {
        if errno == libc::EAGAIN { "waited in vain".to_owned() } else { errno_name(errno) }
    }

    /// `false`: in vain, or for so long that it may have been the end of the wait which has found something.
    fn waits(&self, room: bool) -> bool {
        let start = Instant::now();
        self.waits_for(room) && start.elapsed() < Duration::from_millis(LONG.unsigned_abs().into())
    }

    fn waits_for(&self, room: bool) -> bool {
        match self.way {
            Way::Level(ep) => {
                let events = if room { EPOLLOUT } else { EPOLLIN };
                calls::epoll_ctl(ep, EPOLL_CTL_MOD, self.fd, events, ECHOED).expect("changed");
                self.is_told(ep)
            }
            Way::Edge(ep) => self.is_told(ep),
            Way::Poll => {
                let events = if room { POLLOUT } else { POLLIN };
                calls::poll(self.fd, events, LONG).is_ok_and(|bits| bits != 0)
            }
            Way::Select => {
                let (read, write) =
                    if room { (vec![], vec![self.fd]) } else { (vec![self.fd], vec![]) };
                let limit = Duration::from_millis(LONG.unsigned_abs().into());
                calls::select(&read, &write, &[], Some(limit), None).is_ok_and(|got| got.count > 0)
            }
            Way::Blocking => false,
        }
    }

    fn is_told(&self, ep: i32) -> bool {
        loop {
            let Ok(told) = calls::epoll_wait(ep, 64, LONG) else { return false };
            for (_, data) in &told {
                if let Some(other) = usize::try_from(*data).ok().and_then(|n| self.others.get(n)) {
                    let _ = calls::recv(other.a, 9, libc::MSG_DONTWAIT);
                }
            }
            if told.is_empty() || told.iter().any(|(_, data)| *data == ECHOED) {
                return !told.is_empty();
            }
        }
    }
}

/// A connection by which the peer has sent as much as there was room for; and how much.
fn poured(s: &mut Stage) -> (Conn, String) {
    let c = s.fresh_pair();
    // It does not grow when it was asked for, and so does not take all of it.
    calls::setsockopt(c.a, libc::SOL_SOCKET, libc::SO_RCVBUF, 32 << 10).expect("an option");
    let sent = s.b(&format!("pours {} {MUCH} 7", c.b));
    (c, sent)
}

/// Where the peer has accepted it, the connection itself may stay on TCP: it need not be what is compared then.
fn attached_beside(s: &mut Stage) {
    let c = s.pair();
    let _ = (s.b_close(c), calls::close(c.a));
}

fn watched(c: Conn, edge: bool) -> Way {
    let ep = calls::epoll_create().expect("a set");
    let events = if edge { EPOLLIN | EPOLLOUT | EPOLLET } else { EPOLLIN };
    calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, events, ECHOED).expect("added");
    if edge { Way::Edge(ep) } else { Way::Level(ep) }
}

/// A peer that goes on to send and to receive, until it has all.
fn echoes(s: &mut Stage, way: impl Fn(Conn) -> Way) {
    let (c, sent) = poured(s);
    let way = way(c);
    calls::set_nonblocking(c.a, way != Way::Blocking).expect("a flag");
    s.tell(&format!("awaits {} {MUCH} 7 {sent} all", c.b));
    let mut echo = Echo { fd: c.a, way, others: &[], total: 0 };
    say!("echoed", echo.runs(), echo.total, s.answer());
}

/// By a set, level-triggered.
pub fn unread_level(s: &mut Stage) {
    echoes(s, |c| watched(c, false));
}

/// By a set, edge-triggered.
pub fn unread_edge(s: &mut Stage) {
    echoes(s, |c| watched(c, true));
}

/// By `poll`.
pub fn unread_poll(s: &mut Stage) {
    echoes(s, |_| Way::Poll);
}

/// By `select`.
pub fn unread_select(s: &mut Stage) {
    echoes(s, |_| Way::Select);
}

/// By sends that wait.
pub fn unread_blocking(s: &mut Stage) {
    echoes(s, |_| Way::Blocking);
}

/// To wait for room takes no time of the CPU's, whatever is unread.
pub fn unread_is_no_reason_to_wake(s: &mut Stage) {
    attached_beside(s);
    let (c, _) = poured(s);
    calls::set_nonblocking(c.a, true).expect("a flag");
    let block = vec![b'.'; 64 << 10];
    let ep = calls::epoll_create().expect("a set");
    say!("some", calls::recv(c.a, 3, 0).map(|bytes| bytes.len()));
    let _ = Stage::fill(c.a);
    while calls::send(c.a, &block, 0).is_ok() {}
    calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLOUT, 1).expect("added");
    let idle = |label, wait: &dyn Fn() -> String| {
        let before = calls::cpu_time();
        let got = wait();
        say!(label, got, calls::cpu_time() - before < Duration::from_millis(400));
    };
    let second = Duration::from_secs(1);
    idle("poll", &|| format!("{:?}", calls::poll(c.a, POLLOUT, 1000)));
    idle("for its end", &|| format!("{:?}", calls::poll(c.a, libc::POLLRDHUP, 1000)));
    idle("select", &|| {
        format!("{:?}", calls::select(&[], &[c.a], &[], Some(second), None).map(|got| got.count))
    });
    idle("epoll", &|| format!("{:?}", calls::epoll_wait(ep, 4, 1000)));
}

/// Beside so many that some are the kernel's to wake, and that are in use.
pub fn unread_among_many(s: &mut Stage) {
    calls::raise_descriptor_limit().expect("a limit");
    let others: Vec<Conn> = (0..MANY).map(|_| s.warm_pair(4)).collect();
    let (c, sent) = poured(s);
    let way = watched(c, true);
    let Way::Edge(ep) = way else { unreachable!("as asked for") };
    for (data, other) in others.iter().enumerate() {
        calls::epoll_ctl(ep, EPOLL_CTL_ADD, other.a, EPOLLIN, data as u64).expect("added");
    }
    calls::set_nonblocking(c.a, true).expect("a flag");
    let numbers: Vec<String> = others.iter().map(|other| other.b.to_string()).collect();
    s.tell(&format!("pings {}", numbers.join(" ")));
    s.tell(&format!("awaits {} {MUCH} 7 {sent} all", c.b));
    let mut echo = Echo { fd: c.a, way, others: &others, total: 0 };
    let ended = echo.runs();
    say!("pinged", s.answer());
    say!("echoed", ended, echo.total, s.answer());
}

/// In a set that a child has, too.
pub fn unread_in_a_shared_set(s: &mut Stage) {
    attached_beside(s);
    for edge in [false, true] {
        let (c, sent) = poured(s);
        calls::set_nonblocking(c.a, true).expect("a flag");
        // Attached before the fork, if it can be.
        let first = calls::recv(c.a, 1, 0).expect("a byte");
        say!("first", calls::send(c.a, &first, 0));
        let way = watched(c, edge);
        let (Way::Edge(ep) | Way::Level(ep)) = way else { unreachable!("as asked for") };
        let [ours, theirs] = calls::socketpair().expect("a pair");
        let child = match calls::fork() {
            Forked::Child => {
                let _ = calls::close(c.a);
                let _ = calls::epoll_wait(ep, 4, 0);
                let _ = calls::write(theirs, b"!");
                let _ = calls::read(theirs, 1);
                calls::exit_now(0);
            }
            Forked::Parent(pid) => pid,
        };
        say!("child", calls::read(ours, 1));
        s.tell(&format!("awaits {} {MUCH} 7 {sent} all", c.b));
        let mut echo = Echo { fd: c.a, way, others: &[], total: 1 };
        say!("echoed", echo.runs(), echo.total, s.answer());
        say!("child", calls::write(ours, b"!"), calls::wait(child));
        let _ = (calls::close(ours), calls::close(theirs), calls::close(ep), calls::close(c.a));
    }
}

/// Each way in turn.
fn each_way(s: &mut Stage, mut with: impl FnMut(&mut Stage, Conn, Way, String)) {
    for way in 0..5 {
        let (c, sent) = poured(s);
        let way = match way {
            0 => watched(c, false),
            1 => watched(c, true),
            2 => Way::Poll,
            3 => Way::Select,
            _ => Way::Blocking,
        };
        calls::set_nonblocking(c.a, way != Way::Blocking).expect("a flag");
        with(s, c, way, sent);
    }
}

/// A peer that reads what there is, and closes in order. How much that is is another matter.
pub fn unread_and_closed(s: &mut Stage) {
    each_way(s, |s, c, way, sent| {
        s.tell(&format!("awaits {} {MUCH} 7 {sent} some", c.b));
        let mut echo = Echo { fd: c.a, way, others: &[], total: 0 };
        say!("over", echo.runs() != "waited in vain", s.answer());
    });
}

/// A peer that is killed.
fn killed(s: &mut Stage, way: impl Fn(Conn) -> Way) {
    let (c, sent) = poured(s);
    let way = way(c);
    calls::set_nonblocking(c.a, way != Way::Blocking).expect("a flag");
    s.tell(&format!("awaits {} {MUCH} 7 {sent} nothing", c.b));
    let pid = s.peer_pid();
    let killer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(900));
        calls::kill(pid, libc::SIGKILL)
    });
    let mut echo = Echo { fd: c.a, way, others: &[], total: 0 };
    say!("over", echo.runs(), killer.join().expect("no panic"));
}

/// The peer is killed: by a set, level-triggered.
pub fn unread_and_killed_level(s: &mut Stage) {
    killed(s, |c| watched(c, false));
}

/// The same, edge-triggered.
pub fn unread_and_killed_edge(s: &mut Stage) {
    killed(s, |c| watched(c, true));
}

/// By `poll`.
pub fn unread_and_killed_poll(s: &mut Stage) {
    killed(s, |_| Way::Poll);
}

/// By `select`.
pub fn unread_and_killed_select(s: &mut Stage) {
    killed(s, |_| Way::Select);
}

/// By a send that waits.
pub fn unread_and_killed_blocking(s: &mut Stage) {
    killed(s, |_| Way::Blocking);
}
