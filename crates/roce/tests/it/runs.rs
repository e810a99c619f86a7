//! What leaves together, and where acknowledgements stand in it.

use roce::*;

use crate::hosts::{Host, Setup};

const NOW: Time = Time::from_nanos(1_000_000);
/// An acknowledgement, and a SEND of 44 bytes.
const ACK: usize = 12 + 4 + 4;
const SEND: usize = 12 + 44 + 4;

/// Two hosts; the second has something to acknowledge, and a buffer for messages is on both.
fn hosts(many: u64) -> [Host; 2] {
    let mut hosts = Setup::default().hosts();
    for host in &mut hosts {
        let key = host.buffer(0, vec![0; 64], Access::LOCAL_WRITE);
        (0..many).for_each(|id| host.post_receive(id, key, 0, 64));
    }
    send(&mut hosts, 0, 1);
    let [a, b] = &mut hosts;
    for (flow, bytes) in a.packets(NOW) {
        b.take(NOW, flow, &bytes).unwrap();
    }
    hosts
}

fn send(hosts: &mut [Host; 2], who: usize, many: u64) {
    (0..many).for_each(|id| hosts[who].send(id, &[7; 44]).unwrap());
}

/// The lengths of the packets of the next run of a host, which the other one takes as they came.
fn run(hosts: &mut [Host; 2], who: usize, segments: usize) -> Vec<usize> {
    let mut buffer = vec![0; 1 << 16];
    let from = &mut hosts[who];
    let Some(run) = from.device.transmit(NOW, &from.memory, &mut buffer, segments) else {
        return Vec::new();
    };
    let Flow { addresses, src_port } = run.flow;
    let packets: Vec<_> = buffer[..run.len].chunks(run.segment_len).collect();
    assert_eq!(packets.len(), run.segments);
    for (identification, packet) in (0..).zip(&packets) {
        let identification = Some(identification);
        let arrival = Arrival { addresses, src_port, marked: false, identification };
        let to = &mut hosts[1 - who];
        to.device.receive(NOW, &mut to.memory, &arrival, packet).unwrap();
    }
    packets.iter().map(|packet| packet.len()).collect()
}

#[test]
fn an_acknowledgement_is_the_last_of_what_leaves() {
    let mut hosts = hosts(8);
    send(&mut hosts, 1, 3);
    assert_eq!(run(&mut hosts, 1, 64), [SEND, SEND, SEND, ACK]);
    assert_eq!(run(&mut hosts, 1, 64), []);
    assert_eq!(hosts[0].done().len(), 1 + 3, "what was sent, and what came");
    // Alone, it waits for nothing.
    assert_eq!(run(&mut hosts, 0, 64), [ACK]);
    assert_eq!(hosts[1].done().len(), 1 + 3);
}

#[test]
fn an_acknowledgement_has_a_place_where_there_is_more_than_one_run() {
    let mut hosts = hosts(32);
    send(&mut hosts, 1, 10);
    assert_eq!(run(&mut hosts, 1, 4), [SEND, SEND, SEND, ACK]);
    assert_eq!(run(&mut hosts, 1, 4), [SEND; 4]);
    assert_eq!(run(&mut hosts, 1, 4), [SEND; 3]);
    // Without runs of more than one it is the first.
    send(&mut hosts, 0, 1);
    assert_eq!(run(&mut hosts, 0, 1), [ACK]);
    assert_eq!(run(&mut hosts, 0, 1), [SEND]);
}

#[test]
fn an_acknowledgement_lets_few_runs_go_first() {
    let mut hosts = hosts(1);
    let source = hosts[1].buffer(0, vec![9; 1000], Access::READ);
    let ring = hosts[0].buffer(0, vec![0; 1000], Access::REMOTE_WRITE);
    // Each shorter than the one before, so that each pair is a run in which there is no place.
    for len in (1..=24u32).rev().map(|n| n * 8) {
        let operation = Operation::Write { address: 0, rkey: ring.0 };
        let pieces = [Piece { key: source, address: 0, len }];
        hosts[1].post(1, operation, Source::Pieces(&pieces)).unwrap();
    }
    let runs: Vec<_> = (0..6).map(|_| run(&mut hosts, 1, 64)).collect();
    let first = runs.iter().position(|run| *run == [ACK]);
    assert_eq!(first, Some(4), "{runs:?}");
}

#[test]
fn what_went_wrong_is_said_first() {
    let mut hosts = hosts(8);
    // The acknowledgement is out of the way.
    assert_eq!(run(&mut hosts, 1, 64), [ACK]);
    send(&mut hosts, 0, 2);
    let [a, b] = &mut hosts;
    let lost = a.packet(NOW).unwrap();
    let (flow, second) = a.packet(NOW).unwrap();
    assert_eq!(b.take(NOW, flow, &second), Err(Reason::OutOfOrder));
    send(&mut hosts, 1, 3);
    assert_eq!(run(&mut hosts, 1, 64), [ACK]);
    assert_eq!(hosts[1].device.counters().naks_out, 1);
    assert_eq!(run(&mut hosts, 0, 64)[0], lost.1.len(), "sent again");
}
