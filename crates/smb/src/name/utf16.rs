//! UTF-16 as it stands on the wire, little endian, and Rust's strings.
//!
//! Windows allows half a surrogate pair in a name, Rust's strings do not. Such a half `U+D8xx`..`U+DFFF` is
//! kept as the private character `U+10D8xx`..`U+10DFFF` and becomes half a pair again on the way out, so that
//! every name that a client can send is a name that it gets back. Those private characters themselves, of which each
//! would be the same to us as its half, clients cannot send.

use crate::NtStatus;

/// What is added to an unpaired surrogate to make a character of it.
const HALF_BASE: u32 = 0x10_0000;

/// The string of some UTF-16.
///
/// # Errors
///
/// INVALID_PARAMETER for an odd number of bytes; OBJECT_NAME_INVALID for a character that stands for half a pair.
pub fn decode(bytes: &[u8]) -> Result<String, NtStatus> {
    if !bytes.len().is_multiple_of(2) {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    let units = bytes.chunks_exact(2);
    // All bits of all units: one test instead of one for each, and the compiler makes vectors of it.
    let all = units.clone().fold((0u8, 0u8), |all, unit| (all.0 | unit[0], all.1 | unit[1]));
    if all.0 < 0x80 && all.1 == 0 {
        let ascii: Vec<u8> = units.map(|unit| unit[0]).collect();
        return String::from_utf8(ascii).map_err(|_| NtStatus::INVALID_PARAMETER);
    }
    let units = units.map(|unit| u16::from_le_bytes([unit[0], unit[1]]));
    let chars = char::decode_utf16(units).map(|c| match c {
        Ok(c) if half_of(c).is_some() => Err(NtStatus::OBJECT_NAME_INVALID),
        Ok(c) => Ok(c),
        Err(unpaired) => Ok(half(unpaired.unpaired_surrogate())),
    });
    chars.collect()
}

/// The character that stands for half a pair.
fn half(unit: u16) -> char {
    char::from_u32(HALF_BASE + u32::from(unit)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The half of a pair that a character stands for.
fn half_of(c: char) -> Option<u16> {
    u16::try_from(u32::from(c).checked_sub(HALF_BASE)?).ok().filter(|half| half & 0xf800 == 0xd800)
}

/// Whether two characters stand for halves that are a pair together: another character.
pub(super) fn are_a_pair(first: char, second: char) -> bool {
    half_of(first).is_some_and(|half| half < 0xdc00)
        && half_of(second).is_some_and(|half| half >= 0xdc00)
}

/// The units of one character: one or two.
fn units(c: char, buffer: &mut [u16; 2]) -> &[u16] {
    if let Some(half) = half_of(c) {
        buffer[0] = half;
        return &buffer[..1];
    }
    c.encode_utf16(buffer)
}

/// Bytes that `text` takes in UTF-16.
#[must_use]
pub fn len(text: &str) -> usize {
    if text.is_ascii() {
        return text.len() * 2;
    }
    text.chars().map(|c| units(c, &mut [0; 2]).len() * 2).sum()
}

/// Writes `text` to the beginning of `out`; says how many bytes it took, or `None` if it does not fit (and
/// what is in `out` is then anything).
#[inline]
pub fn put(text: &str, out: &mut [u8]) -> Option<usize> {
    if text.is_ascii() {
        let out = out.get_mut(..text.len() * 2)?;
        for (pair, byte) in out.chunks_exact_mut(2).zip(text.bytes()) {
            pair[0] = byte;
            pair[1] = 0;
        }
        return Some(text.len() * 2);
    }
    let mut at = 0;
    for c in text.chars() {
        for unit in units(c, &mut [0; 2]) {
            out.get_mut(at..at + 2)?.copy_from_slice(&unit.to_le_bytes());
            at += 2;
        }
    }
    Some(at)
}

/// Appends `text`.
pub fn append(text: &str, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + len(text), 0);
    put(text, &mut out[start..]);
}
