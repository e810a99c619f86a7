//! What is left to read of a connection whose peer has gone, for who reads the socket by itself: see
//! [`local::conn::Conn::leave_remains`].

use std::ffi::c_int;

use local::Reason;
use local::conn::{Conn, Phase};
use local::world::World;
use sys::call;

use crate::{fds, ready, remote};

/// Before somebody who does not know of rings reads the socket, for this `reason`: puts what is left, if the peer has
/// gone, into another socket that takes the place of `fd` and its duplicates. `false`: there is nothing to be done, or it
/// cannot be.
#[cold]
pub(crate) fn put_in_place(
    w: &'static World,
    conn: &'static Conn,
    fd: c_int,
    reason: Reason,
) -> bool {
    let is_meant = match reason {
        // Processes that hold it with us may go on with what is left; but nobody shares the standard input that he gives
        // to another program.
        Reason::Exec => fd <= 2 || !conn.is_held_with_others(w),
        Reason::Passed | Reason::Stdio | Reason::IoUring => true,
        _ => false,
    };
    is_meant && put(w, conn, fd)
}

fn put(w: &'static World, conn: &'static Conn, fd: c_int) -> bool {
    // The descriptors of a `vfork` child are not those of which we know.
    if fds::borrowed() || !remote::is_replaceable(conn) {
        return false;
    }
    conn.leave_remains(w, fd).is_some_and(|new| place(w, conn, fd, new))
}

/// A `vfork` child is about to give `fd` to the program that it becomes, as its standard input mostly: [`put_in_place`]
/// among the child's own descriptors, and of the parent's none is touched.
pub(crate) fn put_for_child(w: &'static World, conn: &'static Conn, fd: c_int) {
    if let Some(new) = conn.leave_remains(w, fd) {
        let flags = call::getfl(fd).and_then(|flags| call::setfl(new, flags));
        let cloexec = call::getfd(fd).is_ok_and(|f| f & libc::FD_CLOEXEC != 0);
        let over = if cloexec { libc::O_CLOEXEC } else { 0 };
        let placed = flags.and_then(|_| call::dup_over(new, fd, over));
        let _ = call::close(new);
        if placed.is_ok() {
            conn.remains_are_placed(w);
        } else {
            conn.remains_are_lost(w, fd);
        }
    }
}

/// A process is about to be made: both are to find what is left. Only where we know already that the peer has gone, and
/// nobody else holds the connection.
pub(crate) fn before_a_fork(w: &'static World, conn: &'static Conn, fd: c_int) {
    if conn.seems_deserted(w) && !conn.is_held_with_others(w) {
        put(w, conn, fd);
    }
}

/// Others would find doorbells in the socket, or miss what is in the ring, and the peer does not answer: better no
/// stream than one with a hole. The connection ends with a reset.
pub(crate) fn cut_off(w: &'static World, conn: &'static Conn, fd: c_int) {
    if w.limits.log >= local::Level::Error {
        local::log::line(format_args!(
            "fd {fd}: reset: another program is to have it, and what is unread cannot go back to TCP"
        ));
    }
    let new =
        if fds::borrowed() || !remote::is_replaceable(conn) { None } else { conn.cut_off(w, fd) };
    if new.is_none_or(|new| !place(w, conn, fd, new)) {
        let _ = call::shutdown(fd, libc::SHUT_RDWR);
    }
}

fn place(w: &'static World, conn: &'static Conn, fd: c_int, new: c_int) -> bool {
    let placed = remote::put_over(conn, fd, new).is_ok();
    let _ = call::close(new);
    if placed {
        conn.remains_are_placed(w);
    } else {
        conn.remains_are_lost(w, fd);
    }
    debug_assert!(conn.phase() == Phase::Tcp, "it is TCP's");
    ready::detached(w, conn);
    placed
}
