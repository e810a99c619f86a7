//! NTLMv2 within SPNEGO: the client's messages.
//!
//! MS-NLMP 2.2.1 has the messages, 3.3.2 the computations; RFC 4178 the tokens around them.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use md4::{Digest, Md4};
use md5::Md5;

use super::wire::{short_len, u16_at, u32_at, utf16};

/// UNICODE, REQUEST_TARGET, SIGN, NTLM, ALWAYS_SIGN, EXTENDED_SESSIONSECURITY, TARGET_INFO, VERSION,
/// 128, KEY_EXCH, 56: MS-NLMP 2.2.2.5.
const FLAGS: u32 = 0xe288_8215;
const KEY_EXCHANGE: u32 = 0x4000_0000;
const VERSION: [u8; 8] = [6, 1, 0, 0, 0, 0, 0, 15];
const SIGNATURE: &[u8] = b"NTLMSSP\0";
/// Length of an AUTHENTICATE without a MIC and without its payload.
const AUTHENTICATE_HEAD: usize = 72;
/// The AV pair that holds the server's time, MS-NLMP 2.2.2.1.
const TIMESTAMP: u16 = 7;
/// Seconds from 1601 to 1970.
const FILE_TIME_SHIFT: u128 = 11_644_473_600;

fn md5(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Md5::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// RFC 2104 with MD5; no key here is longer than a block.
fn hmac_md5(key: &[u8; 16], parts: &[&[u8]]) -> [u8; 16] {
    let pad = |byte: u8| {
        let mut block = [byte; 64];
        block.iter_mut().zip(key).for_each(|(pad, key)| *pad ^= key);
        block
    };
    let (inner, outer) = (pad(0x36), pad(0x5c));
    let mut all: Vec<&[u8]> = vec![&inner];
    all.extend(parts);
    md5(&[&outer, &md5(&all)])
}

fn rc4(key: &[u8; 16], data: &mut [u8]) {
    let mut state: [u8; 256] = std::array::from_fn(|at| u8::try_from(at).unwrap_or(0));
    let mut j = 0_u8;
    for i in 0..256 {
        j = j.wrapping_add(state[i]).wrapping_add(key[i % key.len()]);
        state.swap(i, usize::from(j));
    }
    let (mut i, mut j) = (0_u8, 0_u8);
    for byte in data {
        i = i.wrapping_add(1);
        j = j.wrapping_add(state[usize::from(i)]);
        state.swap(usize::from(i), usize::from(j));
        let at = state[usize::from(i)].wrapping_add(state[usize::from(j)]);
        *byte ^= state[usize::from(at)];
    }
}

/// NEGOTIATE, MS-NLMP 2.2.1.1.
pub(crate) fn negotiate() -> Vec<u8> {
    let mut message = SIGNATURE.to_vec();
    message.extend(1_u32.to_le_bytes());
    message.extend(FLAGS.to_le_bytes());
    message.extend([0; 16]);
    message.extend(VERSION);
    message
}

/// The CHALLENGE within a token, wherever it begins.
///
/// # Errors
///
/// When there is none.
pub(crate) fn find(token: &[u8]) -> anyhow::Result<&[u8]> {
    let at = token.windows(SIGNATURE.len()).position(|window| window == SIGNATURE);
    Ok(&token[at.context("the server's token holds no NTLM message")?..])
}

/// AUTHENTICATE (MS-NLMP 2.2.1.3) and the session's key.
///
/// # Errors
///
/// When `challenge` is none.
pub(crate) fn authenticate(
    challenge: &[u8],
    user: &str,
    password: &str,
) -> anyhow::Result<(Vec<u8>, [u8; 16])> {
    ensure!(u32_at(challenge, 8)? == 2, "the server's NTLM message is no CHALLENGE");
    let flags = u32_at(challenge, 20)? & FLAGS;
    let info_at = u32_at(challenge, 44)? as usize;
    let info_end = info_at.saturating_add(usize::from(u16_at(challenge, 40)?));
    let info = challenge.get(info_at..info_end).context("a CHALLENGE is cut short")?;
    let server_challenge = challenge.get(24..32).context("a CHALLENGE is cut short")?;

    let nt_hash: [u8; 16] = Md4::digest(utf16(password)).into();
    let owf = hmac_md5(&nt_hash, &[&utf16(&user.to_uppercase())]);
    let mut own_challenge = [0; 8];
    random(&mut own_challenge)?;
    let mut blob = vec![1, 1, 0, 0, 0, 0, 0, 0];
    blob.extend(time(info)?);
    blob.extend(own_challenge);
    blob.extend([0; 4]);
    blob.extend(info);
    blob.extend([0; 4]);
    let proof = hmac_md5(&owf, &[server_challenge, &blob]);
    let base = hmac_md5(&owf, &[&proof]);
    let (key, wrapped) = if flags & KEY_EXCHANGE == 0 {
        (base, Vec::new())
    } else {
        let mut key = [0; 16];
        random(&mut key)?;
        let mut wrapped = key.to_vec();
        rc4(&base, &mut wrapped);
        (key, wrapped)
    };
    let response = [&proof[..], &blob].concat();
    Ok((message(flags, &response, user, &wrapped)?, key))
}

fn message(flags: u32, response: &[u8], user: &str, key: &[u8]) -> anyhow::Result<Vec<u8>> {
    let (user, host) = (utf16(user), utf16("SMBLOAD"));
    let mut message = SIGNATURE.to_vec();
    message.extend(3_u32.to_le_bytes());
    let mut payload = Vec::new();
    for field in [&[0; 24][..], response, &[], &user, &host, key] {
        let len = short_len(field)?.to_le_bytes();
        message.extend([len, len].concat());
        message.extend(u32::try_from(AUTHENTICATE_HEAD + payload.len())?.to_le_bytes());
        payload.extend_from_slice(field);
    }
    message.extend(flags.to_le_bytes());
    message.extend(VERSION);
    message.extend(payload);
    Ok(message)
}

/// The server's time, or ours if it told none.
fn time(info: &[u8]) -> anyhow::Result<[u8; 8]> {
    let mut at = 0;
    while let (Ok(id), Ok(len)) = (u16_at(info, at), u16_at(info, at + 2)) {
        if id == TIMESTAMP {
            let value = info.get(at + 4..at + 12).context("a timestamp is cut short")?;
            return Ok(value.try_into()?);
        }
        at += 4 + usize::from(len);
    }
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() / 100;
    Ok(u64::try_from(since_1970 + FILE_TIME_SHIFT * 10_000_000)?.to_le_bytes())
}

/// Bytes nobody can guess.
///
/// # Errors
///
/// When the system has none.
pub(crate) fn random(bytes: &mut [u8]) -> anyhow::Result<()> {
    aws_lc_rs::rand::fill(bytes).ok().context("no random bytes")
}

fn der(tag: u8, body: &[u8]) -> anyhow::Result<Vec<u8>> {
    let len = short_len(body)?;
    let [high, low] = len.to_be_bytes();
    let mut out = vec![tag];
    match len {
        0..=127 => out.push(low),
        128..=255 => out.extend([0x81, low]),
        _ => out.extend([0x82, high, low]),
    }
    out.extend(body);
    Ok(out)
}

/// NegTokenInit that offers NTLM only, RFC 4178 section 4.2.1.
///
/// # Errors
///
/// When `token` is too long.
pub(crate) fn first_token(token: &[u8]) -> anyhow::Result<Vec<u8>> {
    const NTLM: &[u8] = &[6, 10, 0x2b, 6, 1, 4, 1, 0x82, 0x37, 2, 2, 10];
    const SPNEGO: &[u8] = &[6, 6, 0x2b, 6, 1, 5, 5, 2];
    let mut init = der(0xa0, &der(0x30, NTLM)?)?;
    init.extend(der(0xa2, &der(4, token)?)?);
    der(0x60, &[SPNEGO, &der(0xa0, &der(0x30, &init)?)?].concat())
}

/// NegTokenResp, RFC 4178 section 4.2.2.
///
/// # Errors
///
/// When `token` is too long.
pub(crate) fn next_token(token: &[u8]) -> anyhow::Result<Vec<u8>> {
    der(0xa1, &der(0x30, &der(0xa2, &der(4, token)?)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MS-NLMP 4.2.4: the example of NTLMv2 (user "User", password "Password", domain "Domain").
    #[test]
    fn keys_are_those_of_the_example() {
        let nt_hash: [u8; 16] = Md4::digest(utf16("Password")).into();
        let owf = hmac_md5(&nt_hash, &[&utf16("USER"), &utf16("Domain")]);
        let expected = [
            0x0c, 0x86, 0x8a, 0x40, 0x3b, 0xfd, 0x7a, 0x93, 0xa3, 0x00, 0x1e, 0xf2, 0x2e, 0xf0,
            0x2e, 0x3f,
        ];
        assert_eq!(owf, expected);
    }

    /// RFC 6229, 128 bits, key 0x0102..10: the first sixteen bytes.
    #[test]
    fn the_stream_is_rc4() {
        let key = std::array::from_fn(|at| u8::try_from(at + 1).unwrap());
        let mut data = [0; 16];
        rc4(&key, &mut data);
        let expected = [
            0x9a, 0xc7, 0xcc, 0x9a, 0x60, 0x9d, 0x1e, 0xf7, 0xb2, 0x93, 0x28, 0x99, 0xcd, 0xe4,
            0x1b, 0x97,
        ];
        assert_eq!(data, expected);
    }

    #[test]
    fn a_message_that_is_no_challenge_is_refused() {
        assert!(find(b"nothing here").is_err());
        assert!(authenticate(&negotiate(), "u", "p").is_err());
        let mut cut = b"NTLMSSP\0\x02\0\0\0".to_vec();
        assert!(authenticate(&cut, "u", "p").is_err());
        cut.resize(48, 0xff);
        assert!(authenticate(&cut, "u", "p").is_err());
    }

    #[test]
    fn long_values_have_long_lengths() {
        assert_eq!(der(4, &[0; 127]).unwrap()[..2], [4, 127]);
        assert_eq!(der(4, &[0; 128]).unwrap()[..3], [4, 0x81, 128]);
        assert_eq!(der(4, &[0; 256]).unwrap()[..4], [4, 0x82, 1, 0]);
    }
}
