//! Owner, group and mode as a descriptor, and back.
//!
//! Permissions to read and to write a file make up what Windows has many rights for. Who may read a file may
//! also execute it: clients run programs from shares whose files have no `x`, and a server cannot tell reading
//! from running anyway. Of directories `x` counts.

use super::{Ace, AceKind, Acl, Descriptor, Sid, Token, maximum};
use crate::{Access, Attributes};

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXECUTE: u32 = 1;
/// What everybody may see: that the file is there, and who may do what with it.
const LOOK: Access = Access::READ_ATTRIBUTES.union(Access::READ_CONTROL).union(Access::SYNCHRONIZE);
/// What an owner may do beside what the mode says.
const OWN: Access = LOOK
    .union(Access::WRITE_ATTRIBUTES)
    .union(Access::WRITE_DAC)
    .union(Access::WRITE_OWNER)
    .union(Access::DELETE);

/// The rights that three permission bits stand for.
fn rights(bits: u32, directory: bool) -> Access {
    let mut access = Access::empty();
    if bits & READ != 0 {
        access |= Access::FILE_READ;
    }
    if bits & WRITE != 0 {
        access |= Access::FILE_WRITE;
        if directory {
            access |= Access::DELETE_CHILD;
        }
    }
    if bits & EXECUTE != 0 || bits & READ != 0 && !directory {
        access |= Access::FILE_EXECUTE;
    }
    access
}

/// The descriptor of a file of `uid` and `gid` with these permission bits. Who owns it may do everything if
/// the mode lets it read and write (and search, a directory); a group or others that may do less than those
/// after them are denied first, as POSIX asks only the first that fits.
#[must_use]
pub fn from_posix(uid: u32, gid: u32, mode: u32, attributes: Attributes) -> Descriptor {
    let directory = attributes.contains(Attributes::DIRECTORY);
    let (owner, group) = (Sid::unix_user(uid), Sid::unix_group(gid));
    let [for_owner, for_group, for_others] =
        [6, 3, 0].map(|shift| rights(mode >> shift & 7, directory));
    let all = READ | WRITE | if directory { EXECUTE } else { 0 };
    let for_owner = if mode >> 6 & all == all { Access::FILE_ALL } else { for_owner | OWN };
    // What must be taken away is what later entries would give; looking is never taken away.
    let denied = |earlier: Access, later: Access| later.difference(earlier | LOOK);
    let owner_denied = denied(for_owner, for_group | for_others);
    let group_denied = denied(for_group, for_others);
    let deny = [(owner, owner_denied), (group, group_denied)];
    let mut aces: Vec<Ace> = Vec::with_capacity(5);
    aces.extend(deny[..1].iter().filter(|d| !d.1.is_empty()).map(|d| Ace::deny(d.0, d.1)));
    aces.push(Ace::allow(owner, for_owner));
    aces.extend(deny[1..].iter().filter(|d| !d.1.is_empty()).map(|d| Ace::deny(d.0, d.1)));
    aces.push(Ace::allow(group, for_group | LOOK));
    aces.push(Ace::allow(Sid::EVERYONE, for_others | LOOK));
    Descriptor::new(owner, group, Acl { aces })
}

/// The permission bits that come nearest to a descriptor, for programs that see the file without us: what
/// the owner, the group and everyone may do by it. The `x` of a file stays as it is in `mode` as far as it
/// may be read; the type of file and the bits above the permissions stay as they are.
#[must_use]
pub fn to_posix(descriptor: &Descriptor, mode: u32, attributes: Attributes) -> u32 {
    let directory = attributes.contains(Attributes::DIRECTORY);
    let everyone = Token { groups: vec![Sid::EVERYONE], ..Token::default() };
    let with = |sid: Option<Sid>| match sid {
        Some(sid) => Token { user: sid, ..everyone.clone() },
        None => everyone.clone(),
    };
    let bits = |token: &Token, before: u32| {
        let access = maximum(descriptor, token);
        let mut bits = 0;
        if access.contains(Access::READ_DATA) {
            bits |= READ;
        }
        if access.contains(Access::WRITE_DATA) {
            bits |= WRITE;
        }
        if directory && access.contains(Access::EXECUTE)
            || bits & READ != 0 && !directory && before & 1 != 0
        {
            bits |= EXECUTE;
        }
        bits
    };
    let owner = bits(&with(descriptor.owner), mode >> 6);
    let group = bits(&with(descriptor.group), mode >> 3);
    let others = bits(&with(None), mode);
    mode & !0o777 | owner << 6 | group << 3 | others
}

/// Whether a descriptor is one that [`from_posix`] makes of these: then it need not be stored.
#[must_use]
pub fn is_posix(
    descriptor: &Descriptor,
    uid: u32,
    gid: u32,
    mode: u32,
    attributes: Attributes,
) -> bool {
    let plain = from_posix(uid, gid, mode, attributes);
    plain.dacl == descriptor.dacl
        && descriptor.owner == plain.owner
        && descriptor.group == plain.group
        && !descriptor.sacl.iter().flat_map(|acl| &acl.aces).any(|ace| ace.kind == AceKind::Audit)
}
