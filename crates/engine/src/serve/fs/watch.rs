//! What others do in folders that clients watch.
//!
//! The kernel tells of every change, the server's own included; who asks here has to know those.
//!
//! A watch is of whom it was made for (`acting.rs`): of the folders that come to be beneath it, too, those are watched
//! that this user may read.
//!
//! Whoever has the [`Watcher`] waits for its descriptor to become readable and calls [`Watcher::poll`].

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{FileType, Mode, OFlags, RawDir, ResolveFlags};
use smb::NtStatus;

use super::super::acting::{self, Whose};
use super::errno::status;
use super::facts::{device, proc_path, stat, stat_at};
use super::handle::seen_path;
use super::{Handle, Identity};

/// Folders that one recursive watch looks at; deeper changes are missed beyond that.
const TREE_MAX: usize = 4096;
/// Events that wait to be polled; more, and everybody is told to look again.
const QUEUE_MAX: usize = 65536;

/// What is watched: as many as clients have asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Watch(u64);

/// What happened to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It came to be.
    Added,
    /// It is gone.
    Removed,
    /// Its data changed.
    Written,
    /// Something else about it changed.
    Attributes,
    /// It got another name; the next change has the same [`Change::pair`], if it stayed in sight.
    RenamedFrom,
    /// It had another name before.
    RenamedTo,
    /// Too much happened to be told: look at the folder again. No path.
    Overflow,
}

/// Something that happened beneath a watched folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which watch this is about.
    pub watch: Watch,
    /// What happened.
    pub kind: ChangeKind,
    /// The path from the watched folder, `\` between its parts.
    pub path: String,
    /// Whether it is a folder.
    pub folder: bool,
    /// Joins the two halves of a rename; zero for others.
    pub pair: u32,
}

#[derive(Debug)]
struct Target {
    identity: Identity,
    /// Each watch, and the path from its folder to this one, as on disk.
    listeners: Vec<(Watch, Vec<u8>)>,
}

/// A watch of everything beneath a folder.
#[derive(Debug)]
struct Tree {
    folder: OwnedFd,
    /// Folders that have been watched for it.
    count: usize,
    /// On whose behalf.
    whose: Whose,
}

/// Watches folders for changes by others.
#[derive(Debug)]
pub struct Watcher {
    inotify: OwnedFd,
    targets: HashMap<i32, Target>,
    /// Which watches see everything beneath their folder.
    trees: HashMap<Watch, Tree>,
    queue: VecDeque<Change>,
    next: u64,
}

const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);

impl Watcher {
    /// Watches nothing yet.
    ///
    /// # Errors
    ///
    /// What `inotify_init(2)` says.
    pub fn new() -> Result<Self, NtStatus> {
        let inotify =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(status)?;
        Ok(Self {
            inotify,
            targets: HashMap::new(),
            trees: HashMap::new(),
            queue: VecDeque::new(),
            next: 1,
        })
    }

    /// Begins to watch a folder; with `tree`, what is beneath it too, up to 4,096 folders, of which those are left out
    /// that the user may not read on whose behalf this is called.
    ///
    /// # Errors
    ///
    /// INSUFFICIENT_RESOURCES if the user has no watches left, and what `inotify_add_watch(2)` says.
    pub fn watch(&mut self, folder: &Handle, tree: bool) -> Result<Watch, NtStatus> {
        let watch = Watch(self.next);
        self.add(folder.as_fd(), folder.identity(), watch, Vec::new())?;
        self.next += 1;
        if tree {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = rustix::fs::openat(folder, c".", flags, Mode::empty()).map_err(status)?;
            self.trees.insert(watch, Tree { folder: fd, count: 1, whose: acting::now() });
            self.descend(watch, Vec::new());
        }
        Ok(watch)
    }

    /// Watches no longer. What was queued for it is dropped.
    pub fn forget(&mut self, watch: Watch) {
        self.trees.remove(&watch);
        self.queue.retain(|queued| queued.watch != watch);
        let inotify = &self.inotify;
        self.targets.retain(|number, target| {
            target.listeners.retain(|(listener, _)| *listener != watch);
            if target.listeners.is_empty() {
                // It fails when the folder is gone, and with it the watch.
                let _ = inotify::remove_watch(inotify, *number);
            }
            !target.listeners.is_empty()
        });
    }

    /// The next change by somebody else, until there is none.
    #[must_use]
    pub fn poll(&mut self) -> Option<Change> {
        if self.queue.is_empty() {
            self.drain();
        }
        self.queue.pop_front()
    }

    fn add(
        &mut self,
        folder: BorrowedFd<'_>,
        identity: Identity,
        watch: Watch,
        prefix: Vec<u8>,
    ) -> Result<(), NtStatus> {
        let path = proc_path(folder);
        let number =
            inotify::add_watch(&self.inotify, &*path, EVENTS).map_err(|errno| match errno {
                rustix::io::Errno::NOSPC => NtStatus::INSUFFICIENT_RESOURCES,
                errno => status(errno),
            })?;
        let target = self
            .targets
            .entry(number)
            .or_insert_with(|| Target { identity, listeners: Vec::new() });
        target.identity = identity;
        target.listeners.retain(|(listener, _)| *listener != watch);
        target.listeners.push((watch, prefix));
        Ok(())
    }

    /// Watches what is beneath a folder of a tree, as far as the limit allows.
    fn descend(&mut self, watch: Watch, path: Vec<u8>) {
        let mut todo = VecDeque::from([path]);
        while let Some(above) = todo.pop_front() {
            let Some(folder) = self.trees.get(&watch).and_then(|tree| tree.open(&above)) else {
                continue;
            };
            for name in subfolders(&folder) {
                let path = joined(&above, &name);
                if self.extend(watch, &path) {
                    todo.push_back(path);
                }
            }
        }
    }

    /// Watches one more folder of a tree.
    fn extend(&mut self, watch: Watch, path: &[u8]) -> bool {
        let Some(tree) = self.trees.get_mut(&watch).filter(|tree| tree.count < TREE_MAX) else {
            return false;
        };
        let Some(folder) = tree.open(path) else { return false };
        let Ok(stat) = stat(&folder) else { return false };
        tree.count += 1;
        let identity = Identity { device: device(&stat), inode: stat.stx_ino };
        self.add(folder.as_fd(), identity, watch, path.to_vec()).is_ok()
    }

    /// Takes what the kernel has to say.
    fn drain(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 16384];
        let mut told = Vec::new();
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        // `Err` is the end of the queue.
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| name.to_bytes().to_vec()).unwrap_or_default();
            told.push((event.wd(), event.events(), event.cookie(), name));
        }
        for (number, what, pair, name) in told {
            self.take(number, what, pair, name);
        }
        if self.queue.len() > QUEUE_MAX {
            self.queue.clear();
            self.overflow();
        }
    }

    fn take(&mut self, number: i32, what: ReadFlags, pair: u32, name: Vec<u8>) {
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.overflow();
        }
        if what.intersects(ReadFlags::IGNORED | ReadFlags::UNMOUNT) {
            self.targets.remove(&number);
            return;
        }
        let kinds = [
            (ReadFlags::CREATE, ChangeKind::Added),
            (ReadFlags::DELETE, ChangeKind::Removed),
            (ReadFlags::MODIFY, ChangeKind::Written),
            (ReadFlags::ATTRIB, ChangeKind::Attributes),
            (ReadFlags::MOVED_FROM, ChangeKind::RenamedFrom),
            (ReadFlags::MOVED_TO, ChangeKind::RenamedTo),
        ];
        let Some(kind) = kinds.iter().find(|(flag, _)| what.contains(*flag)).map(|(_, kind)| *kind)
        else {
            return;
        };
        // Without a name it is about the watched folder itself.
        let Some(target) = self.targets.get(&number).filter(|_| !name.is_empty()) else { return };
        let folder = what.contains(ReadFlags::ISDIR);
        let listeners = target.listeners.clone();
        for (watch, prefix) in listeners {
            let path = joined(&prefix, &name);
            let change = Change { watch, kind, path: seen_path(&path), folder, pair };
            self.queue.push_back(change);
            if folder
                && matches!(kind, ChangeKind::Added | ChangeKind::RenamedTo)
                && let Some(whose) = self.trees.get(&watch).map(|tree| tree.whose.clone())
            {
                let grown = acting::act(&whose, || {
                    if self.extend(watch, &path) {
                        self.descend(watch, path);
                    }
                });
                // Without memory to be that user it is not watched, like one that may not be read.
                drop(grown);
            }
        }
    }

    fn overflow(&mut self) {
        let mut watches: Vec<Watch> = self
            .targets
            .values()
            .flat_map(|t| t.listeners.iter().map(|(watch, _)| *watch))
            .collect();
        watches.sort_unstable();
        watches.dedup();
        for watch in watches {
            let kind = ChangeKind::Overflow;
            let change = Change { watch, kind, path: String::new(), folder: true, pair: 0 };
            self.queue.push_back(change);
        }
    }
}

impl Tree {
    /// A folder of the tree; a link on the way is not followed.
    fn open(&self, path: &[u8]) -> Option<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let path = if path.is_empty() { b"." } else { path };
        rustix::fs::openat2(&self.folder, path, flags, Mode::empty(), resolve).ok()
    }
}

fn joined(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = folder.to_vec();
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The names of the folders in a folder; none if it cannot be read.
fn subfolders(folder: &OwnedFd) -> Vec<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(fd) = rustix::fs::openat(folder, c".", flags, Mode::empty()) else { return Vec::new() };
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(fd, buffer.spare_capacity_mut());
    let mut names = Vec::new();
    while let Some(Ok(entry)) = entries.next() {
        let name = entry.file_name().to_bytes();
        let kind = match entry.file_type() {
            // Some file systems do not say.
            FileType::Unknown => {
                stat_at(folder, name).map_or(FileType::Unknown, |s| super::facts::file_type(&s))
            }
            kind => kind,
        };
        if kind == FileType::Directory && name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names
}

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
