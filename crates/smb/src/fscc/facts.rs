//! What there is to say about a file and about a file system, whoever asks in whatever form.

use crate::{Attributes, FileTime};

/// What is known about one file, directory or stream at one moment. The information levels and directory
/// entries are made from this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// When it came to be.
    pub created: FileTime,
    /// When it was last read.
    pub accessed: FileTime,
    /// When its data last changed.
    pub written: FileTime,
    /// When anything about it last changed.
    pub changed: FileTime,
    /// Bytes that it takes on the disk.
    pub allocated: u64,
    /// Bytes that can be read; of a directory zero.
    pub size: u64,
    /// DOS attributes; never empty: a plain file has `NORMAL` or `ARCHIVE`.
    pub attributes: Attributes,
    /// Names that lead to it, at least 1.
    pub links: u32,
    /// The inode: unique on its file system while the file lives.
    pub index: u64,
    /// By what clients tell it from every other of the share: of one volume, to them, whatever file systems it has.
    pub file_id: u64,
    /// The device number of the file system.
    pub device: u64,
    /// Bytes that its extended attributes take as FILE_FULL_EA_INFORMATION; zero for none.
    pub ea_size: u32,
    /// What kind of reparse point it is (MS-FSCC 2.1.2.1), zero for none.
    pub reparse_tag: u32,
    /// POSIX file type and permission bits (`st_mode`).
    pub mode: u32,
    /// POSIX owner.
    pub uid: u32,
    /// POSIX group.
    pub gid: u32,
    /// A security descriptor was set for it, which counts in place of owner, group and mode.
    pub secured: bool,
}

impl Facts {
    /// Whether this is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.attributes.contains(Attributes::DIRECTORY)
    }
}

/// What is known about a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeFacts {
    /// Shown as the volume's name: the share's.
    pub label: String,
    /// The volume's serial number.
    pub serial: u32,
    /// When the volume came to be.
    pub created: FileTime,
    /// Bytes in a sector, a power of two.
    pub sector: u32,
    /// Bytes in an allocation unit, a power of two and not less than `sector`.
    pub unit: u32,
    /// Allocation units on the volume.
    pub units: u64,
    /// Allocation units that are free.
    pub free: u64,
    /// Allocation units that are free to this user.
    pub available: u64,
    /// Longest name of a file, in UTF-16 code units.
    pub name_max: u32,
    /// FILE_SUPPORTS_* and its like (MS-FSCC 2.5.1).
    pub flags: u32,
    /// Files that the volume may hold, zero if nobody knows.
    pub files: u64,
    /// Files that may still be created.
    pub files_free: u64,
    /// 64 bits that tell the volume from every other.
    pub id: u64,
}

/// One entry of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// What the entry is.
    pub facts: Facts,
    /// Its name as clients see it.
    pub name: String,
}
