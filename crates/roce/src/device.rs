//! What one core owns: queue pairs, regions, completion queues, and what is due when.

mod config;

use std::collections::VecDeque;

use crate::cq::{Arm, Cq, CqCounters, CqId, Overflow};
use crate::deadlines::Deadlines;
use crate::icrc::{self, Addresses, Flow, Seal};
use crate::memory::{Handle, Key, Memory, Region, RegionError, Regions};
use crate::number::{Psn, Qpn};
use crate::qp::{
    Context, ModifyError, Outcome, QpConfig, QueuePair, RtrAttributes, RtsAttributes, View, Wish,
};
use crate::random::{Random, Secret};
use crate::reason::{Counters, Reason};
use crate::time::Time;
use crate::wire::{BTH_BYTES, HEADERS_MAX, ICRC_BYTES, Opcode, Packet, Place};
use crate::work::{Completion, PostError, ReceiveRequest, SendRequest};

use config::check;
pub use config::{BadConfig, DeviceConfig};

/// The longest packet behind UDP, bytes: what a buffer for [`Device::transmit`] must have at least.
pub const PACKET_MAX: usize = HEADERS_MAX + 4096 + ICRC_BYTES;

/// Why there is no new queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// As many as may be are there.
    #[error("no room for another queue pair")]
    Full,
    /// There is no such completion queue.
    #[error("there is no such completion queue")]
    Cq,
}

/// How a packet came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// From the peer to us.
    pub addresses: Addresses,
    /// UDP source port.
    pub src_port: u16,
    /// It has a congestion mark (ECN: CE).
    pub marked: bool,
    /// IPv4 identification, if it could be seen.
    pub identification: Option<u16>,
}

/// What packets that came together have in common.
struct Burst {
    flow: Flow,
    marked: bool,
    identification: Option<u16>,
    /// The queue pair of those before, which is to be settled when some of another come, or none any more.
    open: Option<u32>,
    /// What the next one is compared with, if the last one was in the middle of a WRITE.
    alike: Option<Alike>,
}

/// What packets in the middle of a WRITE have in common: all but number, payload and CRC.
struct Alike {
    /// Where their queue pair is.
    slot: u32,
    bytes: usize,
    /// The BTH before the packet sequence number.
    start: [u8; BTH_BYTES - 3],
    front: icrc::Steady,
}

/// Bit of the BTH's byte 8: an acknowledgement is asked for.
const ACK_REQUEST: u8 = 0x80;

impl Burst {
    const fn new(arrival: &Arrival) -> Self {
        let Arrival { addresses, src_port, marked, identification } = *arrival;
        let flow = Flow { addresses, src_port };
        Self { flow, marked, identification, open: None, alike: None }
    }
}

/// Packets to send: `segments` of them, one behind the other in the buffer, all of `segment_len` bytes
/// but the last, which may be shorter, all to one peer. That is what `UDP_SEGMENT` takes.
///
/// Their invariant CRCs are those for IPv4 identifications 0, 1, 2, … with DF set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// From whom to whom; UDP destination port 4791.
    pub flow: Flow,
    /// DSCP and ECN bits of the IP header.
    pub traffic_class: u8,
    /// Bytes written.
    pub len: usize,
    /// Bytes of each packet but the last.
    pub segment_len: usize,
    /// Packets.
    pub segments: usize,
    /// Of which queue pair.
    pub qpn: Qpn,
}

#[derive(Debug, Default)]
struct Slot {
    qp: Option<QueuePair>,
    /// What its number has above slot and vector.
    tag: u32,
    /// It is in the list of those that may have something to send.
    queued: bool,
}

/// All that one core owns. See the [crate documentation](crate) for how it is driven.
#[derive(Debug)]
pub struct Device {
    vector: u16,
    vector_bits: u32,
    slot_bits: u32,
    qps_max: u32,
    split: bool,
    slots: Vec<Slot>,
    free: Vec<u32>,
    queued: VecDeque<u32>,
    deadlines: Deadlines,
    regions: Regions,
    cqs: Vec<Cq>,
    random: Random,
    counters: Counters,
    /// What the checksums of the last packets began with, of those that left and those that came.
    last_out: icrc::Last,
    last_in: icrc::Last,
}

/// ECN: the sender understands congestion marks (RFC 3168).
const ECT0: u8 = 2;
const ECN: u8 = 3;

impl Device {
    /// An empty one.
    ///
    /// # Errors
    ///
    /// The first setting that cannot be, with what could.
    pub fn new(config: &DeviceConfig, secret: Secret) -> Result<Self, BadConfig> {
        check(config)?;
        let slot_bits = (u32::BITS - (config.qps_max - 1).leading_zeros()).max(5);
        let mut random = Random::new(secret);
        let keys = Secret::new([random.next_u64(), random.next_u64()]);
        let cq = || Cq::new(config.cq_capacity as usize, config.moderation);
        Ok(Self {
            vector: config.vector,
            vector_bits: config.vector_bits.into(),
            slot_bits,
            qps_max: config.qps_max,
            split: config.split,
            slots: Vec::new(),
            free: Vec::new(),
            queued: VecDeque::with_capacity(config.qps_max as usize),
            deadlines: Deadlines::default(),
            regions: Regions::new(config.regions_max, Random::new(keys)),
            cqs: (0..config.cqs).map(|_| cq()).collect(),
            random,
            counters: Counters::default(),
            last_out: icrc::Last::default(),
            last_in: icrc::Last::default(),
        })
    }

    /// Makes a queue pair in state [`Reset`](crate::State::Reset). Its number says the vector in its low
    /// bits and cannot be guessed from those before.
    ///
    /// # Errors
    ///
    /// See [`CreateError`].
    pub fn create_qp(&mut self, config: &QpConfig) -> Result<Qpn, CreateError> {
        let send = config.send_cq.unwrap_or_else(|| self.least_used(None));
        let receive = config
            .receive_cq
            .unwrap_or_else(|| if self.split { self.least_used(Some(send)) } else { send });
        if send.index() >= self.cqs.len() || receive.index() >= self.cqs.len() {
            return Err(CreateError::Cq);
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.slots.len()).map_err(|_| CreateError::Full)?;
                if slot >= self.qps_max {
                    return Err(CreateError::Full);
                }
                self.slots.push(Slot::default());
                slot
            }
        };
        let tag = self.new_tag(self.slots[slot as usize].tag);
        let number = tag << (self.slot_bits + self.vector_bits) | slot << self.vector_bits;
        let qpn = Qpn::new(number | u32::from(self.vector));
        self.cqs[send.index()].users += 1;
        self.cqs[receive.index()].users += 1;
        let qp = QueuePair::new(qpn, config, send, receive);
        let place = &mut self.slots[slot as usize];
        (place.qp, place.tag) = (Some(qp), tag);
        Ok(qpn)
    }

    /// Neither 0, so that numbers are above those of management, nor the last of its slot, so that what
    /// is still on its way is nobody's.
    fn new_tag(&mut self, last: u32) -> u32 {
        let tags = 1 << (24 - self.slot_bits - self.vector_bits);
        let mut tag = 1 + self.random.next_u32() % (tags - 1);
        if tag == last {
            tag = tag % (tags - 1) + 1;
        }
        tag
    }

    /// The completion queue with the fewest users, but `other`.
    fn least_used(&self, other: Option<CqId>) -> CqId {
        let all = self.cqs.iter().zip(0..).map(|(cq, id)| (cq.users, CqId(id)));
        let least = all.filter(|(_, id)| Some(*id) != other).min();
        least.map_or(CqId(0), |(_, id)| id)
    }

    /// Ends a queue pair, without completions; those that nobody has polled yet vanish.
    ///
    /// # Errors
    ///
    /// [`ModifyError::Unknown`].
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), ModifyError> {
        let slot = self.slot_of(qpn).ok_or(ModifyError::Unknown)?;
        let qp = self.slots[slot as usize].qp.take().ok_or(ModifyError::Unknown)?;
        for port in [qp.send, qp.receive] {
            let cq = &mut self.cqs[port.cq.index()];
            cq.users -= 1;
            cq.forget(qpn);
        }
        self.deadlines.remove(slot);
        self.free.push(slot);
        Ok(())
    }

    /// `Reset` to `Init`: receive requests are taken.
    ///
    /// # Errors
    ///
    /// See [`ModifyError`].
    pub fn init(&mut self, qpn: Qpn) -> Result<(), ModifyError> {
        self.qp_mut(qpn)?.init()
    }

    /// `Init` to `ReadyToReceive`.
    ///
    /// # Errors
    ///
    /// See [`ModifyError`].
    pub fn ready_to_receive(&mut self, qpn: Qpn, to: &RtrAttributes) -> Result<(), ModifyError> {
        self.qp_mut(qpn)?.ready_to_receive(to)
    }

    /// `ReadyToReceive` to `ReadyToSend`.
    ///
    /// # Errors
    ///
    /// See [`ModifyError`].
    pub fn ready_to_send(&mut self, qpn: Qpn, to: &RtsAttributes) -> Result<(), ModifyError> {
        self.qp_mut(qpn)?.ready_to_send(to)
    }

    /// Any state to `Error`: all requests complete as flushed.
    ///
    /// # Errors
    ///
    /// [`ModifyError::Unknown`].
    pub fn fail(&mut self, now: Time, qpn: Qpn) -> Result<(), ModifyError> {
        self.slot_of(qpn).ok_or(ModifyError::Unknown)?;
        self.with(now, qpn, |qp, context| qp.fail(context));
        Ok(())
    }

    /// Any state to `Reset`: requests vanish without completions.
    ///
    /// # Errors
    ///
    /// [`ModifyError::Unknown`].
    pub fn reset(&mut self, qpn: Qpn) -> Result<(), ModifyError> {
        self.qp_mut(qpn)?.reset();
        Ok(())
    }

    /// A queue pair, as others see it.
    #[must_use]
    pub fn qp(&self, qpn: Qpn) -> Option<View> {
        let slot = self.slot_of(qpn)?;
        self.slots.get(slot as usize)?.qp.as_ref().map(QueuePair::view)
    }

    /// The numbers of all queue pairs.
    pub fn qps(&self) -> impl Iterator<Item = Qpn> {
        self.slots.iter().filter_map(|slot| slot.qp.as_ref().map(|qp| qp.qpn))
    }

    /// A number that no peer can guess, of what the device draws its keys from.
    pub fn draw(&mut self) -> u64 {
        self.regions.draw()
    }

    /// Registers a region. Its key serves here and, if [access](crate::Access) says so, at the peer.
    ///
    /// # Errors
    ///
    /// See [`RegionError`].
    pub fn register(&mut self, region: Region) -> Result<Key, RegionError> {
        self.regions.register(region)
    }

    /// Puts another region in the place of one: the old key is none any more.
    ///
    /// # Errors
    ///
    /// See [`RegionError`].
    pub fn reregister(&mut self, key: Key, region: Region) -> Result<Key, RegionError> {
        self.regions.reregister(key, region)
    }

    /// From now on a region leads to other memory, of the same length at least; its key, domain, addresses and access
    /// stay. The caller knows that no peer is still writing what was meant for the memory before.
    ///
    /// # Errors
    ///
    /// [`RegionError::Key`].
    pub fn rebind(&mut self, key: Key, handle: Handle) -> Result<(), RegionError> {
        self.regions.rebind(key, handle)
    }

    /// Takes a region away. Writes of the peer to it are refused from now on, which ends the connection
    /// that they come by; so are sends from it.
    ///
    /// # Errors
    ///
    /// [`RegionError::Key`].
    pub fn deregister(&mut self, key: Key) -> Result<Region, RegionError> {
        self.regions.deregister(key)
    }

    /// Regions that are registered.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Asks for something to be sent.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    pub fn post_send(&mut self, qpn: Qpn, request: &SendRequest<'_>) -> Result<(), PostError> {
        let slot = self.slot_of(qpn).ok_or(PostError::Unknown)?;
        let place = &mut self.slots[slot as usize];
        place.qp.as_mut().ok_or(PostError::Unknown)?.post_send(request)?;
        self.enqueue(slot);
        Ok(())
    }

    /// Gives room for a SEND of the peer.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    pub fn post_receive(
        &mut self,
        qpn: Qpn,
        request: &ReceiveRequest<'_>,
    ) -> Result<(), PostError> {
        self.qp_mut(qpn).map_err(|_| PostError::Unknown)?.post_receive(request)
    }

    /// Takes a packet: what is behind UDP, ICRC included. Answers wait until [`Device::transmit`], so
    /// that one acknowledgement answers a burst.
    ///
    /// # Errors
    ///
    /// Why the packet was dropped; it is counted.
    pub fn receive(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        arrival: &Arrival,
        packet: &[u8],
    ) -> Result<Outcome, Reason> {
        let mut burst = Burst::new(arrival);
        let result = self.take_in(now, memory, &mut burst, packet);
        self.close(now, burst.open);
        result
    }

    /// Takes packets that came together, as by `UDP_GRO`: as [`Device::receive`] each of them, for less. What
    /// is dropped is counted by its reason.
    pub fn receive_burst<'p>(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        arrival: &Arrival,
        packets: impl Iterator<Item = &'p [u8]>,
    ) {
        let mut burst = Burst::new(arrival);
        for packet in packets {
            if self.take_alike(memory, &burst, packet).is_none() {
                let _ = self.take_in(now, memory, &mut burst, packet);
            }
        }
        self.close(now, burst.open);
    }

    /// Takes a packet that is the next one in the middle of the same WRITE as the one before it. Its bytes are
    /// written while they are summed. `None`: it is none, or not whole; [`Self::take_in`] decides.
    #[inline]
    fn take_alike(&mut self, memory: &mut impl Memory, burst: &Burst, packet: &[u8]) -> Option<()> {
        let alike = burst.alike.as_ref().filter(|alike| alike.bytes == packet.len())?;
        let (head, rest) = packet.split_first_chunk::<BTH_BYTES>()?;
        let (payload, came) = rest.split_last_chunk()?;
        let [start @ .., high, middle, low] = head;
        if *start != alike.start {
            return None;
        }
        let Self { slots, regions, counters, .. } = self;
        let qp = slots.get_mut(alike.slot as usize)?.qp.as_mut()?;
        let known = qp.path()?.identification(burst.identification);
        let identification = known.first_try(burst.flow.addresses.is_v4(), qp.count.next());
        let psn = [*high, *middle, *low];
        let crc = alike.front.at(identification, psn);
        let crc = qp.take_alike(Psn::from_bytes(psn), payload, crc, memory, regions)?;
        if crc != u32::from_le_bytes(*came) {
            return None;
        }
        let [.., flags] = alike.start;
        qp.took_alike(payload.len(), flags & ACK_REQUEST != 0, identification);
        counters.packets_in += 1;
        counters.bytes_in += payload.len() as u64;
        Some(())
    }

    fn take_in(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        burst: &mut Burst,
        packet: &[u8],
    ) -> Result<Outcome, Reason> {
        self.counters.packets_in += 1;
        let result = self.take_in_checked(now, memory, burst, packet);
        if let Err(reason) = result {
            self.counters.dropped[reason as usize] += 1;
        }
        result
    }

    #[inline]
    fn take_in_checked(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        burst: &mut Burst,
        bytes: &[u8],
    ) -> Result<Outcome, Reason> {
        burst.alike = None;
        let packet = Packet::parse(bytes)?;
        let slot = self.slot_of(packet.header.bth.to).ok_or(Reason::UnknownQp)?;
        if burst.open != Some(slot) {
            self.close(now, burst.open.take());
        }
        let Self { slots, regions, cqs, counters, last_in, .. } = self;
        let qp = slots.get_mut(slot as usize).and_then(|slot| slot.qp.as_mut());
        let qp = qp.ok_or(Reason::UnknownQp)?;
        let path = qp.admits(&packet.header, &burst.flow.addresses)?;
        let known = path.identification(burst.identification);
        let likely = qp.count.next();
        let checked = last_in.check(memory, &burst.flow, known, likely, bytes);
        let identification = checked.map_err(|_| Reason::Icrc)?;
        // Else each of a run would be written and summed twice: whoever sends it counts as nobody foresees.
        let foreseen = identification == known.first_try(burst.flow.addresses.is_v4(), likely);
        qp.count.came(identification);
        burst.open = Some(slot);
        let context = &mut Context { now, regions, cqs, counters };
        let outcome = qp.receive(&packet, burst.marked, memory, context)?;
        if let Some(reth) = packet.header.reth
            && let Some(before) = regions.written_by(reth.rkey, slot)
            && let Some(before) = slots.get_mut(before as usize).and_then(|slot| slot.qp.as_mut())
        {
            before.checks_first = true;
        }
        let is_middle = packet.header.bth.opcode == Opcode::Write(Place::Middle, false);
        let may_run = is_middle && foreseen && !burst.marked;
        let bth = bytes.first_chunk::<BTH_BYTES>().filter(|_| may_run);
        if let Some(bth) = bth {
            let [start @ .., _, _, _] = *bth;
            let front = last_in.steady(&burst.flow, bth, bytes.len() - ICRC_BYTES);
            burst.alike = Some(Alike { slot, bytes: bytes.len(), start, front });
        }
        Ok(outcome)
    }

    /// No more packets of a queue pair for now.
    fn close(&mut self, now: Time, open: Option<u32>) {
        if let Some(slot) = open {
            self.settle(now, slot);
        }
    }

    /// The next packets to send, written to `buffer`, which must have [`PACKET_MAX`] bytes at least. At
    /// most `segments_max` (at least 1), as far as there are some of one size for one peer. Queue pairs
    /// take turns. `None`: nothing now; ask again after [`Device::next_deadline`] or when something came
    /// or was posted.
    #[must_use]
    pub fn transmit(
        &mut self,
        now: Time,
        memory: &impl Memory,
        buffer: &mut [u8],
        segments_max: usize,
    ) -> Option<Transmit> {
        for _ in 0..self.queued.len() {
            let slot = self.queued.pop_front()?;
            self.slots[slot as usize].queued = false;
            let run = self.run(now, slot, memory, buffer, segments_max.max(1));
            self.settle(now, slot);
            if run.is_some() {
                return run;
            }
        }
        None
    }

    fn run(
        &mut self,
        now: Time,
        slot: u32,
        memory: &impl Memory,
        buffer: &mut [u8],
        segments_max: usize,
    ) -> Option<Transmit> {
        let Self { slots, regions, cqs, counters, last_out, .. } = self;
        let qp = slots.get_mut(slot as usize)?.qp.as_mut()?;
        let mut context = Context { now, regions, cqs, counters };
        let path = *qp.path()?;
        let marking = if qp.cares_for_congestion() { ECT0 } else { path.traffic_class & ECN };
        if segments_max == 1 {
            // Nothing can be the last of more.
            qp.answer_first();
        }
        let segment_len = qp.next_len(now)?;
        let with_answer = segments_max;
        let segments_max = (segments_max - usize::from(qp.may_answer_last(segment_len))).max(1);
        let mut transmit = Transmit {
            flow: path.flow,
            traffic_class: path.traffic_class & !ECN | marking,
            len: 0,
            segment_len,
            segments: 0,
            qpn: qp.qpn,
        };
        let mut identification = 0;
        let mut next = Some(segment_len);
        while let Some(len) = next.filter(|len| *len <= segment_len) {
            let Some(to) = buffer.get_mut(transmit.len..transmit.len + len) else { break };
            let mut seal = Seal { last: last_out, flow: &path.flow, identification };
            let Some(end) = qp.emit(memory, &mut seal, to, &mut context) else { break };
            if end != len {
                break;
            }
            transmit.len += len;
            transmit.segments += 1;
            identification += 1;
            let most = (segments_max - transmit.segments).min((u16::MAX - identification).into());
            let room = buffer.get_mut(transmit.len..).unwrap_or_default();
            let room = room.len().min(most * segment_len);
            let room = buffer.get_mut(transmit.len..transmit.len + room).unwrap_or_default();
            let mut seal = Seal { last: last_out, flow: &path.flow, identification };
            let alike = qp.emit_alike(memory, &mut seal, (room, segment_len), &mut context);
            transmit.len += alike * segment_len;
            transmit.segments += alike;
            // As many as that are no more than `most`.
            identification += u16::try_from(alike).unwrap_or(0);
            if len < segment_len || transmit.segments >= segments_max || identification == u16::MAX
            {
                break;
            }
            next = qp.next_len(now);
        }
        let is_full = transmit.len == transmit.segments * segment_len;
        if (1..with_answer).contains(&transmit.segments)
            && is_full
            && qp.may_answer_last(segment_len)
        {
            let mut seal = Seal { last: last_out, flow: &path.flow, identification };
            let to = buffer.get_mut(transmit.len..).unwrap_or_default();
            if let Some(len) = qp.emit_answer(&mut seal, to, &mut context) {
                transmit.len += len;
                transmit.segments += 1;
            }
        }
        qp.ends_run();
        context.counters.packets_out += transmit.segments as u64;
        (transmit.segments > 0).then_some(transmit)
    }

    /// Whether [`Device::transmit`] may have something.
    #[must_use]
    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// When to call [`Device::on_deadline`], if nothing else happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let cqs = self.cqs.iter().filter_map(Cq::deadline);
        cqs.chain(self.deadlines.first()).min()
    }

    /// Time has passed: does what is due. Then [`Device::transmit`].
    pub fn on_deadline(&mut self, now: Time) {
        for cq in &mut self.cqs {
            cq.on_deadline(now);
        }
        // Each comes once: what is settled is due later.
        for _ in 0..self.slots.len() {
            let Some(slot) = self.deadlines.pop(now) else { return };
            let Some(qp) = self.slots.get(slot as usize).and_then(|slot| slot.qp.as_ref()) else {
                continue;
            };
            let qpn = qp.qpn;
            self.with(now, qpn, |qp, context| qp.on_deadline(context));
        }
    }

    /// The device's completion queues.
    pub fn cqs(&self) -> impl Iterator<Item = CqId> + use<> {
        (0..u16::try_from(self.cqs.len()).unwrap_or(0)).map(CqId)
    }

    /// The next completion of a queue; `None`: there is none.
    ///
    /// # Errors
    ///
    /// [`Overflow`], once what was there has been polled, and ever after.
    pub fn poll_cq(&mut self, cq: CqId) -> Result<Option<Completion>, Overflow> {
        self.cqs.get_mut(cq.index()).map_or(Ok(None), Cq::poll)
    }

    /// Asks for one event of a queue. `true`: completions are there already, and may not make one: poll.
    pub fn arm_cq(&mut self, cq: CqId, what: Arm) -> bool {
        self.cqs.get_mut(cq.index()).is_some_and(|cq| cq.arm(what))
    }

    /// The next queue that has had its event since it was asked last.
    pub fn poll_event(&mut self) -> Option<CqId> {
        let found = self.cqs.iter_mut().zip(0..).find_map(|(cq, id)| cq.take_event().then_some(id));
        found.map(CqId)
    }

    /// What a queue has seen.
    #[must_use]
    pub fn cq_counters(&self, cq: CqId) -> CqCounters {
        self.cqs.get(cq.index()).map(|cq| cq.counters).unwrap_or_default()
    }

    /// What the device has seen and done.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    fn slot_of(&self, qpn: Qpn) -> Option<u32> {
        let slot = qpn.value() >> self.vector_bits & ((1 << self.slot_bits) - 1);
        let there = self.slots.get(slot as usize)?.qp.as_ref()?;
        (there.qpn == qpn).then_some(slot)
    }

    fn qp_mut(&mut self, qpn: Qpn) -> Result<&mut QueuePair, ModifyError> {
        let slot = self.slot_of(qpn).ok_or(ModifyError::Unknown)?;
        let place = self.slots.get_mut(slot as usize).ok_or(ModifyError::Unknown)?;
        place.qp.as_mut().ok_or(ModifyError::Unknown)
    }

    /// Does something with a queue pair, and what follows from it.
    fn with<T>(
        &mut self,
        now: Time,
        qpn: Qpn,
        act: impl FnOnce(&mut QueuePair, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let slot = self.slot_of(qpn)?;
        let Self { slots, regions, cqs, counters, .. } = self;
        let qp = slots.get_mut(slot as usize)?.qp.as_mut()?;
        let done = act(qp, &mut Context { now, regions, cqs, counters });
        self.settle(now, slot);
        Some(done)
    }

    fn enqueue(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        if !core::mem::replace(&mut place.queued, true) {
            self.queued.push_back(slot);
        }
    }

    /// Puts a queue pair where what it wishes for will find it, and looks whether a completion queue
    /// ran over.
    fn settle(&mut self, now: Time, slot: u32) {
        let Some(qp) = self.slots.get_mut(slot as usize).and_then(|slot| slot.qp.as_mut()) else {
            return;
        };
        let ports = [qp.send, qp.receive];
        match qp.wish(now) {
            Wish::Send => self.enqueue(slot),
            Wish::Wait(at) => self.deadlines.lower(slot, at),
            Wish::Nothing => {}
        }
        for port in ports {
            self.fail_users(now, port.cq);
        }
    }

    /// Fails the queue pairs of a completion queue that has run over since.
    fn fail_users(&mut self, now: Time, id: CqId) {
        let Self { slots, regions, cqs, counters, .. } = self;
        if !cqs.get_mut(id.index()).is_some_and(Cq::take_overflow) {
            return;
        }
        let all = slots.iter_mut().filter_map(|slot| slot.qp.as_mut());
        for qp in all.filter(|qp| qp.send.cq == id || qp.receive.cq == id) {
            qp.fail(&mut Context { now, regions, cqs, counters });
        }
    }
}
