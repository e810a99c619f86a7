//! Settings that are changed while the engine runs count for what comes after.

use super::*;

fn vector(engine: &Engine) -> VectorStat {
    within(engine, |vector| vector.stat.clone())
}

/// RDMA WRITEs that it takes to send this at once.
fn writes(hosts: &Hosts, text: &[u8]) -> u64 {
    let before = vector(&hosts.engines[0]).writes_tx;
    let [client, server] = hosts.connect();
    client.send(text);
    assert!(server.receive_all(text.len()) == text);
    vector(&hosts.engines[0]).writes_tx - before
}

#[test]
fn send_buffer_is_what_is_under_way_at_most() {
    let Some(hosts) = Hosts::new(&[("receive_buffer", "1M"), ("send_buffer", "1M")]) else {
        return;
    };
    let text = bytes(512 << 10, 3);
    let few = writes(&hosts, &text);
    hosts.set(&[("send_buffer", "16K")]);
    let many = writes(&hosts, &text);
    assert!(few < 32 && many >= 32, "{few} {many}");
}

#[test]
fn receive_buffer_is_what_a_slow_reader_holds() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    for (size, bytes_held) in [("64K", 64 << 10), ("16K", 16 << 10), ("256K", 256 << 10)] {
        hosts.set(&[("receive_buffer", size)]);
        let [client, server] = hosts.connect();
        client.send(&bytes(300_000, 7));
        server.wait("a full buffer", |g| g.unread() == bytes_held);
        // What is beyond waits with the writer.
        assert!(client.unreleased() >= 300_000 - usize::try_from(bytes_held).unwrap());
        assert!(server.receive_all(300_000) == bytes(300_000, 7));
    }
}

/// WRITEs for some bytes one by one, none of which is acknowledged; `None`: there can be no hosts here.
fn unacknowledged(autocork: &str) -> Option<u64> {
    const ALL: u64 = 6;
    let hosts = Hosts::new(&[("autocork", "16K")])?;
    hosts.set(&[("autocork", autocork)]);
    let [client, server] = hosts.connect();
    client.send(b"x");
    assert_eq!(server.receive_all(1), b"x");
    client.wait("the acknowledgement", |g| g.unreleased() == 0);
    within(&hosts.engines[1], {
        let address = hosts.addresses[1];
        move |vector| vector.device.unplug(address)
    });
    let before = vector(&hosts.engines[0]);
    for nth in 1..=ALL {
        client.send(b"y");
        let at = std::time::Instant::now();
        let sent = || vector(&hosts.engines[0]).writes_tx - before.writes_tx;
        while sent() < nth && at.elapsed() < Duration::from_millis(100) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let after = vector(&hosts.engines[0]);
    assert_eq!(after.aborted_total, before.aborted_total);
    Some(after.writes_tx - before.writes_tx)
}

#[test]
fn autocork_is_what_gathers_behind_a_write() {
    let Some(writes) = unacknowledged("64K") else { return };
    assert_eq!(writes, 1, "the others wait for it");
    // Where this machine is busy some go together.
    assert!((0..5).filter_map(|_| unacknowledged("0")).any(|writes| writes >= 4));
}

/// LLC messages that an idle link has for this long; `None`: there can be no hosts here.
fn said_while_idle(testlink_time: Option<&str>) -> Option<u64> {
    let hosts = Hosts::new(&[("testlink_time", "0")])?;
    if let Some(seconds) = testlink_time {
        hosts.set(&[("testlink_time", seconds)]);
    }
    let [client, server] = hosts.connect();
    client.send(b"x");
    assert_eq!(server.receive_all(1), b"x");
    let before = hosts.engines.each_ref().map(|e| vector(e).llc_tx);
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!((client.closed(), server.closed()), (None, None));
    Some(hosts.engines.iter().zip(before).map(|(e, before)| vector(e).llc_tx - before).sum())
}

#[test]
fn testlink_time_is_when_silence_is_broken() {
    let Some(silent) = said_while_idle(None) else { return };
    assert_eq!(silent, 0);
    assert!(said_while_idle(Some("1")).is_none_or(|said| said > 0));
}

#[test]
fn max_links_is_how_many_a_new_group_has() {
    let Some(hosts) = Hosts::with_two_addresses(&[("max_links", "1")]) else { return };
    hosts.set(&[("max_links", "2")]);
    let [client, server] = hosts.connect();
    client.send(b"x");
    assert_eq!(server.receive_all(1), b"x");
    let links =
        |e: &Engine| e.stat().vectors[0].groups.iter().map(|g| g.links.len()).sum::<usize>();
    hosts.wait("two links", |h| h.engines.iter().all(|e| links(e) == 2));
}

#[test]
fn handshakes_max_is_how_many_there_are_at_a_time() {
    let Some(hosts) = Hosts::new(&[]) else { return };
    let [here, there] = hosts.addresses;
    // Where first contact has been made nobody waits for another.
    let [client, server] = hosts.connect();
    client.send(b"x");
    assert_eq!(server.receive_all(1), b"x");
    // Nobody answers these.
    let begin = || {
        let (ours, silent) = tcp(here, there);
        (hosts.give(0, ours, Role::Client, there), silent)
    };
    let some: Vec<_> = (0..4).map(|_| begin()).collect();
    hosts.wait("handshakes", |h| vector(&h.engines[0]).declined_total > 0 || handshakes(h) == 4);
    assert_eq!(vector(&hosts.engines[0]).declined_total, 0);
    hosts.set(&[("handshakes_max", "1")]);
    let beyond: Vec<_> = (0..4).map(|_| begin()).collect();
    hosts.wait("one on TCP", |h| vector(&h.engines[0]).declined_total > 0);
    drop((some, beyond));
}

fn handshakes(hosts: &Hosts) -> usize {
    within(&hosts.engines[0], |vector| vector.exchanges.len())
}
