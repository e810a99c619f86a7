//! A message there and its answer back, again and again over one connection, in each style of I/O: what that costs when
//! both ends do nothing else can be counted, and what a doorbell is for that does not ring.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::calls;
use crate::load::Style;
use crate::turns::{Waiter, mark};

/// What goes each way.
const BYTES: usize = 100;
/// Messages before the first mark: by then the connection is attached, and both ends know whether looking at memory pays.
pub const FIRST: usize = 2_000;
/// Messages between both marks.
pub const COUNTED: usize = 10_000;

/// Marks where counting begins and ends.
fn at(message: usize) {
    if message == FIRST || message == FIRST + COUNTED {
        mark();
    }
}

/// Keeps this process on a CPU, if one is named.
fn stay_on(cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        calls::cpus::pin(cpu).expect("a CPU that there is");
    }
}

/// Answers one connection after the other at this port (0: any), until one has sent all of its messages.
///
/// # Panics
///
/// When a call fails.
pub fn serve(style: Style, port: u16, cpu: Option<usize>) {
    stay_on(cpu);
    let listener = calls::socket(0).expect("a socket");
    calls::bind(listener, port).expect("a port");
    calls::listen(listener, 16).expect("a listener");
    println!("port {}", calls::local_port(listener).expect("its port"));
    let mut messages = 0;
    while messages < FIRST + COUNTED {
        let fd = calls::accept(listener, 0).expect("a connection");
        let waiter = Waiter::for_one(style, fd);
        messages = 0;
        while let Some(message) = hear(&waiter, fd) {
            at(messages);
            messages += 1;
            if calls::send(fd, &message, libc::MSG_NOSIGNAL) != Ok(BYTES) {
                break;
            }
        }
        calls::close(fd).expect("closed");
    }
}

/// Sends a message when the last one has come back.
///
/// # Panics
///
/// When a call fails, or something else comes back.
pub fn play(port: u16, style: Style, cpu: Option<usize>) {
    stay_on(cpu);
    let fd = calls::socket(0).expect("a socket");
    calls::connect(fd, port).expect("connected");
    let waiter = Waiter::for_one(style, fd);
    for n in 0..=FIRST + COUNTED {
        at(n);
        let message = message(n);
        assert_eq!(calls::send(fd, &message, libc::MSG_NOSIGNAL), Ok(BYTES));
        assert_eq!(hear(&waiter, fd), Some(message));
    }
}

fn message(n: usize) -> Vec<u8> {
    vec![u8::try_from(n % 251).unwrap_or(0); BYTES]
}

/// A whole message; `None`: the end.
fn hear(waiter: &Waiter, fd: i32) -> Option<Vec<u8>> {
    let mut message = Vec::new();
    while message.len() < BYTES {
        waiter.wait(fd, libc::POLLIN);
        match calls::recv(fd, BYTES - message.len(), 0) {
            Ok(part) if part.is_empty() => return None,
            Ok(part) => message.extend(part),
            Err(libc::EAGAIN) => {}
            Err(libc::ECONNRESET) => return None,
            Err(e) => panic!("recv: {}", crate::show::errno_name(e)),
        }
    }
    Some(message)
}

/// The same by two threads that wait for one event set: whoever is woken goes on.
///
/// # Panics
///
/// When a call fails, or something else comes back.
pub fn play_in_twos(port: u16) {
    let fd = calls::socket(0).expect("a socket");
    calls::connect(fd, port).expect("connected");
    let waiter = Waiter::for_one(Style::Level, fd);
    let (heard, played) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let send =
        |n| assert_eq!(calls::send(fd, &message(n), libc::MSG_NOSIGNAL), Ok(BYTES), "message {n}");
    send(0);
    let one_of_them = || {
        while played.load(Ordering::Relaxed) <= FIRST + COUNTED {
            assert!(waiter.has_event(30_000), "nothing in 30 s");
            let mut heard = heard.lock().expect("no panic");
            match calls::recv(fd, BYTES - heard.len(), 0) {
                Ok(part) if part.is_empty() => return,
                Ok(part) => heard.extend(part),
                // The other one had it.
                Err(libc::EAGAIN) => continue,
                Err(e) => panic!("recv: {}", crate::show::errno_name(e)),
            }
            if heard.len() == BYTES {
                let n = played.fetch_add(1, Ordering::Relaxed);
                assert_eq!(*heard, message(n));
                heard.clear();
                // After the last the other one may have ended it all before this.
                if n < FIRST + COUNTED {
                    send(n + 1);
                }
            }
        }
        // Wakes the other one.
        let _ = calls::shutdown(fd, libc::SHUT_RDWR);
    };
    std::thread::scope(|scope| {
        scope.spawn(one_of_them);
        scope.spawn(one_of_them);
    });
}
