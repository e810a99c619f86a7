//! What an SMB 2.1 to 3.1.1 client may do next, and what to answer.
//!
//! The crate does no I/O, reads no clock, starts no thread. File data never passes through it: it reads the
//! head of a request, decides, and writes the head of the answer; the caller moves the bytes. Time is an
//! argument, and so is everything random.
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
