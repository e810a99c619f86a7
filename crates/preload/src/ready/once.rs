//! What the processes that share a set know of a registration together. It is in the half, beside the connection: what was
//! asked for last, by whichever of them, and that a one-shot registration has fired, so that one of them tells it, and it
//! is armed for all of them by whoever arms it. What was told of edges is there as well: see `edges`.

use super::*;

/// Bit of [`Half::set_events`]: the registration is in a set. No event has this number.
const PRESENT: u32 = 1 << 25;
/// Bit of [`Half::set_events`]: the one-shot registration has fired, and was not armed again. No event has this number.
const FIRED: u32 = 1 << 26;
/// Bit of the word that the processes have in common for a set: more than one of them uses it.
const USED: u32 = 1 << 31;
/// In place of the number of that word: there was none left, and nobody would be told.
const UNKNOWN: u32 = u32::MAX;

/// Most changes of a registration by others that are followed one after the other.
pub(super) const CHANGES_MAX: usize = 8;

/// A registration as it is for every process.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    word: &'a AtomicU32,
    seen: u32,
    pub(super) data: u64,
}

impl<'a> Known<'a> {
    /// `None`: it was taken out.
    pub(super) fn of(half: &'a Half, which: usize) -> Option<Self> {
        let (word, data) = (half.set_events.get(which)?, half.set_data.get(which)?);
        // Acquire: the data that belongs to it; see `publish`.
        let seen = word.load(Ordering::Acquire);
        (seen & PRESENT != 0).then(|| Self { word, seen, data: data.load(Ordering::Relaxed) })
    }

    /// What the program asked for.
    pub(super) fn events(self) -> u32 {
        self.seen & !(PRESENT | FIRED)
    }

    pub(super) fn has_fired(self) -> bool {
        self.seen & FIRED != 0 && self.events() & ONESHOT != 0
    }

    /// Whoever tells an event claims it: a one-shot registration is told once. `false`: another process or thread has, or
    /// has changed the registration, which asks the kernel anew.
    pub(super) fn claim(self) -> bool {
        self.events() & ONESHOT == 0
            || self
                .word
                .compare_exchange(self.seen, self.seen | FIRED, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    }

    /// Whoever tells what there is claims it, each edge and each one-shot event once.
    pub(super) fn claims(self, half: &Half, which: usize, what: &Due) -> bool {
        match self.events() & (ET | ONESHOT) {
            0 => true,
            ET => edges::claims(half, which, what),
            _ => self.claim(),
        }
    }

    /// Whether it is as it was when we looked.
    pub(super) fn stands(self) -> bool {
        self.word.load(Ordering::Acquire) == self.seen
    }

    /// This process has it as the others do. Answers what it is by now.
    pub(super) fn follow(mut self, r: &Registration, half: &'a Half, which: usize) -> Self {
        for _ in 0..CHANGES_MAX {
            let disabled = r.flags.load(Ordering::Relaxed) & reg::DISABLED != 0;
            let own = (r.events.load(Ordering::Relaxed), r.data.load(Ordering::Relaxed), disabled);
            if own == (self.events(), self.data, self.has_fired()) {
                break;
            }
            r.events.store(self.events(), Ordering::Relaxed);
            r.data.store(self.data, Ordering::Relaxed);
            if self.has_fired() {
                r.flags.fetch_or(reg::DISABLED, Ordering::Relaxed);
            } else {
                r.flags.fetch_and(!reg::DISABLED, Ordering::Relaxed);
            }
            // Whoever changes it says so in the half first, and has it himself then: what has changed is looked at again, so
            // that we do not keep what another thread of ours has just replaced.
            full_fence();
            match Self::of(half, which) {
                Some(now) if now.seen != self.seen || now.data != self.data => self = now,
                _ => break,
            }
        }
        self
    }
}

/// What the kernel was given for a registration.
#[derive(Clone, Copy)]
pub(super) struct Given {
    /// What the program had asked for.
    pub(super) user: u32,
    /// It was one-shot, and had fired: the kernel was told to say nothing.
    pub(super) fired: bool,
    /// It was told so that it stays armed: see `kernel_events`.
    pub(super) shared: bool,
}

impl Given {
    /// Whether that is still what it should have.
    pub(super) fn holds(
        self,
        w: &World,
        set: &Set,
        r: &Registration,
        e: &Ends,
        which: usize,
    ) -> bool {
        if self.user & ONESHOT != 0 && !self.shared && set.lets_others_arm(w, e.mine) {
            return false;
        }
        let (user, fired) = if set.may_be_shared(e.mine) {
            let Some(known) = Known::of(e.mine, which) else { return true };
            (known.events(), known.has_fired())
        } else {
            let disabled = r.flags.load(Ordering::Relaxed) & reg::DISABLED != 0;
            let user = r.events.load(Ordering::Relaxed);
            (user, disabled && user & ONESHOT != 0)
        };
        user == self.user && (fired || !self.fired)
    }
}

/// The registration as other processes that hold the connection have left it, if there are any.
pub(super) fn follow_others(w: &World, conn: &Conn, which: usize) {
    if let Some((_, half)) = conn.my_half(w)
        && half.users.load(Ordering::Acquire) > 1
        && let Some(known) = Known::of(half, which)
    {
        let _ = known.follow(&conn.sets[which], half, which);
    }
}

/// A registration is in no set any more.
pub(super) fn withdraw(half: &Half, which: usize) {
    half.set_events[which].store(0, Ordering::Relaxed);
}

/// Says what a registration is from now on: armed, or a one-shot one that has `fired`.
pub(super) fn publish(
    w: &World,
    set: &Set,
    half: &Half,
    which: usize,
    (events, data, fired): (u32, u64, bool),
) {
    let fired = if fired { FIRED } else { 0 };
    half.set_data[which].store(data, Ordering::Relaxed);
    if half.set_in[which].load(Ordering::Relaxed) != set.key {
        half.set_in[which].store(set.key, Ordering::Relaxed);
        half.set_told[which].store(0, Ordering::Relaxed);
    }
    edges::arms(w, set, half, which);
    // Release: see `Known::of`.
    half.set_events[which].store(events & !FIRED | PRESENT | fired, Ordering::Release);
}

/// Whether there is something to tell of an armed registration: [`Known::claims`] without a claim.
pub(super) fn is_due(half: &Half, which: usize, known: Known<'_>, what: &Due) -> bool {
    let by_edges = known.events() & (ET | ONESHOT) == ET;
    what.events != 0 && !known.has_fired() && (!by_edges || edges::are_more(half, which, what))
}

/// A one-shot registration of a set that is this process's alone, as far as it knows, is about to be told. `false`: another
/// process has done so.
pub(super) fn fires(w: &World, set: &Set, half: &Half, which: usize) -> bool {
    let fired = half.set_events[which].fetch_or(FIRED, Ordering::AcqRel) & FIRED != 0;
    // Others say that they are there before they claim anything.
    !(fired && (set.may_be_shared(half) || set.is_used_elsewhere(w)))
}

/// Whether a registration of ours may have this place: where other processes hold the connection too, it may be that of a
/// set of theirs, of which we know nothing any more.
pub(super) fn is_free(w: &World, conn: &Conn, which: usize) -> bool {
    conn.sets[which].set.load(Ordering::Relaxed) == 0
        && conn.my_half(w).is_none_or(|(_, half)| {
            half.users.load(Ordering::Acquire) <= 1 || Known::of(half, which).is_none()
        })
}

/// Whether a one-shot registration that the kernel knows as the program made it may have been told. One that asks for the
/// end alone has not been where there is no end yet, and would not be: what the peer says of its end it says in memory.
pub(super) fn may_have_fired(conn: &Conn, r: &Registration) -> bool {
    let fd = conn.fd.load(Ordering::Relaxed).cast_signed();
    let mut now = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
    r.events.load(Ordering::Relaxed) & !(RDHUP | HUP | ERR | ET | ONESHOT) != 0
        || call::poll(&mut now, 0) != Ok(0)
}

impl Set {
    /// Whether another process may have changed what is known of a connection in this set, which need not be noticed yet.
    pub(super) fn may_be_shared(&self, mine: &Half) -> bool {
        self.forked.load(Ordering::Relaxed)
            || mine.flags.load(Ordering::Relaxed) & flag::SHARED != 0
    }

    /// The same, and it is noticed.
    pub(super) fn is_shared(&'static self, w: &'static World, mine: &Half) -> bool {
        let shared = self.may_be_shared(mine);
        if shared {
            self.notice_sharing(w);
        }
        shared
    }

    /// Whether another process has said that it uses this set too.
    pub(super) fn is_used_elsewhere(&self, w: &World) -> bool {
        match self.common.load(Ordering::Relaxed) {
            0 => false,
            UNKNOWN => true,
            number => {
                w.set_word(number - 1).is_some_and(|word| word.load(Ordering::Acquire) & USED != 0)
            }
        }
    }

    /// Before a fork: the other process can say that it uses the set.
    pub(super) fn may_be_used_elsewhere(&self, w: &World) {
        if self.common.load(Ordering::Relaxed) == 0 {
            let number = w.take_set_word().map_or(UNKNOWN, |number| number + 1);
            self.common.store(number, Ordering::Relaxed);
            self.common_by.store(call::getpid(), Ordering::Relaxed);
        }
    }

    /// The set is closed. (If another process goes on with it, and says so in a word that serves another set by then, that
    /// one is looked at with more care than it needs.)
    pub(super) fn gives_back_what_was_common(&self, w: &World) {
        let number = self.common.swap(0, Ordering::Relaxed);
        if number != 0
            && number != UNKNOWN
            && self.common_by.load(Ordering::Relaxed) == call::getpid()
            && let Some(word) = w.set_word(number - 1)
        {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// This process uses a set that it has inherited.
    pub(super) fn is_used_here_too(&self, w: &World) {
        if let Some(word) = self.common_word(w) {
            let unless_given_back = |word: u32| (word != 0).then_some(word | USED);
            let _ = word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, unless_given_back);
        }
        // Either the other process sees that, or we see how its connections are armed. Pairs with `word_as_wanted`.
        full_fence();
    }

    /// Whether it is noted what is told of edges: another process may have the set since a fork, and begin to use it.
    #[inline]
    pub(super) fn tracks(&self, w: &World) -> bool {
        self.begun != w.begun.load(Ordering::Relaxed)
            || self.born != w.forks.load(Ordering::Relaxed)
            || self.forked.load(Ordering::Relaxed)
    }

    /// Whether what the kernel disarms may have to be armed by a process that has no descriptor for that.
    pub(super) fn lets_others_arm(&self, w: &World, mine: &Half) -> bool {
        self.tracks(w) || self.may_be_shared(mine)
    }

    /// Something in a set that processes share has something to tell, of which the kernel need not know.
    pub(super) fn has_changed(&self, w: &World) {
        if let Some(word) = self.common_word(w) {
            // 0: it was given back.
            let more = |word: u32| (word != 0).then(|| word & USED | word.wrapping_add(2) & !USED);
            let Ok(before) = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) else {
                return;
            };
            let before = before & !USED;
            let after = before.wrapping_add(2) & !USED;
            // What we have changed ourselves we need not look for.
            let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.changes.compare_exchange(before, after, order, failed);
        }
    }

    /// Whether others have said so since this was asked last. `kicked`: somebody has been woken for that, or for something
    /// else.
    pub(super) fn was_changed_by_others(&self, w: &World, kicked: bool) -> bool {
        if self.common.load(Ordering::Relaxed) == UNKNOWN {
            return kicked;
        }
        self.common_word(w).is_some_and(|word| {
            let now = word.load(Ordering::Acquire) & !USED;
            self.changes.swap(now, Ordering::Relaxed) != now
        })
    }

    fn common_word<'w>(&self, w: &'w World) -> Option<&'w AtomicU32> {
        let number = self.common.load(Ordering::Relaxed);
        if number == UNKNOWN { None } else { w.set_word(number.checked_sub(1)?) }
    }
}
