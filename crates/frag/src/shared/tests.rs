use testkit::fragments::{Family, Packet, Random, cases};

use super::*;
use crate::key::Key;
use crate::limits::Config;
use crate::output::{Datagram, Notice, NoticeKind, Released};
use crate::overlap::Policy;

#[derive(Default)]
struct Out {
    returned: usize,
    delivered: usize,
    whole: usize,
    notices: Vec<NoticeKind>,
}

impl Sink<()> for Out {
    fn whole(&mut self, (): (), _: usize) {
        self.returned += 1;
        self.whole += 1;
    }

    fn datagram(&mut self, _: &Datagram<'_, ()>) {
        self.delivered += 1;
    }

    fn release(&mut self, (): (), _: Released) {
        self.returned += 1;
    }

    fn notice(&mut self, notice: &Notice<'_, ()>) {
        self.notices.push(notice.kind);
    }
}

fn table(memory_bytes: u64) -> Arc<Shared<()>> {
    let config = Config { memory_bytes, shards: 3, copy_below: 16, ..Config::default() };
    Shared::new(&config.limits().expect("right"), 16, &HashKey::new([1, 2]))
}

fn push(table: &Shared<()>, core: &mut Core, packet: &Packet, now: u64, out: &mut Out) {
    let bytes = packet.emit();
    let arrival = Arrival { cost: 2048, ..Arrival::new(&bytes, ()) };
    table.push(core, arrival, now, out);
}

/// Cores come and go in the middle of all datagrams, in little memory: it all comes back.
#[test]
fn leases_of_cores_that_come_and_go_add_up() {
    let table = table(256 << 10);
    let mut random = Random::new(7);
    let mut out = Out::default();
    let mut cores: Vec<Core> = (0..3).map(|_| table.core()).collect();
    let mut now = 1;
    let pushes = 20_000;
    for _ in 0..pushes {
        let id = u8::try_from(random.below(60)).expect("below 60");
        let whole = Packet::new(Family::V6, id.into(), vec![0; 120]);
        let at = 24 * random.below(5);
        let which = random.below(3);
        push(&table, &mut cores[which], &whole.fragment(at, at + 24), now, &mut out);
        now += random.below(100_000) as u64;
        if random.below(50) == 0 {
            cores[which] = table.core();
        }
    }
    assert!(out.delivered > 100, "{}", out.delivered);
    let end = now + 61_000_000_000;
    assert_eq!(table.expire(&mut cores[0], 0..16, end, &mut out), None);
    assert_eq!((table.datagrams(), out.returned), (0, pushes));
    drop(cores);
    assert_eq!(table.ledger.left() + table.gauges().spare_bytes, table.ledger.limit());
    assert_eq!(table.ledger.promises_left(), table.ledger.promises_limit());
}

/// As [`Shard::clear`](crate::Shard::clear): each buffer comes back with the reason, and all memory with the cores. What
/// is dropped without that tells no sink, and leaves nothing in the ledger that others may have.
#[test]
fn a_table_is_emptied_or_dropped_in_the_middle_of_datagrams() {
    let config = Config { memory_bytes: 1 << 30, shards: 3, copy_below: 16, ..Config::default() };
    let limits = config.limits().expect("right");
    let ledger = Ledger::of(&limits);
    for is_cleared in [true, false] {
        let table = Shared::with(&limits, 16, &HashKey::new([1, 2]), &ledger);
        let mut cores = [table.core(), table.core()];
        let mut out = Out::default();
        for id in 0..300u32 {
            let family = if id % 2 == 0 { Family::V4 } else { Family::V6 };
            let whole = Packet::new(family, id, vec![0; 80]);
            // The last is small, and so is copied.
            [(0, 32), (72, 80)].iter().for_each(|(at, end)| {
                push(&table, &mut cores[at / 72], &whole.fragment(*at, *end), 1, &mut out);
            });
        }
        let Gauges { datagrams, memory_bytes, leased_bytes, spare_bytes, blocks, .. } =
            table.gauges();
        assert_eq!((datagrams, blocks, out.returned), (300, 300, 300), "the copied ones are back");
        assert!(memory_bytes > 300 * 2048 && leased_bytes == memory_bytes + spare_bytes);
        let unused: u64 = cores.iter().map(Core::unused_bytes).sum();
        assert_eq!(leased_bytes + unused + ledger.left(), ledger.limit());
        if is_cleared {
            table.clear(&mut cores[1], 2, &mut out);
            assert_eq!(table.counters().datagrams(Reason::Cleared), 300);
            let gauges = table.gauges();
            let left = (gauges.datagrams, gauges.memory_bytes, gauges.committed_bytes);
            assert_eq!((left, gauges.blocks, table.datagrams()), ((0, 0, 0), 0, 0));
        }
        drop((cores, table));
        assert_eq!(out.returned, if is_cleared { 600 } else { 300 });
        assert_eq!(ledger.left(), ledger.limit());
        assert_eq!(ledger.promises_left(), ledger.promises_limit());
    }
}

/// What all cores know together is written when datagrams begin, grow much and end, not with each fragment.
#[test]
fn no_word_of_all_cores_is_written_per_fragment() {
    const PIECES: usize = 45;
    let table = table(64 << 20);
    let shares = table.shares.as_ref().expect("sixteen buckets");
    let mut cores = [table.core(), table.core()];
    let (mut out, mut now) = (Out::default(), 1);
    let (datagrams, mut writes, mut before) = (200u32, 0, shares.words());
    for round in 0..datagrams / 20 {
        for at in 0..PIECES {
            // Every other one backwards.
            let piece = if round % 2 == 0 { at } else { PIECES - 1 - at };
            for id in 20 * round..20 * (round + 1) {
                let whole = Packet::new(Family::V4, id, vec![0; PIECES * 64]);
                let fragment = whole.fragment(piece * 64, piece * 64 + 64);
                push(&table, &mut cores[at % 2], &fragment, now, &mut out);
                now += 1000;
                let after = shares.words();
                writes += u32::from(after != before);
                before = after;
            }
        }
    }
    assert_eq!(out.delivered, datagrams as usize);
    assert!(writes <= 8 * datagrams, "{writes} writes for {datagrams} datagrams of 45 fragments");
}

/// As a shard, in turn by two cores: at several times what fits.
#[test]
fn overload_leaves_a_shared_table_at_work() {
    for (senders, loses) in [20, 50, 100, 250].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let table = table(1 << 20);
        let mut cores = [table.core(), table.core()];
        let mut out = Out::default();
        let pieces = 45;
        let (mut now, mut sent) = (1, 0u32);
        for round in 0..20 * pieces {
            for sender in 0..senders {
                let at = round + usize::from(sender);
                let id = u32::try_from(at / pieces).expect("few");
                let mut whole = Packet::new(Family::V4, id, vec![0; pieces * 8]);
                whole.src = sender;
                let piece = at % pieces;
                let core = &mut cores[round % 2];
                sent += 1;
                if !(loses && sent.is_multiple_of(1000)) {
                    push(&table, core, &whole.fragment(piece * 8, piece * 8 + 8), now, &mut out);
                }
                now += 625;
            }
        }
        // Ten fit, of all; of twenty of each that is 200 at best.
        assert!(out.delivered >= 100, "{} with {senders} senders, lossy: {loses}", out.delivered);
    }
}

/// What an overload leaves lies in other buckets than what comes after it: it goes for that all the same.
#[test]
fn a_shared_table_recovers_from_an_overload() {
    recovers_from_an_overload(|_| ());
}

/// A sink that has panicked leaves a bucket that others may still have memory of.
#[test]
fn a_shared_table_recovers_although_sinks_have_panicked() {
    recovers_from_an_overload(|table| {
        for bucket in &table.buckets {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _held = bucket.lock();
                std::panic::resume_unwind(Box::new("as a sink does"));
            }));
            assert!(panicked.is_err() && bucket.0.is_poisoned());
        }
    });
}

/// `before`: what happens to the table before.
fn recovers_from_an_overload(before: impl Fn(&Shared<()>)) {
    const PIECES: usize = 45;
    let config = Config { memory_bytes: 4 << 20, shards: 2, copy_below: 0, ..Config::default() };
    let table: Arc<Shared<()>> =
        Shared::new(&config.limits().expect("right"), 256, &HashKey::new([1, 2]));
    before(&table);
    let mut cores = [table.core(), table.core()];
    let mut out = Out::default();
    let whole = Packet::new(Family::V4, 0, vec![0; PIECES * 1440]);
    let mut mould: Vec<Vec<u8>> =
        (0..PIECES).map(|at| whole.fragment(at * 1440, at * 1440 + 1440).emit()).collect();
    let mut push = |core: usize, sender: u8, id: u16, piece: usize, now: u64, out: &mut Out| {
        let bytes = &mut mould[piece];
        bytes[14] = sender;
        bytes[4..6].copy_from_slice(&id.to_be_bytes());
        let arrival = Arrival { cost: 2048, ..Arrival::new(bytes, ()) };
        table.push(&mut cores[core], arrival, now, out);
    };
    let mut now = 1_000_000_000;
    for round in 0..4 * PIECES {
        for sender in 0..200u8 {
            let at = round + usize::from(sender);
            let id = u16::try_from(at / PIECES).expect("few");
            push(at % 2, sender, id, at % PIECES, now, &mut out);
            now += 5000;
        }
    }
    let end = now;
    let mut counted = 0;
    for id in 1000..1015 {
        let (begun, before) = (now, out.delivered);
        for piece in 0..PIECES {
            for sender in 0..12 {
                push(piece % 2, sender, id, piece, now, &mut out);
                now += 50_000;
            }
        }
        if begun >= end + 100_000_000 {
            counted += 1;
            assert_eq!(out.delivered - before, 12, "{id}: {:?}", table.counters());
        }
    }
    assert!(counted >= 10, "too few to say anything: {counted}");
}

fn push_burst(table: &Shared<()>, core: &mut Core, packets: &[Packet], now: u64, out: &mut Out) {
    let bytes: Vec<Vec<u8>> = packets.iter().map(Packet::emit).collect();
    let arrival = |bytes| Arrival { cost: 2048, ..Arrival::new(bytes, ()) };
    let mut arrivals: Vec<_> = bytes.iter().map(|bytes| arrival(bytes)).collect();
    table.push_burst(core, &mut arrivals, now, out);
    assert!(arrivals.is_empty());
}

/// As of a shard (`tests/it/times.rs`), one by one and in a burst.
#[test]
fn a_sender_hears_of_what_no_datagram_can_have() {
    let table = table(1 << 20);
    let (mut core, mut out) = (table.core(), Out::default());
    for family in [Family::V4, Family::V6] {
        let odd = Packet { more: true, ..Packet::new(family, 1, vec![1; 13]) };
        let far = Packet { offset: 65_528, ..Packet::new(family, 2, vec![2; 100]) };
        push(&table, &mut core, &odd, 1, &mut out);
        push_burst(&table, &mut core, &[far], 1, &mut out);
    }
    assert_eq!(out.notices, [NoticeKind::BadLength, NoticeKind::TooLong], "of IPv6 only");
    assert_eq!((out.returned, core.counters().fragments), (4, 4));
}

/// Many datagrams, which meet in buckets and in bursts, and whole packets among them: what one by one comes of it.
#[test]
fn bursts_end_as_single_packets_do() {
    let mut random = Random::new(11);
    let mut packets = Vec::new();
    for id in 0..3000u32 {
        let mut whole = Packet::new(Family::V4, id, vec![1; 96]);
        // No source has more than its share.
        whole.src = u8::try_from(id % 100).expect("below 100");
        packets.extend((0..4).map(|at| whole.fragment(24 * at, 24 * at + 24)));
        if id % 8 == 0 {
            packets.push(Packet::new(Family::V4, id, vec![2; 30]));
        }
    }
    // Near where they were, so that some dozens of datagrams are in progress.
    for at in 0..packets.len() {
        let with = (at + random.below(150)).min(packets.len() - 1);
        packets.swap(at, with);
    }
    for burst in [1, 5, 32, 33, 1000] {
        let table = table(64 << 20);
        let mut cores = [table.core(), table.core()];
        let mut out = Out::default();
        for (at, burst) in packets.chunks(burst).enumerate() {
            push_burst(&table, &mut cores[at % 2], burst, 1, &mut out);
        }
        let counters = table.counters();
        assert_eq!((out.delivered, out.whole), (3000, 375), "bursts of {burst}: {counters:?}");
        assert_eq!((out.returned, table.datagrams()), (packets.len(), 0));
    }
}

/// Fragments of a datagram stay in order: of two that overlap the first one counts.
#[test]
fn bursts_keep_the_order_within_a_datagram() {
    let config = Config { overlap: Policy::First, ..Config::default() };
    let table: Arc<Shared<Last>> =
        Shared::new(&config.limits().expect("right"), 16, &HashKey::new([1, 2]));
    let mut core = table.core();
    let (mut bytes, mut out) = (Vec::new(), LastByte::default());
    for id in 0..40u32 {
        // Twelve bytes each in a burst with others': the last eight are sent twice.
        let ends = [(3u8, true), (1, false), (2, false)];
        for (fill, is_first) in ends {
            let whole = Packet::new(Family::V4, id, vec![fill; 16]);
            bytes.push(if is_first { whole.fragment(0, 8) } else { whole.fragment(8, 16) }.emit());
        }
    }
    // The ends go before the beginnings, which complete them.
    bytes.sort_by_key(|bytes| bytes[20] == 3);
    let mut arrivals: Vec<_> =
        bytes.iter().map(|bytes| Arrival::new(bytes, Last(bytes[20]))).collect();
    table.push_burst(&mut core, &mut arrivals, 1, &mut out);
    assert_eq!(out.0, [1; 40]);
}

/// A buffer that is what it holds.
#[derive(Debug, Clone, Copy)]
struct Last(u8);

#[derive(Default)]
struct LastByte(Vec<u8>);

impl Sink<Last> for LastByte {
    fn whole(&mut self, _: Last, _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, Last>) {
        let last = datagram.slices().last().map(|slice| match slice {
            crate::Slice::Held { buffer, .. } => buffer.0,
            crate::Slice::Copied(bytes) => bytes[bytes.len() - 1],
        });
        self.0.extend(last);
    }

    fn release(&mut self, _: Last, _: Released) {}
}

/// Each named case by two cores in turn, which then end: nothing is left, and the ledger has it all.
#[test]
fn named_cases_end_as_they_should_and_leave_nothing_behind() {
    named_cases(1);
}

#[test]
fn named_cases_end_the_same_in_bursts() {
    named_cases(3);
    named_cases(usize::MAX);
}

fn named_cases(burst: usize) {
    for case in cases() {
        let limits = Config { shards: 2, fragments_max: 8192, ..Config::default() };
        let limits = limits.limits().expect("right");
        let table: Arc<Shared<()>> = Shared::new(&limits, 4, &HashKey::new([3, 4]));
        let mut out = Out::default();
        let mut cores = [table.core(), table.core()];
        for (at, fragments) in case.fragments.chunks(burst).enumerate() {
            match fragments {
                [fragment] => push(&table, &mut cores[at % 2], fragment, 1, &mut out),
                fragments => push_burst(&table, &mut cores[at % 2], fragments, 1, &mut out),
            }
        }
        assert_eq!(out.delivered + out.whole, case.payloads.len(), "{}", case.name);
        let end = 61_000_000_000;
        assert_eq!(table.expire(&mut cores[0], 0..4, end, &mut out), None);
        assert_eq!((table.datagrams(), out.returned), (0, case.fragments.len()), "{}", case.name);
        drop(cores);
        let ledger = &table.ledger;
        let spare = table.gauges().spare_bytes;
        assert_eq!(ledger.left() + spare, ledger.limit(), "{}", case.name);
        assert_eq!(ledger.promises_left(), ledger.promises_limit(), "{}", case.name);
    }
}

/// Of a flow's datagrams each bucket has its part; when an identification is in use again they say all together, and no
/// other flow does.
#[test]
fn an_identification_that_has_come_round_is_told_over_all_buckets() {
    let config = Config { shards: 2, copy_below: 0, ..Config::default() };
    let table: Arc<Shared<()>> =
        Shared::new(&config.limits().expect("right"), 256, &HashKey::new([1, 2]));
    let (mut core, mut out) = (table.core(), Out::default());
    let waiting = Packet::new(Family::V4, 7, vec![1; 16]);
    let begin = |core: &mut Core, out: &mut Out, n: u32, protocol: u8| {
        let whole = Packet { protocol, ..Packet::new(Family::V4, 1000 + n, vec![2; 16]) };
        push(&table, core, &whole.fragment(0, 8), 1, out);
        push(&table, core, &whole.fragment(8, 16), 1, out);
    };
    push(&table, &mut core, &waiting.fragment(0, 8), 1, &mut out);
    (0..34_000).for_each(|n| begin(&mut core, &mut out, n, 6));
    (0..32_000).for_each(|n| begin(&mut core, &mut out, n, waiting.protocol));
    push(&table, &mut core, &waiting.fragment(8, 16), 1, &mut out);
    assert_eq!((table.counters().datagrams(Reason::Stale), out.delivered), (0, 66_001));
    push(&table, &mut core, &waiting.fragment(0, 8), 1, &mut out);
    (0..33_000).for_each(|n| begin(&mut core, &mut out, n, waiting.protocol));
    push(&table, &mut core, &waiting.fragment(8, 16), 1, &mut out);
    assert_eq!((table.counters().datagrams(Reason::Stale), out.delivered), (1, 99_001));
}

/// A core at work in one bucket writes to no line of another, nor to one that is fetched with such a line.
#[test]
fn buckets_are_on_lines_of_their_own() {
    const FETCHED: usize = 128;
    let table = table(1 << 20);
    let lines = |bucket: &Bucket<()>| {
        let begin = std::ptr::from_ref(bucket).addr();
        let last = begin + size_of_val(bucket) - 1;
        [begin / FETCHED, last / FETCHED]
    };
    let all: Vec<_> = table.buckets.iter().map(lines).collect();
    assert_eq!(all.len(), 16);
    assert!(all.windows(2).all(|two| two[0][1] < two[1][0]), "{all:?}");
}

/// Datagrams that are all in one bucket for who has found out a secret are in all buckets where it is another one.
#[test]
fn nobody_aims_at_a_bucket() {
    const BUCKETS: u32 = 16;
    const AIMED: usize = 1600;
    let of = |secret: u64| {
        let limits = Config { shards: 2, ..Config::default() }.limits().expect("right");
        Shared::<()>::new(&limits, BUCKETS, &HashKey::new([secret, 2]))
    };
    let (known, another) = (of(1), of(3));
    let keys = (0..).map(|id| Key::v6([0xfd << 56, 1], [0xfd << 56, 2], id, 0));
    let aimed: Vec<Key> = keys.filter(|key| known.steering.shard(key) == 5).take(AIMED).collect();
    let mut counts = [0u32; BUCKETS as usize];
    aimed.iter().for_each(|key| counts[another.steering.shard(key) as usize] += 1);
    assert!(counts.iter().all(|n| (50..200).contains(n)), "{counts:?}");
}
