//! Connections between hosts: SMC-R, as the kernel speaks it, over our own RoCEv2.
//!
//! Guests hand over TCP connections whose peers have announced SMC ([`Engine::adopt`]). A connection is
//! given to one **completion vector**, a thread with a loop, and stays there: its handshake, its link
//! group, its queue pair and its bytes are touched by that thread only. Which vector a packet comes to is
//! decided by the kernel, from the number of the queue pair that it is for.
//!
//! `vector` is the loop; `exchange` the handshake, `group` the link groups, `pump` a connection's bytes,
//! `plain` those of one whose peer would not; `devices` what queue pairs there are: in `device` RoCEv2 and
//! its sockets, in `verbs` those of a card; `shelf` the memory that they read and write. What is said when
//! is decided in [`smc`] and [`roce`]. `habit` learns where SMC does not pay, so that connections to there stay
//! on TCP. `opening` is what the door says to peers for a vector, `shares` how
//! many handshakes a host may have, `setup` adds up what set-ups wait for. `yields` is when a vector looks for more
//! rather than sleep. `declining` tells peers that were promised SMC that there is no room for it. `meeting` is
//! how engines find out which connections they share where the TCP handshake cannot say it (`ask`: what a handshake
//! waits for then). `ingress` puts packets together that come in fragments; `lease` is what vectors share of an
//! address. `control` answers people. `host` puts it all together: `boards` are what guests of each user share with it, `reception` the thread at a board's door, `users`
//! whose boards there are, and `steward` has them served.

mod ask;
pub mod bare;
mod berths;
mod boards;
pub mod config;
pub mod control;
mod declining;
mod device;
mod devices;
mod drain;
mod exchange;
mod group;
pub mod guest;
mod habit;
pub mod host;
mod inbox;
mod ingress;
mod lease;
mod meeting;
mod opening;
pub mod option;
pub mod peers;
mod plain;
mod port;
mod pump;
mod reception;
mod running;
mod setup;
mod shares;
mod shelf;
mod slab;
pub mod stat;
mod steward;
pub mod users;
mod vector;
pub mod vectors;
mod verbs;
pub mod why;
mod wire;
mod yields;

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use smc::{Mac, SystemId};
use sys::call::{self, Failure};
use sys::interface;

use config::{BadSetting, Config};
use control::Answers;

use guest::{Role, Sleeper};
use habit::Habits;
use inbox::Inbox;
use ingress::Tap;
use lease::Lease;
use meeting::Meeting;
use opening::Openings;
use stat::{Stat, UserStat, VectorStat};
use vector::{Arrival, Order, Parts, Vector};
use vectors::VECTORS_MAX;
use verbs::Card;

pub use berths::{Berth, Berths};
pub use habit::Change;
pub use meeting::Ends;
pub use vector::Newcomer;
pub use verbs::OpenError;

/// For how long connections to a host go by TCP without asking, nanoseconds: to one whose engine is being looked
/// for, and to one that has none.
const LOOKING_NS: u64 = 200_000_000;
const STRANGER_NS: u64 = 64_000_000_000;
/// How long vectors may take to say what they have counted: a test wants to be told, however busy the machine is.
const TELLING: Duration = Duration::from_secs(if cfg!(test) { 30 } else { 1 });

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A RoCEv2 stack has the port already.
    #[error("cannot speak RoCEv2 from {0}: {words}", words = port_words(.1))]
    Port(IpAddr, Failure),
    /// There are too many.
    #[error(
        "RoCEv2 is spoken from {ADDRESSES_MAX} addresses, and not from {0}: connections from there stay on TCP"
    )]
    Addresses(IpAddr),
    /// Copies of fragments cannot be had.
    #[error(
        "cannot take fragments from the interface of {0}: {1}; it needs CAP_NET_RAW, or raw_ingress=off"
    )]
    Ingress(IpAddr, Failure),
    /// The RDMA device that was asked for.
    #[error("{0}")]
    Device(#[from] OpenError),
    /// The RDMA device does not have this address.
    #[error("the RDMA device {1} has no RoCEv2 address {0}")]
    NoAddress(IpAddr, String),
    /// The system refuses something.
    #[error("{0}")]
    System(#[from] Failure),
    /// The port at which other engines are met.
    #[error("cannot meet other engines at TCP port 4791: {0}")]
    Meeting(io::Error),
    /// Settings that do not go with the number of vectors that there are.
    #[error("{0}")]
    Setting(#[from] BadSetting),
    /// There is none that may be used.
    #[error("{0}")]
    Vectors(#[from] roce::BadVectors),
    /// A file or a thread.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// What is wrong with a port, and what to do about it.
fn port_words(failure: &Failure) -> String {
    match failure.errno {
        EADDRNOTAVAIL => "this host has no such address".to_owned(),
        EADDRINUSE => format!(
            "{failure}; is rdma_rxe of the kernel loaded (rmmod rdma_rxe), or another engine running?"
        ),
        _ => failure.to_string(),
    }
}

const EADDRINUSE: i32 = 98;
const EADDRNOTAVAIL: i32 = 99;

/// Of how many addresses of this host is found out at the start whether somebody speaks from them.
const TRIED_OUT_MAX: usize = 64;

/// A vector from outside.
#[derive(Debug)]
struct Handle {
    inbox: Arc<Inbox<Order>>,
    told: Arc<Mutex<VectorStat>>,
    openings: Arc<Openings>,
    thread: Option<JoinHandle<()>>,
}

/// Where RoCEv2 is spoken from.
#[derive(Debug, Default)]
struct Places {
    /// Addresses that RoCEv2 is spoken from, each as long as a vector has its lease; `None`: a card's.
    ports: HashMap<IpAddr, Option<Weak<Lease>>>,
    /// When they were last looked at, nanoseconds.
    looked_at: u64,
    /// What has gone wrong last.
    problem: Option<String>,
    /// Connections for which there was no memory: those whose peers were told, and those that were reset.
    no_memory: [u64; 2],
}

/// Addresses that RoCEv2 is spoken from at most, but for those of the settings: each has a socket with each vector.
const ADDRESSES_MAX: usize = 256;
/// After how long those that there are are looked at again, nanoseconds.
const ADDRESSES_NS: u64 = 60_000_000_000;
/// The same when there is one more.
const STRANGE_ADDRESSES_NS: u64 = 1_000_000_000;

impl Places {
    fn has(&self, address: IpAddr) -> bool {
        self.ports.get(&address).is_some_and(|lease| is_there(lease.as_ref()))
    }

    /// How many there are, but for those whose sockets are being closed.
    fn count(&self) -> usize {
        let lasts = |lease: &Weak<Lease>| lease.upgrade().is_some_and(|lease| !lease.is_over());
        self.ports.values().filter(|lease| lease.as_ref().is_none_or(lasts)).count()
    }
}

/// Whether a vector still speaks from an address.
fn is_there(lease: Option<&Weak<Lease>>) -> bool {
    lease.is_none_or(|lease| lease.strong_count() > 0)
}

/// What is known of destinations, by all vectors.
struct Learned {
    habits: Mutex<Habits>,
    /// Tells guests; called by one thread at a time.
    notice: Box<dyn Fn(Change) + Send + Sync>,
}

impl std::fmt::Debug for Learned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Learned").finish_non_exhaustive()
    }
}

impl Learned {
    fn begins(&self, to: SocketAddrV6, now: u64) {
        let mut habits = held(&self.habits);
        if let Some(change) = habits.begins(to, now) {
            (self.notice)(change);
        }
    }

    /// What connections have added to the scores of their destinations.
    fn learn(&self, lessons: &mut Vec<(SocketAddrV6, i32)>, now: u64) {
        let mut habits = held(&self.habits);
        for (to, gain) in lessons.drain(..) {
            if let Some(change) = habits.learns(to, gain, now) {
                (self.notice)(change);
            }
        }
    }

    /// Connections to there stay on TCP for so many nanoseconds.
    fn spare(&self, to: SocketAddrV6, wait: u64, now: u64) {
        let mut habits = held(&self.habits);
        if let Some(change) = habits.spare(to, wait, now) {
            (self.notice)(change);
        }
    }

    /// Whether guests hand over what comes from a host.
    fn mark(&self, host: IpAddr, on: bool) {
        let host = match host {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let mut habits = held(&self.habits);
        if let Some(change) = habits.mark(host, on) {
            (self.notice)(change);
        }
    }

    fn forget(&self) {
        let mut habits = held(&self.habits);
        habits.forget().into_iter().for_each(|change| (self.notice)(change));
    }
}

#[derive(Debug)]
struct Shared {
    vectors: Vec<Handle>,
    learned: Arc<Learned>,
    config: Mutex<Arc<Config>>,
    places: Mutex<Places>,
    berths: Arc<Berths>,
    card: Option<Card>,
    meeting: Option<Meeting>,
    users: OnceLock<ListUsers>,
    /// No new connections are taken, and who is to know when that changes.
    drains: AtomicBool,
    drained: OnceLock<Drained>,
}

/// Hears that no new connections are to be taken, or again.
struct Drained(Box<dyn Fn(bool) -> Result<(), String> + Send + Sync>);

impl std::fmt::Debug for Drained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Drained")
    }
}

/// Tells whose programs are served.
struct ListUsers(Box<dyn Fn() -> Vec<UserStat> + Send + Sync>);

impl std::fmt::Debug for ListUsers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ListUsers")
    }
}

/// The host's RDMA side.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    control: Option<crate::control::Control>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is right after each statement.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Starts the vectors of `config`, one a CPU if it does not say. `sleeper`: how guests know that a
    /// vector sleeps, for each in turn. `notice`: how they hear to which destinations connections stay on
    /// TCP, and from which hosts listeners hand over connections; it must not wait. `listens`: whether a guest
    /// listens on a port.
    ///
    /// # Errors
    ///
    /// See [`Error`]. Nothing is left running.
    pub fn start(
        config: Config,
        mut sleeper: impl FnMut(u32) -> Box<dyn Sleeper>,
        notice: impl Fn(Change) + Send + Sync + 'static,
        listens: impl Fn(u16) -> bool + Send + 'static,
    ) -> Result<Self, Error> {
        let cpus = call::cpus();
        let count = config.vectors.unwrap_or_else(|| u32::try_from(cpus.len()).unwrap_or(1));
        let count = count.clamp(1, VECTORS_MAX);
        // From now on that is how many there are, for whoever asks and for settings that name some of them.
        let config = Config { vectors: Some(count), ..config }.checked()?;
        let card = config.device.as_ref().map(|name| Card::open(&config.device_library, name));
        let card = card.transpose()?;
        let berths = Berths::new(count, config.use_vectors)?;
        let config = Arc::new(config);
        let learned = Arc::new(Learned { habits: Mutex::default(), notice: Box::new(notice) });
        let host = host_name();
        let wishes = Arc::new(Inbox::new()?);
        let mut vectors = Vec::new();
        let inboxes = (0..count).map(|_| Inbox::new().map(Arc::new));
        let inboxes = inboxes.collect::<Result<Vec<_>, _>>()?;
        for (number, inbox) in (0..count).zip(&inboxes) {
            let (inbox, told) = (Arc::clone(inbox), Arc::<Mutex<VectorStat>>::default());
            let openings = Arc::<Openings>::default();
            let mac = local_mac();
            let [a, b, ..] = random_bytes();
            let vector = Vector::new(Parts {
                number,
                vector_bits: port::vector_bits(count),
                config: Arc::clone(&config),
                inbox: Arc::clone(&inbox),
                sleeper: sleeper(number),
                told: Arc::clone(&told),
                learned: Arc::clone(&learned),
                meeting: Arc::clone(&wishes),
                openings: Arc::clone(&openings),
                system: SystemId::new([a, b], mac),
                mac,
                host,
                secret: [u64::from_ne_bytes(random_bytes()), u64::from_ne_bytes(random_bytes())],
                cpu: cpus.get(number as usize % cpus.len().max(1)).copied(),
                card: card.clone(),
                all: inboxes.clone(),
            })?;
            let name = format!("shunt-vector-{number}");
            let thread = std::thread::Builder::new().name(name).spawn(move || vector.run())?;
            vectors.push(Handle { inbox, told, openings, thread: Some(thread) });
        }
        let addresses = config.addresses.clone();
        let marks = Arc::clone(&learned);
        let meeting = meeting::Parts {
            inbox: wishes,
            networks: config.peers.clone(),
            addresses: addresses.clone(),
            vectors: vectors.iter().map(|handle: &Handle| Arc::clone(&handle.inbox)).collect(),
            listens: Box::new(listens),
            mark: Box::new(move |host, on| marks.mark(host, on)),
        };
        let wanted = !config.peers.is_empty();
        let (config, places) = (Mutex::new(config), Mutex::default());
        let mut shared = Shared {
            vectors,
            learned,
            config,
            places,
            berths,
            card,
            meeting: None,
            users: OnceLock::new(),
            drains: AtomicBool::new(false),
            drained: OnceLock::new(),
        };
        let met = if wanted { Meeting::start(meeting).map(Some) } else { Ok(None) };
        let failed = met.map(|meeting| shared.meeting = meeting).err();
        let engine = Self { shared: Arc::new(shared), control: None };
        if let Some(e) = failed {
            return Err(Error::Meeting(e));
        }
        if addresses.is_empty() && engine.shared.card.is_none() {
            engine.shared.note_taken();
        }
        for address in addresses {
            engine.shared.speak_from(address)?;
        }
        Ok(engine)
    }

    /// From now on answers people at `path`.
    ///
    /// # Errors
    ///
    /// Why there can be no socket.
    pub fn answer_at(&mut self, path: &Path) -> io::Result<()> {
        self.control = Some(control::start(path, Arc::clone(&self.shared))?);
        Ok(())
    }

    /// Answers us as it does people.
    ///
    /// # Errors
    ///
    /// Why it does not do that, in words.
    pub fn answer(&self, request: control::Request) -> Result<serde_json::Value, String> {
        control::respond(request, &self.shared)
    }

    /// From now on tells people whose programs are served, as `users` has it. Only the first one counts.
    pub fn list_users(&self, users: impl Fn() -> Vec<UserStat> + Send + Sync + 'static) {
        let _ = self.shared.users.set(ListUsers(Box::new(users)));
    }

    /// From now on tells `drained` when no new connections are to be taken, and when they are again, which it may refuse in
    /// words. Only the first one counts.
    pub fn tell_drained(
        &self,
        drained: impl Fn(bool) -> Result<(), String> + Send + Sync + 'static,
    ) {
        let _ = self.shared.drained.set(Drained(Box::new(drained)));
    }

    /// The place of a connection to `remote`: with a vector that knows the peer, unless others have much less to do.
    #[must_use]
    pub fn berth(&self, remote: IpAddr) -> Berth {
        self.shared.berths.connection(remote)
    }

    /// Takes care of a connection from now on. If RoCEv2 cannot be spoken from its address, the handshake
    /// declines, and the connection goes on as TCP.
    pub fn adopt(&self, newcomer: Newcomer) {
        if self.config().addresses.is_empty() {
            // One answer tells of all but those of networks that are ours as a whole, and those that have gone.
            let all = OnceCell::new();
            let listed = || interface::addresses().unwrap_or_default().into_iter().collect();
            self.shared.tidy(newcomer.ends.0, |address| {
                let all: &HashSet<_> = all.get_or_init(listed);
                all.contains(&address) || interface::is_own(address) != Some(false)
            });
            if let Err(e) = self.shared.speak_from(newcomer.ends.0) {
                held(&self.shared.places).problem = Some(e.to_string());
            }
        }
        if let Some(to) = newcomer.to {
            self.shared.learned.begins(to, call::now_ns());
        }
        let vector = newcomer.berth.vector();
        let Some(handle) = self.shared.vectors.get(vector as usize) else { return };
        let may_begin = newcomer.role == Role::Client && newcomer.asks.is_none();
        let begin = || handle.openings.begin(newcomer.ends, &newcomer.tcp, call::now_ns());
        let begun = may_begin.then(begin).flatten();
        let arrival = Arrival { newcomer, begun, at: call::now_ns() };
        handle.inbox.put(Order::Newcomer(Box::new(arrival)));
    }

    /// Whether a connection between these addresses that has announced nothing may be shared with another
    /// engine. If not, `to`, where it leads to, is left to TCP for a while.
    #[must_use]
    pub fn knows(&self, addresses: (IpAddr, IpAddr), to: Option<SocketAddrV6>) -> bool {
        let Some(meeting) = &self.shared.meeting else { return false };
        if meeting.knows(addresses) {
            return true;
        }
        let wait = if meeting.may_know(addresses.1) { LOOKING_NS } else { STRANGER_NS };
        if let Some(to) = to {
            self.shared.learned.spare(to, wait, call::now_ns());
        }
        false
    }

    /// There was no memory for a connection, whose peer was told, or that was reset.
    fn note_no_memory(&self, told: bool) {
        held(&self.shared.places).no_memory[usize::from(!told)] += 1;
    }

    /// Has the vectors part from all peers and end, although others hold the engine still.
    fn ends(&self) {
        self.shared.vectors.iter().for_each(|handle| handle.inbox.put(Order::Stop));
    }

    /// The settings as they are.
    #[must_use]
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&held(&self.shared.config))
    }

    /// How many vectors there are.
    #[must_use]
    pub fn vectors(&self) -> u32 {
        u32::try_from(self.shared.vectors.len()).unwrap_or(u32::MAX)
    }

    /// What has been done.
    #[must_use]
    pub fn stat(&self) -> Stat {
        self.shared.stat()
    }

    /// Parts from all peers, tells them so, and ends. Connections that are there are reset.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.control = None;
        // First of all: nobody is promised what will not be.
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.meeting = None;
        }
        for handle in &self.shared.vectors {
            handle.inbox.put(Order::Stop);
        }
        // The control thread has gone, and with it the only other holder.
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            for thread in shared.vectors.iter_mut().filter_map(|handle| handle.thread.take()) {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    /// Has the vectors part from addresses that are not ours any more, before another one is spoken from, or after a while.
    /// One with links stays, and is asked about again the next time.
    fn tidy(&self, comes: IpAddr, is_own: impl Fn(IpAddr) -> bool) {
        let mut places = held(&self.places);
        let now = call::now_ns();
        let often = if places.has(comes) { ADDRESSES_NS } else { STRANGE_ADDRESSES_NS };
        if now.saturating_sub(places.looked_at) < often {
            return;
        }
        places.looked_at = now;
        places.ports.retain(|_, lease| is_there(lease.as_ref()));
        // What is tapped for fragments stays so.
        if held(&self.config).raw_ingress {
            return;
        }
        let leases =
            places.ports.iter().filter_map(|(address, lease)| Some((address, lease.as_ref()?)));
        let gone = leases.filter(|(address, _)| !is_own(**address));
        let ended = gone.filter(|(_, lease)| lease.upgrade().is_some_and(|lease| lease.end()));
        if ended.count() > 0 {
            self.vectors.iter().for_each(|handle| handle.inbox.put(Order::EndPorts));
        }
    }

    /// Opens the port of RoCEv2 at an address, unless that was done.
    fn speak_from(&self, address: IpAddr) -> Result<(), Error> {
        let mut places = held(&self.places);
        if places.has(address) {
            return Ok(());
        }
        if places.count() >= ADDRESSES_MAX && !held(&self.config).addresses.contains(&address) {
            return Err(Error::Addresses(address));
        }
        if let Some(card) = &self.card {
            if !card.has(address) {
                let name = held(&self.config).device.clone().unwrap_or_default();
                return Err(Error::NoAddress(address, name));
            }
            places.ports.insert(address, None);
            return Ok(());
        }
        let count = u32::try_from(self.vectors.len()).unwrap_or(1);
        let segments = held(&self.config).segments > 1;
        let sockets = port::open(address, count, segments).map_err(|e| Error::Port(address, e))?;
        let tap = held(&self.config).raw_ingress.then(|| Tap::open(address)).transpose();
        let tap = tap.map_err(|e| Error::Ingress(address, e))?;
        let lease = Arc::<Lease>::default();
        places.ports.insert(address, Some(Arc::downgrade(&lease)));
        for (handle, socket) in self.vectors.iter().zip(sockets) {
            handle.inbox.put(Order::Port(socket, Arc::clone(&lease)));
        }
        // Whose vector a fragment belongs to is known when it has been put together.
        if let (Some(tap), Some(first)) = (tap, self.vectors.first()) {
            first.inbox.put(Order::Tap(tap));
        }
        Ok(())
    }

    /// Who names no address hears with the first connection that another engine speaks from it, and says so now.
    fn note_taken(&self) {
        let is_to_others = |address: &IpAddr| match address {
            IpAddr::V4(v4) => !v4.is_loopback(),
            IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
        };
        let all = interface::addresses().unwrap_or_default();
        let some = all.into_iter().filter(is_to_others).take(TRIED_OUT_MAX);
        if let Some((address, failure)) = port::taken(some) {
            held(&self.places).problem = Some(Error::Port(address, failure).to_string());
        }
    }

    /// Destinations whose connections stay on TCP, as people write them.
    fn spared(&self) -> Vec<String> {
        let habits = held(&self.learned.habits);
        let plain = |to: SocketAddrV6| SocketAddr::new(to.ip().to_canonical(), to.port());
        let mut all: Vec<String> = habits.spared().map(|to| plain(to).to_string()).collect();
        all.sort();
        all
    }

    /// What was counted until now; of a vector that is too busy to say, until a moment ago.
    fn stat(&self) -> Stat {
        let (say, said) = mpsc::channel();
        for handle in &self.vectors {
            handle.inbox.put(Order::Tell(say.clone()));
        }
        drop(say);
        let until = Instant::now() + TELLING;
        for _ in &self.vectors {
            let left = until.saturating_duration_since(Instant::now());
            if said.recv_timeout(left).is_err() {
                break;
            }
        }
        let users = self.users.get().map(|ListUsers(list)| list()).unwrap_or_default();
        let places = held(&self.places);
        let there = places.ports.iter().filter(|(_, lease)| is_there(lease.as_ref()));
        let mut addresses: Vec<String> = there.map(|(address, _)| address.to_string()).collect();
        addresses.sort();
        let vectors: Vec<_> =
            self.vectors.iter().map(|handle| held(&handle.told).clone()).collect();
        let apart: BTreeSet<_> = vectors.iter().flat_map(|vector| &vector.apart).collect();
        let apart = apart.first().map(|address| {
            format!("the system does not send several packets as one from {address} (IPsec, or a card without checksums)")
        });
        Stat {
            pid: call::getpid(),
            addresses,
            problem: places.problem.clone().or(apart),
            no_memory_total: places.no_memory[0],
            no_memory_reset_total: places.no_memory[1],
            spared: self.spared(),
            met: self.meeting.iter().flat_map(Meeting::hosts).map(|ip| ip.to_string()).collect(),
            vectors,
            draining: self.drains.load(Ordering::Relaxed),
            guest_connections: users.iter().map(|user| user.connections).sum(),
            users,
        }
    }
}

impl Answers for Arc<Shared> {
    fn config(&self) -> Config {
        Config::clone(&held(&self.config))
    }

    fn configure(&self, config: Config) {
        let config = Arc::new(config);
        *held(&self.config) = Arc::clone(&config);
        self.berths.allow(config.use_vectors);
        if !config.spare_short {
            self.learned.forget();
        }
        for handle in &self.vectors {
            // Who comes from now on hears nothing of the old ones.
            let epoch = handle.openings.outdate();
            handle.inbox.put(Order::Configure(Arc::clone(&config), epoch));
        }
    }

    fn stat(&self) -> Stat {
        Shared::stat(self)
    }

    fn drain(&self, on: bool) -> Result<(), String> {
        self.drained.get().map_or(Ok(()), |Drained(tell)| tell(on))?;
        self.drains.store(on, Ordering::Relaxed);
        Ok(())
    }
}

/// Eight bytes that nobody can guess; zeros if the system has none, which [`Engine::start`] would have
/// found out.
fn random_bytes() -> [u8; 8] {
    let mut bytes = [0; 8];
    let _ = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    bytes
}

/// A number that nobody can guess.
fn random() -> u32 {
    let [a, b, c, d, ..] = random_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// A MAC address that is nobody's, for peers that only compare it: locally administered, unicast.
fn local_mac() -> Mac {
    let [a, b, c, d, e, ..] = random_bytes();
    Mac([0x02, a, b, c, d, e])
}

/// The host's name, cut and padded to what CLC has room for.
fn host_name() -> [u8; 32] {
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim_ascii();
    let mut host = [b' '; 32];
    for (to, from) in host.iter_mut().zip(name.iter().filter(|b| b.is_ascii_graphic())) {
        *to = *from;
    }
    host
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
