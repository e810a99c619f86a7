//! One request and its answer: who asks, may they, and what is said back (MS-SMB2 3.3.5.2).

use std::future::Future;
use std::ops::DerefMut;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use smb::crypto::{Signer, TransformHeader};
use smb::session::{Dialect, Grant};
use smb::wire::compound::Compound;
use smb::wire::header::{Command, Flags, HEADER_LEN, Header, PROTOCOL_ID, Target};
use smb::wire::smb1::{self, Offer};
use smb::wire::{credit_charge_needed, error};
use smb::{FileId, NtStatus, SessionId, TreeId};

use super::super::acting::{Whose, acting};
use super::super::command;
use super::super::open::{Open, Sequenced};
use super::super::runtime;
use super::super::server::{Lane, Server};
use super::super::session::{Session, Tree};
use super::{Agreed, Bound, Channel, Outgoing, Reply, UnderWay};

/// How long a request may wait before its client is told that it does (MS-SMB2 3.3.4.2).
pub(in crate::serve) const PATIENCE: Duration = Duration::from_micros(500);

/// Control codes that are about the connection (MS-SMB2 2.2.31), the first of which only Samba's tests send.
const FORCE_UNACKED_TIMEOUT: u32 = 0x8384_8003;
const VALIDATE_NEGOTIATE_INFO: u32 = 0x0014_0204;
const QUERY_NETWORK_INTERFACE_INFO: u32 = 0x0014_01fc;

/// What a request of a compound leaves to those after it.
#[derive(Default)]
struct Before {
    any: bool,
    /// Bytes of the frame that all of it is in.
    frame_len: usize,
    session: SessionId,
    tree: TreeId,
    file: Option<Arc<Open>>,
    /// What became of a create that those after it would use.
    failed: Option<NtStatus>,
    /// By whom the signature of the only message of a frame was found right before it came here.
    verified: Option<Arc<Signer>>,
}

/// A request that is being served.
pub(in crate::serve) struct Exchange<'m> {
    pub(in crate::serve) channel: &'m Rc<Channel>,
    pub(in crate::serve) header: Header,
    /// The message from its header on.
    pub(in crate::serve) message: &'m [u8],
    /// The session on this channel, of commands that need one.
    pub(in crate::serve) bound: Option<Rc<Bound>>,
    /// The tree, of commands that need one.
    tree: Option<Arc<Tree>>,
    pub(in crate::serve) reply: &'m mut Reply,
    before: &'m mut Before,
    /// Nothing follows in this compound.
    pub(in crate::serve) last: bool,
    waiting: Option<Rc<UnderWay>>,
    /// The client has been told that it takes longer.
    interim: bool,
    /// As what the channel sequence of its open counts this request.
    sequenced: Option<Sequenced>,
    /// The answer is to be signed even if the request was not.
    pub(in crate::serve) sign: bool,
    /// What an error tells beside its status, if it tells anything.
    pub(in crate::serve) detail: Vec<u8>,
    /// When it came.
    began: Instant,
}

/// What is to become of the connection after a message.
pub(in crate::serve) enum After {
    Next,
    /// Nothing is answered, and nothing more is read.
    Drop,
}

/// A frame that is being served. One that has no answer, because it is no SMB or because serving it panicked, is
/// the last of its connection.
pub(in crate::serve) struct Serving {
    channel: Rc<Channel>,
    /// It was answered.
    pub(in crate::serve) went_well: bool,
}

impl Serving {
    pub(in crate::serve) fn new(channel: &Rc<Channel>) -> Self {
        channel.serving.set(channel.serving.get() + 1);
        Self { channel: channel.clone(), went_well: false }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.channel.serving.set(self.channel.serving.get() - 1);
        if !self.went_well {
            self.channel.end();
        }
    }
}

impl Channel {
    /// Serves one frame, of one message if somebody has `verified` it.
    pub(super) async fn serve_frame(
        self: Rc<Self>,
        mut frame: impl DerefMut<Target = [u8]> + 'static,
        verified: Option<Arc<Signer>>,
    ) {
        let mut serving = Serving::new(&self);
        if let After::Next = self.frame(&mut frame, verified).await {
            serving.went_well = true;
        }
    }

    async fn frame(self: &Rc<Self>, frame: &mut [u8], verified: Option<Arc<Signer>>) -> After {
        let (mut sealed, frame_len) = (None, frame.len());
        let mut message: &[u8] = frame;
        if frame.starts_with(&smb::crypto::TRANSFORM_ID) {
            let Some((session, range)) = self.unseal(frame) else { return After::Drop };
            sealed = Some(session);
            message = &frame[range];
        }
        if !message.starts_with(&PROTOCOL_ID) {
            if sealed.is_none() && self.agreed.get().is_none() && !self.multi_protocol.get() {
                return self.smb1(message).await;
            }
            return After::Drop;
        }
        if self.consume(message).is_err() {
            return After::Drop;
        }
        let mut before = Before { verified, frame_len, ..Before::default() };
        let mut reply = Reply::new(sealed.clone());
        for element in Compound::new(message) {
            let Ok(element) = element else { return After::Drop };
            let body = &message[element.range.clone()];
            let last = element.header.next == 0;
            let served =
                self.element(element.header, body, last, sealed.as_ref(), &mut before, &mut reply);
            if let After::Drop = served.await {
                return After::Drop;
            }
        }
        self.tell_opens(&mut reply);
        let mut making = Vec::new();
        let frame = match reply.elsewhere() {
            Some(mut rest) => {
                making = rest.making();
                let frame = runtime::offload(move || rest.finish()).await;
                frame.map(|bytes| Outgoing::Bytes(bytes, 0))
            }
            None => reply.finish(),
        };
        if let Some(frame) = frame {
            self.send(frame);
        }
        drop(making);
        After::Next
    }

    /// The clients of opens that an answer tells of know of them when it is sent, which is now: from here on they are told
    /// that an oplock is broken. Of one that has been broken since it was granted the answer tells what is left.
    fn tell_opens(&self, reply: &mut Reply) {
        reply.tell(|key, open| {
            let tell = self.server.with_file(key, |shard, effects| shard.tell(key, open, effects));
            tell.map(|granted| granted.oplock)
        });
    }

    /// An SMB1 negotiate: answered so that the client goes on in SMB2 (MS-SMB2 3.3.5.3.1). Who offers nothing that is
    /// spoken here is told so, as by Samba, where MS-SMB2 would have it find out by the end of the connection: curl goes
    /// on asking for an answer then, for ever and without a pause.
    async fn smb1(self: &Rc<Self>, message: &[u8]) -> After {
        let Ok(offer) = Offer::parse(message) else { return After::Drop };
        if let Some(reply) = command::negotiate::multi_protocol(self, offer) {
            if let Some(frame) = reply.finish() {
                self.send(frame);
            }
            return After::Next;
        }
        let refusal = smb1::refusal(message);
        self.send(Outgoing::Bytes([&[0, 0, 0, smb1::REFUSAL_LEN][..], &refusal].concat(), 0));
        self.output.uncork();
        self.output.below(0).await;
        After::Drop
    }

    /// Decrypts a frame in place.
    fn unseal(&self, frame: &mut [u8]) -> Option<(Arc<Session>, std::ops::Range<usize>)> {
        let header = TransformHeader::parse(frame).ok()?;
        // One of another connection can be opened too, so that its client is told in secret that it is not here. From
        // somebody who has no session here, nothing is opened.
        let session = match self.bound(header.session) {
            Some(bound) => bound.session.clone(),
            None if self.sessions.borrow().is_empty() => return None,
            None => self.server.session(header.session)?,
        };
        let range = session.encryption.as_ref()?.opener.open(frame).ok()?;
        Some((session, range))
    }

    /// Takes the message ids of all messages of a frame. A client that uses one twice, or one that it was not
    /// given, is not one to go on with (MS-SMB2 3.3.5.2.3).
    fn consume(&self, message: &[u8]) -> Result<(), ()> {
        let mut window = self.window.borrow_mut();
        let multi_credit = self.agreed.get().is_some_and(|agreed| agreed.dialect.has_large_mtu());
        for element in Compound::new(message) {
            let header = element.map_err(drop)?.header;
            if header.command == Command::Cancel || header.is_response() {
                continue;
            }
            let charge = if multi_credit { header.credit_charge.max(1) } else { 1 };
            window.consume(header.message_id, charge).map_err(drop)?;
        }
        Ok(())
    }

    async fn element(
        self: &Rc<Self>,
        header: Header,
        message: &[u8],
        last: bool,
        sealed: Option<&Arc<Session>>,
        before: &mut Before,
        reply: &mut Reply,
    ) -> After {
        if header.is_response() {
            return After::Drop;
        }
        if self.agreed.get().is_none() && header.command != Command::Negotiate {
            return After::Drop;
        }
        if header.command == Command::Cancel {
            // It has no answer, not even one that says what is wrong with it.
            if self.admit(&header, message, sealed, header.session, None).is_ok() {
                self.cancel(header.message_id, header.async_id());
            }
            return After::Next;
        }
        reply.begin(&header.answer(NtStatus::SUCCESS));
        let mut exchange = Exchange {
            channel: self,
            header,
            message,
            bound: None,
            tree: None,
            reply,
            before,
            last,
            waiting: None,
            interim: false,
            sequenced: None,
            sign: false,
            detail: Vec::new(),
            began: Instant::now(),
        };
        let room = exchange.reply.has_room_for(exchange.header.credit_charge);
        let result = match exchange.prepare(sealed) {
            // Whose it is had to be known: a refusal is signed as well.
            Ok(()) if !room => Err(NtStatus::INSUFFICIENT_RESOURCES),
            Ok(()) => {
                let whose = exchange.whose();
                let served = acting(whose, Box::pin(command::serve(&mut exchange))).await;
                // There is no memory to be somebody else with.
                served.unwrap_or(Err(NtStatus::INSUFFICIENT_RESOURCES))
            }
            Err(status) => Err(status),
        };
        exchange.finish(result, sealed)
    }

    /// Whether the session may be used in the way that this message does (MS-SMB2 3.3.5.2.4, 3.3.5.2.9).
    fn admit(
        &self,
        header: &Header,
        message: &[u8],
        sealed: Option<&Arc<Session>>,
        session: SessionId,
        verified: Option<&Arc<Signer>>,
    ) -> Result<(), NtStatus> {
        if header.flags.intersects(self.senseless(header.command)) {
            return Err(NtStatus::INVALID_PARAMETER);
        }
        if let Some(sealed) = sealed {
            // Echoes and the like may name no session at all.
            let named = self.bound(session).is_none() || sealed.id == session;
            return if named { Ok(()) } else { Err(NtStatus::ACCESS_DENIED) };
        }
        let signed = header.flags.contains(Flags::SIGNED);
        match self.bound(session) {
            Some(bound) => {
                if signed && let Some(signer) = &bound.signer {
                    // It was the session's when it was asked, and has to be now.
                    let done = verified.is_some_and(|verified| Arc::ptr_eq(verified, signer));
                    if !done {
                        signer.verify_message(message).map_err(|_| NtStatus::ACCESS_DENIED)?;
                    }
                } else if bound.session.must_sign && header.command != Command::Cancel {
                    return Err(NtStatus::ACCESS_DENIED);
                }
            }
            // Nobody knows whether it is right.
            None if signed
                && !matches!(header.command, Command::Negotiate | Command::SessionSetup) =>
            {
                return Err(NtStatus::USER_SESSION_DELETED);
            }
            None => {}
        }
        Ok(())
    }

    /// Flags that no request for this command has, at this dialect (MS-SMB2 2.2.1.2).
    fn senseless(&self, command: Command) -> Flags {
        let dialect = self.agreed.get().map(|agreed| agreed.dialect);
        let mut sense = Flags::RELATED | Flags::SIGNED | Flags::DFS;
        if dialect.is_none_or(|dialect| dialect >= Dialect::Smb311) {
            sense |= Flags::PRIORITY;
        }
        if dialect.is_none_or(Dialect::is_smb3) {
            sense |= Flags::REPLAY;
        }
        if command == Command::Cancel {
            sense |= Flags::ASYNC;
        }
        !sense
    }

    fn may_be_unbound(&self, command: Command) -> bool {
        matches!(
            command,
            Command::Negotiate | Command::SessionSetup | Command::Cancel | Command::Echo
        )
    }
}

impl<'m> Exchange<'m> {
    pub(in crate::serve) fn server(&self) -> &'m Arc<Server> {
        &self.channel.server
    }

    /// On whose behalf the command is done, if it may touch files by other means than an open that there is.
    fn whose(&self) -> Whose {
        let touches = !matches!(
            self.header.command,
            Command::Negotiate
                | Command::SessionSetup
                | Command::Echo
                | Command::Read
                | Command::Lock
                | Command::OplockBreak
        );
        let bound = self.bound.as_ref().filter(|_| touches)?;
        bound.recent.whose(&bound.session, self.server())
    }

    /// What was negotiated. Commands but NEGOTIATE are served only once something was.
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER before that.
    pub(in crate::serve) fn agreed(&self) -> Result<&'m Agreed, NtStatus> {
        self.channel.agreed.get().ok_or(NtStatus::INVALID_PARAMETER)
    }

    /// The session.
    ///
    /// # Errors
    ///
    /// USER_SESSION_DELETED if there is none.
    pub(in crate::serve) fn session(&self) -> Result<&Arc<Session>, NtStatus> {
        self.bound.as_ref().map(|bound| &bound.session).ok_or(NtStatus::USER_SESSION_DELETED)
    }

    /// The tree.
    ///
    /// # Errors
    ///
    /// NETWORK_NAME_DELETED if there is none.
    pub(in crate::serve) fn tree(&self) -> Result<&Arc<Tree>, NtStatus> {
        self.tree.as_ref().ok_or(NtStatus::NETWORK_NAME_DELETED)
    }

    /// Looks session, signature and tree up, before anything is done.
    fn prepare(&mut self, sealed: Option<&Arc<Session>>) -> Result<(), NtStatus> {
        let header = &self.header;
        let mut session = header.session;
        let mut tree = header.tree().unwrap_or_default();
        if header.is_related() {
            if !self.before.any {
                return Err(NtStatus::INVALID_PARAMETER);
            }
            session = self.before.session;
            tree = self.before.tree;
        } else {
            self.before.file = None;
            self.before.failed = None;
        }
        // Those related to one without a session are related to nothing.
        self.before.any = false;
        self.before.session = session;
        self.before.tree = tree;
        let command = header.command;
        // Known before it is looked at, so that a refusal is signed: else the client does not believe it.
        self.bound = self.channel.bound(session);
        let verified = self.before.verified.take();
        self.channel.admit(header, self.message, sealed, session, verified.as_ref())?;
        self.before.any = self.bound.is_some() || self.channel.may_be_unbound(command);
        let code = self.control_code();
        let Some(bound) = &self.bound else {
            let test_code =
                self.channel.server.config.test_codes && code == Some(FORCE_UNACKED_TIMEOUT);
            return if test_code || self.channel.may_be_unbound(command) {
                Ok(())
            } else {
                Err(NtStatus::USER_SESSION_DELETED)
            };
        };
        if bound.session.is_closed() {
            return Err(NtStatus::USER_SESSION_DELETED);
        }
        let now = self.channel.server.now();
        let survives = matches!(
            command,
            Command::SessionSetup
                | Command::Logoff
                | Command::Close
                | Command::Lock
                | Command::Cancel
                | Command::Echo
        );
        if !survives && bound.session.is_expired(now) {
            return Err(NtStatus::NETWORK_SESSION_EXPIRED);
        }
        if bound.session.must_encrypt
            && sealed.is_none()
            && !matches!(command, Command::Negotiate | Command::SessionSetup)
        {
            return Err(NtStatus::ACCESS_DENIED);
        }
        if !matches!(
            command,
            Command::Negotiate
                | Command::SessionSetup
                | Command::Logoff
                | Command::TreeConnect
                | Command::Echo
                | Command::OplockBreak
        ) {
            self.tree = bound.recent.tree(&bound.session, tree);
            // What is about the connection needs no share.
            let about_connection = matches!(
                code,
                Some(
                    FORCE_UNACKED_TIMEOUT | VALIDATE_NEGOTIATE_INFO | QUERY_NETWORK_INTERFACE_INFO
                )
            );
            if self.tree.is_none() && !about_connection {
                return Err(NtStatus::NETWORK_NAME_DELETED);
            }
            let secret = self.tree.as_ref().is_some_and(|tree| tree.share.config.encrypted);
            if secret && sealed.is_none() {
                return Err(NtStatus::ACCESS_DENIED);
            }
        }
        Ok(())
    }

    /// The control code, if it is an IOCTL.
    fn control_code(&self) -> Option<u32> {
        let code = self.message.get(HEADER_LEN + 4..)?.first_chunk()?;
        (self.header.command == Command::Ioctl).then(|| u32::from_le_bytes(*code))
    }

    /// Whether the request has paid for so many bytes of payload (MS-SMB2 3.3.5.2.5).
    ///
    /// # Errors
    ///
    /// INVALID_PARAMETER if not.
    pub(in crate::serve) fn pay(&self, payload: u64) -> Result<(), NtStatus> {
        let multi_credit =
            self.agreed()?.capabilities.contains(smb::wire::negotiate::Capabilities::LARGE_MTU);
        let paid = if multi_credit { u64::from(self.header.credit_charge.max(1)) } else { 1 };
        if credit_charge_needed(payload) > paid { Err(NtStatus::INVALID_PARAMETER) } else { Ok(()) }
    }

    /// The open that the request names, or that of the request before it.
    ///
    /// # Errors
    ///
    /// FILE_CLOSED if there is none, or what became of the create that should have made it.
    pub(in crate::serve) fn open(&self, id: FileId) -> Result<Arc<Open>, NtStatus> {
        if id == FileId::ALL_ONES && self.header.is_related() {
            if let Some(status) = self.before.failed {
                return Err(status);
            }
            return self.before.file.clone().ok_or(NtStatus::FILE_CLOSED);
        }
        let bound = self.bound.as_ref().ok_or(NtStatus::USER_SESSION_DELETED)?;
        let open = bound.recent.open(&bound.session, id.volatile).ok_or(NtStatus::FILE_CLOSED)?;
        let tree = self.tree()?;
        if open.file_id != id || open.tree.id != tree.id || open.is_closed() {
            return Err(NtStatus::FILE_CLOSED);
        }
        Ok(open)
    }

    /// [`Exchange::open`] for requests that a lost channel may have sent before (MS-SMB2 3.3.5.2.10).
    ///
    /// # Errors
    ///
    /// FILE_NOT_AVAILABLE also, for one that is older than the channel sequence.
    pub(in crate::serve) fn open_in_sequence(
        &mut self,
        id: FileId,
        modifies: bool,
    ) -> Result<Arc<Open>, NtStatus> {
        let open = self.open(id)?;
        self.sequence(&open, modifies)?;
        self.before.file = Some(open.clone());
        Ok(open)
    }

    fn sequence(&mut self, open: &Arc<Open>, modifies: bool) -> Result<(), NtStatus> {
        if !self.agreed()?.dialect.is_smb3() {
            return Ok(());
        }
        let replay = self.header.flags.contains(Flags::REPLAY);
        let number = self.header.channel_sequence();
        self.sequenced = Some(Sequenced::begin(open, number, modifies, replay)?);
        Ok(())
    }

    /// Those after this request of a compound mean this open.
    pub(in crate::serve) fn leave_open(&mut self, open: Arc<Open>) {
        self.before.file = Some(open);
        self.before.failed = None;
    }

    /// Those after it mean an open that did not come to be.
    pub(in crate::serve) fn leave_failed(&mut self, status: NtStatus) {
        self.before.file = None;
        self.before.failed = Some(status);
    }

    /// The open is closed: those after it do not mean it.
    pub(in crate::serve) fn forget_open(&mut self) {
        self.before.file = None;
    }

    /// The channel sequence of its open counts this request no more.
    pub(in crate::serve) fn end_sequence(&mut self) {
        self.sequenced = None;
    }

    /// The channel sequence of its open counts this request until what is got here is dropped: for what goes on when the
    /// request has been answered.
    pub(in crate::serve) fn take_sequence(&mut self) -> Option<Sequenced> {
        self.sequenced.take()
    }

    /// The header of the answer names this tree.
    pub(in crate::serve) fn answer_tree(&mut self, tree: TreeId) {
        self.reply.name_tree(tree);
    }

    /// The header of the answer names this session.
    pub(in crate::serve) fn answer_session(&mut self, session: SessionId) {
        self.reply.name_session(session);
    }

    /// The session that the answer names.
    pub(in crate::serve) fn answered_session(&self) -> SessionId {
        self.before.session
    }

    /// Whether file data may follow the answer without passing here: it stands alone in its frame, and nobody
    /// signs or encrypts it.
    pub(in crate::serve) fn may_tail(&self) -> bool {
        self.last
            && !self.reply.is_sealed()
            && !self.reply.is_compound()
            && self.signer().is_none()
            && !self.channel.padded_reads.get()
    }

    /// Whether the request is as its client sent it: signed or encrypted, or from one without a key.
    pub(in crate::serve) fn is_authentic(&self) -> bool {
        let has_key = self.bound.as_ref().is_some_and(|bound| bound.signer.is_some());
        !has_key || self.reply.is_sealed() || self.header.flags.contains(Flags::SIGNED)
    }

    /// A lane for the answer's data and what protects it: if it is signed or encrypted and nothing else is in
    /// it, this connection has more to do than that, and another core has nothing.
    pub(in crate::serve) fn may_go_elsewhere(&self) -> Option<Lane> {
        let protected = self.reply.is_sealed() || self.signer().is_some();
        if !self.last
            || !protected
            || !self.reply.is_single()
            || self.channel.padded_reads.get()
            || !self.channel.has_more_to_do()
            || !runtime::another_sleeps()
        {
            return None;
        }
        self.server().lane()
    }

    /// Those after it mean this tree.
    pub(in crate::serve) fn leave_tree(&mut self, tree: TreeId) {
        self.before.tree = tree;
    }

    /// Those after it mean this session.
    pub(in crate::serve) fn leave_session(&mut self, session: SessionId) {
        self.before.session = session;
    }

    /// Waits for `what`, which may take for ever. After `patience` the client is told; it may cancel.
    ///
    /// # Errors
    ///
    /// CANCELLED, or INSUFFICIENT_RESOURCES if too many of its requests wait already.
    pub(in crate::serve) async fn wait<T>(
        &mut self,
        what: impl Future<Output = T>,
        patience: Duration,
    ) -> Result<T, NtStatus> {
        let mut what = pin!(what);
        let first = std::future::poll_fn(|context| Poll::Ready(what.as_mut().poll(context))).await;
        if let Poll::Ready(done) = first {
            return Ok(done);
        }
        let under_way = match &self.waiting {
            Some(under_way) => under_way.clone(),
            None => self.begin_to_wait()?,
        };
        if patience.is_zero() {
            self.tell_pending()?;
        }
        let mut cancelled = pin!(under_way.cancelled());
        let mut clock = pin!(runtime::sleep(patience));
        let mut told = self.interim;
        loop {
            let event = std::future::poll_fn(|context| {
                if let Poll::Ready(done) = what.as_mut().poll(context) {
                    return Poll::Ready(Some(Ok(done)));
                }
                if cancelled.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Some(Err(NtStatus::CANCELLED)));
                }
                if !told && clock.as_mut().poll(context).is_ready() {
                    return Poll::Ready(None);
                }
                Poll::Pending
            })
            .await;
            match event {
                Some(result) => return result,
                None => {
                    told = true;
                    self.tell_pending()?;
                }
            }
        }
    }

    fn begin_to_wait(&mut self) -> Result<Rc<UnderWay>, NtStatus> {
        let Before { session, frame_len, .. } = *self.before;
        let begun = self.channel.begin(self.header.message_id, session, frame_len);
        let begun = begun.ok_or(NtStatus::INSUFFICIENT_RESOURCES)?;
        self.waiting = Some(begun.clone());
        Ok(begun)
    }

    /// Says that the answer will come later (STATUS_PENDING), once. In the middle of a compound a SET_INFO, which
    /// waits for other clients to give up what they cache, waits without a word: Linux renames so, and takes a
    /// refusal for an I/O error.
    ///
    /// # Errors
    ///
    /// INSUFFICIENT_RESOURCES if too many requests wait already; INTERNAL_ERROR in the middle of a compound for
    /// what may wait for ever (MS-SMB2 3.3.5.2.7).
    pub(in crate::serve) fn tell_pending(&mut self) -> Result<(), NtStatus> {
        if self.interim {
            return Ok(());
        }
        match self.header.command {
            _ if self.last => {}
            Command::Create => {}
            Command::SetInfo => return Ok(()),
            _ => return Err(NtStatus::INTERNAL_ERROR),
        }
        let under_way = match &self.waiting {
            Some(under_way) => under_way.clone(),
            None => self.begin_to_wait()?,
        };
        self.interim = true;
        let sealed = self.reply.is_sealed().then(|| self.session().cloned().ok()).flatten();
        // What is answered already does not wait for this one.
        self.reply.withdraw();
        self.channel.tell_opens(self.reply);
        let answered = std::mem::replace(self.reply, Reply::new(sealed.clone()));
        if let Some(frame) = answered.finish() {
            self.channel.send(frame);
        }
        let header = Header {
            target: Target::Async(under_way.async_id.get()),
            flags: self.header.answer(NtStatus::PENDING).flags.difference(Flags::RELATED),
            ..self.header.answer(NtStatus::PENDING)
        };
        let mut interim = Reply::new(sealed);
        interim.begin(&header);
        interim.write(&error::Response::EMPTY);
        let credits = self.credits(NtStatus::PENDING);
        // Not signed (MS-SMB2 3.3.4.1.1): the answer will use the nonce that GMAC makes of the message's number.
        interim.complete(NtStatus::PENDING, credits, None);
        if let Some(frame) = interim.finish() {
            self.channel.send(frame);
        }
        self.reply.begin(&header);
        Ok(())
    }

    fn credits(&self, status: NtStatus) -> u16 {
        let limit = self.channel.server.config.limits.credits;
        let grant = match self.header.command {
            Command::Negotiate => Grant::Replace,
            Command::SessionSetup if status != NtStatus::SUCCESS => Grant::Replace,
            _ => Grant::AsAsked,
        };
        let mut window = self.channel.window.borrow_mut();
        window.grant(self.header.credits, self.header.credit_charge, grant, limit)
    }

    /// Who signs the answer, if it is to be signed.
    fn signer(&self) -> Option<Rc<Bound>> {
        let bound = self.bound.as_ref()?;
        bound.signer.as_ref()?;
        let signed = self.header.flags.contains(Flags::SIGNED);
        (self.sign || signed || bound.session.must_sign).then(|| bound.clone())
    }

    /// The body of an error: empty, or what it tells, which 3.1.1 has in a context (MS-SMB2 2.2.2.1).
    fn fail(&mut self) {
        let mut data = std::mem::take(&mut self.detail);
        let contexts = self.agreed().is_ok_and(|agreed| agreed.dialect >= Dialect::Smb311);
        let context_count = u8::from(contexts && !data.is_empty());
        if context_count > 0 {
            let len = u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes();
            data.splice(..0, [len, error::ID_DEFAULT.to_le_bytes()].concat());
        }
        self.reply.fail(&error::Response { context_count, data: &data });
    }

    /// Completes the answer.
    fn finish(
        mut self,
        result: Result<NtStatus, NtStatus>,
        _sealed: Option<&Arc<Session>>,
    ) -> After {
        if let Some(under_way) = self.waiting.take() {
            self.channel.under_way.borrow_mut().remove(&under_way.message);
        }
        self.end_sequence();
        let status = match result {
            Ok(status) => status,
            Err(status) => {
                if self.header.command == Command::Create {
                    self.leave_failed(status);
                }
                self.fail();
                status
            }
        };
        // One that waited for somebody else says nothing about how fast we are.
        let took = (!self.interim).then(|| self.began.elapsed());
        self.channel.tally().served(self.header.command, status, took);
        // The interim answer has given the credits already.
        let credits = if self.interim { 0 } else { self.credits(status) };
        let signer = self.signer();
        let claim = signer.is_none()
            && status == NtStatus::USER_SESSION_DELETED
            && self.header.flags.contains(Flags::SIGNED);
        self.reply.complete(status, credits, signer);
        if claim {
            // As Windows and Samba do. Clients look for the flag first and, with this status, not at the signature.
            self.reply.claim_signature();
        }
        command::answered(&mut self, status)
    }
}
