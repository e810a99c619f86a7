//! A TCP connection of this host with itself, both of whose ends are ours.

use std::net::{Ipv4Addr, SocketAddrV6};

use crate::call::{self, Result, storage};

/// How long the kernel may take to connect two sockets of one process, milliseconds.
const CONNECT_MS: i32 = 100;
/// Others of this host may connect to the port meanwhile; so many are sent away.
const OTHERS: usize = 16;
const ECONNREFUSED: i32 = libc::ECONNREFUSED;

/// Two connected sockets, closed on exec; `v6`: of the family `AF_INET6`. Neither blocks.
///
/// # Errors
///
/// The errno, if there is no loopback interface that is up, or no descriptor left.
pub fn pair(v6: bool) -> Result<[i32; 2]> {
    let listener = Owned(socket(v6)?);
    let any = SocketAddrV6::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped(), 0, 0, 0);
    call::bind(listener.0, &storage(any, v6).0)?;
    call::listen(listener.0, 1)?;
    let at = call::name(listener.0, false)?.ok_or(ECONNREFUSED)?;
    let one = Owned(socket(v6)?);
    match call::connect(one.0, &storage(at, v6).0) {
        Ok(()) => {}
        Err(libc::EINPROGRESS) => call::wait_writable(one.0, CONNECT_MS),
        Err(errno) => return Err(errno),
    }
    let name = call::name(one.0, false)?;
    for _ in 0..OTHERS {
        let (other, from) =
            call::accept_from(listener.0, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)?;
        if from == name {
            return Ok([one.keep(), other]);
        }
        let _ = call::close(other);
        call::wait_readable(listener.0, CONNECT_MS);
    }
    Err(ECONNREFUSED)
}

fn socket(v6: bool) -> Result<i32> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let fd = call::socket(family, kind, 0)?;
    if v6 {
        // IPv4 addresses, whatever the host's default says.
        let _ = call::setsockopt(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0i32);
    }
    Ok(fd)
}

/// Closed when dropped.
struct Owned(i32);

impl Owned {
    fn keep(self) -> i32 {
        let fd = self.0;
        std::mem::forget(self);
        fd
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = call::close(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_end_sends_the_other_receives() {
        for v6 in [false, true] {
            let [one, two] = pair(v6).unwrap();
            assert_eq!(call::send(one, b"hello", libc::MSG_NOSIGNAL), Ok(5));
            call::wait_readable(two, 1000);
            let mut got = [0; 9];
            assert_eq!(call::recv(two, &mut got, libc::MSG_DONTWAIT), Ok(5));
            assert_eq!(call::name(one, true), call::name(two, false));
            let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
            assert_eq!(call::name_and_family(one, false).unwrap().1, family);
            let _ = call::close(two);
            call::wait_readable(one, 1000);
            assert_eq!(call::recv(one, &mut got, libc::MSG_DONTWAIT), Ok(0));
            let _ = call::close(one);
        }
    }
}
