//! Short connections, one after the other, in each style of I/O: programs that make the same system calls for each of
//! them, however fast the other end is, so that these can be counted.

use std::time::Duration;

use crate::calls;
use crate::load::{Style, listener};

/// What goes each way on a connection.
const BYTES: usize = 100;
/// Connections before the first mark (a system call that nobody else makes): what a program does once is done by then.
pub const FIRST: usize = 40;
/// Connections between both marks.
pub const COUNTED: usize = 50;

/// A system call that is made for nothing else, and by nobody else: whoever counts calls begins and ends there.
pub(crate) fn mark() {
    let _ = calls::parent_id();
}

/// How one end waits before a call that would block; blocking ends do not.
pub(crate) struct Waiter {
    style: Style,
    set: i32,
}

impl Waiter {
    fn new(style: Style) -> Self {
        Self { style, set: calls::epoll_create().expect("an event set") }
    }

    /// For one connection and its reader only.
    pub(crate) fn for_one(style: Style, fd: i32) -> Self {
        let waiter = Self::new(style);
        if style != Style::Blocking {
            calls::set_nonblocking(fd, true).expect("a flag");
        }
        waiter.add(fd, libc::EPOLLIN);
        waiter
    }

    const fn flags(&self) -> i32 {
        if matches!(self.style, Style::Blocking) { 0 } else { libc::SOCK_NONBLOCK }
    }

    const fn uses_set(&self) -> bool {
        matches!(self.style, Style::Level | Style::Edge)
    }

    fn control(&self, op: i32, fd: i32, events: i32) {
        if self.uses_set() {
            let edge = if self.style == Style::Edge { libc::EPOLLET } else { 0 };
            calls::epoll_ctl(self.set, op, fd, events | edge, 1).expect("registered");
        }
    }

    fn add(&self, fd: i32, events: i32) {
        self.control(libc::EPOLL_CTL_ADD, fd, events);
    }

    fn change(&self, fd: i32, events: i32) {
        self.control(libc::EPOLL_CTL_MOD, fd, events);
    }

    /// Whether something happens in the event set within so many milliseconds.
    pub(crate) fn has_event(&self, ms: i32) -> bool {
        !calls::epoll_wait(self.set, 8, ms).expect("events").is_empty()
    }

    /// Waits until `fd` is ready for that.
    pub(crate) fn wait(&self, fd: i32, events: i16) {
        const MS: i32 = 30_000;
        match self.style {
            Style::Blocking => {}
            Style::Poll => assert_ne!(calls::poll(fd, events, MS).expect("polled"), 0, "no event"),
            Style::Select => {
                let on = |bit| if events & bit == 0 { Vec::new() } else { vec![fd] };
                let limit = Some(Duration::from_secs(30));
                let got = calls::select(&on(libc::POLLIN), &on(libc::POLLOUT), &[], limit, None);
                let got = got.expect("selected");
                assert!(!got.read.is_empty() || !got.write.is_empty(), "no event");
            }
            Style::Level | Style::Edge => {
                let events = calls::epoll_wait(self.set, 8, MS).expect("events");
                assert_eq!(events.len(), 1, "one connection at a time");
            }
        }
    }
}

/// Answers as many connections as are counted, and ends.
///
/// # Panics
///
/// When a call fails.
pub fn serve(style: Style) {
    let waiter = Waiter::new(style);
    let (listener, port) = listener();
    if style != Style::Blocking {
        calls::set_nonblocking(listener, true).expect("a flag");
    }
    if waiter.uses_set() {
        let add = libc::EPOLL_CTL_ADD;
        calls::epoll_ctl(waiter.set, add, listener, libc::EPOLLIN, 0).expect("added");
    }
    println!("port {port}");
    for nth in 0..FIRST + COUNTED {
        if nth == FIRST {
            mark();
        }
        waiter.wait(listener, libc::POLLIN);
        let fd = calls::accept(listener, waiter.flags()).expect("a connection");
        waiter.add(fd, libc::EPOLLIN);
        waiter.wait(fd, libc::POLLIN);
        let request = calls::recv(fd, 2 * BYTES, 0).expect("a request");
        assert_eq!(request, [1; BYTES]);
        assert_eq!(calls::send(fd, &[2; BYTES], libc::MSG_NOSIGNAL), Ok(BYTES));
        // Some event loops do, and some leave it to the kernel.
        if style == Style::Edge {
            waiter.control(libc::EPOLL_CTL_DEL, fd, 0);
        }
        calls::close(fd).expect("closed");
    }
    mark();
}

/// Makes as many connections to this port, and ends.
///
/// # Panics
///
/// When a call fails.
pub fn ask(port: u16, style: Style) {
    let waiter = Waiter::new(style);
    for nth in 0..FIRST + COUNTED {
        if nth == FIRST {
            mark();
        }
        let fd = calls::socket(waiter.flags()).expect("a socket");
        match calls::connect(fd, port) {
            Ok(_) | Err(libc::EINPROGRESS) => {}
            Err(e) => panic!("connect: {}", crate::show::errno_name(e)),
        }
        waiter.add(fd, libc::EPOLLOUT);
        waiter.wait(fd, libc::POLLOUT);
        waiter.change(fd, libc::EPOLLIN);
        assert_eq!(calls::send(fd, &[1; BYTES], libc::MSG_NOSIGNAL), Ok(BYTES));
        waiter.wait(fd, libc::POLLIN);
        let answer = calls::recv(fd, BYTES, 0).expect("an answer");
        assert_eq!(answer, [2; BYTES]);
        calls::close(fd).expect("closed");
    }
    mark();
}
