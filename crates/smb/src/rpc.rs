//! The pipes by which clients ask what shares there are, and who somebody is: DCE/RPC version 5 over `srvsvc`,
//! `wkssvc` and `lsarpc` (C706, MS-RPCE, MS-SRVS, MS-WKST, MS-LSAT).
//!
//! A [`Pipe`] takes what clients write and has ready what they read. It speaks NDR in 32 bits, takes requests
//! in fragments, and answers in fragments as long as the client said it takes. What it cannot do it refuses
//! with a fault; a connection that breaks the protocol is over.

mod lsarpc;
mod ndr;
mod pdu;
mod pipe;
mod srvsvc;
#[cfg(test)]
mod tests;
mod wkssvc;

pub use pipe::{Chunk, Pipe, PipeKind};

use std::fmt::Debug;
use std::sync::Arc;

use crate::FileTime;

/// What the pipes tell about the server.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Its name, without `\\`.
    pub name: String,
    /// Its workgroup or domain.
    pub domain: String,
    /// A word about it.
    pub comment: String,
    /// Its shares, those that nobody is to see among them.
    pub shares: Vec<Share>,
    /// Now.
    pub now: FileTime,
    /// Who asks, by name; empty: somebody without one.
    pub caller: String,
    /// Names of users and groups; `None` for who is not to hear them.
    pub accounts: Option<Arc<dyn Accounts>>,
}

/// The users and groups of a host. Asking may take its time. A service that cannot be reached knows nobody.
pub trait Accounts: Debug + Send + Sync {
    /// The name of a user.
    fn user_name(&self, uid: u32) -> Option<String>;
    /// The name of a group.
    fn group_name(&self, gid: u32) -> Option<String>;
    /// The number of a user.
    fn uid(&self, name: &str) -> Option<u32>;
    /// The number of a group.
    fn gid(&self, name: &str) -> Option<u32>;
}

/// A share as it is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Its name.
    pub name: String,
    /// Whether it is `IPC$`, the share of the pipes.
    pub is_ipc: bool,
    /// Whether it is left out of lists; its name ends in `$`, usually.
    pub is_hidden: bool,
    /// A word about it.
    pub comment: String,
    /// Where it is, as Windows writes paths; told at levels 2 and 502.
    pub path: String,
    /// Sessions that are connected to it.
    pub users: u32,
}
