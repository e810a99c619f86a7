//! Who wants to hear of which change (MS-SMB2 3.3.5.19).
//!
//! Whoever changes something in a share says so here: [`created`], [`removed`], [`renamed`], [`changed`]. Where
//! nobody watches, that costs one load.

mod external;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smb::files::OpenId;
use smb::files::notify::{Changes, Event as Happening, NotifyFilter, NotifyLimits, Room, Watchers};
use smb::name::{Path, Stream};
use smb::{CreateOptions, NtStatus};

use super::channel::Taken;
use super::open::Open;
use super::runtime::Event;
use super::server::{Server, SharePoint};
use external::{Did, External};

/// What may be kept of changes for all watches together, beside `memory_max`: that, divided by this.
const OF_MEMORY: usize = 16;

/// Those who watch a share.
pub(super) struct Watches {
    /// How many there are; looked at before anything else is done.
    count: AtomicUsize,
    inner: Mutex<Inner>,
    external: External,
}

struct Inner {
    watchers: Watchers<Kept>,
    ears: HashMap<OpenId, Ear>,
}

/// What is kept for a watch until its client asks for it: a part of what there is for clients of its address.
struct Kept {
    taken: Taken,
    most: usize,
}

impl Room for Kept {
    fn take(&mut self, bytes: usize) -> bool {
        self.taken.more(bytes, self.most)
    }

    fn give_back(&mut self) {
        self.taken.keep(0);
    }
}

/// One watch, for those who wait for it.
#[derive(Default)]
struct Ear {
    /// Its open is closed.
    ended: Arc<AtomicBool>,
    /// Each gets what one event brings, in turn.
    waiting: VecDeque<Arc<Waiting>>,
    /// Room for what it has open beside its folder.
    _beside: Option<Taken>,
}

type Told = Result<Changes, NtStatus>;

/// A request that is not answered yet.
struct Waiting {
    room: usize,
    told: Mutex<Option<Told>>,
    event: Event,
}

impl Waiting {
    fn told(&self) -> MutexGuard<'_, Option<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, what: Told) {
        *self.told() = Some(what);
        self.event.notify_all();
    }
}

/// The watch of one open.
#[derive(Clone)]
pub(super) struct Watching {
    ended: Arc<AtomicBool>,
}

impl Default for Watches {
    fn default() -> Self {
        let watchers = Watchers::new(NotifyLimits::default());
        let inner = Inner { watchers, ears: HashMap::new() };
        Self { count: AtomicUsize::new(0), inner: Mutex::new(inner), external: External::default() }
    }
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Tells those whom it concerns. What a request that waits is told is settled here, not when its task comes
    /// to run: the next event is for the next request.
    fn tell(&self, happening: &Happening<'_>) {
        let told = {
            let mut inner = self.lock();
            let mut ready = Vec::new();
            inner.watchers.event(happening, &mut |open| ready.push(open));
            inner.deliver(&ready)
        };
        told.into_iter().for_each(|(waiting, changes)| waiting.tell(Ok(changes)));
    }

    /// Tells one open alone of what somebody else has done, with paths seen from its directory.
    fn tell_one(&self, open: OpenId, happening: &Happening<'_>) {
        let told = {
            let mut inner = self.lock();
            let mut ready = Vec::new();
            inner.watchers.event_for(open, happening, &mut |open| ready.push(open));
            inner.deliver(&ready)
        };
        told.into_iter().for_each(|(waiting, changes)| waiting.tell(Ok(changes)));
    }

    /// One open has missed something.
    fn lose(&self, open: OpenId) {
        let told = {
            let mut inner = self.lock();
            let mut ready = Vec::new();
            inner.watchers.overflow_of(open, &mut |open| ready.push(open));
            inner.deliver(&ready)
        };
        told.into_iter().for_each(|(waiting, changes)| waiting.tell(Ok(changes)));
    }

    /// The directory that an open watches, as it is called now.
    fn directory_of(&self, open: OpenId) -> Option<String> {
        self.lock().watchers.directory_of(open).map(str::to_owned)
    }

    /// Answers those who wait for changes in a directory, through whichever open, with this status.
    fn answer(&self, directory: &str, status: NtStatus) {
        let answered = {
            let mut inner = self.lock();
            let mut opens = Vec::new();
            inner.watchers.each_of(directory, &mut |open| opens.push(open));
            let ears = &mut inner.ears;
            let waiting = opens
                .iter()
                .filter_map(|open| Some(std::mem::take(&mut ears.get_mut(open)?.waiting)));
            waiting.flatten().collect::<Vec<_>>()
        };
        answered.iter().for_each(|waiting| waiting.tell(Err(status)));
    }
}

impl Inner {
    /// Who gets what, of watches that have something now.
    fn deliver(&mut self, ready: &[OpenId]) -> Vec<(Arc<Waiting>, Changes)> {
        let mut told = Vec::new();
        for open in ready {
            let Some(ear) = self.ears.get_mut(open) else { continue };
            let Some(waiting) = ear.waiting.pop_front() else { continue };
            match self.watchers.fetch(*open, waiting.room) {
                Some(changes) => told.push((waiting, changes)),
                None => ear.waiting.push_front(waiting),
            }
        }
        told
    }
}

/// As [`Watchers`] has it.
fn told(path: &Path) -> String {
    let mut told = whole(path);
    if let Some(Stream::Named(stream)) = path.stream() {
        told.push(':');
        told.push_str(stream);
        told.push_str(":$DATA");
    }
    told
}

/// The file that a path is about, whichever stream.
fn whole(path: &Path) -> String {
    path.as_str().replace('/', "\\")
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
    point
        .watch
        .external
        .own(&whole(path), if is_stream(path) { Did::Modified } else { Did::Added });
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
    point
        .watch
        .external
        .own(&whole(path), if is_stream(path) { Did::Modified } else { Did::Removed });
    if is_stream(path) {
        return point.watch.tell(&Happening::StreamRemoved { path: &told });
    }
    point.watch.tell(&Happening::Removed { path: &told, directory });
    if directory {
        point.watch.answer(&told, NtStatus::DELETE_PENDING);
    }
}

/// A directory is to be deleted with its last open: who watches it need not wait any longer.
pub(super) fn deleting(point: &SharePoint, path: &Path) {
    if !point.watch.is_empty() {
        point.watch.answer(&told(path), NtStatus::DELETE_PENDING);
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
    point.watch.external.own(&from, Did::Removed);
    point.watch.external.own(&to, Did::Added);
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
    point.watch.external.own(&whole(path), Did::Modified);
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
    let point = &open.tree.share;
    unwatch(open);
    if point.watch.is_empty() {
        return;
    }
    if open.is_changed() {
        // As NTFS does, which brings size and time up to date when a file is closed.
        changed(point, &open.path(), NotifyFilter::SIZE | NotifyFilter::LAST_WRITE);
    }
    if open.directory && open.options.contains(CreateOptions::DELETE_ON_CLOSE) {
        deleting(point, &open.path());
    }
}

fn unwatch(open: &Arc<Open>) {
    let Some(watching) = open.state().watch.take() else { return };
    let watch = &open.tree.share.watch;
    let ear = {
        let mut inner = watch.lock();
        inner.watchers.unwatch(open.id);
        // Under the lock: who begins to wait looks at it under the same.
        watching.ended.store(true, Ordering::Release);
        inner.ears.remove(&open.id)
    };
    watch.count.fetch_sub(1, Ordering::AcqRel);
    watch.external.forget(open.id);
    for waiting in ear.into_iter().flat_map(|ear| ear.waiting) {
        waiting.tell(Err(NtStatus::NOTIFY_CLEANUP));
    }
}

/// Begins the watch of an open, if it has none. `asked`: from which address, and for how large an answer. `beside`: room for
/// what it has open.
///
/// # Errors
///
/// INSUFFICIENT_RESOURCES if there are too many; NOTIFY_CLEANUP if the open is closed meanwhile; those of `beside`.
pub(super) fn watch(
    server: &Arc<Server>,
    open: &Arc<Open>,
    filter: NotifyFilter,
    recursive: bool,
    asked: (IpAddr, usize),
    beside: impl FnOnce() -> Result<Option<Taken>, NtStatus>,
) -> Result<Watching, NtStatus> {
    if let Some(watching) = &open.state().watch {
        return Ok(watching.clone());
    }
    let watch = &open.tree.share.watch;
    let directory = told(&open.path());
    let ended = Arc::new(AtomicBool::new(false));
    {
        let mut inner = watch.lock();
        if let Some(ear) = inner.ears.get(&open.id) {
            return Ok(Watching { ended: ear.ended.clone() });
        }
        let beside = beside()?;
        let (peer, room) = asked;
        let most = server.config.limits.memory / OF_MEMORY;
        let kept = Kept { taken: server.kept().nothing(peer), most };
        inner.watchers.watch(open.id, &directory, filter, recursive, room, kept)?;
        let ear = Ear { ended: ended.clone(), waiting: VecDeque::new(), _beside: beside };
        inner.ears.insert(open.id, ear);
    }
    watch.count.fetch_add(1, Ordering::AcqRel);
    External::watch(server, open, recursive);
    let watching = Watching { ended };
    open.state().watch = Some(watching.clone());
    if open.is_closed() {
        unwatch(open);
        return Err(NtStatus::NOTIFY_CLEANUP);
    }
    Ok(watching)
}

impl Watching {
    /// Ends when there is something to tell, of which so many bytes have room.
    ///
    /// # Errors
    ///
    /// The status to answer instead: NOTIFY_CLEANUP if the open is closed, DELETE_PENDING if the directory goes.
    pub(super) async fn changes(&self, open: &Open, room: usize) -> Told {
        let watch = &open.tree.share.watch;
        let waiting = {
            let mut inner = watch.lock();
            if self.has_ended() {
                return Err(NtStatus::NOTIFY_CLEANUP);
            }
            let Inner { watchers, ears } = &mut *inner;
            let Some(ear) = ears.get_mut(&open.id) else { return Err(NtStatus::NOTIFY_CLEANUP) };
            if ear.waiting.is_empty()
                && let Some(changes) = watchers.fetch(open.id, room)
            {
                return Ok(changes);
            }
            let waiting = Waiting { room, told: Mutex::default(), event: Event::new() };
            let waiting = Arc::new(waiting);
            ear.waiting.push_back(waiting.clone());
            waiting
        };
        let given_up = GivenUp { watch, open: open.id, waiting: &waiting };
        loop {
            let happens = given_up.waiting.event.wait();
            if let Some(told) = given_up.waiting.told().take() {
                return told;
            }
            happens.await;
        }
    }

    /// Whether its open is closed.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// Takes a request that waits no longer out of its queue.
struct GivenUp<'w> {
    watch: &'w Watches,
    open: OpenId,
    waiting: &'w Arc<Waiting>,
}

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        if let Some(ear) = self.watch.lock().ears.get_mut(&self.open) {
            ear.waiting.retain(|other| !Arc::ptr_eq(other, self.waiting));
        }
    }
}
