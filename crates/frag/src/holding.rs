//! What a table has of memory, and what of that it is charged for.
//!
//! Memory that the fragments of datagrams hold is charged byte by byte. Beside it there is memory that waits to be
//! used again: free records, whose chunks are given back only whole, free blocks, the room for pieces that free records
//! keep, pages of the index. Of that an allowance is every table's, so that hundreds of them that have nothing to do
//! keep no memory from those that have; the rest is charged as well.

use crate::ledger::Lease;

/// See the module.
#[derive(Debug)]
pub(crate) struct Holding {
    held: u64,
    spare: u64,
    allowance: u64,
}

impl Holding {
    pub(crate) const fn new(allowance: u64) -> Self {
        Self { held: 0, spare: 0, allowance }
    }

    /// There is something spare from the beginning, of the allowance.
    pub(crate) const fn begin(&mut self, n: u64) {
        self.spare += n;
    }

    /// Bytes that datagrams hold.
    pub(crate) const fn held(&self) -> u64 {
        self.held
    }

    /// Bytes that nothing is in now.
    #[cfg(all(test, not(loom)))]
    pub(crate) const fn all_spare(&self) -> u64 {
        self.spare
    }

    /// Bytes that nothing is in now, as far as they are charged.
    pub(crate) const fn spare(&self) -> u64 {
        self.spare.saturating_sub(self.allowance)
    }

    const fn charged(&self) -> u64 {
        self.held + self.spare()
    }

    /// Charges what a change takes more. `false`: there is too little, and nothing is changed.
    fn change(&mut self, lease: &mut Lease, held: u64, spare: u64) -> bool {
        let next = Self { held, spare, ..*self };
        let there = lease.charge(next.charged().saturating_sub(self.charged()));
        if there {
            *self = next;
        }
        there
    }

    /// Gives back what a change takes less.
    #[inline]
    fn ease(&mut self, lease: &mut Lease, held: u64, spare: u64) {
        let before = self.charged();
        (self.held, self.spare) = (held, spare);
        debug_assert!(self.charged() <= before);
        lease.refund(before.saturating_sub(self.charged()));
    }

    /// Datagrams hold `n` bytes more. `false`: there are none.
    #[must_use]
    pub(crate) fn hold(&mut self, lease: &mut Lease, n: u64) -> bool {
        self.change(lease, self.held + n, self.spare)
    }

    /// The same, of bytes of which [`Lease::has`] said that they are there.
    #[inline(always)]
    pub(crate) fn spend(&mut self, lease: &mut Lease, n: u32) {
        lease.spend(n);
        self.held += u64::from(n);
    }

    /// A datagram has `n` bytes that are spare and holds `more` bytes: of both [`Lease::has`] said that they could be
    /// charged.
    #[inline(always)]
    pub(crate) fn occupy(&mut self, lease: &mut Lease, n: u32, more: u32) {
        let before = self.spare();
        self.held += u64::from(n) + u64::from(more);
        self.spare -= u64::from(n);
        // Those of the allowance are charged only now.
        let of_allowance = u64::from(n) - (before - self.spare());
        lease.spend(u32::try_from(of_allowance + u64::from(more)).unwrap_or(u32::MAX));
    }

    /// Datagrams hold `n` bytes less, of which `spare` stay here.
    #[inline]
    pub(crate) fn let_go(&mut self, lease: &mut Lease, n: u64, spare: u64) {
        self.ease(lease, self.held - n, self.spare + spare);
    }

    /// A datagram holds `need` bytes more, and has `n` bytes that are spare once `more` are added to those. `false`:
    /// there is no memory for all of that (those of the allowance have to be paid for, too), and nothing is charged.
    #[inline]
    #[must_use]
    pub(crate) fn take(&mut self, lease: &mut Lease, need: u64, n: u64, more: u64) -> bool {
        self.change(lease, self.held + need + n, self.spare + more - n)
    }

    /// There is to be so much more to be used. `false`: there is no memory.
    #[must_use]
    pub(crate) fn add(&mut self, lease: &mut Lease, n: u64) -> bool {
        self.change(lease, self.held, self.spare + n)
    }

    /// Something spare has gone.
    #[inline]
    pub(crate) fn drop_spare(&mut self, lease: &mut Lease, n: u64) {
        if n > 0 {
            self.ease(lease, self.held, self.spare - n);
        }
    }

    /// The table is at its end.
    pub(crate) fn end(&mut self, lease: &mut Lease) {
        self.ease(lease, 0, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ledger::Ledger;

    type Step = fn(&mut Holding, &mut Lease) -> bool;

    #[test]
    fn what_is_spare_beyond_the_allowance_is_charged() {
        let ledger = Ledger::new(1000, 1);
        let mut lease = Lease::new(&ledger);
        let mut holding = Holding::new(100);
        let left = |lease: &Lease| lease.unused() + ledger.left();
        let steps: [(Step, u64); 8] = [
            (|h, l| h.add(l, 80), 1000),
            (|h, l| h.add(l, 70), 950),
            // What was charged before is charged no more.
            (|h, l| h.take(l, 0, 50, 0), 950),
            (|h, l| !h.take(l, 500, 60, 500) && h.take(l, 0, 60, 0), 890),
            (|h, l| h.hold(l, 800), 90),
            (|h, l| !h.hold(l, 91) && !h.add(l, 151) && h.add(l, 150), 0),
            (|h, l| (h.let_go(l, 910, 60), true).1, 850),
            (|h, l| (h.drop_spare(l, 250), true).1, 1000),
        ];
        for (step, (change, expected)) in steps.into_iter().enumerate() {
            assert!(change(&mut holding, &mut lease), "step {step}");
            assert_eq!(left(&lease), expected, "step {step}");
            assert_eq!(left(&lease) + holding.held() + holding.spare(), 1000);
        }
    }
}
