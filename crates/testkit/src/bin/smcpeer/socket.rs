//! Sockets of either family. Once there, the standard library's stream does for both.

use std::io;
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::Kind;

const AF_SMC: i32 = 43;
const BACKLOG: i32 = 512;
const ADDRESS_LEN: u32 = 16;

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn set(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: a value of the length that is said.
    check(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), 4) }).map(drop)
}

fn new(kind: Kind) -> io::Result<OwnedFd> {
    let family = if kind.tcp { libc::AF_INET } else { AF_SMC };
    // SAFETY: a plain call.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: just opened, for us alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    for (name, value) in
        [(libc::SO_SNDBUF, kind.send_buffer), (libc::SO_RCVBUF, kind.receive_buffer)]
    {
        if let Some(value) = value {
            set(fd, libc::SOL_SOCKET, name, value)?;
        }
    }
    Ok(socket)
}

fn raw(address: SocketAddrV4) -> libc::sockaddr_in {
    libc::sockaddr_in {
        // SMC sockets have addresses of this family, too.
        sin_family: 2,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*address.ip()).to_be() },
        sin_zero: [0; 8],
    }
}

/// A socket that listens on all addresses.
pub(crate) fn listen(kind: Kind, port: u16) -> io::Result<TcpListener> {
    let socket = new(kind)?;
    let fd = socket.as_raw_fd();
    set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
    let address = raw(SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, port));
    // SAFETY: an address of the length that is said.
    check(unsafe { libc::bind(fd, (&raw const address).cast(), ADDRESS_LEN) })?;
    // SAFETY: a plain call.
    check(unsafe { libc::listen(fd, BACKLOG) })?;
    Ok(TcpListener::from(socket))
}

/// A connected socket.
pub(crate) fn connect(kind: Kind, to: SocketAddrV4) -> io::Result<TcpStream> {
    let socket = new(kind)?;
    let address = raw(to);
    // SAFETY: an address of the length that is said.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), ADDRESS_LEN) })?;
    Ok(TcpStream::from(socket))
}

/// Closes at once, without waiting until what was sent has arrived.
pub(crate) fn close_at_once(stream: TcpStream) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let (fd, len) = (stream.as_raw_fd(), 8);
    // SAFETY: a value of the length that is said.
    check(unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, (&raw const linger).cast(), len)
    })?;
    drop(stream);
    Ok(())
}

/// Sends one byte as urgent.
pub(crate) fn send_urgent(stream: &TcpStream, byte: u8) -> io::Result<()> {
    // SAFETY: one byte.
    let n = unsafe { libc::send(stream.as_raw_fd(), (&raw const byte).cast(), 1, libc::MSG_OOB) };
    if n == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The urgent byte, if one has come within the time.
pub(crate) fn receive_urgent(stream: &TcpStream, limit_ms: i32) -> io::Result<Option<u8>> {
    let mut wanted = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
    // SAFETY: one structure.
    if check(unsafe { libc::poll(&raw mut wanted, 1, limit_ms) })? == 0 {
        return Ok(None);
    }
    let mut byte = 0u8;
    // SAFETY: room for one byte.
    let n = unsafe { libc::recv(stream.as_raw_fd(), (&raw mut byte).cast(), 1, libc::MSG_OOB) };
    match n {
        1 => Ok(Some(byte)),
        0 => Ok(None),
        _ => Err(io::Error::last_os_error()),
    }
}
