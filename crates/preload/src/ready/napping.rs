//! Naps of event loops: who waits on a warm set sleeps by the futex of the set's own word before it sleeps in the kernel. See
//! ADR 28.

use super::*;
use crate::nap::{PART, SHORTEST_NS};
use crate::remains;

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
