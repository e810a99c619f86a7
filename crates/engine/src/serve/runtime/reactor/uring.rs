//! The driver of choice: one call hands over what is to be waited for and waits.
//!
//! A socket is waited for by a poll that tells once, made when a task is about to sleep on it and handed over
//! with the call that sleeps: it costs no call of its own, and while data flows there is none.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sys::event::Interest;
use sys::uring::{Done, Op, Ring, Ticket, Unavailable};

use super::super::core::Core;
use super::super::vector::Shared;
use super::io_error;

/// Room for submissions between two calls; more are handed over by a call of their own.
const ENTRIES: u32 = 512;
/// The tag of the bell; nothing else has both of the two bits below.
const BELL: u64 = u64::MAX;
/// In the tag of a poll for writing.
pub(super) const WRITE: u64 = 1 << 62;
/// In the tag of what is no poll: the rest is its number.
const OPERATION: u64 = 1 << 63;
/// How long to wait when the kernel fails us, so as not to turn for nothing.
const FAILING: Duration = Duration::from_millis(1);

/// What became of an operation that a task waits for.
#[derive(Default)]
struct Outcome {
    waker: RefCell<Option<Waker>>,
    done: RefCell<Option<Done>>,
}

pub(in super::super) struct Uring {
    /// `None` after the end.
    ring: RefCell<Option<Ring>>,
    bell: Arc<OwnedFd>,
    outcomes: RefCell<Outcomes>,
}

/// Who waits for which operation. A place is free when its operation is done, not when nobody waits for it:
/// so no number is used twice at a time.
#[derive(Default)]
struct Outcomes {
    places: Vec<Option<Rc<Outcome>>>,
    free: Vec<usize>,
}

impl Uring {
    pub(super) fn new(ring: Ring, shared: &Shared) -> io::Result<Self> {
        let bell = Arc::new(shared.bell().another().map_err(io_error)?);
        let new = Self { ring: RefCell::new(Some(ring)), bell, outcomes: RefCell::default() };
        new.listen();
        Ok(new)
    }

    /// A ring, or why there is none.
    pub(super) fn ring() -> Result<Ring, Unavailable> {
        Ring::new(ENTRIES)
    }

    fn submit(&self, op: Op, tag: u64) -> Result<Ticket, Op> {
        match self.ring.borrow_mut().as_mut() {
            Some(ring) => ring.submit(op, tag),
            None => Err(op),
        }
    }

    /// Each ring of the bell is told, though nobody hears it.
    fn listen(&self) {
        let op = Op::Poll { fd: self.bell.clone(), interest: Interest::READ, again: true };
        let _ = self.submit(op, BELL);
    }

    /// Waits for a direction of `fd`; told with `token`, and [`WRITE`] in it if that is the direction.
    pub(super) fn arm(&self, fd: &Arc<OwnedFd>, token: u64) -> Option<Ticket> {
        let interest = if token & WRITE != 0 {
            Interest::WRITE
        } else {
            Interest { peer_shut: true, ..Interest::READ }
        };
        self.submit(Op::Poll { fd: fd.clone(), interest, again: false }, token).ok()
    }

    pub(super) fn cancel(&self, ticket: Ticket) {
        if let Some(ring) = self.ring.borrow_mut().as_mut() {
            ring.cancel(ticket);
        }
    }

    /// Waits; `told` hears of polls.
    pub(super) fn wait(&self, most: Option<Duration>, mut told: impl FnMut(Done)) {
        let ns = most.map(|most| u64::try_from(most.as_nanos()).unwrap_or(u64::MAX));
        let entered = self.ring.borrow_mut().as_mut().map(|ring| ring.enter(ns));
        if matches!(entered, Some(Err(_))) {
            std::thread::sleep(most.unwrap_or(FAILING).min(FAILING));
        }
        while let Some(done) = self.take() {
            match done.tag {
                // It has ended: too many completions at a time, say.
                BELL if done.op.is_some() => self.listen(),
                BELL => {}
                tag if tag & OPERATION != 0 => self.conclude(done),
                _ => told(done),
            }
        }
    }

    fn take(&self) -> Option<Done> {
        self.ring.borrow_mut().as_mut().and_then(Ring::take)
    }

    fn conclude(&self, done: Done) {
        let Ok(place) = usize::try_from(done.tag & !OPERATION) else { return };
        let outcome = {
            let mut outcomes = self.outcomes.borrow_mut();
            outcomes.free.push(place);
            outcomes.places[place].take()
        };
        let Some(outcome) = outcome else { return };
        *outcome.done.borrow_mut() = Some(done);
        let waker = outcome.waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Begins `op` with the next wait.
    pub(super) fn operate(&self, op: Op) -> Result<Operation, Op> {
        let mut outcomes = self.outcomes.borrow_mut();
        let place = outcomes.free.pop().unwrap_or_else(|| {
            outcomes.places.push(None);
            outcomes.places.len() - 1
        });
        let ticket = match self.submit(op, OPERATION | place as u64) {
            Ok(ticket) => ticket,
            Err(op) => {
                outcomes.free.push(place);
                return Err(op);
            }
        };
        let outcome = Rc::new(Outcome::default());
        outcomes.places[place] = Some(outcome.clone());
        Ok(Operation { outcome, ticket: Cell::new(Some(ticket)) })
    }

    pub(super) fn close(&self) {
        let ring = self.ring.take();
        drop(ring);
    }
}

/// An operation of the ring, awaited. Dropped before, it is cancelled, and what it owns is freed when the
/// kernel has let go of it.
#[must_use = "futures do nothing unless awaited"]
pub(in super::super) struct Operation {
    outcome: Rc<Outcome>,
    ticket: Cell<Option<Ticket>>,
}

impl Future for Operation {
    type Output = Done;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        if let Some(done) = self.outcome.done.take() {
            self.ticket.set(None);
            return Poll::Ready(done);
        }
        let before = self.outcome.waker.replace(Some(cx.waker().clone()));
        drop(before);
        Poll::Pending
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.get() else { return };
        let _ = Core::try_with(|core| core.reactor.cancel(ticket));
    }
}
