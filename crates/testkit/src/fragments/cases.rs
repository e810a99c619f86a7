//! Named cases: fragments, and what a host that gives overlaps up makes of them.
//!
//! `cases.txt` has one in each line: name, family, what comes out, fragments in the order in which they
//! come. A fragment is `offset:length:more:letter`, its payload that letter again and again, then what is
//! unusual about it. What comes out is a payload as letters and how many of each, `-` for nothing.

use super::packet::{Family, Packet};

const CASES: &str = include_str!("cases.txt");
/// Identifications of two cases must not meet, so that all can be sent one after the other.
const ID_FIRST: u32 = 100;
const ID_STEP: u32 = 16;

/// A case.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is about.
    pub name: &'static str,
    /// IPv4 or IPv6.
    pub family: Family,
    /// Payloads of the datagrams that come out, in order.
    pub payloads: Vec<Vec<u8>>,
    /// The fragments, in the order in which they come.
    pub fragments: Vec<Packet>,
}

/// All of them.
///
/// # Panics
///
/// If a line of the file makes no sense: says which.
#[must_use]
pub fn cases() -> Vec<Case> {
    let lines = CASES.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let ids = (ID_FIRST..).step_by(ID_STEP as usize);
    lines.zip(ids).map(|(line, id)| case(line, id).unwrap_or_else(|| panic!("{line:?}"))).collect()
}

fn case(line: &'static str, id: u32) -> Option<Case> {
    let mut fields = line.split(';').map(str::trim);
    let name = fields.next()?;
    let family = match fields.next()? {
        "4" => Family::V4,
        "6" => Family::V6,
        _ => return None,
    };
    let payloads = payloads(fields.next()?)?;
    let mut fragments = Vec::new();
    for text in fields.next()?.split_whitespace() {
        fragments.extend(fragment(text, family, id)?);
    }
    Some(Case { name, family, payloads, fragments })
}

/// `A16B8|C4`.
fn payloads(text: &str) -> Option<Vec<Vec<u8>>> {
    if text == "-" {
        return Some(Vec::new());
    }
    text.split('|').map(payload).collect()
}

fn payload(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(letter) = rest.bytes().next() {
        let digits = rest[1..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |at| at + 1);
        bytes.resize(bytes.len() + rest[1..digits].parse::<usize>().ok()?, letter);
        rest = &rest[digits..];
    }
    Some(bytes)
}

/// `offset:length:more:letter[:what is unusual]`; several packets where it is to be split.
fn fragment(text: &str, family: Family, id: u32) -> Option<Vec<Packet>> {
    let mut fields = text.splitn(5, ':');
    let offset = fields.next()?.parse().ok()?;
    let len = fields.next()?.parse().ok()?;
    let more = fields.next()? == "1";
    let letter = *fields.next()?.as_bytes().first()?;
    let mut packet = Packet::new(family, id, vec![letter; len]);
    (packet.offset, packet.more) = (offset, more);
    let mut pieces = None;
    for option in fields.next().into_iter().flat_map(|all| all.split([',', ':'])) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        if key == "split" {
            pieces = Some(value);
        } else {
            set(&mut packet, key, value)?;
        }
    }
    pieces.map_or_else(|| Some(vec![packet.clone()]), |how| split(&packet, how))
}

fn set(packet: &mut Packet, key: &str, value: &str) -> Option<()> {
    let number = || value.parse::<u32>().ok();
    let byte = || value.parse::<u8>().ok();
    match key {
        "id" => packet.id += number()?,
        "rid" => packet.id = number()?,
        "src" => packet.src = byte()?,
        "proto" => packet.protocol = byte()?,
        "tos" => packet.tos = byte()?,
        "opt" => packet.options = usize::from(byte()?),
        "pad" => packet.padding = usize::from(byte()?),
        "df" => packet.dont_fragment = true,
        "resv" => packet.reserved = true,
        "nested" => packet.nested = true,
        "hbh" => packet.extensions.push(0),
        "dst" => packet.extensions.push(60),
        _ => return None,
    }
    Some(())
}

/// `1480`: pieces of that size; `1480r`: the last first; `1480m`: more follows behind the last.
fn split(packet: &Packet, how: &str) -> Option<Vec<Packet>> {
    let digits = how.trim_end_matches(['r', 'm']);
    let size = digits.parse().ok()?;
    let all = packet.payload.len();
    let part = |at: usize| {
        let mut part = packet.fragment(at, all.min(at + size));
        part.offset += packet.offset;
        part.more |= how.ends_with('m');
        part
    };
    let mut parts: Vec<_> = (0..all).step_by(size).map(part).collect();
    if how.ends_with('r') {
        parts.reverse();
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cases_can_be_read() {
        let all = cases();
        assert_eq!(all.len(), 95);
        assert!(all.iter().all(|case| !case.fragments.is_empty()));
        let delivered = all.iter().filter(|case| !case.payloads.is_empty()).count();
        assert_eq!(delivered, 51, "of 95");
    }

    #[test]
    fn payloads_are_letters_and_how_many() {
        assert_eq!(payloads("A3B1|C2"), Some(vec![b"AAAB".to_vec(), b"CC".to_vec()]));
        assert_eq!(payloads("-"), Some(Vec::new()));
    }

    #[test]
    fn a_fragment_is_split_as_told() {
        let parts = fragment("0:20:0:A:split=8r", Family::V4, 1).expect("three fragments");
        let places: Vec<_> = parts.iter().map(|p| (p.offset, p.payload.len(), p.more)).collect();
        assert_eq!(places, [(16, 4, false), (8, 8, true), (0, 8, true)]);
        let parts = fragment("0:16:1:A:split=8m", Family::V4, 1).expect("two fragments");
        assert!(parts.iter().all(|part| part.more));
    }
}
