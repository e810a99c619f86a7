//! Who uses how much, so that one source cannot take what others need.

use crate::key::{HashKey, Key};
use crate::slab::NONE;

/// Sources are told apart by a keyed hash of their prefix. Two that meet share their share.
const SOURCES: usize = 1024;

/// A source's datagrams in progress.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Memory they hold or that is set aside for them, bytes.
    pub(crate) bytes: u64,
    /// How many.
    pub(crate) count: u32,
    /// The one that began last.
    pub(crate) youngest: u32,
}

/// Flows are told apart by a keyed hash: what an identification is one of. Those that meet seem to use it up together.
const FLOWS: usize = 1024;

/// All sources of a shard.
#[derive(Debug)]
pub(crate) struct Sources {
    all: Box<[Source; SOURCES]>,
    /// Datagrams that flows have ever begun; wraps.
    begun: Box<[u32; FLOWS]>,
    /// By which flows are told apart: always the same, since datagrams are compared with others that began long ago.
    secret: HashKey,
    /// The one that was found to use most.
    top: u16,
    /// Times that this may be believed before all are looked at again.
    believed: u32,
}

/// Looking at all sources takes a microsecond; in between, one that shrinks may be taken for the heaviest.
const BELIEVED: u32 = 8;

impl Sources {
    /// What they take, bytes.
    pub(crate) const BYTES: u64 = (SOURCES * size_of::<Source>() + FLOWS * size_of::<u32>()) as u64;

    pub(crate) fn new(secret: HashKey) -> Self {
        let none = Source { bytes: 0, count: 0, youngest: NONE };
        let all = vec![none; SOURCES].into_boxed_slice();
        let Ok(all) = <Box<[Source; SOURCES]>>::try_from(all) else {
            unreachable!("so many sources were made")
        };
        Self { all, begun: Box::new([0; FLOWS]), secret, top: 0, believed: 0 }
    }

    #[inline]
    pub(crate) fn of(&self, key: &Key, secret: &HashKey) -> u16 {
        (secret.hash_word(key.source_prefix() ^ key.scope.rotate_left(32)) >> 54) as u16
    }

    /// Datagrams of IPv4 that were begun with the addresses and the protocol of a key: among those an identification
    /// is one's own (RFC 6864 section 4).
    #[inline]
    pub(crate) fn begun(&mut self, key: &Key) -> &mut u32 {
        let flow = (key.src[1] << 32 | key.dst[1]) ^ key.id >> 32 ^ key.scope.rotate_left(24);
        &mut self.begun[(self.secret.hash_word(flow) >> 54) as usize % FLOWS]
    }

    #[inline]
    pub(crate) fn charge(&mut self, at: u16, bytes: u64) {
        let now = self[at].bytes + bytes;
        self[at].bytes = now;
        if now > self[self.top].bytes {
            self.top = at;
        }
    }

    #[inline]
    pub(crate) fn refund(&mut self, at: u16, bytes: u64) {
        self[at].bytes -= bytes;
    }

    /// The source that uses most, or did a moment ago.
    pub(crate) fn heaviest(&mut self) -> u16 {
        if self.believed == 0 {
            let heaviest = (0u16..).zip(self.all.iter()).max_by_key(|(_, source)| source.bytes);
            self.top = heaviest.map_or(0, |(at, _)| at);
            self.believed = BELIEVED;
        }
        self.believed -= 1;
        self.top
    }
}

impl std::ops::Index<u16> for Sources {
    type Output = Source;
    #[inline]
    fn index(&self, at: u16) -> &Source {
        &self.all[usize::from(at) % SOURCES]
    }
}

impl std::ops::IndexMut<u16> for Sources {
    #[inline]
    fn index_mut(&mut self, at: u16) -> &mut Source {
        &mut self.all[usize::from(at) % SOURCES]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_heaviest_is_found_some_time_after_it_has_shrunk() {
        let mut sources = Sources::new(HashKey::new([1, 2]));
        sources.charge(3, 100);
        sources.charge(9, 90);
        assert_eq!(sources.heaviest(), 3);
        sources.refund(3, 20);
        assert!((0..=BELIEVED).any(|_| sources.heaviest() == 9));
        // Whoever grows beyond it is known at once.
        sources.charge(3, 11);
        assert_eq!((sources.heaviest(), sources[3].bytes), (3, 91));
    }

    #[test]
    fn sources_are_spread_and_networks_stay_together() {
        let secret = HashKey::new([1, 2]);
        let sources = Sources::new(secret.successor());
        let of = |src| sources.of(&Key::v4(src, 1, 1, 1, 0), &secret);
        assert_eq!(of(0x0a00_0001), of(0x0a00_00fe));
        let mut used: Vec<u16> = (0..1024).map(|n| of(n << 8)).collect();
        used.sort_unstable();
        used.dedup();
        // 1 - 1/e of them, as chance has it.
        assert!((580..720).contains(&used.len()), "{}", used.len());
    }
}
