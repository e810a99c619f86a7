//! The bytes and states of SMC, Shared Memory Communications (RFC 7609; version 2 and 2.1 as Linux 6.12
//! speaks them), by which two hosts that hold a TCP connection move its bytes by RDMA instead.
//!
//! [`clc`] is what they say over TCP before, [`handshake`] in which order; [`llc`] what they say over the
//! links between them, [`group`] what a group of links does about it; [`cdc`] what accompanies the bytes,
//! [`conn`] the two ends of one connection.
//!
//! Nothing here does I/O, reads a clock, starts a thread or touches payload: events and [`Time`] come in,
//! values that say what to do come out. Whatever a peer sends, nothing panics and what is held is bounded.
//!
//! ```
//! use smc::cdc::Cdc;
//! use smc::conn::{Conn, Push, Remote, Setup, State};
//! use smc::{RKey, SizeClass, Token};
//!
//! // What both sides have learned from Accept and Confirm: rings of 64 KiB.
//! let ring = SizeClass::holding(65_536);
//! let remote = Remote { rkey: RKey(0x3d4), vaddr: 0x7f00_0000 };
//! let rings = Setup { rmb: ring, send_ring: ring, peer_rmb: ring, ..Setup::default() };
//! let setup = Setup { remote, peer_token: Token(1), ..rings };
//! let (mut here, mut there) = (Conn::new(&setup), Conn::new(&setup));
//!
//! // Five bytes were put into the send ring at `write_offset`.
//! here.wrote(5);
//! let plan = here.plan(Push::Auto).expect("something to send");
//! assert_eq!((plan.writes()[0].vaddr, plan.writes()[0].len()), (0x7f00_0000, 5));
//!
//! // The write and the message arrive, in this order, and the message is acknowledged.
//! let heard = there.on_cdc(&Cdc::parse(&plan.cdc)?)?;
//! here.completed(plan.ticket);
//! assert_eq!((heard.arrived, there.readable()), (5, 5));
//!
//! // The programs read and close.
//! there.consumed(5);
//! here.close();
//! while let Some(plan) = here.plan(Push::Now) {
//!     there.on_cdc(&Cdc::parse(&plan.cdc)?)?;
//! }
//! assert!(there.at_end());
//! assert_eq!((here.state(), there.state()), (State::PeerCloseWait1, State::AppCloseWait1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
