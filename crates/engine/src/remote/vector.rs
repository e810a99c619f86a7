//! A completion vector: one thread, one loop, and everything that it owns.
//!
//! A vector is an SMC stack of its own, with its own system id: link groups, queue pairs, regions and
//! connections belong to one vector and are never looked at by another, so nothing here is locked. A
//! connection is given to a vector when its guest comes, and stays.
//!
//! ```text
//! packets      -> device     -> completions -> link groups, connections
//! guests       -> memory     -> plans       -> device
//! TCP, inbox   -> epoll      -> handshakes, newcomers
//! deadlines    -> all of them
//! nothing to do? look for a while, tell guests that we sleep, look once more, sleep
//! ```

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use smc::{Limits, Mac, SystemId};
use sys::event::{self, Events, Interest, Poller};
use sys::udp::Socket;
use sys::{call, stamp};

use super::Learned;
use super::berths::Berth;
use super::config::Config;
use super::device::{Event, PortNumber, Purpose};
use super::devices::Device;
use super::exchange::{Courting, Exchange, ExchangeId};
use super::group::Groups;
use super::guest::{Relay, Role, Sleeper};
use super::habit;
use super::inbox::Inbox;
use super::ingress::{Ingress, Packet, Tap};
use super::lease::Lease;
use super::meeting::{Ends, Question, Why, Wish};
use super::opening::{Begun, Opened, Openings};
use super::running::Running;
use super::setup::{Wait, Waits};
use super::shares::Shares;
use super::shelf::{ConnId, Shelf};
use super::slab::{Id, Numbers, Slab};
use super::stat::VectorStat;
use super::verbs::Card;
use super::yields::Yields;

/// Rounds between two looks at descriptors while there is work.
const LOOK_ROUNDS: u32 = 16;
/// The same while connections are being set up, whose messages come by descriptors: for so long after one of them has
/// moved, nanoseconds. A peer that says nothing more must not make us look for as long as it likes.
const SETUP_ROUNDS: u32 = 2;
const SETUP_NS: u64 = 1_000_000;
/// Newcomers and messages of handshakes of one look, after which all others have their turn first.
const SETUPS_MANY: usize = 32;
/// What a step of a set-up takes of its guest, in times of what a message does.
const STEP_MESSAGES: u64 = 10;
/// Connections that are looked at in a round although nothing is known to have happened.
const COLD_LOOKS: usize = 32;
/// For how long a connection that has moved is looked at in each round, nanoseconds.
const WARM_NS: u64 = 1_000_000;
/// How often deadlines are looked at while there is work, nanoseconds.
const TICK_NS: u64 = 2_000_000;
/// How often others are told what was counted, nanoseconds.
const TELL_NS: u64 = 50_000_000;
/// How long a client waits for a server that says nothing. One of Shunt's answers when its program accepts the connection,
/// which a program may be slow to do: over TCP its clients would wait as well.
const ACCEPT_WAIT: std::time::Duration = std::time::Duration::from_secs(600);
/// How long the end waits for peers to hear of it, nanoseconds.
const PARTING_NS: u64 = 200_000_000;

/// A connection for which a guest asks for SMC.
#[derive(Debug)]
pub struct Newcomer {
    /// The guest's rings.
    pub relay: Box<dyn Relay>,
    /// The TCP connection to the peer, on which nothing has been sent.
    pub tcp: OwnedFd,
    /// Which end of it the guest is.
    pub role: Role,
    /// Addresses of the TCP connection, ours and the peer's; IPv4 as such.
    pub ends: (IpAddr, IpAddr),
    /// Where the guest has connected to, if it has: IPv4 mapped into IPv6. What becomes of the connection is
    /// remembered for it.
    pub to: Option<SocketAddrV6>,
    /// The two ends of the connection if nothing was said of SMC in the TCP handshake, so that the peer's
    /// engine is asked first.
    pub asks: Option<Ends>,
    /// Its place with a vector ([`super::Engine::berth`]).
    pub berth: Berth,
}

/// A connection on its way from the door to its vector.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) newcomer: Newcomer,
    /// Its handshake, if the door has begun it.
    pub(super) begun: Option<Begun>,
    /// Since when it waits: for the vector, or for the peer's answer.
    pub(super) at: u64,
}

/// What others ask of a vector.
#[derive(Debug)]
pub(super) enum Order {
    /// Speak RoCEv2 by this socket too.
    Port(Socket, Arc<Lease>),
    /// Close the sockets of addresses whose leases are over.
    EndPorts,
    /// Take fragments in that come there.
    Tap(Tap),
    /// A packet of ours that has come in fragments.
    Packet(Box<Packet>),
    /// Take care of a connection.
    Newcomer(Box<Arrival>),
    /// Go by these settings from now on, whose epoch this is ([`Openings`]).
    Configure(Arc<Config>, u64),
    /// The peer's engine asks whether a handshake waits: it begins now.
    Promise(ExchangeId, Question),
    /// The peer's engine has said whether a handshake may begin.
    Answer(ExchangeId, Result<(), Why>),
    /// The peer's engine has taken its question back.
    Withdrawn(ExchangeId),
    /// Say what was counted until now, and that it is said.
    Tell(Sender<()>),
    /// Part from all peers and end.
    Stop,
    /// The cable of an address is pulled.
    #[cfg(test)]
    Unplug(IpAddr),
    /// Whatever a test wants to have done.
    #[cfg(test)]
    Do(Act),
}

#[cfg(test)]
pub(super) struct Act(pub(super) Box<dyn FnOnce(&mut Vector) + Send>);

#[cfg(test)]
impl std::fmt::Debug for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Act")
    }
}

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watched {
    Inbox,
    Port(PortNumber),
    /// Fragments.
    Tap,
    /// What a guest rings by.
    Relay(ConnId),
    /// A handshake.
    Exchange(ExchangeId),
    /// The TCP connection of one whose handshake is over.
    Tcp(ConnId),
}

const KIND_AT: u32 = 56;

impl Watched {
    fn token(self) -> u64 {
        let (kind, number) = match self {
            Self::Inbox => (0, 0),
            Self::Port(number) => (1, number),
            Self::Relay(id) => (2, id.number()),
            Self::Exchange(id) => (3, id.number()),
            Self::Tcp(id) => (4, id.number()),
            Self::Tap => (5, 0),
        };
        kind << KIND_AT | number
    }

    fn of(token: u64) -> Self {
        let number = token & ((1 << KIND_AT) - 1);
        match token >> KIND_AT {
            0 => Self::Inbox,
            1 => Self::Port(number),
            2 => Self::Relay(Id::from_number(number)),
            3 => Self::Exchange(Id::from_number(number)),
            4 => Self::Tcp(Id::from_number(number)),
            _ => Self::Tap,
        }
    }
}

/// What a vector is made of.
pub(super) struct Parts {
    pub(super) number: u32,
    pub(super) vector_bits: u8,
    pub(super) config: Arc<Config>,
    pub(super) inbox: Arc<Inbox<Order>>,
    pub(super) sleeper: Box<dyn Sleeper>,
    pub(super) told: Arc<Mutex<VectorStat>>,
    pub(super) learned: Arc<Learned>,
    /// Where it is asked what other engines know.
    pub(super) meeting: Arc<Inbox<Wish>>,
    /// What the door may say for it.
    pub(super) openings: Arc<Openings>,
    /// Tells it from every other SMC stack in the network.
    pub(super) system: SystemId,
    pub(super) mac: Mac,
    pub(super) host: [u8; 32],
    pub(super) secret: [u64; 2],
    pub(super) cpu: Option<u32>,
    /// The device to use, instead of our own RoCEv2.
    pub(super) card: Option<Card>,
    /// All vectors, in their order.
    pub(super) all: Vec<Arc<Inbox<Order>>>,
}

/// See the module.
pub(super) struct Vector {
    pub(super) config: Arc<Config>,
    pub(super) system: SystemId,
    pub(super) mac: Mac,
    pub(super) host: [u8; 32],
    inbox: Arc<Inbox<Order>>,
    sleeper: Box<dyn Sleeper>,
    told: Arc<Mutex<VectorStat>>,
    learned: Arc<Learned>,
    pub(super) meeting: Arc<Inbox<Wish>>,
    pub(super) opened: Opened,
    /// What connections have added to the scores of their destinations, and that is not learned yet.
    lessons: Vec<(SocketAddrV6, i32)>,
    cpu: Option<u32>,
    pub(super) poller: Poller,
    events: Events,
    yields: Yields,
    pub(super) device: Device,
    ingress: Ingress,
    pub(super) shelf: Shelf,
    /// Of each connection of a guest.
    pub(super) berths: Numbers<ConnId, Berth>,
    pub(super) groups: Groups,
    pub(super) exchanges: Slab<Exchange>,
    /// Whose they are.
    pub(super) shares: Shares,
    /// Peers with which first contact is being made.
    pub(super) courting: HashMap<IpAddr, Courting>,
    /// Connections that have a place in a link group and are not there yet.
    pub(super) handshaking: Numbers<ConnId, ExchangeId>,
    pub(super) running: Numbers<ConnId, Running>,
    /// All of `running`, in any order, and where the next look begins.
    all: Vec<ConnId>,
    cursor: usize,
    /// Those that have moved of late.
    warm: Vec<ConnId>,
    /// When that was, by the place of the connection; 0: it is not among them.
    warm_at: Vec<u64>,
    pub(super) stat: VectorStat,
    /// What handshakes have waited for, and those whose words by a link have not left yet.
    pub(super) waits: Waits,
    pub(super) unsent: Vec<ExchangeId>,
    /// When a handshake has last moved, and how many there were to serve at the last look.
    pub(super) setup_at: u64,
    setups: usize,
    /// How often handshakes have gone on.
    pub(super) setup_steps: u64,
    /// When descriptors were last looked at, and when packets were taken in: what is found at the next look had
    /// not come by then.
    pub(super) looked_at: u64,
    pub(super) took_at: u64,
    next_tick: u64,
    next_tell: u64,
    /// Something may have been counted since.
    untold: bool,
    /// When to end although peers have not answered.
    stop_at: Option<u64>,
}

impl Vector {
    pub(super) fn new(parts: Parts) -> Result<Self, call::Failure> {
        let poller = Poller::new()?;
        poller.add(&*parts.inbox, Interest::READ, Watched::Inbox.token())?;
        let vector = u16::try_from(parts.number).unwrap_or(0);
        let segments = parts.config.segments;
        let mut device = match &parts.card {
            Some(card) => Device::verbs(card, parts.number)?,
            None => Device::soft(vector, parts.vector_bits, segments, parts.secret),
        };
        device.watch(&poller, Watched::Port(0).token())?;
        Ok(Self {
            config: parts.config,
            system: parts.system,
            mac: parts.mac,
            host: parts.host,
            inbox: parts.inbox,
            sleeper: parts.sleeper,
            told: parts.told,
            learned: parts.learned,
            meeting: parts.meeting,
            opened: Opened::new(parts.openings),
            lessons: Vec::new(),
            cpu: parts.cpu,
            poller,
            events: Events::new(256),
            yields: Yields::default(),
            device,
            ingress: Ingress::new(parts.all, parts.secret.map(|word| !word)),
            shelf: Shelf::default(),
            berths: Numbers::default(),
            groups: Groups::default(),
            exchanges: Slab::default(),
            shares: Shares::default(),
            courting: HashMap::new(),
            handshaking: Numbers::default(),
            running: Numbers::default(),
            all: Vec::new(),
            cursor: 0,
            warm: Vec::new(),
            warm_at: Vec::new(),
            stat: VectorStat { vector: parts.number, ..VectorStat::default() },
            waits: Waits::default(),
            unsent: Vec::new(),
            setup_at: 0,
            setups: 0,
            setup_steps: 0,
            looked_at: 0,
            took_at: 0,
            next_tick: 0,
            next_tell: 0,
            untold: true,
            stop_at: None,
        })
    }

    /// Works until it is told to stop.
    pub(super) fn run(mut self) {
        if let Some(cpu) = self.cpu {
            // Not being pinned costs speed and nothing else.
            let _ = call::pin(cpu);
        }
        if self.config.stamps {
            self.waits.look_closely();
        }
        let (mut busy_at, mut rounds) = (call::now_ns(), 0u32);
        while !self.is_done() {
            let now = call::now_ns();
            let mut busy = false;
            rounds += 1;
            if rounds >= rounds_to_look(now.saturating_sub(self.setup_at), self.setups) {
                rounds = 0;
                busy |= self.hear(now, Some(0));
            }
            busy |= self.round(now);
            self.yields.judge(self.done(), now);
            if busy {
                (busy_at, self.untold) = (now, true);
                continue;
            }
            if now.saturating_sub(busy_at) < nanos(self.config.poll) && self.yields.pay() {
                // Whoever else wants this CPU may be whom we wait for.
                if self.yields.make(self.done()) {
                    // Descriptors may tell of something as well by now.
                    rounds = LOOK_ROUNDS;
                }
                continue;
            }
            self.sleep(now);
            busy_at = call::now_ns();
        }
        for id in self.shelf.rings.ids() {
            self.close(id, true);
        }
        self.tell(call::now_ns());
    }

    /// What handshakes and link groups go by.
    pub(super) fn limits(&self) -> Limits {
        let config = smc::Config {
            test_link_idle: self.config.testlink_time.unwrap_or_default(),
            max_conns: self.config.max_conns,
            max_links: self.config.max_links,
            autocork: self.config.autocork,
            accept_wait: ACCEPT_WAIT,
            ..smc::Config::default()
        };
        // What people may set is checked when they set it.
        config.limits().unwrap_or_default()
    }

    fn is_done(&self) -> bool {
        let over = self.running.is_empty() && self.groups.is_empty() && !self.device.has_queued();
        self.stop_at.is_some_and(|at| over || at <= call::now_ns())
    }

    /// What guests and peers have had from this vector, and it from them, in messages.
    const fn done(&self) -> u64 {
        self.stat.cdc_tx + self.stat.cdc_rx + self.setup_steps * STEP_MESSAGES
    }

    /// Looks at everything once. Whether there was anything.
    fn round(&mut self, now: u64) -> bool {
        self.stat.rounds += 1;
        let mut busy = self.take_in(now);
        let now = self.took_at;
        busy |= self.look(now);
        if self.next_tick <= now {
            self.next_tick = now + TICK_NS;
            self.tick(now);
        }
        busy |= self.send_off(now);
        if self.next_tell <= now {
            self.tell(now);
        }
        busy
    }

    /// Takes in what packets have brought. Whether there was anything.
    fn take_in(&mut self, now: u64) -> bool {
        let mut busy = self.device.receive(time(now), &mut self.shelf);
        let mut now = now;
        if let Some(came) = self.device.take_came() {
            // What packets bring has been here since then, whether or not this vector had a CPU.
            (self.took_at, now) = (stamp::since_boot(came), call::now_ns());
        }
        while let Some(event) = self.device.poll(&self.shelf) {
            busy = true;
            self.on_event(&event, now);
        }
        self.took_at = now;
        busy
    }

    /// Sends what is ready. Whether anything was.
    fn send_off(&mut self, now: u64) -> bool {
        let any = self.device.transmit(time(now), &self.shelf);
        if !self.unsent.is_empty() {
            self.all_sent();
        }
        any
    }

    fn on_event(&mut self, event: &Event, now: u64) {
        match *event {
            Event::Sent(_, Purpose::Llc) => {}
            Event::Sent(qpn, Purpose::Cdc(number)) => {
                let id = ConnId::from_number(number);
                self.completed(id, qpn);
                self.warm_up(id, now);
            }
            Event::Came(qpn) => self.on_message(qpn, now),
            Event::Failed(qpn, status) => self.on_link_failed(qpn, status, now),
        }
    }

    /// Looks at connections: at those that moved of late, and at some of the others.
    fn look(&mut self, now: u64) -> bool {
        let mut busy = false;
        let mut warm = std::mem::take(&mut self.warm);
        warm.retain(|id| {
            let moved = self.step(*id, now);
            busy |= moved;
            let Some(at) = self.warm_at.get_mut(id.place()) else { return false };
            if moved {
                *at = now;
            }
            let stays = now.saturating_sub(*at) < WARM_NS && self.running.contains_key(id);
            if !stays {
                *at = 0;
            }
            stays
        });
        // What was warmed up meanwhile is behind the others.
        warm.append(&mut self.warm);
        self.warm = warm;
        for _ in 0..COLD_LOOKS.min(self.all.len()) {
            self.cursor = (self.cursor + 1) % self.all.len().max(1);
            let Some(id) = self.all.get(self.cursor).copied() else { break };
            if self.step(id, now) {
                busy = true;
                self.warm_up(id, now);
            }
        }
        busy
    }

    pub(super) fn warm_up(&mut self, id: ConnId, now: u64) {
        if self.warm_at.len() <= id.place() {
            self.warm_at.resize(id.place() + 1, 0);
        }
        if std::mem::replace(&mut self.warm_at[id.place()], now.max(1)) == 0 {
            self.warm.push(id);
        }
        if let Some(running) = self.running.get_mut(&id) {
            running.unsettle();
        }
    }

    /// A connection's handshake is over: its TCP connection is waited for in another way.
    pub(super) fn add_running(&mut self, id: ConnId, running: Running, interest: Interest) {
        let watched = Watched::Tcp(id).token();
        // What cannot be waited for is looked at anyway.
        let _ = self.poller.change(running.tcp(), interest, watched);
        self.running.insert(id, running);
        self.all.push(id);
        self.warm_up(id, call::now_ns());
    }

    /// A connection is over.
    pub(super) fn remove_running(&mut self, id: ConnId) -> Option<Running> {
        let running = self.running.remove(&id)?;
        // One that went by SMC is told of at edges only, and closed by us now: should a child of the guest's
        // hold it still, its end is an event that names nobody.
        if !running.is_smc() {
            self.poller.remove(running.tcp());
        }
        if let Some(at) = self.all.iter().position(|other| *other == id) {
            self.all.swap_remove(at);
        }
        Some(running)
    }

    /// A guest is told how its connection has ended.
    pub(super) fn close(&mut self, id: ConnId, reset: bool) {
        self.berths.remove(&id);
        if let Some(relay) = self.shelf.rings.remove(id) {
            relay.close(reset);
        }
    }

    /// Tells guests that they must ring, looks once more, and sleeps.
    fn sleep(&mut self, now: u64) {
        self.sleeper.fall_asleep();
        self.device.arm();
        // Whoever wants something from now on rings.
        self.attend_waiting(now);
        let mut busy = self.round(now);
        busy |= self.look_at_all(now);
        busy |= self.device.has_queued() && !self.device.is_stopped(time(now));
        if busy {
            self.untold = true;
            self.sleeper.awake();
            return;
        }
        self.watch_ports();
        let due = self.next_due();
        // What was counted is told after a while, not each time.
        let wake = due.into_iter().chain(self.untold.then_some(self.next_tell)).min();
        self.stat.sleeps += 1;
        self.waits.look();
        let most = wake.map(|at| at.saturating_sub(call::now_ns()));
        self.poller.wait(&mut self.events, most);
        let now = call::now_ns();
        self.waits.woke(now);
        self.sleeper.awake();
        self.untold |= !self.events.is_empty() || due.is_some_and(|at| at <= now);
        // What has ended the wait has come just now.
        (self.looked_at, self.took_at) = (now, now);
        self.handle_events(now);
        self.next_tick = now;
        // One bell was for all of them.
        self.look_at_all(now);
    }

    /// Looks at each connection. Whether any has moved.
    fn look_at_all(&mut self, now: u64) -> bool {
        let (mut busy, mut at) = (false, 0);
        while let Some(id) = self.all.get(at).copied() {
            if self.step(id, now) {
                busy = true;
                self.warm_up(id, now);
            }
            // One that is over has given its place to another.
            at += usize::from(self.all.get(at) == Some(&id));
        }
        busy
    }

    /// Waits for room in the sockets in which there was none, and for nothing of a device that is gone.
    fn watch_ports(&mut self) {
        let poller = &self.poller;
        self.device.unwatch_gone(poller);
        self.device.rewatch(|socket, number, full| {
            let interest = Interest { write: full, ..Interest::READ };
            let _ = poller.change(socket, interest, Watched::Port(number).token());
        });
    }

    /// Looks at descriptors, for at most so many nanoseconds. Whether packets have brought anything.
    pub(super) fn hear(&mut self, now: u64, most_ns: Option<u64>) -> bool {
        self.waits.look();
        self.poller.wait(&mut self.events, most_ns);
        let busy = self.handle_events(now);
        self.looked_at = now;
        busy
    }

    /// Whether packets have brought anything.
    fn handle_events(&mut self, now: u64) -> bool {
        self.setups = 0;
        let told: Vec<_> = self.events.iter().collect();
        // Who is being set up has a network to wait for after this; what is sent now comes back earlier.
        let (first, others): (Vec<_>, Vec<_>) = told.into_iter().partition(|event| {
            matches!(Watched::of(event.token), Watched::Inbox | Watched::Exchange(_))
        });
        first.iter().for_each(|event| self.handle(event, now));
        let mut is_port = false;
        for event in &others {
            if let Watched::Port(number) = Watched::of(event.token) {
                is_port = true;
                self.device.has_some(number);
            }
        }
        let busy = is_port && self.take_in(now);
        if !self.unsent.is_empty() {
            self.send_off(now);
        }
        others.iter().for_each(|event| self.handle(event, now));
        busy
    }

    fn handle(&mut self, event: &event::Event, now: u64) {
        match Watched::of(event.token) {
            Watched::Inbox => self.take_orders(now),
            Watched::Port(_) => {}
            Watched::Tap => {
                for packet in self.ingress.receive(self.stat.vector, now) {
                    self.device.take(time(now), &mut self.shelf, &packet);
                }
            }
            Watched::Relay(id) => {
                if let Some(relay) = self.shelf.rings.get_mut(id) {
                    relay.heard(event.broken, event.peer_shut);
                    self.warm_up(id, now);
                }
            }
            Watched::Exchange(id) => {
                self.setups += 1;
                self.on_wire(id, event.broken, now);
            }
            Watched::Tcp(id) => {
                if let Some(running) = self.running.get_mut(&id) {
                    running.on_tcp(event, now);
                    self.warm_up(id, now);
                }
            }
        }
    }

    fn take_orders(&mut self, now: u64) {
        for order in self.inbox.take() {
            match order {
                Order::Port(socket, lease) => {
                    // A socket that cannot be waited for would be looked at only while there are links.
                    let watched = Watched::Port(self.device.next_port());
                    let added = self.poller.add(&socket, Interest::READ, watched.token());
                    if added.is_ok() {
                        if self.config.stamps {
                            // Without, times are less exact.
                            let _ = socket.stamp();
                        }
                        self.device.add_port(socket, lease);
                    }
                }
                Order::EndPorts => self.device.end_ports(),
                Order::Tap(tap) => {
                    if self.poller.add(&tap, Interest::READ, Watched::Tap.token()).is_ok() {
                        self.ingress.add(tap);
                    }
                }
                Order::Packet(packet) => self.device.take(time(now), &mut self.shelf, &packet),
                Order::Newcomer(arrival) => self.welcome(*arrival, now),
                Order::Configure(config, epoch) => {
                    self.config = config;
                    self.opened.update(epoch);
                }
                Order::Tell(said) => {
                    self.tell(now);
                    // Who asked may have given up.
                    let _ = said.send(());
                }
                Order::Promise(id, question) => self.on_question(id, question, now),
                Order::Answer(id, answer) => self.on_answer(id, answer, now),
                Order::Withdrawn(id) => self.on_withdrawn(id, now),
                #[cfg(test)]
                Order::Unplug(address) => self.device.unplug(address),
                #[cfg(test)]
                Order::Do(act) => (act.0)(self),
                Order::Stop => {
                    self.stop_at = Some(now + PARTING_NS);
                    self.part(now);
                }
            }
        }
    }

    /// A guest asks for SMC.
    fn welcome(&mut self, arrival: Arrival, now: u64) {
        let Arrival { newcomer, begun, at } = arrival;
        let Newcomer { relay, tcp, role, ends, to, asks, berth } = newcomer;
        self.setup_at = now;
        self.setups += 1;
        let bell = relay.fd();
        let id = self.shelf.rings.insert(relay);
        self.berths.insert(id, berth);
        let interest = Interest { read: true, write: true, peer_shut: true, once: true };
        let _ = self.poller.add(&bell, interest, Watched::Relay(id).token());
        let mut exchange = Exchange::new(id, tcp, ends, to, at);
        match &begun {
            Some(_) => self.shares.add(ends.1),
            None => exchange.counts = self.shares.take(ends.1, self.config.handshakes_max),
        }
        let exchange = self.exchanges.insert(exchange);
        match &begun {
            Some(_) => self.opened.take_over(),
            None => self.resume(exchange, Wait::Door, 0),
        }
        if let Some(there) = self.exchanges.get_mut(exchange) {
            if self.config.stamps {
                there.wire.stamp();
            }
            let watched = Watched::Exchange(exchange).token();
            let _ = self.poller.add(&there.wire, there.watched, watched);
        }
        if self.shares.all() > self.config.handshakes_max as usize / 2 {
            // Whether there are too many only we know.
            self.opened.close_all();
        }
        match (begun, asks) {
            (Some(begun), _) => self.go_on(exchange, begun, now),
            (None, Some(asks)) => self.ask(exchange, role, asks, now),
            (None, None) => self.begin(exchange, role, now),
        }
    }

    /// Waits for what a handshake needs now on its TCP connection.
    pub(super) fn watch_wire(&mut self, id: ExchangeId) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let interest = exchange.interest();
        if std::mem::replace(&mut exchange.watched, interest) != interest {
            let _ = self.poller.change(&exchange.wire, interest, Watched::Exchange(id).token());
        }
    }

    /// Waits for other things on the TCP connection of one that goes by TCP.
    pub(super) fn watch_tcp(&self, id: ConnId, tcp: &impl AsRawFd, interest: Interest) {
        let _ = self.poller.change(tcp, interest, Watched::Tcp(id).token());
    }

    /// Time has passed.
    fn tick(&mut self, now: u64) {
        self.attend_waiting(now);
        self.court_no_longer(now);
        for id in self.exchanges.ids() {
            let due = self.exchanges.get(id).and_then(|e| e.machine.next_deadline());
            if due.is_some_and(|at| at.as_nanos() <= now) {
                if let Some(exchange) = self.exchanges.get_mut(id) {
                    exchange.machine.on_deadline(smc_time(now));
                }
                self.take_steps(id, now);
                self.ask_no_longer(id, now);
            }
        }
        self.tick_groups(now);
        self.ingress.expire(now);
    }

    /// When the next deadline is.
    fn next_due(&self) -> Option<u64> {
        let exchanges =
            self.exchanges.iter().filter_map(|(_, e)| Some(e.machine.next_deadline()?.as_nanos()));
        let closed = self.exchanges.iter().filter_map(|(_, e)| e.ends_at());
        let running = self.running.values().filter_map(Running::due);
        let device = self.device.next_deadline().map(roce::Time::nanos);
        let groups = self.groups.next_deadline().map(smc::Time::as_nanos);
        let courting = self.courting.values().filter_map(Courting::due);
        exchanges
            .chain(closed)
            .chain(running)
            .chain(device)
            .chain(groups)
            .chain(courting)
            .chain(self.stop_at)
            .min()
    }

    /// By what bytes go.
    pub(super) fn way(&self) -> habit::Way {
        if self.config.device.is_some() { habit::Way::Card } else { habit::Way::Datagrams }
    }

    /// A connection to `to` has added so much to the score of its destination.
    pub(super) fn learn(&mut self, to: Option<SocketAddrV6>, gain: i32) {
        if let Some(to) = to.filter(|_| self.config.spare_short) {
            self.lessons.push((to, gain));
        }
    }

    /// As [`Self::learn`], and whatever settings say: there is nobody to speak SMC to.
    pub(super) fn learn_of_nobody(&mut self, to: Option<SocketAddrV6>) {
        self.lessons.extend(to.map(|to| (to, habit::NOBODY)));
    }

    /// There is somebody, whatever was thought.
    pub(super) fn learn_of_somebody(&mut self, to: Option<SocketAddrV6>) {
        self.lessons.extend(to.map(|to| (to, habit::SOMEBODY)));
    }

    fn tell(&mut self, now: u64) {
        (self.next_tell, self.untold) = (now + TELL_NS, false);
        if !self.lessons.is_empty() {
            self.learned.learn(&mut self.lessons, now);
        }
        self.count();
        if let Ok(mut told) = self.told.lock() {
            told.clone_from(&self.stat);
        }
    }

    fn count(&mut self) {
        self.device.count(&mut self.stat);
        let all = self.waits.all();
        (self.stat.setup_wait_ns, self.stat.setup_network_ns) = (all.wait_ns, all.network_ns);
        self.stat.setup_waits = self.waits.each().map(|(kind, sum)| (kind.into(), sum)).collect();
        self.stat.fragments_rx = self.ingress.counts.fragments;
        self.stat.reassembled = self.ingress.counts.packets;
        self.stat.reassembled_dropped = self.ingress.counts.dropped;
        self.stat.handshakes = self.exchanges.len() as u64;
        self.stat.connections = self.running.values().filter(|r| r.is_smc()).count() as u64;
        self.stat.cpu_ns = call::thread_cpu_ns();
        self.stat.groups = self.group_stats();
    }
}

/// Rounds from one look at descriptors to the next, if a handshake has moved so many nanoseconds ago and the last look
/// has served so many.
const fn rounds_to_look(since_setup: u64, setups: usize) -> u32 {
    if since_setup < SETUP_NS && setups <= SETUPS_MANY { SETUP_ROUNDS } else { LOOK_ROUNDS }
}

/// As `roce` counts.
pub(super) const fn time(now: u64) -> roce::Time {
    roce::Time::from_nanos(now)
}

/// As `smc` counts.
pub(super) const fn smc_time(now: u64) -> smc::Time {
    smc::Time::from_nanos(now)
}

fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_looked_at_often_only_while_handshakes_move_and_are_few() {
        assert_eq!(rounds_to_look(0, 1), SETUP_ROUNDS);
        assert_eq!(rounds_to_look(SETUP_NS - 1, SETUPS_MANY), SETUP_ROUNDS);
        assert_eq!(rounds_to_look(SETUP_NS, 1), LOOK_ROUNDS, "one that is silent");
        assert_eq!(
            rounds_to_look(0, SETUPS_MANY + 1),
            LOOK_ROUNDS,
            "data has its share in a flood"
        );
    }
}
