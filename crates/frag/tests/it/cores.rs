//! Several cores: one table for all, or fragments steered to shards; and cores that come and go.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Barrier};
use std::thread;

use frag::wire::{self, Fragment};
use frag::{
    Arrival, Config, Datagram, HashKey, Ledger, Limits, Reason, Receiver, Released, Sender, Shard,
    Shared, Sink, Steering, lane,
};
use testkit::fragments::{Family, Packet, cases};

use crate::host::{MS, Out, SECOND};

type Buffer = Arc<Vec<u8>>;

/// The bytes of a datagram's payload say which one it is.
fn whole(id: u16) -> Packet {
    let family = if id.is_multiple_of(3) { Family::V6 } else { Family::V4 };
    let mut payload = Vec::with_capacity(1800);
    for n in 0..900u16 {
        payload.extend_from_slice(&(n ^ id).to_be_bytes());
    }
    Packet::new(family, u32::from(id), payload)
}

/// Its four fragments.
fn fragments(id: u16) -> [Buffer; 4] {
    let whole = whole(id);
    [0, 480, 960, 1440].map(|at| Arc::new(whole.fragment(at, (at + 480).min(1800)).emit()))
}

fn shared(buckets: u32) -> Arc<Shared<Buffer>> {
    let limits = Config { shards: 2, ..Config::default() }.limits().expect("right");
    Shared::new(&limits, buckets, &HashKey::new([5, 6]))
}

/// Checks what came out on all cores: each datagram once, and its own bytes.
fn check(outs: &[Out], datagrams: u16) {
    let mut ids: Vec<u16> = Vec::new();
    for delivered in outs.iter().flat_map(|out| &out.delivered) {
        let id = u16::from_be_bytes([delivered.payload()[0], delivered.payload()[1]]);
        let expected = whole(id);
        assert!(delivered.packet == expected.emit_whole(&expected.payload), "datagram {id}");
        ids.push(id);
    }
    ids.sort_unstable();
    assert!(ids.iter().copied().eq(0..datagrams), "each once: {} of {datagrams}", ids.len());
    let returned: u64 = outs.iter().map(|out| out.returned).sum();
    assert_eq!(returned, u64::from(datagrams) * 4);
}

/// Also where cores are more than the machine has, and stop anywhere.
#[test]
fn fragments_of_a_datagram_meet_from_whatever_core_they_come() {
    const DATAGRAMS: u16 = 3000;
    for (buckets, cores) in [(1, 2), (16, 2), (16, 8), (4, 16), (256, 16)] {
        let limits = roomy(cores);
        let table = Shared::new(&limits, buckets, &HashKey::new([5, 6]));
        let start = Arc::new(Barrier::new(cores));
        let core = |which: usize| {
            let (table, start) = (Arc::clone(&table), Arc::clone(&start));
            thread::spawn(move || {
                let (mut core, mut out) = (table.core(), Out::default());
                start.wait();
                for id in 0..DATAGRAMS {
                    // Each takes some of the four, not always the same.
                    let mine = fragments(id).into_iter().enumerate();
                    for (_, bytes) in mine.filter(|(n, _)| (n + usize::from(id)) % cores == which) {
                        let arrival = Arrival::new(&bytes, Arc::clone(&bytes));
                        table.push(&mut core, arrival, SECOND, &mut out);
                    }
                }
                out
            })
        };
        let cores: Vec<_> = (0..cores).map(core).collect();
        let outs = cores.into_iter().map(|core| core.join().expect("no core has panicked"));
        check(&outs.collect::<Vec<_>>(), DATAGRAMS);
        assert_eq!(table.datagrams(), 0);
        assert_eq!(table.counters().datagrams, u64::from(DATAGRAMS));
    }
}

#[test]
fn a_fragment_is_handed_to_the_shard_that_its_datagram_is_steered_to() {
    const DATAGRAMS: u16 = 1000;
    let limits = Config { shards: 2, ..Config::default() }.limits().expect("right");
    let ledger = Ledger::of(&limits);
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..2).map(|_| channel::<(Fragment, Buffer)>()).unzip();
    let shards: Vec<_> = (1..)
        .zip(receivers)
        .map(|(secret, receiver)| {
            let (limits, ledger) = (limits.clone(), Arc::clone(&ledger));
            thread::spawn(move || {
                let mut shard = Shard::new(&limits, &ledger, HashKey::new([secret, 0]));
                let mut out = Out::default();
                for (fragment, bytes) in receiver {
                    let arrival = Arrival::new(&bytes, Arc::clone(&bytes));
                    shard.push_fragment(&fragment, arrival, SECOND, &mut out);
                }
                assert_eq!(shard.gauges().datagrams, 0);
                out
            })
        })
        .collect();
    let receive = |which: usize| {
        let senders = senders.clone();
        thread::spawn(move || {
            let steering = Steering::new(HashKey::new([77, 1]), 2);
            for id in 0..DATAGRAMS {
                let mine = fragments(id).into_iter().enumerate();
                for (_, bytes) in mine.filter(|(n, _)| n % 2 == which) {
                    let Ok(wire::Packet::Fragment(fragment)) = wire::parse(&bytes, 0) else {
                        panic!("not a fragment");
                    };
                    let shard = steering.shard(&fragment.key) as usize;
                    senders[shard].send((fragment, bytes)).expect("a shard that lives");
                }
            }
        })
    };
    for core in [receive(0), receive(1)] {
        core.join().expect("no core has panicked");
    }
    drop(senders);
    let outs: Vec<_> =
        shards.into_iter().map(|shard| shard.join().expect("no shard has panicked")).collect();
    assert!(outs.iter().all(|out| out.delivered.len() > 300), "both had something to do");
    check(&outs, DATAGRAMS);
    assert_eq!(ledger.left(), ledger.limit());
}

/// What one core has seen of packets that all cores know by number.
struct Seen<'p> {
    packets: &'p [Buffer],
    delivered: Vec<Vec<u8>>,
    no_fragments: Vec<u32>,
    released: Vec<u32>,
}

impl Sink<u32> for Seen<'_> {
    fn whole(&mut self, buffer: u32, _: usize) {
        self.no_fragments.push(buffer);
    }

    fn datagram(&mut self, datagram: &Datagram<'_, u32>) {
        let mut packet = vec![0; datagram.packet_len()];
        let packets = self.packets;
        datagram.write_to(&mut packet, |n| &packets[*n as usize]).expect("there is room");
        self.delivered.push(packet);
    }

    fn release(&mut self, buffer: u32, _: Released) {
        self.released.push(buffer);
    }
}

/// Room for all datagrams at once, even if each were of the largest size.
fn roomy(cores: usize) -> Limits {
    let shards = u32::try_from(cores).expect("a few");
    Config { shards, memory_bytes: 1 << 30, ..Config::default() }.limits().expect("right")
}

/// A core's ends of the lanes to and from all others; none to itself.
#[derive(Default)]
struct Ends {
    to: Vec<Option<Sender>>,
    from: Vec<Receiver>,
}

impl Ends {
    fn of(cores: usize, room: u32) -> Vec<Self> {
        let mut all: Vec<Self> = (0..cores).map(|_| Self::default()).collect();
        for from in 0..cores {
            for to in 0..cores {
                let (sender, receiver) = (from != to).then(|| lane(room)).unzip();
                all[from].to.push(sender);
                all[to].from.extend(receiver);
            }
        }
        all
    }

    fn send(&mut self, to: u32, fragment: &Fragment, n: u32) -> bool {
        let to = self.to[to as usize].as_mut().expect("what is our own is not handed over");
        to.send(fragment, u64::from(n))
    }
}

/// Takes in what comes to core `me`, and hands over and takes in what belongs elsewhere, until all have.
fn work<'p>(
    me: u32,
    packets: &'p [Buffer],
    mut ends: Ends,
    ledger: &Arc<Ledger>,
    done: &AtomicUsize,
) -> Seen<'p> {
    let cores = ends.to.len();
    let count = u32::try_from(cores).expect("a few");
    let arrival = |n: u32| Arrival::new(&packets[n as usize][..], n);
    let limits = roomy(cores);
    let steering = Steering::new(HashKey::new([77, 1]), count);
    let mut shard = if me.is_multiple_of(2) {
        Shard::steered(&limits, ledger, &steering)
    } else {
        Shard::new(&limits, ledger, HashKey::new([u64::from(me), 0]))
    };
    let (delivered, no_fragments, released) = (Vec::new(), Vec::new(), Vec::new());
    let mut seen = Seen { packets, delivered, no_fragments, released };
    let numbers = 0..u32::try_from(packets.len()).expect("a few");
    let comes_to = |n: &u32| (u64::from(n.wrapping_mul(0x9e37_79b9)) * u64::from(count)) >> 32;
    let mine: Vec<u32> = numbers.filter(|n| comes_to(n) == u64::from(me)).collect();
    let of_ticket = |n: u64| arrival(u32::try_from(n).expect("a number of a packet"));
    let receive = |ends: &mut Ends, shard: &mut Shard<u32>, seen: &mut Seen<'_>| {
        for from in &mut ends.from {
            // Every other core takes them from the lane itself.
            if me.is_multiple_of(2) {
                let sent = from.receive().map(|(fragment, n)| (fragment, of_ticket(n)));
                shard.push_fragments(sent, SECOND, seen);
            } else {
                shard.push_received(from, SECOND, seen, of_ticket);
            }
        }
    };
    // Bursts of all lengths, of one fetch and of more.
    let mut rest = &mine[..];
    while !rest.is_empty() {
        let (burst, behind) = rest.split_at(rest.len().min(1 + rest.len() % 70));
        rest = behind;
        let burst: Vec<Arrival<'_, u32>> = burst.iter().map(|n| arrival(*n)).collect();
        let mut late = Vec::new();
        shard.push_steered(&burst, (&steering, me), SECOND, &mut seen, |other, fragment, of| {
            assert_ne!(other, me);
            assert_eq!(of.packet, &packets[of.buffer as usize][..]);
            late.push((other, *fragment, of.buffer));
        });
        while !late.is_empty() {
            late.retain(|(other, fragment, n)| !ends.send(*other, fragment, *n));
            ends.to.iter_mut().flatten().for_each(Sender::flush);
            receive(&mut ends, &mut shard, &mut seen);
        }
    }
    done.fetch_add(1, Ordering::Release);
    // Pairs with the Release above: who sees that others are done sees all that they have sent.
    while done.load(Ordering::Acquire) < cores {
        receive(&mut ends, &mut shard, &mut seen);
        thread::yield_now();
    }
    receive(&mut ends, &mut shard, &mut seen);
    assert_eq!(shard.gauges().datagrams, 0);
    seen
}

/// Also where cores are more than the machine has, and stop anywhere.
#[test]
fn fragments_that_come_to_any_core_go_by_lanes_to_their_shard() {
    const DATAGRAMS: u16 = 1000;
    let mut packets: Vec<Buffer> = (0..DATAGRAMS).flat_map(fragments).collect();
    let whole_packet = whole(7).emit_whole(&whole(7).payload);
    packets.extend((0..500).map(|_| Arc::new(whole_packet.clone())));
    // Of one datagram some come early and some late.
    let packets: Vec<Buffer> =
        (0..packets.len()).map(|n| Arc::clone(&packets[n * 7919 % packets.len()])).collect();
    let mut expected: Vec<Vec<u8>> =
        (0..DATAGRAMS).map(|id| whole(id).emit_whole(&whole(id).payload)).collect();
    expected.sort_unstable();
    for cores in [2, 8, 16] {
        let (ledger, done) = (Ledger::of(&roomy(cores)), AtomicUsize::new(0));
        let all: Vec<Seen<'_>> = thread::scope(|scope| {
            let (packets, ledger, done) = (&packets[..], &ledger, &done);
            let begin = |(me, ends)| scope.spawn(move || work(me, packets, ends, ledger, done));
            let all: Vec<_> = (0..).zip(Ends::of(cores, 64)).map(begin).collect();
            all.into_iter().map(|one| one.join().expect("no core has panicked")).collect()
        });
        let fair = usize::from(DATAGRAMS) / cores;
        assert!(all.iter().all(|seen| seen.delivered.len() > fair / 2), "all have much to do");
        let mut delivered: Vec<_> = all.iter().flat_map(|seen| seen.delivered.clone()).collect();
        delivered.sort_unstable();
        assert!(delivered == expected, "{} of {DATAGRAMS}", delivered.len());
        assert_eq!(all.iter().map(|seen| seen.no_fragments.len()).sum::<usize>(), 500);
        let mut released: Vec<_> = all.iter().flat_map(|seen| seen.released.clone()).collect();
        released.sort_unstable();
        released.dedup();
        assert_eq!(released.len(), usize::from(DATAGRAMS) * 4, "each buffer once");
        assert_eq!(ledger.left(), ledger.limit());
    }
}

#[test]
fn steering_is_even_and_the_same_for_all_fragments() {
    let steering = Steering::new(HashKey::new([77, 1]), 5);
    let mut of = [0u32; 5];
    for id in 0..5000 {
        let shards = fragments(id).map(|bytes| match wire::parse(&bytes, 0) {
            Ok(wire::Packet::Fragment(fragment)) => steering.shard(&fragment.key),
            other => panic!("{other:?}"),
        });
        assert_eq!(shards, [shards[0]; 4]);
        of[shards[0] as usize] += 1;
    }
    assert!(of.iter().all(|n| (800..1200).contains(n)), "{of:?}");
}

/// Datagrams that all go to one shard for who has found out a secret go to all where it is another one.
#[test]
fn nobody_aims_at_a_shard_of_several() {
    let [known, another] = [77, 78].map(|secret| Steering::new(HashKey::new([secret, 1]), 8));
    let mut of = [0u32; 8];
    for family in [Family::V4, Family::V6] {
        let key = |id| {
            let first = Packet::new(family, id, vec![0; 16]).fragment(0, 8).emit();
            match wire::parse(&first, 0) {
                Ok(wire::Packet::Fragment(fragment)) => fragment.key,
                other => panic!("{other:?}"),
            }
        };
        let aimed = (0..60_000).map(key).filter(|key| known.shard(key) == 3);
        aimed.take(800).for_each(|key| of[another.shard(&key) as usize] += 1);
    }
    assert!(of.iter().all(|n| (120..280).contains(n)), "{of:?}");
}

/// The core that began datagrams ends before they are complete; another one goes on.
#[test]
fn a_core_that_goes_leaves_its_datagrams_to_others() {
    let table = shared(16);
    let mut outs = [Out::default(), Out::default()];
    let mut first = table.core();
    for bytes in (0..100).flat_map(|id| fragments(id).into_iter().take(2)) {
        table.push(&mut first, Arrival::new(&bytes, Arc::clone(&bytes)), SECOND, &mut outs[0]);
    }
    drop(first);
    assert_eq!(table.datagrams(), 100);
    let mut second = table.core();
    for bytes in (0..100).flat_map(|id| fragments(id).into_iter().skip(2)) {
        table.push(&mut second, Arrival::new(&bytes, Arc::clone(&bytes)), SECOND, &mut outs[1]);
    }
    check(&outs, 100);
    assert_eq!(table.datagrams(), 0);
}

/// A flow is moved to another shard in the middle of its datagrams: halves here and there, which time ends.
#[test]
fn a_datagram_whose_shard_changes_is_counted_and_not_leaked() {
    let limits = Config { shards: 2, ..Config::default() }.limits().expect("right");
    let ledger = Ledger::of(&limits);
    let mut shards = [1, 2].map(|secret| {
        let secret = HashKey::new([secret, 0]);
        (Shard::<Buffer>::new(&limits, &ledger, secret), Out::default())
    });
    for id in 0..100 {
        for (n, bytes) in fragments(id).into_iter().enumerate() {
            let (shard, out) = &mut shards[n / 2];
            shard.push(Arrival::new(&bytes, Arc::clone(&bytes)), SECOND, out);
        }
    }
    for (shard, out) in &mut shards {
        assert_eq!(shard.expire(62 * SECOND, usize::MAX, out), None);
        assert_eq!((shard.gauges().datagrams, out.delivered.len()), (0, 0));
        assert_eq!(out.returned, 200);
    }
    let counters = shards.each_ref().map(|(shard, _)| shard.counters().clone());
    assert_eq!(counters[0].datagrams(Reason::Timeout), 100);
    assert_eq!(counters[1].datagrams(Reason::TimeoutNoFirst), 100);
    drop(shards);
    assert_eq!(ledger.left(), ledger.limit());
}

#[test]
fn each_case_ends_the_same_in_a_table_for_all_cores() {
    let table = shared(16);
    let mut cores = [table.core(), table.core()];
    let mut delivered = 0;
    for case in cases() {
        let mut out = Out::default();
        for (n, fragment) in case.fragments.iter().enumerate() {
            let bytes = Arc::new(fragment.emit());
            let arrival = Arrival::new(&bytes, Arc::clone(&bytes));
            table.push(&mut cores[n % 2], arrival, SECOND, &mut out);
        }
        let payloads: Vec<_> = out.delivered.iter().map(|d| d.payload().to_vec()).collect();
        assert!(payloads == case.payloads || out.whole.len() == 1, "{}", case.name);
        delivered += payloads.len();
    }
    assert_eq!(table.counters().datagrams, delivered as u64);
    let next =
        table.expire(&mut cores[0], 0..table.buckets(), SECOND + 100 * SECOND, &mut Out::default());
    assert_eq!((next, table.datagrams()), (None, 0));
    let [one, other] = cores;
    assert_eq!(one.counters().whole + other.counters().whole, 1);
    assert!(one.dropped(Reason::Unaligned) > 0);
}

/// A bucket is not locked for long: who gives up what is late is told that there is more.
#[test]
fn what_is_late_in_one_bucket_goes_in_parts() {
    let (table, mut out) = (shared(1), Out::default());
    let mut core = table.core();
    for id in 0..150 {
        let [first, ..] = fragments(id);
        table.push(&mut core, Arrival::new(&first, Arc::clone(&first)), SECOND, &mut out);
    }
    let late = 100 * SECOND;
    for left in [86, 22, 0] {
        let next = table.expire(&mut core, 0..1, late, &mut out);
        assert_eq!(table.datagrams(), left);
        assert_eq!(next.is_some_and(|at| at <= late), left > 0);
    }
    assert_eq!(out.returned, 150);
}

/// As in one shard: each bucket sees its part of a source's datagrams, however many buckets there are.
#[test]
fn an_identification_that_comes_round_joins_no_two_datagrams_in_a_shared_table() {
    for buckets in [64, 1024] {
        let table = shared(buckets);
        let mut core = table.core();
        let mut out = Out::default();
        let mut mixed = 0;
        for n in 0..150_000u32 {
            let generation = u8::try_from(n >> 16).expect("three rounds") + b'a';
            let whole = Packet::new(Family::V4, n & 0xffff, vec![generation; 16]);
            // Some lose the one half, some the other; in each round others.
            for at in [0, 8].into_iter().filter(|at| (n / 8 + n) % 97 != *at) {
                let bytes = Arc::new(whole.fragment(at as usize, at as usize + 8).emit());
                let arrival = Arrival::new(&bytes, Arc::clone(&bytes));
                table.push(&mut core, arrival, SECOND + MS * u64::from(n) / 100, &mut out);
            }
            for delivered in out.delivered.drain(..) {
                let bytes = delivered.payload();
                mixed += u32::from(bytes.iter().any(|b| *b != bytes[0]));
            }
        }
        let stale = table.counters().datagrams(Reason::Stale);
        assert_eq!(mixed, 0, "{buckets} buckets");
        assert!(stale > 500, "{stale} were of an earlier round, of {buckets} buckets");
    }
}

/// The same where fragments are steered to shards: each sees its part of a source's datagrams.
#[test]
fn an_identification_that_comes_round_joins_no_two_datagrams_of_steered_shards() {
    let count = 4u32;
    let limits = roomy(count as usize);
    let ledger = Ledger::of(&limits);
    let of = |n| Shard::<Buffer>::new(&limits, &ledger, HashKey::new([5, n]));
    let mut shards: Vec<_> = (0..u64::from(count)).map(of).collect();
    let steering = Steering::new(HashKey::new([7, 8]), count);
    let (mut out, mut mixed, mut whole_ones) = (Out::default(), 0, 0u64);
    for n in 0..150_000u32 {
        let generation = u8::try_from(n >> 16).expect("three rounds") + b'a';
        let whole = Packet::new(Family::V4, n & 0xffff, vec![generation; 16]);
        let comes = |at: &u32| (n / 8 + n) % 97 != *at;
        whole_ones += u64::from(comes(&0) && comes(&8));
        for at in [0, 8].into_iter().filter(comes) {
            let bytes = Arc::new(whole.fragment(at as usize, at as usize + 8).emit());
            let Ok(wire::Packet::Fragment(fragment)) = wire::parse(&bytes, 0) else {
                panic!("a fragment")
            };
            let shard = &mut shards[steering.shard(&fragment.key) as usize];
            let arrival = Arrival::new(&bytes, Arc::clone(&bytes));
            shard.push(arrival, SECOND + MS * u64::from(n) / 100, &mut out);
        }
        for delivered in out.delivered.drain(..) {
            let bytes = delivered.payload();
            mixed += u32::from(bytes.iter().any(|b| *b != bytes[0]));
        }
    }
    assert_eq!(mixed, 0, "{count} shards");
    let sum = |of: &dyn Fn(&Shard<Buffer>) -> u64| shards.iter().map(of).sum::<u64>();
    let stale = sum(&|shard| shard.counters().datagrams(Reason::Stale));
    assert!(stale > 500, "{stale} were of an earlier round, of {count} shards");
    assert_eq!(sum(&|shard| shard.counters().datagrams), whole_ones, "{count} shards");
}

#[test]
fn both_ends_of_a_hand_over_may_be_bounded() {
    // A descriptor is small enough to be sent in place of the packet.
    assert!(size_of::<Fragment>() <= 72, "{} bytes", size_of::<Fragment>());
    let (sender, receiver) = sync_channel::<Fragment>(1);
    let bytes = &fragments(1)[0];
    if let Ok(wire::Packet::Fragment(fragment)) = wire::parse(bytes, 3) {
        sender.send(fragment).expect("room for one");
    }
    assert_eq!(receiver.recv().expect("a fragment").key.scope, 3);
}

/// What a lane has brought when a sink panics is somebody's buffer: it comes again, but for the one fragment.
#[test]
fn a_panic_of_the_caller_loses_no_fragment_of_a_lane() {
    /// Panics when it is given a datagram, the first time.
    struct Fuse(usize, bool);
    impl Sink<Buffer> for Fuse {
        fn whole(&mut self, _: Buffer, _: usize) {}
        fn datagram(&mut self, _: &Datagram<'_, Buffer>) {
            self.0 += 1;
            assert!(!std::mem::take(&mut self.1), "on purpose");
        }
        fn release(&mut self, _: Buffer, _: Released) {}
    }
    const DATAGRAMS: u16 = 9;
    let limits = Config::default().limits().expect("right");
    let mut shard = Shard::new(&limits, &Ledger::of(&limits), HashKey::new([1, 2]));
    let (mut sender, mut receiver) = lane(1024);
    let all: Vec<Buffer> = (0..DATAGRAMS).flat_map(fragments).collect();
    for (ticket, bytes) in (0..).zip(&all) {
        let Ok(wire::Packet::Fragment(fragment)) = wire::parse(bytes, 0) else {
            panic!("not a fragment");
        };
        assert!(sender.send(&fragment, ticket));
    }
    sender.flush();
    let (mut fuse, mut asked) = (Fuse(0, true), Vec::new());
    let mut receive = |fuse: &mut Fuse, asked: &mut Vec<u64>| {
        shard.push_received(&mut receiver, SECOND, fuse, |ticket| {
            asked.push(ticket);
            let bytes = &all[usize::try_from(ticket).expect("few")];
            Arrival::new(bytes, Arc::clone(bytes))
        })
    };
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| receive(&mut fuse, &mut asked)));
    assert!(panicked.is_err() && asked == [0, 1, 2, 3]);
    assert_eq!(receive(&mut fuse, &mut asked), all.len() - 4);
    assert!(asked.iter().copied().eq(0..all.len() as u64), "each once: {asked:?}");
    assert_eq!(fuse.0, usize::from(DATAGRAMS));
}
