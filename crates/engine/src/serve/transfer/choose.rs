//! Which method a transfer should use.
//!
//! Approximate, by `examples/transfer.rs` on two shared cores over loopback with a file on tmpfs and
//! 1 MiB at a time: CPU seconds of server + client for each GB, 1 to 4 connections.
//!
//! | | copy | map | splice |
//! | --- | --- | --- | --- |
//! | send, receiver drops | 0.32 to 0.43 + 0.10 | 0.10 to 0.14 + 0.10 | 0.21 to 0.29 + 0.25 |
//! | send, receiver copies | 0.32 to 0.43 + 0.20 | 0.14 to 0.24 + 0.15 | 0.22 to 0.27 + 0.40 |
//! | receive over mapped pages | 0.53 to 0.68 + 0.18 | 0.24 to 0.35 + 0.21 | 0.32 to 0.46 + 0.21 |
//! | receive, each page once | 0.55 to 0.65 + 0.16 | 0.35 to 0.68 + 0.13 | 0.34 to 0.50 + 0.16 |
//! | receive, the file grows | 0.7 to 0.8 | | 0.5 |
//!
//! On loopback a page that is passed on is copied all the same, later and by the receiver, who also frees it. On the
//! machine of this table (an Intel Xeon) a mapping costs half of what a pipe costs; on another (an AMD EPYC) with four
//! connections a mapping takes 0.13 + 0.12 and a pipe 0.10 + 0.07. So which it is is learned where it runs
//! ([`Lesson`]). Over a real interface nobody copies a page, so a pipe.
//!
//! Under `shunt run` it is not the kernel that takes what is sent. What it does for a mapping, to end with an error
//! where the file was cut, others have to do (`sys::guarded`), and a pipe would be one copy more: such sockets have a
//! method of their own.

use super::{Clocks, DataFile, Lesson, Method};

/// What the operator wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// What has been measured to be fastest in the case at hand.
    #[default]
    Auto,
    /// Always this one, where it can be had.
    Always(Method),
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always(Method::Copy) => "copy",
            Self::Always(Method::Map) => "map",
            Self::Always(Method::Splice) => "splice",
            Self::Always(Method::Vmsplice) => "vmsplice",
            // It is chosen by itself, and by nobody who writes settings.
            Self::Always(Method::Carried) => "carried",
        })
    }
}

impl std::str::FromStr for Policy {
    type Err = String;

    /// Reads `auto`, `copy`, `map`, `splice` or `vmsplice`.
    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            "copy" => Ok(Self::Always(Method::Copy)),
            "map" => Ok(Self::Always(Method::Map)),
            "splice" => Ok(Self::Always(Method::Splice)),
            "vmsplice" => Ok(Self::Always(Method::Vmsplice)),
            other => Err(format!("{other:?} is none of auto, copy, map, splice, vmsplice")),
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
    /// Its bytes go through shared memory, or may come to (`sys::stream::carried`).
    pub carried: bool,
}

/// Chooses for the connections of one loop.
#[derive(Clone, Copy, Debug)]
pub struct Chooser<'a> {
    policy: Policy,
    learned: &'a Lesson,
}

/// Below this, setting anything up costs more than the copy.
const SMALL: u32 = 16 << 10;
/// From this on it pays to find out how data is best sent on loopback, and to map what is written over once.
const LARGE: u32 = 256 << 10;

impl<'a> Chooser<'a> {
    /// One that does as told, and else as that loop has learned.
    #[must_use]
    pub fn new(policy: Policy, learned: &'a Lesson) -> Self {
        Self { policy, learned }
    }

    /// How to send data of a file.
    #[must_use]
    pub fn send(&self, load: Load) -> Method {
        match self.policy {
            _ if load.len < SMALL => Method::Copy,
            Policy::Always(Method::Copy) => Method::Copy,
            _ if load.carried => Method::Carried,
            Policy::Always(method) => method,
            // Several of these go out by one call.
            Policy::Auto if load.loopback && load.len < LARGE => Method::Map,
            Policy::Auto if load.loopback => self.learned.choose(load.len.into(), Clocks::read),
            // A real interface reads the pages itself: nobody copies.
            Policy::Auto => Method::Splice,
        }
    }

    /// How to take data into a file.
    #[must_use]
    pub fn receive(&self, load: Load, file: &DataFile) -> Method {
        match self.policy {
            _ if load.carried => Method::Carried,
            _ if load.len < SMALL || !file.in_memory() => Method::Copy,
            Policy::Always(method) => method,
            // Large pieces of what there is, from the first time on; what is new is not mapped after all. A real
            // interface, and small pieces, which may be all that comes, have to be worth the faults.
            Policy::Auto if load.loopback && load.len >= LARGE || file.rewritten() => Method::Map,
            Policy::Auto => Method::Splice,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_small_is_copied_and_what_is_told_is_done() {
        let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
            return println!("skipped: no tmpfs");
        };
        let file = DataFile::new(file).unwrap();
        let load = |len| Load { len, loopback: true, carried: false };
        let learned = Lesson::default();
        for policy in ["auto", "copy", "map", "splice", "vmsplice"] {
            let chooser = Chooser::new(policy.parse().unwrap(), &learned);
            assert_eq!(chooser.send(load(4096)), Method::Copy);
            assert_eq!(chooser.receive(load(4096), &file), Method::Copy);
        }
        let chooser = Chooser::new("splice".parse().unwrap(), &learned);
        assert_eq!(chooser.send(load(1 << 20)), Method::Splice);
        assert_eq!(chooser.receive(load(1 << 20), &file), Method::Splice);
        for policy in [Policy::Auto, Policy::Always(Method::Map), Policy::Always(Method::Splice)] {
            // The kernel does not take from a mapping what goes through shared memory.
            let (chooser, carried) =
                (Chooser::new(policy, &learned), Load { carried: true, ..load(1 << 20) });
            assert_eq!(chooser.send(carried), Method::Carried);
            assert_eq!(chooser.receive(carried, &file), Method::Carried);
        }
        assert!("sendfile".parse::<Policy>().is_err());
    }

    #[test]
    fn a_file_that_is_written_over_again_and_again_is_mapped() {
        let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
            return println!("skipped: no tmpfs");
        };
        let file = DataFile::new(file).unwrap();
        let learned = Lesson::default();
        let (chooser, load) = (
            Chooser::new(Policy::Auto, &learned),
            Load { len: 1 << 20, loopback: false, carried: false },
        );
        let local = Load { loopback: true, ..load };
        assert_eq!(chooser.receive(local, &file), Method::Map, "what is new is not mapped then");
        let small = Load { len: 64 << 10, ..local };
        assert_eq!(chooser.receive(small, &file), Method::Splice);
        assert_eq!(chooser.receive(load, &file), Method::Splice, "empty");
        file.file().set_len(2 << 20).unwrap();
        file.count_overwritten(1 << 20);
        assert_eq!(chooser.receive(load, &file), Method::Splice);
        file.count_overwritten(1 << 20);
        assert_eq!(chooser.receive(load, &file), Method::Map);
    }
}
