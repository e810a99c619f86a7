//! Puts fragments together as they come in on an interface.
//!
//! There are two ways in. **`AF_PACKET`** ([`Source::Packet`]) shows copies of frames, and the kernel's own
//! stack sees them as before: for looking on. **`AF_XDP`** ([`Source::Xdp`]) takes fragments away from the
//! kernel, and only fragments, so that what is put together can be handed back whole, through a TUN or TAP
//! device: then it takes only those to addresses of this host (`gate`).
//!
//! Each core has a worker, each worker a ring and a [`frag::Shard`], and one [`frag::Ledger`] limits the
//! memory of all. **All fragments of a datagram must reach one worker.** With `AF_PACKET` a program in the
//! kernel sees to that (`PACKET_FANOUT_CBPF`): it hashes addresses and identification, which each fragment
//! has. The kernel's own `PACKET_FANOUT_HASH` would not do, since it hashes ports, which only first fragments
//! have, and its answer to that, `PACKET_FANOUT_FLAG_DEFRAG`, is to put them together before we see them.
//! With the choice made before a frame is copied into a ring, workers share nothing: no queue between them,
//! no descriptor that is handed over, no cache line but the ledger's. With `AF_XDP` the card has chosen
//! already, by receive queue, and may have hashed ports. So a worker hands over what belongs to another
//! (`exchange`): the description of a fragment goes by a lane, its frame stays where it is. Where the card
//! hashes fragments by address alone, or is told to (`ethtool -N eth0 rx-flow-hash udp4 sd`), all fragments
//! of a datagram come in on one core, though perhaps not the one that the keyed hash chooses.
//!
//! **At the end** nothing is let in any more first: with `AF_PACKET` each ring refuses, with `AF_XDP` the gate is closed, and
//! fragments are the kernel's again. Then workers go on until their rings are empty, and what they hand over is taken over:
//! so each frame that was counted has become something that is counted. Only where there is enough (`--count`) rings are not
//! read any more, and what is in them is counted as that.
//!
//! Nothing that comes after may hold up a ring: a datagram for the file goes through a queue of limited
//! length to a thread of its own, and is dropped and counted when that is full; a device is written to
//! without waiting.

mod exchange;
mod gate;
mod output;
mod pool;
mod redirect;
mod reverse;
mod steer;
mod tally;
mod worker;

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use frag::{BadConfig, Config, HashKey, Ledger, Limits, Shard};
use sys::bpf::{self, SocketMap};
use sys::call::{self, Failure};
use sys::interface::Interface;
use sys::packet::{self, Ring};
use sys::tap::{Shape, Tap};
use sys::xdp::{self, Socket};

use super::{Link, secret, secrets};
use crate::metrics::{self, Server};
use exchange::{End, Exchange};
use gate::Gate;
use output::{Output, Recorded, Recorder, Target};
use pool::Pool;
use worker::Worker;

pub(crate) use steer::fragments_to_us;

pub use output::Counts;
pub use reverse::Filtered;
pub use tally::{Rates, Tally};

const ETHERNET: u16 = 1;
const LOOPBACK: u16 = 772;
/// Kinds whose frames are bare IP packets: PPP, tunnels, TUN.
const BARE: [u16; 4] = [512, 768, 776, 65_534];
/// Headers of a link that may come before an IP packet of `mtu` bytes.
const LINK_BYTES: u32 = 64;
const FRAME_BYTES: u32 = 2048;
const BLOCK_BYTES: u32 = 1 << 20;
/// How long a fragment may wait in a block that does not fill.
const PATIENCE_MS: u32 = 4;
/// Before each frame in its chunk.
const XDP_HEADROOM: u32 = 256;
/// Two tags at most, and Ethernet's header.
const XDP_LINK_BYTES: u32 = 22;
/// What a ring has at least and at most, if nobody says otherwise.
const RING_BYTES_MIN: u64 = 16 << 20;
const RING_BYTES_MAX: u64 = 256 << 20;
const XDP_RING_MIN: u32 = 1024;
const XDP_RING_MAX: u32 = 1 << 16;
const CHUNKS: [u32; 2] = [2048, 4096];
/// The longest packet, behind the header of a link.
const TAP_MTU: u32 = 65_521;
const TUN_MTU: u32 = 65_535;
const LOOK: Duration = Duration::from_millis(20);
/// How often to see whether the interface is still there.
const SEEK: Duration = Duration::from_secs(1);

/// How packets come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Copies of them, by `AF_PACKET`.
    #[default]
    Packet,
    /// They themselves, by `AF_XDP`.
    Xdp,
}

/// What people choose.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The interface that fragments come in on.
    pub interface: String,
    /// How.
    pub source: Source,
    /// Limits and rules of reassembly, for all workers together.
    pub config: Config,
    /// How many workers; `None`: one for each CPU that we may use (`Packet`), for each receive queue
    /// (`Xdp`).
    pub workers: Option<u32>,
    /// Memory of each worker's ring, bytes. `None`: so much that what waits need not be copied out of it.
    pub ring_bytes: Option<u64>,
    /// Whether frames that are for others count, too.
    pub promiscuous: bool,
    /// The capture to write.
    pub write: Option<PathBuf>,
    /// The device to write to.
    pub to: Option<String>,
    /// How many datagrams are enough.
    pub count: Option<u64>,
    /// How much time is enough.
    pub lasts: Option<Duration>,
    /// How often to tell.
    pub every: Option<Duration>,
    /// Where to answer `GET /metrics`.
    pub metrics: Option<SocketAddr>,
    /// Frames are counted and nothing else.
    pub count_only: bool,
}

/// Why nothing comes in, or comes out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such interface.
    #[error("there is no interface {0}; there are: {list}", list = .1.join(", "))]
    NoInterface(String, Vec<String>),
    /// It is down.
    #[error("{0} is down: set it up first (ip link set {0} up)")]
    Down(String),
    /// It was there, and is not any more, though another may have its name.
    #[error("the interface {0} has gone")]
    Gone(String),
    /// Somebody has taken the program of AF_XDP off it.
    #[error(
        "somebody has taken the program off {0} that takes fragments out of the kernel's way: they are the kernel's again"
    )]
    TakenOff(String),
    /// Its frames are of a kind that we do not know.
    #[error("{0} has frames of kind {1} (ARPHRD), which have no known place for IP packets")]
    Kind(String, u16),
    /// The kernel does not let us.
    #[error(
        "{failure}: needs {needs}; run it as root, or give that to a copy of it which nobody else may run (setcap(8))"
    )]
    Denied {
        /// What was tried.
        failure: Failure,
        /// Capabilities.
        needs: &'static str,
    },
    /// AF_XDP cannot be had.
    #[error("AF_XDP cannot be used on {interface}: {why}; without --xdp it works by AF_PACKET")]
    NoXdp {
        /// The interface.
        interface: String,
        /// What is missing.
        why: String,
    },
    /// The device to write to cannot be had.
    #[error("cannot write to the device {0}: {1}{hint}", hint = hint_of(.1))]
    Device(String, Failure),
    /// The address for metrics cannot be had.
    #[error("cannot serve metrics on {0}, choose another port")]
    Metrics(SocketAddr, #[source] std::io::Error),
    /// The file cannot be made.
    #[error("cannot write {path}", path = .0.display())]
    Create(PathBuf, #[source] std::io::Error),
    /// Cannot be written any more.
    #[error(transparent)]
    Write(#[from] super::Error),
    /// Another call failed.
    #[error("{0}")]
    System(Failure),
    /// No thread.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// A setting that cannot be.
    #[error(transparent)]
    Config(#[from] BadConfig),
    /// No secret for hashing.
    #[error("no random bytes from /dev/urandom")]
    Random(#[source] std::io::Error),
}

fn hint_of(failure: &Failure) -> &'static str {
    match failure.errno {
        errno::EBUSY => " (another program has it open)",
        errno::EPERM | errno::EACCES => " (needs CAP_NET_ADMIN)",
        errno::EINVAL => " (an interface of that name is neither TUN nor TAP)",
        errno::ENOENT | errno::ENODEV => " (the kernel has no TUN: modprobe tun)",
        _ => "",
    }
}

/// The errors of the system that we tell apart.
mod errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const ENODEV: i32 = 19;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ENOSYS: i32 = 38;
    pub(super) const EAFNOSUPPORT: i32 = 97;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const ENOBUFS: i32 = 105;
}

/// What happened, in all.
#[derive(Debug)]
pub struct Report {
    /// Sums over all workers.
    pub tally: Tally,
    /// How long it took.
    pub took: Duration,
    /// Workers that there were.
    pub workers: usize,
    /// Why it ended before it was to end. What had come until then was put together and written all the same,
    /// unless it is this that failed.
    pub cut_short: Option<Error>,
}

/// Told while it runs.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// Frames come in from now on.
    Ready {
        /// With so many workers.
        workers: usize,
        /// How, for people.
        how: &'a str,
        /// Where metrics are.
        metrics: Option<SocketAddr>,
    },
    /// The host drops what is written to the device. Told before the first frame.
    Filtered(&'a Filtered),
    /// The interface lets longer packets in than it did at the start: those that are too long are dropped.
    Outgrown {
        /// The interface.
        interface: &'a str,
        /// Its MTU now.
        mtu: u32,
        /// The longest packet that there is room for.
        fits: u32,
    },
    /// It has more receive queues than are served, by `AF_XDP`: told at the start, and when they have become more.
    Unserved {
        /// The interface.
        interface: &'a str,
        /// Its receive queues.
        queues: u32,
        /// The first so many of them are served.
        served: u32,
    },
    /// The interface was set down, or up again: nothing comes in meanwhile.
    Up {
        /// The interface.
        interface: &'a str,
        /// Whether it is up now.
        is_up: bool,
    },
    /// What there was since the last time.
    Rates(Rates<'a>),
}

/// Takes the address, before anything else is touched.
fn bind_metrics(address: SocketAddr) -> Result<TcpListener, Error> {
    metrics::bind(address).map_err(|e| Error::Metrics(address, e))
}

/// Puts fragments of an interface together until `stop`, or until there was enough.
///
/// # Errors
///
/// What is missing at the start; what happens later is in the report. Nothing is left behind: a program in the
/// kernel goes with its descriptor.
pub fn run(
    options: &Options,
    stop: &Arc<AtomicBool>,
    news: &mut dyn FnMut(News<'_>),
) -> Result<Report, Error> {
    let interface = find(&options.interface)?;
    let listener = options.metrics.map(bind_metrics).transpose()?;
    let device = options.to.as_deref().map(open_device).transpose()?;
    let filtered = device.as_ref().and_then(|device| reverse::look(&device.interface));
    let done = Arc::new(AtomicBool::new(false));
    // However this ends, the workers end, too.
    let _alarm = Alarm(Arc::clone(&done));
    let mut file = None;
    if let Some(path) = options.write.as_deref() {
        file = Recorder::start(path, Alarm(Arc::clone(&done)), stop)?;
        if file.is_none() {
            let (tally, took) = (Tally::default(), Duration::ZERO);
            return Ok(Report { tally, took, workers: 0, cut_short: None });
        }
    }
    let (recorder, queue) = file.unzip();
    let target = Target::new(device, options.count.unwrap_or(u64::MAX));
    let crew = Crew { options, interface: &interface, target: &target, done: &done };
    let mut outputs = || Output::new(&target, queue.clone());
    let team = match options.source {
        Source::Packet => crew.packets(&mut outputs)?,
        Source::Xdp => crew.chunks(&mut outputs)?,
    };
    drop(queue);
    filtered.iter().for_each(|filtered| news(News::Filtered(filtered)));
    let mut report = team.watch(options, stop, &crew, listener, news)?;
    if let Some(Recorded { result, missing }) = recorder.map(Recorder::finish) {
        report.tally.output.miss(missing, options.to.is_some());
        report.cut_short = report.cut_short.or_else(|| result.err());
    }
    Ok(report)
}

fn find(name: &str) -> Result<Interface, Error> {
    let interface = Interface::find(name).map_err(Error::System)?;
    let Some(interface) = interface else {
        return Err(Error::NoInterface(name.to_owned(), Interface::names()));
    };
    if interface.up { Ok(interface) } else { Err(Error::Down(interface.name)) }
}

fn link_of(interface: &Interface) -> Result<Link, Error> {
    match interface.kind {
        ETHERNET | LOOPBACK => Ok(Link::Ethernet),
        kind if BARE.contains(&kind) => Ok(Link::Raw),
        kind => Err(Error::Kind(interface.name.clone(), kind)),
    }
}

fn open_device(name: &str) -> Result<Tap, Error> {
    let failed = |failure| Error::Device(name.to_owned(), failure);
    let device = Tap::open(name).map_err(failed)?;
    if device.made {
        let mtu = if device.shape == Shape::Frame { TAP_MTU } else { TUN_MTU };
        device.interface.set_up(mtu).map_err(failed)?;
    } else if !device.interface.up {
        // It would take nothing, and what comes in by AF_XDP would be nobody's.
        return Err(Error::Down(device.interface.name));
    }
    Ok(device)
}

/// What workers are made from.
struct Crew<'a> {
    options: &'a Options,
    interface: &'a Interface,
    target: &'a Arc<Target>,
    /// Set when workers are to end.
    done: &'a Arc<AtomicBool>,
}

/// Workers at work.
struct Team {
    threads: Vec<JoinHandle<Tally>>,
    told: Vec<Arc<Mutex<Tally>>>,
    how: String,
    /// The longest packet that there is room for.
    fits: u32,
    gate: Option<Gate>,
    /// Receive queues that are served; `None`: whatever there are.
    served: Option<u32>,
}

impl Crew<'_> {
    fn limits(&self, shards: u32) -> Result<Limits, Error> {
        Ok(Config { shards, ..self.options.config.clone() }.limits()?)
    }

    /// A worker without a thread.
    fn worker<B>(
        &self,
        limits: &Limits,
        ledger: &Arc<Ledger>,
        output: Output,
    ) -> Result<Worker<B>, Error> {
        let secret = HashKey::new(secret().map_err(Error::Random)?);
        let shard = Shard::new(limits, ledger, secret);
        let mut worker = Worker::new(shard, output, self.done, self.target);
        worker.link = link_of(self.interface)?;
        worker.count_only = self.options.count_only;
        Ok(worker)
    }

    fn packets(&self, outputs: &mut dyn FnMut() -> Output) -> Result<Team, Error> {
        let cpus = call::cpus();
        let count = self.options.workers.unwrap_or_else(|| narrow(cpus.len())).max(1);
        let limits = self.limits(count)?;
        let ledger = Ledger::of(&limits);
        let rings = self.rings(count)?;
        let frame_bytes = (self.interface.mtu + LINK_BYTES).next_multiple_of(FRAME_BYTES);
        // What a worker may hold at most is all; what it is given before it is refused, a burst more.
        let most = narrow(self.options.config.memory_bytes / u64::from(frame_bytes)) + 64;
        let kept = self.blocks(count) as usize / 2;
        let part = narrow(self.options.config.memory_bytes / u64::from(count)) as usize;
        let mut team = Team::new("AF_PACKET", frame_bytes);
        for (ring, cpu) in rings.into_iter().zip(cpus.into_iter().cycle()) {
            let mut worker = self.worker(&limits, &ledger, outputs())?;
            worker.cpu = Some(cpu);
            let pool = Pool::new(frame_bytes as usize, most, part, kept).map_err(Error::System)?;
            let told = Arc::clone(&worker.told);
            team.start(told, self.done, move || worker::packets(worker, ring, pool))?;
        }
        Ok(team)
    }

    /// Memory of each worker's ring: what is asked for, else its part of what may wait.
    fn ring_bytes(&self, workers: u32) -> u64 {
        let part = self.options.config.memory_bytes / u64::from(workers);
        self.options.ring_bytes.unwrap_or_else(|| part.clamp(RING_BYTES_MIN, RING_BYTES_MAX))
    }

    /// Blocks of a packet ring. Half of them may be kept for what waits.
    fn blocks(&self, workers: u32) -> u32 {
        let most = u64::from(u32::MAX / BLOCK_BYTES);
        let bytes = match self.options.ring_bytes {
            Some(bytes) => bytes,
            None => 2 * self.ring_bytes(workers),
        };
        narrow((bytes / u64::from(BLOCK_BYTES)).clamp(4, most))
    }

    /// A ring for each worker. Nothing is let in before all are there: or a frame might reach two.
    fn rings(&self, count: u32) -> Result<Vec<Ring>, Error> {
        let (blocks, block_bytes) = (self.blocks(count), BLOCK_BYTES);
        let shape = packet::Shape { blocks, block_bytes, patience_ms: PATIENCE_MS };
        let denied = |failure: Failure| match failure.errno {
            errno::EPERM | errno::EACCES => Error::Denied { failure, needs: "CAP_NET_RAW" },
            _ => Error::System(failure),
        };
        let open = || Ring::open(self.interface.index, shape).map_err(denied);
        let rings = (0..count).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
        if let [first, others @ ..] = &rings[..]
            && !others.is_empty()
        {
            let program = steer::spread(&secrets().map_err(Error::Random)?);
            let group = first.found_group(&program).map_err(Error::System)?;
            others.iter().try_for_each(|ring| ring.join_group(group)).map_err(Error::System)?;
        }
        if self.options.promiscuous {
            rings[0].promiscuous(self.interface.index).map_err(Error::System)?;
        }
        let filter = steer::fragments(link_of(self.interface)?, self.options.promiscuous);
        rings.iter().try_for_each(|ring| ring.admit(&filter)).map_err(Error::System)?;
        Ok(rings)
    }

    fn chunks(&self, outputs: &mut dyn FnMut() -> Output) -> Result<Team, Error> {
        if link_of(self.interface)? != Link::Ethernet {
            return Err(self.no_xdp("its frames are not Ethernet".into()));
        }
        let chunk_bytes = self.chunk_bytes()?;
        let queues = self.options.workers.unwrap_or_else(|| queues(self.interface)).max(1);
        let limits = self.limits(queues)?;
        let ledger = Ledger::of(&limits);
        let memory = self.options.config.memory_bytes / u64::from(chunk_bytes);
        // Half of what the rings may have is with the kernel, to be filled, and half was filled.
        let ring = narrow(self.ring_bytes(queues) / u64::from(2 * chunk_bytes));
        let ring = 1 << ring.clamp(XDP_RING_MIN, XDP_RING_MAX).ilog2();
        // All that may wait, both rings full, and all lanes: so there is always something for the kernel to fill.
        let room = exchange::room(ring, queues);
        let chunks = narrow(memory).saturating_add(2 * ring).saturating_add(room);
        let shape = xdp::Shape { chunks, chunk_bytes, ring };
        let map = SocketMap::new(queues).map_err(|failure| self.xdp_failed(failure))?;
        let open = |queue| {
            let socket = Socket::open(self.interface.index, queue, shape);
            let socket = socket.map_err(|failure| self.xdp_failed(failure))?;
            map.set(queue, &socket).map_err(|failure| self.xdp_failed(failure))?;
            Ok(socket)
        };
        let mut sockets = (0..queues).map(open).collect::<Result<Vec<_>, Error>>()?;
        Socket::family(&mut sockets);
        let secret = HashKey::new(secret().map_err(Error::Random)?);
        let end = End::new();
        let numbers: Vec<u32> = sockets.iter().map(Socket::number).collect();
        let exchanges = Exchange::among(&numbers, room, secret, &end).map_err(Error::System)?;
        // What nobody hands back is taken because somebody wants to see it: all of it.
        let own_only = self.options.to.is_some();
        let gate = Gate::before(map, self.interface, own_only, end);
        let gate = gate.map_err(|failure| self.xdp_failed(failure))?;
        let how = match gate.link.mode {
            bpf::Mode::Native => "AF_XDP in the driver",
            bpf::Mode::Generic => "AF_XDP behind the driver",
        };
        let mut team = Team::new(how, chunk_bytes - XDP_HEADROOM - XDP_LINK_BYTES);
        let posts = sockets.into_iter().zip(exchanges);
        for ((socket, exchange), cpu) in posts.zip(call::cpus().into_iter().cycle()) {
            let mut worker = self.worker(&limits, &ledger, outputs())?;
            worker.cpu = Some(cpu);
            let told = Arc::clone(&worker.told);
            team.start(told, self.done, move || {
                worker::chunks(worker, socket, exchange, chunk_bytes)
            })?;
        }
        team.gate = Some(gate);
        team.served = Some(queues);
        Ok(team)
    }

    fn chunk_bytes(&self) -> Result<u32, Error> {
        let frame = self.interface.mtu + XDP_LINK_BYTES;
        let fits = |chunk: &&u32| frame <= **chunk - XDP_HEADROOM;
        CHUNKS.iter().find(fits).copied().ok_or_else(|| {
            self.no_xdp(format!(
                "its MTU is {}, and a frame may have {} bytes",
                self.interface.mtu,
                CHUNKS[1] - XDP_HEADROOM
            ))
        })
    }

    fn no_xdp(&self, why: String) -> Error {
        Error::NoXdp { interface: self.interface.name.clone(), why }
    }

    fn xdp_failed(&self, failure: Failure) -> Error {
        let why = match failure.errno {
            errno::EPERM | errno::EACCES => {
                let needs = "CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON";
                return Error::Denied { failure, needs };
            }
            errno::ENOSYS => format!("{failure} (CONFIG_BPF_SYSCALL is not set)"),
            errno::EAFNOSUPPORT => format!("{failure} (CONFIG_XDP_SOCKETS is not set)"),
            errno::EBUSY => format!("{failure} (another program has the interface or its queue)"),
            errno::EOPNOTSUPP => format!("{failure} (the driver cannot)"),
            errno::ENOBUFS => format!("{failure} (memory may not be locked: ulimit -l)"),
            errno::EINVAL if failure.step.contains("queue") => {
                format!("{failure} (it has fewer receive queues than workers)")
            }
            errno::EINVAL if failure.step.contains("attach") => {
                format!("{failure} (needs Linux 5.9 or later)")
            }
            _ => failure.to_string(),
        };
        self.no_xdp(why)
    }
}

/// Receive queues of an interface; 1 if that cannot be seen.
fn queues(interface: &Interface) -> u32 {
    interface.receive_queues().unwrap_or_else(|| queues_in_files(&interface.name).max(1))
}

/// The same, as the kernel shows them: those that have a driver which does not tell, and which are of the network namespace
/// that /sys is of.
fn queues_in_files(interface: &str) -> u32 {
    let there = std::fs::read_dir(format!("/sys/class/net/{interface}/queues"));
    let queues = there.into_iter().flatten().flatten();
    narrow(queues.filter(|queue| queue.file_name().to_string_lossy().starts_with("rx-")).count())
}

/// A number that is small, or as large as there is.
fn narrow(n: impl TryInto<u32>) -> u32 {
    n.try_into().unwrap_or(u32::MAX)
}

/// Sets a word when it goes, so that a thread that panics takes the others with it.
struct Alarm(Arc<AtomicBool>);

impl Drop for Alarm {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Team {
    fn new(how: &str, fits: u32) -> Self {
        Self {
            threads: Vec::new(),
            told: Vec::new(),
            how: how.to_owned(),
            fits,
            gate: None,
            served: None,
        }
    }

    fn start(
        &mut self,
        told: Arc<Mutex<Tally>>,
        done: &Arc<AtomicBool>,
        work: impl FnOnce() -> Tally + Send + 'static,
    ) -> Result<(), Error> {
        let alarm = Alarm(Arc::clone(done));
        let name = format!("defrag-{}", self.threads.len());
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let _alarm = alarm;
            work()
        });
        self.threads.push(thread.map_err(Error::Thread)?);
        self.told.push(told);
        Ok(())
    }

    /// Looks at the interface that fragments come in on, and at the device to write to. Why it cannot go on.
    fn seek(
        &mut self,
        crew: &Crew<'_>,
        seen: &mut Seen,
        news: &mut dyn FnMut(News<'_>),
    ) -> Result<(), Error> {
        // By its number: it may have another name by now, and another its name.
        match Interface::with_index(crew.interface.index) {
            Ok(Some(found)) => {
                self.gate.iter_mut().for_each(|gate| gate.follow(found.address));
                if found.mtu > seen.mtu {
                    seen.mtu = found.mtu;
                    let (interface, mtu) = (&found.name[..], found.mtu);
                    news(News::Outgrown { interface, mtu, fits: self.fits });
                }
                if found.up != seen.is_up {
                    seen.is_up = found.up;
                    news(News::Up { interface: &found.name, is_up: found.up });
                }
                self.look_at_queues(&found, seen, news);
                self.look_at_gate(crew)?;
            }
            Ok(None) => return Err(Error::Gone(crew.options.interface.clone())),
            // It may be on its way out: a second later more is known.
            Err(_) => {}
        }
        let device = crew.target.look();
        let was_down = seen.is_down;
        seen.is_down = matches!(device, Err(Error::Down(_)));
        // Whoever sets something may have it down for a moment.
        if seen.is_down && !was_down { Ok(()) } else { device }
    }

    /// Looks whether the program in the kernel is there still: nothing would come in without it.
    fn look_at_gate(&self, crew: &Crew<'_>) -> Result<(), Error> {
        if self.gate.as_ref().is_none_or(Gate::is_there) {
            return Ok(());
        }
        let interface = crew.options.interface.clone();
        // It goes with the interface as well, which is not to be found any more by then.
        match Interface::with_index(crew.interface.index) {
            Ok(None) => Err(Error::Gone(interface)),
            _ => Err(Error::TakenOff(interface)),
        }
    }

    /// Looks whether there are queues that nobody serves. That a queue is there which is served already is nothing to tell.
    fn look_at_queues(&self, found: &Interface, seen: &mut Seen, news: &mut dyn FnMut(News<'_>)) {
        let Some(served) = self.served else { return };
        let there = queues(found);
        if there > served && there != seen.queues {
            news(News::Unserved { interface: &found.name, queues: there, served });
        }
        seen.queues = there;
    }

    /// Tells what happens until the end, and what there was.
    fn watch(
        mut self,
        options: &Options,
        stop: &AtomicBool,
        crew: &Crew<'_>,
        listener: Option<TcpListener>,
        news: &mut dyn FnMut(News<'_>),
    ) -> Result<Report, Error> {
        let (target, done) = (crew.target, crew.done);
        let workers = self.threads.len();
        let told = self.told.clone();
        let serve = |at| Server::start(at, Arc::clone(done), move || sum(&told).prometheus());
        let server = listener.map(serve).transpose().map_err(Error::Thread)?;
        let metrics = server.as_ref().map(|server| server.address);
        news(News::Ready { workers, how: &self.how, metrics });
        let began = Instant::now();
        let mut looked = (began, sum(&self.told));
        let (mut sought, mut cut_short) = (began, None);
        let mut seen = Seen { mtu: self.fits, is_up: true, queues: 0, is_down: false };
        self.look_at_queues(crew.interface, &mut seen, news);
        let is_over = |now: Instant| {
            stop.load(Ordering::Relaxed)
                || done.load(Ordering::Relaxed)
                || target.is_done()
                || options.lasts.is_some_and(|lasts| now >= began + lasts)
        };
        loop {
            std::thread::sleep(LOOK);
            let now = Instant::now();
            if is_over(now) {
                break;
            }
            if now >= sought + SEEK {
                sought = now;
                cut_short = self.seek(crew, &mut seen, news).err();
                if cut_short.is_some() {
                    break;
                }
            }
            if options.every.is_some_and(|every| now >= looked.0 + every) {
                let tally = sum(&self.told);
                let passed = now - looked.0;
                news(News::Rates(Rates { now: &tally, then: &looked.1, passed }));
                looked = (now, tally);
            }
        }
        // First, or there might always be more, and what comes when nobody reads any more would be nobody's.
        self.gate.iter().for_each(Gate::close);
        done.store(true, Ordering::Relaxed);
        let mut tally = Tally::default();
        for thread in self.threads {
            tally.add(&thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        let took = began.elapsed();
        if let Some(server) = server {
            server.finish();
        }
        Ok(Report { tally, took, workers, cut_short })
    }
}

/// What was seen of interfaces the last time.
struct Seen {
    /// Of that which fragments come in on: the longest packet that it has let in.
    mtu: u32,
    /// It was up.
    is_up: bool,
    /// Its receive queues, if that matters.
    queues: u32,
    /// The device to write to was down.
    is_down: bool,
}

fn sum(told: &[Arc<Mutex<Tally>>]) -> Tally {
    let mut all = Tally::default();
    for one in told {
        if let Ok(one) = one.lock() {
            all.add(&one);
        }
    }
    all
}
