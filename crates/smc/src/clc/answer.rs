//! Accept and Confirm: how the sender's buffer can be reached (RFC 7609 A.2.3). Both have one layout.

use super::{EYE_D, EYE_R, FLAG_FIRST, FLAG_RESERVED, Header, Kinds, ParseError, finish};
use crate::bytes::{Put, Reader, Short, bit, count};
use crate::eid::Eid;
use crate::name::{Gid, Mac, Mtu, Psn, Qpn, RKey, SizeClass, SystemId, Token};

/// Most GIDs in the list of a Confirm. Linux sends two.
pub const GIDS_MAX: usize = 8;

/// An Accept or a Confirm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Of SMC-R.
    Rdma(Box<RdmaAnswer>),
    /// Of SMC-D.
    Ism(Box<IsmAnswer>),
}

/// Accept or Confirm of SMC-R.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaAnswer {
    /// The connection is the first of a new link group.
    pub first_contact: bool,
    /// The sender.
    pub system: SystemId,
    /// Address of the RoCE port that the link ends at.
    pub gid: Gid,
    /// Its MAC address.
    pub mac: Mac,
    /// Queue pair of the link.
    pub qpn: Qpn,
    /// Key to the buffer.
    pub rkey: RKey,
    /// Which element of the buffer is this connection's, counted from 1. Linux has one in each.
    pub element: u8,
    /// What CDC messages for the sender must carry.
    pub token: Token,
    /// Bytes of the element.
    pub size: SizeClass,
    /// Largest packet. An Accept has the server's own, a Confirm the smaller of both.
    pub mtu: Mtu,
    /// Virtual address of the buffer.
    pub vaddr: u64,
    /// First packet number of the link.
    pub psn: Psn,
    /// What version 2 adds.
    pub v2: Option<RdmaV2>,
    /// Reserved fields.
    pub reserved: RdmaReserved,
}

/// Reserved fields of an answer of SMC-R, kept as they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaReserved {
    /// A bit of the header.
    pub flag: bool,
    /// Behind the MTU; initial credits with some vendors.
    pub credits: u8,
    /// In front of the packet number.
    pub psn: u8,
    /// Behind the EID.
    pub eid: [u8; 8],
}

/// What version 2 adds to an answer of SMC-R.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaV2 {
    /// The EID that both have.
    pub eid: Eid,
    /// With first contact.
    pub first: Option<FirstContact>,
    /// With first contact, in a Confirm: all addresses of the client, at most [`GIDS_MAX`], and three
    /// reserved bytes.
    pub gids: Option<(Vec<Gid>, [u8; 3])>,
}

/// First contact extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstContact {
    /// No IP router is between the two RoCE ports.
    pub direct: bool,
    /// What the sender runs: 1 z/OS, 2 Linux, 3 AIX, 4 bits.
    pub os: u8,
    /// Release of version 2 that counts, 4 bits.
    pub release: u8,
    /// Host name in ASCII, padded with blanks.
    pub host: [u8; 32],
    /// The fields of release 1. SMC-R sends their bytes at release 0 too, where they mean nothing.
    pub v2x: Option<V2X>,
    /// Reserved: bits beside `direct`, then two bytes.
    pub reserved: (u8, [u8; 2]),
}

impl Default for FirstContact {
    fn default() -> Self {
        let (host, reserved) = ([b' '; 32], (0, [0; 2]));
        Self { direct: false, os: 2, release: 1, host, v2x: Some(V2X::default()), reserved }
    }
}

/// What release 1 adds to the first contact extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct V2X {
    /// Most connections in the link group.
    pub max_conns: u8,
    /// Most links in the link group; SMC-R only.
    pub max_links: u8,
    /// Features that both have.
    pub features: u16,
    /// Options of a vendor, which Linux sends as zeros and does not look at.
    pub vendor: [u8; 4],
    /// Reserved.
    pub reserved: [u8; 8],
}

/// Accept or Confirm of SMC-D.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IsmAnswer {
    /// The connection is the first of a new link group.
    pub first_contact: bool,
    /// GID of the sender's device.
    pub gid: u64,
    /// Names the buffer (DMB).
    pub dmb_token: u64,
    /// Which element of it, counted from 0.
    pub element: u8,
    /// Bytes of the DMB, of which the first 32 are the header.
    pub size: SizeClass,
    /// The sender's link group.
    pub link_id: u32,
    /// What version 2 adds.
    pub v2: Option<IsmV2>,
    /// Reserved fields.
    pub reserved: IsmReserved,
}

/// Reserved fields of an answer of SMC-D, kept as they came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IsmReserved {
    /// A bit of the header.
    pub flag: bool,
    /// Behind the size.
    pub size: (u8, [u8; 2]),
    /// At the end of version 1.
    pub tail: [u8; 12],
}

/// What version 2 adds to an answer of SMC-D.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IsmV2 {
    /// CHID of the device that was chosen.
    pub chid: u16,
    /// The EID that both have.
    pub eid: Eid,
    /// Second half of the GID of an emulated ISM.
    pub gid_extension: u64,
    /// With first contact.
    pub first: Option<FirstContact>,
}

impl Answer {
    pub(super) fn parse(
        header: &Header,
        body: &mut Reader<'_>,
        confirm: bool,
    ) -> Result<Self, ParseError> {
        let path = header.flags & 3;
        if header.version > 2 {
            return Err(ParseError::Version(header.version));
        }
        match (Kinds::from_wire(path), header.ism) {
            (Kinds::R, false) => {
                Ok(Self::Rdma(Box::new(RdmaAnswer::parse(header, body, confirm)?)))
            }
            (Kinds::D, true) => {
                let short = |Short| ParseError::Length(header.len.into());
                Ok(Self::Ism(Box::new(IsmAnswer::parse(header, body).map_err(short)?)))
            }
            _ => Err(ParseError::Path(path)),
        }
    }

    pub(super) fn emit(&self, confirm: bool) -> Vec<u8> {
        let kind = if confirm { 3 } else { 2 };
        match self {
            Self::Rdma(answer) => answer.emit(kind),
            Self::Ism(answer) => answer.emit(kind),
        }
    }

    /// 1 or 2.
    #[must_use]
    pub const fn version(&self) -> u8 {
        match self {
            Self::Rdma(answer) => 1 + answer.v2.is_some() as u8,
            Self::Ism(answer) => 1 + answer.v2.is_some() as u8,
        }
    }

    /// The connection is the first of a new link group.
    #[must_use]
    pub const fn first_contact(&self) -> bool {
        match self {
            Self::Rdma(answer) => answer.first_contact,
            Self::Ism(answer) => answer.first_contact,
        }
    }

    /// The first contact extension, if there is one.
    #[must_use]
    pub fn first(&self) -> Option<&FirstContact> {
        match self {
            Self::Rdma(answer) => answer.v2.as_ref()?.first.as_ref(),
            Self::Ism(answer) => answer.v2.as_ref()?.first.as_ref(),
        }
    }
}

fn flags(path: Kinds, first: bool, reserved: bool) -> u8 {
    path.to_wire() | bit(FLAG_FIRST, first) | bit(FLAG_RESERVED, reserved)
}

impl RdmaAnswer {
    fn parse(header: &Header, body: &mut Reader<'_>, confirm: bool) -> Result<Self, ParseError> {
        let short = |Short| ParseError::Length(header.len.into());
        let mut answer = Self::parse_v1(header, body).map_err(short)?;
        if header.version > 1 {
            let eid = Eid::from_wire(body.array().map_err(short)?);
            answer.reserved.eid = body.array().map_err(short)?;
            let mut v2 = RdmaV2 { eid, first: None, gids: None };
            if answer.first_contact {
                v2.first = Some(FirstContact::parse(body, true).map_err(short)?);
                if confirm {
                    let n = body.u8().map_err(short)?;
                    if usize::from(n) > GIDS_MAX {
                        return Err(ParseError::Count(n));
                    }
                    let reserved = body.array().map_err(short)?;
                    let gids = (0..n).map(|_| Ok(Gid(body.array()?)));
                    v2.gids = Some((gids.collect::<Result<_, Short>>().map_err(short)?, reserved));
                }
            }
            answer.v2 = Some(v2);
        }
        Ok(answer)
    }

    fn parse_v1(header: &Header, body: &mut Reader<'_>) -> Result<Self, Short> {
        let (system, gid, mac) = (SystemId(body.array()?), Gid(body.array()?), Mac(body.array()?));
        let (qpn, rkey, element) = (Qpn::new(body.u24()?), RKey(body.u32()?), body.u8()?);
        let (token, size, credits) = (Token(body.u32()?), body.u8()?, body.u8()?);
        let (vaddr, before_psn, psn) = (body.u64()?, body.u8()?, Psn::new(body.u24()?));
        Ok(Self {
            first_contact: header.first(),
            system,
            gid,
            mac,
            qpn,
            rkey,
            element,
            token,
            size: SizeClass::new(size >> 4),
            mtu: Mtu::new(size),
            vaddr,
            psn,
            v2: None,
            reserved: RdmaReserved {
                flag: header.reserved_flag(),
                credits,
                psn: before_psn,
                eid: [0; 8],
            },
        })
    }

    fn emit(&self, kind: u8) -> Vec<u8> {
        let flags = flags(Kinds::R, self.first_contact, self.reserved.flag);
        let mut bytes = Header::emit(EYE_R, kind, if self.v2.is_some() { 2 } else { 1 }, flags);
        bytes.put(&self.system.0);
        bytes.put(&self.gid.0);
        bytes.put(&self.mac.0);
        bytes.put_u24(self.qpn.get());
        bytes.put_u32(self.rkey.0);
        bytes.put_u8(self.element);
        bytes.put_u32(self.token.0);
        bytes.put(&[self.size.get() << 4 | self.mtu.get(), self.reserved.credits]);
        bytes.put_u64(self.vaddr);
        bytes.put_u8(self.reserved.psn);
        bytes.put_u24(self.psn.get());
        if let Some(v2) = &self.v2 {
            bytes.put(v2.eid.as_wire());
            bytes.put(&self.reserved.eid);
            if let Some(first) = &v2.first {
                first.emit(&mut bytes);
            }
            if let Some((gids, reserved)) = &v2.gids {
                bytes.put_u8(count(gids));
                bytes.put(reserved);
                gids.iter().for_each(|gid| bytes.put(&gid.0));
            }
        }
        finish(bytes)
    }

    /// Where the connection's element begins: Linux and we have one in each buffer.
    #[must_use]
    pub fn element_vaddr(&self) -> u64 {
        let before = u64::from(self.element.saturating_sub(1)) * u64::from(self.size.bytes());
        self.vaddr.wrapping_add(before)
    }
}

impl FirstContact {
    fn parse(body: &mut Reader<'_>, with_v2x: bool) -> Result<Self, Short> {
        let [direct, os, a, b] = body.array()?;
        let (host, release) = (body.array()?, os & 15);
        let v2x = if with_v2x || release > 0 { Some(V2X::parse(body)?) } else { None };
        let reserved = (direct & 0x7f, [a, b]);
        Ok(Self { direct: direct & 0x80 != 0, os: os >> 4, release, host, v2x, reserved })
    }

    fn emit(&self, bytes: &mut Vec<u8>) {
        let (bits, reserved) = self.reserved;
        bytes.put_u8(u8::from(self.direct) << 7 | bits & 0x7f);
        bytes.put_u8(self.os << 4 | self.release & 15);
        bytes.put(&reserved);
        bytes.put(&self.host);
        if let Some(v2x) = &self.v2x {
            bytes.put(&[v2x.max_conns, v2x.max_links]);
            bytes.put_u16(v2x.features);
            bytes.put(&v2x.vendor);
            bytes.put(&v2x.reserved);
        }
    }
}

impl V2X {
    fn parse(body: &mut Reader<'_>) -> Result<Self, Short> {
        let [max_conns, max_links] = body.array()?;
        let features = body.u16()?;
        let (vendor, reserved) = (body.array()?, body.array()?);
        Ok(Self { max_conns, max_links, features, vendor, reserved })
    }
}

impl IsmAnswer {
    fn parse(header: &Header, body: &mut Reader<'_>) -> Result<Self, Short> {
        let (gid, dmb_token, element) = (body.u64()?, body.u64()?, body.u8()?);
        let (size, behind, link_id) = (body.u8()?, body.array()?, body.u32()?);
        let mut answer = Self {
            first_contact: header.first(),
            gid,
            dmb_token,
            element,
            size: SizeClass::new(size >> 4),
            link_id,
            v2: None,
            reserved: IsmReserved {
                flag: header.reserved_flag(),
                size: (size & 15, behind),
                tail: [0; 12],
            },
        };
        if header.version == 1 {
            answer.reserved.tail = body.array()?;
            return Ok(answer);
        }
        let (chid, eid, gid_extension) = (body.u16()?, Eid::from_wire(body.array()?), body.u64()?);
        let first =
            if answer.first_contact { Some(FirstContact::parse(body, false)?) } else { None };
        answer.v2 = Some(IsmV2 { chid, eid, gid_extension, first });
        Ok(answer)
    }

    fn emit(&self, kind: u8) -> Vec<u8> {
        let flags = flags(Kinds::D, self.first_contact, self.reserved.flag);
        let mut bytes = Header::emit(EYE_D, kind, if self.v2.is_some() { 2 } else { 1 }, flags);
        let (size_bits, behind) = self.reserved.size;
        bytes.put_u64(self.gid);
        bytes.put_u64(self.dmb_token);
        bytes.put(&[self.element, self.size.get() << 4 | size_bits & 15]);
        bytes.put(&behind);
        bytes.put_u32(self.link_id);
        match &self.v2 {
            None => bytes.put(&self.reserved.tail),
            Some(v2) => {
                bytes.put_u16(v2.chid);
                bytes.put(v2.eid.as_wire());
                bytes.put_u64(v2.gid_extension);
                if let Some(first) = &v2.first {
                    first.emit(&mut bytes);
                }
            }
        }
        finish(bytes)
    }
}
