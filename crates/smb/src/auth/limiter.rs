//! Who guesses passwords waits.

use std::collections::HashMap;
use std::hash::Hash;
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
    /// Failures of an address, whoever failed, that cost nothing: many users may be behind one (NAT).
    pub address_free: u32,
    /// An address is forgiven one of its failures each time this is over.
    pub address_pause: Duration,
    /// Pairs of user and address that are remembered at most, and as many addresses.
    pub entries: usize,
}

impl Default for LimiterSettings {
    fn default() -> Self {
        Self {
            free: 5,
            first_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(15 * 60),
            forget: Duration::from_secs(60 * 60),
            address_free: 200,
            address_pause: Duration::from_secs(30),
            entries: 4096,
        }
    }
}

/// Failures of late, by user and address: that a stranger fails does not lock out who sits elsewhere. And by address
/// alone, so that one cannot try a password with all names, or push out what is known of one name by others that it
/// invents. That does not grow with each failure: one device with an old password goes on failing all day, and is not
/// to lock out those who share its address.
///
/// An address is what [`network`] makes of it.
///
/// Time is that of any clock that does not go back. When a table is full, who failed least is forgotten.
#[derive(Clone, Debug)]
pub struct Limiter {
    settings: LimiterSettings,
    users: HashMap<(IpAddr, String), Failures>,
    /// When all failures of each address will have been forgiven.
    addresses: HashMap<IpAddr, Duration>,
}

/// Fewer are less, and of as many the older ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Failures {
    count: u32,
    last: Duration,
}

impl Limiter {
    /// Nobody has failed yet.
    #[must_use]
    pub fn new(settings: LimiterSettings) -> Self {
        Self { settings, users: HashMap::new(), addresses: HashMap::new() }
    }

    /// How long this user is still to wait at this address; `None`: not at all. Who has to is to be refused unseen
    /// ([`Users::locked_out`](super::Users::locked_out)), which is no failure.
    #[must_use]
    pub fn wait(&self, user: &str, address: IpAddr, now: Duration) -> Option<Duration> {
        let network = network(address);
        let user = self.users.get(&key(user, network)).and_then(|failures| self.until(*failures));
        let free = self.settings.address_pause.saturating_mul(self.settings.address_free);
        let address = self.addresses.get(&network).map(|forgiven| forgiven.saturating_sub(free));
        user.max(address)?.checked_sub(now).filter(|wait| !wait.is_zero())
    }

    /// When a user may try again.
    fn until(&self, failures: Failures) -> Option<Duration> {
        let over = failures.count.checked_sub(self.settings.free)?.checked_sub(1)?;
        let factor = 1u32.checked_shl(over).unwrap_or(u32::MAX);
        let delay = self.settings.first_delay.saturating_mul(factor).min(self.settings.max_delay);
        Some(failures.last + delay)
    }

    /// Somebody has guessed wrong ([`Reason::is_guess`](super::Reason::is_guess)).
    pub fn failed(&mut self, user: &str, address: IpAddr, now: Duration) {
        let network = network(address);
        let LimiterSettings { forget, address_pause, entries, .. } = self.settings;
        let is_old = |failures: &Failures| now.saturating_sub(failures.last) >= forget;
        if let Some(failures) = slot(&mut self.users, key(user, network), entries, is_old) {
            let count = if is_old(failures) { 0 } else { failures.count };
            *failures = Failures { count: count.saturating_add(1), last: now };
        }
        if let Some(forgiven) = slot(&mut self.addresses, network, entries, |at| *at <= now) {
            *forgiven = now.max(*forgiven).saturating_add(address_pause);
        }
    }

    /// This user has come in at this address. Its own failures are forgiven the address, too, and no others: who
    /// guesses may have a password of its own.
    pub fn succeeded(&mut self, user: &str, address: IpAddr) {
        let network = network(address);
        let Some(failures) = self.users.remove(&key(user, network)) else { return };
        if let Some(forgiven) = self.addresses.get_mut(&network) {
            let own = self.settings.address_pause.saturating_mul(failures.count);
            *forgiven = forgiven.saturating_sub(own);
        }
    }
}

/// What is known of somebody, in a table of so many at most; `None`: nothing, and there is no room.
fn slot<K: Eq + Hash, V: Copy + Default + Ord>(
    table: &mut HashMap<K, V>,
    key: K,
    entries: usize,
    is_old: impl Fn(&V) -> bool,
) -> Option<&mut V> {
    if table.len() >= entries && !table.contains_key(&key) {
        table.retain(|_, value| !is_old(value));
        if table.len() >= entries {
            forget_least(table);
        }
        if table.len() >= entries {
            return None;
        }
    }
    Some(table.entry(key).or_default())
}

/// Forgets an eighth of a table, the least of all, so that a full one costs little per failure.
fn forget_least<K: Eq + Hash, V: Copy + Ord>(table: &mut HashMap<K, V>) {
    let mut values: Vec<_> = table.values().copied().collect();
    let eighth = values.len() / 8;
    if values.is_empty() {
        return;
    }
    let (_, limit, _) = values.select_nth_unstable(eighth);
    let limit = *limit;
    let mut most = eighth + 1;
    table.retain(|_, value| {
        let keep = most == 0 || *value > limit;
        most -= usize::from(!keep);
        keep
    });
}

/// Letters of a name that are looked at: a client chooses how long its name is, and it must cost us little.
const NAME_MAX: usize = 64;

fn key(user: &str, network: IpAddr) -> (IpAddr, String) {
    (network, user.chars().flat_map(char::to_lowercase).take(NAME_MAX).collect())
}

/// All addresses that are one to us: of IPv6 the network of 64 bits, of which a host has as many addresses as it likes. All
/// hosts of a link have the same one, and one address each, for addresses that are of that link alone.
#[must_use]
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if address.is_unicast_link_local() => address.into(),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & (u128::MAX << 64)).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests;
