//! Registrations that stay in the kernel under our tag. The kernel changes one under the number only that it was made
//! under; where that is another file's by the time the connection goes back to TCP, what the program registered cannot be
//! given back. It is remembered here for as long as the set lives, since the kernel forgets it with the file alone, which
//! may outlive the connection as this process knows it (a copy that was passed on).

use std::collections::VecDeque;

use super::*;

/// Most that a set remembers; the oldest go first.
const LEFT_MAX: usize = 1024;

/// Bit of [`Set::left`]: something that was left behind has told of what nobody asked for, since the last sleep.
const MUTE: u32 = 1 << 31;
/// How long a sleep is put off then.
const NAP_NS: u64 = 1_000_000;
const NAP_MS: c_int = 1;

/// The program has itself registered data that looks like a tag of ours.
static LOOKS_ALIKE: AtomicBool = AtomicBool::new(false);

/// See [`LOOKS_ALIKE`].
pub(super) fn looks_alike() {
    LOOKS_ALIKE.store(true, Ordering::Relaxed);
}

/// Whether a tag is one of ours that leads nowhere any more: no program may be given that for its data.
pub(super) fn is_nobodys(tag: u64) -> bool {
    tag & TAG_MASK == TAG && !LOOKS_ALIKE.load(Ordering::Relaxed)
}

/// What the program registered, and the tag that it got from us.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leftover {
    tag: u64,
    events: u32,
    data: u64,
    /// It was one-shot, and was told.
    fired: bool,
}

impl Set {
    /// The kernel goes on to tell of this registration under our tag.
    pub(super) fn leave_behind(&self, w: &World, conn: &Conn, which: usize) {
        let r = &conn.sets[which];
        let (Some(tag), Some(mut members)) = (tag_of(w, conn, which), self.members.lock()) else {
            return;
        };
        let (events, data) = (r.events.load(Ordering::Relaxed), r.data.load(Ordering::Relaxed));
        members.leftovers.retain(|left| left.tag != tag);
        if members.leftovers.len() >= LEFT_MAX {
            members.leftovers.pop_front();
        }
        let fired = events & ONESHOT != 0 && r.flags.load(Ordering::Relaxed) & reg::DISABLED != 0;
        members.leftovers.push_back(Leftover { tag, events, data, fired });
        self.count_left(&members.leftovers);
    }

    /// Under the lock of what it counts.
    fn count_left(&self, leftovers: &VecDeque<Leftover>) {
        let n = u32::try_from(leftovers.len()).unwrap_or(u32::MAX);
        self.left.store(n, Ordering::Release);
    }

    /// An event of such a registration goes to the program as the kernel says it. `false`: it is none.
    #[inline]
    pub(super) fn tells_what_was_left(&self, tag: u64, mask: u32, out: &mut Out<'_>) -> bool {
        tag & TAG_MASK == TAG
            && self.left.load(Ordering::Acquire) != 0
            && self.tells_it(tag, mask, out)
    }

    /// Another registration gets the tag: generations come round.
    pub(super) fn is_given_out(&self, tag: u64) {
        let members = || {
            // A handler must not wait for what it has interrupted.
            if handler::may_run() { self.members.try_lock() } else { self.members.lock() }
        };
        if self.left.load(Ordering::Acquire) != 0
            && let Some(mut members) = members()
        {
            members.leftovers.retain(|left| left.tag != tag);
            self.count_left(&members.leftovers);
        }
    }

    #[cold]
    fn tells_it(&self, tag: u64, mask: u32, out: &mut Out<'_>) -> bool {
        let Some(mut members) = self.members.lock() else { return false };
        let Some(left) = members.leftovers.iter_mut().find(|left| left.tag == tag) else {
            return false;
        };
        let what = if left.fired { 0 } else { mask & (left.events | ERR | HUP) };
        if what != 0 {
            // The kernel may have it as edge triggered: see `kernel_events`.
            left.fired = left.events & ONESHOT != 0;
            out.push(what, left.data);
            return true;
        }
        // What we had asked for is more than the program did, and the kernel says it at each look for as long as it is so.
        self.has_kept_something();
        true
    }

    /// See [`MUTE`].
    pub(super) fn has_kept_something(&self) {
        self.left.fetch_or(MUTE, Ordering::Relaxed);
    }

    /// Who is about to sleep would be woken at once by what was kept from the program: it must not take a core for that.
    #[inline]
    pub(super) fn is_in_no_hurry(&self, left: Option<u64>) {
        if self.left.load(Ordering::Relaxed) & MUTE != 0 {
            self.left.fetch_and(!MUTE, Ordering::Relaxed);
            if left.is_none_or(|left| left > NAP_NS) {
                let _ = call::poll(&mut [], NAP_MS);
            }
        }
    }
}
