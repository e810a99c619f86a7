//! Naps of event loops: who waits on a warm set sleeps by the futex of the set's own word before it sleeps in the kernel. See
//! ADR 28.

use super::*;
use crate::sandbox;

impl Set {
    /// Sleeps until a peer of one of the connections does something, or not for long. `out`: what the kernel says then.
    pub(super) fn nap(
        &'static self,
        w: &'static World,
        out: &mut Out<'_>,
        left: Option<u64>,
    ) -> Nap {
        let ns = nap::longest_of_many(w, left);
        if ns == 0 || !sandbox::may_make_sockets() || !self.naps.pay() {
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
        let seen = wait::nap(word);
        let asleep = Finally(|| wait::awake_from(word, seen));
        if self.any(w) {
            return Nap::Woken;
        }
        // Once more: who has changed that since has ended no nap.
        if self.is_cold() || self.naps.is_disturbed() || !self.is_told_by_memory(number) {
            return Nap::Over;
        }
        self.count_sleep(w);
        let ended = call::futex_nap(word, seen, ns);
        drop(asleep);
        nap::cancelled();
        match ended {
            Ok(()) | Err(libc::EAGAIN) => {
                self.naps.ended(false);
                // Peers may end one nap after the other, and nobody else asks what the kernel knows.
                self.ask_kernel(w, out, 64);
                Nap::Woken
            }
            Err(libc::EINTR) => Nap::Interrupted,
            Err(_) => {
                self.naps.ended(true);
                Nap::Over
            }
        }
    }

    /// Somebody else has changed what there may be to tell of this set of which only the kernel knows.
    pub(super) fn disturb(&self, w: &World) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.naps.kernel_told();
            self.rouse(w);
        }
    }

    /// Whether all that may become of our connections is told to the waiter of that number, in memory.
    fn is_told_by_memory(&self, number: u32) -> bool {
        let Some(members) = self.members.lock() else { return false };
        members.asleep == 0
            && members.warm.len() <= SPUN_MAX
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

    /// Whether nobody has asked the kernel for so long that it may know of a socket that is not carried, or of a peer that was
    /// killed: connections that always have something would never let it. Looks at the clock now and then.
    pub(super) fn asks_by_itself(&self) -> bool {
        let waits = self.unasked.load(Ordering::Relaxed) + 1;
        let looks = waits >= LOOKS;
        self.unasked.store(if looks { 0 } else { waits }, Ordering::Relaxed);
        looks && call::now_ns() - self.asked.load(Ordering::Relaxed) > UNASKED_NS
    }
}

/// Waits before the clock is looked at, and how long the kernel need not be asked, nanoseconds.
const LOOKS: u32 = 64;
const UNASKED_NS: u64 = 1_000_000;
