//! What somebody may do with a file (MS-DTYP 2.5.3.2).

use bitflags::bitflags;

use super::{Ace, AceFlags, AceKind, Control, Descriptor, Sid};
use crate::{Access, NtStatus};

bitflags! {
    /// What somebody may do whatever descriptors say (MS-LSAD 3.1.1.2.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Privileges: u32 {
        /// SeSecurityPrivilege: read and change lists for audits.
        const SECURITY = 1;
        /// SeTakeOwnershipPrivilege: become the owner.
        const TAKE_OWNERSHIP = 2;
        /// SeBackupPrivilege: read everything. Only with FILE_OPEN_FOR_BACKUP_INTENT; leave it away else.
        const BACKUP = 4;
        /// SeRestorePrivilege: write everything. Only with FILE_OPEN_FOR_BACKUP_INTENT; leave it away else.
        const RESTORE = 8;
    }
}

/// Who somebody is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    /// The user.
    pub user: Sid,
    /// Everything else that the user is: groups, and roles like [`Sid::EVERYONE`].
    pub groups: Vec<Sid>,
    /// What the user may do anyway.
    pub privileges: Privileges,
}

impl Token {
    /// A user of these groups that came over the network. Whoever is not anonymous is one of
    /// [`Sid::AUTHENTICATED_USERS`].
    #[must_use]
    pub fn new(user: Sid, groups: &[Sid], privileges: Privileges) -> Self {
        let mut all = groups.to_vec();
        all.extend([Sid::EVERYONE, Sid::NETWORK]);
        if user != Sid::ANONYMOUS {
            all.push(Sid::AUTHENTICATED_USERS);
        }
        Self { user, groups: all, privileges }
    }

    /// A Unix user with these groups, the first of which is its own.
    #[must_use]
    pub fn unix(uid: u32, gids: &[u32]) -> Self {
        let groups: Vec<_> = gids.iter().map(|gid| Sid::unix_group(*gid)).collect();
        Self::new(Sid::unix_user(uid), &groups, Privileges::empty())
    }

    /// Whether `sid` is the user or something that the user is.
    #[must_use]
    pub fn is(&self, sid: &Sid) -> bool {
        self.user == *sid || self.groups.contains(sid)
    }

    fn owns(&self, descriptor: &Descriptor) -> bool {
        descriptor.owner.is_some_and(|owner| self.is(&owner))
    }
}

/// What an owner may do without being told so, unless an entry for [`Sid::OWNER_RIGHTS`] says otherwise.
const OWNERS: Access = Access::READ_CONTROL.union(Access::WRITE_DAC);
/// What [`Privileges::BACKUP`] allows.
const BACKUP: Access = Access::FILE_READ.union(Access::FILE_EXECUTE).union(Access::SYSTEM_SECURITY);
/// What [`Privileges::RESTORE`] allows.
const RESTORE: Access = Access::FILE_WRITE
    .union(Access::DELETE)
    .union(Access::WRITE_DAC)
    .union(Access::WRITE_OWNER)
    .union(Access::SYSTEM_SECURITY);

/// The entries that say something about `token`, in order.
fn about<'a>(
    descriptor: &'a Descriptor,
    token: &'a Token,
) -> impl Iterator<Item = &'a Ace> + use<'a> {
    let owns = token.owns(descriptor);
    effective(descriptor)
        .filter(move |ace| token.is(&ace.sid) || owns && ace.sid == Sid::OWNER_RIGHTS)
}

/// The entries that are not there just to be inherited.
fn effective(descriptor: &Descriptor) -> impl Iterator<Item = &Ace> {
    let aces = descriptor.dacl.iter().flat_map(|acl| &acl.aces);
    aces.filter(|ace| !ace.flags.contains(AceFlags::INHERIT_ONLY))
}

/// What an entry is about: rights that there are. A bit of a list that means something else in a request is
/// nothing that anybody could have.
fn rights(ace: &Ace) -> Access {
    ace.access.expanded().intersection(Access::FILE_ALL.union(Access::SYSTEM_SECURITY))
}

/// What the owner may do anyway: nothing for whom does not own it.
fn owners(descriptor: &Descriptor, token: &Token) -> Access {
    let explicit = || effective(descriptor).any(|ace| ace.sid == Sid::OWNER_RIGHTS);
    if token.owns(descriptor) && !explicit() { OWNERS } else { Access::empty() }
}

/// Whether there is a list that is no list: everybody may do everything.
fn is_open(descriptor: &Descriptor) -> bool {
    descriptor.dacl.is_none() && descriptor.control.contains(Control::DACL_PRESENT)
}

fn privileged(privileges: Privileges) -> Access {
    let all = [
        (Privileges::SECURITY, Access::SYSTEM_SECURITY),
        (Privileges::TAKE_OWNERSHIP, Access::WRITE_OWNER),
        (Privileges::BACKUP, BACKUP),
        (Privileges::RESTORE, RESTORE),
    ];
    let held = all.into_iter().filter(|(privilege, _)| privileges.contains(*privilege));
    held.fold(Access::empty(), |all, (_, access)| all | access)
}

/// All that `token` may do, besides what its privileges and the file's directory allow.
#[must_use]
pub fn maximum(descriptor: &Descriptor, token: &Token) -> Access {
    if is_open(descriptor) {
        return Access::FILE_ALL;
    }
    let (mut granted, mut denied) = (owners(descriptor, token), Access::empty());
    for ace in about(descriptor, token) {
        match ace.kind {
            AceKind::Allow => granted |= rights(ace).difference(denied),
            AceKind::Deny => denied |= rights(ace).difference(granted),
            AceKind::Audit | AceKind::Label => {}
        }
    }
    granted.difference(denied)
}

/// What an open that wishes for `desired` gets. `by_directory` is what the directory that the file is in
/// allows, whatever the file's own descriptor says: DELETE to who has FILE_DELETE_CHILD there,
/// FILE_READ_ATTRIBUTES to who has FILE_LIST_DIRECTORY there (MS-FSA 2.1.5.1.2.1).
///
/// With MAXIMUM_ALLOWED everything that is allowed; what is wished for besides must be.
///
/// # Errors
///
/// ACCESS_DENIED; PRIVILEGE_NOT_HELD if only the right to see lists for audits is missing.
pub fn check(
    descriptor: &Descriptor,
    token: &Token,
    desired: Access,
    by_directory: Access,
) -> Result<Access, NtStatus> {
    let mut desired = desired.expanded();
    let anyway = by_directory | privileged(token.privileges);
    if desired.contains(Access::MAXIMUM_ALLOWED) {
        desired.remove(Access::MAXIMUM_ALLOWED);
        // What a privilege allows must be asked for by name.
        desired |= maximum(descriptor, token) | by_directory;
    }
    let missing = if is_open(descriptor) {
        desired.intersection(Access::SYSTEM_SECURITY)
    } else {
        missing(descriptor, token, desired)
    };
    let missing = missing.difference(anyway);
    if missing.is_empty() {
        Ok(desired)
    } else if missing == Access::SYSTEM_SECURITY {
        Err(NtStatus::PRIVILEGE_NOT_HELD)
    } else {
        Err(NtStatus::ACCESS_DENIED)
    }
}

/// What of `desired` the entries do not allow, or deny before they allow it.
fn missing(descriptor: &Descriptor, token: &Token, desired: Access) -> Access {
    let mut missing = desired.difference(owners(descriptor, token));
    let mut denied = Access::empty();
    for ace in about(descriptor, token) {
        match ace.kind {
            AceKind::Allow => missing.remove(rights(ace)),
            AceKind::Deny => denied |= missing.intersection(rights(ace)),
            AceKind::Audit | AceKind::Label => {}
        }
    }
    missing | denied
}
