//! The engine of a host: the door that guests of one user come through, the engine behind it, and the TCP
//! option that makes peers notice.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use local::relay::{self, Door, Hello, Said, StandIn, StandIns, Visitor, Waiter, Welcome};
use local::world::World;
use local::{Limits, Reason, board};
use sys::call::{self, Failure};
use sys::cgroup::Hierarchy;
use sys::event::{Events, Interest, Poller};

use super::config::Config;
use super::declining::{DECLINED, Declined, Declines};
use super::guest::{Broken, Program, Relay, Role, Sleeper, Stamp};
use super::inbox::Inbox;
use super::option::{self, TcpOption};
use super::stat::Stat;
use super::{Berth, Change, Ends, Engine, Newcomer};

/// Stand-ins that are kept ready.
const READY: usize = 32;
/// Who have come by the way that is open to anybody, and have not said yet whose they are.
const STRANGERS_MAX: usize = 64;
/// Descriptors of the board get at least this number.
const FIRST_FD: i32 = 3;

/// Why there is no engine for this host.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The board, its directory, or its file.
    #[error("{0}")]
    Board(#[from] sys::map::MapError),
    /// Another engine has the board.
    #[error("another engine serves this user here (see `shunt engine status`)")]
    Serves,
    /// There is no place on the board.
    #[error("no place on the board: {}", .0.words())]
    Full(Reason),
    /// The TCP option cannot be put to work.
    #[error("peers cannot be told in the TCP handshake: {0} (`--cgroup none` does without)")]
    Option(#[from] option::Error),
    /// The group of processes that the option is for cannot be opened.
    #[error("the cgroup {0}: {1}")]
    Group(PathBuf, Failure),
    /// What is behind the door.
    #[error(transparent)]
    Engine(#[from] super::Error),
    /// The system refuses something.
    #[error("{0}")]
    System(#[from] Failure),
    /// A file or a thread.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// See the module.
#[derive(Debug)]
pub struct Host {
    world: &'static World,
    engine: Arc<Engine>,
    stop: Arc<Inbox<()>>,
    thread: Option<JoinHandle<()>>,
    option: Option<TcpOption>,
}

/// Where people talk to the engine of a board.
///
/// # Errors
///
/// As [`board::locate`].
pub fn control_path(dir: Option<&str>) -> Result<PathBuf, sys::map::MapError> {
    let door = board::door(dir)?;
    let mut path = door.into_string().map_err(|_| sys::map::MapError::NotOurs)?;
    path.push_str("-control");
    Ok(PathBuf::from(path))
}

impl Host {
    /// Opens the door, and starts what is behind it.
    ///
    /// # Errors
    ///
    /// See [`Error`]. Nothing is left running.
    pub fn start(config: Config) -> Result<Self, Error> {
        let dir = config.dir.clone();
        let limits =
            Limits { memory_max: config.memory_max, dir: dir.clone(), ..Limits::default() };
        // For the life of the process: guests are reached through it from any thread.
        let world: &'static World =
            Box::leak(Box::new(World::join(limits, "shunt".into(), FIRST_FD)?));
        let door = Door::open(dir.as_deref()).map_err(|errno| match errno {
            EADDRINUSE => Error::Serves,
            errno => Error::System(Failure { step: "open the door for guests", errno }),
        })?;
        // Other engines may serve other users here, or in other network namespaces.
        let [a, b, c, d, ..] = super::random_bytes();
        let name = option::Name::new(u32::from_ne_bytes([a, b, c, d]));
        let group = config.cgroup.clone();
        let mut waiters = Vec::new();
        let sleeper = |_| -> Box<dyn Sleeper> {
            let waiter = Waiter::new(world).map(Arc::new);
            waiters.push(waiter.clone());
            Box::new(Asleep(waiter))
        };
        let notice = |Change { line, way, word }| world.board.note_destination(line, way, word);
        let meets = !config.peers.is_empty();
        let listens = |port| world.board.listening(port);
        let mut engine = Engine::start(config, sleeper, notice, listens)?;
        engine.answer_at(&control_path(dir.as_deref())?)?;
        let engine = Arc::new(engine);
        let side = door.side();
        let stop = Arc::new(Inbox::new()?);
        let reception = Reception {
            world,
            door,
            waiters,
            stand_ins: StandIns::new(READY)
                .map_err(|errno| Failure { step: "make stand-ins", errno })?,
            engine: Arc::clone(&engine),
            stop: Arc::clone(&stop),
            poller: Poller::new()?,
            visitors: HashMap::new(),
            strangers: VecDeque::new(),
            declines: Declines::new(),
        };
        for fd in reception.door.fds() {
            reception.poller.add(&fd, Interest::READ, DOOR)?;
        }
        reception.poller.add(&*reception.stop, Interest::READ, STOP)?;
        // From now on listeners of guests that were here before promise SMC, and guests knock: the one right behind the
        // other, because who is promised something by a listener that does not know whom to ask is reset.
        let option = announce(group, name)?;
        let option_name = option.as_ref().map(|_| name.number());
        world.board.serve(option_name, meets, side).map_err(Error::Full)?;
        let thread =
            std::thread::Builder::new().name("shunt-door".into()).spawn(move || reception.work());
        let thread = match thread {
            Ok(thread) => Some(thread),
            Err(e) => {
                world.board.serve_no_more();
                return Err(e.into());
            }
        };
        Ok(Self { world, engine, stop, thread, option })
    }

    /// The engine behind the door.
    #[must_use]
    pub fn stat(&self) -> Stat {
        self.engine.stat()
    }

    /// Lets nobody in any more, parts from all peers and ends.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Nothing is promised any more, and then nobody is there to keep it.
        self.option = None;
        self.world.board.serve_no_more();
        self.stop.put(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // The thread has gone, so this is the engine's last holder: it ends here.
    }
}

const EADDRINUSE: i32 = 98;

/// Has the TCP option written for sockets of guests that ask.
fn announce(group: Option<PathBuf>, name: option::Name) -> Result<Option<TcpOption>, Error> {
    let Some(path) = group else { return Ok(None) };
    let group = Hierarchy::open().and_then(|tree| tree.group(&path));
    let group = group.map_err(|e| Error::Group(path, e))?;
    Ok(Some(TcpOption::attach(&group, name)?))
}

/// A vector's sleep, as guests see it. Without a number on the board it is rung for always.
struct Asleep(Option<Arc<Waiter>>);

impl Sleeper for Asleep {
    fn fall_asleep(&self) {
        if let Some(waiter) = &self.0 {
            waiter.fall_asleep();
        }
    }
    fn awake(&self) {
        if let Some(waiter) = &self.0 {
            waiter.awake();
        }
    }
}

const DOOR: u64 = 0;
const STOP: u64 = 1;
const FIRST_VISITOR: u64 = 2;

/// The thread at the door.
struct Reception {
    world: &'static World,
    door: Door,
    waiters: Vec<Option<Arc<Waiter>>>,
    stand_ins: StandIns,
    engine: Arc<Engine>,
    stop: Arc<Inbox<()>>,
    poller: Poller,
    visitors: HashMap<u64, Visitor>,
    /// Those who have not said yet whose they are, oldest first; some have meanwhile.
    strangers: VecDeque<u64>,
    /// Their connections for which there is no room, and whose peers are to be told.
    declines: Declines,
}

impl Reception {
    fn work(mut self) {
        let (mut events, mut next) = (Events::new(64), FIRST_VISITOR);
        let mut refill = true;
        loop {
            // While nobody is here, what will be needed is made.
            self.poller.wait(&mut events, if refill { Some(0) } else { self.patience() });
            if events.is_empty() && refill {
                refill = self.stand_ins.refill();
                self.give_up();
                continue;
            }
            for event in events.iter() {
                match event.token {
                    DOOR => self.open(&mut next),
                    STOP => return,
                    declined if declined & DECLINED != 0 => {
                        let number = declined & !DECLINED;
                        let done = self.declines.heard(&self.poller, number, event.broken);
                        self.declined(done);
                    }
                    visitor => self.attend(visitor),
                }
            }
            self.give_up();
            // Making more of them now would take the CPU from whom the work was just handed to.
            refill = self.stand_ins.are_few();
        }
    }

    fn open(&mut self, next: &mut u64) {
        // Anybody may come again and again: those who are here have their turn between.
        for _ in 0..STRANGERS_MAX {
            let Some(visitor) = self.door.accept() else { return };
            if self.poller.add(&visitor.fd(), Interest::READ, *next).is_ok() {
                let is_known = visitor.is_known();
                self.visitors.insert(*next, visitor);
                if !is_known {
                    self.meet_stranger(*next);
                }
                *next += 1;
            }
        }
    }

    /// Anybody may have come, and say nothing. Who is one of ours has said so by now, as a rule.
    fn meet_stranger(&mut self, number: u64) {
        self.attend(number);
        let is_stranger = |number: &u64| self.visitors.get(number).is_some_and(|v| !v.is_known());
        if !is_stranger(&number) {
            return;
        }
        if self.strangers.len() == STRANGERS_MAX {
            self.strangers.retain(is_stranger);
        }
        if self.strangers.len() == STRANGERS_MAX
            && let Some(oldest) = self.strangers.pop_front()
        {
            self.part_from(oldest);
        }
        self.strangers.push_back(number);
    }

    fn part_from(&mut self, number: u64) {
        if let Some(visitor) = self.visitors.remove(&number) {
            self.poller.remove(&visitor.fd());
            self.declines.remove(&self.poller, number);
        }
    }

    fn attend(&mut self, number: u64) {
        loop {
            let Some(visitor) = self.visitors.get_mut(&number) else { return };
            match visitor.listen() {
                Said::Hello(hello, tcp) => self.welcome(number, &hello, tcp),
                Said::Nothing => return,
                Said::Gone => return self.part_from(number),
            }
        }
    }

    /// A guest's connection, whose peer was promised SMC, gets none.
    fn turn_away(&mut self, number: u64, given: (OwnedFd, Role, IpAddr), reason: Reason) {
        let done = self.declines.add(&self.poller, number, given, reason, call::now_ns());
        self.declined(done);
    }

    /// What has become of one, if anything has: the guest's own connection is of use to it if the peer knows.
    fn declined(&mut self, done: Option<Declined>) {
        let Some(Declined { visitor, reason, told }) = done else { return };
        self.engine.note_no_memory([self.declines.told, self.declines.in_vain]);
        match self.visitors.get(&visitor) {
            Some(visitor) if told => visitor.decline(reason),
            Some(visitor) => drop(visitor.answer(Err(reason))),
            None => {}
        }
    }

    /// How long the first of those that are declined is waited for, nanoseconds from now.
    fn patience(&self) -> Option<u64> {
        let until = self.declines.next_deadline()?;
        Some(until.saturating_sub(call::now_ns()).max(1))
    }

    /// Those whose time is over cannot be told any more.
    fn give_up(&mut self) {
        while self.declines.next_deadline().is_some() {
            let done = self.declines.overdue(&self.poller, call::now_ns());
            if done.is_none() {
                break;
            }
            self.declined(done);
        }
    }

    /// Attaches a guest's rings; where memory is short, with a smaller RMB.
    fn attach(
        &self,
        hello: &Hello,
        stand_in: &mut StandIn,
        waiter: &Waiter,
    ) -> Result<(relay::Relay, Welcome), Reason> {
        let mut order = u32::from(self.engine.config().receive_buffer.get()).min(self.order_max());
        loop {
            match relay::Relay::attach(self.world, hello, stand_in, order, waiter) {
                Err(Reason::NoMemory) if order > 0 => order -= 1,
                done => return done,
            }
        }
    }

    /// How large an RMB may be, as the power of two of 16K: what is left is for many, rather than all of it for a
    /// few.
    fn order_max(&self) -> u32 {
        let used = self.world.arena.lock().map_or(0, |arena| arena.bytes_used());
        let quarter = self.world.limits.memory_max / 4;
        match used.checked_div(quarter) {
            Some(0 | 1) => u32::MAX,
            Some(2) => 2,
            _ => 0,
        }
    }

    /// A guest hands over a connection.
    fn welcome(&mut self, number: u64, hello: &Hello, tcp: OwnedFd) {
        let taken = self.take_in(hello, &tcp);
        let Some(visitor) = self.visitors.get(&number) else { return };
        match taken {
            Ok(taken) => {
                let role = if hello.client { Role::Client } else { Role::Server };
                let relay = Box::new(Ours(taken.relay));
                let to = hello.client.then_some(taken.to);
                let (ends, asks) = (taken.ends, taken.asks);
                let newcomer = Newcomer { relay, tcp, role, ends, to, asks, berth: taken.berth };
                let welcome = || visitor.answer(Ok((taken.welcome, &taken.stand_in)));
                if newcomer.asks.is_none() {
                    // The peer is further away than the guest. One that was promised SMC and does not hear it has
                    // died, which the vector will see.
                    self.engine.adopt(newcomer);
                    let _ = welcome();
                } else if welcome() {
                    self.engine.adopt(newcomer);
                } else {
                    // It waits no more, and speaks TCP on a connection of which the peer knows nothing.
                    newcomer.relay.close(false);
                }
            }
            Err(reason) => {
                match ends(&tcp).filter(|_| hello.promised && is_shortage(hello, reason)) {
                    Some((_, peer)) => {
                        let role = if hello.client { Role::Client } else { Role::Server };
                        self.turn_away(number, (tcp, role, peer.ip().to_canonical()), reason);
                    }
                    None => {
                        let _ = visitor.answer(Err(reason));
                    }
                }
            }
        }
    }

    fn take_in(&mut self, hello: &Hello, tcp: &OwnedFd) -> Result<Taken, Reason> {
        let (local, to) = ends(tcp).ok_or(Reason::PeerBroken)?;
        let ip = |name: SocketAddrV6| name.ip().to_canonical();
        let ends = (ip(local), ip(to));
        let leads_to = hello.client.then_some(to);
        if !hello.promised && !self.engine.knows(ends, leads_to) {
            return Err(Reason::PeerNotSmc);
        }
        let asks = (!hello.promised).then(|| {
            let whole = |name: SocketAddrV6| SocketAddr::new(ip(name), name.port());
            let (client, server) = if hello.client { (local, to) } else { (to, local) };
            Ends { client: whole(client), server: whole(server) }
        });
        if !hello.has_half() {
            return Err(Reason::PeerBroken);
        }
        let berth = self.engine.berth(ends.1);
        let mut stand_in = self.stand_ins.take().map_err(|_| Reason::NoMemory)?;
        let waiter = self.waiters.get(berth.vector() as usize).and_then(Option::as_ref);
        let waiter = waiter.ok_or(Reason::NoMemory)?;
        let attached = self.attach(hello, &mut stand_in, waiter);
        let (relay, welcome) = match attached {
            Ok(attached) => attached,
            Err(reason) => {
                self.stand_ins.put_back(stand_in);
                return Err(reason);
            }
        };
        Ok(Taken { relay, welcome, stand_in, berth, ends, to, asks })
    }
}

/// Whether somebody has no room, and not something wrong.
fn is_shortage(hello: &Hello, reason: Reason) -> bool {
    !hello.has_half() || matches!(reason, Reason::NoMemory | Reason::NoSlot)
}

/// A guest's connection that is ours now.
struct Taken {
    relay: relay::Relay,
    welcome: Welcome,
    stand_in: StandIn,
    berth: Berth,
    ends: (IpAddr, IpAddr),
    to: SocketAddrV6,
    asks: Option<Ends>,
}

/// Our end of a TCP connection and the peer's, IPv4 mapped into IPv6.
fn ends(tcp: &OwnedFd) -> Option<(SocketAddrV6, SocketAddrV6)> {
    let name = |peer| {
        let name = call::name(tcp.as_raw_fd(), peer).ok().flatten()?;
        Some(SocketAddrV6::new(*name.ip(), name.port(), 0, 0))
    };
    Some((name(false)?, name(true)?))
}

/// A guest's rings on the board.
#[derive(Debug)]
struct Ours(relay::Relay);

impl Relay for Ours {
    fn fd(&self) -> RawFd {
        self.0.fd()
    }
    fn heard(&mut self, gone: bool, ended: bool) {
        self.0.heard(gone, ended);
    }
    fn explain(&mut self, why: u32) {
        self.0.explain(why);
    }
    fn stamp(&self) -> Option<Stamp> {
        self.0.stamp()
    }
    fn written(&mut self) -> Result<u64, Broken> {
        self.0.written().map_err(|_| Broken)
    }
    fn copy_out(&self, at: u64, to: &mut [u8]) -> Result<(), Broken> {
        self.0.copy_out(at, to).map_err(|_| Broken)
    }
    fn copy_out_summed(
        &self,
        at: u64,
        to: &mut [u8],
        register: u32,
    ) -> Result<Option<u32>, Broken> {
        self.0.copy_out_summed(at, to, register).map_err(|_| Broken)
    }
    fn urgent(&self) -> Option<u64> {
        self.0.urgent()
    }
    fn release(&mut self, upto: u64) {
        self.0.release(upto);
    }
    fn program(&self) -> Program {
        match self.0.program() {
            relay::Program::Open => Program::Open,
            relay::Program::Shut => Program::Shut,
            relay::Program::Closed => Program::Closed,
            relay::Program::Reset => Program::Reset,
        }
    }
    fn rmb_bytes(&self) -> usize {
        self.0.rmb_bytes()
    }
    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> bool {
        self.0.write_at(offset, bytes)
    }
    fn write_at_summed(&mut self, offset: usize, bytes: &[u8], register: u32) -> Option<u32> {
        self.0.write_at_summed(offset, bytes, register)
    }
    fn publish(&mut self, upto: u64) {
        self.0.publish(upto);
    }
    fn publish_urgent(&mut self, upto: u64) {
        self.0.publish_urgent(upto);
    }
    fn pour(&mut self) -> bool {
        self.0.pour()
    }
    fn consumed(&self) -> Result<u64, Broken> {
        self.0.consumed().map_err(|_| Broken)
    }
    fn want_consumed(&mut self, want: bool) {
        self.0.want_consumed(want);
    }
    fn shut(&mut self) {
        self.0.shut();
    }
    fn close(self: Box<Self>, reset: bool) {
        self.0.close(reset);
    }
}

/// Where a user's engine is asked, for [`super::control::ask`].
///
/// # Errors
///
/// As [`super::control::ask`]; `NotFound` if the board cannot be named.
pub fn ask(dir: Option<&str>, request: &super::control::Request) -> io::Result<serde_json::Value> {
    super::control::ask(&asked_at(dir)?, request)
}

/// What a user's engine has done and has, for [`super::control::look`].
///
/// # Errors
///
/// As [`super::control::look`]; `NotFound` if the board cannot be named.
pub fn look(dir: Option<&str>) -> io::Result<serde_json::Value> {
    super::control::look(&asked_at(dir)?)
}

fn asked_at(dir: Option<&str>) -> io::Result<PathBuf> {
    control_path(dir).map_err(|e| io::Error::new(io::ErrorKind::NotFound, e.to_string()))
}
