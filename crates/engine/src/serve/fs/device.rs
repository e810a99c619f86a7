//! The file systems on which a share has files: that of its root, and what is mounted beneath it.

use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use smb::NtStatus;

use super::super::transfer::is_in_memory;
use super::errno::status_of;
use super::index::is_local;

/// Devices of one share that are remembered: as many as are mounted beneath it, as a rule none.
const DEVICES: usize = 64;

/// What a file system is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// It has no disk.
    pub(super) in_memory: bool,
    /// Its every change goes through this kernel, which answers for it.
    pub(super) local: bool,
}

impl Kind {
    /// Asks it (`fstatfs(2)`), by a descriptor of something on it. May wait for another host.
    pub(super) fn of(fd: impl AsFd) -> Result<Self, NtStatus> {
        let in_memory = is_in_memory(&fd).map_err(|error| status_of(&error))?;
        Ok(Self { in_memory, local: is_local(fd) })
    }
}

/// Those that are known, by number.
#[derive(Debug)]
pub(super) struct Devices {
    root: (u64, Kind),
    /// Others.
    below: Mutex<Vec<(u64, Kind)>>,
}

impl Devices {
    pub(super) fn new(root: u64, kind: Kind) -> Self {
        Self { root: (root, kind), below: Mutex::default() }
    }

    /// That of the share's root.
    pub(super) fn root(&self) -> Kind {
        self.root.1
    }

    pub(super) fn is_root(&self, device: u64) -> bool {
        self.root.0 == device
    }

    pub(super) fn known(&self, device: u64) -> Option<Kind> {
        if self.is_root(device) {
            return Some(self.root.1);
        }
        self.below().iter().find(|(known, _)| *known == device).map(|(_, kind)| *kind)
    }

    /// Asked once of each. `fd` is of something on it.
    pub(super) fn ask(&self, device: u64, fd: impl AsFd) -> Result<Kind, NtStatus> {
        if let Some(kind) = self.known(device) {
            return Ok(kind);
        }
        let kind = Kind::of(fd)?;
        let mut below = self.below();
        if below.len() >= DEVICES {
            below.clear();
        }
        below.push((device, kind));
        Ok(kind)
    }

    fn below(&self) -> MutexGuard<'_, Vec<(u64, Kind)>> {
        self.below.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
