//! Proposal: what a client offers (RFC 7609 A.2.2).

use super::{EYE_R, Header, Kinds, ParseError, finish};
use crate::bytes::{Put, Reader, Short, count};
use crate::eid::{EIDS_MAX, Eid};
use crate::name::{Gid, Mac, SystemId};

/// Most IPv6 prefixes in a proposal.
pub const IPV6_PREFIXES_MAX: usize = 8;
/// Most ISM GIDs in a proposal; an emulated ISM takes two.
pub const ISM_GIDS_MAX: usize = 8;

/// Bytes of the part for SMC-D that stands between the fixed part and the IP prefixes.
const ISM_AREA_LEN: u16 = 40;
/// From the end of its own field to the end of that part.
const V2_OFFSET_BASE: usize = 28;

/// What a client offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// 1, or 2 as Linux always sends.
    pub version: u8,
    /// What is offered in version 1.
    pub v1: Kinds,
    /// What is offered in version 2.
    pub v2: Kinds,
    /// Who the client is. Linux sends zeros when it offers no SMC-R of version 1.
    pub system: SystemId,
    /// Its RoCEv1 address, for SMC-R of version 1.
    pub gid: Gid,
    /// The MAC address of that.
    pub mac: Mac,
    /// The part for SMC-D. A proposal of version 1 may do without.
    pub ism: Option<IsmArea>,
    /// Offset of the IP prefixes as it came, where there are none: 0, as from Linux, or 40.
    pub prefix_offset: u16,
    /// IP prefixes of the client; there unless `v1` is [`Kinds::Neither`].
    pub prefixes: Option<Prefixes>,
    /// The part for version 2; there unless `v2` is [`Kinds::Neither`].
    pub offer: Option<V2Offer>,
}

/// The part for SMC-D, which carries the vendor's fields as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IsmArea {
    /// GID of the ISM device.
    pub gid: u64,
    /// Its CHID.
    pub chid: u16,
    /// Whose `vendor` options these are (IEEE OUI). Linux sends zeros and does not look.
    pub oui: [u8; 3],
    /// Options of a vendor.
    pub vendor: [u8; 5],
    /// Reserved.
    pub reserved: [u8; 20],
}

/// In which IP networks the client is, which counts for version 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefixes {
    /// The IPv4 address of the interface under its mask; zeros for IPv6.
    pub subnet: [u8; 4],
    /// Bits of the mask.
    pub mask_len: u8,
    /// Reserved.
    pub reserved: [u8; 2],
    /// IPv6 prefixes and their bits, at most [`IPV6_PREFIXES_MAX`].
    pub v6: Vec<([u8; 16], u8)>,
}

/// The part for version 2.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct V2Offer {
    /// The release of version 2 that the client speaks, 4 bits: 0, or 1 for v2.1.
    pub release: u8,
    /// Whether the system EID counts.
    pub seid_valid: bool,
    /// Its RoCEv2 address.
    pub gid: Gid,
    /// Most connections in a link group (release 1: 16 to 255).
    pub max_conns: u8,
    /// Most links in a link group (release 1).
    pub max_links: u8,
    /// Features of release 1; bit 0: emulated ISM.
    pub features: u16,
    /// User EIDs, at most [`EIDS_MAX`].
    pub eids: Vec<Eid>,
    /// The part for SMC-Dv2, there if version 2 of SMC-D is offered.
    pub ism: Option<IsmV2Offer>,
    /// Reserved: before the flags, in the flags, behind them, behind the features.
    pub reserved: (u8, u8, [u8; 2], [u8; 12]),
}

/// The part for SMC-Dv2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsmV2Offer {
    /// The system EID.
    pub seid: Eid,
    /// Reserved.
    pub reserved: [u8; 16],
    /// Devices, at most [`ISM_GIDS_MAX`]; an emulated one takes two entries, of which the second carries
    /// the extension of its GID.
    pub gids: Vec<IsmGid>,
}

/// One ISM device, or half of an emulated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IsmGid {
    /// GID, or the extension of the one before.
    pub gid: u64,
    /// CHID; 0xff00 to 0xffff: emulated.
    pub chid: u16,
}

impl IsmGid {
    /// Whether the device is emulated and so takes two entries.
    #[must_use]
    pub const fn is_emulated(self) -> bool {
        self.chid >= 0xff00
    }
}

impl Proposal {
    /// Offers SMC-R of version 2 and nothing else, as Linux does on a RoCEv2 device.
    #[must_use]
    pub const fn rdma_v2(system: SystemId, mac: Mac, offer: V2Offer) -> Self {
        Self {
            version: 2,
            v1: Kinds::Neither,
            v2: Kinds::R,
            system,
            gid: Gid([0; 16]),
            mac,
            ism: Some(IsmArea { gid: 0, chid: 0, oui: [0; 3], vendor: [0; 5], reserved: [0; 20] }),
            prefix_offset: 0,
            prefixes: None,
            offer: Some(offer),
        }
    }

    pub(super) fn parse(header: &Header, body: &mut Reader<'_>) -> Result<Self, ParseError> {
        let short = |Short| ParseError::Length(header.len.into());
        let (v1, v2) = (Kinds::from_wire(header.flags), Kinds::from_wire(header.flags >> 2));
        let mut proposal = Self {
            version: header.version,
            v1,
            v2,
            system: SystemId(body.array().map_err(short)?),
            gid: Gid(body.array().map_err(short)?),
            mac: Mac(body.array().map_err(short)?),
            ism: None,
            prefix_offset: body.u16().map_err(short)?,
            prefixes: None,
            offer: None,
        };
        let of_v1 = header.version == 1;
        // RFC 7609 has nothing before the prefixes; Linux the part for SMC-D, whose length it says.
        let has_ism = !of_v1 || proposal.prefix_offset == ISM_AREA_LEN;
        let no_prefixes = !of_v1 && v1 == Kinds::Neither;
        if proposal.prefix_offset != if has_ism { ISM_AREA_LEN } else { 0 }
            && !(no_prefixes && proposal.prefix_offset == 0)
        {
            return Err(ParseError::Offset(proposal.prefix_offset));
        }
        if of_v1 && v1 == Kinds::Neither {
            return Err(ParseError::Path(2));
        }
        let mut v2_offset = 0;
        if has_ism {
            let (area, offset) = IsmArea::parse(body).map_err(short)?;
            (proposal.ism, v2_offset) = (Some(area), offset);
        }
        if !no_prefixes {
            proposal.prefixes = Some(Prefixes::parse(body, short)?);
        }
        // Linux looks at what is offered in version 2 only if the message is of version 2.
        let has_v2 = !of_v1 && v2 != Kinds::Neither;
        if v2_offset != if has_v2 { proposal.v2_offset() } else { 0 } {
            return Err(ParseError::Offset(v2_offset));
        }
        if has_v2 {
            proposal.offer = Some(V2Offer::parse(body, v2, short)?);
        }
        Ok(proposal)
    }

    /// From the end of its own field to the part for version 2.
    fn v2_offset(&self) -> u16 {
        let prefixes = self.prefixes.as_ref().map_or(0, |p| 8 + 17 * p.v6.len());
        u16::try_from(V2_OFFSET_BASE + prefixes).unwrap_or(u16::MAX)
    }

    pub(super) fn emit(&self) -> Vec<u8> {
        let flags = self.v2.to_wire() << 2 | self.v1.to_wire();
        let mut bytes = Header::emit(EYE_R, 1, self.version, flags);
        bytes.put(&self.system.0);
        bytes.put(&self.gid.0);
        bytes.put(&self.mac.0);
        bytes.put_u16(self.prefix_offset);
        if let Some(ism) = &self.ism {
            ism.emit(self.offer.as_ref().map_or(0, |_| self.v2_offset()), &mut bytes);
        }
        if let Some(prefixes) = &self.prefixes {
            prefixes.emit(&mut bytes);
        }
        if let Some(offer) = &self.offer {
            offer.emit(&mut bytes);
        }
        finish(bytes)
    }
}

impl IsmArea {
    fn parse(body: &mut Reader<'_>) -> Result<(Self, u16), Short> {
        let (gid, chid, v2_offset) = (body.u64()?, body.u16()?, body.u16()?);
        let (oui, vendor, reserved) = (body.array()?, body.array()?, body.array()?);
        Ok((Self { gid, chid, oui, vendor, reserved }, v2_offset))
    }

    fn emit(&self, v2_offset: u16, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.gid);
        bytes.put_u16(self.chid);
        bytes.put_u16(v2_offset);
        bytes.put(&self.oui);
        bytes.put(&self.vendor);
        bytes.put(&self.reserved);
    }
}

impl Prefixes {
    fn parse(
        body: &mut Reader<'_>,
        short: impl Fn(Short) -> ParseError,
    ) -> Result<Self, ParseError> {
        let subnet = body.array().map_err(&short)?;
        let mask_len = body.u8().map_err(&short)?;
        let reserved = body.array().map_err(&short)?;
        let n = body.u8().map_err(&short)?;
        if usize::from(n) > IPV6_PREFIXES_MAX {
            return Err(ParseError::Count(n));
        }
        let v6 = (0..n).map(|_| Ok((body.array()?, body.u8()?)));
        let v6 = v6.collect::<Result<_, Short>>().map_err(short)?;
        Ok(Self { subnet, mask_len, reserved, v6 })
    }

    fn emit(&self, bytes: &mut Vec<u8>) {
        bytes.put(&self.subnet);
        bytes.put_u8(self.mask_len);
        bytes.put(&self.reserved);
        bytes.put_u8(count(&self.v6));
        for (prefix, len) in &self.v6 {
            bytes.put(prefix);
            bytes.put_u8(*len);
        }
    }
}

impl V2Offer {
    fn parse(
        body: &mut Reader<'_>,
        kinds: Kinds,
        short: impl Fn(Short) -> ParseError + Copy,
    ) -> Result<Self, ParseError> {
        let [eids, ism_gids, before, flags, a, b] = body.array().map_err(short)?;
        if usize::from(eids) > EIDS_MAX {
            return Err(ParseError::Count(eids));
        }
        if usize::from(ism_gids) > if kinds.has_d() { ISM_GIDS_MAX } else { 0 } {
            return Err(ParseError::Count(ism_gids));
        }
        let ism_offset = body.u16().map_err(short)?;
        let mut offer = Self {
            release: flags >> 4,
            seid_valid: flags & 1 != 0,
            gid: Gid(body.array().map_err(short)?),
            max_conns: body.u8().map_err(short)?,
            max_links: body.u8().map_err(short)?,
            features: body.u16().map_err(short)?,
            eids: Vec::new(),
            ism: None,
            reserved: (before, flags & 0x0e, [a, b], body.array().map_err(short)?),
        };
        for _ in 0..eids {
            offer.eids.push(Eid::from_wire(body.array().map_err(short)?));
        }
        if ism_offset != if kinds.has_d() { offer.ism_offset() } else { 0 } {
            return Err(ParseError::Offset(ism_offset));
        }
        if kinds.has_d() {
            offer.ism = Some(IsmV2Offer::parse(body, ism_gids).map_err(short)?);
        }
        Ok(offer)
    }

    /// From the reserved field in front of the GID to the part for SMC-Dv2.
    fn ism_offset(&self) -> u16 {
        u16::try_from(32 + 32 * self.eids.len()).unwrap_or(u16::MAX)
    }

    fn emit(&self, bytes: &mut Vec<u8>) {
        let (before, flags, between, behind) = self.reserved;
        bytes.put_u8(count(&self.eids));
        bytes.put_u8(self.ism.as_ref().map_or(0, |ism| count(&ism.gids)));
        bytes.put_u8(before);
        bytes.put_u8(self.release << 4 | flags & 0x0e | u8::from(self.seid_valid));
        bytes.put(&between);
        bytes.put_u16(self.ism.as_ref().map_or(0, |_| self.ism_offset()));
        bytes.put(&self.gid.0);
        bytes.put(&[self.max_conns, self.max_links]);
        bytes.put_u16(self.features);
        bytes.put(&behind);
        self.eids.iter().for_each(|eid| bytes.put(eid.as_wire()));
        if let Some(ism) = &self.ism {
            bytes.put(ism.seid.as_wire());
            bytes.put(&ism.reserved);
            for device in &ism.gids {
                bytes.put_u64(device.gid);
                bytes.put_u16(device.chid);
            }
        }
    }
}

impl IsmV2Offer {
    fn parse(body: &mut Reader<'_>, gids: u8) -> Result<Self, Short> {
        let (seid, reserved) = (Eid::from_wire(body.array()?), body.array()?);
        let gids = (0..gids).map(|_| Ok(IsmGid { gid: body.u64()?, chid: body.u16()? }));
        let gids = gids.collect::<Result<_, Short>>()?;
        Ok(Self { seid, reserved, gids })
    }
}
