//! What somebody who opens a file asks for.

use super::key::{Opener, Waiter};
use crate::{Access, LeaseKey, LeaseState, OplockLevel, ShareAccess};

/// What kind of lease was asked for: says what its breaks look like (MS-SMB2 2.2.13.2.8, 2.2.13.2.10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseVersion {
    /// Without an epoch: what is said about the epoch to the client is 0.
    #[default]
    One,
    /// With an epoch, and perhaps the lease key of the directory.
    Two,
}

/// A lease that is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseRequest {
    /// Its name; with the client's it names one lease, of one file.
    pub key: LeaseKey,
    /// What the client would like to cache.
    pub state: LeaseState,
    /// Which create context it came in.
    pub version: LeaseVersion,
    /// The epoch the client begins with, for [`LeaseVersion::Two`].
    pub epoch: u16,
    /// The lease key of the directory, if the flag SMB2_LEASE_FLAG_PARENT_LEASE_KEY_SET says that there is one.
    pub parent: Option<LeaseKey>,
}

/// What an opener would like to cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Caching {
    /// Nothing.
    #[default]
    None,
    /// What an oplock allows, for this open alone. [`OplockLevel::Lease`] asks for nothing here.
    Oplock(OplockLevel),
    /// What a lease allows, for all opens that have its key.
    Lease(LeaseRequest),
}

/// Whether an open is to outlive its connection, and for how long (MS-SMB2 3.3.5.9.6, 3.3.5.9.10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It ends with its session.
    #[default]
    None,
    /// If it may cache the handle when the connection goes.
    Durable {
        /// How long to wait for its client, in milliseconds.
        timeout_ms: u64,
    },
    /// Whatever others would like to do with the file meanwhile.
    Persistent {
        /// How long to wait for its client, in milliseconds.
        timeout_ms: u64,
    },
}

/// An open of a file that is there, or has just been created.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// Whose it is to be. [`Opener::open`] is a number that was never used.
    pub opener: Opener,
    /// The rights it will have. Generic rights and MAXIMUM_ALLOWED are resolved already.
    pub access: Access,
    /// What it lets others do.
    pub share: ShareAccess,
    /// It empties the file: the disposition overwrites, and the file was there.
    pub overwrites: bool,
    /// It has just created the file.
    pub created: bool,
    /// FILE_DELETE_ON_CLOSE was asked for, and allowed.
    pub delete_on_close: bool,
    /// It is a directory.
    pub directory: bool,
    /// What it would like to cache.
    pub caching: Caching,
    /// Its client is told later what it was granted, by [`Shard::tell`](super::Shard::tell): until then it hears of no break
    /// of its oplock.
    pub untold: bool,
    /// Whether it would like to outlive its connection.
    pub durability: Durability,
    /// A hash of the path by which it is opened: what is deleted is one name of perhaps several.
    pub link: u64,
    /// Whom to wake if it must wait.
    pub waiter: Waiter,
    /// It has asked before and was told to wait.
    pub again: bool,
}
