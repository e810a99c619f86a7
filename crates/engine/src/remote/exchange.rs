//! The handshake of one connection: CLC on its TCP connection, driven by [`smc::handshake`].
//!
//! What the machines ask for is done by the vector that owns them. First contact with a peer is waited for
//! by all who come meanwhile, and by nobody else.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, OwnedFd};

use roce::Key;
use smc::cdc::{Cdc, ProducerFlags};
use smc::clc::Diagnosis;
use smc::group::{BufferId, LinkBuffer, LinkSlot};
use smc::handshake::{Client, FallBack, Identity, LocalEnd, PeerEnd, Proposed, Server, Step};
use smc::{Gid, Limits, Mtu, RKey, SizeClass, Time, Token};
use sys::event::Interest;
use sys::{call, interface};

use super::group::{GroupId, Peer, gid_of};
use super::guest::{Program, Role};
use super::habit;
use super::meeting::{Ends, Wish};
use super::opening::Begun;
use super::running::{Running, Smc, Start};
use super::setup::Wait;
use super::shelf::{ConnId, Place};
use super::slab::Id;
use super::vector::{Vector, smc_time};
use super::why;
use super::wire::{EYE_CATCHER, Ended, Wire};

/// Messages of a client that are kept when they come by RDMA before its Confirm has come by TCP.
const EARLY_MAX: usize = 16;
/// Levels and names of socket options: the longest packet of a connection's path.
const IP_MTU: (i32, i32) = (0, 14);
const IPV6_MTU: (i32, i32) = (41, 24);
/// What any path is taken to carry if the kernel does not say, or a router is on it.
const PATH_BYTES: u32 = 1500;

/// Names an exchange.
pub(super) type ExchangeId = Id<Exchange>;

/// Either side's machine.
#[derive(Debug)]
pub(super) enum Machine {
    /// A client that waits for another to have made first contact.
    Waits,
    /// Waits until then for the peer's engine to say that it has the other end.
    Asks(Role, Time),
    Client(Client),
    Server(Server),
}

/// What a connection has in a link group.
#[derive(Clone, Copy, Debug)]
pub(super) struct InGroup {
    pub(super) group: GroupId,
    pub(super) token: Token,
    /// The link that the Accept names, or will name, and that the connection uses until it is lost.
    pub(super) slot: LinkSlot,
    pub(super) buffer: BufferId,
}

/// What the peer of a connection writes into, as it is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rmb {
    pub(super) key: Key,
    pub(super) vaddr: u64,
    pub(super) bytes: u64,
}

/// First contact with a peer that is being made by a client.
#[derive(Debug)]
pub(super) struct Courting {
    /// Whose handshake makes it.
    by: ExchangeId,
    /// Clients that wait for that.
    waiting: VecDeque<ExchangeId>,
    /// Until when they do, nanoseconds; then each makes first contact for itself.
    until: u64,
}

/// How long bytes of a program that has closed are kept for a server that has not accepted its connection, nanoseconds.
const CLOSED_NS: u64 = 60_000_000_000;

/// How long clients wait for another to have made first contact, nanoseconds: its server may be one that does not accept its
/// connections for now, while theirs do.
const COURTING_NS: u64 = 1_000_000_000;

impl Courting {
    fn by(by: ExchangeId, now: u64) -> Self {
        Self { by, waiting: VecDeque::new(), until: now + COURTING_NS }
    }

    /// When those who wait do so no longer, if any do.
    pub(super) fn due(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(self.until)
    }
}

/// One handshake.
#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) conn: ConnId,
    pub(super) wire: Wire,
    pub(super) machine: Machine,
    /// Of the TCP connection; RoCEv2 is spoken from the first, unless settings say otherwise.
    pub(super) local: IpAddr,
    pub(super) remote: IpAddr,
    /// Where a client's guest has connected to.
    pub(super) to: Option<SocketAddrV6>,
    /// The peer's system and address, for a server that waits for a group.
    pub(super) proposed: Option<Proposed>,
    /// What the peer has said about its end.
    pub(super) peer: Option<Box<PeerEnd>>,
    /// What it has in a group.
    pub(super) place: Option<InGroup>,
    /// This connection makes the group.
    pub(super) first: bool,
    pub(super) rmb: Option<Rmb>,
    /// Region of what its guest will send.
    stream: Option<Key>,
    /// Messages that came before the handshake was over.
    pub(super) early: Vec<Cdc>,
    /// What the vector waits for on the TCP connection.
    pub(super) watched: Interest,
    /// Something has come of which nobody can make anything before it begins.
    spoken_to: bool,
    /// A message has come.
    heard: bool,
    /// The ends, of a connection that has announced nothing: the peer may not speak SMC after all.
    pub(super) asks: Option<Ends>,
    /// It is one of those of its peer, and not beyond them ([`Shares`](super::shares::Shares)).
    pub(super) counts: bool,
    /// The peer's engine has said that it waits for a client's first message.
    pub(super) answered: bool,
    /// It has found that RoCEv2 does not reach the peer.
    unreachable: bool,
    /// Since when there is nothing that it could do; `None`: there is.
    pub(super) waits_since: Option<u64>,
    /// Since when its program has closed, nanoseconds, while its server has not answered yet.
    closed_since: Option<u64>,
    /// What it waits for comes by a link, and so long its question has lain here, nanoseconds.
    by_link: bool,
    lay_ns: u64,
}

impl Exchange {
    pub(super) fn new(
        conn: ConnId,
        tcp: OwnedFd,
        (local, remote): (IpAddr, IpAddr),
        to: Option<SocketAddrV6>,
        since: u64,
    ) -> Self {
        Self {
            conn,
            wire: Wire::new(tcp),
            machine: Machine::Waits,
            local,
            remote,
            to,
            proposed: None,
            peer: None,
            place: None,
            first: false,
            rmb: None,
            stream: None,
            early: Vec::new(),
            watched: Interest::READ,
            spoken_to: false,
            heard: false,
            asks: None,
            counts: true,
            answered: false,
            unreachable: false,
            waits_since: Some(since),
            closed_since: None,
            by_link: false,
            lay_ns: 0,
        }
    }

    /// Whether it waits for the first message of a peer that has announced nothing.
    pub(super) fn is_unheard(&self) -> bool {
        self.asks.is_some() && !self.heard && matches!(self.machine, Machine::Server(_))
    }

    /// Whether the peer, whose engine has been promised a handshake, sends what is none.
    fn is_spurned_by(&self, bytes: &[u8]) -> bool {
        self.asks.is_some() && !self.heard && !bytes.starts_with(&EYE_CATCHER)
    }

    /// Whether it waits for nothing but a server that has not answered, or for another one that does.
    fn only_waits(&self) -> bool {
        match &self.machine {
            Machine::Waits => true,
            Machine::Client(client) => client.awaits_accept(),
            Machine::Asks(..) | Machine::Server(_) => false,
        }
    }

    /// What to wait for on the TCP connection. What comes while it only waits for another one's first contact nobody reads
    /// before it begins, and it must not be told for as long as that takes.
    pub(super) fn interest(&self) -> Interest {
        if self.spoken_to && matches!(self.machine, Machine::Waits) {
            return Interest { once: true, ..Interest::NOTHING };
        }
        Interest { write: self.wire.is_full(), ..Interest::READ }
    }

    /// When it ends because its program has closed; not once its server has answered.
    pub(super) fn ends_at(&self) -> Option<u64> {
        self.closed_since.filter(|_| self.only_waits()).map(|since| since + CLOSED_NS)
    }

    /// The first step may be taken.
    pub(super) fn begin(&mut self, role: Role, identity: Identity, limits: Limits, now: Time) {
        self.machine = match role {
            Role::Client => Machine::Client(Client::new(identity, limits, now)),
            Role::Server => Machine::Server(Server::new(identity, limits, now)),
        };
    }

    pub(super) fn role(&self) -> Role {
        match self.machine {
            Machine::Asks(role, _) => role,
            Machine::Waits | Machine::Client(_) => Role::Client,
            Machine::Server(_) => Role::Server,
        }
    }
}

impl Machine {
    pub(super) fn poll(&mut self) -> Option<Step> {
        match self {
            Self::Waits | Self::Asks(..) => None,
            Self::Client(client) => client.poll(),
            Self::Server(server) => server.poll(),
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        match self {
            Self::Waits => None,
            Self::Asks(_, until) => Some(*until),
            Self::Client(client) => client.next_deadline(),
            Self::Server(server) => server.next_deadline(),
        }
    }

    pub(super) fn on_deadline(&mut self, now: Time) {
        match self {
            Self::Waits | Self::Asks(..) => {}
            Self::Client(client) => client.on_deadline(now),
            Self::Server(server) => server.on_deadline(now),
        }
    }

    /// Whether bytes of the TCP connection are CLC messages.
    pub(super) fn wants_message(&self) -> bool {
        match self {
            Self::Waits | Self::Asks(..) => false,
            Self::Client(client) => client.wants_message(),
            Self::Server(server) => server.wants_message(),
        }
    }

    pub(super) fn on_bytes(&mut self, bytes: &[u8]) {
        match self {
            Self::Waits | Self::Asks(..) => {}
            Self::Client(client) => client.on_bytes(bytes),
            Self::Server(server) => server.on_bytes(bytes),
        }
    }

    pub(super) fn refuse(&mut self, why: Diagnosis) {
        match self {
            Self::Waits | Self::Asks(..) => {}
            Self::Client(client) => client.refuse(why),
            Self::Server(server) => server.refuse(why),
        }
    }

    /// Our end is ready.
    pub(super) fn ready(&mut self, end: &LocalEnd, first: bool, gids: &[Gid], now: Time) {
        match self {
            Self::Waits | Self::Asks(..) => {}
            Self::Client(client) => client.confirm(end, gids),
            Self::Server(server) => server.accept(end, first, now),
        }
    }

    pub(super) fn link_confirmed(&mut self) {
        match self {
            Self::Waits | Self::Asks(..) => {}
            Self::Client(client) => client.link_confirmed(),
            Self::Server(server) => server.link_confirmed(),
        }
    }

    pub(super) fn link_timed_out(&mut self, now: Time) {
        match self {
            Self::Waits | Self::Asks(..) => {}
            Self::Client(client) => client.link_timed_out(now),
            Self::Server(server) => server.link_timed_out(now),
        }
    }
}

impl Vector {
    /// What we are, to a peer that a connection from `local` leads to.
    fn identity(&self, local: IpAddr) -> Identity {
        let eids = self.config.eids.clone();
        let mac = self.device.mac(local).unwrap_or(self.mac);
        let (system, gid, host) = (self.system, gid_of(local), self.host);
        let answers_marks = self.config.congestion && self.device.answers_marks();
        Identity { system, gid, mac, host, eids, answers_marks }
    }

    /// Which address RoCEv2 is spoken from for a connection.
    fn address_for(&self, local: IpAddr) -> IpAddr {
        self.config.addresses.first().copied().unwrap_or(local)
    }

    /// What a handshake has waited for is here, and has been since `came` at the latest; 0: all the time, it has
    /// waited for something else than the network.
    pub(super) fn resume(&mut self, id: ExchangeId, kind: Wait, came: u64) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        exchange.by_link = false;
        let lay_ns = std::mem::take(&mut exchange.lay_ns);
        // What the peer need not be asked for is answered at once.
        let Some(since) = exchange.waits_since.take() else { return };
        // Not the time at which the loop began with what it does: others may have been before this one.
        let now = call::now_ns();
        self.setup_at = now;
        self.waits.ended(id, kind, since, came, now);
        if kind == Wait::Link {
            self.waits.lay(kind, lay_ns);
        }
    }

    /// A handshake may begin; a client's, unless somebody else is making first contact with that peer.
    pub(super) fn begin(&mut self, id: ExchangeId, role: Role, now: u64) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let (local, remote) = (exchange.local, exchange.remote);
        if role == Role::Client && !self.groups.is_client_of(remote) {
            let courts_in_vain = self.courts_in_vain(remote, now);
            match self.courting.get_mut(&remote) {
                Some(courting) if !courts_in_vain => {
                    if let Some(exchange) = self.exchanges.get_mut(id) {
                        exchange.waits_since = Some(call::now_ns());
                    }
                    courting.waiting.push_back(id);
                    return;
                }
                Some(_) => {}
                None => {
                    self.courting.insert(remote, Courting::by(id, now));
                }
            }
        }
        let mut identity = self.identity(self.address_for(local));
        let limits = self.limits();
        if let Some(exchange) = self.exchanges.get_mut(id) {
            if !exchange.counts {
                // Beyond what settings allow SMC is not spoken, and peers are told so.
                identity.eids.clear();
            }
            exchange.begin(role, identity, limits, smc_time(now));
        }
        self.take_steps(id, now);
    }

    /// A client's handshake, whose Proposal the door has sent.
    pub(super) fn go_on(&mut self, id: ExchangeId, begun: Begun, now: u64) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        exchange.machine = Machine::Client(begun.client);
        if !self.groups.is_client_of(exchange.remote) {
            // The group has ended meanwhile: this is first contact now, and nobody else makes it beside.
            self.courting.entry(exchange.remote).or_insert_with(|| Courting::by(id, now));
        }
        // The peer may have gone meanwhile; nothing of ours has been built on it yet.
        if exchange.wire.send(&begun.rest).is_err() {
            return self.break_off(id, now, "The TCP connection ended.");
        }
        self.watch_wire(id);
    }

    /// Whether first contact with a peer is being made by one whose server has said nothing for long: nobody waits for it.
    fn courts_in_vain(&self, remote: IpAddr, now: u64) -> bool {
        let Some(courting) = self.courting.get(&remote) else { return false };
        let by = self.exchanges.get(courting.by).map(|exchange| &exchange.machine);
        courting.until <= now
            && matches!(by, Some(Machine::Client(client)) if client.awaits_accept())
    }

    /// Those who have waited in vain for another to make first contact make it themselves.
    pub(super) fn court_no_longer(&mut self, now: u64) {
        let is_due = |courting: &Courting| courting.due().is_some_and(|at| at <= now);
        let due = self.courting.iter().filter(|(_, courting)| is_due(courting));
        let due: Vec<_> = due.map(|(remote, _)| *remote).collect();
        for remote in due {
            let is_vain = self.courts_in_vain(remote, now);
            let Some(courting) = self.courting.get_mut(&remote) else { continue };
            if !is_vain {
                // The server has answered: it is the link that is waited for now.
                courting.until = now + COURTING_NS;
                continue;
            }
            for id in std::mem::take(&mut courting.waiting) {
                self.resume(id, Wait::Contact, 0);
                self.begin(id, Role::Client, now);
            }
        }
    }

    /// Whoever made first contact with a peer is done; those who waited go on. Where the peer is `unreachable`,
    /// each of them would find that out in turn, the last of them long after its server has lost patience: they
    /// leave SMC at once.
    fn courted(&mut self, remote: IpAddr, unreachable: bool, now: u64) {
        let waiting = self.courting.remove(&remote).map(|courting| courting.waiting);
        for id in waiting.unwrap_or_default() {
            self.resume(id, Wait::Contact, 0);
            if unreachable { self.stand_aside(id, now) } else { self.begin(id, Role::Client, now) }
        }
    }

    /// A client that has not begun leaves its connection to TCP, and tells the server so.
    fn stand_aside(&mut self, id: ExchangeId, now: u64) {
        self.decline_first(id);
        self.take_steps(id, now);
    }

    /// A client whose server waits for its first message, and that has not been able to begin in time, leaves its connection
    /// to TCP and tells the server so. Not by the link between the engines, which may be lost by now.
    pub(super) fn take_back(&mut self, id: ExchangeId, why: &str, now: u64) {
        self.decline_first(id);
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        while let Some(step) = exchange.machine.poll() {
            if let Step::Send(bytes) = step
                && exchange.wire.send(&bytes).is_err()
            {
                return self.break_off(id, now, "The TCP connection ended.");
            }
        }
        self.stay_plain(id, why, now);
    }

    /// The first message of a client is that it does not want to.
    fn decline_first(&mut self, id: ExchangeId) {
        let Some(local) = self.exchanges.get(id).map(|exchange| exchange.local) else { return };
        let identity = self.identity(self.address_for(local));
        let client = Client::declining(identity, self.limits(), Diagnosis::NoActiveLink);
        if let Some(exchange) = self.exchanges.get_mut(id) {
            exchange.machine = Machine::Client(client);
        }
    }

    /// The TCP connection of a handshake can be read or written, or is `broken`.
    pub(super) fn on_wire(&mut self, id: ExchangeId, broken: bool, now: u64) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        if let Machine::Asks(..) = exchange.machine {
            return self.stay_plain(id, "The peer spoke before its engine did.", now);
        }
        exchange.spoken_to = true;
        if exchange.wire.flush().is_err() {
            return self.break_off(id, now, "The TCP connection ended.");
        }
        if exchange.machine.wants_message() {
            // One message: whether there is another already the poller says, and mostly there is none.
            match exchange.wire.receive() {
                Ok(Some(bytes)) if exchange.is_spurned_by(&bytes) => {
                    exchange.wire.give_back(bytes);
                    return self.stay_plain(id, "The peer's engine withdrew.", now);
                }
                Ok(Some(bytes)) => {
                    exchange.heard = true;
                    exchange.machine.on_bytes(&bytes);
                    let came = exchange.wire.came_at().unwrap_or(self.looked_at);
                    self.resume(id, Wait::Tcp, came);
                    self.take_steps(id, now);
                }
                // It goes on, so what is wrong with it is about bytes that others have sent.
                Ok(None) if broken => call::forget_errors(exchange.wire.as_raw_fd()),
                Ok(None) => {}
                Err(Ended(_)) => return self.break_off(id, now, "The TCP connection ended."),
            }
        }
        self.watch_wire(id);
    }

    /// Does for guests whose handshake is not over what they may wait for, such as to go back to TCP, and ends what programs
    /// have given up while their server did not answer.
    pub(super) fn attend_waiting(&mut self, now: u64) {
        let mut over = Vec::new();
        for (id, exchange) in self.exchanges.iter_mut() {
            let Some(relay) = self.shelf.rings.get_mut(exchange.conn) else { continue };
            // What makes no sense does not either when its turn comes.
            let written = relay.written().unwrap_or(0);
            if !exchange.only_waits() {
                continue;
            }
            match relay.program() {
                Program::Open | Program::Shut => {}
                Program::Reset => over.push((id, true)),
                Program::Closed => {
                    let since = *exchange.closed_since.get_or_insert(now);
                    if written == 0 || since + CLOSED_NS <= now {
                        over.push((id, written > 0));
                    }
                }
            }
        }
        for (id, reset) in over {
            self.end(id, now, "The program ended it before it was accepted.", reset);
        }
    }

    /// The connection cannot go on, neither by SMC nor by TCP: what its next byte is nobody knows.
    fn break_off(&mut self, id: ExchangeId, now: u64, why: &str) {
        let to = self.exchanges.get(id).and_then(|exchange| exchange.to);
        self.learn(to, habit::NOTHING);
        self.end(id, now, why, true);
    }

    /// A handshake ends, and its connection with it.
    fn end(&mut self, id: ExchangeId, now: u64, why: &str, reset: bool) {
        self.abandon(id, now);
        let Some(exchange) = self.remove_exchange(id, now) else { return };
        self.poller.remove(&exchange.wire);
        self.stat.aborted_total += 1;
        super::stat::note(&mut self.stat.broken_off, why);
        if reset {
            reset_on_close(&exchange.wire);
        } else {
            close_at_once(&exchange.wire);
        }
        self.close(exchange.conn, reset);
    }

    /// Does what a handshake wants to have done.
    pub(super) fn take_steps(&mut self, id: ExchangeId, now: u64) {
        self.setup_at = now;
        self.setup_steps += 1;
        while let Some(step) = self.exchanges.get_mut(id).and_then(|e| e.machine.poll()) {
            match step {
                Step::Send(bytes) => {
                    let sent = self.exchanges.get_mut(id).map(|e| e.wire.send(&bytes));
                    if let Some(Err(Ended(_))) = sent {
                        return self.break_off(id, now, "The TCP connection ended.");
                    }
                    self.watch_wire(id);
                }
                Step::FindGroup(proposed) => {
                    if let Some(exchange) = self.exchanges.get_mut(id) {
                        exchange.proposed = Some(proposed);
                    }
                    self.find_group(id, now);
                }
                Step::Prepare(peer) => self.prepare(id, peer, now),
                Step::ConfirmLink(peer) => self.confirm_link(id, peer, now),
                Step::Established(peer) => return self.established(id, peer, now),
                Step::FallBack(why) => return self.fall_back(id, &why, now),
                Step::Abort(why) => return self.break_off(id, now, &why.to_string()),
            }
        }
        if let Some(exchange) = self.exchanges.get_mut(id) {
            self.waits.sent(id);
            exchange.waits_since = Some(call::now_ns());
        }
    }

    /// What a handshake waits for next comes by a link; its question leaves with the next packets.
    fn wait_for_link(&mut self, id: ExchangeId) {
        if let Some(exchange) = self.exchanges.get_mut(id) {
            exchange.by_link = true;
            self.unsent.push(id);
        }
    }

    /// What handshakes had to say by their links has been sent; they wait for the answer from now on.
    pub(super) fn all_sent(&mut self) {
        let now = call::now_ns();
        for id in self.unsent.drain(..) {
            // One whose peer need not be asked waits for something else by now.
            let Some(exchange) = self.exchanges.get_mut(id).filter(|e| e.by_link) else { continue };
            if let Some(since) = exchange.waits_since.replace(now) {
                exchange.lay_ns += now.saturating_sub(since);
            }
        }
    }

    /// Server: what another one's first contact with the client has kept is tried again, and may have to wait again.
    pub(super) fn find_group_again(&mut self, id: ExchangeId, now: u64) {
        self.resume(id, Wait::Contact, 0);
        self.find_group(id, now);
        if let Some(exchange) = self.exchanges.get_mut(id) {
            exchange.waits_since.get_or_insert_with(call::now_ns);
        }
    }

    /// Server: joins a link group of the client's, waits for one that is being made, or makes one.
    pub(super) fn find_group(&mut self, id: ExchangeId, now: u64) {
        let Some(exchange) = self.exchanges.get(id) else { return };
        let Some(proposed) = exchange.proposed else { return };
        let between = (exchange.local, exchange.remote);
        let path = path_bytes(&exchange.wire);
        let mtu = Mtu::new(self.device.mtu(path).code());
        let ends = (self.address_for(exchange.local), exchange.remote);
        if let Some(group) = self.groups.serving(&proposed, between, mtu) {
            self.join(id, group, None, now);
        } else if let Some(group) = self.groups.pending(&proposed, between) {
            if let Some(group) = self.groups.get_mut(group) {
                group.waiting.push(id);
            }
        } else {
            let ends = (ends.0, ends.1, sure_bytes(path, between));
            let made = self.new_group(id, Peer::Client(&proposed), ends, now);
            self.join_new(id, made, now);
        }
    }

    /// Client: the server has accepted.
    fn prepare(&mut self, id: ExchangeId, peer: Box<PeerEnd>, now: u64) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let (ends, path) = ((exchange.local, exchange.remote), path_bytes(&exchange.wire));
        exchange.peer = Some(peer.clone());
        if peer.terms.is_some() {
            let ends = (self.address_for(ends.0), ends.1, sure_bytes(path, ends));
            let made = self.new_group(id, Peer::Server(&peer), ends, now);
            return self.join_new(id, made, now);
        }
        let mtu = Mtu::new(self.device.mtu(path).code());
        match self.groups.named(&peer, ends.1) {
            // The server does not know that its packets, or ours, have become too long for the path.
            Ok((group, _)) if !self.groups.fits(group, mtu) => self.refuse(id, Diagnosis::NoRoute),
            Ok((group, slot)) => self.join(id, group, Some(slot), now),
            Err(why) => self.refuse(id, why),
        }
    }

    fn refuse(&mut self, id: ExchangeId, why: Diagnosis) {
        if let Some(exchange) = self.exchanges.get_mut(id) {
            exchange.machine.refuse(why);
        }
    }

    /// The first connection of a group that was made for it.
    fn join_new(&mut self, id: ExchangeId, made: Result<GroupId, Diagnosis>, now: u64) {
        let joined = made.and_then(|group| {
            if let Some(exchange) = self.exchanges.get_mut(id) {
                exchange.first = true;
            }
            let (place, _) = self.take_place(id, group, None, now).inspect_err(|_| {
                self.drop_group(group, now);
            })?;
            // A client's link is ready before the Confirm goes: CONFIRM LINK comes right behind it.
            self.act(group, now);
            Ok(place)
        });
        match joined {
            Ok(place) => self.show_end(id, place, now),
            Err(why) => {
                self.refuse(id, why);
                self.take_steps(id, now);
            }
        }
    }

    /// One more connection of a group: the peer must know the buffer before it hears of the connection.
    fn join(&mut self, id: ExchangeId, group: GroupId, named: Option<LinkSlot>, now: u64) {
        match self.take_place(id, group, named, now) {
            Err(why) => {
                self.refuse(id, why);
                self.take_steps(id, now);
            }
            Ok((place, true)) => self.show_end(id, place, now),
            Ok((_, false)) => {
                self.wait_for_link(id);
                self.act(group, now);
            }
        }
    }

    /// A token, and a buffer that the peer is told of; whether it knows it already.
    fn take_place(
        &mut self,
        id: ExchangeId,
        group_id: GroupId,
        named: Option<LinkSlot>,
        now: u64,
    ) -> Result<(InGroup, bool), Diagnosis> {
        let conn = self.exchanges.get(id).ok_or(Diagnosis::Internal)?.conn;
        let relay = self.shelf.rings.get(conn).ok_or(Diagnosis::Internal)?;
        let bytes = relay.rmb_bytes() as u64;
        let idle = self.take_idle(group_id, bytes, conn, now);
        let exchange = self.exchanges.get_mut(id).ok_or(Diagnosis::Internal)?;
        let group = self.groups.get_mut(group_id).ok_or(Diagnosis::Internal)?;
        let (known, rmb) = if let Some((buffer, rmb)) = idle {
            self.stat.rmbs_reused += 1;
            (Some(buffer), rmb)
        } else {
            self.stat.rmbs_registered += 1;
            let (handle, vaddr) = (Place::Received(conn).handle(), self.device.fresh_address());
            let key = self.device.register_rmb(group.domain(), handle, (vaddr, bytes));
            (None, Rmb { key: key.map_err(|_| Diagnosis::BufferRegistration)?, vaddr, bytes })
        };
        let on_link = LinkBuffer { rkey: RKey(rmb.key.0), vaddr: rmb.vaddr };
        let keys = group.keys(on_link);
        // Both that a connection needs, before the peer is promised anything: then it would be too late for TCP.
        let stream = self.device.register_stream(group.domain(), Place::Sent(conn).handle());
        let open = |_| group.core.open(named).map_err(|_| Diagnosis::NoActiveLink);
        let opened = stream.map_err(|_| Diagnosis::BufferRegistration).and_then(open);
        let placed = opened.and_then(|opened| {
            let buffer = match known {
                Some(buffer) => Ok(buffer),
                None if exchange.first => group.core.add_first_buffer(&keys),
                None => group.core.confirm_rkey(&keys, smc_time(now)),
            };
            let buffer = buffer.map_err(|_| {
                group.core.close(opened.token, smc_time(now));
                Diagnosis::BufferRegistration
            })?;
            Ok(InGroup { group: group_id, token: opened.token, slot: opened.link, buffer })
        });
        match placed {
            Ok(place) => {
                group.members.insert(place.token, conn);
                group.buffers.insert(place.buffer, conn);
                group.rkeys.insert(place.buffer, on_link);
                (exchange.rmb, exchange.place) = (Some(rmb), Some(place));
                exchange.stream = stream.ok();
                self.handshaking.insert(conn, id);
                Ok((place, known.is_some()))
            }
            Err(why) => {
                if let Some(buffer) = known {
                    group.core.delete_rkey(buffer, smc_time(now));
                }
                self.device.deregister(rmb.key);
                if let Ok(stream) = stream {
                    self.device.forget_stream(stream);
                }
                Err(why)
            }
        }
    }

    /// The peer knows the buffer of a connection that joins a group, or will not.
    pub(super) fn buffer_told(&mut self, id: ExchangeId, yes: bool, now: u64) {
        let Some(place) = self.exchanges.get(id).and_then(|e| e.place) else { return };
        self.resume(id, Wait::Link, self.took_at);
        if yes {
            self.show_end(id, place, now);
        } else {
            self.refuse(id, Diagnosis::BufferRegistration);
            self.take_steps(id, now);
        }
    }

    /// Our end is ready: the peer may hear of it.
    fn show_end(&mut self, id: ExchangeId, mut place: InGroup, now: u64) {
        if let Some(exchange) = self.exchanges.get_mut(id)
            && matches!(exchange.machine, Machine::Server(_))
            && let Some(slot) =
                self.groups.get(place.group).and_then(|g| g.core.link_of(place.token))
        {
            // The link that it was given may have been lost while the peer was told of its buffer. A client's stays the one
            // that the server has named, for which it has named the key of its buffer.
            place.slot = slot;
            exchange.place = Some(place);
        }
        let Some(link) = self.groups.link(place.group, place.slot) else {
            self.refuse(id, Diagnosis::NoActiveLink);
            return self.take_steps(id, now);
        };
        let gids: Vec<Gid> = match &self.config.addresses[..] {
            [] => vec![link.end.gid],
            all => all.iter().map(|ip| gid_of(*ip)).collect(),
        };
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let Some(relay) = self.shelf.rings.get(exchange.conn) else { return };
        let Some(rmb) = exchange.rmb else { return };
        let end = LocalEnd {
            gid: link.end.gid,
            mac: link.end.mac,
            qpn: link.end.qpn,
            psn: link.end.psn,
            mtu: link.end.mtu,
            rkey: RKey(rmb.key.0),
            vaddr: rmb.vaddr,
            size: SizeClass::holding(relay.rmb_bytes() as u64),
            token: place.token,
        };
        exchange.machine.ready(&end, exchange.first, &gids, smc_time(now));
        self.take_steps(id, now);
    }

    fn confirm_link(&mut self, id: ExchangeId, peer: Option<Box<PeerEnd>>, now: u64) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let (Some(peer), Some(place)) = (peer, exchange.place) else { return };
        exchange.peer = Some(peer.clone());
        let group = self.groups.get_mut(place.group);
        let Some(group) = group.filter(|group| !group.core.is_ended()) else {
            // It has since the Accept, which could not be taken back; and nobody says when to wait no longer.
            self.refuse(id, Diagnosis::NoActiveLink);
            return self.take_steps(id, now);
        };
        group.core.first_contact(&peer, smc_time(now));
        self.wait_for_link(id);
        self.act(place.group, now);
    }

    /// A message came for a connection.
    pub(super) fn on_cdc(&mut self, conn: ConnId, cdc: &Cdc, now: u64) {
        if let Some(id) = self.handshaking.get(&conn) {
            // A client's first bytes may overtake its Confirm (RFC 7609 3.5.2.4).
            if let Some(exchange) = self.exchanges.get_mut(*id) {
                keep(&mut exchange.early, cdc);
            }
            return;
        }
        self.hear_cdc(conn, cdc, now);
    }

    /// From now on the connection's bytes go by SMC.
    fn established(&mut self, id: ExchangeId, peer: Option<Box<PeerEnd>>, now: u64) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let peer = peer.or_else(|| exchange.peer.take());
        let (Some(peer), Some(place)) = (peer, exchange.place) else {
            return self.break_off(id, now, Diagnosis::Internal.text());
        };
        let conn = exchange.conn;
        let answer = &peer.answer;
        let Some(group) = self.groups.get_mut(place.group) else {
            return self.break_off(id, now, Diagnosis::NoActiveLink.text());
        };
        let rkey = answer.rkey;
        let reached = group.core.reach(place.token, place.slot, rkey, answer.element_vaddr());
        let start = reached.ok().zip(exchange.stream).and_then(|((slot, remote), stream)| {
            let relay = self.shelf.rings.get(conn)?;
            Some(Start {
                qpn: self.groups.link(place.group, slot)?.qpn,
                remote,
                stream,
                rmb: SizeClass::holding(relay.rmb_bytes() as u64),
                peer_token: answer.token,
                peer_rmb: answer.size,
                send_ring: self.config.send_buffer,
                autocork: self.config.autocork,
            })
        });
        // Too late to go back to TCP.
        let Some(start) = start else {
            return self.break_off(id, now, Diagnosis::NoActiveLink.text());
        };
        let Some(exchange) = self.remove_exchange(id, now) else { return };
        self.open_for(&exchange);
        let early = exchange.early.clone();
        let to = exchange.to;
        let mut smc = Smc::new(&start, place, exchange.rmb, exchange.wire.into_tcp(), to);
        if self.groups.get(place.group).is_some_and(|group| group.holds()) {
            smc.pump.hold();
        }
        self.stat.connections_total += 1;
        self.add_running(conn, Running::Smc(Box::new(smc)), Smc::INTEREST);
        for cdc in early {
            self.hear_cdc(conn, &cdc, now);
        }
    }

    /// The next clients with the addresses of one that has come to SMC may begin at the door.
    fn open_for(&mut self, exchange: &Exchange) {
        let ends = (exchange.local, exchange.remote);
        let is_quiet = self.shares.all() <= self.config.handshakes_max as usize / 2;
        if exchange.role() == Role::Client
            && is_quiet
            && !self.config.eids.is_empty()
            && self.opened.wants(ends)
            && self.groups.is_client_of(ends.1)
        {
            let words = (self.identity(self.address_for(ends.0)), self.limits());
            self.opened.open(ends, words, self.config.handshakes_max as usize / 2);
        }
    }

    /// The connection goes on as TCP.
    fn fall_back(&mut self, id: ExchangeId, why: &FallBack, now: u64) {
        let group = self.exchanges.get(id).and_then(|e| e.place).map(|place| place.group);
        self.abandon(id, now);
        if let Some(group) = group.filter(|_| why.out_of_sync)
            && let Some(there) = self.groups.get_mut(group)
        {
            there.core.out_of_sync();
            self.act(group, now);
        }
        let timed_out = Diagnosis::TimeoutConfirmLink;
        if let Some(exchange) = self.exchanges.get_mut(id) {
            exchange.unreachable = why.ours == timed_out || why.theirs == Some(timed_out);
        }
        let (why, code) = match why.theirs {
            Some(theirs) => (format!("The peer: {}", words(theirs)), why::theirs(theirs)),
            None => (words(why.ours), why::ours(why.ours)),
        };
        if let Some(to) = self.leave_to_tcp(id, (&why, code), now) {
            self.learn(Some(to), habit::NOTHING);
        }
    }

    /// A handshake is over, and its connection is TCP from now on: why, in words and as a number. Where it leads to,
    /// for a client's.
    pub(super) fn leave_to_tcp(
        &mut self,
        id: ExchangeId,
        (why, code): (&str, u32),
        now: u64,
    ) -> Option<SocketAddrV6> {
        let exchange = self.remove_exchange(id, now)?;
        self.stat.declined_total += 1;
        super::stat::note(&mut self.stat.declined, why);
        let (conn, to) = (exchange.conn, exchange.to);
        if let Some(relay) = self.shelf.rings.get_mut(conn) {
            relay.explain(code);
        }
        if let Some(berth) = self.berths.get_mut(&conn) {
            berth.goes_by_tcp();
        }
        let running = Running::plain(exchange.wire);
        let interest = running.interest();
        self.add_running(conn, running, interest);
        to
    }

    /// Gives back what a handshake that came to nothing has in a link group.
    fn abandon(&mut self, id: ExchangeId, now: u64) {
        let Some(exchange) = self.exchanges.get_mut(id) else { return };
        let (conn, first) = (exchange.conn, exchange.first);
        let (place, rmb) = (exchange.place.take(), exchange.rmb.take());
        self.handshaking.remove(&conn);
        if let Some(stream) = exchange.stream.take() {
            self.device.forget_stream(stream);
        }
        if let Some(Rmb { key, .. }) = rmb {
            // Where the group was there before, an Accept of ours has named it: a client writes as soon as it has
            // sent its Confirm, whether or not that comes, and must not find the link in ruins.
            if first { self.device.deregister(key) } else { self.device.forget_rmb(key) }
        }
        let Some(place) = place else { return };
        self.leave(place, false, now);
        let unmade = self.groups.get(place.group).is_some_and(|group| group.first() == Some(id));
        if first && unmade {
            self.drop_group(place.group, now);
        }
    }

    /// A connection has left its link group; the peer is told to forget its buffer, unless that is kept.
    pub(super) fn leave(&mut self, place: InGroup, keeps: bool, now: u64) {
        let Some(group) = self.groups.get_mut(place.group) else { return };
        group.members.remove(&place.token);
        group.buffers.remove(&place.buffer);
        if !keeps {
            group.core.delete_rkey(place.buffer, smc_time(now));
        }
        group.core.close(place.token, smc_time(now));
        self.act(place.group, now);
    }

    /// A handshake is over; who waited for it goes on. Its TCP connection is still waited for.
    fn remove_exchange(&mut self, id: ExchangeId, now: u64) -> Option<Exchange> {
        let exchange = self.exchanges.remove(id)?;
        if exchange.counts {
            self.shares.give_back(exchange.remote);
        }
        self.handshaking.remove(&exchange.conn);
        if let Some(ends) = exchange.asks {
            let (seat, begun) = (self.seat(id), matches!(exchange.machine, Machine::Client(_)));
            self.meeting.put(Wish::Left(seat, exchange.role(), ends, begun));
        }
        // Others of that peer end too: those that came while there was a group, and those that the door has begun.
        if self.courting.get(&exchange.remote).is_some_and(|courting| courting.by == id) {
            self.courted(exchange.remote, exchange.unreachable, now);
        }
        Some(exchange)
    }
}

/// Keeps a message until its connection is there. Cursors and states say all that those before have said, so the newest
/// must not be lost, or nobody would hear of the last bytes; but for what one message alone says: that its last byte is
/// urgent, and what a failover begins with.
fn keep(early: &mut Vec<Cdc>, cdc: &Cdc) {
    const ALONE: [ProducerFlags; 2] =
        [ProducerFlags::URGENT_PRESENT, ProducerFlags::FAILOVER_VALIDATION];
    let says_more = |cdc: &Cdc| ALONE.iter().any(|flag| cdc.producer_flags.has(*flag));
    let is_full = early.len() == EARLY_MAX;
    match early.last_mut() {
        // Sent again, over another link.
        Some(last)
            if (is_full || !says_more(cdc))
                && last.sequence.wrapping_sub(cdc.sequence) < 1 << 15 => {}
        Some(last) if is_full || !says_more(last) && !says_more(cdc) => *last = *cdc,
        _ => early.push(*cdc),
    }
}

/// A diagnosis as people look for it: its words, and its number where it has no words.
fn words(diagnosis: Diagnosis) -> String {
    match diagnosis {
        Diagnosis::Other(code) => format!("{} ({code:#010x})", diagnosis.text()),
        known => known.text().to_owned(),
    }
}

pub(super) const SOL_SOCKET: i32 = 1;
pub(super) const SO_LINGER: i32 = 13;

/// The peer of a connection is to see a reset when its descriptor is closed.
pub(super) fn reset_on_close(tcp: &impl AsRawFd) {
    let _ = call::setsockopt(tcp.as_raw_fd(), SOL_SOCKET, SO_LINGER, [1i32, 0]);
}

/// Nobody waits when the descriptor of a connection is closed: for the peer's word that it has heard of the end a program
/// may have wished to wait (`SO_LINGER`), but a vector has others to care for, and that wish is its stand-in's.
pub(super) fn close_at_once(tcp: &impl AsRawFd) {
    let _ = call::setsockopt(tcp.as_raw_fd(), SOL_SOCKET, SO_LINGER, [0i32, 0]);
}

/// The longest packet that a link may have on such a path: its packets keep their size, and what a router on the way does not
/// take would be found out by packets that are lost. What its route says it takes is believed.
fn sure_bytes(path_bytes: u32, (local, remote): (IpAddr, IpAddr)) -> u32 {
    if path_bytes <= PATH_BYTES {
        return path_bytes;
    }
    let sure = interface::sure_bytes(local, remote).unwrap_or(PATH_BYTES);
    path_bytes.min(sure.max(PATH_BYTES))
}

/// The longest packet that the path of a connection takes, bytes, as far as this host knows.
fn path_bytes(tcp: &impl AsRawFd) -> u32 {
    let asked = [IP_MTU, IPV6_MTU]
        .into_iter()
        .find_map(|(level, name)| call::getsockopt::<i32>(tcp.as_raw_fd(), level, name).ok());
    asked.and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(PATH_BYTES)
}

#[cfg(test)]
mod tests {
    use smc::cdc::StateFlags;
    use smc::cursor::Cursor;

    use super::*;

    fn message(sequence: u16, flags: ProducerFlags) -> Cdc {
        let producer = Cursor::at(u64::from(sequence), 65536);
        Cdc { sequence, producer, producer_flags: flags, ..Cdc::default() }
    }

    /// A time that has passed and at which nothing is done would be one not to sleep for.
    #[test]
    fn a_program_that_has_closed_ends_no_handshake_that_goes_on() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let local = IpAddr::from([127, 0, 0, 1]);
        let conn = ConnId::from_number(0);
        let mut exchange = Exchange::new(conn, tcp.into(), (local, local), None, 0);
        exchange.closed_since = Some(7);
        assert_eq!(exchange.ends_at(), Some(7 + CLOSED_NS), "it waits for another one");
        let (identity, limits) = (super::super::declining::nobody(), Limits::default());
        exchange.begin(Role::Server, identity, limits, smc_time(0));
        assert_eq!(exchange.ends_at(), None);
    }

    /// More than are kept overtake the Confirm: the last one says how far the client has written.
    #[test]
    fn of_messages_that_come_early_the_newest_is_kept() {
        let mut early = Vec::new();
        for sequence in 1..=40 {
            keep(&mut early, &message(sequence, ProducerFlags::default()));
        }
        assert_eq!(early, [message(40, ProducerFlags::default())]);
        let urgent = message(41, ProducerFlags::URGENT_PRESENT);
        keep(&mut early, &urgent);
        let end =
            Cdc { state_flags: StateFlags::SENDING_DONE, ..message(42, ProducerFlags::default()) };
        keep(&mut early, &end);
        assert_eq!(early, [message(40, ProducerFlags::default()), urgent, end]);
        // What is said again is no news.
        keep(&mut early, &message(42, ProducerFlags::default()));
        assert_eq!(early.last(), Some(&end));
        // A client that says nothing else is not kept without end either, and its end is.
        for sequence in 43..=99 {
            keep(&mut early, &message(sequence, ProducerFlags::URGENT_PRESENT));
        }
        assert_eq!((early.len(), early[EARLY_MAX - 1].sequence), (EARLY_MAX, 99));
    }
}
