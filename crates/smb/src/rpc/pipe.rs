//! A pipe that a client has open.

use std::collections::VecDeque;

use super::ndr::Fault;
use super::pdu::{
    self, Bind, CALL_HEAD, CONTEXTS_MAX, FIRST, HEAD, Head, LAST, Request, Syntax, Verdict, kind,
};
use super::{Host, lsarpc, srvsvc, wkssvc};
use crate::NtStatus;
use crate::fscc::len32;

/// Longest unit either way, bytes: what Windows has.
const UNIT_MAX: u16 = 4280;
/// Shortest unit that every client must take (C706 12.6.3.1).
const UNIT_MIN: u16 = 1432;
/// Longest request, all its fragments together, bytes.
const REQUEST_MAX: usize = 64 << 10;
/// Bytes that wait to be read before no more calls are answered: so many wait at most, and one answer, however long.
const WAITING_MAX: usize = 64 << 10;

/// Which pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PipeKind {
    /// `srvsvc`: the server service.
    Srvsvc,
    /// `wkssvc`: the workstation service.
    Wkssvc,
    /// `lsarpc`, and by its older name `lsass`: the local security authority.
    Lsarpc,
}

impl PipeKind {
    /// The pipe of this name on `IPC$`, with or without `\pipe\` before it.
    ///
    /// # Errors
    ///
    /// OBJECT_NAME_NOT_FOUND for one that we do not have.
    pub fn from_name(name: &str) -> Result<Self, NtStatus> {
        let name = name.trim_start_matches('\\').to_ascii_lowercase();
        match name.strip_prefix("pipe\\").unwrap_or(&name) {
            "srvsvc" => Ok(Self::Srvsvc),
            "wkssvc" => Ok(Self::Wkssvc),
            "lsarpc" | "lsass" => Ok(Self::Lsarpc),
            _ => Err(NtStatus::OBJECT_NAME_NOT_FOUND),
        }
    }

    const fn interface(self) -> Syntax {
        match self {
            Self::Srvsvc => Syntax::SRVSVC,
            Self::Wkssvc => Syntax::WKSSVC,
            Self::Lsarpc => Syntax::LSARPC,
        }
    }

    /// Whether its answers may take their time: they want [`Host::accounts`].
    #[must_use]
    pub const fn may_wait(self) -> bool {
        matches!(self, Self::Lsarpc)
    }

    /// What BIND_ACK says.
    const fn address(self) -> &'static str {
        match self {
            Self::Srvsvc => "\\PIPE\\srvsvc",
            Self::Wkssvc => "\\PIPE\\wkssvc",
            Self::Lsarpc => "\\PIPE\\lsarpc",
        }
    }
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The bytes, of one unit.
    pub bytes: Vec<u8>,
    /// The unit has more: the answer has the status BUFFER_OVERFLOW.
    pub more: bool,
}

impl Chunk {
    /// The status that goes with it.
    #[must_use]
    pub const fn status(&self) -> NtStatus {
        if self.more { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS }
    }
}

/// One open of a pipe.
#[derive(Clone, Debug)]
pub struct Pipe {
    kind: PipeKind,
    /// What was written and is no whole unit yet, or not taken while too much waits.
    incoming: Vec<u8>,
    /// The call whose fragments are coming.
    call: Option<Call>,
    /// Contexts that were agreed on; `None` before BIND.
    contexts: Option<Vec<u16>>,
    /// Longest unit that the client takes.
    unit_max: u16,
    /// Units that wait to be read.
    outgoing: VecDeque<Vec<u8>>,
    /// Bytes of the first of them that were read.
    read: usize,
    /// Bytes of all of them that were not.
    waiting: usize,
    /// The client broke the protocol.
    broken: bool,
}

#[derive(Clone, Debug)]
struct Call {
    id: u32,
    context: u16,
    number: u16,
    arguments: Vec<u8>,
}

impl Pipe {
    /// A new open of it.
    #[must_use]
    pub fn new(kind: PipeKind) -> Self {
        Self {
            kind,
            incoming: Vec::new(),
            call: None,
            contexts: None,
            unit_max: UNIT_MAX,
            outgoing: VecDeque::new(),
            read: 0,
            waiting: 0,
            broken: false,
        }
    }

    /// Takes what the client wrote, all of it, and makes the answers to whole calls, as many as may wait.
    ///
    /// # Errors
    ///
    /// PIPE_DISCONNECTED once the client broke the protocol; INSUFFICIENT_RESOURCES while it does not read
    /// what waits for it.
    pub fn write(&mut self, bytes: &[u8], host: &Host) -> Result<(), NtStatus> {
        if self.broken {
            return Err(NtStatus::PIPE_DISCONNECTED);
        }
        if self.waiting > WAITING_MAX || bytes.len() > REQUEST_MAX {
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        self.incoming.extend_from_slice(bytes);
        self.go_on(host);
        if self.broken { Err(NtStatus::PIPE_DISCONNECTED) } else { Ok(()) }
    }

    /// Takes whole units of what was written, until enough waits to be read.
    fn go_on(&mut self, host: &Host) {
        if self.waiting > WAITING_MAX {
            return;
        }
        let mut incoming = std::mem::take(&mut self.incoming);
        let mut rest = &incoming[..];
        while self.waiting <= WAITING_MAX
            && let Some(first) = rest.first_chunk::<HEAD>()
        {
            let Some(head) = Head::parse(first) else {
                self.broken = true;
                return;
            };
            let Some((unit, behind)) = rest.split_at_checked(head.len.into()) else { break };
            rest = behind;
            if self.take(head, &unit[HEAD..], host).is_none() {
                self.broken = true;
                return;
            }
        }
        let taken = incoming.len() - rest.len();
        incoming.drain(..taken);
        self.incoming = incoming;
    }

    /// Gives the client at most `max` bytes of what waits for it, of one unit. That makes room for further answers.
    ///
    /// # Errors
    ///
    /// PIPE_EMPTY if there is nothing: the client waits until something is; PIPE_DISCONNECTED once the client
    /// broke the protocol and has read what was left.
    pub fn read(&mut self, max: usize, host: &Host) -> Result<Chunk, NtStatus> {
        let Some(unit) = self.outgoing.front() else {
            return Err(if self.broken {
                NtStatus::PIPE_DISCONNECTED
            } else {
                NtStatus::PIPE_EMPTY
            });
        };
        let left = &unit[self.read..];
        let bytes = left[..left.len().min(max)].to_vec();
        let more = bytes.len() < left.len();
        self.read += bytes.len();
        self.waiting -= bytes.len();
        if !more {
            self.outgoing.pop_front();
            self.read = 0;
            self.go_on(host);
        }
        Ok(Chunk { bytes, more })
    }

    /// FSCTL_PIPE_TRANSCEIVE: [`Pipe::write`], then [`Pipe::read`].
    ///
    /// # Errors
    ///
    /// As both; PIPE_BUSY if something from before waits to be read (MS-FSCC 2.3.48).
    pub fn transceive(&mut self, bytes: &[u8], max: usize, host: &Host) -> Result<Chunk, NtStatus> {
        if !self.outgoing.is_empty() {
            return Err(NtStatus::PIPE_BUSY);
        }
        self.write(bytes, host)?;
        self.read(max, host)
    }

    /// Bytes that wait to be read, for FSCTL_PIPE_PEEK and FilePipeLocalInformation.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Units that wait to be read, the first of them perhaps in part.
    #[must_use]
    pub fn units(&self) -> usize {
        self.outgoing.len()
    }

    fn send(&mut self, kind: u8, flags: u8, call: u32, body: &[u8]) {
        let unit = Head::put(kind, flags, call, body);
        self.waiting += unit.len();
        self.outgoing.push_back(unit);
    }

    /// Takes a unit; `None` if that is the end of the connection.
    fn take(&mut self, head: Head, body: &[u8], host: &Host) -> Option<()> {
        match head.kind {
            kind::BIND if self.contexts.is_none() => self.bind(head, body),
            kind::ALTER_CONTEXT if self.contexts.is_some() => self.alter(head, body),
            kind::REQUEST if head.auth_len == 0 => self.request(head, body, host),
            // Nothing that we do takes long enough for these to matter.
            kind::CANCEL => Some(()),
            kind::ORPHANED => {
                self.call.take_if(|call| call.id == head.call);
                Some(())
            }
            // The third leg of an authentication that was refused.
            kind::AUTH3 => Some(()),
            _ => None,
        }
    }

    fn bind(&mut self, head: Head, body: &[u8]) -> Option<()> {
        const REASON_NOT_SPECIFIED: u16 = 0;
        const AUTHENTICATION_NOT_RECOGNIZED: u16 = 8;
        let bind = Bind::parse(body)?;
        let refused = if head.auth_len != 0 {
            // The session is authenticated; a second authentication within it is not known.
            Some(AUTHENTICATION_NOT_RECOGNIZED)
        } else {
            (bind.receive_max < UNIT_MIN).then_some(REASON_NOT_SPECIFIED)
        };
        if let Some(reason) = refused {
            self.send(kind::BIND_NAK, FIRST | LAST, head.call, &pdu::bind_nak(reason));
            return Some(());
        }
        self.unit_max = bind.receive_max.min(UNIT_MAX);
        self.contexts = Some(Vec::new());
        let verdicts = self.agree(&bind);
        let body = pdu::bind_ack(self.unit_max, group(&bind), self.kind.address(), &verdicts);
        self.send(kind::BIND_ACK, FIRST | LAST, head.call, &body);
        Some(())
    }

    fn alter(&mut self, head: Head, body: &[u8]) -> Option<()> {
        let bind = Bind::parse(body).filter(|_| head.auth_len == 0)?;
        let verdicts = self.agree(&bind);
        let body = pdu::bind_ack(self.unit_max, group(&bind), "", &verdicts);
        self.send(kind::ALTER_CONTEXT_ANSWER, FIRST | LAST, head.call, &body);
        Some(())
    }

    /// Notes the contexts that are agreed on.
    fn agree(&mut self, bind: &Bind) -> Vec<Verdict> {
        let contexts = self.contexts.get_or_insert_default();
        let verdicts = bind.contexts.iter().map(|context| {
            let verdict = context.verdict(self.kind.interface());
            if verdict != Verdict::Accepted || contexts.contains(&context.id) {
                return verdict;
            }
            if contexts.len() == CONTEXTS_MAX {
                return Verdict::TooMany;
            }
            contexts.push(context.id);
            verdict
        });
        verdicts.collect()
    }

    fn request(&mut self, head: Head, body: &[u8], host: &Host) -> Option<()> {
        let contexts = self.contexts.as_ref()?;
        let part = Request::parse(head.flags, body)?;
        if !contexts.contains(&part.context) {
            self.call = None;
            return self.fault(head.call, part.context, Fault::NoSuchInterface);
        }
        if head.flags & FIRST != 0 {
            // One call at a time: the next begins when all of this one is here.
            if self.call.is_some() {
                return None;
            }
            self.call = Some(Call {
                id: head.call,
                context: part.context,
                number: part.number,
                arguments: Vec::new(),
            });
        }
        let call = self.call.as_mut()?;
        let belongs = call.id == head.call
            && call.context == part.context
            && call.number == part.number
            && call.arguments.len() + part.arguments.len() <= REQUEST_MAX;
        if !belongs {
            return None;
        }
        call.arguments.extend_from_slice(part.arguments);
        if head.flags & LAST != 0 {
            let call = self.call.take()?;
            return self.answer(&call, host);
        }
        Some(())
    }

    fn answer(&mut self, call: &Call, host: &Host) -> Option<()> {
        let results = match self.kind {
            PipeKind::Srvsvc => srvsvc::call(call.number, &call.arguments, host),
            PipeKind::Wkssvc => wkssvc::call(call.number, &call.arguments, host),
            PipeKind::Lsarpc => lsarpc::call(call.number, &call.arguments, host),
        };
        let results = match results {
            Ok(results) => results,
            Err(fault) => return self.fault(call.id, call.context, fault),
        };
        // All fragments but the last have a length that keeps numbers at their places.
        let room = (usize::from(self.unit_max) - CALL_HEAD) / 8 * 8;
        let mut at = 0;
        loop {
            let part = &results[at..results.len().min(at + room)];
            let first = if at == 0 { FIRST } else { 0 };
            let last = if at + part.len() == results.len() { LAST } else { 0 };
            let body = pdu::response(len32(results.len() - at), call.context, part);
            self.send(kind::RESPONSE, first | last, call.id, &body);
            at += part.len();
            if last != 0 {
                return Some(());
            }
        }
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "ends the arms of those that may end a connection"
    )]
    fn fault(&mut self, call: u32, context: u16, fault: Fault) -> Option<()> {
        self.send(kind::FAULT, FIRST | LAST, call, &pdu::fault(context, fault as u32));
        Some(())
    }
}

/// The association group: the client's, or one for who asks for a new one. Nothing is shared within it.
fn group(bind: &Bind) -> u32 {
    const NEW: u32 = 0x53f0;
    if bind.group == 0 { NEW } else { bind.group }
}
