//! What was seen and done.

use frag::{Counters, Reason};

use super::file::Damage;

/// Link types that we do not know and keep in mind.
pub const UNKNOWN_LINKS_MAX: usize = 32;

/// Counts of one run.
#[derive(Debug, Default)]
pub struct Report {
    /// Packets that were read.
    pub packets: u64,
    /// Bytes that were read, with those of the file's own.
    pub bytes: u64,
    /// Packets that were written.
    pub written: u64,
    /// Fragments, reassembly and its losses; without datagrams that did not fit into their tunnel.
    pub frag: Counters,
    /// Datagrams that were not complete at the end.
    pub incomplete: u64,
    /// Fragments that were written as they came, for they make no datagram.
    pub kept: u64,
    /// Packets that hold less than they had on the wire and were written so; fragments among them make no datagram, and
    /// count there.
    pub cut: u64,
    /// Packets with an IP header that makes no sense.
    pub malformed: u64,
    /// Packets of links that we do not know.
    pub unknown_link: u64,
    /// Link types of those: the first [`UNKNOWN_LINKS_MAX`] that came.
    pub unknown_links: Vec<u32>,
    /// Whether there were more.
    pub more_unknown_links: bool,
    /// Fragments in tunnels whose datagram was complete but would not fit into its tunnel.
    pub too_long: u64,
    /// Where the input stopped making sense.
    pub damage: Option<Damage>,
}

impl Report {
    /// Why fragments and datagrams were dropped: reason, fragments on their own, datagrams.
    pub fn dropped(&self) -> impl Iterator<Item = (Reason, u64, u64)> + '_ {
        let all = Reason::ALL.iter().filter(|reason| **reason != Reason::Cleared);
        let counted = all.map(|r| (*r, self.frag.fragments(*r), self.frag.datagrams(*r)));
        counted.filter(|(_, fragments, datagrams)| fragments + datagrams > 0)
    }
}
