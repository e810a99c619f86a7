//! Messages about links (RFC 7609 A.3.1 to A.3.4).

use super::{Flags, Version, Wrong};
use crate::bytes::{Put, Reader, Short, bit, count};
use crate::name::{Gid, Mac, Mtu, Psn, Qpn, RKey};

/// Two bits that say that there are no eye catchers in the sender's buffers, so that data begins at
/// offset 0. Linux declines without both.
const NO_EYE_CATCHERS: u8 = 0x03;
const REJECT: u8 = 0x40;
const ALL: u8 = 0x40;
const ORDERLY: u8 = 0x20;

/// CONFIRM LINK: sent over a link to show that it works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfirmLink {
    /// The sender's end.
    pub mac: Mac,
    /// The sender's end.
    pub gid: Gid,
    /// The sender's end.
    pub qpn: Qpn,
    /// Number of the link in the group, given by the server.
    pub link: u8,
    /// The sender's name for the link, for people.
    pub user_id: [u8; 4],
    /// Most links in the group.
    pub max_links: u8,
    /// Most connections in the group; release 1 of version 2.
    pub max_conns: u8,
    /// Low bits of the flags; 3: no eye catchers in the sender's buffers.
    pub eye_catcher_bits: u8,
}

impl ConfirmLink {
    /// Whether the sender keeps no eye catchers in its buffers, as Linux and we demand.
    #[must_use]
    pub const fn has_no_eye_catchers(&self) -> bool {
        self.eye_catcher_bits & NO_EYE_CATCHERS == NO_EYE_CATCHERS
    }

    /// The bits by which we say so.
    pub const NO_EYE_CATCHERS: u8 = NO_EYE_CATCHERS;

    pub(super) fn parse(flags: Flags, body: &mut Reader<'_>) -> Result<Self, Short> {
        Ok(Self {
            mac: Mac(body.array()?),
            gid: Gid(body.array()?),
            qpn: Qpn::new(body.u24()?),
            link: body.u8()?,
            user_id: body.array()?,
            max_links: body.u8()?,
            max_conns: body.u8()?,
            eye_catcher_bits: flags.flags & NO_EYE_CATCHERS,
        })
    }

    pub(super) fn emit(&self, bytes: &mut Vec<u8>) -> u8 {
        bytes.put(&self.mac.0);
        bytes.put(&self.gid.0);
        bytes.put_u24(self.qpn.get());
        bytes.put_u8(self.link);
        bytes.put(&self.user_id);
        bytes.put(&[self.max_links, self.max_conns]);
        self.eye_catcher_bits & NO_EYE_CATCHERS
    }
}

/// Why ADD LINK was rejected (RFC 7609 A.3.2). Version 2 has no place for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// No reason was given, as always in version 2.
    Unsaid,
    /// There is no other path.
    NoAlternatePath,
    /// The MTU is not one.
    InvalidMtu,
    /// Another number, below 16.
    Other(u8),
}

impl RejectReason {
    const fn from_wire(code: u8) -> Self {
        match code {
            0 => Self::Unsaid,
            1 => Self::NoAlternatePath,
            2 => Self::InvalidMtu,
            other => Self::Other(other),
        }
    }

    const fn to_wire(self) -> u8 {
        match self {
            Self::Unsaid => 0,
            Self::NoAlternatePath => 1,
            Self::InvalidMtu => 2,
            Self::Other(code) => code & 15,
        }
    }
}

/// ADD LINK: one end of another link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddLink {
    /// The sender's end.
    pub mac: Mac,
    /// The sender's end. (RFC 7609 draws it two bytes further to the front than all implementations have
    /// it.)
    pub gid: Gid,
    /// The sender's end.
    pub qpn: Qpn,
    /// Number of the link in the group, given by the server.
    pub link: u8,
    /// Largest packet.
    pub mtu: Mtu,
    /// First packet number.
    pub psn: Psn,
    /// The answer is no.
    pub reject: Option<RejectReason>,
    /// What version 2 adds. Linux leaves it out of a rejection.
    pub v2: Option<AddLinkV2>,
}

/// What version 2 adds to ADD LINK.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddLinkV2 {
    /// No router is between the two ends.
    pub direct: bool,
    /// Which address of the client the server would like the link to end at.
    pub client_gid: Gid,
    /// Keys of all the sender's buffers on the new link, at most 255.
    pub keys: Vec<NewKey>,
}

/// A buffer that is known by a key on an old link, and by another on the new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewKey {
    /// Key on the link that the message came by.
    pub known: RKey,
    /// Key on the new link.
    pub new: RKey,
    /// Virtual address on the new link.
    pub vaddr: u64,
}

impl NewKey {
    fn parse(body: &mut Reader<'_>) -> Result<Self, Short> {
        Ok(Self { known: RKey(body.u32()?), new: RKey(body.u32()?), vaddr: body.u64()? })
    }

    fn emit(&self, bytes: &mut Vec<u8>) {
        bytes.put_u32(self.known.0);
        bytes.put_u32(self.new.0);
        bytes.put_u64(self.vaddr);
    }
}

impl AddLink {
    pub(super) fn parse(
        flags: Flags,
        version: Version,
        body: &mut Reader<'_>,
    ) -> Result<Self, Wrong> {
        let mac = Mac(body.array()?);
        body.array::<2>()?;
        let (gid, qpn, link) = (Gid(body.array()?), Qpn::new(body.u24()?), body.u8()?);
        let (mtu, psn) = (Mtu::new(body.u8()?), Psn::new(body.u24()?));
        body.array::<8>()?;
        let rejected = flags.flags & REJECT != 0;
        let reject = rejected.then(|| RejectReason::from_wire(flags.reason));
        let extended = version == Version::V2 && !body.rest().is_empty();
        let v2 = if extended && !rejected { Some(AddLinkV2::parse(body)?) } else { None };
        Ok(Self { mac, gid, qpn, link, mtu, psn, reject, v2 })
    }

    pub(super) fn emit(&self, version: Version, bytes: &mut Vec<u8>) -> Flags {
        bytes.put(&self.mac.0);
        bytes.put(&[0; 2]);
        bytes.put(&self.gid.0);
        bytes.put_u24(self.qpn.get());
        bytes.put(&[self.link, self.mtu.get()]);
        bytes.put_u24(self.psn.get());
        bytes.put(&[0; 8]);
        if let (Version::V2, None, Some(v2)) = (version, self.reject, &self.v2) {
            v2.emit(bytes);
        }
        match self.reject {
            None => Flags { flags: 0, reason: 0 },
            Some(reason) => Flags { flags: REJECT, reason: reason.to_wire() },
        }
    }
}

impl AddLinkV2 {
    fn parse(body: &mut Reader<'_>) -> Result<Self, Wrong> {
        let [direct, _] = body.array()?;
        let client_gid = Gid(body.array()?);
        body.array::<8>()?;
        let n: [u8; 2] = body.array()?;
        // Never more than 255, so the order of the bytes shows.
        let n = u16::from_le_bytes(n).min(u16::from_be_bytes(n));
        if n > u16::from(u8::MAX) {
            return Err(Wrong::Count(n));
        }
        let keys = (0..n).map(|_| NewKey::parse(body)).collect::<Result<_, _>>()?;
        Ok(Self { direct: direct & 0x80 != 0, client_gid, keys })
    }

    fn emit(&self, bytes: &mut Vec<u8>) {
        bytes.put(&[u8::from(self.direct) << 7, 0]);
        bytes.put(&self.client_gid.0);
        bytes.put(&[0; 8]);
        let n = count(&self.keys);
        bytes.put(&u16::from(n).to_le_bytes());
        self.keys.iter().take(n.into()).for_each(|key| key.emit(bytes));
    }
}

/// ADD LINK CONTINUATION: keys on the new link, two in each message; version 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddLinkCont {
    /// The new link.
    pub link: u8,
    /// Keys that the sender has yet to send, with those in this message.
    pub left: u8,
    /// Up to two; as many as `left` says are meant.
    pub keys: [NewKey; 2],
}

impl AddLinkCont {
    pub(super) fn parse(body: &mut Reader<'_>) -> Result<Self, Short> {
        let [link, left, _, _] = body.array()?;
        let keys = [NewKey::parse(body)?, NewKey::parse(body)?];
        Ok(Self { link, left, keys })
    }

    pub(super) fn emit(&self, bytes: &mut Vec<u8>) -> u8 {
        bytes.put(&[self.link, self.left, 0, 0]);
        self.keys.iter().for_each(|key| key.emit(bytes));
        0
    }
}

/// Why a link, or the group, goes away (RFC 7609 A.3.4; Linux).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeleteReason {
    /// The path is lost.
    LostPath,
    /// An operator wants it so.
    Operator,
    /// A program wants it so: nobody uses the group.
    Inactivity,
    /// The peer violated the protocol.
    ProtocolViolation,
    /// An asymmetric link is not needed any more.
    AsymmetricLink,
    /// In an answer: there is no such link.
    UnknownLink,
    /// In an answer: there is no such group.
    UnknownGroup,
    /// Another number.
    Other(u32),
}

impl DeleteReason {
    const fn from_wire(code: u32) -> Self {
        match code {
            0x0001_0000 => Self::LostPath,
            0x0002_0000 => Self::Operator,
            0x0003_0000 => Self::Inactivity,
            0x0004_0000 => Self::ProtocolViolation,
            0x0005_0000 => Self::AsymmetricLink,
            0x0010_0000 => Self::UnknownLink,
            0x0020_0000 => Self::UnknownGroup,
            other => Self::Other(other),
        }
    }

    /// The number.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::LostPath => 0x0001_0000,
            Self::Operator => 0x0002_0000,
            Self::Inactivity => 0x0003_0000,
            Self::ProtocolViolation => 0x0004_0000,
            Self::AsymmetricLink => 0x0005_0000,
            Self::UnknownLink => 0x0010_0000,
            Self::UnknownGroup => 0x0020_0000,
            Self::Other(code) => code,
        }
    }
}

/// DELETE LINK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteLink {
    /// Which; `None`: all, and with them the group.
    pub link: Option<u8>,
    /// What is under way may come to its end.
    pub orderly: bool,
    /// Why.
    pub reason: DeleteReason,
}

impl DeleteLink {
    pub(super) fn parse(flags: Flags, body: &mut Reader<'_>) -> Result<Self, Short> {
        let (link, reason) = (body.u8()?, DeleteReason::from_wire(body.u32()?));
        let link = (flags.flags & ALL == 0).then_some(link);
        Ok(Self { link, orderly: flags.flags & ORDERLY != 0, reason })
    }

    pub(super) fn emit(&self, bytes: &mut Vec<u8>) -> u8 {
        bytes.put_u8(self.link.unwrap_or(0));
        bytes.put_u32(self.reason.code());
        bit(ALL, self.link.is_none()) | bit(ORDERLY, self.orderly)
    }
}

/// REQUEST ADD LINK: the client has a device that another link could end at; version 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestAddLink {
    /// The client's addresses, at most 255.
    pub gids: Vec<Gid>,
    /// The answer is no.
    pub reject: Option<RejectReason>,
}

impl RequestAddLink {
    pub(super) fn parse(flags: Flags, body: &mut Reader<'_>) -> Result<Self, Short> {
        body.array::<20>()?;
        let [n, _, _, _] = body.array()?;
        // A rejection has the length of a plain message, and none of the addresses.
        let room = body.rest().len() / 16;
        let rejected = flags.flags & REJECT != 0;
        let n = if rejected { usize::from(n).min(room) } else { n.into() };
        let gids = (0..n).map(|_| Ok(Gid(body.array()?))).collect::<Result<_, Short>>()?;
        Ok(Self { gids, reject: rejected.then(|| RejectReason::from_wire(flags.reason)) })
    }

    pub(super) fn emit(&self, bytes: &mut Vec<u8>) -> Flags {
        let n = count(&self.gids);
        bytes.put(&[0; 20]);
        bytes.put(&[n, 0, 0, 0]);
        self.gids.iter().take(n.into()).for_each(|gid| bytes.put(&gid.0));
        match self.reject {
            None => Flags { flags: 0, reason: 0 },
            Some(reason) => Flags { flags: REJECT, reason: reason.to_wire() },
        }
    }
}
