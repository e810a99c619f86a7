//! Naps of event loops: who waits on a warm set sleeps by the futex of the set's own word before it sleeps in the kernel. See
//! ADR 28.

use local::conn::Naps;

use super::*;
use crate::nap::{self, Nap};
use crate::remains;

/// What sleeps on a set have taught.
#[derive(Default)]
pub(super) struct SetNaps {
    /// Whether peers end them.
    naps: Naps,
    /// Waits that have to come yet without a word of the kernel's, before the next nap.
    without: AtomicU32,
    /// How many there will have to be, less [`CALM`], when it has said something next.
    more: AtomicU32,
    /// When the last nap was over that nobody has ended, nanoseconds. 0: one of which nothing is to be learnt any more.
    late: AtomicU64,
}

/// Waits in a row without a word of the kernel's, before the next nap.
const CALM: u32 = 64;
/// The same where such a word has had to wait for the end of a nap: eight times as many for each, up to so many.
const CALM_MAX: u32 = 1 << 16;
/// Which part of the longest nap of who waits for one connection alone: an event of which only the kernel knows is late by
/// that at most, once in so many waits.
const PART: u64 = 5;
/// A nap that could last no longer than this is not taken, nanoseconds.
const SHORTEST_NS: u64 = 500_000;
/// What the kernel says so soon after a nap has been there before, nanoseconds.
const SOON_NS: u64 = 50_000;

impl SetNaps {
    /// The kernel had something to say that no peer can, or will.
    pub(super) fn kernel_told(&self) {
        let more = self.more.load(Ordering::Relaxed);
        let late = self.late.swap(0, Ordering::Relaxed);
        if late != 0 && call::now_ns().saturating_sub(late) < SOON_NS {
            self.more.store(((more + CALM) * 8).min(CALM_MAX), Ordering::Relaxed);
        }
        // SeqCst: either who is about to nap sees it, or we see that it naps. Pairs with `Set::nap`.
        self.without.store(CALM + more, Ordering::SeqCst);
    }

    /// A connection was attached: what the kernel has said before may have been of that one. Unless that was believed before,
    /// and something else had to wait for the end of a nap.
    pub(super) fn attached(&self) {
        if self.more.load(Ordering::Relaxed) == 0 {
            self.without.store(0, Ordering::Relaxed);
        }
    }

    fn is_disturbed(&self) -> bool {
        self.without.load(Ordering::SeqCst) > 0
    }

    /// Whether this wait is to begin with a nap.
    fn pay(&self) -> bool {
        let without = self.without.load(Ordering::Relaxed);
        if without > 0 {
            // Another thread may say more at the same time.
            let less = without - 1;
            let (set, fail) = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.without.compare_exchange(without, less, set, fail);
            return false;
        }
        self.naps.pay()
    }

    fn ended(&self, late: bool) {
        self.naps.ended(late);
        self.late.store(if late { call::now_ns() } else { 0 }, Ordering::Relaxed);
    }
}

impl Set {
    /// Sleeps until a peer of one of the connections does something, or not for long.
    pub(super) fn nap(&'static self, w: &'static World, left: Option<u64>) -> Nap {
        let longest = nap::longest_ns(w) / PART;
        let ns = left.map_or(longest, |left| longest.min(left / 2));
        if ns < SHORTEST_NS || !remains::may_make_sockets() || !self.naps.pay() {
            return Nap::Over;
        }
        // No other thread waits, and no other process: each connection has the word of this set.
        let number = self.waiter.load(Ordering::Relaxed).checked_sub(1);
        let Some((number, word)) =
            number.filter(|k| w.is_own_waiter(*k)).and_then(|k| Some((k, w.waiter(k)?)))
        else {
            return Nap::Over;
        };
        if self.is_cold() || self.ask_for_room(w) || !self.is_told_by_memory(number) {
            return Nap::Over;
        }
        nap::cancelled();
        let ns = nap::of_about(ns);
        let seen = wait::nap(word);
        let asleep = Finally(|| wait::awake(word));
        if self.is_cold() || self.naps.is_disturbed() || self.any(w) {
            return Nap::Woken;
        }
        self.count_sleep(w);
        let ended = call::futex_nap(word, seen, ns);
        drop(asleep);
        nap::cancelled();
        match ended {
            Ok(()) | Err(libc::EAGAIN) => {
                self.naps.ended(false);
                Nap::Woken
            }
            Err(libc::EINTR) => Nap::Interrupted,
            Err(_) => {
                self.naps.ended(true);
                Nap::Over
            }
        }
    }

    /// Whether all that may become of our connections is told to the waiter of that number, in memory.
    fn is_told_by_memory(&self, number: u32) -> bool {
        let Some(members) = self.members.lock() else { return false };
        members.asleep == 0
            && members.offered.is_empty()
            && members.strangers.is_empty()
            && members.all_wake(number)
    }

    /// Has who naps on this set look again. What it is to see has been done.
    pub(super) fn rouse(&self, w: &World) {
        if let Some(number) = self.waiter.load(Ordering::Relaxed).checked_sub(1) {
            // Either we see that it naps, or it sees what was done. Pairs with `wait::nap`.
            full_fence();
            let _ = w.rouse(number);
        }
    }
}
