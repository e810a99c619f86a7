//! One end of a reliable connection: its states, its two queues, its two halves.

mod attributes;
mod message;
pub(crate) mod requester;
pub(crate) mod responder;

pub use attributes::{ModifyError, QpConfig, RtrAttributes, RtsAttributes, State};

use crate::cq::{Cq, CqId};
use crate::icrc::{Addresses, Count, Flow, Identification, Seal};
use crate::memory::{Memory, ProtectionDomain, Regions};
use crate::number::{Psn, Qpn};
use crate::rate::{Dcqcn, NotificationPoint, ReactionPoint};
use crate::reason::{Counters, Reason};
use crate::time::Time;
use crate::wire::{Bth, Header, ICRC_BYTES, Mtu, Opcode, Packet, Syndrome, packet_len};
use crate::work::{Completion, Kind, PostError, ReceiveRequest, SendRequest, Status};
use requester::{Heard, NoPacket, Ready, Requester};
use responder::{Answer, Responder};

/// What the halves need of the device.
pub(crate) struct Context<'a> {
    pub(crate) now: Time,
    pub(crate) regions: &'a Regions,
    pub(crate) cqs: &'a mut [Cq],
    pub(crate) counters: &'a mut Counters,
}

/// Where completions of one queue go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) qpn: Qpn,
    pub(crate) cq: CqId,
}

impl Context<'_> {
    /// A queue that has no room remembers it; the device looks there.
    pub(crate) fn complete(&mut self, port: Port, completion: Completion) {
        if let Some(cq) = self.cqs.get_mut(port.cq.index()) {
            _ = cq.push(self.now, completion);
        }
    }

    pub(crate) fn fail(&mut self, port: Port, id: u64, kind: Kind, status: Status) {
        let qpn = port.qpn;
        let bytes = 0;
        let completion =
            Completion { id, qpn, kind, status, bytes, immediate: None, solicited: false };
        self.complete(port, completion);
    }
}

/// Bytes of an acknowledgement, BTH to ICRC: nothing that carries anything is as short.
const ANSWER_LEN: usize = packet_len(Opcode::Acknowledge, 0);
/// Runs of packets that an acknowledgement lets go first: what a burst of small messages takes, and far from a window.
const PASSING_MAX: u8 = 4;

/// The path of a queue pair that receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) flow: Flow,
    pub(crate) traffic_class: u8,
    pub(crate) peer: Qpn,
    pkey: u16,
    pub(crate) mtu: Mtu,
    identification_end: Option<u16>,
}

/// What a packet did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Part of a message.
    Payload,
    /// The end of a message.
    Message,
    /// An acknowledgement of something new.
    Acknowledged,
    /// A negative acknowledgement: something is sent again.
    Resend,
    /// The peer refused, or the retries are over: the queue pair has failed.
    Failed,
    /// Congestion: the rate was cut.
    Notified,
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) qpn: Qpn,
    pub(crate) state: State,
    domain: ProtectionDomain,
    pub(crate) send: Port,
    pub(crate) receive: Port,
    path: Option<Path>,
    requester: Requester,
    responder: Responder,
    congestion: Option<Congestion>,
    /// A notification is to be sent, of this packet, which came with a mark.
    notify: Option<Psn>,
    /// Runs of packets that have gone before an acknowledgement that waits.
    passed_by: u8,
    /// How the peer's packets are numbered for IP.
    pub(crate) count: Count,
    /// No packet is written before its CRC is known: another queue pair has written where this one did, as a peer
    /// does that sends again over another link what it did not get through here (RFC 7609, section 4.6). Somebody
    /// may read there before messages of this one end.
    pub(crate) checks_first: bool,
}

#[derive(Clone, Debug)]
struct Congestion {
    settings: Dcqcn,
    reaction: ReactionPoint,
    notification: NotificationPoint,
    /// The first packet that is sent after the last cut.
    cut_before: Option<Psn>,
}

/// What a queue pair could do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Send.
    Send,
    /// Nothing before this time.
    Wait(Time),
    /// Nothing until something happens.
    Nothing,
}

impl QueuePair {
    pub(crate) fn new(qpn: Qpn, config: &QpConfig, send_cq: CqId, receive_cq: CqId) -> Self {
        let inline_max = config.inline_max.min(1024);
        Self {
            qpn,
            state: State::Reset,
            domain: config.domain,
            send: Port { qpn, cq: send_cq },
            receive: Port { qpn, cq: receive_cq },
            path: None,
            requester: Requester::new(config.send_depth.clamp(1, 1 << 15), inline_max),
            responder: Responder::new(config.receive_depth.clamp(1, 1 << 15)),
            congestion: None,
            notify: None,
            passed_by: 0,
            count: Count::default(),
            checks_first: false,
        }
    }

    pub(crate) fn init(&mut self) -> Result<(), ModifyError> {
        self.leave(State::Reset)?;
        self.state = State::Init;
        Ok(())
    }

    pub(crate) fn ready_to_receive(
        &mut self,
        attributes: &RtrAttributes,
    ) -> Result<(), ModifyError> {
        self.leave(State::Init)?;
        self.path = Some(Path {
            flow: Flow { addresses: attributes.addresses, src_port: attributes.src_port },
            traffic_class: attributes.traffic_class,
            peer: attributes.peer,
            pkey: attributes.pkey,
            mtu: attributes.mtu,
            identification_end: attributes.identification_end,
        });
        self.congestion = attributes.congestion.map(|settings| Congestion {
            settings: settings.sane(),
            reaction: ReactionPoint::new(settings),
            notification: NotificationPoint::default(),
            cut_before: None,
        });
        self.responder.start(attributes.receive_psn, attributes.min_rnr_timer);
        self.state = State::ReadyToReceive;
        Ok(())
    }

    pub(crate) fn ready_to_send(&mut self, attributes: &RtsAttributes) -> Result<(), ModifyError> {
        self.leave(State::ReadyToReceive)?;
        let mtu = self.path.map_or(Mtu::B1024, |path| path.mtu);
        self.requester.start(attributes, mtu);
        self.state = State::ReadyToSend;
        Ok(())
    }

    const fn leave(&self, state: State) -> Result<(), ModifyError> {
        if self.state as u8 == state as u8 { Ok(()) } else { Err(ModifyError::State(self.state)) }
    }

    /// Forgets everything; requests vanish without completion (IBTA vol. 1, 10.3.1.1).
    pub(crate) fn reset(&mut self) {
        self.state = State::Reset;
        self.path = None;
        self.congestion = None;
        self.notify = None;
        self.checks_first = false;
        self.requester.reset();
        self.responder.reset();
    }

    /// Completes all requests as flushed.
    pub(crate) fn fail(&mut self, context: &mut Context<'_>) {
        if matches!(self.state, State::Error | State::Reset) {
            return;
        }
        self.state = State::Error;
        self.notify = None;
        context.counters.failed += 1;
        self.requester.flush(self.send, context);
        self.responder.flush(self.receive, context);
    }

    pub(crate) fn post_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        if self.state != State::ReadyToSend {
            return Err(PostError::State);
        }
        self.requester.post(request)
    }

    pub(crate) fn post_receive(&mut self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        if matches!(self.state, State::Reset | State::Error) {
            return Err(PostError::State);
        }
        self.responder.post(request)
    }

    /// Whether a packet of this header may be for us, before its CRC is checked.
    #[inline]
    pub(crate) fn admits(&self, header: &Header, addresses: &Addresses) -> Result<&Path, Reason> {
        if !matches!(self.state, State::ReadyToReceive | State::ReadyToSend) {
            return Err(Reason::State);
        }
        let path = self.path.as_ref().ok_or(Reason::State)?;
        if path.flow.addresses.reversed() != *addresses {
            return Err(Reason::Address);
        }
        let (mine, theirs) = (path.pkey, header.bth.pkey);
        // One of two members of a partition must be a full one (IBTA vol. 1, 10.9.3).
        if (mine ^ theirs) & 0x7fff != 0 || theirs & 0x7fff == 0 || (mine | theirs) & 0x8000 == 0 {
            return Err(Reason::Partition);
        }
        Ok(path)
    }

    pub(crate) fn receive(
        &mut self,
        packet: &Packet<'_>,
        marked: bool,
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) -> Result<Outcome, Reason> {
        match packet.header.bth.opcode {
            Opcode::Cnp => self.handle_notification(packet.header.bth.psn, context),
            Opcode::Acknowledge => self.handle_ack(&packet.header, context),
            Opcode::Send(..) | Opcode::Write(..) => {
                let psn = packet.header.bth.psn;
                if marked && self.responder.is_near(psn) {
                    self.handle_mark(psn, context);
                }
                self.handle_request(packet, memory, context)
            }
        }
    }

    fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) -> Result<Outcome, Reason> {
        let mtu = self.path.map_or(Mtu::B256, |path| path.mtu);
        let answer = self.responder.handle(packet, mtu, self.domain, self.receive, memory, context);
        match answer {
            Answer::Taken(ends) => Ok(if ends { Outcome::Message } else { Outcome::Payload }),
            Answer::Dropped(reason) => Err(reason),
            Answer::Fatal(reason) => {
                self.fail(context);
                Err(reason)
            }
        }
    }

    fn handle_ack(
        &mut self,
        header: &Header,
        context: &mut Context<'_>,
    ) -> Result<Outcome, Reason> {
        let aeth = header.aeth.ok_or(Reason::Malformed)?;
        if self.state != State::ReadyToSend {
            return Err(Reason::BadAck);
        }
        let heard = self.requester.handle_ack(header.bth.psn, aeth.syndrome, self.send, context)?;
        self.note_round_trip(context.now, heard);
        match heard {
            Heard::Progress => Ok(Outcome::Acknowledged),
            Heard::Resend => Ok(Outcome::Resend),
            Heard::Fatal => {
                self.fail(context);
                Ok(Outcome::Failed)
            }
        }
    }

    /// What was sent since the rate was cut has arrived, or something is lost, which is no better: where a queue runs
    /// over, to wait for what was sent after the cut would double what is lost.
    fn note_round_trip(&mut self, now: Time, heard: Heard) {
        let Some(congestion) = &mut self.congestion else { return };
        let felt = |psn: &mut Psn| heard == Heard::Resend || self.requester.has_arrived(*psn);
        if congestion.cut_before.take_if(felt).is_some() {
            congestion.reaction.on_round_trip(now);
        }
    }

    /// `psn`: the packet that came with a mark.
    fn handle_notification(
        &mut self,
        psn: Psn,
        context: &mut Context<'_>,
    ) -> Result<Outcome, Reason> {
        let congestion = self.congestion.as_mut().ok_or(Reason::Notification)?;
        if !self.requester.was_sent_lately(psn) {
            return Err(Reason::Notification);
        }
        congestion.reaction.set_round_trip(self.requester.last_rtt_nanos());
        if !congestion.reaction.on_notification(context.now, self.requester.window_bytes()) {
            return Err(Reason::Notification);
        }
        congestion.cut_before = Some(self.requester.first_unsent());
        context.counters.cnp_in += 1;
        Ok(Outcome::Notified)
    }

    fn handle_mark(&mut self, psn: Psn, context: &mut Context<'_>) {
        context.counters.marks_in += 1;
        if let Some(congestion) = &mut self.congestion
            && congestion.notification.on_mark(context.now, &congestion.settings)
        {
            self.notify = Some(psn);
        }
    }

    /// What it could do.
    #[inline]
    pub(crate) fn wish(&mut self, now: Time) -> Wish {
        if self.path.is_none() {
            return Wish::Nothing;
        }
        if self.notify.is_some() || self.responder.has_answer() {
            return Wish::Send;
        }
        if self.state != State::ReadyToSend {
            return Wish::Nothing;
        }
        let timer = self.requester.deadline();
        let ready = match self.requester.ready(now) {
            Ready::Packet => match self.pace(now) {
                None => return Wish::Send,
                Some(at) => Some(at),
            },
            Ready::At(at) => Some(at),
            Ready::Nothing => None,
        };
        match (timer, ready) {
            (Some(a), Some(b)) => Wish::Wait(a.min(b)),
            (Some(at), None) | (None, Some(at)) => Wish::Wait(at),
            (None, None) => Wish::Nothing,
        }
    }

    fn pace(&mut self, now: Time) -> Option<Time> {
        let congestion = self.congestion.as_mut().filter(|it| it.reaction.is_limited())?;
        congestion.reaction.set_round_trip(self.requester.last_rtt_nanos());
        congestion.reaction.wait_until(now)
    }

    /// Time has passed. The retransmission timer may be over, or the peer given up.
    pub(crate) fn on_deadline(&mut self, context: &mut Context<'_>) {
        if self.state != State::ReadyToSend {
            return;
        }
        let heard = self.requester.on_deadline(self.send, context);
        self.note_round_trip(context.now, heard);
        if heard == Heard::Fatal {
            self.fail(context);
        }
    }

    /// Bytes of the next packet, BTH to ICRC; `None`: there is none now.
    #[inline]
    pub(crate) fn next_len(&mut self, now: Time) -> Option<usize> {
        if self.wish(now) != Wish::Send {
            return None;
        }
        if self.notify.is_some() {
            return Some(packet_len(Opcode::Cnp, 0));
        }
        if self.answers_first(now) { Some(ANSWER_LEN) } else { self.requester.next_len() }
    }

    /// Whether an answer is the next packet. An acknowledgement can be the last of a run, being shorter than what else
    /// there is, and then it is no datagram of its own to the system; so it lets some runs go first.
    fn answers_first(&mut self, now: Time) -> bool {
        self.responder.has_answer()
            && !(self.responder.acknowledges()
                && self.passed_by < PASSING_MAX
                && self.state == State::ReadyToSend
                && self.requester.ready(now) == Ready::Packet
                && self.pace(now).is_none())
    }

    /// Whether an acknowledgement waits that may be the last packet of a run of packets of so many bytes.
    pub(crate) fn may_answer_last(&self, segment_len: usize) -> bool {
        self.notify.is_none() && self.responder.acknowledges() && segment_len >= ANSWER_LEN
    }

    /// A run of packets has ended.
    pub(crate) fn ends_run(&mut self) {
        self.requester.ends_run();
        let waits = self.responder.has_answer();
        self.passed_by = if waits { self.passed_by.saturating_add(1) } else { 0 };
    }

    /// An answer that waits is the next packet.
    pub(crate) fn answer_first(&mut self) {
        self.passed_by = PASSING_MAX;
    }

    /// Writes the answer that waits, if there is one, BTH to ICRC. How many bytes.
    pub(crate) fn emit_answer(
        &mut self,
        seal: &mut Seal<'_>,
        to: &mut [u8],
        context: &mut Context<'_>,
    ) -> Option<usize> {
        let path = self.path?;
        let to = to.get_mut(..ANSWER_LEN)?;
        let (psn, aeth) = self.responder.take_answer()?;
        self.passed_by = 0;
        match aeth.syndrome {
            Syndrome::Ack(_) => context.counters.acks_out += 1,
            Syndrome::Rnr(_) => context.counters.rnr_out += 1,
            Syndrome::Nak(_) => context.counters.naks_out += 1,
        }
        let mut bth = Bth::new(Opcode::Acknowledge, path.peer, psn);
        bth.pkey = path.pkey;
        let len = Header { aeth: Some(aeth), ..Header::new(bth) }.emit(0, to).ok()?;
        seal.close(to, len)
    }

    /// Writes the next packet, BTH to ICRC. How many bytes; `None`: there is none, or memory was not
    /// there and the queue pair has failed.
    pub(crate) fn emit(
        &mut self,
        memory: &impl Memory,
        seal: &mut Seal<'_>,
        to: &mut [u8],
        context: &mut Context<'_>,
    ) -> Option<usize> {
        let path = self.path?;
        if let Some(psn) = self.notify.take() {
            context.counters.cnp_out += 1;
            let mut bth = Bth::new(Opcode::Cnp, path.peer, psn);
            (bth.becn, bth.pkey) = (true, path.pkey);
            let len = Header::new(bth).emit(0, to).ok()?;
            return seal.close(to, len);
        }
        if self.answers_first(context.now) {
            return self.emit_answer(seal, to, context);
        }
        if self.state != State::ReadyToSend {
            return None;
        }
        let mut bth = Bth::new(Opcode::Acknowledge, path.peer, Psn::default());
        bth.pkey = path.pkey;
        let is_paced = self.congestion.as_ref().is_some_and(|c| c.reaction.is_limited());
        self.requester.measure_always(is_paced);
        match self.requester.emit(bth, self.domain, memory, seal, to, context) {
            Ok(len) => {
                if let Some(congestion) = &mut self.congestion {
                    congestion.reaction.on_sent(context.now, len - ICRC_BYTES);
                    if congestion.reaction.is_limited() {
                        self.requester.hold_until(congestion.reaction.next_at(), context.now);
                    }
                }
                Some(len)
            }
            Err(NoPacket::Nothing) => None,
            Err(NoPacket::Protection) => {
                self.requester.fail_current(self.send, context);
                self.fail(context);
                None
            }
        }
    }

    /// Writes packets of `each` bytes, one behind the other, that follow the one that [`Self::emit`] has written and
    /// are as it was but for their numbers and their payload. How many; none: [`Self::emit`] decides.
    #[inline]
    pub(crate) fn emit_alike(
        &mut self,
        memory: &impl Memory,
        seal: &mut Seal<'_>,
        room: (&mut [u8], usize),
        context: &mut Context<'_>,
    ) -> usize {
        let has_other = self.notify.is_some() || self.answers_first(context.now);
        let is_paced = self.congestion.as_ref().is_some_and(|c| c.reaction.is_limited());
        let Some(path) = self.path.as_ref() else { return 0 };
        if has_other || is_paced || self.state != State::ReadyToSend {
            return 0;
        }
        let mut bth = Bth::new(Opcode::Acknowledge, path.peer, Psn::default());
        bth.pkey = path.pkey;
        self.requester.emit_alike(bth, self.domain, memory, seal, room, context)
    }

    /// Takes a packet whose headers are, but for its number `psn`, those of the one before, which was in the middle
    /// of a WRITE and without a congestion mark; `crc` is that of what comes before its payload. Its CRC; `None`:
    /// [`Self::receive`] decides.
    #[inline]
    pub(crate) fn take_alike(
        &mut self,
        psn: Psn,
        payload: &[u8],
        crc: u32,
        memory: &mut impl Memory,
        regions: &Regions,
    ) -> Option<u32> {
        if self.checks_first {
            return None;
        }
        self.responder.take_alike(psn, payload, crc, self.domain, memory, regions)
    }

    /// That was its CRC indeed, with this identification.
    #[inline]
    pub(crate) fn took_alike(&mut self, len: usize, ack_request: bool, identification: u16) {
        self.count.came(identification);
        self.responder.took_alike(len, ack_request);
    }

    pub(crate) const fn path(&self) -> Option<&Path> {
        self.path.as_ref()
    }

    pub(crate) const fn cares_for_congestion(&self) -> bool {
        self.congestion.is_some()
    }

    /// What an outsider may see.
    pub(crate) fn view(&self) -> View {
        let (packets_out, retransmitted) = self.requester.sent_counts();
        View {
            state: self.state,
            peer: self.path.map(|path| path.peer),
            addresses: self.path.map(|path| path.flow.addresses),
            sends: self.requester.len(),
            receives: self.responder.len(),
            in_flight: self.requester.in_flight(),
            packets_out,
            retransmitted,
            rtt_nanos: self.requester.rtt_nanos(),
            rate_bits: self.congestion.as_ref().map(|congestion| congestion.reaction.rate_bits()),
        }
    }
}

impl Path {
    /// What is known of the identification of a packet of the peer's.
    pub(crate) fn identification(&self, seen: Option<u16>) -> Identification {
        match (seen, self.identification_end) {
            (Some(identification), _) => Identification::Known(identification),
            (None, Some(end)) => Identification::Below(end),
            (None, None) => Identification::Unknown,
        }
    }
}

/// A queue pair as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Where it is in its life.
    pub state: State,
    /// The peer's queue pair, once there is one.
    pub peer: Option<Qpn>,
    /// From us to the peer.
    pub addresses: Option<Addresses>,
    /// Requests to send that are incomplete.
    pub sends: u32,
    /// Requests to receive that wait.
    pub receives: u32,
    /// Packets that were sent and not acknowledged.
    pub in_flight: u32,
    /// Packets of requests that were sent since it was made.
    pub packets_out: u64,
    /// Of those, the ones that had been sent before.
    pub retransmitted: u64,
    /// The round trip, smoothed, once it was measured.
    pub rtt_nanos: Option<u64>,
    /// The rate, bits per second, where congestion control is on.
    pub rate_bits: Option<u64>,
}
