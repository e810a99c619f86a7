//! Events of connections that another process has registered in a set that we share with it.

use super::once::Known;
use super::*;

/// An event of a connection that this process does not hold: another process registered it in a
/// set that we share. Its halves say what there is.
/// `false`: there is nothing to report.
pub(super) fn stranger(
    w: &World,
    half: &Half,
    which: usize,
    kernel_mask: u32,
    out: &mut Out<'_>,
) -> bool {
    let Some(known) = Known::of(half, which) else { return false };
    if known.has_fired() {
        return true;
    }
    let user = known.events();
    let mut now = kernel_mask & !(IN | RDNORM);
    if let Some(peer) =
        half.peer.load(Ordering::Relaxed).checked_sub(1).and_then(|p| w.board.map.half(p))
        && (ring::tail(&peer.tail) != half.head.load(Ordering::Relaxed) || end_flags(peer) != 0)
    {
        now |= IN;
        if end_flags(peer) != 0 {
            now |= RDHUP;
        }
    }
    let mut now = now & (user | ERR | HUP);
    if now == 0 && user & ONESHOT != 0 {
        // The kernel has disarmed it, and to arm it takes a descriptor, which we need not have. An event with nothing
        // behind it is better than none ever. Room comes by a doorbell.
        now = kernel_mask & user | user & (OUT | WRNORM);
    }
    if now != 0 && !out.is_full() && known.claim() {
        if user & ET != 0 && now & (IN | RDNORM) != 0 {
            // Each arrival is an edge: see `expect_edge`.
            let seq = half.arm_seq.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            wait::arm(&half.wait, WaitWord::Cold(seq));
        }
        out.push(now, known.data);
    }
    now != 0
}

/// Whether the kernel's end of a connection is more than both ends have said themselves.
pub(super) fn is_news(conn: &Conn, e: &Ends) -> bool {
    let mine = e.mine.flags.load(Ordering::Relaxed);
    let after = conn.sent_after(e.mine);
    (after || e.peer.flags.load(Ordering::Acquire) & flag::CLOSED == 0) && mine & flag::SHUT == 0
}

impl Set {
    /// The first use of an inherited set: parent and child may both wait on it.
    pub(super) fn notice_fork(&'static self, w: &'static World) {
        let forks = w.forks.load(Ordering::Relaxed);
        let other = self.forks.swap(forks, Ordering::Relaxed) != forks;
        if other && w.inherited() {
            self.forked.store(true, Ordering::Relaxed);
            if let Some(members) = self.members.lock() {
                let all: Vec<_> = members.warm.iter().map(|m| m.conn).collect();
                drop(members);
                for conn in all {
                    if let Some((mine, _)) = conn.halves(w) {
                        mine.flags.fetch_or(flag::SHARED, Ordering::Relaxed);
                        conn.arm_cold(mine);
                    }
                }
            }
            self.waiter.store(0, Ordering::Relaxed);
            self.go_cold(w);
            self.tells_what_nobody_rang_for(w);
        }
    }

    /// The other process of a shared set has begun to use it.
    pub(super) fn notice_sharing(&'static self, w: &'static World) {
        if self.forked.swap(true, Ordering::Relaxed) {
            return;
        }
        self.go_cold(w);
        self.tells_what_nobody_rang_for(w);
    }

    /// What had come until the set went cold nobody has rung for, and the kernel, which has the only word from now on, does
    /// not know of it. What comes after this look rings: the fence of `arm`.
    fn tells_what_nobody_rang_for(&self, w: &'static World) {
        if let Some(members) = self.members.lock() {
            for member in &members.warm {
                let (conn, which) = (member.conn, member.which);
                let r = &conn.sets[which];
                if let Some(e) = ends(w, conn)
                    && let Some(known) = Known::of(e.mine, which)
                {
                    let _ = known.follow(r, e.mine, which);
                }
                if due(w, conn, r).events != 0 {
                    r.flags.fetch_or(reg::FRESH, Ordering::Relaxed);
                }
            }
        }
    }

    /// Waits on a set that another process waits on too: only the kernel knows who is to be woken,
    /// and what the set holds. Connections are as the kernel's doorbells say.
    pub(super) fn wait_forked(
        &'static self,
        w: &'static World,
        events: &mut [epoll_event],
        limit: Option<u64>,
        sleep: &mut dyn FnMut(&mut [epoll_event], Option<u64>) -> c_int,
    ) -> c_int {
        let start = call::now_ns();
        loop {
            let left = limit.map(|l| l.saturating_sub(call::now_ns() - start));
            if self.count.load(Ordering::Relaxed) > 0 {
                // First what the kernel has, then what it cannot know; but not for ever, where what the kernel has fills each
                // answer.
                let mut n = 0;
                if self.crowded.swap(false, Ordering::Relaxed) {
                    n = self.report_quiet(w, events, Asked::NotYet);
                }
                if n == 0 {
                    let said = call::epoll_wait(self.epfd(), events, 0);
                    let mut ours = Vec::new();
                    n = self.as_shared(w, events, said, &mut ours);
                    self.crowded.store(n == events.len(), Ordering::Relaxed);
                    n = self.report_quiet(w, events, Asked::Told(n, &ours));
                }
                if n > 0 {
                    return c_int::try_from(n).unwrap_or(0);
                }
            }
            self.is_in_no_hurry(left);
            let n = sleep(events, left);
            let Ok(count) = usize::try_from(n) else { return n };
            let told = self.as_shared(w, events, Ok(count), &mut Vec::new());
            if count == 0 || told > 0 || left == Some(0) {
                return c_int::try_from(told).unwrap_or(0);
            }
        }
    }

    /// Translates what the kernel has said of a shared set, in its place; answers how much is left, and which registrations
    /// of ours are among it.
    fn as_shared(
        &self,
        w: &'static World,
        events: &mut [epoll_event],
        said: call::Result<usize>,
        ours: &mut Vec<*const Registration>,
    ) -> usize {
        let copy: Vec<epoll_event> = events[..said.unwrap_or(0)].to_vec();
        let mut out = Out { events, n: 0 };
        for event in &copy {
            let (mask, tag) = (event.events, event.u64);
            if self.tells_what_was_left(tag, mask, &mut out) {
                continue;
            }
            match tagged(w, tag) {
                Some((half, which)) => match held(w, half) {
                    Some((conn, e)) if self.has(conn, which) => {
                        let before = out.n;
                        self.as_own(w, conn, which, &e, mask, &mut out);
                        if out.n > before {
                            ours.push(&raw const conn.sets[which]);
                        }
                    }
                    Some((conn, e)) => {
                        if !stranger(w, half, which, mask, &mut out) {
                            let _ = quiet(conn, &e);
                        }
                    }
                    None => drop(stranger(w, half, which, mask, &mut out)),
                },
                None if tag == KICK || is_nobodys(tag) => {}
                None => out.push(mask, tag),
            }
        }
        out.n
    }

    /// Whether this process has made this registration.
    fn has(&self, conn: &Conn, which: usize) -> bool {
        conn.sets[which].set.load(Ordering::Acquire) == self.id()
    }

    /// The kernel has an event for a connection of ours: what is true of it is what is reported.
    pub(super) fn as_own(
        &self,
        w: &'static World,
        conn: &'static Conn,
        which: usize,
        e: &Ends,
        said: u32,
        out: &mut Out<'_>,
    ) {
        let r = &conn.sets[which];
        let Some(known) = Known::of(e.mine, which) else { return self.has_kept_something() };
        let known = known.follow(r, e.mine, which);
        note(conn, said);
        if known.has_fired() {
            // If the kernel says it again and again, nobody may be kept busy by that.
            return self.has_kept_something();
        }
        refresh_mixed(w, conn, true);
        let now = mask(conn, e.mine, e.peer) & (known.events() | ERR | HUP);
        if now == 0 || out.is_full() {
            return self.says_nothing(w, conn, which, e, known);
        }
        if !known.claim() {
            return;
        }
        let what = Due { events: now, tail: ring::tail(&e.peer.tail), end: end_flags(e.peer) };
        reported(r, &what);
        expect_edge(conn, r, e, &what);
        out.push(now, known.data);
    }

    /// Reports what the kernel of a shared set cannot know: bytes that were there, with their doorbell
    /// taken out, when the program asked for them. It comes behind what the kernel had, or they would wait for as long as
    /// the kernel has others; answers how many there are then.
    fn report_quiet(
        &self,
        w: &'static World,
        events: &mut [epoll_event],
        asked: Asked<'_>,
    ) -> usize {
        let (told, ours) = match asked {
            Asked::NotYet => (0, [].as_slice()),
            Asked::Told(told, ours) => (told, ours),
        };
        let Some(mut members) = self.members.lock() else { return told };
        let mut out = Out { events, n: told };
        let (start, all) = (members.next, members.warm.len());
        for at in (0..all).map(|step| (start + step) % all) {
            if out.is_full() {
                // Whoever had no room this time comes first.
                members.next = at;
                break;
            }
            let (conn, which) = (members.warm[at].conn, members.warm[at].which);
            let r = &conn.sets[which];
            let Some((e, known)) =
                ends(w, conn).and_then(|e| Known::of(e.mine, which).map(|known| (e, known)))
            else {
                continue;
            };
            let known = known.follow(r, e.mine, which);
            let user = known.events();
            let fresh = r.flags.load(Ordering::Relaxed) & reg::FRESH != 0;
            // Once in an answer.
            if user & ET != 0 && !fresh || ours.contains(&&raw const *r) {
                continue;
            }
            // What the kernel knows of it tells, and if it has not been asked that is still to come. Of a one-shot
            // registration that has been told it has nothing for the program.
            if asked.is_early() && may_be_told(conn, user) {
                continue;
            }
            let what = due(w, conn, r);
            // Another process may have changed it, or taken it out of the set.
            let is_in = || match user & (ET | ONESHOT) {
                0 => register(w, self, conn, which),
                _ => stands(self, conn, r),
            };
            if what.events != 0 && is_in() && known.stands() && known.claim() {
                reported(r, &what);
                expect_edge(conn, r, &e, &what);
                out.push(what.events, known.data);
            }
        }
        out.n
    }
}

/// Whether the kernel has been asked before what it cannot know is reported.
#[derive(Clone, Copy)]
enum Asked<'a> {
    /// What it has would fill the answer, as it filled the last one.
    NotYet,
    /// It had so many events, which are in the answer, these of our connections among them.
    Told(usize, &'a [*const Registration]),
}

impl Asked<'_> {
    fn is_early(self) -> bool {
        matches!(self, Self::NotYet)
    }
}

/// Whether the kernel may have an event of an edge-triggered registration that is still to come.
fn may_be_told(conn: &Conn, user: u32) -> bool {
    user & (ET | ONESHOT) == ET && call::readable(conn.fd.load(Ordering::Relaxed).cast_signed()).0
}

/// Who watches edges is told of each arrival, also while there is something unread: the next one rings as well.
fn expect_edge(conn: &Conn, r: &Registration, e: &Ends, told: &Due) {
    if r.events.load(Ordering::Relaxed) & ET == 0 || told.events & (IN | RDNORM) == 0 {
        return;
    }
    conn.arm_cold(e.mine);
    full_fence();
    if ring::tail(&e.peer.tail) != told.tail {
        // It came in between, and may not have rung.
        r.flags.fetch_or(reg::FRESH, Ordering::Relaxed);
    }
}

/// The connection of a half, if this process holds it.
fn held(w: &'static World, half: &Half) -> Option<(&'static Conn, Ends)> {
    let conn = fds::conn(half.fd.load(Ordering::Relaxed).cast_signed())?;
    let e = ends(w, conn)?;
    std::ptr::eq(e.mine, half).then_some((conn, e))
}

/// A doorbell of a shared connection whose ring is empty by now: out of the socket, and armed anew. `false`: it is not empty.
pub(super) fn quiet(conn: &Conn, e: &Ends) -> bool {
    let fd = conn.fd.load(Ordering::Relaxed).cast_signed();
    if let Some(_held) = lock::lock_of(&e.mine.rx_lock, &e.mine.lent)
        && ring::tail(&e.peer.tail) == e.mine.head.load(Ordering::Relaxed)
    {
        conn.drain_bells(e.mine, e.peer, fd);
        conn.arm_cold(e.mine);
        full_fence();
        if ring::tail(&e.peer.tail) != e.mine.head.load(Ordering::Relaxed) {
            // It came in between, and may not have rung.
            for (which, _) in registrations(conn) {
                conn.sets[which].flags.fetch_or(reg::FRESH, Ordering::Relaxed);
            }
        }
        return true;
    }
    false
}

/// The half and the registration that a tag of ours leads to; `None`: the data is the program's.
pub(super) fn tagged(w: &'static World, tag: u64) -> Option<(&'static Half, usize)> {
    if tag & TAG_MASK != TAG {
        return None;
    }
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let half = w.board.map.half(tag as u32)?;
    let generation = u64::from(half.generation.load(Ordering::Relaxed)) & 0x7fff;
    (tag >> 32 & 0x7fff == generation).then_some((half, usize::from(tag & TAG_SECOND != 0)))
}
