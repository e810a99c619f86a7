//! Two hosts on bad networks, one seed each: every byte arrives where it should, in order, once.

use std::collections::VecDeque;

use roce::*;
use testkit::fragments::Random;
use testkit::network::{Arrived, Conditions, Network};

use crate::hosts::{Host, Setup};

const RING: usize = 4096;
const RING_AT: u64 = 0x7f00_0000;
const INBOX_AT: u64 = 0x1000;
const MESSAGE: usize = 600;
const INBOX_SLOTS: u64 = 8;

/// One host's part.
struct Side {
    host: Host,
    random: Random,
    source: Key,
    inbox: Key,
    /// The peer's key of its ring.
    rkey: u32,
    /// What the peer's ring must be when all is done.
    expected_ring: Vec<u8>,
    /// What was sent and not received yet, by the peer.
    sent: VecDeque<(Vec<u8>, Option<u32>)>,
    to_post: u32,
    /// Requests that must complete, by id, in order.
    posted: VecDeque<u64>,
    received: u64,
    inbox_posted: u64,
    /// Whether it answers "not ready" now and then.
    stingy: bool,
}

struct World {
    sides: [Side; 2],
    /// From side 0 to 1, and back.
    wires: [Network<(Flow, u16)>; 2],
    sees_identifications: bool,
    now: u64,
}

fn setup(random: &mut Random) -> Setup {
    let mtu = [Mtu::B256, Mtu::B256, Mtu::B512, Mtu::B1024][random.below(4)];
    // Half of all numbers go round while the test runs.
    let mut psn = || {
        let near = u32::try_from(random.below(24)).unwrap();
        if random.word() & 1 == 0 { Psn::default().minus(near) } else { Psn::new(near * 7919) }
    };
    let psns = [psn(), psn()];
    let adaptive = random.word() & 1 == 0;
    let retransmission = if adaptive { Retransmission::SHUNT } else { Retransmission::Fixed };
    let window = [1, 2, 5, 128][random.below(4)];
    let rts = RtsAttributes {
        timeout: 11,
        window,
        ack_every: [1, 3, 64][random.below(3)],
        retransmission,
        ..RtsAttributes::new(Psn::default())
    };
    let dcqcn = Dcqcn { line_bits: 10_000_000_000, ..Dcqcn::default() };
    let base = Setup::default();
    Setup {
        mtu,
        psns,
        rts,
        congestion: (random.word() & 1 == 0).then_some(dcqcn),
        identification_end: Some(64),
        min_rnr_timer: [1, 5, 10][random.below(3)],
        qp: QpConfig { inline_max: 128, send_depth: 6, receive_depth: 8, ..base.qp },
        ..base
    }
}

/// A network on which eight attempts in a row do not all fail.
fn conditions(random: &mut Random) -> Conditions {
    let any = Conditions::random(random);
    Conditions {
        loss_ppm: any.loss_ppm / 3,
        corrupt_ppm: any.corrupt_ppm / 3,
        reorder_nanos: any.reorder_nanos.min(50_000),
        ..any
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let setup = setup(&mut random);
        let mut keys = Vec::new();
        let sides = setup.hosts().map(|mut host| {
            let bytes: Vec<u8> = (0..2048).map(|_| random.word().to_le_bytes()[0]).collect();
            let source = host.buffer(0, bytes, Access::READ);
            let ring = host.buffer(RING_AT, vec![0; RING], Access::REMOTE_WRITE);
            let slots = usize::try_from(INBOX_SLOTS).unwrap();
            let inbox = host.buffer(INBOX_AT, vec![0; MESSAGE * slots], Access::LOCAL_WRITE);
            keys.push(ring.0);
            Side {
                host,
                source,
                inbox,
                rkey: 0,
                expected_ring: vec![0; RING],
                sent: VecDeque::new(),
                to_post: 3 + u32::try_from(random.below(10)).unwrap(),
                posted: VecDeque::new(),
                received: 0,
                inbox_posted: 0,
                stingy: random.word() & 3 == 0,
                random: Random::new(random.word()),
            }
        });
        let mut wire = || Network::new(conditions(&mut random), random.word());
        let wires = [wire(), wire()];
        let mut world = Self { sides, wires, sees_identifications: seed & 1 == 0, now: 1_000_000 };
        world.sides[0].rkey = keys[1];
        world.sides[1].rkey = keys[0];
        world
    }

    fn is_done(&self) -> bool {
        self.sides.iter().all(|s| s.to_post == 0 && s.posted.is_empty() && s.sent.is_empty())
    }

    fn step(&mut self) {
        let now = Time::from_nanos(self.now);
        for at in 0..2 {
            let [a, b] = &mut self.sides;
            let (side, peer) = if at == 0 { (a, b) } else { (b, a) };
            let all: Vec<_> =
                core::iter::from_fn(|| self.wires[1 - at].receive(self.now)).collect();
            // What came at a time came together, as by `UDP_GRO`, unless each was looked at alone.
            let sees = self.sees_identifications;
            let as_one = |a: &Arrived<_>, b: &Arrived<_>| !sees && a.marked == b.marked;
            for together in all.chunk_by(as_one) {
                match together {
                    [one] => side.arrive(now, one, sees),
                    many => side.arrive_together(now, many),
                }
            }
            side.complete(peer);
            side.work();
            side.host.device.on_deadline(now);
            let mut buffer = vec![0; 8192];
            loop {
                let segments_max = 1 + side.random.below(8);
                let Host { device, memory, .. } = &mut side.host;
                let Some(run) = device.transmit(now, memory, &mut buffer, segments_max) else {
                    break;
                };
                assert!((1..=segments_max).contains(&run.segments));
                let segments = buffer[..run.len].chunks(run.segment_len);
                assert_eq!(segments.len(), run.segments);
                for (identification, bytes) in (0..).zip(segments) {
                    self.wires[at].send(self.now, (run.flow, identification), bytes);
                }
            }
        }
    }

    /// Moves on to when something happens next.
    fn advance(&mut self) {
        let wires = self.wires.iter().filter_map(Network::next_at);
        let hosts = self.sides.iter().filter_map(|side| side.host.device.next_deadline());
        let next = wires.chain(hosts.map(Time::nanos)).min();
        // Now and then both are late, so that more has come.
        let late = [0, 0, 0, 20_000][self.sides[0].random.below(4)];
        // A stingy side has nothing to wait for but its own change of mind.
        let next = next.unwrap_or(self.now + 100_000) + late;
        self.now = next.clamp(self.now + 1, self.now + 100_000_000);
    }
}

impl Side {
    fn arrive(&mut self, now: Time, came: &Arrived<(Flow, u16)>, sees: bool) {
        let (flow, identification) = came.tag;
        let arrival = Arrival {
            addresses: flow.addresses,
            src_port: flow.src_port,
            marked: came.marked,
            identification: sees.then_some(identification),
        };
        let Host { device, memory, .. } = &mut self.host;
        let outcome = device.receive(now, memory, &arrival, &came.bytes);
        // Only the byte that the CRC does not cover may be wrong.
        if came.corrupted && outcome.is_ok() {
            let known = icrc::Identification::Known(identification);
            assert_eq!(icrc::check(&flow, known, &came.bytes), Ok(identification));
        }
    }

    /// Whatever of them is broken must be so still when all is done.
    fn arrive_together(&mut self, now: Time, came: &[Arrived<(Flow, u16)>]) {
        let Arrived { tag: (flow, _), marked, .. } = came[0];
        let (addresses, src_port) = (flow.addresses, flow.src_port);
        let arrival = Arrival { addresses, src_port, marked, identification: None };
        let Host { device, memory, .. } = &mut self.host;
        let packets = came.iter().map(|one| &one.bytes[..]);
        device.receive_burst(now, memory, &arrival, packets);
    }

    /// Takes what is done, and compares.
    fn complete(&mut self, peer: &mut Self) {
        for done in self.host.completions() {
            assert_eq!(done.status, Status::Success, "{done:?}");
            match done.kind {
                Kind::Send | Kind::Write => {
                    assert_eq!(self.posted.pop_front(), Some(done.id), "out of order");
                }
                Kind::Receive | Kind::ReceiveWrite => {
                    let (message, immediate) = peer.sent.pop_front().expect("never sent");
                    assert_eq!((done.id, done.immediate), (self.received, immediate));
                    self.received += 1;
                    if done.kind == Kind::Receive {
                        let slot = usize::try_from(done.id % INBOX_SLOTS).unwrap();
                        let len = usize::try_from(done.bytes).unwrap();
                        let at = slot * MESSAGE;
                        assert_eq!(self.host.memory.all[2][at..at + len], message);
                    }
                }
            }
        }
    }

    /// Posts what there is room for.
    fn work(&mut self) {
        while self.inbox_posted < self.received + INBOX_SLOTS {
            if self.stingy && self.random.below(3) > 0 {
                break;
            }
            let address = INBOX_AT + self.inbox_posted % INBOX_SLOTS * MESSAGE as u64;
            let len = u32::try_from(MESSAGE).unwrap();
            self.host.post_receive(self.inbox_posted, self.inbox, address, len);
            self.inbox_posted += 1;
        }
        while self.to_post > 0 && self.random.below(3) > 0 && self.post_one() {
            self.to_post -= 1;
        }
    }

    fn post_one(&mut self) -> bool {
        let id = u64::from(self.to_post);
        let write = self.random.word() & 1 == 0;
        let most = if write { 1500 } else { MESSAGE };
        // Lengths of all kinds, 0 and whole packets among them.
        let len = [0, 1, 3, 44, 256, 512, 513, most][self.random.below(8)].min(most);
        let first = self.random.below(len + 1);
        let (at, other) = (self.random.below(500), self.random.below(500));
        let piece = |address: usize, len: usize| Piece {
            key: self.source,
            address: address as u64,
            len: u32::try_from(len).unwrap(),
        };
        let pieces = [piece(at, first), piece(other, len - first)];
        let from = &self.host.memory.all[0];
        let bytes = [&from[at..at + first], &from[other..other + len - first]].concat();
        let inline = len <= 128 && self.random.word() & 1 == 0;
        let source = if inline { Source::Inline(&bytes) } else { Source::Pieces(&pieces) };
        let to = self.random.below(RING - len);
        let operation = if write {
            Operation::Write { address: RING_AT + to as u64, rkey: self.rkey }
        } else {
            Operation::Send
        };
        let immediate = (self.random.below(4) == 0).then_some(0x0102_0304);
        let signaled = self.random.below(4) > 0 || self.to_post == 1;
        let request =
            SendRequest { id, operation, source, immediate, signaled, solicited: signaled };
        match self.host.device.post_send(self.host.qpn, &request) {
            Err(PostError::Full) => return false,
            other => other.unwrap(),
        }
        if write {
            self.expected_ring[to..to + len].copy_from_slice(&bytes);
        }
        if !write || immediate.is_some() {
            self.sent.push_back((bytes, immediate));
        }
        if signaled {
            self.posted.push_back(id);
        }
        true
    }
}

/// Steps that the worst network does not need.
const STEPS_MAX: u32 = 20_000;

fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..STEPS_MAX {
        world.step();
        if world.is_done() {
            break;
        }
        world.advance();
    }
    assert!(world.is_done(), "hangs");
    let [a, b] = &world.sides;
    assert!(a.expected_ring == b.host.memory.all[1], "the ring of 1 is not what 0 wrote");
    assert!(b.expected_ring == a.host.memory.all[1], "the ring of 0 is not what 1 wrote");
    world
}

/// What all sides have counted, and how often bytes were summed while they were written.
fn seeds(range: core::ops::Range<u64>) -> (Counters, u64) {
    let (mut all, mut summed) = (Counters::default(), 0);
    for seed in range {
        let ran = std::panic::catch_unwind(|| run(seed));
        let Ok(world) = ran else {
            panic!("seed {seed}: repeat it with ROCE_SEED={seed}");
        };
        for Side { host, .. } in &world.sides {
            all.add(host.device.counters());
            summed += host.memory.summed;
        }
    }
    (all, summed)
}

/// What must have been tried by some thousand seeds.
fn check_trouble((all, summed): &(Counters, u64)) {
    assert!(*summed > 100, "{summed} packets were taken as the ones before them");
    let Counters { retransmitted, timeouts, naks_in, rnr_in, cnp_in, .. } = all;
    let tried = [retransmitted, timeouts, naks_in, rnr_in, cnp_in];
    assert!(tried.iter().all(|count| **count > 100), "{all:?}");
    for reason in [Reason::Icrc, Reason::Duplicate, Reason::OutOfOrder, Reason::NotReady] {
        assert!(all.dropped(reason) > 100, "{reason:?}: {all:?}");
    }
    for reason in [Reason::InvalidRequest, Reason::Access, Reason::Operational, Reason::BadAck] {
        assert_eq!(all.dropped(reason), 0, "{reason:?}");
    }
    assert_eq!(all.failed, 0);
}

#[test]
fn bad_networks_0() {
    check_trouble(&seeds(0..2500));
}

#[test]
fn bad_networks_1() {
    check_trouble(&seeds(2500..5000));
}

#[test]
fn bad_networks_2() {
    check_trouble(&seeds(5000..7500));
}

#[test]
fn bad_networks_3() {
    check_trouble(&seeds(7500..10_000));
}

#[test]
fn a_seed_from_the_environment() {
    if let Some(seed) = std::env::var("ROCE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        run(seed);
    }
}
