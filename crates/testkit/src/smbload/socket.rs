//! Calls for the connection by libc's names, as other people's programs make them: under `shunt run` too, that is
//! what is measured.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};

fn moved(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Receives; `drop`: nowhere, and as many bytes as there is room for in `into`, which is left as it is
/// (`MSG_TRUNC`).
///
/// # Errors
///
/// Those of `recv(2)`.
pub(crate) fn recv(socket: &TcpStream, into: &mut [u8], drop: bool) -> io::Result<usize> {
    let flags = if drop { libc::MSG_TRUNC } else { 0 };
    // SAFETY: the bytes are ours to write.
    moved(unsafe { libc::recv(socket.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), flags) })
}

/// Sends what more follows at once.
///
/// # Errors
///
/// Those of `send(2)`.
pub(crate) fn send_more(socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_MORE | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes are there to be read.
    moved(unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// Sends `n` bytes of a file, from `offset` on, which is moved.
///
/// # Errors
///
/// Those of `sendfile(2)`.
pub(crate) fn send_file(
    socket: &TcpStream,
    file: BorrowedFd<'_>,
    offset: &mut i64,
    n: usize,
) -> io::Result<usize> {
    // SAFETY: a place for the offset.
    moved(unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), offset, n) })
}
