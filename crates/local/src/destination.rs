//! Destinations on other hosts whose connections stay on TCP for now: the engine says which and for how long,
//! guests look before they ask for SMC.
//!
//! A destination has one word on the board: a tag of its address, and the time until which its connections
//! stay on TCP. After that time one that begins asks for SMC again, as a trial; the engine, to which it is
//! handed over, then sets the time anew. So nobody has to wake up because time has passed. The engine is the
//! only writer. Two destinations with one tag in one line share their word, which costs one of them SMC and
//! nothing else.

use std::net::{Ipv6Addr, SocketAddrV6};

use sys::abi::{DESTINATION_LINES, DESTINATION_WAYS};
use sys::call;
use sys::sync::Ordering;

use crate::board::Board;

/// Bits by which nanoseconds are shifted to be the time of a word, which has 67 milliseconds to a unit and
/// comes round after nine years.
const UNIT_SHIFT: u32 = 26;

/// Where a destination's word is on the board, and how it is told from others there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its line, below [`DESTINATION_LINES`].
    pub line: usize,
    tag: u32,
}

impl Place {
    /// Of an address and port; IPv4 mapped into IPv6.
    #[must_use]
    pub fn of(to: SocketAddrV6) -> Self {
        let ip = u128::from(*to.ip());
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        let words = [(ip >> 64) as u64, ip as u64, u64::from(to.port())];
        let mut h = 0u64;
        for word in words {
            h = (h ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
        h ^= h >> 32;
        h = h.wrapping_mul(0xd6e8_feb8_6659_fd93);
        #[expect(clippy::cast_possible_truncation, reason = "masked, and cut out on purpose")]
        let (line, tag) = (h as usize & (DESTINATION_LINES - 1), (h >> 32) as u32 | 1);
        Self { line, tag }
    }

    /// By which it is told from others of its line; never 0.
    pub(crate) const fn tag(self) -> u32 {
        self.tag
    }

    /// The word that says until when, in nanoseconds of the monotonic clock; never 0. Its time comes with
    /// `until_ns` or a little later, never before: to the engine, who asks before that is no trial, and nothing
    /// would keep the next ones from asking too.
    #[must_use]
    pub const fn word(self, until_ns: u64) -> u64 {
        let up = until_ns.saturating_add((1 << UNIT_SHIFT) - 1);
        (self.tag as u64) << 32 | moment(up) as u64
    }

    /// Whether `word` is this destination's.
    const fn has(self, word: u64) -> bool {
        word >> 32 == self.tag as u64
    }
}

/// Where it is noted that an engine of the host at `ip` is known: at port 0, to which nobody connects. As
/// long as its time has not come, listeners hand over what comes from there.
#[must_use]
pub const fn meeting(ip: Ipv6Addr) -> SocketAddrV6 {
    SocketAddrV6::new(ip, 0, 0, 0)
}

/// The unit that a time is in.
#[expect(clippy::cast_possible_truncation, reason = "it comes round")]
const fn moment(ns: u64) -> u32 {
    (ns >> UNIT_SHIFT) as u32
}

/// Whether a word's time has not come at `now_ns`.
#[expect(clippy::cast_possible_truncation, reason = "the time is the low half")]
const fn is_ahead(word: u64, now_ns: u64) -> bool {
    (word as u32).wrapping_sub(moment(now_ns)).cast_signed() > 0
}

impl Board {
    /// Whether a connection that begins now to this destination stays on TCP.
    #[must_use]
    pub fn stays_on_tcp(&self, to: SocketAddrV6) -> bool {
        self.is_noted(to)
    }

    /// Whether the engine knows one on the host at `ip`, so that connections that come from there may be
    /// its guests', and are handed over: see [`meeting`].
    #[must_use]
    pub fn has_met(&self, ip: Ipv6Addr) -> bool {
        self.is_noted(meeting(ip))
    }

    fn is_noted(&self, to: SocketAddrV6) -> bool {
        let place = Place::of(to);
        let word = self
            .map
            .destinations(place.line)
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .find(|word| place.has(*word));
        // The clock is looked at only where there is something to compare it with.
        word.is_some_and(|word| is_ahead(word, call::now_ns()))
    }

    /// Engine: puts `word` at a way of a line; see [`Place::word`]. 0: no connection stays on TCP for it.
    pub fn note_destination(&self, line: usize, way: usize, word: u64) {
        if let Some(at) = self.map.destinations(line).get(way) {
            at.store(word, Ordering::Relaxed);
        }
    }

    /// Engine: what is known of destinations there, guests of this board know as well.
    pub fn learn_destinations(&self, from: &Self) {
        for line in 0..DESTINATION_LINES {
            for (way, word) in from.map.destinations(line).iter().enumerate() {
                self.note_destination(line, way, word.load(Ordering::Relaxed));
            }
        }
    }

    /// Engine: nothing is known of any destination.
    pub(crate) fn forget_destinations(&self) {
        for line in 0..DESTINATION_LINES {
            for way in 0..DESTINATION_WAYS {
                self.note_destination(line, way, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::Ipv4Addr;

    use super::*;

    fn to(host: u8, port: u16) -> SocketAddrV6 {
        let ip = Ipv4Addr::new(10, 0, 0, host).to_ipv6_mapped();
        SocketAddrV6::new(ip, port, 0, 0)
    }

    #[test]
    fn a_word_is_of_one_destination_and_one_time() {
        let (one, other) = (Place::of(to(1, 80)), Place::of(to(1, 81)));
        let now = 5_000_000_000_000;
        let word = one.word(now + 1_000_000_000);
        assert!(one.has(word) && !other.has(word) && !one.has(0));
        assert!(is_ahead(word, now));
        assert!(!is_ahead(word, now + 1_068_000_000));
        assert!(!is_ahead(word, now + 60_000_000_000));
    }

    #[test]
    fn its_time_does_not_come_before_the_time_that_was_said() {
        let unit = 1 << UNIT_SHIFT;
        for until in [7 * unit, 7 * unit + 1, 7 * unit + unit / 2, 8 * unit - 1] {
            let word = Place::of(to(1, 80)).word(until);
            assert!(is_ahead(word, until - 1), "{until}");
            assert!(!is_ahead(word, until + unit), "{until}");
        }
    }

    #[test]
    fn its_time_comes_although_the_count_comes_round() {
        let end = u64::from(u32::MAX) << UNIT_SHIFT;
        let word = Place::of(to(1, 80)).word(end + 200_000_000);
        assert!(is_ahead(word, end - 100_000_000));
        assert!(!is_ahead(word, end + 400_000_000));
    }

    #[test]
    fn neighbours_lie_apart() {
        let lines: HashSet<_> = (0..=255).map(|host| Place::of(to(host, 80)).line).collect();
        assert!(lines.len() > 150, "{}", lines.len());
        let ports: HashSet<_> = (1..=256).map(|port| Place::of(to(1, port)).line).collect();
        assert!(ports.len() > 150, "{}", ports.len());
    }
}
