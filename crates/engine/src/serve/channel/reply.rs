//! An answer being written: one frame of one or more messages.

use std::rc::Rc;
use std::sync::Arc;

use smb::crypto::TRANSFORM_HEADER_LEN;
use smb::wire::Encode;
use smb::wire::error;
use smb::wire::header::{Flags, HEADER_LEN, Header, Patch, link_next};
use smb::{NtStatus, SessionId, TreeId};

use super::super::session::Session;
use super::super::transfer::{DataFile, Method, SendFile};
use super::output::Outgoing;
use super::{Bound, spare};

/// Bytes of the length in front of a frame (MS-SMB2 2.1).
const LENGTH_LEN: usize = 4;

/// Where a header has the tree and the session, bytes from its beginning (MS-SMB2 2.2.1.2).
const TREE_AT: usize = 36;
const SESSION_AT: usize = 40;

/// Data of a file that follows the last message.
struct Tail {
    file: Arc<DataFile>,
    offset: u64,
    len: u32,
    method: Method,
}

/// A frame that grows.
pub(in crate::serve) struct Reply {
    bytes: Vec<u8>,
    /// Where the first message begins.
    base: usize,
    /// Where each message begins, and who signs it.
    messages: Vec<(usize, Option<Rc<Bound>>)>,
    /// Whose keys encrypt it.
    sealed: Option<Arc<Session>>,
    tail: Option<Tail>,
}

impl Reply {
    /// An empty one, encrypted if `sealed` says for whom.
    pub(in crate::serve) fn new(sealed: Option<Arc<Session>>) -> Self {
        let base = LENGTH_LEN + if sealed.is_some() { TRANSFORM_HEADER_LEN } else { 0 };
        let mut bytes = Vec::with_capacity(base + 256);
        bytes.resize(base, 0);
        Self { bytes, base, messages: Vec::with_capacity(1), sealed, tail: None }
    }

    /// Whether there is more than one message in it.
    pub(in crate::serve) fn is_compound(&self) -> bool {
        self.messages.len() > 1
    }

    pub(in crate::serve) fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Begins a message after those before it, with this header.
    pub(in crate::serve) fn begin(&mut self, header: &Header) {
        if let Some((start, _)) = self.messages.last() {
            link_next(&mut self.bytes, *start);
        }
        let start = header.encode(&mut self.bytes);
        self.messages.push((start, None));
    }

    /// The bytes so far, to append the body of the last message to, and where that message begins.
    pub(in crate::serve) fn body(&mut self) -> (&mut Vec<u8>, usize) {
        let start = self.start();
        (&mut self.bytes, start)
    }

    /// Makes room for so many bytes more, of memory that was used before where that is much.
    pub(in crate::serve) fn make_room(&mut self, more: usize) {
        spare::make_room(&mut self.bytes, more);
    }

    /// Writes the body of the last message.
    pub(in crate::serve) fn write(&mut self, body: &impl Encode) {
        let (bytes, start) = self.body();
        body.encode(bytes, start);
    }

    /// Replaces whatever body the last message has by an error's.
    pub(in crate::serve) fn fail(&mut self, body: &error::Response<'_>) {
        let start = self.start();
        self.bytes.truncate(start + HEADER_LEN);
        self.tail = None;
        body.encode(&mut self.bytes, start);
    }

    /// The data that the last message's body announces comes from a file.
    pub(in crate::serve) fn tail(
        &mut self,
        file: Arc<DataFile>,
        offset: u64,
        len: u32,
        method: Method,
    ) {
        self.tail = Some(Tail { file, offset, len, method });
    }

    /// Completes the header of the last message.
    pub(in crate::serve) fn complete(
        &mut self,
        status: NtStatus,
        credits: u16,
        sign: Option<Rc<Bound>>,
    ) {
        let start = self.start();
        if let Some(mut header) = Patch::of(&mut self.bytes[start..]) {
            header.status(status).credits(credits);
        }
        if let Some((_, signer)) = self.messages.last_mut() {
            *signer = sign;
        }
    }

    /// The last message's header says that it is signed, though nobody here has the key to sign it with.
    pub(super) fn claim_signature(&mut self) {
        let start = self.start();
        if let Some(mut header) = Patch::of(&mut self.bytes[start..]) {
            header.add_flags(Flags::SIGNED);
        }
    }

    /// The last message's header names this tree.
    pub(in crate::serve) fn name_tree(&mut self, tree: TreeId) {
        let at = self.start() + TREE_AT;
        self.bytes[at..at + 4].copy_from_slice(&tree.0.to_le_bytes());
    }

    /// The last message's header names this session.
    pub(in crate::serve) fn name_session(&mut self, session: SessionId) {
        let at = self.start() + SESSION_AT;
        self.bytes[at..at + 8].copy_from_slice(&session.0.to_le_bytes());
    }

    /// Signs the last message as it stands, for those who need its bytes before it goes.
    pub(in crate::serve) fn sign_now(&mut self) {
        let start = self.start();
        let signer = self.messages.last().and_then(|(_, bound)| bound.clone());
        if let Some(signer) = signer.as_ref().and_then(|bound| bound.signer.as_ref()) {
            // There is a header: `begin` wrote it.
            let _ = signer.sign(&mut self.bytes[start..]);
        }
    }

    /// Takes back the last message.
    pub(in crate::serve) fn withdraw(&mut self) {
        if let Some((start, _)) = self.messages.pop() {
            self.bytes.truncate(start);
            if let Some((before, _)) = self.messages.last()
                && let Some(mut header) = Patch::of(&mut self.bytes[*before..])
            {
                header.next(0);
            }
        }
    }

    /// The last message as it stands.
    pub(in crate::serve) fn last(&self) -> &[u8] {
        &self.bytes[self.start()..]
    }

    fn start(&self) -> usize {
        self.messages.last().map_or(self.base, |(start, _)| *start)
    }

    /// Signs, encrypts and measures it. `None`: there is nothing to send, or it cannot be sent.
    pub(super) fn finish(mut self) -> Option<Outgoing> {
        if self.messages.is_empty() {
            return None;
        }
        let tail = self.tail.as_ref().map_or(0, |tail| tail.len as usize);
        if self.messages.len() > 1 {
            // The last of a compound is padded as well, as Windows does: clients take its length from the frame's.
            let padded = self.base + (self.bytes.len() - self.base).next_multiple_of(8);
            self.bytes.resize(padded, 0);
        }
        if self.sealed.is_none() {
            for index in 0..self.messages.len() {
                let end =
                    self.messages.get(index + 1).map_or(self.bytes.len(), |(start, _)| *start);
                let (start, bound) = &self.messages[index];
                if let Some(signer) = bound.as_ref().and_then(|bound| bound.signer.as_ref()) {
                    signer.sign(&mut self.bytes[*start..end]).ok()?;
                }
            }
        }
        if let Some(encryption) =
            self.sealed.as_ref().and_then(|session| session.encryption.as_ref())
        {
            encryption.sealer.seal(&mut self.bytes[LENGTH_LEN..]).ok()?;
        }
        let len = u32::try_from(self.bytes.len() - LENGTH_LEN + tail).ok()?;
        self.bytes[..LENGTH_LEN].copy_from_slice(&len.to_be_bytes());
        Some(match self.tail {
            None => Outgoing::Bytes(self.bytes, 0),
            Some(tail) => {
                let whole = self.bytes.len() + tail.len as usize;
                let file = SendFile::new(self.bytes, tail.file, tail.offset, tail.len, tail.method);
                Outgoing::File(Box::new(file), whole)
            }
        })
    }
}
