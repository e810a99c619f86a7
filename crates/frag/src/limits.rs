//! What people set, and what the code runs on.

use crate::overlap::Policy;

const SECOND_NS: u64 = 1_000_000_000;

/// What may be set. [`Config::default`] suits a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most memory over all shards, bytes at true size: what fragments hold, what finds them, and what is free again
    /// and kept. Never exceeded but for what each shard has from the beginning, whatever comes:
    /// [`Shard::beside_bytes`](crate::Shard::beside_bytes), [`Shared::beside_bytes`](crate::Shared::beside_bytes).
    ///
    /// That the oldest datagram ends holds in each shard by itself, with what the others leave (in a table for all cores it
    /// holds over its buckets, as far as those are asked that have younger ones). What a shard holds for datagrams that
    /// nothing has come for in 64 ms, and eight times as long as usual, it
    /// lets go when another has too little: as soon as a datagram begins there, or at the next
    /// [`Shard::expire`](crate::Shard::expire), so that is to be called also by a core to which nothing comes. Records are given back by chunks of 16, which a shard moves together only when it has no memory itself:
    /// until then what is free of a chunk of which something is in use counts, and only its own shard can use it.
    /// Default 64 MiB, at least 64 KiB.
    pub memory_bytes: u64,
    /// Shards, or cores, that share it. Default 1, at most 4096. What are more than that go to a count that all share for
    /// each fragment that they hold, and no part of the memory is theirs alone. Whoever steers by addresses alone, so that all datagrams
    /// of a flow reach one shard, lets it have 32,768 / shards datagrams of IPv4 in progress: what began before as many
    /// others is taken for the last user of an identification ([`Reason::Stale`](crate::Reason::Stale)).
    pub shards: u32,
    /// Most datagrams in progress over all shards, each of which may have its part, rounded down; one at least. Where there
    /// are so many, one goes for a new one in which nothing moves, or of a source that has more than twice as many. Default
    /// 1,048,576. (In a [`Shared`](crate::Shared) table of more buckets than that each bucket may have one.)
    pub datagrams_max: u32,
    /// Most fragments of one datagram. Default 1024; 8192 can occur.
    pub fragments_max: u16,
    /// Payload bytes that a fragment which is not the last must have. Default 8, which all have.
    pub fragment_min: u16,
    /// Payloads smaller than this are copied into compact blocks, so that they do not pin the caller's
    /// buffer. Default 256 bytes; 0: never.
    pub copy_below: u16,
    /// How long a datagram may take from its first fragment on, nanoseconds. IPv4: default 30 s.
    pub timeout_v4_ns: u64,
    /// IPv6: 60 s (RFC 8200 section 4.5).
    pub timeout_v6_ns: u64,
    /// What to do where fragments overlap. Default: give the datagram up.
    pub overlap: Policy,
    /// Whether the first fragment of an IPv6 datagram must hold all headers (RFC 7112). Default yes.
    pub whole_header: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            shards: 1,
            datagrams_max: 1 << 20,
            fragments_max: 1024,
            fragment_min: 8,
            copy_below: 256,
            timeout_v4_ns: 30 * SECOND_NS,
            timeout_v6_ns: 60 * SECOND_NS,
            overlap: Policy::Strict,
            whole_header: true,
        }
    }
}

/// A setting that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    /// Too little memory for a datagram of the largest size.
    #[error("memory_bytes is {0}: at least 65536 are needed")]
    Memory(u64),
    /// No shards, or too many.
    #[error("shards is {0}: 1 to 4096")]
    Shards(u32),
    /// No datagrams.
    #[error("datagrams_max is {0}: 1 to {max} for each shard", max = crate::limits::DATAGRAMS_MAX)]
    Datagrams(u32),
    /// No datagram could ever complete.
    #[error("fragments_max is {0}: 2 to 8192")]
    Fragments(u16),
    /// Would drop what every sender sends.
    #[error("fragment_min is {0}: at most 1280")]
    FragmentMin(u16),
    /// More than a compact block holds.
    #[error("copy_below is {0}: at most 512")]
    CopyBelow(u16),
}

/// Most datagrams in progress in one shard.
pub(crate) const DATAGRAMS_MAX: u32 = 1 << 24;

/// [`Config`], checked, for one shard.
#[derive(Clone, Debug)]
pub struct Limits {
    pub(crate) memory_bytes: u64,
    pub(crate) shards: u32,
    /// Tables among which the datagrams of all shards are spread.
    pub(crate) tables: u32,
    /// Those of them that know together what sources and flows do; 1: each for itself.
    pub(crate) buckets: u32,
    pub(crate) datagrams_max: u32,
    pub(crate) fragments_max: u16,
    pub(crate) fragment_min: u16,
    pub(crate) copy_below: u16,
    pub(crate) timeout_ns: [u64; 2],
    pub(crate) overlap: Policy,
    pub(crate) whole_header: bool,
    /// Datagrams of one flow after which an identification may be in use again.
    pub(crate) reuse: u32,
    /// While a table has begun fewer than so many, no flow is looked at.
    pub(crate) reuse_near: u32,
}

/// Datagrams of one flow (addresses and protocol) between two uses of an identification are 65,536 (RFC 6864). Half of that is
/// safe from the next use, and far from the last.
const REUSE: u32 = 32_768;

impl Config {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// The first setting that cannot be, with what could.
    pub fn limits(&self) -> Result<Limits, BadConfig> {
        if self.memory_bytes < 64 << 10 {
            return Err(BadConfig::Memory(self.memory_bytes));
        }
        if !(1..=4096).contains(&self.shards) {
            return Err(BadConfig::Shards(self.shards));
        }
        let each = self.datagrams_max / self.shards;
        if !(1..=DATAGRAMS_MAX).contains(&each) {
            return Err(BadConfig::Datagrams(self.datagrams_max));
        }
        if !(2..=8192).contains(&self.fragments_max) {
            return Err(BadConfig::Fragments(self.fragments_max));
        }
        if self.fragment_min > 1280 {
            return Err(BadConfig::FragmentMin(self.fragment_min));
        }
        if usize::from(self.copy_below) > crate::block::BLOCK_BYTES {
            return Err(BadConfig::CopyBelow(self.copy_below));
        }
        Ok(Limits {
            memory_bytes: self.memory_bytes,
            shards: self.shards,
            tables: self.shards,
            buckets: 1,
            datagrams_max: each,
            fragments_max: self.fragments_max,
            fragment_min: self.fragment_min,
            copy_below: self.copy_below,
            timeout_ns: [self.timeout_v4_ns, self.timeout_v6_ns],
            overlap: self.overlap,
            whole_header: self.whole_header,
            reuse: reuse(self.shards),
            reuse_near: reuse(self.shards),
        })
    }
}

/// Each table sees its part of a flow's datagrams, for which a keyed hash chooses. Of the 4096 tables that there may be
/// one sees 16 between two uses of an identification, by chance fewer than the 8 that are half of that once in a
/// hundred times.
fn reuse(tables: u32) -> u32 {
    REUSE / tables
}

impl Limits {
    /// For one of so many tables that all shards share. These count together what a flow has begun; of that each begins
    /// its part, as a keyed hash has it, and hardly ever less than half of it.
    pub(crate) fn shared(&self, tables: u32) -> Self {
        let all = self.datagrams_max.saturating_mul(self.shards);
        let datagrams_max = (all / tables).max(1);
        let reuse_near = if tables == 1 { REUSE } else { reuse(tables) / 2 };
        Self { tables, buckets: tables, datagrams_max, reuse: REUSE, reuse_near, ..self.clone() }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    type Change = fn(&mut Config);

    fn check(change: Change) -> Result<Limits, BadConfig> {
        let mut config = Config::default();
        change(&mut config);
        config.limits()
    }

    #[test]
    fn settings_that_cannot_be_are_told_with_what_could() {
        let wrong: [(Change, &str); 8] = [
            (|c| c.memory_bytes = 65_535, "memory_bytes is 65535: at least 65536 are needed"),
            (|c| c.shards = 0, "shards is 0: 1 to 4096"),
            (|c| c.shards = 4097, "shards is 4097: 1 to 4096"),
            (|c| c.datagrams_max = 0, "datagrams_max is 0: 1 to 16777216 for each shard"),
            (|c| c.fragments_max = 1, "fragments_max is 1: 2 to 8192"),
            (|c| c.fragments_max = 8193, "fragments_max is 8193: 2 to 8192"),
            (|c| c.fragment_min = 1281, "fragment_min is 1281: at most 1280"),
            (|c| c.copy_below = 513, "copy_below is 513: at most 512"),
        ];
        for (change, words) in wrong {
            assert_eq!(check(change).map(|_| ()).map_err(|e| e.to_string()), Err(words.into()));
        }
        let most: Change = |c| {
            (c.memory_bytes, c.shards, c.datagrams_max) = (u64::MAX, 4096, u32::MAX);
            (c.fragments_max, c.fragment_min, c.copy_below) = (8192, 1280, 512);
        };
        assert!(check(most).is_ok());
    }

    #[test]
    fn there_are_never_more_datagrams_than_was_said() {
        let limits = check(|c| (c.shards, c.datagrams_max) = (3, 10)).unwrap();
        assert_eq!((limits.datagrams_max, limits.shared(4).datagrams_max), (3, 2));
        let too_few = check(|c| (c.shards, c.datagrams_max) = (3, 2));
        assert_eq!(too_few.map(|_| ()), Err(BadConfig::Datagrams(2)));
        let one = check(|c| c.datagrams_max = 1).unwrap();
        assert_eq!((one.datagrams_max, one.shared(256).datagrams_max), (1, 1));
    }

    #[test]
    fn what_is_shared_is_divided() {
        let limits = check(|c| c.shards = 4).unwrap();
        assert_eq!((limits.datagrams_max, limits.reuse), (1 << 18, 8192));
        let bucket = limits.shared(256);
        assert_eq!((bucket.datagrams_max, bucket.tables, bucket.buckets), (1 << 12, 256, 256));
        assert_eq!((bucket.memory_bytes, bucket.shards), (64 << 20, 4));
        let reuse = |tables| (limits.shared(tables).reuse, limits.shared(tables).reuse_near);
        assert_eq!([1, 256, 4096].map(reuse), [(32_768, 32_768), (32_768, 64), (32_768, 4)]);
    }
}
