//! Who is it? NTLMv2 (MS-NLMP) in SPNEGO (RFC 4178), against a file of users.
//!
//! An [`Acceptor`] sees one session set-up, or one re-authentication, through: it is handed the security buffers of
//! the client and says what to answer. It asks [`Users`] for whom the client claims to be. [`UserFile`] is such a
//! set of users, [`Limiter`] slows down who guesses passwords. Other mechanisms than NTLM attach as
//! [`Mechanism`]s.

mod acceptor;
mod der;
mod limiter;
mod nthash;
pub mod ntlm;
mod refusal;
pub mod spnego;
mod users;

use std::fmt;
use std::time::Duration;

pub use acceptor::{Acceptor, Step};
pub use limiter::{Limiter, LimiterSettings, network};
pub use nthash::NtHash;
pub use refusal::{Reason, Refusal};
pub use users::{BadUserFile, BadUserName, NoSuchUser, UserFile, day_to_time, time_to_day};

use crate::FileTime;
use crate::crypto::SecretKey;

/// Somebody who may have a session.
#[derive(Clone, Debug)]
pub struct User {
    /// The name as it is written in the file of users.
    pub name: String,
    /// As whom files are touched; `None`: as the server runs.
    pub uid: Option<u32>,
    /// What the password hashes to; `None`: comes in by a ticket of Kerberos, and by no password.
    pub nt_hash: Option<NtHash>,
    /// May not log on.
    pub disabled: bool,
    /// May not log on from then on.
    pub expires: Option<FileTime>,
}

/// Where users are known.
pub trait Users {
    /// The user of this name, which is compared without regard to case. `domain` is what the client says; a server
    /// of its own users ignores it, since clients say there whatever they like.
    fn find(&self, name: &str, domain: &str) -> Option<User>;

    /// Whether to refuse this name unseen, because of what failed before; see [`Limiter`].
    fn locked_out(&self, name: &str, domain: &str) -> bool {
        let _ = (name, domain);
        false
    }
}

/// What a server says of itself, and whom it lets in.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// NetBIOS name of the server: up to 15 letters, commonly upper case.
    pub netbios_computer: String,
    /// NetBIOS name of the domain or workgroup.
    pub netbios_domain: String,
    /// DNS name of the server.
    pub dns_computer: String,
    /// DNS name of the domain; empty if there is none.
    pub dns_domain: String,
    /// A user who is not known gets a session as guest ("map to guest = Bad User"), instead of a refusal.
    pub guest: bool,
    /// Who gives no name gets an anonymous session, instead of a refusal.
    pub anonymous: bool,
    /// How far the client's clock may be from ours; `None`: as far as it likes.
    pub clock_skew: Option<Duration>,
}

/// What a step needs from outside.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Who may come in.
    pub users: &'a dyn Users,
    /// What time it is.
    pub now: FileTime,
    /// Random bytes, new for each step: the server's challenge, which must not be foreseen.
    pub random: [u8; 8],
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Input(at {:?})", self.now)
    }
}

/// Who has come in.
#[derive(Clone, Debug)]
pub struct Authenticated {
    /// As the file of users has it; as the client says it, for a guest; empty, if anonymous.
    pub user: String,
    /// As the client says it.
    pub domain: String,
    /// The client's name of itself.
    pub workstation: String,
    /// As whom files are touched; `None`: as the server runs, or as the guest.
    pub uid: Option<u32>,
    /// The key that [`SessionKeys`](crate::crypto::SessionKeys) are derived from. For a guest it is of no use:
    /// what the client has depends on a password that we do not know, so such a session can neither sign nor encrypt.
    pub session_key: SecretKey,
    /// An unknown user who came in as guest (SMB2_SESSION_FLAG_IS_GUEST).
    pub guest: bool,
    /// Somebody without a name (SMB2_SESSION_FLAG_IS_NULL). The key is known to everybody who listens.
    pub anonymous: bool,
    /// Somebody for whom another vouches, and whom [`Users`] do not know.
    pub vouched: bool,
    /// When the session ends unless it is authenticated anew: the end of a ticket.
    pub expires: Option<FileTime>,
    /// When the user's own time is over.
    pub user_expires: Option<FileTime>,
}

/// A way of authentication inside SPNEGO. NTLM is one; the engine may attach a GSSAPI mechanism.
pub trait Mechanism: Send {
    /// The content bytes of its object identifier, by which it is offered.
    fn oid(&self) -> &[u8];

    /// Whether it is meant by this identifier: some mechanisms have several.
    fn is(&self, oid: &[u8]) -> bool {
        oid == self.oid()
    }

    /// Whether its steps may block, so that who has others to serve lets a thread of its own take them.
    fn blocks(&self) -> bool {
        false
    }

    /// Takes the client's next token.
    fn step(&mut self, token: &[u8], input: &Input<'_>) -> MechanismStep;

    /// GSS_GetMIC over the list of mechanisms, once done. It does not block. `None`: this session has no keys that both ends know.
    fn make_mic(&mut self, message: &[u8]) -> Option<Vec<u8>>;

    /// GSS_VerifyMIC over the list of mechanisms, once done. `None`: this session has no keys that both ends know.
    fn verify_mic(&mut self, message: &[u8], mic: &[u8]) -> Option<bool>;
}

/// What a mechanism says to a token.
#[derive(Debug)]
pub enum MechanismStep {
    /// Send this, and expect more.
    Continue(Vec<u8>),
    /// It is this user. Send this, if it is not empty.
    Done(Box<Authenticated>, Vec<u8>),
    /// It is not to be let in.
    Refused(Box<Refusal>),
}

#[cfg(test)]
mod hex {
    /// The bytes of a test vector.
    pub(super) fn unhex(digits: &str) -> Vec<u8> {
        let byte =
            |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        let (pairs, rest) = digits.as_bytes().as_chunks();
        assert!(rest.is_empty());
        pairs.iter().map(byte).collect()
    }
}
