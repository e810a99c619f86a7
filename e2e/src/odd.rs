//! Clients and a server that do what keeps a connection on TCP, or takes it back there, and then wait to be looked at.

use std::io::BufRead;

use crate::calls::{self, Forked};
use crate::load::listener;
use crate::show::errno_name;

/// Says what was done, and waits for a line.
fn pause(said: &str) {
    println!("{said}");
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

/// A message there and back.
fn echo(fd: i32, text: &str) {
    assert_eq!(calls::send(fd, text.as_bytes(), libc::MSG_NOSIGNAL), Ok(text.len()));
    assert_eq!(calls::recv(fd, text.len(), libc::MSG_WAITALL), Ok(text.as_bytes().to_vec()));
}

fn connected(port: u16) -> i32 {
    let fd = calls::socket(0).expect("a socket");
    calls::connect(fd, port).expect("a connection");
    fd
}

/// A connection to an echo that has left TCP, if it may.
fn in_use(port: u16) -> i32 {
    let fd = connected(port);
    (0..8).for_each(|_| echo(fd, "hello"));
    fd
}

/// What a client does on its connection to an echo.
///
/// # Panics
///
/// When a byte is wrong, or nobody knows what to do.
pub fn ask(port: u16, what: &str) {
    match what {
        "sets" => {
            let fd = in_use(port);
            for _ in 0..3 {
                let set = calls::epoll_create().expect("a set");
                let add = libc::EPOLL_CTL_ADD;
                calls::epoll_ctl(set, add, fd, libc::EPOLLIN, 1).expect("added");
            }
            pause("done");
            echo(fd, "as before");
        }
        "splice" => {
            let fd = connected(port);
            let [out, into] = calls::pipe(0).expect("a pipe");
            calls::write(into, b"spliced").expect("written");
            assert_eq!(calls::splice(out, fd, 7, 0), Ok(7));
            assert_eq!(calls::recv(fd, 7, libc::MSG_WAITALL), Ok(b"spliced".to_vec()));
            pause("done");
            echo(fd, "as before");
        }
        "broken" => {
            let fd = in_use(port);
            pause("in use");
            let got = calls::recv(fd, 9, 0);
            pause(&got.err().map_or_else(|| "received".to_owned(), errno_name));
        }
        other => panic!("what is {other}?"),
    }
}

/// Accepts a connection and forks before its first byte: the child answers it, then the parent says something as well.
///
/// # Panics
///
/// When a call fails.
pub fn serve_forked() {
    let (listener, port) = listener();
    println!("port {port}");
    let fd = calls::accept(listener, 0).expect("a connection");
    let [done, tell] = calls::pipe(0).expect("a pipe");
    let child = match calls::fork() {
        Forked::Child => {
            let got = calls::recv(fd, 5, libc::MSG_WAITALL);
            let sent = calls::send(fd, b"child", libc::MSG_NOSIGNAL);
            let _ = calls::write(tell, b"x");
            // Until the client has gone.
            let end = calls::recv(fd, 5, 0);
            let right = got == Ok(b"first".to_vec()) && sent == Ok(5) && end == Ok(Vec::new());
            calls::exit_now(i32::from(!right));
        }
        Forked::Parent(child) => child,
    };
    assert_eq!(calls::read(done, 1), Ok(b"x".to_vec()));
    pause("answered");
    assert_eq!(calls::send(fd, b"parent", libc::MSG_NOSIGNAL), Ok(6));
    pause("done");
    assert_eq!(calls::close(fd), Ok(0));
    assert_eq!(calls::wait(child), Ok(0));
}

/// The client of [`serve_forked`].
///
/// # Panics
///
/// When a byte is wrong.
pub fn ask_forked(port: u16) {
    let fd = connected(port);
    assert_eq!(calls::send(fd, b"first", libc::MSG_NOSIGNAL), Ok(5));
    assert_eq!(calls::recv(fd, 5, libc::MSG_WAITALL), Ok(b"child".to_vec()));
    pause("answered");
    assert_eq!(calls::recv(fd, 6, libc::MSG_WAITALL), Ok(b"parent".to_vec()));
    pause("done");
}
