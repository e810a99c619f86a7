//! Sequenced packets between processes of one host, with a descriptor on top of each if need be.
//!
//! `SOCK_SEQPACKET` of the unix domain: a packet arrives whole or not at all, in order, and the end of
//! either process is the end of the socket.

use std::ffi::CStr;

use crate::call::{self, Result, raw};

const AF_UNIX: u16 = 1;
const SOCK_SEQPACKET: i32 = 5;
const CLOEXEC: i32 = 0o2_000_000;
const NONBLOCK: i32 = 0o4_000;
const SOL_SOCKET: i32 = 1;
const SO_SNDTIMEO: i32 = 21;
const SCM_RIGHTS: i32 = 1;
const SO_PEERCRED: i32 = 17;
const MSG_CTRUNC: i32 = 8;
const MSG_NOSIGNAL: i32 = 0x4000;
const MSG_CMSG_CLOEXEC: i32 = 0x4000_0000;
const EMFILE: i32 = 24;
const ENAMETOOLONG: i32 = 36;
const EPROTO: i32 = 71;

/// Who is at the other end of a socket, as the kernel saw it when the two met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process id in our pid namespace; 0 if it has none there.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
}

fn check(ret: isize) -> Result<usize> {
    usize::try_from(ret).map_err(|_| i32::try_from(-ret).unwrap_or(5))
}

/// A unix address and its length in bytes.
fn address(path: &CStr) -> Result<(libc::sockaddr_un, usize)> {
    // SAFETY: all zeros is a valid address.
    let mut at: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    at.sun_family = AF_UNIX;
    let bytes = path.to_bytes_with_nul();
    if bytes.len() > at.sun_path.len() {
        return Err(ENAMETOOLONG);
    }
    for (to, from) in at.sun_path.iter_mut().zip(bytes) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    Ok((at, size_of::<u16>() + bytes.len()))
}

fn number(fd: i32) -> usize {
    fd.cast_unsigned() as usize
}

/// An abstract address that the kernel has chosen, and its length in bytes (unix(7), autobind): five digits.
fn abstract_address(number: u32) -> (libc::sockaddr_un, usize) {
    // SAFETY: all zeros is a valid address.
    let mut at: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    at.sun_family = AF_UNIX;
    for (i, to) in at.sun_path[1..=ABSTRACT_DIGITS].iter_mut().enumerate() {
        let digit = number >> (4 * (ABSTRACT_DIGITS - 1 - i)) & 0xf;
        let digit = char::from_digit(digit, 16).unwrap_or('0');
        *to = libc::c_char::from_ne_bytes([u8::try_from(digit).unwrap_or(b'0')]);
    }
    (at, ABSTRACT_BYTES)
}

/// The number of such an address.
fn abstract_number(at: &libc::sockaddr_un, len: usize) -> Option<u32> {
    if len != ABSTRACT_BYTES || at.sun_path[0] != 0 {
        return None;
    }
    at.sun_path[1..=ABSTRACT_DIGITS].iter().try_fold(0, |number, digit| {
        let [digit] = digit.to_ne_bytes();
        Some(number << 4 | char::from(digit).to_digit(16)?)
    })
}

/// Any address.
const ADDRESS_BYTES: u32 = 110;
const _: () = assert!(size_of::<libc::sockaddr_un>() == ADDRESS_BYTES as usize);

const ABSTRACT_DIGITS: usize = 5;
/// The family, a zero, and the digits.
const ABSTRACT_BYTES: usize = size_of::<u16>() + 1 + ABSTRACT_DIGITS;

/// A new socket, of which `bind` makes one that listens. It does not block.
fn listening(bind: impl FnOnce(i32) -> Result<usize>, backlog: i32) -> Result<i32> {
    let fd = call::socket(i32::from(AF_UNIX), SOCK_SEQPACKET | CLOEXEC | NONBLOCK, 0)?;
    let queue = [number(fd), number(backlog), 0, 0, 0, 0];
    // SAFETY: plain numbers.
    let done = bind(fd).and_then(|_| check(unsafe { raw(libc::SYS_listen, queue) }));
    match done {
        Ok(_) => Ok(fd),
        Err(errno) => {
            let _ = call::close(fd);
            Err(errno)
        }
    }
}

/// Listens at `path`, which must not exist. The socket does not block.
///
/// # Errors
///
/// The errno of `socket`, `bind` or `listen`; `ENAMETOOLONG` beyond 107 bytes.
pub fn listen(path: &CStr, backlog: i32) -> Result<i32> {
    let (at, len) = address(path)?;
    let bind = |fd| {
        let args = [number(fd), (&raw const at) as usize, len, 0, 0, 0];
        // SAFETY: `at` is valid for `len` bytes.
        check(unsafe { raw(libc::SYS_bind, args) })
    };
    listening(bind, backlog)
}

/// Listens at an abstract address of this network namespace that nobody has, which the kernel chooses: the descriptor,
/// which does not block, and the number of the address. Anybody in the namespace may connect, whatever user, root
/// directory or mount namespace.
///
/// # Errors
///
/// The errno of `socket`, `bind`, `listen` or `getsockname`.
pub fn listen_anywhere(backlog: i32) -> Result<(i32, u32)> {
    // SAFETY: all zeros is a valid address.
    let mut at: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    at.sun_family = AF_UNIX;
    let bind = |fd| {
        // The family alone: autobind.
        let args = [number(fd), (&raw const at) as usize, size_of::<u16>(), 0, 0, 0];
        // SAFETY: `at` is valid for so many bytes.
        check(unsafe { raw(libc::SYS_bind, args) })
    };
    let fd = listening(bind, backlog)?;
    let mut len = ADDRESS_BYTES;
    let args = [number(fd), (&raw mut at) as usize, (&raw mut len) as usize, 0, 0, 0];
    // SAFETY: `at` is valid for `len` bytes, and both are on this stack.
    let named = check(unsafe { raw(libc::SYS_getsockname, args) });
    match named.and_then(|_| abstract_number(&at, len as usize).ok_or(EPROTO)) {
        Ok(number) => Ok((fd, number)),
        Err(errno) => {
            let _ = call::close(fd);
            Err(errno)
        }
    }
}

/// Connects to whoever listens at `path`.
///
/// # Errors
///
/// The errno of `socket` or `connect`; `ENAMETOOLONG` beyond 107 bytes.
pub fn connect(path: &CStr) -> Result<i32> {
    let at = address(path)?;
    connected(&at, 0, |_| Ok(()))
}

/// [`connect`] by a socket that does not block: whoever listens may let nobody in.
///
/// # Errors
///
/// As [`connect`]; `EAGAIN` where others wait to connect.
pub fn connect_now(path: &CStr) -> Result<i32> {
    let at = address(path)?;
    connected(&at, NONBLOCK, |_| Ok(()))
}

/// Connects to whoever listens at an abstract address ([`listen_anywhere`]): which may be anybody, see [`credentials`].
/// Waits so many seconds at most where others wait to connect as well.
///
/// # Errors
///
/// The errno of `socket`, `setsockopt` or `connect`: `EAGAIN` when the time is over.
pub fn connect_anywhere(address: u32, seconds: u64) -> Result<i32> {
    let at = abstract_address(address);
    connected(&at, 0, |fd| call::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, [seconds, 0]))
}

fn connected(
    (at, len): &(libc::sockaddr_un, usize),
    kind: i32,
    prepare: impl FnOnce(i32) -> Result<()>,
) -> Result<i32> {
    let fd = call::socket(i32::from(AF_UNIX), SOCK_SEQPACKET | CLOEXEC | kind, 0)?;
    let args = [number(fd), std::ptr::from_ref(at) as usize, *len, 0, 0, 0];
    // SAFETY: `at` is valid for `len` bytes.
    match prepare(fd).and_then(|()| check(unsafe { raw(libc::SYS_connect, args) })) {
        Ok(_) => Ok(fd),
        Err(errno) => {
            let _ = call::close(fd);
            Err(errno)
        }
    }
}

/// Takes the next who wants to connect; neither socket blocks.
///
/// # Errors
///
/// The errno of `accept4`: `EAGAIN` when nobody does.
pub fn accept(fd: i32) -> Result<i32> {
    let args = [number(fd), 0, 0, number(CLOEXEC | NONBLOCK), 0, 0];
    // SAFETY: no addresses are asked for.
    let new = check(unsafe { raw(libc::SYS_accept4, args) })?;
    i32::try_from(new).map_err(|_| EPROTO)
}

/// Who is at the other end.
///
/// # Errors
///
/// The errno of `getsockopt`.
pub fn credentials(fd: i32) -> Result<Credentials> {
    let [pid, uid, _gid] = call::getsockopt::<[u32; 3]>(fd, SOL_SOCKET, SO_PEERCRED)?;
    Ok(Credentials { pid, uid })
}

/// A control message that holds one descriptor: length, level and type, the descriptor and a pad.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Control([u64; 3]);

/// Bytes of a control message with one descriptor, without the pad.
const CONTROL_BYTES: usize = 20;

impl Control {
    fn with(fd: i32) -> Self {
        let kind =
            u64::from(SOL_SOCKET.cast_unsigned()) | u64::from(SCM_RIGHTS.cast_unsigned()) << 32;
        Self([CONTROL_BYTES as u64, kind, u64::from(fd.cast_unsigned())])
    }

    fn descriptor(self, len: usize) -> Option<i32> {
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is the descriptor")]
        let fd = self.0[2] as u32;
        let ours = Self::with(fd.cast_signed());
        (len >= CONTROL_BYTES && self.0[..2] == ours.0[..2]).then_some(fd.cast_signed())
    }
}

/// Sends one packet, with a copy of `pass` if given.
///
/// # Errors
///
/// The errno of `sendmsg`: `EAGAIN` when a socket that does not block has no room, `EPIPE` when the
/// other end is gone.
pub fn send(fd: i32, bytes: &[u8], pass: Option<i32>, flags: i32) -> Result<()> {
    let mut control = pass.map_or_else(Control::default, Control::with);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid header.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    if pass.is_some() {
        msg.msg_control = (&raw mut control).cast();
        msg.msg_controllen = size_of::<Control>();
    }
    let flags = number(flags | MSG_NOSIGNAL);
    let args = [number(fd), (&raw const msg) as usize, flags, 0, 0, 0];
    // SAFETY: the header leads to what lives on this stack; the kernel only reads it.
    check(unsafe { raw(libc::SYS_sendmsg, args) }).map(drop)
}

/// Receives one packet: its length, and the descriptor that came with it, closed on exec. A packet
/// longer than `bytes` is cut. With `MSG_PEEK` it stays there, to be received again, and the descriptor is ours all the
/// same.
///
/// # Errors
///
/// The errno of `recvmsg`: `EAGAIN` when there is none on a socket that does not block. `EMFILE` if a descriptor came
/// with it and this process may not have another one; `EPROTO` if more than one came.
pub fn receive(fd: i32, bytes: &mut [u8], flags: i32) -> Result<(usize, Option<i32>)> {
    let mut control = Control::default();
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid header.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = (&raw mut control).cast();
    // Room for one descriptor and not for two: the kernel closes what does not fit.
    msg.msg_controllen = CONTROL_BYTES;
    let flags = number(flags | MSG_CMSG_CLOEXEC);
    let args = [number(fd), (&raw mut msg) as usize, flags, 0, 0, 0];
    // SAFETY: the header leads to what lives on this stack.
    let n = check(unsafe { raw(libc::SYS_recvmsg, args) })?;
    let passed = control.descriptor(msg.msg_controllen);
    if msg.msg_flags & MSG_CTRUNC != 0 {
        let Some(fd) = passed else { return Err(EMFILE) };
        let _ = call::close(fd);
        return Err(EPROTO);
    }
    Ok((n, passed))
}

/// [`receive`], with the descriptor as one that is closed when it is dropped: not for guests, in whose
/// process `close` may be somebody else's.
///
/// # Errors
///
/// As [`receive`].
pub fn receive_owned(
    fd: i32,
    bytes: &mut [u8],
    flags: i32,
) -> Result<(usize, Option<std::os::fd::OwnedFd>)> {
    receive(fd, bytes, flags).map(|(n, passed)| (n, passed.map(crate::interface::own)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn path(name: &str) -> CString {
        let dir = std::env::temp_dir().join(format!("shunt-passing-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let at = dir.join(name);
        let _ = std::fs::remove_file(&at);
        CString::new(at.into_os_string().into_encoded_bytes()).unwrap()
    }

    #[test]
    fn a_descriptor_travels_with_its_packet() {
        let at = path("travel");
        let door = listen(&at, 4).unwrap();
        let one = connect(&at).unwrap();
        let two = accept(door).unwrap();
        assert_eq!(credentials(two).unwrap().pid, std::process::id());
        let counter = call::eventfd(7).unwrap();
        send(one, b"plain", None, 0).unwrap();
        send(one, b"carries", Some(counter), 0).unwrap();
        let mut bytes = [0; 64];
        assert_eq!(receive(two, &mut bytes, 0).unwrap(), (5, None));
        let (n, passed) = receive(two, &mut bytes, 0).unwrap();
        assert_eq!(&bytes[..n], b"carries");
        send(one, b"again", Some(counter), 0).unwrap();
        let (_, looked_at) = receive(two, &mut bytes, libc::MSG_PEEK).unwrap();
        let (_, taken) = receive(two, &mut bytes, 0).unwrap();
        assert!(
            looked_at.is_some() && taken.is_some() && looked_at != taken,
            "each look gives one"
        );
        for fd in [looked_at, taken].into_iter().flatten() {
            let _ = call::close(fd);
        }
        let mut value = [0; 8];
        assert_eq!(call::read(passed.unwrap(), &mut value), Ok(8));
        assert_eq!(u64::from_le_bytes(value), 7, "the very counter that was sent");
        assert_eq!(receive(two, &mut bytes, 0), Err(libc::EAGAIN));
        let _ = call::close(one);
        assert_eq!(receive(two, &mut bytes, 0), Ok((0, None)), "the end of the other");
        for fd in [two, door, counter, passed.unwrap()] {
            let _ = call::close(fd);
        }
    }

    #[test]
    fn an_address_without_a_path_is_found_by_its_number() {
        let (door, number) = listen_anywhere(4).unwrap();
        let (other, another) = listen_anywhere(4).unwrap();
        assert_ne!(number, another);
        let one = connect_anywhere(number, 1).unwrap();
        let two = accept(door).unwrap();
        let here = std::process::id();
        assert_eq!([credentials(one), credentials(two)].map(|who| who.unwrap().pid), [here; 2]);
        send(one, b"here", None, 0).unwrap();
        assert_eq!(receive(two, &mut [0; 8], 0), Ok((4, None)));
        assert_eq!(accept(other), Err(libc::EAGAIN), "nobody has come there");
        for fd in [one, two, door] {
            let _ = call::close(fd);
        }
        assert_eq!(connect_anywhere(number, 1), Err(libc::ECONNREFUSED), "it has gone");
        let _ = call::close(other);
    }

    #[test]
    fn who_comes_to_a_full_queue_waits_no_longer_than_he_would() {
        let (door, number) = listen_anywhere(0).unwrap();
        let first = connect_anywhere(number, 1).unwrap();
        assert_eq!(connect_anywhere(number, 1), Err(libc::EAGAIN));
        let _ = call::close(first);
        let _ = call::close(door);
    }

    #[test]
    fn the_digits_of_an_address_are_those_of_its_number() {
        for number in [0, 0xf, 0x0a1b2, 0xfffff] {
            let (mut at, len) = abstract_address(number);
            assert_eq!(abstract_number(&at, len), Some(number));
            assert_eq!(abstract_number(&at, len - 1), None);
            at.sun_path[0] = 1;
            assert_eq!(abstract_number(&at, len), None, "a path");
        }
        let digits = abstract_address(0x0a1b2).0.sun_path;
        assert_eq!(
            digits[..7].iter().map(|c| c.to_ne_bytes()[0]).collect::<Vec<_>>(),
            *b"\x000a1b2\0"
        );
    }

    #[test]
    fn errors_are_those_of_the_calls() {
        let at = path("errors");
        assert_eq!(connect(&at), Err(libc::ENOENT));
        let door = listen(&at, 1).unwrap();
        assert_eq!(listen(&at, 1), Err(libc::EADDRINUSE));
        assert_eq!(accept(door), Err(libc::EAGAIN));
        let _ = call::close(door);
        assert_eq!(connect(&at), Err(libc::ECONNREFUSED));
        let long = CString::new("/".repeat(200)).unwrap();
        assert_eq!(connect(&long), Err(libc::ENAMETOOLONG));
    }
}
