//! Load for the life-cycle tests: streams that can be checked byte by byte, in each style of I/O
//! that programs use, and servers for them.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::calls::{self, Ret};
use crate::differential::Random;
use crate::show::errno_name;

/// A prime, so that no shift by a block or page goes unnoticed.
const PERIOD: usize = 1_000_003;

/// A stream whose every byte is known.
#[derive(Clone, Debug)]
pub struct Stream {
    table: Vec<u8>,
}

impl Stream {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut table = Vec::with_capacity(PERIOD + 8);
        while table.len() < PERIOD {
            table.extend_from_slice(&random.next().to_le_bytes());
        }
        table.truncate(PERIOD);
        Self { table }
    }

    /// Bytes from `at` on, `len` at most.
    #[must_use]
    pub fn part(&self, at: u64, len: usize) -> &[u8] {
        let start = position(at);
        &self.table[start..PERIOD.min(start + len)]
    }

    /// The first of these bytes that is not the stream's from `at` on, as an index.
    #[must_use]
    pub fn differs(&self, at: u64, bytes: &[u8]) -> Option<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let want = self.part(at + done as u64, bytes.len() - done);
            let have = &bytes[done..done + want.len()];
            if want != have {
                return want.iter().zip(have).position(|(a, b)| a != b).map(|i| done + i);
            }
            done += want.len();
        }
        None
    }

    /// What came instead, for people: how far away in the stream it belongs.
    fn instead(&self, at: u64, bytes: &[u8]) -> String {
        let first = &bytes[..bytes.len().min(16)];
        let found = self.table.windows(first.len()).position(|w| w == first);
        let found = found.map_or_else(|| "nowhere".to_owned(), |i| format!("at {i}"));
        format!("{first:02x?}, {found} of {}", position(at))
    }
}

fn position(at: u64) -> usize {
    usize::try_from(at % PERIOD as u64).unwrap_or(0)
}

/// How a program waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Blocking calls, a thread for each direction.
    Blocking,
    /// `poll`.
    Poll,
    /// `select`.
    Select,
    /// Level-triggered `epoll`.
    Level,
    /// Edge-triggered `epoll`.
    Edge,
}

impl Style {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 5] = [
        ("blocking", Self::Blocking),
        ("poll", Self::Poll),
        ("select", Self::Select),
        ("level", Self::Level),
        ("edge", Self::Edge),
    ];

    /// By its name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(n, _)| *n == name).map(|(_, style)| *style)
    }
}

/// How a transfer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received, all of them right.
    pub received: u64,
    /// `done`, `end` (of the stream, too early), `wrong`, or an errno.
    pub status: String,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "sent={} received={} status={}", self.sent, self.received, self.status)
    }
}

/// One direction of a transfer.
struct Half {
    stream: Stream,
    at: u64,
    len: u64,
    random: Random,
    buffer: Vec<u8>,
}

/// Largest single read or write.
const CHUNK_MAX: u64 = 300_000;

impl Half {
    fn new(seed: u64, len: u64) -> Self {
        let buffer = vec![0; usize::try_from(CHUNK_MAX).unwrap_or(1 << 18)];
        Self { stream: Stream::new(seed), at: 0, len, random: Random::new(seed ^ 0xabcd), buffer }
    }

    const fn done(&self) -> bool {
        self.at >= self.len
    }

    fn chunk(&mut self) -> usize {
        let bound = *self.random.pick(&[10, 100, 1500, 20_000, CHUNK_MAX]);
        let chunk = 1 + self.random.below(bound);
        usize::try_from(chunk.min(self.len - self.at)).unwrap_or(1)
    }

    /// Sends once: an errno ends it.
    fn send(&mut self, fd: i32) -> Result<(), String> {
        let chunk = self.chunk();
        let sent = calls::send(fd, self.stream.part(self.at, chunk), libc::MSG_NOSIGNAL);
        self.at += sent.map_err(errno_name)? as u64;
        Ok(())
    }

    /// Receives once and compares.
    fn receive(&mut self, fd: i32) -> Result<(), String> {
        let chunk = self.chunk();
        let got = calls::recv_into(fd, &mut self.buffer[..chunk], 0).map_err(errno_name)?;
        if got == 0 {
            return Err("end".to_owned());
        }
        if let Some(i) = self.stream.differs(self.at, &self.buffer[..got]) {
            let what = self.stream.instead(self.at + i as u64, &self.buffer[i..got]);
            return Err(format!("wrong after {} ({i} of {got}): {what}", self.at + i as u64));
        }
        self.at += got as u64;
        Ok(())
    }
}

/// Goes on until the call would block, or is done.
fn exhaust(
    half: &mut Half,
    fd: i32,
    once: fn(&mut Half, i32) -> Result<(), String>,
    calls_max: usize,
) -> Result<(), String> {
    for _ in 0..calls_max {
        if half.done() {
            return Ok(());
        }
        match once(half, fd) {
            Err(e) if e == "EAGAIN" => return Ok(()),
            other => other?,
        }
    }
    Ok(())
}

/// Sends `len` bytes of stream `ours` and receives as many of stream `theirs`, at the same time.
///
/// # Panics
///
/// When a thread does.
#[must_use]
pub fn duplex(fd: i32, style: Style, ours: u64, theirs: u64, len: u64) -> Report {
    let (mut out, mut incoming) = (Half::new(ours, len), Half::new(theirs, len));
    let status = match style {
        Style::Blocking => {
            let _ = calls::set_nonblocking(fd, false);
            let sender = thread::spawn(move || {
                let mut status = Ok(());
                while !out.done() && status.is_ok() {
                    status = out.send(fd);
                }
                (out.at, status)
            });
            let mut status = Ok(());
            while !incoming.done() && status.is_ok() {
                status = incoming.receive(fd);
            }
            let (sent, sender_status) = sender.join().expect("no panic");
            let status = status.and(sender_status);
            return report(sent, &incoming, status);
        }
        _ => in_turns(fd, style, &mut out, &mut incoming),
    };
    report(out.at, &incoming, status)
}

fn report(sent: u64, incoming: &Half, status: Result<(), String>) -> Report {
    let status = status.err().unwrap_or_else(|| "done".to_owned());
    Report { sent, received: incoming.at, status }
}

fn in_turns(fd: i32, style: Style, out: &mut Half, incoming: &mut Half) -> Result<(), String> {
    calls::set_nonblocking(fd, true).map_err(errno_name)?;
    let set = calls::epoll_create().map_err(errno_name)?;
    let edge = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
    let first = if style == Style::Edge { edge } else { libc::EPOLLIN | libc::EPOLLOUT };
    calls::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, first, 1).map_err(errno_name)?;
    let mut watched = first;
    let mut status = Ok(());
    while status.is_ok() && !(out.done() && incoming.done()) {
        let wanted = events(!incoming.done(), !out.done());
        let ready = wait(fd, set, style, wanted, &mut watched);
        status = ready.and_then(|ready| {
            // An edge says "until it would block"; the others may stop after a few.
            let calls_max = if style == Style::Edge { usize::MAX } else { 4 };
            if ready & !libc::POLLOUT != 0 {
                exhaust(incoming, fd, Half::receive, calls_max)?;
            }
            if ready & libc::POLLOUT != 0 {
                exhaust(out, fd, Half::send, calls_max)?;
            }
            Ok(())
        });
    }
    let _ = calls::close(set);
    status
}

const fn events(readable: bool, writable: bool) -> i16 {
    (if readable { libc::POLLIN } else { 0 }) | (if writable { libc::POLLOUT } else { 0 })
}

/// Waits in its style, up to ten seconds: what is ready.
fn wait(fd: i32, set: i32, style: Style, wanted: i16, watched: &mut i32) -> Result<i16, String> {
    const MS: i32 = 10_000;
    let ready = match style {
        Style::Blocking | Style::Poll => calls::poll(fd, wanted, MS),
        Style::Select => {
            let on = |bit| if wanted & bit != 0 { vec![fd] } else { Vec::new() };
            let limit = Some(Duration::from_secs(10));
            calls::select(&on(libc::POLLIN), &on(libc::POLLOUT), &[], limit, None)
                .map(|got| events(!got.read.is_empty(), !got.write.is_empty()))
        }
        Style::Level | Style::Edge => {
            let events = i32::from(wanted);
            if style == Style::Level && *watched != events {
                *watched = events;
                let change = calls::epoll_ctl(set, libc::EPOLL_CTL_MOD, fd, events, 1);
                change.map_err(errno_name)?;
            }
            calls::epoll_wait(set, 4, MS)
                .map(|all| all.first().map_or(0, |(bits, _)| (bits & 0xff) as i16))
        }
    };
    match ready {
        Ok(0) => Err("nothing ready for 10 s".to_owned()),
        Ok(ready) => Ok(ready),
        Err(libc::EINTR) => Ok(0),
        Err(e) => Err(errno_name(e)),
    }
}

/// What a client asks of a server: sent first, in 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Seed of what the client sends; the server sends the next one's stream.
    pub seed: u64,
    /// Bytes each way; 0: echo until the end.
    pub len: u64,
    /// Index of the server's style in [`Style::ALL`].
    pub style: u64,
}

impl Request {
    fn emit(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        for (i, word) in [self.seed, self.len, self.style].into_iter().enumerate() {
            bytes[i * 8..i * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let word = |i: usize| {
            let part = bytes.get(i * 8..i * 8 + 8)?;
            Some(u64::from_le_bytes(part.try_into().ok()?))
        };
        Some(Self { seed: word(0)?, len: word(1)?, style: word(2)? })
    }
}

/// A listener on a free port, or on the one that `E2E_PORT` names: descriptor and port.
///
/// # Panics
///
/// When the kernel refuses.
#[must_use]
pub fn listener() -> (i32, u16) {
    let fd = calls::socket(0).expect("a socket");
    let port = std::env::var("E2E_PORT").map_or(0, |port| port.parse().expect("a port"));
    calls::bind(fd, port).expect("a port");
    calls::listen(fd, 4096).expect("a listener");
    (fd, calls::local_port(fd).expect("its port"))
}

/// Serves requests, a thread each, for ever; a line `began` and a line `ended` to standard output
/// for each.
///
/// # Panics
///
/// When it cannot accept.
pub fn serve() -> ! {
    let (listener, port) = listener();
    println!("port {port}");
    loop {
        match calls::accept(listener, 0) {
            Ok(fd) => {
                println!("began");
                thread::spawn(move || {
                    let line = answer(fd);
                    let _ = calls::close(fd);
                    println!("ended {line}");
                });
            }
            Err(libc::ECONNABORTED | libc::EINTR) => {}
            Err(libc::EMFILE) => thread::sleep(Duration::from_millis(5)),
            Err(e) => panic!("accept: {}", errno_name(e)),
        }
    }
}

fn answer(fd: i32) -> String {
    let header = match calls::recv(fd, 24, libc::MSG_WAITALL) {
        Ok(bytes) => bytes,
        Err(e) => return errno_name(e),
    };
    let Some(request) = Request::parse(&header) else {
        return format!("after {} bytes of a request", header.len());
    };
    if request.len == 0 {
        return echo(fd);
    }
    let style = usize::try_from(request.style).ok().and_then(|i| Style::ALL.get(i));
    let style = style.map_or(Style::Blocking, |(_, style)| *style);
    duplex(fd, style, request.seed + 1, request.seed, request.len).to_string()
}

fn echo(fd: i32) -> String {
    loop {
        match calls::recv(fd, 64 << 10, 0) {
            Ok(bytes) if bytes.is_empty() => return "end".to_owned(),
            Ok(bytes) => {
                let mut rest = bytes.as_slice();
                while !rest.is_empty() {
                    match calls::send(fd, rest, libc::MSG_NOSIGNAL) {
                        Ok(n) => rest = &rest[n..],
                        Err(e) => return errno_name(e),
                    }
                }
            }
            Err(e) => return errno_name(e),
        }
    }
}

/// Connects and makes a request; a refused request is an errno.
pub fn ask(port: u16, request: Request) -> Result<i32, i32> {
    let fd = connected(port)?;
    calls::send(fd, &request.emit(), libc::MSG_NOSIGNAL)?;
    Ok(fd)
}

fn connected(port: u16) -> Result<i32, i32> {
    let fd = calls::socket(0)?;
    calls::connect(fd, port)?;
    Ok(fd)
}

/// A transfer as a client.
#[must_use]
pub fn transfer(port: u16, style: usize, seed: u64, len: u64) -> Report {
    let failed = |e| Report { sent: 0, received: 0, status: format!("connect {}", errno_name(e)) };
    let fd = match ask(port, Request { seed, len, style: style as u64 }) {
        Ok(fd) => fd,
        Err(e) => return failed(e),
    };
    let report = duplex(fd, Style::ALL[style % 5].1, seed, seed + 1, len);
    let _ = calls::close(fd);
    report
}

/// [`transfer`] by a client that has connected, says so, and waits for a line before it sends its first byte.
#[must_use]
pub fn poised(port: u16, style: usize, seed: u64, len: u64) -> Report {
    let run = || -> Result<i32, i32> {
        let fd = connected(port)?;
        println!("connected");
        let _ = std::io::stdin().read_line(&mut String::new());
        let request = Request { seed, len, style: style as u64 };
        calls::send(fd, &request.emit(), libc::MSG_NOSIGNAL)?;
        Ok(fd)
    };
    match run() {
        Ok(fd) => duplex(fd, Style::ALL[style % 5].1, seed, seed + 1, len),
        Err(e) => Report { sent: 0, received: 0, status: errno_name(e) },
    }
}

/// Echoes on every connection from one thread and one event set, for ever.
///
/// # Panics
///
/// When it cannot wait or accept.
pub fn serve_many() -> ! {
    let (listener, port) = listener();
    calls::set_nonblocking(listener, true).expect("a flag");
    let set = calls::epoll_create().expect("an event set");
    let add = |fd: i32, events| {
        calls::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, u64::from(fd.unsigned_abs()))
    };
    add(listener, libc::EPOLLIN).expect("added");
    println!("port {port}");
    loop {
        let events = match calls::epoll_wait(set, 256, -1) {
            // It was stopped.
            Err(libc::EINTR) => continue,
            events => events.expect("events"),
        };
        for (_, fd) in events {
            let fd = i32::try_from(fd).expect("a descriptor");
            if fd != listener {
                serve_once(fd);
                continue;
            }
            while let Ok(new) = calls::accept(listener, libc::SOCK_NONBLOCK) {
                add(new, libc::EPOLLIN | libc::EPOLLRDHUP).expect("added");
            }
        }
    }
}

/// Echoes what is there: messages of the tests fit into any buffer.
fn serve_once(fd: i32) {
    match calls::recv(fd, 16 << 10, 0) {
        Ok(bytes) if !bytes.is_empty() => {
            if calls::send(fd, &bytes, libc::MSG_NOSIGNAL) != Ok(bytes.len()) {
                let _ = calls::close(fd);
            }
        }
        Err(libc::EAGAIN) => {}
        Ok(_) | Err(_) => {
            let _ = calls::close(fd);
        }
    }
}

/// Opens `count` connections, keeps them, and sends `rounds` messages over each, in order, all of
/// them checked: what went wrong.
#[must_use]
pub fn many(port: u16, count: usize, rounds: usize) -> String {
    let mut fds = Vec::new();
    for i in 0..count {
        let fd = calls::socket(0).and_then(|fd| calls::connect(fd, port).map(|_| fd));
        match fd {
            Ok(fd) => fds.push(fd),
            Err(e) => return format!("connect {i}: {}", errno_name(e)),
        }
    }
    for round in 0..rounds {
        for (i, fd) in fds.iter().enumerate() {
            let text = format!("round {round} of connection {i};");
            if calls::send(*fd, text.as_bytes(), libc::MSG_NOSIGNAL) != Ok(text.len()) {
                return format!("send {round} {i}");
            }
        }
        for (i, fd) in fds.iter().enumerate() {
            let text = format!("round {round} of connection {i};");
            let got = calls::recv(*fd, text.len(), libc::MSG_WAITALL);
            if got != Ok(text.into_bytes()) {
                return format!("recv {round} {i}: {}", crate::show::Show::show(&got));
            }
        }
    }
    format!("all {count}")
}

/// Opens `count` connections to echoes and moves bytes on them; says so, and waits for a line; then moves far
/// more on them, opens `more` and moves bytes on all: what went wrong.
#[must_use]
pub fn squeezed(port: u16, count: usize, more: usize) -> String {
    let stream = Arc::new(Stream::new(5));
    let open = || ask(port, Request { seed: 0, len: 0, style: 0 });
    let stretch = |fds: &[i32], from: u64, len: u64| -> Result<(), String> {
        for (i, fd) in fds.iter().enumerate() {
            // Each has a part of the stream of its own.
            let from = from + i as u64 * 1000;
            echoed(*fd, &stream, from, len).map_err(|e| format!("connection {i}: {e}"))?;
        }
        Ok(())
    };
    let run = || -> Result<(), String> {
        let old = (0..count).map(|_| open()).collect::<Result<Vec<_>, _>>().map_err(errno_name)?;
        for part in 0..8 {
            stretch(&old, part * 4096, 4096)?;
        }
        println!("in use");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map_err(|e| e.to_string())?;
        let at = 8 * 4096;
        stretch(&old, at, 2 << 20)?;
        let new = (0..more).map(|_| open()).collect::<Result<Vec<_>, _>>().map_err(errno_name)?;
        for part in 0..4 {
            stretch(&new, part * 4096, 4096)?;
        }
        stretch(&new[..count.min(more)], 4 * 4096, 1 << 20)?;
        // The old ones go on as well.
        stretch(&old, at + (2 << 20), 4096)
    };
    match run() {
        Ok(()) => format!("all {}", count + more),
        Err(e) => e,
    }
}

/// Moves as many bytes there and back over one connection as each line of standard input says, and says so.
#[must_use]
pub fn steps(port: u16) -> String {
    let stream = Arc::new(Stream::new(5));
    let fd = match ask(port, Request { seed: 0, len: 0, style: 0 }) {
        Ok(fd) => fd,
        Err(e) => return format!("connect {}", errno_name(e)),
    };
    let mut at = 0;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let Ok(len) = line.parse::<u64>() else { return format!("not a number: {line}") };
        if let Err(e) = echoed(fd, &stream, at, len) {
            return e;
        }
        at += len;
        println!("moved {len}");
    }
    "the end".to_owned()
}

/// The same, over a connection of its own for each line, in as many pieces as a connection may need to come to shared memory.
#[must_use]
pub fn steps_anew(port: u16) -> String {
    const PIECES: u64 = 8;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let Ok(len) = line.parse::<u64>() else { return format!("not a number: {line}") };
        let stream = Arc::new(Stream::new(5));
        let fd = match ask(port, Request { seed: 0, len: 0, style: 0 }) {
            Ok(fd) => fd,
            Err(e) => return format!("connect {}", errno_name(e)),
        };
        for piece in 0..PIECES {
            if let Err(e) = echoed(fd, &stream, piece * len, len) {
                return e;
            }
        }
        let _ = calls::close(fd);
        println!("moved {len}");
    }
    "the end".to_owned()
}

/// Sends bytes `from..from + len` of a stream and receives the same.
fn echoed(fd: i32, stream: &Arc<Stream>, from: u64, len: u64) -> Result<(), String> {
    let ours = Arc::clone(stream);
    let sending = thread::spawn(move || {
        let mut at = from;
        while at < from + len {
            let most = usize::try_from(from + len - at).unwrap_or(usize::MAX);
            let part = ours.part(at, most.min(100_000));
            at += calls::send(fd, part, libc::MSG_NOSIGNAL).map_err(errno_name)? as u64;
        }
        Ok(())
    });
    let mut at = from;
    let mut buffer = vec![0u8; 64 << 10];
    while at < from + len {
        let most = usize::try_from(from + len - at).map_or(buffer.len(), |n| n.min(buffer.len()));
        let got = calls::recv_into(fd, &mut buffer[..most], 0).map_err(errno_name)?;
        if got == 0 {
            return Err(format!("the end after {at}"));
        }
        if let Some(i) = stream.differs(at, &buffer[..got]) {
            return Err(format!("wrong byte at {}", at + i as u64));
        }
        at += got as u64;
    }
    sending.join().map_err(|_| "a thread panicked".to_owned())?
}

/// Opens `count` connections, each attached if it may be, then has `len` bytes lie in all of them at once, says so, and
/// waits for a line before the first answer is read: what went wrong.
#[must_use]
pub fn unread(port: u16, count: usize, len: usize) -> String {
    let stream = Stream::new(5);
    let one =
        |fd: i32, at: u64, len: usize| calls::send(fd, stream.part(at, len), libc::MSG_NOSIGNAL);
    let back = |fd: i32, at: u64, len: usize| match calls::recv(fd, len, libc::MSG_WAITALL) {
        Ok(got) if got.len() == len && stream.differs(at, &got).is_none() => Ok(()),
        got => Err(format!("at {at}: {} bytes", got.map_or(0, |got| got.len()))),
    };
    let run = || -> Result<(), String> {
        let mut fds = Vec::new();
        for _ in 0..count {
            let fd = calls::socket(0).and_then(|fd| calls::connect(fd, port).map(|_| fd));
            fds.push(fd.map_err(errno_name)?);
        }
        for round in 0..6 {
            for fd in &fds {
                one(*fd, round * 100, 100).map_err(errno_name)?;
                back(*fd, round * 100, 100)?;
            }
        }
        for fd in &fds {
            one(*fd, 1000, len).map_err(errno_name)?;
        }
        println!("all sent");
        std::io::stdin().read_line(&mut String::new()).map_err(|e| e.to_string())?;
        fds.iter().try_for_each(|fd| back(*fd, 1000, len))
    };
    run().err().unwrap_or_else(|| format!("all {count}"))
}

/// Asks for something that only TCP can do, each of five things in turn: the descriptor that leads to the connection now.
pub(crate) fn needs_tcp(fd: i32, nth: u32) -> Result<i32, i32> {
    match nth % 5 {
        0 => {
            let _ = calls::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2);
            let _ = calls::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
        }
        1 => {
            let [to, from] = calls::socketpair()?;
            calls::send_fd(to, fd)?;
            let passed = calls::recv_fd(from);
            for gone in [fd, to, from] {
                calls::close(gone)?;
            }
            return passed;
        }
        2 => {
            let _ = calls::send(fd, b"!", libc::MSG_OOB | libc::MSG_NOSIGNAL);
        }
        3 => {
            calls::Stream::open(calls::dup(fd)?, "r+")?.close()?;
        }
        _ => match calls::fork() {
            calls::Forked::Child => calls::exit_now(calls::exec_env("/bin/true", &[], &[])),
            calls::Forked::Parent(pid) => {
                calls::wait(pid)?;
            }
        },
    }
    Ok(fd)
}

/// Uses connections to echoes and asks for something that only TCP can do, again and again, until it is
/// killed or something is wrong.
#[must_use]
pub fn demoting(port: u16, seed: u64) -> String {
    let (mut random, stream) = (Random::new(seed), Arc::new(Stream::new(5)));
    let mut nth = 0;
    loop {
        let mut fd = match ask(port, Request { seed: 0, len: 0, style: 0 }) {
            Ok(fd) => fd,
            Err(e) => return format!("connect {}", errno_name(e)),
        };
        let mut at = 0;
        for step in 0..6 {
            let len = 1 + random.below(20_000);
            if let Err(e) = echoed(fd, &stream, at, len) {
                return e;
            }
            at += len;
            // By then it is attached.
            if step == 2 {
                fd = match needs_tcp(fd, nth) {
                    Ok(fd) => fd,
                    Err(e) => return format!("back to TCP by way {}: {}", nth % 5, errno_name(e)),
                };
                nth += 1;
            }
        }
        let _ = calls::close(fd);
    }
}

/// Opens and closes `count` connections quickly, in many ways: what went wrong.
#[must_use]
pub fn storm(port: u16, count: usize, seed: u64) -> String {
    let mut random = Random::new(seed);
    for i in 0..count {
        let fd = match calls::socket(0).and_then(|fd| calls::connect(fd, port).map(|_| fd)) {
            Ok(fd) => fd,
            Err(e) => return format!("connect {i}: {}", errno_name(e)),
        };
        for round in 0..random.below(6) {
            let text = format!("{round} of {i}");
            let sent = calls::send(fd, text.as_bytes(), libc::MSG_NOSIGNAL);
            let got = calls::recv(fd, text.len(), libc::MSG_WAITALL);
            if sent != Ok(text.len()) || got != Ok(text.into_bytes()) {
                return format!("round {round} of {i}: {}", crate::show::Show::show(&got));
            }
        }
        let done = end_somehow(fd, &mut random);
        if let Err(e) = done {
            return format!("close {i}: {}", errno_name(e));
        }
    }
    format!("all {count}")
}

fn end_somehow(fd: i32, random: &mut Random) -> Ret {
    match random.below(6) {
        // With an answer that nobody reads.
        0 => calls::send(fd, b"unread", libc::MSG_NOSIGNAL).and_then(|_| calls::close(fd)),
        1 => calls::set_linger(fd, 1, 0).and_then(|_| calls::close(fd)),
        2 => {
            calls::shutdown(fd, libc::SHUT_WR)?;
            calls::recv(fd, 9, 0)?;
            calls::close(fd)
        }
        3 => calls::shutdown(fd, libc::SHUT_RDWR).and_then(|_| calls::close(fd)),
        _ => calls::close(fd),
    }
}

/// So many processes that each listen, until standard input ends.
///
/// # Panics
///
/// When one of them cannot.
pub fn crowd(count: u64) {
    let [ready, tell] = calls::pipe(0).expect("a pipe");
    let mut children = Vec::new();
    for _ in 0..count {
        match calls::fork() {
            calls::Forked::Child => {
                let _ = listener();
                let _ = calls::write(tell, b"r");
                let _ = calls::poll_many(&[], -1);
                calls::exit_now(0);
            }
            calls::Forked::Parent(child) => children.push(child),
        }
        assert_eq!(calls::read(ready, 1), Ok(b"r".to_vec()), "a child listens");
    }
    println!("ready");
    let _ = calls::read(0, 1);
    for child in children {
        let _ = calls::kill(child, libc::SIGKILL);
        let _ = calls::wait(child);
    }
}
