//! UTF-16 as it stands on the wire, little endian, and Rust's strings.
//!
//! Windows allows half a surrogate pair in a name, Rust's strings do not. Such a half `U+D8xx`..`U+DFFF` is
//! kept as the private character `U+10D8xx`..`U+10DFFF` and becomes half a pair again on the way out, so that
//! every name that a client can send is a name that it gets back.

use crate::NtStatus;

/// What is added to an unpaired surrogate to make a character of it.
const HALF_BASE: u32 = 0x10_0000;

/// The string of some UTF-16.
///
/// # Errors
///
/// INVALID_PARAMETER for an odd number of bytes.
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
    Ok(char::decode_utf16(units)
        .map(|c| c.unwrap_or_else(|e| half(e.unpaired_surrogate())))
        .collect())
}

/// The character that stands for half a pair.
fn half(unit: u16) -> char {
    char::from_u32(HALF_BASE + u32::from(unit)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The units of one character: one or two.
fn units(c: char, buffer: &mut [u16; 2]) -> &[u16] {
    let code = u32::from(c);
    if let 0x10_d800..=0x10_dfff = code {
        buffer[0] = u16::try_from(code - HALF_BASE).unwrap_or(0);
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
