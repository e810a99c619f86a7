//! What an open wants, may, and lets others do.

use bitflags::bitflags;

bitflags! {
    /// What may be done through an open, or is wished for (MS-SMB2 2.2.13.1). Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// FILE_READ_DATA; on a directory FILE_LIST_DIRECTORY.
        const READ_DATA = 0x0000_0001;
        /// FILE_WRITE_DATA; on a directory FILE_ADD_FILE.
        const WRITE_DATA = 0x0000_0002;
        /// FILE_APPEND_DATA; on a directory FILE_ADD_SUBDIRECTORY.
        const APPEND_DATA = 0x0000_0004;
        /// FILE_READ_EA.
        const READ_EA = 0x0000_0008;
        /// FILE_WRITE_EA.
        const WRITE_EA = 0x0000_0010;
        /// FILE_EXECUTE; on a directory FILE_TRAVERSE.
        const EXECUTE = 0x0000_0020;
        /// FILE_DELETE_CHILD, directories only.
        const DELETE_CHILD = 0x0000_0040;
        /// FILE_READ_ATTRIBUTES.
        const READ_ATTRIBUTES = 0x0000_0080;
        /// FILE_WRITE_ATTRIBUTES.
        const WRITE_ATTRIBUTES = 0x0000_0100;
        /// DELETE.
        const DELETE = 0x0001_0000;
        /// READ_CONTROL: read the security descriptor.
        const READ_CONTROL = 0x0002_0000;
        /// WRITE_DAC: change who may do what.
        const WRITE_DAC = 0x0004_0000;
        /// WRITE_OWNER.
        const WRITE_OWNER = 0x0008_0000;
        /// SYNCHRONIZE.
        const SYNCHRONIZE = 0x0010_0000;
        /// ACCESS_SYSTEM_SECURITY: read and change the audit list.
        const SYSTEM_SECURITY = 0x0100_0000;
        /// MAXIMUM_ALLOWED: whatever the opener may do.
        const MAXIMUM_ALLOWED = 0x0200_0000;
        /// GENERIC_ALL.
        const GENERIC_ALL = 0x1000_0000;
        /// GENERIC_EXECUTE.
        const GENERIC_EXECUTE = 0x2000_0000;
        /// GENERIC_WRITE.
        const GENERIC_WRITE = 0x4000_0000;
        /// GENERIC_READ.
        const GENERIC_READ = 0x8000_0000;
        const _ = !0;
    }
}

impl Access {
    /// What GENERIC_READ stands for on a file (MS-SMB2 2.2.13.1.1).
    pub const FILE_READ: Self = Self::from_bits_retain(0x0012_0089);
    /// What GENERIC_WRITE stands for on a file.
    pub const FILE_WRITE: Self = Self::from_bits_retain(0x0012_0116);
    /// What GENERIC_EXECUTE stands for on a file.
    pub const FILE_EXECUTE: Self = Self::from_bits_retain(0x0012_00a0);
    /// What GENERIC_ALL stands for on a file: all specific and standard rights.
    pub const FILE_ALL: Self = Self::from_bits_retain(0x001f_01ff);

    /// The generic rights replaced by what they stand for.
    #[must_use]
    pub fn expanded(self) -> Self {
        let generic = [
            (Self::GENERIC_ALL, Self::FILE_ALL),
            (Self::GENERIC_EXECUTE, Self::FILE_EXECUTE),
            (Self::GENERIC_WRITE, Self::FILE_WRITE),
            (Self::GENERIC_READ, Self::FILE_READ),
        ];
        generic.into_iter().fold(self, |access, (generic, specific)| {
            if access.contains(generic) {
                access.difference(generic).union(specific)
            } else {
                access
            }
        })
    }
}

bitflags! {
    /// What an open lets others do at the same time (MS-SMB2 2.2.13).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ShareAccess: u32 {
        /// FILE_SHARE_READ.
        const READ = 1;
        /// FILE_SHARE_WRITE.
        const WRITE = 2;
        /// FILE_SHARE_DELETE: delete and rename.
        const DELETE = 4;
    }

    /// FILE_ATTRIBUTE_* (MS-FSCC 2.6). Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Attributes: u32 {
        /// Programs may not write to it, nor delete it.
        const READONLY = 0x0000_0001;
        /// Not shown in ordinary listings.
        const HIDDEN = 0x0000_0002;
        /// Used by the operating system.
        const SYSTEM = 0x0000_0004;
        /// A directory.
        const DIRECTORY = 0x0000_0010;
        /// Changed since the last backup.
        const ARCHIVE = 0x0000_0020;
        /// None of the others; on its own only.
        const NORMAL = 0x0000_0080;
        /// Likely to go soon.
        const TEMPORARY = 0x0000_0100;
        /// Has holes.
        const SPARSE_FILE = 0x0000_0200;
        /// A symbolic link or another reparse point.
        const REPARSE_POINT = 0x0000_0400;
        /// Stored compressed.
        const COMPRESSED = 0x0000_0800;
        /// Its data is elsewhere.
        const OFFLINE = 0x0000_1000;
        /// Not to be indexed.
        const NOT_CONTENT_INDEXED = 0x0000_2000;
        /// Stored encrypted.
        const ENCRYPTED = 0x0000_4000;
        const _ = !0;
    }

    /// FILE_* create options (MS-SMB2 2.2.13). Bits without a name are kept, so that they can be refused.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CreateOptions: u32 {
        /// It must be a directory, or become one.
        const DIRECTORY_FILE = 0x0000_0001;
        /// Writes reach the disk before they are answered.
        const WRITE_THROUGH = 0x0000_0002;
        /// Will be read in order.
        const SEQUENTIAL_ONLY = 0x0000_0004;
        /// FILE_NO_INTERMEDIATE_BUFFERING.
        const NO_INTERMEDIATE_BUFFERING = 0x0000_0008;
        /// FILE_SYNCHRONOUS_IO_ALERT; ignored.
        const SYNCHRONOUS_IO_ALERT = 0x0000_0010;
        /// FILE_SYNCHRONOUS_IO_NONALERT; ignored.
        const SYNCHRONOUS_IO_NONALERT = 0x0000_0020;
        /// It must not be a directory.
        const NON_DIRECTORY_FILE = 0x0000_0040;
        /// FILE_COMPLETE_IF_OPLOCKED.
        const COMPLETE_IF_OPLOCKED = 0x0000_0100;
        /// The opener does not understand extended attributes.
        const NO_EA_KNOWLEDGE = 0x0000_0200;
        /// Will be read in no order.
        const RANDOM_ACCESS = 0x0000_0800;
        /// Goes when its last open is closed.
        const DELETE_ON_CLOSE = 0x0000_1000;
        /// The name is a file id.
        const OPEN_BY_FILE_ID = 0x0000_2000;
        /// FILE_OPEN_FOR_BACKUP_INTENT.
        const OPEN_FOR_BACKUP_INTENT = 0x0000_4000;
        /// FILE_NO_COMPRESSION.
        const NO_COMPRESSION = 0x0000_8000;
        /// FILE_OPEN_REQUIRING_OPLOCK.
        const OPEN_REQUIRING_OPLOCK = 0x0001_0000;
        /// FILE_DISALLOW_EXCLUSIVE.
        const DISALLOW_EXCLUSIVE = 0x0002_0000;
        /// FILE_RESERVE_OPFILTER: not supported by SMB2 servers.
        const RESERVE_OPFILTER = 0x0010_0000;
        /// Open the link, not what it leads to.
        const OPEN_REPARSE_POINT = 0x0020_0000;
        /// FILE_OPEN_NO_RECALL.
        const OPEN_NO_RECALL = 0x0040_0000;
        /// FILE_OPEN_FOR_FREE_SPACE_QUERY.
        const OPEN_FOR_FREE_SPACE_QUERY = 0x0080_0000;
        const _ = !0;
    }
}

/// What to do about a file that is there, or is not (MS-SMB2 2.2.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Disposition {
    /// FILE_SUPERSEDE: replace it, or create it.
    Supersede = 0,
    /// FILE_OPEN: it must be there.
    Open = 1,
    /// FILE_CREATE: it must not be there.
    Create = 2,
    /// FILE_OPEN_IF: open it, or create it.
    OpenIf = 3,
    /// FILE_OVERWRITE: it must be there, and is emptied.
    Overwrite = 4,
    /// FILE_OVERWRITE_IF: empty it, or create it.
    OverwriteIf = 5,
}

impl Disposition {
    /// From the number on the wire; `None` for one that means nothing.
    #[must_use]
    pub fn from_wire(number: u32) -> Option<Self> {
        [
            Self::Supersede,
            Self::Open,
            Self::Create,
            Self::OpenIf,
            Self::Overwrite,
            Self::OverwriteIf,
        ]
        .into_iter()
        .find(|disposition| *disposition as u32 == number)
    }

    /// Whether a file that is not there comes to be.
    #[must_use]
    pub fn may_create(self) -> bool {
        !matches!(self, Self::Open | Self::Overwrite)
    }

    /// Whether a file that is there loses what it holds.
    #[must_use]
    pub fn overwrites(self) -> bool {
        matches!(self, Self::Supersede | Self::Overwrite | Self::OverwriteIf)
    }
}

/// What a create did (MS-SMB2 2.2.14, CreateAction).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CreateAction {
    /// FILE_SUPERSEDED.
    Superseded = 0,
    /// FILE_OPENED.
    Opened = 1,
    /// FILE_CREATED.
    Created = 2,
    /// FILE_OVERWRITTEN.
    Overwritten = 3,
}

#[cfg(test)]
mod tests {
    use super::{Access, Disposition};

    #[test]
    fn generic_rights_become_specific_ones() {
        assert_eq!(Access::GENERIC_ALL.expanded(), Access::FILE_ALL);
        assert_eq!(
            (Access::GENERIC_READ | Access::DELETE).expanded(),
            Access::FILE_READ | Access::DELETE
        );
        assert_eq!(Access::MAXIMUM_ALLOWED.expanded(), Access::MAXIMUM_ALLOWED);
    }

    #[test]
    fn dispositions_by_number() {
        assert_eq!(Disposition::from_wire(5), Some(Disposition::OverwriteIf));
        assert_eq!(Disposition::from_wire(6), None);
    }
}
