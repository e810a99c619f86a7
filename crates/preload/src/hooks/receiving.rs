//! `read`, `recv` and their family.

use std::sync::atomic::Ordering;

use local::world::World;

use super::*;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    if let Some((w, conn)) = active(fd) {
        // SAFETY: libc's contract, handed on.
        return answer(unsafe { io::receive(w, conn, fd, &one(buf, n), 0, true) });
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::read(fd, buf, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    // SAFETY: libc's contract, handed on.
    unsafe { read(fd, buf, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    room: size_t,
) -> ssize_t {
    fortified(n, room);
    // SAFETY: libc's contract, handed on.
    unsafe { read(fd, buf, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    if let Some((w, conn)) = active(fd)
        // SAFETY: libc's contract, handed on.
        && let Some(list) = unsafe { vectors(iov, n) }
    {
        // SAFETY: libc's contract, handed on.
        return answer(unsafe { io::receive(w, conn, fd, list, 0, true) });
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::readv(fd, iov, n) }
}

unsafe fn read_at(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
    if offset == -1
        && let Some((w, conn)) = active(fd)
        // SAFETY: libc's contract, handed on.
        && let Some(list) = unsafe { vectors(iov, n) }
    {
        let flags = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: libc's contract, handed on.
        return answer(unsafe { io::receive(w, conn, fd, list, flags, true) });
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::preadv2(fd, iov, n, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: libc's contract, handed on.
    unsafe { read_at(fd, iov, n, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn preadv64v2(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: libc's contract, handed on.
    unsafe { read_at(fd, iov, n, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recv(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    flags: c_int,
) -> ssize_t {
    if let Some((w, conn)) = active(fd) {
        // SAFETY: libc's contract, handed on.
        return answer(unsafe { io::receive(w, conn, fd, &one(buf, n), flags, false) });
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::recv(fd, buf, n, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: libc's contract, handed on.
    unsafe { recv(fd, buf, n, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    fortified(n, room);
    // SAFETY: libc's contract, handed on.
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
        // SAFETY: libc's contract, handed on.
        let got = answer(unsafe { io::receive(w, conn, fd, &one(buf, n), flags, false) });
        if got >= 0 && !addr.is_null() && !len.is_null() {
            // A stream has no sender.
            // SAFETY: the caller's promise.
            unsafe { *len = 0 };
        }
        return got;
    }
    // SAFETY: libc's contract, handed on.
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
    // SAFETY: libc's contract, handed on.
    unsafe { recvfrom(fd, buf, n, flags, addr, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    if flags & libc::MSG_ERRQUEUE == 0
        && let Some((w, conn)) = active(fd)
        // SAFETY: libc's contract, handed on.
        && let Some(list) = unsafe { buffers(msg) }
        // SAFETY: valid, as `buffers` found.
        && !wants_stamps(w, conn, fd, unsafe { &*msg })
    {
        // SAFETY: libc's contract, handed on.
        let got = answer(unsafe { io::receive(w, conn, fd, list, flags, false) });
        // SAFETY: valid, as `buffers` found.
        let m = unsafe { &mut *msg };
        if got >= 0 {
            let room = m.msg_controllen;
            m.msg_namelen = 0;
            m.msg_controllen = 0;
            m.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
            if conn.options.load(Ordering::Relaxed) & local::conn::options::INQ != 0 {
                // SAFETY: the caller's promise: there is so much room.
                unsafe { put_left(w, conn, fd, m, room) };
            }
        }
        return got;
    }
    // SAFETY: libc's contract, handed on.
    let got = unsafe { real::recvmsg(fd, msg, flags) };
    // SAFETY: libc has written it.
    if got >= 0 && !msg.is_null() && unsafe { (*msg).msg_controllen } > 0 {
        // SAFETY: libc has written it.
        unsafe { arrived(msg) };
    }
    got
}

/// Tells how many bytes a receive has left, as the kernel does for who has set `TCP_INQ`: one more once the peer has
/// ended, so that the end is looked for.
///
/// # Safety
///
/// There must be so much room for control data.
#[cold]
unsafe fn put_left(w: &'static World, conn: &'static Conn, fd: c_int, m: &mut msghdr, room: usize) {
    const FIONREAD: u64 = 0x541b;
    let in_socket = || call::ioctl_int(fd, FIONREAD).map_or(0, |n| usize::try_from(n).unwrap_or(0));
    let left = conn.unread(w, fd).unwrap_or_else(in_socket);
    // The end has a number of its own there, behind the last byte.
    let left = left.saturating_add(usize::from(has_ended(w, conn, fd)));
    let left = c_int::try_from(left).unwrap_or(c_int::MAX);
    // SAFETY: pure arithmetic.
    let (len, space) = unsafe { (libc::CMSG_LEN(4), libc::CMSG_SPACE(4)) };
    let head = size_of::<libc::cmsghdr>();
    if m.msg_control.is_null() || room < head {
        m.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    let mut len = len as usize;
    if room < len {
        m.msg_flags |= libc::MSG_CTRUNC;
        len = room;
    }
    // SAFETY: all zeros are one.
    let mut cmsg: libc::cmsghdr = unsafe { std::mem::zeroed() };
    (cmsg.cmsg_level, cmsg.cmsg_type) = (libc::IPPROTO_TCP, local::conn::options::TCP_INQ);
    cmsg.cmsg_len = len;
    let data = left.to_ne_bytes();
    // SAFETY: the caller's promise; `len` is no more than the room, nor than both together.
    unsafe {
        m.msg_control.cast::<libc::cmsghdr>().write_unaligned(cmsg);
        let to = m.msg_control.cast::<u8>().add(head);
        std::ptr::copy_nonoverlapping(data.as_ptr(), to, len - head);
    }
    m.msg_controllen = (space as usize).min(room);
}

/// Whether the peer will send nothing more.
fn has_ended(w: &World, conn: &Conn, fd: c_int) -> bool {
    if let Some((mine, peer)) = conn.halves(w) {
        use sys::abi::half_flags::{SHUT, SHUT_RD};
        if mine.flags.load(Ordering::Relaxed) & SHUT_RD != 0 {
            // Who reads no more has not been told of any end.
            return peer.flags.load(Ordering::Acquire) & SHUT != 0;
        }
        return ready::mask(conn, mine, peer) & libc::EPOLLRDHUP.cast_unsigned() != 0;
    }
    let mut fds = [pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
    let _ = call::poll(&mut fds, 0);
    fds[0].revents & libc::POLLRDHUP != 0
}

/// Whether this is to tell when the bytes came, as only the kernel can: then the connection is TCP's from here on. If it
/// cannot go back, it tells nothing.
#[inline]
fn wants_stamps(w: &'static World, conn: &'static Conn, fd: c_int, msg: &msghdr) -> bool {
    use local::conn::options::STAMPED;
    let asked = conn.options.load(Ordering::Relaxed) & STAMPED != 0;
    asked && msg.msg_controllen > 0 && goes_for_stamps(w, conn, fd)
}

#[cold]
fn goes_for_stamps(w: &'static World, conn: &'static Conn, fd: c_int) -> bool {
    conn.options.fetch_and(!local::conn::options::STAMPED, Ordering::Relaxed);
    conn.stay.store(Reason::Option.code(), Ordering::Relaxed);
    io::to_tcp(w, conn, fd, Reason::Option) && active(fd).is_none()
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
            let n = head.cmsg_len.saturating_sub(header) / size_of::<c_int>();
            for i in 0..n {
                // SAFETY: inside of the message, perhaps not aligned.
                let fd = unsafe { libc::CMSG_DATA(at).cast::<c_int>().add(i).read_unaligned() };
                life::arrived(fd);
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
    let Some((w, conn)) = active(fd).filter(|_| !msgs.is_null()) else {
        // SAFETY: libc's contract, handed on.
        return unsafe { real::recvmmsg(fd, msgs, n, flags, timeout) };
    };
    // SAFETY: the caller's promise.
    let limit = unsafe { timeout.as_ref() };
    if limit.is_some_and(|limit| !valid(limit)) {
        real::set_errno(libc::EINVAL);
        return -1;
    }
    if flags & libc::MSG_ERRQUEUE == 0
        && let Some(errno) = io::pending(w, conn, fd)
    {
        // Other than its kin, this call looks for an error first.
        real::set_errno(errno);
        return -1;
    }
    let limit = limit.map(|t| call::now_ns().saturating_add(nanos(t)));
    let mut flags = flags;
    let mut done = 0;
    let mut left = 0;
    for i in 0..n {
        if done > 0 && !fds::leads_to(fd, conn) {
            // Another thread has closed it: what comes next by this number is not this call's.
            break;
        }
        // SAFETY: the caller's promise.
        let m = unsafe { &mut *msgs.add(i as usize) };
        // SAFETY: libc's contract, handed on.
        let got = unsafe { recvmsg(fd, &raw mut m.msg_hdr, flags & !libc::MSG_WAITFORONE) };
        if got < 0 {
            let errno = real::errno();
            if done == 0 {
                return -1;
            }
            if errno != libc::EAGAIN {
                // The next call's.
                conn.tell_later(w, errno);
            }
            break;
        }
        m.msg_len = u32::try_from(got).unwrap_or(u32::MAX);
        done += 1;
        left = limit.map_or(0, |l| l.saturating_sub(call::now_ns()));
        if limit.is_some() && left == 0 {
            break;
        }
        if flags & libc::MSG_WAITFORONE != 0 {
            flags |= libc::MSG_DONTWAIT;
        }
    }
    if done > 0 && limit.is_some() {
        // Linux says how much is left after the last message.
        // SAFETY: the caller's promise.
        unsafe { *timeout = time_limit(left) };
    }
    done
}
