//! `write`, `send`, `sendfile`, `splice` and their family.

use super::*;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    if let Some((w, conn)) = active(fd) {
        // SAFETY: libc's contract, handed on.
        return answer(unsafe { io::transmit(w, conn, fd, &one(buf.cast_mut(), n), 0, None) });
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::write(fd, buf, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    // SAFETY: libc's contract, handed on.
    unsafe { write(fd, buf, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    if let Some((w, conn)) = active(fd)
        // SAFETY: libc's contract, handed on.
        && let Some(list) = unsafe { vectors(iov, n) }
    {
        // SAFETY: libc's contract, handed on.
        return answer(unsafe { io::transmit(w, conn, fd, list, 0, None) });
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::writev(fd, iov, n) }
}

unsafe fn write_at(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
    if offset == -1
        && let Some((w, conn)) = active(fd)
        // SAFETY: libc's contract, handed on.
        && let Some(list) = unsafe { vectors(iov, n) }
    {
        let flags = if flags & libc::RWF_NOWAIT != 0 { libc::MSG_DONTWAIT } else { 0 };
        // SAFETY: libc's contract, handed on.
        return answer(unsafe { io::transmit(w, conn, fd, list, flags, None) });
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::pwritev2(fd, iov, n, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: libc's contract, handed on.
    unsafe { write_at(fd, iov, n, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pwritev64v2(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: libc's contract, handed on.
    unsafe { write_at(fd, iov, n, offset, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(
    fd: c_int,
    buf: *const c_void,
    n: size_t,
    flags: c_int,
) -> ssize_t {
    if let Some((w, conn)) = active(fd) {
        // SAFETY: libc's contract, handed on.
        return answer(unsafe { io::transmit(w, conn, fd, &one(buf.cast_mut(), n), flags, None) });
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::send(fd, buf, n, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __send(
    fd: c_int,
    buf: *const c_void,
    n: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: libc's contract, handed on.
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
        // SAFETY: libc's contract, handed on.
        return answer(unsafe { io::transmit(w, conn, fd, &one(buf.cast_mut(), n), flags, None) });
    }
    // SAFETY: libc's contract, handed on.
    let sent = unsafe { real::sendto(fd, buf, n, flags, addr, len) };
    if flags & libc::MSG_FASTOPEN != 0
        && let Some(conn) = fds::conn(fd)
        && let Some(w) = fds::world()
    {
        io::keep_tcp(w, conn, fd, Reason::Option);
    }
    sent
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let with_control = unsafe { msg.as_ref() }.is_some_and(|m| m.msg_controllen > 0);
    if let Some((w, conn)) = active(fd)
        // SAFETY: libc's contract, handed on.
        && let Some(list) = unsafe { buffers(msg) }
    {
        let control = with_control.then_some(msg);
        // SAFETY: libc's contract, handed on.
        return answer(unsafe { io::transmit(w, conn, fd, list, flags, control) });
    }
    if with_control {
        // SAFETY: libc's contract, handed on.
        unsafe { life::passing(msg) };
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::sendmsg(fd, msg, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
) -> c_int {
    if msgs.is_null() {
        // SAFETY: libc's contract, handed on.
        return unsafe { real::sendmmsg(fd, msgs, n, flags) };
    }
    let Some((_, conn)) = active(fd) else {
        for i in 0..n.min(1024) {
            // SAFETY: the caller's promise.
            let m = unsafe { &*msgs.add(i as usize) };
            if m.msg_hdr.msg_controllen > 0 {
                // SAFETY: the same.
                unsafe { life::passing(&raw const m.msg_hdr) };
            }
        }
        // SAFETY: libc's contract, handed on.
        return unsafe { real::sendmmsg(fd, msgs, n, flags) };
    };
    let mut done = 0;
    for i in 0..n.min(1024) {
        if done > 0 && !fds::leads_to(fd, conn) {
            // Another thread has closed it, whose peer has answered: what follows is not for whatever has the number now.
            break;
        }
        // SAFETY: the caller's promise.
        let m = unsafe { &mut *msgs.add(i as usize) };
        // SAFETY: libc's contract, handed on.
        let put = unsafe { sendmsg(fd, &raw const m.msg_hdr, flags) };
        if put < 0 {
            return if done > 0 { done } else { -1 };
        }
        m.msg_len = u32::try_from(put).unwrap_or(u32::MAX);
        done += 1;
        // SAFETY: the caller's promise; the call has used them.
        let all = unsafe { buffers(&raw const m.msg_hdr) }.unwrap_or_default();
        let all = all.iter().fold(0, |sum: usize, part| sum.saturating_add(part.iov_len));
        if put.unsigned_abs() < all.min(io::MOVED_MAX) {
            // What follows would come where its rest belongs.
            break;
        }
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __sendmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: libc's contract, handed on.
    unsafe { sendmmsg(fd, msgs, n, flags) }
}

unsafe fn file_to_socket(to: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
    if let Some((w, conn)) = active(to) {
        // SAFETY: libc's contract, handed on.
        return answer(unsafe { io::send_file(w, conn, to, from, offset, n) });
    }
    if let Some((w, conn)) = active(from).filter(|_| n > 0 && offset.is_null() && is_pipe(to))
        // As with `splice`, which it comes to then.
        && !io::keep_tcp(w, conn, from, Reason::Splice)
        && conn.phase() == Phase::Attached
    {
        return answer(io::splice_out(w, conn, from, to, n, 0));
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::sendfile(to, from, offset, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    n: size_t,
) -> ssize_t {
    // SAFETY: libc's contract, handed on.
    unsafe { file_to_socket(to, from, offset, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendfile64(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    n: size_t,
) -> ssize_t {
    // SAFETY: libc's contract, handed on.
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
        let Some((w, conn)) = active(fd).filter(|_| n > 0 && is_pipe(other)) else { continue };
        // What a pipe has taken cannot be given back, so this is settled first.
        if io::keep_tcp(w, conn, fd, Reason::Splice) || !from_at.is_null() || !to_at.is_null() {
            continue;
        }
        if conn.phase() != Phase::Attached {
            continue;
        }
        return answer(if outward {
            io::splice_out(w, conn, fd, to, n, flags)
        } else {
            io::splice_in(w, conn, fd, from, n, flags)
        });
    }
    // SAFETY: libc's contract, handed on.
    unsafe { real::splice(from, from_at, to, to_at, n, flags) }
}
