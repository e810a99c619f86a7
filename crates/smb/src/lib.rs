//! The parts of which an SMB 2.1 to 3.1.1 server is made, as values: messages, who may log on, keys, who has which file
//! open, what is said about files. What each command does with them is the caller's.
//!
//! The crate does no I/O, reads no clock, starts no thread. File data never passes through it: it reads and writes
//! the heads of messages, and the caller moves the bytes. Time is an argument, and so is everything random.
//!
//! The specification is MS-SMB2, with MS-FSCC for what is said about files, MS-ERREF for what is said about
//! failure, MS-NLMP and RFC 4178 for who it is.

mod access;
pub mod auth;
mod caching;
pub mod crypto;
pub mod files;
pub mod fscc;
mod guid;
mod ids;
pub mod name;
pub mod rpc;
pub mod security;
pub mod session;
mod status;
mod time;
pub mod wire;

pub use access::{Access, Attributes, CreateAction, CreateOptions, Disposition, ShareAccess};
pub use caching::{LeaseKey, LeaseState, OplockLevel};
pub use guid::Guid;
pub use ids::{FileId, MessageId, SessionId, TreeId};
pub use status::NtStatus;
pub use time::FileTime;
