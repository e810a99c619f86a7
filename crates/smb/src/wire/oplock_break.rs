//! OPLOCK_BREAK about an oplock (MS-SMB2 2.2.23.1, 2.2.24.1, 2.2.25.1). Notification, acknowledgement and answer
//! have the same bytes. What is about a lease is in [`super::lease_break`]; StructureSize tells them apart.

use super::bytes::{Body, Writer};
use super::lease_break;
use super::{BadMessage, Encode};
use crate::{FileId, OplockLevel};

const STRUCTURE_SIZE: u16 = 24;

/// The level to which an oplock is broken, or which the client now has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct OplockBreak {
    /// The new level.
    pub level: OplockLevel,
    /// The open.
    pub file: FileId,
}

/// What the server says of its own accord, with [`crate::MessageId::UNSOLICITED`].
pub type Notification = OplockBreak;
/// The acknowledgement.
pub type Request = OplockBreak;
/// The answer to it.
pub type Response = OplockBreak;

impl OplockBreak {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage::StructureSize`] when this is not about an oplock; [`BadMessage::Value`] for a level that
    /// means nothing.
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        let body = Body::request(message, STRUCTURE_SIZE)?;
        let level = OplockLevel::from_wire(body.u8(2)).ok_or(BadMessage::Value)?;
        Ok(Self { level, file: body.file_id(8) })
    }
}

impl Encode for OplockBreak {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        let mut to = Writer::body(out, start, STRUCTURE_SIZE);
        to.u8(self.level as u8).u8(0).u32(0).file_id(self.file);
    }
}

/// Either kind of acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Acknowledgement {
    /// Of an oplock.
    Oplock(OplockBreak),
    /// Of a lease.
    Lease(lease_break::Request),
}

impl Acknowledgement {
    /// Reads the body of `message`, whichever kind StructureSize says it is.
    ///
    /// # Errors
    ///
    /// As the two kinds' own `parse`.
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        match OplockBreak::parse(message) {
            Err(BadMessage::StructureSize) => lease_break::Request::parse(message).map(Self::Lease),
            oplock => oplock.map(Self::Oplock),
        }
    }
}
