//! How long a call on a connection may wait, by the options of the socket.

use super::*;

/// What is left of `SO_SNDTIMEO`, if set, for a call that has waited since then: milliseconds, rounded up.
pub(super) fn send_time_left(fd: c_int, since: u64) -> Option<c_int> {
    time_left(fd, libc::SO_SNDTIMEO, since)
}

/// The same of `SO_RCVTIMEO`, if this program has ever set it.
pub(super) fn receive_time_left(conn: &Conn, fd: c_int, since: u64) -> Option<c_int> {
    let set = conn.options.load(Ordering::Relaxed) & options::RCVTIMEO != 0;
    if set { time_left(fd, libc::SO_RCVTIMEO, since) } else { None }
}

/// What is left of `TCP_USER_TIMEOUT`, if this program has ever set it, for a peer that has read so far: likewise.
pub(super) fn patience_left(
    conn: &Conn,
    fd: c_int,
    peer: &Half,
    still: &mut Option<(u64, u64)>,
) -> Option<c_int> {
    if conn.options.load(Ordering::Relaxed) & options::USER_TIMEOUT == 0 {
        return None;
    }
    let limit = call::getsockopt::<u32>(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT).ok()?;
    let (head, now) = (peer.head.load(Ordering::Relaxed), call::now_ns());
    let (_, since) = *still.insert(still.filter(|(at, _)| *at == head).unwrap_or((head, now)));
    let left = (u64::from(limit) * 1_000_000).saturating_sub(now.saturating_sub(since));
    (limit > 0).then(|| c_int::try_from(left.div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}

fn time_left(fd: c_int, option: c_int, since: u64) -> Option<c_int> {
    let t = call::getsockopt::<[i64; 2]>(fd, libc::SOL_SOCKET, option).ok()?;
    if t == [0, 0] {
        return None;
    }
    let limit = t.map(i64::cast_unsigned);
    let limit = limit[0].saturating_mul(1_000_000_000).saturating_add(limit[1] * 1000);
    let left = limit.saturating_sub(call::now_ns().saturating_sub(since));
    Some(c_int::try_from(left.div_ceil(1_000_000)).unwrap_or(c_int::MAX))
}

/// What a call answers that has waited for room and is told an error, having moved so much before. The reset by which
/// [`remains::timed_out`] ends a connection is for the next one to tell, unless this one tells why.
pub(super) fn ended(fd: c_int, errno: c_int, moved: usize) -> Outcome {
    if moved > 0 {
        return Ok(moved);
    }
    if errno == libc::ETIMEDOUT {
        let _ = call::getsockopt::<c_int>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    }
    Err(errno)
}

/// The same for an error that it has found, and taken: the next call tells it.
pub(super) fn failed(w: &World, conn: &Conn, errno: c_int, moved: usize) -> Outcome {
    if moved == 0 {
        return Err(errno);
    }
    conn.tell_later(w, errno);
    Ok(moved)
}

/// What a call answers whose bytes go nowhere, as TCP lets one: what comes of it is an event.
pub(super) fn lost(w: &'static World, conn: &'static Conn, all: usize) -> Outcome {
    if all > 0 {
        ready::unhidden(w, conn);
    }
    Ok(all)
}
