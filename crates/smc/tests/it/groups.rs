//! Two link groups as values, with connections on them, over links that are late and fail: the simulation.

use std::collections::BTreeMap;

use smc::cdc::Cdc;
use smc::clc::RdmaAnswer;
use smc::conn::{Conn, Push, Setup, State, Ticket};
use smc::group::{Action, BufferId, Group, LinkBuffer, LinkEnd, LinkSlot, Opened, Received};
use smc::handshake::{PeerEnd, Proposed, Terms};
use smc::{Config, Gid, Mtu, Qpn, RKey, SizeClass, SystemId, Time, Token};

/// Bytes of each connection's stream.
const TOTAL: u64 = 150_000;
const MILLISECOND: u64 = 1_000_000;

/// What goes over a link, from one queue pair to another.
enum Packet {
    Send(Vec<u8>),
    Write { rkey: RKey, vaddr: u64, bytes: Vec<u8>, then: ([u8; 44], Token, Ticket) },
}

struct Wire {
    /// When it arrives.
    at: u64,
    from: (usize, Qpn),
    packet: Packet,
}

struct Buffer {
    bytes: Vec<u8>,
    id: Option<BufferId>,
    told: bool,
    keys: Vec<(LinkSlot, LinkBuffer)>,
}

/// One connection of one side.
struct End {
    conn: Conn,
    link: LinkSlot,
    ring: Vec<u8>,
    buffer: usize,
    wrote: u64,
    read: u64,
    lost: bool,
}

pub(crate) struct Host {
    pub(crate) group: Group,
    /// Queue pairs that work, and which link each is.
    qps: BTreeMap<Qpn, LinkSlot>,
    /// Where the peer's end of each link is.
    peers: BTreeMap<LinkSlot, Qpn>,
    buffers: Vec<Buffer>,
    ends: BTreeMap<Token, End>,
    pub(crate) active: u32,
    pub(crate) ended: bool,
    next: u32,
    ports: u8,
}

/// A client and a server, a network, and a clock.
pub(crate) struct World {
    /// The server is 0.
    pub(crate) hosts: [Host; 2],
    wires: Vec<Wire>,
    pub(crate) now: u64,
    random: u64,
    /// Queue pairs that are dead, though their side may not know.
    dead: Vec<(usize, Qpn)>,
    latency: u64,
    /// Messages that have arrived and are not acknowledged: by which queue pair, of which connection.
    acks: Vec<((usize, Qpn), Token, Ticket)>,
    /// Ends of connections: the token of the server's and of the client's.
    pairs: Vec<[Token; 2]>,
}

fn end(host: usize, qpn: u32) -> LinkEnd {
    let octet = u8::try_from(host + 1).expect("a small number");
    let gid = Gid::v4([10, 0, u8::try_from(qpn >> 16 & 1).expect("a small number"), octet].into());
    LinkEnd { gid, qpn: Qpn::new(qpn), mtu: Mtu::BYTES_1024, ..LinkEnd::default() }
}

fn answer(host: usize, end: &LinkEnd) -> RdmaAnswer {
    let octet = u8::try_from(host + 1).expect("a small number");
    let system = SystemId([0, 0, octet, 0, 0, 0, 0, octet]);
    RdmaAnswer {
        first_contact: true,
        system,
        gid: end.gid,
        qpn: end.qpn,
        mtu: end.mtu,
        ..RdmaAnswer::default()
    }
}

impl World {
    pub(crate) fn new(seed: u64, shunt: bool, links: u8) -> Self {
        let config = Config { max_links: links, ..Config::default() };
        let limits = config.limits().expect("settings");
        let terms = Terms {
            release: 1,
            max_conns: 255,
            max_links: links,
            features: 0,
            eid: smc::Eid::default(),
            peer_is_shunt: shunt,
            marks: false,
        };
        let ends = [end(0, 100), end(1, 200)];
        let proposed = Proposed {
            system: answer(1, &ends[1]).system,
            gid: ends[1].gid,
            mac: ends[1].mac,
            terms,
        };
        let server = Group::server(limits, &proposed, ends[0]);
        let of_server = PeerEnd { answer: answer(0, &ends[0]), terms: Some(terms) };
        let client = Group::client(limits, &of_server, ends[1], Time::default());
        let host = |group, qpn| Host {
            group,
            qps: BTreeMap::from([(Qpn::new(qpn), LinkSlot::FIRST)]),
            peers: BTreeMap::new(),
            buffers: Vec::new(),
            ends: BTreeMap::new(),
            active: 0,
            ended: false,
            next: qpn,
            ports: links,
        };
        let hosts = [host(server, 100), host(client.expect("first contact"), 200)];
        let mut world = Self {
            hosts,
            wires: Vec::new(),
            now: 0,
            random: seed | 1,
            dead: Vec::new(),
            acks: Vec::new(),
            latency: MILLISECOND,
            pairs: Vec::new(),
        };
        world.act(1);
        let of_client = PeerEnd { answer: answer(1, &ends[1]), terms: Some(terms) };
        world.hosts[0].group.first_contact(&of_client, Time::default());
        world.act(0);
        world
    }

    pub(crate) fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    fn time(&self) -> Time {
        Time::from_nanos(self.now)
    }

    /// Posts on the link of a host; what is posted on one link arrives in order.
    fn post(&mut self, host: usize, link: LinkSlot, packet: Packet) {
        let late = self.random(self.latency) + 1;
        let this = &self.hosts[host];
        let Some(qpn) = this.qps.iter().find(|(_, slot)| **slot == link).map(|(qpn, _)| *qpn)
        else {
            return;
        };
        let from = (host, qpn);
        let last = self.wires.iter().filter(|w| w.from == from).map(|w| w.at).max().unwrap_or(0);
        self.wires.push(Wire { at: last.max(self.now + late), from, packet });
    }

    /// Keys of a buffer for each link that the group has.
    fn register(&mut self, host: usize, buffer: usize, link: LinkSlot) -> LinkBuffer {
        let this = &mut self.hosts[host];
        this.next += 1;
        let key = LinkBuffer { rkey: RKey(this.next), vaddr: u64::from(this.next) << 32 };
        this.buffers[buffer].keys.retain(|(slot, _)| *slot != link);
        this.buffers[buffer].keys.push((link, key));
        key
    }

    /// Does what a host's group says.
    fn act(&mut self, host: usize) {
        while let Some(action) = self.hosts[host].group.poll() {
            match action {
                Action::Send { link, bytes } => self.post(host, link, Packet::Send(bytes)),
                Action::CreateLink { link, .. } => self.create_link(host, link),
                Action::ReadyLink { link, peer } => {
                    self.hosts[host].peers.insert(link, peer.qpn);
                }
                Action::LinkActive(_) => self.hosts[host].active += 1,
                Action::LinkDown(link) | Action::DestroyLink(link) => {
                    if matches!(action, Action::LinkDown(_)) {
                        self.hosts[host].active = self.hosts[host].active.saturating_sub(1);
                    }
                    let gone: Vec<_> = self.hosts[host]
                        .qps
                        .iter()
                        .filter(|(_, s)| **s == link)
                        .map(|(q, _)| *q)
                        .collect();
                    for qpn in gone {
                        self.hosts[host].qps.remove(&qpn);
                        self.dead.push((host, qpn));
                        self.wires.retain(|wire| wire.from != (host, qpn));
                    }
                    for buffer in &mut self.hosts[host].buffers {
                        buffer.keys.retain(|(slot, _)| *slot != link);
                    }
                }
                Action::Move { token, link, remote, hold } => {
                    if let Some(end) = self.hosts[host].ends.get_mut(&token) {
                        end.link = link;
                        end.conn.moved(remote);
                        if hold {
                            end.conn.hold();
                        }
                    }
                    self.pump(host, token);
                }
                Action::Release => {
                    let tokens: Vec<_> = self.hosts[host].ends.keys().copied().collect();
                    for token in tokens {
                        if let Some(end) = self.hosts[host].ends.get_mut(&token) {
                            end.conn.release();
                        }
                        self.pump(host, token);
                    }
                }
                Action::Strand(token) => panic!("{token:?}: all buffers are told for all links"),
                Action::RkeyDeleted { buffer, .. } => {
                    let buffers = &mut self.hosts[host].buffers;
                    buffers.iter_mut().filter(|b| b.id == Some(buffer)).for_each(|b| b.id = None);
                }
                Action::Terminated(_) => self.end(host),
                Action::RkeyConfirmed(id) => {
                    let buffers = &mut self.hosts[host].buffers;
                    buffers.iter_mut().filter(|b| b.id == Some(id)).for_each(|b| b.told = true);
                }
                Action::AskForLink => {
                    let gids = [end(host, 1 << 16).gid];
                    self.hosts[host].group.request_add_link(&gids);
                }
                Action::AddLinkRequested(gids) => {
                    let now = self.time();
                    let Host { ports, group, .. } = &mut self.hosts[host];
                    if *ports > 1 {
                        group.add_link(gids.first().copied(), now);
                    } else {
                        group.reject_add_link();
                    }
                }
                Action::RkeyRejected(_) => {}
                Action::FirstLinkFailed(_) => self.end(host),
            }
        }
    }

    fn end(&mut self, host: usize) {
        self.hosts[host].ended = true;
        for end in self.hosts[host].ends.values_mut() {
            end.lost |= !end.conn.is_over();
            end.conn.kill();
        }
    }

    fn create_link(&mut self, host: usize, link: LinkSlot) {
        let now = self.time();
        if self.hosts[host].ports < 2 {
            self.hosts[host].group.link_refused(link, now);
            return;
        }
        self.hosts[host].next += 1;
        let qpn = self.hosts[host].next | 1 << 16;
        self.hosts[host].qps.insert(Qpn::new(qpn), link);
        let mut keys = Vec::new();
        for buffer in 0..self.hosts[host].buffers.len() {
            let key = self.register(host, buffer, link);
            if let Some(id) = self.hosts[host].buffers[buffer].id {
                keys.push((id, key));
            }
        }
        self.hosts[host].group.link_created(link, end(host, qpn), &keys, now);
    }

    /// Opens a connection as the handshake would, without a network in between.
    pub(crate) fn connect(&mut self) -> bool {
        if self.hosts.iter().any(|h| h.ended || h.group.is_ended() || h.active == 0) {
            return false;
        }
        let now = self.time();
        let Ok(at_server) = self.hosts[0].group.open(None) else { return false };
        let qpn = self.hosts[0].qps.iter().find(|(_, s)| **s == at_server.link).map(|(q, _)| *q);
        let qpn = qpn.expect("the link works");
        let named = RdmaAnswer { qpn, gid: end(0, qpn.get()).gid, ..answer(0, &end(0, qpn.get())) };
        let Some(named) = self.hosts[1].group.names(&named) else {
            // The client has lost it already: out of sync for this connection.
            self.hosts[0].group.close(at_server.token, now);
            return false;
        };
        let at_client = self.hosts[1].group.open(Some(named)).expect("the link works");
        let opened = [at_server, at_client];
        let mut told = Vec::new();
        for (host, opened) in opened.iter().enumerate() {
            let buffer = self.hosts[host].buffers.len();
            let fresh = Buffer { bytes: vec![0; 16_384], id: None, told: false, keys: Vec::new() };
            self.hosts[host].buffers.push(fresh);
            let links: Vec<_> = self.hosts[host].group.links().collect();
            for link in links {
                self.register(host, buffer, link);
            }
            let keys = self.hosts[host].buffers[buffer].keys.clone();
            let this = &mut self.hosts[host];
            let id = this.group.confirm_rkey(&keys, now);
            this.buffers[buffer].id = Some(id.expect("few buffers"));
            self.act(host);
            let key = keys.iter().find(|(slot, _)| *slot == opened.link).expect("of its link").1;
            told.push((buffer, key));
        }
        // The answers to CONFIRM RKEY are waited for, as the handshake does.
        for _ in 0..400 {
            let known = |(host, (buffer, _)): (usize, &(usize, LinkBuffer))| {
                self.hosts[host].buffers[*buffer].told
            };
            if told.iter().enumerate().all(known) {
                break;
            }
            self.step();
        }
        let known = |(host, (buffer, _)): (usize, &(usize, LinkBuffer))| {
            self.hosts[host].buffers[*buffer].told
        };
        if !told.iter().enumerate().all(known) {
            // Over a link that is dead, for instance: the handshake declines.
            self.decline(&opened, &told);
            return false;
        }
        for (host, mine) in opened.iter().enumerate() {
            let (_, key) = told[1 - host];
            let reached = self.hosts[host].group.reach(mine.token, mine.link, key.rkey, key.vaddr);
            let Ok((link, remote)) = reached else {
                self.decline(&opened, &told);
                return false;
            };
            let setup = Setup {
                rmb: SizeClass::new(0),
                send_ring: SizeClass::new(0),
                peer_token: opened[1 - host].token,
                peer_rmb: SizeClass::new(0),
                remote,
                autocork: 0,
                urgent_inline: false,
            };
            let end = End {
                conn: Conn::new(&setup),
                link,
                ring: vec![0; 16_384],
                buffer: told[host].0,
                wrote: 0,
                read: 0,
                lost: false,
            };
            self.hosts[host].ends.insert(mine.token, end);
        }
        self.pairs.push([at_server.token, at_client.token]);
        for (host, mine) in opened.iter().enumerate() {
            self.pump(host, mine.token);
        }
        true
    }

    /// There will be no such connection: its places in the groups, and its buffers, are given back.
    fn decline(&mut self, opened: &[Opened; 2], told: &[(usize, LinkBuffer)]) {
        let now = self.time();
        for (host, mine) in opened.iter().enumerate() {
            self.hosts[host].group.close(mine.token, now);
            self.hosts[host].ends.remove(&mine.token);
            if let Some(id) = self.hosts[host].buffers[told[host].0].id {
                self.hosts[host].group.delete_rkey(id, now);
            }
            self.act(host);
        }
    }

    fn byte(host: usize, token: Token, at: u64) -> u8 {
        let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(token.0) << 40;
        mixed.to_le_bytes()[3 + host]
    }

    /// The program reads and writes what it can, and the connection posts what it plans.
    fn pump(&mut self, host: usize, token: Token) {
        let Some(pair) = self.pairs.iter().find(|pair| pair[host] == token).copied() else {
            return;
        };
        let Host { ends, buffers, .. } = &mut self.hosts[host];
        let Some(end) = ends.get_mut(&token) else { return };
        let peer = pair[1 - host];
        let mut seen = 0;
        for piece in end.conn.readable_pieces() {
            for offset in piece.offset..piece.offset + piece.len {
                let want = Self::byte(1 - host, peer, end.read);
                let got = buffers[end.buffer].bytes[offset as usize];
                assert_eq!(got, want, "byte {} of {token:?} at host {host}", end.read);
                end.read += 1;
                seen += 1;
            }
        }
        end.conn.consumed(seen);
        let room = u64::from(end.conn.room().unwrap_or(0)).min(TOTAL - end.wrote);
        for at in end.wrote..end.wrote + room {
            let place = usize::try_from(at).expect("64 bits") % end.ring.len();
            end.ring[place] = Self::byte(host, token, at);
        }
        end.wrote += room;
        end.conn.wrote(u32::try_from(room).expect("a small number"));
        if end.wrote == TOTAL && end.read == TOTAL {
            end.conn.close();
        }
        let link = end.link;
        let mut posts = Vec::new();
        while let Some(plan) = end.conn.plan(Push::Now) {
            let mut bytes = Vec::new();
            for write in plan.writes() {
                let mut one = Vec::new();
                for piece in write.pieces() {
                    let at = piece.offset as usize;
                    one.extend_from_slice(&end.ring[at..at + piece.len as usize]);
                }
                bytes.push((write.rkey, write.vaddr, one));
            }
            let then = (plan.cdc, token, plan.ticket);
            // An empty write stands for the message alone.
            let last = bytes.pop().unwrap_or((RKey(0), 0, Vec::new()));
            for (rkey, vaddr, bytes) in bytes {
                posts.push(Packet::Write {
                    rkey,
                    vaddr,
                    bytes,
                    then: ([0; 44], token, plan.ticket),
                });
            }
            posts.push(Packet::Write { rkey: last.0, vaddr: last.1, bytes: last.2, then });
        }
        for packet in posts {
            self.post(host, link, packet);
        }
        self.close_if_over(host, token);
    }

    fn close_if_over(&mut self, host: usize, token: Token) {
        let now = self.time();
        let over = self.hosts[host].ends.get(&token).is_some_and(|e| e.conn.is_over());
        if over && self.hosts[host].group.link_of(token).is_some() {
            self.hosts[host].group.close(token, now);
            let buffer = self.hosts[host].ends[&token].buffer;
            if let Some(id) = self.hosts[host].buffers[buffer].id {
                self.hosts[host].group.delete_rkey(id, now);
            }
            self.act(host);
        }
    }

    /// The next thing that happens, if anything does within what is to come.
    pub(crate) fn step(&mut self) -> bool {
        if self.wires.is_empty() {
            self.acknowledge_all();
        }
        let wire = self.wires.iter().enumerate().min_by_key(|(_, wire)| wire.at).map(|(at, _)| at);
        let deadlines = self.hosts.iter().filter_map(|h| h.group.next_deadline());
        let deadline = deadlines.min().map(Time::as_nanos);
        match (wire.map(|at| (at, self.wires[at].at)), deadline) {
            (Some((_, at)), Some(due)) if due < at => self.pass(due),
            (Some((index, at)), _) => {
                self.now = self.now.max(at);
                let wire = self.wires.remove(index);
                self.arrive(wire);
            }
            (None, Some(due)) => self.pass(due),
            (None, None) => return false,
        }
        true
    }

    fn pass(&mut self, due: u64) {
        self.now = self.now.max(due);
        for host in 0..2 {
            let now = self.time();
            self.hosts[host].group.on_deadline(now);
            self.act(host);
        }
    }

    fn arrive(&mut self, wire: Wire) {
        let (from, qpn) = wire.from;
        if self.dead.contains(&wire.from) {
            return;
        }
        let Some(slot) = self.hosts[from].qps.get(&qpn).copied() else { return };
        let Some(peer) = self.hosts[from].peers.get(&slot).copied() else { return };
        let to = 1 - from;
        if self.dead.contains(&(to, peer)) {
            // Never acknowledged: the sender's queue pair stays where it is until its group gives it up.
            return;
        }
        let Some(link) = self.hosts[to].qps.get(&peer).copied() else { return };
        match wire.packet {
            Packet::Send(bytes) => {
                let now = self.time();
                self.hosts[to].group.on_message(link, &bytes, now);
                self.act(to);
            }
            Packet::Write { rkey, vaddr, bytes, then } => {
                if !bytes.is_empty() {
                    self.write(to, link, rkey, vaddr, &bytes);
                }
                if then.0[0] != 0 {
                    self.cdc(wire.from, to, link, then);
                }
            }
        }
    }

    fn write(&mut self, to: usize, link: LinkSlot, rkey: RKey, vaddr: u64, bytes: &[u8]) {
        let has = |b: &&mut Buffer| b.keys.iter().any(|(l, k)| *l == link && k.rkey == rkey);
        let buffer = self.hosts[to].buffers.iter_mut().find(has).expect("a key that counts");
        let key = buffer.keys.iter().find(|(l, _)| *l == link).expect("of the link").1;
        let at = usize::try_from(vaddr - key.vaddr).expect("a small number");
        buffer.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn cdc(
        &mut self,
        qpn: (usize, Qpn),
        to: usize,
        link: LinkSlot,
        (bytes, sender, ticket): ([u8; 44], Token, Ticket),
    ) {
        let now = self.time();
        let received = self.hosts[to].group.on_message(link, &bytes, now);
        self.act(to);
        if let Received::Cdc { token, cdc } = received {
            let heard = |end: &mut End, cdc: &Cdc| end.conn.on_cdc(cdc).expect("an honest peer");
            if let Some(end) = self.hosts[to].ends.get_mut(&token) {
                heard(end, &cdc);
            }
            self.pump(to, token);
        }
        // The acknowledgement comes back at once, or with a later one.
        self.acks.push((qpn, sender, ticket));
        if self.random(4) != 0 {
            self.acknowledge(qpn);
        }
    }

    /// All that has arrived from a queue pair is acknowledged, unless it is dead.
    fn acknowledge(&mut self, qpn: (usize, Qpn)) {
        let acks = std::mem::take(&mut self.acks);
        let (these, others): (Vec<_>, _) = acks.into_iter().partition(|(from, ..)| *from == qpn);
        self.acks = others;
        if self.dead.contains(&qpn) {
            return;
        }
        for (_, token, ticket) in these {
            if let Some(end) = self.hosts[qpn.0].ends.get_mut(&token) {
                end.conn.completed(ticket);
            }
            self.pump(qpn.0, token);
        }
    }

    fn acknowledge_all(&mut self) {
        while let Some((qpn, ..)) = self.acks.first().copied() {
            self.acknowledge(qpn);
        }
    }

    /// Links that work, whatever either side believes.
    pub(crate) fn alive(&self) -> Vec<(Qpn, LinkSlot)> {
        let works = |(qpn, slot): &(Qpn, LinkSlot)| {
            let peer = self.hosts[0].peers.get(slot);
            let dead = |host, qpn: &Qpn| self.dead.contains(&(host, *qpn));
            peer.is_some_and(|peer| {
                !dead(0, qpn) && !dead(1, peer) && self.hosts[1].qps.contains_key(peer)
            })
        };
        self.hosts[0].qps.iter().map(|(qpn, slot)| (*qpn, *slot)).filter(works).collect()
    }

    /// Kills a link without a word; some of what is on its way has arrived, and its sender does not know.
    pub(crate) fn fail_link(&mut self, notice: u64) -> bool {
        let links = self.alive();
        if links.is_empty() {
            return false;
        }
        let at = usize::try_from(self.random(links.len() as u64)).expect("a small number");
        let (qpn, slot) = links[at];
        let peer = self.hosts[0].peers.get(&slot).copied();
        self.dead.push((0, qpn));
        let peer_slot = peer.and_then(|peer| self.hosts[1].qps.get(&peer).copied());
        if let Some(peer) = peer {
            self.dead.push((1, peer));
        }
        // Noticed by the RNIC of the one, of the other, of both, or of none: then TEST LINK will tell.
        let now = self.time();
        if notice & 1 != 0 {
            self.hosts[0].group.on_link_failed(slot, now);
            self.act(0);
        }
        if let (true, Some(slot)) = (notice & 2 != 0, peer_slot) {
            self.hosts[1].group.on_link_failed(slot, now);
            self.act(1);
        }
        true
    }

    pub(crate) fn add_link(&mut self) {
        let now = self.time();
        self.hosts[0].group.add_link(None, now);
        self.act(0);
    }

    /// Goes on until all connections are over, on both sides.
    pub(crate) fn finish(&mut self) {
        for _ in 0..400_000 {
            let over = |h: &Host| h.ends.values().all(|e| e.conn.state() == State::Closed);
            if self.hosts.iter().all(over) {
                return self.check();
            }
            if !self.step() {
                break;
            }
            let tokens: [Vec<Token>; 2] =
                [0, 1].map(|h| self.hosts[h].ends.keys().copied().collect());
            if self.wires.is_empty() {
                for (host, tokens) in tokens.iter().enumerate() {
                    for token in tokens {
                        self.pump(host, *token);
                    }
                }
            }
        }
        let states: Vec<_> = self
            .hosts
            .iter()
            .map(|h| h.ends.values().map(|e| (e.conn.state(), e.wrote, e.read)).collect::<Vec<_>>())
            .collect();
        panic!("connections hang: {states:?}");
    }

    fn check(&self) {
        for host in &self.hosts {
            for end in host.ends.values().filter(|end| !end.lost) {
                assert_eq!((end.wrote, end.read), (TOTAL, TOTAL));
            }
        }
    }

    /// Whether both sides' connections all got everything.
    pub(crate) fn all_got_everything(&self) -> bool {
        self.hosts.iter().all(|host| host.ends.values().all(|end| !end.lost))
    }
}
