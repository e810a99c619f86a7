//! What `statx(2)` and extended attributes say, in the words of the specification.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};
use rustix::io::Errno;
use smb::fscc::Facts;
use smb::{Attributes, FileTime, NtStatus};

use super::super::acting::as_itself;
use super::device::Mount;
use super::dosattrib::{self, DosAttrib};
use super::errno::status;
use super::memo::Extra;
use super::{Inner, xattr};

/// Everything that is asked of `statx(2)`.
const MASK: StatxFlags =
    StatxFlags::BASIC_STATS.union(StatxFlags::BTIME).union(StatxFlags::MNT_ID).union(MNT_ID_UNIQUE);

/// A number of the mount that is not used again (STATX_MNT_ID_UNIQUE, Linux 6.8), in place of the one that is.
pub(super) const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// IO_REPARSE_TAG_SYMLINK (MS-FSCC 2.1.2.1).
pub(super) const TAG_SYMLINK: u32 = 0xa000_000c;
/// IO_REPARSE_TAG_NFS: what Unix has and Windows has not.
const TAG_NFS: u32 = 0x8000_0014;

pub(super) fn stat(fd: impl AsFd) -> Result<Statx, Errno> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, MASK)
}

/// What this host knows: another one, or a program whose file system it is, is not asked, and nobody is waited for.
pub(super) fn stat_at_once(fd: impl AsFd) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(fd, c"", flags, MASK)
}

/// The same of the entry `name` itself.
pub(super) fn stat_entry_at_once(
    folder: impl AsFd,
    name: impl rustix::path::Arg,
) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(folder, name, flags, MASK)
}

/// Of the entry `name` itself, not of what a link leads to.
pub(super) fn stat_at(folder: impl AsFd, name: impl rustix::path::Arg) -> Result<Statx, Errno> {
    rustix::fs::statx(folder, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, MASK)
}

/// `/proc/self/fd/…` for a descriptor, which also works for those that are `O_PATH`.
pub(super) fn proc_path(fd: BorrowedFd<'_>) -> Vec<u8> {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes()
}

/// The same for an entry of the folder.
pub(super) fn proc_entry(folder: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = proc_path(folder);
    path.push(b'/');
    path.extend_from_slice(name);
    path
}

/// Where a file's extended attributes are read.
pub(super) enum At<'a> {
    /// A descriptor of the file.
    File(BorrowedFd<'a>),
    /// An entry of a folder.
    Entry(BorrowedFd<'a>, &'a [u8]),
}

pub(super) fn file_type(stat: &Statx) -> FileType {
    FileType::from_raw_mode(u32::from(stat.stx_mode))
}

impl Inner {
    /// The facts for a `stat`, with what extended attributes add.
    pub(super) fn facts(&self, stat: &Statx, at: &At<'_>, name: &[u8]) -> Result<Facts, NtStatus> {
        let kind = file_type(stat);
        let extra = match self.memo.get(stat) {
            Some(extra) => extra,
            None if matches!(kind, FileType::RegularFile | FileType::Directory) => {
                let path = match at {
                    At::File(fd) => proc_path(*fd),
                    At::Entry(folder, name) => proc_entry(*folder, name),
                };
                // A folder's entry is not followed, what a descriptor leads to is.
                // Remembered for all who ask.
                let follow = matches!(at, At::File(_));
                let extra = as_itself(|| self.read_extra(&path, follow))?;
                // What others change on other hosts need not be seen here at once.
                if self.devices.is_local(Mount::of(stat)) {
                    self.memo.put(stat, extra);
                }
                extra
            }
            None => Extra::default(),
        };
        Ok(self.facts_with(stat, extra, name))
    }

    /// One `listxattr(2)` for a file without attributes of its own.
    fn read_extra(&self, path: &[u8], follow: bool) -> Result<Extra, NtStatus> {
        let mut extra = Extra::default();
        let names = match xattr::names(path, follow) {
            Ok(names) => names,
            // What cannot be read, or is gone, adds nothing.
            Err(Errno::OPNOTSUPP | Errno::ACCESS | Errno::PERM | Errno::NOENT) => return Ok(extra),
            Err(errno) => return Err(status(errno)),
        };
        for name in names.split(|byte| *byte == 0) {
            if self.config.dos_attributes && name == dosattrib::NAME.as_bytes() {
                let mut value = [0; dosattrib::LEN_MAX];
                let len = xattr::get(path, name, &mut value, follow).unwrap_or(0);
                let stored = value.get(..len).and_then(DosAttrib::parse).unwrap_or_default();
                (extra.attributes, extra.created) = (stored.attributes, stored.created);
            } else if name == xattr::SECURITY.as_bytes() {
                extra.secured = true;
            } else if let Some(name) = self.ea_name(name) {
                let len = xattr::len(path, name, follow).unwrap_or(0);
                if !xattr::is_told(name, len) {
                    continue;
                }
                // Each begins at a multiple of four: clients ask for them with as much room as they are told here.
                let before = extra.ea_size.checked_next_multiple_of(4).unwrap_or(u32::MAX);
                extra.ea_size = before.saturating_add(xattr::full_ea_len(name, len));
            }
        }
        Ok(extra)
    }

    /// By what clients tell the file from all others of the share. On the file system of its root that is the inode; what is
    /// mounted beneath it, and subvolumes of Btrfs, count their inodes from the start again.
    fn file_id(&self, stat: &Statx) -> u64 {
        match device(stat) {
            device if device == self.devices.root_device() => stat.stx_ino,
            device => elsewhere(device, stat.stx_ino),
        }
    }

    /// The facts, when what the extended attributes say is known.
    pub(super) fn facts_with(&self, stat: &Statx, extra: Extra, name: &[u8]) -> Facts {
        let kind = file_type(stat);
        let folder = kind == FileType::Directory;
        let mode = u32::from(stat.stx_mode);
        let time = |t: rustix::fs::StatxTimestamp| FileTime::from_unix(t.tv_sec, t.tv_nsec);
        let written = time(stat.stx_mtime);
        let born = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        let born = if born { time(stat.stx_btime) } else { written.min(time(stat.stx_ctime)) };
        let mut attributes = extra.attributes.unwrap_or_else(|| {
            let archive = if folder { Attributes::empty() } else { Attributes::ARCHIVE };
            let readonly = if !folder && mode & 0o222 == 0 {
                Attributes::READONLY
            } else {
                Attributes::empty()
            };
            archive | readonly
        });
        if self.config.hide_dot_files
            && name.first() == Some(&b'.')
            && name != b"."
            && name != b".."
        {
            attributes |= Attributes::HIDDEN;
        }
        let reparse_tag = match kind {
            FileType::Symlink => TAG_SYMLINK,
            FileType::RegularFile | FileType::Directory => 0,
            _ => TAG_NFS,
        };
        if reparse_tag != 0 {
            attributes |= Attributes::REPARSE_POINT;
        }
        if folder {
            attributes |= Attributes::DIRECTORY;
        }
        if attributes.is_empty() {
            attributes = Attributes::NORMAL;
        }
        Facts {
            created: extra.created.filter(|time| time.is_time()).unwrap_or(born),
            accessed: time(stat.stx_atime),
            written,
            changed: self.memo.told(stat).unwrap_or_else(|| time(stat.stx_ctime)),
            allocated: if folder { 0 } else { stat.stx_blocks.saturating_mul(512) },
            size: if folder { 0 } else { stat.stx_size },
            attributes,
            links: stat.stx_nlink.max(1),
            index: stat.stx_ino,
            file_id: self.file_id(stat),
            device: device(stat),
            ea_size: extra.ea_size,
            reparse_tag,
            mode,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            secured: extra.secured,
        }
    }
}

/// The id of an inode on another file system than the share's root is on. No two inodes of one have the same, and it
/// is nothing that clients take for none (MS-FSCC 2.1.9): not zero, nor all ones.
fn elsewhere(device: u64, inode: u64) -> u64 {
    match mixed(inode ^ mixed(device)) {
        0 | u64::MAX => 1 << 63,
        id => id,
    }
}

/// Another number for each number (the end of SplitMix64).
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

pub(super) fn device(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn inodes_of_other_file_systems_are_told_apart() {
        let ids: HashSet<u64> =
            (0..4).flat_map(|device| (0..9_999).map(move |at| elsewhere(device, at))).collect();
        assert_eq!(ids.len(), 4 * 9_999);
        // Clients know files by it after the server was started again.
        assert_eq!(elsewhere(42, 2), 0x7253_9538_8690_ae46);
    }
}
