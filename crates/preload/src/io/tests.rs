//! Calls in whose middle another thread closes their connection. (These tests are a program under the library.)

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;

use super::*;

/// A connection of this process with itself, and whether it has left TCP.
fn connected() -> ([TcpStream; 2], bool) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut far = listener.accept().unwrap().0;
    let mut is_attached = false;
    for _ in 0..3 {
        near.write_all(b"?").unwrap();
        far.read_exact(&mut [0]).unwrap();
        far.write_all(b"!").unwrap();
        near.read_exact(&mut [0]).unwrap();
        is_attached = fds::conn(near.as_raw_fd()).is_some_and(|c| c.phase() == Phase::Attached);
    }
    ([near, far], is_attached)
}

/// What an `iov` of these bytes is.
fn iov(bytes: &mut [u8]) -> [iovec; 1] {
    [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }]
}

/// A call that has been in a ring has still to do something in the kernel, and its number leads elsewhere meanwhile: by a
/// thread that has closed the connection since the peer has answered what came of the call so far, and made another one.
#[test]
fn what_is_left_of_a_call_does_not_go_by_the_number_of_another_connection() {
    let ([near, _far], is_attached) = connected();
    if !is_attached {
        return eprintln!("skipped: no board to be had here");
    }
    let ([other, mut its_peer], _) = connected();
    let (w, fd) = (fds::world().unwrap(), near.as_raw_fd());
    let conn = fds::conn(fd).unwrap();
    // SAFETY: two descriptors of ours.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);

    // SAFETY: our own buffer.
    let sent = unsafe { transmit_ring(w, conn, fd, &iov(&mut [b'x']), libc::MSG_NOSIGNAL, None) };
    its_peer.set_nonblocking(true).unwrap();
    let came = its_peer.read(&mut [0]).map_err(|e| e.kind());
    assert_eq!((sent, came), (Err(libc::EBADF), Err(ErrorKind::WouldBlock)));

    its_peer.write_all(b"y").unwrap();
    let mut bytes = [0];
    let into = iov(&mut bytes);
    // SAFETY: our own buffer.
    let got = unsafe { receive_ring(w, conn, fd, &into, libc::MSG_DONTWAIT, &mut None) };
    assert_eq!((got, bytes), (Err(libc::EBADF), [0]));
}

/// An event loop is about to take a registration out of the kernel that the program has taken out, and another thread closes
/// the connection: the number is another file's, and so is what it has in the set.
#[test]
fn a_registration_is_not_taken_out_by_the_number_of_another_file() {
    let ([near, mut far], is_attached) = connected();
    if !is_attached {
        return eprintln!("skipped: no board to be had here");
    }
    let (other, mut its_peer) = UnixStream::pair().unwrap();
    let fd = near.as_raw_fd();
    let conn = fds::conn(fd).unwrap();
    // SAFETY: a plain call.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 7 };
    let mut change = |op, fd| {
        // SAFETY: a valid place.
        unsafe { libc::epoll_ctl(set, op, fd, &raw mut event) }
    };
    assert_eq!(change(libc::EPOLL_CTL_ADD, fd), 0);
    assert_eq!(change(libc::EPOLL_CTL_DEL, fd), 0);
    let kept = conn.sets[0].parked.load(Ordering::Relaxed);
    assert_ne!(kept, 0, "it has been taken out in the kernel as well");
    // SAFETY: two descriptors of ours.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
    assert_eq!(change(libc::EPOLL_CTL_ADD, fd), 0);

    // As who has looked at it before sees it.
    conn.sets[0].parked.store(kept, Ordering::Relaxed);
    ready::unpark(conn, 0);
    its_peer.write_all(b"y").unwrap();
    let mut told = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: a valid place for one.
    assert_eq!(unsafe { libc::epoll_wait(set, &raw mut told, 1, 5000) }, 1);
    assert_eq!({ told.u64 }, 7);
    far.set_nonblocking(true).unwrap();
    assert_eq!(far.read(&mut [0]).ok(), Some(0), "it is closed");
    // SAFETY: ours.
    assert_eq!(unsafe { libc::close(set) }, 0);
}

/// The first of several messages has been read and answered, and another thread has closed the connection for that.
#[test]
fn messages_of_one_call_do_not_go_to_different_connections() {
    const LEN: usize = 16 << 20;
    let ([near, mut far], is_attached) = connected();
    if !is_attached {
        return eprintln!("skipped: no board to be had here");
    }
    let ([other, mut its_peer], _) = connected();
    let fd = near.as_raw_fd();
    let conn = fds::conn(fd).unwrap();
    let sending = std::thread::spawn(move || {
        let (mut long, mut short) = (vec![7; LEN], [b'x']);
        let mut parts = [iov(&mut long), iov(&mut short)];
        let mut messages = parts.each_mut().map(|part| {
            // SAFETY: all zeros is a message of nothing.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_iov = part.as_mut_ptr();
            message.msg_hdr.msg_iovlen = part.len();
            message
        });
        // SAFETY: two messages of our own buffers.
        unsafe { libc::sendmmsg(fd, messages.as_mut_ptr(), 2, libc::MSG_NOSIGNAL) }
    });
    // Its ring is full.
    while conn.inside.load(Ordering::Relaxed) == 0 {
        call::sched_yield();
    }
    // SAFETY: two descriptors of ours.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
    far.read_exact(&mut vec![0; LEN]).unwrap();
    assert_eq!(sending.join().unwrap(), 1);
    its_peer.set_nonblocking(true).unwrap();
    assert_eq!(its_peer.read(&mut [0]).map_err(|e| e.kind()), Err(ErrorKind::WouldBlock));
}

/// What was kept for a call of another thread is that thread's, and a forked child does not have it: it goes by the descriptor
/// that it has, also to wake its peer.
#[test]
fn a_child_does_not_go_by_what_is_kept_for_a_call_of_its_parent() {
    let ([near, mut far], is_attached) = connected();
    if !is_attached {
        return eprintln!("skipped: no board to be had here");
    }
    let other = near.try_clone().unwrap();
    let fd = near.into_raw_fd();
    let conn = fds::conn(fd).unwrap();
    let reading = std::thread::spawn(move || {
        let mut byte = [0];
        // SAFETY: our own buffer.
        (unsafe { libc::recv(fd, byte.as_mut_ptr().cast(), 1, 0) }, byte)
    });
    asleep(conn);
    // SAFETY: ours, and nobody else's.
    assert_eq!(unsafe { libc::close(fd) }, 0);
    assert_ne!(conn.kept.load(Ordering::Relaxed), 0, "nothing is kept for that call");
    let far_conn = fds::conn(far.as_raw_fd()).unwrap();
    far.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    let mut hears = far.try_clone().unwrap();
    let hearing = std::thread::spawn(move || {
        let mut byte = [0];
        hears.read_exact(&mut byte).map(|()| byte).map_err(|e| e.kind())
    });
    asleep(far_conn);

    // SAFETY: the child makes two calls.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let byte = b"x".as_ptr().cast();
        // SAFETY: a byte of our own.
        let sent = unsafe { libc::send(other.as_raw_fd(), byte, 1, libc::MSG_NOSIGNAL) };
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(sent != 1)) };
    }
    assert_eq!(hearing.join().unwrap(), Ok([b'x']));
    let mut how = 0;
    // SAFETY: our child, and a valid place.
    assert_eq!((unsafe { libc::waitpid(child, &raw mut how, 0) }, how), (child, 0));
    // The call of the parent goes on.
    far.write_all(b"y").unwrap();
    assert_eq!(reading.join().unwrap(), (1, [b'y']));
}

/// Waits until a thread sleeps on a connection in the kernel, or is about to and has to be rung for.
fn asleep(conn: &Conn) {
    while conn.halves(fds::world().unwrap()).unwrap().0.sleepers.load(Ordering::Relaxed) == 0 {
        call::sched_yield();
    }
}
