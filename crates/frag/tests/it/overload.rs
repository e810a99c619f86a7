//! More comes than there is memory for: some datagrams must go, and the rest must come through.

use std::collections::BTreeSet;
use std::rc::Rc;

use frag::{Arrival, Config, HashKey, Ledger, Reason, Shard};
use testkit::fragments::{Family, Packet, Random};

use crate::host::{Buffer, Delivered, Host, MS, Out, SECOND};

/// Nanoseconds between two fragments, unless a test says another.
const STEP: u64 = 625;
/// What a fragment's buffer costs.
pub(crate) const FRAME: u32 = 2304;
const LIMIT: u64 = 1 << 20;
/// Bytes of payload in a fragment: few, since nobody looks at them here.
const SIZE: usize = 8;

/// Who sends one datagram after the other.
struct Sender {
    address: u32,
    id: u16,
    /// The next piece.
    piece: usize,
    /// When the datagram began.
    begun: u64,
    /// No fragment of it was lost yet.
    whole: bool,
}

impl Sender {
    const fn new(address: u32, id: u16) -> Self {
        Self { address, id, piece: 0, begun: 0, whole: true }
    }
}

/// Senders who take turns.
struct Senders {
    host: Host,
    /// Fragments of a datagram.
    pieces: usize,
    senders: Vec<Sender>,
    offered: u64,
    random: Random,
    /// One fragment in so many is lost; 0: none.
    loss: usize,
    /// Nanoseconds between two fragments.
    step: u64,
    /// Datagrams begun at that time or later of which all was sent.
    counted: Vec<(u32, u16)>,
    counted_from: u64,
}

impl Senders {
    fn new(count: usize, pieces: usize, loss: usize) -> Self {
        let config = Config { memory_bytes: LIMIT, copy_below: 0, ..Config::default() };
        let mut random = Random::new(count as u64);
        // Each begins somewhere in a datagram, as after any loss.
        let sender =
            |n: u32| Sender { piece: random.below(pieces), whole: false, ..Sender::new(n << 8, 0) };
        let senders = (0u32..).take(count).map(sender).collect();
        let host = Host::new(&config);
        let (counted, counted_from) = (Vec::new(), u64::MAX);
        Self { host, pieces, senders, offered: 0, random, loss, step: STEP, counted, counted_from }
    }

    fn round(&mut self) {
        for at in 0..self.senders.len() {
            let sender = &mut self.senders[at];
            if sender.piece == 0 {
                (sender.begun, sender.whole) = (self.host.now, true);
            }
            let (address, id, piece) = (sender.address, sender.id, sender.piece);
            if self.loss == 0 || self.random.below(self.loss) != 0 {
                self.push(address, id, piece);
            } else {
                self.senders[at].whole = false;
            }
            self.host.now += self.step;
            let sender = &mut self.senders[at];
            sender.piece += 1;
            if sender.piece == self.pieces {
                self.offered += 1;
                if sender.whole && sender.begun >= self.counted_from {
                    self.counted.push((address, id));
                }
                *sender = Sender::new(address, id + 1);
            }
        }
    }

    fn push(&mut self, address: u32, id: u16, piece: usize) {
        let whole = Packet::new(Family::V4, u32::from(id), vec![0; self.pieces * SIZE]);
        let mut bytes = whole.fragment(piece * SIZE, (piece + 1) * SIZE).emit();
        bytes[12..16].copy_from_slice(&address.to_be_bytes());
        push_bytes(&mut self.host, bytes);
    }

    fn delivered(&self) -> u64 {
        self.host.out.delivered.len() as u64
    }

    /// Datagrams of the largest size that fit at once.
    fn capacity(&self) -> u64 {
        LIMIT / (self.pieces as u64 * u64::from(FRAME) + 512)
    }
}

fn push_bytes(host: &mut Host, bytes: Vec<u8>) {
    host.frame = FRAME - u32::try_from(bytes.len()).expect("small");
    host.push_bytes(bytes);
}

/// Of what is offered at `times` the capacity, at least half of what fits is delivered.
fn progress(pieces: usize, times: u64, loss: usize) {
    let capacity = LIMIT / (pieces as u64 * u64::from(FRAME) + 512);
    let count = usize::try_from(capacity * times).expect("small");
    let mut senders = Senders::new(count, pieces, loss);
    // Ten datagrams each, or thirty small ones: first one has to learn what they need.
    for _ in 0..10 * pieces.max(9) {
        senders.round();
    }
    assert_eq!(senders.capacity(), capacity);
    let least = senders.offered / times / 2;
    let delivered = senders.delivered();
    assert!(
        delivered >= least,
        "{delivered} of {} at {times} times the capacity: {:?}",
        senders.offered,
        senders.host.shard.counters()
    );
    if loss > 0 {
        // Those that nothing completes go long before their time is up.
        let counters = senders.host.shard.counters();
        let timeouts = [Reason::Timeout, Reason::TimeoutNoFirst].map(|why| counters.datagrams(why));
        assert!(counters.datagrams(Reason::EvictedIdle) > 0, "{counters:?}");
        assert_eq!(timeouts, [0, 0]);
    }
}

#[test]
fn half_of_the_capacity_comes_through_at_any_overload() {
    for times in [2, 3, 5, 10, 25] {
        progress(45, times, 0);
    }
}

#[test]
fn so_it_does_for_small_datagrams() {
    for times in [2, 10] {
        progress(3, times, 0);
    }
}

#[test]
fn so_it_does_when_fragments_are_lost() {
    for times in [2, 5, 10] {
        progress(45, times, 1000);
    }
}

/// Ten times what memory holds for a second, and from the next fragment on three senders who are slow
/// enough: what they begin a tenth of a second later comes through, all of it. `pause`: between two
/// fragments of the light load.
fn recovers(loss: usize, pause: u64) {
    const OVERLOAD_STEP: u64 = 10_000;
    let mut senders = Senders::new(100, 45, loss);
    senders.step = OVERLOAD_STEP;
    let end = senders.host.now + SECOND;
    while senders.host.now < end {
        senders.round();
        assert!(senders.host.gauges().memory_bytes <= LIMIT);
    }
    let refused = senders.host.shard.counters().fragments(Reason::Refused);
    assert!(refused > senders.offered, "that was no overload");
    assert!(senders.host.gauges().datagrams > 0, "nothing was left in the middle");
    senders.senders.truncate(3);
    for sender in &mut senders.senders {
        // Each in a new datagram, at once.
        *sender = Sender::new(sender.address, sender.id + 1);
    }
    senders.step = pause;
    senders.counted_from = senders.host.now + 100 * MS;
    senders.counted.clear();
    while senders.host.now < end + 400 * MS {
        senders.round();
    }
    let delivered: BTreeSet<(u32, u16)> = senders.host.out.delivered.iter().map(name_of).collect();
    let counted = std::mem::take(&mut senders.counted);
    assert!(counted.len() >= 20, "too few to say anything: {}", counted.len());
    let missing: Vec<_> = counted.iter().filter(|name| !delivered.contains(name)).collect();
    assert!(
        missing.is_empty(),
        "{missing:?} of {}: {:?}",
        counted.len(),
        senders.host.shard.counters()
    );
}

/// The source and identification of a datagram that came out.
fn name_of(delivered: &Delivered) -> (u32, u16) {
    let ip = &delivered.packet;
    (u32::from_be_bytes([ip[12], ip[13], ip[14], ip[15]]), u16::from_be_bytes([ip[4], ip[5]]))
}

#[test]
fn all_comes_through_a_tenth_of_a_second_after_the_overload() {
    // As fast as before in all, and as fast as before each.
    for pause in [10_000, 200_000] {
        recovers(0, pause);
    }
}

#[test]
fn so_it_does_when_fragments_were_lost() {
    for pause in [10_000, 200_000] {
        recovers(1000, pause);
    }
}

#[test]
fn the_rest_of_a_refused_datagram_holds_nothing() {
    let mut senders = Senders::new(0, 45, 0);
    (0..100).for_each(|address| senders.push(address << 8, 1, 0));
    let before = senders.host.gauges();
    let counters = senders.host.shard.counters();
    let refused = counters.fragments(Reason::NoMemory) + counters.fragments(Reason::NoShare);
    assert_eq!(refused + u64::from(before.datagrams), 100);
    let first = before.datagrams;
    for piece in 1..45 {
        (first..100).for_each(|address| senders.push(address << 8, 1, piece));
    }
    assert_eq!(senders.host.gauges(), before);
    assert_eq!(senders.host.shard.counters().fragments(Reason::Refused), refused * 44);
}

#[test]
fn one_source_may_have_many_datagrams_in_progress() {
    let mut host = Host::new(&Config::default());
    let wholes: Vec<_> =
        (0..100u8).map(|id| Packet::new(Family::V4, id.into(), vec![id; 45 * 1480])).collect();
    for piece in 0..44 {
        wholes.iter().for_each(|w| host.push(&w.fragment(piece * 1480, (piece + 1) * 1480)));
    }
    assert_eq!(host.gauges().datagrams, 100);
    // The last is as long as it may be.
    let end = 65_515;
    for whole in &wholes {
        let whole = Packet { payload: whole.payload[..end].to_vec(), ..whole.clone() };
        host.push(&whole.fragment(44 * 1480, end));
    }
    assert_eq!(host.out.delivered.len(), 100);
}

/// Whoever uses most gives way, whatever family; and nobody is evicted for his own next datagram.
#[test]
fn the_youngest_of_the_heaviest_makes_room_for_others() {
    let config = Config { memory_bytes: 256 << 10, copy_below: 0, ..Config::default() };
    let mut host = Host::new(&config);
    let mut packet = Packet::new(Family::V6, 0, vec![1; 16]);
    for id in 0..4 {
        packet.id = id;
        host.push(&packet.fragment(0, 8));
        host.push(&packet.fragment(8, 16));
    }
    host.frame = 4096;
    for id in 0..200 {
        packet.id = id;
        host.push(&packet.fragment(0, 8));
    }
    let counters = host.shard.counters();
    let own = counters.datagrams(Reason::EvictedShare) + counters.datagrams(Reason::EvictedIdle);
    assert_eq!(own, 0, "{counters:?}");
    let there = host.gauges().datagrams;
    let other = Packet { family: Family::V4, src: 9, id: 1, ..packet };
    let buffer = Rc::new(other.fragment(0, 8).emit());
    let arrival = Arrival { cost: 4096, ..Arrival::new(&buffer, Rc::clone(&buffer)) };
    host.shard.push(arrival, host.now, &mut host.out);
    assert!(host.gauges().datagrams > 0 && there > 20);
    host.push(&other.fragment(8, 16));
    assert_eq!(host.out.delivered.len(), 5, "the other source was served");
    let evicted = host.shard.counters().datagrams(Reason::EvictedShare);
    assert!((1..5).contains(&evicted), "{evicted}");
    host.taken(1);
}

/// A datagram's fragments, of which the source and the identification can be changed in place.
pub(crate) struct Mould {
    family: Family,
    fragments: Vec<Vec<u8>>,
}

impl Mould {
    pub(crate) fn new(family: Family, pieces: usize) -> Self {
        let whole = Packet::new(family, 0, vec![0; pieces * REAL]);
        let fragment = |at: usize| whole.fragment(at * REAL, at * REAL + REAL).emit();
        Self { family, fragments: (0..pieces).map(fragment).collect() }
    }

    /// The fragment of that number, of the source network and with the identification.
    pub(crate) fn emit(&self, piece: usize, (network, id): (u32, u16)) -> Vec<u8> {
        let mut bytes = self.fragments[piece].clone();
        let (source, identification) = match self.family {
            Family::V4 => (12, 4),
            Family::V6 => (8, 46),
        };
        bytes[source..source + 3].copy_from_slice(&network.to_be_bytes()[1..]);
        bytes[identification..identification + 2].copy_from_slice(&id.to_be_bytes());
        bytes
    }

    /// The same, of which [`Self::name`] knows the name when it is complete.
    pub(crate) fn emit_named(&self, piece: usize, name: (u32, u16)) -> Vec<u8> {
        let mut bytes = self.emit(piece, name);
        if piece == 0 {
            let at = bytes.len() - REAL;
            bytes[at..at + 2].copy_from_slice(&name.1.to_be_bytes());
        }
        bytes
    }

    pub(crate) fn name(&self, delivered: &Delivered) -> (u32, u16) {
        let ip = &delivered.packet;
        let source = match self.family {
            Family::V4 => 12,
            Family::V6 => 8,
        };
        let network = u32::from_be_bytes([0, ip[source], ip[source + 1], ip[source + 2]]);
        // The first bytes of the payload: identifications of IPv6 are gone with the header.
        let at = delivered.header_len;
        (network, u16::from_be_bytes([ip[at], ip[at + 1]]))
    }
}

/// Bytes of payload in a fragment as most have them.
const REAL: usize = 1440;

/// One of several cores has got all memory when nothing comes to it any more, but that it is asked for what has taken too
/// long now and then, as each is. What another core begins a tenth of a second later comes through.
fn memory_comes_back(shards: u32) {
    const SENDERS: u32 = 100;
    const PIECES: usize = 45;
    const LIMIT: u64 = 4 << 20;
    let config = Config { memory_bytes: LIMIT, shards, ..Config::default() };
    let limits = config.limits().expect("settings that can be");
    let ledger = Ledger::of(&limits);
    let mut all: Vec<Shard<Buffer>> =
        (0..shards).map(|n| Shard::new(&limits, &ledger, HashKey::new([n.into(), 11]))).collect();
    let (mut out, mould) = (Out::default(), Mould::new(Family::V4, PIECES));
    let mut push = |shard: &mut Shard<Buffer>, piece: usize, name: (u32, u16), now| {
        let buffer = Rc::new(mould.emit(piece, name));
        let arrival = Arrival { cost: FRAME, ..Arrival::new(&buffer, Rc::clone(&buffer)) };
        shard.push(arrival, now, &mut out);
    };
    let mut now = SECOND;
    for round in 0..4 * PIECES {
        for sender in 0..SENDERS {
            let at = round + sender as usize;
            let id = u16::try_from(at / PIECES).expect("few");
            push(&mut all[0], at % PIECES, (sender, id), now);
            now += 10_000;
        }
    }
    // And of these the last fragments are lost.
    for piece in 0..PIECES - 1 {
        for sender in SENDERS..2 * SENDERS {
            push(&mut all[0], piece, (sender, 0), now);
            now += 10_000;
        }
    }
    let held = all[0].gauges().memory_bytes;
    assert!(held > LIMIT / 2, "only {held} bytes are in use");
    let end = now;
    let mut counted = Vec::new();
    for id in 1000..1015u16 {
        let begun = now;
        for piece in 0..PIECES {
            for sender in 0..12 {
                push(&mut all[1], piece, (sender, id), now);
                now += 50_000;
            }
            // As who waits for packets does, each 10 ms or so.
            if piece % 16 == 0 {
                all.iter_mut().for_each(|shard| _ = shard.expire(now, 64, &mut Out::default()));
            }
        }
        if begun >= end + 100 * MS {
            counted.extend((0..12).map(|sender| (sender, id)));
        }
    }
    let name = |d: &Delivered| {
        let (source, id) = name_of(d);
        (source >> 8, id)
    };
    let delivered: BTreeSet<_> = out.delivered.iter().map(name).collect();
    let missing = counted.iter().filter(|name| !delivered.contains(name)).count();
    assert!(counted.len() >= 100, "too few to say anything: {}", counted.len());
    assert_eq!(missing, 0, "of {} with {shards}: {:?}", counted.len(), all[1].counters());
    drop(all);
    assert_eq!(ledger.left(), LIMIT);
}

#[test]
fn memory_that_an_idle_shard_holds_comes_back() {
    for shards in [2, 16] {
        memory_comes_back(shards);
    }
}
