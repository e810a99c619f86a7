//! What time has passed, by timestamps of several interfaces, each of which may go back.

/// Time that goes back by more than this was set anew; by less, packets were not in order. And a clock that leaps ahead by
/// more has to say so twice, or another has to say the same: all that is in progress would be too late.
const SET_ANEW_NS: u64 = 120_000_000_000;
/// Clocks that are told apart. Whatever is counted from there on shares the last one.
const CLOCKS_MAX: usize = 1 << 16;

/// Nanoseconds that have passed, whatever each interface calls the present.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    clocks: Vec<Option<Clock>>,
    /// The clock that last was far ahead, until it is known whether it was wrong; and what it said.
    leap: Option<(usize, u64)>,
    passed: u64,
    /// What is thought to have passed besides.
    added: u64,
    /// When a fragment last came.
    fragment: u64,
}

impl Clocks {
    /// When a packet has come, by its interface and its timestamp. Never goes back.
    pub(super) fn at(&mut self, interface: u32, ns: u64) -> u64 {
        let at = Self::index(interface);
        if at >= self.clocks.len() {
            self.clocks.resize(at + 1, None);
        }
        // Most interfaces have one clock, and a pause of all of them ends with a packet of each.
        let same = self.leap.filter(|(_, leap)| leap.abs_diff(ns) <= SET_ANEW_NS);
        if let Some((other, leap)) = same
            && let Some(clock) = &mut self.clocks[other]
        {
            // Its own word is the second one as well.
            if other != at {
                self.passed = self.passed.max(clock.at(leap));
            }
            self.leap = None;
        }
        let clock = self.clocks[at].get_or_insert_with(|| Clock::new(ns, self.passed));
        clock.leap = same.map(|(_, leap)| leap).or(clock.leap);
        self.passed = self.passed.max(clock.at(ns));
        if clock.doubts() {
            self.leap = Some((at, ns));
        } else if self.leap.is_some_and(|(other, _)| other == at) {
            self.leap = None;
        }
        self.passed()
    }

    /// Whether the latest timestamp of an interface is one that another has to confirm.
    pub(super) fn doubts(&self, interface: u32) -> bool {
        let clock = self.clocks.get(Self::index(interface)).copied().flatten();
        clock.is_some_and(Clock::doubts)
    }

    /// Where the clock of an interface is.
    fn index(interface: u32) -> usize {
        usize::try_from(interface).map_or(CLOCKS_MAX - 1, |at| at.min(CLOCKS_MAX - 1))
    }

    /// What has passed until now.
    pub(super) const fn passed(&self) -> u64 {
        self.passed.saturating_add(self.added)
    }

    /// When a fragment has come, of which the timestamp says that so much had passed: so much after the one before at least,
    /// whatever it says. Never goes back either.
    pub(super) fn fragment(&mut self, at: u64, least_ns: u64) -> u64 {
        let at = at.max(self.fragment);
        let missing = self.fragment.saturating_add(least_ns).saturating_sub(at);
        self.added = self.added.saturating_add(missing);
        self.fragment = at.saturating_add(missing);
        self.fragment
    }

    /// From now on interfaces are others.
    pub(super) fn forget(&mut self) {
        self.clocks.clear();
        self.leap = None;
    }
}

/// Where a clock stood.
#[derive(Clone, Copy, Debug)]
struct Stand {
    /// The latest timestamp.
    latest: u64,
    /// What had passed then.
    passed: u64,
}

/// The clock of one interface.
#[derive(Clone, Copy, Debug)]
struct Clock {
    now: Stand,
    /// Where it stood before it was set back, for it may return: then one packet had a wrong time.
    before: Option<Stand>,
    /// The latest timestamp, if that was far ahead: the next one says whether it was wrong.
    leap: Option<u64>,
}

impl Clock {
    /// One that stands at `ns` when so much has passed.
    const fn new(ns: u64, passed: u64) -> Self {
        Self { now: Stand { latest: ns, passed }, before: None, leap: None }
    }

    fn at(&mut self, ns: u64) -> u64 {
        let Stand { latest, passed } = self.now;
        let step = ns.saturating_sub(latest);
        if !self.may_be(ns) {
            return passed;
        }
        if let Some(before) = self.before
            && ns >= before.latest.saturating_sub(SET_ANEW_NS)
        {
            self.before = None;
            // Who walks all the way has not been away. To return is a leap, which counts for nothing itself.
            if step > passed - before.passed {
                let since = before.passed.saturating_add(ns.saturating_sub(before.latest));
                self.now = Stand { latest: before.latest.max(ns), passed: passed.max(since) };
                return self.now.passed;
            }
        }
        if step > 0 {
            self.now = Stand { latest: ns, passed: passed.saturating_add(step) };
        } else if latest - ns > SET_ANEW_NS {
            self.before.get_or_insert(self.now);
            self.now.latest = ns;
        }
        self.now.passed
    }

    /// Whether it stands far ahead of where it is taken to be.
    fn doubts(self) -> bool {
        self.leap.is_some_and(|leap| leap > self.now.latest)
    }

    /// Whether it is about as late as it was, or stood before it was set back; or was as far ahead a moment ago.
    fn may_be(&mut self, ns: u64) -> bool {
        let returns = self.before.is_some_and(|before| before.latest.abs_diff(ns) <= SET_ANEW_NS);
        let is_far = ns.saturating_sub(self.now.latest) > SET_ANEW_NS && !returns;
        let leap = if is_far { self.leap.replace(ns) } else { self.leap.take() };
        !is_far || leap.is_some_and(|leap| ns.saturating_add(SET_ANEW_NS) >= leap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// What has passed after each timestamp of each interface, in seconds.
    fn passed<const N: usize>(stamps: [(u32, u64); N]) -> [u64; N] {
        let mut clocks = Clocks::default();
        stamps.map(|(interface, seconds)| clocks.at(interface, seconds * SECOND) / SECOND)
    }

    fn alone<const N: usize>(stamps: [u64; N]) -> [u64; N] {
        passed(stamps.map(|seconds| (0, seconds)))
    }

    #[test]
    fn time_that_goes_back_breaks_nothing() {
        assert_eq!(alone([100, 110, 105, 112]), [0, 10, 10, 12]);
        // Set anew: it goes on from there.
        assert_eq!(alone([1_000_000, 50, 51, 55]), [0, 0, 1, 5]);
        let mut clocks = Clocks::default();
        assert_eq!(clocks.at(0, u64::MAX), 0);
        assert_eq!(clocks.at(0, 0), 0);
        assert_eq!(clocks.at(u32::MAX, 5), 0);
        assert_eq!([(); 2].map(|()| clocks.at(u32::MAX, u64::MAX)), [0, u64::MAX - 5]);
        assert_eq!(clocks.at(1, 7), u64::MAX - 5);
        assert_eq!([(); 2].map(|()| clocks.at(1, u64::MAX)), [u64::MAX - 5, u64::MAX]);
    }

    #[test]
    fn a_leap_ahead_counts_when_the_next_timestamp_says_so_too() {
        assert_eq!(alone([1000, 9000, 1001, 1002]), [0, 0, 1, 2]);
        assert_eq!(alone([1000, 9000, 1001, 9001, 1002]), [0, 0, 1, 1, 2]);
        assert_eq!(alone([1000, 9000, 9001, 9002]), [0, 0, 8001, 8002]);
        assert_eq!(alone([1000, 9000, 8999, 9001]), [0, 0, 7999, 8001]);
        assert_eq!(alone([1000, 9000, 5000, 5001]), [0, 0, 0, 4001]);
        // Where packets are few, each is far ahead.
        assert_eq!(alone([1000, 1300, 1600, 1900]), [0, 0, 600, 900]);
        // What is no leap counts at once.
        assert_eq!(alone([1000, 1120, 1001]), [0, 120, 120]);
        assert_eq!(passed([(0, 1000), (0, 9000), (1, 9500), (0, 1001)]), [0, 0, 0, 1]);
        // Also of one that was set back, and of one that returns.
        assert_eq!(alone([1000, 0, 500, 1, 2]), [0, 0, 0, 1, 2]);
        assert_eq!(alone([1000, 0, 9000, 1001]), [0, 0, 0, 1]);
    }

    #[test]
    fn a_leap_ahead_counts_when_another_interface_says_the_same() {
        // One that is new begins after it.
        let stamps = [(0, 1000), (0, 9000), (1, 9001), (1, 9003), (0, 9004)];
        assert_eq!(passed(stamps), [0, 0, 8000, 8002, 8004]);
        // Also if others come between, and if it leaps itself.
        let stamps = [(0, 1000), (1, 1000), (2, 5), (0, 9000), (2, 6), (1, 9000), (1, 9001)];
        assert_eq!(passed(stamps), [0, 0, 0, 0, 1, 8000, 8001]);
        // Not if it was wrong by then.
        let stamps = [(0, 1000), (1, 1000), (0, 9000), (0, 1001), (1, 9000), (1, 1002)];
        assert_eq!(passed(stamps), [0, 0, 0, 1, 1, 2]);
    }

    #[test]
    fn a_leap_is_in_doubt_until_the_next_timestamp_of_its_interface() {
        let mut clocks = Clocks::default();
        let mut doubts = |interface, seconds| {
            clocks.at(interface, seconds * SECOND);
            [0, 1].map(|interface| clocks.doubts(interface))
        };
        assert_eq!(doubts(0, 1000), [false; 2]);
        assert_eq!(doubts(0, 9000), [true, false]);
        assert_eq!(doubts(1, 5), [true, false]);
        assert_eq!(doubts(1, 500), [true; 2]);
        assert_eq!(doubts(0, 9000), [false, true]);
        assert_eq!(doubts(1, 6), [false; 2]);
        // One that was just confirmed says of the next that it may be.
        assert_eq!(doubts(0, 9500), [false; 2]);
        assert_eq!(doubts(0, 9501), [false; 2]);
        assert_eq!(doubts(0, 9800), [true, false]);
    }

    #[test]
    fn fragments_may_be_so_far_apart_at_least() {
        let mut clocks = Clocks::default();
        let mut at = |ns, least| {
            let at = clocks.at(0, ns);
            clocks.fragment(at, least)
        };
        assert_eq!([at(100, 0), at(100, 5), at(100, 5), at(103, 5)], [0, 5, 10, 15]);
        assert_eq!(clocks.fragment(7, 0), 15);
        assert_eq!(clocks.passed(), 15, "what came before is not added");
        let mut at = |ns, least| {
            let at = clocks.at(0, ns);
            clocks.fragment(at, least)
        };
        // What passes anyway is not added.
        assert_eq!([at(113, 5), at(113, 0), at(114, 0)], [25, 25, 26]);
        assert_eq!(clocks.passed(), 26);
    }

    #[test]
    fn a_packet_with_a_wrong_time_does_not_make_time_pass() {
        assert_eq!(alone([1000, 0, 1001]), [0, 0, 1]);
        assert_eq!(alone([1000, 0, 0, 990, 1001]), [0, 0, 0, 0, 1]);
        assert_eq!(alone([1000, 0, 1001, 5, 1003, 1004]), [0, 0, 1, 1, 3, 4]);
        assert_eq!(alone([1000, 500, 0, 880, 1001]), [0, 0, 0, 0, 1]);
        // While it was away some time passed, and not what it leapt back.
        assert_eq!(alone([1000, 0, 7, 1002, 1003]), [0, 0, 7, 7, 8]);
    }

    #[test]
    fn a_clock_that_was_set_back_and_goes_on_may_pass_where_it_was() {
        let mut clocks = Clocks::default();
        clocks.at(0, 1000 * SECOND);
        for (passed, at) in (600..1200).enumerate() {
            assert_eq!(clocks.at(0, at * SECOND), passed as u64 * SECOND);
        }
    }

    #[test]
    fn clocks_of_interfaces_may_differ() {
        let stamps = [(0, 17_000), (1, 16_000), (0, 17_001), (1, 16_001), (2, 5), (1, 16_003)];
        assert_eq!(passed(stamps), [0, 0, 1, 1, 1, 3]);
        // Each begins where the others are, and the one that is ahead counts.
        assert_eq!(passed([(0, 100), (0, 110), (1, 5), (1, 8), (0, 112)]), [0, 10, 10, 13, 13]);
    }

    #[test]
    fn what_is_forgotten_has_passed_all_the_same() {
        let mut clocks = Clocks::default();
        assert_eq!([100, 105].map(|at| clocks.at(0, at * SECOND)), [0, 5 * SECOND]);
        clocks.forget();
        assert_eq!(clocks.at(0, 9000 * SECOND), 5 * SECOND);
        assert_eq!(clocks.passed(), 5 * SECOND);
    }
}
