//! Time, which is always an argument.

use core::ops::Add;
use core::time::Duration;

/// Nanoseconds of any clock that does not go back. 2^64 of them are 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// When the clock began.
    pub const ZERO: Self = Self(0);

    /// So many nanoseconds after the clock began.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock began.
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// So many nanoseconds later; never further than a clock goes.
    #[must_use]
    pub const fn plus_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Nanoseconds since `earlier`; 0 if that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl From<Duration> for Time {
    fn from(since_start: Duration) -> Self {
        Self(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        self.plus_nanos(Self::from(duration).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_stops_at_the_end_and_not_before_the_start() {
        let end = Time::from_nanos(u64::MAX);
        assert_eq!(end + Duration::from_secs(1), end);
        assert_eq!(Time::from(Duration::MAX), end);
        assert_eq!(Time::ZERO.since(end), 0);
        assert_eq!(Time::from(Duration::from_micros(3)).since(Time::from_nanos(1000)), 2000);
    }
}
