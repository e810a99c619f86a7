//! The other end: a process that does what it is told, one line at a time, and answers in a line.
//!
//! It is told over the UNIX socket that is its standard input, so that both ends of a TCP
//! connection move in lockstep.

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::calls::{address, rarely};
use crate::show::{Show, stream_bytes};
use crate::{calls, differential};

/// Longest time that an order may wait for bytes.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves orders until the other end hangs up or says `exit`.
///
/// # Panics
///
/// When standard input is not a socket: the program was started by hand.
pub fn serve() {
    let orders = std::io::stdin().as_fd().try_clone_to_owned().expect("standard input");
    let mut answers = UnixStream::from(orders.try_clone().expect("a second descriptor"));
    let mut end = None;
    let mut lines = BufReader::new(UnixStream::from(orders)).lines();
    while let Some(Ok(line)) = lines.next() {
        if line == "exit" {
            return;
        }
        if let Some(rest) = line.strip_prefix("later ") {
            let (ms, order) = rest.split_once(' ').expect("later MS ORDER");
            let _ = writeln!(answers, "ok");
            std::thread::sleep(Duration::from_millis(ms.parse().expect("milliseconds")));
            let _ = perform(order);
            continue;
        }
        let answer = match line.strip_prefix("end ") {
            Some(order) => differential::serve_order(&mut end, order),
            None => perform(&line),
        };
        if writeln!(answers, "{answer}").is_err() {
            return;
        }
    }
}

/// Performs one order: `VERB NUMBER…`, for `send` and `write` a text last.
///
/// # Panics
///
/// When the order makes no sense: a mistake in a case.
#[must_use]
pub fn perform(order: &str) -> String {
    let words: Vec<&str> = order.split(' ').collect();
    let n = |i: usize| -> i64 {
        words.get(i).and_then(|w| w.parse().ok()).unwrap_or_else(|| panic!("bad order: {order}"))
    };
    let fd = || i32::try_from(n(1)).expect("a descriptor");
    let int = |i: usize| i32::try_from(n(i)).expect("an int");
    let size = |i: usize| usize::try_from(n(i)).expect("a size");
    match words[0] {
        "listen" => listen(),
        "listen_at" => listen_at(words[1].parse().expect("an address")),
        "connect_to" => {
            let port = u16::try_from(n(2)).expect("a port");
            connect_to(words[1].parse().expect("an address"), port)
        }
        "listen_too" => listen_too(u16::try_from(n(1)).expect("a port")).show(),
        "accept" => calls::accept(fd(), 0).show(),
        "accept_now" => {
            let come = calls::poll(fd(), libc::POLLIN, 0).is_ok_and(|bits| bits != 0);
            if come { calls::accept(fd(), 0).show() } else { "nobody".to_owned() }
        }
        "open_with" => {
            let port = u16::try_from(n(1)).expect("a port");
            let opened = |fd| rarely::open_with(fd, port, words[2].as_bytes(), false).map(|_| fd);
            calls::prompt_socket(0).and_then(opened).show()
        }
        "connect" => connect(u16::try_from(n(1)).expect("a port")),
        "send" => calls::send(fd(), words[3..].join(" ").as_bytes(), int(2)).show(),
        "sendn" => send_stream(fd(), size(2), n(3).cast_unsigned()),
        "recv" => receive(fd(), size(2), int(3)),
        "recvnow" => calls::recv(fd(), size(2), int(3) | libc::MSG_DONTWAIT).show(),
        "recvn" => receive_stream(fd(), size(2), n(3).cast_unsigned()),
        "drain" => drain(fd()),
        "first" => {
            await_readable(fd());
            calls::recv(fd(), 1, 0)
                .map_or(-1, |byte| byte.first().map_or(-1, |b| i32::from(*b)))
                .show()
        }
        "until" => until(fd(), u8::try_from(n(2)).expect("a byte")),
        "mask" => settled_mask(fd()),
        "watch" => watch(fd(), int(2)).show(),
        "shutdown" => calls::shutdown(fd(), int(2)).show(),
        "close" => calls::close(fd()).show(),
        "linger" => calls::set_linger(fd(), int(2), int(3)).show(),
        "reset" => {
            let _ = calls::set_linger(fd(), 1, 0);
            calls::close(fd()).show()
        }
        "inq" => calls::ioctl_int(fd(), libc::FIONREAD).show(),
        "outq" => calls::ioctl_int(fd(), libc::TIOCOUTQ).show(),
        "nonblock" => calls::set_nonblocking(fd(), n(2) != 0).show(),
        "option" => calls::setsockopt(fd(), int(2), int(3), int(4)).show(),
        "guard" => calls::guard().show(),
        "kill" => calls::kill(int(1), int(2)).show(),
        "pin" => calls::cpus::pin(size(1)).show(),
        "echo" => echo(fd()),
        "pours" => pours(fd(), size(2), n(3).cast_unsigned()).show(),
        "awaits" => awaits(fd(), (size(2), n(3).cast_unsigned()), size(4), words[5]),
        "pings" => pings(&words[1..]),
        "sleep" => {
            std::thread::sleep(Duration::from_millis(n(1).cast_unsigned()));
            "ok".to_owned()
        }
        _ => panic!("no such order: {order}"),
    }
}

fn listen() -> String {
    listen_at(address::here())
}

fn listen_at(ip: IpAddr) -> String {
    let port = || -> Result<(i32, u16), i32> {
        let fd = calls::prompt_socket_of(address::family_of(ip), 0)?;
        address::bind_to(fd, ip, 0)?;
        calls::listen(fd, 64)?;
        Ok((fd, calls::local_port(fd)?))
    };
    port().map_or_else(crate::show::errno_name, |(fd, port)| format!("{fd} {port}"))
}

/// A second listener on a port that another process listens on.
fn listen_too(port: u16) -> Result<i32, i32> {
    let fd = calls::prompt_socket(0)?;
    calls::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    calls::bind(fd, port)?;
    calls::listen(fd, 64)?;
    Ok(fd)
}

fn connect(port: u16) -> String {
    connect_to(address::there(), port)
}

fn connect_to(ip: IpAddr, port: u16) -> String {
    let fd = calls::prompt_socket_of(address::family_of(ip), 0);
    fd.and_then(|fd| address::connect_to(fd, ip, port).map(|_| fd)).show()
}

/// Puts a descriptor into an event set of its own, which stays.
fn watch(fd: i32, events: i32) -> calls::Ret {
    calls::epoll_ctl(calls::epoll_create()?, libc::EPOLL_CTL_ADD, fd, events, 1)
}

/// Waits until bytes, the end or an error can be received.
fn await_readable(fd: i32) -> bool {
    let ms = i32::try_from(PATIENCE.as_millis()).unwrap_or(i32::MAX);
    loop {
        match calls::poll(fd, libc::POLLIN | libc::POLLRDHUP, ms) {
            Err(libc::EINTR) => {}
            got => return got.is_ok_and(|bits| bits != 0),
        }
    }
}

fn receive(fd: i32, len: usize, flags: i32) -> String {
    if !await_readable(fd) {
        return "nothing came".to_owned();
    }
    calls::recv(fd, len, flags | libc::MSG_DONTWAIT).show()
}

/// Sends `len` bytes of the stream `seed`, all of them.
#[must_use]
pub fn send_stream(fd: i32, len: usize, seed: u64) -> String {
    let mut at = 0;
    while at < len {
        let part = stream_bytes(seed, at as u64, (len - at).min(64 << 10));
        match calls::send(fd, &part, libc::MSG_NOSIGNAL) {
            Ok(n) => at += n,
            Err(libc::EAGAIN) => {
                let _ = calls::poll(fd, libc::POLLOUT, 1000);
            }
            e => return format!("{} after {at}", e.show()),
        }
    }
    len.show()
}

/// Receives `len` bytes and compares them with the stream `seed`.
#[must_use]
pub fn receive_stream(fd: i32, len: usize, seed: u64) -> String {
    let mut at = 0usize;
    while at < len {
        if !await_readable(fd) {
            return format!("nothing came after {at}");
        }
        match calls::recv(fd, (len - at).min(256 << 10), 0) {
            Ok(bytes) if bytes.is_empty() => return format!("end after {at}"),
            Ok(bytes) => {
                let expected = stream_bytes(seed, at as u64, bytes.len());
                if bytes != expected {
                    let right = bytes.iter().zip(&expected).take_while(|(a, b)| a == b).count();
                    return format!("wrong byte at {}", at + right);
                }
                at += bytes.len();
            }
            Err(libc::EAGAIN) => {}
            e => return format!("{} after {at}", e.show()),
        }
    }
    "same".to_owned()
}

/// Receives until nothing comes for 100 ms: how many bytes, and how it ended.
fn drain(fd: i32) -> String {
    let mut total = 0;
    loop {
        if !matches!(calls::poll(fd, libc::POLLIN, 100), Ok(bits) if bits != 0) {
            return format!("{total} and no more");
        }
        match calls::recv(fd, 1 << 20, libc::MSG_DONTWAIT) {
            Ok(bytes) if bytes.is_empty() => return format!("{total} and the end"),
            Ok(bytes) => total += bytes.len(),
            Err(libc::EAGAIN) => {}
            Err(e) => return format!("{total} and {}", crate::show::errno_name(e)),
        }
    }
}

/// Receives until this byte comes: how many others came before it.
fn until(fd: i32, last: u8) -> String {
    let mut total = 0;
    while await_readable(fd) {
        match calls::recv(fd, 1 << 20, libc::MSG_DONTWAIT) {
            Ok(bytes) if bytes.last() == Some(&last) => return (total + bytes.len() - 1).show(),
            Ok(bytes) if !bytes.is_empty() => total += bytes.len(),
            Err(libc::EAGAIN) => {}
            end => return format!("{total} and {}", end.show()),
        }
    }
    format!("{total} and nothing more")
}

/// Sends back what comes until the end: how many bytes.
fn echo(fd: i32) -> String {
    let mut total = 0;
    loop {
        match calls::recv(fd, 64 << 10, 0) {
            Ok(bytes) if bytes.is_empty() => return total.show(),
            Ok(bytes) => {
                total += bytes.len();
                if let Err(e) = calls::send(fd, &bytes, libc::MSG_NOSIGNAL) {
                    return format!("{} after {total}", crate::show::errno_name(e));
                }
            }
            Err(e) => return format!("{} after {total}", crate::show::errno_name(e)),
        }
    }
}

/// Sends so much of the stream `seed` as there is room for, until there has been none for 200 ms: how much.
fn pours(fd: i32, len: usize, seed: u64) -> usize {
    let _ = calls::set_nonblocking(fd, true);
    let mut at = 0;
    while at < len {
        let part = stream_bytes(seed, at as u64, (len - at).min(64 << 10));
        match calls::send(fd, &part, libc::MSG_NOSIGNAL) {
            Ok(n) => at += n,
            _ if calls::poll(fd, libc::POLLOUT, 200) != Ok(libc::POLLOUT) => break,
            _ => {}
        }
    }
    at
}

/// Receives three single bytes of what comes back, and a while later `what`: all of it, while it sends what is left
/// of `len` bytes behind `sent`, or some; then it closes. Or nothing.
fn awaits(fd: i32, (len, seed): (usize, u64), mut sent: usize, what: &str) -> String {
    let pause = || std::thread::sleep(Duration::from_millis(300));
    pause();
    // In a set that one thread looks at: a doorbell that lay unread would make a reset of the end.
    let set = calls::epoll_create().unwrap_or(-1);
    let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
    let looks = || calls::epoll_wait(set, 4, 0).map_or(0, |told| told.len());
    let _ = (calls::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, 1), looks());
    let (start, mut at) = (Instant::now(), 0);
    while at < 3 && start.elapsed() < PATIENCE {
        match calls::recv(fd, 1, libc::MSG_DONTWAIT) {
            Ok(byte) if byte == stream_bytes(seed, at as u64, 1) => at += 1,
            Err(libc::EAGAIN) => std::thread::sleep(Duration::from_millis(5)),
            got => return format!("byte {at}: {}", got.show()),
        }
    }
    pause();
    while what == "all" && at < len {
        let more = if sent < len { libc::POLLOUT } else { 0 };
        match calls::poll(fd, libc::POLLIN | more, 8000) {
            Ok(bits) if bits & libc::POLLOUT != 0 => {
                let part = stream_bytes(seed, sent as u64, (len - sent).min(64 << 10));
                sent += calls::send(fd, &part, libc::MSG_NOSIGNAL).unwrap_or(0);
            }
            Ok(bits) if bits != 0 => {}
            _ => return format!("nothing moves: sent {sent}, received {at}"),
        }
        match calls::recv(fd, 64 << 10, libc::MSG_DONTWAIT) {
            Ok(bytes)
                if !bytes.is_empty() && bytes == stream_bytes(seed, at as u64, bytes.len()) =>
            {
                at += bytes.len();
            }
            Err(libc::EAGAIN) => {}
            got => return format!("after {at}: {}", got.map(|bytes| bytes.len()).show()),
        }
    }
    if what == "some" {
        while matches!(calls::recv(fd, 1 << 20, libc::MSG_DONTWAIT), Ok(bytes) if !bytes.is_empty())
        {
        }
    }
    if what != "nothing" {
        let _ = calls::close(fd);
    }
    what.to_owned()
}

/// Sends a byte by each of these, three times.
fn pings(fds: &[&str]) -> String {
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(50));
        for fd in fds {
            let _ = calls::send(fd.parse().expect("a descriptor"), b"p", libc::MSG_NOSIGNAL);
        }
    }
    "ok".to_owned()
}

/// Everything that `poll` can say, once it has not changed for 25 ms.
#[must_use]
pub fn settled_mask(fd: i32) -> String {
    let all = libc::POLLIN | libc::POLLPRI | libc::POLLOUT | libc::POLLRDHUP;
    let start = Instant::now();
    let (mut last, mut since) = (None, start);
    while start.elapsed() < PATIENCE {
        let now = calls::poll(fd, all, 0);
        if last != Some(now) {
            (last, since) = (Some(now), Instant::now());
        } else if since.elapsed() >= Duration::from_millis(25) {
            break;
        }
        std::thread::sleep(Duration::from_millis(4));
    }
    last.map_or_else(|| "never".to_owned(), |bits| bits.show())
}
