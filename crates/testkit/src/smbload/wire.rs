//! Bytes of SMB2 messages, the client's side: what is sent, and where to look in what comes.
//!
//! Written from MS-SMB2 section 2.2 and from nothing else of this project: a peer that shares the
//! server's reading of the specification cannot find that it is wrong.

use anyhow::{Context, ensure};

/// Commands, MS-SMB2 2.2.1.
pub(crate) mod command {
    pub(crate) const NEGOTIATE: u16 = 0;
    pub(crate) const SESSION_SETUP: u16 = 1;
    pub(crate) const TREE_CONNECT: u16 = 3;
    pub(crate) const CREATE: u16 = 5;
    pub(crate) const CLOSE: u16 = 6;
    pub(crate) const READ: u16 = 8;
    pub(crate) const WRITE: u16 = 9;
    pub(crate) const IOCTL: u16 = 11;
    pub(crate) const ECHO: u16 = 13;
    pub(crate) const QUERY_DIRECTORY: u16 = 14;
    pub(crate) const QUERY_INFO: u16 = 16;
}

/// Statuses that are not failures.
pub(crate) mod status {
    pub(crate) const OK: u32 = 0;
    pub(crate) const PENDING: u32 = 0x0000_0103;
    pub(crate) const NO_MORE_FILES: u32 = 0x8000_0006;
    pub(crate) const MORE_PROCESSING_REQUIRED: u32 = 0xc000_0016;
}

/// Header flags, MS-SMB2 2.2.1.2.
pub(crate) mod flag {
    pub(crate) const ASYNC: u32 = 2;
    pub(crate) const RELATED: u32 = 4;
    pub(crate) const SIGNED: u32 = 8;
}

/// Length of a header.
pub(crate) const HEADER: usize = 64;
/// Length of a transform header, MS-SMB2 2.2.41.
pub(crate) const TRANSFORM: usize = 52;
/// Bytes that one credit pays for, MS-SMB2 3.1.5.2.
pub(crate) const CREDIT_BYTES: u32 = 65536;
/// "The file that the request before this one has opened", MS-SMB2 2.2.1.
pub(crate) const PREVIOUS: FileId = [0xff; 16];

/// A handle as the server gave it: both halves.
pub(crate) type FileId = [u8; 16];

/// What a CREATE asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    pub(crate) access: u32,
    pub(crate) disposition: u32,
    pub(crate) options: u32,
}

/// Reads, as programs do that only look.
pub(crate) const READING: Opening = Opening { access: 0x0012_0089, disposition: 1, options: 0x40 };
/// Reads attributes only.
pub(crate) const LOOKING: Opening = Opening { access: 0x0010_0080, disposition: 1, options: 0 };
/// Writes a file, which is created if it is not there.
pub(crate) const WRITING: Opening = Opening { access: 0x0012_019f, disposition: 3, options: 0x40 };
/// Writes a file from its beginning.
pub(crate) const REPLACING: Opening =
    Opening { access: 0x0012_019f, disposition: 5, options: 0x40 };
/// Creates a file that goes when it is closed.
pub(crate) const PASSING: Opening =
    Opening { access: 0x0013_019f, disposition: 2, options: 0x1040 };
/// A directory, to be listed.
pub(crate) const LISTING: Opening = Opening { access: 0x0012_0089, disposition: 1, options: 0x21 };
/// A directory, made if it is not there.
pub(crate) const FOLDER: Opening = Opening { access: 0x0012_0089, disposition: 3, options: 1 };

fn array<const N: usize>(bytes: &[u8], at: usize) -> anyhow::Result<[u8; N]> {
    let end = at.checked_add(N).filter(|end| *end <= bytes.len());
    let end = end.with_context(|| format!("an answer of {} bytes is cut short", bytes.len()))?;
    Ok(bytes[at..end].try_into()?)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> anyhow::Result<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> anyhow::Result<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> anyhow::Result<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

pub(crate) fn file_id_at(bytes: &[u8], at: usize) -> anyhow::Result<FileId> {
    array(bytes, at)
}

/// A buffer within an answer, given by an offset from the header and a length.
pub(crate) fn part(bytes: &[u8], offset: u32, len: u32) -> anyhow::Result<&[u8]> {
    let offset = offset as usize;
    let end = offset.checked_add(len as usize).filter(|end| *end <= bytes.len());
    ensure!(end.is_some(), "an answer names bytes that it does not have");
    Ok(&bytes[offset..offset + len as usize])
}

pub(crate) fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// Length of something short that goes into a field of 16 bits.
///
/// # Errors
///
/// When it is not short.
pub(crate) fn short_len(bytes: &[u8]) -> anyhow::Result<u16> {
    u16::try_from(bytes.len()).context("a name or a token is longer than 65,535 bytes")
}

/// How many credits a request costs that carries or asks for `bytes`.
pub(crate) fn charge(bytes: u32) -> u16 {
    u16::try_from(bytes.max(1).div_ceil(CREDIT_BYTES)).unwrap_or(u16::MAX)
}

/// A request's header; the signature is left zero. MS-SMB2 2.2.1.2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) command: u16,
    pub(crate) charge: u16,
    pub(crate) credits_wanted: u16,
    pub(crate) flags: u32,
    pub(crate) next: u32,
    pub(crate) message_id: u64,
    pub(crate) tree_id: u32,
    pub(crate) session_id: u64,
}

impl Header {
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        out.extend([0xfe, b'S', b'M', b'B', 64, 0]);
        out.extend(self.charge.to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.command.to_le_bytes());
        out.extend(self.credits_wanted.to_le_bytes());
        out.extend(self.flags.to_le_bytes());
        out.extend(self.next.to_le_bytes());
        out.extend(self.message_id.to_le_bytes());
        out.extend(0xfeff_u32.to_le_bytes());
        out.extend(self.tree_id.to_le_bytes());
        out.extend(self.session_id.to_le_bytes());
        out.extend([0; 16]);
    }
}

/// ECHO, MS-SMB2 2.2.28.
pub(crate) const ECHO_BODY: [u8; 4] = [4, 0, 0, 0];

/// CREATE with its name, MS-SMB2 2.2.13: no oplock, shared with all.
///
/// # Errors
///
/// When the name is too long for the field.
pub(crate) fn create(name: &str, opening: Opening) -> anyhow::Result<Vec<u8>> {
    let name = utf16(name);
    let mut body = Vec::with_capacity(64 + name.len());
    body.extend([57, 0, 0, 0]);
    body.extend(2_u32.to_le_bytes());
    body.extend([0; 16]);
    body.extend(opening.access.to_le_bytes());
    body.extend(if opening.disposition == 1 { 0_u32 } else { 0x80 }.to_le_bytes());
    body.extend(7_u32.to_le_bytes());
    body.extend(opening.disposition.to_le_bytes());
    body.extend(opening.options.to_le_bytes());
    body.extend(120_u16.to_le_bytes());
    body.extend(short_len(&name)?.to_le_bytes());
    body.extend([0; 8]);
    // The structure has at least one byte after its fixed part.
    body.extend(if name.is_empty() { vec![0, 0] } else { name });
    Ok(body)
}

/// CLOSE, MS-SMB2 2.2.15.
pub(crate) fn close(file: &FileId) -> [u8; 24] {
    let mut body = [0; 24];
    body[0] = 24;
    body[8..].copy_from_slice(file);
    body
}

/// READ, MS-SMB2 2.2.19.
pub(crate) fn read(file: &FileId, len: u32, offset: u64) -> [u8; 49] {
    let mut body = [0; 49];
    (body[0], body[2]) = (49, 0x50);
    body[4..8].copy_from_slice(&len.to_le_bytes());
    body[8..16].copy_from_slice(&offset.to_le_bytes());
    body[16..32].copy_from_slice(file);
    body
}

/// WRITE without its data, MS-SMB2 2.2.21.
pub(crate) fn write(file: &FileId, len: u32, offset: u64) -> [u8; 48] {
    let mut body = [0; 48];
    (body[0], body[2]) = (49, 0x70);
    body[4..8].copy_from_slice(&len.to_le_bytes());
    body[8..16].copy_from_slice(&offset.to_le_bytes());
    body[16..32].copy_from_slice(file);
    body
}

/// QUERY_INFO of a file, FileNetworkOpenInformation: MS-SMB2 2.2.37, MS-FSCC 2.4.29.
pub(crate) fn query_info(file: &FileId) -> [u8; 41] {
    let mut body = [0; 41];
    (body[0], body[2], body[3]) = (41, 1, 34);
    body[4..8].copy_from_slice(&1024_u32.to_le_bytes());
    body[24..40].copy_from_slice(file);
    body
}

/// QUERY_DIRECTORY of all names, FileIdBothDirectoryInformation: MS-SMB2 2.2.33, MS-FSCC 2.4.17.
pub(crate) fn query_directory(file: &FileId, len: u32) -> [u8; 34] {
    let mut body = [0; 34];
    (body[0], body[2]) = (33, 37);
    body[8..24].copy_from_slice(file);
    body[24] = 96;
    body[26] = 2;
    body[28..32].copy_from_slice(&len.to_le_bytes());
    body[32] = b'*';
    body
}

/// How many entries a QUERY_DIRECTORY answer has; `answer` begins with the header.
///
/// # Errors
///
/// When the chain of entries leaves the answer.
pub(crate) fn entries(answer: &[u8]) -> anyhow::Result<u64> {
    let offset = u32::from(u16_at(answer, HEADER + 2)?);
    let list = part(answer, offset, u32_at(answer, HEADER + 4)?)?;
    let (mut at, mut count) = (0, 0);
    while at < list.len() {
        count += 1;
        match u32_at(list, at)? as usize {
            0 => break,
            next => at += next,
        }
    }
    Ok(count)
}

/// FSCTL_QUERY_NETWORK_INTERFACE_INFO, MS-SMB2 2.2.31 and 2.2.32.5.
pub(crate) fn query_interfaces() -> Vec<u8> {
    let mut body = vec![57, 0, 0, 0];
    body.extend(0x0014_01fc_u32.to_le_bytes());
    body.extend(PREVIOUS);
    for field in [120_u32, 0, 0, 120, 0, 65536, 1, 0] {
        body.extend(field.to_le_bytes());
    }
    body.push(0);
    body
}

/// What the server says of its interfaces, a line for each.
///
/// # Errors
///
/// When the list is cut short.
pub(crate) fn interfaces(answer: &[u8]) -> anyhow::Result<Vec<String>> {
    let list = part(answer, u32_at(answer, HEADER + 32)?, u32_at(answer, HEADER + 36)?)?;
    let (mut at, mut lines) = (0, Vec::new());
    loop {
        let address = match u16_at(list, at + 24)? {
            2 => std::net::IpAddr::from(array::<4>(list, at + 28)?).to_string(),
            _ => std::net::IpAddr::from(array::<16>(list, at + 32)?).to_string(),
        };
        lines.push(format!(
            "interface={} capabilities={:#x} speed={} address={address}",
            u32_at(list, at + 4)?,
            u32_at(list, at + 8)?,
            u64_at(list, at + 16)?,
        ));
        match u32_at(list, at)? as usize {
            0 => return Ok(lines),
            next => at += next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_megabyte_costs_sixteen_credits() {
        assert_eq!([0, 1, 65536, 65537, 1 << 20].map(charge), [1, 1, 1, 2, 16]);
    }

    #[test]
    fn a_header_is_as_long_as_it_says() {
        let header = Header {
            command: command::READ,
            charge: 16,
            credits_wanted: 16,
            flags: 0,
            next: 0,
            message_id: 7,
            tree_id: 1,
            session_id: 2,
        };
        let mut out = Vec::new();
        header.append_to(&mut out);
        assert_eq!(out.len(), HEADER);
        assert_eq!(u64_at(&out, 24).unwrap(), 7);
        assert_eq!(u64_at(&out, 40).unwrap(), 2);
    }

    #[test]
    fn what_is_cut_short_is_an_error() {
        assert!(u32_at(&[0; 3], 0).is_err());
        assert!(u32_at(&[0; 8], usize::MAX).is_err());
        assert!(part(&[0; 8], 4, 5).is_err());
        assert!(part(&[0; 8], 4, u32::MAX).is_err());
        assert!(interfaces(&[0; 100]).is_err());
    }

    #[test]
    fn entries_are_counted_along_their_chain() {
        let mut answer = vec![0; HEADER + 8 + 24];
        answer[HEADER + 2] = 72;
        answer[HEADER + 4] = 24;
        answer[72] = 8;
        answer[80] = 8;
        assert_eq!(entries(&answer).unwrap(), 3);
        answer[HEADER + 4] = 25;
        assert!(entries(&answer).is_err());
    }
}
