//! What whoever copies payload is told before it is to be copied.

use std::cell::RefCell;

use frag::{Arrival, Config, Datagram, HashKey, Ledger, Released, Shard, Sink, Slice};
use testkit::fragments::{Family, Packet, cut};

const BURST: usize = 32;
/// How many packets ahead.
const SOON: usize = 2;
/// Pieces that are told of a datagram before it is handed out, but for the last one and the one that completes it.
const FIRST: usize = 4;

/// Datagrams of so many fragments, as packets: by datagram.
fn datagrams(count: u32, pieces: usize) -> Vec<Vec<Vec<u8>>> {
    let of = |id| {
        let payload = (0u8..=250).cycle().take(pieces * 64).collect();
        let whole = Packet::new(Family::V4, id, payload);
        cut(pieces * 64, 64).iter().map(|cut| whole.fragment(cut.at, cut.end).emit()).collect()
    };
    (0..count).map(of).collect()
}

/// Of each datagram which of its packets had been told when it came out, in the order of its bytes.
#[derive(Default)]
struct Told {
    buffers: Vec<usize>,
    datagrams: Vec<Vec<bool>>,
}

impl Sink<usize> for Told {
    fn whole(&mut self, _: usize, _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, usize>) {
        let told = datagram.slices().map(|slice| match slice {
            Slice::Held { buffer, .. } => self.buffers.contains(buffer),
            Slice::Copied(_) => false,
        });
        self.datagrams.push(told.collect());
    }

    fn release(&mut self, _: usize, _: Released) {}

    fn soon(&mut self, buffer: &usize) {
        self.buffers.push(*buffer);
    }
}

/// What was told of packets that came in bursts. `parsed`: they had been parsed before.
fn told(packets: &[&Vec<u8>], parsed: bool) -> Told {
    let config = Config { copy_below: 0, ..Config::default() };
    let limits = config.limits().expect("they can be");
    let mut shard = Shard::new(&limits, &Ledger::of(&limits), HashKey::new([1, 2]));
    let mut told = Told::default();
    let all: Vec<_> = (0..).zip(packets).map(|(n, packet)| Arrival::new(packet, n)).collect();
    for burst in all.chunks(BURST) {
        let mut burst = burst.to_vec();
        if parsed {
            let fragments = burst.drain(..).map(|arrival| {
                let Ok(frag::wire::Packet::Fragment(f)) = frag::wire::parse(arrival.packet, 0)
                else {
                    panic!("no fragment")
                };
                (f, arrival)
            });
            shard.push_fragments(fragments, 0, &mut told);
        } else {
            shard.push_burst(&mut burst, 0, &mut told);
        }
    }
    told
}

#[test]
fn what_is_whole_in_a_burst_is_told_before_it_comes_out() {
    let all = datagrams(30, 3);
    let packets: Vec<&Vec<u8>> = all.iter().flatten().collect();
    for parsed in [false, true] {
        // Ten datagrams and two fragments to a burst.
        for burst in packets.chunks(30) {
            let told = told(burst, parsed);
            assert_eq!(told.datagrams.len(), 10);
            assert_eq!(told.datagrams[0], [false, false, true], "the first two come at once");
            assert!(told.datagrams[1..].iter().all(|told| told == &[true; 3]));
            assert!(told.buffers.is_sorted(), "in turn, and each once: {:?}", told.buffers);
        }
    }
}

#[test]
fn what_a_burst_completes_is_told_before_it_comes_out() {
    // All first fragments, then all second ones, and then the last ones, with which datagrams are complete.
    let all = datagrams(64, 3);
    let packets: Vec<&Vec<u8>> =
        (0..3).flat_map(|at| all.iter().map(move |one| &one[at])).collect();
    for parsed in [false, true] {
        let told = told(&packets, parsed);
        assert_eq!(told.datagrams.len(), 64);
        for (n, of) in told.datagrams.iter().enumerate() {
            assert_eq!(of, &[n % BURST >= SOON; 3], "{n}");
        }
        assert_eq!(told.buffers.len(), 3 * (64 - 2 * SOON), "nothing else");
    }
}

#[test]
fn of_a_long_datagram_its_first_pieces_are_told() {
    // Behind a packet of its own that is not there yet it is not seen to be complete.
    let all = datagrams(3, 45);
    let (last, others) = all[0].split_last().unwrap();
    let packets = others.iter().chain([&all[1][0], &all[2][0], last]);
    let told = told(&packets.collect::<Vec<_>>(), false);
    let [of] = &told.datagrams[..] else { panic!("{} came out", told.datagrams.len()) };
    let due: Vec<bool> = (0..45).map(|at| at < FIRST || at == 44).collect();
    assert_eq!(*of, due);
}

/// What is told while datagrams are written out.
struct Written<'p> {
    packets: &'p [&'p Vec<u8>],
    told: RefCell<Vec<usize>>,
}

impl Sink<usize> for Written<'_> {
    fn whole(&mut self, _: usize, _: usize) {}

    fn datagram(&mut self, datagram: &Datagram<'_, usize>) {
        let mut plain = vec![0; datagram.packet_len()];
        let mut ahead = plain.clone();
        let packet = |n: &usize| &self.packets[*n][..];
        assert_eq!(datagram.write_to(&mut plain, packet), Ok(plain.len()));
        let note = |bytes: &[u8]| {
            self.told.borrow_mut().push(bytes.as_ptr() as usize);
        };
        assert_eq!(datagram.write_ahead(&mut ahead, packet, note), Ok(ahead.len()));
        assert_eq!(ahead, plain);
        let pieces: Vec<usize> = datagram
            .slices()
            .map(|slice| match slice {
                Slice::Held { buffer, at, .. } => packet(buffer)[at..].as_ptr() as usize,
                Slice::Copied(bytes) => bytes.as_ptr() as usize,
            })
            .collect();
        assert_eq!(self.told.take(), pieces, "each once, in order");
        // What there is no room for is not told.
        let short = ahead.len() - 1;
        let none = datagram.write_ahead(&mut ahead[..short], packet, note);
        assert_eq!((none, self.told.take()), (Err(short + 1), Vec::new()));
        // Nor is what the caller does not have any more.
        let gone = datagram.write_ahead(&mut ahead, |_: &usize| &[][..], |_| ());
        assert_eq!(gone, Err(short + 1));
    }

    fn release(&mut self, _: usize, _: Released) {}
}

#[test]
fn each_piece_is_told_once_while_a_datagram_is_written() {
    for (pieces, copy_below) in [(2, 0), (3, 0), (45, 0), (45, 512)] {
        let all = datagrams(1, pieces);
        let packets: Vec<&Vec<u8>> = all.iter().flatten().rev().collect();
        let config = Config { copy_below, ..Config::default() };
        let limits = config.limits().expect("they can be");
        let mut shard = Shard::new(&limits, &Ledger::of(&limits), HashKey::new([1, 2]));
        let mut written = Written { packets: &packets, told: RefCell::default() };
        for (n, packet) in packets.iter().enumerate() {
            shard.push(Arrival::new(packet, n), 0, &mut written);
        }
        assert_eq!(shard.counters().datagrams, 1);
    }
}

/// Which packets were begun, and which came out as whole or were dropped, in turn.
#[derive(Default)]
struct Turns(Vec<(usize, &'static str)>);

impl Sink<usize> for Turns {
    fn whole(&mut self, buffer: usize, _: usize) {
        self.0.push((buffer, "whole"));
    }

    fn datagram(&mut self, _: &Datagram<'_, usize>) {}

    fn release(&mut self, buffer: usize, why: Released) {
        if matches!(why, Released::Dropped(_)) {
            self.0.push((buffer, "dropped"));
        }
    }

    fn meanwhile(&mut self, at: usize) {
        self.0.push((at, "begun"));
    }
}

/// More than one burst of fragments, some of which make a datagram, of packets that are none, and of nonsense.
#[test]
fn each_packet_of_a_call_has_its_moment() {
    let fragments: Vec<Vec<u8>> = datagrams(30, 3).concat();
    let mut whole = Packet::new(Family::V4, 1, vec![0; 64]).emit();
    whole[6..8].fill(0);
    let packets: Vec<&[u8]> = fragments
        .chunks(3)
        .enumerate()
        .flat_map(|(n, of_one)| {
            let other = if n % 2 == 0 { &whole[..] } else { &[0x40, 0, 0][..] };
            of_one.iter().map(Vec::as_slice).chain([other])
        })
        .collect();
    let limits = Config::default().limits().expect("they can be");
    let shard = || Shard::new(&limits, &Ledger::of(&limits), HashKey::new([1, 2]));
    let all: Vec<_> = (0..).zip(&packets).map(|(n, packet)| Arrival::new(packet, n)).collect();
    let of_each = |at: usize| match at % 8 {
        3 => vec![(at, "begun"), (at, "whole")],
        7 => vec![(at, "begun"), (at, "dropped")],
        _ => vec![(at, "begun")],
    };
    let expected: Vec<_> = (0..all.len()).flat_map(of_each).collect();
    let mut turns = Turns::default();
    shard().push_burst(&mut all.clone(), 0, &mut turns);
    assert_eq!(turns.0, expected);

    // Of those that were parsed before all are fragments.
    let parsed = all.iter().filter_map(|arrival| match frag::wire::parse(arrival.packet, 0) {
        Ok(frag::wire::Packet::Fragment(f)) => Some((f, *arrival)),
        _ => None,
    });
    let mut turns = Turns::default();
    shard().push_fragments(parsed, 0, &mut turns);
    assert_eq!(turns.0, (0..90).map(|at| (at, "begun")).collect::<Vec<_>>());

    // Where some are another's, the first moment is not always the first packet's; but each has one.
    let steering = frag::Steering::new(HashKey::new([5, 6]), 2);
    let (mut turns, mut handed) = (Turns::default(), 0);
    shard().push_steered(&all, (&steering, 0), 0, &mut turns, |_, _, _| handed += 1);
    let begun = turns.0.iter().filter(|(_, what)| *what == "begun").map(|(at, _)| *at);
    assert_eq!(begun.collect::<Vec<_>>(), (0..all.len()).collect::<Vec<_>>());
    assert!((1..90).contains(&handed), "{handed} of 90 were another's");
}
