//! The thread at a door: it takes in what guests of one board hand over, and gives it to vectors.
//!
//! Each board has such a thread, and another one for the way that is open to anybody. What a guest of another user says
//! is worth no more than what a peer on another host says: what it hands over may be no connection at all, or one of
//! another network, and calls to the kernel on what is that user's (files, sockets that others have as well) may take as
//! long as he likes. Then that user's thread waits, and nobody else's. No user gets more memory and connections than are
//! left to the others.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use local::relay::{self, Door, Hello, Said, SideDoor, StandIn, StandIns, Visitor, Welcome};
use local::{Reason, board};
use sys::call::{self, Failure};
use sys::event::{Events, Interest, Poller};

use super::boards::{Boards, Counted, Guests, SPARE_BYTES, Turn};
use super::declining::{DECLINED, Declined, Declines};
use super::guest::Role;
use super::host::Ours;
use super::inbox::Inbox;
use super::users::LOOK_NS;
use super::{Berth, Ends, Engine, Newcomer};

/// Stand-ins that are kept ready.
const READY: usize = 32;
/// Who have come by the way that is open to anybody, and have not said yet whose they are.
const STRANGERS_MAX: usize = 64;
/// Processes that have come in: each has a place on the board, and another link for a moment.
const VISITORS_MAX: usize = 2 * sys::abi::SLOTS;
/// What one guest may say before others have their turn.
const TURN: usize = 32;
/// Descriptors that are no connection's.
const OTHER_FDS: usize = 1024;
/// Where nobody can be let in, for want of descriptors, that is so for a moment at least.
const CLOSED_FOR: Duration = Duration::from_millis(5);

const INBOX: u64 = 0;
const DOOR: u64 = 1;
const FIRST_VISITOR: u64 = 2;
/// Why a board is none any more that its user took away.
pub(super) const REMOVED: &str = "the board was removed";

/// What others ask of the thread at a door.
#[derive(Debug)]
pub(super) enum Word {
    /// To let nobody in any more, and end.
    Stop,
    /// To let somebody in who has come by the other way, and has shown to be a guest.
    LetIn(Visitor),
    /// To take no connections in any more, or to do so again.
    Drain(Option<Turn>),
}

struct NoMore(Arc<Inbox<()>>);

impl Drop for NoMore {
    fn drop(&mut self) {
        self.0.put(());
    }
}

/// See the module.
pub(super) struct Reception {
    boards: Arc<Boards>,
    guests: Arc<Guests>,
    door: Door,
    stand_ins: StandIns,
    engine: Arc<Engine>,
    inbox: Arc<Inbox<Word>>,
    /// Ends the thread at the other way, when it goes.
    _no_more: NoMore,
    poller: Poller,
    visitors: HashMap<u64, Visitor>,
    next_visitor: u64,
    /// Their connections for which there is no room, and whose peers are to be told.
    declines: Declines,
    /// The number of our network namespace.
    netns: Option<u64>,
    /// Connections that there are descriptors for.
    connections_max: usize,
    /// When to look after the board of another user.
    next_look: u64,
}

impl Reception {
    /// Nobody is let in before [`Self::work`].
    pub(super) fn new(
        boards: Arc<Boards>,
        guests: Arc<Guests>,
        mut door: Door,
        engine: Arc<Engine>,
        inbox: Arc<Inbox<Word>>,
    ) -> Result<Self, Failure> {
        let stand_ins =
            StandIns::new(READY).map_err(|errno| Failure { step: "make stand-ins", errno })?;
        let poller = Poller::new()?;
        poller.add(&*inbox, Interest::READ, INBOX)?;
        poller.add(&door.fd(), Interest::READ, DOOR)?;
        let no_more = NoMore(Arc::new(Inbox::new()?));
        if let Some(side) = door.take_side() {
            let strangers = Strangers::new(side, Arc::clone(&inbox), Arc::clone(&no_more.0))?;
            let thread = thread::Builder::new().name("shunt-side".into());
            let thread = thread.spawn(move || strangers.work());
            thread.map_err(|e| Failure {
                step: "start a thread",
                errno: e.raw_os_error().unwrap_or(EAGAIN),
            })?;
        }
        Ok(Self {
            boards,
            guests,
            netns: board::netns_of(door.fd()),
            door,
            stand_ins,
            engine,
            inbox,
            _no_more: no_more,
            poller,
            visitors: HashMap::new(),
            next_visitor: FIRST_VISITOR,
            declines: Declines::new(),
            connections_max: connections_max(),
            next_look: 0,
        })
    }

    /// Until it is told to end, or the board is none any more: why.
    pub(super) fn work(mut self) -> Option<&'static str> {
        let mut events = Events::new(64);
        let mut refill = true;
        let why = loop {
            if let Some(why) = self.look_after_board() {
                break Some(why);
            }
            // While nobody is here, what will be needed is made.
            self.poller.wait(&mut events, if refill { Some(0) } else { self.patience() });
            if events.is_empty() && refill {
                refill = self.stand_ins.refill();
                self.give_up();
                continue;
            }
            let mut ends = false;
            for event in events.iter() {
                match event.token {
                    INBOX => ends |= self.hear(),
                    DOOR => self.let_in(),
                    declined if declined & DECLINED != 0 => {
                        let number = declined & !DECLINED;
                        let done = self.declines.heard(&self.poller, number, event.broken);
                        self.declined(done);
                    }
                    visitor => self.attend(visitor),
                }
            }
            if ends {
                break None;
            }
            self.give_up();
            // Making more of them now would take the CPU from whom the work was just handed to.
            refill = self.stand_ins.are_few();
        };
        self.guests.shut();
        // The door is closed as its user, where that is another one than ours: without the right to it its path stays, and
        // leads nowhere.
        let Self { guests, door, .. } = self;
        match &guests.user {
            Some(user) => drop(user.does(|| drop(door))),
            None => drop(door),
        }
        why
    }

    /// Another user's board: whether it still is one, and whether it holds memory for nothing.
    fn look_after_board(&mut self) -> Option<&'static str> {
        let uid = self.guests.user.as_ref()?.uid;
        let now = call::now_ns();
        if now < self.next_look {
            return None;
        }
        self.next_look = now + LOOK_NS;
        let board = &self.guests.world.board;
        if board.is_spoiled() {
            return Some("the file of the board was made shorter, or its file system is full");
        }
        if board.is_removed() {
            return Some(REMOVED);
        }
        if !board.is_served() {
            return Some("the board was overwritten");
        }
        // Those that it had before as well: connections on them may have ended since.
        for guests in self.boards.of(uid) {
            guests.world.take_returned();
            guests.world.trim(SPARE_BYTES);
            guests.note_bytes();
        }
        None
    }

    // ----- guests ----------------------------------------------------------------------------------

    /// What others ask. `true`: to end.
    fn hear(&mut self) -> bool {
        for word in self.inbox.take() {
            match word {
                Word::Stop => return true,
                Word::Drain(turn) => self.guests.note_drains(turn),
                Word::LetIn(visitor) => {
                    if let Some(number) = self.enter(visitor) {
                        self.attend(number);
                    }
                }
            }
        }
        false
    }

    fn let_in(&mut self) {
        for came in 0.. {
            // Others have their turn between.
            if came == STRANGERS_MAX {
                return;
            }
            let Some(visitor) = self.door.accept() else {
                if came == 0 {
                    thread::sleep(CLOSED_FOR);
                }
                return;
            };
            self.enter(visitor);
        }
    }

    fn enter(&mut self, visitor: Visitor) -> Option<u64> {
        self.guests.note_came();
        let number = self.next_visitor;
        if self.visitors.len() >= VISITORS_MAX
            || self.has_its_share()
            || self.poller.add(&visitor.fd(), Interest::READ, number).is_err()
        {
            return None;
        }
        self.next_visitor += 1;
        self.visitors.insert(number, visitor);
        self.guests.note_visitors(self.visitors.len());
        Some(number)
    }

    fn part_from(&mut self, number: u64) {
        if let Some(visitor) = self.visitors.remove(&number) {
            self.poller.remove(&visitor.fd());
            self.declines.remove(&self.poller, number);
            self.guests.note_declining(self.declines.count_waiting());
            self.guests.note_visitors(self.visitors.len());
        }
    }

    fn attend(&mut self, number: u64) {
        // What is left is told of again.
        for _ in 0..TURN {
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
        self.guests.note_declining(self.declines.count_waiting());
        let Some(Declined { visitor, reason, told }) = done else { return };
        let for_want_of_room = !matches!(
            reason,
            Reason::ChosenWay | Reason::PeerNotSmc | Reason::SwitchedOff | Reason::Draining
        );
        if for_want_of_room {
            self.engine.note_no_memory(told);
        }
        match self.visitors.get(&visitor) {
            Some(visitor) if told => visitor.decline(reason),
            Some(visitor) => drop(visitor.answer(Err(reason))),
            None => {}
        }
    }

    /// How long to wait at most: for the first of those that are declined, or until the board is looked after; nanoseconds
    /// from now.
    fn patience(&self) -> Option<u64> {
        let looks = self.guests.user.as_ref().map(|_| self.next_look);
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
    fn memory_max(&self) -> usize {
        let most = self.guests.world.limits.memory_max;
        if self.boards.is_one() {
            return most;
        }
        let [_, before, others] = self.boards.shares(&self.guests, Guests::bytes);
        (most.saturating_sub(others) / 2).saturating_sub(before)
    }

    /// Whether this user's guests have as many connections, of them and to us, as are left to others.
    fn has_its_share(&self) -> bool {
        let [of_this, before, others] = self.boards.shares(&self.guests, Guests::descriptors);
        let most = self.connections_max.saturating_sub(others) / 2;
        !self.boards.is_one() && of_this + before >= most
    }

    /// Attaches a guest's rings; where memory is short, with a smaller RMB.
    fn attach(
        &self,
        hello: &Hello,
        stand_in: &mut StandIn,
        vector: u32,
    ) -> Result<(relay::Relay, Welcome), Reason> {
        let world = self.guests.world;
        let waiter = self.guests.waiter(vector).ok_or(Reason::NoMemory)?;
        let most = self.memory_max();
        world.set_memory_max(most);
        world.take_returned();
        let used = world.arena.lock().map_or(0, |arena| arena.bytes_used());
        let order = order_max(used, most)?;
        let mut order = u32::from(self.engine.config().receive_buffer.get()).min(order);
        let attached = loop {
            match relay::Relay::attach(world, hello, stand_in, order, waiter) {
                Err(Reason::NoMemory) if order > 0 => order -= 1,
                done => break done,
            }
        };
        self.guests.note_bytes();
        attached
    }

    /// A guest hands over a connection.
    fn welcome(&mut self, number: u64, hello: &Hello, tcp: OwnedFd) {
        self.guests.note_came();
        let taken = self.take_in(hello, &tcp);
        let Some(visitor) = self.visitors.get(&number) else { return };
        match taken {
            Ok(taken) => {
                let role = if hello.client { Role::Client } else { Role::Server };
                let relay = Box::new(Ours::new(taken.relay, Counted::new(&self.guests)));
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
                match ends(&tcp).filter(|_| hello.promised && is_declined(hello, reason)) {
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
        if self.guests.world.board.is_off() {
            // Who had asked its peer before, or came to a listener that had told its peers.
            return Err(Reason::SwitchedOff);
        }
        if self.guests.drains() {
            return Err(Reason::Draining);
        }
        let ip = |name: SocketAddrV6| name.ip().to_canonical();
        let ends = (ip(local), ip(to));
        if self.guests.user.is_some() {
            // Addresses of another network are not those of our peers.
            if board::netns_of(tcp.as_raw_fd()) != self.netns {
                return Err(Reason::PeerNotSmc);
            }
            // RoCEv2 is spoken from where connections are: not from wherever somebody would like. A client of the kernel's
            // may have been promised SMC: it offers that to this host as well, and a listener answers whoever asks.
            if ends.0.is_loopback() || ends.1.is_loopback() {
                return Err(Reason::PeerNotSmc);
            }
        }
        if relay::has_chosen_way(tcp.as_raw_fd()) {
            // Also where the guest could not know: by a program of the kernel's, or since it has looked.
            return Err(Reason::ChosenWay);
        }
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
        if self.has_its_share() {
            return Err(Reason::NoMemory);
        }
        let berth = self.engine.berth(ends.1);
        let mut stand_in = self.stand_ins.take().map_err(|_| Reason::NoMemory)?;
        let attached = self.attach(hello, &mut stand_in, berth.vector());
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

/// The thread at the way that is open to anybody: who comes there and says nothing, or gives what takes long to be
/// closed, holds nobody up but others who come there.
struct Strangers {
    side: SideDoor,
    inbox: Arc<Inbox<Word>>,
    no_more: Arc<Inbox<()>>,
    poller: Poller,
    all: HashMap<u64, Visitor>,
    /// Oldest first; some have gone.
    order: VecDeque<u64>,
    next: u64,
}

impl Strangers {
    fn new(
        side: SideDoor,
        inbox: Arc<Inbox<Word>>,
        no_more: Arc<Inbox<()>>,
    ) -> Result<Self, Failure> {
        let poller = Poller::new()?;
        poller.add(&*no_more, Interest::READ, INBOX)?;
        poller.add(&side.fd(), Interest::READ, DOOR)?;
        let (all, order) = (HashMap::new(), VecDeque::new());
        Ok(Self { side, inbox, no_more, poller, all, order, next: FIRST_VISITOR })
    }

    fn work(mut self) {
        let mut events = Events::new(64);
        loop {
            self.poller.wait(&mut events, None);
            for event in events.iter() {
                match event.token {
                    INBOX => {
                        if !self.no_more.take().is_empty() {
                            return;
                        }
                    }
                    DOOR => self.meet(),
                    stranger => self.attend(stranger),
                }
            }
        }
    }

    /// Who is one of ours has said so by now, as a rule.
    fn meet(&mut self) {
        let Some(stranger) = self.side.accept() else { return thread::sleep(CLOSED_FOR) };
        let number = self.next;
        if self.poller.add(&stranger.fd(), Interest::READ, number).is_err() {
            return;
        }
        self.next += 1;
        self.all.insert(number, stranger);
        self.order.push_back(number);
        self.attend(number);
        self.order.retain(|number| self.all.contains_key(number));
        if self.order.len() > STRANGERS_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(stranger) = self.all.remove(&oldest)
        {
            self.poller.remove(&stranger.fd());
        }
    }

    fn attend(&mut self, number: u64) {
        let Some(stranger) = self.all.get_mut(&number) else { return };
        let is_gone = !stranger.is_guest();
        if is_gone || stranger.is_known() {
            let Some(stranger) = self.all.remove(&number) else { return };
            self.poller.remove(&stranger.fd());
            if !is_gone {
                self.inbox.put(Word::LetIn(stranger));
            }
        }
    }
}

const EAGAIN: i32 = 11;

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

/// Whether the peer can be told, and the connection go on as TCP: nothing is wrong with it, but somebody has no room, it
/// takes another way than ours or stays on this host, or all are to.
fn is_declined(hello: &Hello, reason: Reason) -> bool {
    use Reason::{ChosenWay, Draining, NoMemory, NoSlot, PeerNotSmc, SwitchedOff};
    let known = [NoMemory, NoSlot, ChosenWay, PeerNotSmc, SwitchedOff, Draining];
    !hello.has_half() || known.contains(&reason)
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

/// Our end of a TCP connection and the peer's, IPv4 mapped into IPv6. `None`: it is none, whatever else has names.
fn ends(tcp: &OwnedFd) -> Option<(SocketAddrV6, SocketAddrV6)> {
    const SOL_SOCKET: i32 = 1;
    /// `SO_TYPE` and `SOCK_STREAM`, `SO_PROTOCOL` and `IPPROTO_TCP`.
    const TCP: [(i32, i32); 2] = [(3, 1), (38, 6)];
    let fd = tcp.as_raw_fd();
    if !TCP.iter().all(|(name, is)| call::getsockopt(fd, SOL_SOCKET, *name) == Ok(*is)) {
        return None;
    }
    let name = |peer| {
        let name = call::name(fd, peer).ok().flatten()?;
        Some(SocketAddrV6::new(*name.ip(), name.port(), 0, 0))
    };
    Some((name(false)?, name(true)?))
}
