//! The files of one part of all (device, inode) pairs.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::effects::{Closed, Delete, Effects, Granted, LockOutcome, Outcome};
use super::key::{FileKey, OpenId, Opener, Waiter, mix};
use super::limits::{Counts, Limits};
use super::locks::{LockElement, LockFlags, Locks};
use super::record::{Doomed, File, Held};
use super::request::Request;
use crate::{Guid, LeaseKey, LeaseState, NtStatus, OplockLevel};

/// The two numbers that name a file, mixed. They are the file system's choice, not a client's.
#[derive(Debug, Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix(self.0, u64::from(*byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = mix(self.0, n);
    }
}

/// Some of the files that are open. Put it behind a lock; [`FileKey::shard`] says which one has a file.
///
/// Times are milliseconds on a clock that does not go back.
#[derive(Debug)]
pub struct Shard {
    limits: Limits,
    index: HashMap<(u64, u64), usize, BuildHasherDefault<Mixer>>,
    /// A slot that is free keeps the memory of its lists for the next file.
    files: Vec<File>,
    free: Vec<usize>,
    opens: usize,
    /// Byte-range locks, granted and waited for.
    locks: usize,
    /// (when, device, inode), at most one of each file: what [`expire`](Self::expire) looks at. There may be
    /// nothing to expire any more when the time comes.
    deadlines: BTreeSet<(u64, u64, u64)>,
}

impl Shard {
    /// A shard in which nothing is open.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            index: HashMap::default(),
            files: Vec::new(),
            free: Vec::new(),
            opens: 0,
            locks: 0,
            deadlines: BTreeSet::new(),
        }
    }

    /// Opens a file that is there, or has just been created.
    ///
    /// A lease key has been claimed before, with [`Leases::claim`](super::Leases::claim).
    pub fn open(
        &mut self,
        now_ms: u64,
        key: FileKey,
        request: &Request,
        fx: &mut Effects,
    ) -> Outcome {
        if self.opens >= self.limits.opens {
            return Outcome::Refused(NtStatus::INSUFFICIENT_RESOURCES);
        }
        let slot = self.slot(key);
        let limits = self.limits;
        let outcome = self.change(slot, |file| file.open(now_ms, key, request, &limits, fx));
        self.settle(slot);
        outcome
    }

    /// Ends an open. `None`: there is no such open.
    pub fn close(&mut self, key: FileKey, open: OpenId, fx: &mut Effects) -> Option<Closed> {
        self.with_open(key, open, |file, at, _| file.remove(at, fx))
    }

    /// The name that [`Closed::delete`] said to remove is gone, or could not be removed.
    pub fn deleted(&mut self, key: FileKey, link: u64, fx: &mut Effects) {
        let Some(slot) = self.find(key) else { return };
        self.change(slot, |file| {
            file.doomed
                .retain(|d| !(d.going && d.delete.link == link && d.delete.stream == key.stream));
            file.wake(fx);
        });
        self.settle(slot);
    }

    /// An oplock break acknowledgment (MS-SMB2 3.3.5.22.1). Returns the level that the answer says.
    ///
    /// # Errors
    /// INVALID_OPLOCK_PROTOCOL if it is not being broken, INVALID_PARAMETER for a level that is none to break
    /// to, FILE_CLOSED.
    pub fn acknowledge_oplock(
        &mut self,
        key: FileKey,
        open: OpenId,
        level: OplockLevel,
        fx: &mut Effects,
    ) -> Result<OplockLevel, NtStatus> {
        let slot = self.find(key).ok_or(NtStatus::FILE_CLOSED)?;
        self.change(slot, |file| file.acknowledge_oplock(open, level, fx))
    }

    /// A lease break acknowledgment (MS-SMB2 3.3.5.22.2). The file is the one that
    /// [`Leases::file`](super::Leases::file) names. Returns the state that the answer says.
    ///
    /// # Errors
    /// OBJECT_NAME_NOT_FOUND if there is no such lease, UNSUCCESSFUL if it is not being broken,
    /// REQUEST_NOT_ACCEPTED if more is kept than was offered.
    pub fn acknowledge_lease(
        &mut self,
        now_ms: u64,
        file: FileKey,
        lease: (Guid, LeaseKey),
        state: LeaseState,
        fx: &mut Effects,
    ) -> Result<LeaseState, NtStatus> {
        let slot = self.find(file).ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
        let limits = self.limits;
        self.change(slot, |f| f.acknowledge_lease(now_ms, lease, file, state, &limits, fx))
    }

    /// What the oplock of an open is being broken to; `None` once that is acknowledged, or over.
    #[must_use]
    pub fn breaking_oplock(&self, key: FileKey, open: OpenId) -> Option<OplockLevel> {
        let file = &self.files[self.find(key)?];
        file.opens[file.position(open)?].breaking.map(|(to, _)| to)
    }

    /// What a lease is being broken to, in the step that its client was told of last; `None` once that is
    /// acknowledged, or over.
    #[must_use]
    pub fn breaking_lease(&self, key: FileKey, lease: (Guid, LeaseKey)) -> Option<LeaseState> {
        let file = &self.files[self.find(key)?];
        let at = file.find_lease(lease.0, lease.1, key.stream)?;
        file.leases[at].breaking.map(|breaking| breaking.requested)
    }

    /// An open is about to write, to change the size, or the like: others forget what they have read. Nobody
    /// is waited for.
    pub fn contend(&mut self, now_ms: u64, key: FileKey, open: OpenId, fx: &mut Effects) {
        self.with_open(key, open, |file, at, limits| file.contend(now_ms, at, false, limits, fx));
    }

    /// [`contend`](Self::contend) after what goes on when its open has been closed: then nobody is spared.
    pub fn contend_late(&mut self, now_ms: u64, key: FileKey, open: OpenId, fx: &mut Effects) {
        let there = self
            .with_open(key, open, |file, at, limits| file.contend(now_ms, at, false, limits, fx));
        if there.is_some() {
            return;
        }
        let Some(slot) = self.find(key) else { return };
        let limits = self.limits;
        let stream = key.stream;
        self.change(slot, |file| file.contend_others(now_ms, stream, None, None, &limits, fx));
        self.settle(slot);
    }

    /// [`contend`](Self::contend) of an open that was granted to empty the file, which is empty now: what it was promised
    /// it keeps.
    pub fn contend_as_new(&mut self, now_ms: u64, key: FileKey, open: OpenId, fx: &mut Effects) {
        self.with_open(key, open, |file, at, limits| file.contend(now_ms, at, true, limits, fx));
    }

    /// An open is about to be renamed, or to be deleted: others close the handles that they only cache.
    /// `Some`: wait until then at most, and ask again.
    ///
    /// # Errors
    /// FILE_CLOSED, INSUFFICIENT_RESOURCES if too many wait.
    pub fn contend_handles(
        &mut self,
        now_ms: u64,
        key: FileKey,
        open: OpenId,
        waiter: Waiter,
        fx: &mut Effects,
    ) -> Result<Option<u64>, NtStatus> {
        let contend = self.with_open(key, open, |file, at, limits| {
            if file.contend_handles(now_ms, Some(at), limits, fx) {
                file.wait_handles(waiter, limits)
            } else {
                Ok(None)
            }
        });
        contend.unwrap_or(Err(NtStatus::FILE_CLOSED))
    }

    /// [`contend_handles`](Self::contend_handles) for somebody who has the file not open: it is to be replaced,
    /// or a directory above it is to be renamed. `Some`: wait until then at most, and ask again.
    ///
    /// # Errors
    /// INSUFFICIENT_RESOURCES if too many wait.
    pub fn contend_all_handles(
        &mut self,
        now_ms: u64,
        key: FileKey,
        waiter: Waiter,
        fx: &mut Effects,
    ) -> Result<Option<u64>, NtStatus> {
        let Some(slot) = self.find(key) else { return Ok(None) };
        let limits = self.limits;
        let result = self.change(slot, |file| {
            if file.contend_handles(now_ms, None, &limits, fx) {
                file.wait_handles(waiter, &limits)
            } else {
                Ok(None)
            }
        });
        self.settle(slot);
        result
    }

    /// The entries of a directory have changed: breaks what others cache of it. Whose open changed them is
    /// spared, by the parent lease key that came with it (MS-SMB2 3.3.4.20). Nobody is waited for.
    pub fn contend_directory(
        &mut self,
        now_ms: u64,
        directory: FileKey,
        by: Option<(Guid, LeaseKey)>,
        fx: &mut Effects,
    ) {
        let Some(slot) = self.find(directory) else { return };
        let limits = self.limits;
        self.change(slot, |file| file.contend_directory(now_ms, by, &limits, fx));
    }

    /// FileDispositionInformation: the name goes with its last open, or it does not after all. Whether it may
    /// be removed at all has been looked at.
    ///
    /// # Errors
    /// FILE_CLOSED.
    pub fn set_delete_pending(
        &mut self,
        key: FileKey,
        open: OpenId,
        pending: bool,
    ) -> Result<(), NtStatus> {
        let set = self.with_open(key, open, |file, at, _| {
            let open = &file.opens[at];
            let delete = Delete { by: open.opener, link: open.link, stream: open.stream };
            if pending {
                file.doom(delete, None);
            } else {
                file.doomed.retain(|d| {
                    d.going || d.delete.link != delete.link || d.delete.stream != delete.stream
                });
            }
        });
        set.ok_or(NtStatus::FILE_CLOSED)
    }

    /// FileDispositionInformationEx with FILE_DISPOSITION_POSIX_SEMANTICS: the name goes with this open, and whoever
    /// else has the file open keeps it without a name.
    ///
    /// # Errors
    /// FILE_CLOSED.
    pub fn set_delete_with(&mut self, key: FileKey, open: OpenId) -> Result<(), NtStatus> {
        let set = self.with_open(key, open, |file, at, _| {
            let open = &file.opens[at];
            let delete = Delete { by: open.opener, link: open.link, stream: open.stream };
            file.doom(delete, Some(open.opener.open));
        });
        set.ok_or(NtStatus::FILE_CLOSED)
    }

    /// Another file is about to take a name from this one: who opens it by that name waits until [`Self::deleted`] says
    /// that it has, or not.
    pub fn begin_replacement(&mut self, key: FileKey, link: u64, by: Opener) {
        let slot = self.slot(key);
        let delete = Delete { by, link, stream: key.stream };
        let doomed = Doomed { delete, with: None, going: true, replaced: true };
        self.change(slot, |file| file.doomed.push(doomed));
    }

    /// Whether a name goes with its last open: what FileStandardInformation says, and a reason to refuse.
    #[must_use]
    pub fn is_delete_pending(&self, key: FileKey, link: u64) -> bool {
        self.find(key).is_some_and(|slot| self.files[slot].is_doomed(key.stream, link))
    }

    /// The name by which this open and others were opened is another one now.
    pub fn renamed(&mut self, key: FileKey, open: OpenId, link: u64) {
        self.with_open(key, open, |file, at, _| {
            let old = file.opens[at].link;
            file.opens.iter_mut().filter(|o| o.link == old).for_each(|o| o.link = link);
            file.doomed
                .iter_mut()
                .filter(|d| d.delete.link == old)
                .for_each(|d| d.delete.link = link);
        });
    }

    /// Locks or unlocks byte ranges (MS-SMB2 3.3.5.14).
    pub fn lock(
        &mut self,
        now_ms: u64,
        key: FileKey,
        open: OpenId,
        elements: &[LockElement],
        waiter: Waiter,
        fx: &mut Effects,
    ) -> LockOutcome {
        let room = self.limits.locks.saturating_sub(self.locks);
        let outcome = self.with_open(key, open, |file, at, limits| {
            let opened = &mut file.opens[at];
            if opened.directory {
                return LockOutcome::Refused(NtStatus::INVALID_DEVICE_REQUEST);
            }
            let owner = (open, opened.stream);
            let locks = file.locks.get_or_insert_with(Box::<Locks>::default);
            let most = limits.locks_per_file.min(locks.all() + room);
            let fewer = Limits { locks_per_file: most, ..*limits };
            let outcome = locks.request(owner, elements, waiter, &mut opened.locks, &fewer);
            if elements.first().is_some_and(|e| e.flags == LockFlags::UNLOCK) {
                // Those before one that is wrong have been unlocked all the same.
                file.grant_locks(fx);
            } else if outcome == LockOutcome::Done {
                file.contend(now_ms, at, false, limits, fx);
            }
            file.refresh();
            outcome
        });
        outcome.unwrap_or(LockOutcome::Refused(NtStatus::FILE_CLOSED))
    }

    /// Forgets one who waits for a lock. `false`: what became of it is known already, and stands in
    /// [`Effects::locked`] of some call.
    pub fn cancel_lock(&mut self, key: FileKey, waiter: Waiter) -> bool {
        let Some(slot) = self.find(key) else { return false };
        self.change(slot, |file| {
            let Some(open) = file.locks.as_mut().and_then(|locks| locks.cancel(waiter)) else {
                return false;
            };
            if let Some(at) = file.position(open) {
                file.opens[at].locks -= 1;
            }
            true
        })
    }

    /// Whether an open may read or write a range. Not needed while [`Flags`](super::Flags) says that there is
    /// no lock.
    ///
    /// # Errors
    /// FILE_LOCK_CONFLICT.
    pub fn check_io(
        &self,
        key: FileKey,
        open: OpenId,
        offset: u64,
        length: u64,
        write: bool,
    ) -> Result<(), NtStatus> {
        let locks = self.find(key).and_then(|slot| self.files[slot].locks.as_ref());
        match locks {
            Some(locks) if locks.conflicts_with_io(open, key.stream, (offset, length), write) => {
                Err(NtStatus::FILE_LOCK_CONFLICT)
            }
            _ => Ok(()),
        }
    }

    /// Forgets one who waits to open, to rename or to delete.
    pub fn forget(&mut self, key: FileKey, waiter: Waiter) {
        if let Some(slot) = self.find(key) {
            self.files[slot].waiters.retain(|w| *w != waiter);
        }
    }

    /// The client of an open is gone, without having closed it. `Ok`: it stays for its client until then, at
    /// most. `Err`: it has ended.
    ///
    /// # Errors
    /// `None`: there is no such open.
    pub fn disconnect(
        &mut self,
        now_ms: u64,
        key: FileKey,
        open: OpenId,
        fx: &mut Effects,
    ) -> Result<u64, Option<Closed>> {
        match self.with_open(key, open, |file, at, _| file.disconnect(now_ms, at, fx)) {
            Some(Ok(until_ms)) => Ok(until_ms),
            Some(Err(closed)) => Err(Some(closed)),
            None => Err(None),
        }
    }

    /// The client of a disconnected open is back, with its lease key if it had one. Whether it is the same
    /// user, and what else is to be compared (MS-SMB2 3.3.5.9.7, 3.3.5.9.12), has been looked at.
    ///
    /// # Errors
    /// OBJECT_NAME_NOT_FOUND if there is no such open, it has a client, or its lease is another one.
    pub fn reconnect(
        &mut self,
        key: FileKey,
        opener: Opener,
        lease: Option<LeaseKey>,
    ) -> Result<Granted, NtStatus> {
        let slot = self.find(key).ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
        self.change(slot, |file| file.reconnect(opener.open, opener, lease))
    }

    /// What an open has now, as when it was granted; of an oplock whose client does not know of it yet, what is left.
    #[must_use]
    pub fn granted(&self, key: FileKey, open: OpenId) -> Option<Granted> {
        let file = &self.files[self.find(key)?];
        Some(file.granted(file.position(open)?))
    }

    /// [`granted`](Self::granted), of which the client is told now: it hears of breaks from here on (see
    /// [`Request::untold`](super::Request::untold)), and those that have begun before need no acknowledgment.
    pub fn tell(&mut self, key: FileKey, open: OpenId, fx: &mut Effects) -> Option<Granted> {
        self.with_open(key, open, |file, at, _| file.tell(at, fx))
    }

    /// What has waited too long ends: breaks are taken as acknowledged, disconnected opens are purged.
    /// Returns when to call again.
    pub fn expire(&mut self, now_ms: u64, fx: &mut Effects) -> Option<u64> {
        while let Some((at_ms, device, inode)) = self.deadlines.first().copied() {
            if at_ms > now_ms {
                break;
            }
            self.deadlines.pop_first();
            let key = FileKey { device, inode, stream: 0 };
            let Some(slot) = self.find(key) else { continue };
            self.files[slot].scheduled = None;
            self.change(slot, |file| {
                file.expire_breaks(now_ms, fx);
                file.expire_opens(now_ms, fx);
                file.armed = file.next_deadline();
            });
            self.settle(slot);
        }
        self.deadline()
    }

    /// When to call [`expire`](Self::expire): at this time, or never.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at_ms, ..)| *at_ms)
    }

    /// How much there is. Looks at every open.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.index.values().for_each(|slot| self.files[*slot].count(&mut counts));
        counts
    }

    /// Every open, in no order.
    pub fn held(&self) -> impl Iterator<Item = Held> + '_ {
        self.index.values().flat_map(|slot| {
            let file = &self.files[*slot];
            file.opens.iter().map(|open| file.held(open))
        })
    }

    /// Every open of one file, whichever of its streams.
    pub fn held_of(&self, key: FileKey) -> impl Iterator<Item = Held> + '_ {
        let file = self.find(key).map(|slot| &self.files[slot]);
        file.into_iter().flat_map(|file| file.opens.iter().map(|open| file.held(open)))
    }

    fn find(&self, key: FileKey) -> Option<usize> {
        self.index.get(&(key.device, key.inode)).copied()
    }

    /// The slot of a file, a new one if nobody has it open.
    fn slot(&mut self, key: FileKey) -> usize {
        let (files, free) = (&mut self.files, &mut self.free);
        *self.index.entry((key.device, key.inode)).or_insert_with(|| {
            let slot = free.pop().unwrap_or_else(|| {
                files.push(File::default());
                files.len() - 1
            });
            files[slot].device = key.device;
            files[slot].inode = key.inode;
            slot
        })
    }

    /// Changes a file, and takes note of what that means for the shard.
    fn change<T>(&mut self, slot: usize, change: impl FnOnce(&mut File) -> T) -> T {
        let file = &mut self.files[slot];
        let locks = |file: &File| file.locks.as_ref().map_or(0, |locks| locks.all());
        let before = (file.opens.len(), locks(file));
        let result = change(file);
        self.opens = self.opens + file.opens.len() - before.0;
        self.locks = self.locks + locks(file) - before.1;
        if let Some(armed) = file.armed.take()
            && file.scheduled.is_none_or(|scheduled| armed < scheduled)
        {
            if let Some(later) = file.scheduled.replace(armed) {
                self.deadlines.remove(&(later, file.device, file.inode));
            }
            self.deadlines.insert((armed, file.device, file.inode));
        }
        result
    }

    fn with_open<T>(
        &mut self,
        key: FileKey,
        open: OpenId,
        change: impl FnOnce(&mut File, usize, &Limits) -> T,
    ) -> Option<T> {
        let slot = self.find(key)?;
        let at = self.files[slot].position(open)?;
        let limits = self.limits;
        let result = self.change(slot, |file| change(file, at, &limits));
        self.settle(slot);
        Some(result)
    }

    /// Gives the slot of a file that nobody has open to the next.
    fn settle(&mut self, slot: usize) {
        let file = &mut self.files[slot];
        if !file.is_idle() {
            return;
        }
        if let Some(at_ms) = file.scheduled.take() {
            self.deadlines.remove(&(at_ms, file.device, file.inode));
        }
        self.index.remove(&(file.device, file.inode));
        file.leases.clear();
        file.waiters.clear();
        file.locks = None;
        file.flags.set(false, false);
        self.free.push(slot);
    }
}
