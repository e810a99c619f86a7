//! From the key of an authentication to the keys of a session (MS-SMB2 3.1.4.2).

use aws_lc_rs::hmac;

use super::{Cipher, PreauthHash, SecretKey};

/// How keys are derived: what the dialect decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySchedule<'a> {
    /// 2.0.2 and 2.1: the session key signs, and there is no encryption.
    Smb2,
    /// 3.0 and 3.0.2.
    Smb30,
    /// 3.1.1, with the hash of the session's, or for a bound channel the binding's, set-up messages.
    Smb311(&'a PreauthHash),
}

/// What a key is for.
#[derive(Clone, Copy)]
enum Purpose {
    Signing,
    Application,
    ClientToServer,
    ServerToClient,
}

impl KeySchedule<'_> {
    /// Label and context of a key, with the zero that ends each (MS-SMB2 3.3.5.5.3). `None`: not derived.
    fn label(&self, purpose: Purpose) -> Option<(&'static [u8], &[u8])> {
        Some(match (self, purpose) {
            (Self::Smb2, _) => return None,
            (Self::Smb30, Purpose::Signing) => (b"SMB2AESCMAC\0", b"SmbSign\0"),
            (Self::Smb30, Purpose::Application) => (b"SMB2APP\0", b"SmbRpc\0"),
            (Self::Smb30, Purpose::ClientToServer) => (b"SMB2AESCCM\0", b"ServerIn \0"),
            (Self::Smb30, Purpose::ServerToClient) => (b"SMB2AESCCM\0", b"ServerOut\0"),
            (Self::Smb311(hash), purpose) => {
                let label: &[u8] = match purpose {
                    Purpose::Signing => b"SMBSigningKey\0",
                    Purpose::Application => b"SMBAppKey\0",
                    Purpose::ClientToServer => b"SMBC2SCipherKey\0",
                    Purpose::ServerToClient => b"SMBS2CCipherKey\0",
                };
                (label, hash.as_bytes())
            }
        })
    }

    fn derive(&self, key: &[u8], purpose: Purpose, len: usize) -> Option<SecretKey> {
        self.label(purpose).map(|(label, context)| kdf(key, label, context, len))
    }
}

/// SP800-108 in counter mode with HMAC-SHA256, r = 32; one round gives all that SMB needs. `len` is 16 or 32 bytes.
fn kdf(key: &[u8], label: &[u8], context: &[u8], len: usize) -> SecretKey {
    let bits: u32 = if len > SecretKey::SHORT { 256 } else { 128 };
    let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    mac.update(&1u32.to_be_bytes());
    mac.update(label);
    mac.update(&[0]);
    mac.update(context);
    mac.update(&bits.to_be_bytes());
    SecretKey::new(&mac.sign().as_ref()[..len])
}

/// The keys of a session. Made once, when the session is set up; they stay when its user authenticates anew.
#[derive(Clone, Debug)]
pub struct SessionKeys {
    /// For the channel that the session was set up on. Others have their own: [`SessionKeys::channel_signing`].
    pub signing: SecretKey,
    /// What callers above SMB are told (Session.ApplicationKey).
    pub application: SecretKey,
    /// What the client encrypts with, if there is a cipher.
    pub client_to_server: Option<SecretKey>,
    /// What the server encrypts with, if there is a cipher.
    pub server_to_client: Option<SecretKey>,
}

impl SessionKeys {
    /// Derives them from the key that authentication gave. Of a longer key the first 16 bytes count, save for the
    /// encryption keys of 256-bit ciphers, which come of all of it (MS-SMB2 3.3.5.5.3, Session.FullSessionKey).
    #[must_use]
    pub fn derive(
        schedule: KeySchedule<'_>,
        session_key: &SecretKey,
        cipher: Option<Cipher>,
    ) -> Self {
        let short = session_key.first_16();
        let plain = || SecretKey::new(short);
        let encryption = |purpose| {
            let cipher = cipher?;
            let len = cipher.key_len();
            let full = if len > SecretKey::SHORT && session_key.as_bytes().len() > short.len() {
                session_key.as_bytes()
            } else {
                &short[..]
            };
            schedule.derive(full, purpose, len)
        };
        Self {
            signing: Self::channel_signing(schedule, session_key),
            application: schedule
                .derive(short, Purpose::Application, SecretKey::SHORT)
                .unwrap_or_else(plain),
            client_to_server: encryption(Purpose::ClientToServer),
            server_to_client: encryption(Purpose::ServerToClient),
        }
    }

    /// The key that a channel signs with, from the key of the authentication on that channel: Channel.SigningKey.
    /// For a bound channel of 3.1.1 the schedule has the hash of the binding's messages.
    #[must_use]
    pub fn channel_signing(schedule: KeySchedule<'_>, session_key: &SecretKey) -> SecretKey {
        let short = session_key.first_16();
        schedule
            .derive(short, Purpose::Signing, SecretKey::SHORT)
            .unwrap_or_else(|| SecretKey::new(short))
    }
}

#[cfg(test)]
mod tests;
