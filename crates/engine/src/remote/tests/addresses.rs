//! Addresses that come and go, as those of containers do.

use std::cell::Cell;
use std::net::IpAddr;

use super::super::Shared;
use super::super::{ADDRESSES_MAX, held};
use super::*;

/// Has the addresses of an engine looked at now, whenever that was done last.
fn tidy(shared: &Shared, comes: IpAddr, is_own: impl Fn(IpAddr) -> bool) {
    held(&shared.places).looked_at = 0;
    shared.tidy(comes, is_own);
}

fn spoken_from(hosts: &Hosts) -> Vec<String> {
    hosts.engines[0].stat().addresses
}

/// Of each vector of an engine, whether it has a socket of an address.
fn sockets(engine: &Engine, address: IpAddr) -> Vec<bool> {
    let (tell, told) = std::sync::mpsc::channel();
    for handle in &engine.shared.vectors {
        let tell = tell.clone();
        let act = move |vector: &mut Vector| tell.send(vector.device.has_port(address)).unwrap();
        handle.inbox.put(Order::Do(Act(Box::new(act))));
    }
    let one = |_| told.recv_timeout(Duration::from_secs(60)).unwrap();
    engine.shared.vectors.iter().map(one).collect()
}

#[test]
fn those_that_are_not_ours_any_more_are_given_back() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    let guests = hosts.connect();
    guests[0].send(b"x");
    assert_eq!(guests[1].receive_all(1), b"x");
    let shared = &hosts.engines[0].shared;
    let [used, peer] = hosts.addresses;
    let IpAddr::V4(v4) = used else { panic!("{used}") };
    let unused = IpAddr::from([127, 91, v4.octets()[2], 77]);
    shared.speak_from(unused).unwrap();
    assert_eq!(spoken_from(&hosts).len(), 2);
    tidy(shared, peer, |address| address == used);
    hosts.wait("the address is given back", |h| spoken_from(h) == [used.to_string()]);
    // One that comes back is spoken from again, and one with links stays as long as they do.
    shared.speak_from(unused).unwrap();
    tidy(shared, peer, |_| false);
    hosts.wait("the address is given back", |h| spoken_from(h) == [used.to_string()]);
    guests[0].send(b"y");
    assert_eq!(guests[1].receive_all(1), b"y");
    // There is an end to them.
    for nth in 0..=ADDRESSES_MAX {
        let [a, b, ..] = nth.to_le_bytes();
        held(&shared.places).ports.insert([10, 9, b, a].into(), None);
    }
    assert!(matches!(shared.speak_from(unused), Err(Error::Addresses(_))));
    held(&shared.places).ports.retain(|_, lease| lease.is_some());
}

/// The kernel finds the socket of a vector by its place among those of the address.
#[test]
fn sockets_of_one_are_closed_together_or_not_at_all() {
    let Some(hosts) = Hosts::new(&[("vectors", "4")]) else { return };
    let guests = hosts.connect();
    let exchange = || {
        guests[0].send(b"x");
        assert_eq!(guests[1].receive_all(1), b"x");
    };
    exchange();
    let engine = &hosts.engines[0];
    let [used, peer] = hosts.addresses;
    // It goes while one vector has a link there, and comes back: all others may have some at once.
    tidy(&engine.shared, peer, |_| false);
    assert_eq!(sockets(engine, used), [true; 4]);
    tidy(&engine.shared, peer, |_| true);
    exchange();
    drop(guests);
    // It goes when there is no link left, and comes back: it is spoken from anew.
    for handle in &engine.shared.vectors {
        let part = |vector: &mut Vector| vector.part(sys::call::now_ns());
        handle.inbox.put(Order::Do(Act(Box::new(part))));
    }
    hosts.wait("the link is gone", |h| {
        let vectors = h.engines[0].stat().vectors;
        vectors.iter().all(|vector| vector.groups.is_empty())
    });
    tidy(&engine.shared, peer, |_| false);
    hosts.wait("the address is given back", |h| spoken_from(h).is_empty());
    engine.shared.speak_from(used).unwrap();
    assert_eq!(sockets(engine, used), [true; 4]);
}

/// Each question is one to the kernel, and others wait for their connections meanwhile.
#[test]
fn the_kernel_is_not_asked_about_all_of_them_for_each_connection() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    let shared = &hosts.engines[0].shared;
    let asked = Cell::new(false);
    let unknown = IpAddr::from([127, 91, 255, 1]);
    // A moment ago, however busy the machine is, and long ago.
    for (looked_at, asks) in [(sys::call::now_ns() + 1_800_000_000_000, false), (0, true)] {
        held(&shared.places).looked_at = looked_at;
        asked.set(false);
        shared.tidy(unknown, |_| {
            asked.set(true);
            true
        });
        assert_eq!(asked.get(), asks, "looked at {looked_at}");
    }
}
