//! What one core does: takes frames from its ring, puts fragments together, sends datagrams on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use frag::wire::{self, Fragment};
use frag::{Arrival, Datagram, Reason, Released, Shard, Sink};
use sys::call;
use sys::packet::{self, Block, Ring};
use sys::xdp::{self, Socket};

use super::exchange::Exchange;
use super::output::{Output, Target};
use super::pool::{Pool, Slot};
use super::tally::Tally;
use crate::defrag::Link;

/// Frames that are worked on together.
const BURST: usize = 32;
/// How long a worker that has nothing to do sleeps at most; so late it sees that it is to stop.
const NAP_MS: i32 = 50;
/// How long a worker that keeps blocks sleeps: the kernel would not let it wait for the next one.
const SHORT_NAP: Duration = Duration::from_millis(1);
/// After so many of these nothing has come for longer than a block takes to be handed over.
const SHORT_NAPS: u32 = 6;
/// How long frames may gather when a burst was not full. Waking up for each costs more than the rest.
const GATHER: Duration = Duration::from_micros(200);
/// How long what has come before the end may take to be handed over. The kernel's timer for that may be late by a few
/// ticks of 10 ms.
const LAST_MS: i32 = 50;
const LAST_NS: u64 = LAST_MS as u64 * 1_000_000;
/// How long the end of workers that have frames of each other may take, nanoseconds: else one that does not get on, or
/// nobody who closes the gate, would have them wait for ever.
const END_MOST_NS: u64 = 3_000_000_000;
/// How often others are told what was counted.
const TELL_NS: u64 = 50_000_000;
/// Datagrams whose time is up that are given up at once.
const EXPIRE_MOST: usize = 256;
/// The last byte of an IPv4 header behind that of Ethernet.
const HEAD: usize = 33;

/// What is the same for frames of either kind.
pub(super) struct Worker<B> {
    pub(super) cpu: Option<u32>,
    pub(super) link: Link,
    pub(super) shard: Shard<B>,
    pub(super) output: Output,
    pub(super) tally: Tally,
    pub(super) told: Arc<Mutex<Tally>>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) target: Arc<Target>,
    /// Frames are counted and given back: how fast could it be?
    pub(super) count_only: bool,
    last_told: u64,
    /// The time that the shard was told last.
    now: u64,
}

impl<B> Worker<B> {
    pub(super) fn new(
        shard: Shard<B>,
        output: Output,
        stop: &Arc<AtomicBool>,
        target: &Arc<Target>,
    ) -> Self {
        Self {
            cpu: None,
            link: Link::Ethernet,
            shard,
            output,
            tally: Tally::default(),
            told: Arc::default(),
            stop: Arc::clone(stop),
            target: Arc::clone(target),
            count_only: false,
            last_told: 0,
            now: 0,
        }
    }

    fn begin(&self) {
        if let Some(cpu) = self.cpu {
            // Not being pinned costs speed and nothing else.
            let _ = call::pin(cpu);
        }
    }

    /// When a frame came, by the clock that the shard goes by, which never goes back. Frames come in
    /// blocks: the time at which they are looked at says nothing about the pace of a datagram. `skew`: what
    /// that clock is ahead of the frames'.
    fn came(&mut self, time_ns: u64, skew: u64, now: u64) -> u64 {
        self.now = time_ns.wrapping_add(skew).min(now).max(self.now);
        self.now
    }

    fn is_to_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.target.is_done()
    }

    /// Gives up some datagrams whose time is up. Whether there are more of them.
    fn expire(&mut self, now: u64, store: impl Store<B>) -> bool {
        let mut desk = Desk { store, output: &mut self.output, time_ns: 0 };
        let next = self.shard.expire(now, EXPIRE_MOST, &mut desk);
        next.is_some_and(|next| next <= now)
    }

    /// Tells others, if it is time to. `dropped`: what the ring has dropped since the last time.
    fn tell(&mut self, now: u64, dropped: impl FnOnce(&mut Tally)) {
        if now < self.last_told + TELL_NS {
            return;
        }
        self.last_told = now;
        dropped(&mut self.tally);
        self.tally.counters.clone_from(self.shard.counters());
        self.tally.gauges = self.shard.gauges();
        self.tally.output = self.output.counts;
        self.tally.cpu_ns = call::thread_cpu_ns();
        if let Ok(mut told) = self.told.lock() {
            told.clone_from(&self.tally);
        }
    }

    /// Everything that is to be told at the end.
    fn end(mut self, dropped: impl FnOnce(&mut Tally)) -> Tally {
        self.last_told = 0;
        self.tell(u64::MAX, dropped);
        self.tally
    }
}

/// Where the bytes behind a handle are, and where the handle goes when it is free.
trait Store<B> {
    fn bytes<'a>(&'a self, buffer: &'a B) -> &'a [u8];
    fn take_back(&mut self, buffer: B);
}

/// Receives what a shard has to say during one burst.
struct Desk<'a, S> {
    store: S,
    output: &'a mut Output,
    time_ns: u64,
}

impl<B, S: Store<B>> Sink<B> for Desk<'_, S> {
    fn whole(&mut self, buffer: B, _: usize) {
        self.store.take_back(buffer);
    }

    fn datagram(&mut self, datagram: &Datagram<'_, B>) {
        let store = &self.store;
        self.output.send(datagram, self.time_ns, |buffer| store.bytes(buffer));
    }

    fn release(&mut self, buffer: B, _: Released) {
        self.store.take_back(buffer);
    }
}

/// A pool beside the block that is open, or none.
struct Pooled<'a> {
    pool: &'a mut Pool<Block>,
    block: &'a [u8],
}

impl Store<Slot> for Pooled<'_> {
    fn bytes<'a>(&'a self, slot: &'a Slot) -> &'a [u8] {
        self.pool.bytes(slot, self.block)
    }

    fn take_back(&mut self, slot: Slot) {
        self.pool.release(slot);
    }
}

impl Store<xdp::Frame> for &Socket {
    fn bytes<'a>(&'a self, frame: &'a xdp::Frame) -> &'a [u8] {
        Socket::bytes(self, frame)
    }

    fn take_back(&mut self, frame: xdp::Frame) {
        self.release(frame);
    }
}

/// Works on a packet ring until it is to stop.
pub(super) fn packets(mut worker: Worker<Slot>, mut ring: Ring, mut pool: Pool<Block>) -> Tally {
    worker.begin();
    // Frames that the kernel has put into the ring.
    let mut brought = 0;
    let mut look = |ring: &Ring, tally: &mut Tally| {
        let statistics = ring.statistics();
        tally.ring_dropped += u64::from(statistics.dropped);
        brought += u64::from(statistics.frames.saturating_sub(statistics.dropped));
        brought
    };
    let mut naps = 0;
    while !worker.is_to_stop() {
        let began = call::now_ns();
        if drain(&mut worker, &mut ring, &mut pool) {
            naps = 0;
            worker.tally.work_ns += call::now_ns() - began;
        } else {
            worker.now = began;
            let is_behind = worker.expire(began, Pooled { pool: &mut pool, block: &[] });
            naps += u32::from(!is_behind);
            if is_behind {
                // After a flood there may be a million of those: no nap before the last has gone.
            } else if pool.keeps() && naps < SHORT_NAPS {
                std::thread::sleep(SHORT_NAP);
            } else {
                worker.tally.settled += pool.settle();
                ring.wait(NAP_MS);
            }
        }
        worker.tell(began, |tally| {
            look(&ring, tally);
        });
    }
    finish_packets(&mut worker, &mut ring, &mut pool);
    worker.end(|tally| tally.unread = look(&ring, tally).saturating_sub(tally.frames))
}

/// Works on what has come until now, also in the block that was not handed over yet, unless there was enough.
fn finish_packets(worker: &mut Worker<Slot>, ring: &mut Ring, pool: &mut Pool<Block>) {
    // Or there might always be more.
    if ring.refuse().is_err() {
        return;
    }
    let refused = call::now_ns();
    while !worker.target.is_done() {
        let now = call::now_ns();
        if drain(worker, ring, pool) {
            worker.tally.work_ns += call::now_ns() - now;
            continue;
        }
        worker.tally.settled += pool.settle();
        let passed = i32::try_from((now - refused) / 1_000_000).unwrap_or(i32::MAX);
        if passed >= LAST_MS {
            return;
        }
        ring.wait(LAST_MS - passed);
    }
}

/// Works on the next block, if there is one.
fn drain(worker: &mut Worker<Slot>, ring: &mut Ring, pool: &mut Pool<Block>) -> bool {
    let Some(block) = ring.next_block() else { return false };
    let mut frames = block.frames();
    let mut burst = Vec::with_capacity(BURST);
    let mut arrivals = Vec::with_capacity(BURST);
    let now = call::now_ns();
    let skew = now.wrapping_sub(call::wall_ns());
    loop {
        burst.clear();
        burst.extend(frames.by_ref().take(BURST));
        let Some(last) = burst.last() else { break };
        let time_ns = last.time_ns;
        worker.tally.frames += burst.len() as u64;
        worker.tally.frame_bytes += burst.iter().map(|frame| frame.bytes.len() as u64).sum::<u64>();
        if !worker.count_only {
            touch(burst.iter().map(|frame| frame.bytes));
            arrivals.extend(burst.iter().filter_map(|frame| arrival(worker, pool, frame)));
        }
        let came = worker.came(time_ns, skew, now);
        let store = Pooled { pool, block: block.bytes() };
        let mut desk = Desk { store, output: &mut worker.output, time_ns };
        worker.shard.push_burst(&mut arrivals, came, &mut desk);
    }
    drop(arrivals);
    worker.tally.settled += pool.close(block);
    true
}

/// Has the headers of frames brought near, all at once: each alone would be waited for. From the link's header on an
/// IP header may lie on two lines.
fn touch<'b>(frames: impl Iterator<Item = &'b [u8]>) {
    let heads = frames.map(|bytes| bytes.first().unwrap_or(&0) ^ bytes.get(HEAD).unwrap_or(&0));
    std::hint::black_box(heads.fold(0, |all, head| all ^ head));
}

/// A frame as what a shard takes in, in a frame of the pool.
fn arrival<'b>(
    worker: &mut Worker<Slot>,
    pool: &mut Pool<Block>,
    frame: &packet::Frame<'b>,
) -> Option<Arrival<'b, Slot>> {
    let found = worker.link.find(frame.bytes);
    let found = found.filter(|_| frame.bytes.len() == frame.length as usize);
    let scoped = found.and_then(|(at, scope)| {
        let scope = frame.tag.map_or(Some(scope), |(_, tag)| scope.behind(tag));
        Some((at, scope?.of_ethernet()))
    });
    let Some((at, scope)) = scoped else {
        worker.tally.other += 1;
        return None;
    };
    let packet = &frame.bytes[at..];
    if !wire::is_sound(packet) {
        worker.shard.refuse(Reason::Checksum);
        return None;
    }
    let Some(buffer) = pool.take(frame.at + at, packet.len()) else {
        worker.tally.no_frame += 1;
        return None;
    };
    Some(Arrival { packet, buffer, cost: pool.frame_bytes(), scope })
}

/// Works on an AF_XDP socket until it is to stop. `chunk_bytes`: what a frame costs.
pub(super) fn chunks(
    mut worker: Worker<xdp::Frame>,
    mut socket: Socket,
    mut exchange: Exchange,
    chunk_bytes: u32,
) -> Tally {
    worker.begin();
    let dropped = |socket: &Socket, tally: &mut Tally| {
        let statistics = socket.statistics();
        tally.ring_dropped = statistics.dropped + statistics.ring_full;
    };
    while !worker.is_to_stop() {
        let began = call::now_ns();
        let frames = receive(&mut worker, &socket, &mut exchange, chunk_bytes);
        let came = frames + take_over(&mut worker, &socket, &mut exchange, chunk_bytes);
        socket.refill();
        if came > 0 {
            worker.tally.work_ns += call::now_ns() - began;
            if frames == 0 {
                // What others hand over keeps us awake; a driver that has found no room for frames waits to be asked.
                socket.wait(None, 0);
            }
            if came < BURST {
                std::thread::sleep(GATHER);
            }
        } else {
            let is_behind = worker.expire(began, &socket);
            socket.refill();
            if !is_behind {
                exchange.close_eyes();
                if take_over(&mut worker, &socket, &mut exchange, chunk_bytes) == 0 {
                    exchange.sleep(&socket, NAP_MS);
                }
                exchange.open_eyes();
            }
        }
        worker.tell(began, |tally| dropped(&socket, tally));
    }
    finish_chunks(&mut worker, &mut socket, &mut exchange, chunk_bytes);
    worker.end(|tally| dropped(&socket, tally))
}

/// Works on what has come until nothing was let in any more, unless there was enough, and in any case on all that other workers
/// hand over until they have come so far as well.
fn finish_chunks(
    worker: &mut Worker<xdp::Frame>,
    socket: &mut Socket,
    exchange: &mut Exchange,
    chunk_bytes: u32,
) {
    let began = call::now_ns();
    let mut closed = None;
    loop {
        let now = call::now_ns();
        let mut came = 0;
        if !worker.target.is_done() && !exchange.has_ended() {
            came += receive(worker, socket, exchange, chunk_bytes);
        }
        // Asked before the lanes are looked at: then what is there is all.
        let all_have_ended = exchange.all_have_ended();
        came += take_over(worker, socket, exchange, chunk_bytes);
        socket.refill();
        if came > 0 {
            worker.tally.work_ns += call::now_ns() - now;
        }
        if now >= began + END_MOST_NS || came == 0 && all_have_ended {
            break;
        }
        if came == 0 {
            if closed.is_none() && exchange.is_closed() {
                closed = Some(now);
            }
            // A core may have been about to hand some frames over.
            if closed.is_some_and(|closed| now >= closed + LAST_NS) {
                exchange.end();
            }
            // A driver that has found no room for frames waits to be asked.
            socket.wait(None, 0);
            std::thread::sleep(SHORT_NAP);
        }
    }
    while let Some((frame, _)) = socket.next() {
        worker.tally.unread += 1;
        socket.release(frame);
    }
}

/// Works on the frames that are there, at most a burst; answers how many.
fn receive(
    worker: &mut Worker<xdp::Frame>,
    socket: &Socket,
    exchange: &mut Exchange,
    chunk_bytes: u32,
) -> usize {
    let mut burst = Vec::with_capacity(BURST);
    burst.extend(std::iter::from_fn(|| socket.next()).take(BURST));
    let frames = burst.len();
    worker.tally.frames += frames as u64;
    worker.tally.frame_bytes += burst.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
    if worker.count_only {
        burst.into_iter().for_each(|(buffer, _)| socket.release(buffer));
        return frames;
    }
    touch(burst.iter().map(|(_, bytes)| *bytes));
    let mut arrivals = Vec::with_capacity(BURST);
    for (mut buffer, bytes) in burst {
        let Some((at, scope)) = worker.link.find(bytes) else {
            worker.tally.other += 1;
            socket.release(buffer);
            continue;
        };
        buffer.skip(u32::try_from(at).unwrap_or(u32::MAX));
        let packet = &bytes[at..];
        if !wire::is_sound(packet) {
            // The kernel would have dropped it.
            worker.shard.refuse(Reason::Checksum);
            socket.release(buffer);
            continue;
        }
        let scope = scope.of_ethernet();
        let arrival = Arrival { packet, buffer, cost: chunk_bytes, scope };
        if exchange.is_alone() {
            arrivals.push(arrival);
            continue;
        }
        // What stays here is read once more, which takes less than to move what was read.
        let mut fragment = Fragment::NONE;
        let is_fragment = wire::parse_to(packet, scope, &mut fragment) == Ok(None);
        match exchange.other(&fragment.key).filter(|_| is_fragment) {
            None => arrivals.push(arrival),
            Some(other) => {
                let there = exchange.hand_over(other, &fragment, arrival.buffer, socket);
                worker.tally.handed_over += u64::from(there);
                worker.tally.lane_full += u64::from(!there);
            }
        }
    }
    // Before our own work: another core can begin.
    exchange.flush();
    let (now, time_ns) = (call::now_ns(), call::wall_ns());
    let mut desk = Desk { store: socket, output: &mut worker.output, time_ns };
    worker.shard.push_burst(&mut arrivals, now, &mut desk);
    frames
}

/// Works on what other workers have handed over; answers how many fragments that were.
fn take_over(
    worker: &mut Worker<xdp::Frame>,
    socket: &Socket,
    exchange: &mut Exchange,
    chunk_bytes: u32,
) -> usize {
    let mut came = 0;
    for from in exchange.from() {
        let (now, time_ns) = (call::now_ns(), call::wall_ns());
        let mut desk = Desk { store: socket, output: &mut worker.output, time_ns };
        came += worker.shard.push_received(from, now, &mut desk, |ticket| {
            let (buffer, packet) = socket.borrow(ticket).expect("what is handed over is lent");
            Arrival { packet, buffer, cost: chunk_bytes, scope: 0 }
        });
    }
    worker.tally.taken_over += came as u64;
    came
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use frag::{Config, HashKey, Ledger};
    use sys::bpf::Classic;
    use sys::interface::Interface;

    use super::*;

    /// A frame of Ethernet with so many bytes of IP packet, at the beginning of a block.
    fn frame(bytes: &[u8]) -> packet::Frame<'_> {
        let length = u32::try_from(bytes.len()).unwrap();
        packet::Frame { bytes, at: 0, length, time_ns: 0, tag: None }
    }

    /// That is to bring out so many datagrams.
    fn worker(left: u64, is_to_stop: bool) -> Worker<Slot> {
        let limits = Config::default().limits().unwrap();
        let shard = Shard::new(&limits, &Ledger::of(&limits), HashKey::new([1, 2]));
        let target = Target::new(None, left);
        let output = Output::new(&target, None);
        Worker::new(shard, output, &Arc::new(is_to_stop.into()), &target)
    }

    /// Lets in what is sent to this port, by UDP behind plain headers of Ethernet and IPv4.
    fn to_port(port: u16) -> [Classic; 4] {
        let line = |code, no, k| Classic { code, yes: 0, no, k };
        [line(0x28, 0, 14 + 22), line(0x15, 1, port.into()), line(6, 0, u32::MAX), line(6, 0, 0)]
    }

    #[test]
    fn what_came_before_the_end_is_worked_on_unless_there_was_enough() {
        let lo = Interface::find("lo").unwrap().unwrap();
        if !lo.up {
            return println!("skipped: the loopback interface is down");
        }
        for (left, least) in [(u64::MAX, 10), (0, 0)] {
            let shape = packet::Shape { blocks: 4, block_bytes: 1 << 16, patience_ms: 4 };
            let ring = match Ring::open(lo.index, shape) {
                Ok(ring) => ring,
                Err(e) => return println!("skipped: {e}"),
            };
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let to = socket.local_addr().unwrap();
            ring.admit(&to_port(to.port())).unwrap();
            // The kernel shows us what goes out while it is sent; what comes in, a moment later.
            (0..10).for_each(|_| assert_eq!(socket.send_to(b"before the end", to).unwrap(), 14));
            let tally = packets(worker(left, true), ring, Pool::new(2048, 64, 0, 2).unwrap());
            assert!(tally.frames >= least && (least > 0 || tally.frames == 0), "{}", tally.frames);
        }
    }

    #[test]
    fn who_has_not_given_up_all_whose_time_is_up_knows_it() {
        let mut worker = worker(u64::MAX, false);
        let all = EXPIRE_MOST + 44;
        let mut pool: Pool<Block> = Pool::new(64, 300, 0, 0).unwrap();
        for id in 0..u16::try_from(all).unwrap() {
            // The first eight bytes of a datagram.
            let mut bytes =
                *b"............\x08\0E\0\0\x1c..\x20\0@\x11..\x0a\0\0\x01\x0a\0\0\x02........";
            bytes[18..20].copy_from_slice(&id.to_be_bytes());
            bytes[24..26].fill(0);
            let sum = testkit::fragments::checksum(&bytes[14..34]);
            bytes[24..26].copy_from_slice(&sum.to_be_bytes());
            let mut burst = vec![arrival(&mut worker, &mut pool, &frame(&bytes)).unwrap()];
            let store = Pooled { pool: &mut pool, block: &[] };
            let mut desk = Desk { store, output: &mut worker.output, time_ns: 0 };
            worker.shard.push_burst(&mut burst, 1, &mut desk);
        }
        assert_eq!(worker.shard.gauges().datagrams as usize, all);
        let late = 1 << 40;
        assert!(worker.expire(late, Pooled { pool: &mut pool, block: &[] }), "more are left");
        assert!(!worker.expire(late, Pooled { pool: &mut pool, block: &[] }), "that was all");
        assert_eq!(worker.shard.gauges().datagrams, 0);
    }

    #[test]
    fn a_fragment_that_no_frame_of_the_pool_can_take_is_counted_as_that() {
        let mut worker = worker(u64::MAX, false);
        let mut pool: Pool<Block> = Pool::new(64, 1, 0, 0).unwrap();
        let mut bytes = [0; 14 + 65];
        (bytes[12], bytes[14]) = (8, 0x45);
        assert!(arrival(&mut worker, &mut pool, &frame(&bytes)).is_none(), "does not fit");
        assert_eq!(worker.tally.no_frame, 1);
        let fits = frame(&bytes[..14 + 64]);
        let Arrival { buffer, .. } = arrival(&mut worker, &mut pool, &fits).unwrap();
        assert!(arrival(&mut worker, &mut pool, &fits).is_none(), "there is one frame");
        assert_eq!((worker.tally.no_frame, worker.tally.other), (2, 0));
        pool.release(buffer);
        assert!(arrival(&mut worker, &mut pool, &fits).is_some(), "and it came back");
        // What is cut, or no packet of IP, is none of these.
        let cut = packet::Frame { length: 500, ..fits };
        assert!(arrival(&mut worker, &mut pool, &cut).is_none());
        assert_eq!((worker.tally.no_frame, worker.tally.other), (2, 1));
    }
}
