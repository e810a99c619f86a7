//! The header of every SMB2 message (MS-SMB2 2.2.1).

use bitflags::bitflags;

use super::BadMessage;
use super::bytes::{Fields, Writer};
use crate::{MessageId, NtStatus, SessionId, TreeId};

/// Bytes of a header.
pub const HEADER_LEN: usize = 64;

/// What an SMB2 message begins with.
pub const PROTOCOL_ID: [u8; 4] = *b"\xfeSMB";

const CREDITS_AT: usize = 14;
const STATUS_AT: usize = 8;
const FLAGS_AT: usize = 16;
const NEXT_AT: usize = 20;
/// Where the signature stands, bytes from the header's beginning.
pub const SIGNATURE_AT: usize = 48;

/// What a message asks for, or answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Command {
    /// Which dialect?
    #[default]
    Negotiate,
    /// Who is it?
    SessionSetup,
    /// End of a session.
    Logoff,
    /// A share.
    TreeConnect,
    /// No longer that share.
    TreeDisconnect,
    /// Open or create a file.
    Create,
    /// Close it.
    Close,
    /// What was written, to the disk.
    Flush,
    /// Data of a file.
    Read,
    /// Data into a file.
    Write,
    /// Byte ranges.
    Lock,
    /// Control codes.
    Ioctl,
    /// Forget about an earlier request. Has no answer.
    Cancel,
    /// Are you there?
    Echo,
    /// Names in a directory.
    QueryDirectory,
    /// Tell me when a directory changes.
    ChangeNotify,
    /// Attributes, security, file systems.
    QueryInfo,
    /// The same, changed; renames and deletes.
    SetInfo,
    /// Oplock and lease breaks, and what is said back.
    OplockBreak,
    /// A number that names no command.
    Unknown(u16),
}

impl Command {
    const ALL: [Self; 19] = [
        Self::Negotiate,
        Self::SessionSetup,
        Self::Logoff,
        Self::TreeConnect,
        Self::TreeDisconnect,
        Self::Create,
        Self::Close,
        Self::Flush,
        Self::Read,
        Self::Write,
        Self::Lock,
        Self::Ioctl,
        Self::Cancel,
        Self::Echo,
        Self::QueryDirectory,
        Self::ChangeNotify,
        Self::QueryInfo,
        Self::SetInfo,
        Self::OplockBreak,
    ];

    /// From the number on the wire.
    #[must_use]
    pub fn from_wire(number: u16) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Unknown(number))
    }

    /// The number on the wire, 0 to 18 for those that have a name.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        match self {
            Self::Negotiate => 0,
            Self::SessionSetup => 1,
            Self::Logoff => 2,
            Self::TreeConnect => 3,
            Self::TreeDisconnect => 4,
            Self::Create => 5,
            Self::Close => 6,
            Self::Flush => 7,
            Self::Read => 8,
            Self::Write => 9,
            Self::Lock => 10,
            Self::Ioctl => 11,
            Self::Cancel => 12,
            Self::Echo => 13,
            Self::QueryDirectory => 14,
            Self::ChangeNotify => 15,
            Self::QueryInfo => 16,
            Self::SetInfo => 17,
            Self::OplockBreak => 18,
            Self::Unknown(number) => number,
        }
    }
}

bitflags! {
    /// Flags of a header (MS-SMB2 2.2.1.2). Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u32 {
        /// SERVER_TO_REDIR: an answer.
        const RESPONSE = 0x0000_0001;
        /// ASYNC_COMMAND: the header has an AsyncId.
        const ASYNC = 0x0000_0002;
        /// RELATED_OPERATIONS: uses session, tree and file of the request before it.
        const RELATED = 0x0000_0004;
        /// SIGNED.
        const SIGNED = 0x0000_0008;
        /// PRIORITY_MASK, 3.1.1: three bits of priority.
        const PRIORITY = 0x0000_0070;
        /// DFS_OPERATIONS: the name is one of DFS.
        const DFS = 0x1000_0000;
        /// REPLAY_OPERATION, 3.x: was perhaps sent before.
        const REPLAY = 0x2000_0000;
        const _ = !0;
    }
}

/// Whom a message is for: the share, or, once an interim answer was sent, the AsyncId it gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// SMB2 Packet Header - SYNC (MS-SMB2 2.2.1.2).
    Sync {
        /// The client's process, or 0xfeff; no meaning, sent back as it came.
        process: u32,
        /// The share.
        tree: TreeId,
    },
    /// SMB2 Packet Header - ASYNC (MS-SMB2 2.2.1.1): the AsyncId.
    Async(u64),
}

impl Default for Target {
    fn default() -> Self {
        Self::Sync { process: 0, tree: TreeId(0) }
    }
}

/// A header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Header {
    /// Credits that the request uses up. 2.1 and later; 0 counts as 1.
    pub credit_charge: u16,
    /// In answers, the status. In requests of 3.x, the low 16 bits are the ChannelSequence.
    pub status: NtStatus,
    /// What is asked for or answered.
    pub command: Command,
    /// Credits: asked for (requests) or granted (answers).
    pub credits: u16,
    /// [`Flags::ASYNC`] says which [`Target`] this has; `encode` sets it accordingly.
    pub flags: Flags,
    /// Where the next message of a compound begins, bytes from this header; 0: this is the last.
    pub next: u32,
    /// Which request this is, or answers.
    pub message_id: MessageId,
    /// The share, or the AsyncId.
    pub target: Target,
    /// The session, 0 before there is one.
    pub session: SessionId,
    /// The signature, zero when [`Flags::SIGNED`] is not set.
    pub signature: [u8; 16],
}

impl Header {
    /// A request for `command` with a charge of 1; everything else zero.
    #[must_use]
    pub fn request(command: Command) -> Self {
        Self { command, credit_charge: 1, ..Self::default() }
    }

    /// The header of an answer to this: same command, message, share, session and credit charge; no
    /// credits, no signature. Of the flags, RELATED, PRIORITY and REPLAY stay as they came.
    #[must_use]
    pub fn answer(&self, status: NtStatus) -> Self {
        let kept = Flags::RELATED | Flags::PRIORITY | Flags::REPLAY;
        Self {
            status,
            flags: self.flags.intersection(kept) | Flags::RESPONSE,
            target: match self.target {
                Target::Async(_) => Target::default(),
                sync @ Target::Sync { .. } => sync,
            },
            credits: 0,
            next: 0,
            signature: [0; 16],
            ..*self
        }
    }

    /// Reads the header at the beginning of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage::Truncated`] below 64 bytes, [`BadMessage::Protocol`] when it does not begin with
    /// [`PROTOCOL_ID`], [`BadMessage::StructureSize`] when that is not 64.
    #[inline]
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        let fields = Fields::at_least(message, HEADER_LEN)?;
        if fields.chunk(0) != PROTOCOL_ID {
            return Err(BadMessage::Protocol);
        }
        if fields.len16(4) != HEADER_LEN {
            return Err(BadMessage::StructureSize);
        }
        let flags = Flags::from_bits_retain(fields.u32(FLAGS_AT));
        let target = if flags.contains(Flags::ASYNC) {
            Target::Async(fields.u64(32))
        } else {
            Target::Sync { process: fields.u32(32), tree: TreeId(fields.u32(36)) }
        };
        Ok(Self {
            credit_charge: fields.u16(6),
            status: NtStatus(fields.u32(STATUS_AT)),
            command: Command::from_wire(fields.u16(12)),
            credits: fields.u16(CREDITS_AT),
            flags,
            next: fields.u32(NEXT_AT),
            message_id: MessageId(fields.u64(24)),
            target,
            session: SessionId(fields.u64(40)),
            signature: fields.chunk(SIGNATURE_AT),
        })
    }

    /// Appends the header's 64 bytes to `out` and returns where they begin.
    pub fn encode(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        out.extend_from_slice(&self.to_bytes());
        start
    }

    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let (flags, target) = match self.target {
            Target::Async(id) => (self.flags | Flags::ASYNC, id.to_le_bytes()),
            Target::Sync { process, tree } => {
                let both = u64::from(tree.0) << 32 | u64::from(process);
                (self.flags - Flags::ASYNC, both.to_le_bytes())
            }
        };
        bytes[..4].copy_from_slice(&PROTOCOL_ID);
        bytes[4] = 64;
        bytes[6..8].copy_from_slice(&self.credit_charge.to_le_bytes());
        bytes[STATUS_AT..12].copy_from_slice(&self.status.0.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.command.to_wire().to_le_bytes());
        bytes[CREDITS_AT..16].copy_from_slice(&self.credits.to_le_bytes());
        bytes[FLAGS_AT..20].copy_from_slice(&flags.bits().to_le_bytes());
        bytes[NEXT_AT..24].copy_from_slice(&self.next.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.message_id.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&target);
        bytes[40..48].copy_from_slice(&self.session.0.to_le_bytes());
        bytes[SIGNATURE_AT..].copy_from_slice(&self.signature);
        bytes
    }

    /// The ChannelSequence of a request of 3.x (MS-SMB2 3.3.5.2.10).
    #[must_use]
    pub const fn channel_sequence(&self) -> u16 {
        let [low, high, ..] = self.status.0.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// The share, when the header names one.
    #[must_use]
    pub const fn tree(&self) -> Option<TreeId> {
        match self.target {
            Target::Sync { tree, .. } => Some(tree),
            Target::Async(_) => None,
        }
    }

    /// The AsyncId, when the header has one.
    #[must_use]
    pub const fn async_id(&self) -> Option<u64> {
        match self.target {
            Target::Sync { .. } => None,
            Target::Async(id) => Some(id),
        }
    }

    /// Whether this is an answer.
    #[must_use]
    pub const fn is_response(&self) -> bool {
        self.flags.contains(Flags::RESPONSE)
    }

    /// Whether it uses session, tree and file of the request before it in the compound.
    #[must_use]
    pub const fn is_related(&self) -> bool {
        self.flags.contains(Flags::RELATED)
    }
}

/// A header that was written already, to be changed in place.
pub struct Patch<'a>(&'a mut [u8; HEADER_LEN]);

impl<'a> Patch<'a> {
    /// The header at the beginning of `message`; `None`: there are not 64 bytes.
    #[must_use]
    pub fn of(message: &'a mut [u8]) -> Option<Self> {
        message.first_chunk_mut().map(Self)
    }

    /// Sets the status.
    pub fn status(&mut self, status: NtStatus) -> &mut Self {
        self.0[STATUS_AT..STATUS_AT + 4].copy_from_slice(&status.0.to_le_bytes());
        self
    }

    /// Sets the credits asked for or granted.
    pub fn credits(&mut self, credits: u16) -> &mut Self {
        self.0[CREDITS_AT..CREDITS_AT + 2].copy_from_slice(&credits.to_le_bytes());
        self
    }

    /// Sets where the next message of the compound begins, bytes from this header.
    pub fn next(&mut self, next: u32) -> &mut Self {
        self.0[NEXT_AT..NEXT_AT + 4].copy_from_slice(&next.to_le_bytes());
        self
    }

    /// Sets flags that were not set.
    pub fn add_flags(&mut self, flags: Flags) -> &mut Self {
        let old = Fields(&*self.0).u32(FLAGS_AT);
        let new = old | flags.bits();
        self.0[FLAGS_AT..FLAGS_AT + 4].copy_from_slice(&new.to_le_bytes());
        self
    }

    /// Sets the signature.
    pub fn signature(&mut self, signature: &[u8; 16]) -> &mut Self {
        self.0[SIGNATURE_AT..].copy_from_slice(signature);
        self
    }
}

/// Ends a message of a compound whose header is at `start` of `out`: pads to a multiple of 8 and says in its
/// header that another message follows. That one begins where `out` ends then.
pub fn link_next(out: &mut Vec<u8>, start: usize) {
    let mut to = Writer::new(out, start);
    to.pad8();
    let next = to.at();
    to.put32(NEXT_AT, next);
}
