//! Many packets at once: what comes out is what would one by one, and datagrams of which all is in a burst take nothing.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use frag::{
    Arrival, Config, Counters, Datagram, HashKey, Ledger, Policy, Reason, Released, Shard, Sink,
};
use testkit::fragments::{Cut, Family, Packet, Random, cut, cut_unevenly};

use crate::host::{Host, MS, SECOND};

/// Packets that are handed in at once; a shard takes 32 of them together.
const BURST: usize = 32;

/// Fragments of a datagram, as cut.
fn fragments(whole: &Packet, cuts: &[Cut]) -> Vec<Packet> {
    cuts.iter().map(|cut| whole.fragment(cut.at, cut.end)).collect()
}

/// One that is small, of some flow.
fn small(random: &mut Random, id: u32) -> Packet {
    let family = [Family::V4, Family::V6][random.below(2)];
    let len = 16 + random.below(1000);
    let payload = (0..len).map(|_| u8::try_from(random.below(256)).unwrap_or(0)).collect();
    let mut whole = Packet::new(family, id, payload);
    whole.src = u8::try_from(2 + random.below(3)).unwrap_or(2);
    whole.tos = [0, 1, 2, 3][random.below(4)];
    match (family, random.below(4)) {
        (Family::V4, 0) => whole.options = 4 * (1 + random.below(10)),
        (Family::V6, 0) => whole.extensions = vec![60; 1 + random.below(3)],
        _ => {}
    }
    whole
}

/// A datagram's fragments, most of the time as they should be.
fn some(random: &mut Random, id: u32) -> Vec<Packet> {
    let whole = small(random, id);
    let len = whole.payload.len();
    let mut cuts = match random.below(3) {
        0 => cut_unevenly(random, len, 300),
        _ => cut(len, 8 * (1 + len / 8 / (1 + random.below(6)))),
    };
    match random.below(4) {
        0 => cuts.reverse(),
        1 => random.shuffle(&mut cuts),
        _ => {}
    }
    let mut all = fragments(&whole, &cuts);
    match random.below(12) {
        // One twice, none of one, a mark that contradicts the others, another's end, one that overlaps.
        0 => all.push(all[random.below(all.len())].clone()),
        1 => _ = all.swap_remove(random.below(all.len())),
        2 => {
            let at = random.below(all.len());
            all[at].tos ^= 3;
        }
        3 => all.push(whole.fragment(0, 8.min(len))),
        4 => all.extend(fragments(&small(random, id), &cut(24, 8)[..1])),
        5 => all.extend(all.clone()),
        _ => {}
    }
    all
}

/// What is said of fragments, but for how many of them were copied, and how large a table was for them: a datagram that
/// does not wait has none copied, and no place in a table.
fn counted(counters: &Counters) -> Counters {
    Counters { copied: 0, resized: 0, ..counters.clone() }
}

/// What fragments were dropped for, in turn.
fn drops(host: &Host) -> Vec<Released> {
    let dropped = |why: &&Released| matches!(why, Released::Dropped(_));
    host.out.released.iter().filter(dropped).copied().collect()
}

/// Datagrams that are mixed more and more, with all that may be wrong about them, among some that wait for more.
#[test]
fn a_burst_gives_what_its_packets_give_one_by_one() {
    let mut random = Random::new(1);
    let (mut delivered, mut copied_alone, mut copied) = (0, 0, 0);
    for round in 0..600 {
        let overlap = [Policy::Strict, Policy::Strict, Policy::Last][round % 3];
        let copy_below = [0, 512][round % 2];
        // Where memory is short, that it is shows less in bursts.
        let config = Config { copy_below, overlap, memory_bytes: 16 << 30, ..Config::default() };
        let [mut alone, mut together, mut parsed] = [(); 3].map(|()| Host::new(&config));
        [&mut alone, &mut together, &mut parsed].iter_mut().for_each(|host| host.frame = 2048);
        let mut all: Vec<Packet> = Vec::new();
        for id in 0..12 {
            // Some have the identification of one before.
            all.extend(some(&mut random, id / (1 + id % 2)));
            if random.below(4) == 0 {
                let mut whole = Packet::new(Family::V4, 7, vec![1; 32]);
                whole.src = 9;
                all.push(whole);
            }
        }
        for _ in 0..(round % 7) * 8 {
            let a = random.below(all.len());
            let b = (a + random.below(12)).min(all.len() - 1);
            all.swap(a, b);
        }
        // So many that the index is growing, or is nearly.
        let waiting: Vec<Packet> = (0..[0, 250, 256, 270, 500][round % 5])
            .map(|n| Packet::new(Family::V6, 1000 + n, vec![0; 900]).fragment(8, 808))
            .collect();
        all.splice(all.len() / 3..all.len() / 3, waiting);
        for burst in all.chunks(1 + random.below(2 * BURST)) {
            burst.iter().for_each(|packet| alone.push(packet));
            together.push_burst(burst);
            parsed.push_fragments(burst);
            assert_eq!(together.out.whole, alone.out.whole);
            for host in [&together, &parsed] {
                assert_eq!(host.out.delivered, alone.out.delivered, "round {round}");
                assert_eq!(host.out.notices, alone.out.notices, "round {round}");
                assert_eq!(drops(host), drops(&alone), "round {round}");
                assert_eq!(host.gauges().datagrams, alone.gauges().datagrams, "round {round}");
                let counters = counted(host.shard.counters());
                if host.out.whole.len() == alone.out.whole.len() {
                    assert_eq!(counters, counted(alone.shard.counters()));
                }
            }
        }
        delivered += alone.out.delivered.len();
        copied_alone += alone.shard.counters().copied;
        copied += together.shard.counters().copied;
    }
    assert!(delivered > 3500, "{delivered} datagrams came through");
    assert!(copied * 5 < copied_alone * 4, "{copied} of {copied_alone} copied: few were whole");
}

/// Of the same datagram there is something that a look at the burst does not show.
#[test]
fn what_is_in_progress_goes_before_what_is_whole_in_a_burst() {
    let fragment = |at, end, more| {
        let mut packet = Packet::new(Family::V4, 7, vec![5; 64]).fragment(at, end);
        packet.more = more;
        packet
    };
    // A piece that is known by a table that is being left for a larger one.
    let mut seen = 0;
    for waiting in 16..116 {
        let mut host = Host::new(&Config { copy_below: 0, ..Config::default() });
        host.push(&fragment(0, 16, true));
        for n in 0..waiting {
            host.push(&Packet::new(Family::V6, n, vec![0; 100]).fragment(8, 80));
        }
        host.push_burst(&[fragment(0, 8, true), fragment(8, 16, false)]);
        assert_eq!(host.out.delivered.len(), 0, "with {waiting} in progress");
        seen += u32::from(host.shard.counters().resized > 0);
    }
    assert!((20..80).contains(&seen), "the table grows on the way");
    // Pieces in the same burst that seem to be all, and are not.
    let mut host = Host::new(&Config::default());
    host.push_burst(&[
        fragment(0, 8, true),
        fragment(0, 8, true),
        fragment(16, 24, false),
        fragment(0, 8, true),
        fragment(8, 16, false),
    ]);
    assert_eq!((host.out.delivered.len(), host.gauges().datagrams), (0, 0));
}

/// Memory has ended, and who sends the fragments of a datagram one after the other is not touched by it.
#[test]
fn what_is_whole_in_a_burst_needs_no_memory() {
    let mut host =
        Host::new(&Config { memory_bytes: 64 << 10, copy_below: 0, ..Config::default() });
    host.frame = 2048;
    let (mut begun, mut whole) = (0u64, 0);
    for id in 0..2000 {
        // Of most only the beginning comes.
        let mut burst: Vec<Packet> = (0..20)
            .map(|n| {
                let mut packet = Packet::new(Family::V4, 20 * id + n, vec![1; 1480]);
                packet.src = 77;
                packet.fragment(0, 1000)
            })
            .collect();
        begun += burst.len() as u64;
        let good = Packet::new(Family::V4, id, vec![2; 3000]);
        burst.splice(7..7, fragments(&good, &cut(3000, 1000)));
        host.push_burst(&burst);
        whole += 1;
        host.now += MS / 10;
        assert_eq!(host.out.delivered.len(), whole, "of datagram {id}");
    }
    let dropped: u64 = host.shard.counters().fragments_dropped.iter().sum();
    assert!(dropped > begun / 2, "{dropped} of {begun}: there was too little memory");
    let gauges = host.gauges();
    assert!(gauges.datagrams > 0 && gauges.memory_bytes <= 64 << 10);
}

/// There are as many in progress as may be, and what is not in progress is not one of those.
#[test]
fn what_is_whole_in_a_burst_is_no_datagram_in_progress() {
    let mut host = Host::new(&Config { datagrams_max: 1, ..Config::default() });
    let whole = |id| fragments(&Packet::new(Family::V4, id, vec![1; 900]), &cut(900, 304));
    host.push(&whole(1)[0]);
    host.push(&whole(2)[0]);
    let refused = host.shard.counters().fragments(Reason::TooManyDatagrams);
    assert_eq!((refused, host.gauges().datagrams), (1, 1));
    host.push_burst(&whole(3));
    assert_eq!((host.out.delivered.len(), host.gauges().datagrams), (1, 1));
}

/// Whatever of the same datagram, or of another with its identification, comes behind it.
#[test]
fn what_is_whole_in_a_burst_stays_so_when_more_comes() {
    let mut host = Host::new(&Config { datagrams_max: 1, ..Config::default() });
    let whole = |id| fragments(&Packet::new(Family::V4, id, vec![1; 900]), &cut(900, 304));
    host.push(&whole(1)[0]);
    let twice = [whole(2), whole(2)].concat();
    host.push_burst(&twice);
    assert_eq!((host.out.delivered.len(), host.gauges().datagrams), (2, 1));
    for again in 0..3 {
        let refused = host.shard.counters().fragments(Reason::TooManyDatagrams);
        let mut burst = whole(3 + again);
        burst.push(burst[again as usize].clone());
        burst.extend(whole(10 + again));
        let before = host.out.delivered.len();
        host.push_burst(&burst);
        // The other one comes out as well: it is not touched by that.
        assert_eq!(host.out.delivered.len() - before, 2, "fragment {again} once more");
        let now = host.shard.counters().fragments(Reason::TooManyDatagrams);
        assert_eq!((now - refused, host.gauges().datagrams), (1, 1));
    }
}

/// However many in a row came mixed before.
#[test]
fn who_stops_mixing_is_seen_to_after_a_while() {
    let mut host = Host::new(&Config { copy_below: 512, ..Config::default() });
    host.frame = 2048;
    let whole = |id| fragments(&Packet::new(Family::V4, id, vec![1; 600]), &cut(600, 304));
    for id in 0..200 {
        let [a, b] = [1, 2].map(|n| whole(2 * id + n));
        // The end of one and the beginning of another.
        host.push_burst(&[a[0].clone(), b[1].clone()]);
        host.push_burst(&[a[1].clone(), b[0].clone()]);
    }
    assert_eq!((host.out.delivered.len(), host.shard.counters().copied), (400, 800));
    (1000..1100).for_each(|id| host.push_burst(&whole(id)));
    let copied = host.shard.counters().copied - 800;
    assert_eq!(host.out.delivered.len(), 500);
    assert!(copied <= 2 * 16, "{copied} fragments more waited for another");
}

/// What would be given up in progress is also where all of it is there.
#[test]
fn a_burst_is_no_way_round_the_limits() {
    let nine = cut(900, 104);
    let whole = |id| Packet::new(Family::V4, id, vec![1; 900]);
    let dropped = |host: &Host, reason: Reason| {
        let counters = host.shard.counters();
        counters.datagrams_dropped[reason as usize] + counters.fragments_dropped[reason as usize]
    };
    let mut host = Host::new(&Config { fragments_max: 8, ..Config::default() });
    host.push_burst(&fragments(&whole(1), &nine));
    assert_eq!((host.out.delivered.len(), dropped(&host, Reason::TooMany)), (0, 1));

    let mut host =
        Host::new(&Config { memory_bytes: 64 << 10, copy_below: 0, ..Config::default() });
    host.frame = 9000;
    host.push_burst(&fragments(&whole(1), &nine));
    assert_eq!((host.out.delivered.len(), dropped(&host, Reason::TooCostly)), (0, 1));

    let mut host = Host::new(&Config { fragment_min: 200, ..Config::default() });
    host.push_burst(&fragments(&whole(1), &nine));
    assert_eq!(host.out.delivered.len(), 0);
    assert!(dropped(&host, Reason::Tiny) >= 8);
    // The last one may be short.
    host.push_burst(&fragments(&whole(2), &cut(900, 400)));
    assert_eq!(host.out.delivered.len(), 1);

    // The header of the transport is in no first fragment (RFC 7112).
    let mut host = Host::new(&Config::default());
    let mut tcp = Packet::new(Family::V6, 1, vec![0; 40]);
    tcp.protocol = 6;
    host.push_burst(&fragments(&tcp, &cut(40, 16)));
    assert_eq!((host.out.delivered.len(), host.out.notices.len()), (0, 1));
}

/// An identification comes round while one datagram waits: what others have begun and ended counts also if it was in one
/// burst.
#[test]
fn datagrams_of_one_burst_use_identifications_up() {
    let mut host = Host::new(&Config::default());
    let old = Packet::new(Family::V4, 0, vec![1; 16]);
    host.push(&old.fragment(0, 8));
    let others: Vec<Packet> = (1..33_000u32)
        .flat_map(|id| fragments(&Packet::new(Family::V4, id, vec![2; 16]), &cut(16, 8)))
        .collect();
    others.chunks(BURST).for_each(|burst| host.push_burst(burst));
    assert_eq!((host.out.delivered.len(), host.gauges().datagrams), (32_999, 1));
    let new = Packet::new(Family::V4, 0, vec![3; 16]);
    host.push_burst(&fragments(&new, &[Cut { at: 8, end: 16 }, Cut { at: 0, end: 8 }]));
    assert_eq!(host.out.delivered.last().map(|last| last.payload().to_vec()), Some(vec![3; 16]));
    assert_eq!(host.shard.counters().datagrams_dropped[Reason::Stale as usize], 1);
}

/// Says when it is gone.
struct Buffer(Rc<Cell<i64>>);

impl Drop for Buffer {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Panics at some call.
struct Angry {
    calls_left: u32,
    datagrams: u32,
}

impl Angry {
    fn called(&mut self) {
        if self.calls_left == 0 {
            self.calls_left = u32::MAX;
            // As `panic!`, without words on standard error.
            std::panic::resume_unwind(Box::new("enough"));
        }
        self.calls_left -= 1;
    }
}

impl Sink<Buffer> for Angry {
    fn whole(&mut self, _: Buffer, _: usize) {}

    fn datagram(&mut self, _: &Datagram<'_, Buffer>) {
        self.datagrams += 1;
        self.called();
    }

    fn release(&mut self, _: Buffer, _: Released) {
        self.called();
    }
}

#[test]
fn a_sink_that_panics_within_a_burst_keeps_no_buffer_alive() {
    let limits = Config::default().limits().expect("right");
    let ledger = Ledger::of(&limits);
    let mut shard = Shard::new(&limits, &ledger, HashKey::new([7, 11]));
    let there = Rc::new(Cell::new(0));
    let mut push = |sink: &mut Angry, id| {
        let packets: Vec<Vec<u8>> = (0..3)
            .flat_map(|n| {
                fragments(&Packet::new(Family::V4, id + n, vec![7; 1600]), &cut(1600, 400))
            })
            .map(|packet| packet.emit())
            .collect();
        let mut burst = packets
            .iter()
            .map(|packet| {
                there.set(there.get() + 1);
                Arrival::new(packet, Buffer(Rc::clone(&there)))
            })
            .collect();
        catch_unwind(AssertUnwindSafe(|| shard.push_burst(&mut burst, SECOND, sink))).is_err()
    };
    for calls_left in 0..15 {
        let mut sink = Angry { calls_left, datagrams: 0 };
        assert!(push(&mut sink, calls_left * 10), "after {calls_left} calls");
        // What was put aside for a datagram goes with what comes next.
        sink.datagrams = 0;
        assert!(!push(&mut sink, calls_left * 10 + 5));
        assert_eq!((sink.datagrams, there.get()), (3, 0), "after {calls_left} calls");
    }
}
