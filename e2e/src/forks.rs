//! Servers and clients that fork before their connection is attached, so that two processes hold it.

use std::io::BufRead;
use std::time::{Duration, Instant};

use crate::calls::{self, Forked};
use crate::load::listener;

/// How often a message goes there and back where a connection is to be in use.
const ROUNDS: usize = 100;
/// Longer than the messages after the first [`ROUNDS`] wait for another process to let go of a connection.
const GIVES_UP: Duration = Duration::from_millis(300);
/// What the child of a client says while its parent hears, in bytes.
const MUCH: usize = 64 << 20;
/// Messages of that parent.
const FEW: usize = 200;

/// Says what was done, and waits for a line.
fn pause(said: &str) {
    println!("{said}");
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

fn says(fd: i32, text: &[u8]) -> bool {
    calls::send(fd, text, libc::MSG_NOSIGNAL) == Ok(text.len())
}

fn hears(fd: i32, text: &[u8]) -> bool {
    calls::recv(fd, text.len(), libc::MSG_WAITALL).as_deref() == Ok(text)
}

/// Gives back what comes until the end: how many messages that were.
fn echoes(fd: i32) -> Option<usize> {
    for n in 0.. {
        let got = calls::recv(fd, 64, 0).ok()?;
        if got.is_empty() {
            return Some(n);
        }
        says(fd, &got).then_some(())?;
    }
    None
}

fn connected(port: u16) -> i32 {
    let fd = calls::socket(0).expect("a socket");
    calls::connect(fd, port).expect("a connection");
    let seconds = 20_000;
    calls::set_timeout(fd, libc::SO_RCVTIMEO, seconds).expect("a limit");
    fd
}

/// Accepts a connection and forks before its first byte; what the two processes do then is `what`.
///
/// # Panics
///
/// When a call fails, or nobody knows what to do.
pub fn serve(what: &str) {
    let (listener, port) = listener();
    println!("port {port}");
    let fd = calls::accept(listener, 0).expect("a connection");
    let [done, tell] = calls::pipe(0).expect("a pipe");
    let child = match calls::fork() {
        Forked::Child => {
            let right = match what {
                "both" | "one-ends" => {
                    let answered = hears(fd, b"first") && says(fd, b"child");
                    let _ = calls::write(tell, b"x");
                    answered && (what == "one-ends" || echoes(fd).is_some_and(|n| n >= ROUNDS))
                }
                "parent-closes" => echoes(fd).is_some_and(|n| n >= ROUNDS),
                other => panic!("what is {other}?"),
            };
            calls::exit_now(i32::from(!right));
        }
        Forked::Parent(child) => child,
    };
    println!("child {child}");
    match what {
        "both" => {
            assert_eq!(calls::read(done, 1), Ok(b"x".to_vec()));
            assert!(says(fd, b"parent"));
            pause("said");
            assert_eq!(calls::wait(child), Ok(0));
        }
        "one-ends" => {
            assert_eq!(calls::wait(child), Ok(0));
            pause("goes on");
            assert!(echoes(fd).is_some_and(|n| n >= ROUNDS));
        }
        _ => {
            assert_eq!(calls::close(fd), Ok(0));
            println!("closed");
            assert_eq!(calls::wait(child), Ok(0));
        }
    }
    println!("done");
}

/// The client of [`serve`].
///
/// # Panics
///
/// When a byte is wrong.
pub fn ask(port: u16, what: &str) {
    let fd = connected(port);
    if what == "parent-closes" {
        pause("connected");
    } else {
        assert!(says(fd, b"first"));
        pause("asked");
        assert!(hears(fd, if what == "both" { b"childparent" } else { b"child" }));
    }
    let round = |n: usize| {
        let text = format!("message {n}");
        assert!(says(fd, text.as_bytes()) && hears(fd, text.as_bytes()), "message {n}");
    };
    (0..ROUNDS).for_each(round);
    // A server whose connection is held by both gives up on it by then.
    let since = Instant::now();
    while what == "both" && since.elapsed() < GIVES_UP {
        round(ROUNDS);
    }
    pause("done");
}

/// Connects and forks before anything was said: the child says much, the parent hears and says little meanwhile.
///
/// # Panics
///
/// When a byte is wrong.
pub fn talk(port: u16) {
    let fd = connected(port);
    let child = match calls::fork() {
        Forked::Child => {
            let much = vec![b'p'; MUCH];
            let mut sent = 0;
            while let Some(rest) = much.get(sent..).filter(|rest| !rest.is_empty()) {
                sent += calls::send(fd, rest, libc::MSG_NOSIGNAL).unwrap_or(MUCH + 1);
            }
            calls::exit_now(i32::from(sent != MUCH));
        }
        Forked::Parent(child) => child,
    };
    for n in 0..FEW {
        assert!(hears(fd, b"!") && says(fd, b"c"), "message {n}");
    }
    assert_eq!(calls::wait(child), Ok(0));
    assert_eq!(calls::shutdown(fd, libc::SHUT_WR), Ok(0));
    assert!(hears(fd, b"."));
    println!("done");
}

/// The server of [`talk`]: hears, sleeps between two pieces where it is the quicker one, and says little meanwhile.
///
/// # Panics
///
/// When a byte is wrong.
pub fn listen() {
    let (listener, port) = listener();
    println!("port {port}");
    let fd = calls::accept(listener, 0).expect("a connection");
    let (mut much, mut few, mut said) = (0, 0, 0);
    loop {
        let got = calls::recv(fd, 40_000, 0).expect("bytes");
        if got.is_empty() {
            break;
        }
        let theirs = got.iter().filter(|b| **b == b'p').count();
        let little = got.iter().filter(|b| **b == b'c').count();
        assert_eq!(theirs + little, got.len(), "others among {}", got.len());
        (much, few) = (much + theirs, few + little);
        if said < FEW {
            assert!(says(fd, b"!"));
            said += 1;
        }
    }
    assert_eq!((much, few), (MUCH, FEW));
    assert!(says(fd, b"."));
    println!("done");
}
