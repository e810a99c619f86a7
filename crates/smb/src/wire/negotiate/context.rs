//! Negotiate contexts (MS-SMB2 2.2.3.1, 2.2.4.1).

use bitflags::bitflags;

use crate::wire::BadMessage;
use crate::wire::bytes::{Fields, U16s, Writer, cut16};

/// Contexts that a message may have.
pub const CONTEXTS_MAX: usize = 64;

/// ContextType, DataLength, Reserved.
const HEAD_LEN: usize = 8;

/// SMB2_ACCEPT_TRANSPORT_LEVEL_SECURITY, in [`Context::Transport`].
pub const TRANSPORT_SECURITY: u32 = 1;

bitflags! {
    /// Flags of SMB2_COMPRESSION_CAPABILITIES. Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CompressionFlags: u32 {
        /// SMB2_COMPRESSION_CAPABILITIES_FLAG_CHAINED.
        const CHAINED = 1;
        const _ = !0;
    }
}

/// One negotiate context. Numbers of algorithms are those of MS-SMB2 2.2.3.1.*, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Context<'a> {
    /// SMB2_PREAUTH_INTEGRITY_CAPABILITIES.
    Preauth {
        /// Hashes; 1 is SHA-512.
        hashes: U16s<'a>,
        /// Anything that is not the same twice.
        salt: &'a [u8],
    },
    /// SMB2_ENCRYPTION_CAPABILITIES: 1 AES-128-CCM, 2 AES-128-GCM, 3 AES-256-CCM, 4 AES-256-GCM; in an answer one, or
    /// 0 for none.
    Encryption(U16s<'a>),
    /// SMB2_COMPRESSION_CAPABILITIES.
    Compression {
        /// Whether chained.
        flags: CompressionFlags,
        /// Algorithms; 0 is none.
        algorithms: U16s<'a>,
    },
    /// SMB2_NETNAME_NEGOTIATE_CONTEXT_ID: the server's name as the client knows it, UTF-16LE.
    Netname(&'a [u8]),
    /// SMB2_TRANSPORT_CAPABILITIES, see [`TRANSPORT_SECURITY`].
    Transport(u32),
    /// SMB2_RDMA_TRANSFORM_CAPABILITIES.
    Rdma(U16s<'a>),
    /// SMB2_SIGNING_CAPABILITIES: 0 HMAC-SHA256, 1 AES-CMAC, 2 AES-GMAC.
    Signing(U16s<'a>),
    /// SMB2_POSIX_EXTENSIONS_AVAILABLE: names of extensions, 16 bytes each.
    Posix(&'a [u8]),
    /// Another one.
    Unknown {
        /// ContextType.
        kind: u16,
        /// Its data.
        data: &'a [u8],
    },
}

const PREAUTH: u16 = 1;
const ENCRYPTION: u16 = 2;
const COMPRESSION: u16 = 3;
const NETNAME: u16 = 5;
const TRANSPORT: u16 = 6;
const RDMA: u16 = 7;
const SIGNING: u16 = 8;
const POSIX: u16 = 0x100;

/// What a message may have once (MS-SMB2 3.3.5.4).
const ONCE: [u16; 5] = [PREAUTH, ENCRYPTION, COMPRESSION, RDMA, SIGNING];

impl<'a> Context<'a> {
    /// ContextType.
    #[must_use]
    pub const fn kind(&self) -> u16 {
        match self {
            Self::Preauth { .. } => PREAUTH,
            Self::Encryption(_) => ENCRYPTION,
            Self::Compression { .. } => COMPRESSION,
            Self::Netname(_) => NETNAME,
            Self::Transport(_) => TRANSPORT,
            Self::Rdma(_) => RDMA,
            Self::Signing(_) => SIGNING,
            Self::Posix(_) => POSIX,
            Self::Unknown { kind, .. } => *kind,
        }
    }

    /// Reads one context's data.
    ///
    /// # Errors
    ///
    /// [`BadMessage::Truncated`] when it is shorter than it says, [`BadMessage::Value`] when a list that must not
    /// be empty is.
    pub fn parse(kind: u16, data: &'a [u8]) -> Result<Self, BadMessage> {
        Ok(match kind {
            PREAUTH => {
                let fields = Fields::at_least(data, 4)?;
                let (hashes, rest) = list(data, fields.len16(0), 4)?;
                let salt = rest.get(..fields.len16(2)).ok_or(BadMessage::Truncated)?;
                Self::Preauth { hashes, salt }
            }
            // Of all lists this one may be empty, as MS-SMB2 3.3.5.4 has no word on it: smb-rs sends it so when it is to
            // encrypt nothing.
            ENCRYPTION => {
                Self::Encryption(numbers(data, Fields::at_least(data, 2)?.len16(0), 2)?.0)
            }
            COMPRESSION => Self::Compression {
                flags: CompressionFlags::from_bits_retain(Fields::at_least(data, 8)?.u32(4)),
                algorithms: counted(data, 8)?,
            },
            NETNAME => Self::Netname(data),
            TRANSPORT => Self::Transport(Fields::at_least(data, 4)?.u32(0)),
            RDMA => Self::Rdma(counted(data, 8)?),
            SIGNING => Self::Signing(counted(data, 2)?),
            POSIX => Self::Posix(data),
            kind => Self::Unknown { kind, data },
        })
    }

    /// Reads `count` contexts that stand at the beginning of `bytes`.
    pub(super) fn parse_all(bytes: &'a [u8], count: usize) -> Result<Vec<Self>, BadMessage> {
        if count > CONTEXTS_MAX {
            return Err(BadMessage::TooMany);
        }
        let mut contexts: Vec<Self> = Vec::with_capacity(count);
        let mut at = 0_usize;
        for _ in 0..count {
            let rest = bytes.get(at.next_multiple_of(8)..).ok_or(BadMessage::Truncated)?;
            let head = Fields::at_least(rest, HEAD_LEN)?;
            let (kind, end) = (head.u16(0), HEAD_LEN + head.len16(2));
            let data = rest.get(HEAD_LEN..end).ok_or(BadMessage::Truncated)?;
            if ONCE.contains(&kind) && contexts.iter().any(|context| context.kind() == kind) {
                return Err(BadMessage::Duplicate);
            }
            contexts.push(Self::parse(kind, data)?);
            at = at.next_multiple_of(8) + end;
        }
        Ok(contexts)
    }

    /// Appends contexts behind each other. The first begins where `out` ends.
    pub(super) fn encode_all(contexts: &[Self], out: &mut Vec<u8>) {
        let base = out.len();
        for context in contexts {
            let mut to = Writer::new(out, base);
            let start = base + to.pad8().at();
            to.u16(context.kind()).u16(0).u32(0);
            context.encode(&mut to);
            let mut whole = Writer::new(out, start);
            let len = whole.at() - HEAD_LEN;
            whole.put16(2, len);
        }
    }

    fn encode(&self, to: &mut Writer<'_>) {
        match self {
            Self::Preauth { hashes, salt } => {
                let salt = cut16(salt);
                to.len16(hashes.len()).len16(salt.len()).bytes(hashes.as_bytes()).bytes(salt)
            }
            Self::Encryption(list) | Self::Signing(list) => {
                to.len16(list.len()).bytes(list.as_bytes())
            }
            Self::Compression { flags, algorithms } => {
                to.len16(algorithms.len()).u16(0).u32(flags.bits()).bytes(algorithms.as_bytes())
            }
            Self::Rdma(list) => to.len16(list.len()).zeros(6).bytes(list.as_bytes()),
            Self::Transport(flags) => to.u32(*flags),
            Self::Netname(data) | Self::Posix(data) | Self::Unknown { data, .. } => {
                to.bytes(cut16(data))
            }
        };
    }
}

/// `count` numbers at `at`, one at least, and what follows them.
fn list(data: &[u8], count: usize, at: usize) -> Result<(U16s<'_>, &[u8]), BadMessage> {
    if count == 0 { Err(BadMessage::Value) } else { numbers(data, count, at) }
}

/// `count` numbers at `at`, and what follows them.
fn numbers(data: &[u8], count: usize, at: usize) -> Result<(U16s<'_>, &[u8]), BadMessage> {
    let rest = data.get(at..).ok_or(BadMessage::Truncated)?;
    let (numbers, rest) = rest.split_at_checked(count * 2).ok_or(BadMessage::Truncated)?;
    Ok((U16s::new(numbers), rest))
}

/// Numbers at `at`, of which the data's first field says how many.
fn counted(data: &[u8], at: usize) -> Result<U16s<'_>, BadMessage> {
    list(data, Fields::at_least(data, at)?.len16(0), at).map(|(numbers, _)| numbers)
}
