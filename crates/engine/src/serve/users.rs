//! Who may log on, and how often they may try.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use smb::NtStatus;
use smb::auth::{Reason, Refusal, User, UserFile, Users};

use super::server::Server;
use super::session::Session;

/// Whether who has this session may still be there, as the users file has it now; its time ends when that says.
pub(super) fn may_stay(users: &UserFile, session: &Session) -> bool {
    let who = session.identity();
    let named = !who.guest && !who.anonymous;
    let known = users.get(&who.user).filter(|_| named);
    session.user_ends(known.and_then(|user| user.expires));
    !named || known.map_or(who.vouched, |user| !user.disabled)
}

/// Who has just been let in may have been disabled while that was found out: whoever read the users again then has not
/// found the session.
///
/// # Errors
///
/// ACCOUNT_DISABLED: he may not, and the session has ended.
pub(super) fn must_stay(
    server: &Server,
    peer: SocketAddr,
    session: &Arc<Session>,
) -> Result<(), NtStatus> {
    let users = server.users.read().unwrap_or_else(PoisonError::into_inner).clone();
    if may_stay(&users, session) {
        return Ok(());
    }
    let (reason, who) = (Reason::Disabled, session.identity());
    server.refused(
        peer,
        &Refusal {
            status: reason.status(),
            reason,
            user: who.user.clone(),
            domain: who.domain.clone(),
            workstation: who.workstation.clone(),
            detail: "meanwhile".to_owned(),
        },
    );
    server.end_session(session, false);
    Err(reason.status())
}

/// The users of a server, as one connection may ask for them.
pub(super) struct KnownUsers<'s> {
    server: &'s Server,
    file: Arc<UserFile>,
    address: IpAddr,
}

impl<'s> KnownUsers<'s> {
    pub(super) fn new(server: &'s Server, address: IpAddr) -> Self {
        let file = server.users.read().unwrap_or_else(PoisonError::into_inner).clone();
        Self { server, file, address }
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.server.now_ms())
    }

    /// The user got in.
    pub(super) fn succeeded(&self, user: &str) {
        self.server.limiter().succeeded(user, self.address);
    }
}

impl Users for KnownUsers<'_> {
    fn find(&self, name: &str, domain: &str) -> Option<User> {
        self.file.find(name, domain)
    }

    fn locked_out(&self, name: &str, _domain: &str) -> bool {
        self.server.limiter().wait(name, self.address, self.now()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::server::tests::opened;
    use super::super::session::Identity;
    use super::*;

    #[test]
    fn who_was_disabled_while_he_logged_on_gets_no_session() {
        let folder = tempfile::tempdir().unwrap();
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let ann = || Identity { user: "ann".into(), ..Identity::default() };
        // The users file has nobody by now.
        for (who, stays) in [
            (ann(), false),
            (Identity { vouched: true, ..ann() }, true),
            (Identity { guest: true, ..ann() }, true),
            (Identity { anonymous: true, ..Identity::default() }, true),
        ] {
            let (server, session, _open) = opened(folder.path());
            session.renewed(who, None, None);
            let stayed = must_stay(&server, peer, &session);
            assert_eq!(stayed, if stays { Ok(()) } else { Err(NtStatus::ACCOUNT_DISABLED) });
            assert_eq!(session.is_closed(), !stays);
            assert_eq!(server.all_sessions().len(), usize::from(stays));
            server.end_session(&session, false);
        }
    }
}
