//! Yields of a vector that has nothing to do and looks for more before it sleeps.
//!
//! Whoever wants its CPU may be whom it waits for: a guest, or the other host's engine where both are on one machine, which
//! give the CPU back as soon as they have said something. A program that computes does not. A yield to it takes as long as
//! the scheduler lets it run, some milliseconds, and what has come for the vector meanwhile lies there, where a sleeper
//! would have been woken ahead of that program. So after such a yield the vector sleeps instead for a while.

use local::spin::Crowd;
use sys::call;

/// A yield that took this long may have been to somebody who computes: less than one turn of the scheduler's.
const HOGGED_NS: u64 = 1_000_000;
/// What guests and peers may need for a message, nanoseconds: who was away for so long while they said as many has lost
/// nothing.
const MESSAGE_NS: u64 = 20_000;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Yields {
    crowd: Crowd,
    /// How long the last one took, nanoseconds, and how many messages there had been before: until the next look, which says
    /// what has happened meanwhile.
    last: Option<(u64, u64)>,
}

impl Yields {
    /// Whether it is worth while to look for more; else a vector that has nothing to do sleeps at once.
    pub(super) fn pay(&self) -> bool {
        !self.crowd.is_near()
    }

    /// Lets others run, after so many messages. Whether they took their time.
    pub(super) fn make(&mut self, done: u64) -> bool {
        let left = call::now_ns();
        call::sched_yield();
        let away_ns = call::now_ns().saturating_sub(left);
        self.took(away_ns, done);
        away_ns > HOGGED_NS
    }

    fn took(&mut self, away_ns: u64, done: u64) {
        self.last = Some((away_ns, done));
    }

    /// The look after the last one has taken in, at `now`, all that came meanwhile: so many messages there were by then.
    pub(super) fn judge(&mut self, done: u64, now: u64) {
        let Some((away_ns, before)) = self.last.take() else { return };
        let said = done.saturating_sub(before);
        if away_ns > HOGGED_NS.saturating_add(said.saturating_mul(MESSAGE_NS)) {
            self.crowd.met(now);
        } else if said > 0 {
            self.crowd.parted();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that took so long, and the look after it, at a time that does not come.
    fn after(away_ns: u64, said: u64) -> Yields {
        let mut yields = Yields::default();
        yields.took(away_ns, 7);
        yields.judge(said.saturating_add(7), u64::MAX / 2);
        yields
    }

    /// What came for a vector while a program computed had to wait for the end of its slice, each time.
    #[test]
    fn a_vector_does_not_yield_again_to_who_computes() {
        assert!(Yields::default().pay());
        assert!(!after(3_000_000, 0).pay());
        assert!(!after(3_000_000, 3).pay(), "little was said before that slice");
        assert!(after(3_000, 0).pay(), "nobody else, or somebody who slept again");
    }

    #[test]
    fn guests_who_say_much_meanwhile_are_yielded_to() {
        assert!(after(3_000_000, 200).pay());
        assert!(after(u64::MAX, u64::MAX).pay(), "any count");
        // Each is judged once.
        assert_eq!(after(3_000_000, 200).last, None);
    }
}
