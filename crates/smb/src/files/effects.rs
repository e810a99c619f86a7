//! What is answered, and what else is to be done.

use std::sync::Arc;

use super::flags::Flags;
use super::key::{FileKey, OpenId, Opener, Waiter};
use super::request::LeaseVersion;
use crate::{Guid, LeaseKey, LeaseState, NtStatus, OplockLevel, SessionId};

/// A break to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// SMB2 OPLOCK_BREAK Notification (MS-SMB2 2.2.23.1).
    Oplock {
        /// The client to tell.
        client: Guid,
        /// The session that opened.
        session: SessionId,
        /// The open that has the oplock.
        open: OpenId,
        /// What is left of it: [`OplockLevel::Two`] or [`OplockLevel::None`].
        to: OplockLevel,
        /// The client is to acknowledge it.
        acknowledge: bool,
    },
    /// SMB2 LEASE_BREAK Notification (MS-SMB2 2.2.23.2).
    Lease {
        /// The client to tell.
        client: Guid,
        /// Which of its leases.
        key: LeaseKey,
        /// What it has.
        from: LeaseState,
        /// What is left of it.
        to: LeaseState,
        /// NewEpoch: 0 for a lease of version 1.
        epoch: u16,
        /// SMB2_NOTIFY_BREAK_LEASE_FLAG_ACK_REQUIRED.
        acknowledge: bool,
    },
}

/// A name to remove now, because the last open of it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delete {
    /// Who wished it: with whose rights it is done.
    pub by: Opener,
    /// The name, as [`Request::link`](super::Request::link).
    pub link: u64,
    /// The stream; 0: the file itself.
    pub stream: u64,
}

/// What an end of an open means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Remove this name, then call [`Shard::deleted`](super::Shard::deleted), whether it worked or not: until
    /// then opens of it are refused.
    pub delete: Option<Delete>,
    /// Nobody has the file open any more.
    pub last: bool,
}

/// An open that ended without its client's doing: close what belongs to it, and release its lease key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Purged {
    /// What it was open of.
    pub key: FileKey,
    /// Whose it was.
    pub opener: Opener,
    /// Its lease, whose key [`Leases::release`](super::Leases::release) is to be told of.
    pub lease: Option<LeaseKey>,
    /// What its end means.
    pub closed: Closed,
}

/// What follows from a call for others. The caller empties it; what is there already is left alone.
#[derive(Debug, Default)]
pub struct Effects {
    /// To send, in this order.
    pub breaks: Vec<Break>,
    /// Who should ask again.
    pub wake: Vec<Waiter>,
    /// Who waited for a byte-range lock, and what became of it: SUCCESS, or RANGE_NOT_LOCKED as the open was
    /// closed meanwhile.
    pub locked: Vec<(Waiter, NtStatus)>,
    /// Disconnected opens that are gone.
    pub purged: Vec<Purged>,
}

impl Effects {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.breaks.is_empty()
            && self.wake.is_empty()
            && self.locked.is_empty()
            && self.purged.is_empty()
    }

    /// Forgets all, keeps the memory.
    pub fn clear(&mut self) {
        self.breaks.clear();
        self.wake.clear();
        self.locked.clear();
        self.purged.clear();
    }
}

/// What an open was given.
#[derive(Clone, Debug)]
pub struct Granted {
    /// The oplock level of the answer; [`OplockLevel::Lease`] if a lease was asked for and may be had at all.
    pub oplock: OplockLevel,
    /// What the lease allows now.
    pub lease: LeaseState,
    /// How the lease was asked for when it began: the version of the answer, whatever was asked for now.
    pub version: LeaseVersion,
    /// The lease's epoch, for the answer of [`LeaseVersion::Two`].
    pub epoch: u16,
    /// SMB2_LEASE_FLAG_BREAK_IN_PROGRESS.
    pub breaking: bool,
    /// The open is durable, or persistent if that was asked for.
    pub durable: bool,
    /// What READ and WRITE look at instead of asking the shard.
    pub flags: Arc<Flags>,
}

/// What became of an open.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It is open.
    Granted(Granted),
    /// Others have been told to give something up. Ask again, with [`Request::again`](super::Request::again)
    /// set, when the waiter is woken or after [`Shard::expire`](super::Shard::expire) at this time.
    Wait {
        /// Milliseconds on the clock of `now_ms`.
        deadline_ms: u64,
    },
    /// It cannot be: SHARING_VIOLATION, DELETE_PENDING, FILE_NOT_AVAILABLE, INSUFFICIENT_RESOURCES.
    Refused(NtStatus),
}

/// What became of a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOutcome {
    /// All elements are done.
    Done,
    /// The one element is not to be had now. [`Effects::locked`] will name the waiter.
    Wait,
    /// LOCK_NOT_GRANTED, RANGE_NOT_LOCKED, INVALID_LOCK_RANGE, INVALID_PARAMETER, INSUFFICIENT_RESOURCES.
    Refused(NtStatus),
}
