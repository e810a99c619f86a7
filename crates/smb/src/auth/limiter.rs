//! Who guesses passwords waits.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// How fast passwords may be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimiterSettings {
    /// Failures that cost nothing: people mistype.
    pub free: u32,
    /// What the first failure after those costs; each further one costs twice as much.
    pub first_delay: Duration,
    /// What a failure costs at most.
    pub max_delay: Duration,
    /// After so long without a failure all is forgotten.
    pub forget: Duration,
    /// Pairs of user and address that are remembered at most.
    pub entries: usize,
}

impl Default for LimiterSettings {
    fn default() -> Self {
        Self {
            free: 5,
            first_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(15 * 60),
            forget: Duration::from_secs(60 * 60),
            entries: 4096,
        }
    }
}

/// Failures of late, by user and address: that a stranger fails does not lock out who sits elsewhere.
///
/// Time is that of any clock that does not go back. When the table is full, who failed longest ago is forgotten.
#[derive(Clone, Debug)]
pub struct Limiter {
    settings: LimiterSettings,
    failures: HashMap<(IpAddr, String), Failures>,
}

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    last: Duration,
}

impl Limiter {
    /// Nobody has failed yet.
    #[must_use]
    pub fn new(settings: LimiterSettings) -> Self {
        Self { settings, failures: HashMap::new() }
    }

    /// How long this user is still to wait at this address; `None`: not at all. Who has to is to be refused unseen
    /// ([`Users::locked_out`](super::Users::locked_out)), which is no failure.
    #[must_use]
    pub fn wait(&self, user: &str, address: IpAddr, now: Duration) -> Option<Duration> {
        let failures = self.failures.get(&key(user, address))?;
        let over = failures.count.checked_sub(self.settings.free)?.checked_sub(1)?;
        let factor = 1u32.checked_shl(over).unwrap_or(u32::MAX);
        let delay = self.settings.first_delay.saturating_mul(factor).min(self.settings.max_delay);
        (failures.last + delay).checked_sub(now).filter(|wait| !wait.is_zero())
    }

    /// Somebody has guessed wrong ([`Reason::is_guess`](super::Reason::is_guess)).
    pub fn failed(&mut self, user: &str, address: IpAddr, now: Duration) {
        let key = key(user, address);
        let forget = self.settings.forget;
        if let Some(failures) = self.failures.get_mut(&key) {
            let old = now.saturating_sub(failures.last) >= forget;
            failures.count = if old { 1 } else { failures.count.saturating_add(1) };
            failures.last = now;
            return;
        }
        if self.failures.len() >= self.settings.entries {
            self.make_room(now);
        }
        if self.failures.len() < self.settings.entries {
            self.failures.insert(key, Failures { count: 1, last: now });
        }
    }

    /// This user has come in at this address.
    pub fn succeeded(&mut self, user: &str, address: IpAddr) {
        self.failures.remove(&key(user, address));
    }

    /// Forgets what is old, and an eighth of the rest if nothing is, so that a full table costs little per failure.
    fn make_room(&mut self, now: Duration) {
        let forget = self.settings.forget;
        self.failures.retain(|_, failures| now.saturating_sub(failures.last) < forget);
        if self.failures.len() < self.settings.entries {
            return;
        }
        let mut times: Vec<_> = self.failures.values().map(|failures| failures.last).collect();
        let eighth = times.len() / 8;
        if times.is_empty() {
            return;
        }
        let (_, limit, _) = times.select_nth_unstable(eighth);
        let limit = *limit;
        let mut most = eighth + 1;
        self.failures.retain(|_, failures| {
            let keep = most == 0 || failures.last > limit;
            most -= usize::from(!keep);
            keep
        });
    }
}

/// Letters of a name that are looked at: a client chooses how long its name is, and it must cost us little.
const NAME_MAX: usize = 64;

fn key(user: &str, address: IpAddr) -> (IpAddr, String) {
    (address, user.chars().take(NAME_MAX).flat_map(char::to_lowercase).collect())
}

#[cfg(test)]
mod tests;
