//! Reliable connections between two devices.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use super::completion::{CompletionQueue, QueueHandle};
use super::region::{Access, DomainHandle, Piece, ProtectionDomain};
use super::{Mtu, errno, outcome, pointer, raw};
use crate::call::Failure;

/// Pieces of a request, at most.
pub const PIECES_MAX: usize = 4;
/// Requests that go to the device at once.
const CHAIN: usize = 4;
/// Packet sequence numbers and queue pair numbers have 24 bits.
const BITS_24: u32 = 0xFF_FFFF;

/// How much a queue pair holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Requests to send.
    pub sends: u32,
    /// Requests to receive.
    pub receives: u32,
    /// Pieces of a request to send, at most [`PIECES_MAX`].
    pub send_pieces: u32,
    /// Pieces of a request to receive, at most [`PIECES_MAX`].
    pub receive_pieces: u32,
    /// Bytes that may stand in a request itself.
    pub inline_bytes: u32,
}

/// How packets reach the peer, and what they are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Our port.
    pub port: u8,
    /// Place of our address in its table.
    pub gid_index: u8,
    /// The peer's address.
    pub gid: [u8; 16],
    /// The peer's queue pair, 24 bits.
    pub qpn: u32,
    /// The first sequence number that the peer sends, 24 bits.
    pub psn: u32,
    /// Payload of a packet, of all but the last of a message exactly.
    pub mtu: Mtu,
    /// Routers on the way that packets survive, and one more.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN of RoCEv2.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// How long a peer waits that has found us without receive requests: a code, 0 to 31 (IBTA vol. 1,
    /// 9.7.5.2.8).
    pub rnr_timer: u8,
}

/// When to send again, and when to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Our first sequence number, 24 bits.
    pub psn: u32,
    /// Without an answer for 4.096 µs · 2^this, packets are sent again; 0 to 31, 0: never.
    pub timeout: u8,
    /// How often; 0 to 7.
    pub retries: u8,
    /// How often to a peer without receive requests; 0 to 7, 7: for ever.
    pub rnr_retries: u8,
}

/// Where a queue pair stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// As it was made.
    Reset,
    /// It takes requests to receive.
    Init,
    /// It receives.
    ReadyToReceive,
    /// It sends, too.
    ReadyToSend,
    /// Nothing more; requests are flushed.
    Error,
    /// Another, of that number in `enum ibv_qp_state`.
    Other(u32),
}

/// What a queue pair is like now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Where it stands.
    pub state: State,
    /// What [`QueuePair::ready_to_receive`] was given; meaningless before.
    pub path: Path,
    /// What [`QueuePair::ready_to_send`] was given; meaningless before. `psn` is the next one.
    pub patience: Patience,
    /// What the peer may do.
    pub access: Access,
}

/// A message or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// What is to be done.
    pub operation: Operation,
    /// The bytes.
    pub source: Source<'a>,
    /// What the peer's completion shall have.
    pub immediate: Option<u32>,
    /// Whether success has a completion; failure always has. Room in the queue returns with a completion,
    /// for all requests up to it.
    pub signaled: bool,
    /// Whether it wakes a peer that waits for [`super::Wake::Solicited`].
    pub solicited: bool,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message into the peer's next receive request.
    Send,
    /// Bytes into the peer's memory.
    Write {
        /// Where.
        address: u64,
        /// The key of that memory.
        rkey: u32,
    },
}

/// Where the bytes of a request are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// Copied into the request, up to [`Shape::inline_bytes`].
    Inline(&'a [u8]),
    /// In registered memory, one piece behind the other, up to [`Shape::send_pieces`]; not to be changed
    /// before the completion.
    Pieces(&'a [Piece]),
}

/// Some requests were not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// How many were, from the first on.
    pub posted: usize,
    /// Why the next was not: `ENOMEM` if the queue is full, `EINVAL` if it cannot be.
    pub failure: Failure,
}

impl std::fmt::Display for PostError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (after {} requests)", self.failure, self.posted)
    }
}

impl std::error::Error for PostError {}

/// A reliable connection's end.
pub struct QueuePair {
    at: NonNull<raw::Pair>,
    number: u32,
    shape: Shape,
    domain: Arc<DomainHandle>,
    /// Destroyed after it.
    _queues: [Arc<QueueHandle>; 2],
}

// SAFETY: libibverbs may be called by many threads, also with one queue pair.
unsafe impl Send for QueuePair {}
// SAFETY: the same.
unsafe impl Sync for QueuePair {}

impl std::fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueuePair").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: from `create_qp`, and freed here only.
        unsafe { (self.domain.open.symbols.destroy_qp)(self.at.as_ptr()) };
    }
}

impl QueuePair {
    /// Makes one, of type RC. What it sends and what it receives completes in these queues.
    ///
    /// # Errors
    ///
    /// The errno: `EINVAL` if the device cannot have that shape, `ENOMEM` if it has no more queue pairs or
    /// no more memory may be locked.
    pub fn new(
        domain: &ProtectionDomain,
        (sends, receives): (&CompletionQueue, &CompletionQueue),
        shape: Shape,
    ) -> Result<Self, Failure> {
        let domain = domain.handle.clone();
        let mut setup = raw::PairSetup {
            qp_context: std::ptr::null_mut(),
            send_cq: sends.handle.at.as_ptr(),
            recv_cq: receives.handle.at.as_ptr(),
            srq: std::ptr::null_mut(),
            cap: raw::Capacity {
                max_send_wr: shape.sends,
                max_recv_wr: shape.receives,
                max_send_sge: shape.send_pieces,
                max_recv_sge: shape.receive_pieces,
                max_inline_data: shape.inline_bytes,
            },
            qp_type: raw::RC,
            sq_sig_all: 0,
        };
        // SAFETY: a protection domain and queues that we hold.
        let at = unsafe { (domain.open.symbols.create_qp)(domain.at.as_ptr(), &raw mut setup) };
        let at = pointer("make a queue pair", at)?;
        // SAFETY: a queue pair that was just made; the number does not change.
        let number = unsafe { (*at.as_ptr()).qp_num };
        let cap = setup.cap;
        let shape = Shape {
            sends: cap.max_send_wr,
            receives: cap.max_recv_wr,
            send_pieces: cap.max_send_sge,
            receive_pieces: cap.max_recv_sge,
            inline_bytes: cap.max_inline_data,
        };
        let queues = [sends.handle.clone(), receives.handle.clone()];
        Ok(Self { at, number, shape, domain, _queues: queues })
    }

    /// Its number, 24 bits.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What it was given: at least what was asked for.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    fn modify(
        &self,
        step: &'static str,
        attributes: &mut raw::PairAttributes,
        mask: u32,
    ) -> Result<(), Failure> {
        let mask = c_int::try_from(mask).unwrap_or(0);
        // SAFETY: a queue pair that we hold, and attributes that are only read.
        let ret =
            unsafe { (self.domain.open.symbols.modify_qp)(self.at.as_ptr(), attributes, mask) };
        outcome(step, ret)
    }

    /// From now on it takes requests to receive, and is for this port. The partition is the first of the
    /// port's table.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn init(&self, port: u8, access: Access) -> Result<(), Failure> {
        use raw::mask::{ACCESS_FLAGS, PKEY_INDEX, PORT, STATE};
        let mut to = raw::PairAttributes {
            qp_state: raw::state::INIT,
            port_num: port,
            pkey_index: 0,
            qp_access_flags: access.bits(),
            ..raw::PairAttributes::default()
        };
        self.modify("initialise a queue pair", &mut to, STATE | PKEY_INDEX | PORT | ACCESS_FLAGS)
    }

    /// From now on it receives what comes on this path.
    ///
    /// # Errors
    ///
    /// The errno: `EINVAL` if it is not initialised or the path cannot be, `ENETUNREACH` or `ETIMEDOUT` if
    /// the kernel finds no way to the peer's address.
    pub fn ready_to_receive(&self, path: &Path) -> Result<(), Failure> {
        use raw::mask::{AV, DEST_QPN, MAX_DEST_RD_ATOMIC, MIN_RNR_TIMER, PATH_MTU, RQ_PSN, STATE};
        let mut to = raw::PairAttributes {
            qp_state: raw::state::RTR,
            path_mtu: path.mtu.number(),
            dest_qp_num: path.qpn & BITS_24,
            rq_psn: path.psn & BITS_24,
            max_dest_rd_atomic: 1,
            min_rnr_timer: path.rnr_timer,
            ah_attr: raw::Address {
                dgid: path.gid,
                flow_label: path.flow_label,
                sgid_index: path.gid_index,
                hop_limit: path.hop_limit,
                traffic_class: path.traffic_class,
                sl: path.service_level,
                is_global: 1,
                port_num: path.port,
                ..raw::Address::default()
            },
            ..raw::PairAttributes::default()
        };
        let mask = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
        self.modify("connect a queue pair", &mut to, mask)
    }

    /// From now on it sends.
    ///
    /// # Errors
    ///
    /// The errno: `EINVAL` if it does not receive yet.
    pub fn ready_to_send(&self, patience: &Patience) -> Result<(), Failure> {
        use raw::mask::{MAX_QP_RD_ATOMIC, RETRY_CNT, RNR_RETRY, SQ_PSN, STATE, TIMEOUT};
        let mut to = raw::PairAttributes {
            qp_state: raw::state::RTS,
            sq_psn: patience.psn & BITS_24,
            timeout: patience.timeout,
            retry_cnt: patience.retries,
            rnr_retry: patience.rnr_retries,
            max_rd_atomic: 1,
            ..raw::PairAttributes::default()
        };
        let mask = STATE | SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC;
        self.modify("start a queue pair", &mut to, mask)
    }

    /// From now on nothing is sent or received; what was posted is flushed, with completions.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn stop(&self) -> Result<(), Failure> {
        let mut to =
            raw::PairAttributes { qp_state: raw::state::ERROR, ..raw::PairAttributes::default() };
        self.modify("stop a queue pair", &mut to, raw::mask::STATE)
    }

    /// What it is like now.
    ///
    /// # Errors
    ///
    /// The errno.
    pub fn attributes(&self) -> Result<Attributes, Failure> {
        use raw::{mask, state};
        let mut it = raw::PairAttributes::default();
        let mut setup = raw::PairSetup {
            qp_context: std::ptr::null_mut(),
            send_cq: std::ptr::null_mut(),
            recv_cq: std::ptr::null_mut(),
            srq: std::ptr::null_mut(),
            cap: raw::Capacity::default(),
            qp_type: 0,
            sq_sig_all: 0,
        };
        let wanted = mask::STATE | mask::AV | mask::PATH_MTU | mask::TIMEOUT | mask::SQ_PSN;
        let wanted = c_int::try_from(wanted).unwrap_or(0);
        let query = self.domain.open.symbols.query_qp;
        // SAFETY: a queue pair that we hold, and room for both answers.
        let ret = unsafe { query(self.at.as_ptr(), &raw mut it, wanted, &raw mut setup) };
        outcome("look at a queue pair", ret)?;
        Ok(Attributes {
            state: match it.qp_state {
                state::RESET => State::Reset,
                state::INIT => State::Init,
                state::RTR => State::ReadyToReceive,
                state::RTS => State::ReadyToSend,
                state::ERROR => State::Error,
                other => State::Other(other),
            },
            path: Path {
                port: it.port_num,
                gid_index: it.ah_attr.sgid_index,
                gid: it.ah_attr.dgid,
                qpn: it.dest_qp_num,
                psn: it.rq_psn,
                mtu: Mtu::from_number(it.path_mtu).unwrap_or(Mtu::B256),
                hop_limit: it.ah_attr.hop_limit,
                traffic_class: it.ah_attr.traffic_class,
                flow_label: it.ah_attr.flow_label,
                service_level: it.ah_attr.sl,
                rnr_timer: it.min_rnr_timer,
            },
            patience: Patience {
                psn: it.sq_psn,
                timeout: it.timeout,
                retries: it.retry_cnt,
                rnr_retries: it.rnr_retry,
            },
            access: Access {
                local_write: it.qp_access_flags & raw::access::LOCAL_WRITE != 0,
                remote_write: it.qp_access_flags & raw::access::REMOTE_WRITE != 0,
            },
        })
    }

    /// Asks for messages and writes, in this order; they go to the device a few at a time.
    ///
    /// # Errors
    ///
    /// [`PostError`] says how many were taken, and why the next was not.
    pub fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        let mut posted = 0;
        for chunk in requests.chunks(CHAIN) {
            self.post_chain(chunk).map_err(|e| PostError { posted: posted + e.posted, ..e })?;
            posted += chunk.len();
        }
        Ok(())
    }

    /// Up to [`CHAIN`] of them.
    fn post_chain(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        let step = "post a request to send";
        let refused = |posted, errno| PostError { posted, failure: Failure { step, errno } };
        let mut segments = [[raw::Segment::default(); PIECES_MAX]; CHAIN];
        let mut chain = [EMPTY; CHAIN];
        for (at, request) in requests.iter().enumerate() {
            let Some(count) = fill(request.source, &mut segments[at]) else {
                return Err(refused(0, libc::EINVAL));
            };
            chain[at] = translate(request, count);
        }
        // The pointers last: neither array moves from here on.
        let (first, lists) = (chain.as_mut_ptr(), segments.as_mut_ptr());
        for at in 0..requests.len() {
            let next = if at + 1 < requests.len() {
                first.wrapping_add(at + 1)
            } else {
                std::ptr::null_mut()
            };
            // SAFETY: entry `at` of the chain, which is ours.
            let entry = unsafe { &mut *first.wrapping_add(at) };
            entry.next = next;
            entry.sg_list = lists.wrapping_add(at).cast();
        }
        // SAFETY: an open context, whose functions do not change.
        let post = unsafe { (*self.domain.open.at.as_ptr()).operations.post_send };
        let post = post.ok_or_else(|| refused(0, libc::ENOSYS))?;
        let mut bad = first;
        // SAFETY: a queue pair that we hold; requests, lists and inline bytes that live until it returns
        // and are copied by then; addresses behind keys are for the device to check.
        let ret = unsafe { post(self.at.as_ptr(), first, &raw mut bad) };
        let distance = bad.addr().saturating_sub(first.addr()) / size_of::<raw::SendRequest>();
        errno(ret).map_err(|errno| refused(distance.min(requests.len()), errno))
    }

    /// Asks for a message.
    ///
    /// # Errors
    ///
    /// The errno: `ENOMEM` if the queue is full, `EINVAL` if there are too many pieces or it is too early.
    pub fn post_receive(&self, id: u64, pieces: &[Piece]) -> Result<(), Failure> {
        let step = "post a request to receive";
        let mut segments = [raw::Segment::default(); PIECES_MAX];
        let count = fill(Source::Pieces(pieces), &mut segments);
        let num_sge = count.ok_or(Failure { step, errno: libc::EINVAL })?;
        let sg_list = segments.as_mut_ptr();
        let next = std::ptr::null_mut();
        let mut request = raw::ReceiveRequest { wr_id: id, next, sg_list, num_sge };
        let mut bad = &raw mut request;
        // SAFETY: an open context, whose functions do not change.
        let post = unsafe { (*self.domain.open.at.as_ptr()).operations.post_recv };
        let post = post.ok_or(Failure { step, errno: libc::ENOSYS })?;
        // SAFETY: a queue pair that we hold, and a request and list that live until it returns and are
        // copied by then; addresses behind keys are for the device to check.
        let ret = unsafe { post(self.at.as_ptr(), &raw mut request, &raw mut bad) };
        outcome(step, ret)
    }
}

const EMPTY: raw::SendRequest = raw::SendRequest {
    wr_id: 0,
    next: std::ptr::null_mut(),
    sg_list: std::ptr::null_mut(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    imm_data: 0,
    remote_addr: 0,
    rkey: 0,
    rest_of_wr: [0; 2],
    qp_type: 0,
    bind_mw: [0; 6],
};

/// Writes down where the bytes are. How many pieces; `None`: too many.
fn fill(source: Source<'_>, to: &mut [raw::Segment; PIECES_MAX]) -> Option<c_int> {
    match source {
        Source::Inline([]) => Some(0),
        Source::Inline(bytes) => {
            let addr = bytes.as_ptr().expose_provenance() as u64;
            let length = u32::try_from(bytes.len()).ok()?;
            to[0] = raw::Segment { addr, length, lkey: 0 };
            Some(1)
        }
        Source::Pieces(pieces) => {
            for (piece, to) in pieces.iter().zip(to) {
                *to = raw::Segment { addr: piece.address, length: piece.len, lkey: piece.lkey };
            }
            c_int::try_from(pieces.len()).ok().filter(|_| pieces.len() <= PIECES_MAX)
        }
    }
}

fn translate(request: &SendRequest<'_>, num_sge: c_int) -> raw::SendRequest {
    use raw::{flag, opcode};
    let with_immediate = request.immediate.is_some();
    let (opcode, remote_addr, rkey) = match request.operation {
        Operation::Send if with_immediate => (opcode::SEND_WITH_IMM, 0, 0),
        Operation::Send => (opcode::SEND, 0, 0),
        Operation::Write { address, rkey } if with_immediate => {
            (opcode::RDMA_WRITE_WITH_IMM, address, rkey)
        }
        Operation::Write { address, rkey } => (opcode::RDMA_WRITE, address, rkey),
    };
    let bit = |set: bool, bit| if set { bit } else { 0 };
    let send_flags = bit(request.signaled, flag::SIGNALED)
        | bit(request.solicited, flag::SOLICITED)
        | bit(matches!(request.source, Source::Inline(_)), flag::INLINE);
    raw::SendRequest {
        wr_id: request.id,
        num_sge,
        opcode,
        send_flags,
        imm_data: request.immediate.unwrap_or(0).to_be(),
        remote_addr,
        rkey,
        ..EMPTY
    }
}
