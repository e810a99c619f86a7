//! io_uring: what the kernel does while we do something else.
//!
//! An [`Op`] owns all that the kernel uses for it: descriptors, buffers. Given to a [`Ring`] it is out
//! of reach until it is done, and is given back with the last [`Done`]. So nothing can be freed or closed
//! that the kernel still uses, whatever the caller drops, the ring included.

mod op;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::mem::forget;

use io_uring::{Builder, IoUring, Probe, cqueue, opcode, squeue, types};

use crate::event::Event;
pub use op::Op;
use op::poll_event;

/// Why there is no ring to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// The kernel refuses it to us (`EPERM`, `EACCES`): the sysctl `kernel.io_uring_disabled`, a seccomp filter.
    Forbidden,
    /// The kernel has none, or a filter says so (`ENOSYS`).
    Absent,
    /// It has one that cannot do this, which newer ones can.
    TooOld(&'static str),
    /// It could not be made, for this errno: `ENOMEM` for instance when `RLIMIT_MEMLOCK` is low.
    Failed(i32),
}

impl std::fmt::Display for Unavailable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Forbidden => {
                f.write_str("io_uring is forbidden (sysctl kernel.io_uring_disabled, or seccomp)")
            }
            Self::Absent => f.write_str("the kernel has no io_uring"),
            Self::TooOld(what) => write!(f, "the kernel's io_uring has no {what}"),
            Self::Failed(errno) => {
                write!(f, "cannot make an io_uring: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl std::error::Error for Unavailable {}

impl From<io::Error> for Unavailable {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error().unwrap_or(libc::EIO) {
            libc::EPERM | libc::EACCES => Self::Forbidden,
            libc::ENOSYS => Self::Absent,
            errno => Self::Failed(errno),
        }
    }
}

/// Names an operation of a ring, until its last [`Done`]; after that, nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    index: u32,
    generation: u32,
}

impl Ticket {
    fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the halves of what `number` made")]
    fn of(number: u64) -> Self {
        Self { index: number as u32, generation: (number >> 32) as u32 }
    }
}

/// The number of requests whose completion says nothing: that of no [`Ticket`], by [`OPS_MAX`].
const UNHEARD: u64 = u64::MAX;
/// The most operations of a ring at a time.
const OPS_MAX: usize = 1 << 24;
/// How long a ring that is dropped waits for what it has cancelled, in turns of [`LAST_TURN_NS`].
const LAST_TURNS: usize = 40;
const LAST_TURN_NS: u64 = 50_000_000;

/// An operation has ended, or has yielded one of several results.
#[derive(Debug)]
pub struct Done {
    /// Which.
    pub ticket: Ticket,
    /// What the caller called it.
    pub tag: u64,
    /// What the system call of its name returns, or its errno; `ECANCELED` if it was cancelled before.
    pub result: Result<u32, i32>,
    /// What was given; `None` if there is more to come.
    pub op: Option<Op>,
}

impl Done {
    /// What a [`Op::Poll`] has found; an error of it counts as broken.
    #[must_use]
    pub fn event(&self) -> Event {
        poll_event(self.tag, self.result)
    }
}

struct Slot {
    generation: u32,
    tag: u64,
    held: Option<Op>,
}

/// A submission and a completion queue of the kernel, and what is under way. Stays on its thread, and
/// is no use in a child after `fork`, where its queues are not mapped.
pub struct Ring {
    ring: IoUring,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// For which the submission queue had no room.
    backlog: VecDeque<squeue::Entry>,
    probe: Box<Probe>,
    kind: &'static str,
    /// The kernel refuses entries from another thread than the one that made the ring.
    stays: PhantomData<*mut ()>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("kind", &self.kind).field("len", &self.len()).finish()
    }
}

/// What it is called, and what makes it so.
type Kind = (&'static str, fn(&mut Builder));

/// Ways to set a ring up, the best first; older kernels answer `EINVAL` to what they do not know.
const KINDS: [Kind; 4] = [
    ("deferred", |b| {
        // 6.1: completions are worked off when we ask, not by interrupting us.
        b.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all();
    }),
    ("single issuer", |b| {
        b.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
    }),
    ("cooperative", |b| {
        b.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
    }),
    ("plain", |_| ()),
];

fn build(entries: u32, kinds: &[Kind]) -> Result<(IoUring, &'static str), Unavailable> {
    let mut last = Unavailable::Failed(libc::EINVAL);
    for &(kind, set_up) in kinds {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_cqsize(entries.saturating_mul(4));
        set_up(&mut builder);
        match builder.build(entries).map_err(Unavailable::from) {
            Ok(ring) => return Ok((ring, kind)),
            Err(Unavailable::Failed(libc::EINVAL)) => {}
            Err(error) => last = error,
        }
        if !matches!(last, Unavailable::Failed(_)) {
            break;
        }
    }
    Err(last)
}

impl Ring {
    /// One with room for `entries` submissions (a power of two, up to 32768) between two [`Ring::enter`]; more
    /// wait their turn.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn new(entries: u32) -> Result<Self, Unavailable> {
        Self::of(entries, &KINDS)
    }

    fn of(entries: u32, kinds: &[Kind]) -> Result<Self, Unavailable> {
        let (ring, kind) = build(entries.max(1), kinds)?;
        let params = ring.params();
        // Since 5.5, 5.11 and 5.13: no completion is lost however many there are; a wait has an end; a poll goes on after it
        // was told of something. Before, that was asked for in vain, and what is ready at once would be asked for without end.
        if !params.is_feature_nodrop() {
            return Err(Unavailable::TooOld("IORING_FEAT_NODROP"));
        }
        if !params.is_feature_ext_arg() {
            return Err(Unavailable::TooOld("IORING_FEAT_EXT_ARG"));
        }
        // The flag of that poll has no mark of its own; this came with it.
        if !params.is_feature_resource_tagging() {
            return Err(Unavailable::TooOld("IORING_POLL_ADD_MULTI"));
        }
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            (opcode::PollAdd::CODE, "IORING_OP_POLL_ADD"),
            (opcode::AsyncCancel::CODE, "IORING_OP_ASYNC_CANCEL"),
            (opcode::Read::CODE, "IORING_OP_READ"),
            (opcode::Write::CODE, "IORING_OP_WRITE"),
            (opcode::Fsync::CODE, "IORING_OP_FSYNC"),
        ];
        if let Some((_, name)) = needed.into_iter().find(|(code, _)| !probe.is_supported(*code)) {
            return Err(Unavailable::TooOld(name));
        }
        Ok(Self {
            ring,
            slots: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            probe: Box::new(probe),
            kind,
            stays: PhantomData,
        })
    }

    /// How it is set up: "deferred" (6.1), "single issuer" (6.0), "cooperative" (5.19) or "plain".
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Whether the kernel knows operations of this kind.
    #[must_use]
    pub fn knows(&self, op: &Op) -> bool {
        self.probe.is_supported(op.code())
    }

    /// How many operations are under way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Begins `op` with the next [`Ring::enter`]; its [`Done`] will bear `tag`.
    ///
    /// # Errors
    ///
    /// The operation, if 2^24 are under way.
    ///
    /// # Panics
    ///
    /// When a range of `op` is not within its buffer.
    pub fn submit(&mut self, mut op: Op, tag: u64) -> Result<Ticket, Op> {
        if self.len() >= OPS_MAX {
            return Err(op);
        }
        let entry = op.prepare();
        let ticket = self.hold(op, tag);
        self.push(entry.user_data(ticket.number()));
        Ok(ticket)
    }

    /// Asks the kernel to give up an operation; its [`Done`] comes all the same, with `ECANCELED` if it did. An
    /// operation that is done is none to give up.
    pub fn cancel(&mut self, ticket: Ticket) {
        let live = self.slots.get(ticket.index as usize);
        if live.is_some_and(|s| s.generation == ticket.generation && s.held.is_some()) {
            self.push(opcode::AsyncCancel::new(ticket.number()).build().user_data(UNHEARD));
        }
    }

    fn hold(&mut self, op: Op, tag: u64) -> Ticket {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, tag: 0, held: None });
            u32::try_from(self.slots.len() - 1).expect("at most OPS_MAX")
        });
        let slot = &mut self.slots[index as usize];
        (slot.tag, slot.held) = (tag, Some(op));
        Ticket { index, generation: slot.generation }
    }

    fn push(&mut self, entry: squeue::Entry) {
        // In order: a cancellation must not overtake what it cancels.
        if !self.backlog.is_empty() || !self.put(&entry) {
            self.backlog.push_back(entry);
        }
    }

    fn put(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: an entry is made by `Op::prepare` and points to memory and names descriptors that the slot
        // with its number holds; or it is a cancellation, which points to nothing. A slot lets go of them
        // only when the kernel has said that it is done (`finish`); if it never does, never (`drop`).
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Moves from the backlog what there is room for; whether it is empty.
    fn put_backlog(&mut self) -> bool {
        while let Some(entry) = self.backlog.pop_front() {
            if !self.put(&entry) {
                self.backlog.push_front(entry);
                return false;
            }
        }
        true
    }

    /// Hands over what was submitted, and waits until something is done, at most `most_ns` nanoseconds (`None`:
    /// without end; 0: not at all, and without a system call if there is nothing to hand over or take). A
    /// signal ends the wait early.
    ///
    /// # Errors
    ///
    /// The errno, when the kernel does not do its part: `ENOMEM`; `EEXIST` on a wrong thread. What was
    /// submitted stays.
    pub fn enter(&mut self, most_ns: Option<u64>) -> Result<(), i32> {
        while !self.put_backlog() {
            let room = self.ring.submission().len();
            self.turn(Some(0))?;
            if self.ring.submission().len() >= room {
                // No progress: completions have to be taken first.
                return Ok(());
            }
        }
        let done = !self.ring.completion().is_empty();
        self.turn(if done { Some(0) } else { most_ns })
    }

    fn turn(&mut self, most_ns: Option<u64>) -> Result<(), i32> {
        let queue = self.ring.submission();
        let nothing = queue.is_empty() && !queue.taskrun() && !queue.cq_overflow();
        drop(queue);
        let entered = match most_ns {
            Some(0) if nothing => return Ok(()),
            Some(0) => self.ring.submit(),
            None => self.ring.submit_and_wait(1),
            Some(ns) => {
                let time = types::Timespec::from(std::time::Duration::from_nanos(ns));
                let args = types::SubmitArgs::new().timespec(&time);
                self.ring.submitter().submit_with_args(1, &args)
            }
        };
        match entered.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO)) {
            // The time was up, a signal, completions to be taken first, or requests short for now.
            Ok(_) | Err(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// What is done, if something is. No system call.
    pub fn take(&mut self) -> Option<Done> {
        loop {
            let entry = self.ring.completion().next()?;
            if let Some(done) = self.finish(&entry) {
                return Some(done);
            }
        }
    }

    fn finish(&mut self, entry: &cqueue::Entry) -> Option<Done> {
        if entry.user_data() == UNHEARD {
            return None;
        }
        let ticket = Ticket::of(entry.user_data());
        let slot = self.slots.get_mut(ticket.index as usize);
        let slot = slot.filter(|slot| slot.generation == ticket.generation)?;
        let result = u32::try_from(entry.result()).map_err(|_| -entry.result());
        let tag = slot.tag;
        let mut op = None;
        if !cqueue::more(entry.flags()) {
            op = slot.held.take();
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(ticket.index);
        }
        Some(Done { ticket, tag, result, op })
    }

    /// Cancels all that is under way, and takes what that yields; whether nothing is left.
    fn drain(&mut self) -> bool {
        let live = |(index, slot): (usize, &Slot)| {
            let index = u32::try_from(index).ok()?;
            slot.held.as_ref().map(|_| Ticket { index, generation: slot.generation })
        };
        let tickets: Vec<_> = self.slots.iter().enumerate().filter_map(live).collect();
        for ticket in tickets {
            self.cancel(ticket);
        }
        for _ in 0..LAST_TURNS {
            while self.take().is_some() {}
            if self.is_empty() {
                return true;
            }
            if self.enter(Some(LAST_TURN_NS)).is_err() {
                break;
            }
        }
        while self.take().is_some() {}
        self.is_empty()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.drain() {
            // The kernel may still write there; memory that is lost is no harm.
            forget(std::mem::take(&mut self.slots));
        }
    }
}
