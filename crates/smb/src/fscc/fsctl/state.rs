//! Small requests: compression, integrity, object ids, snapshots, pipes.

use super::super::{Put, Reader, VolumeFacts};
use crate::NtStatus;
use crate::name::utf16;

/// Reads FSCTL_SET_SPARSE (MS-FSCC 2.3.69): nothing at all means yes.
#[must_use]
pub fn parse_sparse(bytes: &[u8]) -> bool {
    bytes.first().is_none_or(|sparse| *sparse != 0)
}

/// Reads FSCTL_SET_COMPRESSION (MS-FSCC 2.3.67): whether the file shall be compressed.
///
/// # Errors
///
/// INVALID_PARAMETER for a request that is too short or a format that nobody knows.
pub fn parse_compression(bytes: &[u8]) -> Result<bool, NtStatus> {
    match Reader::new(bytes).u16() {
        Some(0) => Ok(false),
        // The default format, and LZNT1.
        Some(1 | 2) => Ok(true),
        _ => Err(NtStatus::INVALID_PARAMETER),
    }
}

/// Appends the answer to FSCTL_GET_COMPRESSION (MS-FSCC 2.3.18).
///
/// # Errors
///
/// BUFFER_TOO_SMALL if the client has no room for two bytes.
pub fn put_compression(compressed: bool, limit: usize, out: &mut Vec<u8>) -> Result<(), NtStatus> {
    const LZNT1: u16 = 2;
    if limit < 2 {
        return Err(NtStatus::BUFFER_TOO_SMALL);
    }
    out.u16(if compressed { LZNT1 } else { 0 });
    Ok(())
}

/// FSCTL_{GET,SET}_INTEGRITY_INFORMATION_BUFFER (MS-FSCC 2.3.20, 2.3.73).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Integrity {
    /// CHECKSUM_TYPE_*: 0 for none, 0xffff (set only) for "as it is".
    pub algorithm: u16,
    /// FSCTL_INTEGRITY_FLAG_CHECKSUM_ENFORCEMENT_OFF.
    pub flags: u32,
}

impl Integrity {
    /// Reads what is to be set.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER for a request that is too short or a checksum that nobody knows.
    pub fn parse(bytes: &[u8]) -> Result<Self, NtStatus> {
        let mut fields = Reader::new(bytes);
        let (algorithm, _, flags) = (fields.u16(), fields.u16(), fields.u32());
        match (algorithm, flags) {
            (Some(algorithm @ (0..=2 | 0xffff)), Some(flags)) => Ok(Self { algorithm, flags }),
            _ => Err(NtStatus::INVALID_PARAMETER),
        }
    }

    /// Appends the answer to a get; `cluster` is the allocation unit in bytes.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if the client has no room for it.
    pub fn put(self, cluster: u32, limit: usize, out: &mut Vec<u8>) -> Result<(), NtStatus> {
        if limit < 16 {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        out.u16(self.algorithm);
        out.u16(0);
        out.u32(self.flags);
        // Bytes under one checksum; the unit.
        out.u32(cluster);
        out.u32(cluster);
        Ok(())
    }
}

/// Appends FILE_OBJECTID_BUFFER (MS-FSCC 2.1.3.1) of a file: its volume and what it has as id there, which
/// is as lasting as the file itself on the share's own file system, and as the number of its device on others.
///
/// # Errors
///
/// BUFFER_TOO_SMALL if the client has no room for it.
pub fn put_object_id(
    volume: &VolumeFacts,
    file_id: u64,
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), NtStatus> {
    if limit < 64 {
        return Err(NtStatus::BUFFER_TOO_SMALL);
    }
    // The id itself, the volume and the object at birth, the domain, which is always zero.
    for _ in 0..2 {
        out.u64(volume.id);
        out.u64(file_id);
    }
    out.u64(volume.id);
    out.u64(file_id);
    out.put(&[0; 16]);
    Ok(())
}

/// Appends an empty SRV_SNAPSHOT_ARRAY (MS-SMB2 2.2.32.2): there are no earlier versions.
///
/// # Errors
///
/// INVALID_PARAMETER if the client has no room for the head.
pub fn put_no_snapshots(limit: usize, out: &mut Vec<u8>) -> Result<(), NtStatus> {
    if limit < 16 {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    // How many there are, how many are here, bytes of their names: an empty list ends in two zeros.
    [0, 0, 2, 0].into_iter().for_each(|n| out.u32(n));
    Ok(())
}

/// Appends the answer to FSCTL_QUERY_ON_DISK_VOLUME_INFO (MS-FSCC 2.3.54), which is about discs of the optical
/// kind: nothing is known but the size.
///
/// # Errors
///
/// BUFFER_TOO_SMALL if the client has no room for it.
pub fn put_on_disk_volume(
    volume: &VolumeFacts,
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), NtStatus> {
    const LEN: usize = 264;
    if limit < LEN {
        return Err(NtStatus::BUFFER_TOO_SMALL);
    }
    let start = out.len();
    // Directories and files: -1 for "nobody knows".
    out.u64(u64::MAX);
    out.u64(u64::MAX);
    // Versions of the format, and its name.
    out.u16(0);
    out.u16(0);
    out.resize(start + 44, 0);
    out.time(volume.created);
    out.resize(start + LEN, 0);
    Ok(())
}

/// FSCTL_PIPE_WAIT (MS-FSCC 2.3.49): wait until a pipe can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipeWait {
    /// How long, in units of 100 ns; `None` for as long as the server likes.
    pub timeout: Option<u64>,
    /// The pipe, without `\pipe\`.
    pub name: String,
}

impl PipeWait {
    /// Reads one.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it does not hold together.
    pub fn parse(bytes: &[u8]) -> Result<Self, NtStatus> {
        let mut fields = Reader::new(bytes);
        let head = (fields.u64(), fields.u32(), fields.u8(), fields.u8());
        let (Some(timeout), Some(len), Some(said), Some(_)) = head else {
            return Err(NtStatus::INVALID_PARAMETER);
        };
        let name = usize::try_from(len).ok().and_then(|len| fields.bytes(len));
        let name = utf16::decode(name.ok_or(NtStatus::INVALID_PARAMETER)?)?;
        Ok(Self { timeout: (said != 0).then_some(timeout), name })
    }
}
