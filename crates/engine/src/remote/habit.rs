//! Whether SMC pays for connections to a destination: learned from those that were.
//!
//! To set an SMC connection up costs some hundred microseconds of CPU at either end; each round trip that then
//! goes by RDMA brings a little of that back. So each destination (address and port that a guest connects to)
//! has a **score**, in round trips: a connection adds what it had, less what it cost. Below [`LOW`] new
//! connections stay on TCP, where they cost nothing; now and then one is let through, as a trial, and when
//! trials have brought the score up to [`HIGH`], SMC is back. The two marks are so far apart that neither a
//! few short connections among long ones nor the reverse changes anything.
//!
//! A **stream** (many bytes for each round trip) is what TCP does as well or better than our own RoCEv2: its segments are
//! put together by the card or the kernel, 64 KiB at a time, and its window grows with the path. So bytes are worth
//! something beside round trips only, and a connection that turns out to be a stream takes from the score. A card that
//! speaks RoCEv2 itself makes, sums and acknowledges its packets: there bytes are worth more, and nothing is taken for a
//! stream.
//!
//! Only the client's end decides. It may leave the option out of its SYN; a listener that answered it at one
//! time and not at another could say one thing in a SYN-ACK and another on the accepted socket. Both ends of a
//! connection see the same round trips, so nothing is lost by it between two of us.
//!
//! Values: no I/O, no clock. What is published ([`Change`]) has the shape of the table on the board
//! (`local::destination`), so that the memory is bounded and a place there is a place here.

use std::net::{Ipv6Addr, SocketAddrV6};

use local::destination::{self, Place};
use sys::abi::{DESTINATION_LINES, DESTINATION_WAYS};

/// What it costs to set a connection up, in round trips that must go by SMC to make up for it.
const SETUP: i32 = 16;
/// So many bytes in either direction are worth a round trip.
const WORTH_BYTES: u64 = 64 << 10;
/// By our own RoCEv2 the bytes of a connection are worth as many round trips as it has, times this, and a set-up.
const WORTH_OF_BYTES_MAX: u32 = 4;
/// A connection that has moved so many bytes, and so many for each round trip, is a stream.
const STREAM_BYTES: u64 = 16 << 20;
const STREAM_TURN_BYTES: u64 = 256 << 10;
/// What a stream takes from the score of its destination, in round trips: one, and the next connections stay on TCP,
/// unless others have been worth their set-up.
const STREAM: i32 = 160;
/// With less than this, connections stay on TCP: nine with one round trip each.
const LOW: i32 = -128;
/// With so much, those that stayed on TCP go by SMC again.
const HIGH: i32 = 0;
/// What is remembered of the past, at most: good and bad.
const SCORE_MAX: i32 = 256;
/// Time until the first trial, nanoseconds.
const WAIT_MIN_NS: u64 = 1_000_000_000;
/// The most that it becomes, doubled by each trial that did not pay, nanoseconds.
const WAIT_MAX_NS: u64 = 64_000_000_000;
/// Both for a destination of streams: each trial of one is all of a long transfer.
const STREAM_WAIT_MIN_NS: u64 = 60_000_000_000;
const STREAM_WAIT_MAX_NS: u64 = 86_400_000_000_000;

/// What to add to the score when nobody under Shunt listens at the destination: its connections stay on TCP at
/// once.
pub(super) const NOBODY: i32 = -2 * SCORE_MAX;
/// What to add when somebody does after all: a destination that was left to TCP because of nobody is not any more.
/// Whether connections there are long enough is another matter, of which this says nothing.
pub(super) const SOMEBODY: i32 = 2 * SCORE_MAX;
/// A time that does not come: half of what the words on the board can say, nanoseconds.
const MET_UNTIL: u64 = 1 << 56;

/// What one connection brings while it lasts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    turns: u32,
    bytes: u64,
    /// The last that moved was towards the guest.
    heard: bool,
    /// How much its destination has been told of, in round trips.
    told: i32,
    /// What was added for it in all.
    added: i32,
    /// It has turned out to be a stream, by our own RoCEv2.
    is_stream: bool,
}

impl Tally {
    /// So many bytes were sent and received since the last time.
    pub(super) fn moved(&mut self, sent: u64, received: u64) {
        self.bytes = self.bytes.saturating_add(sent).saturating_add(received);
        if sent > 0 {
            self.heard = false;
        }
        if received > 0 && !self.heard {
            self.heard = true;
            self.turns = self.turns.saturating_add(1);
        }
    }

    /// Round trips, and what is worth as much.
    fn worth(&self, by: Way) -> i32 {
        let bytes = u32::try_from(self.bytes / WORTH_BYTES).unwrap_or(u32::MAX);
        let bytes = match by {
            Way::Card => bytes,
            Way::Datagrams => {
                let most = self.turns.saturating_mul(WORTH_OF_BYTES_MAX);
                bytes.min(most.saturating_add(SETUP.unsigned_abs()))
            }
        };
        i32::try_from(self.turns.saturating_add(bytes)).unwrap_or(i32::MAX)
    }

    /// What to add to the score of its destination although it has not ended: at first when it has paid twice
    /// for what it cost, and then whenever it has had twice as many; or when it turns out to be a stream.
    pub(super) fn due(&mut self, by: Way) -> Option<i32> {
        if self.is_stream {
            return None;
        }
        if by == Way::Datagrams
            && self.bytes >= STREAM_BYTES
            && self.bytes / u64::from(self.turns.max(1)) >= STREAM_TURN_BYTES
        {
            self.is_stream = true;
            return Some(-STREAM - self.added);
        }
        let worth = self.worth(by);
        if worth < (self.told.saturating_mul(2)).max(2 * SETUP) {
            return None;
        }
        let gain = worth - self.told.max(SETUP);
        self.told = worth;
        self.added = self.added.saturating_add(gain);
        Some(gain)
    }

    /// What to add to it at the end.
    pub(super) fn end(&self, by: Way) -> i32 {
        if self.is_stream { 0 } else { self.worth(by) - self.told.max(SETUP) }
    }
}

/// By what the bytes of connections go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Our own RoCEv2.
    Datagrams,
    /// An RDMA device.
    Card,
}

/// What to add to the score for a connection whose handshake came to nothing.
pub(super) const NOTHING: i32 = -SETUP;

/// What is known of a destination.
#[derive(Clone, Copy, Debug)]
struct Habit {
    to: SocketAddrV6,
    /// Round trips, from -[`SCORE_MAX`] to [`SCORE_MAX`].
    score: i32,
    /// Until when connections stay on TCP, nanoseconds; `None`: they do not.
    until: Option<u64>,
    /// How long after a trial the next one is.
    wait: u64,
    /// When it was last heard of, for whose place is needed.
    at: u64,
    /// Connections stay on TCP because there seems to be nobody who speaks SMC.
    nobody: bool,
    /// Streams have taken from the score.
    streams: bool,
}

impl Habit {
    const fn new(to: SocketAddrV6, now: u64) -> Self {
        let wait = WAIT_MIN_NS;
        Self { to, score: 0, until: None, wait, at: now, nobody: false, streams: false }
    }

    /// How long after a trial the next one is, at least and at most.
    const fn waits(&self) -> (u64, u64) {
        if self.streams {
            (STREAM_WAIT_MIN_NS, STREAM_WAIT_MAX_NS)
        } else {
            (WAIT_MIN_NS, WAIT_MAX_NS)
        }
    }

    /// A connection has added `gain`. Whether that changes what new ones do.
    fn learn(&mut self, gain: i32, now: u64) -> bool {
        if gain == SOMEBODY {
            let was_spared = self.nobody && self.until.is_some();
            if self.nobody {
                *self = Self::new(self.to, now);
            }
            return was_spared;
        }
        self.at = now;
        self.nobody |= gain == NOBODY;
        // A short one takes less.
        self.streams |= gain > NOBODY && gain <= -STREAM;
        self.wait = self.wait.clamp(self.waits().0, self.waits().1);
        self.score = self.score.saturating_add(gain).clamp(-SCORE_MAX, SCORE_MAX);
        let before = self.until;
        match self.until {
            None if self.score <= LOW => self.until = Some(now + self.wait),
            Some(_) if self.score >= HIGH => {
                (self.until, self.wait, self.streams) = (None, WAIT_MIN_NS, false);
            }
            // A trial has paid: the next one at once.
            Some(until) if gain > 0 => {
                (self.until, self.wait) = (Some(until.min(now)), WAIT_MIN_NS);
            }
            _ => {}
        }
        self.until != before
    }

    /// A connection begins, which goes by SMC. Whether that changes what others do.
    fn begin(&mut self, now: u64) -> bool {
        self.at = now;
        // Others had begun before the destination was left to TCP: only a trial comes after that time.
        if self.until.is_none_or(|until| until > now) {
            return false;
        }
        self.until = Some(now + self.wait);
        self.wait = (self.wait * 2).min(self.waits().1);
        true
    }
}

/// What guests are to know of a place of the table from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The line.
    pub line: usize,
    /// The way in the line.
    pub way: usize,
    /// The word for it; 0: nothing stays on TCP because of it.
    pub word: u64,
}

/// See the module. Bounded: a destination that nothing was heard of for longest goes first.
#[derive(Debug)]
pub(super) struct Habits {
    lines: Vec<[Option<Habit>; DESTINATION_WAYS]>,
}

impl Default for Habits {
    fn default() -> Self {
        Self { lines: vec![[None; DESTINATION_WAYS]; DESTINATION_LINES] }
    }
}

impl Habits {
    /// A connection to `to` begins and goes by SMC.
    pub(super) fn begins(&mut self, to: SocketAddrV6, now: u64) -> Option<Change> {
        let place = Place::of(to);
        let line = self.lines.get_mut(place.line)?;
        let way = line.iter().position(|habit| habit.is_some_and(|habit| habit.to == to))?;
        let habit = line[way].as_mut()?;
        habit.begin(now).then(|| change(place, way, habit))
    }

    /// A connection to `to` has added `gain` to its score: see [`Tally`].
    pub(super) fn learns(&mut self, to: SocketAddrV6, gain: i32, now: u64) -> Option<Change> {
        let place = Place::of(to);
        let line = self.lines.get_mut(place.line)?;
        let known = line.iter().position(|habit| habit.is_some_and(|habit| habit.to == to));
        if known.is_none() && gain == SOMEBODY {
            return None;
        }
        let way = known.or_else(|| {
            // The empty ones are the oldest.
            (0..line.len()).min_by_key(|way| line[*way].map_or(0, |habit| habit.at + 1))
        })?;
        let forgotten = known.is_none() && line[way].is_some_and(|habit| habit.until.is_some());
        let habit = line[way].take().filter(|_| known.is_some());
        let mut habit = habit.unwrap_or_else(|| Habit::new(to, now));
        let changed = habit.learn(gain, now) || forgotten;
        line[way] = Some(habit);
        changed.then(|| change(place, way, &habit))
    }

    /// Connections to `to` stay on TCP for so long, nanoseconds, whatever was learned: there is nobody who
    /// speaks SMC.
    pub(super) fn spare(&mut self, to: SocketAddrV6, wait: u64, now: u64) -> Option<Change> {
        let until = Some(now + wait);
        self.put(to, Some(Habit { until, nobody: true, ..Habit::new(to, now) }))
    }

    /// Whether listeners hand over what comes from a host, which is noted at port 0 of it
    /// ([`local::destination::meeting`]).
    pub(super) fn mark(&mut self, host: Ipv6Addr, on: bool) -> Option<Change> {
        let to = destination::meeting(host);
        // Without end, and the last to go.
        let met = Habit { until: Some(MET_UNTIL), ..Habit::new(to, u64::MAX - 1) };
        self.put(to, on.then_some(met))
    }

    /// Puts in place of what is known of `to`.
    fn put(&mut self, to: SocketAddrV6, habit: Option<Habit>) -> Option<Change> {
        let place = Place::of(to);
        let line = self.lines.get_mut(place.line)?;
        let known = line.iter().position(|habit| habit.is_some_and(|habit| habit.to == to));
        let oldest =
            || (0..line.len()).min_by_key(|way| line[*way].map_or(0, |habit| habit.at + 1));
        let way = known.or_else(|| habit.and_then(|_| oldest()))?;
        line[way] = habit;
        let word = habit.and_then(|habit| habit.until).map_or(0, |until| place.word(until));
        Some(Change { line: place.line, way, word })
    }

    /// Nothing is known any more, but of hosts that have an engine: what guests are to be told.
    pub(super) fn forget(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (line, ways) in self.lines.iter_mut().enumerate() {
            for (way, habit) in ways.iter_mut().enumerate() {
                let gone = habit.take_if(|habit| habit.to.port() != 0);
                if gone.is_some_and(|habit| habit.until.is_some()) {
                    changes.push(Change { line, way, word: 0 });
                }
            }
        }
        changes
    }

    /// Destinations whose connections stay on TCP.
    pub(super) fn spared(&self) -> impl Iterator<Item = SocketAddrV6> {
        let all = self.lines.iter().flatten().flatten();
        all.filter(|habit| habit.until.is_some() && habit.to.port() != 0).map(|habit| habit.to)
    }
}

fn change(place: Place, way: usize, habit: &Habit) -> Change {
    let word = habit.until.map_or(0, |until| place.word(until));
    Change { line: place.line, way, word }
}

#[cfg(test)]
mod tests;
