use std::net::Ipv4Addr;

use roce::Psn;

use super::super::port;
use super::*;

const HERE: Domain = ProtectionDomain(7);

/// A device with a link, at an address of its own.
fn end(address: IpAddr) -> Option<(Device, Shelf, Link)> {
    end_of(address, true)
}

/// `segments`: whether its socket takes several packets as one, as the device takes it to do.
fn end_of(address: IpAddr, segments: bool) -> Option<(Device, Shelf, Link)> {
    let socket = match port::open(address, 1, segments) {
        Ok(mut sockets) => sockets.remove(0),
        Err(failure) => {
            println!("skipped: {failure}");
            return None;
        }
    };
    let (mut device, mut shelf) = (Device::new(0, 0, 64, [1, 2]), Shelf::default());
    device.add_port(socket, Arc::default());
    let link = device.open_link(&mut shelf, HERE, false).unwrap();
    Some((device, shelf, link))
}

fn connect(device: &mut Device, link: &Link, addresses: Addresses, peer: Qpn) {
    let to = RtrAttributes::new(addresses, peer, Psn::new(7), Mtu::B1024);
    device.connect(link.qpn, &to).unwrap();
    device.start(link.qpn, &RtsAttributes::new(Psn::new(7))).unwrap();
}

#[test]
fn long_messages_arrive_as_short_ones_do() {
    let [here, there] = [1, 2].map(|host| IpAddr::from([127, 92, 0, host]));
    let (Some((mut a, mut of_a, link_a)), Some((mut b, mut of_b, link_b))) =
        (end(here), end(there))
    else {
        return;
    };
    let addresses = Addresses::new(here, there).unwrap();
    connect(&mut a, &link_a, addresses, link_b.qpn);
    connect(&mut b, &link_b, addresses.reversed(), link_a.qpn);
    for len in [44usize, 64, 65, 1024, 8192] {
        let message: Vec<u8> = (0..len).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
        a.send_long(link_a.qpn, Purpose::Llc, &message, &mut of_a).unwrap();
        let (mut came, mut sent) = (None, false);
        for at in 0..10_000u64 {
            let now = Time::from_nanos(at * 1000);
            a.transmit(now, &of_a);
            b.receive(now, &mut of_b);
            b.transmit(now, &of_b);
            a.receive(now, &mut of_a);
            sent |= a.poll(&of_a) == Some(Event::Sent(link_a.qpn, Purpose::Llc));
            if b.poll(&of_b) == Some(Event::Came(link_b.qpn)) {
                came = Some(b.message().to_vec());
            }
            if sent && came.is_some() {
                break;
            }
        }
        assert!(came.as_ref() == Some(&message) && sent, "{len} bytes");
    }
    let long = vec![0; 8193];
    assert!(a.send_long(link_a.qpn, Purpose::Llc, &long, &mut of_a).is_err());
    a.close_link(link_a.qpn, &mut of_a);
    assert_eq!((of_a.buffers.len(), a.roce().regions()), (0, 0));
}

/// What the system does not take as one would be sent again as one, and never arrive.
#[test]
fn packets_that_are_not_taken_as_one_leave_one_by_one() {
    let [here, there] = [17, 18].map(|host| IpAddr::from([127, 92, 0, host]));
    let (Some((mut a, mut of_a, link_a)), Some((mut b, mut of_b, link_b))) =
        (end_of(here, false), end(there))
    else {
        return;
    };
    let addresses = Addresses::new(here, there).unwrap();
    connect(&mut a, &link_a, addresses, link_b.qpn);
    connect(&mut b, &link_b, addresses.reversed(), link_a.qpn);
    for apart in [false, true] {
        // As it is known from the first refusal on, if it is no single one.
        a.ports[0].apart = apart;
        let message: Vec<u8> = (0..8000u32).map(|i| i.to_le_bytes()[0]).collect();
        a.send_long(link_a.qpn, Purpose::Llc, &message, &mut of_a).unwrap();
        let mut came = None;
        for at in 0..1000u64 {
            let now = Time::from_nanos(at * 1000);
            a.transmit(now, &of_a);
            b.receive(now, &mut of_b);
            b.transmit(now, &of_b);
            a.receive(now, &mut of_a);
            let _ = a.poll(&of_a);
            if b.poll(&of_b) == Some(Event::Came(link_b.qpn)) {
                came = Some(b.message().to_vec());
                break;
            }
        }
        assert!(came.as_ref() == Some(&message), "apart: {apart}");
        assert_eq!(a.refused.total, 0);
    }
}

/// What is sent again is as long, and would be refused until the link's patience ends.
#[test]
fn links_whose_packets_are_too_long_for_their_path_are_lost_at_once() {
    let [here, there, other] = [21, 22, 23].map(|host| IpAddr::from([127, 92, 0, host]));
    let Some((mut a, mut of_a, long)) = end(here) else { return };
    let [short, elsewhere] = [(); 2].map(|()| a.open_link(&mut of_a, HERE, false).unwrap());
    let to = |peer| Addresses::new(here, peer).unwrap();
    for (link, way, mtu) in [
        (long, to(there), Mtu::B4096),
        (short, to(there), Mtu::B1024),
        (elsewhere, to(other), Mtu::B4096),
    ] {
        let to = RtrAttributes::new(way, Qpn::new(77), Psn::new(7), mtu);
        a.connect(link.qpn, &to).unwrap();
        a.start(link.qpn, &RtsAttributes::new(Psn::new(7))).unwrap();
    }
    // As `EMSGSIZE` has it.
    a.refused.too_long.push((to(there), 1500));
    assert!(a.transmit(Time::from_nanos(1), &of_a), "there is something to be heard of");
    let mut failed = Vec::new();
    while let Some(Event::Failed(qpn, _)) = a.poll(&of_a) {
        failed.push(qpn);
    }
    failed.dedup();
    assert_eq!(failed, [long.qpn]);
}

/// Each address that a host has ever had a connection from would cost a system call in each round.
#[test]
fn sockets_without_links_are_asked_when_the_poller_knows_of_packets() {
    let [here, there] = [19, 20].map(|host| IpAddr::from([127, 92, 0, host]));
    let Some((mut a, mut of_a, link)) = end(here) else { return };
    let number = a.next_port() - 1;
    let now = Time::from_nanos(1);
    let somebody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let comes = || somebody.send_to(&[7; 64], (here, PORT)).unwrap();
    comes();
    assert!(!a.receive(now, &mut of_a));
    a.has_some(number);
    assert!(a.receive(now, &mut of_a) && !a.receive(now, &mut of_a));
    comes();
    connect(&mut a, &link, Addresses::new(here, there).unwrap(), Qpn::new(77));
    assert!(a.receive(now, &mut of_a), "there is a link");
    // Of many with links, those that are silent.
    let mut silent = Vec::new();
    for host in 0..u8::try_from(PORTS_FEW).unwrap() {
        let Some((other, ..)) = end(IpAddr::from([127, 92, 0, 30 + host])) else { return };
        silent.extend(other.ports);
    }
    silent.iter_mut().for_each(|port| port.links = 1);
    a.ports.append(&mut silent);
    comes();
    assert!(a.receive(now, &mut of_a), "something came a moment ago");
    let later = Time::from_nanos(1 + MOVED_NS);
    comes();
    assert!(!a.receive(later, &mut of_a));
    a.has_some(number);
    assert!(a.receive(later, &mut of_a));
    // One whose address has gone is closed when it has no link, and has none from then on.
    let lease = Arc::clone(&a.ports[0].lease);
    let to = RtrAttributes::new(
        Addresses::new(here, there).unwrap(),
        Qpn::new(77),
        Psn::new(7),
        Mtu::B1024,
    );
    assert!(!lease.end());
    a.end_ports();
    assert!(a.has_port(here));
    a.close_link(link.qpn, &mut of_a);
    let link = a.open_link(&mut of_a, HERE, false).unwrap();
    assert!(a.has_port(here) && lease.end() && !a.has_port(here));
    assert!(a.connect(link.qpn, &to).is_err());
    a.end_ports();
    assert!(a.ports.iter().all(|port| port.address != here));
    a.close_link(link.qpn, &mut of_a);
}

#[test]
fn messages_of_connections_leave_together_behind_what_they_tell_of() {
    let [here, there] = [3, 4].map(|host| IpAddr::from([127, 92, 0, host]));
    let (Some((mut a, mut of_a, link)), Some((mut b, mut of_b, of_peer))) = (end(here), end(there))
    else {
        return;
    };
    let addresses = Addresses::new(here, there).unwrap();
    connect(&mut a, &link, addresses, of_peer.qpn);
    connect(&mut b, &of_peer, addresses.reversed(), link.qpn);
    // The links' own buffers stand in for the streams and RMBs of connections.
    let stream = a.register_stream(HERE, Place::Control(link.buffers).handle()).unwrap();
    let rmb = Place::Control(of_peer.buffers).handle();
    let rmb = b.register_rmb(HERE, rmb, (0, u64::from(LONG_AT))).unwrap();
    let from = u64::from(RECEIVES) * u64::from(FIRST_BYTES);
    let bytes: Vec<u8> = (0..3 * 1262u32).map(|i| (i / 3).to_le_bytes()[0]).collect();
    let at = usize::try_from(from).unwrap();
    of_a.buffers.get_mut(link.buffers).unwrap()[at..at + bytes.len()].copy_from_slice(&bytes);
    for nth in 0..3u8 {
        let at = from + u64::from(nth) * 1262;
        a.write(link.qpn, (at, rmb.0), (stream, at, 1262)).unwrap();
        a.send(link.qpn, Purpose::Cdc(nth.into()), &[nth; CDC_LEN]).unwrap();
    }
    assert!(a.has_queued() && a.has_room(link.qpn));
    let mut room = vec![0; 1 << 16];
    a.post_gathered();
    let now = Time::from_nanos(1000);
    let runs: Vec<_> = std::iter::from_fn(|| {
        let run = a.roce.transmit(now, &of_a, &mut room, 64)?;
        let arrival = Arrival { addresses, src_port: PORT, marked: false, identification: None };
        let packets = room[..run.len].chunks(run.segment_len);
        b.roce.receive_burst(now, &mut of_b, &arrival, packets);
        Some((run.segments, run.len))
    })
    .collect();
    // Each WRITE is two that are equally long, with a header of their own.
    assert_eq!(runs, [(6 + 1, 6 * (32 + 632) + 60), (2, 2 * 60)]);
    let came = std::iter::from_fn(|| {
        let event = b.poll(&of_b)?;
        assert_eq!(event, Event::Came(of_peer.qpn));
        Some(b.message().to_vec())
    });
    assert_eq!(came.collect::<Vec<_>>(), [0, 1, 2].map(|nth| vec![nth; CDC_LEN]));
    assert!(of_b.buffers.get(of_peer.buffers).unwrap()[at..at + bytes.len()] == bytes);
    assert_eq!(a.links[&link.qpn].messages, 3);
    // What was gathered goes with its link.
    a.send(link.qpn, Purpose::Cdc(3), &[3; CDC_LEN]).unwrap();
    assert!(a.has_queued(), "nobody would send it");
    a.close_link(link.qpn, &mut of_a);
    assert!(a.gathered.is_empty());
}

#[test]
fn a_message_of_a_link_overtakes_none_of_its_connections() {
    let [here, there] = [5, 6].map(|host| IpAddr::from([127, 92, 0, host]));
    let (Some((mut a, _, link)), Some((mut b, mut of_b, of_peer))) = (end(here), end(there)) else {
        return;
    };
    let addresses = Addresses::new(here, there).unwrap();
    connect(&mut a, &link, addresses, of_peer.qpn);
    connect(&mut b, &of_peer, addresses.reversed(), link.qpn);
    a.send(link.qpn, Purpose::Cdc(1), &[1; CDC_LEN]).unwrap();
    a.send(link.qpn, Purpose::Llc, &[2; CDC_LEN]).unwrap();
    let shelf = Shelf::default();
    let mut came = Vec::new();
    for at in 0..10_000u64 {
        let now = Time::from_nanos(at * 1000);
        a.transmit(now, &shelf);
        b.receive(now, &mut of_b);
        while b.poll(&of_b).is_some() {
            came.push(b.message()[0]);
        }
        if came.len() == 2 {
            break;
        }
    }
    assert_eq!(came, [1, 2]);
}

/// A link with nobody at its other end, and a stream to write from.
fn alone(host: u8) -> Option<(Device, Link, Key)> {
    let [here, there] = [host, host + 1].map(|host| IpAddr::from([127, 92, 0, host]));
    let (mut a, _, link) = end(here)?;
    connect(&mut a, &link, Addresses::new(here, there).unwrap(), Qpn::new(77));
    let stream = a.register_stream(HERE, Place::Control(link.buffers).handle()).unwrap();
    Some((a, link, stream))
}

fn posted(a: &Device, link: &Link) -> u32 {
    a.roce.qp(link.qpn).unwrap().sends
}

#[test]
fn what_is_gathered_has_its_place_in_the_queue() {
    let Some((mut a, link, stream)) = alone(7) else { return };
    a.widen(link.qpn);
    let mut messages = 0;
    while a.has_room(link.qpn) {
        // As long as a plan can be: two WRITEs, each cut into as many as may be, and below what gathers no more.
        for _ in 0..2 {
            a.write(link.qpn, (0, 1), (stream, 0, CUT_MAX * 1024 - 3)).unwrap();
        }
        a.written = 0;
        a.send(link.qpn, Purpose::Cdc(messages.into()), &[0; CDC_LEN]).unwrap();
        messages += 1;
    }
    let writes = posted(&a, &link);
    assert_eq!(writes, messages * 2 * CUT_MAX);
    a.post_gathered();
    assert_eq!(posted(&a, &link), writes + messages);
    assert_eq!((a.links[&link.qpn].messages, a.links[&link.qpn].gathered), (messages, 0));
}

#[test]
fn what_is_gathered_for_a_queue_pair_that_has_failed_is_given_up() {
    let Some((mut a, link, _)) = alone(9) else { return };
    a.send(link.qpn, Purpose::Cdc(1), &[0; CDC_LEN]).unwrap();
    a.fail(link.qpn, 1000);
    a.post_gathered();
    let held = &a.links[&link.qpn];
    assert_eq!((held.messages, held.gathered, a.gathered.len()), (0, 0, 0));
}

#[test]
fn messages_do_not_wait_behind_much_that_is_written() {
    let Some((mut a, link, stream)) = alone(11) else { return };
    let long = u32::try_from(GATHER_BYTES).unwrap();
    a.write(link.qpn, (0, 1), (stream, 0, 8)).unwrap();
    a.send(link.qpn, Purpose::Cdc(1), &[0; CDC_LEN]).unwrap();
    assert_eq!((posted(&a, &link), a.gathered.len()), (1, 1));
    a.write(link.qpn, (0, 1), (stream, 0, long)).unwrap();
    a.send(link.qpn, Purpose::Cdc(2), &[0; CDC_LEN]).unwrap();
    assert_eq!((posted(&a, &link), a.gathered.len()), (4, 0));
    a.send(link.qpn, Purpose::Cdc(3), &[0; CDC_LEN]).unwrap();
    assert_eq!(a.gathered.len(), 1, "it gathers again");
}

#[test]
fn nothing_is_written_before_the_first_message_on_another_link() {
    let Some((mut a, link, stream)) = alone(13) else { return };
    let mut validation = [0; CDC_LEN];
    validation[24] = ProducerFlags::FAILOVER_VALIDATION.0;
    a.send(link.qpn, Purpose::Cdc(1), &validation).unwrap();
    assert_eq!((posted(&a, &link), a.gathered.len()), (1, 0));
    a.write(link.qpn, (0, 1), (stream, 0, 8)).unwrap();
    a.send(link.qpn, Purpose::Cdc(2), &[0; CDC_LEN]).unwrap();
    assert_eq!((posted(&a, &link), a.gathered.len()), (2, 1));
}

#[test]
fn writes_are_cut_into_equal_ones_and_long_ones_are_left() {
    let lens = |len, mtu| cut(len, mtu).map(|(_, len)| len).collect::<Vec<_>>();
    assert!(lens(0, 1024).is_empty());
    assert_eq!(lens(1024, 1024), [1024]);
    assert_eq!(lens(1025, 1024), [516, 509]);
    assert_eq!(lens(4093, 1024), [1024, 1024, 1024, 1021]);
    assert_eq!(lens(4097, 1024), [4097], "its packets are alike as they are");
    assert_eq!(lens(5000, 0), [5000]);
    for len in 1..4200 {
        let (mut end, mut packets) = (0, Vec::new());
        for (at, len) in cut(len, 1024) {
            assert_eq!((at, len > 0), (end, true));
            packets.push(len.next_multiple_of(4));
            end += len;
        }
        assert!(end == len && packets.len() <= CUT_MAX as usize);
        assert!(packets.len() == 1 || packets.iter().all(|packet| *packet <= 1024), "{len}");
    }
}

#[test]
fn an_address_has_the_hardware_address_of_its_card() {
    assert_eq!(mac_of([127, 0, 0, 1].into()), None);
    // Which address of ours leads away from here; nothing is sent.
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    let away = socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr());
    let away = away.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |at| at.ip());
    let Some(card) = Interface::with_address(away).filter(|card| card.kind == ETHERNET) else {
        return println!("skipped: no card leads away from here");
    };
    let said = std::fs::read_to_string(format!("/sys/class/net/{}/address", card.name));
    let words = |Mac(mac): Mac| mac.map(|byte| format!("{byte:02x}")).join(":");
    assert_eq!(mac_of(away).map(words).as_deref(), said.as_deref().map(str::trim).ok());
}

#[test]
fn a_card_that_takes_nothing_stops_others_for_a_moment_only() {
    let [here, there] = [15, 16].map(|host| IpAddr::from([127, 92, 0, host]));
    let (Some((mut a, ..)), Some((b, ..))) = (end(here), end(there)) else { return };
    let at = |nanos| Time::from_nanos(nanos);
    assert!(!a.is_stopped(at(0)));
    let mut other = b.ports;
    other[0].full = true;
    other[0].full_since = Some(at(1));
    a.ports.append(&mut other);
    assert!(a.is_stopped(at(2)) && a.is_stopped(at(1 + STALLED_NS)));
    assert!(!a.is_stopped(at(2 + STALLED_NS)));
    let mut watched = Vec::new();
    a.rewatch(|socket, _, full| watched.push((socket.address().ip(), full)));
    a.rewatch(|_, _, _| unreachable!("nothing has changed"));
    assert_eq!(watched, [(there, true)]);
    // With nowhere else to go, what there is waits.
    a.ports.remove(0);
    assert!(a.is_stopped(at(2 + STALLED_NS)));
    a.transmit(at(3 + STALLED_NS), &Shelf::default());
    assert!(!a.is_stopped(at(3 + STALLED_NS)), "there was nothing to wait for");
}

#[test]
fn packets_fit_the_path() {
    for (path, mtu) in
        [(1500, Mtu::B1024), (9000, Mtu::B4096), (4175, Mtu::B2048), (500, Mtu::B256)]
    {
        assert_eq!(mtu_of(path), mtu, "{path}");
    }
}
