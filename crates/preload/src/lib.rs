//! The library that `shunt run` puts in front of libc in other people's programs.
//!
//! Signatures, and the decision whether a call is ours. A descriptor that we do not follow costs
//! one load; whatever goes wrong with one that we do follow goes wrong for that connection only.

#![expect(clippy::missing_safety_doc, reason = "each function is libc's, with libc's contract")]
#![expect(missing_docs, reason = "each function is libc's, described in its manual page")]

mod alloc;
mod fds;
mod io;
mod life;
mod poll;
mod ready;
mod real;

use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};

use libc::{
    FILE, epoll_event, fd_set, iovec, loff_t, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd,
    sigset_t, size_t, sockaddr, sockaddr_storage, socklen_t, ssize_t, timespec, timeval,
};
use local::conn::Phase;
use local::config::SETTINGS;
use local::world::World;
use local::{Limits, Reason};
use sys::call;

use io::{active, answer};

#[global_allocator]
static ALLOCATOR: alloc::Own = alloc::Own;

// ----- start -------------------------------------------------------------------------------------

#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;

#[used]
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;

extern "C" fn fini() {
    life::leaving();
}

extern "C" fn init() {
    let mut limits = Limits::default();
    for setting in SETTINGS {
        let Some(value) = env(setting.env) else { continue };
        if let Err(bad) = limits.set(setting.name, &value) {
            local::log::line(format_args!("{}: {bad}; staying on TCP", setting.env));
            return;
        }
    }
    let Ok(limits) = limits.checked() else { return };
    if !limits.enabled {
        return;
    }
    let name = call::comm();
    let len = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    let program = String::from_utf8_lossy(&name[..len]).into_owned();
    let log = limits.log;
    match World::join(limits, program, high_fd()) {
        Ok(world) => fds::begin(world),
        Err(error) => {
            if log >= local::Level::Info {
                local::log::line(format_args!("{error}; staying on TCP"));
            }
            return;
        }
    }
    // SAFETY: plain functions that live as long as the process.
    unsafe {
        libc::pthread_atfork(Some(prepare), Some(parent), Some(child));
    }
}

unsafe extern "C" fn prepare() {
    life::fork_prepare();
}

unsafe extern "C" fn parent() {
    life::fork_parent();
}

unsafe extern "C" fn child() {
    life::fork_child();
}

/// Where descriptors of our own go: high, but below the limit.
fn high_fd() -> c_int {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    c_int::try_from(limit.rlim_cur.min(1 << 19)).unwrap_or(1024).saturating_sub(24).max(3)
}

fn env(name: &str) -> Option<String> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: a name that ends.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the environment's strings end, and nobody changes them before `main`.
    let value = unsafe { std::ffi::CStr::from_ptr(value) };
    Some(value.to_string_lossy().into_owned())
}

/// The buffers of a message.
unsafe fn buffers<'a>(msg: *const msghdr) -> Option<&'a [iovec]> {
    // SAFETY: the caller's promise.
    let m = unsafe { msg.as_ref() }?;
    if m.msg_iovlen == 0 {
        return Some(&[]);
    }
    if m.msg_iov.is_null() || m.msg_iovlen > 1024 {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { std::slice::from_raw_parts(m.msg_iov, m.msg_iovlen) })
}

unsafe fn vectors<'a>(iov: *const iovec, n: c_int) -> Option<&'a [iovec]> {
    let n = usize::try_from(n).ok().filter(|n| *n <= 1024)?;
    if n == 0 || iov.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { std::slice::from_raw_parts(iov, n) })
}

const fn one(buf: *mut c_void, n: size_t) -> [iovec; 1] {
    [iovec { iov_base: buf, iov_len: n }]
}

// ----- sockets -----------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: libc's contract, handed on; so in each function below.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    life::made(fd, domain, kind, protocol);
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: as above.
    let done = unsafe { real::listen(fd, backlog) };
    if done == 0 {
        life::listening(fd);
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as above.
    let done = unsafe { real::connect(fd, addr, len) };
    if fds::conn(fd).is_some() && !addr.is_null() && len as usize >= size_of::<sockaddr>() {
        // SAFETY: all zeros is a valid storage.
        let mut storage: sockaddr_storage = unsafe { std::mem::zeroed() };
        let n = (len as usize).min(size_of::<sockaddr_storage>());
        // SAFETY: the kernel has read as many bytes from there.
        unsafe { std::ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut storage).cast(), n) };
        life::connected(fd, Some(&storage), done);
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: as above.
    unsafe { life::accept(fd, addr, len, |a, l| real::accept(fd, a, l), 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe { life::accept(fd, addr, len, |a, l| real::accept4(fd, a, l, flags), flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some((w, conn)) = active(fd)
        && (0..=2).contains(&how)
    {
        io::settle(w, conn, fd, false);
        if conn.phase() == Phase::Attached {
            match conn.shutdown(w, fd, how != libc::SHUT_WR, how != libc::SHUT_RD) {
                Some(Ok(())) => {
                    ready::woken(w, conn);
                    return 0;
                }
                Some(Err(errno)) => {
                    real::set_errno(errno);
                    return -1;
                }
                None => {}
            }
        } else if how != libc::SHUT_RD {
            // Nothing can follow in a ring after this.
            conn.keep_tcp(w, fd, Reason::Short);
        }
    }
    // SAFETY: as above.
    unsafe { real::shutdown(fd, how) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    if let Some((w, conn)) = active(fd)
        && conn.has_ended(w)
    {
        real::set_errno(libc::ENOTCONN);
        return -1;
    }
    // SAFETY: as above.
    unsafe { real::getpeername(fd, addr, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as above.
    let done = unsafe { real::getsockopt(fd, level, name, value, len) };
    if done == 0
        && level == libc::IPPROTO_TCP
        && (name == libc::TCP_NODELAY || name == libc::TCP_CORK)
        && let Some(conn) = fds::conn(fd)
    {
        // SAFETY: libc has just written there.
        unsafe { believed(conn, name, value.cast()) };
    }
    if done == 0
        && level == libc::SOL_SOCKET
        && name == libc::SO_ERROR
        && let Some((w, conn)) = active(fd)
        && conn.phase() == Phase::Attached
    {
        // SAFETY: libc has just written there.
        let at = unsafe { value.cast::<c_int>().read_unaligned() };
        let now = conn.socket_error(w, at);
        // SAFETY: the same place.
        unsafe { value.cast::<c_int>().write_unaligned(now) };
    }
    done
}

/// Corrects what the kernel says of an option that doorbells need otherwise than the program.
unsafe fn believed(conn: &local::conn::Conn, name: c_int, value: *mut c_int) {
    use local::conn::options::{CORK, NAGLE};
    let options = conn.options.load(std::sync::atomic::Ordering::Relaxed);
    if name == libc::TCP_NODELAY && options & NAGLE != 0 {
        // SAFETY: the caller's promise.
        unsafe { value.write_unaligned(0) };
    }
    if name == libc::TCP_CORK && options & CORK != 0 {
        // SAFETY: the caller's promise.
        unsafe { value.write_unaligned(1) };
    }
}

/// Notes `TCP_NODELAY` and `TCP_CORK`; `true`: the kernel need not hear of it, because the
/// connection does not send by TCP.
fn noted(conn: &local::conn::Conn, name: c_int, on: bool) -> bool {
    use local::conn::options::{CORK, NAGLE};
    let attached = conn.phase() == Phase::Attached;
    let (bit, set) = match name {
        libc::TCP_NODELAY => (NAGLE, attached && !on),
        libc::TCP_CORK => (CORK, on),
        _ => return false,
    };
    if set {
        conn.options.fetch_or(bit, std::sync::atomic::Ordering::Relaxed);
    } else {
        conn.options.fetch_and(!bit, std::sync::atomic::Ordering::Relaxed);
    }
    attached
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let Some(conn) = fds::conn(fd)
        && let Some(w) = fds::world()
    {
        let on = !value.is_null() && len as usize >= size_of::<c_int>() && {
            // SAFETY: the caller's promise.
            unsafe { value.cast::<c_int>().read_unaligned() != 0 }
        };
        if level == libc::IPPROTO_TCP && len as usize >= size_of::<c_int>() && noted(conn, name, on) {
            return 0;
        }
        let low = on && {
            // SAFETY: the caller's promise.
            (unsafe { value.cast::<c_int>().read_unaligned() }) <= 1
        };
        let reason = match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY) if on => Some(Reason::ZeroCopy),
            (libc::SOL_SOCKET, libc::SO_RCVLOWAT) if on && !low => Some(Reason::Option),
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPING) if on => Some(Reason::Option),
            (libc::IPPROTO_TCP, libc::TCP_ULP) => Some(Reason::KernelTls),
            (libc::IPPROTO_TCP, libc::TCP_REPAIR) => Some(Reason::Option),
            _ => None,
        };
        if let Some(reason) = reason {
            conn.stay.store(reason.code(), std::sync::atomic::Ordering::Relaxed);
            if conn.phase() != Phase::Listener {
                io::to_tcp(w, conn, fd, reason);
            }
        }
    }
    // SAFETY: as above.
    unsafe { real::setsockopt(fd, level, name, value, len) }
}

const SIOCATMARK: c_ulong = 0x8905;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    let mut at = 0;
    // SAFETY: a valid place.
    if unsafe { ioctl(fd, SIOCATMARK, (&raw mut at) as usize) } < 0 { -1 } else { at }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int {
    if let Some((w, conn)) = active(fd) {
        if request == libc::FIONREAD || request == libc::TIOCOUTQ {
            io::settle(w, conn, fd, false);
            if conn.phase() == Phase::Attached && arg != 0 {
                let n = if request == libc::FIONREAD { conn.unread(w, fd) } else { conn.unsent(w) };
                if let Some(n) = n.and_then(|n| c_int::try_from(n).ok()) {
                    // SAFETY: the caller's promise.
                    unsafe { (arg as *mut c_int).write_unaligned(n) };
                    return 0;
                }
            }
        }
        if request == SIOCATMARK && conn.phase() == Phase::Attached && arg != 0 {
            // Doorbells are not part of the stream; what is in the ring comes before the mark.
            if conn.unread_ring(w) {
                // SAFETY: the caller's promise.
                unsafe { (arg as *mut c_int).write_unaligned(0) };
                return 0;
            }
            conn.drain(w, fd);
        }
        if request == libc::FIOASYNC {
            io::to_tcp(w, conn, fd, Reason::SignalIo);
        }
    }
    // SAFETY: as above.
    let done = unsafe { real::ioctl(fd, request, arg) };
    if request == libc::FIONBIO
        && done == 0
        && let Some(conn) = fds::conn(fd)
    {
        // SAFETY: libc has read from there.
        let on = unsafe { (arg as *const c_int).read_unaligned() } != 0;
        conn.nonblock.store(1 + u32::from(on), std::sync::atomic::Ordering::Relaxed);
    }
    done
}

unsafe fn control(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    if cmd == libc::F_SETFL
        && arg & libc::O_ASYNC as usize != 0
        && let Some((w, conn)) = active(fd)
    {
        io::to_tcp(w, conn, fd, Reason::SignalIo);
    }
    // SAFETY: as above.
    let done = unsafe { real::fcntl(fd, cmd, arg) };
    match cmd {
        libc::F_SETFL if done == 0 => {
            if let Some(conn) = fds::conn(fd) {
                let on = arg & libc::O_NONBLOCK as usize != 0;
                conn.nonblock.store(1 + u32::from(on), std::sync::atomic::Ordering::Relaxed);
            }
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => life::duplicated(fd, done),
        _ => {}
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    // SAFETY: as above.
    unsafe { control(fd, cmd, arg) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int {
    // SAFETY: as above.
    unsafe { control(fd, cmd, arg) }
}

// ----- receiving ---------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    if let Some((w, conn)) = active(fd) {
        // SAFETY: as above.
        return answer(unsafe { io::receive(w, conn, fd, &one(buf, n), 0, true) });
    }
    // SAFETY: as above.
    unsafe { real::read(fd, buf, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    // SAFETY: as above.
    unsafe { read(fd, buf, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t {
    fortified(n, room);
    // SAFETY: as above.
    unsafe { read(fd, buf, n) }
}

/// What `_FORTIFY_SOURCE` does to a program that would overflow its buffer.
fn fortified(n: size_t, room: size_t) {
    if n > room {
        local::log::line(format_args!("buffer overflow detected: {n} bytes into {room}"));
        // SAFETY: always callable.
        unsafe { libc::abort() };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    if let Some((w, conn)) = active(fd)
        // SAFETY: as above.
        && let Some(list) = unsafe { vectors(iov, n) }
    {
        // SAFETY: as above.
        return answer(unsafe { io::receive(w, conn, fd, list, 0, true) });
    }
    // SAFETY: as above.
    unsafe { real::readv(fd, iov, n) }
}

unsafe fn read_at(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
    if offset == -1
        && let Some((w, conn)) = active(fd)
        // SAFETY: as above.
        && let Some(list) = unsafe { vectors(iov, n) }
    {
        let flags = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: as above.
        return answer(unsafe { io::receive(w, conn, fd, list, flags, true) });
    }
    // SAFETY: as above.
    unsafe { real::preadv2(fd, iov, n, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv2(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe { read_at(fd, iov, n, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv64v2(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe { read_at(fd, iov, n, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
    if let Some((w, conn)) = active(fd) {
        // SAFETY: as above.
        return answer(unsafe { io::receive(w, conn, fd, &one(buf, n), flags, false) });
    }
    // SAFETY: as above.
    unsafe { real::recv(fd, buf, n, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t {
    fortified(n, room);
    // SAFETY: as above.
    unsafe { recv(fd, buf, n, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    if let Some((w, conn)) = active(fd) {
        // SAFETY: as above.
        let got = answer(unsafe { io::receive(w, conn, fd, &one(buf, n), flags, false) });
        if got >= 0 && !addr.is_null() && !len.is_null() {
            // A stream has no sender.
            // SAFETY: the caller's promise.
            unsafe { *len = 0 };
        }
        return got;
    }
    // SAFETY: as above.
    unsafe { real::recvfrom(fd, buf, n, flags, addr, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    fortified(n, room);
    // SAFETY: as above.
    unsafe { recvfrom(fd, buf, n, flags, addr, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    if flags & libc::MSG_ERRQUEUE == 0
        && let Some((w, conn)) = active(fd)
        // SAFETY: as above.
        && let Some(list) = unsafe { buffers(msg) }
    {
        // SAFETY: as above.
        let got = answer(unsafe { io::receive(w, conn, fd, list, flags, false) });
        // SAFETY: valid, as `buffers` found.
        let m = unsafe { &mut *msg };
        if got >= 0 {
            m.msg_namelen = 0;
            m.msg_controllen = 0;
            m.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
        }
        return got;
    }
    // SAFETY: as above.
    let got = unsafe { real::recvmsg(fd, msg, flags) };
    // SAFETY: libc has written it.
    if got >= 0 && !msg.is_null() && unsafe { (*msg).msg_controllen } > 0 {
        // SAFETY: libc has written it.
        unsafe { arrived(msg) };
    }
    got
}

/// Descriptors that have just arrived: what we knew of their numbers is stale.
unsafe fn arrived(msg: *const msghdr) {
    // SAFETY: the caller's promise.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !at.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR stay inside of the control data.
        let head = unsafe { &*at };
        if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: pure arithmetic.
            let header = unsafe { libc::CMSG_LEN(0) } as usize;
            let n = (head.cmsg_len as usize).saturating_sub(header) / size_of::<c_int>();
            for i in 0..n {
                // SAFETY: inside of the message, perhaps not aligned.
                let fd = unsafe { libc::CMSG_DATA(at).cast::<c_int>().add(i).read_unaligned() };
                life::fresh(fd);
            }
        }
        // SAFETY: the caller's promise.
        at = unsafe { libc::CMSG_NXTHDR(msg, at) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if active(fd).is_none() || msgs.is_null() {
        // SAFETY: as above.
        return unsafe { real::recvmmsg(fd, msgs, n, flags, timeout) };
    }
    // SAFETY: the caller's promise.
    let limit = unsafe { timeout.as_ref() }.map(|t| call::now_ns() + nanos(t));
    let mut flags = flags;
    let mut done = 0;
    for i in 0..n.min(1024) {
        // SAFETY: the caller's promise.
        let m = unsafe { &mut *msgs.add(i as usize) };
        // SAFETY: as above.
        let got = unsafe { recvmsg(fd, &raw mut m.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        if got < 0 {
            return if done > 0 { done } else { -1 };
        }
        m.msg_len = u32::try_from(got).unwrap_or(u32::MAX);
        done += 1;
        if got == 0 || limit.is_some_and(|l| call::now_ns() >= l) {
            break;
        }
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
    }
    done
}

fn nanos(t: &timespec) -> u64 {
    u64::try_from(t.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000)
        + u64::try_from(t.tv_nsec).unwrap_or(0)
}

// ----- sending -----------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    if let Some((w, conn)) = active(fd) {
        // SAFETY: as above.
        return answer(unsafe { io::transmit(w, conn, fd, &one(buf.cast_mut(), n), 0, None) });
    }
    // SAFETY: as above.
    unsafe { real::write(fd, buf, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    // SAFETY: as above.
    unsafe { write(fd, buf, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    if let Some((w, conn)) = active(fd)
        // SAFETY: as above.
        && let Some(list) = unsafe { vectors(iov, n) }
    {
        // SAFETY: as above.
        return answer(unsafe { io::transmit(w, conn, fd, list, 0, None) });
    }
    // SAFETY: as above.
    unsafe { real::writev(fd, iov, n) }
}

unsafe fn write_at(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
    if offset == -1
        && let Some((w, conn)) = active(fd)
        // SAFETY: as above.
        && let Some(list) = unsafe { vectors(iov, n) }
    {
        let flags = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: as above.
        return answer(unsafe { io::transmit(w, conn, fd, list, flags, None) });
    }
    // SAFETY: as above.
    unsafe { real::pwritev2(fd, iov, n, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev2(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe { write_at(fd, iov, n, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev64v2(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe { write_at(fd, iov, n, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    if let Some((w, conn)) = active(fd) {
        // SAFETY: as above.
        return answer(unsafe { io::transmit(w, conn, fd, &one(buf.cast_mut(), n), flags, None) });
    }
    // SAFETY: as above.
    unsafe { real::send(fd, buf, n, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    // SAFETY: as above.
    unsafe { send(fd, buf, n, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buf: *const c_void,
    n: size_t,
    flags: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> ssize_t {
    if let Some((w, conn)) = active(fd) {
        // The address is ignored on a connected stream.
        // SAFETY: as above.
        return answer(unsafe { io::transmit(w, conn, fd, &one(buf.cast_mut(), n), flags, None) });
    }
    // SAFETY: as above.
    let sent = unsafe { real::sendto(fd, buf, n, flags, addr, len) };
    if flags & libc::MSG_FASTOPEN != 0
        && let Some(conn) = fds::conn(fd)
        && let Some(w) = fds::world()
    {
        conn.keep_tcp(w, fd, Reason::Option);
    }
    sent
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let with_control = unsafe { msg.as_ref() }.is_some_and(|m| m.msg_controllen > 0);
    if let Some((w, conn)) = active(fd)
        // SAFETY: as above.
        && let Some(list) = unsafe { buffers(msg) }
    {
        let control = with_control.then_some(msg);
        // SAFETY: as above.
        return answer(unsafe { io::transmit(w, conn, fd, list, flags, control) });
    }
    if with_control {
        // SAFETY: as above.
        unsafe { life::passing(msg) };
    }
    // SAFETY: as above.
    unsafe { real::sendmsg(fd, msg, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, msgs: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
    if msgs.is_null() {
        // SAFETY: as above.
        return unsafe { real::sendmmsg(fd, msgs, n, flags) };
    }
    if active(fd).is_none() {
        for i in 0..n.min(1024) {
            // SAFETY: the caller's promise.
            let m = unsafe { &*msgs.add(i as usize) };
            if m.msg_hdr.msg_controllen > 0 {
                // SAFETY: the same.
                unsafe { life::passing(&raw const m.msg_hdr) };
            }
        }
        // SAFETY: as above.
        return unsafe { real::sendmmsg(fd, msgs, n, flags) };
    }
    let mut done = 0;
    for i in 0..n.min(1024) {
        // SAFETY: the caller's promise.
        let m = unsafe { &mut *msgs.add(i as usize) };
        // SAFETY: as above.
        let put = unsafe { sendmsg(fd, &raw const m.msg_hdr, flags) };
        if put < 0 {
            return if done > 0 { done } else { -1 };
        }
        m.msg_len = u32::try_from(put).unwrap_or(u32::MAX);
        done += 1;
    }
    done
}

unsafe fn file_to_socket(to: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
    if let Some((w, conn)) = active(to) {
        // SAFETY: as above.
        return answer(unsafe { io::send_file(w, conn, to, from, offset, n) });
    }
    // SAFETY: as above.
    unsafe { real::sendfile(to, from, offset, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(to: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
    // SAFETY: as above.
    unsafe { file_to_socket(to, from, offset, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(to: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
    // SAFETY: as above.
    unsafe { file_to_socket(to, from, offset, n) }
}

/// Whether the other end of a `splice` is a pipe, as it must be.
fn is_pipe(fd: c_int) -> bool {
    call::fstat(fd).is_ok_and(|s| s.st_mode & libc::S_IFMT == libc::S_IFIFO)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut loff_t,
    to: c_int,
    to_at: *mut loff_t,
    n: size_t,
    flags: c_uint,
) -> ssize_t {
    for (fd, other, outward) in [(from, to, true), (to, from, false)] {
        let Some((w, conn)) = active(fd).filter(|_| is_pipe(other)) else { continue };
        // What a pipe has taken cannot be given back, so this is settled first.
        if conn.keep_tcp(w, fd, Reason::Splice) || !from_at.is_null() || !to_at.is_null() {
            continue;
        }
        if conn.phase() != Phase::Attached {
            continue;
        }
        ready::attached_late(w, conn);
        return answer(if outward {
            io::splice_out(w, conn, fd, to, n, flags)
        } else {
            io::splice_in(w, conn, fd, from, n, flags)
        });
    }
    // SAFETY: as above.
    unsafe { real::splice(from, from_at, to, to_at, n, flags) }
}

// ----- readiness ---------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: as above.
    if let Some(list) = unsafe { polled(fds, n) } {
        let limit = u64::try_from(timeout).ok().map(|ms| ms * 1_000_000);
        return poll::poll(list, limit, &mut |list, left| {
            let limit = left.map(time_limit);
            let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: our own or the guest's array.
            unsafe { real::ppoll(list.as_mut_ptr(), list.len() as nfds_t, limit, std::ptr::null()) }
        });
    }
    // SAFETY: as above.
    unsafe { real::poll(fds, n, timeout) }
}

/// The array of a `poll`, if it concerns us.
unsafe fn polled<'a>(fds: *mut pollfd, n: nfds_t) -> Option<&'a mut [pollfd]> {
    if fds.is_null() || n == 0 || n > 1 << 20 || fds::world().is_none() {
        return None;
    }
    // SAFETY: the caller's promise.
    let list = unsafe { std::slice::from_raw_parts_mut(fds, usize::try_from(n).ok()?) };
    poll::concerns(list).then_some(list)
}

fn time_limit(ns: u64) -> timespec {
    timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { poll(fds, n, timeout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, room: size_t) -> c_int {
    fortified(usize::try_from(n).unwrap_or(usize::MAX), room / size_of::<pollfd>());
    // SAFETY: as above.
    unsafe { poll(fds, n, timeout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let limit = unsafe { timeout.as_ref() };
    if limit.is_none_or(valid)
        // SAFETY: as above.
        && let Some(list) = unsafe { polled(fds, n) }
    {
        if pending_under(mask) {
            // SAFETY: as above; a pending signal ends it at once.
            return unsafe { real::ppoll(fds, n, timeout, mask) };
        }
        return poll::poll(list, limit.map(nanos), &mut |list, left| {
            let limit = left.map(time_limit);
            let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: our own or the guest's array.
            unsafe { real::ppoll(list.as_mut_ptr(), list.len() as nfds_t, limit, mask) }
        });
    }
    // SAFETY: as above.
    unsafe { real::ppoll(fds, n, timeout, mask) }
}

fn valid(t: &timespec) -> bool {
    t.tv_sec >= 0 && (0..1_000_000_000).contains(&t.tv_nsec)
}

/// Whether a signal waits that this mask would let through: then the kernel's call must be made,
/// and end with `EINTR`.
fn pending_under(mask: *const sigset_t) -> bool {
    // SAFETY: the caller's promise.
    let Some(mask) = (unsafe { mask.as_ref() }) else { return false };
    // SAFETY: all zeros is a valid set.
    let mut pending: sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place.
    if unsafe { libc::sigpending(&raw mut pending) } != 0 {
        return false;
    }
    (1..=64).any(|signal| {
        // SAFETY: valid sets.
        let waits = unsafe { libc::sigismember(&raw const pending, signal) } == 1;
        // SAFETY: valid sets.
        waits && unsafe { libc::sigismember(mask, signal) } == 0
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    fortified(usize::try_from(n).unwrap_or(usize::MAX), room / size_of::<pollfd>());
    // SAFETY: as above.
    unsafe { ppoll(fds, n, timeout, mask) }
}

/// `select` by way of `poll`, if any of its descriptors concerns us. Answers what is left of the
/// time, too.
unsafe fn selected(
    n: c_int,
    sets: [*mut fd_set; 3],
    limit: Option<u64>,
    mask: *const sigset_t,
) -> Option<c_int> {
    if !(1..=1 << 20).contains(&n) {
        return None;
    }
    fds::world()?;
    let words = usize::try_from(n).ok()?.div_ceil(64);
    let mut lists = poll::Sets {
        // SAFETY: the caller's promise: each set has at least `n` bits, in words.
        words: sets.map(|s| {
            (!s.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(s.cast::<u64>(), words) })
        }),
        n,
    };
    let mut list = lists.list();
    if !poll::concerns(&list) {
        return None;
    }
    if pending_under(mask) {
        return None;
    }
    let got = poll::poll(&mut list, limit, &mut |list, left| {
        let limit = left.map(time_limit);
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: our own array.
        unsafe { real::ppoll(list.as_mut_ptr(), list.len() as nfds_t, limit, mask) }
    });
    if got < 0 {
        return Some(got);
    }
    Some(lists.answer(&list).unwrap_or_else(|errno| {
        real::set_errno(errno);
        -1
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn select(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: the caller's promise.
    let limit = unsafe { timeout.as_ref() };
    let limit_ns = limit.map(|t| {
        u64::try_from(t.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000)
            + u64::try_from(t.tv_usec).unwrap_or(0) * 1000
    });
    if limit.is_none_or(|t| t.tv_sec >= 0 && t.tv_usec >= 0) {
        let start = call::now_ns();
        // SAFETY: as above.
        if let Some(got) = unsafe { selected(n, [r, w, e], limit_ns, std::ptr::null()) } {
            if let Some(limit) = limit_ns {
                // Linux says how much is left.
                let left = limit.saturating_sub(call::now_ns() - start);
                // SAFETY: the caller's promise.
                unsafe {
                    *timeout = timeval {
                        tv_sec: i64::try_from(left / 1_000_000_000).unwrap_or(0),
                        tv_usec: i64::try_from(left % 1_000_000_000 / 1000).unwrap_or(0),
                    };
                }
            }
            return got;
        }
    }
    // SAFETY: as above.
    unsafe { real::select(n, r, w, e, timeout) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pselect(
    n: c_int,
    r: *mut fd_set,
    w: *mut fd_set,
    e: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let limit = unsafe { timeout.as_ref() };
    if limit.is_none_or(valid)
        // SAFETY: as above.
        && let Some(got) = unsafe { selected(n, [r, w, e], limit.map(nanos), mask) }
    {
        return got;
    }
    // SAFETY: as above.
    unsafe { real::pselect(n, r, w, e, timeout, mask) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create(n: c_int) -> c_int {
    // SAFETY: as above.
    let fd = unsafe { real::epoll_create(n) };
    life::fresh(fd);
    ready::created(fd);
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: as above.
    let fd = unsafe { real::epoll_create1(flags) };
    life::fresh(fd);
    ready::created(fd);
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    match fds::look(fd) {
        Some(fds::Entry::Conn(conn)) if conn.phase() != Phase::Listener => {
            if let Some(w) = fds::world() {
                // SAFETY: the caller's promise.
                let asked = unsafe { event.as_ref() }.copied();
                return ready::control(w, conn, epfd, op, fd, asked, &mut |_| {
                    // SAFETY: as above.
                    unsafe { real::epoll_ctl(epfd, op, fd, event) }
                });
            }
        }
        Some(fds::Entry::Set(_)) => {
            if let Some(w) = fds::world() {
                ready::looked_at(w, fd);
            }
        }
        _ => {}
    }
    // SAFETY: as above.
    let done = unsafe { real::epoll_ctl(epfd, op, fd, event) };
    if done == 0 {
        ready::other(epfd, op);
    }
    done
}

/// A wait on an event set of ours.
unsafe fn epoll(
    epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    limit: Option<u64>,
    sleep: &mut dyn FnMut(&mut [epoll_event], Option<u64>) -> c_int,
) -> Option<c_int> {
    let set = fds::set(epfd)?;
    let w = fds::world()?;
    let n = usize::try_from(n).ok().filter(|n| *n > 0)?;
    if events.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let list = unsafe { std::slice::from_raw_parts_mut(events, n) };
    Some(set.wait(w, epfd, list, limit, sleep))
}

fn whole_ms(left: Option<u64>) -> c_int {
    // Rounded up: a wait must not end before its time.
    left.map_or(-1, |ns| c_int::try_from(ns.div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}

fn room(list: &[epoll_event]) -> c_int {
    c_int::try_from(list.len()).unwrap_or(c_int::MAX)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_wait(epfd: c_int, events: *mut epoll_event, n: c_int, timeout: c_int) -> c_int {
    let limit = u64::try_from(timeout).ok().map(|ms| ms * 1_000_000);
    // SAFETY: as above.
    let ours = unsafe {
        epoll(epfd, events, n, limit, &mut |list, left| {
            real::epoll_wait(epfd, list.as_mut_ptr(), room(list), whole_ms(left))
        })
    };
    // SAFETY: as above.
    ours.unwrap_or_else(|| unsafe { real::epoll_wait(epfd, events, n, timeout) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    if !pending_under(mask) {
        let limit = u64::try_from(timeout).ok().map(|ms| ms * 1_000_000);
        // SAFETY: as above.
        let ours = unsafe {
            epoll(epfd, events, n, limit, &mut |list, left| {
                real::epoll_pwait(epfd, list.as_mut_ptr(), room(list), whole_ms(left), mask)
            })
        };
        if let Some(got) = ours {
            return got;
        }
    }
    // SAFETY: as above.
    unsafe { real::epoll_pwait(epfd, events, n, timeout, mask) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    let limit = unsafe { timeout.as_ref() };
    if limit.is_none_or(valid) && !pending_under(mask) {
        // SAFETY: as above.
        let ours = unsafe {
            epoll(epfd, events, n, limit.map(nanos), &mut |list, left| {
                let limit = left.map(time_limit);
                let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                real::epoll_pwait2(epfd, list.as_mut_ptr(), room(list), limit, mask)
            })
        };
        if let Some(got) = ours {
            return got;
        }
    }
    // SAFETY: as above.
    unsafe { real::epoll_pwait2(epfd, events, n, timeout, mask) }
}

// ----- descriptors -------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // SAFETY: as above.
    life::close(fd, || unsafe { real::close(fd) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __close(fd: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { close(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 4;
    if fds::world().is_none() || first > last || flags & CLOEXEC != 0 {
        // SAFETY: as above.
        return unsafe { real::close_range(first, last, flags) };
    }
    life::closing_range(first, last);
    let mut done = 0;
    for (a, b) in life::around_ours(first, last) {
        // SAFETY: as above.
        done |= unsafe { real::close_range(a, b, flags) };
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let from = u32::try_from(first).unwrap_or(0);
    if fds::world().is_none() {
        // SAFETY: as above.
        return unsafe { real::closefrom(first) };
    }
    // SAFETY: as above.
    unsafe { close_range(from, u32::MAX, 0) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: as above.
    let new = unsafe { real::dup(fd) };
    if !fds_borrowed_for(fd) {
        life::duplicated(fd, new);
    }
    new
}

/// Whether a `vfork` child makes this call on something that we follow.
fn fds_borrowed_for(fd: c_int) -> bool {
    fds::look(fd).is_some() && fds::borrowed()
}

unsafe fn dup_to(fd: c_int, to: c_int, call_it: impl Fn() -> c_int) -> c_int {
    let follows = fds::look(fd).is_some() || fds::look(to).is_some();
    if !follows || fd == to {
        return call_it();
    }
    if fds::borrowed() {
        // What a `vfork` child hands to the program that it becomes must be TCP.
        if let Some((w, conn)) = active(fd) {
            io::to_tcp(w, conn, fd, Reason::Exec);
        }
        return call_it();
    }
    if fds::look(to).is_some() && call::getfd(fd).is_ok() {
        // The target is closed by this, as by `close`.
        life::close(to, || 0);
    }
    let new = call_it();
    life::duplicated(fd, new);
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { dup_to(fd, to, || real::dup2(fd, to)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { dup2(fd, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { dup_to(fd, to, || real::dup3(fd, to, flags)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if let Some(conn) = fds::conn(fd)
        && let Some(w) = fds::world()
        && conn.phase() != Phase::Listener
        && !io::to_tcp(w, conn, fd, Reason::Stdio)
    {
        // stdio would read doorbells: better no stream at all.
        real::set_errno(libc::EIO);
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    unsafe { real::fdopen(fd, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(file: *mut FILE) -> c_int {
    if !file.is_null() && fds::world().is_some() {
        // SAFETY: the caller's promise.
        let fd = unsafe { libc::fileno(file) };
        if fd >= 0 && fds::look(fd).is_some() && !fds::borrowed() {
            // libc closes the descriptor by itself.
            // SAFETY: as above.
            return life::close(fd, || unsafe { real::fclose(file) });
        }
    }
    // SAFETY: as above.
    unsafe { real::fclose(file) }
}

/// `vdprintf`: libc would write to the descriptor by itself.
///
/// # Safety
///
/// As libc's; `args` is a `va_list`, which the ABI passes by address.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn vdprintf(fd: c_int, format: *const c_char, args: *mut c_void) -> c_int {
    unsafe extern "C" {
        fn vasprintf(to: *mut *mut c_char, format: *const c_char, args: *mut c_void) -> c_int;
    }
    let mut text: *mut c_char = std::ptr::null_mut();
    // SAFETY: as above.
    let n = unsafe { vasprintf(&raw mut text, format, args) };
    let Ok(mut left) = usize::try_from(n) else { return n };
    let mut at = text.cast::<c_void>();
    let mut result = n;
    while left > 0 {
        // SAFETY: the text that libc has just made.
        let put = unsafe { write(fd, at, left) };
        let Some(put) = usize::try_from(put).ok().filter(|p| *p > 0) else {
            result = -1;
            break;
        };
        left -= put;
        at = at.wrapping_byte_add(put);
    }
    let errno = real::errno();
    // SAFETY: made by `vasprintf`.
    unsafe { libc::free(text.cast()) };
    real::set_errno(errno);
    result
}

/// `dprintf`: lays its arguments out as a `va_list` (System V ABI, 3.5.7) for [`vdprintf`].
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C-unwind" fn dprintf() {
    std::arch::naked_asm!(
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 208",
        // The register save area: 6 integer registers, then 8 vector registers.
        "mov [rbp - 176], rdi",
        "mov [rbp - 168], rsi",
        "mov [rbp - 160], rdx",
        "mov [rbp - 152], rcx",
        "mov [rbp - 144], r8",
        "mov [rbp - 136], r9",
        "test al, al",
        "je 2f",
        "movaps [rbp - 128], xmm0",
        "movaps [rbp - 112], xmm1",
        "movaps [rbp - 96], xmm2",
        "movaps [rbp - 80], xmm3",
        "movaps [rbp - 64], xmm4",
        "movaps [rbp - 48], xmm5",
        "movaps [rbp - 32], xmm6",
        "movaps [rbp - 16], xmm7",
        "2:",
        // The list: two integer registers are used, the rest is on the caller's stack.
        "mov dword ptr [rbp - 208], 16",
        "mov dword ptr [rbp - 204], 48",
        "lea rax, [rbp + 16]",
        "mov [rbp - 200], rax",
        "lea rax, [rbp - 176]",
        "mov [rbp - 192], rax",
        "lea rdx, [rbp - 208]",
        "call {print}",
        "leave",
        "ret",
        print = sym vdprintf,
    )
}

// ----- processes ---------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    life::handing_over();
    // SAFETY: as above.
    unsafe { real::execve(path, argv, envp) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execv(path: *const c_char, argv: *const *const c_char) -> c_int {
    life::handing_over();
    // SAFETY: as above.
    unsafe { real::execv(path, argv) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvp(path: *const c_char, argv: *const *const c_char) -> c_int {
    life::handing_over();
    // SAFETY: as above.
    unsafe { real::execvp(path, argv) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execvpe(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    life::handing_over();
    // SAFETY: as above.
    unsafe { real::execvpe(path, argv, envp) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    life::handing_over();
    // SAFETY: as above.
    unsafe { real::fexecve(fd, argv, envp) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn execveat(
    dir: c_int,
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    flags: c_int,
) -> c_int {
    life::handing_over();
    // SAFETY: as above.
    unsafe { real::execveat(dir, path, argv, envp, flags) }
}

/// The rest of an argument list that the caller has laid out for a variadic function: the first few
/// in registers, the others on the stack, a null pointer last. Rust cannot define variadic functions
/// yet; on the architectures we support, a function with many pointer parameters finds them in the
/// same places, and reads none behind the null.
macro_rules! list_exec {
    ($name:ident, $real:path $(, $env:ident)?) => {
        #[unsafe(no_mangle)]
        #[expect(clippy::too_many_arguments, reason = "stands for a variadic function")]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            a0: *const c_char, a1: *const c_char, a2: *const c_char, a3: *const c_char,
            a4: *const c_char, a5: *const c_char, a6: *const c_char, a7: *const c_char,
            a8: *const c_char, a9: *const c_char, a10: *const c_char, a11: *const c_char,
            a12: *const c_char, a13: *const c_char, a14: *const c_char, a15: *const c_char,
            a16: *const c_char, a17: *const c_char, a18: *const c_char, a19: *const c_char,
            a20: *const c_char, a21: *const c_char, a22: *const c_char, a23: *const c_char,
            a24: *const c_char, a25: *const c_char, a26: *const c_char, a27: *const c_char,
            a28: *const c_char, a29: *const c_char, a30: *const c_char, a31: *const c_char,
        ) -> c_int {
            let all = [
                a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18,
                a19, a20, a21, a22, a23, a24, a25, a26, a27, a28, a29, a30, a31,
            ];
            let Some(end) = all.iter().position(|a| a.is_null()) else {
                real::set_errno(libc::E2BIG);
                return -1;
            };
            life::handing_over();
            let _ = end;
            $(
                let $env = all.get(end + 1).map_or(std::ptr::null(), |e| e.cast::<*const c_char>());
            )?
            // SAFETY: as libc's: a list that ends in a null pointer.
            unsafe { $real(path, all.as_ptr() $(, $env)?) }
        }
    };
}

list_exec!(execl, real::execv);
list_exec!(execlp, real::execvp);
list_exec!(execle, real::execve, envp);

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attrs: *const c_void,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    life::handing_over();
    // SAFETY: as above.
    unsafe { real::posix_spawn(pid, path, actions, attrs, argv, envp) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attrs: *const c_void,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    life::handing_over();
    // SAFETY: as above.
    unsafe { real::posix_spawnp(pid, path, actions, attrs, argv, envp) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    life::handing_over();
    // SAFETY: as above.
    unsafe { real::system(command) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE {
    life::handing_over();
    // SAFETY: as above.
    unsafe { real::popen(command, mode) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setuid(id: c_uint) -> c_int {
    life::prepare_early();
    // SAFETY: as above.
    unsafe { real::setuid(id) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn seteuid(id: c_uint) -> c_int {
    life::prepare_early();
    // SAFETY: as above.
    unsafe { real::seteuid(id) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setreuid(r: c_uint, e: c_uint) -> c_int {
    life::prepare_early();
    // SAFETY: as above.
    unsafe { real::setreuid(r, e) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setresuid(r: c_uint, e: c_uint, s: c_uint) -> c_int {
    life::prepare_early();
    // SAFETY: as above.
    unsafe { real::setresuid(r, e, s) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn chroot(path: *const c_char) -> c_int {
    life::prepare_early();
    // SAFETY: as above.
    unsafe { real::chroot(path) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if option == libc::PR_SET_SECCOMP || option == libc::PR_SET_NO_NEW_PRIVS {
        life::prepare_early();
    }
    // SAFETY: as above.
    unsafe { real::prctl(option, a, b, c, d) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _exit(status: c_int) -> ! {
    life::leaving();
    // SAFETY: as above.
    unsafe { real::_exit(status) };
    // SAFETY: always callable; only if libc had no `_exit`.
    unsafe { libc::abort() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Exit(status: c_int) -> ! {
    // SAFETY: as above.
    unsafe { _exit(status) }
}

// ----- around libc -------------------------------------------------------------------------------

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    n: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if n == libc::SYS_io_uring_setup && fds::world().is_some() && env("SHUNT_URING").is_none() {
        // Programs fall back to epoll, which we can serve; what io_uring does to a socket we could
        // not see.
        real::set_errno(libc::ENOSYS);
        return -1;
    }
    // SAFETY: the same calls by another name.
    unsafe {
        match n {
            libc::SYS_read => read(a as c_int, b as *mut c_void, c) as c_long,
            libc::SYS_write => write(a as c_int, b as *const c_void, c) as c_long,
            libc::SYS_readv => readv(a as c_int, b as *const iovec, c as c_int) as c_long,
            libc::SYS_writev => writev(a as c_int, b as *const iovec, c as c_int) as c_long,
            libc::SYS_recvfrom => {
                recvfrom(a as c_int, b as *mut c_void, c, d as c_int, e as *mut sockaddr, f as *mut socklen_t)
                    as c_long
            }
            libc::SYS_sendto => {
                sendto(a as c_int, b as *const c_void, c, d as c_int, e as *const sockaddr, f as socklen_t)
                    as c_long
            }
            libc::SYS_recvmsg => recvmsg(a as c_int, b as *mut msghdr, c as c_int) as c_long,
            libc::SYS_sendmsg => sendmsg(a as c_int, b as *const msghdr, c as c_int) as c_long,
            libc::SYS_close => c_long::from(close(a as c_int)),
            libc::SYS_close_range => c_long::from(close_range(a as c_uint, b as c_uint, c as c_int)),
            libc::SYS_dup => c_long::from(dup(a as c_int)),
            libc::SYS_dup3 => c_long::from(dup3(a as c_int, b as c_int, c as c_int)),
            libc::SYS_socket => c_long::from(socket(a as c_int, b as c_int, c as c_int)),
            libc::SYS_connect => {
                c_long::from(connect(a as c_int, b as *const sockaddr, c as socklen_t))
            }
            libc::SYS_accept4 => {
                c_long::from(accept4(a as c_int, b as *mut sockaddr, c as *mut socklen_t, d as c_int))
            }
            libc::SYS_shutdown => c_long::from(shutdown(a as c_int, b as c_int)),
            libc::SYS_epoll_ctl => {
                c_long::from(epoll_ctl(a as c_int, b as c_int, c as c_int, d as *mut epoll_event))
            }
            _ => real::syscall(n, a, b, c, d, e, f),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void) -> c_int {
    life::uring();
    // SAFETY: as above.
    unsafe { real::io_uring_queue_init_params(entries, ring, params) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
    life::uring();
    // SAFETY: as above.
    unsafe { real::io_uring_queue_init(entries, ring, flags) }
}
