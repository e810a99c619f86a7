//! Hashes and keys of NTLMv2 (MS-NLMP 3.3.2, 3.4).

use md5::{Digest, Md5};
use rc4::{KeyInit, Rc4, StreamCipher};
use zeroize::Zeroizing;

use super::flags;
use crate::auth::NtHash;

/// A key of NTLM, wiped when it goes.
pub(super) type Key = Zeroizing<[u8; 16]>;

/// HMAC-MD5 (RFC 2104) with a key of 16 bytes.
pub(super) fn hmac_md5(key: &[u8; 16], parts: &[&[u8]]) -> [u8; 16] {
    const BLOCK: usize = 64;
    let pad = |with: u8| {
        let mut block = Zeroizing::new([with; BLOCK]);
        block.iter_mut().zip(key).for_each(|(to, byte)| *to ^= byte);
        block
    };
    let mut inner = Md5::new();
    inner.update(*pad(0x36));
    parts.iter().for_each(|part| inner.update(part));
    let mut outer = Md5::new();
    outer.update(*pad(0x5c));
    outer.update(inner.finalize());
    outer.finalize().into()
}

/// RC4 of one short message under a key of its own.
pub(super) fn rc4(key: &[u8], message: &mut [u8]) {
    // Keys here have 5 to 16 bytes, which are keys of RC4.
    if let Ok(mut cipher) = Rc4::new_from_slice(key) {
        cipher.apply_keystream(message);
    }
}

/// Little endian UTF-16.
pub(super) fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// Upper case as Windows has it: one letter for one letter.
fn upper(text: &str) -> String {
    text.chars()
        .map(|c| {
            let mut upper = c.to_uppercase();
            match (upper.next(), upper.next()) {
                (Some(one), None) => one,
                _ => c,
            }
        })
        .collect()
}

/// NTOWFv2: of a user, as the client writes name and domain.
pub(super) fn response_key(hash: &NtHash, user: &str, domain: &str) -> Key {
    let (user, domain) = (utf16(&upper(user)), utf16(domain));
    Zeroizing::new(hmac_md5(hash.as_bytes(), &[&user, &domain]))
}

/// NTProofStr: what the client proves its password with.
pub(super) fn proof(response_key: &Key, challenge: &[u8; 8], blob: &[u8]) -> [u8; 16] {
    hmac_md5(response_key, &[challenge, blob])
}

/// SessionBaseKey, which is KeyExchangeKey as well.
pub(super) fn base_key(response_key: &Key, proof: &[u8; 16]) -> Key {
    Zeroizing::new(hmac_md5(response_key, &[proof]))
}

/// MIC: of the three messages, the last with zeros in place of it.
pub(super) fn mic(
    exported: &Key,
    negotiate: &[u8],
    challenge: &[u8],
    authenticate: [&[u8]; 3],
) -> [u8; 16] {
    let [before, zeros, behind] = authenticate;
    hmac_md5(exported, &[negotiate, challenge, before, zeros, behind])
}

/// Which way a signed message goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    ClientToServer,
    ServerToClient,
}

/// GSS_GetMIC of the first message that goes this way, which in SMB is the only one: the list of mechanisms
/// (MS-NLMP 3.4.4.2, with extended session security). `None`: no signatures were negotiated.
pub(super) fn sign_first(
    exported: &Key,
    negotiated: u32,
    way: Way,
    message: &[u8],
) -> Option<[u8; 16]> {
    if negotiated & flags::EXTENDED_SECURITY == 0
        || negotiated & (flags::SIGN | flags::ALWAYS_SIGN) == 0
    {
        return None;
    }
    let (sign, seal): (&[u8], &[u8]) = match way {
        Way::ClientToServer => (
            b"session key to client-to-server signing key magic constant\0",
            b"session key to client-to-server sealing key magic constant\0",
        ),
        Way::ServerToClient => (
            b"session key to server-to-client signing key magic constant\0",
            b"session key to server-to-client sealing key magic constant\0",
        ),
    };
    let derive = |key: &[u8], magic: &[u8]| -> Key {
        Zeroizing::new(Md5::new().chain_update(key).chain_update(magic).finalize().into())
    };
    let number = [0; 4];
    let signature = hmac_md5(&derive(&exported[..], sign), &[&number, message]);
    let mut checksum = *signature.first_chunk::<8>()?;
    if negotiated & flags::KEY_EXCHANGE != 0 {
        let strength = match (negotiated & flags::KEY_128, negotiated & flags::KEY_56) {
            (0, 0) => 5,
            (0, _) => 7,
            _ => 16,
        };
        rc4(&derive(&exported[..strength], seal)[..], &mut checksum);
    }
    let mut out = [0; 16];
    out[0] = 1;
    out[4..12].copy_from_slice(&checksum);
    out[12..].copy_from_slice(&number);
    Some(out)
}

#[cfg(test)]
mod tests;
