//! Who wants to hear of which change (MS-SMB2 3.3.5.19).
//!
//! Whoever changes something in a share says so here: [`created`], [`removed`], [`renamed`], [`changed`]. Where
//! nobody watches, that costs one load.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smb::NtStatus;
use smb::files::OpenId;
use smb::files::notify::{Changes, Event as Happening, NotifyFilter, NotifyLimits, Watchers};
use smb::name::{Path, Stream};

use super::open::Open;
use super::runtime::Event;
use super::server::SharePoint;

/// Those who watch a share.
pub(super) struct Watches {
    /// How many there are; looked at before anything else is done.
    count: AtomicUsize,
    inner: Mutex<Inner>,
}

struct Inner {
    watchers: Watchers,
    ears: HashMap<OpenId, Arc<Ear>>,
}

/// Where those hear who wait for one watch.
#[derive(Default)]
struct Ear {
    event: Event,
    /// The status with which it has ended, zero as long as it has not.
    ended: AtomicU32,
}

impl Ear {
    fn end(&self, status: NtStatus) {
        // The first reason is the one that counts.
        let _ = self.ended.compare_exchange(0, status.0, Ordering::AcqRel, Ordering::Acquire);
        self.event.notify_all();
    }

    fn ended(&self) -> Option<NtStatus> {
        match self.ended.load(Ordering::Acquire) {
            0 => None,
            status => Some(NtStatus(status)),
        }
    }
}

/// The watch of one open.
#[derive(Clone)]
pub(super) struct Watching {
    ear: Arc<Ear>,
}

impl Default for Watches {
    fn default() -> Self {
        let watchers = Watchers::new(NotifyLimits::default());
        let inner = Inner { watchers, ears: HashMap::new() };
        Self { count: AtomicUsize::new(0), inner: Mutex::new(inner) }
    }
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Tells those whom it concerns.
    fn tell(&self, happening: &Happening<'_>) {
        let ready = {
            let mut inner = self.lock();
            let mut ready = Vec::new();
            inner.watchers.event(happening, &mut |open| ready.push(open));
            inner.ears_of(&ready)
        };
        ready.iter().for_each(|ear| ear.event.notify_all());
    }

    /// Ends the watches of a directory, whoever has them, with this status.
    fn end(&self, directory: &str, status: NtStatus) {
        let ended = {
            let inner = self.lock();
            let mut ended = Vec::new();
            inner.watchers.each_of(directory, &mut |open| ended.push(open));
            inner.ears_of(&ended)
        };
        ended.iter().for_each(|ear| ear.end(status));
    }
}

impl Inner {
    fn ears_of(&self, opens: &[OpenId]) -> Vec<Arc<Ear>> {
        opens.iter().filter_map(|open| self.ears.get(open).cloned()).collect()
    }
}

/// As [`Watchers`] has it.
fn told(path: &Path) -> String {
    let mut told = path.as_str().replace('/', "\\");
    if let Some(Stream::Named(stream)) = path.stream() {
        told.push(':');
        told.push_str(stream);
        told.push_str(":$DATA");
    }
    told
}

fn is_stream(path: &Path) -> bool {
    matches!(path.stream(), Some(Stream::Named(_)))
}

/// A file, a directory or, if `path` says so, a stream has come to be.
pub(super) fn created(point: &SharePoint, path: &Path, directory: bool) {
    if point.watch.is_empty() {
        return;
    }
    let told = told(path);
    point.watch.tell(&match is_stream(path) {
        true => Happening::StreamAdded { path: &told },
        false => Happening::Added { path: &told, directory },
    });
}

/// A file, a directory or, if `path` says so, a stream is gone.
pub(super) fn removed(point: &SharePoint, path: &Path, directory: bool) {
    if point.watch.is_empty() {
        return;
    }
    let told = told(path);
    if is_stream(path) {
        return point.watch.tell(&Happening::StreamRemoved { path: &told });
    }
    point.watch.tell(&Happening::Removed { path: &told, directory });
    if directory {
        point.watch.end(&told, NtStatus::DELETE_PENDING);
    }
}

/// A directory is to be deleted with its last open: who watches it need not wait any longer.
pub(super) fn deleting(point: &SharePoint, path: &Path) {
    if !point.watch.is_empty() {
        point.watch.end(&told(path), NtStatus::DELETE_PENDING);
    }
}

/// A file, a directory or a stream has another name. What is watched in a directory goes with it.
pub(super) fn renamed(point: &SharePoint, from: &Path, to: &Path, directory: bool) {
    if point.watch.is_empty() {
        return;
    }
    if is_stream(from) || is_stream(to) {
        removed(point, from, false);
        return created(point, to, false);
    }
    let (from, to) = (told(from), told(to));
    if directory {
        point.watch.lock().watchers.moved(&from, &to);
    }
    point.watch.tell(&Happening::Renamed { from: &from, to: &to, directory });
}

/// Something else about a file, a directory or a stream is different: `what` says all that is.
pub(super) fn changed(point: &SharePoint, path: &Path, what: NotifyFilter) {
    if point.watch.is_empty() {
        return;
    }
    let told = told(path);
    if !is_stream(path) {
        return point.watch.tell(&Happening::Modified { path: &told, what });
    }
    let pairs = [
        (NotifyFilter::SIZE, NotifyFilter::STREAM_SIZE),
        (NotifyFilter::LAST_WRITE, NotifyFilter::STREAM_WRITE),
    ];
    let mut of_stream = what & (NotifyFilter::STREAM_SIZE | NotifyFilter::STREAM_WRITE);
    for (of_file, same) in pairs {
        if what.contains(of_file) {
            of_stream |= same;
        }
    }
    point.watch.tell(&Happening::StreamModified { path: &told, what: of_stream });
}

/// An open has ended, and its watch with it.
pub(super) fn closed(open: &Arc<Open>) {
    let Some(watching) = open.state().watch.take() else { return };
    let watch = &open.tree.share.watch;
    {
        let mut inner = watch.lock();
        inner.watchers.unwatch(open.id);
        inner.ears.remove(&open.id);
    }
    watch.count.fetch_sub(1, Ordering::AcqRel);
    watching.ear.end(NtStatus::NOTIFY_CLEANUP);
}

/// Begins the watch of an open, if it has none.
///
/// # Errors
///
/// INSUFFICIENT_RESOURCES if there are too many; NOTIFY_CLEANUP if the open is closed meanwhile.
pub(super) fn watch(
    open: &Arc<Open>,
    filter: NotifyFilter,
    recursive: bool,
    room: usize,
) -> Result<Watching, NtStatus> {
    if let Some(watching) = &open.state().watch {
        return Ok(watching.clone());
    }
    let watch = &open.tree.share.watch;
    let directory = told(&open.path());
    let watching = Watching { ear: Arc::default() };
    {
        let mut inner = watch.lock();
        if let Some(ear) = inner.ears.get(&open.id) {
            return Ok(Watching { ear: ear.clone() });
        }
        inner.watchers.watch(open.id, &directory, filter, recursive, room)?;
        inner.ears.insert(open.id, watching.ear.clone());
    }
    watch.count.fetch_add(1, Ordering::AcqRel);
    open.state().watch = Some(watching.clone());
    if open.is_closed() {
        closed(open);
        return Err(NtStatus::NOTIFY_CLEANUP);
    }
    Ok(watching)
}

impl Watching {
    /// Ends when there is something to fetch.
    ///
    /// # Errors
    ///
    /// With what the watch has ended: the status to answer.
    pub(super) async fn changes(&self, open: &Open, room: usize) -> Result<Changes, NtStatus> {
        loop {
            let happens = self.ear.event.wait();
            if let Some(status) = self.ended() {
                return Err(status);
            }
            if let Some(changes) = open.tree.share.watch.lock().watchers.fetch(open.id, room) {
                return Ok(changes);
            }
            happens.await;
        }
    }

    /// With what it has ended, if it has.
    pub(super) fn ended(&self) -> Option<NtStatus> {
        self.ear.ended()
    }
}
