//! What others change on the host itself, past this server, told to clients that watch.
//!
//! The kernel tells of every change, the server's own included, of which the server tells itself: more
//! precisely, and at once. So what the kernel says is looked at a moment later, [`SETTLE`], when the server has
//! noted what it did ([`Own`]), and what is the same is left out. Data that is written by way of an open of ours
//! is told of when that is closed.
//!
//! One task for each share, begun with its first watch, has the watches of the kernel. Adding one of a whole tree
//! reads the tree, and is done on a thread of the pool, on behalf of who watches: names in folders that they may not
//! read are not for them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use smb::Access;
use smb::files::notify::{Event as Happening, NotifyFilter};
use smb::files::{FileKey, OpenId};
use smb::name::Path;

use super::super::acting::{Whose, act};
use super::super::fs::{
    Change, ChangeKind, Found, Handle, Want, Watch, WatchLimits, Watcher, is_made_beside,
};
use super::super::log;
use super::super::open::Open;
use super::super::runtime::{self, Event, Source};
use super::super::server::{Server, SharePoint};

/// How long a change waits for the server to say that it was its own.
const SETTLE: Duration = Duration::from_millis(25);
/// How long the server's own changes are remembered.
const FRESH: Duration = Duration::from_millis(500);
/// Own changes that are remembered before the old ones are looked for, and at most.
const OWN_MANY: usize = 1024;
const OWN_MOST: usize = 65_536;
/// Opens of a share that hear of what happens on the host; those beyond hear of what clients do.
const WATCHES_MOST: usize = 1024;
/// Folders that are looked at before the end of the server, or somebody else who wishes something, is thought of.
const FOLDERS_AT_ONCE: usize = 32;
/// Changes that are told before the loop does something else.
const TOLD_AT_ONCE: usize = 256;

/// What was done to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Did {
    Added,
    Removed,
    Modified,
}

impl Did {
    const fn bit(self) -> u8 {
        match self {
            Self::Added => 1,
            Self::Removed => 2,
            Self::Modified => 4,
        }
    }
}

/// The server's own changes of late, by folded path.
#[derive(Default)]
struct Own {
    noted: HashMap<String, (u8, Instant)>,
    /// How many were fresh when the others were forgotten last.
    fresh: usize,
}

impl Own {
    fn note(&mut self, path: String, did: Did, now: Instant) {
        // Only when there are twice as many: looking at all of them for each change would take longer the
        // more there are.
        if self.noted.len() >= OWN_MANY.max(2 * self.fresh) {
            self.noted.retain(|_, (_, when)| now.saturating_duration_since(*when) < FRESH);
            self.fresh = self.noted.len();
        }
        if self.noted.len() >= OWN_MOST {
            // Told twice is better than not at all.
            self.noted.clear();
            self.fresh = 0;
        }
        let noted = self.noted.entry(path).or_insert((0, now));
        if now.saturating_duration_since(noted.1) >= FRESH {
            noted.0 = 0;
        }
        // A new file gets attributes, and one under a new name another change time.
        noted.0 |= did.bit() | Did::Modified.bit();
        noted.1 = now;
    }

    fn has(&self, path: &str, did: Did, now: Instant) -> bool {
        self.noted.get(path).is_some_and(|(bits, when)| {
            bits & did.bit() != 0 && now.saturating_duration_since(*when) < FRESH
        })
    }
}

/// A folder that is to be watched.
struct Wish {
    open: OpenId,
    folder: Arc<Handle>,
    tree: bool,
    whose: Whose,
}

/// What the kernel is still to be asked for.
#[derive(Default)]
struct Wishes {
    /// Opens that are watched, or wait for it.
    opens: HashSet<OpenId>,
    /// Those that wait, oldest first. Each holds its folder open.
    waiting: VecDeque<Wish>,
    /// Opens that have ended since they were watched.
    ended: Vec<OpenId>,
    /// Nobody takes wishes any more.
    over: bool,
}

impl Wishes {
    /// Whether there is room for this one.
    fn add(&mut self, wish: Wish) -> bool {
        if self.over || self.opens.len() >= WATCHES_MOST || !self.opens.insert(wish.open) {
            return false;
        }
        self.waiting.push_back(wish);
        true
    }

    /// What was wished for this open, if it still waits: nothing is to be undone then.
    fn end(&mut self, open: OpenId) -> Option<Wish> {
        if !self.opens.remove(&open) {
            return None;
        }
        let at = self.waiting.iter().position(|wish| wish.open == open);
        let Some(at) = at else {
            self.ended.push(open);
            return None;
        };
        self.waiting.remove(at)
    }

    /// As much as is done in one go: first what makes room.
    fn piece(&mut self) -> Option<Piece> {
        let ended = std::mem::take(&mut self.ended);
        let begin = self.waiting.pop_front();
        (begin.is_some() || !ended.is_empty()).then_some(Piece { ended, begin })
    }
}

/// What is asked of the kernel in one go.
struct Piece {
    ended: Vec<OpenId>,
    begin: Option<Wish>,
}

/// A share's connection to what the kernel says.
#[derive(Default)]
pub(super) struct External {
    begun: AtomicBool,
    wishes: Mutex<Wishes>,
    wake: Event,
    own: Mutex<Own>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl External {
    /// The server has just done this; `path` is as [`smb::files::notify::Watchers`] has it.
    pub(super) fn own(&self, path: &str, did: Did) {
        if self.begun.load(Ordering::Acquire) {
            lock(&self.own).note(smb::name::fold(path), did, Instant::now());
        }
    }

    /// Tells an open of what happens in its folder, if it is one of a file system.
    pub(super) fn watch(server: &Arc<Server>, open: &Open, tree: bool) {
        let Some(folder) = open.file().cloned() else { return };
        let point = &open.tree.share;
        let external = &point.watch.external;
        let wish = Wish { open: open.id, folder, tree, whose: open.owner.whose() };
        if !external.wish(wish) {
            return;
        }
        if !external.begun.swap(true, Ordering::AcqRel) {
            let (server, point) = (server.clone(), point.clone());
            drop(runtime::spawn(async move {
                // What is under way on a thread ends by itself, soon.
                runtime::unless_stopping(run(server, point.clone())).await;
                point.watch.external.give_up();
            }));
        }
    }

    /// Tells it no longer. What waits for its turn gives its folder back at once.
    pub(super) fn forget(&self, open: OpenId) {
        // Not dropped under the lock, which would be held for a close(2) then.
        let waited = lock(&self.wishes).end(open);
        if waited.is_none() {
            self.wake.notify_all();
        }
    }

    /// Whether it will be looked at. Those that have no room hear of what clients do.
    fn wish(&self, wish: Wish) -> bool {
        let taken = lock(&self.wishes).add(wish);
        if taken {
            self.wake.notify_all();
        }
        taken
    }

    /// Nobody looks at wishes any more.
    fn give_up(&self) {
        let over = Wishes { over: true, ..Wishes::default() };
        drop(std::mem::replace(&mut *lock(&self.wishes), over));
    }
}

/// The watches that the kernel has been asked for.
struct Asked {
    watcher: Watcher,
    by_open: HashMap<OpenId, Watch>,
    by_watch: HashMap<Watch, OpenId>,
}

impl Asked {
    fn fulfil(&mut self, piece: Piece) {
        for open in piece.ended {
            let Some(watch) = self.by_open.remove(&open) else { continue };
            self.by_watch.remove(&watch);
            self.watcher.forget(watch);
        }
        let Some(Wish { open, folder, tree, whose }) = piece.begin else { return };
        let watch = act(&whose, || self.watcher.watch(&folder, tree));
        // Without it, clients hear of what clients do.
        let Ok(Ok(watch)) = watch else { return };
        self.by_open.insert(open, watch);
        self.by_watch.insert(watch, open);
    }
}

async fn run(server: Arc<Server>, point: Arc<SharePoint>) {
    let begun = Watcher::new(WatchLimits::default()).map_err(drop).and_then(|watcher| {
        let fd = watcher.as_fd().try_clone_to_owned().map_err(drop)?;
        Ok((watcher, Source::new(Arc::new(fd)).map_err(drop)?))
    });
    let Ok((watcher, source)) = begun else {
        let name = &point.config.name;
        log::say(format_args!(
            "share {name}: clients do not hear of changes on this host: no inotify"
        ));
        return;
    };
    let mut asked = Asked { watcher, by_open: HashMap::new(), by_watch: HashMap::new() };
    let external = &point.watch.external;
    // Whether the watcher is in the middle of something, and since when it has something to tell.
    let (mut more, mut heard) = (false, None);
    loop {
        let woken = external.wake.wait();
        let piece = lock(&external.wishes).piece();
        if piece.is_none() && !more && !readable_before(&source, woken).await {
            continue;
        }
        // Before it is read: what comes later is noticed then.
        source.not_readable();
        (asked, more) = runtime::offload(move || {
            piece.into_iter().for_each(|piece| asked.fulfil(piece));
            let more = asked.watcher.work(FOLDERS_AT_ONCE);
            (asked, more)
        })
        .await;
        if !asked.watcher.has_changes() {
            continue;
        }
        let settled = *heard.get_or_insert_with(Instant::now) + SETTLE;
        if more && Instant::now() < settled {
            continue;
        }
        runtime::sleep_until(settled).await;
        heard = None;
        loop {
            let changes = some_of(&mut asked.watcher);
            if changes.is_empty() {
                break;
            }
            Telling { server: &server, point: &point, asked: &asked }.tell(&changes);
            runtime::yield_now().await;
        }
    }
}

/// Some of what was heard, both halves of a rename together.
fn some_of(watcher: &mut Watcher) -> Vec<Change> {
    let mut changes = Vec::new();
    while let Some(change) = watcher.poll() {
        let pair = change.pair;
        changes.push(change);
        // The first half for each who watches comes before the second ones.
        if changes.len() >= TOLD_AT_ONCE && (pair == 0 || watcher.next_pair() != pair) {
            break;
        }
    }
    changes
}

/// Each change, a rename with its second half if that was seen: not next to it where several watch.
fn whole(changes: &[Change]) -> Vec<(&Change, Option<&Change>)> {
    let mut whole: Vec<(&Change, Option<&Change>)> = Vec::with_capacity(changes.len());
    let mut begun = HashMap::new();
    for change in changes {
        let half = (change.watch, change.pair);
        if change.kind == ChangeKind::RenamedFrom {
            begun.insert(half, whole.len());
        } else if change.kind == ChangeKind::RenamedTo
            && let Some(first) = begun.remove(&half)
        {
            whole[first].1 = Some(change);
            continue;
        }
        whole.push((change, None));
    }
    whole
}

/// Whether the kernel has something to say, before `other` has ended.
async fn readable_before(source: &Source, other: impl Future<Output = ()>) -> bool {
    let (mut readable, mut other) = (pin!(source.readable()), pin!(other));
    std::future::poll_fn(|context| {
        if readable.as_mut().poll(context).is_ready() {
            return Poll::Ready(true);
        }
        other.as_mut().poll(context).map(|()| false)
    })
    .await
}

/// One look at what the kernel had to say.
struct Telling<'t> {
    server: &'t Arc<Server>,
    point: &'t Arc<SharePoint>,
    asked: &'t Asked,
}

impl Telling<'_> {
    fn tell(&self, changes: &[Change]) {
        let now = Instant::now();
        let mut ours = HashMap::new();
        for (change, second) in whole(changes) {
            let Some(open) = self.asked.by_watch.get(&change.watch).copied() else { continue };
            if change.kind == ChangeKind::Overflow {
                self.point.watch.lose(open);
                continue;
            }
            // What becomes of such a thing is told by who has made it.
            let passes =
                |change: &Change| change.path.rsplit('\\').next().is_some_and(is_made_beside);
            if passes(change) || second.is_some_and(passes) {
                continue;
            }
            let Some(directory) = self.point.watch.directory_of(open) else { continue };
            if self.is_own(&directory, change, now, &mut ours) {
                continue;
            }
            match second {
                Some(to) => {
                    let (from, to) = (&*change.path, &*to.path);
                    let renamed = Happening::Renamed { from, to, directory: change.folder };
                    self.point.watch.tell_one(open, &renamed);
                }
                None => self.point.watch.tell_one(open, &happening(change)),
            }
        }
    }

    /// Whether the server has done that, and told of it.
    fn is_own(
        &self,
        directory: &str,
        change: &Change,
        now: Instant,
        ours: &mut HashMap<String, bool>,
    ) -> bool {
        let path = match directory {
            "" => change.path.to_string(),
            _ => format!("{directory}\\{}", change.path),
        };
        let did = match change.kind {
            ChangeKind::Added | ChangeKind::RenamedTo => Did::Added,
            ChangeKind::Removed | ChangeKind::RenamedFrom => Did::Removed,
            _ => Did::Modified,
        };
        if lock(&self.point.watch.external.own).has(&smb::name::fold(&path), did, now) {
            return true;
        }
        if change.kind != ChangeKind::Written {
            return false;
        }
        *ours.entry(path).or_insert_with_key(|path| self.is_being_written(path))
    }

    /// Whether a client has this file open to write to it.
    fn is_being_written(&self, path: &str) -> bool {
        let writes = Access::WRITE_DATA | Access::APPEND_DATA;
        let found = self
            .point
            .files
            .as_ref()
            .zip(Path::parse_str(path).ok())
            .and_then(|(share, path)| share.open(&path, Want::default()).ok());
        let Some(Found::There(file)) = found else { return false };
        let identity = file.identity();
        let key = FileKey { device: identity.device, inode: identity.inode, stream: 0 };
        self.server.with_file(key, |shard, _| {
            shard.held_of(key).any(|held| held.access.intersects(writes))
        })
    }
}

/// What clients are told about a change of somebody else.
fn happening(change: &Change) -> Happening<'_> {
    let (path, directory) = (&*change.path, change.folder);
    match change.kind {
        ChangeKind::Added | ChangeKind::RenamedTo => Happening::Added { path, directory },
        ChangeKind::Removed | ChangeKind::RenamedFrom => Happening::Removed { path, directory },
        ChangeKind::Written => {
            let what = NotifyFilter::SIZE | NotifyFilter::LAST_WRITE;
            Happening::Modified { path, what }
        }
        // The kernel does not say which.
        ChangeKind::Attributes | ChangeKind::Overflow => {
            let what = NotifyFilter::ATTRIBUTES
                | NotifyFilter::LAST_WRITE
                | NotifyFilter::LAST_ACCESS
                | NotifyFilter::CREATION
                | NotifyFilter::EA
                | NotifyFilter::SECURITY;
            Happening::Modified { path, what }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::fs::{Config, Share};
    use super::*;

    fn folder() -> (tempfile::TempDir, Arc<Handle>) {
        let folder = tempfile::TempDir::new().unwrap();
        let share = Share::new(Config::new(folder.path(), "test")).unwrap();
        let handle = share.open_existing(&Path::parse_str("").unwrap(), Want::default()).unwrap();
        (folder, Arc::new(handle))
    }

    fn wish(open: u64, folder: &Arc<Handle>) -> Wish {
        Wish { open: OpenId(open), folder: folder.clone(), tree: true, whose: None }
    }

    #[test]
    fn who_ends_while_waiting_leaves_nothing_open() {
        let (_root, folder) = folder();
        let external = External::default();
        for open in 0..3 {
            assert!(external.wish(wish(open, &folder)));
        }
        external.forget(OpenId(1));
        external.forget(OpenId(0));
        assert_eq!(Arc::strong_count(&folder), 2, "the one that still waits, and here");
        let piece = lock(&external.wishes).piece().unwrap();
        assert_eq!(piece.begin.map(|wish| wish.open), Some(OpenId(2)));
        assert!(piece.ended.is_empty(), "the kernel was never asked for them");
        assert_eq!(Arc::strong_count(&folder), 1);
        assert!(lock(&external.wishes).piece().is_none());
        external.forget(OpenId(2));
        external.forget(OpenId(2));
        assert_eq!(lock(&external.wishes).piece().unwrap().ended, [OpenId(2)]);
        assert!(lock(&external.wishes).opens.is_empty());
    }

    #[test]
    fn those_that_wait_are_counted_with_those_that_are_watched() {
        let (_root, folder) = folder();
        let external = External::default();
        let most = WATCHES_MOST as u64;
        (0..most).for_each(|open| assert!(external.wish(wish(open, &folder))));
        assert!(!external.wish(wish(most, &folder)));
        let taken: Vec<_> = (0..10).map(|_| lock(&external.wishes).piece().unwrap()).collect();
        assert!(!external.wish(wish(most, &folder)), "ten are being watched now");
        assert!(taken.iter().all(|piece| piece.begin.is_some()), "one in a piece");
        external.forget(OpenId(0));
        assert!(external.wish(wish(most, &folder)));
        drop(taken);
        external.give_up();
        assert_eq!(Arc::strong_count(&folder), 1, "at the end all is given back");
        assert!(!external.wish(wish(0, &folder)));
    }

    /// A watcher with so many watches of a folder, of which one file was renamed, and one was moved away.
    fn renamed(watches: u32) -> Watcher {
        let (root, folder) = folder();
        for name in ["old", "leaves"] {
            std::fs::write(root.path().join(name), "").unwrap();
        }
        let mut watcher = Watcher::new(WatchLimits::default()).unwrap();
        for _ in 0..watches {
            watcher.watch(&folder, false).unwrap();
        }
        while watcher.work(1) {}
        let elsewhere = tempfile::TempDir::new_in(root.path()).unwrap();
        while watcher.work(1) {}
        while watcher.poll().is_some() {}
        std::fs::rename(root.path().join("old"), root.path().join("new")).unwrap();
        std::fs::rename(root.path().join("leaves"), elsewhere.path().join("there")).unwrap();
        while watcher.work(1) {}
        watcher
    }

    #[test]
    fn both_halves_of_a_rename_are_told_together_to_each_who_watches() {
        for watches in [1, 2, 3, 200, 300] {
            let mut watcher = renamed(watches);
            let (mut names, mut left) = (Vec::new(), 0);
            while watcher.has_changes() {
                let changes = some_of(&mut watcher);
                for (change, second) in whole(&changes) {
                    match (&*change.path, second.map(|to| &*to.path)) {
                        ("old", Some("new")) => names.push(change.watch),
                        ("leaves", None) => left += 1,
                        other => panic!("{other:?}, {watches} watches"),
                    }
                }
            }
            names.dedup();
            assert_eq!((names.len(), left), (watches as usize, watches));
        }
    }

    #[test]
    fn own_changes_are_known_for_a_while() {
        let now = Instant::now();
        let mut own = Own::default();
        own.note("A".to_owned(), Did::Added, now);
        assert!(own.has("A", Did::Added, now + SETTLE));
        assert!(own.has("A", Did::Modified, now + SETTLE), "it got attributes");
        assert!(!own.has("A", Did::Removed, now + SETTLE), "somebody else removed it");
        assert!(!own.has("B", Did::Added, now));
        assert!(!own.has("A", Did::Added, now + FRESH));
        own.note("A".to_owned(), Did::Removed, now + FRESH);
        assert!(!own.has("A", Did::Added, now + FRESH), "that was long ago");
    }

    #[test]
    fn own_changes_are_not_remembered_without_bound() {
        let now = Instant::now();
        let mut own = Own::default();
        (0..OWN_MOST + 10).for_each(|n| own.note(n.to_string(), Did::Added, now));
        assert!(own.noted.len() <= OWN_MOST);
        own.note("late".to_owned(), Did::Added, now + FRESH);
        (0..OWN_MANY).for_each(|n| own.note(format!("x{n}"), Did::Added, now + FRESH));
        assert!(own.noted.len() <= OWN_MANY + 10, "{}", own.noted.len());
    }
}
