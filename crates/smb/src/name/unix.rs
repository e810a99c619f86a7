//! What a file is called by clients, and what by the file system.
//!
//! Characters that are fine in Unix names and forbidden in Windows names appear to clients in the private
//! range, at the places where macOS ("Services for Macintosh"), `mapposix` of Linux clients and Samba's
//! `fruit:encoding = native` have them:
//!
//! | Unix | client |
//! | --- | --- |
//! | 0x01..=0x1f | U+F001..=U+F01F |
//! | `"` `*` `:` `<` `>` `?` `\` `\|` | U+F020..=U+F027 |
//! | a space at the end | U+F028 |
//! | a dot at the end | U+F029 |
//! | (nothing, where devices are mapped: see [`mark_device`]) | U+F02A |
//! | a byte 0x80..=0xff that is no part of UTF-8 | U+10F780..=U+10F7FF |
//!
//! A Unix name that really has one of these private characters (written by something that knew no mapping)
//! is shown byte by byte, as the last line says: no two Unix names are one to a client. So is the second of two
//! characters that stand for halves of a surrogate pair ([`utf16`]), and would be a pair to clients.

use std::borrow::Cow;

use super::utf16;

const MAPPED: [u8; 8] = *b"\"*:<>?\\|";
const CONTROL: u32 = 0xf000;
const SPECIAL: u32 = 0xf020;
const END_SPACE: char = '\u{f028}';
const END_DOT: char = '\u{f029}';
/// A byte that is no UTF-8 is added to this.
const BYTE: u32 = 0x10_f700;

/// Stands behind the name of a device in the name of a file, so that Windows does not take it for the device.
const DEVICE_MARK: char = '\u{f02a}';

/// Letters of the device's name that a component begins with, if Windows takes the component for that device: the
/// name alone, or with spaces and an extension behind it ("Naming Files, Paths, and Namespaces" of the Win32 API).
fn device_len(component: &str) -> Option<usize> {
    let stem = component.split('.').next().unwrap_or(component).trim_end_matches(' ');
    let is = |name: &&str| stem.eq_ignore_ascii_case(name);
    if ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"].iter().any(is) {
        return Some(stem.len());
    }
    let (port, number) = stem.split_at_checked(3)?;
    let mut number = number.chars();
    let numbered =
        matches!(number.next(), Some('0'..='9' | '¹' | '²' | '³')) && number.next().is_none();
    let is_port = ["COM", "LPT"].iter().any(|name| port.eq_ignore_ascii_case(name));
    (numbered && is_port).then_some(stem.len())
}

/// What clients call an entry of a directory, or a path of such names with `\` between them, where names that Windows
/// reserves for devices are mapped: `nul.txt` as `nul` with U+F02A behind it, and `.txt`. No copy for the usual name.
#[must_use]
pub fn mark_device(name: &str) -> Cow<'_, str> {
    if !name.split('\\').any(|component| device_len(component).is_some()) {
        return Cow::Borrowed(name);
    }
    let mut out = String::with_capacity(name.len() + 8);
    for (at, component) in name.split('\\').enumerate() {
        if at > 0 {
            out.push('\\');
        }
        let (device, rest) = component.split_at(device_len(component).unwrap_or(0));
        out.push_str(device);
        if !device.is_empty() {
            out.push(DEVICE_MARK);
        }
        out.push_str(rest);
    }
    Cow::Owned(out)
}

/// The other way: a component that a client names, without the mark of [`mark_device`]. A client is understood whether
/// it was shown the name so or made it itself.
#[must_use]
pub fn unmark_device(component: &str) -> Cow<'_, str> {
    if component.is_ascii() {
        return Cow::Borrowed(component);
    }
    let Some((device, rest)) = component.split_once(DEVICE_MARK) else {
        return Cow::Borrowed(component);
    };
    let plain = [device, rest].concat();
    if device_len(&plain) == Some(device.len()) {
        Cow::Owned(plain)
    } else {
        Cow::Borrowed(component)
    }
}

/// Whether a name on disk is one that a client could name only with the mark, which would be taken off.
fn is_marked(name: &str) -> bool {
    matches!(unmark_device(name), Cow::Owned(_))
}

/// Whether a byte of a Unix name may not be in a name that a client sees.
const fn is_forbidden(byte: u8) -> bool {
    byte < 0x20 || matches!(byte, b'"' | b'*' | b':' | b'<' | b'>' | b'?' | b'\\' | b'|')
}

const fn private(code: u32) -> char {
    match char::from_u32(code) {
        Some(c) => c,
        None => char::REPLACEMENT_CHARACTER,
    }
}

/// Whether a character of a client's name means something else in a Unix name.
fn is_private(c: char) -> bool {
    matches!(u32::from(c), 0xf001..=0xf029 | 0x10_f780..=0x10_f7ff)
}

/// Whether two characters of a Unix name would be another one for clients.
fn has_pair(text: &str) -> bool {
    // What their bytes begin with.
    text.as_bytes().contains(&0xf4)
        && text.chars().zip(text.chars().skip(1)).any(|(one, next)| utf16::are_a_pair(one, next))
}

/// What clients call an entry of a directory. No copy for the usual name.
#[must_use]
pub fn from_unix(name: &[u8]) -> Cow<'_, str> {
    let ends_well = !matches!(name, [.., b'.' | b' ']) || matches!(name, b"." | b"..");
    // Without a way out of the loop: the usual name is one that has to be looked at to its end.
    let seen = name.iter().fold(0, |seen, byte| seen | KINDS[usize::from(*byte)]);
    match str::from_utf8(name) {
        Ok(text) if ends_well && seen == 0 => Cow::Borrowed(text),
        Ok(text)
            if ends_well
                && seen & FORBIDDEN == 0
                && !text.contains(is_private)
                && !has_pair(text)
                && !is_marked(text) =>
        {
            Cow::Borrowed(text)
        }
        _ => Cow::Owned(mapped(name)),
    }
}

/// In [`KINDS`]: may not be in a name that a client sees.
const FORBIDDEN: u8 = 1;
/// In [`KINDS`]: a part of a character that is not ASCII.
const LONG: u8 = 2;

/// What kind of byte of a Unix name each is.
const KINDS: [u8; 256] = {
    let mut kinds = [0; 256];
    let mut byte = 0;
    while byte < kinds.len() {
        #[expect(clippy::cast_possible_truncation, reason = "it is below 256")]
        let forbidden = is_forbidden(byte as u8);
        kinds[byte] = if forbidden {
            FORBIDDEN
        } else if byte >= 0x80 {
            LONG
        } else {
            0
        };
        byte += 1;
    }
    kinds
};

fn mapped(name: &[u8]) -> String {
    let (body, end) = match name {
        b"." | b".." => (name, None),
        [body @ .., b'.'] => (body, Some(END_DOT)),
        [body @ .., b' '] => (body, Some(END_SPACE)),
        _ => (name, None),
    };
    // Also where what follows is no UTF-8: its client names what it is mapped to.
    let marked = is_marked(&String::from_utf8_lossy(name));
    let mut out = String::with_capacity(name.len() + 8);
    let bytes = |out: &mut String, bytes: &[u8]| {
        out.extend(bytes.iter().map(|byte| private(BYTE + u32::from(*byte))));
    };
    for chunk in body.utf8_chunks() {
        let mut before = '\0';
        for c in chunk.valid().chars() {
            let is_pair = utf16::are_a_pair(std::mem::replace(&mut before, c), c);
            match u8::try_from(u32::from(c)) {
                Ok(byte @ 1..0x20) => out.push(private(CONTROL + u32::from(byte))),
                Ok(byte) if is_forbidden(byte) => {
                    let at = MAPPED.iter().zip(SPECIAL..).find(|(special, _)| **special == byte);
                    out.push(at.map_or(c, |(_, code)| private(code)));
                }
                _ if is_private(c) || is_pair || marked && c == DEVICE_MARK => {
                    bytes(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes())
                }
                _ => out.push(c),
            }
        }
        bytes(&mut out, chunk.invalid());
    }
    out.extend(end);
    out
}

/// What the file system calls it: a component, or components with `/` between them. No copy for the usual
/// name. Never makes a `/`, a zero byte, or a `.` or `..` that was not there.
#[must_use]
pub fn to_unix(name: &str) -> Cow<'_, [u8]> {
    if name.is_ascii() || !name.contains(is_private) {
        return Cow::Borrowed(name.as_bytes());
    }
    let mut out = Vec::with_capacity(name.len());
    for (at, component) in name.split('/').enumerate() {
        if at > 0 {
            out.push(b'/');
        }
        component_to_unix(component, &mut out);
    }
    Cow::Owned(out)
}

fn component_to_unix(component: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for (at, c) in component.char_indices() {
        let last = at + c.len_utf8() == component.len();
        match u32::from(c) {
            code @ 0xf001..=0xf01f => out.extend((code - CONTROL).to_le_bytes().first()),
            code @ 0xf020..=0xf027 => {
                out.extend(
                    MAPPED.iter().zip(SPECIAL..).find(|(_, at)| *at == code).map(|(b, _)| b),
                );
            }
            // At the end only, and never so that the result leads to another directory.
            0xf029 if last && !matches!(&out[start..], b"" | b".") => out.push(b'.'),
            0xf028 if last => out.push(b' '),
            code @ 0x10_f780..=0x10_f7ff => out.extend(code.to_le_bytes().first()),
            _ => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}
