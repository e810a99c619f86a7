//! Names of eight and three characters, for programs that ask for them.

use super::fold;

/// Characters of the digits of a hash.
const DIGITS: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// Whether a character may be in an 8.3 name.
const fn is_short(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'_' | b'-' | b'$' | b'#' | b'@' | b'!' | b'%' | b'&')
}

/// The 8.3 name of a file: its own in upper case if that is one, else one that is made of its beginning and a
/// hash. The same name has the same one always; two may have the same one, and no file is found by it.
#[must_use]
pub fn short(name: &str) -> String {
    let (base, extension) = match name.rsplit_once('.') {
        Some((base, extension)) if !base.is_empty() => (base, extension),
        _ => (name, ""),
    };
    let good = |part: &str| part.bytes().all(is_short);
    let ends_in_dot = name.ends_with('.');
    let fits = !base.is_empty() && base.len() <= 8 && extension.len() <= 3;
    if fits && good(base) && good(extension) && !ends_in_dot || matches!(name, "." | "..") {
        return name.to_ascii_uppercase();
    }
    let kept = |part: &str, len: usize| -> String {
        let chars = part.bytes().filter(|byte| is_short(*byte)).take(len);
        chars.map(|byte| char::from(byte.to_ascii_uppercase())).collect()
    };
    // FNV-1a of the folded name: the same for names that differ in case only.
    let hash = fold(name).bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let mut rest = hash ^ hash >> 32;
    let mut digits = [0; 5];
    for digit in &mut digits {
        *digit = DIGITS[usize::try_from(rest % 36).unwrap_or(0)];
        rest /= 36;
    }
    let [last, digits @ ..] = digits.map(char::from);
    let mut short = format!("{:_<2}", kept(base, 2));
    short.extend(digits);
    short.push('~');
    short.push(last);
    let extension = kept(extension, 3);
    if !extension.is_empty() {
        short.push('.');
        short.push_str(&extension);
    }
    short
}
