//! What the extended attributes of files say about them, remembered.
//!
//! Setting or removing an extended attribute moves the change time of the file, and nothing can set it back.
//! So what was read stays true while the change time is the same, provided that it was not read in the same
//! tick of the kernel's clock in which the file changed: what changed in the last [`SETTLED_MS`] is not kept. Some
//! file systems keep whole seconds (ext4 with inodes of 128 bytes): see [`COARSE_MS`]. Where changes do not go through
//! this kernel alone nothing is kept.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::Statx;
use smb::{Attributes, FileTime};

/// Milliseconds after which a change is distinguishable from the next; file systems count with the kernel's
/// tick, 10 ms at most.
const SETTLED_MS: i64 = 30;
/// The same where the change time may have no more than seconds.
const COARSE_MS: i64 = 2000;
const SHARDS: usize = 16;
/// Inodes in a row that are in one shard.
const ROW: u64 = 1024;
/// Files in one shard; a shard that is full is emptied.
const SHARD_MAX: usize = 8192;

/// What extended attributes say about one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extra {
    pub(super) attributes: Option<Attributes>,
    pub(super) created: Option<FileTime>,
    pub(super) ea_size: u32,
    /// There is a security descriptor.
    pub(super) secured: bool,
}

/// Files of one folder mostly have inodes in a row, and are asked for in a row: they shall be neighbours here too, so
/// that the processor knows what comes next. So the low bits of the hash, which say where, are those of the inode; the
/// high ones, which tell neighbours apart, are of a multiplication.
#[derive(Clone, Copy, Debug, Default)]
struct Spread(u64);

/// Bits of the hash that are the inode's.
const PLACE: u64 = (1 << 48) - 1;

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !PLACE | self.0 & PLACE
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    /// An inode. Which row of all shards it is in says the shard.
    fn write_u64(&mut self, n: u64) {
        let within = n / (ROW * SHARDS as u64) * ROW + n % ROW;
        self.0 = self.0.rotate_left(20) ^ within;
    }

    fn write_u32(&mut self, n: u32) {
        self.0 = self.0.rotate_left(20) ^ u64::from(n);
    }
}

impl BuildHasher for Spread {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

/// Device and inode.
type Key = (u32, u32, u64);
type Told = HashMap<Key, ((i64, u32), FileTime), Spread>;
type Shard = HashMap<Key, ((i64, u32), Extra), Spread>;

#[derive(Debug, Default)]
pub(super) struct Memo {
    extra: [Mutex<Shard>; SHARDS],
    /// Change times that clients have set: a file system has only its own. Each counts as long as the file is as
    /// it was when it was set.
    told: Mutex<Told>,
    /// Whether there was ever one; few clients set it.
    tells: AtomicBool,
}

impl Memo {
    pub(super) fn get(&self, stat: &Statx) -> Option<Extra> {
        let shard = self.shard(stat.stx_ino).lock().unwrap_or_else(PoisonError::into_inner);
        let (changed, extra) = shard.get(&key(stat))?;
        (*changed == (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec)).then_some(*extra)
    }

    /// Remembers what was read *after* `stat`.
    pub(super) fn put(&self, stat: &Statx, extra: Extra) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        let at = |seconds: i64, nanoseconds: i64| {
            seconds.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000)
        };
        let changed = at(stat.stx_ctime.tv_sec, i64::from(stat.stx_ctime.tv_nsec));
        let settled = if stat.stx_ctime.tv_nsec == 0 { COARSE_MS } else { SETTLED_MS };
        if at(now.tv_sec, now.tv_nsec).saturating_sub(changed) < settled {
            return;
        }
        let mut shard = self.shard(stat.stx_ino).lock().unwrap_or_else(PoisonError::into_inner);
        if shard.len() >= SHARD_MAX {
            shard.clear();
        }
        shard.insert(key(stat), ((stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec), extra));
    }

    /// What its extended attributes say is another thing now.
    pub(super) fn forget(&self, device: u64, inode: u64) {
        let key = (rustix::fs::major(device), rustix::fs::minor(device), inode);
        let mut shard = self.shard(inode).lock().unwrap_or_else(PoisonError::into_inner);
        shard.remove(&key);
    }

    /// A client wants this to be the change time of the file as it is now.
    pub(super) fn tell(&self, stat: &Statx, changed: FileTime) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= SHARD_MAX {
            told.clear();
        }
        told.insert(key(stat), ((stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec), changed));
        self.tells.store(true, Ordering::Release);
    }

    /// The change time that a client has set, if nothing has changed since.
    pub(super) fn told(&self, stat: &Statx) -> Option<FileTime> {
        if !self.tells.load(Ordering::Acquire) {
            return None;
        }
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (changed, time) = told.get(&key(stat))?;
        (*changed == (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec)).then_some(*time)
    }

    fn shard(&self, inode: u64) -> &Mutex<Shard> {
        let at = usize::try_from(inode / ROW % SHARDS as u64).unwrap_or(0);
        &self.extra[at]
    }
}

fn key(stat: &Statx) -> Key {
    (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_change_without_another_change_time_is_not_kept() {
        let file = tempfile::tempfile().unwrap();
        let mut stat = super::super::facts::stat(&file).unwrap();
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
        let extra = Extra { secured: true, ..Extra::default() };
        let mut keeps = |seconds, nanoseconds| {
            (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec) = (seconds, nanoseconds);
            let memo = Memo::default();
            memo.put(&stat, extra);
            let kept = memo.get(&stat).is_some();
            memo.forget(super::super::facts::device(&stat), stat.stx_ino);
            assert_eq!(memo.get(&stat), None);
            kept
        };
        assert!(keeps(now - 60, 0) && keeps(now - 60, 1));
        assert!(!keeps(now - 1, 0), "seconds, and it changes again in the same one");
        assert!(keeps(now - 1, 1), "which others can tell apart");
        assert!(!keeps(now + 1, 0) && !keeps(now + 1, 1), "not yet");
    }
}
