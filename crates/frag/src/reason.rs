//! Why a fragment or a datagram was dropped: numbered, in words, counted.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $key:literal, $words:literal;)*) => {
        /// Why something was dropped. The numbers never change their meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason {
            $($(#[$doc])* $name = $code,)*
        }

        impl Reason {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// For programs: a name of lower-case letters and underscores.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key,)* }
            }

            /// For people.
            #[must_use]
            pub const fn words(self) -> &'static str {
                match self { $(Self::$name => $words,)* }
            }
        }
    };
}

reasons! {
    /// The packet ends before its headers do, or before its own length says.
    Truncated = 1, "truncated", "packet is shorter than its headers say";
    /// Version, header length or an extension header make no sense.
    BadHeader = 2, "bad_header", "header makes no sense";
    /// A fragment without payload.
    Empty = 3, "empty", "fragment has no payload";
    /// A fragment that is not the last and whose payload is no multiple of 8 bytes (RFC 791, RFC 8200
    /// section 4.5).
    Unaligned = 4, "unaligned", "fragment in the middle is not a multiple of 8 bytes";
    /// The datagram would be longer than 65,535 bytes.
    Oversize = 5, "oversize", "datagram would be longer than 65535 bytes";
    /// Fragments overlap (RFC 5722): the datagram is gone.
    Overlap = 6, "overlap", "fragments overlap";
    /// Fragments disagree about where the datagram ends: it is gone.
    EndConflict = 7, "end_conflict", "fragments disagree about the end";
    /// The same fragment again. Nothing is lost.
    Duplicate = 8, "duplicate", "fragment was here already";
    /// More fragments in one datagram than [`Config::fragments_max`](crate::Config::fragments_max).
    TooMany = 9, "too_many", "datagram has too many fragments";
    /// Some fragments say that the transport knows ECN and some that it does not (RFC 3168 section 5.3).
    Ecn = 10, "ecn", "congestion marks contradict each other";
    /// A new datagram that could not be finished within the memory that is left.
    NoMemory = 11, "no_memory", "no memory to finish another datagram";
    /// A new datagram of a source that has its share.
    NoShare = 12, "no_share", "source has its share of memory";
    /// A later fragment of a datagram that was refused or given up.
    Refused = 13, "refused", "rest of a datagram that was refused";
    /// The youngest datagram made room for older ones.
    EvictedYoung = 14, "evicted_young", "given up for older datagrams";
    /// A datagram in which nothing moved made room.
    EvictedIdle = 15, "evicted_idle", "given up because nothing came for it";
    /// A datagram of the source that uses most made room for another source.
    EvictedShare = 16, "evicted_share", "given up for other sources";
    /// Time is up; the first fragment is there (an ICMP message may be sent).
    Timeout = 17, "timeout", "not complete in time";
    /// Time is up, and the first fragment never came.
    TimeoutNoFirst = 18, "timeout_no_first", "not complete in time, first fragment missing";
    /// The first fragment does not hold all headers (RFC 7112).
    IncompleteHeader = 19, "incomplete_header", "first fragment does not hold all headers";
    /// More datagrams in progress than [`Config::datagrams_max`](crate::Config::datagrams_max).
    TooManyDatagrams = 20, "too_many_datagrams", "too many datagrams in progress";
    /// A fragment in the middle that is smaller than [`Config::fragment_min`](crate::Config::fragment_min).
    Tiny = 21, "tiny", "fragment is too small";
    /// A fragment header inside of a fragment.
    Nested = 22, "nested", "fragment header inside of a fragment";
    /// The identification came round: what was left of its last user is gone (RFC 4963).
    Stale = 23, "stale", "identification was used again";
    /// The caller asked for it: see [`Shard::clear`](crate::Shard::clear). Or its sink panicked when it was to take the
    /// datagram: see [`Sink::datagram`](crate::Sink::datagram).
    Cleared = 24, "cleared", "given up on request";
    /// The datagram's buffers cost more than there is memory in all, or than 4 GiB: see
    /// [`Arrival::cost`](crate::Arrival::cost).
    TooCostly = 25, "too_costly", "buffers cost more than there is memory";
    /// The checksum of an IPv4 header is wrong: see [`wire::is_sound`](crate::wire::is_sound).
    Checksum = 26, "checksum", "wrong IPv4 header checksum";
}

/// One more than the largest number of a [`Reason`].
pub const REASONS: usize = 27;

impl Reason {
    /// Whether a datagram went for others.
    pub(crate) const fn is_eviction(self) -> bool {
        matches!(self, Self::EvictedIdle | Self::EvictedShare | Self::EvictedYoung)
    }
}

/// What a shard has seen and done. All counts only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that were no fragments.
    pub whole: u64,
    /// Fragments handed in, good or bad.
    pub fragments: u64,
    /// Datagrams put together, atomic fragments (RFC 6946) among them.
    pub datagrams: u64,
    /// Bytes of payload in those.
    pub bytes: u64,
    /// Fragments that those came in.
    pub fragments_delivered: u64,
    /// Fragments that were copied into compact blocks.
    pub copied: u64,
    /// Fragments dropped on their own, by reason.
    pub fragments_dropped: [u64; REASONS],
    /// Datagrams given up, by reason.
    pub datagrams_dropped: [u64; REASONS],
    /// Fragments that went with those.
    pub fragments_lost: u64,
    /// Times that the table grew, shrank or changed its key.
    pub resized: u64,
}

impl Counters {
    /// Fragments that were dropped on their own for this reason.
    #[must_use]
    pub const fn fragments(&self, reason: Reason) -> u64 {
        self.fragments_dropped[reason as usize]
    }

    /// Datagrams that were given up for this reason.
    #[must_use]
    pub const fn datagrams(&self, reason: Reason) -> u64 {
        self.datagrams_dropped[reason as usize]
    }

    /// Fragments of datagrams that were in progress when this was counted: what has come, and is neither delivered nor
    /// dropped nor lost.
    #[must_use]
    pub fn fragments_in_progress(&self) -> u64 {
        let dropped: u64 = self.fragments_dropped.iter().sum();
        self.fragments.saturating_sub(dropped + self.fragments_lost + self.fragments_delivered)
    }

    /// Adds another shard's.
    pub fn add(&mut self, other: &Self) {
        self.whole += other.whole;
        self.fragments += other.fragments;
        self.datagrams += other.datagrams;
        self.bytes += other.bytes;
        self.fragments_delivered += other.fragments_delivered;
        self.copied += other.copied;
        self.fragments_lost += other.fragments_lost;
        self.resized += other.resized;
        for (mine, theirs) in self.fragments_dropped.iter_mut().zip(&other.fragments_dropped) {
            *mine += theirs;
        }
        for (mine, theirs) in self.datagrams_dropped.iter_mut().zip(&other.datagrams_dropped) {
            *mine += theirs;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_from_one_and_named_once() {
        let numbers = Reason::ALL.iter().map(|reason| *reason as usize);
        assert!(numbers.eq(1..REASONS));
        for reason in Reason::ALL {
            let same = Reason::ALL.iter().filter(|other| other.key() == reason.key());
            assert_eq!(same.count(), 1);
            assert!(reason.key().bytes().all(|b| b.is_ascii_lowercase() || b == b'_'));
            assert!(!reason.words().is_empty());
        }
    }

    #[test]
    fn counters_of_two_shards_add_up() {
        let mut one = Counters { whole: 1, fragments: 2, bytes: 3, ..Counters::default() };
        one.fragments_dropped[Reason::Tiny as usize] = 4;
        let mut two = Counters { datagrams: 5, copied: 6, resized: 7, ..one.clone() };
        two.datagrams_dropped[Reason::Ecn as usize] = 8;
        (two.fragments, two.fragments_lost, two.fragments_delivered) = (40, 9, 10);
        assert_eq!(two.fragments_in_progress(), 40 - 4 - 9 - 10);
        one.add(&two);
        assert_eq!((one.whole, one.fragments, one.bytes, one.datagrams), (2, 42, 6, 5));
        assert_eq!((one.copied, one.resized, one.fragments_lost), (6, 7, 9));
        assert_eq!((one.fragments_delivered, one.fragments_in_progress()), (10, 42 - 8 - 9 - 10));
        assert_eq!((one.fragments(Reason::Tiny), one.datagrams(Reason::Ecn)), (8, 8));
    }
}
