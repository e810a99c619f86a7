//! The connections that a set looks at in memory: who they are, and a look at all of them.

use std::collections::VecDeque;

use super::leftover::Leftover;
use super::*;

/// A connection that a set looks at, and what was true of it when there was nothing to report. While
/// that has not changed there is still nothing: most looks end after a few words of the peer's line.
pub(super) struct Watched {
    pub(super) conn: &'static Conn,
    /// Which of its registrations.
    pub(super) which: usize,
    halves: Option<(&'static Half, &'static Half)>,
    /// Both directions go through the rings, as far as the last look has seen.
    is_plain: bool,
    /// [`Members::looks`] when something of it was reported last.
    used: u32,
    quiet: Quiet,
}

/// What the answer "nothing to report" was based on.
#[derive(Default)]
struct Quiet {
    valid: bool,
    tail: u64,
    peer_flags: u32,
    own_flags: u32,
    hints: u32,
    registration: u32,
    events: u32,
}

impl Watched {
    /// `used`: the count of looks, now.
    pub(super) fn new(w: &'static World, conn: &'static Conn, which: usize, used: u32) -> Self {
        let (halves, quiet) = (conn.halves(w), Quiet::default());
        Self { conn, which, halves, is_plain: false, used, quiet }
    }

    /// Whether nothing has changed since there was nothing to report.
    #[inline]
    fn is_quiet(&self) -> bool {
        let Some((mine, peer)) = self.halves else { return false };
        let (q, r) = (&self.quiet, &self.conn.sets[self.which]);
        q.valid
            && q.tail == ring::tail(&peer.tail)
            && q.peer_flags == peer.flags.load(Ordering::Relaxed)
            && q.hints == self.conn.kernel.load(Ordering::Relaxed)
            && q.registration == r.flags.load(Ordering::Relaxed)
            && q.events == r.events.load(Ordering::Relaxed)
            && q.own_flags == mine.flags.load(Ordering::Relaxed)
            && self.conn.error.load(Ordering::Relaxed) == 0
    }

    /// Whether the peer wants the connection back on TCP, and waits for us.
    fn is_asked_to_go_down(&self) -> bool {
        self.halves.is_some_and(|(mine, peer)| {
            peer.flags.load(Ordering::Relaxed) & flag::WANT_DOWN != 0
                && mine.flags.load(Ordering::Relaxed) & flag::DOWN == 0
        })
    }

    /// What there is to report; remembers what "nothing" was based on, where only words that
    /// [`Self::is_quiet`] compares can change it.
    fn due(&mut self, w: &'static World) -> Due {
        let r = &self.conn.sets[self.which];
        let Some((mine, peer)) = self.halves else { return due(w, self.conn, r) };
        // Read before the look: what changes during it makes the next one a full one.
        let before = Quiet {
            valid: true,
            tail: ring::tail(&peer.tail),
            peer_flags: peer.flags.load(Ordering::Acquire),
            own_flags: mine.flags.load(Ordering::Relaxed),
            hints: self.conn.kernel.load(Ordering::Relaxed),
            registration: r.flags.load(Ordering::Relaxed),
            events: r.events.load(Ordering::Relaxed),
        };
        refresh_mixed(w, self.conn, false);
        let what = due(w, self.conn, r);
        let room = before.events & (OUT | WRNORM) != 0
            && (before.events & ET == 0 || before.registration & reg::ROOM != 0);
        let usual = flag::IO_SEEN | flag::WATCHED | flag::TAKEN;
        let plain = before.peer_flags & !usual == flag::UP
            && before.own_flags & !(flag::UP | usual) == 0
            && !self.conn.is_mixed(mine, peer);
        self.is_plain = plain;
        self.quiet = before;
        self.quiet.valid = what.events == 0 && plain && !room;
        what
    }
}

/// All connections of a set.
#[derive(Default)]
pub(super) struct Members {
    /// Attached connections that are looked at in memory.
    pub(super) warm: Vec<Watched>,
    /// Connections that we have offered and that the peer has not taken yet.
    pub(super) offered: Vec<(&'static Conn, usize)>,
    /// What [`World::offer_moves`] said when none of these had moved; `None`: they are to be looked at.
    pub(super) unmoved: Option<u32>,
    /// Some were offered by the process that we were forked from, of which nobody tells us.
    pub(super) inherited: bool,
    /// Attached connections that the kernel wakes.
    pub(super) asleep: usize,
    /// What was left behind.
    pub(super) leftovers: VecDeque<Leftover>,
    /// Registrations of a set that processes share, of which this one has no record.
    pub(super) strangers: Vec<Stranger>,
    /// Where the next look begins.
    pub(super) next: usize,
    /// Looks at all of them so far; it wraps. And how many of them the next one has looked at: one that finds much ends
    /// before it has seen all.
    looks: u32,
    looked_at: usize,
    /// Where those that have been quiet are sought next.
    cooled: usize,
}

impl Members {
    /// The set is no more.
    pub(super) fn clear(&mut self) {
        while let Some(last) = self.offered.len().checked_sub(1) {
            let _ = self.take_offer(last);
        }
        while let Some(last) = self.warm.len().checked_sub(1) {
            self.take(last);
        }
        self.leftovers.clear();
        self.strangers.clear();
        self.asleep = 0;
    }

    /// Whether all of them are told to the waiter of that number.
    pub(super) fn all_wake(&self, waiter: u32) -> bool {
        let word = WaitWord::Warm(waiter).emit();
        self.warm.iter().all(|m| {
            m.is_plain
                && m.halves.is_some_and(|(mine, _)| mine.wait.load(Ordering::Relaxed) == word)
        })
    }

    pub(super) fn recount(&self, set: &Set) {
        // SeqCst: see `Set::wait`.
        set.count.store(self.warm.len() + self.asleep + self.offered.len(), Ordering::SeqCst);
        set.rung.store(self.asleep > 0, Ordering::Relaxed);
        if self.warm.len() > WARM_MAX {
            set.many.store(true, Ordering::Relaxed);
        }
    }

    /// A connection that is offered and may be taken, or is not offered any more. All of them are looked at only when
    /// something has happened to one: a program may have thousands that do nothing.
    pub(super) fn moved(&mut self, w: &World) -> Option<usize> {
        if self.offered.is_empty() {
            return None;
        }
        // Before they are looked at: what happens meanwhile changes it again.
        let moves = w.offer_moves();
        if self.unmoved == Some(moves) && !self.inherited {
            return None;
        }
        let moved = |c: &Conn| c.phase() != Phase::Offered || c.is_taken(w);
        let found = self.offered.iter().position(|(c, _)| moved(c));
        w.looks_at_offers(found.map_or(self.offered.len(), |at| at + 1));
        self.unmoved = found.is_none().then_some(moves);
        found
    }

    /// Looks at a connection that was offered.
    pub(super) fn watch(&mut self, w: &World, (conn, which): (&'static Conn, usize), half: &Half) {
        if self.offer_of(conn).is_none() {
            self.put_offer(conn, which);
        }
        self.inherited |= w.board.slot() != Some(half.slot.load(Ordering::Relaxed));
        self.unmoved = None;
    }

    /// Which lists these are, in the registrations that are in them: they lie in their set, which is never unmapped.
    fn id(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    fn put_offer(&mut self, conn: &'static Conn, which: usize) {
        let r = &conn.sets[which];
        r.offered_in.store(self.id(), Ordering::Relaxed);
        r.offered_at.store(place(self.offered.len()), Ordering::Relaxed);
        self.offered.push((conn, which));
    }

    /// Where a connection is among those that were offered: once, whichever registration it came by.
    fn offer_of(&self, conn: &Conn) -> Option<usize> {
        conn.sets.iter().enumerate().find_map(|(which, r)| {
            let at = r.offered_at.load(Ordering::Relaxed) as usize;
            let (there, at_which) = self.offered.get(at)?;
            let is_here = r.offered_in.load(Ordering::Relaxed) == self.id();
            (is_here && std::ptr::eq(*there, conn) && *at_which == which).then_some(at)
        })
    }

    fn take_offer(&mut self, at: usize) -> (&'static Conn, usize) {
        let (conn, which) = self.offered.swap_remove(at);
        let r = &conn.sets[which];
        self.forgets(&r.offered_in, &r.offered_at, at);
        if let Some((moved, which)) = self.offered.get(at) {
            let r = &moved.sets[*which];
            self.moves(&r.offered_in, &r.offered_at, self.offered.len(), at);
        }
        (conn, which)
    }

    /// What says that a registration is in one of these lists, at this place, does so no more. A record that a handler could
    /// not take out (see [`Set::leave`]) may serve another connection by now, which is in the lists of another set, or here
    /// at another place.
    fn forgets(&self, word: &AtomicU64, at: &AtomicU32, here: usize) {
        if at.load(Ordering::Relaxed) == place(here) {
            let _ = word.compare_exchange(self.id(), 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// What was the last of a list is at a place further in front, likewise.
    fn moves(&self, word: &AtomicU64, at: &AtomicU32, from: usize, to: usize) {
        if word.load(Ordering::Relaxed) == self.id() && at.load(Ordering::Relaxed) == place(from) {
            at.store(place(to), Ordering::Relaxed);
        }
    }

    /// Nobody looks at a connection on behalf of this registration any more. `tagged`: it was ours in the kernel.
    fn drop_all(&mut self, set: &Set, conn: &'static Conn, which: usize, tagged: bool) {
        // One that is not ours is not among the attached ones.
        match tagged.then(|| self.position(conn, which)) {
            Some(Some(at)) => self.take(at),
            Some(None) => self.asleep = self.asleep.saturating_sub(1),
            None => {}
        }
        if let Some(at) = self.offer_of(conn) {
            let _ = self.take_offer(at);
            // The same socket may be in the set by another descriptor.
            let same = |(i, other): &(usize, &Set)| *i != which && other.id() == set.id();
            if let Some((other, _)) = registrations(conn).find(same) {
                self.put_offer(conn, other);
            }
        }
        self.recount(set);
    }

    /// Where a registration is in the list. It says so itself: there may be thousands.
    fn position(&self, conn: &Conn, which: usize) -> Option<usize> {
        let r = &conn.sets[which];
        let at = r.warm_at.load(Ordering::Relaxed) as usize;
        let is_it = |m: &Watched| {
            #[cfg(test)]
            tests::compares();
            std::ptr::eq(m.conn, conn) && m.which == which
        };
        let is_here = r.warm_in.load(Ordering::Relaxed) == self.id();
        (is_here && self.warm.get(at).is_some_and(is_it)).then_some(at)
    }

    fn put(&mut self, w: &'static World, conn: &'static Conn, which: usize) {
        let r = &conn.sets[which];
        r.warm_in.store(self.id(), Ordering::Relaxed);
        r.warm_at.store(place(self.warm.len()), Ordering::Relaxed);
        self.warm.push(Watched::new(w, conn, which, self.looks));
    }

    /// A connection that the kernel wakes is looked at again, unless it is anyway. The caller counts.
    pub(super) fn wakes(
        &mut self,
        w: &'static World,
        set: &Set,
        conn: &'static Conn,
        which: usize,
    ) {
        if set.has_tagged(conn, which) && self.position(conn, which).is_none() {
            self.put(w, conn, which);
        }
    }

    /// So many more were looked at. Whether all have been, once more.
    fn looked(&mut self, seen: usize) -> bool {
        self.looked_at += seen;
        let has_ended = self.looked_at >= self.warm.len();
        if has_ended {
            self.looked_at = 0;
            self.looks = self.looks.wrapping_add(1);
        }
        has_ended
    }

    /// How many looks make who was not reported in them quiet.
    fn quiet_looks(&self) -> u32 {
        let fitting = QUIET_SEEN / self.warm.len().max(1);
        u32::try_from(fitting.min(QUIET_LOOKS)).unwrap_or(u32::MAX)
    }

    fn take(&mut self, at: usize) {
        let taken = self.warm.swap_remove(at);
        let r = &taken.conn.sets[taken.which];
        self.forgets(&r.warm_in, &r.warm_at, at);
        if let Some(moved) = self.warm.get(at) {
            let r = &moved.conn.sets[moved.which];
            self.moves(&r.warm_in, &r.warm_at, self.warm.len(), at);
        }
    }
}

/// A place in a list, as a registration has it. A process has no such number of descriptors that it would not fit.
fn place(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

impl Set {
    /// Takes an attached connection into the lists; the kernel has its registration under our tag
    /// already, or gets it (`register_it`).
    pub(super) fn adopt(
        &'static self,
        w: &'static World,
        conn: &'static Conn,
        which: usize,
        register_it: bool,
    ) {
        conn.sets[which].flags.fetch_or(reg::FRESH, Ordering::Relaxed);
        if register_it {
            register(w, self, conn, which);
        }
        let Some(e) = ends(w, conn) else { return };
        if let Some(mut members) = self.members.lock() {
            if let Some(at) = members.offer_of(conn) {
                let _ = members.take_offer(at);
            }
            let is_in = self.has_tagged(conn, which);
            if is_in {
                match members.position(conn, which) {
                    Some(at) => members.warm[at] = Watched::new(w, conn, which, members.looks),
                    None => members.put(w, conn, which),
                }
            }
            members.recount(self);
            if !is_in {
                return;
            }
        }
        self.lively.store(64, Ordering::Relaxed);
        self.naps.attached();
        set_word(w, self, conn, e.mine);
        if self.waiting.load(Ordering::SeqCst) > self.settling.load(Ordering::SeqCst)
            || self.tells_elsewhere(w, conn, &conn.sets[which], &e)
        {
            // The waiter must look at it, and count as asleep when it sleeps again.
            self.kick(w);
        } else {
            self.shows(w);
        }
    }

    /// A registration leaves the set: at one moment, as the lists see it, it is free and nobody looks at the connection
    /// any more, whose record may serve another one as soon as it is closed.
    pub(super) fn leave(&self, conn: &'static Conn, which: usize) {
        let r = &conn.sets[which];
        // `None`: this thread is at the lists, and a handler of its own has interrupted it.
        let mut members = self.members.lock();
        let tagged = r.flags.swap(0, Ordering::Relaxed) & reg::TAGGED != 0;
        if let Some(members) = &mut members {
            members.drop_all(self, conn, which, tagged);
        }
        r.set.store(0, Ordering::Release);
    }

    /// The same for a registration that stays.
    pub(super) fn stops_watching(&self, conn: &'static Conn, which: usize, tagged: bool) {
        if let Some(mut members) = self.members.lock() {
            members.drop_all(self, conn, which, tagged);
        }
    }

    /// Whether this is one of our registrations, under our tag. To be asked under the lock of the lists: another thread
    /// may have taken it out of the set, or the connection back to TCP, just now.
    fn has_tagged(&self, conn: &Conn, which: usize) -> bool {
        let r = &conn.sets[which];
        r.set.load(Ordering::Acquire) == self.id()
            && r.flags.load(Ordering::Relaxed) & reg::TAGGED != 0
    }

    /// Whether the connection is in this set.
    pub(super) fn is_of(&self, conn: &'static Conn) -> bool {
        registrations(conn).any(|(_, set)| set.id() == self.id())
    }

    /// The connection that was active last. Its record may serve another one by now.
    pub(super) fn last(&self) -> Option<&'static Conn> {
        // SAFETY: records are never unmapped; a null address is no record.
        unsafe { (self.last.load(Ordering::Relaxed) as *const Conn).as_ref() }
    }

    /// What the peer of that one has moved.
    pub(super) fn last_moved(&self, w: &'static World) -> u64 {
        let peer = self.last().and_then(|conn| conn.halves(w)).map(|(_, peer)| peer);
        peer.map_or(0, Conn::peer_moved)
    }

    /// Whether a wait sleeps at once: the peer has our CPU for good, and what comes next most likely comes by the kernel.
    /// A sleep there lets the peer run as a yield would, and ends with what comes.
    pub(super) fn is_left_to_the_kernel(&self, w: &'static World) -> bool {
        let last = self.last();
        self.beside.is_brief(w, last) || self.beside.is_so(w, last) && self.only_offers()
    }

    /// Whether more are looked at than a wait looks at again and again.
    pub(super) fn is_large(&self) -> bool {
        self.many.load(Ordering::Relaxed)
            && self.members.lock().is_some_and(|m| m.warm.len() > SPUN_MAX)
    }

    /// Whether no connection is attached yet.
    fn only_offers(&self) -> bool {
        self.members.lock().is_some_and(|m| m.warm.is_empty() && m.asleep == 0)
    }

    /// A connection was taken out of this set: most are closed next.
    pub(super) fn ended(&self, w: &World, conn: &'static Conn) {
        if self.beside.ended(w, conn) {
            let last = std::ptr::from_ref(conn) as u64;
            let _ = self.last.compare_exchange(last, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether any connection has something for the program; does not report.
    pub(super) fn any(&self, w: &'static World) -> bool {
        let Some(mut members) = self.members.lock() else { return true };
        members.moved(w).is_some()
            || members.warm.iter_mut().any(|m| !m.is_quiet() && m.due(w).events != 0)
    }

    /// Counts a sleep for the connection that moved last.
    pub(super) fn count_sleep(&self, w: &'static World) {
        let at = self.last.load(Ordering::Relaxed);
        if at != 0 {
            // SAFETY: records are never unmapped.
            let conn = unsafe { &*(at as *const Conn) };
            if let Some((mine, _)) = conn.halves(w) {
                mine.n_sleeps.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Reports what is ready, each connection once.
    pub(super) fn scan(&'static self, w: &'static World, out: &mut Out<'_>) {
        if self.is_used_elsewhere(w) {
            self.notice_sharing(w);
        }
        let Some(mut members) = self.members.lock() else { return };
        let n = members.warm.len();
        // In a set that others share `wait_forked` does this.
        if n == 0 || out.is_full() || self.forked.load(Ordering::Relaxed) {
            return;
        }
        let looks = members.looks;
        let start = members.next % n;
        let mut seen = n;
        let (mut last, mut asked) = (None, None);
        for step in 0..n {
            let mut at = start + step;
            if at >= n {
                at -= n;
            }
            if out.is_full() {
                members.next = at;
                seen = step;
                break;
            }
            let member = &mut members.warm[at];
            if member.is_quiet() {
                continue;
            }
            // Also when the other one has ended since: it may have changed what is in the set.
            let shared = member
                .halves
                .is_some_and(|(mine, _)| mine.flags.load(Ordering::Relaxed) & flag::SHARED != 0);
            if shared {
                drop(members);
                self.notice_sharing(w);
                // What there is to report the other process may have changed: see `wait_forked`.
                return;
            }
            let mut what = member.due(w);
            if !member.is_plain {
                self.mixed.store(true, Ordering::Relaxed);
                if member.is_asked_to_go_down() {
                    asked = Some(member.conn);
                }
                if what.events != 0 {
                    // What is reported is all that is true: the kernel says its part.
                    member.conn.kernel.fetch_or(kernel::IN, Ordering::Relaxed);
                    what = member.due(w);
                }
            }
            if what.events == 0 {
                continue;
            }
            let r = &member.conn.sets[member.which];
            let before = r.flags.load(Ordering::Relaxed);
            let room = before & reg::ROOM != 0 && what.events & (OUT | WRNORM) != 0;
            if r.events.load(Ordering::Relaxed) & (ET | ONESHOT) == ET
                && self.tracks(w)
                && let Some((mine, _)) = member.halves
                && !edges::claims(mine, member.which, &what)
                && before & reg::FRESH == 0
                && !room
            {
                // A child has told it just now.
                reported(r, &what);
                continue;
            }
            if r.events.load(Ordering::Relaxed) & ONESHOT != 0
                && let Some((mine, _)) = member.halves
                && !once::fires(w, self, mine, member.which)
            {
                r.flags.fetch_or(reg::DISABLED, Ordering::Relaxed);
                continue;
            }
            reported(r, &what);
            if r.events.load(Ordering::Relaxed) & (ET | ONESHOT) == ET
                && let Some((mine, _)) = member.halves.filter(|(mine, _)| is_cold(mine))
            {
                // Others wait, and are told of the next arrival also if what there is has not been read by then.
                member.conn.arm_cold(w, mine);
                let others = self.is_cold() || self.waiting.load(Ordering::SeqCst) > 1;
                if others && due(w, member.conn, r).events != 0 {
                    // It came in between, and may not have rung.
                    self.kick(w);
                }
            }
            last = Some(member.conn);
            member.used = looks;
            out.push(what.events, r.data.load(Ordering::Relaxed));
        }
        let has_ended = members.looked(seen);
        if let Some(conn) = last {
            self.last.store(std::ptr::from_ref(conn) as u64, Ordering::Relaxed);
            if out.is_full() {
                self.crowded.store(true, Ordering::Relaxed);
            }
        }
        drop(members);
        // Who always finds something never sleeps, and would look at all of them for ever.
        if has_ended && n > WARM_MAX && looks.is_multiple_of(COOL_LOOKS) && !self.is_cold() {
            self.cool_down(w);
        }
        // Who asks rings for nobody who is awake, and may have nobody else to do it.
        if let Some(conn) = asked
            && let Some(e) = ends(w, conn)
        {
            let fd = conn.fd.load(Ordering::Relaxed).cast_signed();
            conn.answer_demotion(w, fd, e.mine, e.peer);
        }
    }

    /// Attaches what was taken meanwhile, and lets go of what will not be.
    pub(super) fn settle_offered(&'static self, w: &'static World) {
        loop {
            let Some(mut members) = self.members.lock() else { return };
            let Some(at) = members.moved(w) else {
                if !members.offered.is_empty() {
                    self.mixed.store(true, Ordering::Relaxed);
                }
                return;
            };
            let (conn, _) = members.take_offer(at);
            members.recount(self);
            if !self.is_of(conn) {
                #[cfg(feature = "watchdog")]
                watchdog::looks_at_a_stranger(self, conn);
                continue;
            }
            drop(members);
            match conn.phase() {
                // By a call that knows no event sets.
                Phase::Attached => attached_late(w, conn),
                Phase::Offered => {
                    let fd = conn.fd.load(Ordering::Relaxed).cast_signed();
                    crate::io::settle(w, conn, fd, false);
                }
                _ => {}
            }
            if ends(w, conn).is_none() {
                self.plain.store(true, Ordering::Relaxed);
            }
            if matches!(conn.phase(), Phase::Offered | Phase::Busy) {
                // Another thread is at it at this moment; next time. Or has taken it out of the set meanwhile.
                if let Some(mut members) = self.members.lock() {
                    let which = registrations(conn).find(|(_, set)| set.id() == self.id());
                    if let Some((which, _)) = which
                        && members.offer_of(conn).is_none()
                    {
                        members.put_offer(conn, which);
                        members.unmoved = None;
                        members.recount(self);
                    }
                }
                return;
            }
        }
    }

    /// A connection that the kernel has woken is looked at in memory again.
    pub(super) fn warm_up(
        &'static self,
        w: &'static World,
        conn: &'static Conn,
        which: usize,
        e: &Ends,
    ) {
        let Some(mut members) = self.members.lock() else { return };
        if !self.has_tagged(conn, which) {
            return;
        }
        if members.position(conn, which).is_none() {
            members.put(w, conn, which);
            members.asleep = members.asleep.saturating_sub(1);
            self.rung.store(members.asleep > 0, Ordering::Relaxed);
        }
        drop(members);
        if !self.is_cold() {
            set_word(w, self, conn, e.mine);
            if !conn.is_mixed(e.mine, e.peer) && conn.sleepers(e.mine) == 0 {
                self.drain(w, conn, e);
            }
        }
    }

    /// A connection of which there may be something to tell that the kernel does not know of, room or bytes whose doorbell
    /// has been taken out, is looked at in memory again.
    pub(super) fn looks_again(&'static self, w: &'static World, conn: &'static Conn, which: usize) {
        // Among few, all are looked at.
        if !self.many.load(Ordering::Relaxed) {
            return;
        }
        let Some(e) = ends(w, conn) else { return };
        let Some(mut members) = self.members.lock() else { return };
        if !self.has_tagged(conn, which) || members.position(conn, which).is_some() {
            return;
        }
        members.put(w, conn, which);
        members.asleep = members.asleep.saturating_sub(1);
        self.rung.store(members.asleep > 0, Ordering::Relaxed);
        drop(members);
        if !self.is_cold() {
            set_word(w, self, conn, e.mine);
        }
    }

    /// Lets go of some that have been quiet, when there are many. Who is busy stays, however many they are: each of them
    /// would have to be rung for.
    pub(super) fn cool_down(&'static self, w: &'static World) {
        let Some(mut members) = self.members.lock() else { return };
        let (all, looks, quiet) = (members.warm.len(), members.looks, members.quiet_looks());
        let mut left = all.saturating_sub(WARM_MAX);
        // A part of them each time: nobody is held up, and one sleep among many says little.
        let mut tries = if left > 0 { 64 + all / 64 } else { 0 };
        let mut at = members.cooled;
        while left > 0 && tries > 0 {
            tries -= 1;
            at = if at < members.warm.len() { at } else { 0 };
            let member = &members.warm[at];
            if looks.wrapping_sub(member.used) < quiet {
                at += 1;
                continue;
            }
            let (conn, which) = (member.conn, member.which);
            let Some(e) = ends(w, conn) else {
                at += 1;
                continue;
            };
            let r = &conn.sets[which];
            let wants_room = r.events.load(Ordering::Relaxed) & (OUT | WRNORM) != 0;
            if wants_room && !conn.writable(w, e.mine, e.peer) {
                if conn.is_mixed(e.mine, e.peer) {
                    // The kernel may not wake it: see `Conn::is_heard`.
                    at += 1;
                    continue;
                }
                // Whoever sleeps asks for it, but of those that are looked at. Room that comes just now is seen below.
                r.flags.fetch_or(reg::ROOM, Ordering::Relaxed);
                let _ = conn.wait_for_room(e.mine, e.peer);
            }
            conn.arm_cold(w, e.mine);
            if due(w, conn, &conn.sets[which]).events != 0 {
                set_word(w, self, conn, e.mine);
                at += 1;
                continue;
            }
            members.take(at);
            members.asleep += 1;
            left -= 1;
            // The one that is there now has come last.
            at += 1;
        }
        members.cooled = at;
        self.rung.store(members.asleep > 0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
