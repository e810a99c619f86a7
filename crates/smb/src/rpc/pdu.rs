//! Protocol data units of connections (C706 12.6).

use crate::fscc::{Put, Reader};

/// Bytes of the common head.
pub(super) const HEAD: usize = 16;
/// Bytes of the head of a request or response.
pub(super) const CALL_HEAD: usize = 24;
/// This is the first fragment of a call.
pub(super) const FIRST: u8 = 0x01;
/// This is the last fragment of a call.
pub(super) const LAST: u8 = 0x02;
/// The request names an object.
const OBJECT: u8 = 0x80;

/// Kinds of units, as far as they go over connections.
pub(super) mod kind {
    pub(in crate::rpc) const REQUEST: u8 = 0;
    pub(in crate::rpc) const RESPONSE: u8 = 2;
    pub(in crate::rpc) const FAULT: u8 = 3;
    pub(in crate::rpc) const BIND: u8 = 11;
    pub(in crate::rpc) const BIND_ACK: u8 = 12;
    pub(in crate::rpc) const BIND_NAK: u8 = 13;
    pub(in crate::rpc) const ALTER_CONTEXT: u8 = 14;
    pub(in crate::rpc) const ALTER_CONTEXT_ANSWER: u8 = 15;
    pub(in crate::rpc) const AUTH3: u8 = 16;
    pub(in crate::rpc) const CANCEL: u8 = 18;
    pub(in crate::rpc) const ORPHANED: u8 = 19;
}

/// The common head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// Bytes of the whole unit.
    pub(super) len: u16,
    pub(super) auth_len: u16,
    pub(super) call: u32,
}

impl Head {
    /// Reads one; `None` for another version, another representation of numbers, or a length that cannot be.
    pub(super) fn parse(bytes: &[u8; HEAD]) -> Option<Self> {
        let mut fields = Reader::new(bytes);
        let [version, minor, kind, flags] = fields.array()?;
        let representation: [u8; 4] = fields.array()?;
        let head =
            Self { kind, flags, len: fields.u16()?, auth_len: fields.u16()?, call: fields.u32()? };
        // Little endian, ASCII.
        let readable = version == 5 && minor <= 1 && representation[0] == 0x10;
        (readable && usize::from(head.len) >= HEAD).then_some(head)
    }

    /// A unit of this kind with this body, which is short enough.
    pub(super) fn put(kind: u8, flags: u8, call: u32, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + body.len());
        out.put(&[5, 0, kind, flags, 0x10, 0, 0, 0]);
        out.u16(u16::try_from(HEAD + body.len()).unwrap_or(u16::MAX));
        out.u16(0);
        out.u32(call);
        out.put(body);
        out
    }
}

/// An interface or representation, and its version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Syntax {
    pub(super) uuid: [u8; 16],
    pub(super) version: u32,
}

impl Syntax {
    /// 4b324fc8-1670-01d3-1278-5a47bf6ee188, version 3.0.
    pub(super) const SRVSVC: Self = Self {
        uuid: *b"\xc8\x4f\x32\x4b\x70\x16\xd3\x01\x12\x78\x5a\x47\xbf\x6e\xe1\x88",
        version: 3,
    };
    /// 6bffd098-a112-3610-9833-46c3f87e345a, version 1.0.
    pub(super) const WKSSVC: Self = Self {
        uuid: *b"\x98\xd0\xff\x6b\x12\xa1\x10\x36\x98\x33\x46\xc3\xf8\x7e\x34\x5a",
        version: 1,
    };
    /// 12345778-1234-abcd-ef00-0123456789ab, version 0.0.
    pub(super) const LSARPC: Self = Self {
        uuid: *b"\x78\x57\x34\x12\x34\x12\xcd\xab\xef\x00\x01\x23\x45\x67\x89\xab",
        version: 0,
    };
    /// 8a885d04-1ceb-11c9-9fe8-08002b104860, version 2: NDR with 32 bits.
    pub(super) const NDR: Self = Self {
        uuid: *b"\x04\x5d\x88\x8a\xeb\x1c\xc9\x11\x9f\xe8\x08\x00\x2b\x10\x48\x60",
        version: 2,
    };
    /// Nothing.
    const NIL: Self = Self { uuid: [0; 16], version: 0 };
    /// First half of the number by which clients ask for features at bind time (MS-RPCE 2.2.2.14).
    const FEATURES: [u8; 8] = *b"\x2c\x1c\xb7\x6c\x12\x98\x40\x45";

    fn parse(fields: &mut Reader<'_>) -> Option<Self> {
        Some(Self { uuid: fields.array()?, version: fields.u32()? })
    }

    fn put(self, out: &mut Vec<u8>) {
        out.put(&self.uuid);
        out.u32(self.version);
    }

    fn asks_for_features(self) -> bool {
        self.uuid.starts_with(&Self::FEATURES)
    }
}

/// Contexts of a connection at most.
pub(super) const CONTEXTS_MAX: usize = 16;

/// BIND and ALTER_CONTEXT: which interfaces the client wants to call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bind {
    /// Longest unit that the client takes.
    pub(super) receive_max: u16,
    pub(super) group: u32,
    pub(super) contexts: Vec<Context>,
}

/// An interface that the client wants to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) id: u16,
    pub(super) interface: Syntax,
    /// Whether NDR in 32 bits was among the representations.
    has_ndr: bool,
    has_features: bool,
}

/// What is said about a context (C706 12.6.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Agreed.
    Accepted,
    /// Another interface than that of the pipe.
    NoSuchInterface,
    /// No representation that we know.
    NoSuchSyntax,
    /// More contexts than we keep.
    TooMany,
    /// No context but a question for features, of which we have none.
    NoFeatures,
}

impl Bind {
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        let mut fields = Reader::new(body);
        let _send_max = fields.u16()?;
        let (receive_max, group) = (fields.u16()?, fields.u32()?);
        let [count, ..]: [u8; 4] = fields.array()?;
        if usize::from(count) > CONTEXTS_MAX || count == 0 {
            return None;
        }
        let contexts = (0..count).map(|_| Context::parse(&mut fields)).collect::<Option<_>>()?;
        Some(Self { receive_max, group, contexts })
    }
}

impl Context {
    fn parse(fields: &mut Reader<'_>) -> Option<Self> {
        let id = fields.u16()?;
        let [count, _]: [u8; 2] = fields.array()?;
        let interface = Syntax::parse(fields)?;
        let mut context = Self { id, interface, has_ndr: false, has_features: false };
        for _ in 0..count {
            let syntax = Syntax::parse(fields)?;
            context.has_ndr |= syntax == Syntax::NDR;
            context.has_features |= syntax.asks_for_features();
        }
        Some(context)
    }

    /// What a pipe with this interface says about it.
    pub(super) fn verdict(&self, interface: Syntax) -> Verdict {
        if self.has_features {
            Verdict::NoFeatures
        } else if self.interface != interface {
            Verdict::NoSuchInterface
        } else if self.has_ndr {
            Verdict::Accepted
        } else {
            Verdict::NoSuchSyntax
        }
    }
}

/// The body of BIND_ACK or of the answer to ALTER_CONTEXT.
pub(super) fn bind_ack(len_max: u16, group: u32, address: &str, verdicts: &[Verdict]) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.u16(len_max);
    out.u16(len_max);
    out.u32(group);
    out.u16(u16::try_from(address.len() + 1).unwrap_or(u16::MAX));
    out.put(address.as_bytes());
    out.u8(0);
    let padded = out.len().next_multiple_of(4);
    out.resize(padded, 0);
    out.u32(u32::try_from(verdicts.len()).unwrap_or(0));
    for verdict in verdicts {
        let (result, reason, syntax) = match verdict {
            Verdict::Accepted => (0, 0, Syntax::NDR),
            Verdict::NoSuchInterface => (2, 1, Syntax::NIL),
            Verdict::NoSuchSyntax => (2, 2, Syntax::NIL),
            Verdict::TooMany => (2, 3, Syntax::NIL),
            // negotiate_ack with the features that both have.
            Verdict::NoFeatures => (3, 0, Syntax::NIL),
        };
        out.u16(result);
        out.u16(reason);
        syntax.put(&mut out);
    }
    out
}

/// The body of BIND_NAK.
pub(super) fn bind_nak(reason: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(8);
    out.u16(reason);
    // The one version that we speak.
    out.put(&[1, 5, 0]);
    out
}

/// One fragment of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub(super) context: u16,
    pub(super) number: u16,
    pub(super) arguments: &'a [u8],
}

impl<'a> Request<'a> {
    pub(super) fn parse(flags: u8, body: &'a [u8]) -> Option<Self> {
        let mut fields = Reader::new(body);
        fields.u32()?;
        let (context, number) = (fields.u16()?, fields.u16()?);
        if flags & OBJECT != 0 {
            fields.bytes(16)?;
        }
        Some(Self { context, number, arguments: fields.rest() })
    }
}

/// The body of a response: how much is still to come, which context, and the results.
pub(super) fn response(left: u32, context: u16, results: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + results.len());
    out.u32(left);
    out.u16(context);
    out.u16(0);
    out.put(results);
    out
}

/// The body of a fault.
pub(super) fn fault(context: u16, status: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(16);
    out.u32(32);
    out.u16(context);
    out.u16(0);
    out.u32(status);
    out.u32(0);
    out
}
