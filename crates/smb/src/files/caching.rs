//! What an open makes others give up, and what it may cache itself (MS-FSA 2.1.4.12, 2.1.5.1.2, 2.1.5.18).

use super::effects::{Effects, Granted, Outcome};
use super::key::FileKey;
use super::limits::Limits;
use super::record::{File, Lease, Open, cached_by};
use super::request::{Caching, Durability, LeaseRequest, LeaseVersion, Request};
use super::share::{delete_conflict, is_lease_stat_open, is_oplock_stat_open, share_conflict};
use crate::{Access, LeaseState, NtStatus, OplockLevel};

/// What the other opens of a stream have, as far as it matters to who comes.
#[derive(Debug, Default)]
struct Others {
    /// One of them has to give something up first.
    delay: bool,
    /// One may cache the handle.
    handle: bool,
    /// One has an oplock.
    oplock: bool,
    /// One would not notice if somebody else cached writes.
    no_write: bool,
}

impl Others {
    /// Takes account of an open that stays.
    fn count(&mut self, open: &Open, key: FileKey, has: LeaseState) {
        if open.stream == key.stream {
            self.handle |= has.contains(LeaseState::HANDLE);
            self.oplock |= cached_by(open.oplock) != LeaseState::empty();
            self.no_write |= open.oplock != OplockLevel::None || !is_oplock_stat_open(open.access);
        }
    }
}

impl File {
    /// Opens the file, or says why not, or who has to give up what before.
    pub(super) fn open(
        &mut self,
        now_ms: u64,
        key: FileKey,
        request: &Request,
        limits: &Limits,
        fx: &mut Effects,
    ) -> Outcome {
        if self.is_being_replaced(request.link) {
            return self.delay(now_ms, request, limits);
        }
        if self.is_doomed(key.stream, request.link) {
            return Outcome::Refused(NtStatus::DELETE_PENDING);
        }
        if self.opens.len() >= limits.opens_per_file {
            return Outcome::Refused(NtStatus::INSUFFICIENT_RESOURCES);
        }
        let violation = match self.share_violation(key, request, fx) {
            Ok(violation) => violation,
            Err(status) => return Outcome::Refused(status),
        };
        let others = match self.others(now_ms, key, request, violation, limits, fx) {
            Ok(others) => others,
            Err(status) => return Outcome::Refused(status),
        };
        if others.delay {
            return self.delay(now_ms, request, limits);
        }
        if violation {
            return Outcome::Refused(NtStatus::SHARING_VIOLATION);
        }
        Outcome::Granted(self.grant(key, request, &others, limits))
    }

    fn delay(&mut self, now_ms: u64, request: &Request, limits: &Limits) -> Outcome {
        if !self.waiters.contains(&request.waiter) {
            if self.waiters.len() >= limits.waiters_per_file {
                return Outcome::Refused(NtStatus::INSUFFICIENT_RESOURCES);
            }
            self.waiters.push(request.waiter);
        }
        Outcome::Wait { deadline_ms: self.break_deadline().unwrap_or(now_ms) }
    }

    /// The time at which all breaks are done, one way or the other.
    pub(super) fn break_deadline(&self) -> Option<u64> {
        let leases = self.leases.iter().filter(|l| l.opens > 0);
        let leases = leases.filter_map(|l| l.breaking.map(|b| b.deadline_ms));
        let oplocks = self.opens.iter().filter_map(|o| o.breaking.map(|(_, at)| at));
        leases.chain(oplocks).max()
    }

    /// Whether a connected open does not share what is asked for. Disconnected ones that do not are gone.
    fn share_violation(
        &mut self,
        key: FileKey,
        request: &Request,
        fx: &mut Effects,
    ) -> Result<bool, NtStatus> {
        if is_oplock_stat_open(request.access) {
            return Ok(false);
        }
        let mut violation = false;
        let mut at = 0;
        while let Some(open) = self.opens.get(at) {
            if !violates(open, key, request) {
                at += 1;
            } else if open.away_until.is_some() {
                self.purge(at, fx)?;
            } else {
                violation = true;
                at += 1;
            }
        }
        Ok(violation)
    }

    /// Makes the others give up what they must, and looks at what they have.
    fn others(
        &mut self,
        now_ms: u64,
        key: FileKey,
        request: &Request,
        violation: bool,
        limits: &Limits,
        fx: &mut Effects,
    ) -> Result<Others, NtStatus> {
        let mut others = Others::default();
        let access = effective(request);
        let quiet = is_oplock_stat_open(access);
        // While somebody does not share, only those who may close their handle can help.
        let giving_way = if violation { LeaseState::HANDLE } else { LeaseState::WRITE };
        let overwrites = request.overwrites && !violation;
        let mut at = 0;
        while let Some(open) = self.opens.get(at) {
            let concerned =
                open.stream == key.stream || (violation && violates(open, key, request));
            if !concerned || self.is_same_lease(at, key, request) {
                at += 1;
                continue;
            }
            let leased = open.lease.is_some();
            let has = self.caches(open);
            if quiet || (leased && is_lease_stat_open(access)) {
                others.count(open, key, has);
                at += 1;
                continue;
            }
            let breaking = self.lease_of(at).is_some_and(|l| l.breaking.is_some());
            let mut left = has.difference(giving_way);
            if overwrites {
                left = LeaseState::empty();
            }
            if request.delete_on_close && !has.contains(LeaseState::WRITE) {
                // A handle that is only cached would keep the name from going. Nobody waits for it to be
                // closed: the name goes when it is.
                left.remove(LeaseState::HANDLE);
            }
            if left == has {
                others.count(open, key, has);
                others.delay |= breaking;
                at += 1;
                continue;
            }
            if open.away_until.is_some() {
                self.purge(at, fx)?;
                continue;
            }
            others.count(open, key, has);
            others.delay |= has.intersects(giving_way) || (breaking && request.again);
            self.break_open(now_ms, at, left, limits, fx);
            at += 1;
        }
        Ok(others)
    }

    fn is_same_lease(&self, at: usize, key: FileKey, request: &Request) -> bool {
        let Caching::Lease(wanted) = &request.caching else { return false };
        self.lease_of(at).is_some_and(|lease| {
            lease.key == wanted.key
                && lease.client == request.opener.client
                && lease.stream == key.stream
        })
    }

    fn grant(
        &mut self,
        key: FileKey,
        request: &Request,
        others: &Others,
        limits: &Limits,
    ) -> Granted {
        let state = self.grantable(key, request, others, limits);
        let mut granted = Granted {
            oplock: OplockLevel::None,
            lease: LeaseState::empty(),
            version: LeaseVersion::One,
            epoch: 0,
            breaking: false,
            durable: false,
            flags: self.flags.clone(),
        };
        let mut lease_at = None;
        match &request.caching {
            Caching::None => {}
            Caching::Oplock(_) => granted.oplock = oplock_for(state),
            // Directories have no leases of version 1 (MS-SMB2 3.3.5.9.8).
            Caching::Lease(wanted)
                if request.directory
                    && (!limits.directory_leases || wanted.version == LeaseVersion::One) => {}
            Caching::Lease(wanted) => {
                let at = self.grant_lease(key, request, wanted, state);
                let lease = &self.leases[at];
                granted.oplock = OplockLevel::Lease;
                granted.lease = lease.state;
                granted.version = lease.version;
                granted.epoch = lease.epoch;
                granted.breaking = lease.breaking.is_some();
                lease_at = Some(at);
            }
        }
        let handle = granted.lease.union(cached_by(granted.oplock)).contains(LeaseState::HANDLE);
        let durability = match request.durability {
            Durability::Persistent { .. } => request.durability,
            // Directories and streams: as the servers people know, which do not either.
            _ if !handle || request.directory || key.stream != 0 => Durability::None,
            wanted => wanted,
        };
        granted.durable = durability != Durability::None;
        self.opens.push(Open {
            opener: request.opener,
            access: request.access,
            share: request.share,
            stream: key.stream,
            link: request.link,
            oplock: granted.oplock,
            breaking: None,
            untold: request.untold,
            lease: lease_at,
            delete_on_close: request.delete_on_close,
            directory: request.directory,
            durability,
            away_until: None,
            locks: 0,
        });
        if granted.oplock != OplockLevel::None {
            self.refresh();
        }
        granted
    }

    /// What may be had, of what is wanted.
    fn grantable(
        &self,
        key: FileKey,
        request: &Request,
        others: &Others,
        limits: &Limits,
    ) -> LeaseState {
        let leased = matches!(request.caching, Caching::Lease(_));
        let mut state = match &request.caching {
            Caching::None => return LeaseState::empty(),
            Caching::Lease(wanted) => wanted.state.intersection(LeaseState::all()),
            // Who only looks gets no oplock, unless it made the file.
            Caching::Oplock(_) if is_oplock_stat_open(effective(request)) && !request.created => {
                return LeaseState::empty();
            }
            Caching::Oplock(_) if request.directory => return LeaseState::empty(),
            Caching::Oplock(wanted) => cached_by(*wanted),
        };
        if request.directory {
            if !limits.directory_leases {
                return LeaseState::empty();
            }
            state.remove(LeaseState::WRITE);
        }
        let locked = self.locks.as_ref().is_some_and(|locks| locks.any_of(key.stream));
        if locked && !request.overwrites {
            return LeaseState::empty();
        }
        if others.no_write {
            state.remove(LeaseState::WRITE);
        }
        if leased && others.oplock {
            state.remove(LeaseState::HANDLE);
        }
        if !leased && others.handle {
            return LeaseState::empty();
        }
        // Nothing without reading: W, WH and H alone mean nothing (MS-SMB2 3.3.5.9.8).
        if state.contains(LeaseState::READ) { state } else { LeaseState::empty() }
    }

    /// A new lease, or one more open of one that is there, which may get more by it.
    fn grant_lease(
        &mut self,
        key: FileKey,
        request: &Request,
        wanted: &LeaseRequest,
        state: LeaseState,
    ) -> usize {
        if let Some(at) = self.find_lease(request.opener.client, wanted.key, key.stream) {
            let lease = &mut self.leases[at];
            lease.opens += 1;
            // All that was asked for, more than there was, and not while less is being asked of it. What is in
            // a directory nobody writes but the server.
            let mut asked = wanted.state;
            asked.set(LeaseState::WRITE, asked.contains(LeaseState::WRITE) && !request.directory);
            let more = asked.contains(lease.state) && state != lease.state;
            if more && state == asked && lease.breaking.is_none() {
                lease.state = state;
                lease.epoch = lease.epoch.wrapping_add(1);
            }
            return at;
        }
        let lease = Lease {
            client: request.opener.client,
            key: wanted.key,
            stream: key.stream,
            state,
            breaking: None,
            epoch: wanted.epoch.wrapping_add(u16::from(!state.is_empty())),
            version: wanted.version,
            opens: 1,
        };
        if let Some(at) = self.leases.iter().position(|l| l.opens == 0) {
            self.leases[at] = lease;
            return at;
        }
        self.leases.push(lease);
        self.leases.len() - 1
    }
}

/// Who empties the file writes to it, whatever it will do later.
fn effective(request: &Request) -> Access {
    if request.overwrites { request.access | Access::WRITE_DATA } else { request.access }
}

fn violates(open: &Open, key: FileKey, request: &Request) -> bool {
    if open.stream == key.stream {
        return share_conflict((open.access, open.share), (request.access, request.share));
    }
    key.stream == 0 && delete_conflict(request.access, (open.access, open.share))
}

/// The oplock that says the same; what only a lease can say becomes less.
fn oplock_for(state: LeaseState) -> OplockLevel {
    match (state.contains(LeaseState::WRITE), state.contains(LeaseState::HANDLE)) {
        _ if !state.contains(LeaseState::READ) => OplockLevel::None,
        (true, true) => OplockLevel::Batch,
        (true, false) => OplockLevel::Exclusive,
        (false, _) => OplockLevel::Two,
    }
}
