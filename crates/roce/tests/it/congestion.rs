//! Flows between hosts of which each has congestion control, through one slow link that marks (ECN).

use std::collections::HashMap;

use roce::icrc::seal;
use roce::*;
use testkit::fragments::Random;
use testkit::network::{Conditions, Fates, Network};

use crate::hosts::{Host, Setup, exchange};

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

/// Two hosts with messages of so many packets from the first to the second, of which some were sent: their bytes.
fn sending(rts: RtsAttributes, packets: u32, sent: usize) -> ([Host; 2], Vec<(Flow, Vec<u8>)>) {
    let slow = Dcqcn { line_bits: 20_000_000, ..Dcqcn::BETWEEN_HOSTS };
    let setup = Setup { mtu: Mtu::B1024, rts, congestion: Some(slow), ..Setup::default() };
    let mut hosts = setup.hosts();
    let len = packets * 1024;
    let source = hosts[0].buffer(0, vec![7; len as usize], Access::READ);
    let sink = hosts[1].buffer(0, vec![0; len as usize], Access::REMOTE_WRITE);
    let pieces = [Piece { key: source, address: 0, len }];
    let operation = Operation::Write { address: 0, rkey: sink.0 };
    hosts[0].post(0, operation, Source::Pieces(&pieces)).unwrap();
    let way = (0..sent).map(|_| hosts[0].packet(Time::from_nanos(START)).unwrap()).collect();
    (hosts, way)
}

fn take_marked(host: &mut Host, flow: Flow, bytes: &[u8]) -> Result<Outcome, Reason> {
    let Flow { addresses, src_port } = flow;
    let arrival = Arrival { addresses, src_port, marked: true, identification: Some(0) };
    host.device.receive(Time::from_nanos(START), &mut host.memory, &arrival, bytes)
}

/// The packet from the second host to the first that says that one of this number came with a mark.
fn notification(hosts: &[Host; 2], psn: Psn) -> (Flow, Vec<u8>) {
    let addresses = Setup::default().way.reversed();
    let flow = Flow { addresses, src_port: wire::UDP_PORT };
    let mut bth = wire::Bth::new(wire::Opcode::Cnp, hosts[0].qpn, psn);
    bth.becn = true;
    let mut bytes = vec![0; PACKET_MAX];
    let packet = wire::Packet { header: wire::Header::new(bth), payload: &[] };
    let end = packet.emit(&mut bytes).unwrap();
    let len = seal(&flow, 0, &mut bytes, end).unwrap();
    bytes.truncate(len);
    (flow, bytes)
}

#[test]
fn a_notification_counts_only_if_its_packet_was_sent_lately() {
    let rts = RtsAttributes { window: 8, ..RtsAttributes::shunt(Psn::default()) };
    let first = Setup::default().psns[0];
    let judge = |sent: usize, psn: Psn| {
        let (mut hosts, _) = sending(rts, 20, sent);
        let (flow, bytes) = notification(&hosts, psn);
        let before = hosts[0].device.qp(hosts[0].qpn).unwrap().rate_bits;
        let got = hosts[0].take(Time::from_nanos(START), flow, &bytes);
        let after = hosts[0].device.qp(hosts[0].qpn).unwrap().rate_bits;
        assert_eq!(before > after, got.is_ok(), "{got:?}");
        got
    };
    assert_eq!(judge(0, first), Err(Reason::Notification), "nothing was sent");
    for psn in [first, first.plus(2)] {
        assert_eq!(judge(3, psn), Ok(Outcome::Notified));
    }
    for psn in [first.plus(3), first.minus(1), Psn::new(0x1234), first.plus(1 << 23)] {
        assert_eq!(judge(3, psn), Err(Reason::Notification), "{psn}");
    }
    // What has arrived counts for a window.
    let (mut hosts, _) = sending(rts, 20, 0);
    exchange(&mut hosts, Time::from_nanos(START));
    for (psn, counts) in [(11, false), (20, false), (12, true)] {
        let (flow, bytes) = notification(&hosts, first.plus(psn));
        let got = hosts[0].take(Time::from_nanos(START), flow, &bytes);
        assert_eq!(got.is_ok(), counts, "{psn}: {got:?}");
    }
}

#[test]
fn a_mark_counts_only_on_a_packet_near_the_expected_one() {
    let rts = RtsAttributes { window: 8, ..RtsAttributes::shunt(Psn::default()) };
    let first = Setup::default().psns[0];
    let judge = |psn: Psn| {
        let (mut hosts, mut way) = sending(rts, 20, 1);
        let (flow, bytes) = &mut way[0];
        bytes[9..12].copy_from_slice(&psn.value().to_be_bytes()[1..]);
        let end = bytes.len() - wire::ICRC_BYTES;
        seal(flow, 0, bytes, end).unwrap();
        _ = take_marked(&mut hosts[1], *flow, bytes);
        let all = hosts[1].packets(Time::from_nanos(START));
        let said = all.iter().map(|(_, bytes)| wire::Packet::parse(bytes).unwrap().header.bth);
        let said = said.filter(|bth| bth.opcode == wire::Opcode::Cnp).map(|bth| bth.psn).collect();
        let counters = hosts[1].device.counters();
        let said: Vec<Psn> = said;
        assert_eq!([counters.marks_in, counters.cnp_out], [said.len() as u64; 2]);
        said
    };
    // Expected, too early, come twice.
    for psn in [first, first.plus(3), first.minus(3)] {
        assert_eq!(judge(psn), [psn]);
    }
    for psn in [first.plus(1 << 14), first.minus(1 << 14), Psn::new(0x12_3456)] {
        assert_eq!(judge(psn), [], "{psn}");
    }
}

#[test]
fn who_is_paced_sends_nothing_again_while_nobody_was_asked() {
    // Half a millisecond of patience; each second packet asks for an acknowledgement.
    let fixed = RtsAttributes { timeout: 7, ack_every: 2, ..RtsAttributes::new(Psn::default()) };
    let rts = RtsAttributes { window: 64, retransmission: Retransmission::Fixed, ..fixed };
    let (mut hosts, way) = sending(rts, 20, 2);
    let [from, to] = &mut hosts;
    for (flow, bytes) in &way {
        take_marked(to, *flow, bytes).unwrap();
    }
    let at = |micros: u64| Time::from_nanos(START + 1000 * micros);
    let back = to.packets(at(50));
    assert_eq!(back.len(), 2, "a notification and an acknowledgement");
    from.take(at(100), back[0].0, &back[0].1).unwrap();
    // A packet takes 0.9 ms now, and this one, while another is measured, asks for nothing.
    assert_eq!(from.packets(at(100)).len(), 1);
    from.take(at(101), back[1].0, &back[1].1).unwrap();
    from.device.on_deadline(at(800));
    assert!(from.packets(at(800)).is_empty());
    assert_eq!(from.device.counters().timeouts, 0);
    // The next one may go, and then nothing comes for as long as the patience is.
    from.device.on_deadline(at(1000));
    assert_eq!(from.packets(at(1000)).len(), 1);
    from.device.on_deadline(at(3000));
    assert_eq!(from.device.counters().timeouts, 1);
}
