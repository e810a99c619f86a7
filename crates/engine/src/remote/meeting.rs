//! Engines that get to know each other, so that their guests speak SMC where the TCP handshake cannot say that
//! they do: without the privilege to put an option into it.
//!
//! Engines of hosts that the setting `peers` names keep a **link** with each other, a TCP connection at port
//! 4791. While there is one, either side has its guests hand over what comes from the other host, and the two
//! say of each connection whether both ends have it ([`register`]). Nothing of that is said on the connection
//! itself, so a program without Shunt at one end sees a TCP connection like any other.
//!
//! A host that is named by its address is looked for from the beginning ([`seek`]), one of a network when a guest first wants
//! to get there.
//!
//! One thread does it, and sleeps while nothing is said. What the other engine says is bounded, and is about
//! connections between the two addresses of the link only.

mod register;
mod seek;
mod word;

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use sys::call;
use sys::event::{Events, Interest, Poller};

use super::guest::Role;
use super::held;
use super::inbox::Inbox;
use super::peers::Network;
use super::slab::Id;
use super::vector::Order;
use register::{Addresses, Deed, LinkId, Register};
use seek::Seek;
use word::{GREETING, Word};

pub use register::Ends;
pub(super) use register::{Question, Seat};
pub(super) use word::Why;

/// The port of the links, of TCP; that of RoCEv2 is the same of UDP.
const PORT: u16 = 4791;
/// How long a host may take to answer a `connect()`, and how long another one is not tried after it.
const CONNECT_TIME: Duration = Duration::from_secs(2);
const AGAIN_NS: u64 = 1_000_000_000;
/// Links that there may be, those that one host may have with us, and hosts that are being connected to.
const LINKS_MAX: usize = 1024;
const LINKS_OF_HOST: usize = 4;
const CONNECTING_MAX: usize = 16;
/// Connections that are accepted before others have their turn.
const ACCEPTED_MAX: usize = 64;
/// For how long nothing is accepted when that has failed: it will fail again, for want of descriptors mostly.
const PAUSE_NS: u64 = 500_000_000;
/// How long the other end of a link may take to greet.
const GREETING_NS: u64 = 3_000_000_000;
/// Bytes that may wait until another engine takes them.
const UNSAID_MAX: usize = 64 << 10;
/// After so many seconds of silence a host is asked whether it lives, and after so many questions it does not.
const SILENCE: Duration = Duration::from_secs(5);
const QUESTIONS: u32 = 3;
/// What is said and not acknowledged for so long, milliseconds, ends a link.
const UNHEARD_MS: u32 = 20_000;

/// What is asked of the thread.
#[derive(Debug)]
pub(super) enum Wish {
    /// A guest wants to get to the second address, and has the first.
    Know(Addresses),
    /// Somebody has connected to one of those, or has not.
    Connected(Addresses, io::Result<TcpStream>),
    /// A vector has a connection that has promised nothing.
    Come(Seat, Role, Ends),
    /// And waits no more; whether a client has begun to speak CLC.
    Left(Seat, Role, Ends, bool),
    /// A vector waits for CLC, or does not.
    Reply(Seat, Question, bool),
    Stop,
}

/// The thread, from outside.
#[derive(Debug)]
pub(super) struct Meeting {
    inbox: Arc<Inbox<Wish>>,
    networks: Vec<Network>,
    /// Between which addresses there is a link.
    links: Arc<Mutex<HashSet<Addresses>>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread needs of others.
pub(super) struct Parts {
    pub(super) inbox: Arc<Inbox<Wish>>,
    pub(super) networks: Vec<Network>,
    /// Addresses to listen at; none: all.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) vectors: Vec<Arc<Inbox<Order>>>,
    /// Whether a guest listens on a port.
    pub(super) listens: Box<dyn Fn(u16) -> bool + Send>,
    /// Whether guests hand over what comes from a host.
    pub(super) mark: Box<dyn Fn(IpAddr, bool) + Send>,
}

impl Meeting {
    /// Listens, and starts the thread.
    ///
    /// # Errors
    ///
    /// The port is somebody else's.
    pub(super) fn start(parts: Parts) -> io::Result<Self> {
        let (inbox, networks) = (Arc::clone(&parts.inbox), parts.networks.clone());
        let here = Here::new(parts)?;
        let links = Arc::clone(&here.known);
        let thread =
            std::thread::Builder::new().name("shunt-meeting".into()).spawn(move || here.work())?;
        Ok(Self { inbox, networks, links, thread: Some(thread) })
    }

    /// Whether the host at the second address may have an engine.
    pub(super) fn may_know(&self, remote: IpAddr) -> bool {
        self.networks.iter().any(|network| network.has(remote))
    }

    /// Whether its engine is known; if not, it is looked for.
    pub(super) fn knows(&self, addresses: Addresses) -> bool {
        let knows = held(&self.links).contains(&addresses);
        if !knows && self.may_know(addresses.1) {
            self.inbox.put(Wish::Know(addresses));
        }
        knows
    }

    /// Hosts whose engines are known, in order.
    pub(super) fn hosts(&self) -> Vec<IpAddr> {
        let mut all: Vec<IpAddr> = held(&self.links).iter().map(|(_, remote)| *remote).collect();
        all.sort();
        all.dedup();
        all
    }
}

impl Drop for Meeting {
    fn drop(&mut self) {
        self.inbox.put(Wish::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

const INBOX: u64 = 0;
const LISTENER: u64 = 1;
const FIRST_LINK: u64 = 2;

/// A TCP connection to another engine.
#[derive(Debug)]
struct Link {
    stream: TcpStream,
    addresses: Addresses,
    /// The other has greeted; if not, it has since then not.
    greeted: bool,
    since: u64,
    /// We have connected, and greet first.
    ours: bool,
    came: Vec<u8>,
    going: Vec<u8>,
    waits: bool,
}

/// The thread's own.
struct Here {
    parts: Parts,
    poller: Poller,
    listeners: Vec<TcpListener>,
    register: Register,
    links: HashMap<LinkId, Link>,
    next: u64,
    /// When a host was last connected to.
    tried: HashMap<Addresses, u64>,
    connecting: usize,
    seek: Seek,
    /// Nothing is accepted until then.
    paused: Option<u64>,
    known: Arc<Mutex<HashSet<Addresses>>>,
}

impl Here {
    /// Listens.
    fn new(parts: Parts) -> io::Result<Self> {
        let mut listeners = Vec::new();
        if parts.addresses.is_empty() {
            // IPv4 comes here too, unless there is no IPv6.
            let all = TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT));
            listeners.push(all.or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))?);
        }
        for address in &parts.addresses {
            listeners.push(TcpListener::bind((*address, PORT))?);
        }
        let poller = Poller::new().map_err(io::Error::other)?;
        poller.add(&*parts.inbox, Interest::READ, INBOX).map_err(io::Error::other)?;
        for listener in &listeners {
            listener.set_nonblocking(true)?;
            poller.add(listener, Interest::READ, LISTENER).map_err(io::Error::other)?;
        }
        let seek = Seek::new(&parts.networks);
        Ok(Self {
            parts,
            poller,
            seek,
            listeners,
            register: Register::default(),
            links: HashMap::new(),
            next: FIRST_LINK,
            tried: HashMap::new(),
            connecting: 0,
            paused: None,
            known: Arc::default(),
        })
    }

    fn work(mut self) {
        let mut events = Events::new(64);
        loop {
            let most = self.next_due().map(|at| at.saturating_sub(call::now_ns()));
            self.poller.wait(&mut events, most);
            self.tick(call::now_ns());
            let told: Vec<_> = events.iter().map(|event| event.token).collect();
            for token in told {
                match token {
                    INBOX => {
                        if self.take_wishes() {
                            return;
                        }
                    }
                    LISTENER => self.accept(call::now_ns()),
                    link => self.on_link(LinkId(link)),
                }
            }
        }
    }

    /// When the next deadline is.
    fn next_due(&self) -> Option<u64> {
        let late = self.links.values().filter(|link| !link.greeted).map(Link::due);
        late.chain(self.paused).chain(self.seek.due()).min()
    }

    /// Time has passed.
    fn tick(&mut self, now: u64) {
        let late = |link: &Link| !link.greeted && link.due() <= now;
        let late: Vec<LinkId> =
            self.links.iter().filter(|(_, link)| late(link)).map(|(id, _)| *id).collect();
        for id in late {
            self.close(id);
        }
        if self.paused.take_if(|until| *until <= now).is_some() {
            self.listen(Interest::READ);
        }
        let links = &self.links;
        let is_known = |host| links.values().any(|link| link.addresses.1 == host);
        for host in self.seek.turn(now, is_known) {
            if let Some(local) = self.source(host) {
                // It has a pace of its own.
                self.tried.remove(&(local, host));
                self.look_for((local, host), now);
            }
        }
    }

    /// From where we get to a host that is not this one: what we listen at, where that is said.
    fn source(&self, host: IpAddr) -> Option<IpAddr> {
        let local = seek::source(host)?;
        let ours = &self.parts.addresses;
        if ours.contains(&host) {
            return None;
        }
        if ours.is_empty() || ours.contains(&local) {
            return Some(local);
        }
        ours.iter().find(|address| address.is_ipv4() == host.is_ipv4()).copied()
    }

    /// Does what was asked for. Whether that was to end.
    fn take_wishes(&mut self) -> bool {
        for wish in self.parts.inbox.take() {
            let now = call::now_ns();
            let deeds = match wish {
                Wish::Know(addresses) => {
                    self.look_for(addresses, now);
                    Vec::new()
                }
                Wish::Connected(asked, stream) => {
                    self.connecting -= 1;
                    // Guests are told when the other has greeted; what comes from there they hand over now,
                    // so that nobody is asked about a connection that a listener keeps.
                    let ready = stream.and_then(|stream| self.add(stream, true, now));
                    if ready.is_err() {
                        self.tried.insert(asked, now);
                    }
                    Vec::new()
                }
                Wish::Come(seat, role, ends) => self.register.come(seat, role, ends, now),
                Wish::Left(seat, Role::Client, _, begun) => self.register.client_left(seat, begun),
                Wish::Left(seat, Role::Server, ends, _) => {
                    self.register.server_left(seat, ends, now)
                }
                Wish::Reply(seat, question, yes) => {
                    vec![self.register.replied(seat, question, yes)]
                }
                Wish::Stop => return true,
            };
            self.act(deeds);
        }
        false
    }

    /// Connects to an engine that may be there.
    fn look_for(&mut self, addresses: Addresses, now: u64) {
        let early = |at: &u64| at.saturating_add(AGAIN_NS) > now;
        if self.links.values().any(|link| link.addresses == addresses)
            || self.tried.get(&addresses).is_some_and(early)
            || self.connecting >= CONNECTING_MAX
            || self.links.len() >= LINKS_MAX
        {
            return;
        }
        self.tried.retain(|_, at| early(at));
        self.tried.insert(addresses, now);
        let inbox = Arc::clone(&self.parts.inbox);
        let tries = move || inbox.put(Wish::Connected(addresses, connect(addresses)));
        let thread = std::thread::Builder::new().name("shunt-meets".into()).spawn(tries);
        self.connecting += usize::from(thread.is_ok());
    }

    fn accept(&mut self, now: u64) {
        for at in 0..self.listeners.len() {
            for _ in 0..ACCEPTED_MAX {
                match self.listeners[at].accept() {
                    Ok((stream, from)) => {
                        let from = from.ip().to_canonical();
                        if self.parts.networks.iter().any(|network| network.has(from)) {
                            let _ = self.add(stream, false, now);
                        }
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    // It has gone again.
                    Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                    Err(_) => return self.pause(now),
                }
            }
        }
    }

    /// Accepts nothing for a while: what waits there would wake us all the time.
    fn pause(&mut self, now: u64) {
        self.paused = Some(now + PAUSE_NS);
        self.listen(Interest::NOTHING);
    }

    fn listen(&self, interest: Interest) {
        for listener in &self.listeners {
            let _ = self.poller.change(listener, interest, LISTENER);
        }
    }

    fn add(&mut self, stream: TcpStream, ours: bool, now: u64) -> io::Result<()> {
        let ip = |address: SocketAddr| address.ip().to_canonical();
        let addresses = (ip(stream.local_addr()?), ip(stream.peer_addr()?));
        if addresses.0 == addresses.1 {
            return Err(ErrorKind::InvalidInput.into());
        }
        let of_host = self.links.values().filter(|link| link.addresses.1 == addresses.1).count();
        if self.links.len() >= LINKS_MAX || of_host >= LINKS_OF_HOST {
            return Err(ErrorKind::QuotaExceeded.into());
        }
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        watch_over(&stream)?;
        let id = LinkId(self.next);
        self.next += 1;
        self.poller.add(&stream, Interest::READ, id.0).map_err(io::Error::other)?;
        let going = if ours { GREETING.to_vec() } else { Vec::new() };
        if ours {
            // It must not hear of us before our guests hand over what comes from there.
            (self.parts.mark)(addresses.1, true);
        }
        let (greeted, since, came, waits) = (false, now, Vec::new(), false);
        let link = Link { stream, addresses, greeted, since, ours, came, going, waits };
        self.links.insert(id, link);
        self.flush(id);
        Ok(())
    }

    fn on_link(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        match link.read() {
            Ok(()) => {}
            Err(_) => return self.close(id),
        }
        loop {
            let Some(link) = self.links.get_mut(&id) else { return };
            let deeds = if !link.greeted {
                match link.take() {
                    None => break,
                    Some(greeting) if greeting != GREETING => return self.close(id),
                    Some(_) => self.greet(id),
                }
            } else {
                match link.take().map(Word::parse) {
                    None => break,
                    Some(None) => return self.close(id),
                    Some(Some(word)) => {
                        let listens = &self.parts.listens;
                        self.register.heard(id, word, call::now_ns(), listens)
                    }
                }
            };
            self.act(deeds);
        }
        self.flush(id);
    }

    /// The other engine has greeted: it is known from now on.
    fn greet(&mut self, id: LinkId) -> Vec<Deed> {
        let Some(link) = self.links.get_mut(&id) else { return Vec::new() };
        link.greeted = true;
        let (addresses, ours) = (link.addresses, link.ours);
        let deeds = self.register.met(id, addresses);
        self.act(deeds);
        if let Some(link) = self.links.get_mut(&id).filter(|_| !ours) {
            link.going.extend_from_slice(&GREETING);
        }
        held(&self.known).insert(addresses);
        Vec::new()
    }

    fn act(&mut self, deeds: Vec<Deed>) {
        for deed in deeds {
            match deed {
                Deed::Say(link, word) => {
                    if let Some(there) = self.links.get_mut(&link) {
                        there.going.extend_from_slice(&word.emit());
                    }
                    self.flush(link);
                }
                Deed::Promise(seat, question) => {
                    self.order(seat, Order::Promise(Id::from_number(seat.exchange()), question));
                }
                Deed::Answer(seat, answer) => {
                    self.order(seat, Order::Answer(Id::from_number(seat.exchange()), answer));
                }
                Deed::Withdrawn(seat) => {
                    self.order(seat, Order::Withdrawn(Id::from_number(seat.exchange())));
                }
                Deed::Mark(host, on) => (self.parts.mark)(host, on),
            }
        }
    }

    fn order(&self, seat: Seat, order: Order) {
        if let Some(inbox) = self.parts.vectors.get(seat.vector()) {
            inbox.put(order);
        }
    }

    fn flush(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        if link.write().is_err() || link.going.len() > UNSAID_MAX {
            return self.close(id);
        }
        let waits = !link.going.is_empty();
        if waits != link.waits {
            link.waits = waits;
            let interest = Interest { write: waits, ..Interest::READ };
            let _ = self.poller.change(&link.stream, interest, id.0);
        }
    }

    fn close(&mut self, id: LinkId) {
        let Some(link) = self.links.remove(&id) else { return };
        let deeds = if link.greeted {
            self.seek.lost(link.addresses.1, call::now_ns());
            self.register.lost(id)
        } else {
            Vec::new()
        };
        let known: HashSet<Addresses> = self.register.addresses().collect();
        *held(&self.known) = known;
        // The register knows of those only that have greeted.
        if !link.greeted && !self.links.values().any(|l| l.addresses.1 == link.addresses.1) {
            (self.parts.mark)(link.addresses.1, false);
        }
        self.act(deeds);
    }
}

impl Link {
    /// When the other must have greeted.
    fn due(&self) -> u64 {
        self.since.saturating_add(GREETING_NS)
    }

    /// Takes in what has come.
    fn read(&mut self) -> io::Result<()> {
        let mut room = [0; 4096];
        // What is more than this is for the next time, so that nobody keeps us.
        match self.stream.read(&mut room) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                self.came.extend_from_slice(&room[..n]);
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::Interrupted => {
                Ok(())
            }
            Err(e) => Err(e),
        }
    }

    /// The first so many bytes of what has come, if they have.
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let first = *self.came.first_chunk::<N>()?;
        self.came.drain(..N);
        Some(first)
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.going.is_empty() {
            match self.stream.write(&self.going) {
                Ok(n) => drop(self.going.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Connects from one address to another.
fn connect((local, remote): Addresses) -> io::Result<TcpStream> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddr::new(local, 0))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(CONNECT_TIME))?;
    rustix::net::connect(&socket, &SocketAddr::new(remote, PORT))?;
    Ok(TcpStream::from(socket))
}

/// A host that dies without a word is noticed.
fn watch_over(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SILENCE)?;
    sockopt::set_tcp_keepintvl(stream, SILENCE)?;
    sockopt::set_tcp_keepcnt(stream, QUESTIONS)?;
    // Questions are asked only while nothing is on the way.
    sockopt::set_tcp_user_timeout(stream, UNHEARD_MS)?;
    Ok(())
}

#[cfg(test)]
mod tests;
