//! AAPL, the context by which macOS asks what a server can (Apple's SMB2 Create Context extension). Of its
//! commands only SERVER_QUERY is spoken.

use bitflags::bitflags;

use crate::wire::BadMessage;
use crate::wire::bytes::{Fields, Writer};

/// kAAPL_SERVER_QUERY.
const SERVER_QUERY: u32 = 1;

bitflags! {
    /// Which of the answers are wanted, or given.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ServerQuery: u64 {
        /// kAAPL_SERVER_CAPS.
        const SERVER_CAPS = 1;
        /// kAAPL_VOLUME_CAPS.
        const VOLUME_CAPS = 2;
        /// kAAPL_MODEL_INFO.
        const MODEL = 4;
        const _ = !0;
    }
}

/// What a client asks: SERVER_QUERY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AppleQuery {
    /// What it wants to know.
    pub wanted: ServerQuery,
    /// What it can: kAAPL_SUPPORTS_READ_DIR_ATTR (1), _OSX_COPYFILE (2), _UNIX_BASED (4), _NFS_ACE (8).
    pub client_caps: u64,
}

impl AppleQuery {
    /// Reads the data of a context; `None`: another command.
    ///
    /// # Errors
    ///
    /// [`BadMessage::Truncated`] when it is shorter than its command needs.
    pub fn parse(data: &[u8]) -> Result<Option<Self>, BadMessage> {
        let fields = Fields::at_least(data, 4)?;
        if fields.u32(0) != SERVER_QUERY {
            return Ok(None);
        }
        let fields = Fields::at_least(data, 24)?;
        let wanted = ServerQuery::from_bits_retain(fields.u64(8));
        Ok(Some(Self { wanted, client_caps: fields.u64(16) }))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut to = Writer::new(out, 0);
        to.u32(SERVER_QUERY).u32(0).u64(self.wanted.bits()).u64(self.client_caps);
    }
}

/// What a server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerReply<'a> {
    /// What the server can, in the bits of [`AppleQuery::client_caps`].
    pub server_caps: Option<u64>,
    /// What the volume can: kAAPL_SUPPORT_RESOLVE_ID (1), _CASE_SENSITIVE (2), _SUPPORTS_FULL_SYNC (4).
    pub volume_caps: Option<u64>,
    /// The model, UTF-16LE.
    pub model: Option<&'a [u8]>,
}

/// What a server answers to SERVER_QUERY.
pub type AppleReply<'a> = ServerReply<'a>;

impl<'a> ServerReply<'a> {
    /// Reads the data of a context; `None`: the answer to another command.
    ///
    /// # Errors
    ///
    /// [`BadMessage::Truncated`] when it is shorter than it says.
    pub fn parse(data: &'a [u8]) -> Result<Option<Self>, BadMessage> {
        let fields = Fields::at_least(data, 4)?;
        if fields.u32(0) != SERVER_QUERY {
            return Ok(None);
        }
        let given = ServerQuery::from_bits_retain(Fields::at_least(data, 16)?.u64(8));
        let mut rest = &data[16..];
        let mut caps = |bit| -> Result<Option<u64>, BadMessage> {
            if !given.contains(bit) {
                return Ok(None);
            }
            let caps = Fields::at_least(rest, 8)?.u64(0);
            rest = &rest[8..];
            Ok(Some(caps))
        };
        let server_caps = caps(ServerQuery::SERVER_CAPS)?;
        let volume_caps = caps(ServerQuery::VOLUME_CAPS)?;
        let model = match given.contains(ServerQuery::MODEL) {
            false => None,
            true => {
                let len = Fields::at_least(rest, 8)?.len32(4);
                Some(rest[8..].get(..len).ok_or(BadMessage::Truncated)?)
            }
        };
        Ok(Some(Self { server_caps, volume_caps, model }))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mut given = ServerQuery::empty();
        given.set(ServerQuery::SERVER_CAPS, self.server_caps.is_some());
        given.set(ServerQuery::VOLUME_CAPS, self.volume_caps.is_some());
        given.set(ServerQuery::MODEL, self.model.is_some());
        let mut to = Writer::new(out, 0);
        to.u32(SERVER_QUERY).u32(0).u64(given.bits());
        for caps in [self.server_caps, self.volume_caps].into_iter().flatten() {
            to.u64(caps);
        }
        if let Some(model) = self.model {
            to.u32(0).len32(model.len()).bytes(model);
        }
    }
}
