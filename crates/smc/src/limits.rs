//! What people set, and what the code runs on.

use std::time::Duration;

/// What may be set. [`Config::default`] is what Linux does, but for the number of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long to wait for a CLC message. Default 6 s.
    pub clc_wait: Duration,
    /// How long a client waits for the first, the answer to its Proposal. Default 6 s.
    pub accept_wait: Duration,
    /// How long to wait for a Decline that may be on its way when the link did not come up. Default 1 s.
    pub decline_wait: Duration,
    /// How long to wait for an answer to an LLC request. Default 2 s.
    pub llc_wait: Duration,
    /// How long a client waits for the first CONFIRM LINK. Default 4 s.
    pub first_link_wait: Duration,
    /// How long to wait for CONFIRM LINK over a link that was added. Default 5 s.
    pub added_link_wait: Duration,
    /// The same over one that is tried again in place of one that was lost: connections of the group that need a key of a
    /// new buffer wait meanwhile, and the path may be as dead as before. Default 1 s.
    pub again_wait: Duration,
    /// How long after a link was lost a server tries to add one again, or the client of a server that is not Shunt asks for
    /// one, and twice as long after each attempt that came to nothing, up to 32 times. Default 10 s.
    pub link_again: Duration,
    /// After how long without a message a link is tested; zero: never. Default 30 s.
    pub test_link_idle: Duration,
    /// After how long without connections a server frees a link group. Default 600 s.
    pub idle_server: Duration,
    /// And a client, which lets the server be first. Default 610 s.
    pub idle_client: Duration,
    /// Most connections in a link group, 16 to 255. Default 255.
    pub max_conns: u8,
    /// Most links in a link group, 1 or 2. Default 1: there is no ADD LINK to wait for, then.
    pub max_links: u8,
    /// Small sends are held back until so many bytes wait, bytes; 0: never. Default 65,536.
    pub autocork: u32,
}

impl Default for Config {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self {
            clc_wait: seconds(6),
            accept_wait: seconds(6),
            decline_wait: seconds(1),
            llc_wait: seconds(2),
            first_link_wait: seconds(4),
            added_link_wait: seconds(5),
            again_wait: seconds(1),
            link_again: seconds(10),
            test_link_idle: seconds(30),
            idle_server: seconds(600),
            idle_client: seconds(610),
            max_conns: 255,
            max_links: 1,
            autocork: 65_536,
        }
    }
}

/// A setting that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    /// Nothing would ever be waited for.
    #[error("{0} is zero")]
    Zero(&'static str),
    /// Peers would decline.
    #[error("max_conns is {0}: 16 to 255")]
    Conns(u8),
    /// No link, or more than Linux knows.
    #[error("max_links is {0}: 1 or 2")]
    Links(u8),
}

/// [`Config`], checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits(pub(crate) Config);

/// Least `max_conns` that Linux agrees to.
pub(crate) const CONNS_MIN: u8 = 16;
/// Most links that are ever added.
pub(crate) const LINKS_MAX: u8 = 2;

impl Config {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// The first setting that cannot be, with what could.
    pub fn limits(&self) -> Result<Limits, BadConfig> {
        let waits = [
            ("clc_wait", self.clc_wait),
            ("accept_wait", self.accept_wait),
            ("decline_wait", self.decline_wait),
            ("llc_wait", self.llc_wait),
            ("first_link_wait", self.first_link_wait),
            ("added_link_wait", self.added_link_wait),
            ("again_wait", self.again_wait),
            ("link_again", self.link_again),
            ("idle_server", self.idle_server),
            ("idle_client", self.idle_client),
        ];
        if let Some((name, _)) = waits.iter().find(|(_, wait)| wait.is_zero()) {
            return Err(BadConfig::Zero(name));
        }
        if self.max_conns < CONNS_MIN {
            return Err(BadConfig::Conns(self.max_conns));
        }
        if !(1..=LINKS_MAX).contains(&self.max_links) {
            return Err(BadConfig::Links(self.max_links));
        }
        Ok(Limits(*self))
    }
}

impl Limits {
    /// The settings that were checked.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_are_told_with_what_could() {
        type Change = fn(&mut Config);
        let wrong: [(Change, &str); 4] = [
            (|c| c.llc_wait = Duration::ZERO, "llc_wait is zero"),
            (|c| c.max_conns = 15, "max_conns is 15: 16 to 255"),
            (|c| c.max_links = 0, "max_links is 0: 1 or 2"),
            (|c| c.max_links = 3, "max_links is 3: 1 or 2"),
        ];
        for (change, words) in wrong {
            let mut config = Config::default();
            change(&mut config);
            assert_eq!(config.limits().map_err(|e| e.to_string()), Err(words.into()));
        }
        assert_eq!(Config::default().limits(), Ok(Limits::default()));
        let untested = Config { test_link_idle: Duration::ZERO, ..Config::default() };
        assert!(untested.limits().is_ok(), "no test of links is a choice");
    }
}
