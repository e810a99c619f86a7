//! One file that is open: its opens, leases, and what is to be deleted.

use std::sync::Arc;

use super::effects::{Closed, Delete, Effects};
use super::flags::Flags;
use super::key::{FileKey, OpenId, Opener, Waiter};
use super::limits::Counts;
use super::locks::Locks;
use super::request::{Durability, LeaseVersion};
use crate::{Access, Guid, LeaseKey, LeaseState, NtStatus, OplockLevel, ShareAccess};

#[derive(Debug)]
pub(super) struct Open {
    pub(super) opener: Opener,
    pub(super) access: Access,
    pub(super) share: ShareAccess,
    pub(super) stream: u64,
    pub(super) link: u64,
    pub(super) oplock: OplockLevel,
    /// What the oplock is being broken to, and until when.
    pub(super) breaking: Option<(OplockLevel, u64)>,
    /// Its client does not know of it yet, nor of its oplock.
    pub(super) untold: bool,
    /// In `File::leases`.
    pub(super) lease: Option<usize>,
    pub(super) delete_on_close: bool,
    pub(super) directory: bool,
    pub(super) durability: Durability,
    /// Its client is away, until then at most.
    pub(super) away_until: Option<u64>,
    /// Byte-range locks, granted and waited for.
    pub(super) locks: u32,
}

/// A break that the client has not acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Breaking {
    /// What the client was told to break to.
    pub(super) requested: LeaseState,
    /// What is needed by now: less, if others came while it was being broken.
    pub(super) required: LeaseState,
    pub(super) deadline_ms: u64,
}

#[derive(Debug)]
pub(super) struct Lease {
    pub(super) client: Guid,
    pub(super) key: LeaseKey,
    pub(super) stream: u64,
    pub(super) state: LeaseState,
    pub(super) breaking: Option<Breaking>,
    pub(super) epoch: u16,
    pub(super) version: LeaseVersion,
    /// The opens that have it. 0: the slot is free.
    pub(super) opens: u32,
}

/// A name that goes when its last open does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doomed {
    pub(super) delete: Delete,
    /// It goes with this open already, whoever else has it open.
    pub(super) with: Option<OpenId>,
    /// The last open is gone, or another file takes the name; the caller is at it.
    pub(super) going: bool,
    /// It is the latter: who opens by that name waits for what has it then.
    pub(super) replaced: bool,
}

#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) device: u64,
    pub(super) inode: u64,
    pub(super) opens: Vec<Open>,
    pub(super) leases: Vec<Lease>,
    pub(super) doomed: Vec<Doomed>,
    /// Opens that wait for a break.
    pub(super) waiters: Vec<Waiter>,
    pub(super) locks: Option<Box<Locks>>,
    pub(super) flags: Arc<Flags>,
    /// The earliest time at which `expire` has something to do.
    pub(super) armed: Option<u64>,
    /// The earliest time that the shard knows of.
    pub(super) scheduled: Option<u64>,
}

/// What an oplock lets its holder cache, in the words of leases.
pub(super) fn cached_by(oplock: OplockLevel) -> LeaseState {
    match oplock {
        OplockLevel::None | OplockLevel::Lease => LeaseState::empty(),
        OplockLevel::Two => LeaseState::READ,
        OplockLevel::Exclusive => LeaseState::READ | LeaseState::WRITE,
        OplockLevel::Batch => LeaseState::all(),
    }
}

impl File {
    pub(super) fn is_idle(&self) -> bool {
        self.opens.is_empty() && self.doomed.is_empty()
    }

    pub(super) fn position(&self, open: OpenId) -> Option<usize> {
        self.opens.iter().position(|o| o.opener.open == open)
    }

    /// What an open may cache.
    pub(super) fn caches(&self, open: &Open) -> LeaseState {
        match open.lease.and_then(|lease| self.leases.get(lease)) {
            Some(lease) => lease.state,
            None => cached_by(open.oplock),
        }
    }

    /// The lease of an open, if it has one.
    pub(super) fn lease_of(&self, at: usize) -> Option<&Lease> {
        self.leases.get(self.opens.get(at)?.lease?)
    }

    pub(super) fn find_lease(&self, client: Guid, key: LeaseKey, stream: u64) -> Option<usize> {
        self.leases
            .iter()
            .position(|l| l.opens > 0 && l.key == key && l.client == client && l.stream == stream)
    }

    pub(super) fn arm(&mut self, at_ms: u64) {
        self.armed = Some(self.armed.map_or(at_ms, |armed| armed.min(at_ms)));
    }

    /// Says again what READ and WRITE may skip.
    pub(super) fn refresh(&self) {
        let locked = self.locks.as_ref().is_some_and(|locks| !locks.is_empty());
        // Who may write what it has read is alone: its own writes concern nobody.
        let shared = |state: LeaseState| {
            state.contains(LeaseState::READ) && !state.contains(LeaseState::WRITE)
        };
        let cached = self.leases.iter().any(|l| l.opens > 0 && shared(l.state))
            || self.opens.iter().any(|o| o.oplock == OplockLevel::Two);
        self.flags.set(locked, cached);
    }

    pub(super) fn wake(&mut self, fx: &mut Effects) {
        fx.wake.append(&mut self.waiters);
    }

    pub(super) fn is_doomed(&self, stream: u64, link: u64) -> bool {
        self.doomed
            .iter()
            .any(|d| d.delete.link == link && (d.delete.stream == 0 || d.delete.stream == stream))
    }

    /// Whether another file is taking this name.
    pub(super) fn is_being_replaced(&self, link: u64) -> bool {
        self.doomed.iter().any(|d| d.replaced && d.delete.link == link)
    }

    /// The stream of an open goes when its last open does, or already with `with`.
    pub(super) fn doom(&mut self, delete: Delete, with: Option<OpenId>) {
        let known = |d: &&mut Doomed| {
            !d.replaced && d.delete.link == delete.link && d.delete.stream == delete.stream
        };
        match self.doomed.iter_mut().find(known) {
            Some(doomed) => doomed.with = with.or(doomed.with),
            None => self.doomed.push(Doomed { delete, with, going: false, replaced: false }),
        }
    }

    /// Ends an open.
    pub(super) fn remove(&mut self, at: usize, fx: &mut Effects) -> Closed {
        let open = self.opens.remove(at);
        if let Some(lease) = open.lease.and_then(|lease| self.leases.get_mut(lease)) {
            lease.opens -= 1;
        }
        if open.locks > 0 {
            self.unlock_all(open.opener.open, fx);
        }
        if open.delete_on_close {
            self.doom(Delete { by: open.opener, link: open.link, stream: open.stream }, None);
        }
        let delete = self.due(open.link, open.opener.open);
        self.refresh();
        self.wake(fx);
        Closed { delete, last: self.opens.is_empty() }
    }

    /// The doomed name whose last open is gone, or the one that it goes with. The file goes before its streams, and
    /// they with it.
    fn due(&mut self, link: u64, closed: OpenId) -> Option<Delete> {
        let opens = &self.opens;
        let holds = |d: &Doomed, o: &Open| {
            o.link == link && (d.delete.stream == 0 || o.stream == d.delete.stream)
        };
        let free = |d: &Doomed| {
            !d.going
                && d.delete.link == link
                && (d.with == Some(closed) || !opens.iter().any(|o| holds(d, o)))
        };
        let at = (0..self.doomed.len())
            .filter(|at| free(&self.doomed[*at]))
            .min_by_key(|at| self.doomed[*at].delete.stream != 0)?;
        self.doomed[at].going = true;
        let delete = self.doomed[at].delete;
        if delete.stream == 0 {
            self.doomed.retain(|d| d.delete.link != link || d.delete.stream == 0);
        }
        Some(delete)
    }

    fn unlock_all(&mut self, open: OpenId, fx: &mut Effects) {
        if let Some(locks) = &mut self.locks {
            locks.remove_open(open, &mut |waiter| {
                fx.locked.push((waiter, NtStatus::RANGE_NOT_LOCKED));
            });
        }
        self.grant_locks(fx);
    }

    /// Gives locks that have become free to those who wait for them, in their order.
    pub(super) fn grant_locks(&mut self, fx: &mut Effects) {
        let Some(locks) = &mut self.locks else { return };
        locks.grant_waiting(&mut |waiter| fx.locked.push((waiter, NtStatus::SUCCESS)));
    }

    pub(super) fn count(&self, counts: &mut Counts) {
        let oplock = |o: &&Open| cached_by(o.oplock) != LeaseState::empty();
        let leases = || self.leases.iter().filter(|l| l.opens > 0);
        counts.files += 1;
        counts.opens += self.opens.len();
        counts.disconnected += self.opens.iter().filter(|o| o.away_until.is_some()).count();
        counts.oplocks += self.opens.iter().filter(oplock).count();
        counts.leases += leases().filter(|l| !l.state.is_empty()).count();
        counts.breaking += leases().filter(|l| l.breaking.is_some()).count();
        counts.breaking += self.opens.iter().filter(|o| o.breaking.is_some()).count();
        counts.waiters += self.waiters.len();
        if let Some(locks) = &self.locks {
            counts.locks += locks.len();
            counts.waiters += locks.waiting();
        }
    }

    pub(super) fn held(&self, open: &Open) -> Held {
        let lease = open.lease.and_then(|lease| self.leases.get(lease));
        Held {
            key: FileKey { device: self.device, inode: self.inode, stream: open.stream },
            opener: open.opener,
            access: open.access,
            share: open.share,
            oplock: open.oplock,
            lease: lease.map(|l| (l.key, l.state)),
            breaking: open.breaking.is_some() || lease.is_some_and(|l| l.breaking.is_some()),
            durable: open.durability != Durability::None,
            disconnected: open.away_until.is_some(),
            delete_pending: self.is_doomed(open.stream, open.link),
            locks: open.locks,
        }
    }
}

/// An open, as it is told to who looks at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// What is open.
    pub key: FileKey,
    /// Whose it is.
    pub opener: Opener,
    /// Its rights.
    pub access: Access,
    /// What it lets others do.
    pub share: ShareAccess,
    /// Its oplock; [`OplockLevel::Lease`] if it has a lease.
    pub oplock: OplockLevel,
    /// Its lease, and what that allows.
    pub lease: Option<(LeaseKey, LeaseState)>,
    /// Its client has been told to give up some of it, and has not answered yet.
    pub breaking: bool,
    /// It may outlive its connection.
    pub durable: bool,
    /// Its client is away.
    pub disconnected: bool,
    /// What it is open of goes with the last open.
    pub delete_pending: bool,
    /// Byte-range locks it has, or waits for.
    pub locks: u32,
}
