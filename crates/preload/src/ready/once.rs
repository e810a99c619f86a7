//! What the processes that share a set know of a registration together. It is in the half, beside the connection: what was
//! asked for last, by whichever of them, and that a one-shot registration has fired, so that one of them tells it, and it
//! is armed for all of them by whoever arms it.

use super::*;

/// Bit of [`Half::set_events`]: the registration is in a set. No event has this number.
const PRESENT: u32 = 1 << 25;
/// Bit of [`Half::set_events`]: the one-shot registration has fired, and was not armed again. No event has this number.
const FIRED: u32 = 1 << 26;

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
        self.seen & FIRED != 0
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

    /// Whether it is as it was when we looked.
    pub(super) fn stands(self) -> bool {
        self.word.load(Ordering::Acquire) == self.seen
    }

    /// This process has it as the others do.
    pub(super) fn follow(self, r: &Registration) {
        let own = r.events.load(Ordering::Relaxed);
        if own != self.events() {
            // Not over what another thread of ours asks for at this moment: it says so in the half first.
            let _ =
                r.events.compare_exchange(own, self.events(), Ordering::Relaxed, Ordering::Relaxed);
        }
        if r.data.load(Ordering::Relaxed) != self.data {
            r.data.store(self.data, Ordering::Relaxed);
        }
        if self.has_fired() {
            r.flags.fetch_or(reg::DISABLED, Ordering::Relaxed);
        } else if r.flags.load(Ordering::Relaxed) & reg::DISABLED != 0 {
            r.flags.fetch_and(!reg::DISABLED, Ordering::Relaxed);
        }
    }
}

/// Says what a registration is from now on: armed, or a one-shot one that has `fired`.
pub(super) fn publish(half: &Half, which: usize, events: u32, data: u64, fired: bool) {
    let fired = if fired { FIRED } else { 0 };
    half.set_data[which].store(data, Ordering::Relaxed);
    // Release: see `Known::of`.
    half.set_events[which].store(events & !FIRED | PRESENT | fired, Ordering::Release);
}

/// A one-shot registration of a set that is this process's alone was told.
pub(super) fn fired(half: &Half, which: usize) {
    half.set_events[which].fetch_or(FIRED, Ordering::AcqRel);
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
    /// The kernel has told of a connection, and there is nothing for the program in it.
    pub(super) fn says_nothing(
        &self,
        w: &'static World,
        conn: &'static Conn,
        which: usize,
        e: &Ends,
        known: Known<'_>,
    ) {
        let was_stale = shared::quiet(conn, e);
        let user = known.events();
        if user & ONESHOT != 0 {
            // The kernel has disarmed it, and the program has had no event yet. If another process fires it meanwhile, what
            // the kernel says of it next is for nobody; if one changes it, the kernel must have what that one asked for.
            let mut known = known;
            for _ in 0..CHANGES_MAX {
                known.follow(&conn.sets[which]);
                let _ = register(w, self, conn, which);
                match Known::of(e.mine, which) {
                    Some(now) if !known.stands() && !now.has_fired() => known = now,
                    _ => break,
                }
            }
        }
        if !was_stale && user & (ET | ONESHOT) != ET && user & (OUT | WRNORM) == 0 {
            // It will say the same at once. (Who waits for room gets it by looking.)
            self.has_kept_something();
        }
    }
}

/// Most changes of a registration by others that are followed one after the other.
const CHANGES_MAX: usize = 8;
