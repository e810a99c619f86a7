//! When something happened, as Windows counts it.

/// 100-nanosecond intervals since 1601-01-01 00:00 UTC (MS-DTYP 2.3.3, FILETIME). Zero means "not told"; in
/// FSCC set-information requests `-1` means "stop updating this" and `-2` "go on updating it".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileTime(pub u64);

/// Seconds from 1601-01-01 to 1970-01-01.
const TO_UNIX: i64 = 11_644_473_600;

impl FileTime {
    /// No time: leave it as it is (set), or nobody knows (query).
    pub const NONE: Self = Self(0);
    /// In a set request: do not let operations through this handle change the time.
    pub const FREEZE: Self = Self(u64::MAX);
    /// In a set request: undo [`FileTime::FREEZE`].
    pub const THAW: Self = Self(u64::MAX - 1);

    /// From seconds and nanoseconds since 1970. What is before 1601 becomes [`FileTime::NONE`], what is too
    /// far away the last representable time.
    #[must_use]
    pub fn from_unix(seconds: i64, nanoseconds: u32) -> Self {
        let Some(seconds) = seconds.checked_add(TO_UNIX) else {
            return Self(i64::MAX.cast_unsigned());
        };
        let Ok(seconds) = u64::try_from(seconds) else { return Self::NONE };
        let ticks = seconds
            .checked_mul(10_000_000)
            .and_then(|t| t.checked_add(u64::from(nanoseconds / 100)));
        Self(ticks.unwrap_or(i64::MAX.cast_unsigned()).min(i64::MAX.cast_unsigned()))
    }

    /// Seconds and nanoseconds since 1970; seconds are negative before that.
    #[must_use]
    pub fn to_unix(self) -> (i64, u32) {
        let seconds = i64::try_from(self.0 / 10_000_000).unwrap_or(i64::MAX) - TO_UNIX;
        let nanoseconds = u32::try_from(self.0 % 10_000_000).unwrap_or(0) * 100;
        (seconds, nanoseconds)
    }

    /// Whether this is a point in time, and none of the marks above.
    #[must_use]
    pub fn is_time(self) -> bool {
        self != Self::NONE && i64::try_from(self.0).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::FileTime;

    #[test]
    fn unix_time_and_back() {
        assert_eq!(FileTime::from_unix(0, 0).0, 116_444_736_000_000_000);
        for (seconds, nanoseconds) in [(0, 0), (1_700_000_000, 123_456_700), (-5, 900)] {
            assert_eq!(FileTime::from_unix(seconds, nanoseconds).to_unix(), (seconds, nanoseconds));
        }
        assert_eq!(FileTime::from_unix(i64::MIN, 0), FileTime::NONE);
        assert!(FileTime::from_unix(i64::MAX, 0).is_time());
        assert!(!FileTime::FREEZE.is_time() && !FileTime::THAW.is_time());
    }
}
