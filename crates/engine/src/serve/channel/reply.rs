//! An answer being written: one frame of one or more messages.

use std::rc::Rc;
use std::sync::Arc;

use smb::crypto::{Signer, TRANSFORM_HEADER_LEN};
use smb::files::{FileKey, OpenId};
use smb::wire::error;
use smb::wire::header::{Flags, HEADER_LEN, Header, Patch, link_next};
use smb::wire::{Encode, FRAME_MAX};
use smb::{NtStatus, OplockLevel, SessionId, TreeId};

use super::super::command::read;
use super::super::fs;
use super::super::server::Lane;
use super::super::session::Session;
use super::super::transfer::{DataFile, Method, SendFile};
use super::backlog::Making;
use super::output::Outgoing;
use super::{Bound, spare};

/// Bytes of the length in front of a frame (MS-SMB2 2.1).
const LENGTH_LEN: usize = 4;

/// What a credit pays for, bytes (MS-SMB2 3.1.5.2).
const CREDIT: usize = 64 << 10;

/// Where the answer to a CREATE has the level of the oplock (MS-SMB2 2.2.14).
const OPLOCK_AT: usize = HEADER_LEN + 2;

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
    fill: Option<Fill>,
    /// Its memory, as far as that is much, until it is given to the output.
    making: Vec<Making>,
    /// Opens whose clients do not know of them yet, and where the messages begin that tell of them.
    untold: Vec<(usize, FileKey, OpenId)>,
}

impl Reply {
    /// An empty one, encrypted if `sealed` says for whom.
    pub(in crate::serve) fn new(sealed: Option<Arc<Session>>) -> Self {
        let base = LENGTH_LEN + if sealed.is_some() { TRANSFORM_HEADER_LEN } else { 0 };
        let mut bytes = Vec::with_capacity(base + 256);
        bytes.resize(base, 0);
        Self {
            bytes,
            base,
            messages: Vec::with_capacity(1),
            sealed,
            tail: None,
            fill: None,
            making: Vec::new(),
            untold: Vec::new(),
        }
    }

    /// Whether the frame may hold the answer to one more message of so many credits, each worth 64 KiB (MS-SMB2
    /// 3.3.5.2.5). So a compound has no more memory than one frame.
    pub(in crate::serve) fn has_room_for(&self, charge: u16) -> bool {
        let most = usize::from(charge.max(1)) * CREDIT;
        !self.is_compound() || self.bytes.len() + most + CREDIT <= FRAME_MAX
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
    pub(in crate::serve) fn make_room(&mut self, more: usize, making: Option<Making>) {
        self.making.extend(making);
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
        (self.tail, self.fill) = (None, None);
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

    /// The last message tells a client of an open that has an oplock.
    pub(in crate::serve) fn tells_of(&mut self, key: FileKey, open: OpenId) {
        let start = self.start();
        self.untold.push((start, key, open));
    }

    /// What its messages tell of such opens is about to be sent. `now`: what is left of an oplock, if it is still there.
    pub(super) fn tell(&mut self, now: impl Fn(FileKey, OpenId) -> Option<OplockLevel>) {
        for (start, key, open) in std::mem::take(&mut self.untold) {
            if let Some(level) = now(key, open)
                && let Some(told) = self.bytes.get_mut(start + OPLOCK_AT)
            {
                *told = level as u8;
            }
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

    /// The data that the last message's body announces is read from a file when the frame is finished, which
    /// then belongs on another thread: see [`Reply::elsewhere`].
    pub(in crate::serve) fn fill(&mut self, fill: Fill) {
        self.fill = Some(fill);
    }

    /// Whether there is only this message, and it is signed or encrypted.
    pub(in crate::serve) fn is_single(&self) -> bool {
        self.messages.len() == 1
    }

    /// What is left to be done, where it is so much that another thread may do it. Nothing else is in the frame
    /// then.
    pub(super) fn elsewhere(&mut self) -> Option<Elsewhere> {
        let fill = self.fill.take()?;
        let start = self.start();
        let signer = self.messages.pop().and_then(|(_, bound)| bound?.signer.clone());
        let (bytes, sealed) = (std::mem::take(&mut self.bytes), self.sealed.take());
        let making = std::mem::take(&mut self.making);
        Some(Elsewhere { bytes, start, fill, signer, sealed, making })
    }

    /// Signs, encrypts and measures it. `None`: there is nothing to send, or it cannot be sent.
    pub(super) fn finish(mut self) -> Option<Outgoing> {
        if let Some(elsewhere) = self.elsewhere() {
            return Some(Outgoing::Bytes(elsewhere.finish()?, 0));
        }
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
        seal(&mut self.bytes, self.sealed.as_deref(), tail)?;
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

/// Encrypts a frame if it is to be, and writes its length in front; `tail` bytes follow it.
fn seal(bytes: &mut [u8], sealed: Option<&Session>, tail: usize) -> Option<()> {
    if let Some(encryption) = sealed.and_then(|session| session.encryption.as_ref()) {
        encryption.sealer.seal(&mut bytes[LENGTH_LEN..]).ok()?;
    }
    let len = bytes.len() - LENGTH_LEN + tail;
    let len = u32::try_from(len).ok().filter(|_| len <= FRAME_MAX)?;
    bytes[..LENGTH_LEN].copy_from_slice(&len.to_be_bytes());
    Some(())
}

/// The frame of one message, neither signed nor encrypted, of which only the head is here, as an error.
pub(super) fn refusal(mut head: Vec<u8>, status: NtStatus) -> Vec<u8> {
    let start = LENGTH_LEN;
    head.truncate(start + HEADER_LEN);
    error::Response::EMPTY.encode(&mut head, start);
    if let Some(mut header) = Patch::of(&mut head[start..]) {
        header.status(status);
    }
    let len = u32::try_from(head.len() - LENGTH_LEN).unwrap_or(0);
    head[..LENGTH_LEN].copy_from_slice(&len.to_be_bytes());
    head
}

/// Data of a file that the last message is to hold.
pub(in crate::serve) struct Fill {
    pub(in crate::serve) file: Arc<DataFile>,
    pub(in crate::serve) offset: u64,
    /// Bytes that the message's body announces.
    pub(in crate::serve) len: usize,
    /// With fewer the answer is END_OF_FILE.
    pub(in crate::serve) least: usize,
    /// Where it is done; given up when it is.
    pub(in crate::serve) lane: Lane,
}

/// A large answer to READ that is complete but for its data and its signature or encryption.
pub(super) struct Elsewhere {
    bytes: Vec<u8>,
    /// Where its one message begins.
    start: usize,
    fill: Fill,
    signer: Option<Arc<Signer>>,
    sealed: Option<Arc<Session>>,
    making: Vec<Making>,
}

impl Elsewhere {
    /// Its account of memory, to be kept until the output has one.
    pub(super) fn making(&mut self) -> Vec<Making> {
        std::mem::take(&mut self.making)
    }

    /// The frame. `None`: it cannot be sent.
    pub(super) fn finish(self) -> Option<Vec<u8>> {
        let Self { mut bytes, start, fill, signer, sealed, .. } = self;
        let read = read::append(&fill.file, &mut bytes, fill.len, fill.offset);
        let failed = match read {
            Ok(read) if read == 0 || read < fill.least => Some(NtStatus::END_OF_FILE),
            Ok(read) => {
                read::announce(&mut bytes, start, read);
                None
            }
            Err(error) => Some(fs::status_of(&error)),
        };
        if let Some(status) = failed {
            bytes.truncate(start + HEADER_LEN);
            error::Response::EMPTY.encode(&mut bytes, start);
            if let Some(mut header) = Patch::of(&mut bytes[start..]) {
                header.status(status);
            }
        }
        if sealed.is_none()
            && let Some(signer) = signer
        {
            signer.sign(&mut bytes[start..]).ok()?;
        }
        seal(&mut bytes, sealed.as_deref(), 0)?;
        drop(fill.lane);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::AtomicUsize;

    use smb::MessageId;
    use smb::wire::header::Command;
    use smb::wire::read::{Head, Response};

    use super::*;

    /// A read of `len` bytes from 3 on, in a file of ten, finished elsewhere; and places on lanes that are left.
    fn read_elsewhere(len: usize, least: usize) -> (Vec<u8>, usize) {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let lanes = Arc::new(AtomicUsize::new(1));
        let mut reply = Reply::new(None);
        let asked = Header { message_id: MessageId(7), ..Header::request(Command::Read) };
        reply.begin(&asked.answer(NtStatus::SUCCESS));
        reply.write(&Head { data_len: 10, ..Head::default() });
        let file = Arc::new(DataFile::new(file).unwrap());
        reply.fill(Fill { file, offset: 3, len, least, lane: Lane::of(&lanes) });
        reply.complete(NtStatus::SUCCESS, 1, None);
        let rest = reply.elsewhere().unwrap();
        assert!(reply.finish().is_none(), "it is nowhere else any more");
        let frame = std::thread::spawn(move || rest.finish()).join().unwrap().unwrap();
        let taken = lanes.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(
            usize::try_from(u32::from_be_bytes(*frame.first_chunk().unwrap())),
            Ok(frame.len() - 4)
        );
        (frame[LENGTH_LEN..].to_vec(), taken)
    }

    #[test]
    fn what_is_finished_elsewhere_holds_what_the_file_has() {
        for len in [5, 7, 20] {
            let (message, taken) = read_elsewhere(len, 0);
            assert_eq!(taken, 0, "its lane is free again");
            assert_eq!(Header::parse(&message).unwrap().status, NtStatus::SUCCESS);
            let response = Response::parse(&message).unwrap();
            assert_eq!(response.data, &b"3456789"[..len.min(7)]);
        }
    }

    fn answer(reply: &mut Reply, body: &[u8]) {
        reply.begin(&Header::request(Command::Read).answer(NtStatus::SUCCESS));
        reply.write(&Response { data: body, ..Response::default() });
        reply.complete(NtStatus::SUCCESS, 1, None);
    }

    #[test]
    fn the_last_of_a_compound_is_padded_and_one_alone_is_not() {
        let mut reply = Reply::new(None);
        answer(&mut reply, b"abc");
        let Some(Outgoing::Bytes(alone, 0)) = reply.finish() else { panic!("bytes") };
        assert_eq!(alone.len(), LENGTH_LEN + HEADER_LEN + 16 + 3);
        let mut reply = Reply::new(None);
        answer(&mut reply, b"abc");
        answer(&mut reply, b"abc");
        let Some(Outgoing::Bytes(both, 0)) = reply.finish() else { panic!("bytes") };
        assert_eq!(both.len(), LENGTH_LEN + 2 * (HEADER_LEN + 24));
    }

    #[test]
    fn a_frame_with_data_of_a_file_is_as_long_as_both() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut reply = Reply::new(None);
        reply.begin(&Header::request(Command::Read).answer(NtStatus::SUCCESS));
        reply.write(&Head { data_len: 10, ..Head::default() });
        reply.tail(Arc::new(DataFile::new(file).unwrap()), 0, 10, Method::Copy);
        reply.complete(NtStatus::SUCCESS, 1, None);
        let Some(Outgoing::File(_, whole)) = reply.finish() else { panic!("a file") };
        assert_eq!(whole, LENGTH_LEN + HEADER_LEN + 16 + 10);
    }

    #[test]
    fn a_file_that_became_shorter_meanwhile_is_an_error() {
        let (message, _) = read_elsewhere(20, 8);
        let header = Header::parse(&message).unwrap();
        assert_eq!(header.status, NtStatus::END_OF_FILE);
        assert_eq!(message.len(), HEADER_LEN + 9);
    }
}
