//! Which method a transfer should use.

use super::Method;

/// What the operator wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// What has been measured to be fastest in the case at hand.
    #[default]
    Auto,
    /// Always this one, where it can be had.
    Always(Method),
}

impl std::str::FromStr for Policy {
    type Err = String;

    /// Reads `auto`, `copy`, `map` or `splice`.
    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            "copy" => Ok(Self::Always(Method::Copy)),
            "map" => Ok(Self::Always(Method::Map)),
            "splice" => Ok(Self::Always(Method::Splice)),
            other => Err(format!("{other:?} is none of auto, copy, map, splice")),
        }
    }
}

/// What a choice depends on.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Bytes of the transfer.
    pub len: u32,
    /// The peer is on this host, so that what is sent is copied once more, from our pages, by it.
    pub loopback: bool,
    /// Connections that moved data lately, this one included.
    pub busy: usize,
}

/// Chooses for the connections of one loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chooser {
    policy: Policy,
}

/// Below this, setting anything up costs more than the copy.
const SMALL: u32 = 16 << 10;

impl Chooser {
    /// One that does as told.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy }
    }

    /// How to send data of a file.
    #[must_use]
    pub fn send(&self, load: Load) -> Method {
        match self.policy {
            _ if load.len < SMALL => Method::Copy,
            Policy::Always(method) => method,
            Policy::Auto if load.loopback => Method::Map,
            // A real interface reads the pages itself: nobody copies.
            Policy::Auto => Method::Splice,
        }
    }

    /// How to take data into a file.
    #[must_use]
    pub fn receive(&self, load: Load) -> Method {
        match self.policy {
            _ if load.len < SMALL => Method::Copy,
            Policy::Always(method) => method,
            // Falls back by itself: to a pipe where the file has to grow, to a copy on a disk.
            Policy::Auto => Method::Map,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_is_copied_and_what_is_told_is_done() {
        let load = |len| Load { len, loopback: true, busy: 1 };
        for policy in ["auto", "copy", "map", "splice"] {
            let chooser = Chooser::new(policy.parse().unwrap());
            assert_eq!(chooser.send(load(4096)), Method::Copy);
            assert_eq!(chooser.receive(load(4096)), Method::Copy);
        }
        let chooser = Chooser::new("splice".parse().unwrap());
        assert_eq!(chooser.send(load(1 << 20)), Method::Splice);
        assert_eq!(chooser.receive(load(1 << 20)), Method::Splice);
        assert!("sendfile".parse::<Policy>().is_err());
    }
}
