//! A reliable-connected queue pair over RoCEv2: work requests become packets, and packets completions
//! (InfiniBand Architecture Specification vol. 1, chapter 9; annexes A16 and A17).
//!
//! A [`Device`] is what one core owns: queue pairs, memory regions, completion queues. It does no I/O,
//! reads no clock, starts no thread, and touches memory only through [`Memory`]. Its loop is
//!
//! ```text
//! packets came      -> receive       for each
//! time has passed   -> on_deadline   if next_deadline says so
//! requests          -> post_send, post_receive
//! packets to send   <- transmit      until None: answers, then requests, queue pairs in turn
//! done              <- poll_cq       until None
//! nothing to do?       arm_cq, sleep until next_deadline
//! ```
//!
//! Two of them, with the wire between them as an array:
//!
//! ```
//! use roce::*;
//!
//! /// Memory of an engine that has one buffer.
//! struct Buffer(Vec<u8>);
//!
//! impl Memory for Buffer {
//!     fn read(&self, _: Handle, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
//!         let at = offset as usize;
//!         to.copy_from_slice(self.0.get(at..at + to.len()).ok_or(Fault)?);
//!         Ok(())
//!     }
//!     fn write(&mut self, _: Handle, offset: u64, from: &[u8]) -> Result<(), Fault> {
//!         let at = offset as usize;
//!         self.0.get_mut(at..at + from.len()).ok_or(Fault)?.copy_from_slice(from);
//!         Ok(())
//!     }
//! }
//!
//! let now = Time::ZERO;
//! let config = DeviceConfig::default();
//! let mut here = Device::new(&config, Secret::new([1, 2]))?; // drawn from the kernel in real life
//! let mut there = Device::new(&config, Secret::new([3, 4]))?;
//! let (mut ours, mut theirs) = (Buffer(b"perhaps".to_vec()), Buffer(vec![0; 7]));
//!
//! // Numbers and keys reach the other side by other means: SMC has its handshake.
//! let (a, b) = (here.create_qp(&QpConfig::default())?, there.create_qp(&QpConfig::default())?);
//! let way = Addresses::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into()).expect("one family");
//! let psn = Psn::new(0xff_ffff);
//! for (device, qpn, peer, way) in [(&mut here, a, b, way), (&mut there, b, a, way.reversed())] {
//!     device.init(qpn)?;
//!     device.ready_to_receive(qpn, &RtrAttributes::new(way, peer, psn, Mtu::B1024))?;
//!     device.ready_to_send(qpn, &RtsAttributes::new(psn))?;
//! }
//! let region = Region {
//!     domain: ProtectionDomain(0),
//!     address: 4096,
//!     len: 7,
//!     access: Access::REMOTE_WRITE,
//!     handle: Handle(0),
//! };
//! let (lkey, rkey) = (here.register(region)?, there.register(region)?);
//!
//! here.post_send(a, &SendRequest {
//!     id: 1,
//!     operation: Operation::Write { address: 4096, rkey: rkey.0 },
//!     source: Source::Pieces(&[Piece { key: lkey, address: 4096, len: 7 }]),
//!     immediate: None,
//!     signaled: true,
//!     solicited: false,
//! })?;
//! let mut buffer = [0; PACKET_MAX];
//! let packet = here.transmit(now, &ours, &mut buffer, 1).expect("the write");
//! let came = |flow: Flow| Arrival {
//!     addresses: flow.addresses,
//!     src_port: flow.src_port,
//!     marked: false,
//!     identification: None,
//! };
//! there.receive(now, &mut theirs, &came(packet.flow), &buffer[..packet.len])?;
//! assert_eq!(theirs.0, b"perhaps");
//!
//! let answer = there.transmit(now, &theirs, &mut buffer, 1).expect("the acknowledgement");
//! here.receive(now, &mut ours, &came(answer.flow), &buffer[..answer.len])?;
//! let cq = here.cqs().next().expect("there is one");
//! let done = here.poll_cq(cq)?.expect("the write is complete");
//! assert_eq!((done.id, done.status), (1, Status::Success));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cq;
mod deadlines;
mod device;
pub mod icrc;
mod memory;
mod number;
mod placement;
mod qp;
mod random;
mod rate;
mod reason;
mod ring;
mod rtt;
mod time;
pub mod wire;
mod work;

pub use cq::{Arm, CqCounters, CqId, Moderation, Overflow};
pub use device::{Arrival, BadConfig, CreateError, Device, DeviceConfig, PACKET_MAX, Transmit};
pub use icrc::{Addresses, Flow};
pub use memory::{Access, Fault, Handle, Key, Memory, ProtectionDomain, Region, RegionError};
pub use number::{Psn, Qpn};
pub use placement::{BadVectors, Placement};
pub use qp::{ModifyError, Outcome, QpConfig, RtrAttributes, RtsAttributes, State, View};
pub use random::Secret;
pub use rate::Dcqcn;
pub use reason::{Counters, REASONS, Reason};
pub use rtt::Retransmission;
pub use time::Time;
pub use wire::Mtu;
pub use work::{
    Completion, Kind, MESSAGE_MAX, Operation, PIECES_MAX, Piece, PostError, ReceiveRequest,
    SendRequest, Source, Status,
};
