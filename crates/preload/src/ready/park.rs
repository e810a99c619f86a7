//! Registrations that the program has taken out and that the kernel keeps for a while.
//!
//! Event loops such as redis' take a connection out of their set and put it back with each request. In
//! the kernel an attached connection is registered under our tag whatever the program wants to hear,
//! so there it can stay: both calls then end in memory. The kernel is told when anything else happens
//! to the set or to the connection. A connection that has ended is parked as well: most are closed next,
//! and otherwise the kernel wakes us for it once.

use super::*;

/// `EPOLL_CTL_DEL` of a registration that may stay in the kernel; `false`: it may not.
pub(super) fn park(
    w: &'static World,
    conn: &'static Conn,
    set: &'static Set,
    which: usize,
) -> bool {
    let r = &conn.sets[which];
    let flags = r.flags.load(Ordering::Relaxed);
    let user = r.events.load(Ordering::Relaxed);
    let fits = flags & reg::TAGGED != 0
        && flags & reg::QUIET == 0
        && user & (ET | ONESHOT | PRI | EXCLUSIVE | libc::EPOLLWAKEUP as u32) == 0
        && !set.is_cold()
        && !set.forked.load(Ordering::Relaxed)
        && conn.refs.load(Ordering::Relaxed) == 1
        && !conn.is_shared(w);
    let Some(e) = ends(w, conn).filter(|e| fits && !conn.is_mixed(e.mine, e.peer)) else {
        return false;
    };
    r.parked.store(set.id(), Ordering::Relaxed);
    set.leave(conn, which);
    once::withdraw(e.mine, which);
    if let Some(_held) = lock::lock(&e.mine.wait_lock)
        && conn.sleepers(e.mine) == 0
    {
        restore(w, conn, e.mine);
    }
    true
}

/// The parked registration of this descriptor in this set.
pub(super) fn parked(conn: &Conn, set: &Set, fd: c_int) -> Option<usize> {
    conn.sets.iter().position(|r| {
        r.parked.load(Ordering::Relaxed) == set.id()
            && r.fd.load(Ordering::Relaxed) == fd.cast_unsigned()
    })
}

/// `EPOLL_CTL_ADD` of what is parked; `false`: the kernel must hear of it.
pub(super) fn revive(
    w: &'static World,
    conn: &'static Conn,
    set: &'static Set,
    which: usize,
    event: epoll_event,
) -> bool {
    let (events, data) = (event.events, event.u64);
    let plain = events & !(IN | OUT | RDNORM | WRNORM | RDHUP | ERR | HUP) == 0;
    let fits = plain && data & TAG_MASK != TAG && !set.is_cold();
    let Some((e, (_, half))) =
        ends(w, conn).zip(conn.my_half(w)).filter(|(e, _)| fits && !conn.is_mixed(e.mine, e.peer))
    else {
        return false;
    };
    let r = &conn.sets[which];
    once::publish(w, set, half, which, (events, data, false));
    r.events.store(events, Ordering::Relaxed);
    r.data.store(data, Ordering::Relaxed);
    r.seen.store(u64::MAX, Ordering::Relaxed);
    r.seen_flags.store(end_flags(e.peer), Ordering::Relaxed);
    r.flags.store(reg::TAGGED, Ordering::Relaxed);
    r.parked.store(0, Ordering::Relaxed);
    r.set.store(set.id(), Ordering::Release);
    set.adopt(w, conn, which, false);
    true
}

/// The kernel forgets a registration that the program has taken out.
pub(crate) fn unpark(conn: &Conn, which: usize) {
    let r = &conn.sets[which];
    let at = r.parked.swap(0, Ordering::Relaxed);
    if at == 0 {
        return;
    }
    // SAFETY: sets are never unmapped.
    let set = unsafe { &*(at as *const Set) };
    let fd = r.fd.load(Ordering::Relaxed).cast_signed();
    // With its number the kernel forgets it by itself.
    let _ = fds::by_number(conn, fd, || call::epoll_ctl(set.epfd(), libc::EPOLL_CTL_DEL, fd, 0, 0));
}

/// All registrations of a connection that are parked.
pub(crate) fn unpark_all(conn: &Conn) {
    for which in 0..SETS {
        unpark(conn, which);
    }
}

/// All registrations that are parked in a set.
pub(super) fn unpark_set(set: &Set) {
    fds::each(|_, entry| {
        if let Entry::Conn(conn) = entry {
            for which in 0..SETS {
                if conn.sets[which].parked.load(Ordering::Relaxed) == set.id() {
                    unpark(conn, which);
                }
            }
        }
    });
}
