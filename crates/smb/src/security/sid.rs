//! Security identifiers (MS-DTYP 2.4.2).

use std::fmt;

/// Sub-authorities of a SID at most (MS-DTYP 2.4.2.2).
const SUBS_MAX: usize = 15;

/// Who: a user, a group, or a role like "whoever creates this".
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sid {
    /// 48 bits.
    authority: u64,
    count: u8,
    /// Those behind `count` are zero.
    subs: [u32; SUBS_MAX],
}

impl Sid {
    /// `S-1-1-0`: everyone.
    pub const EVERYONE: Self = Self::of(1, &[0]);
    /// `S-1-3-0`: stands for the owner of what inherits the entry.
    pub const CREATOR_OWNER: Self = Self::of(3, &[0]);
    /// `S-1-3-1`: stands for the group of what inherits the entry.
    pub const CREATOR_GROUP: Self = Self::of(3, &[1]);
    /// `S-1-3-4`: the owner; an entry for it replaces what owners may do anyway.
    pub const OWNER_RIGHTS: Self = Self::of(3, &[4]);
    /// `S-1-5-1`: whoever comes over a modem.
    pub const DIALUP: Self = Self::of(5, &[1]);
    /// `S-1-5-2`: whoever comes over the network.
    pub const NETWORK: Self = Self::of(5, &[2]);
    /// `S-1-5-3`: what runs for somebody who is not there.
    pub const BATCH: Self = Self::of(5, &[3]);
    /// `S-1-5-4`: whoever sits at the machine.
    pub const INTERACTIVE: Self = Self::of(5, &[4]);
    /// `S-1-5-6`: services.
    pub const SERVICE: Self = Self::of(5, &[6]);
    /// `S-1-5-7`: whoever has not said who it is.
    pub const ANONYMOUS: Self = Self::of(5, &[7]);
    /// `S-1-5-10`: the object itself.
    pub const SELF: Self = Self::of(5, &[10]);
    /// `S-1-5-11`: whoever has said who it is.
    pub const AUTHENTICATED_USERS: Self = Self::of(5, &[11]);
    /// `S-1-5-18`: the system itself.
    pub const SYSTEM: Self = Self::of(5, &[18]);
    /// `S-1-5-32`: the domain of the groups that every machine has.
    pub const BUILTIN: Self = Self::of(5, &[32]);
    /// `S-1-5-32-544`: administrators.
    pub const ADMINISTRATORS: Self = Self::of(5, &[32, 544]);
    /// `S-1-5-32-545`: users.
    pub const USERS: Self = Self::of(5, &[32, 545]);
    /// `S-1-5-32-546`: guests.
    pub const GUESTS: Self = Self::of(5, &[32, 546]);

    /// `S-1-22-1`: the domain of Unix users.
    pub const UNIX_USERS: Self = Self::of(22, &[1]);
    /// `S-1-22-2`: the domain of Unix groups.
    pub const UNIX_GROUPS: Self = Self::of(22, &[2]);

    /// With an authority and sub-authorities. More than fifteen are cut.
    const fn of(authority: u64, from: &[u32]) -> Self {
        let mut subs = [0; SUBS_MAX];
        let mut count = 0;
        while (count as usize) < from.len() && (count as usize) < SUBS_MAX {
            subs[count as usize] = from[count as usize];
            count += 1;
        }
        Self { authority, count, subs }
    }

    /// With an authority (48 bits) and at most fifteen sub-authorities; `None` if there are more.
    #[must_use]
    pub fn new(authority: u64, subs: &[u32]) -> Option<Self> {
        (subs.len() <= SUBS_MAX && authority >> 48 == 0).then(|| Self::of(authority, subs))
    }

    /// A Unix user: `S-1-22-1-uid`, as Samba has it.
    #[must_use]
    pub const fn unix_user(uid: u32) -> Self {
        Self::of(22, &[1, uid])
    }

    /// A Unix group: `S-1-22-2-gid`, as Samba has it.
    #[must_use]
    pub const fn unix_group(gid: u32) -> Self {
        Self::of(22, &[2, gid])
    }

    /// The user id, of what [`Sid::unix_user`] makes.
    #[must_use]
    pub fn to_uid(&self) -> Option<u32> {
        match (self.authority, self.subs()) {
            (22, [1, uid]) => Some(*uid),
            _ => None,
        }
    }

    /// The group id, of what [`Sid::unix_group`] makes.
    #[must_use]
    pub fn to_gid(&self) -> Option<u32> {
        match (self.authority, self.subs()) {
            (22, [2, gid]) => Some(*gid),
            _ => None,
        }
    }

    /// Permission bits as a Linux client says them where the POSIX extensions are agreed on: `S-1-5-88-3-mode`.
    #[must_use]
    pub const fn unix_mode(mode: u32) -> Self {
        Self::of(5, &[88, 3, mode])
    }

    /// The permission bits, of what [`Sid::unix_mode`] makes.
    #[must_use]
    pub fn to_mode(&self) -> Option<u32> {
        match (self.authority, self.subs()) {
            (5, [88, 3, mode]) => Some(*mode & 0o7777),
            _ => None,
        }
    }

    /// The domain that it is in: without its last sub-authority.
    #[must_use]
    pub fn parent(&self) -> Self {
        let subs = self.subs();
        Self::of(self.authority, subs.split_last().map_or(subs, |(_, others)| others))
    }

    /// The sub-authorities.
    #[must_use]
    pub fn subs(&self) -> &[u32] {
        self.subs.get(..self.count.into()).unwrap_or(&self.subs)
    }

    /// Bytes that it takes.
    #[expect(clippy::len_without_is_empty, reason = "no SID takes no bytes")]
    #[must_use]
    pub fn len(&self) -> usize {
        8 + 4 * usize::from(self.count)
    }

    /// Reads one from the beginning of `bytes`; also says how many of them it took. `None` if it is no SID
    /// or is cut off.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let (&[revision, count, a, b, c, d, e, f], rest) = bytes.split_first_chunk::<8>()?;
        if revision != 1 || usize::from(count) > SUBS_MAX {
            return None;
        }
        let authority = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        let (words, _) = rest.get(..usize::from(count) * 4)?.as_chunks::<4>();
        let mut sid = Self { authority, count, subs: [0; SUBS_MAX] };
        for (sub, word) in sid.subs.iter_mut().zip(words) {
            *sub = u32::from_le_bytes(*word);
        }
        Some((sid, sid.len()))
    }

    /// Appends its bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[1, self.count]);
        out.extend_from_slice(&self.authority.to_be_bytes()[2..]);
        self.subs().iter().for_each(|sub| out.extend_from_slice(&sub.to_le_bytes()));
    }
}

impl fmt::Display for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.authority >> 32 == 0 {
            write!(f, "S-1-{}", self.authority)?;
        } else {
            write!(f, "S-1-{:#014x}", self.authority)?;
        }
        self.subs().iter().try_for_each(|sub| write!(f, "-{sub}"))
    }
}

impl fmt::Debug for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
