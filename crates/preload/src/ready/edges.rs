//! What the processes that share a set have told of the edges of a registration, in [`Half::set_told`]: an edge is what
//! goes beyond that, and whoever tells it says so there, so that one of them does.
//!
//! A set that no fork has made common does without: how far each registration was told its process knows.

use super::*;

/// Something was told, and the word says what.
const TOLD: u64 = 1;
/// There is more to tell, whatever was told.
const ARMED: u64 = 1 << 1;
/// A sender has found no room, so that room is an edge.
const NO_ROOM: u64 = 1 << 2;
/// Where the flags of the peer are, [`end_flags`].
const END_AT: u32 = 3;
const END: u64 = 0b11 << END_AT;
/// Where the stream offset is, without its upper bits, which are not missed: 2^58 bytes do not come in between.
const TAIL_AT: u32 = 5;
const TAIL: u64 = !0 << TAIL_AT;

/// There is something to tell that offsets do not say, or that was told before: the program has asked anew.
pub(super) fn arms(w: &World, set: &Set, half: &Half, which: usize) {
    if set.tracks(w) {
        half.set_told[which].fetch_or(ARMED, Ordering::AcqRel);
    }
}

/// The same, of a registration that another process has made.
pub(super) fn arms_for_others(half: &Half, which: usize) {
    half.set_told[which].fetch_or(ARMED, Ordering::AcqRel);
}

/// A sender has found no room: room will be an edge.
pub(super) fn lacks_room(half: &Half, which: usize) {
    half.set_told[which].fetch_or(NO_ROOM, Ordering::AcqRel);
}

/// What this process knows of a registration of its own is for all from now on, unless one of them has said something
/// already: `what` there is to tell. (An edge that was there at a fork each of the two would tell.)
pub(super) fn begins(half: &Half, which: usize, r: &Registration, what: &Due) {
    let room = if r.flags.load(Ordering::Relaxed) & reg::ROOM == 0 { 0 } else { NO_ROOM };
    // Also where there is nothing yet that was asked for anew.
    let fresh = r.flags.load(Ordering::Relaxed) & reg::FRESH != 0;
    let begin = if what.events == 0 && !fresh { up_to(what) } else { ARMED };
    let unless_known = |word: u64| (word & (TOLD | ARMED) == 0).then_some(begin | word | room);
    let _ = half.set_told[which].fetch_update(Ordering::AcqRel, Ordering::Relaxed, unless_known);
}

/// Whether what there is, is more than any process has told.
pub(super) fn are_more(half: &Half, which: usize, what: &Due) -> bool {
    told_then(half.set_told[which].load(Ordering::Acquire), what).is_some()
}

/// Whoever tells an edge claims it. `false`: it is none, or another process has told it.
pub(super) fn claims(half: &Half, which: usize, what: &Due) -> bool {
    let told = |word: u64| told_then(word, what);
    half.set_told[which].fetch_update(Ordering::AcqRel, Ordering::Acquire, told).is_ok()
}

/// Whether this end of the peer's was told.
pub(super) fn has_told_end(half: &Half, which: usize, end: u32) -> bool {
    let word = half.set_told[which].load(Ordering::Acquire);
    word & TOLD != 0 && u64::from(end) << END_AT & END & !word == 0
}

fn up_to(what: &Due) -> u64 {
    TOLD | what.tail << TAIL_AT | u64::from(what.end) << END_AT & END
}

/// What the word says once `what` is told; `None`: that is no edge.
fn told_then(word: u64, what: &Due) -> Option<u64> {
    let now = up_to(what);
    let ahead = (now & TAIL).wrapping_sub(word & TAIL).cast_signed();
    let room = what.events & (OUT | WRNORM) != 0;
    let is_edge = word & TOLD == 0
        || word & ARMED != 0
        || ahead > 0 && what.events & (IN | RDNORM) != 0
        || now & END & !word != 0
        || word & NO_ROOM != 0 && room;
    // Another process may have looked later, and told already.
    let before = if word & TOLD == 0 { 0 } else { word };
    let tail = if before != 0 && ahead < 0 { before } else { now } & TAIL;
    // Room that was not there to be told is still an edge to come.
    let no_room = if room { 0 } else { word & NO_ROOM };
    is_edge.then_some(TOLD | tail | (now | before) & END | no_room)
}

#[cfg(test)]
mod tests {
    use super::super::truth::{ENDED, WAS_RESET};
    use super::*;

    fn due(events: u32, tail: u64, end: u32) -> Due {
        Due { events, tail, end }
    }

    fn told(word: u64, what: &Due) -> u64 {
        told_then(word, what).expect("an edge")
    }

    #[test]
    fn each_arrival_is_told_once() {
        let first = due(IN, 10, 0);
        let word = told(0, &first);
        assert_eq!(told_then(word, &first), None);
        let word = told(word, &due(IN | OUT, 11, 0));
        assert_eq!(told_then(word, &due(IN | OUT, 11, 0)), None);
        // One that looked before, and comes late.
        assert_eq!(told_then(word, &first), None);
        // Bytes for who asks for none are no edge.
        assert_eq!(told_then(word, &due(OUT, 12, 0)), None);
    }

    #[test]
    fn each_end_is_told_once() {
        let word = told(0, &due(IN, 7, 0));
        let word = told(word, &due(IN | RDHUP, 7, ENDED));
        assert_eq!(told_then(word, &due(IN | RDHUP, 7, ENDED)), None);
        let word = told(word, &due(IN | RDHUP | HUP, 7, ENDED | WAS_RESET));
        assert_eq!(told_then(word, &due(IN | RDHUP, 7, ENDED)), None);
        assert_eq!(told_then(word, &due(IN | RDHUP, 7, 0)), None);
    }

    #[test]
    fn who_comes_late_takes_nothing_back() {
        let word = told(0, &due(IN, 100, ENDED));
        let word = told(word | ARMED, &due(IN, 50, 0));
        assert_eq!(told_then(word, &due(IN, 100, ENDED)), None);
        assert!(told_then(word, &due(IN, 101, ENDED)).is_some());
    }

    #[test]
    fn asked_anew_is_an_edge_whatever_was_told() {
        let what = due(IN, 10, 0);
        let word = told(told(0, &what) | ARMED, &what);
        assert_eq!(told_then(word, &what), None);
    }

    #[test]
    fn room_is_an_edge_after_there_was_none() {
        let word = told(0, &due(OUT, 0, 0)) | NO_ROOM;
        // Bytes come first: room is still to come.
        let word = told(word, &due(IN, 5, 0));
        assert_eq!(told_then(word, &due(IN, 5, 0)), None);
        let word = told(word, &due(IN | OUT, 5, 0));
        assert_eq!(told_then(word, &due(IN | OUT, 5, 0)), None);
    }

    #[test]
    fn offsets_may_pass_where_their_upper_bits_are_cut_off() {
        let end = 1 << (64 - TAIL_AT);
        let word = told(0, &due(IN, end - 1, 0));
        let word = told(word, &due(IN, end + 3, 0));
        assert_eq!(told_then(word, &due(IN, end - 1, 0)), None);
        assert_eq!(told_then(word, &due(IN, end + 3, 0)), None);
    }
}
