//! The calls that std does not have: epoll, a connect that does not wait, the descriptor limit.

use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;
use std::{io, mem};

/// What an event set waits for, or has seen.
pub mod ready {
    /// Bytes, a connection or the end of the stream can be read.
    pub const READ: u32 = libc::EPOLLIN as u32;
    /// There is room to write.
    pub const WRITE: u32 = libc::EPOLLOUT as u32;
}

/// An event set (level-triggered).
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// Events that [`Epoll::wait`] found.
pub struct Events {
    found: Vec<libc::epoll_event>,
    len: usize,
}

impl Events {
    /// Room for `max` events at a time.
    #[must_use]
    pub fn with_room(max: usize) -> Self {
        Self { found: vec![libc::epoll_event { events: 0, u64: 0 }; max.max(1)], len: 0 }
    }

    /// Token and readiness of each.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32)> {
        self.found[..self.len].iter().map(|event| (event.u64, event.events))
    }
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    ///
    /// When no descriptor is left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no pointer.
        let fd = checked(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn control(&self, op: libc::c_int, fd: &impl AsFd, token: u64, want: u32) -> io::Result<()> {
        let mut event = libc::epoll_event { events: want, u64: token };
        let fd = fd.as_fd().as_raw_fd();
        // SAFETY: both descriptors are borrowed, the event is valid during the call.
        checked(unsafe { libc::epoll_ctl(self.0.as_raw_fd(), op, fd, &raw mut event) })?;
        Ok(())
    }

    /// Waits for `want` (see [`ready`]) on a descriptor; events carry `token`. It leaves the set
    /// when it is closed.
    ///
    /// # Errors
    ///
    /// As `epoll_ctl` has them.
    pub fn add(&self, fd: &impl AsFd, token: u64, want: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, want)
    }

    /// Waits for something else on a descriptor in the set.
    ///
    /// # Errors
    ///
    /// As `epoll_ctl` has them.
    pub fn change(&self, fd: &impl AsFd, token: u64, want: u32) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, want)
    }

    /// Sleeps until something is ready or `patience` is over; a signal ends it early with no event.
    ///
    /// # Errors
    ///
    /// As `epoll_wait` has them.
    pub fn wait(&self, events: &mut Events, patience: Option<Duration>) -> io::Result<()> {
        // Rounded up, so that a deadline has passed when its wait ends.
        let ms = patience
            .map_or(-1, |p| i32::try_from(p.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
        let room = i32::try_from(events.found.len()).unwrap_or(i32::MAX);
        events.len = 0;
        // SAFETY: the buffer is valid for `room` events.
        let found =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.found.as_mut_ptr(), room, ms) };
        match checked(found) {
            Ok(found) => events.len = usize::try_from(found).unwrap_or(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Begins to connect without waiting; the stream does not block, and is writable when connected.
///
/// # Errors
///
/// When no descriptor or no port is left, or the connection was refused at once.
pub fn begin_connect(to: SocketAddrV4) -> io::Result<TcpStream> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointer.
    let fd = checked(unsafe { libc::socket(libc::AF_INET, kind, 0) })?;
    // SAFETY: the descriptor is new and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all-zero is a valid sockaddr_in.
    let mut name: libc::sockaddr_in = unsafe { mem::zeroed() };
    name.sin_family = libc::sa_family_t::try_from(libc::AF_INET).expect("AF_INET is small");
    name.sin_port = to.port().to_be();
    name.sin_addr.s_addr = u32::from_ne_bytes(to.ip().octets());
    let len = libc::socklen_t::try_from(size_of_val(&name)).expect("an address is small");
    // SAFETY: `name` is a sockaddr_in of `len` bytes.
    let result = unsafe { libc::connect(fd, (&raw const name).cast(), len) };
    match checked(result) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
        Err(error) => return Err(error),
    }
    Ok(TcpStream::from(socket))
}

/// Raises the limit of open descriptors as far as it may go and returns it.
///
/// # Errors
///
/// When the limit cannot be read or set.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    checked(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is valid for reading.
    checked(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    Ok(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::{Epoll, Events, begin_connect, raise_descriptor_limit, ready};
    use std::net::{SocketAddr, TcpListener};
    use std::time::{Duration, Instant};

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_connection_becomes_acceptable_and_writable() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let SocketAddr::V4(addr) = listener.local_addr().unwrap() else { panic!("asked for IPv4") };
        let (epoll, mut events) = (Epoll::new().unwrap(), Events::with_room(8));
        epoll.add(&listener, 1, ready::READ).unwrap();
        epoll.wait(&mut events, Some(Duration::from_millis(1))).unwrap();
        assert_eq!(events.iter().count(), 0);
        let stream = begin_connect(addr).unwrap();
        epoll.add(&stream, 2, ready::WRITE).unwrap();
        // The client may be connected a moment before it can be accepted.
        let mut seen = Vec::new();
        let begun = Instant::now();
        while seen.len() < 2 && begun.elapsed() < LIMIT {
            epoll.wait(&mut events, Some(LIMIT)).unwrap();
            seen = events.iter().collect();
            seen.sort_unstable();
        }
        assert_eq!(seen, [(1, ready::READ), (2, ready::WRITE)]);
        epoll.change(&stream, 2, ready::READ).unwrap();
        drop(listener);
        epoll.wait(&mut events, Some(LIMIT)).unwrap();
        assert!(events.iter().any(|(token, seen)| token == 2 && seen & ready::READ != 0));
    }

    #[test]
    fn the_descriptor_limit_is_known() {
        assert!(raise_descriptor_limit().unwrap() >= 256);
    }
}
