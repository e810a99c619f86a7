//! The file systems on which a share has files: that of its root, and what is mounted beneath it.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Statx, StatxFlags};
use smb::NtStatus;

use super::super::transfer::is_in_memory;
use super::errno::status_of;
use super::facts::{MNT_ID_UNIQUE, device};
use super::index::is_local;

/// File systems of one share that are remembered: as many as are mounted beneath it, as a rule none.
const DEVICES: usize = 64;

/// What a file system is like.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    /// It has no disk.
    pub(super) in_memory: bool,
    /// Its every change goes through this kernel, which answers for it.
    pub(super) local: bool,
    /// What was read of its files was in memory afterwards, as who reads them finds out.
    pub(super) keeps: Arc<AtomicBool>,
}

impl Kind {
    /// Asks it (`fstatfs(2)`), by a descriptor of something on it. May wait for another host.
    pub(super) fn of(fd: impl AsFd) -> Result<Self, NtStatus> {
        let in_memory = is_in_memory(&fd).map_err(|error| status_of(&error))?;
        Ok(Self { in_memory, local: is_local(fd), keeps: Arc::new(AtomicBool::new(true)) })
    }
}

/// By what a file system is known again.
///
/// The number of a device alone says little: where no disk is behind it (tmpfs, FUSE, NFS) it is that of another file system
/// soon after it was unmounted, and so is the number of a mount before Linux 6.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    device: u64,
    /// As this kernel numbers mounts; zero if it does not.
    id: u64,
    /// That number is never used again.
    lasts: bool,
}

impl Mount {
    pub(super) fn of(stat: &Statx) -> Self {
        let mask = StatxFlags::from_bits_retain(stat.stx_mask);
        let lasts = mask.contains(MNT_ID_UNIQUE);
        let id = if lasts || mask.contains(StatxFlags::MNT_ID) { stat.stx_mnt_id } else { 0 };
        Self { device: device(stat), id, lasts }
    }

    /// Whether both are of one file system, while something on `self` is held open: so both numbers are its own.
    fn is_held_by(self, other: Self) -> bool {
        self.device == other.device || (self.id != 0 && self.id == other.id)
    }

    /// Whether it may be known again. Without a number that lasts, a disk may: another file system on the same one will
    /// be one of this host, too, but for those few whose programs have a disk (`fuseblk`).
    fn is_known_again(self) -> bool {
        self.lasts || rustix::fs::major(self.device) != 0
    }
}

/// Those that are known.
#[derive(Debug)]
pub(super) struct Devices {
    /// Held open by the share.
    root: (Mount, Kind),
    /// Others.
    below: Mutex<Vec<(Mount, Kind)>>,
}

impl Devices {
    pub(super) fn new(root: Mount, kind: Kind) -> Self {
        Self { root: (root, kind), below: Mutex::default() }
    }

    /// That of the share's root.
    pub(super) fn root(&self) -> &Kind {
        &self.root.1
    }

    /// The number of that one's device.
    pub(super) fn root_device(&self) -> u64 {
        self.root.0.device
    }

    pub(super) fn is_root(&self, mount: Mount) -> bool {
        self.root.0.is_held_by(mount)
    }

    /// Whether that is where the root is, and not something mounted beneath it, as far as the kernel says.
    pub(super) fn is_mount_of_root(&self, mount: Mount) -> bool {
        let root = self.root.0;
        if root.id == 0 { root.device == mount.device } else { root.id == mount.id }
    }

    /// Whether it is known to be of this host.
    pub(super) fn is_local(&self, mount: Mount) -> bool {
        if self.is_root(mount) {
            return self.root.1.local;
        }
        self.below().iter().any(|(known, kind)| *known == mount && kind.local)
    }

    fn known(&self, mount: Mount) -> Option<Kind> {
        if self.is_root(mount) {
            return Some(self.root.1.clone());
        }
        find(&self.below(), mount)
    }

    /// Asked once of each that is known again. `fd` is of something on it.
    pub(super) fn ask(&self, mount: Mount, fd: impl AsFd) -> Result<Kind, NtStatus> {
        if let Some(kind) = self.known(mount) {
            return Ok(kind);
        }
        let kind = Kind::of(fd)?;
        if mount.is_known_again() {
            let mut below = self.below();
            // Who was faster has told others what its files do.
            if let Some(kind) = find(&below, mount) {
                return Ok(kind);
            }
            if below.len() >= DEVICES {
                below.clear();
            }
            below.push((mount, kind.clone()));
        }
        Ok(kind)
    }

    fn below(&self) -> MutexGuard<'_, Vec<(Mount, Kind)>> {
        self.below.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn find(below: &[(Mount, Kind)], mount: Mount) -> Option<Kind> {
    below.iter().find(|(known, _)| *known == mount).map(|(_, kind)| kind.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn disk() -> Kind {
        Kind { in_memory: false, local: true, keeps: Arc::new(AtomicBool::new(true)) }
    }

    fn mount(major: u32, id: u64, lasts: bool) -> Mount {
        Mount { device: rustix::fs::makedev(major, 39), id, lasts }
    }

    #[test]
    fn a_number_that_may_be_used_again_says_nothing() {
        let memory = std::fs::File::open("/dev/shm").unwrap();
        let devices = Devices::new(Mount { device: 5, id: 7, lasts: false }, disk());
        let asked = |mount| devices.ask(mount, &memory).unwrap();
        for (mount, known) in [
            (mount(0, 0, false), false),
            (mount(0, 30, false), false),
            (mount(8, 30, false), true),
            (mount(0, 30, true), true),
        ] {
            assert!(devices.known(mount).is_none());
            assert!(asked(mount).local);
            assert_eq!(devices.known(mount).is_some(), known, "{mount:?}");
        }
        // Another mount, and the same number of a device.
        assert!(devices.known(mount(0, 31, true)).is_none());
    }

    #[test]
    fn what_one_keeps_in_memory_says_nothing_of_another() {
        let memory = std::fs::File::open("/dev/shm").unwrap();
        let devices = Devices::new(mount(8, 7, true), disk());
        let asked = |id| devices.ask(mount(0, id, true), &memory).unwrap().keeps;
        asked(30).store(false, Ordering::Relaxed);
        assert!(!asked(30).load(Ordering::Relaxed));
        assert!(asked(31).load(Ordering::Relaxed));
        assert!(devices.root().keeps.load(Ordering::Relaxed));
    }

    #[test]
    fn the_root_is_held_open_and_known_by_either_number() {
        let root = Mount { device: 5, id: 7, lasts: false };
        let devices = Devices::new(root, disk());
        // A subvolume of Btrfs, and a mount of the same elsewhere.
        for mount in [root, Mount { device: 6, ..root }, Mount { id: 8, ..root }] {
            assert!(devices.is_root(mount), "{mount:?}");
        }
        assert!(!devices.is_root(Mount { device: 6, id: 8, lasts: false }));
        let old = Devices::new(Mount { device: 5, id: 0, lasts: false }, disk());
        assert!(!old.is_root(Mount { device: 6, id: 0, lasts: false }));
    }
}
