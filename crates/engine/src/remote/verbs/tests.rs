//! Two engines whose vectors have queue pairs of a device: of the stand-in of `sys`, in one process.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use sys::call;

use super::super::config::Config;
use super::super::fake::Guest;
use super::super::guest::Program;
use super::super::tests::{Hosts, bytes, config};
use super::super::vector::Order;
use super::super::{Engine, Error};
use super::*;

/// As the stand-in has addresses.
const NETWORK: u8 = 250;

/// A libibverbs with a device `fake0` that has the addresses of two hosts.
fn library() -> &'static str {
    static AT: OnceLock<PathBuf> = OnceLock::new();
    let at = AT.get_or_init(|| {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sys/tests/verbs");
        // Beside the tests, or where that can only be read elsewhere; complete or not there: others may be at it.
        let beside = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let folder = match rustix::fs::access(&beside, rustix::fs::Access::WRITE_OK) {
            Ok(()) => beside,
            Err(_) => std::env::temp_dir(),
        };
        let to = folder.join(format!("fake-libibverbs.{}", std::process::id()));
        let versions = format!("-Wl,--version-script={}", from.join("fake.map").display());
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-pthread", "-DTWO_HOSTS", &versions, "-o"]);
        let said = cc.arg(&to).arg(from.join("fake.c")).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let at = folder.join("fake-libibverbs.so");
        std::fs::rename(to, &at).unwrap();
        at
    });
    at.to_str().unwrap()
}

fn on_card(settings: &[(&str, &str)]) -> Config {
    let mut config = config(settings);
    config.set("device", "fake0").unwrap();
    config.device_library = library().to_owned();
    config
}

fn hosts(settings: &[(&str, &str)]) -> Hosts {
    let addresses = [1, 2].map(|host| IpAddr::from([127, 91, NETWORK, host]));
    Hosts::at(addresses, [on_card(settings), on_card(settings)]).unwrap()
}

#[test]
fn a_request_and_its_answer() {
    let hosts = hosts(&[]);
    let [client, server] = hosts.connect();
    client.send(b"hello");
    assert_eq!(server.receive_all(5), b"hello");
    server.send(b"and to you");
    assert_eq!(client.receive_all(10), b"and to you");
    hosts.wait("one connection each", |h| {
        h.engines.iter().all(|e| e.stat().vectors[0].connections == 1)
    });
    hosts.wait("what was carried is told", |h| h.engines[0].stat().vectors[0].bytes_rx > 0);
    // By writes of the card, and not by TCP.
    let stat = hosts.engines[0].stat();
    assert_eq!((stat.vectors[0].bytes_tx, stat.vectors[0].bytes_rx), (5, 10));
    assert_eq!((stat.vectors[0].packets_tx, stat.vectors[0].declined_total), (0, 0));
    client.ends(Program::Closed);
    server.wait("the end", Guest::peer_shut);
    server.ends(Program::Closed);
    for guest in [&client, &server] {
        guest.wait("parting", |g| g.closed() == Some(false));
    }
}

#[test]
fn a_card_has_the_completion_queues_that_are_wanted() {
    for (set, wanted) in [("none", false), ("all", true)] {
        let hosts = hosts(&[("split_cqs", set)]);
        let [client, server] = hosts.connect();
        let text = bytes(300_000, 4);
        client.send(&text);
        assert!(server.receive_all(text.len()) == text);
        server.send(b"answer");
        assert_eq!(client.receive_all(6), b"answer");
        for engine in &hosts.engines {
            let taken = engine.stat().vectors[0].completions.clone();
            assert!(taken[0] > 0 && (taken[1] > 0) == wanted, "{set}: {taken:?}");
        }
    }
}

/// Without any TCP option, as where the engine may load no BPF program.
#[test]
fn engines_with_cards_find_out_what_they_share() {
    let ips = [1, 2].map(|host| IpAddr::from([127, 91, NETWORK, host]));
    let configs =
        ips.map(|ip| on_card(&[("address", &ip.to_string()), ("peers", "127.91.0.0/16")]));
    let hosts = Hosts::that_meet_at(ips, configs).unwrap();
    let text = bytes(100_000, 5);
    for port in 4000..4010 {
        let [client, server] = hosts.ask(port, [true, true]).map(Result::unwrap);
        client.send(&text);
        assert!(server.receive_all(text.len()) == text);
        server.send(b"answer");
        assert_eq!(client.receive_all(6), b"answer");
        client.ends(Program::Closed);
        server.ends(Program::Closed);
    }
    assert!(hosts.by_smc(10) > 0, "{:#?}", hosts.engines[0].stat());
    let [bytes, packets] = [0, 1].map(|which| {
        let stat = hosts.engines[0].stat();
        stat.vectors.iter().map(|v| [v.bytes_tx, v.packets_tx][which]).sum::<u64>()
    });
    // By writes of the card.
    assert!(bytes >= text.len() as u64 && packets == 0, "{bytes} {packets}");
}

#[test]
fn many_bytes_both_ways_at_once() {
    // The last is longer than the stage.
    for rmb in ["16K", "64K", "4M"] {
        let hosts = hosts(&[("receive_buffer", rmb), ("send_buffer", rmb)]);
        let [client, server] = hosts.connect();
        let (there, back) = (bytes(9_000_000, 1), bytes(2_500_000, 2));
        std::thread::scope(|scope| {
            scope.spawn(|| there.chunks(5_000_007).for_each(|chunk| client.send(chunk)));
            scope.spawn(|| back.chunks(70_001).for_each(|chunk| server.send(chunk)));
            scope.spawn(|| assert!(server.receive_all(there.len()) == there));
            scope.spawn(|| assert!(client.receive_all(back.len()) == back));
        });
        client.wait("all released", |g| g.unreleased() == 0);
    }
}

#[test]
fn connections_of_a_few_vectors_share_the_work() {
    let hosts = hosts(&[("vectors", "3")]);
    let all: Vec<_> = (0..40).map(|_| hosts.connect()).collect();
    let text = bytes(50_000, 8);
    std::thread::scope(|scope| {
        for [client, server] in &all {
            scope.spawn(|| {
                client.send(&text);
                assert!(server.receive_all(text.len()) == text);
                server.send(&text);
                assert!(client.receive_all(text.len()) == text);
            });
        }
    });
    for [client, server] in &all {
        client.ends(Program::Closed);
        server.ends(Program::Closed);
    }
    hosts.wait("no connection", |h| {
        h.engines.iter().all(|e| e.stat().vectors.iter().all(|v| v.connections == 0))
    });
}

#[test]
fn a_vector_that_sleeps_is_woken_by_the_card() {
    let hosts = hosts(&[("poll_us", "0")]);
    let [client, server] = hosts.connect();
    for round in 0..20u8 {
        // Long enough that both sleep.
        std::thread::sleep(Duration::from_millis(5));
        client.send(&[round]);
        assert_eq!(server.receive_all(1), [round]);
    }
    // Where others have the CPU, a round may come before it has got there.
    let stat = hosts.engines[1].stat();
    assert!(stat.vectors[0].sleeps >= 10, "{stat:#?}");
}

#[test]
fn a_slow_reader_holds_the_writer_up() {
    let hosts = hosts(&[("receive_buffer", "16K"), ("send_buffer", "16K")]);
    let [client, server] = hosts.connect();
    let all = bytes(100_000, 7);
    client.send(&all);
    server.wait("a full buffer", |g| g.unread() == 16 << 10);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(server.unread(), 16 << 10);
    assert!(server.receive_all(all.len()) == all);
}

#[test]
fn a_reset_is_seen_by_the_other_end() {
    let hosts = hosts(&[]);
    let [client, server] = hosts.connect();
    client.send(b"x");
    assert_eq!(server.receive_all(1), b"x");
    server.ends(Program::Reset);
    client.wait("the reset", |g| g.closed() == Some(true));
}

#[test]
fn a_link_that_is_lost_is_not_missed_where_there_are_two() {
    let addresses = [1, 2].map(|host| IpAddr::from([127, 91, NETWORK, host]));
    let configs = [1, 2].map(|host| {
        let both = format!("127.91.{NETWORK}.{host},127.91.{NETWORK}.{}", host + 10);
        on_card(&[("max_links", "2"), ("testlink_time", "1"), ("address", &both)])
    });
    let hosts = Hosts::at(addresses, configs).unwrap();
    let all: Vec<_> = (0..6).map(|_| hosts.connect()).collect();
    for [client, server] in &all {
        client.send(b"x");
        assert_eq!(server.receive_all(1), b"x");
    }
    let links = |engine: &Engine| {
        let stat = engine.stat();
        let group = stat.vectors[0].groups.first();
        group.map_or(0, |g| g.links.iter().filter(|l| l.state == "ACTIVE").count())
    };
    hosts.wait("two links", |h| h.engines.iter().all(|e| links(e) == 2));
    let text = bytes(1_000_000, 9);
    std::thread::scope(|scope| {
        for [client, server] in &all {
            scope.spawn(|| {
                for chunk in text.chunks(20_000) {
                    client.send(chunk);
                    std::thread::sleep(Duration::from_millis(4));
                }
            });
            scope.spawn(|| assert!(server.receive_all(text.len()) == text));
            scope.spawn(|| {
                server.send(&text);
                assert!(client.receive_all(text.len()) == text);
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        hosts.engines[1].shared.vectors[0].inbox.put(Order::Unplug(addresses[1]));
    });
    hosts.wait("one link", |h| h.engines.iter().all(|e| links(e) == 1));
    for [client, server] in &all {
        client.ends(Program::Closed);
        server.ends(Program::Closed);
        client.wait("parting", |g| g.closed() == Some(false));
    }
}

#[test]
fn an_engine_that_ends_tells_its_peers() {
    let hosts = hosts(&[]);
    let [client, server] = hosts.connect();
    client.send(b"x");
    assert_eq!(server.receive_all(1), b"x");
    let [ours, theirs] = hosts.engines;
    theirs.stop();
    server.wait("the end", |g| g.closed() == Some(true));
    client.wait("the end", |g| g.closed() == Some(true));
    drop(ours);
}

/// The first domain of a device.
const HERE: Domain = roce::ProtectionDomain(1);

/// Two devices of vectors, whose only links are connected.
fn two() -> [(Device, Qpn); 2] {
    let card = Card::open(library(), "fake0").unwrap();
    let addresses = [1, 2].map(|host| IpAddr::from([127, 91, NETWORK, host]));
    let mut ends = [0, 1].map(|vector| {
        let mut device = Device::new(&card, vector).unwrap();
        let domain = device.open_domain().unwrap();
        assert_eq!(domain, HERE);
        let qpn = device.open_link(domain, false).unwrap();
        (device, qpn)
    });
    let qpns = [ends[0].1, ends[1].1];
    for (at, (device, qpn)) in ends.iter_mut().enumerate() {
        let ips = roce::Addresses::new(addresses[at], addresses[1 - at]).unwrap();
        let psn = roce::Psn::new(7);
        let receive = RtrAttributes::new(ips, qpns[1 - at], psn, Mtu::B1024);
        device.connect(*qpn, &receive).unwrap();
        device.start(*qpn, &RtsAttributes::new(psn)).unwrap();
    }
    ends
}

/// A guest that has written this, as its vector has it.
fn writer(shelf: &mut Shelf, text: &[u8]) -> (Handle, u64) {
    let (relay, guest) = super::super::fake::guest(16 << 10);
    guest.send(text);
    let conn = shelf.rings.insert(Box::new(relay));
    (Place::Sent(conn).handle(), conn.number())
}

fn events(device: &mut Device) -> Vec<Event> {
    std::iter::from_fn(|| device.poll()).collect()
}

#[test]
fn what_a_guest_leaves_behind_does_not_go_and_harms_nobody() {
    let [(mut a, from), (mut b, to)] = two();
    let mut shelf = Shelf::default();
    let (gone, stays) = (writer(&mut shelf, &[1; 100]), writer(&mut shelf, &[2; 100]));
    let rmb = b.register_rmb(HERE, 0x40_0000, 16 << 10).unwrap();
    let keys = [gone, stays].map(|(handle, _)| a.register_stream(handle).unwrap());
    for (key, (_, number), place) in [(keys[0], gone, 0), (keys[1], stays, 100)] {
        // What tells of nothing that was written goes anyway.
        a.send(from, Purpose::Cdc(number), &[0; 44]).unwrap();
        a.write(from, (0x40_0000 + place, rmb.0), (key, 0, 100)).unwrap();
        a.send(from, Purpose::Cdc(number), &[9; 44]).unwrap();
    }
    if let Place::Sent(conn) = Place::of(gone.0) {
        shelf.rings.remove(conn);
    }
    a.forget_stream(keys[0]);
    assert!(a.transmit(&shelf));
    assert!(!a.has_queued());
    let sent = [gone.1, stays.1, stays.1].map(|number| Event::Sent(from, Purpose::Cdc(number)));
    assert_eq!(events(&mut a), sent);
    assert_eq!(events(&mut b), [(); 3].map(|()| Event::Came(to)));
    let (mut relay, guest) = super::super::fake::guest(16 << 10);
    b.fetch(rmb, &mut relay, 0, 200);
    relay.publish(200);
    assert_eq!(guest.receive_all(200), [[0; 100], [2; 100]].concat());
}

#[test]
fn bytes_that_are_not_there_are_zeros_and_cost_no_link() {
    let [(mut a, from), (mut b, to)] = two();
    let mut shelf = Shelf::default();
    let (handle, number) = writer(&mut shelf, &[1; 100]);
    let rmb = b.register_rmb(HERE, 0x40_0000, 16 << 10).unwrap();
    let key = a.register_stream(handle).unwrap();
    a.write(from, (0x40_0000, rmb.0), (key, 1, 100)).unwrap();
    a.send(from, Purpose::Cdc(number), &[9; 44]).unwrap();
    assert!(a.transmit(&shelf));
    assert_eq!(events(&mut a), [Event::Sent(from, Purpose::Cdc(number))]);
    assert!(a.has_room(from) && !a.has_queued());
    assert_eq!(events(&mut b), [Event::Came(to)]);
    let (mut relay, guest) = super::super::fake::guest(16 << 10);
    b.fetch(rmb, &mut relay, 0, 100);
    relay.publish(100);
    assert_eq!(guest.receive_all(100), [0; 100]);
}

#[test]
fn a_link_reaches_nothing_of_another_group() {
    let [(mut a, from), (mut b, to)] = two();
    let mut shelf = Shelf::default();
    let (handle, number) = writer(&mut shelf, &[1; 100]);
    let elsewhere = b.open_domain().unwrap();
    let rmb = b.register_rmb(elsewhere, 0x40_0000, 16 << 10).unwrap();
    let key = a.register_stream(handle).unwrap();
    a.write(from, (0x40_0000, rmb.0), (key, 0, 100)).unwrap();
    a.send(from, Purpose::Cdc(number), &[9; 44]).unwrap();
    assert!(a.transmit(&shelf));
    assert_eq!(events(&mut a), [Event::Failed(from, Status::RemoteAccess)]);
    assert_eq!(events(&mut b), [Event::Failed(to, Status::Flushed)]);
    let (mut relay, guest) = super::super::fake::guest(16 << 10);
    b.fetch(rmb, &mut relay, 0, 100);
    relay.publish(100);
    assert_eq!(guest.receive_all(100), [0; 100]);
    // A domain may be closed before what is in it: a card would not forget it otherwise.
    b.close_domain(elsewhere);
    b.deregister(rmb);
    assert!(b.register_rmb(elsewhere, 0x40_0000, 16 << 10).is_err());
}

/// A peer may say that it has written what it has not.
#[test]
fn nothing_is_left_in_a_buffer_that_another_connection_gets() {
    let [(mut a, from), (mut b, _)] = two();
    let mut shelf = Shelf::default();
    // Longer than what is cleared at a time, and not a multiple of it.
    let size = PART_BYTES as u64 * 2 + 4096;
    let text = vec![7; PART_BYTES * 2 + 4096];
    let (handle, number) = writer(&mut shelf, &text);
    let rmb = b.register_rmb(HERE, 0x40_0000, size).unwrap();
    let key = a.register_stream(handle).unwrap();
    let (mut relay, guest) = super::super::fake::guest(text.len());
    a.write(from, (0x40_0000, rmb.0), (key, 0, u32::try_from(size).unwrap())).unwrap();
    a.send(from, Purpose::Cdc(number), &[9; 44]).unwrap();
    for _ in 0..10 {
        a.transmit(&shelf);
        let _ = events(&mut a);
    }
    b.fetch(rmb, &mut relay, 0, size);
    relay.publish(size);
    assert!(guest.receive_all(text.len()) == text);
    b.clear_rmb(rmb, size).unwrap();
    let (mut relay, guest) = super::super::fake::guest(text.len());
    b.fetch(rmb, &mut relay, 0, size);
    relay.publish(size);
    assert!(guest.receive_all(text.len()) == vec![0; text.len()]);
    b.deregister(rmb);
    assert!(b.clear_rmb(rmb, size).is_err());
}

#[test]
fn a_write_that_the_peer_does_not_allow_fails_both_ends_once() {
    let [(mut a, from), (mut b, to)] = two();
    let mut shelf = Shelf::default();
    let (handle, number) = writer(&mut shelf, &[1; 100]);
    let rmb = b.register_rmb(HERE, 0x40_0000, 16 << 10).unwrap();
    let key = a.register_stream(handle).unwrap();
    b.deregister(rmb);
    a.write(from, (0x40_0000, rmb.0), (key, 0, 100)).unwrap();
    a.send(from, Purpose::Cdc(number), &[9; 44]).unwrap();
    assert!(a.transmit(&shelf));
    assert_eq!(events(&mut a), [Event::Failed(from, Status::RemoteAccess)]);
    assert_eq!(events(&mut b), [Event::Failed(to, Status::Flushed)]);
    a.close_link(from);
    assert!(!a.has_room(from));
    assert!(a.open_link(HERE, false).is_ok());
}

const O_NONBLOCK: i32 = 0o4000;
const O_CLOEXEC: i32 = 0o2000000;

/// In place of a descriptor of a device, a pipe that the test writes to.
fn instead_of(fd: i32) -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    let flags = call::getfl(reader.as_raw_fd()).unwrap();
    call::setfl(reader.as_raw_fd(), flags | O_NONBLOCK).unwrap();
    call::dup_over(reader.as_raw_fd(), fd, O_CLOEXEC).unwrap();
    writer
}

/// Its descriptors are readable from then on, and nothing can be read.
#[test]
fn a_device_that_is_taken_away_fails_its_links_and_wakes_nobody_any_more() {
    let [(mut a, from), _] = two();
    for fd in [a.channel.as_raw_fd(), a.card.context.as_raw_fd()] {
        drop(instead_of(fd));
    }
    let (poller, mut told) = (Poller::new().unwrap(), sys::event::Events::new(4));
    a.watch(&poller, 0).unwrap();
    let mut failed = Vec::new();
    let mut turn = || {
        a.unwatch_gone(&poller);
        poller.wait(&mut told, Some(0));
        let any = a.receive();
        failed.extend(events(&mut a));
        any || !told.is_empty()
    };
    let turns = (0..50).take_while(|_| turn()).count();
    assert!(turns < 5, "{turns} turns, and each was told of something");
    assert_eq!(failed, [Event::Failed(from, Status::LocalProtection)]);
    assert!(!a.has_room(from) && a.open_link(HERE, false).is_err());
}

/// The kernel says it once for each time that the device is open.
#[test]
fn all_vectors_hear_that_the_device_has_failed() {
    const DEVICE_FATAL: u8 = 8;
    let mut all = two();
    let mut fds: Vec<i32> = all.iter().map(|(it, _)| it.card.context.as_raw_fd()).collect();
    fds.dedup();
    let mut event = [0; 16];
    event[8] = DEVICE_FATAL;
    let mut writers: Vec<_> = fds.into_iter().map(instead_of).collect();
    writers.iter_mut().for_each(|writer| writer.write_all(&event).unwrap());
    for (device, qpn) in &mut all {
        device.receive();
        assert_eq!(events(device), [Event::Failed(*qpn, Status::LocalProtection)]);
    }
}

#[test]
fn long_messages_and_writes_go_round_the_stage() {
    let [(mut a, from), (mut b, _)] = two();
    let mut shelf = Shelf::default();
    let text = bytes(STAGE_BYTES + STAGE_BYTES / 2 + 77, 3);
    let (handle, number) = writer(&mut shelf, &text);
    let size = STAGE_BYTES as u64 * 2;
    let rmb = b.register_rmb(HERE, 0x40_0000, size).unwrap();
    let key = a.register_stream(handle).unwrap();
    let message = bytes(8000, 4);
    let (mut relay, guest) = super::super::fake::guest(STAGE_BYTES * 2);
    for round in 0..5u64 {
        let len = u32::try_from(text.len()).unwrap();
        a.write(from, (0x40_0000, rmb.0), (key, 0, len)).unwrap();
        a.send(from, Purpose::Cdc(number), &message).unwrap();
        let mut sent = Vec::new();
        // The stage is filled a few times.
        for _ in 0..100 {
            a.transmit(&shelf);
            sent.extend(events(&mut a));
        }
        assert_eq!(sent, [Event::Sent(from, Purpose::Cdc(number))], "round {round}");
        assert!(matches!(b.poll(), Some(Event::Came(_))));
        assert!(b.message() == message);
    }
    b.fetch(rmb, &mut relay, 0, text.len() as u64);
    relay.publish(text.len() as u64);
    assert!(guest.receive_all(text.len()) == text);
}

/// The same on a device of this host that has two IPv4 addresses or one: a card, or `rdma_rxe`.
#[test]
fn on_a_device_of_this_host() {
    let found = || {
        let library = verbs::Library::load().map_err(|e| e.to_string())?;
        for device in library.devices().map_err(|e| e.to_string())? {
            let context = device.open().map_err(|e| e.to_string())?;
            let all = context.gids(PORT).map_err(|e| e.to_string())?;
            let of_roce = all.iter().filter(|gid| gid.kind == GidKind::RoceV2);
            let v4 = of_roce.filter_map(|gid| Ipv6Addr::from(gid.address).to_ipv4_mapped());
            let v4: Vec<IpAddr> = v4.map(IpAddr::from).collect();
            if let (Some(first), Some(last)) = (v4.first(), v4.last()) {
                return Ok((device.name(), [*first, *last]));
            }
        }
        Err("no RDMA device with an IPv4 address for RoCEv2".to_owned())
    };
    let (name, addresses) = match found() {
        Ok(found) => found,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    println!("{name}, {addresses:?}");
    let on_it = || config(&[("device", &name)]);
    let hosts = Hosts::at(addresses, [on_it(), on_it()]).unwrap();
    let all: Vec<_> = (0..10).map(|_| hosts.connect()).collect();
    // Not much, since such devices are emulated in emulated machines.
    let text = bytes(150_000, 9);
    std::thread::scope(|scope| {
        for [client, server] in &all {
            scope.spawn(|| {
                client.send(&text);
                assert!(server.receive_all(text.len()) == text);
                server.send(&text);
                assert!(client.receive_all(text.len()) == text);
            });
        }
    });
    let stat = hosts.engines[0].stat();
    assert_eq!(stat.vectors[0].bytes_tx, 1_500_000, "{stat:#?}");
    println!("{stat:#?}");
    for [client, server] in &all {
        client.ends(Program::Closed);
        server.ends(Program::Closed);
    }
    hosts.wait("no connection", |h| h.engines.iter().all(|e| e.stat().vectors[0].connections == 0));
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let start =
        |config| Engine::start(config, |_| Box::new(super::super::fake::Awake), |_| (), |_| true);
    let mut config = on_card(&[]);
    config.set("device", "fake7").unwrap();
    let said = start(config).unwrap_err().to_string();
    assert_eq!(said, "no RDMA device fake7; there are: fake0");
    let mut config = on_card(&[]);
    config.device_library = "libibverbs-that-is-not.so".to_owned();
    let error = start(config).unwrap_err();
    assert!(matches!(&error, Error::Device(OpenError::Library(_))), "{error}");
    let said = start(on_card(&[("address", "127.91.250.3")])).unwrap_err().to_string();
    assert_eq!(said, "the RDMA device fake0 has no RoCEv2 address 127.91.250.3");
}
