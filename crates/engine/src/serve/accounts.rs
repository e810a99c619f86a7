//! Which Unix user a session is (`unix_users`).

use std::io;
use std::sync::Arc;

use sys::accounts::Account as Entry;
use sys::acting::Credentials;

use super::acting::{Actor, act};
use super::fs::Unix;

/// Who has no rights of their own on Unix: guests, and those without a name.
const NOBODY: &str = "nobody";
/// The numbers of nobody where the host has no such name (the kernel's `overflowuid`).
const NOBODY_ID: u32 = 65_534;
/// Capabilities by which permissions are passed over (the kernel's CAP_FS_MASK).
const PASSING_OVER: u64 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 27;

/// A Unix user, as whom the server touches files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// What permission bits are compared with.
    pub(super) unix: Arc<Unix>,
    pub(super) actor: Arc<Actor>,
}

/// Why the server cannot act as its users.
#[derive(Debug, thiserror::Error)]
pub enum CannotAct {
    /// It may not.
    #[error(
        "acting as other users wants root, or CAP_SETUID and CAP_SETGID: {0}; without unix_users, all files are touched \
         as the user who runs this"
    )]
    Forbidden(io::Error),
    /// It would take more rights along than the users have.
    #[error(
        "acting as other users, the capabilities {0:#x} (CAP_DAC_OVERRIDE and its like) stay, and nobody would be refused \
         anything: run it as root, or without them"
    )]
    Capable(u64),
}

/// Why somebody has no Unix user here.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAccount {
    #[error("this host has no user {0:?}, and the file of users no number for them (--uid)")]
    Unknown(String),
    #[error("root, as whom nobody is served")]
    Root,
    #[error("the host's names of users: {0}")]
    Service(#[from] io::Error),
}

/// The way from users of SMB to users of Unix.
#[derive(Debug)]
pub(super) struct Accounts {
    own: Arc<Credentials>,
}

impl Accounts {
    /// Tries whether the server can act as somebody else, and then has no more rights than they.
    ///
    /// # Errors
    ///
    /// [`CannotAct`].
    pub(super) fn new() -> Result<Self, CannotAct> {
        let accounts =
            Self { own: Arc::new(Credentials::of_thread().map_err(CannotAct::Forbidden)?) };
        let nobody = accounts.account(NOBODY_ID, NOBODY_ID, &[]);
        let read = || std::fs::read_to_string("/proc/thread-self/status");
        let status = act(&Some(nobody.actor.clone()), read).and_then(|status| status);
        let left = effective(&status.map_err(CannotAct::Forbidden)?) & PASSING_OVER;
        if left == 0 { Ok(accounts) } else { Err(CannotAct::Capable(left)) }
    }

    /// The Unix user of a user: of that number, if there is one, or of that name. It may take its time.
    ///
    /// # Errors
    ///
    /// [`NoAccount`].
    pub(super) fn of_user(&self, name: &str, uid: Option<u32>) -> Result<Account, NoAccount> {
        let entry = match uid {
            Some(uid) => Entry::by_uid(uid)?,
            None => Some(Entry::by_name(name)?.ok_or_else(|| NoAccount::Unknown(name.to_owned()))?),
        };
        if uid == Some(0) || entry.as_ref().is_some_and(|entry| entry.uid == 0) {
            return Err(NoAccount::Root);
        }
        Ok(match (entry, uid) {
            (Some(entry), _) => self.account(entry.uid, entry.gid, &entry.groups()?),
            // Known here only: in nobody's group.
            (None, uid) => self.account(uid.unwrap_or(NOBODY_ID), NOBODY_ID, &[]),
        })
    }

    /// That of guests, and of those without a name. It may take its time.
    ///
    /// # Errors
    ///
    /// [`NoAccount`].
    pub(super) fn of_nobody(&self) -> Result<Account, NoAccount> {
        match self.of_user(NOBODY, None) {
            Err(NoAccount::Unknown(_)) => Ok(self.account(NOBODY_ID, NOBODY_ID, &[])),
            account => account,
        }
    }

    fn account(&self, uid: u32, gid: u32, groups: &[u32]) -> Account {
        let theirs = Credentials::new(uid, gid, groups);
        let mut gids = groups.to_vec();
        if !gids.contains(&gid) {
            gids.push(gid);
        }
        Account {
            unix: Arc::new(Unix { uid, gids }),
            actor: Arc::new(Actor::new(self.own.clone(), theirs)),
        }
    }
}

/// Effective capabilities, by `/proc/PID/status`; all, if it does not say.
fn effective(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this process may act as others.
    fn accounts() -> Option<Accounts> {
        match Accounts::new() {
            Ok(accounts) => Some(accounts),
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    #[test]
    fn users_are_found_by_number_or_by_name() {
        let Some(accounts) = accounts() else { return };
        let unknown = 3_999_999_999;
        let user = accounts.of_user("whoever", Some(unknown)).unwrap();
        assert_eq!(*user.unix, Unix { uid: unknown, gids: vec![NOBODY_ID] });
        let nobody = accounts.of_nobody().unwrap();
        assert_ne!(nobody.unix.uid, 0);
        let by_number = accounts.of_user("whoever", Some(nobody.unix.uid)).unwrap();
        assert_eq!(by_number.unix.uid, nobody.unix.uid, "whatever the name");
        let none = accounts.of_user("no such user, surely", None);
        assert!(matches!(none, Err(NoAccount::Unknown(_))));
    }

    #[test]
    fn nobody_is_root() {
        let Some(accounts) = accounts() else { return };
        for (name, uid) in [("root", None), ("ann", Some(0))] {
            let refused = accounts.of_user(name, uid);
            assert!(matches!(refused, Err(NoAccount::Root)), "{name}: {refused:?}");
        }
    }

    #[test]
    fn who_may_not_act_as_others_does_not_begin_to() {
        // A thread that is no user but one; root's has to become that first, and ends with the test.
        let own = Credentials::of_thread().unwrap();
        if own.uid() == 0
            && sys::acting::assume(&own, &Credentials::new(41_000, 41_000, &[])).is_err()
        {
            return println!("skipped: root without CAP_SETUID");
        }
        let refused = Accounts::new().unwrap_err();
        assert!(refused.to_string().contains("wants root"), "{refused}");
    }

    #[test]
    fn capabilities_are_read_and_missing_ones_are_all() {
        assert_eq!(effective("Name:\tx\nCapEff:\t00000000000000c2\nCapBnd:\t0\n"), 0xc2);
        assert_eq!(effective("Name:\tx\n"), u64::MAX);
    }
}
