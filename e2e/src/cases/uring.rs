//! Programs that use io_uring, which works on a socket past every library.

use crate::calls;
use crate::calls::uring::{
    ENTERING, Liburing, OTHER_WAYS, Operation, REGISTERING, SUBMITTERS, WAITERS, has, made_by,
    setup_by_syscall,
};
use crate::run::skipped;
use crate::say;
use crate::stage::{Conn, SETTLE, Stage};

/// Whether this program runs under the library.
fn under_shunt() -> bool {
    std::env::var_os("LD_PRELOAD").is_some_and(|library| !library.is_empty())
}

/// Who asks the kernel for a ring by itself is told that there is none, and goes on with what the
/// library sees: the connection stays as it is. (On TCP the kernel's answer is its own business.)
pub fn io_uring_is_refused(s: &mut Stage) {
    let c = s.pair();
    say!("queued", s.b_send(c, "before "), calls::send(c.a, b"before ", 0));
    let answer = setup_by_syscall();
    if under_shunt() {
        assert_eq!(answer, Err(libc::ENOSYS), "io_uring_setup");
    }
    std::thread::sleep(SETTLE);
    say!("both ways", calls::recv(c.a, 99, 0), s.b_recv(c, 99));
    s.tell(&format!("sendn {} 300000 7", c.b));
    say!("there", crate::peer::receive_stream(c.a, 300_000, 7), s.answer());
    s.tell(&format!("recvn {} 300000 8", c.b));
    say!("back", crate::peer::send_stream(c.a, 300_000, 8), s.answer());
    say!("the end", s.b_close(c), calls::recv(c.a, 9, 0));
}

/// liburing makes its system calls past libc: from the first operation on a socket on, everything is on TCP, also what
/// was attached, with each byte in its place.
pub fn io_uring_by_library(s: &mut Stage) {
    let Some(library) = Liburing::find() else { return skipped("liburing is not installed") };
    let early = calls::prompt_socket(0).expect("a socket");
    let c = s.pair();
    say!("queued", s.b_send(c, "before "), calls::send(c.a, b"before ", 0));
    std::thread::sleep(SETTLE);
    let got = library.recv(c.a, 99);
    if matches!(got, Err(libc::ENOSYS | libc::EPERM)) {
        skipped("the kernel gives this user no io_uring");
    }
    say!("through the ring", got, s.b_recv(c, 99));
    say!("sent", library.send(c.a, b"by the ring"), s.b_recv(c, 99));
    say!("by a call", calls::send(c.a, b"by a call", 0), s.b_recv(c, 99));
    say!("received", s.b_send(c, "one"), library.recv(c.a, 99));
    say!("by a call", s.b_send(c, "two"), calls::recv(c.a, 99, 0));
    // Connections that are made later.
    let d = s.warm_pair(6);
    say!("new: received", s.b_send(d, "three"), library.recv(d.a, 99));
    say!("new: sent", library.send(d.a, b"four"), s.b_recv(d, 99));
    // A socket that was made before there was a ring.
    let answer = s.b("listen");
    let (listener, port) = answer.split_once(' ').expect("a listener");
    say!("connect", calls::connect(early, port.parse().expect("a port")));
    let b = Stage::number(&s.b(&format!("accept {listener}")));
    let e = Conn { a: early, b };
    for round in 0..6 {
        say!("old: call", round, calls::send(e.a, b"call", 0), s.b_recv(e, 99));
        say!("old: answer", s.b_send(e, "answer"), calls::recv(e.a, 99, 0));
    }
    say!("old: received", s.b_send(e, "five"), library.recv(e.a, 99));
    say!("old: sent", library.send(e.a, b"six"), s.b_recv(e, 99));
    for conn in [c, d, e] {
        say!("the end", s.b_close(conn), library.recv(conn.a, 9));
    }
}

/// A ring of a program that works on files alone: connections stay where they are.
pub fn io_uring_for_files(s: &mut Stage) {
    let Some(library) = Liburing::find() else { return skipped("liburing is not installed") };
    let file = calls::memfd(b"what is in the file").expect("a file");
    let c = s.warm_pair(6);
    let mut each = |name: &str, how: &dyn Fn(&Operation) -> calls::Ret| {
        if !has(name) {
            return skipped(&format!("this liburing has no {name}"));
        }
        say!("queued", s.b_send(c, "before "), calls::send(c.a, b"before ", 0));
        let wrote = library.write_by(file, name.as_bytes(), how);
        if matches!(wrote, Err(libc::ENOSYS | libc::EPERM | libc::EINVAL)) {
            skipped(&format!("the kernel gives this user no io_uring, or not {name}"));
        }
        say!(name, wrote, library.read_by(file, name.len(), how));
        say!("both ways", calls::recv(c.a, 99, 0), s.b_recv(c, 99));
    };
    for name in SUBMITTERS {
        each(name, &|operation| library.perform(name, operation));
    }
    for name in WAITERS {
        each(name, &|operation| library.perform_awaited(name, operation));
    }
    // All but the system call by itself, of which nobody sees what it is for.
    for name in &REGISTERING[..4] {
        each(name, &|operation| library.perform_registered(name, operation));
    }
    each(REGISTERING[0], &|operation| library.perform_updated(operation));
    s.tell(&format!("sendn {} 300000 7", c.b));
    say!("there", crate::peer::receive_stream(c.a, 300_000, 7), s.answer());
    s.tell(&format!("recvn {} 300000 8", c.b));
    say!("back", crate::peer::send_stream(c.a, 300_000, 8), s.answer());
    say!("the end", s.b_close(c), calls::recv(c.a, 9, 0));
}

/// A connection that has been in use, and then has a ring receive from it.
fn received(s: &mut Stage, name: &str, how: impl Fn(Liburing, &Operation) -> calls::Ret) {
    let Some(library) = Liburing::find() else { return skipped("liburing is not installed") };
    if !has(name) {
        return skipped(&format!("this liburing has no {name}"));
    }
    let c = s.warm_pair(6);
    say!("queued", s.b_send(c, "before "), calls::send(c.a, b"before ", 0));
    std::thread::sleep(SETTLE);
    let got = library.recv_by(c.a, 99, |operation| how(library, operation));
    if matches!(got, Err(libc::ENOSYS | libc::EPERM)) {
        skipped("the kernel gives this user no io_uring");
    }
    say!(name, got, s.b_recv(c, 99));
    say!("by a call", s.b_send(c, "two"), calls::recv(c.a, 99, 0));
    say!("again", s.b_send(c, "three"), library.recv_by(c.a, 99, |o| how(library, o)));
    let d = s.warm_pair(6);
    say!("new", s.b_send(d, "four"), library.recv_by(d.a, 99, |o| how(library, o)));
    for conn in [c, d] {
        say!("the end", s.b_close(conn), calls::recv(conn.a, 9, 0));
    }
}

macro_rules! each_way {
    ($($(#[doc = $doc:literal])* $case:ident($name:expr, $how:expr);)*) => {$(
        $(#[doc = $doc])*
        pub fn $case(s: &mut Stage) {
            received(s, $name, $how);
        }
    )*};
}

each_way! {
    /// The kernel is told of it by each of liburing's functions.
    io_uring_submits(SUBMITTERS[1], |l, o| l.perform(SUBMITTERS[1], o));
    /// The same.
    io_uring_submits_for_events(SUBMITTERS[2], |l, o| l.perform(SUBMITTERS[2], o));
    /// The same.
    io_uring_submits_with_a_limit(SUBMITTERS[3], |l, o| l.perform(SUBMITTERS[3], o));
    /// By the system call.
    io_uring_enters(ENTERING[0], |l, o| l.perform(ENTERING[0], o));
    /// By the system call, with more to it.
    io_uring_enters_with_more(ENTERING[1], |l, o| l.perform(ENTERING[1], o));
    /// The socket goes by another number.
    io_uring_registers(REGISTERING[0], |l, o| l.perform_registered(REGISTERING[0], o));
    /// The same.
    io_uring_registers_with_tags(REGISTERING[1], |l, o| l.perform_registered(REGISTERING[1], o));
    /// The same, where there was another.
    io_uring_registers_anew(REGISTERING[2], |l, o| l.perform_registered(REGISTERING[2], o));
    /// The same.
    io_uring_registers_anew_with_tags(REGISTERING[3], |l, o| l.perform_registered(REGISTERING[3], o));
    /// By the system call.
    io_uring_registers_by_hand(REGISTERING[4], |l, o| l.perform_registered(REGISTERING[4], o));
    /// By an operation.
    io_uring_registers_in_the_ring(SUBMITTERS[0], |l, o| l.perform_updated(o));
}

/// A ring that waits for an event set, moves bytes to a pipe, and ends a connection.
pub fn io_uring_around_a_socket(s: &mut Stage) {
    let Some(library) = Liburing::find() else { return skipped("liburing is not installed") };
    let perform = |operation: &Operation| library.perform(SUBMITTERS[0], operation);
    let c = s.warm_pair(6);
    let set = calls::epoll_create().expect("a set");
    say!("watched", calls::epoll_ctl(set, libc::EPOLL_CTL_ADD, c.a, libc::EPOLLIN, 1));
    say!("nothing", calls::epoll_wait(set, 4, 0));
    say!("sent", s.b_send(c, "one"));
    let polled = perform(&Operation::poll(set));
    if matches!(polled, Err(libc::ENOSYS | libc::EPERM)) {
        skipped("the kernel gives this user no io_uring");
    }
    say!("polled", polled.map(|events| events & libc::POLLIN as usize));
    say!("told", calls::epoll_wait(set, 4, 1000), calls::recv(c.a, 99, 0));
    let [out, into] = calls::pipe(0).expect("a pipe");
    say!("sent", s.b_send(c, "two"));
    say!("spliced", perform(&Operation::splice(c.a, into, 99)), calls::read(out, 99));
    say!("closed", perform(&Operation::close(c.a)), s.b_recv(c, 9));
}

/// The first that a ring does with a connection is to move its bytes to a pipe.
pub fn io_uring_splices(s: &mut Stage) {
    let Some(library) = Liburing::find() else { return skipped("liburing is not installed") };
    let c = s.warm_pair(6);
    let [out, into] = calls::pipe(0).expect("a pipe");
    say!("sent", s.b_send(c, "one"));
    std::thread::sleep(SETTLE);
    let spliced = library.perform(SUBMITTERS[0], &Operation::splice(c.a, into, 99));
    if matches!(spliced, Err(libc::ENOSYS | libc::EPERM)) {
        skipped("the kernel gives this user no io_uring");
    }
    say!("spliced", spliced, calls::read(out, 99));
    say!("the end", s.b_close(c), calls::recv(c.a, 9, 0));
}

/// The first that a ring does with a connection is to end it.
pub fn io_uring_closes(s: &mut Stage) {
    let Some(library) = Liburing::find() else { return skipped("liburing is not installed") };
    let c = s.warm_pair(6);
    say!("sent", calls::send(c.a, b"the last", 0));
    let closed = library.perform(SUBMITTERS[0], &Operation::close(c.a));
    if matches!(closed, Err(libc::ENOSYS | libc::EPERM)) {
        skipped("the kernel gives this user no io_uring");
    }
    say!("closed", closed, s.b_recv(c, 99), s.b_recv(c, 99));
    say!("gone", calls::recv(c.a, 9, 0));
}

/// The same of a ring that is made by another of liburing's functions.
pub fn io_uring_by_other_names(s: &mut Stage) {
    let Some(library) = Liburing::find() else { return skipped("liburing is not installed") };
    for name in OTHER_WAYS {
        if !has(name) {
            skipped(&format!("this liburing has no {name}"));
            continue;
        }
        let c = s.warm_pair(6);
        say!("queued", s.b_send(c, "before "), calls::send(c.a, b"before ", 0));
        std::thread::sleep(SETTLE);
        let made = made_by(name, library);
        if matches!(made, Err(libc::ENOSYS | libc::EPERM)) {
            skipped("the kernel gives this user no io_uring");
        }
        say!(name, made, library.recv(c.a, 99), s.b_recv(c, 99));
        say!("sent", library.send(c.a, b"by the ring"), s.b_recv(c, 99));
        say!("by a call", s.b_send(c, "two"), calls::recv(c.a, 99, 0));
        say!("the end", s.b_close(c), library.recv(c.a, 9));
    }
}
