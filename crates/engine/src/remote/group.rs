//! Link groups: each a [`smc::group::Group`], whose actions are done here, and the queue pairs of its
//! links.

use std::net::{IpAddr, Ipv6Addr};

use roce::{Addresses, Dcqcn, Psn, Qpn, Retransmission, RtrAttributes, RtsAttributes, Status};
use smc::clc::Diagnosis;
use smc::conn::Remote;
use smc::group::{
    Action, BufferId, Group as Core, LinkBuffer, LinkEnd, LinkSlot, Received, Role as Side,
    Terminated,
};
use smc::handshake::{PeerEnd, Proposed};
use smc::{Gid, Mtu, Time, Token};

use super::berths::Berth;
use super::device::{Domain, Purpose, REGIONS_MAX};
use super::exchange::{ExchangeId, InGroup, Rmb};
use super::random;
use super::running::Running;
use super::setup::Wait;
use super::shares::host;
use super::shelf::{ConnId, Place};
use super::slab::{Id, Numbers, Slab};
use super::stat::{GroupStat, LinkStat};
use super::vector::{Vector, smc_time};

/// Names a link group.
pub(super) type GroupId = Id<Group>;

/// How long the queue pairs of a group that has ended stay, so that the peer hears of it, nanoseconds.
const PARTING_NS: u64 = 100_000_000;
/// Packets that may be on their way to a peer that is Shunt, whose socket has room for them.
const WINDOW_SHUNT: u16 = 512;
/// Packets after which it is asked for an acknowledgement: two runs, so that one can go while the other is on its way.
const ACK_EVERY_SHUNT: u16 = WINDOW_SHUNT / 4;
/// How long a peer may be silent before its link counts as lost: 8 times 4.096 us times 2^17, 4 s. Linux asks
/// for 1 s, which rxe takes for ever: a machine that is busy may be late by that.
const TIMEOUT: u8 = 17;
/// When to send again towards Linux, which answers at once.
const TOWARDS_LINUX: Retransmission =
    Retransmission::Adaptive { floor_nanos: 5_000_000, initial_nanos: 100_000_000 };
/// Buffers of a group that no connection has and that its peer knows.
const IDLE_MAX: usize = 64;
/// Bytes of them: on a card each is memory.
const IDLE_BYTES: u64 = 16 << 20;
/// Buffers of a group from which on none is kept: they are for connections.
const IDLE_BELOW: usize = 192;
/// Buffers that all groups of a vector keep, each a region of its device: a quarter of those that there are.
pub(super) const IDLE_ALL_MAX: usize = REGIONS_MAX as usize / 4;
/// What a network of IPv6, in which a host may have any address, has of groups in times of one host's: hosts that share
/// a network share that.
const NETWORK_HOSTS: usize = 8;
/// What the path of a second link is taken to carry.
const PATH_BYTES: u32 = 1500;

/// One link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) qpn: Qpn,
    /// Our end, as the peer knows it.
    pub(super) end: LinkEnd,
    peer: Option<LinkEnd>,
    active: bool,
    /// It has two completion queues.
    split: bool,
}

/// A link group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) core: Core,
    /// The peer's address, and ours, of the TCP connection that it was made for.
    remote: IpAddr,
    local: IpAddr,
    /// Who has made first contact, until it is made.
    first: Option<ExchangeId>,
    /// Handshakes that wait for first contact to be made: they could use the group.
    pub(super) waiting: Vec<ExchangeId>,
    /// What a server has promised the peer.
    proposed: Option<Proposed>,
    links: [Option<Link>; smc::group::LINKS],
    /// What the peer may reach.
    domain: Domain,
    /// Whom a token names.
    pub(super) members: Numbers<Token, ConnId>,
    /// Whose RMB a buffer is.
    pub(super) buffers: Numbers<BufferId, ConnId>,
    /// By which key each buffer is reached, over any link.
    pub(super) rkeys: Numbers<BufferId, LinkBuffer>,
    /// Buffers that no connection has and that the peer knows, which writes to none of them.
    idle: Vec<(BufferId, Rmb)>,
    /// When it is forgotten.
    forget_at: Option<u64>,
    /// It counts as one of this vector until then.
    _berth: Option<Berth>,
}

/// All link groups of a vector.
#[derive(Debug, Default)]
pub(super) struct Groups {
    all: Slab<Group>,
    /// Which link a queue pair is.
    links: Numbers<Qpn, (GroupId, LinkSlot)>,
    /// Buffers that all of them keep.
    pub(super) idle: usize,
}

impl Groups {
    pub(super) fn is_empty(&self) -> bool {
        self.all.len() == 0
    }

    pub(super) fn get(&self, id: GroupId) -> Option<&Group> {
        self.all.get(id)
    }

    pub(super) fn get_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.all.get_mut(id)
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let due = |group: &Group| match group.forget_at {
            // As long as it has members nothing is done about it then, and waiting for that time would be no waiting.
            Some(at) => group.members.is_empty().then_some(Time::from_nanos(at)),
            None => group.core.next_deadline(),
        };
        self.all.iter().filter_map(|(_, group)| due(group)).min()
    }

    /// The group that a client's connection may join, `ends` being our address and its. What a client says of itself
    /// another one can say as well, and would share the fate of its group; and a client takes a server at another address
    /// for another one. Nor does it join one whose packets are longer than the path takes by now (`mtu`).
    pub(super) fn serving(
        &self,
        client: &Proposed,
        ends: (IpAddr, IpAddr),
        mtu: Mtu,
    ) -> Option<GroupId> {
        let joins =
            |group: &Group| group.is_between(ends) && group.fits(mtu) && group.core.serves(client);
        self.all.iter().find(|(_, group)| joins(group)).map(|(id, _)| id)
    }

    /// The group that a client is making first contact for at the moment.
    pub(super) fn pending(&self, client: &Proposed, ends: (IpAddr, IpAddr)) -> Option<GroupId> {
        let same = |group: &Group| {
            group.first.is_some()
                && group.is_between(ends)
                && group.proposed.is_some_and(|p| p.system == client.system && p.gid == client.gid)
        };
        self.all.iter().find(|(_, group)| same(group)).map(|(id, _)| id)
    }

    /// The group and link that a server at this address means. Linux may mean one that it has with us by another of its
    /// addresses; Shunt does not.
    pub(super) fn named(
        &self,
        peer: &PeerEnd,
        remote: IpAddr,
    ) -> Result<(GroupId, LinkSlot), Diagnosis> {
        let is_of = |group: &Group| group.remote == remote || !group.core.terms().peer_is_shunt;
        let mut of = self.all.iter().filter(|(_, group)| is_of(group));
        let found = of.find_map(|(id, g)| Some((id, g.core.names(&peer.answer)?)));
        let knows = || self.all.iter().any(|(_, g)| g.core.knows(peer.answer.system));
        found.ok_or_else(|| if knows() { Diagnosis::NoServerLink } else { Diagnosis::OutOfSync })
    }

    /// Whether packets of a group are not longer than these.
    pub(super) fn fits(&self, id: GroupId, mtu: Mtu) -> bool {
        self.all.get(id).is_some_and(|group| group.fits(mtu))
    }

    /// Whether a host may have one more, of `most` that do not end: an address, and a network of IPv6.
    fn has_room_for(&self, remote: IpAddr, most: usize) -> bool {
        let there = self.all.iter().filter(|(_, group)| group.forget_at.is_none());
        let there = there.map(|(_, group)| group.remote);
        is_below(there, remote, most)
    }

    /// Whether we are a client of that host already.
    pub(super) fn is_client_of(&self, remote: IpAddr) -> bool {
        let of =
            |g: &Group| g.remote == remote && g.core.role() == Side::Client && g.first.is_none();
        self.all.iter().any(|(_, group)| of(group) && !group.core.is_ended())
    }

    pub(super) fn link(&self, id: GroupId, slot: LinkSlot) -> Option<Link> {
        self.all.get(id)?.links[slot.index()]
    }
}

impl Group {
    fn is_between(&self, (local, remote): (IpAddr, IpAddr)) -> bool {
        self.local == local && self.remote == remote
    }

    /// Whether packets of its links are not longer than these.
    fn fits(&self, mtu: Mtu) -> bool {
        self.mtus().all(|of_link| of_link <= mtu)
    }

    /// Of each of its links, how long packets are.
    fn mtus(&self) -> impl Iterator<Item = Mtu> {
        let of = |link: &Link| link.peer.map_or(link.end.mtu, |peer| peer.mtu.min(link.end.mtu));
        self.links.iter().flatten().map(of)
    }

    /// Whether who begins now waits for the peer to leave a lost link, too.
    pub(super) fn holds(&self) -> bool {
        self.core.holds()
    }

    /// What the peer may reach.
    pub(super) fn domain(&self) -> Domain {
        self.domain
    }

    /// A buffer of such a size that the peer knows over each link, for another connection.
    fn take_idle(&mut self, bytes: u64) -> Option<(BufferId, Rmb)> {
        let known = |(id, rmb): &(BufferId, Rmb)| rmb.bytes == bytes && self.core.is_known(*id);
        let at = self.idle.iter().rposition(known)?;
        Some(self.idle.swap_remove(at))
    }

    /// Whether a buffer that a connection has left may be kept for another.
    fn has_room_for(&self, id: BufferId, rmb: &Rmb) -> bool {
        let bytes: u64 = self.idle.iter().map(|(_, rmb)| rmb.bytes).sum();
        self.core.terms().peer_is_shunt
            && self.core.is_known(id)
            && self.core.buffers() <= IDLE_BELOW
            && self.idle.len() < IDLE_MAX
            && bytes + rmb.bytes <= IDLE_BYTES
    }

    /// The handshake that makes first contact.
    pub(super) fn first(&self) -> Option<ExchangeId> {
        self.first
    }

    /// By which key a buffer is reached over each link: ours have one for all, since all queue pairs of a
    /// vector are of one device.
    pub(super) fn keys(&self, on_link: LinkBuffer) -> Vec<(LinkSlot, LinkBuffer)> {
        self.core.links().map(|slot| (slot, on_link)).collect()
    }
}

/// What a queue pair is told of a peer that is Shunt.
pub(super) fn towards_shunt(receive: &mut RtrAttributes, send: &mut RtsAttributes) {
    // Its packets are numbered 0, or by their place in a burst.
    receive.identification_end = Some(64);
    send.timeout = TIMEOUT;
    send.retransmission = Retransmission::SHUNT;
    send.window = WINDOW_SHUNT;
    send.ack_every = ACK_EVERY_SHUNT;
}

/// The address that a GID stands for.
fn ip_of(gid: Gid) -> IpAddr {
    gid.to_v4().map_or_else(|| Ipv6Addr::from(gid.0).into(), IpAddr::from)
}

/// Whether `one` more address among these is not more than there may be: `most` of one, and of one network.
fn is_below(all: impl Iterator<Item = IpAddr>, one: IpAddr, most: usize) -> bool {
    let near = all.filter(|other| host(*other) == host(one));
    let (same, near) =
        near.fold((0, 0), |(same, near), other| (same + usize::from(other == one), near + 1));
    same < most && near < most.saturating_mul(NETWORK_HOSTS)
}

/// The GID of an address.
pub(super) fn gid_of(ip: IpAddr) -> Gid {
    match ip {
        IpAddr::V4(v4) => Gid::v4(v4),
        IpAddr::V6(v6) => Gid(v6.octets()),
    }
}

impl Vector {
    /// A queue pair at one of our addresses, for a new link. `path_bytes`: the longest packet of the path.
    fn new_link(
        &mut self,
        domain: Domain,
        local: IpAddr,
        path_bytes: u32,
    ) -> Result<Link, Diagnosis> {
        if !self.device.has_port(local) {
            return Err(Diagnosis::NoRdmaDevice);
        }
        let split = self.config.split_cqs.has(self.stat.vector);
        let qpn = self.device.open_link(&mut self.shelf, domain, split);
        let qpn = qpn.map_err(|_| Diagnosis::Memory)?;
        let end = LinkEnd {
            gid: gid_of(local),
            mac: self.device.mac(local).unwrap_or(self.mac),
            qpn: smc::Qpn::new(qpn.value()),
            psn: smc::Psn::new(random()),
            mtu: Mtu::new(self.device.mtu(path_bytes).code()),
        };
        Ok(Link { qpn, end, peer: None, active: false, split })
    }

    /// A group whose first link begins here.
    pub(super) fn new_group(
        &mut self,
        first: ExchangeId,
        peer: Peer<'_>,
        ends: (IpAddr, IpAddr, u32),
        now: u64,
    ) -> Result<GroupId, Diagnosis> {
        let (local, remote, path_bytes) = ends;
        if !self.groups.has_room_for(remote, self.config.peer_groups as usize) {
            return Err(Diagnosis::Memory);
        }
        let domain = self.device.open_domain().map_err(|_| Diagnosis::Memory)?;
        let link = self.new_link(domain, local, path_bytes);
        let link = link.inspect_err(|_| self.device.close_domain(domain))?;
        let Link { qpn, end, .. } = link;
        let limits = self.limits();
        let (core, proposed) = match peer {
            Peer::Client(client) => (Some(Core::server(limits, client, end)), Some(*client)),
            Peer::Server(server) => (Core::client(limits, server, end, smc_time(now)), None),
        };
        let Some(core) = core else {
            self.device.close_link(qpn, &mut self.shelf);
            self.device.close_domain(domain);
            return Err(Diagnosis::Internal);
        };
        let exchange = self.exchanges.get(first);
        let (conn, ours) = (exchange.map(|e| e.conn), exchange.map_or(local, |e| e.local));
        let berth = conn.and_then(|conn| self.berths.get(&conn)).map(Berth::group);
        let id = self.groups.all.insert(Group {
            core,
            remote,
            local: ours,
            first: Some(first),
            waiting: Vec::new(),
            proposed,
            links: [Some(link), None, None],
            domain,
            members: Numbers::default(),
            buffers: Numbers::default(),
            rkeys: Numbers::default(),
            idle: Vec::new(),
            forget_at: None,
            _berth: berth,
        });
        self.groups.links.insert(qpn, (id, LinkSlot::FIRST));
        Ok(id)
    }

    /// A message came over a link.
    pub(super) fn on_message(&mut self, qpn: Qpn, now: u64) {
        let Some((id, slot)) = self.groups.links.get(&qpn).copied() else { return };
        let Some(group) = self.groups.all.get_mut(id) else { return };
        match group.core.on_message(slot, self.device.message(), smc_time(now)) {
            Received::Cdc { token, cdc } => {
                self.stat.cdc_rx += 1;
                if let Some(conn) = group.members.get(&token).copied() {
                    self.on_cdc(conn, &cdc, now);
                }
                self.act(id, now);
            }
            Received::Control => self.act(id, now),
            Received::Ignored => {}
        }
    }

    /// A queue pair has failed.
    pub(super) fn on_link_failed(&mut self, qpn: Qpn, _: Status, now: u64) {
        let Some((id, slot)) = self.groups.links.get(&qpn).copied() else { return };
        if let Some(group) = self.groups.all.get_mut(id) {
            group.core.on_link_failed(slot, smc_time(now));
            self.act(id, now);
        }
    }

    /// Does what a group wants to have done.
    pub(super) fn act(&mut self, id: GroupId, now: u64) {
        while let Some(action) = self.groups.all.get_mut(id).and_then(|g| g.core.poll()) {
            self.perform(id, action, now);
        }
    }

    fn perform(&mut self, id: GroupId, action: Action, now: u64) {
        match action {
            Action::Send { link, bytes } => {
                self.stat.llc_tx += 1;
                if let Some(link) = self.groups.link(id, link) {
                    // A queue pair that takes nothing any more says so by its completions.
                    let _ = self.device.send_long(link.qpn, Purpose::Llc, &bytes, &mut self.shelf);
                }
            }
            Action::ReadyLink { link, peer } => self.ready_link(id, link, peer, now),
            Action::LinkActive(slot) => self.link_active(id, slot, now),
            Action::LinkDown(slot) => {
                self.stat.links_lost += 1;
                if let Some(link) = self.groups.link(id, slot) {
                    self.device.fail(link.qpn, now);
                }
            }
            Action::DestroyLink(slot) => self.destroy_link(id, slot),
            Action::FirstLinkFailed(why) => self.first_link_failed(id, why, now),
            Action::RkeyConfirmed(buffer) => self.rkey_told(id, buffer, true, now),
            Action::RkeyRejected(buffer) => self.rkey_told(id, buffer, false, now),
            Action::RkeyDeleted { buffer, .. } => {
                if let Some(group) = self.groups.all.get_mut(id) {
                    group.rkeys.remove(&buffer);
                }
            }
            Action::Move { token, link, remote, hold } => {
                self.move_conn(id, token, link, remote, now);
                self.hold(id, token, hold);
            }
            Action::Release => self.release(id, now),
            Action::Strand(token) => self.strand(id, token, now),
            Action::CreateLink { link, peer } => self.create_link(id, link, peer, now),
            Action::AskForLink => self.ask_for_link(id),
            Action::AddLinkRequested(gids) => self.add_link(id, gids.first().copied(), now),
            Action::Terminated(why) => self.terminated(id, why, now),
        }
    }

    /// Both ends of a link are known.
    fn ready_link(&mut self, id: GroupId, slot: LinkSlot, peer: LinkEnd, now: u64) {
        let Some(group) = self.groups.all.get_mut(id) else { return };
        let Some(link) = &mut group.links[slot.index()] else { return };
        link.peer = Some(peer);
        let (link, mtu) = (*link, link.end.mtu.min(peer.mtu));
        let shunt = group.core.terms().peer_is_shunt;
        let congestion = group.core.terms().marks.then_some(Dcqcn::BETWEEN_HOSTS);
        let ready = || {
            let addresses = Addresses::new(ip_of(link.end.gid), ip_of(peer.gid))?;
            let mtu = roce::Mtu::from_code(mtu.get())?;
            let (peer_qpn, psn) = (Qpn::new(peer.qpn.get()), Psn::new(peer.psn.get()));
            let attributes = RtrAttributes::new(addresses, peer_qpn, psn, mtu);
            Some(RtrAttributes { congestion, ..attributes })
        };
        let own = Psn::new(link.end.psn.get());
        let mut send = RtsAttributes::new(own);
        send.timeout = TIMEOUT;
        send.retransmission = TOWARDS_LINUX;
        if shunt {
            self.device.widen(link.qpn);
        }
        let done = ready().is_some_and(|mut receive| {
            if shunt {
                towards_shunt(&mut receive, &mut send);
            }
            self.device.connect(link.qpn, &receive).is_ok()
                && self.device.start(link.qpn, &send).is_ok()
        });
        if !done {
            group.core.on_link_failed(slot, smc_time(now));
        }
    }

    fn link_active(&mut self, id: GroupId, slot: LinkSlot, now: u64) {
        let Some(group) = self.groups.all.get_mut(id) else { return };
        if let Some(link) = &mut group.links[slot.index()] {
            link.active = true;
        }
        if slot != LinkSlot::FIRST {
            return;
        }
        let Some(first) = group.first.take() else { return };
        let waiting = std::mem::take(&mut group.waiting);
        self.resume(first, Wait::Link, self.took_at);
        if let Some(exchange) = self.exchanges.get_mut(first) {
            exchange.machine.link_confirmed();
        }
        self.take_steps(first, now);
        for other in waiting {
            self.find_group_again(other, now);
        }
    }

    /// First contact came to nothing; others who waited make it anew.
    fn first_link_failed(&mut self, id: GroupId, why: Diagnosis, now: u64) {
        let Some(group) = self.groups.all.get_mut(id) else { return };
        let Some(first) = group.first else { return };
        if let Some(exchange) = self.exchanges.get_mut(first) {
            match why {
                Diagnosis::TimeoutConfirmLink => exchange.machine.link_timed_out(smc_time(now)),
                other => exchange.machine.refuse(other),
            }
        }
        self.take_steps(first, now);
    }

    /// A group of which nothing was made, or whose end has come, is forgotten; who waited for it goes on.
    pub(super) fn drop_group(&mut self, id: GroupId, now: u64) {
        let Some(group) = self.groups.all.remove(id) else { return };
        self.opened.close(group.remote);
        for link in group.links.iter().flatten() {
            self.groups.links.remove(&link.qpn);
            self.device.close_link(link.qpn, &mut self.shelf);
        }
        self.groups.idle -= group.idle.len();
        for (_, rmb) in group.idle {
            self.device.deregister(rmb.key);
        }
        self.device.close_domain(group.domain);
        for other in group.waiting {
            self.find_group_again(other, now);
        }
    }

    fn destroy_link(&mut self, id: GroupId, slot: LinkSlot) {
        let Some(group) = self.groups.all.get_mut(id) else { return };
        if let Some(link) = group.links[slot.index()].take() {
            self.groups.links.remove(&link.qpn);
            self.device.close_link(link.qpn, &mut self.shelf);
        }
    }

    /// The peer knows a buffer now, or will not.
    fn rkey_told(&mut self, id: GroupId, buffer: BufferId, yes: bool, now: u64) {
        let conn = self.groups.get(id).and_then(|group| group.buffers.get(&buffer)).copied();
        if let Some(exchange) = conn.and_then(|conn| self.handshaking.get(&conn)).copied() {
            self.buffer_told(exchange, yes, now);
        }
    }

    fn move_conn(&mut self, id: GroupId, token: Token, slot: LinkSlot, to: Remote, now: u64) {
        let Some(link) = self.groups.link(id, slot) else { return };
        let Some(conn) = self.groups.get(id).and_then(|g| g.members.get(&token)).copied() else {
            return;
        };
        if let Some(Running::Smc(smc)) = self.running.get_mut(&conn) {
            smc.moved(link.qpn, to);
            self.warm_up(conn, now);
        }
    }

    /// A connection that has moved says nothing of its own yet.
    fn hold(&mut self, id: GroupId, token: Token, hold: bool) {
        let conn = self.groups.get(id).and_then(|g| g.members.get(&token)).filter(|_| hold);
        if let Some(Running::Smc(smc)) = conn.and_then(|conn| self.running.get_mut(conn)) {
            smc.pump.hold();
        }
    }

    /// The peer has left the lost link, or does not answer.
    fn release(&mut self, id: GroupId, now: u64) {
        let Some(group) = self.groups.get(id) else { return };
        let members: Vec<ConnId> = group.members.values().copied().collect();
        for conn in members {
            if let Some(Running::Smc(smc)) = self.running.get_mut(&conn) {
                smc.pump.release();
                self.warm_up(conn, now);
            }
        }
    }

    fn strand(&mut self, id: GroupId, token: Token, now: u64) {
        let conn = self.groups.get(id).and_then(|g| g.members.get(&token)).copied();
        if let Some(conn) = conn
            && let Some(Running::Smc(smc)) = self.running.get_mut(&conn)
        {
            smc.pump.strand();
            self.warm_up(conn, now);
        }
    }

    /// Our addresses that no link of a group uses.
    fn unused(&self, id: GroupId) -> impl Iterator<Item = IpAddr> {
        let links = self.groups.get(id).map(|group| group.links);
        let uses = move |ip: &IpAddr| {
            links.iter().flatten().flatten().any(|link| ip_of(link.end.gid) == *ip)
        };
        self.config.addresses.iter().copied().filter(move |ip| !uses(ip))
    }

    /// Client: tells the server from where there could be another link.
    fn ask_for_link(&mut self, id: GroupId) {
        let gids: Vec<Gid> = self.unused(id).map(gid_of).collect();
        if let Some(group) = self.groups.all.get_mut(id).filter(|_| !gids.is_empty()) {
            group.core.request_add_link(&gids);
        }
    }

    /// Another link is wanted, from another address of ours.
    fn create_link(&mut self, id: GroupId, slot: LinkSlot, _: Option<Gid>, now: u64) {
        let other = self.unused(id).next();
        let domain = self.groups.get(id).map(|group| group.domain);
        let made = other.zip(domain);
        let made = made.and_then(|(ip, domain)| self.new_link(domain, ip, PATH_BYTES).ok());
        let Some(group) = self.groups.all.get_mut(id) else { return };
        let Some(mut link) = made else {
            return group.core.link_refused(slot, smc_time(now));
        };
        // Longer ones than those of the first link would keep all connections whose path takes no longer ones from the group.
        link.end.mtu = group.mtus().fold(link.end.mtu, Mtu::min);
        group.links[slot.index()] = Some(link);
        self.groups.links.insert(link.qpn, (id, slot));
        let keys: Vec<_> = group.rkeys.iter().map(|(buffer, key)| (*buffer, *key)).collect();
        group.core.link_created(slot, link.end, &keys, smc_time(now));
    }

    /// The client has named other addresses of its own.
    fn add_link(&mut self, id: GroupId, target: Option<Gid>, now: u64) {
        let Some(group) = self.groups.all.get_mut(id) else { return };
        if self.config.addresses.len() > 1 {
            group.core.add_link(target, smc_time(now));
        } else {
            group.core.reject_add_link();
        }
        self.act(id, now);
    }

    /// The group is at its end, and with it its connections.
    fn terminated(&mut self, id: GroupId, _: Terminated, now: u64) {
        let Some(group) = self.groups.all.get_mut(id) else { return };
        group.forget_at = Some(now + PARTING_NS);
        self.opened.close(group.remote);
        let members: Vec<ConnId> = group.members.values().copied().collect();
        for conn in members {
            if let Some(exchange) = self.handshaking.get(&conn).copied() {
                if let Some(exchange) = self.exchanges.get_mut(exchange) {
                    exchange.machine.refuse(Diagnosis::NoActiveLink);
                }
                self.take_steps(exchange, now);
            } else if let Some(Running::Smc(smc)) = self.running.get_mut(&conn) {
                smc.pump.kill();
                self.warm_up(conn, now);
            }
        }
    }

    /// A buffer of the group that a connection before has had, for another: the peer knows it, and need not be asked.
    /// Those of another size, from before a setting was changed, are given up for it.
    pub(super) fn take_idle(
        &mut self,
        id: GroupId,
        bytes: u64,
        conn: ConnId,
        now: u64,
    ) -> Option<(BufferId, Rmb)> {
        let group = self.groups.all.get_mut(id)?;
        while let Some((buffer, rmb)) = group.take_idle(bytes) {
            self.groups.idle -= 1;
            let handle = Place::Received(conn).handle();
            if self.device.rebind_rmb(rmb.key, rmb.bytes, handle).is_ok() {
                return Some((buffer, rmb));
            }
            group.core.delete_rkey(buffer, smc_time(now));
        }
        for (buffer, rmb) in group.idle.extract_if(.., |(_, rmb)| rmb.bytes != bytes) {
            self.groups.idle -= 1;
            self.device.forget_rmb(rmb.key);
            group.core.delete_rkey(buffer, smc_time(now));
        }
        None
    }

    /// Keeps the buffer of a connection that has ended in order for another one, if it can be. Not towards Linux, which
    /// may write for the one that it had ([`smc::group::Group::is_known`]).
    pub(super) fn keep_idle(&mut self, place: &InGroup, rmb: &Rmb) -> bool {
        let Some(group) = self.groups.all.get_mut(place.group) else { return false };
        let keeps = self.config.reuse_buffers
            && self.groups.idle < IDLE_ALL_MAX
            && group.has_room_for(place.buffer, rmb);
        if keeps {
            self.groups.idle += 1;
            group.idle.push((place.buffer, *rmb));
        }
        keeps
    }

    /// Time has passed.
    pub(super) fn tick_groups(&mut self, now: u64) {
        for id in self.groups.all.ids() {
            let Some(group) = self.groups.all.get_mut(id) else { continue };
            match group.forget_at {
                Some(at) if at <= now && group.members.is_empty() => self.drop_group(id, now),
                Some(_) => {}
                None => {
                    group.core.on_deadline(smc_time(now));
                    self.act(id, now);
                }
            }
        }
    }

    /// Parts from all peers.
    pub(super) fn part(&mut self, now: u64) {
        for id in self.groups.all.ids() {
            if let Some(group) = self.groups.all.get_mut(id) {
                group.core.shut_down();
                self.act(id, now);
            }
        }
    }

    pub(super) fn group_stats(&self) -> Vec<GroupStat> {
        self.groups.all.iter().map(|(id, group)| self.group_stat(id, group)).collect()
    }

    fn group_stat(&self, id: GroupId, group: &Group) -> GroupStat {
        let link = |link: &Link| LinkStat {
            local: ip_of(link.end.gid).to_string(),
            peer: link.peer.map_or_else(String::new, |peer| ip_of(peer.gid).to_string()),
            state: if link.active { "ACTIVE" } else { "ACTIVATING" }.into(),
            qpn: link.qpn.value(),
            peer_qpn: link.peer.map_or(0, |peer| peer.qpn.get()),
            mtu: link.peer.and_then(|p| p.mtu.min(link.end.mtu).bytes()).unwrap_or(0),
            split: link.split,
            congestion: link.peer.is_some() && group.core.terms().marks,
            rate_bits: self.device.rate(link.qpn),
        };
        let links: Vec<LinkStat> = group.links.iter().flatten().map(link).collect();
        GroupStat {
            id: id.number(),
            role: if group.core.role() == Side::Client { "client" } else { "server" }.into(),
            kind: if links.len() > 1 { "SYMMETRIC" } else { "SINGLE" }.into(),
            peer: group.remote.to_string(),
            eid: group.core.terms().eid.to_string(),
            connections: group.members.len() as u64,
            idle: group.idle.len() as u64,
            links,
        }
    }
}

/// Whom a group is made with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer<'a> {
    /// We are the server.
    Client(&'a Proposed),
    /// We are the client.
    Server(&'a PeerEnd),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Groups of each of these addresses before one of them is refused another.
    fn taken(addresses: &[&str], most: usize) -> Vec<usize> {
        let mut all: Vec<IpAddr> = Vec::new();
        let each = addresses.iter().map(|address| {
            let one: IpAddr = address.parse().unwrap();
            let before = all.len();
            while is_below(all.iter().copied(), one, most) {
                all.push(one);
            }
            all.len() - before
        });
        each.collect()
    }

    #[test]
    fn hosts_of_one_network_have_groups_of_their_own() {
        assert_eq!(taken(&["192.0.2.1", "192.0.2.2"], 3), [3, 3]);
        // Who takes one address after another of a network has what eight hosts have there.
        let network = ["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"];
        assert_eq!(taken(&network, 3), [3, 3, 3]);
        let many: Vec<_> = (1..=10).map(|host| format!("2001:db8::{host}")).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(taken(&many, 3), [3, 3, 3, 3, 3, 3, 3, 3, 0, 0]);
        let link: Vec<_> = (1..=10).map(|host| format!("fe80::{host}")).collect();
        let link: Vec<_> = link.iter().map(String::as_str).collect();
        assert_eq!(taken(&link, 3), [3; 10], "of a link all have the same network");
    }
}
