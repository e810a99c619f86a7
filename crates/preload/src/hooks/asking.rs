//! What a program may ask that knows of us, and have us do. Its names for this are in `sys::stream`.

use super::*;

/// Whether bytes of this descriptor are in shared memory or may come to be; with a negative number, whether we
/// are at work in this process at all.
#[unsafe(no_mangle)]
pub extern "C" fn shunt_carries(fd: c_int) -> c_int {
    if fd < 0 {
        return c_int::from(fds::world().is_some());
    }
    // What has gone to TCP stays there.
    c_int::from(fds::conn(fd).is_some_and(|conn| conn.phase() != Phase::Tcp))
}

/// Moves up to so many bytes to or from a piece of a ring, and answers how many, or an errno below 0: nothing.
type Move = unsafe extern "C" fn(arg: *mut c_void, at: *mut u8, n: size_t) -> ssize_t;

/// What `move_bytes` answers, as an outcome of ours.
fn moved(n: ssize_t) -> Result<usize, c_int> {
    usize::try_from(n).map_err(|_| c_int::try_from(n.unsigned_abs()).unwrap_or(libc::EIO))
}

/// An outcome as these calls give it: below 0, the errno.
fn told(outcome: io::Outcome) -> ssize_t {
    outcome.map_or_else(|errno| -(errno as ssize_t), usize::cast_signed)
}

/// Has up to `n` bytes that have come on a connection taken from where they lie in its ring. `EOPNOTSUPP`: none are
/// there, and what is there instead, a receive tells.
///
/// # Safety
///
/// `move_bytes` takes `arg`, and only reads from where it is told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_take(
    fd: c_int,
    n: size_t,
    move_bytes: Move,
    arg: *mut c_void,
) -> ssize_t {
    let Some((w, conn)) = active(fd) else { return told(Err(libc::EOPNOTSUPP)) };
    let take = |from: *const [u8]| {
        // SAFETY: the caller's promise.
        moved(unsafe { move_bytes(arg, from.cast::<u8>().cast_mut(), from.len()) })
    };
    told(match conn.recv_with(w, fd, n, take) {
        Ok(n) => Ok(n),
        Err(Got::Failed(errno)) if !Conn::is_retry(Got::Failed(errno)) => Err(errno),
        Err(_) => Err(libc::EOPNOTSUPP),
    })
}

/// Has up to `n` bytes put where they are to be in the ring of a connection, which sends them. `EAGAIN`: there is no
/// room now. `EOPNOTSUPP`: they have to be sent by a call.
///
/// # Safety
///
/// `move_bytes` takes `arg`, and only writes to where it is told, and no more than it is told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shunt_put(
    fd: c_int,
    n: size_t,
    move_bytes: Move,
    arg: *mut c_void,
) -> ssize_t {
    let Some((w, conn)) = active(fd) else { return told(Err(libc::EOPNOTSUPP)) };
    let put = |to: *mut [u8]| {
        // SAFETY: the caller's promise.
        moved(unsafe { move_bytes(arg, to.cast::<u8>(), to.len()) })
    };
    told(io::send_where_it_lies(w, conn, fd, n, put))
}
