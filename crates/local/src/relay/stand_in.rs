//! A TCP connection on the loopback interface, both ends of which are ours until a guest gets one.

use sys::call;

use super::EAGAIN;

const AF_INET: i32 = 2;
const SOCK_STREAM: i32 = 1;
const CLOEXEC: i32 = 0o2_000_000;
const NONBLOCK: i32 = 0o4_000;
const IPPROTO_TCP: i32 = 6;
const TCP_NODELAY: i32 = 1;
const SOL_SOCKET: i32 = 1;
const SO_OOBINLINE: i32 = 10;
const SO_LINGER: i32 = 13;
const EAFNOSUPPORT: i32 = 97;
const EINPROGRESS: i32 = 115;

/// A queue that somebody else fills can make it slower, milliseconds.
const PATIENCE_MS: i32 = 100;

/// A stand-in: the guest's end and the engine's.
#[derive(Debug)]
pub struct StandIn {
    theirs: i32,
    ours: i32,
}

impl StandIn {
    /// The guest's end. It does not block until the guest says so, and is closed on exec.
    #[must_use]
    pub fn theirs(&self) -> i32 {
        self.theirs
    }

    /// The engine's end. It does not block.
    #[must_use]
    pub fn ours(&self) -> i32 {
        self.ours
    }

    /// The engine's end is somebody else's to close from now on.
    pub(super) fn keep_ours(&mut self) -> i32 {
        std::mem::replace(&mut self.ours, -1)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        for fd in [self.theirs, self.ours] {
            if fd >= 0 {
                let _ = call::close(fd);
            }
        }
    }
}

/// Makes them: a listener that nobody else is let in by.
#[derive(Debug)]
pub(super) struct Maker {
    listener: i32,
    at: std::net::SocketAddrV4,
}

impl Maker {
    pub(super) fn new() -> Result<Self, i32> {
        let listener = call::socket(AF_INET, SOCK_STREAM | CLOEXEC | NONBLOCK, 0)?;
        // Who is accepted has the listener's options (tcp(7), `sk_clone` in the kernel). A doorbell waits for
        // nothing; should we die, the guest must not take it for the end of the stream; an urgent byte stays
        // where it is in the stream, and where that is, we are told.
        let options = call::setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, 1i32)
            .and_then(|()| call::setsockopt(listener, SOL_SOCKET, SO_LINGER, [1i32, 0]))
            .and_then(|()| call::setsockopt(listener, SOL_SOCKET, SO_OOBINLINE, 1i32));
        let here = std::net::SocketAddrV4::new([127, 0, 0, 1].into(), 0);
        let begun = options
            .and_then(|()| call::bind_v4(listener, here))
            .and_then(|()| call::listen(listener, 16))
            .and_then(|()| call::name(listener, false));
        match begun {
            Ok(Some(name)) => {
                let at = std::net::SocketAddrV4::new([127, 0, 0, 1].into(), name.port());
                Ok(Self { listener, at })
            }
            Ok(None) => Err(EAFNOSUPPORT),
            Err(errno) => {
                let _ = call::close(listener);
                Err(errno)
            }
        }
    }

    pub(super) fn make(&self) -> Result<StandIn, i32> {
        let theirs = call::socket(AF_INET, SOCK_STREAM | CLOEXEC | NONBLOCK, 0)?;
        let mut one = StandIn { theirs, ours: -1 };
        match call::connect_v4(theirs, self.at) {
            // The loopback interface answers within the call, as a rule.
            Ok(()) | Err(EINPROGRESS) => {}
            Err(errno) => return Err(errno),
        }
        let name = call::name(one.theirs, false)?;
        let mut waited = false;
        // Anybody on this host may knock here: only our own is let in.
        for _ in 0..64 {
            match call::accept_from(self.listener, CLOEXEC | NONBLOCK) {
                Ok((fd, from)) if from == name => {
                    one.ours = fd;
                    return Ok(one);
                }
                Ok((fd, _)) => {
                    let _ = call::close(fd);
                }
                Err(EAGAIN) if !waited => {
                    waited = true;
                    call::wait_writable(theirs, PATIENCE_MS);
                }
                Err(errno) => return Err(errno),
            }
        }
        Err(EAGAIN)
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        let _ = call::close(self.listener);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engines_end_has_what_it_needs() {
        let one = Maker::new().and_then(|maker| maker.make()).unwrap();
        assert_ne!(call::getsockopt::<i32>(one.ours, IPPROTO_TCP, TCP_NODELAY).unwrap(), 0);
        assert_eq!(call::getsockopt::<[i32; 2]>(one.ours, SOL_SOCKET, SO_LINGER), Ok([1, 0]));
        assert_eq!(call::getsockopt::<i32>(one.ours, SOL_SOCKET, SO_OOBINLINE), Ok(1));
        // The guest's is as a program gets it.
        assert_eq!(call::getsockopt::<i32>(one.theirs, IPPROTO_TCP, TCP_NODELAY), Ok(0));
        assert_eq!(call::getsockopt::<[i32; 2]>(one.theirs, SOL_SOCKET, SO_LINGER), Ok([0, 0]));
        assert_eq!(call::name(one.ours, true), call::name(one.theirs, false));
    }

    #[test]
    fn a_stranger_is_not_let_in() {
        let maker = Maker::new().unwrap();
        let strangers: Vec<_> =
            (0..3).map(|_| std::net::TcpStream::connect(maker.at).unwrap()).collect();
        let one = maker.make().unwrap();
        assert_eq!(call::name(one.ours, true), call::name(one.theirs, false));
        drop(strangers);
    }
}
