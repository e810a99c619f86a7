//! What a queue pair is made with, and what its states need.

use crate::cq::CqId;
use crate::icrc::Addresses;
use crate::memory::ProtectionDomain;
use crate::number::{Psn, Qpn};
use crate::rate::Dcqcn;
use crate::rtt::Retransmission;
use crate::wire::{Mtu, PKEY_DEFAULT, UDP_PORT};

/// Where a queue pair is in its life (IBTA vol. 1, 10.3.1).
///
/// ```text
/// Reset -> Init -> ReadyToReceive -> ReadyToSend
///   ^        '------------'--------------'-----> Error
///   '-------------------------------------------'
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Just made.
    Reset,
    /// Takes receive requests; packets for it are dropped.
    Init,
    /// Receives.
    ReadyToReceive,
    /// Receives and sends.
    ReadyToSend,
    /// Has failed or was taken down; all its requests are complete.
    Error,
}

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// Whose regions it may use.
    pub domain: ProtectionDomain,
    /// Requests to send that may be incomplete, 1 to 32,768.
    pub send_depth: u16,
    /// Requests to receive that may wait, 1 to 32,768.
    pub receive_depth: u16,
    /// The most bytes of an inline message, up to 1024; `send_depth` times this is taken at once.
    pub inline_max: u16,
    /// Where completions of requests to send go; `None`: the queue with the fewest users.
    pub send_cq: Option<CqId>,
    /// Where those of requests to receive go; `None`: the same, or the next one if the device splits.
    pub receive_cq: Option<CqId>,
}

impl Default for QpConfig {
    /// As Linux SMC makes them, with room for its messages.
    fn default() -> Self {
        Self {
            domain: ProtectionDomain(0),
            send_depth: 48,
            receive_depth: 48,
            inline_max: 64,
            send_cq: None,
            receive_cq: None,
        }
    }
}

/// What makes a queue pair ready to receive.
#[derive(Clone, Copy, Debug)]
pub struct RtrAttributes {
    /// From our address to the peer's. Packets from or to others are dropped.
    pub addresses: Addresses,
    /// The UDP source port of what we send.
    pub src_port: u16,
    /// DSCP and ECN bits of what we send; ECN is set to ECT(0) if congestion control is on.
    pub traffic_class: u8,
    /// The peer's queue pair.
    pub peer: Qpn,
    /// The number of the peer's first packet.
    pub receive_psn: Psn,
    /// Bytes of payload in packets of both directions: the smaller of both ends' MTU.
    pub mtu: Mtu,
    /// How long the peer is asked to wait when there is no receive request: see
    /// [`rnr_nanos`](crate::wire::rnr_nanos).
    pub min_rnr_timer: u8,
    /// Partition; 0xffff is everybody's.
    pub pkey: u16,
    /// The peer's IPv4 identifications are below this, which makes checks that cannot see them
    /// [stronger](crate::icrc). `None`: any, as Linux rxe and hardware have it.
    pub identification_end: Option<u16>,
    /// Congestion control, where both ends have it.
    pub congestion: Option<Dcqcn>,
}

impl RtrAttributes {
    /// As SMC sets them up.
    #[must_use]
    pub const fn new(addresses: Addresses, peer: Qpn, receive_psn: Psn, mtu: Mtu) -> Self {
        Self {
            addresses,
            src_port: UDP_PORT,
            traffic_class: 0,
            peer,
            receive_psn,
            mtu,
            min_rnr_timer: 5,
            pkey: PKEY_DEFAULT,
            identification_end: None,
            congestion: None,
        }
    }
}

/// What makes a queue pair ready to send.
#[derive(Clone, Copy, Debug)]
pub struct RtsAttributes {
    /// The number of our first packet.
    pub send_psn: Psn,
    /// How long to wait for an acknowledgement: 4.096 us times 2^timeout; 0: for ever.
    pub timeout: u8,
    /// How often to try again before the peer is given up, 0 to 7. Linux rxe takes 7 for always; we do
    /// not.
    pub retry_count: u8,
    /// How often to try again when the peer has no receive request, 0 to 6; 7: always.
    pub rnr_retry: u8,
    /// Packets that may be on their way, 1 to 16,384. Linux rxe has 128.
    pub window: u16,
    /// Packets after which an acknowledgement is asked for in the middle of a message.
    pub ack_every: u16,
    /// When to send again.
    pub retransmission: Retransmission,
}

impl RtsAttributes {
    /// As SMC sets them up: 134 ms, 7 times, and always when the receiver is not ready.
    #[must_use]
    pub const fn new(send_psn: Psn) -> Self {
        Self {
            send_psn,
            timeout: 15,
            retry_count: 7,
            rnr_retry: 7,
            window: 128,
            ack_every: 64,
            retransmission: Retransmission::Fixed,
        }
    }

    /// The same between Shunt hosts.
    #[must_use]
    pub const fn shunt(send_psn: Psn) -> Self {
        Self { retransmission: Retransmission::SHUNT, ..Self::new(send_psn) }
    }
}

/// A queue pair is not in a state from which this is possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// There is no such queue pair.
    #[error("there is no such queue pair")]
    Unknown,
    /// Not from this state.
    #[error("not possible for a queue pair in state {0:?}")]
    State(State),
}
