//! Random programs of socket calls: the same seed makes the same program, whatever carries it.
//!
//! A program is a list of steps; a step is an order that one of the two ends performs while the
//! other rests. After each step both ends come to rest and say what they see. What TCP does not
//! promise is kept out by construction: no step sends more than fits, and steps that move much
//! record only that it arrived.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDHUP};

use crate::calls::{self, Bytes, Forked, Ret};
use crate::show::{HASH_START, Show, errno_name, hash_on, stream_bytes};

/// A small generator of random numbers (SplitMix64): the same everywhere, for ever.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995_9d1b_54a5)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub const fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A number below `n`, as a small one.
    #[must_use]
    pub fn below32(&mut self, n: u32) -> u32 {
        u32::try_from(self.below(u64::from(n))).unwrap_or(0)
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let n = self.below(from.len() as u64);
        &from[usize::try_from(n).unwrap_or(0)]
    }

    /// Whether a thing happens that happens once in `n`.
    pub const fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A step: who does what.
#[derive(Clone, Debug)]
pub struct Step {
    /// 0: ours; 1: the peer.
    pub end: usize,
    /// What [`End::perform`] understands.
    pub order: String,
    /// Bytes that wait at each end afterwards, if all is well: settling waits for them.
    pub queued: [u64; 2],
    /// Whether `queued` can be believed.
    pub exact: bool,
}

/// What the generator thinks of a connection.
struct Plan {
    random: Random,
    steps: Vec<Step>,
    /// Bytes sent by each end so far, and bytes that wait at each end.
    sent: [u64; 2],
    queued: [u64; 2],
    closed: [bool; 2],
    shut: [bool; 2],
    exact: bool,
}

/// Most bytes that may wait at one end: fits the smallest buffers of either transport.
const QUEUED_MAX: u64 = 12_000;

const SEND_STYLES: &[&str] = &[
    "send", "send", "send", "write", "write", "writev", "sendmsg", "sendmmsg", "sendto",
    "pwritev2", "sendfile", "splice", "more",
];
const RECV_STYLES: &[&str] = &[
    "recv", "recv", "recv", "read", "read", "readv", "recvmsg", "recvmmsg", "recvfrom", "preadv2",
    "splice", "waitall", "trunc",
];

impl Plan {
    fn push(&mut self, end: usize, order: String) {
        self.steps.push(Step { end, order, queued: self.queued, exact: self.exact });
    }

    fn len(&mut self) -> u64 {
        match self.random.below(10) {
            0 => 1,
            1..5 => 1 + self.random.below(64),
            5..8 => 1 + self.random.below(1000),
            _ => 1 + self.random.below(5000),
        }
    }

    fn send(&mut self, end: usize) {
        let room = QUEUED_MAX.saturating_sub(self.queued[1 - end]);
        let len = self.len().min(room);
        if len == 0 {
            return self.receive(1 - end);
        }
        let mut style = *self.random.pick(SEND_STYLES);
        // These change how the connection is carried: rare, so that both ways are seen.
        if self.random.once_in(25) {
            style = *self.random.pick(&["dprintf", "syscall", "fork"]);
        }
        let at = self.sent[end];
        if !self.shut[end] && !self.closed[1 - end] {
            self.sent[end] += len;
            self.queued[1 - end] += len;
        }
        self.push(end, format!("send {style} {at} {len}"));
    }

    fn receive(&mut self, end: usize) {
        let len = self.len();
        let style = *self.random.pick(RECV_STYLES);
        if self.random.once_in(6) {
            self.push(end, format!("peek {len}"));
            return;
        }
        self.queued[end] -= len.min(self.queued[end]);
        self.push(end, format!("recv {style} {len}"));
    }

    fn readiness(&mut self, end: usize) {
        let order = match self.random.below(6) {
            0 => {
                let mut events = *self.random.pick(&[EPOLLIN, EPOLLIN | EPOLLOUT, EPOLLOUT, 0]);
                events |= *self.random.pick(&[0, 0, EPOLLET, EPOLLET, EPOLLONESHOT]);
                events |= *self.random.pick(&[0, EPOLLRDHUP]);
                format!("watch {} {}", events.cast_unsigned(), self.random.next() >> 8)
            }
            1 | 2 => "wait".to_owned(),
            3 => format!("poll {}", self.random.pick(&[1, 4, 5, 0x2001, 0])),
            4 => "select".to_owned(),
            _ => "queues".to_owned(),
        };
        self.push(end, order);
    }

    fn change(&mut self, end: usize) {
        let order = match self.random.below(9) {
            0 => "dup".to_owned(),
            1 => "fork".to_owned(),
            2 if self.random.once_in(3) => "pass".to_owned(),
            3 => format!("low {}", self.random.pick(&[1, 1, 4, 100])),
            4 => "error".to_owned(),
            5 => "fcntl".to_owned(),
            6 => format!("sndbuf {}", 20_000 + self.random.below(100_000)),
            7 if self.random.once_in(3) => {
                self.exact = false;
                format!("urgent {}", self.random.below(200))
            }
            _ => "nodelay".to_owned(),
        };
        self.push(end, order);
    }

    fn bulk(&mut self, end: usize) {
        let other = 1 - end;
        if !self.exact || self.shut[end] || self.closed[other] || self.shut[other] {
            return self.receive(end);
        }
        self.queued[other] = 0;
        self.push(other, "empty".to_owned());
        let len = 1 + self.random.below(600_000);
        let (at, chunk) = (self.sent[end], 1 + self.random.below(80_000));
        self.sent[end] += len;
        self.push(end, format!("bulk {at} {len} {chunk}"));
    }

    fn end_something(&mut self, end: usize) {
        let order = match self.random.below(10) {
            0..4 => {
                self.shut[end] = true;
                "shutdown 1"
            }
            4 => {
                self.exact = false;
                "shutdown 0"
            }
            5 => {
                self.exact = false;
                self.shut[end] = true;
                "shutdown 2"
            }
            6 | 7 => {
                self.closed[end] = true;
                "close"
            }
            _ => {
                self.closed[end] = true;
                "reset"
            }
        };
        if self.closed[end] {
            // Unread bytes make it a reset: what is queued for the other end may vanish.
            self.exact = false;
        }
        self.push(end, order.to_owned());
    }
}

/// The program of a seed.
#[must_use]
pub fn program(seed: u64) -> Vec<Step> {
    let mut plan = Plan {
        random: Random::new(seed),
        steps: Vec::new(),
        sent: [0; 2],
        queued: [0; 2],
        closed: [false; 2],
        shut: [false; 2],
        exact: true,
    };
    let length = 15 + plan.random.below(35);
    // Some programs end things early, and see what is left; some not at all before the end.
    let first_end = if plan.random.once_in(4) { 0 } else { length * 2 / 3 };
    for i in 0..length {
        let mut end = usize::from(plan.random.once_in(2));
        if plan.closed[end] {
            end = 1 - end;
        }
        if plan.closed[end] {
            break;
        }
        match plan.random.below(100) {
            0..34 => plan.send(end),
            34..64 => plan.receive(end),
            64..83 => plan.readiness(end),
            83..91 => plan.change(end),
            91..93 => plan.bulk(end),
            _ if i >= first_end => plan.end_something(end),
            _ => plan.receive(end),
        }
    }
    plan.steps
}

/// One end: a connection and an event set that watches it.
#[derive(Debug)]
pub struct End {
    fd: i32,
    set: i32,
    watched: bool,
    /// Whether the last registration was edge triggered.
    edge: bool,
    stream: u64,
}

impl End {
    /// Takes a connection over; `stream` says which bytes this end sends.
    ///
    /// # Panics
    ///
    /// When there is no room for an event set.
    #[must_use]
    pub fn new(fd: i32, stream: u64) -> Self {
        calls::set_nonblocking(fd, true).expect("a flag");
        Self {
            fd,
            set: calls::epoll_create().expect("an event set"),
            watched: false,
            edge: false,
            stream,
        }
    }

    /// What this end sees: its mask and how much it could read.
    #[must_use]
    pub fn sees(&self) -> String {
        if self.fd < 0 {
            return "closed".to_owned();
        }
        let all = libc::POLLIN | libc::POLLPRI | libc::POLLOUT | libc::POLLRDHUP;
        let queued = calls::ioctl_int(self.fd, libc::FIONREAD);
        format!("{} {}", calls::poll(self.fd, all, 0).show(), queued.show())
    }

    /// Performs an order: what came of it.
    ///
    /// # Panics
    ///
    /// When the order is not one that the generator makes.
    pub fn perform(&mut self, order: &str) -> String {
        if self.fd < 0 {
            return "closed".to_owned();
        }
        let words: Vec<&str> = order.split(' ').collect();
        let n = |i: usize| -> u64 {
            words.get(i).and_then(|w| w.parse().ok()).unwrap_or_else(|| panic!("order {order}"))
        };
        let size = |i: usize| usize::try_from(n(i)).expect("a size");
        let int = |i: usize| i32::try_from(n(i)).expect("an int");
        match words[0] {
            "send" => self.send(words[1], &stream_bytes(self.stream, n(2), size(3))),
            "recv" => self.receive(words[1], size(2)),
            "peek" => hashed(&calls::recv(self.fd, size(1), libc::MSG_PEEK)),
            "watch" => {
                let events = u32::try_from(n(1)).expect("events").cast_signed();
                self.edge = events & EPOLLET != 0;
                self.watch(events, n(2))
            }
            "wait" => {
                let mut events = calls::epoll_wait(self.set, 4, 0);
                if let (true, Ok(events)) = (self.edge, &mut events) {
                    // Acknowledgements give TCP edges for OUT at moments that nobody promises.
                    const OUT: u32 = EPOLLOUT.cast_unsigned();
                    events.retain(|(mask, _)| *mask != OUT);
                }
                events.show()
            }
            "poll" => calls::poll(self.fd, i16::try_from(n(1)).expect("events"), 0).show(),
            "select" => {
                let one = [self.fd];
                calls::select(&one, &one, &one, Some(Duration::ZERO), None).show()
            }
            "queues" => {
                let ask = |request| calls::ioctl_int(self.fd, request).show();
                format!("{} {}", ask(libc::FIONREAD), ask(0x8905))
            }
            "dup" => self.replace(calls::dup(self.fd)),
            "fork" => match calls::fork() {
                Forked::Child => calls::exit_now(7),
                Forked::Parent(pid) => calls::wait(pid).show(),
            },
            "pass" => self.pass(),
            "low" => calls::setsockopt(self.fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, int(1)).show(),
            "error" => calls::getsockopt(self.fd, libc::SOL_SOCKET, libc::SO_ERROR).show(),
            "fcntl" => calls::fcntl(self.fd, libc::F_GETFL, 0).show(),
            "sndbuf" => {
                calls::setsockopt(self.fd, libc::SOL_SOCKET, libc::SO_SNDBUF, int(1)).show()
            }
            "nodelay" => calls::setsockopt(self.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).show(),
            "urgent" => {
                let text = vec![b'u'; size(1) + 1];
                calls::send(self.fd, &text, libc::MSG_OOB | libc::MSG_NOSIGNAL).show()
            }
            "empty" => self.empty(),
            "bulk" => self.bulk(n(1), size(2), size(3)),
            "take" => self.take(n(1), size(2), n(3)),
            "shutdown" => calls::shutdown(self.fd, int(1)).show(),
            "close" => self.close(),
            "reset" => {
                let _ = calls::set_linger(self.fd, 1, 0);
                self.close()
            }
            _ => panic!("order {order}"),
        }
    }

    fn close(&mut self) -> String {
        let got = calls::close(self.fd);
        self.fd = -1;
        got.show()
    }

    fn replace(&mut self, new: Result<i32, i32>) -> String {
        match new {
            Ok(fd) => {
                let closed = calls::close(self.fd);
                self.fd = fd;
                closed.show()
            }
            Err(e) => errno_name(e),
        }
    }

    /// Passes the connection to ourselves.
    fn pass(&mut self) -> String {
        let taken = calls::socketpair().and_then(|[one, two]| {
            calls::send_fd(one, self.fd)?;
            let fd = calls::recv_fd(two);
            calls::close(one)?;
            calls::close(two)?;
            fd
        });
        self.replace(taken)
    }

    fn watch(&mut self, events: i32, data: u64) -> String {
        let op = if self.watched { EPOLL_CTL_MOD } else { EPOLL_CTL_ADD };
        let got = calls::epoll_ctl(self.set, op, self.fd, events, data);
        self.watched |= got.is_ok();
        got.show()
    }

    fn send(&self, style: &str, bytes: &[u8]) -> String {
        let (fd, quiet) = (self.fd, libc::MSG_NOSIGNAL);
        let (left, right) = bytes.split_at(bytes.len() / 3);
        let got: Ret = match style {
            "send" => calls::send(fd, bytes, quiet),
            "write" => calls::write(fd, bytes),
            "writev" => calls::writev(fd, &[left, &[], right]),
            "sendmsg" => calls::sendmsg(fd, &[left, right], quiet),
            "sendmmsg" => calls::sendmmsg(fd, &[left, right], quiet)
                .map(|each| each.iter().map(|n| *n as usize).sum()),
            "sendto" => calls::sendto(fd, bytes, 9),
            "pwritev2" => calls::pwritev2(fd, &[left, right], -1, 0),
            "more" => calls::send(fd, left, quiet | libc::MSG_MORE)
                .and_then(|n| Ok(n + calls::send(fd, right, quiet)?)),
            "syscall" => calls::syscall_write(fd, bytes),
            "dprintf" => calls::dprintf(fd, &"d".repeat(bytes.len())),
            "sendfile" => calls::memfd(bytes).and_then(|file| {
                let got = calls::sendfile(fd, file, None, bytes.len());
                calls::close(file)?;
                got
            }),
            "splice" => splice_out(fd, bytes),
            "fork" => match calls::fork() {
                Forked::Child => {
                    let sent = calls::send(fd, bytes, quiet);
                    calls::exit_now(i32::from(sent != Ok(bytes.len())));
                }
                Forked::Parent(pid) => calls::wait(pid),
            },
            _ => panic!("send style {style}"),
        };
        got.show()
    }

    fn receive(&self, style: &str, len: usize) -> String {
        let fd = self.fd;
        let parts = [len / 3, len - len / 3];
        let got: Bytes = match style {
            "recv" => calls::recv(fd, len, 0),
            "read" => calls::read(fd, len),
            "readv" => calls::readv(fd, &parts),
            "recvmsg" => calls::recvmsg(fd, &parts, 0).0,
            "recvfrom" => calls::recvfrom(fd, len, 0).0,
            "preadv2" => calls::preadv2(fd, &parts, -1, 0),
            "waitall" => calls::recv(fd, len, libc::MSG_WAITALL | libc::MSG_DONTWAIT),
            "recvmmsg" => {
                calls::recvmmsg(fd, &parts, libc::MSG_DONTWAIT, None).map(|all| all.concat())
            }
            "trunc" => return calls::recv_nowhere(fd, len, libc::MSG_TRUNC).show(),
            "splice" => splice_in(fd, len),
            _ => panic!("receive style {style}"),
        };
        hashed(&got)
    }

    /// Receives all that is there: how much, and how it ended.
    fn empty(&self) -> String {
        let (mut total, mut hash) = (0, HASH_START);
        loop {
            match calls::recv(self.fd, 64 << 10, libc::MSG_DONTWAIT) {
                Ok(bytes) if bytes.is_empty() => return format!("{total}:{hash:x} end"),
                Ok(bytes) => {
                    total += bytes.len();
                    hash = hash_on(hash, &bytes);
                }
                Err(e) => return format!("{total}:{hash:x} {}", errno_name(e)),
            }
        }
    }

    /// Sends much, waiting for room; the other end takes it at the same time.
    fn bulk(&self, at: u64, len: usize, chunk: usize) -> String {
        let mut sent = 0;
        while sent < len {
            let part = stream_bytes(self.stream, at + sent as u64, chunk.min(len - sent));
            match calls::send(self.fd, &part, libc::MSG_NOSIGNAL) {
                Ok(n) => sent += n,
                Err(libc::EAGAIN) => match calls::poll(self.fd, libc::POLLOUT, 10_000) {
                    Ok(0) => return format!("no room for 10 s after {sent}"),
                    Ok(_) => {}
                    Err(e) => return errno_name(e),
                },
                Err(e) => return errno_name(e),
            }
        }
        "all".to_owned()
    }

    /// The other half of [`Self::bulk`]: takes bytes and compares them with the stream they are of.
    fn take(&self, at: u64, len: usize, stream: u64) -> String {
        let mut taken = 0;
        while taken < len {
            match calls::recv(self.fd, (len - taken).min(100_000), 0) {
                Ok(bytes) if bytes.is_empty() => return format!("end after {taken}"),
                Ok(bytes) => {
                    if bytes != stream_bytes(stream, at + taken as u64, bytes.len()) {
                        return format!("wrong bytes after {taken}");
                    }
                    taken += bytes.len();
                }
                Err(libc::EAGAIN) => match calls::poll(self.fd, libc::POLLIN, 10_000) {
                    Ok(0) => return format!("nothing for 10 s after {taken}"),
                    Ok(_) => {}
                    Err(e) => return errno_name(e),
                },
                Err(e) => return errno_name(e),
            }
        }
        "all".to_owned()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let _ = calls::close(self.set);
        if self.fd >= 0 {
            let _ = calls::close(self.fd);
        }
    }
}

fn hashed(got: &Bytes) -> String {
    match got {
        Ok(bytes) => format!("{}:{:x}", bytes.len(), hash_on(HASH_START, bytes)),
        Err(e) => errno_name(*e),
    }
}

/// Through a pipe, in as many calls as the pipe needs.
fn splice_out(fd: i32, bytes: &[u8]) -> Ret {
    let [r, w] = calls::pipe(libc::O_NONBLOCK)?;
    calls::write(w, bytes)?;
    let mut sent = 0;
    let got = loop {
        match calls::splice(r, fd, bytes.len() - sent, 0) {
            Ok(n) => {
                sent += n;
                if n == 0 || sent == bytes.len() {
                    break Ok(sent);
                }
            }
            Err(e) => break Err(e),
        }
    };
    calls::close(r)?;
    calls::close(w)?;
    got
}

/// Through a pipe, in as many calls as there are pieces.
fn splice_in(fd: i32, len: usize) -> Bytes {
    let [r, w] = calls::pipe(libc::O_NONBLOCK)?;
    let mut bytes = Vec::new();
    let got = loop {
        match calls::splice(fd, w, len - bytes.len(), libc::SPLICE_F_NONBLOCK) {
            Ok(n) => {
                if n > 0 {
                    bytes.extend(calls::read(r, n)?);
                }
                if n == 0 || bytes.len() == len {
                    break Ok(());
                }
            }
            Err(_) if !bytes.is_empty() => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    calls::close(r)?;
    calls::close(w)?;
    got.map(|()| bytes)
}

/// Serves one end for the other process: `start FD STREAM`, `sees`, then orders.
#[must_use]
pub fn serve_order(end: &mut Option<End>, order: &str) -> String {
    if let Some(rest) = order.strip_prefix("start ") {
        let (fd, stream) = rest.split_once(' ').expect("start FD STREAM");
        *end = Some(End::new(fd.parse().expect("a number"), stream.parse().expect("a number")));
        return "ok".to_owned();
    }
    if order == "finish" {
        *end = None;
        return "ok".to_owned();
    }
    match (end, order) {
        (Some(end), "sees") => end.sees(),
        (Some(end), order) => end.perform(order),
        (None, _) => "no connection".to_owned(),
    }
}

/// Runs the program of a seed over a connection: the lines of its results.
pub fn run(stage: &mut crate::stage::Stage, seed: u64) -> String {
    let warm = !seed.is_multiple_of(3);
    let c = if warm { stage.warm_pair(8) } else { stage.fresh_pair() };
    let mut ours = End::new(c.a, seed * 2);
    let _ = stage.b(&format!("end start {} {}", c.b, seed * 2 + 1));
    let mut out = format!("seed {seed}\n");
    for (i, step) in program(seed).iter().enumerate() {
        let got = if step.order.starts_with("bulk ") {
            bulk(stage, &mut ours, step, seed)
        } else if step.end == 0 {
            ours.perform(&step.order)
        } else {
            stage.b(&format!("end {}", step.order))
        };
        let (a, b) = settle(stage, &ours, step);
        let who = if step.end == 0 { "A" } else { "B" };
        let _ = writeln!(out, "{i} {who} {} = {got} | A {a} | B {b}", step.order);
    }
    drop(ours);
    let _ = stage.b("end finish");
    out
}

/// Both ends at once: one sends, the other takes.
fn bulk(stage: &mut crate::stage::Stage, ours: &mut End, step: &Step, seed: u64) -> String {
    let words: Vec<&str> = step.order.split(' ').collect();
    let take = format!("take {} {} {}", words[1], words[2], seed * 2 + step.end as u64);
    let (here, there) = if step.end == 0 { (&step.order, &take) } else { (&take, &step.order) };
    stage.tell(&format!("end {there}"));
    let local = ours.perform(here);
    let remote = stage.answer();
    if step.end == 0 { format!("{local} {remote}") } else { format!("{remote} {local}") }
}

/// What Linux waits at most before it acknowledges (`TCP_DELACK_MAX`), and a little.
const DELAYED_ACK_MS: u64 = 240;

/// Whether one end has no room for more though the other has read everything: of TCP, an acknowledgement is on its way.
/// How long it takes depends on what else the machine does, and what is seen meanwhile is no property of the program.
fn delays_an_ack(full: &str, read: &str) -> bool {
    full != "closed" && !full.contains("OUT") && read.ends_with(" 0")
}

/// Waits until neither end changes any more.
fn settle(stage: &mut crate::stage::Stage, ours: &End, step: &Step) -> (String, String) {
    let start = Instant::now();
    let mut last = (String::new(), String::new());
    loop {
        let now = (ours.sees(), stage.b("end sees"));
        let arrived = |sees: &str, queued: u64| sees.ends_with(&format!(" {queued}"));
        let whole =
            !step.exact || arrived(&now.0, step.queued[0]) && arrived(&now.1, step.queued[1]);
        let acknowledged = !delays_an_ack(&now.0, &now.1) && !delays_an_ack(&now.1, &now.0);
        let patience = Duration::from_millis(match (acknowledged, whole) {
            (false, _) => DELAYED_ACK_MS,
            (true, false) => 60,
            (true, true) => 0,
        });
        if now == last && start.elapsed() >= patience {
            return now;
        }
        last = now;
        std::thread::sleep(Duration::from_micros(600));
    }
}

/// What the peer's answers mean to a reader of a failure.
#[must_use]
pub fn explain(seed: u64) -> String {
    let warm = if seed.is_multiple_of(3) { "fresh" } else { "warm" };
    format!("seed {seed}: {} steps on a {warm} connection", program(seed).len())
}
