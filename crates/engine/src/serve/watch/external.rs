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

use std::collections::HashMap;
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
use super::super::fs::{Change, ChangeKind, Found, Handle, Want, Watch, Watcher};
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

enum Wish {
    Watch { open: OpenId, folder: Arc<Handle>, tree: bool, whose: Whose },
    Forget(OpenId),
}

/// A share's connection to what the kernel says.
#[derive(Default)]
pub(super) struct External {
    begun: AtomicBool,
    wishes: Mutex<Vec<Wish>>,
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
        external.wish(Wish::Watch { open: open.id, folder, tree, whose: open.owner.whose() });
        if !external.begun.swap(true, Ordering::AcqRel) {
            drop(runtime::spawn(run(server.clone(), point.clone())));
        }
    }

    /// Tells it no longer.
    pub(super) fn forget(&self, open: OpenId) {
        if self.begun.load(Ordering::Acquire) {
            self.wish(Wish::Forget(open));
        }
    }

    fn wish(&self, wish: Wish) {
        lock(&self.wishes).push(wish);
        self.wake.notify_all();
    }
}

/// The watches that the kernel has been asked for.
struct Asked {
    watcher: Watcher,
    by_open: HashMap<OpenId, Watch>,
    by_watch: HashMap<Watch, OpenId>,
}

impl Asked {
    fn fulfil(&mut self, wishes: Vec<Wish>) {
        for wish in wishes {
            match wish {
                Wish::Watch { .. } if self.by_open.len() >= WATCHES_MOST => {}
                Wish::Watch { open, folder, tree, whose } => {
                    let watch = act(&whose, || self.watcher.watch(&folder, tree));
                    // Without it, clients hear of what clients do.
                    let Ok(Ok(watch)) = watch else { continue };
                    self.by_open.insert(open, watch);
                    self.by_watch.insert(watch, open);
                }
                Wish::Forget(open) => {
                    let Some(watch) = self.by_open.remove(&open) else { continue };
                    self.by_watch.remove(&watch);
                    self.watcher.forget(watch);
                }
            }
        }
    }
}

async fn run(server: Arc<Server>, point: Arc<SharePoint>) {
    let begun = Watcher::new().map_err(drop).and_then(|watcher| {
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
    loop {
        let woken = external.wake.wait();
        let wishes = std::mem::take(&mut *lock(&external.wishes));
        if !wishes.is_empty() {
            asked = runtime::offload(move || {
                asked.fulfil(wishes);
                asked
            })
            .await;
            continue;
        }
        if !readable_before(&source, woken).await {
            continue;
        }
        runtime::sleep(SETTLE).await;
        let mut changes = Vec::new();
        while let Some(change) = asked.watcher.poll() {
            changes.push(change);
        }
        source.not_readable();
        Telling { server: &server, point: &point, asked: &asked }.tell(&changes);
    }
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
        let mut rest = changes.iter().peekable();
        while let Some(change) = rest.next() {
            let Some(open) = self.asked.by_watch.get(&change.watch).copied() else { continue };
            if change.kind == ChangeKind::Overflow {
                self.point.watch.lose(open);
                continue;
            }
            let second = rest.next_if(|next| {
                change.kind == ChangeKind::RenamedFrom
                    && next.kind == ChangeKind::RenamedTo
                    && next.pair == change.pair
                    && next.watch == change.watch
            });
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
            "" => change.path.clone(),
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
    use super::*;

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
