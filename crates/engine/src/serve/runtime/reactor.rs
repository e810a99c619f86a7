//! Which descriptor may be read or written again, and who waits for it.

mod epoll;
mod uring;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sys::call::Failure;
use sys::event::Event;
use sys::uring::{Op, Ring, Ticket, Unavailable};

use super::Driver;
use super::core::Core;
use super::vector::Shared;
use epoll::Epoll;
pub(super) use uring::Operation;
use uring::Uring;

pub(super) fn io_error(failure: Failure) -> io::Error {
    io::Error::from_raw_os_error(failure.errno)
}

/// To read, or to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// What is known of one direction of a descriptor.
#[derive(Default)]
struct Side {
    /// Nothing says that it would have to wait.
    ready: Cell<bool>,
    /// The end has come: it never waits any more.
    ended: Cell<bool>,
    /// The ring's poll for it, if there is one under way.
    poll: Cell<Option<Ticket>>,
    wakers: RefCell<Vec<Waker>>,
}

impl Side {
    fn set(&self, ended: bool) {
        self.ready.set(true);
        self.ended.set(self.ended.get() || ended);
        let mut wakers = self.wakers.take();
        for waker in wakers.drain(..) {
            waker.wake();
        }
        // Its memory serves the next wait.
        let mut again = self.wakers.borrow_mut();
        if again.is_empty() {
            *again = wakers;
        }
    }

    /// An event of the descriptor, which may concern this direction.
    fn hear(&self, event: Event, write: bool) {
        let ended = event.broken || event.peer_shut && !write;
        if ended || (if write { event.write } else { event.read }) {
            self.set(ended);
        }
    }

    fn unset(&self) {
        self.ready.set(self.ended.get());
    }

    fn is_ready(&self) -> bool {
        self.ready.get()
    }

    fn enlist(&self, waker: &Waker) {
        let mut wakers = self.wakers.borrow_mut();
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }
}

/// Both directions of a descriptor.
#[derive(Default)]
struct Sides {
    read: Side,
    write: Side,
}

/// A descriptor that does not block, with what this vector knows of its readiness.
///
/// At first it is taken to be ready. Who then meets `EAGAIN` says so ([`Source::not_readable`],
/// [`Source::not_writable`]) and waits ([`Source::readable`], [`Source::writable`]) before trying again.
pub struct Source {
    fd: Arc<OwnedFd>,
    sides: Rc<Sides>,
    token: u64,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Source").field(&self.fd.as_raw_fd()).finish()
    }
}

impl Source {
    /// Waits for `fd`, on this vector. It has to be `O_NONBLOCK` and of a kind that can be waited for,
    /// and there must not be two sources of one descriptor.
    ///
    /// # Errors
    ///
    /// `EPERM` for files that are always ready, `EEXIST` for a second source: with epoll; shortages of the kernel.
    pub fn new(fd: Arc<OwnedFd>) -> io::Result<Self> {
        let sides = Rc::new(Sides::default());
        sides.read.set(false);
        sides.write.set(false);
        let token = Core::with(|core| core.reactor.add(&fd, &sides))?;
        Ok(Self { fd, sides, token })
    }

    /// The descriptor, to be kept by whoever uses it past this.
    #[must_use]
    pub fn shared_fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Ends when there may be something to read, or the end of it, or an error. At once if nobody has said
    /// [`Source::not_readable`] since.
    pub fn readable(&self) -> Readiness<'_> {
        Readiness { source: self, direction: Direction::Read }
    }

    /// Ends when there may be room to write, or an error.
    pub fn writable(&self) -> Readiness<'_> {
        Readiness { source: self, direction: Direction::Write }
    }

    /// To be said after reading met `EAGAIN`, and never otherwise.
    pub fn not_readable(&self) {
        self.sides.read.unset();
    }

    /// To be said after writing met `EAGAIN`, and never otherwise.
    pub fn not_writable(&self) {
        self.sides.write.unset();
    }

    /// To be said when the last that was read may not have been all.
    pub(super) fn perhaps_readable(&self) {
        self.sides.read.ready.set(true);
    }

    /// Whether reading is worth a system call, as far as is known.
    #[must_use]
    pub fn may_read(&self) -> bool {
        self.sides.read.is_ready()
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Source {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = Core::try_with(|core| core.reactor.remove(&self.fd, self.token));
    }
}

/// Ends when a direction of a descriptor may be ready.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Readiness<'a> {
    source: &'a Source,
    direction: Direction,
}

impl Future for Readiness<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let sides = &self.source.sides;
        let side = match self.direction {
            Direction::Read => &sides.read,
            Direction::Write => &sides.write,
        };
        if side.is_ready() {
            return Poll::Ready(());
        }
        side.enlist(cx.waker());
        if side.poll.get().is_none() {
            let write = self.direction == Direction::Write;
            let Source { fd, token, .. } = self.source;
            side.poll.set(Core::with(|core| core.reactor.arm(fd, *token, write)));
        }
        Poll::Pending
    }
}

/// The descriptors of a vector.
pub(super) struct Reactor {
    known: RefCell<Known>,
    waits: Waits,
}

enum Waits {
    Epoll(Epoll),
    Uring(Box<Uring>),
}

/// Sources by token: a place, and how often it was used before.
#[derive(Default)]
struct Known {
    places: Vec<(u32, Option<Rc<Sides>>)>,
    free: Vec<u32>,
}

impl Known {
    fn add(&mut self, sides: &Rc<Sides>) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            u32::try_from(self.places.len() - 1).expect("fewer than 2^32 descriptors")
        });
        let (generation, held) = &mut self.places[place as usize];
        *held = Some(sides.clone());
        token(place, *generation)
    }

    fn remove(&mut self, token: u64) -> Option<Rc<Sides>> {
        let (place, generation) = place(token);
        let (now, held) = self.places.get_mut(place as usize)?;
        if *now != generation {
            return None;
        }
        *now = now.wrapping_add(1) & GENERATIONS;
        self.free.push(place);
        held.take()
    }

    fn find(&self, token: u64) -> Option<Rc<Sides>> {
        let (place, generation) = place(token);
        let (now, held) = self.places.get(place as usize)?;
        held.clone().filter(|_| *now == generation)
    }
}

/// Thirty bits: the two above say what else a token may be.
const GENERATIONS: u32 = (1 << 30) - 1;

fn token(place: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(place)
}

#[expect(clippy::cast_possible_truncation, reason = "the halves of a token")]
fn place(token: u64) -> (u32, u32) {
    (token as u32, (token >> 32) as u32 & GENERATIONS)
}

impl Reactor {
    /// One of the wanted kind, which kind, and why it is not io_uring if that was wanted most.
    pub(super) fn new(
        driver: Driver,
        shared: &Shared,
    ) -> io::Result<(Self, Driver, Option<String>)> {
        if sys::stream::in_front() {
            return Self::carried(driver, shared);
        }
        Self::with(driver, shared, Uring::ring)
    }

    /// For sockets whose bytes go through shared memory: what a ring of the kernel's does to them would go past
    /// the library that moves those.
    fn carried(driver: Driver, shared: &Shared) -> io::Result<(Self, Driver, Option<String>)> {
        if driver == Driver::Uring {
            return Err(io::Error::other("under `shunt run` there is no io_uring: leave it out"));
        }
        let (reactor, driver, _) = Self::with(Driver::Epoll, shared, Uring::ring)?;
        Ok((reactor, driver, Some("under `shunt run` connections go through shared memory".into())))
    }

    /// The same, with what makes a ring.
    fn with(
        driver: Driver,
        shared: &Shared,
        ring: impl FnOnce() -> Result<Ring, Unavailable>,
    ) -> io::Result<(Self, Driver, Option<String>)> {
        let ring = if driver == Driver::Epoll { None } else { Some(ring()) };
        let (waits, driver, fell_back) = match ring {
            Some(Ok(ring)) => {
                (Waits::Uring(Box::new(Uring::new(ring, shared)?)), Driver::Uring, None)
            }
            Some(Err(why)) if driver == Driver::Uring => return Err(io::Error::other(why)),
            none => {
                let why = none.and_then(Result::err).map(|why| why.to_string());
                (Waits::Epoll(Epoll::new(shared)?), Driver::Epoll, why)
            }
        };
        Ok((Self { known: RefCell::default(), waits }, driver, fell_back))
    }

    fn add(&self, fd: &Arc<OwnedFd>, sides: &Rc<Sides>) -> io::Result<u64> {
        let token = self.known.borrow_mut().add(sides);
        if let Waits::Epoll(epoll) = &self.waits
            && let Err(error) = epoll.add(fd, token)
        {
            self.known.borrow_mut().remove(token);
            return Err(error);
        }
        Ok(token)
    }

    fn remove(&self, fd: &OwnedFd, token: u64) {
        let Some(sides) = self.known.borrow_mut().remove(token) else { return };
        match &self.waits {
            Waits::Epoll(epoll) => epoll.remove(fd),
            Waits::Uring(uring) => {
                let polls = [sides.read.poll.take(), sides.write.poll.take()];
                polls.into_iter().flatten().for_each(|poll| uring.cancel(poll));
            }
        }
    }

    /// Has the ring tell when a direction is ready; epoll tells anyway.
    fn arm(&self, fd: &Arc<OwnedFd>, token: u64, write: bool) -> Option<Ticket> {
        match &self.waits {
            Waits::Epoll(_) => None,
            Waits::Uring(uring) => uring.arm(fd, if write { token | uring::WRITE } else { token }),
        }
    }

    /// Waits until something happens, the bell rings or `most` has passed, and wakes who waited for it.
    pub(super) fn wait(&self, most: Option<Duration>) {
        match &self.waits {
            Waits::Epoll(epoll) => epoll.wait(most, |event| {
                if let Some(sides) = self.find(event.token) {
                    sides.read.hear(event, false);
                    sides.write.hear(event, true);
                }
            }),
            Waits::Uring(uring) => uring.wait(most, |done| {
                let write = done.tag & uring::WRITE != 0;
                if let Some(sides) = self.find(done.tag & !uring::WRITE) {
                    let side = if write { &sides.write } else { &sides.read };
                    side.poll.set(None);
                    side.hear(done.event(), write);
                }
            }),
        }
    }

    fn find(&self, token: u64) -> Option<Rc<Sides>> {
        self.known.borrow().find(token)
    }

    /// Has the ring do `op`; the same back, if there is no ring.
    pub(super) fn operate(&self, op: Op) -> Result<Operation, Op> {
        match &self.waits {
            Waits::Epoll(_) => Err(op),
            Waits::Uring(uring) => uring.operate(op),
        }
    }

    fn cancel(&self, operation: Ticket) {
        if let Waits::Uring(uring) = &self.waits {
            uring.cancel(operation);
        }
    }

    /// Gives back what the kernel has, when all tasks are gone.
    pub(super) fn close(&self) {
        if let Waits::Uring(uring) = &self.waits {
            uring.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_ring_auto_is_epoll_and_says_why() {
        let shared = Shared::new().unwrap();
        let none = || Err(Unavailable::Forbidden);
        let (_, driver, why) = Reactor::with(Driver::Auto, &shared, none).unwrap();
        assert_eq!(driver, Driver::Epoll);
        assert!(why.unwrap().contains("forbidden"));
        let error = Reactor::with(Driver::Uring, &shared, none).err().unwrap();
        assert!(error.to_string().contains("forbidden"));
        let never = || panic!("epoll was wanted");
        let (_, driver, why) = Reactor::with(Driver::Epoll, &shared, never).unwrap();
        assert_eq!((driver, why), (Driver::Epoll, None));
    }

    #[test]
    fn a_token_of_one_that_is_gone_finds_nobody() {
        let (mut known, sides) = (Known::default(), Rc::new(Sides::default()));
        let first = known.add(&sides);
        assert!(known.find(first).is_some() && known.remove(first).is_some());
        let second = known.add(&sides);
        assert!(first != second && known.find(first).is_none() && known.remove(first).is_none());
        assert!(known.find(second).is_some());
    }
}
