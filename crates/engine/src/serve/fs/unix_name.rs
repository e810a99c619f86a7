//! Names as the file system has them and as clients see them.
//!
//! A name on disk is any bytes but `/` and NUL; a name on the wire is UTF-16 without `" * / : < > ? \ |` and
//! what is below a space, and does not end in a space or a full stop. What cannot be said goes into Unicode's
//! private use area, the way macOS and the Linux client do it (SFM): 0x01 to 0x1F at U+F001, then `" * : < > ?
//! \ |` and a final space or full stop at U+F020 to U+F029. A byte that is not UTF-8 becomes U+EF00 plus the
//! byte. Both ways lose nothing: where a name on disk already has one of these characters, the three bytes of
//! that character are given as if they were not UTF-8.

/// The characters that have a stand-in at U+F020 and up.
const STAND_INS: &str = "\"*:<>?\\|";
const CONTROL: u32 = 0xf000;
const RESERVED: u32 = 0xf020;
const FINAL_SPACE: char = '\u{f028}';
const FINAL_STOP: char = '\u{f029}';
const RAW: u32 = 0xef00;

/// Appends the name on disk for one component that a client said. `/` and NUL, which no name may have, must
/// have been refused before.
pub fn to_unix(name: &str, out: &mut Vec<u8>) {
    // Nothing below U+E000 stands for something else, and its UTF-8 begins with at most 0xED.
    if !name.bytes().any(|byte| byte == 0xee || byte == 0xef) {
        out.extend_from_slice(name.as_bytes());
        return;
    }
    let mut utf8 = [0; 4];
    for c in name.chars() {
        match original(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut utf8).as_bytes()),
        }
    }
}

/// The byte that a character of the private use area stands for.
fn original(c: char) -> Option<u8> {
    let byte = match u32::from(c) {
        n @ 0xef80..=0xefff => n - RAW,
        n @ 0xf001..=0xf01f => n - CONTROL,
        n @ 0xf020..=0xf027 => {
            let at = usize::try_from(n - RESERVED).unwrap_or(0);
            return STAND_INS.as_bytes().get(at).copied();
        }
        0xf028 => u32::from(b' '),
        0xf029 => u32::from(b'.'),
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// Replaces `out` by the name that clients see.
pub fn from_unix(name: &[u8], out: &mut String) {
    out.clear();
    if let Ok(text) = std::str::from_utf8(name)
        && !text.bytes().any(is_remarkable)
        && !text.ends_with(['.', ' '])
    {
        out.push_str(text);
        return;
    }
    if name == b"." || name == b".." {
        out.push_str(if name.len() == 1 { "." } else { ".." });
        return;
    }
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            push(c, out);
        }
        chunk.invalid().iter().for_each(|byte| push_raw(*byte, out));
    }
    match out.pop() {
        Some(' ') => out.push(FINAL_SPACE),
        Some('.') => out.push(FINAL_STOP),
        Some(c) => out.push(c),
        None => {}
    }
}

fn is_remarkable(byte: u8) -> bool {
    byte < 0x20
        || byte >= 0xee
        || (byte.is_ascii_punctuation() && STAND_INS.as_bytes().contains(&byte))
}

fn push(c: char, out: &mut String) {
    if original(c).is_some() {
        let mut utf8 = [0; 4];
        c.encode_utf8(&mut utf8).bytes().for_each(|byte| push_raw(byte, out));
        return;
    }
    let stand_in = match (u32::from(c), STAND_INS.find(c)) {
        (_, Some(at)) => u32::try_from(at).ok().map(|at| RESERVED + at),
        (control @ 1..=0x1f, None) => Some(CONTROL + control),
        _ => None,
    };
    out.push(stand_in.and_then(char::from_u32).unwrap_or(c));
}

fn push_raw(byte: u8, out: &mut String) {
    out.extend(char::from_u32(RAW + u32::from(byte)));
}

/// What two names have in common that differ in case only. Appends to `out`.
pub fn fold(name: &str, out: &mut String) {
    if name.is_ascii() {
        out.extend(name.bytes().map(|byte| char::from(byte.to_ascii_uppercase())));
        return;
    }
    for c in name.chars() {
        let mut upper = c.to_uppercase();
        // Windows folds one UTF-16 unit to one: what has no single upper case form stays as it is.
        match (upper.next(), upper.next()) {
            (Some(upper), None) => out.push(upper),
            _ => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{fold, from_unix, to_unix};
    use proptest::prelude::*;

    fn seen(name: &[u8]) -> String {
        let mut text = String::new();
        from_unix(name, &mut text);
        text
    }

    #[test]
    fn what_windows_cannot_say_has_a_stand_in() {
        assert_eq!(seen(b"plain.txt"), "plain.txt");
        assert_eq!(seen(b"a:b?"), "a\u{f022}b\u{f025}");
        assert_eq!(seen(b"dot."), "dot\u{f029}");
        assert_eq!(seen(b"\x01 "), "\u{f001}\u{f028}");
        assert_eq!(seen(b"caf\xe9"), "caf\u{efe9}");
        assert_eq!(seen(b".."), "..");
    }

    #[test]
    fn case_is_folded_one_to_one() {
        let folded = |name: &str| {
            let mut out = String::new();
            fold(name, &mut out);
            out
        };
        assert_eq!(folded("ReadMe"), folded("README"));
        assert_eq!(folded("äÖÿ"), "ÄÖŸ");
        assert_eq!(folded("straße"), "STRAßE");
    }

    proptest! {
        #[test]
        fn every_name_on_disk_comes_back(name in proptest::collection::vec(1..=255u8, 1..40)) {
            prop_assume!(!name.contains(&b'/'));
            let text = seen(&name);
            let dots = name == b"." || name == b"..";
            prop_assert!(dots || !text.contains(['"', '*', ':', '<', '>', '?', '\\', '|']));
            prop_assert!(dots || !text.ends_with(['.', ' ']));
            let mut back = Vec::new();
            to_unix(&text, &mut back);
            prop_assert_eq!(back, name);
        }

        #[test]
        fn private_characters_come_back(c in 0xee00u32..0xf100) {
            let name = char::from_u32(c).unwrap().to_string();
            let mut back = Vec::new();
            to_unix(&seen(name.as_bytes()), &mut back);
            prop_assert_eq!(back, name.into_bytes());
        }
    }
}
