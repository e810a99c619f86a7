//! The entry points of libc that programs seldom use on a connection: those of `tests/it/entry_points.rs` that no
//! other module of cases has to do with.

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, IPPROTO_TCP, SOL_SOCKET};

use crate::calls::{self, Forked, entries, names, numbers, unseen};
use crate::run::skipped;
use crate::say;
use crate::stage::{Conn, Role, SETTLE, Stage, timed};

fn settle() {
    std::thread::sleep(SETTLE);
}

/// A request and an answer: the connection is as good as before.
fn turn(s: &mut Stage, c: Conn) {
    say!("there", calls::send(c.a, b"there", 0), s.b_recv(c, 9));
    say!("back", s.b_send(c, "back"), calls::recv(c.a, 9, 0));
}

/// Runs `work` in a child.
fn child(work: impl FnOnce() -> i32) -> i32 {
    match calls::fork() {
        Forked::Child => calls::exit_now(work()),
        Forked::Parent(pid) => pid,
    }
}

// ----- Moving bytes ------------------------------------------------------------------------------

/// Asynchronous I/O by the names for large files.
pub fn asynchronous_64(s: &mut Stage) {
    let c = s.pair();
    for name in ["aio_write", "aio_write64"] {
        say!(name, unseen::aio_write_by(name, c.a, b"there"), s.b_recv(c, 9));
    }
    say!("aio_read64", s.b_send(c, "back"), unseen::aio_read64(c.a, 9));
    let c = s.pair();
    say!("unread", s.b_send(c, "back"));
    let both = unseen::listed64(c.a, b"there", 9);
    let (written, read) = both.unwrap_or_else(|e| (Err(e), Err(e)));
    say!("lio_listio64", written, read, s.b_recv(c, 9));
    turn(s, c);
}

/// The kernel's own asynchronous I/O, by its number and by libaio.
pub fn submitted_to_the_kernel(s: &mut Stage) {
    use unseen::Submit;
    for by in [Submit::ByNumber, Submit::ByLibrary] {
        if !by.is_there() {
            skipped("libaio is not installed: io_submit was called by its number only");
            continue;
        }
        let c = s.pair();
        say!("queued", calls::send(c.a, b"before ", 0), s.b_send(c, "queued"));
        settle();
        say!("read", by.read(c.a, 99));
        say!("written", by.write(c.a, b"there"), s.b_recv(c, 7), s.b_recv(c, 9));
        turn(s, c);
        say!("the end", s.b_close(c), by.read(c.a, 9));
    }
}

/// `vmsplice` wants a pipe; what it puts there goes on by `splice`.
pub fn vmsplice_by_a_pipe(s: &mut Stage) {
    let c = s.pair();
    say!("socket", entries::vmsplice(c.a, b"nothing"));
    let [r, w] = calls::pipe(0).expect("a pipe");
    say!("pipe", entries::vmsplice(w, b"memory"), calls::splice(r, c.a, 99, 0), s.b_recv(c, 99));
    turn(s, c);
}

/// A part that is longer than any memory can be: nothing is moved.
pub fn more_than_there_is(s: &mut Stage) {
    let c = s.pair();
    say!("writev", entries::write_too_much(c.a, b"four"));
    say!("readv", s.b_send(c, "unread"), entries::read_too_much(c.a));
    settle();
    say!("unread", calls::recv(c.a, 99, 0), s.b(&format!("recvnow {} 9 0", c.b)));
    say!("MSG_CONFIRM", calls::send(c.a, b"confirmed", libc::MSG_CONFIRM), s.b_recv(c, 99));
    turn(s, c);
}

/// A socket is asked what it is, and mapped, as who wants its bytes without a copy does.
pub fn asked_and_mapped(s: &mut Stage) {
    let c = s.pair();
    if names::find("isfdtype").is_some() {
        say!("isfdtype", entries::is_socket_by_name(c.a));
    }
    say!("credentials", entries::peer_credentials(c.a));
    turn(s, c);
    say!("mapped", entries::map(c.a));
    turn(s, c);
}

/// A stream of a connection that is opened anew, of another file: its number is the file's.
pub fn stream_of_another_file(s: &mut Stage) {
    let c = s.pair();
    let stream = calls::Stream::open(c.a, "r+").expect("a stream");
    say!("put", stream.put("line\n"), s.b_recv(c, 99));
    let stream = stream.reopened("/dev/null");
    say!("reopened", stream.is_ok(), s.b_mask(c), s.b_recv(c, 9));
    say!("the file", calls::recv(c.a, 9, 0), calls::read(c.a, 9), calls::is_socket(c.a));
    say!("waited for", calls::poll(c.a, libc::POLLIN, 0));
    let line = stream.as_ref().ok().and_then(calls::Stream::line);
    say!("line", line.is_none(), stream.and_then(calls::Stream::close));
    let other = s.pair();
    turn(s, other);
}

/// All streams are closed at once, that of a connection among them.
pub fn all_streams_closed(s: &mut Stage) {
    let c = s.pair();
    let pid = child(|| {
        let stream = calls::Stream::open(c.a, "r+");
        let put = stream.is_ok_and(|stream| stream.put("line\n").is_ok());
        let closed = entries::close_all_streams().is_ok();
        i32::from(put && closed && calls::is_socket(c.a) == Err(libc::EBADF))
    });
    say!("closed", calls::wait(pid), s.b_recv(c, 9));
    turn(s, c);
    say!("the last", calls::close(c.a), s.b_mask(c), s.b_recv(c, 9));
}

// ----- By number ---------------------------------------------------------------------------------

/// Bytes moved through `syscall(2)`.
pub fn moved_by_number(s: &mut Stage) {
    let c = s.pair();
    say!("sendto", numbers::sendto(c.a, b"there"), s.b_recv(c, 99));
    say!("recvfrom", s.b_send(c, "back"), numbers::recvfrom(c.a, 99, 0));
    say!("nothing", numbers::recvfrom(c.a, 99, libc::MSG_DONTWAIT));
    for other in [false, true] {
        say!("write", other, numbers::writev(c.a, &[b"th", b"ere"], other), s.b_recv(c, 99));
        say!("read", s.b_send(c, "back"), numbers::readv(c.a, &[2, 99], other));
        say!("send", numbers::sendmsg(c.a, b"there", other), s.b_recv(c, 99));
        say!("receive", s.b_send(c, "back"), numbers::recvmsg(c.a, 99, other));
    }
    let file = calls::memfd(b"of a file").expect("a file");
    say!("sendfile", numbers::sendfile(c.a, file, 99), s.b_recv(c, 99));
    let [r, w] = calls::pipe(0).expect("a pipe");
    calls::write(w, b"of a pipe").expect("written");
    say!("splice", numbers::splice(r, c.a, 99), s.b_recv(c, 99));
    say!("splice", s.b_send(c, "to a pipe"), numbers::splice(c.a, w, 99), calls::read(r, 99));
    turn(s, c);
}

/// A connection waited for through `syscall(2)`.
pub fn awaited_by_number(s: &mut Stage) {
    let c = s.pair();
    let come = |s: &mut Stage| s.b_later(120, &format!("send {} 0 x", c.b));
    let gone = || say!("byte", calls::recv(c.a, 9, 0));
    say!("poll", numbers::poll(c.a, libc::POLLIN | libc::POLLOUT, 0));
    come(s);
    let (got, when) = timed(|| numbers::poll(c.a, libc::POLLIN, 5000));
    say!("poll", got, when);
    gone();
    come(s);
    let (got, when) = timed(|| numbers::ppoll(c.a, libc::POLLIN, 5000));
    say!("ppoll", got, when);
    gone();
    come(s);
    let (got, when) = timed(|| numbers::select(c.a, 5000));
    say!("select", got, when);
    gone();
    come(s);
    let (got, when) = timed(|| numbers::pselect(c.a, 5000));
    say!("pselect6", got, when);
    gone();
    let ep = calls::epoll_create().expect("a set");
    say!("epoll_ctl", numbers::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, 7));
    use numbers::Waits;
    for by in [Waits::Wait, Waits::Pwait, Waits::Pwait2] {
        say!("nothing", by.wait(ep, 0));
        come(s);
        let (got, when) = timed(|| by.wait(ep, 5000));
        say!("waits", got, when);
        say!("again", by.wait(ep, 5000));
        gone();
    }
    say!("none of them", numbers::poll(c.a, libc::POLLIN, 30), numbers::select(c.a, 30));
    turn(s, c);
}

/// What is left of the time of a wait, which the kernel's calls say and libc's functions keep to themselves.
pub fn time_left_by_number(s: &mut Stage) {
    let c = s.pair();
    let [r, w] = calls::pipe(0).expect("a pipe");
    for by_select in [false, true] {
        for fd in [c.a, r] {
            say!("no time", numbers::time_left(fd, 0, by_select));
            say!("nothing", numbers::time_left(fd, 30, by_select));
        }
        say!("bytes", s.b_send(c, "x"), calls::write(w, b"x"));
        settle();
        for fd in [c.a, r] {
            say!("ready", numbers::time_left(fd, 5000, by_select));
            say!("not to be written", numbers::waits_until_noted(fd, by_select));
        }
        say!("taken", calls::recv(c.a, 9, 0), calls::read(r, 9));
    }
    turn(s, c);
}

/// A connection made, asked, copied and ended through `syscall(2)`.
pub fn made_by_number(s: &mut Stage) {
    let c = match s.role() {
        Role::Client => {
            let answer = s.b("listen");
            let (listener, port) = answer.split_once(' ').expect("a listener");
            let a = numbers::socket().expect("a socket");
            say!("connect", numbers::connect(a, port.parse().expect("a port")));
            Conn { a, b: Stage::number(&s.b(&format!("accept {listener}"))) }
        }
        Role::Server => {
            let (listener, port) = s.listener(16);
            say!("listen", numbers::listen(listener, 16));
            let first = Stage::number(&s.b(&format!("connect {port}")));
            let a = numbers::accept(listener, true).expect("a connection");
            turn(s, Conn { a, b: first });
            say!("closed", numbers::close(a), s.b(&format!("recv {first} 9 0")));
            let b = Stage::number(&s.b(&format!("connect {port}")));
            Conn { a: numbers::accept(listener, false).expect("a connection"), b }
        }
    };
    for _ in 0..6 {
        turn(s, c);
    }
    say!("unread", s.b_send(c, "abc"));
    settle();
    say!("FIONREAD", numbers::ioctl(c.a, libc::FIONREAD));
    say!("SO_ERROR", numbers::getsockopt(c.a, SOL_SOCKET, libc::SO_ERROR));
    say!("received", numbers::recvfrom(c.a, 9, 0));
    let flags = numbers::fcntl(c.a, libc::F_GETFL, 0).expect("flags");
    let with = flags | libc::O_NONBLOCK.cast_unsigned() as usize;
    say!("O_NONBLOCK", numbers::fcntl(c.a, libc::F_SETFL, with), calls::recv(c.a, 9, 0));
    say!("blocks again", numbers::fcntl(c.a, libc::F_SETFL, flags));
    for (name, level) in [(libc::TCP_NODELAY, IPPROTO_TCP), (libc::SO_RCVLOWAT, SOL_SOCKET)] {
        say!(
            "option",
            numbers::setsockopt(c.a, level, name, 1),
            numbers::getsockopt(c.a, level, name)
        );
    }
    turn(s, c);
    let copies = [
        numbers::dup(c.a),
        numbers::dup_to(c.a, 200, false),
        numbers::dup_to(c.a, 201, true),
        numbers::fcntl(c.a, libc::F_DUPFD, 210).map(|fd| i32::try_from(fd).expect("a descriptor")),
    ];
    for (n, copy) in copies.into_iter().enumerate() {
        let copy = copy.expect("a duplicate");
        turn(s, Conn { a: copy, b: c.b });
        let closed = if n % 2 == 0 { numbers::close(copy) } else { numbers::close_range(copy) };
        say!("closed", closed, calls::recv(copy, 9, libc::MSG_DONTWAIT));
    }
    let other = s.pair();
    say!("over another", numbers::dup_to(c.a, other.a, true).is_ok(), s.b_recv(other, 9));
    turn(s, Conn { a: other.a, b: c.b });
    say!("first", numbers::close(other.a), numbers::shutdown(c.a, libc::SHUT_WR), s.b_recv(c, 9));
    say!("last", s.b_send(c, "last"), calls::recv(c.a, 9, 0), numbers::close(c.a), s.b_close(c));
}

// ----- Readiness ---------------------------------------------------------------------------------

/// A set of a connection, signals and what becomes of a file: each is heard, beside the others.
pub fn signals_and_files_beside(s: &mut Stage) {
    const USR2: i32 = libc::SIGUSR2;
    let c = s.pair_nb();
    let path = std::env::temp_dir().join(format!("oracle-watched-{}", calls::getpid()));
    std::fs::write(&path, "").expect("a file");
    let name = path.to_str().expect("a plain path");
    calls::block_signals(&[USR2], true).expect("blocked");
    let signals = entries::signalfd(&[USR2]).expect("signals");
    let files = entries::inotify(name).expect("a watch");
    let ep = calls::epoll_create().expect("a set");
    for (fd, data) in [(c.a, 1), (signals, 2), (files, 3)] {
        calls::epoll_ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, data).expect("added");
    }
    let three = [(c.a, libc::POLLIN), (signals, libc::POLLIN), (files, libc::POLLIN)];
    let poll = |ms| {
        let (n, each) = calls::poll_many(&three, ms)?;
        Ok::<_, i32>(format!("{n} {each:?}"))
    };
    say!("nothing", calls::epoll_wait(ep, 8, 0), poll(0));
    s.b_later(100, &format!("kill {} {USR2}", calls::getpid()));
    let (got, when) = timed(|| calls::epoll_wait(ep, 8, 5000));
    say!("the signal", got, when, poll(0), calls::read(signals, 128).map(|bytes| bytes.len()));
    std::fs::write(&path, "changed").expect("written");
    say!("the file", calls::epoll_wait(ep, 8, 5000), poll(5000));
    say!("read", calls::read(files, 4096).is_ok_and(|bytes| !bytes.is_empty()));
    s.b_later(100, &format!("send {} 0 x", c.b));
    let (got, when) = timed(|| calls::epoll_wait(ep, 8, 5000));
    say!("the connection", got, when, poll(0));
    calls::kill(calls::getpid(), USR2).expect("sent");
    std::fs::write(&path, "again").expect("written");
    settle();
    let all = calls::epoll_wait(ep, 8, 5000).map(|mut all| {
        all.sort_by_key(|(_, data)| *data);
        all
    });
    say!("all", all, poll(0));
    let read = [signals, files].map(|fd| calls::read(fd, 4096).is_ok());
    say!("read", calls::recv(c.a, 9, 0), read[0], read[1], calls::epoll_wait(ep, 8, 30), poll(0));
    let _ = std::fs::remove_file(&path);
}

/// `epoll_ctl` without an event: enough to leave a set, and for nothing else.
pub fn epoll_of_nothing(s: &mut Stage) {
    let c = s.pair_nb();
    let ep = calls::epoll_create().expect("a set");
    let without = |op| entries::epoll_ctl_of_nothing(ep, op, c.a);
    say!("add", without(EPOLL_CTL_ADD), calls::epoll_wait(ep, 4, 0));
    say!("added", calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, 1), s.b_send(c, "x"));
    say!("event", calls::epoll_wait(ep, 4, 5000));
    say!("modify", without(EPOLL_CTL_MOD), calls::epoll_wait(ep, 4, 5000));
    say!("delete", without(EPOLL_CTL_DEL), calls::epoll_wait(ep, 4, 30));
    say!("once more", without(EPOLL_CTL_DEL), calls::recv(c.a, 9, 0));
    say!("nonsense", without(9));
    say!("added", calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, 2), s.b_send(c, "y"));
    say!("event", calls::epoll_wait(ep, 4, 5000), calls::recv(c.a, 9, 0));
}

// ----- Making and naming -------------------------------------------------------------------------

/// A listener without a name gets one; one that listens already takes another length of its queue.
pub fn listens_without_a_name(s: &mut Stage) {
    let listener = calls::prompt_socket(0).expect("a socket");
    say!("listen", calls::listen(listener, 4));
    let port = calls::local_port(listener);
    say!("named", port.is_ok_and(|port| port != 0), calls::peer_port(listener));
    let port = port.expect("a port");
    for backlog in [8, 0, -1] {
        say!("again", backlog, calls::listen(listener, backlog), calls::bind(listener, 0));
        let b = Stage::number(&s.b(&format!("connect {port}")));
        let a = calls::accept(listener, 0).expect("a connection");
        let c = Conn { a, b };
        for _ in 0..6 {
            turn(s, c);
        }
        say!("ended", s.b_close(c), calls::recv(a, 9, 0), calls::close(a));
    }
}

/// A `connect` that is on its way, asked for again.
pub fn connecting_already(s: &mut Stage) {
    let (listener, port) = s.listener(0);
    let knock = || {
        let fd = calls::prompt_socket(libc::SOCK_NONBLOCK).expect("a socket");
        (fd, calls::connect(fd, port))
    };
    let before: Vec<i32> = (0..4).map(|_| knock().0).collect();
    settle();
    let (fd, first) = knock();
    say!("first", first, calls::connect(fd, port), calls::connect(fd, port));
    say!("not yet", calls::poll(fd, libc::POLLOUT, 0), calls::peer_port(fd));
    say!("SO_ERROR", calls::getsockopt(fd, SOL_SOCKET, libc::SO_ERROR));
    say!("send", calls::send(fd, b"x", libc::MSG_NOSIGNAL), calls::recv(fd, 9, 0));
    // Nobody else asks any more, and there is room: the kernel asks again after a second, two, four.
    for fd in before {
        let _ = calls::close(fd);
    }
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
    calls::set_nonblocking(listener, true).expect("a flag");
    let mut theirs = Vec::new();
    while calls::peer_port(fd).is_err() && std::time::Instant::now() < limit {
        theirs.extend(calls::accept(listener, 0));
        settle();
    }
    say!("there", calls::connect(fd, port), calls::connect(fd, port), s.mask(fd));
    calls::set_nonblocking(fd, false).expect("a flag");
    let sent = calls::send(fd, b"mine", 0);
    let mine = loop {
        theirs.extend(calls::accept(listener, 0));
        let found = theirs
            .iter()
            .find(|end| calls::recv(**end, 9, libc::MSG_DONTWAIT) == Ok(b"mine".to_vec()));
        if found.is_some() || std::time::Instant::now() > limit {
            break found.copied();
        }
        settle();
    };
    let mine = mine.expect("its other end");
    say!("carries", sent, calls::send(mine, b"answer", 0), calls::recv(fd, 9, 0));
}

/// Protocols that are not TCP, under its family and type, and TCP by its number.
pub fn other_protocols(s: &mut Stage) {
    const SMC: i32 = 256;
    const MPTCP: i32 = 262;
    const LARGE: usize = 200_000;
    for (name, protocol) in [("tcp", IPPROTO_TCP), ("mptcp", MPTCP), ("smc", SMC)] {
        let made = entries::socket_by_protocol(protocol);
        say!(name, made.is_ok(), made.err().unwrap_or(0));
        let Ok(listener) = made else {
            skipped(&format!("this kernel has no {name}: only its refusal was compared"));
            continue;
        };
        say!("listens", calls::bind(listener, 0), calls::listen(listener, 4));
        let port = calls::local_port(listener).expect("its port");
        // One that connects by the same protocol, one that does by plain TCP.
        for same in [true, false] {
            let b = if same {
                let fd = entries::socket_by_protocol(protocol).expect("a socket");
                say!("connects", calls::connect(fd, port));
                fd
            } else {
                let fd = calls::prompt_socket(0).expect("a socket");
                say!("connects by TCP", calls::connect(fd, port));
                fd
            };
            let a = calls::accept(listener, 0).expect("a connection");
            let of = |fd| calls::getsockopt(fd, SOL_SOCKET, libc::SO_PROTOCOL);
            say!("protocols", of(a), of(b));
            let ep = calls::epoll_create().expect("a set");
            say!("added", calls::epoll_ctl(ep, EPOLL_CTL_ADD, b, EPOLLIN, 1));
            for round in 0..6 {
                say!("turn", round, calls::send(a, b"there", 0), calls::epoll_wait(ep, 4, 5000));
                say!(
                    "back",
                    calls::recv(b, 9, 0),
                    calls::send(b, b"back", 0),
                    calls::recv(a, 9, 0)
                );
            }
            let whole = std::thread::scope(|scope| {
                scope.spawn(|| crate::peer::send_stream(b, LARGE, 3));
                crate::peer::receive_stream(a, LARGE, 3)
            });
            say!("large", whole, calls::shutdown(a, libc::SHUT_WR), calls::recv(b, 9, 0));
            say!("closed", calls::close(a), calls::close(b));
        }
    }
    let c = s.pair();
    turn(s, c);
}

/// A connection that is fetched by another descriptor of this process.
pub fn fetched_by_a_process(s: &mut Stage) {
    if names::find("pidfd_getfd").is_none() || names::find("pidfd_open").is_none() {
        return skipped("this libc has no pidfd_getfd");
    }
    let c = s.pair();
    let pidfd = entries::pidfd().expect("ourselves");
    say!("unread", s.b_send(c, "abc"), calls::send(c.a, b"before", 0));
    settle();
    let copy = entries::fetched(pidfd, c.a);
    if copy == Err(libc::EPERM) {
        return skipped("this process may not fetch its own descriptors");
    }
    let copy = Conn { a: copy.expect("a descriptor"), b: c.b };
    say!(
        "there",
        calls::poll(copy.a, libc::POLLIN, 5000),
        calls::recv(copy.a, 2, 0),
        s.b_recv(c, 99)
    );
    say!("rest", calls::recv(c.a, 9, 0), calls::recv(copy.a, 9, libc::MSG_DONTWAIT));
    turn(s, copy);
    say!("first", calls::close(c.a), s.b(&format!("recvnow {} 9 0", c.b)));
    turn(s, copy);
    say!("second", calls::close(copy.a), s.b_recv(c, 9), entries::fetched(pidfd, copy.a));
}

/// Options that are set on a connection in use and read back, after each of which it is as good as before.
pub fn options_set_and_read(s: &mut Stage) {
    const OPTIONS: &[(&str, i32, i32, i32)] = &[
        ("SO_BUSY_POLL", SOL_SOCKET, libc::SO_BUSY_POLL, 50),
        ("SO_MARK", SOL_SOCKET, libc::SO_MARK, 7),
        ("SO_PRIORITY", SOL_SOCKET, libc::SO_PRIORITY, 4),
        ("SO_INCOMING_CPU", SOL_SOCKET, libc::SO_INCOMING_CPU, 0),
        ("SO_REUSEPORT", SOL_SOCKET, libc::SO_REUSEPORT, 1),
        ("SO_KEEPALIVE", SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        ("SO_DONTROUTE", SOL_SOCKET, libc::SO_DONTROUTE, 1),
        ("SO_RCVBUF", SOL_SOCKET, libc::SO_RCVBUF, 50_000),
        ("SO_SNDBUF", SOL_SOCKET, libc::SO_SNDBUF, 50_000),
        ("SO_DETACH_FILTER", SOL_SOCKET, libc::SO_DETACH_FILTER, 0),
        ("SO_LOCK_FILTER", SOL_SOCKET, libc::SO_LOCK_FILTER, 0),
        ("TCP_KEEPIDLE", IPPROTO_TCP, libc::TCP_KEEPIDLE, 100),
        ("TCP_KEEPINTVL", IPPROTO_TCP, libc::TCP_KEEPINTVL, 20),
        ("TCP_KEEPCNT", IPPROTO_TCP, libc::TCP_KEEPCNT, 3),
        ("TCP_SYNCNT", IPPROTO_TCP, libc::TCP_SYNCNT, 3),
        ("TCP_LINGER2", IPPROTO_TCP, libc::TCP_LINGER2, 9),
        ("TCP_WINDOW_CLAMP", IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, 60_000),
        ("TCP_USER_TIMEOUT", IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 9_000),
        ("TCP_NOTSENT_LOWAT", IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, 16_384),
        ("TCP_MAXSEG", IPPROTO_TCP, libc::TCP_MAXSEG, 1_000),
        ("TCP_DEFER_ACCEPT", IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1),
        ("TCP_FASTOPEN", IPPROTO_TCP, libc::TCP_FASTOPEN, 4),
        ("TCP_MD5SIG", IPPROTO_TCP, libc::TCP_MD5SIG, 1),
        ("IP_TOS", libc::IPPROTO_IP, libc::IP_TOS, 16),
        ("IP_TTL", libc::IPPROTO_IP, libc::IP_TTL, 33),
    ];
    let c = s.pair();
    let all = libc::POLLIN | libc::POLLOUT;
    for &(name, level, option, value) in OPTIONS {
        let set = calls::setsockopt(c.a, level, option, value);
        // Where it was last received is no setting.
        let stable = option != libc::SO_INCOMING_CPU || level != SOL_SOCKET;
        let read = calls::getsockopt(c.a, level, option);
        say!(name, set, if stable { read } else { Ok(0) }, calls::poll(c.a, all, 0));
        turn(s, c);
    }
    say!("SO_ATTACH_FILTER", entries::attach_filter(c.a));
    turn(s, c);
    say!("detached", calls::setsockopt(c.a, SOL_SOCKET, libc::SO_DETACH_FILTER, 0));
    let congestion = calls::setsockopt_text(c.a, IPPROTO_TCP, libc::TCP_CONGESTION, "cubic");
    say!("TCP_CONGESTION", congestion.is_ok() || congestion == Err(libc::EPERM));
    turn(s, c);
    // More than fits into any buffer, so that what limits buffers has had its say.
    s.tell(&format!("recvn {} 9000000 5", c.b));
    say!("large", crate::peer::send_stream(c.a, 9_000_000, 5), s.answer());
    say!("TCP_REPAIR of nothing", calls::setsockopt(c.a, IPPROTO_TCP, libc::TCP_REPAIR, 9));
    turn(s, c);
    say!("the end", s.b_close(c), calls::recv(c.a, 9, 0));
}

/// What holds small sends back is on or off as it was last set, before the connection is in use or later, wherever
/// its bytes go; and bytes are not held back for good.
pub fn nodelay_and_cork(s: &mut Stage) {
    const BOTH: [i32; 2] = [libc::TCP_NODELAY, libc::TCP_CORK];
    for first in [[0, 0], [0, 1], [1, 1]] {
        let before = s.attached_by_both();
        let c = s.fresh_pair();
        let set = |option, value| calls::setsockopt(c.a, IPPROTO_TCP, option, value);
        let both = || BOTH.map(|option| calls::getsockopt(c.a, IPPROTO_TCP, option));
        for (option, value) in BOTH.into_iter().zip(first) {
            say!("before", option, value, set(option, value));
        }
        s.until_attached(c, before);
        let [nodelay, cork] = both();
        say!("in use", nodelay, cork);
        for option in BOTH {
            for value in [0, 1, 0] {
                let done = set(option, value);
                let [nodelay, cork] = both();
                say!("later", option, value, done, nodelay, cork);
                turn(s, c);
            }
        }
        // By TCP again.
        say!("nodelay", set(libc::TCP_NODELAY, first[0]), set(libc::TCP_CORK, first[1]));
        say!("low", calls::setsockopt(c.a, SOL_SOCKET, libc::SO_RCVLOWAT, 2));
        let [nodelay, cork] = both();
        say!("on TCP", nodelay, cork);
        turn(s, c);
        say!("the end", s.b_close(c), calls::recv(c.a, 9, 0), calls::close(c.a));
    }
}

/// Whose signals tell of bytes, and which: by `ioctl` and by all of `fcntl`.
pub fn owned_by_other_names(s: &mut Stage) {
    const ASKED: i32 = libc::SIGUSR1;
    const SIOCSPGRP: u64 = 0x8902;
    const FIOSETOWN: u64 = 0x8901;
    const FIOGETOWN: u64 = 0x8903;
    for signal in [ASKED, libc::SIGIO] {
        calls::count(signal, libc::SA_RESTART).expect("a handler");
    }
    let me = calls::getpid();
    for by in [SIOCSPGRP, FIOSETOWN] {
        let c = s.pair();
        say!("owner", calls::ioctl_set(c.a, by, me));
        say!("is", calls::ioctl_int(c.a, FIOGETOWN) == Ok(me));
        say!("on", calls::ioctl_set(c.a, libc::FIOASYNC, 1));
        let _ = calls::arrived(libc::SIGIO);
        s.b_send(c, "abc");
        settle();
        say!("SIGIO", calls::arrived(libc::SIGIO) > 0, calls::recv(c.a, 9, 0));
        say!("off", calls::ioctl_set(c.a, libc::FIOASYNC, 0));
        let _ = calls::arrived(libc::SIGIO);
        s.b_send(c, "def");
        settle();
        say!("none", calls::arrived(libc::SIGIO), calls::recv(c.a, 9, 0));
    }
    let c = s.pair();
    say!("F_SETOWN_EX", entries::own_exactly(c.a));
    say!("F_SETSIG", calls::fcntl(c.a, 10, ASKED), calls::fcntl(c.a, 11, 0));
    turn(s, c);
    say!("on", calls::fcntl(c.a, libc::F_SETFL, libc::O_ASYNC));
    let _ = (calls::arrived(ASKED), calls::arrived(libc::SIGIO));
    s.b_send(c, "abc");
    settle();
    say!(
        "asked for",
        calls::arrived(ASKED) > 0,
        calls::arrived(libc::SIGIO),
        calls::recv(c.a, 9, 0)
    );
}

// ----- Processes ---------------------------------------------------------------------------------

/// A child by `_Fork`, in which no handler of `pthread_atfork` runs: it shares the connection.
pub fn forked_without_handlers(s: &mut Stage) {
    if names::find("_Fork").is_none() {
        return skipped("this libc has no _Fork");
    }
    let c = s.pair();
    say!("unread", s.b_send(c, "abc"), calls::send(c.a, b"parent ", 0));
    settle();
    let pid = match entries::plain_fork().expect("a child") {
        Forked::Child => {
            let got = calls::recv(c.a, 9, 0);
            let sent = calls::send(c.a, b"child", 0);
            calls::exit_now(if got == Ok(b"abc".to_vec()) && sent == Ok(5) { 0 } else { 1 })
        }
        Forked::Parent(pid) => pid,
    };
    say!("child", calls::wait(pid), s.b_recv(c, 7), s.b_recv(c, 9));
    turn(s, c);
    // The child goes on alone.
    let pid = match entries::plain_fork().expect("a child") {
        Forked::Child => {
            while let Ok(got) = calls::recv(c.a, 99, 0) {
                if got.is_empty() {
                    calls::exit_now(0);
                }
                let _ = calls::send(c.a, &[b"child:", got.as_slice()].concat(), 0);
            }
            calls::exit_now(1)
        }
        Forked::Parent(pid) => pid,
    };
    say!("closed", calls::close(c.a));
    for text in ["one", "two"] {
        say!("then", s.b_send(c, text), s.b_recv(c, 99));
    }
    say!("ended", s.b_shutdown(c, libc::SHUT_WR), s.b_recv(c, 9), calls::wait(pid));
}

/// The last holder of a connection ends by each of the ways there are, something unread or not.
pub fn ended_by_each_name(s: &mut Stage) {
    for name in entries::ENDS {
        for unread in [false, true] {
            let c = s.pair();
            if unread {
                s.b_send(c, "unread");
                settle();
            }
            let pid = match calls::fork() {
                Forked::Child => {
                    let _ = calls::send(c.a, b"from the child", 0);
                    entries::end_by(name, 3)
                }
                Forked::Parent(pid) => pid,
            };
            say!(name, unread, calls::close(c.a), calls::wait(pid));
            settle();
            say!("the peer", s.b_mask(c), s.b(&format!("drain {}", c.b)), s.b_close(c));
        }
    }
}

/// `login_tty` closes the first three descriptors, a connection among them; of a connection it makes no terminal.
pub fn terminal_over_a_connection(s: &mut Stage) {
    if names::find("login_tty").is_none() {
        return skipped("this libc has no login_tty");
    }
    let Ok([_master, slave]) = entries::terminal() else {
        return skipped("no terminal is to be had here");
    };
    let c = s.pair();
    let pid = child(|| {
        let refused = entries::login_tty(c.a) == Err(libc::ENOTTY);
        i32::from(refused && calls::send(c.a, b"still", 0) == Ok(5))
    });
    say!("refused", calls::wait(pid), s.b_recv(c, 9));
    let [waits, goes] = calls::pipe(0).expect("a pipe");
    let pid = child(|| {
        calls::close(goes).expect("closed");
        calls::dup2(c.a, 0).expect("a duplicate");
        calls::close(c.a).expect("closed");
        let first = calls::send(0, b"as input", 0).is_ok();
        let made = entries::login_tty(slave).is_ok();
        let _ = calls::read(waits, 1);
        i32::from(first && made)
    });
    say!("ours", calls::close(c.a), s.b_recv(c, 8));
    // The child lives, and has the connection no more.
    say!("the end", s.b_mask(c), s.b_recv(c, 9));
    say!("child", calls::close(goes), calls::wait(pid));
}

/// A process that becomes somebody else, and one whose root is elsewhere, keep what they have.
pub fn somebody_else(s: &mut Stage) {
    const NOBODY: u32 = 65_534;
    let c = s.pair();
    if calls::geteuid() != 0 {
        skipped("only root may become somebody else: what is refused was compared");
    }
    for name in ["seteuid", "setreuid", "setresuid"] {
        say!(name, entries::become_user(name, NOBODY), calls::geteuid() == NOBODY);
        turn(s, c);
        let d = s.fresh_pair();
        for _ in 0..6 {
            turn(s, d);
        }
        say!("back", entries::become_user("seteuid", 0));
        turn(s, d);
        say!("closed", calls::close(d.a), s.b_recv(d, 9));
        turn(s, c);
    }
    say!("chroot", entries::chroot("/proc/self/fdinfo"));
    turn(s, c);
    let d = s.fresh_pair();
    for _ in 0..6 {
        turn(s, d);
    }
    say!("setuid", entries::become_user("setuid", NOBODY));
    for conn in [c, d] {
        turn(s, conn);
    }
    let e = s.fresh_pair();
    for _ in 0..6 {
        turn(s, e);
    }
    for conn in [c, d, e] {
        say!("the end", s.b_close(conn), calls::recv(conn.a, 9, 0), calls::close(conn.a));
    }
}

/// A destructor of thread-specific data sends when most of its thread is gone.
pub fn sent_by_a_destructor(s: &mut Stage) {
    for c in [s.pair(), s.fresh_pair()] {
        say!("destructor", entries::sent_by_a_destructor(c.a));
        settle();
        say!("the peer", s.b_recv(c, 99));
        turn(s, c);
    }
}
