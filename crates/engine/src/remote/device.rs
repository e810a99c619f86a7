//! The RDMA device of one vector: our own RoCEv2 over UDP.
//!
//! [`roce::Device`] decides; here packets come from sockets and go to them, and each link has its queue of
//! receive requests filled. What uses a card's own queue pairs, [`super::verbs`], has the same face.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use roce::{
    Access, Addresses, Arrival, Completion, CqCounters, CreateError, DeviceConfig, Handle, Key,
    Kind, Memory, ModifyError, Mtu, Operation, PACKET_MAX, Piece, PostError, ProtectionDomain,
    QpConfig, Qpn, ReceiveRequest, Region, RegionError, RtrAttributes, RtsAttributes, Secret,
    SendRequest, Source, State, Status, Time,
};
use smc::Mac;
use smc::cdc::{CDC_LEN, ProducerFlags};
use sys::interface::Interface;
use sys::udp::{BATCH, Outgoing, Received, Socket};

use super::ingress::Packet;
use super::lease::Lease;
use super::port::PORT;
use super::shelf::{Buffers, Place, Shelf};
use super::slab::{Id, Numbers};

const EIO: i32 = 5;
const EINVAL: i32 = 22;
const EMSGSIZE: i32 = 90;
/// ARPHRD_ETHER.
const ETHERNET: u16 = 1;
/// What one link group may use, and nobody else: its links, and what peers may write to by them.
pub(super) type Domain = ProtectionDomain;

/// Addresses that peers reach memory by are multiples of this: no RMB is longer.
const ADDRESS_STEP: u64 = 4 << 20;
/// Receive requests of a link; Linux has 48.
const RECEIVES: u16 = 256;
/// First piece of each: a message of LLC or CDC is 44 bytes long.
const FIRST_BYTES: u32 = 64;
/// Second piece, shared by all: what is longer is ADD LINK with many keys, and there is one at a time.
const SPILL_BYTES: u32 = 8192;
/// Messages up to this are copied when they are posted. Longer ones have a place of their own: there is one at
/// a time, since such are about links, which change one by one.
const INLINE_MAX: u16 = 64;
/// Bytes of that place.
const LONG_BYTES: u32 = 8192;
/// Completion queues: one for all there is, and one for what links send that keep it apart.
const CQS: u16 = 2;
/// Requests to send of a link.
const SENDS: u16 = 1024;
/// Completions of a link that may be waiting for us: all that is posted fails with it, and what has come to its end just
/// before is there still. A queue has room for those of all links, which may fail at one time: one that ran over would
/// never tell of anything again.
const COMPLETIONS: u32 = RECEIVES as u32 + 2 * SENDS as u32;
/// SENDs that may be under way on a link: the peer has 48 receive requests, and some of them are for LLC.
const MESSAGES_MAX: u32 = 32;
/// WRITEs that a plan may take: it has two, and each of those may be cut.
const WRITES_MAX: u32 = 2 * CUT_MAX;
/// A WRITE of up to so many packets is cut into as many WRITEs that are equally long: with those of other connections
/// they are packets of one size, which the system is given as one. As a message of its own, only its last packet could be
/// of another size than the path's largest, and would end what goes together.
const CUT_MAX: u32 = 4;
/// Regions of memory. A link has one and a connection two.
pub(super) const REGIONS_MAX: u32 = 1 << 16;
/// Regions of connections that are over and that stay known.
const RETIRED_MAX: usize = 1024;
/// The same as [`MESSAGES_MAX`] where the peer is Shunt, which has as many receive requests as we have.
const MESSAGES_SHUNT: u32 = 192;
/// Where the long message is in a link's buffers, behind all that is received.
const LONG_AT: u32 = RECEIVES as u32 * FIRST_BYTES + SPILL_BYTES;
/// Receives and runs of packets before others have their turn.
const ROUNDS: usize = 4;
/// Up to so many sockets with links are asked for packets in each round; of more, those by which packets came or left within
/// so many nanoseconds.
const PORTS_FEW: usize = 4;
const MOVED_NS: u64 = 2_000_000;
/// Room for what leaves at once by one socket, bytes.
const OUT_BYTES: usize = 1 << 20;
/// A socket that has taken nothing for so long stops others no more, nanoseconds: a card that works takes some in much
/// less.
const STALLED_NS: u64 = 50_000_000;
/// So much is sent before more is made ready: the peer takes it in meanwhile, and what is made next lies where the
/// cache has it.
const LEAVE_BYTES: usize = 128 << 10;
/// Messages wait for those of other connections behind so many bytes of WRITEs: more of them would fill a datagram or two
/// with messages, and have the first reader wait for what others write.
const GATHER_BYTES: u64 = 64 << 10;
/// So much is taken in before the peer hears of it: less than its window.
const TAKE_BYTES: usize = 256 << 10;
/// Room for what comes at once: messages of many packets, or so many of one.
const IN_MESSAGES: usize = 16;
const IN_BYTES: usize = 65_536;

/// A link's queue pair and what belongs to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) qpn: Qpn,
    buffers: Id<Buffers>,
    key: Key,
}

/// What a completion of a SEND is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A message of LLC.
    Llc,
    /// One of CDC, of the connection of that number.
    Cdc(u64),
}

const CDC: u64 = 1 << 63;

impl Purpose {
    pub(super) fn id(self) -> u64 {
        match self {
            Self::Llc => 0,
            Self::Cdc(number) => CDC | number,
        }
    }

    pub(super) fn of(id: u64) -> Self {
        if id & CDC == 0 { Self::Llc } else { Self::Cdc(id & !CDC) }
    }
}

/// What has happened on a link.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A SEND of ours was acknowledged.
    Sent(Qpn, Purpose),
    /// A message of the peer's: so many bytes, in [`Device::message`].
    Came(Qpn),
    /// The queue pair has failed.
    Failed(Qpn, Status),
}

/// A socket and what is to leave by it.
#[derive(Debug)]
struct Port {
    number: PortNumber,
    address: IpAddr,
    /// Of the interface that has the address, as it was when we began to speak from there.
    mac: Option<Mac>,
    socket: Socket,
    out: Outgoing,
    /// The system had no room.
    full: bool,
    /// Since when it has not taken all.
    full_since: Option<Time>,
    /// Room is waited for.
    watched: bool,
    /// Links that begin here.
    links: u32,
    /// The poller knows of packets.
    has_some: bool,
    /// When packets came or left last.
    moved_at: Time,
    /// The system has not taken several packets as one.
    apart: bool,
    /// What it shares with the sockets that other vectors have there.
    lease: Arc<Lease>,
}

/// Names a socket of a device.
pub(super) type PortNumber = u64;

/// What the system would not send.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Packets, or runs of them: lost, as on a wire.
    pub(super) total: u64,
    /// From where to where packets were too long, and how long.
    too_long: Vec<(Addresses, usize)>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Device {
    roce: roce::Device,
    ports: Vec<Port>,
    received: Received,
    /// The last message that came.
    message: Vec<u8>,
    links: Numbers<Qpn, Held>,
    /// The last one that was given.
    domain: u64,
    /// SENDs that leave behind the WRITEs of all connections, in the order in which they are to be posted.
    gathered: Vec<Gathered>,
    /// Bytes that were written since messages were posted.
    written: u64,
    /// Regions of connections that are over, oldest first.
    retired: VecDeque<Key>,
    pub(super) refused: Refused,
    ports_made: PortNumber,
    /// Packets of one queue pair that the system is given as one.
    segments: usize,
    /// When the first packet came of those taken in since somebody asked, as the kernel has noted.
    came: Option<u64>,
    /// Addresses whose cables are pulled.
    #[cfg(test)]
    unplugged: Vec<IpAddr>,
}

/// A message of CDC that is to be posted.
#[derive(Clone, Copy, Debug)]
struct Gathered {
    qpn: Qpn,
    purpose: Purpose,
    message: [u8; CDC_LEN],
}

/// What is held for a queue pair.
#[derive(Debug)]
struct Held {
    link: Link,
    /// The largest payload of a packet, bytes; 0: it is not connected.
    mtu: u32,
    /// From where to where its packets go, once it is connected.
    way: Option<Addresses>,
    /// SENDs that are gathered and not posted.
    gathered: u32,
    /// SENDs under way.
    messages: u32,
    /// How many there may be.
    messages_max: u32,
}

impl Device {
    pub(super) fn new(vector: u16, vector_bits: u8, segments: u8, secret: [u64; 2]) -> Self {
        let config = DeviceConfig {
            vector,
            vector_bits,
            regions_max: REGIONS_MAX,
            cqs: CQS,
            ..DeviceConfig::default()
        };
        let config = DeviceConfig { cq_capacity: config.qps_max * COMPLETIONS, ..config };
        #[expect(clippy::expect_used, reason = "settings that are written here")]
        let roce = roce::Device::new(&config, Secret::new(secret)).expect("a device that can be");
        Self {
            roce,
            ports: Vec::new(),
            received: if segments > 1 {
                Received::new(IN_BYTES, IN_MESSAGES)
            } else {
                Received::new(PACKET_MAX, BATCH)
            },
            segments: segments.into(),
            message: Vec::with_capacity((FIRST_BYTES + SPILL_BYTES) as usize),
            links: Numbers::default(),
            domain: 0,
            gathered: Vec::new(),
            written: 0,
            retired: VecDeque::new(),
            refused: Refused::default(),
            ports_made: 0,
            came: None,
            #[cfg(test)]
            unplugged: Vec::new(),
        }
    }

    /// Loses all packets of an address from now on.
    #[cfg(test)]
    pub(super) fn unplug(&mut self, address: IpAddr) {
        self.unplugged.push(address);
    }

    /// From now on packets come and go by this socket too.
    pub(super) fn add_port(&mut self, socket: Socket, lease: Arc<Lease>) -> PortNumber {
        let address = socket.address().ip();
        self.ports_made += 1;
        self.ports.push(Port {
            number: self.ports_made,
            address,
            mac: mac_of(address),
            socket,
            out: Outgoing::new(OUT_BYTES),
            full: false,
            full_since: None,
            watched: false,
            links: 0,
            has_some: false,
            moved_at: Time::from_nanos(0),
            apart: false,
            lease,
        });
        self.ports_made
    }

    /// The number that the next one will have.
    pub(super) fn next_port(&self) -> PortNumber {
        self.ports_made + 1
    }

    /// The poller knows of packets at a socket.
    pub(super) fn has_some(&mut self, number: PortNumber) {
        if let Some(port) = self.ports.iter_mut().find(|port| port.number == number) {
            port.has_some = true;
        }
    }

    /// Sockets of addresses whose leases are over are closed.
    pub(super) fn end_ports(&mut self) {
        self.ports.retain(|port| !port.lease.is_over());
    }

    /// One more link from an address; `false`: its sockets are being closed.
    fn add_link(&mut self, way: Addresses) -> bool {
        let port = self.ports.iter_mut().find(|port| port.address == way.src());
        let Some(port) = port else { return true };
        let added = port.lease.add_link();
        port.links += u32::from(added);
        added
    }

    /// One less.
    fn remove_link(&mut self, way: Addresses) {
        let of = |port: &&mut Port| port.address == way.src() && port.links > 0;
        if let Some(port) = self.ports.iter_mut().find(of) {
            port.links -= 1;
            port.lease.remove_link();
        }
    }

    /// The hardware address of the interface that has this address. A peer with a card sends there.
    pub(super) fn mac(&self, address: IpAddr) -> Option<Mac> {
        self.ports.iter().find(|port| port.address == address)?.mac
    }

    /// Whether packets can be sent from this address.
    pub(super) fn has_port(&self, address: IpAddr) -> bool {
        self.ports.iter().any(|port| port.address == address && !port.lease.is_over())
    }

    pub(super) fn roce(&self) -> &roce::Device {
        &self.roce
    }

    /// A domain for a link group: what is in another cannot be reached by its links, whatever the peer guesses.
    pub(super) fn open_domain(&mut self) -> Domain {
        // A vector makes one for each first contact: there are more numbers than it will ever make.
        self.domain += 1;
        ProtectionDomain(self.domain)
    }

    /// An address for memory that a peer is told of, which others do not guess.
    pub(super) fn fresh_address(&mut self) -> u64 {
        address_of(self.roce.draw())
    }

    /// A queue pair that takes messages, but no packets before [`Self::connect`].
    /// `split`: what is sent and what comes complete in two queues.
    pub(super) fn open_link(
        &mut self,
        shelf: &mut Shelf,
        domain: Domain,
        split: bool,
    ) -> Result<Link, CreateError> {
        let [receives, sends] = [0, usize::from(split)].map(|nth| self.roce.cqs().nth(nth));
        let config = QpConfig {
            domain,
            send_cq: sends,
            receive_cq: receives,
            send_depth: SENDS,
            receive_depth: RECEIVES,
            inline_max: INLINE_MAX,
        };
        let qpn = self.roce.create_qp(&config)?;
        let bytes = LONG_AT + LONG_BYTES;
        let buffers = shelf.buffers.insert(vec![0; bytes as usize].into_boxed_slice());
        let region = Region {
            domain,
            address: 0,
            len: bytes.into(),
            access: Access::LOCAL_WRITE,
            handle: Place::Control(buffers).handle(),
        };
        let Ok(key) = self.roce.register(region) else {
            let _ = self.roce.destroy_qp(qpn);
            shelf.buffers.remove(buffers);
            return Err(CreateError::Full);
        };
        let link = Link { qpn, buffers, key };
        let held =
            Held { link, mtu: 0, way: None, gathered: 0, messages: 0, messages_max: MESSAGES_MAX };
        self.links.insert(qpn, held);
        // It exists and is in the state before, and its queue is as long as this.
        let _ = self.roce.init(qpn);
        for at in 0..RECEIVES {
            self.post_receive(&link, at.into());
        }
        Ok(link)
    }

    fn post_receive(&mut self, link: &Link, at: u64) {
        let spill = u64::from(RECEIVES) * u64::from(FIRST_BYTES);
        let pieces = [
            Piece { key: link.key, address: at * u64::from(FIRST_BYTES), len: FIRST_BYTES },
            Piece { key: link.key, address: spill, len: SPILL_BYTES },
        ];
        let _ = self.roce.post_receive(link.qpn, &ReceiveRequest { id: at, pieces: &pieces });
    }

    /// The queue pair receives from now on.
    pub(super) fn connect(&mut self, qpn: Qpn, to: &RtrAttributes) -> Result<(), ModifyError> {
        if self.links.contains_key(&qpn) && !self.add_link(to.addresses) {
            return Err(ModifyError::State(State::Init));
        }
        if let Some(held) = self.links.get_mut(&qpn) {
            held.mtu = to.mtu.bytes().try_into().unwrap_or(0);
            if let Some(before) = held.way.replace(to.addresses) {
                self.remove_link(before);
            }
        }
        self.roce.ready_to_receive(qpn, to)
    }

    /// The queue pair sends from now on.
    pub(super) fn start(&mut self, qpn: Qpn, to: &RtsAttributes) -> Result<(), ModifyError> {
        self.roce.ready_to_send(qpn, to)
    }

    /// The queue pair neither sends nor receives from now on; what is under way fails.
    pub(super) fn fail(&mut self, qpn: Qpn, now: u64) {
        let _ = self.roce.fail(Time::from_nanos(now), qpn);
    }

    /// Ends a queue pair; what was under way vanishes.
    pub(super) fn close_link(&mut self, qpn: Qpn, shelf: &mut Shelf) {
        let _ = self.roce.destroy_qp(qpn);
        self.gathered.retain(|message| message.qpn != qpn);
        if let Some(held) = self.links.remove(&qpn) {
            let _ = self.roce.deregister(held.link.key);
            shelf.buffers.remove(held.link.buffers);
            if let Some(way) = held.way {
                self.remove_link(way);
            }
        }
    }

    /// Makes memory known that peers may write to.
    pub(super) fn register_rmb(
        &mut self,
        domain: Domain,
        handle: Handle,
        (address, len): (u64, u64),
    ) -> Result<Key, RegionError> {
        let access = Access::REMOTE_WRITE;
        self.roce.register(Region { domain, address, len, access, handle })
    }

    /// What peers write by this key goes to another's memory from now on.
    pub(super) fn rebind_rmb(&mut self, key: Key, handle: Handle) -> Result<(), RegionError> {
        self.roce.rebind(key, handle)
    }

    /// Makes a stream known that is sent from; addresses are positions in it.
    pub(super) fn register_stream(
        &mut self,
        domain: Domain,
        handle: Handle,
    ) -> Result<Key, RegionError> {
        let access = Access::READ;
        self.roce.register(Region { domain, address: 0, len: u64::MAX, access, handle })
    }

    pub(super) fn deregister(&mut self, key: Key) {
        let _ = self.roce.deregister(key);
    }

    /// A connection's region is not needed any more. It stays for a while, leading nowhere: a packet that
    /// names it and is still on its way would end the link, and all that is on it.
    pub(super) fn retire(&mut self, key: Key) {
        self.retired.push_back(key);
        if self.retired.len() > RETIRED_MAX
            && let Some(oldest) = self.retired.pop_front()
        {
            self.deregister(oldest);
        }
    }

    /// The peer is Shunt: more may be on its way to it.
    pub(super) fn widen(&mut self, qpn: Qpn) {
        if let Some(held) = self.links.get_mut(&qpn) {
            held.messages_max = MESSAGES_SHUNT;
        }
    }

    /// Whether a plan of up to two WRITEs and a SEND can be posted now.
    pub(super) fn has_room(&self, qpn: Qpn) -> bool {
        let Some(held) = self.links.get(&qpn) else { return false };
        let takes = held.gathered + WRITES_MAX + 1;
        held.messages < held.messages_max
            && self.roce.qp(qpn).is_some_and(|v| {
                v.state == State::ReadyToSend && v.sends + takes <= u32::from(SENDS)
            })
    }

    /// Sends a message: solicited, as Linux sends and expects them. Those of CDC are gathered until
    /// [`Self::transmit`], so that they leave behind the WRITEs of all connections, one behind the other, and the
    /// system is given them as one; behind many bytes, and where the first on another link comes before what is
    /// written there, they are not.
    pub(super) fn send(
        &mut self,
        qpn: Qpn,
        purpose: Purpose,
        message: &[u8],
    ) -> Result<(), PostError> {
        if let (Purpose::Cdc(_), Ok(message)) = (purpose, message.try_into()) {
            let message: [u8; CDC_LEN] = message;
            let held = self.links.get_mut(&qpn).ok_or(PostError::Unknown)?;
            held.messages += 1;
            held.gathered += 1;
            self.gathered.push(Gathered { qpn, purpose, message });
            let is_first_here =
                ProducerFlags::of_message(&message).has(ProducerFlags::FAILOVER_VALIDATION);
            if is_first_here || self.written >= GATHER_BYTES {
                self.post_gathered();
            }
            return Ok(());
        }
        // What was said before comes before.
        self.post_gathered();
        self.post(qpn, purpose, Source::Inline(message))?;
        if let Some(held) = self.links.get_mut(&qpn) {
            held.messages += 1;
        }
        Ok(())
    }

    /// Posts what was gathered. A queue pair that takes nothing any more has failed, and says so itself.
    fn post_gathered(&mut self) {
        self.written = 0;
        let mut gathered = std::mem::take(&mut self.gathered);
        for Gathered { qpn, purpose, message } in gathered.drain(..) {
            let posted = self.post(qpn, purpose, Source::Inline(&message));
            // A live one has the places that `has_room` has kept.
            debug_assert!(posted != Err(PostError::Full), "a message has no place");
            if let Some(held) = self.links.get_mut(&qpn) {
                held.gathered -= 1;
                held.messages -= u32::from(posted.is_err());
            }
        }
        self.gathered = gathered;
    }

    /// Sends a message that may be long, one at a time.
    pub(super) fn send_long(
        &mut self,
        qpn: Qpn,
        purpose: Purpose,
        message: &[u8],
        shelf: &mut Shelf,
    ) -> Result<(), PostError> {
        if message.len() <= INLINE_MAX.into() {
            return self.send(qpn, purpose, message);
        }
        let link = self.links.get(&qpn).map(|held| held.link).ok_or(PostError::Unknown)?;
        let len = u32::try_from(message.len()).map_err(|_| PostError::Length)?;
        let place = shelf.buffers.get_mut(link.buffers).ok_or(PostError::Unknown)?;
        let place = place.get_mut(LONG_AT as usize..).and_then(|at| at.get_mut(..message.len()));
        place.ok_or(PostError::Length)?.copy_from_slice(message);
        let piece = Piece { key: link.key, address: LONG_AT.into(), len };
        self.post_gathered();
        self.post(qpn, purpose, Source::Pieces(&[piece]))?;
        if let Some(held) = self.links.get_mut(&qpn) {
            held.messages += 1;
        }
        Ok(())
    }

    fn post(&mut self, qpn: Qpn, purpose: Purpose, source: Source<'_>) -> Result<(), PostError> {
        let request = SendRequest {
            id: purpose.id(),
            operation: Operation::Send,
            source,
            immediate: None,
            signaled: true,
            solicited: true,
        };
        self.roce.post_send(qpn, &request)
    }

    /// Writes into the peer's memory what stands in a stream at position `at`.
    pub(super) fn write(
        &mut self,
        qpn: Qpn,
        (address, rkey): (u64, u32),
        (stream, at, len): (Key, u64, u32),
    ) -> Result<(), PostError> {
        let mtu = self.links.get(&qpn).map_or(0, |held| held.mtu);
        self.written += u64::from(len);
        for (offset, len) in cut(len, mtu) {
            let (address, at) = (address.wrapping_add(offset.into()), at + u64::from(offset));
            let request = SendRequest {
                id: 0,
                operation: Operation::Write { address, rkey },
                source: Source::Pieces(&[Piece { key: stream, address: at, len }]),
                immediate: None,
                signaled: false,
                solicited: false,
            };
            self.roce.post_send(qpn, &request)?;
        }
        Ok(())
    }

    /// Takes in packets that have come. Whether there were any.
    pub(super) fn receive(&mut self, now: Time, shelf: &mut Shelf) -> bool {
        let mut any = false;
        // Each of them costs a system call in each round. Of those that are silent the poller tells.
        let with_links = self.ports.iter().filter(|port| port.links > 0).count();
        let is_asked = |port: &&mut Port| {
            let may_bring = with_links <= PORTS_FEW || port.has_moved(now);
            port.has_some || port.links > 0 && may_bring
        };
        for port in self.ports.iter_mut().filter(is_asked) {
            port.has_some = false;
            let mut taken = 0;
            for _ in 0..ROUNDS {
                let Ok(_) = port.socket.receive(&mut self.received) else { break };
                any = true;
                port.moved_at = now;
                self.came = self.came.into_iter().chain(self.received.first_stamp()).min();
                #[cfg(test)]
                if self.unplugged.contains(&port.address) {
                    continue;
                }
                for (from, marked, packets) in self.received.messages() {
                    let Some(addresses) = Addresses::new(from.ip(), port.address) else { continue };
                    let arrival =
                        Arrival { addresses, src_port: from.port(), marked, identification: None };
                    let packets = packets.inspect(|packet| taken += packet.len());
                    self.roce.receive_burst(now, shelf, &arrival, packets);
                }
                if !self.received.is_full() || taken >= TAKE_BYTES {
                    break;
                }
            }
        }
        any
    }

    /// When the first packet came of those that were taken in since this was asked last, nanoseconds since 1970.
    /// `None`: there were none, or the kernel does not note it.
    pub(super) fn take_came(&mut self) -> Option<u64> {
        self.came.take()
    }

    /// Takes in a packet that did not come by a socket.
    pub(super) fn take(&mut self, now: Time, shelf: &mut Shelf, packet: &Packet) {
        let way = packet.arrival.addresses;
        #[cfg(test)]
        if self.unplugged.contains(&way.dst()) {
            return;
        }
        if self.has_port(way.dst()) {
            // What is dropped is counted by its reason.
            let _ = self.roce.receive(now, shelf, &packet.arrival, &packet.bytes);
        }
    }

    /// Sends what is ready. Whether anything was, or has failed.
    pub(super) fn transmit(&mut self, now: Time, shelf: &impl Memory) -> bool {
        self.post_gathered();
        if self.roce.next_deadline().is_some_and(|at| at <= now) {
            self.roce.on_deadline(now);
        }
        let mut any = false;
        for _ in 0..ROUNDS * BATCH {
            if !self.roce.has_queued() || self.is_stopped(now) {
                break;
            }
            if !self.transmit_one(now, shelf) {
                break;
            }
            any = true;
            let leaves = |port: &&mut Port| port.out.bytes() >= LEAVE_BYTES && !port.full;
            for port in self.ports.iter_mut().filter(leaves) {
                port.flush(now, &mut self.refused);
            }
        }
        for port in &mut self.ports {
            port.flush(now, &mut self.refused);
        }
        any |= self.give_up_too_long(now);
        any
    }

    /// Links whose packets have become too long for their path are lost: what is sent again would be as long. Whether any
    /// was, which shows in completions.
    fn give_up_too_long(&mut self, now: Time) -> bool {
        let mut any = false;
        for (way, bytes) in std::mem::take(&mut self.refused.too_long) {
            let concerns = |held: &Held| held.way == Some(way) && held.packet_max() >= bytes;
            let links = self.links.iter().filter(|(_, held)| concerns(held));
            let links: Vec<Qpn> = links.map(|(qpn, _)| *qpn).collect();
            for qpn in links {
                any |= self.roce.fail(now, qpn).is_ok();
            }
        }
        any
    }

    fn transmit_one(&mut self, now: Time, shelf: &impl Memory) -> bool {
        let refused = &mut self.refused;
        let mut has_room = |port: &mut Port| !port.out.is_full() || port.flush(now, refused);
        let Some(first) = self.ports.iter_mut().position(&mut has_room) else { return false };
        let first = &mut self.ports[first];
        let sent = self.roce.transmit(now, shelf, first.out.room(), self.segments);
        let Some(sent) = sent else { return false };
        let to = SocketAddr::new(sent.flow.addresses.dst(), PORT);
        let from = sent.flow.addresses.src();
        #[cfg(test)]
        if self.unplugged.contains(&from) {
            return true;
        }
        if first.address == from {
            first.moved_at = now;
            first.out.add_of_class(to, sent.len, sent.segment_len, sent.traffic_class);
            return true;
        }
        // It was written where the packets of a port with room are, and is another's.
        let packets = first.out.room()[..sent.len].to_vec();
        let port = self.ports.iter_mut().find(|port| port.address == from);
        if let Some(port) = port
            && (!port.out.is_full() || port.flush(now, &mut self.refused))
        {
            port.moved_at = now;
            port.out.room()[..sent.len].copy_from_slice(&packets);
            port.out.add_of_class(to, sent.len, sent.segment_len, sent.traffic_class);
        } else {
            self.refused.total += 1;
        }
        true
    }

    /// Each socket of which is to be waited for something else than before, and whether that is room.
    pub(super) fn rewatch(&mut self, mut f: impl FnMut(&Socket, PortNumber, bool)) {
        for port in self.ports.iter_mut().filter(|port| port.full != port.watched) {
            port.watched = port.full;
            f(&port.socket, port.number, port.full);
        }
    }

    /// Whether nothing can be sent before a socket has room. One that takes nothing for long, because its card does not,
    /// stops those of other cards no more: what would leave by it is lost, as on a wire.
    pub(super) fn is_stopped(&self, now: Time) -> bool {
        let waits = |port: &Port| port.full && !port.is_stalled(now);
        self.ports.iter().any(waits) || self.ports.iter().all(|port| port.full)
    }

    /// When to look again, if nothing comes.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        // Others are to be sent by then although one has no room.
        let waits = self.roce.has_queued() && !self.ports.iter().all(|port| port.full);
        let full = self.ports.iter().filter(|port| waits && port.full);
        let stalled = full.filter_map(|port| port.full_since);
        let stalled = stalled.map(|at| Time::from_nanos(at.nanos() + STALLED_NS + 1)).min();
        self.roce.next_deadline().into_iter().chain(stalled).min()
    }

    /// Addresses from which packets leave one by one, since the system does not take several as one.
    pub(super) fn apart(&self) -> impl Iterator<Item = IpAddr> {
        self.ports.iter().filter(|port| port.apart).map(|port| port.address)
    }

    /// Whether there is something to send at once.
    pub(super) fn has_queued(&self) -> bool {
        self.roce.has_queued() || !self.gathered.is_empty()
    }

    /// What has happened next.
    pub(super) fn poll(&mut self, shelf: &Shelf) -> Option<Event> {
        // What has come first: others wait for the answer to it.
        for cq in self.roce.cqs() {
            // An overflow has failed all queue pairs of a queue, each of which says so itself.
            while let Ok(Some(completion)) = self.roce.poll_cq(cq) {
                if let Some(event) = self.event(&completion, shelf) {
                    return Some(event);
                }
            }
        }
        None
    }

    /// What each completion queue has seen.
    pub(super) fn cqs(&self) -> impl Iterator<Item = CqCounters> {
        self.roce.cqs().map(|cq| self.roce.cq_counters(cq))
    }

    fn event(&mut self, completion: &Completion, shelf: &Shelf) -> Option<Event> {
        let Completion { id, qpn, kind, status, bytes, .. } = *completion;
        let held = self.links.get_mut(&qpn)?;
        if status != Status::Success {
            return Some(Event::Failed(qpn, status));
        }
        match kind {
            Kind::Send => {
                held.messages = held.messages.saturating_sub(1);
                Some(Event::Sent(qpn, Purpose::of(id)))
            }
            Kind::Write => None,
            Kind::Receive | Kind::ReceiveWrite => {
                let link = held.link;
                self.message.clear();
                if let Some(buffers) = shelf.buffers.get(link.buffers) {
                    copy_message(buffers, id, bytes, &mut self.message);
                }
                self.post_receive(&link, id);
                Some(Event::Came(qpn))
            }
        }
    }

    /// The bytes of the message that [`Event::Came`] told of.
    pub(super) fn message(&self) -> &[u8] {
        &self.message
    }
}

/// The WRITEs that one of `len` bytes becomes, by offset and length: some that are equally long, up to a multiple of 4
/// bytes, or one.
fn cut(len: u32, mtu: u32) -> impl Iterator<Item = (u32, u32)> {
    let packets = if mtu == 0 { 1 } else { len.div_ceil(mtu) };
    let each = if (2..=CUT_MAX).contains(&packets) { len.div_ceil(packets) } else { len };
    // Packets are padded to 4 bytes, which are as many in each then.
    let each = each.next_multiple_of(4).max(1);
    (0..len).step_by(each as usize).map(move |at| (at, each.min(len - at)))
}

/// Puts together what the two pieces of a receive request hold.
fn copy_message(buffers: &[u8], at: u64, bytes: u32, to: &mut Vec<u8>) {
    let (first, spill) = (FIRST_BYTES as usize, usize::from(RECEIVES) * FIRST_BYTES as usize);
    let Ok(start) = usize::try_from(at * u64::from(FIRST_BYTES)) else { return };
    let head = first.min(bytes as usize);
    to.extend_from_slice(buffers.get(start..start + head).unwrap_or_default());
    let rest = bytes as usize - head;
    to.extend_from_slice(buffers.get(spill..spill + rest).unwrap_or_default());
}

impl Held {
    /// Bytes of its longest packet: a payload between BTH and RETH and the ICRC.
    fn packet_max(&self) -> usize {
        self.mtu as usize + 12 + 16 + 4
    }
}

impl Port {
    fn has_moved(&self, now: Time) -> bool {
        now.nanos().saturating_sub(self.moved_at.nanos()) < MOVED_NS
    }

    fn is_stalled(&self, now: Time) -> bool {
        let since = self.full_since.unwrap_or(now);
        now.nanos().saturating_sub(since.nanos()) > STALLED_NS
    }

    /// Sends what waits; `false`: there is no room in the system for all of it.
    fn flush(&mut self, now: Time, refused: &mut Refused) -> bool {
        self.full = false;
        while !self.out.is_empty() {
            if self.apart {
                self.out.take_apart(true);
            }
            match self.socket.send(&mut self.out) {
                Ok(_) => {}
                Err(errno) if sys::call::is_later(errno) => {
                    self.full = true;
                    self.full_since.get_or_insert(now);
                    return false;
                }
                // With a way of IPsec, or a card that fills in no checksums, there are no segments (before Linux 6.11).
                Err(EIO) if self.out.take_apart(true) => self.apart = true,
                // Segments that are too long are not told from others that cannot be.
                Err(EINVAL) if self.out.take_apart(false) => {}
                Err(errno) => {
                    // No route, too long for the path: as if it had been lost there.
                    refused.total += 1;
                    if errno == EMSGSIZE
                        && let Some((to, bytes)) = self.out.first()
                        && let Some(way) = Addresses::new(self.address, to.ip())
                        && !refused.too_long.contains(&(way, bytes))
                    {
                        refused.too_long.push((way, bytes));
                    }
                    self.out.skip();
                }
            }
        }
        self.full_since = None;
        true
    }
}

/// The hardware address of the interface that has this address; `None`: it has none, as the loopback.
fn mac_of(address: IpAddr) -> Option<Mac> {
    let found = Interface::with_address(address)?;
    let is_ethernet = found.kind == ETHERNET && found.address != [0; 6];
    is_ethernet.then_some(Mac(found.address))
}

/// The address that a number drawn by chance stands for: memory of any size fits behind it, and it is positive.
pub(super) fn address_of(chance: u64) -> u64 {
    (chance >> 1) & !(ADDRESS_STEP - 1)
}

/// The largest payload that fits into packets of a path.
pub(super) fn mtu_of(path_bytes: u32) -> Mtu {
    // As Linux counts: IPv6, UDP, all headers and the checksum, rounded up.
    const HEADERS: u32 = 80;
    let fits = |mtu: &Mtu| u32::try_from(mtu.bytes()).is_ok_and(|n| n + HEADERS <= path_bytes);
    [Mtu::B4096, Mtu::B2048, Mtu::B1024, Mtu::B512].into_iter().find(fits).unwrap_or(Mtu::B256)
}

#[cfg(test)]
mod tests;
