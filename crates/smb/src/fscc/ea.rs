//! Extended attributes as lists: FILE_FULL_EA_INFORMATION and FILE_GET_EA_INFORMATION (MS-FSCC 2.4.15).

use super::file::Fill;
use super::le::{Put, Reader, len32, patch_u32};
use crate::NtStatus;

/// Attributes in one list at most: as many as fit into the 64 KiB that Windows has for all of a file.
const COUNT_MAX: usize = 0x1_0000 / FIXED;
/// Bytes of an entry before the name.
const FIXED: usize = 8;
/// The file must not be used by who does not know this attribute.
pub const FILE_NEED_EA: u8 = 0x80;

/// One extended attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ea {
    /// `FILE_NEED_EA` or zero.
    pub flags: u8,
    /// Its name, ASCII, at most 255 bytes; case does not matter.
    pub name: String,
    /// Its value, at most 65535 bytes; setting an empty one takes the attribute away.
    pub value: Vec<u8>,
}

/// Checks the name of an extended attribute.
///
/// # Errors
///
/// INVALID_EA_NAME for one that is empty or has a character that may not be in it (MS-FSCC 2.4.15).
pub fn check_ea_name(name: &[u8]) -> Result<&str, NtStatus> {
    let good = |byte: &u8| {
        matches!(byte, 0x20..0x7f)
            && !matches!(byte, b'\\' | b'/' | b':' | b'*' | b'?' | b'"' | b'<' | b'>' | b'|')
            && !matches!(byte, b',' | b'+' | b'=' | b'[' | b']' | b';')
    };
    if name.is_empty() || !name.iter().all(good) {
        return Err(NtStatus::INVALID_EA_NAME);
    }
    str::from_utf8(name).map_err(|_| NtStatus::INVALID_EA_NAME)
}

/// Goes through entries that each begin with the offset of the next.
fn entries<'a, T>(
    mut bytes: &'a [u8],
    mut one: impl FnMut(Reader<'a>) -> Option<Result<T, NtStatus>>,
) -> Result<Vec<T>, NtStatus> {
    let mut found = Vec::new();
    loop {
        let mut entry = Reader::new(bytes);
        let next = entry.u32().ok_or(NtStatus::EA_LIST_INCONSISTENT)?;
        let next = usize::try_from(next).map_err(|_| NtStatus::EA_LIST_INCONSISTENT)?;
        let within = if next == 0 { bytes } else { bytes.get(..next).unwrap_or(&[]) };
        if found.len() == COUNT_MAX || !next.is_multiple_of(4) {
            return Err(NtStatus::EA_LIST_INCONSISTENT);
        }
        let fields = Reader::new(within.get(4..).ok_or(NtStatus::EA_LIST_INCONSISTENT)?);
        found.push(one(fields).ok_or(NtStatus::EA_LIST_INCONSISTENT)??);
        if next == 0 {
            return Ok(found);
        }
        bytes = &bytes[next..];
    }
}

/// Reads a list of attributes: of a set request, or of a create context.
///
/// # Errors
///
/// EA_LIST_INCONSISTENT if the list does not hold together, INVALID_EA_NAME for a name that cannot be.
pub fn parse_eas(bytes: &[u8]) -> Result<Vec<Ea>, NtStatus> {
    entries(bytes, |mut entry| {
        let flags = entry.u8()?;
        let name_len = entry.u8()?;
        let value_len = entry.u16()?;
        let name = entry.bytes(name_len.into())?;
        if entry.u8()? != 0 {
            return None;
        }
        let value = entry.bytes(value_len.into())?.to_vec();
        Some(check_ea_name(name).map(|name| Ea { flags, name: name.to_owned(), value }))
    })
}

/// Reads the names of the attributes that a client asks for; an empty list asks for all.
///
/// # Errors
///
/// As [`parse_eas`].
pub fn parse_ea_names(bytes: &[u8]) -> Result<Vec<String>, NtStatus> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    entries(bytes, |mut entry| {
        let name_len = entry.u8()?;
        let name = entry.bytes(name_len.into())?;
        if entry.u8()? != 0 {
            return None;
        }
        Some(check_ea_name(name).map(str::to_owned))
    })
}

/// Bytes that some attributes take as FILE_FULL_EA_INFORMATION: what [`super::Facts::ea_size`] is.
#[must_use]
pub fn eas_len(eas: &[Ea]) -> usize {
    eas.iter().fold(0, |len: usize, ea| len.next_multiple_of(4) + entry_len(ea))
}

fn entry_len(ea: &Ea) -> usize {
    FIXED + ea.name.len() + 1 + ea.value.len()
}

/// Appends attributes, as many whole ones as fit into `limit` bytes. One whose name or value is too long for
/// the format is left out.
///
/// # Errors
///
/// BUFFER_TOO_SMALL if not even the first fits.
pub fn put_eas(eas: &[Ea], limit: usize, out: &mut Vec<u8>) -> Result<Fill, NtStatus> {
    let start = out.len();
    let mut last = None;
    for ea in eas {
        let lens = (u8::try_from(ea.name.len()), u16::try_from(ea.value.len()));
        let (Ok(name_len), Ok(value_len)) = lens else { continue };
        let at = (out.len() - start).next_multiple_of(4);
        if at + entry_len(ea) > limit {
            return if at == 0 { Err(NtStatus::BUFFER_TOO_SMALL) } else { Ok(Fill::Cut) };
        }
        out.resize(start + at, 0);
        if let Some(last) = last {
            patch_u32(out, start + last, len32(at - last));
        }
        last = Some(at);
        out.u32(0);
        out.u8(ea.flags);
        out.u8(name_len);
        out.u16(value_len);
        out.put(ea.name.as_bytes());
        out.u8(0);
        out.put(&ea.value);
    }
    Ok(Fill::Whole)
}
