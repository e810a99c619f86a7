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
//!
//! Events must be taken in their order, so one at a time reads the queue. That turn is tried for and not waited for:
//! who does not get it soon reads the folder by itself. No lock is held across a system call, nor across another.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

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

/// How often the turn to read the queue is tried for: a millisecond in all, and longer where others want to run, of
/// whom one may be who has it.
const TRIES: u32 = 2000;
/// Of these, how often without letting others run.
const SPINS: u32 = 100;
/// Events that are taken before they are given to their folders.
const BATCH: usize = 1024;

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

/// What is known of a folder.
#[derive(Debug, Default)]
struct Known {
    /// Not applied yet, in order.
    pending: Vec<Event>,
    /// `None` until the folder has been read.
    names: Option<Map>,
}

impl Known {
    /// The names now, if they have been read.
    fn now(&mut self) -> Option<&Map> {
        let map = self.names.as_mut()?;
        for event in self.pending.drain(..) {
            apply(map, &event);
        }
        Some(map)
    }
}

#[derive(Debug, Default)]
struct Folder(Mutex<Known>);

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

/// A folder that is forgotten: its watch is to be removed.
#[must_use]
#[derive(Debug)]
struct Forgotten(i32);

/// What inotify said, and of which watch.
#[derive(Debug)]
struct Said {
    watch: i32,
    what: ReadFlags,
    name: Option<Box<[u8]>>,
}

#[derive(Debug)]
pub(super) struct Indexes {
    /// `None`: changes are not told.
    inotify: Option<OwnedFd>,
    /// Whose turn it is to read what inotify says.
    turn: Mutex<()>,
    state: Mutex<State>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a descriptor is of something on a file system whose every change goes through this kernel.
pub(super) fn is_local(fd: impl AsFd) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|facts| LOCAL.contains(&facts.f_type))
}

impl Indexes {
    /// Of a share, whose root may be on such a file system.
    pub(super) fn new(local: bool) -> Self {
        let inotify = local
            .then(|| inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok())
            .flatten();
        Self { inotify, turn: Mutex::default(), state: Mutex::default() }
    }

    pub(super) fn scans(&self) -> u64 {
        locked(&self.state).scans
    }

    /// Whether the folder has been read, and what changes in it is told: a name is found without a disk.
    pub(super) fn knows(&self, key: Key) -> bool {
        let folder =
            locked(&self.state).folders.get(&key).map(|indexed| Arc::clone(&indexed.folder));
        folder.is_some_and(|folder| locked(&folder.0).names.is_some())
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
        if let Some(map) = locked(&indexed.0).now() {
            return Ok(pick(map, &folded, wanted));
        }
        // Others may be reading it too. They do not wait for each other.
        let map = read(folder).inspect_err(|_| self.forget(key))?;
        let count = map.len();
        let (found, first) = {
            let mut known = locked(&indexed.0);
            let first = known.names.is_none();
            known.names.get_or_insert(map);
            (known.now().and_then(|map| pick(map, &folded, wanted)), first)
        };
        self.read_was(key, if first { count } else { 0 });
        Ok(found)
    }

    /// The folder, watched from before it is read, with all events told so far pending. `None`: it is not watched,
    /// or what has been told is not known just now.
    fn indexed(&self, folder: &OwnedFd, key: Key) -> Option<Arc<Folder>> {
        let inotify = self.inotify.as_ref()?;
        self.hear(inotify)?;
        if let Some(known) = locked(&self.state).used(key) {
            return Some(known);
        }
        self.make_room(inotify);
        let events = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ONLYDIR;
        // What happens before it is noted is not told to it, and is there when it is read. Who watches the same
        // folder at the same time gets the same number.
        let watch = inotify::add_watch(inotify, &*proc_path(folder.as_fd()), events).ok()?;
        let mut state = locked(&self.state);
        if let Some(known) = state.used(key) {
            return Some(known);
        }
        let used = state.clock;
        let indexed = Indexed { folder: Arc::default(), watch, used, names: 0 };
        let made = Arc::clone(&indexed.folder);
        state.watches.insert(watch, key);
        state.folders.insert(key, indexed);
        Some(made)
    }

    fn read_was(&self, key: Key, count: usize) {
        let mut state = locked(&self.state);
        state.scans += 1;
        if let Some(indexed) = state.folders.get_mut(&key) {
            indexed.names += count;
            state.names += count;
        }
    }

    fn forget(&self, key: Key) {
        let forgotten = locked(&self.state).forget(key);
        self.unwatch(forgotten);
    }

    fn make_room(&self, inotify: &OwnedFd) {
        loop {
            let forgotten = locked(&self.state).oldest_in_excess();
            let Some(Forgotten(watch)) = forgotten else { return };
            // It fails when the folder is gone, and with it the watch.
            let _ = inotify::remove_watch(inotify, watch);
        }
    }

    /// Who has begun to watch the same folder again meanwhile is told that it is watched no longer, as of what
    /// happens to a folder, and begins anew.
    fn unwatch(&self, forgotten: impl IntoIterator<Item = Forgotten>) {
        let Some(inotify) = &self.inotify else { return };
        for Forgotten(watch) in forgotten {
            // It fails when the folder is gone, and with it the watch.
            let _ = inotify::remove_watch(inotify, watch);
        }
    }

    /// Gives what inotify has to say to the folders it is about. `None`: somebody else is at it and does not come to
    /// an end.
    fn hear(&self, inotify: &OwnedFd) -> Option<()> {
        let _turn = self.turn()?;
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        let mut said = Vec::new();
        loop {
            // `Err` is the end of the queue.
            let ended = match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| name.to_bytes().into());
                    said.push(Said { watch: event.wd(), what: event.events(), name });
                    false
                }
                Err(_) => true,
            };
            if said.len() >= BATCH || (ended && !said.is_empty()) {
                self.tell(&mut said);
            }
            if ended {
                return Some(());
            }
        }
    }

    /// The turn to read the queue.
    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        for tries in 0..TRIES {
            match self.turn.try_lock() {
                Ok(turn) => return Some(turn),
                Err(TryLockError::Poisoned(turn)) => return Some(turn.into_inner()),
                Err(TryLockError::WouldBlock) if tries < SPINS => std::hint::spin_loop(),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    fn tell(&self, said: &mut Vec<Said>) {
        let mut stale: Vec<Key> = Vec::new();
        for Said { watch, what, name } in said.drain(..) {
            let (key, folder) = {
                let state = locked(&self.state);
                if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                    stale.extend(state.folders.keys());
                    continue;
                }
                let Some(key) = state.watches.get(&watch).copied() else { continue };
                let Some(indexed) = state.folders.get(&key) else { continue };
                (key, Arc::clone(&indexed.folder))
            };
            if what.intersects(ReadFlags::IGNORED | ReadFlags::UNMOUNT) {
                stale.push(key);
                continue;
            }
            let Some(name) = name else { continue };
            let there = what.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
            let mut known = locked(&folder.0);
            if known.pending.len() >= PENDING_MAX {
                stale.push(key);
            } else {
                known.pending.push(Event { there, name });
            }
        }
        for key in stale {
            self.forget(key);
        }
    }
}

impl State {
    /// A folder that is known, and used just now.
    fn used(&mut self, key: Key) -> Option<Arc<Folder>> {
        self.clock += 1;
        let indexed = self.folders.get_mut(&key)?;
        indexed.used = self.clock;
        Some(Arc::clone(&indexed.folder))
    }

    /// Forgets the folder that was used least recently, if there are too many, or too many names.
    fn oldest_in_excess(&mut self) -> Option<Forgotten> {
        let names = self.names > NAMES_MAX && !self.folders.is_empty();
        if self.folders.len() < FOLDERS_MAX && !names {
            return None;
        }
        let oldest = self.folders.iter().min_by_key(|(_, indexed)| indexed.used);
        let key = *oldest?.0;
        self.forget(key)
    }

    fn forget(&mut self, key: Key) -> Option<Forgotten> {
        let indexed = self.folders.remove(&key)?;
        self.watches.remove(&indexed.watch);
        self.names = self.names.saturating_sub(indexed.names);
        Some(Forgotten(indexed.watch))
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
