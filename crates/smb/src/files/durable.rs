//! Opens that outlive their connection (MS-SMB2 3.3.5.9.7, 3.3.5.9.12, 3.3.7.1).

use super::effects::{Closed, Effects, Granted, Purged};
use super::key::{OpenId, Opener};
use super::record::{File, Open};
use super::request::{Durability, LeaseVersion};
use crate::{LeaseKey, LeaseState, NtStatus};

impl Open {
    fn timeout_ms(&self) -> Option<u64> {
        match self.durability {
            Durability::None => None,
            Durability::Durable { timeout_ms } | Durability::Persistent { timeout_ms } => {
                Some(timeout_ms)
            }
        }
    }
}

impl File {
    /// The client of an open has gone. Keeps the open for it, and says until when; or ends it.
    pub(super) fn disconnect(
        &mut self,
        now_ms: u64,
        at: usize,
        fx: &mut Effects,
    ) -> Result<u64, Closed> {
        let Some(until_ms) = self.keeps_until(now_ms, at) else { return Err(self.remove(at, fx)) };
        let open = &mut self.opens[at];
        open.away_until = Some(until_ms);
        // Who is away acknowledges nothing: what was asked for is had.
        if let Some((to, _)) = open.breaking.take() {
            open.oplock = to;
        }
        if let Some(lease) = open.lease.and_then(|lease| self.leases.get_mut(lease))
            && let Some(breaking) = lease.breaking.take()
        {
            lease.state &= breaking.required;
        }
        self.arm(until_ms);
        self.refresh();
        self.wake(fx);
        Ok(until_ms)
    }

    fn keeps_until(&self, now_ms: u64, at: usize) -> Option<u64> {
        let open = &self.opens[at];
        let until_ms = now_ms.saturating_add(open.timeout_ms()?);
        if matches!(open.durability, Durability::Persistent { .. }) {
            return Some(until_ms);
        }
        // Who is away cannot let go of what it was asked for: as if it had been asked then (MS-SMB2 3.3.4.7).
        let breaking =
            open.breaking.is_some() || self.lease_of(at).is_some_and(|l| l.breaking.is_some());
        let handle = self.caches(open).contains(LeaseState::HANDLE) && !breaking;
        // What is to be deleted is not kept from it by a client that may never come back.
        let doomed = open.delete_on_close || self.is_doomed(open.stream, open.link);
        (handle && !doomed).then_some(until_ms)
    }

    /// Its client is back.
    pub(super) fn reconnect(
        &mut self,
        open: OpenId,
        opener: Opener,
        lease: Option<LeaseKey>,
    ) -> Result<Granted, NtStatus> {
        let gone = NtStatus::OBJECT_NAME_NOT_FOUND;
        let at = self.position(open).ok_or(gone)?;
        let has = self.lease_of(at).map(|l| (l.key, l.client));
        let same = match (has, lease) {
            (None, None) => true,
            (Some((key, client)), Some(wanted)) => key == wanted && client == opener.client,
            _ => false,
        };
        if !same || self.opens[at].away_until.is_none() {
            return Err(gone);
        }
        let entry = &mut self.opens[at];
        entry.away_until = None;
        entry.untold = false;
        entry.opener = Opener { open, ..opener };
        Ok(self.granted(at))
    }

    /// What an open has now.
    pub(super) fn granted(&self, at: usize) -> Granted {
        let (open, lease) = (&self.opens[at], self.lease_of(at));
        Granted {
            oplock: open.breaking.filter(|_| open.untold).map_or(open.oplock, |(to, _)| to),
            lease: lease.map_or(LeaseState::empty(), |l| l.state),
            version: lease.map_or(LeaseVersion::One, |l| l.version),
            epoch: lease.map_or(0, |l| l.epoch),
            breaking: lease.is_some_and(|l| l.breaking.is_some()),
            durable: open.durability != Durability::None,
            flags: self.flags.clone(),
        }
    }

    /// Ends a disconnected open that is in the way.
    ///
    /// # Errors
    /// FILE_NOT_AVAILABLE if it is persistent: then others have to wait for it.
    pub(super) fn purge(&mut self, at: usize, fx: &mut Effects) -> Result<(), NtStatus> {
        if matches!(self.opens[at].durability, Durability::Persistent { .. }) {
            return Err(NtStatus::FILE_NOT_AVAILABLE);
        }
        self.end(at, fx);
        Ok(())
    }

    /// Ends the disconnected opens whose time is over.
    pub(super) fn expire_opens(&mut self, now_ms: u64, fx: &mut Effects) {
        let over = |o: &Open| o.away_until.is_some_and(|until_ms| until_ms <= now_ms);
        while let Some(at) = self.opens.iter().position(over) {
            self.end(at, fx);
        }
    }

    fn end(&mut self, at: usize, fx: &mut Effects) {
        let held = self.held(&self.opens[at]);
        let closed = self.remove(at, fx);
        let lease = held.lease.map(|(key, _)| key);
        fx.purged.push(Purged { key: held.key, opener: held.opener, lease, closed });
    }

    /// When there is something to expire next.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        let leases = self.leases.iter().filter(|l| l.opens > 0);
        let leases = leases.filter_map(|l| l.breaking.map(|b| b.deadline_ms));
        let oplocks = self.opens.iter().filter_map(|o| o.breaking.map(|(_, at)| at));
        let away = self.opens.iter().filter_map(|o| o.away_until);
        leases.chain(oplocks).chain(away).min()
    }
}
