//! A client that waits for many connections of which one is used, and a server that reads from each by a thread of its
//! own, so that it takes no offer before there is something to read.

use crate::calls;
use crate::load::listener;

/// Serves an echo, a thread for each connection, for ever.
///
/// # Panics
///
/// When it cannot accept, or has no more threads.
pub fn serve() -> ! {
    let (listener, port) = listener();
    println!("port {port}");
    loop {
        let fd = calls::accept(listener, 0).expect("a connection");
        let small = std::thread::Builder::new().stack_size(64 << 10);
        let echo = move || {
            while let Ok(got) = calls::recv(fd, 64, 0) {
                if got.is_empty() || calls::send(fd, &got, libc::MSG_NOSIGNAL).is_err() {
                    break;
                }
            }
        };
        small.spawn(echo).expect("a thread");
    }
}

/// Waits for `count` idle connections and one more, on which `rounds` messages go there and back; says so, and waits to be
/// told to go on. Then each of the others answers too.
///
/// # Panics
///
/// When a call fails, or an event or a byte is wrong.
pub fn wait(port: u16, count: usize, rounds: usize) {
    let set = calls::epoll_create().expect("a set");
    let all: Vec<i32> = (0..=count)
        .map(|n| {
            let fd = calls::socket(0).expect("a socket");
            calls::connect(fd, port).expect("a connection");
            let add = libc::EPOLL_CTL_ADD;
            calls::epoll_ctl(set, add, fd, libc::EPOLLIN, n as u64).expect("added");
            fd
        })
        .collect();
    let echo = |n: usize| {
        assert_eq!(calls::send(all[n], b"hello", libc::MSG_NOSIGNAL), Ok(5));
        let events = calls::epoll_wait(set, 9, 20_000).expect("an event");
        assert_eq!(events.iter().map(|(_, data)| *data).collect::<Vec<_>>(), [n as u64]);
        assert_eq!(calls::recv(all[n], 9, 0), Ok(b"hello".to_vec()));
    };
    (0..rounds).for_each(|_| echo(count));
    println!("done");
    let _ = std::io::stdin().read_line(&mut String::new());
    (0..count).for_each(echo);
}
