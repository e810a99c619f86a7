//! The half that sends: requests become packets, and acknowledgements completions.
//!
//! ```text
//!      una                next                max               end
//!       |  not acknowledged |  sent before, to  |  posted, never  |
//!  -----+-------------------+--- be sent again -+--- sent yet ----+----> PSN
//! ```
//!
//! Acknowledgements are cumulative, and whoever receives drops what is out of order (IBTA vol. 1, 9.7),
//! so everything from a missing packet on is sent again. After a time-out only the oldest packet is,
//! and the rest when its acknowledgement shows that nothing else was there: if only an acknowledgement
//! was lost, one packet costs nothing, and a peer that is merely slow is not buried. If more is acknowledged
//! than that packet, the peer is at work on what it has, and is sent nothing twice.

use super::message::{Pieces, Range};
use super::{Context, Port, RtsAttributes};
use crate::icrc::{self, Seal};
use crate::memory::{Handle, Memory, ProtectionDomain, Purpose, Regions};
use crate::number::Psn;
use crate::reason::Reason;
use crate::ring::Ring;
use crate::rtt::{Retransmission, Rtt, timeout_nanos};
use crate::time::Time;
use crate::wire::{
    BTH_BYTES, Bth, Header, ICRC_BYTES, Mtu, Nak, Opcode, Place, Reth, Syndrome, packet_len, pad,
    rnr_nanos,
};
use crate::work::{
    Completion, Kind, MESSAGE_MAX, Operation, PostError, SendRequest, Source, Status,
};

/// Packets of all requests together: far from 2^23, where numbers would say nothing.
const PACKETS_MAX: u32 = 1 << 22;
/// Packets on their way.
pub(crate) const WINDOW_MAX: u16 = 1 << 14;
/// Packets of a long run: what the system takes as one.
const RUN: u32 = 64;
/// "Always", of attempts for a receiver that is not ready.
const RNR_ALWAYS: u8 = 7;

/// A request, as it waits.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    id: u64,
    address: u64,
    pieces: Pieces,
    immediate: Option<u32>,
    rkey: u32,
    len: u32,
    /// The number of its first packet, and how many it has.
    first: Psn,
    packets: u32,
    write: bool,
    inline: bool,
    signaled: bool,
    solicited: bool,
}

impl Request {
    const fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }

    const fn kind(&self) -> Kind {
        if self.write { Kind::Write } else { Kind::Send }
    }
}

/// A packet of a request.
#[derive(Clone, Copy, Debug)]
struct Part {
    opcode: Opcode,
    /// Where its payload begins in the message.
    offset: u32,
    len: usize,
    ends: bool,
}

/// Whether there is something to send, paces aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ready {
    Packet,
    At(Time),
    Nothing,
}

/// What an acknowledgement, or none, came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Progress,
    Resend,
    Fatal,
}

/// Why there is no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoPacket {
    /// Nothing to send now, or the buffer is too short: nothing has changed.
    Nothing,
    /// Memory is not there: the queue pair has to fail.
    Protection,
}

/// The sending half.
#[derive(Debug)]
pub(crate) struct Requester {
    queue: Ring<Request>,
    /// Number of the request that `next` is in.
    current: u32,
    una: Psn,
    next: Psn,
    max: Psn,
    end: Psn,
    mtu: Mtu,
    window: u16,
    ack_every: u16,
    /// Packets since one that asked for an acknowledgement.
    silent: u16,
    /// The last packet that has asked for one, while none has come that answers it.
    asked: Option<Psn>,
    /// Packets are being written, one behind the other, for the system to send as one.
    in_run: bool,
    /// Only one packet may be out until something is heard.
    probing: bool,
    attempt: u32,
    retry_count: u8,
    rnr_retry: u8,
    rnr_tries: u8,
    rnr_until: Option<Time>,
    /// When there will have been nothing for too long.
    timer: Option<Time>,
    /// When that was decided.
    timed_at: Time,
    /// Nothing goes before this, for the rate's sake.
    held_until: Time,
    /// When something was last achieved.
    progress_at: Time,
    timeout: Option<u64>,
    retransmission: Retransmission,
    rtt: Rtt,
    /// A packet whose round trip is being measured.
    measured: Option<(Psn, Time)>,
    /// Whether there is always one.
    measures: bool,
    /// When it last went back, so that a repeated NAK does not make it go back twice for one loss.
    back_at: Option<(Psn, Time)>,
    inline: Box<[u8]>,
    inline_max: u16,
    packets_out: u64,
    retransmitted: u64,
    /// Packets that had been sent for the first time when this connection began.
    sent_before: u64,
}

impl Requester {
    pub(crate) fn new(depth: u16, inline_max: u16) -> Self {
        let queue = Ring::new(depth);
        let inline = vec![0; queue.room() * usize::from(inline_max)].into_boxed_slice();
        Self {
            queue,
            current: 0,
            una: Psn::default(),
            next: Psn::default(),
            max: Psn::default(),
            end: Psn::default(),
            mtu: Mtu::B1024,
            window: 1,
            ack_every: 1,
            silent: 0,
            asked: None,
            in_run: false,
            probing: false,
            attempt: 0,
            retry_count: 0,
            rnr_retry: 0,
            rnr_tries: 0,
            rnr_until: None,
            timer: None,
            timed_at: Time::ZERO,
            held_until: Time::ZERO,
            progress_at: Time::ZERO,
            timeout: None,
            retransmission: Retransmission::Fixed,
            rtt: Rtt::default(),
            measured: None,
            measures: false,
            back_at: None,
            inline,
            inline_max,
            packets_out: 0,
            retransmitted: 0,
            sent_before: 0,
        }
    }

    pub(crate) fn start(&mut self, attributes: &RtsAttributes, mtu: Mtu) {
        self.reset();
        let first = attributes.send_psn;
        (self.una, self.next, self.max, self.end) = (first, first, first, first);
        self.sent_before = self.packets_out - self.retransmitted;
        self.mtu = mtu;
        self.window = attributes.window.clamp(1, WINDOW_MAX);
        self.ack_every = attributes.ack_every.max(1);
        self.retry_count = attributes.retry_count.min(7);
        self.rnr_retry = attributes.rnr_retry.min(RNR_ALWAYS);
        self.timeout = timeout_nanos(attributes.timeout);
        self.retransmission = attributes.retransmission;
    }

    pub(crate) fn reset(&mut self) {
        self.queue.clear();
        self.current = self.queue.head();
        (self.next, self.max, self.end) = (self.una, self.una, self.una);
        self.silent = 0;
        self.asked = None;
        self.probing = false;
        self.attempt = 0;
        self.rnr_tries = 0;
        self.rnr_until = None;
        self.timer = None;
        self.held_until = Time::ZERO;
        self.rtt = Rtt::default();
        self.measured = None;
        self.back_at = None;
    }

    pub(crate) const fn len(&self) -> u32 {
        self.queue.len()
    }

    pub(crate) const fn in_flight(&self) -> u32 {
        self.max.since(self.una)
    }

    /// Packets of requests, and of those the ones that were sent before.
    pub(crate) const fn sent_counts(&self) -> (u64, u64) {
        (self.packets_out, self.retransmitted)
    }

    pub(crate) fn rtt_nanos(&self) -> Option<u64> {
        self.rtt.smooth()
    }

    /// What the last round trip took that was measured, nanoseconds; 0: none was.
    pub(crate) const fn last_rtt_nanos(&self) -> u64 {
        self.rtt.last()
    }

    /// From now on the next packet asks for an acknowledgement whenever no round trip is being measured, or no more.
    pub(crate) const fn measure_always(&mut self, always: bool) {
        self.measures = always;
    }

    /// Bytes of payload that may be on their way.
    pub(crate) const fn window_bytes(&self) -> u64 {
        self.window as u64 * self.mtu.bytes_u32() as u64
    }

    /// The first packet that was never sent.
    pub(crate) const fn first_unsent(&self) -> Psn {
        self.max
    }

    /// Whether the peer has acknowledged this packet.
    pub(crate) const fn has_arrived(&self, psn: Psn) -> bool {
        psn.after(self.una) < 0
    }

    /// Whether this packet is on its way, or was, no longer ago than a window of packets.
    pub(crate) fn was_sent_lately(&self, psn: Psn) -> bool {
        // Before the first one nothing was sent.
        let first_times = self.packets_out - self.retransmitted - self.sent_before;
        let arrived = first_times.saturating_sub(self.in_flight().into());
        let arrived = u32::from(self.window).min(u32::try_from(arrived).unwrap_or(u32::MAX));
        let oldest = self.una.minus(arrived);
        psn.since(oldest) < self.max.since(oldest)
    }

    /// The next packet may go then. Nobody may have been asked for an acknowledgement before that, so the time until
    /// something is sent again begins there.
    pub(crate) fn hold_until(&mut self, at: Time, now: Time) {
        self.held_until = at;
        if self.asked.is_none() {
            self.start_timer(now);
        }
    }

    pub(crate) const fn deadline(&self) -> Option<Time> {
        self.timer
    }

    pub(crate) fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let (len, pieces) = match request.source {
            Source::Inline(bytes) if bytes.len() > usize::from(self.inline_max) => {
                return Err(PostError::Length);
            }
            Source::Inline(bytes) => (bytes.len() as u64, Pieces::default()),
            Source::Pieces(pieces) => Pieces::new(pieces)?,
        };
        let len = u32::try_from(len).ok().filter(|len| *len <= MESSAGE_MAX);
        let len = len.ok_or(PostError::Length)?;
        let mtu = self.mtu.bytes_u32();
        let packets = len.div_ceil(mtu).max(1);
        if self.queue.is_full() || self.end.since(self.una) + packets > PACKETS_MAX {
            return Err(PostError::Full);
        }
        let (write, address, rkey) = match request.operation {
            Operation::Send => (false, 0, 0),
            Operation::Write { address, rkey } => (true, address, rkey),
        };
        if let Source::Inline(bytes) = request.source {
            let at = self.queue.place(self.queue.tail()) * usize::from(self.inline_max);
            self.inline[at..at + bytes.len()].copy_from_slice(bytes);
        }
        self.queue.push(Request {
            id: request.id,
            address,
            pieces,
            immediate: request.immediate,
            rkey,
            len,
            first: self.end,
            packets,
            write,
            inline: matches!(request.source, Source::Inline(_)),
            signaled: request.signaled,
            solicited: request.solicited,
        });
        self.end = self.end.plus(packets);
        Ok(())
    }

    /// Whether a packet could go.
    #[inline]
    pub(crate) fn ready(&self, now: Time) -> Ready {
        let window = if self.probing { 1 } else { u32::from(self.window) };
        if self.next == self.end || self.next.since(self.una) >= window || self.waits_for_room() {
            return Ready::Nothing;
        }
        match self.rnr_until {
            Some(at) if at > now => Ready::At(at),
            _ => Ready::Packet,
        }
    }

    /// Whether a run of packets waits until the window has room for a long one: acknowledgements have been asked for that
    /// will make some, two at least, so that it does not end in a time-out if one of them is lost. Each run costs the
    /// system as much as many packets, so that those that an acknowledgement lets go are better sent together.
    fn waits_for_room(&self) -> bool {
        let on_their_way = self.next.since(self.una);
        let room = u32::from(self.window).saturating_sub(on_their_way);
        room < RUN.min(u32::from(self.window) / 8)
            && self.end.since(self.next) > room
            && u32::from(self.silent) + u32::from(self.ack_every) < on_their_way
            && self.next == self.max
            && !self.in_run
            && !self.probing
    }

    /// A run of packets has ended.
    pub(crate) fn ends_run(&mut self) {
        self.in_run = false;
    }

    #[inline]
    fn part(&self) -> Option<(&Request, Part)> {
        let request = self.queue.get(self.current)?;
        let index = self.next.since(request.first);
        let mtu = self.mtu.bytes_u32();
        let offset = index * mtu;
        let len = request.len.checked_sub(offset)?.min(mtu) as usize;
        let ends = index + 1 == request.packets;
        let place = match (index, ends) {
            (0, true) => Place::Only,
            (0, false) => Place::First,
            (_, true) => Place::Last,
            (_, false) => Place::Middle,
        };
        let immediate = ends && request.immediate.is_some();
        let opcode = if request.write {
            Opcode::Write(place, immediate)
        } else {
            Opcode::Send(place, immediate)
        };
        Some((request, Part { opcode, offset, len, ends }))
    }

    /// Bytes of the packet at `next`, BTH to ICRC.
    #[inline]
    pub(crate) fn next_len(&self) -> Option<usize> {
        self.part().map(|(_, part)| packet_len(part.opcode, part.len))
    }

    /// Writes the packet at `next`, BTH to ICRC.
    pub(crate) fn emit(
        &mut self,
        mut bth: Bth,
        domain: ProtectionDomain,
        memory: &impl Memory,
        seal: &mut Seal<'_>,
        to: &mut [u8],
        context: &mut Context<'_>,
    ) -> Result<usize, NoPacket> {
        let (request, part) = self.part().ok_or(NoPacket::Nothing)?;
        let len = packet_len(part.opcode, part.len);
        let to = to.get_mut(..len).ok_or(NoPacket::Nothing)?;
        let psn = self.next;
        bth.opcode = part.opcode;
        bth.psn = psn;
        bth.solicited = part.ends && request.solicited;
        let request_end = request.end();
        bth.ack_request = self.wants_ack(request, &part);
        let reth = part.opcode.has_reth().then_some(Reth {
            address: request.address,
            rkey: request.rkey,
            len: request.len,
        });
        let immediate = request.immediate.filter(|_| part.opcode.has_immediate());
        let header = Header { reth, immediate, ..Header::new(bth) };
        let at = header.emit(part.len, to).map_err(|_| NoPacket::Nothing)?;
        let (head, rest) = to.split_at_mut_checked(at).ok_or(NoPacket::Nothing)?;
        let crc = seal.begin(head, len - ICRC_BYTES);
        let payload = rest.get_mut(..part.len).ok_or(NoPacket::Nothing)?;
        let summed =
            self.copy(request, part.offset, payload, domain, memory, context.regions, crc)?;
        let crc = summed.unwrap_or_else(|| icrc::go_on(memory, crc, payload));
        let end = pad(rest, part.len, part.len).map_err(|_| NoPacket::Nothing)?;
        let padding = rest.get(part.len..end).ok_or(NoPacket::Nothing)?;
        let crc = icrc::go_on(memory, crc, padding);
        let last = rest.get_mut(end..).and_then(<[u8]>::first_chunk_mut);
        *last.ok_or(NoPacket::Nothing)? = icrc::store(crc);
        self.sent(psn, bth.ack_request, request_end, context);
        context.counters.bytes_out += part.len as u64;
        Ok(len)
    }

    /// How many packets from the next one on are full ones in the middle of a WRITE about which nothing is to be
    /// decided: they go for the first time, within the window, and none of them asks for an acknowledgement.
    fn alike(&self) -> u32 {
        let Some(request) = self.queue.get(self.current) else { return 0 };
        let index = self.next.since(request.first);
        let is_first_time = self.next == self.max && self.max != self.una && !self.probing;
        if !request.write || request.inline || index == 0 || !is_first_time {
            return 0;
        }
        let in_message = (request.packets - 1).saturating_sub(index);
        let in_window = u32::from(self.window - 1).saturating_sub(self.next.since(self.una));
        let silent = u32::from(self.ack_every - 1).saturating_sub(self.silent.into());
        if self.rnr_until.is_some() { 0 } else { in_message.min(in_window).min(silent) }
    }

    /// Writes packets that are alike but for their numbers and their payload, one behind the other, each as
    /// [`Self::emit`] would have: as many as [there are](Self::alike), `to` has room for, and memory is there for.
    /// How many. All have `each` bytes, or there are none.
    pub(crate) fn emit_alike(
        &mut self,
        mut bth: Bth,
        domain: ProtectionDomain,
        memory: &impl Memory,
        seal: &mut Seal<'_>,
        (to, each): (&mut [u8], usize),
        context: &mut Context<'_>,
    ) -> usize {
        (bth.opcode, bth.psn) = (Opcode::Write(Place::Middle, false), Psn::default());
        let mtu = self.mtu.bytes();
        let most = (self.alike() as usize).min(to.len().checked_div(each).unwrap_or(0));
        if most == 0 || each != packet_len(bth.opcode, mtu) {
            return 0;
        }
        let mut head = [0; BTH_BYTES];
        let headed = Header::new(bth).emit(mtu, &mut head);
        let Some(request) = self.queue.get(self.current).filter(|_| headed.is_ok()) else {
            return 0;
        };
        let at = self.next.since(request.first) * self.mtu.bytes_u32();
        let (regions, purpose) = (context.regions, Purpose::Read);
        // The first range is mostly all there is.
        let first = request.pieces.ranges(at, most * mtu, domain, purpose, regions).next();
        let Some(Ok(Range { end, handle, offset, .. })) = first else { return 0 };
        let steady = seal.steady(&head, each - ICRC_BYTES);
        let places = to.chunks_exact_mut(each).zip(seal.identification..).zip(0..).take(end / mtu);
        let mut made = 0;
        for ((packet, identification), nth) in places {
            let psn = self.next.plus(nth).bytes();
            let [.., high, middle, low] = &mut head;
            [*high, *middle, *low] = psn;
            let crc = steady.at(identification, psn);
            let offset = offset + u64::from(nth) * mtu as u64;
            if emit_one(&head, packet, memory, handle, offset, crc).is_none() {
                break;
            }
            made = nth + 1;
        }
        if made > 0 {
            self.sent_alike(made, context.now);
            context.counters.bytes_out += u64::from(made) * mtu as u64;
        }
        made as usize
    }

    /// As [`Self::sent`], for so many packets that are [alike](Self::alike).
    fn sent_alike(&mut self, count: u32, now: Time) {
        self.packets_out += u64::from(count);
        self.next = self.next.plus(count);
        self.max = self.next;
        // Fewer than would have asked, of which there are fewer than 2^16.
        self.silent = self.silent.saturating_add(u16::try_from(count).unwrap_or(u16::MAX));
        self.time(None, now);
    }

    /// Copies a packet's payload, once: what is in memory may change while this runs, and the CRC is
    /// that of the copy. That CRC, if it was made on the way; `crc` is that of what comes before.
    #[expect(clippy::too_many_arguments, reason = "parts of a packet and of who makes it")]
    fn copy(
        &self,
        request: &Request,
        offset: u32,
        to: &mut [u8],
        domain: ProtectionDomain,
        memory: &impl Memory,
        regions: &Regions,
        crc: u32,
    ) -> Result<Option<u32>, NoPacket> {
        if request.inline {
            let at = self.queue.place(self.current) * usize::from(self.inline_max);
            let from = at + offset as usize;
            let from = self.inline.get(from..from + to.len()).ok_or(NoPacket::Protection)?;
            to.copy_from_slice(from);
            return Ok(None);
        }
        let ranges = request.pieces.ranges(offset, to.len(), domain, Purpose::Read, regions);
        // The first is mostly all there is.
        let (len, mut register) = (to.len(), None);
        for range in ranges {
            let Range { start, end, handle, offset } = range.map_err(|_| NoPacket::Protection)?;
            let to = to.get_mut(start..end).ok_or(NoPacket::Protection)?;
            if to.len() == len {
                let read = memory.read_summed(handle, offset, to, !crc);
                register = read.map_err(|_| NoPacket::Protection)?;
            } else {
                memory.read(handle, offset, to).map_err(|_| NoPacket::Protection)?;
            }
        }
        Ok(register.map(|register: u32| !register))
    }

    /// An acknowledgement is asked for where somebody waits for it: at the end of a message that is
    /// signaled or the last for now, when the window closes, after so many packets, and when probing.
    #[inline]
    fn wants_ack(&self, request: &Request, part: &Part) -> bool {
        let last = part.ends && (request.signaled || request.end() == self.end);
        let closes = self.next.since(self.una) + 1 >= u32::from(self.window);
        let measures = self.measures && self.measured.is_none();
        last || closes || measures || self.probing || self.silent + 1 >= self.ack_every
    }

    #[inline]
    fn sent(&mut self, psn: Psn, asked: bool, request_end: Psn, context: &mut Context<'_>) {
        let now = context.now;
        self.in_run = true;
        self.packets_out += 1;
        self.next = psn.plus(1);
        if self.next == request_end {
            self.current = self.current.wrapping_add(1);
        }
        self.silent = if asked { 0 } else { self.silent + 1 };
        if self.next.after(self.max) > 0 {
            if self.max == self.una {
                self.progress_at = now;
            }
            self.max = self.next;
            if asked && self.measured.is_none() {
                self.measured = Some((psn, now));
            }
        } else {
            context.counters.retransmitted += 1;
            self.retransmitted += 1;
        }
        self.time(asked.then_some(psn), now);
    }

    /// A packet was sent, and may have asked for an acknowledgement. That is due from then on, whatever is sent behind it:
    /// who always has something to send would never find out that it was lost. Until somebody has asked, none is due, and
    /// what was sent last counts.
    fn time(&mut self, asked: Option<Psn>, now: Time) {
        let is_due = self.asked.is_some();
        self.asked = asked.or(self.asked);
        // Once for all packets that are sent at a time.
        let is_timed = is_due || self.timed_at == now && asked.is_none();
        if self.timer.is_none() || !is_timed {
            self.start_timer(now);
        }
    }

    fn start_timer(&mut self, now: Time) {
        self.timed_at = now;
        let from = if self.asked.is_some() { now } else { now.max(self.held_until) };
        let patience = self.rtt.patience(self.retransmission, self.timeout, self.attempt);
        self.timer = patience.filter(|_| self.max != self.una).map(|nanos| from.plus_nanos(nanos));
    }

    pub(crate) fn handle_ack(
        &mut self,
        psn: Psn,
        syndrome: Syndrome,
        port: Port,
        context: &mut Context<'_>,
    ) -> Result<Heard, Reason> {
        if psn.after(self.una) < 0 {
            return Err(Reason::StaleAck);
        }
        if psn.after(self.max) >= 0 {
            return Err(Reason::BadAck);
        }
        self.note_absence(context.now);
        match syndrome {
            Syndrome::Ack(_) => {
                context.counters.acks_in += 1;
                self.acknowledge(psn.plus(1), port, context);
                Ok(Heard::Progress)
            }
            Syndrome::Rnr(code) => Ok(self.handle_rnr(psn, code, port, context)),
            Syndrome::Nak(Nak::Sequence) => {
                context.counters.naks_in += 1;
                self.acknowledge(psn, port, context);
                self.handle_gap(psn, port, context)
            }
            Syndrome::Nak(why) => {
                context.counters.naks_in += 1;
                self.acknowledge(psn, port, context);
                let status = match why {
                    Nak::RemoteAccess => Status::RemoteAccess,
                    Nak::RemoteOperational => Status::RemoteOperational,
                    Nak::InvalidRequest | Nak::Sequence => Status::RemoteInvalidRequest,
                };
                self.fail_first(status, port, context);
                Ok(Heard::Fatal)
            }
        }
    }

    /// Everything before `una` is there.
    fn acknowledge(&mut self, una: Psn, port: Port, context: &mut Context<'_>) {
        let now = context.now;
        let mut late = false;
        if una != self.una {
            self.una = una;
            self.progress_at = now;
            self.attempt = 0;
            self.rnr_tries = 0;
            self.rnr_until = None;
            // More has arrived than was sent since the time-out: what was sent before is not lost, but late.
            late = core::mem::replace(&mut self.probing, false) && una.after(self.next) > 0;
            self.back_at = None;
            self.asked.take_if(|psn| psn.after(una) < 0);
            if self.next.after(una) < 0 {
                self.next = una;
            }
        }
        if let Some((psn, at)) = self.measured
            && psn.after(una) < 0
        {
            self.rtt.take(now.since(at));
            self.measured = None;
        }
        self.complete(port, context);
        if late {
            self.go_on();
        }
        self.start_timer(now);
    }

    /// Goes on behind everything that was ever sent.
    fn go_on(&mut self) {
        self.next = self.max;
        // Whether any of those has asked for an acknowledgement nobody knows any more: the next one does.
        self.silent = self.window;
        while self.queue.get(self.current).is_some_and(|r| r.end().after(self.next) <= 0) {
            self.current = self.current.wrapping_add(1);
        }
    }

    fn complete(&mut self, port: Port, context: &mut Context<'_>) {
        while let Some(request) = self.queue.first().filter(|r| r.end().after(self.una) <= 0) {
            let (qpn, request) = (port.qpn, *request);
            if request.signaled {
                let completion = Completion {
                    id: request.id,
                    qpn,
                    kind: request.kind(),
                    status: Status::Success,
                    bytes: request.len,
                    immediate: None,
                    solicited: false,
                };
                context.complete(port, completion);
            }
            if self.current == self.queue.head() {
                self.current = self.current.wrapping_add(1);
            }
            self.queue.pop();
        }
    }

    fn handle_gap(
        &mut self,
        psn: Psn,
        port: Port,
        context: &mut Context<'_>,
    ) -> Result<Heard, Reason> {
        let now = context.now;
        let pause = self.rtt.smooth().unwrap_or(0) / 2;
        if self.back_at.is_some_and(|(at, when)| at == psn && now.since(when) < pause) {
            return Err(Reason::StaleAck);
        }
        if self.is_given_up(now) {
            self.fail_first(Status::RetryExceeded, port, context);
            return Ok(Heard::Fatal);
        }
        self.go_back();
        self.back_at = Some((psn, now));
        self.start_timer(now);
        Ok(Heard::Resend)
    }

    fn handle_rnr(&mut self, psn: Psn, code: u8, port: Port, context: &mut Context<'_>) -> Heard {
        context.counters.rnr_in += 1;
        self.acknowledge(psn, port, context);
        if self.rnr_retry != RNR_ALWAYS && self.rnr_tries >= self.rnr_retry {
            self.fail_first(Status::RnrRetryExceeded, port, context);
            return Heard::Fatal;
        }
        self.rnr_tries = self.rnr_tries.saturating_add(1);
        let until = context.now.plus_nanos(rnr_nanos(code));
        self.rnr_until = Some(until);
        self.go_back();
        // The peer lives: the time that it asked for does not count against it.
        self.progress_at = until;
        self.attempt = 0;
        self.start_timer(until);
        Heard::Resend
    }

    /// Starts again with the oldest packet that is not acknowledged.
    fn go_back(&mut self) {
        self.next = self.una;
        self.current = self.queue.head();
        self.silent = 0;
        self.asked = None;
        self.measured = None;
        self.probing = false;
    }

    /// A timer that went off so long ago was not looked at: this machine was stopped, or its loop was. Tries count from now
    /// on, or the first one that is lost would be the last.
    fn note_absence(&mut self, now: Time) {
        let late = self.timer.map_or(0, |at| now.since(at));
        if self.timeout.is_some_and(|timeout| late >= timeout) {
            self.progress_at = now;
        }
    }

    /// Whether nothing was achieved for as long as all retries take, one of which there was at least: whoever was away for
    /// that long has not tried yet.
    fn is_given_up(&self, now: Time) -> bool {
        let has_tried = self.attempt > 0 || self.back_at.is_some() || self.retry_count == 0;
        let patience =
            self.timeout.map(|each| each.saturating_mul(u64::from(self.retry_count) + 1));
        has_tried && patience.is_some_and(|patience| now.since(self.progress_at) >= patience)
    }

    pub(crate) fn on_deadline(&mut self, port: Port, context: &mut Context<'_>) -> Heard {
        let now = context.now;
        if self.timer.is_none_or(|at| at > now) {
            return Heard::Progress;
        }
        self.note_absence(now);
        if self.is_given_up(now) {
            self.fail_first(Status::RetryExceeded, port, context);
            return Heard::Fatal;
        }
        context.counters.timeouts += 1;
        self.go_back();
        self.probing = true;
        self.attempt = self.attempt.saturating_add(1);
        self.start_timer(now);
        Heard::Resend
    }

    /// The oldest request has failed; the rest is for [`Self::flush`].
    fn fail_first(&mut self, status: Status, port: Port, context: &mut Context<'_>) {
        if let Some(request) = self.queue.pop() {
            context.fail(port, request.id, request.kind(), status);
        }
    }

    /// The request that is being sent has failed; those before it may have arrived, which nobody will
    /// learn now.
    pub(crate) fn fail_current(&mut self, port: Port, context: &mut Context<'_>) {
        while self.queue.head() != self.current {
            let Some(request) = self.queue.pop() else { return };
            context.fail(port, request.id, request.kind(), Status::Flushed);
        }
        self.fail_first(Status::LocalProtection, port, context);
    }

    /// All requests end here.
    pub(crate) fn flush(&mut self, port: Port, context: &mut Context<'_>) {
        while let Some(request) = self.queue.pop() {
            context.fail(port, request.id, request.kind(), Status::Flushed);
        }
        self.reset();
    }
}

/// Writes a packet without padding: its header, a payload that is copied from memory, the CRC, of which `crc` is
/// that of what comes before the payload. `None`: memory is not there.
#[inline]
fn emit_one(
    head: &[u8; BTH_BYTES],
    packet: &mut [u8],
    memory: &impl Memory,
    handle: Handle,
    offset: u64,
    crc: u32,
) -> Option<()> {
    let (to, rest) = packet.split_first_chunk_mut()?;
    let (payload, last) = rest.split_last_chunk_mut()?;
    *to = *head;
    let crc = match memory.read_summed(handle, offset, payload, !crc).ok()? {
        Some(register) => !register,
        None => icrc::go_on(memory, crc, payload),
    };
    *last = icrc::store(crc);
    Some(())
}
