//! Descriptors that guests have given us are closed without waiting.
//!
//! A program may have asked that closing its socket waits until all was sent (`SO_LINGER`), for as long as it likes. That
//! wish stays with the socket whoever closes it last, which may be we. It is not ours to take back, where the program goes
//! on with the connection; so another thread does the waiting.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};

use sys::call;

const SOL_SOCKET: i32 = 1;
const SO_LINGER: i32 = 13;
/// Sockets that wait to be closed.
const MANY: usize = 256;

/// To be called before a socket of a guest is closed: that does not wait.
pub(super) fn before_closing(socket: &impl AsRawFd) {
    static CLOSER: OnceLock<Option<SyncSender<RawFd>>> = OnceLock::new();
    let lingers = call::getsockopt::<[i32; 2]>(socket.as_raw_fd(), SOL_SOCKET, SO_LINGER);
    if !matches!(lingers, Ok([on, seconds]) if on != 0 && seconds != 0) {
        return;
    }
    // As long as another descriptor leads there, closing one waits for nothing.
    let other = call::dup_above(socket.as_raw_fd(), 0).ok();
    let closer = CLOSER.get_or_init(closer).as_ref();
    let taken = other.zip(closer).is_some_and(|(other, closer)| closer.try_send(other).is_ok());
    if !taken {
        let _ = call::setsockopt(socket.as_raw_fd(), SOL_SOCKET, SO_LINGER, [0i32, 0]);
        let _ = other.map(call::close);
    }
}

fn closer() -> Option<SyncSender<RawFd>> {
    let (sender, receiver) = sync_channel::<RawFd>(MANY);
    let work = move || {
        for fd in receiver {
            let _ = call::close(fd);
        }
    };
    std::thread::Builder::new().name("shunt-closer".into()).spawn(work).ok().map(|_| sender)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// What would wait for an hour is done by another thread; this one would not come back.
    #[test]
    fn closing_a_socket_that_lingers_waits_for_nobody() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        while near.write(&[0; 65_536]).is_ok() {}
        call::setsockopt(near.as_raw_fd(), SOL_SOCKET, SO_LINGER, [1i32, 3600]).unwrap();
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            before_closing(&near);
            drop(near);
            done.send(()).unwrap();
        });
        assert!(is_done.recv_timeout(Duration::from_secs(60)).is_ok(), "it waits");
    }
}
