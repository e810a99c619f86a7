//! Why somebody is not let in.

use crate::NtStatus;

/// Why somebody is not let in: for the log, not for the client, who is told a status that says less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Reason {
    /// What the client sent cannot be read; which part.
    #[error("malformed {0}")]
    Malformed(&'static str),
    /// A token that does not fit what was said before, or one too many.
    #[error("a token out of turn")]
    OutOfTurn,
    /// The client offers no mechanism that we have.
    #[error("no common mechanism")]
    NoMechanism,
    /// The client writes names in a code page of its own.
    #[error("a client without Unicode")]
    NotUnicode,
    /// The response is LM, NTLM, or NTLM2 session response: too weak.
    #[error("a response older than NTLMv2")]
    OldResponse,
    /// A name, and nothing to prove it by: what a client tries with the name of its user, before it comes without a name.
    #[error("a name without a password")]
    NoPassword,
    /// Nobody has this name, and guests are not let in.
    #[error("unknown user")]
    UnknownUser,
    /// The response does not fit the user's password.
    #[error("wrong password")]
    WrongPassword,
    /// The user is disabled. The password was right.
    #[error("user is disabled")]
    Disabled,
    /// The user's time is over. The password was right.
    #[error("user has expired")]
    Expired,
    /// Too many failures before.
    #[error("too many failures")]
    LockedOut,
    /// Nobody comes in without a name.
    #[error("anonymous sessions are not allowed")]
    Anonymous,
    /// The messages of NTLM have been changed on the way.
    #[error("a wrong message integrity code")]
    BadMic,
    /// The list of mechanisms has been changed on the way.
    #[error("a wrong signature of the list of mechanisms")]
    BadMechListMic,
    /// The client's clock is too far from ours: an old response, sent again?
    #[error("the client's clock is too far away")]
    ClockSkew,
    /// A mechanism outside this crate refuses; [`Refusal::detail`] has its words.
    #[error("refused by the mechanism")]
    Mechanism,
    /// Files are touched as Unix users, and there is none for this one; [`Refusal::detail`] says why. The password was
    /// right.
    #[error("no Unix user")]
    NoAccount,
}

impl Reason {
    /// Each [`Self::key`] that there is.
    pub const KEYS: [&'static str; 17] = [
        "malformed",
        "out_of_turn",
        "no_mechanism",
        "not_unicode",
        "old_response",
        "no_password",
        "unknown_user",
        "wrong_password",
        "disabled",
        "expired",
        "locked_out",
        "anonymous",
        "bad_mic",
        "bad_mech_list_mic",
        "clock_skew",
        "mechanism",
        "no_account",
    ];

    /// A word that stays the same, for who counts them.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::OutOfTurn => "out_of_turn",
            Self::NoMechanism => "no_mechanism",
            Self::NotUnicode => "not_unicode",
            Self::OldResponse => "old_response",
            Self::NoPassword => "no_password",
            Self::UnknownUser => "unknown_user",
            Self::WrongPassword => "wrong_password",
            Self::Disabled => "disabled",
            Self::Expired => "expired",
            Self::LockedOut => "locked_out",
            Self::Anonymous => "anonymous",
            Self::BadMic => "bad_mic",
            Self::BadMechListMic => "bad_mech_list_mic",
            Self::ClockSkew => "clock_skew",
            Self::Mechanism => "mechanism",
            Self::NoAccount => "no_account",
        }
    }

    /// STATUS_ACCOUNT_EXPIRED: the user's time is over.
    const ACCOUNT_EXPIRED: NtStatus = NtStatus(0xc000_0193);

    /// What the client is told. It cannot tell an unknown user from a wrong password.
    #[must_use]
    pub fn status(self) -> NtStatus {
        match self {
            Self::Malformed(_) | Self::OutOfTurn | Self::NotUnicode | Self::BadMic => {
                NtStatus::INVALID_PARAMETER
            }
            Self::NoMechanism
            | Self::OldResponse
            | Self::NoPassword
            | Self::UnknownUser
            | Self::WrongPassword
            | Self::ClockSkew
            | Self::Mechanism => NtStatus::LOGON_FAILURE,
            Self::NoAccount => NtStatus::LOGON_TYPE_NOT_GRANTED,
            Self::Disabled => NtStatus::ACCOUNT_DISABLED,
            Self::Expired => Self::ACCOUNT_EXPIRED,
            Self::LockedOut => NtStatus::ACCOUNT_LOCKED_OUT,
            Self::Anonymous | Self::BadMechListMic => NtStatus::ACCESS_DENIED,
        }
    }

    /// Whether somebody may be guessing a password: what [`Limiter::failed`](super::Limiter::failed) is to be told.
    #[must_use]
    pub fn is_guess(self) -> bool {
        matches!(self, Self::UnknownUser | Self::WrongPassword | Self::OldResponse)
    }
}

/// Somebody who is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What the client is told.
    pub status: NtStatus,
    /// What the log is told.
    pub reason: Reason,
    /// Who it says it is; empty where it came not that far.
    pub user: String,
    /// Of which domain.
    pub domain: String,
    /// On which machine.
    pub workstation: String,
    /// What more the log is told; empty mostly.
    pub detail: String,
}

impl From<Reason> for Box<Refusal> {
    fn from(reason: Reason) -> Self {
        let (user, domain, workstation, detail) = Default::default();
        Self::new(Refusal { status: reason.status(), reason, user, domain, workstation, detail })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_counted_by_a_key_of_its_own() {
        use Reason::*;
        let all = [
            Malformed("x"),
            OutOfTurn,
            NoMechanism,
            NotUnicode,
            OldResponse,
            NoPassword,
            UnknownUser,
            WrongPassword,
            Disabled,
            Expired,
            LockedOut,
            Anonymous,
            BadMic,
            BadMechListMic,
            ClockSkew,
            Mechanism,
            NoAccount,
        ];
        assert_eq!(all.map(Reason::key), Reason::KEYS);
    }
}
