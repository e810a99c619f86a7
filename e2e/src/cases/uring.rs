//! Programs that use io_uring, which works on a socket past every library.

use crate::calls;
use crate::calls::uring::{Liburing, OTHER_WAYS, has, made_by, setup_by_syscall};
use crate::run::skipped;
use crate::say;
use crate::stage::{SETTLE, Stage};

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

/// liburing makes its system calls past libc: from its first ring on, everything is on TCP, also what
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
    let e = crate::stage::Conn { a: early, b };
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
