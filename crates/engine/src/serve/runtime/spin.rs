//! Whether to look for work for a while before sleeping.
//!
//! A core that sleeps is woken by an interrupt, which in a virtual machine takes 30 us and more; a client that asks
//! for one thing after the other waits for that each time. Looking finds what comes within the limit without
//! it, and costs a core for that long when nothing does. So it is done only after several waits in a row that
//! looking would have ended, and not by a core that others want.

use std::time::Duration;

/// Waits that looking would have ended, until it is done; twice as many are remembered.
const BEGIN: u8 = 4;

/// What a loop has learned from its last waits.
#[derive(Debug)]
pub(super) struct Habit {
    /// The longest that it looks.
    most: Duration,
    score: u8,
}

impl Habit {
    /// One that has learned nothing. With a limit of zero it never looks.
    pub(super) fn new(most: Duration) -> Self {
        Self { most, score: 0 }
    }

    /// How long to look before the next sleep, if at all.
    pub(super) fn look(&self) -> Option<Duration> {
        (self.score >= BEGIN && !self.most.is_zero()).then_some(self.most)
    }

    /// Looking has found something.
    pub(super) fn found(&mut self) {
        self.score = (self.score + 1).min(2 * BEGIN);
    }

    /// Looking has found nothing. Once that may happen; twice in a row it is given up.
    pub(super) fn in_vain(&mut self) {
        self.score = self.score.saturating_sub(BEGIN);
    }

    /// Somebody else has had the core meanwhile, and may want it again.
    pub(super) fn in_the_way(&mut self) {
        self.score = 0;
    }

    /// It has slept without looking, for so long. Half of that may have been the waking up.
    pub(super) fn slept(&mut self, time: Duration) {
        if time <= 2 * self.most {
            // As long as it sleeps there is no more to learn than that it need not.
            self.score = (self.score + 1).min(BEGIN);
        } else {
            self.score = self.score.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_micros(50);
    const SHORT: Duration = Duration::from_micros(90);
    const LONG: Duration = Duration::from_millis(1);

    fn after(sleeps: &[Duration]) -> Habit {
        let mut habit = Habit::new(MOST);
        sleeps.iter().for_each(|time| habit.slept(*time));
        habit
    }

    #[test]
    fn it_looks_when_that_would_have_found_something_some_times() {
        assert_eq!(after(&[]).look(), None);
        assert_eq!(after(&[SHORT; 3]).look(), None);
        assert_eq!(after(&[SHORT; 4]).look(), Some(MOST));
        assert_eq!(after(&[LONG; 100]).look(), None);
        assert_eq!(after(&[SHORT, LONG].repeat(50)).look(), None, "half of them is too few");
    }

    #[test]
    fn one_long_wait_among_short_ones_is_forgiven_and_two_are_not() {
        let mut habit = after(&[SHORT; 4]);
        (0..4).for_each(|_| habit.found());
        habit.in_vain();
        assert_eq!(habit.look(), Some(MOST));
        habit.in_vain();
        assert_eq!(habit.look(), None);
    }

    #[test]
    fn at_most_a_fifth_of_waits_is_looked_at_in_vain() {
        // What comes just too late for it, each time.
        let mut habit = Habit::new(MOST);
        let mut in_vain = 0;
        for _ in 0..1000 {
            match habit.look() {
                Some(_) => {
                    in_vain += 1;
                    habit.in_vain();
                }
                None => habit.slept(SHORT),
            }
        }
        assert!(in_vain <= 200, "{in_vain}");
    }

    #[test]
    fn who_is_in_the_way_begins_anew() {
        let mut habit = after(&[SHORT; 4]);
        (0..4).for_each(|_| habit.found());
        habit.in_the_way();
        assert_eq!(habit.look(), None);
        (0..3).for_each(|_| habit.slept(SHORT));
        assert_eq!(habit.look(), None);
    }

    #[test]
    fn with_no_time_it_never_looks() {
        let mut habit = Habit::new(Duration::ZERO);
        (0..10).for_each(|_| habit.slept(Duration::ZERO));
        assert_eq!(habit.look(), None);
    }
}
