//! What is left to read of a connection whose peer has gone, for who reads the socket by itself: see
//! [`local::conn::Conn::leave_remains`].

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use local::conn::{Conn, Moving, Phase};
use local::world::World;
use sys::call;

use crate::sandbox::may_make_sockets;
use crate::{fds, io, life, ready, remote};

/// Before somebody who does not know of rings reads the socket: puts what is left, if the peer has gone, into another
/// socket that takes the place of `fd` and its duplicates. `false`: there is nothing to be done, or it cannot be; not where
/// other processes use the connection, which may be reading it.
#[cold]
pub(crate) fn put_in_place(w: &'static World, conn: &'static Conn, fd: c_int) -> bool {
    // The descriptors of a `vfork` child are not those of which we know.
    if fds::borrowed() || !may_make_sockets() || !remote::is_replaceable(conn) || !conn.hold() {
        return false;
    }
    let placed = conn.leave_remains(w, fd).is_some_and(|moving| place(w, conn, fd, moving));
    io::release(w, conn);
    placed
}

/// A process is about to be made: both are to find what is left, as a shell and the programs that it starts are. Only
/// where that is all there is to it.
pub(crate) fn before_a_fork(w: &'static World, conn: &'static Conn, fd: c_int) {
    if conn.is_plainly_deserted(w) {
        put_in_place(w, conn, fd);
    }
}

/// Others would find doorbells in the socket, or miss what is in the ring, and the peer does not answer: better no
/// stream than one with a hole. The connection ends with a reset. `own`: this process becomes another program; where others
/// use the connection, it ends for this one alone.
pub(crate) fn cut_off(w: &'static World, conn: &'static Conn, fd: c_int, own: bool) {
    if w.limits.log >= local::Level::Error {
        local::log::error(format_args!(
            "{}: reset: others are to have it, and what is unread cannot go back to TCP",
            conn.called(fd)
        ));
    }
    reset(w, conn, fd, own);
}

/// The peer has read nothing for as long as `TCP_USER_TIMEOUT` says: the connection ends with a reset.
#[cold]
pub(crate) fn timed_out(w: &'static World, conn: &'static Conn, fd: c_int) {
    reset(w, conn, fd, false);
}

fn reset(w: &'static World, conn: &'static Conn, fd: c_int, own: bool) {
    let alone = !fds::borrowed() && !conn.is_used_by_others(w) && remote::is_replaceable(conn);
    if alone && may_make_sockets() && conn.hold() {
        let done = conn.cut_off(w, fd).is_some_and(|moving| place(w, conn, fd, moving));
        io::release(w, conn);
        if done {
            return;
        }
    }
    if conn.phase() == Phase::Attached {
        if own {
            cut_here(fd);
        } else {
            // Our own calls, and those of who shares it, go by the ring still. An end is what whoever gets it must not see.
            let _ = call::disconnect(fd).or_else(|_| call::shutdown(fd, libc::SHUT_RDWR));
        }
    }
}

/// Of this process alone: its descriptor leads to a connection that has been reset, and to nothing else. For a child that
/// is about to become another program.
pub(crate) fn cut_here(fd: c_int) {
    let new = may_make_sockets().then(|| Conn::reset_socket(fd)).flatten();
    let put = |new: c_int| {
        let cloexec = call::getfd(fd).is_ok_and(|f| f & libc::FD_CLOEXEC != 0);
        let done = call::dup_over(new, fd, if cloexec { libc::O_CLOEXEC } else { 0 });
        let _ = call::close(new);
        done.is_ok()
    };
    if !new.is_some_and(put) {
        let _ = call::shutdown(fd, libc::SHUT_RDWR);
    }
}

fn place(w: &'static World, conn: &'static Conn, fd: c_int, moving: Moving) -> bool {
    let leads_here = |fd: c_int| fds::conn(fd).is_some_and(|found| std::ptr::eq(found, conn));
    // Another thread may have closed it just before.
    let known = conn.fd.load(Ordering::Relaxed).cast_signed();
    let fd = [fd, known].into_iter().find(|fd| leads_here(*fd));
    let placed = fd.is_some_and(|fd| remote::put_over(w, conn, fd, moving.socket()).is_ok());
    if placed {
        life::kept::leads_to(conn, moving.socket());
        moving.placed(w);
    } else {
        moving.lost(w, fd);
    }
    ready::detached(w, conn);
    placed
}
