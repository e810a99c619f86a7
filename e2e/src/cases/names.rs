//! Calls by their other names: whatever a program's compiler or age makes of a call, it leads to the same
//! place.

use crate::calls::{self, Forked, entries, names};
use crate::run::skipped;
use crate::say;
use crate::stage::{SETTLE, Stage};

fn settle() {
    std::thread::sleep(SETTLE);
}

/// Whether libc has a function; what it never had cannot be tested.
fn known(name: &str) -> bool {
    let known = names::libc_has(name);
    if !known {
        skipped(&format!("this libc has no {name}"));
    }
    known
}

/// What the compiler makes of calls whose buffers it knows.
pub fn fortified_names(s: &mut Stage) {
    let c = s.pair();
    for name in ["__read_chk", "__recv_chk", "__recvfrom_chk"] {
        if known(name) {
            say!(name, s.b_send(c, "0123456789"), names::receive_checked(name, c.a, 4));
            say!("rest", names::receive_checked(name, c.a, 99));
        }
    }
    for name in ["__poll_chk", "__ppoll_chk"] {
        if known(name) {
            say!(name, names::poll(name, c.a, 40), s.b_send(c, "x"), names::poll(name, c.a, 5000));
            say!("byte", calls::recv(c.a, 9, 0));
        }
    }
    say!("the end", s.b_close(c), names::receive_checked("__recv_chk", c.a, 9));
}

/// libc's own names for its calls.
pub fn underscored_names(s: &mut Stage) {
    let c = s.pair();
    for name in ["__write", "__send"] {
        if known(name) {
            say!(name, names::send(name, c.a, b"there"), s.b_recv(c, 99));
        }
    }
    for name in ["__read", "__recv"] {
        if known(name) {
            say!(name, s.b_send(c, "back"), names::receive(name, c.a, 99));
        }
    }
    if known("__poll") {
        let poll = |ms| names::poll("__poll", c.a, ms);
        say!("__poll", poll(40), s.b_send(c, "x"), poll(5000), calls::recv(c.a, 9, 0));
    }
    if known("__select") {
        say!("__select", names::select(c.a, 40), s.b_send(c, "x"), names::select(c.a, 5000));
        say!("byte", calls::recv(c.a, 9, 0));
    }
    if known("__sendmmsg") {
        say!("__sendmmsg", names::sendmmsg(c.a, b"message"), s.b_recv(c, 99));
    }
    for name in ["__fcntl", "fcntl64"] {
        if !known(name) {
            continue;
        }
        let fcntl = |command, value| names::fcntl(name, c.a, command, value);
        let flags = fcntl(libc::F_GETFL, 0).expect("flags");
        let with = flags | libc::O_NONBLOCK.cast_unsigned() as usize;
        say!(name, fcntl(libc::F_SETFL, with), calls::recv(c.a, 9, 0));
        let copy = fcntl(libc::F_DUPFD, 100).expect("a duplicate");
        let copy = i32::try_from(copy).expect("a descriptor");
        say!("duplicate", s.b_send(c, "x"), calls::poll(copy, libc::POLLIN, 5000));
        say!("byte", calls::recv(copy, 9, 0), calls::close(copy));
        say!("blocking again", fcntl(libc::F_SETFL, flags));
    }
    if known("__dup2") {
        let other = s.pair();
        say!("__dup2", names::dup2(other.a, c.a).is_ok(), s.b_mask(c), s.b_recv(c, 9));
        say!("new", s.b_send(other, "new"), calls::recv(c.a, 9, 0), calls::close(other.a));
        say!("still", calls::send(c.a, b"still", 0), s.b_recv(other, 9));
        say!("__close", names::close(c.a), s.b_mask(other), s.b_recv(other, 9));
    }
}

/// Children made by libc's own names: one that goes on with the connection, one that becomes a program, and one that
/// closes its own descriptor.
pub fn underscored_forks(s: &mut Stage) {
    let c = s.pair();
    if known("__fork") {
        let pid = match names::fork().expect("a child") {
            Forked::Child => {
                let got = calls::recv(c.a, 9, 0);
                let sent = calls::send(c.a, b"child", 0);
                calls::exit_now(i32::from(got != Ok(b"abc".to_vec()) || sent != Ok(5)))
            }
            Forked::Parent(pid) => pid,
        };
        say!("__fork", s.b_send(c, "abc"), s.b_recv(c, 9), calls::wait(pid));
        say!("parent", calls::send(c.a, b"parent", 0), s.b_recv(c, 9));
    }
    if known("__clone") {
        let pid = entries::clone_that_closes("__clone", c.a);
        say!("__clone", pid.and_then(calls::wait));
        say!("parent", calls::send(c.a, b"parent", 0), s.b_recv(c, 9));
        say!("parent", s.b_send(c, "back"), calls::recv(c.a, 9, 0));
    }
    if known("__vfork") {
        let pid = names::vfork_exec("/bin/cat", &["cat"], c.a);
        say!("__vfork", s.b_send(c, "to a program"), s.b_recv(c, 12));
        say!("ended", calls::close(c.a), s.b_shutdown(c, libc::SHUT_WR), s.b_recv(c, 9));
        say!("program", pid.and_then(calls::wait));
    }
}

/// A connection made and ended by libc's own names.
pub fn underscored_connect(s: &mut Stage) {
    if !known("__socket") || !known("__connect") {
        return;
    }
    let answer = s.b("listen");
    let (listener, port) = answer.split_once(' ').expect("a listener");
    let fd = names::socket().expect("a socket");
    say!("__connect", names::connect(fd, port.parse().expect("a port")));
    let b = Stage::number(&s.b(&format!("accept {listener}")));
    let c = crate::stage::Conn { a: fd, b };
    for round in 0..6 {
        say!("request", round, calls::send(c.a, b"request", 0), s.b_recv(c, 99));
        say!("answer", s.b_send(c, "answer"), calls::recv(c.a, 99, 0));
    }
    say!("__close", names::close(c.a), s.b_mask(c), s.b_recv(c, 9));
}

/// Names for files larger than 2 GiB, and printing with a list.
pub fn large_file_names(s: &mut Stage) {
    let c = s.pair();
    if known("pwritev64v2") {
        say!("pwritev64v2", names::pwritev64v2(c.a, &[b"ab", b"cd"]), s.b_recv(c, 99));
    }
    if known("preadv64v2") {
        say!("preadv64v2", s.b_send(c, "0123456789"), names::preadv64v2(c.a, &[2, 3]));
        say!("rest", names::preadv64v2(c.a, &[99]));
    }
    if known("sendfile64") {
        let file = calls::memfd(b"0123456789").expect("a file");
        say!("sendfile64", names::sendfile64(c.a, file, 4), s.b_recv(c, 99));
        say!("rest", names::sendfile64(c.a, file, 99), s.b_recv(c, 99));
    }
    for name in ["vdprintf", "__vdprintf_chk"] {
        let queued = calls::send(c.a, b"before ", 0);
        say!(name, queued, names::vdprintf(name, c.a, "printed", 7));
        settle();
        say!("the peer", s.b_recv(c, 99));
    }
    say!("works", s.b_send(c, "x"), calls::recv(c.a, 9, 0), calls::send(c.a, b"y", 0));
    say!("the peer", s.b_recv(c, 9));
}

/// Runs `work` in a child.
fn child(work: impl FnOnce() -> i32) -> i32 {
    match calls::fork() {
        Forked::Child => calls::exit_now(work()),
        Forked::Parent(pid) => pid,
    }
}

fn image() -> String {
    let path = std::env::current_exe().expect("our own path");
    path.to_str().expect("a plain path").to_owned()
}

/// What is started from here on is a program without the library.
fn forget_the_library() {
    // SAFETY: this process has one thread.
    unsafe { std::env::remove_var("LD_PRELOAD") };
}

/// Each `exec` of libc, of a program that knows nothing: it finds the stream where it was.
pub fn each_exec(s: &mut Stage) {
    for name in names::STARTS {
        if !known(name) {
            continue;
        }
        let c = s.pair();
        say!(name, calls::send(c.a, b"before ", 0), s.b_send(c, "queued "));
        settle();
        let fd = c.a.to_string();
        let pid = child(|| {
            forget_the_library();
            names::become_by(name, &image(), ["--image", "greet", &fd])
        });
        calls::close(c.a).expect("closed");
        say!("the peer", s.b_recv(c, 7), s.b_recv(c, 99));
        say!("then", s.b_send(c, "later"), s.b_recv(c, 99));
        say!("ended", calls::wait(pid), s.b_mask(c), s.b_recv(c, 9));
    }
}

/// Those that are given the arguments one by one, with many of them; and with 31, behind which the null pointer is the
/// 32nd.
pub fn exec_of_many(s: &mut Stage) {
    for name in ["execl", "execlp", "execle"] {
        for more in [27, 60] {
            let c = s.pair();
            say!(name, more, calls::send(c.a, b"before ", 0), s.b_send(c, "queued "));
            settle();
            let fd = c.a.to_string();
            let pid = child(|| {
                forget_the_library();
                names::become_with_many(name, &image(), ["--image", "greet", &fd], more)
            });
            calls::close(c.a).expect("closed");
            say!("the peer", s.b_recv(c, 7), s.b_recv(c, 99));
            say!("then", s.b_send(c, "later"), s.b_recv(c, 99));
            say!("ended", calls::wait(pid), s.b_mask(c), s.b_recv(c, 9));
        }
    }
}

/// `posix_spawnp` and `popen` of such a program.
pub fn each_start(s: &mut Stage) {
    let (c, d) = (s.pair(), s.pair());
    forget_the_library();
    let fd = c.a.to_string();
    say!("queued", calls::send(c.a, b"before ", 0), s.b_send(c, "queued "));
    settle();
    let pid = names::spawnp(&image(), ["--image", "greet", &fd]);
    say!("spawned", pid.is_ok(), calls::close(c.a));
    say!("the peer", s.b_recv(c, 7), s.b_recv(c, 99));
    say!("then", s.b_send(c, "later"), s.b_recv(c, 99));
    say!("ended", pid.and_then(calls::wait), s.b_mask(c), s.b_recv(c, 9));

    say!("queued", calls::send(d.a, b"before ", 0), s.b_send(d, "queued "));
    settle();
    let command = names::popen(&format!("{} --image greet {}", image(), d.a));
    let command = command.expect("a command");
    say!("the peer", s.b_recv(d, 7), s.b_recv(d, 99));
    say!("then", s.b_send(d, "later"), s.b_recv(d, 99));
    say!("ended", command.close(), s.b_mask(d));
    say!("ours", s.b_send(d, "three"), calls::recv(d.a, 99, 0), calls::close(d.a), s.b_recv(d, 9));
}

/// `daemon` leaves the process that called it, with its connections, to a child of it.
pub fn daemon_goes_on(s: &mut Stage) {
    let c = s.pair();
    say!("queued", calls::send(c.a, b"before ", 0), s.b_send(c, "queued "));
    settle();
    let pid = child(|| {
        if names::daemon().is_err() {
            return 1;
        }
        while let Ok(got) = calls::recv(c.a, 99, 0) {
            if got.is_empty() {
                return 0;
            }
            let _ = calls::send(c.a, &[b"daemon:", got.as_slice()].concat(), 0);
        }
        2
    });
    say!("the parent ended", calls::wait(pid), calls::close(c.a));
    say!("the peer", s.b_recv(c, 7), s.b_recv(c, 99));
    for text in ["one", "two", "three"] {
        say!("then", s.b_send(c, text), s.b_recv(c, 99));
    }
    say!("ended", s.b_shutdown(c, libc::SHUT_WR), s.b_recv(c, 9));
}
