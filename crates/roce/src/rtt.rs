//! When to send again what nobody has acknowledged.

/// How long to wait for an acknowledgement before sending again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retransmission {
    /// The time of the queue pair's [`timeout`](crate::RtsAttributes::timeout), as the
    /// specification has it (IBTA vol. 1, 9.7.6.1.3).
    Fixed,
    /// As long as the path has been taking, and its variation four times (RFC 6298), doubled with each
    /// attempt, within these bounds and never longer than the fixed time. The peer is given up after as
    /// long as with [`Retransmission::Fixed`].
    Adaptive {
        /// At least, nanoseconds. Below what a loop may be late, packets are sent in vain.
        floor_nanos: u64,
        /// Before anything was measured.
        initial_nanos: u64,
    },
}

impl Retransmission {
    /// For peers that answer from a loop of their own core.
    pub const SHUNT: Self = Self::Adaptive { floor_nanos: 1_000_000, initial_nanos: 20_000_000 };
}

/// The round trip as measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rtt {
    smooth: u64,
    variation: u64,
    last: u64,
}

impl Rtt {
    /// Takes a measurement (RFC 6298 section 2).
    pub(crate) fn take(&mut self, nanos: u64) {
        // More than a minute is no path; the sums stay far from overflow.
        let nanos = nanos.clamp(1, 60_000_000_000);
        self.last = nanos;
        if self.smooth == 0 {
            self.smooth = nanos;
            self.variation = nanos / 2;
            return;
        }
        self.variation = (3 * self.variation + self.smooth.abs_diff(nanos)) / 4;
        self.smooth = (7 * self.smooth + nanos) / 8;
    }

    /// The last one, nanoseconds; 0: never measured.
    pub(crate) const fn last(&self) -> u64 {
        self.last
    }

    /// Smoothed, nanoseconds; `None`: never measured.
    pub(crate) fn smooth(&self) -> Option<u64> {
        (self.smooth > 0).then_some(self.smooth)
    }

    /// How long to wait, the `attempt`th time (from 0) for the same packet. `fixed`: the time of the
    /// queue pair; `None`: it never ends.
    pub(crate) fn patience(
        &self,
        how: Retransmission,
        fixed: Option<u64>,
        attempt: u32,
    ) -> Option<u64> {
        let Retransmission::Adaptive { floor_nanos, initial_nanos } = how else { return fixed };
        let base = match self.smooth() {
            Some(smooth) => (smooth + 4 * self.variation).max(floor_nanos),
            None => initial_nanos.max(floor_nanos),
        };
        let longer = base.saturating_mul(1 << attempt.min(16));
        Some(longer.min(fixed.unwrap_or(PATIENCE_MAX)).max(1))
    }
}

/// The longest wait of a queue pair that has no timeout.
const PATIENCE_MAX: u64 = 1_000_000_000;

/// The time of a timeout code (5 bits), nanoseconds: 4.096 us times 2^code; `None`: code 0, no timeout.
pub(crate) const fn timeout_nanos(code: u8) -> Option<u64> {
    match code & 31 {
        0 => None,
        code => Some(4096 << code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_those_of_the_specification() {
        assert_eq!(timeout_nanos(0), None);
        assert_eq!(timeout_nanos(15), Some(134_217_728));
        assert_eq!(timeout_nanos(31), Some(8_796_093_022_208));
    }

    #[test]
    fn patience_follows_what_was_measured_within_bounds() {
        let mut rtt = Rtt::default();
        let how = Retransmission::Adaptive { floor_nanos: 1000, initial_nanos: 5000 };
        let patience = |rtt: &Rtt, attempt| rtt.patience(how, Some(20_000), attempt);
        assert_eq!(patience(&rtt, 0), Some(5000));
        assert_eq!(patience(&rtt, 1), Some(10_000));
        assert_eq!(patience(&rtt, 9), Some(20_000));
        for _ in 0..100 {
            rtt.take(100);
        }
        assert_eq!((rtt.smooth(), patience(&rtt, 0)), (Some(100), Some(1000)));
        let mut path = Rtt::default();
        path.take(100_000);
        path.take(200_000);
        // RFC 6298: 7/8 of 100 and 1/8 of 200; 3/4 of 50 and 1/4 of 100, four times.
        assert_eq!(path.smooth(), Some(112_500));
        assert_eq!(path.patience(how, None, 0), Some(112_500 + 4 * 62_500));
        rtt.take(u64::MAX);
        assert_eq!(patience(&rtt, 0), Some(20_000));
        assert_eq!(rtt.patience(Retransmission::Fixed, Some(7), 3), Some(7));
        assert_eq!(rtt.patience(Retransmission::Fixed, None, 3), None);
        assert_eq!(Rtt::default().patience(how, None, 40), Some(PATIENCE_MAX.min(5000 << 16)));
    }
}
