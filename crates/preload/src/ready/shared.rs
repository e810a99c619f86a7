//! Sets that processes share since a fork: what there is to tell is what the memory says that they have in common, and
//! what of it was told is there as well. The kernel wakes, by doorbells, and says what only it knows.

use local::board;
use sys::abi::half_state;

use super::once::Known;
use super::watch::Watched;
use super::*;

/// A registration in a set that processes share, of which this process has no record: another one has made it, or this one
/// has closed its descriptor. (What is told of it is written down in its half, which is opened for that.) Its halves say what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stranger {
    index: u32,
    generation: u32,
    which: usize,
}

impl Stranger {
    fn of(index: u32, half: &Half, which: usize) -> Self {
        Self { index, generation: half.generation.load(Ordering::Relaxed), which }
    }

    /// Its half, and what is known of the registration. `None`: it is in this set no more.
    fn look<'w>(self, w: &'w World, set: &Set) -> Option<(&'w Half, Known<'w>)> {
        let half = w.board.map.half(self.index)?;
        let known = Known::of(half, self.which)?;
        let is_it = half.generation.load(Ordering::Relaxed) == self.generation
            && half.state.load(Ordering::Acquire) == half_state::ATTACHED
            && half.set_in[self.which].load(Ordering::Relaxed) == set.key;
        is_it.then_some((half, known))
    }
}

/// The other half of an attached connection.
fn peer_of<'w>(w: &'w World, half: &Half) -> Option<&'w Half> {
    let peer = w.board.map.half(half.peer.load(Ordering::Relaxed).checked_sub(1)?)?;
    let same =
        peer.generation.load(Ordering::Acquire) == half.peer_generation.load(Ordering::Relaxed);
    (same && half.state.load(Ordering::Acquire) == half_state::ATTACHED).then_some(peer)
}

/// What there is to tell of a connection that asks for `user`, of which this process has only the halves. `said`: what the
/// kernel has just said of it, or 0.
fn of_halves(w: &World, half: &Half, user: u32, said: u32) -> Due {
    let Some(peer) = peer_of(w, half) else {
        // It is on TCP.
        return Due { events: said & (user | ERR | HUP), tail: 0, end: 0 };
    };
    let end = end_flags(peer);
    let tail = ring::tail(&peer.tail);
    let (flags, peer_flags) =
        (half.flags.load(Ordering::Relaxed), peer.flags.load(Ordering::Acquire));
    let readable = if Conn::mixed(half, peer) {
        said & IN != 0
    } else {
        tail != half.head.load(Ordering::Relaxed)
    };
    let state = State {
        flags,
        peer_flags,
        hints: hints_of(said),
        after: flags & flag::AFTER != 0,
        readable,
        waits: false,
        told: flags & flag::TOLD != 0,
    };
    let mut now = state.mask();
    if flags & (flag::SHUT | flag::DOWN) != 0
        || peer_flags & flag::CLOSED != 0
        || Conn::has_some_room(half, peer)
    {
        now |= OUT | WRNORM;
    }
    Due { events: now & (user | ERR | HUP), tail, end }
}

/// The same where this process holds it.
fn of_own(conn: &Conn, e: &Ends, user: u32) -> Due {
    // Read first: what arrives after this is the next edge.
    let end = end_flags(e.peer);
    let tail = ring::tail(&e.peer.tail);
    Due { events: mask_at(conn, e.mine, e.peer, tail) & (user | ERR | HUP), tail, end }
}

/// Whether there is something to tell of a registration of ours, that nobody has told.
#[cfg(feature = "watchdog")]
pub(super) fn is_due(w: &'static World, conn: &Conn, which: usize) -> bool {
    let Some(e) = ends(w, conn) else { return false };
    let Some(known) = Known::of(e.mine, which) else { return false };
    once::is_due(e.mine, which, known, &of_own(conn, &e, known.events()))
}

/// Whether the kernel has said something of which memory does not tell whether it was told.
fn is_beyond_memory(half: &Half, peer: &Half, which: usize, said: u32) -> bool {
    let end = end_flags(peer);
    let flags = half.flags.load(Ordering::Relaxed);
    // As in `is_news`.
    let closed = peer.flags.load(Ordering::Acquire) & flag::CLOSED != 0;
    let news = (flags & flag::AFTER != 0 || !closed) && flags & flag::SHUT == 0;
    let told =
        end != 0 && edges::has_told_end(half, which, end) && (said & (HUP | ERR) == 0 || !news);
    said & PRI != 0 || said & (RDHUP | HUP | ERR) != 0 && !told || Conn::mixed(half, peer)
}

/// The next movement rings, whatever lies unread.
fn rings_again(half: &Half) {
    let seq = half.arm_seq.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    wait::arm(&half.wait, WaitWord::Cold(seq));
}

/// Whether the next movement would not ring, because this end has been rung for and nobody has armed it since. `bell`: nor
/// is there a doorbell in the socket, by which the kernel wakes.
pub(super) fn is_rung(half: &Half, peer: &Half, bell: bool) -> bool {
    let WaitWord::Cold(seq) = WaitWord::parse(half.wait.load(Ordering::Relaxed)) else {
        return true;
    };
    let lies = peer.bells.load(Ordering::Acquire) != half.drained.load(Ordering::Relaxed);
    peer.rung.load(Ordering::Relaxed) == seq && !(bell && lies)
}

/// Whether the kernel's end of a connection is more than both ends have said themselves.
pub(super) fn is_news(conn: &Conn, e: &Ends) -> bool {
    let mine = e.mine.flags.load(Ordering::Relaxed);
    let after = conn.sent_after(e.mine);
    (after || e.peer.flags.load(Ordering::Acquire) & flag::CLOSED == 0) && mine & flag::SHUT == 0
}

/// What this process has told of a registration is told for all from now on.
fn begins(w: &'static World, conn: &'static Conn, which: usize) {
    let r = &conn.sets[which];
    if let Some(e) = ends(w, conn)
        && let Some(known) = Known::of(e.mine, which)
    {
        let _ = known.follow(r, e.mine, which);
        edges::begins(e.mine, which, r, &due(w, conn, r));
    }
}

impl Set {
    /// The first use of an inherited set: parent and child may both wait on it. And the first one after another process
    /// has used it.
    pub(super) fn notice_fork(&'static self, w: &'static World) {
        let forks = w.forks.load(Ordering::Relaxed);
        let other = self.forks.swap(forks, Ordering::Relaxed) != forks;
        if other && self.made_by != w.depth() {
            self.begins_to_share(w);
            self.forked.store(true, Ordering::Relaxed);
            self.is_used_here_too(w);
            if let Some(members) = self.members.lock() {
                let all: Vec<_> = members.warm.iter().map(|m| m.conn).collect();
                drop(members);
                for conn in all {
                    if let Some((mine, _)) = conn.halves(w) {
                        mine.flags.fetch_or(flag::SHARED, Ordering::Relaxed);
                        conn.arm_cold(w, mine);
                    }
                }
            }
            self.waiter.store(0, Ordering::Relaxed);
            self.go_cold(w);
            self.tells_what_nobody_rang_for(w);
        } else if self.is_used_elsewhere(w) {
            self.notice_sharing(w);
        }
    }

    /// The other process of a shared set has begun to use it.
    pub(super) fn notice_sharing(&'static self, w: &'static World) {
        if self.forked.load(Ordering::Relaxed) {
            return;
        }
        self.begins_to_share(w);
        if self.forked.swap(true, Ordering::Relaxed) {
            return;
        }
        self.go_cold(w);
        self.tells_what_nobody_rang_for(w);
    }

    /// What this process has told of its own registrations is told for all from now on.
    fn begins_to_share(&self, w: &'static World) {
        let Some(mut members) = self.members.lock() else { return };
        if members.asleep > 0 {
            fds::each(|_, entry| {
                let Entry::Conn(conn) = entry else { return };
                for (which, set) in registrations(conn) {
                    if set.id() == self.id() {
                        members.wakes(w, self, conn, which);
                    }
                }
            });
            members.asleep = 0;
            members.recount(self);
        }
        members.warm.iter().for_each(|m| begins(w, m.conn, m.which));
    }

    /// What had come until the set went cold nobody has rung for, and the kernel does not know of it: it is what has not been
    /// told. What the kernel was asked for by who was alone is asked for anew.
    fn tells_what_nobody_rang_for(&self, w: &'static World) {
        if let Some(members) = self.members.lock() {
            for m in &members.warm {
                m.conn.sets[m.which].flags.fetch_and(!reg::QUIET, Ordering::Relaxed);
                if let Some(e) = ends(w, m.conn) {
                    register_anew(w, self, m.conn, m.which, &e);
                }
            }
        }
        self.find_strangers(w);
    }

    /// Registrations that others have made in this set, for as long as this process did not use it, or with something to
    /// tell from the beginning. Of what comes to later ones the kernel tells.
    fn find_strangers(&self, w: &'static World) {
        let half_of = |m: &Watched| Some((std::ptr::from_ref(ends(w, m.conn)?.mine), m.which));
        let Some(members) = self.members.lock() else { return };
        let mut own: Vec<(*const Half, usize)> = members.warm.iter().filter_map(half_of).collect();
        drop(members);
        own.sort_unstable();
        for (index, half) in board::halves(&w.board.map, w.board.fd()) {
            for which in 0..SETS {
                let stranger = Stranger::of(index, half, which);
                if stranger.look(w, self).is_some()
                    && own.binary_search(&(std::ptr::from_ref(half), which)).is_err()
                {
                    let _ = self.knows(w, stranger, half);
                }
            }
        }
    }

    /// Looks at that one, too. `false`: it cannot be, because what is told of it could not be written down.
    fn knows(&self, w: &World, stranger: Stranger, half: &Half) -> bool {
        let place = || self.members.lock().map(|m| m.strangers.binary_search(&stranger));
        match place() {
            Some(Ok(_)) => return true,
            // Not under the lock of the lists: see `opens_half`.
            Some(Err(_)) if w.opens_half(stranger.index) => {}
            _ => return false,
        }
        if half.users.load(Ordering::Relaxed) > 1 {
            half.flags.fetch_or(flag::SHARED, Ordering::Relaxed);
        }
        if let Some(mut members) = self.members.lock()
            && let Err(at) = members.strangers.binary_search(&stranger)
        {
            members.strangers.insert(at, stranger);
            self.strangers.store(members.strangers.len(), Ordering::Relaxed);
        }
        rings_again(half);
        true
    }

    /// Whether another process may have to be told of a registration, of which the kernel knows nothing: no doorbell lies.
    pub(super) fn tells_elsewhere(
        &self,
        w: &'static World,
        conn: &Conn,
        r: &Registration,
        e: &Ends,
    ) -> bool {
        let lies =
            || e.peer.bells.load(Ordering::Acquire) != e.mine.drained.load(Ordering::Relaxed);
        // It is asked for room where several processes are known to hold the connection: see `kernel_events`.
        let by_kernel = match e.mine.flags.load(Ordering::Relaxed) & (flag::SHARED | flag::DOWN) {
            0 => 0,
            _ => OUT | WRNORM,
        };
        (self.forked.load(Ordering::Relaxed) || self.is_used_elsewhere(w))
            && mask(conn, e.mine, e.peer) & wanted(r) & !by_kernel != 0
            && (!lies() || by_kernel == 0)
    }

    /// This process closes its last descriptor of a connection that others may hold, and that is in the set for them.
    pub(super) fn becomes_a_stranger(&self, w: &'static World, conn: &'static Conn, which: usize) {
        let Some((index, half)) = conn.my_half(w) else { return };
        if !self.tracks(w) || half.users.load(Ordering::Acquire) <= 1 {
            return;
        }
        begins(w, conn, which);
        if self.forked.load(Ordering::Relaxed) {
            let _ = self.knows(w, Stranger::of(index, half, which), half);
        }
    }

    /// Waits on a set that another process waits on too: only the kernel knows who is to be woken, and connections are as
    /// the memory says that the processes have in common.
    pub(super) fn wait_forked(
        &'static self,
        w: &'static World,
        events: &mut [epoll_event],
        limit: Option<u64>,
        sleep: &mut dyn FnMut(&mut [epoll_event], Option<u64>) -> c_int,
    ) -> c_int {
        let start = call::now_ns();
        let mut looked = false;
        let mut unheard = false;
        if self.was_changed_by_others(w, false) {
            self.find_strangers(w);
        }
        loop {
            let left = limit.map(|l| l.saturating_sub(call::now_ns() - start));
            if self.count.load(Ordering::Relaxed) + self.strangers.load(Ordering::Relaxed) > 0 {
                // First what the kernel has, then what it cannot know; but not for ever, where what the kernel has fills each
                // answer.
                let mut told = Vec::new();
                let mut n = 0;
                if self.crowded.swap(false, Ordering::Relaxed) {
                    n = self.report_quiet(w, events, 0, &mut told);
                }
                if n == 0 {
                    let said = call::epoll_wait(self.epfd(), events, 0);
                    n = self.as_shared(w, events, said, &mut told);
                    self.crowded.store(n == events.len(), Ordering::Relaxed);
                    n = self.report_quiet(w, events, n, &mut told);
                }
                if n > 0 {
                    return c_int::try_from(n).unwrap_or(0);
                }
                if !looked {
                    let moved;
                    (moved, unheard) = self.moves_while_it_is_armed(w);
                    if moved {
                        looked = true;
                        continue;
                    }
                }
            }
            looked = false;
            self.is_in_no_hurry(left);
            let looks = unheard && left.is_none_or(|l| l > LOOK_NS);
            let n = sleep(events, if looks { Some(LOOK_NS) } else { left });
            let Ok(count) = usize::try_from(n) else { return n };
            if count == 0 && looks {
                continue;
            }
            let mut ours = Vec::new();
            let mut told = self.as_shared(w, events, Ok(count), &mut ours);
            if told == 0 && count > 0 {
                // It may have been for us to look.
                told = self.report_quiet(w, events, 0, &mut ours);
            }
            if count == 0 || told > 0 || left == Some(0) {
                return c_int::try_from(told).unwrap_or(0);
            }
        }
    }

    /// Before a sleep: whatever moves rings. Answers whether something has, meanwhile; and whether one of the peers may not be
    /// heard, as [`Set::ask_for_room`] does.
    fn moves_while_it_is_armed(&self, w: &'static World) -> (bool, bool) {
        let Some(members) = self.members.lock() else { return (true, false) };
        let arm = |half: &Half, user: u32| {
            let bell = user & (ET | ONESHOT) == 0;
            if peer_of(w, half).is_some_and(|peer| is_rung(half, peer, bell)) {
                rings_again(half);
            }
        };
        // All are armed, whatever the first ones say.
        let (mut moved, mut unheard) = (false, false);
        for m in &members.warm {
            let Some(e) = ends(w, m.conn) else { continue };
            let Some(known) = Known::of(e.mine, m.which) else { continue };
            let user = known.events();
            arm(e.mine, user);
            if user & (OUT | WRNORM) != 0 && !m.conn.writable(w, e.mine, e.peer) {
                edges::lacks_room(e.mine, m.which);
                // Room that comes in between is seen by the look that follows.
                let _ = m.conn.wait_for_room(e.mine, e.peer);
                unheard |= !m.conn.is_heard(w, e.mine, e.peer);
            }
            moved |= once::is_due(e.mine, m.which, known, &of_own(m.conn, &e, user));
        }
        for stranger in &members.strangers {
            let Some((half, known)) = stranger.look(w, self) else { continue };
            arm(half, known.events());
            let what = of_halves(w, half, known.events(), 0);
            moved |= once::is_due(half, stranger.which, known, &what);
            unheard |= known.events() & (OUT | WRNORM) != 0
                && what.events & (OUT | WRNORM) == 0
                && peer_of(w, half).is_some_and(|peer| Conn::mixed(half, peer));
        }
        (moved, unheard)
    }

    /// Translates what the kernel has said of a shared set, in its place; answers how much is left, and which registrations
    /// of ours are among it.
    fn as_shared(
        &self,
        w: &'static World,
        events: &mut [epoll_event],
        said: call::Result<usize>,
        told: &mut Vec<(*const Half, usize)>,
    ) -> usize {
        let copy: Vec<epoll_event> = events[..said.unwrap_or(0)].to_vec();
        let mut out = Out { events, n: 0 };
        for event in &copy {
            let (mask, tag) = (event.events, event.u64);
            if self.tells_what_was_left(tag, mask, &mut out) {
                continue;
            }
            match tagged(w, tag) {
                Some((half, which)) => {
                    let before = out.n;
                    match held(w, half) {
                        Some((conn, e)) if self.has(conn, which) => {
                            self.as_own(w, conn, which, &e, mask, &mut out);
                        }
                        found => {
                            #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
                            let index = tag as u32;
                            self.tells_stranger(w, (index, half), which, mask, &mut out);
                            if let Some((conn, e)) = found.filter(|_| out.n == before) {
                                let _ = quiet(w, conn, &e);
                            }
                        }
                    }
                    if out.n > before {
                        told.push((std::ptr::from_ref(half), which));
                    }
                }
                // Another process may have put something into the set that has something to tell.
                None if tag == KICK => {
                    if self.was_changed_by_others(w, true) {
                        self.find_strangers(w);
                    }
                }
                None if is_nobodys(tag) => self.has_kept_something(),
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
        if is_beyond_memory(e.mine, e.peer, which, said) {
            edges::arms(w, self, e.mine, which);
        }
        let level = known.events() & (ET | ONESHOT) == 0;
        if !level {
            rings_again(e.mine);
        }
        let what = of_own(conn, e, known.events());
        if what.events == 0 || out.is_full() {
            let was_stale = quiet(w, conn, e);
            if !was_stale && level {
                // It will say the same at once.
                self.has_kept_something();
            }
            return;
        }
        if known.claims(e.mine, which, &what) {
            reported(r, &what);
            out.push(what.events, known.data);
        }
    }

    /// The kernel has an event for a connection of which this process has no record.
    pub(super) fn tells_stranger(
        &self,
        w: &'static World,
        (index, half): (u32, &Half),
        which: usize,
        said: u32,
        out: &mut Out<'_>,
    ) {
        let is_here = half.set_in[which].load(Ordering::Relaxed) == self.key;
        let Some(known) = Known::of(half, which).filter(|_| is_here) else {
            return self.has_kept_something();
        };
        let stranger = Stranger::of(index, half, which);
        let can_be_told = if self.forked.load(Ordering::Relaxed) {
            self.knows(w, stranger, half)
        } else {
            w.opens_half(index)
        };
        if !can_be_told {
            return self.has_kept_something();
        }
        let user = known.events();
        if known.has_fired() {
            return self.has_kept_something();
        }
        match peer_of(w, half) {
            Some(peer) if !is_beyond_memory(half, peer, which, said) => {}
            _ => edges::arms(w, self, half, which),
        }
        let level = user & (ET | ONESHOT) == 0;
        if !level {
            rings_again(half);
        }
        let what = of_halves(w, half, user, said);
        if what.events == 0 || out.is_full() {
            if level {
                // It will say the same at once, and to take the doorbell out takes a descriptor.
                self.has_kept_something();
            }
            return;
        }
        if known.claims(half, which, &what) {
            out.push(what.events, known.data);
        }
    }

    /// Reports what the kernel of a shared set cannot know: bytes that were there, with their doorbell
    /// taken out, when the program asked for them, and ends. It comes behind what the kernel had, or they would wait for as
    /// long as the kernel has others: `before` events, which are in the answer, those of `told` among them. Answers how many
    /// there are then.
    fn report_quiet(
        &self,
        w: &'static World,
        events: &mut [epoll_event],
        before: usize,
        told: &mut Vec<(*const Half, usize)>,
    ) -> usize {
        let Some(mut members) = self.members.lock() else { return before };
        members.strangers.retain(|stranger| stranger.look(w, self).is_some());
        self.strangers.store(members.strangers.len(), Ordering::Relaxed);
        let mut out = Out { events, n: before };
        let (start, own) = (members.next, members.warm.len());
        let all = own + members.strangers.len();
        for at in (0..all).map(|step| (start + step) % all) {
            if out.is_full() {
                // Whoever had no room this time comes first.
                members.next = at;
                break;
            }
            let found = match members.warm.get(at) {
                Some(member) => self.is_told_of_own(w, member.conn, member.which, told),
                None => self.is_told_of(w, members.strangers[at - own], told),
            };
            if let Some((events, data)) = found {
                out.push(events, data);
            }
        }
        out.n
    }

    /// Of [`Self::report_quiet`]: what there is of a connection of ours. Once in an answer.
    fn is_told_of_own(
        &self,
        w: &'static World,
        conn: &'static Conn,
        which: usize,
        told: &mut Vec<(*const Half, usize)>,
    ) -> Option<(u32, u64)> {
        let r = &conn.sets[which];
        let e = ends(w, conn)?;
        let here = (std::ptr::from_ref(e.mine), which);
        let known = Known::of(e.mine, which)?.follow(r, e.mine, which);
        let user = known.events();
        let what = of_own(conn, &e, user);
        if told.contains(&here) || !once::is_due(e.mine, which, known, &what) {
            return None;
        }
        // Another process may have changed it, or taken it out of the set.
        let is_in = match user & (ET | ONESHOT) {
            0 => register(w, self, conn, which),
            _ => stands(self, conn, r),
        };
        if !is_in || !known.stands() {
            return None;
        }
        let what = if user & (ET | ONESHOT) == 0 {
            what
        } else {
            // Whoever watches edges is told of each arrival, also while there is something unread. What comes after the look
            // rings.
            rings_again(e.mine);
            of_own(conn, &e, user)
        };
        known.claims(e.mine, which, &what).then(|| {
            reported(r, &what);
            told.push(here);
            (what.events, known.data)
        })
    }

    /// Of [`Self::report_quiet`]: what there is of another one.
    fn is_told_of(
        &self,
        w: &'static World,
        stranger: Stranger,
        told: &mut Vec<(*const Half, usize)>,
    ) -> Option<(u32, u64)> {
        let (half, known) = stranger.look(w, self)?;
        let here = (std::ptr::from_ref(half), stranger.which);
        let what = of_halves(w, half, known.events(), 0);
        if told.contains(&here) || !once::is_due(half, stranger.which, known, &what) {
            return None;
        }
        let what = if known.events() & (ET | ONESHOT) == 0 {
            what
        } else {
            rings_again(half);
            of_halves(w, half, known.events(), 0)
        };
        known.claims(half, stranger.which, &what).then(|| {
            told.push(here);
            (what.events, known.data)
        })
    }
}

/// The connection of a half, if this process holds it.
fn held(w: &'static World, half: &Half) -> Option<(&'static Conn, Ends)> {
    let conn = fds::conn(half.fd.load(Ordering::Relaxed).cast_signed())?;
    let e = ends(w, conn)?;
    std::ptr::eq(e.mine, half).then_some((conn, e))
}

/// A doorbell of a shared connection whose ring is empty by now: out of the socket, and armed anew. `false`: it is not empty.
fn quiet(w: &World, conn: &Conn, e: &Ends) -> bool {
    let fd = conn.fd.load(Ordering::Relaxed).cast_signed();
    if let Some(_held) = lock::lock_of(&e.mine.rx_lock, &e.mine.lent)
        && ring::tail(&e.peer.tail) == e.mine.head.load(Ordering::Relaxed)
    {
        conn.drain_bells(e.mine, e.peer, fd);
        conn.arm_cold(w, e.mine);
        full_fence();
        if ring::tail(&e.peer.tail) != e.mine.head.load(Ordering::Relaxed) {
            // It came in between, and may not have rung.
            for (which, set) in registrations(conn) {
                set.is_fresh(w, &conn.sets[which], e.mine, which);
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
