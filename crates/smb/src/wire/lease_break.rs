//! OPLOCK_BREAK about a lease (MS-SMB2 2.2.23.2, 2.2.24.2, 2.2.25.2).

use super::bytes::{Body, Writer};
use super::{BadMessage, Encode};
use crate::{LeaseKey, LeaseState};

const NOTIFICATION_SIZE: u16 = 44;
const ACKNOWLEDGEMENT_SIZE: u16 = 36;

/// Flags of a notification: SMB2_NOTIFY_BREAK_LEASE_FLAG_ACK_REQUIRED, the server waits for an acknowledgement.
pub const ACK_REQUIRED: u32 = 1;

/// A lease is to become less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Notification {
    /// The lease's new epoch (3.x), or 0.
    pub epoch: u16,
    /// [`ACK_REQUIRED`].
    pub flags: u32,
    /// The lease.
    pub key: LeaseKey,
    /// What it is.
    pub current: LeaseState,
    /// What it is to be.
    pub new: LeaseState,
}

impl Notification {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is not 44 or the message is shorter.
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        let body = Body::lenient(message, NOTIFICATION_SIZE)?;
        Ok(Self {
            epoch: body.u16(2),
            flags: body.u32(4),
            key: LeaseKey(body.chunk(8)),
            current: LeaseState::from_bits_retain(body.u32(24)),
            new: LeaseState::from_bits_retain(body.u32(28)),
        })
    }
}

impl Encode for Notification {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, NOTIFICATION_SIZE);
        to.u16(self.epoch).u32(self.flags).bytes(&self.key.0);
        // BreakReason, AccessMaskHint and ShareMaskHint are zero (MS-SMB2 2.2.23.2).
        to.u32(self.current.bits()).u32(self.new.bits()).zeros(12);
    }
}

/// What the client keeps of a lease; the answer has the same bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Acknowledgement {
    /// Reserved.
    pub flags: u32,
    /// The lease.
    pub key: LeaseKey,
    /// What it is now. Bits that mean nothing are kept, so that they can be refused.
    pub state: LeaseState,
}

/// The acknowledgement.
pub type Request = Acknowledgement;
/// The answer to it.
pub type Response = Acknowledgement;

impl Acknowledgement {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is not 36 or the message is shorter.
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        let body = Body::request(message, ACKNOWLEDGEMENT_SIZE)?;
        Ok(Self {
            flags: body.u32(4),
            key: LeaseKey(body.chunk(8)),
            state: LeaseState::from_bits_retain(body.u32(24)),
        })
    }
}

impl Encode for Acknowledgement {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, ACKNOWLEDGEMENT_SIZE);
        to.u16(0).u32(self.flags).bytes(&self.key.0).u32(self.state.bits()).u64(0);
    }
}
