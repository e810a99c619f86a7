//! Buffers that more connections have than one, and how many groups a host has.

use super::super::group::IDLE_ALL_MAX;
use super::*;

/// Counts of buffers: made, and used again.
fn buffers(engine: &Engine) -> (u64, u64) {
    // As the vector has it, not as it was last told.
    within(engine, |vector| (vector.stat.rmbs_registered, vector.stat.rmbs_reused))
}

fn llc(engine: &Engine) -> u64 {
    within(engine, |vector| vector.stat.llc_tx)
}

/// Connections that have stayed on TCP: on a machine that stands still, handshakes come too late.
fn late(hosts: &Hosts) -> u64 {
    let of = |engine| within(engine, |vector| vector.stat.declined_total);
    hosts.engines.iter().map(of).max().unwrap_or(0)
}

/// One connection that carries something each way, and ends in order.
fn visit(hosts: &Hosts, nth: u32) {
    let [client, server] = hosts.connect();
    // Shorter each time: what stood there before would be seen.
    let (there, back) = (bytes(9000 - nth as usize, nth), bytes(5000 - nth as usize, nth + 99));
    client.send(&there);
    assert!(server.receive_all(there.len()) == there);
    server.send(&back);
    assert!(client.receive_all(back.len()) == back);
    client.ends(Program::Closed);
    server.wait("the end", Guest::peer_shut);
    server.ends(Program::Closed);
    for guest in [&client, &server] {
        guest.wait("parting", |g| g.closed() == Some(false));
    }
}

fn links(engine: &Engine) -> usize {
    let stat = engine.stat();
    let all = stat.vectors[0].groups.iter().flat_map(|group| &group.links);
    all.filter(|link| link.state == "ACTIVE").count()
}

#[test]
fn one_connection_after_another_uses_one_key() {
    for max_links in ["1", "2"] {
        let settings = [("max_links", max_links), ("testlink_time", "0")];
        let Some(hosts) = Hosts::with_two_addresses(&settings) else { return };
        visit(&hosts, 0);
        let wanted = if max_links == "2" { 2 } else { 1 };
        hosts.wait("all links", |h| h.engines.iter().all(|e| links(e) == wanted));
        visit(&hosts, 1);
        let before = hosts.engines.each_ref().map(|e| (buffers(e), llc(e)));
        let late_before = late(&hosts);
        for nth in 2..50 {
            visit(&hosts, nth);
        }
        // One that comes too late takes its buffer along.
        let late = late(&hosts) - late_before;
        for (engine, ((registered, reused), said)) in hosts.engines.iter().zip(before) {
            assert!(registered <= 2 + late_before, "{registered}");
            let (more, again) = buffers(engine);
            assert!(more <= registered + late, "{more} of {registered}, {late} late");
            assert!(again + late >= reused + 48, "{again} of {reused}, {late} late");
            assert!(late > 0 || llc(engine) == said, "somebody was asked");
        }
    }
}

#[test]
fn of_connections_at_one_time_each_has_its_own() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    for _ in 0..3 {
        let all: Vec<_> = (0..20).map(|_| hosts.connect()).collect();
        for (nth, [client, server]) in (0u32..).zip(&all) {
            client.send(&bytes(3000, nth));
            server.send(&bytes(2000, nth + 500));
        }
        for (nth, [client, server]) in (0u32..).zip(&all) {
            assert!(server.receive_all(3000) == bytes(3000, nth));
            assert!(client.receive_all(2000) == bytes(2000, nth + 500));
            client.ends(Program::Closed);
            server.ends(Program::Closed);
        }
        for guest in all.iter().flatten() {
            guest.wait("parting", |g| g.closed() == Some(false));
        }
    }
    for engine in &hosts.engines {
        let (registered, reused) = buffers(engine);
        let late = late(&hosts);
        assert!(registered + reused <= 60, "{registered} {reused}");
        assert!(registered + reused + late >= 60, "{registered} {reused}, {late} late");
        assert!(registered <= 40 + late, "{registered} {reused}, {late} late");
    }
}

/// Who has not said that it has closed may still write, or may have written less than it was asked to.
#[test]
fn what_did_not_end_in_order_is_not_used_again() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    for ending in [Program::Reset, Program::Closed] {
        let [client, server] = hosts.connect();
        client.send(b"x");
        // Closing with something unread is an abort as well.
        server.wait("a byte", |g| g.unread() == 1);
        server.ends(ending);
        client.wait("the end", |g| g.closed().is_some() || g.peer_shut());
        client.ends(Program::Closed);
        for guest in [&client, &server] {
            guest.wait("parting", |g| g.closed().is_some());
        }
    }
    for engine in &hosts.engines {
        assert_eq!(buffers(engine), (2, 0));
    }
    visit(&hosts, 0);
    visit(&hosts, 1);
    for engine in &hosts.engines {
        assert_eq!(buffers(engine), (3, 1));
    }
}

#[test]
fn buffers_of_another_size_or_of_nobody_are_not_kept() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    visit(&hosts, 0);
    hosts.set(&[("receive_buffer", "16K")]);
    visit(&hosts, 1);
    let idle = |engine: &Engine| {
        within(engine, |vector| vector.group_stats().iter().map(|g| g.idle).sum::<u64>())
    };
    for engine in &hosts.engines {
        // That of before has gone.
        assert_eq!((buffers(engine), idle(engine)), ((2, 0), 1));
    }
    visit(&hosts, 2);
    hosts.set(&[("reuse_buffers", "off")]);
    visit(&hosts, 3);
    visit(&hosts, 4);
    for engine in &hosts.engines {
        // What was kept is used up, and nothing is kept any more.
        assert_eq!((buffers(engine), idle(engine)), ((3, 2), 0));
    }
}

/// Idle buffers of a vector, as it has counted and as they are.
fn idle(engine: &Engine) -> (usize, u64) {
    within(engine, |vector| {
        let all = vector.group_stats();
        (vector.groups.idle, all.iter().map(|group| group.idle).sum())
    })
}

/// Each is a region of the device, of which connections need two.
#[test]
fn no_buffer_is_kept_when_all_groups_keep_many() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    visit(&hosts, 0);
    for engine in &hosts.engines {
        assert_eq!(idle(engine), (1, 1));
        within(engine, |vector| vector.groups.idle += IDLE_ALL_MAX);
    }
    visit(&hosts, 1);
    for engine in &hosts.engines {
        assert_eq!(idle(engine), (IDLE_ALL_MAX, 0));
        within(engine, |vector| vector.groups.idle = 0);
    }
    visit(&hosts, 2);
    for engine in &hosts.engines {
        assert_eq!(idle(engine), (1, 1));
    }
}

/// That there is no region for what it sends is found while it can go on as TCP, whether a buffer is there for what it
/// receives or not.
#[test]
fn a_connection_without_a_region_goes_by_tcp() {
    for host in [0, 1] {
        let Some(hosts) = Hosts::new(&[]) else { return };
        visit(&hosts, 0);
        within(&hosts.engines[host], |vector| {
            let domain = vector.device.open_domain().unwrap();
            while vector.device.register_stream(domain, roce::Handle(0)).is_ok() {}
        });
        visit(&hosts, 1);
        let full = Diagnosis::BufferRegistration.text();
        hosts.wait("a reason", |h| h.declined(host, full) == 1);
        assert_eq!(hosts.by_smc(2), 1);
    }
}

/// A third host, whose last byte is 3.
fn third(hosts: &Hosts) -> (Engine, IpAddr) {
    let IpAddr::V4(v4) = hosts.addresses[0] else { panic!() };
    let [a, b, c, _] = v4.octets();
    let address = IpAddr::from([a, b, c, 3]);
    let engine = Engine::start(config(&[]), |_| Box::new(Awake), |_| (), |_| true).unwrap();
    engine.shared.speak_from(address).unwrap();
    (engine, address)
}

/// A connection from a third host to the second of two.
fn connect_third(hosts: &Hosts, (engine, address): &(Engine, IpAddr)) -> [Guest; 2] {
    let server = hosts.addresses[1];
    let (ours, theirs) = tcp(*address, server);
    [
        give(engine, ours, Role::Client, (*address, server)),
        give(&hosts.engines[1], theirs, Role::Server, (server, *address)),
    ]
}

#[test]
fn no_peer_gets_the_buffer_of_another() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    visit(&hosts, 0);
    let other = third(&hosts);
    let [client, server] = connect_third(&hosts, &other);
    client.send(b"hello");
    assert_eq!(server.receive_all(5), b"hello");
    assert_eq!(buffers(&hosts.engines[1]), (2, 0));
}

/// Connections whose client says nothing are no others' loss.
#[test]
fn one_host_does_not_take_all_handshakes() {
    const MANY: usize = 30;
    let Some(hosts) = Hosts::new(&[("handshakes_max", "8")]) else { return };
    let [client, server] = hosts.addresses;
    let silent = IpAddr::from([192, 0, 2, 1]);
    let of_server = || hosts.engines[1].stat().vectors.remove(0);
    let is_so = || {
        let before = of_server().connections_total;
        let waits = [(); MANY].map(|()| {
            let (ours, theirs) = tcp(client, server);
            (give(&hosts.engines[1], theirs, Role::Server, (server, silent)), ours)
        });
        let [here, there] = hosts.connect();
        here.send(b"hello");
        assert_eq!(there.receive_all(5), b"hello");
        let stat = of_server();
        drop(waits);
        hosts.wait("the silent ones are given up", |_| of_server().handshakes == 0);
        (stat.handshakes, stat.connections_total - before) == (MANY as u64, 1)
    };
    // Where all of it took longer than a server waits for a client, it is tried again.
    assert!((0..5).any(|_| is_so()), "{:#?}", of_server());
}

/// All queue pairs of a vector are not one host's: others are served whatever it does.
#[test]
fn one_host_does_not_take_all_link_groups() {
    let Some(hosts) = Hosts::new(&[("max_conns", "16")]) else { return };
    hosts.engines[1].shared.configure({
        let mut config = (*hosts.engines[1].config()).clone();
        config.set("peer_groups", "2").unwrap();
        config
    });
    // Beyond that bytes go by TCP, and none is lost.
    let all = talk(&hosts, 40);
    let by_smc = hosts.by_smc(40);
    assert!(by_smc <= 32, "{by_smc}");
    let groups = |e: &Engine| e.stat().vectors[0].groups.len();
    assert!(hosts.engines.iter().all(|e| groups(e) <= 2));
    // Some may have come too late on a machine that stands still.
    let text = Diagnosis::Memory.text();
    let refused = [hosts.declined(0, &format!("The peer: {text}")), hosts.declined(1, text)];
    assert!(refused.iter().all(|refused| (1..=8).contains(refused)), "{refused:?}, {by_smc}");
    // Another host has its own.
    let other = third(&hosts);
    let peer = other.1.to_string();
    let is_there = |engine: &Engine| {
        let peer = peer.clone();
        within(engine, move |vector| vector.group_stats().iter().any(|group| group.peer == peer))
    };
    let has_its_own = (0..10).any(|_| {
        let [client, server] = connect_third(&hosts, &other);
        client.send(b"hello");
        assert_eq!(server.receive_all(5), b"hello");
        is_there(&hosts.engines[1])
    });
    assert!(has_its_own);
    drop(all);
}

/// A connection to the second host at `server`, which takes its client to be at `client`.
fn connect_as(hosts: &Hosts, client: IpAddr, server: IpAddr) -> [Guest; 2] {
    let (ours, theirs) = tcp(hosts.addresses[0], server);
    let there = give(&hosts.engines[1], theirs, Role::Server, (server, client));
    [hosts.give(0, ours, Role::Client, server), there]
}

/// A client that says of itself what another one says has no part in that one's link group: it could end it, and it
/// would be written to what is meant for the other.
#[test]
fn who_claims_to_be_another_client_has_a_link_group_of_its_own() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    let [client, server] = hosts.addresses;
    let somebody = IpAddr::from([192, 0, 2, 1]);
    let [here, there] = hosts.connect();
    here.send(b"first");
    assert_eq!(there.receive_all(5), b"first");
    let peers = || {
        let stats = within(&hosts.engines[1], |vector| vector.group_stats());
        let mut peers: Vec<_> = stats.into_iter().map(|group| group.peer).collect();
        peers.sort();
        peers
    };
    let mut both = [client, somebody].map(|peer| peer.to_string());
    both.sort();
    // Where the machine stands still it may go by TCP.
    let has_its_own = (0..5).any(|_| {
        let [here, there] = connect_as(&hosts, somebody, server);
        here.send(b"second");
        assert_eq!(there.receive_all(6), b"second");
        peers() == both
    });
    assert!(has_its_own, "{:?}", peers());
}

/// A client takes a server at another of its addresses for another one; a link group by the first is not what it expects
/// to be named.
#[test]
fn a_server_at_another_address_is_met_anew() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    let [client, server] = hosts.addresses;
    let [here, there] = hosts.connect();
    here.send(b"first");
    assert_eq!(there.receive_all(5), b"first");
    let other = IpAddr::from([127, 254, 254, 254]);
    let groups = || within(&hosts.engines[1], |vector| vector.group_stats().len());
    // Where the machine stands still it may go by TCP.
    let is_met = (0..5).any(|_| {
        let [here, there] = connect_as(&hosts, client, other);
        here.send(b"second");
        assert_eq!(there.receive_all(6), b"second");
        groups() == 2
    });
    let declined = hosts.engines[0].stat().vectors.remove(0).declined;
    assert!(is_met, "{server}: {} groups, {declined:?}", groups());
}
