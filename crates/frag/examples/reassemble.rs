//! Two cores put fragments together, whichever of them each fragment comes to.
//!
//! `cargo run -p shunt-frag --example reassemble`
//!
//! Each core takes packets from its own ring in bursts, keeps those of its own datagrams, and hands the
//! others over by a lane, as a few bytes that say what they are; the packets stay where they are. What takes
//! too long is given up, and its sender can be told.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use frag::{
    Arrival, Config, Datagram, HashKey, Ledger, Notice, NoticeKind, Receiver, Released, Sender,
    Shard, Sink, Steering, lane, wire::Fragment,
};

/// Packets that are handed in at once.
const BURST: usize = 32;
/// Fragments that may be on their way from one core to the other: few, to show what to do without room.
const LANE: u32 = 16;
/// Bytes of payload in each fragment.
const PIECE: usize = 512;
const SECOND_NS: u64 = 1_000_000_000;

/// What came out, on both cores.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    /// Payloads of whole datagrams, in no order.
    pub(crate) payloads: Vec<Vec<u8>>,
    /// Buffers that came back.
    pub(crate) released: usize,
    /// Datagrams that took too long, of which a sender would be told.
    pub(crate) late: usize,
    /// Fragments that one core has handed to the other.
    pub(crate) handed_over: usize,
}

/// What one core does with what its shard says. A buffer is the number of a packet.
struct Desk<'p> {
    packets: &'p [Vec<u8>],
    summary: Summary,
}

impl Sink<u32> for Desk<'_> {
    fn whole(&mut self, _: u32, _: usize) {
        // No fragment: whoever has a network stack passes it on.
        self.summary.released += 1;
    }

    fn datagram(&mut self, datagram: &Datagram<'_, u32>) {
        let mut packet = vec![0; datagram.packet_len()];
        let written = datagram.write_to(&mut packet, |n| &self.packets[*n as usize]);
        if written.is_ok() {
            self.summary.payloads.push(packet.split_off(datagram.header().len()));
        }
    }

    fn release(&mut self, _: u32, _: Released) {
        // Here a driver would give the buffer back to its ring.
        self.summary.released += 1;
    }

    fn notice(&mut self, notice: &Notice<'_, u32>) {
        if notice.kind == NoticeKind::TimeExceeded {
            self.summary.late += 1;
        }
    }
}

/// A core: its shard, and its ends of the lanes to and from the other.
struct Core<'p> {
    me: u32,
    shard: Shard<u32>,
    desk: Desk<'p>,
    to: Sender,
    from: Receiver,
    /// What the lane had no room for.
    late: Vec<(Fragment, u32)>,
}

impl<'p> Core<'p> {
    fn arrival(packets: &'p [Vec<u8>], n: u32) -> Arrival<'p, u32> {
        // What keeping it costs is the size of the frame that it was received into.
        Arrival { packet: &packets[n as usize], buffer: n, cost: 2048, scope: 0 }
    }

    fn take(&mut self, burst: &[u32], steering: &Steering, now: u64) {
        let packets = self.desk.packets;
        let arrivals: Vec<_> = burst.iter().map(|n| Self::arrival(packets, *n)).collect();
        let Self { shard, desk, to, late, .. } = self;
        let mut handed_over = 0;
        let whose = (steering, self.me);
        shard.push_steered(&arrivals, whose, now, desk, |_, fragment, arrival| {
            handed_over += 1;
            if !to.send(fragment, u64::from(arrival.buffer)) {
                late.push((*fragment, arrival.buffer));
            }
        });
        desk.summary.handed_over += handed_over;
        to.flush();
    }

    /// Takes in what the other has sent, and sends what there was no room for. `false`: nothing happened.
    fn exchange(&mut self, now: u64) -> bool {
        let Self { shard, desk, to, from, late, .. } = self;
        let (packets, before) = (desk.packets, late.len());
        let came = shard.push_received(from, now, desk, |ticket| {
            Self::arrival(packets, u32::try_from(ticket).unwrap_or(0))
        });
        late.retain(|(fragment, n)| !to.send(fragment, u64::from(*n)));
        to.flush();
        came > 0 || late.len() < before
    }
}

/// Fragments of a UDP-less IPv4 datagram of protocol 253, whose bytes are all the same.
fn fragments(id: u16, len: usize) -> Vec<Vec<u8>> {
    let letter = id.to_be_bytes()[1];
    let cut = |at: usize| {
        let here = PIECE.min(len - at);
        let total = u16::try_from(20 + here).unwrap_or(0).to_be_bytes();
        let more = if at + here < len { 0x2000 } else { 0 };
        let word = (more | u16::try_from(at / 8).unwrap_or(0)).to_be_bytes();
        let id = id.to_be_bytes();
        let mut packet = vec![0x45, 0, total[0], total[1], id[0], id[1], word[0], word[1]];
        packet.extend([64, 253, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        packet.extend(std::iter::repeat_n(letter, here));
        packet
    };
    (0..len).step_by(PIECE).map(cut).collect()
}

/// Puts `datagrams` datagrams together that come to two cores by turns, and one of which the end is missing.
pub(crate) fn reassemble(datagrams: u16) -> Result<Summary, frag::BadConfig> {
    let mut packets: Vec<Vec<u8>> = (0..datagrams).flat_map(|id| fragments(id, 5000)).collect();
    packets.extend(fragments(datagrams, 1000).into_iter().take(1));
    let limits = Config { shards: 2, ..Config::default() }.limits()?;
    let all = Mutex::new(Summary::default());
    let done = AtomicUsize::new(0);
    let ledger = Ledger::of(&limits);
    // The secret is drawn at random, where somebody might aim at the tables.
    let steering = Steering::new(HashKey::new([1, 2]), 2);
    let ((to_one, from_zero), (to_zero, from_one)) = (lane(LANE), lane(LANE));
    thread::scope(|scope| {
        for (me, to, from) in [(0, to_one, from_one), (1, to_zero, from_zero)] {
            let (packets, limits, ledger) = (&packets, &limits, &ledger);
            let (all, done, steering) = (&all, &done, &steering);
            scope.spawn(move || {
                let shard = Shard::steered(limits, ledger, steering);
                let desk = Desk { packets, summary: Summary::default() };
                let mut core = Core { me, shard, desk, to, from, late: Vec::new() };
                work(&mut core, steering, done);
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                let Summary { payloads, released, late, handed_over } = core.desk.summary;
                all.payloads.extend(payloads);
                all.released += released;
                all.late += late;
                all.handed_over += handed_over;
            });
        }
    });
    Ok(all.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// One core, from its first packet to the last that the other sends.
fn work(core: &mut Core<'_>, steering: &Steering, done: &AtomicUsize) {
    // Every second packet comes to each.
    let all = u32::try_from(core.desk.packets.len()).unwrap_or(0);
    let ring: Vec<u32> = (0..all).filter(|n| n % 2 == core.me).collect();
    for burst in ring.chunks(BURST) {
        core.take(burst, steering, SECOND_NS);
        core.exchange(SECOND_NS);
    }
    while !core.late.is_empty() {
        core.exchange(SECOND_NS);
        thread::yield_now();
    }
    // Pairs with the Acquire below: whoever sees it sees all that was sent.
    done.fetch_add(1, Ordering::Release);
    while done.load(Ordering::Acquire) < 2 {
        core.exchange(SECOND_NS);
        thread::yield_now();
    }
    while core.exchange(SECOND_NS) {}
    // Half a minute later: what is not complete by now is given up, some at a time.
    while core.shard.expire(31 * SECOND_NS, 64, &mut core.desk).is_some() {}
}

fn main() -> Result<(), frag::BadConfig> {
    let Summary { payloads, released, late, handed_over } = reassemble(1000)?;
    println!("{} datagrams, {late} given up, {released} buffers back", payloads.len());
    println!("{handed_over} fragments came to the core that does not own them");
    Ok(())
}
