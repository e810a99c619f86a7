//! Flows between hosts of which each has congestion control, through one slow link that marks (ECN).

use std::collections::HashMap;

use roce::*;
use testkit::fragments::Random;
use testkit::network::{Conditions, Fates, Network};

use crate::hosts::{Host, Setup};

/// Bytes of a message.
const MESSAGE: u32 = 1 << 18;
const START: u64 = 1_000_000_000;
const MILLISECOND: u64 = 1_000_000;
/// How long flows are watched after they have found their rates.
const WATCHED: u64 = 300 * MILLISECOND;
const SETTLING: u64 = 300 * MILLISECOND;

/// What became of flows while they were watched.
#[derive(Debug)]
struct Watched {
    /// Bytes that arrived of each.
    bytes: Vec<u64>,
    /// The most that waited for the slow link at a time, nanoseconds of it.
    waited: u64,
    /// From the beginning.
    fates: Fates,
    counters: Counters,
}

/// Flows from one host each to one host each, all of them through one link of so many bits a second.
struct World {
    pairs: Vec<[Host; 2]>,
    keys: Vec<(Key, Key)>,
    begins: Vec<u64>,
    /// There, and back.
    ways: [Network<(usize, Flow)>; 2],
    now: u64,
}

impl World {
    fn new(seed: u64, link: Conditions, congestion: Option<Dcqcn>, flows: usize) -> Self {
        let mut random = Random::new(seed);
        // As between two engines.
        let rts = RtsAttributes { window: 512, ..RtsAttributes::shunt(Psn::default()) };
        let setup = Setup { mtu: Mtu::B1024, rts, congestion, ..Setup::default() };
        let (mut pairs, mut keys) = (Vec::new(), Vec::new());
        for _ in 0..flows {
            let mut pair = setup.hosts();
            let source = pair[0].buffer(0, vec![7; MESSAGE as usize], Access::READ);
            let sink = pair[1].buffer(0, vec![0; MESSAGE as usize], Access::REMOTE_WRITE);
            keys.push((source, sink));
            pairs.push(pair);
        }
        let begins = (0..flows).map(|_| START + random.word() % (20 * MILLISECOND)).collect();
        let back = Conditions { delay_nanos: link.delay_nanos, ..Conditions::default() };
        let ways = [Network::new(link, random.word()), Network::new(back, random.word())];
        Self { pairs, keys, begins, ways, now: START }
    }

    fn step(&mut self) {
        let now = Time::from_nanos(self.now);
        for (at, way) in self.ways.iter_mut().enumerate() {
            while let Some(came) = way.receive(self.now) {
                let (pair, flow) = came.tag;
                let arrival = Arrival {
                    addresses: flow.addresses,
                    src_port: flow.src_port,
                    marked: came.marked,
                    identification: Some(0),
                };
                let Host { device, memory, .. } = &mut self.pairs[pair][1 - at];
                _ = device.receive(now, memory, &arrival, &came.bytes);
            }
        }
        for (number, pair) in self.pairs.iter_mut().enumerate() {
            let (source, sink) = self.keys[number];
            let qpn = pair[0].qpn;
            while self.begins[number] <= self.now && pair[0].device.qp(qpn).unwrap().sends < 3 {
                let pieces = [Piece { key: source, address: 0, len: MESSAGE }];
                let operation = Operation::Write { address: 0, rkey: sink.0 };
                pair[0].post(0, operation, Source::Pieces(&pieces)).unwrap();
            }
            for (at, host) in pair.iter_mut().enumerate() {
                host.device.on_deadline(now);
                assert!(host.completions().iter().all(|done| done.status == Status::Success));
                for (flow, bytes) in host.packets(now) {
                    self.ways[at].send(self.now, (number, flow), &bytes);
                }
            }
        }
    }

    /// Moves on to when something happens next; `late`: both ends' loops come round late by this.
    fn advance(&mut self, late: u64) {
        let ways = self.ways.iter().filter_map(Network::next_at);
        let hosts = self.pairs.iter().flatten().filter_map(|host| host.device.next_deadline());
        let begins = self.begins.iter().copied().filter(|at| *at > self.now);
        let next = ways.chain(hosts.map(Time::nanos)).chain(begins).min();
        self.now = next.unwrap_or(self.now).max(self.now) + 1 + late;
    }

    fn bytes(&self) -> Vec<u64> {
        self.pairs.iter().map(|[_, to]| to.device.counters().bytes_in).collect()
    }

    fn watch(mut self, random: &mut Random) -> Watched {
        let (mut before, mut waited) = (None, 0);
        let settled = START + SETTLING;
        while self.now < settled + WATCHED {
            self.step();
            if self.now >= settled {
                before.get_or_insert_with(|| self.bytes());
                waited = waited.max(self.ways[0].waiting(self.now));
            }
            self.advance(random.word() % 20_000);
        }
        let bytes = self.bytes().into_iter().zip(before.unwrap_or_default()).map(|(a, b)| a - b);
        let mut counters = Counters::default();
        self.pairs.iter().flatten().for_each(|host| counters.add(host.device.counters()));
        Watched { bytes: bytes.collect(), waited, fates: self.ways[0].fates(), counters }
    }
}

/// The link of a seed: how fast, how far, and when it marks. All that two windows have finds room.
fn link(random: &mut Random) -> Conditions {
    let bits_per_second = [250, 500, 1000][random.below(3)] * 1_000_000;
    Conditions {
        bits_per_second,
        delay_nanos: 10_000 + random.word() % 300_000,
        queue_bytes: 2 << 20,
        mark_above_bytes: [20_000, 60_000][random.below(2)],
        ..Conditions::default()
    }
}

#[test]
fn two_flows_share_a_slow_link_without_loss_and_without_filling_it() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let link = link(&mut random);
        let world = |congestion| World::new(seed, link, congestion, 2);
        let with = world(Some(Dcqcn::BETWEEN_HOSTS)).watch(&mut random);
        let possible = link.bits_per_second / 8 * WATCHED / 1_000_000_000;
        let (all, least) = (with.bytes.iter().sum::<u64>(), with.bytes.iter().min().unwrap());
        println!("seed {seed}: {all} of {possible}, {with:?}\n  {link:?}");
        assert_eq!(with.fates.lost, 0, "seed {seed}");
        assert!(with.counters.cnp_in > 0 && with.counters.marks_in > 0, "seed {seed}");
        assert!(all * 10 > possible * 7, "seed {seed}: {all} of {possible}");
        assert!(least * 5 > all, "seed {seed}: {:?}", with.bytes);
        // Two windows are a megabyte, which would wait there.
        let window = 512 * 1024 * 8 * 1_000_000_000 / link.bits_per_second;
        assert!(with.waited < window, "seed {seed}: {} ns", with.waited);
    }
}

#[test]
fn without_it_windows_wait_at_the_slow_link() {
    let mut random = Random::new(1);
    let link = link(&mut random);
    let without = World::new(1, link, None, 2).watch(&mut random);
    let window = 512 * 1024 * 8 * 1_000_000_000 / link.bits_per_second;
    assert!(without.waited > window && without.counters.cnp_out == 0, "{without:?}");
}

#[test]
fn rates_come_back_when_the_link_is_free_again() {
    let mut random = Random::new(3);
    let link = Conditions { bits_per_second: 1_000_000_000, ..link(&mut random) };
    let mut world = World::new(3, link, Some(Dcqcn::BETWEEN_HOSTS), 2);
    let rates = |world: &World| -> HashMap<usize, u64> {
        let view = |host: &Host| host.device.qp(host.qpn).unwrap().rate_bits.unwrap();
        world.pairs.iter().map(|[from, _]| view(from)).enumerate().collect()
    };
    while world.now < START + SETTLING {
        world.step();
        world.advance(0);
    }
    let low = rates(&world);
    assert!(low.values().all(|rate| *rate < 4_000_000_000), "{low:?}");
    // From now on the link is four times as fast.
    world.ways[0].become_as(Conditions { bits_per_second: 4_000_000_000, ..link });
    let before = world.bytes().iter().sum::<u64>();
    let (from, until) = (world.now, world.now + 200 * MILLISECOND);
    while world.now < until {
        world.step();
        world.advance(5_000);
    }
    let bytes = world.bytes().iter().sum::<u64>() - before;
    let bits = bytes * 8 * 1_000_000_000 / (world.now - from);
    assert!(bits > 2_000_000_000, "{bits}: {low:?}, {:?}", rates(&world));
}
