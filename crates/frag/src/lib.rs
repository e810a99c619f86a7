//! Puts IPv4 and IPv6 fragments together, within a fixed budget of memory and time.
//!
//! A [`Shard`] is what one core owns: hand it packets with [`Shard::push`] or, better, many at a time
//! with [`Shard::push_burst`], and it calls back with whole datagrams ([`Sink::datagram`]), with buffers
//! that are free again ([`Sink::release`]), and with what a host should tell the sender
//! ([`Sink::notice`]). Payload stays where the caller received it: a datagram comes out as a list of
//! slices and a header to put before them, and may be written to one place with one copy
//! ([`Datagram::write_to`]).
//!
//! Shards share a limit of memory through a [`Ledger`] and nothing else. All fragments of a datagram must
//! reach the same shard: [`Steering`] says which, [`Shard::push_steered`] hands over what belongs elsewhere,
//! and a [`lane()`] brings it there in few bytes. Callers who cannot steer use [`Shared`], a table with a
//! lock for each of many buckets.
//!
//! The crate does no I/O, reads no clock, starts no thread. Time is nanoseconds of any clock that does
//! not go back; a secret for hashing is drawn by the caller.
//!
//! ```
//! use frag::{Arrival, Config, Datagram, HashKey, Ledger, Released, Shard, Sink};
//!
//! /// Two fragments of one UDP datagram; the number of a packet is our handle for its buffer.
//! const PACKETS: [&[u8]; 2] = [
//!     b"\x45\0\0\x1c\0\x07\x20\0\x40\x11\0\0\x0a\0\0\x01\x0a\0\0\x02\0\x35\0\x35\0\x0f\0\0",
//!     b"\x45\0\0\x1b\0\x07\0\x01\x40\x11\0\0\x0a\0\0\x01\x0a\0\0\x02perhaps",
//! ];
//!
//! #[derive(Default)]
//! struct Whole(Vec<u8>);
//!
//! impl Sink<usize> for Whole {
//!     fn whole(&mut self, buffer: usize, len: usize) {
//!         println!("packet {buffer} is no fragment: {len} bytes");
//!     }
//!     fn datagram(&mut self, datagram: &Datagram<'_, usize>) {
//!         self.0.resize(datagram.packet_len(), 0);
//!         datagram.write_to(&mut self.0, |buffer| PACKETS[*buffer]).expect("there is room");
//!     }
//!     fn release(&mut self, _buffer: usize, _why: Released) {}
//! }
//!
//! let limits = Config::default().limits()?;
//! let mut shard = Shard::new(&limits, &Ledger::of(&limits), HashKey::new([1, 2]));
//! let mut whole = Whole::default();
//! for (buffer, packet) in PACKETS.iter().enumerate().rev() {
//!     shard.push(Arrival::new(packet, buffer), 0, &mut whole);
//! }
//! assert_eq!(&whole.0[28..], b"perhaps");
//! # Ok::<(), frag::BadConfig>(())
//! ```

mod block;
mod datagram;
mod directory;
#[cfg(test)]
mod effort;
mod holding;
mod index;
mod key;
mod lane;
mod leaves;
mod ledger;
mod limits;
mod map;
mod output;
mod overlap;
mod pace;
mod places;
mod reason;
mod refused;
mod sets;
mod shard;
mod shared;
mod shares;
mod slab;
mod source;
mod sync;
mod table;
pub mod wire;

pub use key::{HashKey, Key};
pub use lane::{Received, Receiver, Sender, lane, lane_bytes};
pub use ledger::{Lease, Ledger};
pub use limits::{BadConfig, Config, Limits};
pub use output::{Datagram, Icmp, Notice, NoticeKind, Released, Sink, Slice, Slices};
pub use overlap::Policy;
pub use reason::{Counters, REASONS, Reason};
pub use shard::{Arrival, Gauges, Shard, Steering};
pub use shared::{Core, Shared};
