//! How often somebody has come in, and how often not, and why.

use smb::auth::Reason;
use sys::sync::{AtomicU64, Ordering};

/// Who comes in.
pub(super) const KINDS: [&str; 3] = ["user", "guest", "nobody"];
/// Guests and clients who cannot do what is required, beyond the reasons of [`Reason`].
pub(super) const KEPT_OUT: &str = "signing_or_encryption_required";

/// Each counter is written by whichever loop has let somebody in: that is rare.
#[derive(Debug)]
pub(super) struct Logons {
    kinds: [AtomicU64; KINDS.len()],
    reasons: [AtomicU64; Reason::KEYS.len()],
    kept_out: AtomicU64,
}

impl Default for Logons {
    fn default() -> Self {
        Self {
            kinds: [const { AtomicU64::new(0) }; KINDS.len()],
            reasons: [const { AtomicU64::new(0) }; Reason::KEYS.len()],
            kept_out: AtomicU64::new(0),
        }
    }
}

impl Logons {
    /// One of [`KINDS`] has a session.
    pub(super) fn came(&self, kind: &str) {
        for (_, counter) in KINDS.iter().zip(&self.kinds).filter(|(known, _)| **known == kind) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Somebody has none.
    pub(super) fn refused(&self, reason: Reason) {
        let all = Reason::KEYS.iter().zip(&self.reasons);
        for (_, counter) in all.filter(|(key, _)| **key == reason.key()) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Somebody was kept out who could not sign or encrypt.
    pub(super) fn kept_out(&self) {
        self.kept_out.fetch_add(1, Ordering::Relaxed);
    }

    /// How often which kind has come in.
    pub(super) fn by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> {
        KINDS.into_iter().zip(self.kinds.iter().map(|n| n.load(Ordering::Relaxed)))
    }

    /// How often somebody has not, for which reason.
    pub(super) fn by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let reasons = self.reasons.iter().chain([&self.kept_out]);
        let keys = Reason::KEYS.into_iter().chain([KEPT_OUT]);
        keys.zip(reasons.map(|n| n.load(Ordering::Relaxed)))
    }
}
