//! libc as the guest programs use it: each function is one call, answers a value or an errno, and
//! goes through the dynamic symbol, so that a preloaded library sees it as it would in any program.
//!
//! Descriptors are plain numbers here on purpose: what happens to a number that is closed, reused
//! or shared is what the tests are about.

#![expect(clippy::cast_possible_truncation, reason = "sizes in the tests are small")]
#![expect(clippy::cast_possible_wrap, reason = "sizes in the tests are small")]
#![expect(clippy::cast_sign_loss, reason = "negative values were taken out as errors")]

use std::ffi::{CString, c_int, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

/// A call's value, or its errno.
pub type Ret = Result<usize, i32>;
/// The bytes that a call brought, or its errno.
pub type Bytes = Result<Vec<u8>, i32>;

/// Sets this thread's `errno`.
pub fn set_errno(errno: i32) {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

/// This thread's `errno`.
#[must_use]
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn ret(value: isize) -> Ret {
    if value < 0 { Err(errno()) } else { Ok(value as usize) }
}

fn fd_ret(value: c_int) -> Result<c_int, i32> {
    if value < 0 { Err(errno()) } else { Ok(value) }
}

/// A libc function by name, its result as [`Ret`].
macro_rules! call {
    ($f:path $(, $a:expr)* $(,)?) => {
        // SAFETY: the wrappers below pass plain numbers, or pointers to buffers with their true
        // length which live through the call.
        ret(unsafe { $f($($a),*) } as isize)
    };
}

/// A libc function by name that makes a descriptor.
macro_rules! make {
    ($f:path $(, $a:expr)* $(,)?) => {
        // SAFETY: the wrappers below pass plain numbers, or pointers to buffers with their true
        // length which live through the call.
        fd_ret(unsafe { $f($($a),*) })
    };
}

/// A value of a C structure that is valid when all zero.
macro_rules! zero {
    ($t:ty) => {
        // SAFETY: a plain C structure of integers and pointers.
        unsafe { zeroed::<$t>() }
    };
}

mod c {
    //! What the libc crate does not declare, or declares without unwinding.
    use super::*;
    unsafe extern "C" {
        pub(super) fn closefrom(low: c_int);
        pub(super) fn close_range(first: u32, last: u32, flags: c_int) -> c_int;
        pub(super) fn epoll_pwait2(
            epfd: c_int,
            events: *mut libc::epoll_event,
            max: c_int,
            timeout: *const libc::timespec,
            mask: *const libc::sigset_t,
        ) -> c_int;
        pub(super) fn sockatmark(fd: c_int) -> c_int;
        pub(super) fn dprintf(fd: c_int, format: *const libc::c_char, ...) -> c_int;
    }
    unsafe extern "C-unwind" {
        // Cancellation unwinds the thread that is in here.
        #[link_name = "recv"]
        pub(super) fn recv_cancellable(
            fd: c_int,
            bytes: *mut c_void,
            len: usize,
            flags: c_int,
        ) -> isize;
        pub(super) fn pthread_create(
            thread: *mut libc::pthread_t,
            attributes: *const libc::pthread_attr_t,
            start: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
            argument: *mut c_void,
        ) -> c_int;
    }
}

// Sockets.

/// `socket(FAMILY, SOCK_STREAM | flags, 0)`, the family being that of [`address::here`].
pub fn socket(flags: c_int) -> Result<c_int, i32> {
    socket_of(address::family(), flags)
}

/// A stream socket of this family.
pub fn socket_of(family: c_int, flags: c_int) -> Result<c_int, i32> {
    make!(libc::socket, family, libc::SOCK_STREAM | flags, 0)
}

/// [`socket`] that sends at once: no Nagle, and a congestion control that does not pace. (BBR learns
/// from the small requests of the tests that the path is slow, and then holds bytes back for longer
/// than the tests wait.)
pub fn prompt_socket(flags: c_int) -> Result<c_int, i32> {
    prompt_socket_of(address::family(), flags)
}

/// [`prompt_socket`] of this family.
pub fn prompt_socket_of(family: c_int, flags: c_int) -> Result<c_int, i32> {
    let fd = socket_of(family, flags)?;
    setsockopt_text(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION, "reno")?;
    setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    Ok(fd)
}

/// `socketpair` of UNIX stream sockets.
pub fn socketpair() -> Result<[c_int; 2], i32> {
    let mut fds = [0; 2];
    call!(libc::socketpair, libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr())?;
    Ok(fds)
}

/// `getppid`.
#[must_use]
pub fn parent_id() -> i32 {
    // SAFETY: always callable.
    unsafe { libc::getppid() }
}

/// Binds to a port of this host; 0 lets the kernel choose.
pub fn bind(fd: c_int, port: u16) -> Ret {
    address::bind_to(fd, address::here(), port)
}

/// `listen`.
pub fn listen(fd: c_int, backlog: c_int) -> Ret {
    call!(libc::listen, fd, backlog)
}

/// Connects to a port of this host, or of the peer's.
pub fn connect(fd: c_int, port: u16) -> Ret {
    address::connect_to(fd, address::there(), port)
}

/// `connect` with `AF_UNSPEC`: dissolves the association.
pub fn disconnect(fd: c_int) -> Ret {
    let addr = zero!(libc::sockaddr_in);
    call!(libc::connect, fd, (&raw const addr).cast(), size_of::<libc::sockaddr_in>() as u32)
}

/// `accept4` without asking for the address.
pub fn accept(fd: c_int, flags: c_int) -> Result<c_int, i32> {
    make!(libc::accept4, fd, null_mut(), null_mut(), flags)
}

/// `accept` with the address: the new descriptor and the peer's port.
pub fn accept_from(fd: c_int) -> Result<(c_int, u16), i32> {
    address::accept_from(fd).map(|(new, addr)| (new, addr.port()))
}

/// Port of our end.
pub fn local_port(fd: c_int) -> Result<u16, i32> {
    address::local(fd).map(|addr| addr.port())
}

/// Port of the other end.
pub fn peer_port(fd: c_int) -> Result<u16, i32> {
    address::remote(fd).map(|addr| addr.port())
}

/// `shutdown`.
pub fn shutdown(fd: c_int, how: c_int) -> Ret {
    call!(libc::shutdown, fd, how)
}

/// `setsockopt` with any plain value.
pub fn setsockopt<T: Copy>(fd: c_int, level: c_int, name: c_int, value: T) -> Ret {
    call!(libc::setsockopt, fd, level, name, (&raw const value).cast(), size_of::<T>() as u32)
}

/// `setsockopt` with a string.
pub fn setsockopt_text(fd: c_int, level: c_int, name: c_int, value: &str) -> Ret {
    call!(libc::setsockopt, fd, level, name, value.as_ptr().cast(), value.len() as u32)
}

/// `getsockopt` of an `int`.
pub fn getsockopt(fd: c_int, level: c_int, name: c_int) -> Result<c_int, i32> {
    let (mut value, mut len): (c_int, u32) = (0, 4);
    call!(libc::getsockopt, fd, level, name, (&raw mut value).cast(), &raw mut len)?;
    Ok(value)
}

/// `getsockopt` of a pair such as `SO_LINGER`.
pub fn getsockopt_pair(fd: c_int, level: c_int, name: c_int) -> Result<[c_int; 2], i32> {
    let (mut value, mut len): ([c_int; 2], u32) = ([0; 2], 8);
    call!(libc::getsockopt, fd, level, name, (&raw mut value).cast(), &raw mut len)?;
    Ok(value)
}

/// `SO_RCVTIMEO` or `SO_SNDTIMEO`.
pub fn set_timeout(fd: c_int, name: c_int, ms: i64) -> Ret {
    let value = libc::timeval { tv_sec: ms / 1000, tv_usec: ms % 1000 * 1000 };
    setsockopt(fd, libc::SOL_SOCKET, name, value)
}

/// `SO_LINGER`.
pub fn set_linger(fd: c_int, on: c_int, seconds: c_int) -> Ret {
    let value = libc::linger { l_onoff: on, l_linger: seconds };
    setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value)
}

/// First byte of `TCP_INFO`: the state.
pub fn tcp_state(fd: c_int) -> Ret {
    let (mut info, mut len) = ([0u8; 104], 104u32);
    let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    call!(libc::getsockopt, fd, level, name, info.as_mut_ptr().cast(), &raw mut len)?;
    Ok(usize::from(info[0]))
}

/// An `ioctl` that answers an `int`.
pub fn ioctl_int(fd: c_int, request: u64) -> Result<c_int, i32> {
    let mut value: c_int = -7;
    call!(libc::ioctl, fd, request, &raw mut value)?;
    Ok(value)
}

/// An `ioctl` that takes an `int`.
pub fn ioctl_set(fd: c_int, request: u64, mut value: c_int) -> Ret {
    call!(libc::ioctl, fd, request, &raw mut value)
}

/// `sockatmark`.
pub fn sockatmark(fd: c_int) -> Ret {
    call!(c::sockatmark, fd)
}

// Moving bytes.

/// `send`.
pub fn send(fd: c_int, bytes: &[u8], flags: c_int) -> Ret {
    call!(libc::send, fd, bytes.as_ptr().cast(), bytes.len(), flags)
}

/// `sendto` with an address, which a connected socket ignores.
pub fn sendto(fd: c_int, bytes: &[u8], port: u16) -> Ret {
    let (addr, len) = address::storage(address::there(), port);
    let at = (&raw const addr).cast();
    call!(libc::sendto, fd, bytes.as_ptr().cast(), bytes.len(), 0, at, len)
}

fn filled(mut buffer: Vec<u8>, got: Ret) -> Bytes {
    buffer.truncate(got?);
    Ok(buffer)
}

/// `recv`.
pub fn recv(fd: c_int, len: usize, flags: c_int) -> Bytes {
    let mut buffer = vec![0u8; len];
    let got = call!(libc::recv, fd, buffer.as_mut_ptr().cast(), len, flags);
    filled(buffer, got)
}

/// `recv` into the caller's buffer.
pub fn recv_into(fd: c_int, buffer: &mut [u8], flags: c_int) -> Ret {
    call!(libc::recv, fd, buffer.as_mut_ptr().cast(), buffer.len(), flags)
}

/// `recv` without a buffer: what `MSG_TRUNC` allows.
pub fn recv_nowhere(fd: c_int, len: usize, flags: c_int) -> Ret {
    call!(libc::recv, fd, null_mut(), len, flags)
}

/// `recvfrom` with room for an address; also answers the length it wrote.
pub fn recvfrom(fd: c_int, len: usize, flags: c_int) -> (Bytes, u32) {
    let mut buffer = vec![0u8; len];
    let mut addr = [0xeeu8; 16];
    let mut addr_len = 16u32;
    let to = addr.as_mut_ptr().cast();
    let got =
        call!(libc::recvfrom, fd, buffer.as_mut_ptr().cast(), len, flags, to, &raw mut addr_len);
    (filled(buffer, got), addr_len)
}

/// `read`.
pub fn read(fd: c_int, len: usize) -> Bytes {
    let mut buffer = vec![0u8; len];
    let got = call!(libc::read, fd, buffer.as_mut_ptr().cast(), len);
    filled(buffer, got)
}

/// `write`.
pub fn write(fd: c_int, bytes: &[u8]) -> Ret {
    call!(libc::write, fd, bytes.as_ptr().cast(), bytes.len())
}

/// `read` through `syscall(2)`.
pub fn syscall_read(fd: c_int, len: usize) -> Bytes {
    let mut buffer = vec![0u8; len];
    let got = call!(libc::syscall, libc::SYS_read, fd, buffer.as_mut_ptr(), len);
    filled(buffer, got)
}

/// `write` through `syscall(2)`.
pub fn syscall_write(fd: c_int, bytes: &[u8]) -> Ret {
    call!(libc::syscall, libc::SYS_write, fd, bytes.as_ptr(), bytes.len())
}

/// `pread`.
pub fn pread(fd: c_int, len: usize, offset: i64) -> Bytes {
    let mut buffer = vec![0u8; len];
    let got = call!(libc::pread, fd, buffer.as_mut_ptr().cast(), len, offset);
    filled(buffer, got)
}

/// `lseek` to the start.
pub fn lseek(fd: c_int) -> Ret {
    call!(libc::lseek, fd, 0, libc::SEEK_SET)
}

/// Where a file is read next.
pub fn position(fd: c_int) -> Ret {
    call!(libc::lseek, fd, 0, libc::SEEK_CUR)
}

/// `recv` or `send` with a pointer to nowhere.
pub fn bad_pointer(fd: c_int, sending: bool) -> Ret {
    // An address in the first page: never mapped.
    let nowhere = std::ptr::without_provenance_mut::<c_void>(16);
    if sending {
        call!(libc::send, fd, nowhere, 8, libc::MSG_DONTWAIT)
    } else {
        call!(libc::recv, fd, nowhere, 8, libc::MSG_DONTWAIT)
    }
}

fn slices(parts: &[&[u8]]) -> Vec<libc::iovec> {
    let one = |p: &&[u8]| libc::iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() };
    parts.iter().map(one).collect()
}

fn slices_mut(parts: &mut [Vec<u8>]) -> Vec<libc::iovec> {
    let one = |p: &mut Vec<u8>| libc::iovec { iov_base: p.as_mut_ptr().cast(), iov_len: p.len() };
    parts.iter_mut().map(one).collect()
}

fn buffers(sizes: &[usize]) -> Vec<Vec<u8>> {
    sizes.iter().map(|n| vec![0; *n]).collect()
}

fn joined(parts: Vec<Vec<u8>>, got: Ret) -> Bytes {
    filled(parts.concat(), got)
}

/// `writev`.
pub fn writev(fd: c_int, parts: &[&[u8]]) -> Ret {
    let iov = slices(parts);
    call!(libc::writev, fd, iov.as_ptr(), iov.len() as c_int)
}

/// `readv` into buffers of these sizes.
pub fn readv(fd: c_int, sizes: &[usize]) -> Bytes {
    let mut parts = buffers(sizes);
    let iov = slices_mut(&mut parts);
    let got = call!(libc::readv, fd, iov.as_ptr(), iov.len() as c_int);
    joined(parts, got)
}

/// `pwritev2`.
pub fn pwritev2(fd: c_int, parts: &[&[u8]], offset: i64, flags: c_int) -> Ret {
    let iov = slices(parts);
    call!(libc::pwritev2, fd, iov.as_ptr(), iov.len() as c_int, offset, flags)
}

/// `preadv2`.
pub fn preadv2(fd: c_int, sizes: &[usize], offset: i64, flags: c_int) -> Bytes {
    let mut parts = buffers(sizes);
    let iov = slices_mut(&mut parts);
    let got = call!(libc::preadv2, fd, iov.as_ptr(), iov.len() as c_int, offset, flags);
    joined(parts, got)
}

/// `sendmsg` of parts.
pub fn sendmsg(fd: c_int, parts: &[&[u8]], flags: c_int) -> Ret {
    let mut iov = slices(parts);
    let mut msg = zero!(libc::msghdr);
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = iov.len();
    call!(libc::sendmsg, fd, &raw const msg, flags)
}

/// What `recvmsg` answered besides bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extra {
    /// `msg_flags`.
    pub flags: c_int,
    /// `msg_namelen`, from room for 16 bytes.
    pub name_len: u32,
    /// `msg_controllen`, from room for 64 bytes.
    pub control_len: usize,
}

/// `recvmsg` into buffers of these sizes, with room for a name and for control messages.
pub fn recvmsg(fd: c_int, sizes: &[usize], flags: c_int) -> (Bytes, Extra) {
    let mut parts = buffers(sizes);
    let mut iov = slices_mut(&mut parts);
    let (mut name, mut control) = ([0u8; 16], [0u64; 8]);
    let mut msg = zero!(libc::msghdr);
    msg.msg_iov = iov.as_mut_ptr();
    msg.msg_iovlen = iov.len();
    msg.msg_name = name.as_mut_ptr().cast();
    msg.msg_namelen = 16;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = 64;
    let got = call!(libc::recvmsg, fd, &raw mut msg, flags);
    let extra =
        Extra { flags: msg.msg_flags, name_len: msg.msg_namelen, control_len: msg.msg_controllen };
    (joined(parts, got), extra)
}

/// A message for each part.
fn one_each(parts: &mut [libc::iovec]) -> Vec<libc::mmsghdr> {
    let one = |part: &mut libc::iovec| {
        let mut one = zero!(libc::mmsghdr);
        one.msg_hdr.msg_iov = part;
        one.msg_hdr.msg_iovlen = 1;
        one
    };
    parts.iter_mut().map(one).collect()
}

/// The bytes of the first `got` messages.
fn received(mut parts: Vec<Vec<u8>>, all: &[libc::mmsghdr], got: usize) -> Vec<Vec<u8>> {
    for (part, message) in parts.iter_mut().zip(all) {
        part.truncate(message.msg_len as usize);
    }
    parts.truncate(got);
    parts
}

/// `sendmmsg`, one message for each part: how many went, and the length of each.
pub fn sendmmsg(fd: c_int, parts: &[&[u8]], flags: c_int) -> Result<Vec<u32>, i32> {
    let mut iov = slices(parts);
    let mut all = one_each(&mut iov);
    let sent = call!(libc::sendmmsg, fd, all.as_mut_ptr(), all.len() as u32, flags)?;
    Ok(all[..sent].iter().map(|m| m.msg_len).collect())
}

/// `recvmmsg` into buffers of these sizes, one message each.
pub fn recvmmsg(
    fd: c_int,
    sizes: &[usize],
    flags: c_int,
    timeout: Option<Duration>,
) -> Result<Vec<Vec<u8>>, i32> {
    let mut parts = buffers(sizes);
    let mut iov = slices_mut(&mut parts);
    let mut all = one_each(&mut iov);
    let mut time = timeout.map(timespec);
    let at = time.as_mut().map_or(null_mut(), |t| &raw mut *t);
    let got = call!(libc::recvmmsg, fd, all.as_mut_ptr(), all.len() as u32, flags, at)?;
    Ok(received(parts, &all, got))
}

/// Passes a descriptor over a UNIX socket, with one byte.
pub fn send_fd(over: c_int, fd: c_int) -> Ret {
    let mut byte = [b'f'];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0u64; 4];
    let mut msg = zero!(libc::msghdr);
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    // SAFETY: plain arithmetic.
    msg.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    // SAFETY: the control buffer has room for one header.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const msg) };
    // SAFETY: `head` points to the header in `control`, which has room for it and four bytes.
    unsafe {
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(head).cast::<c_int>().write_unaligned(fd);
    }
    call!(libc::sendmsg, over, &raw const msg, 0)
}

/// Receives a descriptor from a UNIX socket; `EBADMSG` when there was none.
pub fn recv_fd(over: c_int) -> Result<c_int, i32> {
    let mut byte = [0u8];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = [0u64; 4];
    let mut msg = zero!(libc::msghdr);
    msg.msg_iov = &raw mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.as_mut_ptr().cast();
    msg.msg_controllen = 32;
    call!(libc::recvmsg, over, &raw mut msg, 0)?;
    // SAFETY: the kernel filled the header.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const msg) };
    if head.is_null() {
        return Err(libc::EBADMSG);
    }
    // SAFETY: there is a control message; of this type it has four bytes.
    Ok(unsafe { libc::CMSG_DATA(head).cast::<c_int>().read_unaligned() })
}

/// `sendfile`; with an offset it is moved along, without one the file's position is.
pub fn sendfile(to: c_int, from: c_int, offset: Option<&mut i64>, len: usize) -> Ret {
    let at = offset.map_or(null_mut(), |o| &raw mut *o);
    call!(libc::sendfile, to, from, at, len)
}

/// `splice` without offsets.
pub fn splice(from: c_int, to: c_int, len: usize, flags: u32) -> Ret {
    call!(libc::splice, from, null_mut(), to, null_mut(), len, flags)
}

/// `tee`.
pub fn tee(from: c_int, to: c_int, len: usize) -> Ret {
    call!(libc::tee, from, to, len, libc::SPLICE_F_NONBLOCK)
}

/// `copy_file_range` without offsets.
pub fn copy_file_range(from: c_int, to: c_int, len: usize) -> Ret {
    call!(libc::copy_file_range, from, null_mut(), to, null_mut(), len, 0)
}

// Readiness.

/// `poll` of one descriptor: its `revents`.
pub fn poll(fd: c_int, events: i16, timeout_ms: c_int) -> Result<i16, i32> {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    call!(libc::poll, &raw mut one, 1, timeout_ms)?;
    Ok(one.revents)
}

/// `poll` of many: the count and each `revents`.
pub fn poll_many(fds: &[(c_int, i16)], timeout_ms: c_int) -> Result<(usize, Vec<i16>), i32> {
    let mut all: Vec<libc::pollfd> = fds
        .iter()
        .map(|(fd, events)| libc::pollfd { fd: *fd, events: *events, revents: 0 })
        .collect();
    let n = call!(libc::poll, all.as_mut_ptr(), all.len() as u64, timeout_ms)?;
    Ok((n, all.iter().map(|p| p.revents).collect()))
}

/// A signal set of these signals.
pub fn sigset(signals: &[c_int]) -> libc::sigset_t {
    let mut set = zero!(libc::sigset_t);
    for signal in signals {
        let _ = call!(libc::sigaddset, &raw mut set, *signal);
    }
    set
}

/// `ppoll` of one descriptor with a signal mask.
pub fn ppoll(
    fd: c_int,
    events: i16,
    timeout: Option<Duration>,
    mask: &[c_int],
) -> Result<i16, i32> {
    let mut one = libc::pollfd { fd, events, revents: 0 };
    let (time, mask) = (timeout.map(timespec), sigset(mask));
    let at = time.as_ref().map_or(null(), |t| &raw const *t);
    call!(libc::ppoll, &raw mut one, 1, at, &raw const mask)?;
    Ok(one.revents)
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) }
}

/// What `select` answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected {
    /// Its value.
    pub count: usize,
    /// Readable.
    pub read: Vec<c_int>,
    /// Writable.
    pub write: Vec<c_int>,
    /// Exceptional.
    pub except: Vec<c_int>,
    /// Whether the time left was written back as less than a third of what was given.
    pub time_used: bool,
}

fn fd_set(fds: &[c_int]) -> libc::fd_set {
    let mut set = zero!(libc::fd_set);
    for fd in fds {
        // SAFETY: the tests keep descriptors below FD_SETSIZE.
        unsafe { libc::FD_SET(*fd, &raw mut set) };
    }
    set
}

fn members(set: &libc::fd_set, of: &[c_int]) -> Vec<c_int> {
    // SAFETY: as in `fd_set`.
    of.iter().copied().filter(|fd| unsafe { libc::FD_ISSET(*fd, set) }).collect()
}

/// `select`, or `pselect` when a mask is given.
pub fn select(
    read: &[c_int],
    write: &[c_int],
    except: &[c_int],
    timeout: Option<Duration>,
    mask: Option<&[c_int]>,
) -> Result<Selected, i32> {
    let (mut r, mut w, mut x) = (fd_set(read), fd_set(write), fd_set(except));
    let top = read.iter().chain(write).chain(except).max().map_or(0, |fd| fd + 1);
    let (pr, pw, px) = (&raw mut r, &raw mut w, &raw mut x);
    let mut time_used = false;
    let count = if let Some(mask) = mask {
        let (time, mask) = (timeout.map(timespec), sigset(mask));
        let at = time.as_ref().map_or(null(), |t| &raw const *t);
        call!(libc::pselect, top, pr, pw, px, at, &raw const mask)?
    } else {
        let given = timeout.map(|t| libc::timeval {
            tv_sec: t.as_secs() as i64,
            tv_usec: i64::from(t.subsec_micros()),
        });
        let mut time = given;
        let at = time.as_mut().map_or(null_mut(), |t| &raw mut *t);
        let count = call!(libc::select, top, pr, pw, px, at)?;
        let micros = |t: libc::timeval| t.tv_sec * 1_000_000 + t.tv_usec;
        time_used = time.map_or(0, micros) < given.map_or(0, micros) / 3;
        count
    };
    Ok(Selected {
        count,
        read: members(&r, read),
        write: members(&w, write),
        except: members(&x, except),
        time_used,
    })
}

/// `epoll_create1`.
pub fn epoll_create() -> Result<c_int, i32> {
    make!(libc::epoll_create1, libc::EPOLL_CLOEXEC)
}

/// `epoll_ctl`.
pub fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, events: c_int, data: u64) -> Ret {
    let mut event = libc::epoll_event { events: events as u32, u64: data };
    call!(libc::epoll_ctl, epfd, op, fd, &raw mut event)
}

/// Which call waits on an event set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting<'a> {
    /// `epoll_wait`.
    Plain,
    /// `epoll_pwait` with this mask.
    Mask(&'a [c_int]),
    /// `epoll_pwait2`.
    Fine,
    /// The same with this mask.
    FineMask(&'a [c_int]),
}

/// Waits on an event set: events and data of each.
pub fn epoll_wait_by(
    how: Waiting<'_>,
    epfd: c_int,
    max: usize,
    timeout_ms: c_int,
) -> Result<Vec<(u32, u64)>, i32> {
    let mut events = vec![libc::epoll_event { events: 0, u64: 0 }; max.max(1)];
    let (at, max) = (events.as_mut_ptr(), max as c_int);
    let n = match how {
        Waiting::Plain => call!(libc::epoll_wait, epfd, at, max, timeout_ms),
        Waiting::Mask(mask) => {
            let mask = sigset(mask);
            call!(libc::epoll_pwait, epfd, at, max, timeout_ms, &raw const mask)
        }
        Waiting::Fine | Waiting::FineMask(_) => {
            let time =
                (timeout_ms >= 0).then(|| timespec(Duration::from_millis(timeout_ms as u64)));
            let time_at = time.as_ref().map_or(null(), |t| &raw const *t);
            let mask = if let Waiting::FineMask(mask) = how { Some(sigset(mask)) } else { None };
            let mask_at = mask.as_ref().map_or(null(), |m| &raw const *m);
            call!(c::epoll_pwait2, epfd, at, max, time_at, mask_at)
        }
    }?;
    Ok(events[..n].iter().map(|e| (e.events, e.u64)).collect())
}

/// `epoll_wait`.
pub fn epoll_wait(epfd: c_int, max: usize, timeout_ms: c_int) -> Result<Vec<(u32, u64)>, i32> {
    epoll_wait_by(Waiting::Plain, epfd, max, timeout_ms)
}

/// `epoll_wait` for fewer than no events.
pub fn epoll_wait_for_less(epfd: c_int) -> Ret {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    call!(libc::epoll_wait, epfd, &raw mut event, -1, 0)
}

// Descriptors.

/// `close`.
pub fn close(fd: c_int) -> Ret {
    call!(libc::close, fd)
}

/// `close_range`.
pub fn close_range(first: c_int, last: c_int, flags: c_int) -> Ret {
    call!(c::close_range, first as u32, last as u32, flags)
}

/// `closefrom`.
pub fn closefrom(first: c_int) {
    // SAFETY: a plain number; what is closed is closed on purpose.
    unsafe { c::closefrom(first) };
}

/// `dup`.
pub fn dup(fd: c_int) -> Result<c_int, i32> {
    make!(libc::dup, fd)
}

/// `dup2`.
pub fn dup2(fd: c_int, to: c_int) -> Result<c_int, i32> {
    make!(libc::dup2, fd, to)
}

/// `dup3`.
pub fn dup3(fd: c_int, to: c_int, flags: c_int) -> Result<c_int, i32> {
    make!(libc::dup3, fd, to, flags)
}

/// `fcntl` with a number.
pub fn fcntl(fd: c_int, command: c_int, value: c_int) -> Ret {
    call!(libc::fcntl, fd, command, value)
}

/// `F_DUPFD`: a duplicate that is at least `min`.
pub fn dup_above(fd: c_int, min: c_int) -> Result<c_int, i32> {
    make!(libc::fcntl, fd, libc::F_DUPFD, min)
}

/// Sets or clears `O_NONBLOCK`, keeping other flags.
pub fn set_nonblocking(fd: c_int, on: bool) -> Ret {
    let flags = fcntl(fd, libc::F_GETFL, 0)? as c_int;
    let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    fcntl(fd, libc::F_SETFL, flags)
}

/// `pipe2`: the reading and the writing end.
pub fn pipe(flags: c_int) -> Result<[c_int; 2], i32> {
    let mut fds = [0; 2];
    call!(libc::pipe2, fds.as_mut_ptr(), flags)?;
    Ok(fds)
}

/// `eventfd`.
pub fn eventfd(value: u32) -> Result<c_int, i32> {
    make!(libc::eventfd, value, libc::EFD_NONBLOCK)
}

/// A timer descriptor that fires once.
pub fn timerfd(after_ms: i64) -> Result<c_int, i32> {
    let fd = make!(libc::timerfd_create, libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK)?;
    let mut time = zero!(libc::itimerspec);
    time.it_value = timespec(Duration::from_millis(after_ms as u64));
    call!(libc::timerfd_settime, fd, 0, &raw const time, null_mut())?;
    Ok(fd)
}

/// `open` for reading.
pub fn open(path: &str) -> Result<c_int, i32> {
    let path = text(path);
    make!(libc::open, path.as_ptr(), libc::O_RDONLY)
}

/// `open` for reading and writing.
pub fn open_rdwr(path: &str) -> Result<c_int, i32> {
    let path = text(path);
    make!(libc::open, path.as_ptr(), libc::O_RDWR)
}

/// A memory file with these bytes, its position at the start.
pub fn memfd(bytes: &[u8]) -> Result<c_int, i32> {
    let fd = make!(libc::memfd_create, c"guest".as_ptr(), 0)?;
    write(fd, bytes)?;
    lseek(fd)?;
    Ok(fd)
}

/// Whether `fstat` says socket.
pub fn is_socket(fd: c_int) -> Result<bool, i32> {
    let mut stat = zero!(libc::stat);
    call!(libc::fstat, fd, &raw mut stat)?;
    Ok(stat.st_mode & libc::S_IFMT == libc::S_IFSOCK)
}

/// Inode number of a descriptor.
pub fn inode(fd: c_int) -> Result<u64, i32> {
    let mut stat = zero!(libc::stat);
    call!(libc::fstat, fd, &raw mut stat)?;
    Ok(stat.st_ino)
}

/// Lowers `RLIMIT_NOFILE`, soft and hard.
pub fn limit_descriptors(n: u64) -> Ret {
    let limit = libc::rlimit { rlim_cur: n, rlim_max: n };
    call!(libc::setrlimit, libc::RLIMIT_NOFILE, &raw const limit)
}

/// Raises the soft `RLIMIT_NOFILE` to the hard one; answers it.
pub fn raise_descriptor_limit() -> Ret {
    let mut limit = zero!(libc::rlimit);
    call!(libc::getrlimit, libc::RLIMIT_NOFILE, &raw mut limit)?;
    limit.rlim_cur = limit.rlim_max;
    call!(libc::setrlimit, libc::RLIMIT_NOFILE, &raw const limit)?;
    Ok(limit.rlim_max as usize)
}

// Standard I/O.

/// A stdio stream on a descriptor.
#[derive(Debug)]
pub struct Stream(*mut libc::FILE);

impl Stream {
    /// `fdopen`.
    pub fn open(fd: c_int, mode: &str) -> Result<Self, i32> {
        let mode = text(mode);
        // SAFETY: a C string; libc checks the descriptor.
        let file = unsafe { libc::fdopen(fd, mode.as_ptr()) };
        if file.is_null() { Err(errno()) } else { Ok(Self(file)) }
    }

    /// `fputs`, then `fflush`.
    pub fn put(&self, line: &str) -> Ret {
        let line = text(line);
        call!(libc::fputs, line.as_ptr(), self.0)?;
        call!(libc::fflush, self.0)
    }

    /// `fgets`: a line, or nothing at the end of the stream.
    pub fn line(&self) -> Option<String> {
        let mut buffer = vec![0u8; 4096];
        // SAFETY: the stream is open, and the buffer has that many bytes.
        let got = unsafe { libc::fgets(buffer.as_mut_ptr().cast(), 4096, self.0) };
        if got.is_null() {
            return None;
        }
        let end = buffer.iter().position(|b| *b == 0).unwrap_or(buffer.len());
        Some(String::from_utf8_lossy(&buffer[..end]).into_owned())
    }

    /// `fclose`.
    pub fn close(self) -> Ret {
        call!(libc::fclose, self.0)
    }
}

/// `dprintf(fd, "%s", line)`.
pub fn dprintf(fd: c_int, line: &str) -> Ret {
    let line = text(line);
    call!(c::dprintf, fd, c"%s".as_ptr(), line.as_ptr())
}

/// `system`.
pub fn system(command: &str) -> Ret {
    let command = text(command);
    call!(libc::system, command.as_ptr())
}

// Processes.

/// What `fork` answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    /// We are the child.
    Child,
    /// We are the parent of this process.
    Parent(i32),
}

/// `fork`. The guests call it from their only thread.
///
/// # Panics
///
/// When the system has no more processes.
#[must_use]
pub fn fork() -> Forked {
    // SAFETY: there is no other thread whose locks the child could miss.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: errno {}", errno()),
        0 => Forked::Child,
        pid => Forked::Parent(pid),
    }
}

/// `_exit`.
pub fn exit_now(code: c_int) -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(code) }
}

/// Waits for a child: its exit code, or 128 and the signal.
pub fn wait(pid: i32) -> Ret {
    let mut status = 0;
    loop {
        match call!(libc::waitpid, pid, &raw mut status, 0) {
            Err(libc::EINTR) => {}
            Err(e) => return Err(e),
            Ok(_) => break,
        }
    }
    if libc::WIFSIGNALED(status) {
        return Ok(128 + libc::WTERMSIG(status) as usize);
    }
    Ok(libc::WEXITSTATUS(status) as usize)
}

/// `kill`.
pub fn kill(pid: i32, signal: c_int) -> Ret {
    call!(libc::kill, pid, signal)
}

/// `getpid`.
#[must_use]
pub fn getpid() -> i32 {
    std::process::id() as i32
}

/// Forbids other processes without privilege to look into this one.
pub fn guard() -> Ret {
    call!(libc::prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0)
}

/// Gives up the privilege to look into processes that have forbidden it.
pub fn may_not_trace() -> Ret {
    const VERSION_3: u32 = 0x2008_0522;
    const SYS_PTRACE: u32 = 19;
    let mut head = [VERSION_3, 0];
    // Effective, permitted, inheritable, for the lower and the upper 32 of them.
    let mut sets = [[0u32; 3]; 2];
    call!(libc::syscall, libc::SYS_capget, head.as_mut_ptr(), sets.as_mut_ptr())?;
    sets[0][0] &= !(1 << SYS_PTRACE);
    sets[0][1] &= !(1 << SYS_PTRACE);
    call!(libc::syscall, libc::SYS_capset, head.as_mut_ptr(), sets.as_ptr())
}

/// What comes of an attempt to borrow a descriptor of another process: whether there was one.
pub fn borrows(pid: i32, fd: c_int) -> Result<bool, i32> {
    let process = call!(libc::syscall, libc::SYS_pidfd_open, pid, 0)? as c_int;
    let borrowed = call!(libc::syscall, libc::SYS_pidfd_getfd, process, fd, 0);
    close(process)?;
    close(borrowed? as c_int).map(|_| true)
}

/// Time that this process has run on a CPU.
#[must_use]
pub fn cpu_time() -> Duration {
    let mut time = zero!(libc::timespec);
    // SAFETY: a valid place; it cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// `geteuid`.
#[must_use]
pub fn geteuid() -> u32 {
    // SAFETY: cannot fail.
    unsafe { libc::geteuid() }
}

fn text(s: &str) -> CString {
    CString::new(s).expect("no NUL in the texts of the tests")
}

struct Words {
    _owned: Vec<CString>,
    at: Vec<*const libc::c_char>,
}

fn words(list: &[&str]) -> Words {
    let owned: Vec<CString> = list.iter().map(|w| text(w)).collect();
    let at = owned.iter().map(|w| w.as_ptr()).chain([null()]).collect();
    Words { _owned: owned, at }
}

/// `execv`; returns only when it failed.
pub fn exec(path: &str, args: &[&str]) -> i32 {
    let (path, args) = (text(path), words(args));
    // SAFETY: C strings and a list that ends with a null pointer.
    unsafe { libc::execv(path.as_ptr(), args.at.as_ptr()) };
    errno()
}

/// `execve`; returns only when it failed.
pub fn exec_env(path: &str, args: &[&str], env: &[&str]) -> i32 {
    let (path, args, env) = (text(path), words(args), words(env));
    // SAFETY: C strings and lists that end with a null pointer.
    unsafe { libc::execve(path.as_ptr(), args.at.as_ptr(), env.at.as_ptr()) };
    errno()
}

/// `vfork` and `execve` in one function, as programs do it; the child has `stdio` as its standard
/// input and output.
pub fn vfork_exec(path: &str, args: &[&str], env: &[&str], stdio: c_int) -> Result<i32, i32> {
    let (path, args, env) = (text(path), words(args), words(env));
    let (path_at, args_at, env_at) = (path.as_ptr(), args.at.as_ptr(), env.at.as_ptr());
    // `libc::vfork` is deprecated because of what must not be done after it; that is the test.
    #[expect(deprecated, reason = "the behaviour under test")]
    // SAFETY: the child only calls dup2, execve and _exit on values made before.
    let pid = unsafe { libc::vfork() };
    if pid == 0 {
        // SAFETY: as above.
        unsafe {
            libc::dup2(stdio, 0);
            libc::dup2(stdio, 1);
            libc::execve(path_at, args_at, env_at);
            libc::_exit(127);
        }
    }
    fd_ret(pid)
}

/// `posix_spawn` with `stdio` as standard input and output of the child.
pub fn spawn(path: &str, args: &[&str], env: &[&str], stdio: c_int) -> Result<i32, i32> {
    let (path, args, env) = (text(path), words(args), words(env));
    let mut actions = MaybeUninit::<libc::posix_spawn_file_actions_t>::uninit();
    let actions = actions.as_mut_ptr();
    call!(libc::posix_spawn_file_actions_init, actions)?;
    for target in [0, 1] {
        call!(libc::posix_spawn_file_actions_adddup2, actions, stdio, target)?;
    }
    let mut pid = 0;
    let (args_at, env_at) = (args.at.as_ptr().cast::<*mut _>(), env.at.as_ptr().cast::<*mut _>());
    // SAFETY: C strings, lists that end with a null pointer, initialised actions.
    let e =
        unsafe { libc::posix_spawn(&raw mut pid, path.as_ptr(), actions, null(), args_at, env_at) };
    call!(libc::posix_spawn_file_actions_destroy, actions)?;
    if e == 0 { Ok(pid) } else { Err(e) }
}

// Signals.

static ARRIVED: [AtomicUsize; 65] = [const { AtomicUsize::new(0) }; 65];
static IN_HANDLER_FD: AtomicI32 = AtomicI32::new(-1);
static IN_HANDLER_GOT: AtomicI32 = AtomicI32::new(-1);

extern "C" fn count_signal(signal: c_int) {
    ARRIVED[signal as usize].fetch_add(1, Ordering::SeqCst);
    let fd = IN_HANDLER_FD.load(Ordering::SeqCst);
    if fd >= 0 {
        let mut byte = 0u8;
        // SAFETY: both are async-signal-safe; one byte each; errno is put back.
        unsafe {
            let errno = libc::__errno_location();
            let kept = *errno;
            let got = libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT);
            let seen = if got == 1 { i32::from(byte) } else { -*errno };
            IN_HANDLER_GOT.store(seen, Ordering::SeqCst);
            libc::send(fd, c"h".as_ptr().cast(), 1, libc::MSG_DONTWAIT);
            *errno = kept;
        }
    }
}

/// Installs a handler that counts; `flags` such as `SA_RESTART`.
pub fn count(signal: c_int, flags: c_int) -> Ret {
    let mut action = zero!(libc::sigaction);
    action.sa_sigaction = count_signal as *const () as usize;
    action.sa_flags = flags;
    call!(libc::sigaction, signal, &raw const action, null_mut())
}

/// Sets what a signal does to the default or to nothing.
pub fn set_signal(signal: c_int, ignore: bool) {
    let action = if ignore { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: one of the two constants.
    unsafe { libc::signal(signal, action) };
}

/// How often a counted signal arrived since the last question.
pub fn arrived(signal: c_int) -> usize {
    ARRIVED[signal as usize].swap(0, Ordering::SeqCst)
}

/// Makes the counting handler receive and send one byte on `fd`; -1 ends that.
pub fn use_in_handler(fd: c_int) {
    IN_HANDLER_FD.store(fd, Ordering::SeqCst);
}

/// What the handler received: a byte, or a negative errno.
pub fn handler_got() -> i32 {
    IN_HANDLER_GOT.swap(-1, Ordering::SeqCst)
}

/// Blocks (or unblocks) signals of this thread.
pub fn block_signals(signals: &[c_int], block: bool) -> Ret {
    let set = sigset(signals);
    let how = if block { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    call!(libc::pthread_sigmask, how, &raw const set, null_mut())
}

// Threads.

static CANCEL_READ: AtomicI32 = AtomicI32::new(-1);

extern "C-unwind" fn read_until_cancelled(fd: *mut c_void) -> *mut c_void {
    let mut byte = MaybeUninit::<u8>::uninit();
    // SAFETY: one byte of room; the frame has nothing to drop when cancellation unwinds it.
    unsafe {
        let n = c::recv_cancellable(fd.addr() as c_int, byte.as_mut_ptr().cast(), 1, 0);
        CANCEL_READ.store(n as i32, Ordering::SeqCst);
    }
    null_mut()
}

/// A thread that is in `recv` of one byte and may be cancelled.
#[derive(Debug)]
pub struct Cancellable(libc::pthread_t);

impl Cancellable {
    /// Starts it.
    pub fn start(fd: c_int) -> Result<Self, i32> {
        CANCEL_READ.store(-1, Ordering::SeqCst);
        let mut thread = 0;
        let argument = std::ptr::without_provenance_mut(fd as usize);
        // SAFETY: the function takes the descriptor number as its pointer.
        let e =
            unsafe { c::pthread_create(&raw mut thread, null(), read_until_cancelled, argument) };
        if e == 0 { Ok(Self(thread)) } else { Err(e) }
    }

    /// `pthread_cancel`, `pthread_join`: whether it ended by cancellation, and what `recv` had
    /// answered (-1: nothing).
    #[must_use]
    pub fn cancel(self) -> (bool, i32) {
        let mut value = null_mut();
        // SAFETY: the thread is joined once, here.
        unsafe {
            libc::pthread_cancel(self.0);
            libc::pthread_join(self.0, &raw mut value);
        }
        // PTHREAD_CANCELED is (void *) -1.
        (value.addr() == usize::MAX, CANCEL_READ.load(Ordering::SeqCst))
    }
}

/// `pthread_kill` of the thread that `handle` belongs to.
pub fn thread_kill<T>(handle: &std::thread::JoinHandle<T>, signal: c_int) -> Ret {
    use std::os::unix::thread::JoinHandleExt;
    call!(libc::pthread_kill, handle.as_pthread_t(), signal)
}

/// Whether this process may mount file systems, found by trying on `dir`.
pub fn mount_tmpfs(dir: &str, size: &str) -> Ret {
    let (dir, options) = (text(dir), text(&format!("size={size},mode=0700")));
    let kind = c"tmpfs".as_ptr();
    call!(libc::mount, kind, dir.as_ptr(), kind, 0, options.as_ptr().cast())
}

/// `umount2` with `MNT_DETACH`.
pub fn unmount(dir: &str) -> Ret {
    let dir = text(dir);
    call!(libc::umount2, dir.as_ptr(), libc::MNT_DETACH)
}

// Its macro is for those below.
#[macro_use]
pub mod names;
pub mod network;

pub mod address;
pub mod cancel;
pub mod corner;
pub mod cpus;
pub mod entries;
pub mod filter;
pub mod jump;
pub mod numbers;
pub mod rarely;
pub mod tls;
pub mod trace;
pub mod unseen;
pub mod uring;
