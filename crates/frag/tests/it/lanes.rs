//! Any sequence of calls on several cores, as bytes: fragments come to any core, and are handed to their
//! shard by lanes, or pushed into one table for all.
//!
//! Whatever a shard is given, one alone is given at the same time; likewise what the table is given. With
//! memory enough all must give out the same. With little, each buffer comes back once, and nothing is left.

use std::sync::Arc;

use frag::wire::Fragment;
use frag::{
    Arrival, Config, Core, Datagram, HashKey, Ledger, Limits, Receiver, Released, Sender, Shard,
    Shared, Sink, Steering, lane,
};
use testkit::fragments::{Family, Packet};
use testkit::input::Input;

const SECOND: u64 = 1_000_000_000;
const CORES_MAX: usize = 3;

/// Packets, and their fragments' scopes, by number: a buffer is a number.
#[derive(Default)]
struct Packets(Vec<(Vec<u8>, u64)>);

impl Packets {
    fn arrival(&self, number: u32, frame: u32) -> Arrival<'_, u32> {
        let (bytes, scope) = &self.0[number as usize];
        let cost = u32::try_from(bytes.len()).expect("small") + frame;
        Arrival { packet: bytes, buffer: number, cost, scope: *scope }
    }
}

/// What came out of some calls, and how often each buffer came back ever.
#[derive(Default)]
struct Out {
    datagrams: Vec<Vec<u8>>,
    returned: Vec<u32>,
}

/// A sink that finds bytes by number.
struct At<'o>(&'o mut Out, &'o Packets);

impl Sink<u32> for At<'_> {
    fn whole(&mut self, buffer: u32, len: usize) {
        assert!(len <= self.1.0[buffer as usize].0.len());
        self.0.returned.push(buffer);
    }

    fn datagram(&mut self, datagram: &Datagram<'_, u32>) {
        let mut packet = vec![0; datagram.packet_len()];
        let written = datagram.write_to(&mut packet, |number| &self.1.0[*number as usize].0);
        assert_eq!(written, Ok(packet.len()));
        packet.extend(datagram.key().scope.to_le_bytes());
        self.0.datagrams.push(packet);
    }

    fn release(&mut self, buffer: u32, _: Released) {
        self.0.returned.push(buffer);
    }
}

/// A fragment that a lane had no room for.
type Late = (usize, Fragment, u32);

/// A core with its shard, the ends of its lanes, and its hold on the table for all.
struct Post {
    shard: Shard<u32>,
    to: Vec<Option<Sender>>,
    from: Vec<Option<Receiver>>,
    late: Vec<Late>,
    core: Core,
}

struct World {
    posts: Vec<Post>,
    steering: Steering,
    shared: Arc<Shared<u32>>,
    /// Given what the shards are given, and what the table is.
    alone: [(Shard<u32>, Out); 2],
    /// Of the shards, and of the table.
    outs: [Out; 2],
    ledger: Arc<Ledger>,
    packets: Packets,
    roomy: bool,
    frame: u32,
    now: u64,
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let cores = 1 + input.below(CORES_MAX);
        let roomy = input.byte().is_multiple_of(2);
        let mut config = Config {
            shards: u32::try_from(cores).expect("few"),
            copy_below: input.choice(&[256, 0, 16]),
            fragments_max: 8192,
            memory_bytes: 1 << 40,
            ..Config::default()
        };
        if !roomy {
            config.memory_bytes = input.choice(&[64 << 10, 200_000]);
            config.fragments_max = input.choice(&[8192, 3]);
        }
        let limits = config.limits().expect("settings that can be");
        let ledger = Ledger::of(&limits);
        let room = input.choice(&[2, 4, 16, 64]);
        let shared = Shared::new(&limits, input.choice(&[1, 4]), &HashKey::new([3, 3]));
        let alone =
            |n| (Shard::new(&limits, &Ledger::of(&limits), HashKey::new([n, 7])), Out::default());
        let steering = Steering::new(HashKey::new([9, 2]), config.shards);
        let mut posts: Vec<Post> =
            (0..cores).map(|n| Post::new(n, &limits, (&ledger, &steering), &shared)).collect();
        for from in 0..cores {
            for to in 0..cores {
                let (sender, receiver) = (from != to).then(|| lane(room)).unzip();
                posts[from].to.push(sender);
                posts[to].from.push(receiver);
            }
        }
        Self {
            posts,
            steering,
            shared,
            alone: [alone(5), alone(6)],
            outs: [Out::default(), Out::default()],
            ledger,
            packets: Packets::default(),
            roomy,
            frame: input.choice(&[0, 2048]),
            now: SECOND,
        }
    }

    /// A fragment of one of a few datagrams, or nonsense, as a number.
    fn packet(&mut self, input: &mut Input<'_>) -> u32 {
        let (which, how) = (input.byte(), input.byte());
        let scope = u64::from(which >> 6);
        let bytes = if how == 255 {
            (0..input.below(60)).map(|_| input.byte()).collect()
        } else {
            let family = if which & 1 == 0 { Family::V4 } else { Family::V6 };
            let len = if how & 128 == 0 { 120 } else { 4 * 40 + 1 };
            let payload = (0..len).map(|at| which ^ u8::try_from(at).expect("small")).collect();
            let mut whole = Packet::new(family, u32::from(which >> 1 & 7), payload);
            whole.src = which >> 4 & 3;
            whole.tos = if how & 64 == 0 { 2 } else { 3 };
            whole.options = if how & 32 == 0 { 0 } else { 8 };
            whole.extensions = vec![60; usize::from(how >> 5 & 1)];
            let at = usize::from(how & 7) * 40 % len / 8 * 8;
            whole.fragment(at, (at + 40).min(len)).emit()
        };
        self.packets.0.push((bytes, scope));
        u32::try_from(self.packets.0.len() - 1).expect("few")
    }

    /// Packets come to a core, which keeps its own and sends the others.
    fn spray(&mut self, input: &mut Input<'_>) {
        let (me, count) = (input.below(self.posts.len()), 1 + input.below(40));
        let numbers: Vec<u32> = (0..count).map(|_| self.packet(input)).collect();
        let Self { posts, steering, packets, outs, alone, frame, now, .. } = self;
        let burst: Vec<_> = numbers.iter().map(|n| packets.arrival(*n, *frame)).collect();
        let Post { shard, to, late, .. } = &mut posts[me];
        let mut sent = Vec::new();
        let whose = (&*steering, u32::try_from(me).expect("few"));
        let mut out = At(&mut outs[0], packets);
        shard.push_steered(&burst, whose, *now, &mut out, |other, fragment, arrival| {
            sent.push(arrival.buffer);
            let other = other as usize;
            // Behind what waits already: else the order would change.
            let waits = late.iter().any(|(to, ..)| *to == other);
            let lane = to[other].as_mut().expect("to another");
            if waits || !lane.send(fragment, u64::from(arrival.buffer)) {
                late.push((other, *fragment, arrival.buffer));
            }
        });
        let (one, out) = &mut alone[0];
        for number in numbers.into_iter().filter(|number| !sent.contains(number)) {
            one.push(packets.arrival(number, *frame), *now, &mut At(out, packets));
        }
    }

    /// What waited is sent, as far as there is room, and shown or not.
    fn send(&mut self, me: usize, show: bool) {
        let Post { to, late, .. } = &mut self.posts[me];
        let mut full = [false; CORES_MAX];
        late.retain(|(other, fragment, number)| {
            let lane = to[*other].as_mut().expect("to another");
            // Nothing passes what waits, though it may need less room.
            full[*other] = full[*other] || !lane.send(fragment, u64::from(*number));
            full[*other]
        });
        if show {
            to.iter_mut().flatten().for_each(Sender::flush);
        }
    }

    /// A core takes in what has come from another. Answers how much.
    fn receive(&mut self, me: usize, other: usize) -> usize {
        let Self { posts, packets, outs, alone, frame, now, .. } = self;
        let Post { shard, from, .. } = &mut posts[me];
        let Some(lane) = from[other].as_mut() else { return 0 };
        let mut came = Vec::new();
        let count = shard.push_received(lane, *now, &mut At(&mut outs[0], packets), |ticket| {
            came.push(u32::try_from(ticket).expect("a number of ours"));
            packets.arrival(came[came.len() - 1], *frame)
        });
        assert_eq!(count, came.len());
        let (one, out) = &mut alone[0];
        for number in came {
            one.push(packets.arrival(number, *frame), *now, &mut At(out, packets));
        }
        count
    }

    /// Packets come to a core and go into the table for all.
    fn share(&mut self, input: &mut Input<'_>) {
        let (me, count) = (input.below(self.posts.len()), 1 + input.below(8));
        for _ in 0..count {
            let number = self.packet(input);
            let Self { posts, shared, packets, outs, alone, frame, now, .. } = self;
            let core = &mut posts[me].core;
            shared.push(
                core,
                packets.arrival(number, *frame),
                *now,
                &mut At(&mut outs[1], packets),
            );
            let (one, out) = &mut alone[1];
            one.push(packets.arrival(number, *frame), *now, &mut At(out, packets));
        }
    }

    /// Everything that is late goes, everywhere.
    fn expire(&mut self) {
        let Self { posts, shared, packets, outs, alone, now, .. } = self;
        for Post { shard, core, .. } in posts {
            shard.expire(*now, usize::MAX, &mut At(&mut outs[0], packets));
            let mut out = At(&mut outs[1], packets);
            // Some of each bucket at a time.
            while shared
                .expire(core, 0..shared.buckets(), *now, &mut out)
                .is_some_and(|at| at <= *now)
            {}
        }
        for (one, out) in alone {
            one.expire(*now, usize::MAX, &mut At(out, packets));
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let cores = self.posts.len();
        match input.byte() % 8 {
            0..=2 => self.spray(input),
            3 => self.send(input.below(cores), input.byte().is_multiple_of(2)),
            4 => drop(self.receive(input.below(cores), input.below(cores))),
            5 | 6 => self.share(input),
            _ => {
                self.now += u64::from(input.byte()) * SECOND / 10;
                self.expire();
            }
        }
    }

    fn check(&mut self) {
        let Self { posts, outs, alone, .. } = self;
        for (out, (_, expected)) in outs.iter_mut().zip(alone) {
            let (mut got, mut expected) =
                (std::mem::take(&mut out.datagrams), std::mem::take(&mut expected.datagrams));
            if self.roomy {
                // Those of several shards come in another order.
                got.sort_unstable();
                expected.sort_unstable();
                assert!(got == expected, "{} came out and {} should", got.len(), expected.len());
            }
        }
        let gauges = posts.iter().map(|post| post.shard.gauges());
        let (held, leased) = gauges.fold((0, 0), |(held, leased), gauges| {
            (held + gauges.memory_bytes, leased + gauges.leased_bytes)
        });
        assert!(held <= leased && leased + self.ledger.left() == self.ledger.limit());
    }

    /// All that is under way arrives, and all that is left goes.
    fn end(mut self) {
        let cores = self.posts.len();
        loop {
            (0..cores).for_each(|me| self.send(me, true));
            let pairs = (0..cores * cores).map(|n| (n / cores, n % cores));
            let came: usize = pairs.map(|(me, other)| self.receive(me, other)).sum();
            if came == 0 {
                break;
            }
            self.check();
        }
        assert!(self.posts.iter().all(|post| post.late.is_empty()));
        self.now += 1000 * SECOND;
        self.expire();
        self.check();
        assert_eq!(self.shared.datagrams(), 0);
        let [one, two] = &self.outs;
        let mut returned = [&one.returned[..], &two.returned].concat();
        returned.sort_unstable();
        let all = u32::try_from(self.packets.0.len()).expect("few");
        assert!(returned.into_iter().eq(0..all), "each buffer comes back once");
        drop(self.posts);
        assert_eq!(self.ledger.left(), self.ledger.limit());
    }
}

impl Post {
    fn new(
        number: usize,
        limits: &Limits,
        (ledger, steering): (&Arc<Ledger>, &Steering),
        shared: &Arc<Shared<u32>>,
    ) -> Self {
        let shard = if number.is_multiple_of(2) {
            Shard::steered(limits, ledger, steering)
        } else {
            Shard::new(limits, ledger, HashKey::new([number as u64, 1]))
        };
        let core = shared.core();
        Self { shard, to: Vec::new(), from: Vec::new(), late: Vec::new(), core }
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
    world.end();
}
