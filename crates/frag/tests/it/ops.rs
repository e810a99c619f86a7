//! Any sequence of calls, as bytes: what a fuzzer makes of them and what a test makes of them.
//!
//! With memory enough and overlaps forbidden, what comes out is compared with a [`Model`] that keeps
//! lists. Otherwise only what must always hold is checked: no more memory than allowed, each buffer back
//! once, no byte of one datagram in another, nothing left behind.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use frag::wire::{self, Fragment};
use frag::{
    Arrival, Config, Datagram, HashKey, Key, Ledger, Policy, Released, Shard, Sink, Steering,
};
use testkit::fragments::{Cut, Family, Packet, Random, cut};
use testkit::input::Input;

const SECOND: u64 = 1_000_000_000;
/// The scope of what we know, and that of what anybody has made up.
const OURS: u64 = 0;
const FOREIGN: u64 = 1;

/// A packet and its buffer. Whoever has it must say so when he is done.
struct Buffer {
    bytes: Rc<Vec<u8>>,
    lost: Rc<Cell<i64>>,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.lost.set(self.lost.get() + 1);
    }
}

/// A datagram that came out.
struct Whole {
    key: Key,
    header_len: usize,
    packet: Vec<u8>,
}

impl Whole {
    /// Whether all of its bytes are those of its own datagram.
    #[expect(clippy::cast_possible_truncation, reason = "the last byte, and half of a word")]
    fn is_pure(&self) -> bool {
        let family = if self.key.is_v6() { Family::V6 } else { Family::V4 };
        let (src, id) = (self.key.src[1] as u8, self.key.id as u32);
        let mut payload = self.packet[self.header_len..].iter().enumerate();
        payload.all(|(at, byte)| *byte == content(family, src, id, 0, at))
    }
}

/// What came out of one call, and what came back ever.
#[derive(Default)]
struct Out {
    datagrams: Vec<Whole>,
    returned: u64,
}

impl Out {
    fn take_back(&mut self, buffer: Buffer) {
        self.returned += 1;
        // Not lost.
        buffer.lost.set(buffer.lost.get() - 1);
    }
}

impl Sink<Buffer> for Out {
    fn whole(&mut self, buffer: Buffer, len: usize) {
        assert!(len <= buffer.bytes.len());
        self.take_back(buffer);
    }

    fn datagram(&mut self, datagram: &Datagram<'_, Buffer>) {
        let mut packet = vec![0; datagram.packet_len()];
        let written = datagram.write_to(&mut packet, |buffer| &buffer.bytes);
        assert_eq!(written, Ok(packet.len()));
        let (key, header_len) = (*datagram.key(), datagram.header().len());
        if key.scope == OURS {
            self.datagrams.push(Whole { key, header_len, packet });
        }
    }

    fn release(&mut self, buffer: Buffer, _: Released) {
        self.take_back(buffer);
    }
}

/// The byte at `at` of a datagram. What is sent twice may differ where a model knows which one counts.
fn content(family: Family, src: u8, id: u32, version: u8, at: usize) -> u8 {
    let of = [family as u64, u64::from(src), u64::from(id), u64::from(version), at as u64];
    let word = of.iter().fold(0u64, |all, n| (all ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    word.to_be_bytes()[1]
}

/// A datagram in the model.
struct Progress {
    like: Packet,
    began: u64,
    pieces: Vec<Packet>,
}

impl Progress {
    fn is_of(&self, p: &Packet) -> bool {
        let key = |p: &Packet| (p.family, p.src, p.id);
        key(&self.like) == key(p)
    }

    fn end(&self) -> Option<usize> {
        self.pieces.iter().find(|p| !p.more).map(end)
    }

    fn conflicts(&self, new: &Packet) -> bool {
        self.pieces.iter().any(|old| {
            let overlaps = new.offset < end(old) && old.offset < end(new);
            overlaps
                || match (old.more, new.more) {
                    (false, true) => end(new) >= end(old),
                    (false, false) => end(new) != end(old),
                    (true, false) => end(old) >= end(new),
                    (true, true) => false,
                }
        })
    }

    fn is_complete(&self) -> bool {
        self.end() == Some(self.pieces.iter().map(|p| p.payload.len()).sum())
    }

    /// The packet that was cut, unless its fragments' marks contradict each other or it is too long.
    fn whole(mut self) -> Option<Vec<u8>> {
        self.pieces.sort_by_key(|p| p.offset);
        let payload: Vec<u8> = self.pieces.iter().flat_map(|p| p.payload.clone()).collect();
        let mut first = self.pieces[0].clone();
        let marks = || self.pieces.iter().map(|p| p.tos & 3);
        if marks().any(|ecn| ecn == 0) && marks().any(|ecn| ecn != 0) {
            return None;
        }
        if marks().any(|ecn| ecn == 3) {
            first.tos |= 3;
        }
        (header(&first) + payload.len() <= 65_535).then(|| first.emit_whole(&payload))
    }
}

fn end(p: &Packet) -> usize {
    p.offset + p.payload.len()
}

/// Bytes of header that count as the datagram's.
fn header(p: &Packet) -> usize {
    match p.family {
        Family::V4 => 20 + p.options,
        Family::V6 => 8 * p.extensions.len(),
    }
}

/// What should come out.
#[derive(Default)]
struct Model(Vec<Progress>);

impl Model {
    /// What a fragment completes.
    fn push(&mut self, new: &Packet, now: u64) -> Option<Vec<u8>> {
        let alone = new.offset == 0 && !new.more;
        if alone && new.family == Family::V4 || !fits(new) {
            return None;
        }
        if alone {
            return Some(new.emit_whole(&new.payload));
        }
        self.0.retain(|p| p.began + timeout(p.like.family) > now);
        let at = self.0.iter().position(|p| p.is_of(new)).unwrap_or_else(|| {
            self.0.push(Progress { like: new.clone(), began: now, pieces: Vec::new() });
            self.0.len() - 1
        });
        let progress = &mut self.0[at];
        let same = |p: &Packet| (p.offset, p.payload.len(), p.more);
        if progress.pieces.iter().any(|old| same(old) == same(new)) {
            return None;
        }
        if progress.conflicts(new) {
            self.0.swap_remove(at);
            return None;
        }
        progress.pieces.push(new.clone());
        if progress.is_complete() {
            return self.0.swap_remove(at).whole();
        }
        None
    }
}

/// Whether a fragment can be one of any datagram.
fn fits(p: &Packet) -> bool {
    let fixed = if p.family == Family::V4 { 20 } else { 0 };
    let len = p.payload.len();
    let last = end(p) + fixed + usize::from(p.more);
    len > 0 && (!p.more || len.is_multiple_of(8)) && last <= 65_535
}

fn timeout(family: Family) -> u64 {
    if family == Family::V4 { 30 * SECOND } else { 60 * SECOND }
}

struct World {
    shards: Vec<Shard<Buffer>>,
    steering: Steering,
    ledger: Arc<Ledger>,
    /// Buffers that went without being released.
    lost: Rc<Cell<i64>>,
    model: Option<Model>,
    out: Out,
    handed: u64,
    now: u64,
    frame: u32,
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let modelled = input.byte().is_multiple_of(2);
        let mut config = Config {
            copy_below: input.choice(&[256, 0, 16, 512]),
            shards: input.choice(&[1, 2, 3]),
            fragments_max: 8192,
            memory_bytes: 1 << 40,
            ..Config::default()
        };
        if !modelled {
            config.memory_bytes = input.choice(&[64 << 10, 100_000, 1 << 20]);
            config.overlap = input.choice(Policy::ALL);
            config.fragments_max = input.choice(&[8192, 2, 5, 30]);
            config.datagrams_max = input.choice(&[1 << 20, 3, 10]);
        }
        let limits = config.limits().expect("settings that can be");
        let ledger = Ledger::of(&limits);
        let shard = |n| Shard::new(&limits, &ledger, HashKey::new([n, 1]));
        Self {
            shards: (0..u64::from(config.shards)).map(shard).collect(),
            steering: Steering::new(HashKey::new([0, 2]), config.shards),
            model: modelled.then(Model::default),
            lost: Rc::default(),
            out: Out::default(),
            handed: 0,
            now: SECOND,
            frame: input.choice(&[0, 100, 2048, 16_384]),
            ledger,
        }
    }

    /// The next datagram that somebody sends a part of, whole.
    fn packet(&self, input: &mut Input<'_>, len: usize) -> Packet {
        let (which, how) = (input.byte(), input.byte());
        let family = if which & 1 == 0 { Family::V4 } else { Family::V6 };
        let (src, id) = (which >> 1 & 3, u32::from(which >> 3 & 7));
        let version = if self.model.is_some() { how >> 4 & 3 } else { 0 };
        let payload = (0..len).map(|at| content(family, src, id, version, at)).collect();
        let mut packet = Packet::new(family, id, payload);
        packet.src = src;
        packet.tos = if how & 7 == 7 { how >> 4 & 3 } else { 2 };
        packet.reserved = how & 8 != 0;
        packet.dont_fragment = how & 16 != 0;
        packet.options = if how & 32 != 0 { 8 } else { 0 };
        packet.extensions = vec![60; usize::from(how >> 6) * 4];
        packet
    }

    fn push(&mut self, packets: &[Packet]) {
        let mut expected = Vec::new();
        for packet in packets {
            if let Some(model) = &mut self.model {
                expected.extend(model.push(packet, self.now));
            }
        }
        let all: Vec<_> = packets.iter().map(|packet| Rc::new(packet.emit())).collect();
        self.push_bytes(&all, OURS);
        let got = &mut self.out.datagrams;
        if self.model.is_some() {
            // Those of several shards come in another order.
            got.sort_by(|a, b| a.packet.cmp(&b.packet));
            expected.sort_unstable();
            let same = got.iter().map(|whole| &whole.packet).eq(&expected);
            assert!(same, "{} came out and {} should", got.len(), expected.len());
        } else {
            assert!(got.iter().all(Whole::is_pure), "bytes of another datagram");
        }
    }

    fn push_bytes(&mut self, all: &[Rc<Vec<u8>>], scope: u64) {
        self.out.datagrams.clear();
        let steer = |bytes: &[u8]| match wire::parse(bytes, scope) {
            Ok(wire::Packet::Fragment(Fragment { key, .. })) => self.steering.shard(&key) as usize,
            _ => 0,
        };
        let mut arrivals: Vec<Vec<Arrival<'_, Buffer>>> =
            self.shards.iter().map(|_| Vec::new()).collect();
        for bytes in all {
            let buffer = Buffer { bytes: Rc::clone(bytes), lost: Rc::clone(&self.lost) };
            let cost = u32::try_from(bytes.len()).expect("small") + self.frame;
            arrivals[steer(bytes)].push(Arrival { packet: bytes, buffer, cost, scope });
        }
        self.handed += all.len() as u64;
        for (shard, mut arrivals) in self.shards.iter_mut().zip(arrivals) {
            shard.push_burst(&mut arrivals, self.now, &mut self.out);
        }
    }

    /// One fragment, of any place.
    fn push_one(&mut self, input: &mut Input<'_>) {
        let (place, len, kind) = (input.byte(), input.below(40), input.byte());
        let at = if place == 255 { 65_488 } else { usize::from(place % 24) * 8 };
        let more = kind % 4 != 0;
        let len = if more && kind != 255 { len / 8 * 8 } else { len };
        let whole = self.packet(input, at + len);
        let payload = whole.payload[at..].to_vec();
        self.push(&[Packet { offset: at, more, payload, ..whole }]);
    }

    /// A whole datagram, in some order, perhaps with one piece twice or one less.
    fn push_all(&mut self, input: &mut Input<'_>) {
        let (len, size) = (1 + input.below(250) * 7, 8 * (1 + input.below(30)));
        let (order, spoil) = (input.byte(), input.byte());
        let mut cuts = cut(len, size);
        Random::new(u64::from(order)).shuffle(&mut cuts);
        if spoil % 4 == 0 {
            let again: Cut = cuts[usize::from(spoil) % cuts.len()];
            cuts.push(again);
        } else if spoil % 4 == 1 {
            cuts.pop();
        }
        let whole = self.packet(input, len);
        let all: Vec<_> = cuts.iter().map(|cut| whole.fragment(cut.at, cut.end)).collect();
        self.push(&all);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 16 {
            0..=7 => self.push_one(input),
            8..=11 => self.push_all(input),
            12 => {
                let unit = input.choice(&[SECOND / 1_000_000, SECOND / 1000, SECOND / 10]);
                self.now += unit * u64::from(input.byte());
            }
            13 => self.expire(input),
            14 if input.byte().is_multiple_of(4) => {
                self.model.iter_mut().for_each(|model| model.0.clear());
                self.clear();
            }
            14 => {}
            _ => {
                let len = input.below(100);
                let bytes = (0..len).map(|_| input.byte()).collect();
                self.push_bytes(&[Rc::new(bytes)], FOREIGN);
            }
        }
    }

    fn expire(&mut self, input: &mut Input<'_>) {
        let most = usize::from(input.byte());
        for shard in &mut self.shards {
            let next = shard.expire(self.now, most, &mut self.out);
            assert_eq!(next.is_some(), shard.gauges().datagrams > 0);
        }
    }

    fn clear(&mut self) {
        for shard in &mut self.shards {
            shard.clear(self.now, &mut self.out);
            let gauges = shard.gauges();
            assert_eq!((gauges.datagrams, gauges.blocks), (0, 0));
            assert_eq!((gauges.memory_bytes, gauges.committed_bytes), (0, 0));
        }
        assert_eq!(self.out.returned, self.handed, "buffers that came back");
    }

    fn check(&self) {
        let (mut held, mut leased) = (0, 0);
        for gauges in self.shards.iter().map(Shard::gauges) {
            held += gauges.memory_bytes;
            leased += gauges.leased_bytes;
            assert!(gauges.committed_bytes >= gauges.memory_bytes);
        }
        assert!(held <= leased && leased + self.ledger.left() == self.ledger.limit());
        assert_eq!(self.lost.get(), 0, "a buffer was dropped and not released");
    }
}

/// Runs what the bytes say.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut world = World::new(&mut input);
    while !input.is_empty() {
        world.step(&mut input);
        world.check();
    }
    world.clear();
    world.check();
    let World { shards, ledger, .. } = world;
    drop(shards);
    assert_eq!(ledger.left(), ledger.limit());
}
