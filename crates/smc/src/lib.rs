//! The bytes and states of SMC, Shared Memory Communications (RFC 7609; version 2 and 2.1 as Linux 6.12
//! speaks them), by which two hosts that hold a TCP connection move its bytes by RDMA instead.
//!
//! [`clc`] is what they say over TCP before, [`handshake`] in which order; [`llc`] what they say over the
//! links between them, [`group`] what a group of links does about it; [`cdc`] what accompanies the bytes,
//! [`conn`] the two ends of one connection.
//!
//! Nothing here does I/O, reads a clock, starts a thread or touches payload: events and [`Time`] come in,
//! values that say what to do come out. Whatever a peer sends, nothing panics and what is held is bounded.

mod bytes;
pub mod cdc;
pub mod clc;
pub mod conn;
pub mod cursor;
pub mod eid;
pub mod group;
pub mod handshake;
mod limits;
pub mod llc;
mod name;
mod time;

pub use cursor::Cursor;
pub use eid::Eid;
pub use limits::{BadConfig, Config, Limits};
pub use name::{Gid, Mac, Mtu, Psn, Qpn, RKey, SizeClass, SystemId, Token};
pub use time::Time;
