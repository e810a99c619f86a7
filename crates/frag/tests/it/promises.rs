//! More is expected of datagrams than there is memory, and they turn out small: as long as memory is there, all come through.

use frag::{Config, Reason};
use testkit::fragments::{Family, Packet};

use crate::host::{Host, MS};
use crate::overload::FRAME;

/// Bytes of payload in a fragment, and of most datagrams.
const SIZE: usize = 64;

fn host(memory_bytes: u64) -> Host {
    let mut host = Host::new(&Config { memory_bytes, copy_below: 0, ..Config::default() });
    host.frame = FRAME;
    host
}

/// A fragment of a datagram of so many.
fn push(host: &mut Host, network: u32, id: u16, (piece, pieces): (usize, usize)) {
    let whole = Packet::new(Family::V4, id.into(), vec![7; pieces * SIZE]);
    let mut bytes = whole.fragment(piece * SIZE, (piece + 1) * SIZE).emit();
    bytes[12..16].copy_from_slice(&(network << 8).to_be_bytes());
    host.push_bytes(bytes);
}

/// Those that are the largest complete first, so that as much is expected of all.
fn expects_much(host: &mut Host, network: u32) {
    for id in 0..20 {
        (0..45).for_each(|piece| push(host, network, id, (piece, 45)));
    }
    assert_eq!(host.out.delivered.len(), 20);
}

/// All the first fragments and then all the second ones.
fn all_come_through(mut host: Host, count: u32) {
    let before = host.out.delivered.len();
    for piece in 0..2 {
        for n in 0..count {
            push(&mut host, n, 1, (piece, 2));
            host.now += 1000;
        }
    }
    let came = host.out.delivered.len() - before;
    let counters = host.shard.counters();
    assert_eq!(came, count as usize, "{counters:?}");
}

#[test]
fn many_small_ones_come_through_when_none_was_complete_yet() {
    all_come_through(host(64 << 20), 4000);
}

#[test]
fn so_they_do_after_large_ones() {
    let mut host = host(64 << 20);
    expects_much(&mut host, 1 << 20);
    all_come_through(host, 4000);
}

/// Who makes all expect much and then begins as many as there is room for takes no other's place: those that come through
/// are served one for one that goes.
#[test]
fn who_makes_datagrams_seem_large_does_not_keep_others_out() {
    const FLOOD: u32 = 1 << 20;
    let mut host = host(16 << 20);
    expects_much(&mut host, FLOOD);
    let begun = |host: &Host| host.gauges().datagrams;
    let mut id = 100;
    while host.shard.counters().fragments(Reason::NoShare) == 0 {
        push(&mut host, FLOOD, id, (0, 45));
        id += 1;
        assert!(id < 20_000, "it ends");
    }
    let many = begun(&host);
    assert!(many > 2000, "{many}");
    // And these grow until hardly anything is left, without that one goes for the other.
    for (piece, id) in (1..).flat_map(|piece| (100..id).map(move |id| (piece, id))) {
        if host.gauges().leased_bytes > (16 << 20) - 64 * u64::from(FRAME) {
            break;
        }
        push(&mut host, FLOOD, id, (piece, 45));
    }
    assert_eq!(begun(&host), many);
    for piece in 0..2 {
        for network in 0..500 {
            push(&mut host, network, 1, (piece, 2));
            host.now += 1000;
        }
    }
    assert!(host.now < 2000 * MS, "nothing was idle");
    let came = host.out.delivered.len() - 20;
    let evicted = host.shard.counters().datagrams(Reason::EvictedShare);
    assert_eq!((came, evicted), (500, 500), "{:?}", host.shard.counters());
}
