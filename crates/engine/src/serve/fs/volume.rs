//! What is known about the file system that a share is on.

use smb::fscc::VolumeFacts;
use smb::{FileTime, NtStatus};

use super::errno::status;
use super::facts::stat;
use super::{Links, Share};

/// FILE_CASE_SENSITIVE_SEARCH and its like (MS-FSCC 2.5.1).
const CASE_SENSITIVE_SEARCH: u32 = 0x0000_0001;
const CASE_PRESERVED_NAMES: u32 = 0x0000_0002;
const UNICODE_ON_DISK: u32 = 0x0000_0004;
const PERSISTENT_ACLS: u32 = 0x0000_0008;
const SUPPORTS_SPARSE_FILES: u32 = 0x0000_0040;
const SUPPORTS_REPARSE_POINTS: u32 = 0x0000_0080;
const SUPPORTS_POSIX_UNLINK_RENAME: u32 = 0x0000_0400;
const NAMED_STREAMS: u32 = 0x0004_0000;
const READ_ONLY_VOLUME: u32 = 0x0008_0000;
const SUPPORTS_HARD_LINKS: u32 = 0x0040_0000;
const SUPPORTS_EXTENDED_ATTRIBUTES: u32 = 0x0080_0000;
const SUPPORTS_BLOCK_REFCOUNTING: u32 = 0x0800_0000;

/// File systems on which two files may share blocks: Btrfs, XFS, bcachefs. XFS may be made without it; a
/// client whose FSCTL_DUPLICATE_EXTENTS_TO_FILE is refused copies.
const REFLINK: &[u64] = &[0x9123_683e, 0x5846_5342, 0xca45_1a4e];

impl Share {
    /// What is known about the file system now: one `fstatvfs(2)`, and one `statx(2)`.
    ///
    /// # Errors
    ///
    /// What these say.
    pub fn volume(&self) -> Result<VolumeFacts, NtStatus> {
        let config = self.config();
        let root = &*self.0.root;
        let vfs = rustix::fs::fstatvfs(root).map_err(status)?;
        let root_stat = stat(root).map_err(status)?;
        let unit = vfs.f_frsize.clamp(512, 1 << 30);
        let unit = u32::try_from(unit).unwrap_or(4096);
        // A power of two; every local file system has that already.
        let unit = if unit.is_power_of_two() { unit } else { unit.next_power_of_two() >> 1 };
        let scaled = |blocks: u64| {
            u64::try_from(u128::from(blocks) * u128::from(vfs.f_frsize.max(1)) / u128::from(unit))
                .unwrap_or(u64::MAX)
        };
        let mut flags = CASE_SENSITIVE_SEARCH
            | CASE_PRESERVED_NAMES
            | UNICODE_ON_DISK
            | PERSISTENT_ACLS
            | SUPPORTS_SPARSE_FILES
            | SUPPORTS_POSIX_UNLINK_RENAME
            | SUPPORTS_HARD_LINKS;
        let xattrs = self.keeps_xattrs();
        let offers = [
            (config.links != Links::Refuse, SUPPORTS_REPARSE_POINTS),
            (config.streams && xattrs, NAMED_STREAMS),
            (xattrs, SUPPORTS_EXTENDED_ATTRIBUTES),
            (config.read_only, READ_ONLY_VOLUME),
            (self.shares_blocks(), SUPPORTS_BLOCK_REFCOUNTING),
        ];
        for (_, flag) in offers.into_iter().filter(|(offered, _)| *offered) {
            flags |= flag;
        }
        let id = spread(vfs.f_fsid ^ super::facts::device(&root_stat), config.label.as_bytes());
        Ok(VolumeFacts {
            label: config.label.clone(),
            serial: u32::try_from(id >> 32).unwrap_or(0),
            created: FileTime::from_unix(root_stat.stx_btime.tv_sec, root_stat.stx_btime.tv_nsec),
            sector: 512,
            unit,
            units: scaled(vfs.f_blocks),
            free: scaled(vfs.f_bfree),
            available: scaled(vfs.f_bavail),
            name_max: u32::try_from(vfs.f_namemax).unwrap_or(255).clamp(1, 255),
            flags,
            files: vfs.f_files,
            files_free: vfs.f_favail,
            id,
        })
    }

    /// Whether the file system has extended attributes for users.
    fn keeps_xattrs(&self) -> bool {
        let path = super::facts::proc_path(std::os::fd::AsFd::as_fd(&*self.0.root));
        !matches!(
            super::xattr::len(&path, super::dosattrib::NAME.as_bytes(), true),
            Err(rustix::io::Errno::OPNOTSUPP)
        )
    }

    fn shares_blocks(&self) -> bool {
        rustix::fs::fstatfs(&*self.0.root).is_ok_and(|facts| {
            let kind = u64::try_from(i128::from(facts.f_type) & 0xffff_ffff).unwrap_or(0);
            REFLINK.contains(&kind)
        })
    }
}

/// FNV-1a, so that two shares of one file system are two volumes.
fn spread(start: u64, bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().chain(&start.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}
