//! An open file of a session.

mod table;

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{fdatasync, fsync};
use rustix::io::Errno;
use smb::files::{FileKey, Flags, LockSequence, OpenId};
use smb::fscc::{Facts, Times};
use smb::name::{Path, Pattern};
use smb::session::ChannelSequence;
use smb::wire::context::AppVersion;
use smb::{
    Access, CreateAction, CreateOptions, FileId, Guid, LeaseKey, NtStatus, SessionId, ShareAccess,
};
use sys::sync::{AtomicU32, AtomicU64};

use super::aside::{AT_ONCE, elsewhere};
use super::channel::Taken;
use super::fs;
use super::fs::write_time::Clock;
use super::fs::{Directory, Handle, SetTimes, Stream};
use super::pipe::Pipe;
use super::runtime::Event;
use super::session::{Identity, Session, Tree};
use super::transfer::DataFile;

pub(super) use table::{Begun, Place, Table};

/// What is open.
#[derive(Clone)]
pub(super) enum Object {
    /// A file, a directory or a stream.
    File(Arc<FileObject>),
    /// A named pipe of IPC$.
    Pipe(Arc<Pipe>),
}

/// A file, and which of its streams.
pub(super) struct FileObject {
    pub(super) handle: Arc<Handle>,
    /// A named stream of it.
    pub(super) stream: Option<Stream>,
    /// Its part of what all clients may have open.
    room: Option<Taken>,
    /// The descriptor that large transfers use, once there was one.
    data: OnceLock<Arc<DataFile>>,
}

impl FileObject {
    pub(super) fn new(handle: Arc<Handle>, stream: Option<Stream>) -> Self {
        Self { handle, stream, room: None, data: OnceLock::new() }
    }

    /// It has room for its descriptors as long as it is there, with whatever open it is by then. `room`: for
    /// [`Handle::DESCRIPTORS`].
    pub(super) fn count(&mut self, mut room: Taken) {
        room.keep(self.handle.descriptors());
        self.room = Some(room);
    }

    /// Another descriptor of the same file takes the place of its own.
    pub(super) fn turn_to(&mut self, handle: Handle) {
        self.handle = Arc::new(handle);
        if let Some(room) = &mut self.room {
            room.keep(self.handle.descriptors());
        }
    }
}

/// The lease that an open belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenLease {
    pub(super) client: Guid,
    pub(super) key: LeaseKey,
    pub(super) parent: Option<LeaseKey>,
}

/// What a client was promised when it asked for a durable open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Durable {
    pub(super) version: u8,
    pub(super) timeout_ms: u32,
    pub(super) persistent: bool,
}

/// What an open is given when it begins, and keeps.
#[derive(Clone)]
pub(super) struct Given {
    /// The number that no other open has, by which `smb::files` knows it.
    pub(super) id: OpenId,
    /// Which file it is, for `smb::files`.
    pub(super) key: FileKey,
    /// Whose it is. An open that is reconnected becomes another `Open` of the same number.
    pub(super) session: SessionId,
    pub(super) client: Guid,
    pub(super) tree: Arc<Tree>,
    pub(super) object: Object,
    /// What may be done through it.
    pub(super) access: Access,
    pub(super) share: ShareAccess,
    pub(super) options: CreateOptions,
    pub(super) directory: bool,
    pub(super) lease: Option<OpenLease>,
    /// The CreateGuid of a durable open of version 2.
    pub(super) create_guid: Option<Guid>,
    pub(super) app_instance: Option<Guid>,
    /// Which run of that program.
    pub(super) app_version: Option<AppVersion>,
    /// Who opened it, and alone may reconnect to it.
    pub(super) owner: Arc<Identity>,
    pub(super) durable: Option<Durable>,
    /// What READ and WRITE look at in place of the shard.
    pub(super) flags: Arc<Flags>,
    /// How it came to be: what a create that is sent again is answered.
    pub(super) action: CreateAction,
    /// Opened as Linux opens files where the POSIX extensions are agreed on: its other names are as exact as its own.
    pub(super) posix: bool,
}

impl Given {
    /// All rights to something that is there, shared with everybody, and nothing cached or kept.
    pub(super) fn plain(id: OpenId, session: &Session, tree: Arc<Tree>, object: Object) -> Self {
        Self {
            id,
            key: FileKey::default(),
            session: session.id,
            client: session.client,
            tree,
            object,
            access: Access::FILE_ALL,
            share: ShareAccess::all(),
            options: CreateOptions::empty(),
            directory: false,
            lease: None,
            create_guid: None,
            app_instance: None,
            app_version: None,
            owner: session.identity(),
            durable: None,
            flags: Arc::default(),
            action: CreateAction::Opened,
            posix: false,
        }
    }
}

/// An open: what it was given, which it has as if it were its own, and what has become of it.
pub(super) struct Open {
    given: Given,
    /// As the client names it.
    pub(super) file_id: FileId,
    /// It is closed: whoever still holds it does nothing more with it.
    closed: AtomicBool,
    /// Its client is away.
    away: AtomicBool,
    /// Its client has used it, and so has had the answer to the create that opened it.
    used: AtomicBool,
    /// Something was changed through it that its directory shows.
    changed: AtomicBool,
    /// FilePositionInformation: a number that the client may keep here.
    pub(super) position: AtomicU64,
    /// FileModeInformation.
    pub(super) mode: AtomicU32,
    /// A [`ChannelSequence`]: READ and WRITE of all channels count in it, and none waits for another.
    sequence: AtomicU64,
    locks: Mutex<LockSequence>,
    /// One of these times is not to move: see [`Open::before_change`].
    holds_times: AtomicBool,
    state: Mutex<OpenState>,
}

impl Deref for Open {
    type Target = Given;

    fn deref(&self) -> &Given {
        &self.given
    }
}

/// What changes about an open.
#[derive(Default)]
pub(super) struct OpenState {
    /// Where a directory is being read.
    pub(super) listing: Option<Listing>,
    /// Somebody is reading it just now, and says so when he is done.
    pub(super) reading: Option<Event>,
    /// Where it is in the share, as it was opened or renamed to.
    pub(super) path: Path,
    /// What may move the time of last writing, and that of last change.
    pub(super) written: Clock,
    pub(super) changed: Clock,
    /// Its watch, if CHANGE_NOTIFY was asked for.
    pub(super) watch: Option<super::watch::Watching>,
}

/// A directory that is being read.
pub(super) struct Listing {
    pub(super) directory: Directory,
    /// Which entries.
    pub(super) pattern: Pattern,
    /// Nothing has been found yet: NO_SUCH_FILE instead of NO_MORE_FILES.
    pub(super) fresh: bool,
    /// The one name that the pattern is for has been looked up.
    pub(super) found: bool,
    /// The file system takes its time: not to be read on a loop.
    pub(super) slow: bool,
    /// Room for the descriptor that it is read by.
    pub(super) _room: Taken,
}

/// Held by who appends to a file and may do nothing else: one for many files.
static TURNS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Open {
    pub(super) fn new(given: Given, channel_sequence: u16, path: Path) -> Self {
        Self {
            file_id: FileId { persistent: given.id.0, volatile: given.id.0 },
            mode: AtomicU32::new((given.options & MODE).bits()),
            given,
            closed: AtomicBool::new(false),
            away: AtomicBool::new(false),
            used: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            position: AtomicU64::new(0),
            sequence: AtomicU64::new(ChannelSequence::new(channel_sequence).to_bits()),
            locks: Mutex::default(),
            holds_times: AtomicBool::new(false),
            state: Mutex::new(OpenState { path, ..OpenState::default() }),
        }
    }

    /// The same open in another session: its client has come back.
    pub(super) fn reconnected(
        &self,
        session: SessionId,
        client: Guid,
        tree: Arc<Tree>,
        flags: Arc<Flags>,
        channel_sequence: u16,
    ) -> Self {
        let given = Given { session, client, tree, flags, ..self.given.clone() };
        let state = {
            let state = self.state();
            OpenState {
                path: state.path.clone(),
                written: state.written,
                changed: state.changed,
                ..OpenState::default()
            }
        };
        Self {
            mode: AtomicU32::new(self.mode.load(Ordering::Relaxed)),
            changed: AtomicBool::new(self.is_changed()),
            position: AtomicU64::new(self.position.load(Ordering::Relaxed)),
            locks: Mutex::new(lock(&self.locks).clone()),
            holds_times: AtomicBool::new(self.holds_times.load(Ordering::Acquire)),
            state: Mutex::new(state),
            ..Self::new(given, channel_sequence, Path::default())
        }
    }

    /// The same open of another file, which has taken the name of the first. Nothing of it is cached or kept.
    pub(super) fn turned(
        &self,
        key: FileKey,
        object: Object,
        flags: Arc<Flags>,
        channel_sequence: u16,
    ) -> Self {
        let given = Given {
            key,
            object,
            flags,
            directory: false,
            lease: None,
            durable: None,
            ..self.given.clone()
        };
        Self {
            mode: AtomicU32::new(self.mode.load(Ordering::Relaxed)),
            used: AtomicBool::new(true),
            changed: AtomicBool::new(true),
            ..Self::new(given, channel_sequence, self.path())
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Marks it closed; `false` if it was.
    pub(super) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    /// Its client is away from now on; `false` if it was.
    pub(super) fn go_away(&self) -> bool {
        let went = !self.away.swap(true, Ordering::AcqRel);
        if went {
            self.tree.opens.fetch_sub(1, Ordering::Relaxed);
        }
        went
    }

    /// Notes that a request names it.
    pub(super) fn note_use(&self) {
        // Looked at first: this is said with every request.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the create that opened it may be sent again (Open.IsReplayEligible).
    pub(super) fn is_replayable(&self) -> bool {
        !self.used.load(Ordering::Relaxed)
    }

    pub(super) fn is_away(&self) -> bool {
        self.away.load(Ordering::Acquire)
    }

    /// Notes that what its directory shows of it is another thing now: those who cache the directory are told
    /// when it is closed.
    pub(super) fn note_change(&self) {
        // Looked at first: a WRITE that is not the first leaves the line to others.
        if !self.changed.load(Ordering::Relaxed) {
            self.changed.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, OpenState> {
        lock(&self.state)
    }

    /// A request begins, as [`ChannelSequence::begin`] has it; [`Open::end`] is to be told when it has ended.
    ///
    /// # Errors
    ///
    /// FILE_NOT_AVAILABLE if it is older than a channel that the client has given up.
    pub(super) fn begin(&self, number: u16, modifies: bool, replay: bool) -> Result<(), NtStatus> {
        let mut begun = Ok(true);
        self.count(|sequence| begun = sequence.begin(number, modifies, replay));
        begun.map(drop).map_err(|_| NtStatus::FILE_NOT_AVAILABLE)
    }

    /// A request that has begun with this number has ended.
    pub(super) fn end(&self, number: u16) {
        self.count(|sequence| sequence.end(number));
    }

    fn count(&self, mut change: impl FnMut(&mut ChannelSequence)) {
        // Who finds nothing under way any more (Acquire) finds what that did (Release).
        let _ = self.sequence.fetch_update(Ordering::AcqRel, Ordering::Acquire, |bits| {
            let mut sequence = ChannelSequence::from_bits(bits);
            change(&mut sequence);
            Some(sequence.to_bits())
        });
    }

    /// The bucket of lock requests that were done.
    pub(super) fn lock_sequence(&self) -> MutexGuard<'_, LockSequence> {
        lock(&self.locks)
    }

    /// A client sets times, or what may move them: what to write to the file.
    pub(super) fn hold_times(&self, times: Times) -> SetTimes {
        let mut state = self.state();
        let written = state.written.set(times.written);
        let changed = state.changed.set(times.changed);
        let held = state.written.is_held() || state.changed.is_held();
        self.holds_times.store(held, Ordering::Release);
        SetTimes { created: times.created, accessed: times.accessed, written, changed }
    }

    /// Whether one of its times is not to move.
    pub(super) fn holds_times(&self) -> bool {
        self.holds_times.load(Ordering::Acquire)
    }

    /// Before something is changed through this open: the times that are not to move. They go to
    /// [`Open::after_change`].
    pub(super) fn before_change(&self) -> SetTimes {
        if !self.holds_times() {
            return SetTimes::default();
        }
        let Some(Ok(facts)) = self.file().map(|file| file.facts()) else {
            return SetTimes::default();
        };
        let state = self.state();
        SetTimes {
            written: state.written.after_write(facts.written),
            changed: state.changed.after_write(facts.changed),
            ..SetTimes::default()
        }
    }

    /// After something was changed through this open: the times are what they were.
    pub(super) fn after_change(&self, kept: SetTimes) {
        if kept != SetTimes::default()
            && let Some(file) = self.file()
        {
            // What was written stays written, whatever becomes of the time.
            let _ = file.set_times(kept);
        }
    }

    /// Where it is in the share.
    pub(super) fn path(&self) -> Path {
        self.state().path.clone()
    }

    /// The file, unless this is a pipe.
    pub(super) fn file(&self) -> Option<&Arc<Handle>> {
        match &self.object {
            Object::File(file) => Some(&file.handle),
            Object::Pipe(_) => None,
        }
    }

    /// The file.
    ///
    /// # Errors
    ///
    /// INVALID_DEVICE_REQUEST of a pipe.
    pub(super) fn must_be_file(&self) -> Result<&Arc<Handle>, NtStatus> {
        self.file().ok_or(NtStatus::INVALID_DEVICE_REQUEST)
    }

    /// The named stream that is open, if it is one.
    pub(super) fn stream(&self) -> Option<&Stream> {
        match &self.object {
            Object::File(file) => file.stream.as_ref(),
            Object::Pipe(_) => None,
        }
    }

    /// Whether bytes may be written from `offset` on: where there are some already, not by who may only append
    /// (MS-SMB2 3.3.5.13).
    ///
    /// # Errors
    ///
    /// ACCESS_DENIED, INVALID_DEVICE_REQUEST of a pipe, and what the file system says.
    pub(super) fn may_write(&self, offset: u64) -> Result<(), NtStatus> {
        if !self.only_appends() {
            return Ok(());
        }
        let appends = self.access.contains(Access::APPEND_DATA) && offset >= self.facts()?.size;
        if appends { Ok(()) } else { Err(NtStatus::ACCESS_DENIED) }
    }

    /// [`Self::may_write`] for bytes that are written as long as this is held: who may only append does so when nobody
    /// else who may only append does, or two who have found the same end would write there. May wait for these: not for
    /// a loop, unless [`Self::only_appends`] says no.
    ///
    /// # Errors
    ///
    /// As [`Self::may_write`].
    pub(super) fn write_in_turn(
        &self,
        offset: u64,
    ) -> Result<Option<MutexGuard<'static, ()>>, NtStatus> {
        let place = usize::try_from(self.key.inode).unwrap_or(0) % TURNS.len();
        let turn = self.only_appends().then(|| lock(&TURNS[place]));
        self.may_write(offset).map(|()| turn)
    }

    /// Whether bytes may not be written where there are some already.
    pub(super) fn only_appends(&self) -> bool {
        !self.access.contains(Access::WRITE_DATA)
    }

    /// What is known of it now: of a stream, its own size.
    ///
    /// # Errors
    ///
    /// INVALID_DEVICE_REQUEST of a pipe, and what the file system says.
    pub(super) fn facts(&self) -> Result<Facts, NtStatus> {
        let facts = self.must_be_file()?.facts()?;
        let Some(stream) = self.stream() else { return Ok(facts) };
        stream_facts(facts, stream)
    }

    /// Whether its file system is to be called by who may wait: see [`fs::Share::keeps_waiting`].
    pub(super) fn keeps_waiting(&self) -> bool {
        self.file().is_some_and(|file| file.keeps_waiting())
    }

    /// Whether its file system is another one than the share's: see [`fs::Handle::is_far`].
    pub(super) fn is_far(&self) -> bool {
        self.file().is_some_and(|file| file.is_far())
    }

    /// Calls `what`, which calls its file system, as [`aside()`](super::aside::aside) does.
    pub(super) async fn aside<T: Send + 'static>(
        self: &Arc<Self>,
        what: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> T {
        match &self.tree.share.files {
            Some(share) if self.is_far() => {
                let this = self.clone();
                elsewhere(share, move || what(&this)).await
            }
            Some(share) if share.keeps_waiting() => {
                let (this, timed) = (self.clone(), share.clone());
                elsewhere(share, move || timed.timed(|| what(&this))).await
            }
            Some(share) => share.timed(|| what(self)),
            None => what(self),
        }
    }

    /// The directory that its file is in, as the state of files knows it; `None` if nobody knows any more.
    pub(super) fn folder(&self) -> Option<FileKey> {
        let folder = self.file()?.folder_facts().ok()??;
        Some(FileKey { device: folder.device, inode: folder.index, stream: 0 })
    }

    /// Whether the file system takes its time to free what the file holds.
    pub(super) fn is_large(&self) -> bool {
        let allocated = self.file().and_then(|file| file.allocated().ok());
        allocated.is_some_and(|bytes| bytes > AT_ONCE)
    }

    /// Brings what was written to the disk, of a stream with all else that is said about its file.
    ///
    /// # Errors
    ///
    /// INVALID_DEVICE_REQUEST of a pipe, and what the file system says.
    pub(super) async fn sync(self: &Arc<Self>) -> Result<(), NtStatus> {
        self.synced(|open| Ok(fsync(open.must_be_file()?.sync_fd()?))).await
    }

    /// Brings the data that was written to the disk, and what is needed to read it again.
    ///
    /// # Errors
    ///
    /// INVALID_DEVICE_REQUEST of a pipe, and what the file system says.
    pub(super) async fn sync_data(self: &Arc<Self>) -> Result<(), NtStatus> {
        self.synced(|open| Ok(fdatasync(open.must_be_file()?.shared_fd()))).await
    }

    /// By a thread, and not by the ring: that has a few workers for all files, and a disk that does not answer would have
    /// them all. Where there is no disk, at once.
    async fn synced(
        self: &Arc<Self>,
        call: impl Fn(&Self) -> Result<Result<(), Errno>, NtStatus> + Send + 'static,
    ) -> Result<(), NtStatus> {
        let this = self.clone();
        let again = move || loop {
            match call(&this)? {
                Err(Errno::INTR) => {}
                synced => break synced.map_err(fs::status),
            }
        };
        let file = self.must_be_file()?;
        if !self.keeps_waiting() && file.is_in_memory()? {
            return again();
        }
        elsewhere(file.of_share(), again).await
    }

    /// What large transfers use.
    ///
    /// # Errors
    ///
    /// INVALID_DEVICE_REQUEST of a pipe or a stream, and what the file system says.
    pub(super) fn data(&self) -> Result<Arc<DataFile>, NtStatus> {
        let Object::File(file) = &self.object else { return Err(NtStatus::INVALID_DEVICE_REQUEST) };
        if let Some(data) = file.data.get() {
            return Ok(data.clone());
        }
        let data = DataFile::of(file.handle.shared_fd().clone(), file.handle.is_in_memory()?);
        let callers = file.handle.of_share().callers().clone();
        let data = data.called_by(callers).kept_as(file.handle.keeps()?.clone());
        let data = if file.handle.is_local() { data } else { data.that_asks() };
        Ok(file.data.get_or_init(|| Arc::new(data)).clone())
    }
}

/// A stream has its file's times and attributes, and a size of its own.
pub(super) fn stream_facts(mut facts: Facts, stream: &Stream) -> Result<Facts, NtStatus> {
    facts.size = stream.size()?;
    facts.allocated = facts.size;
    facts.attributes.remove(smb::Attributes::DIRECTORY);
    Ok(facts)
}

/// A request that its open counts as under way until this is dropped, whoever waits for it by then (MS-SMB2 3.3.5.2.10):
/// what a client has sent again is not let in before.
pub(super) struct Sequenced {
    open: Arc<Open>,
    number: u16,
}

impl Sequenced {
    /// A request begins, as [`Open::begin`] has it.
    ///
    /// # Errors
    ///
    /// FILE_NOT_AVAILABLE if it is older than a channel that the client has given up.
    pub(super) fn begin(
        open: &Arc<Open>,
        number: u16,
        modifies: bool,
        replay: bool,
    ) -> Result<Self, NtStatus> {
        open.begin(number, modifies, replay)?;
        Ok(Self { open: open.clone(), number })
    }
}

impl Drop for Sequenced {
    fn drop(&mut self) {
        self.open.end(self.number);
    }
}

/// The create options that FileModeInformation shows (MS-FSCC 2.4.31).
const MODE: CreateOptions = CreateOptions::WRITE_THROUGH
    .union(CreateOptions::SEQUENTIAL_ONLY)
    .union(CreateOptions::NO_INTERMEDIATE_BUFFERING)
    .union(CreateOptions::SYNCHRONOUS_IO_ALERT)
    .union(CreateOptions::SYNCHRONOUS_IO_NONALERT)
    .union(CreateOptions::DELETE_ON_CLOSE);
