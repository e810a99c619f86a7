//! Changing a registration of the kernel's.

use super::*;

/// Changes what the kernel watches and says for a registration. The kernel knows it by the number it
/// was made under, also when that was closed and the connection lives on under another one: then the
/// number is made to lead to the connection again for a moment, if nobody else has taken it.
/// `false`: there is no such registration.
pub(super) fn amend(set: &Set, conn: &Conn, r: &Registration, events: u32, data: u64) -> bool {
    under_its_number(conn, r, |fd| {
        call::epoll_ctl(set.epfd(), libc::EPOLL_CTL_MOD, fd, events, data).is_ok()
    })
}

/// Whether the kernel has a registration, which another process that shares the set may have taken out of it. To change it
/// would say so as well, and make an edge of what was told.
pub(super) fn stands(set: &Set, conn: &Conn, r: &Registration) -> bool {
    under_its_number(conn, r, |fd| {
        match call::epoll_ctl(set.epfd(), libc::EPOLL_CTL_ADD, fd, ET, KICK) {
            Ok(()) => {
                let _ = call::epoll_ctl(set.epfd(), libc::EPOLL_CTL_DEL, fd, 0, 0);
                false
            }
            Err(errno) => errno == libc::EEXIST,
        }
    })
}

/// Has something done with a registration, by the number that it was made under. `false`: that is another file's now.
fn under_its_number(conn: &Conn, r: &Registration, what: impl FnOnce(c_int) -> bool) -> bool {
    let _numbered = conn.by_number();
    let fd = r.fd.load(Ordering::Relaxed).cast_signed();
    if fds::leads_to(fd, conn) {
        return what(fd);
    }
    let other = conn.descriptor(conn.fd.load(Ordering::Relaxed).cast_signed());
    let Ok(new) = call::dup_above(other, fd) else { return false };
    let done = new == fd && what(fd);
    let _ = call::close(new);
    done
}

/// The kernel is asked for what is its part of readiness now.
pub(super) fn ask_anew(w: &'static World, conn: &'static Conn) {
    let Some(e) = ends(w, conn) else { return };
    for (which, set) in registrations(conn) {
        if conn.sets[which].flags.load(Ordering::Relaxed) & reg::TAGGED != 0 {
            register_anew(w, set, conn, which, &e);
        }
    }
}

/// [`register`], if the kernel is to be asked for something else: to ask again for the same would make an edge of what
/// was told.
pub(super) fn register_anew(
    w: &'static World,
    set: &Set,
    conn: &'static Conn,
    which: usize,
    e: &Ends,
) {
    let r = &conn.sets[which];
    let user = r.events.load(Ordering::Relaxed);
    let shared = set.lets_others_arm(w, e.mine);
    if kernel_events(user, r, e, shared) != r.asked.load(Ordering::Relaxed) {
        register(w, set, conn, which);
    }
}

/// Before a fork, for a child that may use the sets: whether room is an edge is said where it can read it, and what the
/// kernel would disarm, with an event that may be none for whoever is told of it, is made edge triggered; see
/// [`kernel_events`].
pub(crate) fn before_a_fork(w: &'static World, conn: &'static Conn) {
    let Some(e) = ends(w, conn) else { return };
    for (which, set) in registrations(conn) {
        let r = &conn.sets[which];
        let flags = r.flags.load(Ordering::Relaxed);
        if flags & reg::ROOM != 0 {
            edges::lacks_room(e.mine, which);
        }
        let user = r.events.load(Ordering::Relaxed);
        if user & r.asked.load(Ordering::Relaxed) & ONESHOT != 0
            && flags & (reg::TAGGED | reg::DISABLED) == reg::TAGGED
            && let Some(tag) = tag_of(w, conn, which)
        {
            let events = kernel_events(user, r, &e, true);
            r.asked.store(events, Ordering::Relaxed);
            let _ = amend(set, conn, r, events, tag);
            if r.events.load(Ordering::Relaxed) != user {
                // Another thread has changed it just now, and we that.
                register(w, set, conn, which);
            }
        }
    }
}

/// Another socket is about to take the place of the connection's descriptors: the kernel forgets its
/// registrations, which it knows by the socket.
pub(crate) fn lift(conn: &'static Conn) {
    unpark_all(conn);
    for (which, set) in registrations(conn) {
        let fd = conn.sets[which].fd.load(Ordering::Relaxed).cast_signed();
        // Another file may have the number by now; then the kernel forgets it with the socket.
        let _ =
            fds::by_number(conn, fd, || call::epoll_ctl(set.epfd(), libc::EPOLL_CTL_DEL, fd, 0, 0));
    }
}

/// The other socket has taken the place: [`lift`] in reverse.
pub(crate) fn put_down(w: &World, conn: &'static Conn) {
    for (which, set) in registrations(conn) {
        once::follow_others(w, conn, which);
        let r = &conn.sets[which];
        let (mut events, mut data) =
            (r.events.load(Ordering::Relaxed), r.data.load(Ordering::Relaxed));
        if events & ONESHOT != 0 && r.flags.load(Ordering::Relaxed) & reg::DISABLED != 0 {
            // It has fired. The kernel cannot be given a registration that has: what it says of this one is for us alone.
            let Some(tag) = tag_of(w, conn, which) else { continue };
            (events, data) = (ONESHOT, tag);
        }
        let _numbered = conn.by_number();
        let mut fd = r.fd.load(Ordering::Relaxed).cast_signed();
        if !fds::leads_to(fd, conn) {
            // Nobody can name the registration any more: it may be under any number that leads here.
            fd = conn.descriptor(conn.fd.load(Ordering::Relaxed).cast_signed());
        }
        let _ = call::epoll_ctl(set.epfd(), libc::EPOLL_CTL_ADD, fd, events & !EXCLUSIVE, data);
        r.flags.fetch_or(reg::FRESH, Ordering::Relaxed);
    }
}

/// The data under which the kernel knows a registration of an attached connection.
pub(super) fn tag_of(w: &World, conn: &Conn, which: usize) -> Option<u64> {
    let (index, half) = conn.my_half(w)?;
    let generation = u64::from(half.generation.load(Ordering::Relaxed)) & 0x7fff;
    let second = if which == 1 { TAG_SECOND } else { 0 };
    Some(TAG | generation << 32 | u64::from(index) | second)
}

/// Whether a one-shot registration is in the kernel as the program made it: then only doorbells wake.
pub(super) fn is_own_one_shot(conn: &Conn) -> bool {
    registrations(conn).any(|(which, _)| {
        let r = &conn.sets[which];
        r.events.load(Ordering::Relaxed) & ONESHOT != 0
            && r.flags.load(Ordering::Relaxed) & reg::TAGGED == 0
    })
}

/// The events that the kernel is asked for on behalf of an attached connection of which the program wants these.
pub(super) fn kernel_events(user: u32, r: &Registration, e: &Ends, shared: bool) -> u32 {
    let mut events = IN | RDHUP | user & (ET | ONESHOT | PRI | libc::EPOLLWAKEUP as u32);
    let quiet = r.flags.load(Ordering::Relaxed) & reg::QUIET != 0;
    if (shared || quiet) && user & ONESHOT != 0 {
        // That it has fired is in memory. The kernel disarms it with any event, also one that is none for the program, and
        // who is told of that need not have the descriptor that it takes to arm it again; or it would say so again at once.
        events = events & !ONESHOT | ET;
    }
    if e.mine.flags.load(Ordering::Relaxed) & (flag::DOWN | flag::SHARED) != 0 {
        events |= user & (OUT | WRNORM);
    }
    if r.flags.load(Ordering::Relaxed) & reg::QUIET != 0 {
        events |= ET;
    }
    events
}
