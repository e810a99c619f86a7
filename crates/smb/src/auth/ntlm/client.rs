//! The client's end (MS-NLMP 3.1.5), to test the server's with.

use std::fmt;

use zeroize::Zeroizing;

use super::flags;
use super::keys::{self, Key, Way};
use super::message::{self, MIC_AT, MIC_LEN, SIGNATURE, VERSION, av};
use crate::FileTime;
use crate::auth::NtHash;
use crate::crypto::SecretKey;

/// Somebody who wants to log on.
#[derive(Clone, Debug)]
pub struct Client {
    /// The name to log on with; empty, with [`Client::nt_hash`] `None`: anonymous.
    pub user: String,
    /// The domain to log on with.
    pub domain: String,
    /// The client's name of itself.
    pub workstation: String,
    /// What the password hashes to.
    pub nt_hash: Option<NtHash>,
    /// Send a MIC over the messages, as every client does today.
    pub mic: bool,
}

/// A CHALLENGE message that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed NTLM CHALLENGE")]
pub struct BadChallenge;

/// The last message of a client, and what comes of it.
pub struct Answer {
    /// The AUTHENTICATE message.
    pub token: Vec<u8>,
    exported: Key,
    flags: u32,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({} bytes)", self.token.len())
    }
}

impl Answer {
    /// The key of the session, if the server knows the same password.
    #[must_use]
    pub fn session_key(&self) -> SecretKey {
        SecretKey::new(&self.exported[..])
    }

    /// The client's signature of the list of mechanisms. `None`: no signatures were negotiated.
    #[must_use]
    pub fn make_mic(&self, list: &[u8]) -> Option<[u8; 16]> {
        keys::sign_first(&self.exported, self.flags, Way::ClientToServer, list)
    }

    /// Whether this is the server's signature of the list of mechanisms.
    #[must_use]
    pub fn verify_mic(&self, list: &[u8], mic: &[u8]) -> bool {
        keys::sign_first(&self.exported, self.flags, Way::ServerToClient, list)
            .is_some_and(|ours| ours == mic)
    }
}

impl Client {
    const FLAGS: u32 = flags::UNICODE
        | flags::REQUEST_TARGET
        | flags::SIGN
        | flags::NTLM
        | flags::ALWAYS_SIGN
        | flags::EXTENDED_SECURITY
        | flags::VERSION
        | flags::KEY_128
        | flags::KEY_EXCHANGE
        | flags::KEY_56;

    /// The NEGOTIATE message.
    #[must_use]
    pub fn negotiate() -> Vec<u8> {
        let kind = 1u32.to_le_bytes();
        [&SIGNATURE[..], &kind, &Self::FLAGS.to_le_bytes(), &[0; 16], &VERSION].concat()
    }

    /// The AUTHENTICATE message to a CHALLENGE. `random` is the client's challenge and the key that the session is to
    /// have.
    ///
    /// # Errors
    ///
    /// [`BadChallenge`].
    pub fn authenticate(
        &self,
        challenge_message: &[u8],
        random: ([u8; 8], [u8; 16]),
        now: FileTime,
    ) -> Result<Answer, BadChallenge> {
        let (client_challenge, exported) = random;
        let exported = Zeroizing::new(exported);
        let read = || {
            let flags = challenge_message.get(20..)?.first_chunk()?;
            let challenge = challenge_message.get(24..)?.first_chunk::<8>()?;
            let info = message::field(challenge_message, 40)?;
            Some((u32::from_le_bytes(*flags), challenge, info))
        };
        let (theirs, challenge, info) =
            read().filter(|_| message::is(challenge_message, 2)).ok_or(BadChallenge)?;
        let anonymous = self.nt_hash.is_none();
        let flags = theirs & Self::FLAGS | if anonymous { flags::ANONYMOUS } else { 0 };
        let mut response = Vec::new();
        let mut base = Key::default();
        if let Some(hash) = &self.nt_hash {
            let blob = self.blob(info, client_challenge, now)?;
            let key = keys::response_key(hash, &self.user, &self.domain);
            let proof = keys::proof(&key, challenge, &blob);
            base = keys::base_key(&key, &proof);
            response = [&proof[..], &blob].concat();
        }
        let (exported, sent) = if flags & flags::KEY_EXCHANGE == 0 {
            (base, Vec::new())
        } else {
            let mut sent = exported.to_vec();
            keys::rc4(&base[..], &mut sent);
            (exported, sent)
        };
        let mut token = self.message(flags, &response, &sent);
        if self.mic && !anonymous {
            let parts = [&token[..MIC_AT], &[0; MIC_LEN][..], &token[MIC_AT + MIC_LEN..]];
            let mic = keys::mic(&exported, &Self::negotiate(), challenge_message, parts);
            token[MIC_AT..MIC_AT + MIC_LEN].copy_from_slice(&mic);
        }
        Ok(Answer { token, exported, flags })
    }

    /// NTLMv2_CLIENT_CHALLENGE.
    fn blob(
        &self,
        info: &[u8],
        challenge: [u8; 8],
        now: FileTime,
    ) -> Result<Vec<u8>, BadChallenge> {
        let mut pairs = Vec::new();
        let mut time = now;
        message::each_pair(info, |id, value| {
            if let (av::TIMESTAMP, Ok(ticks)) = (id, value.try_into()) {
                time = FileTime(u64::from_le_bytes(ticks));
            }
            message::pair(&mut pairs, id, value);
        })
        .ok_or(BadChallenge)?;
        if self.mic {
            message::pair(&mut pairs, av::FLAGS, &av::HAS_MIC.to_le_bytes());
        }
        message::pair(&mut pairs, av::EOL, &[]);
        let time = time.0.to_le_bytes();
        Ok([&[1, 1, 0, 0, 0, 0, 0, 0], &time[..], &challenge, &[0; 4], &pairs, &[0; 4]].concat())
    }

    fn message(&self, flags: u32, response: &[u8], session_key: &[u8]) -> Vec<u8> {
        let names = [&self.domain, &self.user, &self.workstation].map(|name| keys::utf16(name));
        let [domain, user, workstation] = &names;
        // Anonymous clients send one zero byte as LM response, others zeros.
        let lm: &[u8] = if self.nt_hash.is_none() { &[0] } else { &[0; 24] };
        let parts = [lm, response, domain, user, workstation, session_key];
        let mut out = [&SIGNATURE[..], &3u32.to_le_bytes()].concat();
        let mut at = MIC_AT + MIC_LEN;
        for part in parts {
            // Of names and responses that a test makes up.
            let len = u16::try_from(part.len()).unwrap_or(u16::MAX).to_le_bytes();
            out.extend_from_slice(&[len, len].concat());
            out.extend_from_slice(&u32::try_from(at).unwrap_or(u32::MAX).to_le_bytes());
            at += part.len();
        }
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&VERSION);
        out.extend_from_slice(&[0; MIC_LEN]);
        parts.iter().for_each(|part| out.extend_from_slice(part));
        out
    }
}
