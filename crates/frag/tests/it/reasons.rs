//! Each reason has a case in which it is given: one that nobody gives would be a promise to whoever reads the counts.

use frag::{Config, Reason, Released};
use testkit::fragments::{Family, Packet};

use crate::host::{Host, MS, SECOND};

/// Memory for some datagrams, and a frame that takes most of it.
const LITTLE: u64 = 64 << 10;
const MOST: u32 = 60 << 10;

fn v4(id: u32, len: usize) -> Packet {
    Packet::new(Family::V4, id, vec![1; len])
}

fn v6(id: u32, len: usize) -> Packet {
    Packet::new(Family::V6, id, vec![1; len])
}

fn config(reason: Reason) -> Config {
    let config = Config { copy_below: 0, ..Config::default() };
    match reason {
        Reason::TooMany => Config { fragments_max: 2, ..config },
        Reason::TooManyDatagrams => Config { datagrams_max: 1, ..config },
        Reason::Tiny => Config { fragment_min: 16, ..config },
        Reason::NoMemory | Reason::NoShare | Reason::Refused => {
            Config { memory_bytes: LITTLE, ..config }
        }
        Reason::EvictedYoung | Reason::EvictedIdle | Reason::EvictedShare => {
            Config { memory_bytes: LITTLE, ..config }
        }
        _ => config,
    }
}

/// Datagrams of one source in all of memory, which begin when one was complete: so they are thought to be small.
fn crowd(host: &mut Host) {
    [(0, 8), (8, 16)].into_iter().for_each(|(at, end)| host.push(&v4(0, 16).fragment(at, end)));
    for id in 1.. {
        let before = host.gauges().datagrams;
        host.push(&v4(id, 64).fragment(0, 8));
        if host.gauges().datagrams == before {
            return;
        }
    }
}

/// Some of this and some of that, so that the reason is given.
fn provoke(host: &mut Host, reason: Reason) {
    let mut push = |packets: &[Packet]| packets.iter().for_each(|packet| host.push(packet));
    match reason {
        Reason::Truncated => host.push_bytes(v4(1, 64).fragment(0, 32).emit()[..30].to_vec()),
        Reason::BadHeader => {
            let mut bytes = v4(1, 64).fragment(0, 32).emit();
            bytes[0] = 0x44;
            host.push_bytes(bytes);
        }
        Reason::Empty => push(&[Packet { more: true, ..v4(1, 0) }]),
        Reason::Unaligned => push(&[Packet { more: true, ..v4(1, 13) }]),
        Reason::Oversize => push(&[Packet { offset: 65_528, ..v4(1, 100) }]),
        Reason::Overlap => push(&[v4(1, 64).fragment(0, 24), v4(1, 64).fragment(16, 40)]),
        Reason::EndConflict => push(&[v4(1, 24).fragment(16, 24), v4(1, 32).fragment(24, 32)]),
        Reason::Duplicate => push(&[v4(1, 64).fragment(0, 8), v4(1, 64).fragment(0, 8)]),
        Reason::TooMany => {
            [0, 8, 16].into_iter().for_each(|at| host.push(&v4(1, 64).fragment(at, at + 8)));
        }
        Reason::Ecn => {
            let marked = Packet { tos: 3, ..v4(1, 16) };
            push(&[marked.fragment(0, 8), v4(1, 16).fragment(8, 16)]);
        }
        Reason::NoMemory | Reason::NoShare | Reason::Refused => {
            host.frame = MOST;
            host.push(&v4(1, 64).fragment(0, 8));
            let other = if reason == Reason::NoMemory { v6(2, 64) } else { v4(2, 64) };
            host.push(&other.fragment(0, 8));
            host.push(&other.fragment(8, 16));
        }
        Reason::EvictedYoung => {
            crowd(host);
            host.frame = 4096;
            host.push(&v4(1, 64).fragment(8, 16));
        }
        Reason::EvictedIdle => {
            crowd(host);
            host.now += 100 * MS;
            host.push(&v4(9999, 64).fragment(0, 8));
        }
        Reason::EvictedShare => {
            crowd(host);
            host.push(&v6(1, 64).fragment(0, 8));
        }
        Reason::Timeout | Reason::TimeoutNoFirst => {
            let at = if reason == Reason::Timeout { 0 } else { 8 };
            host.push(&v4(1, 64).fragment(at, at + 8));
            host.now += 31 * SECOND;
            host.expire();
        }
        Reason::IncompleteHeader => push(&[Packet { protocol: 6, ..v6(1, 64) }.fragment(0, 16)]),
        Reason::TooManyDatagrams => push(&[v4(1, 64).fragment(0, 8), v4(2, 64).fragment(0, 8)]),
        Reason::Tiny => push(&[v4(1, 64).fragment(0, 8)]),
        Reason::Nested => push(&[Packet { nested: true, ..v6(1, 64) }.fragment(0, 32)]),
        Reason::Stale => {
            host.push(&v4(1, 16).fragment(0, 8));
            for id in 2..40_000 {
                push_whole(host, id);
            }
            host.push(&v4(1, 16).fragment(8, 16));
        }
        Reason::Cleared => {
            host.push(&v4(1, 64).fragment(0, 8));
            host.shard.clear(host.now, &mut host.out);
        }
        Reason::Checksum => host.shard.refuse(Reason::Checksum),
        Reason::TooCostly => {
            host.frame = 100 << 20;
            host.push(&v4(1, 64).fragment(0, 8));
        }
    }
}

fn push_whole(host: &mut Host, id: u32) {
    host.push(&v4(id, 16).fragment(0, 8));
    host.push(&v4(id, 16).fragment(8, 16));
    host.out.delivered.clear();
    host.out.released.clear();
}

#[test]
fn each_reason_is_given_and_counted() {
    for reason in Reason::ALL {
        let mut host = Host::new(&config(*reason));
        provoke(&mut host, *reason);
        let counters = host.shard.counters();
        let counted = counters.fragments(*reason) + counters.datagrams(*reason);
        assert!(counted > 0, "{reason:?} is not counted: {counters:?}");
        let given = host.out.released.contains(&Released::Dropped(*reason));
        // Of what the caller has left out there is no buffer.
        let left_out = *reason == Reason::Checksum;
        assert_ne!(given, left_out, "whether {reason:?} is given with a buffer");
    }
}
