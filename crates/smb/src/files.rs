//! Who has which file open, what they share, cache and lock, as states without I/O (MS-SMB2 3.3, MS-FSA 2.1).
//!
//! A [`Shard`] keeps the files of one part of all (device, inode) pairs. Every method answers at once. Who
//! must wait is told until when; the shard remembers its [`Waiter`] and names it in [`Effects::wake`] as soon
//! as asking again is worth while. Whatever else follows from a call, a break to send, an open that is gone,
//! a byte-range lock that is granted to somebody who waited, is added to the [`Effects`] that the caller
//! hands in; it acts on them when it has let go of the shard's lock.
//!
//! ```text
//! Leases::claim ── a lease key names one file per client ── own lock, taken and left before the shard's
//! Shard::open ──── Granted | Wait | Refused
//!   key::FileKey    which file, which stream          share     who may open beside whom
//!   record          one file: opens, leases, deletes  caching   what to break, what to grant
//!   locks           byte ranges, who waits for them   durable   opens that outlive their connection
//! Watchers ─────── change notification, per share, own lock
//! ```
//!
//! No two of these locks are held at once. READ and WRITE do not come here as long as [`Flags`], which every
//! open has a handle of, says that there is nothing to look at.

mod breaks;
mod caching;
mod durable;
mod effects;
mod flags;
mod key;
mod leases;
mod limits;
mod locks;
pub mod notify;
mod record;
mod request;
mod shard;
mod share;
#[cfg(test)]
mod tests;

pub use effects::{Break, Closed, Delete, Effects, Granted, LockOutcome, Outcome, Purged};
pub use flags::Flags;
pub use key::{FileKey, OpenId, Opener, Waiter};
pub use leases::Leases;
pub use limits::{Counts, Limits};
pub use locks::{LockElement, LockFlags, LockSequence};
pub use record::Held;
pub use request::{Caching, Durability, LeaseRequest, LeaseVersion, Request};
pub use shard::Shard;
pub use share::{is_lease_stat_open, is_oplock_stat_open, share_conflict};
