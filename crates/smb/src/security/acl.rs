//! Entries of access control lists, and lists of them (MS-DTYP 2.4.4, 2.4.5).

use bitflags::bitflags;

use super::Sid;
use crate::Access;
use crate::fscc::{Reader, len32};

bitflags! {
    /// How an entry is inherited (MS-DTYP 2.4.4.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AceFlags: u8 {
        /// OBJECT_INHERIT_ACE: files in the directory get it.
        const OBJECT_INHERIT = 0x01;
        /// CONTAINER_INHERIT_ACE: directories in the directory get it.
        const CONTAINER_INHERIT = 0x02;
        /// NO_PROPAGATE_INHERIT_ACE: what is in those does not.
        const NO_PROPAGATE = 0x04;
        /// INHERIT_ONLY_ACE: it is there to be inherited and says nothing about the directory itself.
        const INHERIT_ONLY = 0x08;
        /// INHERITED_ACE: it was inherited.
        const INHERITED = 0x10;
        const _ = !0;
    }
}

/// What an entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AceKind {
    /// ACCESS_ALLOWED_ACE.
    Allow,
    /// ACCESS_DENIED_ACE.
    Deny,
    /// SYSTEM_AUDIT_ACE: kept, and nothing is logged.
    Audit,
    /// SYSTEM_MANDATORY_LABEL_ACE: kept, and not enforced.
    Label,
}

impl AceKind {
    const ALL: [(Self, u8); 4] =
        [(Self::Allow, 0), (Self::Deny, 1), (Self::Audit, 2), (Self::Label, 17)];

    fn from_wire(byte: u8) -> Option<Self> {
        Self::ALL.iter().find(|(_, number)| *number == byte).map(|(kind, _)| *kind)
    }

    fn to_wire(self) -> u8 {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or(0, |(_, number)| *number)
    }
}

/// One entry of an access control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ace {
    /// What it does.
    pub kind: AceKind,
    /// How it is inherited.
    pub flags: AceFlags,
    /// Which rights it is about.
    pub access: Access,
    /// Whom it is about.
    pub sid: Sid,
}

impl Ace {
    /// An entry that allows something, and is not inherited.
    #[must_use]
    pub const fn allow(sid: Sid, access: Access) -> Self {
        Self { kind: AceKind::Allow, flags: AceFlags::empty(), access, sid }
    }

    /// An entry that denies something, and is not inherited.
    #[must_use]
    pub const fn deny(sid: Sid, access: Access) -> Self {
        Self { kind: AceKind::Deny, flags: AceFlags::empty(), access, sid }
    }

    /// With these flags instead of its own.
    #[must_use]
    pub const fn with(self, flags: AceFlags) -> Self {
        Self { flags, ..self }
    }

    fn len(&self) -> usize {
        8 + self.sid.len()
    }
}

/// An access control list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Acl {
    /// In the order in which they count.
    pub aces: Vec<Ace>,
}

/// Bytes of a list before its entries.
const HEAD: usize = 8;
/// Bytes of the longest list: its length has 16 bits.
const LEN_MAX: usize = u16::MAX as usize;

impl Acl {
    /// Of these entries.
    #[must_use]
    pub fn new(aces: impl IntoIterator<Item = Ace>) -> Self {
        Self { aces: aces.into_iter().collect() }
    }

    /// Bytes that it takes.
    pub(super) fn len(&self) -> usize {
        HEAD + self.aces.iter().map(Ace::len).sum::<usize>()
    }

    /// Whether its length and number of entries fit into the fields for them.
    pub(super) fn fits(&self) -> bool {
        self.len() <= LEN_MAX
    }

    /// Reads one from the beginning of `bytes`. `None` if it does not hold together, or has an entry of a
    /// kind that we cannot keep (object, callback): better refused than half understood.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut head = Reader::new(bytes);
        let revision = head.u8()?;
        head.u8()?;
        let len = head.u16()?;
        let count = head.u16()?;
        if !matches!(revision, 2 | 4) {
            return None;
        }
        let mut entries = Reader::new(bytes.get(HEAD..len.into())?);
        // An entry takes at least 16 bytes: the number of a liar takes no memory.
        let mut aces = Vec::with_capacity(usize::from(count).min(bytes.len() / 16));
        for _ in 0..count {
            let kind = AceKind::from_wire(entries.u8()?)?;
            let flags = AceFlags::from_bits_retain(entries.u8()?);
            let size = usize::from(entries.u16()?);
            let mut body = Reader::new(entries.bytes(size.checked_sub(4)?)?);
            let access = Access::from_bits_retain(body.u32()?);
            let (sid, _) = Sid::parse(body.rest())?;
            aces.push(Ace { kind, flags, access, sid });
        }
        Some(Self { aces })
    }

    /// Appends its bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        let u16_of = |n: usize| u16::try_from(len32(n)).unwrap_or(u16::MAX).to_le_bytes();
        out.extend_from_slice(&[2, 0]);
        out.extend_from_slice(&u16_of(self.len()));
        out.extend_from_slice(&u16_of(self.aces.len()));
        out.extend_from_slice(&[0, 0]);
        for ace in &self.aces {
            out.extend_from_slice(&[ace.kind.to_wire(), ace.flags.bits()]);
            out.extend_from_slice(&u16_of(ace.len()));
            out.extend_from_slice(&ace.access.bits().to_le_bytes());
            ace.sid.put(out);
        }
    }
}
