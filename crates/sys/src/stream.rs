//! TCP sockets by libc's names.
//!
//! [`crate::call`] goes past libc, and so past a library that stands in front of it: what `shunt run` starts
//! would stay on TCP. A program that is to be carried by that library makes the calls for its sockets here
//! ([`crate::event`] waits for them likewise), and asks [`carried`] before it does what memory cannot do for a
//! socket. Without the library these are the kernel's own calls, at the cost of libc's. With it, file data need not
//! go by way of buffers ([`take`], [`put`]).
//!
//! Errors are errno values. The calls of descriptors that the program gives away or closes are libc's anyway.

use std::ffi::{CStr, c_int, c_void};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

use crate::call::Result;
use crate::filemap::FileMap;
use crate::guarded::Caches;

/// What the library is asked: about a descriptor, or with -1 about the process. Its name is its contract with
/// `crates/preload`.
type Asked = unsafe extern "C" fn(c_int) -> c_int;

/// What it is to do with each piece of a ring: move bytes there or from there, and answer how many, or an errno
/// below 0.
type Move = unsafe extern "C" fn(arg: *mut c_void, at: *mut u8, n: usize) -> isize;
/// Has pieces of a ring of a connection moved, at most so many bytes; the answer is like [`Move`]'s. Also a contract.
type Moves = unsafe extern "C" fn(fd: c_int, n: usize, each: Move, arg: *mut c_void) -> isize;

/// What the library has under this name, if it is there.
fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends; asking changes nothing.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

fn library() -> Option<Asked> {
    static LIBRARY: OnceLock<Option<Asked>> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let at = find(c"shunt_carries");
        // SAFETY: of that name there is only the library's function, which has this signature; null is `None`.
        unsafe { std::mem::transmute::<*mut c_void, Option<Asked>>(at) }
    })
}

fn takes() -> Option<Moves> {
    static LIBRARY: OnceLock<Option<Moves>> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let at = find(c"shunt_take");
        // SAFETY: as in `library`.
        unsafe { std::mem::transmute::<*mut c_void, Option<Moves>>(at) }
    })
}

fn puts() -> Option<Moves> {
    static LIBRARY: OnceLock<Option<Moves>> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let at = find(c"shunt_put");
        // SAFETY: as in `library`.
        unsafe { std::mem::transmute::<*mut c_void, Option<Moves>>(at) }
    })
}

fn asked(fd: c_int) -> bool {
    // SAFETY: the function takes any number.
    library().is_some_and(|library| unsafe { library(fd) } != 0)
}

/// Whether the library of `shunt run` is in this process and at work.
#[must_use]
pub fn in_front() -> bool {
    asked(-1)
}

/// Whether bytes of this socket are in memory that is shared with its peer, or may come to be. Then only the
/// calls of this module may be made on it, and none with memory that the file behind it may take away.
/// `false`: it is on TCP for good.
#[must_use]
pub fn carried(socket: &impl AsFd) -> bool {
    asked(socket.as_fd().as_raw_fd())
}

/// Bytes of a `sockaddr_storage`.
const STORAGE: libc::socklen_t = 128;
const _: () = assert!(STORAGE as usize == size_of::<libc::sockaddr_storage>());

fn done(n: isize) -> Result<usize> {
    usize::try_from(n).map_err(|_| errno())
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// A TCP socket that does not block and is closed on `exec`.
///
/// # Errors
///
/// The errno of `socket(2)`.
pub fn socket(ipv6: bool) -> Result<OwnedFd> {
    let domain = if ipv6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: plain numbers.
    let fd = unsafe {
        libc::socket(domain, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0)
    };
    done(fd as isize)?;
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes connections from now on.
///
/// # Errors
///
/// The errno of `listen(2)`.
pub fn listen(socket: &impl AsFd, backlog: u16) -> Result<()> {
    // SAFETY: plain numbers.
    done(unsafe { libc::listen(socket.as_fd().as_raw_fd(), c_int::from(backlog)) } as isize)
        .map(drop)
}

/// The next connection, which does not block and is closed on `exec`, and who it is from: `None` if that is
/// no address of the internet.
///
/// # Errors
///
/// The errno of `accept4(2)`.
pub fn accept(listener: &impl AsFd) -> Result<(OwnedFd, Option<SocketAddr>)> {
    let mut from = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = STORAGE;
    // SAFETY: a place for an address, and how large it is.
    let fd = unsafe {
        libc::accept4(
            listener.as_fd().as_raw_fd(),
            from.as_mut_ptr().cast(),
            &raw mut len,
            libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        )
    };
    done(fd as isize)?;
    // SAFETY: just made, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeros is a valid storage, and so is what the kernel has written over it.
    Ok((fd, address(&unsafe { from.assume_init() })))
}

/// An address as it was meant: IPv4 stays IPv4.
fn address(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let v6 = crate::call::address(storage)?;
    match v6.ip().to_ipv4_mapped() {
        Some(ip) if c_int::from(storage.ss_family) == libc::AF_INET => {
            Some(SocketAddrV4::new(ip, v6.port()).into())
        }
        _ => Some(v6.into()),
    }
}

/// The address of one end of a connection, or `None` if it is none of the internet.
///
/// # Errors
///
/// The errno of `getsockname(2)` or, of the peer's end, of `getpeername(2)`.
pub fn name(socket: &impl AsFd, peer: bool) -> Result<Option<SocketAddr>> {
    let mut at = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut len = STORAGE;
    let fd = socket.as_fd().as_raw_fd();
    let call = if peer { libc::getpeername } else { libc::getsockname };
    // SAFETY: a place for an address, and how large it is.
    done(unsafe { call(fd, at.as_mut_ptr().cast(), &raw mut len) } as isize)?;
    // SAFETY: all zeros is a valid storage, and so is what the kernel has written over it.
    Ok(address(&unsafe { at.assume_init() }))
}

/// Receives with `MSG_*` flags; 0 bytes at the end.
///
/// # Errors
///
/// The errno of `recv(2)`.
pub fn recv(socket: &impl AsFd, into: &mut [u8], flags: i32) -> Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the bytes are ours to write.
    done(unsafe { libc::recv(fd, into.as_mut_ptr().cast(), into.len(), flags) })
}

/// Parts that one call takes (`UIO_MAXIOV`); others are not looked at.
pub const PARTS_MAX: usize = 1024;

/// Sends parts in one call, with `MSG_*` flags; without `SIGPIPE`.
///
/// # Errors
///
/// The errno of `sendmsg(2)`.
pub fn send(socket: &impl AsFd, parts: &[IoSlice<'_>], flags: i32) -> Result<usize> {
    let (fd, flags) = (socket.as_fd().as_raw_fd(), flags | libc::MSG_NOSIGNAL);
    if let [part] = parts {
        // SAFETY: the bytes are there to be read.
        return done(unsafe { libc::send(fd, part.as_ptr().cast(), part.len(), flags) });
    }
    // SAFETY: all-zero is a message without address, control data or flags.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // An `IoSlice` is an `iovec`, as std promises.
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len().min(PARTS_MAX);
    // SAFETY: all that the message refers to outlives the call, and is only read.
    done(unsafe { libc::sendmsg(fd, &raw const message, flags) })
}

/// Sends up to `n` bytes of a file, from `offset` on; 0 at its end. `SIGPIPE` must be ignored.
///
/// # Errors
///
/// The errno of `sendfile(2)`.
pub fn send_file(socket: &impl AsFd, file: &impl AsFd, offset: u64, n: usize) -> Result<usize> {
    let mut at = libc::off_t::try_from(offset).map_err(|_| libc::EINVAL)?;
    let (to, from) = (socket.as_fd().as_raw_fd(), file.as_fd().as_raw_fd());
    // SAFETY: a place for the offset.
    done(unsafe { libc::sendfile(to, from, &raw mut at, n) })
}

/// Where file data goes or comes from, without a buffer between.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// The file itself, by calls.
    File(BorrowedFd<'a>),
    /// A window of it, which has the bytes that are moved.
    Window(&'a FileMap),
}

/// A place, and how far in the file it is used.
struct Moving<'a> {
    place: Place<'a>,
    offset: u64,
}

impl Moving<'_> {
    fn store(&mut self, from: *mut u8, n: usize) -> isize {
        let at = self.offset;
        let stored = match self.place {
            // SAFETY: `from` is a piece of a ring, and the library's until this ends.
            Place::Window(map) => unsafe { map.store_from(from, n, at) },
            Place::File(file) => {
                let fd = file.as_raw_fd();
                // SAFETY: the same.
                call(|at| unsafe { libc::pwrite(fd, from.cast(), n, at) }, at)
            }
        };
        self.advance(stored)
    }

    fn load(&mut self, to: *mut u8, n: usize) -> isize {
        let at = self.offset;
        let loaded = match self.place {
            // Whoever reads it does so on another CPU, as a rule.
            // SAFETY: `to` is a free piece of a ring, and ours to write until this ends.
            Place::Window(map) => unsafe { map.load_to(to, n, at, Caches::Pass) },
            Place::File(file) => {
                let fd = file.as_raw_fd();
                // SAFETY: the same.
                call(|at| unsafe { libc::pread(fd, to.cast(), n, at) }, at)
            }
        };
        self.advance(loaded)
    }

    fn advance(&mut self, moved: std::io::Result<usize>) -> isize {
        match moved {
            Ok(n) => {
                self.offset += n as u64;
                n.cast_signed()
            }
            Err(error) => -(error.raw_os_error().unwrap_or(libc::EIO) as isize),
        }
    }
}

/// A call at an offset.
fn call(call: impl FnOnce(libc::off_t) -> isize, at: u64) -> std::io::Result<usize> {
    let at = libc::off_t::try_from(at).map_err(|_| std::io::ErrorKind::InvalidInput)?;
    usize::try_from(call(at)).map_err(|_| std::io::Error::last_os_error())
}

unsafe extern "C" fn store(moving: *mut c_void, at: *mut u8, n: usize) -> isize {
    // SAFETY: `take` gives a `Moving`, which nobody else uses meanwhile.
    unsafe { &mut *moving.cast::<Moving<'_>>() }.store(at, n)
}

unsafe extern "C" fn load(moving: *mut c_void, at: *mut u8, n: usize) -> isize {
    // SAFETY: `put` gives a `Moving`, which nobody else uses meanwhile.
    unsafe { &mut *moving.cast::<Moving<'_>>() }.load(at, n)
}

fn moves(
    socket: &impl AsFd,
    n: usize,
    moves: Option<Moves>,
    each: Move,
    mut moving: Moving<'_>,
) -> Result<usize> {
    let moves = moves.ok_or(libc::EOPNOTSUPP)?;
    let (fd, arg) = (socket.as_fd().as_raw_fd(), (&raw mut moving).cast());
    // SAFETY: a function for the argument that it is given, of which the library's keeps nothing.
    let moved = unsafe { moves(fd, n, each, arg) };
    usize::try_from(moved).map_err(|_| i32::try_from(-moved).unwrap_or(libc::EIO))
}

/// Receives up to `n` bytes, from the memory that is shared with the peer straight into a file at `offset`. It does
/// not wait for the peer. The peer may write them meanwhile: nobody is to have checked them.
///
/// # Errors
///
/// `EOPNOTSUPP`: [`recv`] has to be called, because there are none, or they are not in memory. Else the errno of
/// writing the first of them, none of which are received then.
pub fn take(socket: &impl AsFd, n: usize, place: Place<'_>, offset: u64) -> Result<usize> {
    moves(socket, n, takes(), store, Moving { place, offset })
}

/// Sends up to `n` bytes of a file, from `offset` on, straight into the memory that is shared with the peer, without
/// waiting for room; 0 at the end of the file.
///
/// # Errors
///
/// `EOPNOTSUPP`: [`send`] or [`send_file`] has to be called. `EAGAIN`: there is no room. Else the errno of reading, or
/// of the connection.
pub fn put(socket: &impl AsFd, n: usize, place: Place<'_>, offset: u64) -> Result<usize> {
    moves(socket, n, puts(), load, Moving { place, offset })
}

/// Ends one direction or both.
///
/// # Errors
///
/// The errno of `shutdown(2)`.
pub fn shutdown(socket: &impl AsFd, how: Shutdown) -> Result<()> {
    let how = match how {
        Shutdown::Read => libc::SHUT_RD,
        Shutdown::Write => libc::SHUT_WR,
        Shutdown::Both => libc::SHUT_RDWR,
    };
    // SAFETY: plain numbers.
    done(unsafe { libc::shutdown(socket.as_fd().as_raw_fd(), how) } as isize).map(drop)
}

/// Bytes that have come in and were not received.
///
/// # Errors
///
/// The errno of `FIONREAD`.
pub fn unread(socket: &impl AsFd) -> Result<usize> {
    let mut n: c_int = 0;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the request writes an int.
    done(unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut n) } as isize)?;
    Ok(usize::try_from(n).unwrap_or(0))
}

/// Bytes that were sent and that the peer has not acknowledged, the end among them.
///
/// # Errors
///
/// The errno of `SIOCOUTQ`.
pub fn unacknowledged(socket: &impl AsFd) -> Result<usize> {
    let mut n: c_int = 0;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the request (SIOCOUTQ by its other name) writes an int.
    done(unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut n) } as isize)?;
    Ok(usize::try_from(n).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV6, TcpListener, TcpStream};

    use super::*;

    fn pair() -> (TcpStream, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, from) = accept(&listener).unwrap();
        assert_eq!(from, Some(theirs.local_addr().unwrap()));
        (theirs, ours)
    }

    #[test]
    fn nobody_is_in_front_of_a_test() {
        let (_theirs, ours) = pair();
        assert!(!in_front() && !carried(&ours));
        let place = Place::File(ours.as_fd());
        assert_eq!(take(&ours, 1, place, 0), Err(libc::EOPNOTSUPP));
        assert_eq!(put(&ours, 1, place, 0), Err(libc::EOPNOTSUPP));
    }

    #[test]
    fn bytes_and_names_are_those_of_the_socket() {
        let (mut theirs, ours) = pair();
        let mut got = [0; 16];
        assert_eq!(recv(&ours, &mut got, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
        assert_eq!(name(&ours, true), Ok(Some(theirs.local_addr().unwrap())));
        assert_eq!(name(&ours, false), Ok(Some(theirs.peer_addr().unwrap())));
        let parts = [IoSlice::new(b"one"), IoSlice::new(b""), IoSlice::new(b"two")];
        assert_eq!(send(&ours, &parts, 0), Ok(6));
        assert_eq!(send(&ours, &parts[..1], 0), Ok(3));
        shutdown(&ours, Shutdown::Write).unwrap();
        let mut all = String::new();
        theirs.read_to_string(&mut all).unwrap();
        assert_eq!(all, "onetwoone");
        theirs.write_all(b"back").unwrap();
        drop(theirs);
        let mut back = Vec::new();
        loop {
            match recv(&ours, &mut got, 0) {
                Ok(0) => break,
                Ok(n) => back.extend_from_slice(&got[..n]),
                Err(libc::EAGAIN) => std::thread::yield_now(),
                Err(errno) => panic!("{errno}"),
            }
        }
        assert_eq!(back, b"back");
    }

    #[test]
    fn a_file_is_sent_to_its_end() {
        let (mut theirs, ours) = pair();
        let path = std::env::temp_dir().join(format!("shunt-stream-{}", std::process::id()));
        std::fs::write(&path, b"0123456789").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(send_file(&ours, &file, 4, 100), Ok(6));
        assert_eq!(send_file(&ours, &file, 10, 100), Ok(0));
        assert_eq!(send_file(&ours, &file, u64::MAX, 1), Err(libc::EINVAL));
        drop(ours);
        let mut all = String::new();
        theirs.read_to_string(&mut all).unwrap();
        assert_eq!(all, "456789");
    }

    #[test]
    fn addresses_are_of_the_family_that_they_were_given_in() {
        let at = SocketAddrV6::new(Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped(), 445, 0, 0);
        let storage = |v6| crate::call::storage(at, v6).0;
        assert_eq!(address(&storage(false)), Some("192.0.2.1:445".parse().unwrap()));
        assert_eq!(address(&storage(true)), Some(at.into()));
        let other = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 1, 0, 3);
        assert_eq!(address(&crate::call::storage(other, true).0), Some(other.into()));
        let listener = socket(false).unwrap();
        assert_eq!(listen(&listener, 1), Ok(()), "the kernel chooses a port");
        assert!(name(&listener, false).unwrap().unwrap().port() > 0);
        assert_eq!(accept(&listener).map(drop), Err(libc::EAGAIN));
        assert!(socket(true).is_ok() || std::fs::metadata("/proc/net/if_inet6").is_err());
    }
}
