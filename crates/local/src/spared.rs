//! Destinations to which connections of this process have been too short of late to gain anything here.
//!
//! A connection that carries one request is mostly the kernel's: made, accepted and closed there. Where its client sleeps
//! in the kernel until the answer comes, that costs a doorbell too, by TCP, and all that shared memory has to do with it is
//! lost. What a connection will carry nobody knows, but it is mostly what those before it have: after many in a row in
//! little time that have gained nothing the next are left to TCP, but for some by which is seen whether that changes.

use sys::sync::{AtomicU32, AtomicU64, Ordering};

use crate::destination::Place;

/// So many in a row, within [`TIME_NS`], are a habit.
const MANY: u32 = 64;
/// One of so many is tried.
const TRIAL: u32 = 64;
/// How long a habit is remembered after the last trial that has confirmed it, nanoseconds.
const TIME_NS: u64 = 1_000_000_000;
/// Destinations that are remembered; of two in one place the one that gains nothing has it.
const PLACES: usize = 64;

/// What is known of a destination.
#[derive(Debug, Default)]
struct Known {
    /// Its tag in the upper half, and below how many connections in a row have gained nothing, [`MANY`] at most: in one word,
    /// so that none has another one's habit.
    row: AtomicU64,
    /// When the first of them ended; of a habit, until when it is remembered.
    at: AtomicU64,
    /// Connections begun since it is a habit.
    begun: AtomicU32,
}

/// What is known of destinations. Of threads that change it at once one may lose its connection, which nobody misses.
#[derive(Debug)]
pub(crate) struct Spared([Known; PLACES]);

/// See [`Known::row`].
fn word(to: Place, in_a_row: u32) -> u64 {
    u64::from(to.tag()) << 32 | u64::from(in_a_row)
}

/// How many in a row the word says of this destination; `None`: it is another one's.
#[expect(clippy::cast_possible_truncation, reason = "the lower half")]
fn in_row(row: u64, to: Place) -> Option<u32> {
    (row >> 32 == u64::from(to.tag())).then_some(row as u32)
}

impl Default for Spared {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Known::default()))
    }
}

impl Spared {
    fn known(&self, to: Place) -> &Known {
        &self.0[to.line % PLACES]
    }

    /// A connection has ended; `gained`: something has gone by shared memory without a doorbell for it.
    pub(crate) fn ended(&self, to: Place, gained: bool, now_ns: u64) {
        let known = self.known(to);
        let row = known.row.load(Ordering::Relaxed);
        let so_far = match in_row(row, to) {
            Some(n) => n,
            None if gained => return,
            None => 0,
        };
        let began = known.at.load(Ordering::Relaxed);
        let (now, at) = match so_far {
            _ if gained => (0, began),
            0 => (1, now_ns),
            MANY.. => (MANY, now_ns + TIME_NS),
            // Who makes few of them loses little, and may make others.
            _ if so_far + 1 == MANY && now_ns.saturating_sub(began) > TIME_NS => (1, now_ns),
            _ if so_far + 1 == MANY => (MANY, now_ns + TIME_NS),
            _ => (so_far + 1, began),
        };
        let changed =
            known.row.compare_exchange(row, word(to, now), Ordering::Relaxed, Ordering::Relaxed);
        if changed.is_ok() && at != began {
            known.at.store(at, Ordering::Relaxed);
        }
    }

    /// Whether a connection that begins now is left to TCP. `now_ns` is asked only where it matters.
    pub(crate) fn is_spared(&self, to: Place, now_ns: impl FnOnce() -> u64) -> bool {
        let known = self.known(to);
        let row = known.row.load(Ordering::Relaxed);
        if in_row(row, to) != Some(MANY) {
            return false;
        }
        if now_ns() > known.at.load(Ordering::Relaxed) {
            let _ =
                known.row.compare_exchange(row, word(to, 0), Ordering::Relaxed, Ordering::Relaxed);
            return false;
        }
        let nth = known.begun.fetch_add(1, Ordering::Relaxed);
        !nth.is_multiple_of(TRIAL)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, SocketAddrV6};

    use super::*;

    const NOW: u64 = 5_000_000_000;

    fn place(port: u16) -> Place {
        Place::of(SocketAddrV6::new(Ipv6Addr::LOCALHOST, port, 0, 0))
    }

    fn with_habit() -> Spared {
        let spared = Spared::default();
        for _ in 0..MANY {
            assert!(!spared.is_spared(place(80), || NOW), "not yet");
            spared.ended(place(80), false, NOW);
        }
        spared
    }

    /// How many of so many connections are left to TCP.
    fn of(spared: &Spared, port: u16, now_ns: u64) -> usize {
        (0..4 * TRIAL).filter(|_| spared.is_spared(place(port), || now_ns)).count()
    }

    #[test]
    fn after_many_in_a_row_most_are_left_to_tcp_and_some_are_tried() {
        let spared = with_habit();
        assert_eq!(of(&spared, 80, NOW), 4 * (TRIAL as usize - 1));
        assert_eq!(of(&spared, 81, NOW), 0, "other destinations are none of it");
    }

    #[test]
    fn one_that_gains_something_ends_it() {
        let spared = with_habit();
        spared.ended(place(80), true, NOW);
        assert_eq!(of(&spared, 80, NOW), 0);
        spared.ended(place(80), false, NOW);
        assert_eq!(of(&spared, 80, NOW), 0, "in a row again");
    }

    #[test]
    fn it_is_forgotten_unless_a_trial_confirms_it() {
        let spared = with_habit();
        spared.ended(place(80), false, NOW + TIME_NS / 2);
        assert_ne!(of(&spared, 80, NOW + TIME_NS + 1), 0);
        assert_eq!(of(&spared, 80, NOW + 2 * TIME_NS), 0);
    }

    #[test]
    fn few_in_a_long_time_are_none() {
        let spared = Spared::default();
        let each = 2 * TIME_NS / u64::from(MANY);
        for nth in 0..10 * u64::from(MANY) {
            assert!(!spared.is_spared(place(80), || NOW + nth * each));
            spared.ended(place(80), false, NOW + nth * each);
        }
    }

    #[test]
    fn of_two_destinations_in_one_place_the_short_ones_are_remembered() {
        let spared = Spared::default();
        let first = place(80);
        let second =
            (1..).map(place).find(|p| p.line % PLACES == first.line % PLACES && *p != first);
        let second = second.unwrap();
        (0..MANY).for_each(|_| spared.ended(first, false, NOW));
        spared.ended(second, true, NOW);
        assert!((0..2).any(|_| spared.is_spared(first, || NOW)));
        spared.ended(second, false, NOW);
        assert!(!(0..TRIAL).any(|_| spared.is_spared(first, || NOW)));
        assert!(!(0..TRIAL).any(|_| spared.is_spared(second, || NOW)));
    }
}
