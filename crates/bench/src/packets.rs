//! What packets of long WRITEs cost either side: two devices, and what one has sent is memory for the other.
//!
//! As much is made at once as a vector has on its way, so that caches see what they would see.

use std::time::Duration;

use anyhow::{Context, ensure};
use roce::{
    Access, Addresses, Arrival, Device, DeviceConfig, Handle, Kind, MESSAGE_MAX, Mtu, Operation,
    Piece, ProtectionDomain, Psn, QpConfig, Qpn, ReceiveRequest, Region, RtrAttributes,
    RtsAttributes, Secret, SendRequest, Source, Time,
};
use testkit::cpu;

use super::Bytes;

/// Bytes of a write.
const WRITE: u32 = 1 << 20;
/// Bytes of the message behind it, as of CDC.
const SEND: usize = 44;
/// Packets that the system is given as one.
const SEGMENTS: usize = 64;
/// The longest message of UDP.
const MESSAGE: usize = 65_507;
/// Packets on their way.
const WINDOW: u16 = 512;

/// One of the two.
struct Side {
    device: Device,
    memory: Bytes,
    qpn: Qpn,
    used: Duration,
}

fn side(word: u64) -> anyhow::Result<(Side, u32)> {
    let mut device = Device::new(&DeviceConfig::default(), Secret::new([word, !word]))?;
    let memory = Bytes(vec![0x5a; WRITE as usize]);
    let region = Region {
        domain: ProtectionDomain(0),
        address: 0,
        len: WRITE.into(),
        access: Access::REMOTE_WRITE,
        handle: Handle(0),
    };
    let key = device.register(region)?;
    let qpn = device.create_qp(&QpConfig { receive_depth: 256, ..QpConfig::default() })?;
    device.init(qpn)?;
    Ok((Side { device, memory, qpn, used: Duration::ZERO }, key.0))
}

/// Makes all that may be on its way; how long each run is, and its packets.
fn send(from: &mut Side, runs: &mut Vec<(usize, usize)>, out: &mut [u8]) -> (usize, usize) {
    let (before, mut at, mut packets) = (cpu::of_this_thread(), 0, 0);
    while out.len() - at >= MESSAGE {
        let sent = from.device.transmit(
            Time::from_nanos(1),
            &from.memory,
            &mut out[at..at + MESSAGE],
            SEGMENTS,
        );
        let Some(sent) = sent else { break };
        runs.push((sent.len, sent.segment_len));
        at += sent.len;
        packets += sent.segments;
    }
    from.used += cpu::of_this_thread().saturating_sub(before);
    (at, packets)
}

fn receive(to: &mut Side, runs: &[(usize, usize)], from: &[u8], arrival: &Arrival) {
    let (before, mut at) = (cpu::of_this_thread(), 0);
    for (len, each) in runs {
        let packets = from[at..at + len].chunks(*each);
        to.device.receive_burst(Time::from_nanos(1), &mut to.memory, arrival, packets);
        at += len;
    }
    to.used += cpu::of_this_thread().saturating_sub(before);
}

/// Measures.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn run(payload: usize, seconds: f64) -> anyhow::Result<()> {
    let mtus = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    let mtu = mtus.into_iter().find(|mtu| mtu.bytes() == payload);
    let mtu = mtu.context("256, 512, 1024, 2048 or 4096 bytes")?;
    ensure!(WRITE <= MESSAGE_MAX, "too long a write");
    let way = Addresses::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).context("families")?;
    let ((mut here, key), (mut there, rkey)) = (side(1)?, side(2)?);
    let ways = [way, way.reversed()];
    let peers = [there.qpn, here.qpn];
    for (side, (way, peer)) in [&mut here, &mut there].into_iter().zip(ways.into_iter().zip(peers))
    {
        let mut receive = RtrAttributes::new(way, peer, Psn::new(1), mtu);
        receive.identification_end = Some(64);
        let send = RtsAttributes { window: WINDOW, ..RtsAttributes::shunt(Psn::new(1)) };
        side.device.ready_to_receive(side.qpn, &receive)?;
        side.device.ready_to_send(side.qpn, &send)?;
    }
    let arrivals = ways.map(|addresses| Arrival {
        addresses,
        src_port: 4791,
        marked: false,
        identification: None,
    });
    let mut out = vec![0; usize::from(WINDOW) * (payload + 64) + MESSAGE];
    let (mut runs, mut all, mut under_way) = (Vec::new(), 0, 0);
    let began = cpu::of_this_thread();
    while cpu::of_this_thread().saturating_sub(began).as_secs_f64() < seconds {
        while under_way < 4 {
            let piece = Piece { key: roce::Key(key), address: 0, len: WRITE };
            let write = SendRequest {
                id: 0,
                operation: Operation::Write { address: 0, rkey },
                source: Source::Pieces(&[piece]),
                immediate: None,
                signaled: false,
                solicited: false,
            };
            let told = SendRequest {
                operation: Operation::Send,
                source: Source::Inline(&[0xfe; SEND]),
                signaled: true,
                ..write
            };
            let room = Piece { key: roce::Key(rkey), address: 0, len: 64 };
            let room = ReceiveRequest { id: 0, pieces: &[room] };
            there.device.post_receive(there.qpn, &room)?;
            here.device.post_send(here.qpn, &write)?;
            here.device.post_send(here.qpn, &told)?;
            under_way += 1;
        }
        let (len, packets) = send(&mut here, &mut runs, &mut out);
        ensure!(packets > 0, "nothing goes any more");
        receive(&mut there, &runs, &out[..len], &arrivals[0]);
        all += packets;
        runs.clear();
        let (len, _) = send(&mut there, &mut runs, &mut out);
        receive(&mut here, &runs, &out[..len], &arrivals[1]);
        runs.clear();
        for side in [&mut here, &mut there] {
            let cq = side.device.cqs().next().context("a queue")?;
            while let Some(done) = side.device.poll_cq(cq)? {
                ensure!(done.status == roce::Status::Success, "{done:?}");
                under_way -= i32::from(done.kind == Kind::Send);
            }
        }
    }
    let each = |side: &Side| side.used.as_nanos() as f64 / all as f64;
    println!("packets={all} send_ns={:.1} receive_ns={:.1}", each(&here), each(&there));
    Ok(())
}
