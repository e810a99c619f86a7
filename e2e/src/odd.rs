//! Clients and a server that do what keeps a connection on TCP, or takes it back there, and then wait to be looked at.

use std::io::BufRead;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::calls;
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
        "short" => {
            let fd = connected(port);
            assert_eq!(calls::shutdown(fd, libc::SHUT_WR), Ok(0));
            pause("done");
            assert_eq!(calls::recv(fd, 9, 0), Ok(Vec::new()));
        }
        "broken" => {
            let fd = in_use(port);
            pause("in use");
            let got = calls::recv(fd, 9, 0);
            pause(&got.err().map_or_else(|| "received".to_owned(), errno_name));
        }
        "handed" => {
            let fd = in_use(port);
            pause("in use");
            // Another one with the same connection, which a program without the library has then.
            let given = Stdio::from(calls::rarely::owned(calls::dup(fd).expect("a duplicate")));
            let mut program = Command::new("true");
            let done = program.env_remove("LD_PRELOAD").stdin(given).status();
            pause(&done.expect("a program").to_string());
            echo(fd, "as before");
        }
        "filtered" => {
            let fd = in_use(port);
            calls::filter::allow_only(&PLAIN).expect("a filter");
            served(fd);
            pause("done");
            // And one that is made then.
            served(in_use(port));
        }
        "refused" => {
            let fd = in_use(port);
            calls::filter::ask();
            for refused in [libc::SYS_ptrace, libc::SYS_mount] {
                calls::filter::refuse(&[refused]).expect("a filter");
                served(fd);
            }
            // And one that is made then.
            let later = in_use(port);
            pause("done");
            served(later);
        }
        other => panic!("what is {other}?"),
    }
}

/// What a plain program needs for what is done here.
const PLAIN: [libc::c_long; 19] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_close,
    libc::SYS_mmap,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Messages there and back, with pauses in which the peer goes to sleep.
fn served(fd: i32) {
    for n in 0..20 {
        std::thread::sleep(Duration::from_millis(n % 4));
        echo(fd, "a message");
        echo(fd, &"longer".repeat(1000));
    }
}
