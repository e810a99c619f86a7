//! One TCP connection of a client: frames in, frames out, and what it has agreed on.
//!
//! A channel lives on one vector and is touched by its tasks only; others reach it through its
//! [`ChannelRef`].

mod backlog;
mod delivery;
mod exchange;
mod gathered;
mod input;
mod output;
mod reply;
mod spare;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::sockopt;
use smb::crypto::{Cipher, PreauthHash, Signer, SigningAlgorithm};
use smb::session::{Dialect, Grant, Window};
use smb::wire::header::Header;
use smb::wire::negotiate::{Capabilities, SecurityMode};
use smb::{Guid, MessageId, NtStatus, SessionId};
use sys::sync::AtomicU64;

use super::command::session_setup::SetUp;
use super::runtime::{self, Event, Socket, VectorId};
use super::server::Server;
use super::session::{Recent, Session};
use super::tally::Tally;
use super::transfer::{Chooser, Lesson, Load, Pools};

use backlog::Account;
pub(super) use backlog::{Backlog, Making, Taken};
pub(super) use delivery::{Notice, deliver};
pub(super) use exchange::{After, Exchange, PATIENCE, Serving};
use input::Input;
use output::{Outgoing, Output};
pub(super) use reply::{Fill, Reply};

/// What the two ends agreed on.
#[derive(Clone, Debug)]
pub(super) struct Agreed {
    pub(super) dialect: Dialect,
    pub(super) client: Guid,
    /// As the client sent it, for FSCTL_VALIDATE_NEGOTIATE_INFO.
    pub(super) client_mode: SecurityMode,
    pub(super) client_capabilities: Capabilities,
    /// As the server answered.
    pub(super) mode: SecurityMode,
    pub(super) capabilities: Capabilities,
    pub(super) cipher: Option<Cipher>,
    pub(super) signing: SigningAlgorithm,
    /// The POSIX extensions of 3.1.1.
    pub(super) posix: bool,
    /// Largest READ, WRITE and transaction in bytes.
    pub(super) payload: u32,
    /// The hash over the negotiation, where 3.1.1 wants one.
    pub(super) preauth: PreauthHash,
}

/// A session as one of its channels has it.
pub(super) struct Bound {
    pub(super) session: Arc<Session>,
    /// `None` without a key: guests and nobody.
    pub(super) signer: Option<Arc<Signer>>,
    /// What this channel has looked up in it of late.
    pub(super) recent: Recent,
}

impl Bound {
    pub(super) fn new(session: Arc<Session>, signer: Option<Arc<Signer>>) -> Self {
        Self { session, signer, recent: Recent::default() }
    }
}

/// Bytes of a frame that may wait without being counted: those that clients have wait have fewer, but for names and contexts
/// that are long.
const KEPT_FREELY: usize = 2048;

/// A request that is not answered yet and may be cancelled.
pub(super) struct UnderWay {
    pub(super) message: MessageId,
    session: SessionId,
    pub(super) async_id: Cell<u64>,
    cancelled: Cell<bool>,
    event: Event,
    /// Its part of memory, if its frame is larger than a request that waits needs.
    _kept: Option<Taken>,
}

impl UnderWay {
    fn cancel(&self) {
        self.cancelled.set(true);
        self.event.notify_all();
    }

    /// Ends when it is cancelled.
    pub(super) async fn cancelled(&self) {
        loop {
            let waiting = self.event.wait();
            if self.cancelled.get() {
                return;
            }
            waiting.await;
        }
    }
}

/// A connection.
pub(super) struct Channel {
    pub(super) server: Arc<Server>,
    pub(super) shared: ChannelRef,
    pub(super) socket: Rc<Socket>,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) agreed: OnceCell<Agreed>,
    /// An SMB1 negotiate has been answered with the wildcard: an SMB2 one follows.
    pub(super) multi_protocol: Cell<bool>,
    pub(super) window: RefCell<Window>,
    pub(super) sessions: RefCell<HashMap<SessionId, Rc<Bound>>>,
    /// Sessions that are being set up here, bound here, or authenticated again.
    pub(super) set_ups: RefCell<HashMap<SessionId, SetUp>>,
    /// How many more of them are taking a step.
    pub(super) stepping: Cell<usize>,
    /// Files that its clients have open, with those of others.
    opened: Account,
    under_way: RefCell<HashMap<MessageId, Rc<UnderWay>>>,
    /// One of them was cancelled just now.
    cancelled: Cell<bool>,
    next_async: Cell<u64>,
    output: Rc<Output>,
    pools: Pools,
    learned: Rc<Lesson>,
    /// What was negotiated, until it has been said.
    pub(super) negotiated: RefCell<Option<Agreed>>,
    /// Requests that are being served.
    serving: Cell<usize>,
    /// No more requests are to be read.
    stopping: Cell<bool>,
    /// Fires when the connection is to end.
    ending: Event,
    /// READ answers get eight bytes of padding. A test code.
    pub(super) padded_reads: Cell<bool>,
}

/// A channel as others see it, from any vector.
#[derive(Clone, Debug)]
pub(super) struct ChannelRef(Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    id: u64,
    vector: VectorId,
    peer: SocketAddr,
    client: std::sync::OnceLock<Guid>,
    open: AtomicBool,
    /// A test code: nothing that is sent here is acknowledged any more.
    deaf: AtomicBool,
    /// Something that was sent here was not acknowledged in time, and nothing has come since.
    suspect: AtomicBool,
    received: AtomicU64,
    sent: AtomicU64,
}

#[cfg(test)]
impl ChannelRef {
    /// Of a connection that there is not.
    pub(super) fn of_nobody(id: u64) -> Self {
        Self(Arc::new(Shared {
            id,
            vector: VectorId(0),
            peer: SocketAddr::from(([127, 0, 0, 1], 1)),
            client: std::sync::OnceLock::new(),
            open: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }))
    }
}

impl ChannelRef {
    pub(super) fn id(&self) -> u64 {
        self.0.id
    }

    /// Whether frames may be given to it.
    pub(super) fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Acquire)
    }

    /// Notes whose it is.
    pub(super) fn identify(&self, client: Guid) {
        // Set once, when the client has negotiated.
        let _ = self.0.client.set(client);
    }

    /// Takes it for one whose peer acknowledges nothing from now on: a break that is sent there goes elsewhere too.
    pub(super) fn deafen(&self) {
        self.0.deaf.store(true, Ordering::Release);
    }

    fn is_deaf(&self) -> bool {
        self.0.deaf.load(Ordering::Acquire)
    }

    /// Whether others are better to send a break by.
    fn is_suspect(&self) -> bool {
        self.0.suspect.load(Ordering::Acquire)
    }

    fn suspect(&self, suspect: bool) {
        self.0.suspect.store(suspect, Ordering::Release);
    }

    /// So many bytes were sent in all.
    fn note_sent(&self, bytes: u64) {
        self.0.sent.store(bytes, Ordering::Relaxed);
    }

    /// Bytes received and sent.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.0.received.load(Ordering::Relaxed), self.0.sent.load(Ordering::Relaxed))
    }

    /// Where it is from.
    pub(super) fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// The vector that drives it.
    pub(super) fn vector(&self) -> VectorId {
        self.0.vector
    }

    /// Has the channel's own vector call `what`, if it is still there then.
    pub(super) fn post(&self, what: impl FnOnce(&Rc<Channel>) + Send + 'static) {
        let id = self.0.id;
        runtime::post(self.0.vector, move || {
            let channel = CHANNELS.with_borrow(|channels| channels.get(&id).cloned());
            if let Some(channel) = channel {
                what(&channel);
            }
        });
    }
}

/// How long who takes no answers is waited for.
const LEAST_FOR: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 120 });

/// How long a connection may be silent before its client is asked whether it is there, and how often then.
const SILENCE: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_secs(10);
/// How long what was sent may be without acknowledgement, or without room where it goes: that of a client that is there but
/// takes nothing has to be longer than [`LEAST_FOR`].
const UNHEARD_MS: u32 = 150_000;
const _: () = assert!(UNHEARD_MS as u128 > LEAST_FOR.as_millis());
/// The same where nothing is on its way. The kernel has one time for both, and by it, not by a number of questions, gives
/// up who does not answer: with this one at the second question.
const UNHEARD_IN_SILENCE_MS: u32 = 60_000;
/// How often it is looked which of them it is to be: twice before the first question.
const LOOK_EVERY: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 30 });

/// A client that has lost its power closes nothing. What it had open must not stay so for ever.
fn find_the_dead(socket: &Socket) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE)?;
    sockopt::set_tcp_keepintvl(socket, ASK_EVERY)?;
    sockopt::set_tcp_user_timeout(socket, UNHEARD_MS)?;
    Ok(())
}

/// How often a connection that is to end looks whether all its requests are answered, and all answers have arrived.
const FINISHING: Duration = Duration::from_millis(2);
/// For how long nothing may come any more before it ends, if something was on its way.
const QUIET: Duration = Duration::from_millis(300);

/// Pipes of 1 MiB that a vector keeps.
const PIPES: usize = 32;
/// Bytes of buffers that a vector keeps.
const BUFFER_BYTES: usize = 64 << 20;

thread_local! {
    /// What the transfers of this vector share.
    static POOLS: Pools = Pools::new(PIPES, BUFFER_BYTES);
    /// Which ways of moving file data have cost it less.
    static LEARNED: Rc<Lesson> = Rc::default();
    /// The channels of this vector.
    static CHANNELS: RefCell<HashMap<u64, Rc<Channel>>> = RefCell::default();
}

impl Channel {
    /// Serves a connection until it ends.
    pub(super) async fn serve(server: Arc<Server>, socket: Socket, peer: SocketAddr) {
        let Some(_place) = server.admit_channel() else { return };
        let Ok(local) = socket.local_addr() else { return };
        if find_the_dead(&socket).is_err() {
            return;
        }
        let socket = Rc::new(socket);
        let shared = ChannelRef(Arc::new(Shared {
            id: server.next_id(),
            vector: runtime::vector(),
            peer,
            client: std::sync::OnceLock::new(),
            open: AtomicBool::new(true),
            deaf: AtomicBool::new(false),
            suspect: AtomicBool::new(false),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }));
        let limits = &server.config.limits;
        let pools = POOLS.with(Clone::clone);
        let account = server.backlog().account(peer.ip());
        let channel = Rc::new(Self {
            window: RefCell::new(Window::new(limits.credits)),
            output: Rc::new(Output::new(socket.clone(), pools.clone(), account, shared.clone())),
            pools,
            learned: LEARNED.with(Rc::clone),
            server: server.clone(),
            shared,
            socket,
            peer,
            local,
            agreed: OnceCell::new(),
            negotiated: RefCell::default(),
            multi_protocol: Cell::new(false),
            sessions: RefCell::default(),
            set_ups: RefCell::default(),
            stepping: Cell::new(0),
            opened: server.opened().account(peer.ip()),
            under_way: RefCell::default(),
            cancelled: Cell::new(false),
            next_async: Cell::new(1),
            serving: Cell::new(0),
            stopping: Cell::new(false),
            ending: Event::new(),
            padded_reads: Cell::new(false),
        });
        let id = channel.shared.id();
        CHANNELS.with_borrow_mut(|channels| channels.insert(id, channel.clone()));
        let mut served = Served { channel: channel.clone(), why: Ending::Dropped };
        served.why = channel.run().await;
    }

    async fn run(self: Rc<Self>) -> Ending {
        let set_up = self.server.config.limits.set_up;
        let mut input = Input::new(self.clone());
        let mut reading = std::pin::pin!(input.run());
        let mut ending = std::pin::pin!(self.ending.wait());
        let mut clock = std::pin::pin!(runtime::sleep(set_up));
        let mut watched = true;
        let mut stopping = std::pin::pin!(runtime::stopping());
        let mut looking = std::pin::pin!(self.look_for_silence());
        let why = std::future::poll_fn(|context| {
            use std::task::Poll;
            if stopping.as_mut().poll(context).is_ready() {
                return Poll::Ready(Ending::Stopped);
            }
            if let Poll::Ready(why) = reading.as_mut().poll(context) {
                return Poll::Ready(why);
            }
            // It never ends.
            let _ = looking.as_mut().poll(context);
            if ending.as_mut().poll(context).is_ready() || self.output.is_broken() {
                return Poll::Ready(Ending::Dropped);
            }
            if watched && clock.as_mut().poll(context).is_ready() {
                watched = false;
                if self.sessions.borrow().is_empty() {
                    return Poll::Ready(Ending::NoSession);
                }
            }
            Poll::Pending
        })
        .await;
        match why {
            Ending::Stopped => self.finish_up(reading).await,
            _ if self.output.timed_out() => {
                return Ending::Nonsense("it has not acknowledged, or not taken, what it was sent");
            }
            _ => {}
        }
        why
    }

    /// Sets how long who is not heard of is taken to be there: by looking now and then, and not with each answer.
    async fn look_for_silence(&self) {
        let (mut silent, mut before) = (false, None);
        loop {
            runtime::sleep(LOOK_EVERY).await;
            let moved = (self.shared.bytes().0, self.output.pushed());
            // The kernel has what the output has no more.
            let idle = self.output.waiting() == 0 && self.socket.unacknowledged().ok() == Some(0);
            let now = idle && before.replace(moved) == Some(moved);
            let unheard = if now { UNHEARD_IN_SILENCE_MS } else { UNHEARD_MS };
            if now != silent && sockopt::set_tcp_user_timeout(&*self.socket, unheard).is_ok() {
                silent = now;
            }
        }
    }

    /// The server stops: nothing more is read but the rest of a WRITE that has begun, and what is under way is answered. The
    /// runtime ends this when it takes too long.
    async fn finish_up(&self, mut reading: Pin<&mut impl Future<Output = Ending>>) {
        self.stopping.set(true);
        for request in self.under_way.borrow().values() {
            request.cancel();
        }
        let mut reads = true;
        while self.serving.get() > 0 && !self.output.is_broken() {
            let mut clock = std::pin::pin!(runtime::sleep(FINISHING));
            std::future::poll_fn(|context| {
                reads = reads && reading.as_mut().poll(context).is_pending();
                clock.as_mut().poll(context)
            })
            .await;
        }
        self.output.uncork();
        self.output.below(0).await;
        self.hang_up().await;
    }

    /// Ends a connection on which all is sent. What its client still sends is not served: it is to learn that by an end of
    /// file after the answers. Were it left unread, or to come once we are gone, the kernel would reset the connection, and
    /// drop what the client has not taken.
    async fn hang_up(&self) {
        let on_its_way = || self.socket.unacknowledged().unwrap_or(0) > 0;
        let mut until = runtime::now();
        if on_its_way() {
            until += QUIET;
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
        let mut nowhere = [0; 4096];
        loop {
            match self.socket.try_recv(&mut nowhere) {
                Ok(0) => return,
                Ok(_) => {
                    until = runtime::now() + QUIET;
                    runtime::yield_now().await;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
            if runtime::now() >= until && !on_its_way() {
                return;
            }
            let _ = runtime::timeout(self.socket.readable(), FINISHING).await;
        }
    }

    /// The connection is over: what is under way is given up, sessions lose this channel.
    fn ended(self: &Rc<Self>, why: &Ending) {
        self.shared.0.open.store(false, Ordering::Release);
        self.output.fail();
        if !matches!(why, Ending::Stopped) {
            // Requests that are under way may hold the socket for a moment; the client need not wait for them.
            let _ = self.socket.shutdown(std::net::Shutdown::Both);
        }
        for request in std::mem::take(&mut *self.under_way.borrow_mut()).into_values() {
            request.cancel();
        }
        self.set_ups.borrow_mut().clear();
        let sessions = std::mem::take(&mut *self.sessions.borrow_mut());
        for bound in sessions.into_values() {
            self.server.channel_lost(&bound.session, &self.shared);
        }
        self.server.forget_channel(self.agreed.get().map(|agreed| agreed.client), &self.shared);
        self.server.log_end(self.peer, why);
    }

    /// Ends the connection, from within one of its requests.
    pub(super) fn end(&self) {
        self.shared.0.open.store(false, Ordering::Release);
        self.ending.notify_all();
    }

    /// What was negotiated, if anything was.
    pub(super) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.get()
    }

    /// The session, if this channel is one of its channels.
    pub(super) fn bound(&self, session: SessionId) -> Option<Rc<Bound>> {
        self.sessions.borrow().get(&session).cloned()
    }

    /// Room for so many more descriptors of what is open.
    ///
    /// # Errors
    ///
    /// INSUFFICIENT_RESOURCES when clients of this address have their part of what there is for all.
    pub(super) fn room_to_open(&self, descriptors: usize) -> Result<Taken, NtStatus> {
        let room = self.opened.part(descriptors, self.server.opened_most());
        room.ok_or(NtStatus::INSUFFICIENT_RESOURCES)
    }

    /// Notes a request that may be cancelled, of a frame of `len` bytes, which is kept until it is answered. `None`: there
    /// are too many, or too much is kept.
    fn begin(&self, message: MessageId, session: SessionId, len: usize) -> Option<Rc<UnderWay>> {
        let mut all = self.under_way.borrow_mut();
        let limits = &self.server.config.limits;
        if all.len() >= limits.waiting {
            return None;
        }
        let kept = match len {
            ..=KEPT_FREELY => None,
            _ => Some(self.output.part(len, limits.memory)?),
        };
        let id = self.next_async.get();
        self.next_async.set(id + 1);
        let request = Rc::new(UnderWay {
            message,
            session,
            async_id: Cell::new(id),
            cancelled: Cell::new(false),
            event: Event::new(),
            _kept: kept,
        });
        all.insert(message, request.clone());
        Some(request)
    }

    /// CANCEL: by the AsyncId if the client was given one, else by the message's own number.
    pub(super) fn cancel(&self, message: MessageId, async_id: Option<u64>) {
        let all = self.under_way.borrow();
        let found = match async_id {
            Some(id) => all.values().find(|request| request.async_id.get() == id),
            None => all.get(&message),
        };
        if let Some(request) = found {
            request.cancel();
            self.cancelled.set(true);
        }
    }

    /// Whether a request was cancelled since this was last asked: it is to be answered before another one.
    fn has_cancelled(&self) -> bool {
        self.cancelled.take()
    }

    /// Cancels what waits on behalf of a session: it ends.
    pub(super) fn cancel_session(&self, session: SessionId) {
        for request in self.under_way.borrow().values() {
            if request.session == session {
                request.cancel();
            }
        }
    }

    /// Whether the client is on this host.
    fn is_loopback(&self) -> bool {
        runtime::is_same_host(self.peer.ip(), self.local.ip())
    }

    /// What the way of so many bytes of file data depends on.
    pub(super) fn load(&self, len: u32) -> Load {
        let carried = sys::stream::carried(self.socket.source());
        Load { len, loopback: self.is_loopback(), carried }
    }

    /// Whether there are other requests or answers than the one that is being served.
    pub(super) fn has_more_to_do(&self) -> bool {
        self.serving.get() > 1 || self.output.is_corked() || self.output.waiting() > 0
    }

    /// Decides how file data goes.
    pub(super) fn chooser(&self) -> Chooser<'_> {
        Chooser::new(self.server.config.sending, &self.learned)
    }

    /// What the transfers of this vector share.
    pub(super) fn pools(&self) -> &Pools {
        &self.pools
    }

    /// Counts bytes that were received, and takes them for a sign of life.
    pub(super) fn count_received(&self, bytes: usize) {
        if self.shared.is_suspect() && !self.shared.is_deaf() {
            self.shared.suspect(false);
        }
        self.shared.0.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Where the vector of this channel counts.
    pub(super) fn tally(&self) -> &Tally {
        self.server.tally(self.shared.vector())
    }

    /// Credits for the answer to a request that succeeded in what it asked for.
    pub(super) fn grant(&self, header: &Header) -> u16 {
        let limit = self.server.config.limits.credits;
        let mut window = self.window.borrow_mut();
        window.grant(header.credits, header.credit_charge, Grant::AsAsked, limit)
    }

    /// The one credit of who has only just said hello.
    pub(super) fn grant_one(&self) -> u16 {
        self.window.borrow_mut().grant(1, 1, Grant::Replace, 1)
    }

    /// Sends a frame after those before it.
    pub(super) fn send_reply(&self, reply: Reply) {
        if let Some(frame) = reply.finish() {
            self.send(frame);
        }
    }

    /// Counts an answer of so many bytes that is being made in memory.
    pub(super) fn make(&self, bytes: usize) -> Making {
        self.output.make(bytes)
    }

    fn send(&self, frame: Outgoing) {
        self.output.push(frame);
    }
}

/// A connection that is being served. However that ends, by a panic too, nothing stays behind that only it had: its
/// socket, its sessions, and what these have open and locked.
struct Served {
    channel: Rc<Channel>,
    why: Ending,
}

impl Drop for Served {
    fn drop(&mut self) {
        let id = self.channel.shared.id();
        // At the end of its thread nobody looks for it any more.
        let _ = CHANNELS.try_with(|channels| channels.borrow_mut().remove(&id));
        self.channel.ended(&self.why);
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ending {
    /// The client closed it.
    #[error("closed by the client")]
    Closed,
    /// The server gave it up, and has said why elsewhere.
    #[error("given up")]
    Dropped,
    /// The server stops.
    #[error("the server stops")]
    Stopped,
    /// No session in time.
    #[error("no session was set up in time")]
    NoSession,
    /// The network.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// What came is no SMB.
    #[error("{0}")]
    Nonsense(&'static str),
}

#[cfg(test)]
mod tests;
