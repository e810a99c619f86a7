//! How datagrams have gone of late: what to expect of the next ones.

/// A longer wait than this says nothing of the pace of fragments.
const GAP_MAX_NS: u64 = 1_000_000_000;

/// How datagrams have gone of late.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Smoothed memory of completed datagrams, bytes; 0: none yet.
    pub(crate) cost: u64,
    /// Smoothed time between two fragments of a datagram, nanoseconds times 64.
    gap_64: u64,
}

impl Pace {
    pub(crate) fn completed(&mut self, cost: u64) {
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

    pub(crate) fn gap(&self) -> u64 {
        self.gap_64 / 64
    }
}
