//! Breaks: how they begin, how they end (MS-SMB2 3.3.4.6, 3.3.4.7, 3.3.5.22).

use super::effects::{Break, Effects, Granted};
use super::key::{FileKey, OpenId, Waiter};
use super::limits::Limits;
use super::record::{Breaking, File, Lease, cached_by};
use super::request::LeaseVersion;
use crate::{Guid, LeaseKey, LeaseState, NtStatus, OplockLevel};

impl Lease {
    fn notification(&self, from: LeaseState, to: LeaseState, acknowledge: bool) -> Break {
        let epoch = if self.version == LeaseVersion::Two { self.epoch } else { 0 };
        Break::Lease { client: self.client, key: self.key, from, to, epoch, acknowledge }
    }

    /// Begins to break to `to`, or remembers for the break under way that less is wanted. Returns the
    /// deadline if there is something to wait for.
    fn break_to(&mut self, to: LeaseState, deadline_ms: u64, fx: &mut Effects) -> Option<u64> {
        let to = to.intersection(self.state);
        if let Some(breaking) = &mut self.breaking {
            breaking.required &= to;
            return None;
        }
        if to == self.state {
            return None;
        }
        // Nothing has to be flushed or closed for what was only read: the client is told, not asked.
        let acknowledge = self.state != LeaseState::READ;
        self.epoch = self.epoch.wrapping_add(1);
        fx.breaks.push(self.notification(self.state, to, acknowledge));
        if !acknowledge {
            self.state = LeaseState::empty();
            return None;
        }
        self.breaking = Some(Breaking { requested: to, required: to, deadline_ms });
        Some(deadline_ms)
    }

    /// The client has come down to `state`. If that is not enough by now, the next step begins.
    fn acknowledge(
        &mut self,
        state: LeaseState,
        deadline_ms: u64,
        fx: &mut Effects,
    ) -> Option<u64> {
        let breaking = self.breaking.take()?;
        self.state = state;
        if breaking.required.contains(state) {
            return None;
        }
        let mut to = breaking.required;
        let acknowledge = state.intersects(LeaseState::WRITE | LeaseState::HANDLE);
        if acknowledge {
            // In steps: what was written and what is open first, what was read last.
            to |= LeaseState::READ;
        }
        let to = to.intersection(state);
        fx.breaks.push(self.notification(state, to, acknowledge));
        if !acknowledge {
            self.state = LeaseState::empty();
            return None;
        }
        self.breaking = Some(Breaking { requested: to, required: breaking.required, deadline_ms });
        Some(deadline_ms)
    }
}

impl File {
    /// Has an open keep no more than `left`. Its client is told once, however often this is called.
    pub(super) fn break_open(
        &mut self,
        now_ms: u64,
        at: usize,
        left: LeaseState,
        limits: &Limits,
        fx: &mut Effects,
    ) {
        let deadline_ms = now_ms.saturating_add(limits.break_timeout_ms);
        let Some(open) = self.opens.get_mut(at) else { return };
        let armed = match open.lease.and_then(|lease| self.leases.get_mut(lease)) {
            Some(lease) => lease.break_to(left, deadline_ms, fx),
            None if open.breaking.is_some() || open.oplock == OplockLevel::None => return,
            None => {
                // An oplock can only become level II, or none.
                let read = left.contains(LeaseState::READ) && open.oplock != OplockLevel::Two;
                let to = if read { OplockLevel::Two } else { OplockLevel::None };
                let acknowledge = open.oplock != OplockLevel::Two;
                // A client that does not know of the open could make nothing of it: it is told with the open.
                if !open.untold {
                    fx.breaks.push(Break::Oplock {
                        client: open.opener.client,
                        session: open.opener.session,
                        open: open.opener.open,
                        to,
                        acknowledge,
                    });
                }
                if acknowledge {
                    open.breaking = Some((to, deadline_ms));
                    Some(deadline_ms)
                } else {
                    open.oplock = OplockLevel::None;
                    None
                }
            }
        };
        if let Some(deadline_ms) = armed {
            self.arm(deadline_ms);
        }
        self.refresh();
    }

    /// Others may not go on with what they have read: somebody writes, or locks. Nor may this open itself, if what it has
    /// is an oplock and not a lease, unless it `is_new`: what it has it was promised for what it does now.
    pub(super) fn contend(
        &mut self,
        now_ms: u64,
        by: usize,
        is_new: bool,
        limits: &Limits,
        fx: &mut Effects,
    ) {
        let Some(writer) = self.opens.get(by) else { return };
        if self.caches(writer).contains(LeaseState::WRITE) {
            return;
        }
        let (stream, own, me) = (writer.stream, writer.lease, writer.opener.open);
        self.contend_others(now_ms, stream, own, is_new.then_some(me), limits, fx);
    }

    /// What of a stream others have read is another thing, or about to be: others than who has the lease `own`, or the
    /// open `me`.
    pub(super) fn contend_others(
        &mut self,
        now_ms: u64,
        stream: u64,
        own: Option<usize>,
        me: Option<OpenId>,
        limits: &Limits,
        fx: &mut Effects,
    ) {
        let mut at = 0;
        while let Some(open) = self.opens.get(at) {
            let spared = open.stream != stream
                || (own.is_some() && open.lease == own)
                || me == Some(open.opener.open);
            if spared || !self.caches(open).contains(LeaseState::READ) {
                at += 1;
            } else if open.away_until.is_some() {
                // It cannot be told. If it must stay, it finds out when it is back that it has no lease.
                if self.purge(at, fx).is_err() {
                    self.drop_caching(at);
                    at += 1;
                }
            } else {
                self.break_open(now_ms, at, LeaseState::empty(), limits, fx);
                at += 1;
            }
        }
    }

    /// Others may not keep their handles cached: somebody, who may have it open, renames or deletes. Returns
    /// whether to wait.
    pub(super) fn contend_handles(
        &mut self,
        now_ms: u64,
        by: Option<usize>,
        limits: &Limits,
        fx: &mut Effects,
    ) -> bool {
        let by = by.and_then(|by| self.opens.get(by));
        let (stream, own) = by.map_or((0, None), |by| (by.stream, by.lease));
        let me = by.map(|by| by.opener.open);
        let mut wait = false;
        let mut at = 0;
        while let Some(open) = self.opens.get(at) {
            let spared = Some(open.opener.open) == me
                || (own.is_some() && open.lease == own)
                || (stream != 0 && open.stream != stream);
            let has = self.caches(open);
            if spared || !has.contains(LeaseState::HANDLE) {
                at += 1;
            } else if open.away_until.is_some() {
                if self.purge(at, fx).is_err() {
                    at += 1;
                }
            } else {
                wait = true;
                self.break_open(now_ms, at, has.difference(LeaseState::HANDLE), limits, fx);
                at += 1;
            }
        }
        wait
    }

    pub(super) fn wait_handles(
        &mut self,
        waiter: Waiter,
        limits: &Limits,
    ) -> Result<Option<u64>, NtStatus> {
        if self.waiters.len() >= limits.waiters_per_file {
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        if !self.waiters.contains(&waiter) {
            self.waiters.push(waiter);
        }
        Ok(self.break_deadline())
    }

    /// Takes from a disconnected open what it may cache, without a word.
    pub(super) fn drop_caching(&mut self, at: usize) {
        let Some(open) = self.opens.get_mut(at) else { return };
        match open.lease.and_then(|lease| self.leases.get_mut(lease)) {
            Some(lease) => {
                lease.state = LeaseState::empty();
                lease.breaking = None;
                lease.epoch = lease.epoch.wrapping_add(1);
            }
            None => {
                open.oplock = OplockLevel::None;
                open.breaking = None;
            }
        }
    }

    /// The client of an open is told of it now, and what is left of its oplock. It has cached nothing by that: what it was to
    /// give up meanwhile it never had.
    pub(super) fn tell(&mut self, at: usize, fx: &mut Effects) -> Granted {
        let open = &mut self.opens[at];
        if std::mem::take(&mut open.untold)
            && let Some((to, _)) = open.breaking.take()
        {
            open.oplock = to;
            self.refresh();
            self.wake(fx);
        }
        self.granted(at)
    }

    /// The holder of an oplock says what it keeps.
    pub(super) fn acknowledge_oplock(
        &mut self,
        open: OpenId,
        level: OplockLevel,
        fx: &mut Effects,
    ) -> Result<OplockLevel, NtStatus> {
        let at = self.position(open).ok_or(NtStatus::FILE_CLOSED)?;
        let open = &mut self.opens[at];
        let (to, _) = open.breaking.ok_or(NtStatus::INVALID_OPLOCK_PROTOCOL)?;
        if !matches!(level, OplockLevel::None | OplockLevel::Two) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        let keeps = if to == OplockLevel::None { OplockLevel::None } else { level };
        open.breaking = None;
        open.oplock = keeps;
        self.refresh();
        self.wake(fx);
        Ok(keeps)
    }

    /// The holder of a lease says what it keeps.
    pub(super) fn acknowledge_lease(
        &mut self,
        now_ms: u64,
        (client, key): (Guid, LeaseKey),
        file: FileKey,
        state: LeaseState,
        limits: &Limits,
        fx: &mut Effects,
    ) -> Result<LeaseState, NtStatus> {
        let at =
            self.find_lease(client, key, file.stream).ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
        let lease = &mut self.leases[at];
        let breaking = lease.breaking.ok_or(NtStatus::UNSUCCESSFUL)?;
        if !breaking.requested.contains(state) {
            return Err(NtStatus::REQUEST_NOT_ACCEPTED);
        }
        let deadline_ms = now_ms.saturating_add(limits.break_timeout_ms);
        if let Some(deadline_ms) = lease.acknowledge(state, deadline_ms, fx) {
            self.arm(deadline_ms);
        }
        self.refresh();
        self.wake(fx);
        Ok(state)
    }

    /// Breaks that nobody has acknowledged in time are taken as acknowledged, to nothing.
    pub(super) fn expire_breaks(&mut self, now_ms: u64, fx: &mut Effects) {
        let mut some = false;
        for lease in self.leases.iter_mut().filter(|l| l.opens > 0) {
            if lease.breaking.is_some_and(|b| b.deadline_ms <= now_ms) {
                lease.breaking = None;
                lease.state = LeaseState::empty();
                some = true;
            }
        }
        for open in &mut self.opens {
            if open.breaking.is_some_and(|(_, deadline_ms)| deadline_ms <= now_ms) {
                open.breaking = None;
                open.oplock = OplockLevel::None;
                some = true;
            }
        }
        if some {
            self.refresh();
            self.wake(fx);
        }
    }

    /// The entries of this directory have changed: who caches them is told, but for who has changed them.
    pub(super) fn contend_directory(
        &mut self,
        now_ms: u64,
        by: Option<(Guid, LeaseKey)>,
        limits: &Limits,
        fx: &mut Effects,
    ) {
        let mut at = 0;
        while at < self.opens.len() {
            let own = self.lease_of(at).is_some_and(|l| by == Some((l.client, l.key)));
            let has = self.caches(&self.opens[at]).union(cached_by(self.opens[at].oplock));
            if own || has.is_empty() {
                at += 1;
            } else if self.opens[at].away_until.is_some() {
                self.drop_caching(at);
                at += 1;
            } else {
                self.break_open(now_ms, at, LeaseState::empty(), limits, fx);
                at += 1;
            }
        }
    }
}
