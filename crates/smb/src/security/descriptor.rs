//! Security descriptors in self-relative form (MS-DTYP 2.4.6).

use bitflags::bitflags;

use super::{Acl, Sid};
use crate::fscc::{Put, Reader, len32, patch_u32};
use crate::{Access, NtStatus};

bitflags! {
    /// What is said about the parts of a descriptor (MS-DTYP 2.4.6). Whether there are lists and that the
    /// form is self-relative is not kept here but follows from the descriptor.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Control: u16 {
        /// The owner was not said but taken.
        const OWNER_DEFAULTED = 0x0001;
        /// The group was not said but taken.
        const GROUP_DEFAULTED = 0x0002;
        /// There is a list of rights.
        const DACL_PRESENT = 0x0004;
        /// The list of rights was not said but taken.
        const DACL_DEFAULTED = 0x0008;
        /// There is a list for audits.
        const SACL_PRESENT = 0x0010;
        /// The list for audits was not said but taken.
        const SACL_DEFAULTED = 0x0020;
        /// The list of rights is to be inherited by what is there already.
        const DACL_AUTO_INHERIT_REQ = 0x0100;
        /// The list for audits is to be inherited by what is there already.
        const SACL_AUTO_INHERIT_REQ = 0x0200;
        /// The list of rights has inherited entries.
        const DACL_AUTO_INHERITED = 0x0400;
        /// The list for audits has inherited entries.
        const SACL_AUTO_INHERITED = 0x0800;
        /// The list of rights inherits nothing.
        const DACL_PROTECTED = 0x1000;
        /// The list for audits inherits nothing.
        const SACL_PROTECTED = 0x2000;
        /// All in one piece, with offsets.
        const SELF_RELATIVE = 0x8000;
        const _ = !0;
    }

    /// Which parts of a descriptor are asked for or set (MS-SMB2 2.2.37, AdditionalInformation).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SecurityInfo: u32 {
        /// OWNER_SECURITY_INFORMATION.
        const OWNER = 0x01;
        /// GROUP_SECURITY_INFORMATION.
        const GROUP = 0x02;
        /// DACL_SECURITY_INFORMATION.
        const DACL = 0x04;
        /// SACL_SECURITY_INFORMATION.
        const SACL = 0x08;
        /// LABEL_SECURITY_INFORMATION.
        const LABEL = 0x10;
        const _ = !0;
    }
}

impl SecurityInfo {
    /// The rights that an open needs to ask for this (MS-FSA 2.1.5.14).
    #[must_use]
    pub fn to_query(self) -> Access {
        let read = self.intersects(Self::OWNER | Self::GROUP | Self::DACL | Self::LABEL);
        let audit = self.contains(Self::SACL);
        (if read { Access::READ_CONTROL } else { Access::empty() })
            | (if audit { Access::SYSTEM_SECURITY } else { Access::empty() })
    }

    /// The rights that an open needs to set this (MS-FSA 2.1.5.17).
    #[must_use]
    pub fn to_set(self) -> Access {
        let pairs = [
            (Self::OWNER | Self::GROUP | Self::LABEL, Access::WRITE_OWNER),
            (Self::DACL, Access::WRITE_DAC),
            (Self::SACL, Access::SYSTEM_SECURITY),
        ];
        let needed = pairs.into_iter().filter(|(info, _)| self.intersects(*info));
        needed.fold(Access::empty(), |all, (_, access)| all | access)
    }
}

/// Who owns a file and who may do what with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// What is said about the parts; [`Control::DACL_PRESENT`] without a list means that all may do all.
    pub control: Control,
    /// Who owns it.
    pub owner: Option<Sid>,
    /// Its group.
    pub group: Option<Sid>,
    /// Who may do what.
    pub dacl: Option<Acl>,
    /// What is noted down.
    pub sacl: Option<Acl>,
}

/// Bytes before the parts.
const HEAD: usize = 20;
/// Longest descriptor that is read: two lists of the greatest length and two SIDs.
const LEN_MAX: usize = 2 * 0x1_0000 + 256;

impl Descriptor {
    /// With an owner, a group and a list of rights.
    #[must_use]
    pub fn new(owner: Sid, group: Sid, dacl: Acl) -> Self {
        Self {
            control: Control::DACL_PRESENT | Control::SELF_RELATIVE,
            owner: Some(owner),
            group: Some(group),
            dacl: Some(dacl),
            sacl: None,
        }
    }

    /// The permission bits, if these are all that it says of rights: see [`Sid::unix_mode`].
    #[must_use]
    pub fn mode(&self) -> Option<u32> {
        match self.dacl.as_ref()?.aces.as_slice() {
            [only] => only.sid.to_mode(),
            _ => None,
        }
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// INVALID_SECURITY_DESCR if it does not hold together, UNKNOWN_REVISION for another revision,
    /// INVALID_ACL or INVALID_SID for a part that does not.
    pub fn parse(bytes: &[u8]) -> Result<Self, NtStatus> {
        const BAD: NtStatus = NtStatus::INVALID_SECURITY_DESCR;
        if bytes.len() > LEN_MAX {
            return Err(BAD);
        }
        let mut head = Reader::new(bytes);
        let revision = head.u8().ok_or(BAD)?;
        head.u8().ok_or(BAD)?;
        let control = Control::from_bits_retain(head.u16().ok_or(BAD)?);
        if revision != 1 {
            return Err(NtStatus::UNKNOWN_REVISION);
        }
        let mut part = || {
            let at = usize::try_from(head.u32().ok_or(BAD)?).map_err(|_| BAD)?;
            match at {
                0 => Ok(None),
                at => bytes.get(at..).filter(|_| at >= HEAD).map(Some).ok_or(BAD),
            }
        };
        let (owner, group, sacl, dacl) = (part()?, part()?, part()?, part()?);
        let sid = |part: Option<&[u8]>| {
            let sid = part.map(|part| Sid::parse(part).ok_or(NtStatus::INVALID_SID));
            Ok::<_, NtStatus>(sid.transpose()?.map(|(sid, _)| sid))
        };
        let acl = |part: Option<&[u8]>, present: Control| {
            let part = part.filter(|_| control.contains(present));
            part.map(|part| Acl::parse(part).ok_or(NtStatus::INVALID_ACL)).transpose()
        };
        Ok(Self {
            control: control | Control::SELF_RELATIVE,
            owner: sid(owner)?,
            group: sid(group)?,
            dacl: acl(dacl, Control::DACL_PRESENT)?,
            sacl: acl(sacl, Control::SACL_PRESENT)?,
        })
    }

    /// Whether it can be written: no list is longer than its own length field can say.
    #[must_use]
    pub fn fits(&self) -> bool {
        [&self.dacl, &self.sacl].into_iter().flatten().all(Acl::fits)
    }

    /// Its bytes, self-relative: owner, group, list for audits, list of rights.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        let present = [(&self.dacl, Control::DACL_PRESENT), (&self.sacl, Control::SACL_PRESENT)];
        let lists = present.into_iter().filter(|(acl, _)| acl.is_some()).map(|(_, flag)| flag);
        let control = lists.fold(self.control | Control::SELF_RELATIVE, |all, flag| all | flag);
        out.put(&[1, 0]);
        out.u16(control.bits());
        out.put(&[0; HEAD - 4]);
        let start = |at: usize, out: &mut Vec<u8>| {
            let here = len32(out.len());
            patch_u32(out, at, here);
        };
        for (at, sid) in [(4, &self.owner), (8, &self.group)] {
            if let Some(sid) = sid {
                start(at, &mut out);
                sid.put(&mut out);
            }
        }
        for (at, acl) in [(12, &self.sacl), (16, &self.dacl)] {
            if let Some(acl) = acl {
                start(at, &mut out);
                acl.put(&mut out);
            }
        }
        out
    }

    /// Only the parts that are asked for.
    #[must_use]
    pub fn only(&self, info: SecurityInfo) -> Self {
        let mut of_lists = Control::empty();
        if !info.contains(SecurityInfo::DACL) {
            of_lists |= DACL_FLAGS;
        }
        if !info.contains(SecurityInfo::SACL) {
            of_lists |= SACL_FLAGS;
        }
        Self {
            control: self.control.difference(of_lists) | Control::SELF_RELATIVE,
            owner: self.owner.filter(|_| info.contains(SecurityInfo::OWNER)),
            group: self.group.filter(|_| info.contains(SecurityInfo::GROUP)),
            dacl: self.dacl.clone().filter(|_| info.contains(SecurityInfo::DACL)),
            sacl: self.sacl.clone().filter(|_| info.contains(SecurityInfo::SACL)),
        }
    }

    /// With the parts that `info` names taken from `new`, generic rights replaced by what they stand for
    /// (MS-FSA 2.1.5.17). Entries keep their order: a list that is not canonical stays so.
    ///
    /// # Errors
    ///
    /// INVALID_OWNER for a new owner that is nobody, INVALID_ACL for a list that would be too long.
    pub fn changed(&self, new: &Self, info: SecurityInfo) -> Result<Self, NtStatus> {
        let mut changed = self.clone();
        if info.contains(SecurityInfo::OWNER) {
            changed.owner = Some(new.owner.ok_or(NtStatus::INVALID_OWNER)?);
        }
        if info.contains(SecurityInfo::GROUP) {
            changed.group = new.group.or(changed.group);
        }
        if info.contains(SecurityInfo::DACL) {
            changed.dacl = new.dacl.clone();
            // Who sets a list has one, even if it does not say so: the one by which all may do all.
            changed.control = kept(self.control, new.control, DACL_FLAGS) | Control::DACL_PRESENT;
            inherit_flag(
                &mut changed.control,
                Control::DACL_AUTO_INHERIT_REQ,
                Control::DACL_AUTO_INHERITED,
            );
        }
        if info.contains(SecurityInfo::SACL) {
            changed.sacl = new.sacl.clone();
            changed.control = kept(changed.control, new.control, SACL_FLAGS);
            inherit_flag(
                &mut changed.control,
                Control::SACL_AUTO_INHERIT_REQ,
                Control::SACL_AUTO_INHERITED,
            );
        }
        for ace in changed.dacl.iter_mut().flat_map(|acl| &mut acl.aces) {
            ace.access = ace.access.expanded();
        }
        if changed.fits() { Ok(changed) } else { Err(NtStatus::INVALID_ACL) }
    }
}

const DACL_FLAGS: Control = Control::DACL_PRESENT
    .union(Control::DACL_DEFAULTED)
    .union(Control::DACL_AUTO_INHERIT_REQ)
    .union(Control::DACL_AUTO_INHERITED)
    .union(Control::DACL_PROTECTED);
const SACL_FLAGS: Control = Control::SACL_PRESENT
    .union(Control::SACL_DEFAULTED)
    .union(Control::SACL_AUTO_INHERIT_REQ)
    .union(Control::SACL_AUTO_INHERITED)
    .union(Control::SACL_PROTECTED);

/// `old` with the flags of `which` as `new` has them.
fn kept(old: Control, new: Control, which: Control) -> Control {
    old.difference(which) | new.intersection(which)
}

/// That a list has inherited entries is believed only of who asks for inheritance at the same time; the
/// request itself is not kept (MS-DTYP 2.5.3.4.1, and what Windows does).
fn inherit_flag(control: &mut Control, requested: Control, inherited: Control) {
    if !control.contains(requested) {
        control.remove(inherited);
    }
    control.remove(requested);
}
