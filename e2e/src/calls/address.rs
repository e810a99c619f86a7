//! Where the connections of a guest begin and end: on 127.0.0.1, unless `E2E_HOST` names another address of
//! this host, of IPv4 or IPv6. Where the peer is on another host, `E2E_THERE` is that one's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::*;

/// The address that guests listen at.
///
/// # Panics
///
/// When `E2E_HOST` is no address: a mistake in a test.
#[must_use]
pub fn here() -> IpAddr {
    static HERE: std::sync::OnceLock<IpAddr> = std::sync::OnceLock::new();
    let given = || std::env::var("E2E_HOST").ok();
    let parse = |text: String| text.parse().expect("E2E_HOST is an address");
    *HERE.get_or_init(|| given().map_or_else(|| Ipv4Addr::LOCALHOST.into(), parse))
}

/// The address that guests connect to.
///
/// # Panics
///
/// When `E2E_THERE` is no address: a mistake in a test.
#[must_use]
pub fn there() -> IpAddr {
    static THERE: std::sync::OnceLock<IpAddr> = std::sync::OnceLock::new();
    let given = || std::env::var("E2E_THERE").ok();
    let parse = |text: String| text.parse().expect("E2E_THERE is an address");
    *THERE.get_or_init(|| given().map_or_else(here, parse))
}

/// `AF_INET` or `AF_INET6`.
#[must_use]
pub fn family() -> c_int {
    family_of(here())
}

/// The family of an address.
#[must_use]
pub const fn family_of(ip: IpAddr) -> c_int {
    if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

/// As the kernel takes it, with its length.
pub(super) fn storage(ip: IpAddr, port: u16) -> (libc::sockaddr_storage, u32) {
    let mut all = zero!(libc::sockaddr_storage);
    let len = match ip {
        IpAddr::V4(ip) => {
            let mut addr = zero!(libc::sockaddr_in);
            addr.sin_family = libc::AF_INET as u16;
            addr.sin_port = port.to_be();
            addr.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
            // SAFETY: the storage has room for every kind of address.
            unsafe { (&raw mut all).cast::<libc::sockaddr_in>().write(addr) };
            size_of::<libc::sockaddr_in>()
        }
        IpAddr::V6(ip) => {
            let mut addr = zero!(libc::sockaddr_in6);
            addr.sin6_family = libc::AF_INET6 as u16;
            addr.sin6_port = port.to_be();
            addr.sin6_addr.s6_addr = ip.octets();
            // SAFETY: the same.
            unsafe { (&raw mut all).cast::<libc::sockaddr_in6>().write(addr) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (all, len as u32)
}

fn parsed(all: &libc::sockaddr_storage) -> SocketAddr {
    let at = std::ptr::from_ref(all);
    if i32::from(all.ss_family) == libc::AF_INET6 {
        // SAFETY: the kernel says that it is one of these.
        let addr = unsafe { at.cast::<libc::sockaddr_in6>().read() };
        let ip = Ipv6Addr::from(addr.sin6_addr.s6_addr);
        return SocketAddr::new(ip.into(), u16::from_be(addr.sin6_port));
    }
    // SAFETY: the other kind that the tests use; as long as the storage in any case.
    let addr = unsafe { at.cast::<libc::sockaddr_in>().read() };
    let ip = Ipv4Addr::from(addr.sin_addr.s_addr.to_ne_bytes());
    SocketAddr::new(ip.into(), u16::from_be(addr.sin_port))
}

type Asks = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut u32) -> c_int;

fn ask(asks: Asks, fd: c_int) -> Result<(c_int, SocketAddr), i32> {
    let mut all = zero!(libc::sockaddr_storage);
    let mut len = size_of::<libc::sockaddr_storage>() as u32;
    let value = make!(asks, fd, (&raw mut all).cast(), &raw mut len)?;
    Ok((value, parsed(&all)))
}

/// `accept` with the address: the new descriptor and the peer's end.
pub fn accept_from(fd: c_int) -> Result<(c_int, SocketAddr), i32> {
    ask(libc::accept, fd)
}

/// `getsockname`.
pub fn local(fd: c_int) -> Result<SocketAddr, i32> {
    ask(libc::getsockname, fd).map(|(_, addr)| addr)
}

/// `getpeername`.
pub fn remote(fd: c_int) -> Result<SocketAddr, i32> {
    ask(libc::getpeername, fd).map(|(_, addr)| addr)
}

/// `bind`.
pub fn bind_to(fd: c_int, ip: IpAddr, port: u16) -> Ret {
    let (addr, len) = storage(ip, port);
    call!(libc::bind, fd, (&raw const addr).cast(), len)
}

/// `connect`.
pub fn connect_to(fd: c_int, ip: IpAddr, port: u16) -> Ret {
    let (addr, len) = storage(ip, port);
    call!(libc::connect, fd, (&raw const addr).cast(), len)
}
