//! Entries of a directory as QUERY_DIRECTORY answers have them (MS-FSCC 2.4, MS-SMB2 3.3.5.18).

use super::Facts;
use super::file::times;
use super::le::len32;
use crate::name::utf16;
use crate::security::Sid;
use crate::{Attributes, NtStatus};

/// In which form the entries of a directory are told (MS-SMB2 2.2.33).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DirectoryClass {
    /// FileDirectoryInformation.
    Directory = 1,
    /// FileFullDirectoryInformation.
    Full = 2,
    /// FileBothDirectoryInformation.
    Both = 3,
    /// FileNamesInformation.
    Names = 12,
    /// FileIdBothDirectoryInformation.
    IdBoth = 37,
    /// FileIdFullDirectoryInformation.
    IdFull = 38,
    /// FileIdExtdDirectoryInformation.
    IdExtd = 60,
    /// FileIdExtdBothDirectoryInformation.
    IdExtdBoth = 63,
    /// The POSIX extensions' SMB_FIND_FILE_POSIX_INFO.
    Posix = 100,
}

impl DirectoryClass {
    /// From the byte on the wire.
    ///
    /// # Errors
    ///
    /// INVALID_INFO_CLASS for a form that nobody knows (MS-SMB2 3.3.5.18).
    pub fn from_wire(byte: u8) -> Result<Self, NtStatus> {
        [
            Self::Directory,
            Self::Full,
            Self::Both,
            Self::Names,
            Self::IdBoth,
            Self::IdFull,
            Self::IdExtd,
            Self::IdExtdBoth,
            Self::Posix,
        ]
        .into_iter()
        .find(|class| *class as u8 == byte)
        .ok_or(NtStatus::INVALID_INFO_CLASS)
    }

    /// Bytes of an entry before its name; of the POSIX form before the SIDs.
    const fn name_at(self) -> usize {
        match self {
            Self::Directory => 64,
            Self::Full => 68,
            Self::Both => 94,
            Self::Names => 12,
            Self::IdBoth => 104,
            Self::IdFull => 80,
            Self::IdExtd => 88,
            Self::IdExtdBoth => 114,
            Self::Posix => 88,
        }
    }
}

/// Owner and group of a file as the POSIX forms tell them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PosixOwner(Vec<u8>);

impl PosixOwner {
    /// Of these two.
    #[must_use]
    pub fn new(owner: &Sid, group: &Sid) -> Self {
        let mut bytes = Vec::with_capacity(owner.len() + group.len());
        owner.put(&mut bytes);
        group.put(&mut bytes);
        Self(bytes)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Writes entries one behind the other, as long as they fit.
#[derive(Debug)]
pub struct DirectoryWriter<'a> {
    class: DirectoryClass,
    out: &'a mut Vec<u8>,
    /// Where in `out` the first entry begins.
    start: usize,
    limit: usize,
    /// Where the last entry is, from `start`.
    last: usize,
}

impl<'a> DirectoryWriter<'a> {
    /// Appends to `out` at most `limit` bytes: the length of the client's buffer, or the server's own limit.
    #[must_use]
    pub fn new(class: DirectoryClass, out: &'a mut Vec<u8>, limit: usize) -> Self {
        let start = out.len();
        Self { class, out, start, limit, last: 0 }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.out.len() - self.start
    }

    /// Whether there is no entry yet. If the first does not fit, the answer is INFO_LENGTH_MISMATCH.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry; `name` is as clients see it. `false`: it does not fit, and nothing was written.
    #[inline]
    pub fn push(&mut self, facts: &Facts, name: &str) -> bool {
        self.push_owned(facts, name, &PosixOwner::default())
    }

    /// [`DirectoryWriter::push`] with what only the POSIX form tells.
    pub fn push_owned(&mut self, facts: &Facts, name: &str, owner: &PosixOwner) -> bool {
        let at = self.len().next_multiple_of(8);
        let posix = if self.class == DirectoryClass::Posix { owner.0.len() + 4 } else { 0 };
        let name_at = self.class.name_at() + posix;
        let name_len = utf16::len(name);
        let end = at + name_at + name_len;
        if end > self.limit {
            return false;
        }
        let (empty, start) = (self.is_empty(), self.start);
        // Zeros: what is between the entries, and what is not known.
        self.out.resize(start + end, 0);
        let (head, text) = self.out[start + at..].split_at_mut(name_at);
        utf16::put(name, text);
        write(self.class, facts, len32(name_len), owner, head);
        if !empty {
            let step = len32(at - self.last).to_le_bytes();
            self.out[start + self.last..start + self.last + 4].copy_from_slice(&step);
        }
        self.last = at;
        true
    }
}

/// Writes an entry's head over zeros, all of it but the offset of the next.
fn write(class: DirectoryClass, facts: &Facts, name_len: u32, owner: &PosixOwner, head: &mut [u8]) {
    if class == DirectoryClass::Names {
        head[8..12].copy_from_slice(&name_len.to_le_bytes());
        return;
    }
    for (place, time) in head[8..40].chunks_exact_mut(8).zip(times(facts)) {
        place.copy_from_slice(&time.0.to_le_bytes());
    }
    head[40..48].copy_from_slice(&facts.size.to_le_bytes());
    head[48..56].copy_from_slice(&facts.allocated.to_le_bytes());
    head[56..60].copy_from_slice(&facts.attributes.bits().to_le_bytes());
    if class == DirectoryClass::Posix {
        return write_posix(facts, name_len, owner, head);
    }
    head[60..64].copy_from_slice(&name_len.to_le_bytes());
    // The older forms tell in place of the attributes' size what kind of reparse point it is
    // (MS-FSCC 2.4.8).
    let reparse = facts.attributes.contains(Attributes::REPARSE_POINT);
    let ea_or_tag = if reparse { facts.reparse_tag } else { facts.ea_size };
    match class {
        DirectoryClass::Full | DirectoryClass::Both => {
            head[64..68].copy_from_slice(&ea_or_tag.to_le_bytes());
        }
        DirectoryClass::IdBoth => {
            head[64..68].copy_from_slice(&ea_or_tag.to_le_bytes());
            head[96..104].copy_from_slice(&facts.file_id.to_le_bytes());
        }
        DirectoryClass::IdFull => {
            head[64..68].copy_from_slice(&ea_or_tag.to_le_bytes());
            head[72..80].copy_from_slice(&facts.file_id.to_le_bytes());
        }
        DirectoryClass::IdExtd | DirectoryClass::IdExtdBoth => {
            head[64..68].copy_from_slice(&facts.ea_size.to_le_bytes());
            head[68..72].copy_from_slice(&facts.reparse_tag.to_le_bytes());
            head[72..80].copy_from_slice(&facts.file_id.to_le_bytes());
        }
        DirectoryClass::Directory | DirectoryClass::Names | DirectoryClass::Posix => {}
    }
}

fn write_posix(facts: &Facts, name_len: u32, owner: &PosixOwner, head: &mut [u8]) {
    head[60..68].copy_from_slice(&facts.file_id.to_le_bytes());
    head[68..72].copy_from_slice(&device32(facts).to_le_bytes());
    head[76..80].copy_from_slice(&facts.links.to_le_bytes());
    head[80..84].copy_from_slice(&facts.reparse_tag.to_le_bytes());
    head[84..88].copy_from_slice(&wire_mode(facts.mode).to_le_bytes());
    let sids_end = 88 + owner.0.len();
    head[88..sids_end].copy_from_slice(&owner.0);
    head[sids_end..].copy_from_slice(&name_len.to_le_bytes());
}

/// The low half of the device number, for which the POSIX forms have room.
pub(super) fn device32(facts: &Facts) -> u32 {
    u32::try_from(facts.device & u64::from(u32::MAX)).unwrap_or(0)
}

/// Permission bits, and the kind of file in the three bits above them, as the POSIX extensions have it.
pub(super) fn wire_mode(mode: u32) -> u32 {
    let kind = match mode >> 12 & 0o17 {
        0o04 => 1, // a directory
        0o12 => 2, // a symbolic link
        0o02 => 3, // a character device
        0o06 => 4, // a block device
        0o01 => 5, // a pipe
        0o14 => 6, // a socket
        _ => 0,    // a file
    };
    mode & 0o7777 | kind << 12
}
