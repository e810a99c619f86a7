//! Letting clients in by tickets of Kerberos (RFC 4121, MS-KILE), as the system's GSSAPI judges them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use smb::FileTime;
use smb::auth::{Authenticated, Input, Mechanism, MechanismStep, Reason, Refusal, spnego};
use smb::crypto::SecretKey;
use sys::gssapi::{Context, Credential, Failure, Library, LoadError};

/// Ticks of a [`FileTime`] in a second.
const TICKS: u64 = 10_000_000;

/// Why nobody can be let in by Kerberos.
#[derive(Debug, thiserror::Error)]
pub enum NoKerberos {
    /// There is no library.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// The keys.
    #[error(
        "{}: {failure} (it must be a keytab that the server may read, with a key of cifs/HOST@REALM: `klist -k {}`)",
        path.display(), path.display()
    )]
    Keytab {
        /// Where they should be.
        path: PathBuf,
        /// What the library says of them.
        failure: Failure,
    },
}

/// Whether a server that runs as we do could let clients in with these keys.
///
/// # Errors
///
/// [`NoKerberos`].
pub fn try_keytab(keytab: &Path) -> Result<(), NoKerberos> {
    Kerberos::new(keytab, false).map(drop)
}

/// The keys of this server.
#[derive(Debug)]
pub(super) struct Kerberos {
    credential: Arc<Credential>,
    /// Whether those get in whom the file of users does not know.
    realm_users: bool,
}

impl Kerberos {
    /// Loads the library, and looks whether there are keys.
    ///
    /// # Errors
    ///
    /// [`NoKerberos`].
    pub(super) fn new(keytab: &Path, realm_users: bool) -> Result<Self, NoKerberos> {
        let library = Library::load()?;
        let credential = Credential::from_keytab(&library, keytab)
            .map_err(|failure| NoKerberos::Keytab { path: keytab.to_owned(), failure })?;
        Ok(Self { credential: Arc::new(credential), realm_users })
    }

    /// What hears one client.
    pub(super) fn mechanism(&self) -> Box<dyn Mechanism> {
        let context = Context::new(self.credential.clone());
        Box::new(Ticket { context, realm_users: self.realm_users })
    }
}

/// A client with a ticket.
struct Ticket {
    context: Context,
    realm_users: bool,
}

/// A principal without its realm, and its realm: a realm has no @, and one in a name has a backslash before it.
fn split(principal: &str) -> (&str, &str) {
    principal.rsplit_once('@').unwrap_or((principal, ""))
}

/// Whether it is the principal of nobody, of whichever realm (RFC 8062 3): a centre may issue its tickets to who has
/// a password, and without the flag that says so.
fn is_nobody(principal: &str) -> bool {
    split(principal).0 == "WELLKNOWN/ANONYMOUS"
}

/// What the log is told.
fn refusal(reason: Reason, principal: &str, detail: String) -> Box<Refusal> {
    let (user, domain) = split(principal);
    let mut refusal: Box<Refusal> = reason.into();
    (refusal.user, refusal.domain, refusal.detail) = (user.to_owned(), domain.to_owned(), detail);
    refusal
}

impl Ticket {
    /// Who it is, now that it is somebody.
    fn judge(&self, input: &Input<'_>) -> Result<Authenticated, Box<Refusal>> {
        let failed = |failure: Failure| refusal(Reason::Mechanism, "", failure.words);
        let principal = self.context.principal().map_err(failed)?;
        let no = |reason, detail: &str| Err(refusal(reason, &principal, detail.to_owned()));
        if self.context.is_anonymous() || is_nobody(&principal) {
            return no(Reason::Anonymous, "a ticket of nobody");
        }
        if !self.context.is_mutual() {
            return no(Reason::Mechanism, "the client does not want to know who we are");
        }
        let name = match self.context.local_name() {
            Ok(name) => name,
            Err(failure) => return no(Reason::UnknownUser, &failure.words),
        };
        let (_, realm) = split(&principal);
        let known = input.users.find(&name, realm);
        let vouched = known.is_none();
        let user_expires = known.as_ref().and_then(|user| user.expires);
        let (user, uid) = match known {
            Some(user) if user.disabled => return no(Reason::Disabled, ""),
            Some(user) if user.expires.is_some_and(|end| input.now >= end) => {
                return no(Reason::Expired, "");
            }
            Some(user) => (user.name, user.uid),
            None if self.realm_users => (name, None),
            None => return no(Reason::UnknownUser, "not in the file of users"),
        };
        let key = self.context.session_key(SecretKey::new).map_err(failed)?;
        let end = |lifetime: Duration| {
            FileTime(input.now.0.saturating_add(lifetime.as_secs().saturating_mul(TICKS)))
        };
        Ok(Authenticated {
            user,
            domain: realm.to_owned(),
            workstation: String::new(),
            uid,
            session_key: key,
            guest: false,
            anonymous: false,
            vouched,
            expires: self.context.lifetime().map(end),
            // Who may come in no more may not stay either.
            user_expires,
        })
    }
}

impl Mechanism for Ticket {
    fn oid(&self) -> &[u8] {
        spnego::KERBEROS
    }

    fn is(&self, oid: &[u8]) -> bool {
        oid == spnego::KERBEROS || oid == spnego::MS_KERBEROS
    }

    fn blocks(&self) -> bool {
        true
    }

    fn step(&mut self, token: &[u8], input: &Input<'_>) -> MechanismStep {
        match self.context.step(token) {
            Ok(step) if !step.done => MechanismStep::Continue(step.token),
            Ok(step) => match self.judge(input) {
                Ok(who) => MechanismStep::Done(Box::new(who), step.token),
                Err(refusal) => MechanismStep::Refused(refusal),
            },
            Err(failure) => MechanismStep::Refused(refusal(Reason::Mechanism, "", failure.words)),
        }
    }

    fn make_mic(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        self.context.sign(message).ok()
    }

    fn verify_mic(&mut self, message: &[u8], mic: &[u8]) -> Option<bool> {
        Some(self.context.verify(message, mic))
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({:?})", self.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_realm_is_what_is_behind_the_last_at() {
        assert_eq!(split("ann@EXAMPLE.COM"), ("ann", "EXAMPLE.COM"));
        assert_eq!(split(r"a\@b@EXAMPLE.COM"), (r"a\@b", "EXAMPLE.COM"));
        assert_eq!(split("ann"), ("ann", ""));
    }

    #[test]
    fn nobody_has_a_name() {
        for nobody in ["WELLKNOWN/ANONYMOUS@WELLKNOWN:ANONYMOUS", "WELLKNOWN/ANONYMOUS@SHUNT.TEST"]
        {
            assert!(is_nobody(nobody), "{nobody}");
        }
        for somebody in
            [r"WELLKNOWN\/ANONYMOUS@SHUNT.TEST", "ANONYMOUS@SHUNT.TEST", "ann@SHUNT.TEST"]
        {
            assert!(!is_nobody(somebody), "{somebody}");
        }
    }

    #[test]
    fn keys_that_are_not_there_are_named() {
        let error = Kerberos::new(Path::new("/nonexistent/keytab"), false).unwrap_err().to_string();
        // Which of the two it is depends on the machine.
        assert!(
            error.contains("klist -k /nonexistent/keytab") || error.contains("install"),
            "{error}"
        );
    }
}
