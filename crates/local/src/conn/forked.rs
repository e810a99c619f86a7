//! Connections over a fork: who holds them after it, and what a child makes of calls in which other threads were, of
//! which it has none.

use sys::abi::SLOTS;
use sys::pids;
use sys::sync::fence;

use super::{AtomicU32, AtomicU64, Conn, Half, Ordering, Phase, Reason, World, call, flag};
use crate::holders;

/// Of `Conn::holders`: another process may hold it, and nobody counts.
const UNCOUNTED: u32 = u32::MAX;
/// Receives that wait for others to let go of a connection, and for how long more they do; then it stays on TCP. A parent
/// that closes its own descriptor after a fork does so while the child reads its first messages, unless it does not run.
const HELD_MAX: u32 = 64;
/// Nanoseconds.
const HELD_NS: u64 = 100_000_000;

/// Calls of one thread that are in the middle of something on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// That hold it open, because they may sleep.
    pub holding: u32,
    /// Receives of the kernel's that began before the attachment: [`Conn::receiving`].
    pub receiving: u32,
    /// Waits of the kernel's that take nothing: [`Conn::begins_to_wait`].
    pub polling: u32,
}

/// What a process that [leaves](Conn::leave) a connection is no longer counted in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Left {
    users: bool,
    holders: u32,
}

impl Conn {
    /// Before a fork: both processes will hold it. The caller waits after this while it [is being
    /// switched](Self::is_switching), and hands what this answers to [`Self::fork_prepare`].
    pub fn fork_begins(&self, w: &World) -> u32 {
        let has_half = self.half.load(Ordering::Acquire) != 0;
        let unmet = !has_half && matches!(self.phase(), Phase::Server | Phase::Busy);
        let [_, held] = &self.forking;
        held.store(0, Ordering::Relaxed);
        if self.holders.load(Ordering::Relaxed) != 0 || unmet {
            held.store(self.will_be_held(w), Ordering::Relaxed);
        }
        let counted = self.count_user(w, 0);
        // Either who switches sees that there will be another one, or we see that he switches.
        fence(Ordering::SeqCst);
        counted
    }

    /// See [`holders::count_half`].
    fn count_user(&self, w: &World, counted: u32) -> u32 {
        let number = holders::count_half(&self.half, counted, |number| {
            w.board.map.half_known(number - 1).users.fetch_add(1, Ordering::AcqRel);
            // What the other process will send by TCP before our direction switches we do not count.
            self.tx.doubt();
        });
        self.forking[0].store(number, Ordering::Relaxed);
        number
    }

    /// Answers what this has made of [`Self::holders`]: 0 if it was uncounted before.
    fn will_be_held(&self, w: &World) -> u32 {
        let before = self.holders.load(Ordering::Relaxed);
        if before == 0 {
            let found = w.common.words().and_then(|words| holders::found(words, &w.next_common));
            let number = found.and_then(|n| u32::try_from(n + 1).ok()).unwrap_or(UNCOUNTED);
            self.holders.store(number, Ordering::Relaxed);
        }
        let number = self.holders.load(Ordering::Relaxed);
        if let Some(word) = word(w, number) {
            holders::joins(word);
        }
        if before == UNCOUNTED { 0 } else { number }
    }

    /// Whether another thread is attaching it, or switching our direction.
    #[must_use]
    pub fn is_switching(&self) -> bool {
        self.phase() == Phase::Busy || self.tx.is_rising()
    }

    /// A connection of ours right before the fork, which may still [fail](Self::fork_failed). `begun`: what [`Self::fork_begins`] has answered.
    pub fn fork_prepare(&self, w: &World, begun: u32) {
        // It may have been attached meanwhile.
        let _ = self.count_user(w, begun);
    }

    /// There is no other process after all: takes back what [`Self::fork_begins`] and [`Self::fork_prepare`] have
    /// counted. Not to be called when another thread has forked since they were.
    pub fn fork_failed(&self, w: &World) {
        let [half, holders] = self.forking.each_ref().map(|word| word.swap(0, Ordering::Relaxed));
        if half != 0 && half == self.half.load(Ordering::Relaxed) {
            let one_less = |n: u32| (n > 1).then(|| n - 1);
            let users = &w.board.map.half_known(half - 1).users;
            let _ = users.fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_less);
        }
        if holders != 0 && holders == self.holders.load(Ordering::Relaxed) {
            match word(w, holders) {
                Some(word) => holders::leaves(word),
                None => self.holders.store(0, Ordering::Relaxed),
            }
        }
    }

    /// This process ends, or becomes another program, without closing what it has inherited.
    pub fn leave(&self, w: &World) -> Left {
        let mut left = Left { users: false, holders: self.holds_no_more(w) };
        if let Some((_, half)) = self.my_half(w)
            && is_inherited(w, half)
            && half.users.load(Ordering::Relaxed) > 1
        {
            half.users.fetch_sub(1, Ordering::AcqRel);
            left.users = true;
        }
        left
    }

    /// Whether [`Self::leave`] would do anything.
    #[must_use]
    pub fn is_held_with_others(&self, w: &World) -> bool {
        self.holders.load(Ordering::Relaxed) != 0
            || self.my_half(w).is_some_and(|(_, half)| is_inherited(w, half))
    }

    /// Whether another process may be in the middle of using it, whoever has made it.
    #[must_use]
    pub fn is_used_by_others(&self, w: &World) -> bool {
        self.holders.load(Ordering::Relaxed) != 0
            || self.my_half(w).is_some_and(|(_, half)| half.users.load(Ordering::Relaxed) > 1)
    }

    /// Whether the process that we were forked from holds it as well, and may sleep on it. How that one wants to be woken
    /// is not for us to take back.
    #[must_use]
    pub fn is_lent(&self, w: &World) -> bool {
        let lent = |half: &Half| half.users.load(Ordering::Relaxed) > 1 && is_inherited(w, half);
        self.my_half(w).is_some_and(|(_, half)| lent(half))
    }

    /// A set of this process watches it: whether only doorbells will do, because another process may wait for it as well.
    /// For an inherited connection it is a use as any other.
    #[must_use]
    pub fn is_watched_with_others(&self, w: &World) -> bool {
        let forks = w.forks.load(Ordering::Relaxed);
        if let Some((_, half)) = self.my_half(w)
            && self.half_forks.load(Ordering::Relaxed) != forks
            && self.is_used_after_fork(w, half)
        {
            // Whoever moves something first goes back to TCP: not in the middle of a change of a set.
            self.half_forks.store(forks.wrapping_sub(1), Ordering::Relaxed);
        }
        self.is_shared(w)
    }

    /// The process has not become another program after all.
    pub fn comes_back(&self, w: &World, left: Left) {
        if let Some((_, half)) = self.my_half(w).filter(|_| left.users) {
            half.users.fetch_add(1, Ordering::AcqRel);
        }
        if left.holders != 0 {
            let counted = word(w, left.holders).is_some_and(holders::comes_back);
            let number = if counted { left.holders } else { UNCOUNTED };
            self.holders.store(number, Ordering::Relaxed);
        }
    }

    /// This process will not use it any more. Answers which word has counted it.
    pub(super) fn holds_no_more(&self, w: &World) -> u32 {
        let number = self.holders.swap(0, Ordering::Relaxed);
        if let Some(word) = word(w, number) {
            holders::leaves(word);
        }
        number
    }

    /// Server, [`Phase::Busy`]: whether another process may hold it as well.
    pub(super) fn is_held_by_others(&self, w: &World) -> bool {
        // As in `is_alone`, for who counts only now.
        fence(Ordering::SeqCst);
        match self.holders.load(Ordering::Relaxed) {
            // Accepted by another thread while this one forked: nobody has counted.
            0 => self.half_forks.load(Ordering::Relaxed) != w.forks.load(Ordering::Relaxed),
            number => !word(w, number).is_some_and(holders::is_alone),
        }
    }

    /// Server: not now, perhaps when the others have let go of it. `data`: bytes have just arrived.
    pub(super) fn held_by_others<T>(&self, w: &World, data: bool) -> Result<Option<T>, Reason> {
        if !data || !self.has_waited() {
            return Ok(None);
        }
        // For people: the child of a server has no slot yet.
        let _ = w.board.ensure_slot();
        Err(Reason::Shared)
    }

    /// Whether who has just received once more has done so for so long that nobody lets go of the connection any more: as a
    /// server that others hold, or as the client of one.
    pub(super) fn has_waited(&self) -> bool {
        has_waited(&self.held, &self.held_until, call::now_ns)
    }

    /// Says so when this is the first use of an inherited connection: from now on doorbells only. A
    /// child that inherits connections and never touches them costs their owner nothing.
    #[inline]
    pub(super) fn note_fork(&'static self, w: &World, half: &Half) {
        if self.half_forks.load(Ordering::Relaxed) != w.forks.load(Ordering::Relaxed)
            && self.is_used_after_fork(w, half)
        {
            // Who is killed in the middle of a call would hold a lock for ever: nobody can know that he does not live.
            let fd = self.fd.load(Ordering::Relaxed).cast_signed();
            // For people, who are told why: a child has no slot yet.
            let _ = w.board.ensure_slot();
            if !self.demote(w, fd, Reason::Namespace) {
                self.thaw(w);
            }
        }
    }

    /// Answers whether it is not to be shared for long.
    #[cold]
    fn is_used_after_fork(&self, w: &World, half: &Half) -> bool {
        let is_shared = is_inherited(w, half) && half.users.load(Ordering::Relaxed) > 1;
        if is_shared {
            half.flags.fetch_or(flag::SHARED, Ordering::Relaxed);
            let was = Self::wait_word(half);
            self.arm_cold(w, half);
            if let Some((_, peer)) = self.halves(w) {
                self.end_own_naps(w, was, peer);
            }
        }
        self.half_forks.store(w.forks.load(Ordering::Relaxed), Ordering::Relaxed);
        is_shared && self.phase() == Phase::Attached && is_from_elsewhere(w, half)
    }

    /// To be called in a forked child, whose only thread is in these calls; descriptors are to be counted into
    /// [`Self::refs`] after this. What else waits or holds a lock does so in the parent: here nobody would ever end it,
    /// and the connection would stay open after its last descriptor, and full of doorbells that all leave to a sleeper.
    ///
    /// Who was attaching or switching it at that moment goes on in the parent: in vain, or so that it is seen in the half.
    ///
    /// Not touched is who sends by TCP, because the parent does so on the same socket: our direction must not switch
    /// before that has ended, which is in the memory that both share.
    pub fn forked(&self, calls: Calls) {
        let before = self.busy_from.load(Ordering::Relaxed);
        let restored = [Phase::Fresh, Phase::Server, Phase::Offered, Phase::Attached];
        // The engine is being asked to take it; the stand-in, if there will be one, is the parent's alone.
        let asked = (before == Phase::Asked as u32).then_some(Phase::Tcp);
        let now = self.phase.load(Ordering::Relaxed);
        if self.phase() == Phase::Busy && now != Phase::Busy as u32 {
            // About to stay on TCP.
            self.set_phase(Phase::Tcp);
        } else if let Some(phase) = restored.into_iter().find(|p| *p as u32 == before).or(asked) {
            let busy = Phase::Busy as u32;
            let (success, failure) = (Ordering::Release, Ordering::Relaxed);
            let _ = self.phase.compare_exchange(busy, phase as u32, success, failure);
        }
        self.tx.forked();
        self.refs.store(calls.holding, Ordering::Relaxed);
        self.inside.store(calls.holding, Ordering::Relaxed);
        self.in_kernel.store(calls.receiving, Ordering::Relaxed);
        self.in_poll.store(calls.polling, Ordering::Relaxed);
        self.counting.store(0, Ordering::Relaxed);
        self.ending.store(0, Ordering::Relaxed);
        self.numbered.store(0, Ordering::Relaxed);
        self.ends.word().store(0, Ordering::Relaxed);
        self.begun.word().store(0, Ordering::Relaxed);
    }
}

/// Whether who has just received once more has waited long enough for others: see [`HELD_MAX`]. The clock is read from
/// then on only.
fn has_waited(held: &AtomicU32, until: &AtomicU64, now: impl FnOnce() -> u64) -> bool {
    if held.fetch_add(1, Ordering::Relaxed) < HELD_MAX {
        return false;
    }
    let now = now();
    let limit = until.load(Ordering::Relaxed);
    if limit == 0 {
        until.store(now + HELD_NS, Ordering::Relaxed);
    }
    limit != 0 && now > limit
}

/// The word of that number.
fn word(w: &World, number: u32) -> Option<&AtomicU32> {
    let at = number.checked_sub(1).filter(|_| number != UNCOUNTED)?;
    w.common.words()?.get(at as usize)
}

/// Whether who has made a half has his number in another namespace than we have ours.
fn is_from_elsewhere(w: &World, half: &Half) -> bool {
    let slot = half.slot.load(Ordering::Relaxed);
    (slot as usize) < SLOTS && w.board.map.slot(slot).pids.load(Ordering::Relaxed) != pids::own()
}

/// Whether a half is that of the process that we were forked from.
fn is_inherited(w: &World, half: &Half) -> bool {
    half.slot.load(Ordering::Relaxed) != w.board.slot().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
