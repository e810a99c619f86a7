//! What was done, and how to sleep until something is.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::{Context, Open};
use super::{outcome, pointer, raw};
use crate::call::{self, Failure};

/// Completions that [`CompletionQueue::poll`] takes at once, at most.
pub const BATCH: usize = 16;

struct ChannelHandle {
    open: Arc<Open>,
    at: NonNull<raw::Channel>,
}

// SAFETY: libibverbs may be called by many threads, also with one channel.
unsafe impl Send for ChannelHandle {}
// SAFETY: the same.
unsafe impl Sync for ChannelHandle {}

impl Drop for ChannelHandle {
    fn drop(&mut self) {
        // SAFETY: from `create_comp_channel`, and freed here only; its completion queues hold us.
        unsafe { (self.open.symbols.destroy_comp_channel)(self.at.as_ptr()) };
    }
}

/// A descriptor that is readable when a completion queue that was armed has something.
#[derive(Clone)]
pub struct CompletionChannel {
    handle: Arc<ChannelHandle>,
}

impl std::fmt::Debug for CompletionChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionChannel").finish_non_exhaustive()
    }
}

impl AsRawFd for CompletionChannel {
    fn as_raw_fd(&self) -> RawFd {
        // SAFETY: a channel that we hold; its descriptor does not change.
        unsafe { (*self.handle.at.as_ptr()).fd }
    }
}

impl CompletionChannel {
    /// Makes one. Its descriptor does not block.
    ///
    /// # Errors
    ///
    /// The errno: `EMFILE` if we have no more descriptors.
    pub fn new(context: &Context) -> Result<Self, Failure> {
        let open = context.open.clone();
        // SAFETY: an open context.
        let at = unsafe { (open.symbols.create_comp_channel)(open.at.as_ptr()) };
        let at = pointer("make a completion channel", at)?;
        let channel = Self { handle: Arc::new(ChannelHandle { open, at }) };
        let fd = channel.as_raw_fd();
        let flags = call::getfl(fd).map_err(Failure::at("prepare the completion channel"))?;
        call::setfl(fd, flags | libc::O_NONBLOCK)
            .map_err(Failure::at("prepare the completion channel"))?;
        Ok(channel)
    }

    /// The token of a completion queue that has something, and is not armed any more; `None`: there is
    /// none.
    ///
    /// # Errors
    ///
    /// The errno; `EAGAIN` is `None`.
    pub fn next_event(&self) -> Result<Option<usize>, Failure> {
        let (mut queue, mut token) = (std::ptr::null_mut(), std::ptr::null_mut::<c_void>());
        let symbols = &self.handle.open.symbols;
        // SAFETY: a channel that we hold, and room for what it answers.
        let ret = unsafe {
            (symbols.get_cq_event)(self.handle.at.as_ptr(), &raw mut queue, &raw mut token)
        };
        match outcome("take an event of a completion queue", ret) {
            Err(Failure { errno: libc::EAGAIN, .. }) => return Ok(None),
            other => other?,
        }
        // SAFETY: the queue of the event just taken: `destroy_cq` waits until this is done.
        unsafe { (symbols.ack_cq_events)(queue, 1) };
        Ok(Some(token.addr()))
    }
}

/// Destroyed when no queue pair uses it and its owner is gone.
pub(super) struct QueueHandle {
    open: Arc<Open>,
    pub(super) at: NonNull<raw::Queue>,
    /// Destroyed after it.
    _channel: Option<CompletionChannel>,
}

// SAFETY: libibverbs may be called by many threads, also with one completion queue.
unsafe impl Send for QueueHandle {}
// SAFETY: the same.
unsafe impl Sync for QueueHandle {}

impl Drop for QueueHandle {
    fn drop(&mut self) {
        // SAFETY: from `create_cq`, and freed here only; its queue pairs hold us. Its events are
        // acknowledged as they are taken, so that it does not wait for them.
        unsafe { (self.open.symbols.destroy_cq)(self.at.as_ptr()) };
    }
}

/// Where a device says what it has done.
#[derive(Clone)]
pub struct CompletionQueue {
    pub(super) handle: Arc<QueueHandle>,
}

impl std::fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompletionQueue").field("room", &self.room()).finish_non_exhaustive()
    }
}

/// Which completions [`CompletionQueue::arm`] asks to be woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The next.
    Next,
    /// The next of a message that its sender has marked as solicited, and the next that failed.
    Solicited,
}

/// A request that was carried out, or failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As the request had it.
    pub id: u64,
    /// Number of the queue pair.
    pub qpn: u32,
    /// What was done, or why it was not.
    pub outcome: Result<Done, Broken>,
}

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// What kind of request.
    pub kind: Kind,
    /// Bytes received; of requests to send nothing.
    pub bytes: u32,
    /// What the sender added to its message.
    pub immediate: Option<u32>,
}

/// What kind of request was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A SEND of ours.
    Send,
    /// An RDMA WRITE of ours.
    Write,
    /// A SEND of the peer's.
    Receive,
    /// An RDMA WRITE of the peer's, with an immediate value.
    ReceiveWrite,
    /// Something we do not ask for: its number in `enum ibv_wc_opcode`.
    Other(u32),
}

/// Why a request failed; its queue pair is in error then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The reason, by the specification.
    pub status: Status,
    /// The device's own number for it.
    pub vendor: u32,
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $words:literal;)*) => {
        /// Why a request failed (IBTA vol. 1, 11.6.2).
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Status {
            $(#[doc = concat!("IBA: ", $words, ".")] $(#[$doc])* $name,)*
            /// Another, of that number in `enum ibv_wc_status`.
            Other(u32),
        }

        impl Status {
            fn from_number(number: u32) -> Self {
                match number {
                    $($number => Self::$name,)*
                    other => Self::Other(other),
                }
            }

            /// Its number in `enum ibv_wc_status`.
            #[must_use]
            pub fn number(self) -> u32 {
                match self {
                    $(Self::$name => $number,)*
                    Self::Other(number) => number,
                }
            }
        }

        impl std::fmt::Display for Status {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $(Self::$name => f.write_str($words),)*
                    Self::Other(number) => write!(f, "status {number}"),
                }
            }
        }
    };
}

statuses! {
    LocalLength = 1, "local length error";
    LocalOperation = 2, "local QP operation error";
    LocalProtection = 4, "local protection error";
    /// The queue pair was in error before the request's turn came.
    Flushed = 5, "work request flushed";
    BadResponse = 7, "bad response";
    LocalAccess = 8, "local access error";
    RemoteInvalidRequest = 9, "remote invalid request";
    RemoteAccess = 10, "remote access error";
    RemoteOperation = 11, "remote operation error";
    /// The peer does not answer.
    RetriesExceeded = 12, "transport retry counter exceeded";
    /// The peer has no receive requests.
    ReceiverNotReady = 13, "RNR retry counter exceeded";
    Aborted = 16, "operation aborted";
    Fatal = 19, "fatal error";
    Timeout = 20, "response timeout";
    General = 21, "general error";
}

impl CompletionQueue {
    /// Makes one with room for at least `room` completions, whose interrupts come on `vector` (see
    /// [`Context::vectors`]). The channel's events name it by `token`.
    ///
    /// # Errors
    ///
    /// The errno: `EINVAL` if there is no such vector or not so much room, `ENOMEM`.
    pub fn new(
        context: &Context,
        room: u32,
        vector: u32,
        channel: Option<(&CompletionChannel, usize)>,
    ) -> Result<Self, Failure> {
        let open = context.open.clone();
        let number = |n| c_int::try_from(n).map_err(|_| libc::EINVAL);
        let step = "make a completion queue";
        let (room, vector) = (number(room), number(vector));
        let room = room.map_err(Failure::at(step))?;
        let vector = vector.map_err(Failure::at(step))?;
        let channel_at = channel.map_or(std::ptr::null_mut(), |(it, _)| it.handle.at.as_ptr());
        let token = std::ptr::without_provenance_mut(channel.map_or(0, |(_, token)| token));
        // SAFETY: an open context, and a channel that we hold; the token is never followed.
        let at =
            unsafe { (open.symbols.create_cq)(open.at.as_ptr(), room, token, channel_at, vector) };
        let at = pointer(step, at)?;
        let channel = channel.map(|(it, _)| it.clone());
        Ok(Self { handle: Arc::new(QueueHandle { open, at, _channel: channel }) })
    }

    /// Completions that it has room for. More than that, and it fails.
    #[must_use]
    pub fn room(&self) -> u32 {
        // SAFETY: a queue that we hold; the number changes only when it is resized, which we never do.
        u32::try_from(unsafe { (*self.handle.at.as_ptr()).cqe }).unwrap_or(0)
    }

    /// Takes up to [`BATCH`] completions, in order. How many; fewer than that, and there were no more.
    ///
    /// # Errors
    ///
    /// The errno, `EIO` if the device gives none: the queue has overflowed or the device is gone.
    pub fn poll(&self, mut each: impl FnMut(Completion)) -> Result<usize, Failure> {
        let mut raw = [raw::WorkCompletion::default(); BATCH];
        let at = self.handle.at.as_ptr();
        let step = "take completions";
        // SAFETY: an open context, whose functions do not change.
        let poll = unsafe { (*self.handle.open.at.as_ptr()).operations.poll_cq };
        let poll = poll.ok_or(Failure { step, errno: libc::ENOSYS })?;
        let most = c_int::try_from(BATCH).unwrap_or(0);
        // SAFETY: a queue that we hold, of a context whose driver gave the function, and room for so many.
        let count = unsafe { poll(at, most, raw.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            let errno = if count == -1 { libc::EIO } else { -count };
            return Err(Failure { step, errno });
        };
        for it in raw.iter().take(count) {
            each(completion(it));
        }
        Ok(count)
    }

    /// Asks for an event on the channel when there is another completion, once. What came before this may
    /// or may not count: poll again after it, before sleeping.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn arm(&self, wake: Wake) -> Result<(), Failure> {
        let step = "arm a completion queue";
        // SAFETY: an open context, whose functions do not change.
        let arm = unsafe { (*self.handle.open.at.as_ptr()).operations.req_notify_cq };
        let arm = arm.ok_or(Failure { step, errno: libc::ENOSYS })?;
        // SAFETY: a queue that we hold, of a context whose driver gave the function.
        let ret = unsafe { arm(self.handle.at.as_ptr(), (wake == Wake::Solicited).into()) };
        outcome(step, ret)
    }
}

fn completion(it: &raw::WorkCompletion) -> Completion {
    use raw::completed;
    let outcome = if it.status == 0 {
        let kind = match it.opcode {
            completed::SEND => Kind::Send,
            completed::RDMA_WRITE => Kind::Write,
            completed::RECV => Kind::Receive,
            completed::RECV_RDMA_WITH_IMM => Kind::ReceiveWrite,
            other => Kind::Other(other),
        };
        let received = matches!(kind, Kind::Receive | Kind::ReceiveWrite);
        let immediate = received && it.wc_flags & completed::WITH_IMM != 0;
        let immediate = immediate.then(|| u32::from_be(it.imm_data));
        let bytes = if received { it.byte_len } else { 0 };
        Ok(Done { kind, bytes, immediate })
    } else {
        // Nothing else of it is good then.
        Err(Broken { status: Status::from_number(it.status), vendor: it.vendor_err })
    };
    Completion { id: it.wr_id, qpn: it.qp_num, outcome }
}
