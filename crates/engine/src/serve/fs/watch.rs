//! What others do in folders that clients watch.
//!
//! The kernel tells of every change, the server's own included; who asks here has to know those.
//!
//! A watch is of whom it was made for (`acting.rs`): of the folders that come to be beneath it, too, those are watched
//! that this user may read.
//!
//! Whoever has the [`Watcher`] waits for its descriptor to become readable, calls [`Watcher::work`], which may block, until
//! that has nothing more to do, and [`Watcher::poll`].

mod folders;
mod walk;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use smb::NtStatus;

use super::super::acting;
use super::Handle;
use super::errno::status;
use super::facts::proc_path;
use super::handle::seen_path;
use folders::{Folders, Name, Number, Tree};
use walk::{Steps, Why};

/// Changes that wait to be polled, and the bytes of their paths; more, and everybody is told to look again.
const QUEUE_MAX: usize = 65536;
const QUEUE_BYTES_MAX: usize = 8 << 20;
/// Steps that follow from what the kernel said and are still to be taken, before more of that is heard.
const FRESH_MAX: usize = 512;
/// Looks at nothing new after which a folder that was moved away is taken to have left.
const ADRIFT_LOOKS: u8 = 2;

/// How much is watched at most. Beyond, a watch is told that something was missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Folders of one watch.
    pub tree: usize,
    /// Folders of all watches.
    pub folders: usize,
    /// Watches of all folders, each counted for each of its folders: 8 bytes each.
    pub listeners: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { tree: 4096, folders: 65_536, listeners: 1 << 20 }
    }
}

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
    /// It got another name; a change behind this one, of the same watch, has the same [`Change::pair`], if it stayed in
    /// sight.
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
    pub path: Arc<str>,
    /// Whether it is a folder.
    pub folder: bool,
    /// Joins the two halves of a rename; zero for others.
    pub pair: u32,
}

/// A folder that was moved away, and has not been seen to come anywhere.
#[derive(Debug)]
struct Adrift {
    /// In which one it was.
    from: Option<Number>,
    /// For how many looks.
    age: u8,
}

/// Watches folders for changes by others.
#[derive(Debug)]
pub struct Watcher {
    inotify: OwnedFd,
    folders: Folders,
    steps: Steps,
    adrift: HashMap<Number, Adrift>,
    /// Those of which the kernel is still to say where they come to, by the number that it gives a rename.
    moving: HashMap<u32, Number>,
    queue: VecDeque<Change>,
    queue_bytes: usize,
    /// Those who are told to look for themselves.
    lost: BTreeSet<Watch>,
    next: u64,
    round: u32,
}

const EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::EXCL_UNLINK);

/// Something that the kernel says.
struct Event {
    number: Number,
    what: ReadFlags,
    pair: u32,
    name: Vec<u8>,
}

impl Watcher {
    /// Watches nothing yet.
    ///
    /// # Errors
    ///
    /// What `inotify_init(2)` says.
    pub fn new(limits: Limits) -> Result<Self, NtStatus> {
        let inotify =
            inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(status)?;
        Ok(Self {
            inotify,
            folders: Folders::new(limits),
            steps: Steps::default(),
            adrift: HashMap::new(),
            moving: HashMap::new(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            lost: BTreeSet::new(),
            next: 1,
            round: 0,
        })
    }

    /// Begins to watch a folder; with `tree`, what is beneath it too, as [`Self::work`] finds it: as far as the limits
    /// allow, and without what the user may not read on whose behalf this is called.
    ///
    /// # Errors
    ///
    /// INSUFFICIENT_RESOURCES if the user has no watches left, and what `inotify_add_watch(2)` says.
    pub fn watch(&mut self, folder: &Handle, tree: bool) -> Result<Watch, NtStatus> {
        let watch = Watch(self.next);
        let by = if tree {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::openat(folder, c".", flags, Mode::empty()).map_err(status)?;
            Some(Tree { folder, whose: acting::now() })
        } else {
            None
        };
        let number = self.ask(folder.as_fd()).map_err(|errno| match errno {
            Errno::NOSPC => NtStatus::INSUFFICIENT_RESOURCES,
            errno => status(errno),
        })?;
        self.next += 1;
        self.folders.begin(number, folder.identity(), watch, by);
        if tree {
            self.look_at_all(number, watch);
        }
        Ok(watch)
    }

    /// Watches no longer. What was queued for it is dropped.
    pub fn forget(&mut self, watch: Watch) {
        self.queue.retain(|queued| queued.watch != watch);
        self.lost.remove(&watch);
        for number in self.folders.forget(watch) {
            self.ask_no_longer(number);
        }
    }

    /// Hears some of what the kernel has to say, and looks at so many folders that have come in sight. Whether there may
    /// be more to do.
    pub fn work(&mut self, folders: usize) -> bool {
        let heard = self.steps.fresh() < FRESH_MAX && self.hear();
        self.take_steps(folders);
        if heard || !self.steps.is_empty() {
            return true;
        }
        self.let_go();
        self.look_again() || !self.adrift.is_empty()
    }

    /// The next change by somebody else of those that were heard, until there is none.
    #[must_use]
    pub fn poll(&mut self) -> Option<Change> {
        if let Some(watch) = self.lost.pop_first() {
            let kind = ChangeKind::Overflow;
            return Some(Change { watch, kind, path: Arc::from(""), folder: true, pair: 0 });
        }
        let change = self.queue.pop_front();
        if self.queue.is_empty() {
            self.queue_bytes = 0;
        }
        change
    }

    /// [`Change::pair`] of the next change, zero if there is none.
    #[must_use]
    pub fn next_pair(&self) -> u32 {
        let next = self.queue.front().filter(|_| self.lost.is_empty());
        next.map_or(0, |change| change.pair)
    }

    /// Whether there is something to poll.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        !self.queue.is_empty() || !self.lost.is_empty()
    }

    fn ask(&self, folder: BorrowedFd<'_>) -> Result<Number, Errno> {
        inotify::add_watch(&self.inotify, &*proc_path(folder), EVENTS)
    }

    fn ask_no_longer(&self, number: Number) {
        // It fails when the folder is gone, and with it the watch.
        let _ = inotify::remove_watch(&self.inotify, number);
    }

    /// Hears as much as has room in a buffer. Whether there was something.
    fn hear(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 16384];
        let mut heard = Vec::new();
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        // `Err` is the end of the queue.
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| name.to_bytes().to_vec()).unwrap_or_default();
            let (number, what, pair) = (event.wd(), event.events(), event.cookie());
            heard.push(Event { number, what, pair, name });
            if reader.is_buffer_empty() {
                break;
            }
        }
        let some = !heard.is_empty();
        heard.into_iter().for_each(|event| self.take(event));
        some
    }

    fn take(&mut self, event: Event) {
        let Event { number, what, pair, name } = event;
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            return self.lose_all();
        }
        if what.intersects(ReadFlags::IGNORED | ReadFlags::UNMOUNT) {
            return self.folders.remove(number);
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
        if name.is_empty() {
            return;
        }
        let folder = what.contains(ReadFlags::ISDIR);
        let listeners = self.folders.listeners(number).to_vec();
        self.tell(number, &listeners, kind, &name, folder, pair);
        if folder {
            self.follow(number, kind, &Name::from(name), pair);
        }
    }

    /// Something happened to a folder in one that is watched.
    fn follow(&mut self, number: Number, kind: ChangeKind, name: &Name, pair: u32) {
        let known = self.folders.inside(number, name);
        match kind {
            ChangeKind::Added => self.look_at(number, name, Why::New),
            ChangeKind::Removed => {
                if let Some(gone) = known {
                    self.folders.remove(gone);
                    self.ask_no_longer(gone);
                }
            }
            // What is in it is told when it is known where it went.
            ChangeKind::RenamedFrom => {
                if let Some(folder) = known {
                    let from = self.folders.detach(folder);
                    self.adrift.insert(folder, Adrift { from, age: 0 });
                    self.moving.insert(pair, folder);
                }
            }
            ChangeKind::RenamedTo => {
                if let Some(folder) = self.moving.remove(&pair) {
                    let from = self.adrift.remove(&folder).and_then(|adrift| adrift.from);
                    self.place(folder, number, name);
                    if from != Some(number) {
                        self.settle(folder);
                    }
                }
                // For those who see it only now, and in case another one has the name by now.
                self.look_at(number, name, Why::Begun);
            }
            ChangeKind::Written | ChangeKind::Attributes | ChangeKind::Overflow => {}
        }
    }

    /// A folder is in this one. What had its name there is somewhere else, or gone.
    fn place(&mut self, folder: Number, above: Number, name: &Name) {
        if let Some(displaced) = self.folders.place(folder, above, name) {
            self.adrift.insert(displaced, Adrift { from: Some(above), age: 0 });
        }
    }

    /// Who has to do with a folder where it is now goes on to listen to it. Who did before, and has not any more.
    fn settle(&mut self, folder: Number) -> HashSet<Watch> {
        let (lost, deaf) = self.folders.settle(folder);
        deaf.into_iter().for_each(|number| self.ask_no_longer(number));
        lost
    }

    /// Folders that were moved away and have come nowhere in sight are watched no longer.
    fn let_go(&mut self) {
        let mut gone = Vec::new();
        let folders = &self.folders;
        self.adrift.retain(|folder, adrift| {
            adrift.age += 1;
            if folders.get(*folder).is_none() || folders.place_of(*folder).is_some() {
                return false;
            }
            if adrift.age >= ADRIFT_LOOKS {
                gone.push(*folder);
            }
            adrift.age < ADRIFT_LOOKS
        });
        if self.adrift.is_empty() {
            self.moving.clear();
        }
        for folder in gone {
            self.settle(folder);
        }
    }

    /// Tells these of a change in a folder to which they listen.
    fn tell(
        &mut self,
        number: Number,
        who: &[Watch],
        kind: ChangeKind,
        name: &[u8],
        folder: bool,
        pair: u32,
    ) {
        let chain = self.folders.chain(number);
        // Mostly all of them watch the same folder.
        let mut last: Option<(Number, Arc<str>)> = None;
        for watch in who {
            let Some(root) = self.folders.roots.get(watch).map(|root| root.folder) else {
                continue;
            };
            let path = match &last {
                Some((of, path)) if *of == root => path.clone(),
                _ => {
                    let Some(mut path) = chain.below(root) else {
                        // Moved away, and nothing to it; or too deep, or in two places by a mount.
                        if !chain.top().is_some_and(|top| self.adrift.contains_key(&top)) {
                            self.lost.insert(*watch);
                        }
                        continue;
                    };
                    join(&mut path, name);
                    let path: Arc<str> = seen_path(&path).into();
                    self.queue_bytes += path.len();
                    last = Some((root, path.clone()));
                    path
                }
            };
            self.queue.push_back(Change { watch: *watch, kind, path, folder, pair });
        }
        if self.queue.len() > QUEUE_MAX || self.queue_bytes > QUEUE_BYTES_MAX {
            self.queue = VecDeque::new();
            self.queue_bytes = 0;
            self.lost.extend(self.folders.roots.keys());
        }
    }

    /// The kernel had more to say than it keeps.
    fn lose_all(&mut self) {
        for (watch, root) in &mut self.folders.roots {
            root.again = root.tree.is_some();
            self.lost.insert(*watch);
        }
    }
}

/// Adds a name to a path.
fn join(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}
