//! The half that receives: packets become bytes in memory, completions, and answers.

use super::message::{Pieces, Range, narrow};
use super::requester::WINDOW_MAX;
use super::{Context, Port};
use crate::memory::{Memory, ProtectionDomain, Purpose, Regions};
use crate::number::Psn;
use crate::reason::Reason;
use crate::ring::Ring;
use crate::wire::{Aeth, CREDITS_UNUSED, Header, Mtu, Nak, Opcode, Packet, Place, Syndrome};
use crate::work::{Completion, Kind, PostError, ReceiveRequest, Status};

/// A request to receive, as it waits.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    id: u64,
    pieces: Pieces,
    len: u32,
}

/// The message that is coming in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// None: the next packet begins one.
    Nothing,
    /// So many bytes of a SEND are in the oldest request.
    Send(u32),
    /// A WRITE, of which this is to come.
    Write { address: u64, rkey: u32, left: u32, len: u32 },
}

/// What is to be said to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Say {
    Nothing,
    Ack,
    Gap,
    NotReady,
    Refuse(Nak),
}

/// What came of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was taken; whether it ended a message.
    Taken(bool),
    /// It was not.
    Dropped(Reason),
    /// It was not, and the queue pair has to fail.
    Fatal(Reason),
}

/// The receiving half.
#[derive(Debug)]
pub(crate) struct Responder {
    queue: Ring<Request>,
    expected: Psn,
    /// Messages taken.
    msn: Psn,
    message: Message,
    say: Say,
    /// The peer was told to go back; this came last of what it sent too early.
    early: Option<Psn>,
    min_rnr_timer: u8,
}

impl Responder {
    pub(crate) fn new(depth: u16) -> Self {
        Self {
            queue: Ring::new(depth),
            expected: Psn::default(),
            msn: Psn::default(),
            message: Message::Nothing,
            say: Say::Nothing,
            early: None,
            min_rnr_timer: 0,
        }
    }

    pub(crate) fn start(&mut self, expected: Psn, min_rnr_timer: u8) {
        // Requests may be there since Init.
        self.expected = expected;
        self.msn = Psn::default();
        self.message = Message::Nothing;
        self.say = Say::Nothing;
        self.early = None;
        self.min_rnr_timer = min_rnr_timer & 31;
    }

    pub(crate) fn reset(&mut self) {
        self.queue.clear();
        self.start(Psn::default(), 0);
    }

    pub(crate) const fn len(&self) -> u32 {
        self.queue.len()
    }

    pub(crate) fn post(&mut self, request: &ReceiveRequest<'_>) -> Result<(), PostError> {
        let (len, pieces) = Pieces::new(request.pieces)?;
        let len = u32::try_from(len).map_err(|_| PostError::Length)?;
        let taken = self.queue.push(Request { id: request.id, pieces, len });
        taken.then_some(()).ok_or(PostError::Full)
    }

    /// All requests end here. An answer that waits is still sent.
    pub(crate) fn flush(&mut self, port: Port, context: &mut Context<'_>) {
        while let Some(request) = self.queue.pop() {
            context.fail(port, request.id, Kind::Receive, Status::Flushed);
        }
        self.message = Message::Nothing;
    }

    /// Whether a peer that sends what is expected may have sent this as well: it is no further off than a window.
    pub(crate) const fn is_near(&self, psn: Psn) -> bool {
        psn.after(self.expected).unsigned_abs() < WINDOW_MAX as u32
    }

    pub(crate) fn has_answer(&self) -> bool {
        self.say != Say::Nothing
    }

    /// Whether the answer that waits is that all is well.
    pub(crate) fn acknowledges(&self) -> bool {
        self.say == Say::Ack
    }

    /// The answer that waits: one for everything that came since the last.
    #[inline]
    pub(crate) fn take_answer(&mut self) -> Option<(Psn, Aeth)> {
        let (psn, syndrome) = match core::mem::replace(&mut self.say, Say::Nothing) {
            Say::Nothing => return None,
            Say::Ack => (self.expected.minus(1), Syndrome::Ack(CREDITS_UNUSED)),
            Say::Gap => (self.expected, Syndrome::Nak(Nak::Sequence)),
            Say::NotReady => (self.expected, Syndrome::Rnr(self.min_rnr_timer)),
            Say::Refuse(why) => (self.expected, Syndrome::Nak(why)),
        };
        Some((psn, Aeth { syndrome, msn: self.msn }))
    }

    #[inline]
    pub(crate) fn handle(
        &mut self,
        packet: &Packet<'_>,
        mtu: Mtu,
        domain: ProtectionDomain,
        port: Port,
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) -> Answer {
        let header = &packet.header;
        let distance = header.bth.psn.after(self.expected);
        if distance < 0 {
            // What was acknowledged is acknowledged again (IBTA vol. 1, 9.7.5.1.3); what was refused
            // stays refused.
            if self.say == Say::Nothing {
                self.say = Say::Ack;
            }
            return Answer::Dropped(Reason::Duplicate);
        }
        if distance > 0 {
            self.handle_early(header.bth.psn);
            return Answer::Dropped(Reason::OutOfOrder);
        }
        let placed = self
            .check(packet, mtu)
            .and_then(|place| self.take(packet, place, domain, port, memory, context));
        match placed {
            Ok(ends) => {
                self.advance(header.bth.ack_request, ends);
                Answer::Taken(ends)
            }
            Err(Refusal::NotReady) => {
                self.say = Say::NotReady;
                self.early = Some(header.bth.psn);
                Answer::Dropped(Reason::NotReady)
            }
            Err(Refusal::Fatal(why)) => {
                self.say = Say::Refuse(why);
                Answer::Fatal(match why {
                    Nak::RemoteAccess => Reason::Access,
                    Nak::RemoteOperational => Reason::Operational,
                    Nak::InvalidRequest | Nak::Sequence => Reason::InvalidRequest,
                })
            }
        }
    }

    /// Takes a packet in the middle of a WRITE, whose headers are as those of the one before, while its bytes are
    /// summed: `crc` is that of what comes before its payload. Its CRC; `None`: it is not the one that is expected
    /// there, or memory cannot do that.
    ///
    /// It counts only once [`Self::took_alike`] is told that the CRC is right. Until then what was written is
    /// where the same packet, sent again, writes: nobody reads there before the end of the message has come, as long
    /// as no other queue pair writes there.
    #[inline]
    pub(crate) fn take_alike(
        &mut self,
        psn: Psn,
        payload: &[u8],
        crc: u32,
        domain: ProtectionDomain,
        memory: &mut impl Memory,
        regions: &Regions,
    ) -> Option<u32> {
        let Message::Write { address, rkey, left, .. } = self.message else { return None };
        if psn != self.expected || narrow(payload.len()) >= left {
            return None;
        }
        let found = regions.find(domain, rkey, Purpose::RemoteWrite, address, left);
        let (handle, at) = found.ok()?;
        memory.write_summed(handle, at, payload, !crc).map(|register| !register)
    }

    /// The packet that [`Self::take_alike`] was given is whole.
    #[inline]
    pub(crate) fn took_alike(&mut self, len: usize, ack_request: bool) {
        if let Message::Write { address, left, .. } = &mut self.message {
            let len = narrow(len);
            *address = address.wrapping_add(len.into());
            *left = left.saturating_sub(len);
        }
        self.advance(ack_request, false);
    }

    /// A packet came before the one that is expected. The peer is told once, and again when numbers go
    /// back: then it has gone back, and what it was told to send was lost again.
    fn handle_early(&mut self, psn: Psn) {
        let told = self.early.replace(psn).is_some_and(|last| psn.after(last) >= 0);
        if !told {
            self.say = Say::Gap;
        }
    }

    #[inline]
    fn advance(&mut self, ack_request: bool, ends: bool) {
        self.expected = self.expected.plus(1);
        if ends {
            self.msn = self.msn.plus(1);
        }
        // The peer was not told yet of what is missing: it will be, with the number that now is. If it
        // was told, what came too early is on its way again.
        let still_missing = self.early.is_some_and(|early| early.after(self.expected) >= 0);
        match self.say {
            Say::Gap if still_missing => return,
            // Either is an acknowledgement of what came before as well.
            Say::Gap | Say::NotReady => self.say = Say::Ack,
            _ if ack_request => self.say = Say::Ack,
            _ => {}
        }
        self.early = None;
    }

    /// Whether the packet may come here in its message, and has the length that it must have there
    /// (IBTA vol. 1, 9.7.4.1.2 and 9.7.4.1.6).
    #[inline]
    fn check(&self, packet: &Packet<'_>, mtu: Mtu) -> Result<Place, Refusal> {
        let (place, follows) = match packet.header.bth.opcode {
            Opcode::Send(place, _) => (place, matches!(self.message, Message::Send(_))),
            Opcode::Write(place, _) => (place, matches!(self.message, Message::Write { .. })),
            _ => return Err(INVALID),
        };
        let fits = if place.begins() { self.message == Message::Nothing } else { follows };
        let (len, mtu) = (packet.payload.len(), mtu.bytes());
        let whole = match place {
            Place::First | Place::Middle => len == mtu,
            Place::Last => (1..=mtu).contains(&len),
            Place::Only => len <= mtu,
        };
        (fits && whole).then_some(place).ok_or(INVALID)
    }

    #[inline]
    fn take(
        &mut self,
        packet: &Packet<'_>,
        place: Place,
        domain: ProtectionDomain,
        port: Port,
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) -> Result<bool, Refusal> {
        if matches!(packet.header.bth.opcode, Opcode::Send(..)) {
            self.take_send(packet, place, domain, port, memory, context)?;
        } else {
            self.take_write(packet, place, domain, port, memory, context)?;
        }
        context.counters.bytes_in += packet.payload.len() as u64;
        Ok(place.ends())
    }

    fn take_send(
        &mut self,
        packet: &Packet<'_>,
        place: Place,
        domain: ProtectionDomain,
        port: Port,
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let request = *self.queue.first().ok_or(Refusal::NotReady)?;
        let at = match self.message {
            Message::Send(at) => at,
            _ => 0,
        };
        // A packet has at most 4096 bytes, a message no more than its request.
        let end = at.saturating_add(narrow(packet.payload.len()));
        let scattered = if end > request.len {
            Err((Status::LocalLength, Nak::InvalidRequest))
        } else {
            scatter(&request, at, packet.payload, domain, memory, context)
        };
        if let Err((status, why)) = scattered {
            self.queue.pop();
            context.fail(port, request.id, Kind::Receive, status);
            return Err(Refusal::Fatal(why));
        }
        self.message = Message::Send(end);
        if place.ends() {
            self.end(packet, end, Kind::Receive, port, context);
        }
        Ok(())
    }

    fn take_write(
        &mut self,
        packet: &Packet<'_>,
        place: Place,
        domain: ProtectionDomain,
        port: Port,
        memory: &mut impl Memory,
        context: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let header = &packet.header;
        let (address, rkey, left, whole) = match (header.reth, self.message) {
            (Some(reth), _) => (reth.address, reth.rkey, reth.len, reth.len),
            (None, Message::Write { address, rkey, left, len }) => (address, rkey, left, len),
            (None, _) => return Err(INVALID),
        };
        let len = narrow(packet.payload.len());
        // The length in the RETH is that of the message, no less and no more.
        let rest = left.checked_sub(len).ok_or(INVALID)?;
        if place.ends() != (rest == 0) {
            return Err(INVALID);
        }
        if header.immediate.is_some() && self.queue.is_empty() {
            return Err(Refusal::NotReady);
        }
        // A WRITE of nothing needs no key (IBTA vol. 1, 9.7.4.1.4). Any other is checked as a whole by
        // its first packet, and packet by packet, for a region may go while it comes.
        if left > 0 {
            let (handle, at) = context
                .regions
                .find(domain, rkey, Purpose::RemoteWrite, address, left)
                .map_err(|_| Refusal::Fatal(Nak::RemoteAccess))?;
            memory
                .write(handle, at, packet.payload)
                .map_err(|_| Refusal::Fatal(Nak::RemoteOperational))?;
        }
        if header.immediate.is_some() {
            self.end(packet, whole, Kind::ReceiveWrite, port, context);
        }
        self.message = if place.ends() {
            Message::Nothing
        } else {
            Message::Write {
                address: address.wrapping_add(len.into()),
                rkey,
                left: rest,
                len: whole,
            }
        };
        Ok(())
    }

    /// The oldest request is complete.
    fn end(
        &mut self,
        packet: &Packet<'_>,
        bytes: u32,
        kind: Kind,
        port: Port,
        context: &mut Context<'_>,
    ) {
        self.message = Message::Nothing;
        let Some(request) = self.queue.pop() else { return };
        let Header { bth, immediate, .. } = packet.header;
        let completion = Completion {
            id: request.id,
            qpn: port.qpn,
            kind,
            status: Status::Success,
            bytes,
            immediate,
            solicited: bth.solicited,
        };
        context.complete(port, completion);
    }
}

/// Why a packet that was expected is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    NotReady,
    Fatal(Nak),
}

const INVALID: Refusal = Refusal::Fatal(Nak::InvalidRequest);

/// Puts bytes into a request, `at` bytes behind its start.
fn scatter(
    request: &Request,
    at: u32,
    from: &[u8],
    domain: ProtectionDomain,
    memory: &mut impl Memory,
    context: &Context<'_>,
) -> Result<(), (Status, Nak)> {
    let protection = (Status::LocalProtection, Nak::RemoteOperational);
    let ranges =
        request.pieces.ranges(at, from.len(), domain, Purpose::LocalWrite, context.regions);
    for range in ranges {
        let Range { start, end, handle, offset } = range.map_err(|_| protection)?;
        let from = from.get(start..end).ok_or(protection)?;
        memory.write(handle, offset, from).map_err(|_| protection)?;
    }
    Ok(())
}
