//! A client of two threads: one sends, the other hears the answer, closes, and connects anew by the number that is free
//! then, while the first may not be back from its call. In the kernel that call has nothing to do with the new connection.

use std::sync::mpsc;
use std::time::Duration;

use crate::calls;
use crate::load::listener;

/// How long the server keeps what its peer has ended.
const KEPT: Duration = Duration::from_millis(3);
/// Messages of the client's first thread on each connection: both ends have left TCP by then.
const FIRST: u8 = 3;

/// Sends all back, and tells the end by an end; closes a little later, for ever.
///
/// # Panics
///
/// When a call fails that must not.
pub fn serve() {
    const LISTENER: u64 = u64::MAX;
    let (listener, port) = listener();
    calls::set_nonblocking(listener, true).expect("a flag");
    let set = calls::epoll_create().expect("an event set");
    let add = |fd, events, data| {
        calls::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, events, data).expect("added");
    };
    add(listener, libc::EPOLLIN, LISTENER);
    println!("port {port}");
    let mut ended = Vec::new();
    loop {
        let kept_ms = i32::try_from(KEPT.as_millis()).expect("little");
        let events = calls::epoll_wait(set, 16, kept_ms).expect("events");
        if events.is_empty() {
            for fd in ended.drain(..) {
                calls::close(fd).expect("closed");
            }
        }
        for (_, data) in events {
            if data == LISTENER {
                while let Ok(fd) = calls::accept(listener, libc::SOCK_NONBLOCK) {
                    let events = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET;
                    add(fd, events, u64::try_from(fd).expect("a descriptor"));
                }
                continue;
            }
            let fd = i32::try_from(data).expect("a descriptor");
            loop {
                match calls::recv(fd, 100, 0) {
                    Ok(bytes) if !bytes.is_empty() => {
                        // Its peer may have gone.
                        let _ = calls::send(fd, &bytes, libc::MSG_NOSIGNAL);
                    }
                    Err(libc::EAGAIN) => break,
                    _ => {
                        let _ = calls::shutdown(fd, libc::SHUT_WR);
                        if !ended.contains(&fd) {
                            ended.push(fd);
                        }
                        break;
                    }
                }
            }
        }
    }
}

/// So many connections to this port, one after the other. `ends`: the second thread ends its direction after its message,
/// and the first one waits for the end.
///
/// # Panics
///
/// When a call fails, or other bytes come than were sent.
pub fn ask(port: u16, rounds: usize, ends: bool) {
    let (tell, told) = mpsc::channel::<i32>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for fd in told {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                assert_eq!(calls::send(fd, b"q", flags), Ok(1));
                if ends {
                    assert_eq!(calls::shutdown(fd, libc::SHUT_WR), Ok(0));
                }
            }
        });
        for round in 0..rounds {
            let fd = calls::socket(0).expect("a socket");
            calls::connect(fd, port).expect("connected");
            for nth in 0..FIRST {
                assert_eq!(calls::send(fd, &[nth], libc::MSG_NOSIGNAL), Ok(1), "round {round}");
                assert_eq!(calls::recv(fd, 1, 0), Ok(vec![nth]), "round {round}, descriptor {fd}");
            }
            tell.send(fd).expect("it listens");
            assert_eq!(calls::recv(fd, 1, 0), Ok(b"q".to_vec()), "round {round}");
            if ends {
                assert_eq!(calls::recv(fd, 1, 0), Ok(Vec::new()), "round {round}");
            }
            calls::close(fd).expect("closed");
        }
        drop(tell);
    });
    println!("done");
}
