//! Names without case, of the folders in which somebody looked for one.
//!
//! Most names are found as they were said, and never come here. Those that are not would need the whole folder
//! to be read, each time: in one of 100,000 files that is 30 ms for every new file. So a folder is read once,
//! and inotify says from then on what comes and goes: the kernel queues the event before the system call that
//! made the change returns, so after emptying the queue, one `read(2)`, the index is the folder. That counts
//! for our own changes as for those of others, and needs no comparing of time stamps.
//!
//! inotify sees nothing of what other hosts do on a network file system; there, and when there are no watches
//! left, a folder is read for each look-up.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use smb::{NtStatus, name};

use super::errno::status;
use super::facts::proc_path;

/// Folders that are indexed at a time.
const FOLDERS_MAX: usize = 1024;
/// Names in all of them, about 100 bytes each. A folder may be larger on its own.
const NAMES_MAX: usize = 1 << 20;
/// Changes that may wait for a folder that is not being asked; more, and it is forgotten.
const PENDING_MAX: usize = 65536;

/// File systems whose every change goes through this kernel.
const LOCAL: &[rustix::fs::FsWord] = &[
    0xef53,      // ext2 to ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x794c_7630, // overlayfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
];

/// The names on disk that fold to one.
type Names = Vec<Box<[u8]>>;
type Map = HashMap<Box<str>, Names>;
/// Device and inode of a folder.
pub(super) type Key = (u64, u64);

#[derive(Debug)]
struct Event {
    there: bool,
    name: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Folder {
    /// Not applied yet, in order.
    pending: Mutex<Vec<Event>>,
    /// `None` until the folder has been read.
    names: Mutex<Option<Map>>,
}

#[derive(Debug)]
struct Indexed {
    folder: Arc<Folder>,
    watch: i32,
    used: u64,
    names: usize,
}

#[derive(Debug, Default)]
struct State {
    folders: HashMap<Key, Indexed>,
    watches: HashMap<i32, Key>,
    names: usize,
    clock: u64,
    scans: u64,
}

#[derive(Debug)]
pub(super) struct Indexes {
    /// `None`: changes are not told.
    inotify: Option<OwnedFd>,
    local: bool,
    state: Mutex<State>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Indexes {
    pub(super) fn new(root: &OwnedFd) -> Self {
        let local = rustix::fs::fstatfs(root).is_ok_and(|facts| LOCAL.contains(&facts.f_type));
        let inotify = local
            .then(|| inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok())
            .flatten();
        Self { inotify, local, state: Mutex::default() }
    }

    /// Whether the share's root is on a file system whose every change goes through this kernel.
    pub(super) fn is_local(&self) -> bool {
        self.local
    }

    pub(super) fn scans(&self) -> u64 {
        locked(&self.state).scans
    }

    /// The name on disk of what `name` is in this folder when case does not count, the one of the same case
    /// first. `key` is the folder's identity.
    pub(super) fn find(
        &self,
        folder: &OwnedFd,
        key: Key,
        wanted: &str,
    ) -> Result<Option<Vec<u8>>, NtStatus> {
        let folded = name::fold(wanted);
        let Some(indexed) = self.indexed(folder, key) else {
            locked(&self.state).scans += 1;
            return Ok(pick(&read(folder)?, &folded, wanted));
        };
        let mut names = locked(&indexed.names);
        if names.is_none() {
            match read(folder) {
                Ok(map) => *names = Some(map),
                Err(failed) => {
                    drop(names);
                    self.forget(key);
                    return Err(failed);
                }
            }
            let count = names.as_ref().map_or(0, HashMap::len);
            self.read_was(key, count);
        }
        let map = names.get_or_insert_default();
        for event in std::mem::take(&mut *locked(&indexed.pending)) {
            apply(map, &event);
        }
        Ok(pick(map, &folded, wanted))
    }

    /// The folder, watched from before it is read, with all events told so far in `pending`.
    fn indexed(&self, folder: &OwnedFd, key: Key) -> Option<Arc<Folder>> {
        let inotify = self.inotify.as_ref()?;
        let mut state = locked(&self.state);
        state.clock += 1;
        state.drain(inotify);
        let clock = state.clock;
        if let Some(indexed) = state.folders.get_mut(&key) {
            indexed.used = clock;
            return Some(Arc::clone(&indexed.folder));
        }
        state.make_room(inotify);
        let events = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ONLYDIR;
        let watch = inotify::add_watch(inotify, &*proc_path(folder.as_fd()), events).ok()?;
        let indexed = Indexed { folder: Arc::default(), watch, used: clock, names: 0 };
        let made = Arc::clone(&indexed.folder);
        state.watches.insert(watch, key);
        state.folders.insert(key, indexed);
        Some(made)
    }

    fn read_was(&self, key: Key, count: usize) {
        let mut state = locked(&self.state);
        state.scans += 1;
        if let Some(indexed) = state.folders.get_mut(&key) {
            indexed.names = count;
            state.names += count;
        }
    }

    fn forget(&self, key: Key) {
        if let Some(inotify) = &self.inotify {
            locked(&self.state).forget(inotify, key);
        }
    }
}

impl State {
    /// Takes what inotify has to say.
    fn drain(&mut self, inotify: &OwnedFd) {
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        let mut stale: Vec<Key> = Vec::new();
        // `Err` is the end of the queue.
        while let Ok(event) = reader.next() {
            let what = event.events();
            if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                stale.extend(self.folders.keys());
                continue;
            }
            let Some(key) = self.watches.get(&event.wd()).copied() else { continue };
            if what.intersects(ReadFlags::IGNORED | ReadFlags::UNMOUNT) {
                stale.push(key);
                continue;
            }
            let there = what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
            let (Some(name), Some(indexed)) = (event.file_name(), self.folders.get(&key)) else {
                continue;
            };
            let mut pending = locked(&indexed.folder.pending);
            if pending.len() >= PENDING_MAX {
                stale.push(key);
            } else {
                pending.push(Event { there, name: name.to_bytes().into() });
            }
        }
        for key in stale {
            self.forget(inotify, key);
        }
    }

    fn make_room(&mut self, inotify: &OwnedFd) {
        while self.folders.len() >= FOLDERS_MAX
            || (self.names > NAMES_MAX && !self.folders.is_empty())
        {
            let Some(oldest) = self.folders.iter().min_by_key(|(_, indexed)| indexed.used) else {
                return;
            };
            let key = *oldest.0;
            self.forget(inotify, key);
        }
    }

    fn forget(&mut self, inotify: &OwnedFd, key: Key) {
        if let Some(indexed) = self.folders.remove(&key) {
            self.watches.remove(&indexed.watch);
            self.names = self.names.saturating_sub(indexed.names);
            // It fails when the folder is gone, and with it the watch.
            let _ = inotify::remove_watch(inotify, indexed.watch);
        }
    }
}

fn pick(map: &Map, folded: &str, wanted: &str) -> Option<Vec<u8>> {
    let names = map.get(folded)?;
    let exact = name::to_unix(wanted);
    let same = names.iter().find(|other| ***other == *exact);
    same.or_else(|| names.first()).map(|name| name.to_vec())
}

fn apply(map: &mut Map, event: &Event) {
    let folded = name::fold(&name::from_unix(&event.name));
    if event.there {
        let names = map.entry(folded.into_boxed_str()).or_default();
        if !names.contains(&event.name) {
            names.push(event.name.clone());
        }
    } else if let Some(names) = map.get_mut(&*folded) {
        names.retain(|name| *name != event.name);
        if names.is_empty() {
            map.remove(&*folded);
        }
    }
}

/// Reads the whole folder.
fn read(folder: &OwnedFd) -> Result<Map, NtStatus> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(folder, c".", flags, Mode::empty()).map_err(status)?;
    let mut map = Map::new();
    let mut buffer = Vec::with_capacity(128 << 10);
    let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = match entry {
            // The folder has been removed meanwhile.
            Err(Errno::NOENT) => break,
            entry => entry.map_err(status)?,
        };
        let bytes = entry.file_name().to_bytes();
        if bytes != b"." && bytes != b".." {
            apply(&mut map, &Event { there: true, name: bytes.into() });
        }
    }
    Ok(map)
}
