//! The thread at the doors: it takes in what guests hand over, and gives it to vectors.
//!
//! It serves all boards, and waits for nobody. What a guest of another user says is worth no more than what a peer on
//! another host says: what it hands over may be no connection at all, or one of another network; and no user gets more
//! memory and connections than are left to the others.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use local::relay::{self, Door, Hello, Said, StandIn, StandIns, Visitor, Welcome};
use local::world::World;
use local::{Limits, Reason, board};
use sys::call::{self, Failure};
use sys::event::{Events, Interest, Poller};

use super::boards::{Boards, Counted, Guests, SPARE_BYTES};
use super::declining::{DECLINED, Declined, Declines};
use super::guest::Role;
use super::host::{FIRST_FD, Ours};
use super::inbox::Inbox;
use super::parting;
use super::users::{Finder, USERS_MAX, User};
use super::{Berth, Ends, Engine, Newcomer};

/// Stand-ins that are kept ready.
const READY: usize = 32;
/// Who have come by the way that is open to anybody, and have not said yet whose they are: of each board.
const STRANGERS_MAX: usize = 64;
/// What one guest may say before others have their turn.
const TURN: usize = 32;
/// Descriptors that are no connection's.
const OTHER_FDS: usize = 1024;

const STOP: u64 = 0;
const NEWS: u64 = 1;
const FIRST_VISITOR: u64 = 2;
/// A door, and the number of its board.
const DOOR: u64 = 1 << 62;

/// What to serve boards with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    /// Name of the option by which sockets ask for the TCP option.
    pub(super) option: Option<i32>,
    /// See [`board::Board::engine_meets`].
    pub(super) meets: bool,
}

/// A board, and the way to us from there.
#[derive(Debug)]
struct Entrance {
    guests: Arc<Guests>,
    /// Taken when it is shut.
    door: Option<Door>,
    /// Those who have not said yet whose they are, oldest first; some have meanwhile.
    strangers: VecDeque<u64>,
}

impl Entrance {
    /// Who shuts the door of another user does so as that user.
    fn shut(&mut self) {
        self.guests.shut();
        let Some(door) = self.door.take() else { return };
        match &self.guests.user {
            // Without the rights to it its path stays, and leads nowhere.
            Some(user) => drop(user.does(|| drop(door))),
            None => drop(door),
        }
    }
}

/// Who has come in.
#[derive(Debug)]
struct Guest {
    visitor: Visitor,
    /// The number of its entrance.
    by: usize,
}

/// See the module.
pub(super) struct Reception {
    boards: Arc<Boards>,
    entrances: Vec<Entrance>,
    finder: Finder,
    promise: Promise,
    stand_ins: StandIns,
    engine: Arc<Engine>,
    poller: Poller,
    visitors: HashMap<u64, Guest>,
    next_visitor: u64,
    /// Their connections for which there is no room, and whose peers are to be told.
    declines: Declines,
    /// The number of our network namespace.
    netns: Option<u64>,
    /// Connections that there are descriptors for.
    connections_max: usize,
}

impl Reception {
    /// `own`: the board of our own user, whose door it is. `stop` ends it.
    pub(super) fn new(
        boards: Arc<Boards>,
        (own, door): (Arc<Guests>, Door),
        finder: Finder,
        engine: Arc<Engine>,
        stop: &Inbox<()>,
        promise: Promise,
    ) -> Result<Self, Failure> {
        let stand_ins =
            StandIns::new(READY).map_err(|errno| Failure { step: "make stand-ins", errno })?;
        let poller = Poller::new()?;
        poller.add(stop, Interest::READ, STOP)?;
        if let Some(news) = finder.news() {
            poller.add(news, Interest::READ, NEWS)?;
        }
        let mut reception = Self {
            boards,
            entrances: Vec::new(),
            finder,
            promise,
            stand_ins,
            engine,
            netns: board::netns_of(door.fds()[0]),
            poller,
            visitors: HashMap::new(),
            next_visitor: FIRST_VISITOR,
            declines: Declines::new(),
            connections_max: connections_max(),
        };
        reception.enter(own, door)?;
        Ok(reception)
    }

    pub(super) fn work(mut self) {
        let mut events = Events::new(64);
        let mut refill = true;
        loop {
            self.look_for_boards();
            // While nobody is here, what will be needed is made.
            self.poller.wait(&mut events, if refill { Some(0) } else { self.patience() });
            if events.is_empty() && refill {
                refill = self.stand_ins.refill();
                self.give_up();
                continue;
            }
            for event in events.iter() {
                match event.token {
                    STOP => return self.entrances.iter_mut().for_each(Entrance::shut),
                    NEWS => self.finder.hear(),
                    declined if declined & DECLINED != 0 => {
                        let number = declined & !DECLINED;
                        let done = self.declines.heard(&self.poller, number, event.broken);
                        self.declined(done);
                    }
                    door if door & DOOR != 0 => {
                        self.let_in(usize::try_from(door & !DOOR).unwrap_or(usize::MAX));
                    }
                    visitor => self.attend(visitor),
                }
            }
            self.give_up();
            // Making more of them now would take the CPU from whom the work was just handed to.
            refill = self.stand_ins.are_few();
        }
    }

    // ----- boards ----------------------------------------------------------------------------------

    fn enter(&mut self, guests: Arc<Guests>, door: Door) -> Result<(), Failure> {
        let number = self.entrances.len();
        for fd in door.fds() {
            self.poller.add(&fd, Interest::READ, DOOR | number as u64)?;
        }
        self.entrances.push(Entrance { guests, door: Some(door), strangers: VecDeque::new() });
        Ok(())
    }

    /// Opens the boards of users that have come to be there, and shuts those that are no more.
    fn look_for_boards(&mut self) {
        let now = call::now_ns();
        if self.finder.next_look().is_none_or(|at| now < at) {
            return;
        }
        for number in 0..self.entrances.len() {
            let guests = &self.entrances[number].guests;
            let Some(user) = guests.user.as_ref().filter(|_| guests.is_open()) else { continue };
            let (uid, board) = (user.uid, &guests.world.board);
            if board.is_spoiled() {
                self.shut(
                    number,
                    "the file of the board was made shorter, or its file system is full",
                );
            } else if board.is_removed() {
                self.shut(number, "the board was removed");
            } else {
                guests.world.trim(SPARE_BYTES);
                self.boards.has_no_problem(uid);
            }
        }
        let is_open = |uid| {
            let has = |guests: &Arc<Guests>| guests.user.as_ref().is_some_and(|u| u.uid == uid);
            self.boards.open().any(has)
        };
        for user in self.finder.due(now, is_open) {
            if let Err(problem) = self.open(&user)
                && self.boards.note_problem(user.uid, &problem)
            {
                say(format_args!("user {} is not served: {problem}", user.uid));
            }
        }
    }

    fn shut(&mut self, number: usize, why: &str) {
        let entrance = &mut self.entrances[number];
        let uid = entrance.guests.user.as_ref().map_or(0, |user| user.uid);
        for fd in entrance.door.iter().flat_map(Door::fds) {
            self.poller.remove(&fd);
        }
        entrance.shut();
        let theirs = |(visitor, guest): (&u64, &Guest)| (guest.by == number).then_some(*visitor);
        let theirs: Vec<u64> = self.visitors.iter().filter_map(theirs).collect();
        theirs.into_iter().for_each(|visitor| self.part_from(visitor));
        let over = if self.finder.is_over(uid) { ", as often before: not again" } else { "" };
        if self.boards.note_problem(uid, why) {
            say(format_args!("user {uid} is not served any more: {why}{over}"));
        }
    }

    /// Opens the board of another user, as that user.
    fn open(&mut self, user: &User) -> Result<(), String> {
        if self.boards.open().count() > USERS_MAX || self.boards.is_full() {
            return Err(format!("{USERS_MAX} others are, which is as many as can be"));
        }
        let limits = Limits { memory_max: self.engine.config().memory_max, ..Limits::default() };
        let opened = user.does(|| -> Result<(World, Door), String> {
            board::prepare(None).map_err(|e| e.to_string())?;
            // The door first: there is no way back from a board.
            let door = Door::open(None).map_err(|errno| match errno {
                EADDRINUSE => "an engine of its own serves it".to_owned(),
                errno => format!("no door: {}", io::Error::from_raw_os_error(errno)),
            })?;
            let world = World::join(limits, "shunt".into(), FIRST_FD);
            let mut world = world.map_err(|e| e.to_string())?;
            if !world.board.distrust() {
                return Err("its memory cannot be guarded".to_owned());
            }
            world.board.ensure_slot().map_err(|reason| reason.words().to_owned())?;
            world.board.says_who(0, *NAME);
            Ok((world, door))
        });
        let (world, door) = opened.map_err(|e| format!("cannot act as it: {e}"))??;
        self.finder.has(user);
        // For the life of the process: vectors and guests know it.
        let world: &'static World = Box::leak(Box::new(world));
        let side = door.side();
        let guests = self.boards.add(Guests::new(world, Some(user.clone())));
        let guests = guests.ok_or("there were too many boards")?;
        self.enter(Arc::clone(&guests), door).map_err(|e| e.to_string())?;
        let Promise { option, meets } = self.promise;
        if let Err(reason) = world.board.serve(option, meets, side) {
            guests.shut();
            return Err(reason.words().to_owned());
        }
        if let Some(own) = self.entrances.first() {
            world.board.learn_destinations(&own.guests.world.board);
        }
        self.boards.has_no_problem(user.uid);
        Ok(())
    }

    // ----- guests ----------------------------------------------------------------------------------

    fn let_in(&mut self, number: usize) {
        // Anybody may come again and again: those who are here have their turn between.
        for _ in 0..STRANGERS_MAX {
            let door = self.entrances.get(number).and_then(|entrance| entrance.door.as_ref());
            let Some(visitor) = door.and_then(Door::accept) else { return };
            let token = self.next_visitor;
            if self.poller.add(&visitor.fd(), Interest::READ, token).is_ok() {
                let is_known = visitor.is_known();
                self.visitors.insert(token, Guest { visitor, by: number });
                if !is_known {
                    self.meet_stranger(number, token);
                }
                self.next_visitor += 1;
            }
        }
    }

    /// Anybody may have come, and say nothing. Who is one of ours has said so by now, as a rule.
    fn meet_stranger(&mut self, entrance: usize, number: u64) {
        self.attend(number);
        let is_stranger =
            |number: &u64| self.visitors.get(number).is_some_and(|g| !g.visitor.is_known());
        if !is_stranger(&number) {
            return;
        }
        let Some(Entrance { strangers, .. }) = self.entrances.get_mut(entrance) else { return };
        if strangers.len() == STRANGERS_MAX {
            strangers.retain(is_stranger);
        }
        let oldest = if strangers.len() == STRANGERS_MAX { strangers.pop_front() } else { None };
        strangers.push_back(number);
        if let Some(oldest) = oldest {
            self.part_from(oldest);
        }
    }

    fn part_from(&mut self, number: u64) {
        if let Some(guest) = self.visitors.remove(&number) {
            self.poller.remove(&guest.visitor.fd());
            self.declines.remove(&self.poller, number);
        }
    }

    fn attend(&mut self, number: u64) {
        // What is left is told of again.
        for _ in 0..TURN {
            let Some(guest) = self.visitors.get_mut(&number) else { return };
            let by = guest.by;
            match guest.visitor.listen() {
                Said::Hello(hello, tcp) => self.welcome(number, by, &hello, tcp),
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
            Some(guest) if told => guest.visitor.decline(reason),
            Some(guest) => drop(guest.visitor.answer(Err(reason))),
            None => {}
        }
    }

    /// How long to wait at most: for the first of those that are declined, or until boards are looked for; nanoseconds from
    /// now.
    fn patience(&self) -> Option<u64> {
        let looks = self.finder.next_look();
        let until = self.declines.next_deadline().into_iter().chain(looks).min()?;
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

    /// Memory for rings that guests of this board may have. With others beside: as much as is left to them, so that no user
    /// has all.
    fn memory_max(&self, guests: &Guests) -> usize {
        let most = guests.world.limits.memory_max;
        if self.entrances.len() == 1 {
            return most;
        }
        let of_others = |other: &&Arc<Guests>| !std::ptr::eq(other.world, guests.world);
        let others: usize = self.boards.all().filter(of_others).map(|g| g.bytes()).sum();
        most.saturating_sub(others) / 2
    }

    /// Whether this board's guests have as many connections as are left to others.
    fn has_its_share(&self, guests: &Guests) -> bool {
        let all: usize = self.boards.all().map(|guests| guests.connections()).sum();
        let mine = guests.connections();
        self.entrances.len() > 1 && mine >= self.connections_max.saturating_sub(all)
    }

    /// Attaches a guest's rings; where memory is short, with a smaller RMB.
    fn attach(
        &self,
        guests: &Guests,
        hello: &Hello,
        stand_in: &mut StandIn,
        vector: u32,
    ) -> Result<(relay::Relay, Welcome), Reason> {
        let waiter = guests.waiter(vector).ok_or(Reason::NoMemory)?;
        let most = self.memory_max(guests);
        let used = guests.world.arena.lock().map_or(0, |arena| arena.bytes_used());
        let order = order_max(used, most)?;
        let mut order = u32::from(self.engine.config().receive_buffer.get()).min(order);
        loop {
            match relay::Relay::attach(guests.world, hello, stand_in, order, waiter) {
                Err(Reason::NoMemory) if order > 0 => order -= 1,
                done => return done,
            }
        }
    }

    /// A guest hands over a connection.
    fn welcome(&mut self, number: u64, by: usize, hello: &Hello, tcp: OwnedFd) {
        let Some(guests) = self.entrances.get(by).map(|entrance| Arc::clone(&entrance.guests))
        else {
            return;
        };
        if guests.user.is_some() && call::name(tcp.as_raw_fd(), false).is_err() {
            // Closing what is no socket may wait for whoever is behind it (FUSE), for as long as he likes.
            std::mem::forget(tcp);
            return self.shut(by, "what one of its programs handed over is no connection");
        }
        let taken = self.take_in(&guests, hello, &tcp);
        let Some(Guest { visitor, .. }) = self.visitors.get(&number) else { return };
        match taken {
            Ok(taken) => {
                let role = if hello.client { Role::Client } else { Role::Server };
                let relay = Box::new(Ours::new(taken.relay, Counted::new(&guests)));
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
                    parting::before_closing(&newcomer.tcp);
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
                        parting::before_closing(&tcp);
                    }
                }
            }
        }
    }

    fn take_in(&mut self, guests: &Guests, hello: &Hello, tcp: &OwnedFd) -> Result<Taken, Reason> {
        let (local, to) = ends(tcp).ok_or(Reason::PeerBroken)?;
        if guests.user.is_some() && board::netns_of(tcp.as_raw_fd()) != self.netns {
            // Addresses of another network are not those of our peers.
            return Err(Reason::PeerBroken);
        }
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
        if self.has_its_share(guests) {
            return Err(Reason::NoMemory);
        }
        let berth = self.engine.berth(ends.1);
        let mut stand_in = self.stand_ins.take().map_err(|_| Reason::NoMemory)?;
        let attached = self.attach(guests, hello, &mut stand_in, berth.vector());
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

const EADDRINUSE: i32 = 98;
/// As people see it.
const NAME: &[u8; 16] = b"shunt\0\0\0\0\0\0\0\0\0\0\0";

fn say(what: std::fmt::Arguments<'_>) {
    local::log::error(what);
}

/// How large an RMB may be, as the power of two of 16K, where `used` of `most` bytes are in use: what is left is for many,
/// rather than all of it for a few.
///
/// # Errors
///
/// [`Reason::NoMemory`] if none is left.
fn order_max(used: usize, most: usize) -> Result<u32, Reason> {
    match used.checked_div(most / 4) {
        Some(0 | 1) => Ok(u32::MAX),
        Some(2) => Ok(2),
        Some(3) => Ok(0),
        _ => Err(Reason::NoMemory),
    }
}

/// Connections that there are descriptors for: two each, and those of the engine itself.
fn connections_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = limit.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    most.saturating_sub(OTHER_FDS).max(OTHER_FDS / 2) / 2
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
