//! What is left to read goes to somebody who reads the socket by itself: a stream of stdio, another program, a process
//! that the connection is passed to. The peer has closed it before, or is there, with bytes on both sides of the switch.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLLET, EPOLLIN, EPOLLONESHOT, EPOLLRDHUP, SHUT_WR};

use crate::calls::{self, Forked};
use crate::say;
use crate::show::stream_bytes;
use crate::stage::{Conn, SETTLE, Stage};

fn settle() {
    std::thread::sleep(SETTLE);
}

/// How the peer ends.
const ENDS: [fn(&mut Stage, Conn) -> String; 3] = [
    |s, c| s.b_close(c),
    |s, c| s.b_reset(c),
    |s, c| {
        let shut = s.b_shutdown(c, SHUT_WR);
        format!("{shut} {}", s.b_close(c))
    },
];

/// A connection in use on which the peer has sent a text and is gone.
fn left(s: &mut Stage, text: &str, end: fn(&mut Stage, Conn) -> String) -> Conn {
    let c = s.pair();
    say!("sent", s.b_send(c, text), end(s, c));
    settle();
    c
}

/// What a program gets that reads the connection to its end.
fn read_by_a_program(fd: i32) -> (calls::Ret, Vec<u8>) {
    let file = std::env::temp_dir().join(format!("remains-{}", std::process::id()));
    let done = calls::dup2(fd, 9)
        .and_then(|_| calls::system(&format!("cat <&9 >'{}' 2>/dev/null", file.display())));
    let _ = calls::close(9);
    let got = std::fs::read(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    (done, got)
}

/// A stream of stdio, and the connection behind it.
pub fn left_to_stdio(s: &mut Stage) {
    for end in ENDS {
        let c = left(s, "one two", end);
        let stream = calls::Stream::open(calls::dup(c.a).expect("a duplicate"), "r");
        say!("opened", stream.as_ref().map(|_| 0).map_err(|e| *e));
        if let Ok(stream) = stream {
            say!("lines", stream.line(), stream.line());
            say!("closed", stream.close());
        }
        say!("the end", calls::recv(c.a, 9, 0), calls::send(c.a, b"x", libc::MSG_NOSIGNAL));
    }
}

/// Another program, of which the shell is the parent.
pub fn left_to_a_program(s: &mut Stage) {
    for end in ENDS {
        let c = left(s, "one two", end);
        let (status, read) = read_by_a_program(c.a);
        say!("program", status, read);
        say!("the end", calls::recv(c.a, 9, 0));
    }
}

/// More than a segment, and some of it read before.
pub fn much_left_to_a_program(s: &mut Stage) {
    let c = s.pair();
    s.b(&format!("sendn {} 300000 7", c.b));
    let head = calls::recv(c.a, 1000, libc::MSG_WAITALL);
    say!("begin", head.map(|got| got == stream_bytes(7, 0, 1000)));
    say!("close", s.b_close(c));
    settle();
    let (status, rest) = read_by_a_program(c.a);
    say!("rest", status, rest.len(), rest == stream_bytes(7, 1000, 299_000));
}

/// A program that this process becomes by `vfork`, and one that it starts otherwise.
pub fn left_to_a_child(s: &mut Stage) {
    for way in 0..2 {
        let c = left(s, "one two", ENDS[0]);
        let args = ["sh", "-c", "test \"$(cat)\" = 'one two'"];
        let pid = if way == 0 {
            calls::vfork_exec("/bin/sh", &args, &["PATH=/usr/bin:/bin"], c.a)
        } else {
            match calls::fork() {
                Forked::Child => {
                    let _ = calls::dup2(c.a, 0);
                    calls::exit_now(calls::exec_env("/bin/sh", &args, &["PATH=/usr/bin:/bin"]))
                }
                Forked::Parent(pid) => Ok(pid),
            }
        };
        say!("ended", pid.and_then(calls::wait), calls::close(c.a));
    }
}

/// Programs that have the connection and do not read it leave it to us.
pub fn left_to_nobody(s: &mut Stage) {
    let c = left(s, "one two", ENDS[0]);
    say!("program", calls::dup2(c.a, 9), calls::system("true"));
    say!("some", calls::recv(c.a, 4, 0), calls::system("true"));
    say!("rest", calls::recv(9, 9, 0), calls::recv(c.a, 9, 0), calls::close(9));
}

/// Parent and child read what is left in turn, and the names of the ends are what they were.
pub fn left_to_both(s: &mut Stage) {
    let c = s.pair();
    let names = |fd| (calls::peer_port(fd), calls::local_port(fd));
    let before = names(c.a);
    say!("sent", s.b_send(c, "one two three"), s.b_close(c));
    settle();
    say!("some", calls::recv(c.a, 4, 0));
    let pid = match calls::fork() {
        Forked::Child => {
            let same = names(c.a) == before;
            let some = calls::recv(c.a, 4, 0) == Ok(b"two ".to_vec());
            calls::exit_now(i32::from(!(same && some)))
        }
        Forked::Parent(pid) => pid,
    };
    say!("child", calls::wait(pid));
    say!("rest", calls::recv(c.a, 99, 0), calls::recv(c.a, 9, 0), names(c.a) == before);
}

/// A child reads the stream, and we make another process that has nothing to do with it.
pub fn left_while_a_child_reads(s: &mut Stage) {
    for way in 0..3 {
        let c = s.pair();
        let [told, tell] = calls::pipe(0).expect("a pipe");
        let pid = match calls::fork() {
            Forked::Child => {
                let begin = calls::recv(c.a, 1000, libc::MSG_WAITALL);
                let _ = calls::write(tell, b"x");
                settle();
                settle();
                let mut all = begin.unwrap_or_default();
                while let Ok(got @ [_, ..]) = calls::recv(c.a, 65536, 0).as_deref() {
                    all.extend_from_slice(got);
                }
                calls::exit_now(i32::from(all != stream_bytes(7, 0, 100_000)))
            }
            Forked::Parent(pid) => pid,
        };
        s.b(&format!("sendn {} 100000 7", c.b));
        say!("begins", calls::read(told, 1), s.b_close(c));
        match way {
            0 => say!("another", calls::system("true")),
            1 => match calls::fork() {
                Forked::Child => calls::exit_now(0),
                Forked::Parent(pid) => say!("another", calls::wait(pid)),
            },
            _ => say!(
                "another",
                calls::vfork_exec("/bin/true", &["true"], &[], 0).and_then(calls::wait)
            ),
        }
        say!("all of it", calls::wait(pid), calls::close(c.a));
    }
}

/// A program that does not read it, or that cannot be started at all, has taken nothing.
pub fn left_to_a_program_that_is_not(s: &mut Stage) {
    for path in ["/bin/true", "/no/such/program"] {
        let c = left(s, "one two", ENDS[0]);
        say!("program", calls::vfork_exec(path, &["x"], &[], c.a).and_then(calls::wait));
        say!("ours", calls::recv(c.a, 99, 0), calls::recv(c.a, 9, 0));
    }
}

/// A one-shot registration that was told of it is told no more, and one whose number was closed goes on under the
/// connection's other one, though a file has the number by then.
pub fn left_and_watched_once(s: &mut Stage) {
    let c = s.pair();
    let ep = calls::epoll_create().expect("a set");
    say!("added", calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN | EPOLLONESHOT, 5));
    say!("sent", s.b_send(c, "one two"), s.b_close(c));
    settle();
    say!("once", calls::epoll_wait(ep, 4, 2000), calls::system("true"));
    say!("no more", calls::epoll_wait(ep, 4, 50));
    say!("again", calls::epoll_ctl(ep, EPOLL_CTL_MOD, c.a, EPOLLIN | EPOLLONESHOT, 6));
    say!("again", calls::epoll_wait(ep, 4, 2000), calls::recv(c.a, 99, 0), calls::close(c.a));

    let c = s.pair();
    let other = calls::dup(c.a).expect("a duplicate");
    say!("added", calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, EPOLLIN, 7), calls::close(c.a));
    let [r, w] = calls::pipe(0).expect("a pipe");
    say!("its number", r == c.a, calls::epoll_ctl(ep, EPOLL_CTL_ADD, r, EPOLLIN, 8));
    say!("sent", s.b_send(c, "one two"), s.b_close(c));
    settle();
    say!("one", calls::system("true"), calls::epoll_wait(ep, 4, 2000));
    say!("read", calls::recv(other, 99, 0), calls::write(w, b"x"));
    let mut both = calls::epoll_wait(ep, 4, 2000).unwrap_or_default();
    both.sort_unstable();
    say!("both", both, calls::close(other));
    say!("the file", calls::epoll_wait(ep, 4, 2000), calls::close(r), calls::close(w));
}

/// Event sets that watch it are told of what is left, as before.
pub fn left_and_watched(s: &mut Stage) {
    for events in [EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLRDHUP | EPOLLET] {
        let c = s.pair();
        let ep = calls::epoll_create().expect("a set");
        say!("added", calls::epoll_ctl(ep, EPOLL_CTL_ADD, c.a, events, 5));
        say!("sent", s.b_send(c, "one two"), s.b_close(c));
        settle();
        say!("program", calls::system("true"), calls::epoll_wait(ep, 4, 2000));
        say!("rest", calls::recv(c.a, 99, 0), calls::recv(c.a, 9, 0), calls::close(c.a));
        say!("none", calls::epoll_wait(ep, 4, 0));
    }
}

/// A process without the library that the connection is passed to: what it reads to the end.
fn passed(fd: i32) -> Option<String> {
    let (over, theirs) = UnixStream::pair().ok()?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["--image", "drain"]).stdin(Stdio::from(OwnedFd::from(theirs)));
    let process = command.env_remove("LD_PRELOAD").stdout(Stdio::piped()).spawn().ok()?;
    calls::send_fd(over.as_raw_fd(), fd).ok()?;
    let _ = calls::close(fd);
    let said = process.wait_with_output().ok()?;
    Some(String::from_utf8_lossy(&said.stdout).into_owned())
}

/// A process that it is passed to.
pub fn left_and_passed(s: &mut Stage) {
    for end in ENDS {
        let c = left(s, "one two", end);
        say!("the other", passed(c.a));
    }
}

/// Urgent data is unread, and bytes before it; the peer is there.
pub fn passed_with_urgent_data(s: &mut Stage) {
    let c = s.pair();
    say!("sent", s.b_send(c, "before "), s.b(&format!("send {} {} !", c.b, libc::MSG_OOB)));
    say!("sent", s.b_send(c, "behind"));
    settle();
    s.b_later(200, &format!("close {}", c.b));
    say!("the other", passed(c.a));
}

/// Bytes from before both ends shared memory are unread, and behind them is what wakes us, because more came
/// that way; the peer is there, or has closed.
pub fn passed_over_the_switch(s: &mut Stage) {
    for stays in [true, false] {
        for program in [false, true] {
            let c = s.fresh_pair();
            say!("early", s.b_send(c, "early "));
            settle();
            // We wait for nothing, and so are woken by a doorbell for each.
            say!("ask", calls::send(c.a, b"ask", 0), s.b_recv(c, 9));
            for text in ["more ", "and ", "more"] {
                say!("sent", s.b_send(c, text));
                settle();
            }
            if stays {
                s.b_later(300, &format!("close {}", c.b));
            } else {
                say!("close", s.b_close(c));
                settle();
            }
            if program {
                let (status, read) = read_by_a_program(c.a);
                say!("program", status, read, calls::close(c.a));
            } else {
                say!("the other", passed(c.a));
            }
        }
    }
}

/// More is unread in the ring of a peer that has gone back to TCP by itself, and is there, than it takes with it; or as
/// much as it does take.
pub fn passed_beyond_what_a_socket_holds(s: &mut Stage) {
    for len in [8000, 40_000] {
        let c = s.pair();
        say!("sent", s.b(&format!("sendn {} {len} 7", c.b)));
        say!("urgent", s.b(&format!("send {} {} !", c.b, libc::MSG_OOB)));
        say!("behind", s.b_send(c, "behind"));
        settle();
        s.b_later(200, &format!("close {}", c.b));
        let whole = stream_bytes(7, 0, len);
        say!("the other", len, in_short(passed(c.a), &[&whole[..], b"behind"].concat()));
    }
}

/// It is passed while another thread reads what the peer has left unsent in memory when it went back to TCP by itself; who
/// it was passed to closes it.
pub fn passed_while_a_thread_reads(s: &mut Stage) {
    const LEN: usize = 300_000;
    let c = s.pair();
    say!("sent", s.b(&format!("sendn {} {LEN} 7", c.b)));
    say!("back", s.b(&format!("option {} {} {} 2", c.b, libc::SOL_SOCKET, libc::SO_RCVLOWAT)));
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        while got.len() < LEN {
            match calls::recv(c.a, 3000, 0) {
                Ok(more) if !more.is_empty() => got.extend(more),
                other => return Err(other),
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(got == stream_bytes(7, 0, LEN))
    });
    let (over, theirs) = UnixStream::pair().expect("a socket pair");
    say!("passed", calls::send_fd(over.as_raw_fd(), c.a).is_ok());
    drop((over, theirs));
    say!("read", format!("{:?}", reader.join().expect("no panic")).as_str());
    say!("goes on", s.b_send(c, "more"), calls::recv(c.a, 9, 0));
    say!("goes on", calls::send(c.a, b"back", 0), s.b_recv(c, 9));
}

/// What a process said that it was passed to, in short: all of the stream and its end, the beginning of it and a reset
/// (no hole, no other byte), or whatever else that was.
fn in_short(said: Option<String>, whole: &[u8]) -> String {
    let (said, whole) = (said.unwrap_or_default(), whole.escape_ascii().to_string());
    match said.strip_suffix(
        "ECONNRESET
",
    ) {
        Some(begin) if whole.starts_with(begin) => "some of it, and ECONNRESET".to_owned(),
        _ if said.strip_suffix(
            "the end
",
        ) == Some(&whole) =>
        {
            "all of it, and the end".to_owned()
        }
        _ => said.trim_end().to_owned(),
    }
}

/// Another process has the connection, whose peer has closed it, when it is passed on; and what is left for that one.
pub fn passed_while_shared(s: &mut Stage) {
    let c = s.pair();
    let [told, tell] = calls::pipe(0).expect("a pipe");
    let pid = match calls::fork() {
        Forked::Child => {
            let _ = calls::close(tell);
            let _ = calls::read(told, 1);
            let left = calls::recv(c.a, 99, libc::MSG_DONTWAIT);
            calls::exit_now(i32::from(left != Ok(b"one two".to_vec())))
        }
        Forked::Parent(pid) => pid,
    };
    say!("sent", s.b_send(c, "one two"), s.b_close(c));
    settle();
    say!("the other", in_short(passed(c.a), b"one two"));
    say!("child", calls::close(tell), calls::wait(pid));
}
