//! Connections that leave shared memory, or the process: what becomes of their registrations.

use super::*;

/// The connection is back on TCP: its sets get back what the program registered. Where the peer has closed without doing
/// so itself only our direction is, and the sets go on looking at what the peer has said in memory.
pub(crate) fn detached(w: &'static World, conn: &'static Conn) {
    unpark_all(conn);
    if ends(w, conn).is_some() {
        return ask_anew(w, conn);
    }
    // Pairs with `enrol`.
    full_fence();
    for (which, set) in registrations(conn) {
        let r = &conn.sets[which];
        if r.flags.fetch_and(!reg::TAGGED, Ordering::Relaxed) & reg::TAGGED != 0 {
            set.stops_watching(conn, which, true);
            set.plain.store(true, Ordering::Relaxed);
            if !register(w, set, conn, which) {
                set.leave_behind(w, conn, which);
            }
        }
    }
}

/// A direction went back to TCP: the kernel's part of readiness has changed.
pub(crate) fn changed(w: &'static World, conn: &'static Conn) {
    if conn.phase() == Phase::Tcp {
        detached(w, conn);
        return;
    }
    if let Some((mine, peer)) = conn.halves(w)
        && peer.flags.load(Ordering::Relaxed) & flag::CLOSED != 0
    {
        conn.kernel.fetch_or(kernel::AFTER_CLOSE, Ordering::Relaxed);
        mine.flags.fetch_or(flag::AFTER, Ordering::Relaxed);
    }
    ask_anew(w, conn);
}

/// What the kernel has said of the end, and was hidden, is to be told: to who watches edges it says that again.
pub(crate) fn unhidden(w: &'static World, conn: &'static Conn) {
    for (which, set) in registrations(conn) {
        let r = &conn.sets[which];
        let is_watched = r.flags.load(Ordering::Relaxed) & reg::TAGGED != 0;
        if is_watched && r.events.load(Ordering::Relaxed) & ET != 0 {
            register(w, set, conn, which);
        }
    }
}

/// A connection is about to be dissolved: out of the lists, but its registrations stay.
pub(crate) fn unregister(w: &'static World, conn: &'static Conn) {
    unpark_all(conn);
    for (which, set) in registrations(conn) {
        let r = &conn.sets[which];
        once::follow_others(w, conn, which);
        let tagged = r.flags.fetch_and(!reg::TAGGED, Ordering::Relaxed) & reg::TAGGED != 0;
        set.stops_watching(conn, which, tagged);
        if tagged {
            let (events, data) = (r.events.load(Ordering::Relaxed), r.data.load(Ordering::Relaxed));
            if !amend(set, conn, r, events & !EXCLUSIVE, data) {
                set.leave_behind(w, conn, which);
            }
        }
        SAVED.with(|s| s.borrow_mut()[which] = Some((set.id(), r.fd.load(Ordering::Relaxed))));
    }
}

thread_local! {
    /// Registrations of the connection that this thread dissolves.
    static SAVED: std::cell::RefCell<[Option<(u64, u32)>; SETS]> = const { std::cell::RefCell::new([None; SETS]) };
}

/// The registrations of a dissolved connection are those of its socket, which is fresh.
pub(crate) fn reregister(_w: &'static World, conn: &'static Conn) {
    SAVED.with(|s| {
        for (which, saved) in s.borrow_mut().iter_mut().enumerate() {
            if let Some((set, fd)) = saved.take() {
                let r = &conn.sets[which];
                r.fd.store(fd, Ordering::Relaxed);
                r.flags.store(0, Ordering::Relaxed);
                r.set.store(set, Ordering::Release);
            }
        }
    });
}

/// The connection is being closed: out of all sets.
pub(crate) fn forget(w: &'static World, conn: &'static Conn) {
    for r in &conn.sets {
        // The kernel forgets it with the descriptor.
        let at = r.parked.swap(0, Ordering::Relaxed);
        if at != 0 {
            // SAFETY: sets are never unmapped.
            unsafe { &*(at as *const Set) }.ended(w, conn);
        }
    }
    for (which, set) in registrations(conn) {
        lock::free_if_left(set.members.word());
        set.becomes_a_stranger(w, conn, which);
        set.leave(conn, which);
        set.ended(w, conn);
    }
}
