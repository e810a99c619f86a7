//! An RDMA device of this host as the device of a vector: queue pairs of a card, by [`sys::verbs`].
//!
//! Its face is that of [`super::device`]; what differs is who touches the bytes. A card reads and writes
//! memory that it knows (**registered**), while what guests have moves and is theirs. So what is to be sent
//! is copied into the link's **stage** when there is room in it, in the order in which it was asked for, and
//! what the peer writes comes into a buffer of the device's that has the RMB's address, and is copied out
//! by [`Device::fetch`] when the peer says how far it has written.
//!
//! A request has its completion in order, and gives back its room in the stage and in the queue. WRITEs
//! have none but for the parts of one that is long; the SEND that follows them gives back theirs.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use roce::{
    CreateError, Handle, Key, Memory, ModifyError, Mtu, PostError, Qpn, RegionError, RtrAttributes,
    RtsAttributes, State, Status,
};
use smc::Mac;
use sys::call::Failure;
use sys::event::{Interest, Poller};
use sys::interface::Interface;
use sys::verbs::{
    self, Access, AsyncEvent, Buffer, CompletionChannel, CompletionQueue, Gid, GidKind, Kind,
    MemoryRegion, Operation, Path, Patience, ProtectionDomain, QueuePair, SendRequest, Shape,
    Source, Wake,
};

use super::device::{Domain, Event, Purpose, address_of, mtu_of};
use super::guest::Relay;
use super::shelf::{Place, Shelf};

/// Receive requests of a link; Linux has 48.
const RECEIVES: u16 = 64;
/// First piece of each: a message of LLC or CDC is 44 bytes long.
const FIRST_BYTES: u32 = 64;
/// Second piece, shared by all: what is longer is ADD LINK with many keys, and there is one at a time.
const SPILL_BYTES: u32 = 8192;
/// Requests to send that the card has of a link, at most.
const SENDS: u16 = 128;
/// Requests to send that wait for it.
const WAITING_MAX: usize = 256;
/// SENDs that may be under way on a link: the peer has 48 receive requests, and some of them are for LLC.
const MESSAGES_MAX: u32 = 32;
/// Bytes of a link on their way; a power of two.
const STAGE_BYTES: usize = 1 << 19;
/// Bytes of one request at most; a fraction of the stage, so that one is filled while others leave.
const PART_BYTES: usize = STAGE_BYTES / 8;
/// What a message in a request itself may have.
const INLINE_BYTES: u32 = 44;
/// Completions that a queue has room for, if the card has.
const COMPLETIONS: u32 = 1 << 16;
/// The only port that is used.
const PORT: u8 = 1;
/// Routers on the way, and one more; as Linux does it through gateways.
const HOPS: u8 = 64;

/// An open device of the host.
#[derive(Clone, Debug)]
pub(super) struct Card {
    device: verbs::Device,
    context: verbs::Context,
    mtu: Mtu,
}

impl Card {
    /// Opens the device of that name, by a libibverbs of that name.
    pub(super) fn open(library: &str, name: &str) -> Result<Self, OpenError> {
        let devices = verbs::Library::load_from(library)?.devices()?;
        let device = devices.iter().find(|device| device.name() == name).ok_or_else(|| {
            let names: Vec<_> = devices.iter().map(verbs::Device::name).collect();
            OpenError::Absent { name: name.to_owned(), there: names.join(", ") }
        })?;
        let context = device.open()?;
        let port = context.port(PORT)?;
        let mtu = u8::try_from(port.mtu.number()).ok().and_then(Mtu::from_code);
        Ok(Self { device: device.clone(), context, mtu: mtu.unwrap_or(Mtu::B256) })
    }

    /// The same for a vector. What happens to the device is told once for each time that it is open, so each vector has
    /// opened it itself; the first one hears it for those, too, that only look for addresses.
    fn of(&self, vector: u32) -> Result<Self, Failure> {
        let context = if vector == 0 { self.context.clone() } else { self.device.open()? };
        Ok(Self { context, ..self.clone() })
    }

    /// Whether it has this address, for RoCEv2.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.gid(address).is_some()
    }

    fn gid(&self, address: IpAddr) -> Option<Gid> {
        let wanted = octets(address);
        let fits = |gid: &Gid| gid.kind == GidKind::RoceV2 && gid.address == wanted;
        self.context.gids(PORT).ok()?.into_iter().find(fits)
    }
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no libibverbs.
    #[error(transparent)]
    Library(#[from] verbs::LoadError),
    /// There is no such device.
    #[error("no RDMA device {name}; there are: {there}")]
    Absent {
        /// What was looked for.
        name: String,
        /// The names of those that are there.
        there: String,
    },
    /// The device or the system refuses something.
    #[error(transparent)]
    System(#[from] Failure),
}

/// An address for memory that a peer is told of, which others do not guess.
pub(super) fn fresh_address() -> u64 {
    address_of(u64::from_ne_bytes(super::random_bytes()))
}

/// As a GID has it: IPv4 addresses are mapped.
fn octets(address: IpAddr) -> [u8; 16] {
    let v6: Ipv6Addr = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    v6.octets()
}

/// Something to send.
#[derive(Debug)]
enum Request {
    /// So many bytes of a stream, from a position on.
    Write { address: u64, rkey: u32, stream: Handle, at: u64, len: usize },
    /// A message.
    Send { id: u64, bytes: Vec<u8> },
}

/// What a completion gives back: all up to there.
#[derive(Clone, Copy, Debug)]
struct Posted {
    stage: u64,
    requests: u64,
}

/// A link's queue pair and what belongs to it. The pair goes before the memory.
#[derive(Debug)]
struct Link {
    pair: QueuePair,
    receives: MemoryRegion<Buffer>,
    stage: MemoryRegion<Buffer>,
    waiting: VecDeque<Request>,
    /// Those that have a completion, in order.
    posted: VecDeque<Posted>,
    /// Bytes that the stage ever had, and those of them that are given back.
    staged: (u64, u64),
    /// Requests that the card ever had, and those of them that are given back.
    requests: (u64, u64),
    /// SENDs under way, those that wait among them.
    messages: u32,
    started: bool,
    failed: bool,
    /// What waits cannot go before something is given back.
    blocked: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Device {
    card: Card,
    /// Of link groups. Those of one that is over go with the last that is in it.
    domains: HashMap<Domain, ProtectionDomain>,
    /// The last one that was given.
    domain: u64,
    channel: CompletionChannel,
    /// For what each link receives, and what it sends; and for what those send that keep that apart.
    queues: [CompletionQueue; 2],
    /// Completions that were taken from each.
    pub(super) taken: [u64; 2],
    links: HashMap<Qpn, Link>,
    rmbs: HashMap<Key, MemoryRegion<Buffer>>,
    streams: HashMap<Key, Handle>,
    next_stream: u32,
    /// Taken from the queue and not told yet.
    completions: VecDeque<verbs::Completion>,
    /// The last message that came.
    message: Vec<u8>,
    /// Bytes on their way from one memory to another.
    scratch: Vec<u8>,
    /// It has been taken away, and says nothing any more.
    is_gone: bool,
    /// Its descriptors are waited for.
    is_watched: bool,
}

impl Device {
    pub(super) fn new(card: &Card, vector: u32) -> Result<Self, Failure> {
        let card = card.of(vector)?;
        let context = &card.context;
        let channel = CompletionChannel::new(context)?;
        let room = COMPLETIONS.min(context.limits()?.completions);
        let interrupt = vector % context.vectors().max(1);
        let queue = |token| CompletionQueue::new(context, room, interrupt, Some((&channel, token)));
        let queues = [queue(0)?, queue(1)?];
        Ok(Self {
            card,
            domains: HashMap::new(),
            domain: 0,
            channel,
            queues,
            taken: [0; 2],
            links: HashMap::new(),
            rmbs: HashMap::new(),
            streams: HashMap::new(),
            next_stream: 0,
            completions: VecDeque::new(),
            message: Vec::with_capacity((FIRST_BYTES + SPILL_BYTES) as usize),
            scratch: vec![0; PART_BYTES],
            is_gone: false,
            is_watched: false,
        })
    }

    /// Fails all queue pairs of an address.
    #[cfg(test)]
    pub(super) fn unplug(&mut self, address: IpAddr) {
        let index = self.card.gid(address).map(|gid| gid.index);
        for link in self.links.values() {
            let path = link.pair.attributes().map(|now| u32::from(now.path.gid_index));
            if path.ok() == index {
                let _ = link.pair.stop();
            }
        }
    }

    /// From now on the poller wakes when there is something, if [`Self::arm`] was called.
    pub(super) fn watch(&mut self, poller: &Poller, token: u64) -> Result<(), Failure> {
        self.is_watched = true;
        poller.add(&self.channel, Interest::READ, token)?;
        poller.add(&self.card.context, Interest::READ, token)
    }

    /// Descriptors of a device that is gone would wake for ever.
    pub(super) fn unwatch_gone(&mut self, poller: &Poller) {
        if self.is_gone && std::mem::take(&mut self.is_watched) {
            poller.remove(&self.channel);
            poller.remove(&self.card.context);
        }
    }

    /// The next completion wakes. Look for some after this, before sleeping.
    pub(super) fn arm(&self) {
        for queue in &self.queues {
            // A device that cannot is gone; its events wake.
            let _ = queue.arm(Wake::Next);
        }
    }

    /// Whether packets can be sent from this address.
    pub(super) fn has_port(&self, address: IpAddr) -> bool {
        self.card.has(address)
    }

    /// The hardware address of the interface that has this address.
    pub(super) fn mac(&self, address: IpAddr) -> Option<Mac> {
        let interface = self.card.gid(address)?.interface;
        let found = |name: String| Interface::find(&name).ok().flatten();
        let mut all = Interface::names().into_iter().filter_map(found);
        all.find(|it| it.index == interface).map(|it| Mac(it.address))
    }

    /// The largest payload of packets on a path.
    pub(super) fn mtu(&self, path_bytes: u32) -> Mtu {
        let path = mtu_of(path_bytes);
        if path.code() < self.card.mtu.code() { path } else { self.card.mtu }
    }

    /// A domain for a link group: what is in another cannot be reached by its links, whatever the peer guesses.
    pub(super) fn open_domain(&mut self) -> Result<Domain, CreateError> {
        let made = ProtectionDomain::new(&self.card.context).map_err(|_| CreateError::Full)?;
        self.domain += 1;
        let domain = roce::ProtectionDomain(self.domain);
        self.domains.insert(domain, made);
        Ok(domain)
    }

    /// Nothing is made in it any more.
    pub(super) fn close_domain(&mut self, domain: Domain) {
        self.domains.remove(&domain);
    }

    /// A queue pair that takes messages, but no packets before [`Self::connect`].
    /// `split`: what is sent and what comes complete in two queues.
    pub(super) fn open_link(&mut self, domain: Domain, split: bool) -> Result<Qpn, CreateError> {
        if self.is_gone {
            return Err(CreateError::Full);
        }
        let each = u64::from(SENDS) + u64::from(RECEIVES);
        // Should all fail at once, all of their requests have completions.
        let [first, second] = &self.queues;
        if (self.links.len() as u64 + 1) * each > u64::from(first.room().min(second.room())) {
            return Err(CreateError::Full);
        }
        let queues = (if split { second } else { first }, first);
        let domain = self.domains.get(&domain).ok_or(CreateError::Full)?;
        let link = Link::new(domain, queues).map_err(|_| CreateError::Full)?;
        for at in 0..RECEIVES {
            link.post_receive(at.into());
        }
        let qpn = Qpn::new(link.pair.number());
        self.links.insert(qpn, link);
        Ok(qpn)
    }

    /// The queue pair receives from now on. The kernel looks for the way to the peer meanwhile.
    pub(super) fn connect(&mut self, qpn: Qpn, to: &RtrAttributes) -> Result<(), ModifyError> {
        let link = self.links.get(&qpn).ok_or(ModifyError::Unknown)?;
        let refused = ModifyError::State(State::Init);
        let gid = self.card.gid(to.addresses.src()).ok_or(refused)?;
        let path = Path {
            port: PORT,
            gid_index: u8::try_from(gid.index).map_err(|_| refused)?,
            gid: octets(to.addresses.dst()),
            qpn: to.peer.value(),
            psn: to.receive_psn.value(),
            mtu: verbs::Mtu::from_number(to.mtu.code().into()).ok_or(refused)?,
            hop_limit: HOPS,
            traffic_class: to.traffic_class,
            flow_label: 0,
            service_level: 0,
            rnr_timer: to.min_rnr_timer,
        };
        link.pair.ready_to_receive(&path).map_err(|_| refused)
    }

    /// The queue pair sends from now on.
    pub(super) fn start(&mut self, qpn: Qpn, to: &RtsAttributes) -> Result<(), ModifyError> {
        let link = self.links.get_mut(&qpn).ok_or(ModifyError::Unknown)?;
        let patience = Patience {
            psn: to.send_psn.value(),
            timeout: to.timeout,
            retries: to.retry_count,
            rnr_retries: to.rnr_retry,
        };
        let started = link.pair.ready_to_send(&patience);
        started.map_err(|_| ModifyError::State(State::ReadyToReceive))?;
        link.started = true;
        Ok(())
    }

    /// The queue pair neither sends nor receives from now on; what is under way fails.
    pub(super) fn fail(&mut self, qpn: Qpn) {
        if let Some(link) = self.links.get(&qpn) {
            // Its completions tell of it.
            let _ = link.pair.stop();
        }
    }

    /// Ends a queue pair; what was under way vanishes.
    pub(super) fn close_link(&mut self, qpn: Qpn) {
        self.links.remove(&qpn);
        // Its number may be another's soon.
        self.completions.retain(|completion| completion.qpn != qpn.value());
    }

    /// Makes a buffer that peers may write to by these addresses.
    pub(super) fn register_rmb(
        &mut self,
        domain: Domain,
        address: u64,
        len: u64,
    ) -> Result<Key, RegionError> {
        let domain = self.domains.get(&domain).ok_or(RegionError::Full)?;
        let len = usize::try_from(len).ok().filter(|n| *n > 0).ok_or(RegionError::Range)?;
        let memory = Buffer::new(len).map_err(|_| RegionError::Full)?;
        let region = MemoryRegion::register_at(domain, memory, address, Access::REMOTE_WRITE);
        let region = region.map_err(|_| RegionError::Full)?;
        let key = Key(region.rkey());
        self.rmbs.insert(key, region);
        Ok(key)
    }

    /// A buffer is another connection's from now on: a peer that says that it has written what it has not must not show
    /// its guest what came for another one's.
    /// `bytes`: so many as it was registered with.
    pub(super) fn clear_rmb(&mut self, key: Key, bytes: u64) -> Result<(), RegionError> {
        let region = self.rmbs.get(&key).ok_or(RegionError::Key)?;
        let bytes = usize::try_from(bytes).map_err(|_| RegionError::Range)?;
        self.scratch.fill(0);
        for at in (0..bytes).step_by(self.scratch.len()) {
            region.memory().copy_in(at, &self.scratch[..self.scratch.len().min(bytes - at)]);
        }
        Ok(())
    }

    /// Takes a buffer back that peers could write to.
    pub(super) fn deregister(&mut self, key: Key) {
        self.rmbs.remove(&key);
    }

    /// Makes a stream known that is sent from; addresses are positions in it. The key is ours alone.
    pub(super) fn register_stream(&mut self, handle: Handle) -> Result<Key, RegionError> {
        if self.streams.len() >= 1 << 16 {
            return Err(RegionError::Full);
        }
        let key = loop {
            self.next_stream = self.next_stream.wrapping_add(1);
            let key = Key(self.next_stream);
            if !self.streams.contains_key(&key) {
                break key;
            }
        };
        self.streams.insert(key, handle);
        Ok(key)
    }

    /// Forgets a stream. What of it waits does not go, and neither does what would tell of that.
    pub(super) fn forget_stream(&mut self, key: Key) {
        let Some(handle) = self.streams.remove(&key) else { return };
        for link in self.links.values_mut() {
            link.forget(handle);
        }
    }

    /// Brings the guest what the peer has written: positions `from` to `upto` of its stream.
    pub(super) fn fetch(&mut self, rmb: Key, relay: &mut dyn Relay, from: u64, upto: u64) {
        let Some(region) = self.rmbs.get(&rmb) else { return };
        let bytes = (relay.rmb_bytes() as u64).max(1);
        let mut at = from;
        // No more than there is, whatever the peer says.
        while at < upto.min(from.saturating_add(bytes)) {
            let offset = at % bytes;
            let n = (upto - at).min(bytes - offset).min(self.scratch.len() as u64);
            let (Ok(start), Ok(n)) = (usize::try_from(offset), usize::try_from(n)) else { return };
            let part = &mut self.scratch[..n];
            region.memory().copy_out(start, part);
            // Within the RMB, as both are of this size.
            let _ = relay.write_at(start, part);
            at += n as u64;
        }
    }

    /// Whether a plan of up to two WRITEs and a SEND can be taken now.
    pub(super) fn has_room(&self, qpn: Qpn) -> bool {
        self.links.get(&qpn).is_some_and(|link| {
            let room = link.waiting.len() + 3 <= WAITING_MAX && link.messages < MESSAGES_MAX;
            room && link.started && !link.failed
        })
    }

    fn wait(&mut self, qpn: Qpn, request: Request) -> Result<(), PostError> {
        let link = self.links.get_mut(&qpn).ok_or(PostError::Unknown)?;
        if !link.started || link.failed {
            return Err(PostError::State);
        }
        if link.waiting.len() >= WAITING_MAX {
            return Err(PostError::Full);
        }
        link.messages += u32::from(matches!(request, Request::Send { .. }));
        link.waiting.push_back(request);
        Ok(())
    }

    /// Sends a message: solicited, as Linux sends and expects them.
    pub(super) fn send(
        &mut self,
        qpn: Qpn,
        purpose: Purpose,
        message: &[u8],
    ) -> Result<(), PostError> {
        if message.len() > PART_BYTES {
            return Err(PostError::Length);
        }
        self.wait(qpn, Request::Send { id: purpose.id(), bytes: message.to_vec() })
    }

    /// Writes into the peer's memory what stands in a stream at position `at`.
    pub(super) fn write(
        &mut self,
        qpn: Qpn,
        (address, rkey): (u64, u32),
        (stream, at, len): (Key, u64, u32),
    ) -> Result<(), PostError> {
        let stream = self.streams.get(&stream).copied().ok_or(PostError::Unknown)?;
        let len = usize::try_from(len).map_err(|_| PostError::Length)?;
        self.wait(qpn, Request::Write { address, rkey, stream, at, len })
    }

    /// Hears what has happened. Whether there was anything.
    pub(super) fn receive(&mut self) -> bool {
        if self.is_gone {
            return false;
        }
        self.hear().unwrap_or_else(|_| {
            self.is_gone = true;
            self.fail_all();
            true
        })
    }

    fn hear(&mut self) -> Result<bool, Failure> {
        let mut any = false;
        while self.channel.next_event()?.is_some() {
            any = true;
        }
        while let Some(event) = self.card.context.next_event()? {
            any = true;
            // A queue pair that fails flushes its requests; addresses are looked up when they are needed;
            // a port that is down for a moment is what the card sends again for.
            if let AsyncEvent::DeviceFailed | AsyncEvent::QueueFailed = event {
                self.fail_all();
            }
        }
        Ok(any)
    }

    /// The device is gone, and says nothing of what was under way.
    fn fail_all(&mut self) {
        for (qpn, link) in self.links.iter().filter(|(_, link)| !link.failed) {
            let _ = link.pair.stop();
            let outcome = Err(verbs::Broken { status: verbs::Status::Fatal, vendor: 0 });
            self.completions.push_back(verbs::Completion { id: 0, qpn: qpn.value(), outcome });
        }
    }

    /// Gives the card what waits, as far as there is room. Whether there was anything.
    pub(super) fn transmit(&mut self, shelf: &Shelf) -> bool {
        let mut any = false;
        for link in self.links.values_mut().filter(|link| link.is_ready()) {
            any |= link.transmit(shelf, &mut self.scratch);
        }
        any
    }

    /// Whether there is something that could be given to the card at once.
    pub(super) fn has_queued(&self) -> bool {
        self.links.values().any(Link::is_ready)
    }

    /// What has happened next.
    pub(super) fn poll(&mut self) -> Option<Event> {
        loop {
            if self.completions.is_empty() && !self.take_completions() {
                self.fail_all();
            }
            let completion = self.completions.pop_front()?;
            if let Some(event) = self.event(&completion) {
                return Some(event);
            }
        }
    }

    /// Takes what the queues have, what has come first. `false`: a queue is broken.
    fn take_completions(&mut self) -> bool {
        let mut good = true;
        for (queue, taken) in self.queues.iter().zip(&mut self.taken) {
            let all = &mut self.completions;
            let before = all.len();
            good &= queue.poll(|completion| all.push_back(completion)).is_ok();
            *taken += (all.len() - before) as u64;
        }
        good
    }

    fn event(&mut self, completion: &verbs::Completion) -> Option<Event> {
        let qpn = Qpn::new(completion.qpn);
        let link = self.links.get_mut(&qpn)?;
        let done = match completion.outcome {
            Ok(done) => done,
            Err(broken) => {
                link.waiting.clear();
                let told = std::mem::replace(&mut link.failed, true);
                return (!told).then(|| Event::Failed(qpn, status(broken.status)));
            }
        };
        match done.kind {
            Kind::Send => {
                link.give_back();
                link.messages = link.messages.saturating_sub(1);
                Some(Event::Sent(qpn, Purpose::of(completion.id)))
            }
            Kind::Write => {
                link.give_back();
                None
            }
            Kind::Receive | Kind::ReceiveWrite => {
                link.read(completion.id, done.bytes, &mut self.message);
                link.post_receive(completion.id);
                Some(Event::Came(qpn))
            }
            Kind::Other(_) => None,
        }
    }

    /// The bytes of the message that [`Event::Came`] told of.
    pub(super) fn message(&self) -> &[u8] {
        &self.message
    }
}

impl Link {
    /// `queues`: for what it sends, and what it receives.
    fn new(
        domain: &ProtectionDomain,
        queues: (&CompletionQueue, &CompletionQueue),
    ) -> Result<Self, Failure> {
        let shape = Shape {
            sends: SENDS.into(),
            receives: RECEIVES.into(),
            send_pieces: 1,
            receive_pieces: 2,
            inline_bytes: INLINE_BYTES,
        };
        let pair = QueuePair::new(domain, queues, shape)?;
        pair.init(PORT, Access::REMOTE_WRITE)?;
        let bytes = u32::from(RECEIVES) * FIRST_BYTES + SPILL_BYTES;
        let receives = Buffer::new(bytes as usize)?;
        let receives = MemoryRegion::register(domain, receives, Access::LOCAL_WRITE)?;
        let stage = MemoryRegion::register(domain, Buffer::new(STAGE_BYTES)?, Access::READ)?;
        Ok(Self {
            pair,
            receives,
            stage,
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            staged: (0, 0),
            requests: (0, 0),
            messages: 0,
            started: false,
            failed: false,
            blocked: false,
        })
    }

    /// Asks for a message, in place `at`. A pair that has failed says so by completions.
    fn post_receive(&self, at: u64) {
        let first = usize::try_from(at).unwrap_or(0) * FIRST_BYTES as usize;
        let spill = usize::from(RECEIVES) * FIRST_BYTES as usize;
        let pieces =
            (self.receives.piece(first, FIRST_BYTES), self.receives.piece(spill, SPILL_BYTES));
        if let (Some(first), Some(spill)) = pieces {
            let _ = self.pair.post_receive(at, &[first, spill]);
        }
    }

    /// Puts together what the two pieces of a receive request hold.
    fn read(&self, at: u64, bytes: u32, to: &mut Vec<u8>) {
        let bytes = bytes.min(FIRST_BYTES + SPILL_BYTES) as usize;
        let head = bytes.min(FIRST_BYTES as usize);
        to.resize(bytes, 0);
        let (first, rest) = to.split_at_mut(head);
        let at = usize::try_from(at).unwrap_or(0).min(usize::from(RECEIVES) - 1);
        self.receives.memory().copy_out(at * FIRST_BYTES as usize, first);
        self.receives.memory().copy_out(usize::from(RECEIVES) * FIRST_BYTES as usize, rest);
    }

    /// The guest whose stream this was is gone.
    fn forget(&mut self, gone: Handle) {
        let told = match Place::of(gone) {
            Place::Sent(conn) => Some(Purpose::Cdc(conn.number()).id()),
            Place::Received(_) | Place::Control(_) => None,
        };
        let (mut missing, mut messages) = (false, 0);
        self.waiting.retain(|request| match request {
            Request::Write { stream, .. } => {
                missing |= *stream == gone;
                *stream != gone
            }
            Request::Send { id, .. } => {
                let keep = !missing || told != Some(*id);
                messages += u32::from(!keep);
                keep
            }
        });
        self.messages -= messages;
    }

    /// Whether something waits that could go.
    fn is_ready(&self) -> bool {
        !self.waiting.is_empty() && !self.blocked && !self.failed
    }

    /// The oldest completion has come.
    fn give_back(&mut self) {
        if let Some(posted) = self.posted.pop_front() {
            (self.staged.1, self.requests.1) = (posted.stage, posted.requests);
            self.blocked = false;
        }
    }

    /// Bytes of the stage that can be had in one piece, and where.
    fn room(&self) -> (usize, usize) {
        let (used, back) = self.staged;
        let at = usize::try_from(used % STAGE_BYTES as u64).unwrap_or(0);
        let free = STAGE_BYTES - usize::try_from(used - back).unwrap_or(STAGE_BYTES);
        (at, free.min(STAGE_BYTES - at).min(PART_BYTES))
    }

    fn transmit(&mut self, shelf: &Shelf, scratch: &mut [u8]) -> bool {
        let mut any = false;
        while self.is_ready() {
            let Ok(sent) = self.next(shelf, scratch) else {
                // The guest's memory or the pair is gone; completions tell of the end.
                self.waiting.clear();
                let _ = self.pair.stop();
                return true;
            };
            any |= sent;
            self.blocked = !sent;
        }
        any
    }

    /// Gives the card one request, or a part of it; `false`: there is no room.
    fn next(&mut self, shelf: &Shelf, scratch: &mut [u8]) -> Result<bool, Broken> {
        let (at, room) = self.room();
        if self.requests.0 - self.requests.1 >= u64::from(SENDS) || room == 0 {
            return Ok(false);
        }
        let Some(front) = self.waiting.front_mut() else { return Ok(false) };
        let (part, operation, id, rest) = match front {
            Request::Send { bytes, .. } if bytes.len() > room => {
                // A message is not cut: the rest of the stage up to its end is left out.
                let at_end = at + room == STAGE_BYTES;
                self.staged.0 += if at_end { room as u64 } else { 0 };
                return Ok(at_end);
            }
            Request::Send { id, bytes } => (&bytes[..], Operation::Send, *id, 0),
            Request::Write { address, rkey, stream, at, len } => {
                let n = (*len).min(room);
                let part = &mut scratch[..n];
                shelf.read(*stream, *at, part).map_err(|_| Broken)?;
                let operation = Operation::Write { address: *address, rkey: *rkey };
                *len -= n;
                *at += n as u64;
                *address += n as u64;
                (&*part, operation, 0, *len)
            }
        };
        let inline = part.len() <= self.pair.shape().inline_bytes as usize;
        let piece = if inline {
            None
        } else {
            self.stage.memory().copy_in(at, part);
            self.staged.0 += part.len() as u64;
            self.stage.piece(at, u32::try_from(part.len()).map_err(|_| Broken)?)
        };
        let source = piece.as_slice();
        let source = if inline { Source::Inline(part) } else { Source::Pieces(source) };
        let solicited = operation == Operation::Send;
        // A part that others follow gives them its room.
        let signaled = solicited || rest > 0;
        let request = SendRequest { id, operation, source, immediate: None, signaled, solicited };
        self.pair.post_send(&[request]).map_err(|_| Broken)?;
        self.requests.0 += 1;
        if signaled {
            self.posted.push_back(Posted { stage: self.staged.0, requests: self.requests.0 });
        }
        if rest == 0 {
            self.waiting.pop_front();
        }
        Ok(true)
    }
}

/// The guest's memory cannot be read, or the pair takes nothing.
#[derive(Clone, Copy, Debug)]
struct Broken;

fn status(status: verbs::Status) -> Status {
    match status {
        verbs::Status::LocalLength => Status::LocalLength,
        verbs::Status::Flushed => Status::Flushed,
        verbs::Status::RemoteInvalidRequest => Status::RemoteInvalidRequest,
        verbs::Status::RemoteAccess => Status::RemoteAccess,
        verbs::Status::RemoteOperation => Status::RemoteOperational,
        verbs::Status::RetriesExceeded => Status::RetryExceeded,
        verbs::Status::ReceiverNotReady => Status::RnrRetryExceeded,
        // Something on this side.
        _ => Status::LocalProtection,
    }
}

#[cfg(test)]
mod tests;
