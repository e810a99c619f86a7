//! `epoll_ctl`: what the program asks for, kept beside what the kernel is asked for.

use super::once::Known;
use super::park::{park, parked, revive, unpark};
use super::*;

/// A new epoll descriptor.
pub(crate) fn created(epfd: c_int) {
    if let Some(w) = fds::world()
        && epfd >= 0
    {
        let _ = set_of(w, epfd);
    }
}

/// A descriptor that is not ours was put into a set, with this data, or taken out.
pub(crate) fn other(epfd: c_int, op: c_int, data: Option<u64>) {
    if data.is_some_and(|data| data & TAG_MASK == TAG) {
        looks_alike();
    }
    if let Some(set) = fds::set(epfd) {
        match op {
            libc::EPOLL_CTL_ADD => {
                set.others.fetch_add(1, Ordering::Relaxed);
            }
            libc::EPOLL_CTL_DEL => {
                let less = |n: u32| n.checked_sub(1);
                let _ = set.others.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
            _ => {}
        }
        // It may be ready, of which the kernel tells who waits.
        if let Some(w) = fds::world().filter(|_| op != libc::EPOLL_CTL_DEL) {
            set.disturb(w);
        }
    }
}

/// The set of an epoll descriptor, made when it is first heard of.
fn set_of(w: &World, epfd: c_int) -> Option<&'static Set> {
    if let Some(set) = fds::set(epfd) {
        return Some(set);
    }
    let set = spare::take(w, epfd).unwrap_or_else(|| Box::leak(Box::new(Set::new(w, epfd))));
    let _ = fds::put(epfd, Some(Entry::Set(set)));
    Some(set)
}

/// What `epoll_ctl` on a socket of ours comes to; the kernel has not been asked yet. `None`: let
/// libc have it.
pub(crate) fn control(
    w: &'static World,
    conn: &'static Conn,
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: Option<epoll_event>,
    kernel: &mut dyn FnMut(Option<epoll_event>) -> c_int,
) -> c_int {
    if conn.phase() == Phase::Asked {
        crate::remote::resolve(w, conn, fd);
    }
    let set = fds::set(epfd);
    if let Some(set) = set {
        // The number that it was known by may have been closed.
        set.epfd.store(epfd.cast_unsigned(), Ordering::Relaxed);
        set.notice_fork(w);
        if let Some(e) = ends(w, conn)
            && set.is_shared(w, e.mine)
            && let Some(which) = slot(conn, set, fd)
            && conn.sets[which].flags.load(Ordering::Relaxed) & reg::TAGGED != 0
            && !stands(set, conn, &conn.sets[which])
        {
            // Another process has taken it out, and what is in its place may be that one's, for another set.
            set.leave(conn, which);
        }
        if let Some(which) = parked(conn, set, fd) {
            if let (libc::EPOLL_CTL_ADD, Some(event)) = (op, event)
                && revive(w, conn, set, which, event)
            {
                return 0;
            }
            unpark(conn, which);
        }
    }
    match (op, event) {
        (libc::EPOLL_CTL_ADD, Some(event)) => add(w, conn, epfd, fd, event, kernel),
        (libc::EPOLL_CTL_MOD, Some(event)) => modify(w, conn, epfd, fd, event, kernel),
        (libc::EPOLL_CTL_DEL, event) => {
            if let Some(set) = set
                && let Some(which) = slot(conn, set, fd)
                && park(w, conn, set, which)
            {
                return 0;
            }
            // Others that share the set must not take it for one that is there while the kernel removes it.
            let known = set
                .and_then(|set| slot(conn, set, fd))
                .zip(conn.my_half(w))
                .map(|(which, (_, half))| &half.set_events[which])
                .map(|word| (word, word.swap(0, Ordering::Relaxed)));
            let done = kernel(event);
            if done == 0 {
                remove(w, conn, epfd, fd);
            } else if let Some((word, known)) = known.filter(|(_, known)| *known != 0) {
                // Unless another process has put it in meanwhile.
                let _ = word.compare_exchange(0, known, Ordering::Relaxed, Ordering::Relaxed);
            }
            done
        }
        (_, event) => kernel(event),
    }
}

fn slot(conn: &Conn, set: &Set, fd: c_int) -> Option<usize> {
    conn.sets.iter().position(|r| {
        r.set.load(Ordering::Acquire) == set.id()
            && r.fd.load(Ordering::Relaxed) == fd.cast_unsigned()
    })
}

fn add(
    w: &'static World,
    conn: &'static Conn,
    epfd: c_int,
    fd: c_int,
    event: epoll_event,
    kernel: &mut dyn FnMut(Option<epoll_event>) -> c_int,
) -> c_int {
    let (events, data) = (event.events, event.u64);
    if matches!(fds::look(epfd), Some(Entry::Conn(_))) {
        // No event set at all.
        return kernel(Some(event));
    }
    let Some(set) = set_of(w, epfd) else { return kernel(Some(event)) };
    let free = (0..SETS).find(|which| once::is_free(w, conn, *which));
    let exclusive = events & EXCLUSIVE != 0;
    let stays = free.is_none()
        || exclusive && conn.phase() != Phase::Attached
        || data & TAG_MASK == TAG
        || set.passed.load(Ordering::SeqCst);
    if data & TAG_MASK == TAG {
        looks_alike();
    }
    if stays {
        // More sets than we follow, a mode that cannot be changed, data that looks like ours, or a set that others have.
        crate::io::to_tcp(w, conn, fd, local::Reason::EventSets);
        return kernel(Some(event));
    }
    let Some(which) = free else { return kernel(Some(event)) };
    unpark(conn, which);
    let half = conn.my_half(w).map(|(_, half)| half);
    // What a set that is gone has left there.
    half.into_iter().for_each(|half| once::withdraw(half, which));
    if conn.phase() == Phase::Server
        && !set.is_cold()
        && !set.forked.load(Ordering::Relaxed)
        && !fires_once(conn)
    {
        crate::io::meet(w, conn, fd);
    }
    if conn.phase() == Phase::Attached && !exclusive {
        return add_attached(w, conn, (set, epfd), which, fd, event, kernel);
    }
    let done = kernel(Some(event));
    if done != 0 {
        return done;
    }
    if exclusive {
        // The kernel changes no such registration, and we have to. An ordinary one wakes at least
        // those that this one would.
        let _ = fds::by_number(conn, fd, || {
            let _ = call::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, 0, 0);
            call::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, events & !EXCLUSIVE, data)
        });
    }
    fill(&conn.sets[which], set, fd, event);
    set.disturb(w);
    if conn.phase() == Phase::Offered {
        watch_offer(w, set, conn, which);
    } else if conn.phase() != Phase::Attached {
        set.plain.store(true, Ordering::Relaxed);
    }
    if conn.phase() == Phase::Attached {
        join(w, conn, set, which, true);
    }
    done
}

/// `EPOLL_CTL_ADD` of an attached connection: the kernel is given our tag at once.
fn add_attached(
    w: &'static World,
    conn: &'static Conn,
    (set, epfd): (&'static Set, c_int),
    which: usize,
    fd: c_int,
    event: epoll_event,
    kernel: &mut dyn FnMut(Option<epoll_event>) -> c_int,
) -> c_int {
    let r = &conn.sets[which];
    fill(r, set, fd, event);
    let half = conn.my_half(w).map(|(_, half)| half);
    let withdraw = || half.into_iter().for_each(|half| once::withdraw(half, which));
    let done = enrol(w, set, conn, which, |events, tag| {
        call::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, events, tag)
    });
    if matches!(done, Err(NOT_ATTACHED)) {
        // Another thread has just put it back on TCP.
        withdraw();
        let done = kernel(Some(event));
        if done != 0 {
            r.set.store(0, Ordering::Release);
        }
        return done;
    }
    if let Err(errno) = done {
        withdraw();
        r.flags.store(0, Ordering::Relaxed);
        r.set.store(0, Ordering::Release);
        crate::real::set_errno(errno);
        return -1;
    }
    if let (Ok(given), Some(e)) = (done, ends(w, conn))
        && !given.holds(w, set, r, &e, which)
    {
        register(w, set, conn, which);
    }
    join(w, conn, set, which, false);
    0
}

/// Notes a registration that the program has made.
fn fill(r: &Registration, set: &Set, fd: c_int, event: epoll_event) {
    let (events, data) = (event.events, event.u64);
    set.used.store(true, Ordering::Relaxed);
    r.fd.store(fd.cast_unsigned(), Ordering::Relaxed);
    r.events.store(events, Ordering::Relaxed);
    r.data.store(data, Ordering::Relaxed);
    r.seen.store(u64::MAX, Ordering::Relaxed);
    r.flags.store(0, Ordering::Relaxed);
    r.set.store(set.id(), Ordering::Release);
    // Either we see that the connection is attached now, or who attaches it sees the registration. Pairs
    // with `Conn::attached`.
    full_fence();
}

/// An attached connection has come into a set.
fn join(
    w: &'static World,
    conn: &'static Conn,
    set: &'static Set,
    which: usize,
    register_it: bool,
) {
    if let Some((_, peer)) = conn.halves(w) {
        conn.sets[which].seen_flags.store(end_flags(peer), Ordering::Relaxed);
    }
    set.adopt(w, conn, which, register_it);
    // A second set: doorbells for both.
    for (other, s) in registrations(conn) {
        if other != which
            && let Some((mine, _)) = conn.halves(w)
        {
            set_word(w, s, conn, mine);
        }
    }
}

fn modify(
    w: &'static World,
    conn: &'static Conn,
    epfd: c_int,
    fd: c_int,
    event: epoll_event,
    kernel: &mut dyn FnMut(Option<epoll_event>) -> c_int,
) -> c_int {
    let (events, data) = (event.events, event.u64);
    let found = fds::set(epfd).and_then(|set| Some((set, slot(conn, set, fd)?)));
    let Some((set, which)) = found else { return kernel(Some(event)) };
    let r = &conn.sets[which];
    if (events | r.events.load(Ordering::Relaxed)) & EXCLUSIVE != 0 {
        crate::real::set_errno(libc::EINVAL);
        return -1;
    }
    if data & TAG_MASK == TAG {
        looks_alike();
        crate::io::to_tcp(w, conn, fd, local::Reason::EventSets);
    }
    let (old_events, old_data) = (r.events.load(Ordering::Relaxed), r.data.load(Ordering::Relaxed));
    // Another process may have changed it since.
    let alone = !set.forked.load(Ordering::Relaxed);
    let unchanged = (old_events, old_data) == (events, data);
    if alone && unchanged && events & (ET | ONESHOT | EXCLUSIVE) == 0 {
        // Level triggered: nothing changes, and what is ready is reported anyway.
        return 0;
    }
    let ours = || {
        let tagged = r.flags.load(Ordering::Relaxed) & reg::TAGGED != 0;
        ends(w, conn)
            .filter(|_| tagged)
            .inspect(|e| once::publish(w, set, e.mine, which, (events, data, false)))
    };
    // Before we have it ourselves: see `Known::follow`.
    let before = ours();
    r.events.store(events, Ordering::Relaxed);
    r.data.store(data, Ordering::Relaxed);
    let was = r.flags.fetch_and(!(reg::DISABLED | reg::QUIET), Ordering::Relaxed);
    let flags = r.flags.fetch_or(reg::FRESH, Ordering::Relaxed);
    if flags & reg::LATER != 0 && flags & reg::TAGGED == 0 && ends(w, conn).is_some() {
        // The program arms it, so we may.
        r.flags.fetch_and(!reg::LATER, Ordering::Relaxed);
        if let Some(e) = ends(w, conn) {
            once::publish(w, set, e.mine, which, (events, data, false));
        }
        join(w, conn, set, which, true);
        return 0;
    }
    // Another thread may have attached it by now.
    let Some(e) = before.or_else(ours) else {
        let done = kernel(Some(event));
        set.disturb(w);
        if done != 0 {
            r.events.store(old_events, Ordering::Relaxed);
            r.data.store(old_data, Ordering::Relaxed);
        } else if let Some((_, half)) = conn.my_half(w)
            && Known::of(half, which).is_some()
        {
            // For another process that does not know yet that it is back on TCP.
            once::publish(w, set, half, which, (events, data, false));
        }
        return done;
    };
    // The kernel's registration need not change when only OUT came or went: no call then.
    let keep = IN | OUT | RDNORM | WRNORM | RDHUP;
    let same = alone
        && was & reg::QUIET == 0
        && (old_events ^ events) & !keep == 0
        && events & ONESHOT == 0
        && !conn.is_mixed(e.mine, e.peer);
    if !same && !register(w, set, conn, which) && !alone && ends(w, conn).is_some() {
        // Another process has taken it out just now.
        set.leave(conn, which);
        crate::real::set_errno(libc::ENOENT);
        return -1;
    }
    set.looks_again(w, conn, which);
    set.shows(w);
    let waits = set.waiting.load(Ordering::SeqCst) > 0;
    if waits && mask(conn, e.mine, e.peer) & wanted(r) != 0 || set.tells_elsewhere(w, conn, r, &e) {
        set.kick(w);
    }
    0
}

fn remove(w: &'static World, conn: &'static Conn, epfd: c_int, fd: c_int) {
    let found = fds::set(epfd).and_then(|set| Some((set, slot(conn, set, fd)?)));
    let Some((set, which)) = found else { return };
    if let Some((_, half)) = conn.my_half(w) {
        // Others that share the set must not report it either.
        half.set_events[which].store(0, Ordering::Relaxed);
    }
    set.leave(conn, which);
    // If it is closed next, it is out of all sets by then.
    set.ended(w, conn);
    if conn.phase() == Phase::Offered {
        // No more by the word of this set.
        let _ = ring_for_offer(w, conn);
    }
    if let Some((mine, _)) = conn.halves(w)
        && let Some(_held) = lock::lock(&mine.wait_lock)
        && conn.sleepers(mine) == 0
    {
        restore(w, conn, mine);
    }
}

/// Somebody looks at the epoll descriptor itself (another set, `poll`): the kernel must know what is
/// ready.
pub(crate) fn looked_at(w: &'static World, epfd: c_int) {
    if let Some(set) = fds::set(epfd) {
        set.is_looked_at(w);
    }
}

/// A descriptor is given to somebody who may know nothing of its set: what the program registered must be the kernel's.
pub(crate) fn passed(w: &'static World, fd: c_int) {
    let Some(set) = fds::set(fd) else { return };
    set.passed.store(true, Ordering::SeqCst);
    fds::each(|number, entry| {
        if let Entry::Conn(conn) = entry
            && set.is_of(conn)
        {
            crate::io::to_tcp(w, conn, number, local::Reason::EventSets);
        }
    });
}

/// A descriptor of the set was duplicated.
pub(crate) fn duplicated(set: &Set) {
    set.refs.fetch_add(1, Ordering::Relaxed);
}

/// A descriptor of the set was closed; with the last one its registrations go.
pub(crate) fn closed(w: &'static World, set: &'static Set) {
    if set.refs.fetch_sub(1, Ordering::AcqRel) > 1 {
        // The number that it is known by may be the one that was closed.
        fds::each(|fd, entry| {
            if matches!(entry, Entry::Set(other) if std::ptr::eq(other, set)) {
                set.epfd.store(fd.cast_unsigned(), Ordering::Relaxed);
            }
        });
        return;
    }
    fds::each(|_, entry| {
        if let Entry::Conn(conn) = entry {
            for (which, r) in conn.sets.iter().enumerate() {
                let parked = r.parked.load(Ordering::Relaxed) == set.id();
                if parked {
                    r.parked.store(0, Ordering::Relaxed);
                }
                if r.set.load(Ordering::Relaxed) == set.id() {
                    r.set.store(0, Ordering::Relaxed);
                    r.flags.store(0, Ordering::Relaxed);
                    // A set that another process may have as well goes on there.
                    if !set.tracks(w)
                        && let Some((_, half)) = conn.my_half(w)
                    {
                        once::withdraw(half, which);
                    }
                    if conn.phase() == Phase::Offered {
                        let _ = ring_for_offer(w, conn);
                    }
                    if let Some((mine, _)) = conn.halves(w)
                        && conn.phase() == Phase::Attached
                        && let Some(_held) = lock::lock(&mine.wait_lock)
                        && conn.sleepers(mine) == 0
                    {
                        restore(w, conn, mine);
                    }
                }
            }
        }
    });
    if let Some(mut members) = set.members.lock() {
        members.clear();
        // What they had room for, too.
        *members = Members::default();
    }
    set.strangers.store(0, Ordering::Relaxed);
    set.gives_back_what_was_common(w);
    set.count.store(0, Ordering::Relaxed);
    let waiter = set.waiter.swap(0, Ordering::Relaxed);
    if waiter != 0 {
        w.drop_waiter(waiter - 1);
    }
    spare::keep(w, set);
}
