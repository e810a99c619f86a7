//! The server's end (MS-NLMP 3.2.5).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use zeroize::Zeroizing;

use super::flags;
use super::keys::{self, Key, Way};
use super::message::{self, Authenticate, MIC_AT, MIC_LEN, Response};
use crate::FileTime;
use crate::auth::{
    Authenticated, Input, Mechanism, MechanismStep, NtHash, Reason, Refusal, Settings, User, spnego,
};
use crate::crypto::SecretKey;

/// What we agree to, if the client asks for it.
const OPTIONAL: u32 = flags::SIGN
    | flags::SEAL
    | flags::ALWAYS_SIGN
    | flags::EXTENDED_SECURITY
    | flags::VERSION
    | flags::KEY_128
    | flags::KEY_56
    | flags::KEY_EXCHANGE;

/// One authentication by NTLMv2, seen from the server.
pub struct Ntlm {
    settings: Arc<Settings>,
    state: State,
}

enum State {
    Negotiate,
    Authenticate {
        negotiate: Vec<u8>,
        challenge_message: Vec<u8>,
        challenge: [u8; 8],
        flags: u32,
    },
    /// A guest has no key.
    Done {
        keys: Option<(Key, u32)>,
    },
}

impl Ntlm {
    /// Waits for the client's NEGOTIATE message.
    #[must_use]
    pub fn new(settings: Arc<Settings>) -> Self {
        Self { settings, state: State::Negotiate }
    }

    /// Whether bytes are a message of NTLM: some clients send it without SPNEGO around.
    #[must_use]
    pub fn is_message(token: &[u8]) -> bool {
        token.starts_with(&message::SIGNATURE)
    }

    fn challenge(&mut self, token: &[u8], input: &Input<'_>) -> Result<Vec<u8>, Reason> {
        let asked = message::negotiate(token)?;
        let names = match asked & (flags::UNICODE | flags::OEM) {
            0 => return Err(Reason::NotUnicode),
            flags::OEM => flags::OEM,
            _ => flags::UNICODE,
        };
        let flags = asked & OPTIONAL
            | names
            | flags::REQUEST_TARGET
            | flags::NTLM
            | flags::TARGET_TYPE_SERVER
            | flags::TARGET_INFO;
        let challenge_message = message::challenge(&self.settings, flags, input.random, input.now);
        self.state = State::Authenticate {
            negotiate: token.to_vec(),
            challenge_message: challenge_message.clone(),
            challenge: input.random,
            flags,
        };
        Ok(challenge_message)
    }
}

/// What the client's last message is judged against.
struct Judge<'a> {
    settings: &'a Settings,
    input: &'a Input<'a>,
    negotiate: &'a [u8],
    challenge_message: &'a [u8],
    challenge: [u8; 8],
    flags: u32,
}

impl Judge<'_> {
    /// Who it is, and the keys of both ends.
    fn judge(
        &self,
        token: &[u8],
        said: &Authenticate<'_>,
    ) -> Result<(Authenticated, Option<(Key, u32)>), Reason> {
        let flags = self.flags & said.flags;
        let mut who = Authenticated {
            user: String::new(),
            domain: said.domain.clone(),
            workstation: said.workstation.clone(),
            uid: None,
            session_key: SecretKey::new(&[0; SecretKey::SHORT]),
            guest: false,
            anonymous: false,
            vouched: false,
            expires: None,
            user_expires: None,
        };
        if said.is_anonymous() {
            if !self.settings.anonymous {
                return Err(Reason::Anonymous);
            }
            let exported = exported_key(Key::default(), flags, said.session_key)?;
            who.anonymous = true;
            who.session_key = SecretKey::new(&exported[..]);
            return Ok((who, Some((exported, flags))));
        }
        if self.input.users.locked_out(&said.user, &said.domain) {
            return Err(Reason::LockedOut);
        }
        let guest = |mut who: Authenticated| {
            who.user.clone_from(&said.user);
            who.guest = true;
            Ok((who, None))
        };
        if said.nt_response.is_empty() {
            return match self.is_guest(said) {
                true => guest(who),
                false => Err(Reason::NoPassword),
            };
        }
        let response = Response::parse(said.nt_response)?;
        let Some((user, base)) = self.prove(said, &response)? else { return guest(who) };
        if user.disabled {
            return Err(Reason::Disabled);
        }
        if user.expires.is_some_and(|end| self.input.now >= end) {
            return Err(Reason::Expired);
        }
        if self.settings.clock_skew.is_some_and(|most| apart(response.time, self.input.now) > most)
        {
            return Err(Reason::ClockSkew);
        }
        let exported = exported_key(base, flags, said.session_key)?;
        if response.has_mic {
            self.check_mic(&exported, token)?;
        }
        who.user = user.name;
        who.uid = user.uid;
        who.user_expires = user.expires;
        who.session_key = SecretKey::new(&exported[..]);
        Ok((who, Some((exported, flags))))
    }

    /// Whether it is somebody whom nobody knows, and those are guests.
    fn is_guest(&self, said: &Authenticate<'_>) -> bool {
        self.settings.guest && self.input.users.find(&said.user, &said.domain).is_none()
    }

    /// The user whose password the client knows, and the key that comes of it; `None`: nobody, so a guest.
    fn prove(
        &self,
        said: &Authenticate<'_>,
        response: &Response<'_>,
    ) -> Result<Option<(User, Key)>, Reason> {
        if self.is_guest(said) {
            return Ok(None);
        }
        let found = self.input.users.find(&said.user, &said.domain);
        // Nobody, or somebody without a password, takes as long as somebody.
        let nobody = NtHash::new([0; 16]);
        let theirs = found.as_ref().and_then(|user| user.nt_hash.as_ref());
        let hash = theirs.unwrap_or(&nobody);
        let key = keys::response_key(hash, &said.user, &said.domain);
        let proof = keys::proof(&key, &self.challenge, response.blob);
        let proven = verify_slices_are_equal(&proof, response.proof).is_ok() && theirs.is_some();
        match found {
            Some(user) if proven => Ok(Some((user, keys::base_key(&key, &proof)))),
            Some(_) => Err(Reason::WrongPassword),
            None => Err(Reason::UnknownUser),
        }
    }

    fn check_mic(&self, exported: &Key, token: &[u8]) -> Result<(), Reason> {
        let (before, rest) = token.split_at_checked(MIC_AT).ok_or(Reason::BadMic)?;
        let (theirs, behind) = rest.split_first_chunk::<MIC_LEN>().ok_or(Reason::BadMic)?;
        let parts: [&[u8]; 3] = [before, &[0; MIC_LEN], behind];
        let ours = keys::mic(exported, self.negotiate, self.challenge_message, parts);
        verify_slices_are_equal(&ours, theirs).map_err(|_| Reason::BadMic)
    }
}

/// ExportedSessionKey, of what the client has sent if keys are exchanged.
fn exported_key(base: Key, flags: u32, encrypted: &[u8]) -> Result<Key, Reason> {
    if flags & flags::KEY_EXCHANGE == 0 {
        return Ok(base);
    }
    let encrypted: [u8; 16] =
        encrypted.try_into().map_err(|_| Reason::Malformed("session key in NTLM AUTHENTICATE"))?;
    let mut exported = Zeroizing::new(encrypted);
    keys::rc4(&base[..], &mut exported[..]);
    Ok(exported)
}

/// How far two points in time are from each other.
fn apart(a: FileTime, b: FileTime) -> Duration {
    let ticks = a.0.abs_diff(b.0);
    Duration::from_secs(ticks / 10_000_000) + Duration::from_nanos(ticks % 10_000_000 * 100)
}

impl Mechanism for Ntlm {
    fn oid(&self) -> &[u8] {
        spnego::NTLMSSP
    }

    fn step(&mut self, token: &[u8], input: &Input<'_>) -> MechanismStep {
        match std::mem::replace(&mut self.state, State::Done { keys: None }) {
            State::Negotiate => match self.challenge(token, input) {
                Ok(challenge) => MechanismStep::Continue(challenge),
                Err(reason) => MechanismStep::Refused(reason.into()),
            },
            State::Authenticate { negotiate, challenge_message, challenge, flags } => {
                let said = match Authenticate::parse(token, flags) {
                    Ok(said) => said,
                    Err(reason) => return MechanismStep::Refused(reason.into()),
                };
                let judge = Judge {
                    settings: &self.settings,
                    input,
                    negotiate: &negotiate,
                    challenge_message: &challenge_message,
                    challenge,
                    flags,
                };
                match judge.judge(token, &said) {
                    Ok((who, keys)) => {
                        self.state = State::Done { keys };
                        MechanismStep::Done(Box::new(who), Vec::new())
                    }
                    Err(reason) => MechanismStep::Refused(Box::new(Refusal {
                        status: reason.status(),
                        reason,
                        user: said.user,
                        domain: said.domain,
                        workstation: said.workstation,
                        detail: String::new(),
                    })),
                }
            }
            State::Done { .. } => MechanismStep::Refused(Reason::OutOfTurn.into()),
        }
    }

    fn make_mic(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let State::Done { keys: Some((exported, flags)) } = &self.state else { return None };
        keys::sign_first(exported, *flags, Way::ServerToClient, message).map(|mic| mic.to_vec())
    }

    fn verify_mic(&mut self, message: &[u8], mic: &[u8]) -> Option<bool> {
        let State::Done { keys: Some((exported, flags)) } = &self.state else { return None };
        let ours = keys::sign_first(exported, *flags, Way::ClientToServer, message)?;
        Some(verify_slices_are_equal(&ours, mic).is_ok())
    }
}

impl fmt::Debug for Ntlm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Negotiate => "waits for NEGOTIATE",
            State::Authenticate { .. } => "waits for AUTHENTICATE",
            State::Done { .. } => "is done",
        };
        write!(f, "Ntlm({state})")
    }
}

#[cfg(test)]
mod tests;
