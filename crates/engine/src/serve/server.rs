//! What all connections share, and what follows from a change to it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use smb::auth::{Acceptor, Limiter, LimiterSettings, Refusal, Settings, UserFile, spnego};
use smb::files::{
    self, Break, Closed, Delete, Effects, FileKey, Held, Leases, OpenId, Opener, Outcome, Purged,
    Shard, Waiter,
};
use smb::session::Dialect;
use smb::{CreateOptions, FileTime, Guid, LeaseKey, NtStatus, SessionId};
use sys::sync::AtomicU64;

use super::accounts::Accounts;
use super::acting::Whose;
use super::aside;
use super::channel::{Backlog, ChannelRef, Ending};
use super::closing::{Closing, End, Ended};
use super::command::{breaks, delete};
use super::config::{Config, ShareConfig};
use super::deleters::Deleters;
use super::fs;
use super::kerberos::Kerberos;
use super::log;
use super::logons::Logons;
use super::moved::Moved;
use super::open::{Object, Open, Table};
use super::runtime::{self, Budget, Event, VectorId};
use super::session::{Identity, Session};
use super::tally::Tally;
use super::watch;

/// Shards of the states of files; a lock each. More than there are cores, so that they seldom meet.
const SHARDS: usize = 64;

/// A share that clients connect to.
pub(super) struct SharePoint {
    pub(super) config: ShareConfig,
    /// `None`: IPC$, which has pipes and no files.
    pub(super) files: Option<fs::Share>,
    pub(super) watch: watch::Watches,
    /// How often a file has gone, or was replaced, so far: see [`SharePoint::has_lost`].
    pub(super) deletions: AtomicU64,
    /// Bytes of its files.
    pub(super) moved: Moved,
}

impl SharePoint {
    /// How many files have gone.
    pub(super) fn deletions(&self) -> u64 {
        self.deletions.load(Ordering::Acquire)
    }

    /// A file has gone. To be said before the state of files forgets it: who opens it then without being told that it
    /// goes finds here that it has gone.
    pub(super) fn count_deletion(&self) {
        self.deletions.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether a file that was looked up when so many had gone has no name any more.
    pub(super) fn has_lost(&self, file: &fs::Handle, before: u64) -> bool {
        self.deletions() != before && file.is_gone()
    }
}

/// Somebody who waits for the state of a file to change.
#[derive(Default)]
pub(super) struct Waiting {
    event: Event,
    result: Mutex<Option<NtStatus>>,
}

impl Waiting {
    /// Ends when it is worth asking again; the result if it was decided meanwhile.
    pub(super) fn changed(&self) -> impl Future<Output = ()> + use<> {
        self.event.wait()
    }

    pub(super) fn result(&self) -> Option<NtStatus> {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, result: Option<NtStatus>) {
        if result.is_some() {
            *self.result.lock().unwrap_or_else(PoisonError::into_inner) = result;
        }
        self.event.notify_all();
    }
}

/// A file server.
pub struct Server {
    /// Itself, for what is done by other threads.
    myself: OnceLock<Weak<Self>>,
    pub(super) config: Config,
    pub(super) guid: Guid,
    epoch: Instant,
    pub(super) shares: RwLock<BTreeMap<String, Arc<SharePoint>>>,
    pub(super) users: RwLock<Arc<UserFile>>,
    sessions: Mutex<HashMap<SessionId, Arc<Session>>>,
    clients: Mutex<HashMap<Guid, Vec<ChannelRef>>>,
    /// Every open, those whose client is away with them.
    pub(super) opens: Table,
    files: Box<[Mutex<Shard>]>,
    leases: Mutex<Leases>,
    waiting: Mutex<HashMap<Waiter, Arc<Waiting>>>,
    limiter: Mutex<Limiter>,
    /// Threads that may ask name services for clients of pipes: a service that does not answer leaves the others to all
    /// else.
    pub(super) askers: Budget,
    pub(super) authentication: Arc<Settings>,
    /// Lets clients in by tickets, too.
    kerberos: Option<Kerberos>,
    pub(super) unix: Arc<fs::Unix>,
    /// Unix users of sessions, if files are touched as these.
    pub(super) accounts: Option<Arc<Accounts>>,
    /// On whose behalf files are deleted once nobody has them open, if that is not the last who has.
    deleters: Mutex<Deleters>,
    /// Files that are being renamed.
    renaming: Mutex<HashSet<FileKey>>,
    next: AtomicU64,
    /// What is added to the time of day, in its units. For tests.
    ahead: AtomicU64,
    channels: AtomicUsize,
    /// Connections that were closed because there were too many.
    turned_away: AtomicU64,
    /// What each vector counts.
    tallies: Box<[Tally]>,
    /// Connections of each vector.
    seats: Box<[AtomicUsize]>,
    /// Large answers that other threads are at.
    lanes: Arc<AtomicUsize>,
    /// Answers that wait in memory.
    backlog: Backlog,
    /// What is kept of changes until those who watch folders ask for it.
    kept: Backlog,
    /// Descriptors of what is open, by the addresses of clients, and how many may be.
    opened: Backlog,
    opened_most: usize,
    logons: Logons,
}

/// A connection's place on a vector; given up when dropped.
pub(super) struct Seat {
    server: Arc<Server>,
    pub(super) vector: VectorId,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.server.seats[self.vector.0].fetch_sub(1, Ordering::AcqRel);
    }
}

/// The vector with the fewest connections; `here` among equals.
fn least(seats: &[AtomicUsize], here: usize) -> usize {
    let taken = |vector: usize| seats[vector].load(Ordering::Relaxed);
    (0..seats.len()).min_by_key(|vector| (taken(*vector), *vector != here)).unwrap_or(here)
}

/// A place among the large answers that other threads than the vectors' complete; free again when dropped.
pub(super) struct Lane(Arc<AtomicUsize>);

impl Lane {
    /// One that is counted already.
    #[cfg(test)]
    pub(super) fn of(lanes: &Arc<AtomicUsize>) -> Self {
        Self(lanes.clone())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A place among the connections that there may be; free again when dropped.
pub(super) struct Place(Arc<Server>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.channels.fetch_sub(1, Ordering::AcqRel);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time of day.
fn wall_clock() -> FileTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    FileTime::from_unix(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

/// In units of [`FileTime`], of 100 ns.
fn units(time: Duration) -> u64 {
    u64::try_from(time.as_nanos() / 100).unwrap_or(u64::MAX >> 2)
}

/// Something that nobody can guess.
pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random numbers: {error}"),
        }
    }
    bytes
}

/// What the server says of itself to those who log on.
fn authentication(config: &Config) -> Settings {
    let computer: String = config.name.chars().take(15).collect::<String>().to_uppercase();
    Settings {
        netbios_domain: computer.clone(),
        dns_computer: config.name.to_lowercase(),
        netbios_computer: computer,
        guest: config.guest,
        anonymous: config.anonymous || config.guest,
        ..Settings::default()
    }
}

/// Half of the descriptors that this process may have: as much again is for connections, for what is opened for a moment,
/// and for who has nothing open yet.
fn half_of_descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let most = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    // The first number is the one that counts; `unlimited` is none.
    let most = most.and_then(|line| line.split_whitespace().next()?.parse().ok());
    most.unwrap_or(usize::MAX) / 2
}

impl Server {
    pub(super) fn new(
        config: Config,
        shares: BTreeMap<String, Arc<SharePoint>>,
        users: UserFile,
        kerberos: Option<Kerberos>,
        accounts: Option<Accounts>,
    ) -> Self {
        let limits = files::Limits {
            opens: config.limits.opens.saturating_mul(4),
            directory_leases: config.leases && config.directory_leases,
            ..files::Limits::default()
        };
        // Ids begin anywhere, so that a client of an earlier run does not find another's.
        let next = u64::from_le_bytes(random()) >> 16 | 1;
        Self {
            myself: OnceLock::new(),
            guid: Guid(random()),
            epoch: Instant::now(),
            shares: RwLock::new(shares),
            users: RwLock::new(Arc::new(users)),
            sessions: Mutex::default(),
            clients: Mutex::default(),
            opens: Table::default(),
            files: (0..SHARDS).map(|_| Mutex::new(Shard::new(limits))).collect(),
            leases: Mutex::new(Leases::new(config.limits.opens.saturating_mul(4))),
            waiting: Mutex::default(),
            limiter: Mutex::new(Limiter::new(LimiterSettings::default())),
            askers: Budget::new(runtime::Config::default().offload_threads / 4),
            authentication: Arc::new(authentication(&config)),
            kerberos,
            unix: Arc::new(fs::Unix::of_process()),
            accounts: accounts.map(Arc::new),
            deleters: Mutex::default(),
            renaming: Mutex::default(),
            next: AtomicU64::new(next),
            ahead: AtomicU64::new(0),
            channels: AtomicUsize::new(0),
            turned_away: AtomicU64::new(0),
            tallies: (0..config.vectors.max(1)).map(|_| Tally::default()).collect(),
            seats: (0..config.vectors.max(1)).map(|_| AtomicUsize::new(0)).collect(),
            lanes: Arc::default(),
            backlog: Backlog::default(),
            kept: Backlog::default(),
            opened: Backlog::default(),
            logons: Logons::default(),
            opened_most: config.limits.files.unwrap_or_else(half_of_descriptors),
            config,
        }
    }

    /// For all who share it, and so for threads that do something on its behalf.
    pub(super) fn shared(self) -> Arc<Self> {
        let this = Arc::new(self);
        let first = this.myself.set(Arc::downgrade(&this));
        first.expect("this is said once");
        this
    }

    /// The ways to say who one is, best first.
    pub(super) fn mechanisms(&self) -> &'static [&'static [u8]] {
        match self.kerberos {
            // As Windows says it.
            Some(_) => &[spnego::MS_KERBEROS, spnego::KERBEROS, spnego::NTLMSSP],
            None => &[spnego::NTLMSSP],
        }
    }

    /// One who asks a client who it is.
    pub(super) fn acceptor(&self) -> Acceptor {
        let acceptor = Acceptor::new(self.authentication.clone());
        match &self.kerberos {
            Some(kerberos) => acceptor.with(kerberos.mechanism()),
            None => acceptor,
        }
    }

    /// A number that was not used before.
    pub(super) fn next_id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The time of day.
    pub(super) fn now(&self) -> FileTime {
        FileTime(wall_clock().0 + self.ahead.load(Ordering::Relaxed))
    }

    /// The time of day is so much later from now on. For tests.
    pub(super) fn advance(&self, by: Duration) {
        self.ahead.fetch_add(units(by), Ordering::Relaxed);
    }

    /// When a session ends that is authenticated now with what is good until then.
    pub(super) fn session_end(&self, until: Option<FileTime>) -> Option<FileTime> {
        let most = self.config.limits.session.map(|most| FileTime(self.now().0 + units(most)));
        [until, most].into_iter().flatten().min()
    }

    /// Milliseconds of a clock that does not go back.
    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Where a vector counts.
    pub(super) fn tally(&self, vector: VectorId) -> &Tally {
        &self.tallies[vector.0]
    }

    /// What the vectors have counted.
    pub(super) fn tallies(&self) -> &[Tally] {
        &self.tallies
    }

    /// Connections that there are, and that were turned away.
    pub(super) fn connections(&self) -> (usize, u64) {
        (self.channels.load(Ordering::Relaxed), self.turned_away.load(Ordering::Relaxed))
    }

    /// How often somebody has come in, and not.
    pub(super) fn logons(&self) -> &Logons {
        &self.logons
    }

    /// Where connections count what waits on them.
    pub(super) fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// Where they count what they have open, and how much that may be.
    pub(super) fn opened(&self) -> &Backlog {
        &self.opened
    }

    pub(super) fn opened_most(&self) -> usize {
        self.opened_most
    }

    /// Where watches count what is kept for them, which is a part of `memory_max` at most.
    pub(super) fn kept(&self) -> &Backlog {
        &self.kept
    }

    /// Opens, at most `limit` of them.
    pub(super) fn some_opens(&self, limit: usize) -> Vec<Arc<Open>> {
        self.opens.some(limit)
    }

    /// What is held of each open, by its number: a look at each shard in turn.
    pub(super) fn held(&self) -> HashMap<OpenId, Held> {
        let mut all = HashMap::new();
        for shard in &self.files {
            all.extend(lock(shard).held().map(|held| (held.opener.open, held)));
        }
        all
    }

    /// A place for one more connection, if there is one.
    pub(super) fn admit_channel(self: &Arc<Self>) -> Option<Place> {
        let place = Place(self.clone());
        let before = self.channels.fetch_add(1, Ordering::AcqRel);
        if before < self.config.limits.connections {
            return Some(place);
        }
        self.turned_away.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Where a connection that has come in on `here` is served: with the fewest others. The kernel spreads
    /// connections by a hash of their addresses, which may well give all channels of a client to one core.
    pub(super) fn seat(self: &Arc<Self>, here: VectorId) -> Seat {
        let vector = least(&self.seats, here.0);
        self.seats[vector].fetch_add(1, Ordering::AcqRel);
        Seat { server: self.clone(), vector: VectorId(vector) }
    }

    /// A lane, if not as many are taken as there are vectors.
    pub(super) fn lane(&self) -> Option<Lane> {
        let before = self.lanes.fetch_add(1, Ordering::AcqRel);
        let lane = Lane(self.lanes.clone());
        (before < runtime::vectors()).then_some(lane)
    }

    /// The share of that name, whatever its case.
    pub(super) fn share(&self, name: &str) -> Option<Arc<SharePoint>> {
        let shares = self.shares.read().unwrap_or_else(PoisonError::into_inner);
        shares.get(&smb::name::fold(name)).cloned()
    }

    /// A session, whichever channels it has.
    pub(super) fn session(&self, id: SessionId) -> Option<Arc<Session>> {
        lock(&self.sessions).get(&id).cloned()
    }

    /// Every session.
    pub(super) fn all_sessions(&self) -> Vec<Arc<Session>> {
        lock(&self.sessions).values().cloned().collect()
    }

    /// Keeps a session that was set up.
    ///
    /// # Errors
    ///
    /// REQUEST_NOT_ACCEPTED when there are as many as there may be.
    pub(super) fn add_session(&self, session: &Arc<Session>) -> Result<(), NtStatus> {
        let mut sessions = lock(&self.sessions);
        if sessions.len() >= self.config.limits.sessions {
            return Err(NtStatus::REQUEST_NOT_ACCEPTED);
        }
        // Two set-ups may have drawn the same number at the same time.
        match sessions.entry(session.id) {
            Entry::Vacant(place) => {
                place.insert(session.clone());
                Ok(())
            }
            Entry::Occupied(_) => Err(NtStatus::REQUEST_NOT_ACCEPTED),
        }
    }

    /// Ends a session: its opens are closed, its trees gone, whoever waits on its behalf is told.
    pub(super) fn end_session(&self, session: &Arc<Session>, keep_durable: bool) -> Closing {
        let mut closing = Closing::default();
        if !session.close() {
            return closing;
        }
        lock(&self.sessions).remove(&session.id);
        let (channels, opens) = {
            let mut state = session.state();
            state.end_trees(|_| true);
            (std::mem::take(&mut state.channels), std::mem::take(&mut state.opens))
        };
        for channel in &channels {
            let id = session.id;
            channel.post(move |channel| {
                if channel.sessions.borrow_mut().remove(&id).is_some() {
                    channel.cancel_session(id);
                }
            });
        }
        for open in opens.into_values() {
            closing.add(if keep_durable { self.leave(&open) } else { self.close(&open) });
        }
        closing
    }

    /// Notes whose channel it is, once the client has said who it is.
    pub(super) fn know_channel(&self, client: Guid, channel: &ChannelRef) {
        lock(&self.clients).entry(client).or_default().push(channel.clone());
    }

    /// A connection is over.
    pub(super) fn forget_channel(&self, client: Option<Guid>, channel: &ChannelRef) {
        let Some(client) = client else { return };
        let mut clients = lock(&self.clients);
        if let Some(channels) = clients.get_mut(&client) {
            channels.retain(|other| other.id() != channel.id());
            if channels.is_empty() {
                clients.remove(&client);
            }
        }
    }

    /// The channels of a client, of the oldest first.
    pub(super) fn channels_of(&self, client: Guid) -> Vec<ChannelRef> {
        lock(&self.clients).get(&client).cloned().unwrap_or_default()
    }

    /// A session has lost a channel; with the last one it ends, and leaves what is durable.
    pub(super) fn channel_lost(&self, session: &Arc<Session>, channel: &ChannelRef) {
        let none_left = {
            let mut state = session.state();
            state.channels.retain(|other| other.id() != channel.id());
            state.channels.is_empty()
        };
        if none_left {
            self.end_session(session, true);
        }
    }

    pub(super) fn log_end(&self, peer: SocketAddr, why: &Ending) {
        match why {
            Ending::Closed | Ending::Dropped | Ending::Stopped => {}
            why => log::say(format_args!("{peer}: connection ended: {why}")),
        }
    }

    /// Looks at or changes the state of a file, and does what follows for others.
    pub(super) fn with_file<T>(
        &self,
        key: FileKey,
        what: impl FnOnce(&mut Shard, &mut Effects) -> T,
    ) -> T {
        let mut effects = Effects::default();
        let result = {
            let mut shard = lock(&self.files[key.shard(SHARDS)]);
            what(&mut shard, &mut effects)
        };
        if !effects.is_empty() {
            self.act(&mut effects);
        }
        result
    }

    /// Others forget what they have read of a file that is about to be changed through this open, or has been: who was
    /// promised in between that it may keep what it reads may have read what was there before.
    pub(super) fn contend(&self, open: &Open) {
        self.contended(open, Shard::contend);
    }

    /// The same when an open has emptied its file, which was granted for that.
    pub(super) fn contend_as_new(&self, open: &Open) {
        self.contended(open, Shard::contend_as_new);
    }

    /// The same when what an open has begun has ended, which may be closed by now.
    pub(super) fn contend_late(&self, open: &Open) {
        if open.flags.is_cached() || open.is_closed() {
            let (now, key) = (self.now_ms(), open.key);
            self.with_file(key, |shard, effects| shard.contend_late(now, key, open.id, effects));
        }
    }

    fn contended(&self, open: &Open, by: fn(&mut Shard, u64, FileKey, OpenId, &mut Effects)) {
        if open.flags.is_cached() {
            let now = self.now_ms();
            self.with_file(open.key, |shard, effects| by(shard, now, open.key, open.id, effects));
        }
    }

    /// What waited too long ends.
    pub(super) fn expire(&self) {
        let now = self.now_ms();
        for shard in &self.files {
            let mut effects = Effects::default();
            let mut shard = lock(shard);
            if shard.deadline().is_some_and(|deadline| deadline <= now) {
                shard.expire(now, &mut effects);
            }
            drop(shard);
            if !effects.is_empty() {
                self.act(&mut effects);
            }
        }
    }

    /// How much is open.
    pub(super) fn counts(&self) -> files::Counts {
        let mut counts = files::Counts::default();
        self.files.iter().for_each(|shard| counts += lock(shard).counts());
        counts
    }

    fn act(&self, effects: &mut Effects) {
        for this in effects.breaks.drain(..) {
            self.send_break(this);
        }
        for waiter in effects.wake.drain(..) {
            self.wake(waiter, None);
        }
        for (waiter, status) in effects.locked.drain(..) {
            self.wake(waiter, Some(status));
        }
        for Purged { opener, closed, .. } in effects.purged.drain(..) {
            if let Some(open) = self.opens.get(opener.open)
                && open.close()
            {
                self.closed(&open, Some(closed));
            }
        }
    }

    fn wake(&self, waiter: Waiter, result: Option<NtStatus>) {
        let waiting = lock(&self.waiting).get(&waiter).cloned();
        if let Some(waiting) = waiting {
            waiting.wake(result);
        }
    }

    /// Begins to wait for the state of a file to be another one.
    pub(super) fn begin_waiting(self: &Arc<Self>, key: FileKey) -> WaitingFor {
        let waiter = Waiter(self.next_id());
        let waiting = Arc::new(Waiting::default());
        lock(&self.waiting).insert(waiter, waiting.clone());
        WaitingFor { server: self.clone(), key, waiter, waiting }
    }

    fn send_break(&self, this: Break) {
        match this {
            Break::Oplock { session, open, to, acknowledge, .. } => {
                let Some(file) = self.opens.get(open) else { return };
                if let Some(session) = self.session(session) {
                    breaks::oplock(&session, &file, to, acknowledge);
                }
            }
            Break::Lease { client, key, from, to, epoch, acknowledge } => {
                let channels = self.channels_of(client);
                breaks::lease(&channels, client, key, (from, to), epoch, acknowledge);
            }
        }
    }

    /// The lease key names this file, for one more open.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if it names another.
    pub(super) fn claim_lease(
        self: &Arc<Self>,
        client: Guid,
        key: LeaseKey,
        file: FileKey,
    ) -> Result<Claim, NtStatus> {
        lock(&self.leases).claim(client, key, file)?;
        Ok(Claim { server: self.clone(), client, key, kept: false })
    }

    /// The file that a lease key names.
    pub(super) fn lease_file(&self, client: Guid, key: LeaseKey) -> Option<FileKey> {
        lock(&self.leases).file(client, key)
    }

    /// Whether clients may cache what is in a directory.
    pub(super) fn has_directory_leases(&self) -> bool {
        self.config.leases && self.config.directory_leases
    }

    /// Who guesses passwords.
    pub(super) fn limiter(&self) -> MutexGuard<'_, Limiter> {
        lock(&self.limiter)
    }

    /// The number of a session to be: any of 32 bits, as some clients take it for no more, so that nobody who had one
    /// in an earlier run finds another's.
    pub(super) fn next_session_id(&self) -> SessionId {
        let sessions = lock(&self.sessions);
        loop {
            let id = SessionId(u32::from_le_bytes(random()).into());
            if id != SessionId(0) && id.0 != u64::from(u32::MAX) && !sessions.contains_key(&id) {
                return id;
            }
        }
    }

    /// A line for the log.
    pub(super) fn log(&self, peer: SocketAddr, what: &str) {
        log::say(format_args!("{peer}: {what}"));
    }

    /// There is a new session.
    pub(super) fn logged_on(&self, peer: SocketAddr, session: &Session) {
        self.logons.came(session.identity().kind());
        self.audit(peer, session, "logged on");
    }

    /// Somebody has got in, and `how`: a line for the audit log.
    pub(super) fn audit(&self, peer: SocketAddr, session: &Session, how: &str) {
        if !self.config.audit {
            return;
        }
        let who = session.identity();
        let kind = who.kind();
        let unix = match &who.account {
            Some(account) => format!(", Unix user {}", account.unix.uid),
            None => String::new(),
        };
        log::say(format_args!(
            "{peer}: {kind} {:?} of {:?} {how}, session {:#x}, SMB {}{unix}",
            who.user, who.workstation, session.id.0, session.dialect
        ));
    }

    /// Somebody who is who he says has not got into the session of somebody else.
    pub(super) fn refused_channel(&self, peer: SocketAddr, who: &Identity, session: &Session) {
        if self.config.audit {
            log::say(format_args!(
                "{peer}: {:?} of {:?} not let in: session {:#x} is another user's",
                who.user, who.workstation, session.id.0
            ));
        }
    }

    /// Somebody has not got in.
    pub(super) fn refused(&self, peer: SocketAddr, refusal: &Refusal) {
        if refusal.reason.is_guess() {
            let now = Duration::from_millis(self.now_ms());
            self.limiter().failed(&refusal.user, peer.ip(), now);
        }
        self.logons.refused(refusal.reason);
        if self.config.audit {
            log::say(format_args!(
                "{peer}: {:?} of {:?} not let in: {}{}{}",
                refusal.user,
                refusal.workstation,
                refusal.reason,
                if refusal.detail.is_empty() { "" } else { ": " },
                refusal.detail.escape_debug(),
            ));
        }
    }

    /// Closes an open. Its session does not know it any more, or will not in a moment. Who is to say so when all that
    /// follows from it is done, waits for what is returned.
    pub(super) fn close(&self, open: &Arc<Open>) -> Closing {
        if !open.close() {
            return Closing::default();
        }
        let closed = if open.file().is_some() {
            self.with_file(open.key, |shard, effects| shard.close(open.key, open.id, effects))
        } else {
            None
        };
        self.closed(open, closed)
    }

    /// The open is one of another file from now on, which has taken the name of the first: another value of the same
    /// number, as [`Open::turned`] has it.
    ///
    /// # Errors
    ///
    /// FILE_CLOSED if it was closed meanwhile, USER_SESSION_DELETED or NETWORK_NAME_DELETED if its session or its tree
    /// has ended, and what [`Shard::open`] says.
    pub(super) fn turn(
        &self,
        old: &Arc<Open>,
        object: Object,
        channel_sequence: u16,
    ) -> Result<Arc<Open>, NtStatus> {
        let session = self.session(old.session).ok_or(NtStatus::USER_SESSION_DELETED)?;
        let Object::File(file) = &object else { return Err(NtStatus::INVALID_DEVICE_REQUEST) };
        let identity = file.handle.identity();
        let key = FileKey { device: identity.device, inode: identity.inode, stream: 0 };
        let asked = files::Request {
            opener: Opener { client: old.client, session: old.session, open: old.id },
            access: old.access,
            share: old.share,
            created: true,
            delete_on_close: old.options.contains(CreateOptions::DELETE_ON_CLOSE),
            link: super::access::name_hash(old.path().as_str()),
            ..files::Request::default()
        };
        let now = self.now_ms();
        let outcome = self.with_file(key, |shard, effects| shard.open(now, key, &asked, effects));
        let flags = match outcome {
            Outcome::Granted(granted) => granted.flags,
            Outcome::Wait { .. } => return Err(NtStatus::SHARING_VIOLATION),
            Outcome::Refused(status) => return Err(status),
        };
        let new = Arc::new(old.turned(key, object, flags, channel_sequence));
        if !old.close() {
            let closed = self.with_file(key, |shard, effects| shard.close(key, old.id, effects));
            if let Some(delete) = closed.and_then(|closed| closed.delete) {
                // Who has closed it wished the name to go, and found that it was another file's already.
                self.delete(&new, delete);
            }
            return Err(NtStatus::FILE_CLOSED);
        }
        old.tree.share.count_deletion();
        self.with_file(old.key, |shard, effects| {
            // The name that is to go is that of another file now.
            let closed = shard.close(old.key, old.id, effects);
            if let Some(delete) = closed.and_then(|closed| closed.delete) {
                shard.deleted(old.key, delete.link, effects);
            }
        });
        if let Some(lease) = old.lease {
            lock(&self.leases).release(lease.client, lease.key);
        }
        watch::closed(old);
        self.opens.replace(old, &new);
        session.state().opens.insert(new.file_id.volatile, new.clone());
        // Looked at after it was put in: who ends either of them looks for opens after that.
        let gone = session.is_closed();
        if gone || session.tree(new.tree.id).is_none() {
            session.state().opens.remove(&new.file_id.volatile);
            self.close(&new);
            let ended =
                if gone { NtStatus::USER_SESSION_DELETED } else { NtStatus::NETWORK_NAME_DELETED };
            return Err(ended);
        }
        Ok(new)
    }

    /// The client of an open is away: what is durable waits for it, what is not ends.
    pub(super) fn leave(&self, open: &Arc<Open>) -> Closing {
        if open.durable.is_none() || open.file().is_none() {
            return self.close(open);
        }
        let now = self.now_ms();
        if !open.go_away() {
            return Closing::default();
        }
        let left = self.with_file(open.key, |shard, effects| {
            shard.disconnect(now, open.key, open.id, effects)
        });
        match left {
            Err(closed) if open.close() => self.closed(open, closed),
            _ => Closing::default(),
        }
    }

    /// An open has ended: what it alone kept goes.
    fn closed(&self, open: &Arc<Open>, closed: Option<Closed>) -> Closing {
        // Before it is gone: whoever closes the file last finds one or the other.
        if open.options.contains(CreateOptions::DELETE_ON_CLOSE)
            && closed.is_some_and(|closed| !closed.last)
        {
            self.wishes_deletion(open);
        }
        self.opens.remove(open);
        open.tree.opens.fetch_sub(u64::from(!open.is_away()), Ordering::Relaxed);
        if let Some(lease) = open.lease {
            lock(&self.leases).release(lease.client, lease.key);
        }
        watch::closed(open);
        let delete = closed.and_then(|closed| closed.delete);
        let Some(share) = &open.tree.share.files else { return Closing::default() };
        let waits = open.keeps_waiting();
        let is_large = !waits && delete.is_some() && open.is_large();
        let elsewhere = (waits || is_large) && runtime::is_vector();
        if elsewhere && delete.is_none() {
            // What is written may be brought to where the file is when it is closed for good.
            drop(runtime::spawn(aside::let_go(share.clone(), open.object.clone())));
        }
        let tells_folder = self.has_directory_leases();
        if delete.is_none() && !(tells_folder && open.is_changed()) {
            return Closing::default();
        }
        let ending = End {
            open: open.clone(),
            delete: delete.map(|delete| (delete, self.deleter(open, delete))),
            tells_folder,
        };
        if elsewhere && let Some(server) = self.myself.get().and_then(Weak::upgrade) {
            let share = share.clone();
            return Closing::of(runtime::spawn(async move {
                let open = ending.open.clone();
                let ended = match is_large {
                    true => aside::elsewhere(&share, move || ending.run()).await,
                    false => aside::aside_if(&share, open.is_far(), move || ending.run()).await,
                };
                let deleted = ended.removed.is_some();
                server.ended(&open, ended);
                let object = open.object.clone();
                drop(open);
                if deleted {
                    // Some file systems keep it under another name until then.
                    aside::let_go(share, object).await;
                }
            }));
        }
        self.ended(open, share.timed(|| ending.run()));
        Closing::default()
    }

    /// What has become of the file of an open that has ended is known: those are told whom it concerns.
    fn ended(&self, open: &Arc<Open>, ended: Ended) {
        if let Some((delete, removed)) = ended.removed {
            delete::on_last_close(self, open, delete, removed);
        }
        if let Some(folder) = ended.folder {
            self.contend_directory(folder, open);
        }
    }

    /// The file of an open is to go, and who has this open wants it to: they must be allowed to when it goes, even if
    /// it is others who have it open last.
    pub(super) fn wishes_deletion(&self, open: &Open) {
        if self.accounts.is_some() {
            lock(&self.deleters).wish(open.key, link_of(open), open.owner.whose());
        }
    }

    /// It is to stay.
    pub(super) fn wishes_no_deletion(&self, open: &Open) {
        self.forget_deletion(open.key, link_of(open));
    }

    /// A name of the file of this open is another one now.
    pub(super) fn deletion_renamed(&self, open: &Open, from: u64, to: u64) {
        lock(&self.deleters).renamed(open.key, from, to);
    }

    fn delete(&self, open: &Arc<Open>, delete: Delete) {
        let removed = delete::remove(open, delete, &self.deleter(open, delete));
        delete::on_last_close(self, open, delete, removed);
    }

    /// A file is renamed now. `None`: it is being renamed already.
    pub(super) fn begin_rename(self: &Arc<Self>, file: FileKey) -> Option<Renaming> {
        let alone = lock(&self.renaming).insert(file);
        alone.then(|| Renaming { server: self.clone(), file })
    }

    /// A name that was to go has gone already: nobody wishes it any more.
    pub(super) fn forget_deletion(&self, key: FileKey, link: u64) {
        lock(&self.deleters).take(key, link);
    }

    /// On whose behalf a name goes with its last open.
    fn deleter(&self, open: &Open, delete: Delete) -> Whose {
        let key = FileKey { stream: delete.stream, ..open.key };
        // One that is about to say so.
        let closing = self.opens.get(delete.by.open).map(|open| open.owner.whose());
        let noted = lock(&self.deleters).take(key, delete.link);
        noted.or(closing).unwrap_or_else(|| open.owner.whose())
    }

    /// What a directory says of the file of this open is another thing now: who caches the directory is told,
    /// but for the client that says by the open's lease that it knows (MS-SMB2 3.3.4.20).
    pub(super) async fn directory_changed(&self, open: &Arc<Open>) {
        let Some(share) = &open.tree.share.files else { return };
        if !self.has_directory_leases() {
            return;
        }
        let this = open.clone();
        if let Some(folder) = aside::aside_if(share, open.is_far(), move || this.folder()).await {
            self.contend_directory(folder, open);
        }
    }

    /// The entries of a directory have changed: who caches them is told, but for who has changed them by this open.
    pub(super) fn contend_directory(&self, folder: FileKey, by: &Open) {
        let by = by.lease.and_then(|lease| Some((lease.client, lease.parent?)));
        let now = self.now_ms();
        self.with_file(folder, |shard, effects| {
            shard.contend_directory(now, folder, by, effects);
        });
    }
}

/// The name of the file of an open, as the state of files knows it.
fn link_of(open: &Open) -> u64 {
    super::access::name_hash(open.path().as_str())
}

/// The only rename of a file at the moment; the next may begin when this is dropped.
pub(super) struct Renaming {
    server: Arc<Server>,
    file: FileKey,
}

impl Drop for Renaming {
    fn drop(&mut self) {
        lock(&self.server.renaming).remove(&self.file);
    }
}

/// A place among those who wait; given up when dropped.
pub(super) struct WaitingFor {
    server: Arc<Server>,
    key: FileKey,
    pub(super) waiter: Waiter,
    pub(super) waiting: Arc<Waiting>,
}

impl Drop for WaitingFor {
    fn drop(&mut self) {
        lock(&self.server.waiting).remove(&self.waiter);
        let key = self.key;
        self.server.with_file(key, |shard, _| shard.forget(key, self.waiter));
    }
}

/// A lease key that names a file for an open to be; free again when dropped.
pub(super) struct Claim {
    server: Arc<Server>,
    client: Guid,
    key: LeaseKey,
    kept: bool,
}

impl Claim {
    /// It belongs to an open from now on, and is released when that has ended.
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.kept {
            lock(&self.server.leases).release(self.client, self.key);
        }
    }
}

/// A dialect's place in what a server says of itself.
pub(super) fn newest(dialects: &[Dialect]) -> Option<Dialect> {
    dialects.iter().copied().max()
}

#[cfg(test)]
pub(super) mod tests {
    use smb::name::Path;
    use smb::{Access, CreateAction, ShareAccess};

    use super::super::fs::{Create, Found, Special, Want};
    use super::super::open::{Durable, FileObject, Given};
    use super::super::start::points;
    use super::*;

    /// A session of a server that nobody can connect to, and its open of a new file that is to go with it.
    pub(in super::super) fn opened(folder: &std::path::Path) -> (Server, Arc<Session>, Arc<Open>) {
        let shares = points(&[ShareConfig::new("files", folder)], &BTreeMap::new()).0;
        let point = shares["FILES"].clone();
        let server = Server::new(Config::default(), shares, UserFile::default(), None, None);
        let session = Arc::new(Session::of_nobody());
        server.add_session(&session).unwrap();
        let tree = session.connect(point.clone(), 1).unwrap();
        let path = Path::parse_str("file").unwrap();
        let found = point.files.as_ref().unwrap().open(&path, Want::default()).unwrap();
        let Found::Missing(vacancy) = found else { panic!("a file that is not there") };
        let how = Create { folder: false, attributes: smb::Attributes::empty(), mode: None };
        let handle = vacancy.create(how).unwrap();
        let identity = handle.identity();
        let key = FileKey { device: identity.device, inode: identity.inode, stream: 0 };
        let id = OpenId(server.next_id());
        let asked = files::Request {
            opener: Opener { client: session.client, session: session.id, open: id },
            access: Access::FILE_ALL,
            share: ShareAccess::all(),
            created: true,
            delete_on_close: true,
            link: super::super::access::name_hash(path.as_str()),
            ..files::Request::default()
        };
        let outcome = server.with_file(key, |shard, effects| shard.open(0, key, &asked, effects));
        let Outcome::Granted(granted) = outcome else { panic!("nobody else has it") };
        let object = Object::File(Arc::new(FileObject::new(Arc::new(handle), None)));
        let given = Given {
            key,
            options: CreateOptions::DELETE_ON_CLOSE,
            flags: granted.flags,
            action: CreateAction::Created,
            durable: Some(Durable::default()),
            ..Given::plain(id, &session, tree.clone(), object)
        };
        let open = Arc::new(Open::new(given, 0, path));
        server.opens.add(&open);
        tree.opens.fetch_add(1, Ordering::Relaxed);
        session.state().opens.insert(open.file_id.volatile, open.clone());
        (server, session, open)
    }

    #[test]
    fn who_leaves_or_is_purged_has_wished_that_it_goes_as_who_closes_has() {
        type End = fn(&Server, &Arc<Open>);
        let leave: End = |server, open| drop(server.leave(open));
        let purge: End = |server, open| {
            server.with_file(open.key, |shard, effects| {
                let closed = shard.close(open.key, open.id, effects).unwrap();
                let opener = Opener { client: open.client, session: open.session, open: open.id };
                effects.purged.push(Purged { key: open.key, opener, lease: None, closed });
            });
        };
        let close: End = |server, open| drop(server.close(open));
        for (way, end) in [close, leave, purge].into_iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            let (mut server, _session, open) = opened(folder.path());
            match Accounts::new() {
                Ok(accounts) => server.accounts = Some(Arc::new(accounts)),
                Err(error) => return println!("skipped: {error}"),
            }
            let (key, link) = (open.key, link_of(&open));
            let other = OpenId(server.next_id());
            let asked = files::Request {
                opener: Opener { client: open.client, session: open.session, open: other },
                access: Access::READ_DATA,
                share: ShareAccess::all(),
                link,
                ..files::Request::default()
            };
            let outcome =
                server.with_file(key, |shard, effects| shard.open(0, key, &asked, effects));
            assert!(matches!(outcome, Outcome::Granted(_)), "{outcome:?}");
            end(&server, &open);
            assert!(open.is_closed(), "{way}");
            assert!(lock(&server.deleters).take(key, link).is_some(), "{way}");
        }
    }

    /// What it has become on disk.
    fn turned(open: &Open) -> Object {
        let handle = open.file().unwrap().turn_into(&Special::Fifo, |_| Ok(())).unwrap();
        Object::File(Arc::new(FileObject::new(Arc::new(handle), None)))
    }

    #[test]
    fn an_open_that_is_turned_is_of_the_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let (server, session, open) = opened(folder.path());
        let new = server.turn(&open, turned(&open), 0).unwrap();
        assert!(new.key != open.key && new.file_id == open.file_id);
        assert!(Arc::ptr_eq(&session.open(new.file_id.volatile).unwrap(), &new));
        assert_eq!((server.counts().opens, server.counts().files), (1, 1));
        server.close(&new);
        assert_eq!((server.counts().opens, server.counts().files), (0, 0));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "deleted on close");
        assert_eq!(new.tree.opens.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_closed_while_it_turns_goes_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (server, _session, open) = opened(folder.path());
        let object = turned(&open);
        server.close(&open);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "another file by now");
        assert_eq!(server.turn(&open, object, 0).err(), Some(NtStatus::FILE_CLOSED));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!((server.counts().opens, server.counts().files), (0, 0), "nothing waits to go");
        assert_eq!(open.tree.opens.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_turns_while_its_tree_ends_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let (server, session, open) = opened(folder.path());
        let object = turned(&open);
        // As a TREE_DISCONNECT on another channel does, which has found the open already.
        session.state().end_trees(|_| true);
        assert_eq!(server.turn(&open, object, 0).err(), Some(NtStatus::NETWORK_NAME_DELETED));
        assert!(session.state().opens.is_empty() && server.opens.get(open.id).is_none());
        assert_eq!((server.counts().opens, server.counts().files), (0, 0));
        assert_eq!(open.tree.opens.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_connection_goes_where_there_are_fewest() {
        let seats = |taken: [usize; 3]| taken.map(AtomicUsize::new);
        assert_eq!(least(&seats([0, 0, 0]), 1), 1, "it need not move");
        assert_eq!(least(&seats([1, 2, 1]), 2), 2);
        assert_eq!(least(&seats([1, 2, 1]), 1), 0);
        assert_eq!(least(&seats([3, 2, 1]), 0), 2);
    }
}
