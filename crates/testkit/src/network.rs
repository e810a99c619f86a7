//! A bad network as a value: what goes in comes out later, or never, or twice, or broken, or marked,
//! as a seed has it. No thread, no clock: time is nanoseconds, given by whoever calls.
//!
//! One [`Network`] is one direction. It carries bytes and a tag, which says what the bytes do not: to
//! whom they go, for one.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::fragments::Random;

/// How bad it is. [`Conditions::default`] is a wire of 10 us that loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions {
    /// Time that each packet takes, nanoseconds.
    pub delay_nanos: u64,
    /// Out of a million packets, those lost.
    pub loss_ppm: u32,
    /// Those that come twice.
    pub duplicate_ppm: u32,
    /// Those that come later than others sent after them.
    pub reorder_ppm: u32,
    /// How much later, at most.
    pub reorder_nanos: u64,
    /// Those in which a few bits are not what they were.
    pub corrupt_ppm: u32,
    /// Those that are marked for congestion though there is none.
    pub mark_ppm: u32,
    /// The slowest link on the way, bits per second; 0: there is none.
    pub bits_per_second: u64,
    /// Bytes that wait for that link; what would be more is lost.
    pub queue_bytes: u64,
    /// Packets that find more than this waiting are marked.
    pub mark_above_bytes: u64,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            delay_nanos: 10_000,
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            reorder_nanos: 0,
            corrupt_ppm: 0,
            mark_ppm: 0,
            bits_per_second: 0,
            queue_bytes: u64::MAX,
            mark_above_bytes: u64::MAX,
        }
    }
}

impl Conditions {
    /// Some kind of bad, by chance: none of it so bad that nothing gets through.
    #[must_use]
    pub fn random(random: &mut Random) -> Self {
        // Half of all networks do not know a given trouble at all.
        let mut some = |most: u64| if random.word() & 1 == 0 { 0 } else { random.word() % most };
        let mut ppm = |most| u32::try_from(some(most)).unwrap_or(0);
        let (loss_ppm, duplicate_ppm, reorder_ppm) = (ppm(200_000), ppm(200_000), ppm(200_000));
        let (corrupt_ppm, mark_ppm) = (ppm(100_000), ppm(500_000));
        let (delay_nanos, reorder_nanos) = (1_000 + some(100_000), some(200_000));
        Self {
            delay_nanos,
            loss_ppm,
            duplicate_ppm,
            reorder_ppm,
            reorder_nanos,
            corrupt_ppm,
            mark_ppm,
            ..Self::default()
        }
    }
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived<T> {
    /// As it was sent.
    pub tag: T,
    /// As they were sent, unless `corrupted`.
    pub bytes: Vec<u8>,
    /// Marked for congestion.
    pub marked: bool,
    /// Some bits are not what they were.
    pub corrupted: bool,
}

/// What became of all that was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Sent.
    pub sent: u64,
    /// Never to come.
    pub lost: u64,
    /// Of those, because too much was waiting.
    pub overflowed: u64,
    /// Coming twice.
    pub duplicated: u64,
    /// Coming late.
    pub reordered: u64,
    /// Coming broken.
    pub corrupted: u64,
    /// Marked.
    pub marked: u64,
}

/// One direction of a network.
#[derive(Clone, Debug)]
pub struct Network<T> {
    conditions: Conditions,
    random: Random,
    /// By when they come, then by when they were sent: (time, number, place in `packets`).
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    packets: Vec<Option<Arrived<T>>>,
    free: Vec<usize>,
    /// When the slowest link will have sent what waits.
    busy_until: u64,
    fates: Fates,
    number: u64,
}

impl<T: Clone> Network<T> {
    /// As bad as this; the same seed gives the same fates.
    #[must_use]
    pub fn new(conditions: Conditions, seed: u64) -> Self {
        Self {
            conditions,
            random: Random::new(seed),
            queue: BinaryHeap::new(),
            packets: Vec::new(),
            free: Vec::new(),
            busy_until: 0,
            fates: Fates::default(),
            number: 0,
        }
    }

    /// From now on it is as bad as this.
    pub fn become_as(&mut self, conditions: Conditions) {
        self.conditions = conditions;
    }

    /// What became of all that was sent.
    #[must_use]
    pub const fn fates(&self) -> Fates {
        self.fates
    }

    /// Sends a packet.
    pub fn send(&mut self, now: u64, tag: T, bytes: &[u8]) {
        self.fates.sent += 1;
        let Conditions { loss_ppm, duplicate_ppm, corrupt_ppm, mark_ppm, .. } = self.conditions;
        let Some((delay, congested)) = self.through_the_slowest(now, bytes.len() as u64) else {
            self.fates.overflowed += 1;
            self.fates.lost += 1;
            return;
        };
        if self.happens(loss_ppm) {
            self.fates.lost += 1;
            return;
        }
        let marked = congested || self.happens(mark_ppm);
        self.fates.marked += u64::from(marked);
        let mut packet = Arrived { tag, bytes: bytes.to_vec(), marked, corrupted: false };
        if self.happens(duplicate_ppm) {
            self.fates.duplicated += 1;
            self.put(now + delay, packet.clone());
        }
        if self.happens(corrupt_ppm) && !bytes.is_empty() {
            self.fates.corrupted += 1;
            self.corrupt(&mut packet);
        }
        self.put(now + delay, packet);
    }

    /// How long the packet takes, and whether it had to wait too long; `None`: there was no room.
    fn through_the_slowest(&mut self, now: u64, bytes: u64) -> Option<(u64, bool)> {
        let Conditions { delay_nanos, bits_per_second, queue_bytes, mark_above_bytes, .. } =
            self.conditions;
        if bits_per_second == 0 {
            return Some((delay_nanos, false));
        }
        let nanos = |bytes: u64| bytes * 8_000_000_000 / bits_per_second;
        let waiting = self.busy_until.saturating_sub(now);
        if waiting > 0 && waiting + nanos(bytes) > nanos(queue_bytes.min(1 << 30)) {
            return None;
        }
        self.busy_until = self.busy_until.max(now) + nanos(bytes);
        let congested = waiting > nanos(mark_above_bytes.min(1 << 30));
        Some((self.busy_until - now + delay_nanos, congested))
    }

    fn put(&mut self, at: u64, packet: Arrived<T>) {
        let Conditions { reorder_ppm, reorder_nanos, .. } = self.conditions;
        let late = if self.happens(reorder_ppm) {
            self.fates.reordered += 1;
            self.random.word() % (reorder_nanos + 1)
        } else {
            0
        };
        let place = self.free.pop().unwrap_or(self.packets.len());
        if place == self.packets.len() {
            self.packets.push(None);
        }
        self.packets[place] = Some(packet);
        self.number += 1;
        self.queue.push(Reverse((at + late, self.number, place)));
    }

    fn corrupt(&mut self, packet: &mut Arrived<T>) {
        packet.corrupted = true;
        let at = self.random.below(packet.bytes.len());
        match self.random.below(4) {
            // One bit, one byte, a few bytes, the end.
            0 => packet.bytes[at] ^= 1 << self.random.below(8),
            1 => packet.bytes[at] = !packet.bytes[at],
            2 => {
                for byte in packet.bytes[at..].iter_mut().take(8) {
                    *byte ^= self.random.word().to_le_bytes()[0] | 1;
                }
            }
            _ => packet.bytes.truncate(at),
        }
    }

    fn happens(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.random.below(1_000_000) < ppm as usize
    }

    /// For how long the slowest link will be busy with what waits for it now, nanoseconds.
    #[must_use]
    pub const fn waiting(&self, now: u64) -> u64 {
        self.busy_until.saturating_sub(now)
    }

    /// When the next packet comes out.
    #[must_use]
    pub fn next_at(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next packet that has come out by now.
    pub fn receive(&mut self, now: u64) -> Option<Arrived<T>> {
        let Reverse((at, _, place)) = *self.queue.peek()?;
        if at > now {
            return None;
        }
        self.queue.pop();
        self.free.push(place);
        self.packets[place].take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of 1000 packets that were sent 100 ns after each other, as they come out.
    fn through(conditions: Conditions) -> (Vec<u64>, Fates) {
        let mut network = Network::new(conditions, 7);
        for n in 0..1000 {
            network.send(n * 100, n, &[0; 100]);
        }
        let mut came = Vec::new();
        while let Some(at) = network.next_at() {
            while let Some(packet) = network.receive(at) {
                assert_eq!(packet.corrupted, packet.bytes != [0; 100]);
                came.push(packet.tag);
            }
        }
        (came, network.fates())
    }

    #[test]
    fn a_good_one_changes_nothing() {
        let (came, fates) = through(Conditions::default());
        assert!(came.iter().copied().eq(0..1000));
        assert_eq!(fates, Fates { sent: 1000, ..Fates::default() });
    }

    #[test]
    fn each_trouble_is_what_it_says() {
        let good = Conditions::default();
        let (came, fates) = through(Conditions { loss_ppm: 100_000, ..good });
        assert!(came.is_sorted() && came.len() as u64 == 1000 - fates.lost);
        assert!((50..200).contains(&fates.lost));
        let (came, fates) = through(Conditions { duplicate_ppm: 100_000, ..good });
        assert!(came.len() as u64 == 1000 + fates.duplicated && fates.duplicated > 50);
        let reorder_nanos = 5000;
        let (came, fates) = through(Conditions { reorder_ppm: 100_000, reorder_nanos, ..good });
        assert!(came.len() == 1000 && !came.is_sorted() && fates.reordered > 50);
        let (_, fates) = through(Conditions { corrupt_ppm: 100_000, ..good });
        assert!(fates.corrupted > 50);
        let (_, fates) = through(Conditions { mark_ppm: 100_000, ..good });
        assert!(fates.marked > 50);
    }

    #[test]
    fn a_slow_link_holds_up_marks_and_drops() {
        // 100 bytes in 100 ns are 8 Gbit/s; half of that goes through.
        let slow = Conditions {
            bits_per_second: 4_000_000_000,
            queue_bytes: 10_000,
            mark_above_bytes: 5_000,
            ..Conditions::default()
        };
        let (came, fates) = through(slow);
        assert!(came.is_sorted());
        assert_eq!(fates.lost, fates.overflowed);
        assert!((350..500).contains(&fates.lost), "{fates:?}");
        assert!((300..600).contains(&fates.marked), "{fates:?}");
    }

    #[test]
    fn a_seed_is_a_fate() {
        let mut random = Random::new(3);
        let conditions = Conditions::random(&mut random);
        assert_eq!(through(conditions), through(conditions));
    }
}
