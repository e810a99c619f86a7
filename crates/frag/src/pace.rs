//! How datagrams have gone of late: what to expect of the next ones.

/// A longer wait than this says nothing of the pace of fragments.
const GAP_MAX_NS: u64 = 1_000_000_000;

/// Fragments of a long datagram.
const LONG: u64 = 24;

/// How datagrams have gone of late.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Smoothed memory of completed datagrams, bytes; 0: none yet.
    pub(crate) cost: u64,
    /// Smoothed time between two fragments of a datagram, nanoseconds times 64.
    gap_64: u64,
    /// Smoothed number of fragments of completed datagrams, times 8; 0: none yet.
    fragments_8: u64,
}

impl Pace {
    pub(crate) fn completed(&mut self, cost: u64, fragments: u64) {
        self.fragments_8 = self.fragments_8 - self.fragments_8 / 8 + fragments;
        if self.cost == 0 {
            self.cost = cost;
        } else {
            self.cost = (self.cost * 7 + cost).div_ceil(8);
        }
    }

    #[inline]
    pub(crate) fn waited(&mut self, ns: u64) {
        let ns = ns.min(GAP_MAX_NS);
        self.gap_64 = self.gap_64 - self.gap_64 / 64 + ns;
    }

    /// Whether datagrams are long, as far as one can tell.
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.fragments_8 == 0 || self.fragments_8 >= LONG * 8
    }

    pub(crate) fn gap(&self) -> u64 {
        self.gap_64 / 64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn whether_datagrams_are_long_is_said_by_those_of_late() {
        let mut pace = Pace::default();
        assert!(pace.is_long(), "nothing is known");
        for (fragments, is_long) in [(2, false), (45, true), (3, false), (1024, true), (8, false)] {
            (0..40).for_each(|_| pace.completed(1, fragments));
            assert_eq!(pace.is_long(), is_long, "{fragments}");
        }
    }
}
