//! Lines of the log about what is in a folder and is not shown, as it cannot be looked at.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use smb::NtStatus;
use sys::sync::AtomicU64;

use super::super::log;

/// No more than a line in so long: a disk that fails does so for each entry of each listing.
const PAUSE: Duration = Duration::from_secs(60);

/// When a share has had its last line.
#[derive(Debug)]
pub(super) struct Unshown {
    began: Instant,
    /// From when on there may be another: milliseconds from `began`.
    next: AtomicU64,
}

impl Unshown {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), next: AtomicU64::new(0) }
    }

    /// Says it of a path on disk, if nothing was said of late. Whose rights do not suffice is told of nothing, and neither is the log.
    pub(super) fn tell(&self, share: &str, path: &[u8], why: NtStatus) {
        if why != NtStatus::ACCESS_DENIED && self.is_due_at(Instant::now()) {
            let path = String::from_utf8_lossy(path);
            log::say(format_args!(
                "share {share}: {path:?} cannot be looked at ({why}), and is missing where its folder is listed"
            ));
        }
    }

    fn is_due_at(&self, now: Instant) -> bool {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let now = now.saturating_duration_since(self.began);
        let next = self.next.load(Ordering::Relaxed);
        let after = ms(now + PAUSE);
        ms(now) >= next
            && self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_a_line_a_minute() {
        let unshown = Unshown::new();
        let due = |seconds| unshown.is_due_at(unshown.began + Duration::from_secs(seconds));
        assert!(due(0) && !due(0) && !due(59));
        assert!(due(60) && !due(119));
        assert!(due(500) && !due(559) && due(560));
    }
}
