//! What this process itself has done to a connection is an event as well, for its own sets and for those of others.

use super::*;

/// A state of the connection changed by this process itself: whoever waits must look. In the kernel,
/// too, that is an edge.
pub(crate) fn woken(w: &'static World, conn: &'static Conn) {
    woken_by(w, conn, u32::MAX);
}

/// The same, for those who have asked for one of these events.
pub(crate) fn woken_by(w: &'static World, conn: &'static Conn, events: u32) {
    for (which, set) in registrations(conn) {
        let r = &conn.sets[which];
        if wanted(r) & events == 0 {
            continue;
        }
        r.flags.fetch_or(reg::FRESH, Ordering::Relaxed);
        if let Some((_, half)) = conn.my_half(w) {
            edges::arms(w, set, half, which);
        }
        set.looks_again(w, conn, which);
        if set.waiting.load(Ordering::SeqCst) > 0 {
            set.kick(w);
        }
    }
    for (half, which, known) in of_others(w, conn) {
        if (known.events() | ERR | HUP) & events != 0 {
            edges::arms_for_others(half, which);
        }
    }
}

/// A sender has found no room: room will be an edge.
pub(crate) fn lacks_room(w: &'static World, conn: &'static Conn) {
    for r in &conn.sets {
        r.flags.fetch_or(reg::ROOM, Ordering::Relaxed);
    }
    for (which, set) in registrations(conn) {
        if set.tracks(w)
            && let Some((_, half)) = conn.my_half(w)
        {
            edges::lacks_room(half, which);
        }
        if ends(w, conn).is_some_and(|e| conn.is_mixed(e.mine, e.peer)) {
            // The kernel may not wake it: see `Conn::is_heard`.
            set.looks_again(w, conn, which);
        }
    }
    for (half, which, _) in of_others(w, conn) {
        edges::lacks_room(half, which);
    }
}

/// The registrations of a connection that other processes have made.
pub(super) fn of_others<'w>(
    w: &'w World,
    conn: &Conn,
) -> impl Iterator<Item = (&'w Half, usize, once::Known<'w>)> {
    let free = |which: &usize| conn.sets[*which].set.load(Ordering::Acquire) == 0;
    let which: [Option<usize>; SETS] = std::array::from_fn(|n| Some(n).filter(free));
    let half = conn.my_half(w).map(|(_, half)| half);
    let known = move |which| {
        let half = half?;
        Some((half, which, once::Known::of(half, which)?))
    };
    which.into_iter().flatten().filter_map(known)
}

/// The connection does not go back to TCP after all: what lies in its ring can be read again, and who has looked
/// meanwhile and seen nothing sleeps.
pub(crate) fn thawed(w: &'static World, conn: &'static Conn) {
    for (which, set) in registrations(conn) {
        set.looks_again(w, conn, which);
        if set.waiting.load(Ordering::SeqCst) > 0 {
            set.kick(w);
        }
    }
}
