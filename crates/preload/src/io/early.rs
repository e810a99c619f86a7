//! Receives of the kernel's, before a connection is attached, while another thread may attach it.

use super::*;

/// A receive before the attachment. `None`: attached meanwhile, and nothing of the program's read.
pub(super) unsafe fn receive_tcp(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    iov: &[iovec],
    flags: c_int,
    held: &mut Option<Held>,
) -> Option<Outcome> {
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        // SAFETY: the caller's promise.
        return Some(unsafe { receive_kernel(fd, iov, flags) });
    }
    let waits = !dont_wait(w, conn, fd, flags);
    // Also where it does not wait: a signal that comes meanwhile may leave it all the same.
    let own = match hold(w, conn, fd, held) {
        Ok(own) => own,
        Err(errno) => return Some(Err(errno)),
    };
    // One limit for the whole call, however often it waits.
    let mut limit = None;
    if waits && own.since != 0 {
        limit = receive_time_left(conn, fd, own.since);
    } else if waits {
        own.since = call::now_ns();
    }
    // The kernel would wait for more bytes than may come by TCP, should the connection be attached meanwhile by
    // another thread, and take doorbells for them; and for longer than is left.
    let unmet = phase(conn) != Phase::Tcp;
    let all = flags & libc::MSG_WAITALL != 0 && (unmet || limit.is_some());
    let flags_now = if all { flags & !libc::MSG_WAITALL } else { flags };
    let mark = left::begin_inside(handler::here());
    let receiving = conn.receiving()?;
    mark.now(Wait::Kernel(conn));
    if waits && phase(conn) == Phase::Offered && ready::ring_for_offer(w, conn) {
        // The offer was taken while nobody was to ring for it.
        mark.now(Wait::Nothing);
        drop(receiving);
        drop(mark);
        let mut turns = Turns::default();
        while !is_attached(w, conn, fd) {
            if phase(conn) != Phase::Busy {
                // Not after all.
                // SAFETY: the caller's promise.
                return Some(unsafe { receive_held(w, conn, fd, iov, flags, held) });
            }
            // Another thread is at it.
            turns.next("attaches", conn);
        }
        return None;
    }
    let awaited = if own.is_rest {
        Some(await_bytes(fd, limit.unwrap_or(if waits { -1 } else { 0 }), true))
    } else {
        limit.map(|left| await_bytes(fd, left, false))
    };
    let out = match awaited {
        Some(Err(errno)) => Err(errno),
        // SAFETY: the caller's promise.
        _ => unsafe { receive_kernel(fd, iov, flags_now) },
    };
    mark.now(Wait::Nothing);
    drop(receiving);
    drop(mark);
    received(w, conn);
    let fd = conn.descriptor(fd);
    let n = *out.as_ref().unwrap_or(&0);
    if n == 0 {
        // An end or an error may have overtaken what the peer wrote to the ring before it.
        let ended = out != Err(libc::EAGAIN) && out != Err(libc::EINTR) && unmet;
        let nothing = iov.iter().all(|v| v.iov_len == 0);
        let is_ours = ended && !nothing && is_attached(w, conn, fd);
        return if is_ours { told_behind_the_ring(conn, &out) } else { Some(out) };
    }
    if flags & libc::MSG_PEEK != 0 {
        let want = iov.iter().map(|v| v.iov_len).sum();
        let in_part = all && waits && n < want;
        // What was peeked may be a doorbell. A server attaches later: nothing can be looked at across the switch.
        let may = !in_part || phase(conn) != Phase::Server;
        if may && settle(w, conn, fd, true) || phase(conn) == Phase::Attached {
            return None;
        }
        // SAFETY: the caller's buffers, as far as the kernel has filled them.
        if conn.settle_at_bell(w, fd, unsafe { last_of(iov, n, flags) }) {
            ready::attached(w, conn);
            return None;
        }
        if !in_part {
            return Some(out);
        }
        let _ = grows(w, conn, fd, (n, want), waits_since(held));
        // SAFETY: the caller's promise.
        let out = unsafe { receive_kernel(fd, iov, flags_now | libc::MSG_DONTWAIT) };
        return if is_attached(w, conn, fd) { told_behind_the_ring(conn, &out) } else { Some(out) };
    }
    let before = phase(conn);
    // SAFETY: the caller's buffers, as far as the kernel has filled them.
    let kept = conn.taken_by_tcp(w, fd, n, unsafe { last_of(iov, n, flags) });
    match before {
        Phase::Server => {
            settle(w, conn, fd, true);
        }
        Phase::Offered if phase(conn) == Phase::Attached => ready::attached(w, conn),
        _ => {}
    }
    let kept = kept?;
    if kept.behind > 0 && flags & libc::MSG_TRUNC == 0 {
        // SAFETY: the caller's buffers, as far as the kernel has filled them.
        unsafe { close_gap(iov, n, kept) };
    }
    let n = kept.first + kept.behind;
    let in_ring = || {
        conn.halves(w).is_some_and(|(_, peer)| {
            peer.flags.load(Ordering::Acquire) & sys::abi::half_flags::UP != 0
        })
    };
    if !all
        && kept.behind == 0
        && phase(conn) == Phase::Attached
        && n < iov.iter().map(|v| v.iov_len).sum()
        && in_ring()
    {
        // The stream goes on in the ring at once.
        let mut more = vec![iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; iov.len()];
        let count = skip(iov, n, &mut more);
        let now = flags | libc::MSG_DONTWAIT;
        // SAFETY: the rest of the guest's buffers.
        let got = unsafe { receive_ring(w, conn, fd, &more[..count], now, held) };
        return Some(Ok(n + rest(w, conn, &got)));
    }
    if all {
        let total = iov.iter().map(|v| v.iov_len).sum();
        // A read stops at urgent data.
        if n < total && call::ioctl_int(fd, SIOCATMARK) != Ok(1) {
            let mut more = vec![iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; iov.len()];
            let count = skip(iov, n, &mut more);
            if let Some(held) = held {
                held.is_rest = true;
            }
            // SAFETY: the rest of the guest's buffers.
            let got = unsafe { receive_held(w, conn, fd, &more[..count], flags, held) };
            return Some(Ok(n + rest(w, conn, &got)));
        }
    }
    Some(Ok(n))
}

/// A receive goes on in the ring: the error that the kernel has told it, once, comes behind what lies there.
fn told_behind_the_ring(conn: &Conn, out: &Outcome) -> Option<Outcome> {
    if let Err(errno @ (libc::ECONNRESET | libc::ETIMEDOUT | libc::EHOSTUNREACH)) = *out {
        conn.take_error(errno);
    }
    None
}

/// The last of the first `n` bytes of these buffers; `None` if nothing was put there (`MSG_TRUNC`), or `n` is 0.
///
/// # Safety
///
/// As `recvmsg` asks of its buffers, of which a call with these flags has filled so many bytes.
unsafe fn last_of(iov: &[iovec], n: usize, flags: c_int) -> Option<u8> {
    if flags & libc::MSG_TRUNC != 0 {
        return None;
    }
    let mut before = 0;
    for v in iov {
        let here = n.checked_sub(before + 1)?;
        if here < v.iov_len {
            // SAFETY: inside of this buffer; the caller's promise.
            return Some(unsafe { v.iov_base.cast::<u8>().add(here).read() });
        }
        before += v.iov_len;
    }
    None
}

/// Takes the doorbells out of the middle of the first `n` bytes of these buffers.
///
/// # Safety
///
/// As `recvmsg` asks of its buffers, of which so many bytes are filled.
unsafe fn close_gap(iov: &[iovec], n: usize, kept: Kept) {
    let places = || {
        let each = iov.iter().flat_map(|v| (0..v.iov_len).map(|i| (v.iov_base.cast::<u8>(), i)));
        each.map(|(base, i)| base.wrapping_add(i)).take(n)
    };
    // SAFETY: the caller's promise; what is read is read before it is written over.
    let bytes: Vec<u8> = places().map(|at| unsafe { at.read() }).collect();
    let behind = bytes.iter().skip(kept.first + kept.bells);
    // SAFETY: as above.
    places().skip(kept.first).zip(behind).for_each(|(at, byte)| unsafe { at.write(*byte) });
}

/// How much more a call has got that had some. What it failed by is for the next call to tell.
pub(super) fn rest(w: &'static World, conn: &'static Conn, got: &Outcome) -> usize {
    match *got {
        Ok(n) => n,
        Err(errno) => {
            let is_lasting = !matches!(errno, libc::EAGAIN | libc::EINTR);
            if is_lasting && phase(conn) == Phase::Attached {
                conn.tell_later(w, errno);
            }
            0
        }
    }
}

/// Whether the connection is attached, perhaps by this very look or by another thread.
pub(super) fn is_attached(w: &'static World, conn: &'static Conn, fd: c_int) -> bool {
    (phase(conn) == Phase::Offered && settle(w, conn, fd, false)) || phase(conn) == Phase::Attached
}

/// Waits for so many milliseconds until a receive would not wait. Another thread may take what is there. Of `bytes_only`
/// an error is left for the next call, as the kernel leaves it behind a part of what was asked for.
fn await_bytes(fd: c_int, left: c_int, bytes_only: bool) -> Result<(), c_int> {
    let mut fds = [libc::pollfd { fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 }];
    // SAFETY: one descriptor in a valid place.
    match unsafe { real::poll(fds.as_mut_ptr(), 1, left) } {
        0 => Err(libc::EAGAIN),
        n if n < 0 => Err(real::errno()),
        _ if bytes_only
            && fds[0].revents & libc::POLLERR != 0
            && call::ioctl_int(fd, SIOCINQ) == Ok(0) =>
        {
            Err(libc::EAGAIN)
        }
        _ => Ok(()),
    }
}
