//! Who may do what with a file: the descriptor that it carries, or else its POSIX mode.

use std::sync::Arc;

use smb::fscc::Facts;
use smb::security::{
    Control, Descriptor, SecurityInfo, Token, check, from_posix, inherited, is_posix, maximum,
    to_posix,
};
use smb::security::{Privileges, Sid};
use smb::{Access, NtStatus};

use super::fs::{Handle, Posix, Unix, allowed};
use super::server::{Server, SharePoint};
use super::session::Identity;

/// What may be done in a share that is read-only.
const READING: Access = Access::FILE_READ.union(Access::FILE_EXECUTE);
/// What the owner of a file keeps on disk whatever a stored descriptor says: the server itself must get at it.
const OWNER_BITS: u32 = 0o600;
/// The same of a folder.
const OWNER_FOLDER_BITS: u32 = 0o700;

/// Somebody who wants something of a file.
#[derive(Clone)]
pub(super) struct Asker {
    token: Token,
    unix: Arc<Unix>,
    /// As whom lists of rights know who is `unix` here.
    uid: u32,
    read_only: bool,
}

/// What somebody gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rights {
    /// Of what was asked for, with MAXIMUM_ALLOWED all that there is.
    pub(super) granted: Access,
    /// What could be had at most. Known only if it was asked for.
    pub(super) maximal: Access,
}

impl Asker {
    /// The user of a session, at a share.
    pub(super) fn new(identity: &Identity, point: &SharePoint, server: &Server) -> Self {
        let unix = match &identity.account {
            Some(account) => account.unix.clone(),
            None => server.unix.clone(),
        };
        let token = match identity {
            Identity { anonymous: true, .. } => {
                Token::new(Sid::ANONYMOUS, &[], Privileges::empty())
            }
            Identity { guest: true, .. } => Token::new(Sid::GUESTS, &[], Privileges::empty()),
            Identity { account: Some(_), .. } => Token::unix(unix.uid, &unix.gids),
            user => Token::unix(user.uid.unwrap_or(unix.uid), &unix.gids),
        };
        let uid = token.user.to_uid().unwrap_or(unix.uid);
        Self { token, unix, uid, read_only: point.config.read_only }
    }

    /// The owner of a file, as lists have it. As long as a file of the server's own has no list, everybody who asks may do
    /// with it what its owner may, and is shown as that; who gives it a list is its owner from then on.
    fn owner(&self, facts: &Facts) -> u32 {
        if facts.uid == self.unix.uid { self.uid } else { facts.uid }
    }

    /// What owner, group and mode amount to.
    pub(super) fn plain(&self, facts: &Facts) -> Descriptor {
        from_posix(self.owner(facts), facts.gid, facts.mode, facts.attributes)
    }

    /// The descriptor of a file: the one that was set, or what owner, group and mode amount to.
    ///
    /// # Errors
    ///
    /// As [`stored`].
    pub(super) fn descriptor(
        &self,
        handle: &Handle,
        facts: &Facts,
    ) -> Result<Descriptor, NtStatus> {
        Ok(stored(handle, facts)?.unwrap_or_else(|| self.plain(facts)))
    }

    /// Whether a descriptor may name this one as owner.
    pub(super) fn may_own(&self, sid: &Sid) -> bool {
        self.token.is(sid)
    }

    /// What an open of a file gets that wishes for `desired`, which is expanded. `maximal`: what could be had at
    /// most is wanted too.
    ///
    /// # Errors
    ///
    /// ACCESS_DENIED; PRIVILEGE_NOT_HELD if only the right to see lists for audits is missing; what the file
    /// system says when it is asked about the file or its folder.
    pub(super) fn rights(
        &self,
        handle: &Handle,
        facts: &Facts,
        desired: Access,
        maximal: bool,
    ) -> Result<Rights, NtStatus> {
        let all = maximal || desired.contains(Access::MAXIMUM_ALLOWED);
        let mut rights = match stored(handle, facts)? {
            Some(descriptor) => self.by_descriptor(handle, facts, &descriptor, desired, all)?,
            None => self.by_mode(handle, facts, desired, all)?,
        };
        if self.read_only {
            rights.maximal &= READING;
            if desired.contains(Access::MAXIMUM_ALLOWED) {
                rights.granted &= READING | (desired - Access::MAXIMUM_ALLOWED);
            }
            if !(READING | Access::SYNCHRONIZE).contains(rights.granted) {
                return Err(NtStatus::ACCESS_DENIED);
            }
        }
        Ok(rights)
    }

    fn by_descriptor(
        &self,
        handle: &Handle,
        facts: &Facts,
        descriptor: &Descriptor,
        desired: Access,
        all: bool,
    ) -> Result<Rights, NtStatus> {
        let mut by_folder = Access::empty();
        if all || desired.intersects(Access::DELETE | Access::READ_ATTRIBUTES) {
            by_folder = self.by_folder(handle, facts)?;
        }
        let maximal =
            if all { maximum(descriptor, &self.token) | by_folder } else { Access::empty() };
        Ok(Rights { granted: check(descriptor, &self.token, desired, by_folder)?, maximal })
    }

    fn by_mode(
        &self,
        handle: &Handle,
        facts: &Facts,
        desired: Access,
        all: bool,
    ) -> Result<Rights, NtStatus> {
        if desired.contains(Access::SYSTEM_SECURITY) {
            return Err(NtStatus::PRIVILEGE_NOT_HELD);
        }
        let mut maximal = allowed(facts, None, &self.unix);
        let named = desired - Access::MAXIMUM_ALLOWED;
        if (all || named.contains(Access::DELETE)) && !maximal.contains(Access::DELETE) {
            // The root of the share has no folder that would say so, and is never deleted; who owns it may ask for all.
            let owns_root = handle.is_root() && self.unix.uid == facts.uid;
            maximal |= match owns_root {
                true => Access::DELETE,
                false => self.by_folder(handle, facts)? & Access::DELETE,
            };
        }
        if !maximal.contains(named) {
            return Err(NtStatus::ACCESS_DENIED);
        }
        let all = desired.contains(Access::MAXIMUM_ALLOWED);
        Ok(Rights { granted: if all { named | maximal } else { named }, maximal })
    }

    /// What the folder of a file allows, whatever the file's own descriptor says.
    fn by_folder(&self, handle: &Handle, facts: &Facts) -> Result<Access, NtStatus> {
        let mut access = Access::empty();
        if let Some(bytes) = handle.folder_security()? {
            let folder = maximum(&Descriptor::parse(&bytes)?, &self.token);
            if folder.contains(Access::DELETE_CHILD) {
                access |= Access::DELETE;
            }
            if folder.contains(Access::READ_DATA) {
                access |= Access::READ_ATTRIBUTES;
            }
        } else if let Some(folder) = handle.folder_facts()? {
            access |= allowed(facts, Some(&folder), &self.unix) & Access::DELETE;
            if allowed(&folder, None, &self.unix).contains(Access::READ_DATA) {
                access |= Access::READ_ATTRIBUTES;
            }
        }
        Ok(access)
    }

    /// Whether a name may be added to a folder, or a stream to a file. `stored` is the descriptor that this has.
    ///
    /// # Errors
    ///
    /// ACCESS_DENIED if not.
    pub(super) fn may_add(
        &self,
        to: &Facts,
        stored: Option<&Descriptor>,
        wanted: Access,
    ) -> Result<(), NtStatus> {
        if self.read_only {
            return Err(NtStatus::ACCESS_DENIED);
        }
        match stored {
            Some(descriptor) => check(descriptor, &self.token, wanted, Access::empty()).map(drop),
            None if allowed(to, None, &self.unix).contains(wanted) => Ok(()),
            None => Err(NtStatus::ACCESS_DENIED),
        }
    }

    /// Gives a new file the descriptor that its creator, who asks, wishes for, or that it inherits. Whether that changed
    /// it.
    ///
    /// # Errors
    ///
    /// INVALID_SECURITY_DESCR and its like, and what the file system says.
    pub(super) fn set_first(
        &self,
        handle: &Handle,
        facts: &Facts,
        wished: Option<&[u8]>,
        folder: Option<&Descriptor>,
    ) -> Result<bool, NtStatus> {
        let (owner, group) = (Sid::unix_user(self.owner(facts)), Sid::unix_group(facts.gid));
        let first = folder.and_then(|folder| inherited(folder, owner, group, facts.is_directory()));
        let first = match (wished, first) {
            (None, None) => return Ok(false),
            (None, Some(first)) => first,
            (Some(bytes), first) => {
                let wished = Descriptor::parse(bytes)?;
                let mut info = SecurityInfo::empty();
                info.set(SecurityInfo::OWNER, wished.owner.is_some());
                info.set(SecurityInfo::GROUP, wished.group.is_some());
                info.set(SecurityInfo::DACL, wished.control.contains(Control::DACL_PRESENT));
                first.unwrap_or_else(|| self.plain(facts)).changed(&wished, info)?
            }
        };
        self.store(handle, facts, &first)?;
        Ok(true)
    }

    /// Makes a descriptor count: as owner, group and mode if they say all of it, or beside them.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub(super) fn store(
        &self,
        handle: &Handle,
        facts: &Facts,
        new: &Descriptor,
    ) -> Result<(), NtStatus> {
        let (owner, gid, attributes) = (self.owner(facts), facts.gid, facts.attributes);
        let mode = to_posix(new, facts.mode, attributes);
        let usual = Control::DACL_PRESENT
            | Control::SELF_RELATIVE
            | Control::OWNER_DEFAULTED
            | Control::GROUP_DEFAULTED;
        // A mode says nothing of an owner whom the host does not know: only what says nothing new need not be kept.
        let says_all = owner == facts.uid || !facts.secured && mode == facts.mode;
        let is_plain = says_all
            && new.control.difference(usual).is_empty()
            && new.sacl.is_none()
            && is_posix(new, owner, gid, mode, attributes);
        let mode = match (is_plain, facts.is_directory()) {
            (true, _) => mode,
            (false, false) => mode | OWNER_BITS,
            (false, true) => mode | OWNER_FOLDER_BITS,
        };
        if mode != facts.mode {
            handle.set_posix(Posix { mode: Some(mode), ..Posix::default() })?;
        }
        if is_plain {
            if facts.secured { handle.set_security(None) } else { Ok(()) }
        } else {
            handle.set_security(Some(&new.to_bytes()))
        }
    }
}

/// A descriptor that was set, if one was.
///
/// # Errors
///
/// What the file system says, and INVALID_SECURITY_DESCR for one that is none.
pub(super) fn stored(handle: &Handle, facts: &Facts) -> Result<Option<Descriptor>, NtStatus> {
    if !facts.secured {
        return Ok(None);
    }
    handle.security()?.map(|bytes| Descriptor::parse(&bytes)).transpose()
}

/// A number for a name, the same whatever its case, never zero.
pub(super) fn name_hash(name: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    smb::name::fold(name).hash(&mut hasher);
    hasher.finish() | 1
}
