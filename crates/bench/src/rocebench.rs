//! What messages cost a host whose work is spread over completion vectors: two hosts' devices with the wire
//! between them as memory, so that only our own code is measured.
//!
//! A message is what SMC makes of a small write: an RDMA WRITE of 64 bytes and a SEND of 44 behind it, both
//! acknowledged, and a completion at each end. `NAME=value` words are printed, as by the other programs.
//! What goes by a real cable is in `cable`.

mod cable;
mod packets;
mod spread;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::{Parser, Subcommand};
use roce::{
    Access, Addresses, Arrival, Device, DeviceConfig, Fault, Handle, Key, Kind, Memory, Mtu,
    Operation, PACKET_MAX, Piece, Placement, ProtectionDomain, Psn, QpConfig, Qpn, ReceiveRequest,
    Region, RtrAttributes, RtsAttributes, Secret, SendRequest, Source, Status, Time,
};
use testkit::cpu;

/// Bytes that a message writes.
const WRITE: u32 = 64;
/// Bytes of the message behind it, as of CDC.
const SEND: usize = 44;
/// Messages under way on a link.
const DEPTH: u64 = 4;
/// Bytes of each link in a device's memory: the ring, then what is received.
const LINK_BYTES: u64 = 4096;
const RECEIVED_AT: u64 = 2048;

#[derive(Parser)]
#[command(about = "What messages cost a host whose work is spread over completion vectors")]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// CPU time of a message, and messages per second
    Messages {
        /// Completion vectors of each host
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
        vectors: u16,
        /// Threads that drive them, each on a CPU of its own
        #[arg(long, default_value_t = 1)]
        threads: u16,
        /// Links, spread by the policy
        #[arg(long, default_value_t = 64)]
        links: u32,
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
    },
    /// CPU time that a packet of long WRITEs costs either side, without what carries it
    Packets {
        /// Payload of a packet: 256, 512, 1024, 2048 or 4096 bytes
        #[arg(long, default_value_t = 1024)]
        payload: usize,
        #[arg(long, default_value_t = 1.0)]
        seconds: f64,
    },
    /// RDMA WRITEs by one queue pair of our own RoCEv2 over UDP, from a host to another
    Writes(cable::Cable),
    /// Datagrams of the same size by the same sockets, sent as fast as they go
    Blast(cable::Cable),
    /// How evenly peers that come and go lie on vectors, by the engine's policy
    Spread {
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
        vectors: u16,
        /// Link groups at a time, at least
        #[arg(long, default_value_t = 1000)]
        groups: usize,
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

/// The memory of one device.
struct Bytes(Vec<u8>);

impl Memory for Bytes {
    fn read(&self, _: Handle, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        let at = usize::try_from(offset).map_err(|_| Fault)?;
        to.copy_from_slice(self.0.get(at..at + to.len()).ok_or(Fault)?);
        Ok(())
    }
    fn read_summed(
        &self,
        handle: Handle,
        offset: u64,
        to: &mut [u8],
        register: u32,
    ) -> Result<Option<u32>, Fault> {
        let start = usize::try_from(offset).map_err(|_| Fault)?;
        let end = start.checked_add(to.len()).ok_or(Fault)?;
        match sys::crc::copy(register, self.0.get(start..end).ok_or(Fault)?, to) {
            None => self.read(handle, offset, to).map(|()| None),
            summed => Ok(summed),
        }
    }

    fn sum(&self, register: u32, bytes: &[u8]) -> Option<u32> {
        sys::crc::update(register, bytes)
    }

    fn write_summed(&mut self, _: Handle, offset: u64, from: &[u8], register: u32) -> Option<u32> {
        let at = usize::try_from(offset).ok()?;
        sys::crc::copy(register, from, self.0.get_mut(at..at.checked_add(from.len())?)?)
    }

    fn write(&mut self, _: Handle, offset: u64, from: &[u8]) -> Result<(), Fault> {
        let at = usize::try_from(offset).map_err(|_| Fault)?;
        self.0.get_mut(at..at + from.len()).ok_or(Fault)?.copy_from_slice(from);
        Ok(())
    }
}

/// One vector of a host.
struct Side {
    device: Device,
    memory: Bytes,
    key: Key,
}

/// A link as its sender sees it.
struct Link {
    qpn: Qpn,
    base: u64,
    rkey: u32,
    posted: u64,
    done: u64,
}

/// The same vector of both hosts, and the links between the two.
struct Vector {
    here: Side,
    there: Side,
    links: Vec<Link>,
    received: u64,
    buffer: Vec<u8>,
    came: Arrival,
}

fn side(vector: u16, links: u64, word: u64) -> anyhow::Result<Side> {
    let config = DeviceConfig { vector, ..DeviceConfig::default() };
    let mut device = Device::new(&config, Secret::new([word, !word]))?;
    let len = links.max(1) * LINK_BYTES;
    let memory = Bytes(vec![7; usize::try_from(len)?]);
    let region = Region {
        domain: ProtectionDomain(0),
        address: 0,
        len,
        access: Access::REMOTE_WRITE,
        handle: Handle(0),
    };
    let key = device.register(region)?;
    Ok(Side { device, memory, key })
}

impl Vector {
    fn new(number: u16, links: u64) -> anyhow::Result<Self> {
        let way = Addresses::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).context("families")?;
        let (mut here, mut there) = (side(number, links, 1)?, side(number, links, 2)?);
        let mut list = Vec::new();
        for nth in 0..links {
            let (a, b) = (
                here.device.create_qp(&QpConfig::default())?,
                there.device.create_qp(&QpConfig::default())?,
            );
            let psn = Psn::new(0xff_fff0);
            let both = [(&mut here.device, a, b, way), (&mut there.device, b, a, way.reversed())];
            for (device, qpn, peer, way) in both {
                device.init(qpn)?;
                device.ready_to_receive(qpn, &RtrAttributes::new(way, peer, psn, Mtu::B1024))?;
                device.ready_to_send(qpn, &RtsAttributes::shunt(psn))?;
            }
            let base = nth * LINK_BYTES;
            for _ in 0..16 {
                receive_next(&mut there, b, base)?;
            }
            list.push(Link { qpn: a, base, rkey: there.key.0, posted: 0, done: 0 });
        }
        let came =
            Arrival { addresses: way, src_port: 4791, marked: false, identification: Some(0) };
        let buffer = vec![0; PACKET_MAX * 2];
        Ok(Self { here, there, links: list, received: 0, buffer, came })
    }

    /// Has each link send what may be under way, and carries it to its end.
    fn turn(&mut self, now: Time) -> anyhow::Result<()> {
        for link in &mut self.links {
            while link.posted - link.done < DEPTH {
                let at = link.base + link.posted * u64::from(WRITE) % RECEIVED_AT;
                let write = SendRequest {
                    id: 0,
                    operation: Operation::Write { address: at, rkey: link.rkey },
                    source: Source::Pieces(&[Piece {
                        key: self.here.key,
                        address: at,
                        len: WRITE,
                    }]),
                    immediate: None,
                    signaled: false,
                    solicited: false,
                };
                let told = SendRequest {
                    id: link.base,
                    operation: Operation::Send,
                    source: Source::Inline(&[0xfe; SEND]),
                    immediate: None,
                    signaled: true,
                    solicited: true,
                };
                self.here.device.post_send(link.qpn, &write)?;
                self.here.device.post_send(link.qpn, &told)?;
                link.posted += 1;
            }
        }
        carry(now, &mut self.here, &mut self.there, &mut self.buffer, self.came)?;
        let cq = self.there.device.cqs().next().context("a queue")?;
        while let Some(done) = self.there.device.poll_cq(cq)? {
            ensure!(done.status == Status::Success && done.kind == Kind::Receive, "{done:?}");
            self.received += 1;
            receive_next(&mut self.there, done.qpn, done.id)?;
        }
        let back = Arrival { addresses: self.came.addresses.reversed(), ..self.came };
        carry(now, &mut self.there, &mut self.here, &mut self.buffer, back)?;
        let cq = self.here.device.cqs().next().context("a queue")?;
        while let Some(done) = self.here.device.poll_cq(cq)? {
            ensure!(done.status == Status::Success && done.kind == Kind::Send, "{done:?}");
            let nth = usize::try_from(done.id / LINK_BYTES)?;
            self.links[nth].done += 1;
        }
        Ok(())
    }
}

fn receive_next(side: &mut Side, qpn: Qpn, base: u64) -> anyhow::Result<()> {
    let address = base + RECEIVED_AT;
    let pieces = [Piece { key: side.key, address, len: 64 }];
    Ok(side.device.post_receive(qpn, &ReceiveRequest { id: base, pieces: &pieces })?)
}

/// All packets of one side to the other.
fn carry(
    now: Time,
    from: &mut Side,
    to: &mut Side,
    buffer: &mut [u8],
    came: Arrival,
) -> anyhow::Result<()> {
    while let Some(sent) = from.device.transmit(now, &from.memory, buffer, 1) {
        let came = Arrival { src_port: sent.flow.src_port, ..came };
        to.device.receive(now, &mut to.memory, &came, &buffer[..sent.len])?;
    }
    Ok(())
}

/// What a thread has done.
struct Driven {
    messages: u64,
    cpu: Duration,
    /// By the clock.
    took: Duration,
}

fn drive(mut mine: Vec<Vector>, seconds: f64, start: &Barrier) -> anyhow::Result<Driven> {
    let begin = Instant::now();
    let now = || Time::from_nanos(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(0));
    for vector in &mut mine {
        vector.turn(now())?;
    }
    start.wait();
    let (before, first) = (cpu::of_this_thread(), total(&mine));
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < seconds {
        // The clock is read once for many messages, as by a loop that has work.
        let now = now();
        for _ in 0..8 {
            for vector in &mut mine {
                vector.turn(now)?;
            }
        }
    }
    let cpu = cpu::of_this_thread().saturating_sub(before);
    Ok(Driven { messages: total(&mine) - first, cpu, took: began.elapsed() })
}

fn total(vectors: &[Vector]) -> u64 {
    vectors.iter().map(|v| v.received).sum()
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn messages(vectors: u16, threads: u16, links: u32, seconds: f64) -> anyhow::Result<()> {
    let mut placement = Placement::new(vectors, 0..vectors)?;
    let mut counts = vec![0; usize::from(vectors)];
    for _ in 0..links {
        counts[usize::from(placement.place())] += 1;
    }
    let mut shares: Vec<Vec<Vector>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, count) in (0..vectors).zip(counts) {
        shares[usize::from(number % threads)].push(Vector::new(number, count)?);
    }
    let start = Barrier::new(usize::from(threads));
    let results: Vec<anyhow::Result<Driven>> = thread::scope(|scope| {
        let workers: Vec<_> = shares
            .into_iter()
            .enumerate()
            .map(|(at, mine)| {
                let start = &start;
                scope.spawn(move || {
                    cpu::pin(at)?;
                    drive(mine, seconds, start)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|w| w.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))))
            .collect()
    });
    let (mut all, mut rate, mut wall_rate, mut time) = (0, 0.0, 0.0, Duration::ZERO);
    for result in results {
        let Driven { messages, cpu, took } = result?;
        all += messages;
        time += cpu;
        // By the thread's own time: what it would do with a CPU to itself.
        rate += messages as f64 / cpu.as_secs_f64();
        wall_rate += messages as f64 / took.as_secs_f64();
    }
    let each = time.as_nanos() as f64 / all as f64;
    println!("messages={all} ns_per_message={each:.1} rate={rate:.0} wall_rate={wall_rate:.0}");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().what {
        What::Messages { vectors, threads, links, seconds } => {
            ensure!((1..=vectors).contains(&threads), "threads: 1 to the number of vectors");
            messages(vectors, threads, links, seconds)
        }
        What::Packets { payload, seconds } => packets::run(payload, seconds),
        What::Writes(cable) => cable::writes(&cable),
        What::Blast(cable) => cable::blast(&cable),
        What::Spread { vectors, groups, seed } => spread::run(vectors, groups, seed),
    }
}
