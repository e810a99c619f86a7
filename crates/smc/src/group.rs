//! A link group: the links between two hosts, what each side has told the other of its buffers, and which
//! connection uses which link (RFC 7609 3.5, 4.4 and 4.6, as Linux 6.12 does it, in version 2).
//!
//! A [`Group`] is one side. Events go in by `on_*` and requests by other calls, with the time; then take
//! [`Action`]s out with [`Group::poll`] until there is none, and do them in that order. What to do for a
//! queue pair that fails is said before what follows from it.
//!
//! # Flows
//!
//! Links are changed by one exchange at a time, and keys are not told meanwhile. Requests about keys may
//! be under way in both directions at once: one in each towards Linux, any number (16 here) when the peer
//! is Shunt. An answer belongs to the oldest request of its kind on the same link, since links keep order.

mod conns;
mod exclusive;
mod link;
mod local;
mod remote;

use std::collections::VecDeque;

pub use conns::{Full, Opened};
pub use link::{LinkEnd, LinkSlot, Role};
pub use local::{BufferId, LinkBuffer};

use crate::cdc::{CDC_TYPE, Cdc, ProducerFlags};
use crate::clc::{Diagnosis, RdmaAnswer};
use crate::conn::Remote;
use crate::handshake::{PeerEnd, Proposed, Terms};
use crate::limits::Limits;
use crate::llc::{self, Body, DeleteLink, DeleteReason, Message, ParseError, Version};
use crate::name::{Gid, SystemId, Token};
use crate::time::Time;
use conns::Conns;
use exclusive::{Again, Exclusive, WantedLink};
use link::Links;
use local::{Local, Telling};
use remote::RemoteBuffers;

/// Most links that a group has at a time: two, and one that replaces another.
pub const LINKS: usize = 3;

/// What the caller must do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Post this as a SEND, solicited, on the link.
    Send {
        /// On which link.
        link: LinkSlot,
        /// The message.
        bytes: Vec<u8>,
    },
    /// Make a queue pair for another link and register all buffers for it; then call
    /// [`Group::link_created`], or [`Group::link_refused`] if there is no other port.
    CreateLink {
        /// What the link will be called.
        link: LinkSlot,
        /// Where the peer's end will be, if the peer has said so; which is always so for a client.
        peer: Option<Gid>,
    },
    /// Make the link's queue pair ready to receive and to send, towards this end of the peer's; the MTU is
    /// the smaller of both.
    ReadyLink {
        /// Which link.
        link: LinkSlot,
        /// The peer's end.
        peer: LinkEnd,
    },
    /// The link may carry connections.
    LinkActive(LinkSlot),
    /// Put the link's queue pair into error: nothing may be sent or written over it any more. Messages that
    /// it had received are still to be handed in.
    LinkDown(LinkSlot),
    /// The link is no more: its queue pair and its keys can go.
    DestroyLink(LinkSlot),
    /// The first link was not confirmed: tell the handshake. By [`Diagnosis::TimeoutConfirmLink`] in time,
    /// by another that it was refused. The group is of no use.
    FirstLinkFailed(Diagnosis),
    /// The peer may write into the buffer.
    RkeyConfirmed(BufferId),
    /// The peer will not, or did not say so in time: do without the buffer.
    RkeyRejected(BufferId),
    /// The peer has been told to forget the buffer, which is forgotten here too.
    RkeyDeleted {
        /// The buffer.
        buffer: BufferId,
        /// The peer has answered. Without, the keys must never be given to another buffer.
        acknowledged: bool,
    },
    /// The connection's link is down: call [`crate::conn::Conn::moved`] and go on over this one.
    Move {
        /// Which connection.
        token: Token,
        /// The link that it uses from now on.
        link: LinkSlot,
        /// Where the peer's RMB is there.
        remote: Remote,
        /// The peer may still use the link that is down: call [`crate::conn::Conn::hold`], too. [`Action::Release`] follows,
        /// unless the group ends first. See [`Group::holds`].
        hold: bool,
    },
    /// The peer has left the link that was lost, or does not answer: call [`crate::conn::Conn::release`] for each connection
    /// of the group.
    Release,
    /// The connection's link is down, and the peer never told how to reach its RMB over another: abort it.
    Strand(Token),
    /// A link was lost some time ago: call [`Group::request_add_link`] with those of our ports that no link uses. Of a
    /// client.
    AskForLink,
    /// The client has other ports: call [`Group::add_link`] if we have too.
    AddLinkRequested(Vec<Gid>),
    /// The group is at its end, and with it its connections: post what was to be sent, then forget it.
    Terminated(Terminated),
}

/// Why a link group has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Terminated {
    /// Nobody used it.
    Idle,
    /// The last link failed.
    NoLink,
    /// The peer wanted it so.
    ByPeer(DeleteReason),
    /// The peer violated the protocol.
    ProtocolViolation,
    /// The peer does not know the group.
    OutOfSync,
    /// Our caller wanted it so.
    Local,
}

/// What a message was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// For this connection. To a server it may come before the client's Confirm does, for which there is no
    /// [`crate::conn::Conn`] yet (RFC 7609 3.5.2.4): keep the last one until there is, since each says what
    /// those before said.
    Cdc {
        /// Which: [`Cdc::token`], which is one of ours.
        token: Token,
        /// What it says.
        cdc: Cdc,
    },
    /// About the group: there may be actions.
    Control,
    /// Nothing that means anything here, as from a peer that is ahead of us.
    Ignored,
}

/// One side of a link group.
#[derive(Clone, Debug)]
pub struct Group {
    role: Role,
    limits: Limits,
    /// The peer, as it named itself in its Proposal or Accept.
    peer: SystemId,
    terms: Terms,
    links: Links,
    local: Local,
    remote: RemoteBuffers,
    conns: Conns,
    exclusive: Option<Exclusive>,
    /// Deadline of the flow that changes links.
    exclusive_deadline: Option<Time>,
    /// A request about links that came at the wrong time; there is one place.
    delayed: Option<(LinkSlot, Message)>,
    /// Links of which the peer has to be told that they are gone.
    to_delete: Vec<(LinkSlot, DeleteReason)>,
    /// A link that we would like to add.
    wanted_link: Option<WantedLink>,
    /// When one is to be added, or asked for, in place of one that was lost.
    again: Again,
    /// See [`Self::holds`].
    holds: bool,
    /// The link over which the client has asked for another, until it is known whether there will be one.
    asked: Option<LinkSlot>,
    /// Deadline for the first CONFIRM LINK.
    first_deadline: Option<Time>,
    /// When the group ends if it stays without connections.
    idle_deadline: Option<Time>,
    ended: bool,
    actions: VecDeque<Action>,
}

impl Group {
    /// Server: a new group, whose first link begins at `end`. Next is [`Group::first_contact`].
    #[must_use]
    pub fn server(limits: Limits, client: &Proposed, end: LinkEnd) -> Self {
        Self::new(Role::Server, limits, client.system, client.terms, end)
    }

    /// Client: a new group, whose first link begins at `end` and ends where the Accept says: see to the
    /// actions before the Confirm is sent, since CONFIRM LINK comes right behind it. `None`: the Accept
    /// is not one of first contact.
    #[must_use]
    pub fn client(limits: Limits, server: &PeerEnd, end: LinkEnd, now: Time) -> Option<Self> {
        let terms = server.terms?;
        let mut group = Self::new(Role::Client, limits, server.answer.system, terms, end);
        group.ready_first(&server.answer);
        group.first_deadline = Some(now.after(limits.0.first_link_wait));
        Some(group)
    }

    fn new(role: Role, limits: Limits, peer: SystemId, terms: Terms, end: LinkEnd) -> Self {
        Self {
            role,
            limits,
            peer,
            terms,
            links: Links::first(end, role),
            local: Local::new(Telling::with(&terms)),
            remote: RemoteBuffers::new(Telling::with(&terms)),
            conns: Conns::default(),
            exclusive: None,
            exclusive_deadline: None,
            delayed: None,
            to_delete: Vec::new(),
            wanted_link: None,
            again: Again::default(),
            holds: false,
            asked: None,
            first_deadline: None,
            idle_deadline: None,
            ended: false,
            actions: VecDeque::new(),
        }
    }

    /// Server: the client's Confirm of first contact came. Makes the link ready and confirms it.
    pub fn first_contact(&mut self, client: &PeerEnd, now: Time) {
        if self.role != Role::Server || self.ended || self.first_deadline.is_some() {
            return;
        }
        if let Some(terms) = client.terms {
            self.terms = terms;
            self.local.set_telling(Telling::with(&terms));
            self.remote.set_telling(Telling::with(&terms));
        }
        self.ready_first(&client.answer);
        self.first_deadline = Some(now.after(self.limits.0.llc_wait));
        self.send_confirm_link(LinkSlot::FIRST, false);
    }

    fn ready_first(&mut self, answer: &RdmaAnswer) {
        let peer = LinkEnd::of_answer(answer);
        if let Some(link) = self.links.get_mut(LinkSlot::FIRST) {
            link.peer = Some(peer);
            self.actions.push_back(Action::ReadyLink { link: LinkSlot::FIRST, peer });
        }
    }

    /// The next thing to do, until there is none.
    #[must_use]
    pub fn poll(&mut self) -> Option<Action> {
        let action = self.actions.pop_front();
        if let Some(Action::RkeyDeleted { buffer, .. }) = &action {
            self.local.forget(*buffer);
        }
        action
    }

    /// Which side we are.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// What both sides have agreed on.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The group has ended.
    #[must_use]
    pub const fn is_ended(&self) -> bool {
        self.ended
    }

    /// Server: whether another connection of this client may join the group.
    #[must_use]
    pub fn serves(&self, client: &Proposed) -> bool {
        self.role == Role::Server
            && self.peer == client.system
            && self.terms.eid == client.terms.eid
            && self.links.active().any(|(_, link)| link.peer.is_some_and(|p| p.gid == client.gid))
            && self.has_room()
    }

    /// Client: the link of this group that the server names in an Accept which is not of first contact.
    /// When no group has it, the Accept is to be declined: [`Diagnosis::OutOfSync`] if there is no group
    /// with that server at all ([`Group::knows`]), [`Diagnosis::NoServerLink`] if there is.
    #[must_use]
    pub fn names(&self, accept: &RdmaAnswer) -> Option<LinkSlot> {
        let named = |peer: &LinkEnd| peer.gid == accept.gid && peer.qpn == accept.qpn;
        let found = self.links.active().find(|(_, link)| link.peer.as_ref().is_some_and(named));
        found.filter(|_| self.knows(accept.system)).map(|(slot, _)| slot)
    }

    /// Client: whether the group is with this server.
    #[must_use]
    pub fn knows(&self, server: SystemId) -> bool {
        self.role == Role::Client && !self.ended && self.peer == server
    }

    fn has_room(&self) -> bool {
        !self.ended
            && self.conns.len() < usize::from(self.terms.max_conns)
            && self.remote.has_room()
            && self.local.has_room()
            && self.links.active().next().is_some()
    }

    /// A message came over a link.
    pub fn on_message(&mut self, link: LinkSlot, bytes: &[u8], now: Time) -> Received {
        if self.ended || !self.links.heard(link, now) {
            return Received::Ignored;
        }
        if bytes.first() == Some(&CDC_TYPE) {
            return self.on_cdc(link, bytes, now);
        }
        if !self.links.is_usable(link) {
            return Received::Ignored;
        }
        match Message::parse(bytes) {
            Ok(message) if message.version == Version::V2 => self.on_llc(link, message, now),
            Err(ParseError::Type(_)) => {
                self.terminate(DeleteReason::ProtocolViolation, Terminated::ProtocolViolation);
                return Received::Control;
            }
            Ok(_) | Err(_) => return Received::Ignored,
        }
        self.go_on(now);
        Received::Control
    }

    fn on_cdc(&mut self, link: LinkSlot, bytes: &[u8], now: Time) -> Received {
        let Ok(cdc) = Cdc::parse(bytes) else { return Received::Ignored };
        let Some(uses) = self.conns.link_of(cdc.token) else { return Received::Ignored };
        // The peer has left the link that this connection uses. Nothing may be written by it over that
        // link after what it writes now, or old bytes could land on new ones.
        if cdc.producer_flags.has(ProducerFlags::FAILOVER_VALIDATION) && self.links.is_active(link)
        {
            if uses != link && self.links.is_active(uses) {
                self.leave(uses, DeleteReason::LostPath, false, now);
            }
            // Linux says so once it sends nothing over the other link any more, whatever connection it is about.
            self.release();
        }
        Received::Cdc { token: cdc.token, cdc }
    }

    fn on_llc(&mut self, link: LinkSlot, message: Message, now: Time) {
        let response = message.response;
        match message.body {
            Body::TestLink(user) if !response => {
                self.respond(link, Body::TestLink(user));
            }
            // Having been heard is all that it is for.
            Body::TestLink(_) => {}
            Body::ConfirmLink(body) => self.on_confirm_link(link, &body, response, now),
            Body::ConfirmRkey(body) if response => {
                self.local.on_confirmed(link, &body, &mut self.actions);
            }
            Body::ConfirmRkey(body) => {
                let mut answer = body;
                answer.negative = !self.remote.confirm(&self.links, link, &body);
                self.respond(link, Body::ConfirmRkey(answer));
            }
            Body::DeleteRkey(_) if response => {
                self.local.on_deleted(link, &mut self.actions);
            }
            Body::DeleteRkey(mut body) => {
                body.answer = self.remote.delete(link, &body.keys);
                self.respond(link, Body::DeleteRkey(body));
            }
            Body::AddLink(_) | Body::DeleteLink(_) | Body::RequestAddLink(_) => {
                self.on_link_message(link, message, now);
            }
            // Of version 1, or for more links than there are.
            Body::AddLinkCont(_) | Body::ConfirmRkeyCont(_) => {}
        }
    }

    fn on_confirm_link(
        &mut self,
        slot: LinkSlot,
        body: &llc::ConfirmLink,
        response: bool,
        now: Time,
    ) {
        if response != (self.role == Role::Server) || !self.links.is_activating(slot) {
            return;
        }
        if self.first_deadline.is_some() && slot == LinkSlot::FIRST {
            self.first_deadline = None;
            if !body.has_no_eye_catchers() {
                self.actions.push_back(Action::FirstLinkFailed(Diagnosis::EyeCatcher));
                self.ended = true;
                return;
            }
            self.confirm_link(slot, body.link, now);
            self.idle_deadline = self.conns.is_empty().then(|| self.idle_after(now));
            if self.role == Role::Server && self.terms.max_links > 1 {
                self.add_link(None, now);
            }
        } else if self.adds(slot) {
            let again = self.adds_again();
            self.end_exclusive();
            self.confirm_link(slot, body.link, now);
            self.again = self.again.found(again, now);
        }
    }

    /// The link works: the client says so, in answer to the server.
    fn confirm_link(&mut self, slot: LinkSlot, number: u8, now: Time) {
        if self.role == Role::Client {
            if let Some(link) = self.links.get_mut(slot) {
                link.number = number;
            }
            self.send_confirm_link(slot, true);
        }
        self.links.activate(slot, now);
        self.actions.push_back(Action::LinkActive(slot));
    }

    fn send_confirm_link(&mut self, slot: LinkSlot, response: bool) {
        let Some(link) = self.links.get(slot) else { return };
        let body = llc::ConfirmLink {
            mac: link.end.mac,
            gid: link.end.gid,
            qpn: link.end.qpn,
            link: link.number,
            user_id: [0, 0, 0, link.number],
            max_links: self.terms.max_links,
            max_conns: self.terms.max_conns,
            eye_catcher_bits: llc::ConfirmLink::NO_EYE_CATCHERS,
        };
        self.send(slot, response, Body::ConfirmLink(body));
    }

    fn send(&mut self, link: LinkSlot, response: bool, body: Body) {
        let bytes = Message { version: Version::V2, response, body }.emit();
        self.actions.push_back(Action::Send { link, bytes });
    }

    fn respond(&mut self, link: LinkSlot, body: Body) {
        self.send(link, true, body);
    }

    /// Whether connections say nothing but that they have moved until [`Action::Release`], those too that begin meanwhile: a
    /// client whose server is Linux, from when a link is lost until that server has left it.
    ///
    /// Whatever comes wakes a server's program, and Linux sends what that answers over the lost link until its LLC worker has
    /// moved the connection. Where that link's device never gives up, as rdma_rxe with Linux's seven retries, the worker then
    /// waits for ever for what was sent there, and the group hears nothing of LLC any more.
    #[must_use]
    pub const fn holds(&self) -> bool {
        self.holds
    }

    /// A link's queue pair has failed: a SEND or a write was not acknowledged, or a key was refused. Its
    /// connections move to another link; without one the group ends.
    pub fn on_link_failed(&mut self, slot: LinkSlot, now: Time) {
        if self.ended || !self.links.is_usable(slot) {
            return;
        }
        if self.first_deadline.take().is_some() {
            self.ended = true;
            self.actions.push_back(Action::FirstLinkFailed(Diagnosis::LinkReady));
            return;
        }
        self.take_down(slot, DeleteReason::LostPath, now);
    }

    /// Connections of a link that is down go to others. Whether any goes on.
    fn move_conns(&mut self, from: LinkSlot, hold: bool) -> bool {
        let mut any = false;
        for token in self.conns.on_link(from) {
            let Some(to) = self.conns.least_used(&self.links) else { break };
            let buffer = self.conns.buffer_of(token);
            self.conns.assign(token, to);
            let action = match buffer.map(|buffer| self.remote.on_link(buffer, to)) {
                Some(Some(remote)) => Action::Move { token, link: to, remote, hold },
                // Nothing is known of the peer's buffer yet, so nothing has been written to it.
                None => continue,
                Some(None) => Action::Strand(token),
            };
            any |= matches!(action, Action::Move { .. });
            self.actions.push_back(action);
        }
        any
    }

    /// When to call [`Group::on_deadline`], if ever.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        if self.ended {
            return None;
        }
        let links = self.links.next_deadline(self.limits.0.test_link_idle);
        let flows =
            [self.first_deadline, self.idle_deadline, self.exclusive_deadline, self.again.at];
        flows.into_iter().chain([links, self.local.next_deadline()]).flatten().min()
    }

    /// Time has passed. Too early does no harm.
    pub fn on_deadline(&mut self, now: Time) {
        let due = |deadline: Option<Time>| deadline.is_some_and(|deadline| deadline <= now);
        if self.ended {
            return;
        }
        if due(self.first_deadline) {
            self.ended = true;
            return self.actions.push_back(Action::FirstLinkFailed(Diagnosis::TimeoutConfirmLink));
        }
        if due(self.idle_deadline) {
            return self.terminate(DeleteReason::Inactivity, Terminated::Idle);
        }
        if due(self.exclusive_deadline) {
            self.on_exclusive_timeout(now);
        }
        if due(self.again.at) {
            self.add_again(now);
        }
        self.test_links(now);
        if let Some(link) = self.local.on_deadline(now, &mut self.actions) {
            // So many answers are missing that the link cannot be said to work.
            self.on_link_failed(link, now);
        }
        self.go_on(now);
    }

    fn test_links(&mut self, now: Time) {
        let (idle, wait) = (self.limits.0.test_link_idle, self.limits.0.llc_wait);
        for slot in LinkSlot::ALL {
            match self.links.test(slot, idle, wait, now) {
                link::Test::Quiet => {}
                link::Test::Send => self.send(slot, false, Body::TestLink([0; 16])),
                link::Test::Dead => self.on_link_failed(slot, now),
            }
        }
    }

    /// Whatever can begin now that something else has ended.
    fn go_on(&mut self, now: Time) {
        if self.ended {
            return;
        }
        if self.exclusive.is_none() {
            self.start_exclusive(now);
        }
        if self.exclusive.is_none() && !self.wants_exclusive() {
            let wait = self.limits.0.llc_wait;
            self.local.start(&self.links, now.after(wait), &mut self.actions);
        }
    }

    /// Ends the group because our caller wants to.
    pub fn shut_down(&mut self) {
        self.terminate(DeleteReason::Operator, Terminated::Local);
    }

    /// The peer has declined with "out of sync": it does not know the group.
    pub fn out_of_sync(&mut self) {
        self.end(Terminated::OutOfSync);
    }

    /// Tells the peer over each link, and ends.
    fn terminate(&mut self, reason: DeleteReason, why: Terminated) {
        if self.ended {
            return;
        }
        let links: Vec<_> = self.links.active().map(|(slot, _)| slot).collect();
        for link in links {
            let body = DeleteLink { link: None, orderly: false, reason };
            self.send(link, false, Body::DeleteLink(body));
        }
        self.end(why);
    }

    fn end(&mut self, why: Terminated) {
        if !self.ended {
            self.ended = true;
            self.actions.push_back(Action::Terminated(why));
        }
    }

    fn idle_after(&self, now: Time) -> Time {
        let config = &self.limits.0;
        now.after(match self.role {
            Role::Server => config.idle_server,
            Role::Client => config.idle_client,
        })
    }
}

#[cfg(test)]
mod tests;
