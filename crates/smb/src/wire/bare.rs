//! Bodies that say nothing: LOGOFF, TREE_DISCONNECT, CANCEL, ECHO, and some answers (MS-SMB2 2.2.7, 2.2.8,
//! 2.2.11, 2.2.12, 2.2.28 to 2.2.30). All have a StructureSize of 4 and two reserved bytes.

use super::bytes::{Body, Writer};
use super::{BadMessage, Encode};

const STRUCTURE_SIZE: u16 = 4;

/// A request that says nothing but which one it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request;

/// An answer that says nothing but that it worked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Response;

impl Request {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is not 4 or the message is shorter.
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        Body::request(message, STRUCTURE_SIZE).map(|_| Self)
    }
}

impl Encode for Request {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        Writer::body(out, start, STRUCTURE_SIZE).u16(0);
    }
}

impl Response {
    /// Reads the body of `message`.
    ///
    /// # Errors
    ///
    /// [`BadMessage`] when StructureSize is not 4 or the message is shorter.
    pub fn parse(message: &[u8]) -> Result<Self, BadMessage> {
        Body::lenient(message, STRUCTURE_SIZE).map(|_| Self)
    }
}

impl Encode for Response {
    fn encode(&self, out: &mut Vec<u8>, start: usize) {
        Writer::body(out, start, STRUCTURE_SIZE).u16(0);
    }
}
