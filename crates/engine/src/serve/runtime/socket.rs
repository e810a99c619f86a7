//! TCP: listeners and connections.

use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, sockopt};

use sys::stream;
use sys::uring::{Done, Op};

use super::core::Core;
use super::file::{moved, operate};
use super::pacing::{Pacing, is_same_host};
use super::reactor::{Readiness, Source};
use super::sleep;

/// How long to wait when there are no descriptors left.
const SHORT_OF_DESCRIPTORS: Duration = Duration::from_millis(50);

/// A socket that is bound to `address`, with `SO_REUSEPORT`, and does not listen yet.
///
/// # Errors
///
/// Those of `socket` and `bind`.
pub fn bound_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    bound(address, true)
}

/// The same, of an address at which nobody listens: it is ours, and [`Listener`]s come to it.
///
/// # Errors
///
/// As of [`bound_socket`]; `EADDRINUSE` also where a server of the same user listens that shares its port, as another of
/// ours does. The kernel would give each of them some of the connections.
pub fn first_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let fd = bound(address, false)?;
    sockopt::set_socket_reuseport(&fd, true)?;
    Ok(fd)
}

fn bound(address: SocketAddr, shared: bool) -> io::Result<OwnedFd> {
    let fd = stream::socket(address.is_ipv6()).map_err(io::Error::from_raw_os_error)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    sockopt::set_socket_reuseport(&fd, shared)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    net::bind(&fd, &address)?;
    Ok(fd)
}

/// Where connections come in.
#[derive(Debug)]
pub struct Listener {
    source: Source,
    /// What connections from other hosts get back.
    pacing: Option<Pacing>,
}

impl Listener {
    /// Listens at `address`, with `SO_REUSEPORT`: each vector may have a listener of its own at the same
    /// address, and the kernel spreads connections over them. An IPv6 address is that alone (`IPV6_V6ONLY`):
    /// `[::]` and `0.0.0.0` take a listener each. Connections from this host are not paced, even where the system's
    /// congestion control is BBR.
    ///
    /// # Errors
    ///
    /// Those of `socket`, `bind` and `listen`.
    pub fn bind(address: SocketAddr, backlog: u16) -> io::Result<Self> {
        let fd = bound_socket(address)?;
        let pacing = Pacing::take_from(&fd);
        stream::listen(&fd, backlog).map_err(io::Error::from_raw_os_error)?;
        Ok(Self { source: Source::new(Arc::new(fd))?, pacing })
    }

    /// Takes a socket that listens already, as socket activation gives one. Several vectors may have copies
    /// of it.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it does not listen.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        if !sockopt::socket_acceptconn(&fd)? {
            return Err(Errno::INVAL.into());
        }
        rustix::io::ioctl_fionbio(&fd, true)?;
        // Who has made it has chosen its congestion control, and may use it after us.
        Ok(Self { source: Source::new(Arc::new(fd))?, pacing: None })
    }

    /// The next connection, and who it is from. When the process has too many descriptors it waits until
    /// there are fewer.
    ///
    /// # Errors
    ///
    /// What is wrong with the listener itself; a connection that failed before it was taken is passed over.
    pub async fn accept(&self) -> io::Result<(Socket, SocketAddr)> {
        loop {
            let (fd, address) = self.accept_fd().await?;
            if let Ok(socket) = Socket::new(fd) {
                return Ok((socket, address));
            }
        }
    }

    /// [`Self::accept`] for a connection that another vector is to have: its descriptor.
    ///
    /// # Errors
    ///
    /// As [`Self::accept`].
    pub async fn accept_fd(&self) -> io::Result<(OwnedFd, SocketAddr)> {
        loop {
            Core::share().await;
            match stream::accept(&self.source).map_err(Errno::from_raw_os_error) {
                Ok((fd, Some(address))) => {
                    self.pace(&fd, address);
                    return Ok((fd, address));
                }
                Ok((_, None)) => {}
                Err(Errno::AGAIN) => {
                    self.source.not_readable();
                    self.source.readable().await;
                }
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    sleep(SHORT_OF_DESCRIPTORS).await;
                }
                Err(error @ (Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP)) => {
                    return Err(error.into());
                }
                // Those of the connection, accept(2): ECONNABORTED, ENETDOWN, EPROTO and so on.
                Err(_) => {}
            }
        }
    }

    /// Has a connection paced as the system wants it, unless it is from this host.
    fn pace(&self, connection: &OwnedFd, peer: SocketAddr) {
        let Some(pacing) = &self.pacing else { return };
        let local = net::getsockname(connection).ok().and_then(|a| SocketAddr::try_from(a).ok());
        if !local.is_some_and(|local| is_same_host(peer.ip(), local.ip())) {
            pacing.give_back(connection);
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    ///
    /// Those of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        name(&self.source, false)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

/// A TCP connection of this vector. What is written goes out at once (`TCP_NODELAY`).
///
/// A task whose socket is ever ready lets others go first after some calls of its `async` functions; who
/// calls the `try_` ones in a loop sees to that itself ([`super::yield_now`]).
#[derive(Debug)]
pub struct Socket(Source);

impl Socket {
    /// Takes a connected socket.
    ///
    /// # Errors
    ///
    /// What it is not, or cannot.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        match sockopt::set_tcp_nodelay(&fd, true) {
            // A UNIX socket has nothing to delay.
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
        Source::new(Arc::new(fd)).map(Self)
    }

    /// Connects to `address`.
    ///
    /// # Errors
    ///
    /// Those of `connect`.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        let fd = stream::socket(address.is_ipv6()).map_err(io::Error::from_raw_os_error)?;
        let pending = match net::connect(&fd, &address) {
            Ok(()) => false,
            Err(Errno::INPROGRESS) => true,
            Err(error) => return Err(error.into()),
        };
        let socket = Self::new(fd)?;
        if pending {
            loop {
                socket.0.not_writable();
                socket.0.writable().await;
                sockopt::socket_error(&socket.0)??;
                match net::getpeername(&socket.0) {
                    Ok(_) => break,
                    // An edge of before it connected.
                    Err(Errno::NOTCONN) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(socket)
    }

    /// What is known of its readiness, for other calls that read or write it.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.0
    }

    /// The descriptor, to be kept by whoever uses it past this.
    #[must_use]
    pub fn shared_fd(&self) -> &Arc<OwnedFd> {
        self.0.shared_fd()
    }

    /// Ends when there may be something to read, the end of it, or an error.
    pub fn readable(&self) -> Readiness<'_> {
        self.0.readable()
    }

    /// Ends when there may be room to write, or an error.
    pub fn writable(&self) -> Readiness<'_> {
        self.0.writable()
    }

    /// Receives what is there, 0 bytes at the end. Once there was nothing, it says so without
    /// a system call until [`Socket::readable`] has been awaited.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is nothing; those of `recv`.
    pub fn try_recv(&self, into: &mut [u8]) -> io::Result<usize> {
        if !self.0.may_read() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let room = into.len();
        match again(|| recv(&self.0, into, RecvFlags::empty())) {
            Ok(n) => {
                if n < room && n > 0 {
                    // There is no more: what comes later is an event of its own.
                    self.0.not_readable();
                }
                Ok(n)
            }
            Err(error) => {
                if error == Errno::AGAIN {
                    self.0.not_readable();
                }
                Err(error.into())
            }
        }
    }

    /// Looks at what is there without taking it.
    ///
    /// # Errors
    ///
    /// As [`Socket::try_recv`].
    pub fn try_peek(&self, into: &mut [u8]) -> io::Result<usize> {
        if !self.0.may_read() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match again(|| recv(&self.0, into, RecvFlags::PEEK)) {
            Ok(n) => Ok(n),
            Err(error) => {
                if error == Errno::AGAIN {
                    self.0.not_readable();
                }
                Err(error.into())
            }
        }
    }

    /// Looks at what is there, when there is something, without taking it.
    ///
    /// # Errors
    ///
    /// Those of `recv`.
    pub async fn peek(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.try_peek(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable().await,
                other => return other,
            }
        }
    }

    /// Receives what there is, when there is something; 0 bytes at the end.
    ///
    /// # Errors
    ///
    /// Those of `recv`.
    pub async fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        self.recv_or(into, || {}).await
    }

    /// [`Socket::recv`], which calls `waits` each time before it waits.
    ///
    /// # Errors
    ///
    /// Those of `recv`.
    pub async fn recv_or(&self, into: &mut [u8], mut waits: impl FnMut()) -> io::Result<usize> {
        Core::share().await;
        loop {
            match self.try_recv(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    waits();
                    self.readable().await;
                }
                other => return other,
            }
        }
    }

    /// Receives into `buf[range]` what there is, when there is something, 0 bytes at the end; the buffer comes
    /// back. With io_uring the call that sleeps receives too, which saves one for each message that was
    /// waited for.
    ///
    /// Dropped before its end, it may have received bytes that nobody sees: the connection is of no use any
    /// more then.
    ///
    /// # Panics
    ///
    /// When `range` is not within `buf`.
    pub async fn recv_owned(
        &self,
        mut buf: Vec<u8>,
        range: Range<usize>,
    ) -> (Vec<u8>, io::Result<usize>) {
        Core::share().await;
        loop {
            match self.try_recv(&mut buf[range.clone()]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return (buf, other),
            }
            let fd = self.shared_fd().clone();
            match operate(Op::Recv { fd, buf, range: range.clone() }).await {
                Ok(Done { result: Ok(n), op: Some(Op::Recv { buf, .. }), .. }) => {
                    // Less than there was room for: there was no more. The end is told again and again.
                    if n as usize == range.len() || n == 0 {
                        self.0.perhaps_readable();
                    }
                    return (buf, Ok(n as usize));
                }
                Ok(Done { result, op: Some(Op::Recv { buf: back, .. }), .. }) => match result {
                    Err(errno) if Errno::from_raw_os_error(errno) == Errno::INTR => buf = back,
                    _ => return (back, moved(result)),
                },
                Err(Op::Recv { buf: back, .. }) => {
                    buf = back;
                    self.readable().await;
                }
                _ => unreachable!("what is given comes back"),
            }
        }
    }

    /// Fills `into` with what is known to come. Each time before it waits, it calls `waits`.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the end comes before; those of `recv`.
    pub async fn recv_exact(&self, mut into: &mut [u8], mut waits: impl FnMut()) -> io::Result<()> {
        while !into.is_empty() {
            let n = self.recv_or(into, &mut waits).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            into = &mut into[n..];
        }
        Ok(())
    }

    /// Sends as much as there is room for.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no room; those of `send`. No signal is raised.
    pub fn try_send(&self, from: &[u8]) -> io::Result<usize> {
        self.try_sendv(&[IoSlice::new(from)], false)
    }

    /// Sends several parts in one call, as much as there is room for. With `more` the kernel may wait with
    /// what does not fill a segment for what follows at once.
    ///
    /// # Errors
    ///
    /// As [`Socket::try_send`].
    pub fn try_sendv(&self, parts: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
        let flags = flags.bits().cast_signed();
        let send = || stream::send(&self.0, parts, flags).map_err(Errno::from_raw_os_error);
        let n = again(send);
        if n == Err(Errno::AGAIN) {
            self.0.not_writable();
        }
        Ok(n?)
    }

    /// Sends all parts, in order; those that are sent are advanced over.
    ///
    /// Dropped before its end it has sent some of it: the connection is of no use any more then.
    ///
    /// # Errors
    ///
    /// Those of `send`.
    pub async fn send_all(&self, parts: &mut [IoSlice<'_>], more: bool) -> io::Result<()> {
        let mut left = parts;
        // Empty parts at the front are no bytes to send.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            Core::share().await;
            match self.try_sendv(left, more || left.len() > stream::PARTS_MAX) {
                Ok(n) => IoSlice::advance_slices(&mut left, n),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Ends one direction or both.
    ///
    /// # Errors
    ///
    /// Those of `shutdown`.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        stream::shutdown(&self.0, how).map_err(io::Error::from_raw_os_error)
    }

    /// Whom it is with.
    ///
    /// # Errors
    ///
    /// Those of `getpeername`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        name(&self.0, true)
    }

    /// Our end of it.
    ///
    /// # Errors
    ///
    /// Those of `getsockname`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        name(&self.0, false)
    }

    /// Bytes that have come in and are not received.
    ///
    /// # Errors
    ///
    /// Those of `FIONREAD`.
    pub fn queued(&self) -> io::Result<u64> {
        Ok(stream::unread(&self.0).map_err(io::Error::from_raw_os_error)? as u64)
    }

    /// Bytes that were sent and that the peer has not acknowledged.
    ///
    /// # Errors
    ///
    /// Those of `SIOCOUTQ`.
    pub fn unacknowledged(&self) -> io::Result<u64> {
        Ok(stream::unacknowledged(&self.0).map_err(io::Error::from_raw_os_error)? as u64)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn recv(socket: &Source, into: &mut [u8], flags: RecvFlags) -> rustix::io::Result<usize> {
    let flags = flags.bits().cast_signed();
    stream::recv(socket, into, flags).map_err(Errno::from_raw_os_error)
}

fn name(socket: &Source, peer: bool) -> io::Result<SocketAddr> {
    let name = stream::name(socket, peer).map_err(io::Error::from_raw_os_error)?;
    name.ok_or_else(|| Errno::AFNOSUPPORT.into())
}

fn again<T>(call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    rustix::io::retry_on_intr(call)
}
